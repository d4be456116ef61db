/* Winograd convolutions, which graph rewrites emit: _pack_winograd, _winograd_convolution and
 * _winograd_backward_weight. */
#include <string.h>

#include "op/layers/convolution.h"
#include "op/layers/equivalents.h"
#include "op/infer.h"

enum { KERNEL = 3, MOST_PAD = 2, POINTS = 16 };

void mpg_winograd_set(mpg_winograd *w, const mpg_shape *data, int64_t filters,
                      const mpg_tuple *pad) {
  *w = (mpg_winograd){.batch = data->dims[0],
                      .in_h = data->dims[1],
                      .in_w = data->dims[2],
                      .channels = data->dims[3],
                      .filters = filters,
                      .pad_h = mpg_tuple_at(pad, 0, 0),
                      .pad_w = mpg_tuple_at(pad, 1, 0)};
  w->out_h = w->in_h + 2 * w->pad_h - KERNEL + 1;
  w->out_w = w->in_w + 2 * w->pad_w - KERNEL + 1;
  w->tiles_h = (w->out_h + 1) / 2;
  w->tiles_w = (w->out_w + 1) / 2;
  w->tiles = w->batch * w->tiles_h * w->tiles_w;
}

void mpg_winograd_params_from(mpg_winograd_params *to, const mpg_convolution_params *from) {
  memset(to, 0, sizeof *to);
  to->pad = from->pad;
  to->num_filter = from->num_filter;
  to->no_bias = from->no_bias;
}

bool mpg_winograd_undo(const mpg_op *op, const void *params, mpg_convolution_params *to) {
  const mpg_winograd_params *p = params;
  if (op->id != MPG_OP__winograd_convolution || !p->trains || p->add || p->relu) return false;
  mpg_params_defaults(&mpg_convolution_table, to);
  to->kernel = (mpg_tuple){.count = 2, .values = {KERNEL, KERNEL}};
  to->pad = p->pad;
  to->num_filter = p->num_filter;
  to->no_bias = p->no_bias;
  return true;
}

bool mpg_winograd_pays(const mpg_convolution *c, bool packed) {
  const mpg_window *w = &c->window;
  if (c->layout != MPG_CHANNELS_LAST_DATA || w->ndim != 2 || c->groups != 1) return false;
  if (c->channels % MPG_WINOGRAD_GROUP || c->filters % MPG_WINOGRAD_GROUP || c->channels < 32 ||
      c->filters < 32)
    return false;
  for (int i = 0; i < 2; i++)
    if (w->kernel[i] != KERNEL || w->stride[i] != 1 || w->dilate[i] != 1 || w->pad[i] > MOST_PAD)
      return false;
  int64_t tiles = (w->out[0] + 1) / 2 * ((w->out[1] + 1) / 2),
          products = w->out[0] * w->out[1] * KERNEL * KERNEL;
  return 2 * products >= 3 * POINTS * tiles && tiles * c->batch >= (packed ? 16 : 128);
}

int mpg_arity_winograd(const mpg_op *op, const void *params, int given) {
  (void)op;
  (void)given;
  const mpg_winograd_params *p = params;
  return 2 + p->trains + !p->no_bias + p->add;
}

/* Graph rewrites emit these ops only with valid arguments. The checks guard against invalid direct
 * calls. */
static mpg_status check(const mpg_infer *infer, const mpg_shape *data, int64_t filters,
                        const mpg_tuple *pad, mpg_winograd *w) {
  if (data->ndim != 4)
    return mpg_infer_fail(infer, "data must be (batch, height, width, channels)");
  if (pad->count && pad->count != 2) return mpg_infer_fail(infer, "pad must have 2 elements");
  for (int i = 0; i < 2; i++)
    if (mpg_tuple_at(pad, i, 0) < 0 || mpg_tuple_at(pad, i, 0) > MOST_PAD)
      return mpg_infer_fail(infer, "pad must be from 0 to %d", MOST_PAD);
  mpg_winograd_set(w, data, filters, pad);
  if (w->channels % MPG_WINOGRAD_GROUP || filters % MPG_WINOGRAD_GROUP || !w->channels || !filters)
    return mpg_infer_fail(infer, "channels and filters must be multiples of %d",
                          MPG_WINOGRAD_GROUP);
  MPG_TRY(mpg_shape_check(&(mpg_shape){.ndim = 3, .dims = {POINTS, w->channels, filters}},
                          MPG_FLOAT32, NULL)); /* the packed weight must not be too large */
  if (w->out_h < 1 || w->out_w < 1)
    return mpg_infer_fail(infer, "the kernel is larger than the padded data");
  return MPG_OK;
}

mpg_status mpg_infer_pack_winograd(mpg_infer *infer) {
  const mpg_shape *weight = &infer->inputs[0].shape;
  MPG_TRY(mpg_infer_expect_dtype(infer, 0, MPG_FLOAT32));
  infer->outputs[0].dtype = MPG_FLOAT32;
  if (!mpg_shape_known(weight)) return MPG_OK;
  if (weight->ndim != 4 || weight->dims[2] != KERNEL || weight->dims[3] != KERNEL ||
      weight->dims[0] % MPG_WINOGRAD_GROUP || weight->dims[1] % MPG_WINOGRAD_GROUP)
    return mpg_infer_fail(
        infer,
        "the weight must be (filters, channels, 3, 3), with multiples of %d filters and channels",
        MPG_WINOGRAD_GROUP);
  mpg_shape packed = {.ndim = 1, .dims = {POINTS * weight->dims[0] * weight->dims[1]}};
  MPG_TRY(mpg_shape_check(&packed, MPG_FLOAT32, NULL));
  mpg_infer_set(infer, 0, &packed, MPG_FLOAT32);
  return MPG_OK;
}

