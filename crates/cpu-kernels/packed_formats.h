// Readers for packed rows: see formats.h. With 16-lane registers, codes of up to 5 bits are looked up in a register
// that holds a table of the group's values.
#pragma once

#include <vector>

#include "formats.h"
#include "packed.h"

namespace {

// An 8-bit float (one sign bit, four exponent bits, three fraction bits, no infinity), and a power of two.
struct E4m3 {
  std::uint8_t bits;
};

struct Exponent {
  std::uint8_t bits;
};

// Converts numbers from the bits in the lanes.
template <int W, class Number>
INLINE Register<W> number_of(const Word<W>& bits) {
  if constexpr (std::is_same_v<Number, Exponent>) {
    // 2^-127 is a subnormal f32.
    return with_bits_of<Register<W>>(bits << 23 | (with_bits_of<Word<W>>(bits == 0) & 0x00400000));
  } else {
    const Word<W> size = bits & 0x7f;
    // As f32 bits, the exponent is too small by 120.
    const Register<W> number = with_bits_of<Register<W>>(size << 20) * 0x1p120f;
    const Word<W> nan = with_bits_of<Word<W>>(size == 0x7f) & 0x7fc00000;
    return with_bits_of<Register<W>>(with_bits_of<Word<W>>(number) | (bits & 0x80) << 24 | nan);
  }
}

template <int W>
INLINE Register<W> widened(const E4m3* from) {
  return number_of<W, E4m3>(lanes_of<W>(&from->bits));
}

template <int W>
INLINE Register<W> widened(const Exponent* from) {
  return number_of<W, Exponent>(lanes_of<W>(&from->bits));
}

// Converts scales or biases of C rows to f32. `begin` is the index of the first row's first scale, and `apart` the
// stride between rows. Writes `count` scales per row, rounded up to a multiple of sixteen with those that follow, up to
// index `all`.
template <int W, int C, class Number>
INLINE void widen(const void* from, std::ptrdiff_t begin, std::ptrdiff_t apart, std::ptrdiff_t all, float* to, std::ptrdiff_t count) {
  for (int j = 0; j < C; ++j, begin += apart)
    for (std::ptrdiff_t i = begin; i < begin + count; i += kLanes, to += kLanes)
      sixteen<W>(static_cast<const Number*>(from) + i, static_cast<int>(std::min<std::ptrdiff_t>(all - i, kLanes))).store(to, kLanes);
}

template <int W, int C>
INLINE void widen(Scale scale, const void* from, std::ptrdiff_t begin, std::ptrdiff_t apart, std::ptrdiff_t all, float* to, std::ptrdiff_t count) {
  switch (scale) {
    case Scale::kF32: return widen<W, C, float>(from, begin, apart, all, to, count);
    case Scale::kF16: return widen<W, C, F16>(from, begin, apart, all, to, count);
    case Scale::kBf16: return widen<W, C, Bf16>(from, begin, apart, all, to, count);
    case Scale::kExponent: return widen<W, C, Exponent>(from, begin, apart, all, to, count);
    case Scale::kE4m3: return widen<W, C, E4m3>(from, begin, apart, all, to, count);
  }
}

// Loads sixteen bytes and repeats them to fill a register.
template <int W>
INLINE Word<W> repeated(const std::uint8_t* from) {
#if defined(__x86_64__) && !defined(__clang__)
  // The compiler would go through memory.
  typedef const std::uint8_t Few[16];
  Word<W> to;
  if constexpr (W == 16) asm("vbroadcasti32x4 %1, %0" : "=v"(to) : "m"(*reinterpret_cast<Few*>(from)));
  if constexpr (W == 8) asm("vbroadcasti128 %1, %0" : "=x"(to) : "m"(*reinterpret_cast<Few*>(from)));
  if constexpr (W >= 8) return to;
#endif
  Word<W> words;
  for (int i = 0; i < W; i += 4) std::memcpy(reinterpret_cast<char*>(&words) + 4 * i, from, 16);
  return words;
}

// Gives lane i the number that begins at bit i * Bits + Rest of sixteen bytes. Every 128-bit part of the register holds
// these bytes.
template <int W, int Bits, int Rest, std::size_t... Byte, std::size_t... Lane>
INLINE Word<W> apart(const Word<W>& words, std::index_sequence<Byte...>, std::index_sequence<Lane...>) {
  typedef std::uint8_t Bytes __attribute__((vector_size(4 * W)));
  const Bytes bytes = with_bits_of<Bytes>(words);
  // Two bytes contain a number. The other two bytes of the lane are not needed.
  const Bytes pairs =
      __builtin_shufflevector(bytes, bytes, static_cast<int>(Byte / 16 * 16 + std::min<std::size_t>(15, (Byte / 4 * Bits + Rest) / 8 + Byte % 2))...);
  return with_bits_of<Word<W>>(pairs) >> Word<W>{static_cast<std::uint32_t>((Lane * Bits + Rest) % 8)...};
}

template <int W, int Bits, std::size_t... Lane>
INLINE Word<W> shifted(const Word<W>& words, std::index_sequence<Lane...>) {
  return words >> Word<W>{static_cast<std::uint32_t>(Lane * Bits)...};
}

// Returns W of sixteen numbers of `Bits` bits, beginning with number First. The sixteen start at a byte boundary. Each
// number is in the lowest bits of its lane; the higher bits are undefined.
template <int W, int Bits, int First>
INLINE Word<W> codes(const std::uint8_t* from) {
  constexpr auto lanes = std::make_index_sequence<W>();
  from += First * Bits / 8;
  if constexpr (Bits == 8) {
    return lanes_of<W>(from);
  } else if constexpr (32 % Bits == 0 && W * Bits <= 32) {
    std::uint32_t word = 0;
    std::memcpy(&word, from, W * Bits / 8);
    return shifted<W, Bits>(Word<W>{} + word, lanes);
  } else {
    return apart<W, Bits, First * Bits % 8>(repeated<W>(from), std::make_index_sequence<4 * W>(), lanes);
  }
}

// Returns sixteen 4-bit numbers, the first eight in the even lanes and the others in the odd lanes, with one shift of
// pairs of lanes.
INLINE Word<16> spread_codes(const std::uint8_t* from) {
  typedef std::uint64_t Pairs __attribute__((vector_size(64)));
  std::uint64_t eight_bytes;
  std::memcpy(&eight_bytes, from, sizeof eight_bytes);
  return with_bits_of<Word<16>>((Pairs{} + eight_bytes) >> Pairs{0, 4, 8, 12, 16, 20, 24, 28});
}

// Looks up the lanes in a table. Only the bits that index the table are used.
template <int W>
INLINE Register<W> entries(const Register<W>& table, const Word<W>& lanes) {
#if defined(__clang__)
  Register<W> to;
  for (int i = 0; i < W; ++i) to[i] = table[lanes[i] % W];
  return to;
#else
  return __builtin_shuffle(table, with_bits_of<Signed<W>>(lanes));
#endif
}

template <int W>
INLINE Register<W> entries(const Register<W>& low, const Register<W>& high, const Word<W>& lanes) {
#if defined(__clang__)
  const Register<W> from_low = entries<W>(low, lanes), from_high = entries<W>(high, lanes);
  Register<W> to;
  for (int i = 0; i < W; ++i) to[i] = (lanes[i] & W) != 0 ? from_high[i] : from_low[i];
  return to;
#else
  return __builtin_shuffle(low, high, with_bits_of<Signed<W>>(lanes));
#endif
}

template <int W, std::size_t... I>
INLINE Register<W> counted(int first, int mask, std::index_sequence<I...>) {
  return Register<W>{static_cast<float>((first + static_cast<int>(I)) & mask)...};
}

// The values of a group with affine packing: scale * code + bias, rounded like MLX does.
template <int W, int Bits>
struct Affine {
  static constexpr bool kTable = W == 16 && Bits <= 5;
  static constexpr int kMask = (1 << Bits) - 1;
  // The first two parts of the table, or the scale and the bias.
  Register<W> one, other;

