/* Batching rules: how micro-batches go through an op.
 *
 * A pipeline runs a block on parts of a batch. That gives what the block gives on the whole batch
 * where every op works on each row by itself. A rule says so of one op: given which axis of its
 * inputs is the batch's, it tells which axis of its outputs is, or fails where rows of different
 * micro-batches would have to meet. Rules read descs and parameters only; nothing runs.
 *
 * Along an axis of outer * rows * inner elements the batch is the middle digit: reshapes merge it
 * with its neighbours and split it off again. Ops whose elements depend on nothing but the same
 * elements of their inputs have the rule `pointwise`; ops whose rule is `unknown` can't take a
 * divided input.
 *
 * The rules of a family are in one file, batching_<family>.c. Any thread may call.
 */
#ifndef MPG_OP_BATCHING_BATCHING_H
#define MPG_OP_BATCHING_BATCHING_H

#include "op/op.h"

typedef enum mpg_batch_kind {
  MPG_BATCH_SAME,    /* the same in every micro-batch: parameters, constants */
  MPG_BATCH_DIVIDED, /* the micro-batch's rows of a larger array */
  MPG_BATCH_STATE,   /* along time: computed with the state of the chunk before */
  /* Inputs and results of a block are one of these; values inside may also be: */
  MPG_BATCH_FREE, /* all elements equal (or random): usable as rows, or as one value */
  MPG_BATCH_PART, /* along time: what a piece alone makes of its steps; fit for states only */
} mpg_batch_kind;

typedef struct mpg_batch {
  mpg_batch_kind kind;
  int axis; /* DIVIDED: size outer * rows * inner */
  int64_t outer, inner;
  uint32_t cause; /* PART: the node that made it so */
} mpg_batch;

typedef struct mpg_batching {
  const mpg_op *op;
  const void *params;
  int num_inputs, num_outputs;
  const mpg_desc *inputs, *outputs; /* of one micro-batch */
  mpg_batch *in;                    /* tried otherwise for a while, where inputs are FREE */
  mpg_batch *out;
  int64_t rows; /* of the micro-batch */
  int axis; /* of arrays that are made inside: along which they have rows for each micro-batch */
  bool train, along_time;
  uint32_t scope;
} mpg_batching;

/* Fills out[]; fails, naming op, block and reason, where the op goes across the batch. PART and
 * STATE are the caller's business. */
mpg_status mpg_op_batching(mpg_batching *b);

/* --- For rules -------------------------------------------------------------------------------- */
/* They are called where at least one input is DIVIDED, the others SAME or FREE. */
#define MPG_OP_ROW(id, aliases, inputs, outputs, params, infer, cost, gradient, num_inputs, \
                   num_outputs, saves, flags, dtypes, batching, kernel, doc)                \
  mpg_status mpg_batching_##batching(mpg_batching *b);
#include "op/ops.def"
#undef MPG_OP_ROW

/* The error. input: the divided one. */
mpg_status mpg_batching_fail(const mpg_batching *b, int input, const char *format, ...)
    __attribute__((format(printf, 3, 4), cold));
mpg_status mpg_batching_fail_along(const mpg_batching *b, int input);
/* The only divided input, in *input; fails where there are several. */
mpg_status mpg_batching_one(const mpg_batching *b, int *input);
static inline bool mpg_batching_divided(const mpg_batching *b, int input) {
  return input < b->num_inputs && b->in[input].kind == MPG_BATCH_DIVIDED;
}
int mpg_batching_first(const mpg_batching *b); /* the first input that is divided */
/* All of inputs [0, count) that are not FREE must be divided along `axis`. */
mpg_status mpg_batching_all_along(const mpg_batching *b, int count, int axis);
/* Output k: divided at `axis`, as input i is at its own. */
static inline void mpg_batching_set(mpg_batching *b, int output, int axis, int input) {
  b->out[output] = (mpg_batch){.kind = MPG_BATCH_DIVIDED,
                               .axis = axis,
                               .outer = b->in[input].outer,
                               .inner = b->in[input].inner};
}
static inline int mpg_batching_ndim(const mpg_batching *b, int input) {
  return b->inputs[input].shape.ndim;
}
static inline int mpg_batching_axis(int64_t axis, int ndim) {
  return (int)(axis < 0 ? axis + ndim : axis);
}
static inline bool mpg_batching_whole(const mpg_batch *batch) {
  return batch->outer == 1 && batch->inner == 1;
}

#endif
