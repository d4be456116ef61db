/* Compiles a trace into a compiled call.
 *
 * Forward programs are compiled immediately. Backward programs are compiled when a backward pass
 * first needs them. Ownership: as noted at the functions. Threads: callers hold the host lock.
 */
#ifndef MPG_COMPILE_COMPILE_H
#define MPG_COMPILE_COMPILE_H

#include "compile/compiled.h"
#include "compile/saved/recompute_budget.h"

typedef struct mpg_compile_options {
  bool recording;
  bool exact;         /* disables rewrites that are not bit-identical */
  bool unfused;       /* disables fusion, for comparison */
  bool lean;          /* keeps no values between calls, such as packed weights */
  const bool *wanted; /* per given input: true if it needs a gradient */
  /* Used by pipeline runs (pipeline_run.h). mpg_compiled_call requires MPG_STAGES_NONE. */
  mpg_compile_stages stages;
  /* Per given input: true if other micro-batches wait for its gradient; NULL if none do. */
  const bool *carried;
  uint32_t num_bound; /* number of bound inputs, which come last among the given inputs */
  /* If recording, values are recomputed to stay within this budget. NULL means unlimited. */
  const mpg_memory_budget *budget;
  int64_t offload_elements; /* the fewest elements of an offloaded value (offloaded_values.h) */
} mpg_compile_options;

/* Compiles a finished trace. `inputs` are its traced input arrays, without captured ones. Takes
 * ownership of the trace's constants. *compiled is a new reference. */
mpg_status mpg_compile(mpg_trace *trace, const mpg_array *inputs, uint32_t num_inputs,
                       mpg_array *const *outputs, uint32_t num_outputs,
                       const mpg_compile_options *options, mpg_compiled **compiled);

/* Sets *backward to the backward programs for a backward signature, and compiles them on first use.
 * *backward is borrowed. */
mpg_status mpg_compiled_get_backward(mpg_compiled *compiled, const bool *arrives,
                                     const bool *summed, const uint8_t *places, bool retain,
                                     bool train, mpg_compiled_backward **backward);
/* Compiles the backward programs of a training step: for gradients of all outputs, and for all
 * inputs that need one. */
mpg_status mpg_compiled_make_whole_backward(mpg_compiled *compiled);

#endif
