// MLX's products of f32 with other weights: f16, bf16, and packed matrices. MLX would convert halves to f32 first, and
// multiplies packed numbers one by one.
#include <algorithm>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "mlx/ops.h"
#include "moves.h"
#include "operations.h"
#include "weights.h"

namespace mlx::core {

namespace {

// Returns an array as row-major without gaps. Weights already are, so this adds no operation for them.
array by_rows(const array& a, const StreamOrDevice& s) {
  return a.is_available() && a.flags().row_contiguous ? a : contiguous(a, false, s);
}

Shape with_last(Shape shape, int last) {
  shape.back() = last;
  return shape;
}

bool is_half(const array& a) { return a.dtype() == float16 || a.dtype() == bfloat16; }

// Returns the transposes of matrices `[.., k, n]`, row-major without gaps. Weights already have this layout, so this
// adds no operation for them.
array transposed_by_rows(const array& b, const StreamOrDevice& s) {
  const int k = b.shape(-2), n = b.shape(-1), axes = static_cast<int>(b.ndim());
  const bool is_stacked = axes == 2 || (axes == 3 && b.is_available() && b.strides(0) == static_cast<std::int64_t>(n) * k);
  const bool lies_so = b.is_available() && is_stacked && b.strides(axes - 2) == 1 && b.strides(axes - 1) == k;
  return lies_so ? b : contiguous(swapaxes(b, -2, -1, s), false, s);
}

// Multiplies [.., k] by weights, which are the first inputs, with `multiply(inputs, m, from, to)`.
template <class Multiply>
array product(const char* name, const array& x, int n, std::vector<array> inputs, const StreamOrDevice& s, Multiply multiply) {
  const Part rows = part_of(x);
  const Maker maker = is_one_row(x) && rows.of.size() == x.size() ? pending(rows.of, Kind::kOfRows) : nullptr;
  const std::size_t weights = inputs.size(), k = x.shape().back();
  if (maker == nullptr) {
    inputs.push_back(rows.of);
  } else {
    inputs.insert(inputs.end(), rows.of.inputs().begin(), rows.of.inputs().end());
  }
  return operation(name, with_last(x.shape(), n), std::move(inputs), s, [=, shape = rows.of.shape(), place = rows.place](Operands inputs, const Operand& out) {
    const auto multiply_with = [&](const Operand& rows) {
      std::vector<float> copy;
      multiply(inputs, static_cast<int>(rows.size() / k), rows_of(rows, copy), out.data<float>());
    };
    if (maker == nullptr) return multiply_with(place.in(inputs[weights]));
    const Room room(shape);
    maker->evaluate(inputs.subspan(weights), room.operand());
    multiply_with(room.operand());
  }, Kind::kProduct);
}

// Multiplies [.., k] by a [k, n] matrix of halves.
array product_with_halves(const array& a, const array& b, const StreamOrDevice& s) {
  const int k = b.shape(0), n = b.shape(1);
  const bool is_bf16 = b.dtype() == bfloat16;
  return product("Matmul", a, n, {transposed_by_rows(b, s)}, s, [=](Operands inputs, int m, const float* from, float* to) {
    product_of_halves(m, from, {n, k, is_bf16, inputs[0].data<void>()}, to);
  });
}

bool takes_halves(const array& a, const array& b, const StreamOrDevice& s) {
  return is_ours(a, s) && is_half(b) && b.ndim() == 2 && b.size() > 0 && a.shape().back() == b.shape(0);
}

// A packed matrix or a stack of them, `[.., n, words]`.
struct PackedArrays {
  const array &words, &scales;
  const std::optional<array>& biases;
  int bits, group;
  Packing packing;
  Scale scale;

