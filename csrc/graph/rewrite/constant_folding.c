/* Constant folding: evaluates values that depend only on constants and shapes, such as masks built
 * from comparisons. Floats are rounded to their dtypes. */
#include <math.h>
#include <string.h>

#include "graph/rewrite/rewrite.h"
#include "op/array/creation.h"

enum { DEEPEST = 32 };
static const int64_t largest = 1 << 22; /* maximum number of elements */

static bool evaluate(const mpg_graph *graph, mpg_value value, double *out, int depth);

static double *evaluate_new(const mpg_graph *graph, mpg_value value, int depth) {
  int64_t size = mpg_shape_size(&mpg_graph_at(graph, value)->desc.shape);
  double *out = size <= largest ? mpg_malloc(((size_t)size + 1) * sizeof *out) : NULL;
  if (out && evaluate(graph, value, out, depth)) return out;
  mpg_free(out);
  return NULL;
}

/* Elements of a row: out[i] = a[i * a_step] op b[i * b_step]. The steps are 0 or 1. */
typedef struct row {
  const double *a, *b;
  int64_t a_step, b_step, size;
  double *out;
} row;

#define FOR_EACH(operator) \
  for (int64_t i = 0; i < r->size; i++) r->out[i] = r->a[i * r->a_step] operator r->b[i * r->b_step]

static bool compare(mpg_op_id op, const row *r) {
  switch (op) {
#define COMPARISON(name, operator) \
  case MPG_OP__##name:             \
  case MPG_OP_broadcast_##name:    \
  case MPG_OP__##name##_scalar: FOR_EACH(operator); return true;
    COMPARISON(equal, ==)
    COMPARISON(not_equal, !=)
    COMPARISON(greater, >)
    COMPARISON(greater_equal, >=)
    COMPARISON(lesser, <)
    COMPARISON(lesser_equal, <=)
    default: return false;
  }
}

static bool number(mpg_op_id op, const row *r) {
  switch (op) {
#define ARITHMETIC(name, scalar, operator) \
  case MPG_OP_elemwise_##name:             \
  case MPG_OP_broadcast_##name:            \
  case MPG_OP__##scalar##_scalar: FOR_EACH(operator); return true;
    ARITHMETIC(add, plus, +)
    ARITHMETIC(sub, minus, -)
    ARITHMETIC(mul, mul, *)
    ARITHMETIC(div, div, /)
    case MPG_OP__rminus_scalar:
      for (int64_t i = 0; i < r->size; i++) r->out[i] = r->b[i * r->b_step] - r->a[i * r->a_step];
      return true;
    default: return compare(op, r);
  }
}

/* Returns the index of element `at` in an array of shape `from` that is broadcast to `shape`. */
static int64_t broadcast_at(const mpg_shape *shape, const mpg_shape *from, int64_t at) {
  int64_t index = 0, step = 1;
  for (int i = shape->ndim - 1, k = from->ndim - 1; i >= 0 && k >= 0; i--, k--) {
    if (from->dims[k] != 1) index += at % shape->dims[i] * step;
    step *= from->dims[k];
    at /= shape->dims[i];
  }
  return index;
}

/* Returns the size of the last axis, along which an array is read in steps of broadcast_step. */
static int64_t row_size(const mpg_shape *shape) {
  return shape->ndim ? shape->dims[shape->ndim - 1] : 1;
}
static int64_t broadcast_step(const mpg_shape *from) { return row_size(from) != 1; }

/* A value to evaluate, which is output 0 of a node. */
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
  if (mpg_dtype_is_integer(t->desc->dtype) && value != trunc(value)) return false;
  for (int64_t i = 0; i < t->size; i++) t->out[i] = value;
  return true;
}

static bool count(const target *t, const mpg_steps *steps) {
  if (mpg_dtype_is_integer(t->desc->dtype)) return false;
  for (int64_t i = 0; i < t->size; i++)
    t->out[i] = steps->start + steps->step * (double)(i / steps->repeat);
  return true;
}

/* True if the input and the result are both integers or both floats, so that a conversion needs at
 * most rounding. */
static bool alike(const target *t) {
  return mpg_dtype_is_integer(t->desc->dtype) == mpg_dtype_is_integer(input_desc(t, 0)->dtype);
}

