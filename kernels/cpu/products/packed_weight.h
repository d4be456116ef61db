/* Headers that kernels with packed weights (op/layers/packed.h) share. A packed weight begins with
 * a header that says what lies behind: the weight in the layout of oneDNN's primitive, or, where
 * there is none, as it was.
 */
#ifndef KERNELS_CPU_PRODUCTS_PACKED_WEIGHT_H
#define KERNELS_CPU_PRODUCTS_PACKED_WEIGHT_H

#include "kernels/cpu/vendor/onednn.h"
#include "op/layers/packed.h"

typedef struct mpg_packed_header {
  int32_t packed;      /* else the plain weight follows */
  int32_t num_threads; /* for which the primitive was chosen */
} mpg_packed_header;

static inline void *mpg_packed_contents(void *packed) {
  return (char *)packed + MPG_PACKED_HEADER * sizeof(float);
}

/* Which primitive reads the weight. Every kernel has its own struct that begins with this one. */
typedef struct mpg_packing {
#ifdef MPG_WITH_ONEDNN
  mpg_onednn_key key; /* without its kind */
  mpg_onednn_kind pack, run;
  /* The primitive, the same for packing and for use, and a desc of the weight as it is; both are
   * the caller's. NULL: there is none. */
  dnnl_primitive_desc_t (*choose)(const mpg_onednn *dnnl, const struct mpg_packing *packing,
                                  dnnl_memory_desc_t *plain);
  mpg_onednn_build build; /* of `run`; slot 1 is the packed weight */
#endif
  size_t room; /* bytes for the packed weight */
} mpg_packing;

#ifdef MPG_WITH_ONEDNN
/* For mpg_cpu_onednn_find, with an mpg_packing. Slots: the weight as it is, and packed; offset[1]:
 * bytes of the packed one. */
#define mpg_cpu_build_pack MPG_CPU_NAME(build_pack)
bool mpg_cpu_build_pack(const mpg_onednn *dnnl, mpg_onednn_prepared *prepared, void *packing);
#endif

/* The kernel of a packing op. packing: with key, pack and choose; NULL: the weight stays as it is.
 */
#define mpg_cpu_pack MPG_CPU_NAME(pack)
mpg_status mpg_cpu_pack(const mpg_kernel_call *call, mpg_packing *packing);
/* The op with the weight call->inputs[1], if it is packed. outer: addresses of the slots; slot 1 is
 * filled in. */
#define mpg_cpu_packed_run MPG_CPU_NAME(packed_run)
mpg_status mpg_cpu_packed_run(const mpg_kernel_call *call, mpg_packing *packing, void **outer);

#endif
