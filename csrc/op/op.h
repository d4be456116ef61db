/* Ops: one descriptor a row of ops.def.
 *
 * A descriptor says everything about an op but its kernels, which are one column per backend
 * (op/kernel.h). They are constant after mpg_registry_init, but that libraries of users may add
 * some (op/user/extension.h), under the host lock. Any thread may read a descriptor; names are
 * found under the host lock.
 */
#ifndef MPG_OP_OP_H
#define MPG_OP_OP_H

#include "op/params.h"

/* Ids, in the order of ops.def. */
typedef enum mpg_op_id {
#define MPG_OP_ROW(id, ...) MPG_OP_##id,
#define MPG_COMPOSED_ROW(id, ...) MPG_OP_##id,
#include "op/ops.def"
#undef MPG_OP_ROW
#undef MPG_COMPOSED_ROW
  MPG_OP_COUNT, /* the rows of libraries (op/user/extension.h) come behind */
  MPG_OP_ADDED = 512,
  MPG_OP_LIMIT = MPG_OP_COUNT + MPG_OP_ADDED
} mpg_op_id;

typedef struct mpg_op mpg_op;
typedef struct mpg_extension mpg_extension;

/* --- Inference -------------------------------------------------------------------------------- */
/* Fills output descs from input descs and parameters, checks both, and completes input descs that
 * are not known yet (a weight's shape from the data's: deferred initialisation,
 * Symbol.infer_shape). Inputs that are fully known must not be changed. Errors name op, shapes and
 * dtypes: use mpg_infer_fail. */
typedef struct mpg_infer {
  const mpg_op *op;
  const void *params;
  int num_inputs, num_outputs;
  mpg_desc *inputs;
  mpg_desc *outputs;         /* all dims/dtypes unknown on entry */
  bool train;                /* autograd's train mode, for ops whose outputs depend on it */
  const void *const *values; /* DYNAMIC ops: host addresses of the inputs' contents; NULL where they
                                are not known (tracing) */
} mpg_infer;
typedef mpg_status (*mpg_infer_fn)(mpg_infer *infer);

/* "FullyConnected: <text> (data: float32 (2, 3), weight: float32 (4, 5))" with status MPG_ERROR. */
mpg_status mpg_infer_fail(const mpg_infer *infer, const char *format, ...)
    __attribute__((format(printf, 2, 3), cold));

/* --- Cost ------------------------------------------------------------------------------------- */
/* The cost of a call, from the descs of its inputs and outputs and its parameters. Passes use it to
 * choose values to recompute and orders; their choices are the same on all machines. `call` has
 * been inferred. Bounds of the numbers are not: a product that has another kernel on some device
 * counts as the op says. */
typedef struct mpg_cost {
  double bytes; /* read and written */
  double flops; /* floating-point operations; an elementary function counts for ten */
} mpg_cost;
typedef mpg_cost (*mpg_cost_fn)(const mpg_infer *call);

/* Seconds of it on a kind of device (an mpg_device_id's type), in this dtype: a roofline of round
 * figures, the start included. Only ratios count. */
double mpg_cost_seconds(mpg_cost cost, int32_t device_type, mpg_dtype dtype);
/* Seconds of copying bytes to another device. */
double mpg_copy_seconds(double bytes, int32_t device_type);

/* --- Gradient --------------------------------------------------------------------------------- */
/* Written once per op, as calls to other ops on values of a graph under construction. Errors stick
 * to the context, so formulas need no checks in between; after an error every helper returns
 * MPG_NO_VALUE. */
typedef struct mpg_value {
  uint32_t node, output;
} mpg_value;
#define MPG_NO_VALUE ((mpg_value){UINT32_MAX, 0})
static inline bool mpg_has_value(mpg_value value) { return value.node != UINT32_MAX; }
static inline bool mpg_value_equal(mpg_value a, mpg_value b) {
  return a.node == b.node && a.output == b.output;
}

typedef struct mpg_gradient mpg_gradient;

/* The graph under construction as gradient formulas see it; implemented by csrc/graph. */
typedef struct mpg_builder {
  /* Appends a node; fills outputs[num_outputs of the op]. The device is that of the inputs, or
   * `like`'s without inputs. */
  mpg_status (*emit)(struct mpg_builder *builder, const mpg_op *op, const void *params,
                     const mpg_value *inputs, int num_inputs, mpg_value like, mpg_value *outputs);
  const mpg_desc *(*desc)(struct mpg_builder *builder,
                          mpg_value value); /* stays valid while more is emitted */
  mpg_device_id (*device)(struct mpg_builder *builder, mpg_value value);
  /* The number of the next node; and the gradients of heads through the nodes since `first`
   * (MPG_NO_VALUE where they are zero), for which all that is older is given. */
  uint32_t (*next)(struct mpg_builder *builder);
  mpg_status (*differentiate)(struct mpg_builder *builder, uint32_t first, const mpg_value *heads,
                              const mpg_value *head_grads, int num_heads, const mpg_value *wanted,
                              int num_wanted, mpg_value *gradients);
} mpg_builder;

