/* Parameter updates: the rules of kernels/common/update.def over several weights in one launch. A
 * launch gets its weights as a table by value, and a block takes a stretch of one weight. Element i
 * of every result depends on element i of the inputs alone, so weights may be written in place.
 * Where rates or factors lie in arrays on the device they are read there: nothing waits.
 */
#include "kernels/cuda/access.h"
#include "kernels/common/update.h"

namespace {

enum { AT_ONCE = 32, ITEMS = 8, STRETCH = MPG_CUDA_THREADS * ITEMS };

struct segment {
  const void *weight, *grad; /* weight: the float32 copy in mixed precision */
  void *states[MPG_UPDATE_STATES], *out;
  float *master;         /* mixed precision: also written with the new weight; else NULL */
  const float *rates[2]; /* learning rate and weight decay on the device; NULL: lr and wd */
  int64_t count;
  double lr, wd;
  uint32_t first_block;
  int8_t weight_dtype, grad_dtype, out_dtype;
};

struct table {
  int count, num_states;
  mpg_update_constants c;
  mpg_untyped rescale;  /* data NULL: c.rescale. Not finite or 0: nothing is updated */
  mpg_untyped norms[2]; /* LAMB: of weight and direction, which scale the rate; data NULL: none */
  double bounds[2];
  segment segments[AT_ONCE];
};

MPG_ANYWHERE float root_of(float x) { return sqrtf(x); }
MPG_ANYWHERE double root_of(double x) { return sqrt(x); }

/* One struct a rule: at(constants, weight, gradient, states, rates). */
template <class T>
struct numbers {
  T lr, wd, rescale, bound;
  const mpg_update_constants *c;
};
#define LIMIT(value, limit) ((value) > (limit) ? (limit) : (value) < -(limit) ? -(limit) : (value))
#define CLIPPED(value) LIMIT(value, bound)
#define ROOT(x) root_of(x)
#define SIGN(x) ((T)(((x) > 0) - ((x) < 0)))
#define CONSTANT(name) const T name = (T)n.c->name
#define DECAY(name) \
  CONSTANT(name);   \
  const T rest_##name = (T)(1 - n.c->name)
#define LIMIT_CONSTANT(name, number) \
  const T name = (T)(n.c->number >= 0 ? n.c->number : (double)INFINITY)
#define S0 s[0]
#define S1 s[1]
#define S2 s[2]
#define STEP(name, constants, ...)                                                \
  struct name {                                                                   \
    template <class T>                                                            \
    static __device__ __forceinline__ T at(const numbers<T> &n, T w, T g, T *s) { \
      const T lr = n.lr, wd = n.wd, rescale = n.rescale, bound = n.bound;         \
      T result;                                                                   \
      (void)lr, (void)wd, (void)rescale, (void)bound, (void)s;                    \
      constants;                                                                  \
      __VA_ARGS__;                                                                \
      return result;                                                              \
    }                                                                             \
  };
namespace rule {
#include "kernels/common/update.def"
}

/* Views of a segment's arrays, for float32 throughout or for any dtypes. */
template <bool fast>
struct arrays;
template <>
struct arrays<true> {
  template <class T>
  static MPG_MEMBER mpg_typed<float> view(const void *data, mpg_dtype) {
    return {(float *)data};
  }
};
template <>
struct arrays<false> {
  template <class T>
  static MPG_MEMBER mpg_untyped view(const void *data, mpg_dtype dtype) {
    return {(void *)data, dtype};
  }
};

template <class R, class T, bool fast>
__global__ void update_kernel(table t) {
  typedef arrays<fast> A;
  int k = 0;
  while (k + 1 < t.count && t.segments[k + 1].first_block <= blockIdx.x) k++;
  const segment &s = t.segments[k];
  T rescale = (T)t.c.rescale, lr = (T)s.lr, wd = (T)s.wd;
  if (s.rates[0]) {
    lr = (T)*s.rates[0];
    wd = (T)*s.rates[1];
  }
  auto weight = A::template view<T>(s.weight, (mpg_dtype)s.weight_dtype);
  auto out = A::template view<T>(s.out, (mpg_dtype)s.out_dtype);
  int64_t begin = (int64_t)(blockIdx.x - s.first_block) * STRETCH,
          end = begin + STRETCH < s.count ? begin + STRETCH : s.count;
  if (t.rescale.data) {
    double factor = t.rescale.load<double>(0);
    if (!isfinite(factor) || factor == 0) { /* an overflow of mixed precision: the weight stays */
      if (s.out != s.weight && !s.master)
        for (int64_t i = begin + threadIdx.x; i < end; i += blockDim.x)
          out.store(i, weight.template load<T>(i));
      return;
    }
    rescale = (T)factor;
  }
  if (t.norms[0].data) {
    double of_weight = t.norms[0].load<double>(0), of_direction = t.norms[1].load<double>(0),
           rate = s.lr;
    if (t.bounds[0] >= 0 && of_weight < t.bounds[0]) of_weight = t.bounds[0];
    if (t.bounds[1] >= 0 && of_weight > t.bounds[1]) of_weight = t.bounds[1];
    if (of_weight != 0 && of_direction != 0) rate = rate * of_weight / of_direction;
    lr = (T)rate;
  }
  numbers<T> n = {lr, wd, rescale, t.c.clip >= 0 ? (T)t.c.clip : (T)INFINITY, &t.c};
  auto grad = A::template view<T>(s.grad, (mpg_dtype)s.grad_dtype);
  for (int64_t i = begin + threadIdx.x; i < end; i += blockDim.x) {
    T states[MPG_UPDATE_STATES] = {0, 0, 0};
#pragma unroll
    for (int j = 0; j < MPG_UPDATE_STATES; j++)
      if (j < t.num_states)
        states[j] = A::template view<T>(s.states[j], (mpg_dtype)s.weight_dtype).template load<T>(i);
    T result = R::at(n, weight.template load<T>(i), grad.template load<T>(i), states);
#pragma unroll
    for (int j = 0; j < MPG_UPDATE_STATES; j++)
      if (j < t.num_states)
        A::template view<T>(s.states[j], (mpg_dtype)s.weight_dtype).store(i, states[j]);
    if (s.master) s.master[i] = (float)result;
    out.store(i, result);
  }
}

bool all_float32(const segment &s) {
  return s.weight_dtype == MPG_FLOAT32 && s.grad_dtype == MPG_FLOAT32 && s.out_dtype == MPG_FLOAT32;
}

template <class R>
mpg_status launch_rule(const mpg_kernel_call *call, const table &t, unsigned blocks, int kind) {
  if (kind == 0)
    return mpg_cuda_launch(call, update_kernel<R, float, true>, blocks, MPG_CUDA_THREADS, 0, t);
  if (kind == 1)
    return mpg_cuda_launch(call, update_kernel<R, float, false>, blocks, MPG_CUDA_THREADS, 0, t);
  return mpg_cuda_launch(call, update_kernel<R, double, false>, blocks, MPG_CUDA_THREADS, 0, t);
}

mpg_status launch(const mpg_kernel_call *call, mpg_update_rule which, table *t, int kind) {
  unsigned blocks = 0;
  for (int k = 0; k < t->count; k++) {
    t->segments[k].first_block = blocks;
    blocks += mpg_cuda_blocks(t->segments[k].count, STRETCH);
  }
  switch (which) {
#define STEP(name, ...) \
  case MPG_RULE_##name: return launch_rule<rule::name>(call, *t, blocks, kind);
#include "kernels/common/update.def"
    default: return MPG_OK;
  }
}

/* A weight from inputs [weight, grad, states..., float32 copy if mixed]. */
segment segment_of(const mpg_view *inputs, const mpg_view *out, int num_states, bool mixed,
                   double lr, double wd) {
  const mpg_view *weight = mixed ? &inputs[2 + num_states] : &inputs[0];
  segment s = {};
  s.weight = weight->data;
  s.grad = inputs[1].data;
  s.out = out->data;
  s.count = mpg_shape_size(&inputs[0].desc.shape);
  s.lr = lr;
  s.wd = wd;
  s.weight_dtype = (int8_t)weight->desc.dtype;
  s.grad_dtype = (int8_t)inputs[1].desc.dtype;
  s.out_dtype = (int8_t)out->desc.dtype;
  for (int k = 0; k < num_states; k++) s.states[k] = inputs[2 + k].data;
  if (mixed) s.master = (float *)weight->data;
  return s;
}

/* Weights of one kind (0: float32 throughout, 1: computed in float, 2: in double) go together. */
mpg_status run(const mpg_kernel_call *call, mpg_update_rule which, table *t,
               const segment *segments, int count) {
  for (int kind = 0; kind < 3; kind++) {
    t->count = 0;
    for (int k = 0; k < count; k++) {
      const segment &s = segments[k];
      int own = s.weight_dtype == MPG_FLOAT64 ? 2 : all_float32(s) ? 0 : 1;
      if (own == kind && s.count) t->segments[t->count++] = s;
    }
    if (t->count) MPG_TRY(launch(call, which, t, kind));
  }
  return MPG_OK;
}

} // namespace

