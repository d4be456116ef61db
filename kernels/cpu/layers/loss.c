/* The gradient of SoftmaxOutput. */

#include "kernels/common/real.h"
#include "kernels/cpu/index.h"

enum { GRAIN = 4096 };
enum { NORMALIZE_BATCH, NORMALIZE_NULL, NORMALIZE_VALID };

/* --- SoftmaxOutput ---------------------------------------------------------------------------- */

typedef struct softmax_back {
  const mpg_softmax_output_params *params;
  const mpg_view *output, *label, *grad, *out;
  int64_t classes, after; /* shape of output: (rows, classes, after) */
  int64_t ignored;
  double scale;
} softmax_back;

/* Computes the gradient at positions (row, after), each of which has one label. */
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

mpg_status mpg_cpu_softmax_output_back(const mpg_kernel_call *call) {
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
