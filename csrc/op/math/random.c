/* Random numbers and dropout: inference and gradients. */
#include <math.h>

#include "op/formula/arithmetic.h"
#include "op/infer.h"
#include "op/invoke.h"
#include "op/math/activation.h"

/* Returns the parameter with this name in an op's struct, or NULL. */
static const void *param(const mpg_infer *infer, const char *name) {
  int index = mpg_params_find(infer->op->params, name);
  return index < 0 ? NULL : (const char *)infer->params + infer->op->params->params[index].offset;
}

static mpg_status created(mpg_infer *infer, mpg_dtype fallback, mpg_dtype_set allowed) {
  const mpg_tuple *tuple = param(infer, "shape");
  int32_t dtype = *(const int32_t *)param(infer, "dtype");
  mpg_shape shape = {0};
  mpg_lift(infer->op, &shape);
  if (tuple->count >= 0) MPG_TRY(mpg_infer_tuple_shape(infer, tuple, &shape));
  if (dtype == MPG_DTYPE_NONE) dtype = fallback;
  if (!(allowed & MPG_DTYPE_BIT(dtype)))
    return mpg_infer_fail(infer, "cannot draw random numbers of dtype %s",
                          mpg_dtype_name((mpg_dtype)dtype));
  mpg_infer_set(infer, 0, &shape, (mpg_dtype)dtype);
  return MPG_OK;
}

/* Checks that the parameters of a distribution are finite and that `low` is not above `high`. */
static mpg_status check_law(const mpg_infer *infer) {
  const mpg_param_table *table = infer->op->params;
  for (int i = 0; i < table->count; i++) {
    if (table->params[i].kind != MPG_PARAM_FLOAT) continue;
    double value = *(const double *)param(infer, table->params[i].name);
    /* An infinite rate is valid: all samples are 0. */
    bool limit = infer->op->id == MPG_OP__random_exponential && value == INFINITY;
    if (!isfinite(value) && !limit)
      return mpg_infer_fail(infer, "parameter %s must be a finite number, not %g",
                            table->params[i].name, value);
  }
  const double *low = param(infer, "low"), *high = param(infer, "high");
  if (!low || *low <= *high) return MPG_OK;
  return mpg_infer_fail(infer, "low must not be above high; they are %g and %g", *low, *high);
}

mpg_status mpg_infer_random(mpg_infer *infer) {
  MPG_TRY(check_law(infer));
  return created(infer, MPG_FLOAT32, MPG_DTYPES_FLOAT);
}

mpg_status mpg_infer_random_like(mpg_infer *infer) {
  MPG_TRY(check_law(infer));
  return mpg_infer_same(infer);
}

mpg_status mpg_infer_randint(mpg_infer *infer) {
  const mpg_randint_params *params = infer->params;
  if (params->low >= params->high)
    return mpg_infer_fail(infer, "low must be below high; they are %lld and %lld",
                          (long long)params->low, (long long)params->high);
  MPG_TRY(created(infer, MPG_INT32, MPG_DTYPES_INTEGER));
  if (infer->outputs[0].dtype == MPG_INT32 &&
      (params->low < INT32_MIN || params->high - 1 > INT32_MAX))
    return mpg_infer_fail(infer,
                          "low %lld and high %lld are out of range for int32; pass dtype='int64'",
                          (long long)params->low, (long long)params->high);
  return MPG_OK;
}

/* Appends the dimensions of a tuple to a shape. */
static mpg_status extend(mpg_infer *infer, mpg_shape *shape, const mpg_tuple *tuple) {
  if (shape->ndim < 0 || tuple->count <= 0) return MPG_OK;
  mpg_shape more;
  MPG_TRY(mpg_infer_tuple_shape(infer, tuple, &more));
  if (shape->ndim + more.ndim > MPG_MAX_NDIM)
    return mpg_infer_fail(infer, "the result would have more than %d dimensions", MPG_MAX_NDIM);
  for (int i = 0; i < more.ndim; i++) shape->dims[shape->ndim++] = more.dims[i];
  return mpg_shape_known(shape) ? mpg_shape_check(shape, MPG_FLOAT64, NULL) : MPG_OK;
}

