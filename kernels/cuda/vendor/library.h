/* NVIDIA's libraries, opened when first needed, never linked: cuBLASLt, cuBLAS,
 * cuSOLVER, cuDNN, NCCL, NVRTC.
 *
 * Each is looked for beside this library, in the folder its setting names, in the wheels of the
 * host's site-packages (NVIDIA's own, as PyTorch's wheels bring them too), then by its plain name
 * (the system's search path). What was found, or not, stays so. Any thread. Users of a library
 * declare what they call of it themselves (functions and constants of a stable interface), so that
 * building needs nothing but nvcc, and the stand-in of tests/hostcuda the same few functions: a
 * list MPG_X_FUNCTIONS, of which the macros below make a struct of pointers and its names.
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

/* Fills the struct of pointers `functions` with the addresses of `names`. Fails when the library or
 * one of them is missing, with the pip command that brings it. */
mpg_status mpg_cuda_library_functions(mpg_cuda_library_id id, const char *const *names, int count,
                                      void *functions);
/* Opens another file of the folder where an opened library lies, and keeps it open, for a library
 * that looks for the file by its name alone. Nothing where there is no such file. */
void mpg_cuda_library_open_beside(mpg_cuda_library_id id, const char *file);
/* What is known of the library of that number, which this opens; NULL: there is none of it. */
const mpg_library *mpg_cuda_library_found(int number);
/* The file it was found in; "" when it was not, or not looked for yet. */
const char *mpg_cuda_library_path(mpg_cuda_library_id id);

#endif
