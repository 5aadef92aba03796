// MLX's attention for a single row of queries, in f32, as one operation, as in a decode step. It calls the kernels of
// the operations that it replaces and has their bits, so a row has the same result in a decode step and in a prompt.
#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "by_columns.h"
#include "mlx/fast.h"
#include "moves.h"
#include "operations.h"
#include "pointwise.h"

namespace mlx::core {

namespace {

// Keys or values [1, H, n, D], with any strides between rows.
struct Heads {
  const float* data;
  std::ptrdiff_t by_head, by_position;
  std::vector<float> copy;

  explicit Heads(const Operand& a) : data(a.data<float>()), by_head(a.stride(1)), by_position(a.stride(2)) {
    if (a.stride(3) == 1) return;
    data = rows_of(a, copy), by_position = a.shape(3), by_head = a.shape(2) * by_position;
  }

  Dense<float> of(int head) const { return {data + head * by_head, by_position}; }
};

struct RowAttention {
  int num_heads, num_kv_heads, seen, size, width;

  RowAttention(const Operand& queries, const Operand& keys, const Operand& values)
      : num_heads(queries.shape(1)), num_kv_heads(keys.shape(1)), seen(keys.shape(2)), size(keys.shape(3)), width(values.shape(3)) {}

  int group() const { return num_heads / num_kv_heads; }

  // `query` holds the scaled queries, contiguous. A sink is a score without a value.
  void run(const float* query, const Heads& keys, const Heads& values, const float* sinks, float* out) const {
    // The number of positions per block for another thread.
    constexpr int kPositions = 512;
    const int rows = group(), blocks = (seen + kPositions - 1) / kPositions, stride = seen + (sinks == nullptr ? 0 : 1);
    std::vector<float> scores(static_cast<std::size_t>(num_heads) * stride);
    const auto of_head = [&](int head) { return scores.data() + static_cast<std::ptrdiff_t>(head) * rows * stride; };
    on_cores(num_kv_heads * blocks, [&](int block) {
      const int head = block / blocks, begin = block % blocks * kPositions;
      const Product p{rows, seen, size, 1.0f, 0.0f, query + static_cast<std::ptrdiff_t>(head) * rows * size, size, of_head(head), stride};
      for_this_cpu<Columns<Dense<float>>>(p, keys.of(head), begin, std::min(seen, begin + kPositions));
    });
    on_cores(num_kv_heads, [&](int head) {
      for (int row = 0; row < rows; ++row) {
        float* const of_row = of_head(head) + static_cast<std::ptrdiff_t>(row) * stride;
        if (sinks != nullptr) of_row[seen] = sinks[head * rows + row];
        softmax_row(of_row, of_row, stride);
      }
      const Product p{rows, width, seen, 1.0f, 0.0f, of_head(head), stride, out + static_cast<std::ptrdiff_t>(head) * rows * width, width};
      for_this_cpu<ByColumns>(p, values.of(head), 0, width);
    });
  }

  template <class Block>
  void on_cores(int blocks, const Block& block) const {
    // With less work, a second thread does not pay off.
    constexpr std::ptrdiff_t kWorthSharing = 16384;
    if (static_cast<std::ptrdiff_t>(num_kv_heads) * seen * size < kWorthSharing) {
      for (int i = 0; i < blocks; ++i) block(i);
    } else {
      in_parallel(blocks, block);
    }
  }
};

bool is_one_row(const array& queries, const array& keys, const array& values, const std::optional<array>& sinks) {
  const auto is_right = [&](const array& a) { return a.dtype() == float32 && a.ndim() == 4 && a.shape(0) == 1 && a.size() > 0; };
  return is_right(queries) && is_right(keys) && is_right(values) && queries.shape(2) == 1 && queries.shape(1) % keys.shape(1) == 0 &&
         keys.shape(3) == queries.shape(3) && values.shape(1) == keys.shape(1) && values.shape(2) == keys.shape(2) &&
         (!sinks || (sinks->dtype() == float32 && sinks->ndim() == 1 && sinks->shape(0) == queries.shape(1)));
}

// Returns queries [1, H, 1, D], contiguous, times `scale`.
std::vector<float> scaled(const Operand& queries, float scale) {
  std::vector<float> all, copy;
  all.reserve(queries.size());
  for (int head = 0; head < queries.shape(1); ++head) {
    const float* const from = row_of(queries, head, copy);
    for (int i = 0; i < queries.shape(3); ++i) all.push_back(from[i] * scale);
  }
  return all;
}

struct Places {
  Place queries, keys, values;
};

// The inputs are the arrays that contain queries, keys and values, and optionally sinks [H].
void attend(Operands inputs, const Places& places, float scale, float* out) {
  const Operand queries = places.queries.in(inputs[0]), keys = places.keys.in(inputs[1]), values = places.values.in(inputs[2]);
  std::vector<float> copy;
  const float* const sinks = inputs.size() > 3 ? rows_of(inputs[3], copy) : nullptr;
  RowAttention(queries, keys, values).run(scaled(queries, scale).data(), Heads(keys), Heads(values), sinks, out);
}

}  // namespace

array fast::scaled_dot_product_attention(const array& queries, const array& keys, const array& values, const float scale,
                                         const std::string& mask_mode, std::optional<array> mask_arr, const std::optional<array>& sinks,
                                         bool force_fused, StreamOrDevice s) {
  // A single row attends to all positions, so a causal mask has no effect.
  const bool is_masked = mask_arr.has_value() || (!mask_mode.empty() && mask_mode != "causal");
  if (is_ours(queries, s) && !is_masked && is_one_row(queries, keys, values, sinks)) {
    const Part of_queries = part_of(queries), of_keys = part_of(keys), of_values = part_of(values);
    std::vector<array> inputs{of_queries.of, of_keys.of, of_values.of};
    if (sinks) inputs.push_back(*sinks);
    Shape shape = queries.shape();
    shape.back() = values.shape(3);
    const auto evaluation = [scale, places = Places{of_queries.place, of_keys.place, of_values.place}](Operands inputs, const Operand& out) {
      attend(inputs, places, scale, out.data<float>());
    };
    return operation("ScaledDotProductAttention", std::move(shape), std::move(inputs), s, evaluation);
  }
  using Attention = array(const array&, const array&, const array&, float, const std::string&, std::optional<array>, const std::optional<array>&, bool, StreamOrDevice);
  static Attention* const others = next<Attention>(&fast::scaled_dot_product_attention);
  return others(queries, keys, values, scale, mask_mode, std::move(mask_arr), sinks, force_fused, s);
}

}  // namespace mlx::core
