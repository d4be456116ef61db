/* Ops that rearrange elements: each is one or a few moves (kernels/cpu/move.h), whatever the dtype. */
#include <string.h>

#include "kernels/cpu/convert.h"
#include "kernels/cpu/move.h"
#include "op/region.h"

static size_t item_of(const mpg_view *view) { return mpg_dtype_size(view->desc.dtype); }
static int64_t count_of(const mpg_view *view) { return mpg_shape_size(&view->desc.shape); }
static int axis_of(int64_t axis, int ndim) { return (int)(axis < 0 ? axis + ndim : axis); }
static char *at(const mpg_view *view, int64_t element) { return (char *)view->data + element * (int64_t)item_of(view); }
static void zero(const mpg_kernel_call *call, const mpg_view *view) {
  uint64_t nothing = 0;
  mpg_cpu_fill(call, view->data, count_of(view), item_of(view), &nothing);
}
static void copy_all(const mpg_kernel_call *call, const mpg_view *from, const mpg_view *to) {
  mpg_move move = {0};
  mpg_move_add(&move, count_of(from), 1, 1);
  mpg_cpu_move(call, &move, from->data, to->data, item_of(from));
}

/* --- Orders of dimensions -------------------------------------------------------------------------------------------- */

static mpg_status permute(const mpg_kernel_call *call, const int *axes) {
  const mpg_view *in = &call->inputs[0], *out = &call->outputs[0];
  int64_t in_strides[MPG_MAX_NDIM], out_strides[MPG_MAX_NDIM];
  mpg_dense_strides(&in->desc.shape, in_strides);
  mpg_dense_strides(&out->desc.shape, out_strides);
  mpg_move move = {0};
  for (int i = 0; i < out->desc.shape.ndim; i++) mpg_move_add(&move, out->desc.shape.dims[i], in_strides[axes[i]], out_strides[i]);
  mpg_cpu_move(call, &move, in->data, out->data, item_of(in));
  return MPG_OK;
}

MPG_CPU_KERNEL(transpose) {
  const mpg_transpose_params *params = call->params;
  int axes[MPG_MAX_NDIM], ndim = call->inputs[0].desc.shape.ndim;
  for (int i = 0; i < ndim; i++) axes[i] = params->axes.count > 0 ? axis_of(params->axes.values[i], ndim) : ndim - 1 - i;
  return permute(call, axes);
}

MPG_CPU_KERNEL(swap_axis) {
  const mpg_swap_axis_params *params = call->params;
  int axes[MPG_MAX_NDIM], ndim = call->inputs[0].desc.shape.ndim;
  for (int i = 0; i < ndim; i++) axes[i] = i;
  axes[axis_of(params->dim1, ndim)] = axis_of(params->dim2, ndim);
  axes[axis_of(params->dim2, ndim)] = axis_of(params->dim1, ndim);
  return permute(call, axes);
}

/* `dims` of the input, row-major, appear in the output in the order `order`. */
static void permute_blocks(const mpg_kernel_call *call, const int64_t *dims, const int *order, int ndim) {
  int64_t strides[6], stride = 1, out_strides[6];
  for (int i = ndim - 1; i >= 0; i--) {
    strides[i] = stride;
    stride *= dims[i];
  }
  stride = 1;
  for (int i = ndim - 1; i >= 0; i--) {
    out_strides[i] = stride;
    stride *= dims[order[i]];
  }
  mpg_move move = {0};
  for (int i = 0; i < ndim; i++) mpg_move_add(&move, dims[order[i]], strides[order[i]], out_strides[i]);
  mpg_cpu_move(call, &move, call->inputs[0].data, call->outputs[0].data, item_of(&call->inputs[0]));
}

MPG_CPU_KERNEL(depth_to_space) {
  int64_t b = ((const mpg_block_params *)call->params)->block_size;
  const mpg_shape *in = &call->inputs[0].desc.shape;
  int64_t dims[6] = {in->dims[0], b, b, in->dims[1] / (b * b), in->dims[2], in->dims[3]};
  static const int order[6] = {0, 3, 4, 1, 5, 2};
  permute_blocks(call, dims, order, 6);
  return MPG_OK;
}

MPG_CPU_KERNEL(space_to_depth) {
  int64_t b = ((const mpg_block_params *)call->params)->block_size;
  const mpg_shape *in = &call->inputs[0].desc.shape;
  int64_t dims[6] = {in->dims[0], in->dims[1], in->dims[2] / b, b, in->dims[3] / b, b};
  static const int order[6] = {0, 3, 5, 1, 2, 4};
  permute_blocks(call, dims, order, 6);
  return MPG_OK;
}

