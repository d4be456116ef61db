/* Bindings, and what is kept with them: values that depend on parameters and constants alone. */
#include <string.h>

#include "compile/compiled_call.h"
#include "graph/gradient/recompute.h"
#include "op/layers/convolution.h"

/* --- Compiling -------------------------------------------------------------------------------- */

/* Which fixed arrays the invariants reads. */
static mpg_status find_sources(mpg_compiled *c) {
  const mpg_program_set *set = c->invariants;
  uint32_t first = mpg_compiled_first_fixed(c), num_borrowed = c->num_bound + c->num_constants;
  bool *seen = mpg_calloc(num_borrowed + 1, sizeof *seen);
  c->sources = mpg_malloc((num_borrowed + 1) * sizeof *c->sources);
  if (!seen || !c->sources) {
    mpg_free(seen);
    return mpg_out_of_host_memory(num_borrowed * sizeof *c->sources);
  }
  for (uint32_t s = 0; s < set->num_segments; s++)
    for (uint32_t i = 0; i < set->segments[s].num_accesses; i++) {
      uint32_t base = set->segments[s].accesses[i].base;
      if (base >= first && base - first < num_borrowed) seen[base - first] = true;
    }
  for (uint32_t i = 0; i < num_borrowed; i++)
    if (seen[i]) c->sources[c->num_sources++] = i;
  mpg_free(seen);
  return MPG_OK;
}

static mpg_status plan_invariants(mpg_compiled *c) {
  mpg_order order = {0};
  mpg_status status = MPG_OK;
  uint32_t *external = mpg_malloc((c->graph.num_values + 1) * sizeof *external);
  if (!external) return mpg_out_of_host_memory(c->graph.num_values * sizeof *external);
  for (size_t v = 0; v < c->graph.num_values; v++) external[v] = MPG_NO_BASE;
  for (uint32_t i = 0; i < c->num_inputs; i++)
    external[mpg_value_index(&c->graph, c->inputs[i])] = i;
  for (uint32_t i = 0; i < c->num_kept; i++)
    external[mpg_value_index(&c->graph, c->kept[i])] = mpg_compiled_kept(c, i);
  MPG_GOTO(mpg_graph_order(&c->graph, MPG_PHASE_INVARIANT, c->kept, c->num_kept, &order));
  mpg_plan_request request = {.graph = &c->graph,
                              .order = &order,
                              .num_externals = mpg_compiled_result(c, 0),
                              .external = external};
  MPG_GOTO(mpg_plan_make(&request, &c->invariant_plan));
  MPG_GOTO(mpg_lower(&c->graph, &order, &c->invariant_plan, "compiled invariants", &c->invariants));
  if (c->stages != MPG_STAGES_NONE) goto fail; /* pieces have all external arrays in one part */
  mpg_program_set_arrange(
      c->invariants, &(mpg_parts){.count = 2,
                                  .sizes = {mpg_compiled_first_fixed(c), mpg_compiled_num_fixed(c)},
                                  .fixed = {false, true}});
  MPG_GOTO(find_sources(c));
  c->invariant_threads = mpg_calloc(c->invariants->num_programs + 1, sizeof *c->invariant_threads);
  if (!c->invariant_threads) MPG_GOTO(mpg_out_of_host_memory(c->invariants->num_programs));
fail:
  mpg_order_free(&order);
  mpg_free(external);
  return status;
}

mpg_status mpg_compiled_make_invariants(mpg_compiled *c) {
  size_t num_kept;
  c->kept = mpg_malloc((c->graph.num_values + 1) * sizeof *c->kept);
  if (!c->kept) return mpg_out_of_host_memory(c->graph.num_values * sizeof *c->kept);
  MPG_TRY(mpg_graph_hoist_invariants(&c->graph, c->inputs + mpg_compiled_first_fixed(c),
                                     c->num_bound + c->num_constants, c->kept, &num_kept));
  c->num_kept = (uint32_t)num_kept;
  return num_kept ? plan_invariants(c) : MPG_OK;
}

/* --- For pieces ------------------------------------------------------------------------------- */

/* Packing takes 3 % of a convolution of 3,000 tiles, and more of smaller ones. */
static bool is_small(const mpg_graph *graph, const mpg_node *convolution) {
  enum { FEW_TILES = 4096 };
  const mpg_winograd_params *params = convolution->params;
  mpg_winograd w;
  mpg_winograd_set(&w, &mpg_graph_at(graph, mpg_node_inputs(graph, convolution)[0])->desc.shape,
                   params->num_filter, &params->pad);
  return params->trains && w.tiles <= FEW_TILES;
}

