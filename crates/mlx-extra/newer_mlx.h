// A header that the compiler includes before every source of mlx-c. It lets mlx-c 0.7, written for MLX 0.32.2, compile
// with MLX 0.32.4. Only one call needs it: MLX added a parameter, `global_scale`, before `sorted_indices` in
// `gather_qmm`. An overload with the old parameters is simpler than patching mlx-c. If MLX changes these parameters
// again, this file does not compile.
#pragma once

#include <optional>
#include <string>

#include "mlx/ops.h"

namespace mlx::core {

inline array gather_qmm(const array& x, const array& w, const array& scales, const std::optional<array>& biases,
                        const std::optional<array>& lhs_indices, const std::optional<array>& rhs_indices, bool transpose,
                        std::optional<int> group_size, std::optional<int> bits, const std::string& mode, bool sorted_indices,
                        StreamOrDevice s) {
  const std::optional<array> global_scale;
  return gather_qmm(x, w, scales, biases, lhs_indices, rhs_indices, transpose, group_size, bits, mode, global_scale, sorted_indices, s);
}

}  // namespace mlx::core
