/* Tensors: views of storages. */
#include "tensor/tensor.h"

#include "base/host.h"
#include "base/memory.h"
#include "tensor/contents.h"

mpg_status mpg_tensor_create(mpg_device *device, const mpg_desc *desc, mpg_tensor *tensor) {
  size_t bytes;
  mpg_storage *storage;
  MPG_TRY(mpg_shape_check(&desc->shape, desc->dtype, &bytes));
  MPG_TRY(mpg_storage_create(device, bytes, false, &storage));
  *tensor = (mpg_tensor){.storage = storage, .offset = 0, .desc = *desc};
  return MPG_OK;
}

mpg_status mpg_tensor_create_pinned(mpg_device *device, const mpg_desc *desc, mpg_tensor *tensor) {
  size_t bytes;
  mpg_pinned *block;
  mpg_storage *storage;
  MPG_TRY(mpg_shape_check(&desc->shape, desc->dtype, &bytes));
  MPG_TRY(mpg_pinned_allocate(bytes, &block));
  mpg_status status = mpg_storage_wrap(device, mpg_pinned_memory(block), bytes, mpg_pinned_release,
                                       block, &storage);
  if (status != MPG_OK) {
    mpg_pinned_release(block);
    return status;
  }
  storage->exposed = false; /* no other code has the address yet */
  *tensor = (mpg_tensor){.storage = storage, .offset = 0, .desc = *desc};
  return MPG_OK;
}

mpg_status mpg_tensor_wrap(mpg_device *device, void *memory, const mpg_desc *desc,
                           void (*release)(void *), void *owner, mpg_tensor *tensor) {
  size_t bytes;
  mpg_storage *storage;
  MPG_TRY(mpg_shape_check(&desc->shape, desc->dtype, &bytes));
  MPG_TRY(mpg_storage_wrap(device, memory, bytes, release, owner, &storage));
  *tensor = (mpg_tensor){.storage = storage, .offset = 0, .desc = *desc};
  return MPG_OK;
}

mpg_status mpg_tensor_reshape(const mpg_tensor *tensor, const mpg_shape *shape,
                              mpg_tensor *result) {
  MPG_TRY(mpg_shape_check(shape, tensor->desc.dtype, NULL));
  if (mpg_shape_size(shape) != mpg_shape_size(&tensor->desc.shape)) {
    char from[MPG_SHAPE_TEXT_SIZE], to[MPG_SHAPE_TEXT_SIZE];
    return mpg_fail(MPG_VALUE_ERROR,
                    "an array of shape %s (%lld elements) cannot be reshaped to %s (%lld elements)",
                    mpg_shape_text(&tensor->desc.shape, from, sizeof from),
                    (long long)mpg_shape_size(&tensor->desc.shape),
                    mpg_shape_text(shape, to, sizeof to), (long long)mpg_shape_size(shape));
  }
  *result = (mpg_tensor){
      .storage = tensor->storage, .offset = tensor->offset, .desc = {*shape, tensor->desc.dtype}};
  mpg_tensor_retain(result);
  return MPG_OK;
}

mpg_status mpg_tensor_slice(const mpg_tensor *tensor, int64_t begin, int64_t end,
                            mpg_tensor *result) {
  const mpg_shape *shape = &tensor->desc.shape;
  if (shape->ndim == 0)
    return mpg_fail(MPG_INDEX_ERROR, "an array without dimensions has no rows to slice");
  if (begin < 0 || end < begin || end > shape->dims[0])
    return mpg_fail(MPG_INDEX_ERROR, "rows %lld to %lld are out of range for an array of %lld rows",
                    (long long)begin, (long long)end, (long long)shape->dims[0]);
  size_t row =
      (size_t)mpg_shape_product(shape, 1, shape->ndim) * mpg_dtype_size(tensor->desc.dtype);
  mpg_tensor part = *tensor; /* `result` may be `tensor` */
  part.offset += (size_t)begin * row;
  part.desc.shape.dims[0] = end - begin;
  mpg_tensor_retain(&part);
  *result = part;
  return MPG_OK;
}

/* --- Copies to and from the host -------------------------------------------------------------- */

static mpg_status wait_for_write(const mpg_tensor *tensor, bool keep_lock) {
  const mpg_storage *storage = tensor->storage;
  return mpg_point_wait((mpg_point){.device = storage->device,
                                    .tick = storage->block.uses.write,
                                    .data = storage->version != 0},
                        keep_lock);
}

