/* Lifetime of compiled calls, and replacement of their captured arrays. */
#include "compile/compiled.h"

#include <string.h>

void mpg_binding_release(mpg_binding *binding) {
  if (!binding || --binding->references) return;
  for (uint32_t i = 0; i < binding->num_fixed + binding->num_kept; i++)
    mpg_tensor_release(&binding->tensors[i]);
  for (uint32_t i = 0; i < binding->num_kept; i++) mpg_kept_value_release(binding->values[i]);
  mpg_free(binding);
}

void mpg_invariants_free(mpg_invariants *invariants) {
  if (invariants->programs) mpg_program_set_release(invariants->programs);
  mpg_plan_free(&invariants->plan);
  mpg_free(invariants->computes);
  *invariants = (mpg_invariants){0};
}

/* Removes c from the list of compiled calls that keep values (invariants.c). */
static void remove_keeper(mpg_compiled *c) {
  if (!c->keeper_link) return;
  *c->keeper_link = c->next_keeper;
  if (c->next_keeper) c->next_keeper->keeper_link = c->keeper_link;
  c->keeper_link = NULL;
  c->next_keeper = NULL;
}

void mpg_compiled_unbind(mpg_compiled *c) {
  mpg_binding *binding = c->binding;
  c->binding = NULL;
  remove_keeper(c);
  mpg_binding_release(binding);
}

void mpg_compiled_backward_free(mpg_compiled_backward *backward) {
  mpg_free(backward->arrives);
  mpg_free(backward->places);
  mpg_free(backward->summed);
  mpg_free(backward->gives);
  mpg_free(backward->reached);
  if (backward->programs) mpg_program_set_release(backward->programs);
  mpg_plan_free(&backward->plan);
  mpg_free(backward->space);
  mpg_free(backward);
}

void mpg_compiled_release(mpg_compiled *c) {
  if (!c || --c->references) return;
  while (c->backwards) {
    mpg_compiled_backward *next = c->backwards->next;
    mpg_compiled_backward_free(c->backwards);
    c->backwards = next;
  }
  for (uint32_t i = 0; c->constants && i < c->num_constants; i++) mpg_array_clear(&c->constants[i]);
  mpg_compiled_unbind(c);
  while (c->spare) {
    mpg_spare_call *next = c->spare->next;
    mpg_free(c->spare);
    c->spare = next;
  }
  mpg_text_free(&c->shardings);
  mpg_free(c->space);
  mpg_free(c->constants);
  mpg_free(c->traced);
  mpg_free(c->inputs);
  mpg_free(c->outputs);
  mpg_free(c->results);
  mpg_free(c->external);
  mpg_free(c->wanted);
  mpg_free(c->carried);
  mpg_free(c->drawn);
  mpg_free(c->saved);
  mpg_free(c->recalled);
  mpg_free(c->saved_external);
  if (c->programs) mpg_program_set_release(c->programs);
  mpg_invariants_free(&c->invariants);
  mpg_invariants_free(&c->some_invariants);
  mpg_recipes_free(&c->recipes);
  mpg_free(c->invariant_threads);
  mpg_free(c->kept);
  mpg_plan_free(&c->plan);
  mpg_graph_free(&c->graph);
  mpg_graph_free(&c->original);
  mpg_free(c->original_inputs);
  mpg_free(c);
}

bool mpg_compiled_recapture(mpg_compiled *c, const mpg_captured *captured, size_t count,
                            bool recording, bool change) {
  for (uint32_t i = 0; i < c->num_constants; i++) {
    mpg_array *constant = &c->constants[i];
    const mpg_tensor *tensor = &constant->tensor;
    const mpg_captured *place = captured;
    while (place < captured + count && place->storage != tensor->storage) place++;
    if (place == captured + count || constant->trace) continue;
    const mpg_array *array = place->array;
    bool whole = constant->node == place->node && tensor->offset == place->offset &&
                 mpg_shape_equal(&tensor->desc.shape, &array->tensor.desc.shape);
    mpg_tape_node *node = whole ? array->node : NULL;
    /* Byte offset of the view in the captured array. */
    size_t ahead = tensor->offset - place->offset;
    if (!whole && (constant->node || tensor->offset < place->offset ||
                   ahead + mpg_desc_bytes(&tensor->desc) > mpg_desc_bytes(&array->tensor.desc)))
      return false;
    if (tensor->desc.dtype != array->tensor.desc.dtype ||
        mpg_tensor_device(tensor) != mpg_tensor_device(&array->tensor))
      return false;
    if (recording && mpg_tape_wants(node) && !c->wanted[c->num_given + i]) return false;
    if (!change) continue;
    mpg_array next = {.tensor = {array->tensor.storage, array->tensor.offset + ahead, tensor->desc},
                      .node = mpg_tape_retain(node),
                      .output = array->output,
                      .numpy = constant->numpy};
    mpg_tensor_retain(&next.tensor);
    mpg_array former = *constant;
    *constant = next;
    mpg_compiled_unbind(c);
    mpg_array_clear(&former);
  }
  return true;
}

mpg_status mpg_compiled_find_reached(const mpg_compiled *c, const bool *arrives, bool **reached) {
  const mpg_graph *graph = &c->graph;
  bool *marked = mpg_calloc(graph->num_nodes + 1, sizeof *marked);
  if (marked) *reached = mpg_malloc((c->num_inputs + 1) * sizeof **reached);
  if (!marked || !*reached) {
    mpg_free(marked);
    return mpg_out_of_host_memory(graph->num_nodes);
  }
  for (uint32_t i = 0; i < c->num_outputs; i++)
    if (arrives[i]) marked[c->traced[graph->num_inputs + i].node] = true;
  for (size_t n = graph->num_nodes; n-- > 0;) {
    const mpg_node *node = &graph->nodes[n];
    if (!marked[n] || mpg_node_flag(node, MPG_OP_DETACHES)) continue;
    for (uint32_t i = 0; i < node->num_inputs; i++) marked[c->traced[node->inputs + i].node] = true;
  }
  for (uint32_t i = 0; i < c->num_inputs; i++) (*reached)[i] = marked[c->inputs[i].node];
  mpg_free(marked);
  return MPG_OK;
}