struct mpg_gradient {
  mpg_builder *builder;
  const mpg_op *op;
  const void *params;
  int num_inputs, num_outputs;
  const mpg_value *inputs;  /* of the forward node; reading one that `saves` does not list is a bug
                               (its desc is always there) */
  const mpg_value *outputs; /* likewise */
  const mpg_value *out_grads; /* MPG_NO_VALUE if no gradient arrives (zero); at least one
                                  arrives, except at ops that start one (mpg_op_starts_gradient) */
  const bool *needed;         /* per input: whether in_grads[i] is needed */
  mpg_value *in_grads; /* result; MPG_NO_VALUE (preset) means zero / not differentiable there */
  bool train;          /* the mode the forward op ran in */
  mpg_status status;
};
typedef void (*mpg_gradient_fn)(mpg_gradient *g);

/* For ops whose derivative is zero everywhere (comparison, floor, zeros_like, ...): no gradient
 * flows. */
void mpg_gradient_none(mpg_gradient *g);
/* For ops without a gradient: differentiating through one is an error that names it. (A row's
 * gradient is NULL.) */

/* Emission helpers; the first output is returned. `like` gives the device to ops without inputs. */
mpg_value mpg_emit(mpg_gradient *g, mpg_op_id op, const void *params, int num_inputs,
                   const mpg_value *inputs);
mpg_value mpg_emit1(mpg_gradient *g, mpg_op_id op, const void *params, mpg_value a);
mpg_value mpg_emit2(mpg_gradient *g, mpg_op_id op, const void *params, mpg_value a, mpg_value b);
mpg_value mpg_emit3(mpg_gradient *g, mpg_op_id op, const void *params, mpg_value a, mpg_value b,
                    mpg_value c);
/* All outputs of an op with several, hidden ones included; `outputs` has room for `room`, and more
 * than that is an error. */
void mpg_emit_all(mpg_gradient *g, mpg_op_id op, const void *params, int num_inputs,
                  const mpg_value *inputs, int room, mpg_value *outputs);
mpg_value mpg_emit_scalar(mpg_gradient *g, mpg_op_id scalar_op, mpg_value a,
                          double scalar); /* op(a, scalar), e.g. _mul_scalar */
/* The same for a number that the formula makes itself, such as a count: in float32 where it has
 * more digits than a's dtype, or is beyond it. */
mpg_value mpg_emit_number(mpg_gradient *g, mpg_op_id scalar_op, mpg_value a, double number);
mpg_value mpg_emit_full_like(mpg_gradient *g, mpg_value like,
                             double value); /* an array of `value`, shaped like it */
mpg_value mpg_emit_sum_to(mpg_gradient *g, mpg_value a,
                          const mpg_shape *shape); /* undoes broadcasting; `a` itself when equal */
mpg_value mpg_emit_broadcast_to(mpg_gradient *g, mpg_value a, const mpg_shape *shape);
mpg_value mpg_emit_reshape(mpg_gradient *g, mpg_value a, const mpg_shape *shape);
mpg_value mpg_emit_view(mpg_gradient *g, mpg_value a); /* the same array as a separate value */
mpg_value mpg_emit_cast(mpg_gradient *g, mpg_value a,
                        mpg_dtype dtype); /* `a` itself when it has the dtype */
mpg_value mpg_emit_mean(
    mpg_gradient *g, mpg_value a,
    const mpg_shape *shape); /* over the axes that are 1 in `shape`, which has as many */
static inline const mpg_desc *mpg_value_desc(mpg_gradient *g, mpg_value value) {
  return g->builder->desc(g->builder, value);
}

/* --- Composed ops ----------------------------------------------------------------------------- */
/* Emits other ops that compute `outputs` of `inputs`. No output is an input, or a view of one. */
typedef void (*mpg_compose_fn)(mpg_gradient *g, const mpg_value *inputs, mpg_value *outputs);

/* The second gradient of an op whose gradient is a single op: the forward op is written out as
 * other ops and differentiated twice. */
