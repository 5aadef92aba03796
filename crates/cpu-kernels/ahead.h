// Prefetches the right-hand matrix of a product.
#pragma once

#include <cstddef>

#include "registers.h"

namespace {

// Prefetches C strips of b. A strip is a range of consecutive rows. A pass reads one row of each strip at a time, so
// every strip is read sequentially. The hardware prefetcher follows several such streams, but not across page
// boundaries. Prefetches go to the L2 cache, since L1 has too few line fill buffers.
template <int C>
struct Ahead {
  // The distance between prefetched and read bytes of a strip.
  static constexpr std::ptrdiff_t kBytes = 1 << 10;

  // The first strip's current row, and the distance in bytes from one strip to the next. A null `rows` disables
  // prefetching.
  const char* rows;
  std::ptrdiff_t stride;

  // For the first of several passes over the same rows of b. Later passes do not prefetch.
  INLINE Ahead once() {
    const Ahead first = *this;
    rows = nullptr;
    return first;
  }

  // Prefetches the bytes from `at` to `at + count` of each row, kBytes ahead.
  INLINE void fetch(std::ptrdiff_t at, std::ptrdiff_t count) const {
    if (rows == nullptr) return;
    constexpr std::ptrdiff_t line = 64;
    for (std::ptrdiff_t next = (at + line - 1) & -line; next < at + count; next += line) {
      const char* from = rows + kBytes + next;
      UNROLL for (int j = 0; j < C; ++j, from += stride) __builtin_prefetch(from, 0, 2);
    }
  }
};

}  // namespace
