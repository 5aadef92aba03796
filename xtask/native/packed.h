// Products with a matrix in MLX's affine packing, as it lies in memory. See packed.cpp.
#pragma once

#include <cstddef>
#include <cstdint>

// A matrix [n, k] of `bits` bits a number in words of 32, the first number in the lowest bits: `scale * number + bias`, with a scale and a
// bias for each `group` numbers of a row.
struct PackedMatrix {
  int n, k, bits, group;
  const std::uint32_t* words;
  const float* scales;
  const float* biases;
};

// Whether packed_product takes such a matrix.
bool packed_product_takes(int bits, int group, int k);

// c = a * b^T, row-major and contiguous: a is [m, k], c is [m, n]. What a row of c becomes does not depend on the other rows of a, nor on how
// many there are.
void packed_product(int m, const float* a, const PackedMatrix& b, float* c);
