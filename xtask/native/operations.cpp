// MLX operations that run on the functions of pointwise.cpp and on all cores. As with the product, these definitions stand ahead of
// libmlx.so's in the search order; what they do not do themselves, they hand on to those.
#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <typeinfo>
#include <utility>
#include <vector>

#include "mlx/backend/common/utils.h"
#include "mlx/backend/cpu/encoder.h"
#include "mlx/fast.h"
#include "mlx/ops.h"
#include "mlx/primitives.h"
#include "mlx/utils.h"
#include "operations.h"
#include "pointwise.h"
#include "workers.h"

namespace mlx::core {

namespace {

// Makes of a row in one place one of the same length in another.
using RowFunction = std::function<void(const float*, float*, std::ptrdiff_t)>;

// Calls `run(row, copy)` for all rows of what has the shape of `a`, on all cores where it is worth it.
template <class Run>
void for_rows(const array& a, const Run& run) {
  const std::ptrdiff_t count = static_cast<std::ptrdiff_t>(a.size()) / a.shape().back();
  // A block is worth handing to another thread from some microseconds on.
  constexpr std::ptrdiff_t kWorthSharing = 8192;
  const std::ptrdiff_t most = std::min<std::ptrdiff_t>(count, 64);
  const std::ptrdiff_t blocks = std::clamp<std::ptrdiff_t>(static_cast<std::ptrdiff_t>(a.size()) / kWorthSharing, 1, most);
  in_parallel(static_cast<int>(blocks), [&](int block) {
    std::vector<float> copies[2];
    for (std::ptrdiff_t row = count * block / blocks; row < count * (block + 1) / blocks; ++row) run(row, copies);
  });
}

void apply_to_rows(const RowFunction& function, const array& in, array& out) {
  const std::ptrdiff_t length = in.shape().back();
  float* const to = out.data<float>();
  for_rows(in, [&](std::ptrdiff_t row, std::vector<float>* copies) { function(row_of(in, row, copies[0]), to + row * length, length); });
}

// A function of each row of the first input, which gives it its shape.
class RowOperation : public UnaryPrimitive {
 public:
  RowOperation(Stream stream, const char* name, RowFunction function)
      : UnaryPrimitive(stream), name_(name), function_(std::move(function)) {}

  void eval_cpu(const std::vector<array>& inputs, array& out) override {
    const array& in = inputs[0];
    if (in.flags().row_contiguous && is_donatable(in, out)) {
      out.copy_shared_buffer(in);
    } else {
      out.set_data(allocator::malloc(out.nbytes()));
    }
    auto& encoder = cpu::get_command_encoder(stream());
    encoder.set_input_array(in);
    encoder.set_output_array(out);
    encoder.dispatch([function = with(inputs), in = array::unsafe_weak_copy(in), out = array::unsafe_weak_copy(out)]() mutable {
      apply_to_rows(function, in, out);
    });
  }

  void eval_gpu(const std::vector<array>&, array&) override { throw std::runtime_error("this operation is one of the CPU"); }

  const char* name() const override { return name_; }

  std::vector<Shape> output_shapes(const std::vector<array>& inputs) override { return {inputs[0].shape()}; }

 protected:
  // The function, once the other inputs are known.
  virtual RowFunction with(const std::vector<array>&) const { return function_; }

 private:
  const char* name_;
  RowFunction function_;
};

// Division by the root mean square; the second input is what the quotients are multiplied with.
class Norm : public RowOperation {
 public:
  Norm(Stream stream, float epsilon) : RowOperation(stream, "RMSNorm", nullptr), epsilon_(epsilon) {}

 protected:
  RowFunction with(const std::vector<array>& inputs) const override {
    const array weight = array::unsafe_weak_copy(inputs[1]);
    return [weight, epsilon = epsilon_](const float* from, float* to, std::ptrdiff_t count) {
      norm_row(from, to, count, weight.data<float>(), weight.strides(0), epsilon);
    };
  }

 private:
  float epsilon_;
};

array row_operation(const array& a, const StreamOrDevice& s, const char* name, RowFunction function) {
  return array(a.shape(), float32, std::make_shared<RowOperation>(to_stream(s), name, std::move(function)), {a});
}

// Whether an array will be this function of rows, and has not been computed yet.
bool is_row_operation(const array& a, const char* name) {
  return a.has_primitive() && typeid(a.primitive()) == typeid(RowOperation) && std::strcmp(a.primitive().name(), name) == 0;
}

bool may_be_one(const array& a, const array& b, const StreamOrDevice& s) {
  return is_ours(a, s) && b.dtype() == float32 && a.shape() == b.shape();
}

constexpr const char *kSigmoid = "Sigmoid", *kSilu = "Silu";

// gate * sigmoid(gate) * up.
array gated_silu(const array& gate, const array& up, const StreamOrDevice& s) {
  return operation("GatedSilu", gate.shape(), {gate, up}, s, [](const std::vector<array>& inputs, array& out) {
    const std::ptrdiff_t length = out.shape().back();
    for_rows(out, [&](std::ptrdiff_t row, std::vector<float>* copies) {
      gated_silu_row(row_of(inputs[0], row, copies[0]), row_of(inputs[1], row, copies[1]), out.data<float>() + row * length, length);
    });
  });
}

}  // namespace

// The gate of a feed-forward block becomes one operation as it is written down: x * sigmoid(x), then that times another factor.
array multiply(const array& a, const array& b, StreamOrDevice s) {
  if (may_be_one(a, b, s)) {
    if (is_row_operation(b, kSigmoid) && b.inputs()[0].id() == a.id()) return row_operation(a, s, kSilu, silu_row);
    if (is_row_operation(a, kSilu)) return gated_silu(a.inputs()[0], b, s);
  }
  static const auto others = next(&multiply);
  return others(a, b, s);
}

array softmax(const array& a, const std::vector<int>& axes, bool precise, StreamOrDevice s) {
  const int last = static_cast<int>(a.ndim()) - 1;
  if (is_ours(a, s) && axes.size() == 1 && (axes[0] == -1 || axes[0] == last)) return row_operation(a, s, "Softmax", softmax_row);
  using Softmax = array(const array&, const std::vector<int>&, bool, StreamOrDevice);
  static Softmax* const others = next<Softmax>(&softmax);
  return others(a, axes, precise, s);
}

array sigmoid(const array& a, StreamOrDevice s) {
  if (is_ours(a, s)) return row_operation(a, s, kSigmoid, sigmoid_row);
  static const auto others = next(&sigmoid);
  return others(a, s);
}

array tanh(const array& a, StreamOrDevice s) {
  if (is_ours(a, s)) return row_operation(a, s, "Tanh", tanh_row);
  using Tanh = array(const array&, StreamOrDevice);
  static Tanh* const others = next<Tanh>(&tanh);
  return others(a, s);
}

array fast::rms_norm(const array& x, const std::optional<array>& weight, float epsilon, StreamOrDevice s) {
  if (is_ours(x, s) && weight && weight->dtype() == float32 && weight->ndim() == 1 && weight->size() == x.shape().back()) {
    return array(x.shape(), float32, std::make_shared<Norm>(to_stream(s), epsilon), {x, *weight});
  }
  static const auto others = next(&fast::rms_norm);
  return others(x, weight, epsilon, s);
}

}  // namespace mlx::core
