/* Plans: where every value of one phase lies.
 *
 * A value lies in an external array (an input, an output, a gradient: one "base" each), or at an offset in a block that is
 * planned per device: the main block, for values whose lifetimes are known in the device's own order, or a lane, the block of
 * one pair of devices into which the first pushes arrays for the second. A pushed array has its part of the lane from the
 * start of the phase to its last use, so that a push waits for nothing that the receiving device does; after that the part serves
 * other values.
 * Values share memory by lifetime (best fit, largest first); an op whose elements allow it writes over an input that dies there; a
 * view lies where its input lies.
 * The backward plan starts from the forward plan: what was saved lies there, and the blocks' gaps, and (unless
 * the graph is retained) the saved values' memory after their last use, are filled before more is asked for.
 *
 * Ownership: a plan owns its memory and borrows nothing. Threads: host lock.
 */
#ifndef MPG_GRAPH_PLAN_H
#define MPG_GRAPH_PLAN_H

#include "graph/graph.h"

#define MPG_NO_BASE UINT32_MAX

typedef struct mpg_location {
  uint32_t base; /* number of an external array, or num_externals + number of a block; MPG_NO_BASE: nowhere */
  size_t offset;
} mpg_location;

typedef enum mpg_block_kind { MPG_BLOCK_MAIN, MPG_BLOCK_LANE } mpg_block_kind;

typedef struct mpg_plan_block {
  mpg_block_kind kind;
  uint32_t device; /* slot of the device it lies on */
  uint32_t source; /* slot of the device that pushes into a lane */
  size_t size;     /* bytes */
} mpg_plan_block;

enum { MPG_MAX_GRAPH_DEVICES = 64 };

typedef struct mpg_plan {
  mpg_device_id devices[MPG_MAX_GRAPH_DEVICES]; /* slots */
  uint32_t num_devices;
  uint32_t num_externals;
  mpg_plan_block *blocks; /* a backward plan begins with the forward's */
  uint32_t num_blocks, first_block; /* blocks before first_block were there already */
  size_t blocks_capacity;
  mpg_location *locations; /* per value */
  uint32_t *roots;         /* per value: the value whose memory it shares */
  size_t num_values;
} mpg_plan;

typedef struct mpg_plan_request {
  const mpg_graph *graph;
  const mpg_order *order;
  uint32_t num_externals;
  const uint32_t *external; /* per value: the external array it is or must be written into; MPG_NO_BASE */
  const bool *saved;        /* per value: lives on after the phase */
  const mpg_plan *forward;  /* NULL in the forward phase */
  bool retain;              /* saved values of the forward plan must stay */
} mpg_plan_request;

mpg_status mpg_plan_make(const mpg_plan_request *request, mpg_plan *plan); /* plan: zeroed */
/* schedule.c: the plan of request->order, and of better orders where these cost no memory: with `hurry`, the one in which devices
 * wait least for each other (at most a fiftieth more), and fused. Leaves the order that it chose in *order, which is request->order. */
mpg_status mpg_schedule(const mpg_plan_request *request, mpg_order *order, bool hurry, mpg_plan *plan);
void mpg_plan_free(mpg_plan *plan);
uint32_t mpg_plan_slot(const mpg_plan *plan, mpg_device_id device); /* UINT32_MAX when there is none */
/* True for a node that needs no kernel: its output lies where its input does. */
bool mpg_plan_aliased(const mpg_plan *plan, const mpg_graph *graph, const mpg_node *node);

#endif
