// Code for each processor generation, by register width, selected at run time.
#pragma once

#include <cstdlib>

#define INLINE __attribute__((always_inline)) inline
#define INLINE_LAMBDA __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 16")

#if defined(__x86_64__) && !defined(__clang__)
#define V3 __attribute__((target("arch=x86-64-v3")))
#define V4 __attribute__((target("arch=x86-64-v4")))
#else
#define V3
#define V4
#endif

namespace {

// Returns the number of floats per register on this processor, as far as code is compiled for it: 16 for x86-64-v4, 8
// for v3, else 4. The environment variable MLX_REGISTER_WIDTH lowers it, so that one processor can test the code for
// others.
inline int register_width() {
#if defined(__x86_64__) && !defined(__clang__)
  static const int width = [] {
    const bool middle = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2") &&
                        __builtin_cpu_supports("f16c");
    const bool wide = middle && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    const char* const asked = std::getenv("MLX_REGISTER_WIDTH");
    const int most = asked == nullptr ? 16 : std::atoi(asked);
    return wide && most >= 16 ? 16 : middle && most >= 8 ? 8 : 4;
  }();
  return width;
#else
  return 4;
#endif
}

template <class Kernel, class... Arguments>
void run_anywhere(const Arguments&... arguments) {
  Kernel::template run<4>(arguments...);
}

template <class Kernel, class... Arguments>
V3 void run_v3(const Arguments&... arguments) {
  Kernel::template run<8>(arguments...);
}

template <class Kernel, class... Arguments>
V4 void run_v4(const Arguments&... arguments) {
  Kernel::template run<16>(arguments...);
}

// Calls Kernel::run<W>, compiled for this processor and its register width W.
template <class Kernel, class... Arguments>
INLINE void for_this_cpu(const Arguments&... arguments) {
  switch (register_width()) {
    case 16: return run_v4<Kernel>(arguments...);
    case 8: return run_v3<Kernel>(arguments...);
    default: return run_anywhere<Kernel>(arguments...);
  }
}

}  // namespace
