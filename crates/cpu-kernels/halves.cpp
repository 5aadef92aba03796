// Products with f16 and bf16 matrices.
#include "products.h"
#include "weights.h"

void product_of_halves(int m, const float* a, const HalfMatrix& b, float* c) {
  const Product p{m, b.n, b.k, 1.0f, 0.0f, a, b.k, c, b.n};
  if (b.is_bf16) {
    product(p, Dense<Bf16>{static_cast<const Bf16*>(b.data), b.k});
  } else {
    product(p, Dense<F16>{static_cast<const F16*>(b.data), b.k});
  }
}

int rows_of_fixed_bits() { return tiles_pay() ? kTileRows : kFewRows; }
