/* Cumulative sums. A block processes a line along the axis, tile by tile (MPG_CUDA_THREADS
 * elements). It computes each tile's prefix sum in shared memory (Hillis-Steele scan) and adds the
 * sum of all earlier tiles. The order of additions depends only on the line's length. Floats are
 * summed in double. */
#include "kernels/cuda/access.h"

namespace {

/* Computes the cumulative sums of all lines, in type C. One block per line. */
template <class C>
__global__ void cumsum_kernel(mpg_untyped in, mpg_untyped out, int64_t lines, int64_t length,
                              int64_t inner, bool reverse) {
  __shared__ C sums[2][MPG_CUDA_THREADS];
  for (int64_t line = blockIdx.x; line < lines; line += gridDim.x) {
    int64_t first = line / inner * length * inner + line % inner;
    C before = 0;
    for (int64_t begin = 0; begin < length; begin += MPG_CUDA_THREADS) {
      int64_t step = begin + threadIdx.x,
              place = first + (reverse ? length - 1 - step : step) * inner;
      int side = 0;
      sums[0][threadIdx.x] = step < length ? in.load<C>(place) : (C)0;
      __syncthreads();
      for (int reach = 1; reach < MPG_CUDA_THREADS; reach *= 2) {
        C value = sums[side][threadIdx.x];
        sums[1 - side][threadIdx.x] =
            (int)threadIdx.x >= reach ? sums[side][threadIdx.x - reach] + value : value;
        side = 1 - side;
        __syncthreads();
      }
      if (step < length) out.store(place, before + sums[side][threadIdx.x]);
      before = before + sums[side][MPG_CUDA_THREADS - 1];
      __syncthreads();
    }
  }
}

} // namespace

mpg_status mpg_cuda_cumsum(const mpg_kernel_call *call) {
  const mpg_cumsum_params *params = (const mpg_cumsum_params *)call->params;
  const mpg_shape *shape = &call->inputs[0].desc.shape;
  int64_t outer = 1, length = mpg_shape_size(shape), inner = 1;
  if (!length) return MPG_OK;
  if (params->axis.present) {
    int axis = axis_of(params->axis.value, shape->ndim);
    outer = mpg_shape_product(shape, 0, axis);
    length = shape->dims[axis];
    inner = mpg_shape_product(shape, axis + 1, shape->ndim);
  }
  mpg_untyped in = mpg_untyped_view(&call->inputs[0]), out = mpg_untyped_view(&call->outputs[0]);
  unsigned blocks = mpg_cuda_blocks(outer * inner, 1);
#define SUM(C)                                                                         \
  return mpg_cuda_launch(call, cumsum_kernel<C>, blocks, MPG_CUDA_THREADS, 0, in, out, \
                         outer * inner, length, inner, params->reverse)
  switch (out.dtype) { /* the result's dtype determines the type of the sums */
    case MPG_FLOAT32:
    case MPG_FLOAT16:
    case MPG_BFLOAT16:
    case MPG_FLOAT64: SUM(double);
    default: SUM(int64_t); /* narrower dtypes wrap around when stored */
  }
#undef SUM
}
