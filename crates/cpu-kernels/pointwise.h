// Vectorized functions of a row's elements. `from` and `to` may be the same memory.
#pragma once

#include <cstddef>

// e^x divided by the sum of all e^x. A row is all NaN if it contains NaN or +inf, or only -inf.
void softmax_row(const float* from, float* to, std::ptrdiff_t count);
// x * sigmoid(x), and that times another factor.
void silu_row(const float* from, float* to, std::ptrdiff_t count);
void gated_silu_row(const float* gate, const float* up, float* to, std::ptrdiff_t count);
void sigmoid_row(const float* from, float* to, std::ptrdiff_t count);
void tanh_row(const float* from, float* to, std::ptrdiff_t count);
// x / sqrt(mean(x^2) + epsilon) * weight. Weights have a stride of `step`.
void norm_row(const float* from, float* to, std::ptrdiff_t count, const float* weight, std::ptrdiff_t step, float epsilon);
