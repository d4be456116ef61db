/* What kernels with packed weights (op/packed.h) share. */
#ifndef KERNELS_CPU_PACKED_H
#define KERNELS_CPU_PACKED_H

#include "kernels/cpu/onednn.h"
#include "op/packed.h"

typedef struct mpg_packed_header {
  int32_t packed;      /* else the plain weight follows */
  int32_t num_threads; /* for which the primitive was chosen */
} mpg_packed_header;

static inline void *mpg_packed_contents(void *packed) { return (char *)packed + MPG_PACKED_HEADER * sizeof(float); }

#ifdef MPG_WITH_ONEDNN
static inline mpg_status mpg_packed_run(const mpg_kernel_call *call, const mpg_onednn_prepared *prepared, void *const *outer) {
  void *scratch = NULL;
  if (prepared->scratch && !(scratch = mpg_device_scratch(call->device, prepared->scratch))) return MPG_DEVICE_OUT_OF_MEMORY;
  return mpg_cpu_onednn_run(call, prepared, outer, scratch);
}
#endif

#endif
