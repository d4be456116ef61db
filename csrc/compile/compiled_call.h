/* Compiled calls: a traced function as programs per device, forward and backward, for one
 * signature.
 *
 * There are two kinds of forward programs: for prediction (no values are kept), and for recording,
 * which keep exactly the values that the gradient reads. Backward programs are built on first use,
 * one set per backward signature: which outputs have a gradient, the destination of each input's
 * gradient (none, a new array, written or added to the user's), and whether the graph is retained.
 *
 * A call's memory is its frame: the planned blocks of each device. They come from the devices'
 * pools and return there as soon as the work is queued or, when recorded, after the backward. So
 * calls may overlap, and two forwards before a backward have two frames.
 *
 * External arrays of the programs are numbered in this order: inputs (the user's, then constants),
 * results (memory of outputs), gradients of outputs, gradients of inputs, and the earlier sums to
 * which the gradients of inputs are added.
 *
 * On the tape, a call's inputs are the unbound inputs, the constants, and then the bound inputs,
 * which are mostly one parameter set (autograd/parameter_set.h).
 *
 * The last of the user's inputs may be *bound*: the same arrays from call to call (a block's
 * parameters). A binding has a number. If a call has the number of the compiled call's current
 * binding, these arrays aren't checked before the work is queued. If no gradient is recorded,
 * values computed from bound inputs and constants alone (packed or folded weights) are kept with
 * the binding. An invariants program computes them at the first call, and recomputes them after a
 * write to one of these arrays (invariants.c). The kept values follow the inputs among the external
 * arrays. At most a few signatures of a function keep values at a time.
 *
 * Ownership: a compiled call is reference-counted; tapes of recorded calls hold references.
 * Threads: host lock.
 */
#ifndef MPG_COMPILE_COMPILED_CALL_H
#define MPG_COMPILE_COMPILED_CALL_H

#include "autograd/parameter_set.h"
#include "autograd/trace.h"
#include "graph/program/program.h"

typedef enum mpg_gradient_place {
  MPG_PLACE_NONE,
  MPG_PLACE_NEW,
  MPG_PLACE_WRITE,
  MPG_PLACE_ADD
} mpg_gradient_place;

typedef struct mpg_inputs {
  mpg_array *const *given, *const *bound; /* borrowed; the arrays stay alive during the call */
  uint32_t num_given, num_bound;
  /* Equal numbers mean the same bound arrays with the same tensors and nodes. 0 means that they
   * must be checked. */
  uint64_t binding;
  /* The bound arrays if they are variables; NULL to record them one by one. Borrowed. */
  mpg_parameter_set *parameters;
} mpg_inputs;
static inline uint32_t mpg_inputs_count(const mpg_inputs *inputs) {
  return inputs->num_given + inputs->num_bound;
}
static inline mpg_array *mpg_inputs_at(const mpg_inputs *inputs, uint32_t i) {
  return i < inputs->num_given ? inputs->given[i] : inputs->bound[i - inputs->num_given];
}

/* The tensors of bound inputs and constants, then the kept values. All are owned, because other
 * threads may replace the arrays' memory while a call waits. Reference-counted, because a call in
 * progress keeps its binding. */
typedef struct mpg_binding {
  int32_t references;
  uint64_t number;
  /* Serial number among the compiled call's bindings, under which frames cache addresses; 0 if
   * `number` is 0. */
  uint64_t launched;
  bool made;          /* the invariants program has run, for the contents of `versions` */
  uint64_t watched;   /* mpg_storage_watched_writes at the last comparison */
  uint32_t *versions; /* per source array of the invariants program */
  uint32_t num_fixed, num_kept;
  mpg_tensor tensors[];
} mpg_binding;

typedef struct mpg_compiled_output {
  uint32_t external; /* external array of a passed-through input, or of a result */
  uint32_t same;     /* first output with the same value; they share a position on the tape */
  /* The input that is passed through and whose tape position the output keeps; MPG_NO_BASE if
   * none. */
  uint32_t input;
  mpg_desc desc;
} mpg_compiled_output;

typedef struct mpg_compiled_backward {
  struct mpg_compiled_backward *next;
  bool *arrives;   /* per output: true if it has a gradient */
  uint8_t *places; /* per input: mpg_gradient_place */
  bool *summed;    /* per input: true if its gradient is added to an earlier sum */
  bool retain, train;
  bool *gives; /* per input: true if its gradient array is written, false if it is zero */
  /* Per input: true if a recorded path leads to it from an output that has a gradient, or if it has
   * an earlier sum. The remaining inputs keep their gradient, like variables outside of the
   * recorded computation. */
  bool *reached;
  bool reaches_bound;     /* all bound inputs are reached */
  uint64_t parameter_set; /* number of the parameter set that was last checked to fit */
  mpg_program_set *programs;
  mpg_plan plan;
  void *space; /* bookkeeping memory for the next call; owned */
} mpg_compiled_backward;

typedef enum mpg_compile_stages {
  MPG_STAGES_NONE,     /* one segment per device */
  MPG_STAGES_WHOLE,    /* segments by stage */
  MPG_STAGES_DEFERRED, /* segments by stage; deferred work of the backward in separate segments */
} mpg_compile_stages;

