/* Ops: one descriptor per row of ops.def.
 *
 * A descriptor holds everything about an op except its kernels, which are in one table per backend
 * (op/kernel.h). Descriptors are constant after mpg_registry_init, except that user libraries may
 * add rows under the host lock (op/user/extension.h). Any thread may read a descriptor; lookup by
 * name requires the host lock.
 */
#ifndef MPG_OP_OP_H
#define MPG_OP_OP_H

#include "base/philox.h"
#include "op/params.h"

/* Ids, in the order of ops.def. */
typedef enum mpg_op_id {
#define MPG_OP_ROW(id, ...) MPG_OP_##id,
#define MPG_COMPOSED_ROW(id, ...) MPG_OP_##id,
#include "op/ops.def"
#undef MPG_OP_ROW
#undef MPG_COMPOSED_ROW
  MPG_OP_COUNT, /* ids from here on belong to user libraries (op/user/extension.h) */
  MPG_OP_ADDED = 512,
  MPG_OP_LIMIT = MPG_OP_COUNT + MPG_OP_ADDED
} mpg_op_id;

typedef struct mpg_op mpg_op;
typedef struct mpg_extension mpg_extension;

/* --- Inference -------------------------------------------------------------------------------- */
/* Arguments of shape and dtype inference. An inference function fills the output descs from the
 * input descs and parameters, and checks both. It also completes unknown input descs: for example,
 * the shape of a weight follows from the shape of the data (deferred initialization,
 * Symbol.infer_shape). It must not change inputs that are fully known. Errors name the op, shapes
 * and dtypes; use mpg_infer_fail. */
typedef struct mpg_infer {
  const mpg_op *op;
  const void *params;
  int num_inputs, num_outputs;
  mpg_desc *inputs;
  mpg_desc *outputs; /* all dims/dtypes unknown on entry, except for infer_inputs */
  bool train;        /* autograd's train mode, for ops whose outputs depend on it */
  /* DYNAMIC ops only: host addresses of the inputs' contents; NULL if the contents are unknown
   * (tracing). */
  const void *const *values;
} mpg_infer;
typedef mpg_status (*mpg_infer_fn)(mpg_infer *infer);
/* An op's `infer_inputs` has the same type but infers backward: it completes input shapes from
 * output shapes. It must leave a shape unknown unless the outputs determine it. */

/* Fails with MPG_ERROR and the text "FullyConnected: <text> (data: float32 (2, 3), weight: float32
 * (4, 5))". */
mpg_status mpg_infer_fail(const mpg_infer *infer, const char *format, ...)
    __attribute__((format(printf, 2, 3), cold));

/* --- Cost ------------------------------------------------------------------------------------- */
/* Estimated cost of a call, computed from its parameters and the descs of its inputs and outputs.
 * Passes use it to choose an execution order and the values to recompute. It depends neither on
 * the machine nor on the kernel, so passes make the same choices everywhere. `call` has been
 * inferred. */
typedef struct mpg_cost {
  double bytes; /* bytes read and written */
  double flops; /* floating-point operations; 10 for an elementary function */
} mpg_cost;
typedef mpg_cost (*mpg_cost_fn)(const mpg_infer *call);

/* Returns the seconds that `cost` takes on a device type (mpg_device_id.type) in `dtype`,
 * including the launch. This is a roofline model with rough rates, so only ratios of its results
 * are meaningful. */
double mpg_cost_seconds(mpg_cost cost, int32_t device_type, mpg_dtype dtype);
/* Returns the seconds to copy `bytes` to another device. */
double mpg_copy_seconds(double bytes, int32_t device_type);

/* --- Gradient --------------------------------------------------------------------------------- */
/* A gradient is written once per op, as calls that append other ops to a graph under construction.
 * mpg_gradient keeps the first error, so formulas need no checks between calls. After an error,
 * every helper returns MPG_NO_VALUE. */
