/* Parameter updates with the rules of kernels/common/update.def, for several weights in one launch.
 * The table of weights is a kernel argument. Each block processes a range of one weight. Element i
 * of every result depends only on element i of the inputs, so weights may be updated in place. The
 * kernel reads learning rates and factors that are in device arrays, so the host does not wait for
 * them.
 */
#include "kernels/cuda/access.h"
#include "kernels/common/update.h"

namespace {

enum { AT_ONCE = 32, ITEMS = 8, STRETCH = MPG_CUDA_THREADS * ITEMS, PACK = 4 };

/* A weight to update, and its arrays. */
struct segment {
  const void *weight, *grad; /* weight: the float32 copy in mixed precision */
  void *states[MPG_UPDATE_STATES], *out;
  float *master;         /* float32 copy that also receives the new weight; NULL if none */
  const float *rates[2]; /* device addresses of learning rate, weight decay; NULL to use lr, wd */
  int64_t count;
  double lr, wd;
  uint32_t first_block;
  int8_t weight_dtype, grad_dtype, out_dtype;
  bool packed; /* all arrays are aligned to PACK elements */
};

struct table {
  int count, num_states;
  mpg_update_constants c;
  /* Views whose data is NULL are not used. `rescale` replaces c.rescale; 0 or a non-finite value
   * skips the update. `norms` are LAMB's norms of the weight and of the update direction, which
   * scale the learning rate. `bounds` limits the weight's norm; a negative bound is unused. */
  mpg_untyped rescale;
  mpg_untyped norms[2];
  double bounds[2];
  segment segments[AT_ONCE];
};

MPG_HOST_DEVICE float root_of(float x) { return sqrtf(x); }
MPG_HOST_DEVICE double root_of(double x) { return sqrt(x); }

/* Arguments of a rule. STEP generates a struct per rule, whose at(numbers, weight, gradient,
 * states) returns the new weight and updates the states. */
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

/* Maps a rule's struct to its enum value, which states_of maps to the rule's number of states. */
template <class R>
struct rule_id;
#define STEP(name, ...)                                   \
  template <>                                             \
  struct rule_id<rule::name> {                            \
    static const mpg_update_rule value = MPG_RULE_##name; \
  };
#include "kernels/common/update.def"
__host__ __device__ constexpr int states_of(mpg_update_rule which) {
#define UPDATE(op, params, rule, states, ...) \
  if (which == MPG_RULE_##rule) return states;
#include "kernels/common/update.def"
  return 0;
}

/* Views of a segment's arrays whose dtype is known at compile time (array<D>) or at run time
 * (array<any>). */
struct any {};
template <class D>
struct array {
  static const bool known = true;
  static MPG_MEMBER mpg_typed<D> view(const void *data, int) { return {(D *)data}; }
};
template <>
struct array<any> {
  static const bool known = false;
  static MPG_MEMBER mpg_untyped view(const void *data, int dtype) {
    return {(void *)data, (mpg_dtype)dtype};
  }
};

/* load_few and store_few access the N elements that start at index i. N is 1 or PACK. PACK elements
 * take one memory access. */
template <class D>
struct alignas(PACK * sizeof(D)) few {
  D values[PACK];
};
template <int N, class T, class D>
__device__ __forceinline__ void load_few(const mpg_typed<D> &from, int64_t i, T (&to)[N]) {
  if (N == 1) {
    to[0] = from.template load<T>(i);
  } else {
    few<D> values = *(const few<D> *)(from.data + i);
    for (int k = 0; k < N; k++) to[k] = mpg_to<T>(values.values[k]);
  }
}
template <int N, class T>
__device__ __forceinline__ void load_few(const mpg_untyped &from, int64_t i, T (&to)[N]) {
  for (int k = 0; k < N; k++) to[k] = from.load<T>(i + k);
}
/* Stores with one instruction. The compiler may split the assignment of a struct into several. */
__device__ __forceinline__ void store_words(void *to, const uint32_t (&words)[2]) {
#ifdef __CUDA_ARCH__
  asm volatile("st.global.v2.b32 [%0], {%1, %2};"
               :
               : "l"(__cvta_generic_to_global(to)), "r"(words[0]), "r"(words[1])
               : "memory");
#else
  memcpy(to, words, sizeof words);
#endif
}
__device__ __forceinline__ void store_words(void *to, const uint32_t (&words)[4]) {
  mpg_store_words(to, words);
}
template <int N, class T, class D>
__device__ __forceinline__ void store_few(const mpg_typed<D> &to, int64_t i, const T (&from)[N]) {
  if (N == 1) {
    to.store(i, from[0]);
  } else {
    few<D> values;
    for (int k = 0; k < N; k++) values.values[k] = mpg_to<D>(from[k]);
    uint32_t words[sizeof(few<D>) / 4 > 2 ? 4 : 2];
    memcpy(words, &values, sizeof words);
    store_words(to.data + i, words);
  }
}
template <int N, class T>
__device__ __forceinline__ void store_few(const mpg_untyped &to, int64_t i, const T (&from)[N]) {
  for (int k = 0; k < N; k++) to.store(i + k, from[k]);
}

/* Updates N elements. T is the compute type, W the dtype of the weight and states, G of the
 * gradient, and O of the result. */
template <int N, class R, class T, class W, class G, class O>
__device__ __forceinline__ void update_few(const segment &s, const numbers<T> &n, int64_t i) {
  enum { STATES = states_of(rule_id<R>::value) };
  T weight[N], grad[N], states[STATES > 0 ? STATES : 1][N];
  load_few<N>(array<W>::view(s.weight, s.weight_dtype), i, weight);
  load_few<N>(array<G>::view(s.grad, s.grad_dtype), i, grad);
#pragma unroll
  for (int j = 0; j < STATES; j++)
    load_few<N>(array<W>::view(s.states[j], s.weight_dtype), i, states[j]);
#pragma unroll
  for (int k = 0; k < N; k++) {
    T own[MPG_UPDATE_STATES] = {0, 0, 0};
#pragma unroll
    for (int j = 0; j < STATES; j++) own[j] = states[j][k];
    weight[k] = R::at(n, weight[k], grad[k], own);
#pragma unroll
    for (int j = 0; j < STATES; j++) states[j][k] = own[j];
  }
#pragma unroll
  for (int j = 0; j < STATES; j++)
    store_few<N>(array<W>::view(s.states[j], s.weight_dtype), i, states[j]);
  if (s.master) store_few<N>(mpg_typed<float>{s.master}, i, weight);
  store_few<N>(array<O>::view(s.out, s.out_dtype), i, weight);
}

template <class R, class T, class W, class G, class O>
__global__ void update_kernel(table t) {
  int k = 0;
  while (k + 1 < t.count && t.segments[k + 1].first_block <= blockIdx.x) k++;
  const segment &s = t.segments[k];
  T rescale = (T)t.c.rescale, lr = (T)s.lr, wd = (T)s.wd;
  if (s.rates[0]) {
    lr = (T)*s.rates[0];
    wd = (T)*s.rates[1];
  }
  int64_t begin = (int64_t)(blockIdx.x - s.first_block) * STRETCH,
          end = begin + STRETCH < s.count ? begin + STRETCH : s.count;
  if (t.rescale.data) {
    double factor = t.rescale.load<double>(0);
    if (!isfinite(factor) || factor == 0) { /* gradient overflow: keeps the old weight */
      if (s.out != s.weight && !s.master)
        for (int64_t i = begin + threadIdx.x; i < end; i += blockDim.x)
          array<O>::view(s.out, s.out_dtype)
              .store(i, array<W>::view(s.weight, s.weight_dtype).template load<T>(i));
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
  int64_t packed = array<W>::known && s.packed ? begin + (end - begin) / PACK * PACK : begin;
#pragma unroll 1
  for (int64_t i = begin + threadIdx.x * PACK; i < packed; i += MPG_CUDA_THREADS * PACK)
    update_few<PACK, R, T, W, G, O>(s, n, i);
#pragma unroll 1
  for (int64_t i = packed + threadIdx.x; i < end; i += MPG_CUDA_THREADS)
    update_few<1, R, T, W, G, O>(s, n, i);
}

/* Combinations of dtypes with their own kernels: the same dtype for weights, gradients and results,
 * or a 16-bit dtype with float32 copies of the weights (BY_COPY). All other combinations use ANY or
 * ANY_DOUBLE, which read the dtypes at run time and compute in float or double. */
enum { OF_FLOATS, OF_BFLOATS, OF_HALVES, BFLOATS_BY_COPY, HALVES_BY_COPY, ANY, ANY_DOUBLE, KINDS };
int kind_of(const segment &s) {
  const int weight = s.weight_dtype, grad = s.grad_dtype, out = s.out_dtype;
  if (weight == MPG_FLOAT64) return ANY_DOUBLE;
  if (grad != out) return ANY;
  if (weight == grad)
    return weight == MPG_FLOAT32    ? OF_FLOATS
           : weight == MPG_BFLOAT16 ? OF_BFLOATS
           : weight == MPG_FLOAT16  ? OF_HALVES
                                    : ANY;
  if (weight != MPG_FLOAT32) return ANY;
  return grad == MPG_BFLOAT16 ? BFLOATS_BY_COPY : grad == MPG_FLOAT16 ? HALVES_BY_COPY : ANY;
}

template <class R>
mpg_status launch_rule(const mpg_kernel_call *call, const table &t, unsigned blocks, int kind) {
#define CASE(number, T, W, G, O) \
  case number:                   \
    return mpg_cuda_launch(call, update_kernel<R, T, W, G, O>, blocks, MPG_CUDA_THREADS, 0, t);
  switch (kind) {
    CASE(OF_FLOATS, float, float, float, float)
    CASE(OF_BFLOATS, float, mpg_bfloat16, mpg_bfloat16, mpg_bfloat16)
    CASE(OF_HALVES, float, mpg_half, mpg_half, mpg_half)
    CASE(BFLOATS_BY_COPY, float, float, mpg_bfloat16, mpg_bfloat16)
    CASE(HALVES_BY_COPY, float, float, mpg_half, mpg_half)
    CASE(ANY, float, any, any, any)
    default: CASE(ANY_DOUBLE, double, any, any, any)
  }
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

/* True if the address is aligned to PACK elements of the dtype. */
bool aligned_to_pack(const void *data, int dtype) {
  return (uintptr_t)data % (PACK * mpg_dtype_size((mpg_dtype)dtype)) == 0;
}

/* Returns the segment of a weight with inputs [weight, grad, states..., float32 copy if mixed]. */
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
  s.packed = aligned_to_pack(s.weight, s.weight_dtype) && aligned_to_pack(s.grad, s.grad_dtype) &&
             aligned_to_pack(s.out, s.out_dtype) && aligned_to_pack(s.master, MPG_FLOAT32);
  for (int k = 0; k < num_states; k++) s.packed &= aligned_to_pack(s.states[k], s.weight_dtype);
  return s;
}

/* Updates all segments, with one launch for each combination of dtypes. */
mpg_status run(const mpg_kernel_call *call, mpg_update_rule which, table *t,
               const segment *segments, int count) {
  for (int kind = 0; kind < KINDS; kind++) {
    t->count = 0;
    for (int k = 0; k < count; k++) {
      const segment &s = segments[k];
      if (kind_of(s) == kind && s.count) t->segments[t->count++] = s;
    }
    if (t->count) MPG_TRY(launch(call, which, t, kind));
  }
  return MPG_OK;
}

} // namespace

mpg_status mpg_cuda_update(const mpg_kernel_call *call) {
  mpg_update u = mpg_update_of(call);
  table t = {};
  t.num_states = u.num_states;
  t.c = u.c;
  if (u.rescale) t.rescale = mpg_untyped_view(u.rescale);
  segment s = segment_of(call->inputs, call->outputs, u.num_states, u.mixed, u.lr, u.wd);
  if (u.keeps_copy) s.master = NULL;
  return run(call, u.rule, &t, &s, 1);
}

mpg_status mpg_cuda_lamb_phase2(const mpg_kernel_call *call) {
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

mpg_status mpg_cuda_multi_update(const mpg_kernel_call *call) {
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

template <class D>
__global__ void finite_kernel(const D *array, int64_t count, float *out) {
  enum { N = mpg_pack<D>::COUNT };
  bool finite = true;
  int64_t packs = (uintptr_t)array % 16 ? 0 : count / N;
  for (int64_t i = MPG_CUDA_INDEX; i < packs; i += MPG_CUDA_STRIDE) {
    mpg_pack<D> pack = ((const mpg_pack<D> *)array)[i];
#pragma unroll
    for (int k = 0; k < N; k++) finite &= isfinite(mpg_to<mpg_compute_t<D>>(pack.values[k])) != 0;
  }
  for (int64_t i = packs * N + MPG_CUDA_INDEX; i < count; i += MPG_CUDA_STRIDE)
    finite &= isfinite(mpg_to<mpg_compute_t<D>>(array[i])) != 0;
  if (!finite) *out = 0; /* benign race: all writers store 0 */
}

__global__ void finite_begin_kernel(float *out, bool fresh) {
  *out = fresh || *out != 0 ? 1.0f : 0.0f;
}

template <class D>
__global__ void scale_kernel(D *array, int64_t count, const float *factor) {
  typedef mpg_compute_t<D> C;
  enum { N = mpg_pack<D>::COUNT };
  C by = (C)*factor;
  int64_t packs = (uintptr_t)array % 16 ? 0 : count / N;
  for (int64_t i = MPG_CUDA_INDEX; i < packs; i += MPG_CUDA_STRIDE) {
    mpg_pack<D> pack = ((mpg_pack<D> *)array)[i];
#pragma unroll
    for (int k = 0; k < N; k++) pack.values[k] = mpg_to<D>(mpg_to<C>(pack.values[k]) * by);
    ((mpg_pack<D> *)array)[i] = pack;
  }
  for (int64_t i = packs * N + MPG_CUDA_INDEX; i < count; i += MPG_CUDA_STRIDE)
    array[i] = mpg_to<D>(mpg_to<C>(array[i]) * by);
}

} // namespace

mpg_status mpg_cuda_reset_arrays(const mpg_kernel_call *call) {
  for (int i = 0; i < call->num_inputs; i++) MPG_TRY(mpg_cuda_zero(call, &call->inputs[i]));
  return MPG_OK;
}

mpg_status mpg_cuda_all_finite(const mpg_kernel_call *call) {
  bool fresh = call->op->id == MPG_OP_all_finite
                   ? ((const mpg_all_finite_params *)call->params)->init_output
                   : ((const mpg_multi_all_finite_params *)call->params)->init_output;
  float *out = (float *)call->outputs[0].data;
  MPG_TRY(mpg_cuda_launch(call, finite_begin_kernel, 1, 1, 0, out, fresh));
  for (int i = 0; i < call->num_inputs; i++) {
    const mpg_view *in = &call->inputs[i];
    MPG_CUDA_FLOAT_DTYPE(
        in->desc.dtype, D,
        MPG_TRY(mpg_cuda_launch(call, finite_kernel<D>,
                                mpg_cuda_blocks(count_of(in), 8 * MPG_CUDA_THREADS),
                                MPG_CUDA_THREADS, 0, (const D *)in->data, count_of(in), out)));
  }
  return MPG_OK;
}

mpg_status mpg_cuda_multi_scale(const mpg_kernel_call *call) {
  int last = call->num_inputs - 1;
  for (int i = 0; i < last; i++) {
    const mpg_view *in = &call->inputs[i];
    MPG_CUDA_FLOAT_DTYPE(
        in->desc.dtype, D,
        MPG_TRY(mpg_cuda_launch(call, scale_kernel<D>,
                                mpg_cuda_blocks(count_of(in), 4 * MPG_CUDA_THREADS),
                                MPG_CUDA_THREADS, 0, (D *)in->data, count_of(in),
                                (const float *)call->inputs[last].data)));
  }
  return MPG_OK;
}
