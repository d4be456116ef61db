/* Linear algebra on many matrices, by kernels of our own: a block takes a matrix at a time where
 * the steps of a factorisation depend on each other, a thread takes a row or a column where these
 * do not. That suits batches of matrices of up to a few hundred rows; one large matrix keeps one
 * multiprocessor busy.
 *
 * All is computed in double, whatever the dtype, without atomics: a matrix's bits depend on it
 * alone. What has no result (a matrix that is singular, or not positive definite) fails a
 * device-side assertion. Blocks that need work space share GRID pieces of it: block b does matrices
 * b, b + GRID, ...
 */
#include "kernels/cuda/access.h"
#include "kernels/cuda/runtime/device_assert.h"

namespace {

enum { GRID = 264, SWEEPS = 60 };

struct matrices {
  int64_t count, rows, columns;
  int64_t n; /* the side of square ones */
};

matrices matrices_of(const mpg_view *view) {
  const mpg_shape *shape = &view->desc.shape;
  int64_t rows = shape->dims[shape->ndim - 2], columns = shape->dims[shape->ndim - 1];
  return {mpg_shape_product(shape, 0, shape->ndim - 2), rows, columns, columns};
}

/* Threads for a matrix of that side; blocks for that many matrices. */
unsigned threads_of(int64_t side) { return side <= 16 ? 64 : side <= 64 ? 128 : 512; }
unsigned blocks_of(int64_t count) { return (unsigned)(count < GRID ? count : (int64_t)GRID); }

/* A word for the first matrix without a result, and `each` doubles for each block. */
mpg_status work_space(const mpg_kernel_call *call, int64_t count, int64_t each,
                      unsigned long long **bad, double **work) {
  size_t bytes;
  if (!mpg_size_mul((size_t)each, sizeof(double) * blocks_of(count), &bytes) ||
      !mpg_size_add(bytes, 64, &bytes))
    return mpg_fail(MPG_VALUE_ERROR, "%s: the matrices are too large", call->op->name);
  char *memory = (char *)mpg_device_scratch(call->device, bytes);
  if (!memory) return MPG_DEVICE_OUT_OF_MEMORY;
  *bad = (unsigned long long *)memory;
  *work = (double *)(memory + 64);
  return mpg_cuda_nothing_wrong(call, *bad);
}

__global__ void refuse_kernel(mpg_cuda_assert assertion, const unsigned long long *bad) {
  if (*bad != MPG_CUDA_NONE) assertion.raise((int64_t)*bad);
}

mpg_status refuse(const mpg_kernel_call *call, const unsigned long long *bad, const char *format) {
  mpg_cuda_assert assertion;
  MPG_TRY(mpg_cuda_assert_make(call, MPG_ERROR, format, &assertion));
  return mpg_cuda_launch(call, refuse_kernel, 1, 1, 0, assertion, bad);
}

/* --- Cholesky --------------------------------------------------------------------------------- */

/* Column by column: a warp takes a row, and subtracts the product of what is known of it and of the
 * column's row. `lower` or its mirror image. */
template <class T>
__global__ void potrf_kernel(const T *in, T *out, matrices t, bool lower, double *work,
                             unsigned long long *bad) {
  __shared__ bool failed;
  int64_t n = t.n;
  int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, warps = blockDim.x >> 5;
  double *l = work + blockIdx.x * n * n;
  for (int64_t matrix = blockIdx.x; matrix < t.count; matrix += gridDim.x) {
    const T *a = in + matrix * n * n;
    for (int64_t i = threadIdx.x; i < n * n; i += blockDim.x)
      l[i] = (double)a[lower ? i : i % n * n + i / n];
    if (threadIdx.x == 0) failed = false;
    __syncthreads();
    for (int64_t k = 0; k < n; k++) {
      for (int64_t r = k + warp; r < n; r += warps) {
        double sum = 0;
        for (int64_t j = lane; j < k; j += 32) sum += l[r * n + j] * l[k * n + j];
        sum = mpg_warp_reduce(sum, mpg_plus());
        if (lane == 0) l[r * n + k] -= sum;
      }
      __syncthreads();
      double pivot = l[k * n + k], root = pivot > 0 ? sqrt(pivot) : 1;
      __syncthreads();
      for (int64_t r = k + threadIdx.x; r < n; r += blockDim.x)
        l[r * n + k] = r == k ? root : l[r * n + k] / root;
      if (threadIdx.x == 0 && !(pivot > 0)) failed = true;
      __syncthreads();
    }
    T *to = out + matrix * n * n;
    for (int64_t i = threadIdx.x; i < n * n; i += blockDim.x) {
      int64_t r = lower ? i / n : i % n, c = lower ? i % n : i / n;
      to[i] = (T)(c <= r ? l[r * n + c] : 0);
    }
    if (threadIdx.x == 0 && failed) atomicMin(bad, (unsigned long long)matrix);
    __syncthreads();
  }
}

/* The inverse of L L^T: X = L^-1, a thread a column, then X^T X. */
template <class T>
__global__ void potri_kernel(const T *in, T *out, matrices t, bool lower, double *work,
                             unsigned long long *bad) {
  int64_t n = t.n;
  double *x = work + blockIdx.x * n * n;
  for (int64_t matrix = blockIdx.x; matrix < t.count; matrix += gridDim.x) {
    const T *l = in + matrix * n * n;
    int64_t down = lower ? n : 1, right = lower ? 1 : n;
    for (int64_t c = threadIdx.x; c < n; c += blockDim.x) {
      if (l[c * (n + 1)] == 0) atomicMin(bad, (unsigned long long)matrix);
      for (int64_t r = 0; r < n; r++) {
        double sum = r == c ? 1 : 0;
        for (int64_t j = c; j < r; j++) sum -= (double)l[r * down + j * right] * x[j * n + c];
        x[r * n + c] = r < c ? 0 : sum / (double)l[r * (n + 1)];
      }
    }
    __syncthreads();
    T *to = out + matrix * n * n;
    for (int64_t i = threadIdx.x; i < n * n; i += blockDim.x) {
      int64_t a = i / n, b = i % n;
      double sum = 0;
      for (int64_t r = a > b ? a : b; r < n; r++) sum += x[r * n + a] * x[r * n + b];
      to[i] = (T)sum;
    }
    __syncthreads();
  }
}

/* --- Triangular products and solutions -------------------------------------------------------- */

struct triangular {
  bool transpose, right, lower; /* `lower`: of op(A) */
  double alpha;
};

template <class T>
struct factor { /* op(A) */
  const T *a;
  int64_t n;
  bool transpose;
  __device__ __forceinline__ double at(int64_t r, int64_t c) const {
    return (double)a[transpose ? c * n + r : r * n + c];
  }
};

/* A thread an element. */
template <class T>
__global__ void trmm_kernel(const T *a, const T *b, T *out, matrices t, triangular p) {
  int64_t i = MPG_CUDA_INDEX;
  if (i >= t.count * t.rows * t.columns) return;
  int64_t matrix = i / (t.rows * t.columns), r = i / t.columns % t.rows, c = i % t.columns,
          k = p.right ? c : r;
  factor<T> m = {a + matrix * t.n * t.n, t.n, p.transpose};
  const T *own = b + matrix * t.rows * t.columns;
  /* op(A) times column c of B, or row r of B times op(A): where its row, or column, k is not 0. */
  bool from_start = p.lower != p.right;
  double sum = 0;
  for (int64_t j = from_start ? 0 : k; j < (from_start ? k + 1 : t.n); j++)
    sum += p.right ? (double)own[r * t.columns + j] * m.at(j, c)
                   : m.at(r, j) * (double)own[j * t.columns + c];
  out[i] = (T)(p.alpha * sum);
}

/* A thread a column of X, or with `right` a row: its elements one after the other, from the end
 * where op(A) has one element. */
template <class T>
__global__ void trsm_kernel(const T *a, const T *b, T *out, matrices t, triangular p) {
  int64_t vectors = p.right ? t.rows : t.columns, i = MPG_CUDA_INDEX;
  if (i >= t.count * vectors) return;
  int64_t matrix = i / vectors, vector = i % vectors, step = p.right ? 1 : t.columns;
  int64_t first = matrix * t.rows * t.columns + (p.right ? vector * t.columns : vector);
  factor<T> m = {a + matrix * t.n * t.n, t.n, p.transpose};
  bool forward = p.lower != p.right;
  for (int64_t k = 0; k < t.n; k++) {
    int64_t at = forward ? k : t.n - 1 - k;
    double sum = p.alpha * (double)b[first + at * step];
    for (int64_t j = forward ? 0 : at + 1; j < (forward ? at : t.n); j++)
      sum -= (p.right ? m.at(j, at) : m.at(at, j)) * (double)out[first + j * step];
    out[first + at * step] = (T)(sum / m.at(at, at));
  }
}

/* --- LQ --------------------------------------------------------------------------------------- */

/* Householder's reflections from the right, as LAPACK chooses their signs; work: the vectors, and a
 * factor for each. A warp takes a row. */
template <class T>
__global__ void gelqf_kernel(const T *in, T *q, T *l, matrices t, double *work) {
  __shared__ double norms[32];
  int64_t m = t.rows, n = t.columns;
  int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, warps = blockDim.x >> 5;
  double *a = work + blockIdx.x * (2 * m * n + m), *made = a + m * n, *factors = made + m * n;
  for (int64_t matrix = blockIdx.x; matrix < t.count; matrix += gridDim.x) {
    for (int64_t i = threadIdx.x; i < m * n; i += blockDim.x) {
      a[i] = (double)in[matrix * m * n + i];
      made[i] = i / n == i % n;
    }
    __syncthreads();
    for (int64_t k = 0; k < m; k++) {
      double sum = 0, head = a[k * n + k];
      for (int64_t j = k + 1 + threadIdx.x; j < n; j += blockDim.x)
        sum += a[k * n + j] * a[k * n + j];
      sum = mpg_block_reduce(sum, 0.0, mpg_plus());
      double size = sqrt(head * head + sum), beta = sum == 0 ? head : head < 0 ? size : -size;
      double part = sum == 0 ? 0 : (beta - head) / beta;
      for (int64_t j = k + 1 + threadIdx.x; j < n; j += blockDim.x)
        a[k * n + j] = sum == 0 ? 0 : a[k * n + j] / (head - beta);
      if (threadIdx.x == 0) factors[k] = part, norms[0] = beta;
      __syncthreads();
      for (int64_t r = k + 1 + warp; r < m; r += warps) { /* row r less part (row . v) v */
        double product = lane == 0 ? a[r * n + k] : 0;
        for (int64_t j = k + 1 + lane; j < n; j += 32) product += a[r * n + j] * a[k * n + j];
        product = mpg_warp_reduce(product, mpg_plus()) * part;
        if (lane == 0) a[r * n + k] -= product;
        for (int64_t j = k + 1 + lane; j < n; j += 32) a[r * n + j] -= product * a[k * n + j];
      }
      if (threadIdx.x == 0) a[k * n + k] = norms[0];
      __syncthreads();
    }
    for (int64_t k = m - 1; k >= 0; k--) {
      for (int64_t r = k + warp; r < m; r += warps) {
        double product = lane == 0 ? made[r * n + k] : 0;
        for (int64_t j = k + 1 + lane; j < n; j += 32) product += made[r * n + j] * a[k * n + j];
        product = mpg_warp_reduce(product, mpg_plus()) * factors[k];
        if (lane == 0) made[r * n + k] -= product;
        for (int64_t j = k + 1 + lane; j < n; j += 32) made[r * n + j] -= product * a[k * n + j];
      }
      __syncthreads();
    }
    for (int64_t i = threadIdx.x; i < m * n; i += blockDim.x) q[matrix * m * n + i] = (T)made[i];
    for (int64_t i = threadIdx.x; i < m * m; i += blockDim.x)
      l[matrix * m * m + i] = (T)(i % m <= i / m ? a[i / m * n + i % m] : 0);
    __syncthreads();
  }
}

/* --- Eigenvectors ----------------------------------------------------------------------------- */

/* Jacobi's rotations, for all pairs of a round at once: round r of a sweep pairs the players of a
 * tournament. A is kept whole. */
struct pairing {
  int64_t players; /* even; the last one may be none */
  __device__ __forceinline__ void of(int64_t round, int64_t k, int64_t *p, int64_t *q) const {
    int64_t turn = players - 1;
    int64_t a = k == 0 ? turn : (round + k) % turn, b = (round + turn - k) % turn;
    *p = a < b ? a : b, *q = a < b ? b : a;
  }
};

template <class T>
__global__ void syevd_kernel(const T *in, T *u, T *values, matrices t, double *work,
                             unsigned long long *bad) {
  int64_t n = t.n, half = (n + 1) / 2;
  double *a = work + blockIdx.x * (2 * n * n + 2 * half), *v = a + n * n, *cosines = v + n * n,
         *sines = cosines + half;
  pairing pairs = {2 * half};
  for (int64_t matrix = blockIdx.x; matrix < t.count; matrix += gridDim.x) {
    for (int64_t i = threadIdx.x; i < n * n; i += blockDim.x) {
      int64_t r = i / n, c = i % n;
      a[i] = (double)in[matrix * n * n + (r > c ? i : c * n + r)];
      v[i] = r == c;
    }
    __syncthreads();
    bool found = false;
    for (int sweep = 0; sweep < SWEEPS && !found; sweep++) {
      double off = 0, all = 0;
      for (int64_t i = threadIdx.x; i < n * n; i += blockDim.x) {
        double square = a[i] * a[i];
        all += square;
        if (i / n != i % n) off += square;
      }
      off = mpg_block_reduce(off, 0.0, mpg_plus());
      all = mpg_block_reduce(all, 0.0, mpg_plus());
      found = off <= 1e-32 * all;
      for (int64_t round = 0; round < pairs.players - 1 && !found; round++) {
        for (int64_t k = threadIdx.x; k < half; k += blockDim.x) {
          int64_t p, q;
          pairs.of(round, k, &p, &q);
          double c = 1, s = 0;
          if (q < n && a[p * n + q] != 0) {
            double theta = (a[q * n + q] - a[p * n + p]) / (2 * a[p * n + q]);
            double tangent = (theta < 0 ? -1 : 1) / (fabs(theta) + sqrt(theta * theta + 1));
            c = 1 / sqrt(tangent * tangent + 1), s = tangent * c;
          }
          cosines[k] = c, sines[k] = s;
        }
        __syncthreads();
        for (int64_t i = threadIdx.x; i < half * n; i += blockDim.x) { /* rows of both */
          int64_t p, q, k = i / n, column = i % n;
          pairs.of(round, k, &p, &q);
          if (q >= n) continue;
          double c = cosines[k], s = sines[k], x = a[p * n + column], y = a[q * n + column];
          a[p * n + column] = c * x - s * y, a[q * n + column] = s * x + c * y;
          x = v[p * n + column], y = v[q * n + column];
          v[p * n + column] = c * x - s * y, v[q * n + column] = s * x + c * y;
        }
        __syncthreads();
        for (int64_t i = threadIdx.x; i < half * n; i += blockDim.x) {
          int64_t p, q, k = i % half, row = i / half;
          pairs.of(round, k, &p, &q);
          if (q >= n) continue;
          double c = cosines[k], s = sines[k], x = a[row * n + p], y = a[row * n + q];
          a[row * n + p] = q == row ? 0 : c * x - s * y,
                      a[row * n + q] = p == row ? 0 : s * x + c * y;
        }
        __syncthreads();
      }
    }
    if (threadIdx.x == 0 && !found) atomicMin(bad, (unsigned long long)matrix);
    /* Ascending; a thread a vector, whose largest element (the first of equal ones) becomes
     * positive. */
    for (int64_t k = threadIdx.x; k < n; k += blockDim.x) {
      double own = a[k * (n + 1)], largest = 0;
      int64_t rank = 0;
      for (int64_t j = 0; j < n; j++) {
        double other = a[j * (n + 1)];
        rank += other < own || (other == own && j < k);
        if (fabs(v[k * n + j]) > fabs(largest)) largest = v[k * n + j];
      }
      values[matrix * n + rank] = (T)own;
      for (int64_t j = 0; j < n; j++)
        u[(matrix * n + rank) * n + j] = (T)(largest < 0 ? -v[k * n + j] : v[k * n + j]);
    }
    __syncthreads();
  }
}

/* --- LU --------------------------------------------------------------------------------------- */

/* In place, with rows exchanged for the largest pivot; source[r]: where row r came from. The whole
 * block. False: a pivot is 0. */
__device__ bool factorise(double *a, int64_t n, double *source, int *swaps) {
  __shared__ double best[16];
  __shared__ int64_t place[16];
  bool regular = true;
  *swaps = 0;
  for (int64_t r = threadIdx.x; r < n; r += blockDim.x) source[r] = (double)r;
  __syncthreads();
  for (int64_t k = 0; k < n; k++) {
    double most = -1;
    int64_t at = k;
    for (int64_t r = k + threadIdx.x; r < n; r += blockDim.x)
      if (fabs(a[r * n + k]) > most) most = fabs(a[r * n + k]), at = r;
    for (int lanes = 16; lanes; lanes >>= 1) {
      double other = __shfl_xor_sync(0xffffffffu, most, lanes);
      int64_t where = __shfl_xor_sync(0xffffffffu, at, lanes);
      if (other > most || (other == most && where < at)) most = other, at = where;
    }
    if ((threadIdx.x & 31) == 0) best[threadIdx.x >> 5] = most, place[threadIdx.x >> 5] = at;
    __syncthreads();
    most = best[0], at = place[0];
    for (int w = 1; w < (int)blockDim.x / 32; w++)
      if (best[w] > most || (best[w] == most && place[w] < at)) most = best[w], at = place[w];
    if (most == 0) regular = false;
    if (at != k) {
      for (int64_t c = threadIdx.x; c < n; c += blockDim.x) {
        double x = a[k * n + c];
        a[k * n + c] = a[at * n + c], a[at * n + c] = x;
      }
      if (threadIdx.x == 0) {
        double x = source[k];
        source[k] = source[at], source[at] = x;
      }
      *swaps ^= 1;
    }
    __syncthreads();
    double pivot = a[k * n + k];
    for (int64_t r = k + 1 + threadIdx.x; r < n && pivot != 0; r += blockDim.x)
      a[r * n + k] /= pivot;
    __syncthreads();
    int64_t side = n - k - 1;
    for (int64_t i = threadIdx.x; i < side * side && pivot != 0; i += blockDim.x) {
      int64_t r = k + 1 + i / side, c = k + 1 + i % side;
      a[r * n + c] -= a[r * n + k] * a[k * n + c];
    }
    __syncthreads();
  }
  return regular;
}

template <class T>
__global__ void inverse_kernel(const T *in, T *out, matrices t, double *work,
                               unsigned long long *bad) {
  int64_t n = t.n;
  int swaps;
  double *a = work + blockIdx.x * (2 * n * n + n), *x = a + n * n, *source = x + n * n;
  for (int64_t matrix = blockIdx.x; matrix < t.count; matrix += gridDim.x) {
    for (int64_t i = threadIdx.x; i < n * n; i += blockDim.x) a[i] = (double)in[matrix * n * n + i];
    __syncthreads();
    bool regular = factorise(a, n, source, &swaps);
    if (!regular && threadIdx.x == 0) atomicMin(bad, (unsigned long long)matrix);
    T *to = out + matrix * n * n;
    for (int64_t c = threadIdx.x; c < n; c += blockDim.x) {
      for (int64_t r = 0; r < n && regular; r++) {
        double sum = source[r] == (double)c ? 1 : 0;
        for (int64_t j = 0; j < r; j++) sum -= a[r * n + j] * x[j * n + c];
        x[r * n + c] = sum;
      }
      for (int64_t r = n - 1; r >= 0 && regular; r--) {
        double sum = x[r * n + c];
        for (int64_t j = r + 1; j < n; j++) sum -= a[r * n + j] * x[j * n + c];
        x[r * n + c] = sum / a[r * n + r];
      }
      for (int64_t r = 0; r < n; r++) to[r * n + c] = (T)(regular ? x[r * n + c] : 0);
    }
    __syncthreads();
  }
}

/* Determinants, or with `logarithms` their signs and the logarithms of their sizes. */
template <class T>
__global__ void det_kernel(const T *in, T *out, T *logarithms, matrices t, double *work) {
  int64_t n = t.n;
  int swaps;
  double *a = work + blockIdx.x * (n * n + n), *source = a + n * n;
  for (int64_t matrix = blockIdx.x; matrix < t.count; matrix += gridDim.x) {
    for (int64_t i = threadIdx.x; i < n * n; i += blockDim.x) a[i] = (double)in[matrix * n * n + i];
    __syncthreads();
    factorise(a, n, source, &swaps);
    if (threadIdx.x == 0) {
      double product = swaps ? -1 : 1, sign = product, logarithm = 0;
      for (int64_t k = 0; k < n; k++) {
        double element = a[k * (n + 1)];
        product *= element;
        sign *= (element > 0) - (element < 0);
        logarithm += log(fabs(element));
      }
      out[matrix] = (T)(logarithms ? sign : product);
      if (logarithms) logarithms[matrix] = (T)logarithm;
    }
    __syncthreads();
  }
}

/* --- Diagonals and triangles ------------------------------------------------------------------ */

/* A warp a matrix. */
template <class T>
__global__ void sumlogdiag_kernel(const T *in, T *out, matrices t) {
  int64_t matrix = MPG_CUDA_INDEX >> 5;
  double sum = 0;
  if (matrix < t.count)
    for (int64_t k = threadIdx.x & 31; k < t.n; k += 32)
      sum += log((double)in[(matrix * t.n + k) * t.n + k]);
  sum = mpg_warp_reduce(sum, mpg_plus());
  if (matrix < t.count && (threadIdx.x & 31) == 0) out[matrix] = (T)sum;
}

struct part {
  int64_t n, away, each; /* `away` from the main diagonal; `each` elements a matrix */
  bool triangle, upper, extract;
};

/* A thread an element of the vectors. */
template <class T>
__global__ void part_kernel(const T *in, T *out, part p, int64_t count) {
  int64_t i = MPG_CUDA_INDEX;
  if (i >= count) return;
  int64_t matrix = i / p.each, at = i % p.each, r = at, c = at;
  if (p.triangle) {
    r = (int64_t)((sqrt(8.0 * (double)at + 1) - 1) / 2);
    while (r * (r + 1) / 2 > at) r--;
    while ((r + 1) * (r + 2) / 2 <= at) r++;
    c = at - r * (r + 1) / 2;
  }
  int64_t place = matrix * p.n * p.n + (p.upper ? c * p.n + r + p.away : (r + p.away) * p.n + c);
  if (p.extract)
    out[i] = in[place];
  else
    out[place] = in[i];
}

mpg_status parts(const mpg_kernel_call *call, bool extract, bool triangle, int64_t offset,
                 bool lower) {
  const mpg_view *in = &call->inputs[0], *out = &call->outputs[0];
  int64_t n = matrices_of(extract ? in : out).n, away = offset < 0 ? -offset : offset,
          side = n - away;
  part p = {n,
            away,
            triangle ? side * (side + 1) / 2 : side,
            triangle,
            offset > 0 || (offset == 0 && !lower),
            extract};
  int64_t count = count_of(extract ? out : in);
  if (!extract) MPG_TRY(mpg_cuda_zero(call, out));
  MPG_CUDA_SIZE(
      item_of(in), T,
      return mpg_cuda_launch(call, part_kernel<T>, mpg_cuda_blocks(count), MPG_CUDA_THREADS, 0,
                             (const T *)in->data, (T *)out->data, p, count));
  return MPG_OK;
}

} // namespace

