/* The state of calls of compiled functions. */
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

void mpg_call_save(mpg_call_state *state, uint32_t external, const mpg_tensor *tensor) {
  mpg_saved *saved = &state->saved[external];
  *saved = (mpg_saved){NULL, tensor->offset, tensor->storage->version};
  if (!state->compiled->saved_external[external]) return;
  mpg_storage_retain(tensor->storage);
  saved->storage = tensor->storage;
}

void mpg_call_get_saved(const mpg_call_state *state, mpg_tensor *externals) {
  uint32_t end = mpg_compiled_forward_externals(state->compiled);
  for (uint32_t i = mpg_call_external(state, 0); i < end; i = mpg_call_external(state, i + 1)) {
    const mpg_saved *saved = &state->saved[i];
    externals[i].storage = NULL;
    if (saved->storage)
      externals[i] =
          (mpg_tensor){saved->storage, saved->offset, *external_desc(state->compiled, i)};
  }
}

void mpg_call_release_saved(mpg_call_state *state) {
  uint32_t end = mpg_compiled_forward_externals(state->compiled);
  for (uint32_t i = mpg_call_external(state, 0); i < end; i = mpg_call_external(state, i + 1)) {
    if (state->saved[i].storage) mpg_storage_release(state->saved[i].storage);
    state->saved[i].storage = NULL;
  }
}

mpg_status mpg_call_check_saved(const mpg_call_state *state, const char *block) {
  uint32_t end = mpg_compiled_forward_externals(state->compiled);
  for (uint32_t i = mpg_call_external(state, 0); i < end; i = mpg_call_external(state, i + 1)) {
    const mpg_saved *saved = &state->saved[i];
    if (saved->storage && saved->storage->version != saved->version)
      return mpg_call_overwritten(state->compiled, i, block);
  }
  return MPG_OK;
}

mpg_status mpg_call_overwritten(const mpg_compiled *c, uint32_t external, const char *block) {
  char shape[MPG_SHAPE_TEXT_SIZE];
  const mpg_desc *desc = external_desc(c, external);
  const char *what = external < c->num_given    ? "input"
                     : external < c->num_inputs ? "captured array"
                                                : "result";
  uint32_t number = external < c->num_given ? external : external - c->num_given;
  for (uint32_t i = 0; external >= c->num_inputs && i < c->num_outputs; i++)
    if (c->outputs[i].external == external) number = i;
  return mpg_fail(MPG_ERROR,
                  "backward of %s: its %s %u (%s %s) was overwritten after the forward pass, and "
                  "the gradient needs the old contents. Write into another array, or copy before "
                  "you write",
                  block, what, number, mpg_dtype_name(desc->dtype),
                  mpg_shape_text(&desc->shape, shape, sizeof shape));
}
