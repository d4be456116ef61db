/* Sums of replicas, queued in a side queue. */
#include "comm/replicas.h"

#include <string.h>

#include "base/clock.h"
#include "base/memory.h"
#include "comm/queued_sums.h"
#include "op/submit.h"

/* The payload of the work; freed by its `discard`, or by the caller if it was never queued. */
typedef struct job {
  uint32_t num_arrays, num_replicas, num_addends, home;
  bool everywhere, copy;
  size_t bytes;
  mpg_kernel_fn kernel;
  mpg_view views[]; /* views[array * num_replicas + replica] */
} job;

static size_t bytes_of(const mpg_desc *desc) {
  return (size_t)mpg_shape_size(&desc->shape) * mpg_dtype_size(desc->dtype);
}

static const char name[] = "sum of replicas", copy_name[] = "copy to replicas";

static mpg_status sum(mpg_run *run, void *payload) {
  const job *j = *(job **)payload;
  int64_t begin = mpg_profiler_on() ? mpg_clock_ns() : 0;
  mpg_num_args_params params = {.num_args = (int64_t)j->num_addends};
  for (uint32_t i = 0; i < j->num_arrays; i++) {
    const mpg_view *views = j->views + (size_t)i * j->num_replicas;
    mpg_kernel_call call =
        mpg_kernel_call_in(run, mpg_op_get(MPG_OP_add_n), &params, views, (int)j->num_addends, 1);
    call.outputs = &views[j->home];
    if (!j->copy) MPG_TRY(j->kernel(&call));
    size_t bytes = j->everywhere || j->copy ? bytes_of(&views[j->home].desc) : 0;
    for (uint32_t r = 0; bytes && r < j->num_replicas; r++)
      if (r != j->home) memcpy(views[r].data, views[j->home].data, bytes);
  }
  if (begin)
    mpg_profiler_record(run->device, &(mpg_event){.name = j->copy ? copy_name : name,
                                                  .kind = MPG_EVENT_OP,
                                                  .peer = -1,
                                                  .bytes = j->bytes,
                                                  .begin_ns = begin,
                                                  .end_ns = mpg_clock_ns()});
  return MPG_OK;
}

static void discard(void *payload) { mpg_free(*(job **)payload); }

static mpg_status check(const mpg_replicas *r) {
  for (uint32_t i = 0; i < r->num_arrays * r->num_replicas; i++) {
    const mpg_desc *first = &r->arrays[i % r->num_arrays]->desc, *desc = &r->arrays[i]->desc;
    const mpg_device *device = r->arrays[i / r->num_arrays * r->num_arrays]->storage->device;
    if (desc->dtype != first->dtype || !mpg_shape_equal(&desc->shape, &first->shape))
      return mpg_fail(
          MPG_VALUE_ERROR,
          "sum_replicas: array %u of replica %u differs in shape or dtype from that of replica 0",
          i % r->num_arrays, i / r->num_arrays);
    if (r->arrays[i]->storage->device != device)
      return mpg_fail(MPG_VALUE_ERROR,
                      "sum_replicas: the arrays of replica %u must be on one device",
                      i / r->num_arrays);
  }
  return MPG_OK;
}

static bool written(const mpg_replicas *r, uint32_t replica) {
  return r->copy ? replica != r->home : r->everywhere || replica == r->home;
}

static mpg_status make_job(const mpg_replicas *r, job **result) {
  size_t count = (size_t)r->num_arrays * r->num_replicas;
  job *j = mpg_malloc(sizeof *j + count * sizeof *j->views);
  if (!j) return mpg_out_of_host_memory(count * sizeof *j->views);
  *j = (job){.num_arrays = r->num_arrays,
             .num_replicas = r->num_replicas,
             .num_addends = r->num_replicas - r->apart,
             .home = r->home,
             .everywhere = r->everywhere,
             .copy = r->copy,
             .kernel = mpg_kernel_get(r->arrays[0]->storage->device, mpg_op_get(MPG_OP_add_n))};
  for (uint32_t i = 0; i < r->num_arrays; i++) {
    for (uint32_t k = 0; k < r->num_replicas; k++) {
      const mpg_tensor *tensor = r->arrays[k * r->num_arrays + i];
      j->views[(size_t)i * r->num_replicas + k] = (mpg_view){mpg_tensor_data(tensor), tensor->desc};
    }
    j->bytes += mpg_tensor_bytes(r->arrays[i]);
  }
  *result = j;
  return MPG_OK;
}

static mpg_status ready(void *state, bool *done) {
  (void)done;
  ((mpg_queued_sums *)state)->queued = true;
  return MPG_OK;
}

static mpg_status hold(const mpg_replicas *r, mpg_queued_sums *q) {
  uint32_t count = r->num_arrays * r->num_replicas;
  MPG_TRY(mpg_queued_sums_room(q, count));
  for (uint32_t i = 0; i < count; i++)
    mpg_queued_sums_hold(q, mpg_use_array(r->arrays[i], true, written(r, i / r->num_arrays)));
  return MPG_OK;
}

/* Queues the sums in the side queue of the device of replica `home`. Each device whose arrays are
 * written takes part in the submission, so its later work waits for the sums. */
static mpg_status queue(const mpg_replicas *r, mpg_device *const *devices, int num_devices) {
  mpg_queued_sums q = {0};
  mpg_status status = MPG_OK;
  job *j = NULL;
  MPG_TRY(make_job(r, &j));
  q.work = j;
  MPG_GOTO(hold(r, &q));
  const mpg_submission work = {.name = r->copy ? copy_name : name,
                               .work = sum,
                               .payload = &j,
                               .payload_size = sizeof j,
                               .discard = discard};
  status = mpg_kernel_submit(&(mpg_kernel_submission){.devices = devices,
                                                      .num_devices = num_devices,
                                                      .work = work,
                                                      .uses = q.uses,
                                                      .num_uses = q.num_uses,
                                                      .ready = ready,
                                                      .state = &q});
fail:
  mpg_queued_sums_let_go(&q);
  return status;
}

mpg_status mpg_comm_sum_replicas(const mpg_replicas *r, bool *done) {
  /* devices[0] is the side device, which runs the work. The others are the devices of the replicas
   * that are written. */
  mpg_device *devices[MPG_MOST_TOGETHER];
  int count = 1;
  *done = r->num_arrays > 0;
  if (!*done) return MPG_OK;
  MPG_TRY(check(r));
  *done = r->num_replicas < MPG_MOST_TOGETHER;
  for (uint32_t k = 0; k < r->num_replicas && *done; k++) {
    mpg_device *device = r->arrays[k * r->num_arrays]->storage->device;
    *done = device->id.type == MPG_CPU && device->id.rank == r->arrays[0]->storage->device->id.rank;
    if (written(r, k)) devices[count++] = device;
  }
  if (!*done) return MPG_OK;
  MPG_TRY(mpg_device_side(r->arrays[r->home * r->num_arrays]->storage->device, &devices[0]));
  return queue(r, devices, count);
}
