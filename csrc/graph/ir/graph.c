/* Creates, copies and extends graphs. */
#include "graph/ir/graph.h"

#include <string.h>

#include "op/array/collective.h"
#include "op/invoke.h"
#include "op/placement.h"

struct mpg_value_block {
  struct mpg_value_block *older;
  mpg_graph_value values[];
};

static mpg_status reserve_values(mpg_graph *graph, size_t needed) {
  if (needed <= graph->values_capacity) return MPG_OK;
  size_t capacity = graph->values_capacity ? graph->values_capacity : 64, bytes;
  while (capacity < needed) capacity *= 2;
  if (!mpg_size_mul(capacity, sizeof(mpg_graph_value), &bytes))
    return mpg_out_of_host_memory(SIZE_MAX);
  struct mpg_value_block *block = mpg_malloc(sizeof *block + bytes);
  if (!block) return mpg_out_of_host_memory(bytes);
  if (graph->num_values)
    memcpy(block->values, graph->values, graph->num_values * sizeof *graph->values);
  block->older = graph->value_block;
  graph->value_block = block;
  graph->values = block->values;
  graph->values_capacity = capacity;
  return MPG_OK;
}

static void free_value_blocks(struct mpg_value_block *block) {
  while (block) {
    struct mpg_value_block *older = block->older;
    mpg_free(block);
    block = older;
  }
}

static mpg_status builder_emit(mpg_builder *builder, const mpg_op *op, const void *params,
                               const mpg_value *inputs, int num_inputs, mpg_value like,
                               mpg_value *outputs) {
  return mpg_graph_emit((mpg_graph *)builder, op, params, inputs, num_inputs, like, outputs);
}

static const mpg_desc *builder_desc(mpg_builder *builder, mpg_value value) {
  return &mpg_graph_at((mpg_graph *)builder, value)->desc;
}

static mpg_device_id builder_device(mpg_builder *builder, mpg_value value) {
  return mpg_graph_at((mpg_graph *)builder, value)->device;
}

static uint32_t builder_next(mpg_builder *builder) {
  return (uint32_t)((mpg_graph *)builder)->num_nodes;
}

static mpg_status builder_differentiate(mpg_builder *builder, uint32_t first,
                                        const mpg_value *heads, const mpg_value *head_grads,
                                        int num_heads, const mpg_value *wanted, int num_wanted,
                                        mpg_value *gradients) {
  mpg_graph *graph = (mpg_graph *)builder;
  mpg_differentiation request = {.heads = heads,
                                 .head_grads = head_grads,
                                 .num_heads = (size_t)num_heads,
                                 .wanted = wanted,
                                 .num_wanted = (size_t)num_wanted,
                                 .gradients = gradients,
                                 .train = graph->train,
                                 .first = first};
  return mpg_graph_gradient(graph, &request);
}

void mpg_graph_init(mpg_graph *graph) {
  *graph = (mpg_graph){
      .builder = {builder_emit, builder_desc, builder_device, builder_next, builder_differentiate}};
  mpg_arena_init(&graph->arena);
}

void mpg_graph_free(mpg_graph *graph) {
  mpg_free(graph->nodes);
  mpg_free(graph->inputs);
  free_value_blocks(graph->value_block);
  mpg_free(graph->outputs);
  mpg_free(graph->descs);
  mpg_arena_free(&graph->arena);
  mpg_graph_init(graph);
}

void mpg_graph_clear(mpg_graph *graph) {
  graph->num_nodes = graph->num_inputs = graph->num_values = graph->num_outputs = 0;
  if (graph->value_block) {
    free_value_blocks(graph->value_block->older);
    graph->value_block->older = NULL;
  }
  graph->num_random = graph->scope = graph->origin = graph->recompute_region =
      graph->num_recompute_regions = 0;
  graph->offload = (mpg_device_id){0};
  graph->family = 0;
  graph->has_families = false;
  graph->phase = MPG_PHASE_FORWARD;
  graph->train = false;
  if (graph->arena.blocks) mpg_arena_reset(&graph->arena);
}

