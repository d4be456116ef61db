/* Shape and dtype inference of the optimizer update ops, which have no gradients. */
#include "op/formula/arithmetic.h"
#include "op/infer.h"

/* Checks that input `i` has the shape of the weight, and the dtype float32 if `single`, otherwise
 * the dtype of the weight. */
static mpg_status like_weight(mpg_infer *infer, int weight, int i, bool single) {
  mpg_shape shape = infer->inputs[weight].shape;
  if (mpg_shape_known(&shape)) MPG_TRY(mpg_infer_expect_shape(infer, i, &shape));
  mpg_dtype dtype = single ? MPG_FLOAT32 : infer->inputs[weight].dtype;
  return dtype == MPG_DTYPE_NONE ? MPG_OK : mpg_infer_expect_dtype(infer, i, dtype);
}

mpg_status mpg_infer_update(mpg_infer *infer) {
  for (int i = 1; i < infer->num_inputs; i++) MPG_TRY(like_weight(infer, 0, i, false));
  mpg_infer_set(infer, 0, &infer->inputs[0].shape, infer->inputs[0].dtype);
  return MPG_OK;
}

mpg_status mpg_infer_update_mixed(mpg_infer *infer) {
  for (int i = 1; i < infer->num_inputs; i++) MPG_TRY(like_weight(infer, 0, i, i > 1));
  bool direction = infer->op->id == MPG_OP_mp_lamb_update_phase1;
  mpg_infer_set(infer, 0, &infer->inputs[0].shape,
                direction ? MPG_FLOAT32 : infer->inputs[0].dtype);
  return MPG_OK;
}

static mpg_status one_value(mpg_infer *infer, int i) {
  const mpg_shape *shape = &infer->inputs[i].shape;
  if (mpg_shape_known(shape) && mpg_shape_size(shape) != 1)
    return mpg_infer_fail(infer, "input %d must have one value", i);
  return MPG_OK;
}

mpg_status mpg_infer_adamw(mpg_infer *infer) {
  for (int i = 1; i < 4; i++) MPG_TRY(like_weight(infer, 0, i, false));
  MPG_TRY(one_value(infer, 4));
  mpg_infer_set(infer, 0, &infer->inputs[0].shape, infer->inputs[0].dtype);
  return MPG_OK;
}

mpg_status mpg_infer_adamw_mixed(mpg_infer *infer) {
  for (int i = 1; i < 5; i++) MPG_TRY(like_weight(infer, 0, i, i > 1));
  MPG_TRY(one_value(infer, 5));
  mpg_infer_set(infer, 0, &infer->inputs[0].shape, infer->inputs[0].dtype);
  return MPG_OK;
}

mpg_status mpg_infer_lamb_phase2(mpg_infer *infer) {
  MPG_TRY(like_weight(infer, 0, 1, false));
  for (int i = 2; i < 4; i++) {
    MPG_TRY(one_value(infer, i));
    MPG_TRY(mpg_infer_expect_dtype(infer, i, infer->inputs[0].dtype));
  }
  mpg_infer_set(infer, 0, &infer->inputs[0].shape, infer->inputs[0].dtype);
  return MPG_OK;
}

mpg_status mpg_infer_lamb_phase2_mixed(mpg_infer *infer) {
  MPG_TRY(like_weight(infer, 0, 1, true));
  MPG_TRY(like_weight(infer, 0, 4, true));
  for (int i = 2; i < 4; i++) {
    MPG_TRY(one_value(infer, i));
    MPG_TRY(mpg_infer_expect_dtype(infer, i, MPG_FLOAT32));
  }
  mpg_infer_set(infer, 0, &infer->inputs[0].shape, infer->inputs[0].dtype);
  return MPG_OK;
}

/* --- Several weights -------------------------------------------------------------------------- */

