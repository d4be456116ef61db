/* Ops that are matrix products: dot, batch_dot, linalg_gemm, linalg_syrk, FullyConnected. They
 * describe their product to mpg_cuda_multiply (product.h). */
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/math/product.h"

namespace {

/* Copies the lower triangle of each matrix to the upper triangle, so that the result is exactly
 * symmetric. */
template <class T>
__global__ void mirror_kernel(T *out, int64_t n, int64_t count) {
  int64_t i = MPG_CUDA_INDEX, row = i / n % n, column = i % n;
  if (i < count && column > row) out[i] = out[i - row * n - column + column * n + row];
}

} // namespace

mpg_status mpg_cuda_dot(const mpg_kernel_call *call) {
  const mpg_dot_params *params = (const mpg_dot_params *)call->params;
  const mpg_view *a = &call->inputs[0], *b = &call->inputs[1];
  const mpg_shape *as = &a->desc.shape, *bs = &b->desc.shape;
  mpg_cuda_product p = {};
  p.dtype = a->desc.dtype;
  p.transpose_a = params->transpose_a && as->ndim > 1;
  p.transpose_b = params->transpose_b && bs->ndim > 1;
  p.k = as->dims[p.transpose_a ? 0 : as->ndim - 1];
  p.m = p.transpose_a ? mpg_shape_product(as, 1, as->ndim) : mpg_shape_product(as, 0, as->ndim - 1);
  p.n = p.transpose_b ? mpg_shape_product(bs, 0, bs->ndim - 1) : mpg_shape_product(bs, 1, bs->ndim);
  p.lda = p.transpose_a ? p.m : p.k;
  p.ldb = p.transpose_b ? p.k : p.n;
  p.ldc = p.n;
  p.count = 1;
  p.alpha = 1;
  p.a = a->data;
  p.b = b->data;
  p.c = call->outputs[0].data;
  return mpg_cuda_multiply(call, &p);
}

mpg_status mpg_cuda_batch_dot(const mpg_kernel_call *call) {
  const mpg_batch_dot_params *params = (const mpg_batch_dot_params *)call->params;
  const mpg_view *a = &call->inputs[0], *b = &call->inputs[1], *c = &call->outputs[0];
  int ndim = a->desc.shape.ndim;
  mpg_cuda_product p = {};
  p.dtype = a->desc.dtype;
  p.transpose_a = params->transpose_a;
  p.transpose_b = params->transpose_b;
  p.count = mpg_shape_product(&a->desc.shape, 0, ndim - 2);
  p.m = c->desc.shape.dims[ndim - 2];
  p.n = c->desc.shape.dims[ndim - 1];
  p.k = a->desc.shape.dims[p.transpose_a ? ndim - 2 : ndim - 1];
  p.lda = p.transpose_a ? p.m : p.k;
  p.ldb = p.transpose_b ? p.k : p.n;
  p.ldc = p.n;
  p.a_step = p.m * p.k;
  p.b_step = p.k * p.n;
  p.c_step = p.m * p.n;
  p.alpha = 1;
  p.a = a->data;
  p.b = b->data;
  p.c = c->data;
  return mpg_cuda_multiply(call, &p);
}

/* Computes linalg_gemm for matrices with rows along `axis` and columns along the last axis. The
 * axes before `axis` (`outer` matrices) and the axes between `axis` and the last one (`inner`
 * matrices) are batch axes. A library call supports only one batch stride, so it processes the
 * larger of the two batches, and a loop iterates over the smaller one. */
