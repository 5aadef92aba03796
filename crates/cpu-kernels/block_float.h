// Products of codes of 4 and 8 bits with rows in block floating point, on processors that multiply bytes (AVX-512 with VNNI).
#pragma once

#include "packed.h"

// The most rows for which this is not slower than tiles of f32.
constexpr int kBlockFloatRows = 32;

// Whether this processor multiplies so many rows of a so with such a matrix: affine of 4 or 8 bits, mxfp4 or nvfp4.
bool block_float_takes(int m, Packing packing, int bits);

// c = a * b^T, row-major and contiguous: a is [m, k], c is [m, n]. What a row of c becomes does not depend on the other rows of a, nor on how
// many there are.
//
// A group of a row of a, as long as the groups of b, becomes whole multiples of one power of two, of 24 bits with their sign: a number is off by at
// most 1.004 * 2^-23 of the largest in its group, and by 2^-127. Three signed bytes make such a multiple. They are multiplied with the codes of b and summed as whole
// numbers, exactly, where a sum in f32 is rounded at every step; scales and biases come in group by group, in f32. A group with an infinity or NaN
// gives NaN, and numbers from about 2^118 on may.
void block_float_product(int m, const float* a, const PackedMatrix& b, float* c);
