/* State of one backward pass: a graph of the part of the tape that the heads reach, followed by the
 * gradient ops, and the arrays that hold the graph's values. Passes are kept for reuse, so that
 * repeated backward passes allocate nothing. Internal to csrc/autograd. Threads: callers hold the
 * host lock.
 */
#ifndef MPG_AUTOGRAD_BACKWARD_PASS_H
#define MPG_AUTOGRAD_BACKWARD_PASS_H

#include "autograd/parameter_set.h"

/* The tape node and slot in which the contents of a forward value are saved. */
typedef struct mpg_saved_place {
  mpg_tape_node *node; /* borrowed; NULL if not saved */
  uint32_t slot;
} mpg_saved_place;

typedef struct mpg_backward_pass {
  mpg_graph graph;
  mpg_tape_node **nodes; /* reached nodes in topological order; owned references */
  size_t num_nodes, nodes_capacity;
  struct mpg_backward_pass_frame {
    mpg_tape_node *node;
    uint32_t next;
  } *stack;
  size_t stack_capacity;
  uint64_t visit;
  mpg_tape_node **owners; /* per graph node: its tape node, or NULL */
  size_t owners_capacity;
  mpg_saved_place *saved_places; /* per forward value */
  size_t saved_places_capacity;
  mpg_value *work; /* values of heads, head gradients, wanted variables and their gradients */
  size_t work_capacity;
  mpg_value *edges; /* input values of the graph node being built */
  size_t edges_capacity;
  /* Execution state, one entry per value of the graph. */
  mpg_array *arrays;
  uint32_t *uses;
  mpg_target **targets;
  size_t arrays_capacity, uses_capacity, targets_capacity;
  mpg_target *target_list;
  size_t target_list_capacity;
  mpg_tape_node **variables; /* borrowed from nodes */
  size_t num_variables, variables_capacity;
  /* Parameter sets of calls. If `together`, each set is one value of the graph. `clash` is set if
   * a variable is reached in more than one way; the pass must then restart without `together`. */
  struct mpg_backward_pass_set {
    mpg_parameter_set *parameters; /* borrowed from nodes */
    uint32_t graph_node;
  } *parameter_sets;
  size_t num_parameter_sets, parameter_sets_capacity;
  uint64_t *distinct; /* cache: numbers of the sets that were last found to share no variable */
  size_t num_distinct, distinct_capacity;
  bool together, clash;
  bool taken; /* saved contents were moved out of the tape, so the tape's nodes must be consumed */
  struct mpg_backward_pass *next;
} mpg_backward_pass;

/* Collects the computation of the heads and builds its graph. If create_graph, calls are expanded
 * to ops. If `together`, each parameter set becomes one value unless a variable is reached in more
 * than one way. */
mpg_status mpg_backward_pass_collect(mpg_backward_pass *pass, mpg_array *const *heads,
                                     int num_heads, bool create_graph, bool together);
/* Returns the graph value of an array on the tape. */
mpg_value mpg_backward_pass_value(const mpg_backward_pass *pass, const mpg_array *array);
/* Runs the nodes of the backward phase that the num_kept values in `kept` depend on. Keeps the
 * arrays of these values, except those written to a target, and releases all other arrays. */
mpg_status mpg_backward_pass_run(mpg_backward_pass *pass, const mpg_value *kept, size_t num_kept,
                                 bool retain, bool create_graph, bool train);
/* Replaces an empty array, which a call returned for a zero gradient, with an array of zeros. */
mpg_status mpg_backward_pass_fill_zero(mpg_backward_pass *pass, uint32_t value);

#endif
