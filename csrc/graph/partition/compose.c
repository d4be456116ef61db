/* Replaces nodes that cannot be divided as their operands are cut by ops that can.
 *
 * BatchNorm with the statistics of the batch becomes sums and elementwise ops, because parts of the
 * batch have different statistics. A Winograd convolution becomes the convolution that it computes,
 * because the layout of its packed weight has no digits for channels. Propagation then runs again,
 * on the new graph. */
#include "graph/partition/partition.h"
#include "op/layers/equivalents.h"

bool mpg_part_composes(const mpg_partitioning *p, const mpg_node *node) {
  return node->op && !p->request->micro_batches &&
         mpg_op_only_updates_states(node->op, node->params, node->train);
}

static bool is_cut(const mpg_partitioning *p, mpg_value value, int m) {
  const mpg_part_value *own = &p->values[mpg_value_index(p->graph, value)];
  return !own->stored && own->layout.cuts[m].on;
}

/* True if a Winograd convolution has an operand whose cut it does not follow. */
static bool is_left_whole(const mpg_partitioning *p, uint32_t n) {
  enum { DATA, WEIGHT = 2 };
  const mpg_node *node = &p->graph->nodes[n];
  const mpg_mesh *mesh = mpg_part_mesh(p, node);
  mpg_convolution_params params;
  if (!mesh || !node->op || !mpg_winograd_undo(node->op, node->params, &params)) return false;
  for (int m = 0; m < mesh->num_axes; m++) {
    if (p->nodes[n].known && p->nodes[n].cuts[m].factor >= 0) continue;
    if (is_cut(p, mpg_node_inputs(p->graph, node)[DATA], m) ||
        is_cut(p, mpg_node_inputs(p->graph, node)[WEIGHT], m) || is_cut(p, (mpg_value){n, 0}, m))
      return true;
  }
  return false;
}

static bool is_replaced(const mpg_partitioning *p, uint32_t n) {
  return p->live[n] && ((p->nodes[n].divided && mpg_part_composes(p, &p->graph->nodes[n])) ||
                        is_left_whole(p, n));
}

static mpg_status emit_norm(mpg_graph *target, const mpg_node *node, const mpg_value *inputs,
                            mpg_value *outputs) {
  mpg_gradient g = {.builder = &target->builder,
                    .op = node->op,
                    .params = node->params,
                    .num_inputs = (int)node->num_inputs,
                    .num_outputs = (int)node->num_outputs,
                    .inputs = inputs,
                    .train = node->train};
  mpg_compose_batch_norm(&g, inputs, outputs);
  return g.status;
}

/* Emits the convolution that a Winograd convolution with the inputs (data, packed, weight, bias)
 * computes. */
static mpg_status emit_convolution(mpg_graph *target, const mpg_node *node, const mpg_value *inputs,
                                   mpg_value *output) {
  mpg_convolution_params params;
  if (!mpg_winograd_undo(node->op, node->params, &params))
    return mpg_fail(MPG_ERROR, "internal: %s has no equivalent", node->op->name);
  const mpg_value used[3] = {inputs[0], inputs[2], params.no_bias ? MPG_NO_VALUE : inputs[3]};
  return mpg_graph_emit(target, mpg_op_get(MPG_OP__convolution_channels_last), &params, used,
                        params.no_bias ? 2 : 3, MPG_NO_VALUE, output);
}

/* Copies node `n`, or emits its replacement. `pieces` receives its values. */
static mpg_status copy_node(const mpg_partitioning *p, uint32_t n, mpg_graph *target,
                            mpg_value *pieces) {
  const mpg_graph *graph = p->graph;
  const mpg_node *node = &graph->nodes[n];
  mpg_arena *arena = &((mpg_partitioning *)p)->arena;
  mpg_value *inputs = mpg_arena_alloc(arena, node->num_inputs * sizeof *inputs + 1);
  if (!inputs) return mpg_out_of_host_memory(node->num_inputs * sizeof *inputs);
  for (uint32_t i = 0; i < node->num_inputs; i++) {
    inputs[i] = mpg_node_inputs(graph, node)[i];
    if (mpg_has_value(inputs[i]))
      inputs[i] = p->values[mpg_value_index(graph, inputs[i])].pieces[0];
  }
  mpg_partition_enter(target, node);
  if (is_left_whole(p, n)) return emit_convolution(target, node, inputs, pieces);
  if (is_replaced(p, n)) return emit_norm(target, node, inputs, pieces);
  uint32_t number;
  MPG_TRY(mpg_graph_append(target, graph, n, inputs, &number));
  for (uint32_t k = 0; k < node->num_outputs; k++) pieces[k] = (mpg_value){number, k};
  return MPG_OK;
}

mpg_status mpg_partition_compose(mpg_partitioning *p, mpg_graph *target, bool *changed) {
  const mpg_graph *graph = p->graph;
  *changed = false;
  for (uint32_t n = 0; n < graph->num_nodes && !*changed; n++) *changed = is_replaced(p, n);
  if (!*changed) return MPG_OK;
  mpg_value *pieces = mpg_arena_alloc(&p->arena, graph->num_values * sizeof *pieces + 1);
  mpg_value *outputs = mpg_arena_alloc(&p->arena, graph->num_outputs * sizeof *outputs + 1);
  if (!pieces || !outputs) return mpg_out_of_host_memory(graph->num_values * sizeof *pieces);
  for (uint32_t v = 0; v < graph->num_values; v++) {
    pieces[v] = MPG_NO_VALUE;
    p->values[v].pieces = &pieces[v];
  }
  for (uint32_t n = 0; n < graph->num_nodes; n++)
    MPG_TRY(copy_node(p, n, target, &pieces[graph->nodes[n].values]));
  mpg_partition_leave(target, graph);
  for (size_t i = 0; i < graph->num_outputs; i++)
    outputs[i] = pieces[mpg_value_index(graph, graph->outputs[i])];
  return mpg_graph_set_outputs(target, outputs, graph->num_outputs);
}
