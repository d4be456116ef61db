/* Parameter updates. One loop per optimizer and type; a call lists the weights it updates as segments, and the threads
 * share out all elements of all segments. Element i of every result depends on element i of the inputs alone, so weights
 * may be written in place. Halves are computed in float; mixed precision reads and writes a float32 copy of the weight.
 */
#include <math.h>

#include "base/memory.h"
#include "device/device.h"
#include "kernels/cpu/convert.h"

enum { MAX_STATES = 3 };

/* The numbers of an update but for learning rate and weight decay, which are the segment's. */
typedef struct constants {
  double rescale, clip, momentum, beta1, beta2, epsilon, gamma1, gamma2, clip_weights, lamda1, wd_lh, eta, correct1, correct2;
} constants;

typedef struct segment {
  const void *weight; /* read: the float32 copy in mixed precision */
  const void *grad;
  void *states[MAX_STATES];
  void *out;
  void *master;       /* mixed precision: also written with the new weight; else NULL */
  int64_t begin;      /* index of its first element over all segments */
  int64_t count;
  double lr, wd;
  mpg_dtype weight_dtype, grad_dtype, out_dtype;
} segment;

typedef void (*step_fn)(const constants *c, double lr, double wd, const void *weight, const void *grad, void *const *states, void *out,
                        int64_t count);

#define IVDEP _Pragma("GCC ivdep")
/* Names in a body: w, g (rescaled by the body), s0 s1 s2, lr, wd, and `result`. */
#define STEP_OF(name, suffix, T, prologue, ...)                                                                              \
  static void name##_##suffix(const constants *c, double lr_, double wd_, const void *weight, const void *grad, void *const *states, \
                              void *out, int64_t count) {                                                                     \
    const T lr = (T)lr_, wd = (T)wd_, rescale = (T)c->rescale, bound = c->clip >= 0 ? (T)c->clip : (T)INFINITY;               \
    const T *ws = weight, *gs = grad;                                                                                         \
    T *s0 = states[0], *s1 = states[1], *s2 = states[2], *os = out;                                                           \
    (void)lr, (void)wd, (void)rescale, (void)bound, (void)s0, (void)s1, (void)s2;                                             \
    prologue;                                                                                                                 \
    IVDEP for (int64_t i = 0; i < count; i++) {                                                                               \
      const T w = ws[i];                                                                                                      \
      T g = gs[i], result;                                                                                                    \
      __VA_ARGS__;                                                                                                            \
      os[i] = result;                                                                                                         \
    }                                                                                                                         \
  }
#define LIMIT(value, limit) ((value) > (limit) ? (limit) : (value) < -(limit) ? -(limit) : (value))
#define CLIPPED(value) LIMIT(value, bound)
#define STEP(name, prologue, ...)                \
  STEP_OF(name, f32, float, prologue, __VA_ARGS__) \
  STEP_OF(name, f64, double, prologue, __VA_ARGS__)
#define ROOT(x) _Generic((x), float: sqrtf, default: sqrt)(x)
#define CONSTANT(name) const __typeof__(*ws) name = (__typeof__(*ws))c->name
#define SIGN(x) ((__typeof__(x))(((x) > 0) - ((x) < 0)))

STEP(sgd, , result = (1 - lr * wd) * w - lr * CLIPPED(rescale * g))
STEP(sgd_momentum, CONSTANT(momentum),
     g = CLIPPED(rescale * g);
     s0[i] = momentum * s0[i] - lr * wd * w - lr * g;
     result = w + s0[i])
STEP(nesterov, CONSTANT(momentum),
     const __typeof__(g) decayed = momentum * s0[i], step = lr * (CLIPPED(rescale * g) + wd * w), moved = decayed - step;
     s0[i] = moved;
     result = w - decayed + (momentum + 1) * moved)
