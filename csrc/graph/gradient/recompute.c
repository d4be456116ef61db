/* Recomputation: chooses the forward values to keep, and recomputes the rest in the backward
 * phase. */
#include "graph/gradient/recompute.h"

#include <stdlib.h>
#include <string.h>

#include "base/workspace.h"
#include "graph/ir/analysis.h"

typedef struct walker {
  const mpg_graph *graph;
  size_t num_forward;
  bool *recomputable; /* per forward node: true if it may be recomputed */
  bool *kept;         /* per forward value: true if recomputation starts from it */
  bool *wanted;       /* per forward node: true if it must be recomputed */
  uint32_t *stack;    /* forward nodes whose inputs are not yet visited */
  size_t depth;
  mpg_workspace space; /* owns all these arrays */
} walker;

static bool only_updates_states(const mpg_node *node) {
  return node->op && mpg_op_only_updates_states(node->op, node->params, node->train);
}

static bool is_state(const mpg_node *node, uint32_t input) {
  return mpg_op_input_mutable(node->op, (int)input);
}

/* Marks each value that an effect writes, and the views of these values. */
static void find_written(const mpg_graph *graph, size_t num_forward, bool *written) {
  for (size_t n = 0; n < num_forward; n++) {
    const mpg_node *node = &graph->nodes[n];
    for (uint32_t i = 0; i < node->num_inputs && mpg_node_mutates(node); i++)
      if (is_state(node, i))
        written[mpg_value_index(graph, mpg_node_inputs(graph, node)[i])] = true;
  }
  for (size_t n = 0; n < num_forward; n++) {
    const mpg_node *node = &graph->nodes[n];
    if (mpg_node_is_view(node) && written[mpg_value_index(graph, mpg_node_inputs(graph, node)[0])])
      written[node->values] = true;
  }
}

static mpg_status begin(walker *w, const mpg_graph *graph, size_t num_forward) {
  *w = (walker){.graph = graph, .num_forward = num_forward};
  bool *written = mpg_workspace_take(&w->space, graph->num_values, sizeof *written);
  /* True if the backward phase draws its own random numbers. The forward phase's random keys are
   * then unavailable, so its draws cannot be recomputed. */
  bool draws = false;
  w->recomputable = mpg_workspace_take(&w->space, num_forward, sizeof *w->recomputable);
  w->kept = mpg_workspace_take(&w->space, graph->num_values, sizeof *w->kept);
  w->wanted = mpg_workspace_take(&w->space, num_forward, sizeof *w->wanted);
  w->stack = mpg_workspace_take(&w->space, num_forward, sizeof *w->stack);
  MPG_TRY(mpg_workspace_check(&w->space));
  find_written(graph, num_forward, written);
  for (size_t n = num_forward; n < graph->num_nodes; n++)
    draws = draws || graph->nodes[n].random != MPG_NO_RANDOM;
  for (size_t n = 0; n < num_forward; n++) {
    const mpg_node *node = &graph->nodes[n];
    bool states = only_updates_states(node);
    w->recomputable[n] =
        node->op && node->recompute_region && !mpg_node_flag(node, MPG_OP_RENDEZVOUS) &&
        (states || !mpg_node_mutates(node)) && !(draws && node->random != MPG_NO_RANDOM);
    for (uint32_t i = 0; i < node->num_inputs && w->recomputable[n]; i++)
      if (!(states && is_state(node, i)) &&
          written[mpg_value_index(graph, mpg_node_inputs(graph, node)[i])])
        w->recomputable[n] = false;
  }
  return MPG_OK;
}

/* Calls `visit` for each forward value whose contents the node reads. */
typedef void visitor(walker *w, mpg_value value, uint32_t region, bool *saved);
static void visit_inputs(walker *w, const mpg_node *node, visitor *visit, bool *saved) {
  if (mpg_node_flag(node, MPG_OP_SHAPE_ONLY)) return;
  bool states = only_updates_states(node) && node->phase == MPG_PHASE_FORWARD;
  for (uint32_t i = 0; i < node->num_inputs; i++) {
    mpg_value input = mpg_node_inputs(w->graph, node)[i];
    if (mpg_has_value(input) && input.node < w->num_forward && !(states && is_state(node, i)))
      visit(w, input, node->recompute_region, saved);
  }
}

static void want(walker *w, uint32_t node) {
  if (w->wanted[node]) return;
  w->wanted[node] = true;
  w->stack[w->depth++] = node;
}

