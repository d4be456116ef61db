/* Collectives: what several devices do with arrays of theirs together, as a plan of ordinary ops
 * and copies.
 *
 * A plan is a list of steps over numbered slots; it follows from shapes, dtypes and devices alone.
 * Whoever runs it calls one op a step (eagerly, on the tape, or into a trace), so collectives are
 * recorded, differentiated, placed, ordered and overlapped like everything else, and the gradient
 * of each is the conjugate one without being written down: that of a copy is the copy back, that of
 * a cut joins, that of a sum goes to all. Sums are taken in the order of the ranks, whatever the
 * algorithm, so all replicas get the same bits, and reduce_scatter gives the bits of all_reduce's
 * parts.
 *
 * A transport turns a request into a plan: copies and ops, which go between ranks, too, or single
 * ops of NCCL's. Sums of arrays that each rank has are in rank_sums.h. Ownership: a plan owns its
 * steps and parameters (mpg_comm_plan_free). Threads: any; plans share nothing.
 */
#ifndef MPG_COMM_COLLECTIVE_H
#define MPG_COMM_COLLECTIVE_H

#include "base/memory.h"
#include "op/op.h"

typedef enum mpg_collective {
  MPG_ALL_REDUCE,     /* everybody gets the sum */
  MPG_REDUCE,         /* the root gets the sum */
  MPG_REDUCE_SCATTER, /* everybody gets a part of the sum, cut along the axis */
  MPG_ALL_GATHER,     /* everybody gets all arrays, joined along the axis */
  MPG_GATHER,         /* the root does */
  MPG_SCATTER,        /* everybody gets a part of one array, cut along the axis */
  MPG_BROADCAST,      /* everybody gets one array */
  MPG_ALL_TO_ALL, /* rank d gets the d-th parts of all arrays (cut along the axis), joined along the
                     other axis */
  MPG_COLLECTIVE_COUNT
} mpg_collective;

typedef enum mpg_comm_algorithm {
  MPG_COMM_AUTO,     /* by the number of ranks and bytes */
  MPG_COMM_ONE_SHOT, /* every device gets all arrays and adds them up: one hop */
  MPG_COMM_TWO_SHOT, /* reduce_scatter, then all_gather: two hops, with the bytes of a ring */
  MPG_COMM_ALGORITHM_COUNT
} mpg_comm_algorithm;

enum { MPG_COMM_MAX_RANKS = 512 };

typedef struct mpg_comm_request {
  mpg_collective kind;
  mpg_comm_algorithm algorithm; /* of all_reduce */
  int num_ranks;
  const mpg_device_id *devices; /* per rank: where its results are */
  int num_inputs;               /* num_ranks, or 1: of scatter and broadcast */
  const mpg_desc *inputs;
  const mpg_device_id *input_devices;
  mpg_device_id root; /* of reduce and gather; type 0: where the first input is */
  int axis, other_axis;
} mpg_comm_request;

typedef struct mpg_comm_step {
  const mpg_op *op;
  const void *params;     /* in the arena; NULL for ops without */
  const uint32_t *inputs; /* slots */
  uint32_t num_inputs, first_output, num_outputs;
} mpg_comm_step;

/* Slots 0 .. num_inputs - 1 are the inputs; every other one is written by one step. Results are
 * never inputs themselves. */
typedef struct mpg_comm_plan {
  mpg_arena arena;
  mpg_comm_step *steps; /* owned */
  size_t num_steps, steps_capacity;
  struct mpg_comm_slot *slots; /* owned: what is in each */
  size_t num_slots, slots_capacity;
  uint32_t *results; /* in the arena */
  int num_results;
  size_t num_copies, bytes; /* between devices */
} mpg_comm_plan;

const char *mpg_collective_name(mpg_collective kind);
/* By name; MPG_COLLECTIVE_COUNT and MPG_COMM_ALGORITHM_COUNT where there is none such. */
mpg_collective mpg_collective_find(const char *name);
mpg_comm_algorithm mpg_comm_algorithm_find(const char *name);

/* Checks the request and plans it by the transport of that name. *plan: to be freed, also after a
 * failure. */
mpg_status mpg_comm_plan_make(const char *transport, const mpg_comm_request *request,
                              mpg_comm_plan *plan);
void mpg_comm_plan_free(mpg_comm_plan *plan);

/* Where part `index` of `count` parts of `total` begins: they differ by one at most, the larger
 * ones first. */
static inline int64_t mpg_comm_part(int64_t total, int count, int index) {
  int64_t each = total / count, more = total % count;
  return each * index + (index < more ? index : more);
}

#endif
