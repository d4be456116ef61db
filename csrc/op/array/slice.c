/* Concatenation, splitting, slicing and padding. Inference and gradients. */
#include <string.h>

#include "op/formula/arithmetic.h"
#include "op/infer.h"
#include "op/array/region.h"

#define PARAMS(structure, name) const mpg_##structure##_params *name = infer->params
#define GRADIENT_PARAMS(structure, name) const mpg_##structure##_params *name = g->params

/* Converts a region to the parameters begin, end and step of slice. If the step is negative and
 * the region includes index 0, `end` is None, because -1 would mean the last index. */
static void region_to_tuples(const mpg_region *region, mpg_tuple *begin_, mpg_tuple *end,
                             mpg_tuple *step) {
  int ndim = region->shape.ndim;
  begin_->count = end->count = step->count = ndim;
  for (int i = 0; i < ndim; i++) {
    int64_t last = region->start[i] + region->step[i] * (region->shape.dims[i] - 1);
    begin_->values[i] = region->start[i];
    step->values[i] = region->step[i];
    end->values[i] = region->shape.dims[i] == 0 ? region->start[i]
                     : region->step[i] > 0      ? last + 1
                     : last > 0                 ? last - 1
                                                : MPG_TUPLE_NONE;
  }
}

/* Emits the gradient of slicing `region` from an array of `shape`: `grad` in the region and zeros
 * elsewhere. */
static mpg_value pad_region(mpg_gradient *g, const mpg_region *region, const mpg_shape *shape,
                            mpg_value grad) {
  mpg_slice_pad_params params;
  memset(&params, 0, sizeof params);
  region_to_tuples(region, &params.begin, &params.end, &params.step);
  params.shape = mpg_shape_tuple(shape);
  return mpg_emit1(g, MPG_OP__backward_slice, &params, grad);
}

/* --- Joining ---------------------------------------------------------------------------------- */

mpg_status mpg_infer_concat(mpg_infer *infer) {
  PARAMS(concat, params);
  MPG_TRY(mpg_infer_same_dtype(infer));
  mpg_shape common = MPG_SHAPE_UNKNOWN;
  for (int i = 0; i < infer->num_inputs && common.ndim < 0; i++) common = infer->inputs[i].shape;
  if (common.ndim < 0) return MPG_OK;
  int axis;
  MPG_TRY(mpg_axis_normalize(params->dim, common.ndim, infer->op->name, &axis));
  int64_t total = 0;
  common.dims[axis] = -1;
  /* The second pass gives earlier inputs the dimensions that only a later input determines. */
  for (int pass = 0; pass < 2; pass++)
    for (int i = 0; i < infer->num_inputs; i++) {
      mpg_shape *shape = &infer->inputs[i].shape;
      bool has_axis = axis < shape->ndim;
      int64_t own = has_axis ? shape->dims[axis] : -1;
      if (has_axis) shape->dims[axis] = -1;
      bool fits = mpg_shape_merge(shape, &common);
      if (axis < shape->ndim) shape->dims[axis] = own;
      if (!fits)
        return mpg_infer_fail(infer, "the arrays must have equal sizes in all dimensions except %d",
                              axis);
      if (pass == 0) continue;
      if (own < 0 || total < 0)
        total = -1;
      else if (__builtin_add_overflow(total, own, &total))
        return mpg_infer_fail(infer, "the result's shape is too large");
    }
  common.dims[axis] = total;
  infer->outputs[0].shape = common;
  return MPG_OK;
}

/* Infers all input dimensions except those along the concatenated axis. Along that axis, infers an
 * input's size if it is the only unknown one. */
mpg_status mpg_infer_inputs_concat(mpg_infer *infer) {
  PARAMS(concat, params);
  const mpg_shape *out = &infer->outputs[0].shape;
  int axis, unknown = -1;
  if (out->ndim < 1) return MPG_OK;
  MPG_TRY(mpg_axis_normalize(params->dim, out->ndim, infer->op->name, &axis));
  mpg_shape wanted = *out;
  wanted.dims[axis] = -1;
  int64_t rest = out->dims[axis];
  for (int i = 0; i < infer->num_inputs; i++) {
    MPG_TRY(mpg_infer_input_shape(infer, i, &wanted));
    int64_t size = infer->inputs[i].shape.dims[axis];
    if (size >= 0)
      rest = rest < 0 ? -1 : rest - size;
    else
      unknown = unknown == -1 ? i : -2;
  }
  if (unknown >= 0 && out->dims[axis] >= 0 && rest >= 0)
    infer->inputs[unknown].shape.dims[axis] = rest;
  return MPG_OK;
}

