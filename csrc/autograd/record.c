/* The single entry point for user op calls: trace, or run and record. */
#include <string.h>

#include "autograd/composed.h"
#include "autograd/groups.h"
#include "autograd/mixed_precision.h"
#include "autograd/mode.h"
#include "autograd/tape.h"
#include "autograd/trace.h"
#include "base/host.h"
#include "op/precision/promotion.h"
#include "op/placement.h"
#include "op/precision/precision.h"

int mpg_call_outputs(const mpg_op *op, const void *params, int num_inputs) {
  return mpg_op_visible_outputs(op, params, num_inputs);
}

/* Sets *device to the device that the op's parameters name. Ops that create arrays default to the
 * CPU. Sets *device to NULL for ops that run on the device of their inputs. */
static mpg_status named_device(const mpg_op *op, const void *params, mpg_device **device) {
  mpg_device_id id = mpg_op_named_device(op, params);
  *device = NULL;
  if (id.type == 0 && op->flags & MPG_OP_CREATES) id = (mpg_device_id){.type = MPG_CPU};
  return id.type ? mpg_device_get(id, device) : MPG_OK;
}

/* Creates the tape node of a call that is about to run. Sets its edges before the call runs,
 * because other threads may replace the arrays' nodes while the call waits. */
static mpg_status begin_record(const mpg_invocation *call, mpg_array *const *inputs,
                               mpg_tape_node **result) {
  const mpg_op *op = call->op;
  mpg_tape_node *node;
  MPG_TRY(mpg_tape_new(MPG_TAPE_OP, (uint32_t)call->num_inputs, (uint32_t)call->num_outputs,
                       call->params ? op->params->size : 0, &node));
  node->op = op;
  node->train = call->train;
  node->scope = call->scope;
  if (node->params) memcpy((void *)node->params, call->params, op->params->size);
  for (int i = 0; i < call->num_inputs; i++) mpg_tape_set_edge(node, (uint32_t)i, inputs[i]);
  *result = node;
  return MPG_OK;
}

/* Completes the node of a finished call and makes the first num_known outputs point to the node.
 * Takes ownership of the node. */
static void end_record(mpg_tape_node *node, const mpg_invocation *call, mpg_array *const *outputs,
                       int num_known) {
  const mpg_op *op = call->op;
  uint32_t num_inputs = node->num_inputs, num_outputs = node->num_outputs;
  node->origin = call->origin;
  for (uint32_t i = 0; i < num_inputs; i++) {
    mpg_tape_describe(node, i, &call->inputs[i]);
    if (op->saves & MPG_SAVE_INPUTS &&
        (i < 16 ? op->saves >> i & 1 : (op->saves & MPG_SAVE_INPUTS) == MPG_SAVE_INPUTS))
      mpg_tape_save(node, i, &call->inputs[i]);
  }
  for (uint32_t i = 0; i < num_outputs; i++) {
    mpg_tape_describe(node, num_inputs + i, &call->outputs[i]);
    if (i < 16 ? op->saves >> (16 + i) & 1 : (op->saves & MPG_SAVE_OUTPUTS) == MPG_SAVE_OUTPUTS)
      mpg_tape_save(node, num_inputs + i, &call->outputs[i]);
  }
  for (int i = 0; i < num_known; i++) {
    mpg_array *output = outputs[i];
    mpg_tape_node *former = output->node;
    mpg_array_changed(output);
    output->node = mpg_tape_retain(node);
    output->output = (uint32_t)i;
    mpg_tape_release(former);
  }
  mpg_tape_release(node);
}

enum { STACK_ARRAYS = 16 };

typedef struct call_space {
  mpg_tensor tensors[STACK_ARRAYS];
  mpg_array *pointers[STACK_ARRAYS];
  mpg_tensor *heap; /* used if there are more than STACK_ARRAYS arrays */
} call_space;

