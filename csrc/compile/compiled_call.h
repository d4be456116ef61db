/* Compiled calls: a traced function as programs per device, forward and backward, for one
 * signature.
 *
 * The forward programs come in two kinds: for prediction (nothing is kept), and for recording,
 * which keep exactly the values that the gradient reads. Backward programs are made when a backward
 * first needs them, one set for each backward_signature of: which outputs got a gradient, where
 * each input's gradient goes (nowhere, a new array, written or added to the user's), and whether
 * the graph is retained.
 *
 * A call's memory is its frame: the planned blocks of each device. They come from the devices'
 * pools and go back as soon as the work is queued, or, when recorded, after the backward. So calls
 * may overlap, and two forwards before a backward have two frames.
 *
 * External arrays of the programs are numbered: inputs (the user's, then constants), results
 * (memory of outputs), gradients of outputs, gradients of inputs, and what was summed up before for
 * these.
 *
 * On the tape, a call's inputs are those that are not bound, constants, then bound ones, which are
 * mostly one parameter set (autograd/parameter_set.h).
 *
 * Of the user's inputs, the last ones may be *bound*: the same arrays from call to call (a block's
 * parameters). A binding has a number; if a call has the number that the compiled call knows, these
 * arrays aren't checked before the work is queued. If no gradient is recorded, values computed from
 * bound inputs and constants alone (packed or folded weights) are kept with the binding. An
 * invariants program computes them at the first call, and recomputes them after a write to one of
 * these arrays (invariants.c). They follow the inputs among the external arrays. At most a few
 * signatures of a function keep such values at a time.
 *
 * Ownership: a compiled call is counted; tapes of recorded calls hold references. Threads: host
 * lock.
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
  uint64_t binding; /* the same number, the same bound arrays with the same tensors and nodes; 0:
                       look at them */
  mpg_parameter_set *parameters; /* the bound ones, where they are variables; NULL: to be recorded
                         one by one. Borrowed */
} mpg_inputs;
static inline uint32_t mpg_inputs_count(const mpg_inputs *inputs) {
  return inputs->num_given + inputs->num_bound;
}
static inline mpg_array *mpg_inputs_at(const mpg_inputs *inputs, uint32_t i) {
  return i < inputs->num_given ? inputs->given[i] : inputs->bound[i - inputs->num_given];
}

/* The tensors of bound inputs and constants, then the kept values. All are owned, because arrays
 * may get other memory while a call waits. Counted: a call in progress keeps its binding. */
typedef struct mpg_binding {
  int32_t references;
  uint64_t number;
  uint64_t launched; /* its own number among those of the compiled call, which frames know addresses
                        by; 0 where number is 0 */
  bool made;         /* the invariants has run, for the contents told by `versions` */
  uint64_t watched;  /* mpg_storage_watched_writes when these were last compared */
  uint32_t *versions; /* per source of the invariants */
  uint32_t num_fixed, num_kept;
  mpg_tensor tensors[];
} mpg_binding;

typedef struct mpg_compiled_output {
  uint32_t external; /* an input that is passed through, or a result */
  uint32_t same;  /* first output that is the same value: its place on the tape is this one's too */
  uint32_t input; /* the input it is, whose place on the tape it keeps; MPG_NO_BASE */
  mpg_desc desc;
} mpg_compiled_output;

typedef struct mpg_compiled_backward {
  struct mpg_compiled_backward *next;
  bool *arrives;   /* per output: it has a gradient */
  uint8_t *places; /* per input: mpg_gradient_place */
  bool *summed;    /* per input: a sum arrives that its gradient is added to */
  bool retain, train;
  bool *gives;   /* per input: its gradient array is written; else it is zero */
  bool *reached; /* per input: the outputs that have a gradient were computed from it on the tape,
                    or a sum arrives. Others keep the gradient they have, as those do that no
                    recorded op leads to */
  bool reaches_bound;     /* all bound inputs are reached */
  uint64_t parameter_set; /* number of the parameter set that it is known to fit */
  mpg_program_set *programs;
  mpg_plan plan;
  void *space; /* for the next call's bookkeeping; owned */
} mpg_compiled_backward;

