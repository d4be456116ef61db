/* Device-side assertions: errors that kernels detect in their inputs at run time. The error is
 * raised when the call's results are awaited (device/gpu/gpu.h). Work continues in the meantime, so
 * a kernel must not access invalid memory and must produce some results even for invalid inputs.
 *
 * A check consists of two kernels. The first one stores the smallest index of an invalid input in a
 * word that was initialized to MPG_CUDA_NONE. The second one, which has a single thread, reads the
 * word and raises the error.
 */
#ifndef KERNELS_CUDA_RUNTIME_DEVICE_ASSERT_H
#define KERNELS_CUDA_RUNTIME_DEVICE_ASSERT_H

#include "kernels/cuda/cuda.h"

#define MPG_CUDA_NONE UINT64_MAX /* all bytes 0xFF */

struct mpg_cuda_assert {
  mpg_gpu_report *report;
  volatile uint32_t *raised;
  const char *format, *name;
  uint32_t scope;
  mpg_status status;
  __device__ void raise(int64_t a, int64_t b = 0, int64_t c = 0, int64_t d = 0) const {
    if (*(const char *volatile *)&report->format) return; /* keeps the first error */
    report->name = name;
    report->values[0] = a, report->values[1] = b, report->values[2] = c, report->values[3] = d;
    report->scope = scope, report->status = status;
    __threadfence_system();
    *(const char *volatile *)&report->format = format;
    __threadfence_system();
    *raised = 1;
  }
};

/* Fills in *assertion, which is then passed to a kernel. `format` must be a string literal in the
 * style of mpg_fail: first %s for the op's name, then up to four %lld for numbers. */
static inline mpg_status mpg_cuda_assert_make(const mpg_kernel_call *call, mpg_status status,
                                              const char *format, mpg_cuda_assert *assertion) {
  _Atomic(uint32_t) *raised;
  MPG_TRY(mpg_cuda_services->check(call->device, &assertion->report, &raised));
  assertion->raised = (volatile uint32_t *)raised;
  assertion->format = format, assertion->name = call->op->name, assertion->status = status;
  assertion->scope = atomic_load_explicit(&call->device->at.scope, memory_order_relaxed);
  return MPG_OK;
}

/* Sets `word`, which records the index of the first invalid input, to MPG_CUDA_NONE. */
static inline mpg_status mpg_cuda_nothing_wrong(const mpg_kernel_call *call,
                                                unsigned long long *word) {
  return mpg_cuda_check(cudaMemsetAsync(word, 0xff, sizeof *word, (cudaStream_t)call->stream),
                        "cudaMemsetAsync");
}

#endif
