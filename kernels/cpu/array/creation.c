/* Array creation, casts and plain copies. */
#include "kernels/cpu/convert.h"
#include "op/array/creation.h"

typedef struct fill_plan {
  char *out;
  size_t size;
  uint64_t element;
} fill_plan;

static void run_fill(void *context, int64_t begin, int64_t end) {
  const fill_plan *p = context;
  int64_t n = end - begin;
  char *out = p->out + begin * (int64_t)p->size;
  switch (p->element ? p->size : 0) {
    case 0: memset(out, 0, (size_t)n * p->size); break;
    case 1: memset(out, (int)(p->element & 0xff), (size_t)n); break;
    case 2:
      for (int64_t i = 0; i < n; i++) ((uint16_t *)out)[i] = (uint16_t)p->element;
      break;
    case 4:
      for (int64_t i = 0; i < n; i++) ((uint32_t *)out)[i] = (uint32_t)p->element;
      break;
    default:
      for (int64_t i = 0; i < n; i++) ((uint64_t *)out)[i] = p->element;
      break;
  }
}

static void fill(const mpg_kernel_call *call, double value) {
  const mpg_view *out = &call->outputs[0];
  fill_plan p = {out->data, mpg_dtype_size(out->desc.dtype), 0};
  mpg_cpu_store(MPG_COMPUTE_F64, out->desc.dtype, &p.element, 0, 1, &value);
  mpg_cpu_parallel_for(call, mpg_shape_size(&out->desc.shape), 65536, run_fill, &p);
}

mpg_status mpg_cpu_full(const mpg_kernel_call *call) {
  double value = 0;
  mpg_op_fill(call->op, call->params, &value);
  fill(call, value);
  return MPG_OK;
}

mpg_status mpg_cpu_eye(const mpg_kernel_call *call) {
  const mpg_eye_params *params = call->params;
  const mpg_desc *desc = &call->outputs[0].desc;
  fill(call, 0);
  int64_t rows = desc->shape.dims[0], columns = desc->shape.dims[1];
  double one = 1;
  for (int64_t i = 0; i < rows; i++) {
    int64_t j;
    if (__builtin_add_overflow(i, params->k, &j) || j < 0 || j >= columns) continue;
    mpg_cpu_store(MPG_COMPUTE_F64, desc->dtype, call->outputs[0].data, i * columns + j, 1, &one);
  }
  return MPG_OK;
}

/* A range: element i is start + (i / repeat) * step. Elements are computed in int64_t if the dtype,
 * start and step are integers, else in double. */
typedef struct range_plan {
  mpg_dtype dtype;
  void *out;
  mpg_steps by;
  int64_t period; /* number of elements after which the values repeat */
} range_plan;

/* Writes n values of one period, starting at step k. Vectorized if repeat is 1. */
static void fill_steps(const mpg_steps *by, bool whole, int64_t k, int64_t n, void *values) {
  int64_t *integers = values;
  double *reals = values;
  uint64_t start = (uint64_t)(int64_t)by->start, step = (uint64_t)(int64_t)by->step;
  if (by->repeat > 1) {
    int64_t value = k / by->repeat, left = by->repeat - k % by->repeat;
    for (int64_t j = 0; j < n; j++) {
      if (whole)
        integers[j] = (int64_t)(start + (uint64_t)value * step);
      else
        reals[j] = by->start + (double)value * by->step;
      if (!--left) value++, left = by->repeat;
    }
  } else if (whole) {
    for (int64_t j = 0; j < n; j++)
      integers[j] = (int64_t)(start + (uint64_t)k * step + (uint64_t)j * step);
  } else {
    double first = (double)k; /* k + j < 2^53, so first + j is exact */
    for (int32_t j = 0; j < (int32_t)n; j++) reals[j] = by->start + (first + (double)j) * by->step;
  }
}