typedef enum mpg_compile_stages {
  MPG_STAGES_NONE,     /* one segment a device */
  MPG_STAGES_WHOLE,    /* segments by stage */
  MPG_STAGES_DEFERRED, /* and in the backward, deferred work in segments of its own */
} mpg_compile_stages;

typedef struct mpg_compiled {
  int32_t references;
  mpg_graph graph;    /* rewritten and simplified */
  mpg_graph original; /* as traced, where it was rewritten: what gradients of gradients are taken
                         of; else empty */
  mpg_value *original_inputs;
  mpg_value *traced;    /* inputs of all nodes, then outputs, as traced: gradients are summed along
                           these, as eager ones are */
  mpg_array *constants; /* owned */
  uint32_t num_given, num_constants, num_inputs; /* inputs: given, then constants */
  uint32_t num_bound; /* how many of the given ones are bound: the last */
  mpg_value *inputs;  /* their values */
  mpg_compiled_output *outputs;
  uint32_t num_outputs;
  mpg_value *results; /* values that have memory of their own as outputs */
  uint32_t num_results;
  uint32_t *external; /* per value of the graph: external array, or MPG_NO_BASE */
  bool recording, exact, unfused;
  bool starts;     /* a node starts a gradient (mpg_node_starts) */
  uint64_t agreed; /* the graph's number in all processes; 0 if it spans no ranks */
  mpg_compile_stages stages;
  mpg_drawn *drawn; /* per random call: where the rows of a micro-batch lie in it, once it was
                       checked (pipeline_run.h); NULL: not known */
  bool
      *carried; /* per given input: its gradient is what other micro-batches wait for; NULL: none */
  bool *wanted; /* per input: needs a gradient */
  bool *saved;  /* per value: lives until backward; NULL for prediction */
  bool *saved_external; /* per external array of the forward: holds a saved value; NULL for
                           prediction */
  mpg_plan plan;
  mpg_program_set *programs;
  mpg_value *kept; /* what the invariants makes and the programs read */
  uint32_t num_kept;
  uint32_t *sources; /* what the invariants reads: numbers of fixed arrays */
  uint32_t num_sources;
  mpg_program_set *invariants; /* NULL: nothing is kept */
  mpg_plan invariant_plan;
  int *invariant_threads; /* per slot of that plan: of the device when it ran; layouts may depend on
                            it */
  mpg_compiled_backward *backwards;
  uint64_t saved_in;    /* number of the parameter set that was last told of saved_external */
  mpg_binding *binding; /* of the latest call; owned reference */
  const void *family;   /* identifies the signature cache of its function; only compared */
  /* Links of the list of compiled calls that keep values. keeper_link is NULL outside the list. */
  struct mpg_compiled *next_keeper, **keeper_link;
  uint64_t bindings;               /* made so far */
  void *space;                     /* for the next call's bookkeeping; owned */
  struct mpg_recorded_call *spare; /* for the next recorded call: a list; owned */
  uint64_t calls, last_used;
  size_t held; /* bytes of frames that wait for their backward */
  uint32_t frames;
} mpg_compiled;

/* The limit of planned bytes per device, forward and backward together (recompute_budget.c). */
typedef struct mpg_memory_limit {
  mpg_device_id device; /* type 0: all devices without their own limit */
  size_t bytes;
} mpg_memory_limit;
typedef struct mpg_memory_budget {
  mpg_memory_limit *limits;
  uint32_t count;
} mpg_memory_budget;

typedef struct mpg_compile_options {
  bool recording;
  bool exact;                /* no rewrite that changes bits */
  bool unfused;              /* no fusion: to compare with */
  const bool *wanted;        /* per given input: it is on the tape */
  mpg_compile_stages stages; /* for pipeline runs (pipeline_run.h); such a call cannot be called
                                by mpg_compiled_call */
  const bool *carried;       /* per given input; NULL: none */
  uint32_t num_bound;        /* of the given inputs, the last: those that come with a binding */
  const mpg_memory_budget
      *budget; /* when recording: values are recomputed to stay within it; NULL: no limit */
} mpg_compile_options;

