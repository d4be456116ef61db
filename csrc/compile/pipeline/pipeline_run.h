/* Pipeline runs: one compiled function called on all micro-batches of a batch (or on the chunks of
 * a sequence), with many of these calls in flight at once.
 *
 * Each micro-batch is a compiled call with stages (mpg_compile_options.stages). The driver of a run
 * decides the order in which the segments of all micro-batches are queued. This order is the
 * pipeline's schedule. An input is shared by all micro-batches (a parameter), split along its first
 * axis, or carried: micro-batch k gets an output of micro-batch k - 1. An output is split (each
 * micro-batch writes its rows of one array) or carried (the result is the output of the last
 * micro-batch). The gradient of a shared input is the sum over the micro-batches, added in the
 * order of the backward pass. This order is from the first to the last micro-batch, or reversed if
 * an input is carried. Therefore results are bit-identical for every schedule and placement.
 *
 * A block of memory is taken when the first segment that uses it is queued, and released after the
 * last one. A lane (an array that one device pushes to another) stays with the run until the run is
 * finished. Micro-batches reuse the lanes, oldest first, which minimizes the sender's wait.
 *
 * Host steps. A segment may hold calls of user code (op/user/host_step.c). Once the segment is
 * queued, the submitting thread runs them, with copies of their inputs.
 *
 * Failures. If queueing fails, the work that was queued before still runs to its end, and its
 * memory is freed with the run. Work that fails later fails the work that needs its results, in all
 * micro-batches. The error is raised when the program waits for a result, and names the stage and
 * the micro-batch.
 *
 * Ownership: a run is reference-counted; the tape holds a reference. Threads: callers hold the host
 * lock.
 */
#ifndef MPG_COMPILE_PIPELINE_RUN_H
#define MPG_COMPILE_PIPELINE_RUN_H

#include "compile/call_state.h"
#include "compile/pipeline/pipeline_memory.h"
#include "op/batching/batching.h"

typedef struct mpg_micro_batch {
  /* Holds the blocks of both phases. state.saved is owned in a recorded run, otherwise NULL. */
  mpg_call_state state;
  mpg_rows rows;
  mpg_tensor *externals; /* owned references */
  mpg_block_uses uses;
  uint32_t num_blocks;
  mpg_compiled_backward *backward; /* borrowed from state.compiled */
  mpg_staged_call staged_calls[2]; /* by phase; kept for their timings */
} mpg_micro_batch;

/* A host step of one micro-batch. The code reads the inputs and writes the outputs, whose memory is
 * valid only during the call. */
typedef struct mpg_host_call {
  uint32_t micro_batch, number; /* number: index of the step in the micro-batch's trace */
  bool backward;                /* computes the gradients of the inputs of the step */
  bool retain;                  /* another backward follows */
  uint32_t num_inputs, num_outputs;
  const mpg_tensor *inputs, *outputs; /* borrowed */
} mpg_host_call;
typedef struct mpg_host_code {
  mpg_status (*run)(void *state, const mpg_host_call *call);
  void (*release)(void *state);
} mpg_host_code;

typedef struct mpg_pipeline_run {
  int32_t references, watchers; /* a watcher keeps only the timings alive */
  uint32_t num_micro_batches, num_inputs, num_outputs;
  mpg_micro_batch *micro_batches;
  uint8_t *input_kinds, *output_kinds; /* mpg_batch_kind: SAME, DIVIDED or STATE */
  uint32_t *carried_from; /* per carried input: index of the output of the previous micro-batch */
  mpg_array *inputs;      /* owned */
  mpg_tensor *outputs;    /* per output: the array of the whole run; owned references */
  mpg_spare_lanes spares; /* lanes that no queued micro-batch needs; owned references */
  mpg_random_key random;
  bool *missed;  /* per input: true if no result depends on it (mpg_pipeline_run_train); owned */
  uint64_t pass; /* number of the backward pass that mpg_pipeline_run_train prepared */
  /* True if mpg_pipeline_run_train has prepared a backward that is not yet queued. */
  bool trains;
  bool downwards; /* true if backward runs from the last micro-batch to the first */
  bool recording; /* true if memory is kept for a later backward */
  bool retain;
  bool finished;
  const mpg_host_code *host_code;                   /* NULL if the function has no host steps */
  void *host_state;                                 /* owned until the run is finished */
  const struct mpg_pipeline_run_schedule *schedule; /* recorded runs only */
  void *driver;                                     /* state of the schedule; owned */
  uint32_t scope, origin;
} mpg_pipeline_run;

typedef struct mpg_pipeline_run_request {
  uint32_t num_micro_batches, num_inputs, num_outputs;
  mpg_compiled *const *compiled; /* per micro-batch */
  /* Per micro-batch: its rows within the batch; for random numbers. */
  const mpg_rows *rows;
  const uint8_t *input_kinds, *output_kinds;
  const uint32_t *carried_from;
  mpg_array *const *inputs;       /* arrays of the whole batch */
  const mpg_host_code *host_code; /* NULL if there are no host steps */
  void *host_state;               /* the run takes ownership, even on failure */
} mpg_pipeline_run_request;

