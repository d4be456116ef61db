/* Linear algebra on batches of matrices. cuSOLVER and cuBLAS process one matrix at a time, except
 * that cuBLAS's LU factorization, inversion and solution are batched.
 *
 * The libraries are column-major, so they see our row-major matrices transposed: their lower
 * triangle is our upper one. A matrix that has no result (singular, not positive definite, or with
 * complex eigenvalues) fails a device-side assertion. These ops cannot be captured, since the
 * libraries may wait for the GPU.
 */
#include <limits.h>

#include "kernels/cuda/access.h"
#include "kernels/cuda/runtime/device_assert.h"
extern "C" {
#include "kernels/cuda/runtime/cache.h"
#include "kernels/cuda/vendor/cusolver.h"
#include "kernels/cuda/vendor/library.h"
}

namespace {

/* --- Per-device library handles, and function pointers in the order of their names ------------ */
#define ROUTINE(name, parameters) int(*name) parameters;
#define BLAS_SINGLE(name, parameters) "cublasS" #name,
#define BLAS_DOUBLE(name, parameters) "cublasD" #name,
#define SOLVER_SINGLE(name, parameters) "cusolverDnS" #name,
#define SOLVER_DOUBLE(name, parameters) "cusolverDnD" #name,
template <class T>
struct blas_routines {
  MPG_CUBLAS_ROUTINES(ROUTINE, T)
};
template <class T>
struct solver_routines {
  MPG_CUSOLVER_ROUTINES(ROUTINE, T)
};
struct blas_functions {
  MPG_CUBLAS_FUNCTIONS(MPG_CUDA_FUNCTION)
  blas_routines<float> singles;
  blas_routines<double> doubles;
};
struct solver_functions {
  MPG_CUSOLVER_FUNCTIONS(MPG_CUDA_FUNCTION)
  solver_routines<float> singles;
  solver_routines<double> doubles;
};
struct general_functions { /* for eigenvalues of general matrices; loaded when first needed */
  MPG_CUSOLVER_GENERAL_FUNCTIONS(MPG_CUDA_FUNCTION)
};
struct libraries {
  blas_functions blas;
  solver_functions solver;
  general_functions general;
  cublasHandle_t blas_handle;
  cusolverDnHandle_t solver_handle;
  cusolverDnParams_t parameters; /* for `general`; owned; NULL before its first use */
};

void release(void *contents) {
  libraries *all = (libraries *)contents;
  if (all->parameters) all->general.cusolverDnDestroyParams(all->parameters);
  if (all->solver_handle) all->solver.cusolverDnDestroy(all->solver_handle);
  if (all->blas_handle) all->blas.cublasDestroy_v2(all->blas_handle);
  mpg_free(all);
}

mpg_status load(libraries *all) {
  static const char *const of_blas[] = {MPG_CUBLAS_FUNCTIONS(MPG_CUDA_FUNCTION_NAME)
                                            MPG_CUBLAS_ROUTINES(BLAS_SINGLE, float)
                                                MPG_CUBLAS_ROUTINES(BLAS_DOUBLE, double)};
  static const char *const of_solver[] = {MPG_CUSOLVER_FUNCTIONS(MPG_CUDA_FUNCTION_NAME)
                                              MPG_CUSOLVER_ROUTINES(SOLVER_SINGLE, float)
                                                  MPG_CUSOLVER_ROUTINES(SOLVER_DOUBLE, double)};
  MPG_TRY(mpg_cuda_library_functions(MPG_CUDA_CUBLAS, of_blas, sizeof of_blas / sizeof *of_blas,
                                     &all->blas));
  MPG_TRY(mpg_cuda_library_functions(MPG_CUDA_CUSOLVER, of_solver,
                                     sizeof of_solver / sizeof *of_solver, &all->solver));
  int result = all->blas.cublasCreate_v2(&all->blas_handle);
  if (result != 0)
    return mpg_fail(result == MPG_CUBLAS_STATUS_ALLOC_FAILED ? MPG_DEVICE_OUT_OF_MEMORY : MPG_ERROR,
                    "cublasCreate failed with status %d", result);
  result = all->solver.cusolverDnCreate(&all->solver_handle);
  if (result != 0)
    return mpg_fail(
        result == MPG_CUSOLVER_STATUS_ALLOC_FAILED ? MPG_DEVICE_OUT_OF_MEMORY : MPG_ERROR,
        "cusolverDnCreate failed with status %d", result);
  return MPG_OK;
}

mpg_status make(void **contents) {
  libraries *all = (libraries *)mpg_calloc(1, sizeof *all);
  if (!all) return mpg_out_of_host_memory(sizeof *all);
  mpg_status status = load(all);
  if (status == MPG_OK)
    *contents = all;
  else
    release(all);
  return status;
}

const blas_routines<float> &blas_of(const libraries *all, float) { return all->blas.singles; }
const blas_routines<double> &blas_of(const libraries *all, double) { return all->blas.doubles; }
const solver_routines<float> &solver_of(const libraries *all, float) { return all->solver.singles; }
const solver_routines<double> &solver_of(const libraries *all, double) {
  return all->solver.doubles;
}

/* Converts a library's status (0 is success). `no_memory` is its code for out of memory. */
mpg_status check(const mpg_kernel_call *call, const char *library, int status, int no_memory) {
  if (status == 0) return MPG_OK;
  return mpg_fail(status == no_memory ? MPG_DEVICE_OUT_OF_MEMORY : MPG_ERROR,
                  "%s: %s failed with status %d", call->op->name, library, status);
}
#define BLAS(expression) MPG_TRY(check(call, "cuBLAS", expression, MPG_CUBLAS_STATUS_ALLOC_FAILED))
#define SOLVER(expression) \
  MPG_TRY(check(call, "cuSOLVER", expression, MPG_CUSOLVER_STATUS_ALLOC_FAILED))

/* --- Matrices --------------------------------------------------------------------------------- */
struct matrices {
  int64_t count, rows, columns;
  int64_t n; /* number of rows of a square matrix */
};

matrices matrices_of(const mpg_view *view) {
  const mpg_shape *shape = &view->desc.shape;
  int64_t rows = shape->dims[shape->ndim - 2], columns = shape->dims[shape->ndim - 1];
  return {mpg_shape_product(shape, 0, shape->ndim - 2), rows, columns, columns};
}

/* Opens the libraries and sets their stream to the call's. Fails during a capture, or if a size
 * exceeds 32 bits. */
mpg_status open(const mpg_kernel_call *call, const matrices &t, libraries **all) {
  void *contents;
  if (call->device->scratch_stays)
    return mpg_fail(MPG_NOT_IMPLEMENTED, "cuSOLVER's work cannot be captured");
  if (t.rows > INT_MAX || t.columns > INT_MAX || t.count > INT_MAX)
    return mpg_fail(MPG_ERROR, "%s: %lld matrices of %lld x %lld are too large", call->op->name,
                    (long long)t.count, (long long)t.rows, (long long)t.columns);
  MPG_TRY(mpg_cuda_cached(call->device, MPG_CUDA_SLOT_LINALG, make, release, &contents));
  *all = (libraries *)contents;
  BLAS((*all)->blas.cublasSetStream_v2((*all)->blas_handle, (cudaStream_t)call->stream));
  SOLVER((*all)->solver.cusolverDnSetStream((*all)->solver_handle, (cudaStream_t)call->stream));
  return MPG_OK;
}

/* Request for an array in scratch memory. */
struct piece {
  void *to; /* a T ** that receives the address */
  int64_t count;
  size_t item;
};
template <int N>
mpg_status scratch(const mpg_kernel_call *call, const piece (&pieces)[N]) {
  size_t places[N], total = 0;
  for (int i = 0; i < N; i++) {
    size_t bytes;
    places[i] = total;
    if (!mpg_size_mul((size_t)pieces[i].count, pieces[i].item, &bytes) ||
        !mpg_size_add(total, bytes, &total) || !mpg_size_add(total, 255, &total))
      return mpg_fail(MPG_VALUE_ERROR, "%s: the matrices are too large", call->op->name);
    total &= ~(size_t)255;
  }
  char *memory = (char *)mpg_device_scratch(call->device, total);
  if (!memory) return MPG_DEVICE_OUT_OF_MEMORY;
  for (int i = 0; i < N; i++) *(void **)pieces[i].to = memory + places[i];
  return MPG_OK;
}

struct first {
  __device__ int64_t operator()(int64_t a, int64_t b) const { return a < b ? a : b; }
};
/* Raises an error for the first matrix whose status is not 0. Runs in one block. */
__global__ void refuse_kernel(mpg_cuda_assert assertion, const int *infos, int64_t count) {
  int64_t own = count;
  for (int64_t i = threadIdx.x; i < count; i += blockDim.x)
    if (infos[i] && i < own) own = i;
  own = mpg_block_reduce(own, count, first());
  if (threadIdx.x == 0 && own < count) assertion.raise(own);
}

mpg_status refuse(const mpg_kernel_call *call, const int *infos, int64_t count,
                  const char *format) {
  mpg_cuda_assert assertion;
  MPG_TRY(mpg_cuda_assert_make(call, MPG_ERROR, format, &assertion));
  return mpg_cuda_launch(call, refuse_kernel, 1, MPG_CUDA_THREADS, 0, assertion, infos, count);
}

/* Copies matrices to `out`, transposed if `transposes`. Iterations of the libraries may not end for
 * infinite elements or NaN. So a matrix that has any is replaced by zeros, and its element
 * of `wrong` is set to 1; otherwise it is 0. One block per matrix. */
template <class T>
__global__ void finite_kernel(const T *in, T *out, int *wrong, matrices t, bool transposes) {
  int64_t each = t.rows * t.columns, start = blockIdx.x * each;
  int bad = 0;
  for (int64_t i = threadIdx.x; i < each; i += blockDim.x)
    bad |= !(in[start + i] - in[start + i] == 0);
  bad = mpg_block_reduce(bad, 0, mpg_larger());
  for (int64_t i = threadIdx.x; i < each; i += blockDim.x)
    out[start + (transposes ? i % t.columns * t.rows + i / t.columns : i)] =
        bad ? (T)0 : in[start + i];
  if (threadIdx.x == 0) wrong[blockIdx.x] = bad;
}

/* --- Cholesky --------------------------------------------------------------------------------- */
/* Fills the triangle that LAPACK leaves unchanged: with the transpose of the computed triangle if
 * `mirror` is true, else with zeros. `lower` is true if LAPACK computed the lower triangle. */
template <class T>
__global__ void other_triangle_kernel(T *a, matrices t, bool lower, bool mirror) {
  int64_t i = MPG_CUDA_INDEX;
  if (i >= t.count * t.n * t.n) return;
  int64_t r = i / t.n % t.n, c = i % t.n;
  if (lower ? c > r : c < r) a[i] = mirror ? a[i + (c - r) * (t.n - 1)] : (T)0;
}

template <class T>
mpg_status cholesky(const mpg_kernel_call *call, bool inverts) {
  matrices t = matrices_of(&call->inputs[0]);
  bool lower = ((const mpg_linalg_cholesky_params *)call->params)->lower;
  int fill = lower ? MPG_CUBLAS_FILL_MODE_UPPER : MPG_CUBLAS_FILL_MODE_LOWER, n = (int)t.n, size;
  T *out = (T *)call->outputs[0].data, *work;
  int *infos;
  libraries *all;
  if (count_of(&call->inputs[0]) == 0) return MPG_OK;
  MPG_TRY(open(call, t, &all));
  const solver_routines<T> &f = solver_of(all, T());
  auto *size_of = inverts ? f.potri_bufferSize : f.potrf_bufferSize;
  auto *run = inverts ? f.potri : f.potrf;
  SOLVER(size_of(all->solver_handle, fill, n, out, n, &size));
  const piece pieces[] = {{&infos, t.count, sizeof *infos}, {&work, size, sizeof *work}};
  MPG_TRY(scratch(call, pieces));
  MPG_TRY(mpg_cuda_copy(call, &call->inputs[0], &call->outputs[0]));
  for (int64_t i = 0; i < t.count; i++)
    SOLVER(run(all->solver_handle, fill, n, out + i * n * n, n, work, size, infos + i));
  MPG_TRY(mpg_cuda_launch(call, other_triangle_kernel<T>, mpg_cuda_blocks(t.count * t.n * t.n),
                          MPG_CUDA_THREADS, 0, out, t, lower, inverts));
  return refuse(call, infos, t.count,
                inverts ? "%s: matrix %lld has a zero on its diagonal"
                        : "%s: matrix %lld is not positive definite");
}

/* --- Triangular products and solves ----------------------------------------------------------- */
template <class T>
mpg_status triangular(const mpg_kernel_call *call) {
  const mpg_linalg_triangular_params *p = (const mpg_linalg_triangular_params *)call->params;
  matrices t = matrices_of(&call->outputs[0]);
  t.n = p->rightside ? t.columns : t.rows;
  const T *a = (const T *)call->inputs[0].data, *b = (const T *)call->inputs[1].data;
  T *out = (T *)call->outputs[0].data, alpha = (T)p->alpha;
  bool product = call->op->id == MPG_OP__linalg_trmm;
  libraries *all;
  if (count_of(&call->outputs[0]) == 0) return MPG_OK;
  MPG_TRY(open(call, t, &all));
  const blas_routines<T> &f = blas_of(all, T());
  int side = p->rightside ? MPG_CUBLAS_SIDE_LEFT : MPG_CUBLAS_SIDE_RIGHT,
      fill = p->lower ? MPG_CUBLAS_FILL_MODE_UPPER : MPG_CUBLAS_FILL_MODE_LOWER,
      op = p->transpose ? MPG_CUBLAS_OP_T : MPG_CUBLAS_OP_N, m = (int)t.columns, n = (int)t.rows;
  int64_t each = t.rows * t.columns;
  if (!product) MPG_TRY(mpg_cuda_copy(call, &call->inputs[1], &call->outputs[0]));
  for (int64_t i = 0; i < t.count; i++, a += t.n * t.n, b += each, out += each)
    if (product)
      BLAS(f.trmm_v2(all->blas_handle, side, fill, op, MPG_CUBLAS_DIAG_NON_UNIT, m, n, &alpha, a,
                     (int)t.n, b, m, out, m));
    else
      BLAS(f.trsm_v2(all->blas_handle, side, fill, op, MPG_CUBLAS_DIAG_NON_UNIT, m, n, &alpha, a,
                     (int)t.n, out, m));
  return MPG_OK;
}

/* --- LQ: A = L Q from the QR factorization of the transpose, A^T = Q^T L^T -------------------- */
template <class T>
__global__ void lower_kernel(const T *q, T *l, matrices t) {
  int64_t i = MPG_CUDA_INDEX;
  if (i >= t.count * t.rows * t.rows) return;
  int64_t r = i / t.rows, c = i % t.rows; /* r is the row index across all matrices */
  l[i] = c <= r % t.rows ? q[r * t.columns + c] : (T)0;
}

template <class T>
mpg_status lq(const mpg_kernel_call *call) {
  matrices t = matrices_of(&call->inputs[0]);
  int m = (int)t.columns, n = (int)t.rows, size, other;
  T *q = (T *)call->outputs[0].data, *tau, *work;
  int *info;
  libraries *all;
  if (count_of(&call->inputs[0]) == 0) return MPG_OK;
  MPG_TRY(open(call, t, &all));
  const solver_routines<T> &f = solver_of(all, T());
  SOLVER(f.geqrf_bufferSize(all->solver_handle, m, n, q, m, &size));
  SOLVER(f.orgqr_bufferSize(all->solver_handle, m, n, n, q, m, q, &other));
  if (other > size) size = other;
  const piece pieces[] = {
      {&info, 1, sizeof *info}, {&tau, t.count * t.rows, sizeof *tau}, {&work, size, sizeof *work}};
  MPG_TRY(scratch(call, pieces));
  MPG_TRY(mpg_cuda_copy(call, &call->inputs[0], &call->outputs[0]));
  for (int64_t i = 0; i < t.count; i++)
    SOLVER(f.geqrf(all->solver_handle, m, n, q + i * m * n, m, tau + i * n, work, size, info));
  MPG_TRY(mpg_cuda_launch(call, lower_kernel<T>, mpg_cuda_blocks(t.count * t.rows * t.rows),
                          MPG_CUDA_THREADS, 0, (const T *)q, (T *)call->outputs[1].data, t));
  for (int64_t i = 0; i < t.count; i++)
    SOLVER(f.orgqr(all->solver_handle, m, n, n, q + i * m * n, m, tau + i * n, work, size, info));
  return MPG_OK;
}

/* --- Eigenvectors ----------------------------------------------------------------------------- */
/* Normalizes the signs of eigenvectors: the element with the largest magnitude becomes positive
 * (the first such element if there are several). One thread per vector. */
template <class T>
__global__ void signs_kernel(T *vectors, int64_t count, int64_t n) {
  int64_t i = MPG_CUDA_INDEX;
  if (i >= count) return;
  T *own = vectors + i * n, largest = 0;
  for (int64_t k = 0; k < n; k++)
    if (fabs((double)own[k]) > fabs((double)largest)) largest = own[k];
  for (int64_t k = 0; k < n && largest < 0; k++) own[k] = -own[k];
}

template <class T>
mpg_status eigenvectors(const mpg_kernel_call *call) {
  matrices t = matrices_of(&call->inputs[0]);
  int n = (int)t.n, size, mode = MPG_CUSOLVER_EIG_MODE_VECTOR, fill = MPG_CUBLAS_FILL_MODE_UPPER;
  T *u = (T *)call->outputs[0].data, *values = (T *)call->outputs[1].data, *work;
  int *infos;
  libraries *all;
  if (count_of(&call->inputs[0]) == 0) return MPG_OK;
  MPG_TRY(open(call, t, &all));
  const solver_routines<T> &f = solver_of(all, T());
  SOLVER(f.syevd_bufferSize(all->solver_handle, mode, fill, n, u, n, values, &size));
  const piece pieces[] = {{&infos, t.count, sizeof *infos}, {&work, size, sizeof *work}};
  MPG_TRY(scratch(call, pieces));
  MPG_TRY(mpg_cuda_copy(call, &call->inputs[0], &call->outputs[0]));
  for (int64_t i = 0; i < t.count; i++)
    SOLVER(f.syevd(all->solver_handle, mode, fill, n, u + i * n * n, n, values + i * n, work, size,
                   infos + i));
  MPG_TRY(mpg_cuda_launch(call, signs_kernel<T>, mpg_cuda_blocks(t.count * t.n), MPG_CUDA_THREADS,
                          0, u, t.count * t.n, t.n));
  return refuse(
      call, infos, t.count,
      "%s: matrix %lld has eigenvalues that could not be computed (is the matrix finite?)");
}

/* --- Singular values: A^T = V^T diag(L) UT^T -------------------------------------------------- */
/* Normalizes signs: the element with the largest magnitude in each row of V becomes positive (the
 * first of equal ones). Also sets the status of a matrix that is `wrong`. One thread per row. */
template <class T>
__global__ void svd_signs_kernel(T *ut, T *v, const int *wrong, int *infos, matrices t) {
  int64_t i = MPG_CUDA_INDEX;
  if (i >= t.count * t.rows) return;
  int64_t matrix = i / t.rows, r = i % t.rows;
  T *row = v + i * t.columns, *column = ut + matrix * t.rows * t.rows + r, largest = 0;
  for (int64_t k = 0; k < t.columns; k++)
    if (fabs((double)row[k]) > fabs((double)largest)) largest = row[k];
  for (int64_t k = 0; k < t.columns && largest < 0; k++) row[k] = -row[k];
  for (int64_t k = 0; k < t.rows && largest < 0; k++) column[k * t.rows] = -column[k * t.rows];
  if (r == 0 && wrong[matrix]) infos[matrix] = 1;
}

template <class T>
mpg_status singular_values(const mpg_kernel_call *call) {
  matrices t = matrices_of(&call->inputs[0]);
  int m = (int)t.columns, n = (int)t.rows, size;
  T *ut = (T *)call->outputs[0].data, *values = (T *)call->outputs[1].data,
    *v = (T *)call->outputs[2].data, *a, *work, *rest;
  int *infos, *wrong;
  libraries *all;
  if (count_of(&call->inputs[0]) == 0) return MPG_OK;
  MPG_TRY(open(call, t, &all));
  const solver_routines<T> &f = solver_of(all, T());
  SOLVER(f.gesvd_bufferSize(all->solver_handle, m, n, &size));
  const piece pieces[] = {{&infos, t.count, sizeof *infos},
                          {&wrong, t.count, sizeof *wrong},
                          {&a, t.count * t.rows * t.columns, sizeof *a},
                          {&work, size, sizeof *work},
                          {&rest, n, sizeof *rest}};
  MPG_TRY(scratch(call, pieces));
  MPG_TRY(mpg_cuda_launch(call, finite_kernel<T>, (unsigned)t.count, MPG_CUDA_THREADS, 0,
                          (const T *)call->inputs[0].data, a, wrong, t, false));
  for (int64_t i = 0; i < t.count; i++)
    SOLVER(f.gesvd(all->solver_handle, 'S', 'S', m, n, a + i * m * n, m, values + i * n,
                   v + i * m * n, m, ut + i * n * n, n, work, size, rest, infos + i));
  MPG_TRY(mpg_cuda_launch(call, svd_signs_kernel<T>, mpg_cuda_blocks(t.count * t.rows),
                          MPG_CUDA_THREADS, 0, ut, v, (const int *)wrong, infos, t));
  return refuse(
      call, infos, t.count,
      "%s: matrix %lld has singular values that could not be computed (is the matrix finite?)");
}

/* --- Eigenvalues of general matrices ---------------------------------------------------------- */
/* Loads the functions. Fails if cuSOLVER is too old. */
mpg_status need_general(const mpg_kernel_call *call, libraries *all) {
  static const char *const names[] = {MPG_CUSOLVER_GENERAL_FUNCTIONS(MPG_CUDA_FUNCTION_NAME)};
  if (all->parameters) return MPG_OK;
  MPG_TRY(mpg_cuda_library_functions(MPG_CUDA_CUSOLVER, names, sizeof names / sizeof *names,
                                     &all->general));
  SOLVER(all->general.cusolverDnCreateParams(&all->parameters));
  return MPG_OK;
}

/* Copies the real parts of eigenvalues, and the eigenvectors to the columns of row-major matrices
 * unless `out` is NULL. Sets the status of a matrix that has a complex eigenvalue or is `wrong`.
 * One thread per element of the matrices. */
template <class T>
__global__ void real_kernel(const T *w, const T *v, const int *wrong, int *infos, T *values, T *out,
                            matrices t) {
  int64_t i = MPG_CUDA_INDEX;
  if (i >= t.count * t.n * t.n) return;
  int64_t matrix = i / (t.n * t.n), r = i / t.n % t.n, c = i % t.n;
  if (out) out[i] = v[(matrix * t.n + c) * t.n + r];
  if (r != 0) return;
  values[matrix * t.n + c] = w[2 * matrix * t.n + c];
  if (wrong[matrix] || w[(2 * matrix + 1) * t.n + c] != 0) infos[matrix] = 1;
}

template <class T>
mpg_status eigenvalues(const mpg_kernel_call *call) {
  matrices t = matrices_of(&call->inputs[0]);
  bool vectors = call->num_outputs > 1;
  int64_t n = t.n;
  int none = MPG_CUSOLVER_EIG_MODE_NOVECTOR, right = vectors ? MPG_CUSOLVER_EIG_MODE_VECTOR : none,
      type = sizeof(T) == 8 ? MPG_CUDA_R_64F : MPG_CUDA_R_32F;
  T *values = (T *)call->outputs[0].data, *out = vectors ? (T *)call->outputs[1].data : NULL;
  T *a, *w, *v;
  int *infos, *wrong;
  char *work;
  size_t size = 0, host_size = 0;
  libraries *all;
  if (count_of(&call->inputs[0]) == 0) return MPG_OK;
  MPG_TRY(open(call, t, &all));
  MPG_TRY(need_general(call, all));
  const general_functions &f = all->general;
  SOLVER(f.cusolverDnXgeev_bufferSize(all->solver_handle, all->parameters, none, right, n, type,
                                      call->inputs[0].data, n, type, values, type, NULL, n, type,
                                      out, n, type, &size, &host_size));
  const piece pieces[] = {
      {&infos, t.count, sizeof *infos}, {&wrong, t.count, sizeof *wrong},
      {&a, t.count * n * n, sizeof *a}, {&w, t.count * 2 * n, sizeof *w},
      {&work, (int64_t)size, 1},        {&v, vectors ? t.count * n * n : 0, sizeof *v}};
  MPG_TRY(scratch(call, pieces));
  MPG_TRY(mpg_cuda_launch(call, finite_kernel<T>, (unsigned)t.count, MPG_CUDA_THREADS, 0,
                          (const T *)call->inputs[0].data, a, wrong, t, true));
  void *host = host_size ? mpg_malloc(host_size) : NULL;
  if (host_size && !host) return mpg_out_of_host_memory(host_size);
  int result = 0;
  for (int64_t i = 0; i < t.count && result == 0; i++)
    result = f.cusolverDnXgeev(all->solver_handle, all->parameters, none, right, n, type,
                               a + i * n * n, n, type, w + i * 2 * n, type, NULL, n, type,
                               vectors ? v + i * n * n : NULL, n, type, work, size, host, host_size,
                               infos + i);
  /* The stream's work may use `host` until it ends. */
  mpg_status ended = host ? mpg_cuda_check(cudaStreamSynchronize((cudaStream_t)call->stream),
                                           "cudaStreamSynchronize")
                          : MPG_OK;
  mpg_free(host);
  MPG_TRY(ended);
  SOLVER(result);
  MPG_TRY(mpg_cuda_launch(call, real_kernel<T>, mpg_cuda_blocks(t.count * n * n), MPG_CUDA_THREADS,
                          0, (const T *)w, (const T *)v, (const int *)wrong, infos, values, out,
                          t));
  return refuse(call, infos, t.count,
                "%s: matrix %lld has complex eigenvalues, which are not supported, or elements "
                "that are not finite");
}

/* --- LU --------------------------------------------------------------------------------------- */
template <class T>
__global__ void places_kernel(T *lu, T *out, int64_t step, T **factors, T **targets, matrices t) {
  int64_t i = MPG_CUDA_INDEX;
  if (i >= t.count) return;
  factors[i] = lu + i * t.n * t.n;
  targets[i] = out + i * step;
}

/* LU factors and pivots of all matrices in a call. */
template <class T>
struct factors {
  matrices t;
  libraries *all;
  int64_t columns; /* number of right-hand sides of each matrix, for `solve`; otherwise 0 */
  T *lu, **places;
  T **targets; /* addresses of the inverses, or of each matrix's part of x */
  T *x;        /* right-hand sides, which the solutions replace, as column-major matrices */
  int *pivots, *infos, *unused; /* unused: statuses of the inversion, equal to `infos` */

