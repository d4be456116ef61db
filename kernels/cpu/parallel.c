/* The parallel loop of CPU kernels. */
#include "kernels/cpu/cpu.h"

void mpg_cpu_parallel_for(const mpg_kernel_call *call, int64_t count, int64_t grain,
                          mpg_range_fn body, void *context) {
  if (count <= 0) return;
  if (grain < 1) grain = 1;
  int64_t grains = (count - 1) / grain + 1;
  int threads = grains < call->num_threads ? (int)grains : call->num_threads;
  if (threads <= 1) {
    body(context, 0, count);
    return;
  }
#pragma omp parallel for num_threads(threads) schedule(static, 1)
  for (int i = 0; i < threads; i++) {
    int64_t begin = grains * i / threads * grain, end = grains * (i + 1) / threads * grain;
    if (end > count) end = count;
    if (begin < end) body(context, begin, end);
  }
}