/* Checks that the function gives the same results on micro-batches as on the whole batch
 * (graph/schedule/micro_batching.h). Also determines the position of a micro-batch's rows in each
 * random draw, so that they get the same numbers as in the whole batch. Without this check, axis
 * `axis` of a drawn array is assumed to hold the rows if its size is the number of rows. */
typedef struct mpg_micro_batch_check {
  const uint8_t *input_kinds, *output_kinds; /* as in mpg_pipeline_run_request */
  int64_t rows;                              /* number of rows that `compiled` was compiled for */
  int axis; /* batch axis of the arrays that the function creates */
  bool along_time, whole_statistics;
  /* The same function compiled for other_rows rows; NULL to skip the comparison. */
  const mpg_compiled *other;
  int64_t other_rows;
} mpg_micro_batch_check;
mpg_status mpg_pipeline_run_check(mpg_compiled *compiled, const mpg_micro_batch_check *check);
/* Compares `compiled` with the same function compiled for another number of rows, to detect random
 * draws whose shape has no row axis. For these draws, all micro-batches get the same numbers.
 * Called after mpg_pipeline_run_check, if that is called. */
mpg_status mpg_pipeline_run_compare_draws(mpg_compiled *compiled, const mpg_compiled *other);

/* Creates a run with its outputs, and the gradients of its inputs, allocated and nothing queued.
 * Checks that the shapes of the micro-batches fit the inputs. */
mpg_status mpg_pipeline_run_new(const mpg_pipeline_run_request *request, mpg_pipeline_run **run);
void mpg_pipeline_run_release(mpg_pipeline_run *run);
void mpg_pipeline_run_unwatch(mpg_pipeline_run *run); /* removes a watcher */

/* Prepares the backward of all micro-batches, so that items of the backward phase can be queued.
 * heads[i] is the gradient of output i, or NULL if the output has no gradient. needed[i] is true if
 * the gradient of input i is needed, and targets[i] is its destination. If input i is carried or
 * the tensor of targets[i] has no storage, results[i] (an empty struct) receives the gradient. */
mpg_status mpg_pipeline_run_differentiate(mpg_pipeline_run *run, mpg_array *const *heads,
                                          const bool *needed, mpg_target *targets,
                                          mpg_array *results, bool retain, bool train);
/* Queues items in the given order. After mpg_pipeline_run_train, one call must queue all items of
 * the backward. */
mpg_status mpg_pipeline_run_submit(mpg_pipeline_run *run, const mpg_micro_batch_item *items,
                                   size_t count);
/* Computes, per device, the peak bytes of the blocks of all micro-batches if items are queued in
 * this order. If `keep`, no block is released, because a backward follows. */
mpg_status mpg_pipeline_run_peaks(const mpg_pipeline_run *run, const mpg_micro_batch_item *items,
                                  size_t count, bool keep, mpg_peaks *peaks);
/* Releases memory and references, but keeps the timings. Called once all items are queued. */
void mpg_pipeline_run_finish(mpg_pipeline_run *run);
/* Prepares the backward for the variables among the inputs. Their gradients are written to the same
 * arrays as by autograd. `earlier` is NULL or a run whose backward belongs to the same pass, for
 * example the run of another replica. Gradients are then added to those that the pass has already
 * written. */
mpg_status mpg_pipeline_run_train(mpg_pipeline_run *run, mpg_array *const *heads, bool train,
                                  const mpg_pipeline_run *earlier);

/* Driver of a recorded run's backward: `backward` is called once the backward is prepared, and
 * queues all its items. */
typedef struct mpg_pipeline_run_schedule {
  mpg_status (*backward)(mpg_pipeline_run *run, void *driver);
  void (*release)(void *driver);
} mpg_pipeline_run_schedule;
/* Puts the run on the tape as one call. Takes ownership of the driver, even on failure. `outputs`
 * are num_outputs arrays that hold the run's outputs. */
mpg_status mpg_pipeline_run_record(mpg_pipeline_run *run, const mpg_pipeline_run_schedule *schedule,
                                   void *driver, mpg_array *outputs);

/* --- Internal to compile/pipeline ------------------------------------------------------------- */
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
/* Sets *result to the rows of `whole` that start at *row, with the row count of `desc`, and
 * advances *row past them. `what` and `i` name the array in the error if there are too few rows. */
mpg_status mpg_micro_batch_slice(const mpg_tensor *whole, const mpg_desc *desc, int64_t *row,
                                 const char *what, uint32_t i, mpg_tensor *result);
/* Begins the staged call of a phase. */
mpg_status mpg_micro_batch_begin(const mpg_pipeline_run *run, mpg_micro_batch *micro_batch,
                                 mpg_phase phase);
/* host_steps.c. Runs the host steps of a queued segment. */
mpg_status mpg_run_host_steps(mpg_pipeline_run *run, const mpg_micro_batch_item *item);
/* partial_gradients.c. Marks as failed all gradients that are sums over only some of the
 * micro-batches, because queueing failed halfway. Until the next write, reading one of these
 * gradients fails with this thread's current error text. Call with the host lock held. */
void mpg_fail_partial_gradients(const mpg_pipeline_run *run, const mpg_micro_batch_item *items,
                                size_t count, mpg_status status);

#endif
