/* Backward of pipeline runs: gradients of the micro-batches, and a run's node on the tape. */
#include "compile/compile.h"
#include "compile/pipeline/pipeline_run.h"

static const char BLOCK[] = "a pipelined block";

/* --- Gradients -------------------------------------------------------------------------------- */

static mpg_status new_gradient(const mpg_graph_value *value, int64_t rows, mpg_tensor *tensor) {
  mpg_desc desc = value->desc;
  mpg_device *device;
  if (rows >= 0) desc.shape.dims[0] = rows;
  MPG_TRY(mpg_device_get(value->device, &device));
  return mpg_tensor_create(device, &desc, tensor);
}

/* Binds the gradient of output i of micro-batch k, whose rows begin at `row` of the whole array.
 * Sets *arrives to false if the output has no gradient. */
static mpg_status bind_head(mpg_pipeline_run *run, uint32_t k, mpg_array *const *heads, uint32_t i,
                            int64_t row, bool *arrives) {
  mpg_micro_batch *micro_batch = &run->micro_batches[k];
  mpg_tensor *external =
      &micro_batch->externals[mpg_compiled_out_grad(micro_batch->state.compiled, i)];
  mpg_tensor source = {0};
  bool last = k + 1 == run->num_micro_batches;
  /* A carried output of an earlier micro-batch gets the gradient of the next micro-batch's carried
   * input. Gradients of several carried inputs would have to be added, which is not supported. */
  if (run->output_kinds[i] == MPG_BATCH_DIVIDED || last) {
    if (heads[i] && heads[i]->tensor.storage) source = heads[i]->tensor;
  } else {
    const mpg_micro_batch *next = &run->micro_batches[k + 1];
    uint32_t users = 0;
    for (uint32_t j = 0; j < run->num_inputs; j++) {
      if (run->input_kinds[j] != MPG_BATCH_STATE || run->carried_from[j] != i) continue;
      const mpg_tensor *gradient = &next->externals[mpg_compiled_in_grad(next->state.compiled, j)];
      if (!next->backward->gives[j] || !gradient->storage) continue;
      if (users++)
        return mpg_fail(MPG_ERROR, "result %u of a pipelined block is carried to several inputs",
                        i);
      source = *gradient;
    }
  }
  *arrives = source.storage != NULL;
  if (!source.storage) return MPG_OK;
  if (run->output_kinds[i] == MPG_BATCH_DIVIDED)
    return mpg_micro_batch_slice(&source, mpg_micro_batch_output(micro_batch, i), &row,
                                 "the gradient of result", i, external);
  *external = source;
  mpg_tensor_retain(external);
  return MPG_OK;
}

/* Determines the destination of a micro-batch's gradient of input i. `first` is true for the first
 * micro-batch that the backward processes. */
static mpg_status place_input(mpg_pipeline_run *run, uint32_t k, uint32_t i, bool first,
                              int64_t row, const mpg_target *target, mpg_array *whole,
                              uint8_t *place, mpg_tensor *tensor) {
  mpg_micro_batch *micro_batch = &run->micro_batches[k];
  const mpg_graph_value *value = mpg_micro_batch_input(micro_batch, i);
  switch (run->input_kinds[i]) {
    case MPG_BATCH_DIVIDED:
      *place = target->tensor.storage && target->request == MPG_GRAD_ADD ? MPG_PLACE_ADD
                                                                         : MPG_PLACE_WRITE;
      return mpg_micro_batch_slice(target->tensor.storage ? &target->tensor : &whole->tensor,
                                   &value->desc, &row, "the gradient of input", i, tensor);
    case MPG_BATCH_STATE:
      *place = MPG_PLACE_WRITE;
      if (k == 0) { /* the first micro-batch writes the gradient to the caller's array */
        *tensor = whole->tensor;
        mpg_tensor_retain(tensor);
        return MPG_OK;
      }
      return new_gradient(value, -1, tensor);
    default:
      *place = first && !(target->tensor.storage && target->request == MPG_GRAD_ADD)
                   ? MPG_PLACE_WRITE
                   : MPG_PLACE_ADD;
      *tensor = target->tensor.storage ? target->tensor : whole->tensor;
      mpg_tensor_retain(tensor);
      return MPG_OK;
  }
}

