// See block_float.h. One instruction multiplies 64 codes with 64 bytes and adds four products each to a lane of 32 bits. Three of them, for three
// bytes, replace four products of sixteen floats, and codes need not become floats: with one row of a that is most of the work.
#include "block_float.h"

#include "few_rows.h"
#include "packed_formats.h"

#if defined(__x86_64__) && !defined(__clang__)

#include <immintrin.h>

// No function of the standard library may be compiled here: the linker could give it to files for other processors.
#pragma GCC push_options
#pragma GCC target("arch=x86-64-v4,avx512vnni")

namespace {

// What the codes of a matrix are: affine of 4 or 8 bits, or floats of 4 bits.
enum class Kind { kAffine4, kFloat4, kAffine8 };

// A block is 128 numbers. Each lane has eight that follow one another, and they are of one group: four in one register and four in another. With 4 bits
// these are the lane's even and its odd numbers, as they lie in bytes; with 8 bits its first four and the others.
constexpr int kDigits = 3, kVector = 64, kBlock = 2 * kVector, kOfLane = 8;

constexpr int bytes_of_block(Kind kind) { return kind == Kind::kAffine8 ? kBlock : kBlock / 2; }

// The middle of what codes are multiplied as.
constexpr int center_of(Kind kind) { return kind == Kind::kAffine4 ? 8 : kind == Kind::kFloat4 ? 12 : 128; }

// Rows of a. By block: the highest digits for the first register, then for the second, then the lower digits; for each lane the power of two, and what
// its products have too much, since codes have no sign: the center times the sum of its multiples, or, by themselves, of its two lower digits and of
// its highest ones. By group: the sum of its numbers.
struct Left {
  int groups, blocks;
  std::int8_t* digits;
  std::int32_t* centers;
  float *powers, *sums;

  INLINE std::int8_t* digits_of(std::ptrdiff_t row, int block) const { return digits + (row * blocks + block) * kDigits * kBlock; }
  INLINE std::int32_t* centers_of(std::ptrdiff_t row, int block) const { return centers + (row * blocks + block) * 2 * kLanes; }
  INLINE float* powers_of(std::ptrdiff_t row, int block) const { return powers + (row * blocks + block) * kLanes; }
};

// A power of two by its exponent as f32 has it.
INLINE float power(int exponent) { return with_bits_of<float>(static_cast<std::uint32_t>(exponent) << 23); }

// The largest of `count` numbers as bits of an f32 without the sign: more than any number for NaN.
INLINE std::uint32_t largest_of(const float* numbers, int count) {
  __m512i most = _mm512_setzero_si512();
  for (int i = 0; i < count; i += kLanes) most = _mm512_max_epu32(most, _mm512_and_si512(_mm512_loadu_si512(numbers + i), _mm512_set1_epi32(0x7fffffff)));
  return _mm512_reduce_max_epu32(most);
}

// Takes the lowest digits of sixteen numbers: those for the first register to `to`, and for the second one register behind. What is left of the numbers.
template <Kind kKind>
INLINE __m512i take_digits(__m512i numbers, std::int8_t* to) {
  const __m512i low = _mm512_srai_epi32(_mm512_slli_epi32(numbers, 24), 24);
  const __m128i apart = kKind == Kind::kAffine8 ? _mm_setr_epi8(0, 1, 2, 3, 8, 9, 10, 11, 4, 5, 6, 7, 12, 13, 14, 15)
                                                : _mm_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15);
  const __m128i bytes = _mm_shuffle_epi8(_mm512_cvtepi32_epi8(low), apart);
  _mm_storel_epi64(reinterpret_cast<__m128i*>(to), bytes);
  _mm_storel_epi64(reinterpret_cast<__m128i*>(to + kVector), _mm_unpackhi_epi64(bytes, bytes));
  return _mm512_srai_epi32(_mm512_sub_epi32(numbers, low), 8);
}

