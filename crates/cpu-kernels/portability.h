// Included before every source of mlx-c, and before its headers when the Rust bindings are generated. It makes mlx-c,
// which is written for Apple's compilers, provide what mlx-rs expects on Linux.
#pragma once

#ifdef __cplusplus

// mlx-c formats a few messages with std::format, which libstdc++ has since version 13. They all use only plain `{}`.
#include <version>
#ifdef __cpp_lib_format
#include <format>
#else
#include <sstream>
#include <string>
#include <string_view>
namespace std {
inline string format(string_view text) { return string(text); }

template <class First, class... Rest>
string format(string_view text, const First& first, const Rest&... rest) {
  const auto hole = text.find("{}");
  if (hole == string_view::npos) return string(text);
  ostringstream out;
  out << text.substr(0, hole) << first << format(text.substr(hole + 2), rest...);
  return out.str();
}
}  // namespace std
#endif

#endif

// mlx-c offers its f16 and bf16 accessors only on Arm (mlx/c/half.h), but mlx-rs calls them everywhere.
#ifndef __aarch64__
#define HAS_FLOAT16
#define HAS_BFLOAT16
#ifdef __cplusplus
// MLX's own types, so that the accessors are instantiated for its dtypes.
#include "mlx/types/half_types.h"
using mlx::core::bfloat16_t;
using mlx::core::float16_t;
#else
// bindgen maps these to the types that mlx-rs converts from and to: `__BindgenFloat16` and `u16`.
typedef _Float16 float16_t;
typedef unsigned short bfloat16_t;
#endif
#endif
