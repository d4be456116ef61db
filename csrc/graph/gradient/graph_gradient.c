/* The gradient pass (reverse-mode differentiation) for eager backward, compiled graphs and
 * higher-order gradients. Iterative instead of recursive, because graphs are deep.
 *
 * The order of sums does not depend on placement. Ops on another device read a value through one
 * copy, whose gradient is summed before it is copied back. Sums on one device follow the same
 * order. A family is an op together with the ops that compute its gradients. The contributions of
 * each family are summed first, from the last user to the first. Then the sums of the families are
 * added in reverse order of their first users. */
#include <string.h>

#include "graph/ir/graph.h"
#include "op/precision/promotion.h"

/* The sum of one family's contributions to a value. */
typedef struct part {
  /* Next in the list of a value's parts, which is sorted by latest contribution, or in the list of
   * spare parts. */
  struct part *next;
  uint64_t family;
  mpg_value sum;
} part;

typedef struct pass {
  mpg_graph *graph;
  bool lenient;         /* see mpg_differentiation */
  size_t num_values;    /* number of values in the forward part */
  mpg_value *gradients; /* per forward value: the sum so far, excluding its parts */
  part **parts;         /* per forward value: list of parts */
  part *spare;
  bool *depends;       /* per forward value: true if it depends on a wanted value */
  bool *reached;       /* per forward value: true if a head depends on it; NULL if unused */
  mpg_value *in_grads; /* workspace for one node, like the next three arrays */
  mpg_value *out_grads;
  mpg_value *out_values;
  bool *needed;
} pass;

static mpg_status add(pass *p, mpg_value *sum, mpg_value gradient) {
  if (!mpg_has_value(*sum)) {
    *sum = gradient;
    return MPG_OK;
  }
  mpg_value terms[2] = {*sum, gradient};
  const mpg_op *op = mpg_sum_of_gradients(mpg_graph_at(p->graph, gradient)->desc.dtype);
  return mpg_graph_emit(p->graph, op, NULL, terms, 2, MPG_NO_VALUE, sum);
}

/* True if input i is known to differ from all other inputs. Returns false for nodes with many
 * inputs, to bound the time. */
static bool is_unique(const mpg_value *inputs, uint32_t count, uint32_t i) {
  enum { MAX_INPUTS = 4 };
  for (uint32_t k = 0; k < count && count <= MAX_INPUTS; k++)
    if (k != i && inputs[k].node == inputs[i].node && inputs[k].output == inputs[i].output)
      return false;
  return count <= MAX_INPUTS;
}

/* Adds a contribution to the part of its family and moves that part to the end of the list. */
static mpg_status accumulate(pass *p, mpg_value value, uint64_t family, mpg_value gradient) {
  part **link = &p->parts[mpg_value_index(p->graph, value)], *found = NULL;
  while (*link) {
    if ((*link)->family == family) {
      found = *link;
      *link = found->next;
    } else {
      link = &(*link)->next;
    }
  }
  if (!found) {
    if ((found = p->spare) != NULL)
      p->spare = found->next;
    else if (!(found = mpg_arena_alloc(&p->graph->arena, sizeof *found)))
      return mpg_out_of_host_memory(sizeof *found);
    *found = (part){.family = family, .sum = MPG_NO_VALUE};
  }
  found->next = NULL;
  *link = found;
  return add(p, &found->sum, gradient);
}

/* Adds all parts of a value to its gradient, in the order of the list. */
static mpg_status settle(pass *p, uint32_t index) {
  while (p->parts[index]) {
    part *first = p->parts[index];
    MPG_TRY(add(p, &p->gradients[index], first->sum));
    p->parts[index] = first->next;
    first->next = p->spare;
    p->spare = first;
  }
  return MPG_OK;
}

