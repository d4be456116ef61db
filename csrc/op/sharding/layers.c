/* Sharding rules of activations, convolutions, pooling, normalization and embeddings. */
#include "op/sharding/sharding.h"

#define PARAMS(structure) const mpg_##structure##_params *p = s->params

/* --- Activation ------------------------------------------------------------------------------- */

/* gamma has an element for each index of some axes of the data, and is broadcast along the rest. */
mpg_status mpg_sharding_leaky_relu(mpg_sharding *s) {
  const mpg_shape *data = &s->inputs[0].shape;
  bool given = s->num_inputs > 1;
  int before = given ? (data->ndim > 1 ? 2 : 1) - mpg_sharding_ndim(s, 1) : 0;
  for (int i = 0; i < data->ndim; i++) {
    int own = i - before;
    bool present = given && own >= 0 && own < mpg_sharding_ndim(s, 1) &&
                   mpg_sharding_dim(s, 1, own) == data->dims[i];
    MPG_TRY(MPG_FACTOR(s, PASS, mpg_in_axis(0, i), mpg_place_if(present, mpg_in_axis(1, own)),
                       mpg_out_axis(s, 0, i),
                       mpg_place_if(s->num_outputs > 1, mpg_out_axis(s, 1, i))));
  }
  if (mpg_sharding_draws(s)) mpg_sharding_set_counts(s);
  return MPG_OK;
}

/* --- Convolution and pooling ------------------------------------------------------------------ */

/* True if the axes are (batch, spatial..., channels); `layout` is a parameter of the enum
 * NCDHW|NCHW|NCW|NDHWC|NHWC|NWC, or -1. */
static bool channels_last(int32_t layout) {
  enum { NDHWC = 3 };
  return layout >= NDHWC;
}

/* Scales the number of filters, and of groups, to the channels of a part. */
static void localize_channels(const mpg_part_call *call, int32_t layout, int64_t *num_filter,
                              int64_t *num_group) {
  const mpg_shape *out = &call->outputs[0].shape, *whole = &call->whole_outputs[0].shape;
  int channel = channels_last(layout) ? out->ndim - 1 : 1;
  int64_t all = *num_filter;
  *num_filter = all * out->dims[channel] / whole->dims[channel];
  if (*num_group > 1) *num_group = *num_group * *num_filter / all;
}

static mpg_status localize_convolution(const mpg_part_call *call, void *params) {
  mpg_convolution_params *p = params;
  localize_channels(call, p->layout, &p->num_filter, &p->num_group);
  return MPG_OK;
}

/* The layout parameter of _convolution_channels_last is not set. */
static mpg_status localize_channels_last(const mpg_part_call *call, void *params) {
  mpg_convolution_params *p = params;
  enum { NHWC = 4 };
  localize_channels(call, NHWC, &p->num_filter, &p->num_group);
  return MPG_OK;
}

static mpg_status localize_deconvolution(const mpg_part_call *call, void *params) {
  mpg_deconvolution_params *p = params;
  localize_channels(call, p->layout, &p->num_filter, &p->num_group);
  return MPG_OK;
}

/* `in` and `out` are the weight's axes of input and output channels. One of them is axis 0. Several
 * groups divide axis 0, and then only groups are a factor. */
static mpg_status convolution(mpg_sharding *s, bool last, int in, int out, int64_t groups) {
  int channel = last ? mpg_sharding_ndim(s, 0) - 1 : 1;
  bool bias = s->num_inputs > 2;
  int64_t data = mpg_sharding_dim(s, 0, channel) / groups,
          result = s->outputs[0].shape.dims[channel] / groups;
  MPG_TRY(MPG_FACTOR(s, PASS, mpg_in_axis(0, 0), mpg_out_axis(s, 0, 0)));
  if (groups > 1)
    return MPG_FACTOR(
        s, PASS, mpg_in_digit(0, channel, 1, data), mpg_in_digit(1, 0, 1, out == 0 ? result : data),
        mpg_place_if(bias, mpg_in_digit(2, 0, 1, result)), mpg_out_digit(s, 0, channel, 1, result));
  MPG_TRY(MPG_FACTOR(s, PASS, mpg_in_axis(1, out), mpg_place_if(bias, mpg_in_axis(2, 0)),
                     mpg_out_axis(s, 0, channel)));
  MPG_TRY(MPG_FACTOR(s, SUM, mpg_in_axis(0, channel), mpg_in_axis(1, in)));
  if (bias) mpg_sharding_set_once(s, 2);
  return MPG_OK;
}

