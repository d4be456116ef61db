/* Binary ops on two arrays with broadcasting, or on an array and a scalar. The formulas are in
 * kernels/common/binary.def.
 *
 * Adjacent dimensions are merged if the same operands are broadcast along them. If a single
 * dimension remains, elements are processed 16 bytes at a time; otherwise each thread computes its
 * operands' offsets. float32, float16 and bfloat16 have a kernel per formula; other dtypes share
 * one kernel that selects the formula at run time. Results may overwrite an operand.
 */
#include "kernels/common/binary.h"
#include "kernels/common/index.h"
#include "kernels/cuda/cuda.h"
extern "C" {
#include "kernels/common/formula.h"
}

namespace {

#define FLOAT_ROWS(name, kind, price, expression_f, expression_d)                  \
  struct name {                                                                    \
    static MPG_MEMBER float at(float x, float y) { return (float)(expression_f); } \
  };
namespace row {
#include "kernels/common/binary.def"
}

#define BY_NUMBER(T, suffix)                        \
  __device__ T row_of_##suffix(int row, T x, T y) { \
    switch (row) {
#define END_BY_NUMBER \
  }                   \
  return x;           \
  }
BY_NUMBER(float, float)
#define FLOAT_ROWS(name, kind, price, expression_f, expression_d) \
  case MPG_BINARY_##name: return (float)(expression_f);
#include "kernels/common/binary.def"
END_BY_NUMBER
BY_NUMBER(double, double)
#define FLOAT_ROWS(name, kind, price, expression_f, expression_d) \
  case MPG_BINARY_##name: return (expression_d);
#include "kernels/common/binary.def"
END_BY_NUMBER
BY_NUMBER(int32_t, int32)
#define INT32_ROW(name, expression) \
  case MPG_BINARY_##name: return (expression);
#include "kernels/common/binary.def"
END_BY_NUMBER
BY_NUMBER(int64_t, int64)
#define INT64_ROW(name, expression) \
  case MPG_BINARY_##name: return (expression);
#include "kernels/common/binary.def"
END_BY_NUMBER

/* Merged dimensions, dims[0] innermost. Strides are in elements. A stride of 0 broadcasts the
 * operand along the dimension. */
struct places {
  int ndim;
  int64_t dims[MPG_MAX_NDIM], stride_a[MPG_MAX_NDIM], stride_b[MPG_MAX_NDIM];
};
/* A scalar operand, in the compute type. */
union number {
  float f32;
  double f64;
  int32_t i32;
  int64_t i64;
};

/* Bits of operands::how. NUMBER: the operand is the scalar. VARYING: it varies along the result.
 * Neither: all results use its first element. */
enum { VARYING_A = 1, VARYING_B = 2, NUMBER_A = 4, NUMBER_B = 8 };

/* Computes the offsets in both operands of result element `index`. U is uint32_t if it can hold all
 * indices, since 32-bit divisions are much faster. */
template <class U>
MPG_HOST_DEVICE void find_places(const places &p, int64_t index, int64_t *a, int64_t *b) {
  U rest = (U)index;
  int64_t ia = 0, ib = 0;
  for (int d = 0; d < p.ndim; d++) {
    U next = d + 1 < p.ndim ? rest / (U)p.dims[d] : 0, at = rest - next * (U)p.dims[d];
    ia += (int64_t)at * p.stride_a[d];
    ib += (int64_t)at * p.stride_b[d];
    rest = next;
  }
  *a = ia;
  *b = ib;
}

template <class F, class T>
__global__ void linear_kernel(const T *a, const T *b, T *out, int64_t count, int how, float value,
                              bool aligned) {
  enum { N = mpg_pack<T>::COUNT };
  int64_t begin = MPG_CUDA_INDEX * N;
  if (begin >= count) return;
  float fixed_a = how & NUMBER_A ? value : how & VARYING_A ? 0.0f : mpg_to<float>(a[0]);
  float fixed_b = how & NUMBER_B ? value : how & VARYING_B ? 0.0f : mpg_to<float>(b[0]);
  if (aligned && begin + N <= count) {
    mpg_pack<T> pa = {}, pb = {};
    if (how & VARYING_A) pa = ((const mpg_pack<T> *)a)[begin / N];
    if (how & VARYING_B) pb = ((const mpg_pack<T> *)b)[begin / N];
    mpg_pack<T> result;
#pragma unroll
    for (int k = 0; k < N; k++)
      result.values[k] = mpg_to<T>(F::at(how & VARYING_A ? mpg_to<float>(pa.values[k]) : fixed_a,
                                         how & VARYING_B ? mpg_to<float>(pb.values[k]) : fixed_b));
    ((mpg_pack<T> *)out)[begin / N] = result;
    return;
  }
  for (int64_t i = begin; i < begin + N && i < count; i++)
    out[i] = mpg_to<T>(F::at(how & VARYING_A ? mpg_to<float>(a[i]) : fixed_a,
                             how & VARYING_B ? mpg_to<float>(b[i]) : fixed_b));
}

