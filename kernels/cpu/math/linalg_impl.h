/* Linear algebra for one dtype. Included by linalg.c with
 *   T         the dtype
 *   B         member of mpg_openblas that holds its functions
 *   NAME(x)   name of x in this instance, which is spelled x_T here
 * LAPACK is column-major, so it sees these row-major matrices transposed: a lower triangle is an
 * upper triangle to LAPACK. Functions that process one matrix return 0 or LAPACK's error code.
 */

/* Each x_T below is NAME(x), the name of x in this instance. */
#define det_T NAME(det)
#define eig_T NAME(eig)
#define finite_T NAME(finite)
#define gelqf_T NAME(gelqf)
#define inverse_T NAME(inverse)
#define mirror_T NAME(mirror)
#define part_T NAME(part)
#define potrf_T NAME(potrf)
#define potri_T NAME(potri)
#define solve_T NAME(solve)
#define svd_T NAME(svd)
#define syevd_T NAME(syevd)
#define syrk_T NAME(syrk)
#define transpose_T NAME(transpose)
#define triangular_T NAME(triangular)

static int potrf_T(const matrices *t, int64_t i, void *scratch) {
  (void)scratch;
  bool lower = ((const mpg_linalg_cholesky_params *)t->call->params)->lower;
  T *out = (T *)t->call->outputs[0].data + i * t->n * t->n;
  int n = (int)t->n, info = 0;
  memcpy(out, (const T *)t->call->inputs[0].data + i * t->n * t->n,
         (size_t)(t->n * t->n) * sizeof(T));
  t->blas->B.potrf(lower ? "U" : "L", &n, out, &n, &info, 1);
  for (int64_t r = 0; r < t->n; r++)
    for (int64_t c = lower ? r + 1 : 0; c < (lower ? t->n : r); c++) out[r * t->n + c] = 0;
  return info;
}

/* Makes a matrix symmetric: copies its lower triangle to the upper one if `lower`, else the
 * reverse. */
static void mirror_T(T *a, int64_t n, bool lower) {
  for (int64_t r = 0; r < n; r++)
    for (int64_t c = 0; c < r; c++) {
      if (lower)
        a[c * n + r] = a[r * n + c];
      else
        a[r * n + c] = a[c * n + r];
    }
}

static int potri_T(const matrices *t, int64_t i, void *scratch) {
  (void)scratch;
  bool lower = ((const mpg_linalg_cholesky_params *)t->call->params)->lower;
  T *out = (T *)t->call->outputs[0].data + i * t->n * t->n;
  int n = (int)t->n, info = 0;
  memcpy(out, (const T *)t->call->inputs[0].data + i * t->n * t->n,
         (size_t)(t->n * t->n) * sizeof(T));
  t->blas->B.potri(lower ? "U" : "L", &n, out, &n, &info, 1);
  mirror_T(out, t->n, lower);
  return info;
}

static int triangular_T(const matrices *t, int64_t i, void *scratch) {
  (void)scratch;
  const mpg_linalg_triangular_params *p = t->call->params;
  const T *a = (const T *)t->call->inputs[0].data + i * t->n * t->n;
  T *out = (T *)t->call->outputs[0].data + i * t->rows * t->columns;
  memcpy(out, (const T *)t->call->inputs[1].data + i * t->rows * t->columns,
         (size_t)(t->rows * t->columns) * sizeof(T));
  (t->call->op->id == MPG_OP__linalg_trmm ? t->blas->B.trmm : t->blas->B.trsm)(
      MPG_BLAS_ROWS, p->rightside ? MPG_BLAS_RIGHT : MPG_BLAS_LEFT,
      p->lower ? MPG_BLAS_LOWER : MPG_BLAS_UPPER,
      p->transpose ? MPG_BLAS_TRANSPOSED : MPG_BLAS_PLAIN, MPG_BLAS_ANY_DIAGONAL, (int)t->rows,
      (int)t->columns, (T)p->alpha, a, (int)t->n, out, (int)t->columns);
  return 0;
}

static int syrk_T(const matrices *t, int64_t i, void *scratch) {
  (void)scratch;
  const mpg_linalg_syrk_params *p = t->call->params;
  T *out = (T *)t->call->outputs[0].data + i * t->n * t->n;
  t->blas->B.syrk(MPG_BLAS_ROWS, MPG_BLAS_LOWER,
                  p->transpose ? MPG_BLAS_TRANSPOSED : MPG_BLAS_PLAIN, (int)t->n,
                  (int)(p->transpose ? t->rows : t->columns), (T)p->alpha,
                  (const T *)t->call->inputs[0].data + i * t->rows * t->columns, (int)t->columns, 0,
                  out, (int)t->n);
  mirror_T(out, t->n, true);
  return 0;
}

