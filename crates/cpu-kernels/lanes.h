// Vectors of numbers, and the output of a product.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "registers.h"

namespace {

constexpr int kLanes = 16;
typedef float Lanes __attribute__((vector_size(4 * kLanes)));
typedef float Quarter __attribute__((vector_size(16)));

// All of a product but the right operand: c = alpha * a * (the right operand) + beta * c, where a is [m, k] and c is
// [m, n], row-major.
struct Product {
  int m, n, k;
  float alpha, beta;
  const float* a;
  int lda;
  float* c;
  int ldc;

  INLINE void put(int row, int column, float sum) const {
    float& out = c[static_cast<std::ptrdiff_t>(row) * ldc + column];
    // With beta = 0, c may be uninitialized.
    out = beta == 0.0f ? alpha * sum : alpha * sum + beta * out;
  }

  // Writes four sums of a row, to columns with a stride of `apart`.
  INLINE void put(int row, int column, Quarter sums, int apart) const {
    if (beta == 0.0f) {
      float* const out = &c[static_cast<std::ptrdiff_t>(row) * ldc + column];
      sums *= alpha;
      UNROLL for (int i = 0; i < 4; ++i) out[i * apart] = sums[i];
    } else {
      for (int i = 0; i < 4; ++i) put(row, column + i * apart, sums[i]);
    }
  }
};

// Loads up to kLanes numbers, padded with zeros.
INLINE void load(Lanes& lanes, const float* from, int count) {
  if (count >= kLanes) {
    std::memcpy(&lanes, from, sizeof lanes);
  } else {
    lanes = Lanes{};
    std::memcpy(&lanes, from, sizeof(float) * std::max(0, count));
  }
}

// Sixteen numbers in registers of width W. A compiler that splits larger vectors itself moves them through memory.
template <int W>
struct Sixteen {
  typedef float Register __attribute__((vector_size(4 * W)));
  typedef std::uint32_t Word __attribute__((vector_size(4 * W)));
  typedef std::int32_t Signed __attribute__((vector_size(4 * W)));
  static constexpr int kParts = kLanes / W;
  Register parts[kParts];

  // Loads up to kLanes numbers, padded with zeros.
  INLINE void load(const float* from, int count) {
    float padded[kLanes];
    if (count < kLanes) {
      for (int i = 0; i < kLanes; ++i) padded[i] = i < count ? from[i] : 0.0f;
      from = padded;
    }
    UNROLL for (int part = 0; part < kParts; ++part) std::memcpy(&parts[part], from + part * W, sizeof(Register));
  }

  // Stores the first `count` numbers.
  INLINE void store(float* to, int count) const {
    if (count < kLanes) {
      std::memcpy(to, parts, static_cast<std::size_t>(count) * sizeof(float));
    } else {
      UNROLL for (int part = 0; part < kParts; ++part) std::memcpy(to + part * W, &parts[part], sizeof(Register));
    }
  }

  INLINE void add_product(const Sixteen& left, const Sixteen& right) {
    UNROLL for (int part = 0; part < kParts; ++part) parts[part] += left.parts[part] * right.parts[part];
  }
};

// The first two steps of a sum, identical for all register widths.
INLINE Quarter fold(const Sixteen<4>& x) { return (x.parts[0] + x.parts[2]) + (x.parts[1] + x.parts[3]); }

template <class Eight>
INLINE Quarter halves_of(const Eight& x) {
  return __builtin_shufflevector(x, x, 0, 1, 2, 3) + __builtin_shufflevector(x, x, 4, 5, 6, 7);
}

INLINE Quarter fold(const Sixteen<8>& x) { return halves_of(x.parts[0] + x.parts[1]); }

INLINE Quarter fold(const Sixteen<16>& lanes) {
  const auto& x = lanes.parts[0];
  return halves_of(__builtin_shufflevector(x, x, 0, 1, 2, 3, 4, 5, 6, 7) + __builtin_shufflevector(x, x, 8, 9, 10, 11, 12, 13, 14, 15));
}

template <int W>
INLINE float sum_of(const Sixteen<W>& lanes) {
  const Quarter x = fold(lanes);
  return (x[0] + x[2]) + (x[1] + x[3]);
}

// Returns a with contiguous rows: a itself, or a copy in `memory`.
inline const float* by_row(std::vector<float>& memory, int m, int k, const float* a, int stride, int step) {
  if (step == 1) return a;
  memory.resize(static_cast<std::size_t>(m) * k);
  for (int row = 0; row < m; ++row)
    for (int i = 0; i < k; ++i)
      memory[static_cast<std::size_t>(row) * k + i] = a[static_cast<std::ptrdiff_t>(row) * stride + static_cast<std::ptrdiff_t>(i) * step];
  return memory.data();
}

}  // namespace
