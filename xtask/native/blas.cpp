// The matrix product that libmlx.so finds at run time. Its own BLAS is the slow reference one; this definition stands ahead
// of it in the search order, because a program links libmlxc.so and libmlxc.so links libmlx.so.
#include <utility>

#include "blas.h"
#include "few_rows.h"

extern "C" void cblas_sgemm(int order, int trans_a, int trans_b, int m, int n, int k, float alpha, const float* a, int lda,
                            const float* b, int ldb, float beta, float* c, int ldc) {
  if (order == kColumnMajor) {
    // The same memory read row by row holds the transposes, and (A B)^T = B^T A^T.
    std::swap(trans_a, trans_b);
    std::swap(m, n);
    std::swap(a, b);
    std::swap(lda, ldb);
  }
  if (m <= kFewRows) {
    const int stride = trans_a == kNoTrans ? lda : 1, step = trans_a == kNoTrans ? 1 : lda;
    few_rows(trans_b != kNoTrans, m, n, k, alpha, a, stride, step, b, ldb, beta, c, ldc);
  } else {
    scipy_cblas_sgemm(kRowMajor, trans_a, trans_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
  }
}