typedef struct mpg_value {
  uint32_t node, output;
} mpg_value;
#define MPG_NO_NODE UINT32_MAX
#define MPG_NO_VALUE ((mpg_value){MPG_NO_NODE, 0})
static inline bool mpg_has_value(mpg_value value) { return value.node != MPG_NO_NODE; }
static inline bool mpg_value_equal(mpg_value a, mpg_value b) {
  return a.node == b.node && a.output == b.output;
}

typedef struct mpg_gradient mpg_gradient;

/* Interface through which gradient formulas build a graph; implemented by csrc/graph. */
typedef struct mpg_builder {
  /* Appends a node and fills `outputs`, one for each output of the op. The node runs on the device
   * of its inputs, or on the device of `like` if it has no inputs. */
  mpg_status (*emit)(struct mpg_builder *builder, const mpg_op *op, const void *params,
                     const mpg_value *inputs, int num_inputs, mpg_value like, mpg_value *outputs);
  /* Returns the desc of a value. The pointer stays valid while nodes are appended. */
  const mpg_desc *(*desc)(struct mpg_builder *builder, mpg_value value);
  mpg_device_id (*device)(struct mpg_builder *builder, mpg_value value);
  /* Returns the index that the next node will get. */
  uint32_t (*next)(struct mpg_builder *builder);
  /* Computes the gradients of `heads` with respect to `wanted`, through the nodes from index
   * `first` on. Older nodes are constants. MPG_NO_VALUE represents a gradient of zero. */
  mpg_status (*differentiate)(struct mpg_builder *builder, uint32_t first, const mpg_value *heads,
                              const mpg_value *head_grads, int num_heads, const mpg_value *wanted,
                              int num_wanted, mpg_value *gradients);
} mpg_builder;

struct mpg_gradient {
  mpg_builder *builder;
  const mpg_op *op;
  const void *params;
  int num_inputs, num_outputs;
  /* Inputs of the forward node. The op's `saves` lists the inputs whose contents may be read; the
   * descs of all inputs are valid. */
  const mpg_value *inputs;
  /* Outputs of the forward node. `saves` lists the ones whose contents may be read. */
  const mpg_value *outputs;
  /* Gradients of the outputs; MPG_NO_VALUE means zero. At least one has a value, except for ops
   * that start a gradient (mpg_op_starts_gradient). */
  const mpg_value *out_grads;
  const bool *needed; /* true if in_grads[i] is needed */
  /* Results, preset to MPG_NO_VALUE, which means zero or not differentiable. */
  mpg_value *in_grads;
  bool train; /* train mode of the forward op */
  mpg_status status;
};
typedef void (*mpg_gradient_fn)(mpg_gradient *g);

/* Gradient of ops whose derivative is zero everywhere (comparison, floor, zeros_like). */
void mpg_gradient_none(mpg_gradient *g);
/* Ops that are not differentiable use mpg_gradient_missing, which fails with an error that names
 * the op. */

/* Helpers that emit an op and return its first output. An op without inputs runs on the device of
 * the forward op. */
mpg_value mpg_emit(mpg_gradient *g, mpg_op_id op, const void *params, int num_inputs,
                   const mpg_value *inputs);
mpg_value mpg_emit1(mpg_gradient *g, mpg_op_id op, const void *params, mpg_value a);
mpg_value mpg_emit2(mpg_gradient *g, mpg_op_id op, const void *params, mpg_value a, mpg_value b);
mpg_value mpg_emit3(mpg_gradient *g, mpg_op_id op, const void *params, mpg_value a, mpg_value b,
                    mpg_value c);
/* Emits an op and stores all its outputs, hidden ones included. Fails if the op has more than
 * `room` outputs. */
void mpg_emit_all(mpg_gradient *g, mpg_op_id op, const void *params, int num_inputs,
                  const mpg_value *inputs, int room, mpg_value *outputs);
