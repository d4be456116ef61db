/* Reshaping, transposing, repeating and rearranging elements. Inference and gradients. */
#include "op/formula/arithmetic.h"
#include "op/infer.h"
#include "op/array/region.h"

#define PARAMS(structure, name) const mpg_##structure##_params *name = infer->params
#define GRADIENT_PARAMS(structure, name) const mpg_##structure##_params *name = g->params

/* Sets *result to a * b; fails if the product overflows. */
static mpg_status multiply(mpg_infer *infer, int64_t a, int64_t b, int64_t *result) {
  if (__builtin_mul_overflow(a, b, result))
    return mpg_infer_fail(infer, "the result's shape is too large");
  return MPG_OK;
}

/* --- Views ------------------------------------------------------------------------------------ */

/* Codes that nd's reshape lacks: a dimension of size 0, and a dimension of size 1 that is dropped.
 */
enum { CODE_EMPTY = -5, CODE_DROP = -6 };

/* Applies MXNet's reshape codes from left to right. The caller reverses both lists if the codes
 * apply from the right. */
static mpg_status reshape_codes(mpg_infer *infer, const int64_t *in, int in_count,
                                const int64_t *codes, int code_count, int64_t *out,
                                int *out_count) {
  int source = 0, count = 0, inferred = -1;
  int64_t total = 1, rest = 1;
  for (int i = 0; i < in_count; i++) total *= in[i];
#define PUT(dim)                                                                       \
  do {                                                                                 \
    if (count >= MPG_MAX_NDIM)                                                         \
      return mpg_infer_fail(infer, "shape has more than %d dimensions", MPG_MAX_NDIM); \
    out[count++] = (dim);                                                              \
  } while (0)
  for (int i = 0; i < code_count; i++) {
    int64_t code = codes[i];
    if (code == 0) {
      if (source >= in_count)
        return mpg_infer_fail(infer, "0 in shape keeps a dimension that the array does not have");
      PUT(in[source++]);
    } else if (code == -1) {
      if (inferred >= 0) return mpg_infer_fail(infer, "shape has more than one -1");
      inferred = count;
      PUT(1);
      source++;
    } else if (code == -2) {
      while (source < in_count) PUT(in[source++]);
    } else if (code == -3) {
      if (source + 1 >= in_count)
        return mpg_infer_fail(infer,
                              "-3 in shape merges two dimensions that the array does not have");
      PUT(in[source] * in[source + 1]);
      source += 2;
    } else if (code == -4) {
      if (i + 2 >= code_count)
        return mpg_infer_fail(infer, "-4 in shape must be followed by two numbers");
      if (source >= in_count)
        return mpg_infer_fail(infer, "-4 in shape splits a dimension that the array does not have");
      int64_t dim = in[source++], left = codes[++i], right = codes[++i], product;
      if (left == -1 && right == -1)
        return mpg_infer_fail(infer, "only one of the two numbers after -4 can be -1");
      if (left == -1) left = right > 0 ? dim / right : 0;
      if (right == -1) right = left > 0 ? dim / left : 0;
      if (left < 0 || right < 0 || __builtin_mul_overflow(left, right, &product) || product != dim)
        return mpg_infer_fail(infer,
                              "a dimension of size %lld cannot be split into %lld times %lld",
                              (long long)dim, (long long)left, (long long)right);
      PUT(left);
      PUT(right);
    } else if (code == CODE_EMPTY) {
      PUT(0);
      source++;
    } else if (code == CODE_DROP) {
      if (source >= in_count || in[source] != 1)
        return mpg_infer_fail(infer, "the dropped dimension %d does not have size 1", source);
      source++;
    } else {
      PUT(code);
      source++;
    }
  }
#undef PUT
  for (int i = 0; i < count; i++)
    if (i != inferred) MPG_TRY(multiply(infer, rest, out[i], &rest));
  if (inferred >= 0) {
    if (rest == 0 ? total != 0 : total % rest != 0)
      return mpg_infer_fail(infer, "%lld elements cannot be divided into groups of %lld",
                            (long long)total, (long long)rest);
    out[inferred] = rest ? total / rest : 0;
  }
  *out_count = count;
  return MPG_OK;
}

