/* Unary ops. A row function computes a run of elements. An op has one row function per compute type
 * (convert.h). Integers are computed in int64_t if the function maps integers to integers, else in
 * double. Results may overwrite the input.
 */
#include <math.h>

#include "kernels/common/formula.h"
#include "kernels/common/unary.h"
#include "kernels/cpu/math/binary.h"
#include "kernels/cpu/convert.h"
#include "kernels/cpu/halves.h"

typedef void (*row_fn)(const void *in, void *out, int64_t count, const double *constants);

/* Defines a row function. It copies the constants to a local array, because conditional loads from
 * `numbers` in the loop would become branches. */
#define ROW(name, suffix, T, expression)                                                         \
  static void name##_##suffix(const void *in, void *out, int64_t count, const double *numbers) { \
    const double constants[3] = {numbers[0], numbers[1], numbers[2]};                            \
    (void)constants;                                                                             \
    const T *source = in;                                                                        \
    T *target = out;                                                                             \
    MPG_INDEPENDENT for (int64_t i = 0; i < count; i++) {                                        \
      T x = source[i];                                                                           \
      target[i] = (expression);                                                                  \
    }                                                                                            \
  }
/* Defines a row function for halves without an intermediate buffer. The last group is padded with
 * zeros. */
#define HALF_ROW(name, suffix, store, expression)                                               \
  MPG_HALVES_INLINE void name##_group_##suffix(const uint16_t *source, uint16_t *target,        \
                                               const double *constants) {                       \
    (void)constants;                                                                            \
    float values[MPG_HALVES], results[MPG_HALVES];                                              \
    mpg_load_##suffix(source, values);                                                          \
    for (int k = 0; k < MPG_HALVES; k++) {                                                      \
      float x = values[k];                                                                      \
      results[k] = (expression);                                                                \
    }                                                                                           \
    store(suffix)(results, target);                                                             \
  }                                                                                             \
  __attribute__((unused)) static void name##_##suffix(const void *in, void *out, int64_t count, \
                                                      const double *numbers) {                  \
    const double constants[3] = {numbers[0], numbers[1], numbers[2]};                           \
    const uint16_t *source = in;                                                                \
    uint16_t *target = out, rest[MPG_HALVES] = {0};                                             \
    int64_t i = 0;                                                                              \
    for (; i + MPG_HALVES <= count; i += MPG_HALVES)                                            \
      name##_group_##suffix(source + i, target + i, constants);                                 \
    if (i == count) return;                                                                     \
    memcpy(rest, source + i, (size_t)(count - i) * sizeof *rest);                               \
    name##_group_##suffix(rest, rest, constants);                                               \
    memcpy(target + i, rest, (size_t)(count - i) * sizeof *rest);                               \
  }