/* Fills in the inputs and outputs of a call, runs it and, while recording, puts it on the tape. */
static mpg_status run_and_record(mpg_invocation *call, mpg_array *const *inputs, mpg_array *outputs,
                                 int num_visible, mpg_array *const *out, bool recording) {
  const mpg_op *op = call->op;
  const int num_inputs = call->num_inputs;
  call_space space;
  mpg_tensor *tensors = space.tensors;
  mpg_array **pointers = space.pointers;
  int num_outputs = mpg_op_num_outputs(op, call->params, num_inputs),
      total = num_inputs + num_outputs;
  mpg_status status = MPG_OK;
  if (total > STACK_ARRAYS) {
    tensors = mpg_space_take((size_t)total * (sizeof *tensors + sizeof *pointers));
    if (!tensors) return mpg_out_of_host_memory((size_t)total * sizeof *tensors);
    pointers = (mpg_array **)(tensors + total);
  }
  bool on_tape = false;
  /* Retains the inputs during the call, because other threads may replace the arrays' memory while
   * it waits. */
  for (int i = 0; i < num_inputs; i++) {
    tensors[i] = inputs[i]->tensor;
    mpg_tensor_retain(&tensors[i]);
    on_tape |= inputs[i]->node && !inputs[i]->node->consumed;
  }
  mpg_tensor *results = tensors + num_inputs;
  for (int i = 0; i < num_outputs; i++) results[i].storage = NULL;
  if (out)
    for (int i = 0; i < num_visible; i++) {
      results[i] = out[i]->tensor;
      mpg_tensor_retain(&results[i]);
    }
  call->inputs = tensors;
  call->outputs = results;
  call->num_outputs = num_outputs;
  mpg_tape_node *node = NULL;
  if (recording && on_tape && !(op->flags & MPG_OP_DETACHES)) {
    MPG_GOTO(begin_record(call, inputs, &node));
    /* Reads the origin before the op runs, because this may run other code. No other code may run
     * between the op and the saving of its inputs. */
    call->origin = mpg_host_origin();
  }
  MPG_GOTO(mpg_invoke(call));
  if (!out) {
    for (int i = 0; i < num_visible; i++)
      outputs[i] = (mpg_array){.tensor = results[i], .numpy = mpg_op_is_numpy(op)};
    for (int i = 0; i < num_visible; i++) pointers[i] = &outputs[i];
  }
  if (node) end_record(node, call, out ? out : pointers, num_visible);
  node = NULL;
  /* Releases the hidden outputs, which the caller does not receive. */
  for (int i = num_visible; i < num_outputs; i++) mpg_tensor_release(&results[i]);
fail:
  mpg_tape_release(node);
  for (int i = 0; i < num_inputs; i++) mpg_tensor_release(&tensors[i]);
  for (int i = 0; out && i < num_visible; i++) mpg_tensor_release(&results[i]);
  if (tensors != space.tensors) mpg_space_give(tensors);
  return status;
}

mpg_status mpg_record_call(const mpg_op *op, const void *params, mpg_array *const *inputs,
                           int num_inputs, mpg_array *outputs, int num_outputs,
                           const mpg_random_key *random, bool train, mpg_device *device,
                           uint32_t scope) {
  mpg_invocation call = {.op = op,
                         .params = params,
                         .num_inputs = num_inputs,
                         .train = train,
                         .random = random,
                         .scope = scope,
                         .steps = mpg_mode.steps,
                         .device = device};
  return run_and_record(&call, inputs, outputs, num_outputs, NULL, mpg_mode.recording);
}

/* Fails if a call has arrays of both kinds, or an array that the op's dialect doesn't take. */
static __attribute__((noinline, cold)) mpg_status fail_kinds(const mpg_op *op,
                                                             mpg_array *const *inputs,
                                                             int num_inputs) {
  char name[64];
  bool numpy = mpg_op_is_numpy(op) || inputs[0]->numpy;
  int odd = 0;
  while (odd < num_inputs - 1 && inputs[odd]->numpy == numpy) odd++;
  return mpg_fail(MPG_TYPE_ERROR, "%s: %s is an array of %s, but %s of %s; convert it with %s()",
                  op->name, mpg_op_input_name(op, odd, name, sizeof name),
                  numpy ? "mx.nd" : "mx.np",
                  mpg_op_is_numpy(op) ? "the function is" : "the others are",
                  numpy ? "mx.np" : "mx.nd", numpy ? "as_np_ndarray" : "as_nd_ndarray");
}

/* Casts the inputs of an op that promotes dtypes, and calls it. */
static mpg_status call_promoted(mpg_trace *trace, const mpg_op *op, const void *params,
                                mpg_array *const *inputs, int num_inputs, mpg_array *outputs,
                                int num_visible, mpg_array *const *out, bool separate,
                                mpg_dtype dtype) {
  enum { MOST = 2 };
  const mpg_cast_params cast = {.dtype = dtype};
  mpg_array made[MOST] = {{.numpy = true}, {.numpy = true}}, *all[MOST];
  mpg_status status = MPG_OK;
  MPG_ASSERT(num_inputs <= MOST);
  for (int i = 0; i < num_inputs; i++) {
    all[i] = inputs[i];
    if (mpg_array_desc(inputs[i])->dtype == dtype) continue;
    all[i] = &made[i];
    MPG_GOTO(mpg_call_in(trace, mpg_op_get(MPG_OP_Cast)->numpy, &cast, &inputs[i], 1, &made[i], 1,
                         NULL, false));
  }
  status = mpg_call_in(trace, op, params, all, num_inputs, outputs, num_visible, out, separate);
fail:
  mpg_array_clear_all(made, MOST);
  return status;
}

