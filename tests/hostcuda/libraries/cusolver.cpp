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

// Makes column c of a orthonormal to the columns before it, if it is zero.
template <class T>
void complete(columns<T> &a, int64_t c) {
  for (int64_t start = 0; start < a.m; start++) {
    double norm = 0;
    for (int64_t r = 0; r < a.m; r++) norm += a(r, c) * a(r, c);
    if (norm > 0.5) return;
    for (int64_t r = 0; r < a.m; r++) a(r, c) = r == start;
    for (int64_t j = 0; j < 2 * c; j++) { // twice, for accuracy
      double product = 0;
      for (int64_t r = 0; r < a.m; r++) product += a(r, j % c) * a(r, c);
      for (int64_t r = 0; r < a.m; r++) a(r, c) -= product * a(r, j % c);
    }
    norm = 0;
    for (int64_t r = 0; r < a.m; r++) norm += a(r, c) * a(r, c);
    for (int64_t r = 0; r < a.m; r++) a(r, c) *= norm > 0.5 / (double)a.m ? 1 / sqrt(norm) : 0;
  }
}

// One-sided Jacobi method: rotates pairs of columns of `a` until all are orthogonal. Their norms
// are the singular values.
template <class T>
int gesvd(cusolverDnHandle_t handle, int m, int n, T *memory, int lda, T *values, T *u, int ldu,
          T *vt, int ldvt, T *work, int size, T *rest, int *info) {
  if (m < n) return MPG_CUSOLVER_STATUS_INVALID_VALUE;
  use(handle, n, memory, (int64_t)n * lda, work, size, info);
  hostcuda_here(own(handle), values, sizeof *values * (size_t)n);
  hostcuda_here(own(handle), u, sizeof *u * (size_t)ldu * (size_t)n);
  hostcuda_here(own(handle), vt, sizeof *vt * (size_t)ldvt * (size_t)n);
  hostcuda_here(own(handle), rest, sizeof *rest * (size_t)n);
  return hostcuda_queue(own(handle), [=] {
    columns<T> a(memory, m, n, lda), v(n, n), left(m, n), right(n, n);
    for (int64_t k = 0; k < n; k++) v(k, k) = 1;
    *info = 1;
    for (int sweep = 0; sweep < 60 && *info; sweep++) {
      *info = 0;
      for (int64_t p = 0; p < n; p++)
        for (int64_t q = p + 1; q < n; q++) {
          double pp = 0, qq = 0, pq = 0;
          for (int64_t k = 0; k < m; k++)
            pp += a(k, p) * a(k, p), qq += a(k, q) * a(k, q), pq += a(k, p) * a(k, q);
          double size_of_pq = fabs(pq) / sqrt(pp * qq);
          if (!(size_of_pq > 1e-16)) continue;
          if (size_of_pq > 1e-14) *info = 1;
          double theta = (qq - pp) / (2 * pq);
          double t = (theta < 0 ? -1 : 1) / (fabs(theta) + sqrt(theta * theta + 1));
          double c = 1 / sqrt(t * t + 1), s = t * c;
          auto turn = [c, s](double &x, double &y) {
            double before = x;
            x = c * before - s * y, y = s * before + c * y;
          };
          for (int64_t k = 0; k < m; k++) turn(a(k, p), a(k, q));
          for (int64_t k = 0; k < n; k++) turn(v(k, p), v(k, q));
        }
    }
    std::vector<double> norms((size_t)n);
    double largest = 0;
    for (int64_t c = 0; c < n; c++) {
      double sum = 0;
      for (int64_t k = 0; k < m; k++) sum += a(k, c) * a(k, c);
      norms[(size_t)c] = sqrt(sum);
      if (sqrt(sum) > largest) largest = sqrt(sum);
    }
    for (int64_t c = 0; c < n; c++) {
      double norm = norms[(size_t)c];
      int64_t rank = 0;
      for (int64_t j = 0; j < n; j++)
        rank += norms[(size_t)j] > norm || (norms[(size_t)j] == norm && j < c);
      values[rank] = (T)norm;
      for (int64_t k = 0; k < m; k++) left(k, rank) = norm > 1e-15 * largest ? a(k, c) / norm : 0;
      for (int64_t k = 0; k < n; k++) right(rank, k) = v(k, c);
    }
    for (int64_t c = 0; c < n; c++) complete(left, c);
    left.write(u, ldu);
    right.write(vt, ldvt);
  });
}

// Real Schur decomposition by the implicit double-shift QR algorithm: a = q t q^T.
template <class T>
struct schur {
  columns<T> t, q;
  std::vector<double> imaginary;
  bool converged = true;

