/* Array creation, casts and plain copies. */
#include "kernels/cuda/cuda.h"
extern "C" {
#include "op/array/creation.h"
}

namespace {

template <class T>
__global__ void fill_kernel(T *out, T element, int64_t count) {
  for (int64_t i = MPG_CUDA_INDEX; i < count; i += MPG_CUDA_STRIDE) out[i] = element;
}

mpg_status fill(const mpg_kernel_call *call, double value) {
  const mpg_view *out = &call->outputs[0];
  int64_t count = count_of(out);
  size_t size = mpg_dtype_size(out->desc.dtype);
  uint64_t element = 0;
  if (!count) return MPG_OK;
  mpg_store_any(out->desc.dtype, &element, 0, value);
  if (!element) return mpg_cuda_zero(call, out);
  MPG_CUDA_SIZE(
      size, T,
      return mpg_cuda_launch(call, fill_kernel<T>, mpg_cuda_blocks(count, 4 * MPG_CUDA_THREADS),
                             MPG_CUDA_THREADS, 0, (T *)out->data, (T)element, count));
  return MPG_OK;
}

__global__ void eye_kernel(mpg_dtype dtype, void *out, int64_t rows, int64_t columns, int64_t k) {
  int64_t i = MPG_CUDA_INDEX;
  if (i >= rows) return;
  int64_t j = i + k; /* cannot overflow: mpg_cuda_eye skips diagonals outside the matrix */
  if (j >= 0 && j < columns) mpg_store_any(dtype, out, i * columns + j, 1.0);
}

/* Arithmetic sequence: element i is start + (i % period / repeat) * step. Computed in int64_t if
 * the dtype, start and step are integers (`whole`), else in double. */
struct range {
  mpg_dtype dtype;
  mpg_steps by;
  int64_t period; /* number of elements after which the sequence restarts */
  double last;    /* value of the last element if `exact`, because rounding could miss it */
  bool exact, whole;
};

__global__ void range_kernel(range r, void *out, int64_t count) {
  int64_t i = MPG_CUDA_INDEX;
  if (i >= count) return;
  int64_t k = i % r.period / r.by.repeat;
  if (r.exact && i == count - 1)
    mpg_store_any(r.dtype, out, i, r.last);
  else if (r.whole)
    mpg_store_any(
        r.dtype, out, i,
        (int64_t)((uint64_t)(int64_t)r.by.start + (uint64_t)k * (uint64_t)(int64_t)r.by.step));
  else
    mpg_store_any(r.dtype, out, i, r.by.start + (double)k * r.by.step);
}

mpg_status launch_range(const mpg_kernel_call *call, range r) {
  int64_t count = count_of(&call->outputs[0]);
  r.whole = !mpg_dtype_is_float(r.dtype) && r.by.start == (double)(int64_t)r.by.start &&
            r.by.step == (double)(int64_t)r.by.step;
  return mpg_cuda_launch(call, range_kernel, mpg_cuda_blocks(count), MPG_CUDA_THREADS, 0, r,
                         call->outputs[0].data, count);
}

template <class T, class S>
__global__ void cast_kernel(const S *in, T *out, int64_t count) {
  for (int64_t i = MPG_CUDA_INDEX; i < count; i += MPG_CUDA_STRIDE) out[i] = mpg_to<T>(in[i]);
}

__global__ void cast_any_kernel(mpg_dtype from, const void *in, mpg_dtype to, void *out,
                                int64_t count) {
  int64_t i = MPG_CUDA_INDEX;
  if (i >= count) return;
  if (from == MPG_FLOAT64)
    mpg_store_any(to, out, i, mpg_load_any<double>(from, in, i));
  else if (from == MPG_INT64)
    mpg_store_any(to, out, i, mpg_load_any<int64_t>(from, in, i));
  else if (from == MPG_FLOAT32 || from == MPG_FLOAT16 || from == MPG_BFLOAT16)
    mpg_store_any(to, out, i, mpg_load_any<float>(from, in, i));
  else
    mpg_store_any(to, out, i, mpg_load_any<int32_t>(from, in, i));
}

template <class T, class S>
mpg_status launch_cast(const mpg_kernel_call *call, const mpg_view *in, const mpg_view *out,
                       int64_t count) {
  return mpg_cuda_launch(call, cast_kernel<T, S>, mpg_cuda_blocks(count, 4 * MPG_CUDA_THREADS),
                         MPG_CUDA_THREADS, 0, (const S *)in->data, (T *)out->data, count);
}

mpg_status cast(const mpg_kernel_call *call, const mpg_view *in, const mpg_view *out) {
  mpg_dtype from = in->desc.dtype, to = out->desc.dtype;
  int64_t count = count_of(in);
  if (from == to) return mpg_cuda_copy(call, in, out);
  if (from == MPG_FLOAT32 && to == MPG_FLOAT16)
    return launch_cast<mpg_half, float>(call, in, out, count);
  if (from == MPG_FLOAT32 && to == MPG_BFLOAT16)
    return launch_cast<mpg_bfloat16, float>(call, in, out, count);
  if (from == MPG_FLOAT16 && to == MPG_FLOAT32)
    return launch_cast<float, mpg_half>(call, in, out, count);
  if (from == MPG_BFLOAT16 && to == MPG_FLOAT32)
    return launch_cast<float, mpg_bfloat16>(call, in, out, count);
  return mpg_cuda_launch(call, cast_any_kernel, mpg_cuda_blocks(count), MPG_CUDA_THREADS, 0, from,
                         (const void *)in->data, to, out->data, count);
}

} // namespace

