#include "comm/replicas.h"

#include <string.h>

#include "base/clock.h"
#include "base/memory.h"
#include "device/profiler.h"
#include "op/kernel.h"
#include "op/op.h"

/* The work: freed by whoever is done with it. */
typedef struct job {
  uint32_t num_arrays, num_replicas, home;
  bool everywhere;
  size_t bytes;
  mpg_kernel_fn kernel;
  mpg_view *views; /* [array * num_replicas + replica] */
} job;

static size_t bytes_of(const mpg_desc *desc) { return (size_t)mpg_shape_size(&desc->shape) * mpg_dtype_size(desc->dtype); }

static const char name[] = "sum of replicas";

static mpg_status sum(mpg_run *run, void *payload) {
  const job *j = *(job **)payload;
  int64_t begin = mpg_profiler_on() ? mpg_clock_ns() : 0;
  mpg_num_args_params params = {.num_args = (int64_t)j->num_replicas};
  for (uint32_t i = 0; i < j->num_arrays; i++) {
    const mpg_view *views = j->views + (size_t)i * j->num_replicas;
    mpg_kernel_call call = {.op = mpg_op_get(MPG_OP_add_n), .params = &params, .device = run->device, .num_threads = run->num_threads,
                            .num_inputs = (int)j->num_replicas, .num_outputs = 1, .inputs = views, .outputs = &views[j->home]};
    MPG_TRY(j->kernel(&call));
    size_t bytes = j->everywhere ? bytes_of(&views[j->home].desc) : 0;
    for (uint32_t r = 0; bytes && r < j->num_replicas; r++)
      if (r != j->home) memcpy(views[r].data, views[j->home].data, bytes);
  }
  if (begin) mpg_profiler_record(run->device, &(mpg_event){.name = name, .kind = MPG_EVENT_OP, .peer = -1, .bytes = j->bytes, .begin_ns = begin, .end_ns = mpg_clock_ns()});
  return MPG_OK;
}

static void discard(void *payload) {
  job *j = *(job **)payload;
  mpg_free(j->views);
  mpg_free(j);
}

static mpg_status nothing(mpg_run *run, void *payload) {
  (void)run, (void)payload;
  return MPG_OK;
}

static mpg_status check(const mpg_replicas *r) {
  for (uint32_t i = 0; i < r->num_arrays * r->num_replicas; i++) {
    const mpg_desc *first = &r->arrays[i % r->num_arrays]->desc, *desc = &r->arrays[i]->desc;
    const mpg_device *device = r->arrays[i / r->num_arrays * r->num_arrays]->storage->device;
    if (desc->dtype != first->dtype || !mpg_shape_equal(&desc->shape, &first->shape))
      return mpg_fail(MPG_VALUE_ERROR, "sum_replicas: array %u of replica %u is not like that of replica 0", i % r->num_arrays, i / r->num_arrays);
    if (r->arrays[i]->storage->device != device)
      return mpg_fail(MPG_VALUE_ERROR, "sum_replicas: the arrays of replica %u are on several devices", i / r->num_arrays);
  }
  return MPG_OK;
}

static mpg_status make_job(const mpg_replicas *r, job **result) {
  size_t count = (size_t)r->num_arrays * r->num_replicas;
  job *j = mpg_calloc(1, sizeof *j);
  mpg_view *views = mpg_calloc(count, sizeof *views);
  if (!j || !views) {
    mpg_free(j);
    mpg_free(views);
    return mpg_out_of_host_memory(count * sizeof *views);
  }
  *j = (job){r->num_arrays, r->num_replicas, r->home, r->everywhere, 0, mpg_kernel_get(r->arrays[0]->storage->device, mpg_op_get(MPG_OP_add_n)), views};
  for (uint32_t i = 0; i < r->num_arrays; i++) {
    for (uint32_t k = 0; k < r->num_replicas; k++) {
      const mpg_tensor *tensor = r->arrays[k * r->num_arrays + i];
      views[(size_t)i * r->num_replicas + k] = (mpg_view){mpg_tensor_data(tensor), tensor->desc};
    }
    j->bytes += bytes_of(&views[(size_t)i * r->num_replicas].desc);
  }
  *result = j;
  return MPG_OK;
}

typedef struct point_list {
  mpg_point *points;
  size_t capacity;
  int count;
} point_list;

