/* Calls of compiled programs, and their nodes on the tape. */
#include "compile/compiled_call.h"

#include <string.h>

#include "compile/call_state.h"
#include "compile/compile.h"
#include "compile/invariants/invariants.h"
#include "compile/replay.h"
#include "device/ranks/ranks.h"

static const char BLOCK[] = "a hybridized block";

/* State that a recorded call keeps for its backward. It is one block of memory, which the compiled
 * call reuses for a later call. */
typedef struct recorded_call {
  mpg_spare_call spare; /* link in the list of spare calls; must be first */
  mpg_call_state state;
  mpg_parameter_set *parameters;    /* owned; NULL if bound inputs are among `inputs` */
  mpg_parameter_versions *versions; /* parameter versions when the call ran; owned */
  /* All inputs outside of `parameters`, with their tape nodes. Needed to replay the call for
   * gradients of gradients. Owned. */
  mpg_array *inputs;
  size_t held;
  mpg_random_key random;
  uint64_t steps; /* step numbers of the enclosing loops */
  bool ran;       /* false until the call has run; there are then no blocks, and nothing is saved */
} recorded_call;

/* Converts the index of an input on the tape to its index among the compiled call's inputs. */
static uint32_t input_of(const mpg_compiled *c, uint32_t i) {
  uint32_t own = mpg_compiled_first_fixed(c);
  return i < own ? i : i < own + c->num_constants ? i + c->num_bound : i - c->num_constants;
}

/* Inverse of input_of, for inputs outside of the parameter set. */
static uint32_t place_on_tape(const mpg_compiled *c, uint32_t input) {
  uint32_t own = mpg_compiled_first_fixed(c);
  return input < own                  ? input
         : input < own + c->num_bound ? input + c->num_constants
                                      : input - c->num_bound;
}

/* Returns the number of inputs outside of the parameter set, each of which is a separate input on
 * the tape. */
static uint32_t num_single(const mpg_compiled *c, const mpg_parameter_set *parameters) {
  return parameters ? c->num_inputs - c->num_bound : c->num_inputs;
}

/* Returns the size of a recorded call in bytes. It is the same with and without a parameter set, so
 * that calls can reuse each other's memory. */
static size_t recorded_size(const mpg_compiled *c) {
  return sizeof(recorded_call) + c->num_inputs * sizeof(mpg_array) +
         mpg_compiled_forward_externals(c) * sizeof(mpg_saved) +
         c->plan.num_blocks * sizeof(mpg_storage *);
}

static void recorded_release(void *state) {
  recorded_call *call = state;
  mpg_compiled *c = call->state.compiled;
  if (call->held) {
    c->held -= call->held;
    c->frames--;
  }
  for (uint32_t i = 0; i < num_single(c, call->parameters); i++) mpg_array_clear(&call->inputs[i]);
  if (call->ran) {
    mpg_release_blocks(call->state.blocks, 0, c->plan.num_blocks);
    mpg_call_release_saved(&call->state);
  }
  mpg_parameter_versions_release(call->versions);
  mpg_parameter_set_release(call->parameters);
  mpg_poison(call, recorded_size(c));
  call->spare.next = c->spare;
  c->spare = &call->spare;
  mpg_compiled_release(c);
}

/* Takes bookkeeping memory of `size` bytes from *kept, or allocates it. `size` must be the same for
 * all uses of one `kept`. give_space returns the memory. */
static void *take_space(void **kept, size_t size) {
  void *space = *kept;
  *kept = NULL;
  if (!space && !(space = mpg_malloc(size + 1))) mpg_out_of_host_memory(size);
  return space;
}

static void give_space(void **kept, void *space) {
  if (*kept)
    mpg_free(space); /* an overlapping call has already returned its memory */
  else
    *kept = space;
}

static uint8_t place_of(const mpg_target *target, bool needed) {
  if (!needed) return MPG_PLACE_NONE;
  if (!target->tensor.storage) return MPG_PLACE_NEW;
  return target->request == MPG_GRAD_ADD ? MPG_PLACE_ADD : MPG_PLACE_WRITE;
}