static void reverse_list(int64_t *values, int count) {
  for (int i = 0; i < count / 2; i++) {
    int64_t swap = values[i];
    values[i] = values[count - 1 - i];
    values[count - 1 - i] = swap;
  }
}

static mpg_status same_size(mpg_infer *infer, const mpg_shape *shape) {
  int64_t size = 1;
  for (int i = 0; i < shape->ndim; i++) MPG_TRY(multiply(infer, size, shape->dims[i], &size));
  if (size != mpg_shape_size(&infer->inputs[0].shape)) {
    char text[MPG_SHAPE_TEXT_SIZE];
    return mpg_infer_fail(infer, "the number of elements does not match shape %s",
                          mpg_shape_text(shape, text, sizeof text));
  }
  infer->outputs[0].shape = *shape;
  return MPG_OK;
}

/* Sets *shape from a list of codes, which apply from the right if `reverse` is set. */
static mpg_status shape_of_codes(mpg_infer *infer, int64_t *codes, int count, bool reverse,
                                 mpg_shape *shape) {
  const mpg_shape *in = &infer->inputs[0].shape;
  int64_t dims[MPG_MAX_NDIM];
  for (int i = 0; i < in->ndim; i++) dims[i] = in->dims[i];
  if (reverse) {
    reverse_list(dims, in->ndim);
    reverse_list(codes, count);
    /* The code -4 precedes the two sizes of a split. In the reversed list it follows them, so it
     * is moved back in front of them. */
    for (int i = 0; i + 2 < count; i++)
      if (codes[i + 2] == -4 && codes[i] != -4) {
        int64_t right = codes[i], left = codes[i + 1];
        codes[i] = -4;
        codes[i + 1] = right;
        codes[i + 2] = left;
        i += 2;
      }
  }
  MPG_TRY(reshape_codes(infer, dims, in->ndim, codes, count, shape->dims, &shape->ndim));
  if (reverse) reverse_list(shape->dims, shape->ndim);
  return MPG_OK;
}

/* Infers a reshape of mx.np. codes[-c] is the code of nd's reshape for the number -c. */
static mpg_status infer_newshape(mpg_infer *infer, const mpg_tuple *newshape, bool reverse,
                                 const int64_t *codes, int num_codes) {
  int64_t list[MPG_MAX_TUPLE];
  mpg_shape shape = {0};
  if (!mpg_infer_begin(infer)) return MPG_OK;
  int sizes = 0; /* number of entries that are sizes of a split */
  for (int i = 0; i < newshape->count; i++) {
    int64_t size = newshape->values[i];
    if (sizes > 0) {
      list[i] = size;
      sizes--;
      continue;
    }
    if (size <= -num_codes)
      return mpg_infer_fail(infer, "newshape contains %lld; the least allowed number is %d",
                            (long long)size, 1 - num_codes);
    list[i] = size > 0 ? size : codes[-size];
    if (list[i] == -4) sizes = 2;
  }
  MPG_TRY(shape_of_codes(infer, list, newshape->count, reverse, &shape));
  return same_size(infer, &shape);
}

mpg_status mpg_infer_newshape(mpg_infer *infer) {
  static const int64_t codes[] = {CODE_EMPTY, -1};
  PARAMS(newshape, params);
  return infer_newshape(infer, &params->newshape, false, codes, 2);
}

mpg_status mpg_infer_newshape_codes(mpg_infer *infer) {
  static const int64_t codes[] = {CODE_EMPTY, -1, 0, CODE_DROP, -2, -3, -4};
  PARAMS(newshape_codes, params);
  return infer_newshape(infer, &params->newshape, params->reverse, codes, 7);
}

