/* Geometry of slices, crops and splits, shared by inference and kernels so that they cannot
 * disagree. These functions are stateless and may be called from any thread.
 */
#ifndef MPG_OP_ARRAY_REGION_H
#define MPG_OP_ARRAY_REGION_H

#include "op/params.h"

/* A strided region of an array. In dimension i, it consists of shape.dims[i] elements, which begin
 * at index start[i] and are step[i] apart. All elements are inside the array. */
typedef struct mpg_region {
  int64_t start[MPG_MAX_NDIM], step[MPG_MAX_NDIM];
  mpg_shape shape; /* number of elements along each dimension */
} mpg_region;

/* Computes the region that the Python slice begin:end:step selects from an array of known shape.
 * The tuples may have fewer elements than the shape has dimensions, and `step` may be empty (all
 * steps are 1). Out-of-range bounds are clipped. Fails if a step is zero, if `begin` and `end`
 * differ in length, or if a nonempty `step` has a different length. Error messages begin with `op`.
 */
static inline mpg_status mpg_region_make(const char *op, const mpg_shape *shape,
                                         const mpg_tuple *begin, const mpg_tuple *end,
                                         const mpg_tuple *step, mpg_region *region) {
  region->shape = *shape;
  if (begin->count < 0 || begin->count != end->count ||
      (step->count > 0 && step->count != begin->count))
    return mpg_fail(
        MPG_VALUE_ERROR,
        "%s: begin, end and step (if given) must have the same length, not %d, %d and %d", op,
        begin->count, end->count, step->count);
  if (begin->count > shape->ndim)
    return mpg_fail(MPG_VALUE_ERROR, "%s: begin has %d values, but the array has %d dimensions", op,
                    begin->count, shape->ndim);
  for (int i = 0; i < shape->ndim; i++) {
    int64_t size = shape->dims[i], s = 1;
    if (i < step->count && step->values[i] != MPG_TUPLE_NONE) s = step->values[i];
    if (s == 0)
      return mpg_fail(MPG_VALUE_ERROR, "%s: the step of dimension %d must not be 0", op, i);
    if (s < -INT64_MAX) s = -INT64_MAX;
    /* Range to which begin and end are clipped. */
    int64_t low = s > 0 ? 0 : -1, high = s > 0 ? size : size - 1;
    int64_t b = s > 0 ? low : high, e = s > 0 ? high : low;
    if (i < begin->count && begin->values[i] != MPG_TUPLE_NONE) {
      b = begin->values[i] < 0 ? begin->values[i] + size : begin->values[i];
      b = b < low ? low : b > high ? high : b;
    }
    if (i < end->count && end->values[i] != MPG_TUPLE_NONE) {
      e = end->values[i] < 0 ? end->values[i] + size : end->values[i];
      e = e < low ? low : e > high ? high : e;
    }
    int64_t count = 0;
    if (s > 0 && b < e) count = (e - b - 1) / s + 1;
    if (s < 0 && b > e) count = (b - e - 1) / -s + 1;
    region->start[i] = count ? b : 0;
    region->step[i] = count > 1 ? s : 1;
    region->shape.dims[i] = count;
  }
  return MPG_OK;
}

/* Computes the region that slice_axis selects from an array of known shape: the range [begin, end)
 * of one dimension. The bounds must be inside the array. */
static inline mpg_status mpg_region_axis(const char *op, const mpg_shape *shape, int64_t axis_param,
                                         int64_t begin, const mpg_opt_int *end,
                                         mpg_region *region) {
  int axis;
  MPG_TRY(mpg_axis_normalize(axis_param, shape->ndim, op, &axis));
  int64_t size = shape->dims[axis], b = begin < 0 ? begin + size : begin, e = size;
  if (end->present) e = end->value < 0 ? end->value + size : end->value;
  if (b < 0 || b > size || e < 0 || e > size || b > e)
    return mpg_fail(MPG_VALUE_ERROR,
                    "%s: [%lld, %lld) is out of range for dimension %d of size %lld", op,
                    (long long)b, (long long)e, axis, (long long)size);
  region->shape = *shape;
  for (int i = 0; i < shape->ndim; i++) {
    region->start[i] = i == axis ? b : 0;
    region->step[i] = 1;
  }
  region->shape.dims[axis] = e - b;
  return MPG_OK;
}

/* Computes the region that slice_like selects from an array of known shape. Along `axes` (all
 * dimensions if empty), it consists of the leading elements and has the size of `like`. */
