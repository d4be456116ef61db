#include "comm/replicas.h"

#include <string.h>

#include "base/clock.h"
#include "base/memory.h"
#include "device/profiler.h"
#include "op/submit.h"

/* The work: freed by whoever is done with it. */
typedef struct job {
  uint32_t num_arrays, num_replicas, home;
  bool everywhere;
  size_t bytes;
  mpg_kernel_fn kernel;
  mpg_view *views; /* [array * num_replicas + replica] */
} job;

static size_t bytes_of(const mpg_desc *desc) {
  return (size_t)mpg_shape_size(&desc->shape) * mpg_dtype_size(desc->dtype);
}

static const char name[] = "sum of replicas";

static mpg_status sum(mpg_run *run, void *payload) {
  const job *j = *(job **)payload;
  int64_t begin = mpg_profiler_on() ? mpg_clock_ns() : 0;
  mpg_num_args_params params = {.num_args = (int64_t)j->num_replicas};
  for (uint32_t i = 0; i < j->num_arrays; i++) {
    const mpg_view *views = j->views + (size_t)i * j->num_replicas;
    mpg_kernel_call call = {.op = mpg_op_get(MPG_OP_add_n),
                            .params = &params,
                            .device = run->device,
                            .num_threads = run->num_threads,
                            .num_inputs = (int)j->num_replicas,
                            .num_outputs = 1,
                            .inputs = views,
                            .outputs = &views[j->home]};
    MPG_TRY(j->kernel(&call));
    size_t bytes = j->everywhere ? bytes_of(&views[j->home].desc) : 0;
    for (uint32_t r = 0; bytes && r < j->num_replicas; r++)
      if (r != j->home) memcpy(views[r].data, views[j->home].data, bytes);
  }
  if (begin)
    mpg_profiler_record(run->device, &(mpg_event){.name = name,
                                                  .kind = MPG_EVENT_OP,
                                                  .peer = -1,
                                                  .bytes = j->bytes,
                                                  .begin_ns = begin,
                                                  .end_ns = mpg_clock_ns()});
  return MPG_OK;
}

static void discard(void *payload) {
  job *j = *(job **)payload;
  mpg_free(j->views);
  mpg_free(j);
}

static mpg_status check(const mpg_replicas *r) {
  for (uint32_t i = 0; i < r->num_arrays * r->num_replicas; i++) {
    const mpg_desc *first = &r->arrays[i % r->num_arrays]->desc, *desc = &r->arrays[i]->desc;
    const mpg_device *device = r->arrays[i / r->num_arrays * r->num_arrays]->storage->device;
    if (desc->dtype != first->dtype || !mpg_shape_equal(&desc->shape, &first->shape))
      return mpg_fail(MPG_VALUE_ERROR,
                      "sum_replicas: array %u of replica %u is not like that of replica 0",
                      i % r->num_arrays, i / r->num_arrays);
    if (r->arrays[i]->storage->device != device)
      return mpg_fail(MPG_VALUE_ERROR,
                      "sum_replicas: the arrays of replica %u are on several devices",
                      i / r->num_arrays);
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
  *j = (job){r->num_arrays,
             r->num_replicas,
             r->home,
             r->everywhere,
             0,
             mpg_kernel_get(r->arrays[0]->storage->device, mpg_op_get(MPG_OP_add_n)),
             views};
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
  if (!point.tick) return MPG_OK;
  MPG_TRY(mpg_grow((void **)&list->points, &list->capacity, (size_t)list->count + 1,
                   sizeof *list->points));
  list->count = mpg_point_add(list->points, list->count, point);
  return MPG_OK;
}

/* The array is final, and where it is written nobody reads it any more. */
static mpg_status add_points(point_list *list, const mpg_storage *storage, const mpg_device *side,
                             bool writes) {
  const mpg_uses *uses = &storage->block.uses;
  MPG_TRY(add_point(
      list,
      (mpg_point){.device = storage->device, .tick = uses->write, .data = storage->version != 0}));
  if (!writes) return MPG_OK;
  MPG_TRY(add_point(list, (mpg_point){.device = storage->device, .tick = uses->read}));
  for (int i = 0; i < uses->num_foreign; i++)
    if (uses->foreign[i].device != side)
      MPG_TRY(add_point(
          list, (mpg_point){.device = uses->foreign[i].device, .tick = uses->foreign[i].tick}));
  return MPG_OK;
}

static bool written(const mpg_replicas *r, uint32_t replica) {
  return r->everywhere || replica == r->home;
}

/* What is to be queued: the sums beside the devices, and on each device whose arrays they write
 * something that waits for them, so that whatever it does from now on comes behind. */
typedef struct queued_sums {
  const mpg_replicas *replicas;
  mpg_device *devices[MPG_MOST_TOGETHER]; /* the side, then those of the written replicas */
  int count;
  job *work; /* owned until it is queued */
  point_list list;
  mpg_point end;
} queued_sums;

static mpg_status prepare(void *state, mpg_submission *submissions, bool *done) {
  queued_sums *q = state;
  const mpg_replicas *r = q->replicas;
  mpg_device *side = q->devices[0];
  (void)done;
  for (uint32_t i = 0; i < r->num_arrays * r->num_replicas; i++) {
    MPG_TRY(mpg_storage_reserve_read(r->arrays[i]->storage, side));
    MPG_TRY(add_points(&q->list, r->arrays[i]->storage, side, written(r, i / r->num_arrays)));
  }
  MPG_TRY(make_job(r, &q->work));
  submissions[0] = (mpg_submission){.name = name,
                                    .work = sum,
                                    .payload = &q->work,
                                    .payload_size = sizeof q->work,
                                    .points = q->list.points,
                                    .num_points = q->list.count,
                                    .discard = discard};
  q->end = (mpg_point){side, mpg_device_next_tick(side), true};
  for (int k = 1; k < q->count; k++)
    submissions[k] =
        (mpg_submission){.name = name, .work = mpg_wait_work, .points = &q->end, .num_points = 1};
  return MPG_OK;
}

static void note(void *state, const mpg_tick *ticks) {
  const queued_sums *q = state;
  const mpg_replicas *r = q->replicas;
  int joined = 1;
  for (uint32_t k = 0; k < r->num_replicas; k++)
    for (uint32_t i = 0; i < r->num_arrays; i++) {
      mpg_storage *storage = r->arrays[k * r->num_arrays + i]->storage;
      mpg_storage_add_read(storage, q->devices[0], ticks[0]);
      if (!written(r, k)) continue;
      mpg_storage_add_write(storage, ticks[joined]);
      joined += i + 1 == r->num_arrays;
    }
}

mpg_status mpg_comm_sum_replicas(const mpg_replicas *r, bool *done) {
  *done = r->num_arrays > 0;
  if (!*done) return MPG_OK;
  MPG_TRY(check(r));
  queued_sums q = {.replicas = r, .count = 1};
  *done = r->num_replicas < MPG_MOST_TOGETHER;
  for (uint32_t k = 0; k < r->num_replicas && *done; k++) {
    mpg_device *device = r->arrays[k * r->num_arrays]->storage->device;
    *done = device->id.type == MPG_CPU;
    if (written(r, k)) q.devices[q.count++] = device;
  }
  if (!*done) return MPG_OK;
  MPG_TRY(mpg_device_side(r->arrays[r->home * r->num_arrays]->storage->device, &q.devices[0]));
  mpg_status status = mpg_device_queue(&(mpg_queuing){
      .devices = q.devices, .count = q.count, .prepare = prepare, .note = note, .state = &q});
  mpg_free(q.list.points);
  return status;
}
