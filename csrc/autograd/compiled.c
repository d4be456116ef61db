/* Calling compiled programs, and their place on the tape. */
#include <string.h>

#include "autograd/compiled.h"

/* What a recorded call keeps for its backward. One block of memory, which goes back to the compiled call for its next one. */
typedef struct mpg_recorded_call {
  struct mpg_recorded_call *next; /* in the list of spare ones */
  mpg_compiled *compiled;  /* owned */
  mpg_array *inputs;       /* owned, all of them: gradients of gradients replay the call */
  mpg_saved *saved;        /* per forward external array: what the backward reads, with its version; owned */
  mpg_storage **blocks;    /* the frame; owned */
  size_t held;
  mpg_random_key random;
} recorded_call;

void mpg_compiled_free_spare(mpg_compiled *c) {
  while (c->spare) {
    recorded_call *next = c->spare->next;
    mpg_free(c->spare);
    c->spare = next;
  }
}

static void release_blocks(mpg_storage **blocks, uint32_t count) {
  for (uint32_t i = 0; i < count; i++) {
    if (blocks[i]) mpg_storage_release(blocks[i]);
    blocks[i] = NULL;
  }
}

static void recorded_release(void *state) {
  recorded_call *call = state;
  mpg_compiled *c = call->compiled;
  if (call->held) {
    c->held -= call->held;
    c->frames--;
  }
  release_blocks(call->blocks, c->plan.num_blocks);
  for (uint32_t i = 0; i < c->num_inputs; i++) mpg_array_clear(&call->inputs[i]);
  for (uint32_t i = 0; i < mpg_compiled_forward_externals(c); i++)
    if (call->saved[i].storage) mpg_storage_release(call->saved[i].storage);
  call->next = c->spare;
  c->spare = call;
  mpg_compiled_release(c);
}

/* Bookkeeping memory of `size` bytes, always the same for one `kept`; give_space gives it back. */
static void *take_space(void **kept, size_t size) {
  void *space = *kept;
  *kept = NULL;
  if (!space && !(space = mpg_malloc(size + 1))) mpg_out_of_host_memory(size);
  return space;
}

static void give_space(void **kept, void *space) {
  if (*kept)
    mpg_free(space); /* calls overlapped */
  else
    *kept = space;
}

static mpg_status overwritten(const mpg_compiled *c, uint32_t external) {
  char shape[MPG_SHAPE_TEXT_SIZE];
  bool input = external < c->num_inputs;
  mpg_value value = input ? c->inputs[external] : c->results[external - c->num_inputs];
  const mpg_desc *desc = &mpg_graph_at(&c->graph, value)->desc;
  return mpg_fail(MPG_ERROR, "backward of a hybridized block: its %s %u (%s %s) was overwritten after the forward pass, and the gradient needs "
                  "the old contents. Write into another array, or copy before you write", input ? "input" : "result",
                  input ? external : external - c->num_inputs, mpg_dtype_name(desc->dtype), mpg_shape_text(&desc->shape, shape, sizeof shape));
}

static uint8_t place_of(const mpg_target *target, bool needed) {
  if (!needed) return MPG_PLACE_NONE;
  if (!target->tensor.storage) return MPG_PLACE_NEW;
  return target->request == MPG_GRAD_ADD ? MPG_PLACE_ADD : MPG_PLACE_WRITE;
}