/* Emits op(a, scalar) for an op such as _mul_scalar. */
mpg_value mpg_emit_scalar(mpg_gradient *g, mpg_op_id scalar_op, mpg_value a, double scalar);
/* Emits op(a, number) for a number that the formula computes, such as a count. The op runs in
 * float32 if the dtype of `a` cannot represent the number exactly. */
mpg_value mpg_emit_number(mpg_gradient *g, mpg_op_id scalar_op, mpg_value a, double number);
/* Emits an array filled with `value`, with the shape of `like`. */
mpg_value mpg_emit_full_like(mpg_gradient *g, mpg_value like, double value);
/* Sums `a` over the axes along which `shape` is broadcast to the shape of `a`. This is the
 * gradient of broadcasting. Returns `a` if the shapes are equal. */
mpg_value mpg_emit_sum_to(mpg_gradient *g, mpg_value a, const mpg_shape *shape);
mpg_value mpg_emit_broadcast_to(mpg_gradient *g, mpg_value a, const mpg_shape *shape);
mpg_value mpg_emit_reshape(mpg_gradient *g, mpg_value a, const mpg_shape *shape);
mpg_value mpg_emit_view(mpg_gradient *g, mpg_value a); /* emits the same array as a new value */
/* Casts `a`; returns `a` if it already has the dtype. */
mpg_value mpg_emit_cast(mpg_gradient *g, mpg_value a, mpg_dtype dtype);
/* Emits the mean over the axes that have size 1 in `shape`, kept with size 1. `shape` has as many
 * axes as `a`. */
mpg_value mpg_emit_mean(mpg_gradient *g, mpg_value a, const mpg_shape *shape);
static inline const mpg_desc *mpg_value_desc(mpg_gradient *g, mpg_value value) {
  return g->builder->desc(g->builder, value);
}

/* --- Composed ops ----------------------------------------------------------------------------- */
/* Emits ops that compute `outputs` from `inputs`. An output must not be an input or a view of an
 * input. */
typedef void (*mpg_compose_fn)(mpg_gradient *g, const mpg_value *inputs, mpg_value *outputs);

/* Describes a forward op whose gradient is a single op, in order to differentiate that gradient op.
 * `emit` composes the forward op from other ops, and this composition is differentiated twice. */
#define MPG_ZEROS_LIKE(i) (-1 - (i))
typedef struct mpg_written_out {
  /* Counts of the forward op, not including outputs that have no gradient. */
  int num_inputs, num_outputs;
  /* Index of each forward input among the inputs of the gradient op. A forward input whose contents
   * no gradient reads is missing there. Its entry is MPG_ZEROS_LIKE(i), which substitutes zeros
   * with the shape of the gradient op's input i. */
  const int *inputs;
  const int *out_grads; /* index of each output gradient among the inputs of the gradient op */
  mpg_compose_fn emit;
} mpg_written_out;
/* Sets g->in_grads for a node of the gradient op. The outputs of the gradient op must be the
 * gradients of the forward inputs, in order; trailing ones may be missing. */
void mpg_gradient_written_out(mpg_gradient *g, const mpg_written_out *forward);
void mpg_gradient_fail(mpg_gradient *g, const char *format, ...)
    __attribute__((format(printf, 2, 3), cold));

/* --- Descriptor ------------------------------------------------------------------------------- */
/* Bits of `saves`, the set of forward values that the gradient reads: inputs in bits 0-15, outputs
 * in bits 16-31. */
#define MPG_SAVE_INPUT(i) (1u << (i))
#define MPG_SAVE_OUTPUT(i) (1u << (16 + (i)))
#define MPG_SAVE_NONE 0u
#define MPG_SAVE_INPUTS 0x0000ffffu
#define MPG_SAVE_OUTPUTS 0xffff0000u
/* Combinations for elementwise ops. */
#define MPG_SAVE_BOTH (MPG_SAVE_INPUT(0) | MPG_SAVE_OUTPUT(0))
#define MPG_SAVE_INPUTS_OUTPUT (MPG_SAVE_INPUTS | MPG_SAVE_OUTPUT(0))
#define MPG_SAVE_RHS_OUTPUT (MPG_SAVE_INPUT(1) | MPG_SAVE_OUTPUT(0))

