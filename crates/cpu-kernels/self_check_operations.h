// Checks of row functions and of the operations that use them: see self_check.cpp.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <optional>
#include <random>
#include <vector>

#include "mlx/fast.h"
#include "mlx/ops.h"
#include "mlx/primitives.h"
#include "mlx/transforms.h"
#include "pointwise.h"

namespace {

std::mt19937 generator(7);

float draw() { return std::uniform_real_distribution<float>(-1.0f, 1.0f)(generator); }

int below(int limit) { return static_cast<int>(generator() % static_cast<unsigned>(limit)); }

bool is_near(const char* name, double x, float got, double want, double tolerance) {
  if (std::abs(got - want) <= tolerance) return true;
  std::printf("%s of %g is %.9g instead of %.9g\n", name, x, got, want);
  return false;
}

bool norms_are_right() {
  for (int count : {1, 15, 16, 33, 1000}) {
    std::vector<float> x(static_cast<std::size_t>(count)), weight(x.size() * 3), out(x.size());
    double squares = 0;
    for (float& number : x) squares += (number = draw() * 9) * static_cast<double>(number);
    for (float& number : weight) number = draw();
    for (int step : {1, 3, 0}) {
      norm_row(x.data(), out.data(), count, weight.data(), step, 0.5f);
      for (int i = 0; i < count; ++i)
        if (!is_near("norm", x[i], out[i], x[i] / std::sqrt(squares / count + 0.5) * weight[i * step], 2e-6)) return false;
    }
  }
  return true;
}

bool functions_are_right() {
  for (int count : {1, 2, 15, 16, 17, 100, 1000})
    for (float range : {0.01f, 1.0f, 20.0f, 200.0f}) {
      std::vector<float> x(static_cast<std::size_t>(count)), out(x.size());
      double sum = 0;
      for (float& number : x) number = draw() * range;
      const double most = *std::max_element(x.begin(), x.end());
      for (float number : x) sum += std::exp(number - most);
      sigmoid_row(x.data(), out.data(), count);
      for (int i = 0; i < count; ++i)
        if (!is_near("sigmoid", x[i], out[i], 1 / (1 + std::exp(-static_cast<double>(x[i]))), 2e-7)) return false;
      tanh_row(x.data(), out.data(), count);
      for (int i = 0; i < count; ++i)
        if (!is_near("tanh", x[i], out[i], std::tanh(static_cast<double>(x[i])), 3e-7 * std::min(1.0f, std::abs(x[i])))) return false;
      out = x;
      softmax_row(out.data(), out.data(), count);
      for (int i = 0; i < count; ++i) {
        const double want = std::exp(x[i] - most) / sum;
        if (!is_near("softmax", x[i], out[i], want, 2e-7 * (4 + most - x[i]) * want + 1e-37)) return false;
      }
    }
  return norms_are_right();
}

// Returns random numbers in this shape, optionally as a view with gaps in the last axis.
mlx::core::array drawn(const mlx::core::Shape& shape, bool has_gaps) {
  using namespace mlx::core;
  Shape wide = shape;
  if (has_gaps) wide.back() *= 2;
  std::size_t count = 1;
  for (auto length : wide) count *= length;
  std::vector<float> numbers(count);
  for (float& number : numbers) number = draw();
  Shape start(shape.size(), 0), steps(shape.size(), 1);
  if (has_gaps) steps.back() = 2;
  return slice(array(numbers.data(), wide, float32), start, wide, steps);
}

std::vector<float> numbers_of(const mlx::core::array& a) {
  mlx::core::array whole = mlx::core::contiguous(a);
  mlx::core::eval(whole);
  return {whole.data<float>(), whole.data<float>() + whole.size()};
}

bool rotation_case(int rows, int heads, int size, int dims, bool traditional, bool has_frequencies, bool has_gaps) {
  using namespace mlx::core;
  const array x = drawn({rows, heads, 1, size}, has_gaps);
  std::vector<std::int32_t> positions(rows);
  for (auto& position : positions) position = below(5000) - 100;
  std::vector<float> periods(dims / 2);
  for (float& period : periods) period = 1.0f + 3.0f * std::abs(draw());
  const auto given = has_frequencies ? std::optional(array(periods.data(), {dims / 2}, float32)) : std::nullopt;
  const auto base = has_frequencies ? std::nullopt : std::optional(10000.0f);
  const auto got = numbers_of(fast::rope(x, dims, traditional, base, 0.5f, array(positions.data(), {rows}, int32), given));
  const auto from = numbers_of(x);
  for (int row = 0; row < rows; ++row)
    for (int head = 0; head < heads; ++head)
      for (int pair = 0; pair < dims / 2; ++pair) {
        const std::size_t begin = (static_cast<std::size_t>(row) * heads + head) * size;
        const std::size_t one = begin + (traditional ? 2 * pair : pair), other = begin + (traditional ? 2 * pair + 1 : pair + dims / 2);
        // Angles are rounded to f32, like MLX's.
        const float frequency = has_frequencies ? 1.0f / periods[pair] : std::exp(static_cast<float>(-pair) * (std::log(10000.0f) / static_cast<float>(dims / 2)));
        const double angle = static_cast<float>(positions[row]) * 0.5f * frequency;
        if (!is_near("rope", angle, got[one], from[one] * std::cos(angle) - from[other] * std::sin(angle), 1e-6) ||
            !is_near("rope", angle, got[other], from[one] * std::sin(angle) + from[other] * std::cos(angle), 1e-6))
          return false;
        for (int rest = dims; rest < size; ++rest)
          if (got[begin + rest] != from[begin + rest]) return is_near("rope behind its dims", 0, got[begin + rest], from[begin + rest], 0);
      }
  return true;
}

bool rotations_are_right() {
  for (bool traditional : {false, true})
    for (bool has_frequencies : {false, true})
      for (bool has_gaps : {false, true})
        for (int dims : {2, 24, 64})
          for (int rows : {1, 3, 300})
            if (!rotation_case(rows, 3, 64, dims, traditional, has_frequencies, has_gaps)) return false;
  return true;
}

bool attention_case(int heads, int kv_heads, int seen, int size, int width, bool has_sinks, bool has_gaps) {
  using namespace mlx::core;
  const array q = drawn({1, heads, 1, size}, has_gaps), k = drawn({1, kv_heads, seen, size}, has_gaps), v = drawn({1, kv_heads, seen, width}, has_gaps);
  const auto sinks = has_sinks ? std::optional(drawn({heads}, false)) : std::nullopt;
  const auto got = numbers_of(fast::scaled_dot_product_attention(q, k, v, 0.7f, "", {}, sinks)), queries = numbers_of(q), keys = numbers_of(k), values = numbers_of(v);
  const std::vector<float> of_sinks = has_sinks ? numbers_of(*sinks) : std::vector<float>{};
  for (int head = 0; head < heads; ++head) {
    const int kv_head = head / (heads / kv_heads);
    std::vector<double> powers(seen), sums(width);
    double total = has_sinks ? std::exp(static_cast<double>(of_sinks[head])) : 0.0;
    for (int position = 0; position < seen; ++position) {
      const std::size_t row = static_cast<std::size_t>(kv_head) * seen + position;
      double score = 0;
      for (int i = 0; i < size; ++i) score += 0.7 * queries[static_cast<std::size_t>(head) * size + i] * keys[row * size + i];
      total += powers[position] = std::exp(score);
      for (int i = 0; i < width; ++i) sums[i] += powers[position] * values[row * width + i];
    }
    for (int i = 0; i < width; ++i)
      if (!is_near("attention", seen, got[static_cast<std::size_t>(head) * width + i], sums[i] / total, 4e-6)) return false;
  }
  return true;
}

bool attention_is_right() {
  for (int seen : {1, 7, 511, 513, 1500})
    for (bool has_sinks : {false, true})
      for (bool has_gaps : {false, true})
        if (!attention_case(6, 2, seen, 64, 64, has_sinks, has_gaps) || !attention_case(5, 5, seen, 24, 40, has_sinks, has_gaps)) return false;
  return true;
}

// Checks x * sigmoid(x), alone and times another factor, as models write it.
bool gates_are_right() {
  using namespace mlx::core;
  for (bool has_gaps : {false, true})
    for (int rows : {1, 5, 200}) {
      const array gate = drawn({rows, 70}, has_gaps), up = drawn({rows, 70}, has_gaps), silu = multiply(gate, sigmoid(gate)), both = multiply(silu, up);
      if (std::strcmp(both.primitive().name(), "GatedSilu") != 0) {
        std::printf("a gate is %s, not one operation\n", both.primitive().name());
        return false;
      }
      const auto x = numbers_of(gate), factors = numbers_of(up), product = numbers_of(both), alone = numbers_of(silu);
      for (std::size_t i = 0; i < x.size(); ++i) {
        const double want = x[i] / (1 + std::exp(-static_cast<double>(x[i])));
        if (!is_near("silu", x[i], alone[i], want, 2e-7) || !is_near("gated silu", x[i], product[i], want * factors[i], 4e-7)) return false;
      }
    }
  return true;
}

// Checks that a norm without a weight is one operation.
bool bare_norms_are_right() {
  using namespace mlx::core;
  for (bool has_gaps : {false, true})
    for (int rows : {1, 5}) {
      const array x = drawn({rows, 70}, has_gaps), norm = fast::rms_norm(x, std::nullopt, 0.5f);
      if (norm.inputs().size() != 1 || norm.inputs()[0].id() != x.id()) {
        std::printf("a norm without a weight is several operations\n");
        return false;
      }
      const auto from = numbers_of(x), got = numbers_of(norm);
      for (std::size_t row = 0; row < from.size(); row += 70) {
        double squares = 0;
        for (std::size_t i = row; i < row + 70; ++i) squares += static_cast<double>(from[i]) * from[i];
        for (std::size_t i = row; i < row + 70; ++i)
          if (!is_near("bare norm", from[i], got[i], from[i] / std::sqrt(squares / 70 + 0.5), 2e-6)) return false;
      }
    }
  return true;
}

// Checks a product of a single row, fused with the operation that makes the row and the addition to the product. It
// must have the bits of the separate operations, and of a product of several rows. `multiply_with` multiplies a row by
// `weights` weight arrays and returns 70 numbers.
template <class Multiply>
bool steps_with_are_right(std::size_t weights, const Multiply& multiply_with) {
  using namespace mlx::core;
  const array scale = drawn({128}, false);
  const auto apart = [](array a) {
    eval(a);
    return a;
  };
  const auto whole = [](const array& a) { return a; };
  for (bool has_gaps : {false, true}) {
    const array x = drawn({3, 128}, has_gaps), both = drawn({3, 256}, has_gaps), stream = drawn({3, 70}, has_gaps);
    std::vector<float> of_one_row;
    for (int rows : {1, 3}) {
      const auto first = [&](const array& a) { return slice(a, {0, 0}, {rows, a.shape(1)}); };
      const auto normed = [&](const auto& made) { return made(add(first(stream), made(multiply_with(made(fast::rms_norm(first(x), scale, 0.5f)))))); };
      const auto gated = [&](const auto& made) {
        const auto parts = split(first(both), 2, -1);
        return made(add(made(multiply_with(made(multiply(made(multiply(parts[0], made(sigmoid(parts[0])))), parts[1])))), first(stream)));
      };
      const auto reshaped = [&](const auto& made) {
        const array heads = made(fast::rope(reshape(first(x), {rows, 2, 1, 64}), 64, false, 10000.0f, 1.0f, array(7), std::nullopt));
        return made(add(first(stream), made(multiply_with(made(reshape(heads, {rows, 128}))))));
      };
      // The inputs are the weights, the residual stream, and what the row is computed from.
      const array of_norm = normed(whole), of_gate = gated(whole), of_heads = reshaped(whole);
      if (rows == 1 && (of_norm.inputs().size() != weights + 3 || of_gate.inputs().size() != weights + 2 || of_heads.inputs().size() != weights + 2)) {
        std::printf("a step of a row is several operations\n");
        return false;
      }
      if (numbers_of(of_norm) != numbers_of(normed(apart)) || numbers_of(of_gate) != numbers_of(gated(apart)) ||
          numbers_of(of_heads) != numbers_of(reshaped(apart))) {
        std::printf("a step of %d rows has other bits than its operations\n", rows);
        return false;
      }
      const auto alone = numbers_of(slice(of_norm, {0, 0}, {1, 70}));
      if (rows == 1) of_one_row = alone;
      if (alone != of_one_row) {
        std::printf("a step of a row has other bits than one of %d rows\n", rows);
        return false;
      }
    }
  }
  return true;
}

bool steps_are_right() {
  using namespace mlx::core;
  const array numbers = drawn({70, 128}, false);
  const auto packed = quantize(numbers, 64, 4);
  array halves = astype(numbers, bfloat16);
  eval(halves);
  array transposed = swapaxes(halves, 0, 1);
  eval(transposed);
  return steps_with_are_right(packed.size(), [&](const array& x) { return quantized_matmul(x, packed[0], packed[1], packed[2], true, 64, 4); }) &&
         steps_with_are_right(1, [&](const array& x) { return matmul(x, transposed); });
}

// Masked scores have weight 0, and NaN spreads to the whole row.
bool edges_are_right() {
  const float infinity = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  float hidden[] = {-infinity, 1.0f, -infinity, 1.0f}, none[] = {-infinity, -infinity}, broken[] = {0.0f, nan, 1.0f};
  softmax_row(hidden, hidden, 4);
  softmax_row(none, none, 2);
  softmax_row(broken, broken, 3);
  float ends[] = {-infinity, infinity, nan}, bent[] = {-infinity, infinity, nan};
  sigmoid_row(ends, ends, 3);
  tanh_row(bent, bent, 3);
  const bool right = hidden[0] == 0.0f && hidden[1] == 0.5f && hidden[3] == 0.5f && std::isnan(none[0]) && std::isnan(none[1]) &&
                     std::isnan(broken[0]) && std::isnan(broken[2]) && ends[0] == 0.0f && ends[1] == 1.0f && std::isnan(ends[2]) &&
                     bent[0] == -1.0f && bent[1] == 1.0f && std::isnan(bent[2]);
  if (!right) std::printf("infinities or NaN come out wrong\n");
  return right;
}

}  // namespace
