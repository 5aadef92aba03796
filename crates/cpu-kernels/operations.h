// Shared code of our definitions of MLX operations.
#pragma once

#include <dlfcn.h>

#include <cstring>
#include <functional>
#include <memory>
#include <stdexcept>
#include <typeinfo>
#include <utility>
#include <vector>

#include "mlx/array.h"
#include "mlx/backend/common/utils.h"
#include "mlx/backend/cpu/encoder.h"
#include "mlx/primitives.h"
#include "mlx/scheduler.h"
#include "mlx/utils.h"
#include "operands.h"

namespace mlx::core {

namespace {

// Returns true if our operations support this array.
inline bool is_ours(const array& a, const StreamOrDevice& s) {
  return a.dtype() == float32 && a.ndim() > 0 && a.size() > 0 && to_stream(s).device == Device::cpu;
}

// Returns the definition that ours replaces.
template <class Function>
Function* next(Function* ours) {
  Dl_info info{};
  void* found = dladdr(reinterpret_cast<void*>(ours), &info) == 0 ? nullptr : dlsym(RTLD_NEXT, info.dli_sname);
  if (found == nullptr) throw std::runtime_error("libmlx.so lacks an operation that it is known to have");
  return reinterpret_cast<Function*>(found);
}

}  // namespace

// Computes the last argument, which is row-major without gaps, from the inputs.
using Evaluation = std::function<void(Operands, const Operand&)>;

// The possible fusions of an operation before it is computed. Scheduling an operation takes longer than computing it
// for a single row, so a step of one row should have as few as possible. Other users of the result are not known then.
// If there are any, it is computed twice.
enum class Kind {
  kOther,
  // Cheap row-wise work. A product of a single row computes it itself.
  kOfRows,
  // A product. It adds what is added to its single row itself. If anything else uses the unfused product, it is
  // computed twice.
  kProduct,
};

// An operation with an f32 result, row-major without gaps.
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
    for (const array& input : inputs) encoder.set_input_array(input);
    encoder.set_output_array(out);
    // The operation outlives the array, and is not copied.
    auto task = [self = out.primitive_ptr(), operands = std::vector<Operand>(inputs.begin(), inputs.end()), out = Operand(out)] {
      static_cast<const Operation&>(*self).evaluation_(operands, out);
    };
    // When too many dispatches that the encoder counts are pending, MLX blocks the scheduling thread, which bounds
    // memory. Small results need no such bound, and each wait interrupts the thread of the step too.
    constexpr std::size_t kCounted = 1 << 18;
    if (out.nbytes() < kCounted) {
      scheduler::enqueue(stream(), std::move(task));
    } else {
      encoder.dispatch(std::move(task));
    }
  }

  void eval_gpu(const std::vector<array>&, array&) override { throw std::runtime_error("this operation is one of the CPU"); }

  const char* name() const override { return name_; }

  std::vector<Shape> output_shapes(const std::vector<array>&) override { return {shape_}; }

  void evaluate(Operands inputs, const Operand& out) const { evaluation_(inputs, out); }

  Kind kind() const { return kind_; }

 private:
  const char* name_;
  Shape shape_;
  Evaluation evaluation_;
  Kind kind_;
  bool in_place_;
};

namespace {

// With `in_place`, the result may reuse the memory of the first input.
inline array operation(const char* name, Shape shape, std::vector<array> inputs, const StreamOrDevice& s, Evaluation evaluation,
                       Kind kind = Kind::kOther, bool in_place = false) {
  auto primitive = std::make_shared<Operation>(to_stream(s), name, shape, std::move(evaluation), kind, in_place);
  return array(std::move(shape), float32, std::move(primitive), std::move(inputs));
}

inline bool is_pending(const array& a) { return a.status() == array::Status::unscheduled && a.has_primitive(); }

// Returns true if an array is the pending result of MLX's operation with this name. Most operation types are private to
// MLX.
inline bool is_pending(const array& a, const char* name) { return is_pending(a) && std::strcmp(a.primitive().name(), name) == 0; }

// Returns our operation whose pending result an array is, if there is one.
using Maker = std::shared_ptr<const Operation>;

inline Maker pending(const array& a) {
  return is_pending(a) && typeid(a.primitive()) == typeid(Operation) ? std::static_pointer_cast<const Operation>(a.primitive_ptr()) : nullptr;
}

inline Maker pending(const array& a, Kind kind) {
  Maker found = pending(a);
  return found != nullptr && found->kind() == kind ? found : nullptr;
}

inline bool is_one_row(const array& a) { return a.ndim() > 0 && a.size() == static_cast<std::size_t>(a.shape().back()); }

}  // namespace

}  // namespace mlx::core