STEP(adam, CONSTANT(beta1); CONSTANT(beta2); CONSTANT(epsilon),
     g = CLIPPED(g * rescale + w * wd);
     s0[i] = beta1 * s0[i] + (1 - beta1) * g;
     s1[i] = beta2 * s1[i] + (1 - beta2) * g * g;
     result = w - lr * s0[i] / (ROOT(s1[i]) + epsilon))
STEP(adamw, CONSTANT(beta1); CONSTANT(beta2); CONSTANT(epsilon); CONSTANT(eta),
     g = CLIPPED(g * rescale);
     s0[i] = beta1 * s0[i] + (1 - beta1) * g;
     s1[i] = beta2 * s1[i] + (1 - beta2) * (g * g);
     result = w - eta * (lr * s0[i] / (ROOT(s1[i]) + epsilon) + wd * w))
STEP(adagrad, CONSTANT(epsilon),
     g = CLIPPED(g * rescale);
     s0[i] += g * g;
     result = w - lr * (g / ROOT(s0[i] + epsilon) + wd * w))
STEP(rmsprop, CONSTANT(gamma1); CONSTANT(epsilon); const __typeof__(*ws) edge = (__typeof__(*ws))(c->clip_weights >= 0 ? c->clip_weights : (double)INFINITY),
     g = CLIPPED(rescale * g + wd * w);
     s0[i] = (1 - gamma1) * (g * g) + gamma1 * s0[i];
     const __typeof__(g) moved = w - lr * (g / ROOT(s0[i] + epsilon));
     result = LIMIT(moved, edge))
STEP(rmsprop_centred, CONSTANT(gamma1); CONSTANT(gamma2); CONSTANT(epsilon); const __typeof__(*ws) edge = (__typeof__(*ws))(c->clip_weights >= 0 ? c->clip_weights : (double)INFINITY),
     g = CLIPPED(rescale * g + wd * w);
     s0[i] = (1 - gamma1) * g * g + gamma1 * s0[i];
     s1[i] = (1 - gamma1) * g + gamma1 * s1[i];
     s2[i] = gamma2 * s2[i] - lr * g / ROOT(s0[i] - s1[i] * s1[i] + epsilon);
     const __typeof__(g) moved = w + s2[i];
     result = LIMIT(moved, edge))
STEP(ftrl, CONSTANT(lamda1); CONSTANT(beta1),
     g = CLIPPED(g * rescale);
     s0[i] += g - (ROOT(s1[i] + g * g) - ROOT(s1[i])) * w / lr;
     s1[i] += g * g;
     const __typeof__(g) z = s0[i], size = z < 0 ? -z : z;
     result = size > lamda1 ? (SIGN(z) * lamda1 - z) / ((beta1 + ROOT(s1[i])) / lr + wd) : 0)
STEP(ftml, CONSTANT(beta1); CONSTANT(beta2); CONSTANT(epsilon); CONSTANT(correct1); CONSTANT(correct2),
     g = CLIPPED(rescale * g + wd * w);
     s1[i] = beta2 * s1[i] + (1 - beta2) * (g * g);
     const __typeof__(g) d = correct1 / lr * (ROOT(s1[i] / correct2) + epsilon);
     s2[i] = beta1 * s2[i] + (1 - beta1) * g - (d - beta1 * s0[i]) * w;
     s0[i] = d;
     result = -s2[i] / d)
STEP(sign_sgd, , result = (1 - lr * wd) * w - lr * SIGN(g))
STEP(signum, CONSTANT(momentum); CONSTANT(wd_lh),
     g = CLIPPED(rescale * g);
     s0[i] = momentum * s0[i] - (1 - momentum) * wd * w - (1 - momentum) * g;
     result = (1 - lr * wd_lh) * w + lr * SIGN(s0[i]))
STEP(lamb_direction, CONSTANT(beta1); CONSTANT(beta2); CONSTANT(epsilon); CONSTANT(correct1); CONSTANT(correct2),
     g = CLIPPED(g * rescale);
     s0[i] = beta1 * s0[i] + (1 - beta1) * g;
     s1[i] = beta2 * s1[i] + (1 - beta2) * g * g;
     result = s0[i] / correct1 / (ROOT(s1[i] / correct2) + epsilon) + wd * w)
