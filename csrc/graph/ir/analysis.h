/* Use and lifetime analysis of a graph and an order of its nodes, shared by several passes.
 *
 * An analysis is a snapshot; a pass that changes the graph or the order computes a new one. A view
 * shares the memory of another value, its root. A node with MPG_OP_SHAPE_ONLY uses its inputs but
 * does not read their memory.
 *
 * Ownership: an analysis owns one block of memory and borrows nothing. Threads: callers hold the
 * host lock.
 */
#ifndef MPG_GRAPH_IR_ANALYSIS_H
#define MPG_GRAPH_IR_ANALYSIS_H

#include "graph/ir/graph.h"

#define MPG_NO_POSITION UINT32_MAX

typedef struct mpg_analysis {
  uint32_t *position;  /* per node: its position in the order; MPG_NO_POSITION if absent */
  uint32_t *uses;      /* per value: number of uses by nodes in the order and as graph outputs */
  uint32_t *last_use;  /* per value: the position of the last node that uses it; 0 if unused */
  uint32_t *root;      /* per value: the value that owns its memory, possibly itself */
  uint32_t *readers;   /* per root: number of node inputs in the order that read its memory */
  uint32_t *last_read; /* per root: the position of its last reader; 0 if it has none */
  bool *written;       /* per root: true if a node in the order writes its memory */
} mpg_analysis;

/* Analyzes a graph. `order` NULL means all nodes in creation order. `analysis` must be zeroed, so
 * that mpg_analysis_free is valid after a failure. */
mpg_status mpg_analyse(const mpg_graph *graph, const mpg_order *order, mpg_analysis *analysis);
void mpg_analysis_free(mpg_analysis *analysis);

/* Marks all nodes that the nodes marked in `live` depend on. `live` has one element per node. */
void mpg_graph_mark_live(const mpg_graph *graph, bool *live);
/* True if a node's outputs are not much larger than its inputs. Larger outputs, such as a row of
 * ones broadcast over a batch, are cheaper to recompute than to keep. */
bool mpg_node_worth_keeping(const mpg_graph *graph, const mpg_node *node);

#endif
