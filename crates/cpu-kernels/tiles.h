// Products with many rows on the left, on processors with 16-lane vectors. Every element of c is summed in the order of
// few_rows.h, so a row has the same bits with either. Data that is not aligned to cache lines is copied to aligned
// memory: a once for each product, b a few rows at a time, few enough to stay in the L1 cache while all rows of a are
// multiplied by them.
#pragma once

#include <cstdint>
#include <vector>

#include "formats.h"
#include "workers.h"

// The maximum number of rows for which this is faster than a general product.
constexpr int kTileRows = 128;

// Returns true if this processor has the registers for tiles.
inline bool tiles_pay() { return register_width() == 16; }

namespace {

// A tile is kRows rows of a times kColumns rows of b. Its sums and operands fill the 32 registers.
constexpr int kRows = 4, kColumns = 6;
// The number of vectors along k that are multiplied per pass.
constexpr int kSteps = 64;

// Returns memory that is aligned to a cache line.
inline float* aligned(std::vector<float>& memory, std::size_t count) {
  if (memory.size() < count + kLanes) memory.resize(count + kLanes);
  const auto address = reinterpret_cast<std::uintptr_t>(memory.data());
  return memory.data() + (64 - address % 64) % 64 / sizeof(float);
}

// Writes one vector of each of R rows, then the next of each. Rows after the last one, and numbers after k, are zero.
template <int R>
INLINE void interleave(float* to, const float* from, std::ptrdiff_t stride, int rows, int k, int begin, int end) {
  for (int step = begin; step < end; ++step)
    for (int row = 0; row < R; ++row, to += kLanes) {
      Lanes lanes{};
      if (row < rows) load(lanes, from + row * stride + static_cast<std::ptrdiff_t>(step) * kLanes, k - step * kLanes);
      std::memcpy(to, &lanes, sizeof lanes);
    }
}

// The rows of a in the order of tiles: by group, then by step.
struct Left {
  const float* data;
  int groups, steps;

  INLINE const float* at(int group, int step) const {
    return data + (static_cast<std::ptrdiff_t>(group) * steps + step) * kRows * kLanes;
  }
};

// The summation steps of few_rows.h, for many vectors at once. This is fold of four vectors, side by side.
INLINE Lanes folds(const Lanes& a, const Lanes& b, const Lanes& c, const Lanes& d) {
  const Lanes ab = __builtin_shufflevector(a, b, 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23) +
                   __builtin_shufflevector(a, b, 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31);
  const Lanes cd = __builtin_shufflevector(c, d, 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23) +
                   __builtin_shufflevector(c, d, 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31);
  return __builtin_shufflevector(ab, cd, 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27) +
         __builtin_shufflevector(ab, cd, 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31);
}

// The second step: adds the first and the second half of each four.
INLINE Lanes halves(const Lanes& a, const Lanes& b) {
  return __builtin_shufflevector(a, b, 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29) +
         __builtin_shufflevector(a, b, 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31);
}

// The third step: adds the remaining pairs. Lanes 4i to 4i + 3 hold the sums of row i.
INLINE Lanes pairs(const Lanes& a, const Lanes& b) {
  return __builtin_shufflevector(a, b, 0, 2, 16, 18, 4, 6, 20, 22, 8, 10, 24, 26, 12, 14, 28, 30) +
         __builtin_shufflevector(a, b, 1, 3, 17, 19, 5, 7, 21, 23, 9, 11, 25, 27, 13, 15, 29, 31);
}

// Writes the sums of the first `rows` rows of a tile.
template <int C>
INLINE void put(const Product& p, int row, int rows, int column, const Lanes (&sums)[kRows][C]) {
  Lanes folded[C];
  UNROLL for (int j = 0; j < C; ++j) folded[j] = folds(sums[0][j], sums[1][j], sums[2][j], sums[3][j]);
  if constexpr (C >= 4) {
    const Lanes four = pairs(halves(folded[0], folded[1]), halves(folded[2], folded[3]));
    Quarter quarters[kRows];
    std::memcpy(quarters, &four, sizeof four);
    for (int i = 0; i < rows; ++i) p.put(row + i, column, quarters[i], 1);
  }
  constexpr int rest = C % 4, first = C - rest;
  if constexpr (rest > 0) {
    const Lanes half = halves(folded[first], folded[C - 1]);
    const Lanes last = pairs(half, half);
    for (int i = 0; i < rows; ++i)
      for (int j = 0; j < rest; ++j) p.put(row + i, column + first + j, last[4 * i + j]);
  }
}

// Interleaves C rows of b.
template <int C, class Panel>
INLINE void interleave(float* to, Panel& panel, int k, int begin, int end) {
  const auto copy = [&](int step) INLINE_LAMBDA {
    UNROLL for (int j = 0; j < C; ++j, to += kLanes) panel.read(j, step * kLanes, k - step * kLanes).store(to, kLanes);
  };
  if constexpr (requires { panel.group; }) {
    const int each = panel.group / kLanes;
    for (int step = begin; step < end; step += each) {
      panel.enter(step / each);
      for (int i = step; i < step + each; ++i) copy(i);
    }
  } else {
    for (int step = begin; step < end; ++step) copy(step);
  }
}

// Prefetches the next bytes of b to the L2 cache, `bytes` of them per sixteen multiplied numbers.
struct Prefetch {
  const char* from;
  std::ptrdiff_t bytes;

