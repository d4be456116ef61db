/* Matrix products: shape inference and gradients. The gradient for each factor is itself a matrix
 * product. */
#include "op/formula/arithmetic.h"
#include "op/infer.h"
#include "op/layers/packed.h"

/* Returns the product of the sizes of dimensions [begin, end), or -1 if one of them is unknown. */
static int64_t known_product(const mpg_shape *shape, int begin, int end) {
  int64_t size = 1;
  for (int i = begin; i < end; i++) {
    if (shape->dims[i] < 0) return -1;
    size *= shape->dims[i];
  }
  return size;
}

static bool disagree(int64_t a, int64_t b) { return a >= 0 && b >= 0 && a != b; }

/* Reshapes a value to a matrix of `rows` x `columns`. */
static mpg_value as_matrix(mpg_gradient *g, mpg_value value, int64_t rows, int64_t columns) {
  return mpg_emit_reshape(g, value, &(mpg_shape){.ndim = 2, .dims = {rows, columns}});
}

static mpg_value emit_dot(mpg_gradient *g, mpg_value a, mpg_value b, bool transpose_a,
                          bool transpose_b) {
  mpg_dot_params params = {
      .transpose_a = transpose_a, .transpose_b = transpose_b, .forward_stype = -1};
  return mpg_emit2(g, MPG_OP_dot, &params, a, b);
}

/* --- dot -------------------------------------------------------------------------------------- */
/* The size of the axis that is summed over is set in both inputs if one of them has it. */
mpg_status mpg_infer_dot(mpg_infer *infer) {
  const mpg_dot_params *p = infer->params;
  mpg_shape *a = &infer->inputs[0].shape, *b = &infer->inputs[1].shape;
  MPG_TRY(mpg_infer_same_dtype(infer));
  if (a->ndim < 0 || b->ndim < 0) return MPG_OK;
  if (a->ndim == 0 || b->ndim == 0)
    return mpg_infer_fail(infer, "arrays must have at least one axis");
  if (a->ndim == 1 && b->ndim == 1 && (p->transpose_a || p->transpose_b))
    return mpg_infer_fail(infer, "two vectors cannot be transposed");
  int64_t *ka = &a->dims[p->transpose_a ? 0 : a->ndim - 1],
          *kb = &b->dims[p->transpose_b ? b->ndim - 1 : 0];
  if (disagree(*ka, *kb))
    return mpg_infer_fail(
        infer,
        "%s axis of lhs (%lld) and %s axis of rhs (%lld) must be equal; the product sums over them",
        p->transpose_a ? "the first" : "the last", (long long)*ka,
        p->transpose_b ? "the last" : "the first", (long long)*kb);
  if (*ka < 0) *ka = *kb;
  if (*kb < 0) *kb = *ka;
  mpg_shape out = {0};
  if (a->ndim == 1 && b->ndim == 1) {
    mpg_lift(infer->op, &out);
  } else {
    int ndim = (a->ndim - 1) + (b->ndim - 1);
    if (ndim > MPG_MAX_NDIM)
      return mpg_infer_fail(infer, "the result would have %d axes; at most %d are possible", ndim,
                            MPG_MAX_NDIM);
    for (int i = 0; i < a->ndim - 1; i++)
      out.dims[out.ndim++] = a->dims[p->transpose_a ? i + 1 : i];
    for (int i = 0; i < b->ndim - 1; i++)
      out.dims[out.ndim++] = b->dims[p->transpose_b ? i : i + 1];
  }
  infer->outputs[0].shape = out;
  return MPG_OK;
}

void mpg_gradient_dot(mpg_gradient *g) {
  const mpg_dot_params *p = g->params;
  mpg_shape a_shape = mpg_value_desc(g, g->inputs[0])->shape,
            b_shape = mpg_value_desc(g, g->inputs[1])->shape;
  bool ta = p->transpose_a && a_shape.ndim > 1, tb = p->transpose_b && b_shape.ndim > 1;
  int64_t k = a_shape.dims[ta ? 0 : a_shape.ndim - 1];
  int64_t m = ta ? mpg_shape_product(&a_shape, 1, a_shape.ndim)
                 : mpg_shape_product(&a_shape, 0, a_shape.ndim - 1);
  int64_t n = tb ? mpg_shape_product(&b_shape, 0, b_shape.ndim - 1)
                 : mpg_shape_product(&b_shape, 1, b_shape.ndim);
  mpg_value grad = as_matrix(g, g->out_grads[0], m, n);
  if (g->needed[0]) {
    mpg_value b = tb ? as_matrix(g, g->inputs[1], n, k) : as_matrix(g, g->inputs[1], k, n);
    mpg_value a_grad = ta ? emit_dot(g, b, grad, tb, true) : emit_dot(g, grad, b, false, !tb);
    g->in_grads[0] = mpg_emit_reshape(g, a_grad, &a_shape);
  }
  if (g->needed[1]) {
    mpg_value a = ta ? as_matrix(g, g->inputs[0], k, m) : as_matrix(g, g->inputs[0], m, k);
    mpg_value b_grad = tb ? emit_dot(g, grad, a, true, ta) : emit_dot(g, a, grad, !ta, false);
    g->in_grads[1] = mpg_emit_reshape(g, b_grad, &b_shape);
  }
}

