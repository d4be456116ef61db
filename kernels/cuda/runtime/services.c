/* Entry point of the GPU library, and functions that forward to the core. The library does not link
 * against the core. It calls the core through a table of services, which it receives when it is
 * opened. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/runtime/runtime.h"
#include "op/fused.h"

const mpg_gpu_services *mpg_cuda_services;

/* Kind of the thread's first error since mpg_cuda_watch_failures. */
static _Thread_local enum { NO_FAILURE, CAPTURE_INVALIDATED, OTHER_FAILURE } first_failure;

void mpg_cuda_watch_failures(void) { first_failure = NO_FAILURE; }
bool mpg_cuda_failed_by_itself(void) { return first_failure == OTHER_FAILURE; }

mpg_status mpg_fail(mpg_status code, const char *format, ...) {
  va_list arguments;
  if (first_failure == NO_FAILURE) first_failure = OTHER_FAILURE;
  va_start(arguments, format);
  mpg_status status = mpg_cuda_services->fail(code, format, arguments);
  va_end(arguments);
  return status;
}

const char *mpg_error_text(void) { return mpg_cuda_services->error_text(); }

void mpg_assert_failed(const char *condition, const char *file, int line) {
  fprintf(stderr, "mpgluon: internal error: %s at %s:%d\n", condition, file, line);
  abort();
}

void *mpg_device_scratch_slot(mpg_device *device, mpg_scratch_slot slot, size_t size) {
  return mpg_cuda_services->scratch(device, slot, size);
}

mpg_status mpg_rendezvous_join(const mpg_participant *participant, mpg_rendezvous **rendezvous,
                               int *place) {
  return mpg_cuda_services->rendezvous_join(participant, rendezvous, place);
}
const void *mpg_rendezvous_data(const mpg_rendezvous *rendezvous, int place) {
  return mpg_cuda_services->rendezvous_data(rendezvous, place);
}
void mpg_rendezvous_leave(mpg_rendezvous *rendezvous) {
  mpg_cuda_services->rendezvous_leave(rendezvous);
}

mpg_status mpg_cuda_check(cudaError_t error, const char *what) {
  if (error == cudaSuccess) return MPG_OK;
  cudaGetLastError(); /* clears the error, so that a later call does not report it */
  if (first_failure == NO_FAILURE && error == cudaErrorStreamCaptureInvalidated)
    first_failure = CAPTURE_INVALIDATED;
  return mpg_fail(error == cudaErrorMemoryAllocation ? MPG_DEVICE_OUT_OF_MEMORY : MPG_ERROR,
                  "%.*s failed: %s", (int)strcspn(what, "("), what, cudaGetErrorString(error));
}

mpg_status mpg_cuda_enter(int card, int *former) {
  *former = -1;
  int current;
  MPG_CUDA_TRY(cudaGetDevice(&current));
  if (current == card) return MPG_OK;
  cudaError_t error = cudaSetDevice(card);
  if (error != cudaSuccess) {
    cudaSetDevice(current); /* a failed cudaSetDevice may have changed the current GPU */
    return mpg_cuda_check(error, "cudaSetDevice");
  }
  *former = current;
  return MPG_OK;
}

void mpg_cuda_leave(int former) {
  if (former >= 0 && cudaSetDevice(former) != cudaSuccess) cudaGetLastError();
}

mpg_status mpg_cuda_allow_shared(const void *kernel, size_t bytes) {
  enum { REMEMBERED = 64 };
  static _Thread_local struct {
    const void *kernel;
    int card;
    size_t bytes;
  } allowed[REMEMBERED];
  int card, at = (int)((uintptr_t)kernel / 16 % REMEMBERED);
  MPG_CUDA_TRY(cudaGetDevice(&card));
  if (allowed[at].kernel == kernel && allowed[at].card == card && allowed[at].bytes >= bytes)
    return MPG_OK;
  MPG_CUDA_TRY(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes));
  allowed[at].kernel = kernel;
  allowed[at].card = card;
  allowed[at].bytes = bytes;
  return MPG_OK;
}

extern const mpg_gpu_modules mpg_cuda_modules; /* modules.cu */
extern const mpg_kernel_fn mpg_cuda_table[MPG_OP_COUNT];
mpg_status mpg_cuda_fused(const mpg_kernel_call *call); /* fused.cu */
bool mpg_cuda_fuses(const mpg_op *op, const void *params, const mpg_dtype *dtypes, int count);

__attribute__((visibility("default"))) const mpg_gpu_library *mpg_gpu_library_open(
    const mpg_gpu_services *services) {
  static mpg_gpu_library library;
  mpg_cuda_services = services;
  library = (mpg_gpu_library){.stamp = mpg_kernel_stamp(),
                              .driver = &mpg_cuda_driver,
                              .modules = &mpg_cuda_modules,
                              .kernels = mpg_cuda_table,
                              .fused = (void (*)(void))mpg_cuda_fused,
                              .fuses = (void (*)(void))mpg_cuda_fuses};
  return &library;
}
