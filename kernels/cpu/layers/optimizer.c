/* Parameter updates, with one loop per optimizer and type. A call updates one or more weights. Each
 * weight is described by a segment, and the elements of all segments are divided among threads.
 * Element i of every result depends only on element i of the inputs, so weights may be updated in
 * place. Halves are computed in float; mixed precision reads and writes a float32 copy of the
 * weight.
 */
#include <math.h>

#include "base/memory.h"
#include "device/device.h"
#include "kernels/common/update.h"
#include "kernels/cpu/convert.h"

enum { MAX_STATES = MPG_UPDATE_STATES };
typedef mpg_update_constants constants;

typedef struct segment {
  const void *weight; /* input; in mixed precision, the float32 copy */
  const void *grad;
  void *states[MAX_STATES];
  void *out;
  void *master;  /* float32 copy of the new weight in mixed precision, else NULL */
  int64_t begin; /* index of the first element, counted over all segments */
  int64_t count;
  double lr, wd;
  mpg_dtype weight_dtype, grad_dtype, out_dtype;
} segment;

typedef void (*step_fn)(const constants *c, double lr, double wd, const void *weight,
                        const void *grad, void *const *states, void *out, int64_t count);

/* Defines the loop of one optimizer. Its body may use w, g (not yet rescaled), s0, s1, s2, lr and
 * wd. It must set `result`. */
#define STEP_OF(name, suffix, T, invariants, ...)                                                \
  static void name##_##suffix(const constants *c, double lr_, double wd_, const void *weight,    \
                              const void *grad, void *const *states, void *out, int64_t count) { \
    const T lr = (T)lr_, wd = (T)wd_, rescale = (T)c->rescale,                                   \
            bound = c->clip >= 0 ? (T)c->clip : (T)INFINITY;                                     \
    const T *ws = weight, *gs = grad;                                                            \
    T *s0 = states[0], *s1 = states[1], *s2 = states[2], *os = out;                              \
    (void)lr, (void)wd, (void)rescale, (void)bound, (void)s0, (void)s1, (void)s2;                \
    invariants;                                                                                  \
    MPG_INDEPENDENT for (int64_t i = 0; i < count; i++) {                                        \
      const T w = ws[i];                                                                         \
      T g = gs[i], result;                                                                       \
      __VA_ARGS__;                                                                               \
      os[i] = result;                                                                            \
    }                                                                                            \
  }
#define LIMIT(value, limit) ((value) > (limit) ? (limit) : (value) < -(limit) ? -(limit) : (value))
#define CLIPPED(value) LIMIT(value, bound)
#define STEP(name, invariants, ...)                  \
  STEP_OF(name, f32, float, invariants, __VA_ARGS__) \
  STEP_OF(name, f64, double, invariants, __VA_ARGS__)
#define ROOT(x) _Generic((x), float: sqrtf, default: sqrt)(x)
#define CONSTANT(name) const __typeof__(*ws) name = (__typeof__(*ws))c->name
#define DECAY(name) \
  CONSTANT(name);   \
  const __typeof__(*ws) rest_##name = (__typeof__(*ws))(1 - c->name)
#define SIGN(x) ((__typeof__(x))(((x) > 0) - ((x) < 0)))

#define LIMIT_CONSTANT(name, number) \
  const __typeof__(*ws) name = (__typeof__(*ws))(c->number >= 0 ? c->number : (double)INFINITY)
#define S0 s0[i]
#define S1 s1[i]
#define S2 s2[i]
#include "kernels/common/update.def"

static const step_fn steps[MPG_RULES][2] = {
#define STEP(name, ...) [MPG_RULE_##name] = {name##_f32, name##_f64},
#include "kernels/common/update.def"
};

typedef struct update_plan {
  mpg_update_rule rule;
  constants c;
  int num_states, num_segments;
  const segment *segments;
} update_plan;

