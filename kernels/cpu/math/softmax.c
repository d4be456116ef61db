/* Softmax, log-softmax, cross-entropy, and their gradients. A row (all elements along the axis) is
 * copied to contiguous float or double memory, unless it already has that form. softmax_rows.h has
 * the arithmetic. */
#include <math.h>
#include <omp.h>
#include <string.h>

#include "kernels/cpu/convert.h"
#include "kernels/cpu/index.h"
#include "kernels/common/vector_math_double.h"

enum {
  ROW_BLOCK = 512,
  STRIP = 64,
  TILE = 16,
  GRAIN = 8192,
  MPG_SOFTMAX_TILE = 512,
  TILE_BYTES = 524288,
  LEAST_COLUMNS = 128, /* minimum columns of a tile, so that its rows span several cache lines */
  LEAST_STREAM = 32,
  SHORT_ROW = 16
};
enum { KIND_SOFTMAX, KIND_LOG_SOFTMAX, KIND_SOFTMAX_BACK, KIND_LOG_SOFTMAX_BACK };

/* Arguments of a softmax or its gradient. Arrays are viewed as (before, n, after), with n elements
 * along the axis. */
typedef struct job {
  int kind;
  const mpg_view *in[2], *out, *length;
  int64_t before, n, after, tile;
  double scale;
  bool direct_in[2], direct_out; /* rows are contiguous and in the computing type */
  char *buffers;                 /* one per thread */
  size_t buffer_bytes;
} job;

typedef struct ce {
  /* `loss` holds the losses or their gradient */
  const mpg_view *data, *label, *loss, *max, *log_sum, *out;
  int64_t n;
  void *losses; /* if not NULL, receives the losses in the computing type */
  bool direct;
  char *buffers;
  size_t buffer_bytes;
} ce;

#define T float
#define COMPUTE MPG_COMPUTE_F32
#define NAME(name) name##_f32
#define EXP mpg_expf
#define EXP_NONPOSITIVE mpg_exp_nonpositive
#define LOG mpg_logf
#include "kernels/cpu/math/softmax_rows.h"
#undef T
#undef NAME
#undef EXP
#undef EXP_NONPOSITIVE
#undef LOG
#undef COMPUTE
#define T double
#define COMPUTE MPG_COMPUTE_F64
#define NAME(name) name##_f64
#define EXP mpg_exp
#define EXP_NONPOSITIVE mpg_exp
#define LOG mpg_log
#include "kernels/cpu/math/softmax_rows.h"
#undef T
#undef NAME
#undef EXP
#undef EXP_NONPOSITIVE
#undef LOG

static mpg_status get_buffers(const mpg_kernel_call *call, job *p, size_t bytes) {
  p->buffer_bytes = mpg_cpu_buffer_step(bytes);
  p->buffers = mpg_device_scratch(call->device, p->buffer_bytes * (size_t)call->num_threads);
  return p->buffers ? MPG_OK : MPG_DEVICE_OUT_OF_MEMORY;
}

