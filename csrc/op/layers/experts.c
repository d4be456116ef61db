/* Mixtures of experts: inference, costs, gradients and batching rules.
 *
 * Rows sorted by expert have static shapes: every token has k rows, and only the sizes of groups
 * depend on values. Each gradient of dispatch, combine, _row_dots, grouped_dot and _grouped_outer
 * is composed of these ops, so they can be differentiated any number of times.
 *
 * Sources: Shazeer et al., "Outrageously Large Neural Networks", 2017; Gale et al., "MegaBlocks",
 * 2022. */
#include "op/layers/experts.h"

#include "op/batching/batching.h"
#include "op/formula/arithmetic.h"
#include "op/infer.h"

/* Returns the product of all sizes except the last one; -1 if one of them is unknown. */
static int64_t rows_of(const mpg_shape *shape) {
  for (int i = 0; i < shape->ndim - 1; i++)
    if (shape->dims[i] < 0) return -1;
  return mpg_shape_product(shape, 0, shape->ndim - 1);
}
static mpg_shape vector(int64_t size) { return (mpg_shape){.ndim = 1, .dims = {size}}; }

/* Returns the number of rows per token of an array with `rows` rows; -1 if unknown. */
static mpg_status rows_per_token(const mpg_infer *infer, int64_t rows, int64_t tokens, int64_t *k) {
  *k = -1;
  if (rows > INT32_MAX) return mpg_infer_fail(infer, "there must be less than 2^31 rows");
  if (rows < 0 || tokens <= 0) return MPG_OK;
  if (rows % tokens)
    return mpg_infer_fail(infer, "order must have a multiple of %lld elements, one per token",
                          (long long)tokens);
  *k = rows / tokens;
  return MPG_OK;
}

/* Returns the dtype of weights for data of `dtype`. */
static mpg_dtype weights_dtype(mpg_dtype dtype) {
  return dtype == MPG_DTYPE_NONE ? MPG_DTYPE_NONE : mpg_dtype_of_sums(dtype);
}
static mpg_status expect_weights_dtype(mpg_infer *infer, int data, int weights) {
  mpg_dtype dtype = infer->inputs[data].dtype;
  return dtype == MPG_DTYPE_NONE ? MPG_OK
                                 : mpg_infer_expect_dtype(infer, weights, weights_dtype(dtype));
}

/* --- Inference -------------------------------------------------------------------------------- */

mpg_status mpg_infer_route(mpg_infer *infer) {
  const mpg_route_params *p = infer->params;
  mpg_desc *scores = &infer->inputs[0];
  const mpg_dtype dtypes[] = {MPG_INT32, MPG_INT32, weights_dtype(scores->dtype), MPG_INT32};
  for (int i = 0; i < 4; i++) infer->outputs[i].dtype = dtypes[i];
  if (infer->num_inputs > 1 && scores->dtype != MPG_DTYPE_NONE &&
      infer->inputs[1].dtype != scores->dtype)
    MPG_TRY(mpg_infer_expect_dtype(infer, 1, weights_dtype(scores->dtype)));
  if (scores->shape.ndim < 0) return MPG_OK;
  if (scores->shape.ndim < 2)
    return mpg_infer_fail(infer, "scores must have at least 2 axes (tokens, experts)");
  mpg_shape chosen = scores->shape;
  int64_t experts = chosen.dims[chosen.ndim - 1], tokens = rows_of(&chosen);
  if (experts >= 0 && p->k > experts)
    return mpg_infer_fail(infer, "k = %lld must be at most the number of experts, %lld",
                          (long long)p->k, (long long)experts);
  if (tokens > INT32_MAX / p->k || experts > INT32_MAX)
    return mpg_infer_fail(infer, "tokens * k must be less than 2^31");
  mpg_shape each = vector(experts), order = vector(tokens < 0 ? -1 : tokens * p->k);
  if (infer->num_inputs > 1) MPG_TRY(mpg_infer_expect_shape(infer, 1, &each));
  chosen.dims[chosen.ndim - 1] = p->k;
  infer->outputs[0].shape = order;
  infer->outputs[1].shape = each;
  infer->outputs[2].shape = infer->outputs[3].shape = chosen;
  return MPG_OK;
}