/* Scratch memory of a backward. */
typedef struct backward_space {
  mpg_compiled_backward *b;
  mpg_tensor *externals;
  mpg_storage **blocks;
  /* Copy of the parameter set's tensors in which overwritten ones are replaced by their preserved
   * contents. NULL if none was overwritten. */
  mpg_tensor *former;
} backward_space;

/* Returns a launch with the parts that arrange_backward (compile.c) defines. If `together`, the
 * parameter set's gradient arrays, as one fixed part, receive the gradients of the bound inputs.
 * Otherwise this call's own external arrays receive them. */
static mpg_launching launching_of(const recorded_call *call, const backward_space *space,
                                  bool together) {
  const mpg_compiled *c = call->state.compiled;
  const mpg_parameter_set *parameters = call->parameters;
  uint32_t own = mpg_compiled_first_fixed(c);
  const mpg_tensor *in_grads = space->externals + mpg_compiled_in_grad(c, 0),
                   *sums = space->externals + mpg_compiled_sum(c, 0);
  return (mpg_launching){
      .parts = {space->externals,
                space->former ? space->former
                : parameters  ? parameters->tensors
                              : space->externals + own,
                space->externals + own + c->num_bound,
                together ? parameters->gradients : in_grads + own, in_grads + own + c->num_bound,
                together ? NULL : sums + own, sums + own + c->num_bound},
      .binding = together && !space->former ? parameters->number : 0,
      .blocks = space->blocks};
}

/* Returns the storage that holds the contents of parameter i as the call read them. Returns NULL if
 * the contents are lost or were not saved. */
static mpg_storage *parameter_at(const recorded_call *call, uint32_t i) {
  uint32_t own = mpg_compiled_first_fixed(call->state.compiled);
  return call->state.compiled->saved_external[own + i]
             ? mpg_contents_at(call->parameters->tensors[i].storage, call->versions->versions[i])
             : NULL;
}

/* If parameters were overwritten since the call, finds the preserved contents that the call
 * read. */
static mpg_status find_parameters(const recorded_call *call, backward_space *space) {
  const mpg_compiled *c = call->state.compiled;
  const mpg_parameter_set *parameters = call->parameters;
  uint32_t own = mpg_compiled_first_fixed(c);
  mpg_storage *found;
  if (!parameters || call->versions->watched == mpg_storage_watched_writes()) return MPG_OK;
  for (uint32_t i = 0; i < parameters->count; i++) {
    mpg_storage *storage = parameters->tensors[i].storage;
    if (!c->saved_external[own + i] || storage->version == call->versions->versions[i]) continue;
    MPG_TRY(mpg_call_find_saved(c, own + i, storage, call->versions->versions[i], BLOCK, &found));
    size_t size = parameters->count * sizeof *space->former;
    if (!space->former) {
      if (!(space->former = mpg_malloc(size))) return mpg_out_of_host_memory(size);
      memcpy(space->former, parameters->tensors, size);
    }
    space->former[i].storage = found;
  }
  return MPG_OK;
}

/* Arguments of the last check before a backward is queued, which verifies that the contents it
 * reads have not moved since they were found. */
typedef struct last_look {
  const recorded_call *call;
  const backward_space *space;
  bool together;
  bool *moved; /* set to true if the contents have moved; nothing is queued in this case */
} last_look;

static bool parameters_moved(const recorded_call *call, const backward_space *space) {
  const mpg_parameter_set *parameters = call->parameters;
  if (call->versions->watched == mpg_storage_watched_writes()) return false;
  const mpg_tensor *tensors = space->former ? space->former : parameters->tensors;
  for (uint32_t i = 0; i < parameters->count; i++) {
    const mpg_storage *storage = parameter_at(call, i);
    if (storage && storage != tensors[i].storage) return true;
  }
  return false;
}

static mpg_status look(const void *looking, bool *unread) {
  const last_look *last = looking;
  const recorded_call *call = last->call;
  *last->moved = mpg_call_saved_moved(&call->state, last->space->externals) ||
                 (call->parameters && parameters_moved(call, last->space));
  if (*last->moved)
    return mpg_fail(MPG_ERROR, "backward of %s: its inputs were overwritten", BLOCK);
  *unread = last->together && mpg_parameter_set_unread(call->parameters);
  return MPG_OK;
}

