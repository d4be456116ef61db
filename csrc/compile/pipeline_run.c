/* Runs of a compiled function on the pieces of a batch. */
#include "compile/pipeline_run.h"

#include <string.h>

#include "base/host.h"
#include "compile/partial_gradients.h"
#include "graph/schedule/micro_batching.h"

static const mpg_program_set *set_of(const mpg_micro_batch *piece, mpg_phase phase) {
  return phase == MPG_PHASE_FORWARD ? piece->compiled->programs : piece->backward->programs;
}

static void give_back(mpg_micro_batch *piece) {
  for (uint32_t i = 0; piece->blocks && i < piece->num_blocks; i++) {
    if (piece->blocks[i]) mpg_storage_release(piece->blocks[i]);
    piece->blocks[i] = NULL;
  }
  for (uint32_t i = 0; piece->externals && i < mpg_compiled_all_externals(piece->compiled); i++)
    mpg_tensor_release(&piece->externals[i]);
}

void mpg_pipeline_run_finish(mpg_pipeline_run *run) {
  run->finished = true;
  for (uint32_t k = 0; run->pieces && k < run->num_micro_batches; k++) give_back(&run->pieces[k]);
  while (run->spares.count) mpg_storage_release(run->spares.lanes[--run->spares.count].storage);
  for (uint32_t i = 0; run->inputs && i < run->num_inputs; i++) mpg_array_clear(&run->inputs[i]);
  for (uint32_t i = 0; run->outputs && i < run->num_outputs; i++)
    mpg_tensor_release(&run->outputs[i]);
}

static void free_run(mpg_pipeline_run *run) {
  for (uint32_t k = 0; run->pieces && k < run->num_micro_batches; k++) {
    mpg_micro_batch *piece = &run->pieces[k];
    for (int phase = 0; phase < 2; phase++) mpg_staged_call_end(&piece->staged_calls[phase]);
    mpg_free(piece->externals);
    mpg_free(piece->blocks);
    mpg_free(piece->uses);
    mpg_compiled_release(piece->compiled);
  }
  mpg_free(run->pieces);
  mpg_free(run->input_kinds);
  mpg_free(run->output_kinds);
  mpg_free(run->carried_from);
  mpg_free(run->inputs);
  mpg_free(run->outputs);
  mpg_free(run->spares.lanes);
  mpg_free(run->versions);
  mpg_free(run->missed);
  mpg_free(run);
}

void mpg_pipeline_run_release(mpg_pipeline_run *run) {
  if (!run || --run->references) return;
  mpg_pipeline_run_finish(run);
  void *driver = run->driver;
  run->driver = NULL;
  run->watchers++; /* releasing the driver may give up the last one */
  if (driver) run->schedule->release(driver);
  mpg_pipeline_run_unwatch(run);
}

void mpg_pipeline_run_unwatch(mpg_pipeline_run *run) {
  if (!--run->watchers && !run->references) free_run(run);
}

static int64_t rows_of(const mpg_desc *desc) { return desc->shape.ndim ? desc->shape.dims[0] : 1; }
static const mpg_desc *output_desc(const mpg_micro_batch *piece, uint32_t i) {
  return &piece->compiled->outputs[i].desc;
}
static const mpg_graph_value *input_value(const mpg_micro_batch *piece, uint32_t i) {
  return mpg_graph_at(&piece->compiled->graph, piece->compiled->inputs[i]);
}

/* --- Making a run ----------------------------------------------------------------------------- */

