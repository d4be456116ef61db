/* Variables and callbacks: the leaves of a tape and its opaque calls. */
#include <string.h>

#include "autograd/tape.h"
#include "autograd/trace.h"
#include "device/ranks/ranks.h"
#include "op/params.h"

mpg_status mpg_autograd_mark_variable(mpg_array *array, mpg_grad_req request,
                                      const mpg_tensor *gradient) {
  uint32_t origin = 0; /* read first, because mpg_host_origin may release the GIL */
  if (!gradient && !array->trace && mpg_tensor_device(&array->tensor)->id.rank)
    origin = mpg_host_origin();
  /* A traced array has no storage. */
  if (array->trace || (gradient ? !gradient->storage : mpg_trace_takes(array)))
    return mpg_fail(MPG_ERROR, "attach_grad cannot be called inside a hybridized block's forward");
  const mpg_desc *desc = &array->tensor.desc;
  if (gradient) {
    char have[MPG_SHAPE_TEXT_SIZE], want[MPG_SHAPE_TEXT_SIZE];
    if (!mpg_shape_equal(&gradient->desc.shape, &desc->shape) ||
        gradient->desc.dtype != desc->dtype ||
        mpg_tensor_device(gradient) != mpg_tensor_device(&array->tensor))
      return mpg_fail(MPG_ERROR,
                      "a gradient array must have the shape, dtype and device of its variable, %s "
                      "%s on %s, not %s %s on %s",
                      mpg_dtype_name(desc->dtype), mpg_shape_text(&desc->shape, want, sizeof want),
                      mpg_device_text(mpg_tensor_device(&array->tensor)),
                      mpg_dtype_name(gradient->desc.dtype),
                      mpg_shape_text(&gradient->desc.shape, have, sizeof have),
                      mpg_device_text(mpg_tensor_device(gradient)));
  }
  mpg_tape_node *node;
  MPG_TRY(mpg_tape_new(MPG_TAPE_VARIABLE, 0, 1, 0, &node));
  node->request = (uint8_t)request;
  node->descs[0] = *desc;
  node->devices[0] = mpg_tensor_device(&array->tensor);
  if (gradient) {
    node->gradient = *gradient;
    mpg_tensor_retain(&node->gradient);
  } else {
    node->gradient_born = mpg_storage_new_birth();
    if (origin) node->gradient_name = mpg_ranks_name_array(origin, MPG_MADE_BY_OP + MPG_OP__zeros);
  }
  mpg_tape_node *former = array->node;
  mpg_array_changed(array);
  array->node = node;
  array->output = 0;
  mpg_tape_release(former);
  return MPG_OK;
}

static mpg_tape_node *variable_of(const mpg_array *array) {
  return array->node && array->node->kind == MPG_TAPE_VARIABLE ? array->node : NULL;
}

mpg_status mpg_tape_zeros(const mpg_desc *desc, mpg_device *device, mpg_tensor *zeros) {
  mpg_zeros_params params;
  memset(&params, 0, sizeof params);
  params.shape = mpg_shape_tuple(&desc->shape);
  params.dtype = desc->dtype;
  mpg_invocation call = {.op = mpg_op_get(MPG_OP__zeros),
                         .params = &params,
                         .num_outputs = 1,
                         .outputs = zeros,
                         .backward = true,
                         .device = device};
  return mpg_invoke(&call);
}

mpg_status mpg_tape_create_gradient(mpg_tape_node *variable) {
  if (variable->gradient.storage) return MPG_OK;
  mpg_tensor zeros = {0};
  mpg_tape_retain(variable);
  bool named = mpg_ranks_name_arrays(false); /* the gradient has a name already */
  mpg_status status = mpg_tape_zeros(&variable->descs[0], variable->devices[0], &zeros);
  mpg_ranks_name_arrays(named);
  if (status == MPG_OK && !variable->gradient.storage) {
    zeros.storage->born = variable->gradient_born;
    zeros.storage->name = variable->gradient_name;
    zeros.storage->zeros = true;
    variable->gradient = zeros;
  } else { /* another thread has created it */
    mpg_tensor_release(&zeros);
  }
  mpg_tape_release(variable);
  return status;
}

mpg_status mpg_autograd_gradient(const mpg_array *array, mpg_tensor *gradient) {
  mpg_tape_node *variable = mpg_tape_retain(variable_of(array));
  *gradient = (mpg_tensor){0};
  if (!variable) return MPG_OK;
  mpg_status status = mpg_tape_create_gradient(variable);
  *gradient = variable->gradient;
  mpg_tensor_retain(gradient);
  mpg_tape_release(variable);
  return status;
}

bool mpg_autograd_has_gradient(const mpg_array *array) {
  const mpg_tape_node *variable = variable_of(array);
  return variable && variable->gradient.storage;
}

bool mpg_autograd_request(const mpg_array *array, mpg_grad_req *request) {
  const mpg_tape_node *variable = variable_of(array);
  if (!variable) return false;
  *request = (mpg_grad_req)variable->request;
  return true;
}

bool mpg_autograd_fresh(const mpg_array *array) {
  const mpg_tape_node *variable = variable_of(array);
  return variable && variable->fresh;
}

void mpg_autograd_set_fresh(mpg_array *array, bool fresh) {
  mpg_tape_node *variable = variable_of(array);
  if (variable) variable->fresh = fresh;
}

typedef struct callback_state {
  mpg_tape_call call; /* function table of this call; the node has its own copy */
  mpg_callback callback;
  void *state;
} callback_state;

