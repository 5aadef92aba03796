// Vectors of numbers, and what a product writes with them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <vector>

#define INLINE __attribute__((always_inline)) inline
#define INLINE_LAMBDA __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 16")

// Compiled once for each generation of processors; the right one is chosen when the library is loaded.
#if defined(__x86_64__) && !defined(__clang__)
#define FOR_EVERY_CPU __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define FOR_EVERY_CPU
#endif

namespace {

constexpr int kLanes = 16;
typedef float Lanes __attribute__((vector_size(4 * kLanes)));
typedef float Quarter __attribute__((vector_size(16)));

struct Product {
  int m, n, k;
  float alpha, beta;
  const float* a;
  int lda;
  const float* b;
  int ldb;
  float* c;
  int ldc;

  INLINE void put(int row, int column, float sum) const {
    float& out = c[static_cast<std::ptrdiff_t>(row) * ldc + column];
    // What was never written must not matter.
    out = beta == 0.0f ? alpha * sum : alpha * sum + beta * out;
  }

  INLINE void put(int row, int column, Quarter sums) const {
    if (beta == 0.0f) {
      sums *= alpha;
      std::memcpy(&c[static_cast<std::ptrdiff_t>(row) * ldc + column], &sums, sizeof sums);
    } else {
      for (int i = 0; i < 4; ++i) put(row, column + i, sums[i]);
    }
  }
};

// Up to kLanes numbers, and zeros.
INLINE void load(Lanes& lanes, const float* from, int count) {
  if (count >= kLanes) {
    std::memcpy(&lanes, from, sizeof lanes);
  } else {
    lanes = Lanes{};
    std::memcpy(&lanes, from, sizeof(float) * std::max(0, count));
  }
}

INLINE Quarter fold(const Lanes& lanes) {
  Quarter parts[4];
  std::memcpy(parts, &lanes, sizeof lanes);
  return (parts[0] + parts[2]) + (parts[1] + parts[3]);
}

INLINE float sum_of(const Lanes& lanes) {
  const Quarter x = fold(lanes);
  return (x[0] + x[2]) + (x[1] + x[3]);
}

// a with its rows in one piece: itself, or a copy in `memory`.
inline const float* by_row(std::vector<float>& memory, int m, int k, const float* a, int stride, int step) {
  if (step == 1) return a;
  memory.resize(static_cast<std::size_t>(m) * k);
  for (int row = 0; row < m; ++row)
    for (int i = 0; i < k; ++i)
      memory[static_cast<std::size_t>(row) * k + i] = a[static_cast<std::ptrdiff_t>(row) * stride + static_cast<std::ptrdiff_t>(i) * step];
  return memory.data();
}

}  // namespace
