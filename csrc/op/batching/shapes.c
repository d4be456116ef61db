/* Batching rules of ops that reshape, slice, concatenate or index arrays. */
#include "op/batching/batching.h"
#include "op/array/region.h"

#define PARAMS(structure) const mpg_##structure##_params *p = b->params

/* Marks output k, which is the slice [begin, begin + count) of input 0 along its batch axis, as
 * divided along axis `at`. The slice must consist of complete blocks of rows * inner elements, so
 * that it contains all rows. */
static mpg_status cut(mpg_batching *b, int k, int at, int64_t begin, int64_t count, int64_t step) {
  const mpg_batch *in = &b->in[0];
  int64_t block = b->rows * in->inner;
  if (step != 1 || !block || begin % block || count % block || !count)
    return mpg_batching_fail(b, 0, "it selects a subset of the rows");
  b->out[k] = (mpg_batch){
      .kind = MPG_BATCH_DIVIDED, .axis = at, .outer = count / block, .inner = in->inner};
  return MPG_OK;
}

mpg_status mpg_batching_reshape(mpg_batching *b) {
  /* If only the input that provides the shape is divided, the result is the same in every
   * micro-batch. */
  if (!mpg_batching_divided(b, 0)) return MPG_OK;
  const mpg_batch *in = &b->in[0];
  const mpg_shape *from = &b->inputs[0].shape, *to = &b->outputs[0].shape;
  int64_t outer = mpg_shape_product(from, 0, in->axis) * in->outer,
          inner = mpg_shape_product(from, in->axis + 1, from->ndim) * in->inner;
  int best = -1;
  for (int axis = 0; axis < to->ndim; axis++) {
    int64_t before = mpg_shape_product(to, 0, axis), size = to->dims[axis];
    if (!outer || !inner) { /* empty array: picks an axis of the same size */
      if (best < 0 && size == from->dims[in->axis]) b->out[0] = *in, b->out[0].axis = best = axis;
      continue;
    }
    if (!before || outer % before || size % (outer / before * b->rows)) continue;
    mpg_batch found = {.kind = MPG_BATCH_DIVIDED,
                       .axis = axis,
                       .outer = outer / before,
                       .inner = size / (outer / before * b->rows)};
    /* With one row, several axes are possible, and a second check with a larger batch finds the
     * right one (graph/schedule/micro_batching.c). Without that check, an axis of size 1 is
     * preferred. */
    if (best >= 0 && (mpg_batching_whole(&b->out[0]) || !mpg_batching_whole(&found))) continue;
    b->out[0] = found;
    best = axis;
  }
  return best >= 0 ? MPG_OK : mpg_batching_fail(b, 0, "the new shape splits rows");
}

mpg_status mpg_batching_expand_dims(mpg_batching *b) {
  PARAMS(expand_dims);
  int axis = mpg_batching_axis(p->axis, b->outputs[0].shape.ndim);
  mpg_batching_set(b, 0, b->in[0].axis + (axis <= b->in[0].axis), 0);
  return MPG_OK;
}

mpg_status mpg_batching_squeeze(mpg_batching *b) {
  PARAMS(squeeze);
  const mpg_shape *shape = &b->inputs[0].shape;
  bool gone[MPG_MAX_NDIM] = {false};
  int before = 0;
  for (int i = 0; i < shape->ndim && p->axis.count < 0; i++) gone[i] = shape->dims[i] == 1;
  for (int i = 0; i < p->axis.count; i++)
    gone[mpg_batching_axis(p->axis.values[i], shape->ndim)] = true;
  if (gone[b->in[0].axis])
    return mpg_batching_fail(b, 0, "it removes this axis if there is one row");
  for (int i = 0; i < b->in[0].axis; i++) before += gone[i];
  mpg_batching_set(b, 0, b->in[0].axis - before, 0);
  return MPG_OK;
}

mpg_status mpg_batching_transpose(mpg_batching *b) {
  PARAMS(transpose);
  int ndim = mpg_batching_ndim(b, 0);
  for (int i = 0; i < ndim; i++)
    if ((p->axes.count > 0 ? mpg_batching_axis(p->axes.values[i], ndim) : ndim - 1 - i) ==
        b->in[0].axis)
      mpg_batching_set(b, 0, i, 0);
  return MPG_OK;
}

/* Rule for concatenation along the batch axis. Each input adds one or more blocks of rows to the
 * result. All inputs must have the same inner size. */
