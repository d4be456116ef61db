/* Matrix products for other kernels, with oneDNN, OpenBLAS or plain C. */
#include "kernels/cpu/products/gemm.h"

#include <limits.h>
#include <string.h>

#include "base/memory.h"
#include "device/device.h"
#include "kernels/cpu/array/turn.h"
#include "kernels/cpu/convert.h"
#include "kernels/cpu/products/paired_product.h"
#include "kernels/cpu/vendor/openblas.h"

typedef struct mpg_gemm {
  mpg_dtype dtype;
  bool transpose_a, transpose_b;
  int64_t m, n, k, lda, ldb, ldc;
  double alpha, beta;
  const void *a, *b;
  void *c;
} mpg_gemm;

/* --- The blocked product, for float (and half precision) and for double ----------------------- */
/* Limits of gemm_narrow: maximum rows of A, and maximum elements of C for which it beats oneDNN. */
enum { MPG_GEMM_NARROW = 32, MPG_GEMM_NARROW_ELEMENTS = 512 };
/* Maximum multiplications for gemm_small: FEW if a row of C is shorter than a vector, else
 * SMALL. */
enum { MPG_GEMM_FEW = 512, MPG_GEMM_SMALL = 65536 };
enum { MPG_GEMM_SHORT = 32 }; /* smallest k for which gemm_narrow beats the blocked product */
enum { MPG_GEMM_THIN = 4 }; /* maximum number of 4x4 tiles of C for which operands are not packed */

#if defined(__FMA__)
#define FUSED(suffix, a, b, c) __builtin_fma##suffix(a, b, c)
#else
#define FUSED(suffix, a, b, c) ((a) * (b) + (c))
#endif

#define AS_IS(x) (x)
#define MPG_TILE_SOURCES(PACK)                        \
  case MPG_FLOAT32: PACK(float, AS_IS)                \
  case MPG_FLOAT16: PACK(uint16_t, mpg_half_to_float) \
  case MPG_BFLOAT16: PACK(uint16_t, mpg_bfloat16_to_float)
#define MPG_GEMM_TARGETS(FINISH)                                           \
  case MPG_FLOAT32: FINISH(float, AS_IS, AS_IS)                            \
  case MPG_FLOAT16: FINISH(uint16_t, mpg_half_to_float, mpg_float_to_half) \
  case MPG_BFLOAT16: FINISH(uint16_t, mpg_bfloat16_to_float, mpg_float_to_bfloat16)
#define T float
#define NAME(name) name##_f32
#define FMA(a, b, c) FUSED(f, a, b, c)
#include "kernels/cpu/products/lanes.h"
#include "kernels/cpu/products/tiles.h"
#include "kernels/cpu/products/gemm_block.h"
#undef MPG_TILE_SOURCES
#undef MPG_GEMM_TARGETS

#define MPG_TILE_SOURCES(PACK) \
  case MPG_FLOAT64: PACK(double, AS_IS)
#define MPG_GEMM_TARGETS(FINISH) \
  case MPG_FLOAT64: FINISH(double, AS_IS, AS_IS)
#define T double
#define NAME(name) name##_f64
#undef FMA
#define FMA(a, b, c) FUSED(, a, b, c)
#define LANES_OF_DOUBLE
#include "kernels/cpu/products/lanes.h"
#include "kernels/cpu/products/tiles.h"
#include "kernels/cpu/products/gemm_block.h"
#undef LANES_OF_DOUBLE

static void blocked(const mpg_kernel_call *call, mpg_gemm *g) {
  int64_t lanes = MPG_VECTOR_BYTES / (int64_t)mpg_dtype_size(g->dtype);
  bool by_rows = !g->transpose_a && !g->transpose_b && g->alpha == 1 && g->beta == 0 &&
                 mpg_gemm_tiny(g->m, g->n, g->k) &&
                 g->m * g->n * g->k <= (g->n < lanes ? MPG_GEMM_FEW : MPG_GEMM_SMALL);
  bool thin = mpg_gemm_tiny(g->m, g->n, g->k) &&
              (g->m + 3) / 4 * ((g->n + 3) / 4) <= (by_rows ? 1 : MPG_GEMM_THIN);
  if (g->dtype == MPG_FLOAT32)
    (thin ? gemm_thin_f32 : by_rows ? gemm_small_f32 : gemm_product_f32)(call, g);
  else if (g->dtype == MPG_FLOAT64)
    (thin ? gemm_thin_f64 : by_rows ? gemm_small_f64 : gemm_product_f64)(call, g);
  else
    gemm_product_f32(call, g);
}

