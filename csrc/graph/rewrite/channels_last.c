/* Converts convolutions to the channels-last layout, in which their primitives are fastest.
 *
 * Every convolution (except float64) becomes a transpose, a channels-last convolution, and a
 * transpose back. Other ops that read the result of a transpose back follow: they are moved before
 * the transpose. A transpose and its inverse cancel out, and an unused transpose back is omitted.
 * Transposes therefore remain only at inputs, at outputs, and before ops that do not follow. If all
 * dims except the channels have size 1, a reshape replaces the transpose. Weights keep their
 * layout. A BatchNorm whose single reader is relu, or an addition followed by relu, is fused with
 * them. This fusion is bit-identical, unlike the other changes.
 *
 * The rule keeps no table of channels-last forms: the form of a value is the input of the transpose
 * that computes this value in the target.
 */
#include <string.h>

#include "graph/rewrite/rewrite.h"
#include "op/layers/convolution.h"
#include "op/math/activation.h"

/* --- Transposes ------------------------------------------------------------------------------- */

/* True if a reshape can move the channels of a shape with 3 to 5 dimensions, because there is one
 * channel or one spatial position. */
static bool reshape_does(const mpg_shape *first) {
  return first->dims[1] == 1 || mpg_shape_product(first, 2, first->ndim) == 1;
}

static bool exchanges(const mpg_node *transpose, const mpg_shape *axes) {
  const mpg_tuple *given = &((const mpg_transpose_params *)transpose->params)->axes;
  bool same = given->count == axes->ndim;
  for (int i = 0; same && i < axes->ndim; i++)
    same =
        (given->values[i] < 0 ? given->values[i] + axes->ndim : given->values[i]) == axes->dims[i];
  return same;
}

static mpg_shape in_order(int ndim) {
  mpg_shape axes = {.ndim = ndim};
  for (int i = 0; i < ndim; i++) axes.dims[i] = i;
  return axes;
}

static mpg_value emit_transposed(mpg_rewrite *r, mpg_value value, bool back) {
  if (r->status != MPG_OK) return MPG_NO_VALUE;
  mpg_shape shape = mpg_graph_at(&r->target, value)->desc.shape,
            other = back ? mpg_channels_first(&shape) : mpg_channels_last(&shape);
  if (reshape_does(back ? &other : &shape)) return mpg_rewrite_reshape(r, value, &other);
  mpg_transpose_params params;
  memset(&params, 0, sizeof params);
  mpg_shape axes = in_order(shape.ndim);
  axes = back ? mpg_channels_first(&axes) : mpg_channels_last(&axes);
  params.axes = mpg_shape_tuple(&axes);
  return mpg_rewrite_emit(r, MPG_OP_transpose, &params, &value, 1, &value);
}

/* Finds the channels-last form of a value of the target: the input of the transpose, or of the
 * equivalent reshape, that computes the value. Returns false if the value is not computed in this
 * way. */
static bool made_from_last(const mpg_rewrite *r, mpg_value value, mpg_value *last) {
  const mpg_node *node = &r->target.nodes[value.node];
  if (r->status != MPG_OK || !node->op || node->num_inputs != 1) return false;
  mpg_value input = mpg_node_inputs(&r->target, node)[0];
  const mpg_shape *from = &mpg_graph_at(&r->target, input)->desc.shape,
                  *to = &mpg_graph_at(&r->target, value)->desc.shape;
  if (to->ndim < 3 || to->ndim > 5 || from->ndim != to->ndim) return false;
  if (node->op->id == MPG_OP__reshape_exact) {
    mpg_shape back = mpg_channels_first(from);
    if (!reshape_does(to) || !mpg_shape_equal(&back, to)) return false;
  } else if (node->op->id == MPG_OP_transpose) {
    mpg_shape axes = in_order(to->ndim), back = mpg_channels_first(&axes);
    if (!exchanges(node, &back)) return false;
  } else {
    return false;
  }
  *last = input;
  return true;
}

/* True if an input of the current node has a channels-last form. Sets *last to this form. */
static bool has_last(const mpg_rewrite *r, uint32_t input, mpg_value *last) {
  mpg_operand operand = mpg_rewrite_input(r, mpg_rewrite_shown(r), input);
  return r->started && mpg_has_value(operand.value) &&
         made_from_last(r, r->map[mpg_value_index(r->graph, operand.value)], last);
}

