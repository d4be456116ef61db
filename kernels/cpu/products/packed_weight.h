/* Declarations shared by kernels with packed weights (op/layers/packed.h). A packed weight begins
 * with a header. The weight follows in the layout of oneDNN's primitive, or in its plain layout if
 * oneDNN has no primitive for it.
 */
#ifndef KERNELS_CPU_PRODUCTS_PACKED_WEIGHT_H
#define KERNELS_CPU_PRODUCTS_PACKED_WEIGHT_H

#include "kernels/cpu/vendor/onednn.h"
#include "op/layers/packed.h"

typedef struct mpg_packed_header {
  int32_t packed;      /* 1 if the weight has the primitive's layout, 0 if plain */
  int32_t num_threads; /* number of threads that the primitive was chosen for */
} mpg_packed_header;

static inline void *mpg_packed_contents(void *packed) {
  return (char *)packed + MPG_PACKED_HEADER * sizeof(float);
}

/* Describes the primitive that reads the weight. Each kernel's own struct begins with an
 * mpg_packing, so that callbacks can cast the pointer back. */
typedef struct mpg_packing {
#ifdef MPG_WITH_ONEDNN
  mpg_onednn_key key; /* `kind` is filled in by the functions below */
  mpg_onednn_kind pack, run;
  /* Returns the primitive's desc, and the plain weight's desc in *plain. The caller owns both. Must
   * choose the same primitive for packing and for running. Returns NULL if oneDNN has no suitable
   * primitive. */
  dnnl_primitive_desc_t (*choose)(const mpg_onednn *dnnl, const struct mpg_packing *packing,
                                  dnnl_memory_desc_t *plain);
  mpg_onednn_build build; /* builds the operation `run`, whose slot 1 is the packed weight */
  /* Number of threads to run with if it is less than the number that the layout was chosen for; 0
   * for the same number. */
  int num_threads;
  int layout_threads; /* the number that the layout was chosen for; filled in by the functions */
#endif
  size_t room; /* bytes available for the packed weight */
} mpg_packing;

#ifdef MPG_WITH_ONEDNN
/* Calls packing->choose with the number of threads that the layout was chosen for. */
dnnl_primitive_desc_t mpg_cpu_packing_choose(const mpg_onednn *dnnl, const mpg_packing *packing,
                                             dnnl_memory_desc_t *plain)
    MPG_PER_ISA(mpg_cpu_packing_choose);
/* Builder for mpg_cpu_onednn_find. `packing` is an mpg_packing. The slots are the plain and the
 * packed weight. offset[1] is set to the size of the packed weight in bytes. */
bool mpg_cpu_build_pack(const mpg_onednn *dnnl, mpg_onednn_prepared *prepared, void *packing)
    MPG_PER_ISA(mpg_cpu_build_pack);
#endif

/* Runs a packing op: writes the header and the weight to call->outputs[0]. The caller fills in key,
 * pack and choose of `packing`. If `packing` is NULL, the weight stays plain. */
mpg_status mpg_cpu_pack(const mpg_kernel_call *call, mpg_packing *packing)
    MPG_PER_ISA(mpg_cpu_pack);
/* Runs an op with the packed weight call->inputs[1]. `outer` has the addresses of all slots except
 * slot 1, which this function fills in. Fails if the weight is not packed or is too small. */
mpg_status mpg_cpu_packed_run(const mpg_kernel_call *call, mpg_packing *packing, void **outer)
    MPG_PER_ISA(mpg_cpu_packed_run);

#endif