/* Marks the node's inputs that need a gradient in p->needed. Returns false if no input does. */
static bool find_needed(pass *p, const mpg_node *node) {
  const mpg_value *inputs = mpg_node_inputs(p->graph, node);
  bool any = false;
  for (uint32_t i = 0; i < node->num_inputs; i++) {
    p->needed[i] = mpg_has_value(inputs[i]) && p->depends[mpg_value_index(p->graph, inputs[i])];
    any |= p->needed[i];
  }
  return any;
}

/* Marks every value that a head depends on, except through nodes that detach their inputs. */
static mpg_status find_reached(pass *p, const mpg_differentiation *request, size_t num_nodes) {
  mpg_graph *graph = p->graph;
  p->reached = mpg_arena_alloc(&graph->arena, p->num_values + 1);
  if (!p->reached) return mpg_out_of_host_memory(p->num_values);
  memset(p->reached, 0, p->num_values);
  for (size_t i = 0; i < request->num_heads; i++)
    p->reached[mpg_value_index(graph, request->heads[i])] = true;
  for (size_t n = num_nodes; n-- > request->first;) {
    const mpg_node *node = &graph->nodes[n];
    if (mpg_node_flag(node, MPG_OP_DETACHES) ||
        !memchr(p->reached + node->values, true, node->num_outputs))
      continue;
    const mpg_value *inputs = mpg_node_inputs(graph, node);
    for (uint32_t i = 0; i < node->num_inputs; i++)
      if (mpg_has_value(inputs[i])) p->reached[mpg_value_index(graph, inputs[i])] = true;
  }
  return MPG_OK;
}

/* Sets the missing gradients of an opaque call's reached outputs to zeros. The call starts
 * gradients by itself, and the zeros mark the outputs to start from. */
static mpg_status fill_zeros(pass *p, uint32_t number) {
  const uint32_t values = p->graph->nodes[number].values;
  for (uint32_t i = 0; i < p->graph->nodes[number].num_outputs; i++)
    if (p->reached[values + i] && !mpg_has_value(p->gradients[values + i]))
      MPG_TRY(
          mpg_graph_emit_full_like(p->graph, (mpg_value){number, i}, 0, &p->gradients[values + i]));
  return MPG_OK;
}

