/* From the tape to a graph. */
#include <stdlib.h>
#include <string.h>

#include "autograd/walk.h"

static uint64_t walks; /* runtime state: number of walks so far, the mark of the present one */

static mpg_status push(mpg_walk *walk, size_t depth, mpg_tape_node *node) {
  MPG_TRY(mpg_grow((void **)&walk->stack, &walk->stack_capacity, depth + 1, sizeof *walk->stack));
  walk->stack[depth].node = node;
  walk->stack[depth].next = 0;
  node->visit = walk->visit;
  return MPG_OK;
}

static mpg_status check_differentiable(const mpg_tape_node *node) {
  if (!node->consumed) return MPG_OK;
  return mpg_fail(MPG_ERROR, "cannot differentiate %s: its part of the recorded computation was given up by an earlier backward. To "
                  "differentiate the same computation twice, pass retain_graph=True to the first backward", mpg_tape_name(node));
}

/* The end of an edge, where calls that were expanded are replaced by what stands for them. */
static mpg_tape_node *resolve(mpg_tape_node *node, uint32_t *output) {
  while (node && node->expansion) {
    const mpg_array *stand_in = &node->expansion[*output];
    *output = stand_in->output;
    node = stand_in->node;
  }
  return node;
}

static mpg_status expand(mpg_walk *walk, mpg_tape_node *node) {
  mpg_array *outputs = mpg_calloc(node->num_outputs, sizeof *outputs);
  if (!outputs) return mpg_out_of_host_memory(node->num_outputs * sizeof *outputs);
  mpg_status status = node->call->expand(node, outputs);
  if (status != MPG_OK) {
    for (uint32_t i = 0; i < node->num_outputs; i++) mpg_array_clear(&outputs[i]);
    mpg_free(outputs);
    return status;
  }
  node->expansion = outputs;
  walk->expanded = true;
  return MPG_OK;
}

static mpg_status append(mpg_walk *walk, mpg_tape_node *node) {
  MPG_TRY(mpg_grow((void **)&walk->nodes, &walk->nodes_capacity, walk->num_nodes + 1, sizeof *walk->nodes));
  walk->nodes[walk->num_nodes++] = mpg_tape_retain(node);
  return MPG_OK;
}

/* Depth first, without recursion; nodes are listed after what they depend on. */
static mpg_status visit(mpg_walk *walk, mpg_tape_node *start, uint32_t output, bool create_graph) {
  start = resolve(start, &output);
  if (!start || start->visit == walk->visit) return MPG_OK;
  size_t depth = 0;
  MPG_TRY(push(walk, depth++, start));
  while (depth) {
    struct mpg_walk_frame *top = &walk->stack[depth - 1];
    mpg_tape_node *node = top->node;
    if (top->next == 0) MPG_TRY(check_differentiable(node));
    if (top->next == 0 && create_graph && node->call && node->call->expand && !node->expansion) {
      MPG_TRY(expand(walk, node));
      MPG_TRY(append(walk, node)); /* keeps it alive; adds nothing to the graph */
    }
    mpg_tape_node *child = NULL;
    uint32_t num_children = node->expansion ? node->num_outputs : node->num_inputs;
    while (!child && top->next < num_children) {
      uint32_t i = top->next++, end;
      if (node->expansion) {
        end = node->expansion[i].output;
        child = resolve(node->expansion[i].node, &end);
      } else {
        end = node->edges[i].output;
        child = resolve(node->edges[i].node, &end);
      }
      if (child && child->visit == walk->visit) child = NULL;
    }
    if (child) {
      MPG_TRY(push(walk, depth++, child));
    } else {
      depth--;
      if (!node->expansion) MPG_TRY(append(walk, node));
    }
  }
  return MPG_OK;
}

static int by_sequence(const void *a, const void *b) {
  uint64_t x = (*(mpg_tape_node *const *)a)->sequence, y = (*(mpg_tape_node *const *)b)->sequence;
  return x < y ? -1 : x > y;
}

/* Recorded order, which is the order of a trace, so that gradients are summed alike. */
static void sort(mpg_walk *walk) {
  for (size_t i = 1; i < walk->num_nodes; i++) {
    if (walk->nodes[i - 1]->sequence < walk->nodes[i]->sequence) continue;
    qsort(walk->nodes, walk->num_nodes, sizeof *walk->nodes, by_sequence);
    return;
  }
}

