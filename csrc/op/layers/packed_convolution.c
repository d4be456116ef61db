/* Convolutions with a packed weight, which graph rewrites emit: _pack_convolution and
 * _packed_convolution. */
#include <string.h>

#include "op/layers/convolution.h"
#include "op/infer.h"

int mpg_arity_packed_convolution(const mpg_op *op, const void *params, int given) {
  (void)op;
  (void)given;
  const mpg_packed_convolution_params *p = params;
  return 2 + !p->no_bias + p->add;
}

#define MPG_SAME_IN_BOTH(X) \
  X(kernel) X(stride) X(dilate) X(pad) X(num_filter) X(num_group) X(no_bias)
#define MPG_COPY(name) to->name = from->name;
void mpg_packed_params_from(mpg_packed_convolution_params *to, const mpg_convolution_params *from) {
  memset(to, 0, sizeof *to);
  MPG_SAME_IN_BOTH(MPG_COPY)
}

void mpg_packed_params_to(const mpg_packed_convolution_params *from, mpg_convolution_params *to) {
  memset(to, 0, sizeof *to);
  MPG_SAME_IN_BOTH(MPG_COPY)
  to->layout = to->cudnn_tune = -1;
}
#undef MPG_COPY
#undef MPG_SAME_IN_BOTH

static int64_t round_up(int64_t n, int64_t step) { return (n + step - 1) / step * step; }

int64_t mpg_packed_elements(const mpg_packed_convolution_params *p, int64_t channels) {
  int64_t kernel = mpg_window_product(p->kernel.values, p->kernel.count), groups = p->num_group;
  int64_t filters = p->num_filter / groups, inputs = channels / groups;
  int64_t blocked = groups == 1   ? round_up(filters, filters < 64 ? 16 : 64) * round_up(inputs, 16)
                    : filters < 8 ? round_up(groups, 16) * filters * inputs
                                  : groups * round_up(filters, 16) * round_up(inputs, 16);
  return MPG_PACKED_HEADER + blocked * kernel;
}

mpg_shape mpg_packed_weight_shape(const mpg_packed_convolution_params *p, int64_t channels) {
  mpg_shape shape = {.ndim = p->kernel.count + 2, .dims = {p->num_filter, channels / p->num_group}};
  for (int i = 0; i < p->kernel.count; i++) shape.dims[i + 2] = p->kernel.values[i];
  return shape;
}

static mpg_shape out_shape(const mpg_packed_convolution_params *p, const mpg_shape *first) {
  mpg_shape out = {.ndim = first->ndim, .dims = {first->dims[0], p->num_filter}};
  for (int i = 0; i < p->kernel.count; i++) {
    int64_t span = mpg_tuple_at(&p->dilate, i, 1) * (p->kernel.values[i] - 1) + 1;
    out.dims[i + 2] = (first->dims[i + 2] + 2 * mpg_tuple_at(&p->pad, i, 0) - span) /
                          mpg_tuple_at(&p->stride, i, 1) +
                      1;
  }
  return out;
}

void mpg_packed_convolution_set(mpg_convolution *c, const mpg_packed_convolution_params *p,
                                const mpg_shape *data) {
  mpg_layout layout = p->channels_last ? MPG_CHANNELS_LAST_DATA : MPG_CHANNELS_FIRST;
  mpg_shape first = mpg_data_first(data, layout), out = out_shape(p, &first),
            weight = mpg_packed_weight_shape(p, first.dims[1]);
  out = mpg_data_laid(&out, layout);
  mpg_convolution_set(c, layout, data, &weight, &out, &p->stride, &p->dilate, &p->pad,
                      p->num_group);
}

