// Products with few rows on the left, as in a decode step. A general product first packs all of b into another layout,
// which takes longer than the product itself when a has few rows. Here b is read once, in its own layout. The summation
// order of an element of c depends only on k, so a row's bits do not depend on the other rows. This is the row kernel
// of docs/exactness.md.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "ahead.h"
#include "formats.h"
#include "workers.h"

namespace {

// Returns the sums of four vectors, with the additions of sum_of, four at a time.
template <int W>
INLINE Quarter sums_of(const Sixteen<W>& w, const Sixteen<W>& x, const Sixteen<W>& y, const Sixteen<W>& z) {
  const Quarter a = fold(w), b = fold(x), c = fold(y), d = fold(z);
  const Quarter left = __builtin_shufflevector(a, b, 0, 4, 1, 5) + __builtin_shufflevector(a, b, 2, 6, 3, 7);
  const Quarter right = __builtin_shufflevector(c, d, 0, 4, 1, 5) + __builtin_shufflevector(c, d, 2, 6, 3, 7);
  return __builtin_shufflevector(left, right, 0, 1, 4, 5) + __builtin_shufflevector(left, right, 2, 3, 6, 7);
}

// Reorders each sixteen numbers: the first eight to even positions, the others to odd positions; and back.
struct Spread {
  template <int W>
  INLINE static void run(const Product& p, float* to) {
    for (int row = 0; row < p.m; ++row)
      for (int i = 0; i < p.k; i += kLanes, to += kLanes) {
        Lanes x;
        std::memcpy(&x, p.a + static_cast<std::ptrdiff_t>(row) * p.lda + i, sizeof x);
        x = __builtin_shufflevector(x, x, 0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15);
        std::memcpy(to, &x, sizeof x);
      }
  }
};

INLINE Sixteen<16> gathered(const Sixteen<16>& lanes) {
  const auto& x = lanes.parts[0];
  return {__builtin_shufflevector(x, x, 0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15)};
}

// Multiplies R rows of a by the C rows of b in `panel`, which starts at `column` and has a stride of `apart`.
template <int W, int R, int C, class Format>
INLINE void dots(const Product& p, typename Format::template Panel<W, C>& panel, int row, int column, int apart, Ahead<C> ahead) {
  Sixteen<W> sums[R * C] = {};
  const float* a = p.a + static_cast<std::ptrdiff_t>(row) * p.lda;
  const auto add = [&](int i, int count) INLINE_LAMBDA {
    Sixteen<W> right[C];
    UNROLL for (int j = 0; j < C; ++j) {
      if constexpr (Format::template kSpread<W>) {
        right[j] = panel.read_spread(j, i);
      } else {
        right[j] = panel.read(j, i, count);
      }
    }
    UNROLL for (int r = 0; r < R; ++r) {
      const Sixteen<W> left = sixteen<W>(a + static_cast<std::ptrdiff_t>(r) * p.lda + i, count);
      UNROLL for (int j = 0; j < C; ++j) sums[r * C + j].add_product(left, right[j]);
    }
  };
  if constexpr (Format::kGrouped) {
    for (int group = 0; group < panel.groups; ++group) {
      const std::ptrdiff_t bytes = panel.group / kLanes * Format::kBytes;
      ahead.fetch(group * bytes, bytes);
      panel.enter(group);
      for (int i = group * panel.group; i < (group + 1) * panel.group; i += kLanes) add(i, kLanes);
    }
  } else {
    int i = 0;
    for (; i + kLanes <= p.k; i += kLanes) {
      ahead.fetch(i / kLanes * Format::kBytes, Format::kBytes);
      add(i, kLanes);
    }
    if (i < p.k) add(i, p.k - i);
  }
  if constexpr (Format::template kSpread<W>)
    UNROLL for (Sixteen<W>& sum : sums) sum = gathered(sum);
  constexpr int last = R * C - 1;
  UNROLL for (int sum = 0; sum <= last; sum += 4) {
    const Quarter four = sums_of(sums[sum], sums[std::min(sum + 1, last)], sums[std::min(sum + 2, last)], sums[std::min(sum + 3, last)]);
    if constexpr (C % 4 == 0) {
      p.put(row + sum / C, column + sum % C * apart, four, apart);
    } else {
      UNROLL for (int j = sum; j <= std::min(sum + 3, last); ++j) p.put(row + j / C, column + j % C * apart, four[j - sum]);
    }
  }
}

// The number of rows of a and of b that are multiplied at a time. Their sums fill the registers.
template <int W, class Format>
struct Tile {
  static constexpr int kRows = W == 16 ? 4 : 2, kColumns = W == 16 ? 4 : Format::kGrouped ? 2 : 3;
};

// Multiplies all rows of a by C rows of b.
template <int W, int C, class Format>
INLINE void dots_of_all_rows(const Product& p, const Format& b, int column, int apart) {
  constexpr int rows = Tile<W, Format>::kRows;
  typename Format::template Panel<W, C> panel(b, column, apart);
  Ahead<C> ahead{b.is_gapless(p.k) ? b.begin(column) : nullptr, apart * b.bytes()};
  int row = 0;
  for (; row + rows <= p.m; row += rows) dots<W, rows, C, Format>(p, panel, row, column, apart, ahead.once());
  if constexpr (rows > 2)
    for (; row + 2 <= p.m; row += 2) dots<W, 2, C, Format>(p, panel, row, column, apart, ahead.once());
  if (row < p.m) dots<W, 1, C, Format>(p, panel, row, column, apart, ahead.once());
}

// Multiplies the columns from `begin` in C strips of equal length. Returns the first remaining column.
template <int W, int C, class Format>
INLINE int strips(const Product& p, const Format& b, int begin, int end) {
  const int apart = (end - begin) / C;
  for (int column = begin; column < begin + apart; ++column) dots_of_all_rows<W, C>(p, b, column, apart);
  return begin + C * apart;
}

template <class Format>
struct Columns {
  template <int W>
  INLINE static void run(const Product& p, const Format& b, int begin, int end) {
    constexpr int columns = Tile<W, Format>::kColumns;
    // With a single row, there are registers for the sums of more columns.
    if constexpr (!Format::kGrouped)
      if (p.m == 1) begin = strips<W, 2 * columns>(p, b, begin, end);
    begin = strips<W, columns>(p, b, begin, end);
    strips<W, 1>(p, b, begin, end);
  }
};

}  // namespace