MPG_CUDA_KERNEL(update) {
  mpg_update u = mpg_update_of(call);
  table t = {};
  t.num_states = u.num_states;
  t.c = u.c;
  if (u.rescale) t.rescale = mpg_untyped_view(u.rescale);
  segment s = segment_of(call->inputs, call->outputs, u.num_states, u.mixed, u.lr, u.wd);
  if (u.keeps_copy) s.master = NULL;
  return run(call, u.rule, &t, &s, 1);
}

MPG_CUDA_KERNEL(lamb_phase2) {
  const mpg_lamb_phase2_params *params = (const mpg_lamb_phase2_params *)call->params;
  table t = {};
  t.c.rescale = 1;
  t.c.clip = -1;
  for (int k = 0; k < 2; k++) t.norms[k] = mpg_untyped_view(&call->inputs[2 + k]);
  t.bounds[0] = params->lower_bound;
  t.bounds[1] = params->upper_bound;
  segment s = segment_of(call->inputs, call->outputs, 0, false, params->lr, 0);
  if (call->op->id == MPG_OP_mp_lamb_update_phase2) {
    s.weight = call->inputs[4].data;
    s.master = (float *)call->inputs[4].data;
    s.weight_dtype = MPG_FLOAT32;
  }
  return run(call, MPG_RULE_plain, &t, &s, 1);
}

