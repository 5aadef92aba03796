// Products of 4-bit and 8-bit codes with rows in block floating point, on processors with integer dot products (AVX-512
// VNNI).
#pragma once

#include "packed.h"

// The maximum number of rows for which this is not slower than tiles of f32.
constexpr int kBlockFloatRows = 32;

// Returns true if this processor multiplies m rows by such a matrix in block floating point: affine with 4 or 8 bits,
// mxfp4 or nvfp4.
bool block_float_takes(int m, Packing packing, int bits);

// c = a * b^T, row-major and contiguous: a is [m, k], c is [m, n]. A row of c depends neither on the other rows of a
// nor on their number.
//
// Each row of a is split into groups of the same size as those of b. The numbers of a group are rounded to multiples of
// one power of two, as signed 24-bit integers. The error of a number is at most 1.004 * 2^-23 of the largest in its
// group, plus 2^-127. Each integer is three signed bytes, which are multiplied by the codes of b and summed exactly as
// integers; a sum in f32 would round at every step. Scales and biases are applied per group, in f32. A group with an
// infinity or NaN gives NaN, and numbers from about 2^118 may do so.
void block_float_product(int m, const float* a, const PackedMatrix& b, float* c);