static mpg_status node_gradient(pass *p, uint32_t number) {
  mpg_graph *graph = p->graph;
  bool arrives = false;
  for (uint32_t i = 0; i < graph->nodes[number].num_outputs; i++)
    MPG_TRY(settle(p, graph->nodes[number].values + i));
  if (p->reached && mpg_node_starts(&graph->nodes[number]) &&
      find_needed(p, &graph->nodes[number])) {
    if (graph->nodes[number].opaque) MPG_TRY(fill_zeros(p, number));
    arrives = memchr(p->reached + graph->nodes[number].values, true,
                     graph->nodes[number].num_outputs) != NULL;
  }
  mpg_node node = graph->nodes[number]; /* a copy, because emission reallocates the array */
  for (uint32_t i = 0; i < node.num_outputs; i++) {
    p->out_grads[i] = p->gradients[node.values + i];
    p->out_values[i] = (mpg_value){number, i};
    arrives |= mpg_has_value(p->out_grads[i]);
  }
  if (!arrives || !find_needed(p, &node)) return MPG_OK;
  /* Gradient formulas get a copy of the inputs, because emission reallocates graph->inputs. */
  mpg_value *in_values = p->in_grads + node.num_inputs;
  memcpy(in_values, graph->inputs + node.inputs, node.num_inputs * sizeof(mpg_value));
  for (uint32_t i = 0; i < node.num_inputs; i++) p->in_grads[i] = MPG_NO_VALUE;
  graph->scope = node.scope;
  graph->origin = node.origin;
  graph->family = node.family;
  graph->recompute_region = node.recompute_region;
  graph->offload = node.offload;
  if (node.opaque) {
    /* The call receives the gradient sum of each input so far and returns the new sum, so that it
     * can add its contributions one by one in the order of its ops. */
    uint32_t call;
    for (uint32_t i = 0; i < node.num_inputs; i++) {
      mpg_value *sum = &p->out_grads[node.num_outputs + i];
      *sum = MPG_NO_VALUE;
      if (!p->needed[i]) continue;
      MPG_TRY(settle(p, mpg_value_index(graph, in_values[i])));
      mpg_value *known = &p->gradients[mpg_value_index(graph, in_values[i])];
      *sum = *known;
      *known = MPG_NO_VALUE;
    }
    MPG_TRY(mpg_graph_known(graph, NULL, node.opaque, NULL, p->out_grads,
                            node.num_outputs + node.num_inputs, node.num_inputs, node.device,
                            &call));
    for (uint32_t i = 0; i < node.num_inputs; i++) {
      graph->values[graph->nodes[call].values + i] = *mpg_graph_at(graph, in_values[i]);
      if (p->needed[i]) p->in_grads[i] = (mpg_value){call, i};
    }
  } else {
    mpg_gradient g = {.builder = &graph->builder,
                      .op = node.op,
                      .params = node.params,
                      .num_inputs = (int)node.num_inputs,
                      .num_outputs = (int)node.num_outputs,
                      .inputs = in_values,
                      .outputs = p->out_values,
                      .out_grads = p->out_grads,
                      .needed = p->needed,
                      .in_grads = p->in_grads,
                      .train = node.train};
    mpg_status status = mpg_op_gradient(&g);
    if (status == MPG_OK) status = g.status;
    /* The op may lack a gradient for this dtype. Backward, which is not lenient, fails if a
     * gradient arrives. */
    if (p->lenient && status == MPG_ERROR) return MPG_OK;
    if (status != MPG_OK) {
      const char *path = mpg_scope_text(node.scope);
      return *path ? mpg_fail_prefix(status, "gradient of %s in block %s", node.op->name, path)
                   : mpg_fail_prefix(status, "gradient of %s", node.op->name);
    }
  }
  for (uint32_t i = 0; i < node.num_inputs; i++) {
    if (!p->needed[i] || !mpg_has_value(p->in_grads[i])) continue;
#ifdef MPG_DEBUG
    const mpg_graph_value *gradient = mpg_graph_at(graph, p->in_grads[i]),
                          *value = mpg_graph_at(graph, in_values[i]);
    MPG_ASSERT(mpg_shape_equal(&gradient->desc.shape, &value->desc.shape));
    MPG_ASSERT(mpg_device_id_equal(gradient->device, value->device));
#endif
    /* A single contribution from this node is added to the sum directly, without a list of
     * parts. */
    if (!graph->has_families && is_unique(in_values, node.num_inputs, i))
      MPG_TRY(add(p, &p->gradients[mpg_value_index(graph, in_values[i])], p->in_grads[i]));
    else
      MPG_TRY(accumulate(p, in_values[i], node.family, p->in_grads[i]));
  }
  for (uint32_t i = 0; i < node.num_inputs && !graph->has_families; i++)
    if (p->needed[i]) MPG_TRY(settle(p, mpg_value_index(graph, in_values[i])));
  return MPG_OK;
}

