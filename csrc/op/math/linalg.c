/* Linear algebra: inference and gradients. */
#include <math.h>
#include <string.h>

#include "op/formula/arithmetic.h"
#include "op/infer.h"

/* --- Inference -------------------------------------------------------------------------------- */

/* Infers the output dtypes. Checks that input 0 contains matrices, and that the matrices are square
 * if `square`. Sets *known to true if the shape of input 0 is known. */
static mpg_status matrices(mpg_infer *infer, bool square, bool *known) {
  const mpg_shape *a = &infer->inputs[0].shape;
  for (int i = 0; i < infer->num_outputs; i++) infer->outputs[i].dtype = infer->inputs[0].dtype;
  *known = mpg_shape_known(a);
  if (a->ndim < 0) return MPG_OK;
  if (a->ndim < 2)
    return mpg_infer_fail(infer, "A must have at least two axes: its matrices lie in the last two");
  int64_t rows = a->dims[a->ndim - 2], columns = a->dims[a->ndim - 1];
  if (square && rows >= 0 && columns >= 0 && rows != columns)
    return mpg_infer_fail(infer, "the matrices must be square");
  return MPG_OK;
}

/* Returns the shape of a result of `op` with one element per matrix. */
static mpg_shape one_per_matrix(const mpg_op *op, const mpg_shape *a) {
  mpg_shape shape = *a;
  shape.ndim = a->ndim - 2;
  mpg_lift(op, &shape);
  return shape;
}

mpg_status mpg_infer_linalg_square(mpg_infer *infer) {
  bool known;
  MPG_TRY(matrices(infer, true, &known));
  infer->outputs[0].shape = infer->inputs[0].shape;
  return MPG_OK;
}

mpg_status mpg_infer_linalg_triangular(mpg_infer *infer) {
  const mpg_linalg_triangular_params *p = infer->params;
  const mpg_shape *a = &infer->inputs[0].shape, *b = &infer->inputs[1].shape;
  mpg_dtype dtype =
      infer->inputs[0].dtype == MPG_DTYPE_NONE ? infer->inputs[1].dtype : infer->inputs[0].dtype;
  bool known;
  MPG_TRY(mpg_infer_expect_dtype(infer, 0, dtype));
  MPG_TRY(mpg_infer_expect_dtype(infer, 1, dtype));
  MPG_TRY(matrices(infer, true, &known));
  if (!known || !mpg_shape_known(b)) return MPG_OK;
  bool fit =
      a->ndim == b->ndim && b->dims[b->ndim - (p->rightside ? 1 : 2)] == a->dims[a->ndim - 1];
  for (int i = 0; fit && i < a->ndim - 2; i++) fit = a->dims[i] == b->dims[i];
  if (!fit)
    return mpg_infer_fail(infer,
                          "B must have as many %s as the triangular matrices A have rows "
                          "(rightside=%s), and all leading axes must be equal",
                          p->rightside ? "columns" : "rows", p->rightside ? "True" : "False");
  infer->outputs[0].shape = *b;
  return MPG_OK;
}

mpg_status mpg_infer_linalg_syrk(mpg_infer *infer) {
  const mpg_linalg_syrk_params *p = infer->params;
  bool known;
  MPG_TRY(matrices(infer, false, &known));
  if (!known) return MPG_OK;
  mpg_shape out = infer->inputs[0].shape;
  out.dims[out.ndim - 1] = out.dims[out.ndim - 2] =
      out.dims[p->transpose ? out.ndim - 1 : out.ndim - 2];
  infer->outputs[0].shape = out;
  return MPG_OK;
}

mpg_status mpg_infer_linalg_det(mpg_infer *infer) {
  bool known;
  MPG_TRY(matrices(infer, true, &known));
  for (int i = 0; known && i < infer->num_outputs; i++)
    infer->outputs[i].shape = one_per_matrix(infer->op, &infer->inputs[0].shape);
  return MPG_OK;
}

