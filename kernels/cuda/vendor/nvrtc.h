/* The parts of NVRTC in use, declared here: see library.h. */
#ifndef KERNELS_CUDA_VENDOR_NVRTC_H
#define KERNELS_CUDA_VENDOR_NVRTC_H

#include <stddef.h>

typedef int mpg_nvrtc_result; /* 0: success */
typedef struct mpg_nvrtc_program *mpg_nvrtc_program_handle;

#define MPG_NVRTC_FUNCTIONS(X)                                                          \
  X(mpg_nvrtc_result, nvrtcCreateProgram,                                               \
    (mpg_nvrtc_program_handle *, const char *source, const char *name, int headers,     \
     const char *const *texts, const char *const *names))                               \
  X(mpg_nvrtc_result, nvrtcCompileProgram,                                              \
    (mpg_nvrtc_program_handle, int count, const char *const *options))                  \
  X(mpg_nvrtc_result, nvrtcGetCUBINSize, (mpg_nvrtc_program_handle, size_t *size))      \
  X(mpg_nvrtc_result, nvrtcGetCUBIN, (mpg_nvrtc_program_handle, char *code))            \
  X(mpg_nvrtc_result, nvrtcGetProgramLogSize, (mpg_nvrtc_program_handle, size_t *size)) \
  X(mpg_nvrtc_result, nvrtcGetProgramLog, (mpg_nvrtc_program_handle, char *log))        \
  X(mpg_nvrtc_result, nvrtcDestroyProgram, (mpg_nvrtc_program_handle *))                \
  X(const char *, nvrtcGetErrorString, (mpg_nvrtc_result))

#endif
