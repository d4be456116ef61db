/* Linear algebra on batches of matrices. One thread processes each matrix with single-threaded
 * LAPACK, so its result does not depend on the other matrices or on the number of threads. */
#include <limits.h>
#include <math.h>
#include <stdatomic.h>
#include <string.h>

#include "kernels/cpu/vendor/openblas.h"

/* Upper bound on LAPACK's block size in columns. LAPACK's work space needs LAPACK_BLOCK elements
 * per row of a matrix. */
enum { LAPACK_BLOCK = 64 };

typedef struct matrices matrices;
typedef int (*matrix_fn)(const matrices *t, int64_t i, void *scratch);

struct matrices {
  const mpg_kernel_call *call;
  const mpg_openblas *blas;
  int64_t count, rows, columns;
  int64_t n;    /* side length of square matrices */
  int64_t work; /* elements of LAPACK's work space, for svd and eig */
  int64_t offset;
  bool extract, lower; /* for extracttrian and maketrian */
  matrix_fn one;
  int64_t lanes;
  char *scratch;
  size_t scratch_size;    /* bytes per lane */
  _Atomic int64_t failed; /* index of the first matrix that failed; `count` if none */
};

#define T float
#define B f32
#define NAME(name) name##_f32
#include "kernels/cpu/math/linalg_impl.h"
#undef T
#undef B
#undef NAME
#define T double
#define B f64
#define NAME(name) name##_f64
#include "kernels/cpu/math/linalg_impl.h"
#undef T
#undef B
#undef NAME
#define INSTANCE(name, dtype) ((dtype) == MPG_FLOAT32 ? name##_f32 : name##_f64)

/* Runs lanes [begin, end). A lane is the work of one thread. Lane l processes matrices l, l +
 * lanes, l + 2 * lanes, ... */
static void run_lanes(void *context, int64_t begin, int64_t end) {
  matrices *t = context;
  for (int64_t lane = begin; lane < end; lane++)
    for (int64_t i = lane; i < t->count; i += t->lanes) {
      if (t->one(t, i, t->scratch + (size_t)lane * t->scratch_size) == 0) continue;
      int64_t first = atomic_load(&t->failed);
      while (i < first && !atomic_compare_exchange_weak(&t->failed, &first, i)) continue;
    }
}

/* Describes the matrices in the last two axes of `view`. */
static matrices matrices_of(const mpg_kernel_call *call, const mpg_view *view) {
  const mpg_shape *shape = &view->desc.shape;
  return (matrices){.call = call,
                    .count = mpg_shape_product(shape, 0, shape->ndim - 2),
                    .rows = shape->dims[shape->ndim - 2],
                    .columns = shape->dims[shape->ndim - 1],
                    .n = shape->dims[shape->ndim - 1]};
}

/* Runs `one` on all matrices, each with scratch for `elements` elements and `integers` integers. If
 * `one` fails on a matrix, `wrong` completes the error message ("matrix 3 ..."). */
static mpg_status run(matrices *t, matrix_fn one, int64_t elements, int64_t integers,
                      const char *wrong) {
  double work =
      (double)t->count * (double)t->rows * (double)t->columns * (double)(t->rows + t->columns);
  size_t bytes = (size_t)elements * mpg_dtype_size(t->call->inputs[0].desc.dtype) +
                 (size_t)integers * sizeof(int);
  if (t->count == 0) return MPG_OK;
  t->one = one;
  t->lanes = work < 65536 ? 1 : t->count < t->call->num_threads ? t->count : t->call->num_threads;
  t->scratch_size = (bytes + 63) / 64 * 64;
  if (bytes &&
      !(t->scratch = mpg_device_scratch(t->call->device, (size_t)t->lanes * t->scratch_size)))
    return MPG_DEVICE_OUT_OF_MEMORY;
  atomic_init(&t->failed, t->count);
  mpg_cpu_parallel_for(t->call, t->lanes, 1, run_lanes, t);
  int64_t failed = atomic_load(&t->failed);
  return failed == t->count ? MPG_OK
                            : mpg_fail(MPG_ERROR, "%s: matrix %lld %s", t->call->op->name,
                                       (long long)failed, wrong);
}

/* Loads OpenBLAS. Fails if a side or the work space exceeds 32 bits. Sets t->count to 0 if the
 * matrices are empty. */
static mpg_status need_blas(matrices *t, int64_t work) {
  if (!(t->blas = mpg_cpu_openblas()))
    return mpg_fail(MPG_ERROR,
                    "%s needs OpenBLAS, which is missing or turned off (MPGLUON_OPENBLAS); install "
                    "scipy-openblas32",
                    t->call->op->name);
  if (t->rows > INT_MAX / LAPACK_BLOCK || t->columns > INT_MAX / LAPACK_BLOCK || work > INT_MAX)
    return mpg_fail(MPG_ERROR, "%s: matrices of %lld x %lld are too large", t->call->op->name,
                    (long long)t->rows, (long long)t->columns);
  if (t->rows == 0 || t->columns == 0) t->count = 0;
  return MPG_OK;
}

mpg_status mpg_cpu_linalg_potrf(const mpg_kernel_call *call) {
  matrices t = matrices_of(call, &call->inputs[0]);
  MPG_TRY(need_blas(&t, 0));
  return run(&t, INSTANCE(potrf, call->inputs[0].desc.dtype), 0, 0, "is not positive definite");
}

