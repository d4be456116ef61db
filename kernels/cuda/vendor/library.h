/* NVIDIA's libraries, loaded at their first use and never linked: cuBLASLt, cuBLAS, cuSOLVER,
 * cuDNN, NCCL, NVRTC.
 *
 * Each is searched for next to this library, in the folder that its setting names, in the wheels of
 * the host's site-packages (NVIDIA's own, as installed with PyTorch's wheels), then by its plain
 * name (the system's search path). The result is cached, even a failure. Any thread. Users of a
 * library declare the functions and constants that they use (of a stable interface), so that the
 * build needs only nvcc, and tests/hostcuda only has to emulate those functions: a list
 * MPG_X_FUNCTIONS, which the macros below expand to a struct of pointers and its names.
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
/* Opens a second file in the folder of an opened library, and keeps it open, for a library that
 * looks for the file by its plain name. Does nothing if the file does not exist. */
void mpg_cuda_library_open_beside(mpg_cuda_library_id id, const char *file);
/* Opens the library with index `number` and returns its information, or NULL if there is no such
 * index. */
const mpg_library *mpg_cuda_library_found(int number);
/* Returns the library's file, or "" if it is missing or has not been opened. */
const char *mpg_cuda_library_path(mpg_cuda_library_id id);

#endif
