/* All-reduces over ranks, queued in a side queue. */
#include "comm/rank_sums.h"

#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/host.h"
#include "base/memory.h"
#include "comm/collective.h"
#include "comm/gpu_rank_sums.h"
#include "comm/queued_sums.h"
#include "device/ranks/all_reduce.h"
#include "op/submit.h"

/* The payload of the work; freed by its `discard`, or by the caller if it was never queued. */
typedef struct job {
  uint64_t number;
  uint32_t num_arrays;
  mpg_dtype dtype;
  size_t count; /* total number of elements */
  char *joined; /* memory for packing several arrays into one; borrowed */
  mpg_kernel_fn kernel;
  mpg_device *runs_on;
  mpg_device *gpu; /* the arrays' device if it is a GPU; otherwise NULL */
  const mpg_gpu_communicators *calls;
  mpg_gpu_communicator *communicator;
  mpg_status refused; /* error status if allocating `rooms` failed */
  char refusal[300];
  char *rooms[2]; /* GPU memory for packed arrays and for parts; NULL if not needed */
  mpg_tick tick;  /* first tick of the queued work; 0 before it is queued */
  uint32_t line;  /* key of the script line that queued the work */
  uint64_t names; /* hash of the arrays' keys and shapes; all ranks compare it */
  mpg_rank_step step;
  bool begun;       /* the sum has begun, so `discard` need not notify the other ranks */
  mpg_view views[]; /* array i is views[2 * i], and its sum is views[2 * i + 1] */
} job;

static const char name[] = "sum over ranks";

static size_t bytes_of(const job *j, const mpg_view *view) {
  return (size_t)mpg_shape_size(&view->desc.shape) * mpg_dtype_size(j->dtype);
}

/* `join` packs the arrays into j->joined. `hand_out` unpacks the sums from j->joined. */
static void join(const job *j) {
  char *at = j->joined;
  for (uint32_t i = 0; i < j->num_arrays; at += bytes_of(j, &j->views[2 * i]), i++)
    memcpy(at, j->views[2 * i].data, bytes_of(j, &j->views[2 * i]));
}
static void hand_out(const job *j) {
  const char *at = j->joined;
  for (uint32_t i = 0; i < j->num_arrays; at += bytes_of(j, &j->views[2 * i]), i++)
    memcpy(j->views[2 * i + 1].data, at, bytes_of(j, &j->views[2 * i]));
}

typedef struct adding {
  mpg_run *run;
  const job *job;
  mpg_view views[]; /* views[rank] is that rank's part; the last one is the sum */
} adding;

static mpg_status add(void *state, const char *const *parts, char *sum, size_t count) {
  adding *a = state;
  int ranks = mpg_ranks_count();
  mpg_num_args_params params = {.num_args = ranks};
  const mpg_desc desc = {.dtype = a->job->dtype, .shape = {.ndim = 1, .dims = {(int64_t)count}}};
  for (int i = 0; i < ranks; i++) a->views[i] = (mpg_view){(void *)parts[i], desc};
  a->views[ranks] = (mpg_view){sum, desc};
  mpg_kernel_call call =
      mpg_kernel_call_in(a->run, mpg_op_get(MPG_OP_add_n), &params, a->views, ranks, 1);
  return a->job->kernel(&call);
}

static mpg_all_reduce describe(const job *j, adding *a) {
  bool one = j->num_arrays == 1;
  return (mpg_all_reduce){.number = j->number,
                          .source = one ? j->views[0].data : j->joined,
                          .target = one ? j->views[1].data : j->joined,
                          .count = j->count,
                          .item = mpg_dtype_size(j->dtype),
                          .dtype = (uint32_t)j->dtype,
                          .line = j->line,
                          .names = j->names,
                          .step = j->step,
                          .add = add,
                          .state = a};
}

static mpg_gpu_rank_sums describe_gpu(const job *j) {
  return (mpg_gpu_rank_sums){.number = j->number,
                             .device = j->gpu,
                             .calls = j->calls,
                             .communicator = j->communicator,
                             .add = j->kernel,
                             .dtype = j->dtype,
                             .num_arrays = j->num_arrays,
                             .views = j->views,
                             .count = j->count,
                             .joined = j->rooms[0],
                             .parts = j->rooms[1]};
}

