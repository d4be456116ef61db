/* Geometry of convolutions and poolings. This file is also compiled into the libraries of other
 * backends. */
#include "op/layers/convolution.h"

enum { FIRST_CHANNELS_LAST = 3 }; /* value NDHWC of `layout`, the first channels-last one */

mpg_layout mpg_layout_of(int param) {
  return param >= FIRST_CHANNELS_LAST ? MPG_CHANNELS_LAST : MPG_CHANNELS_FIRST;
}

mpg_shape mpg_channels_first(const mpg_shape *shape) {
  mpg_shape first = *shape;
  for (int i = 2; i < shape->ndim; i++) first.dims[i] = shape->dims[i - 1];
  if (shape->ndim > 1) first.dims[1] = shape->dims[shape->ndim - 1];
  return first;
}

mpg_shape mpg_channels_last(const mpg_shape *shape) {
  mpg_shape last = *shape;
  for (int i = 2; i < shape->ndim; i++) last.dims[i - 1] = shape->dims[i];
  if (shape->ndim > 1) last.dims[shape->ndim - 1] = shape->dims[1];
  return last;
}

mpg_layout mpg_convolution_layout(const mpg_op *op, const void *params) {
  switch (op->id) {
    case MPG_OP_Convolution:
    case MPG_OP__contrib_quantized_conv:
    case MPG_OP__integer_convolution:
      return mpg_layout_of(((const mpg_convolution_params *)params)->layout);
    case MPG_OP_Deconvolution:
      return mpg_layout_of(((const mpg_deconvolution_params *)params)->layout);
    case MPG_OP__convolution_channels_last: return MPG_CHANNELS_LAST_DATA;
    default: return (mpg_layout)((const mpg_convolution_backward_params *)params)->layout;
  }
}

void mpg_convolution_set(mpg_convolution *c, mpg_layout layout, const mpg_shape *data_shape,
                         const mpg_shape *weight_shape, const mpg_shape *out_shape,
                         const mpg_tuple *stride, const mpg_tuple *dilate, const mpg_tuple *pad,
                         int64_t groups) {
  mpg_shape data = mpg_data_first(data_shape, layout),
            weight = mpg_weight_first(weight_shape, layout),
            out = mpg_data_first(out_shape, layout);
  *c = (mpg_convolution){.batch = data.dims[0],
                         .channels = data.dims[1],
                         .filters = out.dims[1],
                         .groups = groups,
                         .layout = layout};
  mpg_window *w = &c->window;
  w->ndim = data.ndim - 2;
  for (int i = 0; i < w->ndim; i++) {
    w->in[i] = data.dims[i + 2];
    w->out[i] = out.dims[i + 2];
    w->kernel[i] = weight.dims[i + 2];
    w->stride[i] = mpg_tuple_at(stride, i, 1);
    w->dilate[i] = mpg_tuple_at(dilate, i, 1);
    w->pad[i] = mpg_tuple_at(pad, i, 0);
  }
}

void mpg_deconvolution_pads(const mpg_deconvolution_params *p, const mpg_shape *data,
                            const mpg_shape *out, mpg_tuple *pads) {
  /* With target_shape, solves out = full - 2 * pad + adj for pad. adj is 0 or 1, so pad is rounded
   * up. */
  bool target = false;
  for (int k = 0; k < p->target_shape.count; k++) target |= p->target_shape.values[k] != 0;
  *pads = (mpg_tuple){.count = p->kernel.count};
  for (int i = 0; i < p->kernel.count; i++) {
    int64_t full = mpg_tuple_at(&p->stride, i, 1) * (data->dims[i + 2] - 1) +
                   mpg_tuple_at(&p->dilate, i, 1) * (p->kernel.values[i] - 1) + 1;
    pads->values[i] = target ? (full - out->dims[i + 2] + 1) / 2 : mpg_tuple_at(&p->pad, i, 0);
  }
}

void mpg_pooling_window(const mpg_pooling_params *p, const mpg_shape *data_shape,
                        const mpg_shape *out_shape, mpg_window *window) {
  mpg_shape data_first = mpg_data_first(data_shape, mpg_layout_of(p->layout)),
            out_first = mpg_data_first(out_shape, mpg_layout_of(p->layout));
  const mpg_shape *data = &data_first, *out = &out_first;
  *window = (mpg_window){.ndim = data->ndim - 2};
  for (int i = 0; i < window->ndim; i++) {
    window->in[i] = data->dims[i + 2];
    window->out[i] = out->dims[i + 2];
    window->kernel[i] = p->global_pool ? window->in[i] : p->kernel.values[i];
    window->stride[i] = p->global_pool ? 1 : mpg_tuple_at(&p->stride, i, 1);
    window->pad[i] = p->global_pool ? 0 : mpg_tuple_at(&p->pad, i, 0);
    window->dilate[i] = 1;
  }
}

mpg_window mpg_window_with_axes(const mpg_window *w, int64_t ndim) {
  mpg_window full = {.ndim = ndim > w->ndim ? ndim : w->ndim};
  for (int64_t i = 0; i < full.ndim; i++) {
    int64_t from = i - (full.ndim - w->ndim);
    full.in[i] = from < 0 ? 1 : w->in[from];
    full.out[i] = from < 0 ? 1 : w->out[from];
    full.kernel[i] = from < 0 ? 1 : w->kernel[from];
    full.stride[i] = from < 0 ? 1 : w->stride[from];
    full.dilate[i] = from < 0 ? 1 : w->dilate[from];
    full.pad[i] = from < 0 ? 0 : w->pad[from];
  }
  return full;
}