static void run_segment(const update_plan *p, const segment *s, int64_t begin, int64_t end) {
  mpg_compute compute = s->weight_dtype == MPG_FLOAT64 ? MPG_COMPUTE_F64 : MPG_COMPUTE_F32;
  mpg_dtype native = mpg_compute_dtype(compute);
  mpg_dtype state_dtype = s->weight_dtype; /* float32 in mixed precision */
  step_fn step = steps[p->rule][compute == MPG_COMPUTE_F64];
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
    const void *weight = mpg_cpu_load(compute, s->weight_dtype, s->weight, i, n, &w),
               *grad = mpg_cpu_load(compute, s->grad_dtype, s->grad, i, n, &g);
    void *out = mpg_cpu_place(compute, s->out_dtype, s->out, i, &o);
    step(&p->c, s->lr, s->wd, weight, grad, states, out, n);
    if (s->master) mpg_cpu_store(compute, MPG_FLOAT32, s->master, i, n, out);
    mpg_cpu_store(compute, s->out_dtype, s->out, i, n, out);
    for (int k = 0; k < p->num_states; k++)
      mpg_cpu_store(compute, state_dtype, s->states[k], i, n, states[k]);
  }
}

static void run_update(void *context, int64_t begin, int64_t end) {
  const update_plan *p = context;
  int low = 0, high = p->num_segments - 1; /* binary search: last segment with .begin <= begin */
  while (low < high) {
    int middle = (low + high + 1) / 2;
    if (p->segments[middle].begin <= begin)
      low = middle;
    else
      high = middle - 1;
  }
  for (int k = low; k < p->num_segments && p->segments[k].begin < end; k++) {
    const segment *s = &p->segments[k];
    int64_t from = begin > s->begin ? begin - s->begin : 0,
            to = end - s->begin < s->count ? end - s->begin : s->count;
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

/* Returns the segment for inputs [weight, grad, states..., float32 copy if `mixed`]. */
static segment segment_of(const mpg_view *inputs, const mpg_view *out, int num_states, bool mixed,
                          double lr, double wd) {
  const mpg_view *weight = mixed ? &inputs[2 + num_states] : &inputs[0];
  segment s = {.weight = weight->data,
               .grad = inputs[1].data,
               .out = out->data,
               .count = mpg_shape_size(&inputs[0].desc.shape),
               .lr = lr,
               .wd = wd,
               .weight_dtype = weight->desc.dtype,
               .grad_dtype = inputs[1].desc.dtype,
               .out_dtype = out->desc.dtype};
  for (int k = 0; k < num_states; k++) s.states[k] = inputs[2 + k].data;
  if (mixed) s.master = weight->data;
  return s;
}

mpg_status mpg_cpu_update(const mpg_kernel_call *call) {
  mpg_update u = mpg_update_of(call);
  update_plan plan = {u.rule, u.c, u.num_states, 0, NULL};
  if (u.rescale) {
    mpg_block_buffer buffer;
    plan.c.rescale = *(const double *)mpg_cpu_load(MPG_COMPUTE_F64, u.rescale->desc.dtype,
                                                   u.rescale->data, 0, 1, &buffer);
    /* a gradient overflowed in mixed precision: skip the update */
    if (!isfinite(plan.c.rescale) || plan.c.rescale == 0) {
      const mpg_view *weight = &call->inputs[0];
      if (call->outputs[0].data != weight->data)
        memcpy(call->outputs[0].data, weight->data,
               (size_t)mpg_shape_size(&weight->desc.shape) * mpg_dtype_size(weight->desc.dtype));
      return MPG_OK;
    }
  }
  segment s = segment_of(call->inputs, call->outputs, u.num_states, u.mixed, u.lr, u.wd);
  if (u.keeps_copy) s.master = NULL;
  update(call, &plan, &s, 1);
  return MPG_OK;
}

mpg_status mpg_cpu_lamb_phase2(const mpg_kernel_call *call) {
  const mpg_lamb_phase2_params *params = call->params;
  mpg_block_buffer buffer;
  double norms[2], lr = params->lr;
  for (int k = 0; k < 2; k++)
    norms[k] = *(const double *)mpg_cpu_load(MPG_COMPUTE_F64, call->inputs[2 + k].desc.dtype,
                                             call->inputs[2 + k].data, 0, 1, &buffer);
  if (params->lower_bound >= 0 && norms[0] < params->lower_bound) norms[0] = params->lower_bound;
  if (params->upper_bound >= 0 && norms[0] > params->upper_bound) norms[0] = params->upper_bound;
  if (norms[0] != 0 && norms[1] != 0) lr = lr * norms[0] / norms[1];
  bool mixed = call->op->id == MPG_OP_mp_lamb_update_phase2;
  update_plan plan = {MPG_RULE_plain, {.rescale = 1, .clip = -1}, 0, 0, NULL};
  segment s = segment_of(call->inputs, call->outputs, 0, false, lr, 0);
  if (mixed) {
    s.weight = s.master = call->inputs[4].data;
    s.weight_dtype = MPG_FLOAT32;
  }
  update(call, &plan, &s, 1);
  return MPG_OK;
}

mpg_status mpg_cpu_multi_update(const mpg_kernel_call *call) {
  mpg_update u = mpg_update_of(call);
  update_plan plan = {u.rule, u.c, u.num_states, 0, NULL};
  int count = u.count, per_weight = mpg_update_inputs(&u);
  enum { STACK = 64 };
  segment stack[STACK], *segments = stack;
  if (count > STACK) {
    segments = mpg_device_scratch(call->device, (size_t)count * sizeof *segments);
    if (!segments) return MPG_DEVICE_OUT_OF_MEMORY;
  }
  const float *preloaded_lrs = u.lrs ? NULL : call->inputs[count * per_weight].data;
  const float *preloaded_wds = u.lrs ? NULL : call->inputs[count * per_weight + 1].data;
  for (int k = 0; k < count; k++)
    segments[k] = segment_of(&call->inputs[k * per_weight], &call->outputs[k], plan.num_states,
                             u.mixed, u.lrs ? u.lrs->values[k] : (double)preloaded_lrs[k],
                             u.lrs ? u.wds->values[k] : (double)preloaded_wds[k]);
  update(call, &plan, segments, count);
  return MPG_OK;
}

mpg_status mpg_cpu_reset_arrays(const mpg_kernel_call *call) {
  for (int i = 0; i < call->num_inputs; i++) {
    const mpg_view *array = &call->inputs[i];
    if (array->data)
      memset(array->data, 0,
             (size_t)mpg_shape_size(&array->desc.shape) * mpg_dtype_size(array->desc.dtype));
  }
  return MPG_OK;
}

/* Arguments of run_finite, which checks that all elements are finite. A float is finite unless its
 * exponent bits are all ones. */
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

mpg_status mpg_cpu_all_finite(const mpg_kernel_call *call) {
  bool fresh = call->op->id == MPG_OP_all_finite
                   ? ((const mpg_all_finite_params *)call->params)->init_output
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
#define SCALE(T, FROM, TO)                                                      \
  {                                                                             \
    T *restrict data = p->data;                                                 \
    for (int64_t i = begin; i < end; i++) data[i] = TO(FROM(data[i]) * factor); \
    return;                                                                     \
  }
  switch (p->dtype) {
    case MPG_FLOAT32: SCALE(float, , )
    case MPG_FLOAT64: SCALE(double, , )
    case MPG_FLOAT16: SCALE(uint16_t, mpg_half_to_float, mpg_float_to_half)
    default: SCALE(uint16_t, mpg_bfloat16_to_float, mpg_float_to_bfloat16)
  }
#undef SCALE
}

mpg_status mpg_cpu_multi_scale(const mpg_kernel_call *call) {
  int last = call->num_inputs - 1;
  for (int i = 0; i < last; i++) {
    const mpg_view *array = &call->inputs[i];
    scaling p = {array->data, array->desc.dtype, *(const float *)call->inputs[last].data};
    mpg_cpu_parallel_for(call, mpg_shape_size(&array->desc.shape), 32768, scale_range, &p);
  }
  return MPG_OK;
}