  // Applies the Householder reflection that maps x (count elements, from index `first`) to a
  // multiple of the first unit vector.
  void reflect_both(int64_t first, int64_t count, const double *x) {
    double sum = 0, v[3], *h = v;
    std::vector<double> longer;
    if (count > 3) longer.resize((size_t)count), h = longer.data();
    for (int64_t i = 1; i < count; i++) sum += x[i] * x[i];
    if (sum == 0) return;
    double norm = sqrt(x[0] * x[0] + sum), beta = x[0] < 0 ? norm : -norm,
           tau = (beta - x[0]) / beta;
    h[0] = 1;
    for (int64_t i = 1; i < count; i++) h[i] = x[i] / (x[0] - beta);
    for (int64_t c = 0; c < t.n; c++) {
      double product = 0;
      for (int64_t i = 0; i < count; i++) product += h[i] * t(first + i, c);
      for (int64_t i = 0; i < count; i++) t(first + i, c) -= tau * product * h[i];
    }
    for (columns<T> *a : {&t, &q})
      for (int64_t r = 0; r < t.n; r++) {
        double product = 0;
        for (int64_t i = 0; i < count; i++) product += (*a)(r, first + i) * h[i];
        for (int64_t i = 0; i < count; i++) (*a)(r, first + i) -= tau * product * h[i];
      }
  }
  void clean() { // zeroes the elements below the subdiagonal
    for (int64_t c = 0; c < t.n; c++)
      for (int64_t r = c + 2; r < t.n; r++) t(r, c) = 0;
  }
  // One sweep on rows [low, high] with the shifts' sum and product.
  void sweep(int64_t low, int64_t high, double sum, double product) {
    double h = t(low, low), below = t(low + 1, low), next = t(low + 1, low + 1);
    double x[3] = {h * h + t(low, low + 1) * below - sum * h + product, below * (h + next - sum),
                   low + 2 <= high ? below * t(low + 2, low + 1) : 0};
    for (int64_t k = low; k < high; k++) {
      reflect_both(k, high - k < 2 ? 2 : 3, x);
      for (int64_t i = 0; i < 3; i++) x[i] = k + 1 + i <= high ? t(k + 1 + i, k) : 0;
    }
    clean();
  }
  // Makes the block of rows k and k + 1 triangular if its eigenvalues are real.
  void split(int64_t k) {
    double half = (t(k, k) - t(k + 1, k + 1)) / 2, c = t(k + 1, k);
    double root = half * half + t(k, k + 1) * c;
    if (root < 0) {
      imaginary[(size_t)k] = sqrt(-root), imaginary[(size_t)k + 1] = -sqrt(-root);
      t(k, k) = t(k + 1, k + 1) = (t(k, k) + t(k + 1, k + 1)) / 2;
      return;
    }
    double z = half + (half < 0 ? -sqrt(root) : sqrt(root)), size = sqrt(z * z + c * c);
    double cs = z / size, sn = c / size;
    auto turn = [cs, sn](double &x, double &y) {
      double before = x;
      x = cs * before + sn * y, y = cs * y - sn * before;
    };
    for (int64_t i = 0; i < t.n; i++) turn(t(k, i), t(k + 1, i));
    for (int64_t i = 0; i < t.n; i++) turn(t(i, k), t(i, k + 1)), turn(q(i, k), q(i, k + 1));
    t(k + 1, k) = 0;
  }
  schur(const T *a, int64_t n, int64_t ld) : t(a, n, n, ld), q(n, n), imaginary((size_t)n) {
    for (int64_t k = 0; k < n; k++) q(k, k) = 1;
    for (int64_t k = 0; k + 2 < n; k++) {
      std::vector<double> x;
      for (int64_t r = k + 1; r < n; r++) x.push_back(t(r, k));
      reflect_both(k + 1, n - k - 1, x.data());
    }
    clean();
    int64_t high = n - 1;
    for (int64_t step = 0; high > 0 && step < 60 * n; step++) {
      int64_t low = high;
      while (low > 0 &&
             fabs(t(low, low - 1)) > 1.1e-16 * (fabs(t(low, low)) + fabs(t(low - 1, low - 1))))
        low--;
      if (low > 0) t(low, low - 1) = 0;
      if (low == high) {
        high--;
      } else if (low == high - 1) {
        split(low);
        high -= 2;
      } else { // shifts: a complex pair, or twice the real one that is closer to the last element
        double p = t(high - 1, high - 1), last = t(high, high), half = (p - last) / 2;
        double root = half * half + t(high - 1, high) * t(high, high - 1), middle = (p + last) / 2;
        double near = middle + (half < 0 ? sqrt(fabs(root)) : -sqrt(fabs(root)));
        if (step % 10 == 9) near = last + t(high, high - 1), root = 0;
        if (root < 0)
          sweep(low, high, 2 * middle, middle * middle - root);
        else
          sweep(low, high, 2 * near, near * near);
      }
    }
    converged = high <= 0;
  }
  // Computes eigenvector k, of length 1, if all eigenvalues are real.
  std::vector<double> vector(int64_t k) {
    std::vector<double> x((size_t)t.n), v((size_t)t.n);
    double sum = 0;
    x[(size_t)k] = 1;
    for (int64_t r = k - 1; r >= 0; r--) {
      double rest = 0, distance = t(k, k) - t(r, r);
      for (int64_t c = r + 1; c <= k; c++) rest += t(r, c) * x[(size_t)c];
      x[(size_t)r] = rest / (fabs(distance) < 1e-290 ? 1e-290 : distance);
    }
    for (int64_t r = 0; r < t.n; r++)
      for (int64_t c = 0; c <= k; c++) v[(size_t)r] += q(r, c) * x[(size_t)c];
    for (double one : v) sum += one * one;
    for (double &one : v) one /= sqrt(sum);
    return v;
  }
};

