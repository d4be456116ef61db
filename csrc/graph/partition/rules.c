/* The sharding rules of nodes, and the cuts of arrays that a divided node causes. */
#include "graph/partition/partition.h"

mpg_cut mpg_part_cut(const mpg_part_node *node, int axis, int operand) {
  const mpg_node_cut *cut = &node->cuts[axis];
  if (!node->divided || cut->factor < 0) return (mpg_cut){0};
  return mpg_part_cut_of(cut, &node->rule.factors[cut->factor].digits[operand]);
}

mpg_cut mpg_part_cut_of(const mpg_node_cut *cut, const mpg_digit *digit) {
  if (digit->axis < 0) return (mpg_cut){0};
  return (mpg_cut){.on = true,
                   .digit = {.axis = digit->axis,
                             .outer = digit->outer * cut->outer,
                             .inner = digit->inner * cut->inner},
                   .size = cut->size};
}

mpg_status mpg_part_find_rule(mpg_partitioning *p, uint32_t n) {
  const mpg_node *node = &p->graph->nodes[n];
  mpg_part_node *part = &p->nodes[n];
  if (part->known) return MPG_OK;
  uint32_t count = node->num_inputs + node->num_outputs;
  mpg_desc *descs = mpg_arena_alloc(&p->arena, count * sizeof *descs + 1);
  if (!descs) return mpg_out_of_host_memory(count * sizeof *descs);
  for (uint32_t i = 0; i < count; i++) {
    mpg_value operand = i < node->num_inputs ? mpg_node_inputs(p->graph, node)[i]
                                             : (mpg_value){n, i - node->num_inputs};
    descs[i] = mpg_graph_at(p->graph, operand)->desc;
  }
  /* With given statistics, BatchNorm can be divided along all axes, as its composition can. */
  part->rule = (mpg_sharding){.op = node->op,
                              .params = node->params,
                              .num_inputs = (int)node->num_inputs,
                              .num_outputs = (int)node->num_outputs,
                              .inputs = descs,
                              .outputs = descs + node->num_inputs,
                              .train = node->train && !mpg_part_composes(p, node),
                              .arena = &p->arena};
  for (int m = 0; m < MPG_MESH_AXES; m++) part->cuts[m].factor = -1;
  part->known = true;
  return mpg_op_sharding(&part->rule);
}