MPG_CPU_KERNEL(reverse) {
  const mpg_reverse_params *params = call->params;
  const mpg_view *in = &call->inputs[0], *out = &call->outputs[0];
  const mpg_shape *shape = &in->desc.shape;
  int64_t strides[MPG_MAX_NDIM], base = 0;
  bool flip[MPG_MAX_NDIM] = {false};
  mpg_dense_strides(shape, strides);
  for (int i = 0; i < params->axis.count; i++) flip[axis_of(params->axis.values[i], shape->ndim)] = true;
  mpg_move move = {0};
  for (int i = 0; i < shape->ndim; i++) {
    mpg_move_add(&move, shape->dims[i], flip[i] ? -strides[i] : strides[i], strides[i]);
    if (flip[i] && shape->dims[i] > 0) base += strides[i] * (shape->dims[i] - 1);
  }
  if (count_of(in) > 0) mpg_cpu_move(call, &move, at(in, base), out->data, item_of(in));
  return MPG_OK;
}

/* --- Repetition ------------------------------------------------------------------------------------------------------ */

MPG_CPU_KERNEL(tile) {
  const mpg_tile_params *params = call->params;
  const mpg_view *in = &call->inputs[0], *out = &call->outputs[0];
  const mpg_shape *from = &in->desc.shape, *to = &out->desc.shape;
  int64_t in_strides[MPG_MAX_NDIM], out_strides[MPG_MAX_NDIM];
  mpg_dense_strides(from, in_strides);
  mpg_dense_strides(to, out_strides);
  mpg_move move = {0};
  for (int i = 0; i < to->ndim; i++) {
    int source = i - (to->ndim - from->ndim), rep = i - (to->ndim - params->reps.count);
    int64_t dim = source < 0 ? 1 : from->dims[source];
    mpg_move_add(&move, rep < 0 ? 1 : params->reps.values[rep], 0, out_strides[i] * dim);
    mpg_move_add(&move, dim, source < 0 ? 0 : in_strides[source], out_strides[i]);
  }
  mpg_cpu_move(call, &move, in->data, out->data, item_of(in));
  return MPG_OK;
}

MPG_CPU_KERNEL(repeat) {
  const mpg_repeat_params *params = call->params;
  const mpg_view *in = &call->inputs[0], *out = &call->outputs[0];
  const mpg_shape *shape = &in->desc.shape;
  int axis = params->axis.present ? axis_of(params->axis.value, shape->ndim) : shape->ndim - 1;
  int64_t before = mpg_shape_product(shape, 0, axis + 1), after = mpg_shape_product(shape, axis + 1, shape->ndim);
  mpg_move move = {0};
  mpg_move_add(&move, before, after, after * params->repeats);
  mpg_move_add(&move, params->repeats, 0, after);
  mpg_move_add(&move, after, 1, 1);
  mpg_cpu_move(call, &move, in->data, out->data, item_of(in));
  return MPG_OK;
}

/* --- Joining and splitting ------------------------------------------------------------------------------------------- */

/* Arrays seen as (before, own) side by side in rows of `total`. */
static void join(const mpg_kernel_call *call, int64_t before, int64_t total) {
  const mpg_view *out = &call->outputs[0];
  int64_t offset = 0;
  if (before == 0) return;
  for (int i = 0; i < call->num_inputs; i++) {
    int64_t own = count_of(&call->inputs[i]) / before;
    mpg_move move = {0};
    mpg_move_add(&move, before, own, total);
    mpg_move_add(&move, own, 1, 1);
    mpg_cpu_move(call, &move, call->inputs[i].data, at(out, offset), item_of(out));
    offset += own;
  }
}

MPG_CPU_KERNEL(concat) {
  const mpg_concat_params *params = call->params;
  const mpg_shape *shape = &call->outputs[0].desc.shape;
  int axis = axis_of(params->dim, shape->ndim);
  join(call, mpg_shape_product(shape, 0, axis), mpg_shape_product(shape, axis, shape->ndim));
  return MPG_OK;
}

MPG_CPU_KERNEL(stack) {
  const mpg_stack_params *params = call->params;
  const mpg_shape *shape = &call->outputs[0].desc.shape;
  int axis = axis_of(params->axis, shape->ndim);
  join(call, mpg_shape_product(shape, 0, axis), mpg_shape_product(shape, axis, shape->ndim));
  return MPG_OK;
}

/* Output i is elements [begin, end) along `axis`. */
static void take_part(const mpg_kernel_call *call, int output, int axis, int64_t begin, int64_t end) {
  const mpg_view *in = &call->inputs[0], *out = &call->outputs[output];
  const mpg_shape *shape = &in->desc.shape;
  int64_t after = mpg_shape_product(shape, axis + 1, shape->ndim);
  mpg_move move = {0};
  mpg_move_add(&move, mpg_shape_product(shape, 0, axis), shape->dims[axis] * after, (end - begin) * after);
  mpg_move_add(&move, (end - begin) * after, 1, 1);
  if (count_of(out) > 0) mpg_cpu_move(call, &move, at(in, begin * after), out->data, item_of(in));
}