// The maximum number of rows for which this is faster than a general product, and for which it is faster than tiles.
constexpr int kFewRows = 32, kVeryFewRows = 16;

// The minimum number of weights of a block for another thread. A block should take at least some tens of microseconds
// in f32.
constexpr std::ptrdiff_t kWorthHanding = 1 << 16;

// The number of weights per block. The first bytes of a block are not prefetched, which costs a larger share in smaller
// blocks.
constexpr std::ptrdiff_t kBlockWeights = 1 << 20;

// Calls `block(begin, end)` for blocks of the columns of c, on all processors. A block has `weights` weights if that
// gives enough blocks for all threads.
template <class Block>
void in_blocks(int n, int k, std::ptrdiff_t weights, const Block& block) {
  const std::ptrdiff_t all = static_cast<std::ptrdiff_t>(n) * k, least = std::min<std::ptrdiff_t>(all / kWorthHanding, Workers::get().threads());
  const int blocks = static_cast<int>(std::clamp<std::ptrdiff_t>(std::max(all / weights, least), 1, 64));
  const int width = std::max(1, ((n + blocks - 1) / blocks + 63) / 64 * 64);
  in_parallel((n + width - 1) / width, [&](int index) { block(index * width, std::min(n, index * width + width)); });
}

// c = alpha * a * b^T + beta * c. A row of c depends neither on the other rows of a nor on their number.
template <class Format>
void few_rows(Product p, const Format& b) {
  thread_local std::vector<float> memory;
  if (Format::template kSpread<16> && register_width() == 16) {
    memory.resize(static_cast<std::size_t>(p.m) * p.k);
    for_this_cpu<Spread>(p, memory.data());
    p.a = memory.data(), p.lda = p.k;
  }
  in_blocks(p.n, p.k, kBlockWeights, [&](int begin, int end) { for_this_cpu<Columns<Format>>(p, b, begin, end); });
}
