/* Begins and ends traces, and creates nodes for traced ops. */
#include "autograd/trace.h"

#include <string.h>

#include "autograd/autograd.h"
#include "base/host.h"

mpg_status mpg_trace_begin(mpg_trace **result) {
  mpg_trace *trace = mpg_calloc(1, sizeof *trace);
  if (!trace) return mpg_out_of_host_memory(sizeof *trace);
  trace->references = 1;
  mpg_graph_init(&trace->graph);
  trace->born = mpg_storage_births();
  trace->recording = mpg_autograd_recording();
  trace->outer = mpg_trace_swap(trace);
  *result = trace;
  return MPG_OK;
}

void mpg_trace_end(mpg_trace *trace) {
  trace->closed = true;
  mpg_trace_swap(trace->outer);
  trace->outer = NULL;
}

void mpg_trace_release(mpg_trace *trace) {
  if (!trace || --trace->references) return;
  mpg_graph_free(&trace->graph);
  mpg_trace_clear_constants(trace);
  mpg_free(trace->constants);
  mpg_free(trace->copies);
  mpg_free(trace->live);
  mpg_free(trace);
}

/* Grows the array of live counts to one entry per value of the graph. New entries are 0. */
static mpg_status count_values(mpg_trace *trace) {
  size_t known = trace->live_capacity;
  MPG_TRY(mpg_grow((void **)&trace->live, &trace->live_capacity, trace->graph.num_values,
                   sizeof *trace->live));
  if (trace->live_capacity > known)
    memset(trace->live + known, 0, (trace->live_capacity - known) * sizeof *trace->live);
  return MPG_OK;
}

static void fill(mpg_trace *trace, mpg_value value, mpg_array *array) {
  *array = (mpg_array){.tensor = {.desc = mpg_graph_at(&trace->graph, value)->desc},
                       .numpy = mpg_node_is_numpy(&trace->graph.nodes[value.node]),
                       .trace = trace,
                       .value = value};
  trace->references++;
  trace->live[mpg_value_index(&trace->graph, value)]++;
}

static bool is_around(const mpg_trace *outer, const mpg_trace *trace) {
  while (trace && trace != outer) trace = trace->outer;
  return trace != NULL;
}

mpg_status mpg_trace_input(mpg_trace *trace, const mpg_desc *desc, mpg_device_id device, bool numpy,
                           mpg_array *array) {
  mpg_value value;
  MPG_TRY(mpg_graph_input(&trace->graph, desc, device, &value));
  trace->graph.nodes[value.node].numpy = numpy;
  return mpg_trace_array(trace, value, array);
}

mpg_status mpg_trace_array(mpg_trace *trace, mpg_value value, mpg_array *array) {
  MPG_TRY(count_values(trace));
  fill(trace, value, array);
  return MPG_OK;
}

/* Returns the outermost of the active traces. */
static const mpg_trace *outermost(const mpg_trace *trace) {
  while (trace->outer) trace = trace->outer;
  return trace;
}

/* True if the constant was created from this array and the array has not been written since. */
static bool is_same(const mpg_trace_constant *constant, const mpg_array *array) {
  const mpg_array *known = &constant->array;
  if (array->trace)
    return known->trace == array->trace && known->value.node == array->value.node &&
           known->value.output == array->value.output;
  return !known->trace && known->tensor.storage == array->tensor.storage &&
         known->tensor.offset == array->tensor.offset &&
         known->tensor.desc.dtype == array->tensor.desc.dtype &&
         mpg_shape_equal(&known->tensor.desc.shape, &array->tensor.desc.shape) &&
         known->node == array->node && known->numpy == array->numpy &&
         (!constant->saved.storage || constant->saved.version == array->tensor.storage->version);
}

