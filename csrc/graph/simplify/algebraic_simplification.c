/* Algebraic simplification: finds nodes whose result is bit-identical to an existing value. The
 * conditions for -0.0, NaN, dtypes and rounding are stated at each rule. */
#include <math.h>
#include <string.h>

#include "graph/simplify/simplify.h"

static const mpg_node *source_of(const mpg_graph *graph, mpg_value value) {
  return &graph->nodes[value.node];
}

static const mpg_desc *desc_of(const mpg_graph *graph, mpg_value value) {
  return &mpg_graph_at(graph, value)->desc;
}

static bool same_array(const mpg_graph *graph, mpg_value value, const mpg_node *node) {
  const mpg_graph_value *from = mpg_graph_at(graph, value), *to = &graph->values[node->values];
  return from->desc.dtype == to->desc.dtype &&
         mpg_shape_equal(&from->desc.shape, &to->desc.shape) &&
         mpg_device_id_equal(from->device, to->device);
}

/* True if the op with this scalar returns its input unchanged. Excludes x + 0.0 and x - -0.0,
 * because they turn -0.0 into 0.0. Excludes division and power of integers, because they are not
 * computed in integers. */
static bool neutral(const mpg_op *op, double scalar, mpg_dtype dtype) {
  bool real = mpg_dtype_is_float(dtype);
  switch (op->id) {
    case MPG_OP__plus_scalar: return scalar == 0 && (!real || signbit(scalar));
    case MPG_OP__minus_scalar: return scalar == 0 && (!real || !signbit(scalar));
    case MPG_OP__mul_scalar: return scalar == 1;
    case MPG_OP__div_scalar:
    case MPG_OP__power_scalar: return scalar == 1 && real;
    default: return false;
  }
}

/* True if the node flips the sign of every float, including zeros. */
static bool turns_sign(const mpg_graph *graph, const mpg_node *node) {
  bool turns = node->op && (node->op->id == MPG_OP_negative ||
                            (node->op->id == MPG_OP__mul_scalar &&
                             ((const mpg_scalar_params *)node->params)->scalar == -1));
  return turns && mpg_dtype_is_float(graph->values[node->values].desc.dtype);
}

/* Sets from[i] to the input axis that becomes axis i of the result. Returns false unless the node
 * is a transpose. */
static bool permutation(const mpg_graph *graph, const mpg_node *node, int *from) {
  if (!node->op || node->op->id != MPG_OP_transpose) return false;
  const mpg_tuple *axes = &((const mpg_transpose_params *)node->params)->axes;
  int ndim = desc_of(graph, mpg_node_inputs(graph, node)[0])->shape.ndim;
  for (int i = 0; i < ndim; i++) {
    int64_t axis = axes->count > 0 ? axes->values[i] : ndim - 1 - i;
    from[i] = (int)(axis < 0 ? axis + ndim : axis);
  }
  return true;
}

static mpg_value undone_permutation(const mpg_graph *graph, const mpg_node *node) {
  int outer[MPG_MAX_NDIM], inner[MPG_MAX_NDIM];
  if (!permutation(graph, node, outer)) return MPG_NO_VALUE;
  mpg_value input = mpg_node_inputs(graph, node)[0];
  int ndim = desc_of(graph, input)->shape.ndim;
  bool twice = permutation(graph, source_of(graph, input), inner), once_same = true,
       twice_same = twice;
  for (int i = 0; i < ndim; i++) {
    once_same &= outer[i] == i;
    if (twice) twice_same &= inner[outer[i]] == i;
  }
  if (once_same) return input;
  return twice_same ? mpg_node_inputs(graph, source_of(graph, input))[0] : MPG_NO_VALUE;
}

/* True if clip returns its input, because the limits are infinite or the input was clipped to
 * tighter limits. This includes NaN and -0.0, which clip keeps. Limits are rounded to the array's
 * dtype, which keeps their order. */
static bool clips_nothing(const mpg_graph *graph, const mpg_node *node) {
  const mpg_clip_params *p = node->params;
  mpg_value input = mpg_node_inputs(graph, node)[0];
  if (!mpg_dtype_is_float(desc_of(graph, input)->dtype)) return false;
  if (p->a_min == -INFINITY && p->a_max == INFINITY) return true;
  const mpg_node *source = source_of(graph, input);
  if (!source->op || source->op->id != MPG_OP_clip) return false;
  const mpg_clip_params *q = source->params;
  return p->a_min <= fmin(q->a_min, q->a_max) && p->a_max >= fmax(q->a_min, q->a_max) &&
         !isnan(q->a_min) && !isnan(q->a_max);
}

static bool forward_steps(const mpg_tuple *step) {
  for (int i = 0; i < step->count; i++)
    if (step->values[i] != MPG_TUPLE_NONE && step->values[i] < 0) return false;
  return true;
}

/* True if every number of `from` can be represented in `to`. */
static bool holds_all(mpg_dtype from, mpg_dtype to) {
  if (from == to) return true;
  switch (from) {
    case MPG_FLOAT16:
    case MPG_BFLOAT16: return to == MPG_FLOAT32 || to == MPG_FLOAT64;
    case MPG_FLOAT32: return to == MPG_FLOAT64;
    case MPG_INT8:
    case MPG_UINT8:
      return to == MPG_INT32 || to == MPG_INT64 || to == MPG_FLOAT32 || to == MPG_FLOAT64;
    case MPG_INT32: return to == MPG_INT64 || to == MPG_FLOAT64;
    default: return false;
  }
}

