/* Inference of input shapes from output shapes, for Symbols: the shape of a variable may follow
 * from the use of a result. Only unambiguous cases have a rule. */
#include <string.h>

#include "op/infer.h"

enum { LIMIT = INT32_MAX }; /* larger sizes stay unknown, so that a product of two fits int64 */

static mpg_status merge(const mpg_op *op, mpg_shape *input, const mpg_shape *wanted) {
  mpg_shape known = *wanted;
  if (mpg_shape_merge(input, &known)) return MPG_OK;
  char a[MPG_SHAPE_TEXT_SIZE], b[MPG_SHAPE_TEXT_SIZE];
  return mpg_fail(MPG_ERROR, "%s: an input has the shape %s, but the following ops require %s",
                  op->name, mpg_shape_text(input, a, sizeof a),
                  mpg_shape_text(wanted, b, sizeof b));
}

/* data (batch, ...), weight, bias -> (batch, ..., hidden). All axes but the last are equal, or only
 * the batch if flattened. */
static mpg_status fully_connected(const mpg_op *op, const mpg_fully_connected_params *p,
                                  mpg_desc *inputs, const mpg_shape *out) {
  mpg_shape *data = &inputs[0].shape;
  if (data->ndim < 1 || out->ndim < 1) return MPG_OK;
  int axes = p->flatten ? 1 : data->ndim - 1;
  if (!p->flatten && out->ndim != data->ndim) return MPG_OK;
  mpg_shape wanted = *data;
  for (int i = 0; i < axes; i++) wanted.dims[i] = out->dims[i];
  return merge(op, data, &wanted);
}

/* Infers the batch, and sizes with stride 1. With larger strides several input sizes give one
 * output size. */
static mpg_status convolution(const mpg_op *op, const mpg_convolution_params *p, mpg_desc *inputs,
                              const mpg_shape *out) {
  mpg_shape *data = &inputs[0].shape;
  if (data->ndim != out->ndim || data->ndim != p->kernel.count + 2) return MPG_OK;
  mpg_shape wanted = *data;
  wanted.dims[0] = out->dims[0];
  for (int i = 0; i < p->kernel.count; i++) {
    int64_t stride = p->stride.count ? p->stride.values[i] : 1,
            dilate = p->dilate.count ? p->dilate.values[i] : 1;
    int64_t pad = p->pad.count ? p->pad.values[i] : 0, size = out->dims[2 + i];
    int64_t kernel = p->kernel.values[i];
    if (stride != 1 || size < 0 || size > LIMIT || kernel < 1 || kernel > LIMIT || dilate < 1 ||
        dilate > LIMIT || pad < 0 || pad > LIMIT)
      continue;
    int64_t needed = size + dilate * (kernel - 1) - 2 * pad;
    if (needed > 0) wanted.dims[2 + i] = needed;
  }
  return merge(op, data, &wanted);
}

/* Each input axis equals one output axis. */
static mpg_status transpose(const mpg_op *op, const mpg_transpose_params *p, mpg_desc *inputs,
                            const mpg_shape *out) {
  mpg_shape wanted = *out;
  if (p->axes.count > 0 && p->axes.count != out->ndim) return MPG_OK;
  for (int i = 0; i < out->ndim; i++) {
    int axis = out->ndim - 1 - i;
    if (p->axes.count > 0)
      MPG_TRY(mpg_axis_normalize(p->axes.values[i], out->ndim, op->name, &axis));
    wanted.dims[axis] = out->dims[i];
  }
  return merge(op, &inputs[0].shape, &wanted);
}

static mpg_status slice_channel(const mpg_op *op, const mpg_split_params *p, mpg_desc *inputs,
                                const mpg_desc *outputs, int num_outputs) {
  for (int i = 0; i < num_outputs; i++) {
    mpg_shape out = outputs[i].shape, wanted;
    if (out.ndim < 0) continue;
    int axis, ndim = out.ndim + (p->squeeze_axis ? 1 : 0);
    if (ndim > MPG_MAX_NDIM) return MPG_OK;
    MPG_TRY(mpg_axis_normalize(p->axis, ndim, op->name, &axis));
    wanted = (mpg_shape){.ndim = ndim};
    for (int k = 0, from = 0; k < ndim; k++) {
      if (k == axis)
        wanted.dims[k] = p->squeeze_axis ? p->num_outputs
                         : out.dims[from] < 0 || out.dims[from] > LIMIT
                             ? -1
                             : out.dims[from] * p->num_outputs;
      else
        wanted.dims[k] = out.dims[from];
      if (k != axis || !p->squeeze_axis) from++;
    }
    MPG_TRY(merge(op, &inputs[0].shape, &wanted));
  }
  return MPG_OK;
}

