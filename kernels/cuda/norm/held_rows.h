/* Launch code of LayerNorm, L2Normalization and rms_norm: the choice of kernels that hold rows in
 * registers, and their backward pass. Include in .cu files only. */
#ifndef KERNELS_CUDA_NORM_HELD_ROWS_H
#define KERNELS_CUDA_NORM_HELD_ROWS_H

#include "kernels/cuda/access.h"
#include "kernels/cuda/rows.h"
extern "C" {
#include "kernels/cuda/norm/norm.h"
}

/* Sums over columns by kernels without held rows: a block has MPG_COLUMN_ROWS x 32 threads, and
 * adds MPG_COLUMN_CHUNK rows of 32 columns. */
enum { MPG_COLUMN_ROWS = 8, MPG_COLUMN_CHUNK = 256 };

/* Returns the number of threads per block if a block processes a row of n elements. */
static inline unsigned mpg_row_threads(int64_t n) {
  return n <= 64 ? 32 : n <= 512 ? 128 : MPG_CUDA_THREADS;
}

/* True if contiguous rows of n elements are held in registers. Depends only on size and dtype, so
 * that alignment does not affect results. */
template <class T>
bool mpg_row_is_held(int64_t n) {
  return sizeof(mpg_compute_t<T>) == 4 && n > 0 && n <= MPG_ROW_BLOCK;
}
/* True if all rows of these arrays are aligned, so that they can be loaded 16 bytes at a time. NULL
 * is aligned. */
template <class T, class... Arrays>
bool mpg_rows_are_full(int64_t n, const Arrays *...arrays) {
  return n % mpg_pack<T>::COUNT == 0 && (mpg_cuda_aligned(arrays) && ...);
}

/* Calls f with an object of the mpg_row type for rows of n elements, which must be held. */
template <class T, class F>
mpg_status mpg_with_held_row(int64_t n, bool full, F f) {
  return mpg_with_row<T>(n, full, [&](auto form) {
    if constexpr (decltype(form)::held) return f(form);
    return (mpg_status)MPG_OK;
  });
}

/* Runs a backward kernel with held rows. launch(form, blocks, bytes, each, partial) starts it:
 * every block has `each` rows and `bytes` of shared memory, and stores partial sums of dgamma and
 * dbeta, [block][2][n]. Then adds these sums. If dgamma is NULL, `partial` is NULL. dbeta may be
 * NULL. */
template <class T, class F>
mpg_status mpg_held_rows_backward(const mpg_kernel_call *call, int64_t rows, int64_t n, bool full,
                                  T *dgamma, T *dbeta, F launch) {
  int each = mpg_layer_norm_rows(rows);
  int64_t blocks = each ? (rows + each - 1) / each : 0;
  float *partial = NULL;
  if (dgamma) {
    partial =
        (float *)mpg_device_scratch(call->device, (size_t)(blocks * 2 * n + 1) * sizeof(float));
    if (!partial) return MPG_DEVICE_OUT_OF_MEMORY;
  }
  MPG_TRY(mpg_with_held_row<T>(n, full, [&](auto form) {
    typedef decltype(form) R;
    return launch(form, (unsigned)blocks, R::ROWS > 1 ? R::ROWS * (size_t)n * sizeof(float) : 0,
                  each, partial);
  }));
  if (!dgamma) return MPG_OK;
  return mpg_cuda_add_shares(call, partial, blocks, n, call->outputs[1].desc.dtype, dgamma, dbeta);
}

#endif
