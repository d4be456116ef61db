/* Matrix products with cuBLASLt, which is column-major. A row-major product c = a b is the
 * column-major product c^T = b^T a^T, so operands are passed in reverse order: op(b)^T is (n, k),
 * op(a)^T (k, m), and the result (n, m). The bias then runs along cuBLASLt's rows, as its bias
 * epilogue requires.
 *
 * The signature of a product is everything except its addresses and factors. Descriptors are
 * created and an algorithm is chosen once per signature (plans.h). A call looks up its plan, sets
 * the bias address, and queues the product.
 */
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/cuda.h"
extern "C" {
#include "base/memory.h"
#include "kernels/cuda/runtime/cache.h"
#include "kernels/cuda/vendor/library.h"
}
#include "kernels/cuda/vendor/cublaslt.h"
#include "kernels/cuda/runtime/plans.h"
#include "kernels/cuda/math/product.h"

namespace {

enum { ALIGNMENT = 16 };
enum { MAX_BATCH = 32768 };                /* maximum matrices per library call */
const size_t WORKSPACE = (size_t)32 << 20; /* maximum workspace in bytes */

struct functions {
  MPG_CUBLASLT_FUNCTIONS(MPG_CUDA_FUNCTION)
};

/* Cache key of a plan. It must not have padding, since keys are compared as bytes. */
struct signature {
  int64_t m, n, k, lda, ldb, ldc, count, a_step, b_step, c_step;
  int32_t dtype;
  uint8_t transpose_a, transpose_b, bias, wide;
};

struct plan {
  signature key;
  plan *next, *newer, *older;
  bool bias_apart; /* cuBLASLt cannot add the bias, so c is filled with the bias and beta is 1 */
  cublasLtMatmulDesc_t desc;
  cublasLtMatrixLayout_t a, b, c; /* layouts, named after the row-major product's matrices */
  cublasLtMatmulAlgo_t algo;
  size_t workspace;
};

/* Per-device state. */
struct products {
  functions lt;
  cublasLtHandle_t handle;
  bool tf32;
  mpg_plans<plan> plans;
};

mpg_status failed(const mpg_kernel_call *call, const functions *lt, const char *what,
                  cublasStatus_t status) {
  return mpg_fail(status == MPG_CUBLAS_STATUS_ALLOC_FAILED ? MPG_DEVICE_OUT_OF_MEMORY : MPG_ERROR,
                  "%s: %s failed: %s", call->op ? call->op->name : "product", what,
                  lt->cublasLtGetStatusName(status));
}

void destroy_descriptors(const functions *lt, plan *p) {
  if (p->desc) lt->cublasLtMatmulDescDestroy(p->desc);
  if (p->a) lt->cublasLtMatrixLayoutDestroy(p->a);
  if (p->b) lt->cublasLtMatrixLayoutDestroy(p->b);
  if (p->c) lt->cublasLtMatrixLayoutDestroy(p->c);
  p->desc = NULL;
  p->a = p->b = p->c = NULL;
}

void destroy_plan(const functions *lt, plan *p) {
  destroy_descriptors(lt, p);
  mpg_free(p);
}

void release_products(void *contents) {
  products *all = (products *)contents;
  mpg_plans_clear(&all->plans, [all](plan *p) { destroy_plan(&all->lt, p); });
  all->lt.cublasLtDestroy(all->handle);
  mpg_free(all);
}

mpg_status make_products(void **contents) {
  static const char *const names[] = {MPG_CUBLASLT_FUNCTIONS(MPG_CUDA_FUNCTION_NAME)};
  products *all = (products *)mpg_calloc(1, sizeof *all);
  if (!all) return mpg_out_of_host_memory(sizeof *all);
  mpg_status status =
      mpg_cuda_library_functions(MPG_CUDA_CUBLASLT, names, sizeof names / sizeof *names, &all->lt);
  if (status == MPG_OK) status = mpg_cuda_setting("MPGLUON_CUDA_TF32", false, &all->tf32);
  if (status == MPG_OK) {
    cublasStatus_t result = all->lt.cublasLtCreate(&all->handle);
    if (result != MPG_CUBLAS_STATUS_SUCCESS)
      status =
          mpg_fail(result == MPG_CUBLAS_STATUS_ALLOC_FAILED ? MPG_DEVICE_OUT_OF_MEMORY : MPG_ERROR,
                   "cublasLtCreate failed: %s", all->lt.cublasLtGetStatusName(result));
  }
  if (status != MPG_OK) {
    mpg_free(all);
    return status;
  }
  *contents = all;
  return MPG_OK;
}

/* --- Plans ------------------------------------------------------------------------------------ */
mpg_cublaslt_type type_of(int32_t dtype) {
  return dtype == MPG_FLOAT64    ? MPG_CUDA_R_64F
         : dtype == MPG_FLOAT16  ? MPG_CUDA_R_16F
         : dtype == MPG_BFLOAT16 ? MPG_CUDA_R_16BF
                                 : MPG_CUDA_R_32F;
}

/* Creates the layout of a row-major (rows, columns) matrix, which cuBLASLt sees transposed. */
cublasStatus_t make_layout(const functions *lt, cublasLtMatrixLayout_t *layout,
                           const signature &key, int32_t dtype, int64_t rows, int64_t columns,
                           int64_t ld, int64_t step) {
  cublasStatus_t status =
      lt->cublasLtMatrixLayoutCreate(layout, type_of(dtype), (uint64_t)columns, (uint64_t)rows, ld);
  if (status != MPG_CUBLAS_STATUS_SUCCESS || key.count == 1) return status;
  int32_t count = (int32_t)key.count;
  status = lt->cublasLtMatrixLayoutSetAttribute(*layout, MPG_CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT,
                                                &count, sizeof count);
  if (status == MPG_CUBLAS_STATUS_SUCCESS)
    status = lt->cublasLtMatrixLayoutSetAttribute(
        *layout, MPG_CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &step, sizeof step);
  return status;
}

cublasStatus_t make_descriptors(const products *all, plan *p) {
  const functions *lt = &all->lt;
  const signature &key = p->key;
  bool wide = key.dtype == MPG_FLOAT64;
  cublasComputeType_t compute = wide ? MPG_CUBLAS_COMPUTE_64F
                                : key.dtype == MPG_FLOAT32 && all->tf32
                                    ? MPG_CUBLAS_COMPUTE_32F_FAST_TF32
                                    : MPG_CUBLAS_COMPUTE_32F;
  int32_t first = key.transpose_b ? MPG_CUBLAS_OP_T : MPG_CUBLAS_OP_N,
          second = key.transpose_a ? MPG_CUBLAS_OP_T : MPG_CUBLAS_OP_N;
  cublasStatus_t status =
      lt->cublasLtMatmulDescCreate(&p->desc, compute, wide ? MPG_CUDA_R_64F : MPG_CUDA_R_32F);
  if (status == MPG_CUBLAS_STATUS_SUCCESS)
    status = lt->cublasLtMatmulDescSetAttribute(p->desc, MPG_CUBLASLT_MATMUL_DESC_TRANSA, &first,
                                                sizeof first);
  if (status == MPG_CUBLAS_STATUS_SUCCESS)
    status = lt->cublasLtMatmulDescSetAttribute(p->desc, MPG_CUBLASLT_MATMUL_DESC_TRANSB, &second,
                                                sizeof second);
  if (status == MPG_CUBLAS_STATUS_SUCCESS)
    status = key.transpose_a
                 ? make_layout(lt, &p->a, key, key.dtype, key.k, key.m, key.lda, key.a_step)
                 : make_layout(lt, &p->a, key, key.dtype, key.m, key.k, key.lda, key.a_step);
  if (status == MPG_CUBLAS_STATUS_SUCCESS)
    status = key.transpose_b
                 ? make_layout(lt, &p->b, key, key.dtype, key.n, key.k, key.ldb, key.b_step)
                 : make_layout(lt, &p->b, key, key.dtype, key.k, key.n, key.ldb, key.b_step);
  if (status == MPG_CUBLAS_STATUS_SUCCESS)
    status = make_layout(lt, &p->c, key, key.wide ? MPG_FLOAT32 : key.dtype, key.m, key.n, key.ldc,
                         key.c_step);
  return status;
}

cublasStatus_t set_epilogue(const functions *lt, plan *p, uint32_t epilogue, const void *bias) {
  cublasStatus_t status = lt->cublasLtMatmulDescSetAttribute(
      p->desc, MPG_CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue);
  return status == MPG_CUBLAS_STATUS_SUCCESS
             ? lt->cublasLtMatmulDescSetAttribute(p->desc, MPG_CUBLASLT_MATMUL_DESC_BIAS_POINTER,
                                                  &bias, sizeof bias)
             : status;
}

/* Returns the alignment in bytes that all matrices of a batch have if the first one is aligned to
 * ALIGNMENT. */
uint32_t alignment_of(const signature &key, int64_t step) {
  uint64_t bytes = key.count > 1 ? (uint64_t)step * mpg_dtype_size((mpg_dtype)key.dtype) : 0;
  return (uint32_t)((bytes | ALIGNMENT) & -(bytes | ALIGNMENT));
}

/* Chooses an algorithm with cuBLASLt's heuristics, which depend on the sizes and the GPU. Allows
 * only algorithms that add partial sums in the compute type, because other algorithms round the
 * partial sums. */
cublasStatus_t choose(const products *all, plan *p) {
  const struct {
    int preference;
    int64_t step;
  } operands[] = {/* cuBLASLt's operands are swapped: b comes first */
                  {MPG_CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, p->key.b_step},
                  {MPG_CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, p->key.a_step},
                  {MPG_CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, p->key.c_step},
                  {MPG_CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, p->key.c_step}};
  const functions *lt = &all->lt;
  cublasLtMatmulPreference_t preference;
  cublasLtMatmulHeuristicResult_t result;
  int found = 0;
  uint64_t workspace = WORKSPACE;
  uint32_t schemes = MPG_CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
  cublasStatus_t status = lt->cublasLtMatmulPreferenceCreate(&preference);
  if (status != MPG_CUBLAS_STATUS_SUCCESS) return status;
  status = lt->cublasLtMatmulPreferenceSetAttribute(
      preference, MPG_CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace, sizeof workspace);
  if (status == MPG_CUBLAS_STATUS_SUCCESS)
    status = lt->cublasLtMatmulPreferenceSetAttribute(
        preference, MPG_CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &schemes, sizeof schemes);
  for (int i = 0; i < 4 && status == MPG_CUBLAS_STATUS_SUCCESS; i++) {
    uint32_t alignment = alignment_of(p->key, operands[i].step);
    status = lt->cublasLtMatmulPreferenceSetAttribute(preference, operands[i].preference,
                                                      &alignment, sizeof alignment);
  }
  if (status == MPG_CUBLAS_STATUS_SUCCESS)
    status = lt->cublasLtMatmulAlgoGetHeuristic(all->handle, p->desc, p->b, p->a, p->c, p->c,
                                                preference, 1, &result, &found);
  if (status == MPG_CUBLAS_STATUS_SUCCESS && (!found || result.state != MPG_CUBLAS_STATUS_SUCCESS))
    status = MPG_CUBLAS_STATUS_NOT_SUPPORTED;
  if (status == MPG_CUBLAS_STATUS_SUCCESS) {
    p->algo = result.algo;
    p->workspace = result.workspaceSize;
  }
  lt->cublasLtMatmulPreferenceDestroy(preference);
  return status;
}

bool unsupported(cublasStatus_t status) {
  return status == MPG_CUBLAS_STATUS_NOT_SUPPORTED || status == MPG_CUBLAS_STATUS_INVALID_VALUE;
}

mpg_status build(const mpg_kernel_call *call, const products *all, plan *p) {
  static const char some_bias[ALIGNMENT] = {}; /* placeholder: the heuristics need an address */
  cublasStatus_t status = make_descriptors(all, p);
  if (status == MPG_CUBLAS_STATUS_SUCCESS && p->key.bias) {
    status = set_epilogue(&all->lt, p, MPG_CUBLASLT_EPILOGUE_BIAS, some_bias);
    if (status == MPG_CUBLAS_STATUS_SUCCESS) status = choose(all, p);
    if (unsupported(status)) {
      destroy_descriptors(&all->lt, p);
      p->bias_apart = true;
      status = make_descriptors(all, p);
      if (status == MPG_CUBLAS_STATUS_SUCCESS) status = choose(all, p);
    }
  } else if (status == MPG_CUBLAS_STATUS_SUCCESS) {
    status = choose(all, p);
  }
  return status == MPG_CUBLAS_STATUS_SUCCESS
             ? MPG_OK
             : failed(call, &all->lt, "cuBLASLt's choice of an algorithm", status);
}

mpg_status find(const mpg_kernel_call *call, products *all, const signature &key, plan **found) {
  return mpg_plans_find(
      &all->plans, key, [=](plan *p) { return build(call, all, p); },
      [=](plan *p) { destroy_plan(&all->lt, p); }, found);
}

/* --- Running ---------------------------------------------------------------------------------- */
template <class T>
__global__ void rows_kernel(const T *row, T *out, int64_t n, int64_t ld, int64_t count) {
  int64_t i = MPG_CUDA_INDEX;
  if (i < count) out[i / n * ld + i % n] = row[i % n];
}
/* Copies the bias to every row of c. */
mpg_status fill_rows(const mpg_kernel_call *call, const mpg_cuda_product *p) {
  MPG_CUDA_SIZE(
      mpg_dtype_size(p->dtype), T,
      return mpg_cuda_launch(call, rows_kernel<T>, mpg_cuda_blocks(p->m * p->n), MPG_CUDA_THREADS,
                             0, (const T *)p->bias, (T *)p->c, p->n, p->ldc, p->m * p->n));
  return MPG_OK;
}

template <class T>
__global__ void scale_kernel(const T *in, T *out, mpg_compute_t<T> factor, int64_t m, int64_t n,
                             int64_t ld, int64_t step, int64_t count) {
  int64_t i = MPG_CUDA_INDEX;
  if (i >= count) return;
  int64_t at = i / (m * n) * step + i / n % m * ld + i % n;
  out[at] =
      mpg_to<T>(factor == 0 ? (mpg_compute_t<T>)0 : factor * mpg_to<mpg_compute_t<T>>(in[at]));
}
mpg_dtype result_dtype(const mpg_cuda_product *p) { return p->wide ? MPG_FLOAT32 : p->dtype; }

/* Computes c = beta c0, the result of an empty product (k = 0). */
mpg_status scale(const mpg_kernel_call *call, const mpg_cuda_product *p) {
  int64_t count = p->count * p->m * p->n;
  MPG_CUDA_FLOAT_DTYPE(
      result_dtype(p), T,
      return mpg_cuda_launch(call, scale_kernel<T>, mpg_cuda_blocks(count), MPG_CUDA_THREADS, 0,
                             (const T *)(p->c0 ? p->c0 : p->c), (T *)p->c,
                             (mpg_compute_t<T>)p->beta, p->m, p->n, p->ldc, p->c_step, count));
  return MPG_OK;
}

/* Replaces values that do not affect the result with values that cuBLASLt accepts, and returns the
 * signature. For example, cuBLASLt rejects a small row stride even for a single row. */
signature normalise(mpg_cuda_product *p) {
  int64_t a_columns = p->transpose_a ? p->m : p->k, b_columns = p->transpose_b ? p->k : p->n;
  if (p->lda < a_columns) p->lda = a_columns;
  if (p->ldb < b_columns) p->ldb = b_columns;
  if (p->ldc < p->n) p->ldc = p->n;
  if (p->count == 1) p->a_step = p->b_step = p->c_step = 0;
  if (p->beta == 0) p->c0 = NULL;
  return {p->m,     p->n,           p->k,           p->lda,          p->ldb,
          p->ldc,   p->count,       p->a_step,      p->b_step,       p->c_step,
          p->dtype, p->transpose_a, p->transpose_b, p->bias != NULL, p->wide};
}

/* Returns the size in bytes of the range from an operand's first element to its last. */
size_t extent(const mpg_cuda_product *p, mpg_dtype dtype, bool transposed, int64_t rows,
              int64_t columns, int64_t ld, int64_t step) {
  int64_t last = transposed ? (columns - 1) * ld + rows : (rows - 1) * ld + columns;
  return (size_t)((p->count - 1) * step + last) * mpg_dtype_size(dtype);
}
size_t result_extent(const mpg_cuda_product *p) {
  return extent(p, result_dtype(p), false, p->m, p->n, p->ldc, p->c_step);
}

/* List of the operands that must be copied because they are not aligned. */
struct copies {
  struct {
    const void **operand;
    size_t bytes;
  } all[5];
  int count;
  size_t total;

