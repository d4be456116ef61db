/* Shapes: sizes, comparison, axes and text. */
#include "tensor/shape.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"

mpg_status mpg_shape_check(const mpg_shape *shape, mpg_dtype dtype, size_t *bytes) {
  char text[MPG_SHAPE_TEXT_SIZE];
  if (shape->ndim < 0 || shape->ndim > MPG_MAX_NDIM)
    return mpg_fail(MPG_VALUE_ERROR, "an array must have 0 to %d dimensions, not %d", MPG_MAX_NDIM,
                    shape->ndim);
  if (!mpg_dtype_valid(dtype))
    return mpg_fail(MPG_TYPE_ERROR, "unknown dtype number %d", (int)dtype);
  size_t size = mpg_dtype_size(dtype);
  /* Skips dimensions of size 0: even for an empty array, the product of the remaining dimensions
   * must not overflow. */
  bool empty = false;
  for (int i = 0; i < shape->ndim; i++) {
    int64_t dim = shape->dims[i];
    if (dim < 0)
      return mpg_fail(MPG_VALUE_ERROR, "negative dimension %" PRId64 " in shape %s", dim,
                      mpg_shape_text(shape, text, sizeof text));
    if (dim == 0)
      empty = true;
    else if (!mpg_size_mul(size, (size_t)dim, &size) || size > INT64_MAX)
      return mpg_fail(MPG_VALUE_ERROR,
                      "shape %s is too large: its size in bytes does not fit in 63 bits",
                      mpg_shape_text(shape, text, sizeof text));
  }
  if (bytes) *bytes = empty ? 0 : size;
  return MPG_OK;
}

char *mpg_shape_text(const mpg_shape *shape, char *buffer, size_t size) {
  if (shape->ndim < 0) {
    snprintf(buffer, size, "?");
    return buffer;
  }
  size_t used = (size_t)snprintf(buffer, size, "(");
  for (int i = 0; i < shape->ndim && used < size; i++) {
    const char *separator = i == 0 ? "" : ", ";
    int wrote = shape->dims[i] < 0
                    ? snprintf(buffer + used, size - used, "%s?", separator)
                    : snprintf(buffer + used, size - used, "%s%" PRId64, separator, shape->dims[i]);
    used += (size_t)wrote;
  }
  if (used < size) snprintf(buffer + used, size - used, shape->ndim == 1 ? ",)" : ")");
  return buffer;
}

bool mpg_shape_broadcast(const mpg_shape *a, const mpg_shape *b, mpg_shape *result) {
  mpg_shape shape = {0};
  if (a->ndim < 0 || b->ndim < 0) {
    *result = MPG_SHAPE_UNKNOWN;
    return true;
  }
  shape.ndim = a->ndim > b->ndim ? a->ndim : b->ndim;
  for (int i = 0; i < shape.ndim; i++) {
    int ia = i - (shape.ndim - a->ndim), ib = i - (shape.ndim - b->ndim);
    int64_t da = ia < 0 ? 1 : a->dims[ia], db = ib < 0 ? 1 : b->dims[ib];
    if (da == 1)
      shape.dims[i] = db;
    else if (db == 1)
      shape.dims[i] = da;
    else if (da < 0)
      shape.dims[i] = db;
    else if (db < 0 || da == db)
      shape.dims[i] = da;
    else
      return false;
  }
  *result = shape;
  return true;
}

bool mpg_shape_merge(mpg_shape *a, mpg_shape *b) {
  if (a->ndim < 0) {
    *a = *b;
    return true;
  }
  if (b->ndim < 0) {
    *b = *a;
    return true;
  }
  if (a->ndim != b->ndim) return false;
  for (int i = 0; i < a->ndim; i++) {
    if (a->dims[i] < 0)
      a->dims[i] = b->dims[i];
    else if (b->dims[i] < 0)
      b->dims[i] = a->dims[i];
    else if (a->dims[i] != b->dims[i])
      return false;
  }
  return true;
}

mpg_status mpg_axis_normalize(int64_t axis, int ndim, const char *op, int *result) {
  if (axis < -ndim || axis >= ndim)
    return mpg_fail(MPG_VALUE_ERROR,
                    "%s: axis %" PRId64 " is out of range for an array of %d dimensions", op, axis,
                    ndim);
  *result = (int)(axis < 0 ? axis + ndim : axis);
  return MPG_OK;
}