mpg_status mpg_sharding_convolution(mpg_sharding *s) {
  PARAMS(convolution);
  bool last = channels_last(p->layout);
  s->localize = localize_convolution;
  return convolution(s, last, last ? mpg_sharding_ndim(s, 1) - 1 : 1, 0, p->num_group);
}

mpg_status mpg_sharding_deconvolution(mpg_sharding *s) {
  PARAMS(deconvolution);
  bool last = channels_last(p->layout);
  s->localize = localize_deconvolution;
  return convolution(s, last, 0, last ? mpg_sharding_ndim(s, 1) - 1 : 1, p->num_group);
}

mpg_status mpg_sharding_pooling(mpg_sharding *s) {
  PARAMS(pooling);
  int channel = channels_last(p->layout) ? mpg_sharding_ndim(s, 0) - 1 : 1;
  MPG_TRY(MPG_FACTOR(s, PASS, mpg_in_axis(0, 0), mpg_out_axis(s, 0, 0)));
  return MPG_FACTOR(s, PASS, mpg_in_axis(0, channel), mpg_out_axis(s, 0, channel));
}

/* Images (batch, channels, spatial...) and columns (batch, channels * window, positions). */
static mpg_status columns(mpg_sharding *s, const mpg_shape *image, const mpg_shape *column,
                          bool to_columns) {
  int64_t window = image->dims[1] ? column->dims[1] / image->dims[1] : 1;
  MPG_TRY(MPG_FACTOR(s, PASS, mpg_in_axis(0, 0), mpg_out_axis(s, 0, 0)));
  return MPG_FACTOR(s, PASS, mpg_in_digit(0, 1, 1, to_columns ? 1 : window),
                    mpg_out_digit(s, 0, 1, 1, to_columns ? window : 1));
}

mpg_status mpg_sharding_im2col(mpg_sharding *s) {
  return columns(s, &s->inputs[0].shape, &s->outputs[0].shape, true);
}

mpg_status mpg_sharding_col2im(mpg_sharding *s) {
  return columns(s, &s->outputs[0].shape, &s->inputs[0].shape, false);
}

/* --- Normalization ---------------------------------------------------------------------------- */

/* BatchNorm and _batch_norm_relu. Without given statistics, only the channels are a factor, because
 * parts of another axis would have statistics of their own. The rows of the mask are all axes but
 * the channels; a row of parts of the channels is not a part of a row, because it has padding. */
mpg_status mpg_sharding_batch_norm(mpg_sharding *s) {
  enum { STATISTICS = 4, RESIDUAL, MASK = 3 };
  bool fused = s->op->id == MPG_OP__batch_norm_relu, added = s->num_inputs > RESIDUAL;
  const mpg_batch_norm_params *p = fused ? NULL : s->params;
  bool global = fused ? ((const mpg_batch_norm_relu_params *)s->params)->use_global_stats
                      : p->use_global_stats;
  const mpg_shape *data = &s->inputs[0].shape;
  int channel = mpg_sharding_axis(fused ? -1 : p->axis, data->ndim);
  mpg_place places[10] = {mpg_in_axis(0, channel), mpg_out_axis(s, 0, channel),
                          mpg_place_if(added, mpg_in_axis(RESIDUAL, channel))};
  int count = 3;
  for (int i = 1; i <= STATISTICS; i++) places[count++] = mpg_in_axis(i, 0);
  for (int k = 1; k < s->num_outputs && k < MASK; k++) places[count++] = mpg_out_axis(s, k, 0);
  MPG_TRY(mpg_sharding_places(s, MPG_FACTOR_PASS, count, places));
  for (int i = 0; i < data->ndim && (!s->train || global); i++)
    if (i != channel)
      MPG_TRY(
          MPG_FACTOR(s, PASS, mpg_in_axis(0, i), mpg_out_axis(s, 0, i),
                     mpg_place_if(added, mpg_in_axis(RESIDUAL, i)),
                     mpg_place_if(fused, mpg_out_digit(s, MASK, 0, mpg_shape_product(data, 0, i),
                                                       mpg_shape_product(data, i + 1, channel)))));
  return MPG_OK;
}

static mpg_status localize_group_norm(const mpg_part_call *call, void *params) {
  if (call->op->id == MPG_OP_GroupNorm)
    ((mpg_group_norm_params *)params)->num_groups = call->inputs[1].shape.dims[0];
  return MPG_OK;
}