// The sums of the first eight numbers and of the others.
INLINE __m128i sums_of_lanes(__m512i numbers) {
  const __m256i pairs = _mm256_hadd_epi32(_mm512_castsi512_si256(numbers), _mm512_extracti64x4_epi64(numbers, 1)), fours = _mm256_hadd_epi32(pairs, pairs);
  return _mm_add_epi32(_mm256_castsi256_si128(fours), _mm256_extracti128_si256(fours, 1));
}

INLINE void put_lanes(__m128i sums, int center, std::int32_t* to) {
  _mm_storel_epi64(reinterpret_cast<__m128i*>(to), _mm_mullo_epi32(sums, _mm_set1_epi32(center)));
}

// Takes a group of a row of a apart.
template <Kind kKind>
INLINE void take_apart(const float* numbers, int group, const Left& left, std::ptrdiff_t row, int index) {
  const std::uint32_t largest = largest_of(numbers, group);
  // A multiple of at most 0x7f7f7f has three digits from -128 to 127. With smaller exponents the power of two would have none.
  const int wanted = static_cast<int>(largest >> 23) + ((largest & 0x7fffff) > 0x7efefe), exponent = wanted < 23 ? 23 : wanted;
  const float down = largest < 0x7f800000 ? power(exponent - 22) : __builtin_nanf(""), up = power(276 - exponent);
  __m128i sum = _mm_setzero_si128();
  for (int i = 0; i < group; i += kLanes) {
    __m512i rest = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(numbers + i), _mm512_set1_ps(up)));
    const int at = index * group + i;
    const __m128i lanes = sums_of_lanes(rest);
    sum = _mm_add_epi32(sum, lanes);
    std::int8_t* const to = left.digits_of(row, at / kBlock) + at % kBlock / 2;
    std::int32_t* const centers = left.centers_of(row, at / kBlock) + at % kBlock / kOfLane;
    for (int digit = kDigits - 1; digit > 0; --digit) rest = take_digits<kKind>(rest, to + digit * kBlock);
    take_digits<kKind>(rest, to);
    if constexpr (kKind == Kind::kAffine8) {
      const __m128i high = sums_of_lanes(rest);
      put_lanes(_mm_sub_epi32(lanes, _mm_slli_epi32(high, 16)), center_of(kKind), centers);
      put_lanes(high, center_of(kKind), centers + kLanes);
    } else {
      put_lanes(lanes, center_of(kKind), centers);
    }
  }
  left.sums[row * left.groups + index] = static_cast<float>(_mm_cvtsi128_si32(_mm_hadd_epi32(sum, sum))) * down;
  float* const powers = left.powers_of(row, 0);
  for (int lane = index * group / kOfLane; lane < (index + 1) * group / kOfLane; ++lane) powers[lane] = down;
}

template <Kind kKind>
void take_row_apart(const float* a, int group, const Left& left, int row) {
  for (int index = 0; index < left.groups; ++index) take_apart<kKind>(a + static_cast<std::ptrdiff_t>(index) * group, group, left, row, index);
}

// Rows of b, with scales and biases of their groups in f32, row after row.
struct Right {
  const std::uint8_t* words;
  std::ptrdiff_t bytes;
  int group;
  const float *scales, *biases;
  // Where the rows begin that are to be fetched to the second cache, if any are.
  const char* ahead;
};

// Up to 64 bytes, and zeros.
template <bool IsWhole>
INLINE __m512i bytes_of(const std::uint8_t* from, int count) {
  if (IsWhole) return _mm512_loadu_si512(from);
  return count <= 0 ? _mm512_setzero_si512() : _mm512_maskz_loadu_epi8(~__mmask64{0} >> (count < kVector ? kVector - count : 0), from);
}

// The codes of a block as bytes.
struct Codes {
  __m512i first, second;