MPG_CPU_KERNEL(split) {
  const mpg_split_params *params = call->params;
  const mpg_shape *shape = &call->inputs[0].desc.shape;
  int axis = axis_of(params->axis, shape->ndim);
  int64_t size = shape->dims[axis] / params->num_outputs;
  for (int i = 0; i < call->num_outputs; i++) take_part(call, i, axis, i * size, (i + 1) * size);
  return MPG_OK;
}

MPG_CPU_KERNEL(split_v2) {
  const mpg_split_v2_params *params = call->params;
  const mpg_shape *shape = &call->inputs[0].desc.shape;
  int axis = axis_of(params->axis, shape->ndim);
  for (int i = 0; i < call->num_outputs; i++) {
    int64_t begin = 0, end = 0;
    MPG_TRY(mpg_split_part(params, shape->dims[axis], i, &begin, &end));
    take_part(call, i, axis, begin, end);
  }
  return MPG_OK;
}

/* --- Slicing --------------------------------------------------------------------------------------------------------- */

/* The move between a region of an array of `shape` and a dense array; returns the region's first element. */
static int64_t region_move(const mpg_region *region, const mpg_shape *shape, bool out_of_region, mpg_move *move) {
  int64_t strides[MPG_MAX_NDIM], dense[MPG_MAX_NDIM], base = 0;
  mpg_dense_strides(shape, strides);
  mpg_dense_strides(&region->shape, dense);
  *move = (mpg_move){0};
  for (int i = 0; i < shape->ndim; i++) {
    int64_t stride = strides[i] * region->step[i];
    base += strides[i] * region->start[i];
    mpg_move_add(move, region->shape.dims[i], out_of_region ? stride : dense[i], out_of_region ? dense[i] : stride);
  }
  return base;
}

static mpg_status take_region(const mpg_kernel_call *call, const mpg_region *region) {
  const mpg_view *in = &call->inputs[0], *out = &call->outputs[0];
  mpg_move move;
  int64_t base = region_move(region, &in->desc.shape, true, &move);
  if (count_of(out) > 0) mpg_cpu_move(call, &move, at(in, base), out->data, item_of(in));
  return MPG_OK;
}

static void put_region(const mpg_kernel_call *call, const mpg_region *region, const void *values, const mpg_view *out) {
  mpg_move move;
  int64_t base = region_move(region, &out->desc.shape, false, &move);
  if (mpg_shape_size(&region->shape) > 0) mpg_cpu_move(call, &move, values, at(out, base), item_of(out));
}

MPG_CPU_KERNEL(slice) {
  const mpg_slice_params *params = call->params;
  mpg_region region;
  MPG_TRY(mpg_region_make(call->op->name, &call->inputs[0].desc.shape, &params->begin, &params->end, &params->step, &region));
  return take_region(call, &region);
}

MPG_CPU_KERNEL(slice_axis) {
  const mpg_slice_axis_params *params = call->params;
  mpg_region region;
  MPG_TRY(mpg_region_axis(call->op->name, &call->inputs[0].desc.shape, params->axis, params->begin, &params->end, &region));
  return take_region(call, &region);
}

MPG_CPU_KERNEL(slice_like) {
  const mpg_slice_like_params *params = call->params;
  mpg_region region;
  MPG_TRY(mpg_region_like(call->op->name, &call->inputs[0].desc.shape, &call->inputs[1].desc.shape, &params->axes, &region));
  return take_region(call, &region);
}

MPG_CPU_KERNEL(crop) {
  mpg_region region;
  MPG_TRY(mpg_region_crop(call->op->name, &call->inputs[0].desc.shape, &call->outputs[0].desc.shape, call->params, &region));
  return take_region(call, &region);
}

MPG_CPU_KERNEL(slice_pad) {
  const mpg_slice_pad_params *params = call->params;
  const mpg_view *out = &call->outputs[0];
  mpg_region region;
  MPG_TRY(mpg_region_make(call->op->name, &out->desc.shape, &params->begin, &params->end, &params->step, &region));
  if (mpg_shape_size(&region.shape) < count_of(out)) zero(call, out);
  put_region(call, &region, call->inputs[0].data, out);
  return MPG_OK;
}

