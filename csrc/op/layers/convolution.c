/* Convolution: geometry, inference and gradients. The data and weight gradients of a convolution
 * are ops whose own gradients are convolutions, so gradients of any order work. Deconvolution is
 * the data gradient under another name. */
#include "op/layers/convolution.h"

#include "op/formula/arithmetic.h"
#include "op/infer.h"

/* Limit for window sizes, strides and pads. Larger values are certainly mistakes and would
 * overflow. */
#define LARGEST ((int64_t)1 << 31)

/* Values of `layout` */
enum { LAYOUT_NCDHW, LAYOUT_NCHW, LAYOUT_NCW, LAYOUT_NDHWC, LAYOUT_NHWC, LAYOUT_NWC };

/* Checks that a window parameter is empty or has one element in [low, LARGEST] per spatial axis. */
static mpg_status check_tuple(const mpg_infer *infer, const char *name, const mpg_tuple *tuple,
                              int ndim, int64_t low) {
  if (tuple->count <= 0) return MPG_OK;
  if (tuple->count != ndim)
    return mpg_infer_fail(infer, "%s has %d elements; kernel has %d", name, tuple->count, ndim);
  for (int i = 0; i < ndim; i++)
    if (tuple->values[i] < low || tuple->values[i] > LARGEST)
      return mpg_infer_fail(infer,
                            "%s has the element %lld; it must be at least %lld and at most %lld",
                            name, (long long)tuple->values[i], (long long)low, (long long)LARGEST);
  return MPG_OK;
}

static mpg_status check_window(const mpg_infer *infer, const mpg_tuple *kernel,
                               const mpg_tuple *stride, const mpg_tuple *dilate,
                               const mpg_tuple *pad) {
  int ndim = kernel->count;
  if (ndim < 1 || ndim > MPG_MAX_SPATIAL)
    return mpg_infer_fail(infer, "kernel must have 1 to 3 elements, not %d", ndim < 0 ? 0 : ndim);
  MPG_TRY(check_tuple(infer, "kernel", kernel, ndim, 1));
  MPG_TRY(check_tuple(infer, "stride", stride, ndim, 1));
  if (dilate) MPG_TRY(check_tuple(infer, "dilate", dilate, ndim, 1));
  return check_tuple(infer, "pad", pad, ndim, 0);
}

/* Checks that the layout's name has one letter per axis of data. */
static mpg_status check_layout(const mpg_infer *infer, int layout, int ndim) {
  static const char *const words[] = {"NCDHW", "NCHW", "NCW", "NDHWC", "NHWC", "NWC"};
  static const int axes[] = {3, 2, 1, 3, 2, 1};
  if (layout < 0 || axes[layout] == ndim) return MPG_OK;
  return mpg_infer_fail(
      infer,
      "layout %s requires a kernel of %d elements, not of %d; omit layout or choose %s or %s",
      words[layout], axes[layout], ndim, words[3 - ndim], words[6 - ndim]);
}

static int64_t places(int64_t in, int64_t kernel, int64_t stride, int64_t dilate, int64_t pad) {
  int64_t span = dilate * (kernel - 1) + 1;
  return in + 2 * pad < span ? -1 : (in + 2 * pad - span) / stride + 1;
}

/* --- Convolution ------------------------------------------------------------------------------ */
/* Checks the numbers of channels. `data` is a channels-first shape and may be unknown. */
static mpg_status check_channels(mpg_infer *infer, const mpg_shape *data, int ndim,
                                 int64_t num_filter, int64_t num_group) {
  if (num_filter % num_group)
    return mpg_infer_fail(infer, "num_filter must be a multiple of num_group");
  if (infer->num_inputs == 3)
    MPG_TRY(mpg_infer_expect_shape(infer, 2, &(mpg_shape){.ndim = 1, .dims = {num_filter}}));
  if (data->ndim < 0) return MPG_OK;
  if (data->ndim != ndim + 2)
    return mpg_infer_fail(infer, "data must have %d axes for a kernel of %d elements", ndim + 2,
                          ndim);
  if (data->dims[1] >= 0 && data->dims[1] % num_group)
    return mpg_infer_fail(infer, "the channels must be a multiple of num_group");
  return MPG_OK;
}

