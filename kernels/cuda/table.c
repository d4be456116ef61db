/* Table of GPU kernels by op id. Declarations are weak, so an op without a GPU kernel has a NULL
 * entry and fails when called. */
#include "op/kernel.h"

#define MPG_OP_ROW(id, aliases, inputs, outputs, params, infer, infer_inputs, cost, gradient,      \
                   num_inputs, num_outputs, saves, flags, dtypes, batching, sharding, kernel, doc) \
  __attribute__((weak)) mpg_status mpg_cuda_##kernel(const mpg_kernel_call *);
#include "op/ops.def"
#undef MPG_OP_ROW

extern const mpg_kernel_fn mpg_cuda_table[MPG_OP_COUNT];
const mpg_kernel_fn mpg_cuda_table[MPG_OP_COUNT] = {
#define MPG_OP_ROW(id, aliases, inputs, outputs, params, infer, infer_inputs, cost, gradient,      \
                   num_inputs, num_outputs, saves, flags, dtypes, batching, sharding, kernel, doc) \
  [MPG_OP_##id] = mpg_cuda_##kernel,
#include "op/ops.def"
#undef MPG_OP_ROW
};
