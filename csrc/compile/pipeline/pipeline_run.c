/* Creation and release of pipeline runs. */
#include "compile/pipeline/pipeline_run.h"

#include <string.h>

#include "base/host.h"
#include "device/ranks/ranks.h"
#include "graph/schedule/micro_batching.h"

static void give_back(mpg_micro_batch *micro_batch) {
  if (micro_batch->state.blocks)
    mpg_release_blocks(micro_batch->state.blocks, 0, micro_batch->num_blocks);
  if (micro_batch->state.saved) mpg_call_release_saved(&micro_batch->state);
  for (uint32_t i = 0;
       micro_batch->externals && i < mpg_compiled_all_externals(micro_batch->state.compiled); i++)
    mpg_tensor_release(&micro_batch->externals[i]);
}

void mpg_pipeline_run_finish(mpg_pipeline_run *run) {
  void *host_state = run->host_state;
  run->finished = true;
  run->host_state = NULL;
  for (uint32_t k = 0; run->micro_batches && k < run->num_micro_batches; k++)
    give_back(&run->micro_batches[k]);
  while (run->spares.count) mpg_storage_release(run->spares.lanes[--run->spares.count].storage);
  for (uint32_t i = 0; run->inputs && i < run->num_inputs; i++) mpg_array_clear(&run->inputs[i]);
  for (uint32_t i = 0; run->outputs && i < run->num_outputs; i++)
    mpg_tensor_release(&run->outputs[i]);
  if (!host_state) return;
  mpg_host_yield();
  run->host_code->release(host_state);
}

static void free_run(mpg_pipeline_run *run) {
  for (uint32_t k = 0; run->micro_batches && k < run->num_micro_batches; k++) {
    mpg_micro_batch *micro_batch = &run->micro_batches[k];
    for (int phase = 0; phase < 2; phase++) mpg_staged_call_end(&micro_batch->staged_calls[phase]);
    mpg_free(micro_batch->externals);
    mpg_free(micro_batch->state.blocks);
    mpg_free(micro_batch->state.saved);
    mpg_free(micro_batch->uses.counts);
    mpg_compiled_release(micro_batch->state.compiled);
  }
  mpg_free(run->micro_batches);
  mpg_free(run->input_kinds);
  mpg_free(run->output_kinds);
  mpg_free(run->carried_from);
  mpg_free(run->inputs);
  mpg_free(run->outputs);
  mpg_free(run->spares.lanes);
  mpg_free(run->missed);
  mpg_free(run);
}

void mpg_pipeline_run_release(mpg_pipeline_run *run) {
  if (!run || --run->references) return;
  mpg_pipeline_run_finish(run);
  void *driver = run->driver;
  run->driver = NULL;
  run->watchers++; /* releasing the driver may remove the last watcher */
  if (driver) run->schedule->release(driver);
  mpg_pipeline_run_unwatch(run);
}

void mpg_pipeline_run_unwatch(mpg_pipeline_run *run) {
  if (!--run->watchers && !run->references) free_run(run);
}

/* --- Micro-batches ---------------------------------------------------------------------------- */

mpg_status mpg_micro_batch_slice(const mpg_tensor *whole, const mpg_desc *desc, int64_t *row,
                                 const char *what, uint32_t i, mpg_tensor *result) {
  int64_t end = *row + mpg_micro_batch_rows(desc);
  char have[MPG_SHAPE_TEXT_SIZE], want[MPG_SHAPE_TEXT_SIZE];
  if (end > mpg_micro_batch_rows(&whole->desc))
    return mpg_fail(MPG_ERROR,
                    "%s %u of a pipelined block has shape %s, which is too small for its "
                    "micro-batches of shape %s",
                    what, i, mpg_shape_text(&whole->desc.shape, have, sizeof have),
                    mpg_shape_text(&desc->shape, want, sizeof want));
  MPG_TRY(mpg_tensor_slice(whole, *row, end, result));
  *row = end;
  return MPG_OK;
}

