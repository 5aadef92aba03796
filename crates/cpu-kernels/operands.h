// The data, shapes and strides of arrays during an evaluation.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "mlx/array.h"

namespace mlx::core {

// The numbers of an array that another object keeps alive. A second handle of the array would count as a user, so that
// MLX would no longer write in place. A weak copy of the array would take two allocations for each input of each
// operation.
class Operand {
 public:
  explicit Operand(array a)
      : data_(a.data<char>()), shape_(a.shape()), strides_(a.strides()), size_(a.size()), item_(a.itemsize()), has_no_gaps_(a.flags().row_contiguous) {}

  Operand(float* data, Shape shape, Strides strides)
      : data_(data), shape_(std::move(shape)), strides_(std::move(strides)), size_(1), item_(sizeof(float)), has_no_gaps_(true) {
    for (std::size_t axis = shape_.size(); axis-- > 0; size_ *= static_cast<std::size_t>(shape_[axis]))
      if (shape_[axis] != 1 && strides_[axis] != static_cast<std::int64_t>(size_)) has_no_gaps_ = false;
  }

  template <class Number>
  Number* data() const {
    return static_cast<Number*>(data_);
  }

  const Shape& shape() const { return shape_; }
  const Strides& strides() const { return strides_; }
  // Negative axes count from the last.
  int shape(int axis) const { return shape_[axis < 0 ? axis + ndim() : axis]; }
  std::ptrdiff_t stride(int axis) const { return strides_[axis < 0 ? axis + ndim() : axis]; }
  int ndim() const { return static_cast<int>(shape_.size()); }
  std::size_t size() const { return size_; }
  std::size_t itemsize() const { return item_; }
  // True if the numbers are row-major without gaps.
  bool has_no_gaps() const { return has_no_gaps_; }

 private:
  void* data_;
  Shape shape_;
  Strides strides_;
  std::size_t size_, item_;
  bool has_no_gaps_;
};

using Operands = std::span<const Operand>;

namespace {

// Returns the strides of a row-major array without gaps.
inline Strides strides_of(const Shape& shape) {
  Strides strides(shape.size(), 1);
  for (int axis = static_cast<int>(shape.size()) - 2; axis >= 0; --axis) strides[axis] = strides[axis + 1] * shape[axis + 1];
  return strides;
}

// Returns a row of any layout. `copy` stores it if its numbers are not contiguous.
inline const float* row_of(const Operand& a, std::ptrdiff_t row, std::vector<float>& copy) {
  const std::ptrdiff_t length = a.shape(-1), step = a.stride(-1);
  const float* from = a.data<float>();
  for (int axis = a.ndim() - 2; axis >= 0; row /= a.shape(axis--)) from += row % a.shape(axis) * a.stride(axis);
  if (step == 1) return from;
  copy.resize(length);
  for (std::ptrdiff_t i = 0; i < length; ++i) copy[i] = from[i * step];
  return copy.data();
}

// Returns all rows, contiguous. `copy` stores them if they are not contiguous already. MLX's own way would take an
// extra operation.
inline const float* rows_of(const Operand& a, std::vector<float>& copy) {
  if (a.has_no_gaps()) return a.data<float>();
  const std::ptrdiff_t length = a.shape(-1), rows = static_cast<std::ptrdiff_t>(a.size()) / length;
  std::vector<float> gathered;
  copy.reserve(a.size());
  for (std::ptrdiff_t row = 0; row < rows; ++row) {
    const float* const from = row_of(a, row, gathered);
    copy.insert(copy.end(), from, from + length);
  }
  return copy.data();
}

// Memory for temporary numbers of an evaluation.
class Room {
 public:
  explicit Room(const Shape& shape) : numbers_(new float[Operand(nullptr, shape, strides_of(shape)).size()]), operand_(numbers_.get(), shape, strides_of(shape)) {}

  const Operand& operand() const { return operand_; }

 private:
  std::unique_ptr<float[]> numbers_;
  Operand operand_;
};

}  // namespace

}  // namespace mlx::core