  INLINE void enter(const float* scale, const float* bias) {
    constexpr auto all = std::make_index_sequence<W>();
    if constexpr (kTable) {
      one = rounded(counted<W>(0, kMask, all) * everywhere<W>(scale)) + everywhere<W>(bias);
      if constexpr (Bits == 5) other = rounded(counted<W>(W, kMask, all) * everywhere<W>(scale)) + everywhere<W>(bias);
    } else {
      one = everywhere<W>(scale);
      other = everywhere<W>(bias);
    }
  }

  template <int First>
  INLINE Register<W> read(const std::uint8_t* from) const {
    const Word<W> lanes = codes<W, Bits, First>(from);
    if constexpr (kTable && Bits == 5) return entries<W>(one, other, lanes);
    if constexpr (kTable) return entries<W>(one, lanes);
    // Bytes are zero-extended.
    const Word<W> code = Bits == 8 ? lanes : lanes & kMask;
    return rounded(__builtin_convertvector(with_bits_of<Signed<W>>(code), Register<W>) * one) + other;
  }

  INLINE Register<W> read_spread(const std::uint8_t* from) const { return entries<W>(one, spread_codes(from)); }
};

// 4-bit floats times a scale: one sign bit, two exponent bits, one fraction bit.
template <int W>
struct Float4 {
  Register<W> sizes;