typedef struct mpg_compiled {
  int32_t references;
  mpg_graph graph; /* rewritten and simplified */
  /* The graph as traced if it was rewritten, else empty. Gradients of gradients are computed from
   * it. */
  mpg_graph original;
  mpg_value *original_inputs;
  /* Inputs of all nodes, then outputs, as traced. Gradients are summed along these, in the same
   * order as eager gradients. */
  mpg_value *traced;
  mpg_array *constants;                          /* owned */
  uint32_t num_given, num_constants, num_inputs; /* inputs: given, then constants */
  uint32_t num_bound; /* number of bound inputs, which are the last of the given ones */
  mpg_value *inputs;  /* values of the inputs */
  mpg_compiled_output *outputs;
  uint32_t num_outputs;
  mpg_value *results; /* values that have separate memory as outputs */
  uint32_t num_results;
  uint32_t *external; /* per value of the graph: external array, or MPG_NO_BASE */
  bool recording, exact, unfused;
  bool starts;     /* a node starts a gradient (mpg_node_starts) */
  uint64_t agreed; /* number of the graph, equal on all ranks; 0 if it does not span ranks */
  mpg_compile_stages stages;
  /* Per random call: the position of a micro-batch's rows in its output, once checked
   * (pipeline_run.h); NULL if unknown. */
  mpg_drawn *drawn;
  /* Per given input: true if other micro-batches wait for its gradient; NULL if none do. */
  bool *carried;
  bool *wanted; /* per input: true if it needs a gradient */
  bool *saved;  /* per value: true if it lives until backward; NULL for prediction */
  /* Per external array of the forward: true if it holds a saved value; NULL for prediction. */
  bool *saved_external;
  mpg_plan plan;
  mpg_program_set *programs;
  mpg_value *kept; /* values that the invariants program computes and the other programs read */
  uint32_t num_kept;
  uint32_t *sources; /* fixed arrays that the invariants program reads, by number */
  uint32_t num_sources;
  mpg_program_set *invariants; /* NULL if no values are kept */
  mpg_plan invariant_plan;
  /* Per slot of that plan: the device's number of threads when it ran, because layouts may depend
   * on it. */
  int *invariant_threads;
  mpg_compiled_backward *backwards;
  uint64_t saved_in;    /* number of the parameter set that last received saved_external */
  mpg_binding *binding; /* binding of the latest call; owned reference */
  const void *family;   /* address of its function's signature cache; only compared */
  /* Links of the list of compiled calls that keep values. keeper_link is NULL outside the list. */
  struct mpg_compiled *next_keeper, **keeper_link;
  uint64_t bindings;               /* number of bindings created so far */
  void *space;                     /* bookkeeping memory for the next call; owned */
  struct mpg_recorded_call *spare; /* list of recorded calls for reuse; owned */
  uint64_t calls, last_used;
  size_t held; /* bytes of frames that wait for their backward */
  uint32_t frames;
} mpg_compiled;

/* Limit of planned bytes per device, forward and backward together (recompute_budget.c). */
typedef struct mpg_memory_limit {
  mpg_device_id device; /* type 0 means all devices without their own limit */
  size_t bytes;
} mpg_memory_limit;
typedef struct mpg_memory_budget {
  mpg_memory_limit *limits;
  uint32_t count;
} mpg_memory_budget;

typedef struct mpg_compile_options {
  bool recording;
  bool exact;         /* disables rewrites that change bits */
  bool unfused;       /* disables fusion, for comparison */
  const bool *wanted; /* per given input: true if it is on the tape */
  /* For pipeline runs (pipeline_run.h); mpg_compiled_call does not accept calls with stages. */
  mpg_compile_stages stages;
  const bool *carried; /* per given input; NULL if none */
  uint32_t num_bound;  /* number of bound inputs, which are the last of the given ones */
  /* If recording, values are recomputed to stay within this budget. NULL means unlimited. */
  const mpg_memory_budget *budget;
} mpg_compile_options;

/* Compiles an ended trace whose first inputs are `inputs`. Takes ownership of the trace's
 * constants. */
mpg_status mpg_compile(mpg_trace *trace, const mpg_array *inputs, uint32_t num_inputs,
                       mpg_array *const *outputs, uint32_t num_outputs,
                       const mpg_compile_options *options, mpg_compiled **compiled); /* new */
void mpg_compiled_release(mpg_compiled *compiled);
/* The previous memory and tape node of a captured array, only for comparison, and the array that
 * replaces it. */
typedef struct mpg_captured {
  const void *storage;
  size_t offset;
  const void *node;
  const mpg_array *array;
} mpg_captured;
/* True if the arrays can replace the compiled call's constants and views of them. With `change`,
 * replaces them. `recording` is true while autograd is recording. */
bool mpg_compiled_recapture(mpg_compiled *compiled, const mpg_captured *captured, size_t count,
                            bool recording, bool change);

/* recompute_budget.c: assigns recompute regions to nodes until the plan fits the budget, with as
 * little recomputation as possible. If it cannot fit, fails with the bytes needed on each
 * device. */
