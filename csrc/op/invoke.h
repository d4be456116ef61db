/* Runs one op: checks, inference, allocation, dependencies, and then execution, either immediately
 * on this thread (small work on an idle device) or queued. Other threads may run while it waits or
 * asks for the user's source line, so the caller must hold references to the storages that it
 * passes. Threads: host lock.
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
  int num_outputs;    /* all outputs, including hidden ones: mpg_op_num_outputs */
  /* On entry: storage NULL to allocate a new output, otherwise the array to write, whose shape and
   * dtype must match. */
  mpg_tensor *outputs;
  bool separate; /* outputs get memory of their own, even those of VIEW ops */
  bool train;
  const mpg_random_key *random; /* NULL: a RANDOM op takes the next call number */
  uint32_t scope;               /* block path */
  uint32_t origin;              /* source line of the user; 0: determined when needed */
  bool backward;                /* part of a backward pass; for the profiler */
  uint64_t steps;               /* number of loop steps, as in a submission */
  mpg_device *device;           /* target of CREATES and COPY ops; otherwise NULL */
} mpg_invocation;

/* If it fails, outputs that were NULL are NULL again. */
mpg_status mpg_invoke(mpg_invocation *invocation);

/* Like mpg_invoke, for an op whose arrays are on several devices (spanning.c). */
mpg_status mpg_invoke_spanning(mpg_invocation *invocation);

/* Largest number of elements, inputs and outputs together, for which running inline is cheaper than
 * a hand-off to the worker. */
enum { MPG_INLINE_ELEMENTS = 16384 };

/* The random state: one seed, one counter of calls. mx.random.seed sets the seed and resets the
 * counter. */
void mpg_random_seed(uint64_t seed);
/* Reserves `calls` call numbers; key.call is the first. */
mpg_random_key mpg_random_next(uint64_t calls);
/* True if a call of the op draws random numbers. An op that draws only in training reserves none in
 * prediction, so that predictions don't advance the stream. */
bool mpg_op_draws(const mpg_op *op, const void *params, bool train);
mpg_random_key mpg_random_state(void);
void mpg_random_restore(mpg_random_key state);

#endif
