/* Recomputation (activation checkpointing): forward values that are computed again in the backward
 * phase instead of being kept.
 *
 * Forward nodes carry the number of a recompute region. Only two kinds of values of a region are
 * kept: those that come from outside, and those that backward nodes of other regions read. All
 * others that the region's gradient reads are recomputed by copies of the forward nodes in the
 * backward phase, placed right before their first use. A node of MPG_RECOMPUTE_ANYWHERE is
 * recomputed for any reader. Bits stay: a copy has the same inputs, parameters, mode and random
 * numbers. Auxiliary states are written once, by the forward phase: the copy of a BatchNorm writes
 * to scratch arrays. Nodes that have other effects, or read what an effect writes, are not
 * recomputed: their values are kept.
 *
 * The values to keep are chosen once, for the gradient of all outputs; every backward recomputes
 * from these. Threads: host lock.
 */
#ifndef MPG_GRAPH_GRADIENT_RECOMPUTE_H
#define MPG_GRAPH_GRADIENT_RECOMPUTE_H

#include "graph/ir/graph.h"

#define MPG_RECOMPUTE_ANYWHERE UINT32_MAX

/* The first num_forward nodes of `joint` are the forward phase; roots: gradients. saved: per
 * forward value, all false before; true where the backward phase reads it. */
mpg_status mpg_recompute_find(const mpg_graph *joint, size_t num_forward, const mpg_value *roots,
                              size_t num_roots, bool *saved);
/* True when a node is in a recompute region. */
bool mpg_recompute_wanted(const mpg_graph *graph, size_t num_forward);

/* Copies `joint` with recomputed nodes put in where values are not saved, and without backward
 * nodes that the values of the first list do not need. Forward nodes keep their numbers; the values
 * of all lists are replaced by those of the result. result: initialised, empty. */
typedef struct mpg_value_list {
  mpg_value *values;
  size_t count;
} mpg_value_list;
mpg_status mpg_recompute_apply(const mpg_graph *joint, size_t num_forward, const bool *saved,
                               const mpg_value_list *lists, int num_lists, mpg_graph *result);

#endif