mpg_status mpg_compiled_fit(mpg_compiled *compiled, const mpg_memory_budget *budget);
/* Plans both phases for the current regions (compile.c). `plan` must be zeroed. */
mpg_status mpg_compiled_measure(mpg_compiled *compiled, mpg_plan *plan);

void mpg_compiled_unbind(mpg_compiled *compiled); /* releases the binding */
/* Releases the kept values of all compiled calls that aren't running, because a device is out of
 * memory. The next call recomputes them. */
void mpg_compiled_release_kept(void);
void mpg_compiled_free_spare(mpg_compiled *compiled);

/* Calls the function. `inputs` have the shapes, dtypes and devices of the trace. `outputs` are
 * empty structs. */
mpg_status mpg_compiled_call(mpg_compiled *compiled, const mpg_inputs *inputs, mpg_array *outputs);

/* Returns the backward programs for a backward signature, compiling them on first use (compile.c).
 * Borrowed.
 */
mpg_status mpg_compiled_get_backward(mpg_compiled *compiled, const bool *arrives,
                                     const bool *summed, const uint8_t *places, bool retain,
                                     bool train, mpg_compiled_backward **backward);
/* Replays the function as ops that are run and recorded one by one (replay.c), so that `outputs`
 * are on the tape. `versions` are the inputs' versions at the call, `random` is the call's key, and
 * `sequence` is the number on the tape of the graph's first node. */
mpg_status mpg_compiled_replay(mpg_compiled *compiled, const mpg_array *inputs,
                               const uint32_t *versions, mpg_random_key random, uint64_t sequence,
                               mpg_array *outputs);

/* Fills *reached with one flag for each of the compiled->num_inputs inputs, including captured
 * arrays: true if an output with a gradient depends on the input through values that aren't
 * detached. `arrives` has one flag for each output. The caller frees *reached. */
mpg_status mpg_compiled_find_reached(const mpg_compiled *compiled, const bool *arrives,
                                     bool **reached);

/* invariants.c. Builds the invariants program of a simplified graph if it has values to keep. */
mpg_status mpg_compiled_make_invariants(mpg_compiled *compiled);
/* Returns the binding of a call with a reference, creating it if the compiled call has a different
 * one. */
mpg_status mpg_compiled_bind(mpg_compiled *compiled, const mpg_inputs *inputs,
                             mpg_binding **binding);
void mpg_binding_release(mpg_binding *binding); /* NULL is allowed */
/* Runs the invariants program unless the kept values are up to date. `given` are the unbound
 * inputs, which it does not read. */
mpg_status mpg_compiled_refresh(mpg_compiled *compiled, mpg_binding *binding,
                                const mpg_tensor *given);
/* Returns input i of a call, which is given or a constant. */
static inline mpg_array *mpg_compiled_input(const mpg_compiled *c, const mpg_inputs *inputs,
                                            uint32_t i) {
  return i < c->num_given ? mpg_inputs_at(inputs, i) : &c->constants[i - c->num_given];
}
static inline uint32_t mpg_compiled_first_fixed(const mpg_compiled *c) {
  return c->num_given - c->num_bound;
}
/* True if a captured array has a gradient, which a pipeline cannot return. */
static inline bool mpg_compiled_captures_variable(const mpg_compiled *c) {
  return memchr(c->wanted + c->num_given, true, c->num_inputs - c->num_given) != NULL;
}
static inline uint32_t mpg_compiled_num_fixed(const mpg_compiled *c) {
  return c->num_bound + c->num_constants + c->num_kept;
}

static inline uint32_t mpg_compiled_kept(const mpg_compiled *c, uint32_t i) {
  return c->num_inputs + i;
}
static inline uint32_t mpg_compiled_result(const mpg_compiled *c, uint32_t i) {
  return c->num_inputs + c->num_kept + i;
}
/* Returns the graph value of output i: a result or an input that is passed through. */
static inline const mpg_graph_value *mpg_compiled_output_value(const mpg_compiled *c, uint32_t i) {
  uint32_t external = c->outputs[i].external, first = mpg_compiled_result(c, 0);
  return mpg_graph_at(&c->graph,
                      external < first ? c->inputs[external] : c->results[external - first]);
}
static inline uint32_t mpg_compiled_out_grad(const mpg_compiled *c, uint32_t i) {
  return mpg_compiled_result(c, c->num_results) + i;
}
static inline uint32_t mpg_compiled_in_grad(const mpg_compiled *c, uint32_t i) {
  return mpg_compiled_out_grad(c, c->num_outputs) + i;
}
static inline uint32_t mpg_compiled_forward_externals(const mpg_compiled *c) {
  return mpg_compiled_result(c, c->num_results);
}
static inline uint32_t mpg_compiled_sum(const mpg_compiled *c, uint32_t i) {
  return mpg_compiled_in_grad(c, c->num_inputs) + i;
}
static inline uint32_t mpg_compiled_all_externals(const mpg_compiled *c) {
  return mpg_compiled_sum(c, c->num_inputs);
}

#endif