static bool spread_input(const target *t) {
  double *from = alike(t) ? evaluate_new(t->graph, t->inputs[0], t->depth + 1) : NULL;
  const mpg_shape *shape = &t->desc->shape, *from_shape = &input_desc(t, 0)->shape;
  int64_t size = row_size(shape), step = broadcast_step(from_shape);
  for (int64_t at = 0; from && at < t->size; at += size) {
    const double *first = from + broadcast_at(shape, from_shape, at);
    for (int64_t i = 0; i < size; i++) t->out[at + i] = first[i * step];
  }
  mpg_free(from);
  return from != NULL;
}

/* Evaluates a view that has the elements of its input, in the same order. */
static bool take_input(const target *t) {
  return alike(t) && mpg_shape_size(&input_desc(t, 0)->shape) == t->size &&
         evaluate(t->graph, t->inputs[0], t->out, t->depth + 1);
}

static bool combine(const target *t) {
  const mpg_shape *shape = &t->desc->shape, *a_shape = &input_desc(t, 0)->shape,
                  *b_shape = &input_desc(t, 1)->shape;
  double *a = evaluate_new(t->graph, t->inputs[0], t->depth + 1),
         *b = a ? evaluate_new(t->graph, t->inputs[1], t->depth + 1) : NULL;
  bool good = b;
  row r = {.a_step = broadcast_step(a_shape),
           .b_step = broadcast_step(b_shape),
           .size = row_size(shape)};
  for (int64_t at = 0; good && at < t->size; at += r.size) {
    r.a = a + broadcast_at(shape, a_shape, at);
    r.b = b + broadcast_at(shape, b_shape, at);
    r.out = t->out + at;
    good = number(t->node->op->id, &r);
  }
  mpg_free(a);
  mpg_free(b);
  return good;
}

static bool combine_with_scalar(const target *t) {
  if (!evaluate(t->graph, t->inputs[0], t->out, t->depth + 1)) return false;
  double scalar = ((const mpg_scalar_params *)t->node->params)->scalar;
  mpg_dtype dtype = input_desc(t, 0)->dtype;
  if (mpg_dtype_is_float(dtype)) scalar = mpg_dtype_rounded(dtype, scalar); /* as kernels do */
  return number(t->node->op->id,
                &(row){.a = t->out, .b = &scalar, .a_step = 1, .size = t->size, .out = t->out});
}

/* Evaluates the node's formula before rounding. */
static bool apply(const target *t) {
  const mpg_node *node = t->node;
  double filled;
  mpg_steps steps;
  if (mpg_op_fill(node->op, node->params, &filled)) return fill(t, filled);
  if (mpg_op_steps(node->op, node->params, t->desc->dtype, &steps)) return count(t, &steps);
  if (mpg_node_flag(node, MPG_OP_SAME_VALUES)) return spread_input(t);
  if (node->num_outputs != 1) return false;
  if (mpg_node_is_view(node)) return take_input(t);
  const row none = {0}; /* tests only whether the op is known */
  if (!number(node->op->id, &none)) return false;
  if (mpg_dtype_is_integer(t->desc->dtype) &&
      (node->num_inputs != 2 || !compare(node->op->id, &none)))
    return false;
  return node->num_inputs == 2 ? combine(t) : combine_with_scalar(t);
}

static bool evaluate(const mpg_graph *graph, mpg_value value, double *out, int depth) {
  const mpg_node *node = &graph->nodes[value.node];
  const mpg_desc *desc = &mpg_graph_at(graph, value)->desc;
  bool rounds = mpg_dtype_is_float(desc->dtype),
       known = rounds || desc->dtype == MPG_INT32 || desc->dtype == MPG_INT64;
  if (!node->op || !known || depth > DEEPEST) return false;
  target t = {.graph = graph,
              .node = node,
              .inputs = mpg_node_inputs(graph, node),
              .desc = desc,
              .out = out,
              .size = mpg_shape_size(&desc->shape),
              .depth = depth};
  if (!apply(&t)) return false;
  if (desc->dtype == MPG_FLOAT32) { /* the usual case */
    for (int64_t i = 0; i < t.size; i++) out[i] = (double)(float)out[i];
    return true;
  }
  for (int64_t i = 0; rounds && i < t.size; i++) out[i] = mpg_dtype_rounded(desc->dtype, out[i]);
  return true;
}

double *mpg_rewrite_evaluate(const mpg_rewrite *r, mpg_operand operand) {
  return mpg_has_value(operand.value) ? evaluate_new(r->graph, operand.value, 0) : NULL;
}