static mpg_status sum_on_gpus(job *j) {
  const mpg_gpu_rank_sums work = describe_gpu(j);
  j->begun = true;
  if (j->refused == MPG_OK) return mpg_gpu_rank_sums_run(&work);
  mpg_fail(j->refused, "%s", j->refusal);
  mpg_gpu_rank_sums_fail(&work);
  return j->refused;
}

static mpg_status sum_in_pieces(mpg_run *run, job *j, adding *a) {
  *a = (adding){.run = run, .job = j};
  if (j->num_arrays > 1) {
    size_t size = j->count * mpg_dtype_size(j->dtype);
    j->joined = mpg_all_reduce_room(size);
    if (!j->joined) return mpg_out_of_host_memory(size);
    join(j);
  }
  const mpg_all_reduce work = describe(j, a);
  j->begun = true;
  MPG_TRY(mpg_all_reduce_run(&work));
  if (j->num_arrays > 1) hand_out(j);
  return MPG_OK;
}

static mpg_status sum_on_cpus(mpg_run *run, job *j) {
  size_t size = sizeof(adding) + ((size_t)mpg_ranks_count() + 1) * sizeof(mpg_view);
  adding *a = mpg_malloc(size);
  if (!a) return mpg_out_of_host_memory(size);
  mpg_status status = sum_in_pieces(run, j, a);
  mpg_free(a);
  return status;
}

static mpg_status sum(mpg_run *run, void *payload) {
  job *j = *(job **)payload;
  int64_t begin = mpg_profiler_on() ? mpg_clock_ns() : 0;
  mpg_status status = j->gpu ? sum_on_gpus(j) : sum_on_cpus(run, j);
  if (begin)
    mpg_profiler_record(run->device, &(mpg_event){.name = name,
                                                  .kind = MPG_EVENT_OP,
                                                  .peer = -1,
                                                  .bytes = j->count * mpg_dtype_size(j->dtype),
                                                  .begin_ns = begin,
                                                  .end_ns = mpg_clock_ns()});
  return status;
}

/* If the work never began, notifies the other ranks, which would otherwise wait for this rank. */
static void discard(void *payload) {
  job *j = *(job **)payload;
  if (!j->begun) {
    if (j->tick) (void)mpg_device_failure(j->runs_on, j->tick); /* sets the error text */
    if (j->gpu) {
      const mpg_gpu_rank_sums work = describe_gpu(j);
      mpg_gpu_rank_sums_fail(&work);
    } else {
      const mpg_all_reduce work = describe(j, NULL);
      mpg_all_reduce_fail(&work);
    }
  }
  mpg_free(j);
}

static mpg_status check(const mpg_rank_sums *r) {
  const mpg_tensor *first = r->arrays[0];
  const mpg_device *device = first->storage->device;
  if (device->id.rank || (device->id.type != MPG_CPU && !r->indices))
    return mpg_fail(MPG_VALUE_ERROR,
                    "sums over ranks: the arrays must be on a CPU device without a rank, or on "
                    "joined GPUs, not on %s",
                    mpg_device_text(device));
  if (first->desc.dtype == MPG_BOOL)
    return mpg_fail(MPG_TYPE_ERROR, "sums over ranks: bool arrays cannot be summed");
  for (uint32_t i = 0; i < r->num_arrays; i++) {
    const mpg_tensor *array = r->arrays[i], *sum = r->sums[i];
    if (array->storage->device != device || sum->storage->device != device)
      return mpg_fail(MPG_VALUE_ERROR, "sums over ranks: the arrays must be on one device");
    if (array->desc.dtype != first->desc.dtype || sum->desc.dtype != first->desc.dtype ||
        !mpg_shape_equal(&array->desc.shape, &sum->desc.shape))
      return mpg_fail(MPG_VALUE_ERROR,
                      "sums over ranks: array %u must have the dtype of the first array and the "
                      "dtype and shape of its sum",
                      i);
  }
  return MPG_OK;
}