void mpg_gradient_concat(mpg_gradient *g) {
  GRADIENT_PARAMS(concat, params);
  int ndim = mpg_value_desc(g, g->inputs[0])->shape.ndim;
  int axis = (int)(params->dim < 0 ? params->dim + ndim : params->dim);
  int64_t at = 0;
  for (int i = 0; i < g->num_inputs; i++) {
    int64_t size = mpg_value_desc(g, g->inputs[i])->shape.dims[axis];
    if (g->needed[i])
      g->in_grads[i] = g->num_inputs == 1 ? g->out_grads[0]
                                          : mpg_emit_slice(g, g->out_grads[0], axis, at, at + size);
    at += size;
  }
}

mpg_status mpg_infer_stack(mpg_infer *infer) {
  PARAMS(stack, params);
  MPG_TRY(mpg_infer_same_dtype(infer));
  mpg_shape common = infer->inputs[0].shape;
  for (int pass = 0; pass < 2; pass++)
    for (int i = 0; i < infer->num_inputs; i++)
      if (!mpg_shape_merge(&common, &infer->inputs[i].shape))
        return mpg_infer_fail(infer, "the arrays must have the same shape");
  if (common.ndim < 0) return MPG_OK;
  if (common.ndim >= MPG_MAX_NDIM)
    return mpg_infer_fail(infer, "an array can have at most %d dimensions", MPG_MAX_NDIM);
  int axis;
  MPG_TRY(mpg_axis_normalize(params->axis, common.ndim + 1, infer->op->name, &axis));
  mpg_shape shape = {.ndim = common.ndim + 1};
  for (int i = 0; i < shape.ndim; i++)
    shape.dims[i] = i < axis ? common.dims[i] : i == axis ? infer->num_inputs : common.dims[i - 1];
  infer->outputs[0].shape = shape;
  return MPG_OK;
}

void mpg_gradient_stack(mpg_gradient *g) {
  GRADIENT_PARAMS(stack, params);
  mpg_shape in = mpg_value_desc(g, g->inputs[0])->shape;
  int axis = (int)(params->axis < 0 ? params->axis + in.ndim + 1 : params->axis);
  for (int i = 0; i < g->num_inputs; i++)
    if (g->needed[i])
      g->in_grads[i] = mpg_emit_reshape(g, mpg_emit_slice(g, g->out_grads[0], axis, i, i + 1), &in);
}

/* --- Splitting -------------------------------------------------------------------------------- */

int mpg_arity_split(const mpg_op *op, const void *params, int given) {
  (void)op, (void)given;
  return (int)((const mpg_split_params *)params)->num_outputs;
}

int mpg_arity_split_v2(const mpg_op *op, const void *params_, int given) {
  (void)op, (void)given;
  const mpg_split_v2_params *params = params_;
  int count = params->sections > 0 ? (int)params->sections : params->indices.count;
  return count < 1 ? 1 : count;
}

/* Sets the shape of one part, which has `size` elements along the axis. If `squeeze`, `size` must
 * be 1 and the axis is removed. */
static mpg_status set_part(mpg_infer *infer, int part, int axis, int64_t size, bool squeeze) {
  mpg_shape shape = infer->inputs[0].shape;
  if (squeeze) {
    if (size != 1)
      return mpg_infer_fail(infer, "squeeze_axis: part %d has size %lld along dimension %d, not 1",
                            part, (long long)size, axis);
    for (int i = axis; i + 1 < shape.ndim; i++) shape.dims[i] = shape.dims[i + 1];
    shape.dims[--shape.ndim] = 0;
  } else {
    shape.dims[axis] = size;
  }
  mpg_infer_set(infer, part, &shape, infer->inputs[0].dtype);
  return MPG_OK;
}