/* Returns the channels-last form of an input, transposing it if it has none. */
static mpg_value take_last(mpg_rewrite *r, uint32_t input) {
  mpg_value last;
  if (has_last(r, input, &last)) return last;
  return emit_transposed(r, mpg_rewrite_take(r, mpg_rewrite_input(r, mpg_rewrite_shown(r), input)),
                         false);
}

static mpg_value take(mpg_rewrite *r, uint32_t input) {
  return mpg_rewrite_take(r, mpg_rewrite_input(r, mpg_rewrite_shown(r), input));
}

static void replace_last(mpg_rewrite *r, uint32_t output, mpg_value last) {
  mpg_rewrite_replace(r, output, emit_transposed(r, last, true));
}

static const mpg_desc *shown_desc(const mpg_rewrite *r) {
  return mpg_rewrite_desc(r, mpg_rewrite_shown(r));
}

/* --- BatchNorm followed by relu --------------------------------------------------------------- */

/* Finds the single live node that reads a value. Returns false if there are several, or if the
 * value is an output. */
static bool only_reader(const mpg_rewrite *r, mpg_value value, uint32_t *reader) {
  if (r->users[mpg_value_index(r->graph, value)] != 1) return false;
  for (size_t n = value.node + 1; n < r->graph->num_nodes; n++) {
    const mpg_node *node = &r->graph->nodes[n];
    for (uint32_t i = 0; r->live[n] && i < node->num_inputs; i++) {
      mpg_value input = mpg_node_inputs(r->graph, node)[i];
      if (input.node != value.node || input.output != value.output) continue;
      *reader = (uint32_t)n;
      return true;
    }
  }
  return false;
}

/* A BatchNorm and the nodes that are fused with it. `addition` is 0 if only a relu is fused. */
typedef struct relu_match {
  uint32_t norm, addition, relu;
  uint32_t residual; /* index of the residual among the addition's inputs */
} relu_match;

/* True if no other node uses the moving statistics and no later node writes another input of the
 * BatchNorm. This is required because the fused node may run later. */
static bool keeps_to_itself(const mpg_rewrite *r, uint32_t n) {
  const mpg_node *node = &r->graph->nodes[n];
  const mpg_value *inputs = mpg_node_inputs(r->graph, node);
  for (uint32_t i = 0; i < node->num_inputs; i++) {
    uint32_t value = mpg_value_index(r->graph, inputs[i]);
    if (i >= 3 ? r->users[value] != 1 || r->written[value] != n : r->written[value] > n)
      return false;
  }
  return true;
}

/* Matches the relu, or the addition and relu, that can be fused with a BatchNorm. */
static bool find_relu(const mpg_rewrite *r, uint32_t norm, relu_match *found) {
  const mpg_node *node = &r->graph->nodes[norm];
  uint32_t next;
  if (r->users[node->values + 1] || r->users[node->values + 2] || !keeps_to_itself(r, norm))
    return false;
  if (!only_reader(r, (mpg_value){norm, 0}, &next)) return false;
  *found = (relu_match){.norm = norm, .relu = next};
  if (mpg_rewrite_is_addition(r, &r->graph->nodes[next])) {
    found->addition = next;
    found->residual = mpg_node_inputs(r->graph, &r->graph->nodes[next])[0].node == norm;
    if (!only_reader(r, (mpg_value){next, 0}, &found->relu)) return false;
    /* The residual's gradients are added in the order of its readers. This order must be kept, so
     * no other reader may be between the addition and the relu. */
    mpg_value residual = mpg_node_inputs(r->graph, &r->graph->nodes[next])[found->residual];
    for (uint32_t n = next + 1; n < found->relu; n++)
      for (uint32_t i = 0; r->live[n] && i < r->graph->nodes[n].num_inputs; i++) {
        mpg_value input = mpg_node_inputs(r->graph, &r->graph->nodes[n])[i];
        if (input.node == residual.node && input.output == residual.output) return false;
      }
  }
  return mpg_rewrite_is_relu(&r->graph->nodes[found->relu]);
}

/* Like find_relu, starting from the relu or the addition. If two BatchNorms are added, the later
 * one is fused with the addition. */