/* --- Dot product ------------------------------------------------------------------------------ */
/* Adds MPG_DOT_CHAIN products at a time in the computing type and accumulates the results in
 * double, since a long chain of float additions would lose precision. The pieces of the vectors
 * depend only on their length, so rounding does not depend on the number of threads. */
enum { MPG_DOT_PIECES = 256, MPG_DOT_LANES = 32, MPG_DOT_CHAIN = 8 };

typedef struct vectors {
  const mpg_gemm *g;
  int64_t piece;
  double sums[MPG_DOT_PIECES];
} vectors;

#define ADD_PRODUCTS(T)                                                                  \
  do {                                                                                   \
    const T *x = a, *y = b;                                                              \
    int64_t i = 0;                                                                       \
    for (; i + MPG_DOT_LANES * MPG_DOT_CHAIN <= n; i += MPG_DOT_LANES * MPG_DOT_CHAIN) { \
      T chain[MPG_DOT_LANES] = {0};                                                      \
      for (int step = 0; step < MPG_DOT_CHAIN; step++)                                   \
        for (int l = 0; l < MPG_DOT_LANES; l++)                                          \
          chain[l] += x[i + step * MPG_DOT_LANES + l] * y[i + step * MPG_DOT_LANES + l]; \
      for (int l = 0; l < MPG_DOT_LANES; l++) lanes[l] += (double)chain[l];              \
    }                                                                                    \
    for (; i < n; i++) lanes[i % MPG_DOT_LANES] += (double)x[i] * (double)y[i];          \
  } while (0)

static void dot_pieces(void *context, int64_t begin, int64_t end) {
  vectors *t = context;
  const mpg_gemm *g = t->g;
  mpg_compute compute = mpg_compute_of(g->dtype);
  bool direct = mpg_compute_direct(compute, g->dtype);
  mpg_block_buffer left, right;
  for (int64_t p = begin; p < end; p++) {
    int64_t from = p * t->piece, to = g->k - from < t->piece ? g->k : from + t->piece,
            step = direct ? t->piece : MPG_CPU_BLOCK;
    double lanes[MPG_DOT_LANES] = {0};
    for (int64_t at = from; at < to; at += step) {
      int64_t n = to - at < step ? to - at : step;
      const void *a = mpg_cpu_load(compute, g->dtype, g->a, at, n, &left),
                 *b = mpg_cpu_load(compute, g->dtype, g->b, at, n, &right);
      if (compute == MPG_COMPUTE_F64)
        ADD_PRODUCTS(double);
      else
        ADD_PRODUCTS(float);
    }
    t->sums[p] = 0;
    for (int l = 0; l < MPG_DOT_LANES; l++) t->sums[p] += lanes[l];
  }
}

/* Computes an inner product, which is summed in float64. */
static void vector_product(const mpg_kernel_call *call, const mpg_gemm *g) {
  vectors t = {.g = g};
  mpg_block_buffer buffer;
  double sum = 0;
  t.piece = (g->k + MPG_DOT_PIECES - 1) / MPG_DOT_PIECES;
  if (t.piece < 16384) t.piece = 16384;
  int64_t pieces = (g->k + t.piece - 1) / t.piece;
  mpg_cpu_parallel_for(call, pieces, 1, dot_pieces, &t);
  for (int64_t p = 0; p < pieces; p++) sum += t.sums[p];
  sum *= g->alpha;
  if (g->beta != 0)
    sum += g->beta * *(const double *)mpg_cpu_load(MPG_COMPUTE_F64, g->dtype, g->c, 0, 1, &buffer);
  mpg_cpu_store(MPG_COMPUTE_F64, g->dtype, g->c, 0, 1, &sum);
}
/* Computes C, which has one column, row by row. */
static void vector_products(const mpg_kernel_call *call, const mpg_gemm *g) {
  int64_t size = (int64_t)mpg_dtype_size(g->dtype);
  for (int64_t i = 0; i < g->m; i++) {
    mpg_gemm row = *g;
    row.m = 1;
    row.a = (const char *)g->a + i * g->lda * size;
    row.c = (char *)g->c + i * g->ldc * size;
    vector_product(call, &row);
  }
}

