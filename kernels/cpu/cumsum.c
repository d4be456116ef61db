/* Cumulative sums. The input is [outer, length, inner]; rows of `inner` elements are added up one after the other, so the
 * order of additions, and with it every bit, is that of the definition. Floats are summed in double. Threads share the outer index.
 */
#include "kernels/cpu/convert.h"

typedef struct cumsum {
  const mpg_kernel_call *call;
  mpg_compute compute;
  int64_t length, inner;
  bool reverse;
} cumsum;

/* One row of sums: `sums` += row, then stored; in pieces of MPG_CPU_BLOCK elements. `S`: what is added, in which integers wrap. */
#define ADD_ROW(T, S, field)                                                                                       \
  do {                                                                                                             \
    const T *row = mpg_cpu_load(p->compute, in->desc.dtype, in->data, at + i, count, &loaded);                     \
    T *place = mpg_cpu_place(p->compute, out->desc.dtype, out->data, at + i, &stored);                             \
    for (int64_t k = 0; k < count; k++) place[k] = (T)(sums.field[k] = (S)sums.field[k] + (S)row[k]);              \
    mpg_cpu_store(p->compute, out->desc.dtype, out->data, at + i, count, place);                                   \
  } while (0)

static void cumsum_range(void *context, int64_t begin, int64_t end) {
  const cumsum *p = context;
  const mpg_view *in = &p->call->inputs[0], *out = &p->call->outputs[0];
  mpg_block_buffer loaded, stored, sums;
  for (int64_t outer = begin; outer < end; outer++)
    for (int64_t i = 0; i < p->inner; i += MPG_CPU_BLOCK) {
      int64_t count = p->inner - i < MPG_CPU_BLOCK ? p->inner - i : MPG_CPU_BLOCK;
      memset(&sums, 0, sizeof sums);
      for (int64_t step = 0; step < p->length; step++) {
        int64_t at = (outer * p->length + (p->reverse ? p->length - 1 - step : step)) * p->inner;
        switch (p->compute) {
          case MPG_COMPUTE_F32: ADD_ROW(float, double, f64); break;
          case MPG_COMPUTE_F64: ADD_ROW(double, double, f64); break;
          case MPG_COMPUTE_I32: ADD_ROW(int32_t, uint32_t, i32); break;
          default: ADD_ROW(int64_t, uint64_t, i64); break;
        }
      }
    }
}

MPG_CPU_KERNEL(cumsum) {
  const mpg_cumsum_params *params = call->params;
  const mpg_shape *shape = &call->inputs[0].desc.shape;
  /* The result's dtype decides how is summed. */
  cumsum p = {.call = call, .compute = mpg_compute_of(call->outputs[0].desc.dtype), .length = mpg_shape_size(shape), .inner = 1,
              .reverse = params->reverse};
  int64_t outer = 1;
  if (params->axis.present) {
    int axis = (int)(params->axis.value < 0 ? params->axis.value + shape->ndim : params->axis.value);
    outer = mpg_shape_product(shape, 0, axis);
    p.length = shape->dims[axis];
    p.inner = mpg_shape_product(shape, axis + 1, shape->ndim);
  }
  if (mpg_shape_size(shape)) mpg_cpu_parallel_for(call, outer, 1 + 16384 / (p.length * p.inner), cumsum_range, &p);
  return MPG_OK;
}