static mpg_status record_gradients(const mpg_tape_node *node, mpg_array *const *out_grads,
                                   mpg_array *in_grads);

static mpg_status callback_backward(mpg_tape_node *node, mpg_array *const *out_grads,
                                    mpg_array *const *sums, const bool *needed, mpg_target *targets,
                                    mpg_array *in_grads, bool retain, bool train, bool together) {
  (void)together, (void)sums, (void)needed, (void)targets, (void)retain, (void)train;
  callback_state *self = node->state;
  MPG_TRY(self->callback.backward(self->state, out_grads, (int)node->num_outputs, in_grads,
                                  (int)node->num_inputs));
  return mpg_autograd_recording() ? record_gradients(node, out_grads, in_grads) : MPG_OK;
}

static void callback_release(void *state) {
  callback_state *self = state;
  self->callback.release(self->state);
  mpg_free(self);
}

/* Creates the node of a callback and takes ownership of `state`. */
static mpg_status callback_node(const mpg_callback *callback, void *state, uint32_t num_inputs,
                                uint32_t num_outputs, mpg_tape_node **result) {
  mpg_tape_node *node;
  callback_state *self = mpg_calloc(1, sizeof *self);
  if (!self) return mpg_out_of_host_memory(sizeof *self);
  mpg_status status =
      mpg_tape_new(MPG_TAPE_CALL, num_inputs, num_outputs, sizeof(mpg_tape_call), &node);
  if (status != MPG_OK) {
    mpg_free(self);
    return status;
  }
  *self = (callback_state){
      {.name = callback->name, .backward = callback_backward, .release = callback_release},
      *callback,
      state};
  /* The node gets a copy of the function table, because error messages need the table's name after
   * the state has been released. */
  memcpy((void *)node->params, &self->call, sizeof self->call);
  node->call = node->params;
  node->params = NULL;
  node->state = self;
  node->starts = true;
  node->train = mpg_autograd_training();
  node->scope = mpg_autograd_scope();
  node->origin = mpg_host_origin();
  *result = node;
  return MPG_OK;
}

/* Makes `array` output i of `node` and releases the array's previous node. */
static void set_output(mpg_tape_node *node, uint32_t i, mpg_array *array) {
  mpg_tape_describe(node, node->num_inputs + i, &array->tensor);
  mpg_tape_node *former = array->node;
  mpg_array_changed(array);
  array->node = mpg_tape_retain(node);
  array->output = i;
  mpg_tape_release(former);
}

mpg_status mpg_autograd_record_callback(const mpg_callback *callback, void *state,
                                        mpg_array *const *inputs, int num_inputs,
                                        mpg_array *const *outputs, int num_outputs) {
  mpg_tape_node *node;
  if (num_outputs < 1)
    return mpg_fail(MPG_ERROR, "%s: a recorded call must have at least one output", callback->name);
  for (int i = 0; i < num_inputs + num_outputs; i++)
    if ((i < num_inputs ? inputs[i] : outputs[i - num_inputs])->trace)
      return mpg_fail(
          MPG_ERROR,
          "%s: a Python function with its own gradient cannot be part of a hybridized block",
          callback->name);
  MPG_TRY(callback_node(callback, state, (uint32_t)num_inputs, (uint32_t)num_outputs, &node));
  for (int i = 0; i < num_inputs; i++) {
    mpg_tape_set_edge(node, (uint32_t)i, inputs[i]);
    mpg_tape_describe(node, (uint32_t)i, &inputs[i]->tensor);
  }
  for (int i = 0; i < num_outputs; i++) set_output(node, (uint32_t)i, outputs[i]);
  mpg_tape_release(node);
  return MPG_OK;
}

static mpg_status refuse_second_order(void *name, mpg_array *const *out_grads, int num_outputs,
                                      mpg_array *in_grads, int num_inputs) {
  (void)out_grads, (void)num_outputs, (void)in_grads, (void)num_inputs;
  return mpg_fail(
      MPG_ERROR,
      "%s: the gradient that its backward computes has no gradient, because the tape does not "
      "record inside a Python function; compute it with ops, which can be differentiated again",
      (const char *)name);
}

static void release_name(void *name) { (void)name; }

/* Records the gradients of a call on the tape as outputs of an opaque function of the call's
 * inputs and output gradients. An attempt to differentiate the gradients then raises an error
 * instead of silently returning an incomplete derivative. */
static mpg_status record_gradients(const mpg_tape_node *node, mpg_array *const *out_grads,
                                   mpg_array *in_grads) {
  mpg_callback callback = {node->call->name, refuse_second_order, release_name};
  uint32_t num_inputs = node->num_inputs, num_slots = num_inputs + node->num_outputs;
  mpg_tape_node *made;
  MPG_TRY(callback_node(&callback, (void *)callback.name, num_slots, num_inputs, &made));
  /* The gradient of a value has the value's shape, dtype and device. */
  for (uint32_t i = 0; i < num_slots; i++) {
    made->descs[i] = node->descs[i];
    made->devices[i] = node->devices[i];
    if (i >= num_inputs)
      mpg_tape_set_edge(made, i, out_grads[i - num_inputs]);
    else if (node->edges[i].node)
      made->edges[i] = (mpg_tape_edge){mpg_tape_retain(node->edges[i].node), node->edges[i].output};
  }
  for (uint32_t i = 0; i < num_inputs; i++) {
    made->descs[num_slots + i] = node->descs[i];
    made->devices[num_slots + i] = node->devices[i];
    if (in_grads[i].tensor.storage) set_output(made, i, &in_grads[i]);
  }
  mpg_tape_release(made);
  return MPG_OK;
}