mpg_status mpg_infer_split(mpg_infer *infer) {
  PARAMS(split, params);
  for (int i = 0; i < infer->num_outputs; i++) infer->outputs[i].dtype = infer->inputs[0].dtype;
  if (!mpg_infer_begin(infer)) return MPG_OK;
  const mpg_shape *in = &infer->inputs[0].shape;
  int axis;
  MPG_TRY(mpg_axis_normalize(params->axis, in->ndim, infer->op->name, &axis));
  if (in->dims[axis] % params->num_outputs)
    return mpg_infer_fail(infer, "dimension %d of size %lld cannot be split into %lld equal parts",
                          axis, (long long)in->dims[axis], (long long)params->num_outputs);
  int64_t size = in->dims[axis] / params->num_outputs;
  for (int i = 0; i < infer->num_outputs; i++)
    MPG_TRY(set_part(infer, i, axis, size, params->squeeze_axis));
  return MPG_OK;
}

mpg_status mpg_infer_inputs_split(mpg_infer *infer) {
  enum { LIMIT = INT32_MAX }; /* larger sizes stay unknown, so size * num_outputs fits in int64 */
  PARAMS(split, params);
  for (int i = 0; i < infer->num_outputs; i++) {
    mpg_shape whole = infer->outputs[i].shape;
    if (whole.ndim < 0) continue;
    int axis, ndim = whole.ndim + (params->squeeze_axis ? 1 : 0);
    if (ndim > MPG_MAX_NDIM) return MPG_OK;
    MPG_TRY(mpg_axis_normalize(params->axis, ndim, infer->op->name, &axis));
    if (params->squeeze_axis) {
      for (int k = whole.ndim; k > axis; k--) whole.dims[k] = whole.dims[k - 1];
      whole.ndim = ndim;
      whole.dims[axis] = 1;
    }
    int64_t part = whole.dims[axis];
    whole.dims[axis] = part < 0 || part > LIMIT ? -1 : part * params->num_outputs;
    MPG_TRY(mpg_infer_input_shape(infer, 0, &whole));
  }
  return MPG_OK;
}

mpg_status mpg_infer_split_v2(mpg_infer *infer) {
  PARAMS(split_v2, params);
  for (int i = 0; i < infer->num_outputs; i++) infer->outputs[i].dtype = infer->inputs[0].dtype;
  if (!mpg_infer_begin(infer)) return MPG_OK;
  const mpg_shape *in = &infer->inputs[0].shape;
  int axis;
  MPG_TRY(mpg_axis_normalize(params->axis, in->ndim, infer->op->name, &axis));
  for (int i = 0; i < infer->num_outputs; i++) {
    int64_t from = 0, to = 0;
    MPG_TRY(mpg_split_part(params, in->dims[axis], i, &from, &to));
    MPG_TRY(set_part(infer, i, axis, to - from, params->squeeze_axis));
  }
  return MPG_OK;
}

/* Concatenates the gradients of the parts; a missing gradient is zero. */
static void join_parts(mpg_gradient *g, int axis, bool squeeze) {
  mpg_value parts[MPG_MAX_OUTPUTS];
  mpg_shape in = mpg_value_desc(g, g->inputs[0])->shape;
  for (int i = 0; i < g->num_outputs; i++) {
    parts[i] =
        mpg_has_value(g->out_grads[i]) ? g->out_grads[i] : mpg_emit_full_like(g, g->outputs[i], 0);
    if (squeeze) {
      mpg_shape whole = in;
      whole.dims[axis] = 1;
      parts[i] = mpg_emit_reshape(g, parts[i], &whole);
    }
  }
  mpg_concat_params params = {.num_args = g->num_outputs, .dim = axis};
  g->in_grads[0] =
      g->num_outputs == 1 ? parts[0] : mpg_emit(g, MPG_OP_Concat, &params, g->num_outputs, parts);
}

void mpg_gradient_split(mpg_gradient *g) {
  GRADIENT_PARAMS(split, params);
  int ndim = mpg_value_desc(g, g->inputs[0])->shape.ndim;
  join_parts(g, (int)(params->axis < 0 ? params->axis + ndim : params->axis), params->squeeze_axis);
}

