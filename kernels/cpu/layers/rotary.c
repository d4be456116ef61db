/* Rotary position embedding and its gradient. Angles, sines and cosines are computed in double. */
#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "kernels/common/vector_math_double.h"
#include "kernels/cpu/convert.h"
#include "op/attention/rotary.h"

typedef struct rotation {
  mpg_rotary shape;
  const char *x;
  char *y;
  const void *positions; /* NULL: shape.start, shape.start + 1, ... */
  bool wide;             /* positions are int64 */
  double direction;      /* 1, or -1 for the gradient */
  double fastest;        /* the largest frequency */
  /* Per position (and batch entry, if each has positions of its own): `pairs` cosines, then as many
   * sines, in the compute type, times the factor of the results. */
  char *table;
} rotation;

static double position_of(const rotation *t, int64_t row) {
  if (!t->positions) return (double)(t->shape.start + row);
  return t->wide ? (double)((const int64_t *)t->positions)[row]
                 : (double)((const int32_t *)t->positions)[row];
}

#define IMPLEMENTATION "kernels/cpu/layers/rotary_impl.h"
#include "kernels/cpu/float_instances.h"

mpg_status mpg_cpu_rotary(const mpg_kernel_call *call) {
  const mpg_view *x = &call->inputs[0], *positions = call->num_inputs > 1 ? &call->inputs[1] : NULL;
  rotation t = {.x = x->data,
                .y = call->outputs[0].data,
                .positions = positions ? positions->data : NULL,
                .wide = positions && positions->desc.dtype == MPG_INT64,
                .direction = call->op->id == MPG_OP__backward_rotary ? -1 : 1};
  mpg_rotary_make(call->params, &x->desc.shape, positions ? &positions->desc.shape : NULL,
                  &t.shape);
  const mpg_rotary *s = &t.shape;
  for (int i = 0; i < s->pairs; i++) t.fastest = fmax(t.fastest, (double)s->frequencies[i]);
  int64_t units = s->batch * s->time, elements = s->heads * s->size,
          rows = s->positions_by_batch ? units : s->time;
  if (!units || !elements) return MPG_OK;
  size_t width = x->desc.dtype == MPG_FLOAT64 ? sizeof(double) : sizeof(float);
  t.table = mpg_device_scratch(call->device, (size_t)(rows * 2 * s->pairs + 1) * width);
  if (!t.table) return MPG_DEVICE_OUT_OF_MEMORY;
  mpg_cpu_parallel_for(call, rows, 2048 / (s->pairs + 1) + 1, INSTANCE(x->desc.dtype, rotary_table),
                       &t);
  mpg_cpu_parallel_for(call, units, 16384 / (elements + 1) + 1,
                       INSTANCE(x->desc.dtype, rotary_rows), &t);
  return MPG_OK;
}