MPG_CPU_KERNEL(slice_assign) {
  const mpg_slice_params *params = call->params;
  const mpg_view *lhs = &call->inputs[0], *rhs = &call->inputs[1], *out = &call->outputs[0];
  const void *values = rhs->data;
  mpg_region region;
  MPG_TRY(mpg_region_make(call->op->name, &lhs->desc.shape, &params->begin, &params->end, &params->step, &region));
  if (values == out->data && count_of(rhs) > 0) { /* written over rhs: a region in reverse order would overtake itself */
    size_t bytes = (size_t)count_of(rhs) * item_of(rhs);
    void *scratch = mpg_device_scratch(call->device, bytes);
    if (!scratch) return MPG_DEVICE_OUT_OF_MEMORY;
    memcpy(scratch, values, bytes);
    values = scratch;
  }
  if (out->data != lhs->data) copy_all(call, lhs, out);
  put_region(call, &region, values, out);
  return MPG_OK;
}

MPG_CPU_KERNEL(slice_assign_scalar) {
  const mpg_slice_scalar_params *params = call->params;
  const mpg_view *in = &call->inputs[0], *out = &call->outputs[0];
  mpg_region region;
  MPG_TRY(mpg_region_make(call->op->name, &in->desc.shape, &params->begin, &params->end, &params->step, &region));
  if (out->data != in->data) copy_all(call, in, out);
  double value = params->scalar;
  uint64_t element = 0;
  mpg_cpu_store(MPG_COMPUTE_F64, out->desc.dtype, &element, 0, 1, &value);
  if (out->desc.dtype == MPG_FLOAT64) memcpy(&element, &value, sizeof value);
  mpg_move move;
  int64_t base = region_move(&region, &out->desc.shape, false, &move);
  for (int i = 0; i < move.ndim; i++) move.in[i] = 0;
  if (mpg_shape_size(&region.shape) > 0) mpg_cpu_move(call, &move, &element, at(out, base), item_of(out));
  return MPG_OK;
}

/* --- Diagonals ------------------------------------------------------------------------------------------------------- */

/* The move along diagonal k of the planes (axis1, axis2) of `shape`, to or from a dense array of diagonals. */
static int64_t diagonal_move(const mpg_shape *shape, int64_t k, int64_t axis1, int64_t axis2, bool out_of_planes, mpg_move *move) {
  int64_t strides[MPG_MAX_NDIM];
  int a = axis_of(axis1, shape->ndim), b = axis_of(axis2, shape->ndim);
  int64_t rows = shape->dims[a] + (k < 0 ? k : 0), columns = shape->dims[b] - (k > 0 ? k : 0);
  int64_t length = rows < columns ? rows : columns, dense = 1;
  mpg_dense_strides(shape, strides);
  *move = (mpg_move){0};
  int order[MPG_MAX_NDIM], count = 0;
  for (int i = 0; i < shape->ndim; i++)
    if (i != a && i != b) order[count++] = i;
  move->ndim = count + 1;
  for (int j = count; j >= 0; j--) {
    int64_t dim = j == count ? length : shape->dims[order[j]];
    int64_t stride = j == count ? strides[a] + strides[b] : strides[order[j]];
    move->dims[j] = dim;
    move->in[j] = out_of_planes ? stride : dense;
    move->out[j] = out_of_planes ? dense : stride;
    dense *= dim;
  }
  return k > 0 ? strides[b] * k : strides[a] * -k;
}

MPG_CPU_KERNEL(diag) {
  const mpg_diag_params *params = call->params;
  const mpg_view *in = &call->inputs[0], *out = &call->outputs[0];
  mpg_move move;
  if (in->desc.shape.ndim == 1) {
    zero(call, out);
    int64_t base = diagonal_move(&out->desc.shape, params->k, 0, 1, false, &move);
    if (count_of(in) > 0) mpg_cpu_move(call, &move, in->data, at(out, base), item_of(in));
    return MPG_OK;
  }
  int64_t base = diagonal_move(&in->desc.shape, params->k, params->axis1, params->axis2, true, &move);
  if (count_of(out) > 0) mpg_cpu_move(call, &move, at(in, base), out->data, item_of(in));
  return MPG_OK;
}

MPG_CPU_KERNEL(diag_back) {
  const mpg_diag_back_params *params = call->params;
  const mpg_view *in = &call->inputs[0], *out = &call->outputs[0];
  mpg_move move;
  zero(call, out);
  int64_t base = diagonal_move(&out->desc.shape, params->k, params->axis1, params->axis2, false, &move);
  if (count_of(in) > 0) mpg_cpu_move(call, &move, in->data, at(out, base), item_of(in));
  return MPG_OK;
}

/* --- Shapes as arrays ------------------------------------------------------------------------------------------------ */

MPG_CPU_KERNEL(shape_array) {
  const mpg_shape *shape = &call->inputs[0].desc.shape;
  for (int i = 0; i < shape->ndim; i++) ((int64_t *)call->outputs[0].data)[i] = shape->dims[i];
  return MPG_OK;
}

MPG_CPU_KERNEL(size_array) {
  *(int64_t *)call->outputs[0].data = count_of(&call->inputs[0]);
  return MPG_OK;
}