static bool find_norm(const mpg_rewrite *r, uint32_t n, relu_match *found) {
  const mpg_node *node = &r->graph->nodes[n];
  uint32_t best = 0;
  if (!node->op) return false;
  for (uint32_t i = 0; i < node->num_inputs; i++) {
    mpg_value input = mpg_node_inputs(r->graph, node)[i];
    const mpg_node *maker = &r->graph->nodes[input.node];
    relu_match candidate;
    bool is_norm =
        maker->op && maker->op->id == MPG_OP_BatchNorm && find_relu(r, input.node, &candidate);
    if (!is_norm && mpg_rewrite_is_relu(node) && mpg_rewrite_is_addition(r, maker))
      is_norm = find_norm(r, input.node, &candidate);
    if (!is_norm || candidate.norm < best) continue;
    best = candidate.norm;
    *found = candidate;
  }
  return best != 0 && (found->relu == n || found->addition == n);
}

/* True if the BatchNorm normalizes axis 1 and its data has a channels-last form (*last). Called
 * for the BatchNorm and again for the relu, with the same result. */
static bool norm_follows(const mpg_rewrite *r, uint32_t norm, mpg_value *last) {
  const mpg_node *node = &r->graph->nodes[norm];
  mpg_value data = mpg_node_inputs(r->graph, node)[0];
  int64_t axis = ((const mpg_batch_norm_params *)node->params)->axis;
  return r->started && axis == 1 &&
         made_from_last(r, r->map[mpg_value_index(r->graph, data)], last);
}

/* Emits BatchNorm alone, with its three outputs. The caller has set inputs[0]. */
static void emit_norm(mpg_rewrite *r, const mpg_node *norm, mpg_value *inputs, mpg_value *outputs) {
  mpg_batch_norm_params params = *(const mpg_batch_norm_params *)norm->params;
  if (r->status != MPG_OK) return;
  params.axis = mpg_graph_at(&r->target, inputs[0])->desc.shape.ndim - 1;
  for (uint32_t i = 1; i < 5; i++)
    inputs[i] = mpg_rewrite_take(r, (mpg_operand){mpg_node_inputs(r->graph, norm)[i], false});
  mpg_rewrite_emit(r, MPG_OP_BatchNorm, &params, inputs, 5, outputs);
}

static bool fuse_relu(mpg_rewrite *r, const relu_match *found) {
  mpg_value outputs[4], inputs[6], residual = MPG_NO_VALUE;
  if (!norm_follows(r, found->norm, &inputs[0])) return false;
  const mpg_node *norm = &r->graph->nodes[found->norm],
                 *addition = found->addition ? &r->graph->nodes[found->addition] : NULL;
  if (addition)
    residual = mpg_rewrite_take(
        r, (mpg_operand){mpg_node_inputs(r->graph, addition)[found->residual], false});
  if (r->status != MPG_OK) return true;
  if (addition && !made_from_last(r, residual, &inputs[5])) {
    /* The residual has no channels-last form, so the BatchNorm's result is transposed back before
     * the addition. This also happens if there is a copy between the two ops. */
    mpg_value terms[2], sum;
    emit_norm(r, norm, inputs, outputs);
    terms[!found->residual] = emit_transposed(r, outputs[0], true);
    terms[found->residual] = residual;
    mpg_rewrite_emit(r, addition->op->id, addition->params, terms, 2, &sum);
    mpg_rewrite_replace(r, 0,
                        mpg_rewrite_emit(r, r->graph->nodes[r->node].op->id,
                                         r->graph->nodes[r->node].params, &sum, 1, outputs));
    return true;
  }
  const mpg_batch_norm_params *p = norm->params;
  mpg_batch_norm_relu_params params;
  memset(&params, 0, sizeof params);
  params.eps = p->eps;
  params.momentum = p->momentum;
  params.fix_gamma = p->fix_gamma;
  params.use_global_stats = p->use_global_stats;
  params.add = addition != NULL;
  for (int i = 1; i < 5; i++)
    inputs[i] = mpg_rewrite_take(r, (mpg_operand){mpg_node_inputs(r->graph, norm)[i], false});
  mpg_rewrite_emit(r, MPG_OP__batch_norm_relu, &params, inputs, params.add ? 6 : 5, outputs);
  replace_last(r, 0, outputs[0]);
  return true;
}

/* --- Ops -------------------------------------------------------------------------------------- */

