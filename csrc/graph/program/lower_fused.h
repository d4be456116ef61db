/* Lowers a fused group of an order to a backend's fused kernel (op/fused.h). For lower.c.
 *
 * Ownership: results are allocated in the given arena. Threads: callers hold the host lock.
 */
#ifndef MPG_GRAPH_PROGRAM_LOWER_FUSED_H
#define MPG_GRAPH_PROGRAM_LOWER_FUSED_H

#include "graph/schedule/fuse.h"
#include "graph/schedule/plan.h"

typedef struct mpg_fused_call {
  mpg_fused *fused;    /* NULL if the group needs no kernel */
  mpg_value *operands; /* values outside the group: inputs, then outputs */
  uint32_t num_inputs, num_outputs;
  /* The first member that is not a view. The kernel takes its block path and source line. */
  uint32_t first;
  uint32_t random; /* 1 + the largest random call number of a member; 0 means none */
} mpg_fused_call;

mpg_status mpg_fused_make(const mpg_graph *graph, const mpg_order *order, const mpg_plan *plan,
                          const mpg_fusion_group *group, const mpg_device *device, mpg_arena *arena,
                          mpg_fused_call *call);

/* Prints the domain, with "|" before the dims that tiles do not cut, then a line for each member.
 * Values with memory are named in0, in1, ... and out0, out1, ...; local values are named by their
 * slot. Tests depend on the format. */
void mpg_fused_dump(const mpg_fused *fused, mpg_text *text);

#endif
