// What our definitions of MLX operations have in common.
#pragma once

#include <dlfcn.h>

#include <stdexcept>

#include "mlx/array.h"
#include "mlx/utils.h"

namespace mlx::core {

namespace {

// Whether an operation on this array may be ours.
inline bool is_ours(const array& a, const StreamOrDevice& s) {
  return a.dtype() == float32 && a.ndim() > 0 && a.size() > 0 && to_stream(s).device == Device::cpu;
}

// The definition behind ours.
template <class Function>
Function* next(Function* ours) {
  Dl_info info{};
  void* found = dladdr(reinterpret_cast<void*>(ours), &info) == 0 ? nullptr : dlsym(RTLD_NEXT, info.dli_sname);
  if (found == nullptr) throw std::runtime_error("libmlx.so lacks an operation that it is known to have");
  return reinterpret_cast<Function*>(found);
}

}  // namespace

}  // namespace mlx::core
