/* Invalidation of the gradients of a pipelined backward pass whose queueing failed in the
 * middle. */
#include "compile/pipeline/pipeline_run.h"

static const mpg_staged_call *backward_call(const mpg_pipeline_run *run,
                                            const mpg_micro_batch_item *item) {
  return &run->micro_batches[item->micro_batch].staged_calls[MPG_PHASE_BACKWARD];
}

/* Returns the first tick of the backward segments queued on the device; 0 if none is queued. */
static mpg_tick first_backward_tick(const mpg_pipeline_run *run, const mpg_micro_batch_item *items,
                                    size_t count, const mpg_device *device) {
  for (size_t i = 0; i < count; i++) {
    if (items[i].phase != MPG_PHASE_BACKWARD) continue;
    const mpg_call_frame *frame = backward_call(run, &items[i])->frame;
    mpg_tick tick = frame->first_ticks[items[i].segment];
    const mpg_program_set *set = frame->set;
    if (tick && set->programs[set->segments[items[i].segment].slot].device == device) return tick;
  }
  return 0;
}

void mpg_fail_partial_gradients(const mpg_pipeline_run *run, const mpg_micro_batch_item *items,
                                size_t count, mpg_status status) {
  for (size_t i = 0; i < count; i++) {
    if (items[i].phase != MPG_PHASE_BACKWARD) continue;
    const mpg_staged_call *call = backward_call(run, &items[i]);
    const mpg_program_set *set = call->frame->set;
    const mpg_program_segment *segment = &set->segments[items[i].segment];
    mpg_device *device = set->programs[segment->slot].device;
    mpg_tick first = first_backward_tick(run, items, count, device);
    if (!first || call->frame->first_ticks[items[i].segment]) continue;
    for (uint32_t k = 0; k < segment->num_accesses; k++) {
      const mpg_access *access = &segment->accesses[k];
      if (!access->writes || access->base >= set->num_externals) continue;
      const mpg_storage *storage = call->call.parts[access->part][access->index].storage;
      mpg_tick last = storage->device == device ? storage->block.uses.write : 0;
      if (last < first) continue;
      mpg_device_fail(device, last, last, status, NULL);
      /* Marks the failure as read, because the caller reports it. */
      (void)mpg_device_failure(device, last);
    }
  }
}