static bool convolution(mpg_rewrite *r, const mpg_node *node) {
  const mpg_convolution_params *p = node->params;
  const mpg_desc *desc = shown_desc(r);
  if (desc->dtype == MPG_FLOAT64 || mpg_layout_of(p->layout) != MPG_CHANNELS_FIRST ||
      mpg_shape_size(&desc->shape) == 0)
    return false;
  mpg_convolution_params params = *p;
  params.layout = -1;
  take(r, 0); /* starts the target, in which take_last searches for a transpose */
  mpg_value inputs[3] = {take_last(r, 0)}, result;
  for (uint32_t i = 1; i < node->num_inputs; i++) inputs[i] = take(r, i);
  mpg_rewrite_emit(r, MPG_OP__convolution_channels_last, &params, inputs, (int)node->num_inputs,
                   &result);
  replace_last(r, 0, result);
  return true;
}

static bool batch_norm(mpg_rewrite *r, const mpg_node *node) {
  mpg_value inputs[5], outputs[3];
  relu_match found, last;
  if (!norm_follows(r, r->node, &inputs[0])) return false;
  if (find_relu(r, r->node, &found) && find_norm(r, found.relu, &last) && last.norm == r->node)
    return true; /* emitted together with the relu */
  emit_norm(r, node, inputs, outputs);
  replace_last(r, 0, outputs[0]);
  for (uint32_t i = 1; i < 3; i++) mpg_rewrite_replace(r, i, outputs[i]);
  return true;
}

static bool pooling(mpg_rewrite *r, const mpg_node *node) {
  static const int layouts[] = {5, 4, 3}; /* NWC, NHWC, NDHWC */
  mpg_pooling_params params = *(const mpg_pooling_params *)node->params;
  mpg_value input, result;
  if (mpg_layout_of(params.layout) != MPG_CHANNELS_FIRST || !has_last(r, 0, &input)) return false;
  params.layout = layouts[shown_desc(r)->shape.ndim - 3];
  mpg_window w;
  mpg_value outputs[2];
  mpg_pooling_window(node->params,
                     &mpg_rewrite_desc(r, mpg_rewrite_input(r, mpg_rewrite_shown(r), 0))->shape,
                     &shown_desc(r)->shape, &w);
  /* In training, uses an op that keeps only the positions of the maxima for the gradient, one byte
   * each, instead of its input and output. */
  if (node->train && params.pool_type == 2 /* max */ &&
      mpg_window_product(w.kernel, w.ndim) <= MPG_POOLING_INDEX_NONE) {
    result = mpg_rewrite_emit(r, MPG_OP__max_pooling_channels_last, &params, &input, 1, outputs);
  } else {
    mpg_rewrite_emit(r, MPG_OP_Pooling, &params, &input, 1, &result);
  }
  replace_last(r, 0, result);
  return true;
}

/* Moves a Concat along any axis before the transposes back, if all inputs have a channels-last
 * form. */
static bool concat(mpg_rewrite *r, const mpg_node *node) {
  mpg_concat_params params = *(const mpg_concat_params *)node->params;
  int ndim = shown_desc(r)->shape.ndim;
  mpg_value last;
  for (uint32_t i = 0; i < node->num_inputs; i++)
    if (!has_last(r, i, &last)) return false;
  int64_t axis = params.dim < 0 ? params.dim + ndim : params.dim;
  params.dim = axis == 0 ? 0 : axis == 1 ? ndim - 1 : axis - 1;
  mpg_value *inputs = mpg_malloc(node->num_inputs * sizeof *inputs), result;
  if (!inputs) {
    r->status = mpg_out_of_host_memory(node->num_inputs * sizeof *inputs);
    return true;
  }
  for (uint32_t i = 0; i < node->num_inputs; i++) inputs[i] = take_last(r, i);
  mpg_rewrite_emit(r, MPG_OP_Concat, &params, inputs, (int)node->num_inputs, &result);
  mpg_free(inputs);
  replace_last(r, 0, result);
  return true;
}

/* True if an elementwise op can be moved before the transposes back: an input of the result's
 * shape has a channels-last form, and each other input has one or is broadcast. */