static mpg_status gather(const recorded_call *call, const backward_space *space, bool together,
                         mpg_array *const *out_grads, mpg_array *const *sums,
                         const mpg_target *targets, mpg_array *in_grads) {
  const mpg_compiled *c = call->state.compiled;
  const mpg_compiled_backward *b = space->b;
  mpg_tensor *externals = space->externals;
  uint32_t count = together ? c->num_inputs - c->num_bound : c->num_inputs;
  for (uint32_t i = 0; i < c->num_outputs; i++)
    externals[mpg_compiled_out_grad(c, i)] = out_grads[i]->tensor;
  for (uint32_t k = 0; k < count; k++) {
    uint32_t i = input_of(c, k);
    mpg_tensor *sum = &externals[mpg_compiled_sum(c, i)],
               *in_grad = &externals[mpg_compiled_in_grad(c, i)];
    sum->storage = in_grad->storage = NULL;
    if (b->summed[i]) *sum = sums[k]->tensor;
    if (!b->gives[i]) continue;
    if (b->places[i] == MPG_PLACE_NEW) {
      const mpg_graph_value *value = mpg_graph_at(&c->graph, c->inputs[i]);
      mpg_device *device;
      MPG_TRY(mpg_device_get(value->device, &device));
      MPG_TRY(mpg_tensor_create(device, &value->desc, &in_grads[k].tensor));
      *in_grad = in_grads[k].tensor;
    } else {
      *in_grad = targets[k].tensor;
    }
  }
  return MPG_OK;
}

/* The backward signature of a call. `arrives` is per output. `summed` and `places` are per input on
 * the tape. */
typedef struct backward_signature {
  bool *arrives, *summed;
  uint8_t *places;
  bool retain, train;
} backward_signature;

/* Returns the backward of this signature if it was already used with this parameter set, so that
 * the parameters need no check. Otherwise returns NULL. */
static mpg_compiled_backward *find_known(const mpg_compiled *c, const mpg_parameter_set *parameters,
                                         const backward_signature *m) {
  for (mpg_compiled_backward *b = c->backwards; b; b = b->next) {
    if (b->parameter_set != parameters->number || b->retain != m->retain || b->train != m->train)
      continue;
    bool fits = !memcmp(b->arrives, m->arrives, c->num_outputs * sizeof *m->arrives);
    for (uint32_t k = 0; fits && k < c->num_inputs - c->num_bound; k++)
      fits = b->places[input_of(c, k)] == m->places[k] && b->summed[input_of(c, k)] == m->summed[k];
    if (fits) return b;
  }
  return NULL;
}

static mpg_status find_backward(mpg_compiled *c, const mpg_parameter_set *together,
                                const backward_signature *m, mpg_compiled_backward **b) {
  if (together && (*b = find_known(c, together, m)) != NULL) return MPG_OK;
  size_t size = 2 * (size_t)c->num_inputs + 1;
  uint8_t *places = mpg_space_take(size);
  if (!places) return mpg_out_of_host_memory(size);
  memset(places, 0, size);
  bool *summed = (bool *)(places + c->num_inputs);
  uint32_t count = together ? c->num_inputs - c->num_bound : c->num_inputs,
           own = mpg_compiled_first_fixed(c);
  for (uint32_t k = 0; k < count; k++) {
    places[input_of(c, k)] = m->places[k];
    summed[input_of(c, k)] = m->summed[k];
  }
  for (uint32_t i = 0; together && i < together->count; i++) {
    const mpg_tape_node *variable = together->variables[i];
    if (variable)
      places[own + i] = variable->request == MPG_GRAD_ADD ? MPG_PLACE_ADD : MPG_PLACE_WRITE;
  }
  mpg_status status =
      mpg_compiled_get_backward(c, m->arrives, summed, places, m->retain, m->train, b);
  if (status == MPG_OK && together) (*b)->parameter_set = together->number;
  mpg_space_give(places);
  return status;
}

