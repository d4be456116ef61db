/* Routing of tokens to experts, and copies and sums of rows sorted by expert.
 *
 * The sort is a counting sort: indices keep their order within an expert. The kernels that read
 * rows by token first invert the order. Indices out of range are clipped, so damaged input cannot
 * access memory outside an array. */
#include <math.h>
#include <omp.h>
#include <string.h>

#include "base/memory.h"
#include "kernels/common/vector_math.h"
#include "kernels/common/vector_math_double.h"
#include "kernels/cpu/convert.h"
#include "op/layers/experts.h"

enum { LANES_OF_SUMS = 32, GRAIN = 16384 };

typedef struct routing {
  const mpg_kernel_call *call;
  mpg_compute compute;
  int64_t tokens, experts, k;
  bool sigmoid, renormalize;
  const mpg_view *bias; /* may be NULL */
  void *weights;        /* (tokens, k), in the computing type */
  int32_t *chosen;      /* (tokens, k) */
  char *scratch;
  size_t scratch_bytes; /* per thread */
} routing;

typedef struct rows {
  mpg_dtype dtype;
  mpg_compute compute;
  int64_t count, units, tokens, k; /* sorted rows, their size, tokens, and rows per token */
  const int32_t *order;
  int32_t *places;     /* inverse of the order: row of each (token, rank), or -1 */
  const void *weights; /* in the computing type; may be NULL */
  const void *from, *other;
  void *to;
} rows;

#define CHOSEN(e) mpg_clip_row(e, r->experts)
#define T float
#define NAME(name) name##_f32
#define EXP mpg_expf
#include "kernels/cpu/layers/experts_rows.h"
#undef T
#undef NAME
#undef EXP
#define T double
#define NAME(name) name##_f64
#define EXP mpg_exp
#include "kernels/cpu/layers/experts_rows.h"
#undef T
#undef NAME
#undef EXP

/* --- Routing ---------------------------------------------------------------------------------- */

static routing routing_of(const mpg_kernel_call *call, int scores) {
  const mpg_desc *desc = &call->inputs[scores].desc;
  int64_t experts = desc->shape.dims[desc->shape.ndim - 1];
  return (routing){.call = call,
                   .compute = mpg_compute_of(desc->dtype),
                   .experts = experts,
                   .tokens = mpg_shape_product(&desc->shape, 0, desc->shape.ndim - 1)};
}

/* Takes scratch memory: `vectors` vectors of experts and k elements per thread, after `first` bytes
 * for the caller. */
static char *take_scratch(routing *r, int vectors, size_t first) {
  size_t element = mpg_dtype_size(mpg_compute_dtype(r->compute));
  first = mpg_align_up(first, 64);
  r->scratch_bytes = mpg_cpu_buffer_step((size_t)(vectors * r->experts + r->k) * element);
  char *memory =
      mpg_device_scratch(r->call->device, first + r->scratch_bytes * (size_t)r->call->num_threads);
  if (memory) r->scratch = memory + first;
  return memory;
}

/* Sorts the indices of (token, rank) by expert. Rows beyond `limit` of an expert come after all
 * groups, and their weights become 0. `next` has room for two integers per expert. */
static void sort_by_expert(const routing *r, int64_t limit, int64_t *next, int32_t *order,
                           int32_t *counts) {
  int64_t total = r->tokens * r->k, first = 0, *dropped = next + r->experts;
  size_t element = mpg_dtype_size(mpg_compute_dtype(r->compute));
  memset(next, 0, (size_t)r->experts * sizeof *next);
  for (int64_t i = 0; i < total; i++) next[r->chosen[i]]++;
  for (int64_t e = 0; e < r->experts; e++) {
    int64_t count = next[e], kept = count < limit ? count : limit;
    counts[e] = (int32_t)kept;
    dropped[e] = count - kept;
    next[e] = first;
    first += kept;
  }
  for (int64_t e = 0; e < r->experts; e++) {
    int64_t count = dropped[e];
    dropped[e] = first;
    first += count;
  }
  for (int64_t e = 0, end = 0; e < r->experts; e++) {
    end += counts[e];
    counts[e] = (int32_t)end; /* the end of the group, while indices are placed */
  }
  for (int64_t i = 0; i < total; i++) {
    int32_t e = r->chosen[i];
    if (next[e] < counts[e]) {
      order[next[e]++] = (int32_t)i;
    } else {
      order[dropped[e]++] = (int32_t)i;
      memset((char *)r->weights + (size_t)i * element, 0, element);
    }
  }
  for (int64_t e = r->experts; e-- > 1;) counts[e] -= counts[e - 1];
}

