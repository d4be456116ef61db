/* Converts the part of the tape that the heads reach to a graph. */
#include <stdlib.h>
#include <string.h>

#include "autograd/backward_pass.h"

static uint64_t passes; /* runtime state: number of passes so far */

uint64_t mpg_autograd_new_pass(void) { return ++passes; }

static mpg_status push(mpg_backward_pass *pass, size_t depth, mpg_tape_node *node) {
  MPG_TRY(mpg_grow((void **)&pass->stack, &pass->stack_capacity, depth + 1, sizeof *pass->stack));
  pass->stack[depth].node = node;
  pass->stack[depth].next = 0;
  node->visit = pass->visit;
  return MPG_OK;
}

static mpg_status check_differentiable(const mpg_tape_node *node) {
  if (!node->consumed) return MPG_OK;
  return mpg_fail(MPG_ERROR,
                  "cannot differentiate %s: its part of the recorded computation was released by "
                  "an earlier backward. To differentiate the same computation twice, pass "
                  "retain_graph=True to the first backward",
                  mpg_tape_name(node));
}

/* Returns the node that an edge leads to, following the expansions of calls, and updates
 * *output. */
static mpg_tape_node *resolve(mpg_tape_node *node, uint32_t *output) {
  while (node && node->expansion) {
    const mpg_tape_edge *stand_in = &node->expansion[*output];
    *output = stand_in->output;
    node = stand_in->node;
  }
  return node;
}

static mpg_status append(mpg_backward_pass *pass, mpg_tape_node *node) {
  MPG_TRY(mpg_grow((void **)&pass->nodes, &pass->nodes_capacity, pass->num_nodes + 1,
                   sizeof *pass->nodes));
  pass->nodes[pass->num_nodes++] = mpg_tape_retain(node);
  return MPG_OK;
}

/* Returns the number of parameters that are separate inputs of the call: all, or 0 if parameter
 * sets are single values. */
static uint32_t num_parameters(const mpg_backward_pass *pass, const mpg_tape_node *node) {
  return node->parameters && !pass->together ? node->parameters->count : 0;
}

static mpg_tape_edge edge_at(const mpg_tape_node *node, uint32_t i) {
  return i < node->num_inputs
             ? node->edges[i]
             : (mpg_tape_edge){node->parameters->variables[i - node->num_inputs], 0};
}

/* Adds the node's parameter set, if any, to the pass. Sets `clash` if the pass may reach a
 * variable of a parameter set in another way as well. */
static mpg_status note_parameter_set(mpg_backward_pass *pass, mpg_tape_node *node) {
  mpg_parameter_set *parameters = node->parameters;
  if (!pass->together) return MPG_OK;
  if (node->kind == MPG_TAPE_VARIABLE && node->parameter_set_number) pass->clash = true;
  if (!parameters) return MPG_OK;
  if (!parameters->distinct || parameters->visit == pass->visit) pass->clash = true;
  parameters->visit = pass->visit;
  MPG_TRY(mpg_grow((void **)&pass->parameter_sets, &pass->parameter_sets_capacity,
                   pass->num_parameter_sets + 1, sizeof *pass->parameter_sets));
  pass->parameter_sets[pass->num_parameter_sets++] = (struct mpg_backward_pass_set){parameters, 0};
  return MPG_OK;
}

/* Sets `clash` if two parameter sets share a variable. Caches the numbers of sets that share none,
 * so that the next backward pass with the same sets skips the comparison. */
static mpg_status compare_parameter_sets(mpg_backward_pass *pass) {
  bool known = pass->num_distinct == pass->num_parameter_sets;
  for (size_t i = 0; known && i < pass->num_parameter_sets; i++)
    known = pass->distinct[i] == pass->parameter_sets[i].parameters->number;
  if (known) return MPG_OK;
  for (size_t k = 0; k < pass->num_parameter_sets; k++)
    for (uint32_t i = 0; i < pass->parameter_sets[k].parameters->count; i++) {
      mpg_tape_node *variable = pass->parameter_sets[k].parameters->variables[i];
      if (variable && variable->visit == pass->visit) pass->clash = true;
      if (variable) variable->visit = pass->visit;
    }
  if (pass->clash) return MPG_OK;
  pass->num_distinct = 0;
  MPG_TRY(mpg_grow((void **)&pass->distinct, &pass->distinct_capacity, pass->num_parameter_sets,
                   sizeof *pass->distinct));
  for (size_t i = 0; i < pass->num_parameter_sets; i++)
    pass->distinct[pass->num_distinct++] = pass->parameter_sets[i].parameters->number;
  return MPG_OK;
}

/* Appends the nodes that `start` depends on, each after its dependencies (iterative depth-first
 * search). */