static mpg_status add_point(point_list *list, mpg_point point) {
  if (!point.tick || (mpg_tick_reached(point.device, point.tick) && !(point.data && atomic_load_explicit(&point.device->failed, memory_order_relaxed)))) return MPG_OK;
  for (int i = list->count - 1, tries = 0; i >= 0 && tries < 32; i--, tries++) {
    mpg_point *known = &list->points[i];
    if (known->device != point.device || known->tick != point.tick) continue;
    known->data |= point.data;
    return MPG_OK;
  }
  MPG_TRY(mpg_grow((void **)&list->points, &list->capacity, (size_t)list->count + 1, sizeof *list->points));
  list->points[list->count++] = point;
  return MPG_OK;
}

/* The array is final, and where it is written nobody reads it any more. */
static mpg_status add_points(point_list *list, const mpg_storage *storage, const mpg_device *side, bool writes) {
  const mpg_uses *uses = &storage->block.uses;
  MPG_TRY(add_point(list, (mpg_point){.device = storage->device, .tick = uses->write, .data = storage->version != 0}));
  if (!writes) return MPG_OK;
  MPG_TRY(add_point(list, (mpg_point){.device = storage->device, .tick = uses->read}));
  for (int i = 0; i < uses->num_foreign; i++)
    if (uses->foreign[i].device != side) MPG_TRY(add_point(list, (mpg_point){.device = uses->foreign[i].device, .tick = uses->foreign[i].tick}));
  return MPG_OK;
}

static bool written(const mpg_replicas *r, uint32_t replica) { return r->everywhere || replica == r->home; }

/* Whatever a device does from now on comes behind the sums. */
static mpg_status join(const mpg_replicas *r, uint32_t replica, mpg_device *side, mpg_tick tick) {
  const mpg_tensor *const *arrays = &r->arrays[replica * r->num_arrays];
  mpg_device *device = arrays[0]->storage->device;
  mpg_point point = {side, tick, true};
  mpg_submission submission = {.name = name, .work = nothing, .points = &point, .num_points = 1};
  mpg_tick joined;
  mpg_status first = MPG_OK;
  for (uint32_t i = 0; i < r->num_arrays; i++) {
    mpg_status status = mpg_storage_add_read(arrays[i]->storage, side, tick);
    if (first == MPG_OK) first = status;
  }
  if (!written(r, replica)) return first;
  mpg_status status = mpg_device_submit(device, &submission, &joined);
  if (status != MPG_OK) return status;
  for (uint32_t i = 0; i < r->num_arrays; i++) mpg_storage_add_write(arrays[i]->storage, joined);
  return first;
}

mpg_status mpg_comm_sum_replicas(const mpg_replicas *r, bool *done) {
  *done = r->num_arrays > 0;
  if (!*done) return MPG_OK;
  mpg_device *side = NULL;
  point_list list = {0};
  job *work = NULL;
  mpg_status status = MPG_OK;
  MPG_TRY(check(r));
  for (uint32_t k = r->num_replicas; k-- > 0 && *done;) {
    mpg_device *device = r->arrays[k * r->num_arrays]->storage->device;
    *done = device->id.type == MPG_CPU;
    MPG_TRY(mpg_device_make_room(device));
  }
  if (!*done) return MPG_OK;
  MPG_TRY(mpg_device_side(r->arrays[r->home * r->num_arrays]->storage->device, &side));
  MPG_TRY(mpg_device_make_room(side));
  for (uint32_t i = 0; i < r->num_arrays * r->num_replicas; i++) /* the host lock is not given up until the work is queued */
    MPG_GOTO(add_points(&list, r->arrays[i]->storage, side, written(r, i / r->num_arrays)));
  MPG_GOTO(make_job(r, &work));
  mpg_submission submission = {.name = name, .work = sum, .payload = &work, .payload_size = sizeof work, .points = list.points, .num_points = list.count, .discard = discard};
  mpg_tick tick;
  MPG_GOTO(mpg_device_submit(side, &submission, &tick));
  for (uint32_t k = 0; k < r->num_replicas; k++) {
    mpg_status joined = join(r, k, side, tick);
    if (status == MPG_OK) status = joined;
  }
fail:
  mpg_free(list.points);
  return status;
}
