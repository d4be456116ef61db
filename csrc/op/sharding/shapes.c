/* Sharding rules of ops that reshape, slice, concatenate, index or repeat arrays. */
#include <string.h>

#include "op/array/region.h"
#include "op/sharding/sharding.h"

#define PARAMS(structure) const mpg_##structure##_params *p = s->params

/* --- Reshapes --------------------------------------------------------------------------------- */

/* One end of the walk over the axes of a shape: `left` elements of axis `axis` remain. */
typedef struct cursor {
  const mpg_shape *shape;
  int axis, step;
  int64_t left;
} cursor;

static cursor begin_at(const mpg_shape *shape, int axis, int step) {
  return (cursor){shape, axis, step, shape->dims[axis]};
}

/* Moves to the next axis that has elements left. Returns false at the end. */
static bool advance(cursor *c) {
  while (c->left == 1) {
    c->axis += c->step;
    if (c->axis < 0 || c->axis >= c->shape->ndim) return false;
    c->left = c->shape->dims[c->axis];
  }
  return true;
}

/* The digit of `size` indices at the end of the axis from which the cursor came. */
static mpg_digit digit_at(const cursor *c, int64_t size) {
  int64_t done = c->shape->dims[c->axis] / c->left, rest = c->left / size;
  return c->step > 0 ? (mpg_digit){c->axis, done, rest} : (mpg_digit){c->axis, rest, done};
}

/* Moves the digit of a reshape's output to the second input of reshape_like, whose axes [begin,
 * end) replace axes of the first input. */
static mpg_digit digit_of_like(const mpg_sharding *s, mpg_digit out) {
  const mpg_reshape_like_params *p = s->params;
  int left = mpg_sharding_ndim(s, 0), right = mpg_sharding_ndim(s, 1);
  int to = p->lhs_begin.present ? mpg_sharding_axis(p->lhs_begin.value, left) : 0,
      begin = p->rhs_begin.present ? mpg_sharding_axis(p->rhs_begin.value, right) : 0,
      end = p->rhs_end.present ? mpg_sharding_axis(p->rhs_end.value, right) : right;
  out.axis += begin - to;
  if (out.axis < begin || out.axis >= end) out.axis = -1;
  return out;
}

/* Adds the factors that both shapes have when their axes are read in one direction: step 1 from the
 * first, -1 from the last axis. Stops at the first index that only one of the shapes has. *covered
 * is the product of the sizes of all factors, `total` its limit. */
static mpg_status refine(mpg_sharding *s, int step, int64_t total, int64_t *covered) {
  const mpg_shape *from = &s->inputs[0].shape, *to = &s->outputs[0].shape;
  bool like = s->op->id == MPG_OP_reshape_like;
  cursor a = begin_at(from, step > 0 ? 0 : from->ndim - 1, step),
         b = begin_at(to, step > 0 ? 0 : to->ndim - 1, step);
  while (advance(&a) && advance(&b)) {
    int64_t size = mpg_sharding_gcd(a.left, b.left);
    if (size == 1 || total / *covered % size) break;
    mpg_digit in = digit_at(&a, size), out = digit_at(&b, size),
              other = like ? digit_of_like(s, out) : (mpg_digit){-1, 1, 1};
    MPG_TRY(mpg_sharding_places(s, MPG_FACTOR_PASS, 3,
                                (mpg_place[]){{0, in}, {s->num_inputs, out}, {1, other}}));
    *covered *= size;
    bool fits = size == a.left || size == b.left;
    a.left /= size;
    b.left /= size;
    if (!fits) break;
  }
  return MPG_OK;
}

static mpg_status localize_reshape(const mpg_part_call *call, void *params) {
  mpg_tuple shape = mpg_shape_tuple(&call->outputs[0].shape);
  switch ((int)call->op->id) {
    case MPG_OP_Reshape: {
      mpg_reshape_params *p = params;
      p->shape = shape;
      p->reverse = p->keep_highest = false;
      p->target_shape = (mpg_tuple){0};
      break;
    }
    case MPG_OP__reshape_numpy: ((mpg_newshape_params *)params)->newshape = shape; break;
    case MPG_OP__reshape_codes: {
      mpg_newshape_codes_params *p = params;
      p->newshape = shape;
      p->reverse = false;
      break;
    }
    case MPG_OP__reshape_exact: ((mpg_exact_shape_params *)params)->shape = shape; break;
    case MPG_OP_squeeze: { /* a part with one index must keep the axis */
      mpg_squeeze_params *p = params;
      const mpg_shape *whole = &call->whole_inputs[0].shape;
      if (p->axis.count >= 0) break;
      p->axis = (mpg_tuple){0};
      for (int i = 0; i < whole->ndim; i++)
        if (whole->dims[i] == 1) p->axis.values[p->axis.count++] = i;
      break;
    }
  }
  return MPG_OK;
}

