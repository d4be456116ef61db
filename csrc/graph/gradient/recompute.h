/* Recomputation (activation checkpointing): recomputes forward values in the backward phase instead
 * of keeping them.
 *
 * A forward node may belong to a recompute region. Only two kinds of values are kept for a region:
 * values from outside the region, and values that backward nodes of other regions read. All
 * remaining values that the region's gradient reads are recomputed by copies of the forward nodes
 * in the backward phase, directly before their first use. A node in the region
 * MPG_RECOMPUTE_ANYWHERE is recomputed for any reader. Results are bit-identical, because a copy
 * has the same inputs, parameters, mode and random numbers. Auxiliary states are written once, by
 * the forward phase; the copy of a BatchNorm writes to scratch arrays. Nodes with other effects, or
 * nodes that read a value written by an effect, are not recomputed, and their values are kept.
 *
 * The values to keep are chosen once, for the gradient of all outputs, and every backward pass
 * recomputes from them. Threads: callers hold the host lock.
 */
#ifndef MPG_GRAPH_GRADIENT_RECOMPUTE_H
#define MPG_GRAPH_GRADIENT_RECOMPUTE_H

#include "graph/ir/graph.h"

#define MPG_RECOMPUTE_ANYWHERE UINT32_MAX

/* Chooses the forward values to keep. The first num_forward nodes of `joint` are the forward phase,
 * and `roots` are the gradients. `saved` has one element per forward value, initially false. It is
 * set to true for the kept values that the backward phase reads. */
mpg_status mpg_recompute_find(const mpg_graph *joint, size_t num_forward, const mpg_value *roots,
                              size_t num_roots, bool *saved);
/* True if one of the first num_forward nodes is in a recompute region. */
bool mpg_recompute_wanted(const mpg_graph *graph, size_t num_forward);

/* Copies `joint` to `result`, which is initialized and empty. Inserts the recomputation of values
 * that are not saved, and omits backward nodes that the values in lists[0] do not depend on.
 * Forward nodes keep their numbers. The values in all lists are replaced by their counterparts in
 * the result. */
typedef struct mpg_value_list {
  mpg_value *values;
  size_t count;
} mpg_value_list;
mpg_status mpg_recompute_apply(const mpg_graph *joint, size_t num_forward, const bool *saved,
                               const mpg_value_list *lists, int num_lists, mpg_graph *result);

#endif
