/* The ops dot, batch_dot and FullyConnected. */
#include <string.h>

#include "kernels/cpu/products/gemm.h"
#include "kernels/cpu/products/narrow/narrow_halves.h"
#include "kernels/cpu/products/paired_product.h"
#include "kernels/cpu/products/panels.h"

/* --- oneDNN ----------------------------------------------------------------------------------- */
#ifdef MPG_WITH_ONEDNN
/* Runs a product with oneDNN and sets *status. Returns false if the product is tiny or oneDNN has
 * no implementation. */
static bool onednn_matmul(const mpg_kernel_call *call, mpg_dtype dtype, mpg_onednn_matmul *s,
                          const void *a, const void *b, const void *bias, void *c,
                          mpg_status *status) {
  s->dtype = s->result = mpg_cpu_onednn_dtype(dtype);
  if (!s->dtype || mpg_gemm_tiny(s->m, s->n, s->k) || s->k == 0) return false;
  s->bias = bias != NULL;
  s->ldc = s->n;
  mpg_paired_product product;
  if (!mpg_cpu_paired_product_find(call, s, &product)) return false;
  void *scratch = NULL;
  if (product.scratch && !(scratch = mpg_device_scratch(call->device, product.scratch)))
    *status = MPG_DEVICE_OUT_OF_MEMORY;
  else
    *status = mpg_cpu_paired_product_run(call, s, &product, a, b, bias, c, scratch);
  return true;
}
#endif

mpg_status mpg_cpu_dot(const mpg_kernel_call *call) {
  const mpg_dot_params *p = call->params;
  const mpg_view *a = &call->inputs[0], *b = &call->inputs[1];
  const mpg_shape *as = &a->desc.shape, *bs = &b->desc.shape;
  mpg_product product;
  if (mpg_product_in_panels(call->op, p, (const mpg_desc *[]){&a->desc, &b->desc}, &product))
    return mpg_cpu_panels(call, &product);
  bool ta = p->transpose_a && as->ndim > 1, tb = p->transpose_b && bs->ndim > 1;
  int64_t k = as->dims[ta ? 0 : as->ndim - 1];
  int64_t m = ta ? mpg_shape_product(as, 1, as->ndim) : mpg_shape_product(as, 0, as->ndim - 1);
  int64_t n = tb ? mpg_shape_product(bs, 0, bs->ndim - 1) : mpg_shape_product(bs, 1, bs->ndim);
  if (mpg_cpu_narrow_halves(call, &(mpg_half_product){a->desc.dtype, ta, tb, 1, m, n, k, a->data,
                                                      b->data, NULL, call->outputs[0].data}))
    return MPG_OK;
#ifdef MPG_WITH_ONEDNN
  mpg_onednn_matmul s = {.batch = 1, .m = m, .n = n, .k = k, .ta = ta, .tb = tb};
  mpg_status status;
  if (a->desc.dtype != MPG_FLOAT32 && m * n > 0 &&
      onednn_matmul(call, a->desc.dtype, &s, a->data, b->data, NULL, call->outputs[0].data,
                    &status))
    return status;
#endif
  return mpg_cpu_gemm_any(call, a->desc.dtype, ta, tb, m, n, k, 1, a->data, ta ? m : k, b->data,
                          tb ? k : n, 0, call->outputs[0].data, n);
}

/* --- Batched products ------------------------------------------------------------------------- */
typedef struct batch {
  const mpg_kernel_call *call;
  mpg_dtype dtype;
  bool ta, tb;
  int64_t inner; /* number of products whose rows are interleaved (linalg's axis) */
  int64_t m, n, k;
  int64_t lda, ldb, ldc;
  /* stride in elements between groups of `inner` products */
  int64_t a_outer, b_outer, c_outer;
  int64_t a_inner, b_inner, c_inner; /* stride between products of a group */
  double alpha, beta;
  const char *a, *b;
  char *c;
  mpg_status status;
} batch;