/* --- Libraries -------------------------------------------------------------------------------- */
/* Computes C in blocks whose boundaries depend on sizes only, with one call to single-threaded
 * OpenBLAS per block. */
enum { OPENBLAS_ROWS = 256, OPENBLAS_COLUMNS = 512 };
static void openblas_blocks(void *context, int64_t begin, int64_t end) {
  const mpg_gemm *g = context;
  const mpg_openblas *blas = mpg_cpu_openblas();
  int ta = g->transpose_a ? 112 : 111, tb = g->transpose_b ? 112 : 111;
  size_t size = mpg_dtype_size(g->dtype);
  int64_t across = (g->n + OPENBLAS_COLUMNS - 1) / OPENBLAS_COLUMNS;
  for (int64_t block = begin; block < end; block++) {
    int64_t i = block / across * OPENBLAS_ROWS,
            rows = g->m - i < OPENBLAS_ROWS ? g->m - i : OPENBLAS_ROWS;
    int64_t j = block % across * OPENBLAS_COLUMNS,
            columns = g->n - j < OPENBLAS_COLUMNS ? g->n - j : OPENBLAS_COLUMNS;
    const char *a = (const char *)g->a + (size_t)(g->transpose_a ? i : i * g->lda) * size;
    const char *b = (const char *)g->b + (size_t)(g->transpose_b ? j * g->ldb : j) * size;
    char *c = (char *)g->c + (size_t)(i * g->ldc + j) * size;
    if (g->dtype == MPG_FLOAT64)
      blas->f64.gemm(MPG_BLAS_ROWS, ta, tb, (int)rows, (int)columns, (int)g->k, g->alpha,
                     (const double *)a, (int)g->lda, (const double *)b, (int)g->ldb, g->beta,
                     (double *)c, (int)g->ldc);
    else
      blas->f32.gemm(MPG_BLAS_ROWS, ta, tb, (int)rows, (int)columns, (int)g->k, (float)g->alpha,
                     (const float *)a, (int)g->lda, (const float *)b, (int)g->ldb, (float)g->beta,
                     (float *)c, (int)g->ldc);
  }
}

static bool fits_int(const mpg_gemm *g) {
  return g->m <= INT_MAX && g->n <= INT_MAX && g->k <= INT_MAX && g->lda <= INT_MAX &&
         g->ldb <= INT_MAX && g->ldc <= INT_MAX;
}

/* True if the elements of C are summed in the order of k, as in tiny products. The kernels of
 * OpenBLAS for several processors have other orders for other numbers of rows. float32, which has
 * oneDNN, and the blocked product without fused multiply-add, which is slow, are left to it. */
static bool sums_in_order(const mpg_gemm *g) {
#if defined(__FMA__)
  return g->dtype == MPG_FLOAT64 && !g->transpose_a;
#else
  (void)g;
  return false;
#endif
}

static void narrow_product(const mpg_kernel_call *call, mpg_gemm *g) {
  mpg_cpu_parallel_for(call, (g->n + 3) / 4, 1 + 65536 / (g->m * g->k),
                       g->dtype == MPG_FLOAT32 ? gemm_narrow_f32 : gemm_narrow_f64, g);
}