  static std::optional<PackedArrays> of(const array& words, const array& scales, const std::optional<array>& biases, std::optional<int> group,
                                        std::optional<int> bits, const std::string& mode) {
    const auto known = [&](Packing packing, Scale scale, int group_of_mode, int bits_of_mode) {
      return PackedArrays{words, scales, biases, bits.value_or(bits_of_mode), group.value_or(group_of_mode), packing, scale};
    };
    if (mode == "mxfp4" && scales.dtype() == uint8) return known(Packing::kMxfp4, Scale::kExponent, 32, 4);
    if (mode == "mxfp8" && scales.dtype() == uint8) return known(Packing::kMxfp8, Scale::kExponent, 32, 8);
    if (mode == "nvfp4" && scales.dtype() == uint8) return known(Packing::kNvfp4, Scale::kE4m3, 16, 4);
    if (mode != "affine" || !biases || biases->dtype() != scales.dtype()) return std::nullopt;
    if (scales.dtype() == float32) return known(Packing::kAffine, Scale::kF32, 64, 4);
    if (scales.dtype() == float16) return known(Packing::kAffine, Scale::kF16, 64, 4);
    if (scales.dtype() == bfloat16) return known(Packing::kAffine, Scale::kBf16, 64, 4);
    return std::nullopt;
  }

  int k() const { return words.shape().back() * 32 / bits; }
  int n() const { return words.shape(-2); }

  bool fits(int row, int axes) const {
    return packed_product_takes(packing, bits, group, row) && words.dtype() == uint32 && static_cast<int>(words.ndim()) == axes &&
           k() == row && words.size() > 0 && static_cast<std::int64_t>(scales.size()) * group == static_cast<std::int64_t>(words.size()) * 32 / bits &&
           (!biases || biases->size() == scales.size());
  }

  std::vector<array> inputs(const StreamOrDevice& s) const {
    std::vector<array> all{by_rows(words, s), by_rows(scales, s)};
    if (biases) all.push_back(by_rows(*biases, s));
    return all;
  }

  // Returns a function that makes a matrix of the stack from the inputs, which begin at `first`.
  auto matrix(int first) const {
    return [first, n = n(), k = k(), bits = bits, group = group, packing = packing, scale = scale,
            biased = biases.has_value()](Operands inputs, std::ptrdiff_t index) {
      const std::ptrdiff_t numbers = static_cast<std::ptrdiff_t>(n) * k * index, groups = numbers / group;
      const auto at = [&](int input) {
        return static_cast<const void*>(inputs[input].data<char>() + groups * static_cast<std::ptrdiff_t>(inputs[input].itemsize()));
      };
      const std::uint8_t* words = inputs[first].data<std::uint8_t>() + numbers * bits / 8;
      return PackedMatrix{n, k, bits, group, packing, scale, words, at(first + 1), biased ? at(first + 2) : nullptr};
    };
  }
};

// Rows `[.., 1, k]` times one matrix of a stack each: the indices of the row and of the matrix, `[..]`.
struct Chosen {
  array rows, matrices;

