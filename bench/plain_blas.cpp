// Replaces the BLAS of mlx-lm's wheel by our OpenBLAS, so that both programs compute with the same one. This library is loaded before the
// wheel's libraries, so its cblas_sgemm is found first. It lacks our own products of few rows.
extern "C" void scipy_cblas_sgemm(int, int, int, int, int, int, float, const float*, int, const float*, int, float, float*, int);

extern "C" void cblas_sgemm(int order, int left, int right, int rows, int columns, int inner, float alpha, const float* a, int a_stride,
                            const float* b, int b_stride, float beta, float* c, int c_stride) {
  scipy_cblas_sgemm(order, left, right, rows, columns, inner, alpha, a, a_stride, b, b_stride, beta, c, c_stride);
}
