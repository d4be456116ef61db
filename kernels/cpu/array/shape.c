/* Ops that rearrange elements: the CPU instance of kernels/common/shape.inc. */
#include <string.h>

#include "kernels/common/view.h"
#include "kernels/cpu/convert.h"
#include "kernels/cpu/array/move.h"

#define MPG_KERNEL(cpu, cuda) mpg_status cpu(const mpg_kernel_call *call)

static mpg_status run_move(const mpg_kernel_call *call, const mpg_move *move, const void *in,
                           void *out, size_t item) {
  mpg_cpu_move(call, move, in, out, item);
  return MPG_OK;
}

static mpg_status spread(const mpg_kernel_call *call, const mpg_move *move, const void *element,
                         void *out, size_t item) {
  return run_move(call, move, element, out, item);
}

static mpg_status fill(const mpg_kernel_call *call, void *out, int64_t count, size_t item,
                       const void *element) {
  mpg_cpu_fill(call, out, count, item, element);
  return MPG_OK;
}

static uint64_t element_of(mpg_dtype dtype, double value) {
  uint64_t element = 0;
  mpg_cpu_store(MPG_COMPUTE_F64, dtype, &element, 0, 1, &value);
  if (dtype == MPG_FLOAT64) memcpy(&element, &value, sizeof value);
  return element;
}

typedef struct join_context {
  const mpg_kernel_call *call;
  int64_t before; /* runs per input */
} join_context;

/* Concatenates the inputs. A run is the contiguous part of an input for one index of the axes
 * before the concatenation axis. The result is written in memory order: for each index, one run of
 * each input. */
static void join_runs(void *context, int64_t begin, int64_t end) {
  const join_context *p = context;
  const mpg_kernel_call *call = p->call;
  size_t total = bytes_of(&call->outputs[0]) / (size_t)p->before;
  char *out = (char *)call->outputs[0].data + (size_t)begin * total;
  for (int64_t row = begin; row < end; row++)
    for (int i = 0; i < call->num_inputs; i++) {
      size_t own = bytes_of(&call->inputs[i]) / (size_t)p->before;
      mpg_copy_run(out, (const char *)call->inputs[i].data + (size_t)row * own, own);
      out += own;
    }
}

static bool join_in_order(const mpg_kernel_call *call, int64_t before) {
  /* Minimum bytes per run and minimum number of runs. Below these, moves are faster. */
  enum { LEAST_RUN = 256, LEAST_RUNS = 64 };
  size_t total = bytes_of(&call->outputs[0]) / (size_t)before;
  if (before < LEAST_RUNS || total / (size_t)call->num_inputs < LEAST_RUN) return false;
  join_context context = {call, before};
  mpg_cpu_parallel_for(call, before, 1 + 65536 / (int64_t)total, join_runs, &context);
  return true;
}

#include "kernels/common/shape.inc"

/* --- Shapes as arrays ------------------------------------------------------------------------- */

mpg_status mpg_cpu_shape_array(const mpg_kernel_call *call) {
  const mpg_shape *shape = &call->inputs[0].desc.shape;
  for (int i = 0; i < shape->ndim; i++) ((int64_t *)call->outputs[0].data)[i] = shape->dims[i];
  return MPG_OK;
}

mpg_status mpg_cpu_size_array(const mpg_kernel_call *call) {
  *(int64_t *)call->outputs[0].data = count_of(&call->inputs[0]);
  return MPG_OK;
}