static mpg_status gather(recorded_call *call, const mpg_compiled_backward *b, mpg_array *const *out_grads, mpg_array *const *sums,
                         const mpg_target *targets, mpg_tensor *externals, mpg_array *in_grads) {
  const mpg_compiled *c = call->compiled;
  for (uint32_t i = 0; i < mpg_compiled_forward_externals(c); i++) {
    const mpg_saved *saved = &call->saved[i];
    if (!saved->storage) continue;
    if (saved->storage->version != saved->version) return overwritten(c, i);
    mpg_value value = i < c->num_inputs ? c->inputs[i] : c->results[i - c->num_inputs];
    externals[i] = (mpg_tensor){saved->storage, saved->offset, mpg_graph_at(&c->graph, value)->desc};
  }
  for (uint32_t i = 0; i < c->num_outputs; i++) externals[mpg_compiled_out_grad(c, i)] = out_grads[i]->tensor;
  for (uint32_t i = 0; i < c->num_inputs; i++) {
    if (b->summed[i]) externals[mpg_compiled_sum(c, i)] = sums[i]->tensor;
    if (!b->gives[i]) continue;
    if (b->places[i] == MPG_PLACE_NEW) {
      const mpg_graph_value *value = mpg_graph_at(&c->graph, c->inputs[i]);
      mpg_device *device;
      MPG_TRY(mpg_device_get(value->device, &device));
      MPG_TRY(mpg_tensor_create(device, &value->desc, &in_grads[i].tensor));
      externals[mpg_compiled_in_grad(c, i)] = in_grads[i].tensor;
    } else {
      externals[mpg_compiled_in_grad(c, i)] = targets[i].tensor;
    }
  }
  return MPG_OK;
}

enum { FEW_FLAGS = 4096 };

static mpg_status recorded_backward(mpg_tape_node *node, mpg_array *const *out_grads, mpg_array *const *sums, const bool *needed,
                                    mpg_target *targets, mpg_array *in_grads, bool retain, bool train) {
  recorded_call *call = node->state;
  mpg_compiled *c = call->compiled;
  mpg_compiled_backward *b = NULL;
  uint32_t num_externals = mpg_compiled_all_externals(c), num_blocks = 0;
  size_t flags_size = c->num_outputs + 2 * (size_t)c->num_inputs;
  bool few[FEW_FLAGS], *arrives = few;
  mpg_tensor *externals = NULL;
  mpg_storage **blocks = NULL;
  mpg_status status = MPG_OK;
  if (flags_size > FEW_FLAGS && !(arrives = mpg_malloc(flags_size))) return mpg_out_of_host_memory(flags_size);
  bool *summed = arrives + c->num_outputs;
  uint8_t *places = (uint8_t *)(summed + c->num_inputs);
  for (uint32_t i = 0; i < c->num_outputs; i++) arrives[i] = out_grads[i]->tensor.storage != NULL;
  for (uint32_t i = 0; i < c->num_inputs; i++) places[i] = c->wanted[i] ? place_of(&targets[i], needed[i]) : MPG_PLACE_NONE;
  for (uint32_t i = 0; i < c->num_inputs; i++) summed[i] = places[i] != MPG_PLACE_NONE && sums[i]->tensor.storage;
  MPG_GOTO(mpg_compiled_get_backward(c, arrives, summed, places, retain, train, &b));
  num_blocks = b->plan.num_blocks;
  externals = take_space(&b->space, num_externals * sizeof *externals + num_blocks * sizeof *blocks);
  if (!externals) MPG_GOTO(MPG_HOST_OUT_OF_MEMORY);
  blocks = (mpg_storage **)(externals + num_externals);
  for (uint32_t i = 0; i < num_externals; i++) externals[i].storage = NULL;
  memset(blocks, 0, num_blocks * sizeof *blocks);
  if (c->plan.num_blocks) memcpy(blocks, call->blocks, c->plan.num_blocks * sizeof *blocks);
  MPG_GOTO(gather(call, b, out_grads, sums, targets, externals, in_grads));
  mpg_random_key random = b->programs->num_random > c->graph.num_random ? mpg_random_next(b->programs->num_random) : call->random;
  MPG_GOTO(mpg_launch(b->programs, &(mpg_launching){.externals = externals, .blocks = blocks, .random = random, .scope = node->scope,
                                                    .origin = node->origin}));
  for (uint32_t i = 0; i < c->num_inputs; i++)
    targets[i].done = b->places[i] == MPG_PLACE_WRITE || b->places[i] == MPG_PLACE_ADD;
fail:
  if (externals) {
    release_blocks(blocks + c->plan.num_blocks, num_blocks - c->plan.num_blocks);
    give_space(&b->space, externals);
  }
  if (arrives != few) mpg_free(arrives);
  return status;
}

