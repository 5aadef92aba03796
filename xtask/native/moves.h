// Where the numbers of views lie in what they are views of, while nothing is computed yet: an operation of ours reads them there, and a step of one row
// needs no operation that moves them.
#pragma once

#include <algorithm>
#include <optional>
#include <tuple>
#include <utility>

#include "operations.h"

namespace mlx::core {

namespace {

// Numbers one behind the other in what an operation of ours will make. An evaluation takes `begin` alone, since its operation has the array as an
// input, and a second handle would outlive that.
struct Run {
  array of;
  std::ptrdiff_t begin = 0;
};

inline bool are_ones(Shape::const_iterator begin, Shape::const_iterator end) {
  return std::all_of(begin, end, [](auto length) { return length == 1; });
}

// Where all numbers of an array lie, if it is a reshaped part of such a result.
inline std::optional<Run> run_of(const array& a) {
  if (pending(a)) return Run{a};
  const bool is_part = is_pending(a, "Split");
  if (!is_part && !is_pending(a, "Reshape")) return std::nullopt;
  const array& whole = a.inputs()[0];
  std::optional<Run> run = run_of(whole);
  if (!run || !is_part) return run;
  const auto axis = std::mismatch(a.shape().begin(), a.shape().end(), whole.shape().begin()).first;
  if (!are_ones(a.shape().begin(), axis)) return std::nullopt;
  for (const array& part : a.outputs()) {
    if (part.id() == a.id()) break;
    run->begin += static_cast<std::ptrdiff_t>(part.size());
  }
  return run;
}

// A part of an array that slices cut out of it. An evaluation takes `start` alone.
struct Window {
  array of;
  Shape start;
};

inline const float* number_at(const Shape& place, const array& a) {
  const float* number = a.data<float>();
  for (int axis = 0; axis < static_cast<int>(place.size()); ++axis) number += place[axis] * a.strides(axis);
  return number;
}

inline Window window_of(const array& a) {
  if (is_pending(a, "Slice")) {
    const auto [start, stop, steps] = static_cast<const Slice&>(a.primitive()).state();
    if (are_ones(steps.begin(), steps.end())) {
      Window window = window_of(a.inputs()[0]);
      for (std::size_t axis = 0; axis < start.size(); ++axis) window.start[axis] += start[axis];
      return window;
    }
  }
  return {a, Shape(a.ndim(), 0)};
}

}  // namespace

}  // namespace mlx::core