/* --- batch_dot -------------------------------------------------------------------------------- */
mpg_status mpg_infer_batch_dot(mpg_infer *infer) {
  const mpg_batch_dot_params *p = infer->params;
  const mpg_shape *a = &infer->inputs[0].shape, *b = &infer->inputs[1].shape;
  MPG_TRY(mpg_infer_same_dtype(infer));
  if (a->ndim < 0 || b->ndim < 0) return MPG_OK;
  int ndim = a->ndim;
  if (ndim < 3 || b->ndim != ndim)
    return mpg_infer_fail(infer, "the two arrays must have the same number of axes, at least 3");
  mpg_shape out = *a;
  for (int i = 0; i < ndim - 2; i++) {
    if (disagree(a->dims[i], b->dims[i]))
      return mpg_infer_fail(infer, "the axes before the last two must be equal");
    if (out.dims[i] < 0) out.dims[i] = b->dims[i];
  }
  if (disagree(a->dims[p->transpose_a ? ndim - 2 : ndim - 1],
               b->dims[p->transpose_b ? ndim - 1 : ndim - 2]))
    return mpg_infer_fail(infer, "the matrices do not fit (transpose_a=%s, transpose_b=%s)",
                          p->transpose_a ? "True" : "False", p->transpose_b ? "True" : "False");
  if (a->dims[p->transpose_a ? ndim - 2 : ndim - 1] < 0 ||
      b->dims[p->transpose_b ? ndim - 1 : ndim - 2] < 0)
    return MPG_OK;
  out.dims[ndim - 2] = a->dims[p->transpose_a ? ndim - 1 : ndim - 2];
  out.dims[ndim - 1] = b->dims[p->transpose_b ? ndim - 2 : ndim - 1];
  infer->outputs[0].shape = out;
  return MPG_OK;
}

static mpg_value emit_batch_dot(mpg_gradient *g, mpg_value a, mpg_value b, bool transpose_a,
                                bool transpose_b) {
  mpg_batch_dot_params params = {
      .transpose_a = transpose_a, .transpose_b = transpose_b, .forward_stype = -1};
  return mpg_emit2(g, MPG_OP_batch_dot, &params, a, b);
}

void mpg_gradient_batch_dot(mpg_gradient *g) {
  const mpg_batch_dot_params *p = g->params;
  bool ta = p->transpose_a, tb = p->transpose_b;
  mpg_value grad = g->out_grads[0];
  if (g->needed[0])
    g->in_grads[0] = ta ? emit_batch_dot(g, g->inputs[1], grad, tb, true)
                        : emit_batch_dot(g, grad, g->inputs[1], false, !tb);
  if (g->needed[1])
    g->in_grads[1] = tb ? emit_batch_dot(g, grad, g->inputs[0], true, ta)
                        : emit_batch_dot(g, g->inputs[0], grad, !ta, false);
}

