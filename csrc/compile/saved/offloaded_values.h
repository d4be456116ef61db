/* Offloaded values of a compiled call: forward values that are stored on another device until the
 * backward phase (graph/gradient/offload.h).
 *
 * Threads: callers hold the host lock.
 */
#ifndef MPG_COMPILE_SAVED_OFFLOADED_VALUES_H
#define MPG_COMPILE_SAVED_OFFLOADED_VALUES_H

#include "compile/compiled.h"
#include "compile/saved/recompute_budget.h"
#include "graph/gradient/recompute.h"

/* Returns an error if a recorded call combines offload with pipelines, ranks or a budget. */
mpg_status mpg_compiled_check_offload(const mpg_compiled *c, const mpg_memory_budget *budget);

/* Chooses the values to offload, and appends their copies to the graph. `joint` is the graph with
 * its gradients and recomputation, and `roots` has the gradient of each input. c->saved must be
 * known. In it, the offloaded values are replaced by their copies. */
mpg_status mpg_compiled_offload(mpg_compiled *c, const mpg_graph *joint, const mpg_value *roots);

/* Sets kept[v] to true for each forward value that is saved or offloaded. */
void mpg_compiled_list_kept(const mpg_compiled *c, bool *kept);

/* Replaces *joint by a graph whose backward nodes read offloaded values from their copies. Updates
 * the values in all lists, like mpg_recompute_apply. */
mpg_status mpg_compiled_recall(const mpg_compiled *c, mpg_graph *joint, const mpg_value_list *lists,
                               int num_lists);

#endif
