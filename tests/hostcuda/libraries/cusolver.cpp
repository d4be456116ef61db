// Test-only: emulates cuSOLVER on the host. Implements kernels/cuda/vendor/cusolver.h with plain
// loops in double, in stream order. It overwrites all of the workspace that it requests, and aborts
// if the workspace is smaller.
#include "library.h"

#include "kernels/cuda/vendor/cusolver.h"

namespace {

hostcuda_handles handles("cusolver");
const hostcuda_handle *own(cusolverDnHandle_t handle) { return (const hostcuda_handle *)handle; }

int size_of(int n) { return 3 * n + 7; } // required elements of a workspace

template <class T>
void use(cusolverDnHandle_t handle, int n, const T *a, int64_t elements, T *work, int size,
         int *info) {
  if (size < size_of(n)) hostcuda_wrong("a workspace that is too small");
  hostcuda_here(own(handle), a, sizeof *a * (size_t)elements);
  hostcuda_here(own(handle), work, sizeof *work * (size_t)size);
  hostcuda_here(own(handle), info, sizeof *info);
  hostcuda_queue(own(handle), [=] { memset(work, 0xdd, sizeof *work * (size_t)size); });
}

// A lower triangular matrix L, which is stored as its transpose in the upper triangle unless
// `lower`.
template <class T>
struct factor {
  T *a;
  int64_t n, ld;
  bool lower;
  T &at(int64_t r, int64_t c) const { return lower ? a[c * ld + r] : a[r * ld + c]; }
  columns<T> read() const {
    columns<T> l(n, n);
    for (int64_t c = 0; c < n; c++)
      for (int64_t r = c; r < n; r++) l(r, c) = (double)at(r, c);
    return l;
  }
  void write(columns<T> &l) const {
    for (int64_t c = 0; c < n; c++)
      for (int64_t r = c; r < n; r++) at(r, c) = (T)l(r, c);
  }
};

template <class T>
int potrf(cusolverDnHandle_t handle, int fill, int n, T *a, int lda, T *work, int size, int *info) {
  factor<T> f = {a, n, lda, fill == MPG_CUBLAS_FILL_MODE_LOWER};
  use(handle, n, a, (int64_t)n * lda, work, size, info);
  return hostcuda_queue(own(handle), [=] {
    columns<T> l = f.read();
    *info = 0;
    for (int64_t k = 0; k < n && !*info; k++) {
      for (int64_t r = k; r < n; r++)
        for (int64_t j = 0; j < k; j++) l(r, k) -= l(r, j) * l(k, j);
      if (!(l(k, k) > 0)) {
        *info = (int)k + 1;
        break;
      }
      l(k, k) = sqrt(l(k, k));
      for (int64_t r = k + 1; r < n; r++) l(r, k) /= l(k, k);
    }
    f.write(l);
  });
}

template <class T>
int potri(cusolverDnHandle_t handle, int fill, int n, T *a, int lda, T *work, int size, int *info) {
  factor<T> f = {a, n, lda, fill == MPG_CUBLAS_FILL_MODE_LOWER};
  use(handle, n, a, (int64_t)n * lda, work, size, info);
  return hostcuda_queue(own(handle), [=] {
    columns<T> l = f.read(), x(n, n), out(n, n);
    *info = 0;
    for (int64_t k = 0; k < n && !*info; k++)
      if (l(k, k) == 0) *info = (int)k + 1;
    if (*info) return;
    for (int64_t c = 0; c < n; c++)
      for (int64_t r = c; r < n; r++) {
        x(r, c) = r == c;
        for (int64_t j = c; j < r; j++) x(r, c) -= l(r, j) * x(j, c);
        x(r, c) /= l(r, r);
      }
    for (int64_t c = 0; c < n; c++)
      for (int64_t r = c; r < n; r++)
        for (int64_t j = r; j < n; j++) out(r, c) += x(j, r) * x(j, c);
    f.write(out);
  });
}

// Applies Householder reflection k to column c of a: subtracts tau (h . column) h. The vector h is
// 0 above element k, 1 at k, and has the elements of v's column k below.
template <class T>
void reflect(columns<T> &v, int64_t k, double tau, columns<T> &a, int64_t c) {
  double product = a(k, c);
  for (int64_t i = k + 1; i < v.m; i++) product += v(i, k) * a(i, c);
  a(k, c) -= tau * product;
  for (int64_t i = k + 1; i < v.m; i++) a(i, c) -= tau * product * v(i, k);
}

template <class T>
int geqrf(cusolverDnHandle_t handle, int m, int n, T *a, int lda, T *tau, T *work, int size,
          int *info) {
  use(handle, n, a, (int64_t)n * lda, work, size, info);
  hostcuda_here(own(handle), tau, sizeof *tau * (size_t)(m < n ? m : n));
  return hostcuda_queue(own(handle), [=] {
    columns<T> v(a, m, n, lda);
    for (int64_t k = 0; k < (m < n ? m : n); k++) {
      double sum = 0, head = v(k, k);
      for (int64_t i = k + 1; i < m; i++) sum += v(i, k) * v(i, k);
      double norm = sqrt(head * head + sum),
             beta = sum == 0   ? head
                    : head < 0 ? norm
                               : -norm,
             part = sum == 0 ? 0 : (beta - head) / beta;
      for (int64_t i = k + 1; i < m && sum != 0; i++) v(i, k) /= head - beta;
      for (int64_t c = k + 1; c < n; c++) reflect(v, k, part, v, c);
      v(k, k) = beta;
      tau[k] = (T)part;
    }
    v.write(a, lda);
    *info = 0;
  });
}

template <class T>
int orgqr(cusolverDnHandle_t handle, int m, int n, int k, T *a, int lda, const T *tau, T *work,
          int size, int *info) {
  if (m < n || n < k) return MPG_CUSOLVER_STATUS_INVALID_VALUE;
  use(handle, n, a, (int64_t)n * lda, work, size, info);
  return hostcuda_queue(own(handle), [=] {
    columns<T> v(a, m, n, lda), q(m, n);
    for (int64_t c = 0; c < n; c++) q(c, c) = 1;
    for (int64_t i = k - 1; i >= 0; i--)
      for (int64_t c = i; c < n; c++) reflect(v, i, (double)tau[i], q, c);
    q.write(a, lda);
    *info = 0;
  });
}

// Applies the Jacobi rotation that zeroes a(p, q), and updates the eigenvectors v.
template <class T>
void rotate(columns<T> &a, columns<T> &v, int64_t p, int64_t q) {
  if (a(p, q) == 0) return;
  double theta = (a(q, q) - a(p, p)) / (2 * a(p, q));
  double t = (theta < 0 ? -1 : 1) / (fabs(theta) + sqrt(theta * theta + 1));
  double c = 1 / sqrt(t * t + 1), s = t * c;
  auto turn = [c, s](double &x, double &y) {
    double before = x;
    x = c * before - s * y, y = s * before + c * y;
  };
  for (int64_t k = 0; k < a.n; k++) turn(a(p, k), a(q, k));
  for (int64_t k = 0; k < a.n; k++) turn(a(k, p), a(k, q)), turn(v(k, p), v(k, q));
  a(p, q) = a(q, p) = 0;
}

template <class T>
int syevd(cusolverDnHandle_t handle, int mode, int fill, int n, T *memory, int lda, T *values,
          T *work, int size, int *info) {
  if (mode != MPG_CUSOLVER_EIG_MODE_VECTOR) return MPG_CUSOLVER_STATUS_INVALID_VALUE;
  use(handle, n, memory, (int64_t)n * lda, work, size, info);
  hostcuda_here(own(handle), values, sizeof *values * (size_t)n);
  factor<T> f = {memory, n, lda, fill == MPG_CUBLAS_FILL_MODE_LOWER};
  return hostcuda_queue(own(handle), [=] {
    columns<T> a = f.read(), v(n, n), sorted(n, n);
    for (int64_t c = 0; c < n; c++) {
      v(c, c) = 1;
      for (int64_t r = 0; r < c; r++) a(r, c) = a(c, r);
    }
    *info = 1;
    for (int sweep = 0; sweep < 60 && *info; sweep++) {
      double off = 0, all = 0;
      for (int64_t c = 0; c < n; c++)
        for (int64_t r = 0; r < n; r++)
          all += a(r, c) * a(r, c), off += r != c ? a(r, c) * a(r, c) : 0;
      if (off <= 1e-32 * all) *info = 0;
      for (int64_t p = 0; p < n && *info; p++)
        for (int64_t q = p + 1; q < n; q++) rotate(a, v, p, q);
    }
    for (int64_t k = 0; k < n; k++) {
      int64_t rank = 0;
      for (int64_t j = 0; j < n; j++) rank += a(j, j) < a(k, k) || (a(j, j) == a(k, k) && j < k);
      values[rank] = (T)a(k, k);
      for (int64_t r = 0; r < n; r++) sorted(r, rank) = v(r, k);
    }
    sorted.write(memory, lda);
  });
}

} // namespace