mpg_status mpg_infer_reshape(mpg_infer *infer) {
  PARAMS(reshape, params);
  if (!mpg_infer_begin(infer)) return MPG_OK;
  const mpg_shape *in = &infer->inputs[0].shape;
  mpg_shape shape = {0};
  if (params->shape.count > 0) {
    int64_t codes[MPG_MAX_TUPLE];
    for (int i = 0; i < params->shape.count; i++) {
      codes[i] = params->shape.values[i];
      if (codes[i] == MPG_TUPLE_NONE) return mpg_infer_fail(infer, "shape contains None");
      if (codes[i] < -4)
        return mpg_infer_fail(
            infer, "shape contains %lld; it must be positive or one of 0, -1, -2, -3 and -4",
            (long long)codes[i]);
    }
    MPG_TRY(shape_of_codes(infer, codes, params->shape.count, params->reverse, &shape));
  } else if (params->target_shape.count > 0) {
    if (params->target_shape.count > MPG_MAX_NDIM)
      return mpg_infer_fail(infer, "target_shape has more than %d dimensions", MPG_MAX_NDIM);
    int inferred = -1;
    int64_t rest = 1, total = mpg_shape_size(in);
    shape.ndim = params->target_shape.count;
    for (int i = 0; i < shape.ndim; i++) {
      shape.dims[i] = i == 0 && params->keep_highest && in->ndim > 0
                          ? in->dims[0]
                          : params->target_shape.values[i];
      if (shape.dims[i] < 0) return mpg_infer_fail(infer, "target_shape has a negative dimension");
      if (shape.dims[i] == 0 && !(i == 0 && params->keep_highest)) {
        if (inferred >= 0) return mpg_infer_fail(infer, "target_shape has more than one 0");
        inferred = i;
      } else {
        MPG_TRY(multiply(infer, rest, shape.dims[i], &rest));
      }
    }
    if (inferred >= 0) shape.dims[inferred] = rest ? total / rest : 0;
  } else {
    shape.ndim = 0; /* a scalar: the array must have one element */
  }
  return same_size(infer, &shape);
}

mpg_status mpg_infer_reshape_like(mpg_infer *infer) {
  PARAMS(reshape_like, params);
  const mpg_shape *rhs = &infer->inputs[1].shape;
  if (!mpg_infer_begin(infer) || !mpg_shape_known(rhs)) return MPG_OK;
  const mpg_shape *lhs = &infer->inputs[0].shape;
  int64_t bounds[4] = {0, lhs->ndim, 0, rhs->ndim};
  const mpg_opt_int *given[4] = {&params->lhs_begin, &params->lhs_end, &params->rhs_begin,
                                 &params->rhs_end};
  for (int i = 0; i < 4; i++) {
    int ndim = i < 2 ? lhs->ndim : rhs->ndim;
    if (given[i]->present)
      bounds[i] = given[i]->value < 0 ? given[i]->value + ndim : given[i]->value;
    if (bounds[i] < 0 || bounds[i] > ndim)
      return mpg_infer_fail(infer, "%lld is not a valid dimension", (long long)given[i]->value);
  }
  if (bounds[0] > bounds[1] || bounds[2] > bounds[3])
    return mpg_infer_fail(infer, "a range of dimensions ends before it begins");
  if (lhs->ndim - (bounds[1] - bounds[0]) + (bounds[3] - bounds[2]) > MPG_MAX_NDIM)
    return mpg_infer_fail(infer, "the result would have more than %d dimensions", MPG_MAX_NDIM);
  mpg_shape shape = {0};
  for (int64_t i = 0; i < bounds[0]; i++) shape.dims[shape.ndim++] = lhs->dims[i];
  for (int64_t i = bounds[2]; i < bounds[3]; i++) shape.dims[shape.ndim++] = rhs->dims[i];
  for (int64_t i = bounds[1]; i < lhs->ndim; i++) shape.dims[shape.ndim++] = lhs->dims[i];
  return same_size(infer, &shape);
}