mpg_status mpg_micro_batch_begin(const mpg_pipeline_run *run, mpg_micro_batch *micro_batch,
                                 mpg_phase phase) {
  const mpg_compiled *c = micro_batch->state.compiled;
  mpg_program_set *set = phase == MPG_PHASE_FORWARD ? c->programs : micro_batch->backward->programs;
  if (c->drawn && !set->drawn) MPG_TRY(mpg_program_set_draw(set, c->drawn, c->graph.num_random));
  mpg_launching call = {.parts = {micro_batch->externals},
                        .blocks = micro_batch->state.blocks,
                        .random = run->random,
                        .scope = run->scope,
                        .origin = run->origin};
  return mpg_staged_call_begin(set, &call, micro_batch->rows, true,
                               &micro_batch->staged_calls[phase]);
}

/* --- Making a run ----------------------------------------------------------------------------- */

static mpg_status check_compiled(const mpg_compiled *c, const mpg_pipeline_run_request *request) {
  if (c->num_given != request->num_inputs || c->num_outputs != request->num_outputs)
    return mpg_fail(
        MPG_ERROR,
        "a micro-batch was compiled for %u inputs and %u outputs, but the run has %u and %u",
        c->num_given, c->num_outputs, request->num_inputs, request->num_outputs);
  if (mpg_compiled_captures_variable(c))
    return mpg_fail(MPG_ERROR,
                    "a pipelined block uses an array with a gradient that is neither an input nor "
                    "a parameter; pass it as an input");
  for (uint32_t i = 0; i < c->num_outputs; i++) {
    bool own = c->outputs[i].external >= c->num_inputs;
    for (uint32_t k = 0; k < i; k++) own = own && c->outputs[k].external != c->outputs[i].external;
    if (!own)
      return mpg_fail(MPG_ERROR,
                      "result %u of a pipelined block is also an input or another result; copy it",
                      i);
  }
  return MPG_OK;
}

static mpg_batching_request check_of(const mpg_compiled *c, const mpg_graph **graph) {
  bool rewritten = c->original.num_nodes > 0;
  *graph = rewritten ? &c->original : &c->graph;
  return (mpg_batching_request){.inputs = rewritten ? c->original_inputs : c->inputs,
                                .num_inputs = c->num_given};
}

/* Allocates one mpg_drawn for each random call of `c`. */
static mpg_status new_drawn(const mpg_compiled *c, mpg_drawn **drawn) {
  *drawn = mpg_calloc((size_t)c->graph.num_random + 1, sizeof **drawn);
  return *drawn ? MPG_OK : mpg_out_of_host_memory(c->graph.num_random * sizeof **drawn);
}

mpg_status mpg_pipeline_run_check(mpg_compiled *c, const mpg_micro_batch_check *check) {
  const mpg_graph *graph, *second = NULL;
  mpg_batching_request request = check_of(c, &graph), other = {0};
  if (check->other &&
      (check->other->num_given != c->num_given || check->other->num_outputs != c->num_outputs))
    return mpg_fail(MPG_VALUE_ERROR, "the call for another size has different inputs or results");
  mpg_drawn *drawn;
  MPG_TRY(new_drawn(c, &drawn));
  request.input_kinds = check->input_kinds;
  request.output_kinds = check->output_kinds;
  request.rows = check->rows;
  request.axis = check->axis;
  request.along_time = check->along_time;
  request.whole_statistics = check->whole_statistics;
  request.drawn = drawn;
  request.num_drawn = c->graph.num_random;
  if (check->other) {
    mpg_batching_request inputs = check_of(check->other, &second);
    other = request;
    other.inputs = inputs.inputs;
    other.rows = check->other_rows;
    other.drawn = NULL;
  }
  mpg_status status = second ? mpg_graph_compare_batching(graph, &request, second, &other)
                             : mpg_graph_check_batching(graph, &request);
  mpg_free(status == MPG_OK ? c->drawn : drawn);
  if (status == MPG_OK) c->drawn = drawn;
  return status;
}