static mpg_status recorded_backward(mpg_tape_node *node, mpg_array *const *out_grads,
                                    mpg_array *const *sums, const bool *needed, mpg_target *targets,
                                    mpg_array *in_grads, bool retain, bool train, bool together) {
  enum { FEW_FLAGS = 4096 };
  recorded_call *call = node->state;
  mpg_compiled *c = call->state.compiled;
  together = together && call->parameters;
  uint32_t num_externals = mpg_compiled_all_externals(c),
           count = together ? c->num_inputs - c->num_bound : c->num_inputs, num_blocks = 0;
  size_t flags_size = c->num_outputs + 2 * (size_t)count;
  bool few[FEW_FLAGS], *arrives = few;
  backward_space space = {0};
  mpg_status status = MPG_OK;
  if (flags_size > FEW_FLAGS && !(arrives = mpg_malloc(flags_size)))
    return mpg_out_of_host_memory(flags_size);
  backward_signature m = {arrives, arrives + c->num_outputs,
                          (uint8_t *)(arrives + c->num_outputs + count), retain, train};
  for (uint32_t i = 0; i < c->num_outputs; i++) m.arrives[i] = out_grads[i]->tensor.storage != NULL;
  for (uint32_t k = 0; k < count; k++) {
    m.places[k] = c->wanted[input_of(c, k)] ? place_of(&targets[k], needed[k]) : MPG_PLACE_NONE;
    m.summed[k] = m.places[k] != MPG_PLACE_NONE && sums[k]->tensor.storage;
  }
  MPG_GOTO(find_backward(c, together ? call->parameters : NULL, &m, &space.b));
  num_blocks = space.b->plan.num_blocks;
  space.externals = take_space(
      &space.b->space, num_externals * sizeof *space.externals + num_blocks * sizeof *space.blocks);
  if (!space.externals) MPG_GOTO(MPG_HOST_OUT_OF_MEMORY);
  space.blocks = (mpg_storage **)(space.externals + num_externals);
  memset(space.blocks, 0, num_blocks * sizeof *space.blocks);
  if (c->plan.num_blocks)
    memcpy(space.blocks, call->state.blocks, c->plan.num_blocks * sizeof *space.blocks);
  MPG_GOTO(gather(call, &space, together, out_grads, sums, targets, in_grads));
  bool moved = false;
  const last_look last = {call, &space, together, &moved};
  mpg_random_key random = space.b->programs->num_random > c->graph.num_random
                              ? mpg_random_next(space.b->programs->num_random)
                              : call->random;
  do {
    mpg_release_blocks(space.blocks, c->plan.num_blocks, num_blocks);
    MPG_GOTO(mpg_call_get_saved(&call->state, BLOCK, space.externals));
    MPG_GOTO(find_parameters(call, &space));
    mpg_launching launching = launching_of(call, &space, together);
    launching.random = random;
    launching.scope = node->scope;
    launching.origin = node->origin;
    launching.steps = call->steps;
    launching.look = look;
    launching.looking = &last;
    status = mpg_launch(space.b->programs, &launching);
  } while (moved);
  MPG_GOTO(status);
  for (uint32_t k = 0; k < count; k++) {
    bool reached = space.b->reached[input_of(c, k)];
    targets[k].done = reached && (m.places[k] == MPG_PLACE_WRITE || m.places[k] == MPG_PLACE_ADD);
    targets[k].missed = !reached && m.places[k] != MPG_PLACE_NONE;
  }
  if (together) targets[count].done = true;
fail:
  if (space.externals) {
    mpg_release_blocks(space.blocks, c->plan.num_blocks, num_blocks);
    give_space(&space.b->space, space.externals);
  }
  mpg_free(space.former);
  if (arrives != few) mpg_free(arrives);
  return status;
}

static bool misses_a_parameter(const mpg_compiled *c, const mpg_parameter_set *parameters,
                               const bool *reached) {
  for (uint32_t i = 0; i < parameters->count; i++)
    if (parameters->variables[i] && !reached[mpg_compiled_first_fixed(c) + i]) return true;
  return false;
}