mpg_status mpg_graph_copy(mpg_graph *target, const mpg_graph *source) {
  MPG_TRY(mpg_grow((void **)&target->nodes, &target->nodes_capacity, source->num_nodes,
                   sizeof *target->nodes));
  MPG_TRY(mpg_grow((void **)&target->inputs, &target->inputs_capacity, source->num_inputs,
                   sizeof *target->inputs));
  MPG_TRY(reserve_values(target, source->num_values));
  if (source->num_nodes)
    memcpy(target->nodes, source->nodes, source->num_nodes * sizeof *target->nodes);
  if (source->num_inputs)
    memcpy(target->inputs, source->inputs, source->num_inputs * sizeof *target->inputs);
  if (source->num_values)
    memcpy(target->values, source->values, source->num_values * sizeof *target->values);
  for (size_t i = 0; i < source->num_nodes; i++) {
    mpg_node *node = &target->nodes[i];
    if (!node->op || !node->params || node->op->params->size == 0) continue;
    node->params = mpg_arena_copy(&target->arena, node->params, node->op->params->size);
    if (!node->params) return mpg_out_of_host_memory(node->op->params->size);
  }
  target->num_nodes = source->num_nodes;
  target->num_inputs = source->num_inputs;
  target->num_values = source->num_values;
  target->num_random = source->num_random;
  target->num_recompute_regions = source->num_recompute_regions;
  return mpg_graph_set_outputs(target, source->outputs, source->num_outputs);
}

static mpg_status append(mpg_graph *graph, const mpg_node *fields, const mpg_value *inputs,
                         uint32_t *number) {
  MPG_TRY(mpg_grow((void **)&graph->nodes, &graph->nodes_capacity, graph->num_nodes + 1,
                   sizeof *graph->nodes));
  MPG_TRY(mpg_grow((void **)&graph->inputs, &graph->inputs_capacity,
                   graph->num_inputs + fields->num_inputs, sizeof *graph->inputs));
  MPG_TRY(reserve_values(graph, graph->num_values + fields->num_outputs));
  if (graph->num_nodes >= UINT32_MAX - 1 || graph->num_inputs + fields->num_inputs >= UINT32_MAX ||
      graph->num_values + fields->num_outputs >= UINT32_MAX)
    return mpg_fail(MPG_ERROR, "the graph has too many nodes");
  mpg_node *node = &graph->nodes[graph->num_nodes];
  *node = *fields;
  node->inputs = (uint32_t)graph->num_inputs;
  node->values = (uint32_t)graph->num_values;
  node->phase = graph->phase;
  node->train = graph->train;
  node->scope = graph->scope;
  node->origin = graph->origin;
  node->family = graph->family;
  node->recompute_region = graph->recompute_region;
  node->offload = graph->offload;
  if (fields->num_inputs)
    memcpy(graph->inputs + graph->num_inputs, inputs, fields->num_inputs * sizeof *inputs);
  graph->num_inputs += fields->num_inputs;
  graph->num_values += fields->num_outputs;
  *number = (uint32_t)graph->num_nodes++;
  return MPG_OK;
}

mpg_status mpg_graph_input(mpg_graph *graph, const mpg_desc *desc, mpg_device_id device,
                           mpg_value *value) {
  mpg_node node = {.device = device, .num_outputs = 1, .random = MPG_NO_RANDOM};
  uint32_t number;
  MPG_TRY(append(graph, &node, NULL, &number));
  graph->values[graph->nodes[number].values] = (mpg_graph_value){*desc, device};
  *value = (mpg_value){number, 0};
  return MPG_OK;
}

mpg_status mpg_graph_known(mpg_graph *graph, const mpg_op *op, void *opaque, const void *params,
                           const mpg_value *inputs, uint32_t num_inputs, uint32_t num_outputs,
                           mpg_device_id device, uint32_t *node) {
  mpg_node fields = {.op = op,
                     .opaque = opaque,
                     .params = params,
                     .device = device,
                     .num_inputs = num_inputs,
                     .num_outputs = num_outputs,
                     .random = MPG_NO_RANDOM};
  return append(graph, &fields, inputs, node);
}

