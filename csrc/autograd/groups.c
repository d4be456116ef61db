/* Device groups: calls ops inside a group, and moves arrays to its device. */
#include "autograd/groups.h"

#include "autograd/autograd.h"
#include "op/placement.h"

/* Calls an op outside of any group. */
static mpg_status call_alone(const mpg_op *op, const void *params, mpg_array *const *inputs,
                             int num_inputs, mpg_array *outputs, int num_visible,
                             mpg_array *const *out, bool separate) {
  mpg_group former = mpg_group_set((mpg_group){0});
  mpg_status status =
      mpg_call_as(op, params, inputs, num_inputs, outputs, num_visible, out, separate);
  mpg_group_set(former);
  return status;
}

/* Sets *target to the array on the device: a copy, or a view if the array is already there. */
static mpg_status move(const mpg_array *array, mpg_device_id device, mpg_array *target) {
  mpg_array *input = (mpg_array *)array;
  if (mpg_device_id_equal(mpg_array_device_id(array), device)) {
    mpg_exact_shape_params params = {.shape = mpg_shape_tuple(&array->tensor.desc.shape)};
    return call_alone(mpg_op_get(MPG_OP__reshape_exact), &params, &input, 1, target, 1, NULL,
                      false);
  }
  mpg_copyto_params params;
  mpg_params_defaults(&mpg_copyto_table, &params);
  params.ctx = device;
  return call_alone(mpg_op_get(MPG_OP__copyto), &params, &input, 1, target, 1, NULL, false);
}

/* Same as move, within a trace. Reuses an earlier copy of the value on the device. */
static mpg_status move_traced(mpg_trace *trace, const mpg_array *array, mpg_device_id device,
                              mpg_array *target) {
  mpg_value value;
  MPG_TRY(mpg_trace_value(trace, array, "a move between groups", &value));
  for (size_t i = trace->num_copies; i-- > 0;) {
    const mpg_trace_copy *known = &trace->copies[i];
    if (known->value.node == value.node && known->value.output == value.output &&
        mpg_device_id_equal(known->device, device)) {
      return mpg_trace_array(trace, known->copy, target);
    }
  }
  MPG_TRY(mpg_grow((void **)&trace->copies, &trace->copies_capacity, trace->num_copies + 1,
                   sizeof *trace->copies));
  mpg_array source = {0};
  MPG_TRY(mpg_trace_array(trace, value, &source));
  mpg_status status = move(&source, device, target);
  mpg_array_clear(&source);
  if (status == MPG_OK)
    trace->copies[trace->num_copies++] =
        (mpg_trace_copy){.value = value, .device = device, .copy = target->value};
  return status;
}

mpg_status mpg_group_move(const mpg_array *array, mpg_device_id device, mpg_array *target) {
  mpg_trace *trace = mpg_trace_active();
  if (trace == NULL) trace = array->trace;
  return trace ? move_traced(trace, array, device, target) : move(array, device, target);
}

enum { STACK_INPUTS = 16 };

static mpg_device_id input_device(const void *inputs, int index) {
  return mpg_array_device_id(((mpg_array *const *)inputs)[index]);
}

mpg_status mpg_group_call(mpg_trace *trace, const mpg_op *op, const void *params,
                          mpg_array *const *inputs, int num_inputs, mpg_array *outputs,
                          int num_visible, mpg_array *const *out, bool separate) {
  mpg_device_id device =
      mpg_op_place_in_group(op, params, inputs, num_inputs, input_device, mpg_group_get().device);
  if (out) device = mpg_array_device_id(out[0]);
  int strays = 0;
  for (int i = 0; i < num_inputs; i++)
    strays += !mpg_op_input_mutable(op, i) &&
              !mpg_device_id_equal(mpg_array_device_id(inputs[i]), device);
  if (device.type == 0 || !strays)
    return call_alone(op, params, inputs, num_inputs, outputs, num_visible, out, separate);
  struct {
    mpg_array moved[STACK_INPUTS];
    mpg_array *pointers[STACK_INPUTS];
  } stack;
  mpg_array *moved = stack.moved, **pointers = stack.pointers;
  if (num_inputs > STACK_INPUTS) {
    moved = mpg_malloc((size_t)num_inputs * (sizeof *moved + sizeof *pointers));
    if (!moved) return mpg_out_of_host_memory((size_t)num_inputs * sizeof *moved);
    pointers = (mpg_array **)(moved + num_inputs);
  }
  int done = 0;
  mpg_status status = MPG_OK;
  for (; done < num_inputs; done++) {
    moved[done] = (mpg_array){0};
    pointers[done] = inputs[done];
    if (mpg_op_input_mutable(op, done) ||
        mpg_device_id_equal(mpg_array_device_id(inputs[done]), device))
      continue;
    MPG_GOTO(trace ? move_traced(trace, inputs[done], device, &moved[done])
                   : move(inputs[done], device, &moved[done]));
    pointers[done] = &moved[done];
  }
  MPG_GOTO(call_alone(op, params, pointers, num_inputs, outputs, num_visible, out, separate));
fail:
  for (int i = 0; i < done; i++)
    if (pointers[i] == &moved[i]) mpg_array_clear(&moved[i]);
  if (moved != stack.moved) mpg_free(moved);
  return status;
}