  mpg_status compute(const mpg_kernel_call *call) {
    int n = (int)t.n;
    MPG_TRY(open(call, t, &all));
    const piece pieces[] = {
        {&lu, t.count * t.n * t.n, sizeof *lu},  {&places, t.count, sizeof *places},
        {&targets, t.count, sizeof *targets},    {&pivots, t.count * t.n, sizeof *pivots},
        {&infos, t.count, sizeof *infos},        {&unused, t.count, sizeof *unused},
        {&x, t.count * t.n * columns, sizeof *x}};
    MPG_TRY(scratch(call, pieces));
    if (!n) return MPG_OK;
    MPG_TRY(mpg_cuda_copy(call, call->inputs[0].data, lu, bytes_of(&call->inputs[0])));
    MPG_TRY(mpg_cuda_launch(call, places_kernel<T>, mpg_cuda_blocks(t.count), MPG_CUDA_THREADS, 0,
                            lu, columns ? x : (T *)call->outputs[0].data,
                            t.n * (columns ? columns : t.n), places, targets, t));
    BLAS(blas_of(all, T()).getrfBatched(all->blas_handle, n, places, n, pivots, infos,
                                        (int)t.count));
    return MPG_OK;
  }
};

template <class T>
__global__ void zero_singular_kernel(T *out, const int *infos, matrices t) {
  int64_t i = MPG_CUDA_INDEX;
  if (i < t.count * t.n * t.n && infos[i / (t.n * t.n)]) out[i] = 0;
}

template <class T>
mpg_status inverse(const mpg_kernel_call *call) {
  factors<T> f = {};
  f.t = matrices_of(&call->inputs[0]);
  int n = (int)f.t.n;
  if (count_of(&call->inputs[0]) == 0) return MPG_OK;
  MPG_TRY(f.compute(call));
  BLAS(blas_of(f.all, T())
           .getriBatched(f.all->blas_handle, n, f.places, n, f.pivots, f.targets, n, f.unused,
                         (int)f.t.count));
  MPG_TRY(mpg_cuda_launch(call, zero_singular_kernel<T>, mpg_cuda_blocks(f.t.count * f.t.n * f.t.n),
                          MPG_CUDA_THREADS, 0, (T *)call->outputs[0].data, f.infos, f.t));
  return call->op->id == MPG_OP__linalg_inverse
             ? refuse(call, f.infos, f.t.count, "%s: matrix %lld is singular")
             : MPG_OK;
}

/* Transposes matrices of `rows` x `columns`. One thread per element. */
template <class T>
__global__ void transpose_kernel(const T *in, T *out, int64_t count, int64_t rows,
                                 int64_t columns) {
  int64_t i = MPG_CUDA_INDEX;
  if (i >= count) return;
  int64_t matrix = i / (rows * columns), at = i % (rows * columns);
  out[matrix * rows * columns + at % columns * rows + at / columns] = in[i];
}

/* Solves the transposes of the systems that cuBLAS sees. */
template <class T>
mpg_status solve(const mpg_kernel_call *call) {
  const mpg_view *b = &call->inputs[1], *out = &call->outputs[0];
  const mpg_shape *shape = &b->desc.shape;
  factors<T> f = {};
  f.t = matrices_of(&call->inputs[0]);
  f.columns = shape->ndim < call->inputs[0].desc.shape.ndim ? 1 : shape->dims[shape->ndim - 1];
  int n = (int)f.t.n, wrong = 0;
  int64_t count = count_of(b);
  if (count == 0) return MPG_OK;
  if (f.columns > INT_MAX)
    return mpg_fail(MPG_ERROR, "%s: %lld columns are too many", call->op->name,
                    (long long)f.columns);
  MPG_TRY(f.compute(call));
  MPG_TRY(mpg_cuda_launch(call, transpose_kernel<T>, mpg_cuda_blocks(count), MPG_CUDA_THREADS, 0,
                          (const T *)b->data, f.x, count, f.t.n, f.columns));
  BLAS(blas_of(f.all, T())
           .getrsBatched(f.all->blas_handle, MPG_CUBLAS_OP_T, n, (int)f.columns, f.places, n,
                         f.pivots, f.targets, n, &wrong, (int)f.t.count));
  MPG_TRY(mpg_cuda_launch(call, transpose_kernel<T>, mpg_cuda_blocks(count), MPG_CUDA_THREADS, 0,
                          (const T *)f.x, (T *)out->data, count, f.columns, f.t.n));
  return refuse(call, f.infos, f.t.count, "%s: matrix %lld is singular");
}

/* Computes determinants from LU factors. If `logarithms` is not NULL, computes the sign and the
 * logarithm of the magnitude instead. One thread per matrix. */
template <class T>
__global__ void det_kernel(const T *lu, const int *pivots, T *out, T *logarithms, matrices t) {
  int64_t matrix = MPG_CUDA_INDEX;
  if (matrix >= t.count) return;
  double product = 1, sign = 1, logarithm = 0;
  for (int64_t k = 0; k < t.n; k++) {
    double element = (double)lu[(matrix * t.n + k) * t.n + k];
    if (pivots[matrix * t.n + k] != k + 1) product = -product, sign = -sign;
    product *= element;
    sign *= (element > 0) - (element < 0);
    logarithm += log(fabs(element));
  }
  out[matrix] = (T)(logarithms ? sign : product);
  if (logarithms) logarithms[matrix] = (T)logarithm;
}

template <class T>
mpg_status det(const mpg_kernel_call *call) {
  factors<T> f = {};
  f.t = matrices_of(&call->inputs[0]);
  if (f.t.count == 0) return MPG_OK;
  MPG_TRY(f.compute(call));
  return mpg_cuda_launch(call, det_kernel<T>, mpg_cuda_blocks(f.t.count), MPG_CUDA_THREADS, 0,
                         (const T *)f.lu, (const int *)f.pivots, (T *)call->outputs[0].data,
                         call->num_outputs > 1 ? (T *)call->outputs[1].data : (T *)NULL, f.t);
}

/* --- Triangles -------------------------------------------------------------------------------- */

struct part {
  int64_t n, away, each; /* away: distance from the main diagonal; each: elements per matrix */
  bool upper, extract;
};

/* Copies a triangle of each matrix to a vector (`extract`) or back. One thread per element. */
template <class T>
__global__ void part_kernel(const T *in, T *out, part p, int64_t count) {
  int64_t i = MPG_CUDA_INDEX;
  if (i >= count) return;
  int64_t matrix = i / p.each, at = i % p.each;
  int64_t r = (int64_t)((sqrt(8.0 * (double)at + 1) - 1) / 2);
  while (r * (r + 1) / 2 > at) r--;
  while ((r + 1) * (r + 2) / 2 <= at) r++;
  int64_t c = at - r * (r + 1) / 2;
  int64_t place = matrix * p.n * p.n + (p.upper ? c * p.n + r + p.away : (r + p.away) * p.n + c);
  if (p.extract)
    out[i] = in[place];
  else
    out[place] = in[i];
}

mpg_status triangle(const mpg_kernel_call *call, bool extract) {
  const mpg_linalg_triangle_params *params = (const mpg_linalg_triangle_params *)call->params;
  const mpg_view *in = &call->inputs[0], *out = &call->outputs[0];
  int64_t n = matrices_of(extract ? in : out).n, offset = params->offset,
          away = offset < 0 ? -offset : offset, side = n - away;
  part p = {n, away, side * (side + 1) / 2, offset > 0 || (offset == 0 && !params->lower), extract};
  int64_t count = count_of(extract ? out : in);
  if (!extract) MPG_TRY(mpg_cuda_zero(call, out));
  MPG_CUDA_SIZE(
      item_of(in), T,
      return mpg_cuda_launch(call, part_kernel<T>, mpg_cuda_blocks(count), MPG_CUDA_THREADS, 0,
                             (const T *)in->data, (T *)out->data, p, count));
  return MPG_OK;
}

} // namespace

