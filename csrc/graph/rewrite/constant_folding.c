/* Constant folding: evaluates, in double, values that depend on numbers and shapes alone, such as
 * masks made by comparisons. */
#include <math.h>
#include <string.h>

#include "graph/rewrite/rewrite.h"

enum { DEEPEST = 32 };
static const int64_t largest = 1 << 22; /* elements */

static bool evaluate(const mpg_graph *graph, mpg_value value, double *out, int depth);

static double *evaluate_new(const mpg_graph *graph, mpg_value value, int depth) {
  int64_t size = mpg_shape_size(&mpg_graph_at(graph, value)->desc.shape);
  double *out = size <= largest ? mpg_malloc(((size_t)size + 1) * sizeof *out) : NULL;
  if (out && evaluate(graph, value, out, depth)) return out;
  mpg_free(out);
  return NULL;
}

static bool number(mpg_op_id op, double a, double b, double *result) {
  switch (op) {
    case MPG_OP_elemwise_add:
    case MPG_OP_broadcast_add:
    case MPG_OP__plus_scalar: *result = a + b; return true;
    case MPG_OP_elemwise_sub:
    case MPG_OP_broadcast_sub:
    case MPG_OP__minus_scalar: *result = a - b; return true;
    case MPG_OP__rminus_scalar: *result = b - a; return true;
    case MPG_OP_elemwise_mul:
    case MPG_OP_broadcast_mul:
    case MPG_OP__mul_scalar: *result = a * b; return true;
    case MPG_OP_elemwise_div:
    case MPG_OP_broadcast_div:
    case MPG_OP__div_scalar: *result = a / b; return true;
    case MPG_OP__equal:
    case MPG_OP_broadcast_equal:
    case MPG_OP__equal_scalar: *result = a == b; return true;
    case MPG_OP__not_equal:
    case MPG_OP_broadcast_not_equal:
    case MPG_OP__not_equal_scalar: *result = a != b; return true;
    case MPG_OP__greater:
    case MPG_OP_broadcast_greater:
    case MPG_OP__greater_scalar: *result = a > b; return true;
    case MPG_OP__greater_equal:
    case MPG_OP_broadcast_greater_equal:
    case MPG_OP__greater_equal_scalar: *result = a >= b; return true;
    case MPG_OP__lesser:
    case MPG_OP_broadcast_lesser:
    case MPG_OP__lesser_scalar: *result = a < b; return true;
    case MPG_OP__lesser_equal:
    case MPG_OP_broadcast_lesser_equal:
    case MPG_OP__lesser_equal_scalar: *result = a <= b; return true;
    default: return false;
  }
}

/* The index, in an array of shape `from` that is broadcast to `shape`, of element `at`. */
static int64_t broadcast_at(const mpg_shape *shape, const mpg_shape *from, int64_t at) {
  int64_t index = 0, step = 1;
  for (int i = shape->ndim - 1, k = from->ndim - 1; i >= 0 && k >= 0; i--, k--) {
    if (from->dims[k] != 1) index += at % shape->dims[i] * step;
    step *= from->dims[k];
    at /= shape->dims[i];
  }
  return index;
}

/* A value that is evaluated: output 0 of a node. */
typedef struct target {
  const mpg_graph *graph;
  const mpg_node *node;
  const mpg_value *inputs;
  const mpg_desc *desc;
  double *out;
  int64_t size;
  int depth;
} target;

static const mpg_desc *input_desc(const target *t, int i) {
  return &mpg_graph_at(t->graph, t->inputs[i])->desc;
}

static bool fill(const target *t, double value) {
  for (int64_t i = 0; i < t->size; i++) t->out[i] = value;
  return true;
}

static bool count(const target *t, double start, double step, int64_t repeat) {
  if (mpg_dtype_is_integer(t->desc->dtype)) return false;
  for (int64_t i = 0; i < t->size; i++) t->out[i] = start + step * (double)(i / repeat);
  return true;
}

/* Arrays that parameters and shapes say all of. *known: whether the op makes one. */
static bool create(const target *t, bool *known) {
  *known = true;
  switch (t->node->op->id) {
    case MPG_OP__full: return fill(t, ((const mpg_full_params *)t->node->params)->value);
    case MPG_OP__full_like:
      return fill(t, ((const mpg_full_like_params *)t->node->params)->fill_value);
    case MPG_OP__zeros:
    case MPG_OP_zeros_like: return fill(t, 0);
    case MPG_OP__ones:
    case MPG_OP_ones_like: return fill(t, 1);
    case MPG_OP__arange: {
      const mpg_arange_params *p = t->node->params;
      return count(t, p->stop.present ? p->start : 0, p->step, p->repeat);
    }
    case MPG_OP__contrib_arange_like: {
      const mpg_arange_like_params *p = t->node->params;
      return count(t, p->start, p->step, p->repeat);
    }
    default: *known = false; return false;
  }
}

