#include <string.h>

#include "graph/program.h"

typedef struct point_list {
  mpg_point *points;
  int count;
  size_t capacity;
} point_list;

static void add_point(point_list *list, mpg_point point) { /* room was made */
  if (mpg_tick_reached(point.device, point.tick) && !(point.data && atomic_load_explicit(&point.device->failed, memory_order_relaxed))) return;
  for (int i = list->count - 1, tries = 0; i >= 0 && tries < 32; i--, tries++) {
    mpg_point *known = &list->points[i];
    if (known->device == point.device && known->tick == point.tick) {
      known->data |= point.data;
      return;
    }
  }
  list->points[list->count++] = point;
}

enum { POINTS_PER_ACCESS = 4 + MPG_FOREIGN_READS };

/* What the program of `device` must wait for before it touches one storage. */
static mpg_status add_points(point_list *list, const mpg_access *access, const mpg_tensor *tensor, const mpg_device *device) {
  MPG_TRY(mpg_grow((void **)&list->points, &list->capacity, (size_t)list->count + POINTS_PER_ACCESS, sizeof *list->points));
  const mpg_storage *storage = tensor->storage;
  mpg_point found[POINTS_PER_ACCESS];
  int count = 0;
  if (access->reads) mpg_storage_read_points(storage, device, found, &count);
  if (access->writes && storage->device == device) {
    mpg_tensor_write_points(tensor, device, found, &count);
  } else if (access->writes) {
    const mpg_uses *uses = &storage->block.uses; /* a push into another device's memory: all that still touches it there */
    mpg_tick last = uses->write > uses->read ? uses->write : uses->read;
    if (last) found[count++] = (mpg_point){.device = storage->device, .tick = last};
    for (int i = 0; i < uses->num_foreign; i++)
      if (uses->foreign[i].device != device) found[count++] = (mpg_point){.device = uses->foreign[i].device, .tick = uses->foreign[i].tick};
  }
  for (int i = 0; i < count; i++) add_point(list, found[i]);
  return MPG_OK;
}

static mpg_tensor base_tensor(const mpg_program_set *set, const mpg_tensor *externals, mpg_storage *const *blocks, uint32_t base) {
  if (base < set->num_externals) return externals[base];
  mpg_storage *storage = blocks[base - set->num_externals];
  return (mpg_tensor){.storage = storage, .desc = {.shape = {.ndim = 1, .dims = {(int64_t)storage->size}}, .dtype = MPG_UINT8}};
}

static mpg_status allocate_blocks(mpg_program_set *set, mpg_storage **blocks) {
  /* A lane that nothing queued touches lets the pusher run ahead; not without bound. */
  bool ahead = atomic_load_explicit(&set->references, memory_order_relaxed) < 6;
  for (uint32_t i = set->first_block; i < set->num_blocks; i++)
    MPG_TRY(mpg_storage_create(set->programs[set->block_devices[i]].device, set->block_sizes[i], set->block_lanes[i] && ahead, &blocks[i]));
  return MPG_OK;
}

static mpg_status new_frame(mpg_program_set *set, const mpg_tensor *externals, mpg_storage *const *blocks, mpg_random_key random,
                            int references, mpg_call_frame **result) {
  size_t num_bases = set->num_externals + set->num_blocks;
  mpg_call_frame *frame = mpg_malloc(sizeof *frame + num_bases * sizeof(void *) + set->num_segments * sizeof(mpg_tick));
  if (!frame) return mpg_out_of_host_memory(num_bases * sizeof(void *));
  frame->references = references;
  frame->set = set;
  frame->random = random;
  frame->first_ticks = (mpg_tick *)(frame->bases + num_bases);
  for (uint32_t i = 0; i < set->num_externals; i++) frame->bases[i] = externals[i].storage ? mpg_tensor_data(&externals[i]) : NULL;
  for (uint32_t i = 0; i < set->num_blocks; i++) frame->bases[set->num_externals + i] = blocks[i] ? blocks[i]->block.memory : NULL;
  for (uint32_t i = 0; i < set->num_segments; i++) frame->first_ticks[i] = mpg_device_next_tick(set->programs[set->segments[i].slot].device);
  mpg_program_set_retain(set);
  *result = frame;
  return MPG_OK;
}