static mpg_status recorded_expand(mpg_tape_node *node, mpg_array *outputs) {
  recorded_call *call = node->state;
  size_t count = call->compiled->num_inputs;
  mpg_array **inputs = mpg_malloc((count + 1) * sizeof *inputs);
  if (!inputs) return mpg_out_of_host_memory(count * sizeof *inputs);
  for (size_t i = 0; i < count; i++) inputs[i] = &call->inputs[i];
  mpg_status status = mpg_compiled_replay(call->compiled, inputs, call->random, outputs);
  mpg_free(inputs);
  return status;
}

static const mpg_tape_call recorded_calls = {
    .name = "a hybridized block", .backward = recorded_backward, .adds_sums = true, .expand = recorded_expand, .release = recorded_release};

/* What a call works with. Arrays of its own: those inputs that are not bound, then results. */
typedef struct call_space {
  mpg_compiled *c;
  mpg_binding *binding;
  mpg_tensor *externals;
  mpg_storage **blocks;
} call_space;

static mpg_tensor *external_at(const call_space *space, uint32_t external) {
  const mpg_compiled *c = space->c;
  uint32_t first = mpg_compiled_first_fixed(c), fixed = mpg_compiled_num_fixed(c);
  if (external < first) return &space->externals[external];
  return external - first < fixed ? &space->binding->tensors[external - first] : &space->externals[external - fixed];
}

static mpg_status record(const call_space *space, const mpg_inputs *inputs, mpg_random_key random, mpg_array *outputs) {
  mpg_compiled *c = space->c;
  uint32_t num_externals = mpg_compiled_forward_externals(c);
  size_t size = sizeof(recorded_call) + c->num_inputs * sizeof(mpg_array) + num_externals * sizeof(mpg_saved) +
                c->plan.num_blocks * sizeof(mpg_storage *);
  mpg_tape_node *node;
  MPG_TRY(mpg_tape_new(MPG_TAPE_CALL, c->num_inputs, c->num_outputs, 0, &node));
  recorded_call *call = c->spare;
  if (call) {
    c->spare = call->next;
  } else if (!(call = mpg_malloc(size))) {
    mpg_tape_release(node);
    return mpg_out_of_host_memory(size);
  }
  call->compiled = c;
  c->references++;
  call->inputs = (mpg_array *)(call + 1);
  call->saved = (mpg_saved *)(call->inputs + c->num_inputs);
  call->blocks = (mpg_storage **)(call->saved + num_externals);
  call->random = random;
  call->held = 0;
  for (uint32_t i = 0; i < c->plan.num_blocks; i++) { /* the frame moves here */
    call->blocks[i] = space->blocks[i];
    space->blocks[i] = NULL;
    call->held += c->programs->block_sizes[i];
  }
  c->held += call->held;
  c->frames += call->held != 0;
  for (uint32_t i = 0; i < c->num_inputs; i++) mpg_array_copy(&call->inputs[i], mpg_compiled_input(c, inputs, i));
  for (uint32_t i = 0; i < num_externals; i++) {
    call->saved[i].storage = NULL;
    if (!c->saved_external[i]) continue;
    const mpg_tensor *tensor = external_at(space, i);
    mpg_storage_retain(tensor->storage);
    call->saved[i] = (mpg_saved){tensor->storage, tensor->offset, tensor->storage->version};
  }
  node->call = &recorded_calls;
  node->state = call;
  node->train = mpg_autograd_training();
  node->scope = mpg_autograd_scope();
  node->origin = mpg_host_get()->origin();
  for (uint32_t i = 0; i < c->num_inputs; i++) {
    const mpg_array *input = mpg_compiled_input(c, inputs, i);
    if (c->wanted[i] && input->node && !input->node->consumed)
      node->edges[i] = (mpg_tape_edge){mpg_tape_retain(input->node), input->output};
    node->descs[i] = input->tensor.desc;
    node->devices[i] = mpg_tensor_device(&input->tensor);
  }
  for (uint32_t i = 0; i < c->num_outputs; i++) {
    node->descs[c->num_inputs + i] = c->outputs[i].desc;
    node->devices[c->num_inputs + i] = mpg_tensor_device(&outputs[i].tensor);
    const mpg_compiled_output *output = &c->outputs[i];
    const mpg_array *input = output->input != MPG_NO_BASE ? mpg_compiled_input(c, inputs, output->input) : NULL;
    outputs[i].node = mpg_tape_retain(input ? input->node : node);
    outputs[i].output = input ? input->output : output->same;
  }
  mpg_tape_release(node);
  return MPG_OK;
}