mpg_status mpg_infer_sample(mpg_infer *infer) {
  const mpg_sample_params *params = infer->params;
  mpg_shape shape = infer->inputs[0].shape;
  if (infer->num_inputs == 2) {
    if (!mpg_shape_merge(&shape, &infer->inputs[1].shape))
      return mpg_infer_fail(infer, "the parameters must have the same shape");
    MPG_TRY(mpg_infer_expect_dtype(infer, 1, infer->inputs[0].dtype));
  }
  MPG_TRY(extend(infer, &shape, &params->shape));
  mpg_dtype dtype =
      params->dtype == MPG_DTYPE_NONE ? infer->inputs[0].dtype : (mpg_dtype)params->dtype;
  if (dtype != MPG_DTYPE_NONE && !mpg_dtype_is_float(dtype))
    return mpg_infer_fail(infer, "cannot draw random numbers of dtype %s", mpg_dtype_name(dtype));
  mpg_infer_set(infer, 0, &shape, dtype);
  return MPG_OK;
}

int mpg_arity_sample_multinomial(const mpg_op *op, const void *params, int given) {
  (void)op, (void)given;
  return ((const mpg_sample_multinomial_params *)params)->get_prob ? 2 : 1;
}

mpg_status mpg_infer_sample_multinomial(mpg_infer *infer) {
  const mpg_sample_multinomial_params *params = infer->params;
  mpg_shape shape = infer->inputs[0].shape;
  if (shape.ndim == 0)
    return mpg_infer_fail(infer, "the probabilities must have at least one dimension");
  if (shape.ndim > 0) {
    int64_t outcomes = shape.dims[--shape.ndim];
    shape.dims[shape.ndim] = 0;
    MPG_TRY(extend(infer, &shape, &params->shape));
    mpg_lift(infer->op, &shape);
    if (outcomes == 0 && mpg_shape_size(&shape) > 0)
      return mpg_infer_fail(infer, "the probabilities must not be empty");
  }
  mpg_infer_set(infer, 0, &shape, (mpg_dtype)params->dtype);
  if (infer->num_outputs == 2) mpg_infer_set(infer, 1, &shape, infer->inputs[0].dtype);
  return MPG_OK;
}

/* Output 1 is the log probability of each sampled index. Its gradient is 1 / probability at that
 * index and 0 elsewhere. */
void mpg_gradient_sample_multinomial(mpg_gradient *g) {
  if (g->num_outputs < 2 || !mpg_has_value(g->out_grads[1]) || g->status != MPG_OK) return;
  mpg_shape data = mpg_value_desc(g, g->inputs[0])->shape,
            draws = mpg_value_desc(g, g->outputs[0])->shape;
  int64_t outcomes = data.dims[data.ndim - 1], rows = mpg_shape_product(&data, 0, data.ndim - 1);
  mpg_shape flat = {.ndim = 1, .dims = {rows * outcomes}}, first = {.ndim = 2, .dims = {rows, 1}},
            drawn = {.ndim = 2, .dims = {rows, rows ? mpg_shape_size(&draws) / rows : 0}};
  mpg_value starts = mpg_emit_count(g, g->inputs[0], rows, MPG_INT64, &first);
  mpg_value index = mpg_emit_reshape(g, mpg_emit_cast(g, g->outputs[0], MPG_INT64), &drawn);
  mpg_value place =
      mpg_emit2(g, MPG_OP_broadcast_add, NULL, index, mpg_times(g, starts, (double)outcomes));
  mpg_take_params take = {.axis = 0, .mode = 1};
  mpg_take_back_params put = {.axis = 0, .mode = 1, .shape = mpg_shape_tuple(&flat)};
  mpg_value chance =
      mpg_emit2(g, MPG_OP_take, &take, mpg_emit_reshape(g, g->inputs[0], &flat), place);
  mpg_value slope = mpg_divide(g, mpg_emit_reshape(g, g->out_grads[1], &drawn), chance);
  g->in_grads[0] =
      mpg_emit_reshape(g, mpg_emit2(g, MPG_OP__backward_take, &put, slope, place), &data);
}

