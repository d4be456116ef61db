/* Moving elements between strided places: what transposes, slices, joins, tiles and diagonals come down to.
 *
 * A move copies out[sum(i_k * out_k)] = in[sum(i_k * in_k)] for every index i of `dims`. Strides count elements, may be
 * negative, and an input stride may be 0 (repetition). The target places are distinct and do not overlap the source's.
 * Stateless; any thread.
 */
#ifndef KERNELS_CPU_MOVE_H
#define KERNELS_CPU_MOVE_H

#include "kernels/cpu/cpu.h"

enum { MPG_MOVE_NDIM = 2 * MPG_MAX_NDIM };

typedef struct mpg_move {
  int ndim;
  int64_t dims[MPG_MOVE_NDIM], in[MPG_MOVE_NDIM], out[MPG_MOVE_NDIM];
} mpg_move;

static inline void mpg_move_add(mpg_move *move, int64_t dim, int64_t in, int64_t out) { /* appends an inner dimension */
  move->dims[move->ndim] = dim;
  move->in[move->ndim] = in;
  move->out[move->ndim++] = out;
}

/* Row-major strides, in elements. */
static inline void mpg_dense_strides(const mpg_shape *shape, int64_t *strides) {
  int64_t stride = 1;
  for (int i = shape->ndim - 1; i >= 0; i--) {
    strides[i] = stride;
    stride *= shape->dims[i];
  }
}

#define mpg_cpu_move MPG_CPU_NAME(move)
#define mpg_cpu_fill MPG_CPU_NAME(fill)
/* `item`: bytes an element. */
void mpg_cpu_move(const mpg_kernel_call *call, const mpg_move *move, const void *in, void *out, size_t item);
/* Writes `count` elements of `item` bytes (1, 2, 4 or 8), each a copy of *value. */
void mpg_cpu_fill(const mpg_kernel_call *call, void *out, int64_t count, size_t item, const void *value);

#endif
