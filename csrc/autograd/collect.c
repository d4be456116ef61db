/* From the tape to a graph. */
#include <stdlib.h>
#include <string.h>

#include "autograd/backward_pass.h"

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
  return mpg_fail(
      MPG_ERROR,
      "cannot differentiate %s: its part of the recorded computation was given up by an earlier "
      "backward. To "
      "differentiate the same computation twice, pass retain_graph=True to the first backward",
      mpg_tape_name(node));
}

/* The end of an edge, where calls that were expanded are replaced by what stands for them. */
static mpg_tape_node *resolve(mpg_tape_node *node, uint32_t *output) {
  while (node && node->expansion) {
    const mpg_tape_edge *stand_in = &node->expansion[*output];
    *output = stand_in->output;
    node = stand_in->node;
  }
  return node;
}

static mpg_status append(mpg_walk *walk, mpg_tape_node *node) {
  MPG_TRY(mpg_grow((void **)&walk->nodes, &walk->nodes_capacity, walk->num_nodes + 1,
                   sizeof *walk->nodes));
  walk->nodes[walk->num_nodes++] = mpg_tape_retain(node);
  return MPG_OK;
}

/* How many inputs a call has behind its own. */
static uint32_t num_leaves(const mpg_walk *walk, const mpg_tape_node *node) {
  return node->leaves && !walk->together ? node->leaves->count : 0;
}

static mpg_tape_edge edge_at(const mpg_tape_node *node, uint32_t i) {
  return i < node->num_inputs ? node->edges[i]
                              : (mpg_tape_edge){node->leaves->variables[i - node->num_inputs], 0};
}

/* Whether what is reached here is reached in another way too. */
static mpg_status note_leaves(mpg_walk *walk, mpg_tape_node *node) {
  mpg_leaves *leaves = node->leaves;
  if (!walk->together) return MPG_OK;
  if (node->kind == MPG_TAPE_VARIABLE && node->leaves_number) walk->clash = true;
  if (!leaves) return MPG_OK;
  if (!leaves->distinct || leaves->visit == walk->visit) walk->clash = true;
  leaves->visit = walk->visit;
  MPG_TRY(mpg_grow((void **)&walk->leaves, &walk->leaves_capacity, walk->num_leaves + 1,
                   sizeof *walk->leaves));
  walk->leaves[walk->num_leaves++] = (struct mpg_walk_leaves){leaves, 0};
  return MPG_OK;
}

/* Whether several leaves have a variable in common; the answer for the same ones is kept. */
static mpg_status compare_leaves(mpg_walk *walk) {
  bool known = walk->num_distinct == walk->num_leaves;
  for (size_t i = 0; known && i < walk->num_leaves; i++)
    known = walk->distinct[i] == walk->leaves[i].leaves->number;
  if (known) return MPG_OK;
  for (size_t k = 0; k < walk->num_leaves; k++)
    for (uint32_t i = 0; i < walk->leaves[k].leaves->count; i++) {
      mpg_tape_node *variable = walk->leaves[k].leaves->variables[i];
      if (variable && variable->visit == walk->visit) walk->clash = true;
      if (variable) variable->visit = walk->visit;
    }
  if (walk->clash) return MPG_OK;
  walk->num_distinct = 0;
  MPG_TRY(mpg_grow((void **)&walk->distinct, &walk->distinct_capacity, walk->num_leaves,
                   sizeof *walk->distinct));
  for (size_t i = 0; i < walk->num_leaves; i++)
    walk->distinct[walk->num_distinct++] = walk->leaves[i].leaves->number;
  return MPG_OK;
}

