/* NVIDIA's libraries, which are loaded on first use and never linked: cuBLASLt, cuBLAS, cuSOLVER,
 * cuDNN, NCCL, NVRTC.
 *
 * A library is searched for in this order:
 * - the folder of mpgluon's own GPU library
 * - the folder that the library's environment variable names; if the variable is set, the search
 *   ends here
 * - NVIDIA's wheels in site-packages
 * - the system's search path
 * The result is cached, even a failure. Threads: any.
 *
 * For each library, a header here declares the functions and constants in use, so that the build
 * does not need NVIDIA's headers, and tests/hostcuda only has to emulate those functions. A macro
 * MPG_X_FUNCTIONS lists the functions, and the macros below expand it to a struct of function
 * pointers and to an array of their names.
 */
#ifndef KERNELS_CUDA_VENDOR_LIBRARY_H
#define KERNELS_CUDA_VENDOR_LIBRARY_H

#include "base/library.h"
#include "base/status.h"

typedef enum mpg_cuda_library_id {
  MPG_CUDA_CUBLASLT,
  MPG_CUDA_CUBLAS,
  MPG_CUDA_CUSOLVER,
  MPG_CUDA_CUDNN,
  MPG_CUDA_NCCL,
  MPG_CUDA_NVRTC,
  MPG_CUDA_LIBRARIES
} mpg_cuda_library_id;

#define MPG_CUDA_FUNCTION(result, name, parameters) result(*name) parameters;
#define MPG_CUDA_FUNCTION_NAME(result, name, parameters) #name,

/* Fills the struct of pointers `functions` with the addresses of `names`. If the library or a
 * function is missing, fails with the pip command that installs it. */
mpg_status mpg_cuda_library_functions(mpg_cuda_library_id id, const char *const *names, int count,
                                      void *functions);
/* Opens a second file in the folder of an opened library, and keeps it open. The library itself
 * opens that file without a path, which succeeds only if the file is already open. Does nothing if
 * the file does not exist. */
void mpg_cuda_library_open_beside(mpg_cuda_library_id id, const char *file);
/* Opens the library with index `number` and returns its information, or NULL if the index is out of
 * range. */
const mpg_library *mpg_cuda_library_found(int number);
/* Returns the path of the library's file, or "" if it is missing or has not been opened. */
const char *mpg_cuda_library_path(mpg_cuda_library_id id);

#endif