mpg_status mpg_infer_winograd(mpg_infer *infer) {
  const mpg_winograd_params *p = infer->params;
  mpg_winograd w;
  for (int i = 0; i < infer->num_inputs; i++)
    MPG_TRY(mpg_infer_expect_dtype(infer, i, MPG_FLOAT32));
  infer->outputs[0].dtype = MPG_FLOAT32;
  if (!mpg_shape_known(&infer->inputs[0].shape)) return MPG_OK;
  MPG_TRY(check(infer, &infer->inputs[0].shape, p->num_filter, &p->pad, &w));
  mpg_shape packed = {.ndim = 1, .dims = {POINTS * w.channels * w.filters}},
            out = {.ndim = 4, .dims = {w.batch, w.out_h, w.out_w, w.filters}};
  MPG_TRY(mpg_infer_expect_shape(infer, 1, &packed));
  if (p->trains)
    MPG_TRY(mpg_infer_expect_shape(
        infer, 2, &(mpg_shape){.ndim = 4, .dims = {w.filters, w.channels, KERNEL, KERNEL}}));
  if (!p->no_bias)
    MPG_TRY(
        mpg_infer_expect_shape(infer, 2 + p->trains, &(mpg_shape){.ndim = 1, .dims = {w.filters}}));
  if (p->add) MPG_TRY(mpg_infer_expect_shape(infer, infer->num_inputs - 1, &out));
  mpg_infer_set(infer, 0, &out, MPG_FLOAT32);
  return MPG_OK;
}

mpg_status mpg_infer_winograd_backward(mpg_infer *infer) {
  const mpg_winograd_backward_params *p = infer->params;
  const mpg_shape *out = &infer->inputs[0].shape, *data = &infer->inputs[1].shape;
  mpg_winograd w;
  for (int i = 0; i < 2; i++) MPG_TRY(mpg_infer_expect_dtype(infer, i, MPG_FLOAT32));
  infer->outputs[0].dtype = MPG_FLOAT32;
  if (!mpg_shape_known(out) || !mpg_shape_known(data)) return MPG_OK;
  if (out->ndim != 4)
    return mpg_infer_fail(infer, "out_grad must be (batch, height, width, filters)");
  MPG_TRY(check(infer, data, out->dims[3], &p->pad, &w));
  MPG_TRY(mpg_infer_expect_shape(
      infer, 0, &(mpg_shape){.ndim = 4, .dims = {w.batch, w.out_h, w.out_w, w.filters}}));
  mpg_infer_set(infer, 0, &(mpg_shape){.ndim = 4, .dims = {w.filters, w.channels, KERNEL, KERNEL}},
                MPG_FLOAT32);
  return MPG_OK;
}

void mpg_gradient_winograd(mpg_gradient *g) {
  const mpg_winograd_params *p = g->params;
  if (!p->trains || p->add || p->relu) {
    mpg_gradient_fail(
        g, "_winograd_convolution has a gradient only with trains=True, add=False and relu=False");
    return;
  }
  /* The data gradient is a convolution with the flipped weight, whose channels and filters are
   * exchanged. */
  if (g->needed[0]) {
    mpg_pack_winograd_params pack;
    mpg_winograd_params turned;
    memset(&pack, 0, sizeof pack);
    memset(&turned, 0, sizeof turned);
    pack.backward = turned.no_bias = true;
    turned.num_filter = mpg_value_desc(g, g->inputs[0])->shape.dims[3];
    turned.pad.count = 2;
    for (int i = 0; i < 2; i++) turned.pad.values[i] = KERNEL - 1 - mpg_tuple_at(&p->pad, i, 0);
    g->in_grads[0] = mpg_emit2(g, MPG_OP__winograd_convolution, &turned, g->out_grads[0],
                               mpg_emit1(g, MPG_OP__pack_winograd, &pack, g->inputs[2]));
  }
  if (g->needed[2]) {
    mpg_winograd_backward_params params;
    memset(&params, 0, sizeof params);
    params.pad = p->pad;
    g->in_grads[2] =
        mpg_emit2(g, MPG_OP__winograd_backward_weight, &params, g->out_grads[0], g->inputs[0]);
  }
  if (!p->no_bias && g->needed[3])
    g->in_grads[3] = mpg_emit_channel_sum(g, g->out_grads[0], MPG_CHANNELS_LAST);
}

/* Cost of a Winograd convolution. A tile of 2x2 results takes POINTS products instead of 36.
 * Transforming the data and the results adds a few operations per element. */
static mpg_cost cost(const mpg_infer *call, const mpg_winograd *w) {
  double tiles = (double)w->tiles, channels = (double)w->channels, filters = (double)w->filters;
  return mpg_cost_of(
      call, 2 * POINTS * tiles * channels * filters + 4 * POINTS * tiles * (channels + filters));
}

mpg_cost mpg_cost_winograd(const mpg_infer *call) {
  const mpg_winograd_params *p = call->params;
  mpg_winograd w;
  mpg_winograd_set(&w, &call->inputs[0].shape, p->num_filter, &p->pad);
  return cost(call, &w);
}

mpg_cost mpg_cost_winograd_backward(const mpg_infer *call) {
  const mpg_shape *out_grad = &call->inputs[0].shape;
  mpg_winograd w;
  mpg_winograd_set(&w, &call->inputs[1].shape, out_grad->dims[out_grad->ndim - 1],
                   &((const mpg_winograd_backward_params *)call->params)->pad);
  return cost(call, &w);
}