/* Returns the trace that a call belongs to, or NULL if the call runs eagerly. `trace` is the active
 * trace or NULL. */
static mpg_trace *find_trace(mpg_trace *trace, const mpg_op *op, mpg_array *const *inputs,
                             int num_inputs) {
  for (int i = 0; i < num_inputs; i++)
    if (__builtin_expect(inputs[i]->trace != NULL, 0)) return trace ? trace : inputs[i]->trace;
  if (__builtin_expect(trace == NULL, 1)) return NULL;
  if (num_inputs == 0 || (op->flags & MPG_OP_RANDOM)) return trace;
  for (int i = 0; i < num_inputs; i++)
    if (mpg_trace_takes(inputs[i])) return trace;
  return NULL;
}

static mpg_status check_out(const mpg_call_mode *now, const mpg_op *op, mpg_array *const *inputs,
                            int num_inputs, mpg_array *const *out, int num_visible) {
  for (int i = 0; i < num_visible; i++) {
    if (__builtin_expect(now->trace || out[i]->trace, 0))
      MPG_TRY(mpg_trace_check_write(out[i], op->name));
    if (!now->recording || !out[i]->node) continue;
    bool records = false;
    for (int k = 0; k < num_inputs; k++) records |= inputs[k]->node && !inputs[k]->node->consumed;
    if (records || out[i]->node->kind != MPG_TAPE_VARIABLE)
      return mpg_fail(
          MPG_ERROR,
          "%s: the array to overwrite (by +=, x[:] = or out=) is part of the computation that "
          "autograd is recording; create a new array instead, or write under autograd.pause()",
          op->name);
  }
  return MPG_OK;
}

mpg_status mpg_call(const mpg_op *op, const void *params, mpg_array *const *inputs, int num_inputs,
                    mpg_array *outputs, int num_visible, mpg_array *const *out) {
  return mpg_call_as(op, params, inputs, num_inputs, outputs, num_visible, out, false);
}

static inline __attribute__((always_inline)) mpg_status
call_in(mpg_trace *trace, const mpg_op *op, const void *params, mpg_array *const *inputs,
        int num_inputs, mpg_array *outputs, int num_visible, mpg_array *const *out, bool separate) {
  const mpg_call_mode *now = &mpg_mode;
  if (__builtin_expect(now->group.active, 0) && !(op->flags & (MPG_OP_COPY | MPG_OP_SPANS)))
    return mpg_group_call(trace, op, params, inputs, num_inputs, outputs, num_visible, out,
                          separate);
  if (__builtin_expect(trace != NULL, 0)) {
    for (int i = 0; out && i < num_visible; i++) MPG_TRY(mpg_trace_check_write(out[i], op->name));
    if (out)
      return mpg_fail(MPG_ERROR,
                      "%s: out= cannot be used inside a hybridized block, because a traced value "
                      "cannot be written to an array",
                      op->name);
    return mpg_trace_call(trace, op, params, inputs, num_inputs, outputs, num_visible, separate,
                          now->training, now->scope);
  }
  if (out) MPG_TRY(check_out(now, op, inputs, num_inputs, out, num_visible));
  if (__builtin_expect((op->flags & MPG_OP_COMPOSED) != 0, 0))
    return mpg_composed_call(op, params, inputs, num_inputs, outputs, num_visible, out);
  /* All fields are named, because the compiler would otherwise clear the whole struct first. */
  mpg_invocation call = {.op = op,
                         .params = params,
                         .num_inputs = num_inputs,
                         .inputs = NULL,
                         .num_outputs = 0,
                         .outputs = NULL,
                         .separate = separate,
                         .train = now->training,
                         .random = NULL,
                         .scope = now->scope,
                         .origin = 0,
                         .backward = false,
                         .steps = now->steps,
                         .device = NULL};
  if (op->flags & (MPG_OP_COPY | MPG_OP_CREATES)) {
    MPG_TRY(named_device(op, params, &call.device));
    if (out && num_visible && (op->flags & MPG_OP_CREATES))
      call.device = mpg_tensor_device(&out[0]->tensor);
  }
  return run_and_record(&call, inputs, outputs, num_visible, out, now->recording);
}

