/* Queuing of kernels. All work on arrays is queued here, except programs (graph/program/launch.c).
 *
 * The caller lists the arrays that the work reads and writes. Deriving the points to wait for from
 * this list and recording the new uses is atomic, because no other thread runs in between
 * (mpg_device_queue). The work of an op contains its kernel, views and parameters by value, so it
 * holds no pointer to the caller's memory. Threads: callers hold the host lock; kernels run on the
 * thread that executes the device's work.
 */
#ifndef MPG_OP_SUBMIT_H
#define MPG_OP_SUBMIT_H

#include "device/profiler.h"
#include "op/invoke.h"

typedef struct mpg_array_use {
  mpg_storage *storage; /* borrowed */
  bool reads, writes;
} mpg_array_use;
static inline mpg_array_use mpg_use_array(const mpg_tensor *tensor, bool reads, bool writes) {
  return (mpg_array_use){tensor->storage, reads || (writes && mpg_tensor_is_part(tensor)), writes};
}

typedef struct mpg_kernel_submission {
  /* The first device does the work. The remaining devices wait for its end, and their arrays are
   * treated as written at that point. */
  mpg_device *const *devices;
  int num_devices;
  /* True for work that sends or receives data, which this process also queues on remote devices.
   * Other work on a remote device counts as complete at submission. */
  bool transfers;
  mpg_submission work; /* mpg_kernel_submit fills in the points to wait for */
  const mpg_array_use *uses;
  uint32_t num_uses;
  /* Optional; called last. Between this call and the queuing of the work, no other thread runs and
   * nothing can fail. If *done is set, nothing is queued. */
  mpg_status (*ready)(void *state, bool *done);
  void *state;
} mpg_kernel_submission;
mpg_status mpg_kernel_submit(const mpg_kernel_submission *submission);

/* Queues an op. `views` holds the inputs, then the outputs, which must already have memory.
 * `ready` and `state` are as in mpg_kernel_submission. */
mpg_status mpg_op_submit(const mpg_invocation *inv, mpg_kernel_fn kernel,
                         mpg_device *const *devices, int num_devices, const mpg_view *views,
                         mpg_random_key random, mpg_status (*ready)(void *state, bool *done),
                         void *state);

/* Builds the arguments of a kernel call from the running work `run`. `views` holds the inputs, then
 * the outputs. */
static inline mpg_kernel_call mpg_kernel_call_in(const mpg_run *run, const mpg_op *op,
                                                 const void *params, const mpg_view *views,
                                                 int num_inputs, int num_outputs) {
  return (mpg_kernel_call){.op = op,
                           .params = params,
                           .device = run->device,
                           .stream = run->stream,
                           .num_threads = run->num_threads,
                           .num_inputs = num_inputs,
                           .num_outputs = num_outputs,
                           .inputs = views,
                           .outputs = views + num_inputs};
}

/* Runs a kernel. A copy between devices whose memory the host cannot access runs as a device copy
 * instead. `from` and `to` are the devices of a copy, or both call->device. */
static inline mpg_status mpg_kernel_issue(mpg_kernel_fn kernel, const mpg_kernel_call *call,
                                          mpg_device *from, mpg_device *to) {
  if (__builtin_expect(!mpg_device_copies(to, from), 1)) return kernel(call);
  return mpg_device_copy(call->device, to, call->outputs[0].data, from, call->inputs[0].data,
                         (size_t)mpg_shape_size(&call->inputs[0].desc.shape) *
                             mpg_dtype_size(call->inputs[0].desc.dtype));
}

/* Runs the kernel of a single op and records it in the profiler. `source` is the device that a copy
 * reads from, or NULL. */
mpg_status mpg_kernel_run_profiled(mpg_kernel_fn kernel, const mpg_kernel_call *call,
                                   uint32_t scope, bool backward, mpg_device *source);
static inline mpg_status mpg_kernel_run(mpg_kernel_fn kernel, const mpg_kernel_call *call,
                                        uint32_t scope, bool backward, mpg_device *source) {
  if (__builtin_expect(mpg_profiler_on(), 0))
    return mpg_kernel_run_profiled(kernel, call, scope, backward, source);
  return mpg_kernel_issue(kernel, call, source ? source : call->device, call->device);
}

#endif