static mpg_status check_compiled(const mpg_compiled *c, const mpg_pipeline_run_request *request) {
  if (c->num_given != request->num_inputs || c->num_outputs != request->num_outputs)
    return mpg_fail(MPG_ERROR,
                    "a piece was compiled for %u inputs and %u outputs, but the run has %u and %u",
                    c->num_given, c->num_outputs, request->num_inputs, request->num_outputs);
  for (uint32_t i = c->num_given; i < c->num_inputs; i++)
    if (c->wanted[i])
      return mpg_fail(MPG_ERROR,
                      "a pipelined block uses an array with a gradient that is neither an input "
                      "nor a parameter; pass it as an input");
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

mpg_status mpg_pipeline_run_check(mpg_compiled *c, const mpg_micro_batch_check *check) {
  const mpg_graph *graph, *second = NULL;
  mpg_batching_request request = check_of(c, &graph), other = {0};
  if (check->other &&
      (check->other->num_given != c->num_given || check->other->num_outputs != c->num_outputs))
    return mpg_fail(MPG_VALUE_ERROR, "the call for another size has other inputs or results");
  mpg_drawn *drawn = mpg_calloc(c->graph.num_random + 1, sizeof *drawn);
  if (!drawn) return mpg_out_of_host_memory(c->graph.num_random * sizeof *drawn);
  request.input_kinds = check->input_kinds;
  request.output_kinds = check->output_kinds;
  request.rows = check->rows;
  request.axis = check->axis;
  request.along_time = check->along_time;
  request.whole_statistics = check->whole_statistics;
  request.drawn = drawn;
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

/* The whole array that split output i is rows of: as many as the pieces have together. A carried
 * one is the last piece's, and may have another shape there: what is carried on may grow. */
static mpg_status make_output(mpg_pipeline_run *run, uint32_t i) {
  mpg_desc desc = *output_desc(
      &run->pieces[run->output_kinds[i] == MPG_BATCH_DIVIDED ? 0 : run->num_micro_batches - 1], i);
  mpg_device *device;
  if (run->output_kinds[i] == MPG_BATCH_DIVIDED) {
    if (!desc.shape.ndim)
      return mpg_fail(MPG_ERROR,
                      "result %u of a pipelined block is a scalar: it has no axis along which the "
                      "pieces' results can be put together",
                      i);
    for (uint32_t k = 1; k < run->num_micro_batches; k++)
      desc.shape.dims[0] += rows_of(output_desc(&run->pieces[k], i));
  }
  const mpg_compiled *c = run->pieces[0].compiled;
  MPG_TRY(mpg_device_get(
      mpg_graph_at(&c->graph, c->results[c->outputs[i].external - mpg_compiled_result(c, 0)])
          ->device,
      &device));
  return mpg_tensor_create(device, &desc, &run->outputs[i]);
}

static mpg_status slice(const mpg_tensor *whole, const mpg_desc *desc, int64_t *row,
                        const char *what, uint32_t i, mpg_tensor *result) {
  int64_t end = *row + rows_of(desc);
  char have[MPG_SHAPE_TEXT_SIZE], want[MPG_SHAPE_TEXT_SIZE];
  if (end > rows_of(&whole->desc))
    return mpg_fail(MPG_ERROR,
                    "%s %u of a pipelined block has shape %s, too small for its pieces of shape %s",
                    what, i, mpg_shape_text(&whole->desc.shape, have, sizeof have),
                    mpg_shape_text(&desc->shape, want, sizeof want));
  MPG_TRY(mpg_tensor_slice(whole, *row, end, result));
  *row = end;
  return MPG_OK;
}

static mpg_status check_input(const mpg_tensor *tensor, const mpg_graph_value *value, uint32_t i) {
  char have[MPG_SHAPE_TEXT_SIZE], want[MPG_SHAPE_TEXT_SIZE];
  if (mpg_shape_equal(&tensor->desc.shape, &value->desc.shape) &&
      tensor->desc.dtype == value->desc.dtype &&
      mpg_device_id_equal(mpg_tensor_device(tensor)->id, value->device))
    return MPG_OK;
  return mpg_fail(
      MPG_ERROR,
      "input %u of a pipelined block's piece is %s %s, but the piece was compiled for %s %s", i,
      mpg_dtype_name(tensor->desc.dtype), mpg_shape_text(&tensor->desc.shape, have, sizeof have),
      mpg_dtype_name(value->desc.dtype), mpg_shape_text(&value->desc.shape, want, sizeof want));
}

/* Arrays that the forward phase of all pieces reads and writes. */
static mpg_status bind_forward(mpg_pipeline_run *run) {
  for (uint32_t i = 0; i < run->num_outputs; i++) {
    int64_t row = 0;
    MPG_TRY(make_output(run, i));
    for (uint32_t k = 0; k < run->num_micro_batches; k++) {
      mpg_micro_batch *piece = &run->pieces[k];
      mpg_tensor *external = &piece->externals[piece->compiled->outputs[i].external];
      if (run->output_kinds[i] == MPG_BATCH_DIVIDED) {
        MPG_TRY(slice(&run->outputs[i], output_desc(piece, i), &row, "result", i, external));
      } else if (k + 1 == run->num_micro_batches) {
        *external = run->outputs[i];
        mpg_tensor_retain(external);
      } else {
        MPG_TRY(mpg_tensor_create(mpg_tensor_device(&run->outputs[i]), output_desc(piece, i),
                                  external));
      }
    }
  }
  for (uint32_t i = 0; i < run->num_inputs; i++) {
    int64_t row = 0;
    for (uint32_t k = 0; k < run->num_micro_batches; k++) {
      mpg_micro_batch *piece = &run->pieces[k];
      mpg_tensor *external = &piece->externals[i];
      if (run->input_kinds[i] == MPG_BATCH_DIVIDED) {
        MPG_TRY(slice(&run->inputs[i].tensor, &input_value(piece, i)->desc, &row, "input", i,
                      external));
      } else {
        const mpg_micro_batch *before = k ? &run->pieces[k - 1] : NULL;
        bool carried = run->input_kinds[i] == MPG_BATCH_STATE && before;
        *external =
            carried ? before->externals[before->compiled->outputs[run->carried_from[i]].external]
                    : run->inputs[i].tensor;
        mpg_tensor_retain(external);
      }
      MPG_TRY(check_input(external, input_value(piece, i), i));
    }
    if (run->input_kinds[i] == MPG_BATCH_DIVIDED && row != rows_of(&run->inputs[i].tensor.desc))
      return mpg_fail(MPG_ERROR,
                      "the pieces of a pipelined block take %lld rows of input %u, which has %lld",
                      (long long)row, i, (long long)rows_of(&run->inputs[i].tensor.desc));
  }
  for (uint32_t k = 0; k < run->num_micro_batches; k++) {
    mpg_compiled *c = run->pieces[k].compiled;
    for (uint32_t i = 0; i < c->num_constants; i++) {
      run->pieces[k].externals[c->num_given + i] = c->constants[i].tensor;
      mpg_tensor_retain(&c->constants[i].tensor);
    }
  }
  return MPG_OK;
}

static mpg_status prepare_piece(mpg_pipeline_run *run, uint32_t k,
                                const mpg_pipeline_run_request *request) {
  mpg_micro_batch *piece = &run->pieces[k];
  mpg_compiled *c = request->compiled[k];
  MPG_TRY(check_compiled(c, request));
  piece->compiled = c;
  c->references++;
  piece->rows = request->rows[k];
  piece->num_blocks = c->plan.num_blocks;
  piece->externals = mpg_calloc(mpg_compiled_all_externals(c) + 1, sizeof *piece->externals);
  piece->blocks = mpg_calloc(piece->num_blocks + 1, sizeof *piece->blocks);
  piece->uses = mpg_calloc(piece->num_blocks + 1, sizeof *piece->uses);
  if (!piece->externals || !piece->blocks || !piece->uses)
    return mpg_out_of_host_memory(piece->num_blocks * sizeof *piece->blocks);
  mpg_count_block_uses(c->programs, piece->uses);
  run->recording |= c->recording;
  return MPG_OK;
}

static mpg_status begin_staged_call(const mpg_pipeline_run *run, mpg_micro_batch *piece,
                                    mpg_phase phase) {
  const mpg_compiled *c = piece->compiled;
  mpg_program_set *set = phase == MPG_PHASE_FORWARD ? c->programs : piece->backward->programs;
  if (c->drawn && !set->drawn) MPG_TRY(mpg_program_set_draw(set, c->drawn, c->graph.num_random));
  mpg_launching call = {.parts = {piece->externals},
                        .blocks = piece->blocks,
                        .random = run->random,
                        .scope = run->scope,
                        .origin = run->origin};
  return mpg_staged_call_begin(set, &call, piece->rows, true, &piece->staged_calls[phase]);
}

static void *copied(const void *source, size_t size) {
  void *copy = mpg_malloc(size + 1);
  if (copy && size) memcpy(copy, source, size);
  return copy;
}

mpg_status mpg_pipeline_run_new(const mpg_pipeline_run_request *request,
                                mpg_pipeline_run **result) {
  mpg_pipeline_run *run = mpg_calloc(1, sizeof *run);
  uint32_t num_random = 0;
  mpg_status status = MPG_OK;
  if (!run) return mpg_out_of_host_memory(sizeof *run);
  run->references = 1;
  run->num_inputs = request->num_inputs;
  run->num_outputs = request->num_outputs;
  run->scope = mpg_autograd_scope();
  run->origin = mpg_host_origin();
  run->pieces = mpg_calloc(request->num_micro_batches + 1, sizeof *run->pieces);
  run->input_kinds = copied(request->input_kinds, request->num_inputs);
  run->output_kinds = copied(request->output_kinds, request->num_outputs);
  run->carried_from =
      copied(request->carried_from, request->num_inputs * sizeof *run->carried_from);
  run->inputs = mpg_calloc(run->num_inputs + 1, sizeof *run->inputs);
  run->outputs = mpg_calloc(run->num_outputs + 1, sizeof *run->outputs);
  if (!run->pieces || !run->input_kinds || !run->output_kinds || !run->carried_from ||
      !run->inputs || !run->outputs)
    MPG_GOTO(mpg_out_of_host_memory(request->num_micro_batches * sizeof *run->pieces));
  if (!request->num_micro_batches)
    MPG_GOTO(mpg_fail(MPG_VALUE_ERROR, "a run must have at least one piece"));
  for (uint32_t i = 0; i < run->num_inputs; i++) {
    mpg_array_copy(&run->inputs[i], request->inputs[i]);
    run->downwards |= run->input_kinds[i] == MPG_BATCH_STATE;
    if (run->input_kinds[i] == MPG_BATCH_STATE &&
        (run->carried_from[i] >= run->num_outputs ||
         run->output_kinds[run->carried_from[i]] != MPG_BATCH_STATE))
      MPG_GOTO(mpg_fail(MPG_VALUE_ERROR,
                        "carried input %u comes from result %u, which is not carried", i,
                        run->carried_from[i]));
  }
  for (run->num_micro_batches = 0; run->num_micro_batches < request->num_micro_batches;) {
    mpg_compiled *c = request->compiled[run->num_micro_batches];
    MPG_GOTO(prepare_piece(run, run->num_micro_batches++, request));
    if (c->graph.num_random > num_random) num_random = c->graph.num_random;
  }
  MPG_GOTO(bind_forward(run));
  if (num_random) run->random = mpg_random_next(num_random);
  for (uint32_t k = 0; k < run->num_micro_batches; k++) {
    mpg_micro_batch *piece = &run->pieces[k];
    piece->compiled->calls++;
    MPG_GOTO(begin_staged_call(run, piece, MPG_PHASE_FORWARD));
  }
  *result = run;
  run = NULL;
fail:
  mpg_pipeline_run_release(run);
  return status;
}

/* --- Backward --------------------------------------------------------------------------------- */

static mpg_status new_gradient(const mpg_graph_value *value, int64_t rows, mpg_tensor *tensor) {
  mpg_desc desc = value->desc;
  mpg_device *device;
  if (rows >= 0) desc.shape.dims[0] = rows;
  MPG_TRY(mpg_device_get(value->device, &device));
  return mpg_tensor_create(device, &desc, tensor);
}

/* Binds the gradient of output i of a piece; false where none arrives. `row`: where its rows begin.
 */
static mpg_status bind_head(mpg_pipeline_run *run, uint32_t k, mpg_array *const *heads, uint32_t i,
                            int64_t row, bool *arrives) {
  mpg_micro_batch *piece = &run->pieces[k];
  mpg_tensor *external = &piece->externals[mpg_compiled_out_grad(piece->compiled, i)];
  mpg_tensor source = {0};
  bool last = k + 1 == run->num_micro_batches;
  if (run->output_kinds[i] == MPG_BATCH_DIVIDED || last) {
    if (heads[i] && heads[i]->tensor.storage) source = heads[i]->tensor;
  } else { /* what the next piece's backward gives for the input it carried on to; several inputs
              would need a sum */
    const mpg_micro_batch *next = &run->pieces[k + 1];
    uint32_t users = 0;
    for (uint32_t j = 0; j < run->num_inputs; j++) {
      if (run->input_kinds[j] != MPG_BATCH_STATE || run->carried_from[j] != i) continue;
      const mpg_tensor *gradient = &next->externals[mpg_compiled_in_grad(next->compiled, j)];
      if (!next->backward->gives[j] || !gradient->storage) continue;
      if (users++)
        return mpg_fail(MPG_ERROR, "result %u of a pipelined block is carried on to several inputs",
                        i);
      source = *gradient;
    }
  }
  *arrives = source.storage != NULL;
  if (!source.storage) return MPG_OK;
  if (run->output_kinds[i] == MPG_BATCH_DIVIDED)
    return slice(&source, output_desc(piece, i), &row, "the gradient of result", i, external);
  *external = source;
  mpg_tensor_retain(external);
  return MPG_OK;
}

/* Where the gradient of input i goes in a piece; `first`: no piece before it in the order of the
 * backward has written it. */
static mpg_status place_input(mpg_pipeline_run *run, uint32_t k, uint32_t i, bool first,
                              int64_t row, const mpg_target *target, mpg_array *whole,
                              uint8_t *place, mpg_tensor *tensor) {
  mpg_micro_batch *piece = &run->pieces[k];
  const mpg_graph_value *value = input_value(piece, i);
  switch (run->input_kinds[i]) {
    case MPG_BATCH_DIVIDED:
      *place = MPG_PLACE_WRITE;
      return slice(&whole->tensor, &value->desc, &row, "the gradient of input", i, tensor);
    case MPG_BATCH_STATE:
      *place = MPG_PLACE_WRITE;
      if (k == 0) { /* the caller's own */
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
    const mpg_micro_batch *piece = &run->pieces[before];
    row += rows_of(input ? &input_value(piece, i)->desc : output_desc(piece, i));
  }
  return row;
}

/* What an earlier backward left when the graph was retained: another one has arrays and blocks of
 * its own. */
static void forget_backward(mpg_micro_batch *piece) {
  const mpg_compiled *c = piece->compiled;
  mpg_staged_call_end(&piece->staged_calls[MPG_PHASE_BACKWARD]);
  for (uint32_t i = mpg_compiled_out_grad(c, 0); i < mpg_compiled_all_externals(c); i++) {
    mpg_tensor_release(&piece->externals[i]);
    piece->externals[i] = (mpg_tensor){0};
  }
  for (uint32_t i = c->plan.num_blocks; i < piece->num_blocks; i++) {
    if (piece->blocks[i]) mpg_storage_release(piece->blocks[i]);
    piece->blocks[i] = NULL;
  }
}

/* The blocks of the backward phase follow the forward's. */
static mpg_status grow_blocks(mpg_micro_batch *piece, uint32_t count) {
  mpg_storage **blocks = mpg_realloc(piece->blocks, (count + 1) * sizeof *blocks);
  if (!blocks) return mpg_out_of_host_memory(count * sizeof *blocks);
  piece->blocks = piece->staged_calls[MPG_PHASE_FORWARD].call.blocks = blocks;
  uint32_t *uses = mpg_realloc(piece->uses, (count + 1) * sizeof *uses);
  if (!uses) return mpg_out_of_host_memory(count * sizeof *uses);
  piece->uses = uses;
  for (; piece->num_blocks < count; piece->num_blocks++) {
    blocks[piece->num_blocks] = NULL;
    uses[piece->num_blocks] = 0;
  }
  return MPG_OK;
}

static mpg_status differentiate_piece(mpg_pipeline_run *run, uint32_t k, bool first,
                                      mpg_array *const *heads, const bool *needed,
                                      const mpg_target *targets, mpg_array *results, bool retain,
                                      bool train) {
  mpg_micro_batch *piece = &run->pieces[k];
  mpg_compiled *c = piece->compiled;
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
                         &places[i], &piece->externals[mpg_compiled_in_grad(c, i)]));
  }
  MPG_GOTO(mpg_compiled_get_backward(c, arrives, summed, places, retain, train, &piece->backward));
  MPG_GOTO(grow_blocks(piece, piece->backward->plan.num_blocks));
  mpg_count_block_uses(piece->backward->programs, piece->uses);
  MPG_GOTO(begin_staged_call(run, piece, MPG_PHASE_BACKWARD));
fail:
  mpg_free(arrives);
  return status;
}