mpg_status mpg_trace_value(mpg_trace *trace, const mpg_array *array, const char *op,
                           mpg_value *value) {
  if (array->trace == trace) {
    *value = array->value;
    return MPG_OK;
  }
  if (array->trace && (array->trace->closed || !is_around(array->trace, trace))) {
    return mpg_fail(
        MPG_ERROR,
        "%s: an array was kept from an earlier call of a hybridized block, or from inside the body "
        "of a loop or branch, where it has no contents. Return it from there instead of storing it",
        op);
  }
  for (size_t i = 0; i < trace->num_constants; i++) {
    if (!is_same(&trace->constants[i], array)) continue;
    *value = trace->constants[i].value;
    return MPG_OK;
  }
  MPG_TRY(mpg_grow((void **)&trace->constants, &trace->constants_capacity, trace->num_constants + 1,
                   sizeof *trace->constants));
  MPG_TRY(mpg_graph_input(&trace->graph, &array->tensor.desc, mpg_array_device_id(array), value));
  trace->graph.nodes[value->node].numpy = array->numpy;
  mpg_trace_constant *constant = &trace->constants[trace->num_constants++];
  *constant = (mpg_trace_constant){.value = *value};
  mpg_array_copy(&constant->array, array);
  mpg_storage *storage = array->tensor.storage;
  /* The contents of arrays that were created before the trace need not be saved, because writes to
   * these arrays are rejected. */
  if (!storage || storage->born <= outermost(trace)->born) return MPG_OK;
  if (storage->exposed) { /* code outside the core may write it unnoticed */
    mpg_tensor copy;
    MPG_TRY(mpg_tensor_snapshot(&constant->array.tensor, &copy));
    mpg_tensor_release(&constant->array.tensor);
    constant->array.tensor = copy;
  } else {
    constant->saved = mpg_contents_save(storage, array->tensor.offset);
  }
  return MPG_OK;
}

mpg_status mpg_trace_get_constant(const mpg_trace *trace, size_t i, mpg_array *array) {
  const mpg_trace_constant *constant = &trace->constants[i];
  const mpg_saved *saved = &constant->saved;
  bool no_memory = false;
  mpg_array_copy(array, &constant->array);
  if (!saved->storage) return MPG_OK;
  mpg_storage *former = mpg_contents_find(saved->storage, saved->version, &no_memory);
  if (former == saved->storage) return MPG_OK;
  mpg_tensor tensor = array->tensor, copy;
  tensor.storage = former;
  mpg_status status = former ? mpg_tensor_snapshot(&tensor, &copy)
                             : mpg_fail(MPG_ERROR,
                                        "a hybridized block overwrites an array that it created "
                                        "and used before, and the earlier contents are lost: %s",
                                        mpg_contents_lost_text(no_memory));
  if (status != MPG_OK) {
    mpg_array_clear(array);
    return status;
  }
  mpg_tensor_release(&array->tensor);
  array->tensor = copy;
  return MPG_OK;
}

void mpg_trace_clear_constants(mpg_trace *trace) {
  for (size_t i = 0; i < trace->num_constants; i++) {
    mpg_contents_release(&trace->constants[i].saved);
    mpg_array_clear(&trace->constants[i].array);
  }
  trace->num_constants = 0;
}

bool mpg_trace_takes(const mpg_array *array) {
  if (array->trace) return true;
  const mpg_trace *active = mpg_trace_active();
  return active && array->tensor.storage && array->tensor.storage->born <= active->born;
}

mpg_status mpg_trace_check_write(const mpg_array *array, const char *what) {
  char line[512];
  if (!mpg_trace_takes(array)) return MPG_OK;
  mpg_host_origin_text(mpg_host_origin(), line, sizeof line);
  if (array->trace)
    return mpg_fail(MPG_ERROR,
                    "%s: out= cannot be used inside a hybridized block, where values are never "
                    "overwritten (%s). Create a new array: y = y + x instead of y += x, y = "
                    "F.op(x) instead of F.op(x, out=y)",
                    what, line);
  return mpg_fail(
      MPG_ERROR,
      "%s: an array from outside of a hybridized block, or of the body of a loop in it, is written "
      "to inside (%s): this would happen once, during tracing, and not in later calls. Return the "
      "value from the block and write it outside, or call the block without hybridize()",
      what, line);
}

