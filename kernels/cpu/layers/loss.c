/* Output layers and losses with gradients of their own. */
#include <math.h>
#include <string.h>

#include "kernels/common/vector_math.h"
#include "kernels/common/view.h"
#include "kernels/cpu/convert.h"
#include "kernels/cpu/index.h"
#include "kernels/cpu/real.h"

enum { GRAIN = 4096 };
enum { NORMALIZE_BATCH, NORMALIZE_NULL, NORMALIZE_VALID };

/* --- Forward ---------------------------------------------------------------------------------- */

typedef struct pass {
  const mpg_view *in, *out;
} pass;

static void pass_range(void *context, int64_t begin, int64_t end) {
  const pass *p = context;
  mpg_dtype dtype = p->in->desc.dtype;
  mpg_compute compute = mpg_compute_of(dtype);
  mpg_block_buffer in, out;
  for (int64_t at = begin; at < end; at += MPG_CPU_BLOCK) {
    int64_t count = end - at < MPG_CPU_BLOCK ? end - at : MPG_CPU_BLOCK;
    const void *from = mpg_cpu_load(compute, dtype, p->in->data, at, count, &in);
    void *to = mpg_cpu_place(compute, dtype, p->out->data, at, &out);
    if (compute == MPG_COMPUTE_F32) {
      for (int64_t i = 0; i < count; i++) ((float *)to)[i] = mpg_sigmoidf(((const float *)from)[i]);
    } else {
      for (int64_t i = 0; i < count; i++)
        ((double *)to)[i] = 1 / (1 + exp(-((const double *)from)[i]));
    }
    mpg_cpu_store(compute, dtype, p->out->data, at, count, to);
  }
}

MPG_CPU_KERNEL(regression_sigmoid) {
  pass p = {.in = &call->inputs[0], .out = &call->outputs[0]};
  mpg_cpu_parallel_for(call, count_of(p.in), GRAIN, pass_range, &p);
  return MPG_OK;
}

MPG_CPU_KERNEL(regression_identity) {
  const mpg_view *in = &call->inputs[0], *out = &call->outputs[0];
  if (in->data != out->data && count_of(in) > 0)
    memcpy(out->data, in->data, (size_t)count_of(in) * mpg_dtype_size(in->desc.dtype));
  return MPG_OK;
}

/* --- SoftmaxOutput ---------------------------------------------------------------------------- */

typedef struct softmax_back {
  const mpg_softmax_output_params *params;
  const mpg_view *output, *label, *grad, *out;
  int64_t classes, after; /* output: (rows, classes, after) */
  int64_t ignored;
  double scale;
} softmax_back;

/* Positions are (row, after): one label each. */
static void softmax_back_range(void *context, int64_t begin, int64_t end) {
  const softmax_back *p = context;
  double alpha = p->params->multi_output ? 0 : p->params->smooth_alpha;
  double others = alpha != 0 && p->classes > 1 ? alpha / (double)(p->classes - 1) : 0;
  for (int64_t position = begin; position < end; position++) {
    int64_t label = mpg_index_at(p->label, position);
    bool ignore = p->params->use_ignore && label == p->ignored;
    int64_t first = position / p->after * p->classes * p->after + position % p->after;
    for (int64_t k = 0; k < p->classes; k++) {
      int64_t i = first + k * p->after;
      double value = ignore ? 0 : mpg_real_at(p->output, i) - (k == label ? 1 - alpha : others);
      value *= p->scale;
      mpg_real_store(p->out, i, p->grad ? value * mpg_real_at(p->grad, i) : value);
    }
  }
}

static void probability_back_range(void *context, int64_t begin, int64_t end) {
  const softmax_back *p = context;
  for (int64_t i = begin; i < end; i++) {
    double value = (mpg_real_at(p->output, i) - mpg_real_at(p->label, i)) * p->scale;
    mpg_real_store(p->out, i, p->grad ? value * mpg_real_at(p->grad, i) : value);
  }
}

