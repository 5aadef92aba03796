// Puts the OpenBLAS of our set-up in the place of the BLAS that mlx-lm's wheel brings, so that both programs compute with the same one:
// loaded before the wheel's libraries, its cblas_sgemm is found first. Without the products of few rows that our set-up adds.
extern "C" void scipy_cblas_sgemm(int, int, int, int, int, int, float, const float*, int, const float*, int, float, float*, int);

extern "C" void cblas_sgemm(int order, int left, int right, int rows, int columns, int inner, float alpha, const float* a, int a_stride,
                            const float* b, int b_stride, float beta, float* c, int c_stride) {
  scipy_cblas_sgemm(order, left, right, rows, columns, inner, alpha, a, a_stride, b, b_stride, beta, c, c_stride);
}