mpg_status mpg_pipeline_run_compare_draws(mpg_compiled *c, const mpg_compiled *other) {
  const mpg_graph *graph, *second;
  check_of(c, &graph);
  check_of(other, &second);
  if (!c->drawn) MPG_TRY(new_drawn(c, &c->drawn));
  return mpg_graph_compare_draws(graph, second, c->drawn, c->graph.num_random);
}

/* Allocates output i of the whole run. A split output has the rows of all micro-batches. A carried
 * output has the shape of the last micro-batch's output, which may differ from earlier ones,
 * because carried state may grow. */
static mpg_status make_output(mpg_pipeline_run *run, uint32_t i) {
  mpg_desc desc = *mpg_micro_batch_output(
      &run->micro_batches[run->output_kinds[i] == MPG_BATCH_DIVIDED ? 0
                                                                    : run->num_micro_batches - 1],
      i);
  mpg_device *device;
  if (run->output_kinds[i] == MPG_BATCH_DIVIDED) {
    if (!desc.shape.ndim)
      return mpg_fail(MPG_ERROR,
                      "result %u of a pipelined block is a scalar: it has no axis along which to "
                      "concatenate the results of the micro-batches",
                      i);
    for (uint32_t k = 1; k < run->num_micro_batches; k++)
      desc.shape.dims[0] += mpg_micro_batch_rows(mpg_micro_batch_output(&run->micro_batches[k], i));
  }
  const mpg_compiled *c = run->micro_batches[0].state.compiled;
  MPG_TRY(mpg_device_get(mpg_compiled_output_value(c, i)->device, &device));
  MPG_TRY(mpg_tensor_create(device, &desc, &run->outputs[i]));
  if (device->id.rank)
    run->outputs[i].storage->name = mpg_ranks_name_array(run->origin, MPG_MADE_BY_PIPELINE);
  return MPG_OK;
}

static mpg_status check_input(const mpg_tensor *tensor, const mpg_graph_value *value, uint32_t i) {
  char have[MPG_SHAPE_TEXT_SIZE], want[MPG_SHAPE_TEXT_SIZE];
  if (mpg_shape_equal(&tensor->desc.shape, &value->desc.shape) &&
      tensor->desc.dtype == value->desc.dtype &&
      mpg_device_id_equal(mpg_tensor_device(tensor)->id, value->device))
    return MPG_OK;
  return mpg_fail(MPG_ERROR,
                  "input %u of a pipelined block's micro-batch is %s %s on %s, but the micro-batch "
                  "was compiled for %s %s on %s",
                  i, mpg_dtype_name(tensor->desc.dtype),
                  mpg_shape_text(&tensor->desc.shape, have, sizeof have),
                  mpg_device_text(mpg_tensor_device(tensor)), mpg_dtype_name(value->desc.dtype),
                  mpg_shape_text(&value->desc.shape, want, sizeof want),
                  mpg_device_id_text(value->device).text);
}

/* Binds output i of each micro-batch. A split output is bound to the micro-batch's rows of the
 * whole array. A carried output gets its own array, except that the last one is the run's
 * output. */
static mpg_status bind_output(mpg_pipeline_run *run, uint32_t i) {
  int64_t row = 0;
  MPG_TRY(make_output(run, i));
  for (uint32_t k = 0; k < run->num_micro_batches; k++) {
    mpg_micro_batch *micro_batch = &run->micro_batches[k];
    mpg_tensor *external =
        &micro_batch->externals[micro_batch->state.compiled->outputs[i].external];
    const mpg_desc *desc = mpg_micro_batch_output(micro_batch, i);
    if (run->output_kinds[i] == MPG_BATCH_DIVIDED) {
      MPG_TRY(mpg_micro_batch_slice(&run->outputs[i], desc, &row, "result", i, external));
    } else if (k + 1 == run->num_micro_batches) {
      *external = run->outputs[i];
      mpg_tensor_retain(external);
    } else {
      MPG_TRY(mpg_tensor_create(mpg_tensor_device(&run->outputs[i]), desc, external));
    }
  }
  return MPG_OK;
}