mpg_status mpg_cpu_route(const mpg_kernel_call *call) {
  const mpg_route_params *p = call->params;
  routing r = routing_of(call, 0);
  int32_t *counts = call->outputs[1].data;
  r.k = p->k, r.sigmoid = p->router == MPG_ROUTER_SIGMOID, r.renormalize = p->renormalize;
  r.bias = call->num_inputs > 1 ? &call->inputs[1] : NULL;
  r.weights = call->outputs[2].data, r.chosen = call->outputs[3].data;
  memset(counts, 0, (size_t)r.experts * sizeof *counts);
  if (!r.tokens) return MPG_OK;
  int64_t *next = (int64_t *)(void *)take_scratch(&r, 3, (size_t)r.experts * 2 * sizeof *next);
  if (!next) return MPG_DEVICE_OUT_OF_MEMORY;
  mpg_cpu_parallel_for(call, r.tokens, 1 + GRAIN / (8 * r.experts),
                       r.compute == MPG_COMPUTE_F64 ? route_rows_f64 : route_rows_f32, &r);
  sort_by_expert(&r, mpg_route_limit(p, r.tokens, r.experts), next, call->outputs[0].data, counts);
  return MPG_OK;
}

mpg_status mpg_cpu_route_back(const mpg_kernel_call *call) {
  const mpg_route_back_params *p = call->params;
  const mpg_shape *chosen = &call->inputs[3].desc.shape;
  routing r = routing_of(call, 1);
  r.k = chosen->dims[chosen->ndim - 1];
  r.sigmoid = p->router == MPG_ROUTER_SIGMOID, r.renormalize = p->renormalize;
  r.weights = call->inputs[2].data, r.chosen = call->inputs[3].data;
  if (!r.tokens || !r.experts) return MPG_OK;
  if (!take_scratch(&r, 2, 0)) return MPG_DEVICE_OUT_OF_MEMORY;
  mpg_cpu_parallel_for(call, r.tokens, 1 + GRAIN / (8 * r.experts),
                       r.compute == MPG_COMPUTE_F64 ? route_back_rows_f64 : route_back_rows_f32,
                       &r);
  return MPG_OK;
}

/* --- Rows ------------------------------------------------------------------------------------- */

/* Describes a call with the given views of sorted rows and of tokens. `order` is an input. */
static rows rows_of(const mpg_kernel_call *call, const mpg_view *sorted, const mpg_view *tokens,
                    int order) {
  rows r = {.dtype = sorted->desc.dtype,
            .compute = mpg_compute_of(sorted->desc.dtype),
            .count = sorted->desc.shape.dims[0],
            .units = sorted->desc.shape.dims[1],
            .tokens = mpg_shape_product(&tokens->desc.shape, 0, tokens->desc.shape.ndim - 1),
            .order = call->inputs[order].data,
            .weights = order + 1 < call->num_inputs ? call->inputs[order + 1].data : NULL,
            .from = call->inputs[0].data,
            .to = call->outputs[0].data};
  if (r.tokens) r.k = r.count / r.tokens;
  return r;
}

static int64_t grain_of(const rows *r) { return 1 + GRAIN / (r->units * r->k + 1); }

/* Inverts the order. If it is not a permutation, the places without a row are -1. */
static mpg_status invert(const mpg_kernel_call *call, rows *r) {
  r->places = mpg_device_scratch(call->device, (size_t)(r->count + 1) * sizeof *r->places);
  if (!r->places) return MPG_DEVICE_OUT_OF_MEMORY;
  memset(r->places, 0xff, (size_t)r->count * sizeof *r->places);
  for (int64_t i = 0; i < r->count; i++)
    r->places[mpg_clip_row(r->order[i], r->count)] = (int32_t)i;
  return MPG_OK;
}

static void copy_rows(void *context, int64_t begin, int64_t end) {
  const rows *r = context;
  size_t bytes = (size_t)r->units * mpg_dtype_size(r->dtype);
  for (int64_t i = begin; i < end; i++)
    memcpy((char *)r->to + (size_t)i * bytes,
           (const char *)r->from + (size_t)(mpg_clip_row(r->order[i], r->count) / r->k) * bytes,
           bytes);
}

mpg_status mpg_cpu_dispatch(const mpg_kernel_call *call) {
  rows r = rows_of(call, &call->outputs[0], &call->inputs[0], 1);
  mpg_cpu_parallel_for(call, r.count, 1 + GRAIN / (r.units + 1),
                       !r.weights                     ? copy_rows
                       : r.compute == MPG_COMPUTE_F64 ? dispatch_rows_f64
                                                      : dispatch_rows_f32,
                       &r);
  return MPG_OK;
}

mpg_status mpg_cpu_combine(const mpg_kernel_call *call) {
  rows r = rows_of(call, &call->inputs[0], &call->outputs[0], 1);
  MPG_TRY(invert(call, &r));
  mpg_cpu_parallel_for(call, r.tokens, grain_of(&r),
                       r.compute == MPG_COMPUTE_F64 ? combine_rows_f64 : combine_rows_f32, &r);
  return MPG_OK;
}

mpg_status mpg_cpu_row_dots(const mpg_kernel_call *call) {
  rows r = rows_of(call, &call->inputs[1], &call->inputs[0], 2);
  r.other = call->inputs[1].data;
  if (!r.tokens) return MPG_OK;
  MPG_TRY(invert(call, &r));
  mpg_cpu_parallel_for(call, r.count, 1 + GRAIN / (r.units + 1),
                       r.compute == MPG_COMPUTE_F64 ? dot_rows_f64 : dot_rows_f32, &r);
  return MPG_OK;
}
