/* Recomputation: forward values that are computed again in the backward phase instead of being
 * kept.
 *
 * Forward nodes carry a region. Of a region only what comes in from outside is kept (and what
 * backward nodes outside read); what its own gradient reads beside that is computed again, by nodes
 * of the backward phase that repeat the forward's, right before it is first needed. MPG_REGION_ALL:
 * wherever it is read, by whomever. Bits stay: a repeated node has the same inputs, parameters,
 * mode and random numbers. Auxiliary states are written once, in the forward phase: a repeated
 * BatchNorm gets scratch arrays for them. Nodes that have other effects, or read what an effect
 * writes, are not repeated: their values are kept.
 *
 * Which values are kept is decided once, for the gradient of all outputs; every backward repeats
 * nodes from there. Threads: host lock.
 */
#ifndef MPG_GRAPH_GRADIENT_RECOMPUTE_H
#define MPG_GRAPH_GRADIENT_RECOMPUTE_H

#include "graph/ir/graph.h"

#define MPG_REGION_ALL UINT32_MAX

/* The first num_forward nodes of `joint` are the forward phase; roots: gradients. saved: per
 * forward value, all false before; true where the backward phase reads it. */
mpg_status mpg_recompute_find(const mpg_graph *joint, size_t num_forward, const mpg_value *roots,
                              size_t num_roots, bool *saved);
/* True when a node has a region. */
bool mpg_recompute_wanted(const mpg_graph *graph, size_t num_forward);

/* joint with the repeated nodes, given what is saved, and without backward nodes that the values of
 * the first list do not need. Forward nodes keep their numbers; the values of all lists are
 * renamed. result: initialised, empty. */
typedef struct mpg_value_list {
  mpg_value *values;
  size_t count;
} mpg_value_list;
mpg_status mpg_recompute_apply(const mpg_graph *joint, size_t num_forward, const bool *saved,
                               const mpg_value_list *lists, int num_lists, mpg_graph *result);

#endif
