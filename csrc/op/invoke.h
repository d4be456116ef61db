/* Running one op: checks, inference, allocation, dependencies, and then either at once in this
 * thread (small work on an idle device) or queued. While it waits, or asks for the line, others may
 * run: the caller holds references to the storages it passes. Threads: host lock.
 */
#ifndef MPG_OP_INVOKE_H
#define MPG_OP_INVOKE_H

#include "op/kernel.h"
#include "tensor/tensor.h"

typedef struct mpg_invocation {
  const mpg_op *op;
  const void *params; /* NULL for ops without */
  int num_inputs;
  mpg_tensor *inputs;  /* borrowed; mutable inputs are written */
  int num_outputs;     /* all outputs, hidden ones too: mpg_op_num_outputs */
  mpg_tensor *outputs; /* in: storage NULL -> allocated here (new); else written in place (shape and
                          dtype must match) */
  bool separate;       /* outputs have memory of their own, of VIEW ops too */
  bool train;
  const mpg_random_key *random; /* NULL: the next call number is drawn (RANDOM ops) */
  uint32_t scope;               /* block path */
  uint32_t origin;              /* the host's line; 0: asked for when needed */
  bool backward;                /* of a backward pass; for the profiler */
  uint64_t steps;               /* of loops, as of a submission */
  mpg_device *device;           /* for CREATES and COPY ops: where; NULL for the rest */
} mpg_invocation;

/* On failure outputs that were NULL are NULL again. */
mpg_status mpg_invoke(mpg_invocation *invocation);

/* spanning.c: the same for an op whose arrays are on several devices. */
mpg_status mpg_invoke_spanning(mpg_invocation *invocation);

/* Arrays with at most this many elements, inputs and outputs together, are worth less than a
 * hand-over to the worker. */
enum { MPG_INLINE_ELEMENTS = 16384 };

/* The random state: one seed, one counter of calls. mx.random.seed sets the seed and resets the
 * counter. */
void mpg_random_seed(uint64_t seed);
mpg_random_key mpg_random_next(
    uint64_t calls); /* reserves `calls` numbers; key.call is the first */
/* True if a call of the op draws random numbers. An op that draws only in training reserves none in
 * prediction, so that predictions don't advance the stream. */
bool mpg_op_draws(const mpg_op *op, const void *params, bool train);
mpg_random_key mpg_random_state(void);
void mpg_random_restore(mpg_random_key state);

#endif