mpg_status mpg_infer_convolution(mpg_infer *infer) {
  const mpg_convolution_params *p = infer->params;
  mpg_layout layout = mpg_convolution_layout(infer->op, p);
  mpg_shape first = mpg_data_first(&infer->inputs[0].shape, layout), *data = &first;
  MPG_TRY(mpg_infer_same_dtype(infer));
  MPG_TRY(check_window(infer, &p->kernel, &p->stride, &p->dilate, &p->pad));
  int ndim = p->kernel.count;
  MPG_TRY(check_layout(infer, p->layout, ndim));
  MPG_TRY(check_channels(infer, data, ndim, p->num_filter, p->num_group));
  if (data->ndim < 0) return MPG_OK;
  mpg_shape weight = {
      .ndim = ndim + 2,
      .dims = {p->num_filter, data->dims[1] < 0 ? -1 : data->dims[1] / p->num_group}};
  mpg_shape out = {.ndim = ndim + 2, .dims = {data->dims[0], p->num_filter}};
  for (int i = 0; i < ndim; i++) {
    weight.dims[i + 2] = p->kernel.values[i];
    out.dims[i + 2] = data->dims[i + 2];
    if (data->dims[i + 2] < 0) continue;
    out.dims[i + 2] = places(data->dims[i + 2], p->kernel.values[i], mpg_tuple_at(&p->stride, i, 1),
                             mpg_tuple_at(&p->dilate, i, 1), mpg_tuple_at(&p->pad, i, 0));
    if (out.dims[i + 2] < 0)
      return mpg_infer_fail(infer, "the kernel is larger than the padded data along axis %d",
                            i + 2);
  }
  weight = mpg_weight_laid(&weight, layout);
  out = mpg_data_laid(&out, layout);
  MPG_TRY(mpg_infer_expect_shape(infer, 1, &weight));
  infer->outputs[0].shape = out;
  return MPG_OK;
}

/* Infers the batch size, and the spatial sizes along axes with stride 1. With larger strides,
 * several input sizes give the same output size. */
mpg_status mpg_infer_inputs_convolution(mpg_infer *infer) {
  enum { LIMIT = INT32_MAX }; /* larger sizes stay unknown, so products of two sizes fit in int64 */
  const mpg_convolution_params *p = infer->params;
  int ndim = p->kernel.count + 2;
  if (infer->inputs[0].shape.ndim != ndim || infer->outputs[0].shape.ndim != ndim) return MPG_OK;
  mpg_layout layout = mpg_convolution_layout(infer->op, p);
  mpg_shape data = mpg_data_first(&infer->inputs[0].shape, layout),
            out = mpg_data_first(&infer->outputs[0].shape, layout);
  data.dims[0] = out.dims[0];
  for (int i = 0; i < p->kernel.count; i++) {
    int64_t stride = mpg_tuple_at(&p->stride, i, 1), dilate = mpg_tuple_at(&p->dilate, i, 1),
            pad = mpg_tuple_at(&p->pad, i, 0), size = out.dims[2 + i], kernel = p->kernel.values[i];
    if (stride != 1 || size < 0 || size > LIMIT || kernel < 1 || kernel > LIMIT || dilate < 1 ||
        dilate > LIMIT || pad < 0 || pad > LIMIT)
      continue;
    int64_t needed = size + dilate * (kernel - 1) - 2 * pad;
    if (needed > 0) data.dims[2 + i] = needed;
  }
  data = mpg_data_laid(&data, layout);
  return mpg_infer_input_shape(infer, 0, &data);
}

static mpg_convolution_backward_params backward_params(mpg_layout layout, const mpg_tuple *stride,
                                                       const mpg_tuple *dilate,
                                                       const mpg_tuple *pad, int64_t groups) {
  return (mpg_convolution_backward_params){.stride = *stride,
                                           .dilate = *dilate,
                                           .pad = *pad,
                                           .num_group = groups,
                                           .layout = (int)layout};
}

static mpg_value emit_backward(mpg_gradient *g, mpg_op_id op,
                               mpg_convolution_backward_params params, mpg_value out_grad,
                               mpg_value other, const mpg_shape *shape) {
  params.shape = mpg_shape_tuple(shape);
  return mpg_emit2(g, op, &params, out_grad, other);
}

static mpg_value emit_convolution(mpg_gradient *g, mpg_convolution_backward_params params,
                                  mpg_value data, mpg_value weight) {
  mpg_layout layout = (mpg_layout)params.layout;
  mpg_shape shape = mpg_weight_first(&mpg_value_desc(g, weight)->shape, layout);
  mpg_convolution_params forward = {.kernel = {.count = shape.ndim - 2},
                                    .stride = params.stride,
                                    .dilate = params.dilate,
                                    .pad = params.pad,
                                    .num_filter = shape.dims[0],
                                    .num_group = params.num_group,
                                    .workspace = 1024,
                                    .no_bias = true,
                                    .cudnn_tune = -1,
                                    .layout = -1};
  if (layout == MPG_CHANNELS_LAST)
    forward.layout = shape.ndim == 3 ? LAYOUT_NWC : shape.ndim == 4 ? LAYOUT_NHWC : LAYOUT_NDHWC;
  for (int i = 2; i < shape.ndim; i++) forward.kernel.values[i - 2] = shape.dims[i];
  return mpg_emit2(
      g, layout == MPG_CHANNELS_LAST_DATA ? MPG_OP__convolution_channels_last : MPG_OP_Convolution,
      &forward, data, weight);
}

mpg_value mpg_emit_channel_sum(mpg_gradient *g, mpg_value grad, mpg_layout layout) {
  mpg_shape shape = mpg_value_desc(g, grad)->shape;
  int axis = layout == MPG_CHANNELS_FIRST ? 1 : shape.ndim - 1;
  mpg_shape channels = {.ndim = 1, .dims = {shape.dims[axis]}};
  for (int i = 0; i < shape.ndim; i++)
    if (i != axis) shape.dims[i] = 1;
  return mpg_emit_reshape(g, mpg_emit_sum_to(g, grad, &shape), &channels);
}

