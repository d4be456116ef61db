/* Backward: collects the computation from the tape, appends its gradient, assigns the destinations
 * of gradients, and runs. Semantics are MXNet 1.9.1's. */
#include <string.h>

#include "autograd/trace.h"
#include "autograd/backward_pass.h"
#include "graph/gradient/gradient_store.h"

static mpg_backward_pass *kept_passes; /* list of passes for reuse; runtime state */

static mpg_status pass_begin(mpg_backward_pass **result) {
  mpg_backward_pass *pass = kept_passes;
  if (pass) {
    kept_passes = pass->next;
  } else {
    pass = mpg_calloc(1, sizeof *pass);
    if (!pass) return mpg_out_of_host_memory(sizeof *pass);
    mpg_graph_init(&pass->graph);
  }
  pass->num_nodes = pass->num_variables = 0;
  pass->taken = false;
  *result = pass;
  return MPG_OK;
}

static void pass_end(mpg_backward_pass *pass) {
  for (size_t i = 0; i < pass->num_nodes; i++) mpg_tape_release(pass->nodes[i]);
  pass->num_nodes = 0;
  mpg_graph_clear(&pass->graph);
  pass->next = kept_passes;
  kept_passes = pass;
}

/* True if the head is a concatenation along the first axis and the given gradient has more rows
 * than the head but otherwise the same shape. As in MXNet, only the gradient's first rows are then
 * used. */
static bool has_more_rows(const mpg_graph *graph, mpg_value head, const mpg_shape *want,
                          const mpg_shape *have) {
  const mpg_node *node = &graph->nodes[head.node];
  if (!node->op || !mpg_op_joins_rows(node->op, node->params)) return false;
  return have->ndim == want->ndim && have->dims[0] > want->dims[0] &&
         memcmp(have->dims + 1, want->dims + 1, (size_t)(want->ndim - 1) * sizeof *want->dims) == 0;
}

/* Sets *result to the gradient of a head: ones, or the given array. An array of another shape but
 * the same number of elements is reshaped to the head's shape. */
static mpg_status head_gradient(mpg_backward_pass *pass, const mpg_array *head,
                                const mpg_array *gradient, mpg_value value, mpg_value *result) {
  mpg_graph *graph = &pass->graph;
  if (!gradient) return mpg_graph_emit_full_like(graph, value, 1, result);
  if (gradient->trace)
    return mpg_fail(MPG_ERROR,
                    "backward: a head gradient was created inside a hybridized block that is being "
                    "traced, so it has no value; call backward outside of the block");
  char have[MPG_SHAPE_TEXT_SIZE], want[MPG_SHAPE_TEXT_SIZE];
  const mpg_desc *desc = &head->tensor.desc;
  bool more = has_more_rows(graph, value, &desc->shape, &gradient->tensor.desc.shape);
  if (!more && mpg_shape_size(&gradient->tensor.desc.shape) != mpg_shape_size(&desc->shape))
    return mpg_fail(MPG_VALUE_ERROR,
                    "backward: a head of shape %s was given a head gradient of shape %s, which has "
                    "a different number of elements",
                    mpg_shape_text(&desc->shape, want, sizeof want),
                    mpg_shape_text(&gradient->tensor.desc.shape, have, sizeof have));
  if (gradient->tensor.desc.dtype != desc->dtype)
    return mpg_fail(MPG_TYPE_ERROR,
                    "backward: a head of dtype %s was given a head gradient of dtype %s; convert "
                    "it with astype",
                    mpg_dtype_name(desc->dtype), mpg_dtype_name(gradient->tensor.desc.dtype));
  mpg_device *device = mpg_tensor_device(&gradient->tensor);
  if (device != mpg_tensor_device(&head->tensor))
    return mpg_fail(MPG_ERROR,
                    "backward: the head is on %s, but its head gradient on %s; move the gradient "
                    "with as_in_context(mx.%s)",
                    mpg_device_text(mpg_tensor_device(&head->tensor)), mpg_device_text(device),
                    mpg_device_text(mpg_tensor_device(&head->tensor)));
  MPG_TRY(mpg_graph_input(graph, &gradient->tensor.desc, device->id, result));
  if (mpg_shape_equal(&gradient->tensor.desc.shape, &desc->shape)) return MPG_OK;
  mpg_value given = *result;
  if (more) {
    mpg_slice_axis_params part;
    memset(&part, 0, sizeof part);
    part.end = (mpg_opt_int){desc->shape.dims[0], 1};
    return mpg_graph_emit(graph, mpg_op_get(MPG_OP_slice_axis), &part, &given, 1, given, result);
  }
  mpg_exact_shape_params params;
  memset(&params, 0, sizeof params);
  params.shape = mpg_shape_tuple(&desc->shape);
  return mpg_graph_emit(graph, mpg_op_get(MPG_OP__reshape_exact), &params, &given, 1, given,
                        result);
}

