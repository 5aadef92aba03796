// Products of a few rows and a matrix whose rows are contiguous along n, such as attention weights times values.
#pragma once

#include "few_rows.h"

namespace {

// Multiplies R rows of a by V registers of columns of b, whose rows are contiguous along n. The last register has
// `count` columns.
template <int W, int R, int V>
INLINE void columns(const Product& p, const Dense<float>& from, int row, int column, int count) {
  typedef typename Sixteen<W>::Register Register;
  Register sums[R][V] = {};
  const float* a = p.a + static_cast<std::ptrdiff_t>(row) * p.lda;
  for (int i = 0; i < p.k; ++i) {
    const float* b = from.data + i * from.stride + column;
    Register right[V] = {};
    UNROLL for (int v = 0; v < V; ++v)
      std::memcpy(&right[v], b + v * W, v + 1 < V || count == W ? sizeof(Register) : count * sizeof(float));
    UNROLL for (int r = 0; r < R; ++r)
      UNROLL for (int v = 0; v < V; ++v) sums[r][v] += a[static_cast<std::ptrdiff_t>(r) * p.lda + i] * right[v];
  }
  for (int r = 0; r < R; ++r)
    for (int v = 0; v < V; ++v)
      for (int lane = 0; lane < (v + 1 < V ? W : count); ++lane) p.put(row + r, column + v * W + lane, sums[r][v][lane]);
}

// Multiplies R rows of a by the columns from `column` to `end`. Fewer rows leave registers for more columns.
template <int W, int R>
INLINE void columns_of_rows(const Product& p, const Dense<float>& right, int row, int column, int end) {
  constexpr int sums = W == 16 ? 16 : 8, vectors = std::min(4 * kLanes / W, sums / R);
  for (; column + vectors * W <= end; column += vectors * W) columns<W, R, vectors>(p, right, row, column, W);
  for (; column + W <= end; column += W) columns<W, R, 1>(p, right, row, column, W);
  if (column < end) columns<W, R, 1>(p, right, row, column, end - column);
}

struct ByColumns {
  template <int W>
  INLINE static void run(const Product& p, const Dense<float>& right, int begin, int end) {
    // This many columns of b stay in the cache while all rows of a are multiplied by them.
    constexpr int width = 4 * kLanes;
    for (int column = begin; column < end; column += width) {
      const int stop = std::min(end, column + width);
      int row = 0;
      for (; row + 4 <= p.m; row += 4) columns_of_rows<W, 4>(p, right, row, column, stop);
      for (; row + 2 <= p.m; row += 2) columns_of_rows<W, 2>(p, right, row, column, stop);
      if (row < p.m) columns_of_rows<W, 1>(p, right, row, column, stop);
    }
  }
};

// c = alpha * a * b + beta * c, where b is [k, n].
inline void few_rows_by_columns(const Product& p, const Dense<float>& b) {
  in_blocks(p.n, p.k, kWorthHanding, [&](int begin, int end) { for_this_cpu<ByColumns>(p, b, begin, end); });
}

}  // namespace
