/* Compiled calls: the forward and backward programs of a traced function, per device, for one
 * signature.
 *
 * There are two kinds of forward programs: those for prediction keep no values, and those for
 * recording keep exactly the values that the gradient reads. Backward programs are built on first
 * use, one set per backward signature: which outputs have a gradient, the destination of each
 * input's gradient (none, a new array, or the user's array, which is overwritten or added to), and
 * whether the graph is retained.
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
 * which are usually one parameter set (autograd/parameter_set.h).
 *
 * The last of the user's inputs may be *bound*: the same arrays in every call (a block's
 * parameters). A binding has a number. If a call has the number of the compiled call's current
 * binding, these arrays aren't checked before the work is queued. If no gradient is recorded,
 * values computed from bound inputs and constants alone (packed or folded weights) are kept with
 * the binding. An invariants program computes them at the first call, and recomputes them after a
 * write to one of these arrays (invariants.c). Compiled calls share kept values that they compute
 * in the same way (kept_values.h). The kept values follow the inputs among the external arrays. At
 * most a few signatures of a function keep values at a time.
 *
 * Ownership: a compiled call is reference-counted; the tape nodes of recorded calls hold
 * references. Threads: callers hold the host lock.
 */
#ifndef MPG_COMPILE_COMPILED_H
#define MPG_COMPILE_COMPILED_H

#include "autograd/parameter_set.h"
#include "autograd/trace.h"
#include "compile/invariants/kept_values.h"
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
  /* Number of the binding. Calls with equal numbers have the same bound arrays, with the same
   * tensors and tape nodes. 0 means that the arrays must be checked. */
  uint64_t binding;
  /* The bound arrays as one parameter set if all of them are variables. NULL records them one by
   * one. Borrowed. */
  mpg_parameter_set *parameters;
} mpg_inputs;
static inline uint32_t mpg_inputs_count(const mpg_inputs *inputs) {
  return inputs->num_given + inputs->num_bound;
}
static inline mpg_array *mpg_inputs_at(const mpg_inputs *inputs, uint32_t i) {
  return i < inputs->num_given ? inputs->given[i] : inputs->bound[i - inputs->num_given];
}

/* A binding: the tensors of bound inputs and constants, then those of the kept values. All are
 * owned, because other threads may replace the arrays' memory while a call waits.
 * Reference-counted, because a call in progress keeps its binding. */
typedef struct mpg_binding {
  int32_t references;
  uint64_t number;
  /* Serial number of the binding within its compiled call. Frames cache addresses under this
   * number. 0 if `number` is 0. */
  uint64_t launched;
  bool made;        /* the kept values were up to date at the last check */
  uint64_t watched; /* mpg_storage_watched_writes at the last check */
  uint32_t num_fixed, num_kept;
  mpg_kept_value **values; /* owned references to the kept values */
  mpg_tensor tensors[];
} mpg_binding;

/* A program that computes kept values. */
typedef struct mpg_invariants {
  mpg_program_set *programs; /* NULL until it is needed */
  mpg_plan plan;
  bool *computes; /* per kept value: the program computes it; owned */
} mpg_invariants;
void mpg_invariants_free(mpg_invariants *invariants);

typedef struct mpg_compiled_output {
  uint32_t external; /* external array of a passed-through input, or of a result */
  /* Index of the first output with the same value; both use that output's position on the tape. */
  uint32_t same;
  /* Index of the input that this output passes through, keeping the input's tape position;
   * MPG_NO_BASE if none. */
  uint32_t input;
  mpg_desc desc;
  bool numpy; /* an array of mx.np */
} mpg_compiled_output;

typedef struct mpg_compiled_backward {
  struct mpg_compiled_backward *next;
  bool *arrives;   /* per output: true if it has a gradient */
  uint8_t *places; /* per input: destination of its gradient (mpg_gradient_place) */
  bool *summed;    /* per input: true if its gradient is added to an earlier sum */
  bool retain, train;
  bool *gives; /* per input: true if its gradient array is written, false if the gradient is zero */
  /* Per input: true if a recorded path leads to it from an output that has a gradient, or if it has
   * an earlier sum. The gradients of all other inputs stay unchanged, as for variables outside of
   * the recorded computation. */
  bool *reached;
  bool reaches_bound;     /* true if all bound inputs are reached */
  uint64_t parameter_set; /* number of the parameter set that last used this backward */
  mpg_program_set *programs;
  mpg_plan plan;
  void *space; /* bookkeeping memory for the next call; owned */
} mpg_compiled_backward;

typedef enum mpg_compile_stages {
  MPG_STAGES_NONE,     /* each program is one segment (graph/program/program.h) */
  MPG_STAGES_WHOLE,    /* one segment per stage */
  MPG_STAGES_DEFERRED, /* one segment per stage, plus segments for deferred backward work */
} mpg_compile_stages;

/* Free list of memory blocks that recorded calls reuse (compiled_call.c). */
typedef struct mpg_spare_call {
  struct mpg_spare_call *next;
} mpg_spare_call;