static mpg_status visit(mpg_backward_pass *pass, mpg_tape_node *start, uint32_t output,
                        bool create_graph) {
  start = resolve(start, &output);
  if (!start || start->visit == pass->visit) return MPG_OK;
  size_t depth = 0;
  MPG_TRY(push(pass, depth++, start));
  while (depth && !pass->clash) {
    struct mpg_backward_pass_frame *top = &pass->stack[depth - 1];
    mpg_tape_node *node = top->node;
    if (top->next == 0) MPG_TRY(check_differentiable(node));
    if (top->next == 0) MPG_TRY(note_parameter_set(pass, node));
    if (top->next == 0 && create_graph && node->call && node->call->expand)
      MPG_TRY(mpg_tape_expand(node));
    mpg_tape_node *child = NULL;
    uint32_t num_children =
        node->expansion ? node->num_outputs : node->num_inputs + num_parameters(pass, node);
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
      if (child && child->visit == pass->visit) child = NULL;
    }
    if (child) {
      MPG_TRY(push(pass, depth++, child));
    } else {
      depth--;
      if (!node->expansion) MPG_TRY(append(pass, node));
    }
  }
  return MPG_OK;
}

static int by_sequence(const void *a, const void *b) {
  uint64_t x = (*(mpg_tape_node *const *)a)->sequence, y = (*(mpg_tape_node *const *)b)->sequence;
  return x < y ? -1 : x > y;
}

/* Sorts the nodes by recording order. The nodes of a trace have the same order, so recorded and
 * compiled computations sum gradients in the same order. */
static void sort(mpg_backward_pass *pass) {
  for (size_t i = 1; i < pass->num_nodes; i++) {
    if (pass->nodes[i - 1]->sequence < pass->nodes[i]->sequence) continue;
    qsort(pass->nodes, pass->num_nodes, sizeof *pass->nodes, by_sequence);
    return;
  }
}

static mpg_status own(mpg_backward_pass *pass, uint32_t graph_node, mpg_tape_node *owner) {
  MPG_TRY(mpg_grow((void **)&pass->owners, &pass->owners_capacity, graph_node + 1,
                   sizeof *pass->owners));
  pass->owners[graph_node] = owner;
  return MPG_OK;
}

static void bind(mpg_backward_pass *pass, uint32_t value, mpg_tape_node *node, uint32_t slot) {
  pass->saved_places[value] = (mpg_saved_place){node, slot};
}

static mpg_status add_variable(mpg_backward_pass *pass, mpg_tape_node *node) {
  mpg_value value;
  MPG_TRY(mpg_graph_input(&pass->graph, &node->descs[0], node->devices[0]->id, &value));
  MPG_TRY(mpg_grow((void **)&pass->saved_places, &pass->saved_places_capacity,
                   pass->graph.num_values, sizeof *pass->saved_places));
  pass->saved_places[pass->graph.num_values - 1] = (mpg_saved_place){NULL, 0};
  MPG_TRY(mpg_grow((void **)&pass->variables, &pass->variables_capacity, pass->num_variables + 1,
                   sizeof *pass->variables));
  pass->variables[pass->num_variables++] = node;
  node->graph_node = value.node;
  return own(pass, value.node, node);
}

/* Adds a graph input that represents the call's whole parameter set. Its shape is a placeholder. */
static mpg_status add_parameter_set(mpg_backward_pass *pass, const mpg_tape_node *node,
                                    mpg_value *value) {
  size_t k = 0;
  while (pass->parameter_sets[k].parameters != node->parameters) k++;
  mpg_desc desc = {.shape = {.ndim = 1}, .dtype = node->parameters->tensors[0].desc.dtype};
  MPG_TRY(mpg_graph_input(&pass->graph, &desc, mpg_tensor_device(&node->parameters->tensors[0])->id,
                          value));
  pass->parameter_sets[k].graph_node = value->node;
  return own(pass, value->node, NULL);
}

/* True if an op saved different contents of a value than an earlier op did, because the array was
 * overwritten between the two ops. */
static bool was_overwritten(const mpg_backward_pass *pass, mpg_value value,
                            const mpg_saved *saved) {
  const mpg_saved_place *place = &pass->saved_places[mpg_value_index(&pass->graph, value)];
  if (!place->node) return false;
  const mpg_saved *first = &place->node->saved[place->slot];
  return first->storage != saved->storage || first->version != saved->version;
}

/* Adds a separate graph value (a copy node) for the contents of a tape value after it was
 * overwritten. */
static mpg_status add_later_contents(mpg_backward_pass *pass, mpg_tape_node *source,
                                     mpg_value *value) {
  const mpg_graph_value of = *mpg_graph_at(&pass->graph, *value);
  uint32_t number;
  MPG_TRY(mpg_graph_known(&pass->graph, mpg_op_get(MPG_OP__copy), NULL, NULL, value, 1, 1,
                          of.device, &number));
  pass->graph.values[pass->graph.nodes[number].values] = of;
  *value = (mpg_value){number, 0};
  return own(pass, number, source);
}