  // Those of the first `count` numbers; behind them may be anything.
  template <Kind kKind, bool IsWhole>
  INLINE void read(const std::uint8_t* from, int count) {
    if constexpr (kKind == Kind::kAffine8) {
      const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30), odd = _mm512_add_epi32(even, _mm512_set1_epi32(1));
      const __m512i low = bytes_of<IsWhole>(from, count), high = bytes_of<IsWhole>(from + kVector, count - kVector);
      first = _mm512_permutex2var_epi32(low, even, high), second = _mm512_permutex2var_epi32(low, odd, high);
    } else {
      const __m512i words = bytes_of<IsWhole>(from, count / 2), mask = _mm512_set1_epi8(15);
      first = _mm512_and_si512(words, mask), second = _mm512_and_si512(_mm512_srli_epi16(words, 4), mask);
    }
    if constexpr (kKind == Kind::kFloat4) {
      // Twice the value, and the center.
      const __m512i table = _mm512_broadcast_i32x4(_mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0));
      first = _mm512_shuffle_epi8(table, first), second = _mm512_shuffle_epi8(table, second);
    }
  }
};

// What C rows of b have in a block, with the scale of each lane; zeros behind the first `count` numbers.
template <Kind kKind, bool IsWhole, int C>
INLINE void read_block(const Right& b, int groups, int block, int count, __m512i group_of_lane, Codes (&codes)[C], __m512 (&scales)[C]) {
  const int first = block * kBlock / b.group;
  UNROLL for (int j = 0; j < C; ++j) {
    const std::ptrdiff_t at = j * b.bytes + block * bytes_of_block(kKind);
    codes[j].template read<kKind, IsWhole>(b.words + at, count);
    const __mmask16 which = IsWhole ? 0xffff : (1 << count / b.group) - 1;
    const float* const from = b.scales + j * groups + first;
    scales[j] = _mm512_permutexvar_ps(group_of_lane, IsWhole ? _mm512_loadu_ps(from) : _mm512_maskz_loadu_ps(which, from));
    if (b.ahead == nullptr) continue;
    for (int line = 0; line < bytes_of_block(kKind); line += kVector) __builtin_prefetch(b.ahead + at + line, 0, 2);
  }
}

// The products of a block's codes, less their center, with its multiples, summed by lane. The largest whole number is below 2^31: eight codes below 2^5
// meet multiples below 2^23, or codes below 2^8 the two lower digits, up to 32896.
template <Kind kKind, int C>
INLINE void sums_of_block(const Codes (&codes)[C], const std::int8_t* digits, const std::int32_t* centers, __m512 (&sums)[C]) {
  __m512i low[C], high[C];
  UNROLL for (int digit = 0; digit < kDigits; ++digit) {
    const __m512i first = _mm512_load_si512(digits + digit * kBlock), second = _mm512_load_si512(digits + digit * kBlock + kVector);
    const bool begins = digit == 0 || (digit == 1 && kKind == Kind::kAffine8);
    UNROLL for (int j = 0; j < C; ++j) {
      if (begins && digit > 0) high[j] = low[j];
      const __m512i higher = begins ? _mm512_setzero_si512() : _mm512_slli_epi32(low[j], 8);
      low[j] = _mm512_dpbusd_epi32(_mm512_dpbusd_epi32(higher, codes[j].first, first), codes[j].second, second);
    }
  }
  UNROLL for (int j = 0; j < C; ++j) {
    sums[j] = _mm512_cvtepi32_ps(_mm512_sub_epi32(low[j], _mm512_load_si512(centers)));
    if constexpr (kKind == Kind::kAffine8) {
      const __m512 more = _mm512_cvtepi32_ps(_mm512_sub_epi32(high[j], _mm512_load_si512(centers + kLanes)));
      sums[j] = _mm512_fmadd_ps(more, _mm512_set1_ps(0x1p16f), sums[j]);
    }
  }
}

