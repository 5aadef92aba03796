// The exponential and functions based on it, one register at a time. MLX's CPU backend computes numbers one by one, and
// calls the C library for every step of the polynomial. The bits of a row depend only on its numbers and its length.
#include "pointwise.h"

#include <cmath>
#include <cstdint>
#include <limits>

#include "lanes.h"

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// e^x: x = n ln 2 + r with |r| <= ln(2) / 2, and e^r by the polynomial of Moshier's Cephes library. Below -87.3, where
// results would lose digits, it is 0; above 88 it is infinite.
template <class Register>
INLINE Register exponential(const Register& x) {
  constexpr float kLeast = -87.3f, kMost = 88.0f;
  // Adding and subtracting 1.5 * 2^23 rounds to an integer.
  constexpr float kRounder = 12582912.0f, kLog2E = 1.44269504f;
  // ln 2 in two parts. The first has few digits, so that n times it is exact.
  constexpr float kLn2 = 0.693359375f, kLn2Rest = -2.12194440e-4f;
  const Register bounded = x < kLeast ? Register{} + kLeast : (x > kMost ? Register{} + kMost : x);
  const Register n = (bounded * kLog2E + kRounder) - kRounder;
  const Register r = (bounded - n * kLn2) - n * kLn2Rest;
  Register p = r * 1.9875691500e-4f + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.0f;
  typedef decltype(x < x) Whole;
  const Whole exponent = (__builtin_convertvector(n, Whole) + 127) << 23;
  Register power;
  std::memcpy(&power, &exponent, sizeof power);
  const Register result = p * power;
  return x < kLeast ? Register{} : (x > kMost ? Register{} + kInfinity : result);
}

template <class Register>
INLINE Register magnitude(const Register& x) {
  return x < 0.0f ? -x : x;
}

template <class Register>
INLINE Register sigmoid(const Register& x) {
  const Register below = 1.0f / (1.0f + exponential(magnitude(x)));
  return x < 0.0f ? below : 1.0f - below;
}

// Near zero this uses a polynomial of Cephes, since the formula with exponentials would cancel digits there.
template <class Register>
INLINE Register hyperbolic_tangent(const Register& x) {
  const Register size = magnitude(x), square = x * x;
  Register p = square * -5.70498872745e-3f + 2.06390887954e-2f;
  p = p * square - 5.37397155531e-2f;
  p = p * square + 1.33314422036e-1f;
  p = p * square - 3.33332819422e-1f;
  const Register near = p * square * x + x;
  const Register far = 1.0f - 2.0f / (1.0f + exponential(size + size));
  return size < 0.625f ? near : (x < 0.0f ? -far : far);
}

// Calls `each(x, i, filled)` for every sixteen numbers. The last sixteen are padded with `filler`.
template <int W, class Each>
INLINE void by_sixteen(const float* from, std::ptrdiff_t count, float filler, const Each& each) {
  std::ptrdiff_t i = 0;
  Sixteen<W> x;
  for (; i + kLanes <= count; i += kLanes) {
    x.load(from + i, kLanes);
    each(x, i, kLanes);
  }
  if (i == count) return;
  float rest[kLanes];
  for (int lane = 0; lane < kLanes; ++lane) rest[lane] = i + lane < count ? from[i + lane] : filler;
  x.load(rest, kLanes);
  each(x, i, static_cast<int>(count - i));
}

// Applies `function` to every register of x and stores the result to `to`.
template <int W, class Function>
INLINE void write(float* to, const Sixteen<W>& x, int filled, const Function& function) {
  Sixteen<W> y;
  UNROLL for (int part = 0; part < x.kParts; ++part) y.parts[part] = function(x.parts[part]);
  y.store(to, filled);
}

struct Softmax {
  template <int W>
  INLINE static void run(const float* from, float* to, std::ptrdiff_t count) {
    typedef typename Sixteen<W>::Register Register;
    Register most = Register{} - kInfinity;
    by_sixteen<W>(from, count, -kInfinity, [&](const Sixteen<W>& x, std::ptrdiff_t, int) INLINE_LAMBDA {
      UNROLL for (int part = 0; part < x.kParts; ++part) most = x.parts[part] > most ? x.parts[part] : most;
    });
    float top = -kInfinity;
    for (int lane = 0; lane < W; ++lane) top = std::max(top, most[lane]);
    Sixteen<W> sums{};
    by_sixteen<W>(from, count, -kInfinity, [&](const Sixteen<W>& x, std::ptrdiff_t i, int filled) INLINE_LAMBDA {
      Sixteen<W> powers;
      UNROLL for (int part = 0; part < x.kParts; ++part) {
        powers.parts[part] = exponential(x.parts[part] - top);
        sums.parts[part] += powers.parts[part];
      }
      powers.store(to + i, filled);
    });
    const float share = 1.0f / sum_of(sums);
    by_sixteen<W>(to, count, 0.0f, [&](const Sixteen<W>& x, std::ptrdiff_t i, int filled) INLINE_LAMBDA {
      write(to + i, x, filled, [&](const Register& part) INLINE_LAMBDA { return part * share; });
    });
  }
};