/* --- FullyConnected --------------------------------------------------------------------------- */
mpg_status mpg_infer_fully_connected(mpg_infer *infer) {
  const mpg_fully_connected_params *p = infer->params;
  const mpg_shape *data = &infer->inputs[0].shape;
  MPG_TRY(mpg_infer_same_dtype(infer));
  if (infer->num_inputs == 3) {
    mpg_shape bias = {.ndim = 1, .dims = {p->num_hidden}};
    MPG_TRY(mpg_infer_expect_shape(infer, 2, &bias));
  }
  if (data->ndim < 0) return MPG_OK;
  if (data->ndim == 0) return mpg_infer_fail(infer, "data must have at least one axis");
  int last = data->ndim - 1;
  mpg_shape weight = {
      .ndim = 2,
      .dims = {p->num_hidden, p->flatten ? known_product(data, 1, data->ndim) : data->dims[last]}};
  mpg_shape given = infer->inputs[1].shape;
  if (!mpg_shape_merge(&given, &weight))
    return mpg_infer_fail(
        infer, "weight must have the shape (num_hidden=%lld, %lld): data has %lld features%s",
        (long long)p->num_hidden, (long long)weight.dims[1], (long long)weight.dims[1],
        p->flatten ? " (flatten=True: all axes except the first)" : "");
  infer->inputs[1].shape = given;
  mpg_shape out = {.ndim = 2, .dims = {data->dims[0], p->num_hidden}};
  if (!p->flatten) {
    out = *data;
    out.dims[last] = p->num_hidden;
  }
  infer->outputs[0].shape = out;
  return MPG_OK;
}

/* Infers the shape of data from the output (batch, ..., hidden). Their sizes are equal along all
 * axes except the last, or only along the batch axis if `flatten`. */
mpg_status mpg_infer_inputs_fully_connected(mpg_infer *infer) {
  bool flatten = ((const mpg_fully_connected_params *)infer->params)->flatten;
  const mpg_shape *out = &infer->outputs[0].shape;
  mpg_shape data = infer->inputs[0].shape;
  if (data.ndim < 1 || out->ndim < 1 || (!flatten && out->ndim != data.ndim)) return MPG_OK;
  for (int i = 0; i < (flatten ? 1 : data.ndim - 1); i++) data.dims[i] = out->dims[i];
  return mpg_infer_input_shape(infer, 0, &data);
}

void mpg_gradient_fully_connected(mpg_gradient *g) {
  const mpg_fully_connected_params *p = g->params;
  mpg_shape data_shape = mpg_value_desc(g, g->inputs[0])->shape;
  int64_t hidden = p->num_hidden;
  int64_t rows =
      p->flatten ? data_shape.dims[0] : mpg_shape_product(&data_shape, 0, data_shape.ndim - 1);
  int64_t features = p->flatten ? mpg_shape_product(&data_shape, 1, data_shape.ndim)
                                : data_shape.dims[data_shape.ndim - 1];
  mpg_value grad = as_matrix(g, g->out_grads[0], rows, hidden);
  if (g->needed[0])
    g->in_grads[0] =
        mpg_emit_reshape(g, emit_dot(g, grad, g->inputs[1], false, false), &data_shape);
  if (g->needed[1])
    g->in_grads[1] = emit_dot(g, grad, as_matrix(g, g->inputs[0], rows, features), true, false);
  if (g->num_inputs == 3 && g->needed[2])
    g->in_grads[2] = mpg_emit_sum_to(g, grad, &(mpg_shape){.ndim = 1, .dims = {hidden}});
}

/* --- FullyConnected with a packed weight ------------------------------------------------------ */
static int64_t in_blocks(int64_t size) {
  return (size / MPG_PACKED_BLOCK + (size % MPG_PACKED_BLOCK != 0)) * MPG_PACKED_BLOCK;
}

int64_t mpg_packed_matrix_elements(int64_t rows, int64_t columns) {
  return MPG_PACKED_HEADER + in_blocks(rows) * in_blocks(columns);
}

/* Computes the shape of a packed weight. Fails if its size, rounded up to whole blocks,
 * overflows. */
static mpg_status packed_shape(const mpg_infer *infer, int64_t rows, int64_t columns,
                               mpg_shape *shape) {
  mpg_shape whole = {.ndim = 2, .dims = {in_blocks(rows), in_blocks(columns)}};
  if (mpg_shape_check(&whole, MPG_FLOAT64, NULL) != MPG_OK)
    return mpg_infer_fail(infer, "the weight is too large");
  *shape = (mpg_shape){.ndim = 1, .dims = {mpg_packed_matrix_elements(rows, columns)}};
  return MPG_OK;
}

mpg_status mpg_infer_pack_fully_connected(mpg_infer *infer) {
  const mpg_shape *weight = &infer->inputs[0].shape;
  MPG_TRY(mpg_infer_expect_dtype(infer, 0, MPG_FLOAT32));
  infer->outputs[0].dtype = MPG_FLOAT32;
  if (!mpg_shape_known(weight)) return MPG_OK;
  if (weight->ndim != 2) return mpg_infer_fail(infer, "the weight must be (num_hidden, features)");
  mpg_shape packed;
  MPG_TRY(packed_shape(infer, weight->dims[0], weight->dims[1], &packed));
  mpg_infer_set(infer, 0, &packed, MPG_FLOAT32);
  return MPG_OK;
}