MPG_CUDA_KERNEL(multi_update) {
  mpg_update u = mpg_update_of(call);
  int per_weight = mpg_update_inputs(&u);
  table t = {};
  t.num_states = u.num_states;
  t.c = u.c;
  for (int first = 0; first < u.count; first += AT_ONCE) {
    segment segments[AT_ONCE];
    int count = u.count - first < AT_ONCE ? u.count - first : AT_ONCE;
    for (int k = 0; k < count; k++) {
      int weight = first + k;
      segments[k] =
          segment_of(&call->inputs[weight * per_weight], &call->outputs[weight], u.num_states,
                     u.mixed, u.lrs ? u.lrs->values[weight] : 0, u.lrs ? u.wds->values[weight] : 0);
      for (int j = 0; j < 2 && !u.lrs; j++)
        segments[k].rates[j] = (const float *)call->inputs[u.count * per_weight + j].data + weight;
    }
    MPG_TRY(run(call, u.rule, &t, segments, count));
  }
  return MPG_OK;
}

namespace {

__global__ void finite_kernel(mpg_untyped array, int64_t count, float *out) {
  for (int64_t i = MPG_CUDA_INDEX; i < count; i += MPG_CUDA_STRIDE)
    if (!isfinite(array.load<double>(i))) *out = 0; /* whoever writes, writes the same */
}

__global__ void finite_begin_kernel(float *out, bool fresh) {
  *out = fresh || *out != 0 ? 1.0f : 0.0f;
}

__global__ void scale_kernel(mpg_untyped array, int64_t count, const float *factor) {
  for (int64_t i = MPG_CUDA_INDEX; i < count; i += MPG_CUDA_STRIDE)
    array.store(i, array.dtype == MPG_FLOAT64 ? array.load<double>(i) * *factor
                                              : array.load<float>(i) * *factor);
}

} // namespace

MPG_CUDA_KERNEL(reset_arrays) {
  for (int i = 0; i < call->num_inputs; i++) MPG_TRY(mpg_cuda_zero(call, &call->inputs[i]));
  return MPG_OK;
}

MPG_CUDA_KERNEL(all_finite) {
  bool fresh = call->op->id == MPG_OP_all_finite
                   ? ((const mpg_all_finite_params *)call->params)->init_output
                   : ((const mpg_multi_all_finite_params *)call->params)->init_output;
  float *out = (float *)call->outputs[0].data;
  MPG_TRY(mpg_cuda_launch(call, finite_begin_kernel, 1, 1, 0, out, fresh));
  for (int i = 0; i < call->num_inputs; i++) {
    int64_t count = count_of(&call->inputs[i]);
    MPG_TRY(mpg_cuda_launch(call, finite_kernel, mpg_cuda_blocks(count, 8 * MPG_CUDA_THREADS),
                            MPG_CUDA_THREADS, 0, mpg_untyped_view(&call->inputs[i]), count, out));
  }
  return MPG_OK;
}

MPG_CUDA_KERNEL(multi_scale) {
  int last = call->num_inputs - 1;
  for (int i = 0; i < last; i++) {
    int64_t count = count_of(&call->inputs[i]);
    MPG_TRY(mpg_cuda_launch(call, scale_kernel, mpg_cuda_blocks(count, 4 * MPG_CUDA_THREADS),
                            MPG_CUDA_THREADS, 0, mpg_untyped_view(&call->inputs[i]), count,
                            (const float *)call->inputs[last].data));
  }
  return MPG_OK;
}