#define FLOAT_ROWS(name, kind, expression_f, expression_d) \
  ROW(name, f32, float, expression_f)                      \
  ROW(name, f64, double, expression_d)                     \
  HALF_ROW(name, f16, STORE_##kind, expression_f)          \
  HALF_ROW(name, bf16, STORE_##kind, expression_f)
#define STORE_CHEAP(suffix) mpg_store_computed_##suffix
#define STORE_EXACT(suffix) mpg_store_exact_##suffix
#define STORE_DEAR STORE_CHEAP
#define STORE_WHOLE STORE_CHEAP
#define STORE_ROUNDING STORE_EXACT
#define WHOLE_ROW(name, expression) ROW(name, i64, int64_t, expression)
/* Defines a row function with two formulas. `near` is valid only for arguments that satisfy
 * `right`; other elements use `far`. The choice is made per element, so a result does not depend on
 * its neighbors. */
#define LIMITED_ROW(name, suffix, T, right, near, far)                                             \
  static void name##_##suffix(const void *in, void *out, int64_t count, const double *constants) { \
    (void)constants;                                                                               \
    const T *source = in;                                                                          \
    T *target = out, kept[MPG_CPU_BLOCK];                                                          \
    for (int64_t done = 0; done < count;                                                           \
         done += MPG_CPU_BLOCK, source += MPG_CPU_BLOCK, target += MPG_CPU_BLOCK) {                \
      int64_t n = count - done < MPG_CPU_BLOCK ? count - done : MPG_CPU_BLOCK;                     \
      int outside = 0;                                                                             \
      for (int64_t i = 0; i < n; i++) {                                                            \
        T x = source[i];                                                                           \
        outside |= !(right);                                                                       \
      }                                                                                            \
      if (outside) memcpy(kept, source, (size_t)n * sizeof *kept);                                 \
      MPG_INDEPENDENT for (int64_t i = 0; i < n; i++) {                                            \
        T x = source[i];                                                                           \
        target[i] = near;                                                                          \
      }                                                                                            \
      for (int64_t i = 0; outside && i < n; i++) {                                                 \
        T x = kept[i];                                                                             \
        if (!(right)) target[i] = far;                                                             \
      }                                                                                            \
    }                                                                                              \
  }
#define LIMITED_FLOAT_ROWS(name, kind, right_f, near_f, far_f, expression_d) \
  LIMITED_ROW(name, f32, float, right_f, near_f, far_f) ROW(name, f64, double, expression_d)
#define LIMITED_ROWS(name, kind, right_f, near_f, far_f, right_d, near_d, far_d) \
  LIMITED_ROW(name, f32, float, right_f, near_f, far_f)                          \
  LIMITED_ROW(name, f64, double, right_d, near_d, far_d)
#include "kernels/common/unary.def"

typedef struct unary_op {
  row_fn f32, f64, i64; /* i64 is NULL if integers are computed in double */
  row_fn f16, bf16;     /* NULL to compute in float, block by block */
  bool cheap;
} unary_op;

#define HALVES(name) name##_f16, name##_bf16
#define CHEAP(name) {name##_f32, name##_f64, NULL, HALVES(name), true}
#define DEAR(name) {name##_f32, name##_f64, NULL, HALVES(name), false}
#define LIMITED(name) {name##_f32, name##_f64, NULL, NULL, NULL, false}
#define WHOLE(name) {name##_f32, name##_f64, name##_i64, HALVES(name), true}
#define EXACT(name) WHOLE(name)
#define ROUNDING(name) {name##_f32, name##_f64, whole_i64, HALVES(name), true}

/* Returns the formula of a call, or NULL if the op has its own kernel. */
static const unary_op *find(const mpg_kernel_call *call) {
  static const unary_op formulas[MPG_FORMULA_COUNT] = {
#define FLOAT_ROWS(name, kind, expression_f, expression_d) [MPG_UNARY_##name] = kind(name),
#define LIMITED_FLOAT_ROWS(name, kind, right_f, near_f, far_f, expression_d) \
  [MPG_UNARY_##name] = LIMITED(name),
#define LIMITED_ROWS(name, kind, right_f, near_f, far_f, right_d, near_d, far_d) \
  [MPG_UNARY_##name] = LIMITED(name),
#include "kernels/common/unary.def"
  };
  const unary_op *found = &formulas[mpg_formula_of(call->op, call->params).id];
  return found->f32 ? found : NULL;
}

typedef struct unary_plan {
  row_fn row;
  mpg_compute compute;
  mpg_dtype dtype, out_dtype;
  bool direct; /* the row function works on the stored dtype, without conversion */
  const void *in;
  void *out;
  double constants[MPG_UNARY_CONSTANTS];
} unary_plan;

static void run_unary(void *context, int64_t begin, int64_t end) {
  const unary_plan *p = context;
  if (p->direct) {
    int64_t size = (int64_t)mpg_dtype_size(p->dtype);
    p->row((const char *)p->in + begin * size, (char *)p->out + begin * size, end - begin,
           p->constants);
    return;
  }
  mpg_block_buffer in, result;
  for (int64_t i = begin; i < end; i += MPG_CPU_BLOCK) {
    int64_t n = end - i < MPG_CPU_BLOCK ? end - i : MPG_CPU_BLOCK;
    const void *values = mpg_cpu_load(p->compute, p->dtype, p->in, i, n, &in);
    p->row(values, &result, n, p->constants);
    mpg_cpu_store(p->compute, p->out_dtype, p->out, i, n, &result);
  }
}

static mpg_status unary(const mpg_kernel_call *call, const unary_op *op) {
  mpg_dtype dtype = call->inputs[0].desc.dtype, out_dtype = call->outputs[0].desc.dtype;
  unary_plan p = {.row = op->f32,
                  .compute = MPG_COMPUTE_F32,
                  .dtype = dtype,
                  .out_dtype = out_dtype,
                  .in = call->inputs[0].data,
                  .out = call->outputs[0].data};
  mpg_unary_constants(call->op, call->params, &call->inputs[0].desc.shape, p.constants);
  if (dtype == MPG_FLOAT64 || (!mpg_dtype_is_float(dtype) && !op->i64)) {
    p.row = op->f64;
    p.compute = MPG_COMPUTE_F64;
  } else if (!mpg_dtype_is_float(dtype)) {
    p.row = op->i64;
    p.compute = MPG_COMPUTE_I64;
  }
  row_fn half = dtype != out_dtype      ? NULL
                : dtype == MPG_FLOAT16  ? op->f16
                : dtype == MPG_BFLOAT16 ? op->bf16
                                        : NULL;
  if (half) p.row = half;
  p.direct = half || (dtype == out_dtype && mpg_compute_direct(p.compute, dtype));
  mpg_cpu_parallel_for(call, mpg_shape_size(&call->outputs[0].desc.shape), op->cheap ? 32768 : 4096,
                       run_unary, &p);
  return MPG_OK;
}

mpg_status mpg_cpu_unary(const mpg_kernel_call *call) { return unary(call, find(call)); }

typedef struct rrelu_plan {
  mpg_compute compute;
  mpg_dtype dtype;
  const void *in;
  void *out, *mask;
  mpg_random_key key;
  double lower, upper;
  bool random;
} rrelu_plan;

#define RRELU_LOOP(T)                                                             \
  do {                                                                            \
    const T *x = values;                                                          \
    T *y = place;                                                                 \
    for (int64_t j = 0; j < n; j++) mask.f64[j] = x[j] > 0 ? 1 : slopes[j];       \
    for (int64_t j = 0; j < n; j++) y[j] = x[j] > 0 ? x[j] : x[j] * (T)slopes[j]; \
  } while (0)

static void run_rrelu(void *context, int64_t begin, int64_t end) {
  const rrelu_plan *p = context;
  mpg_block_buffer in, result, mask; /* mask: the factor applied to each element */
  double slopes[MPG_CPU_BLOCK];
  for (int64_t i = begin; i < end; i += MPG_CPU_BLOCK) {
    int64_t n = end - i < MPG_CPU_BLOCK ? end - i : MPG_CPU_BLOCK;
    const void *values = mpg_cpu_load(p->compute, p->dtype, p->in, i, n, &in);
    for (int64_t j = 0; j < n; j++) {
      if (p->random) {
        uint64_t position = mpg_random_position(&p->key, (uint64_t)(i + j));
        uint32_t word = mpg_philox(p->key.seed, p->key.call, position >> 2).value[position & 3];
        slopes[j] = p->lower + (p->upper - p->lower) * (double)mpg_philox_uniform(word);
      } else {
        slopes[j] = (p->lower + p->upper) / 2;
      }
    }
    void *place = mpg_cpu_place(p->compute, p->dtype, p->out, i, &result);
    if (p->compute == MPG_COMPUTE_F64)
      RRELU_LOOP(double);
    else
      RRELU_LOOP(float);
    mpg_cpu_store(MPG_COMPUTE_F64, p->dtype, p->mask, i, n, &mask);
    mpg_cpu_store(p->compute, p->dtype, p->out, i, n, place);
  }
}

mpg_status mpg_cpu_leaky_relu(const mpg_kernel_call *call) {
  const mpg_leaky_relu_params *params = call->params;
  const unary_op *formula = find(call);
  if (formula) return unary(call, formula);
  const mpg_desc *desc = &call->inputs[0].desc;
  if (params->act_type == MPG_LEAKY_PRELU) {
    mpg_view gamma = call->inputs[1]; /* reshaped to broadcast along the data */
    gamma.desc.shape = mpg_prelu_shape(&desc->shape, &gamma.desc.shape);
    mpg_cpu_leak(call, &call->inputs[0], &gamma, &call->outputs[0]);
    return MPG_OK;
  }
  rrelu_plan p = {.compute = mpg_compute_of(desc->dtype),
                  .dtype = desc->dtype,
                  .in = call->inputs[0].data,
                  .out = call->outputs[0].data,
                  .mask = call->outputs[1].data,
                  .key = call->random,
                  .lower = params->lower_bound,
                  .upper = params->upper_bound,
                  .random = call->train};
  mpg_cpu_parallel_for(call, mpg_shape_size(&desc->shape), 4096, run_rrelu, &p);
  return MPG_OK;
}

/* Gradient of LeakyReLU: grad times the derivative at `data`. */
typedef struct backward_plan {
  const void *grad, *data;
  void *out;
  mpg_dtype dtype;
  int act_type;
  double slope;
} backward_plan;

#define BACKWARD_LOOPS(T, exp_function, gelu_slope)                                      \
  do {                                                                                   \
    const T *g = grads, *d = values, s = (T)p->slope;                                    \
    T *y = place;                                                                        \
    if (p->act_type == MPG_LEAKY_LEAKY) {                                                \
      MPG_INDEPENDENT for (int64_t j = 0; j < n; j++) y[j] = d[j] > 0 ? g[j] : g[j] * s; \
    } else if (p->act_type == MPG_LEAKY_ELU) {                                           \
      MPG_INDEPENDENT for (int64_t j = 0; j < n; j++) y[j] =                             \
          d[j] > 0 ? g[j] : g[j] * (s * exp_function(d[j]));                             \
    } else if (p->act_type == MPG_LEAKY_SELU) {                                          \
      MPG_INDEPENDENT for (int64_t j = 0; j < n; j++) y[j] =                             \
          g[j] * (T)SELU_SCALE * (d[j] > 0 ? 1 : (T)SELU_ALPHA * exp_function(d[j]));    \
    } else {                                                                             \
      MPG_INDEPENDENT for (int64_t j = 0; j < n; j++) y[j] = g[j] * gelu_slope(d[j]);    \
    }                                                                                    \
  } while (0)

static void run_backward(void *context, int64_t begin, int64_t end) {
  const backward_plan *p = context;
  mpg_compute compute = mpg_compute_of(p->dtype);
  mpg_block_buffer a, b, result;
  int64_t step = mpg_compute_direct(compute, p->dtype) ? end - begin : MPG_CPU_BLOCK;
  for (int64_t i = begin; i < end; i += step) {
    int64_t n = end - i < step ? end - i : step;
    const void *grads = mpg_cpu_load(compute, p->dtype, p->grad, i, n, &a),
               *values = mpg_cpu_load(compute, p->dtype, p->data, i, n, &b);
    void *place = mpg_cpu_place(compute, p->dtype, p->out, i, &result);
    if (compute == MPG_COMPUTE_F64)
      BACKWARD_LOOPS(double, mpg_exp, GELU_SLOPE_D);
    else
      BACKWARD_LOOPS(float, mpg_expf, GELU_SLOPE_F);
    mpg_cpu_store(compute, p->dtype, p->out, i, n, place);
  }
}

mpg_status mpg_cpu_backward_leaky_relu(const mpg_kernel_call *call) {
  const mpg_leaky_relu_params *params = call->params;
  backward_plan p = {call->inputs[0].data,       call->inputs[1].data, call->outputs[0].data,
                     call->inputs[0].desc.dtype, params->act_type,     params->slope};
  mpg_cpu_parallel_for(call, mpg_shape_size(&call->outputs[0].desc.shape),
                       params->act_type == MPG_LEAKY_LEAKY ? 32768 : 4096, run_backward, &p);
  return MPG_OK;
}

/* add_n adds the arrays in order, block by block. */
typedef struct sum_plan {
  const mpg_kernel_call *call;
  mpg_compute compute;
  mpg_dtype dtype;
} sum_plan;

#define ACCUMULATE(T, field)                                   \
  do {                                                         \
    const T *values = source;                                  \
    for (int64_t j = 0; j < n; j++) sum.field[j] += values[j]; \
  } while (0)

static void run_add_n(void *context, int64_t begin, int64_t end) {
  const sum_plan *p = context;
  const mpg_kernel_call *call = p->call;
  mpg_block_buffer buffer, sum;
  size_t size = mpg_dtype_size(mpg_compute_dtype(p->compute));
  for (int64_t i = begin; i < end; i += MPG_CPU_BLOCK) {
    int64_t n = end - i < MPG_CPU_BLOCK ? end - i : MPG_CPU_BLOCK;
    memcpy(&sum, mpg_cpu_load(p->compute, p->dtype, call->inputs[0].data, i, n, &buffer),
           (size_t)n * size);
    for (int k = 1; k < call->num_inputs; k++) {
      const void *source = mpg_cpu_load(p->compute, p->dtype, call->inputs[k].data, i, n, &buffer);
      switch (p->compute) {
        case MPG_COMPUTE_F32: ACCUMULATE(float, f32); break;
        case MPG_COMPUTE_F64: ACCUMULATE(double, f64); break;
        default: { /* unsigned, so that sums wrap around */
          const uint64_t *values = source;
          for (int64_t j = 0; j < n; j++) sum.i64[j] = (int64_t)((uint64_t)sum.i64[j] + values[j]);
        }
      }
    }
    mpg_cpu_store(p->compute, p->dtype, call->outputs[0].data, i, n, &sum);
  }
}

mpg_status mpg_cpu_add_n(const mpg_kernel_call *call) {
  mpg_dtype dtype = call->inputs[0].desc.dtype;
  sum_plan p = {call, mpg_dtype_is_float(dtype) ? mpg_compute_of(dtype) : MPG_COMPUTE_I64, dtype};
  mpg_cpu_parallel_for(call, mpg_shape_size(&call->outputs[0].desc.shape), 16384, run_add_n, &p);
  return MPG_OK;
}
