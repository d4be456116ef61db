/* Routines: compiled functions combined by control flow that depends on values. Loops, branches,
 * and sequences of such calls, in each other as deep as one likes, run in one call of the core; on
 * the tape every compiled call stands by itself.
 *
 * All of them are called alike (`mpg_callee`): arrays in, arrays out. - A sequence has slots: its
 * inputs, then the results of its calls in their order. Values that no later call reads are
 * released at once. - A branch gets its condition, then what its first function takes, then the
 * second's, and calls one of them. - A loop gets data (a row of each is for one step), states, what
 * its step captures, what its condition captures. A step takes rows, states and captures, and gives
 * rows of the loop's outputs and the next states; a condition takes states and captures, and gives
 * one number.
 *
 * Work space is kept for the next call, so that steady calls allocate nothing; a routine may be
 * under way several times at once.
 *
 * Ownership: a routine owns its lists and its space; what it calls is borrowed, and outlives it.
 * Threads: host lock, which is given up where a value is waited for.
 */
#ifndef MPG_COMPILE_ROUTINE_H
#define MPG_COMPILE_ROUTINE_H

#include "autograd/autograd.h"
#include "compile/loop_rows.h"

typedef struct mpg_callee {
  /* outputs: empty structs; they stay empty on failure, and the error text is set. */
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
  uint32_t scope;   /* block path; or MPG_SCOPE_INHERITED */
  uint32_t *inputs; /* slots; owned */
  uint32_t num_inputs, num_outputs;
  uint32_t
      *dead; /* slots of results that no one reads behind it; made by mpg_sequence_finish, owned */
  uint32_t num_dead;
} mpg_sequence_call;

typedef struct mpg_sequence {
  uint32_t num_inputs, num_calls, num_results, num_slots, most_inputs;
  mpg_sequence_call *calls; /* owned */
  uint32_t *results;        /* slots; owned */
  void *space;              /* for the next call; owned */
} mpg_sequence;

typedef struct mpg_branch {
  mpg_callee first, second;
  uint32_t num_first, num_second; /* inputs */
} mpg_branch;

typedef struct mpg_loop {
  char *name;                 /* for errors; owned */
  mpg_callee step, condition; /* the condition says whether there is another step; function NULL:
                                 none, there are `limit` steps */
  uint32_t num_data, num_states, num_step_captures, num_condition_captures, num_outputs;
  int64_t limit;            /* of steps; outputs have as many rows, zeros behind the last step */
  mpg_loop_output *outputs; /* with a condition: per output; owned */
  uint32_t turns;           /* steps so far, of all calls */
  struct mpg_loop_space *space; /* for the next call; owned */
} mpg_loop;

typedef enum mpg_routine_kind { MPG_SEQUENCE, MPG_BRANCH, MPG_LOOP } mpg_routine_kind;

typedef struct mpg_routine {
  mpg_routine_kind kind;
  uint32_t num_inputs, num_outputs; /* of a call; the binding checks them */
  union {
    mpg_sequence sequence;
    mpg_branch branch;
    mpg_loop loop;
  };
} mpg_routine;

/* Finds where each slot is dead. Slots are within bounds, and no call reads the result of a later
 * one. */
mpg_status mpg_sequence_finish(mpg_sequence *sequence);
mpg_status mpg_routine_call(void *routine, mpg_array *const *inputs, uint32_t num_inputs,
                            mpg_array *outputs, uint32_t num_outputs);
void mpg_routine_clear(
    mpg_routine *routine); /* also of one that is only partly filled in, zeroed */

/* Whether an array of one number is not zero. May block. */
mpg_status mpg_routine_truth(const mpg_array *array, const char *what, bool *truth);
mpg_status mpg_loop_call(mpg_loop *loop, mpg_array *const *inputs, mpg_array *outputs); /* loop.c */
void mpg_loop_clear(mpg_loop *loop);

#endif
