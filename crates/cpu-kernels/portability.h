// Read before every file of mlx-c, and before its headers when the Rust bindings are made. It closes the gaps between mlx-c,
// which is written for Apple's compilers, and what mlx-rs expects of it, on Linux.
#pragma once

#ifdef __cplusplus

// mlx-c words a few messages with std::format, which libstdc++ has from version 13 on. All of them use plain `{}` alone.
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

// mlx-c offers its f16 and bf16 accessors on Arm alone (mlx/c/half.h), but mlx-rs calls them everywhere.
#ifndef __aarch64__
#define HAS_FLOAT16
#define HAS_BFLOAT16
#ifdef __cplusplus
// The very types MLX stores, so that the accessors are instantiated for its own dtypes.
#include "mlx/types/half_types.h"
using mlx::core::bfloat16_t;
using mlx::core::float16_t;
#else
// bindgen turns these into the types that mlx-rs converts from and to: `__BindgenFloat16` and `u16`.
typedef _Float16 float16_t;
typedef unsigned short bfloat16_t;
#endif
#endif
