/* Offload of activations: chooses the values to store on another device, and copies them back in
 * the backward phase. */
#include "graph/gradient/offload.h"

#include <string.h>

#include "base/workspace.h"
#include "graph/ir/analysis.h"

bool mpg_offload_wanted(const mpg_graph *graph, size_t num_forward) {
  for (size_t n = 0; n < num_forward; n++)
    if (graph->nodes[n].offload.type) return true;
  return false;
}

static mpg_status find_live(mpg_workspace *space, const mpg_graph *graph, const mpg_value *roots,
                            size_t num_roots, bool **live) {
  *live = mpg_workspace_take(space, graph->num_nodes, sizeof **live);
  MPG_TRY(mpg_workspace_check(space));
  for (size_t i = 0; i < num_roots; i++)
    if (mpg_has_value(roots[i])) (*live)[roots[i].node] = true;
  mpg_graph_mark_live(graph, *live);
  return MPG_OK;
}

/* True if a backward node reads the contents of its input, which is a forward value. */
static bool reads_forward(const mpg_node *node, mpg_value input, size_t num_forward) {
  return mpg_has_value(input) && input.node < num_forward &&
         !mpg_node_flag(node, MPG_OP_SHAPE_ONLY);
}

/* True if the backward phase can create the views from a value's root to the value again. */
static bool has_plain_views(const mpg_graph *graph, mpg_value value) {
  for (const mpg_node *node = &graph->nodes[value.node]; mpg_node_is_view(node);
       node = &graph->nodes[mpg_node_inputs(graph, node)[0].node])
    if (node->num_inputs != 1) return false;
  return true;
}

static bool may_move(const mpg_graph *graph, const mpg_node *node, uint32_t value,
                     const mpg_offload_limits *limits, mpg_device_id target) {
  const mpg_graph_value *own = &graph->values[value];
  return !mpg_node_is_input(node) && limits->external[value] == UINT32_MAX &&
         !mpg_device_id_equal(own->device, target) &&
         mpg_shape_size(&own->desc.shape) >= limits->elements;
}

mpg_status mpg_offload_find(const mpg_graph *joint, size_t num_forward, const mpg_value *roots,
                            size_t num_roots, const mpg_offload_limits *limits,
                            mpg_device_id *targets) {
  mpg_workspace space = {0};
  mpg_analysis facts = {0};
  mpg_status status = MPG_OK;
  bool *live, *stays = mpg_workspace_take(&space, joint->num_values, sizeof *stays);
  MPG_GOTO(find_live(&space, joint, roots, num_roots, &live));
  MPG_GOTO(mpg_analyse(joint, NULL, &facts));
  for (size_t n = num_forward; n < joint->num_nodes; n++) {
    const mpg_node *node = &joint->nodes[n];
    const mpg_value *inputs = mpg_node_inputs(joint, node);
    for (uint32_t i = 0; i < node->num_inputs && live[n]; i++) {
      if (!reads_forward(node, inputs[i], num_forward)) continue;
      uint32_t value = mpg_value_index(joint, inputs[i]), root = facts.root[value];
      if (!node->offload.type || !limits->saved[value] || !has_plain_views(joint, inputs[i]))
        stays[root] = true;
      else if (!targets[root].type)
        targets[root] = node->offload;
    }
  }
  for (size_t n = 0; n < num_forward; n++) {
    const mpg_node *node = &joint->nodes[n];
    for (uint32_t v = node->values; v < node->values + node->num_outputs; v++)
      if (stays[v] || facts.written[v] || !may_move(joint, node, v, limits, targets[v]))
        targets[v] = (mpg_device_id){0};
  }
fail:
  mpg_analysis_free(&facts);
  mpg_workspace_free(&space);
  return status;
}

/* --- Copying back ----------------------------------------------------------------------------- */

typedef struct recall {
  const mpg_graph *graph;
  size_t num_forward;
  const mpg_value *recalled;
  mpg_graph *result;
  mpg_value *back;  /* per forward value: its counterpart in the backward phase, if it has one */
  uint32_t *places; /* per node of the joint graph: its number in the result */
  mpg_value *inputs;
  size_t inputs_capacity;
  mpg_workspace space;
} recall;

/* Returns the counterpart of an offloaded forward value: a copy of its copy or, for a view, the
 * views from there to the value. Emits those that the backward phase does not have yet. */