void mpg_gradient_convolution(mpg_gradient *g) {
  const mpg_convolution_params *p = g->params;
  mpg_shape data = mpg_value_desc(g, g->inputs[0])->shape,
            weight = mpg_value_desc(g, g->inputs[1])->shape;
  mpg_convolution_backward_params params = backward_params(
      mpg_convolution_layout(g->op, p), &p->stride, &p->dilate, &p->pad, p->num_group);
  if (g->needed[0])
    g->in_grads[0] = emit_backward(g, MPG_OP__backward_convolution_data, params, g->out_grads[0],
                                   g->inputs[1], &data);
  if (g->needed[1])
    g->in_grads[1] = emit_backward(g, MPG_OP__backward_convolution_weight, params, g->out_grads[0],
                                   g->inputs[0], &weight);
  if (g->num_inputs == 3 && g->needed[2])
    g->in_grads[2] = mpg_emit_channel_sum(g, g->out_grads[0], (mpg_layout)params.layout);
}

/* Infers the data gradient (if `of_data`) or the weight gradient. The parameter `shape` is the
 * gradient's shape, and input 1 is the weight or the data, respectively. out_grad must have the
 * shape of their convolution. */
static mpg_status infer_backward(mpg_infer *infer, bool of_data) {
  const mpg_convolution_backward_params *p = infer->params;
  mpg_shape shape;
  MPG_TRY(mpg_infer_same_dtype(infer));
  MPG_TRY(mpg_infer_tuple_shape(infer, &p->shape, &shape));
  infer->outputs[0].shape = shape;
  const mpg_shape *other = &infer->inputs[1].shape;
  if (!mpg_shape_known(other)) return MPG_OK;
  if (shape.ndim < 3 || shape.ndim > 5 || other->ndim != shape.ndim)
    return mpg_infer_fail(infer, "data and weight must have 3 to 5 axes, both the same number");
  mpg_layout layout = (mpg_layout)p->layout;
  mpg_shape data = mpg_data_first(of_data ? &shape : other, layout),
            weight = mpg_weight_first(of_data ? other : &shape, layout);
  mpg_shape out = {.ndim = data.ndim, .dims = {data.dims[0], weight.dims[0]}};
  mpg_tuple kernel = {.count = weight.ndim - 2};
  for (int i = 0; i < kernel.count; i++) kernel.values[i] = weight.dims[i + 2];
  MPG_TRY(check_window(infer, &kernel, &p->stride, &p->dilate, &p->pad));
  int64_t groups = p->num_group, channels;
  if (groups < 1 || weight.dims[0] % groups ||
      __builtin_mul_overflow(weight.dims[1], groups, &channels) || channels != data.dims[1])
    return mpg_infer_fail(infer, "the channels of data and weight do not match num_group=%lld",
                          (long long)groups);
  for (int i = 2; i < data.ndim; i++) {
    out.dims[i] = places(data.dims[i], weight.dims[i], mpg_tuple_at(&p->stride, i - 2, 1),
                         mpg_tuple_at(&p->dilate, i - 2, 1), mpg_tuple_at(&p->pad, i - 2, 0));
    if (out.dims[i] < 0)
      return mpg_infer_fail(infer, "the kernel is larger than the padded data along axis %d", i);
  }
  out = mpg_data_laid(&out, layout);
  return mpg_infer_expect_shape(infer, 0, &out);
}
mpg_status mpg_infer_convolution_backward_data(mpg_infer *infer) {
  return infer_backward(infer, true);
}
mpg_status mpg_infer_convolution_backward_weight(mpg_infer *infer) {
  return infer_backward(infer, false);
}

/* The data gradient dx = D(dy, w) is linear in dy and w. Its gradient with respect to dy is the
 * convolution with w. Its gradient with respect to w is the weight gradient for the output gradient
 * dy. */
void mpg_gradient_convolution_backward_data(mpg_gradient *g) {
  const mpg_convolution_backward_params *p = g->params;
  mpg_shape weight = mpg_value_desc(g, g->inputs[1])->shape;
  if (g->needed[0]) g->in_grads[0] = emit_convolution(g, *p, g->out_grads[0], g->inputs[1]);
  if (g->needed[1])
    g->in_grads[1] = emit_backward(g, MPG_OP__backward_convolution_weight, *p, g->inputs[0],
                                   g->out_grads[0], &weight);
}

/* The weight gradient dw = W(dy, x) is linear in dy and x. Its gradient with respect to dy is the
 * convolution of x. Its gradient with respect to x is the data gradient for the output gradient
 * dy. */
void mpg_gradient_convolution_backward_weight(mpg_gradient *g) {
  const mpg_convolution_backward_params *p = g->params;
  mpg_shape data = mpg_value_desc(g, g->inputs[1])->shape;
  if (g->needed[0]) g->in_grads[0] = emit_convolution(g, *p, g->inputs[1], g->out_grads[0]);
  if (g->needed[1])
    g->in_grads[1] = emit_backward(g, MPG_OP__backward_convolution_data, *p, g->inputs[0],
                                   g->out_grads[0], &data);
}