/* --- Dropout ---------------------------------------------------------------------------------- */

static bool drops(const mpg_dropout_params *params, bool train) {
  enum { TRAINING, ALWAYS };
  return (train || params->mode == ALWAYS) && params->p > 0;
}

/* The mask has one byte per random number. It is empty if the call does not drop elements. */
mpg_status mpg_infer_dropout(mpg_infer *infer) {
  const mpg_dropout_params *params = infer->params;
  const mpg_desc *data = &infer->inputs[0];
  mpg_shape mask = data->shape;
  if (!drops(params, infer->train))
    mask = (mpg_shape){.ndim = 1, .dims = {0}};
  else if (mask.ndim >= 0) {
    for (int k = 0; k < params->axes.count; k++) {
      int axis;
      MPG_TRY(mpg_axis_normalize(params->axes.values[k], mask.ndim, infer->op->name, &axis));
      if (mask.dims[axis] > 1) mask.dims[axis] = 1;
    }
  }
  mpg_infer_set(infer, 0, &data->shape, data->dtype);
  mpg_infer_set(infer, 1, &mask, MPG_UINT8);
  return MPG_OK;
}

enum { DRAW_WORDS = 5 }; /* saved mpg_random_key fields: all except `first` */

/* Checks that an array could exist that has `part` as a part and `total` elements along the axis.
 */
static mpg_status check_whole(mpg_shape part, int axis, int64_t total) {
  part.dims[axis] = total;
  return mpg_shape_known(&part) ? mpg_shape_check(&part, MPG_FLOAT64, NULL) : MPG_OK;
}

mpg_status mpg_infer_dropout_draw(mpg_infer *infer) {
  const mpg_dropout_draw_params *params = infer->params;
  const mpg_shape *data = &infer->inputs[0].shape;
  int axis;
  if (data->ndim >= 0) {
    MPG_TRY(mpg_axis_normalize(params->axis, data->ndim, infer->op->name, &axis));
    MPG_TRY(check_whole(*data, axis, params->total));
  }
  mpg_infer_set(infer, 0, &(mpg_shape){.ndim = 1, .dims = {DRAW_WORDS}}, MPG_INT64);
  return MPG_OK;
}

mpg_status mpg_infer_dropout_part(mpg_infer *infer) {
  const mpg_dropout_part_params *params = infer->params;
  const mpg_desc *data = &infer->inputs[0];
  mpg_shape mask = data->shape;
  MPG_TRY(mpg_infer_expect_dtype(infer, 1, MPG_INT64));
  const mpg_shape *draw = &infer->inputs[1].shape;
  if (mpg_shape_known(draw) && (draw->ndim != 1 || draw->dims[0] != DRAW_WORDS))
    return mpg_infer_fail(infer, "draw must be the result of _dropout_draw");
  int axis;
  if (data->shape.ndim >= 0) {
    MPG_TRY(mpg_axis_normalize(params->axis, data->shape.ndim, infer->op->name, &axis));
    if (data->shape.dims[axis] >= 0 &&
        (params->begin > params->total || data->shape.dims[axis] > params->total - params->begin))
      return mpg_infer_fail(
          infer, "%lld elements along axis %d from %lld on are out of range for size %lld",
          (long long)data->shape.dims[axis], axis, (long long)params->begin,
          (long long)params->total);
    MPG_TRY(check_whole(data->shape, axis, params->total));
  }
  if (!infer->train || !(params->p > 0)) mask = (mpg_shape){.ndim = 1, .dims = {0}};
  mpg_infer_set(infer, 0, &data->shape, data->dtype);
  mpg_infer_set(infer, 1, &mask, MPG_UINT8);
  return MPG_OK;
}