/* The heads of a backward pass and their gradients, both as given by the caller and as graph
 * values. */
typedef struct head_list {
  mpg_array *const *heads, *const *gradients;
  int count;
  mpg_value *values, *gradient_values;
} head_list;

static bool same_kind(const mpg_graph_value *a, const mpg_graph_value *b) {
  return a->desc.dtype == b->desc.dtype && mpg_device_id_equal(a->device, b->device) &&
         mpg_shape_equal(&a->desc.shape, &b->desc.shape);
}

static mpg_status differentiate(mpg_backward_pass *pass, head_list *list, const mpg_value *wanted,
                                size_t num_wanted, mpg_value *gradients, bool train) {
  pass->graph.phase = MPG_PHASE_BACKWARD;
  pass->graph.train = train;
  /* Index of the last head that created a gradient of ones. A later head of the same shape, dtype
   * and device shares that gradient. */
  int ones = -1;
  for (int i = 0; i < list->count; i++) {
    list->values[i] = mpg_backward_pass_value(pass, list->heads[i]);
    const mpg_array *gradient = list->gradients ? list->gradients[i] : NULL;
    if (!gradient && ones >= 0 &&
        same_kind(mpg_graph_at(&pass->graph, list->values[i]),
                  mpg_graph_at(&pass->graph, list->values[ones]))) {
      list->gradient_values[i] = list->gradient_values[ones];
      continue;
    }
    MPG_TRY(
        head_gradient(pass, list->heads[i], gradient, list->values[i], &list->gradient_values[i]));
    if (!gradient) ones = i;
  }
  mpg_differentiation request = {.heads = list->values,
                                 .head_grads = list->gradient_values,
                                 .num_heads = (size_t)list->count,
                                 .wanted = wanted,
                                 .num_wanted = num_wanted,
                                 .gradients = gradients,
                                 .train = train};
  MPG_TRY(mpg_graph_gradient(&pass->graph, &request));
  MPG_VERIFY(&pass->graph);
  return MPG_OK;
}

/* Grows the execution state to one entry per value of the graph and clears it. */
static mpg_status grow_arrays(mpg_backward_pass *pass) {
  size_t count = pass->graph.num_values;
  MPG_TRY(mpg_grow((void **)&pass->arrays, &pass->arrays_capacity, count, sizeof *pass->arrays));
  MPG_TRY(mpg_grow((void **)&pass->uses, &pass->uses_capacity, count, sizeof *pass->uses));
  MPG_TRY(mpg_grow((void **)&pass->targets, &pass->targets_capacity, count, sizeof *pass->targets));
  memset(pass->arrays, 0, count * sizeof *pass->arrays);
  memset(pass->uses, 0, count * sizeof *pass->uses);
  memset(pass->targets, 0, count * sizeof *pass->targets);
  return MPG_OK;
}

typedef struct mode {
  bool recording, training;
  mpg_trace *trace;
} mode;

static mode enter(bool recording, bool training) {
  return (mode){mpg_autograd_set_recording(recording), mpg_autograd_set_training(training),
                mpg_trace_swap(NULL)};
}

static void leave(mode former) {
  mpg_autograd_set_recording(former.recording);
  mpg_autograd_set_training(former.training);
  mpg_trace_swap(former.trace);
}

static void consume(mpg_backward_pass *pass) {
  for (size_t i = 0; i < pass->num_nodes; i++) mpg_tape_consume(pass->nodes[i]);
}

/* Returns the graph input from which a head gradient is computed: the gradient itself, or the input
 * of its reshape or slice. */
static mpg_value given(const mpg_graph *graph, mpg_value value) {
  const mpg_node *node = &graph->nodes[value.node];
  return mpg_node_is_input(node) ? value : mpg_node_inputs(graph, node)[0];
}

/* Sets the arrays of the graph inputs that hold the caller's head gradients. */
static void bind_heads(mpg_backward_pass *pass, const head_list *list) {
  for (int i = 0; i < list->count; i++) {
    if (!list->gradients || !list->gradients[i]) continue;
    mpg_value value = given(&pass->graph, list->gradient_values[i]);
    mpg_array *array = &pass->arrays[mpg_value_index(&pass->graph, value)];
    mpg_array_copy(array, list->gradients[i]);
    array->numpy = false; /* backward passes compute with arrays of mx.nd */
  }
}

