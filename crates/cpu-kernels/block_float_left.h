// The left operand of block_float.cpp: integer multiples of powers of two, as signed bytes. Only block_float.cpp
// includes this file.
#pragma once

#include <immintrin.h>

#include "formats.h"

// Do not instantiate functions of the standard library here: the linker could use them in files for other processors.
#pragma GCC push_options
#pragma GCC target("arch=x86-64-v4,avx512vnni")

namespace {

// The codes of a matrix: affine with 4 or 8 bits, or 4-bit floats.
enum class Kind { kAffine4, kFloat4, kAffine8 };

constexpr int kDigits = 3, kVector = 64;

// A block of a row is two registers of codes. Each lane has this many consecutive numbers of one group. Registers of
// bytes hold them in groups of four. With 8 bits, these are the first four numbers of the lane and the other four. With
// 4 bits, they are the even and the odd numbers of the lane's first eight, in the order of the packed bytes, then those
// of its other eight.
constexpr int of_lane(Kind kind) { return kind == Kind::kAffine8 ? 8 : 16; }

constexpr int block_of(Kind kind) { return kLanes * of_lane(kind); }

constexpr int registers_of(Kind kind) { return of_lane(kind) / 4; }

// Returns the position of each lane's numbers in a block, in lanes. 4-bit codes reach their lanes by a shuffle of two
// registers within 128-bit parts.
template <Kind kKind>
INLINE __m512i places_of_lanes() {
  if constexpr (kKind == Kind::kAffine8) return _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  return _mm512_setr_epi32(0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15);
}

template <Kind kKind>
INLINE int lane_of(int place) {
  return kKind == Kind::kAffine8 ? place : place % 8 / 2 * 4 + place / 8 * 2 + place % 2;
}

// The center of the multiplied codes.
constexpr int center_of(Kind kind) { return kind == Kind::kAffine4 ? 8 : kind == Kind::kFloat4 ? 12 : 128; }

// With 8 bits, the highest digits are summed separately.
constexpr bool is_split(Kind kind) { return kind == Kind::kAffine8; }

// The number of bits by which sums are shifted after the digit that they begin with. With 8 bits, the sums of the
// highest digits are not shifted.
constexpr int shift_of(Kind kind) { return is_split(kind) ? 8 : 16; }

// The rows of a: per block its digits and corrections, and per group the sum of its numbers.
template <Kind kKind>
struct Left {
  // The digits, highest first, per register. Codes are unsigned, so their products are too large by the center times
  // the sum of the lane's multiples. The initial values of the sums contain the integer part of this correction. The
  // remainder is added with the power of two.
  struct alignas(kVector) Block {
    std::int8_t digits[kDigits][registers_of(kKind)][kVector];
    std::int32_t begin[kLanes], begin_of_highest[kLanes];
    float rests[kLanes], powers[kLanes];
  };

  int groups, count;
  Block* blocks;
  float* sums;

  INLINE Block& block(std::ptrdiff_t row, int index) const { return blocks[row * count + index]; }
};

// Returns a power of two from its biased f32 exponent.
INLINE float power(int exponent) { return with_bits_of<float>(static_cast<std::uint32_t>(exponent) << 23); }

// Returns the largest magnitude among `count` numbers as f32 bits. NaN is larger than any number.
INLINE std::uint32_t largest_of(const float* numbers, int count) {
  __m512i most = _mm512_setzero_si512();
  for (int i = 0; i < count; i += kLanes) most = _mm512_max_epu32(most, _mm512_and_si512(_mm512_loadu_si512(numbers + i), _mm512_set1_epi32(0x7fffffff)));
  return _mm512_reduce_max_epu32(most);
}

// Moves the lowest digits of sixteen numbers to their lanes, starting at `lane`. Returns the remaining digits.
template <Kind kKind>
INLINE __m512i take_digits(__m512i numbers, int lane, std::int8_t (*to)[kVector]) {
  constexpr int registers = registers_of(kKind);
  const __m512i low = _mm512_srai_epi32(_mm512_slli_epi32(numbers, 24), 24);
  __m128i bytes = _mm512_cvtepi32_epi8(low);
  if constexpr (kKind != Kind::kAffine8) bytes = _mm_shuffle_epi8(bytes, _mm_setr_epi8(0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15));
  std::int32_t fours[4];
  _mm_storeu_si128(reinterpret_cast<__m128i*>(fours), bytes);
  UNROLL for (int i = 0; i < 4; ++i) std::memcpy(to[i % registers] + 4 * (lane + i / registers), &fours[i], sizeof fours[i]);
  return _mm512_srai_epi32(_mm512_sub_epi32(numbers, low), 8);
}

// Sets the initial sums of a lane. Its multiples of `down` have the sum `sum`, and their highest digits the sum
// `highest`.
template <Kind kKind>
INLINE void set_lane(typename Left<kKind>::Block& block, int lane, int sum, int highest, float down) {
  const int all = (is_split(kKind) ? sum - (highest << 16) : sum) * center_of(kKind), unit = 1 << shift_of(kKind), whole = (all + unit / 2) & -unit;
  block.begin[lane] = -(whole >> shift_of(kKind));
  block.begin_of_highest[lane] = -highest * center_of(kKind);
  block.rests[lane] = static_cast<float>(whole - all) * down;
  block.powers[lane] = down;
}

// Splits a group of a row of a into digits.
template <Kind kKind>
INLINE void take_apart(const float* numbers, int group, const Left<kKind>& left, std::ptrdiff_t row, int index) {
  constexpr int kOfLane = of_lane(kKind);
  const std::uint32_t largest = largest_of(numbers, group);
  // Multiples up to 0x7f7f7f have three digits from -128 to 127. For smaller exponents, the power of two is not a
  // normal number.
  const int wanted = static_cast<int>(largest >> 23) + ((largest & 0x7fffff) > 0x7efefe), exponent = wanted < 23 ? 23 : wanted;
  const float down = largest < 0x7f800000 ? power(exponent - 22) : __builtin_nanf(""), up = power(276 - exponent);
  int sum = 0;
  for (int i = 0; i < group; i += kLanes) {
    const __m512i multiples = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(numbers + i), _mm512_set1_ps(up)));
    const int at = index * group + i, first = lane_of<kKind>(at % block_of(kKind) / kOfLane);
    auto& block = left.block(row, at / block_of(kKind));
    __m512i rest = multiples;
    for (int digit = kDigits - 1; digit > 0; --digit) rest = take_digits<kKind>(rest, first, block.digits[digit]);
    take_digits<kKind>(rest, first, block.digits[0]);
    UNROLL for (int lane = 0; lane < kLanes / kOfLane; ++lane) {
      const __mmask16 which = ((1 << kOfLane) - 1) << lane * kOfLane;
      const int lane_sum = _mm512_mask_reduce_add_epi32(which, multiples), highest = is_split(kKind) ? _mm512_mask_reduce_add_epi32(which, rest) : 0;
      set_lane<kKind>(block, first + lane, lane_sum, highest, down);
      sum += lane_sum;
    }
  }
  left.sums[row * left.groups + index] = static_cast<float>(sum) * down;
}

template <Kind kKind>
void take_row_apart(const float* a, int group, const Left<kKind>& left, int row) {
  for (int index = 0; index < left.groups; ++index) take_apart<kKind>(a + static_cast<std::ptrdiff_t>(index) * group, group, left, row, index);
}

}  // namespace

#pragma GCC pop_options
