/* Pieces: one compiled function called on the pieces of a batch (or of a sequence), all of them
 * in flight at once.
 *
 * A run has a piece for each micro-batch. Every piece is a compiled call with stages
 * (mpg_compile_options.stages); whoever drives the run says in which order the segments of all
 * pieces are queued, and that order is the pipeline's schedule. Inputs are shared by all pieces
 * (parameters), split along their first axis, or carried: what piece k gets is an output of piece k
 * - 1. Outputs are split likewise (each piece writes its rows of one array) or carried (the last
 * piece's counts). Gradients of shared inputs are added up piece by piece in the order in which
 * backward goes through the pieces: upwards, or downwards where something is carried. So the bits
 * do not depend on the schedule, nor on the placement.
 *
 * A block of a piece's memory is taken when the first segment that touches it is queued and given
 * back behind the last one. Lanes (arrays that one device pushes to another) stay with the run
 * until it is finished, and go from piece to piece, oldest first: who pushes waits for the least
 * then.
 *
 * Failures. What was queued before submitting fails runs to its end, and its memory goes back
 * behind it with the run. Work that fails later fails what needs its results, in all pieces, and is
 * reported where one of these is waited for, with stage and micro-batch.
 *
 * Ownership: a run is counted; the tape holds a reference. Threads: host lock.
 */
#ifndef MPG_COMPILE_PIPELINE_RUN_H
#define MPG_COMPILE_PIPELINE_RUN_H

#include "compile/call_state.h"
#include "compile/pipeline_memory.h"
#include "op/batching/batching.h"

typedef struct mpg_micro_batch {
  mpg_call_state state; /* blocks: of both phases; saved: of a recorded run, else NULL; owned */
  mpg_rows rows;
  mpg_tensor *externals; /* owned references */
  uint32_t *uses;        /* per block: segments that are still to touch it */
  uint32_t num_blocks;
  mpg_compiled_backward *backward; /* borrowed from compiled */
  mpg_staged_call staged_calls[2]; /* by phase; kept for their times */
} mpg_micro_batch;

typedef struct mpg_pipeline_run {
  int32_t references, watchers; /* watchers keep the times only */
  uint32_t num_micro_batches, num_inputs, num_outputs;
  mpg_micro_batch *pieces;
  uint8_t *input_kinds, *output_kinds; /* mpg_batch_kind: SAME, DIVIDED or STATE */
  uint32_t *carried_from;              /* per carried input: the output of the piece before */
  mpg_array *inputs;                   /* owned */
  mpg_tensor *outputs;                 /* owned references; whole arrays */
  mpg_spare_lanes spares; /* lanes that no queued piece needs any more; owned references */
  mpg_random_key random;
  bool *missed;   /* per input: mpg_pipeline_run_train found that nothing leads to it; owned */
  bool trains;    /* mpg_pipeline_run_train has prepared a backward that is not queued yet */
  bool downwards; /* backward goes from the last piece to the first */
  bool recording; /* memory stays for a backward to come */
  bool retain;
  bool finished;
  const struct mpg_pipeline_run_schedule *schedule; /* of a recorded run */
  void *driver;                                     /* the schedule's own; owned */
  uint32_t scope, origin;
} mpg_pipeline_run;

typedef struct mpg_pipeline_run_request {
  uint32_t num_micro_batches, num_inputs, num_outputs;
  mpg_compiled *const *compiled; /* per piece */
  const mpg_rows *rows;          /* per piece, for random numbers */
  const uint8_t *input_kinds, *output_kinds;
  const uint32_t *carried_from;
  mpg_array *const *inputs; /* whole */
} mpg_pipeline_run_request;

/* Whether the function does on pieces what it does on the whole (graph/schedule/micro_batching.h).
 * Where it does, what pieces draw at random is what their rows of the whole get; of functions that
 * were not checked, rows are looked for where the axis and the number say. */
typedef struct mpg_micro_batch_check {
  const uint8_t *input_kinds, *output_kinds; /* as in the request */
  int64_t rows;                              /* of the piece it was compiled for */
  int axis; /* of what it divides, among arrays that the function makes itself */
  bool along_time, whole_statistics;
  const mpg_compiled *
      other; /* the same function for another number of rows; NULL: there is none to compare with */
  int64_t other_rows;
} mpg_micro_batch_check;
mpg_status mpg_pipeline_run_check(mpg_compiled *compiled, const mpg_micro_batch_check *check);