/* Which parameters some piece's results were computed from: the others keep the gradients they
 * have. */
static mpg_status find_missed(const mpg_pipeline_run *run, mpg_array *const *heads,
                              const bool *needed, mpg_target *targets) {
  const mpg_compiled *c = run->pieces[0].compiled;
  bool *arrives = mpg_calloc(run->num_outputs + run->num_inputs + 1, sizeof *arrives),
       *reached = arrives + run->num_outputs;
  if (!arrives) return mpg_out_of_host_memory(run->num_inputs);
  for (uint32_t i = 0; i < run->num_outputs; i++)
    arrives[i] = (heads[i] && heads[i]->tensor.storage) ||
                 (run->num_micro_batches > 1 && run->output_kinds[i] == MPG_BATCH_STATE);
  mpg_status status = mpg_compiled_find_reached(c, arrives, reached);
  for (uint32_t i = 0; status == MPG_OK && i < run->num_inputs; i++)
    targets[i].missed = needed[i] && c->wanted[i] && targets[i].tensor.storage &&
                        run->input_kinds[i] == MPG_BATCH_SAME && !reached[i];
  mpg_free(arrives);
  return status;
}

mpg_status mpg_pipeline_run_differentiate(mpg_pipeline_run *run, mpg_array *const *heads,
                                          const bool *needed, mpg_target *targets,
                                          mpg_array *results, bool retain, bool train) {
  MPG_TRY(find_missed(run, heads, needed, targets));
  for (uint32_t i = 0; i < run->num_inputs; i++) {
    bool target = targets[i].tensor.storage && run->input_kinds[i] == MPG_BATCH_SAME;
    if (!needed[i] || !run->pieces[0].compiled->wanted[i] || target) continue;
    MPG_TRY(new_gradient(
        input_value(&run->pieces[0], i),
        run->input_kinds[i] == MPG_BATCH_DIVIDED ? rows_of(&run->inputs[i].tensor.desc) : -1,
        &results[i].tensor));
  }
  run->retain = retain;
  for (uint32_t n = 0; n < run->num_micro_batches; n++) {
    uint32_t k = run->downwards ? run->num_micro_batches - 1 - n : n;
    forget_backward(&run->pieces[k]);
    MPG_TRY(differentiate_piece(run, k, n == 0, heads, needed, targets, results, retain, train));
  }
  for (uint32_t i = 0; i < run->num_inputs; i++)
    targets[i].done = needed[i] && run->pieces[0].compiled->wanted[i] &&
                      targets[i].tensor.storage && run->input_kinds[i] == MPG_BATCH_SAME &&
                      !targets[i].missed;
  return MPG_OK;
}

