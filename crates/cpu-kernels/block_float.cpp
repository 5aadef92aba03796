// See block_float.h. One instruction multiplies 64 codes by 64 bytes and adds four products each to a 32-bit lane.
// Three of them, one per digit, replace four fused multiply-adds of sixteen floats, and codes need not be converted to
// floats. With one row of a, that conversion is most of the work.
#include "block_float.h"

#include "few_rows.h"

#if defined(__x86_64__) && !defined(__clang__)

#include "block_float_right.h"

#pragma GCC push_options
#pragma GCC target("arch=x86-64-v4,avx512vnni")

namespace {

// Adds the products of C rows' codes and one digit of a block.
template <Kind kKind, int C>
INLINE void add_digit(const Codes<kKind> (&codes)[C], const std::int8_t (&digit)[registers_of(kKind)][kVector], __m512i (&sums)[C]) {
  // A call in the condition, even of a constant, would prevent the compiler from unrolling the loop.
  constexpr int registers = registers_of(kKind);
  UNROLL for (int i = 0; i < registers; ++i) {
    const __m512i digits = _mm512_load_si512(digit[i]);
    UNROLL for (int j = 0; j < C; ++j) sums[j] = _mm512_dpbusd_epi32(sums[j], codes[j].registers[i], digits);
  }
}

// Returns the products of a block's numbers and its codes minus the center, summed per lane. All integers are below
// 2^31: sixteen codes from -12 to 12 are multiplied by multiples below 2^23, or eight 8-bit codes by the two lower
// digits, up to 32896.
template <Kind kKind, int C>
INLINE void sums_of_block(const Codes<kKind> (&codes)[C], const typename Left<kKind>::Block& block, __m512 (&sums)[C]) {
  __m512i low[C], high[C];
  UNROLL for (__m512i& lanes : low) lanes = _mm512_load_si512(is_split(kKind) ? block.begin_of_highest : block.begin);
  add_digit<kKind>(codes, block.digits[0], low);
  UNROLL for (int j = 0; j < C; ++j) {
    high[j] = low[j];
    low[j] = is_split(kKind) ? _mm512_load_si512(block.begin) : _mm512_slli_epi32(low[j], 8);
  }
  add_digit<kKind>(codes, block.digits[1], low);
  UNROLL for (__m512i& lanes : low) lanes = _mm512_slli_epi32(lanes, 8);
  add_digit<kKind>(codes, block.digits[2], low);
  const __m512 powers = _mm512_load_ps(block.powers), rests = _mm512_load_ps(block.rests);
  UNROLL for (int j = 0; j < C; ++j) {
    sums[j] = _mm512_cvtepi32_ps(low[j]);
    if constexpr (is_split(kKind)) sums[j] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(high[j]), _mm512_set1_ps(0x1p16f), sums[j]);
    sums[j] = _mm512_fmadd_ps(sums[j], powers, rests);
  }
}

// Adds the sums of a row's groups times their biases. The biases are adjusted to codes minus their center.
template <Kind kKind, int C, class Number>
INLINE void add_biases(const Right<Number>& b, const float* sums, __m512 (&totals)[C]) {
  const __m512 center = _mm512_set1_ps(center_of(kKind));
  for (int group = 0; group < b.groups; group += kLanes) {
    const __mmask16 which = b.groups - group < kLanes ? (1 << (b.groups - group)) - 1 : 0xffff;
    const __m512 of_groups = _mm512_maskz_loadu_ps(which, sums + group);
    UNROLL for (int j = 0; j < C; ++j) {
      const std::ptrdiff_t at = j * b.apart * b.groups + group;
      totals[j] = _mm512_fmadd_ps(_mm512_fmadd_ps(some_of(b.scales + at, which), center, some_of(b.biases + at, which)), of_groups, totals[j]);
    }
  }
}

