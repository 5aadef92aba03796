// The positions of views in the arrays that they view, before anything is computed. Our operations read the numbers
// there, so a step of one row needs no operations that move them.
#pragma once

#include <algorithm>
#include <optional>
#include <utility>
#include <variant>

#include "operations.h"

namespace mlx::core {

namespace {

// A view of an array that is not computed yet. An evaluation captures it without the array, which is an input of its
// operation.
class Place {
 public:
  // Consecutive numbers of an array without gaps.
  static Place run(Shape shape, std::ptrdiff_t begin) { return {std::move(shape), begin}; }

  // A window of an array with strides that are not known yet.
  static Place window(Shape shape, Shape start) { return {std::move(shape), std::move(start)}; }

  Operand in(const Operand& whole) const {
    float* data = whole.data<float>();
    if (const auto* begin = std::get_if<std::ptrdiff_t>(&from_)) return Operand(data + *begin, shape_, strides_of(shape_));
    const Shape& start = std::get<Shape>(from_);
    for (int axis = 0; axis < whole.ndim(); ++axis) data += start[axis] * whole.stride(axis);
    return Operand(data, shape_, whole.strides());
  }

 private:
  Place(Shape shape, std::variant<std::ptrdiff_t, Shape> from) : shape_(std::move(shape)), from_(std::move(from)) {}

  Shape shape_;
  std::variant<std::ptrdiff_t, Shape> from_;
};

// A view and the array that it views.
struct Part {
  array of;
  Place place;
};

inline bool are_ones(Shape::const_iterator begin, Shape::const_iterator end) {
  return std::all_of(begin, end, [](auto length) { return length == 1; });
}

// Returns the axis along which an array was split, and the start of a part on it.
inline std::pair<int, int> begin_of_part(const array& part) {
  const Shape &shape = part.shape(), &whole = part.inputs()[0].shape();
  const auto axis = static_cast<int>(std::mismatch(shape.begin(), shape.end(), whole.begin()).first - shape.begin());
  int begin = 0;
  for (const array& other : part.outputs()) {
    if (axis == static_cast<int>(shape.size()) || other.id() == part.id()) break;
    begin += other.shape(axis);
  }
  return {axis, begin};
}

// Consecutive numbers in the result of a pending operation of ours.
struct Run {
  array of;
  std::ptrdiff_t begin = 0;

  Part part(Shape shape) const { return {of, Place::run(std::move(shape), begin)}; }
};

// Returns the run that contains all numbers of `a`, if there is one.
inline std::optional<Run> run_of(const array& a) {
  if (pending(a)) return Run{a};
  const bool is_part = is_pending(a, "Split");
  if (!is_part && !is_pending(a, "Reshape")) return std::nullopt;
  auto run = run_of(a.inputs()[0]);
  if (!run || !is_part) return run;
  const auto [axis, begin] = begin_of_part(a);
  if (!are_ones(a.shape().begin(), a.shape().begin() + axis)) return std::nullopt;
  std::ptrdiff_t length = begin;
  for (int inner = axis + 1; inner < static_cast<int>(a.ndim()); ++inner) length *= a.shape(inner);
  run->begin += length;
  return run;
}

// The array that slices and parts are cut from, and their start in it.
struct Window {
  array of;
  Shape start;
};

inline Window window_of(const array& a) {
  if (is_pending(a, "Slice")) {
    const auto [start, stop, steps] = static_cast<const Slice&>(a.primitive()).state();
    if (are_ones(steps.begin(), steps.end())) {
      Window window = window_of(a.inputs()[0]);
      for (std::size_t axis = 0; axis < start.size(); ++axis) window.start[axis] += start[axis];
      return window;
    }
  } else if (is_pending(a, "Split")) {
    const auto [axis, begin] = begin_of_part(a);
    Window window = window_of(a.inputs()[0]);
    if (axis < static_cast<int>(a.ndim())) window.start[axis] += begin;
    return window;
  }
  return {a, Shape(a.ndim(), 0)};
}

// Returns the view from which an operation reads the numbers of `a`: of the array that `a` is a view of, if that is
// known, else of `a` itself.
inline Part part_of(const array& a) {
  if (const auto run = run_of(a)) return run->part(a.shape());
  auto [of, start] = window_of(a);
  return {std::move(of), Place::window(a.shape(), std::move(start))};
}

}  // namespace

}  // namespace mlx::core