static int64_t num_weights(const mpg_op *op, const void *params) {
  int index = mpg_params_find(op->params, "num_weights");
  return *(const int64_t *)((const char *)params + op->params->params[index].offset);
}

int mpg_arity_num_weights(const mpg_op *op, const void *params, int given) {
  (void)given;
  int64_t count = num_weights(op, params);
  return count > MPG_MAX_OUTPUTS ? MPG_MAX_OUTPUTS : (int)count;
}

/* Infers an update of several weights. Each weight has `per_weight` inputs: the weight, its
 * gradient and its states. If `mixed`, the states are float32. `extra` is 2 if two more inputs, the
 * learning rates and the weight decays, follow; otherwise it is 0. */
static mpg_status infer_multi(mpg_infer *infer, int per_weight, bool mixed, int extra) {
  int64_t weights = num_weights(infer->op, infer->params);
  if (infer->num_outputs != weights)
    return mpg_infer_fail(infer, "num_weights must be at most %d", MPG_MAX_OUTPUTS);
  if (infer->num_inputs != weights * per_weight + extra)
    return mpg_infer_fail(infer, "%lld weights need %lld arrays, %d each%s; got %d",
                          (long long)weights, (long long)(weights * per_weight + extra), per_weight,
                          extra ? " plus 2 shared ones" : "", infer->num_inputs);
  for (int k = 0; k < weights; k++) {
    int first = k * per_weight;
    for (int j = 1; j < per_weight; j++)
      MPG_TRY(like_weight(infer, first, first + j, mixed && j > 1));
    mpg_infer_set(infer, k, &infer->inputs[first].shape, infer->inputs[first].dtype);
  }
  if (extra) {
    for (int j = 0; j < 2; j++) {
      int i = (int)weights * per_weight + j;
      MPG_TRY(mpg_infer_expect_dtype(infer, i, MPG_FLOAT32));
      if (mpg_shape_known(&infer->inputs[i].shape) &&
          mpg_shape_size(&infer->inputs[i].shape) != weights)
        return mpg_infer_fail(
            infer, "the arrays of learning rates and weight decays must have %lld values",
            (long long)weights);
    }
    return MPG_OK;
  }
  for (int j = 0; j < 2; j++) { /* lrs and wds are the first parameters of all these structs */
    const mpg_floats *values =
        (const mpg_floats *)((const char *)infer->params + infer->op->params->params[j].offset);
    if (values->count != weights)
      return mpg_infer_fail(infer, "%s must have %lld values, not %d",
                            infer->op->params->params[j].name, (long long)weights, values->count);
  }
  return MPG_OK;
}

/* The number in each name is the number of inputs per weight. */
mpg_status mpg_infer_multi_2(mpg_infer *infer) { return infer_multi(infer, 2, false, 0); }
mpg_status mpg_infer_multi_3(mpg_infer *infer) { return infer_multi(infer, 3, false, 0); }
mpg_status mpg_infer_multi_4(mpg_infer *infer) { return infer_multi(infer, 4, false, 0); }
mpg_status mpg_infer_multi_5(mpg_infer *infer) { return infer_multi(infer, 5, false, 0); }
mpg_status mpg_infer_multi_mixed_3(mpg_infer *infer) { return infer_multi(infer, 3, true, 0); }
mpg_status mpg_infer_multi_mixed_4(mpg_infer *infer) { return infer_multi(infer, 4, true, 0); }
mpg_status mpg_infer_multi_mixed_5(mpg_infer *infer) { return infer_multi(infer, 5, true, 0); }
mpg_status mpg_infer_multi_mixed_6(mpg_infer *infer) { return infer_multi(infer, 6, true, 0); }
mpg_status mpg_infer_preloaded_2(mpg_infer *infer) { return infer_multi(infer, 2, false, 2); }
mpg_status mpg_infer_preloaded_3(mpg_infer *infer) { return infer_multi(infer, 3, false, 2); }
mpg_status mpg_infer_preloaded_mixed_3(mpg_infer *infer) { return infer_multi(infer, 3, true, 2); }
mpg_status mpg_infer_preloaded_mixed_4(mpg_infer *infer) { return infer_multi(infer, 4, true, 2); }

