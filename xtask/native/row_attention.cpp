// MLX's attention for a single row of queries, in f32, as one operation: a decode step's. It has the bits of the operations that it stands for, since
// it calls their kernels, so a row is the same whether it comes alone or in a prompt.
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

// Keys or values [1, H, n, D], wherever their rows lie.
struct Heads {
  const float* data;
  std::ptrdiff_t by_head, by_position;
  std::vector<float> copy;

  // A window of `a` from `start` on.
  Heads(const array& a, const Shape& start, const Shape& shape) : data(number_at(start, a)), by_head(a.strides(1)), by_position(a.strides(2)) {
    if (a.strides(3) == 1) return;
    const int heads = shape[1], positions = shape[2], size = shape[3];
    copy.reserve(static_cast<std::size_t>(heads) * positions * size);
    for (int head = 0; head < heads; ++head)
      for (int position = 0; position < positions; ++position)
        for (int i = 0; i < size; ++i) copy.push_back(data[head * by_head + position * by_position + i * a.strides(3)]);
    data = copy.data(), by_head = static_cast<std::ptrdiff_t>(positions) * size, by_position = size;
  }

  Dense<float> of(int head) const { return {data + head * by_head, by_position}; }
};

struct RowAttention {
  int num_heads, num_kv_heads, seen, size, width;

  int group() const { return num_heads / num_kv_heads; }

  // `query` holds the scaled queries one behind the other. A sink is a score without a value.
  void run(const float* query, const Heads& keys, const Heads& values, const float* sinks, float* out) const {
    // So many positions are worth handing to another thread.
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
    // Below this a second thread does not pay.
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

// Numbers of an axis with gaps, times `scale`, behind the others.
void append(std::vector<float>& numbers, const float* from, int count, std::ptrdiff_t step, float scale) {
  for (int i = 0; i < count; ++i) numbers.push_back(from[i * step] * scale);
}

}  // namespace

array fast::scaled_dot_product_attention(const array& queries, const array& keys, const array& values, const float scale,
                                         const std::string& mask_mode, std::optional<array> mask_arr, const std::optional<array>& sinks,
                                         bool force_fused, StreamOrDevice s) {
  // A single row sees everything that there is.
  const bool is_masked = mask_arr.has_value() || (!mask_mode.empty() && mask_mode != "causal");
  if (is_ours(queries, s) && !is_masked && is_one_row(queries, keys, values, sinks)) {
    const auto run = run_of(queries);
    const Window of_keys = window_of(keys), of_values = window_of(values);
    std::vector<array> inputs{run ? run->of : queries, of_keys.of, of_values.of};
    if (sinks) inputs.push_back(*sinks);
    Shape shape = queries.shape();
    shape.back() = values.shape(3);
    const RowAttention attention{queries.shape(1), keys.shape(1), keys.shape(2), keys.shape(3), values.shape(3)};
    const auto begin = run ? std::optional(run->begin) : std::nullopt;
    const auto evaluation = [attention, scale, begin, keys = keys.shape(), values = values.shape(), first_key = of_keys.start, first_value = of_values.start](Inputs inputs, array& out) {
      const array& queries = inputs[0];
      std::vector<float> scaled, sinks;
      scaled.reserve(static_cast<std::size_t>(attention.num_heads) * attention.size);
      if (begin) {
        append(scaled, queries.data<float>() + *begin, attention.num_heads * attention.size, 1, scale);
      } else {
        for (int head = 0; head < attention.num_heads; ++head)
          append(scaled, queries.data<float>() + head * queries.strides(1), attention.size, queries.strides(3), scale);
      }
      if (inputs.size() > 3) append(sinks, inputs[3].data<float>(), attention.num_heads, inputs[3].strides(0), 1.0f);
      attention.run(scaled.data(), Heads(inputs[1], first_key, keys), Heads(inputs[2], first_value, values), sinks.empty() ? nullptr : sinks.data(), out.data<float>());
    };
    return operation("ScaledDotProductAttention", std::move(shape), std::move(inputs), s, evaluation);
  }
  using Attention = array(const array&, const array&, const array&, float, const std::string&, std::optional<array>, const std::optional<array>&, bool, StreamOrDevice);
  static Attention* const others = next<Attention>(&fast::scaled_dot_product_attention);
  return others(queries, keys, values, scale, mask_mode, std::move(mask_arr), sinks, force_fused, s);
}

}  // namespace mlx::core
