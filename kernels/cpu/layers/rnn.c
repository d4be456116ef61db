/* Recurrent layers. */
#include "op/layers/rnn.h"

#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "kernels/cpu/products/gemm.h"
#include "kernels/cpu/products/pairs.h"
#include "kernels/cpu/convert.h"
#include "kernels/cpu/index.h"
#include "kernels/common/real.h"
#include "kernels/common/vector_math.h"

/* True if packing the recurrent weights is faster. Depends on sizes only, since the two paths round
 * differently. */
static bool packing_pays(const mpg_rnn_size *s) { return s->time >= 4 && s->time * s->batch >= 32; }

#define T float
#define DTYPE MPG_FLOAT32
#define NAME(name) name##_f32
#define SIGMOID mpg_sigmoidf
#define TANH mpg_tanhf
#include "kernels/cpu/products/lanes.h"
#include "kernels/cpu/layers/rnn_layers.h"
#undef T
#undef DTYPE
#undef NAME
#undef SIGMOID
#undef TANH

static inline double sigmoid_double(double x) { return 1 / (1 + exp(-x)); }
#define T double
#define DTYPE MPG_FLOAT64
#define NAME(name) name##_f64
#define SIGMOID sigmoid_double
#define TANH tanh
#define LANES_OF_DOUBLE
#include "kernels/cpu/products/lanes.h"
#include "kernels/cpu/layers/rnn_layers.h"
#undef T
#undef DTYPE
#undef NAME
#undef SIGMOID
#undef TANH

enum { MAX_WEIGHTS = 64 * 2 };

/* Addresses of the weights per layer and direction: separate arrays, or parts of one flat
 * vector. */
typedef struct weight_set {
  void *wi[MAX_WEIGHTS], *wh[MAX_WEIGHTS], *bi[MAX_WEIGHTS], *bh[MAX_WEIGHTS];
} weight_set;

static void separate_weights(const mpg_rnn_size *s, const mpg_view *views, weight_set *set) {
  int count = s->layers * s->directions;
  for (int i = 0; i < count; i++) {
    set->wi[i] = views[2 * i].data;
    set->wh[i] = views[2 * i + 1].data;
    set->bi[i] = views[2 * (count + i)].data;
    set->bh[i] = views[2 * (count + i) + 1].data;
  }
}

static void flat_weights(const mpg_rnn_size *s, void *flat, size_t element, weight_set *set) {
  char *next = flat;
  size_t rows = (size_t)(s->gates * s->hidden);
  for (int i = 0; i < s->layers * s->directions; i++) {
    set->wi[i] = next;
    next += rows * (size_t)mpg_rnn_layer_input(s, i / s->directions) * element;
    set->wh[i] = next;
    next += rows * (size_t)s->hidden * element;
  }
  for (int i = 0; i < s->layers * s->directions; i++) {
    set->bi[i] = next;
    next += rows * element;
    set->bh[i] = next;
    next += rows * element;
  }
}

/* A call of a recurrent layer's op. Half precision is converted to float32 and back. */
typedef struct rnn_call {
  const mpg_kernel_call *call;
  const mpg_rnn_params *params;
  mpg_rnn_size size;
  bool flat, dropped;
  bool halves;             /* the weights (but not the biases) stay bfloat16 */
  const mpg_view *lengths; /* lengths of sequences, or NULL */
} rnn_call;

/* Returns a clipping bound of the cell state, rounded to the state's dtype, or `none` if the bound
 * is not set. Backward detects clipped values by comparing them with the rounded bound. */
static double bound_of(const rnn_call *c, mpg_opt_float bound, double none) {
  uint64_t kept;
  mpg_view view = {&kept, c->call->inputs[0].desc};
  if (!bound.present) return none;
  mpg_real_store(&view, 0, bound.value);
  return mpg_real_at(&view, 0);
}

/* Defines r, the layers' arguments in TYPE. Uses the variables `inputs`, `states`, `half`, `set`
 * (weights in TYPE) and `given` (weights in the call's dtype). */