static mpg_status run(pass *p, const mpg_differentiation *request, size_t num_nodes) {
  mpg_graph *graph = p->graph;
  bool starts = false;
  for (size_t i = 0; i < p->num_values; i++) p->gradients[i] = MPG_NO_VALUE;
  for (size_t i = 0; i < request->num_wanted; i++)
    p->depends[mpg_value_index(graph, request->wanted[i])] = true;
  for (size_t n = request->first; n < num_nodes; n++) {
    const mpg_node *node = &graph->nodes[n];
    const mpg_value *inputs = mpg_node_inputs(graph, node);
    bool depends = false;
    for (uint32_t i = 0; i < node->num_inputs && !depends; i++)
      depends = mpg_has_value(inputs[i]) && p->depends[mpg_value_index(graph, inputs[i])];
    starts |= depends && mpg_node_starts(node);
    if (depends && node->op &&
        (request->lenient ? !mpg_op_differentiable(node->op)
                          : node->op->gradient == mpg_gradient_none))
      depends = false;
    if (depends) memset(p->depends + node->values, true, node->num_outputs);
  }
  if (starts) MPG_TRY(find_reached(p, request, num_nodes));
  for (size_t i = 0; i < request->num_heads; i++)
    if (p->depends[mpg_value_index(graph, request->heads[i])])
      MPG_TRY(
          add(p, &p->gradients[mpg_value_index(graph, request->heads[i])], request->head_grads[i]));
  for (size_t n = num_nodes; n-- > request->first;)
    if (!mpg_node_is_input(&graph->nodes[n])) MPG_TRY(node_gradient(p, (uint32_t)n));
  for (size_t i = 0; i < request->num_wanted; i++)
    MPG_TRY(settle(p, mpg_value_index(graph, request->wanted[i])));
  for (size_t i = 0; i < request->num_wanted; i++)
    request->gradients[i] = p->gradients[mpg_value_index(graph, request->wanted[i])];
  return MPG_OK;
}

/* Allocates the workspace in the graph's arena, because the tape reuses its graphs, with their
 * arenas, between backward passes. */
static mpg_status make_work_space(pass *p) {
  mpg_graph *graph = p->graph;
  uint32_t inputs = 0, outputs = 0;
  for (size_t n = 0; n < graph->num_nodes; n++) {
    const mpg_node *node = &graph->nodes[n];
    if (node->num_inputs > inputs) inputs = node->num_inputs;
    if (node->num_outputs > outputs) outputs = node->num_outputs;
  }
  p->gradients = mpg_arena_alloc(&graph->arena, (p->num_values + 1) * sizeof *p->gradients);
  p->parts = mpg_arena_alloc(&graph->arena, (p->num_values + 1) * sizeof *p->parts);
  p->in_grads = mpg_arena_alloc(&graph->arena, (2 * (size_t)inputs + 1) * sizeof *p->in_grads);
  p->out_grads =
      mpg_arena_alloc(&graph->arena, ((size_t)inputs + outputs + 1) * sizeof *p->out_grads);
  p->out_values = mpg_arena_alloc(&graph->arena, ((size_t)outputs + 1) * sizeof *p->out_values);
  p->depends = mpg_arena_alloc(&graph->arena, p->num_values + 1);
  p->needed = mpg_arena_alloc(&graph->arena, (size_t)inputs + 1);
  if (!p->gradients || !p->parts || !p->in_grads || !p->out_grads || !p->out_values ||
      !p->depends || !p->needed)
    return mpg_out_of_host_memory(p->num_values * sizeof *p->gradients);
  memset(p->depends, 0, p->num_values);
  memset(p->parts, 0, p->num_values * sizeof *p->parts);
  return MPG_OK;
}

mpg_status mpg_graph_gradient(mpg_graph *graph, const mpg_differentiation *request) {
  uint32_t scope = graph->scope, origin = graph->origin, region = graph->recompute_region;
  mpg_device_id offload = graph->offload;
  uint8_t phase = graph->phase;
  bool train = graph->train;
  uint64_t family = graph->family;
  pass p = {.graph = graph, .lenient = request->lenient, .num_values = graph->num_values};
  mpg_status status = make_work_space(&p);
  if (status == MPG_OK) {
    graph->phase = MPG_PHASE_BACKWARD;
    graph->train = request->train;
    status = run(&p, request, graph->num_nodes);
  }
  graph->phase = phase;
  graph->train = train;
  graph->scope = scope;
  graph->origin = origin;
  graph->family = family;
  graph->recompute_region = region;
  graph->offload = offload;
  return status;
}