// R rows of a times C rows of b.
template <Kind kKind, int R, int C>
INLINE void dots_of_blocks(const Product& p, const Right& b, const Left& left, int row, int column) {
  const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  const __m512i group_of_lane = _mm512_srl_epi32(_mm512_slli_epi32(lane, 3), _mm_cvtsi32_si128(__builtin_ctz(b.group)));
  __m512 totals[R][C] = {};
  const auto add = [&](int block, auto is_whole, int count) INLINE_LAMBDA {
    Codes codes[C];
    __m512 scales[C];
    read_block<kKind, decltype(is_whole)::value>(b, left.groups, block, count, group_of_lane, codes, scales);
    UNROLL for (int r = 0; r < R; ++r) {
      __m512 sums[C];
      sums_of_block<kKind>(codes, left.digits_of(row + r, block), left.centers_of(row + r, block), sums);
      const __m512 powers = _mm512_load_ps(left.powers_of(row + r, block));
      UNROLL for (int j = 0; j < C; ++j) totals[r][j] = _mm512_fmadd_ps(_mm512_mul_ps(sums[j], powers), scales[j], totals[r][j]);
    }
  };
  const int whole = p.k / kBlock, rest = p.k % kBlock;
  for (int block = 0; block < whole; ++block) add(block, std::true_type(), kBlock);
  if (rest > 0) add(whole, std::false_type(), rest);
  UNROLL for (int r = 0; r < R; ++r) {
    const float* const sums = left.sums + static_cast<std::ptrdiff_t>(row + r) * left.groups;
    for (int index = 0; index < left.groups && kKind != Kind::kFloat4; index += kLanes) {
      const __mmask16 which = left.groups - index < kLanes ? (1 << (left.groups - index)) - 1 : 0xffff;
      const __m512 numbers = _mm512_maskz_loadu_ps(which, sums + index);
      UNROLL for (int j = 0; j < C; ++j) totals[r][j] = _mm512_fmadd_ps(_mm512_maskz_loadu_ps(which, b.biases + j * left.groups + index), numbers, totals[r][j]);
    }
    for (int j = 0; j < C; ++j) p.put(row + r, column + j, sum_of(Sixteen<16>{{with_bits_of<Register<16>>(totals[r][j])}}));
  }
}

// Fetches so many scales or biases.
INLINE void fetch(Scale scale, const void* numbers, std::ptrdiff_t begin, int count) {
  const int bytes = scale == Scale::kF32 ? 4 : scale == Scale::kF16 || scale == Scale::kBf16 ? 2 : 1;
  const char* const from = static_cast<const char*>(numbers) + begin * bytes;
  for (int i = 0; i < count * bytes; i += kVector) __builtin_prefetch(from + i);
}

// All rows of a times C rows of b. `scratch` has room for scales and biases, which come to belong to codes less their center.
template <Kind kKind, int C>
void column_of_blocks(const Product& p, const PackedMatrix& b, const Left& left, int column, float* scratch) {
  const std::ptrdiff_t bytes = static_cast<std::ptrdiff_t>(b.k) * b.bits / 8, first = static_cast<std::ptrdiff_t>(column) * left.groups;
  const int count = C * left.groups;
  float *scales = scratch, *biases = scratch + count + kLanes;
  fetch(b.scale, b.scales, first + count, count);
  widen<16>(b.scale, b.scales, first, scales, count);
  if constexpr (kKind == Kind::kFloat4) {
    for (int i = 0; i < count; i += kLanes) _mm512_storeu_ps(scales + i, _mm512_mul_ps(_mm512_loadu_ps(scales + i), _mm512_set1_ps(0.5f)));
  } else {
    fetch(b.scale, b.biases, first + count, count);
    widen<16>(b.scale, b.biases, first, biases, count);
    for (int i = 0; i < count; i += kLanes)
      _mm512_storeu_ps(biases + i, _mm512_fmadd_ps(_mm512_loadu_ps(scales + i), _mm512_set1_ps(center_of(kKind)), _mm512_loadu_ps(biases + i)));
  }
  // The first pass over these rows of b fetches those behind the next ones.
  Right right{b.words + column * bytes, bytes, b.group, scales, biases, reinterpret_cast<const char*>(b.words + (column + 2 * C) * bytes)};
  int row = 0;
  for (; row + 4 <= p.m; row += 4, right.ahead = nullptr) dots_of_blocks<kKind, 4, C>(p, right, left, row, column);
  for (; row + 2 <= p.m; row += 2, right.ahead = nullptr) dots_of_blocks<kKind, 2, C>(p, right, left, row, column);
  if (row < p.m) dots_of_blocks<kKind, 1, C>(p, right, left, row, column);
}