static mpg_status recorded_reaches(mpg_tape_node *node, const bool *arrives, bool *all) {
  const recorded_call *call = node->state;
  const mpg_compiled *c = call->state.compiled;
  for (const mpg_compiled_backward *b = c->backwards; b; b = b->next) {
    if (memcmp(b->arrives, arrives, c->num_outputs * sizeof *arrives)) continue;
    *all = b->reaches_bound || !misses_a_parameter(c, call->parameters, b->reached);
    return MPG_OK;
  }
  bool *reached;
  MPG_TRY(mpg_compiled_find_reached(c, arrives, &reached));
  *all = !misses_a_parameter(c, call->parameters, reached);
  mpg_free(reached);
  return MPG_OK;
}

/* If the tensor was overwritten, replaces its storage with the one that holds the preserved
 * contents. */
static void use_former(mpg_tensor *tensor, uint32_t *version) {
  mpg_storage *former = mpg_contents_at(tensor->storage, *version);
  if (!former || former == tensor->storage) return;
  tensor->storage = former;
  *version = former->version;
}

static mpg_status recorded_expand(mpg_tape_node *node, mpg_array *outputs) {
  recorded_call *call = node->state;
  const mpg_compiled *c = call->state.compiled;
  const mpg_parameter_set *parameters = call->parameters;
  size_t size = c->num_inputs * (sizeof(mpg_array) + sizeof(uint32_t));
  mpg_array *inputs = mpg_calloc(1, size + 1); /* borrowed */
  uint32_t *versions = (uint32_t *)(inputs + c->num_inputs), own = mpg_compiled_first_fixed(c);
  if (!inputs) return mpg_out_of_host_memory(size);
  for (uint32_t k = 0; k < num_single(c, parameters); k++) {
    inputs[input_of(c, k)] = call->inputs[k];
    versions[input_of(c, k)] = call->state.saved[input_of(c, k)].version;
    use_former(&inputs[input_of(c, k)].tensor, &versions[input_of(c, k)]);
  }
  for (uint32_t i = 0; parameters && i < c->num_bound; i++) {
    inputs[own + i] =
        (mpg_array){.tensor = parameters->tensors[i], .node = parameters->variables[i]};
    versions[own + i] = call->versions->versions[i];
    use_former(&inputs[own + i].tensor, &versions[own + i]);
  }
  mpg_status status = mpg_compiled_replay(call->state.compiled, inputs, versions, call->random,
                                          node->sequence + 1, outputs);
  mpg_free(inputs);
  return status;
}

static const mpg_tape_call recorded_calls = {.name = BLOCK,
                                             .backward = recorded_backward,
                                             .adds_sums = true,
                                             .reaches = recorded_reaches,
                                             .expand = recorded_expand,
                                             .release = recorded_release};

/* Scratch memory of a call. `externals` holds the unbound inputs, then the results. */
typedef struct call_space {
  mpg_compiled *c;
  mpg_binding *binding;
  mpg_tensor *externals;
  mpg_storage **blocks;
  uint32_t origin;
} call_space;

static mpg_tensor *external_at(const call_space *space, uint32_t external) {
  const mpg_compiled *c = space->c;
  uint32_t first = mpg_compiled_first_fixed(c), fixed = mpg_compiled_num_fixed(c);
  if (external < first) return &space->externals[external];
  return external - first < fixed ? &space->binding->tensors[external - first]
                                  : &space->externals[external - fixed];
}

static mpg_status new_recorded(mpg_compiled *c, mpg_parameter_set *parameters,
                               recorded_call **result) {
  size_t size = recorded_size(c);
  recorded_call *call = (recorded_call *)c->spare;
  if (call) {
    c->spare = call->spare.next;
  } else if (!(call = mpg_malloc(size))) {
    return mpg_out_of_host_memory(size);
  }
  mpg_array *inputs = (mpg_array *)(call + 1);
  mpg_saved *saved = (mpg_saved *)(inputs + c->num_inputs);
  uint32_t own = mpg_compiled_first_fixed(c);
  *call = (recorded_call){
      .inputs = inputs,
      .parameters = mpg_parameter_set_retain(parameters),
      .state = {.compiled = c,
                .blocks = (mpg_storage **)(saved + mpg_compiled_forward_externals(c)),
                .saved = saved,
                .parameters_begin = own,
                .parameters_end = parameters ? own + c->num_bound : own}};
  c->references++;
  *result = call;
  return MPG_OK;
}