/* Returns the array that micro-batch k reads as input i if this input is not divided: the whole
 * input, or the carried output of the previous micro-batch. */
static const mpg_tensor *undivided_input(const mpg_pipeline_run *run, uint32_t k, uint32_t i) {
  if (run->input_kinds[i] != MPG_BATCH_STATE || !k) return &run->inputs[i].tensor;
  const mpg_micro_batch *before = &run->micro_batches[k - 1];
  return &before->externals[before->state.compiled->outputs[run->carried_from[i]].external];
}

static mpg_status bind_input(mpg_pipeline_run *run, uint32_t i) {
  const mpg_tensor *whole = &run->inputs[i].tensor;
  bool divided = run->input_kinds[i] == MPG_BATCH_DIVIDED;
  int64_t row = 0;
  for (uint32_t k = 0; k < run->num_micro_batches; k++) {
    mpg_tensor *external = &run->micro_batches[k].externals[i];
    const mpg_graph_value *value = mpg_micro_batch_input(&run->micro_batches[k], i);
    if (divided) {
      MPG_TRY(mpg_micro_batch_slice(whole, &value->desc, &row, "input", i, external));
    } else {
      *external = *undivided_input(run, k, i);
      mpg_tensor_retain(external);
    }
    MPG_TRY(check_input(external, value, i));
  }
  if (!divided || row == mpg_micro_batch_rows(&whole->desc)) return MPG_OK;
  return mpg_fail(
      MPG_ERROR,
      "the micro-batches of a pipelined block take %lld rows of input %u, but it has only %lld",
      (long long)row, i, (long long)mpg_micro_batch_rows(&whole->desc));
}

static void bind_constants(mpg_micro_batch *micro_batch) {
  const mpg_compiled *c = micro_batch->state.compiled;
  for (uint32_t i = 0; i < c->num_constants; i++) {
    micro_batch->externals[c->num_given + i] = c->constants[i].tensor;
    mpg_tensor_retain(&c->constants[i].tensor);
  }
}

/* Binds the arrays that the forward phase of all micro-batches reads and writes. */
static mpg_status bind_forward(mpg_pipeline_run *run) {
  for (uint32_t i = 0; i < run->num_outputs; i++) MPG_TRY(bind_output(run, i));
  for (uint32_t i = 0; i < run->num_inputs; i++) MPG_TRY(bind_input(run, i));
  for (uint32_t k = 0; k < run->num_micro_batches; k++) bind_constants(&run->micro_batches[k]);
  return MPG_OK;
}

static mpg_status prepare_micro_batch(mpg_pipeline_run *run, uint32_t k,
                                      const mpg_pipeline_run_request *request) {
  mpg_micro_batch *micro_batch = &run->micro_batches[k];
  mpg_compiled *c = request->compiled[k];
  MPG_TRY(check_compiled(c, request));
  micro_batch->state.compiled = c;
  c->references++;
  micro_batch->rows = request->rows[k];
  micro_batch->num_blocks = c->plan.num_blocks;
  micro_batch->externals =
      mpg_calloc(mpg_compiled_all_externals(c) + 1, sizeof *micro_batch->externals);
  micro_batch->state.blocks =
      mpg_calloc(micro_batch->num_blocks + 1, sizeof *micro_batch->state.blocks);
  if (!micro_batch->externals || !micro_batch->state.blocks)
    return mpg_out_of_host_memory(micro_batch->num_blocks * sizeof *micro_batch->state.blocks);
  MPG_TRY(mpg_block_uses_add(&micro_batch->uses, c->programs));
  run->recording |= c->recording;
  return MPG_OK;
}

