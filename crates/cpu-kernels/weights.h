// Products with weights that are not f32, in their layout in memory.
#pragma once

#include "packed.h"

// A matrix [n, k] of f16 or bf16, row-major and without gaps.
struct HalfMatrix {
  int n, k;
  bool is_bf16;
  const void* data;
};

// c = a * b^T, row-major and contiguous: a is [m, k], c is [m, n]. A row of c does not depend on the other rows of a
// nor, up to rows_of_fixed_bits, on their number. The bits are those of the product with b as f32, unless block_float.h
// takes the product.
void product_of_halves(int m, const float* a, const HalfMatrix& b, float* c);
void packed_product(int m, const float* a, const PackedMatrix& b, float* c);

// Like packed_product, but never uses block_float.h.
void packed_product_in_f32(int m, const float* a, const PackedMatrix& b, float* c);

// The maximum number of rows whose bits do not depend on the number of rows, for products with halves and with a packed
// matrix.
int rows_of_fixed_bits();
int rows_of_fixed_bits(Packing packing, int bits);

// Writes all numbers of a packed matrix as f32.
void unpack(const PackedMatrix& b, float* to);

// Returns true if packed_product supports rows of k numbers in this packing.
bool packed_product_takes(Packing packing, int bits, int group, int k);
