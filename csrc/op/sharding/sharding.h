/* Sharding rules of ops: how an op may be divided over devices.
 *
 * The rule of an op lists its factors. A factor is an index that several of the op's arrays share,
 * such as i, j and k of a product (i, k), (k, j) -> (i, j). If a factor is cut into parts, each
 * device computes the op on its parts of the arrays that have the factor, and on the whole of the
 * others. The kind of the factor says what the outputs without the factor then are: equal
 * everywhere, or partial sums. An axis that belongs to no factor must not be cut.
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
  /* The values depend on the position of the part in the whole: random draws, counting. The caller
   * passes the position to the op (mpg_random_key). */
  bool counts;
  int64_t size;
  mpg_digit *digits; /* per input, then per output */
} mpg_factor;

/* A call on parts of the arrays. */
typedef struct mpg_part_call {
  const mpg_op *op;
  int num_inputs, num_outputs;
  const mpg_desc *whole_inputs, *whole_outputs;
  const mpg_desc *inputs, *outputs; /* descs of the parts */
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
 * are left out. */
mpg_status mpg_op_sharding(mpg_sharding *s);

/* Fills `params` (op->params->size bytes) with the parameters of a call on parts. Fails if the op,
 * called with them, does not compute arrays of the parts' shapes. `params` and `s->params` must not
 * overlap. */
mpg_status mpg_sharding_localize(const mpg_sharding *s, const mpg_desc *inputs,
                                 const mpg_desc *outputs, void *params);

/* --- For rules -------------------------------------------------------------------------------- */
#define MPG_OP_ROW(id, aliases, inputs, outputs, params, infer, infer_inputs, cost, gradient,      \
                   num_inputs, num_outputs, saves, flags, dtypes, batching, sharding, kernel, doc) \
  mpg_status mpg_sharding_##sharding(mpg_sharding *s);
#include "op/ops.def"
#undef MPG_OP_ROW

/* The factors that the batching rule accepts: each axis of each input is tried as the batch. */
mpg_status mpg_sharding_from_batching(mpg_sharding *s);
mpg_status mpg_sharding_whole(mpg_sharding *s); /* no factors */

/* Adds a factor that no array has yet. Returns NULL if there is no memory. */
mpg_factor *mpg_sharding_add(mpg_sharding *s, mpg_factor_kind kind, int64_t size);
/* Gives the factor to input `input` or output `output`, as a whole axis. */
static inline void mpg_factor_in(mpg_factor *factor, int input, int axis) {
  factor->digits[input] = (mpg_digit){axis, 1, 1};
}
static inline void mpg_factor_out(const mpg_sharding *s, mpg_factor *factor, int output, int axis) {
  factor->digits[s->num_inputs + output] = (mpg_digit){axis, 1, 1};
}

#endif