/* Sets *side to the length of the diagonal at `offset` of a square matrix. */
static mpg_status left_by_offset(mpg_infer *infer, int64_t offset, int64_t *side) {
  const mpg_shape *a = &infer->inputs[0].shape;
  int64_t n = a->dims[a->ndim - 1];
  if (offset > n || offset < -n)
    return mpg_infer_fail(infer, "diagonal %lld is out of range for a matrix of size %lld",
                          (long long)offset, (long long)n);
  *side = n - (offset < 0 ? -offset : offset);
  return MPG_OK;
}

mpg_status mpg_infer_linalg_extracttrian(mpg_infer *infer) {
  bool known;
  MPG_TRY(matrices(infer, true, &known));
  if (!known) return MPG_OK;
  mpg_shape out = infer->inputs[0].shape;
  int64_t side = 0;
  MPG_TRY(
      left_by_offset(infer, ((const mpg_linalg_triangle_params *)infer->params)->offset, &side));
  out.ndim--;
  out.dims[out.ndim - 1] = side * (side + 1) / 2;
  infer->outputs[0].shape = out;
  return MPG_OK;
}

mpg_status mpg_infer_linalg_maketrian(mpg_infer *infer) {
  int64_t offset = ((const mpg_linalg_triangle_params *)infer->params)->offset, limit = INT32_MAX;
  const mpg_shape *a = &infer->inputs[0].shape;
  infer->outputs[0].dtype = infer->inputs[0].dtype;
  if (!mpg_shape_known(a)) return MPG_OK;
  if (a->ndim < 1) return mpg_infer_fail(infer, "A must have at least one axis");
  if (a->ndim == MPG_MAX_NDIM)
    return mpg_infer_fail(infer, "the result would have more than %d axes", MPG_MAX_NDIM);
  mpg_shape out = *a;
  int64_t count = a->dims[a->ndim - 1];
  int64_t side = (int64_t)floor((sqrt(8.0 * (double)count + 1.0) - 1.0) / 2.0 + 0.5);
  if (side * (side + 1) / 2 != count)
    return mpg_infer_fail(infer, "the last axis has %lld elements; a triangle has n * (n + 1) / 2",
                          (long long)count);
  if (offset > limit || offset < -limit || side > limit)
    return mpg_infer_fail(infer, "the matrices would be too large");
  side += offset < 0 ? -offset : offset;
  out.ndim++;
  out.dims[out.ndim - 1] = out.dims[out.ndim - 2] = side;
  infer->outputs[0].shape = out;
  return MPG_OK;
}

mpg_status mpg_infer_linalg_gelqf(mpg_infer *infer) {
  bool known;
  MPG_TRY(matrices(infer, false, &known));
  if (!known) return MPG_OK;
  mpg_shape l = infer->inputs[0].shape;
  if (l.dims[l.ndim - 2] > l.dims[l.ndim - 1])
    return mpg_infer_fail(infer, "the matrices must not have more rows than columns");
  infer->outputs[0].shape = l;
  l.dims[l.ndim - 1] = l.dims[l.ndim - 2];
  infer->outputs[1].shape = l;
  return MPG_OK;
}

mpg_status mpg_infer_linalg_syevd(mpg_infer *infer) {
  bool known;
  MPG_TRY(matrices(infer, true, &known));
  if (!known) return MPG_OK;
  mpg_shape values = infer->inputs[0].shape;
  infer->outputs[0].shape = values;
  values.ndim--;
  infer->outputs[1].shape = values;
  return MPG_OK;
}

mpg_status mpg_infer_svd(mpg_infer *infer) {
  bool known;
  MPG_TRY(matrices(infer, false, &known));
  if (!known) return MPG_OK;
  mpg_shape a = infer->inputs[0].shape, square = a, values = a;
  if (a.dims[a.ndim - 2] > a.dims[a.ndim - 1])
    return mpg_infer_fail(infer,
                          "the matrices must not have more rows than columns; transpose them");
  square.dims[a.ndim - 1] = a.dims[a.ndim - 2];
  values.ndim--;
  infer->outputs[0].shape = square;
  infer->outputs[1].shape = values;
  infer->outputs[2].shape = a;
  return MPG_OK;
}

