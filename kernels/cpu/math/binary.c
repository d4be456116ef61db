/* Binary ops: two arrays with broadcasting, or an array and a scalar.
 *
 * A row function computes one run of elements. In a run, each operand either advances or is
 * broadcast. Bits 0 and 1 of `varying` are set for operands that advance. An op has one row
 * function per compute type (convert.h); if it has none for an integer type, it is computed in
 * double. Comparisons, and ops whose 8-bit results are the low bits of their int32_t results, also
 * have row functions for bytes. Shapes are collapsed to the fewest dimensions along which both
 * operands keep advancing or repeating, so that runs are as long as possible. If runs are short, a
 * broadcast operand is expanded (expand.h). Results may overwrite an operand: only result i reads
 * element i, before it is written.
 */
#include <math.h>

#include "kernels/common/binary.h"
#include "kernels/common/formula.h"
#include "kernels/cpu/math/binary.h"
#include "kernels/cpu/convert.h"
#include "kernels/cpu/expand.h"
#include "kernels/cpu/halves.h"

typedef void (*row_fn)(const void *a, const void *b, void *out, int64_t count, int varying);

#define ROW(name, suffix, T, expression)                                                          \
  static void name##_##suffix(const void *pa, const void *pb, void *po, int64_t n, int varying) { \
    const T *a = pa, *b = pb;                                                                     \
    T *out = po;                                                                                  \
    if (varying == 3) {                                                                           \
      MPG_INDEPENDENT for (int64_t i = 0; i < n; i++) {                                           \
        T x = a[i], y = b[i];                                                                     \
        out[i] = (expression);                                                                    \
      }                                                                                           \
    } else if (varying == 1) {                                                                    \
      const T y = *b;                                                                             \
      MPG_INDEPENDENT for (int64_t i = 0; i < n; i++) {                                           \
        T x = a[i];                                                                               \
        out[i] = (expression);                                                                    \
      }                                                                                           \
    } else {                                                                                      \
      const T x = *a;                                                                             \
      MPG_INDEPENDENT for (int64_t i = 0; i < n; i++) {                                           \
        T y = b[varying ? i : 0];                                                                 \
        out[i] = (expression);                                                                    \
      }                                                                                           \
    }                                                                                             \
  }
/* Defines a row function for halves without an intermediate buffer, for formulas that are cheaper
 * than buffering. A broadcast operand becomes a group of equal elements. The last group is padded
 * with zeros. */
#define HALF_ROW(name, suffix, expression)                                                      \
  MPG_HALVES_INLINE void name##_group_##suffix(const uint16_t *a, const uint16_t *b,            \
                                               uint16_t *out) {                                 \
    float left[MPG_HALVES], right[MPG_HALVES], results[MPG_HALVES];                             \
    mpg_load_##suffix(a, left);                                                                 \
    mpg_load_##suffix(b, right);                                                                \
    for (int k = 0; k < MPG_HALVES; k++) {                                                      \
      float x = left[k], y = right[k];                                                          \
      results[k] = (expression);                                                                \
    }                                                                                           \
    mpg_store_computed_##suffix(results, out);                                                  \
  }                                                                                             \
  __attribute__((unused)) static void name##_##suffix(const void *pa, const void *pb, void *po, \
                                                      int64_t n, int varying) {                 \
    uint16_t still_a[MPG_HALVES] = {0}, still_b[MPG_HALVES] = {0}, rest[MPG_HALVES];            \
    int64_t step_a = varying & 1 ? MPG_HALVES : 0, step_b = varying & 2 ? MPG_HALVES : 0;       \
    const uint16_t *a = step_a ? pa : same_halves(pa, still_a),                                 \
                   *b = step_b ? pb : same_halves(pb, still_b);                                 \
    uint16_t *out = po;                                                                         \
    for (; n >= MPG_HALVES; n -= MPG_HALVES, a += step_a, b += step_b, out += MPG_HALVES)       \
      name##_group_##suffix(a, b, out);                                                         \
    if (!n) return;                                                                             \
    if (step_a) a = memcpy(still_a, a, (size_t)n * sizeof *a);                                  \
    if (step_b) b = memcpy(still_b, b, (size_t)n * sizeof *b);                                  \
    name##_group_##suffix(a, b, rest);                                                          \
    memcpy(out, rest, (size_t)n * sizeof *rest);                                                \
  }
