// Products with weights that are not f32, as they lie in memory.
#pragma once

#include "packed.h"

// A matrix [n, k] of halves, row-major and without gaps.
struct HalfMatrix {
  int n, k;
  bool is_bf16;
  const void* data;
};

// c = a * b^T, row-major and contiguous: a is [m, k], c is [m, n]. What a row of c becomes does not depend on the other rows of a nor,
// up to rows_of_fixed_bits, on how many there are. The bits are those of the same product with b as f32, unless block_float.h takes it.
void product_of_halves(int m, const float* a, const HalfMatrix& b, float* c);
void packed_product(int m, const float* a, const PackedMatrix& b, float* c);

// The same without block_float.h.
void packed_product_in_f32(int m, const float* a, const PackedMatrix& b, float* c);

// So many rows have the same bits however many of them there are: of products with halves, and with a packed matrix.
int rows_of_fixed_bits();
int rows_of_fixed_bits(Packing packing, int bits);

// All numbers of a packed matrix.
void unpack(const PackedMatrix& b, float* to);

// Whether packed_product takes rows of k numbers in this packing.
bool packed_product_takes(Packing packing, int bits, int group, int k);