static inline mpg_status mpg_region_like(const char *op, const mpg_shape *shape,
                                         const mpg_shape *like, const mpg_tuple *axes,
                                         mpg_region *region) {
  region->shape = *shape;
  for (int i = 0; i < shape->ndim; i++) {
    region->start[i] = 0;
    region->step[i] = 1;
  }
  int count = axes->count > 0 ? axes->count : shape->ndim;
  if (axes->count <= 0 && like->ndim != shape->ndim)
    return mpg_fail(
        MPG_VALUE_ERROR,
        "%s: without axes both arrays must have the same number of dimensions, not %d and %d", op,
        shape->ndim, like->ndim);
  for (int j = 0; j < count; j++) {
    int axis = j, axis_like = j;
    if (axes->count > 0) {
      MPG_TRY(mpg_axis_normalize(axes->values[j], shape->ndim, op, &axis));
      MPG_TRY(mpg_axis_normalize(axes->values[j], like->ndim, op, &axis_like));
    }
    if (like->dims[axis_like] > shape->dims[axis])
      return mpg_fail(MPG_VALUE_ERROR,
                      "%s: dimension %d has size %lld, less than the requested %lld", op, axis,
                      (long long)shape->dims[axis], (long long)like->dims[axis_like]);
    region->shape.dims[axis] = like->dims[axis_like];
  }
  return MPG_OK;
}

/* Computes the region that Crop selects from an array (n, c, h, w). The height and width are those
 * of `like`, or params->h_w if `like` is NULL. */
static inline mpg_status mpg_region_crop(const char *op, const mpg_shape *shape,
                                         const mpg_shape *like, const mpg_crop_params *params,
                                         mpg_region *region) {
  if (shape->ndim != 4 || (like && like->ndim != 4))
    return mpg_fail(MPG_VALUE_ERROR, "%s: the arrays must have 4 dimensions", op);
  if (params->offset.count != 2 || params->h_w.count != 2)
    return mpg_fail(MPG_VALUE_ERROR, "%s: offset and h_w must have two numbers each", op);
  region->shape = *shape;
  for (int i = 0; i < 4; i++) {
    region->start[i] = 0;
    region->step[i] = 1;
    if (i < 2) continue;
    int64_t size = shape->dims[i], want = like ? like->dims[i] : params->h_w.values[i - 2];
    bool fits = want >= (like ? 0 : 1) && want <= size;
    int64_t start =
        params->center_crop ? fits ? (size - want) / 2 : 0 : params->offset.values[i - 2];
    if (!fits || start < 0 || start > size - want)
      return mpg_fail(
          MPG_VALUE_ERROR,
          "%s: %lld elements from %lld on are out of range for dimension %d of size %lld", op,
          (long long)want, (long long)start, i, (long long)size);
    region->start[i] = start;
    region->shape.dims[i] = want;
  }
  return MPG_OK;
}

/* Computes the range [*begin, *end) that output number `part` of _split_v2 takes from a dimension
 * of `size` elements. */
static inline mpg_status mpg_split_part(const mpg_split_v2_params *params, int64_t size, int part,
                                        int64_t *begin, int64_t *end) {
  if (params->sections > 0) {
    if (size % params->sections)
      return mpg_fail(MPG_VALUE_ERROR,
                      "_split_v2: a dimension of size %lld cannot be split into %lld equal parts",
                      (long long)size, (long long)params->sections);
    *begin = size / params->sections * part;
    *end = *begin + size / params->sections;
    return MPG_OK;
  }
  int64_t bounds[2];
  for (int side = 0; side < 2; side++) {
    int index = part + side;
    int64_t at = index < params->indices.count ? params->indices.values[index] : size;
    if (at < 0) at = at == MPG_TUPLE_NONE ? 0 : at + size;
    if (size > 0 && (at < 0 || at > size))
      return mpg_fail(MPG_VALUE_ERROR,
                      "_split_v2: index %lld is out of range for a dimension of size %lld",
                      (long long)params->indices.values[index], (long long)size);
    bounds[side] = size > 0 ? at : 0;
  }
  if (bounds[1] < bounds[0])
    return mpg_fail(MPG_VALUE_ERROR, "_split_v2: indices must be ascending, but %lld precedes %lld",
                    (long long)bounds[0], (long long)bounds[1]);
  *begin = bounds[0];
  *end = bounds[1];
  return MPG_OK;
}

#endif