static bool follows_elementwise(const mpg_rewrite *r, const mpg_node *node) {
  const mpg_op *op = node->op;
  if (node->num_outputs != 1 || node->num_inputs == 0 ||
      (op->flags & (MPG_OP_RANDOM | MPG_OP_TRAIN | MPG_OP_VIEW | MPG_OP_CREATES)))
    return false;
  if (!(op->flags & (MPG_OP_INPLACE | MPG_OP_COPY)) || mpg_node_mutates(node)) return false;
  const mpg_shape *shape = &shown_desc(r)->shape;
  bool any = false;
  for (uint32_t i = 0; i < node->num_inputs; i++) {
    const mpg_shape *input =
        &mpg_rewrite_desc(r, mpg_rewrite_input(r, mpg_rewrite_shown(r), i))->shape;
    mpg_value last;
    bool has = has_last(r, i, &last), equal = mpg_shape_equal(input, shape);
    any |= has && equal;
    if (has && equal) continue;
    /* The input must have the shape (batch or 1, channels or 1, 1, ...). A reshape then moves its
     * channels last, and a binary op broadcasts it. */
    if (input->ndim != shape->ndim || equal || node->num_inputs != 2 ||
        mpg_shape_product(input, 2, input->ndim) != 1)
      return false;
  }
  return any;
}

static bool elementwise(mpg_rewrite *r, const mpg_node *node) {
  mpg_value inputs[4], result;
  if (node->num_inputs > 4 || !follows_elementwise(r, node)) return false;
  for (uint32_t i = 0; i < node->num_inputs; i++) inputs[i] = take_last(r, i);
  mpg_rewrite_emit(r, node->op->id, node->params, inputs, (int)node->num_inputs, &result);
  replace_last(r, 0, result);
  return true;
}

/* Moves LeakyReLU before the transpose back. Excludes prelu, whose slope belongs to axis 1, and
 * rrelu, which draws numbers by position. */
static bool leaky_relu(mpg_rewrite *r, const mpg_node *node) {
  mpg_value input, output;
  if (node->num_inputs != 1 || !has_last(r, 0, &input)) return false;
  if (((const mpg_leaky_relu_params *)node->params)->act_type == MPG_LEAKY_RRELU) return false;
  mpg_rewrite_emit(r, MPG_OP_LeakyReLU, node->params, &input, 1, &output);
  replace_last(r, 0, output);
  return true;
}

/* Moves an identity before the transpose back. Identities replace copies to the device that the
 * array is already on. */
static bool identity(mpg_rewrite *r) {
  const mpg_shape *from =
                      &mpg_rewrite_desc(r, mpg_rewrite_input(r, mpg_rewrite_shown(r), 0))->shape,
                  *to = &shown_desc(r)->shape;
  mpg_value last;
  if (!mpg_shape_equal(from, to) || !has_last(r, 0, &last)) return false;
  mpg_exact_shape_params params;
  memset(&params, 0, sizeof params);
  mpg_shape shape = mpg_channels_last(to);
  params.shape = mpg_shape_tuple(&shape);
  mpg_rewrite_emit(r, MPG_OP__reshape_exact, &params, &last, 1, &last);
  replace_last(r, 0, last);
  return true;
}

/* Removes the user's transpose to channels-last if its input has a channels-last form. */
static bool transpose(mpg_rewrite *r, const mpg_node *node) {
  mpg_shape axes = in_order(shown_desc(r)->shape.ndim), wanted = mpg_channels_last(&axes);
  mpg_value last;
  if (!exchanges(node, &wanted) || !has_last(r, 0, &last)) return false;
  mpg_rewrite_replace(r, 0, last);
  return true;
}

static bool bring_channels_last(mpg_rewrite *r, uint32_t n) {
  const mpg_node *node = &r->graph->nodes[n];
  relu_match found;
  switch (node->op->id) {
    case MPG_OP_Convolution: return convolution(r, node);
    case MPG_OP_BatchNorm: return batch_norm(r, node);
    case MPG_OP_Pooling: return pooling(r, node);
    case MPG_OP_Concat: return concat(r, node);
    case MPG_OP_LeakyReLU: return leaky_relu(r, node);
    case MPG_OP__reshape_exact: return identity(r);
    case MPG_OP_transpose: return transpose(r, node);
    default: break;
  }
  mpg_value last;
  if (find_norm(r, n, &found) && norm_follows(r, found.norm, &last)) {
    if (found.addition == n) return true;
    return fuse_relu(r, &found);
  }
  return elementwise(r, node);
}

const mpg_rewrite_rule mpg_rule_channels_last = {.name = "channels last",
                                                 .apply = bring_channels_last,
                                                 .needs = 1 + MPG_OP__convolution_channels_last};