mpg_status mpg_infer_solve(mpg_infer *infer) {
  const mpg_shape *a = &infer->inputs[0].shape, *b = &infer->inputs[1].shape;
  mpg_dtype dtype =
      infer->inputs[0].dtype == MPG_DTYPE_NONE ? infer->inputs[1].dtype : infer->inputs[0].dtype;
  bool known;
  MPG_TRY(mpg_infer_expect_dtype(infer, 0, dtype));
  MPG_TRY(mpg_infer_expect_dtype(infer, 1, dtype));
  MPG_TRY(matrices(infer, true, &known));
  infer->outputs[0].shape = *b;
  if (!known || !mpg_shape_known(b)) return MPG_OK;
  bool fit = b->ndim == a->ndim || b->ndim == a->ndim - 1;
  for (int i = 0; fit && i < a->ndim - 1; i++) fit = a->dims[i] == b->dims[i];
  return fit ? MPG_OK
             : mpg_infer_fail(infer,
                              "B must have the leading axes of A and as many rows, and one axis "
                              "less than A or as many");
}

/* The second output, if any, has the eigenvectors. */
mpg_status mpg_infer_eig(mpg_infer *infer) {
  bool known;
  MPG_TRY(matrices(infer, true, &known));
  if (!known) return MPG_OK;
  mpg_shape values = infer->inputs[0].shape;
  if (infer->num_outputs > 1) infer->outputs[1].shape = values;
  values.ndim--;
  infer->outputs[0].shape = values;
  return MPG_OK;
}

/* --- Gradients -------------------------------------------------------------------------------- */

#define G (g->out_grads[0])

static mpg_value product(mpg_gradient *g, mpg_value a, bool ta, mpg_value b, bool tb,
                         double alpha) {
  mpg_linalg_gemm2_params params = {
      .transpose_a = ta, .transpose_b = tb, .alpha = alpha, .axis = -2};
  return mpg_emit2(g, MPG_OP__linalg_gemm2, &params, a, b);
}

static mpg_value triangular(mpg_gradient *g, mpg_op_id op, mpg_value a, mpg_value b, bool transpose,
                            bool rightside, bool lower, double alpha) {
  mpg_linalg_triangular_params params;
  memset(&params, 0, sizeof params);
  params.transpose = transpose;
  params.rightside = rightside;
  params.lower = lower;
  params.alpha = alpha;
  return mpg_emit2(g, op, &params, a, b);
}

static mpg_value swapped(mpg_gradient *g, mpg_value a) {
  if (!mpg_has_value(a)) return a;
  int ndim = mpg_value_desc(g, a)->shape.ndim;
  mpg_swap_axis_params params;
  memset(&params, 0, sizeof params);
  params.dim1 = ndim - 2;
  params.dim2 = ndim - 1;
  return mpg_emit1(g, MPG_OP_SwapAxis, &params, a);
}

static mpg_value extracted(mpg_gradient *g, mpg_value a, int64_t offset) {
  mpg_diag_params params = {.k = offset, .axis1 = -2, .axis2 = -1};
  return mpg_emit1(g, MPG_OP_diag, &params, a);
}

/* Emits square matrices with the vectors of `a` on the diagonal at `offset` and zeros
 * elsewhere. */