/* Calls an op on arrays of mx.np. `traced` is false if none of them is a value of a trace. */
static __attribute__((noinline)) mpg_status call_numpy(const mpg_op *op, const void *params,
                                                       mpg_array *const *inputs, int num_inputs,
                                                       mpg_array *outputs, int num_visible,
                                                       mpg_array *const *out, bool separate,
                                                       bool traced) {
  op = op->numpy;
  mpg_trace *trace = NULL;
  if (__builtin_expect(traced, 0)) trace = find_trace(mpg_mode.trace, op, inputs, num_inputs);
  mpg_scalar_params number;
  if (op->flags & (MPG_OP_PROMOTES | MPG_OP_DIVIDES) && num_inputs > 0) {
    mpg_dtype first = mpg_array_desc(inputs[0])->dtype,
              last = mpg_array_desc(inputs[num_inputs - 1])->dtype;
    if ((first != last || !mpg_dtype_is_float(first)) && mpg_op_inputs_alike(op, num_inputs)) {
      mpg_dtype dtype = mpg_promotion_target(op, params, first, last);
      mpg_op_id id = mpg_promoted_op(op, dtype);
      if (mpg_exact_comparison(op, params, dtype, &id, &number)) params = &number;
      op = mpg_op_get(id)->numpy;
      if (dtype != first || dtype != last)
        return call_promoted(trace, op, params, inputs, num_inputs, outputs, num_visible, out,
                             separate, dtype);
    }
  }
  if (__builtin_expect(mpg_precision_on, 0) && !mpg_mode.uncast)
    return mpg_precision_call(trace, op, params, inputs, num_inputs, outputs, num_visible, out,
                              separate);
  return call_in(trace, op, params, inputs, num_inputs, outputs, num_visible, out, separate);
}

mpg_status mpg_call_as(const mpg_op *op, const void *params, mpg_array *const *inputs,
                       int num_inputs, mpg_array *outputs, int num_visible, mpg_array *const *out,
                       bool separate) {
  bool numpy = mpg_op_is_numpy(op), all = true, traced = mpg_mode.trace != NULL;
  for (int i = 0; i < num_inputs; i++) {
    numpy |= inputs[i]->numpy;
    all &= inputs[i]->numpy;
    traced |= inputs[i]->trace != NULL;
  }
  if (__builtin_expect(numpy && !all, 0)) return fail_kinds(op, inputs, num_inputs);
  if (__builtin_expect(numpy, 0))
    return call_numpy(op, params, inputs, num_inputs, outputs, num_visible, out, separate, traced);
  mpg_trace *trace = NULL;
  if (__builtin_expect(traced, 0)) trace = find_trace(mpg_mode.trace, op, inputs, num_inputs);
  if (__builtin_expect(mpg_precision_on, 0) && !mpg_mode.uncast)
    return mpg_precision_call(trace, op, params, inputs, num_inputs, outputs, num_visible, out,
                              separate);
  return call_in(trace, op, params, inputs, num_inputs, outputs, num_visible, out, separate);
}

mpg_status mpg_call_in(mpg_trace *trace, const mpg_op *op, const void *params,
                       mpg_array *const *inputs, int num_inputs, mpg_array *outputs,
                       int num_visible, mpg_array *const *out, bool separate) {
  return call_in(trace, op, params, inputs, num_inputs, outputs, num_visible, out, separate);
}

mpg_status mpg_call_plain(const mpg_op *op, const void *params, mpg_array *const *inputs,
                          int num_inputs, mpg_array *outputs, int num_visible) {
  return call_in(find_trace(mpg_mode.trace, op, inputs, num_inputs), op, params, inputs, num_inputs,
                 outputs, num_visible, NULL, false);
}

mpg_status mpg_array_detach(mpg_array *target, const mpg_array *source) {
  if (source->trace) {
    mpg_array *input = (mpg_array *)source;
    return mpg_call(mpg_op_get(MPG_OP__detach), NULL, &input, 1, target, 1, NULL);
  }
  *target = (mpg_array){.tensor = source->tensor, .numpy = source->numpy};
  mpg_tensor_retain(&target->tensor);
  return MPG_OK;
}

mpg_status mpg_array_as(mpg_array *target, const mpg_array *source, bool numpy) {
  if (source->trace && source->numpy != numpy) {
    const mpg_op *op = mpg_op_in(mpg_op_get(MPG_OP__reshape_exact), numpy);
    const mpg_exact_shape_params params = {.shape = mpg_shape_tuple(&source->tensor.desc.shape)};
    mpg_array *input = (mpg_array *)source;
    /* Skips device groups, which would choose the dialect by the input and move the array. */
    return mpg_trace_call(find_trace(mpg_mode.trace, op, &input, 1), op, &params, &input, 1, target,
                          1, false, mpg_mode.training, mpg_mode.scope);
  }
  mpg_array_copy(target, source);
  target->numpy = numpy;
  return MPG_OK;
}
