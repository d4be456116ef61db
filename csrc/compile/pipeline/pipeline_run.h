/* Pipeline runs: one compiled function called on all micro-batches of a batch (or on the chunks of
 * a sequence), with many of these calls in flight at once.
 *
 * Each micro-batch is a compiled call with stages (mpg_compile_options.stages). The driver of a run
 * decides the order in which the segments of all micro-batches are queued: this order is the
 * pipeline's schedule. An input is shared by all micro-batches (a parameter), split along its first
 * axis, or carried: micro-batch k gets an output of micro-batch k - 1. An output is split (each
 * micro-batch writes its rows of one array) or carried (that of the last micro-batch is the
 * result). The gradient of a shared input is the sum over the micro-batches, added in the order of
 * the backward pass: from the first to the last, or from the last to the first where something is
 * carried. So the bits depend neither on the schedule nor on the placement.
 *
 * A block of memory is taken when the first segment that uses it is queued and given back behind
 * the last one. A lane (an array that one device pushes to another) stays with the run until the
 * run is finished. Micro-batches reuse the lanes, the oldest first, which makes the sender wait
 * least.
 *
 * Failures. If queueing fails, the work that was queued before still runs to its end, and its
 * memory is freed with the run. Work that fails later fails the work that needs its results, in all
 * micro-batches. The error is raised where a result is waited for, and names stage and micro-batch.
 *
 * Ownership: a run is counted; the tape holds a reference. Threads: host lock.
 */
#ifndef MPG_COMPILE_PIPELINE_RUN_H
#define MPG_COMPILE_PIPELINE_RUN_H

#include "compile/call_state.h"
#include "compile/pipeline/pipeline_memory.h"
#include "op/batching/batching.h"

typedef struct mpg_micro_batch {
  mpg_call_state state; /* blocks: of both phases; saved: of a recorded run, else NULL; owned */
  mpg_rows rows;
  mpg_tensor *externals; /* owned references */
  mpg_block_uses uses;
  uint32_t num_blocks;
  mpg_compiled_backward *backward; /* borrowed from compiled */
  mpg_staged_call staged_calls[2]; /* by phase; kept for their times */
} mpg_micro_batch;

typedef struct mpg_pipeline_run {
  int32_t references, watchers; /* watchers keep the times only */
  uint32_t num_micro_batches, num_inputs, num_outputs;
  mpg_micro_batch *micro_batches;
  uint8_t *input_kinds, *output_kinds; /* mpg_batch_kind: SAME, DIVIDED or STATE */
  uint32_t *carried_from;              /* per carried input: the output of the micro-batch before */
  mpg_array *inputs;                   /* owned */
  mpg_tensor *outputs;                 /* owned references; whole arrays */
  mpg_spare_lanes spares; /* lanes that no queued micro-batch needs any more; owned references */
  mpg_random_key random;
  bool *missed;   /* per input: mpg_pipeline_run_train found that nothing leads to it; owned */
  bool trains;    /* mpg_pipeline_run_train has prepared a backward that is not queued yet */
  bool downwards; /* backward goes from the last micro-batch to the first */
  bool recording; /* memory stays for a backward to come */
  bool retain;
  bool finished;
  const struct mpg_pipeline_run_schedule *schedule; /* of a recorded run */
  void *driver;                                     /* the schedule's own; owned */
  uint32_t scope, origin;
} mpg_pipeline_run;

typedef struct mpg_pipeline_run_request {
  uint32_t num_micro_batches, num_inputs, num_outputs;
  mpg_compiled *const *compiled; /* per micro-batch */
  const mpg_rows *rows;          /* per micro-batch, for random numbers */
  const uint8_t *input_kinds, *output_kinds;
  const uint32_t *carried_from;
  mpg_array *const *inputs; /* whole */
} mpg_pipeline_run_request;

/* Checks that the function computes on micro-batches what it computes on the whole batch
 * (graph/schedule/micro_batching.h). The check also finds where the rows of a micro-batch lie in
 * each random draw, so that they get the numbers that they have in the whole batch. Without a check
 * the rows are taken to lie along `axis` of arrays that have as many. */
typedef struct mpg_micro_batch_check {
  const uint8_t *input_kinds, *output_kinds; /* as in the request */
  int64_t rows;                              /* of the micro-batch it was compiled for */
  int axis; /* the divided axis of arrays that the function creates */
  bool along_time, whole_statistics;
  const mpg_compiled *other; /* the same function for other_rows rows; NULL: nothing to compare */
  int64_t other_rows;
} mpg_micro_batch_check;
mpg_status mpg_pipeline_run_check(mpg_compiled *compiled, const mpg_micro_batch_check *check);

