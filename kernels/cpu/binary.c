/* Ops of two arrays, with broadcasting, and of an array and a number.
 *
 * A row function computes one run of elements; each operand advances or stands still (bit 0 and bit 1 of `moving`). An
 * op has one per compute type (convert.h); where it has none for an integer type, it is computed in double. Shapes are
 * collapsed to the fewest dimensions along which both operands keep moving or standing, so a run is as long as can be.
 * Results may be written over an operand: element i is read before it is written, and only by itself.
 */
#include <math.h>

#include "kernels/common/binary.h"
#include "kernels/cpu/convert.h"

typedef void (*row_fn)(const void *a, const void *b, void *out, int64_t count, int moving);

#define IVDEP _Pragma("GCC ivdep")
#define ROW(name, suffix, T, expression)                                                                         \
  static void name##_##suffix(const void *pa, const void *pb, void *po, int64_t n, int moving) {                  \
    const T *a = pa, *b = pb;                                                                                    \
    T *out = po;                                                                                                 \
    if (moving == 3) {                                                                                           \
      IVDEP for (int64_t i = 0; i < n; i++) {                                                                    \
        T x = a[i], y = b[i];                                                                                    \
        out[i] = (expression);                                                                                   \
      }                                                                                                          \
    } else if (moving == 1) {                                                                                    \
      const T y = *b;                                                                                            \
      IVDEP for (int64_t i = 0; i < n; i++) {                                                                    \
        T x = a[i];                                                                                              \
        out[i] = (expression);                                                                                   \
      }                                                                                                          \
    } else {                                                                                                     \
      const T x = *a;                                                                                            \
      IVDEP for (int64_t i = 0; i < n; i++) {                                                                    \
        T y = b[moving ? i : 0];                                                                                 \
        out[i] = (expression);                                                                                   \
      }                                                                                                          \
    }                                                                                                            \
  }
#define FLOAT_ROWS(name, expression_f, expression_d) ROW(name, f32, float, expression_f) ROW(name, f64, double, expression_d)
#define INT32_ROW(name, expression) ROW(name, i32, int32_t, expression)
#define INT64_ROW(name, expression) ROW(name, i64, int64_t, expression)
#include "kernels/common/binary.def"

typedef struct binary_op {
  row_fn rows[MPG_COMPUTE_COUNT];
  bool swap;  /* scalar ops: the number is the left operand */
  bool dear;  /* worth a thread for fewer elements */
} binary_op;

#define FLOATS(name) {name##_f32, name##_f64, NULL, NULL}
#define ALL(name) {name##_f32, name##_f64, name##_i32, name##_i64}

static const binary_op *find(mpg_op_id id) {
  static const binary_op ops[MPG_OP_COUNT] = {
#define BINARY(op, row, kind, swap, dear) [MPG_OP_##op] = {kind(row), swap, dear},
#include "kernels/common/binary.def"
  };
  return &ops[id];
}

/* Shapes collapsed: dims[0] is the innermost. Strides are in elements, 0 where the operand stands still. */
typedef struct plan {
  row_fn row;
  mpg_compute compute;
  mpg_dtype dtype;
  const char *a, *b;
  char *out;
  size_t size;
  int ndim;
  int64_t dims[MPG_MAX_NDIM], stride_a[MPG_MAX_NDIM], stride_b[MPG_MAX_NDIM];
} plan;

static int64_t collapse(plan *p, const mpg_shape *a, const mpg_shape *b, const mpg_shape *out) {
  int64_t step_a = 1, step_b = 1, total = 1;
  int moving_before = -1;
  p->ndim = 0;
  for (int i = 1; i <= out->ndim; i++) {
    int64_t n = out->dims[out->ndim - i];
    total *= n;
    if (n == 1) continue;
    int64_t na = i <= a->ndim ? a->dims[a->ndim - i] : 1, nb = i <= b->ndim ? b->dims[b->ndim - i] : 1;
    int moving = (na != 1) | (nb != 1) << 1;
    if (moving == moving_before) {
      p->dims[p->ndim - 1] *= n;
    } else {
      p->dims[p->ndim] = n;
      p->stride_a[p->ndim] = moving & 1 ? step_a : 0;
      p->stride_b[p->ndim] = moving & 2 ? step_b : 0;
      p->ndim++;
      moving_before = moving;
    }
    step_a *= na;
    step_b *= nb;
  }
  return total;
}

