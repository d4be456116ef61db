/* Memory of micro-batches: spare lanes, and the peak memory of a schedule. */
#include "compile/pipeline/pipeline_memory.h"

#include <string.h>

mpg_status mpg_spare_lanes_add(mpg_spare_lanes *spares, const mpg_lane *lane) {
  MPG_TRY(mpg_grow((void **)&spares->lanes, &spares->capacity, spares->count + 1,
                   sizeof *spares->lanes));
  spares->lanes[spares->count++] = *lane;
  return MPG_OK;
}

/* Number of matching lanes left unused, because a device may still be reading the latest one. */
enum { LEFT_ALONE = 1 };

bool mpg_spare_lanes_take(mpg_spare_lanes *spares, const mpg_device *device, size_t size,
                          mpg_lane *lane) {
  size_t oldest = 0, fitting = 0;
  for (size_t i = spares->count; i-- > 0;) {
    if (spares->lanes[i].size != size || spares->lanes[i].device != device) continue;
    oldest = i;
    fitting++;
  }
  if (fitting <= LEFT_ALONE) return false;
  *lane = spares->lanes[oldest];
  memmove(spares->lanes + oldest, spares->lanes + oldest + 1,
          (--spares->count - oldest) * sizeof *spares->lanes);
  return true;
}

mpg_status mpg_block_uses_add(mpg_block_uses *uses, const mpg_program_set *set) {
  if (!uses->counts || set->num_blocks > uses->num_blocks) {
    uint32_t *counts = mpg_realloc(uses->counts, ((size_t)set->num_blocks + 1) * sizeof *counts);
    if (!counts) return mpg_out_of_host_memory(set->num_blocks * sizeof *counts);
    uses->counts = counts;
    while (uses->num_blocks < set->num_blocks) counts[uses->num_blocks++] = 0;
  }
  for (uint32_t s = 0; s < set->num_segments; s++)
    for (uint32_t i = 0; i < set->segments[s].num_accesses; i++)
      if (set->segments[s].accesses[i].base >= set->num_externals)
        uses->counts[set->segments[s].accesses[i].base - set->num_externals]++;
  return MPG_OK;
}

/* --- Peaks ------------------------------------------------------------------------------------ */

typedef struct simulated_micro_batch {
  mpg_block_uses uses;
  bool *held; /* per block */
} simulated_micro_batch;

typedef struct simulation {
  simulated_micro_batch *micro_batches;
  mpg_spare_lanes spares;
  size_t *held; /* bytes held on each device, indexed by device ordinal */
  mpg_peaks peaks;
} simulation;

static const mpg_program_set *set_at(const mpg_schedule_memory *schedule, uint32_t micro_batch,
                                     int phase) {
  return schedule->sets[2 * micro_batch + (uint32_t)phase];
}

static mpg_status begin_simulation(const mpg_schedule_memory *schedule, simulation *state) {
  state->micro_batches = mpg_calloc(schedule->num_micro_batches + 1, sizeof *state->micro_batches);
  state->peaks.num_devices = mpg_device_count();
  state->held = mpg_calloc((size_t)state->peaks.num_devices + 1, sizeof *state->held);
  state->peaks.bytes = mpg_calloc((size_t)state->peaks.num_devices + 1, sizeof *state->held);
  if (!state->micro_batches || !state->held || !state->peaks.bytes)
    return mpg_out_of_host_memory(schedule->num_micro_batches * sizeof *state->micro_batches);
  for (uint32_t k = 0; k < schedule->num_micro_batches; k++) {
    simulated_micro_batch *micro_batch = &state->micro_batches[k];
    for (int phase = 0; phase < 2; phase++)
      if (set_at(schedule, k, phase))
        MPG_TRY(mpg_block_uses_add(&micro_batch->uses, set_at(schedule, k, phase)));
    micro_batch->held =
        mpg_calloc((size_t)micro_batch->uses.num_blocks + 1, sizeof *micro_batch->held);
    if (!micro_batch->held) return mpg_out_of_host_memory(micro_batch->uses.num_blocks);
  }
  return MPG_OK;
}

static void end_simulation(const mpg_schedule_memory *schedule, simulation *state) {
  for (uint32_t k = 0; state->micro_batches && k < schedule->num_micro_batches; k++) {
    mpg_free(state->micro_batches[k].uses.counts);
    mpg_free(state->micro_batches[k].held);
  }
  mpg_free(state->micro_batches);
  mpg_free(state->spares.lanes);
  mpg_free(state->held);
  mpg_free(state->peaks.bytes);
}

static mpg_status simulate_segment(const mpg_program_set *set, const mpg_program_segment *segment,
                                   bool keep, simulated_micro_batch *micro_batch,
                                   simulation *state) {
  mpg_lane lane = {0};
  /* The first pass takes all blocks. The second one releases those that are not used again. */
  for (int back = 0; back < 2; back++)
    for (uint32_t i = 0; i < segment->num_accesses; i++) {
      if (segment->accesses[i].base < set->num_externals) continue;
      uint32_t block = segment->accesses[i].base - set->num_externals;
      const mpg_device *device = set->programs[set->block_devices[block]].device;
      size_t *held = &state->held[device->ordinal], *peak = &state->peaks.bytes[device->ordinal];
      size_t size = mpg_pool_block_size(set->block_sizes[block]);
      if (!back) {
        if (micro_batch->held[block]) continue;
        micro_batch->held[block] = true;
        if (set->block_lanes[block] &&
            mpg_spare_lanes_take(&state->spares, device, set->block_sizes[block], &lane))
          continue;
        *held += size;
        if (*held > *peak) *peak = *held;
      } else {
        if (--micro_batch->uses.counts[block] || keep) continue;
        lane = (mpg_lane){device, set->block_sizes[block], NULL};
        if (set->block_lanes[block])
          MPG_TRY(mpg_spare_lanes_add(&state->spares, &lane));
        else
          *held -= size;
      }
    }
  return MPG_OK;
}

mpg_status mpg_schedule_peaks(const mpg_schedule_memory *schedule, mpg_peaks *peaks) {
  simulation state = {0};
  mpg_status status = MPG_OK;
  MPG_GOTO(begin_simulation(schedule, &state));
  for (size_t i = 0; i < schedule->num_items; i++) {
    const mpg_micro_batch_item *item = &schedule->items[i];
    const mpg_program_set *set = item->micro_batch < schedule->num_micro_batches
                                     ? set_at(schedule, item->micro_batch, (int)item->phase)
                                     : NULL;
    if (!set || item->segment >= set->num_segments)
      MPG_GOTO(mpg_fail(MPG_VALUE_ERROR, "segment %u of micro-batch %u does not exist",
                        item->segment, item->micro_batch));
    MPG_GOTO(simulate_segment(set, &set->segments[item->segment], schedule->keep,
                              &state.micro_batches[item->micro_batch], &state));
  }
  *peaks = state.peaks;
  state.peaks.bytes = NULL;
fail:
  end_simulation(schedule, &state);
  return status;
}
