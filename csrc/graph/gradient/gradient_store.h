/* Where gradients go: a gradient becomes the value that is computed straight into the array of its
 * variable.
 *
 * A store lives as long as its graph, whose arena it uses; one thread.
 */
#ifndef MPG_GRAPH_GRADIENT_GRADIENT_STORE_H
#define MPG_GRAPH_GRADIENT_GRADIENT_STORE_H

#include "graph/ir/graph.h"

typedef struct mpg_gradient_store {
  mpg_graph *graph;
  bool *taken; /* per value there was at the beginning: it is computed in a variable's array */
  size_t num_known;
  bool views; /* a view may be stored: what it is a view of is computed in the array */
} mpg_gradient_store;

/* From here on the graph's nodes are of the backward phase and of no block. */
mpg_status mpg_gradient_store_begin(mpg_graph *graph, bool views, mpg_gradient_store *store);
/* *stored: what is computed in the variable's array: the gradient, a copy of it where it cannot be
 * computed there, zeros where there is none. With `add`: its sum with *old, an input that the
 * array's contents are, or MPG_NO_VALUE where there is no gradient; a compiled call's gradient
 * stays as it is, the call adds. Each variable once. */
mpg_status mpg_gradient_store_put(mpg_gradient_store *store, mpg_value variable, mpg_value gradient,
                                  bool add, mpg_value *stored, mpg_value *old);

#endif
