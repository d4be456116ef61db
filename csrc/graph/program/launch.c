/* Queues the programs of a call, all together or segment by segment. */
#include <string.h>

#include "base/host.h"
#include "base/memory.h"
#include "device/ranks/ranks.h"
#include "graph/program/program.h"
#include "tensor/contents.h"

static mpg_storage *access_storage(const mpg_launching *call, const mpg_access *access) {
  return access->part == MPG_MAX_PARTS ? call->blocks[access->index]
                                       : call->parts[access->part][access->index].storage;
}

/* True if the access depends on the old contents of the storage. A write to a part of a storage
 * does, because the rest must be kept. */
static bool reads_storage(const mpg_launching *call, const mpg_access *access) {
  return access->reads || (access->part != MPG_MAX_PARTS &&
                           mpg_tensor_is_part(&call->parts[access->part][access->index]));
}

/* Collects the points that a segment must wait for. Skips fixed arrays that the segment only reads.
 * Also skips fixed arrays that the segment only writes, if no other device reads any of these
 * (`unread`). All earlier uses of these arrays are on this device, which runs its work in order.
 * After a failure on the device nothing is skipped, so that the failure is passed on. */
static mpg_status collect_points(const mpg_program_set *set, const mpg_program_segment *segment,
                                 const mpg_launching *call, bool unread, mpg_point_list *points) {
  const mpg_device *device = set->programs[segment->slot].device;
  bool all = !call->binding || mpg_device_has_failed(device);
  /* Pushes are among the first num_checked accesses, so they are never skipped. */
  uint32_t count = all      ? segment->num_accesses
                   : unread ? segment->num_checked
                            : segment->num_written;
  for (uint32_t i = 0; i < count; i++) {
    const mpg_access *access = &segment->accesses[i];
    MPG_TRY(mpg_storage_points(access_storage(call, access), device, reads_storage(call, access),
                               access->writes, points));
  }
  return MPG_OK;
}

/* Called before the segment writes external arrays. Preserves the old contents that gradient
 * functions still need. In a backward pass (a call with `look`), fixed arrays that are only
 * written hold gradients. These are skipped unless a gradient function has saved a gradient. */
static void before_writes(const mpg_program_segment *segment, const mpg_launching *call) {
  bool all = !call->binding || !call->look || mpg_contents_tracked_savers();
  uint32_t count = all ? segment->num_written : segment->num_checked;
  for (uint32_t i = 0; i < count; i++) {
    const mpg_access *access = &segment->accesses[i];
    if (access->writes && access->part != MPG_MAX_PARTS)
      mpg_storage_before_write(access_storage(call, access));
  }
}

static mpg_status allocate_blocks(mpg_program_set *set, mpg_storage **blocks) {
  enum { REFERENCES_AHEAD = 6 };
  /* For lanes (blocks that another device pushes into), prefers memory without queued uses, so
   * that the pushing device can run ahead of the receiving one. The limit on references bounds the
   * calls in flight that do this. */
  bool ahead = atomic_load_explicit(&set->references, memory_order_relaxed) < REFERENCES_AHEAD;
  for (uint32_t i = set->first_block; i < set->num_blocks; i++)
    MPG_TRY(mpg_storage_create(set->programs[set->block_devices[i]].device, set->block_sizes[i],
                               set->block_lanes[i] && ahead, &blocks[i]));
  return MPG_OK;
}

static mpg_status take_frame(mpg_program_set *set, mpg_call_frame **result) {
  if (!set->frames)
    set->frames = atomic_exchange_explicit(&set->returned, NULL, memory_order_acquire);
  mpg_call_frame *frame = set->frames;
  if (frame) {
    set->frames = frame->next;
  } else {
    size_t num_bases = (size_t)set->num_externals + set->num_blocks;
    size_t size = sizeof *frame + num_bases * sizeof(void *) + set->num_segments * sizeof(mpg_tick);
    frame = mpg_calloc(1, size);
    if (!frame) return mpg_out_of_host_memory(size);
    frame->first_ticks = (mpg_tick *)(frame->bases + num_bases);
  }
  *result = frame;
  return MPG_OK;
}

