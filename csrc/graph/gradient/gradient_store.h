/* Gradient stores, which place each gradient directly in the array of its variable.
 *
 * A store lives as long as its graph, whose arena it uses. One thread.
 */
#ifndef MPG_GRAPH_GRADIENT_GRADIENT_STORE_H
#define MPG_GRAPH_GRADIENT_GRADIENT_STORE_H

#include "graph/ir/graph.h"

typedef struct mpg_gradient_store {
  mpg_graph *graph;
  bool *taken; /* per value that existed at the start: true if a variable's array holds it */
  size_t num_known;
  bool views; /* a gradient may be a view; its root is then computed in the variable's array */
} mpg_gradient_store;

/* Starts the backward phase of the graph; appended nodes belong to no block. */
mpg_status mpg_gradient_store_begin(mpg_graph *graph, bool views, mpg_gradient_store *store);
/* Stores the gradient of a variable; called once per variable. *stored is the value that is
 * computed in the variable's array. It is the gradient, a copy if the gradient cannot be computed
 * there, or zeros if the gradient is zero. With `add` it is the sum of the gradient and *old, an
 * input for the array's contents, or MPG_NO_VALUE if the gradient is zero. A gradient from a
 * compiled call is stored unchanged, because the call itself adds. */
mpg_status mpg_gradient_store_put(mpg_gradient_store *store, mpg_value variable, mpg_value gradient,
                                  bool add, mpg_value *stored, mpg_value *old);

#endif
