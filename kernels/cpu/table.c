/* The kernel column of the op table for this instruction set. A missing kernel is a link error. */
#include "kernels/cpu/cpu.h"

const mpg_kernel_fn mpg_cpu_table[MPG_OP_COUNT] = {
#define MPG_OP_ROW(id, aliases, inputs, outputs, params, infer, infer_inputs, cost, gradient,      \
                   num_inputs, num_outputs, saves, flags, dtypes, batching, sharding, kernel, doc) \
  [MPG_OP_##id] = mpg_cpu_##kernel,
#include "op/ops.def"
#undef MPG_OP_ROW
};
