/* Runs the backward part of a pass node by node. Arrays are released after their last use. */
#include <string.h>

#include "autograd/trace.h"
#include "autograd/backward_pass.h"
#include "op/precision/promotion.h"

/* Counts the uses of each value, backward from the kept values. A node runs only if one of its
 * outputs is used. */
static void count_uses(mpg_backward_pass *pass, const mpg_value *kept, size_t num_kept) {
  mpg_graph *graph = &pass->graph;
  for (size_t i = 0; i < num_kept; i++)
    if (mpg_has_value(kept[i])) pass->uses[mpg_value_index(graph, kept[i])]++;
  for (size_t n = graph->num_nodes; n-- > 0;) {
    const mpg_node *node = &graph->nodes[n];
    if (node->phase != MPG_PHASE_BACKWARD || mpg_node_is_input(node)) continue;
    bool live = false;
    for (uint32_t i = 0; i < node->num_outputs && !live; i++)
      live = pass->uses[node->values + i] > 0;
    if (!live) continue;
    const mpg_value *inputs = mpg_node_inputs(graph, node);
    for (uint32_t i = 0; i < node->num_inputs; i++)
      if (mpg_has_value(inputs[i])) pass->uses[mpg_value_index(graph, inputs[i])]++;
  }
}

/* Sets the arrays of the forward values that the backward part reads to their saved contents. */
static mpg_status bind_values(mpg_backward_pass *pass, bool retain, bool create_graph) {
  mpg_graph *graph = &pass->graph;
  for (int take = 0; take < 2; take++) { /* the first iteration only checks all values */
    pass->taken = take && !retain;
    for (size_t n = 0; n < graph->num_nodes; n++) {
      const mpg_node *node = &graph->nodes[n];
      if (node->phase != MPG_PHASE_FORWARD) continue;
      for (uint32_t i = 0; i < node->num_outputs; i++) {
        uint32_t value = node->values + i;
        mpg_saved_place place = pass->saved_places[value];
        if (!pass->uses[value] || !place.node) continue;
        mpg_tensor tensor;
        MPG_TRY(mpg_tape_saved(place.node, place.slot, &tensor));
        if (!take) continue;
        mpg_tensor_retain(&tensor);
        pass->arrays[value].tensor = tensor;
        /* Releases the tape's reference, so that the last use in this pass frees the memory. */
        if (!retain && !create_graph) mpg_contents_release(&place.node->saved[place.slot]);
        if (create_graph) {
          mpg_tape_node *owner = pass->owners[n];
          pass->arrays[value].node = mpg_tape_retain(owner);
          /* A value that add_later_contents has added takes the output index from its input. */
          pass->arrays[value].output =
              owner && owner->graph_node != n ? mpg_node_inputs(graph, node)[0].output : i;
        }
      }
    }
  }
  return MPG_OK;
}

/* Creates an array without memory for an op input of which only the shape is read. */
static mpg_status stand_in(mpg_backward_pass *pass, uint32_t value) {
  mpg_graph_value *wanted = &pass->graph.values[value];
  mpg_device *device;
  MPG_TRY(mpg_device_get(wanted->device, &device));
  mpg_storage *storage;
  MPG_TRY(mpg_storage_create(device, 0, false, &storage));
  pass->arrays[value].tensor = (mpg_tensor){.storage = storage, .desc = wanted->desc};
  return MPG_OK;
}

static void release_inputs(mpg_backward_pass *pass, const mpg_node *node) {
  const mpg_value *inputs = mpg_node_inputs(&pass->graph, node);
  for (uint32_t i = 0; i < node->num_inputs; i++) {
    if (!mpg_has_value(inputs[i])) continue;
    uint32_t value = mpg_value_index(&pass->graph, inputs[i]);
    if (--pass->uses[value] == 0) mpg_array_clear(&pass->arrays[value]);
  }
}

/* Writes a call's result to its gradient array, or adds it. */
static mpg_status deliver(mpg_array *result, mpg_target *target) {
  mpg_tensor inputs[2] = {target->tensor, result->tensor}, output = target->tensor;
  mpg_copyto_params params;
  memset(&params, 0, sizeof params);
  bool add = target->request == MPG_GRAD_ADD;
  const mpg_op *op = add ? mpg_sum_of_gradients(output.desc.dtype) : mpg_op_get(MPG_OP__copyto);
  mpg_invocation call = {.op = op,
                         .params = add ? NULL : &params,
                         .num_inputs = add ? 2 : 1,
                         .inputs = add ? inputs : inputs + 1,
                         .num_outputs = 1,
                         .outputs = &output,
                         .backward = true,
                         .device = mpg_tensor_device(&output)};
  if (add) call.device = NULL;
  MPG_TRY(mpg_invoke(&call));
  target->done = true;
  return MPG_OK;
}