typedef struct mpg_compiled {
  int32_t references;
  mpg_graph graph; /* the graph after rewrites and simplification */
  /* The graph as traced if it was rewritten, else empty. Gradients of gradients are computed from
   * it. */
  mpg_graph original;
  mpg_value *original_inputs;
  mpg_text shardings; /* report of the partitioning pass (graph/partition/partition.h) */
  /* Inputs of all nodes, then outputs, as traced. Gradients are summed along these edges, so that
   * sums have the same order as in eager mode. */
  mpg_value *traced;
  mpg_array *constants;                          /* owned */
  uint32_t num_given, num_constants, num_inputs; /* num_inputs: given inputs, then constants */
  uint32_t num_bound; /* number of bound inputs, which come last among the given inputs */
  mpg_value *inputs;  /* graph values of the inputs */
  mpg_compiled_output *outputs;
  uint32_t num_outputs;
  mpg_value *results; /* values computed into new arrays that outputs return */
  uint32_t num_results;
  uint32_t *external; /* per value of the graph: external array, or MPG_NO_BASE */
  bool recording, exact, unfused;
  bool starts; /* true if a node starts a gradient, like a loss (mpg_node_starts) */
  /* Number of the graph, the same on all ranks; 0 if the graph does not span ranks. */
  uint64_t agreed;
  mpg_compile_stages stages;
  /* Per random call: the position of a micro-batch's rows in the draw. NULL until
   * mpg_pipeline_run_check or mpg_pipeline_run_compare_draws sets it. */
  mpg_drawn *drawn;
  /* Per given input: true if other micro-batches wait for its gradient; NULL if none do. */
  bool *carried;
  bool *wanted; /* per input: true if it needs a gradient */
  bool *saved;  /* per value: true if it must live until backward; NULL for prediction */
  /* Per value of the graph: the copy of the value, or of its root, on the device to which the value
   * is offloaded; MPG_NO_VALUE if none. NULL if no value is offloaded. */
  mpg_value *recalled;
  int64_t offload_elements; /* the fewest elements of an offloaded value */
  /* Per external array of the forward: true if it holds a saved value; NULL for prediction. */
  bool *saved_external;
  mpg_plan plan;
  mpg_program_set *programs;
  mpg_value *kept; /* values that the invariants program computes and the other programs read */
  uint32_t num_kept;
  mpg_recipes recipes; /* of the kept values */
  /* The program that computes all kept values, and the one that last computed some of them. */
  mpg_invariants invariants, some_invariants;
  /* Per device of the recipes: its number of threads at the last check. If it has changed, the kept
   * values are recomputed, because packed layouts may depend on it. */
  int *invariant_threads;
  mpg_compiled_backward *backwards;
  /* Number of the parameter set that last got saved_external (mpg_parameter_set_save) */
  uint64_t saved_in;
  mpg_binding *binding; /* binding of the latest call; owned reference */
  const void *family;   /* address of the function's signature cache; only compared, never read */
  /* Links of the list of compiled calls that keep values. keeper_link is NULL outside the list. */
  struct mpg_compiled *next_keeper, **keeper_link;
  uint64_t bindings;     /* number of bindings created so far */
  void *space;           /* bookkeeping memory for the next call; owned */
  mpg_spare_call *spare; /* owned */
  uint64_t calls, last_used;
  size_t held; /* total bytes of the frames that wait for their backward */
  uint32_t frames;
} mpg_compiled;

void mpg_compiled_release(mpg_compiled *compiled);
void mpg_compiled_unbind(mpg_compiled *compiled); /* releases the binding */
void mpg_binding_release(mpg_binding *binding);   /* NULL is allowed */
void mpg_compiled_backward_free(mpg_compiled_backward *backward);

/* Replacement of a captured array. `storage`, `offset` and `node` are its previous memory and tape
 * node, which are only compared. */
typedef struct mpg_captured {
  const void *storage;
  size_t offset;
  const void *node;
  const mpg_array *array;
} mpg_captured;
/* True if the new arrays can replace the captured arrays, and views of them, among the compiled
 * call's constants. With `change`, replaces them. `recording` is true while autograd is
 * recording. */
bool mpg_compiled_recapture(mpg_compiled *compiled, const mpg_captured *captured, size_t count,
                            bool recording, bool change);

/* Fills *reached with one flag for each of the compiled->num_inputs inputs, including captured
 * arrays: true if an output with a gradient depends on the input through values that aren't
 * detached. `arrives` has one flag for each output. The caller frees *reached. */
mpg_status mpg_compiled_find_reached(const mpg_compiled *compiled, const bool *arrives,
                                     bool **reached);

/* Returns input i of a call: a given input or a constant. */
static inline mpg_array *mpg_compiled_input(const mpg_compiled *c, const mpg_inputs *inputs,
                                            uint32_t i) {
  return i < c->num_given ? mpg_inputs_at(inputs, i) : &c->constants[i - c->num_given];
}
static inline uint32_t mpg_compiled_first_fixed(const mpg_compiled *c) {
  return c->num_given - c->num_bound;
}
/* True if a captured array needs a gradient, which pipelines do not support. */
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