static mpg_status check(const mpg_infer *infer, const mpg_shape *data, mpg_shape *first) {
  const mpg_packed_convolution_params *p = infer->params;
  int ndim = p->kernel.count;
  const mpg_tuple *const tuples[] = {&p->stride, &p->dilate, &p->pad};
  for (int i = 0; i < 3; i++)
    if (tuples[i]->count > 0 && tuples[i]->count != ndim)
      return mpg_infer_fail(infer,
                            "stride, dilate and pad must have as many elements as the kernel");
  for (int i = 0; i < ndim; i++)
    if (p->kernel.values[i] < 1 || p->kernel.values[i] > INT32_MAX ||
        mpg_tuple_at(&p->stride, i, 1) < 1 || mpg_tuple_at(&p->dilate, i, 1) < 1 ||
        mpg_tuple_at(&p->pad, i, 0) < 0 || mpg_tuple_at(&p->dilate, i, 1) > INT32_MAX ||
        mpg_tuple_at(&p->pad, i, 0) > INT32_MAX)
      return mpg_infer_fail(
          infer, "the kernel's sizes and strides must be at least 1, the padding at least 0");
  if (ndim < 1 || ndim > MPG_MAX_SPATIAL || data->ndim != ndim + 2)
    return mpg_infer_fail(infer, "data must have two axes more than the kernel");
  *first = p->channels_last ? mpg_channels_first(data) : *data;
  if (p->num_filter % p->num_group || first->dims[1] % p->num_group)
    return mpg_infer_fail(infer, "the number of channels must be a multiple of num_group");
  /* Checks that the size of the packed weight cannot overflow. The upper bound rounds each factor
   * up to whole blocks. */
  mpg_shape packed = {.ndim = ndim + 3,
                      .dims = {p->num_group + 15, p->num_filter / p->num_group + 63,
                               first->dims[1] / p->num_group + 15}};
  for (int i = 0; i < ndim; i++) packed.dims[i + 3] = p->kernel.values[i];
  if (mpg_shape_check(&packed, MPG_FLOAT64, NULL) != MPG_OK)
    return mpg_infer_fail(infer, "the weight is too large");
  mpg_shape out = out_shape(p, first);
  for (int i = 0; i < ndim; i++) {
    int64_t span = mpg_tuple_at(&p->dilate, i, 1) * (p->kernel.values[i] - 1) + 1;
    if (out.dims[i + 2] < 1 || span > first->dims[i + 2] + 2 * mpg_tuple_at(&p->pad, i, 0))
      return mpg_infer_fail(infer, "the kernel is larger than the padded data");
  }
  return MPG_OK;
}

mpg_status mpg_infer_pack_convolution(mpg_infer *infer) {
  const mpg_packed_convolution_params *p = infer->params;
  mpg_shape data = {.ndim = p->shape.count}, first;
  if (p->shape.count < 0 || p->shape.count > MPG_MAX_NDIM)
    return mpg_infer_fail(infer, "shape must be the shape of data");
  for (int i = 0; i < data.ndim; i++) data.dims[i] = p->shape.values[i];
  MPG_TRY(mpg_shape_check(&data, MPG_FLOAT32, NULL));
  MPG_TRY(check(infer, &data, &first));
  MPG_TRY(mpg_infer_expect_dtype(infer, 0, MPG_FLOAT32));
  mpg_shape weight = mpg_packed_weight_shape(p, first.dims[1]);
  MPG_TRY(mpg_infer_expect_shape(infer, 0, &weight));
  mpg_infer_set(infer, 0, &(mpg_shape){.ndim = 1, .dims = {mpg_packed_elements(p, first.dims[1])}},
                MPG_FLOAT32);
  return MPG_OK;
}

mpg_status mpg_infer_packed_convolution(mpg_infer *infer) {
  const mpg_packed_convolution_params *p = infer->params;
  mpg_shape first;
  for (int i = 0; i < infer->num_inputs; i++)
    MPG_TRY(mpg_infer_expect_dtype(infer, i, MPG_FLOAT32));
  infer->outputs[0].dtype = MPG_FLOAT32;
  if (!mpg_shape_known(&infer->inputs[0].shape)) return MPG_OK;
  MPG_TRY(check(infer, &infer->inputs[0].shape, &first));
  MPG_TRY(mpg_infer_expect_shape(
      infer, 1, &(mpg_shape){.ndim = 1, .dims = {mpg_packed_elements(p, first.dims[1])}}));
  if (!p->no_bias)
    MPG_TRY(mpg_infer_expect_shape(infer, 2, &(mpg_shape){.ndim = 1, .dims = {p->num_filter}}));
  mpg_shape out = out_shape(p, &first);
  if (p->channels_last) out = mpg_channels_last(&out);
  if (p->add) MPG_TRY(mpg_infer_expect_shape(infer, infer->num_inputs - 1, &out));
  mpg_infer_set(infer, 0, &out, MPG_FLOAT32);
  return MPG_OK;
}

mpg_cost mpg_cost_packed_convolution(const mpg_infer *call) {
  const mpg_packed_convolution_params *p = call->params;
  const mpg_shape *data = &call->inputs[0].shape;
  double channels =
      (double)data->dims[p->channels_last ? data->ndim - 1 : 1] / (double)p->num_group;
  return mpg_cost_of(call, 2 * (double)mpg_shape_size(&call->outputs[0].shape) * channels *
                               (double)mpg_window_product(p->kernel.values, p->kernel.count));
}
