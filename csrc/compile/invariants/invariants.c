/* Bindings, and the values kept with them, which depend only on parameters and constants. */
#include <string.h>

#include "compile/invariants/invariants.h"

/* --- Compiling -------------------------------------------------------------------------------- */

mpg_status mpg_compiled_make_invariants(mpg_compiled *c) {
  size_t num_kept;
  const mpg_value *fixed = c->inputs + mpg_compiled_first_fixed(c);
  uint32_t num_fixed = c->num_bound + c->num_constants;
  MPG_TRY(mpg_graph_hoist_invariants(&c->graph, fixed, num_fixed, &c->kept, &num_kept));
  c->num_kept = (uint32_t)num_kept;
  if (!num_kept) return MPG_OK;
  /* All ranks must run the same programs. A rank that shares a value with another call, which other
   * ranks may have released, would run a smaller program. */
  MPG_TRY(
      mpg_recipes_make(&c->graph, fixed, num_fixed, c->kept, c->num_kept, !c->agreed, &c->recipes));
  c->invariant_threads = mpg_calloc(c->recipes.num_devices + 1, sizeof *c->invariant_threads);
  return c->invariant_threads ? MPG_OK : mpg_out_of_host_memory(c->recipes.num_devices);
}

/* Builds the program that computes the kept values i with computes[i]. */
static mpg_status make_program(mpg_compiled *c, const bool *computes, mpg_invariants *result) {
  mpg_order order = {0};
  mpg_status status = MPG_OK;
  mpg_invariants made = {0};
  uint32_t num_roots = 0;
  uint32_t *external = mpg_malloc((c->graph.num_values + 1) * sizeof *external);
  mpg_value *roots = mpg_malloc((c->num_kept + 1) * sizeof *roots);
  made.computes = mpg_malloc((c->num_kept + 1) * sizeof *made.computes);
  if (!external || !roots || !made.computes)
    MPG_GOTO(mpg_out_of_host_memory(c->graph.num_values * sizeof *external));
  memcpy(made.computes, computes, c->num_kept * sizeof *made.computes);
  for (size_t v = 0; v < c->graph.num_values; v++) external[v] = MPG_NO_BASE;
  for (uint32_t i = 0; i < c->num_inputs; i++)
    external[mpg_value_index(&c->graph, c->inputs[i])] = i;
  for (uint32_t i = 0; i < c->num_kept; i++) {
    if (!computes[i]) continue;
    external[mpg_value_index(&c->graph, c->kept[i])] = mpg_compiled_kept(c, i);
    roots[num_roots++] = c->kept[i];
  }
  MPG_GOTO(mpg_graph_order(&c->graph, MPG_PHASE_INVARIANT, roots, num_roots, &order));
  mpg_plan_request request = {.graph = &c->graph,
                              .order = &order,
                              .num_externals = mpg_compiled_result(c, 0),
                              .external = external};
  MPG_GOTO(mpg_plan_make(&request, &made.plan));
  MPG_GOTO(mpg_lower(&c->graph, &order, &made.plan, "compiled invariants", &made.programs));
  mpg_program_set_arrange(
      made.programs, &(mpg_parts){.count = 2,
                                  .sizes = {mpg_compiled_first_fixed(c), mpg_compiled_num_fixed(c)},
                                  .fixed = {false, true}});
  mpg_invariants_free(result);
  *result = made;
  made = (mpg_invariants){0};
fail:
  mpg_invariants_free(&made);
  mpg_order_free(&order);
  mpg_free(external);
  mpg_free(roots);
  return status;
}

mpg_status mpg_compiled_get_invariants(mpg_compiled *c) {
  if (c->invariants.programs || !c->num_kept) return MPG_OK;
  bool *all = mpg_malloc(c->num_kept * sizeof *all);
  if (!all) return mpg_out_of_host_memory(c->num_kept);
  memset(all, true, c->num_kept);
  mpg_status status = make_program(c, all, &c->invariants);
  mpg_free(all);
  return status;
}

/* Returns the program that computes the needed values. A signature whose packed weights come from
 * other signatures usually needs a small part of its values. */