mpg_status mpg_pipeline_run_train(mpg_pipeline_run *run, mpg_array *const *heads, bool train) {
  mpg_target *targets = mpg_calloc(run->num_inputs + 1, sizeof *targets);
  mpg_array *results = mpg_calloc(run->num_inputs + 1, sizeof *results);
  bool *needed = mpg_calloc(run->num_inputs + 1, sizeof *needed);
  mpg_status status = MPG_OK;
  if (!run->missed) run->missed = mpg_calloc(run->num_inputs + 1, sizeof *run->missed);
  if (!targets || !results || !needed || !run->missed)
    MPG_GOTO(mpg_out_of_host_memory(run->num_inputs * sizeof *targets));
  for (uint32_t i = 0; i < run->num_inputs; i++) {
    const mpg_tape_node *variable = run->inputs[i].node;
    if (!variable) continue;
    if (variable->kind != MPG_TAPE_VARIABLE || run->input_kinds[i] != MPG_BATCH_SAME)
      MPG_GOTO(mpg_fail(MPG_ERROR,
                        "input %u of a training step in pieces wants a gradient; only parameters "
                        "can have one. Call detach() on it",
                        i));
    needed[i] = variable->request != MPG_GRAD_NULL;
    targets[i] = (mpg_target){variable->gradient, (mpg_grad_req)variable->request, false, false};
  }
  MPG_GOTO(mpg_pipeline_run_differentiate(run, heads, needed, targets, results, false, train));
  for (uint32_t i = 0; i < run->num_inputs; i++) run->missed[i] = targets[i].missed;
  run->trains = true;
fail:
  for (uint32_t i = 0; results && i < run->num_inputs; i++) mpg_array_clear(&results[i]);
  mpg_free(targets);
  mpg_free(results);
  mpg_free(needed);
  return status;
}

