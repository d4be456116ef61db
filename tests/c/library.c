/* Ops that tests load (tests/ops/test_library.py). MISTAKE, if defined, is an error in the
 * table. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <mpgluon/op.h>

enum { SCALE, MODE, POWER, TWICE, LABEL };

/* --- tests_mix: two outputs from two inputs, and every kind of parameter ---------------------- */
static int infer_alike(mpgluon_infer *call) {
  if (call->inputs[0].ndim < 1) return mpgluon_fail(call, "a has no axis");
  for (int i = 1; i < call->num_inputs; i++) call->inputs[i] = call->inputs[0];
  for (int i = 0; i < call->num_outputs; i++) call->outputs[i] = call->inputs[0];
  return 0;
}

static double factor(const mpgluon_call *call) {
  const mpgluon_value *p = call->params;
  double sum = p[SCALE].number * (p[TWICE].integer ? 2 : 1) * pow(2, (double)p[POWER].integer);
  if (p[LABEL].text) sum += (double)strlen(p[LABEL].text);
  return p[MODE].integer ? -sum : sum;
}

/* sum = a + k b, product = a b */
static int mix(const mpgluon_call *call) {
  const float *a = call->inputs[0].data, *b = call->inputs[1].data;
  float *sum = call->outputs[0].data, *product = call->outputs[1].data, k = (float)factor(call);
  for (int64_t i = 0, size = mpgluon_size(&call->inputs[0]); i < size; i++) {
    sum[i] = a[i] + k * b[i];
    product[i] = a[i] * b[i];
  }
  return 0;
}
static int mix_backward(const mpgluon_call *call) {
  const float *a = call->inputs[0].data, *b = call->inputs[1].data;
  const float *sum = call->output_gradients[0].data, *product = call->output_gradients[1].data;
  float *to_a = call->input_gradients[0].data, *to_b = call->input_gradients[1].data;
  float k = (float)factor(call);
  if (call->outputs[0].data || call->outputs[1].ndim != call->inputs[0].ndim)
    return mpgluon_fail(call, "outputs that it did not ask for");
  for (int64_t i = 0, size = mpgluon_size(&call->inputs[0]); i < size; i++) {
    if (call->wanted & 1) to_a[i] = sum[i] + product[i] * b[i];
    if (call->wanted & 2) to_b[i] = k * sum[i] + product[i] * a[i];
  }
  return 0;
}

/* --- tests_scale: rows times a weight, whose shape and dtype are inferred --------------------- */
static int infer_scale(mpgluon_infer *call) {
  const mpgluon_desc *data = &call->inputs[0];
  if (data->ndim != 2) return mpgluon_fail(call, "data has %d axes, not 2", (int)data->ndim);
  call->inputs[1] = (mpgluon_desc){data->dtype, 1, {data->shape[1]}};
  call->outputs[0] = *data;
  return 0;
}
static int scale(const mpgluon_call *call) {
  const float *data = call->inputs[0].data, *weight = call->inputs[1].data;
  float *output = call->outputs[0].data;
  int64_t columns = call->inputs[1].shape[0];
  for (int64_t i = 0, size = mpgluon_size(&call->inputs[0]); i < size; i++)
    output[i] = data[i] * weight[i % columns];
  return 0;
}
static int scale_backward(const mpgluon_call *call) {
  const float *data = call->inputs[0].data, *weight = call->inputs[1].data;
  const float *gradient = call->output_gradients[0].data;
  float *to_data = call->input_gradients[0].data, *to_weight = call->input_gradients[1].data;
  int64_t columns = call->inputs[1].shape[0];
  double *sums = call->scratch(call, (size_t)columns * sizeof *sums);
  if (!sums) return mpgluon_fail(call, "no memory for %d sums", (int)columns);
  for (int64_t k = 0; k < columns; k++) sums[k] = 0;
  for (int64_t i = 0, size = mpgluon_size(&call->inputs[0]); i < size; i++) {
    to_data[i] = gradient[i] * weight[i % columns];
    sums[i % columns] += gradient[i] * data[i];
  }
  for (int64_t k = 0; k < columns; k++) to_weight[k] = (float)sums[k];
  return 0;
}

/* --- tests_exp: the gradient reads the output, and there is no inference ------------------------
 */