template <Kind kKind>
void columns_of_blocks(const Product& p, const PackedMatrix& b, const Left& left, int begin, int end, float* scratch) {
  int column = begin;
  for (; column + 4 <= end; column += 4) column_of_blocks<kKind, 4>(p, b, left, column, scratch);
  for (; column < end; ++column) column_of_blocks<kKind, 1>(p, b, left, column, scratch);
}

}  // namespace

#pragma GCC pop_options

namespace {

// Memory of this thread, from a cache line on, until it is asked for again.
template <class Number>
Number* room(std::vector<Number>& memory, std::size_t count) {
  constexpr std::size_t line = kVector / sizeof(Number);
  if (memory.size() < count + line) memory.resize(count + line);
  const auto address = reinterpret_cast<std::uintptr_t>(memory.data());
  return memory.data() + (kVector - address % kVector) % kVector / sizeof(Number);
}

// Room for the rows of a. What lies behind the end of a row in its last block has no digits.
Left room_for(int rows, int k, int group) {
  thread_local std::vector<std::int8_t> digits;
  thread_local std::vector<std::int32_t> centers;
  thread_local std::vector<float> powers, sums;
  const int groups = k / group, blocks = (k + kBlock - 1) / kBlock;
  const std::size_t all = static_cast<std::size_t>(rows) * blocks;
  const Left left{groups, blocks, room(digits, all * kDigits * kBlock), room(centers, all * 2 * kLanes), room(powers, all * kLanes),
                  room(sums, static_cast<std::size_t>(rows) * groups)};
  if (k % kBlock != 0) {
    std::fill_n(left.centers, all * 2 * kLanes, 0);
    std::fill_n(left.digits, all * kDigits * kBlock, 0);
    std::fill_n(left.powers, all * kLanes, 0.0f);
  }
  return left;
}

template <Kind kKind>
void product_of_blocks(const Product& p, const PackedMatrix& b) {
  const Left left = room_for(p.m, p.k, b.group);
  in_parallel(p.m, [&](int row) { take_row_apart<kKind>(p.a + static_cast<std::ptrdiff_t>(row) * p.k, b.group, left, row); });
  in_blocks(p.n, p.k, [&](int begin, int end) {
    thread_local std::vector<float> scratch;
    columns_of_blocks<kKind>(p, b, left, begin, end, room(scratch, 8 * static_cast<std::size_t>(left.groups) + 2 * kLanes));
  });
}

}  // namespace

bool block_float_takes(int m, Packing packing, int bits) {
  static const bool multiplies_bytes = register_width() == 16 && __builtin_cpu_supports("avx512vnni");
  const bool is_known = bits == 4 || (bits == 8 && packing == Packing::kAffine);
  return multiplies_bytes && is_known && m <= kBlockFloatRows;
}

void block_float_product(int m, const float* a, const PackedMatrix& b, float* c) {
  const Product p{m, b.n, b.k, 1.0f, 0.0f, a, b.k, c, b.n};
  if (b.packing != Packing::kAffine) return product_of_blocks<Kind::kFloat4>(p, b);
  if (b.bits == 8) return product_of_blocks<Kind::kAffine8>(p, b);
  product_of_blocks<Kind::kAffine4>(p, b);
}

#else

bool block_float_takes(int, Packing, int) { return false; }

void block_float_product(int, const float*, const PackedMatrix&, float*) {}

#endif