void mpg_gradient_split_v2(mpg_gradient *g) {
  GRADIENT_PARAMS(split_v2, params);
  mpg_shape in = mpg_value_desc(g, g->inputs[0])->shape;
  int axis = (int)(params->axis < 0 ? params->axis + in.ndim : params->axis);
  int64_t from = 0, to = 0, at = 0;
  bool tiles = true; /* true if the parts cover the array exactly once, in order */
  for (int i = 0; i < g->num_outputs; i++) {
    if (mpg_split_part(params, in.dims[axis], i, &from, &to) != MPG_OK)
      return mpg_gradient_fail(g, "%s", mpg_error_text());
    tiles = tiles && from == at;
    at = to;
  }
  if (tiles && at == in.dims[axis]) {
    join_parts(g, axis, params->squeeze_axis);
    return;
  }
  for (int i = 0; i < g->num_outputs; i++) {
    if (!mpg_has_value(g->out_grads[i])) continue;
    mpg_split_part(params, in.dims[axis], i, &from, &to);
    mpg_region region = {.shape = in};
    for (int k = 0; k < in.ndim; k++) region.step[k] = 1;
    region.start[axis] = from;
    region.shape.dims[axis] = to - from;
    mpg_value part =
        pad_region(g, &region, &in, mpg_emit_reshape(g, g->out_grads[i], &region.shape));
    g->in_grads[0] = mpg_has_value(g->in_grads[0])
                         ? mpg_emit2(g, MPG_OP_elemwise_add, NULL, g->in_grads[0], part)
                         : part;
  }
}

/* --- Slicing ---------------------------------------------------------------------------------- */

mpg_status mpg_infer_slice(mpg_infer *infer) {
  PARAMS(slice, params);
  mpg_region region;
  mpg_shape in = infer->inputs[0].shape;
  infer->outputs[0].dtype = infer->inputs[0].dtype;
  if (in.ndim < 0) return MPG_OK;
  for (int i = 0; i < in.ndim; i++) in.dims[i] = in.dims[i] < 0 ? 0 : in.dims[i];
  MPG_TRY(
      mpg_region_make(infer->op->name, &in, &params->begin, &params->end, &params->step, &region));
  for (int i = 0; i < in.ndim; i++)
    if (infer->inputs[0].shape.dims[i] < 0) region.shape.dims[i] = -1;
  infer->outputs[0].shape = region.shape;
  return MPG_OK;
}

void mpg_gradient_slice(mpg_gradient *g) {
  GRADIENT_PARAMS(slice, params);
  mpg_slice_pad_params back;
  memset(&back, 0, sizeof back);
  back.begin = params->begin;
  back.end = params->end;
  back.step = params->step;
  back.shape = mpg_shape_tuple(&mpg_value_desc(g, g->inputs[0])->shape);
  g->in_grads[0] = mpg_emit1(g, MPG_OP__backward_slice, &back, g->out_grads[0]);
}

mpg_status mpg_infer_slice_pad(mpg_infer *infer) {
  PARAMS(slice_pad, params);
  mpg_shape shape;
  mpg_region region;
  infer->outputs[0].dtype = infer->inputs[0].dtype;
  MPG_TRY(mpg_infer_tuple_shape(infer, &params->shape, &shape));
  MPG_TRY(mpg_region_make(infer->op->name, &shape, &params->begin, &params->end, &params->step,
                          &region));
  MPG_TRY(mpg_infer_expect_shape(infer, 0, &region.shape));
  infer->outputs[0].shape = shape;
  return MPG_OK;
}

void mpg_gradient_slice_pad(mpg_gradient *g) {
  GRADIENT_PARAMS(slice_pad, params);
  mpg_slice_params forward;
  memset(&forward, 0, sizeof forward);
  forward.begin = params->begin;
  forward.end = params->end;
  forward.step = params->step;
  g->in_grads[0] = mpg_emit1(g, MPG_OP_slice, &forward, g->out_grads[0]);
}

mpg_status mpg_infer_slice_assign(mpg_infer *infer) {
  PARAMS(slice, params);
  MPG_TRY(mpg_infer_same_dtype(infer));
  if (!mpg_shape_known(&infer->inputs[0].shape)) return MPG_OK;
  mpg_region region;
  MPG_TRY(mpg_region_make(infer->op->name, &infer->inputs[0].shape, &params->begin, &params->end,
                          &params->step, &region));
  MPG_TRY(mpg_infer_expect_shape(infer, 1, &region.shape));
  infer->outputs[0].shape = infer->inputs[0].shape;
  return MPG_OK;
}

static mpg_value clear_region(mpg_gradient *g, const mpg_tuple *begin_, const mpg_tuple *end,
                              const mpg_tuple *step) {
  mpg_slice_scalar_params params;
  memset(&params, 0, sizeof params);
  params.begin = *begin_;
  params.end = *end;
  params.step = *step;
  return mpg_emit1(g, MPG_OP__slice_assign_scalar, &params, g->out_grads[0]);
}