EXPORT cusolverStatus_t cusolverDnCreate(cusolverDnHandle_t *handle) {
  return handles.create(handle);
}
EXPORT cusolverStatus_t cusolverDnDestroy(cusolverDnHandle_t handle) {
  return handles.destroy(handle);
}
EXPORT cusolverStatus_t cusolverDnSetStream(cusolverDnHandle_t handle, cudaStream_t stream) {
  ((hostcuda_handle *)handle)->stream = stream;
  return 0;
}

#define ROUTINES(S, T)                                                                            \
  EXPORT int cusolverDn##S##potrf_bufferSize(cusolverDnHandle_t, int, int n, T *, int,            \
                                             int *size) {                                         \
    *size = size_of(n);                                                                           \
    return 0;                                                                                     \
  }                                                                                               \
  EXPORT int cusolverDn##S##potri_bufferSize(cusolverDnHandle_t, int, int n, T *, int,            \
                                             int *size) {                                         \
    *size = size_of(n);                                                                           \
    return 0;                                                                                     \
  }                                                                                               \
  EXPORT int cusolverDn##S##geqrf_bufferSize(cusolverDnHandle_t, int, int n, T *, int,            \
                                             int *size) {                                         \
    *size = size_of(n);                                                                           \
    return 0;                                                                                     \
  }                                                                                               \
  EXPORT int cusolverDn##S##orgqr_bufferSize(cusolverDnHandle_t, int, int n, int, const T *, int, \
                                             const T *, int *size) {                              \
    *size = size_of(n);                                                                           \
    return 0;                                                                                     \
  }                                                                                               \
  EXPORT int cusolverDn##S##syevd_bufferSize(cusolverDnHandle_t, int, int, int n, const T *, int, \
                                             const T *, int *size) {                              \
    *size = size_of(n);                                                                           \
    return 0;                                                                                     \
  }                                                                                               \
  EXPORT int cusolverDn##S##potrf(cusolverDnHandle_t handle, int fill, int n, T *a, int lda,      \
                                  T *work, int size, int *info) {                                 \
    return potrf(handle, fill, n, a, lda, work, size, info);                                      \
  }                                                                                               \
  EXPORT int cusolverDn##S##potri(cusolverDnHandle_t handle, int fill, int n, T *a, int lda,      \
                                  T *work, int size, int *info) {                                 \
    return potri(handle, fill, n, a, lda, work, size, info);                                      \
  }                                                                                               \
  EXPORT int cusolverDn##S##geqrf(cusolverDnHandle_t handle, int m, int n, T *a, int lda, T *tau, \
                                  T *work, int size, int *info) {                                 \
    return geqrf(handle, m, n, a, lda, tau, work, size, info);                                    \
  }                                                                                               \
  EXPORT int cusolverDn##S##orgqr(cusolverDnHandle_t handle, int m, int n, int k, T *a, int lda,  \
                                  const T *tau, T *work, int size, int *info) {                   \
    return orgqr(handle, m, n, k, a, lda, tau, work, size, info);                                 \
  }                                                                                               \
  EXPORT int cusolverDn##S##syevd(cusolverDnHandle_t handle, int mode, int fill, int n, T *a,     \
                                  int lda, T *values, T *work, int size, int *info) {             \
    return syevd(handle, mode, fill, n, a, lda, values, work, size, info);                        \
  }
ROUTINES(S, float)
ROUTINES(D, double)

// Returns the major (which = 0), minor or patch version.
extern "C" __attribute__((visibility("default"))) int cusolverGetProperty(int which, int *value) {
  *value = which ? 0 : 13;
  return 0;
}
