/* Sorting, top-k and arg-reductions. Inference and gradients. */
#include <string.h>

#include "op/infer.h"

#define PARAMS(structure, name) const mpg_##structure##_params *name = infer->params
#define GRADIENT_PARAMS(structure, name) const mpg_##structure##_params *name = g->params

/* Computes the shape of the array that is sorted and the axis to sort along. If the axis parameter
 * is None, the array is flattened first. */
static mpg_status ordered_shape(mpg_infer *infer, const mpg_opt_int *axis_param, mpg_shape *shape,
                                int *axis) {
  *shape = infer->inputs[0].shape;
  *axis = 0;
  if (axis_param->present)
    return mpg_axis_normalize(axis_param->value, shape->ndim, infer->op->name, axis);
  *shape = (mpg_shape){.ndim = 1, .dims = {mpg_shape_size(shape)}};
  return MPG_OK;
}

static mpg_status expect_index_dtype(mpg_infer *infer, int dtype) {
  if (dtype < 0 || !(MPG_DTYPES_NUMERIC >> dtype & 1))
    return mpg_infer_fail(infer, "dtype must be numeric");
  return MPG_OK;
}

mpg_status mpg_infer_sort(mpg_infer *infer) {
  PARAMS(sort, params);
  infer->outputs[0].dtype = infer->inputs[0].dtype;
  if (!mpg_shape_known(&infer->inputs[0].shape)) return MPG_OK;
  int axis;
  return ordered_shape(infer, &params->axis, &infer->outputs[0].shape, &axis);
}

mpg_status mpg_infer_argsort(mpg_infer *infer) {
  PARAMS(argsort, params);
  MPG_TRY(expect_index_dtype(infer, params->dtype));
  infer->outputs[0].dtype = params->dtype;
  if (!mpg_shape_known(&infer->inputs[0].shape)) return MPG_OK;
  int axis;
  return ordered_shape(infer, &params->axis, &infer->outputs[0].shape, &axis);
}

enum { TOPK_BOTH, TOPK_INDICES, TOPK_MASK, TOPK_VALUE };

int mpg_arity_topk(const mpg_op *op, const void *params, int given) {
  (void)op, (void)given;
  return ((const mpg_topk_params *)params)->ret_typ == TOPK_BOTH ? 2 : 1;
}

mpg_status mpg_infer_topk(mpg_infer *infer) {
  PARAMS(topk, params);
  MPG_TRY(expect_index_dtype(infer, params->dtype));
  mpg_dtype dtype = infer->inputs[0].dtype;
  infer->outputs[0].dtype = params->ret_typ == TOPK_INDICES ? (mpg_dtype)params->dtype : dtype;
  if (params->ret_typ == TOPK_BOTH) infer->outputs[1].dtype = params->dtype;
  if (!mpg_shape_known(&infer->inputs[0].shape)) return MPG_OK;
  mpg_shape shape;
  int axis;
  MPG_TRY(ordered_shape(infer, &params->axis, &shape, &axis));
  if (params->k > shape.dims[axis])
    return mpg_infer_fail(infer, "k is %lld, but the axis has only %lld elements",
                          (long long)params->k, (long long)shape.dims[axis]);
  if (params->k > 0) shape.dims[axis] = params->k;
  infer->outputs[0].shape = params->ret_typ == TOPK_MASK ? infer->inputs[0].shape : shape;
  if (params->ret_typ == TOPK_BOTH) infer->outputs[1].shape = shape;
  return MPG_OK;
}

/* Emits the input gradient: the output gradient scattered to `indices` along the axis, with zeros
 * elsewhere. */
static mpg_value put_back(mpg_gradient *g, const mpg_opt_int *axis_param, mpg_value indices) {
  const mpg_shape in = mpg_value_desc(g, g->inputs[0])->shape;
  mpg_along_params params;
  memset(&params, 0, sizeof params);
  params.axis = axis_param->present
                    ? (axis_param->value < 0 ? axis_param->value + in.ndim : axis_param->value)
                    : 0;
  params.size = axis_param->present ? in.dims[params.axis] : mpg_shape_size(&in);
  mpg_value grad = mpg_emit2(g, MPG_OP__scatter_along, &params, g->out_grads[0], indices);
  return axis_param->present ? grad : mpg_emit_reshape(g, grad, &in);
}

void mpg_gradient_sort(mpg_gradient *g) {
  GRADIENT_PARAMS(sort, params);
  mpg_argsort_params order;
  memset(&order, 0, sizeof order);
  order.axis = params->axis;
  order.is_ascend = params->is_ascend;
  order.dtype = MPG_INT64;
  g->in_grads[0] = put_back(g, &params->axis, mpg_emit1(g, MPG_OP_argsort, &order, g->inputs[0]));
}

void mpg_gradient_topk(mpg_gradient *g) {
  GRADIENT_PARAMS(topk, params);
  if ((params->ret_typ != TOPK_BOTH && params->ret_typ != TOPK_VALUE) ||
      !mpg_has_value(g->out_grads[0]))
    return;
  mpg_topk_params order;
  memcpy(&order, params, sizeof order);
  order.ret_typ = TOPK_INDICES;
  order.dtype = MPG_INT64;
  g->in_grads[0] = put_back(g, &params->axis, mpg_emit1(g, MPG_OP_topk, &order, g->inputs[0]));
}

/* Returns the dtype of index results: the dtype of the data, or float32 if the data's dtype
 * represents too few integers. */
