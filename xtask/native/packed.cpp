// Products with packed matrices: a row of the matrix is unpacked in registers while it is multiplied, so that a decode step reads the packed
// bytes and nothing else. A register holds words, and each step takes the next number of all its words; the numbers of a are brought into
// that order first. Sums are f32, in an order that is the same for any number of rows.
#include "packed.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "lanes.h"
#include "workers.h"

namespace {

// The left side: for each row, blocks of 16 words' numbers, first the first number of each word; and the sum of each group.
struct Left {
  int m, blocks, groups;
  std::vector<float> numbers, sums;

  Left(int m, const float* a, const PackedMatrix& b)
      : m(m),
        blocks((b.k + kLanes * (32 / b.bits) - 1) / (kLanes * (32 / b.bits))),
        groups(b.k / b.group),
        numbers(static_cast<std::size_t>(m) * blocks * kLanes * (32 / b.bits)),
        sums(static_cast<std::size_t>(m) * groups) {
    const int each = 32 / b.bits;
    for (int row = 0; row < m; ++row) {
      const float* from = a + static_cast<std::ptrdiff_t>(row) * b.k;
      float* to = numbers.data() + static_cast<std::ptrdiff_t>(row) * width(each);
      for (int i = 0; i < b.k; ++i) to[i / (kLanes * each) * kLanes * each + i % each * kLanes + i / each % kLanes] = from[i];
      for (int g = 0; g < groups; ++g) {
        float sum = 0.0f;
        for (int i = 0; i < b.group; ++i) sum += from[g * b.group + i];
        sums[static_cast<std::size_t>(row) * groups + g] = sum;
      }
    }
  }

  std::ptrdiff_t width(int each) const { return static_cast<std::ptrdiff_t>(blocks) * kLanes * each; }
};

// Sixteen words in registers of W.
template <int W>
struct Words {
  typedef std::uint32_t Register __attribute__((vector_size(4 * W)));
  typedef std::int32_t Signed __attribute__((vector_size(4 * W)));
  Register parts[kLanes / W];

  // With the highest bit of each number turned over: as a number with a sign it is smaller by half of its range. Then a product is a sum
  // of smaller terms, and its rounding, too.
  template <int Bits>
  INLINE void load(const std::uint32_t* from, int count) {
    constexpr std::uint32_t highest = Bits == 2 ? 0xaaaaaaaa : Bits == 4 ? 0x88888888 : 0x80808080;
    std::uint32_t padded[kLanes];
    if (count < kLanes) {
      for (int i = 0; i < kLanes; ++i) padded[i] = i < count ? from[i] : 0;
      from = padded;
    }
    UNROLL for (int part = 0; part < kLanes / W; ++part) {
      std::memcpy(&parts[part], from + part * W, sizeof(Register));
      parts[part] ^= highest;
    }
  }