template <class F, class T>
__global__ void broadcast_kernel(const T *a, const T *b, T *out, int64_t count, places p) {
  int64_t i = MPG_CUDA_INDEX, ia, ib;
  if (i >= count) return;
  if (count <= 0x7fffffff)
    find_places<uint32_t>(p, i, &ia, &ib);
  else
    find_places<uint64_t>(p, i, &ia, &ib);
  out[i] = mpg_to<T>(F::at(mpg_to<float>(a[ia]), mpg_to<float>(b[ib])));
}

/* Computes any formula for any dtypes. `compute` is the type of the arithmetic: 'f' (float), 'd'
 * (double), 'i' (int32_t) or 'l' (int64_t). */
__global__ void any_kernel(int row, char compute, mpg_dtype dtype, mpg_dtype out_dtype,
                           const void *a, const void *b, void *out, int64_t count, int how,
                           number value, places p) {
  int64_t i = MPG_CUDA_INDEX, ia, ib;
  if (i >= count) return;
  find_places<uint64_t>(p, i, &ia, &ib);
#define COMPUTE(T, field, function)                                   \
  T x = how & NUMBER_A ? value.field : mpg_load_any<T>(dtype, a, ia); \
  T y = how & NUMBER_B ? value.field : mpg_load_any<T>(dtype, b, ib); \
  mpg_store_any(out_dtype, out, i, function(row, x, y))
  if (compute == 'f') {
    COMPUTE(float, f32, row_of_float);
  } else if (compute == 'd') {
    COMPUTE(double, f64, row_of_double);
  } else if (compute == 'i') {
    COMPUTE(int32_t, i32, row_of_int32);
  } else {
    COMPUTE(int64_t, i64, row_of_int64);
  }
}

struct operands {
  const void *a, *b;
  void *out;
  mpg_dtype dtype, out_dtype;
  int64_t count;
  int how;     /* VARYING and NUMBER bits */
  bool linear; /* true if a single merged dimension remains */
  double scalar;
  places at;
};

template <class F, class T>
mpg_status launch_fast(const mpg_kernel_call *call, const operands &o) {
  const T *a = (const T *)o.a, *b = (const T *)o.b;
  T *out = (T *)o.out;
  if (!o.linear)
    return mpg_cuda_launch(call, broadcast_kernel<F, T>, mpg_cuda_blocks(o.count), MPG_CUDA_THREADS,
                           0, a, b, out, o.count, o.at);
  bool aligned = mpg_cuda_aligned(out) && (!(o.how & VARYING_A) || mpg_cuda_aligned(a)) &&
                 (!(o.how & VARYING_B) || mpg_cuda_aligned(b));
  float value = mpg_to<float>(mpg_to<T>(o.scalar)); /* the scalar, rounded to the dtype */
  return mpg_cuda_launch(call, linear_kernel<F, T>,
                         mpg_cuda_blocks(o.count, MPG_CUDA_THREADS * mpg_pack<T>::COUNT),
                         MPG_CUDA_THREADS, 0, a, b, out, o.count, o.how, value, aligned);
}

enum row_kind { ALL, FLOATS };

float rounded_scalar(double value, mpg_dtype dtype) {
  return dtype == MPG_FLOAT16    ? mpg_to<float>(mpg_to<mpg_half>(value))
         : dtype == MPG_BFLOAT16 ? mpg_to<float>(mpg_to<mpg_bfloat16>(value))
                                 : (float)value;
}

