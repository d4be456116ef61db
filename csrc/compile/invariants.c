/* Bindings, and the values kept with them, which depend only on parameters and constants. */
#include <string.h>

#include "compile/invariants.h"

/* --- Compiling -------------------------------------------------------------------------------- */

/* Finds the fixed arrays (bound inputs and constants) that the invariants program reads. */
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
  MPG_TRY(mpg_graph_hoist_invariants(&c->graph, c->inputs + mpg_compiled_first_fixed(c),
                                     c->num_bound + c->num_constants, &c->kept, &num_kept));
  c->num_kept = (uint32_t)num_kept;
  return num_kept ? plan_invariants(c) : MPG_OK;
}

/* --- Calling ---------------------------------------------------------------------------------- */

/* List of the compiled calls that keep values, the most recently bound first. Runtime state,
 * guarded by the host lock. */
static mpg_compiled *keepers;

void mpg_compiled_release_kept(void) {
  while (keepers) mpg_compiled_unbind(keepers);
}

/* Maximum number of signatures of a function that keep values at the same time. */
enum { MOST_KEEPERS = 4 };

/* Adds c to the list, and evicts the function's least recently bound signatures beyond
 * MOST_KEEPERS, because each signature keeps its own copy of the packed weights. Recomputing a copy
 * takes one pass over the weights. */
static void add_keeper(mpg_compiled *c) {
  c->next_keeper = keepers;
  c->keeper_link = &keepers;
  if (keepers) keepers->keeper_link = &c->next_keeper;
  keepers = c;
  int count = 0;
  for (mpg_compiled *keeper = keepers, *next; keeper; keeper = next) {
    next = keeper->next_keeper;
    if (keeper->family == c->family && ++count > MOST_KEEPERS) mpg_compiled_unbind(keeper);
  }
}

static mpg_status new_binding(mpg_compiled *c, const mpg_inputs *inputs, mpg_binding **result) {
  uint32_t fixed = c->num_bound + c->num_constants;
  mpg_binding *binding =
      mpg_malloc(sizeof *binding + (fixed + c->num_kept) * sizeof *binding->tensors);
  if (!binding) return mpg_out_of_host_memory(fixed * sizeof *binding->tensors);
  *binding = (mpg_binding){.references = 1, .number = inputs->binding, .num_fixed = fixed};
  /* Frames cache addresses under a new number, because another thread may have replaced the arrays
   * since inputs->binding was read. */
  if (inputs->binding) binding->launched = ++c->bindings;
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
    mpg_compiled_unbind(c); /* first, so that the new binding can reuse the old one's memory */
    MPG_TRY(new_binding(c, inputs, &binding));
    /* Another thread may have set a binding while this one waited for memory. */
    mpg_compiled_unbind(c);
    c->binding = binding;
    if (binding->num_kept) add_keeper(c);
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
    any = mpg_device_has_failed(c->invariants->programs[s].device);
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
  /* Marks the kept values as computed only after the launch. Otherwise another thread could queue a
   * call ahead of the program that computes the values it reads. */
  memcpy(binding->versions, versions, c->num_sources * sizeof *versions);
  binding->watched = watched;
  binding->made = !exposed;
fail:
  for (uint32_t i = 0; blocks && i < c->invariants->num_blocks; i++)
    if (blocks[i]) mpg_storage_release(blocks[i]);
  mpg_free(blocks);
  mpg_free(versions);
  return status;
}