static void run_range(void *context, int64_t begin, int64_t end) {
  const range_plan *p = context;
  mpg_block_buffer buffer;
  bool whole = !mpg_dtype_is_float(p->dtype) && p->by.start == (double)(int64_t)p->by.start &&
               p->by.step == (double)(int64_t)p->by.step;
  mpg_compute compute = whole ? MPG_COMPUTE_I64 : MPG_COMPUTE_F64;
  for (int64_t i = begin, n; i < end; i += n) {
    int64_t k = i % p->period, most = end - i < p->period - k ? end - i : p->period - k;
    n = most < MPG_CPU_BLOCK ? most : MPG_CPU_BLOCK;
    void *values = mpg_cpu_place(compute, p->dtype, p->out, i, &buffer);
    fill_steps(&p->by, whole, k, n, values);
    mpg_cpu_store(compute, p->dtype, p->out, i, n, values);
  }
}

mpg_status mpg_cpu_arange(const mpg_kernel_call *call) {
  const mpg_view *out = &call->outputs[0];
  int64_t count = mpg_shape_size(&out->desc.shape);
  range_plan p = {out->desc.dtype, out->data, {0, 1, 1}, count > 0 ? count : 1};
  mpg_op_steps(call->op, call->params, p.dtype, &p.by);
  mpg_cpu_parallel_for(call, count, 16384, run_range, &p);
  return MPG_OK;
}

mpg_status mpg_cpu_linspace(const mpg_kernel_call *call) {
  const mpg_linspace_params *params = call->params;
  const mpg_view *out = &call->outputs[0];
  int64_t count = mpg_shape_size(&out->desc.shape), gaps = params->endpoint ? count - 1 : count;
  range_plan p = {out->desc.dtype,
                  out->data,
                  {params->start, gaps > 0 ? (params->stop - params->start) / (double)gaps : 0, 1},
                  count > 0 ? count : 1};
  mpg_cpu_parallel_for(call, count, 16384, run_range, &p);
  if (params->endpoint && count > 1) /* the last element is exactly `stop`, despite rounding */
    mpg_cpu_store(MPG_COMPUTE_F64, out->desc.dtype, out->data, count - 1, 1, &params->stop);
  return MPG_OK;
}

typedef struct cast_plan {
  mpg_dtype from, to;
  const void *in;
  void *out;
} cast_plan;

static void run_cast(void *context, int64_t begin, int64_t end) {
  const cast_plan *p = context;
  mpg_compute compute = mpg_compute_of(p->from), result = mpg_compute_of(p->to);
  mpg_block_buffer buffer;
  if (mpg_compute_direct(result, p->to)) {
    mpg_cpu_load_all(result, p->from, p->in, begin, end - begin,
                     (char *)p->out + begin * (int64_t)mpg_dtype_size(p->to));
    return;
  }
  for (int64_t i = begin; i < end; i += MPG_CPU_BLOCK) {
    int64_t n = end - i < MPG_CPU_BLOCK ? end - i : MPG_CPU_BLOCK;
    const void *values = mpg_cpu_load(compute, p->from, p->in, i, n, &buffer);
    mpg_cpu_store(compute, p->to, p->out, i, n, values);
  }
}

static void run_copy(void *context, int64_t begin, int64_t end) {
  const cast_plan *p = context;
  int64_t size = (int64_t)mpg_dtype_size(p->from);
  memmove((char *)p->out + begin * size, (const char *)p->in + begin * size,
          (size_t)((end - begin) * size));
}

static void cast(const mpg_kernel_call *call, const mpg_view *in, const mpg_view *out) {
  cast_plan p = {in->desc.dtype, out->desc.dtype, in->data, out->data};
  bool same = p.from == p.to;
  if (same && p.in == p.out) return;
  mpg_cpu_parallel_for(call, mpg_shape_size(&in->desc.shape), 65536, same ? run_copy : run_cast,
                       &p);
}

mpg_status mpg_cpu_cast(const mpg_kernel_call *call) {
  cast(call, &call->inputs[0], &call->outputs[0]);
  return MPG_OK;
}

mpg_status mpg_cpu_identity(const mpg_kernel_call *call) {
  cast(call, &call->inputs[0], &call->outputs[0]);
  return MPG_OK;
}

mpg_status mpg_cpu_amp_multicast(const mpg_kernel_call *call) {
  for (int i = 0; i < call->num_outputs; i++) cast(call, &call->inputs[i], &call->outputs[i]);
  return MPG_OK;
}
