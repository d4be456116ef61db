/* The tape: recording, variables, backward, and the single entry point for all user op calls.
 *
 * Semantics are MXNet 1.9.1's autograd. The tape holds ops on any mix of devices. Backward converts
 * the reachable part of the tape to a graph, runs the graph's gradient and placement passes, and
 * executes the result. Threads: callers hold the host lock; the recording and training flags are
 * per thread.
 */
#ifndef MPG_AUTOGRAD_AUTOGRAD_H
#define MPG_AUTOGRAD_AUTOGRAD_H

#include "autograd/array.h"

bool mpg_autograd_recording(void);
bool mpg_autograd_set_recording(bool on); /* returns the previous value */
bool mpg_autograd_training(void);
bool mpg_autograd_set_training(bool on);
/* If `on`, later calls of this thread ignore the rules of mixed precision. Returns the previous
 * value. */
bool mpg_autograd_set_uncast(bool on);

/* True if Gluon creates arrays of mx.np in this thread. Off at first in each thread. */
bool mpg_np_array(void);
bool mpg_np_array_set(bool on); /* returns the previous value */
/* Says whether unknown sizes are written as -1, as NumPy's shapes need it. */
typedef enum { MPG_NP_SHAPE_OFF, MPG_NP_SHAPE_ON, MPG_NP_SHAPE_ALL } mpg_np_shapes;
mpg_np_shapes mpg_np_shape(void);
/* Sets the value of this thread, or of all threads for MPG_NP_SHAPE_ALL. MPG_NP_SHAPE_OFF also ends
 * MPG_NP_SHAPE_ALL. Returns the previous value. */
mpg_np_shapes mpg_np_shape_set(mpg_np_shapes value);

/* Calls an op, in the dialect of its inputs (mpg_op_is_numpy): inputs of different kinds are an
 * error, and so are inputs of mx.nd if `op` is a NumPy descriptor. If the call belongs to a trace
 * (trace.h), emits the op into the trace's graph. Otherwise runs the op and, while recording, puts
 * it on the tape. `inputs` are borrowed. `outputs` has num_visible empty structs; the call fills
 * them and the caller owns the results. `out` is NULL or holds num_visible arrays to write into;
 * `outputs` is then unused. `out` is not allowed in a trace. While recording, an array in `out`
 * must not be on the tape (MXNet's rule); a variable is allowed if no input is on the tape. Ops
 * with MPG_OP_CREATES take their device from params. */
mpg_status mpg_call(const mpg_op *op, const void *params, mpg_array *const *inputs, int num_inputs,
                    mpg_array *outputs, int num_visible, mpg_array *const *out);
/* Same as mpg_call. If `separate`, the result has its own memory even if the op (such as reshape)
 * would return a view of its input. */
mpg_status mpg_call_as(const mpg_op *op, const void *params, mpg_array *const *inputs,
                       int num_inputs, mpg_array *outputs, int num_visible, mpg_array *const *out,
                       bool separate);
/* Sets *target (empty) to an array that shares the source's tensor but is not on the tape. For a
 * traced array, emits the op `_detach`. */
mpg_status mpg_array_detach(mpg_array *target, const mpg_array *source);
/* Sets *target (empty) to the source as an array of mx.np, or of mx.nd if not `numpy`, with the
 * same contents and position on the tape. */
mpg_status mpg_array_as(mpg_array *target, const mpg_array *source, bool numpy);
/* Returns the number of visible outputs of a call. */
int mpg_call_outputs(const mpg_op *op, const void *params, int num_inputs);

/* Makes `array` a variable: a leaf of the tape. Backward writes (or adds) its gradient into
 * `gradient`, to which the variable takes a new reference. If `gradient` is NULL, the gradient is
 * zero, and its memory is allocated when it is first needed. The array's previous tape node is
 * released. */
mpg_status mpg_autograd_mark_variable(mpg_array *array, mpg_grad_req request,
                                      const mpg_tensor *gradient);
/* Sets *gradient to a new reference to a variable's gradient tensor, which is allocated if
 * necessary. The tensor is empty if the array is not a variable. */
mpg_status mpg_autograd_gradient(const mpg_array *array, mpg_tensor *gradient);
/* True if the array is a variable whose gradient has been allocated. */
bool mpg_autograd_has_gradient(const mpg_array *array);
/* Sets *request to a variable's grad_req. Returns false if the array is not a variable. */
bool mpg_autograd_request(const mpg_array *array, mpg_grad_req *request);
/* Get and set the "fresh" flag of a variable's gradient. Backward sets the flag, and Trainer
 * clears it after an update, so that it can detect stale gradients. */
bool mpg_autograd_fresh(const mpg_array *array);
void mpg_autograd_set_fresh(mpg_array *array, bool fresh);

/* Runs backward from the heads. `head_grads` holds one gradient per head. A NULL entry, or NULL
 * for `head_grads`, means a gradient of ones. If `train`, the backward ops run in training mode. */
mpg_status mpg_autograd_backward(mpg_array *const *heads, mpg_array *const *head_grads,
                                 int num_heads, bool retain_graph, bool train);
/* Computes the gradients of the heads with respect to `variables` into `gradients` (empty structs,
 * owned by the caller). If `create_graph`, the computation of the gradients is recorded on the
 * tape, so that they can be differentiated again. */
mpg_status mpg_autograd_grad(mpg_array *const *heads, mpg_array *const *head_grads, int num_heads,
                             mpg_array *const *variables, int num_variables, bool retain_graph,
                             bool create_graph, bool train, mpg_array *gradients);

/* Passes the recorded computation of `head` to `read` as a graph of ops. The graph's inputs are
 * the variables and the arrays that are not on the tape. Calls of compiled functions are expanded
 * to ops. Fails if the computation contains a Python function. */
struct mpg_graph;
mpg_status mpg_autograd_read(mpg_array *head,
                             mpg_status (*read)(const struct mpg_graph *graph, mpg_value head,
                                                void *state),
                             void *state);

/* A differentiable call that is opaque to the core: autograd.Function or a custom op. */
typedef struct mpg_callback {
  const char *name;
  /* Computes the input gradients in_grads (empty structs) from the output gradients out_grads. In
   * both arrays, an empty struct represents a zero gradient. Runs in the thread that called
   * backward, with the host lock held. May return MPG_HOST_EXCEPTION. */
  mpg_status (*backward)(void *state, mpg_array *const *out_grads, int num_outputs,
                         mpg_array *in_grads, int num_inputs);
  void (*release)(void *state);
} mpg_callback;
/* Records outputs = callback(inputs) on the tape. The outputs are already computed and not yet on
 * the tape. Takes ownership of `state` on success. */
mpg_status mpg_autograd_record_callback(const mpg_callback *callback, void *state,
                                        mpg_array *const *inputs, int num_inputs,
                                        mpg_array *const *outputs, int num_outputs);

/* Sets the block path under which this thread queues ops (mpg_scope_intern) and returns the
 * previous one. */
uint32_t mpg_autograd_set_scope(uint32_t scope);
/* Get and set the loop position of the work that this thread queues, for error messages
 * (mpg_submission.steps). The setter returns the previous position. */
uint64_t mpg_autograd_steps(void);
uint64_t mpg_autograd_set_steps(uint64_t steps);
/* Enters step `step` (counted from 0) of a loop that began at loop position `outer`. */
static inline void mpg_autograd_begin_step(uint64_t outer, int64_t step) {
  mpg_autograd_set_steps(outer << 32 | (uint32_t)(step + 1));
}
uint32_t mpg_autograd_scope(void);

#endif
