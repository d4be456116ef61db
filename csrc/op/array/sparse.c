/* Ops on sparse arrays, of dense ones. */
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
    mpg_gradient_fail(g, "data has at least one dimension, and indices has one");
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
  outputs[0] = mpg_emit1(g, MPG_OP_sum, g->params, mpg_emit1(g, MPG_OP_square, NULL, inputs[0]));
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
