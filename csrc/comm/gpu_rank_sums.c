/* All-reduces over a communicator of GPUs. */
#include "comm/gpu_rank_sums.h"

#include <stdio.h>
#include <string.h>

#include "device/ranks/all_reduce.h"
#include "op/submit.h"

enum { LINE = 128 }; /* alignment of parts in bytes */

typedef mpg_gpu_rank_sums sums;

static size_t align(size_t size) { return (size + LINE - 1) / LINE * LINE; }

/* Returns the size of each rank's part in bytes. */
static size_t part_of(const sums *s) {
  size_t ranks = (size_t)mpg_ranks_count(), size = s->count * mpg_dtype_size(s->dtype);
  return align((size + ranks - 1) / ranks);
}

static bool is_joined(const sums *s) {
  return s->num_arrays > 1 || (!mpg_ranks_any_order() && part_of(s) * (size_t)mpg_ranks_count() !=
                                                             s->count * mpg_dtype_size(s->dtype));
}

void mpg_gpu_rank_sums_room(const sums *s, size_t *joined, size_t *parts) {
  size_t whole = part_of(s) * (size_t)mpg_ranks_count();
  *parts = mpg_ranks_any_order() ? 0 : whole;
  *joined = is_joined(s) ? whole : 0;
}

/* --- Descriptions of the sums, which the ranks compare ---------------------------------------- */

typedef struct said {
  uint64_t count;
  uint32_t num_arrays, dtype;
} said;

static mpg_status compare(void *state, const char *const *parts, char *sum, size_t count) {
  const said *own = state;
  (void)sum, (void)count;
  for (int rank = 0; rank < mpg_ranks_count(); rank++) {
    said other;
    memcpy(&other, parts[rank], sizeof other);
    if (memcmp(&other, own, sizeof other) == 0) continue;
    return mpg_fail(MPG_ERROR,
                    "the ranks run different programs: rank %d sums over ranks %u arrays of GPUs, "
                    "%llu elements of %s, but rank %d, %u arrays, %llu elements of %s",
                    mpg_ranks_own(), own->num_arrays, (unsigned long long)own->count,
                    mpg_dtype_name((mpg_dtype)own->dtype), rank, other.num_arrays,
                    (unsigned long long)other.count, mpg_dtype_name((mpg_dtype)other.dtype));
  }
  return MPG_OK;
}

static mpg_all_reduce describe(const sums *s, said *own) {
  *own = (said){.count = s->count, .num_arrays = s->num_arrays, .dtype = (uint32_t)s->dtype};
  return (mpg_all_reduce){.number = s->number,
                          .source = (const char *)own,
                          .target = (char *)own,
                          .count = sizeof *own,
                          .item = 1,
                          .dtype = MPG_UINT8,
                          .add = compare,
                          .state = own};
}

void mpg_gpu_rank_sums_fail(const sums *s) {
  said own;
  const mpg_all_reduce work = describe(s, &own);
  char text[300]; /* copied, because the notification may fail and change the text */
  snprintf(text, sizeof text, "%s", mpg_error_text());
  mpg_all_reduce_fail(&work);
  mpg_fail(MPG_ERROR, "%s", text);
}

/* --- The sums --------------------------------------------------------------------------------- */

static mpg_status look_issued(void *state, bool *done) {
  const sums *s = state;
  return s->calls->issued(s->communicator, done);
}
static mpg_status look_finished(void *state, bool *done) {
  const sums *s = state;
  return s->calls->finished(s->communicator, done);
}
static mpg_status wait_until(const sums *s, mpg_status (*look)(void *state, bool *done)) {
  return mpg_all_reduce_until(look, (void *)(uintptr_t)s);
}

/* Packs the arrays into s->joined. If `back`, unpacks the sums from there instead. */
static mpg_status copy(const sums *s, bool back) {
  char *at = s->joined;
  for (uint32_t i = 0; i < s->num_arrays; i++) {
    const mpg_view *view = &s->views[2 * i + back];
    size_t size = (size_t)mpg_shape_size(&view->desc.shape) * mpg_dtype_size(s->dtype);
    if (size)
      MPG_TRY(
          s->calls->copy(s->communicator, back ? view->data : at, back ? at : view->data, size));
    at += size;
  }
  return MPG_OK;
}

/* Issues the kernel that sums this rank's part in rank order. */
static mpg_status add(const sums *s, const char *from, char *to) {
  int ranks = mpg_ranks_count(), own = mpg_ranks_own();
  size_t part = part_of(s);
  mpg_view views[MPG_GPU_RANKS_IN_ORDER + 1];
  mpg_num_args_params params = {.num_args = ranks};
  const mpg_desc desc = {
      .dtype = s->dtype,
      .shape = {.ndim = 1, .dims = {(int64_t)(part / mpg_dtype_size(s->dtype))}}};
  for (int i = 0; i < ranks; i++) views[i] = (mpg_view){s->parts + (size_t)i * part, desc};
  views[own].data = (char *)(uintptr_t)from + (size_t)own * part;
  views[ranks] = (mpg_view){to + (size_t)own * part, desc};
  mpg_run run = {.device = s->device, .stream = s->calls->stream(s->communicator)};
  mpg_kernel_call call =
      mpg_kernel_call_in(&run, mpg_op_get(MPG_OP_add_n), &params, views, ranks, 1);
  return s->add(&call);
}

static mpg_status sum(const sums *s) {
  size_t part = part_of(s);
  char *from = is_joined(s) ? s->joined : s->views[0].data,
       *to = is_joined(s) ? s->joined : s->views[1].data;
  if (is_joined(s)) MPG_TRY(copy(s, false));
  if (mpg_ranks_any_order()) {
    MPG_TRY(s->calls->sum(s->communicator, from, to, s->count, (uint32_t)s->dtype));
  } else {
    MPG_TRY(s->calls->exchange(s->communicator, from, s->parts, part));
    MPG_TRY(wait_until(s, look_issued));
    MPG_TRY(add(s, from, to));
    MPG_TRY(s->calls->gather(s->communicator, to, part));
  }
  MPG_TRY(wait_until(s, look_issued));
  if (is_joined(s)) MPG_TRY(copy(s, true));
  return wait_until(s, look_finished);
}

/* Aborts the communicator and all ranks, because other ranks may wait in NCCL for data from this
 * rank. */
static void give_up(const sums *s) {
  char text[200];
  snprintf(text, sizeof text, "a sum of GPUs failed on rank %d: %.150s", mpg_ranks_own(),
           mpg_error_text());
  s->calls->leave(s->communicator);
  mpg_ranks_give_up(text);
}

mpg_status mpg_gpu_rank_sums_run(const sums *s) {
  said own;
  const mpg_all_reduce work = describe(s, &own);
  mpg_status status = s->calls->begin(s->communicator);
  if (status != MPG_OK) {
    mpg_gpu_rank_sums_fail(s);
    return status;
  }
  MPG_TRY(mpg_all_reduce_run(&work));
  if (!s->count) return MPG_OK;
  status = sum(s);
  if (status != MPG_OK) give_up(s);
  return status;
}
