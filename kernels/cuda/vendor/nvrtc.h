/* Run-time compilation of CUDA C++ with NVRTC. Declares only the NVRTC functions in use (see
 * library.h).
 *
 * Ownership: loaded code lives as long as the process. Threads: any.
 */
#ifndef KERNELS_CUDA_VENDOR_NVRTC_H
#define KERNELS_CUDA_VENDOR_NVRTC_H

#include "base/status.h"

typedef int mpg_nvrtc_result; /* 0 for success */
typedef struct mpg_nvrtc_program *mpg_nvrtc_program_handle;

#define MPG_NVRTC_FUNCTIONS(X)                                                                    \
  X(mpg_nvrtc_result, nvrtcVersion, (int *major, int *minor))                                     \
  X(mpg_nvrtc_result, nvrtcCreateProgram,                                                         \
    (mpg_nvrtc_program_handle *, const char *source, const char *name, int headers,               \
     const char *const *texts, const char *const *names))                                         \
  X(mpg_nvrtc_result, nvrtcAddNameExpression, (mpg_nvrtc_program_handle, const char *expression)) \
  X(mpg_nvrtc_result, nvrtcCompileProgram,                                                        \
    (mpg_nvrtc_program_handle, int count, const char *const *options))                            \
  X(mpg_nvrtc_result, nvrtcGetLoweredName,                                                        \
    (mpg_nvrtc_program_handle, const char *expression, const char **name))                        \
  X(mpg_nvrtc_result, nvrtcGetCUBINSize, (mpg_nvrtc_program_handle, size_t *size))                \
  X(mpg_nvrtc_result, nvrtcGetCUBIN, (mpg_nvrtc_program_handle, char *code))                      \
  X(mpg_nvrtc_result, nvrtcGetProgramLogSize, (mpg_nvrtc_program_handle, size_t *size))           \
  X(mpg_nvrtc_result, nvrtcGetProgramLog, (mpg_nvrtc_program_handle, char *log))                  \
  X(mpg_nvrtc_result, nvrtcDestroyProgram, (mpg_nvrtc_program_handle *))                          \
  X(const char *, nvrtcGetErrorString, (mpg_nvrtc_result))

enum { MPG_NVRTC_MAX_OPTIONS = 64, MPG_NVRTC_MAX_EXPORTS = 64 };

typedef struct mpg_nvrtc_source {
  const char *text, *name, *hint; /* error messages include `name` and, unless NULL, `hint` */
  int num_headers, num_options, num_exports;
  const char *const *header_texts, *const *header_names, *const *options;
  const char *const *exports; /* C++ expressions that name kernels, such as "axpy<float>" */
} mpg_nvrtc_source;

/* Compiled code. Free with mpg_nvrtc_free. */
typedef struct mpg_nvrtc_code {
  void *code;
  size_t size;
  char *names[MPG_NVRTC_MAX_EXPORTS]; /* mangled names of the exports */
} mpg_nvrtc_code;

/* Loads NVRTC; fails if it is missing. */
mpg_status mpg_nvrtc_find(void);
/* Compiles a source for the current GPU, or reads the compiled code from the cache (nvrtc_cache.h),
 * and loads it. *library receives the loaded code. */
mpg_status mpg_nvrtc_build(const mpg_nvrtc_source *source, mpg_nvrtc_code *code, void **library);
void mpg_nvrtc_free(mpg_nvrtc_code *code);
/* Sets *kernel to the kernel with the (mangled) name `name`. */
mpg_status mpg_nvrtc_kernel(void *library, const char *name, const void **kernel);

#endif