#define MPG_ZEROS_LIKE(i) (-1 - (i))
typedef struct mpg_written_out {
  int num_inputs, num_outputs; /* of the forward op, as far as gradients arrive at its outputs */
  const int *inputs; /* which inputs of the gradient they are; MPG_ZEROS_LIKE(i): none, because no
                        gradient reads its contents */
  const int *out_grads; /* and which are what arrived at the outputs */
  mpg_compose_fn emit;
} mpg_written_out;
/* g's outputs are the gradients of the forward op's inputs, in order; of the first ones only, where
 * they are fewer. */
void mpg_gradient_written_out(mpg_gradient *g, const mpg_written_out *forward);
void mpg_gradient_fail(mpg_gradient *g, const char *format, ...)
    __attribute__((format(printf, 2, 3), cold));

/* --- Descriptor ------------------------------------------------------------------------------- */
/* The forward values that the gradient reads, for `saves`: bits 0-15 inputs, 16-31 outputs;
 * SAVE_INPUTS for all inputs. */
#define MPG_SAVE_INPUT(i) (1u << (i))
#define MPG_SAVE_OUTPUT(i) (1u << (16 + (i)))
#define MPG_SAVE_NONE 0u
#define MPG_SAVE_INPUTS 0x0000ffffu
#define MPG_SAVE_OUTPUTS 0xffff0000u
/* For elementwise ops. */
#define MPG_SAVE_BOTH (MPG_SAVE_INPUT(0) | MPG_SAVE_OUTPUT(0))
#define MPG_SAVE_INPUTS_OUTPUT (MPG_SAVE_INPUTS | MPG_SAVE_OUTPUT(0))
#define MPG_SAVE_RHS_OUTPUT (MPG_SAVE_INPUT(1) | MPG_SAVE_OUTPUT(0))

/* The batching rule: op/batching/batching.h. */
struct mpg_batching;
typedef mpg_status (*mpg_batching_fn)(struct mpg_batching *);

/* The traits of an op. */
typedef enum mpg_op_flags {
  MPG_OP_PLAIN = 0,
  /* Output 0 may be written over input 0, or over any input of as many bytes: element i of it needs
   * only element i. Of an update of num_weights weights so may each output. */
  MPG_OP_INPLACE = 1 << 0,
  /* Its cost grows faster than its arrays, or it uses a library's threads: it never runs inline. */
  MPG_OP_HEAVY = 1 << 1,
  /* It draws random numbers, and takes one call number. */
  MPG_OP_RANDOM = 1 << 2,
  /* Its input may be on another device than its output, whose device params->ctx names. */
  MPG_OP_COPY = 1 << 3,
  /* It has no inputs; its device is params->ctx. */
  MPG_OP_CREATES = 1 << 4,
  /* It behaves differently in train mode. */
  MPG_OP_TRAIN = 1 << 5,
  /* Output 0 has the bytes of input 0: no kernel runs where they can share memory. */
  MPG_OP_VIEW = 1 << 6,
  /* It is a helper of gradients or of the compiler, and not offered to users under mx.nd. */
  MPG_OP_HIDDEN = 1 << 7,
  /* The shapes of its outputs depend on values, for which the host waits (boolean_mask). */
  MPG_OP_DYNAMIC = 1 << 8,
  /* It reads the shape and dtype of its inputs, never their contents (zeros_like). */
  MPG_OP_SHAPE_ONLY = 1 << 9,
  /* A HEAVY op with a plain loop in one thread for arrays of at most MPG_TINY_ELEMENTS elements in
   * all: such a call may run inline. */
  MPG_OP_TINY_INLINE = 1 << 10,
  /* Its arrays are on several devices, which params->from and params->to name
   * (op/array/collective.h); it runs on that of its first input. */
  MPG_OP_SPANS = 1 << 11,
  /* It returns its input, with another gradient than the identity's (BlockGrad): no rewrite looks
   * through it. */
  MPG_OP_GRADIENT_ONLY = 1 << 12,
  /* No backward pass goes through it: its result is not on the tape. */
  MPG_OP_DETACHES = 1 << 13,
  /* In train mode, unless use_global_stats is set, it reads the states that it writes only to
   * update them, as BatchNorm its moving averages. */
  MPG_OP_STATISTICS = 1 << 14,
  /* Its gradient does not depend on what arrives at its output: backward may start here
   * without one, and starts here if any head was computed from the output. */
  MPG_OP_LOSS = 1 << 15,
  /* A cast that automatic mixed precision puts between other ops. */
  MPG_OP_AMP_CAST = 1 << 16,
  /* It lays a weight out for a kernel: its result is kept whatever its size. */
  MPG_OP_PACKS = 1 << 17,
  /* For fusion: element i of its outputs needs element i of each input, which are broadcast. */
  MPG_OP_MAP = 1 << 18,
  /* A map where all arrays have one shape. */
  MPG_OP_MAP_ONE_SHAPE = 1 << 19,
  /* A map where it has one input and one output. */
  MPG_OP_MAP_ALONE = 1 << 20,
  /* A reduction over the axes that op/math/reduce.h gives. */
  MPG_OP_REDUCTION = 1 << 21,
  /* Its random numbers are drawn row by row: the rows of a micro-batch get the numbers that they
   * get in the whole batch. */
  MPG_OP_DRAWS_ROWS = 1 << 22,
  /* It goes through steps of time with a state, which the next part of a sequence starts from. */
  MPG_OP_CARRIES = 1 << 23,
  /* Its values are positions (_arange): they depend on the sizes of its outputs. */
  MPG_OP_COUNTS = 1 << 24,
  /* Arrays with equal or random elements give such arrays (op/batching/batching.h: MPG_BATCH_FREE).
   */
  MPG_OP_UNIFORM = 1 << 25,
  /* It is composed of other ops, which run, or stand in graphs, in its place (`compose`). */
  MPG_OP_COMPOSED = 1 << 26,
  /* Its result is what it makes of that result, too (relu). */
  MPG_OP_IDEMPOTENT = 1 << 27,
  /* Element i of output 0 is element i of input 0, cast and broadcast. */
  MPG_OP_SAME_VALUES = 1 << 28,
  /* It cuts or repeats input 0, and is the identity where output 0 has its shape (slice_axis). */
  MPG_OP_RESIZES = 1 << 29,
  /* Of its other inputs than the first it reads the shapes alone (broadcast_like). */
  MPG_OP_LIKE = 1 << 30,
  /* It waits for the same op on other devices (device/meeting.h): such ops keep their order, and
   * each runs once a call, by a device's worker. */
  MPG_OP_MEETS = INT32_MIN, /* 1 << 31 */
} mpg_op_flags;