/* Computes the LQ factorization of A as the QR factorization of A^T, since LAPACK sees A^T. */
static int gelqf_T(const matrices *t, int64_t i, void *scratch) {
  T *q = (T *)t->call->outputs[0].data + i * t->rows * t->columns,
    *l = (T *)t->call->outputs[1].data + i * t->rows * t->rows;
  T *tau = scratch, *work = tau + t->rows;
  int rows = (int)t->columns, columns = (int)t->rows, work_size = (int)(LAPACK_BLOCK * t->rows),
      info = 0;
  memcpy(q, (const T *)t->call->inputs[0].data + i * t->rows * t->columns,
         (size_t)(t->rows * t->columns) * sizeof(T));
  t->blas->B.geqrf(&rows, &columns, q, &rows, tau, work, &work_size, &info);
  for (int64_t r = 0; r < t->rows; r++)
    for (int64_t c = 0; c < t->rows; c++) l[r * t->rows + c] = c <= r ? q[r * t->columns + c] : 0;
  if (info == 0)
    t->blas->B.orgqr(&rows, &columns, &columns, q, &rows, tau, work, &work_size, &info);
  return info;
}

static int syevd_T(const matrices *t, int64_t i, void *scratch) {
  int64_t n = t->n;
  T *u = (T *)t->call->outputs[0].data + i * n * n, *work = scratch;
  int size = (int)n, work_size = (int)(1 + 6 * n + 2 * n * n), places_size = (int)(3 + 5 * n),
      info = 0;
  memcpy(u, (const T *)t->call->inputs[0].data + i * n * n, (size_t)(n * n) * sizeof(T));
  t->blas->B.syevd("V", "U", &size, u, &size, (T *)t->call->outputs[1].data + i * n, work,
                   &work_size, (int *)(work + work_size), &places_size, &info, 1, 1);
  /* Normalize signs: the element with the largest magnitude in each row (the first of equal ones)
   * becomes positive. */
  for (int64_t r = 0; r < n; r++) {
    T *row = u + r * n, largest = 0;
    for (int64_t c = 0; c < n; c++)
      if ((row[c] < 0 ? -row[c] : row[c]) > (largest < 0 ? -largest : largest)) largest = row[c];
    for (int64_t c = 0; largest < 0 && c < n; c++) row[c] = -row[c];
  }
  return info;
}

static int inverse_T(const matrices *t, int64_t i, void *scratch) {
  T *out = (T *)t->call->outputs[0].data + i * t->n * t->n, *work = scratch;
  int n = (int)t->n, work_size = (int)(LAPACK_BLOCK * t->n), *pivots = (int *)(work + work_size),
      info = 0;
  size_t bytes = (size_t)(t->n * t->n) * sizeof(T);
  memcpy(out, (const T *)t->call->inputs[0].data + i * t->n * t->n, bytes);
  t->blas->B.getrf(&n, &n, out, &n, pivots, &info);
  if (info == 0) t->blas->B.getri(&n, out, &n, pivots, work, &work_size, &info);
  if (info == 0 || t->call->op->id != MPG_OP__linalg_inverse_or_zero) return info;
  memset(out, 0, bytes);
  return 0;
}

/* Computes the determinant from an LU factorization, or its sign and the logarithm of its absolute
 * value. */
static int det_T(const matrices *t, int64_t i, void *scratch) {
  T *lu = scratch, swaps = 1, sign = 1, logarithm = 0, product = 1;
  int n = (int)t->n, *pivots = (int *)(lu + t->n * t->n), info = 0;
  if (n)
    memcpy(lu, (const T *)t->call->inputs[0].data + i * t->n * t->n,
           (size_t)(t->n * t->n) * sizeof(T));
  if (n) t->blas->B.getrf(&n, &n, lu, &n, pivots, &info);
  for (int64_t k = 0; k < t->n; k++) {
    T element = lu[k * (t->n + 1)];
    if (pivots[k] != k + 1) swaps = -swaps;
    product *= element;
    sign *= (T)((element > 0) - (element < 0));
    logarithm += (T)log(element < 0 ? -(double)element : (double)element);
  }
  if (t->call->op->id == MPG_OP__linalg_det) {
    ((T *)t->call->outputs[0].data)[i] = swaps * product;
  } else {
    ((T *)t->call->outputs[0].data)[i] = swaps * sign;
    ((T *)t->call->outputs[1].data)[i] = logarithm;
  }
  return 0; /* the determinant of a singular matrix is valid */
}

