/* Sharding rules of activations, convolutions, pooling, normalization, embeddings, attention and
 * positions. */
#include <math.h>

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

/* Adds the factors of the key heads, the batch, and the features of values. `pairs` is true if the
 * inputs 3 and 4 are further keys and values, which are the caches. Features are not a factor of
 * random calls, because all features of a value share the draws. */
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
  if (mpg_sharding_draws(s)) return MPG_OK;
  return MPG_FACTOR(s, PASS, mpg_in_axis(VALUE, 3), mpg_place_if(pairs, mpg_in_axis(VALUES, 3)),
                    mpg_out_axis(s, 0, 3));
}

/* The rows of a part are followed by `later` further rows, which sets their positions. */
static mpg_status localize_head_attention(const mpg_part_call *call, void *params) {
  mpg_head_attention_params *p = params;
  enum { BTHD };
  int time = p->layout == BTHD ? 1 : 2;
  int64_t whole = call->whole_inputs[0].shape.dims[time], rows = call->inputs[0].shape.dims[time],
          begin;
  if (rows == whole) return MPG_OK;
  MPG_TRY(mpg_part_first(call, 0, time, &begin));
  p->later += whole - rows - begin;
  return MPG_OK;
}

/* Rows of the query see all keys, so only the query is cut along time. If context parallelism is
 * Ulysses, heads are cut instead. */
mpg_status mpg_sharding_head_attention(mpg_sharding *s) {
  PARAMS(head_attention);
  enum { BTHD };
  attention a = {.time = p->layout == BTHD ? 1 : 2,
                 .mask = p->use_mask ? 3 : -1,
                 .batch_inputs = s->num_inputs - 1};
  s->localize = localize_head_attention;
  MPG_TRY(attend(s, &a, false));
  int heads = -1, before = s->num_factors;
  for (int f = 0; f < before; f++)
    if (s->factors[f].digits[0].axis == 3 - a.time) heads = f;
  MPG_TRY(MPG_FACTOR(s, PASS, mpg_in_axis(0, a.time), mpg_out_axis(s, 0, a.time),
                     mpg_out_axis(s, 1, 3), of_mask(s, &a, 2, 1)));
  if (s->num_factors > before) {
    s->factors[before].exchanged = true;
    s->factors[before].instead = heads;
  }
  if (!mpg_sharding_draws(s)) return MPG_OK;
  /* A number is drawn for each score (batch, heads, rows, keys). */
  for (int f = 0; f < s->num_factors; f++) {
    mpg_digit *drawn = &s->factors[f].drawn;
    *drawn = s->factors[f].digits[0];
    if (drawn->axis > 0) drawn->axis = drawn->axis == a.time ? 2 : 1;
  }
  mpg_sharding_set_counts(s);
  return MPG_OK;
}

/* --- Positions -------------------------------------------------------------------------------- */

static mpg_status localize_rotary(const mpg_part_call *call, void *params) {
  mpg_rotary_params *p = params;
  enum { BTHD };
  int64_t begin;
  if (call->num_inputs > 1) return MPG_OK;
  MPG_TRY(mpg_part_first(call, 0, p->layout == BTHD ? 1 : 2, &begin));
  p->start += begin;
  return MPG_OK;
}

/* Without given positions, parts of the time axis start at their own position. */
mpg_status mpg_sharding_rotary(mpg_sharding *s) {
  PARAMS(rotary);
  enum { BTHD };
  int time = p->layout == BTHD ? 1 : 2;
  MPG_TRY(mpg_sharding_from_batching(s));
  s->localize = localize_rotary;
  if (s->num_inputs > 1) return MPG_OK;
  return MPG_FACTOR(s, PASS, mpg_in_axis(0, time), mpg_out_axis(s, 0, time));
}

/* True if sums of a start and multiples of a step are exact in double. */
static bool counts_exactly(double start, double step, int64_t count) {
  const double most = 0x1p53;
  return start == trunc(start) && step == trunc(step) && fabs(start) <= most &&
         fabs(step) * (double)count <= most && fabs(start) + fabs(step) * (double)count <= most;
}

static mpg_status localize_arange_like(const mpg_part_call *call, void *params) {
  mpg_arange_like_params *p = params;
  int axis = p->axis.present ? mpg_sharding_axis(p->axis.value, call->inputs[0].shape.ndim) : 0;
  int64_t begin;
  MPG_TRY(mpg_part_first(call, 0, axis, &begin));
  p->start += (double)begin * p->step;
  return MPG_OK;
}

/* Parts of the axis that is counted start at another number. */
mpg_status mpg_sharding_arange_like(mpg_sharding *s) {
  PARAMS(arange_like);
  int ndim = mpg_sharding_ndim(s, 0),
      axis = p->axis.present ? mpg_sharding_axis(p->axis.value, ndim) : 0;
  MPG_TRY(mpg_sharding_from_batching(s));
  if ((!p->axis.present && ndim != 1) || p->repeat != 1 ||
      !counts_exactly(p->start, p->step, mpg_sharding_dim(s, 0, axis)))
    return MPG_OK;
  s->localize = localize_arange_like;
  return MPG_FACTOR(s, PASS, mpg_in_axis(0, axis), mpg_out_axis(s, 0, 0));
}

static mpg_status localize_arange(const mpg_part_call *call, void *params) {
  mpg_arange_params *p = params;
  double first = p->stop.present ? p->start : 0;
  int64_t begin;
  MPG_TRY(mpg_part_first(call, 0, 0, &begin));
  p->start = first + (double)begin * p->step;
  p->stop.value = p->start + (double)call->outputs[0].shape.dims[0] * p->step;
  p->stop.present = true;
  return MPG_OK;
}

mpg_status mpg_sharding_arange(mpg_sharding *s) {
  PARAMS(arange);
  double first = p->stop.present ? p->start : 0;
  if (p->repeat != 1 || !counts_exactly(first, p->step, s->outputs[0].shape.dims[0])) return MPG_OK;
  s->localize = localize_arange;
  return MPG_FACTOR(s, PASS, mpg_out_axis(s, 0, 0));
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
