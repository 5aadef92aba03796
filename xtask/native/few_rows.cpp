// Products with a few rows on the left. A general product first copies the whole of b into a packed layout, which takes longer
// than the product itself when a has few rows. Here b is read once, where it lies. Every element of c is summed in an order of
// its own length alone, so a row's bits do not depend on its neighbours: the row kernel of docs/exactness.md.
#include "few_rows.h"

#include <algorithm>
#include <vector>

#include "lanes.h"
#include "workers.h"

namespace {

// The sums of four vectors: the additions of sum_of, four at a time.
INLINE Quarter sums_of(const Lanes (&lanes)[4]) {
  const Quarter a = fold(lanes[0]), b = fold(lanes[1]), c = fold(lanes[2]), d = fold(lanes[3]);
  const Quarter left = __builtin_shufflevector(a, b, 0, 4, 1, 5) + __builtin_shufflevector(a, b, 2, 6, 3, 7);
  const Quarter right = __builtin_shufflevector(c, d, 0, 4, 1, 5) + __builtin_shufflevector(c, d, 2, 6, 3, 7);
  return __builtin_shufflevector(left, right, 0, 1, 4, 5) + __builtin_shufflevector(left, right, 2, 3, 6, 7);
}

// Rows of b that will be needed soon: `lines` vectors of them are fetched with every vector that is multiplied. While several
// groups of rows of a use what is in the cache, the memory would have nothing to do otherwise.
struct Ahead {
  const float* from;
  int lines;
};

// R rows of a times C rows of b, both contiguous along k.
template <int R, int C>
INLINE void dots(const Product& p, int row, int column, Ahead ahead = {}) {
  Lanes sums[R][C] = {};
  const float* a = p.a + static_cast<std::ptrdiff_t>(row) * p.lda;
  const float* b = p.b + static_cast<std::ptrdiff_t>(column) * p.ldb;
  const auto add = [&](int i, int count) INLINE_LAMBDA {
    Lanes right[C];
    UNROLL for (int j = 0; j < C; ++j) load(right[j], b + static_cast<std::ptrdiff_t>(j) * p.ldb + i, count);
    UNROLL for (int r = 0; r < R; ++r) {
      Lanes left;
      load(left, a + static_cast<std::ptrdiff_t>(r) * p.lda + i, count);
      UNROLL for (int j = 0; j < C; ++j) sums[r][j] += left * right[j];
    }
  };
  int i = 0;
  for (; i + kLanes <= p.k; i += kLanes) {
    for (int line = 0; line < ahead.lines; ++line, ahead.from += kLanes) __builtin_prefetch(ahead.from);
    add(i, kLanes);
  }
  if (i < p.k) add(i, p.k - i);
  UNROLL for (int r = 0; r < R; ++r) {
    if constexpr (C == 4) {
      p.put(row + r, column, sums_of(sums[r]));
    } else {
      UNROLL for (int j = 0; j < C; ++j) p.put(row + r, column + j, sum_of(sums[r][j]));
    }
  }
}

template <int C>
INLINE void dots_of_all_rows(const Product& p, int column) {
  // The groups share the work of fetching the next C rows of b. A single group has to wait for its own.
  const int groups = p.m / 4, each = groups < 2 || p.ldb != p.k ? 0 : (C + groups - 1) / groups;
  const float* next = p.b + static_cast<std::ptrdiff_t>(column + C) * p.ldb;
  int row = 0, fetched = 0;
  for (; row + 4 <= p.m; row += 4) {
    dots<4, C>(p, row, column, {next + static_cast<std::ptrdiff_t>(fetched) * p.k, std::min(each, C - fetched)});
    fetched = std::min(C, fetched + each);
  }
  for (; row + 2 <= p.m; row += 2) dots<2, C>(p, row, column);
  if (row < p.m) dots<1, C>(p, row, column);
}

FOR_EVERY_CPU void transposed_block(const Product& p, int begin, int end) {
  int column = begin;
  for (; column + 4 <= end; column += 4) dots_of_all_rows<4>(p, column);
  for (; column < end; ++column) dots_of_all_rows<1>(p, column);
}

// R rows of a times V vectors of columns of b, whose rows are contiguous along n; the last vector holds `count`.
template <int R, int V>
INLINE void columns(const Product& p, int row, int column, int count) {
  Lanes sums[R][V] = {};
  const float* a = p.a + static_cast<std::ptrdiff_t>(row) * p.lda;
  for (int i = 0; i < p.k; ++i) {
    const float* b = p.b + static_cast<std::ptrdiff_t>(i) * p.ldb + column;
    Lanes right[V];
    UNROLL for (int v = 0; v < V; ++v) load(right[v], b + v * kLanes, v + 1 < V ? kLanes : count);
    UNROLL for (int r = 0; r < R; ++r)
      UNROLL for (int v = 0; v < V; ++v) sums[r][v] += a[static_cast<std::ptrdiff_t>(r) * p.lda + i] * right[v];
  }
  for (int r = 0; r < R; ++r)
    for (int v = 0; v < V; ++v)
      for (int lane = 0; lane < (v + 1 < V ? kLanes : count); ++lane)
        p.put(row + r, column + v * kLanes + lane, sums[r][v][lane]);
}

template <int V>
INLINE void columns_of_all_rows(const Product& p, int column, int count) {
  int row = 0;
  for (; row + 4 <= p.m; row += 4) columns<4, V>(p, row, column, count);
  for (; row + 2 <= p.m; row += 2) columns<2, V>(p, row, column, count);
  if (row < p.m) columns<1, V>(p, row, column, count);
}

FOR_EVERY_CPU void plain_block(const Product& p, int begin, int end) {
  int column = begin;
  for (; column + 4 * kLanes <= end; column += 4 * kLanes) columns_of_all_rows<4>(p, column, kLanes);
  for (; column + kLanes <= end; column += kLanes) columns_of_all_rows<1>(p, column, kLanes);
  if (column < end) columns_of_all_rows<1>(p, column, end - column);
}

}  // namespace

void few_rows(bool transposed, int m, int n, int k, float alpha, const float* a, int stride_a, int step_a, const float* b, int ldb,
              float beta, float* c, int ldc) {
  thread_local std::vector<float> contiguous;
  a = by_row(contiguous, m, k, a, stride_a, step_a);
  if (step_a != 1) stride_a = k;
  const Product product{m, n, k, alpha, beta, a, stride_a, b, ldb, c, ldc};
  // A block is worth handing to another thread from some tens of microseconds on.
  const std::ptrdiff_t weights = static_cast<std::ptrdiff_t>(n) * k;
  const int blocks = static_cast<int>(std::clamp<std::ptrdiff_t>(weights / 65536, 1, 64));
  const int width = std::max(1, ((n + blocks - 1) / blocks + 63) / 64 * 64);
  in_parallel((n + width - 1) / width, [&](int block) {
    const int begin = block * width, end = std::min(n, begin + width);
    transposed ? transposed_block(product, begin, end) : plain_block(product, begin, end);
  });
}