/* data (batch, channels, ...), gamma and beta (groups), mean and deviation (batch, groups). In
 * InstanceNorm, each channel is a group. */
mpg_status mpg_sharding_group_norm(mpg_sharding *s) {
  int64_t groups = mpg_sharding_dim(s, 1, 0), inner;
  s->localize = localize_group_norm;
  if (!groups) return MPG_OK;
  inner = mpg_sharding_dim(s, 0, 1) / groups;
  MPG_TRY(MPG_FACTOR(s, PASS, mpg_in_axis(0, 0), mpg_out_axis(s, 0, 0), mpg_out_axis(s, 1, 0),
                     mpg_out_axis(s, 2, 0)));
  return MPG_FACTOR(s, PASS, mpg_in_digit(0, 1, 1, inner), mpg_in_axis(1, 0), mpg_in_axis(2, 0),
                    mpg_out_digit(s, 0, 1, 1, inner), mpg_out_axis(s, 1, 1), mpg_out_axis(s, 2, 1));
}

/* --- Embeddings ------------------------------------------------------------------------------- */

static mpg_status localize_embedding(const mpg_part_call *call, void *params) {
  mpg_embedding_params *p = params;
  p->input_dim = call->inputs[1].shape.dims[0];
  p->output_dim = call->inputs[1].shape.dims[1];
  return MPG_OK;
}

mpg_status mpg_sharding_embedding(mpg_sharding *s) {
  int ndim = mpg_sharding_ndim(s, 0);
  s->localize = localize_embedding;
  for (int i = 0; i < ndim; i++)
    MPG_TRY(MPG_FACTOR(s, PASS, mpg_in_axis(0, i), mpg_out_axis(s, 0, i)));
  MPG_TRY(MPG_FACTOR(s, PASS, mpg_in_axis(1, 1), mpg_out_axis(s, 0, ndim)));
  return mpg_sharding_lookup(s, 1, 0, 0);
}

/* a (..., size, ...) and indices. */
mpg_status mpg_sharding_take(mpg_sharding *s) {
  PARAMS(take);
  enum { CLIP };
  int ndim = mpg_sharding_ndim(s, 0), count = mpg_sharding_ndim(s, 1),
      axis = mpg_sharding_axis(p->axis, ndim);
  for (int i = 0; i < ndim; i++)
    if (i != axis)
      MPG_TRY(
          MPG_FACTOR(s, PASS, mpg_in_axis(0, i), mpg_out_axis(s, 0, i < axis ? i : i + count - 1)));
  for (int i = 0; i < count; i++)
    MPG_TRY(MPG_FACTOR(s, PASS, mpg_in_axis(1, i), mpg_out_axis(s, 0, axis + i)));
  return p->mode == CLIP ? mpg_sharding_lookup(s, 0, axis, 1) : MPG_OK;
}

/* --- Layers that the graph emits -------------------------------------------------------------- */

mpg_status mpg_sharding_convolution_channels_last(mpg_sharding *s) {
  s->localize = localize_channels_last;
  return convolution(s, true, 1, 0, ((const mpg_convolution_params *)s->params)->num_group);
}

mpg_status mpg_sharding_max_pooling(mpg_sharding *s) {
  int channel = mpg_sharding_ndim(s, 0) - 1;
  MPG_TRY(MPG_FACTOR(s, PASS, mpg_in_axis(0, 0), mpg_out_axis(s, 0, 0), mpg_out_axis(s, 1, 0)));
  return MPG_FACTOR(s, PASS, mpg_in_axis(0, channel), mpg_out_axis(s, 0, channel),
                    mpg_out_axis(s, 1, channel));
}

/* Data (batch, spatial..., channels): the samples. An array that is added to the result has the
 * result's shape. */
mpg_status mpg_sharding_samples(mpg_sharding *s) {
  mpg_place places[MPG_MAX_NAMED];
  int count = 0;
  places[count++] = mpg_in_axis(0, 0);
  for (int i = 1; i < s->num_inputs; i++)
    if (mpg_shape_equal(&s->inputs[i].shape, &s->outputs[0].shape))
      places[count++] = mpg_in_axis(i, 0);
  for (int k = 0; k < s->num_outputs; k++) places[count++] = mpg_out_axis(s, k, 0);
  return mpg_sharding_places(s, MPG_FACTOR_PASS, count, places);
}
