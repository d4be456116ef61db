/* Gathering and scattering by index. Inference and gradients. */
#include <string.h>

#include "op/formula/arithmetic.h"
#include "op/infer.h"

#define PARAMS(structure, name) const mpg_##structure##_params *name = infer->params
#define GRADIENT_PARAMS(structure, name) const mpg_##structure##_params *name = g->params

static mpg_status expect_numeric(mpg_infer *infer, int input) {
  mpg_dtype dtype = infer->inputs[input].dtype;
  if (dtype != MPG_DTYPE_NONE && !(MPG_DTYPES_NUMERIC >> dtype & 1))
    return mpg_infer_fail(infer, "indices and lengths must be numbers, not bool");
  return MPG_OK;
}

/* --- take, Embedding -------------------------------------------------------------------------- */

/* Computes the shape of `a` with dimension `axis` replaced by the dimensions of `indices`. */
static mpg_status taken_shape(mpg_infer *infer, const mpg_shape *a, int axis,
                              const mpg_shape *indices, mpg_shape *shape) {
  if (a->ndim - 1 + indices->ndim > MPG_MAX_NDIM)
    return mpg_infer_fail(infer, "the result would have more than %d dimensions", MPG_MAX_NDIM);
  *shape = (mpg_shape){0};
  for (int i = 0; i < axis; i++) shape->dims[shape->ndim++] = a->dims[i];
  for (int i = 0; i < indices->ndim; i++) shape->dims[shape->ndim++] = indices->dims[i];
  for (int i = axis + 1; i < a->ndim; i++) shape->dims[shape->ndim++] = a->dims[i];
  return MPG_OK;
}

mpg_status mpg_infer_take(mpg_infer *infer) {
  PARAMS(take, params);
  MPG_TRY(expect_numeric(infer, 1));
  const mpg_shape *indices = &infer->inputs[1].shape;
  if (!mpg_infer_begin(infer) || !mpg_shape_known(indices)) return MPG_OK;
  int axis;
  MPG_TRY(mpg_axis_normalize(params->axis, infer->inputs[0].shape.ndim, infer->op->name, &axis));
  if (infer->inputs[0].shape.dims[axis] == 0 && mpg_shape_size(indices) > 0)
    return mpg_infer_fail(infer, "dimension %d has size 0, so no index is valid", axis);
  return taken_shape(infer, &infer->inputs[0].shape, axis, indices, &infer->outputs[0].shape);
}

static mpg_value take_back(mpg_gradient *g, int64_t axis, int mode, const mpg_shape *shape,
                           mpg_value grad, mpg_value indices) {
  mpg_take_back_params params;
  memset(&params, 0, sizeof params);
  params.axis = axis;
  params.mode = mode;
  params.shape = mpg_shape_tuple(shape);
  return mpg_emit2(g, MPG_OP__backward_take, &params, grad, indices);
}

void mpg_gradient_take(mpg_gradient *g) {
  GRADIENT_PARAMS(take, params);
  if (g->needed[0])
    g->in_grads[0] =
        take_back(g, params->axis, params->mode, &mpg_value_desc(g, g->inputs[0])->shape,
                  g->out_grads[0], g->inputs[1]);
}

mpg_status mpg_infer_take_back(mpg_infer *infer) {
  PARAMS(take_back, params);
  mpg_shape shape, taken;
  int axis;
  infer->outputs[0].dtype = infer->inputs[0].dtype;
  MPG_TRY(expect_numeric(infer, 1));
  MPG_TRY(mpg_infer_tuple_shape(infer, &params->shape, &shape));
  MPG_TRY(mpg_axis_normalize(params->axis, shape.ndim, infer->op->name, &axis));
  if (mpg_shape_known(&infer->inputs[1].shape)) {
    MPG_TRY(taken_shape(infer, &shape, axis, &infer->inputs[1].shape, &taken));
    MPG_TRY(mpg_infer_expect_shape(infer, 0, &taken));
    if (shape.dims[axis] == 0 && mpg_shape_size(&infer->inputs[1].shape) > 0)
      return mpg_infer_fail(infer, "dimension %d has size 0", axis);
  }
  infer->outputs[0].shape = shape;
  return MPG_OK;
}