  INLINE void enter(const float* scale, const float*) {
    if constexpr (W == 16) {
      sizes = Register<W>{0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f, -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f} * everywhere<W>(scale);
    } else if constexpr (W == 8) {
      sizes = Register<W>{0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f} * everywhere<W>(scale);
    } else {
      sizes = everywhere<W>(scale);
    }
  }

  template <int First>
  INLINE Register<W> read(const std::uint8_t* from) const {
    const Word<W> lanes = codes<W, 4, First>(from), sign = lanes << 28 & 0x80000000;
    if constexpr (W == 16) return entries<W>(sizes, lanes);
    if constexpr (W == 8) return with_bits_of<Register<W>>(with_bits_of<Word<W>>(entries<W>(sizes, lanes)) ^ sign);
    // As f32 bits, the exponent is too small by 126.
    const Register<W> size = with_bits_of<Register<W>>((lanes & 7) << 22) * 0x1p126f;
    return with_bits_of<Register<W>>(with_bits_of<Word<W>>(size) | sign) * sizes;
  }

  INLINE Register<W> read_spread(const std::uint8_t* from) const { return entries<W>(sizes, spread_codes(from)); }
};

// 8-bit floats times a scale.
template <int W>
struct Float8 {
  Register<W> factor;

  INLINE void enter(const float* scale, const float*) { factor = everywhere<W>(scale); }

  template <int First>
  INLINE Register<W> read(const std::uint8_t* from) const {
    return widened<W>(reinterpret_cast<const E4m3*>(from + First)) * factor;
  }
};

// Returns thread-local memory for `count` floats. It is valid until the next call.
inline float* scratch(std::size_t count) {
  thread_local std::vector<float> memory;
  if (memory.size() < count) memory.resize(count);
  return memory.data();
}

// Packed rows of `Bits` bits per number, decoded by a Values<W>.
template <int Bits, template <int> class Values>
struct Packed {
  const PackedMatrix& matrix;

  static constexpr bool kGrouped = true;
  template <int W>
  static constexpr bool kSpread = W == 16 && Bits == 4;

  static constexpr int kBytes = kLanes * Bits / 8;
  std::ptrdiff_t bytes() const { return static_cast<std::ptrdiff_t>(matrix.k) * Bits / 8; }
  const char* begin(int row) const { return reinterpret_cast<const char*>(matrix.words + row * bytes()); }
  static constexpr bool is_gapless(int) { return true; }

  template <int W, int C>
  struct Panel {
    int group;
    // The number of groups of a row, and the space for the scales of one row.
    std::ptrdiff_t groups, room;
    const std::uint8_t* rows[C];
    const float *scales, *biases;
    Values<W> values[C];

    INLINE Panel(const Packed& packed, int row, int apart)
        : group(packed.matrix.group), groups(packed.matrix.k / group), room((groups + kLanes - 1) / kLanes * kLanes) {
      const PackedMatrix& b = packed.matrix;
      const std::ptrdiff_t bytes = packed.bytes(), begin = row * groups, step = apart * groups, all = b.n * groups;
      float* const to = scratch(2 * C * room + (bytes + kBeyond) / sizeof(float) + 1);
      scales = to;
      biases = b.biases == nullptr ? to : to + C * room;
      widen<W, C>(b.scale, b.scales, begin, step, all, to, groups);
      if (b.biases != nullptr) widen<W, C>(b.scale, b.biases, begin, step, all, to + C * room, groups);
      UNROLL for (int j = 0; j < C; ++j) rows[j] = b.words + (row + j * apart) * bytes;
      // A load must not read past the last row, so that row is copied.
      if (row + (C - 1) * apart == b.n - 1) {
        std::uint8_t* copy = reinterpret_cast<std::uint8_t*>(to + 2 * C * room);
        std::memcpy(copy, rows[C - 1], bytes);
        rows[C - 1] = copy;
      }
    }

    INLINE void enter(int group) {
      UNROLL for (int j = 0; j < C; ++j) values[j].enter(scales + j * room + group, biases + j * room + group);
    }

    INLINE Sixteen<W> read(int j, int i, int) const {
      return read(values[j], rows[j] + i / 8 * Bits, std::make_index_sequence<kLanes / W>());
    }

    INLINE Sixteen<W> read_spread(int j, int i) const { return {values[j].read_spread(rows[j] + i / 8 * Bits)}; }

   private:
    template <std::size_t... Part>
    INLINE static Sixteen<W> read(const Values<W>& values, const std::uint8_t* from, std::index_sequence<Part...>) {
      return Sixteen<W>{values.template read<static_cast<int>(Part) * W>(from)...};
    }
  };
};

}  // namespace
