/* Inference rules, gradients and arities named by the rows of ops.def, and helpers the family files
 * share. */
#ifndef MPG_OP_INFER_H
#define MPG_OP_INFER_H

#include "op/op.h"

#define MPG_OP_ROW(id, aliases, inputs, outputs, params, infer, cost, gradient, num_inputs, \
                   num_outputs, saves, flags, dtypes, batching, kernel, doc)                \
  mpg_status mpg_infer_##infer(mpg_infer *);                                                \
  mpg_cost mpg_cost_##cost(const mpg_infer *);                                              \
  void mpg_gradient_##gradient(mpg_gradient *);                                             \
  int mpg_arity_##num_inputs(const mpg_op *, const void *, int);                            \
  int mpg_arity_##num_outputs(const mpg_op *, const void *, int);
#define MPG_COMPOSED_ROW(id, aliases, inputs, outputs, params, infer, compose, num_inputs, \
                         num_outputs, flags, dtypes, doc)                                  \
  mpg_status mpg_infer_##infer(mpg_infer *);                                               \
  void mpg_compose_##compose(mpg_gradient *, const mpg_value *, mpg_value *);              \
  int mpg_arity_##num_inputs(const mpg_op *, const void *, int);                           \
  int mpg_arity_##num_outputs(const mpg_op *, const void *, int);
#include "op/ops.def"
#undef MPG_OP_ROW
#undef MPG_COMPOSED_ROW

/* For rows without a gradient; mpg_op_gradient reports it. */
void mpg_gradient_missing(mpg_gradient *g);
/* As many as there are names. */
int mpg_arity_names(const mpg_op *op, const void *params, int given);
/* The last, optional input ("bias") is there unless the struct's `no_bias` says so: rows whose
 * params begin with no_bias define their own; shared rules live in op/arity.c. */

/* Shared rules. */
/* All inputs and outputs have one shape and dtype (each completes the others). */
mpg_status mpg_infer_same(mpg_infer *infer);
/* All inputs and outputs have one dtype. */
mpg_status mpg_infer_same_dtype(mpg_infer *infer);
/* outputs[0] has the dtype of input 0. Whether that input's shape is known. */
static inline bool mpg_infer_begin(mpg_infer *infer) {
  infer->outputs[0].dtype = infer->inputs[0].dtype;
  return mpg_shape_known(&infer->inputs[0].shape);
}
/* Requires inputs[i].dtype to equal `dtype` (or takes it over when unknown). */
mpg_status mpg_infer_expect_dtype(mpg_infer *infer, int input, mpg_dtype dtype);
/* Requires (or completes) inputs[i].shape. */
mpg_status mpg_infer_expect_shape(mpg_infer *infer, int input, const mpg_shape *shape);
/* A shape from an mpg_tuple, checked: no size is negative, and an array of any dtype may have
 * it. */
mpg_status mpg_infer_tuple_shape(mpg_infer *infer, const mpg_tuple *tuple, mpg_shape *shape);
/* Bytes of a call's inputs and outputs, as far as their contents are touched. */
double mpg_cost_bytes(const mpg_infer *call);
enum { MPG_COST_FUNCTION = 10 }; /* operations that an elementary function counts for */
/* A cost of `flops` operations on all inputs and outputs. */
static inline mpg_cost mpg_cost_of(const mpg_infer *call, double flops) {
  return (mpg_cost){mpg_cost_bytes(call), flops};
}
/* The output-side order of a shape: outputs[i] := desc. */
static inline void mpg_infer_set(mpg_infer *infer, int output, const mpg_shape *shape,
                                 mpg_dtype dtype) {
  infer->outputs[output].shape = *shape;
  infer->outputs[output].dtype = dtype;
}

#endif
