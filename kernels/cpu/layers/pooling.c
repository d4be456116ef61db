/* Pooling, for channels-first and channels-last layouts. */
#include <math.h>
#include <string.h>

#include "kernels/cpu/cpu.h"
#include "kernels/common/half.h"
#include "kernels/cpu/math/reduce.h"
#include "op/layers/convolution.h"

typedef struct pooling {
  mpg_window window; /* three axes */
  int type, p;
  bool count_pad, last; /* last: channels-last layout */
  int64_t channels;
  const void *data, *grad, *result;
  void *out;
  uint8_t *index; /* index of the maximum in each window */
} pooling;

#define MIN(a, b) ((a) < (b) ? (a) : (b))
#define MAX(a, b) ((a) > (b) ? (a) : (b))
#define IMPLEMENTATION "kernels/cpu/layers/pooling_impl.h"
#include "kernels/cpu/float_instances.h"

enum { BLOCK = 64 }; /* must equal CHANNELS in pooling_last_impl.h */

/* Initializes t to pool `data` to `out`. Returns the number of work units, which are planes, or
 * blocks of channels if the channels are last. */
static int64_t setup(pooling *t, const mpg_pooling_params *p, const mpg_shape *data,
                     const mpg_shape *out) {
  mpg_window w;
  mpg_pooling_window(p, data, out, &w);
  *t = (pooling){.type = p->pool_type,
                 .p = (int)p->p_value.value,
                 .count_pad = p->count_include_pad,
                 .window = mpg_window_with_axes(&w, 3)};
  t->last = mpg_layout_of(p->layout) != MPG_CHANNELS_FIRST;
  t->channels = data->dims[t->last ? data->ndim - 1 : 1];
  return data->dims[0] * (t->last ? (t->channels + BLOCK - 1) / BLOCK : t->channels);
}

static int64_t grain(const pooling *t) {
  int64_t work = 1 + mpg_window_product(t->window.out, 3) * mpg_window_product(t->window.kernel, 3);
  if (t->last) work *= t->channels < BLOCK ? t->channels : BLOCK;
  return 1 + 16384 / work;
}

/* True for global pooling with channels first: a single window covers the plane. */
static bool one_window(const pooling *t) {
  for (int k = 0; k < 3; k++)
    if (t->window.out[k] != 1 || t->window.pad[k] || t->window.kernel[k] != t->window.in[k])
      return false;
  return !t->last;
}

mpg_status mpg_cpu_pooling(const mpg_kernel_call *call) {
  const mpg_view *data = &call->inputs[0], *out = &call->outputs[0];
  pooling t;
  int64_t planes = setup(&t, call->params, &data->desc.shape, &out->desc.shape);
  if (planes == 0) return MPG_OK;
  t.data = data->data, t.out = out->data;
  if (one_window(&t) && !(t.type == MPG_POOL_LP && t.p > 1)) {
    mpg_reduction f = {.how = t.type == MPG_POOL_MAX ? MPG_LARGEST : MPG_ADD,
                       .prepare = MPG_PLAIN,
                       .mean = t.type == MPG_POOL_AVG};
    return mpg_cpu_reduce_lines(call, data, planes, out, f);
  }
  mpg_cpu_parallel_for(call, planes, grain(&t),
                       t.last ? INSTANCE(data->desc.dtype, pooling_forward_last)
                              : INSTANCE(data->desc.dtype, pooling_forward),
                       &t);
  return MPG_OK;
}

mpg_status mpg_cpu_pooling_backward(const mpg_kernel_call *call) {
  const mpg_view *grad = &call->inputs[0], *data = &call->inputs[1];
  pooling t;
  int64_t planes = setup(&t, call->params, &data->desc.shape, &grad->desc.shape);
  if (planes == 0) return MPG_OK;
  t.data = data->data, t.grad = grad->data, t.result = call->inputs[2].data,
  t.out = call->outputs[0].data;
  mpg_cpu_parallel_for(call, planes, grain(&t),
                       t.last ? INSTANCE(data->desc.dtype, pooling_backward_last)
                              : INSTANCE(data->desc.dtype, pooling_backward),
                       &t);
  return MPG_OK;
}

mpg_status mpg_cpu_pooling_at_max(const mpg_kernel_call *call) {
  const mpg_view *data = &call->inputs[1], *out = &call->outputs[0];
  pooling t;
  int64_t planes = setup(&t, call->params, &data->desc.shape, &out->desc.shape);
  if (planes == 0) return MPG_OK;
  t.data = data->data, t.grad = call->inputs[0].data, t.out = out->data;
  mpg_cpu_parallel_for(call, planes, grain(&t),
                       t.last ? INSTANCE(data->desc.dtype, pooling_at_max_last)
                              : INSTANCE(data->desc.dtype, pooling_at_max),
                       &t);
  return MPG_OK;
}

mpg_status mpg_cpu_max_pooling(const mpg_kernel_call *call) {
  const mpg_view *data = &call->inputs[0], *out = &call->outputs[0];
  pooling t;
  int64_t pieces = setup(&t, call->params, &data->desc.shape, &out->desc.shape);
  if (pieces == 0) return MPG_OK;
  t.data = data->data, t.out = out->data, t.index = call->outputs[1].data;
  mpg_cpu_parallel_for(call, pieces, grain(&t), INSTANCE(data->desc.dtype, pooling_forward_index),
                       &t);
  return MPG_OK;
}

mpg_status mpg_cpu_max_pooling_backward(const mpg_kernel_call *call) {
  const mpg_pooling_index_params *p = call->params;
  const mpg_view *grad = &call->inputs[0], *data = &call->outputs[0];
  mpg_pooling_params params = {.kernel = p->kernel,
                               .pool_type = MPG_POOL_MAX,
                               .stride = p->stride,
                               .pad = p->pad,
                               .layout = 5 /* NWC, NHWC or NDHWC */};
  pooling t;
  int64_t pieces = setup(&t, &params, &data->desc.shape, &grad->desc.shape);
  if (pieces == 0) return MPG_OK;
  t.grad = grad->data, t.out = data->data, t.index = call->inputs[1].data;
  mpg_cpu_parallel_for(call, pieces, grain(&t), INSTANCE(data->desc.dtype, pooling_backward_index),
                       &t);
  return MPG_OK;
}