static mpg_status bring_back(recall *r, const mpg_node *reader, mpg_value value,
                             mpg_value *result) {
  const mpg_graph *graph = r->graph;
  mpg_value copy = r->recalled[mpg_value_index(graph, value)], root = mpg_view_root(graph, value);
  mpg_value *known = &r->back[mpg_value_index(graph, root)];
  if (!mpg_has_value(*known)) {
    r->result->phase = MPG_PHASE_BACKWARD;
    r->result->scope = reader->scope;
    r->result->origin = reader->origin;
    MPG_TRY(
        mpg_graph_emit_move(r->result, copy, mpg_graph_at(graph, root)->device, true, true, known));
  }
  for (;;) {
    /* The view closest to the root that has no counterpart. */
    mpg_value next = value, from = value;
    while (!mpg_has_value(r->back[mpg_value_index(graph, from)])) {
      next = from;
      from = mpg_node_inputs(graph, &graph->nodes[from.node])[0];
    }
    mpg_value *target = &r->back[mpg_value_index(graph, next)];
    if (mpg_has_value(*target)) break;
    const mpg_node *view = &graph->nodes[next.node];
    uint32_t number;
    MPG_TRY(mpg_grow((void **)&r->inputs, &r->inputs_capacity, view->num_inputs + 1,
                     sizeof *r->inputs));
    memcpy(r->inputs, mpg_node_inputs(graph, view), view->num_inputs * sizeof *r->inputs);
    r->inputs[0] = r->back[mpg_value_index(graph, from)];
    MPG_TRY(mpg_graph_append(r->result, graph, next.node, r->inputs, &number));
    r->result->nodes[number].phase = MPG_PHASE_BACKWARD;
    *target = (mpg_value){number, 0};
  }
  *result = r->back[mpg_value_index(graph, value)];
  return MPG_OK;
}

static mpg_status append_reader(recall *r, uint32_t number) {
  const mpg_node *node = &r->graph->nodes[number];
  mpg_value *inputs = mpg_malloc((node->num_inputs + 1) * sizeof *inputs);
  mpg_status status = MPG_OK;
  if (!inputs) return mpg_out_of_host_memory(node->num_inputs * sizeof *inputs);
  for (uint32_t i = 0; i < node->num_inputs; i++) {
    mpg_value input = inputs[i] = mpg_node_inputs(r->graph, node)[i];
    if (mpg_has_value(input) && input.node >= r->num_forward)
      inputs[i].node = r->places[input.node];
    else if (reads_forward(node, input, r->num_forward) &&
             mpg_has_value(r->recalled[mpg_value_index(r->graph, input)]))
      MPG_GOTO(bring_back(r, node, input, &inputs[i]));
  }
  MPG_GOTO(mpg_graph_append(r->result, r->graph, number, inputs, &r->places[number]));
fail:
  mpg_free(inputs);
  return status;
}

mpg_status mpg_offload_apply(const mpg_graph *joint, size_t num_forward, const mpg_value *recalled,
                             const mpg_value_list *lists, int num_lists, mpg_graph *result) {
  recall r = {.graph = joint, .num_forward = num_forward, .recalled = recalled, .result = result};
  mpg_status status = MPG_OK;
  bool *live = NULL;
  r.places = mpg_workspace_take(&r.space, joint->num_nodes, sizeof *r.places);
  r.back = mpg_workspace_take(&r.space, joint->num_values, sizeof *r.back);
  MPG_GOTO(find_live(&r.space, joint, lists[0].values, lists[0].count, &live));
  for (size_t v = 0; v < joint->num_values; v++) r.back[v] = MPG_NO_VALUE;
  for (size_t n = 0; n < num_forward; n++)
    MPG_GOTO(mpg_graph_append(result, joint, (uint32_t)n, mpg_node_inputs(joint, &joint->nodes[n]),
                              &r.places[n]));
  for (size_t n = num_forward; n < joint->num_nodes; n++)
    if (live[n] || mpg_node_is_input(&joint->nodes[n])) MPG_GOTO(append_reader(&r, (uint32_t)n));
  for (int i = 0; i < num_lists; i++)
    for (size_t k = 0; k < lists[i].count; k++) {
      mpg_value *value = &lists[i].values[k];
      if (mpg_has_value(*value) && value->node >= num_forward) value->node = r.places[value->node];
    }
fail:
  mpg_workspace_free(&r.space);
  mpg_free(r.inputs);
  return status;
}