/* --- Deconvolution ---------------------------------------------------------------------------- */
/* Computes pad and adj along spatial axis i: from target_shape if it is set, otherwise from the
 * parameters pad and adj. */
static mpg_status deconvolution_pad(const mpg_infer *infer, const mpg_deconvolution_params *p,
                                    int i, int64_t full, int64_t *pad, int64_t *adj) {
  bool target = false;
  for (int k = 0; k < p->target_shape.count; k++) target |= p->target_shape.values[k] != 0;
  *pad = mpg_tuple_at(&p->pad, i, 0);
  *adj = mpg_tuple_at(&p->adj, i, 0);
  if (!target) return MPG_OK;
  int64_t cut = full - p->target_shape.values[i];
  if (cut < 0)
    return mpg_infer_fail(infer, "target_shape is too large along axis %d: at most %lld", i + 2,
                          (long long)full);
  *adj = cut % 2;
  *pad = (cut + 1) / 2;
  return MPG_OK;
}

/* Computes the output shape and the effective padding, which gradients and kernels use. */
static mpg_status deconvolution_shape(const mpg_infer *infer, const mpg_deconvolution_params *p,
                                      const mpg_shape *data, mpg_shape *out, mpg_tuple *pads) {
  int ndim = p->kernel.count;
  *out = (mpg_shape){.ndim = ndim + 2, .dims = {data->dims[0], p->num_filter}};
  *pads = (mpg_tuple){.count = ndim};
  for (int i = 0; i < ndim; i++) {
    int64_t in = data->dims[i + 2], stride = mpg_tuple_at(&p->stride, i, 1), pad, adj, full;
    out->dims[i + 2] = -1;
    if (in < 0) continue;
    if (in == 0) return mpg_infer_fail(infer, "axis %d of data is empty", i + 2);
    int64_t span = mpg_tuple_at(&p->dilate, i, 1) * (p->kernel.values[i] - 1) + 1;
    if (__builtin_mul_overflow(stride, in - 1, &full) || __builtin_add_overflow(full, span, &full))
      return mpg_infer_fail(infer, "the result is too large");
    MPG_TRY(deconvolution_pad(infer, p, i, full, &pad, &adj));
    if (adj >= stride)
      return mpg_infer_fail(infer, "adj must be less than stride along axis %d", i + 2);
    pads->values[i] = pad;
    out->dims[i + 2] = full - 2 * pad + adj;
    if (out->dims[i + 2] < 0)
      return mpg_infer_fail(infer, "pad removes more than the whole result along axis %d", i + 2);
  }
  return MPG_OK;
}

mpg_status mpg_infer_deconvolution(mpg_infer *infer) {
  const mpg_deconvolution_params *p = infer->params;
  mpg_layout layout = mpg_layout_of(p->layout);
  mpg_shape first = mpg_data_first(&infer->inputs[0].shape, layout), *data = &first;
  MPG_TRY(mpg_infer_same_dtype(infer));
  MPG_TRY(check_window(infer, &p->kernel, &p->stride, &p->dilate, &p->pad));
  int ndim = p->kernel.count;
  MPG_TRY(check_tuple(infer, "adj", &p->adj, ndim, 0));
  MPG_TRY(check_tuple(infer, "target_shape", &p->target_shape, ndim, 0));
  MPG_TRY(check_layout(infer, p->layout, ndim));
  MPG_TRY(check_channels(infer, data, ndim, p->num_filter, p->num_group));
  if (data->ndim < 0) return MPG_OK;
  mpg_shape weight = {.ndim = ndim + 2, .dims = {data->dims[1], p->num_filter / p->num_group}}, out;
  for (int i = 0; i < ndim; i++) weight.dims[i + 2] = p->kernel.values[i];
  weight = mpg_weight_laid(&weight, layout);
  MPG_TRY(mpg_infer_expect_shape(infer, 1, &weight));
  mpg_tuple pads;
  MPG_TRY(deconvolution_shape(infer, p, data, &out, &pads));
  out = mpg_data_laid(&out, layout);
  infer->outputs[0].shape = out;
  return MPG_OK;
}

void mpg_gradient_deconvolution(mpg_gradient *g) {
  const mpg_deconvolution_params *p = g->params;
  mpg_layout layout = mpg_layout_of(p->layout);
  mpg_shape data = mpg_data_first(&mpg_value_desc(g, g->inputs[0])->shape, layout),
            weight = mpg_value_desc(g, g->inputs[1])->shape;
  mpg_shape out = mpg_data_first(&mpg_value_desc(g, g->out_grads[0])->shape, layout);
  mpg_tuple pads;
  mpg_deconvolution_pads(p, &data, &out, &pads);
  mpg_convolution_backward_params params =
      backward_params(layout, &p->stride, &p->dilate, &pads, p->num_group);
  if (g->needed[0]) g->in_grads[0] = emit_convolution(g, params, g->out_grads[0], g->inputs[1]);
  if (g->needed[1])
    g->in_grads[1] = emit_backward(g, MPG_OP__backward_convolution_weight, params, g->inputs[0],
                                   g->out_grads[0], &weight);
  if (g->num_inputs == 3 && g->needed[2])
    g->in_grads[2] = mpg_emit_channel_sum(g, g->out_grads[0], (mpg_layout)params.layout);
}

