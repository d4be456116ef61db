/* Unary ops, LeakyReLU and add_n. The formulas of unary ops are in kernels/common/unary.def.
 * float32, float16 and bfloat16 have a kernel per formula, with 16-byte loads; other dtypes share
 * one kernel that selects the formula at run time. Results may overwrite the input.
 */
#include "kernels/common/unary.h"
#include "kernels/cuda/cuda.h"
extern "C" {
#include "kernels/common/formula.h"
}

namespace {

struct numbers {
  double values[MPG_UNARY_CONSTANTS];
};

#define FLOAT_ROWS(name, kind, expression_f, expression_d)         \
  struct name {                                                    \
    static MPG_MEMBER float at(float x, const double *constants) { \
      (void)constants;                                             \
      return (float)(expression_f);                                \
    }                                                              \
  };
namespace row {
#include "kernels/common/unary.def"
}

__device__ double row_of_double(int row, double x, const double *constants) {
  switch (row) {
#define FLOAT_ROWS(name, kind, expression_f, expression_d) \
  case MPG_UNARY_##name: return (expression_d);
#include "kernels/common/unary.def"
  }
  return x;
}
__device__ int64_t row_of_whole(int row, int64_t x, const double *constants) {
  switch (row) {
#define WHOLE_ROW(name, expression) \
  case MPG_UNARY_##name: return (expression);
#include "kernels/common/unary.def"
  }
  return x;
}

template <class F, class T>
__global__ void unary_kernel(const T *in, T *out, int64_t count, bool aligned, numbers constants) {
  enum { N = mpg_pack<T>::COUNT };
  int64_t begin = MPG_CUDA_INDEX * N;
  if (begin >= count) return;
  if (aligned && begin + N <= count) {
    mpg_pack<T> pack = ((const mpg_pack<T> *)in)[begin / N];
#pragma unroll
    for (int k = 0; k < N; k++)
      pack.values[k] = mpg_to<T>(F::at(mpg_to<float>(pack.values[k]), constants.values));
    ((mpg_pack<T> *)out)[begin / N] = pack;
    return;
  }
  for (int64_t i = begin; i < begin + N && i < count; i++)
    out[i] = mpg_to<T>(F::at(mpg_to<float>(in[i]), constants.values));
}

__global__ void unary_any_kernel(int row, bool whole, mpg_dtype dtype, mpg_dtype out_dtype,
                                 const void *in, void *out, int64_t count, numbers constants) {
  int64_t i = MPG_CUDA_INDEX;
  if (i >= count) return;
  if (whole)
    mpg_store_any(out_dtype, out, i,
                  row_of_whole(row, mpg_load_any<int64_t>(dtype, in, i), constants.values));
  else
    mpg_store_any(out_dtype, out, i,
                  row_of_double(row, mpg_load_any<double>(dtype, in, i), constants.values));
}

enum unary_kind { CHEAP, DEAR, WHOLE, EXACT, ROUNDING };

template <class F, class T>
mpg_status launch_fast(const mpg_kernel_call *call, const numbers &constants) {
  const T *in = (const T *)call->inputs[0].data;
  T *out = (T *)call->outputs[0].data;
  int64_t count = count_of(&call->outputs[0]);
  return mpg_cuda_launch(call, unary_kernel<F, T>,
                         mpg_cuda_blocks(count, MPG_CUDA_THREADS * mpg_pack<T>::COUNT),
                         MPG_CUDA_THREADS, 0, in, out, count,
                         mpg_cuda_aligned(in) && mpg_cuda_aligned(out), constants);
}

template <class F>
mpg_status launch_unary(const mpg_kernel_call *call, int row, unary_kind kind, numbers constants) {
  mpg_dtype dtype = call->inputs[0].desc.dtype, out_dtype = call->outputs[0].desc.dtype;
  switch (dtype == out_dtype ? dtype : MPG_DTYPE_NONE) {
    case MPG_FLOAT32: return launch_fast<F, float>(call, constants);
    case MPG_FLOAT16: return launch_fast<F, mpg_half>(call, constants);
    case MPG_BFLOAT16: return launch_fast<F, mpg_bfloat16>(call, constants);
    default: break;
  }
  bool whole = !mpg_dtype_is_float(dtype) && (kind == WHOLE || kind == EXACT || kind == ROUNDING);
  int64_t count = count_of(&call->outputs[0]);
  return mpg_cuda_launch(call, unary_any_kernel, mpg_cuda_blocks(count), MPG_CUDA_THREADS, 0,
                         kind == ROUNDING && whole ? (int)MPG_UNARY_whole : row, whole, dtype,
                         out_dtype, (const void *)call->inputs[0].data, call->outputs[0].data,
                         count, constants);
}
/* Launches the kernel for the call's formula and sets *status. Returns false if the op has no
 * formula. */
bool launch_formula(const mpg_kernel_call *call, mpg_status *status) {
  numbers constants;
  mpg_unary_constants(call->op, call->params, &call->inputs[0].desc.shape, constants.values);
  switch (mpg_formula_of(call->op, call->params).id) {
#define FLOAT_ROWS(name, kind, expression_f, expression_d)                      \
  case MPG_UNARY_##name:                                                        \
    *status = launch_unary<row::name>(call, MPG_UNARY_##name, kind, constants); \
    return true;
#include "kernels/common/unary.def"
    default: return false;
  }
}

} // namespace

mpg_status mpg_cuda_unary(const mpg_kernel_call *call) {
  mpg_status status;
  if (launch_formula(call, &status)) return status;
  return mpg_fail(MPG_NOT_IMPLEMENTED, "%s has no formula for GPUs", call->op->name);
}

/* --- LeakyReLU -------------------------------------------------------------------------------- */
namespace {

struct slopes {            /* slopes of PReLU (gamma) and RReLU */
  const void *gamma;       /* NULL for RReLU, whose slope is random or the mean of the bounds */
  int64_t channels, inner; /* gamma's index: i / inner % channels */
  mpg_cuda_key key;
  double lower, upper;
  bool random;
};

template <class C>
__global__ void prelu_kernel(mpg_dtype dtype, const void *in, void *out, void *mask, int64_t count,
                             slopes s) {
  int64_t i = MPG_CUDA_INDEX;
  if (i >= count) return;
  double slope = (s.lower + s.upper) / 2;
  if (s.gamma) {
    slope = mpg_load_any<double>(dtype, s.gamma, s.channels == 1 ? 0 : i / s.inner % s.channels);
  } else if (s.random) {
    mpg_random_key key = s.key.read();
    uint64_t position = mpg_random_position(&key, (uint64_t)i);
    mpg_philox_block words = mpg_philox(key.seed, key.call, position >> 2);
    slope = s.lower + (s.upper - s.lower) * (double)mpg_philox_uniform(words.value[position & 3]);
  }
  C x = mpg_load_any<C>(dtype, in, i);
  if (mask) mpg_store_any(dtype, mask, i, x > 0 ? 1.0 : slope);
  mpg_store_any(dtype, out, i, x > 0 ? x : x * (C)slope);
}

#define SLOPES(T, exponential, gelu_slope)                                          \
  MPG_HOST_DEVICE T leaky_slope(int type, T g, T d, T s) {                          \
    switch (type) {                                                                 \
      case MPG_LEAKY_LEAKY: return d > 0 ? g : g * s;                               \
      case MPG_LEAKY_ELU: return d > 0 ? g : g * (s * exponential(d));              \
      case MPG_LEAKY_SELU:                                                          \
        return g * (T)SELU_SCALE * (d > 0 ? (T)1 : (T)SELU_ALPHA * exponential(d)); \
      default: return g * gelu_slope(d);                                            \
    }                                                                               \
  }
SLOPES(float, mpg_expf, GELU_SLOPE_F)
SLOPES(double, exp, GELU_SLOPE_D)

template <class T, int TYPE>
__global__ void backward_leaky_kernel(const T *grad, const T *data, T *out, int64_t count,
                                      bool aligned, double slope) {
  typedef mpg_compute_t<T> C;
  enum { N = mpg_pack<T>::COUNT };
  int64_t begin = MPG_CUDA_INDEX * N;
  if (begin >= count) return;
  auto slope_at = [&](T g, T d) {
    return mpg_to<T>(leaky_slope(TYPE, mpg_to<C>(g), mpg_to<C>(d), (C)slope));
  };
  if (aligned && begin + N <= count) {
    mpg_pack<T> g = ((const mpg_pack<T> *)grad)[begin / N],
                d = ((const mpg_pack<T> *)data)[begin / N];
#pragma unroll
    for (int k = 0; k < N; k++) g.values[k] = slope_at(g.values[k], d.values[k]);
    ((mpg_pack<T> *)out)[begin / N] = g;
    return;
  }
  for (int64_t i = begin; i < begin + N && i < count; i++) out[i] = slope_at(grad[i], data[i]);
}

template <class T, int TYPE>
mpg_status backward_leaky(const mpg_kernel_call *call, double slope) {
  const T *grad = (const T *)call->inputs[0].data, *data = (const T *)call->inputs[1].data;
  T *out = (T *)call->outputs[0].data;
  int64_t count = count_of(&call->outputs[0]);
  return mpg_cuda_launch(call, backward_leaky_kernel<T, TYPE>,
                         mpg_cuda_blocks(count, MPG_CUDA_THREADS * mpg_pack<T>::COUNT),
                         MPG_CUDA_THREADS, 0, grad, data, out, count,
                         mpg_cuda_aligned(grad) && mpg_cuda_aligned(data) && mpg_cuda_aligned(out),
                         slope);
}

} // namespace

mpg_status mpg_cuda_leaky_relu(const mpg_kernel_call *call) {
  const mpg_leaky_relu_params *params = (const mpg_leaky_relu_params *)call->params;
  mpg_status status;
  if (launch_formula(call, &status)) return status;
  const mpg_desc *desc = &call->inputs[0].desc;
  int64_t count = mpg_shape_size(&desc->shape);
  slopes s = {NULL,       1, 1, mpg_cuda_key_of(call), params->lower_bound, params->upper_bound,
              call->train};
  void *mask = NULL;
  if (params->act_type == MPG_LEAKY_PRELU) {
    mpg_shape gamma = mpg_prelu_shape(&desc->shape, &call->inputs[1].desc.shape);
    int last = desc->shape.ndim > 1 && gamma.dims[1] != 1; /* last axis along which gamma varies */
    s.gamma = call->inputs[1].data;
    s.channels = count_of(&call->inputs[1]);
    s.inner = mpg_shape_product(&desc->shape, last + 1, desc->shape.ndim);
  } else {
    mask = call->outputs[1].data;
  }
  return mpg_cuda_launch(call,
                         desc->dtype == MPG_FLOAT64 ? prelu_kernel<double> : prelu_kernel<float>,
                         mpg_cuda_blocks(count), MPG_CUDA_THREADS, 0, desc->dtype,
                         (const void *)call->inputs[0].data, call->outputs[0].data, mask, count, s);
}

mpg_status mpg_cuda_backward_leaky_relu(const mpg_kernel_call *call) {
  const mpg_leaky_relu_params *params = (const mpg_leaky_relu_params *)call->params;
  MPG_CUDA_FLOAT_DTYPE(call->inputs[0].desc.dtype, T, {
    switch (params->act_type) {
      case MPG_LEAKY_LEAKY: return backward_leaky<T, MPG_LEAKY_LEAKY>(call, params->slope);
      case MPG_LEAKY_ELU: return backward_leaky<T, MPG_LEAKY_ELU>(call, params->slope);
      case MPG_LEAKY_SELU: return backward_leaky<T, MPG_LEAKY_SELU>(call, params->slope);
      default: return backward_leaky<T, MPG_LEAKY_GELU>(call, params->slope);
    }
  });
  return MPG_OK;
}

/* --- add_n: adds arrays in order -------------------------------------------------------------- */
namespace {

enum { TERMS = 32 }; /* maximum arrays per launch; longer sums use several launches */
struct terms {
  const void *data[TERMS];
  int count;
};

template <class T, class C>
__global__ void add_n_kernel(terms t, T *out, int64_t count) {
  int64_t i = MPG_CUDA_INDEX;
  if (i >= count) return;
  C sum = mpg_to<C>(((const T *)t.data[0])[i]);
  for (int k = 1; k < t.count; k++) sum = sum + mpg_to<C>(((const T *)t.data[k])[i]);
  out[i] = mpg_to<T>(sum);
}

/* Adds the arrays of one launch, for a sum that needs several launches. The running sum is kept in
 * scratch memory in the compute type, so the result is rounded only once. */
template <class T, class C>
__global__ void add_more_kernel(terms t, C *sums, T *out, int64_t count, bool first) {
  int64_t i = MPG_CUDA_INDEX;
  if (i >= count) return;
  C sum = first ? mpg_to<C>(((const T *)t.data[0])[i]) : sums[i];
  for (int k = first; k < t.count; k++) sum = sum + mpg_to<C>(((const T *)t.data[k])[i]);
  sums[i] = sum;
  if (out) out[i] = mpg_to<T>(sum);
}

template <class T>
struct sum_type {
  typedef uint64_t type;
}; /* sums of integers wrap around */
template <>
struct sum_type<float> {
  typedef float type;
};
template <>
struct sum_type<mpg_half> {
  typedef float type;
};
template <>
struct sum_type<mpg_bfloat16> {
  typedef float type;
};
template <>
struct sum_type<double> {
  typedef double type;
};

template <class T>
mpg_status launch_add_n(const mpg_kernel_call *call) {
  typedef typename sum_type<T>::type C;
  int64_t count = count_of(&call->outputs[0]);
  T *out = (T *)call->outputs[0].data;
  if (!count) return MPG_OK;
  C *sums = NULL;
  if (call->num_inputs > TERMS &&
      !(sums = (C *)mpg_device_scratch(call->device, (size_t)count * sizeof(C))))
    return MPG_DEVICE_OUT_OF_MEMORY;
  for (int done = 0; done < call->num_inputs;) {
    terms t;
    for (t.count = 0; t.count < TERMS && done + t.count < call->num_inputs; t.count++)
      t.data[t.count] = call->inputs[done + t.count].data;
    if (!sums)
      return mpg_cuda_launch(call, add_n_kernel<T, C>, mpg_cuda_blocks(count), MPG_CUDA_THREADS, 0,
                             t, out, count);
    bool first = done == 0;
    done += t.count;
    MPG_TRY(mpg_cuda_launch(call, add_more_kernel<T, C>, mpg_cuda_blocks(count), MPG_CUDA_THREADS,
                            0, t, sums, done == call->num_inputs ? out : (T *)NULL, count, first));
  }
  return MPG_OK;
}

} // namespace

mpg_status mpg_cuda_add_n(const mpg_kernel_call *call) {
  MPG_CUDA_DTYPE(call->inputs[0].desc.dtype, T, return launch_add_n<T>(call));
  return MPG_OK;
}