void mpg_gradient_take_back(mpg_gradient *g) {
  GRADIENT_PARAMS(take_back, params);
  mpg_take_params forward = {.axis = params->axis, .mode = params->mode};
  if (g->needed[0])
    g->in_grads[0] = mpg_emit2(g, MPG_OP_take, &forward, g->out_grads[0], g->inputs[1]);
}

mpg_status mpg_infer_embedding(mpg_infer *infer) {
  PARAMS(embedding, params);
  mpg_shape weight = {.ndim = 2, .dims = {params->input_dim, params->output_dim}};
  MPG_TRY(mpg_infer_expect_shape(infer, 1, &weight));
  if (infer->inputs[1].dtype == MPG_DTYPE_NONE) infer->inputs[1].dtype = params->dtype;
  infer->outputs[0].dtype = infer->inputs[1].dtype;
  const mpg_shape *data = &infer->inputs[0].shape;
  if (data->ndim < 0) return MPG_OK;
  if (data->ndim >= MPG_MAX_NDIM)
    return mpg_infer_fail(infer, "the result would have more than %d dimensions", MPG_MAX_NDIM);
  mpg_shape shape = *data;
  shape.dims[shape.ndim++] = params->output_dim;
  infer->outputs[0].shape = shape;
  return MPG_OK;
}

void mpg_gradient_embedding(mpg_gradient *g) {
  GRADIENT_PARAMS(embedding, params);
  mpg_shape weight = {.ndim = 2, .dims = {params->input_dim, params->output_dim}};
  if (g->needed[1]) g->in_grads[1] = take_back(g, 0, 0, &weight, g->out_grads[0], g->inputs[0]);
}

void mpg_compose_count_sketch(mpg_gradient *g, const mpg_value *inputs, mpg_value *outputs) {
  GRADIENT_PARAMS(count_sketch, params);
  mpg_shape shape = mpg_value_desc(g, inputs[0])->shape;
  int last = shape.ndim - 1;
  for (int i = 1; i < 3; i++)
    if (last < 0 || mpg_shape_size(&mpg_value_desc(g, inputs[i])->shape) != shape.dims[last]) {
      mpg_gradient_fail(
          g, "h and s must have one number for each element along the last axis of data");
      return;
    }
  if (!mpg_same_dtype(g, 0, 2)) return;
  mpg_shape row = {.ndim = 1, .dims = {shape.dims[last]}};
  mpg_value signs = mpg_emit_reshape(g, inputs[2], &row),
            places = mpg_emit_reshape(g, inputs[1], &row);
  shape.dims[last] = params->out_dim;
  outputs[0] = take_back(g, last, 0, &shape, mpg_multiply(g, inputs[0], signs), places);
}

/* --- pick ------------------------------------------------------------------------------------- */

/* Checks that an input has the shape of `data` without `axis`, or with size 1 along `axis`. */
static mpg_status expect_positions(mpg_infer *infer, int input, const mpg_shape *data, int axis) {
  mpg_shape without = {0}, with = *data;
  with.dims[axis] = 1;
  for (int i = 0; i < data->ndim; i++)
    if (i != axis) without.dims[without.ndim++] = data->dims[i];
  const mpg_shape *index = &infer->inputs[input].shape;
  if (index->ndim == data->ndim) return mpg_infer_expect_shape(infer, input, &with);
  /* For 1-d data, the index is a scalar or an array of one element. */
  if (without.ndim == 0 && index->ndim == 1) without = with;
  return mpg_infer_expect_shape(infer, input, &without);
}

mpg_status mpg_infer_pick(mpg_infer *infer) {
  PARAMS(pick, params);
  MPG_TRY(expect_numeric(infer, 1));
  if (!params->axis.present) return mpg_infer_fail(infer, "axis must be an integer, not None");
  infer->outputs[0].dtype = infer->inputs[0].dtype;
  const mpg_shape *data = &infer->inputs[0].shape;
  if (data->ndim < 0) return MPG_OK;
  int axis;
  MPG_TRY(mpg_axis_normalize(params->axis.value, data->ndim, infer->op->name, &axis));
  MPG_TRY(expect_positions(infer, 1, data, axis));
  mpg_shape shape = *data;
  shape.dims[axis] = 1;
  if (data->dims[axis] == 0 && mpg_shape_known(&shape) && mpg_shape_size(&shape) > 0)
    return mpg_infer_fail(infer, "dimension %d has size 0, so no index is valid", axis);
  if (!params->keepdims && shape.ndim > 1) {
    for (int i = axis; i + 1 < shape.ndim; i++) shape.dims[i] = shape.dims[i + 1];
    shape.dims[--shape.ndim] = 0;
  }
  infer->outputs[0].shape = shape;
  return MPG_OK;
}

