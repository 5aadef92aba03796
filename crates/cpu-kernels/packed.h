// A matrix in one of MLX's packed formats, as it lies in memory.
#pragma once

#include <cstdint>

// What is read at once may be so many bytes longer than what is needed: no row has fewer.
constexpr int kBeyond = 16;

enum class Packing { kAffine, kMxfp4, kMxfp8, kNvfp4 };

// What scales and biases are: floats, an exponent of two, or a float of 8 bits.
enum class Scale { kF32, kF16, kBf16, kExponent, kE4m3 };

// [n, k], `bits` bits a number, without gaps, the first number in the lowest bits of the first word. Each `group` numbers of a row share a
// scale, which they are multiplied with, and in affine packing a bias, which is added.
struct PackedMatrix {
  int n, k, bits, group;
  Packing packing;
  Scale scale;
  const std::uint8_t* words;
  const void* scales;
  const void* biases;
};
