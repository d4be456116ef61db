/* Gradient stores: compute each gradient directly in the array of its variable.
 *
 * A store lives as long as its graph, whose arena it uses. One thread.
 */
#ifndef MPG_GRAPH_GRADIENT_GRADIENT_STORE_H
#define MPG_GRAPH_GRADIENT_GRADIENT_STORE_H

#include "graph/ir/graph.h"

typedef struct mpg_gradient_store {
  mpg_graph *graph;
  bool *taken; /* per value that existed at the start: it is computed in a variable's array */
  size_t num_known;
  bool views; /* a view may be stored: its root is computed in the array */
} mpg_gradient_store;

/* Starts the backward phase of the graph; appended nodes belong to no block. */
mpg_status mpg_gradient_store_begin(mpg_graph *graph, bool views, mpg_gradient_store *store);
/* Called once per variable. *stored is the value that is computed in the variable's array: the
 * gradient, a copy if it cannot be computed there, or zeros if there is no gradient. With `add` it
 * is the sum with *old, an input for the array's contents, or MPG_NO_VALUE if there is no gradient.
 * A gradient from a compiled call is stored as it is, because the call itself adds. */
mpg_status mpg_gradient_store_put(mpg_gradient_store *store, mpg_value variable, mpg_value gradient,
                                  bool add, mpg_value *stored, mpg_value *old);

#endif