/* Depth first, without recursion; nodes are listed after what they depend on. */
static mpg_status visit(mpg_walk *walk, mpg_tape_node *start, uint32_t output, bool create_graph) {
  start = resolve(start, &output);
  if (!start || start->visit == walk->visit) return MPG_OK;
  size_t depth = 0;
  MPG_TRY(push(walk, depth++, start));
  while (depth && !walk->clash) {
    struct mpg_walk_frame *top = &walk->stack[depth - 1];
    mpg_tape_node *node = top->node;
    if (top->next == 0) MPG_TRY(check_differentiable(node));
    if (top->next == 0) MPG_TRY(note_leaves(walk, node));
    if (top->next == 0 && create_graph && node->call && node->call->expand)
      MPG_TRY(mpg_tape_expand(node));
    mpg_tape_node *child = NULL;
    uint32_t num_children =
        node->expansion ? node->num_outputs : node->num_inputs + num_leaves(walk, node);
    while (!child && top->next < num_children) {
      uint32_t i = top->next++, end;
      if (node->expansion) {
        end = node->expansion[i].output;
        child = resolve(node->expansion[i].node, &end);
      } else {
        mpg_tape_edge edge = edge_at(node, i);
        end = edge.output;
        child = resolve(edge.node, &end);
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
  MPG_TRY(mpg_grow((void **)&walk->owners, &walk->owners_capacity, graph_node + 1,
                   sizeof *walk->owners));
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
  MPG_TRY(mpg_grow((void **)&walk->bindings, &walk->bindings_capacity, walk->graph.num_values,
                   sizeof *walk->bindings));
  walk->bindings[walk->graph.num_values - 1] = (mpg_binding){NULL, 0};
  MPG_TRY(mpg_grow((void **)&walk->variables, &walk->variables_capacity, walk->num_variables + 1,
                   sizeof *walk->variables));
  walk->variables[walk->num_variables++] = node;
  node->graph_node = value.node;
  return own(walk, value.node, node);
}

/* All leaves of a call as one value. */
static mpg_status add_leaves(mpg_walk *walk, const mpg_tape_node *node, mpg_value *value) {
  size_t k = 0;
  while (walk->leaves[k].leaves != node->leaves) k++;
  mpg_desc desc = {.shape = {.ndim = 1}, .dtype = node->leaves->tensors[0].desc.dtype};
  MPG_TRY(mpg_graph_input(&walk->graph, &desc, mpg_tensor_device(&node->leaves->tensors[0])->id,
                          value));
  walk->leaves[k].graph_node = value->node;
  return own(walk, value->node, NULL);
}

static mpg_status add_op(mpg_walk *walk, mpg_tape_node *node) {
  mpg_graph *graph = &walk->graph;
  bool together = node->leaves && walk->together;
  uint32_t num_inputs = node->num_inputs + num_leaves(walk, node) + together;
  MPG_TRY(mpg_grow((void **)&walk->edges, &walk->edges_capacity, num_inputs, sizeof *walk->edges));
  size_t most = graph->num_values + num_inputs + node->num_outputs;
  MPG_TRY(
      mpg_grow((void **)&walk->bindings, &walk->bindings_capacity, most, sizeof *walk->bindings));
  for (size_t i = graph->num_values; i < most; i++) walk->bindings[i] = (mpg_binding){NULL, 0};
  bool saves = node->kind == MPG_TAPE_OP;
  if (together) MPG_TRY(add_leaves(walk, node, &walk->edges[--num_inputs]));
  for (uint32_t i = 0; i < num_inputs; i++) {
    mpg_tape_edge edge = edge_at(node, i);
    mpg_tape_node *source = resolve(edge.node, &edge.output);
    if (source) {
      walk->edges[i] = (mpg_value){source->graph_node, edge.output};
    } else {
      const mpg_tensor *leaf =
          i < node->num_inputs ? NULL : &node->leaves->tensors[i - node->num_inputs];
      MPG_TRY(mpg_graph_input(graph, leaf ? &leaf->desc : &node->descs[i],
                              leaf ? mpg_tensor_device(leaf)->id : node->devices[i]->id,
                              &walk->edges[i]));
      MPG_TRY(own(walk, walk->edges[i].node, NULL));
    }
    if (saves && node->saved[i].storage)
      MPG_TRY(bind(walk, mpg_value_index(graph, walk->edges[i]), node, i));
  }
  uint32_t number;
  MPG_TRY(mpg_graph_known(
      graph, node->op, node->op ? NULL : node, node->params, walk->edges, num_inputs + together,
      node->num_outputs,
      node->devices[node->op && node->op->flags & MPG_OP_SPANS ? 0 : node->num_inputs]->id,
      &number));
  mpg_node *graph_node = &graph->nodes[number];
  graph_node->train = node->train;
  graph_node->scope = node->scope;
  graph_node->origin = node->origin;
  for (uint32_t i = 0; i < node->num_outputs; i++) {
    uint32_t slot = node->num_inputs + i;
    graph->values[graph_node->values + i] =
        (mpg_graph_value){node->descs[slot], node->devices[slot]->id};
    if (saves && node->saved[slot].storage) MPG_TRY(bind(walk, graph_node->values + i, node, slot));
  }
  node->graph_node = number;
  return own(walk, number, node);
}

static void forget_nodes(mpg_walk *walk) {
  while (walk->num_nodes) mpg_tape_release(walk->nodes[--walk->num_nodes]);
}

static mpg_status visit_heads(mpg_walk *walk, mpg_array *const *heads, int num_heads,
                              bool create_graph, bool together) {
  walk->visit = ++walks;
  walk->together = together;
  walk->clash = false;
  walk->num_leaves = 0;
  for (int i = 0; i < num_heads && !walk->clash; i++) {
    uint32_t output = heads[i]->output;
    if (heads[i]->node) MPG_TRY(visit(walk, heads[i]->node, output, create_graph));
    if (!resolve(heads[i]->node, &output))
      return mpg_fail(MPG_ERROR,
                      "cannot differentiate array %d of the heads: it was not computed from "
                      "variables (attach_grad) while recording "
                      "(autograd.record), so it is not part of a recorded computation",
                      i);
  }
  if (walk->num_leaves > 1 && !walk->clash) MPG_TRY(compare_leaves(walk));
  return MPG_OK;
}

mpg_status mpg_walk_collect(mpg_walk *walk, mpg_array *const *heads, int num_heads,
                            bool create_graph, bool together) {
  MPG_TRY(visit_heads(walk, heads, num_heads, create_graph, together));
  if (walk->clash) {
    forget_nodes(walk);
    MPG_TRY(visit_heads(walk, heads, num_heads, create_graph, false));
  }
  sort(walk);
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