static int64_t row_before(const mpg_pipeline_run *run, uint32_t k, uint32_t i, bool input) {
  int64_t row = 0;
  for (uint32_t before = 0; before < k; before++) {
    const mpg_micro_batch *micro_batch = &run->micro_batches[before];
    row += mpg_micro_batch_rows(input ? &mpg_micro_batch_input(micro_batch, i)->desc
                                      : mpg_micro_batch_output(micro_batch, i));
  }
  return row;
}

/* Releases the state of an earlier backward of a retained graph; each backward has its own arrays
 * and blocks. */
static void forget_backward(mpg_micro_batch *micro_batch) {
  const mpg_compiled *c = micro_batch->state.compiled;
  mpg_staged_call_end(&micro_batch->staged_calls[MPG_PHASE_BACKWARD]);
  for (uint32_t i = mpg_compiled_out_grad(c, 0); i < mpg_compiled_all_externals(c); i++) {
    mpg_tensor_release(&micro_batch->externals[i]);
    micro_batch->externals[i] = (mpg_tensor){0};
  }
  mpg_release_blocks(micro_batch->state.blocks, c->plan.num_blocks, micro_batch->num_blocks);
}

/* Enlarges the micro-batch's list of blocks to `count`, for the blocks of the backward. Never
 * shrinks the list, although a later backward of a retained graph may have fewer blocks than an
 * earlier one. */
static mpg_status grow_blocks(mpg_micro_batch *micro_batch, uint32_t count) {
  if (count <= micro_batch->num_blocks) return MPG_OK;
  mpg_storage **blocks = mpg_realloc(micro_batch->state.blocks, (count + 1) * sizeof *blocks);
  if (!blocks) return mpg_out_of_host_memory(count * sizeof *blocks);
  micro_batch->state.blocks = micro_batch->staged_calls[MPG_PHASE_FORWARD].call.blocks = blocks;
  while (micro_batch->num_blocks < count) blocks[micro_batch->num_blocks++] = NULL;
  return MPG_OK;
}

static mpg_status differentiate_micro_batch(mpg_pipeline_run *run, uint32_t k, bool first,
                                            mpg_array *const *heads, const bool *needed,
                                            const mpg_target *targets, mpg_array *results,
                                            bool retain, bool train) {
  mpg_micro_batch *micro_batch = &run->micro_batches[k];
  mpg_compiled *c = micro_batch->state.compiled;
  mpg_status status = MPG_OK;
  bool *arrives = mpg_calloc(c->num_outputs + 2 * c->num_inputs + 1, sizeof *arrives),
       *summed = arrives + c->num_outputs;
  if (!arrives) return mpg_out_of_host_memory(c->num_inputs);
  uint8_t *places = (uint8_t *)(summed + c->num_inputs);
  for (uint32_t i = 0; i < c->num_outputs; i++)
    MPG_GOTO(bind_head(run, k, heads, i, row_before(run, k, i, false), &arrives[i]));
  for (uint32_t i = 0; i < run->num_inputs; i++) {
    if (!c->wanted[i] || targets[i].missed ||
        (!needed[i] && !(run->input_kinds[i] == MPG_BATCH_STATE && k)))
      continue;
    MPG_GOTO(place_input(run, k, i, first, row_before(run, k, i, true), &targets[i], &results[i],
                         &places[i], &micro_batch->externals[mpg_compiled_in_grad(c, i)]));
  }
  MPG_GOTO(
      mpg_compiled_get_backward(c, arrives, summed, places, retain, train, &micro_batch->backward));
  MPG_GOTO(grow_blocks(micro_batch, micro_batch->backward->plan.num_blocks));
  MPG_GOTO(mpg_block_uses_add(&micro_batch->uses, micro_batch->backward->programs));
  MPG_GOTO(mpg_micro_batch_begin(run, micro_batch, MPG_PHASE_BACKWARD));
fail:
  mpg_free(arrives);
  return status;
}

/* Sets targets[i].missed for each input that no result depends on. Missed parameters keep their
 * gradients. */
