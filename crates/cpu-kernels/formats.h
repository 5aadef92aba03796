// Readers for the rows of weight matrices. They return sixteen numbers at a time as f32, whatever the format in memory.
// Products sum in the same order for all formats.
//
// A format has a Panel, which is C of its rows with a stride of `apart`. `read(j, i, count)` returns the numbers i to i
// + 15 of row j, with zeros after the first `count`. If kGrouped, every `group` numbers share a scale, and `enter` with
// the group's index is called before they are read. If kSpread<W>, `read_spread` reads them faster in another order:
// the first eight of sixteen in the even lanes, the others in the odd lanes.
#pragma once

#include <cstdint>
#include <type_traits>

#include "lanes.h"

namespace {

// Float types, stored as bits.
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

// Loads W unsigned integers and widens them to 32-bit lanes.
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

// Forces a product to be rounded before an addition: the compiler must not fuse the two.
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

// Broadcasts a number in memory to every lane.
template <int W>
INLINE Register<W> everywhere(const float* number) {
#if defined(__x86_64__) && !defined(__clang__)
  // The compiler would combine two such registers in memory.
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

// f16: one sign bit, five exponent bits, ten fraction bits.
template <int W>
INLINE Register<W> widened(const F16* from) {
#if defined(__x86_64__) && !defined(__clang__)
  // Processors with 8-lane registers have an instruction for this. Its intrinsic cannot be inlined here, where the
  // target is not yet known.
  if constexpr (W >= 8) {
    Register<W> to;
    asm("vcvtph2ps %1, %0" : "=v"(to) : "m"(*reinterpret_cast<const std::uint16_t(*)[W]>(from)));
    return to;
  }
#endif
  const Word<W> bits = lanes_of<W>(&from->bits), size = bits & 0x7fff;
  // The exponent of an f32 is larger by 112, and by another 112 for infinities and NaN. Subnormal numbers are multiples
  // of 2^-24.
  const Word<W> more = with_bits_of<Word<W>>(size > 0x7bff) & (112u << 23), is_small = with_bits_of<Word<W>>(size < 0x400);
  const Register<W> steps = __builtin_convertvector(with_bits_of<Signed<W>>(size), Register<W>) * 0x1p-24f;
  const Word<W> rest = (size << 13) + (112u << 23) + more, found = (with_bits_of<Word<W>>(steps) & is_small) | (rest & ~is_small);
  return with_bits_of<Register<W>>(found | (bits & 0x8000) << 16);
}

// Loads sixteen numbers, with zeros after the first `count`.
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

// Rows of floats, with a stride of `stride` numbers.
template <class Number>
struct Dense {
  const Number* data;
  std::ptrdiff_t stride;

  static constexpr bool kGrouped = false;
  template <int W>
  static constexpr bool kSpread = false;
  // The size of sixteen numbers in bytes.
  static constexpr int kBytes = kLanes * sizeof(Number);

  // The start of a row, the bytes to the next one, and whether rows of k numbers are contiguous.
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