/* Sets *missed if a parameter set was collected as one value but the gradient of a call does not
 * reach all parameters of the set. */
static mpg_status find_missed(mpg_backward_pass *pass, bool *missed) {
  mpg_graph *graph = &pass->graph;
  for (size_t n = 0; pass->num_parameter_sets && n < graph->num_nodes && !*missed; n++) {
    const mpg_node *node = &graph->nodes[n];
    mpg_tape_node *owner = node->phase == MPG_PHASE_BACKWARD ? node->opaque : NULL;
    if (!owner || !owner->parameters || !owner->call->reaches) continue;
    bool all = true, *arrives = mpg_arena_alloc(&graph->arena, owner->num_outputs + 1);
    if (!arrives) return mpg_out_of_host_memory(owner->num_outputs);
    for (uint32_t i = 0; i < owner->num_outputs; i++)
      arrives[i] = mpg_has_value(mpg_node_inputs(graph, node)[i]);
    MPG_TRY(owner->call->reaches(owner, arrives, &all));
    *missed = !all;
  }
  return MPG_OK;
}

/* Differentiates and runs a collected pass. If a parameter set was collected as one value but
 * gradients do not reach all its variables, sets *again instead. The caller then restarts and
 * collects the variables one by one. */
static mpg_status backward(mpg_backward_pass *pass, head_list *list, bool retain, bool train,
                           bool *again) {
  mpg_graph *graph = &pass->graph;
  size_t num_wanted = 0, num_variables = pass->num_variables + pass->num_parameter_sets;
  mpg_value *wanted = list->gradient_values + list->count, *results = wanted + num_variables,
            *stored = results + num_variables, *old = stored + num_variables;
  for (size_t i = 0; i < pass->num_variables; i++) {
    mpg_tape_node *variable = pass->variables[i];
    if (variable->request == MPG_GRAD_NULL) continue;
    pass->variables[num_wanted] = variable;
    wanted[num_wanted++] = (mpg_value){variable->graph_node, 0};
  }
  if (num_variables == 0)
    return mpg_fail(MPG_ERROR,
                    "backward: the heads were not computed from variables (attach_grad), or an "
                    "earlier backward without retain_graph=True released that computation");
  if (num_wanted + pass->num_parameter_sets == 0)
    return mpg_fail(MPG_ERROR,
                    "backward: no variable that the heads were computed from requires a gradient: "
                    "grad_req is 'null' for all");
  for (size_t k = 0; k < pass->num_parameter_sets; k++)
    wanted[num_wanted + k] = (mpg_value){pass->parameter_sets[k].graph_node, 0};
  MPG_TRY(differentiate(pass, list, wanted, num_wanted + pass->num_parameter_sets, results, train));
  for (size_t k = 0; k < pass->num_parameter_sets; k++) {
    stored[num_wanted + k] = results[num_wanted + k];
    *again |= !mpg_has_value(results[num_wanted + k]);
  }
  if (!*again) MPG_TRY(find_missed(pass, again));
  if (*again) return MPG_OK;
  mpg_gradient_store store;
  MPG_TRY(mpg_gradient_store_begin(graph, false, &store));
  for (size_t i = 0; i < num_wanted; i++)
    MPG_TRY(mpg_gradient_store_put(&store, (mpg_value){pass->variables[i]->graph_node, 0},
                                   results[i], pass->variables[i]->request == MPG_GRAD_ADD,
                                   &stored[i], &old[i]));
  MPG_TRY(mpg_grow((void **)&pass->target_list, &pass->target_list_capacity, num_wanted,
                   sizeof *pass->target_list));
  MPG_TRY(grow_arrays(pass));
  bind_heads(pass, list);
  for (size_t i = 0; i < num_wanted; i++) {
    mpg_tape_node *variable = pass->variables[i];
    pass->target_list[i] = (mpg_target){variable->gradient, variable->request, false, false};
    if (mpg_has_value(stored[i]))
      pass->targets[mpg_value_index(graph, stored[i])] = &pass->target_list[i];
    if (mpg_has_value(old[i])) {
      mpg_array *array = &pass->arrays[mpg_value_index(graph, old[i])];
      array->tensor = variable->gradient;
      mpg_tensor_retain(&array->tensor);
    }
  }
  MPG_TRY(mpg_backward_pass_run(pass, stored, num_wanted + pass->num_parameter_sets, retain, false,
                                train));
  for (size_t i = 0; i < num_wanted; i++)
    if (!pass->target_list[i].missed) pass->variables[i]->fresh = true;
  for (size_t k = 0; k < pass->num_parameter_sets; k++)
    mpg_parameter_set_set_fresh(pass->parameter_sets[k].parameters);
  return MPG_OK;
}

