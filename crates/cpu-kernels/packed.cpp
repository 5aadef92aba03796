// Products with packed matrices.
#include "block_float.h"
#include "packed_formats.h"
#include "products.h"
#include "weights.h"

namespace {

template <int Bits>
struct Of {
  template <int W>
  using Values = Affine<W, Bits>;
  using Format = Packed<Bits, Values>;
};

// Calls `run` with the format of a matrix.
template <class Run>
void in_format(const PackedMatrix& b, const Run& run) {
  switch (b.packing) {
    case Packing::kMxfp8: return run(Packed<8, Float8>{b});
    case Packing::kMxfp4:
    case Packing::kNvfp4: return run(Packed<4, Float4>{b});
    case Packing::kAffine: break;
  }
  switch (b.bits) {
    case 2: return run(Of<2>::Format{b});
    case 3: return run(Of<3>::Format{b});
    case 4: return run(Of<4>::Format{b});
    case 5: return run(Of<5>::Format{b});
    case 6: return run(Of<6>::Format{b});
    default: return run(Of<8>::Format{b});
  }
}

}  // namespace

bool packed_product_takes(Packing packing, int bits, int group, int k) {
  const bool is_known = group == 16 || group == 32 || group == 64 || group == 128;
  if (!is_known || k % group != 0 || static_cast<std::int64_t>(k) * bits / 8 < kBeyond) return false;
  switch (packing) {
    case Packing::kAffine: return bits >= 2 && bits <= 8 && bits != 7;
    case Packing::kMxfp8: return bits == 8;
    default: return bits == 4;
  }
}

int rows_of_fixed_bits(Packing packing, int bits) { return block_float_takes(1, packing, bits) ? kBlockFloatRows : rows_of_fixed_bits(); }

void packed_product(int m, const float* a, const PackedMatrix& b, float* c) {
  if (block_float_takes(m, b.packing, b.bits)) return block_float_product(m, a, b, c);
  packed_product_in_f32(m, a, b, c);
}

void packed_product_in_f32(int m, const float* a, const PackedMatrix& b, float* c) {
  const Product p{m, b.n, b.k, 1.0f, 0.0f, a, b.k, c, b.n};
  in_format(b, [&](const auto& format) { product(p, format); });
}

void unpack(const PackedMatrix& b, float* to) {
  in_format(b, [&](const auto& format) {
    in_blocks(b.n, b.k, kWorthHanding, [&](int begin, int end) {
      for_this_cpu<Unpack<std::decay_t<decltype(format)>>>(format, b.k, begin, end, to + static_cast<std::ptrdiff_t>(begin) * b.k);
    });
  });
}