static int exponential(const mpgluon_call *call) {
  const double *x = call->inputs[0].data;
  double *y = call->outputs[0].data;
  for (int64_t i = 0, size = mpgluon_size(&call->inputs[0]); i < size; i++) y[i] = exp(x[i]);
  return 0;
}
static int exponential_backward(const mpgluon_call *call) {
  const double *y = call->outputs[0].data, *gradient = call->output_gradients[0].data;
  double *to_x = call->input_gradients[0].data;
  for (int64_t i = 0, size = mpgluon_size(&call->inputs[0]); i < size; i++)
    to_x[i] = gradient[i] * y[i];
  return 0;
}

/* --- tests_count: a state that each call increments in train mode ----------------------------- */
static int infer_count(mpgluon_infer *call) {
  call->inputs[1] = (mpgluon_desc){MPGLUON_INT64, 1, {1}};
  call->outputs[0] = call->inputs[0];
  return 0;
}
static int count(const mpgluon_call *call) {
  int64_t *calls = call->inputs[1].data;
  if (call->train) calls[0]++;
  memcpy(call->outputs[0].data, call->inputs[0].data,
         (size_t)mpgluon_size(&call->inputs[0]) *
             (call->inputs[0].dtype == MPGLUON_INT64 ? sizeof(int64_t) : sizeof(float)));
  return 0;
}
static int count_backward(const mpgluon_call *call) {
  if (call->inputs[1].data || call->input_gradients[1].data)
    return mpgluon_fail(call, "the gradient of a state");
  memcpy(call->input_gradients[0].data, call->output_gradients[0].data,
         (size_t)mpgluon_size(&call->inputs[0]) * sizeof(float));
  return 0;
}

/* --- tests_where: returns the thread that runs it, after a delay ------------------------------ */
static int infer_where(mpgluon_infer *call) {
  call->outputs[0] = (mpgluon_desc){MPGLUON_INT64, 1, {1}};
  return 0;
}
static int where(const mpgluon_call *call) {
  usleep((useconds_t)(call->params[0].number * 1e6));
  *(int64_t *)call->outputs[0].data = (int64_t)pthread_self();
  return 0;
}

/* --- tests_wrong: errors in functions --------------------------------------------------------- */
static int infer_wrong(mpgluon_infer *call) {
  mpgluon_desc *output = &call->outputs[0];
  *output = call->inputs[0];
  switch (call->params[0].integer) {
    case 0: return mpgluon_fail(call, "infer says %s", "no");
    case 1: return -7;
    case 2: output->ndim = -1; break;
    case 3: output->ndim = 11; break;
    case 4: output->dtype = 9; break;
    case 5: output->shape[0] = -2; break;
    case 6: output->shape[0] = INT64_MAX; break;
    case 7: call->inputs[0].shape[0]++; break;
    case 8: call->inputs[0].ndim = 1000; break;
  }
  return 0;
}
static int wrong(const mpgluon_call *call) {
  if (call->params[0].integer == 10) return mpgluon_fail(call, "forward says %s", "no");
  if (call->params[0].integer == 11) return 5;
  memcpy(call->outputs[0].data, call->inputs[0].data,
         (size_t)mpgluon_size(&call->inputs[0]) * sizeof(float));
  return 0;
}
static int wrong_backward(const mpgluon_call *call) {
  return mpgluon_fail(call, "backward says no");
}

/* --- tests_copy: also on GPUs, where it queues a copy ----------------------------------------- */
static int copy(const mpgluon_call *call) {
  memcpy(call->outputs[0].data, call->inputs[0].data,
         (size_t)mpgluon_size(&call->inputs[0]) * sizeof(float));
  return 0;
}
static int cuda_copy(const mpgluon_call *call) {
  typedef int (*copy_function)(void *, const void *, size_t, int, void *);
  void *runtime = dlopen(getenv("MPGLUON_CUDA_LIBRARY"), RTLD_NOW | RTLD_NOLOAD);
  copy_function start = NULL;
  if (runtime) *(void **)&start = dlsym(runtime, "cudaMemcpyAsync");
  if (!start) return mpgluon_fail(call, "no cudaMemcpyAsync");
  size_t size = (size_t)mpgluon_size(&call->inputs[0]) * sizeof(float);
  void *between = call->scratch(call, size);
  if (!between) return mpgluon_fail(call, "no scratch memory");
  if (start(between, call->inputs[0].data, size, 3, call->stream)) return 1;
  return start(call->outputs[0].data, between, size, 3, call->stream);
}

