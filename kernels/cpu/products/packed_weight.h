/* Headers shared by kernels with packed weights (op/layers/packed.h). A packed weight begins with a
 * header that describes the rest: the weight in the layout of oneDNN's primitive, or plain if there
 * is no such primitive.
 */
#ifndef KERNELS_CPU_PRODUCTS_PACKED_WEIGHT_H
#define KERNELS_CPU_PRODUCTS_PACKED_WEIGHT_H

#include "kernels/cpu/vendor/onednn.h"
#include "op/layers/packed.h"

typedef struct mpg_packed_header {
  int32_t packed;      /* else a plain weight follows */
  int32_t num_threads; /* threads of the chosen primitive */
} mpg_packed_header;

static inline void *mpg_packed_contents(void *packed) {
  return (char *)packed + MPG_PACKED_HEADER * sizeof(float);
}

/* Describes the primitive that reads the weight. Every kernel embeds this struct first in its
 * own. */
typedef struct mpg_packing {
#ifdef MPG_WITH_ONEDNN
  mpg_onednn_key key; /* without its kind */
  mpg_onednn_kind pack, run;
  /* Returns the primitive, the same for packing and for use, and a desc of the plain weight. The
   * caller owns both. NULL if there is none. */
  dnnl_primitive_desc_t (*choose)(const mpg_onednn *dnnl, const struct mpg_packing *packing,
                                  dnnl_memory_desc_t *plain);
  mpg_onednn_build build; /* builds `run`; slot 1 is the packed weight */
#endif
  size_t room; /* bytes for the packed weight */
} mpg_packing;

#ifdef MPG_WITH_ONEDNN
/* Builder for mpg_cpu_onednn_find, with an mpg_packing. Slots are the plain and the packed weight;
 * offset[1] is the size of the packed one in bytes. */
bool mpg_cpu_build_pack(const mpg_onednn *dnnl, mpg_onednn_prepared *prepared, void *packing)
    MPG_PER_ISA(mpg_cpu_build_pack);
#endif

/* Runs a packing op. `packing` has key, pack and choose; NULL leaves the weight plain. */
mpg_status mpg_cpu_pack(const mpg_kernel_call *call, mpg_packing *packing)
    MPG_PER_ISA(mpg_cpu_pack);
/* Runs the op on the weight call->inputs[1] if it is packed. `outer` has the slots' addresses; slot
 * 1 is filled in. */
mpg_status mpg_cpu_packed_run(const mpg_kernel_call *call, mpg_packing *packing, void **outer)
    MPG_PER_ISA(mpg_cpu_packed_run);

#endif
