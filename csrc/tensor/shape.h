/* Shapes: up to MPG_MAX_NDIM dimensions, by value. A dimension or ndim of -1 means "unknown", which
 * only inference sees. Zero-size dimensions are valid. Any thread may call.
 */
#ifndef MPG_TENSOR_SHAPE_H
#define MPG_TENSOR_SHAPE_H

#include "tensor/dtype.h"

enum { MPG_MAX_NDIM = 10 };

typedef struct mpg_shape {
  int32_t ndim;
  /* Dims beyond ndim are not read, but must be zero if shapes are hashed or compared as bytes. */
  int64_t dims[MPG_MAX_NDIM];
} mpg_shape;

/* Shape and dtype, as inference works on them and graphs store them for a value. */
typedef struct mpg_desc {
  mpg_shape shape;
  mpg_dtype dtype;
} mpg_desc;

#define MPG_SHAPE_UNKNOWN ((mpg_shape){.ndim = -1})

/* Returns the number of elements. The shape was checked at creation. */
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

/* Checks ndim and dims (>= 0), and that the numbers of bytes and elements fit in int64. `bytes` may
 * be NULL. */
mpg_status mpg_shape_check(const mpg_shape *shape, mpg_dtype dtype, size_t *bytes);

/* Formats the shape like Python, "(2, 3)", "(4,)", with "?" for unknown parts. Truncates to `size`;
 * returns `buffer`. */
enum { MPG_SHAPE_TEXT_SIZE = 256 };
char *mpg_shape_text(const mpg_shape *shape, char *buffer, size_t size);

/* Computes the shape that `a` and `b` broadcast to (NumPy's rule; unknown dims stay unknown).
 * Returns false if they do not broadcast. */
bool mpg_shape_broadcast(const mpg_shape *a, const mpg_shape *b, mpg_shape *result);

/* Completes the unknown ndim or dims of each shape from the other one. Returns false if they
 * contradict each other. */
bool mpg_shape_merge(mpg_shape *a, mpg_shape *b);

/* Converts a possibly negative axis to [0, ndim). */
mpg_status mpg_axis_normalize(int64_t axis, int ndim, const char *op, int *result);

#endif