struct Silu {
  template <int W>
  INLINE static void run(const float* from, float* to, std::ptrdiff_t count) {
    typedef typename Sixteen<W>::Register Register;
    by_sixteen<W>(from, count, 0.0f, [&](const Sixteen<W>& x, std::ptrdiff_t i, int filled) INLINE_LAMBDA {
      write(to + i, x, filled, [](const Register& part) INLINE_LAMBDA { return part * sigmoid(part); });
    });
  }
};

struct GatedSilu {
  template <int W>
  INLINE static void run(const float* gate, const float* up, float* to, std::ptrdiff_t count) {
    by_sixteen<W>(gate, count, 0.0f, [&](const Sixteen<W>& x, std::ptrdiff_t i, int filled) INLINE_LAMBDA {
      Sixteen<W> y, factor;
      factor.load(up + i, filled);
      UNROLL for (int part = 0; part < x.kParts; ++part) y.parts[part] = x.parts[part] * sigmoid(x.parts[part]) * factor.parts[part];
      y.store(to + i, filled);
    });
  }
};

struct Sigmoid {
  template <int W>
  INLINE static void run(const float* from, float* to, std::ptrdiff_t count) {
    typedef typename Sixteen<W>::Register Register;
    by_sixteen<W>(from, count, 0.0f, [&](const Sixteen<W>& x, std::ptrdiff_t i, int filled) INLINE_LAMBDA {
      write(to + i, x, filled, [](const Register& part) INLINE_LAMBDA { return sigmoid(part); });
    });
  }
};

struct Tanh {
  template <int W>
  INLINE static void run(const float* from, float* to, std::ptrdiff_t count) {
    typedef typename Sixteen<W>::Register Register;
    by_sixteen<W>(from, count, 0.0f, [&](const Sixteen<W>& x, std::ptrdiff_t i, int filled) INLINE_LAMBDA {
      write(to + i, x, filled, [](const Register& part) INLINE_LAMBDA { return hyperbolic_tangent(part); });
    });
  }
};

struct Norm {
  template <int W>
  INLINE static void run(const float* from, float* to, std::ptrdiff_t count, const float* weight, std::ptrdiff_t step, float epsilon) {
    Sixteen<W> squares{};
    by_sixteen<W>(from, count, 0.0f, [&](const Sixteen<W>& x, std::ptrdiff_t, int) INLINE_LAMBDA { squares.add_product(x, x); });
    const float factor = 1.0f / std::sqrt(sum_of(squares) / static_cast<float>(count) + epsilon);
    by_sixteen<W>(from, count, 0.0f, [&](const Sixteen<W>& x, std::ptrdiff_t i, int filled) INLINE_LAMBDA {
      Sixteen<W> weights;
      if (step == 1) {
        weights.load(weight + i, filled);
      } else {
        float strided[kLanes] = {};
        for (int lane = 0; lane < filled; ++lane) strided[lane] = weight[(i + lane) * step];
        weights.load(strided, kLanes);
      }
      UNROLL for (int part = 0; part < x.kParts; ++part) weights.parts[part] = x.parts[part] * factor * weights.parts[part];
      weights.store(to + i, filled);
    });
  }
};

}  // namespace

void softmax_row(const float* from, float* to, std::ptrdiff_t count) { for_this_cpu<Softmax>(from, to, count); }

void silu_row(const float* from, float* to, std::ptrdiff_t count) { for_this_cpu<Silu>(from, to, count); }

void gated_silu_row(const float* gate, const float* up, float* to, std::ptrdiff_t count) { for_this_cpu<GatedSilu>(gate, up, to, count); }

void sigmoid_row(const float* from, float* to, std::ptrdiff_t count) { for_this_cpu<Sigmoid>(from, to, count); }

void tanh_row(const float* from, float* to, std::ptrdiff_t count) { for_this_cpu<Tanh>(from, to, count); }

void norm_row(const float* from, float* to, std::ptrdiff_t count, const float* weight, std::ptrdiff_t step, float epsilon) {
  for_this_cpu<Norm>(from, to, count, weight, step, epsilon);
}