/* --- Running ---------------------------------------------------------------------------------- */

static mpg_status check_item(const mpg_pipeline_run *run, const mpg_micro_batch_item *item) {
  if (run->finished)
    return mpg_fail(MPG_VALUE_ERROR,
                    "the run of pieces is finished: its memory has been given back");
  if (item->piece >= run->num_micro_batches)
    return mpg_fail(MPG_VALUE_ERROR, "there is no piece %u: the run has %u", item->piece,
                    run->num_micro_batches);
  const mpg_micro_batch *piece = &run->pieces[item->piece];
  if (!piece->staged_calls[item->phase].frame)
    return mpg_fail(MPG_VALUE_ERROR, "the backward of piece %u is not prepared", item->piece);
  if (item->segment >= set_of(piece, item->phase)->num_segments)
    return mpg_fail(MPG_VALUE_ERROR, "there is no segment %u of piece %u", item->segment,
                    item->piece);
  if (piece->staged_calls[item->phase].frame->first_ticks[item->segment])
    return mpg_fail(MPG_VALUE_ERROR, "segment %u of piece %u was queued already", item->segment,
                    item->piece);
  return MPG_OK;
}

/* The lanes that the segment is the first to touch: spare ones, where there are some. */
static void take_lanes(mpg_pipeline_run *run, mpg_micro_batch *piece, const mpg_program_set *set,
                       const mpg_program_segment *segment) {
  for (uint32_t i = 0; i < segment->num_accesses; i++) {
    if (segment->accesses[i].base < set->num_externals) continue;
    uint32_t block = segment->accesses[i].base - set->num_externals;
    const mpg_device *device = set->programs[set->block_devices[block]].device;
    mpg_lane lane;
    if (!piece->blocks[block] && set->block_lanes[block] &&
        mpg_spare_lanes_take(&run->spares, device, set->block_sizes[block], &lane))
      piece->blocks[block] = lane.storage;
  }
}