/* With T: float or double. */
#define BY_DTYPE(...)                              \
  if (call->inputs[0].desc.dtype == MPG_FLOAT64) { \
    typedef double T;                              \
    __VA_ARGS__;                                   \
  } else {                                         \
    typedef float T;                               \
    __VA_ARGS__;                                   \
  }
#define IN(i) ((const T *)call->inputs[i].data)
#define OUT(i) ((T *)call->outputs[i].data)

template <class T>
static mpg_status cholesky(const mpg_kernel_call *call,
                           void (*kernel)(const T *, T *, matrices, bool, double *,
                                          unsigned long long *),
                           const char *refusal) {
  matrices t = matrices_of(&call->inputs[0]);
  bool lower = ((const mpg_linalg_cholesky_params *)call->params)->lower;
  if (count_of(&call->inputs[0]) == 0) return MPG_OK;
  unsigned long long *bad = NULL;
  double *work = NULL;
  MPG_TRY(work_space(call, t.count, t.n * t.n, &bad, &work));
  MPG_TRY(mpg_cuda_launch(call, kernel, blocks_of(t.count), threads_of(t.n), 0, IN(0), OUT(0), t,
                          lower, work, bad));
  return refuse(call, bad, refusal);
}

MPG_CUDA_KERNEL(linalg_potrf){BY_DTYPE(
    return cholesky<T>(call, potrf_kernel<T>,
                       "%s: matrix %lld is not positive definite"))} MPG_CUDA_KERNEL(linalg_potri){
    BY_DTYPE(return cholesky<T>(call, potri_kernel<T>,
                                "%s: matrix %lld has a zero on its diagonal"))}

