// The declarations of the C BLAS interface that are used here. OpenBLAS's wheel exports its functions with a
// prefix.
#pragma once

constexpr int kRowMajor = 101, kColumnMajor = 102;
constexpr int kNoTrans = 111, kTrans = 112;

extern "C" {
void cblas_sgemm(int order, int trans_a, int trans_b, int m, int n, int k, float alpha, const float* a, int lda,
                 const float* b, int ldb, float beta, float* c, int ldc);
void scipy_cblas_sgemm(int order, int trans_a, int trans_b, int m, int n, int k, float alpha, const float* a, int lda,
                       const float* b, int ldb, float beta, float* c, int ldc);
void scipy_openblas_set_num_threads(int count);
}