STEP(plain, , result = w - lr * g)

typedef struct update_plan {
  step_fn f32, f64;
  constants c;
  int num_states, num_segments;
  const segment *segments;
} update_plan;

static void run_segment(const update_plan *p, const segment *s, int64_t begin, int64_t end) {
  mpg_compute compute = s->weight_dtype == MPG_FLOAT64 ? MPG_COMPUTE_F64 : MPG_COMPUTE_F32;
  mpg_dtype native = mpg_compute_dtype(compute);
  mpg_dtype state_dtype = s->weight_dtype; /* in mixed precision both are float32 */
  step_fn step = compute == MPG_COMPUTE_F64 ? p->f64 : p->f32;
  bool direct = s->weight_dtype == native && s->grad_dtype == native && s->out_dtype == native;
  int64_t size = (int64_t)mpg_dtype_size(native), piece = direct ? end - begin : MPG_CPU_BLOCK;
  mpg_block_buffer w, g, o, buffers[MAX_STATES];
  for (int64_t i = begin; i < end; i += piece) {
    int64_t n = end - i < piece ? end - i : piece;
    void *states[MAX_STATES] = {NULL};
    for (int k = 0; k < p->num_states; k++) {
      const void *loaded = mpg_cpu_load(compute, state_dtype, s->states[k], i, n, &buffers[k]);
      states[k] = loaded == &buffers[k] ? (void *)&buffers[k] : (char *)s->states[k] + i * size;
    }
    const void *weight = mpg_cpu_load(compute, s->weight_dtype, s->weight, i, n, &w), *grad = mpg_cpu_load(compute, s->grad_dtype, s->grad, i, n, &g);
    void *out = mpg_cpu_place(compute, s->out_dtype, s->out, i, &o);
    step(&p->c, s->lr, s->wd, weight, grad, states, out, n);
    if (s->master) mpg_cpu_store(compute, MPG_FLOAT32, s->master, i, n, out);
    mpg_cpu_store(compute, s->out_dtype, s->out, i, n, out);
    for (int k = 0; k < p->num_states; k++) mpg_cpu_store(compute, state_dtype, s->states[k], i, n, states[k]);
  }
}

static void run_update(void *context, int64_t begin, int64_t end) {
  const update_plan *p = context;
  int low = 0, high = p->num_segments - 1; /* the last segment that begins at or before `begin` */
  while (low < high) {
    int middle = (low + high + 1) / 2;
    if (p->segments[middle].begin <= begin) low = middle;
    else high = middle - 1;
  }
  for (int k = low; k < p->num_segments && p->segments[k].begin < end; k++) {
    const segment *s = &p->segments[k];
    int64_t from = begin > s->begin ? begin - s->begin : 0, to = end - s->begin < s->count ? end - s->begin : s->count;
    if (from < to) run_segment(p, s, from, to);
  }
}

static void update(const mpg_kernel_call *call, update_plan *p, segment *segments, int count) {
  int64_t total = 0;
  for (int k = 0; k < count; k++) {
    segments[k].begin = total;
    total += segments[k].count;
  }
  p->segments = segments;
  p->num_segments = count;
  mpg_cpu_parallel_for(call, total, 16384, run_update, p);
}

/* A segment from inputs [weight, grad, states..., copy of the weight if `mixed`]. */
static segment segment_of(const mpg_view *inputs, const mpg_view *out, int num_states, bool mixed, double lr, double wd) {
  const mpg_view *weight = mixed ? &inputs[2 + num_states] : &inputs[0];
  segment s = {.weight = weight->data, .grad = inputs[1].data, .out = out->data, .count = mpg_shape_size(&inputs[0].desc.shape),
               .lr = lr, .wd = wd, .weight_dtype = weight->desc.dtype, .grad_dtype = inputs[1].desc.dtype, .out_dtype = out->desc.dtype};
  for (int k = 0; k < num_states; k++) s.states[k] = inputs[2 + k].data;
  if (mixed) s.master = weight->data;
  return s;
}

