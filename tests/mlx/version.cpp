/* Which MLX this bridge was compiled for: mlxvk_mlx does not load it into another. */
#include "mlx/version.h"

extern "C" {
extern const int mlxvk_mlx_built_for;
const int mlxvk_mlx_built_for = MLX_VERSION_NUMERIC;
}