/* --- LARS ------------------------------------------------------------------------------------- */

/* LARS learning rate: lr * eta * |w| / (|g| * rescale + wd * |w| + eps), or lr if a norm is 0. */
void mpg_compose_multi_lars(mpg_gradient *g, const mpg_value *inputs, mpg_value *outputs) {
  const mpg_multi_lars_params *p = g->params;
  for (int i = 1; i < 4; i++)
    if (!mpg_shape_equal(&mpg_value_desc(g, inputs[i])->shape,
                         &mpg_value_desc(g, inputs[0])->shape)) {
      mpg_gradient_fail(g, "the number of elements must be the same in each array");
      return;
    }
  mpg_value weight = mpg_emit1(g, MPG_OP_sqrt, NULL, inputs[1]),
            grad = mpg_emit1(g, MPG_OP_sqrt, NULL, inputs[2]);
  mpg_value divisor =
      mpg_add(g, mpg_times(g, grad, p->rescale_grad), mpg_multiply(g, inputs[3], weight));
  mpg_value rate = mpg_divide(g, mpg_times(g, mpg_multiply(g, inputs[0], weight), p->eta),
                              mpg_plus(g, divisor, p->eps));
  mpg_value both = mpg_multiply(g, mpg_emit_scalar(g, MPG_OP__greater_scalar, weight, 0),
                                mpg_emit_scalar(g, MPG_OP__greater_scalar, grad, 0));
  outputs[0] = mpg_emit_where(g, both, rate, inputs[0]);
}

/* --- Checks and sums -------------------------------------------------------------------------- */

static mpg_status expect_count(mpg_infer *infer, int64_t count) {
  if (count == infer->num_inputs) return MPG_OK;
  return mpg_infer_fail(infer, "num_arrays is %lld, but %d arrays are given", (long long)count,
                        infer->num_inputs);
}

mpg_status mpg_infer_multi_sum_sq(mpg_infer *infer) {
  MPG_TRY(expect_count(infer, ((const mpg_num_arrays_params *)infer->params)->num_arrays));
  for (int i = 1; i < infer->num_inputs; i++)
    MPG_TRY(mpg_infer_expect_dtype(infer, i, infer->inputs[0].dtype));
  mpg_shape shape = {.ndim = 1, .dims = {infer->num_inputs}};
  mpg_infer_set(infer, 0, &shape, MPG_FLOAT32);
  return MPG_OK;
}

mpg_status mpg_infer_all_finite(mpg_infer *infer) {
  if (infer->op->id == MPG_OP_multi_all_finite)
    MPG_TRY(expect_count(infer, ((const mpg_multi_all_finite_params *)infer->params)->num_arrays));
  for (int i = 1; i < infer->num_inputs; i++)
    MPG_TRY(mpg_infer_expect_dtype(infer, i, infer->inputs[0].dtype));
  mpg_shape shape = {.ndim = 1, .dims = {1}};
  mpg_infer_set(infer, 0, &shape, MPG_FLOAT32);
  return MPG_OK;
}

mpg_status mpg_infer_reset_arrays(mpg_infer *infer) {
  return expect_count(infer, ((const mpg_num_arrays_params *)infer->params)->num_arrays);
}

mpg_status mpg_infer_multi_scale(mpg_infer *infer) {
  MPG_TRY(expect_count(infer, ((const mpg_num_arrays_params *)infer->params)->num_arrays));
  int last = infer->num_inputs - 1;
  MPG_TRY(mpg_infer_expect_dtype(infer, last, MPG_FLOAT32));
  return mpg_infer_expect_shape(infer, last, &(mpg_shape){.ndim = 1, .dims = {1}});
}