mpg_status mpg_infer_flatten(mpg_infer *infer) {
  if (!mpg_infer_begin(infer)) return MPG_OK;
  const mpg_shape *in = &infer->inputs[0].shape;
  mpg_shape shape = {.ndim = 2};
  shape.dims[0] = in->ndim > 0 ? in->dims[0] : 1;
  shape.dims[1] = mpg_shape_product(in, 1, in->ndim);
  infer->outputs[0].shape = shape;
  return MPG_OK;
}

mpg_status mpg_infer_expand_dims(mpg_infer *infer) {
  PARAMS(expand_dims, params);
  if (!mpg_infer_begin(infer)) return MPG_OK;
  const mpg_shape *in = &infer->inputs[0].shape;
  if (in->ndim >= MPG_MAX_NDIM)
    return mpg_infer_fail(infer, "an array can have at most %d dimensions", MPG_MAX_NDIM);
  int axis;
  MPG_TRY(mpg_axis_normalize(params->axis, in->ndim + 1, infer->op->name, &axis));
  mpg_shape shape = {.ndim = in->ndim + 1};
  for (int i = 0; i < shape.ndim; i++)
    shape.dims[i] = i < axis ? in->dims[i] : i == axis ? 1 : in->dims[i - 1];
  infer->outputs[0].shape = shape;
  return MPG_OK;
}

mpg_status mpg_infer_squeeze(mpg_infer *infer) {
  PARAMS(squeeze, params);
  if (!mpg_infer_begin(infer)) return MPG_OK;
  const mpg_shape *in = &infer->inputs[0].shape;
  bool drop[MPG_MAX_NDIM] = {false};
  for (int j = 0; j < params->axis.count; j++) {
    int axis;
    /* Like NumPy, accepts axis 0 of an array without dimensions. */
    if (in->ndim == 0 && mpg_op_is_numpy(infer->op) && params->axis.values[j] >= -1 &&
        params->axis.values[j] <= 0)
      continue;
    MPG_TRY(mpg_axis_normalize(params->axis.values[j], in->ndim, infer->op->name, &axis));
    if (in->dims[axis] != 1)
      return mpg_infer_fail(infer, "dimension %d has size %lld, not 1", axis,
                            (long long)in->dims[axis]);
    if (drop[axis]) return mpg_infer_fail(infer, "dimension %d is given twice", axis);
    drop[axis] = true;
  }
  mpg_shape shape = {0};
  for (int i = 0; i < in->ndim; i++)
    if (params->axis.count < 0 ? in->dims[i] != 1 : !drop[i])
      shape.dims[shape.ndim++] = in->dims[i];
  mpg_lift(infer->op, &shape);
  infer->outputs[0].shape = shape;
  return MPG_OK;
}

/* If exactly one input dimension is unknown, infers it from the number of elements, which a reshape
 * does not change. */
mpg_status mpg_infer_inputs_same_size(mpg_infer *infer) {
  mpg_shape *in = &infer->inputs[0].shape;
  const mpg_shape *out = &infer->outputs[0].shape;
  int unknown = -1;
  int64_t size = 1, rest = 1;
  if (in->ndim < 0 || !mpg_shape_known(out)) return MPG_OK;
  for (int i = 0; i < out->ndim; i++)
    if (__builtin_mul_overflow(size, out->dims[i], &size)) return MPG_OK;
  for (int i = 0; i < in->ndim; i++) {
    if (in->dims[i] < 0 && unknown >= 0) return MPG_OK;
    if (in->dims[i] < 0)
      unknown = i;
    else if (__builtin_mul_overflow(rest, in->dims[i], &rest))
      return MPG_OK;
  }
  if (unknown >= 0 && rest > 0 && size % rest == 0) in->dims[unknown] = size / rest;
  return MPG_OK;
}

void mpg_gradient_reshape(mpg_gradient *g) {
  if (g->needed[0])
    g->in_grads[0] = mpg_emit_reshape(g, g->out_grads[0], &mpg_value_desc(g, g->inputs[0])->shape);
}

