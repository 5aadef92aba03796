// Products with a weight matrix in any format, with separate code for few, some and many rows.
#pragma once

#include "blas.h"
#include "few_rows.h"
#include "tiles.h"

namespace {

// The number of weights that are unpacked at a time if a has many rows. They stay in the cache while they are
// multiplied.
constexpr int kUnpacked = 1 << 18;

template <class Format>
struct Unpack {
  // Writes the rows from `begin` to `end` as contiguous f32.
  template <int W>
  INLINE static void run(const Format& b, int k, int begin, int end, float* to) {
    for (int row = begin; row < end; ++row, to += k) {
      typename Format::template Panel<W, 1> panel(b, row, 1);
      if constexpr (Format::kGrouped) {
        for (int group = 0; group < panel.groups; ++group) {
          panel.enter(group);
          for (int i = group * panel.group; i < (group + 1) * panel.group; i += kLanes) panel.read(0, i, kLanes).store(to + i, kLanes);
        }
      } else {
        for (int i = 0; i < k; i += kLanes) panel.read(0, i, k - i).store(to + i, k - i);
      }
    }
  }
};

// The split of the columns depends only on the shape, and so do the bits.
template <class Format>
void many_rows(const Product& p, const Format& b) {
  constexpr double kWorthSharing = 1 << 20;
  const int shares = static_cast<int>(std::clamp(static_cast<double>(p.m) * p.n * p.k / kWorthSharing, 1.0, 8.0));
  const int most = std::max(1, kUnpacked / p.k / 64) * 64, width = std::min(most, ((p.n + shares - 1) / shares + 63) / 64 * 64);
  in_parallel((p.n + width - 1) / width, [&](int block) {
    thread_local std::vector<float> memory;
    const int begin = block * width, end = std::min(p.n, begin + width);
    memory.resize(static_cast<std::size_t>(width) * p.k);
    for_this_cpu<Unpack<Format>>(b, p.k, begin, end, memory.data());
    scipy_cblas_sgemm(kRowMajor, kNoTrans, kTrans, p.m, end - begin, p.k, p.alpha, p.a, p.lda, memory.data(), p.k, p.beta, p.c + begin, p.ldc);
  });
}

// c = alpha * a * b^T + beta * c.
template <class Format>
void product(const Product& p, const Format& b) {
  if (p.m > kVeryFewRows && p.m <= kTileRows && tiles_pay()) {
    tiles(p, b);
  } else if (p.m <= kFewRows) {
    few_rows(p, b);
  } else {
    many_rows(p, b);
  }
}

}  // namespace
