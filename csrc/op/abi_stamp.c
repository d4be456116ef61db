/* ABI stamp, compiled into the core and into each kernel library. A library loads only if its stamp
 * equals that of the core. MPG_KERNEL_SOURCES is a hash of the kernels' sources
 * (tools/native_build.py). */
#include "device/gpu/gpu.h"
#include "op/fused.h"

static uint64_t mix(uint64_t hash, const void *bytes, size_t size) {
  for (size_t i = 0; i < size; i++)
    hash = (hash ^ ((const unsigned char *)bytes)[i]) * UINT64_C(1099511628211);
  return hash;
}

uint64_t mpg_kernel_stamp(void) {
  static const size_t sizes[] = {sizeof(mpg_kernel_call), sizeof(mpg_view),
                                 sizeof(mpg_fused),       sizeof(mpg_fused_member),
                                 sizeof(mpg_fused_value), sizeof(mpg_device),
                                 sizeof(mpg_gpu_library), MPG_OP_COUNT,
#define SIZE(structure) sizeof(mpg_##structure##_params),
                                 MPG_ALL_PARAMS(SIZE)
#undef SIZE
  };
  static const char names[] =
#define MPG_OP_ROW(id, ...) #id " "
#include "op/ops.def"
#undef MPG_OP_ROW
      "";
  static const uint64_t sources = MPG_KERNEL_SOURCES;
  uint64_t hash = mix(UINT64_C(14695981039346656037), sizes, sizeof sizes);
  return mix(mix(hash, names, sizeof names), &sources, sizeof sources);
}