/* Tells the storages what was queued. */
static mpg_status note_uses(const mpg_program_set *set, const mpg_tensor *externals, mpg_storage *const *blocks, const mpg_tick *ticks,
                            int count) {
  mpg_status status = MPG_OK, first = MPG_OK;
  for (int k = 0; k < count; k++) {
    const mpg_program_segment *segment = &set->segments[k];
    const mpg_program *program = &set->programs[segment->slot];
    for (uint32_t i = 0; i < segment->num_accesses; i++) {
      const mpg_access *access = &segment->accesses[i];
      mpg_storage *storage = base_tensor(set, externals, blocks, access->base).storage;
      if (storage->device != program->device) {
        status = mpg_storage_add_read(storage, program->device, ticks[k]); /* a push is kept track of like a read */
        if (first == MPG_OK) first = status;
        continue;
      }
      if (access->reads) storage->block.uses.read = ticks[k];
      if (access->writes) mpg_storage_add_write(storage, ticks[k]);
    }
  }
  return first;
}

/* Runs the only program of a small set in this thread. */
static mpg_status run_here(mpg_program_set *set, const mpg_tensor *externals, mpg_storage *const *blocks, mpg_random_key random) {
  mpg_program_payload payload = {0};
  MPG_TRY(new_frame(set, externals, blocks, random, 1, &payload.frame));
  mpg_run run = {.device = set->programs[set->segments[0].slot].device, .num_threads = 1};
  mpg_status status = mpg_program_work(&run, &payload);
  mpg_program_discard(&payload);
  mpg_tick done = 0;
  mpg_status noted = note_uses(set, externals, blocks, &done, 1);
  return status != MPG_OK ? status : noted;
}

mpg_status mpg_launch(mpg_program_set *set, const mpg_tensor *externals, mpg_storage **blocks, mpg_random_key random, uint32_t scope,
                      uint32_t origin) {
  mpg_device *devices[MPG_MAX_GRAPH_DEVICES];
  mpg_submission submissions[MPG_MAX_GRAPH_DEVICES];
  mpg_program_payload payloads[MPG_MAX_GRAPH_DEVICES];
  mpg_tick ticks[MPG_MAX_GRAPH_DEVICES];
  point_list lists[MPG_MAX_GRAPH_DEVICES];
  int count = (int)set->num_segments; /* one per device: a set of stages is queued by flight.c */
  mpg_call_frame *frame = NULL;
  mpg_status status = MPG_OK;
  memset(lists, 0, (size_t)count * sizeof *lists);
  for (int k = 0; k < count; k++) MPG_GOTO(mpg_device_make_room(set->programs[set->segments[k].slot].device));
  MPG_GOTO(allocate_blocks(set, blocks));
  for (int k = 0; k < count; k++) {
    const mpg_program_segment *segment = &set->segments[k];
    for (uint32_t i = 0; i < segment->num_accesses; i++) {
      mpg_tensor tensor = base_tensor(set, externals, blocks, segment->accesses[i].base);
      MPG_GOTO(add_points(&lists[k], &segment->accesses[i], &tensor, set->programs[segment->slot].device));
    }
  }
  if (set->small && lists[0].count == 0 && mpg_device_runs_inline(set->programs[set->segments[0].slot].device)) {
    MPG_GOTO(run_here(set, externals, blocks, random));
  } else if (count) {
    MPG_GOTO(new_frame(set, externals, blocks, random, count, &frame));
    for (int k = 0; k < count; k++) {
      const mpg_program_segment *segment = &set->segments[k];
      devices[k] = set->programs[segment->slot].device;
      payloads[k] = (mpg_program_payload){frame, (uint32_t)k, segment->begin};
      submissions[k] = (mpg_submission){.name = set->name, .work = mpg_program_work, .payload = &payloads[k],
                                        .payload_size = sizeof payloads[k], .points = lists[k].points, .num_points = lists[k].count,
                                        .ticks = segment->num_signals + 1, .origin = origin, .scope = scope,
                                        .discard = mpg_program_discard};
    }
    MPG_GOTO(mpg_device_submit_together(devices, submissions, count, ticks));
    MPG_GOTO(note_uses(set, externals, blocks, ticks, count));
  }
fail:
  for (int k = 0; k < count; k++) mpg_free(lists[k].points);
  return status;
}