void mpg_gradient_slice_assign(mpg_gradient *g) {
  GRADIENT_PARAMS(slice, params);
  if (g->needed[0]) g->in_grads[0] = clear_region(g, &params->begin, &params->end, &params->step);
  if (g->needed[1]) g->in_grads[1] = mpg_emit1(g, MPG_OP_slice, params, g->out_grads[0]);
}

mpg_status mpg_infer_slice_assign_scalar(mpg_infer *infer) {
  PARAMS(slice_scalar, params);
  if (!mpg_infer_begin(infer)) return MPG_OK;
  MPG_TRY(mpg_infer_number(infer, "the value", params->scalar, infer->inputs[0].dtype));
  mpg_region region;
  MPG_TRY(mpg_region_make(infer->op->name, &infer->inputs[0].shape, &params->begin, &params->end,
                          &params->step, &region));
  infer->outputs[0].shape = infer->inputs[0].shape;
  return MPG_OK;
}

void mpg_gradient_slice_assign_scalar(mpg_gradient *g) {
  GRADIENT_PARAMS(slice_scalar, params);
  g->in_grads[0] = clear_region(g, &params->begin, &params->end, &params->step);
}

mpg_status mpg_infer_slice_axis(mpg_infer *infer) {
  PARAMS(slice_axis, params);
  mpg_region region;
  int axis;
  infer->outputs[0].dtype = infer->inputs[0].dtype;
  if (infer->inputs[0].shape.ndim < 0) return MPG_OK;
  MPG_TRY(mpg_axis_normalize(params->axis, infer->inputs[0].shape.ndim, infer->op->name, &axis));
  if (infer->inputs[0].shape.dims[axis] < 0) {
    /* Begin and end may be relative to the unknown size, so the result's size is unknown. */
    infer->outputs[0].shape = infer->inputs[0].shape;
    return MPG_OK;
  }
  MPG_TRY(mpg_region_axis(infer->op->name, &infer->inputs[0].shape, params->axis, params->begin,
                          &params->end, &region));
  infer->outputs[0].shape = region.shape;
  return MPG_OK;
}

void mpg_gradient_slice_axis(mpg_gradient *g) {
  GRADIENT_PARAMS(slice_axis, params);
  mpg_shape in = mpg_value_desc(g, g->inputs[0])->shape;
  mpg_region region;
  if (mpg_region_axis(g->op->name, &in, params->axis, params->begin, &params->end, &region) !=
      MPG_OK)
    return mpg_gradient_fail(g, "%s", mpg_error_text());
  g->in_grads[0] = pad_region(g, &region, &in, g->out_grads[0]);
}

/* Emits the slice of `data` that `region` describes. */
static void emit_region(mpg_gradient *g, const mpg_region *region, mpg_value data,
                        mpg_value *output) {
  mpg_slice_params params;
  memset(&params, 0, sizeof params);
  region_to_tuples(region, &params.begin, &params.end, &params.step);
  *output = mpg_emit1(g, MPG_OP_slice, &params, data);
}

void mpg_compose_slice_like(mpg_gradient *g, const mpg_value *inputs, mpg_value *outputs) {
  GRADIENT_PARAMS(slice_like, params);
  mpg_shape data = mpg_value_desc(g, inputs[0])->shape, like = mpg_value_desc(g, inputs[1])->shape;
  mpg_region region;
  g->status = mpg_region_like(g->op->name, &data, &like, &params->axes, &region);
  if (g->status == MPG_OK) emit_region(g, &region, inputs[0], &outputs[0]);
}

void mpg_compose_crop(mpg_gradient *g, const mpg_value *inputs, mpg_value *outputs) {
  mpg_shape data = mpg_value_desc(g, inputs[0])->shape;
  mpg_region region;
  if (g->num_inputs > 2) {
    mpg_gradient_fail(g, "expected one or two arrays, got %d", g->num_inputs);
    return;
  }
  g->status = mpg_region_crop(g->op->name, &data,
                              g->num_inputs == 2 ? &mpg_value_desc(g, inputs[1])->shape : NULL,
                              g->params, &region);
  if (g->status == MPG_OK) emit_region(g, &region, inputs[0], &outputs[0]);
}

/* --- Padding ---------------------------------------------------------------------------------- */