/* --- im2col, col2im --------------------------------------------------------------------------- */
mpg_status mpg_infer_im2col(mpg_infer *infer) {
  const mpg_im2col_params *p = infer->params;
  const mpg_shape *data = &infer->inputs[0].shape;
  MPG_TRY(mpg_infer_same_dtype(infer));
  MPG_TRY(check_window(infer, &p->kernel, &p->stride, &p->dilate, &p->pad));
  if (!mpg_shape_known(data)) return MPG_OK;
  int ndim = p->kernel.count;
  if (data->ndim != ndim + 2)
    return mpg_infer_fail(infer, "data must have %d axes for a kernel of %d elements", ndim + 2,
                          ndim);
  mpg_shape out = {.ndim = 3, .dims = {data->dims[0], data->dims[1], 1}};
  for (int i = 0; i < ndim; i++) {
    int64_t n = places(data->dims[i + 2], p->kernel.values[i], mpg_tuple_at(&p->stride, i, 1),
                       mpg_tuple_at(&p->dilate, i, 1), mpg_tuple_at(&p->pad, i, 0));
    if (n < 0)
      return mpg_infer_fail(infer, "the kernel is larger than the padded data along axis %d",
                            i + 2);
    if (__builtin_mul_overflow(out.dims[1], p->kernel.values[i], &out.dims[1]) ||
        __builtin_mul_overflow(out.dims[2], n, &out.dims[2]))
      return mpg_infer_fail(infer, "the result is too large");
  }
  infer->outputs[0].shape = out;
  return MPG_OK;
}

mpg_status mpg_infer_col2im(mpg_infer *infer) {
  const mpg_col2im_params *p = infer->params;
  const mpg_shape *data = &infer->inputs[0].shape;
  MPG_TRY(mpg_infer_same_dtype(infer));
  MPG_TRY(check_window(infer, &p->kernel, &p->stride, &p->dilate, &p->pad));
  int ndim = p->kernel.count;
  if (p->output_size.count != ndim)
    return mpg_infer_fail(infer, "output_size and kernel must have the same number of elements");
  MPG_TRY(check_tuple(infer, "output_size", &p->output_size, ndim, 0));
  if (!mpg_shape_known(data)) return MPG_OK;
  if (data->ndim != 3)
    return mpg_infer_fail(infer, "data must have 3 axes: (batch, channels * window, positions)");
  int64_t window = 1, columns = 1;
  mpg_shape out = {.ndim = ndim + 2, .dims = {data->dims[0]}};
  for (int i = 0; i < ndim; i++) {
    out.dims[i + 2] = p->output_size.values[i];
    int64_t n = places(out.dims[i + 2], p->kernel.values[i], mpg_tuple_at(&p->stride, i, 1),
                       mpg_tuple_at(&p->dilate, i, 1), mpg_tuple_at(&p->pad, i, 0));
    if (n < 0)
      return mpg_infer_fail(infer, "the kernel is larger than the padded output along axis %d",
                            i + 2);
    if (__builtin_mul_overflow(window, p->kernel.values[i], &window) ||
        __builtin_mul_overflow(columns, n, &columns))
      return mpg_infer_fail(infer, "the result is too large");
  }
  if (data->dims[1] % window || data->dims[2] != columns)
    return mpg_infer_fail(infer,
                          "axis 1 must be a multiple of the window's %lld elements, and axis 2 "
                          "must have its %lld positions",
                          (long long)window, (long long)columns);
  out.dims[1] = data->dims[1] / window;
  infer->outputs[0].shape = out;
  return MPG_OK;
}

void mpg_gradient_im2col(mpg_gradient *g) {
  const mpg_im2col_params *p = g->params;
  const mpg_shape *data = &mpg_value_desc(g, g->inputs[0])->shape;
  mpg_col2im_params params = {.output_size = {.count = data->ndim - 2},
                              .kernel = p->kernel,
                              .stride = p->stride,
                              .dilate = p->dilate,
                              .pad = p->pad};
  for (int i = 2; i < data->ndim; i++) params.output_size.values[i - 2] = data->dims[i];
  g->in_grads[0] = mpg_emit1(g, MPG_OP_col2im, &params, g->out_grads[0]);
}

void mpg_gradient_col2im(mpg_gradient *g) {
  const mpg_col2im_params *p = g->params;
  mpg_im2col_params params = {
      .kernel = p->kernel, .stride = p->stride, .dilate = p->dilate, .pad = p->pad};
  g->in_grads[0] = mpg_emit1(g, MPG_OP_im2col, &params, g->out_grads[0]);
}

/* --- Pooling ---------------------------------------------------------------------------------- */
enum { CONVENTION_FULL, CONVENTION_SAME, CONVENTION_VALID };