static mpg_value pick_back(mpg_gradient *g, int64_t axis, int mode, const mpg_shape *shape,
                           mpg_value grad, mpg_value index) {
  mpg_pick_back_params params;
  memset(&params, 0, sizeof params);
  params.axis = axis;
  params.mode = mode;
  params.shape = mpg_shape_tuple(shape);
  return mpg_emit2(g, MPG_OP__backward_pick, &params, grad, index);
}

void mpg_gradient_pick(mpg_gradient *g) {
  GRADIENT_PARAMS(pick, params);
  if (g->needed[0])
    g->in_grads[0] =
        pick_back(g, params->axis.value, params->mode, &mpg_value_desc(g, g->inputs[0])->shape,
                  g->out_grads[0], g->inputs[1]);
}

mpg_status mpg_infer_pick_back(mpg_infer *infer) {
  PARAMS(pick_back, params);
  mpg_shape shape;
  int axis;
  infer->outputs[0].dtype = infer->inputs[0].dtype;
  MPG_TRY(expect_numeric(infer, 1));
  MPG_TRY(mpg_infer_tuple_shape(infer, &params->shape, &shape));
  MPG_TRY(mpg_axis_normalize(params->axis, shape.ndim, infer->op->name, &axis));
  MPG_TRY(expect_positions(infer, 0, &shape, axis));
  MPG_TRY(expect_positions(infer, 1, &shape, axis));
  infer->outputs[0].shape = shape;
  return MPG_OK;
}

void mpg_gradient_pick_back(mpg_gradient *g) {
  GRADIENT_PARAMS(pick_back, params);
  if (!g->needed[0]) return;
  mpg_pick_params forward;
  memset(&forward, 0, sizeof forward);
  forward.axis = (mpg_opt_int){.value = params->axis, .present = 1};
  forward.mode = params->mode;
  g->in_grads[0] =
      mpg_emit_reshape(g, mpg_emit2(g, MPG_OP_pick, &forward, g->out_grads[0], g->inputs[1]),
                       &mpg_value_desc(g, g->inputs[0])->shape);
}

void mpg_compose_batch_take(mpg_gradient *g, const mpg_value *inputs, mpg_value *outputs) {
  mpg_pick_params params = {.axis = {.value = 1, .present = 1}};
  if (mpg_value_desc(g, inputs[0])->shape.ndim != 2)
    mpg_gradient_fail(g, "a must be a matrix");
  else
    outputs[0] = mpg_emit2(g, MPG_OP_pick, &params, inputs[0], inputs[1]);
}

mpg_status mpg_infer_fill_element(mpg_infer *infer) {
  MPG_TRY(expect_numeric(infer, 2));
  if (infer->inputs[0].dtype != MPG_DTYPE_NONE)
    MPG_TRY(mpg_infer_expect_dtype(infer, 1, infer->inputs[0].dtype));
  if (!mpg_infer_begin(infer)) return MPG_OK;
  const mpg_shape *lhs = &infer->inputs[0].shape;
  if (lhs->ndim != 2) return mpg_infer_fail(infer, "lhs must be a matrix");
  if (lhs->dims[1] == 0 && lhs->dims[0] > 0)
    return mpg_infer_fail(infer, "the rows have size 0, so no element can be filled");
  mpg_shape rows = {.ndim = 1, .dims = {lhs->dims[0]}};
  MPG_TRY(mpg_infer_expect_shape(infer, 1, &rows));
  MPG_TRY(mpg_infer_expect_shape(infer, 2, &rows));
  infer->outputs[0].shape = *lhs;
  return MPG_OK;
}