MPG_CUDA_KERNEL(linalg_triangular) {
  const mpg_linalg_triangular_params *params = (const mpg_linalg_triangular_params *)call->params;
  matrices t = matrices_of(&call->outputs[0]);
  t.n = params->rightside ? t.columns : t.rows;
  triangular p = {params->transpose, params->rightside, params->lower != params->transpose,
                  params->alpha};
  int64_t count = count_of(&call->outputs[0]);
  if (count == 0) return MPG_OK;
  if (call->op->id == MPG_OP__linalg_trmm)
    BY_DTYPE(return mpg_cuda_launch(call, trmm_kernel<T>, mpg_cuda_blocks(count), MPG_CUDA_THREADS,
                                    0, IN(0), IN(1), OUT(0), t, p))
  else
    BY_DTYPE(return mpg_cuda_launch(call, trsm_kernel<T>, mpg_cuda_blocks(count / t.n, 64), 64, 0,
                                    IN(0), IN(1), OUT(0), t, p))
}

MPG_CUDA_KERNEL(linalg_gelqf) {
  matrices t = matrices_of(&call->inputs[0]);
  if (count_of(&call->inputs[0]) == 0) return MPG_OK;
  unsigned long long *bad = NULL;
  double *work = NULL;
  MPG_TRY(work_space(call, t.count, (2 * t.columns + 1) * t.rows, &bad, &work));
  BY_DTYPE(return mpg_cuda_launch(call, gelqf_kernel<T>, blocks_of(t.count), threads_of(t.columns),
                                  0, IN(0), OUT(0), OUT(1), t, work))
}

