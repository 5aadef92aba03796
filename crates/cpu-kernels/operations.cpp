// MLX operations that use the functions of pointwise.cpp and all cores. As with the product, these definitions precede
// those of libmlx.so in the search order. They forward the cases that they do not handle to libmlx.so.
#include <algorithm>
#include <cstring>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "mlx/fast.h"
#include "mlx/ops.h"
#include "mlx/primitives.h"
#include "mlx/utils.h"
#include "moves.h"
#include "operations.h"
#include "pointwise.h"
#include "workers.h"

namespace mlx::core {

namespace {

// Computes a row from another one of the same length.
using RowFunction = void(const float*, float*, std::ptrdiff_t);

// Calls `run(row, copy)` for all rows of an array with the shape of `a`, in parallel if there is enough work.
template <class Run>
void for_rows(const Operand& a, const Run& run) {
  const std::ptrdiff_t count = static_cast<std::ptrdiff_t>(a.size()) / a.shape(-1);
  // A block should take at least some microseconds to be worth another thread.
  constexpr std::ptrdiff_t kWorthSharing = 8192;
  const std::ptrdiff_t most = std::min<std::ptrdiff_t>(count, 64);
  const std::ptrdiff_t blocks = std::clamp<std::ptrdiff_t>(static_cast<std::ptrdiff_t>(a.size()) / kWorthSharing, 1, most);
  in_parallel(static_cast<int>(blocks), [&](int block) {
    std::vector<float> copies[2];
    for (std::ptrdiff_t row = count * block / blocks; row < count * (block + 1) / blocks; ++row) run(row, copies);
  });
}

// Calls `function(from, to, length)` for all rows.
template <class Function>
void apply_to_rows(const Function& function, const Operand& in, const Operand& out) {
  const std::ptrdiff_t length = out.shape(-1);
  float* const to = out.data<float>();
  for_rows(out, [&](std::ptrdiff_t row, std::vector<float>* copies) { function(row_of(in, row, copies[0]), to + row * length, length); });
}

array row_operation(const array& a, const StreamOrDevice& s, const char* name, RowFunction* function) {
  const auto evaluation = [function](Operands inputs, const Operand& out) { apply_to_rows(function, inputs[0], out); };
  return operation(name, a.shape(), {a}, s, evaluation, Kind::kOfRows, true);
}

// Returns true if an array is the pending result of this row operation.
bool is_row_operation(const array& a, const char* name) {
  const Maker found = pending(a, Kind::kOfRows);
  return found != nullptr && std::strcmp(found->name(), name) == 0;
}

bool may_be_one(const array& a, const array& b, const StreamOrDevice& s) {
  return is_ours(a, s) && b.dtype() == float32 && a.shape() == b.shape();
}

constexpr const char *kSigmoid = "Sigmoid", *kSilu = "Silu";

// gate * sigmoid(gate) * up. Two halves of one array are read there, so that a step needs no operation to split it.
array gated_silu(const array& gate, const array& up, const StreamOrDevice& s) {
  const Part of_gate = part_of(gate), of_up = part_of(up);
  const auto evaluation = [gate = of_gate.place, up = of_up.place](Operands inputs, const Operand& out) {
    const Operand gates = gate.in(inputs[0]), ups = up.in(inputs.back());
    const std::ptrdiff_t length = out.shape(-1);
    for_rows(out, [&](std::ptrdiff_t row, std::vector<float>* copies) {
      gated_silu_row(row_of(gates, row, copies[0]), row_of(ups, row, copies[1]), out.data<float>() + row * length, length);
    });
  };
  std::vector<array> inputs{of_gate.of};
  if (of_up.of.id() != of_gate.of.id()) inputs.push_back(of_up.of);
  return operation("GatedSilu", gate.shape(), std::move(inputs), s, evaluation, Kind::kOfRows);
}

// A product of a single row, plus another row.
array product_plus(const array& product, const array& row, const StreamOrDevice& s) {
  std::vector<array> inputs = product.inputs();
  inputs.push_back(row);
  const auto evaluation = [maker = pending(product)](Operands inputs, const Operand& out) {
    maker->evaluate(inputs.first(inputs.size() - 1), out);
    std::vector<float> copy;
    const float* const added = row_of(inputs.back(), 0, copy);
    float* const to = out.data<float>();
    for (std::size_t i = 0; i < out.size(); ++i) to[i] += added[i];
  };
  return operation(product.primitive().name(), product.shape(), std::move(inputs), s, evaluation);
}

}  // namespace

// Fuses the gate of a feed-forward block while the graph is built: x * sigmoid(x), then that times another factor.
array multiply(const array& a, const array& b, StreamOrDevice s) {
  if (may_be_one(a, b, s)) {
    if (is_row_operation(b, kSigmoid) && b.inputs()[0].id() == a.id()) return row_operation(a, s, kSilu, silu_row);
    if (is_row_operation(a, kSilu)) return gated_silu(a.inputs()[0], b, s);
  }
  static const auto others = next(&multiply);
  return others(a, b, s);
}

// Fuses an addition to a product of a single row, such as a residual connection, into the product.
array add(const array& a, const array& b, StreamOrDevice s) {
  if (may_be_one(a, b, s) && is_one_row(a)) {
    if (pending(b, Kind::kProduct)) return product_plus(b, a, s);
    if (pending(a, Kind::kProduct)) return product_plus(a, b, s);
  }
  static const auto others = next(&add);
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
  const auto fits = [&](const array& w) { return w.dtype() == float32 && w.ndim() == 1 && w.size() == x.shape().back(); };
  if (is_ours(x, s) && (!weight || fits(*weight))) {
    const auto evaluation = [epsilon](Operands inputs, const Operand& out) {
      static const float one = 1.0f;
      const bool is_weighted = inputs.size() > 1;
      const float* const weight = is_weighted ? inputs[1].data<float>() : &one;
      const std::ptrdiff_t step = is_weighted ? inputs[1].stride(0) : 0;
      apply_to_rows([=](const float* from, float* to, std::ptrdiff_t count) { norm_row(from, to, count, weight, step, epsilon); }, inputs[0], out);
    };
    std::vector<array> inputs{x};
    if (weight) inputs.push_back(*weight);
    return operation("RMSNorm", x.shape(), std::move(inputs), s, evaluation, Kind::kOfRows, true);
  }
  static const auto others = next(&fast::rms_norm);
  return others(x, weight, epsilon, s);
}

}  // namespace mlx::core