void mpg_gradient_fill_element(mpg_gradient *g) {
  if (g->needed[0]) {
    mpg_value zeros = mpg_emit_full_like(g, g->inputs[1], 0);
    g->in_grads[0] =
        mpg_emit3(g, MPG_OP_fill_element_0index, NULL, g->out_grads[0], zeros, g->inputs[2]);
  }
  if (g->needed[1])
    g->in_grads[1] = mpg_emit2(g, MPG_OP_batch_take, NULL, g->out_grads[0], g->inputs[2]);
}

mpg_status mpg_infer_one_hot(mpg_infer *infer) {
  PARAMS(one_hot, params);
  infer->outputs[0].dtype = params->dtype;
  if (!mpg_shape_known(&infer->inputs[0].shape)) return MPG_OK;
  mpg_shape shape = infer->inputs[0].shape;
  if (shape.ndim >= MPG_MAX_NDIM)
    return mpg_infer_fail(infer, "the result would have more than %d dimensions", MPG_MAX_NDIM);
  shape.dims[shape.ndim++] = params->depth;
  infer->outputs[0].shape = shape;
  return MPG_OK;
}

/* --- where ------------------------------------------------------------------------------------ */

mpg_status mpg_infer_where(mpg_infer *infer) {
  mpg_desc *x = &infer->inputs[1], *y = &infer->inputs[2];
  const mpg_shape *condition = &infer->inputs[0].shape;
  if (x->dtype != MPG_DTYPE_NONE) MPG_TRY(mpg_infer_expect_dtype(infer, 2, x->dtype));
  if (y->dtype != MPG_DTYPE_NONE) MPG_TRY(mpg_infer_expect_dtype(infer, 1, y->dtype));
  infer->outputs[0].dtype = x->dtype;
  if (!mpg_shape_merge(&x->shape, &y->shape))
    return mpg_infer_fail(infer, "x and y must have the same shape");
  if (!mpg_shape_known(&x->shape) || (condition->ndim >= 0 && !mpg_shape_known(condition)))
    return MPG_OK;
  bool rows = condition->ndim == 1 && x->shape.ndim > 0 &&
              (condition->dims[0] == x->shape.dims[0] || condition->dims[0] < 0);
  if (rows) {
    mpg_shape shape = {.ndim = 1, .dims = {x->shape.dims[0]}};
    MPG_TRY(mpg_infer_expect_shape(infer, 0, &shape));
  } else {
    MPG_TRY(mpg_infer_expect_shape(infer, 0, &x->shape));
  }
  infer->outputs[0].shape = x->shape;
  return MPG_OK;
}

void mpg_gradient_where(mpg_gradient *g) {
  mpg_value zeros = mpg_emit_full_like(g, g->out_grads[0], 0);
  if (g->needed[1])
    g->in_grads[1] = mpg_emit3(g, MPG_OP_where, NULL, g->inputs[0], g->out_grads[0], zeros);
  if (g->needed[2])
    g->in_grads[2] = mpg_emit3(g, MPG_OP_where, NULL, g->inputs[0], zeros, g->out_grads[0]);
}

/* --- gather_nd, scatter_nd -------------------------------------------------------------------- */

/* Computes the result shape of gather_nd. Each column of `indices` selects an element or a
 * sub-array from an array of the given shape. */
static mpg_status gathered_shape(mpg_infer *infer, const mpg_shape *shape, const mpg_shape *indices,
                                 mpg_shape *result) {
  if (indices->ndim < 1) return mpg_infer_fail(infer, "indices must have at least one dimension");
  int64_t depth = indices->dims[0];
  if (depth < 1 || depth > shape->ndim)
    return mpg_infer_fail(infer,
                          "the first dimension of indices, %lld, is the number of indexed "
                          "dimensions and must be from 1 to %d",
                          (long long)depth, shape->ndim);
  if (indices->ndim - 1 + shape->ndim - depth > MPG_MAX_NDIM)
    return mpg_infer_fail(infer, "the result would have more than %d dimensions", MPG_MAX_NDIM);
  *result = (mpg_shape){0};
  for (int i = 1; i < indices->ndim; i++) result->dims[result->ndim++] = indices->dims[i];
  for (int i = (int)depth; i < shape->ndim; i++) result->dims[result->ndim++] = shape->dims[i];
  mpg_lift(infer->op, result);
  return MPG_OK;
}