/* Creates the tape node of a call that is about to run. Sets the node's inputs and edges before the
 * call runs, because other threads may replace the arrays while the call waits. */
static mpg_status begin_record(const call_space *space, const mpg_inputs *inputs,
                               mpg_tape_node **result) {
  mpg_compiled *c = space->c;
  uint32_t num_inputs = num_single(c, inputs->parameters);
  mpg_tape_node *node;
  recorded_call *call = NULL;
  mpg_status status = MPG_OK;
  MPG_TRY(mpg_tape_new(MPG_TAPE_CALL, num_inputs, c->num_outputs, 0, &node));
  mpg_tape_reserve(c->original.num_nodes > 0 ? c->original.num_nodes : c->graph.num_nodes);
  MPG_GOTO(new_recorded(c, inputs->parameters, &call));
  call->steps = mpg_autograd_steps();
  node->call = &recorded_calls;
  node->state = call;
  node->parameters = mpg_parameter_set_retain(inputs->parameters);
  node->starts = c->starts;
  node->train = mpg_autograd_training();
  node->scope = mpg_autograd_scope();
  node->origin = space->origin;
  for (uint32_t k = 0; k < num_inputs; k++) {
    uint32_t i = input_of(c, k);
    const mpg_array *input = mpg_compiled_input(c, inputs, i);
    const mpg_tensor *tensor = external_at(space, i);
    /* If the bound array was replaced after the call was bound, the new array is not an input of
     * this call. */
    const mpg_array replaced = {.tensor = *tensor};
    if (input->tensor.storage != tensor->storage || input->tensor.offset != tensor->offset)
      input = &replaced;
    mpg_array_copy(&call->inputs[k], input);
    if (c->wanted[i]) mpg_tape_set_edge(node, k, input);
    mpg_tape_describe(node, k, &input->tensor);
  }
  *result = node;
  return MPG_OK;
fail:
  mpg_tape_release(node);
  return status;
}

/* Puts the finished call on the tape. */
static mpg_status end_record(const call_space *space, const mpg_inputs *inputs,
                             mpg_random_key random, mpg_tape_node *node, mpg_array *outputs) {
  mpg_compiled *c = space->c;
  recorded_call *call = node->state;
  uint32_t num_inputs = node->num_inputs, own = mpg_compiled_first_fixed(c);
  if (call->parameters) {
    if (c->saved_in != call->parameters->number)
      mpg_parameter_set_save(call->parameters, c->saved_external + own);
    c->saved_in = call->parameters->number;
    MPG_TRY(mpg_parameter_set_versions(call->parameters, &call->versions));
  }
  call->random = random;
  for (uint32_t i = 0; i < c->plan.num_blocks; i++) { /* moves the frame to the recorded call */
    call->state.blocks[i] = space->blocks[i];
    space->blocks[i] = NULL;
    call->held += c->programs->block_sizes[i];
  }
  c->held += call->held;
  c->frames += call->held != 0;
  uint32_t end = mpg_compiled_forward_externals(c);
  for (uint32_t i = mpg_call_external(&call->state, 0); i < end;
       i = mpg_call_external(&call->state, i + 1))
    mpg_call_save(&call->state, i, external_at(space, i));
  call->ran = true;
  for (uint32_t i = 0; i < c->num_outputs; i++) {
    node->descs[num_inputs + i] = c->outputs[i].desc;
    node->devices[num_inputs + i] = mpg_tensor_device(&outputs[i].tensor);
    const mpg_compiled_output *output = &c->outputs[i];
    const mpg_array *input = NULL;
    if (output->input != MPG_NO_BASE) {
      bool bound = call->parameters && output->input >= own && output->input < own + c->num_bound;
      input = bound ? mpg_compiled_input(c, inputs, output->input)
                    : &call->inputs[place_on_tape(c, output->input)];
    }
    outputs[i].node = mpg_tape_retain(input ? input->node : node);
    outputs[i].output = input ? input->output : output->same;
  }
  return MPG_OK;
}