static mpg_status find_communicator(job *j, const mpg_rank_sums *r) {
  j->communicator = mpg_gpu_communicator_of(j->gpu, r->indices, &j->calls);
  return j->communicator
             ? MPG_OK
             : mpg_fail(MPG_VALUE_ERROR, "sums over ranks: %s has not joined these GPUs",
                        mpg_device_text(j->gpu));
}

static mpg_status make_job(const mpg_rank_sums *r, mpg_device *runs_on, job **result) {
  job *j = mpg_malloc(sizeof *j + 2 * (size_t)r->num_arrays * sizeof *j->views);
  if (!j) return mpg_out_of_host_memory(2 * (size_t)r->num_arrays * sizeof *j->views);
  *j = (job){.num_arrays = r->num_arrays, .dtype = r->arrays[0]->desc.dtype, .runs_on = runs_on};
  j->names = r->names;
  for (uint32_t i = 0; i < r->num_arrays; i++) {
    for (int axis = 0; axis < r->arrays[i]->desc.shape.ndim; axis++)
      j->names = j->names * 31 + (uint64_t)r->arrays[i]->desc.shape.dims[axis];
    j->views[2 * i] = (mpg_view){mpg_tensor_data(r->arrays[i]), r->arrays[i]->desc};
    j->views[2 * i + 1] = (mpg_view){mpg_tensor_data(r->sums[i]), r->sums[i]->desc};
    j->count += (size_t)mpg_shape_size(&r->arrays[i]->desc.shape);
  }
  mpg_device *device = r->arrays[0]->storage->device;
  if (device->id.type != MPG_CPU) j->gpu = device;
  j->kernel = mpg_kernel_get(j->gpu ? j->gpu : runs_on, mpg_op_get(MPG_OP_add_n));
  *result = j;
  return MPG_OK;
}

static mpg_status ready(void *state, bool *done) {
  mpg_queued_sums *q = state;
  job *j = q->work;
  (void)done;
  q->queued = true;
  j->number = mpg_transfers_take(MPG_ALL_REDUCE_NUMBERS);
  j->step = mpg_ranks_step();
  j->tick = mpg_device_next_tick(j->runs_on);
  return MPG_OK;
}

/* Allocates temporary GPU memory for the sums. Records the uses of the memory, so that the pool
 * does not reuse it before the work has finished. */
static mpg_status hold_rooms(job *j, mpg_queued_sums *q) {
  size_t sizes[2];
  const mpg_gpu_rank_sums work = describe_gpu(j);
  mpg_gpu_rank_sums_room(&work, &sizes[0], &sizes[1]);
  for (int i = 0; i < 2; i++) {
    const mpg_desc desc = {.dtype = MPG_UINT8, .shape = {.ndim = 1, .dims = {(int64_t)sizes[i]}}};
    mpg_tensor room;
    if (!sizes[i]) continue;
    MPG_TRY(mpg_tensor_create(j->gpu, &desc, &room));
    j->rooms[i] = mpg_tensor_data(&room);
    mpg_queued_sums_hold(q, mpg_use_array(&room, false, true));
    mpg_tensor_release(&room);
  }
  return MPG_OK;
}

static mpg_status hold(const mpg_rank_sums *r, mpg_queued_sums *q) {
  job *j = q->work;
  MPG_TRY(mpg_queued_sums_room(q, 2 * r->num_arrays + 2));
  for (uint32_t i = 0; i < r->num_arrays; i++) {
    mpg_queued_sums_hold(q, mpg_use_array(r->arrays[i], true, false));
    mpg_queued_sums_hold(q, mpg_use_array(r->sums[i], false, true));
  }
  if (!j->gpu) return MPG_OK;
  /* A failure is not returned here. The work is queued anyway and, when it runs, notifies the other
   * ranks, which would otherwise wait for this rank. */
  j->refused = hold_rooms(j, q);
  if (j->refused != MPG_OK) snprintf(j->refusal, sizeof j->refusal, "%s", mpg_error_text());
  return MPG_OK;
}

/* Sets *queue to the device whose queue runs all sums of this process. A single queue keeps the
 * sums in order. */