static void *copied(const void *source, size_t size) {
  void *copy = mpg_malloc(size + 1);
  if (copy && size) memcpy(copy, source, size);
  return copy;
}

/* Allocates the arrays of the run, and copies the request's arrays. */
static mpg_status allocate(mpg_pipeline_run *run, const mpg_pipeline_run_request *request) {
  run->num_inputs = request->num_inputs;
  run->num_outputs = request->num_outputs;
  run->micro_batches = mpg_calloc(request->num_micro_batches + 1, sizeof *run->micro_batches);
  run->input_kinds = copied(request->input_kinds, request->num_inputs);
  run->output_kinds = copied(request->output_kinds, request->num_outputs);
  run->carried_from =
      copied(request->carried_from, request->num_inputs * sizeof *run->carried_from);
  run->inputs = mpg_calloc(run->num_inputs + 1, sizeof *run->inputs);
  run->outputs = mpg_calloc(run->num_outputs + 1, sizeof *run->outputs);
  return run->micro_batches && run->input_kinds && run->output_kinds && run->carried_from &&
                 run->inputs && run->outputs
             ? MPG_OK
             : mpg_out_of_host_memory(request->num_micro_batches * sizeof *run->micro_batches);
}

static mpg_status check_carried(const mpg_pipeline_run *run) {
  for (uint32_t i = 0; i < run->num_inputs; i++)
    if (run->input_kinds[i] == MPG_BATCH_STATE &&
        (run->carried_from[i] >= run->num_outputs ||
         run->output_kinds[run->carried_from[i]] != MPG_BATCH_STATE))
      return mpg_fail(MPG_VALUE_ERROR,
                      "carried input %u comes from result %u, which is not carried", i,
                      run->carried_from[i]);
  return MPG_OK;
}

mpg_status mpg_pipeline_run_new(const mpg_pipeline_run_request *request,
                                mpg_pipeline_run **result) {
  mpg_pipeline_run *run = mpg_calloc(1, sizeof *run);
  uint32_t num_random = 0;
  mpg_status status = MPG_OK;
  if (!run) {
    if (request->host_state) request->host_code->release(request->host_state);
    return mpg_out_of_host_memory(sizeof *run);
  }
  run->references = 1;
  run->host_code = request->host_code;
  run->host_state = request->host_state;
  run->scope = mpg_autograd_scope();
  run->origin = mpg_host_origin();
  MPG_GOTO(allocate(run, request));
  if (!request->num_micro_batches)
    MPG_GOTO(mpg_fail(MPG_VALUE_ERROR, "a run must have at least one micro-batch"));
  for (uint32_t i = 0; i < run->num_inputs; i++) {
    mpg_array_copy(&run->inputs[i], request->inputs[i]);
    run->downwards |= run->input_kinds[i] == MPG_BATCH_STATE;
  }
  MPG_GOTO(check_carried(run));
  while (run->num_micro_batches < request->num_micro_batches) {
    const mpg_compiled *c = request->compiled[run->num_micro_batches];
    MPG_GOTO(prepare_micro_batch(run, run->num_micro_batches++, request));
    if (c->graph.num_random > num_random) num_random = c->graph.num_random;
  }
  /* Before the schedule's bytes are checked. Other threads may run. */
  for (uint32_t i = 0; run->recording && i < run->num_inputs; i++)
    if (mpg_tape_lacks_gradient(run->inputs[i].node))
      MPG_GOTO(mpg_tape_create_gradient(run->inputs[i].node));
  MPG_GOTO(bind_forward(run));
  if (num_random) run->random = mpg_random_next(num_random);
  for (uint32_t k = 0; k < run->num_micro_batches; k++) {
    run->micro_batches[k].state.compiled->calls++;
    MPG_GOTO(mpg_micro_batch_begin(run, &run->micro_batches[k], MPG_PHASE_FORWARD));
  }
  *result = run;
  run = NULL;
fail:
  mpg_pipeline_run_release(run);
  return status;
}
