// The exponential and what is made of it, sixteen numbers at a time. MLX's CPU backend computes them one by one, with a call of the
// C library for every step of the polynomial. The bits of a row depend on its numbers and its length alone.
#include "pointwise.h"

#include <cmath>
#include <cstdint>
#include <limits>

#include "lanes.h"

namespace {

typedef std::int32_t Whole __attribute__((vector_size(4 * kLanes)));

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// e^x: x = n ln 2 + r with |r| <= ln(2) / 2, and e^r by the polynomial of Moshier's Cephes library.
// Below -87.3, where results would lose digits, it is 0, above 88 infinite.
INLINE Lanes exponential(const Lanes& x) {
  constexpr float kLeast = -87.3f, kMost = 88.0f;
  // Adding and taking away 1.5 * 2^23 rounds to whole numbers.
  constexpr float kRounder = 12582912.0f, kLog2E = 1.44269504f;
  // ln 2 in two parts, of which the first has few digits, so that n times it is exact.
  constexpr float kLn2 = 0.693359375f, kLn2Rest = -2.12194440e-4f;
  const Lanes bounded = x < kLeast ? Lanes{} + kLeast : (x > kMost ? Lanes{} + kMost : x);
  const Lanes n = (bounded * kLog2E + kRounder) - kRounder;
  const Lanes r = (bounded - n * kLn2) - n * kLn2Rest;
  Lanes p = r * 1.9875691500e-4f + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.0f;
  const Whole exponent = (__builtin_convertvector(n, Whole) + 127) << 23;
  Lanes power;
  std::memcpy(&power, &exponent, sizeof power);
  const Lanes result = p * power;
  return x < kLeast ? Lanes{} : (x > kMost ? Lanes{} + kInfinity : result);
}

INLINE Lanes magnitude(const Lanes& x) { return x < 0.0f ? -x : x; }

INLINE Lanes sigmoid(const Lanes& x) {
  const Lanes below = 1.0f / (1.0f + exponential(magnitude(x)));
  return x < 0.0f ? below : 1.0f - below;
}

// Near zero by a polynomial of Cephes, since the difference of the other way would lose digits there.
INLINE Lanes hyperbolic_tangent(const Lanes& x) {
  const Lanes size = magnitude(x), square = x * x;
  Lanes p = square * -5.70498872745e-3f + 2.06390887954e-2f;
  p = p * square - 5.37397155531e-2f;
  p = p * square + 1.33314422036e-1f;
  p = p * square - 3.33332819422e-1f;
  const Lanes near = p * square * x + x;
  const Lanes far = 1.0f - 2.0f / (1.0f + exponential(size + size));
  return size < 0.625f ? near : (x < 0.0f ? -far : far);
}

// `each` of every sixteen numbers; where fewer are left, the others are `filler`.
template <class Each>
INLINE void by_lanes(const float* from, std::ptrdiff_t count, float filler, const Each& each) {
  std::ptrdiff_t i = 0;
  Lanes x;
  for (; i + kLanes <= count; i += kLanes) {
    std::memcpy(&x, from + i, sizeof x);
    each(x, i, kLanes);
  }
  if (i == count) return;
  x = Lanes{} + filler;
  std::memcpy(&x, from + i, static_cast<std::size_t>(count - i) * sizeof(float));
  each(x, i, static_cast<int>(count - i));
}

INLINE void store(float* to, const Lanes& x, int count) { std::memcpy(to, &x, static_cast<std::size_t>(count) * sizeof(float)); }

}  // namespace

FOR_EVERY_CPU void softmax_row(const float* from, float* to, std::ptrdiff_t count) {
  Lanes most = Lanes{} - kInfinity;
  by_lanes(from, count, -kInfinity, [&](const Lanes& x, std::ptrdiff_t, int) INLINE_LAMBDA { most = x > most ? x : most; });
  float top = -kInfinity;
  for (int lane = 0; lane < kLanes; ++lane) top = std::max(top, most[lane]);
  Lanes sums{};
  by_lanes(from, count, -kInfinity, [&](const Lanes& x, std::ptrdiff_t i, int filled) INLINE_LAMBDA {
    const Lanes power = exponential(x - top);
    sums += power;
    store(to + i, power, filled);
  });
  const float share = 1.0f / sum_of(sums);
  by_lanes(to, count, 0.0f, [&](const Lanes& x, std::ptrdiff_t i, int filled) INLINE_LAMBDA { store(to + i, x * share, filled); });
}

FOR_EVERY_CPU void sigmoid_row(const float* from, float* to, std::ptrdiff_t count) {
  by_lanes(from, count, 0.0f, [&](const Lanes& x, std::ptrdiff_t i, int filled) INLINE_LAMBDA { store(to + i, sigmoid(x), filled); });
}

FOR_EVERY_CPU void tanh_row(const float* from, float* to, std::ptrdiff_t count) {
  by_lanes(from, count, 0.0f,
           [&](const Lanes& x, std::ptrdiff_t i, int filled) INLINE_LAMBDA { store(to + i, hyperbolic_tangent(x), filled); });
}

FOR_EVERY_CPU void norm_row(const float* from, float* to, std::ptrdiff_t count, const float* weight, std::ptrdiff_t step, float epsilon) {
  Lanes squares{};
  by_lanes(from, count, 0.0f, [&](const Lanes& x, std::ptrdiff_t, int) INLINE_LAMBDA { squares += x * x; });
  const float factor = 1.0f / std::sqrt(sum_of(squares) / static_cast<float>(count) + epsilon);
  by_lanes(from, count, 0.0f, [&](const Lanes& x, std::ptrdiff_t i, int filled) INLINE_LAMBDA {
    Lanes weights{};
    if (step == 1) {
      load(weights, weight + i, filled);
    } else {
      for (int lane = 0; lane < filled; ++lane) weights[lane] = weight[(i + lane) * step];
    }
    store(to + i, x * factor * weights, filled);
  });
}