/* Batching rule (op/batching/batching.h). */
struct mpg_batching;
typedef mpg_status (*mpg_batching_fn)(struct mpg_batching *);

/* Sharding rule (op/sharding/sharding.h). */
struct mpg_sharding;
typedef mpg_status (*mpg_sharding_fn)(struct mpg_sharding *);

/* Traits of an op. */
typedef uint64_t mpg_op_flags;
#define MPG_OP_PLAIN UINT64_C(0)
/* Output 0 may overwrite input 0, or any input with the same number of bytes, because element i
 * of the output depends only on element i of each input. In an update of num_weights weights,
 * this holds for every output. */
#define MPG_OP_INPLACE (UINT64_C(1) << 0)
/* Never runs inline, because the cost grows faster than the size of the arrays, or because the
 * kernel uses a library's threads. */
#define MPG_OP_HEAVY (UINT64_C(1) << 1)
/* Draws random numbers and consumes one call number. */
#define MPG_OP_RANDOM (UINT64_C(1) << 2)
/* Copies between devices. params->ctx names the output's device; the input may be on another
 * device. */
#define MPG_OP_COPY (UINT64_C(1) << 3)
/* Has no inputs; params->ctx names the device. */
#define MPG_OP_CREATES (UINT64_C(1) << 4)
/* Behaves differently in train mode. */
#define MPG_OP_TRAIN (UINT64_C(1) << 5)
/* Output 0 has the same bytes as input 0, so no kernel runs if the two can share memory. */
#define MPG_OP_VIEW (UINT64_C(1) << 6)
/* Used only by gradients or by the compiler; not exported to mx.nd. */
#define MPG_OP_HIDDEN (UINT64_C(1) << 7)
/* Output shapes depend on the contents of inputs, so the host waits for them (boolean_mask). */
#define MPG_OP_DYNAMIC (UINT64_C(1) << 8)
/* Reads the shape and dtype of its inputs, never their contents (zeros_like). */
#define MPG_OP_SHAPE_ONLY (UINT64_C(1) << 9)
/* A HEAVY op with a single-threaded loop for at most MPG_TINY_ELEMENTS elements in all arrays
 * together. A call of that size may run inline. */
#define MPG_OP_TINY_INLINE (UINT64_C(1) << 10)
/* Arrays are on several devices, which params->input_devices and params->output_devices name
 * (op/array/collective.h). Runs on the device of its first input. */
#define MPG_OP_SPANS (UINT64_C(1) << 11)
/* Returns its input, but its gradient is not the identity (BlockGrad). Rewrites must not remove
 * it. */
#define MPG_OP_GRADIENT_ONLY (UINT64_C(1) << 12)
/* Stops gradients: the result is not recorded on the tape. */
#define MPG_OP_DETACHES (UINT64_C(1) << 13)
/* In train mode without use_global_stats, reads its states (BatchNorm's moving averages) only to
 * update them, so the outputs do not depend on them. */
#define MPG_OP_STATISTICS (UINT64_C(1) << 14)
/* The input gradient does not depend on the output gradient. Backward can therefore start at
 * this op without an output gradient, and does so if a head depends on the op's output. */
#define MPG_OP_LOSS (UINT64_C(1) << 15)
/* A cast that automatic mixed precision inserts. */
#define MPG_OP_AMP_CAST (UINT64_C(1) << 16)
/* Packs a weight into the layout of a kernel. The packed weight is always hoisted out of loops,
 * regardless of its size. */
#define MPG_OP_PACKS (UINT64_C(1) << 17)
/* An elementwise map for fusion: element i of each output depends only on element i of the
 * (broadcast) inputs. */