static void clear_arrays(mpg_backward_pass *pass, size_t count) {
  for (size_t i = 0; i < count; i++) mpg_array_clear(&pass->arrays[i]);
}

static mpg_status reserve_lists(mpg_backward_pass *pass, int num_heads, size_t per_variable,
                                size_t num_variables, head_list *list) {
  MPG_TRY(mpg_grow((void **)&pass->work, &pass->work_capacity,
                   2 * (size_t)num_heads + per_variable * num_variables, sizeof *pass->work));
  list->count = num_heads;
  list->values = pass->work;
  list->gradient_values = pass->work + num_heads;
  return MPG_OK;
}

static mpg_status check_heads(mpg_array *const *heads, int num_heads, const char *what) {
  for (int i = 0; i < num_heads; i++)
    if (heads[i]->trace)
      return mpg_fail(
          MPG_ERROR,
          "%s cannot be called inside a hybridized block, which is traced and not recorded. Call "
          "it outside, on the results of the block, or call the block without hybridize()",
          what);
  return MPG_OK;
}

/* Allocates the missing gradients of the collected variables. If *created is set, the pass must be
 * restarted, because other threads may have used the tape meanwhile. */
static mpg_status create_gradients(const mpg_backward_pass *pass, bool *created) {
  for (size_t i = 0; i < pass->num_variables; i++) {
    if (!mpg_tape_lacks_gradient(pass->variables[i])) continue;
    *created = true;
    MPG_TRY(mpg_tape_create_gradient(pass->variables[i]));
  }
  return MPG_OK;
}

static mpg_status try_backward(head_list *list, bool retain, bool train, bool together,
                               bool *again) {
  mpg_backward_pass *pass;
  MPG_TRY(pass_begin(&pass));
  mode former = enter(false, train);
  bool created = false;
  mpg_status status = mpg_backward_pass_collect(pass, list->heads, list->count, false, together);
  if (status == MPG_OK) status = create_gradients(pass, &created);
  if (status == MPG_OK && !created)
    status =
        reserve_lists(pass, list->count, 4, pass->num_variables + pass->num_parameter_sets, list);
  if (status == MPG_OK && !created) {
    status = backward(pass, list, retain, train, again);
    if (!*again && !retain && (status == MPG_OK || pass->taken)) consume(pass);
  }
  leave(former);
  pass_end(pass);
  return status == MPG_OK && created ? try_backward(list, retain, train, together, again) : status;
}

mpg_status mpg_autograd_backward(mpg_array *const *heads, mpg_array *const *head_grads,
                                 int num_heads, bool retain_graph, bool train) {
  head_list list = {.heads = heads, .gradients = head_grads, .count = num_heads};
  bool again = false, unused = false;
  MPG_TRY(check_heads(heads, num_heads, "backward"));
  mpg_status status = try_backward(&list, retain_graph, train, true, &again);
  return again ? try_backward(&list, retain_graph, train, false, &unused) : status;
}

/* Records a gradient that does not depend on any variable as a constant on the tape.
 * Differentiating it again then gives zero instead of an error. */
static mpg_status record_constant(mpg_array *gradient, mpg_array *variable) {
  mpg_array *inputs[] = {gradient, variable}, recorded = {0};
  mpg_reshape_like_params params;
  memset(&params, 0, sizeof params);
  MPG_TRY(mpg_call(mpg_op_get(MPG_OP_reshape_like), &params, inputs, 2, &recorded, 1, NULL));
  mpg_array_clear(gradient);
  *gradient = recorded;
  return MPG_OK;
}

/* Copies a gradient if its storage is shared with an input, a head gradient or another result, so
 * that the caller may write it. Sharing with saved contents is harmless, because a write preserves
 * them. */
static mpg_status unshare(mpg_tensor *gradient) {
  const mpg_storage *storage = gradient->storage;
  if ((uint32_t)storage->references <= 1 + storage->savers) return MPG_OK;
  mpg_tensor copy;
  MPG_TRY(mpg_tensor_snapshot(gradient, &copy));
  mpg_tensor_release(gradient);
  *gradient = copy;
  return MPG_OK;
}