/* --- The table ----------------------------------------------------------------------------------
 */
static const mpgluon_param mix_params[] = {
    {"scale", MPGLUON_NUMBER, "0.5", "-10..10", "What b is multiplied with."},
    {"mode", MPGLUON_CHOICE, "plus", "plus|minus", "Whether that is added."},
    {"power", MPGLUON_INTEGER, "0", "0..", "Of two."},
    {"twice", MPGLUON_BOOLEAN, "False", NULL, NULL},
    {"label", MPGLUON_TEXT, "None", NULL, NULL},
};
static const mpgluon_param wrong_params[] = {{"how", MPGLUON_INTEGER, NULL, NULL, NULL}};
static const mpgluon_param where_params[] = {{"seconds", MPGLUON_NUMBER, "0", "0..", NULL}};

#ifndef MISTAKE
static const mpgluon_op ops[] = {
    {.name = "tests_mix",
     .doc = "The sum of a and some b, and the product.\n"
            ">>> nd.tests_mix(nd.array([1]), nd.array([2]))[0].asnumpy()\n"
            "array([2.], dtype=float32)",
     .inputs = "a, b",
     .outputs = "sum, product",
     .params = mix_params,
     .num_params = 5,
     .dtypes = MPGLUON_SET(MPGLUON_FLOAT32),
     .infer = infer_alike,
     .forward = mix,
     .backward = mix_backward},
    {.name = "tests_scale",
     .inputs = "data, weight",
     .outputs = "output",
     .dtypes = MPGLUON_SET(MPGLUON_FLOAT32),
     .num_row_inputs = 1,
     .infer = infer_scale,
     .forward = scale,
     .backward = scale_backward},
    {.name = "tests_exp",
     .inputs = "x",
     .outputs = "y",
     .dtypes = MPGLUON_SET(MPGLUON_FLOAT64),
     .flags = MPGLUON_BACKWARD_READS_OUTPUTS,
     .forward = exponential,
     .backward = exponential_backward},
    {.name = "tests_count",
     .inputs = "data, !calls",
     .outputs = "output",
     .dtypes = MPGLUON_SET(MPGLUON_FLOAT32) | MPGLUON_SET(MPGLUON_INT64),
     .infer = infer_count,
     .forward = count,
     .backward = count_backward},
    {.name = "tests_where",
     .inputs = "data",
     .outputs = "output",
     .params = where_params,
     .num_params = 1,
     .dtypes = MPGLUON_SET(MPGLUON_FLOAT32),
     .infer = infer_where,
     .forward = where},
    {.name = "tests_wrong",
     .inputs = "data",
     .outputs = "output",
     .params = wrong_params,
     .num_params = 1,
     .dtypes = MPGLUON_SET(MPGLUON_FLOAT32),
     .infer = infer_wrong,
     .forward = wrong,
     .backward = wrong_backward},
    {.name = "_contrib_tests_copy",
     .inputs = "data",
     .outputs = "output",
     .dtypes = MPGLUON_SET(MPGLUON_FLOAT32),
     .forward = copy,
     .cuda_forward = cuda_copy},
};
MPGLUON_LIBRARY(ops);
#elif !defined NO_TABLE
/* A valid op, and one with an error. */
#ifndef TABLE
#define TABLE {MPGLUON_OP_VERSION, sizeof(mpgluon_op), ops, 2}
#endif
static const mpgluon_op ops[] = {
    {.name = "tests_good",
     .inputs = "data",
     .outputs = "output",
     .dtypes = MPGLUON_SET(MPGLUON_FLOAT32),
     .forward = copy},
    {.name = "tests_bad",
     .inputs = "data, other",
     .outputs = "output",
     .params = wrong_params,
     .dtypes = MPGLUON_SET(MPGLUON_FLOAT32),
     .forward = copy,
     MISTAKE},
};
MPGLUON_EXPORT const mpgluon_table mpgluon_library = TABLE;
#else
MPGLUON_EXPORT int _opRegSize(void) { return 0; } /* as in a library for MXNet */
#endif
