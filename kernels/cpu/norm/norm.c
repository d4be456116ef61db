/* BatchNorm, LayerNorm, rms_norm, GroupNorm, InstanceNorm, L2Normalization and LRN. */
#include <math.h>
#include <omp.h>
#include <string.h>
#ifdef __AVX512DQ__
#include <immintrin.h>
#endif

#include "base/memory.h"
#include "kernels/common/view.h"
#include "kernels/cpu/convert.h"
#include "op/layers/norm.h"

/* Data viewed as (outer, channels, inner). The fields from `partial` to the end are used only if
 * inner is 1. */
typedef struct batch_norm {
  int64_t outer, channels, inner;
  double eps, momentum;
  bool batch_stats;
  const void *x, *dy, *gamma, *beta; /* gamma may be NULL, which means 1 */
  void *y;                           /* output, or dx */
  void *moving_mean, *moving_var, *mean, *inverse, *dgamma, *dbeta;
  double *partial; /* SUMS sums per channel for each piece of rows */
  int64_t piece_rows;
  /* per channel; separate from inputs, which may be overwritten */
  void *center, *scale, *shift, *kept_mean;
  const void *residual; /* added before relu, or NULL */
  void *dresidual;
  uint8_t *mask; /* in the format of op/layers/norm.c; NULL if no relu */
  int64_t mask_bytes;
} batch_norm;

enum { SUMS = 3 };

/* Returns the sum of dy * (x - mean). `product` and `away` are the sums of dy * (x - m) and x - m,
 * where m is the rounded mean. `sum` is the sum of dy. The correction for the rounding of the mean
 * dominates if dy is nearly constant. */
static double about_mean(double product, double sum, double away, double count) {
  return count > 0 ? product - away / count * sum : product;
}

/* LayerNorm and L2Normalization (`deviation` holds the norms): data viewed as (outer, n, inner),
 * normalized along n. For GroupNorm, `outer` is the number of rows of n elements and `inner` the
 * number of groups. */
typedef struct layer_norm {
  int64_t outer, n, inner;
  double eps, offset; /* offset: of rms_norm */
  const void *x, *dy, *gamma, *beta;
  void *y, *mean, *deviation, *dgamma, *dbeta;
  bool rounded;    /* mean and deviation have the dtype of x; if false, the computing type */
  double *partial; /* GroupNorm backward: each row's share of dgamma and dbeta */
  /* LayerNorm along the last axis, in the computing type: each thread's rows, and for backward the
   * sums of dgamma and dbeta per piece of rows. */
  char *rows;
  size_t row_bytes;
  void *sums;
  int64_t piece_rows;
} layer_norm;

static void *layer_norm_rows_of(const layer_norm *t) {
  return t->rows + (size_t)omp_get_thread_num() * t->row_bytes;
}

typedef struct lrn {
  int64_t channels, inner, nsize;
  double alpha, beta, knorm;
  const void *x, *dy;
  void *y, *norm;
} lrn;

#define IMPLEMENTATION "kernels/cpu/norm/norm_impl.h"
#include "kernels/cpu/float_instances.h"

enum { BLOCK = 64 }; /* columns handled together; must equal COLUMNS in norm_impl.h */
static int64_t blocks(int64_t columns) { return (columns + BLOCK - 1) / BLOCK; }
/* Returns the minimum number of work units, with `elements_each` elements each, that justifies a
 * thread. */
static int64_t grain(int64_t elements_each) {
  return elements_each >= 16384 ? 1 : 16384 / (elements_each + 1) + 1;
}

static void split_axis(const mpg_shape *shape, int axis, int64_t *outer, int64_t *n,
                       int64_t *inner) {
  *outer = mpg_shape_product(shape, 0, axis);
  *n = shape->dims[axis];
  *inner = mpg_shape_product(shape, axis + 1, shape->ndim);
}

/* --- BatchNorm -------------------------------------------------------------------------------- */
/* Sets up channels-last BatchNorm: divides the rows into pieces and allocates memory. */
static mpg_status last_setup(const mpg_kernel_call *call, batch_norm *t, int64_t *pieces) {
  enum { ELEMENTS = 32768, ROWS = 128 };
  t->piece_rows = ELEMENTS / (t->channels + 1) / ROWS * ROWS;
  if (t->piece_rows < ROWS) t->piece_rows = ROWS;
  *pieces = (t->outer + t->piece_rows - 1) / t->piece_rows;
  size_t vector = mpg_align_up((size_t)t->channels * sizeof(double), 64);
  char *scratch = mpg_device_scratch(call->device, vector * (size_t)(SUMS * *pieces + 4));
  if (!scratch) return MPG_DEVICE_OUT_OF_MEMORY;
  t->center = scratch;
  t->scale = scratch + vector;
  t->shift = scratch + 2 * vector;
  t->kept_mean = scratch + 3 * vector;
  t->partial = (double *)(void *)(scratch + 4 * vector);
  return MPG_OK;
}