  void want(const void **operand, size_t bytes) {
    if (mpg_cuda_aligned(*operand)) return;
    all[count++] = {operand, bytes};
    total += mpg_align_up(bytes, 256);
  }
  mpg_status make(const mpg_kernel_call *call, char *next) {
    for (int i = 0; i < count; i++) {
      MPG_TRY(mpg_cuda_copy(call, *all[i].operand, next, all[i].bytes));
      *all[i].operand = next;
      next += mpg_align_up(all[i].bytes, 256);
    }
    return MPG_OK;
  }
};

/* Allocates the workspace, and replaces unaligned operands with copies, which follow the workspace
 * in memory. The copy of c includes the gaps between rows, which are later copied back
 * unchanged. */
mpg_status align(const mpg_kernel_call *call, const plan *found, mpg_cuda_product *p,
                 char **workspace) {
  bool in_place = !p->c0 || p->c0 == p->c;
  const void *c = p->c, *c0 = in_place ? NULL : p->c0, *bias = found->bias_apart ? NULL : p->bias;
  size_t c_bytes = result_extent(p);
  copies made = {};
  made.want(&p->a, extent(p, p->dtype, p->transpose_a, p->m, p->k, p->lda, p->a_step));
  made.want(&p->b, extent(p, p->dtype, p->transpose_b, p->k, p->n, p->ldb, p->b_step));
  made.want(&c, c_bytes);
  made.want(&c0, c_bytes);
  made.want(&bias, (size_t)p->n * mpg_dtype_size(p->dtype));
  size_t total = mpg_align_up(found->workspace, 256) + made.total;
  *workspace = total ? (char *)mpg_device_scratch(call->device, total) : NULL;
  if (total && !*workspace) return MPG_DEVICE_OUT_OF_MEMORY;
  MPG_TRY(made.make(call, *workspace + mpg_align_up(found->workspace, 256)));
  p->c = (void *)c;
  p->c0 = in_place ? c : c0;
  if (bias) p->bias = bias;
  return MPG_OK;
}

mpg_status queue(const mpg_kernel_call *call, products *all, const mpg_cuda_product *product) {
  mpg_cuda_product p = *product;
  signature key = normalise(&p);
  plan *found = NULL;
  char *workspace;
  MPG_TRY(find(call, all, key, &found));
  MPG_TRY(align(call, found, &p, &workspace));
  if (p.bias && found->bias_apart) {
    MPG_TRY(fill_rows(call, &p));
    p.beta = 1;
  } else if (p.bias) {
    cublasStatus_t set = all->lt.cublasLtMatmulDescSetAttribute(
        found->desc, MPG_CUBLASLT_MATMUL_DESC_BIAS_POINTER, &p.bias, sizeof p.bias);
    if (set != MPG_CUBLAS_STATUS_SUCCESS)
      return failed(call, &all->lt, "cublasLtMatmulDescSetAttribute", set);
  }
  float alpha = (float)p.alpha, beta = (float)p.beta;
  bool wide = p.dtype == MPG_FLOAT64;
  cublasStatus_t status = all->lt.cublasLtMatmul(
      all->handle, found->desc, wide ? (const void *)&p.alpha : &alpha, p.b, found->b, p.a,
      found->a, wide ? (const void *)&p.beta : &beta, p.c0, found->c, p.c, found->c, &found->algo,
      workspace, found->workspace, (cudaStream_t)call->stream);
  if (status != MPG_CUBLAS_STATUS_SUCCESS) return failed(call, &all->lt, "cublasLtMatmul", status);
  /* Copies c back; does nothing if c was aligned. */
  return mpg_cuda_copy(call, p.c, product->c, result_extent(&p));
}

} // namespace