static mpg_status find_missed(const mpg_pipeline_run *run, mpg_array *const *heads,
                              const bool *needed, mpg_target *targets) {
  const mpg_compiled *c = run->micro_batches[0].state.compiled;
  bool *arrives = mpg_calloc(run->num_outputs + 1, sizeof *arrives), *reached = NULL;
  if (!arrives) return mpg_out_of_host_memory(run->num_outputs);
  for (uint32_t i = 0; i < run->num_outputs; i++)
    arrives[i] = (heads[i] && heads[i]->tensor.storage) ||
                 (run->num_micro_batches > 1 && run->output_kinds[i] == MPG_BATCH_STATE);
  mpg_status status = mpg_compiled_find_reached(c, arrives, &reached);
  for (uint32_t i = 0; status == MPG_OK && i < run->num_inputs; i++)
    targets[i].missed =
        needed[i] && c->wanted[i] && run->input_kinds[i] != MPG_BATCH_STATE && !reached[i];
  mpg_free(reached);
  mpg_free(arrives);
  return status;
}

mpg_status mpg_pipeline_run_differentiate(mpg_pipeline_run *run, mpg_array *const *heads,
                                          const bool *needed, mpg_target *targets,
                                          mpg_array *results, bool retain, bool train) {
  MPG_TRY(find_missed(run, heads, needed, targets));
  for (uint32_t i = 0; i < run->num_inputs; i++) {
    bool target = targets[i].tensor.storage && run->input_kinds[i] != MPG_BATCH_STATE;
    if (!needed[i] || !run->micro_batches[0].state.compiled->wanted[i] || target ||
        targets[i].missed)
      continue;
    MPG_TRY(new_gradient(mpg_micro_batch_input(&run->micro_batches[0], i),
                         run->input_kinds[i] == MPG_BATCH_DIVIDED
                             ? mpg_micro_batch_rows(&run->inputs[i].tensor.desc)
                             : -1,
                         &results[i].tensor));
  }
  run->retain = retain;
  for (uint32_t n = 0; n < run->num_micro_batches; n++) {
    uint32_t k = run->downwards ? run->num_micro_batches - 1 - n : n;
    forget_backward(&run->micro_batches[k]);
    MPG_TRY(
        differentiate_micro_batch(run, k, n == 0, heads, needed, targets, results, retain, train));
  }
  for (uint32_t i = 0; i < run->num_inputs; i++)
    targets[i].done = needed[i] && run->micro_batches[0].state.compiled->wanted[i] &&
                      targets[i].tensor.storage && run->input_kinds[i] != MPG_BATCH_STATE &&
                      !targets[i].missed;
  return MPG_OK;
}

mpg_status mpg_pipeline_run_train(mpg_pipeline_run *run, mpg_array *const *heads, bool train,
                                  const mpg_pipeline_run *earlier) {
  mpg_target *targets = mpg_calloc(run->num_inputs + 1, sizeof *targets);
  mpg_array *results = mpg_calloc(run->num_inputs + 1, sizeof *results);
  bool *needed = mpg_calloc(run->num_inputs + 1, sizeof *needed);
  mpg_status status = MPG_OK;
  if (!run->missed) run->missed = mpg_calloc(run->num_inputs + 1, sizeof *run->missed);
  if (!targets || !results || !needed || !run->missed)
    MPG_GOTO(mpg_out_of_host_memory(run->num_inputs * sizeof *targets));
  run->pass = earlier ? earlier->pass : mpg_autograd_new_pass();
  for (uint32_t i = 0; i < run->num_inputs; i++) {
    const mpg_tape_node *variable = run->inputs[i].node;
    if (!variable) continue;
    if (variable->kind != MPG_TAPE_VARIABLE || run->input_kinds[i] == MPG_BATCH_STATE)
      MPG_GOTO(
          mpg_fail(MPG_ERROR,
                   "input %u of a pipelined training step requires a gradient, but it is computed "
                   "from variables while recording, or is carried state. Call detach() on it",
                   i));
    needed[i] = variable->request != MPG_GRAD_NULL;
    mpg_grad_req request = (mpg_grad_req)variable->request;
    if (request == MPG_GRAD_WRITE && variable->visit == run->pass) request = MPG_GRAD_ADD;
    targets[i] = (mpg_target){variable->gradient, request, false, false};
  }
  MPG_GOTO(mpg_pipeline_run_differentiate(run, heads, needed, targets, results, false, train));
  for (uint32_t i = 0; i < run->num_inputs; i++) {
    run->missed[i] = targets[i].missed;
    if (needed[i] && !targets[i].missed) run->inputs[i].node->visit = run->pass;
  }
  run->trains = true;
fail:
  for (uint32_t i = 0; results && i < run->num_inputs; i++) mpg_array_clear(&results[i]);
  mpg_free(targets);
  mpg_free(results);
  mpg_free(needed);
  return status;
}