static mpg_status find_program(mpg_compiled *c, const bool *needed, const mpg_invariants **result) {
  if (!memchr(needed, false, c->num_kept)) {
    *result = &c->invariants;
    return mpg_compiled_get_invariants(c);
  }
  *result = &c->some_invariants;
  if (c->some_invariants.programs && !memcmp(c->some_invariants.computes, needed, c->num_kept))
    return MPG_OK;
  return make_program(c, needed, &c->some_invariants);
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
 * MOST_KEEPERS. Signatures share the values that do not depend on shapes, such as packed weights,
 * but each may also keep values of its own. */
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
  size_t size = sizeof(mpg_binding) + (fixed + c->num_kept) * sizeof(mpg_tensor) +
                c->num_kept * sizeof(mpg_kept_value *);
  mpg_binding *binding = mpg_malloc(size);
  if (!binding) return mpg_out_of_host_memory(size);
  *binding = (mpg_binding){.references = 1, .number = inputs->binding, .num_fixed = fixed};
  binding->values = (mpg_kept_value **)(binding->tensors + fixed + c->num_kept);
  mpg_status status = MPG_OK;
  mpg_key *keys = NULL;
  /* Frames cache addresses under a new number, because another thread may have replaced the arrays
   * since inputs->binding was read. */
  if (inputs->binding) binding->launched = ++c->bindings;
  for (uint32_t i = 0; i < fixed; i++) {
    binding->tensors[i] = mpg_compiled_input(c, inputs, mpg_compiled_first_fixed(c) + i)->tensor;
    mpg_tensor_retain(&binding->tensors[i]);
  }
  if (c->num_kept) {
    keys = mpg_malloc(c->num_kept * sizeof *keys);
    if (!keys) MPG_GOTO(mpg_out_of_host_memory(c->num_kept * sizeof *keys));
    MPG_GOTO(mpg_recipes_identify(&c->recipes, binding->tensors, keys));
  }
  for (uint32_t i = 0; i < c->num_kept; i++) {
    MPG_GOTO(mpg_kept_value_get(keys[i], mpg_graph_at(&c->graph, c->kept[i]), &binding->values[i]));
    binding->tensors[fixed + i] = binding->values[i]->tensor;
    mpg_tensor_retain(&binding->tensors[fixed + i]);
    binding->num_kept++;
  }
  *result = binding;
  binding = NULL;
fail:
  mpg_free(keys);
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
  for (uint32_t i = 0; i < c->recipes.num_devices; i++)
    if (c->invariant_threads[i] !=
        atomic_load_explicit(&c->recipes.devices[i]->num_threads, memory_order_relaxed))
      return true;
  return false;
}

static bool kept_failed(const mpg_compiled *c, const mpg_binding *binding) {
  bool any = false;
  for (uint32_t i = 0; i < c->recipes.num_devices && !any; i++)
    any = mpg_device_has_failed(c->recipes.devices[i]);
  for (uint32_t i = 0; any && i < binding->num_kept; i++)
    if (mpg_storage_failure(binding->tensors[binding->num_fixed + i].storage) != MPG_OK)
      return true;
  return false;
}

static bool up_to_date(const mpg_compiled *c, const mpg_binding *binding) {
  return binding->made && binding->watched == mpg_storage_watched_writes() && !threads_changed(c) &&
         !kept_failed(c, binding);
}

/* Sets keys[i] to the key of the contents that kept value i should have, needed[i] to true if it
 * must be computed, and *any to true if a value must be. */
static mpg_status find_needed(mpg_compiled *c, const mpg_binding *binding, mpg_key *keys,
                              bool *needed, bool *any, bool *exposed) {
  for (uint32_t i = 0; i < c->recipes.num_sources; i++)
    binding->tensors[c->recipes.sources[i]].storage->watched = true;
  for (uint32_t i = 0; i < c->recipes.num_devices; i++)
    c->invariant_threads[i] =
        atomic_load_explicit(&c->recipes.devices[i]->num_threads, memory_order_relaxed);
  MPG_TRY(mpg_recipes_describe(&c->recipes, binding->tensors, keys, exposed));
  bool failed = kept_failed(c, binding);
  for (uint32_t i = 0; i < c->num_kept; i++) {
    const mpg_kept_value *value = binding->values[i];
    needed[i] = !value->made || !mpg_key_equal(value->contents, keys[i]) ||
                (failed && mpg_storage_failure(value->tensor.storage) != MPG_OK);
    *any |= needed[i];
  }
  return MPG_OK;
}

mpg_status mpg_compiled_refresh(mpg_compiled *c, mpg_binding *binding, const mpg_tensor *given) {
  if (up_to_date(c, binding)) return MPG_OK;
  bool exposed = false, any = false;
  uint64_t watched = mpg_storage_watched_writes();
  const mpg_invariants *program = NULL;
  mpg_program_set *set = NULL;
  mpg_storage **blocks = NULL;
  mpg_key *keys = mpg_malloc(c->num_kept * (sizeof *keys + sizeof(bool)));
  bool *needed = (bool *)(keys + c->num_kept);
  mpg_status status = MPG_OK;
  if (!keys) return mpg_out_of_host_memory(c->num_kept * sizeof *keys);
  binding->made = false;
  MPG_GOTO(find_needed(c, binding, keys, needed, &any, &exposed));
  if (any) {
    MPG_GOTO(find_program(c, needed, &program));
    set = program->programs;
    mpg_program_set_retain(set); /* another thread may replace it while this one waits for memory */
    blocks = mpg_calloc(set->num_blocks + 1, sizeof *blocks);
    if (!blocks) MPG_GOTO(mpg_out_of_host_memory(set->num_blocks * sizeof *blocks));
    for (uint32_t i = 0; i < c->num_kept; i++)
      if (needed[i]) binding->values[i]->made = false;
    MPG_GOTO(mpg_launch(set, &(mpg_launching){.parts = {given, binding->tensors},
                                              .binding = binding->launched,
                                              .blocks = blocks,
                                              .scope = mpg_autograd_scope(),
                                              .origin = mpg_host_origin()}));
    /* Set only after the launch. Otherwise another thread could queue a call before the program
     * that computes its kept values. */
    for (uint32_t i = 0; i < c->num_kept; i++) {
      if (!needed[i]) continue;
      binding->values[i]->contents = keys[i];
      binding->values[i]->made = true;
    }
  }
  binding->watched = watched;
  binding->made = !exposed;
fail:
  for (uint32_t i = 0; blocks && i < set->num_blocks; i++)
    if (blocks[i]) mpg_storage_release(blocks[i]);
  if (set) mpg_program_set_release(set);
  mpg_free(blocks);
  mpg_free(keys);
  return status;
}