mpg_status mpg_infer_route_back(mpg_infer *infer) {
  const mpg_desc *scores = &infer->inputs[1];
  infer->outputs[0] = *scores;
  MPG_TRY(expect_weights_dtype(infer, 1, 0));
  MPG_TRY(expect_weights_dtype(infer, 1, 2));
  MPG_TRY(mpg_infer_expect_dtype(infer, 3, MPG_INT32));
  if (scores->shape.ndim < 0) return MPG_OK;
  if (scores->shape.ndim < 2 || infer->inputs[3].shape.ndim != scores->shape.ndim)
    return mpg_infer_fail(infer, "scores must be (..., experts) and experts (..., k)");
  mpg_shape chosen = scores->shape;
  chosen.dims[chosen.ndim - 1] = infer->inputs[3].shape.dims[chosen.ndim - 1];
  for (int i = 0; i < 4; i++)
    if (i != 1) MPG_TRY(mpg_infer_expect_shape(infer, i, &chosen));
  return MPG_OK;
}

mpg_status mpg_infer_dispatch(mpg_infer *infer) {
  const mpg_desc *data = &infer->inputs[0];
  mpg_shape *order = &infer->inputs[1].shape;
  infer->outputs[0].dtype = data->dtype;
  MPG_TRY(mpg_infer_expect_dtype(infer, 1, MPG_INT32));
  if (order->ndim >= 0 && order->ndim != 1)
    return mpg_infer_fail(infer, "order must have 1 axis (tokens * k)");
  if (infer->num_inputs > 2) MPG_TRY(expect_weights_dtype(infer, 0, 2));
  if (data->shape.ndim < 0) return MPG_OK;
  if (data->shape.ndim < 2)
    return mpg_infer_fail(infer, "data must have at least 2 axes (tokens, units)");
  int64_t rows = order->ndim < 0 ? -1 : order->dims[0], tokens = rows_of(&data->shape), k;
  MPG_TRY(rows_per_token(infer, rows, tokens, &k));
  if (tokens == 0 && rows > 0) return mpg_infer_fail(infer, "order must be empty, like data");
  if (infer->num_inputs > 2) {
    mpg_shape weights = data->shape;
    weights.dims[weights.ndim - 1] = k;
    MPG_TRY(mpg_infer_expect_shape(infer, 2, &weights));
    int64_t each = infer->inputs[2].shape.dims[weights.ndim - 1];
    if (rows < 0 && tokens >= 0 && each >= 0) rows = tokens * each;
  }
  infer->outputs[0].shape =
      (mpg_shape){.ndim = 2, .dims = {rows, data->shape.dims[data->shape.ndim - 1]}};
  return MPG_OK;
}

mpg_status mpg_infer_combine(mpg_infer *infer) {
  const mpg_combine_params *p = infer->params;
  const mpg_desc *rows = &infer->inputs[0];
  bool weighted = infer->num_inputs > 2;
  infer->outputs[0].dtype = rows->dtype;
  MPG_TRY(mpg_infer_expect_dtype(infer, 1, MPG_INT32));
  if (weighted) MPG_TRY(expect_weights_dtype(infer, 0, 2));
  if (!weighted && !p->k) return mpg_infer_fail(infer, "k or weights must be given");
  if (rows->shape.ndim < 0) return MPG_OK;
  if (rows->shape.ndim != 2)
    return mpg_infer_fail(infer, "rows must have 2 axes (tokens * k, units)");
  mpg_shape order = vector(rows->shape.dims[0]), out = {.ndim = 2, .dims = {-1}};
  MPG_TRY(mpg_infer_expect_shape(infer, 1, &order));
  int64_t count = rows->shape.dims[0];
  if (count > INT32_MAX) return mpg_infer_fail(infer, "there must be less than 2^31 rows");
  if (weighted) {
    const mpg_shape *weights = &infer->inputs[2].shape;
    if (weights->ndim < 0) return MPG_OK;
    if (weights->ndim < 2)
      return mpg_infer_fail(infer, "weights must have at least 2 axes (tokens, k)");
    out = *weights;
    int64_t each = weights->dims[weights->ndim - 1], tokens = rows_of(weights);
    if (count >= 0 && tokens >= 0 && each >= 0 && count != tokens * each)
      return mpg_infer_fail(infer, "weights must have one element per row, %lld in total",
                            (long long)count);
  } else if (count >= 0) {
    if (count % p->k)
      return mpg_infer_fail(infer, "rows must have a multiple of k = %lld rows", (long long)p->k);
    out.dims[0] = count / p->k;
  }
  out.dims[out.ndim - 1] = rows->shape.dims[1];
  infer->outputs[0].shape = out;
  return MPG_OK;
}