mpg_status mpg_tensor_wait(const mpg_tensor *tensor) { return wait_for_write(tensor, false); }

static bool readable(const mpg_tensor *tensor) {
  return mpg_tick_reached(tensor->storage->device, tensor->storage->block.uses.write);
}
static bool writable(const mpg_tensor *tensor) {
  return mpg_uses_finished(&tensor->storage->block.uses, tensor->storage->device);
}

/* Number of waits that release the host lock. If other threads queue work faster than the device
 * finishes it, waiting with the lock released might never end, so later waits hold the lock. */
enum { ROUNDS_WITHOUT_LOCK = 4 };

mpg_status mpg_tensor_wait_read(const mpg_tensor *tensor) {
  int round = 0;
  do MPG_TRY(wait_for_write(tensor, round++ >= ROUNDS_WITHOUT_LOCK));
  while (!readable(tensor));
  return mpg_storage_failure(tensor->storage);
}

mpg_status mpg_tensor_wait_write(const mpg_tensor *tensor) {
  int round = 0;
  do
    MPG_TRY(mpg_uses_wait(&tensor->storage->block.uses, tensor->storage->device,
                          round++ >= ROUNDS_WITHOUT_LOCK));
  while (!writable(tensor));
  return MPG_OK;
}

typedef struct copy_task {
  const void *from;
  void *to;
  size_t size;
} copy_task;

static mpg_status copy_work(mpg_run *run, void *payload) {
  const copy_task *task = payload;
  return mpg_device_copy(run->device, run->device, task->to, run->device, task->from, task->size);
}

typedef struct copy_state {
  const mpg_tensor *from, *to; /* both on the same device */
  copy_task task;
  uint32_t origin;
} copy_state;

static mpg_status prepare_copy(void *state, mpg_point_list *points, mpg_submission *submissions,
                               bool *done) {
  copy_state *s = state;
  mpg_device *device = mpg_tensor_device(s->to);
  (void)done;
  MPG_TRY(mpg_storage_points(s->from->storage, device, true, false, points));
  MPG_TRY(mpg_storage_points(s->to->storage, device, mpg_tensor_is_part(s->to), true, points));
  s->task = (copy_task){mpg_tensor_data(s->from), mpg_tensor_data(s->to), mpg_tensor_bytes(s->to)};
  submissions[0] = (mpg_submission){.name = "copy",
                                    .work = copy_work,
                                    .payload = &s->task,
                                    .payload_size = sizeof s->task,
                                    .points = points->points,
                                    .num_points = points->count,
                                    .origin = s->origin};
  return MPG_OK;
}

static void note_copy(void *state, const mpg_tick *ticks) {
  const copy_state *s = state;
  mpg_storage_add_read(s->from->storage, mpg_tensor_device(s->to), ticks[0]);
  mpg_storage_add_write(s->to->storage, ticks[0]);
}

static mpg_status queue_copy(const mpg_tensor *from, const mpg_tensor *to) {
  copy_state state = {.from = from, .to = to, .origin = mpg_host_origin()};
  mpg_device *device = mpg_tensor_device(to);
  if (device->remote) {
    mpg_storage_add_write(to->storage, 0);
    return MPG_OK;
  }
  return mpg_device_queue(&(mpg_queuing){
      .devices = &device, .count = 1, .prepare = prepare_copy, .note = note_copy, .state = &state});
}

/* Creates an array with the same shape and dtype on the same device, in a new storage. */
static mpg_status make_like(const mpg_tensor *tensor, bool host_access, mpg_tensor *result) {
  mpg_storage *storage;
  MPG_TRY(mpg_storage_create(mpg_tensor_device(tensor), mpg_tensor_bytes(tensor), host_access,
                             &storage));
  *result = (mpg_tensor){.storage = storage, .desc = tensor->desc};
  return MPG_OK;
}

mpg_status mpg_tensor_snapshot(const mpg_tensor *tensor, mpg_tensor *copy) {
  MPG_TRY(make_like(tensor, false, copy));
  mpg_status status = queue_copy(tensor, copy);
  if (status != MPG_OK) mpg_tensor_release(copy);
  return status;
}

/* Copies a whole storage: immediately if it is small and no queued work uses its memory, otherwise
 * as queued work. */