static mpg_value diagonal(mpg_gradient *g, mpg_value a, int64_t offset) {
  if (g->status != MPG_OK) return MPG_NO_VALUE;
  mpg_shape shape = mpg_value_desc(g, a)->shape;
  int64_t side = shape.dims[shape.ndim - 1] + (offset < 0 ? -offset : offset);
  shape.dims[shape.ndim - 1] = shape.dims[shape.ndim] = side;
  shape.ndim++;
  mpg_diag_back_params params = {.k = offset, .axis1 = -2, .axis2 = -1};
  params.shape = mpg_shape_tuple(&shape);
  return mpg_emit1(g, MPG_OP__backward_diag, &params, a);
}

/* --- Diagonals -------------------------------------------------------------------------------- */

static bool square_matrices(mpg_gradient *g, mpg_value a) {
  const mpg_shape *shape = &mpg_value_desc(g, a)->shape;
  if (shape->ndim < 2)
    mpg_gradient_fail(g, "A must have at least two axes: its matrices lie in the last two");
  else if (shape->dims[shape->ndim - 2] != shape->dims[shape->ndim - 1])
    mpg_gradient_fail(g, "the matrices must be square");
  return g->status == MPG_OK;
}

void mpg_compose_linalg_extractdiag(mpg_gradient *g, const mpg_value *inputs, mpg_value *outputs) {
  int64_t offset = ((const mpg_linalg_diagonal_params *)g->params)->offset;
  if (!square_matrices(g, inputs[0])) return;
  const mpg_shape *a = &mpg_value_desc(g, inputs[0])->shape;
  int64_t n = a->dims[a->ndim - 1];
  if (offset > n || offset < -n)
    mpg_gradient_fail(g, "diagonal %lld is out of range for a matrix of size %lld",
                      (long long)offset, (long long)n);
  else
    outputs[0] = extracted(g, inputs[0], offset);
}

void mpg_compose_linalg_makediag(mpg_gradient *g, const mpg_value *inputs, mpg_value *outputs) {
  int64_t offset = ((const mpg_linalg_diagonal_params *)g->params)->offset, limit = INT32_MAX;
  const mpg_shape *a = &mpg_value_desc(g, inputs[0])->shape;
  if (a->ndim < 1)
    mpg_gradient_fail(g, "A must have at least one axis");
  else if (a->ndim == MPG_MAX_NDIM)
    mpg_gradient_fail(g, "the result would have more than %d axes", MPG_MAX_NDIM);
  else if (offset > limit || offset < -limit || a->dims[a->ndim - 1] > limit)
    mpg_gradient_fail(g, "the matrices would be too large");
  else
    outputs[0] = diagonal(g, inputs[0], offset);
}

void mpg_compose_linalg_sumlogdiag(mpg_gradient *g, const mpg_value *inputs, mpg_value *outputs) {
  if (!square_matrices(g, inputs[0])) return;
  mpg_shape shape = one_per_matrix(g->op, &mpg_value_desc(g, inputs[0])->shape);
  mpg_value logs = mpg_emit1(g, MPG_OP_log, NULL, extracted(g, inputs[0], 0));
  int axis = g->status == MPG_OK ? mpg_value_desc(g, logs)->shape.ndim - 1 : 0;
  outputs[0] = mpg_emit_reshape(g, mpg_emit_reduce(g, MPG_OP_sum, logs, axis), &shape);
}

/* --- Gradients of products and factors -------------------------------------------------------- */

/* Keeps the lower or upper triangle, including the diagonal, and zeros the rest. Extracts the
 * triangle to a vector and expands the vector to a matrix. */
static mpg_value triangle(mpg_gradient *g, mpg_value a, bool lower) {
  mpg_linalg_triangle_params params;
  memset(&params, 0, sizeof params);
  params.lower = lower;
  return mpg_emit1(g, MPG_OP__linalg_maketrian, &params,
                   mpg_emit1(g, MPG_OP__linalg_extracttrian, &params, a));
}

/* Emits symmetric matrices by mirroring one triangle of `a`. */
static mpg_value mirrored(mpg_gradient *g, mpg_value a, bool lower) {
  mpg_value half = triangle(g, a, lower), main = diagonal(g, extracted(g, a, 0), 0);
  return mpg_subtract(g, mpg_add(g, half, swapped(g, half)), main);
}