mpg_status mpg_infer_row_dots(mpg_infer *infer) {
  const mpg_desc *data = &infer->inputs[0];
  infer->outputs[0].dtype = weights_dtype(data->dtype);
  MPG_TRY(mpg_infer_expect_dtype(infer, 1, data->dtype));
  MPG_TRY(mpg_infer_expect_dtype(infer, 2, MPG_INT32));
  if (data->shape.ndim < 0 || infer->inputs[1].shape.ndim < 0) return MPG_OK;
  if (data->shape.ndim < 2 || infer->inputs[1].shape.ndim != 2)
    return mpg_infer_fail(infer, "data must be (..., units) and rows (tokens * k, units)");
  mpg_shape out = data->shape,
            rows = {.ndim = 2, .dims = {infer->inputs[1].shape.dims[0], out.dims[out.ndim - 1]}},
            order = vector(rows.dims[0]);
  MPG_TRY(mpg_infer_expect_shape(infer, 1, &rows));
  MPG_TRY(mpg_infer_expect_shape(infer, 2, &order));
  int64_t k;
  MPG_TRY(rows_per_token(infer, rows.dims[0], rows_of(&out), &k));
  out.dims[out.ndim - 1] = k;
  if (rows_of(&data->shape) == 0) out.dims[out.ndim - 1] = 0; /* k is unknown, and irrelevant */
  infer->outputs[0].shape = out;
  return MPG_OK;
}

/* Checks the part of the groups that has matrices. `counts` is the number of groups, or -1. */
static mpg_status check_groups(const mpg_infer *infer, int64_t first, int64_t groups,
                               int64_t counts) {
  if (groups ? counts < 0 || (groups <= counts && first <= counts - groups) : !first) return MPG_OK;
  return mpg_infer_fail(infer,
                        "counts has %lld elements, but the matrices are of the groups [%lld, "
                        "%lld + %lld); pass both first and groups",
                        (long long)counts, (long long)first, (long long)first, (long long)groups);
}

mpg_status mpg_infer_grouped_dot(mpg_infer *infer) {
  const mpg_grouped_dot_params *p = infer->params;
  const mpg_desc *data = &infer->inputs[0];
  mpg_desc *weight = &infer->inputs[1];
  const mpg_shape *counts = &infer->inputs[2].shape;
  infer->outputs[0].dtype = data->dtype;
  if (data->dtype != MPG_DTYPE_NONE) MPG_TRY(mpg_infer_expect_dtype(infer, 1, data->dtype));
  MPG_TRY(mpg_infer_expect_dtype(infer, 2, MPG_INT32));
  if (data->shape.ndim >= 0 && data->shape.ndim != 2)
    return mpg_infer_fail(infer, "data must have 2 axes (rows, K)");
  if (counts->ndim >= 0 && counts->ndim != 1)
    return mpg_infer_fail(infer, "counts must have 1 axis (groups)");
  MPG_TRY(check_groups(infer, p->first, p->groups, counts->ndim < 0 ? -1 : counts->dims[0]));
  int64_t matrices = p->groups ? p->groups : counts->ndim < 0 ? -1 : counts->dims[0];
  mpg_shape fitting = {.ndim = 3, .dims = {matrices, -1, -1}};
  fitting.dims[p->transpose_b ? 2 : 1] = data->shape.ndim < 0 ? -1 : data->shape.dims[1];
  mpg_shape given = weight->shape;
  if (!mpg_shape_merge(&given, &fitting))
    return mpg_infer_fail(infer,
                          "weight must be (groups, %s), with one matrix per element of "
                          "counts and the K of data",
                          p->transpose_b ? "N, K" : "K, N");
  weight->shape = given;
  mpg_shape groups = vector(given.dims[0]);
  if (!p->groups) MPG_TRY(mpg_infer_expect_shape(infer, 2, &groups));
  infer->outputs[0].shape = (mpg_shape){.ndim = 2,
                                        .dims = {data->shape.ndim < 0 ? -1 : data->shape.dims[0],
                                                 given.dims[p->transpose_b ? 1 : 2]}};
  return MPG_OK;
}

