/* Constant folding: what is known of values when a graph is compiled, as of arrays made of numbers,
 * shapes and comparisons, such as masks. In double. */
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

/* Where element `at` of an array of `shape` lies in one of `from`, which is broadcast to it. */
static int64_t broadcast_at(const mpg_shape *shape, const mpg_shape *from, int64_t at) {
  int64_t index = 0, step = 1;
  for (int i = shape->ndim - 1, k = from->ndim - 1; i >= 0 && k >= 0; i--, k--) {
    if (from->dims[k] != 1) index += at % shape->dims[i] * step;
    step *= from->dims[k];
    at /= shape->dims[i];
  }
  return index;
}

static bool binary(const mpg_graph *graph, const mpg_node *node, const mpg_shape *shape,
                   double *out, int depth) {
  const mpg_value *inputs = mpg_node_inputs(graph, node);
  double *a = evaluate_new(graph, inputs[0], depth),
         *b = a ? evaluate_new(graph, inputs[1], depth) : NULL;
  bool good = b;
  for (int64_t i = 0; good && i < mpg_shape_size(shape); i++)
    good =
        number(node->op->id, a[broadcast_at(shape, &mpg_graph_at(graph, inputs[0])->desc.shape, i)],
               b[broadcast_at(shape, &mpg_graph_at(graph, inputs[1])->desc.shape, i)], &out[i]);
  mpg_free(a);
  mpg_free(b);
  return good;
}

static bool filled(double *out, int64_t size, double value) {
  for (int64_t i = 0; i < size; i++) out[i] = value;
  return true;
}

static bool counted(double *out, int64_t size, double start, double step, int64_t repeat) {
  for (int64_t i = 0; i < size; i++) out[i] = start + step * (double)(i / repeat);
  return true;
}

static bool evaluate(const mpg_graph *graph, mpg_value value, double *out, int depth) {
  const mpg_node *node = &graph->nodes[value.node];
  const mpg_desc *desc = &mpg_graph_at(graph, value)->desc;
  int64_t size = mpg_shape_size(&desc->shape);
  bool exact = desc->dtype == MPG_FLOAT32 || desc->dtype == MPG_FLOAT64 ||
               desc->dtype == MPG_INT32 || desc->dtype == MPG_INT64;
  if (!node->op || !exact || depth > DEEPEST) return false;
  const mpg_value *inputs = mpg_node_inputs(graph, node);
  bool whole = mpg_dtype_is_integer(desc->dtype), comparison = false;
  double probe;
  switch (node->op->id) {
    case MPG_OP__full: return filled(out, size, ((const mpg_full_params *)node->params)->value);
    case MPG_OP__full_like:
      return filled(out, size, ((const mpg_full_like_params *)node->params)->fill_value);
    case MPG_OP__zeros:
    case MPG_OP_zeros_like: return filled(out, size, 0);
    case MPG_OP__ones:
    case MPG_OP_ones_like: return filled(out, size, 1);
    case MPG_OP__arange: {
      const mpg_arange_params *p = node->params;
      return !whole && counted(out, size, p->stop.present ? p->start : 0, p->step, p->repeat);
    }
    case MPG_OP__contrib_arange_like: {
      const mpg_arange_like_params *p = node->params;
      return !whole && counted(out, size, p->start, p->step, p->repeat);
    }
    case MPG_OP_broadcast_to:
    case MPG_OP_broadcast_like:
    case MPG_OP_broadcast_axis:
    case MPG_OP__broadcast_exact: {
      double *from = evaluate_new(graph, inputs[0], depth + 1);
      for (int64_t i = 0; from && i < size; i++)
        out[i] = from[broadcast_at(&desc->shape, &mpg_graph_at(graph, inputs[0])->desc.shape, i)];
      mpg_free(from);
      return from != NULL;
    }
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
    case MPG_OP_broadcast_lesser_equal: comparison = true; break;
    default: break;
  }
  if (node->num_outputs != 1) return false;
  if (mpg_node_is_view(node) || mpg_node_flag(node, MPG_OP_COPY) || node->op->id == MPG_OP_Cast ||
      node->op->id == MPG_OP__copy) {
    if (whole != mpg_dtype_is_integer(mpg_graph_at(graph, inputs[0])->desc.dtype)) return false;
    return mpg_shape_size(&mpg_graph_at(graph, inputs[0])->desc.shape) == size &&
           evaluate(graph, inputs[0], out, depth + 1);
  }
  if (!number(node->op->id, 1, 1, &probe) || (whole && !comparison)) return false;
  if (node->num_inputs == 2) return binary(graph, node, &desc->shape, out, depth + 1);
  if (!evaluate(graph, inputs[0], out, depth + 1)) return false;
  double scalar = ((const mpg_scalar_params *)node->params)->scalar;
  for (int64_t i = 0; i < size; i++) number(node->op->id, out[i], scalar, &out[i]);
  return true;
}

double *mpg_rewrite_evaluate(const mpg_rewrite *r, mpg_operand operand) {
  return mpg_has_value(operand.value) ? evaluate_new(r->graph, operand.value, 0) : NULL;
}