#define MPG_OP_MAP (UINT64_C(1) << 18)
/* A MAP, but only if all arrays have the same shape. */
#define MPG_OP_MAP_ONE_SHAPE (UINT64_C(1) << 19)
/* A MAP, but only if it has one input and one output. */
#define MPG_OP_MAP_ALONE (UINT64_C(1) << 20)
/* A reduction over the axes that op/math/reduce.h returns. */
#define MPG_OP_REDUCTION (UINT64_C(1) << 21)
/* Draws random numbers row by row, so that a micro-batch gets the numbers of its rows in the
 * whole batch. */
#define MPG_OP_DRAWS_ROWS (UINT64_C(1) << 22)
/* A recurrence over time steps; the next chunk of a sequence starts from its final state. */
#define MPG_OP_CARRIES (UINT64_C(1) << 23)
/* Output values depend on the output's size, because they count positions (_arange,
 * _linspace). */
#define MPG_OP_COUNTS (UINT64_C(1) << 24)
/* If every input has only equal or only random elements, so do the outputs (MPG_BATCH_FREE in
 * op/batching/batching.h). */
#define MPG_OP_UNIFORM (UINT64_C(1) << 25)
/* Composed of other ops (`compose`), which replace it in graphs and in eager calls. */
#define MPG_OP_COMPOSED (UINT64_C(1) << 26)
/* Idempotent: f(f(x)) == f(x), as for relu. */
#define MPG_OP_IDEMPOTENT (UINT64_C(1) << 27)
/* Element i of output 0 is element i of input 0, cast and broadcast. */
#define MPG_OP_SAME_VALUES (UINT64_C(1) << 28)
/* Slices or repeats input 0; the identity if output 0 has the shape of input 0 (slice_axis). */
#define MPG_OP_RESIZES (UINT64_C(1) << 29)
/* Reads the contents of the first input only, and the shapes of the rest (broadcast_like). */
#define MPG_OP_LIKE (UINT64_C(1) << 30)
/* A rendezvous with the same op on other devices (device/rendezvous.h). Ops with this trait keep
 * their order, and each runs once per call, on a device's worker. */
#define MPG_OP_RENDEZVOUS (UINT64_C(1) << 31)
/* Says how its input is divided over a mesh, for the partitioning pass; a view for all others. */
#define MPG_OP_ANNOTATES (UINT64_C(1) << 36)
/* Output 0 may overwrite only inputs that have its shape (INPLACE). */
#define MPG_OP_INPLACE_ALIKE (UINT64_C(1) << 37)
/* The traits from here on concern the NumPy descriptor only (mpg_op_is_numpy).
 * Arrays of different dtypes are cast to a common one, and bools next to a number
 * (op/precision/promotion.h). */
#define MPG_OP_PROMOTES (UINT64_C(1) << 32)
/* Integers and bools are cast to float32. */
#define MPG_OP_DIVIDES (UINT64_C(1) << 33)
/* The result is bool. */
#define MPG_OP_TRUTH (UINT64_C(1) << 34)
/* Bools are cast to int64 (sums of bools count). */
#define MPG_OP_TOTALS (UINT64_C(1) << 35)

/* Returns the number of inputs or outputs of a call. `given` is the number of inputs that were
 * passed. */
typedef int (*mpg_arity_fn)(const mpg_op *op, const void *params, int given);

struct mpg_op {
  /* Each call reads the fields up to `params`, which therefore share a cache line. */
  _Alignas(64) mpg_op_id id;
  uint32_t saves;
  mpg_op_flags flags;
  /* The op's NumPy descriptor, with the same id. Its inference follows NumPy: results without
   * dimensions instead of (1,), promotion of dtypes, bool results of comparisons. */
  const mpg_op *numpy;
  mpg_infer_fn infer;
  mpg_arity_fn num_inputs;  /* mpg_arity_names: one per name, or the given number for "*" */
  mpg_arity_fn num_outputs; /* mpg_arity_names: one per name */
  /* Allowed dtypes of the first input (of every array if it is a "*" list; of the output if the op
   * has no inputs). Inference checks the remaining dtypes. */
  mpg_dtype_set dtypes;
  /* Input names in order, such as "data, weight, bias"; "" if the op has no inputs.
   *   "?bias"          optional; the parameters tell whether it is present (num_inputs)
   *   "!moving_mean"   also written in place (auxiliary state)
   *   "*data"          one or more arrays
   *   "*!data"         one or more arrays, all of them also written
   *   "!moving_var=1"  a variable created for this input is initialized with ones */
  const char *inputs;
  const mpg_param_table *params;