#define FILL(SUFFIX, TYPE)                                                                      \
  rnn_##SUFFIX r = {                                                                            \
      .call = c->call,                                                                          \
      .s = c->size,                                                                             \
      .dropped = c->dropped,                                                                    \
      .keep = 1 - c->params->p,                                                                 \
      .data = inputs[0].data,                                                                   \
      .wi = (const TYPE **)set.wi,                                                              \
      .wh = (const TYPE **)set.wh,                                                              \
      .bi = (const TYPE **)set.bi,                                                              \
      .bh = (const TYPE **)set.bh,                                                              \
      .wi_half = half ? (const uint16_t **)given.wi : NULL,                                     \
      .wh_half = half ? (const uint16_t **)given.wh : NULL,                                     \
      .lengths = c->lengths,                                                                    \
      .clip_nan = c->params->lstm_state_clip_nan,                                               \
      .clip = c->params->lstm_state_clip_min.present || c->params->lstm_state_clip_max.present, \
      .clip_min = (TYPE)bound_of(c, c->params->lstm_state_clip_min, -INFINITY),                 \
      .clip_max = (TYPE)bound_of(c, c->params->lstm_state_clip_max, INFINITY)};                 \
  r.h0 = inputs[states].data;                                                                   \
  r.c0 = r.s.is_lstm ? inputs[states + 1].data : NULL

static void read_weights(const rnn_call *c, const mpg_view *inputs, weight_set *set) {
  if (c->flat)
    flat_weights(&c->size, inputs[1].data, mpg_dtype_size(inputs[1].desc.dtype), set);
  else
    separate_weights(&c->size, inputs + 1 + c->size.states, set);
}

/* Fills `set` with the weights in `inputs`, with NULL for weights that stay bfloat16. */
static void wide_weights(const rnn_call *c, const mpg_view *inputs, weight_set *set) {
  read_weights(c, inputs, set);
  for (int i = 0; c->halves && i < c->size.layers * c->size.directions; i++)
    set->wi[i] = set->wh[i] = NULL;
}

static mpg_status forward_in(const rnn_call *c, const mpg_view *inputs, const mpg_view *outputs) {
  weight_set set, given;
  bool half = c->call->inputs[0].desc.dtype == MPG_BFLOAT16;
  int states = c->flat ? 2 : 1, last = c->call->num_outputs - 1;
  bool with_states = c->params->state_outputs;
  wide_weights(c, inputs, &set);
  read_weights(c, c->call->inputs, &given);
  if (inputs[0].desc.dtype == MPG_FLOAT64) {
    FILL(f64, double);
    r.output = outputs[0].data;
    r.hn = with_states ? outputs[1].data : NULL;
    r.cn = with_states && r.s.is_lstm ? outputs[2].data : NULL;
    r.reserve = outputs[last].data;
    return rnn_forward_f64(&r);
  }
  FILL(f32, float);
  r.output = outputs[0].data;
  r.hn = with_states ? outputs[1].data : NULL;
  r.cn = with_states && r.s.is_lstm ? outputs[2].data : NULL;
  r.reserve = outputs[last].data;
  return rnn_forward_f32(&r);
}

static mpg_status backward_in(const rnn_call *c, const mpg_view *inputs, const mpg_view *outputs) {
  weight_set set, given, gradients;
  bool half = c->call->inputs[0].desc.dtype == MPG_BFLOAT16;
  int states = c->flat ? 2 : 1, forward = mpg_rnn_num_inputs(&c->size, c->flat);
  bool with_states = c->params->state_outputs;
  wide_weights(c, inputs, &set);
  read_weights(c, c->call->inputs, &given);
  read_weights(c, outputs, &gradients);
  const mpg_view *d_out = inputs + forward + 2;
#define BACKWARD(SUFFIX, TYPE)                                                           \
  FILL(SUFFIX, TYPE);                                                                    \
  r.output = inputs[forward].data;                                                       \
  r.reserve = inputs[forward + 1].data;                                                  \
  rnn_gradients_##SUFFIX d = {.d_output = d_out[0].data,                                 \
                              .d_hn = with_states ? d_out[1].data : NULL,                \
                              .d_cn = with_states && r.s.is_lstm ? d_out[2].data : NULL, \
                              .d_data = outputs[0].data,                                 \
                              .d_h0 = outputs[states].data,                              \
                              .d_c0 = r.s.is_lstm ? outputs[states + 1].data : NULL,     \
                              .d_wi = (TYPE **)gradients.wi,                             \
                              .d_wh = (TYPE **)gradients.wh,                             \
                              .d_bi = (TYPE **)gradients.bi,                             \
                              .d_bh = (TYPE **)gradients.bh};                            \
  return rnn_backward_##SUFFIX(&r, &d)
  if (inputs[0].desc.dtype == MPG_FLOAT64) {
    BACKWARD(f64, double);
  }
  BACKWARD(f32, float);
#undef BACKWARD
}

