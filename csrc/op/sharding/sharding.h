/* Sharding rules of ops: how an op may be divided over devices.
 *
 * The rule of an op lists its factors. A factor is an index that several of the op's arrays share,
 * such as i, j and k of a product (i, k), (k, j) -> (i, j). If a factor is cut into parts, each
 * device computes the op on its parts of the arrays that have the factor, and on the whole of the
 * others. Outputs without the factor then are equal everywhere or partial sums, which the kind of
 * the factor says. An axis that belongs to no factor must not be cut.
 *
 * In an array, a factor covers a digit of an axis: the axis has outer * size * inner elements, and
 * element i belongs to index i / inner % size of the factor. So reshapes, which merge and split
 * axes, have factors as well.
 *
 * Rules read only descs and parameters; nothing runs. Factors belong to the arena of the request.
 * These functions may be called from any thread.
 *
 * Source of the idea: the Shardy partitioner (https://openxla.org/shardy). */
#ifndef MPG_OP_SHARDING_SHARDING_H
#define MPG_OP_SHARDING_SHARDING_H

#include "base/memory.h"
#include "op/op.h"

typedef enum mpg_factor_kind {
  MPG_FACTOR_PASS, /* outputs without the factor are the same on every device */
  MPG_FACTOR_SUM,  /* outputs without the factor are partial sums */
  MPG_FACTOR_MAX,  /* ... partial maxima */
  MPG_FACTOR_MIN,
} mpg_factor_kind;

typedef struct mpg_digit {
  int axis; /* -1: the array does not have the factor */
  int64_t outer, inner;
} mpg_digit;

typedef struct mpg_factor {
  mpg_factor_kind kind;
  /* Random draws depend on the position of the part in the whole. The caller passes the position to
   * the op (mpg_random_key). */
  bool counts;
  /* Random draws: the digit of the drawn array (mpg_op_drawn_shape). axis is -1 if it is the digit
   * of output 0, or if the drawn array has another shape than output 0. */
  mpg_digit drawn;
  /* Ulysses cuts the factor `instead` (-1 if its size is 1), and moves the arrays for this call. */
  bool exchanged;
  int instead;
  /* SUM: the input that must be added only once, such as a bias, or -1. The first part gets it, and
   * the other parts get zeros. */
  int once;
  /* SUM: the input whose elements are indices along the factor, or -1. A part gets them relative to
   * its first index, and its output has zeros at the indices of other parts
   * (graph/partition/lookup.c). */
  int lookup;
  int64_t size;
  mpg_digit *digits; /* per input, then per output */
} mpg_factor;

/* A call on parts of the arrays. */
typedef struct mpg_part_call {
  const mpg_op *op;
  int num_inputs, num_outputs;
  const mpg_desc *whole_inputs, *whole_outputs;
  const mpg_desc *inputs, *outputs; /* descs of the parts */
  /* Per input, then per output, and per axis: the index of the part's first element in the whole,
   * or -1 if the part is not contiguous. NULL if unknown. */
  const mpg_shape *begins;
} mpg_part_call;

typedef struct mpg_sharding {
  const mpg_op *op;
  const void *params;
  int num_inputs, num_outputs;
  const mpg_desc *inputs, *outputs; /* descs of the whole arrays */
  bool train;
  mpg_arena *arena;
  /* Results. */
  mpg_factor *factors;
  int num_factors, capacity;
  /* Changes a copy of the parameters, which name sizes of the whole arrays, for parts. NULL if the
   * parameters name no sizes. */
  mpg_status (*localize)(const mpg_part_call *call, void *params);
} mpg_sharding;

/* Lists the factors of a call. The caller fills in the fields before the results. Factors of size 1
 * are left out. There are no factors if a shape is unknown. */
mpg_status mpg_op_sharding(mpg_sharding *s);

/* Fills `params` (op->params->size bytes) with the parameters of a call on parts, whose first
 * elements are `begins` (see mpg_part_call). Fails if the op, called with them, does not compute
 * arrays of the parts' shapes. `params` and `s->params` must not overlap. */
mpg_status mpg_sharding_localize(const mpg_sharding *s, const mpg_desc *inputs,
                                 const mpg_desc *outputs, const mpg_shape *begins, void *params);

/* True if each element of a part is computed in the same order as in the whole, so that a PASS
 * factor keeps bits. */
