/* Routines: compiled functions combined by control flow that depends on values. Loops, branches and
 * sequences, nested to any depth, run in one call to the core. On the tape, every compiled call is
 * a separate node.
 *
 * All of them have the same interface (`mpg_callee`), which maps input arrays to output arrays.
 *   - A sequence has slots: its inputs, then the results of its calls in order. Values that no
 *     later call reads are released immediately.
 *   - A branch receives its condition, the inputs of its first function, then those of the second,
 *     and calls one of the two.
 *   - A loop receives data arrays (each step gets one row of each), states, and the captures of its
 *     step and of its condition. A step takes rows, states and captures, and returns one row of
 *     each loop output and the next states. A condition takes states and captures, and returns one
 *     number.
 *
 * Scratch memory is kept for the next call, so that repeated calls allocate nothing. Calls to a
 * routine may overlap.
 *
 * Ownership: a routine owns its lists and its space; it borrows its callees, which must outlive it.
 * Threads: callers hold the host lock, which is released while waiting for a value.
 */
#ifndef MPG_COMPILE_ROUTINE_H
#define MPG_COMPILE_ROUTINE_H

#include "autograd/autograd.h"
#include "compile/loop_rows.h"

typedef struct mpg_callee {
  /* `outputs` are empty structs. On failure they stay empty and the error text is set. */
  mpg_status (*call)(void *function, mpg_array *const *inputs, uint32_t num_inputs,
                     mpg_array *outputs, uint32_t num_outputs);
  void *function;
} mpg_callee;
static inline mpg_status mpg_callee_call(const mpg_callee *callee, mpg_array *const *inputs,
                                         uint32_t num_inputs, mpg_array *outputs,
                                         uint32_t num_outputs) {
  return callee->call(callee->function, inputs, num_inputs, outputs, num_outputs);
}

enum { MPG_SCOPE_INHERITED = UINT32_MAX };

typedef struct mpg_sequence_call {
  mpg_callee callee;
  uint32_t scope;   /* block path, or MPG_SCOPE_INHERITED */
  uint32_t *inputs; /* slots; owned */
  uint32_t num_inputs, num_outputs;
  /* Slots of results that no later call reads; set by mpg_sequence_finish, owned. */
  uint32_t *dead;
  uint32_t num_dead;
} mpg_sequence_call;

typedef struct mpg_sequence {
  uint32_t num_inputs, num_calls, num_results, num_slots, most_inputs;
  mpg_sequence_call *calls; /* owned */
  uint32_t *results;        /* slots; owned */
  void *space;              /* scratch memory for the next call; owned */
} mpg_sequence;

typedef struct mpg_branch {
  mpg_callee first, second;
  uint32_t num_first, num_second; /* number of inputs of each function */
} mpg_branch;

typedef struct mpg_loop {
  char *name; /* for errors; owned */
  /* Steps run while `condition` returns nonzero, or `limit` times if condition.function is NULL. */
  mpg_callee step, condition;
  uint32_t num_data, num_states, num_step_captures, num_condition_captures, num_outputs;
  /* Largest number of steps. Outputs have `limit` rows, padded with zeros after the last step. */
  int64_t limit;
  mpg_loop_output *outputs; /* per output: its rows' shape, dtype and device; owned */
  /* Number of steps run so far, in all calls; determines when to check for Ctrl-C. */
  uint32_t turns;
  struct mpg_loop_space *space; /* scratch memory for the next call; owned */
} mpg_loop;

typedef enum mpg_routine_kind { MPG_SEQUENCE, MPG_BRANCH, MPG_LOOP } mpg_routine_kind;

typedef struct mpg_routine {
  mpg_routine_kind kind;
  uint32_t num_inputs, num_outputs; /* per call; mpg_routine_call checks them */
  union {
    mpg_sequence sequence;
    mpg_branch branch;
    mpg_loop loop;
  };
} mpg_routine;

/* Computes the call after which each slot is dead. Slots must be within bounds, and no call may
 * read the result of a later one. */
mpg_status mpg_sequence_finish(mpg_sequence *sequence);
mpg_status mpg_routine_call(void *routine, mpg_array *const *inputs, uint32_t num_inputs,
                            mpg_array *outputs, uint32_t num_outputs);
/* Accepts a zeroed or partly filled routine. */
void mpg_routine_clear(mpg_routine *routine);

/* --- Loops (loop.c) --------------------------------------------------------------------------- */
/* Sets *truth to true if the only element of an array is nonzero. May block. */
mpg_status mpg_condition_truth(const mpg_array *array, const char *what, bool *truth);
mpg_status mpg_loop_call(mpg_loop *loop, mpg_array *const *inputs, mpg_array *outputs);
void mpg_loop_clear(mpg_loop *loop);

#endif
