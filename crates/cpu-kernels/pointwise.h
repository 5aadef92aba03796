// Functions of the elements of a row, in vectors. `from` and `to` may be the same memory.
#pragma once

#include <cstddef>

// e^x over the sum of all e^x. NaN anywhere, +inf, or -inf everywhere make the whole row NaN.
void softmax_row(const float* from, float* to, std::ptrdiff_t count);
// x * sigmoid(x), and times another factor.
void silu_row(const float* from, float* to, std::ptrdiff_t count);
void gated_silu_row(const float* gate, const float* up, float* to, std::ptrdiff_t count);
void sigmoid_row(const float* from, float* to, std::ptrdiff_t count);
void tanh_row(const float* from, float* to, std::ptrdiff_t count);
// Each x over the root of `epsilon` and the mean of all x^2, times its weight; weights are `step` apart.
void norm_row(const float* from, float* to, std::ptrdiff_t count, const float* weight, std::ptrdiff_t step, float epsilon);