mpg_status mpg_compiled_call(mpg_compiled *c, const mpg_inputs *inputs, mpg_array *outputs) {
  uint32_t num_own = mpg_compiled_first_fixed(c), num_blocks = c->plan.num_blocks;
  mpg_status status = MPG_OK;
  mpg_tape_node *node = NULL;
  /* Reads the origin first, because other threads may run during the following calls. */
  call_space space = {.c = c, .origin = mpg_host_origin()};
  /* Compiled calls with stages run only in pipelines (pipeline_run.h). */
  MPG_ASSERT(c->stages == MPG_STAGES_NONE);
  MPG_TRY(mpg_compiled_bind(c, inputs, &space.binding));
  space.externals = take_space(&c->space, (num_own + c->num_results) * sizeof(mpg_tensor) +
                                              num_blocks * sizeof(mpg_storage *));
  if (!space.externals) {
    mpg_binding_release(space.binding);
    return MPG_HOST_OUT_OF_MEMORY;
  }
  mpg_tensor *results = space.externals + num_own;
  space.blocks = (mpg_storage **)(results + c->num_results);
  /* Retains the tensors, because other threads may replace the arrays' memory while the call
   * waits. */
  for (uint32_t i = 0; i < num_own; i++) {
    space.externals[i] = inputs->given[i]->tensor;
    mpg_tensor_retain(&space.externals[i]);
  }
  for (uint32_t i = 0; i < c->num_results; i++) results[i].storage = NULL;
  memset(space.blocks, 0, num_blocks * sizeof *space.blocks);
  if (c->recording) MPG_GOTO(begin_record(&space, inputs, &node));
  for (uint32_t i = 0; i < c->num_results; i++) {
    const mpg_graph_value *value = mpg_graph_at(&c->graph, c->results[i]);
    mpg_device *device;
    MPG_GOTO(mpg_device_get(value->device, &device));
    MPG_GOTO(mpg_tensor_create(device, &value->desc, &results[i]));
    if (__builtin_expect(device->id.rank != 0, 0))
      results[i].storage->name = mpg_ranks_name_array(space.origin, MPG_MADE_BY_GRAPH);
  }
  mpg_random_key random =
      c->graph.num_random ? mpg_random_next(c->graph.num_random) : (mpg_random_key){0};
  if (c->num_kept) MPG_GOTO(mpg_compiled_refresh(c, space.binding, space.externals));
  MPG_GOTO(mpg_launch(c->programs,
                      &(mpg_launching){.parts = {space.externals, space.binding->tensors, results},
                                       .binding = space.binding->launched,
                                       .blocks = space.blocks,
                                       .random = random,
                                       .scope = mpg_autograd_scope(),
                                       .steps = mpg_autograd_steps(),
                                       .origin = space.origin}));
  for (uint32_t i = 0; i < c->num_outputs; i++) {
    outputs[i] = (mpg_array){.tensor = *external_at(&space, c->outputs[i].external),
                             .numpy = c->outputs[i].numpy};
    outputs[i].tensor.desc = c->outputs[i].desc;
    mpg_tensor_retain(&outputs[i].tensor);
  }
  c->calls++;
  if (node) MPG_GOTO(end_record(&space, inputs, random, node, outputs));
fail:
  mpg_tape_release(node);
  mpg_release_blocks(space.blocks, 0, num_blocks);
  for (uint32_t i = 0; i < num_own; i++) mpg_tensor_release(&space.externals[i]);
  for (uint32_t i = 0; i < c->num_results; i++) mpg_tensor_release(&results[i]);
  if (status != MPG_OK)
    for (uint32_t i = 0; i < c->num_outputs; i++) mpg_array_clear(&outputs[i]);
  give_space(&c->space, space.externals);
  mpg_binding_release(space.binding);
  return status;
}