static bool is_cast(const mpg_node *node) {
  return node->op && (node->op->id == MPG_OP_Cast || node->op->id == MPG_OP_amp_cast);
}

mpg_value mpg_graph_uncast(const mpg_graph *graph, const mpg_node *node) {
  if (!is_cast(node)) return MPG_NO_VALUE;
  mpg_value input = mpg_node_inputs(graph, node)[0];
  const mpg_node *source = source_of(graph, input);
  if (!is_cast(source)) return MPG_NO_VALUE;
  mpg_value origin = mpg_node_inputs(graph, source)[0];
  mpg_dtype from = desc_of(graph, origin)->dtype, through = desc_of(graph, input)->dtype,
            to = graph->values[node->values].desc.dtype;
  /* If the intermediate dtype holds every value, the casts are merged if the result has the
   * original dtype, or if the outer op is a Cast and both ends are floats. Integers are excluded
   * because out-of-range numbers convert differently from integers and from floats. amp_cast is
   * excluded because it leaves some dtypes unconverted. */
  bool alike = from == to ||
               (node->op->id == MPG_OP_Cast && mpg_dtype_is_float(from) && mpg_dtype_is_float(to));
  return holds_all(from, through) && alike ? origin : MPG_NO_VALUE;
}

/* Returns the nearest earlier value in the node's chain of views that has the node's shape, or
 * MPG_NO_VALUE. */
static mpg_value skip_views(const mpg_graph *graph, const mpg_node *node) {
  for (const mpg_node *at = node; mpg_node_is_view(at);) {
    mpg_value input = mpg_node_inputs(graph, at)[0];
    if (same_array(graph, input, node)) return input;
    at = source_of(graph, input);
  }
  return MPG_NO_VALUE;
}

static mpg_value undone_negation(const mpg_graph *graph, const mpg_node *node) {
  const mpg_node *source = source_of(graph, mpg_node_inputs(graph, node)[0]);
  return turns_sign(graph, node) && turns_sign(graph, source) ? mpg_node_inputs(graph, source)[0]
                                                              : MPG_NO_VALUE;
}

/* True if the result, which has the input's shape and dtype, equals the input. */
static bool gives_input(const mpg_graph *graph, const mpg_node *node) {
  mpg_value input = mpg_node_inputs(graph, node)[0];
  if (mpg_node_flag(node, MPG_OP_COPY)) return true;
  if (mpg_node_flag(node, MPG_OP_IDEMPOTENT)) return source_of(graph, input)->op == node->op;
  if (mpg_node_flag(node, MPG_OP_SAME_VALUES | MPG_OP_RESIZES)) return true;
  switch (node->op->id) {
    case MPG_OP_slice: return forward_steps(&((const mpg_slice_params *)node->params)->step);
    case MPG_OP_Concat:
    case MPG_OP_add_n: return node->num_inputs == 1;
    case MPG_OP_clip: return clips_nothing(graph, node);
    case MPG_OP__mul_scalar:
    case MPG_OP__plus_scalar:
    case MPG_OP__minus_scalar:
    case MPG_OP__div_scalar:
    case MPG_OP__power_scalar:
      return neutral(node->op, ((const mpg_scalar_params *)node->params)->scalar,
                     desc_of(graph, input)->dtype);
    default: return false;
  }
}

/* Matches a cast that undoes an earlier cast. Returns the value before both casts, or
 * MPG_NO_VALUE. */
static mpg_value undone_cast(const mpg_graph *graph, const mpg_node *node) {
  mpg_value origin = mpg_graph_uncast(graph, node);
  return mpg_has_value(origin) && same_array(graph, origin, node) ? origin : MPG_NO_VALUE;
}

mpg_value mpg_graph_find_identity(const mpg_graph *graph, const mpg_node *node) {
  if (node->op && node->op->id == MPG_OP_Dropout && node->random == MPG_NO_RANDOM)
    return mpg_node_inputs(graph, node)[0]; /* dropout is the identity in prediction mode */
  if (!node->op || node->num_outputs != 1 || node->num_inputs == 0 ||
      mpg_node_flag(node, MPG_OP_SHAPE_ONLY | MPG_OP_RANDOM))
    return MPG_NO_VALUE;
  const mpg_value *inputs = mpg_node_inputs(graph, node);
  mpg_value input = inputs[0];
  if (mpg_node_is_view(node)) return skip_views(graph, node);
  if (is_cast(node) && !same_array(graph, input, node)) return undone_cast(graph, node);
  mpg_value undone = undone_permutation(graph, node);
  if (mpg_has_value(undone)) return undone;
  if (node->op->id == MPG_OP_where)
    return mpg_value_equal(inputs[1], inputs[2]) && same_array(graph, inputs[1], node)
               ? inputs[1]
               : MPG_NO_VALUE;
  if (!same_array(graph, input, node)) return MPG_NO_VALUE;
  undone = undone_negation(graph, node);
  if (mpg_has_value(undone)) return undone;
  return gives_input(graph, node) ? input : MPG_NO_VALUE;
}