MPG_CUDA_KERNEL(linalg_syevd) {
  matrices t = matrices_of(&call->inputs[0]);
  if (count_of(&call->inputs[0]) == 0) return MPG_OK;
  unsigned long long *bad = NULL;
  double *work = NULL;
  MPG_TRY(work_space(call, t.count, 2 * t.n * t.n + t.n + 1, &bad, &work));
  BY_DTYPE(MPG_TRY(mpg_cuda_launch(call, syevd_kernel<T>, blocks_of(t.count), threads_of(t.n), 0,
                                   IN(0), OUT(0), OUT(1), t, work, bad)));
  return refuse(call, bad, "%s: matrix %lld has eigenvalues that were not found (is it finite?)");
}

MPG_CUDA_KERNEL(linalg_inverse) {
  matrices t = matrices_of(&call->inputs[0]);
  if (count_of(&call->inputs[0]) == 0) return MPG_OK;
  unsigned long long *bad = NULL;
  double *work = NULL;
  MPG_TRY(work_space(call, t.count, (2 * t.n + 1) * t.n, &bad, &work));
  BY_DTYPE(MPG_TRY(mpg_cuda_launch(call, inverse_kernel<T>, blocks_of(t.count), threads_of(t.n), 0,
                                   IN(0), OUT(0), t, work, bad)));
  return call->op->id == MPG_OP__linalg_inverse ? refuse(call, bad, "%s: matrix %lld is singular")
                                                : MPG_OK;
}

