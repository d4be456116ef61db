/* Collectives: joint operations of several devices on their arrays. A collective is planned as a
 * list of ordinary ops and copies.
 *
 * A plan is a list of steps whose inputs and outputs are numbered slots (arrays). It depends only
 * on shapes, dtypes and devices. The caller runs one op per step: eagerly, recorded on the tape, or
 * traced. So a collective is recorded, differentiated, placed, ordered and overlapped like any
 * other op. The gradient of a collective is its adjoint: a copy becomes a copy back, a split
 * becomes a concatenation, and a sum becomes a broadcast. Every local algorithm sums in rank order.
 * So all replicas get bit-identical results, and reduce_scatter is bit-identical to the parts of
 * all_reduce.
 *
 * A transport converts a request to a plan: either copies and ordinary ops, which also work between
 * ranks, or single NCCL ops. For sums of arrays that each rank owns, see rank_sums.h.
 * Ownership: a plan owns its steps and parameters (mpg_comm_plan_free). Threads: any; plans share
 * nothing.
 */
#ifndef MPG_COMM_COLLECTIVE_H
#define MPG_COMM_COLLECTIVE_H

#include "base/memory.h"
#include "op/op.h"

typedef enum mpg_collective {
  MPG_ALL_REDUCE,     /* every rank gets the sum */
  MPG_REDUCE,         /* the root gets the sum */
  MPG_REDUCE_SCATTER, /* every rank gets a part of the sum, split along the axis */
  MPG_ALL_GATHER,     /* every rank gets all arrays, concatenated along the axis */
  MPG_GATHER,         /* the root gets all arrays, concatenated along the axis */
  MPG_SCATTER,        /* every rank gets a part of one array, split along the axis */
  MPG_BROADCAST,      /* every rank gets one array */
  /* Rank d gets the d-th parts of all arrays (split along the axis), concatenated along the other
   * axis. */
  MPG_ALL_TO_ALL,
  MPG_COLLECTIVE_COUNT
} mpg_collective;

typedef enum mpg_comm_algorithm {
  MPG_COMM_AUTO,     /* chosen by the number of ranks and the size of the arrays */
  MPG_COMM_ONE_SHOT, /* every device gets all arrays and sums them: one hop, more bytes */
  /* reduce_scatter, then all_gather: two hops, as few bytes as a ring all-reduce */
  MPG_COMM_TWO_SHOT,
  MPG_COMM_ALGORITHM_COUNT
} mpg_comm_algorithm;

enum { MPG_COMM_MAX_RANKS = 512 };

typedef struct mpg_comm_request {
  mpg_collective kind;
  mpg_comm_algorithm algorithm; /* all_reduce only */
  int num_ranks;
  const mpg_device_id *devices; /* devices[rank] is the device of that rank's result */
  int num_inputs;               /* num_ranks, or 1 for scatter and broadcast */
  const mpg_desc *inputs;
  const mpg_device_id *input_devices;
  mpg_device_id root; /* reduce and gather only; type 0 selects the device of the first input */
  int axis, other_axis;
} mpg_comm_request;

typedef struct mpg_comm_step {
  const mpg_op *op;
  const void *params;     /* owned by the plan's arena; NULL for ops without params */
  const uint32_t *inputs; /* slots of the inputs */
  uint32_t num_inputs, first_output, num_outputs;
} mpg_comm_step;

/* The first slots are the request's inputs. Each other slot is written by exactly one step. Results
 * are never input slots. */
typedef struct mpg_comm_plan {
  mpg_arena arena;
  mpg_comm_step *steps; /* owned */
  size_t num_steps, steps_capacity;
  struct mpg_comm_slot *slots; /* desc and device of each slot; owned */
  size_t num_slots, slots_capacity;
  uint32_t *results; /* slots of the results; in the arena */
  int num_results;
  size_t num_copies, bytes; /* number of copies between devices, and their total size */
} mpg_comm_plan;

const char *mpg_collective_name(mpg_collective kind);
/* Return the enumerator with that name, or MPG_COLLECTIVE_COUNT or MPG_COMM_ALGORITHM_COUNT if the
 * name is unknown. */
mpg_collective mpg_collective_find(const char *name);
mpg_comm_algorithm mpg_comm_algorithm_find(const char *name);

/* Checks a request and plans it with the transport of that name ("auto", "local" or "nccl"). The
 * caller must call mpg_comm_plan_free even after a failure. */
mpg_status mpg_comm_plan_make(const char *transport, const mpg_comm_request *request,
                              mpg_comm_plan *plan);
void mpg_comm_plan_free(mpg_comm_plan *plan);

#endif