static mpg_status find_queue(mpg_device **queue) {
  mpg_device *first;
  MPG_TRY(mpg_device_get((mpg_device_id){.type = MPG_CPU}, &first));
  MPG_TRY(mpg_device_side(first, queue));
  if (!*queue) *queue = first;
  return MPG_OK;
}

static mpg_status queue_sums(const mpg_rank_sums *r) {
  mpg_queued_sums q = {0};
  job *j = NULL;
  mpg_device *devices[2];
  mpg_status status = MPG_OK;
  MPG_TRY(find_queue(&devices[0]));
  devices[1] = r->arrays[0]->storage->device;
  MPG_TRY(make_job(r, devices[0], &j));
  q.work = j;
  if (j->gpu) MPG_GOTO(find_communicator(j, r));
  MPG_GOTO(hold(r, &q));
  uint32_t origin = mpg_host_origin();
  j->line = mpg_host_origin_key(origin);
  const mpg_submission work = {.name = name,
                               .work = sum,
                               .payload = &j,
                               .payload_size = sizeof j,
                               .origin = origin,
                               .discard = discard};
  status =
      mpg_kernel_submit(&(mpg_kernel_submission){.devices = devices,
                                                 .num_devices = devices[0] == devices[1] ? 1 : 2,
                                                 .work = work,
                                                 .uses = q.uses,
                                                 .num_uses = q.num_uses,
                                                 .ready = ready,
                                                 .state = &q});
fail:
  mpg_queued_sums_let_go(&q);
  return status;
}

mpg_status mpg_comm_sum_over_ranks(const mpg_rank_sums *r) {
  if (!r->num_arrays) return MPG_OK;
  MPG_TRY(check(r));
  return queue_sums(r);
}

/* --- One array per rank, each on a device of its rank ----------------------------------------- */

/* Sets indices[rank] to the device index of that rank's array. */
static void indices_of(const mpg_tensor *const *arrays, int32_t *indices) {
  for (int i = 0; i < mpg_ranks_count(); i++) indices[i] = arrays[i]->storage->device->id.index;
}

bool mpg_comm_one_of_each_rank(const mpg_tensor *const *arrays, int count) {
  if (count < 2 || count != mpg_ranks_count() || arrays[0]->desc.dtype == MPG_BOOL) return false;
  const mpg_device *own = arrays[mpg_ranks_own()]->storage->device;
  for (int i = 0; i < count; i++) {
    const mpg_device_id id = arrays[i]->storage->device->id;
    if (id.type != own->id.type || mpg_device_rank(id) != i ||
        arrays[i]->desc.dtype != arrays[0]->desc.dtype ||
        !mpg_shape_equal(&arrays[i]->desc.shape, &arrays[0]->desc.shape))
      return false;
  }
  if (own->id.type == MPG_CPU) return true;
  int32_t indices[MPG_COMM_MAX_RANKS];
  const mpg_gpu_communicators *calls;
  indices_of(arrays, indices);
  return mpg_gpu_communicator_of(own, indices, &calls) != NULL;
}

mpg_status mpg_comm_all_reduce_over_ranks(const mpg_tensor *const *arrays, mpg_tensor *results) {
  int count = mpg_ranks_count(), made = 0;
  mpg_status status = MPG_OK;
  for (; made < count && status == MPG_OK; made++)
    status = mpg_tensor_create(arrays[made]->storage->device, &arrays[made]->desc, &results[made]);
  if (status == MPG_OK) {
    const mpg_tensor *sum = &results[mpg_ranks_own()];
    int32_t indices[MPG_COMM_MAX_RANKS];
    indices_of(arrays, indices);
    status = queue_sums(&(mpg_rank_sums){
        .arrays = &arrays[mpg_ranks_own()], .sums = &sum, .num_arrays = 1, .indices = indices});
  } else {
    made--;
  }
  for (int i = 0; i < made && status != MPG_OK; i++) mpg_tensor_release(&results[i]);
  for (int i = 0; i < made && status == MPG_OK; i++)
    if (i != mpg_ranks_own()) mpg_storage_add_write(results[i].storage, 0);
  return status;
}