/* Computes the result shape of pooling. The result is unknown if the rank of `data` is unknown. */
static mpg_status pooled_shape(mpg_infer *infer, const mpg_desc *data, mpg_shape *result) {
  const mpg_pooling_params *p = infer->params;
  *result = MPG_SHAPE_UNKNOWN;
  if (p->pool_type == MPG_POOL_LP && !p->p_value.present)
    return mpg_infer_fail(infer, "pool_type='lp' needs p_value");
  bool same = p->pooling_convention == CONVENTION_SAME;
  if (!p->global_pool)
    MPG_TRY(check_window(infer, &p->kernel, &p->stride, NULL, same ? &(mpg_tuple){0} : &p->pad));
  for (int i = 0; i < p->pad.count && same && !p->global_pool; i++)
    if (p->pad.values[i])
      return mpg_infer_fail(infer, "pooling_convention='same' cannot be combined with pad");
  if (data->shape.ndim < 0) return MPG_OK;
  int ndim = p->global_pool ? data->shape.ndim - 2 : p->kernel.count;
  if (data->shape.ndim < 3 || data->shape.ndim > 5)
    return mpg_infer_fail(infer, "data must have 3 to 5 axes");
  if (data->shape.ndim != ndim + 2)
    return mpg_infer_fail(infer, "data must have %d axes for a kernel of %d elements", ndim + 2,
                          ndim);
  MPG_TRY(check_layout(infer, p->layout, ndim));
  mpg_layout layout = mpg_layout_of(p->layout);
  mpg_shape out = mpg_data_first(&data->shape, layout);
  for (int i = 0; i < ndim; i++) {
    int64_t in = out.dims[i + 2];
    if (p->global_pool) {
      if (in == 0) return mpg_infer_fail(infer, "axis %d of data is empty", i + 2);
      out.dims[i + 2] = 1;
      continue;
    }
    if (in < 0) continue;
    int64_t kernel = p->kernel.values[i], stride = mpg_tuple_at(&p->stride, i, 1),
            pad = mpg_tuple_at(&p->pad, i, 0);
    if (in + 2 * pad < kernel)
      return mpg_infer_fail(infer, "the window is larger than the padded data along axis %d",
                            i + 2);
    if (same) {
      out.dims[i + 2] = (in + stride - 1) / stride;
    } else {
      int64_t steps = in + 2 * pad - kernel;
      out.dims[i + 2] =
          1 + (p->pooling_convention == CONVENTION_FULL ? (steps + stride - 1) / stride
                                                        : steps / stride);
    }
  }
  *result = mpg_data_laid(&out, layout);
  return MPG_OK;
}

mpg_status mpg_infer_pooling(mpg_infer *infer) {
  mpg_shape out;
  MPG_TRY(pooled_shape(infer, &infer->inputs[0], &out));
  mpg_infer_set(infer, 0, &out, infer->inputs[0].dtype);
  return MPG_OK;
}

void mpg_gradient_pooling(mpg_gradient *g) {
  g->in_grads[0] = mpg_emit3(g, MPG_OP__backward_Pooling, g->params, g->out_grads[0], g->inputs[0],
                             g->outputs[0]);
}

mpg_status mpg_infer_pooling_backward(mpg_infer *infer) {
  const mpg_desc *data = &infer->inputs[1];
  mpg_shape out;
  MPG_TRY(mpg_infer_same_dtype(infer));
  if (!mpg_shape_known(&data->shape)) return MPG_OK;
  MPG_TRY(pooled_shape(infer, data, &out));
  MPG_TRY(mpg_infer_expect_shape(infer, 0, &out));
  MPG_TRY(mpg_infer_expect_shape(infer, 2, &out));
  mpg_infer_set(infer, 0, &data->shape, data->dtype);
  return MPG_OK;
}

void mpg_compose_pooling_v1(mpg_gradient *g, const mpg_value *inputs, mpg_value *outputs) {
  static const int32_t types[] = {MPG_POOL_AVG, MPG_POOL_MAX, MPG_POOL_SUM};
  const mpg_pooling_v1_params *p = g->params;
  mpg_pooling_params pooling;
  mpg_params_defaults(mpg_op_get(MPG_OP_Pooling)->params, &pooling);
  pooling.kernel = p->kernel;
  pooling.pool_type = types[p->pool_type];
  pooling.global_pool = p->global_pool;
  pooling.pooling_convention = p->pooling_convention ? CONVENTION_VALID : CONVENTION_FULL;
  pooling.stride = p->stride;
  pooling.pad = p->pad;
  outputs[0] = mpg_emit1(g, MPG_OP_Pooling, &pooling, inputs[0]);
}

/* Emits Lp pooling, (sum of data^p) ^ (1/p). For an odd p, the terms and the result keep their
 * signs. */