struct geev_sizes {
  size_t device, host;
};
geev_sizes sizes_of(int64_t n) { return {(size_t)(24 * n + 8), (size_t)(16 * n + 24)}; }

template <class T>
int geev(cusolverDnHandle_t handle, int64_t n, T *a, int64_t lda, T *w, T *v, int64_t ldv,
         void *work, size_t size, void *host, size_t host_size, int *info) {
  geev_sizes needed = sizes_of(n);
  if (size < needed.device || host_size < needed.host)
    hostcuda_wrong("a workspace that is too small");
  hostcuda_here(own(handle), a, sizeof *a * (size_t)(lda * n));
  hostcuda_here(own(handle), w, sizeof *w * (size_t)(2 * n));
  hostcuda_here(own(handle), work, size);
  hostcuda_here(own(handle), info, sizeof *info);
  if (v) hostcuda_here(own(handle), v, sizeof *v * (size_t)(ldv * n));
  return hostcuda_queue(own(handle), [=] {
    memset(work, 0xdd, size);
    memset(host, 0xdd, host_size);
    schur<T> s(a, n, lda);
    for (int64_t c = 0; c < n; c++)
      for (int64_t r = 0; r < n; r++) a[c * lda + r] = (T)s.t(r, c);
    for (int64_t k = 0; k < n; k++) {
      w[k] = (T)s.t(k, k), w[n + k] = (T)s.imaginary[(size_t)k];
      if (!v) continue;
      std::vector<double> vector = s.vector(k);
      for (int64_t r = 0; r < n; r++) v[k * ldv + r] = (T)vector[(size_t)r];
    }
    *info = !s.converged;
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

EXPORT int cusolverDnCreateParams(cusolverDnParams_t *parameters) {
  return handles.create(parameters);
}
EXPORT int cusolverDnDestroyParams(cusolverDnParams_t parameters) {
  return handles.destroy(parameters);
}

EXPORT int cusolverDnXgeev_bufferSize(cusolverDnHandle_t, cusolverDnParams_t, int, int, int64_t n,
                                      int, const void *, int64_t, int, const void *, int,
                                      const void *, int64_t, int, const void *, int64_t, int,
                                      size_t *size, size_t *host_size) {
  *size = sizes_of(n).device, *host_size = sizes_of(n).host;
  return 0;
}

EXPORT int cusolverDnXgeev(cusolverDnHandle_t handle, cusolverDnParams_t parameters, int left,
                           int right, int64_t n, int a_type, void *a, int64_t lda, int w_type,
                           void *w, int vl_type, void *vl, int64_t ldvl, int vr_type, void *vr,
                           int64_t ldvr, int type, void *work, size_t size, void *host,
                           size_t host_size, int *info) {
  bool same = a_type == type && w_type == type && vl_type == type && vr_type == type;
  bool vectors = right == MPG_CUSOLVER_EIG_MODE_VECTOR;
  if (!parameters || !same || left != MPG_CUSOLVER_EIG_MODE_NOVECTOR || vl || ldvl < 1 || lda < n ||
      ldvr < (vectors ? n : 1) || vectors != (vr != nullptr))
    return MPG_CUSOLVER_STATUS_INVALID_VALUE;
  if (type == MPG_CUDA_R_32F)
    return geev(handle, n, (float *)a, lda, (float *)w, (float *)vr, ldvr, work, size, host,
                host_size, info);
  if (type == MPG_CUDA_R_64F)
    return geev(handle, n, (double *)a, lda, (double *)w, (double *)vr, ldvr, work, size, host,
                host_size, info);
  return MPG_CUSOLVER_STATUS_INVALID_VALUE;
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
  EXPORT int cusolverDn##S##gesvd_bufferSize(cusolverDnHandle_t, int, int n, int *size) {         \
    *size = size_of(n);                                                                           \
    return 0;                                                                                     \
  }                                                                                               \
  EXPORT int cusolverDn##S##gesvd(cusolverDnHandle_t handle, signed char left, signed char right, \
                                  int m, int n, T *a, int lda, T *s, T *u, int ldu, T *vt,        \
                                  int ldvt, T *work, int size, T *rest, int *info) {              \
    if (left != 'S' || right != 'S') return MPG_CUSOLVER_STATUS_INVALID_VALUE;                    \
    return gesvd(handle, m, n, a, lda, s, u, ldu, vt, ldvt, work, size, rest, info);              \
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