static mpg_status product(const mpg_kernel_call *call, mpg_gemm *g) {
  if (g->m <= 0 || g->n <= 0) return MPG_OK;
  /* The row stride of a matrix with one row is irrelevant, but libraries check it. */
  int64_t a_columns = g->transpose_a ? g->m : g->k, b_columns = g->transpose_b ? g->k : g->n;
  if (g->lda < a_columns) g->lda = a_columns > 0 ? a_columns : 1;
  if (g->ldb < b_columns) g->ldb = b_columns > 0 ? b_columns : 1;
  bool few = !g->transpose_a && g->transpose_b && mpg_gemm_few_rows(g->dtype, g->m);
  if (g->n == 1 &&
      (few || (g->m == 1 && (!g->transpose_a || g->lda == 1) && (g->transpose_b || g->ldb == 1)))) {
    vector_products(call, g);
    return MPG_OK;
  }
  if (few) {
    if (g->k < MPG_GEMM_SHORT)
      blocked(call, g);
    else
      narrow_product(call, g);
    return MPG_OK;
  }
  /* Products this small may run inline with one thread or queued with many threads. Both cases use
   * this kernel, so their results are bit-identical. */
  if (g->k == 0 || mpg_gemm_tiny(g->m, g->n, g->k)) {
    blocked(call, g);
    return MPG_OK;
  }
#ifdef MPG_WITH_ONEDNN
  const mpg_onednn *dnnl = g->dtype == MPG_FLOAT32 ? mpg_cpu_onednn() : NULL;
#else
  const void *dnnl = NULL;
#endif
  if (!g->transpose_a && g->transpose_b && g->m <= MPG_GEMM_NARROW && g->n % 4 == 0 && g->k >= 64 &&
      (!dnnl || g->m * g->n <= MPG_GEMM_NARROW_ELEMENTS) &&
      (g->dtype == MPG_FLOAT32 || g->dtype == MPG_FLOAT64)) {
    narrow_product(call, g);
    return MPG_OK;
  }
#ifdef MPG_WITH_ONEDNN
  if (dnnl) {
    mpg_kernel_call team = *call;
    if (mpg_gemm_small(g->m, g->n, g->k)) team.num_threads = 1;
    int before = mpg_onednn_threads_begin(&team);
    dnnl_status_t status =
        dnnl->sgemm(g->transpose_a ? 'T' : 'N', g->transpose_b ? 'T' : 'N', g->m, g->n, g->k,
                    (float)g->alpha, g->a, g->lda, g->b, g->ldb, (float)g->beta, g->c, g->ldc);
    mpg_onednn_threads_end(&team, before);
    if (status == dnnl_success) return MPG_OK;
    if (status == dnnl_out_of_memory)
      return mpg_fail(MPG_HOST_OUT_OF_MEMORY, "%s: out of memory in a matrix product",
                      call->op->name);
  }
#endif
  if (!sums_in_order(g) && (g->dtype == MPG_FLOAT32 || g->dtype == MPG_FLOAT64) && fits_int(g) &&
      mpg_cpu_openblas())
    mpg_cpu_parallel_for(call,
                         (g->m + OPENBLAS_ROWS - 1) / OPENBLAS_ROWS *
                             ((g->n + OPENBLAS_COLUMNS - 1) / OPENBLAS_COLUMNS),
                         1, openblas_blocks, g);
  else
    blocked(call, g);
  return MPG_OK;
}

typedef struct row_products {
  mpg_gemm each;
  const mpg_row_product *products;
  int64_t groups; /* groups of 4 columns per product */
} row_products;

static void row_groups(void *context, int64_t begin, int64_t end) {
  const row_products *t = context;
  int64_t size = (int64_t)mpg_dtype_size(t->each.dtype), n = t->each.n, k = t->each.k;
  for (int64_t i = begin / t->groups; i * t->groups < end; i++) {
    mpg_row_product p = t->products ? t->products[i] : (mpg_row_product){i, i, 1};
    int64_t from = i * t->groups < begin ? begin - i * t->groups : 0,
            to = (i + 1) * t->groups > end ? end - i * t->groups : t->groups;
    for (int64_t row = 0; row < p.rows; row += MPG_GEMM_NARROW) {
      mpg_gemm g = t->each;
      g.m = p.rows - row < MPG_GEMM_NARROW ? p.rows - row : MPG_GEMM_NARROW;
      g.a = (const char *)g.a + (p.first + row) * k * size;
      g.b = (const char *)g.b + p.matrix * n * k * size;
      g.c = (char *)g.c + (p.first + row) * n * size;
      if (g.dtype == MPG_FLOAT32)
        gemm_narrow_f32(&g, from, to);
      else
        gemm_narrow_f64(&g, from, to);
    }
  }
}

void mpg_cpu_row_products(const mpg_kernel_call *call, mpg_dtype dtype, int64_t count,
                          const mpg_row_product *products, int64_t n, int64_t k, const void *a,
                          const void *b, void *c) {
  row_products t = {{dtype, false, true, 0, n, k, k, k, n, 1, 0, a, b, c}, products, (n + 3) / 4};
  mpg_cpu_parallel_for(call, count * t.groups, 1 + 8192 / (k + 1), row_groups, &t);
}