#define PLAN(name, states) {name##_f32, name##_f64, {.rescale = p->rescale_grad, .clip = p->clip_gradient}, states, 0, NULL}

static mpg_status single(const mpg_kernel_call *call, update_plan *plan, double lr, double wd, bool mixed) {
  segment s = segment_of(call->inputs, call->outputs, plan->num_states, mixed, lr, wd);
  update(call, plan, &s, 1);
  return MPG_OK;
}

MPG_CPU_KERNEL(update) {
  switch (call->op->id) {
    case MPG_OP_sgd_update: case MPG_OP_mp_sgd_update: {
      const mpg_sgd_params *p = call->params;
      update_plan plan = PLAN(sgd, 0);
      return single(call, &plan, p->lr, p->wd, call->op->id == MPG_OP_mp_sgd_update);
    }
    case MPG_OP_sgd_mom_update: case MPG_OP_mp_sgd_mom_update: {
      const mpg_sgd_mom_params *p = call->params;
      update_plan plan = PLAN(sgd_momentum, 1);
      plan.c.momentum = p->momentum;
      return single(call, &plan, p->lr, p->wd, call->op->id == MPG_OP_mp_sgd_mom_update);
    }
    case MPG_OP_nag_mom_update: case MPG_OP_mp_nag_mom_update: {
      const mpg_nag_mom_params *p = call->params;
      update_plan plan = PLAN(nesterov, 1);
      plan.c.momentum = p->momentum;
      return single(call, &plan, p->lr, p->wd, call->op->id == MPG_OP_mp_nag_mom_update);
    }
    case MPG_OP_adam_update: {
      const mpg_adam_params *p = call->params;
      update_plan plan = PLAN(adam, 2);
      plan.c.beta1 = p->beta1;
      plan.c.beta2 = p->beta2;
      plan.c.epsilon = p->epsilon;
      return single(call, &plan, p->lr, p->wd, false);
    }
    case MPG_OP__sparse_adagrad_update: {
      const mpg_adagrad_params *p = call->params;
      update_plan plan = PLAN(adagrad, 1);
      plan.c.epsilon = p->epsilon;
      return single(call, &plan, p->lr, p->wd, false);
    }
    case MPG_OP_rmsprop_update: {
      const mpg_rmsprop_params *p = call->params;
      update_plan plan = PLAN(rmsprop, 1);
      plan.c.gamma1 = p->gamma1;
      plan.c.epsilon = p->epsilon;
      plan.c.clip_weights = p->clip_weights;
      return single(call, &plan, p->lr, p->wd, false);
    }
    case MPG_OP_rmspropalex_update: {
      const mpg_rmspropalex_params *p = call->params;
      update_plan plan = PLAN(rmsprop_centred, 3);
      plan.c.gamma1 = p->gamma1;
      plan.c.gamma2 = p->gamma2;
      plan.c.epsilon = p->epsilon;
      plan.c.clip_weights = p->clip_weights;
      return single(call, &plan, p->lr, p->wd, false);
    }
    case MPG_OP_ftrl_update: {
      const mpg_ftrl_params *p = call->params;
      update_plan plan = PLAN(ftrl, 2);
      plan.c.lamda1 = p->lamda1;
      plan.c.beta1 = p->beta;
      return single(call, &plan, p->lr, p->wd, false);
    }
    case MPG_OP_ftml_update: {
      const mpg_ftml_params *p = call->params;
      update_plan plan = {ftml_f32, ftml_f64, {.rescale = p->rescale_grad, .clip = p->clip_grad}, 3, 0, NULL};
      plan.c.beta1 = p->beta1;
      plan.c.beta2 = p->beta2;
      plan.c.epsilon = p->epsilon;
      plan.c.correct1 = 1 - pow(p->beta1, (double)p->t);
      plan.c.correct2 = 1 - pow(p->beta2, (double)p->t);
      return single(call, &plan, p->lr, p->wd, false);
    }
    case MPG_OP_signsgd_update: {
      const mpg_signsgd_params *p = call->params;
      update_plan plan = PLAN(sign_sgd, 0);
      return single(call, &plan, p->lr, p->wd, false);
    }
    case MPG_OP_signum_update: {
      const mpg_signum_params *p = call->params;
      update_plan plan = PLAN(signum, 1);
      plan.c.momentum = p->momentum;
      plan.c.wd_lh = p->wd_lh;
      return single(call, &plan, p->lr, p->wd, false);
    }
    case MPG_OP__adamw_update: case MPG_OP__mp_adamw_update: {
      const mpg_adamw_params *p = call->params;
      bool mixed = call->op->id == MPG_OP__mp_adamw_update;
      const mpg_view *scale = &call->inputs[mixed ? 5 : 4];
      mpg_block_buffer buffer;
      double rescale = *(const double *)mpg_cpu_load(MPG_COMPUTE_F64, scale->desc.dtype, scale->data, 0, 1, &buffer);
      if (!isfinite(rescale) || rescale == 0) { /* an overflow of mixed precision: the weight stays */
        if (call->outputs[0].data != call->inputs[0].data)
          memcpy(call->outputs[0].data, call->inputs[0].data, (size_t)mpg_shape_size(&call->inputs[0].desc.shape) * mpg_dtype_size(call->inputs[0].desc.dtype));
        return MPG_OK;
      }
      update_plan plan = {adamw_f32, adamw_f64, {.rescale = rescale, .clip = p->clip_gradient}, 2, 0, NULL};
      plan.c.beta1 = p->beta1;
      plan.c.beta2 = p->beta2;
      plan.c.epsilon = p->epsilon;
      plan.c.eta = p->eta;
      return single(call, &plan, p->lr, p->wd, mixed);
    }
    default: { /* lamb_update_phase1 and mp_lamb_update_phase1, whose result is a direction: the copy is only read */
      const mpg_lamb_phase1_params *p = call->params;
      update_plan plan = PLAN(lamb_direction, 2);
      plan.c.beta1 = p->beta1;
      plan.c.beta2 = p->beta2;
      plan.c.epsilon = p->epsilon;
      plan.c.correct1 = p->bias_correction ? 1 - pow(p->beta1, (double)p->t) : 1;
      plan.c.correct2 = p->bias_correction ? 1 - pow(p->beta2, (double)p->t) : 1;
      segment s = segment_of(call->inputs, call->outputs, 2, call->op->id == MPG_OP_mp_lamb_update_phase1, 0, p->wd);
      s.master = NULL;
      update(call, &plan, &s, 1);
      return MPG_OK;
    }
  }
}

