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
template <int W>
INLINE Quarter sums_of(const Sixteen<W>& w, const Sixteen<W>& x, const Sixteen<W>& y, const Sixteen<W>& z) {
  const Quarter a = fold(w), b = fold(x), c = fold(y), d = fold(z);
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
template <int W, int R, int C>
INLINE void dots(const Product& p, int row, int column, Ahead ahead = {}) {
  Sixteen<W> sums[R * C] = {};
  const float* a = p.a + static_cast<std::ptrdiff_t>(row) * p.lda;
  const float* b = p.b + static_cast<std::ptrdiff_t>(column) * p.ldb;
  const auto add = [&](int i, int count) INLINE_LAMBDA {
    Sixteen<W> right[C];
    UNROLL for (int j = 0; j < C; ++j) right[j].load(b + static_cast<std::ptrdiff_t>(j) * p.ldb + i, count);
    UNROLL for (int r = 0; r < R; ++r) {
      Sixteen<W> left;
      left.load(a + static_cast<std::ptrdiff_t>(r) * p.lda + i, count);
      UNROLL for (int j = 0; j < C; ++j) sums[r * C + j].add_product(left, right[j]);
    }
  };
  int i = 0;
  for (; i + kLanes <= p.k; i += kLanes) {
    for (int line = 0; line < ahead.lines; ++line, ahead.from += kLanes) __builtin_prefetch(ahead.from);
    add(i, kLanes);
  }
  if (i < p.k) add(i, p.k - i);
  constexpr int last = R * C - 1;
  UNROLL for (int sum = 0; sum <= last; sum += 4) {
    const Quarter four = sums_of(sums[sum], sums[std::min(sum + 1, last)], sums[std::min(sum + 2, last)], sums[std::min(sum + 3, last)]);
    if constexpr (C == 4) {
      p.put(row + sum / C, column, four);
    } else {
      UNROLL for (int j = sum; j <= std::min(sum + 3, last); ++j) p.put(row + j / C, column + j % C, four[j - sum]);
    }
  }
}

// How many rows of a and of b are multiplied at a time: as many as the registers hold the sums of.
template <int W>
struct Tile {
  static constexpr int kRows = W == 16 ? 4 : 2, kColumns = W == 16 ? 4 : 3;
};

template <int W, int C>
INLINE void dots_of_all_rows(const Product& p, int column) {
  constexpr int rows = Tile<W>::kRows;
  // The groups share the work of fetching the next C rows of b. A single group has to wait for its own.
  const int groups = p.m / rows, each = groups < 2 || p.ldb != p.k ? 0 : (C + groups - 1) / groups;
  const float* next = p.b + static_cast<std::ptrdiff_t>(column + C) * p.ldb;
  int row = 0, fetched = 0;
  for (; row + rows <= p.m; row += rows) {
    dots<W, rows, C>(p, row, column, {next + static_cast<std::ptrdiff_t>(fetched) * p.k, std::min(each, C - fetched)});
    fetched = std::min(C, fetched + each);
  }
  if constexpr (rows > 2)
    for (; row + 2 <= p.m; row += 2) dots<W, 2, C>(p, row, column);
  if (row < p.m) dots<W, 1, C>(p, row, column);
}

template <int W>
INLINE void transposed_block(const Product& p, int begin, int end) {
  constexpr int columns = Tile<W>::kColumns;
  int column = begin;
  for (; column + columns <= end; column += columns) dots_of_all_rows<W, columns>(p, column);
  for (; column < end; ++column) dots_of_all_rows<W, 1>(p, column);
}

// R rows of a times V registers of columns of b, whose rows are contiguous along n; the last register holds `count`.
template <int W, int R, int V>
INLINE void columns(const Product& p, int row, int column, int count) {
  typedef typename Sixteen<W>::Register Register;
  Register sums[R][V] = {};
  const float* a = p.a + static_cast<std::ptrdiff_t>(row) * p.lda;
  for (int i = 0; i < p.k; ++i) {
    const float* b = p.b + static_cast<std::ptrdiff_t>(i) * p.ldb + column;
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

// R rows of a times the columns from `column` to `end`: few rows leave registers for more columns.
template <int W, int R>
INLINE void columns_of_rows(const Product& p, int row, int column, int end) {
  constexpr int sums = W == 16 ? 16 : 8, vectors = std::min(4 * kLanes / W, sums / R);
  for (; column + vectors * W <= end; column += vectors * W) columns<W, R, vectors>(p, row, column, W);
  for (; column + W <= end; column += W) columns<W, R, 1>(p, row, column, W);
  if (column < end) columns<W, R, 1>(p, row, column, end - column);
}

template <int W>
INLINE void plain_block(const Product& p, int begin, int end) {
  // So much of b stays in the cache while all rows of a are multiplied with it.
  constexpr int width = 4 * kLanes;
  for (int column = begin; column < end; column += width) {
    const int stop = std::min(end, column + width);
    int row = 0;
    for (; row + 4 <= p.m; row += 4) columns_of_rows<W, 4>(p, row, column, stop);
    for (; row + 2 <= p.m; row += 2) columns_of_rows<W, 2>(p, row, column, stop);
    if (row < p.m) columns_of_rows<W, 1>(p, row, column, stop);
  }
}

struct Block {
  template <int W>
  INLINE static void run(bool transposed, const Product& p, int begin, int end) {
    transposed ? transposed_block<W>(p, begin, end) : plain_block<W>(p, begin, end);
  }
};

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
    for_this_cpu<Block>(transposed, product, begin, end);
  });
}