static mpg_status join_rows(mpg_batching *b, int axis) {
  int first = mpg_batching_first(b);
  int64_t inner = b->in[first].inner, outer = 0;
  for (int i = 0; i < b->num_inputs; i++) {
    const mpg_batch *in = &b->in[i];
    int64_t size = b->inputs[i].shape.dims[axis];
    bool fits = in->kind == MPG_BATCH_FREE
                    ? size % (b->rows * inner) == 0
                    : in->kind == MPG_BATCH_DIVIDED && in->axis == axis && in->inner == inner;
    if (!fits) return mpg_batching_fail(b, first, "it concatenates other rows to these");
    outer += size / (b->rows * inner);
  }
  b->out[0] = (mpg_batch){.kind = MPG_BATCH_DIVIDED, .axis = axis, .outer = outer, .inner = inner};
  return MPG_OK;
}

mpg_status mpg_batching_concat(mpg_batching *b) {
  PARAMS(concat);
  int first = mpg_batching_first(b), axis = mpg_batching_axis(p->dim, mpg_batching_ndim(b, first));
  if (b->in[first].axis == axis) return join_rows(b, axis);
  MPG_TRY(mpg_batching_all_along(b, b->num_inputs, b->in[first].axis));
  mpg_batching_set(b, 0, b->in[first].axis, first);
  return MPG_OK;
}

mpg_status mpg_batching_stack(mpg_batching *b) {
  PARAMS(stack);
  int first = mpg_batching_first(b), axis = mpg_batching_axis(p->axis, b->outputs[0].shape.ndim);
  MPG_TRY(mpg_batching_all_along(b, b->num_inputs, b->in[first].axis));
  mpg_batching_set(b, 0, b->in[first].axis + (axis <= b->in[first].axis), first);
  return MPG_OK;
}

static mpg_status split(mpg_batching *b, int axis, bool squeeze) {
  int own = b->in[0].axis;
  int64_t begin = 0;
  for (int k = 0; k < b->num_outputs; k++) {
    if (axis != own) {
      mpg_batching_set(b, k, own - (squeeze && axis < own), 0);
      continue;
    }
    if (squeeze) return mpg_batching_fail(b, 0, "it takes rows one at a time");
    int64_t size = b->outputs[k].shape.dims[axis];
    MPG_TRY(cut(b, k, own, begin, size, 1));
    begin += size;
  }
  return MPG_OK;
}

mpg_status mpg_batching_split(mpg_batching *b) {
  PARAMS(split);
  return split(b, mpg_batching_axis(p->axis, mpg_batching_ndim(b, 0)), p->squeeze_axis);
}

mpg_status mpg_batching_split_v2(mpg_batching *b) {
  PARAMS(split_v2);
  return split(b, mpg_batching_axis(p->axis, mpg_batching_ndim(b, 0)), p->squeeze_axis);
}

mpg_status mpg_batching_slice(mpg_batching *b) {
  PARAMS(slice);
  mpg_region region;
  MPG_TRY(mpg_region_make(b->op->name, &b->inputs[0].shape, &p->begin, &p->end, &p->step, &region));
  int axis = b->in[0].axis;
  return cut(b, 0, axis, region.start[axis], region.shape.dims[axis], region.step[axis]);
}

mpg_status mpg_batching_slice_axis(mpg_batching *b) {
  PARAMS(slice_axis);
  const mpg_shape *shape = &b->inputs[0].shape;
  int axis = b->in[0].axis, own = mpg_batching_axis(p->axis, shape->ndim);
  int64_t begin = own == axis ? p->begin < 0 ? p->begin + shape->dims[axis] : p->begin : 0;
  return cut(b, 0, axis, begin, b->outputs[0].shape.dims[axis], 1);
}

/* The assigned region must include all rows. */
mpg_status mpg_batching_slice_assign(mpg_batching *b) {
  PARAMS(slice);
  mpg_region region;
  int first = mpg_batching_first(b), axis = b->in[first].axis;
  MPG_TRY(mpg_batching_all_along(b, 2, axis));
  MPG_TRY(mpg_region_make(b->op->name, &b->inputs[0].shape, &p->begin, &p->end, &p->step, &region));
  if (region.shape.dims[axis] != b->inputs[0].shape.dims[axis] || region.step[axis] != 1)
    return mpg_batching_fail(b, first, "it writes a subset of the rows");
  mpg_batching_set(b, 0, axis, first);
  return MPG_OK;
}