typedef struct placed_inputs {
  const mpg_graph *graph;
  const mpg_value *values;
} placed_inputs;

static mpg_device_id input_device(const void *inputs, int index) {
  const placed_inputs *placed = inputs;
  return mpg_graph_at(placed->graph, placed->values[index])->device;
}

/* Emits the ops of which `op` is composed. Components are ops of mx.nd, so results of a NumPy op
 * pass through a view that marks them as NumPy's. */
static mpg_status emit_composed(mpg_graph *graph, const mpg_op *op, const void *params,
                                const mpg_value *inputs, int num_inputs, mpg_value *outputs) {
  MPG_TRY(mpg_op_compose(&graph->builder, op, params, graph->train, inputs, num_inputs, outputs));
  for (int i = 0; mpg_op_is_numpy(op) && i < mpg_op_num_outputs(op, params, num_inputs); i++) {
    if (mpg_node_is_numpy(&graph->nodes[outputs[i].node])) continue;
    const mpg_op *view = mpg_op_get(MPG_OP__reshape_exact)->numpy;
    const mpg_exact_shape_params shape = {
        .shape = mpg_shape_tuple(&mpg_graph_at(graph, outputs[i])->desc.shape)};
    MPG_TRY(mpg_graph_emit(graph, view, &shape, &outputs[i], 1, MPG_NO_VALUE, &outputs[i]));
  }
  return MPG_OK;
}

mpg_status mpg_graph_emit(mpg_graph *graph, const mpg_op *op, const void *params,
                          const mpg_value *inputs, int num_inputs, mpg_value like,
                          mpg_value *outputs) {
  mpg_device_id device, otherwise = {.type = MPG_CPU};
  if (op->flags & MPG_OP_COMPOSED)
    return emit_composed(graph, op, params, inputs, num_inputs, outputs);
  if (mpg_has_value(like)) otherwise = mpg_graph_at(graph, like)->device;
  MPG_TRY(mpg_op_place(op, params, &(placed_inputs){graph, inputs}, num_inputs, input_device,
                       otherwise, &device));
  int num_outputs = mpg_op_num_outputs(op, params, num_inputs);
  MPG_TRY(mpg_grow((void **)&graph->descs, &graph->descs_capacity,
                   (size_t)(num_inputs + num_outputs), sizeof *graph->descs));
  mpg_desc *in = graph->descs, *out = in + num_inputs;
  for (int i = 0; i < num_inputs; i++) in[i] = mpg_graph_at(graph, inputs[i])->desc;
  for (int i = 0; i < num_outputs; i++)
    out[i] = (mpg_desc){.shape = {.ndim = -1}, .dtype = MPG_DTYPE_NONE};
  MPG_TRY(mpg_op_infer(op, params, graph->train, in, num_inputs, out, num_outputs));
  MPG_TRY(mpg_op_check_outputs(op, out, num_outputs));
  if (params && op->params->size && !graph->borrow_params) {
    params = mpg_arena_copy(&graph->arena, params, op->params->size);
    if (!params) return mpg_out_of_host_memory(op->params->size);
  }
  mpg_node fields = {.op = op,
                     .params = params,
                     .device = device,
                     .num_inputs = (uint32_t)num_inputs,
                     .num_outputs = (uint32_t)num_outputs,
                     .random = MPG_NO_RANDOM};
  bool draws = mpg_op_draws(op, params, graph->train);
  if (draws) fields.random = graph->num_random;
  uint32_t number;
  MPG_TRY(append(graph, &fields, inputs, &number));
  graph->num_random += draws;
  mpg_graph_value *values = graph->values + graph->nodes[number].values;
  mpg_device_id places[MPG_MAX_SPANNED];
  bool elsewhere = op->flags & MPG_OP_SPANS &&
                   mpg_collective_places(((const mpg_collective_params *)params)->output_devices,
                                         places, num_outputs) > 0;
  for (int i = 0; i < num_outputs; i++) {
    values[i] = (mpg_graph_value){out[i], elsewhere ? places[i] : device};
    outputs[i] = (mpg_value){number, (uint32_t)i};
  }
  return MPG_OK;
}