/* The factors are the common refinement of the two shapes: (6, 4) and (2, 3, 4) have 2, 3 and 4. */
mpg_status mpg_sharding_reshape(mpg_sharding *s) {
  int64_t total = mpg_shape_size(&s->inputs[0].shape), covered = 1;
  s->localize = localize_reshape;
  if (total < 2) return MPG_OK;
  MPG_TRY(refine(s, 1, total, &covered));
  return covered < total ? refine(s, -1, total, &covered) : MPG_OK;
}

/* --- Slices ----------------------------------------------------------------------------------- */

/* Adds the factor of an axis from which `count` outputs take ranges of equal step 1. If the bounds
 * of all ranges are multiples of a block size, each part has the same part of each block. Output k
 * has the axis at position `at`. */
static mpg_status blocks(mpg_sharding *s, int axis, int at, int64_t block) {
  if (block < 2) return MPG_OK;
  mpg_factor *factor = mpg_sharding_add(s, MPG_FACTOR_PASS, block);
  if (!factor) return mpg_out_of_host_memory(sizeof *factor);
  factor->digits[0] = (mpg_digit){axis, mpg_sharding_dim(s, 0, axis) / block, 1};
  for (int k = 0; k < s->num_outputs; k++)
    factor->digits[s->num_inputs + k] = (mpg_digit){at, s->outputs[k].shape.dims[at] / block, 1};
  return MPG_OK;
}

static int64_t block_of(int64_t size, int64_t begin, int64_t count) {
  return count ? mpg_sharding_gcd(mpg_sharding_gcd(size, begin), count) : 0;
}

static mpg_status localize_slice(const mpg_part_call *call, void *params) {
  mpg_slice_params *p = params;
  const mpg_shape *whole = &call->whole_inputs[0].shape;
  mpg_region region;
  MPG_TRY(mpg_region_make(call->op->name, whole, &p->begin, &p->end, &p->step, &region));
  for (int i = 0; i < p->begin.count; i++) {
    if (call->inputs[0].shape.dims[i] == whole->dims[i]) continue;
    p->begin.values[i] = mpg_part_index(call, 0, i, region.start[i]);
    p->end.values[i] = mpg_part_index(call, 0, i, region.start[i] + region.shape.dims[i]);
  }
  return MPG_OK;
}

mpg_status mpg_sharding_slice(mpg_sharding *s) {
  PARAMS(slice);
  const mpg_shape *shape = &s->inputs[0].shape;
  mpg_region region;
  MPG_TRY(mpg_region_make(s->op->name, shape, &p->begin, &p->end, &p->step, &region));
  s->localize = localize_slice;
  for (int i = 0; i < shape->ndim; i++)
    if (i >= p->step.count || p->step.values[i] == MPG_TUPLE_NONE || p->step.values[i] == 1)
      MPG_TRY(blocks(s, i, i, block_of(shape->dims[i], region.start[i], region.shape.dims[i])));
  return MPG_OK;
}

static mpg_status localize_slice_axis(const mpg_part_call *call, void *params) {
  mpg_slice_axis_params *p = params;
  int axis = mpg_sharding_axis(p->axis, call->inputs[0].shape.ndim);
  p->begin = mpg_part_index(call, 0, axis, p->begin);
  if (p->end.present) p->end.value = mpg_part_index(call, 0, axis, p->end.value);
  return MPG_OK;
}

mpg_status mpg_sharding_slice_axis(mpg_sharding *s) {
  PARAMS(slice_axis);
  const mpg_shape *shape = &s->inputs[0].shape;
  mpg_region region;
  MPG_TRY(mpg_region_axis(s->op->name, shape, p->axis, p->begin, &p->end, &region));
  s->localize = localize_slice_axis;
  for (int i = 0; i < shape->ndim; i++)
    MPG_TRY(blocks(s, i, i, block_of(shape->dims[i], region.start[i], region.shape.dims[i])));
  return MPG_OK;
}