static mpg_status one_product(const mpg_kernel_call *call, const batch *t, int64_t i) {
  int64_t outer = i / t->inner, inner = i % t->inner, size = (int64_t)mpg_dtype_size(t->dtype);
  return mpg_cpu_gemm_any(call, t->dtype, t->ta, t->tb, t->m, t->n, t->k, t->alpha,
                          t->a + (outer * t->a_outer + inner * t->a_inner) * size, t->lda,
                          t->b + (outer * t->b_outer + inner * t->b_inner) * size, t->ldb, t->beta,
                          t->c + (outer * t->c_outer + inner * t->c_inner) * size, t->ldc);
}

/* Runs tiny products, which cannot fail. */
static void small_products(void *context, int64_t begin, int64_t end) {
  const batch *t = context;
  mpg_kernel_call single = *t->call;
  single.num_threads = 1;
  for (int64_t i = begin; i < end; i++) (void)one_product(&single, t, i);
}

static mpg_status many_products(const mpg_kernel_call *call, batch *t, int64_t count) {
  t->call = call;
  if (mpg_gemm_tiny(t->m, t->n, t->k)) {
    int64_t work = t->m * t->n * t->k;
    mpg_cpu_parallel_for(call, count, work > 16384 ? 1 : 1 + 16384 / (work + 64), small_products,
                         t);
    return MPG_OK;
  }
  for (int64_t i = 0; i < count; i++) MPG_TRY(one_product(call, t, i));
  return MPG_OK;
}

mpg_status mpg_cpu_batch_dot(const mpg_kernel_call *call) {
  const mpg_batch_dot_params *p = call->params;
  const mpg_view *a = &call->inputs[0], *b = &call->inputs[1], *c = &call->outputs[0];
  int ndim = a->desc.shape.ndim;
  int64_t count = mpg_shape_product(&a->desc.shape, 0, ndim - 2);
  int64_t m = c->desc.shape.dims[ndim - 2], n = c->desc.shape.dims[ndim - 1];
  int64_t k = a->desc.shape.dims[p->transpose_a ? ndim - 2 : ndim - 1];
  if (count * m * n == 0) return MPG_OK;
  if (m == 1 && !p->transpose_a && p->transpose_b && n % 4 == 0 && k >= 32 &&
      !mpg_gemm_tiny(m, n, k) && mpg_gemm_few_rows(a->desc.dtype, m)) {
    mpg_cpu_row_products(call, a->desc.dtype, count, NULL, n, k, a->data, b->data, c->data);
    return MPG_OK;
  }
  if (mpg_cpu_narrow_halves(
          call, &(mpg_half_product){a->desc.dtype, p->transpose_a, p->transpose_b, count, m, n, k,
                                    a->data, b->data, NULL, c->data}))
    return MPG_OK;
#ifdef MPG_WITH_ONEDNN
  mpg_onednn_matmul s = {
      .batch = count, .m = m, .n = n, .k = k, .ta = p->transpose_a, .tb = p->transpose_b};
  mpg_status status;
  if (onednn_matmul(call, a->desc.dtype, &s, a->data, b->data, NULL, c->data, &status))
    return status;
#endif
  batch t = {.dtype = a->desc.dtype,
             .ta = p->transpose_a,
             .tb = p->transpose_b,
             .inner = 1,
             .m = m,
             .n = n,
             .k = k,
             .lda = p->transpose_a ? m : k,
             .ldb = p->transpose_b ? k : n,
             .ldc = n,
             .a_outer = m * k,
             .b_outer = k * n,
             .c_outer = m * n,
             .alpha = 1,
             .beta = 0,
             .a = a->data,
             .b = b->data,
             .c = c->data};
  return many_products(call, &t, count);
}

