/* Canonical forms of reductions and broadcasts, shared by all backends. These functions are
 * stateless and may be called from any thread. */
#ifndef KERNELS_COMMON_REDUCE_H
#define KERNELS_COMMON_REDUCE_H

#include "kernels/common/view.h"
#include "op/math/reduce.h"

typedef enum mpg_combine { MPG_ADD, MPG_MULTIPLY, MPG_LARGEST, MPG_SMALLEST } mpg_combine;
typedef enum mpg_prepare {
  MPG_PLAIN,
  MPG_MAGNITUDE,
  MPG_SQUARE,
  MPG_NAN_TO_0,
  MPG_NAN_TO_1
} mpg_prepare;

typedef struct mpg_reduction {
  mpg_combine how;
  mpg_prepare prepare; /* applied to each element before elements are combined */
  bool mean, root;     /* divide each result by the number of elements; take its square root */
} mpg_reduction;

static inline mpg_reduction mpg_reduction_of(const mpg_op *op, const void *params) {
  mpg_reduction f = {MPG_ADD, MPG_PLAIN, false, false};
  switch (op->id) {
    case MPG_OP_norm: {
      int64_t ord = ((const mpg_reduce_norm_params *)params)->ord;
      f.prepare = ord == 1 ? MPG_MAGNITUDE : MPG_SQUARE;
      f.root = ord == 2;
      break;
    }
    case MPG_OP_mean: f.mean = true; break;
    case MPG_OP_prod: f.how = MPG_MULTIPLY; break;
    case MPG_OP_nansum: f.prepare = MPG_NAN_TO_0; break;
    case MPG_OP_nanprod: f.how = MPG_MULTIPLY, f.prepare = MPG_NAN_TO_1; break;
    case MPG_OP_max: f.how = MPG_LARGEST; break;
    case MPG_OP_min: f.how = MPG_SMALLEST; break;
    default: break; /* sum */
  }
  return f;
}

/* Runs of axes of a reduction, outermost first. A run merges adjacent axes that are all reduced or
 * all kept. Axes of size 1 are dropped. */
typedef struct mpg_runs {
  int64_t sizes[MPG_MAX_NDIM + 1];
  bool reduced[MPG_MAX_NDIM + 1];
  int count;
  int64_t total; /* number of elements that are reduced to one result */
} mpg_runs;

static inline mpg_runs mpg_runs_of(const mpg_shape *shape, const bool *reduced) {
  mpg_runs r;
  bool any = false;
  r.count = 0, r.total = 1;
  for (int i = 0; i < shape->ndim; i++) {
    if (reduced[i]) r.total *= shape->dims[i];
    if (shape->dims[i] == 1) continue;
    any |= reduced[i];
    if (r.count && r.reduced[r.count - 1] == reduced[i]) {
      r.sizes[r.count - 1] *= shape->dims[i];
    } else {
      r.sizes[r.count] = shape->dims[i];
      r.reduced[r.count++] = reduced[i];
    }
  }
  /* If no axis is reduced, appends a reduced run of size 1, so that one pass still prepares the
   * elements and converts them to the accumulator's type. */
  if (!any) {
    r.sizes[r.count] = 1;
    r.reduced[r.count++] = true;
  }
  return r;
}

/* Computes *outer and *inner, the products of the sizes of the runs outside and inside `run`.
 * Reduced inner runs have size 1 here, because they are reduced first. The input of the pass that
 * reduces `run` then has the shape (outer, size of the run, inner). */
static inline void mpg_runs_around(const mpg_runs *r, int run, int64_t *outer, int64_t *inner) {
  *outer = *inner = 1;
  for (int i = 0; i < run; i++) *outer *= r->sizes[i];
  for (int i = run + 1; i < r->count; i++) *inner *= r->reduced[i] ? 1 : r->sizes[i];
}

/* Runs of axes of a broadcast, innermost first. Along a run, the source either advances or repeats
 * (stride 0). */
typedef struct mpg_broadcast {
  int ndim;
  int64_t dims[MPG_MAX_NDIM], strides[MPG_MAX_NDIM]; /* strides in elements of the source */
} mpg_broadcast;

static inline mpg_broadcast mpg_broadcast_of(const mpg_shape *from, const mpg_shape *to) {
  mpg_broadcast b;
  int64_t step = 1;
  int varying_before = -1;
  b.ndim = 0;
  for (int i = 1; i <= to->ndim; i++) {
    int64_t n = to->dims[to->ndim - i], m = i <= from->ndim ? from->dims[from->ndim - i] : 1;
    if (n == 1) continue;
    int varying = m != 1;
    if (varying == varying_before) {
      b.dims[b.ndim - 1] *= n;
    } else {
      b.dims[b.ndim] = n;
      b.strides[b.ndim++] = varying ? step : 0;
      varying_before = varying;
    }
    step *= m;
  }
  return b;
}

#endif