/* If the op's parameters name a device, replaces them with a copy that names trace->only. */
static mpg_status put_on(mpg_trace *trace, const mpg_op *op, const void **params) {
  if (!(op->flags & (MPG_OP_COPY | MPG_OP_CREATES)) || !*params) return MPG_OK;
  char *changed = mpg_arena_copy(&trace->graph.arena, *params, op->params->size);
  if (!changed) return mpg_out_of_host_memory(op->params->size);
  for (int i = 0; i < op->params->count; i++)
    if (op->params->params[i].kind == MPG_PARAM_DEVICE)
      memcpy(changed + op->params->params[i].offset, &trace->only, sizeof trace->only);
  *params = changed;
  return MPG_OK;
}

bool mpg_trace_paused(const mpg_trace *trace) {
  return trace->recording && !mpg_autograd_recording();
}

mpg_status mpg_trace_pause_value(mpg_trace *trace, mpg_value *value) {
  const mpg_node *node = &trace->graph.nodes[value->node];
  if (!mpg_trace_paused(trace) || !node->num_inputs || mpg_node_flag(node, MPG_OP_DETACHES))
    return MPG_OK;
  return mpg_graph_emit(&trace->graph,
                        mpg_op_in(mpg_op_get(MPG_OP__detach), mpg_node_is_numpy(node)), NULL, value,
                        1, MPG_NO_VALUE, value);
}

mpg_status mpg_trace_call(mpg_trace *trace, const mpg_op *op, const void *params,
                          mpg_array *const *inputs, int num_inputs, mpg_array *outputs,
                          int num_visible, bool separate, bool train, uint32_t scope) {
  mpg_value stack[32], *values = stack;
  mpg_status status = MPG_OK;
  if (trace->closed) return mpg_fail(MPG_ERROR, MPG_TRACE_OVER, op->name);
  if (op->flags & MPG_OP_DYNAMIC)
    return mpg_fail(MPG_NOT_IMPLEMENTED,
                    "%s: the shape of its result depends on values, which is not possible in this "
                    "trace; call it on its own through mx.nd or in a hybridized block, or use "
                    "where, one_hot or sequence masks, whose shapes are fixed",
                    op->name);
  int total = num_inputs + mpg_op_num_outputs(op, params, num_inputs);
  if (total > (int)(sizeof stack / sizeof *stack) &&
      !(values = mpg_malloc((size_t)total * sizeof *values)))
    return mpg_out_of_host_memory((size_t)total * sizeof *values);
  trace->graph.scope = scope;
  trace->graph.origin = mpg_host_origin();
  trace->graph.train = train;
  if (trace->only.type) MPG_GOTO(put_on(trace, op, &params));
  for (int i = 0; i < num_inputs; i++)
    MPG_GOTO(mpg_trace_value(trace, inputs[i], op->name, &values[i]));
  MPG_GOTO(mpg_graph_emit(&trace->graph, op, params, values, num_inputs, MPG_NO_VALUE,
                          values + num_inputs));
  if (separate && num_visible) trace->graph.nodes[values[num_inputs].node].separate = true;
  for (int i = 0; i < num_visible; i++)
    MPG_GOTO(mpg_trace_pause_value(trace, &values[num_inputs + i]));
  MPG_GOTO(count_values(trace));
  for (int i = 0; i < num_visible; i++) {
    fill(trace, values[num_inputs + i], &outputs[i]);
    outputs[i].numpy = mpg_op_is_numpy(op); /* nodes of a composed op are of mx.nd */
  }
fail:
  if (values != stack) mpg_free(values);
  if (status != MPG_OK && scope) mpg_fail_prefix(status, "in block %s", mpg_scope_text(scope));
  return status;
}

bool mpg_trace_begin_recompute(void) {
  mpg_trace *active = mpg_trace_active();
  if (!active || active->graph.recompute_region) return false;
  active->graph.recompute_region = ++active->graph.num_recompute_regions;
  return true;
}

void mpg_trace_end_recompute(void) {
  mpg_trace *active = mpg_trace_active();
  if (active) active->graph.recompute_region = 0;
}

mpg_device_id mpg_trace_set_offload(mpg_device_id device) {
  mpg_trace *active = mpg_trace_active();
  mpg_device_id former = {0};
  if (!active) return former;
  former = active->graph.offload;
  active->graph.offload = device;
  return former;
}