mpg_status mpg_infer_grouped_outer(mpg_infer *infer) {
  const mpg_grouped_outer_params *p = infer->params;
  const mpg_shape *lhs = &infer->inputs[0].shape, *rhs = &infer->inputs[1].shape,
                  *counts = &infer->inputs[2].shape;
  infer->outputs[0].dtype = infer->inputs[0].dtype;
  MPG_TRY(mpg_infer_expect_dtype(infer, 1, infer->inputs[0].dtype));
  MPG_TRY(mpg_infer_expect_dtype(infer, 2, MPG_INT32));
  if (lhs->ndim < 0 || rhs->ndim < 0 || counts->ndim < 0) return MPG_OK;
  if (lhs->ndim != 2 || rhs->ndim != 2 || counts->ndim != 1 || lhs->dims[0] != rhs->dims[0])
    return mpg_infer_fail(infer, "lhs must be (rows, N), rhs (rows, K) and counts (groups,)");
  MPG_TRY(check_groups(infer, p->first, p->groups, counts->dims[0]));
  infer->outputs[0].shape = (mpg_shape){
      .ndim = 3, .dims = {p->groups ? p->groups : counts->dims[0], lhs->dims[1], rhs->dims[1]}};
  return MPG_OK;
}

mpg_status mpg_infer_add_loss(mpg_infer *infer) {
  infer->outputs[0] = infer->inputs[0];
  if (infer->inputs[1].dtype == MPG_DTYPE_NONE || mpg_dtype_is_float(infer->inputs[1].dtype))
    return MPG_OK;
  return mpg_infer_fail(infer, "loss must have a float dtype");
}

/* --- Costs ------------------------------------------------------------------------------------ */

mpg_cost mpg_cost_grouped_dot(const mpg_infer *call) {
  const mpg_shape *data = &call->inputs[0].shape, *out = &call->outputs[0].shape;
  return mpg_cost_of(call, 2.0 * (double)mpg_shape_size(data) * (double)out->dims[1]);
}
mpg_cost mpg_cost_grouped_outer(const mpg_infer *call) {
  const mpg_shape *lhs = &call->inputs[0].shape, *rhs = &call->inputs[1].shape;
  return mpg_cost_of(call, 2.0 * (double)mpg_shape_size(lhs) * (double)rhs->dims[1]);
}

/* --- Gradients -------------------------------------------------------------------------------- */

#define G (g->out_grads[0])

void mpg_gradient_route(mpg_gradient *g) {
  const mpg_route_params *p = g->params;
  mpg_value grad = g->out_grads[2];
  if (!mpg_has_value(grad) || !g->needed[0]) return;
  mpg_route_back_params params = {.router = p->router, .renormalize = p->renormalize};
  g->in_grads[0] = mpg_emit(g, MPG_OP__backward_route, &params, 4,
                            (mpg_value[]){grad, g->inputs[0], g->outputs[2], g->outputs[3]});
}

/* The weights of route as a function of scores, for second-order gradients. */
static void emit_route(mpg_gradient *g, const mpg_value *inputs, mpg_value *outputs) {
  const mpg_route_back_params *p = g->params;
  mpg_value weights = g->inputs[2], experts = g->inputs[3], scores = mpg_widen(g, inputs[0]),
            chosen;
  mpg_shape shape = mpg_value_desc(g, inputs[0])->shape;
  mpg_softmax_params softmax;
  mpg_params_defaults(mpg_op_get(MPG_OP_softmax)->params, &softmax);
  mpg_along_params along = {.axis = shape.ndim - 1, .size = shape.dims[shape.ndim - 1]};
  chosen = p->router == MPG_ROUTER_SIGMOID ? mpg_emit1(g, MPG_OP_sigmoid, NULL, scores)
                                           : mpg_emit1(g, MPG_OP_softmax, &softmax, scores);
  chosen = mpg_emit2(g, MPG_OP__gather_along, &along, chosen, experts);
  if (p->renormalize)
    chosen = mpg_divide(g, chosen, mpg_emit_reduce(g, MPG_OP_sum, chosen, shape.ndim - 1));
  /* A weight of 0 has no gradient. */
  outputs[0] = mpg_multiply(g, chosen, mpg_emit_scalar(g, MPG_OP__not_equal_scalar, weights, 0));
}

void mpg_gradient_route_back(mpg_gradient *g) {
  static const int inputs[] = {1}, out_grads[] = {0};
  mpg_gradient_written_out(g, &(mpg_written_out){1, 1, inputs, out_grads, emit_route});
}