mpg_status mpg_infer_gather_nd(mpg_infer *infer) {
  MPG_TRY(expect_numeric(infer, 1));
  if (!mpg_infer_begin(infer) || !mpg_shape_known(&infer->inputs[1].shape)) return MPG_OK;
  return gathered_shape(infer, &infer->inputs[0].shape, &infer->inputs[1].shape,
                        &infer->outputs[0].shape);
}

void mpg_gradient_gather_nd(mpg_gradient *g) {
  if (!g->needed[0]) return;
  mpg_exact_shape_params params;
  memset(&params, 0, sizeof params);
  params.shape = mpg_shape_tuple(&mpg_value_desc(g, g->inputs[0])->shape);
  g->in_grads[0] = mpg_emit2(g, MPG_OP__backward_gather_nd, &params, g->out_grads[0], g->inputs[1]);
}

mpg_status mpg_infer_scatter_nd(mpg_infer *infer) {
  PARAMS(exact_shape, params);
  mpg_shape shape, gathered;
  MPG_TRY(expect_numeric(infer, 1));
  infer->outputs[0].dtype = infer->inputs[0].dtype;
  MPG_TRY(mpg_infer_tuple_shape(infer, &params->shape, &shape));
  if (mpg_shape_known(&infer->inputs[1].shape)) {
    MPG_TRY(gathered_shape(infer, &shape, &infer->inputs[1].shape, &gathered));
    MPG_TRY(mpg_infer_expect_shape(infer, 0, &gathered));
  }
  infer->outputs[0].shape = shape;
  return MPG_OK;
}

/* Gradient of scatter_nd and of _backward_gather_nd. If an index occurs several times, scatter_nd
 * keeps only the last of its elements. As in MXNet, all of these elements get the gradient. */
void mpg_gradient_scatter_nd(mpg_gradient *g) {
  if (g->needed[0])
    g->in_grads[0] = mpg_emit2(g, MPG_OP_gather_nd, NULL, g->out_grads[0], g->inputs[1]);
}

mpg_status mpg_infer_scatter_set_nd(mpg_infer *infer) {
  MPG_TRY(expect_numeric(infer, 2));
  if (infer->inputs[0].dtype != MPG_DTYPE_NONE)
    MPG_TRY(mpg_infer_expect_dtype(infer, 1, infer->inputs[0].dtype));
  if (!mpg_infer_begin(infer)) return MPG_OK;
  infer->outputs[0].shape = infer->inputs[0].shape;
  if (!mpg_shape_known(&infer->inputs[2].shape)) return MPG_OK;
  mpg_shape gathered;
  MPG_TRY(gathered_shape(infer, &infer->inputs[0].shape, &infer->inputs[2].shape, &gathered));
  return mpg_infer_expect_shape(infer, 1, &gathered);
}

void mpg_gradient_scatter_set_nd(mpg_gradient *g) {
  if (g->needed[0]) {
    mpg_value zeros = mpg_emit_full_like(g, g->inputs[1], 0);
    g->in_grads[0] =
        mpg_emit3(g, MPG_OP__scatter_set_nd, g->params, g->out_grads[0], zeros, g->inputs[2]);
  }
  if (g->needed[1])
    g->in_grads[1] = mpg_emit2(g, MPG_OP_gather_nd, NULL, g->out_grads[0], g->inputs[2]);
}

/* Checks the parameter `shape`. Its first dimension may be -1, because results do not depend on
 * it. */
static mpg_status indexed_shape(mpg_infer *infer, const mpg_tuple *tuple) {
  if (tuple->count < 1 || tuple->count > MPG_MAX_NDIM)
    return mpg_infer_fail(infer, "shape must have 1 to %d dimensions", MPG_MAX_NDIM);
  int64_t size = 1;
  for (int i = 0; i < tuple->count; i++) {
    if (i == 0 && tuple->values[i] == -1) continue;
    if (tuple->values[i] < 1 || __builtin_mul_overflow(size, tuple->values[i], &size))
      return mpg_infer_fail(infer, "shape has a dimension below 1, or too many elements");
  }
  return MPG_OK;
}