MPG_CUDA_KERNEL(linalg_det) {
  matrices t = matrices_of(&call->inputs[0]);
  if (t.count == 0) return MPG_OK;
  unsigned long long *bad = NULL;
  double *work = NULL;
  MPG_TRY(work_space(call, t.count, (t.n + 1) * t.n, &bad, &work));
  BY_DTYPE(return mpg_cuda_launch(call, det_kernel<T>, blocks_of(t.count), threads_of(t.n), 0,
                                  IN(0), OUT(0), call->num_outputs > 1 ? OUT(1) : (T *)NULL, t,
                                  work))
}

MPG_CUDA_KERNEL(linalg_sumlogdiag) {
  matrices t = matrices_of(&call->inputs[0]);
  BY_DTYPE(return mpg_cuda_launch(call, sumlogdiag_kernel<T>,
                                  mpg_cuda_blocks(t.count, MPG_CUDA_THREADS / 32), MPG_CUDA_THREADS,
                                  0, IN(0), OUT(0), t))
}

MPG_CUDA_KERNEL(linalg_extractdiag) {
  return parts(call, true, false, ((const mpg_linalg_diagonal_params *)call->params)->offset, true);
}
MPG_CUDA_KERNEL(linalg_makediag) {
  return parts(call, false, false, ((const mpg_linalg_diagonal_params *)call->params)->offset,
               true);
}
MPG_CUDA_KERNEL(linalg_extracttrian) {
  const mpg_linalg_triangle_params *p = (const mpg_linalg_triangle_params *)call->params;
  return parts(call, true, true, p->offset, p->lower);
}
MPG_CUDA_KERNEL(linalg_maketrian) {
  const mpg_linalg_triangle_params *p = (const mpg_linalg_triangle_params *)call->params;
  return parts(call, false, true, p->offset, p->lower);
}
