/* Placement is exact propagation: users say where things are. */
#include <stdio.h>

#include "graph/ir/graph.h"

static mpg_status place_fail(const mpg_op *op, int num_inputs, const mpg_device_id *devices) {
  char where[512], name[64];
  size_t used = 0;
  int other = 0;
  where[0] = 0;
  for (int i = 0; i < num_inputs; i++) {
    if (!other && !mpg_device_id_equal(devices[i], devices[0])) other = i;
    if (used + 80 > sizeof where) continue;
    used += (size_t)snprintf(where + used, sizeof where - used, "%s%s on %s", i ? ", " : "",
                             mpg_op_input_name(op, i, name, sizeof name),
                             mpg_device_id_text(devices[i]).text);
  }
  return mpg_fail(MPG_ERROR,
                  "%s: the inputs are on different devices: %s. Nothing is copied silently: move "
                  "one first, e.g. with "
                  "%s.as_in_context(mx.%s)",
                  op->name, where, mpg_op_input_name(op, other, name, sizeof name),
                  mpg_device_id_text(devices[0]).text);
}

mpg_status mpg_place(const mpg_graph *graph, const mpg_op *op, const void *params,
                     const mpg_value *inputs, int num_inputs, mpg_value like,
                     mpg_device_id *device) {
  if (op->flags & MPG_OP_COPY) {
    *device = mpg_params_device(op, params);
    if (device->type == 0) *device = mpg_graph_at(graph, inputs[0])->device;
    return MPG_OK;
  }
  if (num_inputs == 0) {
    *device = mpg_params_device(op, params);
    if (device->type == 0)
      *device =
          mpg_has_value(like) ? mpg_graph_at(graph, like)->device : (mpg_device_id){MPG_CPU, 0};
    return MPG_OK;
  }
  *device = mpg_graph_at(graph, inputs[0])->device;
  if (op->flags & MPG_OP_SPANS) return MPG_OK;
  for (int i = 1; i < num_inputs; i++) {
    if (mpg_device_id_equal(mpg_graph_at(graph, inputs[i])->device, *device)) continue;
    mpg_device_id devices[16];
    int shown = num_inputs < 16 ? num_inputs : 16;
    for (int k = 0; k < shown; k++) devices[k] = mpg_graph_at(graph, inputs[k])->device;
    if (i >= shown) devices[shown - 1] = mpg_graph_at(graph, inputs[i])->device;
    return place_fail(op, shown, devices);
  }
  return MPG_OK;
}