mpg_status mpg_compiled_call(mpg_compiled *c, const mpg_inputs *inputs, mpg_array *outputs) {
  uint32_t num_own = mpg_compiled_first_fixed(c), num_blocks = c->plan.num_blocks;
  mpg_status status = MPG_OK;
  call_space space = {.c = c};
  if (c->stages != MPG_STAGES_NONE) return mpg_fail(MPG_ERROR, "internal: a call compiled in stages is called in pieces");
  MPG_TRY(mpg_compiled_bind(c, inputs, &space.binding));
  space.externals = take_space(&c->space, (num_own + c->num_results) * sizeof(mpg_tensor) + num_blocks * sizeof(mpg_storage *));
  if (!space.externals) {
    mpg_binding_release(space.binding);
    return MPG_HOST_OUT_OF_MEMORY;
  }
  mpg_tensor *results = space.externals + num_own;
  space.blocks = (mpg_storage **)(results + c->num_results);
  for (uint32_t i = 0; i < num_own; i++) space.externals[i] = inputs->given[i]->tensor;
  for (uint32_t i = 0; i < c->num_results; i++) results[i].storage = NULL;
  memset(space.blocks, 0, num_blocks * sizeof *space.blocks);
  for (uint32_t i = 0; i < c->num_results; i++) {
    const mpg_graph_value *value = mpg_graph_at(&c->graph, c->results[i]);
    mpg_device *device;
    MPG_GOTO(mpg_device_get(value->device, &device));
    MPG_GOTO(mpg_tensor_create(device, &value->desc, &results[i]));
  }
  mpg_random_key random = c->graph.num_random ? mpg_random_next(c->graph.num_random) : (mpg_random_key){0};
  if (c->prologue) MPG_GOTO(mpg_compiled_refresh(c, space.binding, space.externals));
  MPG_GOTO(mpg_launch(c->programs, &(mpg_launching){.externals = space.externals, .fixed = space.binding->tensors, .binding = inputs->binding,
                                                    .blocks = space.blocks, .random = random, .scope = mpg_autograd_scope(),
                                                    .origin = mpg_host_get()->origin()}));
  for (uint32_t i = 0; i < c->num_outputs; i++) {
    outputs[i] = (mpg_array){.tensor = *external_at(&space, c->outputs[i].external)};
    outputs[i].tensor.desc = c->outputs[i].desc;
    mpg_tensor_retain(&outputs[i].tensor);
  }
  c->calls++;
  if (c->recording) MPG_GOTO(record(&space, inputs, random, outputs));
fail:
  release_blocks(space.blocks, num_blocks);
  for (uint32_t i = 0; i < c->num_results; i++) mpg_tensor_release(&results[i]);
  if (status != MPG_OK)
    for (uint32_t i = 0; i < c->num_outputs; i++) mpg_array_clear(&outputs[i]);
  give_space(&c->space, space.externals);
  mpg_binding_release(space.binding);
  return status;
}