static mpg_status last_forward(const mpg_kernel_call *call, batch_norm *t, mpg_dtype dtype) {
  int64_t pieces;
  if (t->channels == 0) return MPG_OK;
  MPG_TRY(last_setup(call, t, &pieces));
  if (t->batch_stats) {
    uint8_t *mask = t->mask;
    t->mask = NULL;
    INSTANCE(dtype, last_center)(t);
    mpg_cpu_parallel_for(call, pieces, 1, INSTANCE(dtype, last_sums), t);
    mpg_cpu_parallel_for(call, t->channels, grain(SUMS * pieces), INSTANCE(dtype, last_total), t);
    t->mask = mask;
  }
  INSTANCE(dtype, last_statistics)(t);
  mpg_cpu_parallel_for(call, t->outer, grain(t->channels), INSTANCE(dtype, last_apply), t);
  return MPG_OK;
}

static mpg_status last_backward(const mpg_kernel_call *call, batch_norm *t, mpg_dtype dtype) {
  int64_t pieces;
  if (t->channels == 0) return MPG_OK;
  MPG_TRY(last_setup(call, t, &pieces));
  mpg_cpu_parallel_for(call, pieces, 1, INSTANCE(dtype, last_sums), t);
  if (pieces)
    mpg_cpu_parallel_for(call, t->channels, grain(SUMS * pieces), INSTANCE(dtype, last_total), t);
  INSTANCE(dtype, last_backward_statistics)(t);
  mpg_cpu_parallel_for(call, t->outer, grain(t->channels), INSTANCE(dtype, last_backward_apply), t);
  return MPG_OK;
}

/* Return a batch_norm with the arrays of a call: BatchNorm, with or without a following relu, or
 * its gradient. */
static batch_norm batch_norm_of(const mpg_kernel_call *call, int axis, bool fix_gamma) {
  batch_norm t = {.x = call->inputs[0].data,
                  .gamma = fix_gamma ? NULL : call->inputs[1].data,
                  .beta = call->inputs[2].data,
                  .moving_mean = call->inputs[3].data,
                  .moving_var = call->inputs[4].data,
                  .y = call->outputs[0].data,
                  .mean = call->outputs[1].data,
                  .inverse = call->outputs[2].data};
  split_axis(&call->inputs[0].desc.shape, axis, &t.outer, &t.channels, &t.inner);
  return t;
}

static batch_norm batch_norm_backward_of(const mpg_kernel_call *call, int axis, bool fix_gamma) {
  batch_norm t = {.x = call->inputs[1].data,
                  .dy = call->inputs[0].data,
                  .gamma = fix_gamma ? NULL : call->inputs[2].data,
                  .mean = call->inputs[3].data,
                  .inverse = call->inputs[4].data,
                  .y = call->outputs[0].data,
                  .dgamma = call->outputs[1].data,
                  .dbeta = call->outputs[2].data};
  split_axis(&call->inputs[1].desc.shape, axis, &t.outer, &t.channels, &t.inner);
  return t;
}

mpg_status mpg_cpu_batch_norm(const mpg_kernel_call *call) {
  const mpg_batch_norm_params *p = call->params;
  const mpg_desc *x = &call->inputs[0].desc;
  batch_norm t = batch_norm_of(call, axis_of(p->axis, x->shape.ndim), p->fix_gamma);
  t.eps = p->eps, t.momentum = p->momentum;
  /* An empty batch has no statistics. */
  t.batch_stats = call->train && !p->use_global_stats && t.outer * t.inner > 0;
  if (t.inner == 1) return last_forward(call, &t, x->dtype);
  mpg_cpu_parallel_for(call, t.channels, grain(t.outer * t.inner),
                       INSTANCE(x->dtype, batch_norm_channels), &t);
  return MPG_OK;
}

