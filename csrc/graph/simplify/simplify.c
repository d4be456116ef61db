/* Simplification: rewires users of nodes that are identities or duplicates of earlier nodes. */
#include "graph/simplify/simplify.h"

#include "base/workspace.h"

typedef struct state {
  mpg_graph *graph;
  mpg_cse_table seen;
  /* Per node: the value its users read instead; for a duplicate, output 0 of the earlier node. */
  mpg_value *replacement;
  uint32_t *root; /* per node: the node that owns its memory */
  bool *identity; /* per node: true if output 0 equals an earlier value */
  bool *written;  /* per root: true if a node writes its memory */
  bool *result;   /* per root: true if its memory is an output of the graph */
} state;

/* True if users of the value read another node's value instead. This holds for output 0 of an
 * identity and for all outputs of a duplicate. */
static bool replaced(const state *s, mpg_value value) {
  return mpg_has_value(value) && mpg_has_value(s->replacement[value.node]) &&
         !(s->identity[value.node] && value.output);
}

static mpg_value now(const state *s, mpg_value value) {
  mpg_value found = s->replacement[value.node];
  return s->identity[value.node] ? found : (mpg_value){found.node, value.output};
}

static uint32_t root_of(const state *s, uint32_t n) {
  const mpg_node *node = &s->graph->nodes[n];
  return mpg_node_is_view(node) ? s->root[mpg_node_inputs(s->graph, node)[0].node] : n;
}

/* Finds the memory that nodes write and the memory of outputs. Runs before the graph changes,
 * because changes may bypass views. */
static void find_memory(state *s) {
  const mpg_graph *graph = s->graph;
  for (uint32_t n = 0; n < graph->num_nodes; n++) {
    const mpg_node *node = &graph->nodes[n];
    s->root[n] = root_of(s, n);
    for (uint32_t i = 0; mpg_node_mutates(node) && i < node->num_inputs; i++)
      if (mpg_op_input_mutable(node->op, (int)i))
        s->written[s->root[mpg_node_inputs(graph, node)[i].node]] = true;
  }
  for (size_t i = 0; i < graph->num_outputs; i++) s->result[s->root[graph->outputs[i].node]] = true;
}

static bool reads_written(const state *s, const mpg_node *node) {
  for (uint32_t i = 0; i < node->num_inputs; i++) {
    mpg_value input = mpg_node_inputs(s->graph, node)[i];
    if (mpg_has_value(input) && s->written[s->root[input.node]]) return true;
  }
  return false;
}

/* True if users of node n may read the value `by` instead. False if the memory of either value or
 * of an input of n is written, because its contents change over time. Also false if the replacement
 * would make an output share memory with another output or an input. */
static bool may_replace(state *s, uint32_t n, mpg_value by) {
  uint32_t root = s->root[by.node];
  if (s->written[s->root[n]] || s->written[root] || reads_written(s, &s->graph->nodes[n]))
    return false;
  if (s->root[n] != n || !s->result[n]) return true; /* outputs share no more memory than before */
  if (s->result[root] || mpg_node_is_input(&s->graph->nodes[root])) return false;
  s->result[root] = true;
  return true;
}

static void simplify_node(state *s, uint32_t n) {
  mpg_graph *graph = s->graph;
  mpg_node *node = &graph->nodes[n];
  s->replacement[n] = MPG_NO_VALUE;
  for (uint32_t i = 0; i < node->num_inputs; i++)
    if (replaced(s, graph->inputs[node->inputs + i]))
      graph->inputs[node->inputs + i] = now(s, graph->inputs[node->inputs + i]);
  s->root[n] = root_of(s, n);
  mpg_value same = mpg_graph_find_identity(graph, node);
  if (mpg_has_value(same)) {
    if (may_replace(s, n, same)) s->replacement[n] = same;
    s->identity[n] = true;
    return;
  }
  mpg_value origin = mpg_graph_uncast(graph, node);
  if (mpg_has_value(origin) && !s->written[s->root[origin.node]])
    graph->inputs[node->inputs] = origin;
  if (reads_written(s, node)) return;
  uint32_t earlier = mpg_cse_table_find(&s->seen, graph, n);
  if (earlier == n || !may_replace(s, n, (mpg_value){earlier, 0})) return;
  s->replacement[n] = (mpg_value){earlier, 0};
  node->duplicate_of = earlier + 1;
}

mpg_status mpg_graph_simplify(mpg_graph *graph) {
  size_t count = graph->num_nodes;
  mpg_workspace space = {0};
  state s = {.graph = graph,
             .replacement = mpg_workspace_take(&space, count, sizeof *s.replacement),
             .root = mpg_workspace_take(&space, count, sizeof *s.root),
             .identity = mpg_workspace_take(&space, count, sizeof *s.identity),
             .written = mpg_workspace_take(&space, count, sizeof *s.written),
             .result = mpg_workspace_take(&space, count, sizeof *s.result)};
  mpg_status status = MPG_OK;
  MPG_GOTO(mpg_workspace_check(&space));
  MPG_GOTO(mpg_cse_table_init(&s.seen, graph->num_nodes));
  find_memory(&s);
  for (uint32_t n = 0; n < graph->num_nodes; n++) simplify_node(&s, n);
  for (size_t i = 0; i < graph->num_outputs; i++)
    if (replaced(&s, graph->outputs[i])) graph->outputs[i] = now(&s, graph->outputs[i]);
  MPG_VERIFY(graph);
fail:
  mpg_cse_table_free(&s.seen);
  mpg_workspace_free(&space);
  return status;
}