/* New, with its outputs allocated and nothing queued. Checks that the shapes of the micro-batches
 * fit the inputs. */
mpg_status mpg_pipeline_run_new(const mpg_pipeline_run_request *request, mpg_pipeline_run **run);
void mpg_pipeline_run_release(mpg_pipeline_run *run);
void mpg_pipeline_run_unwatch(mpg_pipeline_run *run); /* gives one of its watchers up */

/* Prepares the backward of all micro-batches: heads[i] is the gradient of output i (NULL: none
 * arrives). targets[i] says where the gradient of input i goes (tensor without storage: nowhere
 * yet), needed[i] whether it is wanted. results[i] (empty structs) receives what has no target.
 * After it, items of the backward phase can be queued. */
mpg_status mpg_pipeline_run_differentiate(mpg_pipeline_run *run, mpg_array *const *heads,
                                          const bool *needed, mpg_target *targets,
                                          mpg_array *results, bool retain, bool train);
/* Queues items in that order; after mpg_pipeline_run_train, all of the backward's with one call. */
mpg_status mpg_pipeline_run_submit(mpg_pipeline_run *run, const mpg_micro_batch_item *items,
                                   size_t count);
/* Computes the peak bytes of the blocks of all micro-batches on each device if items are queued in
 * this order. `keep`: no block is released, because a backward follows. */
mpg_status mpg_pipeline_run_peaks(const mpg_pipeline_run *run, const mpg_micro_batch_item *items,
                                  size_t count, bool keep, mpg_peaks *peaks);
/* Called when all is queued: releases memory and references (the times stay). */
void mpg_pipeline_run_finish(mpg_pipeline_run *run);
/* Prepares the backward for the variables among the inputs; their gradients go where autograd would
 * put them. */
mpg_status mpg_pipeline_run_train(mpg_pipeline_run *run, mpg_array *const *heads, bool train);

/* The driver of a recorded run's backward: `backward` is called when it has been prepared, and
 * queues all its items. */
typedef struct mpg_pipeline_run_schedule {
  mpg_status (*backward)(mpg_pipeline_run *run, void *driver);
  void (*release)(void *driver);
} mpg_pipeline_run_schedule;
/* Puts the run on the tape as one call. Takes over the driver, also on failure. outputs:
 * num_outputs arrays that hold the run's outputs. */
mpg_status mpg_pipeline_run_record(mpg_pipeline_run *run, const mpg_pipeline_run_schedule *schedule,
                                   void *driver, mpg_array *outputs);

/* --- For the files of pipeline runs ----------------------------------------------------------- */
static inline const mpg_program_set *mpg_micro_batch_programs(const mpg_micro_batch *micro_batch,
                                                              mpg_phase phase) {
  return phase == MPG_PHASE_FORWARD ? micro_batch->state.compiled->programs
                                    : micro_batch->backward->programs;
}
static inline const mpg_desc *mpg_micro_batch_output(const mpg_micro_batch *micro_batch,
                                                     uint32_t i) {
  return &micro_batch->state.compiled->outputs[i].desc;
}
static inline const mpg_graph_value *mpg_micro_batch_input(const mpg_micro_batch *micro_batch,
                                                           uint32_t i) {
  return mpg_graph_at(&micro_batch->state.compiled->graph, micro_batch->state.compiled->inputs[i]);
}
static inline int64_t mpg_micro_batch_rows(const mpg_desc *desc) {
  return desc->shape.ndim ? desc->shape.dims[0] : 1;
}
/* The rows of `whole` from *row on that have this desc; moves *row behind them. what, i: for the
 * error where there are too few. */
mpg_status mpg_micro_batch_slice(const mpg_tensor *whole, const mpg_desc *desc, int64_t *row,
                                 const char *what, uint32_t i, mpg_tensor *result);
/* Begins the staged call of a phase. */
mpg_status mpg_micro_batch_begin(const mpg_pipeline_run *run, mpg_micro_batch *micro_batch,
                                 mpg_phase phase);
/* partial_gradients.c. Marks gradients that are sums over some micro-batches only, because queueing
 * failed in the middle. Reading them fails with this thread's current error text, until they are
 * written again. Host lock. */
void mpg_fail_partial_gradients(const mpg_pipeline_run *run, const mpg_micro_batch_item *items,
                                size_t count, mpg_status status);

#endif