bool mpg_sharding_keeps_order(const mpg_sharding *s, const mpg_factor *factor);

/* --- For rules -------------------------------------------------------------------------------- */
#define MPG_OP_ROW(id, aliases, inputs, outputs, params, infer, infer_inputs, cost, gradient,      \
                   num_inputs, num_outputs, saves, flags, dtypes, batching, sharding, kernel, doc) \
  mpg_status mpg_sharding_##sharding(mpg_sharding *s);
#include "op/ops.def"
#undef MPG_OP_ROW

/* The factors that the batching rule accepts: each axis of each input is tried as the batch. */
mpg_status mpg_sharding_from_batching(mpg_sharding *s);
mpg_status mpg_sharding_whole(mpg_sharding *s); /* no factors */

/* A digit of an array, which is counted over inputs, then outputs. */
typedef struct mpg_place {
  int array;
  mpg_digit digit; /* axis -1 leaves the array without the factor */
} mpg_place;
static inline mpg_place mpg_in_digit(int input, int axis, int64_t outer, int64_t inner) {
  return (mpg_place){input, {axis, outer, inner}};
}
static inline mpg_place mpg_out_digit(const mpg_sharding *s, int output, int axis, int64_t outer,
                                      int64_t inner) {
  return (mpg_place){s->num_inputs + output, {axis, outer, inner}};
}
static inline mpg_place mpg_in_axis(int input, int axis) { return mpg_in_digit(input, axis, 1, 1); }
static inline mpg_place mpg_out_axis(const mpg_sharding *s, int output, int axis) {
  return mpg_out_digit(s, output, axis, 1, 1);
}
/* A place for an optional array; it is left out if `present` is false. */
static inline mpg_place mpg_place_if(bool present, mpg_place place) {
  if (!present) place.digit.axis = -1;
  return place;
}

/* Adds a factor of `size` indices, without digits. Returns NULL if out of memory. */
mpg_factor *mpg_sharding_add(mpg_sharding *s, mpg_factor_kind kind, int64_t size);
/* Adds a factor with digits at `count` places. The first place determines its size. */
mpg_status mpg_sharding_places(mpg_sharding *s, mpg_factor_kind kind, int count,
                               const mpg_place *places);
/* mpg_sharding_places for a list of places. */
#define MPG_FACTOR(s, kind, ...)                                                     \
  mpg_sharding_places(s, MPG_FACTOR_##kind,                                          \
                      (int)(sizeof((mpg_place[]){__VA_ARGS__}) / sizeof(mpg_place)), \
                      (mpg_place[]){__VA_ARGS__})
/* Sets `once` of the factor that was added last. */
static inline void mpg_sharding_set_once(mpg_sharding *s, int input) {
  s->factors[s->num_factors - 1].once = input;
}
/* Adds the factor of an axis of input `from` whose elements input `indices` selects. */
mpg_status mpg_sharding_lookup(mpg_sharding *s, int from, int axis, int indices);
/* Sets `counts` of all factors. */
void mpg_sharding_set_counts(mpg_sharding *s);
/* True if the call draws random numbers. */
bool mpg_sharding_draws(const mpg_sharding *s);

static inline int mpg_sharding_ndim(const mpg_sharding *s, int input) {
  return s->inputs[input].shape.ndim;
}
static inline int64_t mpg_sharding_dim(const mpg_sharding *s, int input, int axis) {
  return s->inputs[input].shape.dims[axis];
}
static inline int mpg_sharding_axis(int64_t axis, int ndim) {
  return (int)(axis < 0 ? axis + ndim : axis);
}
int64_t mpg_sharding_gcd(int64_t a, int64_t b);
/* Sets *begin to the index of the first element of a part along an axis of an array (counted over
 * inputs, then outputs), for ops that count positions. Fails if the part is not contiguous. */
mpg_status mpg_part_first(const mpg_part_call *call, int array, int axis, int64_t *begin);
/* Scales an index along an axis of an input from the whole array to the part. */
static inline int64_t mpg_part_index(const mpg_part_call *call, int input, int axis, int64_t i) {
  int64_t whole = call->whole_inputs[input].shape.dims[axis];
  return whole ? i * call->inputs[input].shape.dims[axis] / whole : i;
}

#endif