mpg_status mpg_graph_emit_copy(mpg_graph *graph, mpg_value value, mpg_value *copy) {
  mpg_copyto_params params;
  memset(&params, 0, sizeof params);
  return mpg_graph_emit(graph, mpg_op_get(MPG_OP__copyto), &params, &value, 1, MPG_NO_VALUE, copy);
}

mpg_status mpg_graph_emit_move(mpg_graph *graph, mpg_value value, mpg_device_id device, bool paced,
                               bool prefetched, mpg_value *copy) {
  mpg_copyto_params params;
  mpg_params_defaults(&mpg_copyto_table, &params);
  params.ctx = device;
  params.paced = paced;
  params.prefetched = prefetched;
  return mpg_graph_emit(graph, mpg_op_get(MPG_OP__copyto), &params, &value, 1, value, copy);
}

mpg_status mpg_graph_emit_full_like(mpg_graph *graph, mpg_value like, double fill,
                                    mpg_value *result) {
  mpg_full_like_params params;
  memset(&params, 0, sizeof params);
  params.fill_value = fill;
  params.dtype = MPG_DTYPE_NONE;
  return mpg_graph_emit(graph, mpg_op_get(MPG_OP__full_like), &params, &like, 1, like, result);
}

mpg_value mpg_view_root(const mpg_graph *graph, mpg_value value) {
  while (mpg_node_is_view(&graph->nodes[value.node]))
    value = mpg_node_inputs(graph, &graph->nodes[value.node])[0];
  return value;
}

mpg_status mpg_graph_append(mpg_graph *graph, const mpg_graph *from, uint32_t number,
                            const mpg_value *inputs, uint32_t *result) {
  mpg_node fields = from->nodes[number];
  if (fields.op && fields.params && fields.op->params->size) {
    fields.params = mpg_arena_copy(&graph->arena, fields.params, fields.op->params->size);
    if (!fields.params) return mpg_out_of_host_memory(fields.op->params->size);
  }
  MPG_TRY(append(graph, &fields, inputs, result));
  mpg_node *node = &graph->nodes[*result];
  fields.inputs = node->inputs;
  uint32_t old = fields.values;
  fields.values = node->values;
  *node = fields;
  for (uint32_t i = 0; i < node->num_outputs; i++)
    graph->values[node->values + i] = from->values[old + i];
  if (node->random != MPG_NO_RANDOM && node->random >= graph->num_random)
    graph->num_random = node->random + 1;
  return MPG_OK;
}

mpg_status mpg_graph_set_outputs(mpg_graph *graph, const mpg_value *values, size_t count) {
  MPG_TRY(
      mpg_grow((void **)&graph->outputs, &graph->outputs_capacity, count, sizeof *graph->outputs));
  if (count) memcpy(graph->outputs, values, count * sizeof *values);
  graph->num_outputs = count;
  return MPG_OK;
}

bool mpg_node_mutates(const mpg_node *node) {
  if (mpg_node_runs_on_host(node)) return true;
  if (!node->op || !strchr(node->op->inputs, '!')) return false;
  for (uint32_t i = 0; i < node->num_inputs; i++)
    if (mpg_op_input_mutable(node->op, (int)i)) return true;
  return false;
}

bool mpg_node_crosses(const mpg_graph *graph, const mpg_node *node) {
  return mpg_node_flag(node, MPG_OP_COPY) &&
         !mpg_device_id_equal(mpg_graph_at(graph, mpg_node_inputs(graph, node)[0])->device,
                              node->device);
}

bool mpg_node_is_paced(const mpg_graph *graph, const mpg_node *node) {
  return mpg_node_crosses(graph, node) && ((const mpg_copyto_params *)node->params)->paced;
}

bool mpg_graph_spans_ranks(const mpg_graph *graph) {
  for (size_t v = 0; v < graph->num_values; v++)
    if (graph->values[v].device.rank) return true;
  return false;
}
