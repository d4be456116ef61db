/* Sharding rules of activations, convolutions, pooling, normalization, embeddings and attention. */
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

/* Without given statistics, only the channels are a factor, because parts of another axis would
 * have statistics of their own. */
mpg_status mpg_sharding_batch_norm(mpg_sharding *s) {
  PARAMS(batch_norm);
  enum { STATISTICS = 4 };
  int ndim = mpg_sharding_ndim(s, 0), channel = mpg_sharding_axis(p->axis, ndim);
  bool computed = s->train && !p->use_global_stats;
  mpg_place places[8] = {mpg_in_axis(0, channel)};
  for (int i = 1; i <= STATISTICS; i++) places[i] = mpg_in_axis(i, 0);
  for (int k = 0; k < s->num_outputs; k++)
    places[1 + STATISTICS + k] = mpg_out_axis(s, k, k ? 0 : channel);
  MPG_TRY(mpg_sharding_places(s, MPG_FACTOR_PASS, 1 + STATISTICS + s->num_outputs, places));
  for (int i = 0; i < ndim && !computed; i++)
    if (i != channel) MPG_TRY(MPG_FACTOR(s, PASS, mpg_in_axis(0, i), mpg_out_axis(s, 0, i)));
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
  ((mpg_embedding_params *)params)->output_dim = call->inputs[1].shape.dims[1];
  return MPG_OK;
}

mpg_status mpg_sharding_embedding(mpg_sharding *s) {
  int ndim = mpg_sharding_ndim(s, 0);
  s->localize = localize_embedding;
  for (int i = 0; i < ndim; i++)
    MPG_TRY(MPG_FACTOR(s, PASS, mpg_in_axis(0, i), mpg_out_axis(s, 0, i)));
  return MPG_FACTOR(s, PASS, mpg_in_axis(1, 1), mpg_out_axis(s, 0, ndim));
}

/* --- Attention -------------------------------------------------------------------------------- */

/* Query, key and value, and the mask (batch, heads, rows, keys), whose axes of size 1 are
 * broadcast. */
typedef struct attention {
  int time;         /* 1 or 2; the heads have the other axis */
  int mask;         /* the input, or -1 */
  int batch_inputs; /* further inputs up to this one have the batch first */
} attention;

/* Returns the place of an axis of the mask, if it has one that is not broadcast. */
static mpg_place of_mask(const mpg_sharding *s, const attention *a, int axis, int64_t inner) {
  int own = a->mask < 0 ? -1 : axis - 4 + mpg_sharding_ndim(s, a->mask);
  bool present = own >= 0 && mpg_sharding_dim(s, a->mask, own) != 1;
  return mpg_place_if(present, mpg_in_digit(a->mask < 0 ? 0 : a->mask, own, 1, inner));
}

/* Adds the factors of the batch, the key heads, and the features of values. `pairs` is true if the
 * inputs 3 and 4 are further keys and values, which are the caches. */
static mpg_status attend(mpg_sharding *s, const attention *a, bool pairs) {
  enum { QUERY, KEY, VALUE, KEYS, VALUES, MOST = 12 };
  int heads = 3 - a->time, count = 0, last = pairs ? VALUES : VALUE;
  int64_t key_heads = mpg_sharding_dim(s, KEY, heads),
          shared = key_heads ? mpg_sharding_dim(s, QUERY, heads) / key_heads : 1;
  mpg_place batch[MOST], head[MOST];
  for (int i = QUERY; i <= last; i++) {
    batch[count] = mpg_in_axis(i, 0);
    head[count++] = mpg_in_digit(i, heads, 1, i == QUERY ? shared : 1);
  }
  batch[count] = mpg_out_axis(s, 0, 0);
  head[count++] = mpg_out_digit(s, 0, heads, 1, shared);
  bool sums = s->num_outputs > 1;
  if (sums) {
    batch[count] = mpg_out_axis(s, 1, 0);
    head[count++] = mpg_out_digit(s, 1, 1, 1, shared);
  }
  batch[count] = of_mask(s, a, 0, 1);
  head[count++] = of_mask(s, a, 1, shared);
  MPG_TRY(mpg_sharding_places(s, MPG_FACTOR_PASS, count, head));
  for (int i = last + 1; i <= a->batch_inputs; i++)
    if (i != a->mask) batch[count++] = mpg_in_axis(i, 0);
  MPG_TRY(mpg_sharding_places(s, MPG_FACTOR_PASS, count, batch));
  return MPG_FACTOR(s, PASS, mpg_in_axis(VALUE, 3), mpg_place_if(pairs, mpg_in_axis(VALUES, 3)),
                    mpg_out_axis(s, 0, 3));
}

/* Rows of the query are a factor if each row sees all keys, apart from the mask and the lengths. */
mpg_status mpg_sharding_head_attention(mpg_sharding *s) {
  PARAMS(head_attention);
  enum { BTHD };
  attention a = {.time = p->layout == BTHD ? 1 : 2,
                 .mask = p->use_mask ? 3 : -1,
                 .batch_inputs = s->num_inputs - 1};
  MPG_TRY(attend(s, &a, false));
  if (!p->causal && !p->window && !p->use_segments)
    MPG_TRY(MPG_FACTOR(s, PASS, mpg_in_axis(0, a.time), mpg_out_axis(s, 0, a.time),
                       mpg_out_axis(s, 1, 3), of_mask(s, &a, 2, 1)));
  if (mpg_sharding_draws(s)) mpg_sharding_set_counts(s);
  return MPG_OK;
}

mpg_status mpg_sharding_cached_attention(mpg_sharding *s) {
  PARAMS(cached_attention);
  enum { BTHD, LENGTHS = 5, MASK };
  attention a = {
      .time = p->layout == BTHD ? 1 : 2, .mask = p->use_mask ? MASK : -1, .batch_inputs = LENGTHS};
  return attend(s, &a, true);
}

/* Layers on data (batch, spatial..., channels) that the graph emits: the samples. An array that is
 * added to the result has the result's shape. */
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
