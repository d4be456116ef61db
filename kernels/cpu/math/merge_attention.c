/* Merging of attention to parts of the keys (op/attention/merge_attention.c). */
#include <math.h>

#include "kernels/cpu/convert.h"
#include "op/attention/attention_call.h"

/* The rows of a result (batch, ..., features). Rows are counted over batches and heads. */
typedef struct merging {
  const mpg_kernel_call *call;
  int64_t heads, rows, width;
  mpg_attention_place at;
} merging;

static merging merging_of(const mpg_kernel_call *call) {
  const mpg_shape *shape = &call->inputs[0].desc.shape;
  int32_t layout = ((const mpg_merge_attention_params *)call->params)->layout;
  int time = mpg_attention_time(layout);
  return (merging){.call = call,
                   .heads = shape->dims[3 - time],
                   .rows = shape->dims[time],
                   .width = shape->dims[3],
                   .at = mpg_attention_place_in(shape, layout)};
}

/* Offset of a row in the results. */
static int64_t row_at(const merging *m, int64_t row) {
  int64_t head = row / m->rows;
  return head / m->heads * m->at.by_batch + head % m->heads * m->at.by_head +
         row % m->rows * m->at.by_row;
}
/* Offset of a row's first number in the sums. The second one follows `rows` elements later. */
static int64_t sums_at(const merging *m, int64_t row) {
  return row / m->rows * 2 * m->rows + row % m->rows;
}

#define IMPLEMENTATION "kernels/cpu/math/merge_attention_impl.h"
#include "kernels/cpu/float_instances.h"

static mpg_status run(const mpg_kernel_call *call, const merging *m, mpg_range_fn rows) {
  enum { GRAIN = 1 << 14 };
  int64_t count = mpg_shape_size(&call->inputs[1 + (call->num_inputs == 3)].desc.shape) / 2;
  if (count) mpg_cpu_parallel_for(call, count, GRAIN / (m->width + 1) + 1, rows, (void *)m);
  return MPG_OK;
}

mpg_status mpg_cpu_merge_attention(const mpg_kernel_call *call) {
  merging m = merging_of(call);
  return run(call, &m, INSTANCE(call->inputs[0].desc.dtype, merge_rows));
}
mpg_status mpg_cpu_attention_statistics(const mpg_kernel_call *call) {
  merging m = merging_of(call);
  return run(call, &m, INSTANCE(call->inputs[0].desc.dtype, describe_rows));
}