  // Prefetches the cache lines that begin within the next `bytes` bytes.
  INLINE void fetch() {
    constexpr std::ptrdiff_t line = 64;
    const char* const end = from + bytes;
    for (const char* next = from + (-reinterpret_cast<std::intptr_t>(from) & (line - 1)); next < end; next += line) __builtin_prefetch(next, 0, 2);
    from = end;
  }
};

// Multiplies all rows of a by C rows of b. `right` holds these rows' vectors for one pass, and `kept` the sums between
// two passes.
template <int C, class Format>
INLINE void column_of_tiles(const Product& p, const Format& b, const Left& left, int column, float* right, Lanes* kept) {
  typename Format::template Panel<kLanes, C> panel(b, column, 1);
  // The groups share the prefetches of the next C rows of b.
  const std::ptrdiff_t bytes = b.is_gapless(p.k) ? (C * Format::kBytes + left.groups - 1) / left.groups : 0;
  const char* const next = b.begin(column + C);
  for (int begin = 0; begin < left.steps; begin += kSteps) {
    const int end = std::min(left.steps, begin + kSteps);
    interleave<C>(right, panel, p.k, begin, end);
    for (int group = 0; group < left.groups; ++group) {
      Lanes sums[kRows][C] = {};
      Lanes* mine = kept + static_cast<std::ptrdiff_t>(group) * kRows * C;
      if (begin > 0) {
        UNROLL for (int i = 0; i < kRows; ++i)
          UNROLL for (int j = 0; j < C; ++j) sums[i][j] = mine[i * C + j];
      }
      const float *from = left.at(group, begin), *with = right;
      Prefetch ahead{next + bytes * (static_cast<std::ptrdiff_t>(group) * left.steps + begin), bytes};
      for (int step = begin; step < end; ++step, from += kRows * kLanes, with += C * kLanes) {
        ahead.fetch();
        Lanes columns[C];
        UNROLL for (int j = 0; j < C; ++j) columns[j] = *reinterpret_cast<const Lanes*>(with + j * kLanes);
        UNROLL for (int i = 0; i < kRows; ++i) {
          const Lanes row = *reinterpret_cast<const Lanes*>(from + i * kLanes);
          UNROLL for (int j = 0; j < C; ++j) sums[i][j] += row * columns[j];
        }
      }
      if (end < left.steps) {
        UNROLL for (int i = 0; i < kRows; ++i)
          UNROLL for (int j = 0; j < C; ++j) mine[i * C + j] = sums[i][j];
      } else {
        put<C>(p, group * kRows, std::min(kRows, p.m - group * kRows), column, sums);
      }
    }
  }
}

template <class Format>
V4 void block_of_tiles(const Product& p, const Format& b, const Left& left, int begin, int end) {
  thread_local std::vector<float> right_memory, kept_memory;
  float* right = aligned(right_memory, kColumns * kSteps * kLanes);
  Lanes* kept = reinterpret_cast<Lanes*>(aligned(kept_memory, static_cast<std::size_t>(left.groups) * kRows * kColumns * kLanes));
  int column = begin;
  for (; column + kColumns <= end; column += kColumns) column_of_tiles<kColumns>(p, b, left, column, right, kept);
  for (; column + 4 <= end; column += 4) column_of_tiles<4>(p, b, left, column, right, kept);
  for (; column < end; ++column) column_of_tiles<1>(p, b, left, column, right, kept);
}

V4 inline void copy_group(const Product& p, float* to, int group, int steps) {
  const std::ptrdiff_t row = static_cast<std::ptrdiff_t>(group) * kRows;
  interleave<kRows>(to + row * steps * kLanes, p.a + row * p.lda, p.lda, p.m - static_cast<int>(row), p.k, 0, steps);
}

}  // namespace

// c = alpha * a * b^T + beta * c, with the bits of few_rows.
template <class Format>
void tiles(const Product& p, const Format& b) {
  thread_local std::vector<float> memory;
  const int groups = (p.m + kRows - 1) / kRows, steps = (p.k + kLanes - 1) / kLanes;
  float* to = aligned(memory, static_cast<std::size_t>(groups) * steps * kRows * kLanes);
  in_parallel(groups, [&](int group) { copy_group(p, to, group, steps); });
  const Left left{to, groups, steps};
  const std::ptrdiff_t weights = static_cast<std::ptrdiff_t>(p.n) * p.k;
  const int blocks = static_cast<int>(std::clamp<std::ptrdiff_t>(weights / 16384, 1, 64));
  const int width = ((p.n + blocks - 1) / blocks + 47) / 48 * 48;
  in_parallel((p.n + width - 1) / width,
              [&](int block) { block_of_tiles(p, b, left, block * width, std::min(p.n, block * width + width)); });
}