/* Runs _linalg_gemm2, and _linalg_gemm, which also adds beta * C. */
mpg_status mpg_cpu_linalg_gemm(const mpg_kernel_call *call) {
  bool with_c = call->op->id == MPG_OP__linalg_gemm, ta, tb;
  double alpha, beta = 0;
  int64_t axis_param;
  if (with_c) {
    const mpg_linalg_gemm_params *p = call->params;
    ta = p->transpose_a, tb = p->transpose_b, alpha = p->alpha, beta = p->beta,
    axis_param = p->axis;
  } else {
    const mpg_linalg_gemm2_params *p = call->params;
    ta = p->transpose_a, tb = p->transpose_b, alpha = p->alpha, axis_param = p->axis;
  }
  const mpg_view *a = &call->inputs[0], *b = &call->inputs[1], *c = &call->outputs[0];
  const mpg_shape *as = &a->desc.shape, *bs = &b->desc.shape, *cs = &c->desc.shape;
  int ndim = as->ndim, axis = (int)(axis_param < 0 ? axis_param + ndim : axis_param);
  int64_t outer = mpg_shape_product(cs, 0, axis), inner = mpg_shape_product(cs, axis + 1, ndim - 1);
  int64_t m = cs->dims[axis], n = cs->dims[ndim - 1], k = as->dims[ta ? axis : ndim - 1];
  if (outer * inner * m * n == 0) return MPG_OK;
  if (with_c)
    memcpy(c->data, call->inputs[2].data,
           (size_t)mpg_shape_size(cs) * mpg_dtype_size(c->desc.dtype));
  batch t = {.dtype = a->desc.dtype,
             .ta = ta,
             .tb = tb,
             .inner = inner,
             .m = m,
             .n = n,
             .k = k,
             .alpha = alpha,
             .beta = beta,
             .a = a->data,
             .b = b->data,
             .c = c->data,
             .a_inner = as->dims[ndim - 1],
             .b_inner = bs->dims[ndim - 1],
             .c_inner = n};
  t.lda = inner * t.a_inner, t.ldb = inner * t.b_inner, t.ldc = inner * n;
  t.a_outer = as->dims[axis] * t.lda, t.b_outer = bs->dims[axis] * t.ldb, t.c_outer = m * t.ldc;
  return many_products(call, &t, outer * inner);
}

/* --- FullyConnected --------------------------------------------------------------------------- */
typedef struct bias_rows {
  mpg_dtype dtype;
  int64_t columns;
  const void *bias;
  void *out;
} bias_rows;

/* Fills every row with the bias, to which the product is then added. */
static void fill_bias(void *context, int64_t begin, int64_t end) {
  const bias_rows *t = context;
  size_t row = (size_t)t->columns * mpg_dtype_size(t->dtype);
  for (int64_t i = begin; i < end; i++) memcpy((char *)t->out + (size_t)i * row, t->bias, row);
}

mpg_status mpg_cpu_fully_connected(const mpg_kernel_call *call) {
  const mpg_fully_connected_params *p = call->params;
  const mpg_view *data = &call->inputs[0], *weight = &call->inputs[1], *out = &call->outputs[0];
  const void *bias = call->num_inputs == 3 ? call->inputs[2].data : NULL;
  int64_t n = p->num_hidden, k = weight->desc.shape.dims[1];
  int64_t m = p->flatten ? data->desc.shape.dims[0]
                         : mpg_shape_product(&data->desc.shape, 0, data->desc.shape.ndim - 1);
  if (m == 0) return MPG_OK;
  mpg_product product;
  if (mpg_product_in_panels(call->op, p, (const mpg_desc *[]){&data->desc, &weight->desc},
                            &product))
    return mpg_cpu_panels(call, &product);
  if (mpg_cpu_narrow_halves(call, &(mpg_half_product){data->desc.dtype, false, true, 1, m, n, k,
                                                      data->data, weight->data, bias, out->data}))
    return MPG_OK;
#ifdef MPG_WITH_ONEDNN
  mpg_dtype dtype = data->desc.dtype;
  mpg_onednn_matmul s = {.batch = 1, .m = m, .n = n, .k = k, .tb = true};
  mpg_status status;
  if ((bias || dtype != MPG_FLOAT32) && !mpg_gemm_few_rows(dtype, m) &&
      onednn_matmul(call, dtype, &s, data->data, weight->data, bias, out->data, &status))
    return status;
#endif
  if (bias) {
    bias_rows t = {out->desc.dtype, n, bias, out->data};
    mpg_cpu_parallel_for(call, m, 1 + 65536 / n, fill_bias, &t);
  }
  return mpg_cpu_gemm_any(call, data->desc.dtype, false, true, m, n, k, 1, data->data, k,
                          weight->data, k, bias ? 1 : 0, out->data, n);
}