typedef int (*mpg_arity_fn)(const mpg_op *op, const void *params,
                            int given); /* -> number of inputs or outputs */

struct mpg_op {
  mpg_op_id id;
  const char *name;    /* MXNet's canonical name */
  const char *aliases; /* other names, space-separated; "" for none */
  /* "data, weight, bias": names in order. "?bias" may be left out (params say whether it is there:
   * num_inputs).
   * "!moving_mean": also written in place (auxiliary state). "*data": any number (>= 1); "*!data":
   * all of them also written. "!moving_var=1": a variable made for it starts with ones. "" for
   * none. */
  const char *inputs;
  /* "output, ~mean, ~var": "~" marks outputs users do not see (always the last ones; a parameter
   * output_mean_var shows them). "?mask" is there for some parameters only, and "*output" as many
   * times as num_outputs says. */
  const char *outputs;
  const mpg_param_table *params;
  mpg_infer_fn infer;
  mpg_cost_fn cost;
  mpg_gradient_fn gradient; /* NULL: none */
  mpg_compose_fn compose;   /* of COMPOSED ops; NULL: it has a kernel */
  mpg_arity_fn num_inputs;  /* NULL: as many as the names, or as given for "*" */
  mpg_arity_fn num_outputs; /* NULL: as many as the names */
  uint32_t saves;
  uint32_t flags;
  mpg_dtype_set dtypes; /* of the first input (all of a list; the output where there is none);
                           inference checks the rest */
  mpg_batching_fn batching;
  const char *doc;
  const mpg_extension *extension; /* NULL: a row of ops.def */
};

/* Largest total of input and output elements of a TINY_INLINE op to run inline; kernels choose by
 * the same number. */
enum { MPG_TINY_ELEMENTS = 2048 };

enum { MPG_MAX_INPUTS = 4096, MPG_MAX_OUTPUTS = 576, MPG_MAX_NAMED = 16 };

mpg_status mpg_registry_init(void);
/* Adds a copy of a row, which gets an id; named: it can be found by its name, which is free. */
const mpg_op *mpg_registry_add(const mpg_op *row, bool named);
int mpg_registry_room(void);                 /* how many more */
const mpg_op *mpg_op_get(mpg_op_id id);      /* of ops.def */
const mpg_op *mpg_op_find(const char *name); /* by name or alias; NULL when there is none */

