// Self-check, run once after linking: MLX and mlx-c must resolve to our product and operations, and these must be
// correct.
#include <dlfcn.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <limits>
#include <random>
#include <vector>

#include "blas.h"
#include "block_float.h"
#include "mlx/fast.h"
#include "mlx/ops.h"
#include "mlx/transforms.h"
#include "products.h"
#include "self_check_moves.h"
#include "self_check_operations.h"
#include "weights.h"

namespace {

struct Matrix {
  int rows, columns, leading;
  bool by_row;
  std::vector<float> data;

  // The padding between rows is NaN, so that reading it is detected.
  Matrix(int rows, int columns, bool by_row) : rows(rows), columns(columns), by_row(by_row) {
    const int inner = by_row ? columns : rows, outer = by_row ? rows : columns;
    leading = std::max(1, inner) + below(3);
    data.assign(static_cast<std::size_t>(leading) * std::max(1, outer), std::numeric_limits<float>::quiet_NaN());
    for (int i = 0; i < rows; ++i)
      for (int j = 0; j < columns; ++j) at(i, j) = draw();
  }

  float& at(int i, int j) {
    const auto index = by_row ? static_cast<std::size_t>(i) * leading + j : static_cast<std::size_t>(j) * leading + i;
    return data[index];
  }
};

bool one_case(int order, int trans_a, int trans_b, int m, int n, int k, float alpha, float beta) {
  const bool by_row = order == kRowMajor;
  Matrix a = trans_a == kNoTrans ? Matrix(m, k, by_row) : Matrix(k, m, by_row);
  Matrix b = trans_b == kNoTrans ? Matrix(k, n, by_row) : Matrix(n, k, by_row);
  Matrix c(m, n, by_row);
  std::vector<double> want;
  for (int i = 0; i < m; ++i)
    for (int j = 0; j < n; ++j) {
      double sum = 0;
      for (int p = 0; p < k; ++p) {
        const double left = trans_a == kNoTrans ? a.at(i, p) : a.at(p, i);
        sum += left * (trans_b == kNoTrans ? b.at(p, j) : b.at(j, p));
      }
      want.push_back(alpha * sum + (beta == 0.0f ? 0.0 : beta * c.at(i, j)));
    }
  // With beta = 0, the old content of c must not matter.
  if (beta == 0.0f)
    for (int i = 0; i < m; ++i)
      for (int j = 0; j < n; ++j) c.at(i, j) = std::numeric_limits<float>::quiet_NaN();
  cblas_sgemm(order, trans_a, trans_b, m, n, k, alpha, a.data.data(), a.leading, b.data.data(), b.leading, beta,
              c.data.data(), c.leading);
  for (int i = 0; i < m; ++i)
    for (int j = 0; j < n; ++j) {
      const double difference = std::abs(c.at(i, j) - want[static_cast<std::size_t>(i) * n + j]);
      if (!(difference <= 1e-5 * (k + 2))) {
        std::printf("order %d, transposes %d %d, m %d, n %d, k %d, alpha %g, beta %g: %g at [%d, %d] instead of %g\n", order,
                    trans_a, trans_b, m, n, k, alpha, beta, c.at(i, j), i, j, want[static_cast<std::size_t>(i) * n + j]);
        return false;
      }
    }
  return true;
}

bool products_are_right() {
  const int sizes[] = {1, 2, 3, 8, 17, 64, 131};
  const float factors[] = {0.0f, 1.0f, -0.5f};
  for (int round = 0; round < 40; ++round)
    for (int order : {kRowMajor, kColumnMajor})
      for (int trans_a : {kNoTrans, kTrans})
        for (int trans_b : {kNoTrans, kTrans}) {
          const int pick = below(3);
          const int m = pick == 0 ? 1 : sizes[below(7)], n = pick == 1 ? 1 : sizes[below(7)];
          const int k = below(12) == 0 ? 0 : sizes[below(7)];
          if (!one_case(order, trans_a, trans_b, m, n, k, factors[below(3)], factors[below(3)])) return false;
        }
  // Large enough for several threads: the shapes of a model's layer, with one token and a few.
  for (int trans_b : {kNoTrans, kTrans})
    for (int m : {1, 2, 3, 8, 31, 32, 33, 70})
      if (!one_case(kRowMajor, kNoTrans, trans_b, m, 1031, 777, 1.0f, 0.0f)) return false;
  return true;
}

// More rows than any pass of few_rows takes.
constexpr int kTogether = 70;

// Checks that a row's bits depend neither on the other rows nor on its index.
bool rows_are_alone(int together_rows, int trans_b, int n, int k) {
  Matrix a(together_rows, k, true);
  Matrix b = trans_b == kNoTrans ? Matrix(k, n, true) : Matrix(n, k, true);
  std::vector<float> together(static_cast<std::size_t>(together_rows) * n), alone(n);
  cblas_sgemm(kRowMajor, kNoTrans, trans_b, together_rows, n, k, 1.0f, a.data.data(), a.leading, b.data.data(), b.leading, 0.0f,
              together.data(), n);
  for (int row = 0; row < together_rows; ++row)
    for (int m : {1, 2, 3, 7, 8, 17, 33}) {
      if (m > kFewRows && together_rows <= kFewRows) continue;
      if (row + m > together_rows) continue;
      alone.assign(static_cast<std::size_t>(m) * n, 0.0f);
      cblas_sgemm(kRowMajor, kNoTrans, trans_b, m, n, k, 1.0f, &a.at(row, 0), a.leading, b.data.data(), b.leading, 0.0f,
                  alone.data(), n);
      if (std::memcmp(alone.data(), &together[static_cast<std::size_t>(row) * n], alone.size() * sizeof(float)) != 0) {
        std::printf("transpose %d, n %d, k %d: row %d in a product of %d has other bits than among %d\n", trans_b, n, k, row, m,
                    together_rows);
        return false;
      }
    }
  return true;
}

bool all_rows_are_alone() {
  for (int trans_b : {kNoTrans, kTrans})
    for (int n : {1, 5, 64, 1031})
      for (int k : {3, 64, 777, 1500})
        if (!rows_are_alone(trans_b != kNoTrans && tiles_pay() ? kTogether : kFewRows, trans_b, n, k)) return false;
  return true;
}

// Checks that a product is correct, and that each of up to `fixed` rows has the bits of a product of that row only. If
// `shared` is 1, these bits must equal those of the product with the weights in f32. Otherwise, every `shared` numbers
// of a row of a share their precision.
bool weights_case(const char* name, int m, int n, int k, const std::vector<float>& weights, int fixed, int shared,
                  const std::function<void(int, const float*, float*)>& multiply) {
  std::vector<float> a(static_cast<std::size_t>(m) * k), together(static_cast<std::size_t>(m) * n), in_f32(together.size()), alone(n);
  // Rows of very different magnitudes, some with numbers far larger than the others.
  for (int row = 0; row < m; ++row) {
    const float size = std::ldexp(1.0f, below(160) - 80);
    for (int i = 0; i < k; ++i) a[static_cast<std::size_t>(row) * k + i] = draw() * size * (below(50) == 0 ? 500.0f : 1.0f);
  }
  multiply(m, a.data(), together.data());
  cblas_sgemm(kRowMajor, kNoTrans, kTrans, m, n, k, 1.0f, a.data(), k, weights.data(), k, 0.0f, in_f32.data(), n);
  if (m <= rows_of_fixed_bits() && shared == 1 && std::memcmp(together.data(), in_f32.data(), in_f32.size() * sizeof(float)) != 0) {
    std::printf("%s, m %d, n %d, k %d: not the bits of the product in f32\n", name, m, n, k);
    return false;
  }
  for (int row = 0; row < m; ++row) {
    const float* left = a.data() + static_cast<std::size_t>(row) * k;
    const float* got = together.data() + static_cast<std::size_t>(row) * n;
    multiply(1, left, alone.data());
    bool right = m > fixed || std::memcmp(alone.data(), got, alone.size() * sizeof(float)) == 0;
    for (int j = 0; j < n && right; ++j) {
      double sum = 0, size = 0, largest = 0, shares = 0;
      for (int i = 0; i < k; ++i) {
        if (i % shared == 0) largest = std::abs(*std::max_element(left + i, left + i + shared, [](float x, float y) { return std::abs(x) < std::abs(y); }));
        const double weight = weights[static_cast<std::size_t>(j) * k + i];
        sum += weight * left[i];
        size += std::abs(weight * left[i]);
        shares += shared > 1 ? 0x1p-23 * std::abs(weight) * largest : 0.0;
      }
      right = std::abs(sum - got[j]) <= 2e-6 * size + shares + 1e-37;
    }
    if (!right) {
      std::printf("%s, m %d, n %d, k %d: row %d is wrong, or depends on others\n", name, m, n, k, row);
      return false;
    }
  }
  a[below(k)] = m % 2 == 0 ? std::numeric_limits<float>::infinity() : std::numeric_limits<float>::quiet_NaN();
  multiply(1, a.data(), alone.data());
  if (std::none_of(alone.begin(), alone.end(), [](float number) { return std::isfinite(number); })) return true;
  std::printf("%s, n %d, k %d: what is not finite is hidden\n", name, n, k);
  return false;
}

// More rows than tiles take.
constexpr int kManyRows = kTileRows + 5;

bool products_of_halves_are_right() {
  using namespace mlx::core;
  for (Dtype type : {float16, bfloat16})
    // The longest row takes more than one step.
    for (int k : {3, 64, 777, 2176})
      for (int n : {1, 5, 131})
        for (int m : {1, 2, 5, 33, kManyRows}) {
          std::vector<float> numbers(static_cast<std::size_t>(n) * k);
          // Some numbers are below the smallest normal f16.
          for (float& number : numbers) number = draw() * (below(8) == 0 ? 1e-5f : 1.0f);
          array halves = contiguous(astype(array(numbers.data(), {n, k}, float32), type)), back = astype(halves, float32);
          eval(halves, back);
          const std::vector<float> weights(back.data<float>(), back.data<float>() + back.size());
          const HalfMatrix matrix{n, k, type == bfloat16, halves.data<void>()};
          const auto multiply = [&](int m, const float* a, float* c) { product_of_halves(m, a, matrix, c); };
          if (!weights_case(type == bfloat16 ? "bf16" : "f16", m, n, k, weights, rows_of_fixed_bits(), 1, multiply)) return false;
        }
  return true;
}

struct PackedKind {
  const char* mode;
  Packing packing;
  int bits, group;
};

// Returns the numbers of a packed matrix as libmlx.so dequantizes them, in f32.
mlx::core::array theirs_dequantized(const mlx::core::array& words, const mlx::core::array& scales, const mlx::core::array& biases, const PackedKind& kind) {
  using namespace mlx::core;
  const bool is_affine = kind.packing == Packing::kAffine;
  const auto wide = [&](const array& floats) { return is_affine ? astype(floats, float32) : floats; };
  const auto ours = &dequantize;
  Dl_info info{};
  dladdr(reinterpret_cast<const void*>(ours), &info);
  static void* const library = dlopen("libmlx.so", RTLD_NOW | RTLD_NOLOAD);
  const auto theirs = reinterpret_cast<decltype(ours)>(dlsym(library, info.dli_sname));
  array numbers = theirs(words, wide(scales), is_affine ? std::optional(wide(biases)) : std::nullopt, kind.group, kind.bits, kind.mode, std::nullopt, float32, {});
  eval(numbers);
  return numbers;
}

// Checks that every number of a packed matrix equals the result of MLX's own operation with scales in f32.
bool packed_case(const PackedKind& kind, mlx::core::Dtype type, int m, int n, int k) {
  using namespace mlx::core;
  std::vector<std::uint32_t> words(static_cast<std::size_t>(n) * k * kind.bits / 32);
  for (std::uint32_t& word : words) word = generator();
  if (kind.packing == Packing::kMxfp8) {
    std::uint8_t* codes = reinterpret_cast<std::uint8_t*>(words.data());
    // These two codes are NaN.
    for (std::size_t i = 0; i < 4 * words.size(); ++i)
      if ((codes[i] & 0x7f) == 0x7f) codes[i] ^= 1;
  }
  const int groups = k / kind.group;
  const bool is_affine = kind.packing == Packing::kAffine;
  const auto of_groups = [&] {
    if (is_affine) {
      std::vector<float> numbers(static_cast<std::size_t>(n) * groups);
      for (float& number : numbers) number = draw();
      return contiguous(astype(array(numbers.data(), {n, groups}, float32), type));
    }
    std::vector<std::uint8_t> codes(static_cast<std::size_t>(n) * groups);
    // The smallest exponent is subnormal.
    const auto exponent = [] { return below(8) == 0 ? 0 : 110 + below(20); };
    for (std::uint8_t& code : codes) code = static_cast<std::uint8_t>(kind.packing == Packing::kNvfp4 ? below(127) : exponent());
    return array(codes.data(), {n, groups}, uint8);
  };
  array scales = of_groups(), biases = of_groups();
  eval(scales, biases);
  const Scale scale = kind.packing == Packing::kNvfp4 ? Scale::kE4m3
                      : !is_affine                     ? Scale::kExponent
                      : type == float32                ? Scale::kF32
                      : type == float16                ? Scale::kF16
                                                       : Scale::kBf16;
  const PackedMatrix matrix{n, k, kind.bits, kind.group, kind.packing, scale, reinterpret_cast<const std::uint8_t*>(words.data()),
                            scales.data<void>(), is_affine ? biases.data<void>() : nullptr};
  std::vector<float> weights(static_cast<std::size_t>(n) * k);
  unpack(matrix, weights.data());
  const array of_mlx = theirs_dequantized(array(words.data(), {n, k * kind.bits / 32}, uint32), scales, biases, kind);
  for (std::size_t i = 0; i < weights.size(); ++i) {
    const float want = of_mlx.data<float>()[i];
    if (std::memcmp(&weights[i], &want, sizeof want) != 0) {
      std::printf("%s with %d bits: number %zu is %g instead of %g\n", kind.mode, kind.bits, i, weights[i], want);
      return false;
    }
  }
  if (!packed_product_takes(kind.packing, kind.bits, kind.group, k)) return false;
  const auto in_f32 = [&](int m, const float* a, float* c) { packed_product_in_f32(m, a, matrix, c); };
  if (!weights_case(kind.mode, m, n, k, weights, rows_of_fixed_bits(), 1, in_f32)) return false;
  // This processor may use block floating point, unless there are many rows.
  const auto multiply = [&](int m, const float* a, float* c) { packed_product(m, a, matrix, c); };
  return !block_float_takes(1, kind.packing, kind.bits) ||
         weights_case(kind.mode, m, n, k, weights, kBlockFloatRows, block_float_takes(m, kind.packing, kind.bits) ? kind.group : 1, multiply);
}

bool packed_products_are_right() {
  std::vector<PackedKind> kinds{{"mxfp4", Packing::kMxfp4, 4, 32}, {"mxfp8", Packing::kMxfp8, 8, 32}, {"nvfp4", Packing::kNvfp4, 4, 16}};
  for (int bits : {2, 3, 4, 5, 6, 8})
    for (int group : {32, 64, 128}) kinds.push_back({"affine", Packing::kAffine, bits, group});
  for (const PackedKind& kind : kinds)
    for (auto type : {mlx::core::float32, mlx::core::float16, mlx::core::bfloat16})
      // Also the shortest row, one that ends within a block, and one that takes more than one step.
      for (int k : {std::max(kind.group, (128 / kind.bits + kind.group - 1) / kind.group * kind.group), 128, 640, 640 + std::max(32, kind.group), 2176})
        for (int n : {1, 5, 67})
          for (int m : {1, 2, 7, 32, 33, kManyRows})
            if ((k < 2176 || (n == 67 && m > 1)) && !packed_case(kind, type, m, n, k)) return false;
  return true;
}

// Checks that a symbol resolves to libmlxc.so. The dynamic linker gives this program the same definitions as libmlx.so
// and mlx-c.
bool is_ours(const char* name, const void* address) {
  Dl_info found{};
  if (address == nullptr || dladdr(address, &found) == 0) return false;
  const char* file = std::strrchr(found.dli_fname, '/');
  if (std::strcmp(file == nullptr ? found.dli_fname : file + 1, "libmlxc.so") == 0) return true;
  std::printf("%s was found in %s instead of libmlxc.so\n", name, found.dli_fname);
  return false;
}

bool all_are_ours() {
  using mlx::core::array;
  using Place = mlx::core::StreamOrDevice;
  array (*const softmax)(const array&, const std::vector<int>&, bool, Place) = &mlx::core::softmax;
  array (*const tanh)(const array&, Place) = &mlx::core::tanh;
  using Rope = array (*)(const array&, int, bool, std::optional<float>, float, const array&, const std::optional<array>&, Place);
  array (*const concatenate)(std::vector<array>, int, Place) = &mlx::core::concatenate;
  using Shape = mlx::core::Shape;
  array (*const slice_update)(const array&, const array&, Shape, Shape, Shape, Place) = &mlx::core::slice_update;
  const auto address = [](auto* function) { return reinterpret_cast<const void*>(function); };
  return is_ours("cblas_sgemm", dlsym(RTLD_DEFAULT, "cblas_sgemm")) && is_ours("softmax", address(softmax)) &&
         is_ours("sigmoid", address(&mlx::core::sigmoid)) && is_ours("tanh", address(tanh)) &&
         is_ours("concatenate", address(concatenate)) && is_ours("slice_update", address(slice_update)) &&
         is_ours("multiply", address(&mlx::core::multiply)) && is_ours("add", address(&mlx::core::add)) &&
         is_ours("rope", address(static_cast<Rope>(&mlx::core::fast::rope))) &&
         is_ours("scaled_dot_product_attention", address(&mlx::core::fast::scaled_dot_product_attention)) &&
         is_ours("rms_norm", address(&mlx::core::fast::rms_norm)) &&
         is_ours("quantized_matmul", address(&mlx::core::quantized_matmul)) && is_ours("matmul", address(&mlx::core::matmul)) &&
         is_ours("addmm", address(&mlx::core::addmm)) && is_ours("gather_mm", address(&mlx::core::gather_mm)) &&
         is_ours("gather_qmm", address(&mlx::core::gather_qmm)) &&
         is_ours("dequantize", address(&mlx::core::dequantize));
}

}  // namespace

int main() {
  const bool right = products_are_right() && all_rows_are_alone() && products_of_halves_are_right() &&
                     packed_products_are_right() && functions_are_right() && edges_are_right() && rotations_are_right() &&
                     attention_is_right() && gates_are_right() && bare_norms_are_right() && steps_are_right() && moves_are_right() && all_are_ours();
  return right ? 0 : 1;
}
