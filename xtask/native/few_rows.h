// Products with a few rows on the left: a decode step's. See few_rows.cpp.
#pragma once

// c = alpha * a * op(b) + beta * c, row-major. a is [m, k] with stride_a between rows and step_a between columns. b is [n, k]
// if transposed, else [k, n]. What a row of c becomes does not depend on the other rows of a, nor on how many there are.
void few_rows(bool transposed, int m, int n, int k, float alpha, const float* a, int stride_a, int step_a, const float* b, int ldb,
              float beta, float* c, int ldc);

// The most rows for which this is faster than a general product, and the most for which it is faster than tiles.
constexpr int kFewRows = 32, kVeryFewRows = 16;