static void *address_of(const mpg_tensor *tensor) {
  return tensor->storage ? mpg_tensor_data(tensor) : NULL;
}

static mpg_status new_frame(mpg_program_set *set, const mpg_launching *call, int references,
                            mpg_call_frame **result) {
  mpg_call_frame *frame = NULL;
  MPG_TRY(take_frame(set, &frame));
  /* If `known`, the frame already has the addresses of fixed arrays from an earlier call. */
  bool known = call->binding && frame->binding == call->binding;
  *frame = (mpg_call_frame){.references = references,
                            .set = set,
                            .random = call->random,
                            .binding = call->binding,
                            .transfers = mpg_transfers_take(set->num_transfers),
                            .first_ticks = frame->first_ticks};
  if (set->num_transfers) {
    frame->step = mpg_ranks_step();
    frame->line = mpg_host_origin_key(call->origin);
  }
  void **bases = frame->bases;
  uint32_t base = 0;
  for (uint32_t p = 0; p < set->parts.count; p++) {
    const mpg_tensor *part = call->parts[p];
    uint32_t end = base + set->parts.sizes[p];
    if (part && !(known && set->parts.fixed[p]))
      for (uint32_t i = base; i < end; i++) bases[i] = address_of(&part[i - base]);
    base = end;
  }
  for (uint32_t i = 0; i < set->num_blocks; i++)
    bases[set->num_externals + i] = call->blocks[i] ? call->blocks[i]->block.memory : NULL;
  for (uint32_t i = 0; i < set->num_segments; i++)
    frame->first_ticks[i] = mpg_device_next_tick(set->programs[set->segments[i].slot].device);
  mpg_program_set_retain(set);
  *result = frame;
  return MPG_OK;
}

/* Records the reads and writes of a queued segment in the storages that it uses. `tick` is the
 * segment's last tick, or 0 if the segment has already run inline. */
static void note_segment(const mpg_program_set *set, const mpg_program_segment *segment,
                         const mpg_launching *call, mpg_tick tick) {
  mpg_device *device = set->programs[segment->slot].device;
  for (uint32_t i = 0; i < segment->num_accesses; i++) {
    const mpg_access *access = &segment->accesses[i];
    mpg_storage *storage = access_storage(call, access);
    if (storage->device != device) {
      mpg_storage_add_read(storage, device, tick); /* a push is tracked like a read */
      continue;
    }
    /* Another base of this call may have the same storage, so a later write may already be
     * recorded. */
    const mpg_uses *uses = &storage->block.uses;
    mpg_tick last = access->done ? tick - segment->num_signals + access->done - 1 : tick;
    if (access->reads) mpg_storage_add_read(storage, device, last);
    if (access->writes)
      mpg_storage_add_write(storage, last > uses->write || !tick ? last : uses->write);
  }
}

/* Runs the only program of a small set in this thread. */
static mpg_status run_inline(mpg_program_set *set, const mpg_launching *call) {
  mpg_program_payload payload = {0};
  MPG_TRY(new_frame(set, call, 1, &payload.frame));
  mpg_run run = {.device = set->programs[set->segments[0].slot].device, .num_threads = 1};
  mpg_status status = mpg_program_work(&run, &payload);
  mpg_program_discard(&payload);
  note_segment(set, &set->segments[0], call, 0);
  return status;
}

typedef struct launch {
  mpg_program_set *set;
  const mpg_launching *call;
  mpg_program_payload payloads[MPG_MAX_GRAPH_DEVICES];
} launch;

