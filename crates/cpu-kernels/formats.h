// How the rows of a matrix of weights are read: sixteen numbers at a time, as f32, whatever they are in memory. What a product sums is the
// same for all formats, and so is the order.
//
// A format has a Panel, which is C of its rows, each `apart` rows behind the one before: `read(j, i, count)` gives the numbers from i to i + 15
// of row j, zeros behind the first `count`.
// Where kGrouped, each `group` numbers have something in common, and `enter` with the group's index comes before them. Where kSpread<W>, they are
// read faster in another order, by `read_spread`: the first eight of sixteen in the even lanes, the others in the odd ones.
#pragma once

#include <cstdint>
#include <type_traits>

#include "lanes.h"

namespace {

// The types of floats, as bits.
struct Bf16 {
  std::uint16_t bits;
};

struct F16 {
  std::uint16_t bits;
};

template <int W>
using Word = typename Sixteen<W>::Word;

template <int W>
using Signed = typename Sixteen<W>::Signed;

template <int W>
using Register = typename Sixteen<W>::Register;

template <class To, class From>
INLINE To with_bits_of(const From& from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof to);
  return to;
}

// W unsigned numbers of memory in lanes of 32 bits.
template <int W, class Number>
INLINE Word<W> lanes_of(const Number* from) {
#if defined(__x86_64__) && !defined(__clang__)
  // The compiler would widen them in parts.
  if constexpr (W >= 8 && sizeof(Number) <= 2) {
    const auto& few = *reinterpret_cast<const Number(*)[W]>(from);
    Word<W> to;
    if constexpr (sizeof(Number) == 1) asm("vpmovzxbd %1, %0" : "=v"(to) : "m"(few));
    if constexpr (sizeof(Number) == 2) asm("vpmovzxwd %1, %0" : "=v"(to) : "m"(few));
    return to;
  }
#endif
  typedef Number Few __attribute__((vector_size(W * sizeof(Number))));
  Few few;
  std::memcpy(&few, from, sizeof few);
  return __builtin_convertvector(few, Word<W>);
}

// A product that is rounded before it is added to: the compiler must not make one operation of the two.
template <class Numbers>
INLINE Numbers rounded(Numbers numbers) {
#if defined(__x86_64__)
  if constexpr (sizeof numbers == 64) asm("" : "+v"(numbers));
  if constexpr (sizeof numbers < 64) asm("" : "+x"(numbers));
#elif defined(__aarch64__)
  asm("" : "+w"(numbers));
#endif
  return numbers;
}

// A number of memory in every lane.
template <int W>
INLINE Register<W> everywhere(const float* number) {
#if defined(__x86_64__) && !defined(__clang__)
  // The compiler would put two such registers together in memory.
  if constexpr (W >= 8) {
    Register<W> to;
    asm("vbroadcastss %1, %0" : "=v"(to) : "m"(*number));
    return to;
  }
#endif
  return *number - Register<W>{};
}

template <int W>
INLINE Register<W> widened(const float* from) {
  Register<W> to;
  std::memcpy(&to, from, sizeof to);
  return to;
}

template <int W>
INLINE Register<W> widened(const Bf16* from) {
  return with_bits_of<Register<W>>(lanes_of<W>(&from->bits) << 16);
}

// One bit of the sign, five of the exponent, ten of the fraction.
template <int W>
INLINE Register<W> widened(const F16* from) {
#if defined(__x86_64__) && !defined(__clang__)
  // Processors with registers of eight numbers have an instruction. Its intrinsic cannot be inlined here, where the target is not known yet.
  if constexpr (W >= 8) {
    Register<W> to;
    asm("vcvtph2ps %1, %0" : "=v"(to) : "m"(*reinterpret_cast<const std::uint16_t(*)[W]>(from)));
    return to;
  }
#endif
  const Word<W> bits = lanes_of<W>(&from->bits), size = bits & 0x7fff;
  // The exponent of an f32 is 112 more, and as much again for infinities and NaN. Below the smallest exponent the bits count steps of 2^-24.
  const Word<W> more = with_bits_of<Word<W>>(size > 0x7bff) & (112u << 23), is_small = with_bits_of<Word<W>>(size < 0x400);
  const Register<W> steps = __builtin_convertvector(with_bits_of<Signed<W>>(size), Register<W>) * 0x1p-24f;
  const Word<W> rest = (size << 13) + (112u << 23) + more, found = (with_bits_of<Word<W>>(steps) & is_small) | (rest & ~is_small);
  return with_bits_of<Register<W>>(found | (bits & 0x8000) << 16);
}

// Sixteen numbers of memory; zeros behind the first `count`.
template <int W, class Number>
INLINE Sixteen<W> sixteen(const Number* from, int count) {
  Number padded[kLanes];
  if (count < kLanes) {
    for (int i = 0; i < kLanes; ++i) padded[i] = i < count ? from[i] : Number{};
    from = padded;
  }
  Sixteen<W> to;
  UNROLL for (int part = 0; part < kLanes / W; ++part) to.parts[part] = widened<W>(from + part * W);
  return to;
}

// Rows of floats, with `stride` numbers from one to the next.
template <class Number>
struct Dense {
  const Number* data;
  std::ptrdiff_t stride;

  static constexpr bool kGrouped = false;
  template <int W>
  static constexpr bool kSpread = false;
  // Bytes of sixteen numbers.
  static constexpr int kBytes = kLanes * sizeof(Number);

  // Where a row begins; the bytes to the next; whether rows of k numbers have no gaps.
  const char* begin(int row) const { return reinterpret_cast<const char*>(data + row * stride); }
  std::ptrdiff_t bytes() const { return stride * static_cast<std::ptrdiff_t>(sizeof(Number)); }
  bool is_gapless(int k) const { return stride == k; }

  template <int W, int C>
  struct Panel {
    const Number* from;
    std::ptrdiff_t stride;

    INLINE Panel(const Dense& b, int row, int apart) : from(b.data + row * b.stride), stride(b.stride * apart) {}

    INLINE Sixteen<W> read(int j, int i, int count) const { return sixteen<W>(from + j * stride + i, count); }
  };
};

}  // namespace
