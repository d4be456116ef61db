/* CUDA C++ kernels written by users (mx.rtc).
 *
 * A module is compiled when it is created. Modules and kernels are never freed. Compiling the same
 * source twice returns the same module. Threads: callers hold the host lock.
 */
#ifndef MPG_OP_USER_GPU_MODULE_H
#define MPG_OP_USER_GPU_MODULE_H

#include "device/gpu/gpu.h"
#include "tensor/tensor.h"

enum { MPG_GPU_MAX_ARGUMENTS = 128 };

/* A kernel argument: an array, or a number in the format that the kernel expects. */
typedef struct mpg_gpu_argument {
  const mpg_tensor *tensor; /* borrowed; NULL for a number */
  bool writes;
  unsigned char number[8];
} mpg_gpu_argument;

typedef struct mpg_gpu_launch {
  const void *kernel;
  const char *name;
  mpg_device *device;
  uint32_t grid[3], block[3], shared;
  int num_arguments;
  const mpg_gpu_argument *arguments;
} mpg_gpu_launch;

/* Compiles a module. If no GPU is usable, fails with the reason. */
mpg_status mpg_gpu_module_compile(const mpg_gpu_source *source, void **module);
mpg_status mpg_gpu_module_kernel(void *module, const char *name, const void **kernel);
/* Queues a launch. */
mpg_status mpg_gpu_module_launch(const mpg_gpu_launch *launch);

#endif