/* Memory that nothing queued from now on touches goes back behind what is queued. */
static mpg_status drop_blocks(mpg_pipeline_run *run, mpg_micro_batch *piece,
                              const mpg_program_set *set, const mpg_program_segment *segment,
                              bool keep) {
  for (uint32_t i = 0; i < segment->num_accesses; i++) {
    if (segment->accesses[i].base < set->num_externals) continue;
    uint32_t block = segment->accesses[i].base - set->num_externals;
    if (--piece->uses[block] || keep || run->retain) continue;
    if (set->block_lanes[block]) {
      mpg_storage *storage = piece->blocks[block];
      MPG_TRY(
          mpg_spare_lanes_add(&run->spares, &(mpg_lane){storage->device, storage->size, storage}));
    } else {
      mpg_storage_release(piece->blocks[block]);
    }
    piece->blocks[block] = NULL;
  }
  return MPG_OK;
}

static mpg_status name_item(mpg_status status, const mpg_program_set *set,
                            const mpg_micro_batch_item *item) {
  const mpg_program_segment *segment = &set->segments[item->segment];
  uint32_t scope = 0;
  for (uint32_t i = segment->begin; i < segment->end && !scope; i++)
    scope = set->programs[segment->slot].instructions[i].scope;
  return mpg_fail_prefix(status, "%s of stage %u on %s, micro-batch %u%s%s",
                         item->phase == MPG_PHASE_FORWARD ? "forward" : "backward", item->stage,
                         mpg_device_text(set->programs[segment->slot].device), item->piece,
                         scope ? ", in " : "", mpg_scope_text(scope));
}

