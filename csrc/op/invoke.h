/* Eager execution of one op: checks, inference, allocation and dependencies, then execution on this
 * thread (small work on an idle device) or queuing. Other threads may run while mpg_invoke waits or
 * determines the user's source line, so the caller must hold references to the storages that it
 * passes. Threads: callers hold the host lock.
 */
#ifndef MPG_OP_INVOKE_H
#define MPG_OP_INVOKE_H

#include "op/kernel.h"
#include "tensor/tensor.h"

typedef struct mpg_invocation {
  const mpg_op *op;
  const void *params; /* NULL for ops without parameters */
  int num_inputs;
  mpg_tensor *inputs; /* borrowed; mutable inputs are written */
  int num_outputs;    /* as returned by mpg_op_num_outputs, so hidden outputs are included */
  /* If the storage is NULL on entry, a new output is allocated. Otherwise it is the array to write,
   * whose shape and dtype must match. */
  mpg_tensor *outputs;
  bool separate; /* true if outputs get their own memory, even those of VIEW ops */
  bool train;
  const mpg_random_key *random; /* if NULL, a RANDOM op takes the next call number */
  uint32_t scope;               /* block path of the call (mpg_scope_text) */
  uint32_t origin;              /* source line of the user; if 0, it is determined when needed */
  bool backward;                /* true in a backward pass; for the profiler */
  /* Step numbers of the enclosing loops, encoded as in mpg_submission. */
  uint64_t steps;
  mpg_device *device; /* target of CREATES and COPY ops; otherwise NULL */
} mpg_invocation;

/* Runs an op. On failure, output storages that were NULL on entry are NULL. */
mpg_status mpg_invoke(mpg_invocation *invocation);

/* Same as mpg_invoke, for an op whose arrays are on several devices (spanning.c). */
mpg_status mpg_invoke_spanning(mpg_invocation *invocation);

/* Largest total of input and output elements for which running an op inline is cheaper than handing
 * it to the worker. */
enum { MPG_INLINE_ELEMENTS = 16384 };

/* The random state consists of a seed and a counter of calls. mx.random.seed sets the seed and
 * resets the counter. */
void mpg_random_seed(uint64_t seed);
/* Reserves `calls` call numbers; key.call is the first. */
mpg_random_key mpg_random_next(uint64_t calls);
/* True if a call of the op draws random numbers. An op that draws only in training reserves no
 * call number in prediction, so predictions don't advance the random stream. */
bool mpg_op_draws(const mpg_op *op, const void *params, bool train);
mpg_random_key mpg_random_state(void);
void mpg_random_restore(mpg_random_key state);

#endif
