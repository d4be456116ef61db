/* Detects the processor's instructions for bfloat16 products. */
#include "kernels/cpu/products/pairs.h"

#include "kernels/cpu/vendor/onednn.h"

mpg_pairs mpg_cpu_pairs(void) {
#ifdef MPG_WITH_PAIRS
#ifdef MPG_WITH_ONEDNN
  /* Linux lets a process use AMX tiles only after the process has requested permission. oneDNN
   * requests it when it detects AMX, so AMX is used only if oneDNN reports it. */
  const mpg_onednn *dnnl = mpg_cpu_onednn();
  if (dnnl && mpg_cpu_onednn_dtype(MPG_BFLOAT16) == dnnl_data_type_undef) return MPG_NO_PAIRS;
#ifdef MPG_WITH_TILES
  unsigned tiles = dnnl_cpu_isa_avx512_core_amx;
  if (dnnl && ((unsigned)dnnl->get_effective_cpu_isa() & tiles) == tiles) return MPG_PAIRS_IN_TILES;
#endif
  if (dnnl) return MPG_PAIRS_IN_VECTORS;
#endif
  if (__builtin_cpu_supports("avx512bf16")) return MPG_PAIRS_IN_VECTORS;
#endif
  return MPG_NO_PAIRS;
}