MPG_CPU_KERNEL(lamb_phase2) {
  const mpg_lamb_phase2_params *params = call->params;
  mpg_block_buffer buffer;
  double norms[2], lr = params->lr;
  for (int k = 0; k < 2; k++)
    norms[k] = *(const double *)mpg_cpu_load(MPG_COMPUTE_F64, call->inputs[2 + k].desc.dtype, call->inputs[2 + k].data, 0, 1, &buffer);
  if (params->lower_bound >= 0 && norms[0] < params->lower_bound) norms[0] = params->lower_bound;
  if (params->upper_bound >= 0 && norms[0] > params->upper_bound) norms[0] = params->upper_bound;
  if (norms[0] != 0 && norms[1] != 0) lr = lr * norms[0] / norms[1];
  bool mixed = call->op->id == MPG_OP_mp_lamb_update_phase2;
  update_plan plan = {plain_f32, plain_f64, {.rescale = 1, .clip = -1}, 0, 0, NULL};
  segment s = segment_of(call->inputs, call->outputs, 0, false, lr, 0);
  if (mixed) {
    s.weight = s.master = call->inputs[4].data;
    s.weight_dtype = MPG_FLOAT32;
  }
  update(call, &plan, &s, 1);
  return MPG_OK;
}

MPG_CPU_KERNEL(multi_update) {
  const mpg_floats *lrs = NULL, *wds = NULL;
  int64_t count = 0;
  bool mixed = false;
  update_plan plan;
  switch (call->op->id) {
#define GROUP(structure, name, states, more)               \
  {                                                        \
    const mpg_##structure##_params *p = call->params;      \
    plan = (update_plan)PLAN(name, states);                \
    count = p->num_weights;                                \
    more;                                                  \
    break;                                                 \
  }
#define RATES (lrs = &p->lrs, wds = &p->wds)
    case MPG_OP_multi_mp_sgd_update: mixed = true; __attribute__((fallthrough));
    case MPG_OP_multi_sgd_update: GROUP(multi_sgd, sgd, 0, RATES)
    case MPG_OP_multi_mp_sgd_mom_update: mixed = true; __attribute__((fallthrough));
    case MPG_OP_multi_sgd_mom_update: GROUP(multi_sgd_mom, sgd_momentum, 1, (RATES, plan.c.momentum = p->momentum))
    case MPG_OP__multi_nag_mom_update: GROUP(multi_sgd_mom, nesterov, 1, (RATES, plan.c.momentum = p->momentum))
    case MPG_OP_preloaded_multi_mp_sgd_update: mixed = true; __attribute__((fallthrough));
    case MPG_OP_preloaded_multi_sgd_update: GROUP(preloaded_sgd, sgd, 0, )
    case MPG_OP_preloaded_multi_mp_sgd_mom_update: mixed = true; __attribute__((fallthrough));
    case MPG_OP_preloaded_multi_sgd_mom_update: GROUP(preloaded_sgd_mom, sgd_momentum, 1, plan.c.momentum = p->momentum)
    case MPG_OP__multi_adam_update:
      GROUP(multi_adam, adam, 2, (RATES, plan.c.beta1 = p->beta1, plan.c.beta2 = p->beta2, plan.c.epsilon = p->epsilon))
    case MPG_OP__multi_rmsprop_update:
      GROUP(multi_rmsprop, rmsprop, 1, (RATES, plan.c.gamma1 = p->gamma1, plan.c.epsilon = p->epsilon, plan.c.clip_weights = p->clip_weights))
    default: GROUP(multi_adagrad, adagrad, 1, (RATES, plan.c.epsilon = p->epsilon))
  }
  enum { STACK = 64 };
  segment stack[STACK], *segments = stack;
  if (count > STACK) {
    segments = mpg_device_scratch(call->device, (size_t)count * sizeof *segments);
    if (!segments) return MPG_DEVICE_OUT_OF_MEMORY;
  }
  int per_weight = 2 + plan.num_states + mixed;
  const float *preloaded_lrs = lrs ? NULL : call->inputs[count * per_weight].data;
  const float *preloaded_wds = lrs ? NULL : call->inputs[count * per_weight + 1].data;
  for (int k = 0; k < count; k++)
    segments[k] = segment_of(&call->inputs[k * per_weight], &call->outputs[k], plan.num_states, mixed,
                             lrs ? lrs->values[k] : (double)preloaded_lrs[k], lrs ? wds->values[k] : (double)preloaded_wds[k]);
  update(call, &plan, segments, (int)count);
  return MPG_OK;
}