/* Adds the value's node to the nodes to recompute if the reader's region allows it. Otherwise marks
 * the value as kept, because recomputation of the region starts from it. */
static void find_border(walker *w, mpg_value value, uint32_t region, bool *saved) {
  (void)saved;
  uint32_t own = w->graph->nodes[value.node].recompute_region;
  bool kept = w->kept[mpg_value_index(w->graph, value)];
  if (w->recomputable[value.node] && !kept && (own == region || own == MPG_RECOMPUTE_ANYWHERE))
    want(w, value.node);
  else
    w->kept[mpg_value_index(w->graph, value)] = true;
}

/* Adds the value's node to the nodes to recompute, or marks the value as saved if find_border has
 * kept it. */
static void find_read(walker *w, mpg_value value, uint32_t region, bool *saved) {
  (void)region;
  uint32_t index = mpg_value_index(w->graph, value);
  if (w->recomputable[value.node] && !w->kept[index])
    want(w, value.node);
  else
    saved[index] = true;
}

static void walk(walker *w, const bool *live, const mpg_value *roots, size_t num_roots,
                 visitor *visit, bool *saved) {
  memset(w->wanted, 0, w->num_forward);
  for (size_t i = 0; i < num_roots; i++) {
    if (!mpg_has_value(roots[i]) || roots[i].node >= w->num_forward) continue;
    w->kept[mpg_value_index(w->graph, roots[i])] = true;
    visit(w, roots[i], 0, saved);
  }
  for (size_t n = w->num_forward; n < w->graph->num_nodes; n++)
    if (live[n]) visit_inputs(w, &w->graph->nodes[n], visit, saved);
  while (w->depth) visit_inputs(w, &w->graph->nodes[w->stack[--w->depth]], visit, saved);
}

/* Marks the nodes that the roots depend on. */
static mpg_status find_live(walker *w, const mpg_value *roots, size_t num_roots, bool **result) {
  bool *live = mpg_workspace_take(&w->space, w->graph->num_nodes, sizeof *live);
  MPG_TRY(mpg_workspace_check(&w->space));
  for (size_t i = 0; i < num_roots; i++)
    if (mpg_has_value(roots[i])) live[roots[i].node] = true;
  mpg_graph_mark_live(w->graph, live);
  *result = live;
  return MPG_OK;
}

mpg_status mpg_recompute_find(const mpg_graph *joint, size_t num_forward, const mpg_value *roots,
                              size_t num_roots, bool *saved) {
  walker w;
  mpg_status status = MPG_OK;
  bool *live = NULL;
  MPG_GOTO(begin(&w, joint, num_forward));
  MPG_GOTO(find_live(&w, roots, num_roots, &live));
  walk(&w, live, roots, num_roots, find_border, saved);
  walk(&w, live, roots, num_roots, find_read, saved);
fail:
  mpg_workspace_free(&w.space);
  return status;
}

bool mpg_recompute_wanted(const mpg_graph *graph, size_t num_forward) {
  for (size_t n = 0; n < num_forward; n++)
    if (graph->nodes[n].recompute_region) return true;
  return false;
}

/* --- Recomputing ------------------------------------------------------------------------------ */

typedef struct recomputation {
  walker walk;
  const bool *saved;
  mpg_graph *result;
  /* Per node of the joint graph: its number in the result. For a recomputed forward node, the
   * number of the copy. */
  uint32_t *places;
  uint32_t *batch; /* forward nodes to recompute next */
  mpg_value *inputs;
  size_t inputs_capacity;
} recomputation;

static bool is_recomputed(const recomputation *r, mpg_value value) {
  return value.node < r->walk.num_forward && r->walk.recomputable[value.node] &&
         !r->saved[mpg_value_index(r->walk.graph, value)];
}

static mpg_value renamed(const recomputation *r, mpg_value value) {
  if (!mpg_has_value(value) || (value.node < r->walk.num_forward && !is_recomputed(r, value)))
    return value;
  return (mpg_value){r->places[value.node], value.output};
}

static int by_number(const void *a, const void *b) {
  uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
  return x < y ? -1 : x > y;
}

/* Emits a scratch array, which a recomputed node writes instead of the state, because the forward
 * phase has already updated the state. */