static mpg_status run_job(const mpg_kernel_call *call, job *p) {
  if (p->before == 0 || p->n == 0 || p->after == 0) return MPG_OK;
  int inputs = p->kind >= KIND_SOFTMAX_BACK ? 2 : 1;
  bool wide = p->out->desc.dtype == MPG_FLOAT64, all_direct;
  for (int k = 0; k < inputs; k++) wide = wide || p->in[k]->desc.dtype == MPG_FLOAT64;
  mpg_dtype own = wide ? MPG_FLOAT64 : MPG_FLOAT32;
  int64_t item = wide ? sizeof(double) : sizeof(float);
  if (!p->length && p->after >= LEAST_STREAM && p->n > TILE_BYTES / (LEAST_COLUMNS * item)) {
    p->tile = MPG_SOFTMAX_TILE;
    MPG_TRY(get_buffers(call, p, (size_t)(16 * p->tile * item)));
    mpg_cpu_parallel_for(call, p->before * ((p->after + p->tile - 1) / p->tile), 1,
                         wide ? run_streams_f64 : run_streams_f32, p);
    return MPG_OK;
  }
  if (!p->length && (p->after > 1 || p->n < SHORT_ROW) &&
      p->n <= TILE_BYTES / (16 * (int64_t)sizeof(double))) {
    int64_t columns = p->before * p->after;
    p->tile = TILE_BYTES / (p->n * item) / 16 * 16;
    if (p->tile < LEAST_COLUMNS) p->tile = LEAST_COLUMNS;
    if (p->tile > MPG_SOFTMAX_TILE) p->tile = MPG_SOFTMAX_TILE;
    if (p->tile > (columns + 15) / 16 * 16) p->tile = (columns + 15) / 16 * 16;
    MPG_TRY(get_buffers(call, p, (size_t)((inputs + 1) * p->tile * p->n * item)));
    mpg_cpu_parallel_for(call, (columns + p->tile - 1) / p->tile, 1 + GRAIN / (p->n * p->tile),
                         wide ? run_columns_f64 : run_columns_f32, p);
    return MPG_OK;
  }
  p->tile = p->after < TILE ? p->after : TILE;
  all_direct = p->direct_out = p->after == 1 && p->out->desc.dtype == own;
  for (int k = 0; k < inputs; k++) {
    p->direct_in[k] = p->after == 1 && p->in[k]->desc.dtype == own;
    all_direct = all_direct && p->direct_in[k];
  }
  if (!all_direct) MPG_TRY(get_buffers(call, p, (size_t)((inputs + 1) * p->tile * p->n * item)));
  int64_t units = p->before * ((p->after + p->tile - 1) / p->tile);
  mpg_cpu_parallel_for(call, units, 1 + GRAIN / (p->n * p->tile),
                       wide ? run_units_f64 : run_units_f32, p);
  return MPG_OK;
}

static void set_axis(job *p, const mpg_shape *shape, int64_t axis_param) {
  int axis = (int)(axis_param < 0 ? axis_param + shape->ndim : axis_param);
  p->before = mpg_shape_product(shape, 0, axis);
  p->n = shape->dims[axis];
  p->after = mpg_shape_product(shape, axis + 1, shape->ndim);
}

static double scale_of(const mpg_opt_float *temperature) {
  return temperature->present ? 1 / temperature->value : 1;
}

static mpg_status softmax_with(const mpg_kernel_call *call, double sign) {
  const mpg_softmax_params *params = call->params;
  job p = {.kind = KIND_SOFTMAX,
           .in = {&call->inputs[0]},
           .out = &call->outputs[0],
           .length = call->num_inputs > 1 ? &call->inputs[1] : NULL,
           .scale = sign * scale_of(&params->temperature)};
  set_axis(&p, &call->inputs[0].desc.shape, params->axis);
  return run_job(call, &p);
}

mpg_status mpg_cpu_softmax(const mpg_kernel_call *call) { return softmax_with(call, 1); }
mpg_status mpg_cpu_softmin(const mpg_kernel_call *call) { return softmax_with(call, -1); }

mpg_status mpg_cpu_log_softmax(const mpg_kernel_call *call) {
  const mpg_log_softmax_params *params = call->params;
  job p = {.kind = KIND_LOG_SOFTMAX,
           .in = {&call->inputs[0]},
           .out = &call->outputs[0],
           .scale = scale_of(&params->temperature)};
  set_axis(&p, &call->inputs[0].desc.shape, params->axis);
  return run_job(call, &p);
}

static mpg_status back_with(const mpg_kernel_call *call, int kind) {
  const mpg_softmax_back_params *params = call->params;
  job p = {.kind = kind,
           .in = {&call->inputs[0], &call->inputs[1]},
           .out = &call->outputs[0],
           .scale = params->scale};
  set_axis(&p, &call->inputs[0].desc.shape, params->axis);
  return run_job(call, &p);
}

