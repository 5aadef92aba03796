// What our definitions of MLX operations have in common.
#pragma once

#include <dlfcn.h>

#include <functional>
#include <memory>
#include <stdexcept>
#include <utility>
#include <vector>

#include "mlx/array.h"
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

// Computes the last argument from the inputs.
using Evaluation = std::function<void(const std::vector<array>&, array&)>;

// An operation whose result is new memory in f32, row by row without gaps.
class Operation : public UnaryPrimitive {
 public:
  Operation(Stream stream, const char* name, Shape shape, Evaluation evaluation)
      : UnaryPrimitive(stream), name_(name), shape_(std::move(shape)), evaluation_(std::move(evaluation)) {}

  void eval_cpu(const std::vector<array>& inputs, array& out) override {
    out.set_data(allocator::malloc(out.nbytes()));
    auto& encoder = cpu::get_command_encoder(stream());
    std::vector<array> kept;
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

 private:
  const char* name_;
  Shape shape_;
  Evaluation evaluation_;
};

inline array operation(const char* name, Shape shape, std::vector<array> inputs, const StreamOrDevice& s, Evaluation evaluation) {
  auto primitive = std::make_shared<Operation>(to_stream(s), name, shape, std::move(evaluation));
  return array(std::move(shape), float32, std::move(primitive), std::move(inputs));
}

}  // namespace

}  // namespace mlx::core
