// MLX's rotary embedding of rows with a position each, in f32, as one operation. MLX's CPU backend takes about fifteen.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <optional>
#include <vector>

#include "lanes.h"
#include "mlx/fast.h"
#include "moves.h"
#include "operations.h"
#include "workers.h"

namespace mlx::core {

namespace {

// The inputs of the angles, and the cosines and sines of all pairs of all rows.
struct Angles {
  std::vector<std::int32_t> positions;
  std::vector<float> frequencies;
  float scale = 0;
  std::vector<float> cosines, sines;

  bool are_of(const std::vector<std::int32_t>& at, const std::vector<float>& with, float scaled) const {
    // Compared as bits, so that NaN equals itself.
    return positions == at && scale == scaled && frequencies.size() == with.size() &&
           std::memcmp(frequencies.data(), with.data(), with.size() * sizeof(float)) == 0;
  }

  void compute() {
    const std::size_t pairs = frequencies.size();
    cosines.resize(positions.size() * pairs);
    sines.resize(positions.size() * pairs);
    for (std::size_t row = 0; row < positions.size(); ++row)
      for (std::size_t pair = 0; pair < pairs; ++pair) {
        const float angle = static_cast<float>(positions[row]) * scale * frequencies[pair];
        cosines[row * pairs + pair] = std::cos(angle);
        sines[row * pairs + pair] = std::sin(angle);
      }
  }
};

// Returns cached angles. The layers of a pass request the same angles one after the other, and some models have two
// kinds of layers.
const Angles& angles_of(std::vector<std::int32_t> positions, std::vector<float> frequencies, float scale) {
  thread_local Angles kept[2];
  thread_local int oldest = 0;
  for (const Angles& angles : kept)
    if (angles.are_of(positions, frequencies, scale)) return angles;
  Angles& angles = kept[oldest];
  oldest = 1 - oldest;
  angles.positions = std::move(positions);
  angles.frequencies = std::move(frequencies);
  angles.scale = scale;
  angles.compute();
  return angles;
}

// Rotates the first `2 * pairs` numbers of a head with `size` numbers.
struct Rotate {
  template <int W>
  INLINE static void run(const float* from, float* to, int pairs, int size, bool traditional, const float* cosines, const float* sines) {
    if (traditional) {
      for (int i = 0; i < pairs; ++i) {
        const float one = from[2 * i], other = from[2 * i + 1];
        to[2 * i] = one * cosines[i] - other * sines[i];
        to[2 * i + 1] = one * sines[i] + other * cosines[i];
      }
    } else {
      for (int i = 0; i < pairs; i += kLanes) {
        const int count = std::min(kLanes, pairs - i);
        Sixteen<W> one, other, cosine, sine, first, second;
        one.load(from + i, count), other.load(from + pairs + i, count);
        cosine.load(cosines + i, count), sine.load(sines + i, count);
        UNROLL for (int part = 0; part < one.kParts; ++part) {
          first.parts[part] = one.parts[part] * cosine.parts[part] - other.parts[part] * sine.parts[part];
          second.parts[part] = one.parts[part] * sine.parts[part] + other.parts[part] * cosine.parts[part];
        }
        first.store(to + i, count), second.store(to + pairs + i, count);
      }
    }
    std::copy(from + 2 * pairs, from + size, to + 2 * pairs);
  }
};

// Returns the frequency of each pair: e^(-i ln(base) / pairs), or the inverse of the checkpoint's own values.
std::vector<float> frequencies_of(int pairs, float base, const Operand* given) {
  std::vector<float> frequencies(pairs);
  const float step = std::log(base) / static_cast<float>(pairs);
  for (int i = 0; i < pairs; ++i)
    frequencies[i] = given ? 1.0f / given->data<float>()[i * given->stride(0)] : std::exp(static_cast<float>(-i) * step);
  return frequencies;
}

// Rotates each row of heads [B, H, 1, D], with any strides, to its position.
void rotate(const Operand& heads, const Angles& angles, bool traditional, float* out) {
  const int rows = heads.shape(0), count = heads.shape(1), size = heads.shape(3), pairs = static_cast<int>(angles.frequencies.size());
  // A block should take at least some microseconds to be worth another thread.
  constexpr std::ptrdiff_t kWorthSharing = 8192;
  const std::ptrdiff_t blocks = std::clamp<std::ptrdiff_t>(static_cast<std::ptrdiff_t>(heads.size()) / kWorthSharing, 1, std::min(rows, 64));
  in_parallel(static_cast<int>(blocks), [&](int block) {
    std::vector<float> copy;
    for (std::ptrdiff_t row = rows * block / blocks; row < rows * (block + 1) / blocks; ++row)
      for (int head = 0; head < count; ++head) {
        const float* const from = row_of(heads, row * count + head, copy);
        for_this_cpu<Rotate>(from, out + (row * count + head) * size, pairs, size, traditional, &angles.cosines[row * pairs], &angles.sines[row * pairs]);
      }
  });
}

std::vector<std::int32_t> positions_of(const Operand& offset, int rows) {
  std::vector<std::int32_t> positions(rows);
  for (int row = 0; row < rows; ++row) positions[row] = offset.data<std::int32_t>()[offset.size() == 1 ? 0 : row * offset.stride(0)];
  return positions;
}

}  // namespace

array fast::rope(const array& x, int dims, bool traditional, std::optional<float> base, float scale, const array& offset,
                 const std::optional<array>& freqs, StreamOrDevice s) {
  const bool has_angles = freqs ? !base && freqs->dtype() == float32 && freqs->ndim() == 1 && freqs->shape(0) == dims / 2 : base.has_value();
  const bool has_positions = offset.dtype() == int32 && (offset.size() == 1 || (offset.ndim() == 1 && x.ndim() > 0 && offset.shape(0) == x.shape(0)));
  if (is_ours(x, s) && x.ndim() == 4 && x.shape(2) == 1 && dims > 0 && dims % 2 == 0 && dims <= x.shape(3) && has_angles && has_positions) {
    const Part heads = part_of(x);
    std::vector<array> inputs{heads.of, offset};
    if (freqs) inputs.push_back(*freqs);
    const auto evaluation = [=, place = heads.place, base = base.value_or(1.0f)](Operands inputs, const Operand& out) {
      const Operand heads = place.in(inputs[0]);
      const Operand* const given = inputs.size() > 2 ? &inputs[2] : nullptr;
      const Angles& angles = angles_of(positions_of(inputs[1], heads.shape(0)), frequencies_of(dims / 2, base, given), scale);
      rotate(heads, angles, traditional, out.data<float>());
    };
    return operation("RoPE", x.shape(), std::move(inputs), s, evaluation);
  }
  using Rope = array(const array&, int, bool, std::optional<float>, float, const array&, const std::optional<array>&, StreamOrDevice);
  static Rope* const others = next<Rope>(&fast::rope);
  return others(x, dims, traditional, base, scale, offset, freqs, s);
}

}  // namespace mlx::core