mpg_status mpg_cuda_full(const mpg_kernel_call *call) {
  double value = 0;
  mpg_op_fill(call->op, call->params, &value);
  return fill(call, value);
}

mpg_status mpg_cuda_eye(const mpg_kernel_call *call) {
  const mpg_eye_params *params = (const mpg_eye_params *)call->params;
  const mpg_desc *desc = &call->outputs[0].desc;
  int64_t rows = desc->shape.dims[0], columns = desc->shape.dims[1];
  MPG_TRY(fill(call, 0));
  if (params->k <= -rows || params->k >= columns) return MPG_OK;
  return mpg_cuda_launch(call, eye_kernel, mpg_cuda_blocks(rows), MPG_CUDA_THREADS, 0, desc->dtype,
                         call->outputs[0].data, rows, columns, params->k);
}

mpg_status mpg_cuda_arange(const mpg_kernel_call *call) {
  const mpg_view *out = &call->outputs[0];
  int64_t count = count_of(out);
  range r = {out->desc.dtype, {0, 1, 1}, count > 0 ? count : 1, 0, false, false};
  mpg_op_steps(call->op, call->params, r.dtype, &r.by);
  return launch_range(call, r);
}

mpg_status mpg_cuda_linspace(const mpg_kernel_call *call) {
  const mpg_linspace_params *params = (const mpg_linspace_params *)call->params;
  const mpg_view *out = &call->outputs[0];
  int64_t count = count_of(out), gaps = params->endpoint ? count - 1 : count;
  range r = {out->desc.dtype,
             {params->start, gaps > 0 ? (params->stop - params->start) / (double)gaps : 0, 1},
             count > 0 ? count : 1,
             params->stop,
             params->endpoint && count > 1,
             false};
  return launch_range(call, r);
}

mpg_status mpg_cuda_cast(const mpg_kernel_call *call) {
  return cast(call, &call->inputs[0], &call->outputs[0]);
}

mpg_status mpg_cuda_identity(const mpg_kernel_call *call) {
  return cast(call, &call->inputs[0], &call->outputs[0]);
}

mpg_status mpg_cuda_amp_multicast(const mpg_kernel_call *call) {
  for (int i = 0; i < call->num_outputs; i++)
    MPG_TRY(cast(call, &call->inputs[i], &call->outputs[i]));
  return MPG_OK;
}
