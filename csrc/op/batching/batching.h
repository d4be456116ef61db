/* Batching rules of ops, which check that micro-batches give the same results as the whole batch.
 *
 * A pipeline runs a block on parts of a batch. The result equals that of the whole batch if every
 * op processes each row independently. The rule of an op receives the batch axis of the op's inputs
 * and determines the batch axis of its outputs. It fails if rows of different micro-batches would
 * be combined. Rules read only descs and parameters; nothing runs.
 *
 * If `along_time`, the pipeline divides sequences into chunks of time steps instead, and passes the
 * state of recurrent layers from chunk to chunk.
 *
 * The batch may be a part of an axis, because reshapes may merge the batch axis with adjacent axes
 * and later split it off. A merged axis has outer * rows * inner elements, and its element i
 * belongs to row i / inner % rows. Elementwise ops have the rule `pointwise`. Ops with the rule
 * `unknown` cannot take a divided input.
 *
 * The rules of a family are in one file. These functions may be called from any thread.
 */
#ifndef MPG_OP_BATCHING_BATCHING_H
#define MPG_OP_BATCHING_BATCHING_H

#include "op/op.h"

typedef enum mpg_batch_kind {
  MPG_BATCH_SAME,    /* equal in every micro-batch, such as parameters and constants */
  MPG_BATCH_DIVIDED, /* the micro-batch's rows of a larger array */
  MPG_BATCH_STATE,   /* along time: depends on the state of the previous chunk */
  /* The remaining kinds occur only inside a block, not among its inputs and results. */
  MPG_BATCH_FREE, /* all elements are equal or random, so usable as DIVIDED or SAME */
  /* Along time: computed from one chunk only; may only be used to compute a STATE. */
  MPG_BATCH_PART,
  MPG_BATCH_REPEATED, /* one value repeated for each row along `axis`: usable as DIVIDED or SAME */
  /* Tokens of the micro-batch along axis 0, in an order that depends on all of them, or the
   * description of this order (contrib.route). */
  MPG_BATCH_LOCAL,
} mpg_batch_kind;

typedef struct mpg_batch {
  mpg_batch_kind kind;
  int axis;             /* DIVIDED, REPEATED: the axis of size outer * rows * inner */
  int64_t outer, inner; /* LOCAL: `outer` of all axes of tokens as one axis; inner is 1 */
  uint32_t cause;       /* PART: the node that created the value; LOCAL: the node of the order */
} mpg_batch;

typedef struct mpg_batching {
  const mpg_op *op;
  const void *params;
  int num_inputs, num_outputs;
  const mpg_desc *inputs, *outputs; /* descs in one micro-batch */
  /* Per input; changed temporarily if inputs are FREE or REPEATED. */
  mpg_batch *in;
  mpg_batch *out;
  int64_t rows; /* number of rows in the micro-batch */
  /* Axis of the micro-batch's rows in arrays that the block creates. */
  int axis;
  bool train, along_time;
  uint32_t node; /* number of the node in the graph */
  uint32_t scope;
} mpg_batching;

/* Fills b->out. If the op combines rows of the batch, fails with an error that names the op, the
 * block and the reason. The caller handles PART and STATE inputs. */
mpg_status mpg_op_batching(mpg_batching *b);

/* --- For rules -------------------------------------------------------------------------------- */
/* Rules are called with at least one DIVIDED input. The remaining inputs are SAME or FREE. */
#define MPG_OP_ROW(id, aliases, inputs, outputs, params, infer, infer_inputs, cost, gradient,      \
                   num_inputs, num_outputs, saves, flags, dtypes, batching, sharding, kernel, doc) \
  mpg_status mpg_batching_##batching(mpg_batching *b);
#include "op/ops.def"
#undef MPG_OP_ROW

/* Fails with an error that names the op, the block and the divided input, followed by the formatted
 * reason. */
mpg_status mpg_batching_fail(const mpg_batching *b, int input, const char *format, ...)
    __attribute__((format(printf, 3, 4), cold));
mpg_status mpg_batching_fail_along(const mpg_batching *b, int input);
/* Stores the index of the only divided input in *input. Fails if several inputs are divided. */
mpg_status mpg_batching_one(const mpg_batching *b, int *input);
static inline bool mpg_batching_divided(const mpg_batching *b, int input) {
  return input < b->num_inputs && b->in[input].kind == MPG_BATCH_DIVIDED;
}
int mpg_batching_first(const mpg_batching *b); /* index of the first divided input */
/* Requires that inputs [0, count) are FREE or divided along `axis` with the same outer and inner
 * sizes, and that the remaining inputs are not divided. */
mpg_status mpg_batching_all_along(const mpg_batching *b, int count, int axis);
/* Marks an output as divided along `axis`, with the outer and inner sizes of `input`. */
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