/* --- Orders of dimensions --------------------------------------------------------------------- */

mpg_status mpg_infer_transpose(mpg_infer *infer) {
  PARAMS(transpose, params);
  infer->outputs[0].dtype = infer->inputs[0].dtype;
  const mpg_shape *in = &infer->inputs[0].shape;
  if (in->ndim < 0) return MPG_OK;
  mpg_shape shape = {.ndim = in->ndim};
  if (params->axes.count > 0 && params->axes.count != in->ndim) {
    mpg_infer_fail(infer, "axes has %d values, but the array has %d dimensions", params->axes.count,
                   in->ndim);
    return MPG_VALUE_ERROR;
  }
  uint32_t seen = 0;
  for (int i = 0; i < in->ndim; i++) {
    int axis = in->ndim - 1 - i;
    if (params->axes.count > 0)
      MPG_TRY(mpg_axis_normalize(params->axes.values[i], in->ndim, infer->op->name, &axis));
    if (seen >> axis & 1) {
      mpg_infer_fail(infer, "axes contains dimension %d twice", axis);
      return MPG_VALUE_ERROR;
    }
    seen |= 1u << axis;
    shape.dims[i] = in->dims[axis];
  }
  infer->outputs[0].shape = shape;
  return MPG_OK;
}

/* Infers the input shape by inverting the permutation. */
mpg_status mpg_infer_inputs_transpose(mpg_infer *infer) {
  PARAMS(transpose, params);
  const mpg_shape *out = &infer->outputs[0].shape;
  mpg_shape wanted = *out;
  if (params->axes.count > 0 && params->axes.count != out->ndim) return MPG_OK;
  for (int i = 0; i < out->ndim; i++) {
    int axis = out->ndim - 1 - i;
    if (params->axes.count > 0)
      MPG_TRY(mpg_axis_normalize(params->axes.values[i], out->ndim, infer->op->name, &axis));
    wanted.dims[axis] = out->dims[i];
  }
  return mpg_infer_input_shape(infer, 0, &wanted);
}

void mpg_gradient_transpose(mpg_gradient *g) {
  GRADIENT_PARAMS(transpose, params);
  mpg_transpose_params inverse = {.axes = {.count = params->axes.count}};
  int ndim = mpg_value_desc(g, g->inputs[0])->shape.ndim;
  for (int i = 0; i < params->axes.count; i++) {
    int64_t axis = params->axes.values[i];
    inverse.axes.values[axis < 0 ? axis + ndim : axis] = i;
  }
  g->in_grads[0] = mpg_emit1(g, MPG_OP_transpose, &inverse, g->out_grads[0]);
}

void mpg_compose_swap_axis(mpg_gradient *g, const mpg_value *inputs, mpg_value *outputs) {
  GRADIENT_PARAMS(swap_axis, params);
  int ndim = mpg_value_desc(g, inputs[0])->shape.ndim, a, b;
  mpg_transpose_params order = {.axes = {.count = ndim}};
  if ((g->status = mpg_axis_normalize(params->dim1, ndim, g->op->name, &a)) != MPG_OK ||
      (g->status = mpg_axis_normalize(params->dim2, ndim, g->op->name, &b)) != MPG_OK)
    return;
  for (int i = 0; i < ndim; i++) order.axes.values[i] = i == a ? b : i == b ? a : i;
  outputs[0] = mpg_emit1(g, MPG_OP_transpose, &order, inputs[0]);
}

mpg_status mpg_infer_reverse(mpg_infer *infer) {
  PARAMS(reverse, params);
  if (!mpg_infer_begin(infer)) return MPG_OK;
  infer->outputs[0].shape = infer->inputs[0].shape;
  uint32_t seen = 0;
  if (params->axis.count < 1 && !mpg_op_is_numpy(infer->op))
    return mpg_infer_fail(infer, "axis must not be empty");
  for (int i = 0; i < params->axis.count; i++) {
    int axis;
    MPG_TRY(mpg_axis_normalize(params->axis.values[i], infer->inputs[0].shape.ndim, infer->op->name,
                               &axis));
    if (seen >> axis & 1) return mpg_infer_fail(infer, "axis contains dimension %d twice", axis);
    seen |= 1u << axis;
  }
  return MPG_OK;
}