mpg_status mpg_cpu_batch_norm_backward(const mpg_kernel_call *call) {
  const mpg_batch_norm_backward_params *p = call->params;
  const mpg_desc *x = &call->inputs[1].desc;
  batch_norm t = batch_norm_backward_of(call, axis_of(p->axis, x->shape.ndim), p->fix_gamma);
  t.batch_stats = p->batch_stats;
  if (t.inner == 1) return last_backward(call, &t, x->dtype);
  mpg_cpu_parallel_for(call, t.channels, grain(t.outer * t.inner),
                       INSTANCE(x->dtype, batch_norm_backward_channels), &t);
  return MPG_OK;
}

mpg_status mpg_cpu_batch_norm_relu(const mpg_kernel_call *call) {
  const mpg_batch_norm_relu_params *p = call->params;
  const mpg_desc *x = &call->inputs[0].desc;
  batch_norm t = batch_norm_of(call, x->shape.ndim - 1, p->fix_gamma);
  t.eps = p->eps, t.momentum = p->momentum;
  t.residual = p->add ? call->inputs[5].data : NULL;
  t.mask = call->outputs[3].data;
  t.mask_bytes = (t.channels + 7) / 8;
  t.batch_stats = call->train && !p->use_global_stats && t.outer > 0;
  return last_forward(call, &t, x->dtype);
}

mpg_status mpg_cpu_batch_norm_relu_backward(const mpg_kernel_call *call) {
  const mpg_batch_norm_relu_backward_params *p = call->params;
  const mpg_desc *x = &call->inputs[1].desc;
  batch_norm t = batch_norm_backward_of(call, x->shape.ndim - 1, p->fix_gamma);
  t.mask = call->inputs[5].data;
  t.mask_bytes = (t.channels + 7) / 8;
  t.dresidual = p->add ? call->outputs[3].data : NULL;
  t.batch_stats = p->batch_stats;
  return last_backward(call, &t, x->dtype);
}

/* --- LayerNorm -------------------------------------------------------------------------------- */
/* Return a layer_norm with the arrays of a call: LayerNorm, GroupNorm or InstanceNorm, or their
 * gradients. */
static layer_norm forward_of(const mpg_kernel_call *call) {
  return (layer_norm){.x = call->inputs[0].data,
                      .gamma = call->inputs[1].data,
                      .beta = call->inputs[2].data,
                      .y = call->outputs[0].data,
                      .mean = call->outputs[1].data,
                      .deviation = call->outputs[2].data,
                      .rounded = call->outputs[1].desc.dtype == call->inputs[0].desc.dtype};
}

static layer_norm backward_of(const mpg_kernel_call *call) {
  return (layer_norm){.dy = call->inputs[0].data,
                      .x = call->inputs[1].data,
                      .gamma = call->inputs[2].data,
                      .mean = call->inputs[3].data,
                      .deviation = call->inputs[4].data,
                      .y = call->outputs[0].data,
                      .dgamma = call->outputs[1].data,
                      .dbeta = call->outputs[2].data};
}

/* Allocates memory for LayerNorm along the last axis: `rows` rows per thread, converted gamma and
 * beta (unless NULL) if they need conversion, and the sums of `pieces` pieces. */
static mpg_status layer_norm_setup(const mpg_kernel_call *call, layer_norm *t, mpg_dtype dtype,
                                   int rows, int64_t pieces) {
  mpg_compute compute = mpg_compute_of(dtype);
  bool direct = mpg_compute_direct(compute, dtype);
  size_t row = (size_t)t->n * mpg_dtype_size(mpg_compute_dtype(compute)),
         affine = direct ? 0 : 2 * row;
  t->row_bytes = mpg_cpu_buffer_step((size_t)rows * row);
  size_t bytes = t->row_bytes * (size_t)call->num_threads + affine + 2 * row * (size_t)pieces;
  if (bytes == 0) {
    t->rows = t->sums = MPG_NO_BYTES;
    return MPG_OK;
  }
  t->rows = mpg_device_scratch(call->device, bytes);
  if (!t->rows) return MPG_DEVICE_OUT_OF_MEMORY;
  char *at = t->rows + t->row_bytes * (size_t)call->num_threads;
  t->sums = at + affine;
  if (direct || !t->gamma) return MPG_OK;
  mpg_cpu_load_all(compute, dtype, t->gamma, 0, t->n, at);
  t->gamma = at;
  if (!t->beta) return MPG_OK;
  mpg_cpu_load_all(compute, dtype, t->beta, 0, t->n, at + row);
  t->beta = at + row;
  return MPG_OK;
}

