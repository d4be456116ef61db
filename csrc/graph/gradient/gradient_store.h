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
  /* True if a gradient may be a view, whose root is then computed in the variable's array. */
  bool views;
} mpg_gradient_store;

/* Starts the backward phase of the graph. Nodes appended after this call belong to no Gluon
 * block. */
mpg_status mpg_gradient_store_begin(mpg_graph *graph, bool views, mpg_gradient_store *store);
/* Stores the gradient of a variable. Called once per variable. Sets *stored to the value that is
 * computed in the variable's array:
 *   - Without `add`: the gradient, or a copy if the gradient cannot be computed in this array.
 *     Zeros if the gradient is zero.
 *   - With `add`: the sum of the gradient and *old, a new input for the old contents of the array.
 *     MPG_NO_VALUE if the gradient is zero.
 * A gradient from a compiled call is stored without adding, because the call itself adds. */
mpg_status mpg_gradient_store_put(mpg_gradient_store *store, mpg_value variable, mpg_value gradient,
                                  bool add, mpg_value *stored, mpg_value *old);

#endif
