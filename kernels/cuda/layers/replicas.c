/* Exchange of data between replicas, through host memory. The device's worker thread first waits
 * until its stream has computed the contribution, then waits for the other replicas. */
#include "kernels/common/replicas.h"

#include <stdlib.h>

#include "kernels/cuda/runtime/runtime.h"

static size_t bytes_of(const mpg_view *view) {
  return (size_t)mpg_shape_size(&view->desc.shape) * mpg_dtype_size(view->desc.dtype);
}

static mpg_status copy(const mpg_kernel_call *call, void *to, const void *from, size_t size) {
  cudaStream_t stream = (cudaStream_t)call->stream;
  if (!size) return MPG_OK;
  MPG_CUDA_TRY(cudaMemcpyAsync(to, from, size, cudaMemcpyDefault, stream));
  MPG_CUDA_TRY(cudaStreamSynchronize(stream));
  return MPG_OK;
}

mpg_status mpg_cuda_replicas(const mpg_kernel_call *call) {
  const mpg_view *in = &call->inputs[0], *out = &call->outputs[0];
  char *host = malloc(bytes_of(in) + bytes_of(out) + 1);
  if (!host) return mpg_fail(MPG_HOST_OUT_OF_MEMORY, "out of memory in a collective of replicas");
  mpg_status status = copy(call, host, in->data, bytes_of(in));
  if (status == MPG_OK) status = mpg_replicas_exchange(call, host, host + bytes_of(in));
  if (status == MPG_OK) status = copy(call, out->data, host + bytes_of(in), bytes_of(out));
  free(host);
  return status;
}
