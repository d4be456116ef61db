/* Shapes: up to MPG_MAX_NDIM dimensions, by value. A dimension of -1 and an ndim of -1 mean "not
 * known yet", which only inference sees; zero-size dimensions are real. Any thread may call.
 */
#ifndef MPG_TENSOR_SHAPE_H
#define MPG_TENSOR_SHAPE_H

#include "tensor/dtype.h"

enum { MPG_MAX_NDIM = 10 };

typedef struct mpg_shape {
  int32_t ndim;
  int64_t dims[MPG_MAX_NDIM]; /* beyond ndim: not read, but kept zero where shapes are hashed or
                                 compared as bytes */
} mpg_shape;

/* Shape and dtype, as inference works on them and graphs store them for a value. */
typedef struct mpg_desc {
  mpg_shape shape;
  mpg_dtype dtype;
} mpg_desc;

#define MPG_SHAPE_UNKNOWN ((mpg_shape){.ndim = -1})

static inline int64_t mpg_shape_size(
    const mpg_shape *shape) { /* elements; the shape was checked when it was made */
  int64_t size = 1;
  for (int i = 0; i < shape->ndim; i++) size *= shape->dims[i];
  return size;
}
static inline int64_t mpg_shape_product(const mpg_shape *shape, int begin,
                                        int end) { /* of dims [begin, end) */
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

/* Checks ndim and dims (>= 0), and that bytes and elements fit in int64; *bytes may be NULL. */
mpg_status mpg_shape_check(const mpg_shape *shape, mpg_dtype dtype, size_t *bytes);

/* Text as Python prints it, "(2, 3)", "(4,)", with "?" for what is not known. Truncated to `size`;
 * returns `buffer`. */
enum { MPG_SHAPE_TEXT_SIZE = 256 };
char *mpg_shape_text(const mpg_shape *shape, char *buffer, size_t size);

/* The shape that `a` and `b` broadcast to (NumPy's rule; unknown dims stay unknown). False when
 * they do not. */
bool mpg_shape_broadcast(const mpg_shape *a, const mpg_shape *b, mpg_shape *result);

/* Makes both equal where one is unknown (ndim or single dims). False when they contradict each
 * other. */
bool mpg_shape_merge(mpg_shape *a, mpg_shape *b);

/* Brings a possibly negative axis into [0, ndim). */
mpg_status mpg_axis_normalize(int64_t axis, int ndim, const char *op, int *result);

#endif