/* --- On the tape ------------------------------------------------------------------------------ */

/* Saves the external arrays that the micro-batch's backward reads, with their versions. */
static mpg_status save(mpg_micro_batch *micro_batch) {
  uint32_t count = mpg_compiled_forward_externals(micro_batch->state.compiled);
  micro_batch->state.saved = mpg_malloc((count + 1) * sizeof *micro_batch->state.saved);
  if (!micro_batch->state.saved)
    return mpg_out_of_host_memory(count * sizeof *micro_batch->state.saved);
  for (uint32_t i = 0; i < count; i++)
    mpg_call_save(&micro_batch->state, i, &micro_batch->externals[i]);
  return MPG_OK;
}

/* Replaces arrays that were overwritten since the forward pass with their preserved contents. */
static mpg_status find_saved(mpg_micro_batch *micro_batch) {
  const mpg_call_state *state = &micro_batch->state;
  uint32_t count = mpg_compiled_forward_externals(state->compiled);
  for (uint32_t i = 0; i < count; i++) {
    mpg_storage *found, **used = &micro_batch->externals[i].storage;
    if (!state->saved[i].storage) continue;
    MPG_TRY(mpg_call_find_saved(state->compiled, i, state->saved[i].storage,
                                state->saved[i].version, BLOCK, &found));
    if (found == *used) continue;
    mpg_storage_retain(found);
    mpg_storage_release(*used);
    *used = found;
  }
  return MPG_OK;
}

static mpg_status run_backward(mpg_tape_node *node, mpg_array *const *out_grads,
                               mpg_array *const *sums, const bool *needed, mpg_target *targets,
                               mpg_array *in_grads, bool retain, bool train, bool together) {
  mpg_pipeline_run *run = node->state;
  (void)sums, (void)together;
  for (uint32_t k = 0; k < run->num_micro_batches; k++) MPG_TRY(find_saved(&run->micro_batches[k]));
  MPG_TRY(mpg_pipeline_run_differentiate(run, out_grads, needed, targets, in_grads, retain, train));
  MPG_TRY(run->schedule->backward(run, run->driver));
  if (!retain) mpg_pipeline_run_finish(run);
  return MPG_OK;
}

static mpg_status refuse_expansion(mpg_tape_node *node, mpg_array *outputs) {
  (void)node;
  (void)outputs;
  return mpg_fail(MPG_ERROR,
                  "gradients of gradients of a pipelined block are not supported; hybridize it "
                  "without pipeline= to compute them");
}

static void run_release(void *state) { mpg_pipeline_run_release(state); }

static const mpg_tape_call pipelined_calls = {
    .name = BLOCK, .backward = run_backward, .expand = refuse_expansion, .release = run_release};

mpg_status mpg_pipeline_run_record(mpg_pipeline_run *run, const mpg_pipeline_run_schedule *schedule,
                                   void *driver, mpg_array *outputs) {
  const mpg_compiled *c = run->micro_batches[0].state.compiled;
  mpg_tape_node *node;
  run->schedule = schedule;
  run->driver = driver;
  if (run->finished) return mpg_fail(MPG_VALUE_ERROR, "the pipeline run is finished");
  for (uint32_t k = 0; k < run->num_micro_batches; k++) MPG_TRY(save(&run->micro_batches[k]));
  MPG_TRY(mpg_tape_new(MPG_TAPE_CALL, run->num_inputs, run->num_outputs, 0, &node));
  node->call = &pipelined_calls;
  node->state = run;
  run->references++;
  node->starts = c->starts;
  node->train = mpg_autograd_training();
  node->scope = run->scope;
  node->origin = run->origin;
  for (uint32_t i = 0; i < run->num_inputs; i++) {
    const mpg_array *input = &run->inputs[i];
    if (c->wanted[i]) mpg_tape_set_edge(node, i, input);
    mpg_tape_describe(node, i, &input->tensor);
  }
  for (uint32_t i = 0; i < run->num_outputs; i++) {
    mpg_tape_describe(node, run->num_inputs + i, &run->outputs[i]);
    outputs[i].node = mpg_tape_retain(node);
    outputs[i].output = i;
  }
  mpg_tape_release(node);
  return MPG_OK;
}