static mpg_status copy_whole(mpg_storage *storage, mpg_tensor *copy) {
  enum { COPIED_AT_ONCE = 1 << 16 };
  const mpg_tensor whole = {.storage = storage,
                            .desc = {{.ndim = 1, .dims = {(int64_t)storage->size}}, MPG_UINT8}};
  mpg_device *device = storage->device;
  bool at_once = device->backend->host_accessible && storage->size <= COPIED_AT_ONCE;
  MPG_TRY(make_like(&whole, at_once, copy));
  mpg_status status;
  if (at_once && readable(&whole) && writable(copy) && mpg_storage_failure(storage) == MPG_OK) {
    status = device->backend->copy_to_host(device, mpg_tensor_data(copy), mpg_tensor_data(&whole),
                                           storage->size);
    if (status == MPG_OK) mpg_storage_add_write(copy->storage, 0);
  } else {
    status = queue_copy(&whole, copy);
  }
  if (status != MPG_OK) mpg_tensor_release(copy);
  return status;
}

void mpg_storage_copy_contents(mpg_storage *storage) {
  mpg_tensor copy = {0};
  if (storage->watched) mpg_late_savers_count();
  if (!storage->savers || mpg_contents_kept(storage)) return;
  mpg_storage_retain(storage); /* allocating memory may release the host lock */
  uint32_t version = storage->version;
  /* If the copy fails, the contents are lost, and gradients that need them report an error. */
  (void)copy_whole(storage, &copy);
  bool late = storage->version != version || mpg_contents_kept(storage);
  if (late || mpg_contents_keep(storage, copy.storage) != MPG_OK) mpg_tensor_release(&copy);
  mpg_storage_release(storage);
}

mpg_status mpg_tensor_copy_to_host(const mpg_tensor *tensor, void *host) {
  mpg_device *device = mpg_tensor_device(tensor);
  if (!readable(tensor) && !device->remote) MPG_TRY(mpg_tensor_wait(tensor));
  if (readable(tensor) || device->remote) {
    MPG_TRY(mpg_storage_failure(tensor->storage));
    return device->backend->copy_to_host(device, host, mpg_tensor_data(tensor),
                                         mpg_tensor_bytes(tensor));
  }
  mpg_tensor copy;
  MPG_TRY(mpg_tensor_snapshot(tensor, &copy));
  mpg_status status = mpg_tensor_wait(&copy);
  if (status == MPG_OK)
    status = device->backend->copy_to_host(device, host, mpg_tensor_data(&copy),
                                           mpg_tensor_bytes(&copy));
  mpg_tensor_release(&copy);
  return status;
}

/* Writes to a new staging array, and queues a copy from it to the tensor. */
static mpg_status write_in_order(mpg_tensor *tensor, const void *host) {
  mpg_device *device = mpg_tensor_device(tensor);
  mpg_tensor staged;
  MPG_TRY(make_like(tensor, true, &staged));
  mpg_status status = mpg_tensor_wait_write(&staged);
  if (status == MPG_OK)
    status = device->backend->copy_from_host(device, mpg_tensor_data(&staged), host,
                                             mpg_tensor_bytes(&staged));
  if (status == MPG_OK) mpg_storage_add_write(staged.storage, 0);
  if (status == MPG_OK) status = queue_copy(&staged, tensor);
  mpg_tensor_release(&staged);
  return status;
}

mpg_status mpg_tensor_copy_from_host(mpg_tensor *tensor, const void *host) {
  mpg_storage *storage = tensor->storage;
  mpg_device *device = storage->device;
  mpg_storage_before_write(storage);
  if (device->remote) { /* the rank that owns the device writes the same values there */
    mpg_storage_add_write(storage, 0);
    return MPG_OK;
  }
  /* A partial write keeps the rest of the contents, so it must wait for the storage's last write
   * and report its failure. */
  if (mpg_tensor_is_part(tensor) && !readable(tensor)) MPG_TRY(mpg_tensor_wait(tensor));
  if (!writable(tensor)) MPG_TRY(mpg_uses_wait(&storage->block.uses, device, false));
  if (!writable(tensor)) return write_in_order(tensor, host);
  if (mpg_tensor_is_part(tensor)) MPG_TRY(mpg_storage_failure(storage));
  MPG_TRY(device->backend->copy_from_host(device, mpg_tensor_data(tensor), host,
                                          mpg_tensor_bytes(tensor)));
  mpg_storage_add_write(storage, 0);
  return MPG_OK;
}