mpg_status mpg_batching_slice_assign_scalar(mpg_batching *b) {
  PARAMS(slice_scalar);
  mpg_region region;
  int axis = b->in[0].axis;
  MPG_TRY(mpg_region_make(b->op->name, &b->inputs[0].shape, &p->begin, &p->end, &p->step, &region));
  if (region.shape.dims[axis] != b->inputs[0].shape.dims[axis])
    return mpg_batching_fail(b, 0, "it writes a subset of the rows");
  mpg_batching_set(b, 0, axis, 0);
  return MPG_OK;
}

mpg_status mpg_batching_reverse(mpg_batching *b) {
  PARAMS(reverse);
  for (int i = 0; i < p->axis.count; i++)
    if (mpg_batching_axis(p->axis.values[i], mpg_batching_ndim(b, 0)) == b->in[0].axis)
      return mpg_batching_fail_along(b, 0);
  mpg_batching_set(b, 0, b->in[0].axis, 0);
  return MPG_OK;
}

mpg_status mpg_batching_tile(mpg_batching *b) {
  int axis = b->in[0].axis, added = b->outputs[0].shape.ndim - mpg_batching_ndim(b, 0);
  int64_t size = b->inputs[0].shape.dims[axis];
  mpg_batching_set(b, 0, axis + added, 0);
  b->out[0].outer *= size ? b->outputs[0].shape.dims[axis + added] / size : 1;
  return b->out[0].outer ? MPG_OK : mpg_batching_fail(b, 0, "the result has no axis for the rows");
}

mpg_status mpg_batching_repeat(mpg_batching *b) {
  PARAMS(repeat);
  const mpg_shape *shape = &b->inputs[0].shape;
  int own = b->in[0].axis;
  if (!p->repeats) return mpg_batching_fail(b, 0, "the result has no axis for the rows");
  mpg_batching_set(b, 0, p->axis.present ? own : 0, 0);
  if (!p->axis.present) {
    b->out[0].outer *= mpg_shape_product(shape, 0, own);
    b->out[0].inner *= mpg_shape_product(shape, own + 1, shape->ndim);
  }
  if (!p->axis.present || mpg_batching_axis(p->axis.value, shape->ndim) == own)
    b->out[0].inner *= p->repeats;
  return MPG_OK;
}

mpg_status mpg_batching_pad(mpg_batching *b) {
  PARAMS(pad);
  int axis = b->in[0].axis;
  if (2 * axis + 1 < p->pad_width.count &&
      (p->pad_width.values[2 * axis] || p->pad_width.values[2 * axis + 1]))
    return mpg_batching_fail_along(b, 0);
  mpg_batching_set(b, 0, axis, 0);
  return MPG_OK;
}

mpg_status mpg_batching_diag(mpg_batching *b) {
  PARAMS(diag);
  int ndim = mpg_batching_ndim(b, 0), own = b->in[0].axis, one = mpg_batching_axis(p->axis1, ndim),
      two = mpg_batching_axis(p->axis2, ndim);
  if (ndim < 2 || own == one || own == two) return mpg_batching_fail_along(b, 0);
  mpg_batching_set(b, 0, own - (one < own) - (two < own), 0);
  return MPG_OK;
}

/* Finds the batch axis of the output. The input's last axis holds diagonals. The output has axis1
 * and axis2 instead, the rows and columns of the matrices. */
mpg_status mpg_batching_diag_back(mpg_batching *b) {
  PARAMS(diag_back);
  int ndim = b->outputs[0].shape.ndim, own = b->in[0].axis, to = 0;
  int one = mpg_batching_axis(p->axis1, ndim), two = mpg_batching_axis(p->axis2, ndim);
  if (own == ndim - 2) return mpg_batching_fail_along(b, 0);
  for (int left = own; to == one || to == two || left-- > 0;) to++;
  mpg_batching_set(b, 0, to, 0);
  return MPG_OK;
}

/* --- Indexing --------------------------------------------------------------------------------- */