/* Returns the gradient of output i. Emits zeros if the gradient is missing. */
static mpg_value arrived(mpg_gradient *g, int i) {
  return mpg_has_value(g->out_grads[i]) ? g->out_grads[i] : mpg_emit_full_like(g, g->outputs[i], 0);
}

/* For A = L L^T, dA = L^-T P L^-1 / 2, where P mirrors the lower triangle of L^T dL. Upper factors
 * use the transposed formula. */
void mpg_gradient_linalg_potrf(mpg_gradient *g) {
  bool lower = ((const mpg_linalg_cholesky_params *)g->params)->lower;
  mpg_value l = g->outputs[0];
  mpg_value p = mirrored(
      g, triangular(g, MPG_OP__linalg_trmm, l, triangle(g, G, lower), true, !lower, lower, 1),
      lower);
  p = triangular(g, MPG_OP__linalg_trsm, l, p, lower, false, lower, 0.5);
  g->in_grads[0] = triangular(g, MPG_OP__linalg_trsm, l, p, !lower, true, lower, 1);
}

/* For B = (L L^T)^-1, dL is the lower triangle of -B (G + G^T) L^-T. For an upper factor U, it is
 * the upper triangle of -U^-T (G + G^T) B. */
void mpg_gradient_linalg_potri(mpg_gradient *g) {
  bool lower = ((const mpg_linalg_cholesky_params *)g->params)->lower;
  mpg_value b = g->outputs[0], sum = mpg_add(g, G, swapped(g, G));
  mpg_value p = lower ? product(g, b, false, sum, false, -1) : product(g, sum, false, b, false, -1);
  g->in_grads[0] = triangle(
      g, triangular(g, MPG_OP__linalg_trsm, g->inputs[0], p, true, lower, lower, 1), lower);
}

void mpg_gradient_linalg_trmm(mpg_gradient *g) {
  const mpg_linalg_triangular_params *p = g->params;
  mpg_value a = g->inputs[0], b = g->inputs[1];
  if (g->needed[0]) {
    mpg_value full;
    if (p->rightside)
      full = p->transpose ? product(g, G, true, b, false, p->alpha)
                          : product(g, b, true, G, false, p->alpha);
    else
      full = p->transpose ? product(g, b, false, G, true, p->alpha)
                          : product(g, G, false, b, true, p->alpha);
    g->in_grads[0] = triangle(g, full, p->lower);
  }
  if (g->needed[1])
    g->in_grads[1] =
        triangular(g, MPG_OP__linalg_trmm, a, G, !p->transpose, p->rightside, p->lower, p->alpha);
}

/* For X = alpha A^-1 B, dB = alpha A^-T G and dA is the triangle of -A^-T G X^T. */
void mpg_gradient_linalg_trsm(mpg_gradient *g) {
  const mpg_linalg_triangular_params *p = g->params;
  mpg_value x = g->outputs[0], y = triangular(g, MPG_OP__linalg_trsm, g->inputs[0], G,
                                              !p->transpose, p->rightside, p->lower, 1);
  if (g->needed[0]) {
    mpg_value full;
    if (p->rightside)
      full = p->transpose ? product(g, y, true, x, false, -1) : product(g, x, true, y, false, -1);
    else
      full = p->transpose ? product(g, x, false, y, true, -1) : product(g, y, false, x, true, -1);
    g->in_grads[0] = triangle(g, full, p->lower);
  }
  if (g->needed[1])
    g->in_grads[1] = p->alpha == 1 ? y : mpg_emit_scalar(g, MPG_OP__mul_scalar, y, p->alpha);
}