static bool is_broadcast(mpg_op_id op) {
  return op == MPG_OP_broadcast_to || op == MPG_OP_broadcast_like || op == MPG_OP_broadcast_axis ||
         op == MPG_OP__broadcast_exact;
}

static bool broadcast(const target *t) {
  double *from = evaluate_new(t->graph, t->inputs[0], t->depth + 1);
  for (int64_t i = 0; from && i < t->size; i++)
    t->out[i] = from[broadcast_at(&t->desc->shape, &input_desc(t, 0)->shape, i)];
  mpg_free(from);
  return from != NULL;
}

/* Ops whose result has the input's elements, in their order. */
static bool keeps_elements(const mpg_node *node) {
  return mpg_node_is_view(node) || mpg_node_flag(node, MPG_OP_COPY) ||
         node->op->id == MPG_OP_Cast || node->op->id == MPG_OP__copy;
}

static bool take_input(const target *t) {
  const mpg_desc *from = input_desc(t, 0);
  return mpg_dtype_is_integer(t->desc->dtype) == mpg_dtype_is_integer(from->dtype) &&
         mpg_shape_size(&from->shape) == t->size &&
         evaluate(t->graph, t->inputs[0], t->out, t->depth + 1);
}

static bool is_comparison(mpg_op_id op) {
  switch (op) {
    case MPG_OP__equal:
    case MPG_OP__not_equal:
    case MPG_OP__greater:
    case MPG_OP__greater_equal:
    case MPG_OP__lesser:
    case MPG_OP__lesser_equal:
    case MPG_OP_broadcast_equal:
    case MPG_OP_broadcast_not_equal:
    case MPG_OP_broadcast_greater:
    case MPG_OP_broadcast_greater_equal:
    case MPG_OP_broadcast_lesser:
    case MPG_OP_broadcast_lesser_equal: return true;
    default: return false;
  }
}

static bool combine(const target *t) {
  const mpg_shape *shape = &t->desc->shape;
  double *a = evaluate_new(t->graph, t->inputs[0], t->depth + 1),
         *b = a ? evaluate_new(t->graph, t->inputs[1], t->depth + 1) : NULL;
  bool good = b;
  for (int64_t i = 0; good && i < t->size; i++)
    good = number(t->node->op->id, a[broadcast_at(shape, &input_desc(t, 0)->shape, i)],
                  b[broadcast_at(shape, &input_desc(t, 1)->shape, i)], &t->out[i]);
  mpg_free(a);
  mpg_free(b);
  return good;
}

static bool combine_with_scalar(const target *t) {
  if (!evaluate(t->graph, t->inputs[0], t->out, t->depth + 1)) return false;
  double scalar = ((const mpg_scalar_params *)t->node->params)->scalar;
  for (int64_t i = 0; i < t->size; i++) number(t->node->op->id, t->out[i], scalar, &t->out[i]);
  return true;
}

static bool evaluate(const mpg_graph *graph, mpg_value value, double *out, int depth) {
  const mpg_node *node = &graph->nodes[value.node];
  const mpg_desc *desc = &mpg_graph_at(graph, value)->desc;
  bool exact = desc->dtype == MPG_FLOAT32 || desc->dtype == MPG_FLOAT64 ||
               desc->dtype == MPG_INT32 || desc->dtype == MPG_INT64;
  if (!node->op || !exact || depth > DEEPEST) return false;
  target t = {.graph = graph,
              .node = node,
              .inputs = mpg_node_inputs(graph, node),
              .desc = desc,
              .out = out,
              .size = mpg_shape_size(&desc->shape),
              .depth = depth};
  bool known;
  bool created = create(&t, &known);
  if (known) return created;
  if (is_broadcast(node->op->id)) return broadcast(&t);
  if (node->num_outputs != 1) return false;
  if (keeps_elements(node)) return take_input(&t);
  double probe;
  if (!number(node->op->id, 1, 1, &probe)) return false;
  if (mpg_dtype_is_integer(desc->dtype) && !is_comparison(node->op->id)) return false;
  return node->num_inputs == 2 ? combine(&t) : combine_with_scalar(&t);
}

double *mpg_rewrite_evaluate(const mpg_rewrite *r, mpg_operand operand) {
  return mpg_has_value(operand.value) ? evaluate_new(r->graph, operand.value, 0) : NULL;
}