mpg_status mpg_backward_pass_fill_zero(mpg_backward_pass *pass, uint32_t value) {
  const mpg_graph_value *of = &pass->graph.values[value];
  mpg_device *device;
  MPG_TRY(mpg_device_get(of->device, &device));
  return mpg_tape_zeros(&of->desc, device, &pass->arrays[value].tensor);
}

/* Checks a gradient that a call returned, and casts it to the input's dtype. */
static mpg_status settle_result(const mpg_tape_node *owner, const mpg_graph_value *value,
                                mpg_array *result, uint32_t input) {
  if (!result->tensor.storage) return MPG_OK;
  char have[MPG_SHAPE_TEXT_SIZE], want[MPG_SHAPE_TEXT_SIZE];
  const mpg_desc *got = &result->tensor.desc, *wanted = &value->desc;
  if (!mpg_shape_equal(&got->shape, &wanted->shape) ||
      !mpg_device_id_equal(mpg_array_device_id(result), value->device))
    return mpg_fail(MPG_ERROR,
                    "%s: the gradient of input %u from backward has shape %s on %s, but the input "
                    "has shape %s and is on %s",
                    owner->call->name, input, mpg_shape_text(&got->shape, have, sizeof have),
                    mpg_device_text(mpg_tensor_device(&result->tensor)),
                    mpg_shape_text(&wanted->shape, want, sizeof want),
                    mpg_device_id_text(value->device).text);
  if (got->dtype == wanted->dtype) return MPG_OK;
  const mpg_cast_params params = {.dtype = wanted->dtype};
  mpg_array converted = {0}, *given = result;
  MPG_TRY(mpg_call(mpg_op_get(MPG_OP_Cast), &params, &given, 1, &converted, 1, NULL));
  mpg_array_clear(result);
  *result = converted;
  return MPG_OK;
}

/* Sets *result to sum + result. The addition is recorded on the tape if gradients of gradients are
 * wanted. */
static mpg_status add_sum(mpg_array *sum, mpg_array *result) {
  if (!sum->tensor.storage) return MPG_OK;
  mpg_array total = {0};
  if (result->tensor.storage) {
    mpg_array *terms[2] = {sum, result};
    const mpg_op *op = mpg_sum_of_gradients(mpg_array_desc(sum)->dtype);
    MPG_TRY(mpg_call(op, NULL, terms, 2, &total, 1, NULL));
  } else {
    mpg_array_copy(&total, sum);
  }
  mpg_array_clear(result);
  *result = total;
  return MPG_OK;
}

/* Writes a call's result to its gradient array, if it has one. An empty result is a gradient of
 * zero. If no gradient reached the input (`missed`), the result stays empty, so that no zeros are
 * written or added. */
static mpg_status store_result(mpg_backward_pass *pass, uint32_t value, bool missed) {
  const mpg_tensor *result = &pass->arrays[value].tensor;
  mpg_target *target = pass->targets[value];
  bool read = pass->uses[value] > (target ? 1u : 0u);
  if (!result->storage && !missed && (read || (target && target->request == MPG_GRAD_WRITE)))
    MPG_TRY(mpg_backward_pass_fill_zero(pass, value));
  if (!target) return MPG_OK;
  if (result->storage) return deliver(&pass->arrays[value], target);
  target->missed = missed;
  return MPG_OK;
}

