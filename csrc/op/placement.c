/* Placement: ops run on the device of their inputs, so the user chooses the devices. */
#include "op/placement.h"

#include "base/text.h"

mpg_device_id mpg_op_named_device(const mpg_op *op, const void *params) {
  const mpg_param_table *table = op->params;
  for (int i = 0; params && i < table->count; i++)
    if (table->params[i].kind == MPG_PARAM_DEVICE)
      return *(const mpg_device_id *)((const char *)params + table->params[i].offset);
  return (mpg_device_id){0};
}

static mpg_status devices_differ(const mpg_op *op, const void *inputs, int num_inputs,
                                 mpg_input_device_fn device_of) {
  mpg_text text = {0};
  char name[64];
  const mpg_device_id first = device_of(inputs, 0);
  int listed = 0, other = 0;
  for (int i = 0; i < num_inputs && listed < 8; i++) {
    mpg_device_id device = device_of(inputs, i);
    bool differs = !mpg_device_id_equal(device, first);
    if (!other && differs) other = i;
    /* If there are many inputs, lists only the first one and those on other devices. */
    if (i && num_inputs > 8 && !differs) continue;
    mpg_text_append(&text, "%s%s on %s", listed++ ? ", " : "",
                    mpg_op_input_name(op, i, name, sizeof name), mpg_device_id_text(device).text);
  }
  mpg_fail(MPG_ERROR,
           "%s: the inputs are on different devices: %s. Nothing is copied silently: move "
           "one first, e.g. with %s.as_in_context(mx.%s)",
           op->name, mpg_text_string(&text), mpg_op_input_name(op, other, name, sizeof name),
           mpg_device_id_text(first).text);
  mpg_text_free(&text);
  return MPG_ERROR;
}

mpg_status mpg_op_place(const mpg_op *op, const void *params, const void *inputs, int num_inputs,
                        mpg_input_device_fn device_of, mpg_device_id otherwise,
                        mpg_device_id *device) {
  if (num_inputs == 0 || op->flags & MPG_OP_COPY) {
    *device = mpg_op_named_device(op, params);
    if (device->type == 0) *device = num_inputs ? device_of(inputs, 0) : otherwise;
    return MPG_OK;
  }
  *device = device_of(inputs, 0);
  for (int i = 1; i < num_inputs && !(op->flags & MPG_OP_SPANS); i++)
    if (!mpg_device_id_equal(device_of(inputs, i), *device))
      return devices_differ(op, inputs, num_inputs, device_of);
  return MPG_OK;
}

mpg_device_id mpg_op_place_in_group(const mpg_op *op, const void *params, const void *inputs,
                                    int num_inputs, mpg_input_device_fn device_of,
                                    mpg_device_id group) {
  const mpg_device_id named = mpg_op_named_device(op, params);
  if (op->flags & MPG_OP_COPY && named.type) return named;
  mpg_device_id device = group;
  for (int i = 0; device.type == 0 && i < num_inputs; i++) device = device_of(inputs, i);
  return device.type ? device : named;
}
