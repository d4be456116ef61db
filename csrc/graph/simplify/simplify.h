/* Parts of the simplification pass (simplify.c). Nothing here changes the graph; mpg_cse_table_find
 * only updates its table. Threads: callers hold the host lock. */
#ifndef MPG_GRAPH_SIMPLIFY_SIMPLIFY_H
#define MPG_GRAPH_SIMPLIFY_SIMPLIFY_H

#include "graph/ir/graph.h"

/* algebraic_simplification.c: returns an earlier value that is bit-identical to the node's only
 * output, or MPG_NO_VALUE. */
mpg_value mpg_graph_find_identity(const mpg_graph *graph, const mpg_node *node);
/* For a cast of a cast, returns the input of the inner cast if casting it directly is
 * bit-identical. Otherwise returns MPG_NO_VALUE. */
mpg_value mpg_graph_uncast(const mpg_graph *graph, const mpg_node *node);

/* common_subexpressions.c: hash table of nodes, which finds duplicates. The caller owns it, zeroes
 * it, and then calls mpg_cse_table_init. */
typedef struct mpg_cse_table {
  uint32_t *slots; /* node number + 1; 0 means free */
  size_t mask;
} mpg_cse_table;
mpg_status mpg_cse_table_init(mpg_cse_table *seen, size_t num_nodes);
void mpg_cse_table_free(mpg_cse_table *seen);
/* Returns the earlier node that computes the same values as node n. If no node does, adds n to the
 * table and returns n. The caller must check that no input is written. */
uint32_t mpg_cse_table_find(mpg_cse_table *seen, const mpg_graph *graph, uint32_t n);

#endif
