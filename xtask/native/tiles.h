// Products with many rows on the left: a prompt's, and those of many sequences at once. See tiles.cpp.
#pragma once

// The most rows for which this is faster than a general product.
constexpr int kTileRows = 128;

// Whether this processor has the registers for it.
bool tiles_pay();

// c = alpha * a * b^T + beta * c, row-major, with the bits that few_rows gives. a is [m, k] with stride_a between rows and step_a
// between columns; b is [n, k].
void tiles(int m, int n, int k, float alpha, const float* a, int stride_a, int step_a, const float* b, int ldb, float beta, float* c,
           int ldc);