static mpg_dtype index_dtype(mpg_dtype dtype) {
  return dtype == MPG_INT8 || dtype == MPG_UINT8 || dtype == MPG_BOOL || dtype == MPG_BFLOAT16
             ? MPG_FLOAT32
             : dtype;
}

mpg_status mpg_infer_argmax(mpg_infer *infer) {
  PARAMS(argmax, params);
  bool numpy = mpg_op_is_numpy(infer->op);
  infer->outputs[0].dtype = numpy ? MPG_INT64 : index_dtype(infer->inputs[0].dtype);
  if (!mpg_shape_known(&infer->inputs[0].shape)) return MPG_OK;
  mpg_shape shape;
  int axis;
  MPG_TRY(ordered_shape(infer, &params->axis, &shape, &axis));
  int64_t searched = shape.dims[axis];
  if (!params->axis.present && params->keepdims) {
    shape = infer->inputs[0].shape;
    for (int i = 0; i < shape.ndim; i++) shape.dims[i] = 1;
  }
  if (shape.ndim > 0) shape.dims[axis] = 1;
  if (!params->keepdims && shape.ndim > !numpy) {
    for (int i = axis; i + 1 < shape.ndim; i++) shape.dims[i] = shape.dims[i + 1];
    shape.dims[--shape.ndim] = 0;
  }
  if (searched == 0 && mpg_shape_size(&shape) > 0)
    return mpg_infer_fail(infer, "the array of elements to search is empty");
  infer->outputs[0].shape = shape;
  return MPG_OK;
}

void mpg_compose_argmax_channel(mpg_gradient *g, const mpg_value *inputs, mpg_value *outputs) {
  mpg_argmax_params params = {.axis = {.value = 1, .present = 1}};
  if (mpg_value_desc(g, inputs[0])->shape.ndim < 2)
    mpg_gradient_fail(g, "the array must have at least 2 dimensions");
  else
    outputs[0] = mpg_emit1(g, MPG_OP_argmax, &params, inputs[0]);
}

/* --- Gathering and scattering along a dimension ----------------------------------------------- */

/* Checks that data and indices have equal sizes along all dimensions except `axis`. */
static mpg_status expect_along(mpg_infer *infer, int *axis) {
  PARAMS(along, params);
  const mpg_shape *data = &infer->inputs[0].shape;
  mpg_dtype dtype = infer->inputs[1].dtype;
  if (dtype != MPG_DTYPE_NONE && !mpg_dtype_is_integer(dtype))
    return mpg_infer_fail(infer, "indices must be integers");
  MPG_TRY(mpg_axis_normalize(params->axis, data->ndim, infer->op->name, axis));
  mpg_shape shape = *data;
  if (infer->inputs[1].shape.ndim == data->ndim)
    shape.dims[*axis] = infer->inputs[1].shape.dims[*axis];
  return mpg_infer_expect_shape(infer, 1, &shape);
}

mpg_status mpg_infer_gather_along(mpg_infer *infer) {
  int axis;
  infer->outputs[0].dtype = infer->inputs[0].dtype;
  if (!mpg_shape_known(&infer->inputs[0].shape)) return MPG_OK;
  MPG_TRY(expect_along(infer, &axis));
  if (infer->inputs[0].shape.dims[axis] == 0 && mpg_shape_size(&infer->inputs[1].shape) > 0)
    return mpg_infer_fail(infer, "data is empty, so no index is valid");
  infer->outputs[0].shape = infer->inputs[1].shape;
  return MPG_OK;
}

mpg_status mpg_infer_scatter_along(mpg_infer *infer) {
  PARAMS(along, params);
  int axis;
  infer->outputs[0].dtype = infer->inputs[0].dtype;
  if (!mpg_shape_known(&infer->inputs[0].shape)) return MPG_OK;
  MPG_TRY(expect_along(infer, &axis));
  if (!mpg_shape_equal(&infer->inputs[0].shape, &infer->inputs[1].shape))
    return mpg_infer_fail(infer, "data and indices must have the same shape");
  if (params->size == 0 && mpg_shape_size(&infer->inputs[0].shape) > 0)
    return mpg_infer_fail(infer, "the result is empty, so no index is valid");
  infer->outputs[0].shape = infer->inputs[0].shape;
  infer->outputs[0].shape.dims[axis] = params->size;
  return MPG_OK;
}

void mpg_gradient_gather_along(mpg_gradient *g) {
  GRADIENT_PARAMS(along, params);
  if (!g->needed[0]) return;
  const mpg_shape *in = &mpg_value_desc(g, g->inputs[0])->shape;
  mpg_along_params back = {
      .axis = params->axis,
      .size = in->dims[params->axis < 0 ? params->axis + in->ndim : params->axis]};
  g->in_grads[0] = mpg_emit2(g, MPG_OP__scatter_along, &back, g->out_grads[0], g->inputs[1]);
}

void mpg_gradient_scatter_along(mpg_gradient *g) {
  if (g->needed[0])
    g->in_grads[0] = mpg_emit2(g, MPG_OP__gather_along, g->params, g->out_grads[0], g->inputs[1]);
}

/* --- Costs ------------------------------------------------------------------------------------ */
mpg_cost mpg_cost_sort(const mpg_infer *call) {
  double size = (double)mpg_shape_size(&call->inputs[0].shape), rounds = 1;
  for (double n = 2; n < size; n *= 2) rounds++;
  return mpg_cost_of(call, 2 * size * rounds);
}