/* Returns the number of leading elements of input i that are weights and stay bfloat16. */
static int64_t elements_kept(const rnn_call *c, int i) {
  const mpg_rnn_size *s = &c->size;
  int64_t cells = (int64_t)s->layers * s->directions;
  if (!c->halves) return 0;
  if (c->flat)
    return i == 1
               ? mpg_shape_size(&c->call->inputs[1].desc.shape) - 2 * cells * s->gates * s->hidden
               : 0;
  int first = 1 + s->states;
  return i >= first && i < first + 2 * cells ? mpg_shape_size(&c->call->inputs[i].desc.shape) : 0;
}

typedef mpg_status (*run_fn)(const rnn_call *, const mpg_view *, const mpg_view *);

/* Runs a half-precision call: widens its inputs into scratch, computes in float32, and narrows the
 * results. Weights that stay bfloat16 are not widened. */
static mpg_status run_widened(const rnn_call *c, run_fn run) {
  const mpg_kernel_call *call = c->call;
  mpg_view inputs[MPG_RNN_MAX_INPUTS + 5], outputs[MPG_RNN_MAX_INPUTS];
  size_t total = 0;
  for (int i = 0; i < call->num_inputs; i++)
    total += mpg_align_up((size_t)mpg_shape_size(&call->inputs[i].desc.shape) * sizeof(float), 64);
  for (int i = 0; i < call->num_outputs; i++)
    total += mpg_align_up((size_t)mpg_shape_size(&call->outputs[i].desc.shape) * sizeof(float), 64);
  char *next = mpg_device_scratch_slot(call->device, MPG_SCRATCH_WIDENED, total);
  if (!next) return MPG_DEVICE_OUT_OF_MEMORY;
  for (int i = 0; i < call->num_inputs; i++) {
    int64_t count = mpg_shape_size(&call->inputs[i].desc.shape), kept = elements_kept(c, i);
    inputs[i] = (mpg_view){next, call->inputs[i].desc};
    if (&call->inputs[i] == c->lengths) continue; /* read without conversion */
    inputs[i].desc.dtype = MPG_FLOAT32;
    mpg_cpu_widen(call, call->inputs[i].desc.dtype, (uint16_t *)call->inputs[i].data + kept,
                  count - kept, (float *)next + kept);
    next += mpg_align_up((size_t)count * sizeof(float), 64);
  }
  for (int i = 0; i < call->num_outputs; i++) {
    outputs[i] = (mpg_view){next, call->outputs[i].desc};
    outputs[i].desc.dtype = MPG_FLOAT32;
    next += mpg_align_up((size_t)mpg_shape_size(&call->outputs[i].desc.shape) * sizeof(float), 64);
  }
  MPG_TRY(run(c, inputs, outputs));
  for (int i = 0; i < call->num_outputs; i++)
    mpg_cpu_narrow(call, call->outputs[i].desc.dtype, outputs[i].data,
                   mpg_shape_size(&call->outputs[i].desc.shape), call->outputs[i].data);
  return MPG_OK;
}

static mpg_status run_any(const rnn_call *c, run_fn run) {
  mpg_dtype dtype = c->call->inputs[0].desc.dtype;
  return dtype == MPG_FLOAT32 || dtype == MPG_FLOAT64 ? run(c, c->call->inputs, c->call->outputs)
                                                      : run_widened(c, run);
}

static rnn_call describe(const mpg_kernel_call *call, bool flat, bool dropped) {
  const int64_t *dims = call->inputs[0].desc.shape.dims;
  const mpg_rnn_params *params = call->params;
  rnn_call c = {.call = call,
                .params = params,
                .size = mpg_rnn_size_of(params, dims[0], dims[1], dims[2]),
                .flat = flat,
                .dropped = dropped};
  if (c.size.lengths) c.lengths = &call->inputs[mpg_rnn_num_inputs(&c.size, flat) - 1];
  c.halves = call->inputs[0].desc.dtype == MPG_BFLOAT16 && packing_pays(&c.size) && mpg_cpu_pairs();
  return c;
}

mpg_status mpg_cpu_rnn(const mpg_kernel_call *call) {
  rnn_call c = describe(call, true, call->train && ((const mpg_rnn_params *)call->params)->p > 0);
  return run_any(&c, forward_in);
}

mpg_status mpg_cpu_rnn_separate(const mpg_kernel_call *call) {
  rnn_call c = describe(call, false, call->train && ((const mpg_rnn_params *)call->params)->p > 0);
  return run_any(&c, forward_in);
}

mpg_status mpg_cpu_rnn_backward(const mpg_kernel_call *call) {
  const mpg_rnn_backward_params *params = call->params;
  rnn_call c = describe(call, params->flat, params->dropped);
  return run_any(&c, backward_in);
}