mpg_status mpg_cpu_sgemm(const mpg_kernel_call *call, bool transpose_a, bool transpose_b, int64_t m,
                         int64_t n, int64_t k, float alpha, const float *a, int64_t lda,
                         const float *b, int64_t ldb, float beta, float *c, int64_t ldc) {
  mpg_gemm g = {MPG_FLOAT32, transpose_a, transpose_b, m,    n, k, lda,
                ldb,         ldc,         alpha,       beta, a, b, c};
  return product(call, &g);
}

#ifdef MPG_WITH_ONEDNN
typedef struct narrowing {
  const float *from;
  int64_t stride, columns;
  uint16_t *to;
} narrowing;

static void narrow_rows(void *context, int64_t begin, int64_t end) {
  const narrowing *t = context;
  for (int64_t r = begin; r < end; r++)
    mpg_cpu_store(MPG_COMPUTE_F32, MPG_BFLOAT16, t->to, r * t->columns, t->columns,
                  t->from + r * t->stride);
}

static void narrow(const mpg_kernel_call *call, const float *from, int64_t rows, int64_t columns,
                   int64_t stride, uint16_t *to) {
  narrowing t = {from, stride, columns, to};
  mpg_cpu_parallel_for(call, rows, 1 + 16384 / (columns + 1), narrow_rows, &t);
}
#endif

mpg_status mpg_cpu_gemm_narrowed(const mpg_kernel_call *call, bool transpose_a, bool transpose_b,
                                 int64_t m, int64_t n, int64_t k, const float *a, int64_t lda,
                                 const float *b, int64_t ldb, const uint16_t *b_half, float beta,
                                 float *c, int64_t ldc) {
#ifdef MPG_WITH_ONEDNN
  mpg_onednn_matmul s = {.dtype = mpg_cpu_onednn_dtype(MPG_BFLOAT16),
                         .result = dnnl_f32,
                         .batch = 1,
                         .m = m,
                         .n = n,
                         .k = k,
                         .ldc = ldc,
                         .ta = transpose_a,
                         .tb = transpose_b,
                         .add = beta != 0};
  mpg_paired_product product;
  if (s.dtype && k > 0 && !mpg_gemm_tiny(m, n, k) &&
      mpg_cpu_paired_product_find(call, &s, &product)) {
    size_t a_bytes = mpg_align_up((size_t)(m * k) * sizeof(uint16_t), 64),
           b_bytes = b_half ? 0 : mpg_align_up((size_t)(k * n) * sizeof(uint16_t), 64);
    char *scratch = mpg_device_scratch(call->device, a_bytes + b_bytes + product.scratch);
    if (!scratch) return MPG_DEVICE_OUT_OF_MEMORY;
    narrow(call, a, transpose_a ? k : m, transpose_a ? m : k, lda, (uint16_t *)scratch);
    void *b_narrowed = b_half ? (void *)b_half : scratch + a_bytes;
    if (!b_half) narrow(call, b, transpose_b ? n : k, transpose_b ? k : n, ldb, b_narrowed);
    return mpg_cpu_paired_product_run(call, &s, &product, scratch, b_narrowed, NULL, c,
                                      scratch + a_bytes + b_bytes);
  }
#endif
  if (!b) {
    float *wide = mpg_device_scratch(call->device, (size_t)(k * n) * sizeof *wide);
    if (!wide) return MPG_DEVICE_OUT_OF_MEMORY;
    mpg_cpu_widen(call, MPG_BFLOAT16, b_half, k * n, wide);
    b = wide;
  }
  return mpg_cpu_sgemm(call, transpose_a, transpose_b, m, n, k, 1, a, lda, b, ldb, beta, c, ldc);
}

mpg_status mpg_cpu_gemm_any(const mpg_kernel_call *call, mpg_dtype dtype, bool transpose_a,
                            bool transpose_b, int64_t m, int64_t n, int64_t k, double alpha,
                            const void *a, int64_t lda, const void *b, int64_t ldb, double beta,
                            void *c, int64_t ldc) {
  mpg_gemm g = {dtype, transpose_a, transpose_b, m, n, k, lda, ldb, ldc, alpha, beta, a, b, c};
  return product(call, &g);
}
