// The right operand of block_float.cpp: codes as bytes, and scales in the lanes of their groups. Only block_float.cpp
// includes this file.
#pragma once

#include "ahead.h"
#include "block_float_left.h"
#include "packed_formats.h"

#pragma GCC push_options
#pragma GCC target("arch=x86-64-v4,avx512vnni")

namespace {

// Rows of b with a stride of `apart` rows, and the scales and biases of their groups.
template <class Number>
struct Right {
  const std::uint8_t* words;
  std::ptrdiff_t bytes, apart;
  int group, groups;
  const Number *scales, *biases;
};

// Loads up to sixteen scales, selected by `which`, and gives each lane the scale with the index in `of_lane`.
INLINE __m512 spread(const float* from, __mmask16 which, __m512i of_lane) { return _mm512_permutexvar_ps(of_lane, _mm512_maskz_loadu_ps(which, from)); }

// Loads up to eight scales: affine groups have at least 32 numbers.
INLINE __m512 spread(const Bf16* from, __mmask8 which, __m512i of_lane) {
  const __m512i eight = _mm512_castsi128_si512(_mm_maskz_loadu_epi16(which, from));
  return _mm512_castsi512_ps(_mm512_maskz_permutexvar_epi16(0xaaaaaaaa, _mm512_slli_epi32(of_lane, 16), eight));
}

INLINE __m512 spread(const F16* from, __mmask8 which, __m512i of_lane) {
  const __m256i eight = _mm256_castsi128_si256(_mm_maskz_loadu_epi16(which, from));
  return _mm512_cvtph_ps(_mm256_permutexvar_epi16(_mm512_cvtepi32_epi16(of_lane), eight));
}

// For exponents and 8-bit floats.
template <class Number>
INLINE __m512 spread(const Number* from, __mmask16 which, __m512i of_lane) {
  const __m128i bytes = _mm_shuffle_epi8(_mm_maskz_loadu_epi8(which, from), _mm512_cvtepi32_epi8(of_lane));
  return with_bits_of<__m512>(number_of<16, Number>(with_bits_of<Word<16>>(_mm512_cvtepu8_epi32(bytes))));
}

// Returns the numbers that `which` selects out of sixteen, and zeros elsewhere.
INLINE __m512 some_of(const float* from, __mmask16 which) { return _mm512_maskz_loadu_ps(which, from); }

INLINE __m512 some_of(const Bf16* from, __mmask16 which) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(which, from)), 16));
}

INLINE __m512 some_of(const F16* from, __mmask16 which) { return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(which, from)); }

// Returns the first `count` of 64 bytes, padded with zeros.
template <bool IsWhole>
INLINE __m512i bytes_of(const std::uint8_t* from, int count) {
  if (IsWhole) return _mm512_loadu_si512(from);
  return count <= 0 ? _mm512_setzero_si512() : _mm512_maskz_loadu_epi8(~__mmask64{0} >> (count < kVector ? kVector - count : 0), from);
}

// The codes of a block as bytes.
template <Kind kKind>
struct Codes {
  __m512i registers[registers_of(kKind)];

  // Reads the codes of the first `count` numbers. The others are undefined.
  template <bool IsWhole>
  INLINE void read(const std::uint8_t* from, int count) {
    const int bytes = kKind == Kind::kAffine8 ? count : count / 2;
    const __m512i low = bytes_of<IsWhole>(from, bytes), high = bytes_of<IsWhole>(from + kVector, bytes - kVector);
    if constexpr (kKind == Kind::kAffine8) {
      const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30), odd = _mm512_add_epi32(even, _mm512_set1_epi32(1));
      registers[0] = _mm512_permutex2var_epi32(low, even, high), registers[1] = _mm512_permutex2var_epi32(low, odd, high);
    } else {
      // A lane's first eight numbers are one word, and its other eight are another.
      const __m512 left = _mm512_castsi512_ps(low), right = _mm512_castsi512_ps(high);
      put_apart(_mm512_castps_si512(_mm512_shuffle_ps(left, right, 0x88)), registers);
      put_apart(_mm512_castps_si512(_mm512_shuffle_ps(left, right, 0xdd)), registers + 2);
    }
  }

 private:
  // Separates the codes at even and odd positions.
  INLINE static void put_apart(__m512i words, __m512i* to) {
    const __m512i mask = _mm512_set1_epi8(15);
    to[0] = _mm512_and_si512(words, mask), to[1] = _mm512_and_si512(_mm512_srli_epi16(words, 4), mask);
    if constexpr (kKind == Kind::kFloat4) {
      // Twice the value, plus the center.
      const __m512i table = _mm512_broadcast_i32x4(_mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0));
      to[0] = _mm512_shuffle_epi8(table, to[0]), to[1] = _mm512_shuffle_epi8(table, to[1]);
    }
  }
};

// Reads a block of C rows of b, with the scale of each lane. Scales after the first `count` numbers are zero.
template <Kind kKind, bool IsWhole, int C, class Number>
INLINE void read_block(const Right<Number>& b, Ahead<C> ahead, int block, int count, __m512i group_of_lane, Codes<kKind> (&codes)[C], __m512 (&scales)[C]) {
  constexpr int kBytes = 2 * kVector;
  const int group = block * block_of(kKind) / b.group, which = (1 << count / b.group) - 1;
  UNROLL for (int j = 0; j < C; ++j) {
    const std::ptrdiff_t row = j * b.apart, at = row * b.bytes + block * kBytes;
    codes[j].template read<IsWhole>(b.words + at, count);
    scales[j] = spread(b.scales + row * b.groups + group, which, group_of_lane);
  }
  ahead.fetch(block * kBytes, kBytes);
}

}  // namespace

#pragma GCC pop_options