mpg_status mpg_infer_ravel(mpg_infer *infer) {
  PARAMS(index_shape, params);
  MPG_TRY(indexed_shape(infer, &params->shape));
  if (!mpg_infer_begin(infer)) return MPG_OK;
  const mpg_shape *in = &infer->inputs[0].shape;
  if (in->ndim < 1 || in->dims[0] != params->shape.count)
    return mpg_infer_fail(
        infer, "the first dimension of data must be the number of dimensions in shape, %d",
        params->shape.count);
  mpg_shape shape = {.ndim = in->ndim - 1};
  for (int i = 0; i < shape.ndim; i++) shape.dims[i] = in->dims[i + 1];
  mpg_lift(infer->op, &shape);
  infer->outputs[0].shape = shape;
  return MPG_OK;
}

mpg_status mpg_infer_unravel(mpg_infer *infer) {
  PARAMS(index_shape, params);
  MPG_TRY(indexed_shape(infer, &params->shape));
  if (!mpg_infer_begin(infer)) return MPG_OK;
  const mpg_shape *in = &infer->inputs[0].shape;
  if (in->ndim >= MPG_MAX_NDIM)
    return mpg_infer_fail(infer, "the result would have more than %d dimensions", MPG_MAX_NDIM);
  mpg_shape shape = {.ndim = in->ndim + 1, .dims = {params->shape.count}};
  for (int i = 0; i < in->ndim; i++) shape.dims[i + 1] = in->dims[i];
  infer->outputs[0].shape = shape;
  return MPG_OK;
}

/* --- Sequences -------------------------------------------------------------------------------- */

static mpg_status expect_lengths(mpg_infer *infer, const mpg_shape *data, int64_t time_axis) {
  if (data->ndim < 2)
    return mpg_infer_fail(infer, "the array must have at least 2 dimensions (time and batch)");
  if (infer->num_inputs < 2) return MPG_OK;
  MPG_TRY(expect_numeric(infer, 1));
  mpg_shape batch = {.ndim = 1, .dims = {data->dims[time_axis == 0 ? 1 : 0]}};
  return mpg_infer_expect_shape(infer, 1, &batch);
}

/* Replaces the padding (the steps after the end of each sequence) with params->value. */
void mpg_compose_sequence_mask(mpg_gradient *g, const mpg_value *inputs, mpg_value *outputs) {
  GRADIENT_PARAMS(sequence_mask, params);
  mpg_shape data = mpg_value_desc(g, inputs[0])->shape;
  int time = (int)params->axis, batch = 1 - time;
  if (data.ndim < 2) {
    mpg_gradient_fail(g, "the array must have at least 2 dimensions (time and batch)");
    return;
  }
  if (g->num_inputs < 2) {
    outputs[0] = mpg_emit1(g, MPG_OP__copy, NULL, inputs[0]);
    return;
  }
  mpg_shape lengths = mpg_value_desc(g, inputs[1])->shape;
  if (lengths.ndim != 1 || lengths.dims[0] != data.dims[batch]) {
    mpg_gradient_fail(g, "sequence_length must have one number for each of the %lld sequences",
                      (long long)data.dims[batch]);
    return;
  }
  outputs[0] = mpg_emit_sequence_mask(g, inputs[0], inputs[1], time, params->value);
}

mpg_status mpg_infer_sequence_reverse(mpg_infer *infer) {
  PARAMS(sequence, params);
  if (!mpg_infer_begin(infer)) return MPG_OK;
  if (params->axis != 0) return mpg_infer_fail(infer, "the time dimension has size 0");
  MPG_TRY(expect_lengths(infer, &infer->inputs[0].shape, params->axis));
  infer->outputs[0].shape = infer->inputs[0].shape;
  return MPG_OK;
}

void mpg_gradient_sequence_reverse(mpg_gradient *g) {
  mpg_value inputs[2] = {g->out_grads[0], g->num_inputs > 1 ? g->inputs[1] : MPG_NO_VALUE};
  if (g->needed[0])
    g->in_grads[0] = mpg_emit(g, MPG_OP_SequenceReverse, g->params, g->num_inputs, inputs);
}

static void last_shape(const mpg_shape *data, int64_t time_axis, mpg_shape *shape) {
  *shape = (mpg_shape){0};
  for (int i = 0; i < data->ndim; i++)
    if (i != time_axis) shape->dims[shape->ndim++] = data->dims[i];
}