static void emit_lp_pooling(mpg_gradient *g, const mpg_value *inputs, mpg_value *outputs) {
  mpg_pooling_params sum = *(const mpg_pooling_params *)g->params;
  int64_t p = sum.p_value.value;
  sum.pool_type = MPG_POOL_SUM;
  mpg_value power = inputs[0];
  for (int64_t i = 1; i < p; i++) power = mpg_multiply(g, power, inputs[0]);
  outputs[0] = mpg_emit1(g, MPG_OP_Pooling, &sum, power);
  if (p > 1) outputs[0] = mpg_emit1(g, p == 2 ? MPG_OP_sqrt : MPG_OP_cbrt, NULL, outputs[0]);
}

/* Second-order gradient. For sum and average pooling, which are linear, it is the pooling itself.
 * Max pooling is linear while the positions of the maxima stay the same, so its second-order
 * gradient selects the elements at these positions. */
void mpg_gradient_pooling_backward(mpg_gradient *g) {
  const mpg_pooling_params *p = g->params;
  if (p->pool_type == MPG_POOL_LP) {
    static const int inputs[] = {1}, out_grads[] = {0};
    mpg_gradient_written_out(g, &(mpg_written_out){1, 1, inputs, out_grads, emit_lp_pooling});
    return;
  }
  if (!g->needed[0]) return;
  g->in_grads[0] = p->pool_type == MPG_POOL_MAX
                       ? mpg_emit2(g, MPG_OP__pooling_at_max, p, g->out_grads[0], g->inputs[1])
                       : mpg_emit1(g, MPG_OP_Pooling, p, g->out_grads[0]);
}

mpg_status mpg_infer_pooling_at_max(mpg_infer *infer) {
  MPG_TRY(mpg_infer_same_dtype(infer));
  if (mpg_shape_known(&infer->inputs[0].shape))
    MPG_TRY(mpg_infer_expect_shape(infer, 1, &infer->inputs[0].shape));
  return mpg_infer_pooling(infer);
}

/* The third input of _backward_Pooling is the pooling result. Max pooling does not read it, so any
 * array of the right shape can be passed. */
void mpg_gradient_pooling_at_max(mpg_gradient *g) {
  if (g->needed[0])
    g->in_grads[0] = mpg_emit3(g, MPG_OP__backward_Pooling, g->params, g->out_grads[0],
                               g->inputs[1], g->out_grads[0]);
}

mpg_status mpg_infer_max_pooling(mpg_infer *infer) {
  MPG_TRY(mpg_infer_pooling(infer));
  infer->outputs[1].dtype = MPG_UINT8;
  if (!mpg_shape_known(&infer->outputs[0].shape)) return MPG_OK;
  const mpg_pooling_params *p = infer->params;
  mpg_window w;
  mpg_pooling_window(p, &infer->inputs[0].shape, &infer->outputs[0].shape, &w);
  if (p->pool_type != MPG_POOL_MAX || mpg_layout_of(p->layout) != MPG_CHANNELS_LAST ||
      mpg_window_product(w.kernel, w.ndim) > MPG_POOLING_INDEX_NONE)
    return mpg_infer_fail(infer, "the window must have at most %d elements with the channels last",
                          MPG_POOLING_INDEX_NONE);
  mpg_infer_set(infer, 1, &infer->outputs[0].shape, MPG_UINT8);
  return MPG_OK;
}

void mpg_gradient_max_pooling(mpg_gradient *g) {
  const mpg_shape *shape = &mpg_value_desc(g, g->inputs[0])->shape;
  mpg_window w;
  mpg_pooling_window(g->params, shape, &mpg_value_desc(g, g->outputs[0])->shape, &w);
  mpg_pooling_index_params params = {.kernel = {.count = w.ndim},
                                     .stride = {.count = w.ndim},
                                     .pad = {.count = w.ndim},
                                     .shape = mpg_shape_tuple(shape)};
  for (int i = 0; i < w.ndim; i++) {
    params.kernel.values[i] = w.kernel[i];
    params.stride.values[i] = w.stride[i];
    params.pad.values[i] = w.pad[i];
  }
  g->in_grads[0] = mpg_emit2(g, MPG_OP__backward_max_pooling_channels_last, &params,
                             g->out_grads[0], g->outputs[1]);
}

mpg_status mpg_infer_max_pooling_backward(mpg_infer *infer) {
  const mpg_pooling_index_params *p = infer->params;
  mpg_shape shape;
  MPG_TRY(mpg_infer_tuple_shape(infer, &p->shape, &shape));
  MPG_TRY(mpg_infer_expect_dtype(infer, 1, MPG_UINT8));
  MPG_TRY(check_window(infer, &p->kernel, &p->stride, NULL, &p->pad));
  if (p->stride.count != p->kernel.count || p->pad.count != p->kernel.count ||
      shape.ndim != p->kernel.count + 2)
    return mpg_infer_fail(
        infer, "kernel, stride and pad must have one element for each axis of shape except two");
  const mpg_shape *grad = &infer->inputs[0].shape;
  if (mpg_shape_known(grad)) {
    MPG_TRY(mpg_infer_expect_shape(infer, 1, grad));
    if (grad->ndim != shape.ndim || grad->dims[0] != shape.dims[0] ||
        grad->dims[grad->ndim - 1] != shape.dims[shape.ndim - 1])
      return mpg_infer_fail(infer, "out_grad and shape must have the same batch and channels");
  }
  mpg_infer_set(infer, 0, &shape, infer->inputs[0].dtype);
  return MPG_OK;
}