  const char *name;    /* MXNet's canonical name */
  const char *aliases; /* other names, space-separated; "" for none */
  /* Output names in order, such as "output, ~mean, ~var". "~" marks hidden outputs, which come last
   * and are returned only if the parameter output_mean_var is true. "?mask" is present for some
   * parameters only, and "*output" is repeated num_outputs times. */
  const char *outputs;
  mpg_infer_fn infer_inputs; /* completes input shapes from output shapes */
  mpg_cost_fn cost;
  mpg_gradient_fn gradient; /* mpg_gradient_missing if not differentiable */
  mpg_compose_fn compose;   /* COMPOSED ops only; NULL if the op has a kernel */
  mpg_batching_fn batching;
  mpg_sharding_fn sharding;
  const char *doc;
  const mpg_extension *extension; /* NULL for a row of ops.def */
};

/* Returns the op in MXNet's or in NumPy's dialect. */
static inline bool mpg_op_is_numpy(const mpg_op *op) { return op->numpy == op; }
static inline const mpg_op *mpg_op_in(const mpg_op *op, bool numpy) {
  return numpy ? op->numpy : op;
}

/* Largest total of input and output elements for which a TINY_INLINE op runs inline. Kernels use
 * their single-threaded loop up to the same limit. */
enum { MPG_TINY_ELEMENTS = 2048 };

enum { MPG_MAX_INPUTS = 4096, MPG_MAX_OUTPUTS = 576, MPG_MAX_NAMED = 16 };

mpg_status mpg_registry_init(void);
/* Adds a copy of a row under a new id. If `named`, the op can be looked up by its name, which must
 * not be taken. */
const mpg_op *mpg_registry_add(const mpg_op *row, bool named);
int mpg_registry_room(void);                 /* number of rows that can be added */
const mpg_op *mpg_op_get(mpg_op_id id);      /* the op of mx.nd with this id */
const mpg_op *mpg_op_find(const char *name); /* `name` may be an alias; NULL if not found */

int mpg_op_num_inputs(const mpg_op *op, const void *params, int given);
int mpg_op_num_outputs(const mpg_op *op, const void *params, int num_inputs);
int mpg_op_visible_outputs(const mpg_op *op, const void *params, int num_inputs);
int mpg_op_num_input_names(const mpg_op *op); /* counts a variadic name in `inputs` once */
bool mpg_op_variadic(const mpg_op *op);
/* Returns the name of an input, such as "arg3" for a variadic op. */
const char *mpg_op_input_name(const mpg_op *op, int index, char *buffer, size_t size);
/* True for a host step: user code that the thread that submits a pipeline runs
 * (op/user/host_step.c). Its kernel does nothing. */
static inline bool mpg_op_runs_on_host(const mpg_op *op) { return op->id == MPG_OP__host_step; }
/* True if the op starts a gradient: its input gradients can be nonzero even if the output gradient
 * is zero. This holds for losses, for user code, and for ops that add a gradient of their own. */
static inline bool mpg_op_starts_gradient(const mpg_op *op) {
  return op->flags & MPG_OP_LOSS || op->id == MPG_OP__attach_gradient || mpg_op_runs_on_host(op);
}
/* True if a gradient may flow through the op. Always true for composed ops: whether a gradient
 * flows depends on the ops that they emit. */
bool mpg_op_differentiable(const mpg_op *op);
/* True if the output may overwrite an input (MPG_OP_INPLACE): the first output, or any output of an
 * update of several weights. */