static mpg_status share_pack(mpg_graph *graph, uint32_t n, bool backward) {
  const mpg_node node = graph->nodes[n];
  const mpg_value pack = mpg_node_inputs(graph, &node)[1],
                  weight = mpg_node_inputs(graph, &node)[2];
  graph->nodes[pack.node].phase = MPG_PHASE_INVARIANT;
  if (!backward) return MPG_OK;
  mpg_value result;
  mpg_pack_winograd_params params;
  memset(&params, 0, sizeof params);
  params.backward = true;
  graph->phase = MPG_PHASE_INVARIANT;
  graph->train = true; /* as the gradient is computed, which finds this as its own twin */
  graph->scope = node.scope;
  graph->origin = node.origin;
  return mpg_graph_emit(graph, mpg_op_get(MPG_OP__pack_winograd), &params, &weight, 1, MPG_NO_VALUE,
                        &result);
}

mpg_status mpg_compiled_share_packs(mpg_compiled *c, const bool *shared) {
  mpg_graph *graph = &c->graph;
  uint32_t count = (uint32_t)graph->num_nodes;
  if (mpg_recompute_wanted(graph, count))
    return MPG_OK; /* who computes things again wants memory */
  bool *fixed = mpg_calloc(2 * (size_t)count + 1, sizeof *fixed), *wants = fixed + count;
  mpg_status status = MPG_OK;
  if (!fixed) return mpg_out_of_host_memory(2 * (size_t)count);
  const mpg_graph before = *graph;
  for (uint32_t i = 0; i < c->num_given; i++) {
    fixed[c->inputs[i].node] = shared[i];
    wants[c->inputs[i].node] = c->wanted[i];
  }
  for (uint32_t n = 0; n < count; n++)
    for (uint32_t i = 0; graph->nodes[n].op && i < graph->nodes[n].num_inputs; i++) {
      uint32_t source = mpg_node_inputs(graph, &graph->nodes[n])[i].node;
      wants[n] |= wants[source];
      if (mpg_op_input_mutable(graph->nodes[n].op, (int)i)) fixed[source] = false;
    }
  for (uint32_t n = 0; n < count; n++) {
    const mpg_node *node = &graph->nodes[n];
    if (!node->op || node->op->id != MPG_OP__winograd_convolution || !is_small(graph, node))
      continue;
    const mpg_value *inputs = mpg_node_inputs(graph, node);
    const mpg_node *pack = &graph->nodes[inputs[1].node];
    if (!fixed[inputs[2].node] || pack->op->id != MPG_OP__pack_winograd ||
        mpg_node_inputs(graph, pack)[0].node != inputs[2].node)
      continue;
    MPG_GOTO(share_pack(graph, n, c->recording && wants[inputs[0].node]));
  }
  MPG_VERIFY(graph);
fail:
  graph->phase = before.phase;
  graph->train = before.train;
  graph->scope = before.scope;
  graph->origin = before.origin;
  mpg_free(fixed);
  return status;
}

mpg_status mpg_compiled_make_shared_invariants(mpg_compiled *c) {
  c->kept = mpg_malloc((c->graph.num_nodes + 1) * sizeof *c->kept);
  if (!c->kept) return mpg_out_of_host_memory(c->graph.num_nodes * sizeof *c->kept);
  for (uint32_t n = 0; n < c->graph.num_nodes; n++)
    if (c->graph.nodes[n].phase == MPG_PHASE_INVARIANT && !c->graph.nodes[n].duplicate_of)
      c->kept[c->num_kept++] = (mpg_value){n, 0};
  return c->num_kept ? plan_invariants(c) : MPG_OK;
}

/* --- Calling ---------------------------------------------------------------------------------- */

void mpg_binding_release(mpg_binding *binding) {
  if (!binding || --binding->references) return;
  for (uint32_t i = 0; i < binding->num_fixed + binding->num_kept; i++)
    mpg_tensor_release(&binding->tensors[i]);
  mpg_free(binding->versions);
  mpg_free(binding);
}

void mpg_compiled_unbind(mpg_compiled *c) {
  mpg_binding *binding = c->binding;
  c->binding = NULL;
  mpg_binding_release(binding);
}

