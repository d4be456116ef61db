// Test-only: emulates cuBLAS on the host. Implements kernels/cuda/vendor/cublas.h with plain loops
// in double, in stream order.
#include "library.h"

#include "kernels/cuda/vendor/cublas.h"

namespace {

hostcuda_handles handles("cublas");
const hostcuda_handle *own(cublasHandle_t handle) { return (const hostcuda_handle *)handle; }

// The triangular matrix op(A), whose other triangle reads as zero.
template <class T>
struct triangle {
  const T *a;
  int64_t ld;
  bool lower, transposed;
  bool is_lower() const { return lower != transposed; }
  double at(int64_t r, int64_t c) const {
    if (is_lower() ? c > r : c < r) return 0;
    return (double)(transposed ? a[r * ld + c] : a[c * ld + r]);
  }
};

template <class T>
int trmm(cublasHandle_t handle, int side, int fill, int op, int m, int n, double alpha, const T *a,
         int lda, const T *b, int ldb, T *c, int ldc) {
  bool left = side == MPG_CUBLAS_SIDE_LEFT;
  triangle<T> f = {a, lda, fill == MPG_CUBLAS_FILL_MODE_LOWER, op == MPG_CUBLAS_OP_T};
  hostcuda_here(own(handle), a, sizeof *a * (size_t)lda * (size_t)(left ? m : n));
  hostcuda_here(own(handle), b, sizeof *b * (size_t)ldb * (size_t)n);
  hostcuda_here(own(handle), c, sizeof *c * (size_t)ldc * (size_t)n);
  return hostcuda_queue(own(handle), [=] {
    columns<T> in(b, m, n, ldb), out(m, n);
    for (int64_t k = 0; k < n; k++)
      for (int64_t r = 0; r < m; r++)
        for (int64_t j = 0; j < (left ? m : n); j++)
          out(r, k) += alpha * (left ? f.at(r, j) * in(j, k) : in(r, j) * f.at(j, k));
    out.write(c, ldc);
  });
}

template <class T>
int trsm(cublasHandle_t handle, int side, int fill, int op, int m, int n, double alpha, const T *a,
         int lda, T *b, int ldb) {
  bool left = side == MPG_CUBLAS_SIDE_LEFT;
  triangle<T> f = {a, lda, fill == MPG_CUBLAS_FILL_MODE_LOWER, op == MPG_CUBLAS_OP_T};
  hostcuda_here(own(handle), a, sizeof *a * (size_t)lda * (size_t)(left ? m : n));
  hostcuda_here(own(handle), b, sizeof *b * (size_t)ldb * (size_t)n);
  return hostcuda_queue(own(handle), [=] {
    columns<T> x(b, m, n, ldb);
    int64_t length = left ? m : n;
    bool forward = f.is_lower() == left;
    for (int64_t vector = 0; vector < (left ? n : m); vector++)
      for (int64_t step = 0; step < length; step++) {
        int64_t i = forward ? step : length - 1 - step;
        double &one = left ? x(i, vector) : x(vector, i);
        one *= alpha;
        for (int64_t j = forward ? 0 : i + 1; j < (forward ? i : length); j++)
          one -= left ? f.at(i, j) * x(j, vector) : x(vector, j) * f.at(j, i);
        one /= f.at(i, i);
      }
    x.write(b, ldb);
  });
}

template <class T>
void factorise(T *memory, int64_t n, int64_t ld, int *pivots, int *info) {
  columns<T> a(memory, n, n, ld);
  *info = 0;
  for (int64_t k = 0; k < n; k++) {
    int64_t best = k;
    for (int64_t r = k + 1; r < n; r++)
      if (fabs(a(r, k)) > fabs(a(best, k))) best = r;
    pivots[k] = (int)best + 1;
    for (int64_t c = 0; c < n && best != k; c++) std::swap(a(k, c), a(best, c));
    if (a(k, k) == 0) {
      if (!*info) *info = (int)k + 1;
      continue;
    }
    for (int64_t r = k + 1; r < n; r++) a(r, k) /= a(k, k);
    for (int64_t c = k + 1; c < n; c++)
      for (int64_t r = k + 1; r < n; r++) a(r, c) -= a(r, k) * a(k, c);
  }
  a.write(memory, ld);
}

template <class T>
int getrf(cublasHandle_t handle, int n, T *const *a, int lda, int *pivots, int *infos, int count) {
  hostcuda_here(own(handle), a, sizeof *a * (size_t)count);
  hostcuda_here(own(handle), pivots, sizeof *pivots * (size_t)count * (size_t)n);
  hostcuda_here(own(handle), infos, sizeof *infos * (size_t)count);
  return hostcuda_queue(own(handle), [=] {
    for (int64_t i = 0; i < count; i++) factorise(a[i], n, lda, pivots + i * n, infos + i);
  });
}

// Inverts a matrix from its LU factors. If it is singular, leaves the output unchanged.
template <class T>
void invert(const T *factors, int64_t n, int64_t ld, const int *pivots, T *to, int64_t to_ld,
            int *info) {
  columns<T> a(factors, n, n, ld), x(n, n);
  *info = 0;
  for (int64_t k = 0; k < n && !*info; k++)
    if (a(k, k) == 0) *info = (int)k + 1;
  if (*info) return;
  for (int64_t c = 0; c < n; c++) {
    x(c, c) = 1;
    for (int64_t k = 0; k < n; k++) std::swap(x(k, c), x(pivots[k] - 1, c));
    for (int64_t k = 0; k < n; k++)
      for (int64_t r = k + 1; r < n; r++) x(r, c) -= a(r, k) * x(k, c);
    for (int64_t k = n - 1; k >= 0; k--) {
      x(k, c) /= a(k, k);
      for (int64_t r = 0; r < k; r++) x(r, c) -= a(r, k) * x(k, c);
    }
  }
  x.write(to, to_ld);
}

template <class T>
int getri(cublasHandle_t handle, int n, const T *const *a, int lda, const int *pivots, T *const *c,
          int ldc, int *infos, int count) {
  hostcuda_here(own(handle), c, sizeof *c * (size_t)count);
  hostcuda_here(own(handle), infos, sizeof *infos * (size_t)count);
  return hostcuda_queue(own(handle), [=] {
    for (int64_t i = 0; i < count; i++) {
      if (a[i] == c[i]) hostcuda_wrong("the inverse over its factors");
      invert(a[i], n, lda, pivots + i * n, c[i], ldc, infos + i);
    }
  });
}

// Solves A^T X = B from the LU factors of A.
template <class T>
void solve_transposed(const T *factors, int64_t n, int64_t ld, const int *pivots, int64_t count,
                      T *b, int64_t ldb) {
  columns<T> a(factors, n, n, ld), x(b, n, count, ldb);
  for (int64_t c = 0; c < count; c++) {
    for (int64_t k = 0; k < n; k++) {
      for (int64_t r = 0; r < k; r++) x(k, c) -= a(r, k) * x(r, c);
      x(k, c) /= a(k, k);
    }
    for (int64_t k = n - 1; k >= 0; k--)
      for (int64_t r = k + 1; r < n; r++) x(k, c) -= a(r, k) * x(r, c);
    for (int64_t k = n - 1; k >= 0; k--) std::swap(x(k, c), x(pivots[k] - 1, c));
  }
  x.write(b, ldb);
}

template <class T>
int getrs(cublasHandle_t handle, int op, int n, int columns, const T *const *a, int lda,
          const int *pivots, T *const *b, int ldb, int *wrong, int count) {
  if (op != MPG_CUBLAS_OP_T) return MPG_CUBLAS_STATUS_INVALID_VALUE;
  hostcuda_here(own(handle), a, sizeof *a * (size_t)count);
  hostcuda_here(own(handle), b, sizeof *b * (size_t)count);
  hostcuda_here(own(handle), pivots, sizeof *pivots * (size_t)count * (size_t)n);
  *wrong = 0; // in host memory
  return hostcuda_queue(own(handle), [=] {
    for (int64_t i = 0; i < count; i++)
      solve_transposed(a[i], n, lda, pivots + i * n, columns, b[i], ldb);
  });
}

} // namespace