mpg_status mpg_cpu_layer_norm(const mpg_kernel_call *call) {
  const mpg_layer_norm_params *p = call->params;
  const mpg_view *x = &call->inputs[0];
  layer_norm t = forward_of(call);
  t.eps = p->eps;
  split_axis(&x->desc.shape, axis_of(p->axis, x->desc.shape.ndim), &t.outer, &t.n, &t.inner);
  mpg_dtype dtype = x->desc.dtype;
  if (t.inner != 1) {
    mpg_cpu_parallel_for(call, t.outer * blocks(t.inner), grain(t.n * BLOCK),
                         INSTANCE(dtype, layer_norm_inner), &t);
    return MPG_OK;
  }
  MPG_TRY(layer_norm_setup(call, &t, dtype,
                           mpg_compute_direct(mpg_compute_of(dtype), dtype) ? 0 : 1, 0));
  mpg_cpu_parallel_for(call, t.outer, grain(t.n), INSTANCE(dtype, layer_norm_rows), &t);
  return MPG_OK;
}

/* Divides the rows into pieces and returns their number. A piece has about ELEMENTS elements. If
 * that would give more than PIECES pieces, pieces get more rows (at most ROWS), because the partial
 * sums of each piece are as long as a row or two. */
static int64_t set_pieces(layer_norm *t) {
  enum { ELEMENTS = 32768, ROWS = 128, PIECES = 16 };
  t->piece_rows = ELEMENTS / (t->n + 1);
  if (t->piece_rows < t->outer / PIECES) t->piece_rows = t->outer / PIECES;
  t->piece_rows = t->piece_rows < 1 ? 1 : t->piece_rows > ROWS ? ROWS : t->piece_rows;
  return (t->outer + t->piece_rows - 1) / t->piece_rows;
}

mpg_status mpg_cpu_layer_norm_backward(const mpg_kernel_call *call) {
  const mpg_layer_norm_backward_params *p = call->params;
  const mpg_view *x = &call->inputs[1];
  layer_norm t = backward_of(call);
  split_axis(&x->desc.shape, axis_of(p->axis, x->desc.shape.ndim), &t.outer, &t.n, &t.inner);
  mpg_dtype dtype = x->desc.dtype;
  if (t.inner != 1) {
    mpg_cpu_parallel_for(call, t.outer * blocks(t.inner), grain(t.n * BLOCK),
                         INSTANCE(dtype, layer_norm_backward_inner), &t);
    mpg_cpu_parallel_for(call, t.n, grain(t.outer * t.inner),
                         INSTANCE(dtype, layer_norm_backward_affine), &t);
    return MPG_OK;
  }
  int64_t pieces = set_pieces(&t);
  MPG_TRY(layer_norm_setup(call, &t, dtype,
                           mpg_compute_direct(mpg_compute_of(dtype), dtype) ? 1 : 3, pieces));
  mpg_cpu_parallel_for(call, pieces, grain(t.piece_rows * t.n),
                       INSTANCE(dtype, layer_norm_backward_pieces), &t);
  mpg_cpu_parallel_for(call, t.n, (grain(pieces) + BLOCK - 1) / BLOCK * BLOCK,
                       INSTANCE(dtype, layer_norm_backward_columns), &t);
  return MPG_OK;
}

/* --- rms_norm --------------------------------------------------------------------------------- */
static layer_norm rms_norm_of(const mpg_kernel_call *call, const mpg_view *x) {
  const mpg_rms_norm_params *p = call->params;
  int last = x->desc.shape.ndim - 1;
  return (layer_norm){.outer = mpg_shape_product(&x->desc.shape, 0, last),
                      .n = x->desc.shape.dims[last],
                      .inner = 1,
                      .eps = p->eps,
                      .offset = p->offset,
                      .x = x->data,
                      .y = call->outputs[0].data};
}

mpg_status mpg_cpu_rms_norm(const mpg_kernel_call *call) {
  mpg_dtype dtype = call->inputs[0].desc.dtype;
  layer_norm t = rms_norm_of(call, &call->inputs[0]);
  t.gamma = call->num_inputs > 1 ? call->inputs[1].data : NULL;
  t.deviation = call->outputs[1].data;
  MPG_TRY(layer_norm_setup(call, &t, dtype,
                           mpg_compute_direct(mpg_compute_of(dtype), dtype) ? 0 : 1, 0));
  mpg_cpu_parallel_for(call, t.outer, grain(t.n), INSTANCE(dtype, rms_norm_rows), &t);
  return MPG_OK;
}