mpg_status mpg_cuda_linalg_gemm(const mpg_kernel_call *call) {
  mpg_cuda_product p = {};
  int64_t axis_param;
  bool with_c = call->op->id == MPG_OP__linalg_gemm;
  if (with_c) {
    const mpg_linalg_gemm_params *params = (const mpg_linalg_gemm_params *)call->params;
    p.transpose_a = params->transpose_a, p.transpose_b = params->transpose_b,
    p.alpha = params->alpha, p.beta = params->beta, axis_param = params->axis;
  } else {
    const mpg_linalg_gemm2_params *params = (const mpg_linalg_gemm2_params *)call->params;
    p.transpose_a = params->transpose_a, p.transpose_b = params->transpose_b,
    p.alpha = params->alpha, axis_param = params->axis;
  }
  const mpg_view *a = &call->inputs[0], *b = &call->inputs[1], *c = &call->outputs[0];
  const mpg_shape *as = &a->desc.shape, *bs = &b->desc.shape, *cs = &c->desc.shape;
  int ndim = as->ndim, axis = axis_of(axis_param, ndim);
  int64_t outer = mpg_shape_product(cs, 0, axis), inner = mpg_shape_product(cs, axis + 1, ndim - 1),
          size = (int64_t)mpg_dtype_size(c->desc.dtype);
  p.dtype = a->desc.dtype;
  p.m = cs->dims[axis];
  p.n = cs->dims[ndim - 1];
  p.k = as->dims[p.transpose_a ? axis : ndim - 1];
  int64_t a_inner = as->dims[ndim - 1], b_inner = bs->dims[ndim - 1], c_inner = p.n;
  p.lda = inner * a_inner;
  p.ldb = inner * b_inner;
  p.ldc = inner * c_inner;
  int64_t a_outer = as->dims[axis] * p.lda, b_outer = bs->dims[axis] * p.ldb, c_outer = p.m * p.ldc;
  bool groups = outer >= inner; /* true if `outer` is the batch of a library call */
  p.count = groups ? outer : inner;
  p.a_step = groups ? a_outer : a_inner;
  p.b_step = groups ? b_outer : b_inner;
  p.c_step = groups ? c_outer : c_inner;
  for (int64_t i = 0; i < (groups ? inner : outer); i++) {
    p.a = (const char *)a->data + i * (groups ? a_inner : a_outer) * size;
    p.b = (const char *)b->data + i * (groups ? b_inner : b_outer) * size;
    p.c = (char *)c->data + i * (groups ? c_inner : c_outer) * size;
    if (with_c) p.c0 = (const char *)call->inputs[2].data + i * (groups ? c_inner : c_outer) * size;
    MPG_TRY(mpg_cuda_multiply(call, &p));
  }
  return MPG_OK;
}

mpg_status mpg_cuda_linalg_syrk(const mpg_kernel_call *call) {
  const mpg_linalg_syrk_params *params = (const mpg_linalg_syrk_params *)call->params;
  const mpg_view *a = &call->inputs[0], *out = &call->outputs[0];
  const mpg_shape *shape = &a->desc.shape;
  int64_t rows = shape->dims[shape->ndim - 2], columns = shape->dims[shape->ndim - 1],
          total = mpg_shape_size(&out->desc.shape);
  mpg_cuda_product p = {};
  p.dtype = a->desc.dtype;
  p.transpose_a = params->transpose;
  p.transpose_b = !params->transpose;
  p.count = mpg_shape_product(shape, 0, shape->ndim - 2);
  p.m = p.n = params->transpose ? columns : rows;
  p.k = params->transpose ? rows : columns;
  p.lda = p.ldb = columns;
  p.ldc = p.n;
  p.a_step = p.b_step = rows * columns;
  p.c_step = p.n * p.n;
  p.alpha = params->alpha;
  p.a = p.b = a->data;
  p.c = out->data;
  if (total == 0) return MPG_OK;
  MPG_TRY(mpg_cuda_multiply(call, &p));
  MPG_CUDA_FLOAT_DTYPE(p.dtype, T,
                       return mpg_cuda_launch(call, mirror_kernel<T>, mpg_cuda_blocks(total),
                                              MPG_CUDA_THREADS, 0, (T *)out->data, p.n, total));
  return MPG_OK;
}

mpg_status mpg_cuda_fully_connected(const mpg_kernel_call *call) {
  const mpg_fully_connected_params *params = (const mpg_fully_connected_params *)call->params;
  const mpg_view *data = &call->inputs[0], *weight = &call->inputs[1];
  mpg_cuda_product p = {};
  p.dtype = data->desc.dtype;
  p.transpose_b = true;
  p.n = params->num_hidden;
  p.k = weight->desc.shape.dims[1];
  p.m = params->flatten ? data->desc.shape.dims[0]
                        : mpg_shape_product(&data->desc.shape, 0, data->desc.shape.ndim - 1);
  p.lda = p.ldb = p.k;
  p.ldc = p.n;
  p.count = 1;
  p.alpha = 1;
  p.a = data->data;
  p.b = weight->data;
  p.c = call->outputs[0].data;
  if (call->num_inputs == 3) p.bias = call->inputs[2].data;
  return mpg_cuda_multiply(call, &p);
}