EXPORT cublasStatus_t cublasCreate_v2(cublasHandle_t *handle) { return handles.create(handle); }
EXPORT cublasStatus_t cublasDestroy_v2(cublasHandle_t handle) { return handles.destroy(handle); }
EXPORT cublasStatus_t cublasSetStream_v2(cublasHandle_t handle, cudaStream_t stream) {
  ((hostcuda_handle *)handle)->stream = stream;
  return 0;
}

#define ROUTINES(S, T)                                                                           \
  EXPORT int cublas##S##trmm_v2(cublasHandle_t handle, int side, int fill, int op, int diagonal, \
                                int m, int n, const T *alpha, const T *a, int lda, const T *b,   \
                                int ldb, T *c, int ldc) {                                        \
    return diagonal ? MPG_CUBLAS_STATUS_INVALID_VALUE                                            \
                    : trmm(handle, side, fill, op, m, n, *alpha, a, lda, b, ldb, c, ldc);        \
  }                                                                                              \
  EXPORT int cublas##S##trsm_v2(cublasHandle_t handle, int side, int fill, int op, int diagonal, \
                                int m, int n, const T *alpha, const T *a, int lda, T *b,         \
                                int ldb) {                                                       \
    return diagonal ? MPG_CUBLAS_STATUS_INVALID_VALUE                                            \
                    : trsm(handle, side, fill, op, m, n, *alpha, a, lda, b, ldb);                \
  }                                                                                              \
  EXPORT int cublas##S##getrfBatched(cublasHandle_t handle, int n, T *const *a, int lda,         \
                                     int *pivots, int *infos, int count) {                       \
    return getrf(handle, n, a, lda, pivots, infos, count);                                       \
  }                                                                                              \
  EXPORT int cublas##S##getriBatched(cublasHandle_t handle, int n, const T *const *a, int lda,   \
                                     const int *pivots, T *const *c, int ldc, int *infos,        \
                                     int count) {                                                \
    return getri(handle, n, a, lda, pivots, c, ldc, infos, count);                               \
  }                                                                                              \
  EXPORT int cublas##S##getrsBatched(cublasHandle_t handle, int op, int n, int columns,          \
                                     const T *const *a, int lda, const int *pivots, T *const *b, \
                                     int ldb, int *wrong, int count) {                           \
    return getrs(handle, op, n, columns, a, lda, pivots, b, ldb, wrong, count);                  \
  }
ROUTINES(S, float)
ROUTINES(D, double)

// Returns the major (which = 0), minor or patch version.
extern "C" __attribute__((visibility("default"))) int cublasGetProperty(int which, int *value) {
  *value = which ? 0 : 13;
  return 0;
}