void mpg_gradient_dropout_part(mpg_gradient *g) {
  const mpg_dropout_part_params *params = g->params;
  mpg_dropout_params whole = {.p = params->p};
  if (!g->needed[0]) return;
  g->in_grads[0] = g->train && params->p > 0
                       ? mpg_emit2(g, MPG_OP__dropout_apply, &whole, g->out_grads[0], g->outputs[1])
                       : g->out_grads[0];
}

mpg_status mpg_infer_dropout_apply(mpg_infer *infer) {
  const mpg_shape *data = &infer->inputs[0].shape, *mask = &infer->inputs[1].shape;
  MPG_TRY(mpg_infer_expect_dtype(infer, 1, MPG_UINT8));
  if (mpg_shape_known(data) && mpg_shape_known(mask)) {
    bool fits = mask->ndim == data->ndim;
    for (int i = 0; fits && i < data->ndim; i++)
      fits = mask->dims[i] == data->dims[i] || mask->dims[i] == 1;
    if (!fits)
      return mpg_infer_fail(
          infer, "the mask must have the shape of data, or size 1 along some of its axes");
  }
  mpg_infer_set(infer, 0, data, infer->inputs[0].dtype);
  return MPG_OK;
}

void mpg_gradient_dropout(mpg_gradient *g) {
  const mpg_dropout_params *params = g->params;
  g->in_grads[0] = drops(params, g->train)
                       ? mpg_emit2(g, MPG_OP__dropout_apply, params, g->out_grads[0], g->outputs[1])
                       : g->out_grads[0];
}

void mpg_gradient_dropout_apply(mpg_gradient *g) {
  if (g->needed[0])
    g->in_grads[0] = mpg_emit2(g, MPG_OP__dropout_apply, g->params, g->out_grads[0], g->inputs[1]);
}

bool mpg_op_draws(const mpg_op *op, const void *params, bool train) {
  if (!(op->flags & MPG_OP_RANDOM)) return false;
  switch ((int)op->id) {
    case MPG_OP_Dropout: return drops(params, train);
    case MPG_OP__dropout_draw: return train;
    case MPG_OP_LeakyReLU:
      return train && ((const mpg_leaky_relu_params *)params)->act_type == MPG_LEAKY_RRELU;
    case MPG_OP_RNN:
    case MPG_OP__rnn: {
      const mpg_rnn_params *rnn = params;
      return train && rnn->p > 0 && rnn->num_layers > 1;
    }
    default: return true;
  }
}

mpg_shape mpg_op_drawn_shape(const mpg_op *op, const void *params, const mpg_shape *input,
                             const mpg_shape *output) {
  if (op->id == MPG_OP__dropout_attention) { /* one draw per attention score */
    const int64_t *sizes = ((const mpg_attention_params *)params)->sizes.values;
    return (mpg_shape){.ndim = 4, .dims = {sizes[0], sizes[1], sizes[2], sizes[3]}};
  }
  if (op->id == MPG_OP__dropout_head_attention) {
    const mpg_head_attention_params *p = params;
    int time = p->layout == 0 ? 1 : 2;
    return (mpg_shape){.ndim = 4,
                       .dims = {input->dims[0], input->dims[3 - time], input->dims[time], p->keys}};
  }
  if (op->id != MPG_OP__dropout_draw) return *output;
  /* The input of _dropout_draw is one part of an array that has `total` elements along `axis`. The
   * random numbers are drawn for the whole array, so they do not depend on how it is divided. */
  const mpg_dropout_draw_params *p = params;
  mpg_shape drawn = *input;
  drawn.dims[p->axis < 0 ? p->axis + drawn.ndim : p->axis] = p->total;
  return drawn;
}