static const uint16_t *same_halves(const uint16_t *element, uint16_t *group) {
  for (int k = 0; k < MPG_HALVES; k++) group[k] = *element;
  return group;
}
#define FLOAT_ROWS(name, kind, price, expression_f, expression_d) \
  ROW(name, f32, float, expression_f)                             \
  ROW(name, f64, double, expression_d)                            \
  HALF_ROW(name, f16, expression_f) HALF_ROW(name, bf16, expression_f)
#define INT32_ROW(name, expression) ROW(name, i32, int32_t, expression)
#define INT64_ROW(name, expression) ROW(name, i64, int64_t, expression)
/* Defines a row function with two formulas, which are bit-identical where both are valid. `near` is
 * valid only for operands that satisfy `right`. A block that contains any other operands uses
 * `far`. */
#define LIMITED_ROW(name, suffix, T, right, near, far)                                            \
  ROW(name##_near, suffix, T, near)                                                               \
  ROW(name##_far, suffix, T, far)                                                                 \
  static void name##_##suffix(const void *pa, const void *pb, void *po, int64_t n, int varying) { \
    const T *a = pa, *b = pb;                                                                     \
    T *out = po;                                                                                  \
    int64_t step_a = varying & 1, step_b = varying >> 1 & 1, count;                               \
    for (; n > 0; n -= count, a += step_a * count, b += step_b * count, out += count) {           \
      count = n < MPG_CPU_BLOCK ? n : MPG_CPU_BLOCK;                                              \
      int outside = 0;                                                                            \
      for (int64_t i = 0; i < count; i++) {                                                       \
        T x = a[step_a * i], y = b[step_b * i];                                                   \
        outside |= !(right);                                                                      \
      }                                                                                           \
      (outside ? name##_far_##suffix : name##_near_##suffix)(a, b, out, count, varying);          \
    }                                                                                             \
  }
#define LIMITED_ROWS(name, kind, price, right_f, near_f, far_f, right_d, near_d, far_d) \
  LIMITED_ROW(name, f32, float, right_f, near_f, far_f)                                 \
  LIMITED_ROW(name, f64, double, right_d, near_d, far_d)
#include "kernels/common/binary.def"
#define LEAK x > 0 ? x : x * y
ROW(leak, f32, float, LEAK)
ROW(leak, f64, double, LEAK)
HALF_ROW(leak, f16, LEAK)
HALF_ROW(leak, bf16, LEAK)

#define BYTE_ROWS(name, expression) \
  ROW(name, u8, uint8_t, expression) ROW(name, i8, int8_t, expression)
BYTE_ROWS(add, x + y)
BYTE_ROWS(sub, x - y)
BYTE_ROWS(mul, x *y)
BYTE_ROWS(maximum, x > y ? x : y)
BYTE_ROWS(minimum, x < y ? x : y)
BYTE_ROWS(bitwise_and, x &y)
BYTE_ROWS(bitwise_or, x | y)
BYTE_ROWS(bitwise_xor, x ^ y)
BYTE_ROWS(equal, x == y)
BYTE_ROWS(not_equal, x != y)
BYTE_ROWS(greater, x > y)
BYTE_ROWS(greater_equal, x >= y)
BYTE_ROWS(lesser, x < y)
BYTE_ROWS(lesser_equal, x <= y)

/* Returns the byte version of an op's int32_t row function, or NULL if the op has none. */
static row_fn byte_row(row_fn of_int32, mpg_dtype dtype) {
#define BYTES(name) \
  { name##_i32, name##_u8, name##_i8 }
  static const row_fn rows[][3] = {BYTES(add),        BYTES(sub),          BYTES(mul),
                                   BYTES(maximum),    BYTES(minimum),      BYTES(equal),
                                   BYTES(not_equal),  BYTES(greater),      BYTES(greater_equal),
                                   BYTES(lesser),     BYTES(lesser_equal), BYTES(bitwise_and),
                                   BYTES(bitwise_or), BYTES(bitwise_xor)};
  if (dtype != MPG_UINT8 && dtype != MPG_INT8) return NULL;
  for (size_t k = 0; k < sizeof rows / sizeof rows[0]; k++)
    if (rows[k][0] == of_int32) return rows[k][dtype == MPG_UINT8 ? 1 : 2];
  return NULL;
}

enum { CHEAP, DEAR };
typedef struct binary_op {
  row_fn rows[MPG_COMPUTE_COUNT];
  row_fn f16, bf16; /* NULL to compute in float, block by block */
  bool dear;        /* costly, so a thread pays off for fewer elements */
} binary_op;

#define HALVES_CHEAP(name) name##_f16, name##_bf16 /* for CHEAP formulas */
#define HALVES_DEAR(name) NULL, NULL
#define FLOATS(name) {name##_f32, name##_f64, NULL, NULL}
#define ALL(name) {name##_f32, name##_f64, name##_i32, name##_i64}

static const binary_op *find(int formula) {
  static const binary_op formulas[MPG_FORMULA_COUNT] = {
#define FLOAT_ROWS(name, kind, price, expression_f, expression_d) \
  [MPG_BINARY_##name] = {kind(name), HALVES_##price(name), price},
#include "kernels/common/binary.def"
  };
  return &formulas[formula];
}

/* Plan over collapsed shapes; dims[0] is innermost. Strides are in elements, 0 if the operand is
 * broadcast. */
typedef struct plan {
  row_fn row;
  mpg_compute compute;
  mpg_dtype dtype, out_dtype;
  bool direct; /* the row function works on the stored dtypes, without conversion */
  const char *a, *b;
  char *out;
  size_t size, out_size;
  int ndim;
  int64_t dims[MPG_MAX_NDIM], stride_a[MPG_MAX_NDIM], stride_b[MPG_MAX_NDIM];
} plan;

static int64_t collapse(plan *p, const mpg_shape *a, const mpg_shape *b, const mpg_shape *out) {
  int64_t step_a = 1, step_b = 1, total = 1;
  int varying_before = -1;
  p->ndim = 0;
  for (int i = 1; i <= out->ndim; i++) {
    int64_t n = out->dims[out->ndim - i];
    total *= n;
    if (n == 1) continue;
    int64_t na = i <= a->ndim ? a->dims[a->ndim - i] : 1,
            nb = i <= b->ndim ? b->dims[b->ndim - i] : 1;
    int varying = (na != 1) | (nb != 1) << 1;
    if (varying == varying_before) {
      p->dims[p->ndim - 1] *= n;
    } else {
      p->dims[p->ndim] = n;
      p->stride_a[p->ndim] = varying & 1 ? step_a : 0;
      p->stride_b[p->ndim] = varying & 2 ? step_b : 0;
      p->ndim++;
      varying_before = varying;
    }
    step_a *= na;
    step_b *= nb;
  }
  return total;
}

/* Computes one run of `count` results, starting at element io. The operands start at elements ia
 * and ib. */
static void run(const plan *p, int64_t ia, int64_t ib, int64_t io, int64_t count, int varying) {
  if (p->direct) {
    p->row(p->a + ia * (int64_t)p->size, p->b + ib * (int64_t)p->size,
           p->out + io * (int64_t)p->out_size, count, varying);
    return;
  }
  mpg_block_buffer ba, bb, bo;
  const void *va = NULL, *vb = NULL;
  if (!(varying & 1)) va = mpg_cpu_load(p->compute, p->dtype, p->a, ia, 1, &ba);
  if (!(varying & 2)) vb = mpg_cpu_load(p->compute, p->dtype, p->b, ib, 1, &bb);
  for (int64_t done = 0; done < count; done += MPG_CPU_BLOCK) {
    int64_t n = count - done < MPG_CPU_BLOCK ? count - done : MPG_CPU_BLOCK;
    if (varying & 1) va = mpg_cpu_load(p->compute, p->dtype, p->a, ia + done, n, &ba);
    if (varying & 2) vb = mpg_cpu_load(p->compute, p->dtype, p->b, ib + done, n, &bb);
    p->row(va, vb, &bo, n, varying);
    mpg_cpu_store(p->compute, p->out_dtype, p->out, io + done, n, &bo);
  }
}

static void run_equal(void *context, int64_t begin, int64_t end) {
  const plan *p = context;
  run(p, begin, begin, begin, end - begin, 3);
}

static void run_broadcast(void *context, int64_t begin, int64_t end) {
  const plan *p = context;
  int64_t index[MPG_MAX_NDIM], rest = begin, ia = 0, ib = 0;
  for (int d = 0; d < p->ndim; d++) {
    index[d] = rest % p->dims[d];
    rest /= p->dims[d];
    ia += index[d] * p->stride_a[d];
    ib += index[d] * p->stride_b[d];
  }
  int varying = (p->stride_a[0] != 0) | (p->stride_b[0] != 0) << 1;
  while (begin < end) {
    int64_t n = p->dims[0] - index[0];
    if (n > end - begin) n = end - begin;
    run(p, ia, ib, begin, n, varying);
    begin += n;
    /* Advance to the start of the next run. */
    ia -= index[0] * p->stride_a[0];
    ib -= index[0] * p->stride_b[0];
    index[0] = 0;
    for (int d = 1; d < p->ndim; d++) {
      ia += p->stride_a[d];
      ib += p->stride_b[d];
      if (++index[d] < p->dims[d]) break;
      ia -= p->dims[d] * p->stride_a[d];
      ib -= p->dims[d] * p->stride_b[d];
      index[d] = 0;
    }
  }
}

static bool contiguous(const plan *p, const int64_t *strides) {
  for (int d = 0; d < p->ndim; d++)
    if (!strides[d]) return false;
  return true;
}

/* Computes short rows, as many at a time as fit into a block, with broadcast operands expanded. */
static void run_short(void *context, int64_t begin, int64_t end) {
  const plan *p = context;
  mpg_expand_buffer buffers[2];
  int64_t n = p->dims[0], most = MPG_CPU_BLOCK / n, size = (int64_t)p->size;
  const char *data[2] = {p->a, p->b}, *from[2];
  const int64_t *strides[2] = {p->stride_a, p->stride_b};
  bool moves[2], same[2]; /* contiguous, like the result; same contents in every block */
  for (int k = 0; k < 2; k++) {
    moves[k] = contiguous(p, strides[k]);
    same[k] = p->ndim == 2 && !strides[k][1];
    from[k] = buffers[k];
  }
  for (int64_t row = begin; row < end; row += most) {
    int64_t rows = end - row < most ? end - row : most;
    for (int k = 0; k < 2; k++) {
      if (moves[k])
        from[k] = data[k] + row * n * size;
      else if (!same[k] || row == begin)
        mpg_expand(data[k], p->size, p->ndim, p->dims, strides[k], row, rows, buffers[k]);
    }
    plan block = {.row = p->row,
                  .compute = p->compute,
                  .dtype = p->dtype,
                  .out_dtype = p->out_dtype,
                  .direct = p->direct,
                  .a = from[0],
                  .b = from[1],
                  .out = p->out + row * n * (int64_t)p->out_size,
                  .size = p->size,
                  .out_size = p->out_size};
    run(&block, 0, 0, 0, rows * n, 3);
  }
}

static int64_t grain_of(const binary_op *op, mpg_dtype dtype) {
  return op->dear ? 4096 : mpg_dtype_size(dtype) > 4 ? 16384 : 32768;
}

/* The result has the dtype of the operands, or is bool. */
static void prepare(plan *p, const binary_op *op, mpg_dtype dtype, mpg_dtype out_dtype) {
  p->dtype = dtype;
  p->out_dtype = out_dtype;
  p->size = mpg_dtype_size(dtype);
  p->out_size = mpg_dtype_size(out_dtype);
  p->compute = mpg_compute_of(dtype);
  if (!op->rows[p->compute]) p->compute = MPG_COMPUTE_F64;
  row_fn half = dtype != out_dtype      ? NULL
                : dtype == MPG_FLOAT16  ? op->f16
                : dtype == MPG_BFLOAT16 ? op->bf16
                                        : NULL;
  p->row = half ? half : op->rows[p->compute];
  p->direct = half || (dtype == out_dtype && mpg_compute_direct(p->compute, dtype));
}

static void run_plan(const mpg_kernel_call *call, plan *p, const mpg_view *a, const mpg_view *b,
                     const mpg_view *out, int64_t grain) {
  p->a = a->data;
  p->b = b->data;
  p->out = out->data;
  if (mpg_shape_equal(&a->desc.shape, &b->desc.shape)) {
    mpg_cpu_parallel_for(call, mpg_shape_size(&out->desc.shape), grain, run_equal, p);
    return;
  }
  int64_t total = collapse(p, &a->desc.shape, &b->desc.shape, &out->desc.shape);
  if (p->ndim == 0) { /* single element */
    p->ndim = 1;
    p->dims[0] = 1;
    p->stride_a[0] = p->stride_b[0] = 1;
  }
  if (p->ndim > 1 && p->dims[0] <= MPG_EXPAND_ROW && total > 0)
    mpg_cpu_parallel_for(call, total / p->dims[0], 1 + grain / p->dims[0], run_short, p);
  else
    mpg_cpu_parallel_for(call, total, grain, run_broadcast, p);
}

mpg_status mpg_cpu_binary(const mpg_kernel_call *call) {
  const binary_op *op = find(mpg_formula_by_op(call->op->id));
  plan p;
  mpg_dtype dtype = call->inputs[0].desc.dtype;
  prepare(&p, op, dtype, call->outputs[0].desc.dtype);
  row_fn bytes = byte_row(p.row, dtype);
  if (bytes) p.row = bytes, p.direct = true;
  run_plan(call, &p, &call->inputs[0], &call->inputs[1], &call->outputs[0], grain_of(op, dtype));
  return MPG_OK;
}

void mpg_cpu_leak(const mpg_kernel_call *call, const mpg_view *a, const mpg_view *b,
                  const mpg_view *out) {
  static const binary_op op = {FLOATS(leak), HALVES_CHEAP(leak), CHEAP};
  plan p;
  prepare(&p, &op, a->desc.dtype, a->desc.dtype);
  run_plan(call, &p, a, b, out, grain_of(&op, a->desc.dtype));
}

typedef struct scalar_plan {
  row_fn row;
  mpg_compute compute;
  mpg_dtype dtype, out_dtype;
  bool direct, swap;
  const void *data;
  void *out;
  union {
    double f64;
    float f32;
    int64_t i64;
    int32_t i32;
    uint16_t u16;
    uint8_t u8;
  } number; /* the scalar, in the row function's type */
} scalar_plan;

static void run_scalar(void *context, int64_t begin, int64_t end) {
  const scalar_plan *p = context;
  mpg_block_buffer in, result;
  int64_t step = p->direct ? end - begin : MPG_CPU_BLOCK, size = (int64_t)mpg_dtype_size(p->dtype),
          out_size = (int64_t)mpg_dtype_size(p->out_dtype);
  for (int64_t i = begin; i < end; i += step) {
    int64_t n = end - i < step ? end - i : step;
    const void *values = p->direct ? (const char *)p->data + i * size
                                   : mpg_cpu_load(p->compute, p->dtype, p->data, i, n, &in);
    void *place = p->direct ? (void *)((char *)p->out + i * out_size) : &result;
    if (p->swap)
      p->row(&p->number, values, place, n, 2);
    else
      p->row(values, &p->number, place, n, 1);
    if (!p->direct) mpg_cpu_store(p->compute, p->out_dtype, p->out, i, n, place);
  }
}

/* Runs a row function with the scalar expanded to a block. If the scalar were in a register, the
 * formula's branches on it would prevent vectorization. */
static void run_filled(void *context, int64_t begin, int64_t end) {
  const scalar_plan *p = context;
  mpg_block_buffer in, result, numbers;
  for (int k = 0; k < MPG_CPU_BLOCK && p->compute == MPG_COMPUTE_F32; k++)
    numbers.f32[k] = p->number.f32;
  for (int k = 0; k < MPG_CPU_BLOCK && p->compute == MPG_COMPUTE_F64; k++)
    numbers.f64[k] = p->number.f64;
  for (int64_t i = begin; i < end; i += MPG_CPU_BLOCK) {
    int64_t n = end - i < MPG_CPU_BLOCK ? end - i : MPG_CPU_BLOCK;
    const void *values = mpg_cpu_load(p->compute, p->dtype, p->data, i, n, &in);
    void *place = mpg_cpu_place(p->compute, p->dtype, p->out, i, &result);
    p->row(p->swap ? &numbers : values, p->swap ? values : &numbers, place, n, 3);
    mpg_cpu_store(p->compute, p->dtype, p->out, i, n, place);
  }
}

/* Row functions for powers with special exponents. Like powf, they round once, from double
 * precision. */
#define POWER_ROW(name, expression)                                                          \
  static void name(const void *pa, const void *exponent, void *po, int64_t n, int varying) { \
    const float *a = pa;                                                                     \
    float *out = po;                                                                         \
    (void)exponent, (void)varying;                                                           \
    MPG_INDEPENDENT for (int64_t i = 0; i < n; i++) {                                        \
      float x = a[i];                                                                        \
      out[i] = (expression);                                                                 \
    }                                                                                        \
  }
/* Computes x^3 with x^2 represented as the sum of two floats. If |x| is 2^43 or more, the result is
 * infinite, and the low part is omitted because adding it could give NaN. */
static inline float cube_of(float x) {
#ifdef MPG_MATH_FUSED
  float square = x * x, low = fmaf(x, x, -square) * x;
  return fmaf(square, x, square < 0x1p86f ? low : 0);
#else
  return (float)((double)x * x * x);
#endif
}
POWER_ROW(cube, cube_of(x))
POWER_ROW(fourth, (float)(((double)x * x) * ((double)x * x)))
POWER_ROW(root, x == -INFINITY ? INFINITY : sqrtf(x) + 0.0f) /* + 0.0f turns -0 into 0 */
POWER_ROW(inverse, 1 / x)
POWER_ROW(inverse_square, (float)(1 / ((double)x * x)))

static row_fn power_row(double exponent) {
  return exponent == 3     ? cube
         : exponent == 4   ? fourth
         : exponent == 0.5 ? root
         : exponent == -1  ? inverse
         : exponent == -2  ? inverse_square
                           : NULL;
}

mpg_status mpg_cpu_scalar(const mpg_kernel_call *call) {
  const mpg_formula formula = mpg_formula_of(call->op, call->params);
  const binary_op *op = find(formula.id);
  const mpg_scalar_params *params = call->params;
  plan base;
  mpg_dtype dtype = call->inputs[0].desc.dtype, out_dtype = call->outputs[0].desc.dtype;
  prepare(&base, op, dtype, out_dtype);
  /* NumPy compares integers with the number itself, not with its integer part. */
  if (dtype != out_dtype && !mpg_dtype_is_float(dtype) && params->scalar != trunc(params->scalar)) {
    base.compute = MPG_COMPUTE_F64;
    base.row = op->rows[MPG_COMPUTE_F64];
  }
  if (formula.of_itself) {
    base.a = base.b = call->inputs[0].data;
    base.out = call->outputs[0].data;
    mpg_cpu_parallel_for(call, mpg_shape_size(&call->outputs[0].desc.shape), grain_of(op, dtype),
                         run_equal, &base);
    return MPG_OK;
  }
  scalar_plan p = {base.row,
                   base.compute,
                   dtype,
                   out_dtype,
                   base.direct,
                   formula.swap,
                   call->inputs[0].data,
                   call->outputs[0].data,
                   {0}};
  if (base.compute == MPG_COMPUTE_F64 && !mpg_dtype_is_float(dtype))
    p.number.f64 = params->scalar;
  else
    mpg_cpu_scalar_value(base.compute, dtype, params->scalar, &p.number);
  if (base.direct && !mpg_compute_direct(base.compute, dtype)) { /* the row function reads halves */
    float number = p.number.f32;
    mpg_cpu_store(MPG_COMPUTE_F32, dtype, &p.number.u16, 0, 1, &number);
  }
  row_fn power = base.row == power_f32 && !formula.swap ? power_row(params->scalar) : NULL;
  if (power) p.row = power;
  row_fn bytes = byte_row(base.row, dtype);
  if (bytes && (dtype == MPG_UINT8 ? p.number.i32 == (uint8_t)p.number.i32
                                   : p.number.i32 == (int8_t)p.number.i32)) {
    p.row = bytes, p.direct = true;
    p.number.u8 = (uint8_t)p.number.i32;
  }
  mpg_cpu_parallel_for(call, mpg_shape_size(&call->outputs[0].desc.shape),
                       op->dear && !power ? 4096 : grain_of(op, dtype),
                       p.row == power_f32 || p.row == power_f64 ? run_filled : run_scalar, &p);
  return MPG_OK;
}
