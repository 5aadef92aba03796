// The matrix product that libmlx.so resolves at run time. MLX's own BLAS is the slow reference BLAS. This definition
// precedes it in the search order, because programs link libmlxc.so, and libmlxc.so links libmlx.so.
#include <algorithm>
#include <utility>
#include <vector>

#include "blas.h"
#include "by_columns.h"
#include "tiles.h"
#include "workers.h"

namespace {

// OpenBLAS's threads synchronize at every step, so they all stall when another process takes a core. We run OpenBLAS
// with one thread and distribute the columns over our workers, which do not wait for a slow one.
const bool one_thread_each = (scipy_openblas_set_num_threads(1), true);

// The split of the columns depends only on the shape, and so do the bits.
void many_rows(int trans_a, int trans_b, int m, int n, int k, float alpha, const float* a, int lda, const float* b, int ldb, float beta,
               float* c, int ldc) {
  constexpr double kWorthSharing = 1 << 20;
  const double work = static_cast<double>(m) * n * k;
  const int blocks = static_cast<int>(std::clamp(work / kWorthSharing, 1.0, 8.0));
  const int width = ((n + blocks - 1) / blocks + 63) / 64 * 64;
  in_parallel((n + width - 1) / width, [&](int block) {
    const std::ptrdiff_t begin = static_cast<std::ptrdiff_t>(block) * width;
    const int count = std::min<int>(width, n - static_cast<int>(begin));
    const float* columns = b + (trans_b == kNoTrans ? begin : begin * ldb);
    scipy_cblas_sgemm(kRowMajor, trans_a, trans_b, m, count, k, alpha, a, lda, columns, ldb, beta, c + begin, ldc);
  });
}

}  // namespace

extern "C" void cblas_sgemm(int order, int trans_a, int trans_b, int m, int n, int k, float alpha, const float* a, int lda,
                            const float* b, int ldb, float beta, float* c, int ldc) {
  if (order == kColumnMajor) {
    // Column-major memory, read as row-major, holds the transposes, and (A B)^T = B^T A^T.
    std::swap(trans_a, trans_b);
    std::swap(m, n);
    std::swap(a, b);
    std::swap(lda, ldb);
  }
  if (m <= 0 || n <= 0) return;
  if (m > kFewRows && !(m <= kTileRows && k > 0 && trans_b != kNoTrans && tiles_pay())) {
    return many_rows(trans_a, trans_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
  }
  thread_local std::vector<float> contiguous;
  const int stride = trans_a == kNoTrans ? lda : 1, step = trans_a == kNoTrans ? 1 : lda;
  const float* rows = by_row(contiguous, m, k, a, stride, step);
  const Product product{m, n, k, alpha, beta, rows, step == 1 ? stride : k, c, ldc};
  const Dense<float> right{b, ldb};
  if (trans_b == kNoTrans) {
    few_rows_by_columns(product, right);
  } else if (k > 0 && m > kVeryFewRows && tiles_pay()) {
    tiles(product, right);
  } else {
    few_rows(product, right);
  }
}