/* --- UpSampling ------------------------------------------------------------------------------- */
enum { MODE_CONCAT, MODE_SUM };
enum { SAMPLE_BILINEAR, SAMPLE_NEAREST };

int mpg_arity_upsampling(const mpg_op *op, const void *params, int given) {
  (void)op;
  const mpg_upsampling_params *p = params;
  return given > 0 ? given
         : p->sample_type == SAMPLE_BILINEAR
             ? 2
             : (int)(p->num_args < MPG_MAX_INPUTS ? p->num_args : MPG_MAX_INPUTS);
}

static mpg_value repeat(mpg_gradient *g, mpg_value value, int axis, int64_t times) {
  mpg_repeat_params params;
  memset(&params, 0, sizeof params);
  params.repeats = times;
  params.axis = (mpg_opt_int){.value = axis, .present = 1};
  return mpg_emit1(g, MPG_OP_repeat, &params, value);
}

void mpg_compose_upsampling(mpg_gradient *g, const mpg_value *inputs, mpg_value *outputs) {
  const mpg_upsampling_params *p = g->params;
  mpg_value parts[MPG_MAX_INPUTS];
  int64_t height = 0, width = 0;
  if (p->sample_type == SAMPLE_BILINEAR) {
    mpg_gradient_fail(
        g, "sample_type='bilinear' requires a Deconvolution; call nd.UpSampling or sym.UpSampling");
    return;
  }
  for (int i = 0; i < g->num_inputs; i++) {
    const mpg_shape *shape = &mpg_value_desc(g, inputs[i])->shape;
    int64_t h = shape->dims[2], w = shape->dims[3];
    if (shape->ndim != 4) {
      mpg_gradient_fail(g, "inputs must have 4 axes: (batch, channels, height, width)");
      return;
    }
    if (i == 0 && (__builtin_mul_overflow(h, p->scale, &height) ||
                   __builtin_mul_overflow(w, p->scale, &width))) {
      mpg_gradient_fail(g, "the result is too large");
      return;
    }
    if (i && (h == 0 || w == 0 || height % h || width % w || height / h != width / w)) {
      mpg_gradient_fail(g,
                        "height and width of every input must divide the first one's new size, "
                        "both by the same factor");
      return;
    }
    int64_t scale = i ? height / h : p->scale;
    parts[i] = repeat(g, repeat(g, inputs[i], 3, scale), 2, scale);
  }
  if (p->multi_input_mode == MODE_CONCAT) {
    outputs[0] = mpg_emit_concat(g, parts, g->num_inputs, 1);
    return;
  }
  outputs[0] = parts[0];
  for (int i = 1; i < g->num_inputs; i++)
    outputs[0] = mpg_emit2(g, MPG_OP_elemwise_add, NULL, outputs[0], parts[i]);
}

/* --- Costs ------------------------------------------------------------------------------------ */

/* Cost of a convolution or one of its gradients: 2 * batch * positions * (number of weights)
 * operations. Batch and positions are those of `filters_side`, the output or its gradient, whose
 * channels are the filters. */
static mpg_cost products(const mpg_infer *call, const mpg_shape *filters_side, double weight,
                         mpg_layout layout) {
  mpg_shape first = mpg_data_first(filters_side, layout);
  double places = (double)first.dims[0];
  for (int i = 2; i < first.ndim; i++) places *= (double)first.dims[i];
  return mpg_cost_of(call, 2 * places * weight);
}

mpg_cost mpg_cost_convolution(const mpg_infer *call) {
  return products(call, &call->outputs[0].shape, (double)mpg_shape_size(&call->inputs[1].shape),
                  mpg_convolution_layout(call->op, call->params));
}

mpg_cost mpg_cost_convolution_data(const mpg_infer *call) {
  return products(call, &call->inputs[0].shape, (double)mpg_shape_size(&call->inputs[1].shape),
                  mpg_convolution_layout(call->op, call->params));
}

mpg_cost mpg_cost_convolution_weight(const mpg_infer *call) {
  return products(call, &call->inputs[0].shape, (double)mpg_shape_size(&call->outputs[0].shape),
                  mpg_convolution_layout(call->op, call->params));
}

/* Cost: one operation per element of each window, or per element of the data in global pooling. */
mpg_cost mpg_cost_pooling(const mpg_infer *call) {
  const mpg_pooling_params *p = call->params;
  bool backward = call->op->id == MPG_OP__backward_Pooling;
  const mpg_shape *large = &(backward ? call->outputs : call->inputs)[0].shape,
                  *small = &(backward ? call->inputs : call->outputs)[0].shape;
  if (p->global_pool) return mpg_cost_of(call, (double)mpg_shape_size(large));
  return mpg_cost_of(call, (double)mpg_shape_size(small) *
                               (double)mpg_window_product(p->kernel.values, p->kernel.count));
}
