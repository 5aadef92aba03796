// The matrix product that libmlx.so finds at run time. Its own BLAS is the slow reference one; this definition stands ahead
// of it in the search order, because a program links libmlxc.so and libmlxc.so links libmlx.so.
#include <algorithm>
#include <utility>

#include "blas.h"

namespace {

// One row of output: OpenBLAS' general product would first copy the whole of B into its packed layout, which takes about
// twice as long as reading it. c = alpha * x * op(B) + beta * c, with x and c vectors, B row-major.
void one_row(int trans_a, int trans_b, int n, int k, float alpha, const float* a, int lda, const float* b, int ldb, float beta,
             float* c) {
  const int step = trans_a == kNoTrans ? 1 : lda;
  // MLX hands over memory that was never written, and some versions of the vector routine read it even where beta is zero.
  if (beta == 0.0f) std::fill_n(c, n, 0.0f);
  if (trans_b == kNoTrans) {
    scipy_cblas_sgemv(kRowMajor, kTrans, k, n, alpha, b, ldb, a, step, beta, c, 1);
  } else {
    scipy_cblas_sgemv(kRowMajor, kNoTrans, n, k, alpha, b, ldb, a, step, beta, c, 1);
  }
}

}  // namespace

extern "C" void cblas_sgemm(int order, int trans_a, int trans_b, int m, int n, int k, float alpha, const float* a, int lda,
                            const float* b, int ldb, float beta, float* c, int ldc) {
  if (order == kColumnMajor) {
    // The same memory read row by row holds the transposes, and (A B)^T = B^T A^T.
    std::swap(trans_a, trans_b);
    std::swap(m, n);
    std::swap(a, b);
    std::swap(lda, ldb);
  }
  // Without an inner dimension the vector routine returns early and would not scale c.
  if (m == 1 && n > 0 && k > 0) {
    one_row(trans_a, trans_b, n, k, alpha, a, lda, b, ldb, beta, c);
  } else {
    scipy_cblas_sgemm(kRowMajor, trans_a, trans_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
  }
}