void mpg_gradient_reverse(mpg_gradient *g) {
  const mpg_reverse_params *params = g->params;
  mpg_value dy = g->out_grads[0];
  g->in_grads[0] = params->axis.count < 1 ? dy : mpg_emit1(g, MPG_OP_reverse, params, dy);
}

/* --- Repetition ------------------------------------------------------------------------------- */

mpg_status mpg_infer_tile(mpg_infer *infer) {
  PARAMS(tile, params);
  if (!mpg_infer_begin(infer)) return MPG_OK;
  const mpg_shape *in = &infer->inputs[0].shape;
  int reps = params->reps.count;
  if (reps < 0 || reps > MPG_MAX_NDIM)
    return mpg_infer_fail(infer, "reps must have 0 to %d values", MPG_MAX_NDIM);
  mpg_shape shape = {.ndim = in->ndim > reps ? in->ndim : reps};
  for (int i = 0; i < shape.ndim; i++) {
    int from = i - (shape.ndim - in->ndim), rep = i - (shape.ndim - reps);
    int64_t times = rep < 0 ? 1 : params->reps.values[rep];
    if (times < 0) return mpg_infer_fail(infer, "reps contains a negative number or None");
    MPG_TRY(multiply(infer, from < 0 ? 1 : in->dims[from], times, &shape.dims[i]));
  }
  infer->outputs[0].shape = shape;
  return MPG_OK;
}

/* Reshapes `value` to (before, times, after) and sums over the middle axis, which is kept with
 * size 1. */
static mpg_value sum_middle(mpg_gradient *g, mpg_value value, int64_t before, int64_t times,
                            int64_t after) {
  mpg_shape wide = {.ndim = 3, .dims = {before, times, after}},
            narrow = {.ndim = 3, .dims = {before, 1, after}};
  return mpg_emit_sum_to(g, mpg_emit_reshape(g, value, &wide), &narrow);
}

void mpg_gradient_tile(mpg_gradient *g) {
  GRADIENT_PARAMS(tile, params);
  mpg_shape in = mpg_value_desc(g, g->inputs[0])->shape,
            shape = mpg_value_desc(g, g->outputs[0])->shape;
  mpg_value grad = g->out_grads[0];
  for (int i = 0; i < shape.ndim; i++) {
    int from = i - (shape.ndim - in.ndim), rep = i - (shape.ndim - params->reps.count);
    int64_t times = rep < 0 ? 1 : params->reps.values[rep];
    if (times == 1) continue;
    int64_t dim = from < 0 ? 1 : in.dims[from];
    grad = sum_middle(g, grad, mpg_shape_product(&shape, 0, i), times,
                      dim * mpg_shape_product(&shape, i + 1, shape.ndim));
    shape.dims[i] = dim;
  }
  g->in_grads[0] = mpg_emit_reshape(g, grad, &in);
}

mpg_status mpg_infer_repeat(mpg_infer *infer) {
  PARAMS(repeat, params);
  if (!mpg_infer_begin(infer)) return MPG_OK;
  mpg_shape shape = infer->inputs[0].shape;
  int axis = 0;
  if (params->axis.present) {
    MPG_TRY(mpg_axis_normalize(params->axis.value, shape.ndim, infer->op->name, &axis));
  } else {
    shape = (mpg_shape){.ndim = 1, .dims = {mpg_shape_size(&shape)}};
  }
  MPG_TRY(multiply(infer, shape.dims[axis], params->repeats, &shape.dims[axis]));
  infer->outputs[0].shape = shape;
  return MPG_OK;
}

