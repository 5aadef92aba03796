// Fetching what a product will read of its right side.
#pragma once

#include <cstddef>

#include "registers.h"

namespace {

// What will be read of C strips of b. A strip is rows that follow one another; one row of each is read at a time, so that the bytes of each are read in
// order. Processors follow several such streams by themselves, but not beyond the end of a page. What is fetched goes to the second cache: the first has
// too few places for lines on their way.
template <int C>
struct Ahead {
  // So many bytes of each strip lie between what is fetched and what is read.
  static constexpr std::ptrdiff_t kBytes = 1 << 10;

  // Where the first strip's row begins, and the bytes from it to the next strip's. Nothing is fetched without rows.
  const char* rows;
  std::ptrdiff_t stride;

  // For the first of several passes over the same rows of b; after that nothing is fetched.
  INLINE Ahead once() {
    const Ahead first = *this;
    rows = nullptr;
    return first;
  }

  // Fetches what lies kBytes behind the bytes from `at` to `at + count` of each row.
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