static mpg_status add_op(mpg_backward_pass *pass, mpg_tape_node *node) {
  mpg_graph *graph = &pass->graph;
  bool together = node->parameters && pass->together;
  uint32_t num_inputs = node->num_inputs + num_parameters(pass, node) + together;
  MPG_TRY(mpg_grow((void **)&pass->edges, &pass->edges_capacity, num_inputs, sizeof *pass->edges));
  size_t most = graph->num_values + 2 * (size_t)num_inputs + node->num_outputs;
  MPG_TRY(mpg_grow((void **)&pass->saved_places, &pass->saved_places_capacity, most,
                   sizeof *pass->saved_places));
  for (size_t i = graph->num_values; i < most; i++)
    pass->saved_places[i] = (mpg_saved_place){NULL, 0};
  bool saves = node->kind == MPG_TAPE_OP;
  if (together) MPG_TRY(add_parameter_set(pass, node, &pass->edges[--num_inputs]));
  for (uint32_t i = 0; i < num_inputs; i++) {
    mpg_tape_edge edge = edge_at(node, i);
    mpg_tape_node *source = resolve(edge.node, &edge.output);
    if (source) {
      pass->edges[i] = (mpg_value){source->graph_node, edge.output};
    } else {
      const mpg_tensor *parameter =
          i < node->num_inputs ? NULL : &node->parameters->tensors[i - node->num_inputs];
      MPG_TRY(mpg_graph_input(graph, parameter ? &parameter->desc : &node->descs[i],
                              parameter ? mpg_tensor_device(parameter)->id : node->devices[i]->id,
                              &pass->edges[i]));
      MPG_TRY(own(pass, pass->edges[i].node, NULL));
    }
    if (!saves || !node->saved[i].storage) continue;
    if (source && was_overwritten(pass, pass->edges[i], &node->saved[i]))
      MPG_TRY(add_later_contents(pass, source, &pass->edges[i]));
    bind(pass, mpg_value_index(graph, pass->edges[i]), node, i);
  }
  uint32_t number;
  MPG_TRY(mpg_graph_known(
      graph, node->op, node->op ? NULL : node, node->params, pass->edges, num_inputs + together,
      node->num_outputs,
      node->devices[node->op && node->op->flags & MPG_OP_SPANS ? 0 : node->num_inputs]->id,
      &number));
  mpg_node *graph_node = &graph->nodes[number];
  graph_node->train = node->train;
  graph_node->starts = node->starts;
  graph_node->family = node->family ? node->family : node->sequence;
  graph->has_families |= node->family != 0;
  graph_node->scope = node->scope;
  graph_node->origin = node->origin;
  for (uint32_t i = 0; i < node->num_outputs; i++) {
    uint32_t slot = node->num_inputs + i;
    graph->values[graph_node->values + i] =
        (mpg_graph_value){node->descs[slot], node->devices[slot]->id};
    if (saves && node->saved[slot].storage) bind(pass, graph_node->values + i, node, slot);
  }
  node->graph_node = number;
  return own(pass, number, node);
}

static void forget_nodes(mpg_backward_pass *pass) {
  while (pass->num_nodes) mpg_tape_release(pass->nodes[--pass->num_nodes]);
}

static mpg_status visit_heads(mpg_backward_pass *pass, mpg_array *const *heads, int num_heads,
                              bool create_graph, bool together) {
  pass->visit = mpg_autograd_new_pass();
  pass->together = together;
  pass->clash = false;
  pass->num_parameter_sets = 0;
  for (int i = 0; i < num_heads && !pass->clash; i++) {
    uint32_t output = heads[i]->output;
    if (heads[i]->node) MPG_TRY(visit(pass, heads[i]->node, output, create_graph));
    if (!resolve(heads[i]->node, &output))
      return mpg_fail(MPG_ERROR,
                      "cannot differentiate array %d of the heads: it was not computed from "
                      "variables (attach_grad) while recording "
                      "(autograd.record), so it is not part of a recorded computation",
                      i);
  }
  if (pass->num_parameter_sets > 1 && !pass->clash) MPG_TRY(compare_parameter_sets(pass));
  return MPG_OK;
}

mpg_status mpg_backward_pass_collect(mpg_backward_pass *pass, mpg_array *const *heads,
                                     int num_heads, bool create_graph, bool together) {
  MPG_TRY(visit_heads(pass, heads, num_heads, create_graph, together));
  if (pass->clash) {
    forget_nodes(pass);
    MPG_TRY(visit_heads(pass, heads, num_heads, create_graph, false));
  }
  sort(pass);
  for (size_t i = 0; i < pass->num_nodes; i++) {
    mpg_tape_node *node = pass->nodes[i];
    if (node->expansion) continue;
    MPG_TRY(node->kind == MPG_TAPE_VARIABLE ? add_variable(pass, node) : add_op(pass, node));
  }
  return MPG_OK;
}

mpg_value mpg_backward_pass_value(const mpg_backward_pass *pass, const mpg_array *array) {
  uint32_t output = array->output;
  mpg_tape_node *node = resolve(array->node, &output);
  return node && node->visit == pass->visit ? (mpg_value){node->graph_node, output} : MPG_NO_VALUE;
}
