/* Test-only: runs a kernel launch on the calling thread; `body` runs one CUDA thread. */
#ifndef HOSTCUDA_FIBERS_H
#define HOSTCUDA_FIBERS_H
#include "cuda_runtime.h"
void hostcuda_run(const cudaLaunchConfig_t &config, const std::function<void()> &body);
#endif