static mpg_status run_call(mpg_backward_pass *pass, const mpg_node *node, bool retain, bool train) {
  mpg_graph *graph = &pass->graph;
  mpg_tape_node *owner = node->opaque;
  const mpg_value *inputs = mpg_node_inputs(graph, node);
  /* The node's inputs are the output gradients followed by the sums for the call's inputs. */
  uint32_t num_grads = node->num_inputs, num_results = node->num_outputs;
  size_t size = num_grads * sizeof(mpg_array *) +
                num_results * (sizeof(mpg_array) + sizeof(mpg_target) + sizeof(bool));
  char *memory = mpg_arena_alloc(&graph->arena, size);
  if (!memory) return mpg_out_of_host_memory(size);
  memset(memory, 0, size);
  mpg_array *results = (mpg_array *)memory, empty = {0};
  mpg_target *targets = (mpg_target *)(results + num_results);
  mpg_array **out_grads = (mpg_array **)(targets + num_results);
  bool *needed = (bool *)(out_grads + num_grads);
  for (uint32_t i = 0; i < num_grads; i++)
    out_grads[i] =
        mpg_has_value(inputs[i]) ? &pass->arrays[mpg_value_index(graph, inputs[i])] : &empty;
  mpg_array *const *sums = out_grads + owner->num_outputs;
  for (uint32_t i = 0; i < num_results; i++) {
    uint32_t value = node->values + i;
    needed[i] = pass->uses[value] > 0;
    /* The call may write to the gradient array directly, with two exceptions. The result is needed
     * as a separate array if it has other uses and is added to an old gradient, or if this function
     * adds the sum of other gradients to it. */
    bool summed_here = !owner->call->adds_sums && sums[i]->tensor.storage;
    if (pass->targets[value] && !summed_here &&
        (pass->uses[value] == 1 || pass->targets[value]->request == MPG_GRAD_WRITE))
      targets[i] = *pass->targets[value];
  }
  mpg_status status = owner->call->backward(owner, out_grads, sums, needed, targets, results,
                                            retain, train, pass->together);
  for (uint32_t i = 0; i < num_results && status == MPG_OK; i++) {
    uint32_t value = node->values + i;
    if (!needed[i]) continue;
    if (!targets[i].done) {
      MPG_GOTO(settle_result(owner, &graph->values[value], &results[i], i));
      if (!owner->call->adds_sums) MPG_GOTO(add_sum(sums[i], &results[i]));
    } else if (pass->uses[value] > 1 && !results[i].tensor.storage) {
      results[i].tensor = targets[i].tensor;
      mpg_tensor_retain(&results[i].tensor);
    }
    pass->arrays[value] = results[i];
    results[i] = (mpg_array){0};
    if (!targets[i].done) MPG_GOTO(store_result(pass, value, targets[i].missed));
  }
fail:
  for (uint32_t i = 0; i < num_results; i++) mpg_array_clear(&results[i]);
  return status;
}

enum { STACK_ARRAYS = 16 };

static mpg_status run_op(mpg_backward_pass *pass, const mpg_node *node, mpg_tensor *tensors) {
  mpg_graph *graph = &pass->graph;
  const mpg_value *inputs = mpg_node_inputs(graph, node);
  mpg_tensor *outputs = tensors + node->num_inputs;
  for (uint32_t i = 0; i < node->num_inputs; i++)
    tensors[i] = pass->arrays[mpg_value_index(graph, inputs[i])].tensor;
  for (uint32_t i = 0; i < node->num_outputs; i++) {
    outputs[i].storage = NULL;
    if (pass->targets[node->values + i]) {
      outputs[i] = pass->targets[node->values + i]->tensor;
      mpg_tensor_retain(&outputs[i]);
    }
  }
  if ((node->op->flags & (MPG_OP_INPLACE | MPG_OP_INPLACE_ALIKE)) && !outputs[0].storage &&
      !(node->op->flags & (MPG_OP_SHAPE_ONLY | MPG_OP_VIEW)) && node->num_inputs) {
    /* In place: if the first input has no other reference and no later use, the output reuses the
     * input's memory. */
    const mpg_desc *wanted = &graph->values[node->values].desc;
    if (tensors[0].storage->references == 1 && pass->uses[mpg_value_index(graph, inputs[0])] == 1 &&
        tensors[0].desc.dtype == wanted->dtype &&
        graph->nodes[inputs[0].node].phase == MPG_PHASE_BACKWARD &&
        mpg_shape_equal(&tensors[0].desc.shape, &wanted->shape) && tensors[0].offset == 0) {
      outputs[0] = tensors[0];
      mpg_tensor_retain(&outputs[0]);
    }
  }
  mpg_device *device = NULL;
  if (node->num_inputs == 0 || (node->op->flags & MPG_OP_COPY))
    MPG_TRY(mpg_device_get(node->device, &device));
  mpg_invocation call = {.op = node->op,
                         .params = node->params,
                         .num_inputs = (int)node->num_inputs,
                         .inputs = tensors,
                         .num_outputs = (int)node->num_outputs,
                         .outputs = outputs,
                         .train = node->train,
                         .scope = node->scope,
                         .backward = true,
                         .device = device};
  mpg_status status = mpg_invoke(&call);
  for (uint32_t i = 0; i < node->num_outputs; i++) {
    if (status == MPG_OK && pass->uses[node->values + i])
      pass->arrays[node->values + i].tensor = outputs[i];
    else
      mpg_tensor_release(&outputs[i]);
  }
  return status;
}