/* Rule for splits along `axis` into ranges that begin at multiples of `block`. */
static mpg_status split(mpg_sharding *s, int axis, bool squeeze, int64_t block) {
  for (int i = 0; i < mpg_sharding_ndim(s, 0); i++)
    if (i != axis) MPG_TRY(blocks(s, i, i - (squeeze && axis < i), mpg_sharding_dim(s, 0, i)));
  return squeeze ? MPG_OK : blocks(s, axis, axis, block);
}

mpg_status mpg_sharding_split(mpg_sharding *s) {
  PARAMS(split);
  int axis = mpg_sharding_axis(p->axis, mpg_sharding_ndim(s, 0));
  return split(s, axis, p->squeeze_axis, mpg_sharding_dim(s, 0, axis) / p->num_outputs);
}

static mpg_status localize_split_v2(const mpg_part_call *call, void *params) {
  mpg_split_v2_params *p = params;
  int axis = mpg_sharding_axis(p->axis, call->inputs[0].shape.ndim);
  for (int i = 0; i < p->indices.count; i++)
    if (p->indices.values[i] != MPG_TUPLE_NONE)
      p->indices.values[i] = mpg_part_index(call, 0, axis, p->indices.values[i]);
  return MPG_OK;
}

mpg_status mpg_sharding_split_v2(mpg_sharding *s) {
  PARAMS(split_v2);
  int axis = mpg_sharding_axis(p->axis, mpg_sharding_ndim(s, 0));
  int64_t size = mpg_sharding_dim(s, 0, axis), block = size;
  s->localize = localize_split_v2;
  for (int k = 0; k < s->num_outputs; k++) {
    int64_t begin = 0, end = 0;
    MPG_TRY(mpg_split_part(p, size, k, &begin, &end));
    block = mpg_sharding_gcd(mpg_sharding_gcd(block, begin), end);
  }
  return split(s, axis, p->squeeze_axis, block);
}

/* --- Concatenation ---------------------------------------------------------------------------- */

/* Adds the factor of an axis that all inputs have, which is axis `at` of the output. */
static mpg_status shared(mpg_sharding *s, int axis, int at, int64_t block) {
  if (block < 2) return MPG_OK;
  mpg_factor *factor = mpg_sharding_add(s, MPG_FACTOR_PASS, block);
  if (!factor) return mpg_out_of_host_memory(sizeof *factor);
  for (int i = 0; i < s->num_inputs; i++)
    factor->digits[i] = (mpg_digit){axis, mpg_sharding_dim(s, i, axis) / block, 1};
  factor->digits[s->num_inputs] = (mpg_digit){at, s->outputs[0].shape.dims[at] / block, 1};
  return MPG_OK;
}

/* Along the joined axis, each part has the same part of each block. The sizes of all inputs are
 * multiples of the block. */
mpg_status mpg_sharding_concat(mpg_sharding *s) {
  PARAMS(concat);
  int ndim = s->outputs[0].shape.ndim, axis = mpg_sharding_axis(p->dim, ndim);
  int64_t block = 0;
  for (int i = 0; i < s->num_inputs; i++) {
    if (!mpg_shape_size(&s->inputs[i].shape)) return MPG_OK;
    block = mpg_sharding_gcd(mpg_sharding_dim(s, i, axis), block);
  }
  for (int i = 0; i < ndim; i++)
    MPG_TRY(shared(s, i, i, i == axis ? block : s->outputs[0].shape.dims[i]));
  return MPG_OK;
}

mpg_status mpg_sharding_stack(mpg_sharding *s) {
  PARAMS(stack);
  int axis = mpg_sharding_axis(p->axis, s->outputs[0].shape.ndim);
  for (int i = 0; i < mpg_sharding_ndim(s, 0); i++)
    MPG_TRY(shared(s, i, i + (axis <= i), mpg_sharding_dim(s, 0, i)));
  return MPG_OK;
}

/* --- Indices along an axis ---------------------------------------------------------------------
 */

mpg_status mpg_sharding_along(mpg_sharding *s) {
  PARAMS(along);
  int ndim = mpg_sharding_ndim(s, 0), axis = mpg_sharding_axis(p->axis, ndim);
  for (int i = 0; i < ndim; i++)
    if (i != axis)
      MPG_TRY(MPG_FACTOR(s, PASS, mpg_in_axis(0, i), mpg_in_axis(1, i), mpg_out_axis(s, 0, i)));
  return MPG_OK;
}

/* --- Repetition and creation ------------------------------------------------------------------ */