mpg_status mpg_pipeline_run_peaks(const mpg_pipeline_run *run, const mpg_micro_batch_item *items,
                                  size_t count, bool keep, size_t *peaks) {
  bool queued[2] = {false, false}; /* by phase */
  for (size_t i = 0; i < count; i++) queued[items[i].phase] = true;
  const mpg_program_set **sets = mpg_calloc(2 * (size_t)run->num_micro_batches, sizeof *sets);
  if (!sets) return mpg_out_of_host_memory(run->num_micro_batches * sizeof *sets);
  for (uint32_t k = 0; k < run->num_micro_batches; k++) {
    const mpg_micro_batch *piece = &run->pieces[k];
    if (queued[MPG_PHASE_FORWARD]) sets[2 * k] = set_of(piece, MPG_PHASE_FORWARD);
    if (queued[MPG_PHASE_BACKWARD] && piece->backward)
      sets[2 * k + 1] = set_of(piece, MPG_PHASE_BACKWARD);
  }
  mpg_status status =
      mpg_schedule_peaks(&(mpg_schedule_memory){.sets = sets,
                                                .num_micro_batches = run->num_micro_batches,
                                                .items = items,
                                                .num_items = count,
                                                .keep = keep},
                         peaks);
  mpg_free((void *)sets);
  return status;
}

static mpg_status submit_item(mpg_pipeline_run *run, const mpg_micro_batch_item *item) {
  MPG_TRY(check_item(run, item));
  mpg_micro_batch *piece = &run->pieces[item->piece];
  const mpg_program_set *set = set_of(piece, item->phase);
  const mpg_program_segment *segment = &set->segments[item->segment];
  take_lanes(run, piece, set, segment);
  mpg_status status = mpg_staged_call_submit(&piece->staged_calls[item->phase], item->segment,
                                             item->stage + 1, item->piece + 1);
  if (status != MPG_OK) return status == MPG_INTERRUPTED ? status : name_item(status, set, item);
  return drop_blocks(run, piece, set, segment, run->recording && !piece->backward);
}

mpg_status mpg_pipeline_run_submit(mpg_pipeline_run *run, const mpg_micro_batch_item *items,
                                   size_t count) {
  for (size_t i = 0; i < count; i++) MPG_TRY(check_item(run, &items[i]));
  for (size_t i = 0; i < count; i++) {
    mpg_status status = submit_item(run, &items[i]);
    if (status == MPG_OK) continue;
    mpg_status reason = status;
    if (status == MPG_INTERRUPTED)
      reason = mpg_fail(MPG_ERROR,
                        "the backward pass of a pipelined block was interrupted: not all "
                        "micro-batches have been added to this gradient");
    mpg_fail_partial_gradients(run, items, count, reason);
    return status;
  }
  if (!run->trains) return MPG_OK;
  run->trains = false;
  for (uint32_t i = 0; i < run->num_inputs; i++) { /* queued: the trainer may count on them */
    mpg_tape_node *variable = run->inputs[i].node;
    if (variable && variable->kind == MPG_TAPE_VARIABLE && variable->request != MPG_GRAD_NULL &&
        !run->missed[i])
      variable->fresh = true;
  }
  return MPG_OK;
}

/* --- On the tape ------------------------------------------------------------------------------ */