/* One run: operands at element offsets ia and ib. */
static void run(const plan *p, int64_t ia, int64_t ib, int64_t io, int64_t count, int moving) {
  if (mpg_compute_direct(p->compute, p->dtype)) {
    p->row(p->a + ia * (int64_t)p->size, p->b + ib * (int64_t)p->size, p->out + io * (int64_t)p->size, count, moving);
    return;
  }
  mpg_block_buffer ba, bb, bo;
  const void *va = NULL, *vb = NULL;
  if (!(moving & 1)) va = mpg_cpu_load(p->compute, p->dtype, p->a, ia, 1, &ba);
  if (!(moving & 2)) vb = mpg_cpu_load(p->compute, p->dtype, p->b, ib, 1, &bb);
  for (int64_t done = 0; done < count; done += MPG_CPU_BLOCK) {
    int64_t n = count - done < MPG_CPU_BLOCK ? count - done : MPG_CPU_BLOCK;
    if (moving & 1) va = mpg_cpu_load(p->compute, p->dtype, p->a, ia + done, n, &ba);
    if (moving & 2) vb = mpg_cpu_load(p->compute, p->dtype, p->b, ib + done, n, &bb);
    p->row(va, vb, &bo, n, moving);
    mpg_cpu_store(p->compute, p->dtype, p->out, io + done, n, &bo);
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
  int moving = (p->stride_a[0] != 0) | (p->stride_b[0] != 0) << 1;
  while (begin < end) {
    int64_t n = p->dims[0] - index[0];
    if (n > end - begin) n = end - begin;
    run(p, ia, ib, begin, n, moving);
    begin += n;
    /* On to the start of the next run. */
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

static int64_t grain_of(const binary_op *op, mpg_dtype dtype) { return op->dear ? 4096 : mpg_dtype_size(dtype) > 4 ? 16384 : 32768; }

static void prepare(plan *p, const binary_op *op, mpg_dtype dtype) {
  p->dtype = dtype;
  p->size = mpg_dtype_size(dtype);
  p->compute = mpg_compute_of(dtype);
  if (!op->rows[p->compute]) p->compute = MPG_COMPUTE_F64;
  p->row = op->rows[p->compute];
}

MPG_CPU_KERNEL(binary) {
  const binary_op *op = find(call->op->id);
  const mpg_view *a = &call->inputs[0], *b = &call->inputs[1], *out = &call->outputs[0];
  plan p;
  prepare(&p, op, a->desc.dtype);
  p.a = a->data;
  p.b = b->data;
  p.out = out->data;
  if (mpg_shape_equal(&a->desc.shape, &b->desc.shape)) {
    mpg_cpu_parallel_for(call, mpg_shape_size(&out->desc.shape), grain_of(op, p.dtype), run_equal, &p);
    return MPG_OK;
  }
  int64_t total = collapse(&p, &a->desc.shape, &b->desc.shape, &out->desc.shape);
  if (p.ndim == 0) { /* one element */
    p.ndim = 1;
    p.dims[0] = 1;
    p.stride_a[0] = p.stride_b[0] = 1;
  }
  mpg_cpu_parallel_for(call, total, grain_of(op, p.dtype), run_broadcast, &p);
  return MPG_OK;
}

typedef struct scalar_plan {
  row_fn row;
  mpg_compute compute;
  mpg_dtype dtype;
  bool swap;
  const void *data;
  void *out;
  union {
    double f64;
    int64_t i64;
  } number; /* in the compute type */
} scalar_plan;

static void run_scalar(void *context, int64_t begin, int64_t end) {
  const scalar_plan *p = context;
  mpg_block_buffer in, result;
  int64_t step = mpg_compute_direct(p->compute, p->dtype) ? end - begin : MPG_CPU_BLOCK;
  for (int64_t i = begin; i < end; i += step) {
    int64_t n = end - i < step ? end - i : step;
    const void *values = mpg_cpu_load(p->compute, p->dtype, p->data, i, n, &in);
    void *place = mpg_cpu_place(p->compute, p->dtype, p->out, i, &result);
    if (p->swap)
      p->row(&p->number, values, place, n, 2);
    else
      p->row(values, &p->number, place, n, 1);
    mpg_cpu_store(p->compute, p->dtype, p->out, i, n, place);
  }
}

MPG_CPU_KERNEL(scalar) {
  const binary_op *op = find(call->op->id);
  const mpg_scalar_params *params = call->params;
  plan base;
  mpg_dtype dtype = call->inputs[0].desc.dtype;
  prepare(&base, op, dtype);
  bool dear = op->dear;
  if (op->rows[MPG_COMPUTE_F32] == power_f32 && !op->swap && params->scalar == 2) { /* x * x, and the same bits */
    binary_op square = {ALL(mul), false, false};
    mpg_view inputs[2] = {call->inputs[0], call->inputs[0]};
    prepare(&base, &square, dtype);
    base.a = base.b = inputs[0].data;
    base.out = call->outputs[0].data;
    mpg_cpu_parallel_for(call, mpg_shape_size(&call->outputs[0].desc.shape), grain_of(&square, dtype), run_equal, &base);
    return MPG_OK;
  }
  scalar_plan p = {base.row, base.compute, dtype, op->swap, call->inputs[0].data, call->outputs[0].data, {0}};
  if (base.compute == MPG_COMPUTE_F64 && !mpg_dtype_is_float(dtype))
    p.number.f64 = params->scalar;
  else
    mpg_cpu_scalar(base.compute, dtype, params->scalar, &p.number);
  mpg_cpu_parallel_for(call, mpg_shape_size(&call->outputs[0].desc.shape), dear ? 4096 : grain_of(op, dtype), run_scalar, &p);
  return MPG_OK;
}
