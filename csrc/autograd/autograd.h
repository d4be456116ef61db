/* The tape: recording, variables, backward. And the one entry through which every op call of a user
 * goes.
 *
 * Semantics are MXNet 1.9.1's autograd. The tape holds ops on any mix of devices; backward turns
 * the part of it that is reached into a graph, runs the graph's gradient and placement passes, and
 * executes the result. Threads: host lock; the recording and training flags are per thread.
 */
#ifndef MPG_AUTOGRAD_AUTOGRAD_H
#define MPG_AUTOGRAD_AUTOGRAD_H

#include "autograd/array.h"

bool mpg_autograd_recording(void);
bool mpg_autograd_set_recording(bool on); /* returns the former value */
bool mpg_autograd_training(void);
bool mpg_autograd_set_training(bool on);

/* Calls an op: emits it into a graph when it belongs to a trace (trace.h), else runs it and, while
 * recording, puts it on the tape. inputs: borrowed. outputs: num_visible empty structs, filled
 * (owned by the caller). out: NULL, or num_visible arrays to write into (then outputs is unused);
 * not allowed while recording on arrays of the tape (MXNet's rule), nor when traced. device: for
 * CREATES ops; NULL: the current one is in params. */
mpg_status mpg_call(const mpg_op *op, const void *params, mpg_array *const *inputs, int num_inputs,
                    mpg_array *outputs, int num_visible, mpg_array *const *out);
/* The same. separate: the result is a new array, also for ops whose bytes are the input's
 * (reshape). */
mpg_status mpg_call_as(const mpg_op *op, const void *params, mpg_array *const *inputs,
                       int num_inputs, mpg_array *outputs, int num_visible, mpg_array *const *out,
                       bool separate);
/* The number of visible outputs a call will have. */
int mpg_call_outputs(const mpg_op *op, const void *params, int num_inputs);

/* Makes `array` a variable: a leaf whose gradient is written (added) into `gradient` (borrowed; a
 * reference is taken) by backward. Its former place on the tape is given up. */
mpg_status mpg_autograd_mark_variable(mpg_array *array, mpg_grad_req request,
                                      const mpg_tensor *gradient);
/* The gradient tensor of a variable (retained into *gradient) and its request; false when it is
 * none. */
bool mpg_autograd_gradient(const mpg_array *array, mpg_tensor *gradient, mpg_grad_req *request);
/* Whether backward has written the gradient since the flag was last cleared (Trainer's
 * stale-gradient check). */
bool mpg_autograd_fresh(const mpg_array *array);
void mpg_autograd_set_fresh(mpg_array *array, bool fresh);

/* Runs backward from heads. head_grads: NULL, or per head NULL (ones) or an array. train: mode of
 * the backward ops. */
mpg_status mpg_autograd_backward(mpg_array *const *heads, mpg_array *const *head_grads,
                                 int num_heads, bool retain_graph, bool train);
/* Gradients of the heads with respect to `variables`, into `gradients` (empty structs; owned by the
 * caller). With create_graph the gradients are on the tape themselves. */
mpg_status mpg_autograd_grad(mpg_array *const *heads, mpg_array *const *head_grads, int num_heads,
                             mpg_array *const *variables, int num_variables, bool retain_graph,
                             bool create_graph, bool train, mpg_array *gradients);

/* Shows what `head` was recorded as: a graph of the ops, whose inputs are the variables and arrays
 * that were none. Calls of compiled functions are expanded to ops; functions of Python are an
 * error. */
struct mpg_graph;
mpg_status mpg_autograd_read(mpg_array *head,
                             mpg_status (*read)(const struct mpg_graph *graph, mpg_value head,
                                                void *state),
                             void *state);

/* A differentiable call that the core does not see into: autograd.Function, custom ops. */
typedef struct mpg_callback {
  const char *name;
  /* Computes in_grads (num_inputs empty structs; leave one empty for zero) from out_grads
   * (num_outputs; an empty one is zero). Runs in the thread that called backward, with the host
   * lock held. May return MPG_HOST_EXCEPTION. */
  mpg_status (*backward)(void *state, mpg_array *const *out_grads, int num_outputs,
                         mpg_array *in_grads, int num_inputs);
  void (*release)(void *state);
} mpg_callback;
/* Puts outputs = callback(inputs) on the tape (computed already; off the tape so far). Takes
 * `state` over on success. */
mpg_status mpg_autograd_record_callback(const mpg_callback *callback, void *state,
                                        mpg_array *const *inputs, int num_inputs,
                                        mpg_array *const *outputs, int num_outputs);

/* The block path under which ops are queued from now on in this thread (mpg_scope_intern); returns
 * the former one. */
uint32_t mpg_autograd_set_scope(uint32_t scope);
uint64_t mpg_autograd_steps(void); /* the steps of loops, as of a submission, in which this thread
                                      queues work; set returns the former ones */
uint64_t mpg_autograd_set_steps(uint64_t steps);
/* Step `step`, from 0, of a loop that began in the steps `outer`. */
static inline void mpg_autograd_begin_step(uint64_t outer, int64_t step) {
  mpg_autograd_set_steps(outer << 32 | (uint32_t)(step + 1));
}
uint32_t mpg_autograd_scope(void);

#endif