template <class F>
mpg_status launch_row(const mpg_kernel_call *call, int row, row_kind kind, const operands &o) {
  bool same = o.dtype == o.out_dtype;
  switch (o.dtype) {
    case MPG_FLOAT32:
      if (same) return launch_fast<F, float>(call, o);
      break;
    case MPG_FLOAT16:
      if (same) return launch_fast<F, mpg_half>(call, o);
      break;
    case MPG_BFLOAT16:
      if (same) return launch_fast<F, mpg_bfloat16>(call, o);
      break;
    default: break;
  }
  /* NumPy compares integers with the number itself, not with its integer part. */
  bool part = !same && o.scalar != trunc(o.scalar);
  char compute = o.dtype == MPG_FLOAT64 || kind == FLOATS ? 'd'
                 : mpg_dtype_is_float(o.dtype)            ? 'f'
                 : part                                   ? 'd'
                 : o.dtype == MPG_INT64                   ? 'l'
                                                          : 'i';
  number value;
  if (compute == 'f')
    value.f32 = rounded_scalar(o.scalar, o.dtype);
  else if (compute == 'd')
    value.f64 = o.scalar;
  else if (compute == 'l')
    value.i64 = mpg_whole(o.scalar);
  else {
    /* Clamps to int32_t, so that comparisons with larger scalars are correct. */
    int64_t whole = mpg_whole(o.scalar);
    value.i32 = whole > INT32_MAX ? INT32_MAX : whole < INT32_MIN ? INT32_MIN : (int32_t)whole;
  }
  return mpg_cuda_launch(call, any_kernel, mpg_cuda_blocks(o.count), MPG_CUDA_THREADS, 0, row,
                         compute, o.dtype, o.out_dtype, o.a, o.b, o.out, o.count, o.how, value,
                         o.at);
}

mpg_status launch_binary(const mpg_kernel_call *call, mpg_formula formula, const operands &o) {
  switch (formula.id) {
#define FLOAT_ROWS(name, kind, price, expression_f, expression_d) \
  case MPG_BINARY_##name: return launch_row<row::name>(call, formula.id, kind, o);
#include "kernels/common/binary.def"
    default: return mpg_fail(MPG_NOT_IMPLEMENTED, "%s has no formula for GPUs", call->op->name);
  }
}

void collapse(operands *o, const mpg_shape *a, const mpg_shape *b, const mpg_shape *out) {
  int64_t step_a = 1, step_b = 1;
  int before = -1;
  places *p = &o->at;
  p->ndim = 0;
  for (int i = 1; i <= out->ndim; i++) {
    int64_t n = out->dims[out->ndim - i];
    if (n == 1) continue;
    int64_t na = i <= a->ndim ? a->dims[a->ndim - i] : 1,
            nb = i <= b->ndim ? b->dims[b->ndim - i] : 1;
    int varying = (na != 1 ? VARYING_A : 0) | (nb != 1 ? VARYING_B : 0);
    if (varying == before) {
      p->dims[p->ndim - 1] *= n;
    } else {
      p->dims[p->ndim] = n;
      p->stride_a[p->ndim] = varying & VARYING_A ? step_a : 0;
      p->stride_b[p->ndim] = varying & VARYING_B ? step_b : 0;
      p->ndim++;
      before = varying;
    }
    step_a *= na;
    step_b *= nb;
  }
  o->linear = p->ndim <= 1;
  o->how = p->ndim == 1 ? before : VARYING_A | VARYING_B;
}

void places_of_line(places *p, int64_t count) {
  p->ndim = 1;
  p->dims[0] = count;
  p->stride_a[0] = p->stride_b[0] = 1;
}

} // namespace

mpg_status mpg_cuda_binary(const mpg_kernel_call *call) {
  const mpg_view *a = &call->inputs[0], *b = &call->inputs[1], *out = &call->outputs[0];
  operands o = {};
  o.a = a->data;
  o.b = b->data;
  o.out = out->data;
  o.dtype = a->desc.dtype;
  o.out_dtype = out->desc.dtype;
  o.count = count_of(out);
  collapse(&o, &a->desc.shape, &b->desc.shape, &out->desc.shape);
  return launch_binary(call, mpg_formula_of(call->op, call->params), o);
}

mpg_status mpg_cuda_scalar(const mpg_kernel_call *call) {
  operands o = {};
  o.a = call->inputs[0].data;
  o.out = call->outputs[0].data;
  o.dtype = call->inputs[0].desc.dtype;
  o.out_dtype = call->outputs[0].desc.dtype;
  o.count = count_of(&call->outputs[0]);
  o.linear = true;
  o.scalar = ((const mpg_scalar_params *)call->params)->scalar;
  places_of_line(&o.at, o.count);
  mpg_formula formula = mpg_formula_of(call->op, call->params);
  o.b = formula.swap || formula.of_itself ? o.a : NULL;
  o.how = formula.of_itself ? VARYING_A | VARYING_B
          : formula.swap    ? VARYING_B | NUMBER_A
                            : VARYING_A | NUMBER_B;
  return launch_binary(call, formula, o);
}