mpg_status mpg_cpu_rms_norm_backward(const mpg_kernel_call *call) {
  mpg_dtype dtype = call->inputs[1].desc.dtype;
  layer_norm t = rms_norm_of(call, &call->inputs[1]);
  t.dy = call->inputs[0].data;
  t.deviation = call->inputs[2].data;
  t.gamma = call->num_inputs > 3 ? call->inputs[3].data : NULL;
  t.dgamma = t.gamma ? call->outputs[1].data : NULL;
  int64_t pieces = set_pieces(&t);
  MPG_TRY(layer_norm_setup(call, &t, dtype,
                           mpg_compute_direct(mpg_compute_of(dtype), dtype) ? 1 : 3, pieces));
  mpg_cpu_parallel_for(call, pieces, grain(t.piece_rows * t.n),
                       INSTANCE(dtype, rms_norm_backward_pieces), &t);
  if (t.dgamma)
    mpg_cpu_parallel_for(call, t.n, grain(pieces), INSTANCE(dtype, rms_norm_backward_columns), &t);
  return MPG_OK;
}

/* --- GroupNorm and InstanceNorm --------------------------------------------------------------- */
mpg_status mpg_cpu_group_norm(const mpg_kernel_call *call) {
  const mpg_view *x = &call->inputs[0];
  const mpg_shape *moments = &call->outputs[1].desc.shape;
  layer_norm t = forward_of(call);
  t.outer = mpg_shape_size(moments), t.inner = moments->dims[1];
  t.eps = call->op->id == MPG_OP_GroupNorm ? ((const mpg_group_norm_params *)call->params)->eps
                                           : ((const mpg_instance_norm_params *)call->params)->eps;
  if (t.outer == 0) return MPG_OK;
  t.n = mpg_shape_size(&x->desc.shape) / t.outer;
  mpg_cpu_parallel_for(call, t.outer, grain(t.n), INSTANCE(x->desc.dtype, group_norm_rows), &t);
  return MPG_OK;
}

mpg_status mpg_cpu_group_norm_backward(const mpg_kernel_call *call) {
  const mpg_view *x = &call->inputs[1];
  const mpg_shape *moments = &call->inputs[3].desc.shape;
  layer_norm t = backward_of(call);
  t.outer = mpg_shape_size(moments), t.inner = moments->dims[1];
  if (t.outer) {
    t.n = mpg_shape_size(&x->desc.shape) / t.outer;
    t.partial = mpg_device_scratch(call->device, (size_t)t.outer * 2 * sizeof(double));
    if (!t.partial) return MPG_DEVICE_OUT_OF_MEMORY;
    mpg_cpu_parallel_for(call, t.outer, grain(t.n),
                         INSTANCE(x->desc.dtype, group_norm_backward_rows), &t);
  }
  INSTANCE(x->desc.dtype, group_norm_affine)(&t);
  return MPG_OK;
}

/* --- L2Normalization -------------------------------------------------------------------------- */
static void l2_split(const mpg_kernel_call *call, const mpg_view *x, layer_norm *t) {
  const mpg_l2_normalization_params *p = call->params;
  mpg_l2_split(p->mode, &x->desc.shape, &t->outer, &t->n, &t->inner);
  t->eps = p->eps;
}

mpg_status mpg_cpu_l2_normalization(const mpg_kernel_call *call) {
  const mpg_view *x = &call->inputs[0];
  layer_norm t = {.x = x->data, .y = call->outputs[0].data, .deviation = call->outputs[1].data};
  l2_split(call, x, &t);
  if (t.inner == 1)
    mpg_cpu_parallel_for(call, t.outer, grain(t.n), INSTANCE(x->desc.dtype, l2_rows), &t);
  else
    mpg_cpu_parallel_for(call, t.outer * blocks(t.inner), grain(t.n * BLOCK),
                         INSTANCE(x->desc.dtype, l2_inner), &t);
  return MPG_OK;
}

mpg_status mpg_cpu_l2_normalization_backward(const mpg_kernel_call *call) {
  const mpg_view *x = &call->inputs[1];
  layer_norm t = {.dy = call->inputs[0].data,
                  .x = x->data,
                  .deviation = call->inputs[2].data,
                  .y = call->outputs[0].data};
  l2_split(call, x, &t);
  if (t.inner == 1)
    mpg_cpu_parallel_for(call, t.outer, grain(t.n), INSTANCE(x->desc.dtype, l2_backward_rows), &t);
  else
    mpg_cpu_parallel_for(call, t.outer * blocks(t.inner), grain(t.n * BLOCK),
                         INSTANCE(x->desc.dtype, l2_backward_inner), &t);
  return MPG_OK;
}
