/* Functions extracted from traces: a range of a trace's nodes as a separate graph.
 *
 * A trace is cut wherever the program must read a value (for a loop, a branch, or an op whose shape
 * depends on contents). The nodes between two cuts form a function. Its inputs are the values from
 * before the first cut that its nodes use. Its outputs are the values that are live at the second
 * cut. Bodies of loops and branches are also functions. A function is compiled like any traced
 * function, by calling it with traced arrays, which emits its nodes into the active trace.
 *
 * Values are identified by their number ("id") in the trace that was cut. Ownership: a function
 * owns its graph. Threads: callers hold the host lock.
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

/* Extracts the nodes of `trace` starting at node `begin`. The function's outputs are the live
 * values of these nodes or, if `results` is not NULL, those listed in `results`. The caller frees
 * *function, which is NULL if the nodes contain no op. */
mpg_status mpg_function_cut(const mpg_trace *trace, size_t begin, const mpg_value *results,
                            size_t num_results, mpg_function **function);
void mpg_function_free(mpg_function *function);
/* Emits the function's nodes into a trace. `inputs` are num_inputs traced or constant arrays, and
 * `outputs` are num_outputs empty structs. */
mpg_status mpg_function_call(const mpg_function *function, mpg_trace *trace,
                             mpg_array *const *inputs, mpg_array *outputs);

#endif