mpg_status mpg_cpu_softmax_back(const mpg_kernel_call *call) {
  return back_with(call, KIND_SOFTMAX_BACK);
}
mpg_status mpg_cpu_log_softmax_back(const mpg_kernel_call *call) {
  return back_with(call, KIND_LOG_SOFTMAX_BACK);
}

/* Computes the forward pass of SoftmaxOutput: softmax along dimension 1 (multi_output), along the
 * last dimension (preserve_shape), or along all dimensions but the first. */
mpg_status mpg_cpu_softmax_output(const mpg_kernel_call *call) {
  const mpg_softmax_output_params *params = call->params;
  const mpg_shape *shape = &call->inputs[0].desc.shape;
  job p = {.kind = KIND_SOFTMAX, .in = {&call->inputs[0]}, .out = &call->outputs[0], .scale = 1};
  set_axis(&p, shape,
           params->multi_output     ? 1
           : params->preserve_shape ? -1
           : shape->ndim > 1        ? 1
                                    : 0);
  if (!params->multi_output && !params->preserve_shape) {
    p.n *= p.after;
    p.after = 1;
  }
  return run_job(call, &p);
}

/* --- Cross-entropy ---------------------------------------------------------------------------- */

static mpg_status run_ce(const mpg_kernel_call *call, ce *p, bool sum, mpg_range_fn narrow_body,
                         mpg_range_fn wide_body) {
  const mpg_shape *shape = &p->data->desc.shape;
  int64_t rows = mpg_shape_product(shape, 0, shape->ndim - 1);
  bool wide = p->data->desc.dtype == MPG_FLOAT64;
  size_t item = wide ? sizeof(double) : sizeof(float), losses = 0;
  p->n = shape->dims[shape->ndim - 1];
  p->direct = wide || p->data->desc.dtype == MPG_FLOAT32;
  if (sum) losses = ((size_t)rows * item + 63) & ~(size_t)63;
  if (!p->direct) p->buffer_bytes = mpg_cpu_buffer_step((size_t)p->n * item);
  size_t bytes = losses + p->buffer_bytes * (size_t)call->num_threads;
  if (bytes > 0) {
    char *scratch = mpg_device_scratch(call->device, bytes);
    if (!scratch) return MPG_DEVICE_OUT_OF_MEMORY;
    p->losses = sum ? scratch : NULL;
    p->buffers = scratch + losses;
  }
  if (rows > 0 && p->n > 0)
    mpg_cpu_parallel_for(call, rows, 1 + GRAIN / p->n, wide ? wide_body : narrow_body, p);
  if (sum && wide) store_one_f64(p->loss, 0, rows > 0 ? row_sum_f64(p->losses, rows) : 0);
  if (sum && !wide) store_one_f32(p->loss, 0, rows > 0 ? row_sum_f32(p->losses, rows) : 0);
  return MPG_OK;
}

mpg_status mpg_cpu_softmax_cross_entropy(const mpg_kernel_call *call) {
  ce p = {.data = &call->inputs[0], .label = &call->inputs[1], .loss = &call->outputs[0]};
  return run_ce(call, &p, true, ce_rows_f32, ce_rows_f64);
}

mpg_status mpg_cpu_softmax_ce(const mpg_kernel_call *call) {
  ce p = {.data = &call->inputs[0],
          .label = &call->inputs[1],
          .loss = &call->outputs[0],
          .max = &call->outputs[1],
          .log_sum = &call->outputs[2]};
  return run_ce(call, &p, false, ce_rows_f32, ce_rows_f64);
}

mpg_status mpg_cpu_softmax_ce_back(const mpg_kernel_call *call) {
  ce p = {.data = &call->inputs[1],
          .label = &call->inputs[2],
          .loss = &call->inputs[0],
          .max = &call->inputs[3],
          .log_sum = &call->inputs[4],
          .out = &call->outputs[0]};
  return run_ce(call, &p, false, ce_back_rows_f32, ce_back_rows_f64);
}