static mpg_status new_binding(mpg_compiled *c, const mpg_inputs *inputs, mpg_binding **result) {
  uint32_t fixed = c->num_bound + c->num_constants;
  mpg_binding *binding =
      mpg_malloc(sizeof *binding + (fixed + c->num_kept) * sizeof *binding->tensors);
  if (!binding) return mpg_out_of_host_memory(fixed * sizeof *binding->tensors);
  *binding = (mpg_binding){.references = 1, .number = inputs->binding, .num_fixed = fixed};
  if (inputs->binding)
    binding->launched =
        ++c->bindings; /* others may have bound anew since inputs->binding was read */
  for (uint32_t i = 0; i < fixed; i++) {
    binding->tensors[i] = mpg_compiled_input(c, inputs, mpg_compiled_first_fixed(c) + i)->tensor;
    mpg_tensor_retain(&binding->tensors[i]);
  }
  mpg_status status = MPG_OK;
  binding->versions = mpg_malloc((c->num_sources + 1) * sizeof *binding->versions);
  if (!binding->versions)
    MPG_GOTO(mpg_out_of_host_memory(c->num_sources * sizeof *binding->versions));
  for (uint32_t i = 0; i < c->num_kept; i++) {
    const mpg_graph_value *value = mpg_graph_at(&c->graph, c->kept[i]);
    mpg_device *device;
    MPG_GOTO(mpg_device_get(value->device, &device));
    MPG_GOTO(mpg_tensor_create(device, &value->desc, &binding->tensors[fixed + i]));
    binding->num_kept++;
  }
  *result = binding;
  return MPG_OK;
fail:
  mpg_binding_release(binding);
  return status;
}

mpg_status mpg_compiled_bind(mpg_compiled *c, const mpg_inputs *inputs, mpg_binding **result) {
  if (!c->binding || !inputs->binding || c->binding->number != inputs->binding) {
    mpg_binding *binding = NULL;
    mpg_compiled_unbind(c); /* first: what it keeps makes room for the new one's */
    MPG_TRY(new_binding(c, inputs, &binding));
    mpg_compiled_unbind(c); /* waiting for memory lets others in */
    c->binding = binding;
  }
  *result = c->binding;
  c->binding->references++;
  return MPG_OK;
}

static bool threads_changed(const mpg_compiled *c) {
  for (uint32_t s = 0; s < c->invariants->num_programs; s++)
    if (c->invariant_threads[s] !=
        atomic_load_explicit(&c->invariants->programs[s].device->num_threads, memory_order_relaxed))
      return true;
  return false;
}

static bool kept_failed(const mpg_compiled *c, const mpg_binding *binding) {
  bool any = false;
  for (uint32_t s = 0; s < c->invariants->num_programs && !any; s++)
    any = atomic_load_explicit(&c->invariants->programs[s].device->failed, memory_order_relaxed);
  for (uint32_t i = 0; any && i < binding->num_kept; i++)
    if (mpg_storage_failure(binding->tensors[binding->num_fixed + i].storage) != MPG_OK)
      return true;
  return false;
}

static bool up_to_date(const mpg_compiled *c, mpg_binding *binding) {
  if (!binding->made || threads_changed(c) || kept_failed(c, binding)) return false;
  uint64_t watched = mpg_storage_watched_writes();
  if (binding->watched == watched) return true;
  for (uint32_t i = 0; i < c->num_sources; i++) {
    const mpg_storage *storage = binding->tensors[c->sources[i]].storage;
    if (storage->exposed || storage->version != binding->versions[i]) return false;
  }
  binding->watched = watched;
  return true;
}

mpg_status mpg_compiled_refresh(mpg_compiled *c, mpg_binding *binding, const mpg_tensor *given) {
  if (up_to_date(c, binding)) return MPG_OK;
  bool exposed = false;
  uint64_t watched = mpg_storage_watched_writes();
  mpg_storage **blocks = mpg_calloc(c->invariants->num_blocks + 1, sizeof *blocks);
  uint32_t *versions = mpg_malloc((c->num_sources + 1) * sizeof *versions);
  mpg_status status = MPG_OK;
  if (!blocks || !versions) MPG_GOTO(mpg_out_of_host_memory(c->num_sources * sizeof *versions));
  for (uint32_t i = 0; i < c->num_sources; i++) {
    mpg_storage *storage = binding->tensors[c->sources[i]].storage;
    storage->watched = true;
    exposed |= storage->exposed;
    versions[i] = storage->version;
  }
  for (uint32_t s = 0; s < c->invariants->num_programs; s++)
    c->invariant_threads[s] =
        atomic_load_explicit(&c->invariants->programs[s].device->num_threads, memory_order_relaxed);
  binding->made = false;
  MPG_GOTO(mpg_launch(c->invariants, &(mpg_launching){.parts = {given, binding->tensors},
                                                      .binding = binding->launched,
                                                      .blocks = blocks,
                                                      .scope = mpg_autograd_scope(),
                                                      .origin = mpg_host_origin()}));
  memcpy(binding->versions, versions,
         c->num_sources * sizeof *versions); /* only now: before, others would run ahead of it */
  binding->watched = watched;
  binding->made = !exposed;
fail:
  for (uint32_t i = 0; blocks && i < c->invariants->num_blocks; i++)
    if (blocks[i]) mpg_storage_release(blocks[i]);
  mpg_free(blocks);
  mpg_free(versions);
  return status;
}