MPG_CPU_KERNEL(multi_lars) {
  const mpg_multi_lars_params *params = call->params;
  const float *lrs = call->inputs[0].data, *weights = call->inputs[1].data, *grads = call->inputs[2].data, *wds = call->inputs[3].data;
  float *out = call->outputs[0].data, eta = (float)params->eta, eps = (float)params->eps, rescale = (float)params->rescale_grad;
  int64_t count = mpg_shape_size(&call->outputs[0].desc.shape);
  for (int64_t i = 0; i < count; i++) {
    float norm = sqrtf(weights[i]);
    out[i] = norm > 0 && grads[i] > 0 ? lrs[i] * eta * norm / (sqrtf(grads[i]) * rescale + wds[i] * norm + eps) : lrs[i];
  }
  return MPG_OK;
}

MPG_CPU_KERNEL(reset_arrays) {
  for (int i = 0; i < call->num_inputs; i++) {
    const mpg_view *array = &call->inputs[i];
    if (array->data) memset(array->data, 0, (size_t)mpg_shape_size(&array->desc.shape) * mpg_dtype_size(array->desc.dtype));
  }
  return MPG_OK;
}

/* Whether all elements are finite: bits whose exponent is not all ones. */
typedef struct finite_plan {
  const mpg_view *array;
  _Atomic bool broken;
} finite_plan;