void mpg_gradient_linalg_syrk(mpg_gradient *g) {
  const mpg_linalg_syrk_params *p = g->params;
  mpg_value sum = mpg_add(g, G, swapped(g, G));
  g->in_grads[0] = p->transpose ? product(g, g->inputs[0], false, sum, false, p->alpha)
                                : product(g, sum, false, g->inputs[0], false, p->alpha);
}

/* Reshapes an array with one value per matrix so that it broadcasts over vectors (axes = 1) or
 * matrices (axes = 2). */
static mpg_value spread(mpg_gradient *g, mpg_value value, int axes) {
  mpg_shape shape = mpg_value_desc(g, g->inputs[0])->shape;
  for (int i = 1; i <= axes; i++) shape.dims[shape.ndim - 3 + i] = 1;
  if (axes == 1)
    shape.ndim--;
  else
    shape.dims[shape.ndim - 1] = 1;
  return mpg_emit_reshape(g, value, &shape);
}

void mpg_gradient_linalg_extracttrian(mpg_gradient *g) {
  g->in_grads[0] = mpg_emit1(g, MPG_OP__linalg_maketrian, g->params, G);
}
void mpg_gradient_linalg_maketrian(mpg_gradient *g) {
  g->in_grads[0] = mpg_emit1(g, MPG_OP__linalg_extracttrian, g->params, G);
}

/* dA = L^-T (dQ + P Q), where P is the mirrored lower triangle of L^T dL - dQ Q^T. */
void mpg_gradient_linalg_gelqf(mpg_gradient *g) {
  mpg_value q = g->outputs[0], l = g->outputs[1], dq = arrived(g, 0), dl = arrived(g, 1);
  mpg_value m = mpg_subtract(g, triangular(g, MPG_OP__linalg_trmm, l, dl, true, false, true, 1),
                             product(g, dq, false, q, true, 1));
  mpg_value sum = mpg_add(g, dq, product(g, mirrored(g, m, true), false, q, false, 1));
  g->in_grads[0] = triangular(g, MPG_OP__linalg_trsm, l, sum, true, false, true, 1);
}

/* dA = U^T S U for a symmetric S with dL on its diagonal. With T = dU U^T and i > j, element (i, j)
 * of S is (T - T^T)_ij / (2 (L_i - L_j)). */
void mpg_gradient_linalg_syevd(mpg_gradient *g) {
  mpg_value u = g->outputs[0], l = g->outputs[1];
  mpg_shape rows = mpg_value_desc(g, u)->shape, columns = rows;
  /* Lower bound for the difference of two eigenvalues, as in MXNet, so that equal eigenvalues do
   * not cause a division by 0. */
  double least = mpg_value_desc(g, u)->dtype == MPG_FLOAT32 ? 1e-30 : 1e-100;
  mpg_value inner = diagonal(g, arrived(g, 1), 0);
  if (mpg_has_value(g->out_grads[0])) {
    rows.dims[rows.ndim - 1] = columns.dims[columns.ndim - 2] = 1;
    mpg_value distance = mpg_emit2(g, MPG_OP_broadcast_sub, NULL, mpg_emit_reshape(g, l, &rows),
                                   mpg_emit_reshape(g, l, &columns));
    distance = mpg_emit_scalar(g, MPG_OP__mul_scalar,
                               mpg_emit_scalar(g, MPG_OP__maximum_scalar, distance, least), 2);
    mpg_value t = product(g, G, false, u, true, 1);
    t = triangle(
        g, mpg_emit2(g, MPG_OP_elemwise_div, NULL, mpg_subtract(g, t, swapped(g, t)), distance),
        true);
    inner = mpg_add(g, inner, mpg_add(g, t, swapped(g, t))); /* t's diagonal is 0 */
  }
  g->in_grads[0] = product(g, product(g, u, true, inner, false, 1), false, u, false, 1);
}

void mpg_gradient_linalg_inverse(mpg_gradient *g) {
  mpg_value b = g->outputs[0];
  g->in_grads[0] = product(g, product(g, b, true, G, false, -1), false, b, true, 1);
}

