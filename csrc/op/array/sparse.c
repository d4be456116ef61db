/* Ops on sparse arrays, composed of ops on dense arrays. */
#include <string.h>

#include "op/formula/arithmetic.h"
#include "op/infer.h"

void mpg_compose_cast_storage(mpg_gradient *g, const mpg_value *inputs, mpg_value *outputs) {
  outputs[0] = mpg_emit1(g, MPG_OP__copy, NULL, inputs[0]);
}

void mpg_compose_sparse_retain(mpg_gradient *g, const mpg_value *inputs, mpg_value *outputs) {
  mpg_shape shape = mpg_value_desc(g, inputs[0])->shape,
            indices = mpg_value_desc(g, inputs[1])->shape;
  if (shape.ndim < 1 || indices.ndim != 1) {
    mpg_gradient_fail(g, "data must have at least one dimension, and indices exactly one");
    return;
  }
  mpg_take_back_params rows;
  memset(&rows, 0, sizeof rows);
  rows.shape = (mpg_tuple){.count = 1, .values = {shape.dims[0]}};
  mpg_shape column = {.ndim = shape.ndim, .dims = {shape.dims[0]}}, none = {0};
  for (int i = 1; i < shape.ndim; i++) column.dims[i] = 1;
  mpg_value ones = mpg_emit_full(g, inputs[0], &indices, MPG_FLOAT32, 1),
            kept = mpg_emit2(g, MPG_OP__backward_take, &rows, ones, inputs[1]);
  mpg_value zero = mpg_emit_full(g, inputs[0], &none, mpg_value_desc(g, inputs[0])->dtype, 0);
  outputs[0] = mpg_emit_where(g, mpg_emit_reshape(g, kept, &column), inputs[0], zero);
}

void mpg_compose_square_sum(mpg_gradient *g, const mpg_value *inputs, mpg_value *outputs) {
  mpg_value squares = mpg_emit1(g, MPG_OP_square, NULL, inputs[0]);
  outputs[0] = mpg_emit_reduction(g, MPG_OP_sum, g->params, squares);
}

void mpg_compose_scatter_scalar(mpg_gradient *g, const mpg_value *inputs, mpg_value *outputs) {
  bool plus = g->op->id == MPG_OP__scatter_plus_scalar;
  outputs[0] =
      mpg_emit1(g, plus ? MPG_OP__plus_scalar : MPG_OP__minus_scalar, g->params, inputs[0]);
}

void mpg_compose_scatter_div(mpg_gradient *g, const mpg_value *inputs, mpg_value *outputs) {
  outputs[0] = mpg_emit2(g, MPG_OP_elemwise_div, NULL, inputs[0], inputs[1]);
}

static mpg_embedding_params as_embedding(const mpg_sparse_embedding_params *params) {
  mpg_embedding_params p;
  memset(&p, 0, sizeof p);
  p.input_dim = params->input_dim;
  p.output_dim = params->output_dim;
  p.dtype = params->dtype;
  p.sparse_grad = true;
  return p;
}

mpg_status mpg_infer_sparse_embedding(mpg_infer *infer) {
  mpg_embedding_params params = as_embedding(infer->params);
  mpg_infer lookup = *infer;
  lookup.params = &params;
  return mpg_infer_embedding(&lookup);
}

void mpg_compose_sparse_embedding(mpg_gradient *g, const mpg_value *inputs, mpg_value *outputs) {
  mpg_embedding_params params = as_embedding(g->params);
  outputs[0] = mpg_emit2(g, MPG_OP_Embedding, &params, inputs[0], inputs[1]);
}

/* --- Products --------------------------------------------------------------------------------- */
mpg_status mpg_infer_add_products(mpg_infer *infer) {
  const mpg_add_products_params *params = infer->params;
  const mpg_shape *values = &infer->inputs[0].shape, *dense = &infer->inputs[3].shape;
  mpg_dtype dtype = infer->inputs[0].dtype;
  infer->outputs[0].dtype = dtype;
  if (dtype == MPG_FLOAT16 || dtype == MPG_BFLOAT16)
    return mpg_infer_fail(infer, "values must be float32 or float64");
  MPG_TRY(mpg_infer_expect_dtype(infer, 3, dtype));
  for (int i = 1; i < 3; i++) MPG_TRY(mpg_infer_expect_dtype(infer, i, MPG_INT64));
  if (!mpg_shape_known(values) || !mpg_shape_known(dense)) return MPG_OK;
  if (values->ndim != 1 || dense->ndim < 1)
    return mpg_infer_fail(infer, "values must be a vector, and the other array must have rows");
  for (int i = 1; i < 3; i++) MPG_TRY(mpg_infer_expect_shape(infer, i, values));
  if (!dense->dims[0] && values->dims[0])
    return mpg_infer_fail(infer, "the dense array has no rows");
  mpg_tuple shape = mpg_shape_tuple(dense);
  shape.values[0] = params->count;
  return mpg_infer_tuple_shape(infer, &shape, &infer->outputs[0].shape);
}

mpg_cost mpg_cost_add_products(const mpg_infer *call) {
  const mpg_shape *dense = &call->inputs[3].shape;
  double width = (double)mpg_shape_product(dense, 1, dense->ndim);
  return mpg_cost_of(call, 2 * width * (double)mpg_shape_size(&call->inputs[0].shape));
}

void mpg_gradient_add_products(mpg_gradient *g) {
  const mpg_shape *dense = &mpg_value_desc(g, g->inputs[3])->shape;
  if (g->needed[3]) {
    mpg_add_products_params back = {.count = dense->dims[0]};
    mpg_value inputs[] = {g->inputs[0], g->inputs[2], g->inputs[1], g->out_grads[0]};
    g->in_grads[3] = mpg_emit(g, MPG_OP__add_products, &back, 4, inputs);
  }
  if (!g->needed[0]) return;
  mpg_shape shape = mpg_value_desc(g, g->inputs[0])->shape,
            rows = {.ndim = 2, .dims = {shape.dims[0], mpg_shape_product(dense, 1, dense->ndim)}};
  mpg_take_params take;
  memset(&take, 0, sizeof take);
  mpg_value products =
      mpg_multiply(g, mpg_emit2(g, MPG_OP_take, &take, g->out_grads[0], g->inputs[1]),
                   mpg_emit2(g, MPG_OP_take, &take, g->inputs[3], g->inputs[2]));
  products = mpg_emit_reduce(g, MPG_OP_sum, mpg_emit_reshape(g, products, &rows), 1);
  g->in_grads[0] = mpg_emit_reshape(g, products, &shape);
}