static size_t num_versions(const mpg_pipeline_run *run) {
  size_t count = 0;
  for (uint32_t k = 0; k < run->num_micro_batches; k++)
    count += mpg_compiled_forward_externals(run->pieces[k].compiled);
  return count;
}

static void note_versions(mpg_pipeline_run *run) {
  uint32_t *version = run->versions;
  for (uint32_t k = 0; k < run->num_micro_batches; k++)
    for (uint32_t e = 0; e < mpg_compiled_forward_externals(run->pieces[k].compiled); e++)
      *version++ = run->pieces[k].externals[e].storage->version;
}

static mpg_status overwritten(const mpg_compiled *c, uint32_t external) {
  const char *what = external < c->num_given    ? "input"
                     : external < c->num_inputs ? "captured array"
                                                : "result";
  uint32_t number = external < c->num_given ? external : external - c->num_given;
  for (uint32_t i = 0; i < c->num_outputs; i++)
    if (c->outputs[i].external == external) number = i;
  return mpg_fail(MPG_ERROR,
                  "backward of a pipelined block: its %s %u was overwritten after the forward "
                  "pass, and the gradient needs the old "
                  "contents. Write into another array, or copy before you write",
                  what, number);
}

/* What the pieces' backwards read of arrays outside must be as it was. */
static mpg_status check_versions(const mpg_pipeline_run *run) {
  const uint32_t *version = run->versions;
  for (uint32_t k = 0; k < run->num_micro_batches; k++) {
    const mpg_micro_batch *piece = &run->pieces[k];
    for (uint32_t e = 0; e < mpg_compiled_forward_externals(piece->compiled); e++, version++)
      if (piece->compiled->saved_external[e] && piece->externals[e].storage->version != *version)
        return overwritten(piece->compiled, e);
  }
  return MPG_OK;
}

static mpg_status run_backward(mpg_tape_node *node, mpg_array *const *out_grads,
                               mpg_array *const *sums, const bool *needed, mpg_target *targets,
                               mpg_array *in_grads, bool retain, bool train, bool together) {
  mpg_pipeline_run *run = node->state;
  (void)sums, (void)together;
  MPG_TRY(check_versions(run));
  MPG_TRY(mpg_pipeline_run_differentiate(run, out_grads, needed, targets, in_grads, retain, train));
  MPG_TRY(run->schedule->backward(run, run->driver));
  if (!retain) mpg_pipeline_run_finish(run);
  return MPG_OK;
}

static mpg_status refuse_expansion(mpg_tape_node *node, mpg_array *outputs) {
  (void)node;
  (void)outputs;
  return mpg_fail(MPG_ERROR,
                  "gradients of gradients do not go through a pipelined block; hybridize it "
                  "without pipeline= for these");
}

static void run_release(void *state) { mpg_pipeline_run_release(state); }

static const mpg_tape_call pipelined_calls = {.name = "a pipelined block",
                                              .backward = run_backward,
                                              .expand = refuse_expansion,
                                              .release = run_release};

mpg_status mpg_pipeline_run_record(mpg_pipeline_run *run, const mpg_pipeline_run_schedule *schedule,
                                   void *driver, mpg_array *outputs) {
  const mpg_compiled *c = run->pieces[0].compiled;
  mpg_tape_node *node;
  run->schedule = schedule;
  run->driver = driver;
  if (run->finished) return mpg_fail(MPG_VALUE_ERROR, "the run of pieces is finished");
  run->versions = mpg_malloc((num_versions(run) + 1) * sizeof *run->versions);
  if (!run->versions) return mpg_out_of_host_memory(num_versions(run) * sizeof *run->versions);
  note_versions(run);
  MPG_TRY(mpg_tape_new(MPG_TAPE_CALL, run->num_inputs, run->num_outputs, 0, &node));
  node->call = &pipelined_calls;
  node->state = run;
  run->references++;
  node->train = mpg_autograd_training();
  node->scope = run->scope;
  node->origin = run->origin;
  for (uint32_t i = 0; i < run->num_inputs; i++) {
    const mpg_array *input = &run->inputs[i];
    if (c->wanted[i] && input->node && !input->node->consumed)
      node->edges[i] = (mpg_tape_edge){mpg_tape_retain(input->node), input->output};
    node->descs[i] = input->tensor.desc;
    node->devices[i] = mpg_tensor_device(&input->tensor);
  }
  for (uint32_t i = 0; i < run->num_outputs; i++) {
    node->descs[run->num_inputs + i] = run->outputs[i].desc;
    node->devices[run->num_inputs + i] = mpg_tensor_device(&run->outputs[i]);
    outputs[i].node = mpg_tape_retain(node);
    outputs[i].output = i;
  }
  mpg_tape_release(node);
  return MPG_OK;
}