mpg_status mpg_batching_take(mpg_batching *b) {
  PARAMS(take);
  int input = 0, axis = mpg_batching_axis(p->axis, mpg_batching_ndim(b, 0));
  MPG_TRY(mpg_batching_one(b, &input));
  int own = b->in[input].axis;
  if (input == 0 && own == axis) return mpg_batching_fail(b, 0, "it selects a subset of the rows");
  mpg_batching_set(b, 0,
                   input        ? axis + own
                   : own < axis ? own
                                : own - 1 + mpg_batching_ndim(b, 1),
                   input);
  return MPG_OK;
}

mpg_status mpg_batching_embedding(mpg_batching *b) { return mpg_batching_data(b); }
mpg_status mpg_batching_one_hot(mpg_batching *b) { return mpg_batching_data(b); }

mpg_status mpg_batching_pick(mpg_batching *b) {
  PARAMS(pick);
  int ndim = mpg_batching_ndim(b, 0),
      at = p->axis.present ? mpg_batching_axis(p->axis.value, ndim) : 0;
  /* True if the index keeps the picked axis, with size 1. */
  bool kept = mpg_batching_ndim(b, 1) == ndim;
  int own = b->in[0].axis;
  if (!mpg_batching_divided(b, 0)) { /* only the index is divided */
    own = b->in[1].axis + (!kept && at <= b->in[1].axis);
    if (b->in[0].kind == MPG_BATCH_SAME)
      return mpg_batching_fail(b, 1, "its data is the same for every micro-batch");
  } else if (p->axis.present && own == at) {
    return mpg_batching_fail_along(b, 0);
  } else if (b->in[1].kind == MPG_BATCH_SAME) {
    return mpg_batching_fail(b, 0, "its index is the same for every micro-batch");
  } else if (mpg_batching_divided(b, 1) && b->in[1].axis != own - (!kept && at < own)) {
    return mpg_batching_fail_along(b, 1);
  }
  mpg_batching_set(b, 0, own - (!p->keepdims && at < own), mpg_batching_first(b));
  return MPG_OK;
}

/* The first axis of `indices` has one element per indexed axis of `data`. */
mpg_status mpg_batching_gather_nd(mpg_batching *b) {
  int input = 0, named = (int)b->inputs[1].shape.dims[0];
  MPG_TRY(mpg_batching_one(b, &input));
  int own = b->in[input].axis;
  if (own < (input ? 1 : named)) return mpg_batching_fail_along(b, input);
  mpg_batching_set(b, 0, input ? own - 1 : own - named + mpg_batching_ndim(b, 1) - 1, input);
  return MPG_OK;
}

mpg_status mpg_batching_scatter_nd(mpg_batching *b) {
  int input = 0, named = (int)b->inputs[1].shape.dims[0], own;
  MPG_TRY(mpg_batching_one(b, &input));
  own = b->in[input].axis - (mpg_batching_ndim(b, 1) - 1);
  if (input || own < 0) return mpg_batching_fail_along(b, input);
  mpg_batching_set(b, 0, own + named, input);
  return MPG_OK;
}

mpg_status mpg_batching_ravel(mpg_batching *b) {
  if (b->in[0].axis == 0) return mpg_batching_fail_along(b, 0);
  mpg_batching_set(b, 0, b->in[0].axis - 1, 0);
  return MPG_OK;
}

mpg_status mpg_batching_unravel(mpg_batching *b) {
  mpg_batching_set(b, 0, b->in[0].axis + 1, 0);
  return MPG_OK;
}

/* `data` has the time steps along axis `time` (0 or 1) and the batch along the other of these axes.
 * sequence_length has one element per sequence. */
static mpg_status sequences(mpg_batching *b, int time, bool removed) {
  int batch = 1 - time, own = mpg_batching_divided(b, 0) ? b->in[0].axis : batch;
  if (own == time) return mpg_batching_fail_along(b, 0);
  if (own == batch) {
    for (int i = 0; i < b->num_inputs; i++)
      if (b->in[i].kind == MPG_BATCH_SAME)
        return mpg_batching_fail(b, mpg_batching_first(b),
                                 "its other input is the same for every micro-batch");
  } else if (mpg_batching_divided(b, 1)) {
    return mpg_batching_fail_along(b, 1);
  }
  mpg_batching_set(b, 0, own - (removed && time < own), mpg_batching_first(b));
  return MPG_OK;
}

mpg_status mpg_batching_sequence(mpg_batching *b) { return sequences(b, 0, false); }

mpg_status mpg_batching_sequence_last(mpg_batching *b) {
  PARAMS(sequence);
  return sequences(b, (int)p->axis, true);
}