mpg_status mpg_infer_sequence_last(mpg_infer *infer) {
  PARAMS(sequence, params);
  if (!mpg_infer_begin(infer)) return MPG_OK;
  const mpg_shape *data = &infer->inputs[0].shape;
  MPG_TRY(expect_lengths(infer, data, params->axis));
  last_shape(data, params->axis, &infer->outputs[0].shape);
  if (data->dims[params->axis] == 0 && mpg_shape_size(&infer->outputs[0].shape) > 0)
    return mpg_infer_fail(infer, "the sequences are empty and have no last element");
  return MPG_OK;
}

void mpg_gradient_sequence_last(mpg_gradient *g) {
  GRADIENT_PARAMS(sequence, params);
  if (!g->needed[0]) return;
  mpg_sequence_last_back_params back;
  memset(&back, 0, sizeof back);
  back.use_sequence_length = params->use_sequence_length;
  back.axis = params->axis;
  back.shape = mpg_shape_tuple(&mpg_value_desc(g, g->inputs[0])->shape);
  mpg_value inputs[2] = {g->out_grads[0], g->num_inputs > 1 ? g->inputs[1] : MPG_NO_VALUE};
  g->in_grads[0] = mpg_emit(g, MPG_OP__backward_SequenceLast, &back, g->num_inputs, inputs);
}

mpg_status mpg_infer_sequence_last_back(mpg_infer *infer) {
  PARAMS(sequence_last_back, params);
  mpg_shape shape, last;
  infer->outputs[0].dtype = infer->inputs[0].dtype;
  MPG_TRY(mpg_infer_tuple_shape(infer, &params->shape, &shape));
  MPG_TRY(expect_lengths(infer, &shape, params->axis));
  last_shape(&shape, params->axis, &last);
  MPG_TRY(mpg_infer_expect_shape(infer, 0, &last));
  infer->outputs[0].shape = shape;
  return MPG_OK;
}

void mpg_gradient_sequence_last_back(mpg_gradient *g) {
  GRADIENT_PARAMS(sequence_last_back, params);
  if (!g->needed[0]) return;
  mpg_sequence_params forward;
  memset(&forward, 0, sizeof forward);
  forward.use_sequence_length = params->use_sequence_length;
  forward.axis = params->axis;
  mpg_value inputs[2] = {g->out_grads[0], g->num_inputs > 1 ? g->inputs[1] : MPG_NO_VALUE};
  g->in_grads[0] = mpg_emit(g, MPG_OP_SequenceLast, &forward, g->num_inputs, inputs);
}

/* --- contrib ---------------------------------------------------------------------------------- */

void mpg_compose_index_copy(mpg_gradient *g, const mpg_value *inputs, mpg_value *outputs) {
  mpg_shape shape = mpg_value_desc(g, inputs[0])->shape,
            index = mpg_value_desc(g, inputs[1])->shape;
  if (shape.ndim < 1 || index.ndim != 1) {
    mpg_gradient_fail(g,
                      "old_tensor must have at least one dimension, and index_vector exactly one");
    return;
  }
  mpg_shape columns = {.ndim = 2, .dims = {1, index.dims[0]}};
  mpg_exact_shape_params params = {.shape = mpg_shape_tuple(&shape)};
  outputs[0] = mpg_emit3(g, MPG_OP__scatter_set_nd, &params, inputs[0], inputs[2],
                         mpg_emit_reshape(g, inputs[1], &columns));
}

