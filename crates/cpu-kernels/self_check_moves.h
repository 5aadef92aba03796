// Checks of a step's keys and values, which are written and read without operations that move them: see self_check.cpp.
#pragma once

#include <cstdio>
#include <set>
#include <utility>
#include <vector>

#include "self_check_operations.h"

namespace {

// Returns the number of operations that `a` depends on, including its own.
inline std::size_t operations_of(const mlx::core::array& a) {
  std::set<std::uintptr_t> seen;
  std::vector<mlx::core::array> left{a};
  while (!left.empty()) {
    const mlx::core::array one = left.back();
    left.pop_back();
    if (!one.has_primitive() || !seen.insert(one.primitive_id()).second) continue;
    left.insert(left.end(), one.inputs().begin(), one.inputs().end());
  }
  return seen.size();
}

// Computes queries, keys and values of a row from one projection: rotates the keys, appends them to others, and
// attends. `made` is called with the result of each operation.
template <class Made>
std::pair<mlx::core::array, mlx::core::array> mix(const mlx::core::array& cache, const mlx::core::array& projected, const Made& made) {
  using namespace mlx::core;
  constexpr int kQueries = 6, kKeys = 2, kSize = 64, kPlace = 20, kFirst = 3;
  const array heads = made(reshape(made(multiply(projected, made(sigmoid(projected)))), {1, -1, 1, kSize}));
  const auto parts = split(heads, Shape{kQueries + kKeys}, 1);
  const auto rotated = split(made(fast::rope(made(parts[0]), kSize, false, 10000.0f, 1.0f, array(kPlace), std::nullopt)), Shape{kQueries}, 1);
  const array added = made(concatenate({made(rotated[1]), made(parts[1])}, 1));
  const array written = made(slice_update(cache, added, Shape{0, 0, kPlace, 0}, Shape{1, 2 * kKeys, kPlace + 1, kSize}, Shape(4, 1)));
  const auto seen = [&](int begin) {
    const array until_now = made(slice(written, {0, begin, 0, 0}, {1, begin + kKeys, kPlace + 1, kSize}));
    return made(slice(until_now, {0, 0, kFirst, 0}, {1, kKeys, kPlace + 1, kSize}));
  };
  return {written, fast::scaled_dot_product_attention(made(rotated[0]), seen(0), seen(kKeys), 0.3f)};
}

inline bool moves_are_right() {
  using namespace mlx::core;
  const auto apart = [](array a) {
    eval(a);
    return a;
  };
  const auto whole = [](const array& a) { return a; };
  const array projected = drawn({1, 640}, false), numbers = drawn({1, 4, 32, 64}, false);
  array cache = apart(numbers + array(0.0f));
  const auto [expected_cache, expected] = mix(numbers, projected, apart);
  // The cache is still referenced here, so it must stay unchanged.
  const auto before = numbers_of(cache);
  const auto [copied, of_copy] = mix(cache, projected, whole);
  // The gate, the rotation, the write, and the attention.
  if (operations_of(of_copy) != 4) {
    std::printf("attention of a row is %zu operations\n", operations_of(of_copy));
    return false;
  }
  if (numbers_of(of_copy) != numbers_of(expected) || numbers_of(copied) != numbers_of(expected_cache) || numbers_of(cache) != before) {
    std::printf("attention of a row has other bits than its operations\n");
    return false;
  }
  // Without other references, it is written in place.
  const void* const place = cache.data<void>();
  auto [written, mixed] = mix(std::exchange(cache, array(0.0f)), projected, whole);
  eval(written, mixed);
  if (written.data<void>() != place || numbers_of(written) != numbers_of(expected_cache) || numbers_of(mixed) != numbers_of(expected)) {
    std::printf("a row is not written in place\n");
    return false;
  }
  return true;
}

}  // namespace
