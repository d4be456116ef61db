/* Memory plans: the place of every value of one phase.
 *
 * A value lies in an external array (an input, an output, a gradient: one "base" each), or at an
 * offset in a block that is planned per device: the main block, for values whose lifetimes are
 * known in the device's own order, or a lane, the block of one pair of devices into which the first
 * pushes arrays for the second. A pushed array has its part of the lane from the start of the phase
 * to its last use, so that a push waits for nothing that the receiving device does; after that the
 * part serves other values. Values share memory by lifetime (best fit, largest first); an op whose
 * elements allow it writes over an input that dies there; a view lies where its input lies. The
 * backward plan starts from the forward plan, where the saved values lie. It fills the gaps of the
 * forward blocks before it adds memory, and reuses the memory of saved values after their last use
 * (unless the graph is retained).
 *
 * Ownership: a plan owns its memory and borrows nothing. Threads: host lock.
 */
#ifndef MPG_GRAPH_SCHEDULE_PLAN_H
#define MPG_GRAPH_SCHEDULE_PLAN_H

#include "graph/ir/graph.h"

#define MPG_NO_BASE UINT32_MAX

typedef struct mpg_location {
  uint32_t base; /* number of an external array, or num_externals + number of a block; MPG_NO_BASE:
                    nowhere */
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
  mpg_plan_block *blocks;           /* a backward plan begins with the forward's */
  uint32_t num_blocks, first_block; /* blocks before first_block were there already */
  size_t blocks_capacity;
  mpg_location *locations; /* per value */
  uint32_t *roots;         /* per value: the value whose memory it shares */
  size_t num_values;
  size_t alive[MPG_MAX_GRAPH_DEVICES]; /* per slot: the most bytes of planned arrays alive at once
                                          in this phase: no plan of this order can be smaller */
} mpg_plan;

typedef struct mpg_plan_request {
  const mpg_graph *graph;
  const mpg_order *order;
  uint32_t num_externals;
  const uint32_t
      *external;     /* per value: the external array it is or must be written into; MPG_NO_BASE */
  const bool *saved; /* per value: lives on after the phase */
  const mpg_plan *forward; /* NULL in the forward phase */
  bool unfused;            /* mpg_schedule: nothing is fused */
  bool retain;             /* saved values of the forward plan must stay */
} mpg_plan_request;

mpg_status mpg_plan_make(const mpg_plan_request *request, mpg_plan *plan); /* plan: zeroed */
/* choose_order.c: chooses the order of the request's nodes, and plans it. With `free_order` it
 * tries the order of least memory, then one in which devices wait less, which is taken if no
 * device's plan grows by over a fiftieth. Then it fuses the order, except for groups that would
 * make a device's plan larger. *order, which is request->order, is replaced. */
mpg_status mpg_schedule(const mpg_plan_request *request, mpg_order *order, bool free_order,
                        mpg_plan *plan);
void mpg_plan_free(mpg_plan *plan);
/* Bytes of all blocks on a device. Those of a backward plan are of both phases: it begins with the
 * blocks of the forward plan. */
size_t mpg_plan_bytes(const mpg_plan *plan, mpg_device_id device);
uint32_t mpg_plan_slot(const mpg_plan *plan,
                       mpg_device_id device); /* UINT32_MAX when there is none */
/* True for a node that needs no kernel: its output lies where its input does. */
bool mpg_plan_aliased(const mpg_plan *plan, const mpg_graph *graph, const mpg_node *node);

/* memory_order.c. Bits never depend on the order: random numbers and sums are fixed before, and
 * users of a state that an effect writes keep their order. Copies to other devices go right behind
 * the value that they copy.
 *
 * Memory: two orders are tried. One takes the node that frees most next; the other goes depth
 * first, with the input that needs most memory first. The one with fewer live bytes at once (summed
 * over devices) is put into `better`, and *changed set, if that is a twentieth less than in the
 * given order.
 */
mpg_status mpg_order_for_memory(const mpg_plan_request *request, mpg_order *better, bool *changed);
/* Time: orders in which devices wait less for each other. faster[0]: every device takes the ready
 * node with the longest path to the end. faster[1]: the same, but a node is put off if more bytes
 * would be alive than the given order ever has. seconds: estimates for the given order, then for
 * these, from bytes and floating-point operations (0: none). The caller frees all. */
enum { MPG_FASTER_ORDERS = 2 };
mpg_status mpg_order_for_time(const mpg_plan_request *request, mpg_order faster[MPG_FASTER_ORDERS],
                              double seconds[1 + MPG_FASTER_ORDERS]);

/* dump.c: appends the graph after a pass to the file that MPGLUON_DUMP names, if it is set. With a
 * plan: the nodes in their order, with the places of their values. */
void mpg_dump_pass(const char *pass, const mpg_graph *graph, const mpg_order *order,
                   const mpg_plan *plan);

#endif