MPG_CPU_KERNEL(softmax_output_back) {
  const mpg_softmax_output_params *params = call->params;
  softmax_back p = {.params = params,
                    .output = &call->inputs[0],
                    .label = &call->inputs[1],
                    .grad = call->num_inputs > 2 ? &call->inputs[2] : NULL,
                    .out = &call->outputs[0],
                    .after = 1,
                    .scale = params->grad_scale};
  const mpg_shape *shape = &p.output->desc.shape;
  if (count_of(p.output) == 0) return MPG_OK;
  if (mpg_shape_equal(&p.label->desc.shape, shape)) {
    mpg_cpu_parallel_for(call, count_of(p.output), GRAIN, probability_back_range, &p);
    return MPG_OK;
  }
  int64_t positions = count_of(p.label), divisor = 1;
  p.classes = params->multi_output ? shape->dims[1] : count_of(p.output) / positions;
  if (params->multi_output) p.after = mpg_shape_product(shape, 2, shape->ndim);
  p.ignored = mpg_whole(params->ignore_label);
  if (params->normalization == NORMALIZE_BATCH)
    divisor = params->multi_output ? p.label->desc.shape.dims[0] : positions;
  if (params->normalization == NORMALIZE_VALID) {
    divisor = positions;
    for (int64_t i = 0; i < positions; i++) divisor -= mpg_index_at(p.label, i) == p.ignored;
  }
  if (divisor < 1) divisor = 1;
  if (params->multi_output && params->normalization != NORMALIZE_VALID) p.scale /= (double)p.after;
  p.scale /= (double)divisor;
  mpg_cpu_parallel_for(call, positions, 1 + GRAIN / p.classes, softmax_back_range, &p);
  return MPG_OK;
}

/* --- SVMOutput -------------------------------------------------------------------------------- */

typedef struct svm_back {
  const mpg_svm_output_params *params;
  const mpg_view *output, *label, *out;
  int64_t classes;
} svm_back;

static void svm_back_range(void *context, int64_t begin, int64_t end) {
  const svm_back *p = context;
  double margin = p->params->margin, weight = p->params->regularization_coefficient;
  for (int64_t row = begin; row < end; row++) {
    int64_t label = mpg_index_at(p->label, row);
    for (int64_t k = 0; k < p->classes; k++) {
      double sign = k == label ? 1 : -1,
             score = sign * mpg_real_at(p->output, row * p->classes + k);
      double slope = score < margin ? (p->params->use_linear ? 1 : 2 * (margin - score)) : 0;
      mpg_real_store(p->out, row * p->classes + k, -sign * slope * weight);
    }
  }
}

MPG_CPU_KERNEL(svm_output_back) {
  svm_back p = {.params = call->params,
                .output = &call->inputs[0],
                .label = &call->inputs[1],
                .out = &call->outputs[0]};
  int64_t rows = count_of(p.label);
  if (count_of(p.output) == 0) return MPG_OK;
  p.classes = count_of(p.output) / rows;
  mpg_cpu_parallel_for(call, rows, 1 + GRAIN / p.classes, svm_back_range, &p);
  return MPG_OK;
}

/* --- MakeLoss --------------------------------------------------------------------------------- */

MPG_CPU_KERNEL(make_loss_back) {
  const mpg_make_loss_layer_params *params = call->params;
  const mpg_view *data = &call->inputs[0], *out = &call->outputs[0];
  int64_t count = count_of(data), divisor = 1;
  const mpg_shape *shape = &data->desc.shape;
  /* rows of the last dimension */
  if (params->normalization == NORMALIZE_BATCH)
    divisor = mpg_shape_product(shape, 0, shape->ndim - 1);
  if (params->normalization == NORMALIZE_VALID) {
    divisor = 0;
    for (int64_t i = 0; i < count; i++) divisor += mpg_real_at(data, i) > params->valid_thresh;
  }
  double value = params->grad_scale / (double)(divisor < 1 ? 1 : divisor);
  for (int64_t i = 0; i < count; i++) mpg_real_store(out, i, value);
  return MPG_OK;
}