mpg_status mpg_cpu_linalg_potri(const mpg_kernel_call *call) {
  matrices t = matrices_of(call, &call->inputs[0]);
  MPG_TRY(need_blas(&t, 0));
  return run(&t, INSTANCE(potri, call->inputs[0].desc.dtype), 0, 0, "has a zero on its diagonal");
}

mpg_status mpg_cpu_linalg_triangular(const mpg_kernel_call *call) {
  matrices t = matrices_of(call, &call->outputs[0]);
  t.n = ((const mpg_linalg_triangular_params *)call->params)->rightside ? t.columns : t.rows;
  MPG_TRY(need_blas(&t, 0));
  return run(&t, INSTANCE(triangular, call->inputs[0].desc.dtype), 0, 0, "");
}

mpg_status mpg_cpu_linalg_syrk(const mpg_kernel_call *call) {
  matrices t = matrices_of(call, &call->inputs[0]);
  const mpg_view *out = &call->outputs[0];
  t.n = out->desc.shape.dims[out->desc.shape.ndim - 1];
  MPG_TRY(need_blas(&t, 0));
  if (t.count == 0 && mpg_shape_size(&out->desc.shape)) /* empty sums are 0 */
    memset(out->data, 0,
           (size_t)mpg_shape_size(&out->desc.shape) * mpg_dtype_size(out->desc.dtype));
  return run(&t, INSTANCE(syrk, call->inputs[0].desc.dtype), 0, 0, "");
}

mpg_status mpg_cpu_linalg_gelqf(const mpg_kernel_call *call) {
  matrices t = matrices_of(call, &call->inputs[0]);
  MPG_TRY(need_blas(&t, 0));
  return run(&t, INSTANCE(gelqf, call->inputs[0].desc.dtype), (LAPACK_BLOCK + 1) * t.rows, 0,
             "has no LQ factorization");
}

mpg_status mpg_cpu_linalg_syevd(const mpg_kernel_call *call) {
  matrices t = matrices_of(call, &call->inputs[0]);
  int64_t elements;
  if (__builtin_mul_overflow(2 * t.n + 6, t.n, &elements)) elements = INT64_MAX - 1;
  MPG_TRY(need_blas(&t, elements + 1));
  return run(&t, INSTANCE(syevd, call->inputs[0].desc.dtype), elements + 1, 3 + 5 * t.n,
             "has eigenvalues that could not be computed (is the matrix finite?)");
}

mpg_status mpg_cpu_linalg_inverse(const mpg_kernel_call *call) {
  matrices t = matrices_of(call, &call->inputs[0]);
  MPG_TRY(need_blas(&t, 0));
  return run(&t, INSTANCE(inverse, call->inputs[0].desc.dtype), LAPACK_BLOCK * t.n, t.n,
             "is singular");
}

mpg_status mpg_cpu_linalg_det(const mpg_kernel_call *call) {
  matrices t = matrices_of(call, &call->inputs[0]);
  int64_t count = t.count;
  MPG_TRY(need_blas(&t, 0));
  t.count = count; /* need_blas clears it, but an empty matrix has determinant 1 */
  return run(&t, INSTANCE(det, call->inputs[0].desc.dtype), t.n * t.n, t.n, "");
}

mpg_status mpg_cpu_svd(const mpg_kernel_call *call) {
  matrices t = matrices_of(call, &call->inputs[0]);
  MPG_TRY(need_blas(&t, 0));
  /* LAPACK requires 4 m^2 + 7 m elements; with more, it factorizes in blocks. */
  t.work = (4 * t.rows + 7) * t.rows + LAPACK_BLOCK * (t.rows + t.columns);
  MPG_TRY(need_blas(&t, t.work));
  return run(&t, INSTANCE(svd, call->inputs[0].desc.dtype), t.rows * t.columns + t.work, 8 * t.rows,
             "has singular values that could not be computed (is the matrix finite?)");
}

mpg_status mpg_cpu_solve(const mpg_kernel_call *call) {
  matrices t = matrices_of(call, &call->inputs[0]);
  const mpg_shape *b = &call->inputs[1].desc.shape;
  bool vectors = b->ndim < call->inputs[0].desc.shape.ndim;
  t.columns = vectors ? 1 : b->dims[b->ndim - 1];
  MPG_TRY(need_blas(&t, 0));
  return run(&t, INSTANCE(solve, call->inputs[0].desc.dtype), t.n * (t.n + t.columns), t.n,
             "is singular");
}

mpg_status mpg_cpu_eig(const mpg_kernel_call *call) {
  matrices t = matrices_of(call, &call->inputs[0]);
  MPG_TRY(need_blas(&t, 0));
  t.work = (4 + LAPACK_BLOCK) * t.n;
  MPG_TRY(need_blas(&t, t.work));
  return run(&t, INSTANCE(eig, call->inputs[0].desc.dtype), (2 * t.n + 1) * t.n + t.work, 0,
             "has complex eigenvalues, which are not supported, or elements that are not finite");
}

static mpg_status part(const mpg_kernel_call *call, bool extract) {
  const mpg_linalg_triangle_params *p = call->params;
  matrices t = matrices_of(call, extract ? &call->inputs[0] : &call->outputs[0]);
  t.extract = extract, t.offset = p->offset, t.lower = p->lower;
  return run(&t, INSTANCE(part, call->inputs[0].desc.dtype), 0, 0, "");
}

mpg_status mpg_cpu_linalg_extracttrian(const mpg_kernel_call *call) { return part(call, true); }
mpg_status mpg_cpu_linalg_maketrian(const mpg_kernel_call *call) { return part(call, false); }