static mpg_status prepare_launch(void *state, mpg_point_list *points, mpg_submission *submissions,
                                 bool *done) {
  launch *l = state;
  mpg_program_set *set = l->set;
  const mpg_launching *call = l->call;
  int begins[MPG_MAX_GRAPH_DEVICES + 1] = {0}; /* start of each segment's points */
  int count = (int)set->num_segments;
  bool unread = false;
  mpg_call_frame *frame = NULL;
  if (call->look) MPG_TRY(call->look(call->looking, &unread));
  for (int k = 0; k < count; k++) {
    points->begin = points->count;
    MPG_TRY(collect_points(set, &set->segments[k], call, unread, points));
    begins[k + 1] = points->count;
  }
  *done = set->small && points->count == 0 &&
          mpg_device_runs_inline(set->programs[set->segments[0].slot].device);
  if (*done) return run_inline(set, call);
  MPG_TRY(new_frame(set, call, count, &frame));
  for (int k = 0; k < count; k++) {
    const mpg_program_segment *segment = &set->segments[k];
    l->payloads[k] = (mpg_program_payload){frame, (uint32_t)k, segment->begin};
    submissions[k] = (mpg_submission){.name = set->name,
                                      .work = mpg_program_work,
                                      .payload = &l->payloads[k],
                                      .payload_size = sizeof l->payloads[k],
                                      .points = points->points + begins[k],
                                      .num_points = begins[k + 1] - begins[k],
                                      .ticks = segment->num_signals + 1,
                                      .origin = call->origin,
                                      .scope = call->scope,
                                      .steps = call->steps,
                                      .discard = mpg_program_discard};
  }
  return MPG_OK;
}

static void note_launch(void *state, const mpg_tick *ticks) {
  const launch *l = state;
  for (uint32_t k = 0; k < l->set->num_segments; k++)
    note_segment(l->set, &l->set->segments[k], l->call, ticks[k]);
}

mpg_status mpg_launch(mpg_program_set *set, const mpg_launching *call) {
  mpg_device *devices[MPG_MAX_GRAPH_DEVICES];
  int count = (int)set->num_segments; /* one per device; sets with stages use mpg_staged_call */
  /* The payloads are not initialized here, because most of them are unused. */
  launch l;
  l.set = set;
  l.call = call;
  for (int k = 0; k < count; k++) devices[k] = set->programs[set->segments[k].slot].device;
  MPG_TRY(allocate_blocks(set, call->blocks));
  for (int k = 0; k < count; k++) before_writes(&set->segments[k], call);
  if (!count) {
    bool unread;
    return call->look ? call->look(call->looking, &unread) : MPG_OK;
  }
  return mpg_device_queue(&(mpg_queuing){.devices = devices,
                                         .count = count,
                                         .prepare = prepare_launch,
                                         .note = note_launch,
                                         .state = &l});
}

/* --- Staged calls ----------------------------------------------------------------------------- */

mpg_status mpg_staged_call_begin(mpg_program_set *set, const mpg_launching *call, mpg_rows rows,
                                 bool timed, mpg_staged_call *staged_call) {
  mpg_call_frame *frame;
  MPG_ASSERT(!call->binding && set->parts.count == 1);
  *staged_call = (mpg_staged_call){.call = *call};
  MPG_TRY(new_frame(set, call, 1, &frame));
  staged_call->frame = frame;
  frame->rows = rows;
  /* 0 means not queued */
  for (uint32_t i = 0; i < set->num_segments; i++) frame->first_ticks[i] = 0;
  if (!timed) return MPG_OK;
  frame->times = mpg_calloc(set->num_segments + 1, sizeof *frame->times);
  return frame->times ? MPG_OK : mpg_out_of_host_memory(set->num_segments * sizeof *frame->times);
}

void mpg_staged_call_end(mpg_staged_call *staged_call) {
  if (staged_call->frame) mpg_call_frame_release(staged_call->frame);
  staged_call->frame = NULL;
}

/* Fills in the missing addresses of the bases that the segment uses. Segments that are already
 * queued do not use these bases, so this is safe while they run. */