/* Same as run_op, but records the op on the tape. */
static mpg_status run_recorded(mpg_backward_pass *pass, const mpg_node *node) {
  mpg_graph *graph = &pass->graph;
  const mpg_value *inputs = mpg_node_inputs(graph, node);
  size_t size = node->num_inputs * sizeof(mpg_array *) + node->num_outputs * sizeof(mpg_array);
  mpg_array *results = mpg_calloc(1, size + 1),
            **arguments = (mpg_array **)(results + node->num_outputs);
  mpg_status status = MPG_OK;
  mpg_device *device = NULL;
  if (!results) return mpg_out_of_host_memory(size);
  for (uint32_t i = 0; i < node->num_inputs; i++)
    arguments[i] = &pass->arrays[mpg_value_index(graph, inputs[i])];
  if (node->num_inputs == 0 || (node->op->flags & MPG_OP_COPY))
    MPG_GOTO(mpg_device_get(node->device, &device));
  MPG_GOTO(mpg_record_call(node->op, node->params, arguments, (int)node->num_inputs, results,
                           (int)node->num_outputs, NULL, node->train, device, node->scope));
  for (uint32_t i = 0; i < node->num_outputs; i++)
    if (results[i].node) results[i].node->family = node->family;
  memcpy(pass->arrays + node->values, results, node->num_outputs * sizeof *results);
fail:
  mpg_free(results);
  return status;
}

static mpg_status run_node(mpg_backward_pass *pass, const mpg_node *node, bool retain,
                           bool create_graph, bool train) {
  mpg_graph *graph = &pass->graph;
  const mpg_value *inputs = mpg_node_inputs(graph, node);
  for (uint32_t i = 0; i < node->num_inputs; i++) {
    if (!mpg_has_value(inputs[i])) continue;
    uint32_t value = mpg_value_index(graph, inputs[i]);
    if (pass->arrays[value].tensor.storage) continue;
    const mpg_node *source = &graph->nodes[inputs[i].node];
    if (source->phase == MPG_PHASE_BACKWARD && source->opaque) { /* an empty gradient is zero */
      if (!node->opaque) MPG_TRY(mpg_backward_pass_fill_zero(pass, value));
      continue;
    }
    if (!mpg_node_flag(node, MPG_OP_SHAPE_ONLY))
      return mpg_fail(
          MPG_ERROR,
          "internal: the gradient that calls %s reads %s %u of %s, which its row does not save",
          node->op ? node->op->name : "a call",
          mpg_node_is_input(&graph->nodes[inputs[i].node]) ? "input" : "output", inputs[i].output,
          graph->nodes[inputs[i].node].op ? graph->nodes[inputs[i].node].op->name : "an input");
    MPG_TRY(stand_in(pass, value));
  }
  if (node->opaque) return run_call(pass, node, retain, train);
  if (create_graph) return run_recorded(pass, node);
  mpg_tensor stack[STACK_ARRAYS], *tensors = stack;
  size_t total = node->num_inputs + node->num_outputs;
  if (total > STACK_ARRAYS && !(tensors = mpg_malloc(total * sizeof *tensors)))
    return mpg_out_of_host_memory(total * sizeof *tensors);
  mpg_status status = run_op(pass, node, tensors);
  if (tensors != stack) mpg_free(tensors);
  return status;
}

mpg_status mpg_backward_pass_run(mpg_backward_pass *pass, const mpg_value *kept, size_t num_kept,
                                 bool retain, bool create_graph, bool train) {
  mpg_graph *graph = &pass->graph;
  mpg_status status = MPG_OK;
  count_uses(pass, kept, num_kept);
  MPG_GOTO(bind_values(pass, retain, create_graph));
  for (size_t n = 0; n < graph->num_nodes; n++) {
    const mpg_node *node = &graph->nodes[n];
    if (node->phase != MPG_PHASE_BACKWARD || mpg_node_is_input(node)) continue;
    bool live = false;
    for (uint32_t i = 0; i < node->num_outputs && !live; i++)
      live = pass->uses[node->values + i] > 0;
    if (!live) continue;
    status = run_node(pass, node, retain, create_graph, train);
    if (status != MPG_OK) {
      if (node->op) mpg_fail_prefix(status, "backward");
      goto fail;
    }
    release_inputs(pass, node);
  }
  /* Releases the arrays that are not needed: unused head gradients and outputs, and results that
   * were written to a target. */
  for (size_t i = 0; i < graph->num_values; i++)
    if (!pass->uses[i] || pass->targets[i]) mpg_array_clear(&pass->arrays[i]);
  return MPG_OK;
fail:
  for (size_t i = 0; i < graph->num_values; i++) mpg_array_clear(&pass->arrays[i]);
  return status;
}