static mpg_value emit_dispatch(mpg_gradient *g, mpg_value data, mpg_value order,
                               mpg_value weights) {
  bool weighted = mpg_has_value(weights);
  mpg_dispatch_params params = {.use_weights = weighted};
  return mpg_emit(g, MPG_OP__contrib_dispatch, &params, 2 + weighted,
                  (mpg_value[]){data, order, weights});
}
/* Emits combine with a result of the given shape. */
static mpg_value emit_combine(mpg_gradient *g, mpg_value rows, mpg_value order, mpg_value weights,
                              const mpg_shape *shape) {
  bool weighted = mpg_has_value(weights);
  int64_t tokens = rows_of(shape), count = mpg_value_desc(g, rows)->shape.dims[0];
  mpg_combine_params params = {.k = weighted || !tokens ? 1 : count / tokens,
                               .use_weights = weighted};
  mpg_value sum = mpg_emit(g, MPG_OP__contrib_combine, &params, 2 + weighted,
                           (mpg_value[]){rows, order, weights});
  return weighted ? sum : mpg_emit_reshape(g, sum, shape);
}
static mpg_value emit_row_dots(mpg_gradient *g, mpg_value data, mpg_value rows, mpg_value order) {
  return mpg_emit3(g, MPG_OP__row_dots, NULL, data, rows, order);
}

void mpg_gradient_dispatch(mpg_gradient *g) {
  mpg_value data = g->inputs[0], order = g->inputs[1],
            weights = g->num_inputs > 2 ? g->inputs[2] : MPG_NO_VALUE;
  mpg_shape shape = mpg_value_desc(g, data)->shape;
  if (!mpg_has_value(G)) return;
  if (!rows_of(&shape)) { /* k is unknown without tokens */
    for (int i = 0; i < g->num_inputs; i += 2)
      if (g->needed[i]) g->in_grads[i] = mpg_emit_full_like(g, g->inputs[i], 0);
    return;
  }
  if (g->needed[0]) g->in_grads[0] = emit_combine(g, G, order, weights, &shape);
  if (g->num_inputs > 2 && g->needed[2]) g->in_grads[2] = emit_row_dots(g, data, G, order);
}

void mpg_gradient_combine(mpg_gradient *g) {
  mpg_value order = g->inputs[1], weights = g->num_inputs > 2 ? g->inputs[2] : MPG_NO_VALUE;
  if (!mpg_has_value(G)) return;
  if (!rows_of(&mpg_value_desc(g, G)->shape)) {
    for (int i = 0; i < g->num_inputs; i += 2)
      if (g->needed[i]) g->in_grads[i] = mpg_emit_full_like(g, g->inputs[i], 0);
    return;
  }
  if (g->needed[0]) g->in_grads[0] = emit_dispatch(g, G, order, weights);
  if (g->num_inputs > 2 && g->needed[2]) g->in_grads[2] = emit_row_dots(g, G, g->inputs[0], order);
}

/* _row_dots(data, rows, order) is linear in data and in rows. Its gradient acts as weights. */
void mpg_gradient_row_dots(mpg_gradient *g) {
  mpg_value data = g->inputs[0], rows = g->inputs[1], order = g->inputs[2];
  mpg_shape shape = mpg_value_desc(g, data)->shape;
  if (!mpg_has_value(G)) return;
  if (g->needed[0])
    g->in_grads[0] =
        rows_of(&shape) ? emit_combine(g, rows, order, G, &shape) : mpg_emit_full_like(g, data, 0);
  if (g->needed[1])
    g->in_grads[1] =
        rows_of(&shape) ? emit_dispatch(g, data, order, G) : mpg_emit_full_like(g, rows, 0);
}

static mpg_value emit_grouped_dot(mpg_gradient *g, mpg_value data, mpg_value weight,
                                  mpg_value counts, bool transpose_b, int64_t first,
                                  int64_t groups) {
  mpg_grouped_dot_params params = {.transpose_b = transpose_b, .first = first, .groups = groups};
  return mpg_emit3(g, MPG_OP__contrib_grouped_dot, &params, data, weight, counts);
}

void mpg_gradient_grouped_dot(mpg_gradient *g) {
  const mpg_grouped_dot_params *p = g->params;
  mpg_grouped_outer_params outer = {.first = p->first, .groups = p->groups};
  mpg_value data = g->inputs[0], weight = g->inputs[1], counts = g->inputs[2];
  if (!mpg_has_value(G)) return;
  if (g->needed[0])
    g->in_grads[0] = emit_grouped_dot(g, G, weight, counts, !p->transpose_b, p->first, p->groups);
  if (g->needed[1])
    g->in_grads[1] = mpg_emit3(g, MPG_OP__grouped_outer, &outer, p->transpose_b ? G : data,
                               p->transpose_b ? data : G, counts);
}