void mpg_gradient_repeat(mpg_gradient *g) {
  GRADIENT_PARAMS(repeat, params);
  mpg_shape in = mpg_value_desc(g, g->inputs[0])->shape;
  int axis = in.ndim - 1;
  if (params->axis.present)
    axis = (int)(params->axis.value < 0 ? params->axis.value + in.ndim : params->axis.value);
  mpg_value grad = sum_middle(g, g->out_grads[0], mpg_shape_product(&in, 0, axis + 1),
                              params->repeats, mpg_shape_product(&in, axis + 1, in.ndim));
  g->in_grads[0] = mpg_emit_reshape(g, grad, &in);
}

/* --- Blocks ----------------------------------------------------------------------------------- */

void mpg_compose_depth_to_space(mpg_gradient *g, const mpg_value *inputs, mpg_value *outputs) {
  int64_t b = ((const mpg_block_params *)g->params)->block_size;
  mpg_shape in = mpg_value_desc(g, inputs[0])->shape;
  int64_t h, w;
  if (in.ndim != 4 || b > INT32_MAX || in.dims[1] % (b * b) ||
      __builtin_mul_overflow(in.dims[2], b, &h) || __builtin_mul_overflow(in.dims[3], b, &w)) {
    mpg_gradient_fail(g,
                      "the array must have 4 dimensions (batch, channel, height, width), and "
                      "block_size * block_size must divide the number of channels");
    return;
  }
  int64_t channels = in.dims[1] / (b * b);
  mpg_shape split = {.ndim = 6, .dims = {in.dims[0], b, b, channels, in.dims[2], in.dims[3]}},
            shape = {.ndim = 4, .dims = {in.dims[0], channels, h, w}};
  outputs[0] = mpg_emit_reshape(g,
                                mpg_emit_transpose(g, mpg_emit_reshape(g, inputs[0], &split), 6,
                                                   (int64_t[]){0, 3, 4, 1, 5, 2}),
                                &shape);
}

void mpg_compose_space_to_depth(mpg_gradient *g, const mpg_value *inputs, mpg_value *outputs) {
  int64_t b = ((const mpg_block_params *)g->params)->block_size;
  mpg_shape in = mpg_value_desc(g, inputs[0])->shape;
  if (in.ndim != 4 || in.dims[2] % b || in.dims[3] % b) {
    mpg_gradient_fail(g,
                      "the array must have 4 dimensions (batch, channel, height, width), and "
                      "block_size must divide height and width");
    return;
  }
  int64_t channels = in.dims[1], h = in.dims[2] / b, w = in.dims[3] / b, blocks;
  if (__builtin_mul_overflow(channels, b, &blocks) || __builtin_mul_overflow(blocks, b, &blocks)) {
    mpg_gradient_fail(g, "the result's shape is too large");
    return;
  }
  mpg_shape split = {.ndim = 6, .dims = {in.dims[0], channels, h, b, w, b}},
            shape = {.ndim = 4, .dims = {in.dims[0], blocks, h, w}};
  outputs[0] = mpg_emit_reshape(g,
                                mpg_emit_transpose(g, mpg_emit_reshape(g, inputs[0], &split), 6,
                                                   (int64_t[]){0, 3, 5, 1, 2, 4}),
                                &shape);
}

/* --- Diagonals -------------------------------------------------------------------------------- */

/* Computes the result shape of diag for an input of at least two dimensions. */
static mpg_status diagonal_shape(mpg_infer *infer, const mpg_shape *in, int64_t k, int64_t axis1,
                                 int64_t axis2, mpg_shape *shape) {
  int a, b;
  MPG_TRY(mpg_axis_normalize(axis1, in->ndim, infer->op->name, &a));
  MPG_TRY(mpg_axis_normalize(axis2, in->ndim, infer->op->name, &b));
  if (a == b) return mpg_infer_fail(infer, "axis1 and axis2 must differ");
  int64_t rows = in->dims[a], columns = in->dims[b];
  if (k > 0) columns = k < columns ? columns - k : 0; /* a diagonal outside the matrix is empty */
  if (k < 0) rows = k > -rows ? rows + k : 0;
  *shape = (mpg_shape){0};
  for (int i = 0; i < in->ndim; i++)
    if (i != a && i != b) shape->dims[shape->ndim++] = in->dims[i];
  shape->dims[shape->ndim++] = rows < columns ? rows : columns;
  return MPG_OK;
}