static mpg_status resolve_bases(mpg_staged_call *staged_call, const mpg_program_segment *segment) {
  mpg_program_set *set = staged_call->frame->set;
  for (uint32_t i = 0; i < segment->num_accesses; i++) {
    uint32_t base = segment->accesses[i].base;
    if (staged_call->frame->bases[base]) continue;
    if (base < set->num_externals) {
      staged_call->frame->bases[base] = mpg_tensor_data(&staged_call->call.parts[0][base]);
      continue;
    }
    uint32_t block = base - set->num_externals;
    if (!staged_call->call.blocks[block])
      MPG_TRY(mpg_storage_create(set->programs[set->block_devices[block]].device,
                                 set->block_sizes[block], false, &staged_call->call.blocks[block]));
    staged_call->frame->bases[base] = staged_call->call.blocks[block]->block.memory;
  }
  return MPG_OK;
}

/* Checks that all segments that this one waits for are already queued. */
static mpg_status check_waits(const mpg_staged_call *staged_call,
                              const mpg_program_segment *segment) {
  const mpg_program_set *set = staged_call->frame->set;
  for (uint32_t i = segment->begin; i < segment->end; i++) {
    const mpg_instruction *instruction = &set->programs[segment->slot].instructions[i];
    if (instruction->kind == MPG_WAIT && !staged_call->frame->first_ticks[instruction->segment])
      return mpg_fail(MPG_VALUE_ERROR,
                      "segment %u was queued before segment %u, which it waits for",
                      (uint32_t)(segment - set->segments), instruction->segment);
  }
  return MPG_OK;
}

typedef struct staged_segment {
  mpg_staged_call *staged_call;
  uint32_t number, stage, micro_batch;
  mpg_program_payload payload;
} staged_segment;

static mpg_status prepare_segment(void *state, mpg_point_list *points, mpg_submission *submissions,
                                  bool *done) {
  staged_segment *s = state;
  mpg_program_set *set = s->staged_call->frame->set;
  const mpg_launching *call = &s->staged_call->call;
  const mpg_program_segment *segment = &set->segments[s->number];
  (void)done;
  MPG_TRY(check_waits(s->staged_call, segment));
  MPG_TRY(collect_points(set, segment, call, false, points));
  s->payload = (mpg_program_payload){s->staged_call->frame, s->number, segment->begin};
  submissions[0] = (mpg_submission){.name = set->name,
                                    .work = mpg_program_work,
                                    .payload = &s->payload,
                                    .payload_size = sizeof s->payload,
                                    .points = points->points,
                                    .num_points = points->count,
                                    .ticks = segment->num_signals + 1,
                                    .origin = call->origin,
                                    .scope = call->scope,
                                    .steps = call->steps,
                                    .stage = s->stage,
                                    .micro_batch = s->micro_batch,
                                    .discard = mpg_program_discard};
  s->staged_call->frame->first_ticks[s->number] =
      mpg_device_next_tick(set->programs[segment->slot].device);
  atomic_fetch_add_explicit(&s->staged_call->frame->references, 1, memory_order_relaxed);
  return MPG_OK;
}

static void note_staged_segment(void *state, const mpg_tick *ticks) {
  const staged_segment *s = state;
  const mpg_program_set *set = s->staged_call->frame->set;
  note_segment(set, &set->segments[s->number], &s->staged_call->call, ticks[0]);
}

mpg_status mpg_staged_call_submit(mpg_staged_call *staged_call, uint32_t number, uint32_t stage,
                                  uint32_t micro_batch) {
  mpg_program_set *set = staged_call->frame->set;
  const mpg_program_segment *segment = &set->segments[number];
  mpg_device *device = set->programs[segment->slot].device;
  staged_segment state = {
      .staged_call = staged_call, .number = number, .stage = stage, .micro_batch = micro_batch};
  MPG_TRY(resolve_bases(staged_call, segment));
  before_writes(segment, &staged_call->call);
  mpg_status status = mpg_device_queue(&(mpg_queuing){.devices = &device,
                                                      .count = 1,
                                                      .prepare = prepare_segment,
                                                      .note = note_staged_segment,
                                                      .state = &state});
  /* The segment was not queued, so no work may wait for it. */
  if (status != MPG_OK && staged_call->frame->first_ticks[number] > device->submitted)
    staged_call->frame->first_ticks[number] = 0;
  return status;
}
