// A matrix in one of MLX's packed formats, in its layout in memory.
#pragma once

#include <cstdint>

// The maximum number of bytes that a load may read past those it needs. Every row has at least this many.
constexpr int kBeyond = 16;

enum class Packing { kAffine, kMxfp4, kMxfp8, kNvfp4 };

// The type of scales and biases: floats, an exponent of two, or an 8-bit float.
enum class Scale { kF32, kF16, kBf16, kExponent, kE4m3 };

// [n, k], `bits` bits per number, without gaps, the first number in the lowest bits of the first word. Every `group`
// numbers of a row share a scale, and with affine packing a bias. A number is its code times the scale, plus the bias.
struct PackedMatrix {
  int n, k, bits, group;
  Packing packing;
  Scale scale;
  const std::uint8_t* words;
  const void* scales;
  const void* biases;
};
