/* Functions cut out of traces: a stretch of a trace's nodes as a graph of its own.
 *
 * A program that has to look at values on the way (a loop, a branch, an op whose shape depends on
 * contents) is cut there: the nodes between two cuts are a function from the values they use to
 * those that are still live at the second cut. Bodies of loops and branches are functions, too. A
 * function is compiled like any traced function, by being called with traced arrays: then its nodes
 * are emitted into the active trace.
 *
 * Values are known by their number in the trace that was cut ("id").
 * Ownership: a function is counted and owns its graph. Threads: host lock.
 */
#ifndef MPG_COMPILE_FUNCTION_H
#define MPG_COMPILE_FUNCTION_H

#include "autograd/trace.h"

typedef struct mpg_function {
  mpg_graph graph;
  mpg_value *inputs, *outputs;
  uint32_t *input_ids, *output_ids;
  uint32_t num_inputs, num_outputs;
  size_t inputs_capacity, input_ids_capacity, outputs_capacity, output_ids_capacity;
} mpg_function;

/* The nodes of `trace` from number `begin` on. Its outputs are those of their values that are live,
 * or (results not NULL) those among the results. *function (new) is NULL when there are no ops. */
mpg_status mpg_function_cut(const mpg_trace *trace, size_t begin, const mpg_value *results,
                            size_t num_results, mpg_function **function);
void mpg_function_free(mpg_function *function);
/* Emits its nodes into a trace. inputs: num_inputs arrays, traced or constants; outputs:
 * num_outputs empty structs. */
mpg_status mpg_function_call(const mpg_function *function, mpg_trace *trace,
                             mpg_array *const *inputs, mpg_array *outputs);

#endif
