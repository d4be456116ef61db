/* GPU kernels of ops that rearrange elements. kernels/common/shape.inc implements them with the
 * functions that are defined here. */
#include "kernels/cuda/array/move.h"

#define MPG_KERNEL(cpu, cuda) mpg_status cuda(const mpg_kernel_call *call)
#define run_move mpg_cuda_move
#define spread mpg_cuda_spread
#define fill mpg_cuda_fill
#define element_of mpg_cuda_element
static bool join_in_order(const mpg_kernel_call *call, int64_t before) {
  (void)call, (void)before;
  return false; /* only the CPU benefits from sequential writes */
}

#include "kernels/common/shape.inc"

mpg_status mpg_cuda_shape_array(const mpg_kernel_call *call) {
  const mpg_shape *shape = &call->inputs[0].desc.shape;
  return mpg_cuda_write(call, shape->dims, shape->ndim, call->outputs[0].data);
}

mpg_status mpg_cuda_size_array(const mpg_kernel_call *call) {
  int64_t count = count_of(&call->inputs[0]);
  return mpg_cuda_write(call, &count, 1, call->outputs[0].data);
}