bool mpg_op_in_place(const mpg_op *op, int output);
bool mpg_op_input_mutable(const mpg_op *op, int index); /* marked "!", an auxiliary state */
bool mpg_op_input_optional(const mpg_op *op, int index);
/* True if variables created for this input have an initial value. Stores it in *value. */
bool mpg_op_input_initial(const mpg_op *op, int index, double *value);
/* True if a call reads its states only to update them, so that no output depends on their previous
 * contents. */
bool mpg_op_only_updates_states(const mpg_op *op, const void *params, bool train);
/* True if a call changes the states that it writes. With momentum 1 the states keep their
 * values. */
bool mpg_op_changes_states(const mpg_op *op, const void *params, bool train);
/* True if the op concatenates its inputs. mpg_op_joins_rows is true if a call does so along the
 * first axis. */
bool mpg_op_joins(const mpg_op *op);
bool mpg_op_joins_rows(const mpg_op *op, const void *params);
/* Returns the shape of a RANDOM op's draw, given the shapes of its first input and its last output.
 * For Dropout, this is the shape of the mask. */
mpg_shape mpg_op_drawn_shape(const mpg_op *op, const void *params, const mpg_shape *input,
                             const mpg_shape *output);
/* mpg_op_input_left_out is true if the parameters disable the named input: use_<name> is False,
 * no_bias is True for a "?...bias", or the enum of "?name@param=word" has another value.
 * mpg_op_input_place takes an index among the inputs that are present and returns the index among
 * all input names. */
bool mpg_op_input_left_out(const mpg_op *op, const void *params, int index);
int mpg_op_input_place(const mpg_op *op, const void *params, int index);
/* Returns the index of the parameter use_<name> that a call sets if the array is given, or -1. The
 * parameter has the constraint "given". */
int mpg_op_input_mark(const mpg_op *op, int index);

/* Runs the checks common to all ops: the number of inputs and the dtype of the first one. */
mpg_status mpg_op_check(const mpg_op *op, const void *params, mpg_desc *inputs, int num_inputs);
/* Runs the common checks, then the op's shape and dtype inference. */
mpg_status mpg_op_infer(const mpg_op *op, const void *params, bool train, mpg_desc *inputs,
                        int num_inputs, mpg_desc *outputs, int num_outputs);
/* Fails if an output of float64, the widest dtype, would be too large. Creating an array checks
 * the size; code that only records a shape must call this function. */
mpg_status mpg_op_check_outputs(const mpg_op *op, const mpg_desc *outputs, int num_outputs);
/* Same as mpg_op_infer, but passes the inputs' contents, which DYNAMIC ops need. */
mpg_status mpg_op_infer_values(const mpg_op *op, const void *params, bool train, mpg_desc *inputs,
                               int num_inputs, const void *const *values, mpg_desc *outputs,
                               int num_outputs);
/* Completes input shapes from output shapes if the op's `infer_inputs` can. In a symbol, the ops
 * that use the result of an op may determine the shape of a variable. `outputs` holds the first
 * num_outputs outputs. */
mpg_status mpg_op_infer_inputs(const mpg_op *op, const void *params, mpg_desc *inputs,
                               int num_inputs, mpg_desc *outputs, int num_outputs);
/* Emits the op's gradient; returns MPG_ERROR if the op has none. */
mpg_status mpg_op_gradient(mpg_gradient *g);
/* Counts how often the ops of a composed op read each value and how often the caller reads each
 * output. Values are numbered in the order of creation, starting with the inputs. `descs` holds the
 * inputs and has room for the outputs. The caller frees *uses. */
mpg_status mpg_op_count_uses(const mpg_op *op, const void *params, bool train, mpg_desc *descs,
                             int num_inputs, uint32_t **uses);
/* Emits the ops that a COMPOSED op consists of. */
mpg_status mpg_op_compose(mpg_builder *builder, const mpg_op *op, const void *params, bool train,
                          const mpg_value *inputs, int num_inputs, mpg_value *outputs);

#endif
