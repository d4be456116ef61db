/* Runs spanning ops, whose arrays are on several devices. The op is queued on the device of its
 * first input, and every other device with an array of the op waits for the op to end. Each array
 * is therefore written at a tick of its own device. */
#include "base/memory.h"
#include "op/array/collective.h"
#include "op/submit.h"

enum { MAX_DEVICES = 64 };

static mpg_status add_device(mpg_device **devices, int *count, mpg_device *device) {
  for (int i = 0; i < *count; i++)
    if (devices[i] == device) return MPG_OK;
  if (*count == MAX_DEVICES)
    return mpg_fail(MPG_ERROR, "one collective can span up to %d devices", MAX_DEVICES);
  devices[(*count)++] = device;
  return MPG_OK;
}

/* Checks that the op's arrays are on the required devices. Sets the device of each output and
 * lists all devices of the op. */
static mpg_status find_devices(const mpg_invocation *inv, mpg_device **outputs,
                               mpg_device **devices, int *num_devices) {
  const mpg_collective_params *params = inv->params;
  mpg_device_id places[MPG_MAX_SPANNED];
  int named = mpg_collective_places(params->input_devices, places, MPG_MAX_SPANNED);
  for (int i = 0; i < inv->num_inputs; i++) {
    mpg_device *device = mpg_tensor_device(&inv->inputs[i]),
               *wanted = mpg_tensor_device(&inv->inputs[0]);
    if (named) MPG_TRY(mpg_device_get(places[i], &wanted));
    if (device != wanted)
      return mpg_fail(MPG_ERROR, "%s: input %d is on %s, not on %s; move it with as_in_context",
                      inv->op->name, i, mpg_device_text(device), mpg_device_text(wanted));
    MPG_TRY(add_device(devices, num_devices, device));
  }
  named = mpg_collective_places(params->output_devices, places, MPG_MAX_SPANNED);
  for (int i = 0; i < inv->num_outputs; i++) {
    outputs[i] = mpg_tensor_device(&inv->inputs[0]);
    if (named) MPG_TRY(mpg_device_get(places[i], &outputs[i]));
    MPG_TRY(add_device(devices, num_devices, outputs[i]));
    if (inv->outputs[i].storage && mpg_tensor_device(&inv->outputs[i]) != outputs[i])
      return mpg_fail(MPG_ERROR, "%s: out is on %s, but the result is on %s", inv->op->name,
                      mpg_device_text(mpg_tensor_device(&inv->outputs[i])),
                      mpg_device_text(outputs[i]));
  }
  return MPG_OK;
}

static mpg_status invoke_with(mpg_invocation *inv, mpg_desc *descs, mpg_view *views,
                              mpg_device **outputs, bool *made) {
  mpg_device *devices[MAX_DEVICES];
  int num_devices = 0;
  mpg_desc *output_descs = descs + inv->num_inputs;
  mpg_status status = MPG_OK;
  mpg_kernel_fn kernel;
  for (int i = 0; i < inv->num_inputs; i++) descs[i] = inv->inputs[i].desc;
  for (int i = 0; i < inv->num_outputs; i++) made[i] = false;
  MPG_TRY(mpg_op_infer(inv->op, inv->params, inv->train, descs, inv->num_inputs, output_descs,
                       inv->num_outputs));
  MPG_TRY(find_devices(inv, outputs, devices, &num_devices));
  MPG_TRY(mpg_kernel_find(devices[0], inv->op, &kernel));
  for (int i = 0; i < inv->num_outputs; i++) {
    mpg_tensor *output = &inv->outputs[i];
    if (!output->storage) continue;
    if (!mpg_shape_equal(&output->desc.shape, &output_descs[i].shape) ||
        output->desc.dtype != output_descs[i].dtype)
      return mpg_fail(MPG_ERROR, "%s: out and the result differ in shape or dtype", inv->op->name);
    for (int k = 0; k < inv->num_inputs; k++)
      if (mpg_tensor_overlaps(output, &inv->inputs[k]))
        return mpg_fail(MPG_ERROR, "%s: out overlaps an input", inv->op->name);
  }
  for (int i = 0; i < inv->num_outputs; i++) {
    if (inv->outputs[i].storage) continue;
    MPG_GOTO(mpg_tensor_create(outputs[i], &output_descs[i], &inv->outputs[i]));
    made[i] = true;
  }
  for (int i = 0; i < inv->num_inputs; i++)
    views[i] = (mpg_view){mpg_tensor_data(&inv->inputs[i]), descs[i]};
  for (int i = 0; i < inv->num_outputs; i++)
    views[inv->num_inputs + i] = (mpg_view){mpg_tensor_data(&inv->outputs[i]), output_descs[i]};
  MPG_GOTO(
      mpg_op_submit(inv, kernel, devices, num_devices, views, (mpg_random_key){0}, NULL, NULL));
  return MPG_OK;
fail:
  for (int i = 0; i < inv->num_outputs; i++)
    if (made[i]) mpg_tensor_release(&inv->outputs[i]);
  return status;
}

mpg_status mpg_invoke_spanning(mpg_invocation *inv) {
  if (inv->num_inputs > MPG_MAX_SPANNED || inv->num_outputs > MPG_MAX_SPANNED)
    return mpg_fail(MPG_ERROR, "%s: a collective can span at most %d arrays", inv->op->name,
                    MPG_MAX_SPANNED);
  size_t count = (size_t)(inv->num_inputs + inv->num_outputs);
  char *memory = mpg_space_take(
      count * (sizeof(mpg_view) + sizeof(mpg_desc) + sizeof(mpg_device *) + sizeof(bool)));
  if (!memory) return mpg_out_of_host_memory(count * sizeof(mpg_view));
  mpg_view *views = (mpg_view *)memory;
  mpg_desc *descs = (mpg_desc *)(views + count);
  mpg_device **outputs = (mpg_device **)(descs + count);
  mpg_status status = invoke_with(inv, descs, views, outputs, (bool *)(outputs + count));
  mpg_space_give(memory);
  return status;
}
