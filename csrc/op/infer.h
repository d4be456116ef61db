/* Declarations of the inference rules, costs, gradients and arities that the rows of ops.def name,
 * and helpers that the files of op families share. */
#ifndef MPG_OP_INFER_H
#define MPG_OP_INFER_H

#include "op/op.h"

#define MPG_OP_ROW(id, aliases, inputs, outputs, params, infer, infer_inputs, cost, gradient,      \
                   num_inputs, num_outputs, saves, flags, dtypes, batching, sharding, kernel, doc) \
  mpg_status mpg_infer_##infer(mpg_infer *);                                                       \
  mpg_status mpg_infer_inputs_##infer_inputs(mpg_infer *);                                         \
  mpg_cost mpg_cost_##cost(const mpg_infer *);                                                     \
  void mpg_gradient_##gradient(mpg_gradient *);                                                    \
  int mpg_arity_##num_inputs(const mpg_op *, const void *, int);                                   \
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

/* Gradient of ops that are not differentiable. Fails with an error that names the op. */
void mpg_gradient_missing(mpg_gradient *g);
/* Marks the default arity, one array per name in the row. Never called. */
int mpg_arity_names(const mpg_op *op, const void *params, int given);

/* Shared rules. */
/* Requires all inputs and outputs to have the same shape and dtype, and sets unknown ones. */
mpg_status mpg_infer_same(mpg_infer *infer);
/* Requires all inputs and outputs to have the same dtype, and sets unknown ones. */
mpg_status mpg_infer_same_dtype(mpg_infer *infer);
/* Copies the dtype of input 0 to outputs[0]. Returns true if the shape of input 0 is known. */
static inline bool mpg_infer_begin(mpg_infer *infer) {
  infer->outputs[0].dtype = infer->inputs[0].dtype;
  return mpg_shape_known(&infer->inputs[0].shape);
}
/* Gives a result of `op` without dimensions the shape (1,), as in MXNet, unless the op is NumPy's.
 */
static inline void mpg_lift(const mpg_op *op, mpg_shape *shape) {
  if (shape->ndim == 0 && !mpg_op_is_numpy(op)) *shape = (mpg_shape){.ndim = 1, .dims = {1}};
}
/* Fails unless a dtype of integers holds a number without its fraction. Ops of mx.nd wrap it. */
mpg_status mpg_infer_number(const mpg_infer *infer, const char *name, double value,
                            mpg_dtype dtype);
/* Requires inputs[input].dtype to equal `dtype`, and sets it if it is unknown. */
mpg_status mpg_infer_expect_dtype(mpg_infer *infer, int input, mpg_dtype dtype);
/* Requires inputs[input].shape to match `shape`, and sets its unknown sizes. */
mpg_status mpg_infer_expect_shape(mpg_infer *infer, int input, const mpg_shape *shape);
/* Like mpg_infer_expect_shape, for infer_inputs rules. The error says that the following ops
 * require `shape`. Sizes of `shape` may be unknown. */
mpg_status mpg_infer_input_shape(mpg_infer *infer, int input, const mpg_shape *shape);
/* Converts an mpg_tuple to a shape. Fails if a size is negative or if an array of float64, the
 * widest dtype, would be too large. */
mpg_status mpg_infer_tuple_shape(mpg_infer *infer, const mpg_tuple *tuple, mpg_shape *shape);
/* Returns the total bytes of the inputs and outputs whose contents a call accesses. */
double mpg_cost_bytes(const mpg_infer *call);
enum { MPG_COST_FUNCTION = 10 }; /* floating-point operations per elementary function */
/* Returns the cost of `flops` operations that access all inputs and outputs once. */
static inline mpg_cost mpg_cost_of(const mpg_infer *call, double flops) {
  return (mpg_cost){mpg_cost_bytes(call), flops};
}
/* Sets the shape and dtype of an output. */
static inline void mpg_infer_set(mpg_infer *infer, int output, const mpg_shape *shape,
                                 mpg_dtype dtype) {
  infer->outputs[output].shape = *shape;
  infer->outputs[output].dtype = dtype;
}

#endif