#define BY_DTYPE(function, ...)                                                    \
  return call->inputs[0].desc.dtype == MPG_FLOAT64 ? function<double>(__VA_ARGS__) \
                                                   : function<float>(__VA_ARGS__)

mpg_status mpg_cuda_linalg_potrf(const mpg_kernel_call *call) { BY_DTYPE(cholesky, call, false); }
mpg_status mpg_cuda_linalg_potri(const mpg_kernel_call *call) { BY_DTYPE(cholesky, call, true); }
mpg_status mpg_cuda_linalg_triangular(const mpg_kernel_call *call) { BY_DTYPE(triangular, call); }
mpg_status mpg_cuda_linalg_gelqf(const mpg_kernel_call *call) { BY_DTYPE(lq, call); }
mpg_status mpg_cuda_linalg_syevd(const mpg_kernel_call *call) { BY_DTYPE(eigenvectors, call); }
mpg_status mpg_cuda_linalg_inverse(const mpg_kernel_call *call) { BY_DTYPE(inverse, call); }
mpg_status mpg_cuda_svd(const mpg_kernel_call *call) { BY_DTYPE(singular_values, call); }
mpg_status mpg_cuda_eig(const mpg_kernel_call *call) { BY_DTYPE(eigenvalues, call); }
mpg_status mpg_cuda_solve(const mpg_kernel_call *call) { BY_DTYPE(solve, call); }
mpg_status mpg_cuda_linalg_det(const mpg_kernel_call *call) { BY_DTYPE(det, call); }

mpg_status mpg_cuda_linalg_extracttrian(const mpg_kernel_call *call) {
  return triangle(call, true);
}
mpg_status mpg_cuda_linalg_maketrian(const mpg_kernel_call *call) { return triangle(call, false); }
