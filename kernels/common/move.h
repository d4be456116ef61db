/* Strided copies ("moves"), to which transposes, slices, joins, tiles and diagonals are reduced on
 * all backends.
 *
 * A move copies out[sum(i_k * out_k)] = in[sum(i_k * in_k)] for every index i of `dims`. Strides
 * are in elements and may be negative. An input stride may be 0, which repeats elements. The target
 * elements are distinct and do not overlap the source. These functions are stateless and may be
 * called from any thread.
 */
#ifndef KERNELS_COMMON_MOVE_H
#define KERNELS_COMMON_MOVE_H

#include "op/kernel.h"

enum { MPG_MOVE_NDIM = 2 * MPG_MAX_NDIM };

typedef struct mpg_move {
  int ndim;
  int64_t dims[MPG_MOVE_NDIM], in[MPG_MOVE_NDIM], out[MPG_MOVE_NDIM];
} mpg_move;

/* Appends an inner dimension. */
static inline void mpg_move_add(mpg_move *move, int64_t dim, int64_t in, int64_t out) {
  move->dims[move->ndim] = dim;
  move->in[move->ndim] = in;
  move->out[move->ndim++] = out;
}

/* Computes row-major strides in elements. */
static inline void mpg_dense_strides(const mpg_shape *shape, int64_t *strides) {
  int64_t stride = 1;
  for (int i = shape->ndim - 1; i >= 0; i--) {
    strides[i] = stride;
    stride *= shape->dims[i];
  }
}

/* Simplifies a move and converts its strides to bytes: drops dimensions of size 1 and merges
 * neighbors that are contiguous in both arrays. If the innermost dimension is contiguous in both
 * arrays, its elements become one larger item (*item, in bytes). Returns false if the move has no
 * elements. */
static inline bool mpg_move_merge(const mpg_move *move, int64_t *item, mpg_move *merged) {
  merged->ndim = 0;
  /* Check this first, because an empty move may have arbitrary strides. */
  for (int i = 0; i < move->ndim; i++)
    if (move->dims[i] == 0) return false;
  for (int i = 0; i < move->ndim; i++) {
    int64_t dim = move->dims[i], in = move->in[i] * *item, out = move->out[i] * *item;
    int last = merged->ndim - 1;
    if (dim == 1) continue;
    if (last >= 0 && merged->in[last] == in * dim && merged->out[last] == out * dim) {
      merged->dims[last] *= dim;
      merged->in[last] = in;
      merged->out[last] = out;
    } else {
      mpg_move_add(merged, dim, in, out);
    }
  }
  int last = merged->ndim - 1;
  if (last >= 0 && merged->in[last] == *item && merged->out[last] == *item)
    *item *= merged->dims[--merged->ndim];
  return true;
}

#endif