// Multiplies R rows of a by C rows of b. R and C are one or four.
template <Kind kKind, int R, int C, class Number>
INLINE void dots_of_blocks(const Product& p, const Right<Number>& b, const Left<kKind>& left, int row, int column, Ahead<C> ahead) {
  constexpr int kBlock = block_of(kKind);
  const __m512i numbers = _mm512_mullo_epi32(places_of_lanes<kKind>(), _mm512_set1_epi32(of_lane(kKind)));
  const __m512i group_of_lane = _mm512_srl_epi32(numbers, _mm_cvtsi32_si128(__builtin_ctz(b.group)));
  __m512 totals[R][C] = {};
  const auto add = [&](int block, auto is_whole, int count) INLINE_LAMBDA {
    Codes<kKind> codes[C];
    __m512 scales[C];
    read_block<kKind, decltype(is_whole)::value>(b, ahead, block, count, group_of_lane, codes, scales);
    UNROLL for (int r = 0; r < R; ++r) {
      __m512 sums[C];
      sums_of_block<kKind>(codes, left.block(row + r, block), sums);
      UNROLL for (int j = 0; j < C; ++j) totals[r][j] = _mm512_fmadd_ps(sums[j], scales[j], totals[r][j]);
    }
  };
  const int whole = p.k / kBlock, rest = p.k % kBlock;
  for (int block = 0; block < whole; ++block) add(block, std::true_type(), kBlock);
  if (rest > 0) add(whole, std::false_type(), rest);
  UNROLL for (int r = 0; r < R; ++r) {
    if constexpr (kKind != Kind::kFloat4) add_biases<kKind>(b, left.sums + static_cast<std::ptrdiff_t>(row + r) * b.groups, totals[r]);
    Sixteen<16> all[4];
    UNROLL for (int j = 0; j < 4; ++j) all[j] = {{with_bits_of<Register<16>>(totals[r][j % C])}};
    // Codes of floats are twice their value.
    const Quarter four = sums_of(all[0], all[1], all[2], all[3]) * (kKind == Kind::kFloat4 ? 0.5f : 1.0f);
    if constexpr (C == 4) p.put(row + r, column, four, static_cast<int>(b.apart));
    if constexpr (C == 1) p.put(row + r, column, four[0]);
  }
}

// The number of strips that the columns of a block are split into.
constexpr int kStrips = 4;

// Scales are prefetched for this many rows of each strip at a time, before the scales of the previous ones are used.
constexpr int kRowsAhead = 4;

// Prefetches the scales or biases of the next rows of each strip. `column` is the row in the first strip.
template <class Number>
INLINE void fetch(const void* numbers, int groups, int column, int apart) {
  const std::ptrdiff_t row = groups * static_cast<std::ptrdiff_t>(sizeof(Number));
  const char* from = static_cast<const char*>(numbers) + column * row;
  for (int strip = 0; strip < kStrips; ++strip, from += apart * row)
    for (std::ptrdiff_t at = 0; at < kRowsAhead * row; at += kVector) __builtin_prefetch(from + at, 0, 2);
}

// Multiplies all rows of a by C rows of b.
template <Kind kKind, int C, class Number>
void column_of_blocks(const Product& p, const PackedMatrix& b, const Left<kKind>& left, int column, int apart) {
  const std::ptrdiff_t bytes = static_cast<std::ptrdiff_t>(b.k) * b.bits / 8, first = static_cast<std::ptrdiff_t>(column) * left.groups;
  const Number* const scales = static_cast<const Number*>(b.scales) + first;
  const Number* const biases = kKind == Kind::kFloat4 ? scales : static_cast<const Number*>(b.biases) + first;
  const std::uint8_t* const words = b.words + column * bytes;
  const Right<Number> right{words, bytes, apart, b.group, left.groups, scales, biases};
  Ahead<C> ahead{reinterpret_cast<const char*>(words), apart * bytes};
  int row = 0;
  // With 4 bits, the codes of more rows do not fit into the registers.
  if constexpr (kKind == Kind::kAffine8)
    for (; row + 4 <= p.m; row += 4) dots_of_blocks<kKind, 4, C>(p, right, left, row, column, ahead.once());
  for (; row + 2 <= p.m; row += 2) dots_of_blocks<kKind, 2, C>(p, right, left, row, column, ahead.once());
  if (row < p.m) dots_of_blocks<kKind, 1, C>(p, right, left, row, column, ahead.once());
}