mpg_status mpg_infer_packed_fully_connected(mpg_infer *infer) {
  const mpg_fully_connected_params *p = infer->params;
  mpg_shape data = infer->inputs[0].shape;
  for (int i = 0; i < infer->num_inputs; i++)
    MPG_TRY(mpg_infer_expect_dtype(infer, i, MPG_FLOAT32));
  infer->outputs[0].dtype = MPG_FLOAT32;
  if (!mpg_shape_known(&data)) return MPG_OK;
  if (data.ndim == 0) return mpg_infer_fail(infer, "data must have at least one axis");
  int last = p->flatten ? 1 : data.ndim - 1;
  int64_t features = mpg_shape_product(&data, last, data.ndim);
  mpg_shape packed;
  MPG_TRY(mpg_shape_check(&(mpg_shape){.ndim = 2, .dims = {p->num_hidden, features}}, MPG_FLOAT32,
                          NULL));
  MPG_TRY(packed_shape(infer, p->num_hidden, features, &packed));
  MPG_TRY(mpg_infer_expect_shape(infer, 1, &packed));
  if (!p->no_bias)
    MPG_TRY(mpg_infer_expect_shape(infer, 2, &(mpg_shape){.ndim = 1, .dims = {p->num_hidden}}));
  data.ndim = last + 1;
  data.dims[last] = p->num_hidden;
  mpg_infer_set(infer, 0, &data, MPG_FLOAT32);
  return MPG_OK;
}

/* --- linalg ----------------------------------------------------------------------------------- */
/* Infers the shape of the product A x B, in which A and B may be transposed (ta, tb). The rows of
 * the matrices are along `axis`, the columns along the last axis. */
static mpg_status infer_linalg(mpg_infer *infer, bool ta, bool tb, int64_t axis_param,
                               mpg_shape *out) {
  const mpg_shape *a = &infer->inputs[0].shape, *b = &infer->inputs[1].shape;
  *out = MPG_SHAPE_UNKNOWN;
  if (a->ndim < 0 || b->ndim < 0) return MPG_OK;
  int ndim = a->ndim, axis;
  if (ndim < 2 || b->ndim != ndim)
    return mpg_infer_fail(infer, "A and B must have the same number of axes, at least 2");
  MPG_TRY(mpg_axis_normalize(axis_param, ndim, infer->op->name, &axis));
  if (axis == ndim - 1)
    return mpg_infer_fail(infer, "axis (the rows) must not be the last one (the columns)");
  *out = *a;
  for (int i = 0; i < ndim - 1; i++) {
    if (i == axis) continue;
    if (disagree(a->dims[i], b->dims[i]))
      return mpg_infer_fail(infer, "A and B must have equal axes except for rows and columns");
    if (out->dims[i] < 0) out->dims[i] = b->dims[i];
  }
  if (disagree(a->dims[ta ? axis : ndim - 1], b->dims[tb ? ndim - 1 : axis]))
    return mpg_infer_fail(infer, "the matrices do not fit");
  out->dims[axis] = a->dims[ta ? ndim - 1 : axis];
  out->dims[ndim - 1] = b->dims[tb ? axis : ndim - 1];
  return MPG_OK;
}

mpg_status mpg_infer_linalg_gemm(mpg_infer *infer) {
  const mpg_linalg_gemm_params *p = infer->params;
  mpg_shape out;
  MPG_TRY(mpg_infer_same_dtype(infer));
  MPG_TRY(infer_linalg(infer, p->transpose_a, p->transpose_b, p->axis, &out));
  if (out.ndim >= 0) MPG_TRY(mpg_infer_expect_shape(infer, 2, &out));
  infer->outputs[0].shape = out;
  return MPG_OK;
}

mpg_status mpg_infer_linalg_gemm2(mpg_infer *infer) {
  const mpg_linalg_gemm2_params *p = infer->params;
  mpg_shape out;
  MPG_TRY(mpg_infer_same_dtype(infer));
  MPG_TRY(infer_linalg(infer, p->transpose_a, p->transpose_b, p->axis, &out));
  infer->outputs[0].shape = out;
  return MPG_OK;
}