mpg_status mpg_infer_diag(mpg_infer *infer) {
  PARAMS(diag, params);
  if (!mpg_infer_begin(infer)) return MPG_OK;
  const mpg_shape *in = &infer->inputs[0].shape;
  if (in->ndim == 0) return mpg_infer_fail(infer, "the array has no dimensions");
  if (in->ndim > 1)
    return diagonal_shape(infer, in, params->k, params->axis1, params->axis2,
                          &infer->outputs[0].shape);
  int64_t side;
  if (params->k == INT64_MIN ||
      __builtin_add_overflow(in->dims[0], params->k < 0 ? -params->k : params->k, &side))
    return mpg_infer_fail(infer, "the result's shape is too large");
  infer->outputs[0].shape = (mpg_shape){.ndim = 2, .dims = {side, side}};
  return MPG_OK;
}

void mpg_gradient_diag(mpg_gradient *g) {
  GRADIENT_PARAMS(diag, params);
  const mpg_shape *in = &mpg_value_desc(g, g->inputs[0])->shape;
  if (in->ndim == 1) {
    mpg_diag_params back = {.k = params->k, .axis1 = 0, .axis2 = 1};
    g->in_grads[0] = mpg_emit1(g, MPG_OP_diag, &back, g->out_grads[0]);
    return;
  }
  mpg_diag_back_params back = {
      .k = params->k, .axis1 = params->axis1, .axis2 = params->axis2, .shape = mpg_shape_tuple(in)};
  g->in_grads[0] = mpg_emit1(g, MPG_OP__backward_diag, &back, g->out_grads[0]);
}

mpg_status mpg_infer_diag_back(mpg_infer *infer) {
  PARAMS(diag_back, params);
  mpg_shape shape, diagonal;
  infer->outputs[0].dtype = infer->inputs[0].dtype;
  MPG_TRY(mpg_infer_tuple_shape(infer, &params->shape, &shape));
  if (shape.ndim < 2) return mpg_infer_fail(infer, "shape must have at least 2 dimensions");
  MPG_TRY(diagonal_shape(infer, &shape, params->k, params->axis1, params->axis2, &diagonal));
  MPG_TRY(mpg_infer_expect_shape(infer, 0, &diagonal));
  infer->outputs[0].shape = shape;
  return MPG_OK;
}

void mpg_gradient_diag_back(mpg_gradient *g) {
  GRADIENT_PARAMS(diag_back, params);
  mpg_diag_params forward = {.k = params->k, .axis1 = params->axis1, .axis2 = params->axis2};
  g->in_grads[0] = mpg_emit1(g, MPG_OP_diag, &forward, g->out_grads[0]);
}

/* --- Shapes as arrays ------------------------------------------------------------------------- */

mpg_status mpg_infer_shape_array(mpg_infer *infer) {
  infer->outputs[0].dtype = MPG_INT64;
  if (infer->inputs[0].shape.ndim >= 0)
    infer->outputs[0].shape = (mpg_shape){.ndim = 1, .dims = {infer->inputs[0].shape.ndim}};
  return MPG_OK;
}

mpg_status mpg_infer_size_array(mpg_infer *infer) {
  infer->outputs[0].dtype = MPG_INT64;
  infer->outputs[0].shape = (mpg_shape){0};
  mpg_lift(infer->op, &infer->outputs[0].shape);
  return MPG_OK;
}

bool mpg_op_joins(const mpg_op *op) { return op->id == MPG_OP_Concat; }

bool mpg_op_joins_rows(const mpg_op *op, const void *params) {
  return mpg_op_joins(op) && ((const mpg_concat_params *)params)->dim == 0;
}