mpg_status mpg_infer_pad(mpg_infer *infer) {
  PARAMS(pad, params);
  MPG_TRY(
      mpg_infer_number(infer, "constant_value", params->constant_value, infer->inputs[0].dtype));
  if (!mpg_infer_begin(infer)) return MPG_OK;
  const mpg_tuple *width = &params->pad_width;
  const mpg_shape *in = &infer->inputs[0].shape;
  mpg_shape shape = *in;
  if (width->count != 2 * in->ndim)
    return mpg_infer_fail(infer,
                          "pad_width must have two numbers for each of the %d dimensions, not %d",
                          in->ndim, width->count);
  for (int i = 0; i < in->ndim; i++) {
    int64_t before = width->values[2 * i], after = width->values[2 * i + 1], dim = in->dims[i];
    if (before < 0 || after < 0)
      return mpg_infer_fail(infer, "pad_width contains a negative number or None");
    if (__builtin_add_overflow(dim, before, &shape.dims[i]) ||
        __builtin_add_overflow(shape.dims[i], after, &shape.dims[i]))
      return mpg_infer_fail(infer, "the result's shape is too large");
    if ((params->mode == 1 && before + after > 0 && dim < 1) ||
        (params->mode == 2 && (before > dim - 1 || after > dim - 1) && before + after > 0))
      return mpg_infer_fail(
          infer, "dimension %d of size %lld is too short for its padding (%lld, %lld) in mode %s",
          i, (long long)dim, (long long)before, (long long)after,
          params->mode == 1 ? "edge" : "reflect");
  }
  infer->outputs[0].shape = shape;
  return MPG_OK;
}

/* Removes the padding along an axis from `grad` and adds the padding's gradient to the elements
 * that it repeats. */
static mpg_value unpad_axis(mpg_gradient *g, mpg_value grad, int axis, bool reflect, int64_t before,
                            int64_t after) {
  int64_t end = mpg_value_desc(g, grad)->shape.dims[axis] - after, size = end - before;
  mpg_value result = mpg_emit_slice(g, grad, axis, before, end);
  for (int side = 0; side < 2; side++) {
    int64_t count = side ? after : before, first = side ? end : 0, shown = reflect ? count : 1,
            place = !side ? reflect : size - reflect - shown;
    if (count == 0 || g->status != MPG_OK) continue;
    mpg_value part = mpg_emit_slice(g, grad, axis, first, first + count);
    mpg_reverse_params order = {.axis = {.count = 1, .values = {axis}}};
    mpg_slice_params to;
    memset(&to, 0, sizeof to);
    to.begin.count = to.end.count = axis + 1;
    for (int i = 0; i < axis; i++) to.begin.values[i] = to.end.values[i] = MPG_TUPLE_NONE;
    to.begin.values[axis] = place;
    to.end.values[axis] = place + shown;
    part = reflect ? mpg_emit1(g, MPG_OP_reverse, &order, part)
                   : mpg_emit_reduce(g, MPG_OP_sum, part, axis);
    part = mpg_add(g, part, mpg_emit_slice(g, result, axis, place, place + shown));
    result = mpg_emit2(g, MPG_OP__slice_assign, &to, result, part);
  }
  return result;
}

void mpg_gradient_pad(mpg_gradient *g) {
  enum { CONSTANT, EDGE, REFLECT };
  GRADIENT_PARAMS(pad, params);
  mpg_shape in = mpg_value_desc(g, g->inputs[0])->shape;
  g->in_grads[0] = g->out_grads[0];
  if (params->mode == CONSTANT) {
    mpg_slice_params inner;
    memset(&inner, 0, sizeof inner);
    inner.begin.count = inner.end.count = in.ndim;
    for (int i = 0; i < in.ndim; i++) {
      inner.begin.values[i] = params->pad_width.values[2 * i];
      inner.end.values[i] = inner.begin.values[i] + in.dims[i];
    }
    g->in_grads[0] = mpg_emit1(g, MPG_OP_slice, &inner, g->out_grads[0]);
    return;
  }
  for (int i = 0; i < in.ndim; i++) {
    int64_t before = params->pad_width.values[2 * i], after = params->pad_width.values[2 * i + 1];
    if (before + after && g->status == MPG_OK)
      g->in_grads[0] = unpad_axis(g, g->in_grads[0], i, params->mode == REFLECT, before, after);
  }
}