static mpg_status grad(mpg_backward_pass *pass, head_list *list, mpg_array *const *variables,
                       int num_variables, bool retain, bool create_graph, bool train,
                       mpg_array *gradients) {
  mpg_value *wanted = list->gradient_values + list->count, *results = wanted + num_variables;
  for (int i = 0; i < num_variables; i++) {
    wanted[i] = variables[i]->node ? mpg_backward_pass_value(pass, variables[i]) : MPG_NO_VALUE;
    if (!mpg_has_value(wanted[i]))
      return mpg_fail(MPG_VALUE_ERROR,
                      variables[i]->node ? "grad: the heads were not computed from variable %d"
                                         : "grad: variable %d does not require a gradient; call "
                                           "attach_grad on it before recording",
                      i);
  }
  MPG_TRY(differentiate(pass, list, wanted, (size_t)num_variables, results, train));
  for (int i = 0; i < num_variables; i++)
    if (!mpg_has_value(results[i])) {
      pass->graph.phase = MPG_PHASE_BACKWARD;
      MPG_TRY(mpg_graph_emit_full_like(&pass->graph, wanted[i], 0, &results[i]));
    }
  MPG_TRY(grow_arrays(pass));
  bind_heads(pass, list);
  MPG_TRY(mpg_backward_pass_run(pass, results, (size_t)num_variables, retain, create_graph, train));
  mpg_status status = MPG_OK;
  for (int i = 0; i < num_variables && status == MPG_OK; i++) {
    uint32_t value = mpg_value_index(&pass->graph, results[i]);
    if (!pass->arrays[value].tensor.storage) status = mpg_backward_pass_fill_zero(pass, value);
    if (status != MPG_OK) break;
    mpg_array_copy(&gradients[i], &pass->arrays[value]);
    gradients[i].numpy = variables[i]->numpy;
  }
  clear_arrays(pass, pass->graph.num_values);
  for (int i = 0; i < num_variables && create_graph && status == MPG_OK; i++)
    if (!gradients[i].node) status = record_constant(&gradients[i], variables[i]);
  for (int i = 0; i < num_variables && status == MPG_OK; i++)
    status = unshare(&gradients[i].tensor);
  if (status != MPG_OK) mpg_array_clear_all(gradients, (size_t)num_variables);
  return status;
}

mpg_status mpg_autograd_grad(mpg_array *const *heads, mpg_array *const *head_grads, int num_heads,
                             mpg_array *const *variables, int num_variables, bool retain_graph,
                             bool create_graph, bool train, mpg_array *gradients) {
  mpg_backward_pass *pass;
  head_list list = {.heads = heads, .gradients = head_grads};
  MPG_TRY(check_heads(heads, num_heads, "autograd.grad"));
  MPG_TRY(pass_begin(&pass));
  mode former = enter(create_graph, train);
  mpg_status status = mpg_backward_pass_collect(pass, heads, num_heads, create_graph, false);
  if (status == MPG_OK) status = reserve_lists(pass, num_heads, 2, (size_t)num_variables, &list);
  if (status == MPG_OK) {
    bool retain = retain_graph || create_graph;
    status = grad(pass, &list, variables, num_variables, retain, create_graph, train, gradients);
    if (!retain && (status == MPG_OK || pass->taken)) consume(pass);
  }
  leave(former);
  pass_end(pass);
  return status;
}

mpg_status mpg_autograd_read(mpg_array *head,
                             mpg_status (*read)(const mpg_graph *graph, mpg_value head,
                                                void *state),
                             void *state) {
  mpg_backward_pass *pass;
  if (!head->node)
    return mpg_fail(MPG_ERROR,
                    "get_symbol: the array was not computed from variables (attach_grad) while "
                    "recording (autograd.record)");
  MPG_TRY(pass_begin(&pass));
  mpg_status status = mpg_backward_pass_collect(pass, &head, 1, true, false);
  if (status != MPG_OK) mpg_fail_prefix(status, "get_symbol");
  for (size_t i = 0; status == MPG_OK && i < pass->graph.num_nodes; i++)
    if (pass->graph.nodes[i].opaque)
      status = mpg_fail(MPG_NOT_IMPLEMENTED,
                        "get_symbol: %s is a Python function, which cannot be a node of a Symbol",
                        mpg_tape_name(pass->graph.nodes[i].opaque));
  if (status == MPG_OK) status = read(&pass->graph, mpg_backward_pass_value(pass, head), state);
  pass_end(pass);
  return status;
}
