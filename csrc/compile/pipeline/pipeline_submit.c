/* Queueing of the segments of a pipeline run, in the order of its schedule. */
#include "compile/pipeline/pipeline_run.h"

static mpg_status check_item(const mpg_pipeline_run *run, const mpg_micro_batch_item *item) {
  if (run->finished)
    return mpg_fail(MPG_VALUE_ERROR, "the pipeline run is finished and has released its memory");
  if (item->micro_batch >= run->num_micro_batches)
    return mpg_fail(MPG_VALUE_ERROR, "micro-batch %u does not exist: the run has %u",
                    item->micro_batch, run->num_micro_batches);
  const mpg_micro_batch *micro_batch = &run->micro_batches[item->micro_batch];
  if (!micro_batch->staged_calls[item->phase].frame)
    return mpg_fail(MPG_VALUE_ERROR, "the backward pass of micro-batch %u is not prepared",
                    item->micro_batch);
  if (item->segment >= mpg_micro_batch_programs(micro_batch, item->phase)->num_segments)
    return mpg_fail(MPG_VALUE_ERROR, "segment %u of micro-batch %u does not exist", item->segment,
                    item->micro_batch);
  if (micro_batch->staged_calls[item->phase].frame->first_ticks[item->segment])
    return mpg_fail(MPG_VALUE_ERROR, "segment %u of micro-batch %u is already queued",
                    item->segment, item->micro_batch);
  return MPG_OK;
}

/* For each lane that no earlier segment has used, takes a matching spare lane if there is one. */
static void take_lanes(mpg_pipeline_run *run, mpg_micro_batch *micro_batch,
                       const mpg_program_set *set, const mpg_program_segment *segment) {
  for (uint32_t i = 0; i < segment->num_accesses; i++) {
    if (segment->accesses[i].base < set->num_externals) continue;
    uint32_t block = segment->accesses[i].base - set->num_externals;
    const mpg_device *device = set->programs[set->block_devices[block]].device;
    mpg_lane lane;
    if (!micro_batch->state.blocks[block] && set->block_lanes[block] &&
        mpg_spare_lanes_take(&run->spares, device, set->block_sizes[block], &lane))
      micro_batch->state.blocks[block] = lane.storage;
  }
}

/* Frees blocks after their last use, in queue order. */
static mpg_status drop_blocks(mpg_pipeline_run *run, mpg_micro_batch *micro_batch,
                              const mpg_program_set *set, const mpg_program_segment *segment,
                              bool keep) {
  for (uint32_t i = 0; i < segment->num_accesses; i++) {
    if (segment->accesses[i].base < set->num_externals) continue;
    uint32_t block = segment->accesses[i].base - set->num_externals;
    if (--micro_batch->uses.counts[block] || keep || run->retain) continue;
    if (set->block_lanes[block]) {
      mpg_storage *storage = micro_batch->state.blocks[block];
      MPG_TRY(
          mpg_spare_lanes_add(&run->spares, &(mpg_lane){storage->device, storage->size, storage}));
    } else {
      mpg_storage_release(micro_batch->state.blocks[block]);
    }
    micro_batch->state.blocks[block] = NULL;
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
                         mpg_device_text(set->programs[segment->slot].device), item->micro_batch,
                         scope ? ", in " : "", mpg_scope_text(scope));
}

mpg_status mpg_pipeline_run_peaks(const mpg_pipeline_run *run, const mpg_micro_batch_item *items,
                                  size_t count, bool keep, mpg_peaks *peaks) {
  bool queued[2] = {false, false}; /* by phase */
  for (size_t i = 0; i < count; i++) queued[items[i].phase] = true;
  const mpg_program_set **sets = mpg_calloc(2 * (size_t)run->num_micro_batches, sizeof *sets);
  if (!sets) return mpg_out_of_host_memory(run->num_micro_batches * sizeof *sets);
  for (uint32_t k = 0; k < run->num_micro_batches; k++) {
    const mpg_micro_batch *micro_batch = &run->micro_batches[k];
    if (queued[MPG_PHASE_FORWARD])
      sets[2 * k] = mpg_micro_batch_programs(micro_batch, MPG_PHASE_FORWARD);
    if (queued[MPG_PHASE_BACKWARD] && micro_batch->backward)
      sets[2 * k + 1] = mpg_micro_batch_programs(micro_batch, MPG_PHASE_BACKWARD);
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
  mpg_micro_batch *micro_batch = &run->micro_batches[item->micro_batch];
  const mpg_program_set *set = mpg_micro_batch_programs(micro_batch, item->phase);
  const mpg_program_segment *segment = &set->segments[item->segment];
  take_lanes(run, micro_batch, set, segment);
  mpg_status status = mpg_staged_call_submit(&micro_batch->staged_calls[item->phase], item->segment,
                                             item->stage + 1, item->micro_batch + 1);
  if (status != MPG_OK) return status == MPG_INTERRUPTED ? status : name_item(status, set, item);
  if (run->host_state) MPG_TRY(mpg_run_host_steps(run, item));
  return drop_blocks(run, micro_batch, set, segment, run->recording && !micro_batch->backward);
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
  /* Sets the flags only after all work on the gradients is queued. */
  for (uint32_t i = 0; i < run->num_inputs; i++) {
    mpg_tape_node *variable = run->inputs[i].node;
    if (variable && variable->kind == MPG_TAPE_VARIABLE && variable->request != MPG_GRAD_NULL &&
        !run->missed[i])
      variable->fresh = true;
  }
  return MPG_OK;
}