void mpg_compose_index_array(mpg_gradient *g, const mpg_value *inputs, mpg_value *outputs) {
  GRADIENT_PARAMS(index_array, params);
  mpg_value parts[MPG_MAX_NDIM];
  mpg_shape shape = mpg_value_desc(g, inputs[0])->shape, last = shape;
  int count = params->axes.count < 0 ? shape.ndim : params->axes.count;
  if (shape.ndim >= MPG_MAX_NDIM || count > MPG_MAX_NDIM) {
    mpg_gradient_fail(g, "the result would have more than %d dimensions", MPG_MAX_NDIM);
    return;
  }
  last.dims[last.ndim++] = 1;
  for (int i = 0; i < count && g->status == MPG_OK; i++) {
    int axis = i;
    mpg_shape along = {.ndim = last.ndim};
    if (params->axes.count >= 0)
      g->status = mpg_axis_normalize(params->axes.values[i], shape.ndim, g->op->name, &axis);
    if (g->status != MPG_OK) return;
    for (int k = 0; k < along.ndim; k++) along.dims[k] = k == axis ? shape.dims[k] : 1;
    mpg_value index = mpg_emit_count(g, inputs[0], shape.dims[axis], MPG_INT64, &along);
    parts[i] = mpg_emit_broadcast_to(g, index, &last);
  }
  last.dims[last.ndim - 1] = 0;
  outputs[0] = count ? mpg_emit_concat(g, parts, count, last.ndim - 1)
                     : mpg_emit_full(g, inputs[0], &last, MPG_INT64, 0);
}

/* --- Masks ------------------------------------------------------------------------------------ */

static mpg_status expect_vector(mpg_infer *infer) {
  const mpg_shape *index = &infer->inputs[1].shape;
  if (mpg_shape_known(index) && index->ndim != 1)
    return mpg_infer_fail(infer, "index must have one dimension");
  return MPG_OK;
}

mpg_status mpg_infer_boolean_mask(mpg_infer *infer) {
  PARAMS(boolean_mask, params);
  if (params->axis != 0)
    return mpg_infer_fail(
        infer, "only axis 0 is supported; move the axis to the front with swapaxes first");
  MPG_TRY(expect_vector(infer));
  if (!mpg_infer_begin(infer)) return MPG_OK;
  mpg_shape rows = infer->inputs[0].shape;
  if (rows.ndim < 1) return mpg_infer_fail(infer, "data must have at least one dimension");
  mpg_shape length = {.ndim = 1, .dims = {rows.dims[0]}};
  MPG_TRY(mpg_infer_expect_shape(infer, 1, &length));
  rows.dims[0] = -1;
  if (infer->values && (infer->values[1] || !length.dims[0])) {
    int64_t count = 0;
    for (int64_t i = 0; i < length.dims[0]; i++)
      count += mpg_dtype_nonzero(infer->inputs[1].dtype, infer->values[1], i);
    rows.dims[0] = count;
  }
  infer->outputs[0].shape = rows;
  return MPG_OK;
}

mpg_status mpg_infer_boolean_mask_known(mpg_infer *infer) {
  PARAMS(boolean_mask_known, params);
  MPG_TRY(expect_vector(infer));
  if (!mpg_infer_begin(infer)) return MPG_OK;
  infer->outputs[0].shape = infer->inputs[0].shape;
  if (infer->outputs[0].shape.ndim < 1)
    return mpg_infer_fail(infer, "data must have at least one dimension");
  mpg_shape length = {.ndim = 1, .dims = {infer->outputs[0].shape.dims[0]}};
  infer->outputs[0].shape.dims[0] = params->count;
  return mpg_infer_expect_shape(infer, 1, &length);
}

mpg_status mpg_infer_boolean_mask_back(mpg_infer *infer) {
  MPG_TRY(expect_vector(infer));
  if (!mpg_infer_begin(infer) || !mpg_shape_known(&infer->inputs[1].shape)) return MPG_OK;
  infer->outputs[0].shape = infer->inputs[0].shape;
  if (infer->outputs[0].shape.ndim < 1)
    return mpg_infer_fail(infer, "ograd must have at least one dimension");
  infer->outputs[0].shape.dims[0] = infer->inputs[1].shape.dims[0];
  return MPG_OK;
}

void mpg_gradient_boolean_mask(mpg_gradient *g) {
  if (g->needed[0])
    g->in_grads[0] =
        mpg_emit2(g, MPG_OP__backward_contrib_boolean_mask, NULL, g->out_grads[0], g->inputs[1]);
}

void mpg_gradient_boolean_mask_back(mpg_gradient *g) {
  mpg_boolean_mask_known_params params = {.count = mpg_value_desc(g, g->inputs[0])->shape.dims[0]};
  if (g->needed[0])
    g->in_grads[0] =
        mpg_emit2(g, MPG_OP__boolean_mask_known, &params, g->out_grads[0], g->inputs[1]);
}