/* Copies a triangle of a matrix to a packed vector (`extract`), or the reverse. */
static int part_T(const matrices *t, int64_t i, void *scratch) {
  (void)scratch;
  int64_t n = t->n, away = t->offset < 0 ? -t->offset : t->offset, side = n - away, at = 0;
  int64_t count = side * (side + 1) / 2;
  bool extract = t->extract, upper = t->offset > 0 || (t->offset == 0 && !t->lower);
  const T *in = (const T *)t->call->inputs[0].data + i * (extract ? n * n : count);
  T *out = (T *)t->call->outputs[0].data + i * (extract ? count : n * n);
  if (!extract && n) memset(out, 0, (size_t)(n * n) * sizeof(T));
  for (int64_t r = 0; r < side; r++)
    for (int64_t c = 0; c <= r; c++, at++) {
      int64_t place = upper ? c * n + r + away : (r + away) * n + c;
      if (extract)
        out[at] = in[place];
      else
        out[place] = in[at];
    }
  return 0;
}

/* --- Decompositions and solutions ------------------------------------------------------------- */

/* Iterations of LAPACK may not end for infinite elements or NaN. */
static bool finite_T(const T *a, int64_t count) {
  bool finite = true;
  for (int64_t k = 0; k < count; k++) finite &= a[k] - a[k] == 0;
  return finite;
}

/* Writes the transpose of a matrix of `rows` x `columns`. */
static void transpose_T(const T *a, int64_t rows, int64_t columns, T *to) {
  for (int64_t r = 0; r < rows; r++)
    for (int64_t c = 0; c < columns; c++) to[c * rows + r] = a[r * columns + c];
}

/* LAPACK sees A^T = V^T diag(L) UT^T, so its left vectors are V and its right ones UT. */
static int svd_T(const matrices *t, int64_t i, void *scratch) {
  int64_t m = t->rows, n = t->columns;
  T *ut = (T *)t->call->outputs[0].data + i * m * m, *v = (T *)t->call->outputs[2].data + i * m * n;
  T *a = scratch, *work = a + m * n;
  int rows = (int)n, columns = (int)m, work_size = (int)t->work,
      *places = (int *)(work + work_size), info = 0;
  const T *in = (const T *)t->call->inputs[0].data + i * m * n;
  if (!finite_T(in, m * n)) return 1;
  memcpy(a, in, (size_t)(m * n) * sizeof(T));
  t->blas->B.gesdd("S", &rows, &columns, a, &rows, (T *)t->call->outputs[1].data + i * m, v, &rows,
                   ut, &columns, work, &work_size, places, &info, 1);
  /* Normalize signs: the element with the largest magnitude in each row of V becomes positive. */
  for (int64_t r = 0; r < m; r++) {
    T *row = v + r * n, largest = 0;
    for (int64_t c = 0; c < n; c++)
      if ((row[c] < 0 ? -row[c] : row[c]) > (largest < 0 ? -largest : largest)) largest = row[c];
    for (int64_t c = 0; largest < 0 && c < n; c++) row[c] = -row[c];
    for (int64_t k = 0; largest < 0 && k < m; k++) ut[k * m + r] = -ut[k * m + r];
  }
  return info;
}

/* Solves the transpose of the system that LAPACK sees, for the columns of B. */
static int solve_T(const matrices *t, int64_t i, void *scratch) {
  int64_t n = t->n, k = t->columns;
  T *lu = scratch, *x = lu + n * n;
  int size = (int)n, columns = (int)k, *pivots = (int *)(x + n * k), info = 0;
  memcpy(lu, (const T *)t->call->inputs[0].data + i * n * n, (size_t)(n * n) * sizeof(T));
  transpose_T((const T *)t->call->inputs[1].data + i * n * k, n, k, x);
  t->blas->B.getrf(&size, &size, lu, &size, pivots, &info);
  if (info == 0) t->blas->B.getrs("T", &size, &columns, lu, &size, pivots, x, &size, &info, 1);
  transpose_T(x, k, n, (T *)t->call->outputs[0].data + i * n * k);
  return info;
}

/* Computes the eigenvalues, and the eigenvectors if there is a second output. Fails if an
 * eigenvalue is complex. */
static int eig_T(const matrices *t, int64_t i, void *scratch) {
  int64_t n = t->n;
  bool vectors = t->call->num_outputs > 1;
  T *a = scratch, *v = a + n * n, *imaginary = v + n * n, *work = imaginary + n;
  int size = (int)n, one = 1, work_size = (int)t->work, info = 0;
  const T *in = (const T *)t->call->inputs[0].data + i * n * n;
  if (!finite_T(in, n * n)) return 1;
  transpose_T(in, n, n, a);
  t->blas->B.geev("N", vectors ? "V" : "N", &size, a, &size, (T *)t->call->outputs[0].data + i * n,
                  imaginary, NULL, &one, v, &size, work, &work_size, &info, 1, 1);
  for (int64_t k = 0; k < n && info == 0; k++) info = imaginary[k] != 0;
  if (vectors) transpose_T(v, n, n, (T *)t->call->outputs[1].data + i * n * n);
  return info;
}