// Multiplies the columns of a block in strips, then the remaining columns.
template <Kind kKind, class Number>
void columns_of_blocks(const Product& p, const PackedMatrix& b, const Left<kKind>& left, int begin, int end) {
  const int apart = (end - begin) / kStrips;
  for (int row = 0; row < apart; ++row) {
    if (row % kRowsAhead == 0) {
      fetch<Number>(b.scales, left.groups, begin + row + kRowsAhead, apart);
      if constexpr (kKind != Kind::kFloat4) fetch<Number>(b.biases, left.groups, begin + row + kRowsAhead, apart);
    }
    column_of_blocks<kKind, kStrips, Number>(p, b, left, begin + row, apart);
  }
  for (int column = begin + kStrips * apart; column < end; ++column) column_of_blocks<kKind, 1, Number>(p, b, left, column, 1);
}

}  // namespace

#pragma GCC pop_options

namespace {

// Returns thread-local memory, aligned to a cache line. It is valid until the next call.
template <class Number>
Number* room(std::vector<char>& memory, std::size_t count) {
  const std::size_t bytes = count * sizeof(Number) + kVector;
  if (memory.size() < bytes) memory.resize(bytes);
  const auto address = reinterpret_cast<std::uintptr_t>(memory.data());
  return reinterpret_cast<Number*>(memory.data() + (kVector - address % kVector) % kVector);
}

// Returns memory for the rows of a. The last block of a row is padded with zeros.
template <Kind kKind>
Left<kKind> room_for(int rows, int k, int group) {
  using Block = typename Left<kKind>::Block;
  thread_local std::vector<char> blocks, sums;
  const int groups = k / group, count = (k + block_of(kKind) - 1) / block_of(kKind);
  const std::size_t all = static_cast<std::size_t>(rows) * count;
  const Left<kKind> left{groups, count, room<Block>(blocks, all), room<float>(sums, static_cast<std::size_t>(rows) * groups)};
  if (k % block_of(kKind) != 0) std::fill_n(reinterpret_cast<char*>(left.blocks), all * sizeof(Block), 0);
  return left;
}

template <Kind kKind, class Number>
void product_of_blocks(const Product& p, const PackedMatrix& b) {
  const Left<kKind> left = room_for<kKind>(p.m, p.k, b.group);
  in_parallel(p.m, [&](int row) { take_row_apart<kKind>(p.a + static_cast<std::ptrdiff_t>(row) * p.k, b.group, left, row); });
  in_blocks(p.n, p.k, kBlockWeights, [&](int begin, int end) { columns_of_blocks<kKind, Number>(p, b, left, begin, end); });
}

template <Kind kKind>
void affine_product(const Product& p, const PackedMatrix& b) {
  switch (b.scale) {
    case Scale::kF16: return product_of_blocks<kKind, F16>(p, b);
    case Scale::kBf16: return product_of_blocks<kKind, Bf16>(p, b);
    default: return product_of_blocks<kKind, float>(p, b);
  }
}

}  // namespace

bool block_float_takes(int m, Packing packing, int bits) {
  static const bool multiplies_bytes = register_width() == 16 && __builtin_cpu_supports("avx512vnni");
  const bool is_known = bits == 4 || (bits == 8 && packing == Packing::kAffine);
  return multiplies_bytes && is_known && m <= kBlockFloatRows;
}

void block_float_product(int m, const float* a, const PackedMatrix& b, float* c) {
  const Product p{m, b.n, b.k, 1.0f, 0.0f, a, b.k, c, b.n};
  if (b.packing == Packing::kMxfp4) return product_of_blocks<Kind::kFloat4, Exponent>(p, b);
  if (b.packing == Packing::kNvfp4) return product_of_blocks<Kind::kFloat4, E4m3>(p, b);
  if (b.bits == 8) return affine_product<Kind::kAffine8>(p, b);
  affine_product<Kind::kAffine4>(p, b);
}

#else

bool block_float_takes(int, Packing, int) { return false; }

void block_float_product(int, const float*, const PackedMatrix&, float*) {}

#endif