  static Chosen of(const array& x, const std::optional<array>& left, const std::optional<array>& right, int stack, const StreamOrDevice& s) {
    const auto counted = [&](Shape shape, int count) { return reshape(arange(0, count, uint32, s), std::move(shape), s); };
    const Shape outer(x.shape().begin(), x.shape().end() - 2);
    const int count = static_cast<int>(x.size()) / x.shape().back();
    const auto both = broadcast_arrays({left ? astype(*left, uint32, s) : counted(outer, count), right ? astype(*right, uint32, s) : counted({stack}, stack)}, s);
    return {contiguous(both[0], false, s), contiguous(both[1], false, s)};
  }
};

// A stack of `count` matrices `[n, k]`, each multiplied by at most `most` rows at a time.
struct Stack {
  int count, n, k;
  std::size_t most;
};

// The maximum number of rows per product. If rows may be sorted by matrix, as in prompts, a row's bits may depend on
// the number of rows with its matrix. Otherwise at most `fixed` rows are multiplied at once, which have fixed bits.
std::size_t rows_at_a_time(bool sorted, int fixed) { return sorted ? std::numeric_limits<std::size_t>::max() : fixed; }

// Calls `multiply(matrix, m, from, to)` for each matrix of the stack, with its rows. For each of the `size` positions
// of the result, `row(place)` is the index of the row of x, and `matrix(place)` the index of the matrix.
template <class Row, class Matrix, class Multiply>
void by_matrix(const Operand& x, std::ptrdiff_t size, const Row& row, const Matrix& matrix, const Stack& stack, float* out, const Multiply& multiply) {
  const auto [count, n, k, most] = stack;
  std::vector<std::vector<std::ptrdiff_t>> places(count);
  for (std::ptrdiff_t place = 0; place < size; ++place) places.at(matrix(place)).push_back(place);
  std::vector<float> from, to, copy;
  for (int index = 0; index < count; ++index) {
    const auto& mine = places[index];
    for (std::size_t begin = 0; begin < mine.size(); begin += most) {
      const std::size_t m = std::min(most, mine.size() - begin);
      from.resize(m * k);
      to.resize(m * n);
      for (std::size_t i = 0; i < m; ++i) std::copy_n(row_of(x, row(mine[begin + i]), copy), k, from.data() + i * k);
      multiply(index, static_cast<int>(m), from.data(), to.data());
      for (std::size_t i = 0; i < m; ++i) std::copy_n(to.data() + i * n, n, out + mine[begin + i] * n);
    }
  }
}

// The index of the first weight input of a product with selected matrices. The rows and the indices come before it.
constexpr int kWeights = 3;

// Multiplies rows `[.., 1, k]` by the selected matrices of the stack. `multiply(inputs, matrix, m, from, to)` finds the
// weights in the inputs from kWeights on.
template <class Multiply>
array product_with_chosen(const char* name, const array& x, const Chosen& chosen, const std::vector<array>& weights, const Stack& stack,
                          const StreamOrDevice& s, Multiply multiply) {
  std::vector<array> inputs{x, chosen.rows, chosen.matrices};
  inputs.insert(inputs.end(), weights.begin(), weights.end());
  Shape shape = chosen.matrices.shape();
  shape.insert(shape.end(), {1, stack.n});
  return operation(name, std::move(shape), std::move(inputs), s, [=](Operands inputs, const Operand& out) {
    const auto chosen_by = [](const Operand& choice) { return [&choice](std::ptrdiff_t place) { return choice.data<std::uint32_t>()[place]; }; };
    by_matrix(inputs[0], static_cast<std::ptrdiff_t>(inputs[2].size()), chosen_by(inputs[1]), chosen_by(inputs[2]), stack, out.data<float>(),
              [&](int index, int m, const float* from, float* to) { multiply(inputs, index, m, from, to); });
  });
}

// Multiplies rows `[.., H, rows, k]` by a stack of H matrices. One row per matrix is a decode step, whose rows have the
// bits of single rows.
array product_with_each(const array& x, const PackedArrays& packed, const StreamOrDevice& s) {
  const int rows = x.shape(-2);
  const Stack stack{packed.words.shape(0), packed.n(), packed.k(), rows_at_a_time(rows > 1, rows_of_fixed_bits(packed.packing, packed.bits))};
  std::vector<array> inputs = packed.inputs(s);
  inputs.push_back(x);
  return operation("QuantizedMatmul", with_last(x.shape(), stack.n), std::move(inputs), s,
                   [=, matrix = packed.matrix(0)](Operands inputs, const Operand& out) {
                     const Operand& x = inputs.back();
                     const auto row = [](std::ptrdiff_t place) { return place; };
                     const auto of = [=](std::ptrdiff_t place) { return place / rows % stack.count; };
                     by_matrix(x, static_cast<std::ptrdiff_t>(x.size()) / stack.k, row, of, stack, out.data<float>(),
                               [&](int index, int m, const float* from, float* to) { packed_product(m, from, matrix(inputs, index), to); });
                   });
}

}  // namespace

array matmul(const array& a, const array& b, StreamOrDevice s) {
  if (takes_halves(a, b, s)) return product_with_halves(a, b, s);
  static const auto others = next(&matmul);
  return others(a, b, s);
}

array addmm(array c, array a, array b, const float& alpha, const float& beta, StreamOrDevice s) {
  if (takes_halves(a, b, s) && c.dtype() == float32 && alpha == 1.0f && beta == 1.0f) return add(product_with_halves(a, b, s), c, s);
  static const auto others = next(&addmm);
  return others(c, a, b, alpha, beta, s);
}

array quantized_matmul(const array& x, const array& w, const array& scales, const std::optional<array>& biases, bool transpose,
                       std::optional<int> group_size, std::optional<int> bits, const std::string& mode, StreamOrDevice s) {
  const auto packed = PackedArrays::of(w, scales, biases, group_size, bits, mode);
  if (is_ours(x, s) && transpose && packed && packed->fits(x.shape().back(), 2)) {
    return product("QuantizedMatmul", x, packed->n(), packed->inputs(s), s,
                   [matrix = packed->matrix(0)](Operands inputs, int m, const float* from, float* to) { packed_product(m, from, matrix(inputs, 0), to); });
  }
  if (is_ours(x, s) && transpose && packed && x.ndim() >= 3 && x.shape(-3) == w.shape(0) && packed->fits(x.shape().back(), 3)) {
    return product_with_each(x, *packed, s);
  }
  static const auto others = next(&quantized_matmul);
  return others(x, w, scales, biases, transpose, group_size, bits, mode, s);
}

array gather_mm(array a, array b, std::optional<array> lhs_indices, std::optional<array> rhs_indices, bool sorted_indices, StreamOrDevice s) {
  if (is_ours(a, s) && is_half(b) && a.ndim() >= 2 && a.shape(-2) == 1 && b.ndim() == 3 && b.size() > 0 && a.shape().back() == b.shape(1)) {
    const Stack stack{b.shape(0), b.shape(2), b.shape(1), rows_at_a_time(sorted_indices, rows_of_fixed_bits())};
    const bool is_bf16 = b.dtype() == bfloat16;
    const Chosen chosen = Chosen::of(a, lhs_indices, rhs_indices, stack.count, s);
    return product_with_chosen("GatherMM", a, chosen, {transposed_by_rows(b, s)}, stack, s,
                               [=](Operands inputs, int index, int m, const float* from, float* to) {
                                 const std::ptrdiff_t begin = static_cast<std::ptrdiff_t>(index) * stack.n * stack.k;
                                 product_of_halves(m, from, {stack.n, stack.k, is_bf16, inputs[kWeights].data<std::uint16_t>() + begin}, to);
                               });
  }
  static const auto others = next(&gather_mm);
  return others(a, b, lhs_indices, rhs_indices, sorted_indices, s);
}

array gather_qmm(const array& x, const array& w, const array& scales, const std::optional<array>& biases, std::optional<array> lhs_indices,
                 std::optional<array> rhs_indices, bool transpose, std::optional<int> group_size, std::optional<int> bits,
                 const std::string& mode, const std::optional<array>& global_scale, bool sorted_indices, StreamOrDevice s) {
  const auto packed = PackedArrays::of(w, scales, biases, group_size, bits, mode);
  if (is_ours(x, s) && transpose && packed && !global_scale && x.ndim() >= 2 && x.shape(-2) == 1 && packed->fits(x.shape().back(), 3)) {
    const std::size_t most = rows_at_a_time(sorted_indices, rows_of_fixed_bits(packed->packing, packed->bits));
    const Stack stack{w.shape(0), packed->n(), packed->k(), most};
    const Chosen chosen = Chosen::of(x, lhs_indices, rhs_indices, stack.count, s);
    return product_with_chosen("GatherQMM", x, chosen, packed->inputs(s), stack, s,
                               [matrix = packed->matrix(kWeights)](Operands inputs, int index, int m, const float* from, float* to) {
                                 packed_product(m, from, matrix(inputs, index), to);
                               });
  }
  static const auto others = next(&gather_qmm);
  return others(x, w, scales, biases, lhs_indices, rhs_indices, transpose, group_size, bits, mode, global_scale, sorted_indices, s);
}

array dequantize(const array& w, const array& scales, const std::optional<array>& biases, std::optional<int> group_size, std::optional<int> bits,
                 const std::string& mode, const std::optional<array>& global_scale, std::optional<Dtype> dtype, StreamOrDevice s) {
  const auto packed = PackedArrays::of(w, scales, biases, group_size, bits, mode);
  if (packed && dtype == float32 && !global_scale && w.ndim() == 2 && to_stream(s).device == Device::cpu && packed->fits(packed->k(), 2)) {
    return operation("Dequantize", with_last(w.shape(), packed->k()), packed->inputs(s), s,
                     [matrix = packed->matrix(0)](Operands inputs, const Operand& out) {
                       unpack(matrix(inputs, 0), out.data<float>());
                     });
  }
  static const auto others = next(&dequantize);
  return others(w, scales, biases, group_size, bits, mode, global_scale, dtype, s);
}

}  // namespace mlx::core