static void linalg_product_gradient(mpg_gradient *g, bool ta, bool tb, double alpha, int64_t axis) {
  mpg_value a = g->inputs[0], b = g->inputs[1], grad = g->out_grads[0];
#define PRODUCT(x, y, tx, ty)                                                        \
  mpg_emit2(g, MPG_OP__linalg_gemm2,                                                 \
            &(mpg_linalg_gemm2_params){                                              \
                .transpose_a = tx, .transpose_b = ty, .alpha = alpha, .axis = axis}, \
            x, y)
  if (g->needed[0]) g->in_grads[0] = ta ? PRODUCT(b, grad, tb, true) : PRODUCT(grad, b, false, !tb);
  if (g->needed[1]) g->in_grads[1] = tb ? PRODUCT(grad, a, true, ta) : PRODUCT(a, grad, !ta, false);
#undef PRODUCT
}

void mpg_gradient_linalg_gemm(mpg_gradient *g) {
  const mpg_linalg_gemm_params *p = g->params;
  linalg_product_gradient(g, p->transpose_a, p->transpose_b, p->alpha, p->axis);
  if (g->needed[2])
    g->in_grads[2] = mpg_emit_scalar(g, MPG_OP__mul_scalar, g->out_grads[0], p->beta);
}

void mpg_gradient_linalg_gemm2(mpg_gradient *g) {
  const mpg_linalg_gemm2_params *p = g->params;
  linalg_product_gradient(g, p->transpose_a, p->transpose_b, p->alpha, p->axis);
}

void mpg_compose_khatri_rao(mpg_gradient *g, const mpg_value *inputs, mpg_value *outputs) {
  outputs[0] = mpg_emit1(g, MPG_OP__copy, NULL, inputs[g->num_inputs - 1]);
  for (int i = g->num_inputs - 1; i >= 0 && g->status == MPG_OK; i--) {
    mpg_shape left = mpg_value_desc(g, inputs[i])->shape,
              right = mpg_value_desc(g, outputs[0])->shape;
    if (left.ndim != 2 || right.ndim != 2 || left.dims[1] != right.dims[1]) {
      mpg_gradient_fail(g, "the matrices must have the same number of columns");
      return;
    }
    if (i == g->num_inputs - 1) continue;
    mpg_shape rows = {.ndim = 3, .dims = {left.dims[0], 1, left.dims[1]}},
              columns = {.ndim = 3, .dims = {1, right.dims[0], right.dims[1]}}, all = left;
    if (__builtin_mul_overflow(left.dims[0], right.dims[0], &all.dims[0])) {
      mpg_gradient_fail(g, "the result is too large");
      return;
    }
    mpg_value product = mpg_multiply(g, mpg_emit_reshape(g, inputs[i], &rows),
                                     mpg_emit_reshape(g, outputs[0], &columns));
    outputs[0] = mpg_emit_reshape(g, product, &all);
  }
}

/* --- Costs ------------------------------------------------------------------------------------ */
static double elements(const mpg_desc *desc) { return (double)mpg_shape_size(&desc->shape); }

/* Cost: one multiplication and one addition for each element of the result and each index of the
 * summed axis. */
static mpg_cost product(const mpg_infer *call, int64_t summed) {
  return mpg_cost_of(call, 2 * elements(&call->outputs[0]) * (double)summed);
}

mpg_cost mpg_cost_dot(const mpg_infer *call) {
  const mpg_shape *a = &call->inputs[0].shape;
  return product(call,
                 a->dims[((const mpg_dot_params *)call->params)->transpose_a ? 0 : a->ndim - 1]);
}

mpg_cost mpg_cost_batch_dot(const mpg_infer *call) {
  const mpg_shape *a = &call->inputs[0].shape;
  return product(call,
                 a->dims[((const mpg_batch_dot_params *)call->params)->transpose_a ? a->ndim - 2
                                                                                   : a->ndim - 1]);
}

mpg_cost mpg_cost_fully_connected(const mpg_infer *call) {
  return mpg_cost_of(call,
                     2 * elements(&call->inputs[0]) *
                         (double)((const mpg_fully_connected_params *)call->params)->num_hidden);
}

/* Cost: one multiplication and one addition for each element of A and each column of the result. */
mpg_cost mpg_cost_linalg_gemm(const mpg_infer *call) {
  double a = elements(&call->inputs[0]),
         columns = (double)call->outputs[0].shape.dims[call->outputs[0].shape.ndim - 1];
  return mpg_cost_of(call, 2 * a * columns);
}