static void run_finite(void *context, int64_t begin, int64_t end) {
  finite_plan *p = context;
  mpg_dtype dtype = p->array->desc.dtype;
  uint32_t broken = 0;
  if (dtype == MPG_FLOAT32) {
    const uint32_t *bits = p->array->data;
    for (int64_t i = begin; i < end; i++) broken |= (bits[i] & 0x7f800000u) == 0x7f800000u;
  } else if (dtype == MPG_FLOAT64) {
    const uint64_t *bits = p->array->data;
    for (int64_t i = begin; i < end; i++) broken |= (bits[i] >> 52 & 0x7ff) == 0x7ff;
  } else {
    const uint16_t *bits = p->array->data;
    uint16_t exponent = dtype == MPG_FLOAT16 ? 0x7c00 : 0x7f80;
    for (int64_t i = begin; i < end; i++) broken |= (bits[i] & exponent) == exponent;
  }
  if (broken) atomic_store_explicit(&p->broken, true, memory_order_relaxed);
}

MPG_CPU_KERNEL(all_finite) {
  bool fresh = call->op->id == MPG_OP_all_finite ? ((const mpg_all_finite_params *)call->params)->init_output
                                                 : ((const mpg_multi_all_finite_params *)call->params)->init_output;
  float *out = call->outputs[0].data;
  bool finite = true;
  for (int i = 0; i < call->num_inputs && finite; i++) {
    finite_plan p = {&call->inputs[i], false};
    mpg_cpu_parallel_for(call, mpg_shape_size(&p.array->desc.shape), 65536, run_finite, &p);
    finite = !atomic_load_explicit(&p.broken, memory_order_relaxed);
  }
  *out = finite && (fresh || *out != 0) ? 1.0f : 0.0f;
  return MPG_OK;
}

typedef struct scaling {
  void *data;
  mpg_dtype dtype;
  float factor;
} scaling;

static void scale_range(void *context, int64_t begin, int64_t end) {
  const scaling *p = context;
  float factor = p->factor;
#define SCALE(T, FROM, TO)                                                                  \
  {                                                                                         \
    T *restrict data = p->data;                                                             \
    for (int64_t i = begin; i < end; i++) data[i] = TO(FROM(data[i]) * factor);             \
    return;                                                                                 \
  }
  switch (p->dtype) {
    case MPG_FLOAT32: SCALE(float, , )
    case MPG_FLOAT64: SCALE(double, , )
    case MPG_FLOAT16: SCALE(uint16_t, mpg_half_to_float, mpg_float_to_half)
    default: SCALE(uint16_t, mpg_bfloat16_to_float, mpg_float_to_bfloat16)
  }
#undef SCALE
}

MPG_CPU_KERNEL(multi_scale) {
  int last = call->num_inputs - 1;
  for (int i = 0; i < last; i++) {
    const mpg_view *array = &call->inputs[i];
    scaling p = {array->data, array->desc.dtype, *(const float *)call->inputs[last].data};
    mpg_cpu_parallel_for(call, mpg_shape_size(&array->desc.shape), 32768, scale_range, &p);
  }
  return MPG_OK;
}
