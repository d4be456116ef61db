/* Which products of bfloat16 the processor has. */
#include "kernels/cpu/products/pairs.h"

#include "kernels/cpu/vendor/onednn.h"

mpg_pairs mpg_cpu_pairs(void) {
#ifdef MPG_WITH_PAIRS
#ifdef MPG_WITH_ONEDNN
  /* It also asks the system for the tiles: without that, they are not a process's to use. */
  const mpg_onednn *dnnl = mpg_cpu_onednn();
  if (dnnl) {
    unsigned isa = (unsigned)dnnl->get_effective_cpu_isa(), tiles = dnnl_cpu_isa_avx512_core_amx,
             vectors = dnnl_cpu_isa_avx512_core_bf16;
#ifdef MPG_WITH_TILES
    if ((isa & tiles) == tiles) return MPG_PAIRS_IN_TILES;
#else
    (void)tiles;
#endif
    return (isa & vectors) == vectors ? MPG_PAIRS_IN_VECTORS : MPG_NO_PAIRS;
  }
#endif
  if (__builtin_cpu_supports("avx512bf16")) return MPG_PAIRS_IN_VECTORS;
#endif
  return MPG_NO_PAIRS;
}