static mpg_value scaled_inverse(mpg_gradient *g, mpg_value scale) {
  mpg_value inverse = mpg_emit1(g, MPG_OP__linalg_inverse_or_zero, NULL, g->inputs[0]);
  return mpg_emit2(g, MPG_OP_broadcast_mul, NULL, swapped(g, inverse), spread(g, scale, 2));
}

void mpg_gradient_linalg_det(mpg_gradient *g) {
  g->in_grads[0] = scaled_inverse(g, mpg_emit2(g, MPG_OP_elemwise_mul, NULL, G, g->outputs[0]));
}

void mpg_gradient_linalg_slogdet(mpg_gradient *g) {
  if (mpg_has_value(g->out_grads[1])) g->in_grads[0] = scaled_inverse(g, g->out_grads[1]);
}

/* --- Gradients of decompositions and solutions ------------------------------------------------ */

/* Emits the vectors of `a` as matrices of one row, or of one column. */
static mpg_value as_row(mpg_gradient *g, mpg_value a) {
  if (g->status != MPG_OK) return MPG_NO_VALUE;
  mpg_shape shape = mpg_value_desc(g, a)->shape;
  shape.dims[shape.ndim] = shape.dims[shape.ndim - 1];
  shape.dims[shape.ndim++ - 1] = 1;
  return mpg_emit_reshape(g, a, &shape);
}
static mpg_value as_column(mpg_gradient *g, mpg_value a) {
  if (g->status != MPG_OK) return MPG_NO_VALUE;
  mpg_shape shape = mpg_value_desc(g, a)->shape;
  shape.dims[shape.ndim++] = 1;
  return mpg_emit_reshape(g, a, &shape);
}

/* Divides by `divisor`, or by 1 where it is 0. */
static mpg_value divide_nonzero(mpg_gradient *g, mpg_value a, mpg_value divisor) {
  mpg_value zero = mpg_emit_scalar(g, MPG_OP__equal_scalar, divisor, 0);
  return mpg_divide(g, a, mpg_add(g, divisor, zero));
}

/* If only L has a gradient, dA = UT diag(dL) V. Otherwise, with D = diag(L)^-1 dV,
 *     dA = UT (X V + D),
 * where X has the diagonal dL - diag(D V^T). With S = D V^T diag(L) + dUT^T UT, its element (a, b)
 * outside the diagonal is (S - S^T)_ab L_b / (L_a^2 - L_b^2). */
void mpg_gradient_svd(mpg_gradient *g) {
  mpg_value ut = g->outputs[0], l = g->outputs[1], v = g->outputs[2];
  mpg_value inner = MPG_NO_VALUE, d = MPG_NO_VALUE;
  if (!mpg_has_value(g->out_grads[0]) && !mpg_has_value(g->out_grads[2])) {
    mpg_value rows = mpg_multiply(g, as_column(g, g->out_grads[1]), v);
    g->in_grads[0] = product(g, ut, false, rows, false, 1);
    return;
  }
  mpg_value row = as_row(g, l), column = as_column(g, l), main = arrived(g, 1);
  mpg_value distance = mpg_multiply(g, mpg_subtract(g, column, row), mpg_add(g, column, row));
  if (mpg_has_value(g->out_grads[2])) {
    d = divide_nonzero(g, g->out_grads[2], column);
    mpg_value along = product(g, d, false, v, true, 1);
    main = mpg_subtract(g, main, extracted(g, along, 0));
    inner = mpg_multiply(g, along, row);
  }
  if (mpg_has_value(g->out_grads[0])) {
    mpg_value turned = product(g, g->out_grads[0], true, ut, false, 1);
    inner = mpg_has_value(inner) ? mpg_add(g, inner, turned) : turned;
  }
  inner = divide_nonzero(g, mpg_subtract(g, inner, swapped(g, inner)), distance);
  inner = mpg_add(g, mpg_multiply(g, inner, row), diagonal(g, main, 0));
  mpg_value sum = product(g, inner, false, v, false, 1);
  if (mpg_has_value(d)) sum = mpg_add(g, sum, d);
  g->in_grads[0] = product(g, ut, false, sum, false, 1);
}