  // The numbers at `place` of the words.
  template <int Bits>
  INLINE Sixteen<W> numbers(int place) const {
    Sixteen<W> out;
    UNROLL for (int part = 0; part < kLanes / W; ++part) {
      const Register first = parts[part] << (32 - Bits - Bits * place);
      const Signed number = reinterpret_cast<const Signed&>(first) >> (32 - Bits);
      out.parts[part] = __builtin_convertvector(number, typename Sixteen<W>::Register);
    }
    return out;
  }
};

// The first numbers of a register, each of them `Each` times.
template <int Each, class Register, std::size_t... I>
INLINE Register repeated(const Register& few, std::index_sequence<I...>) {
  return __builtin_shufflevector(few, few, static_cast<int>(I / Each)...);
}

// One number for every `Each` words, from `count` of them.
template <int W, int Each>
INLINE Sixteen<W> spread(const float* from, int count) {
  typedef typename Sixteen<W>::Register Register;
  float padded[kLanes / Each];
  if (count < kLanes / Each) {
    for (int i = 0; i < kLanes / Each; ++i) padded[i] = i < count ? from[i] : 0.0f;
    from = padded;
  }
  Sixteen<W> out;
  UNROLL for (int part = 0; part < kLanes / W; ++part) {
    if constexpr (Each >= W) {
      out.parts[part] = Register{} + from[part * W / Each];
    } else {
      Register few{};
      std::memcpy(&few, from + part * W / Each, sizeof(float) * W / Each);
      out.parts[part] = repeated<Each>(few, std::make_index_sequence<W>());
    }
  }
  return out;
}

// R rows of a times C rows of b.
template <int W, int Bits, int Group, int R, int C>
INLINE void dots(const Left& a, const PackedMatrix& b, float* c, int row, int column) {
  constexpr int each = 32 / Bits;
  // Words of a group in a block, and groups of a block.
  constexpr int words_of_group = std::min(kLanes, Group / each), groups_of_block = kLanes / words_of_group;
  constexpr int blocks_of_group = std::max(1, Group / (each * kLanes));
  const int words = b.k / each;
  const float* left = a.numbers.data() + row * a.width(each);
  Sixteen<W> sums[R][C] = {};
  const auto add = [&](int block, int count) INLINE_LAMBDA {
    Words<W> right[C];
    Sixteen<W> parts[R][C] = {};
    UNROLL for (int j = 0; j < C; ++j) right[j].template load<Bits>(b.words + static_cast<std::ptrdiff_t>(column + j) * words + block * kLanes, count);
    UNROLL for (int place = 0; place < each; ++place) {
      Sixteen<W> numbers[C];
      UNROLL for (int j = 0; j < C; ++j) numbers[j] = right[j].template numbers<Bits>(place);
      UNROLL for (int r = 0; r < R; ++r) {
        Sixteen<W> x;
        x.load(left + r * a.width(each) + (static_cast<std::ptrdiff_t>(block) * each + place) * kLanes, kLanes);
        UNROLL for (int j = 0; j < C; ++j) parts[r][j].add_product(x, numbers[j]);
      }
    }
    const int group = block / blocks_of_group * groups_of_block;
    UNROLL for (int j = 0; j < C; ++j) {
      const float* scales = b.scales + static_cast<std::ptrdiff_t>(column + j) * a.groups + group;
      const Sixteen<W> scale = spread<W, words_of_group>(scales, a.groups - group);
      UNROLL for (int r = 0; r < R; ++r) sums[r][j].add_product(parts[r][j], scale);
    }
  };
  int block = 0;
  for (; (block + 1) * kLanes <= words; ++block) add(block, kLanes);
  if (block * kLanes < words) add(block, words - block * kLanes);
  for (int group = 0; group < a.groups; group += kLanes) {
    const int count = std::min(kLanes, a.groups - group);
    UNROLL for (int j = 0; j < C; ++j) {
      const std::ptrdiff_t place = static_cast<std::ptrdiff_t>(column + j) * a.groups + group;
      Sixteen<W> bias, scale, half;
      bias.load(b.biases + place, count);
      scale.load(b.scales + place, count);
      UNROLL for (auto& part : half.parts) part = typename Sixteen<W>::Register{} + static_cast<float>(1 << (Bits - 1));
      bias.add_product(scale, half);
      UNROLL for (int r = 0; r < R; ++r) {
        Sixteen<W> of_group;
        of_group.load(a.sums.data() + static_cast<std::ptrdiff_t>(row + r) * a.groups + group, count);
        sums[r][j].add_product(of_group, bias);
      }
    }
  }
  UNROLL for (int r = 0; r < R; ++r)
    UNROLL for (int j = 0; j < C; ++j) c[static_cast<std::ptrdiff_t>(row + r) * b.n + column + j] = sum_of(sums[r][j]);
}

template <int W, int Bits, int Group, int R>
INLINE void dots_of_rows(const Left& a, const PackedMatrix& b, float* c, int row, int begin, int end) {
  constexpr int columns = W == 16 ? 2 : 1;
  int column = begin;
  for (; column + columns <= end; column += columns) dots<W, Bits, Group, R, columns>(a, b, c, row, column);
  for (; column < end; ++column) dots<W, Bits, Group, R, 1>(a, b, c, row, column);
}

template <int Bits, int Group>
struct Block {
  // So many rows of b stay in the nearest cache while all rows of a, some at a time, are multiplied with them.
  static constexpr int kTogether = 32, kRows = 4;

  template <int W>
  INLINE static void run(const Left& a, const PackedMatrix& b, float* c, int begin, int end) {
    for (int column = begin; column < end; column += kTogether) {
      const int stop = std::min(end, column + kTogether);
      int row = 0;
      for (; row + kRows <= a.m; row += kRows) dots_of_rows<W, Bits, Group, kRows>(a, b, c, row, column, stop);
      for (; row < a.m; ++row) dots_of_rows<W, Bits, Group, 1>(a, b, c, row, column, stop);
    }
  }
};

template <int Bits>
void columns(const Left& a, const PackedMatrix& b, float* c, int begin, int end) {
  switch (b.group) {
    case 32: return for_this_cpu<Block<Bits, 32>>(a, b, c, begin, end);
    case 64: return for_this_cpu<Block<Bits, 64>>(a, b, c, begin, end);
    default: return for_this_cpu<Block<Bits, 128>>(a, b, c, begin, end);
  }
}

}  // namespace

bool packed_product_takes(int bits, int group, int k) {
  return (bits == 2 || bits == 4 || bits == 8) && (group == 32 || group == 64 || group == 128) && k % group == 0;
}

void packed_product(int m, const float* a, const PackedMatrix& b, float* c) {
  const Left left(m, a, b);
  // A block is worth handing to another thread from some tens of microseconds on.
  const std::ptrdiff_t numbers = static_cast<std::ptrdiff_t>(b.n) * b.k;
  const int blocks = static_cast<int>(std::clamp<std::ptrdiff_t>(numbers / 65536, 1, 64));
  const int width = std::max(1, ((b.n + blocks - 1) / blocks + 15) / 16 * 16);
  in_parallel((b.n + width - 1) / width, [&](int block) {
    const int begin = block * width, end = std::min(b.n, begin + width);
    switch (b.bits) {
      case 2: return columns<2>(left, b, c, begin, end);
      case 4: return columns<4>(left, b, c, begin, end);
      default: return columns<8>(left, b, c, begin, end);
    }
  });
}