extern "C" mpg_status mpg_cuda_setting(const char *name, bool otherwise, bool *on) {
  const char *setting = getenv(name);
  if (setting && *setting && strcmp(setting, "0") && strcmp(setting, "1"))
    return mpg_fail(MPG_VALUE_ERROR, "%s is '%s'; it must be 0 or 1", name, setting);
  *on = setting && *setting ? *setting == '1' : otherwise;
  return MPG_OK;
}

extern "C" mpg_status mpg_cuda_multiply(const mpg_kernel_call *call,
                                        const mpg_cuda_product *product) {
  if (product->m <= 0 || product->n <= 0 || product->count <= 0) return MPG_OK;
  if (product->k <= 0) return product->bias ? fill_rows(call, product) : scale(call, product);
  void *contents;
  MPG_TRY(mpg_cuda_cached(call->device, MPG_CUDA_SLOT_PRODUCTS, make_products, release_products,
                          &contents));
  products *all = (products *)contents;
  if (product->count <= MAX_BATCH) return queue(call, all, product);
  mpg_cuda_product part = *product;
  int64_t size = (int64_t)mpg_dtype_size(part.dtype),
          result_size = (int64_t)mpg_dtype_size(result_dtype(&part));
  for (int64_t done = 0; done < product->count; done += MAX_BATCH) {
    part.count = product->count - done;
    if (part.count > MAX_BATCH) part.count = MAX_BATCH;
    part.a = (const char *)product->a + done * part.a_step * size;
    part.b = (const char *)product->b + done * part.b_step * size;
    part.c = (char *)product->c + done * part.c_step * result_size;
    if (product->c0) part.c0 = (const char *)product->c0 + done * part.c_step * result_size;
    MPG_TRY(queue(call, all, &part));
  }
  return MPG_OK;
}
