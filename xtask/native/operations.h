// What our definitions of MLX operations have in common.
#pragma once

#include <dlfcn.h>

#include <cstring>
#include <functional>
#include <memory>
#include <span>
#include <stdexcept>
#include <typeinfo>
#include <utility>
#include <vector>

#include "mlx/array.h"
#include "mlx/backend/common/utils.h"
#include "mlx/backend/cpu/encoder.h"
#include "mlx/primitives.h"
#include "mlx/utils.h"

namespace mlx::core {

namespace {

// Whether an operation on this array may be ours.
inline bool is_ours(const array& a, const StreamOrDevice& s) {
  return a.dtype() == float32 && a.ndim() > 0 && a.size() > 0 && to_stream(s).device == Device::cpu;
}

// The definition behind ours.
template <class Function>
Function* next(Function* ours) {
  Dl_info info{};
  void* found = dladdr(reinterpret_cast<void*>(ours), &info) == 0 ? nullptr : dlsym(RTLD_NEXT, info.dli_sname);
  if (found == nullptr) throw std::runtime_error("libmlx.so lacks an operation that it is known to have");
  return reinterpret_cast<Function*>(found);
}

// A row of an array, wherever it lies; `copy` holds it if its numbers are not one behind the other.
inline const float* row_of(const array& a, std::ptrdiff_t row, std::vector<float>& copy) {
  const int last = static_cast<int>(a.ndim()) - 1;
  const std::ptrdiff_t length = a.shape(last), step = a.strides(last);
  const float* from = a.data<float>();
  for (int axis = last - 1; axis >= 0; row /= a.shape(axis--)) from += row % a.shape(axis) * a.strides(axis);
  if (step == 1) return from;
  copy.resize(length);
  for (std::ptrdiff_t i = 0; i < length; ++i) copy[i] = from[i * step];
  return copy.data();
}

// All rows of an array, one behind the other; `copy` holds them if they do not lie so. MLX's own way to have them so costs a step an operation.
inline const float* rows_of(const array& a, std::vector<float>& copy) {
  if (a.flags().row_contiguous) return a.data<float>();
  const std::ptrdiff_t length = a.shape().back(), rows = static_cast<std::ptrdiff_t>(a.size()) / length;
  std::vector<float> gathered;
  copy.reserve(a.size());
  for (std::ptrdiff_t row = 0; row < rows; ++row) {
    const float* const from = row_of(a, row, gathered);
    copy.insert(copy.end(), from, from + length);
  }
  return copy.data();
}

}  // namespace

using Inputs = std::span<const array>;

// Computes the last argument from the inputs.
using Evaluation = std::function<void(Inputs, array&)>;

// What may become of an operation before it is computed. Handing one over takes longer than the work on a single row, so a step of one row has as few
// as can be. Who else reads the result is not known then: if something does, it is computed again.
enum class Kind {
  kOther,
  // Short work on each row: a product of a single row does it itself.
  kOfRows,
  // A product: what is added to its single row, it adds itself. Nothing else may read what it was added to, or the product is computed twice.
  kProduct,
};

// An operation whose result is memory in f32, row by row without gaps.
class Operation : public UnaryPrimitive {
 public:
  Operation(Stream stream, const char* name, Shape shape, Evaluation evaluation, Kind kind, bool in_place)
      : UnaryPrimitive(stream), name_(name), shape_(std::move(shape)), evaluation_(std::move(evaluation)), kind_(kind), in_place_(in_place) {}

  void eval_cpu(const std::vector<array>& inputs, array& out) override {
    if (in_place_ && inputs[0].flags().row_contiguous && is_donatable(inputs[0], out)) {
      out.copy_shared_buffer(inputs[0]);
    } else {
      out.set_data(allocator::malloc(out.nbytes()));
    }
    auto& encoder = cpu::get_command_encoder(stream());
    std::vector<array> kept;
    kept.reserve(inputs.size());
    for (const array& input : inputs) {
      encoder.set_input_array(input);
      kept.push_back(array::unsafe_weak_copy(input));
    }
    encoder.set_output_array(out);
    encoder.dispatch([evaluation = evaluation_, kept = std::move(kept), out = array::unsafe_weak_copy(out)]() mutable {
      evaluation(kept, out);
    });
  }

  void eval_gpu(const std::vector<array>&, array&) override { throw std::runtime_error("this operation is one of the CPU"); }

  const char* name() const override { return name_; }

  std::vector<Shape> output_shapes(const std::vector<array>&) override { return {shape_}; }

  const Evaluation& evaluation() const { return evaluation_; }

  Kind kind() const { return kind_; }

 private:
  const char* name_;
  Shape shape_;
  Evaluation evaluation_;
  Kind kind_;
  bool in_place_;
};

namespace {

// An array of memory of its own.
inline array made(const Evaluation& evaluate, Inputs inputs, const Shape& shape) {
  array out(shape, float32, nullptr, {});
  out.set_data(allocator::malloc(out.nbytes()));
  evaluate(inputs, out);
  return out;
}

// With `in_place`, the result may take the memory of the first input.
inline array operation(const char* name, Shape shape, std::vector<array> inputs, const StreamOrDevice& s, Evaluation evaluation,
                       Kind kind = Kind::kOther, bool in_place = false) {
  auto primitive = std::make_shared<Operation>(to_stream(s), name, shape, std::move(evaluation), kind, in_place);
  return array(std::move(shape), float32, std::move(primitive), std::move(inputs));
}

inline bool is_pending(const array& a) { return a.status() == array::Status::unscheduled && a.has_primitive(); }

// Whether an array will be made by an operation of MLX with this name, and has not been computed yet. The types of most are not known outside of MLX.
inline bool is_pending(const array& a, const char* name) { return is_pending(a) && std::strcmp(a.primitive().name(), name) == 0; }

// The operation of ours that an array is still to be made by, if there is one.
inline const Operation* pending(const array& a) {
  return is_pending(a) && typeid(a.primitive()) == typeid(Operation) ? static_cast<const Operation*>(&a.primitive()) : nullptr;
}

inline const Operation* pending(const array& a, Kind kind) {
  const Operation* found = pending(a);
  return found != nullptr && found->kind() == kind ? found : nullptr;
}

inline bool is_one_row(const array& a) { return a.ndim() > 0 && a.size() == static_cast<std::size_t>(a.shape().back()); }

}  // namespace

}  // namespace mlx::core
