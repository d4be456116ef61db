/* Loops over compiled bodies: all steps in one call of the core, each a compiled call, on the tape one by one where recording.
 *
 * A body is a compiled function with the places of its inputs and results. Slots of a step: a slice of each data array, the states, what the
 * body captures. Its results are outputs, one row of the loop's each, then the states of the next step.
 *
 * Ownership: everything is borrowed but the results. Threads: host lock, which is given up where a step waits.
 */
#ifndef MPG_AUTOGRAD_LOOP_H
#define MPG_AUTOGRAD_LOOP_H

#include "autograd/autograd.h"

typedef struct mpg_loop_body {
  /* Calls the function: outputs are empty structs. Whoever fails says why. */
  mpg_status (*call)(void *function, mpg_array *const *inputs, uint32_t num_inputs, mpg_array *outputs, uint32_t num_outputs);
  void *function;
  const uint32_t *inputs; /* the slot of each of its inputs */
  uint32_t num_inputs, num_outputs;
  const int32_t *results; /* per result: an output of the function, or ~slot */
  uint32_t num_results;
  mpg_array *const *captures;
  uint32_t num_captures;
} mpg_loop_body;

typedef struct mpg_loop {
  const char *name;             /* for errors */
  mpg_loop_body step, condition; /* the condition's one result says whether there is another step; function NULL: none */
  mpg_array *const *data, *const *states;
  uint32_t num_data, num_states;
  int64_t limit;                /* number of steps; with a condition, at most */
} mpg_loop;

/* results: empty structs; the stacked outputs (left empty when there was no step), then the last states. */
mpg_status mpg_loop_run(const mpg_loop *loop, mpg_array *results, int64_t *steps);

#endif