int mpg_op_num_inputs(const mpg_op *op, const void *params, int given);
int mpg_op_num_outputs(const mpg_op *op, const void *params, int num_inputs);
int mpg_op_visible_outputs(const mpg_op *op, const void *params, int num_inputs);
int mpg_op_num_input_names(const mpg_op *op); /* names in `inputs`; variadic counts one */
bool mpg_op_variadic(const mpg_op *op);
const char *mpg_op_input_name(const mpg_op *op, int index, char *buffer,
                              size_t size); /* "arg3" for variadic ones */
/* True if the op starts a gradient: its input gradients aren't zero even if a zero gradient
 * arrives. Losses do, and ops that add a gradient of their own. */
static inline bool mpg_op_starts_gradient(const mpg_op *op) {
  return op->flags & MPG_OP_LOSS || op->id == MPG_OP__attach_gradient;
}
/* Whether a gradient may flow through it: of a composed op its parts say more. */
bool mpg_op_differentiable(const mpg_op *op);
/* Whether an output may lie over an input (MPG_OP_INPLACE): the first, or each of an update of many
 * weights. */
bool mpg_op_in_place(const mpg_op *op, int output);
bool mpg_op_input_mutable(const mpg_op *op, int index); /* "!": an auxiliary state */
bool mpg_op_input_optional(const mpg_op *op, int index);
/* Whether the row says what a variable for this input starts with, and the number. */
bool mpg_op_input_initial(const mpg_op *op, int index, double *value);
/* Whether a call reads the states that it writes only to update them, and no result depends on
 * them. */
bool mpg_op_only_updates_states(const mpg_op *op, const void *params, bool train);
/* Whether such a call gives those states new values; with momentum 1 they stay as they are. */
bool mpg_op_changes_states(const mpg_op *op, const void *params, bool train);
/* Whether a call puts its inputs behind each other along the first axis. */
bool mpg_op_joins_rows(const mpg_op *op, const void *params);
/* The shape of what a RANDOM op draws a number for each element of, by the shapes of its first
 * input and of its last output: of Dropout the mask. */
mpg_shape mpg_op_drawn_shape(const mpg_op *op, const void *params, const mpg_shape *input,
                             const mpg_shape *output);
/* Whether the parameters (use_<name> False, no_bias True of a "?...bias", or another word than that
 * of "?name@param=word") leave out that named input; and the place among the names of the index-th
 * input there is. */
bool mpg_op_input_left_out(const mpg_op *op, const void *params, int index);
int mpg_op_input_place(const mpg_op *op, const void *params, int index);

/* The checks that ops have in common: number of inputs, dtype of the first. */
mpg_status mpg_op_check(const mpg_op *op, const void *params, mpg_desc *inputs, int num_inputs);
/* Runs inference with the common checks around the op's own. */
mpg_status mpg_op_infer(const mpg_op *op, const void *params, bool train, mpg_desc *inputs,
                        int num_inputs, mpg_desc *outputs, int num_outputs);
/* MPG_VALUE_ERROR where the size of an output does not fit, whatever its dtype: what makes an array
 * checks it, and so must what only notes its shape. */
mpg_status mpg_op_check_outputs(const mpg_op *op, const mpg_desc *outputs, int num_outputs);
/* The same with the inputs' contents available, for DYNAMIC ops. */
mpg_status mpg_op_infer_values(const mpg_op *op, const void *params, bool train, mpg_desc *inputs,
                               int num_inputs, const void *const *values, mpg_desc *outputs,
                               int num_outputs);
/* Completes inputs' shapes from outputs', where those say something for certain (infer_inputs.c).
 */
mpg_status mpg_op_infer_inputs(const mpg_op *op, const void *params, mpg_desc *inputs,
                               int num_inputs, const mpg_desc *outputs, int num_outputs);
/* Runs the op's gradient; MPG_ERROR when it has none. */
mpg_status mpg_op_gradient(mpg_gradient *g);
/* Has the builder emit the ops that a COMPOSED op is composed of. */
/* How often the emitted ops of a composed op read each value, and the caller each output: values
 * are numbered as they are made, the inputs first. descs: of the inputs, and room for the outputs.
 * *uses: new. */
mpg_status mpg_op_count_uses(const mpg_op *op, const void *params, bool train, mpg_desc *descs,
                             int num_inputs, uint32_t **uses);
mpg_status mpg_op_compose(mpg_builder *builder, const mpg_op *op, const void *params, bool train,
                          const mpg_value *inputs, int num_inputs, mpg_value *outputs);

#endif
