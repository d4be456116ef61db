/* State of calls of compiled functions. */
#include "compile/call_state.h"

void mpg_release_blocks(mpg_storage **blocks, uint32_t begin, uint32_t end) {
  for (uint32_t i = begin; i < end; i++) {
    if (blocks[i]) mpg_storage_release(blocks[i]);
    blocks[i] = NULL;
  }
}

static const mpg_desc *external_desc(const mpg_compiled *c, uint32_t external) {
  mpg_value value = external < c->num_inputs ? c->inputs[external]
                                             : c->results[external - mpg_compiled_result(c, 0)];
  return &mpg_graph_at(&c->graph, value)->desc;
}

static mpg_status contents_lost(const mpg_compiled *c, uint32_t external, const char *block,
                                bool no_memory) {
  char shape[MPG_SHAPE_TEXT_SIZE];
  const mpg_desc *desc = external_desc(c, external);
  const char *what = external < c->num_given    ? "input"
                     : external < c->num_inputs ? "captured array"
                                                : "result";
  uint32_t number = external < c->num_given ? external : external - c->num_given;
  for (uint32_t i = 0; external >= c->num_inputs && i < c->num_outputs; i++)
    if (c->outputs[i].external == external) number = i;
  return mpg_fail(
      MPG_ERROR,
      "backward of %s: its %s %u (%s %s) was overwritten after the forward pass, but the gradient "
      "needs the old contents, and %s. Write into another array, or copy before writing",
      block, what, number, mpg_dtype_name(desc->dtype),
      mpg_shape_text(&desc->shape, shape, sizeof shape), mpg_contents_lost_text(no_memory));
}

void mpg_call_save(mpg_call_state *state, uint32_t external, const mpg_tensor *tensor) {
  state->saved[external] = state->compiled->saved_external[external]
                               ? mpg_contents_save(tensor->storage, tensor->offset)
                               : (mpg_saved){NULL, tensor->offset, tensor->storage->version};
}

mpg_status mpg_call_get_saved(const mpg_call_state *state, const char *block,
                              mpg_tensor *externals) {
  uint32_t end = mpg_compiled_forward_externals(state->compiled);
  for (uint32_t i = mpg_call_external(state, 0); i < end; i = mpg_call_external(state, i + 1)) {
    const mpg_saved *saved = &state->saved[i];
    externals[i].storage = NULL;
    if (!saved->storage) continue;
    MPG_TRY(mpg_call_find_saved(state->compiled, i, saved->storage, saved->version, block,
                                &externals[i].storage));
    externals[i].offset = saved->offset;
    externals[i].desc = *external_desc(state->compiled, i);
  }
  return MPG_OK;
}

void mpg_call_release_saved(mpg_call_state *state) {
  uint32_t end = mpg_compiled_forward_externals(state->compiled);
  for (uint32_t i = mpg_call_external(state, 0); i < end; i = mpg_call_external(state, i + 1))
    mpg_contents_release(&state->saved[i]);
}

bool mpg_call_saved_moved(const mpg_call_state *state, const mpg_tensor *externals) {
  uint32_t end = mpg_compiled_forward_externals(state->compiled);
  for (uint32_t i = mpg_call_external(state, 0); i < end; i = mpg_call_external(state, i + 1)) {
    const mpg_saved *saved = &state->saved[i];
    if (saved->storage && mpg_contents_at(saved->storage, saved->version) != externals[i].storage)
      return true;
  }
  return false;
}

mpg_status mpg_call_find_saved(const mpg_compiled *c, uint32_t external, mpg_storage *storage,
                               uint32_t version, const char *block, mpg_storage **found) {
  bool no_memory;
  *found = mpg_contents_find(storage, version, &no_memory);
  return *found ? MPG_OK : contents_lost(c, external, block, no_memory);
}