/* New, with its outputs made; of the pieces nothing is queued. Checks that the pieces' shapes fit
 * the inputs. */
mpg_status mpg_pipeline_run_new(const mpg_pipeline_run_request *request, mpg_pipeline_run **pieces);
void mpg_pipeline_run_release(mpg_pipeline_run *pieces);
void mpg_pipeline_run_unwatch(mpg_pipeline_run *pieces); /* gives one of its watchers up */

/* Prepares the backward of all pieces: heads[i] is the gradient of output i (NULL: none arrives).
 * targets[i] says where the gradient of input i goes (tensor without storage: nowhere yet),
 * needed[i] whether it is wanted. results[i] (empty structs) receives what has no target. After it,
 * items of the backward phase can be queued. */
mpg_status mpg_pipeline_run_differentiate(mpg_pipeline_run *pieces, mpg_array *const *heads,
                                          const bool *needed, mpg_target *targets,
                                          mpg_array *results, bool retain, bool train);
/* Queues items in that order; after mpg_pipeline_run_train, all of the backward's with one call. */
mpg_status mpg_pipeline_run_submit(mpg_pipeline_run *pieces, const mpg_micro_batch_item *items,
                                   size_t count);
/* The most bytes that the blocks of all pieces take on each device, by the device's ordinal, when
 * items are queued in this order; keep: nothing is given back, as a backward is to come. */
mpg_status mpg_pipeline_run_peaks(const mpg_pipeline_run *pieces, const mpg_micro_batch_item *items,
                                  size_t count, bool keep, size_t *peaks);
/* All is queued: memory and references go back (the times stay). */
void mpg_pipeline_run_finish(mpg_pipeline_run *pieces);
/* The same for the variables among the inputs, whose gradients go where autograd would put them. */
mpg_status mpg_pipeline_run_train(mpg_pipeline_run *pieces, mpg_array *const *heads, bool train);

/* Who drives the backward of a recorded run: called when it has been prepared, queues all its
 * items. */
typedef struct mpg_pipeline_run_schedule {
  mpg_status (*backward)(mpg_pipeline_run *pieces, void *driver);
  void (*release)(void *driver);
} mpg_pipeline_run_schedule;
/* Puts the run on the tape as one call. Takes over the driver, also on failure. outputs:
 * num_outputs arrays that hold the run's outputs. */
mpg_status mpg_pipeline_run_record(mpg_pipeline_run *pieces,
                                   const mpg_pipeline_run_schedule *schedule, void *driver,
                                   mpg_array *outputs);

/* --- For the files of pipeline runs ----------------------------------------------------------- */
static inline const mpg_program_set *mpg_micro_batch_programs(const mpg_micro_batch *piece,
                                                              mpg_phase phase) {
  return phase == MPG_PHASE_FORWARD ? piece->state.compiled->programs : piece->backward->programs;
}
static inline const mpg_desc *mpg_micro_batch_output(const mpg_micro_batch *piece, uint32_t i) {
  return &piece->state.compiled->outputs[i].desc;
}
static inline const mpg_graph_value *mpg_micro_batch_input(const mpg_micro_batch *piece,
                                                           uint32_t i) {
  return mpg_graph_at(&piece->state.compiled->graph, piece->state.compiled->inputs[i]);
}
static inline int64_t mpg_micro_batch_rows(const mpg_desc *desc) {
  return desc->shape.ndim ? desc->shape.dims[0] : 1;
}
/* The rows of `whole` from *row on that have this desc; moves *row behind them. what, i: for the
 * error where there are too few. */
mpg_status mpg_micro_batch_slice(const mpg_tensor *whole, const mpg_desc *desc, int64_t *row,
                                 const char *what, uint32_t i, mpg_tensor *result);
/* Begins the staged call of a phase. */
mpg_status mpg_micro_batch_begin(const mpg_pipeline_run *run, mpg_micro_batch *piece,
                                 mpg_phase phase);
/* partial_gradients.c. Gradients to which some of the items' micro-batches are added, and others
 * never will be, as queueing failed in the middle: reading them fails, with this thread's present
 * error text, until they are written anew. Host lock. */
void mpg_fail_partial_gradients(const mpg_pipeline_run *run, const mpg_micro_batch_item *items,
                                size_t count, mpg_status status);

#endif