/* Sets the parameter `shape` to the shape of the part's output. */
static mpg_status localize_shape(const mpg_part_call *call, void *params) {
  const mpg_param_table *table = call->op->params;
  int index = mpg_params_find(table, "shape");
  mpg_tuple shape = mpg_shape_tuple(&call->outputs[0].shape);
  memcpy((char *)params + table->params[index].offset, &shape, sizeof shape);
  return MPG_OK;
}

mpg_status mpg_sharding_creation(mpg_sharding *s) {
  s->localize = localize_shape;
  for (int i = 0; i < s->outputs[0].shape.ndim; i++)
    MPG_TRY(MPG_FACTOR(s, PASS, mpg_out_axis(s, 0, i)));
  if (mpg_sharding_draws(s)) mpg_sharding_set_counts(s);
  return MPG_OK;
}

static mpg_status localize_broadcast_axis(const mpg_part_call *call, void *params) {
  mpg_broadcast_axis_params *p = params;
  const mpg_shape *shape = &call->outputs[0].shape;
  for (int i = 0; i < p->axis.count; i++)
    p->size.values[i] = shape->dims[mpg_sharding_axis(p->axis.values[i], shape->ndim)];
  return MPG_OK;
}

/* True if output axis `axis` repeats input 0, whose axes are aligned at the last axis. Otherwise,
 * sets *own to the input's axis. */
static bool is_repeated(const mpg_sharding *s, int axis, int *own) {
  *own = axis - s->outputs[0].shape.ndim + mpg_sharding_ndim(s, 0);
  return *own < 0 || mpg_sharding_dim(s, 0, *own) != s->outputs[0].shape.dims[axis];
}

mpg_status mpg_sharding_broadcast_to(mpg_sharding *s) {
  s->localize = s->op->id == MPG_OP_broadcast_axis ? localize_broadcast_axis : localize_shape;
  for (int i = 0; i < s->outputs[0].shape.ndim; i++) {
    int own;
    bool repeated = is_repeated(s, i, &own);
    MPG_TRY(
        MPG_FACTOR(s, PASS, mpg_out_axis(s, 0, i), mpg_place_if(!repeated, mpg_in_axis(0, own))));
  }
  return MPG_OK;
}

mpg_status mpg_sharding_broadcast_like(mpg_sharding *s) {
  PARAMS(broadcast_like);
  int ndim = s->outputs[0].shape.ndim, right = mpg_sharding_ndim(s, 1);
  for (int i = 0; i < ndim; i++) {
    int own, like = p->lhs_axes.count < 0 ? i - ndim + right : -1;
    bool repeated = is_repeated(s, i, &own);
    for (int k = 0; k < p->lhs_axes.count; k++)
      if (mpg_sharding_axis(p->lhs_axes.values[k], ndim) == i)
        like = mpg_sharding_axis(p->rhs_axes.values[k], right);
    MPG_TRY(MPG_FACTOR(s, PASS, mpg_out_axis(s, 0, i), mpg_place_if(!repeated, mpg_in_axis(0, own)),
                       mpg_in_axis(1, like)));
  }
  return MPG_OK;
}

static mpg_status localize_tile(const mpg_part_call *call, void *params) {
  mpg_tile_params *p = params;
  const mpg_shape *in = &call->inputs[0].shape, *out = &call->outputs[0].shape;
  mpg_tuple reps = {.count = out->ndim};
  for (int i = 0; i < out->ndim; i++) {
    int own = i - out->ndim + in->ndim;
    reps.values[i] = out->dims[i] / (own >= 0 ? in->dims[own] : 1);
  }
  p->reps = reps;
  return MPG_OK;
}

/* Both the elements of an axis and its repetitions are factors. */
mpg_status mpg_sharding_tile(mpg_sharding *s) {
  const mpg_shape *in = &s->inputs[0].shape, *out = &s->outputs[0].shape;
  s->localize = localize_tile;
  if (!mpg_shape_size(out)) return MPG_OK;
  for (int i = 0; i < out->ndim; i++) {
    int own = i - out->ndim + in->ndim;
    int64_t size = own >= 0 ? in->dims[own] : 1;
    MPG_TRY(MPG_FACTOR(s, PASS, mpg_out_digit(s, 0, i, 1, size)));
    MPG_TRY(MPG_FACTOR(s, PASS, mpg_out_digit(s, 0, i, out->dims[i] / size, 1),
                       mpg_place_if(own >= 0, mpg_in_axis(0, own))));
  }
  return MPG_OK;
}