void mpg_gradient_grouped_outer(mpg_gradient *g) {
  const mpg_grouped_outer_params *p = g->params;
  mpg_value lhs = g->inputs[0], rhs = g->inputs[1], counts = g->inputs[2];
  if (!mpg_has_value(G)) return;
  if (g->needed[0]) g->in_grads[0] = emit_grouped_dot(g, rhs, G, counts, true, p->first, p->groups);
  if (g->needed[1])
    g->in_grads[1] = emit_grouped_dot(g, lhs, G, counts, false, p->first, p->groups);
}

void mpg_gradient_add_loss(mpg_gradient *g) {
  const mpg_add_loss_params *p = g->params;
  if (!mpg_has_value(G)) return;
  g->in_grads[0] = mpg_emit_view(g, G);
  if (g->needed[1]) g->in_grads[1] = mpg_emit_full_like(g, g->inputs[1], p->grad_scale);
}

/* --- Batching --------------------------------------------------------------------------------- */
/* The order and the sizes of groups belong to one micro-batch (MPG_BATCH_LOCAL). Each of its rows
 * belongs to one token, so combine restores the order of tokens. mpg_op_batching checks that all
 * LOCAL inputs of an op have the same order. */

static bool is_local(const mpg_batching *b, int input) {
  return b->in[input].kind == MPG_BATCH_LOCAL;
}

/* Returns `outer` of the axes before the last one, as one axis of tokens. */
static int64_t outer_of(const mpg_batching *b, int input) {
  return mpg_shape_product(&b->inputs[input].shape, 0, b->in[input].axis) * b->in[input].outer;
}

/* True if an input has the tokens that the LOCAL input `order` sorts, in the same sequence. */
static bool has_tokens(const mpg_batching *b, int input, int order) {
  return mpg_batching_divided(b, input) && is_local(b, order) &&
         b->in[input].axis < mpg_batching_ndim(b, input) - 1 &&
         outer_of(b, input) == b->in[order].outer;
}

mpg_status mpg_batching_route(mpg_batching *b) {
  const mpg_route_params *p = b->params;
  int first = mpg_batching_first(b);
  if (first) return mpg_batching_fail(b, first, "all rows use this whole input");
  MPG_TRY(mpg_batching_all_along(b, 1, b->in[0].axis));
  if (b->in[0].axis == mpg_batching_ndim(b, 0) - 1) return mpg_batching_fail_along(b, 0);
  if (p->capacity > 0)
    return mpg_batching_fail(b, 0, "the capacity of an expert depends on all tokens");
  b->out[0] = b->out[1] =
      (mpg_batch){.kind = MPG_BATCH_LOCAL, .outer = outer_of(b, 0), .inner = 1, .cause = b->node};
  mpg_batching_set(b, 2, b->in[0].axis, 0);
  mpg_batching_set(b, 3, b->in[0].axis, 0);
  return MPG_OK;
}

mpg_status mpg_batching_dispatch(mpg_batching *b) {
  if (!has_tokens(b, 0, 1) || (mpg_batching_divided(b, 2) && !has_tokens(b, 2, 1)))
    return mpg_batching_fail(b, 1, "order must come from contrib.route for the tokens of data");
  if (b->num_inputs > 2 && !mpg_batching_divided(b, 2))
    return mpg_batching_fail(b, 0, "its weights are the same for every micro-batch");
  b->out[0] = b->in[1];
  return MPG_OK;
}

mpg_status mpg_batching_grouped_dot(mpg_batching *b) {
  if (!is_local(b, 0) || !is_local(b, 2) || b->in[1].kind != MPG_BATCH_SAME)
    return mpg_batching_fail(b, is_local(b, 0) ? 2 : 0,
                             "data must be sorted by contrib.dispatch, and counts must come from "
                             "contrib.route");
  b->out[0] = b->in[0];
  return MPG_OK;
}

mpg_status mpg_batching_combine(mpg_batching *b) {
  if (!is_local(b, 0) || b->num_inputs < 3 || !has_tokens(b, 2, 1))
    return mpg_batching_fail(b, 0, "order and weights must be results of one contrib.route");
  mpg_batching_set(b, 0, b->in[2].axis, 2);
  return MPG_OK;
}

mpg_status mpg_batching_add_loss(mpg_batching *b) {
  int first = mpg_batching_first(b);
  for (int i = 0; i < 2; i++)
    if (b->in[i].kind == MPG_BATCH_SAME)
      return mpg_batching_fail(b, first, "every micro-batch would add the whole loss");
  if (mpg_batching_divided(b, 0)) mpg_batching_set(b, 0, b->in[0].axis, 0);
  return MPG_OK;
}