static mpg_status own(mpg_walk *walk, uint32_t graph_node, mpg_tape_node *owner) {
  MPG_TRY(mpg_grow((void **)&walk->owners, &walk->owners_capacity, graph_node + 1, sizeof *walk->owners));
  walk->owners[graph_node] = owner;
  return MPG_OK;
}

static mpg_status bind(mpg_walk *walk, uint32_t value, mpg_tape_node *node, uint32_t slot) {
  walk->bindings[value] = (mpg_binding){node, slot};
  return MPG_OK;
}

static mpg_status add_variable(mpg_walk *walk, mpg_tape_node *node) {
  mpg_value value;
  MPG_TRY(mpg_graph_input(&walk->graph, &node->descs[0], node->devices[0]->id, &value));
  MPG_TRY(mpg_grow((void **)&walk->bindings, &walk->bindings_capacity, walk->graph.num_values, sizeof *walk->bindings));
  walk->bindings[walk->graph.num_values - 1] = (mpg_binding){NULL, 0};
  MPG_TRY(mpg_grow((void **)&walk->variables, &walk->variables_capacity, walk->num_variables + 1, sizeof *walk->variables));
  walk->variables[walk->num_variables++] = node;
  node->graph_node = value.node;
  return own(walk, value.node, node);
}

static mpg_status add_op(mpg_walk *walk, mpg_tape_node *node) {
  mpg_graph *graph = &walk->graph;
  MPG_TRY(mpg_grow((void **)&walk->edges, &walk->edges_capacity, node->num_inputs, sizeof *walk->edges));
  size_t most = graph->num_values + node->num_inputs + node->num_outputs;
  MPG_TRY(mpg_grow((void **)&walk->bindings, &walk->bindings_capacity, most, sizeof *walk->bindings));
  for (size_t i = graph->num_values; i < most; i++) walk->bindings[i] = (mpg_binding){NULL, 0};
  bool saves = node->kind == MPG_TAPE_OP;
  for (uint32_t i = 0; i < node->num_inputs; i++) {
    uint32_t output = node->edges[i].output;
    mpg_tape_node *source = resolve(node->edges[i].node, &output);
    if (source) {
      walk->edges[i] = (mpg_value){source->graph_node, output};
    } else {
      MPG_TRY(mpg_graph_input(graph, &node->descs[i], node->devices[i]->id, &walk->edges[i]));
      MPG_TRY(own(walk, walk->edges[i].node, NULL));
    }
    if (saves && node->saved[i].storage) MPG_TRY(bind(walk, mpg_value_index(graph, walk->edges[i]), node, i));
  }
  uint32_t number;
  MPG_TRY(mpg_graph_known(graph, node->op, node->op ? NULL : node, node->params, walk->edges, node->num_inputs, node->num_outputs,
                          node->devices[node->num_inputs]->id, &number));
  mpg_node *graph_node = &graph->nodes[number];
  graph_node->train = node->train;
  graph_node->scope = node->scope;
  graph_node->origin = node->origin;
  for (uint32_t i = 0; i < node->num_outputs; i++) {
    uint32_t slot = node->num_inputs + i;
    graph->values[graph_node->values + i] = (mpg_graph_value){node->descs[slot], node->devices[slot]->id};
    if (saves && node->saved[slot].storage) MPG_TRY(bind(walk, graph_node->values + i, node, slot));
  }
  node->graph_node = number;
  return own(walk, number, node);
}

mpg_status mpg_walk_collect(mpg_walk *walk, mpg_array *const *heads, int num_heads, bool create_graph) {
  walk->visit = ++walks;
  for (int i = 0; i < num_heads; i++) {
    if (!heads[i]->node)
      return mpg_fail(MPG_ERROR, "cannot differentiate array %d of the heads: it was not computed from variables (attach_grad) while recording "
                      "(autograd.record), so it is not part of a recorded computation", i);
    MPG_TRY(visit(walk, heads[i]->node, heads[i]->output, create_graph));
  }
  if (!walk->expanded) sort(walk);
  for (size_t i = 0; i < walk->num_nodes; i++) {
    mpg_tape_node *node = walk->nodes[i];
    if (node->expansion) continue;
    MPG_TRY(node->kind == MPG_TAPE_VARIABLE ? add_variable(walk, node) : add_op(walk, node));
  }
  return MPG_OK;
}

mpg_value mpg_walk_value(const mpg_walk *walk, const mpg_array *array) {
  uint32_t output = array->output;
  mpg_tape_node *node = resolve(array->node, &output);
  return node && node->visit == walk->visit ? (mpg_value){node->graph_node, output} : MPG_NO_VALUE;
}