/* Infers all axes except the joined one, and the joined one if it is unknown for a single input. */
static mpg_status concat(const mpg_op *op, const mpg_concat_params *p, mpg_desc *inputs,
                         int num_inputs, const mpg_shape *out) {
  int axis, unknown = -1;
  if (out->ndim < 1) return MPG_OK;
  MPG_TRY(mpg_axis_normalize(p->dim, out->ndim, op->name, &axis));
  int64_t rest = out->dims[axis];
  for (int i = 0; i < num_inputs; i++) {
    mpg_shape wanted = *out;
    wanted.dims[axis] = -1;
    MPG_TRY(merge(op, &inputs[i].shape, &wanted));
    int64_t size = inputs[i].shape.dims[axis];
    if (size >= 0)
      rest = rest < 0 ? -1 : rest - size;
    else
      unknown = unknown == -1 ? i : -2;
  }
  if (unknown >= 0 && out->dims[axis] >= 0 && rest >= 0) inputs[unknown].shape.dims[axis] = rest;
  return MPG_OK;
}

/* Reshapes keep the number of elements, which determines a single unknown size. */
static void same_size(mpg_shape *in, const mpg_shape *out) {
  int unknown = -1;
  int64_t size = 1, rest = 1;
  if (in->ndim < 0 || !mpg_shape_known(out)) return;
  for (int i = 0; i < out->ndim; i++)
    if (__builtin_mul_overflow(size, out->dims[i], &size)) return;
  for (int i = 0; i < in->ndim; i++) {
    if (in->dims[i] < 0 && unknown >= 0) return;
    if (in->dims[i] < 0)
      unknown = i;
    else if (__builtin_mul_overflow(rest, in->dims[i], &rest))
      return;
  }
  if (unknown >= 0 && rest > 0 && size % rest == 0) in->dims[unknown] = size / rest;
}

mpg_status mpg_op_infer_inputs(const mpg_op *op, const void *params, mpg_desc *inputs,
                               int num_inputs, const mpg_desc *outputs, int num_outputs) {
  if (num_outputs < 1 || num_inputs < 1) return MPG_OK;
  const mpg_shape *out = &outputs[0].shape;
  if (op->id == MPG_OP_SliceChannel) return slice_channel(op, params, inputs, outputs, num_outputs);
  if (op->id == MPG_OP_amp_multicast) {
    for (int i = 0; i < num_inputs && i < num_outputs; i++)
      if (outputs[i].shape.ndim >= 0) MPG_TRY(merge(op, &inputs[i].shape, &outputs[i].shape));
    return MPG_OK;
  }
  if (out->ndim < 0) return MPG_OK;
  switch (op->id) {
    case MPG_OP_FullyConnected: return fully_connected(op, params, inputs, out);
    case MPG_OP_Convolution: return convolution(op, params, inputs, out);
    case MPG_OP_Concat: return concat(op, params, inputs, num_inputs, out);
    case MPG_OP_transpose: return transpose(op, params, inputs, out);
    case MPG_OP_Reshape:
    case MPG_OP_Flatten:
    case MPG_OP_expand_dims: same_size(&inputs[0].shape, out); return MPG_OK;
    case MPG_OP_Cast:
    case MPG_OP_amp_cast:
    case MPG_OP_Dropout:
    case MPG_OP_softmax:
    case MPG_OP_log_softmax:
    case MPG_OP_BatchNorm:
    case MPG_OP_LayerNorm:
    case MPG_OP_LeakyReLU:
    case MPG_OP_SoftmaxOutput: return merge(op, &inputs[0].shape, out);
    default: break;
  }
  if (op->infer != mpg_infer_same) return MPG_OK;
  for (int i = 0; i < num_inputs; i++) MPG_TRY(merge(op, &inputs[i].shape, out));
  return MPG_OK;
}
