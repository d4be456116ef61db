/* Shapes: plain values with up to MPG_MAX_NDIM dimensions. A dimension or ndim of -1 means unknown;
 * this occurs only during shape inference. Dimensions of size 0 are valid. These functions may be
 * called from any thread.
 */
#ifndef MPG_TENSOR_SHAPE_H
#define MPG_TENSOR_SHAPE_H

#include "tensor/dtype.h"

enum { MPG_MAX_NDIM = 10 };

typedef struct mpg_shape {
  int32_t ndim;
  /* Dims beyond ndim are ignored, but must be zero in shapes that are hashed or compared as
   * bytes. */
  int64_t dims[MPG_MAX_NDIM];
} mpg_shape;

/* Shape and dtype of an array, or of a value in a graph. */
typedef struct mpg_desc {
  mpg_shape shape;
  mpg_dtype dtype;
} mpg_desc;

#define MPG_SHAPE_UNKNOWN ((mpg_shape){.ndim = -1})

/* Returns the number of elements. mpg_shape_check must have succeeded, so the product cannot
 * overflow. */
static inline int64_t mpg_shape_size(const mpg_shape *shape) {
  int64_t size = 1;
  for (int i = 0; i < shape->ndim; i++) size *= shape->dims[i];
  return size;
}
/* Returns the product of dims [begin, end). */
static inline int64_t mpg_shape_product(const mpg_shape *shape, int begin, int end) {
  int64_t size = 1;
  for (int i = begin; i < end; i++) size *= shape->dims[i];
  return size;
}
static inline bool mpg_shape_equal(const mpg_shape *a, const mpg_shape *b) {
  if (a->ndim != b->ndim) return false;
  for (int i = 0; i < a->ndim; i++)
    if (a->dims[i] != b->dims[i]) return false;
  return true;
}
static inline bool mpg_shape_known(const mpg_shape *shape) {
  if (shape->ndim < 0) return false;
  for (int i = 0; i < shape->ndim; i++)
    if (shape->dims[i] < 0) return false;
  return true;
}

/* Checks that ndim and dims are valid and known, and that the size in bytes fits in int64. Sets
 * *bytes to that size; `bytes` may be NULL. */
mpg_status mpg_shape_check(const mpg_shape *shape, mpg_dtype dtype, size_t *bytes);

/* Formats the shape as a Python tuple, such as "(2, 3)" or "(4,)", with "?" for unknown parts.
 * Truncates the text to `size` and returns `buffer`. */
enum { MPG_SHAPE_TEXT_SIZE = 256 };
char *mpg_shape_text(const mpg_shape *shape, char *buffer, size_t size);

/* Computes the shape that `a` and `b` broadcast to by NumPy's rules. Returns false if they cannot
 * be broadcast. A dim of the result may stay unknown if it depends on an unknown dim. */
bool mpg_shape_broadcast(const mpg_shape *a, const mpg_shape *b, mpg_shape *result);

/* Fills in the unknown ndim or dims of each shape from the other shape. Returns false if the shapes
 * contradict each other. */
bool mpg_shape_merge(mpg_shape *a, mpg_shape *b);

/* Sets *result to the axis in [0, ndim). Negative axes count from the end. Fails if out of
 * range. */
mpg_status mpg_axis_normalize(int64_t axis, int ndim, const char *op, int *result);

#endif
