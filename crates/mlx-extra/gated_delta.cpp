// MLX's fused gated delta update, which mlx-c 0.7 lacks. Programs look it up by name, so a build without this file still links.
#include "mlx/c/error.h"
#include "mlx/c/private/mlx.h"
#include "mlx/fast.h"

// `read` receives the output of every row, `[n, t, Hv, Dv]`, and `memory_after` the final memory, `[n, Hv, Dv, Dk]`.
// Queries and keys are `[n, t, Hk, Dk]`, values `[n, t, Hv, Dv]`, decays (not their logarithms) and corrections `[n, t,
// Hv]`.
extern "C" int mlx_extra_gated_delta_update(mlx_array* read, mlx_array* memory_after, const mlx_array queries, const mlx_array keys,
                                            const mlx_array values, const mlx_array decays, const mlx_array corrections,
                                            const mlx_array memory, const mlx_stream stream) {
  try {
    auto results = mlx::core::fast::gated_delta_update(mlx_array_get_(queries), mlx_array_get_(keys), mlx_array_get_(values),
                                                       mlx_array_get_(decays), mlx_array_get_(corrections), mlx_array_get_(memory),
                                                       std::nullopt, mlx_stream_get_(stream));
    mlx_array_set_(*read, results.at(0));
    mlx_array_set_(*memory_after, results.at(1));
  } catch (std::exception& error) {
    mlx_error(error.what());
    return 1;
  }
  return 0;
}
