/* Memory plans: the location of every value of one phase.
 *
 * A value is in an external array (an input, output or gradient, each with its own "base"), or at
 * an offset in a block that is planned per device. The main block holds values whose lifetimes are
 * known in the device's own order. A lane is the block of one pair of devices, into which the first
 * pushes arrays for the second. A pushed array occupies its part of the lane from the start of the
 * phase to its last use, so that a push never waits for the receiving device. Afterward the part is
 * reused. Values share memory by lifetime (best fit, largest first). An in-place op overwrites an
 * input that no later node reads. A view has the location of its input. The backward plan starts
 * from the forward plan, which contains the saved values. It fills the gaps of the forward blocks
 * before it adds memory, and reuses the memory of saved values after their last use (unless the
 * graph is retained).
 *
 * Ownership: a plan owns its memory and borrows nothing. Threads: callers hold the host lock.
 */
#ifndef MPG_GRAPH_SCHEDULE_PLAN_H
#define MPG_GRAPH_SCHEDULE_PLAN_H

#include "graph/ir/graph.h"

#define MPG_NO_BASE UINT32_MAX

typedef struct mpg_location {
  /* Index of an external array, or num_externals + index of a block; MPG_NO_BASE means no
   * memory. */
  uint32_t base;
  size_t offset;
} mpg_location;

typedef enum mpg_block_kind { MPG_BLOCK_MAIN, MPG_BLOCK_LANE } mpg_block_kind;

typedef struct mpg_plan_block {
  mpg_block_kind kind;
  uint32_t device; /* slot of its device */
  uint32_t source; /* slot of the device that pushes into a lane */
  size_t size;     /* bytes */
} mpg_plan_block;

enum { MPG_MAX_GRAPH_DEVICES = 64 };

typedef struct mpg_plan {
  mpg_device_id devices[MPG_MAX_GRAPH_DEVICES]; /* indexed by slot */
  uint32_t num_devices;
  uint32_t num_externals;
  mpg_plan_block *blocks;           /* a backward plan begins with the forward blocks */
  uint32_t num_blocks, first_block; /* blocks before first_block belong to the forward plan */
  size_t blocks_capacity;
  mpg_location *locations; /* per value */
  uint32_t *roots;         /* per value: the value whose memory it uses, possibly itself */
  size_t num_values;
  /* Per slot: peak bytes of planned arrays alive in this phase, a lower bound for every plan of
   * this order. */
  size_t alive[MPG_MAX_GRAPH_DEVICES];
  bool over[MPG_MAX_GRAPH_DEVICES]; /* per slot: the plan exceeds its limit and is incomplete */
} mpg_plan;

/* Bytes that the plans of devices must not exceed. */
typedef struct mpg_plan_limits {
  mpg_device_id devices[MPG_MAX_GRAPH_DEVICES];
  size_t bytes[MPG_MAX_GRAPH_DEVICES];
  uint32_t count;
} mpg_plan_limits;

typedef struct mpg_plan_request {
  const mpg_graph *graph;
  const mpg_order *order;
  uint32_t num_externals;
  /* Per value: the external array that holds it or must receive it, or MPG_NO_BASE. */
  const uint32_t *external;
  const bool *saved;       /* per value: true if it is alive after the phase */
  const mpg_plan *forward; /* the forward plan; NULL when planning the forward phase */
  bool unfused;            /* mpg_schedule: disables fusion */
  bool retain;             /* the graph is retained, so saved values of the forward plan are kept */
  /* Only tests whether a plan within these limits exists: takes the first one that it finds,
   * not the smallest one, and sets `over` if there is none. NULL for the smallest plan. */
  const mpg_plan_limits *limits;
} mpg_plan_request;

/* Plans the memory of a phase. `plan` must be zeroed. */
mpg_status mpg_plan_make(const mpg_plan_request *request, mpg_plan *plan);
/* choose_order.c: chooses and plans the order of the request's nodes. With `free_order`, first
 * tries orders that need less memory, then orders in which devices wait less for each other. The
 * latter are taken only if no device's plan grows by more than 1/50. Then fuses the order, except
 * for groups that would enlarge a device's plan. Replaces *order, which must be request->order. */
mpg_status mpg_schedule(const mpg_plan_request *request, mpg_order *order, bool free_order,
                        mpg_plan *plan);
void mpg_plan_free(mpg_plan *plan);
/* Returns the bytes of all blocks on a device. A backward plan includes both phases, because it
 * begins with the blocks of the forward plan. */
size_t mpg_plan_bytes(const mpg_plan *plan, mpg_device_id device);
/* Returns the slot of a device, or UINT32_MAX if the plan does not contain it. */
uint32_t mpg_plan_slot(const mpg_plan *plan, mpg_device_id device);
/* Lets devices gather stored parameters at the same time. Each device would otherwise send its part
 * only after its own computation with the whole, while the others wait. `plan` is a plan of the
 * order, for the numbers of its devices. */
mpg_status mpg_order_together(const mpg_graph *graph, const mpg_plan *plan, mpg_order *order);
/* True for a node that needs no kernel because its output is at the location of its input. */
bool mpg_plan_aliased(const mpg_plan *plan, const mpg_graph *graph, const mpg_node *node);

/* memory_order.c. Results never depend on the order, because random numbers and the order of sums
 * are fixed earlier, and nodes that use a state keep their order if one of them writes it. Copies
 * to other devices directly follow the value that they copy.
 *
 * Searches for an order that needs less memory, in two ways. The greedy search always takes the
 * node that frees the most memory. The depth-first search first visits the input that needs the
 * most memory. If the better order has a peak of live bytes (summed over devices) that is at least
 * 1/20 below that of the given order, stores it in `better` and sets *changed.
 */
mpg_status mpg_order_for_memory(const mpg_plan_request *request, mpg_order *better, bool *changed);
/* Computes orders in which devices wait less for each other, by list scheduling. For faster[0],
 * every device takes the ready node with the longest path to the end. For faster[1], a node is also
 * delayed if more bytes would be alive on its device than at the peak of the given order. `seconds`
 * receives the estimated times of the given order and of these orders; 0 means no order. The caller
 * frees all orders. */
enum { MPG_FASTER_ORDERS = 2 };
mpg_status mpg_order_for_time(const mpg_plan_request *request, mpg_order faster[MPG_FASTER_ORDERS],
                              double seconds[1 + MPG_FASTER_ORDERS]);

/* dump.c: appends the graph after a pass to the file named by MPGLUON_DUMP, if set. With a plan,
 * prints the nodes in order with the locations of their values. */
void mpg_dump_pass(const char *pass, const mpg_graph *graph, const mpg_order *order,
                   const mpg_plan *plan);

#endif