/* dB = A^-T G and dA = -dB X^T. */
void mpg_gradient_solve(mpg_gradient *g) {
  mpg_value b = mpg_emit2(g, MPG_OP__solve, NULL, swapped(g, g->inputs[0]), G), x = g->outputs[0];
  if (g->status != MPG_OK) return;
  bool vectors = mpg_value_desc(g, x)->shape.ndim < mpg_value_desc(g, g->inputs[0])->shape.ndim;
  if (g->needed[0])
    g->in_grads[0] = vectors ? product(g, as_column(g, b), false, as_row(g, x), false, -1)
                             : product(g, b, false, x, true, -1);
  if (g->needed[1]) g->in_grads[1] = b;
}

/* Emits V^-T M V^T. */
static mpg_value in_eigenbasis(mpg_gradient *g, mpg_value v, mpg_value m) {
  return mpg_emit2(g, MPG_OP__solve, NULL, swapped(g, v), product(g, m, false, v, true, 1));
}

/* dA = V^-T M V^T, where M has the diagonal dw. With W = V^T dV, its element (a, b) outside the
 * diagonal is (W - V^T V diag(W))_ab / (w_b - w_a). The diagonal of this difference is 0. */
void mpg_gradient_eig(mpg_gradient *g) {
  mpg_value w = g->outputs[0], v = g->outputs[1], m = diagonal(g, arrived(g, 0), 0);
  if (mpg_has_value(g->out_grads[1])) {
    mpg_value along = product(g, v, true, g->out_grads[1], false, 1),
              own = mpg_multiply(g, product(g, v, true, v, false, 1),
                                 as_row(g, extracted(g, along, 0)));
    mpg_value distance = mpg_subtract(g, as_row(g, w), as_column(g, w));
    m = mpg_add(g, m, divide_nonzero(g, mpg_subtract(g, along, own), distance));
  }
  g->in_grads[0] = in_eigenbasis(g, v, m);
}

void mpg_gradient_eigvals(mpg_gradient *g) {
  mpg_value outputs[2];
  mpg_emit_all(g, MPG_OP__eig, NULL, 1, g->inputs, 2, outputs);
  if (g->status == MPG_OK) g->in_grads[0] = in_eigenbasis(g, outputs[1], diagonal(g, G, 0));
}

/* --- Costs ------------------------------------------------------------------------------------ */

/* Cost of factorizations and inverses: two operations per element and row. Eigendecompositions take
 * more, because they iterate. */
mpg_cost mpg_cost_linalg_square(const mpg_infer *call) {
  const mpg_shape *a = &call->inputs[0].shape;
  bool iterates = call->op->id == MPG_OP__linalg_syevd || call->op->id == MPG_OP__svd ||
                  call->op->id == MPG_OP__eig || call->op->id == MPG_OP__eigvals;
  double rounds = iterates ? 9 : 2;
  return mpg_cost_of(call, rounds * (double)mpg_shape_size(a) * (double)a->dims[a->ndim - 2]);
}

mpg_cost mpg_cost_linalg_triangular(const mpg_infer *call) {
  const mpg_shape *a = &call->inputs[0].shape;
  return mpg_cost_of(call,
                     (double)mpg_shape_size(&call->inputs[1].shape) * (double)a->dims[a->ndim - 1]);
}

mpg_cost mpg_cost_solve(const mpg_infer *call) {
  const mpg_shape *a = &call->inputs[0].shape, *b = &call->inputs[1].shape;
  return mpg_cost_of(call, 2 * (double)a->dims[a->ndim - 1] *
                               ((double)mpg_shape_size(a) / 3 + (double)mpg_shape_size(b)));
}