/* Compiles an ended trace whose first inputs are `inputs`. Takes over what the trace holds. */
mpg_status mpg_compile(mpg_trace *trace, const mpg_array *inputs, uint32_t num_inputs,
                       mpg_array *const *outputs, uint32_t num_outputs,
                       const mpg_compile_options *options, mpg_compiled **compiled); /* new */
void mpg_compiled_release(mpg_compiled *compiled);
/* A captured array's former memory and tape node, only for comparison, and the array to read in its
 * place. */
typedef struct mpg_captured {
  const void *storage;
  size_t offset;
  const void *node;
  const mpg_array *array;
} mpg_captured;
/* Whether the arrays can stand for the constants that were there, and for views of them; with
 * `change`, they do. recording: while autograd is. */
bool mpg_compiled_recapture(mpg_compiled *compiled, const mpg_captured *captured, size_t count,
                            bool recording, bool change);

/* recompute_budget.c: gives regions to nodes until the plan fits the budget, computing as little
 * again as it can. Fails, naming the bytes needed on each device, when it can't. */
mpg_status mpg_compiled_fit(mpg_compiled *compiled, const mpg_memory_budget *budget);
/* The plan of both phases, for regions as they are now (compile.c). plan: zeroed. */
mpg_status mpg_compiled_measure(mpg_compiled *compiled, mpg_plan *plan);

void mpg_compiled_unbind(mpg_compiled *compiled); /* forgets the binding */
/* Releases the kept values of all compiled calls that aren't running, because a device is out of
 * memory. The next call recomputes them. */
void mpg_compiled_release_kept(void);
void mpg_compiled_free_spare(mpg_compiled *compiled);

/* Calls it: inputs as given at the trace (same shapes, dtypes, devices); outputs: empty structs. */
mpg_status mpg_compiled_call(mpg_compiled *compiled, const mpg_inputs *inputs, mpg_array *outputs);

/* Backward programs for a backward_signature, made when there are none yet (compile.c). Borrowed.
 */
mpg_status mpg_compiled_get_backward(mpg_compiled *compiled, const bool *arrives,
                                     const bool *summed, const uint8_t *places, bool retain,
                                     bool train, mpg_compiled_backward **backward);
/* The same function as ops run and recorded one by one (expand.c): outputs are on the tape.
 * versions: those the inputs had when the call ran. random: that of the call. sequence: number on
 * the tape of the graph's first node. */
mpg_status mpg_compiled_replay(mpg_compiled *compiled, const mpg_array *inputs,
                               const uint32_t *versions, mpg_random_key random, uint64_t sequence,
                               mpg_array *outputs);

/* Fills *reached with one flag for each of the compiled->num_inputs inputs, captured arrays
 * included: true if an output with a gradient depends on the input through values that aren't
 * detached. arrives: one flag for each output. The caller frees *reached. */
mpg_status mpg_compiled_find_reached(const mpg_compiled *compiled, const bool *arrives,
                                     bool **reached);

/* invariants.c. Makes the invariants of a simplified graph, where there is something to keep. */
mpg_status mpg_compiled_make_invariants(mpg_compiled *compiled);
/* The binding of a call, with a reference; made where the compiled call has another. */
mpg_status mpg_compiled_bind(mpg_compiled *compiled, const mpg_inputs *inputs,
                             mpg_binding **binding);
void mpg_binding_release(mpg_binding *binding); /* NULL is allowed */
/* Runs the invariants unless the kept values are up to date. given: the inputs that are not bound,
 * which it does not read. */
mpg_status mpg_compiled_refresh(mpg_compiled *compiled, mpg_binding *binding,
                                const mpg_tensor *given);
/* Input i of a call: given, or a constant. */
static inline mpg_array *mpg_compiled_input(const mpg_compiled *c, const mpg_inputs *inputs,
                                            uint32_t i) {
  return i < c->num_given ? mpg_inputs_at(inputs, i) : &c->constants[i - c->num_given];
}
static inline uint32_t mpg_compiled_first_fixed(const mpg_compiled *c) {
  return c->num_given - c->num_bound;
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
