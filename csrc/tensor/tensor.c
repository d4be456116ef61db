#include "tensor/tensor.h"

mpg_status mpg_tensor_create(mpg_device *device, const mpg_desc *desc, mpg_tensor *tensor) {
  size_t bytes;
  mpg_storage *storage;
  MPG_TRY(mpg_shape_check(&desc->shape, desc->dtype, &bytes));
  MPG_TRY(mpg_storage_create(device, bytes, false, &storage));
  *tensor = (mpg_tensor){.storage = storage, .offset = 0, .desc = *desc};
  return MPG_OK;
}

mpg_status mpg_tensor_wrap(mpg_device *device, void *memory, const mpg_desc *desc, void (*release)(void *), void *owner, mpg_tensor *tensor) {
  size_t bytes;
  mpg_storage *storage;
  MPG_TRY(mpg_shape_check(&desc->shape, desc->dtype, &bytes));
  MPG_TRY(mpg_storage_wrap(device, memory, bytes, release, owner, &storage));
  *tensor = (mpg_tensor){.storage = storage, .offset = 0, .desc = *desc};
  return MPG_OK;
}

mpg_status mpg_tensor_reshape(const mpg_tensor *tensor, const mpg_shape *shape, mpg_tensor *result) {
  MPG_TRY(mpg_shape_check(shape, tensor->desc.dtype, NULL));
  if (mpg_shape_size(shape) != mpg_shape_size(&tensor->desc.shape)) {
    char from[MPG_SHAPE_TEXT_SIZE], to[MPG_SHAPE_TEXT_SIZE];
    return mpg_fail(MPG_VALUE_ERROR, "an array of shape %s (%lld elements) cannot be reshaped to %s (%lld elements)",
                    mpg_shape_text(&tensor->desc.shape, from, sizeof from), (long long)mpg_shape_size(&tensor->desc.shape),
                    mpg_shape_text(shape, to, sizeof to), (long long)mpg_shape_size(shape));
  }
  *result = (mpg_tensor){.storage = tensor->storage, .offset = tensor->offset, .desc = {*shape, tensor->desc.dtype}};
  mpg_tensor_retain(result);
  return MPG_OK;
}

mpg_status mpg_tensor_slice(const mpg_tensor *tensor, int64_t begin, int64_t end, mpg_tensor *result) {
  const mpg_shape *shape = &tensor->desc.shape;
  if (shape->ndim == 0) return mpg_fail(MPG_INDEX_ERROR, "an array of no dimensions has no rows to slice");
  if (begin < 0 || end < begin || end > shape->dims[0])
    return mpg_fail(MPG_INDEX_ERROR, "rows %lld to %lld are not within the %lld rows of the array", (long long)begin, (long long)end,
                    (long long)shape->dims[0]);
  size_t row = (size_t)mpg_shape_product(shape, 1, shape->ndim) * mpg_dtype_size(tensor->desc.dtype);
  mpg_tensor part = *tensor; /* result may be tensor */
  part.offset += (size_t)begin * row;
  part.desc.shape.dims[0] = end - begin;
  mpg_tensor_retain(&part);
  *result = part;
  return MPG_OK;
}

mpg_status mpg_tensor_wait_read(const mpg_tensor *tensor) {
  const mpg_storage *storage = tensor->storage;
  return mpg_point_wait(
      (mpg_point){.device = storage->device, .tick = storage->block.uses.write, .data = storage->version != 0});
}

mpg_status mpg_tensor_wait_write(const mpg_tensor *tensor) {
  return mpg_uses_wait(&tensor->storage->block.uses, tensor->storage->device);
}

mpg_status mpg_tensor_copy_to_host(const mpg_tensor *tensor, void *host) {
  MPG_TRY(mpg_tensor_wait_read(tensor));
  mpg_device *device = tensor->storage->device;
  return device->backend->copy_to_host(device, host, mpg_tensor_data(tensor), mpg_tensor_bytes(tensor));
}

mpg_status mpg_tensor_copy_from_host(mpg_tensor *tensor, const void *host) {
  mpg_storage *storage = tensor->storage;
  mpg_device *device = storage->device;
  /* Part of a storage whose last write failed stays failed. */
  bool whole = mpg_tensor_bytes(tensor) == storage->size;
  if (!whole) MPG_TRY(mpg_tensor_wait_read(tensor));
  MPG_TRY(mpg_tensor_wait_write(tensor));
  MPG_TRY(device->backend->copy_from_host(device, mpg_tensor_data(tensor), host, mpg_tensor_bytes(tensor)));
  mpg_storage_add_write(storage, 0);
  return MPG_OK;
}