static mpg_status scratch(recomputation *r, const mpg_node *node, mpg_value state,
                          mpg_value *result) {
  r->result->phase = MPG_PHASE_BACKWARD;
  r->result->scope = node->scope;
  r->result->origin = node->origin;
  r->result->recompute_region = node->recompute_region;
  MPG_TRY(mpg_graph_emit_full_like(r->result, state, 0, result));
  r->result->nodes[result->node].recomputes = true;
  return MPG_OK;
}

static mpg_status append(recomputation *r, uint32_t number, bool recomputes) {
  const mpg_node *node = &r->walk.graph->nodes[number];
  const mpg_value *inputs = mpg_node_inputs(r->walk.graph, node);
  bool contents = !mpg_node_flag(node, MPG_OP_SHAPE_ONLY);
  MPG_TRY(
      mpg_grow((void **)&r->inputs, &r->inputs_capacity, node->num_inputs + 1, sizeof *r->inputs));
  for (uint32_t i = 0; i < node->num_inputs; i++) {
    if (recomputes && only_updates_states(node) && is_state(node, i)) {
      MPG_TRY(scratch(r, node, inputs[i], &r->inputs[i]));
    } else {
      r->inputs[i] = contents || !mpg_has_value(inputs[i]) || inputs[i].node >= r->walk.num_forward
                         ? renamed(r, inputs[i])
                         : inputs[i];
    }
  }
  MPG_TRY(mpg_graph_append(r->result, r->walk.graph, number, r->inputs, &r->places[number]));
  mpg_node *made = &r->result->nodes[r->places[number]];
  if (recomputes) {
    made->phase = MPG_PHASE_BACKWARD;
    made->recomputes = true;
  }
  return MPG_OK;
}

/* Recomputes the unsaved forward values that the node reads, and the unsaved values that these
 * depend on, in program order. */
static mpg_status recompute_inputs(recomputation *r, const mpg_node *node) {
  walker *w = &r->walk;
  size_t count = 0;
  for (;;) {
    bool contents = !mpg_node_flag(node, MPG_OP_SHAPE_ONLY),
         states = only_updates_states(node) && node->phase == MPG_PHASE_FORWARD;
    for (uint32_t i = 0; i < node->num_inputs && contents; i++) {
      mpg_value input = mpg_node_inputs(w->graph, node)[i];
      if (mpg_has_value(input) && is_recomputed(r, input) && !(states && is_state(node, i)))
        want(w, input.node);
    }
    if (!w->depth) break;
    r->batch[count++] = w->stack[--w->depth];
    node = &w->graph->nodes[r->batch[count - 1]];
  }
  if (count > 1) qsort(r->batch, count, sizeof *r->batch, by_number);
  for (size_t i = 0; i < count; i++) MPG_TRY(append(r, r->batch[i], true));
  return MPG_OK;
}

mpg_status mpg_recompute_apply(const mpg_graph *joint, size_t num_forward, const bool *saved,
                               const mpg_value_list *lists, int num_lists, mpg_graph *result) {
  recomputation r = {.saved = saved, .result = result};
  mpg_status status = MPG_OK;
  bool *live = NULL;
  MPG_GOTO(begin(&r.walk, joint, num_forward));
  r.places = mpg_workspace_take(&r.walk.space, joint->num_nodes, sizeof *r.places);
  r.batch = mpg_workspace_take(&r.walk.space, num_forward, sizeof *r.batch);
  MPG_GOTO(mpg_workspace_check(&r.walk.space));
  for (size_t n = 0; n < num_forward; n++) {
    const mpg_node *node = &joint->nodes[n];
    MPG_GOTO(
        mpg_graph_append(result, joint, (uint32_t)n, mpg_node_inputs(joint, node), &r.places[n]));
  }
  MPG_GOTO(find_live(&r.walk, lists[0].values, lists[0].count, &live));
  for (size_t n = num_forward; n < joint->num_nodes; n++) {
    if (!live[n] && !mpg_node_is_input(&joint->nodes[n])) continue;
    MPG_GOTO(recompute_inputs(&r, &joint->nodes[n]));
    MPG_GOTO(append(&r, (uint32_t)n, false));
  }
  for (int i = 0; i < num_lists; i++)
    for (size_t k = 0; k < lists[i].count; k++) {
      mpg_value *value = &lists[i].values[k];
      if (mpg_has_value(*value) && value->node >= num_forward) value->node = r.places[value->node];
    }
fail:
  mpg_workspace_free(&r.walk.space);
  mpg_free(r.inputs);
  return status;
}
