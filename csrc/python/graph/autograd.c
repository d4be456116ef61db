/* Python interface of csrc/autograd (mpgluon.autograd): recording scopes, variables, backward, and
 * differentiable Python functions. */
#include "python/core.h"
#include "python/graph/describe.h"

/* --- Scopes: record(), pause(), train_mode(), predict_mode() ---------------------------------- */
typedef struct scope {
  PyObject_HEAD signed char record, train; /* flags to set: 1, 0, or -1 to keep the current flag */
  signed char old_record, old_train;       /* the flags before `__enter__`, to restore on exit */
} scope;

static PyObject *scope_enter(PyObject *object, PyObject *Py_UNUSED(unused)) {
  scope *self = (scope *)object;
  if (self->record >= 0) self->old_record = mpg_autograd_set_recording(self->record);
  if (self->train >= 0) self->old_train = mpg_autograd_set_training(self->train);
  return Py_NewRef(object);
}
static PyObject *scope_exit(PyObject *object, PyObject *const *Py_UNUSED(args),
                            Py_ssize_t Py_UNUSED(count)) {
  scope *self = (scope *)object;
  if (self->record >= 0) mpg_autograd_set_recording(self->old_record);
  if (self->train >= 0) mpg_autograd_set_training(self->old_train);
  Py_RETURN_NONE;
}
static void scope_dealloc(PyObject *object) {
  PyTypeObject *type = Py_TYPE(object);
  type->tp_free(object);
  Py_DECREF(type);
}
static PyMethodDef scope_methods[] = {
    {"__enter__", scope_enter, METH_NOARGS, NULL},
    {"__exit__", (PyCFunction)(void (*)(void))scope_exit, METH_FASTCALL, NULL},
    {0}};
static PyType_Slot scope_slots[] = {{Py_tp_dealloc, scope_dealloc},
                                    {Py_tp_methods, scope_methods},
                                    {Py_tp_doc,
                                     "A with-statement that changes autograd's recording and "
                                     "training flags and restores them at its end."},
                                    {0, NULL}};
static PyType_Spec scope_spec = {"mpgluon.autograd._Scope", sizeof(scope), 0,
                                 Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
                                 scope_slots};

static PyObject *scope_new(int record, int train) {
  scope *self = PyObject_New(scope, mpg_py->scope_type);
  if (self == NULL) return NULL;
  self->record = (signed char)record;
  self->train = (signed char)train;
  self->old_record = self->old_train = 0;
  return (PyObject *)self;
}

static PyObject *scope_with_mode(PyObject *const *args, Py_ssize_t count, PyObject *keywords,
                                 int record, int train, const char *name) {
  Py_ssize_t total = count + (keywords ? PyTuple_GET_SIZE(keywords) : 0);
  if (total > 1) return PyErr_Format(PyExc_TypeError, "%s() takes one argument, train_mode", name);
  if (total == 1) {
    if (count == 0 &&
        PyUnicode_CompareWithASCIIString(PyTuple_GET_ITEM(keywords, 0), "train_mode") != 0)
      return PyErr_Format(PyExc_TypeError, "%s() has no parameter '%U'; it takes train_mode", name,
                          PyTuple_GET_ITEM(keywords, 0));
    if (args[0] == Py_None)
      train = -1;
    else if ((train = PyObject_IsTrue(args[0])) < 0)
      return NULL;
  }
  return scope_new(record, train);
}
static PyObject *record(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count,
                        PyObject *keywords) {
  return scope_with_mode(args, count, keywords, 1, 1, "record");
}
static PyObject *pause_(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count,
                        PyObject *keywords) {
  return scope_with_mode(args, count, keywords, 0, 0, "pause");
}
static PyObject *train_mode(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused)) {
  return scope_new(-1, 1);
}
static PyObject *predict_mode(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused)) {
  return scope_new(-1, 0);
}

static PyObject *is_recording(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused)) {
  return PyBool_FromLong(mpg_autograd_recording());
}
static PyObject *is_training(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused)) {
  return PyBool_FromLong(mpg_autograd_training());
}
static PyObject *set_recording(PyObject *Py_UNUSED(module), PyObject *value) {
  int on = PyObject_IsTrue(value);
  return on < 0 ? NULL : PyBool_FromLong(mpg_autograd_set_recording(on));
}
static PyObject *set_training(PyObject *Py_UNUSED(module), PyObject *value) {
  int on = PyObject_IsTrue(value);
  return on < 0 ? NULL : PyBool_FromLong(mpg_autograd_set_training(on));
}

/* --- Switches of mx.np (mpgluon.util) --------------------------------------------------------- */
static PyObject *is_np_array(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused)) {
  return PyBool_FromLong(mpg_np_array());
}
static PyObject *is_np_shape(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused)) {
  return PyBool_FromLong(mpg_np_shape() != MPG_NP_SHAPE_OFF);
}
static PyObject *set_np_array(PyObject *Py_UNUSED(module), PyObject *value) {
  int on = PyObject_IsTrue(value);
  return on < 0 ? NULL : PyBool_FromLong(mpg_np_array_set(on));
}
static PyObject *set_np_shape(PyObject *Py_UNUSED(module), PyObject *value) {
  long set = PyLong_AsLong(value);
  if (set == -1 && PyErr_Occurred()) return NULL;
  if (set < MPG_NP_SHAPE_OFF || set > MPG_NP_SHAPE_ALL)
    return PyErr_Format(PyExc_ValueError,
                        "set_np_shape: expected False, True or 2 (all threads), got %R", value);
  return PyLong_FromLong((long)mpg_np_shape_set((mpg_np_shapes)set));
}

/* --- Lists of arrays -------------------------------------------------------------------------- */
typedef struct arrays {
  PyObject *keep;
  mpg_array **items; /* points to `small` or to an owned block */
  int count;
  mpg_array *small[MPG_PY_SMALL];
} arrays;

static void arrays_free(arrays *a) {
  if (a->items != a->small) PyMem_Free(a->items);
  Py_CLEAR(a->keep);
}
/* Replaces sparse arrays in a tuple with the dense arrays that represent them on the tape, and
 * weights with sparse gradients with dense variables. Takes ownership of `items`, which may be
 * NULL, and returns the new tuple. */
static PyObject *dense_items(PyObject *items) {
  for (Py_ssize_t i = 0; items != NULL && i < PyTuple_GET_SIZE(items); i++) {
    if (!mpg_py_is_handled(PyTuple_GET_ITEM(items, i))) continue;
    PyObject *list = PySequence_List(items);
    Py_CLEAR(items);
    for (; list != NULL && i < PyList_GET_SIZE(list); i++) {
      PyObject *item = PyList_GET_ITEM(list, i);
      item =
          mpg_py_is_sparse(item) ? PyObject_CallMethod(item, "on_tape", NULL) : mpg_py_dense(item);
      if (item == NULL || PyList_SetItem(list, i, item) < 0) Py_CLEAR(list);
    }
    items = list ? PyList_AsTuple(list) : NULL;
    Py_XDECREF(list);
    break;
  }
  return items;
}

/* Converts an NDArray or a sequence of NDArrays. If `nones`, accepts None and converts it to
 * NULL. */
static int arrays_from(arrays *a, PyObject *object, bool nones, const char *what) {
  a->items = a->small;
  a->keep = NULL;
  a->count = 0;
  if (mpg_py_is_array(object)) {
    a->keep = Py_NewRef(object);
    a->small[0] = mpg_py_array_of(object);
    a->count = 1;
    return 0;
  }
  a->keep =
      dense_items(mpg_py_is_sparse(object) ? PyTuple_Pack(1, object) : PySequence_Tuple(object));
  if (a->keep == NULL) {
    if (!PyErr_ExceptionMatches(PyExc_TypeError)) return -1;
    PyErr_Format(mpg_py->errors[MPG_TYPE_ERROR],
                 "%s: expected an NDArray or a list of them, got %s", what,
                 Py_TYPE(object)->tp_name);
    return -1;
  }
  Py_ssize_t count = PyTuple_GET_SIZE(a->keep);
  if (count > INT32_MAX / 16) {
    PyErr_Format(mpg_py->errors[MPG_VALUE_ERROR], "%s: too many arrays", what);
    goto fail;
  }
  if (count > MPG_PY_SMALL && (a->items = PyMem_Malloc(sizeof *a->items * (size_t)count)) == NULL) {
    a->items = a->small;
    PyErr_NoMemory();
    goto fail;
  }
  a->count = (int)count;
  for (Py_ssize_t i = 0; i < count; i++) {
    PyObject *item = PyTuple_GET_ITEM(a->keep, i);
    if (nones && item == Py_None)
      a->items[i] = NULL;
    else if ((a->items[i] = mpg_py_expect_array(item, what)) == NULL)
      goto fail;
  }
  return 0;
fail:
  arrays_free(a);
  return -1;
}

static int heads_from(arrays *heads, arrays *gradients, PyObject *head_object,
                      PyObject *gradient_object, const char *what) {
  if (arrays_from(heads, head_object, false, what) < 0) return -1;
  *gradients = (arrays){.items = gradients->small};
  if (gradient_object == Py_None) return 0;
  if (arrays_from(gradients, gradient_object, true, what) < 0) {
    arrays_free(heads);
    return -1;
  }
  if (gradients->count == heads->count) return 0;
  PyErr_Format(mpg_py->assertion_error, "%s: got %d heads but %d head gradients", what,
               heads->count, gradients->count);
  arrays_free(heads);
  arrays_free(gradients);
  return -1;
}

static PyObject *backward(PyObject *Py_UNUSED(module), PyObject *args, PyObject *kwargs) {
  static char *names[] = {"heads", "head_grads", "retain_graph", "train_mode", NULL};
  PyObject *head_object, *gradient_object = Py_None;
  int retain = 0, train = 1;
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|Opp:backward", names, &head_object,
                                   &gradient_object, &retain, &train))
    return NULL;
  arrays heads, gradients;
  if (heads_from(&heads, &gradients, head_object, gradient_object, "backward") < 0) return NULL;
  mpg_status status = MPG_OK;
  if (heads.count == 0)
    status = mpg_fail(MPG_VALUE_ERROR, "backward: heads must not be empty");
  else
    status = mpg_autograd_backward(heads.items, gradient_object == Py_None ? NULL : gradients.items,
                                   heads.count, retain, train);
  arrays_free(&heads);
  arrays_free(&gradients);
  if (status != MPG_OK) return mpg_py_raise(status);
  Py_RETURN_NONE;
}

static PyObject *grad(PyObject *Py_UNUSED(module), PyObject *args, PyObject *kwargs) {
  static char *names[] = {"heads",        "variables",  "head_grads", "retain_graph",
                          "create_graph", "train_mode", NULL};
  PyObject *head_object, *variable_object, *gradient_object = Py_None, *retain_object = Py_None;
  int create = 0, train = 1;
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO|OOpp:grad", names, &head_object,
                                   &variable_object, &gradient_object, &retain_object, &create,
                                   &train))
    return NULL;
  int retain = retain_object == Py_None ? create : PyObject_IsTrue(retain_object);
  if (retain < 0) return NULL;
  arrays heads, gradients, variables;
  if (heads_from(&heads, &gradients, head_object, gradient_object, "grad") < 0) return NULL;
  PyObject *result = NULL;
  mpg_array *found = NULL;
  if (arrays_from(&variables, variable_object, false, "grad") < 0) {
    variables = (arrays){.items = variables.small};
    goto done;
  }
  if (variables.count == 0 || heads.count == 0) {
    PyErr_SetString(mpg_py->assertion_error, "grad: heads and variables must not be empty");
    goto done;
  }
  found = PyMem_Calloc((size_t)variables.count, sizeof *found);
  if (found == NULL) {
    PyErr_NoMemory();
    goto done;
  }
  mpg_status status = mpg_autograd_grad(
      heads.items, gradient_object == Py_None ? NULL : gradients.items, heads.count,
      variables.items, variables.count, retain, create, train, found);
  if (status != MPG_OK) {
    mpg_py_raise(status);
    goto done;
  }
  result = mpg_py_array_take_all(found, variables.count);
done:
  PyMem_Free(found);
  arrays_free(&variables);
  arrays_free(&heads);
  arrays_free(&gradients);
  return result;
}

static int request_of(PyObject *object, mpg_grad_req *request) {
  static const struct {
    const char *name;
    mpg_grad_req request;
  } known[] = {{"null", MPG_GRAD_NULL},
               {"write", MPG_GRAD_WRITE},
               {"add", MPG_GRAD_ADD},
               {"inplace", MPG_GRAD_WRITE}};
  for (size_t i = 0; PyUnicode_Check(object) && i < sizeof known / sizeof known[0]; i++)
    if (PyUnicode_CompareWithASCIIString(object, known[i].name) == 0) {
      *request = known[i].request;
      return 0;
    }
  mpg_py_refuse(MPG_KEY_ERROR, object, "grad_req must be 'write', 'add' or 'null'");
  return -1;
}

static PyObject *mark_variables(PyObject *Py_UNUSED(module), PyObject *args, PyObject *kwargs) {
  static char *names[] = {"variables", "gradients", "grad_reqs", NULL};
  PyObject *variable_object, *gradient_object, *request_object = NULL;
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO|O:mark_variables", names, &variable_object,
                                   &gradient_object, &request_object))
    return NULL;
  arrays variables, gradients;
  PyObject *requests = NULL, *result = NULL;
  if (heads_from(&variables, &gradients, variable_object, gradient_object, "mark_variables") < 0)
    return NULL;
  if (gradients.count != variables.count) {
    PyErr_SetString(mpg_py->errors[MPG_VALUE_ERROR],
                    "mark_variables: each variable must have a gradient array");
    goto done;
  }
  if (request_object != NULL && !PyUnicode_Check(request_object)) {
    requests = PySequence_Tuple(request_object);
    if (requests == NULL) goto done;
    if (PyTuple_GET_SIZE(requests) != variables.count) {
      PyErr_Format(mpg_py->errors[MPG_VALUE_ERROR],
                   "mark_variables: got %d variables but %zd grad_reqs", variables.count,
                   PyTuple_GET_SIZE(requests));
      goto done;
    }
  }
  for (int i = 0; i < variables.count; i++) {
    mpg_grad_req request = MPG_GRAD_WRITE;
    PyObject *one = requests ? PyTuple_GET_ITEM(requests, i) : request_object;
    if (one != NULL && request_of(one, &request) < 0) goto done;
    mpg_array *variable = variables.items[i], *gradient = gradients.items[i];
    if (gradient == NULL || mpg_py_expect_value(variable, "mark_variables") < 0 ||
        mpg_py_expect_value(gradient, "mark_variables") < 0) {
      if (!PyErr_Occurred())
        PyErr_SetString(mpg_py->errors[MPG_TYPE_ERROR],
                        "mark_variables: a gradient must be an array, not None");
      goto done;
    }
    mpg_status status = mpg_autograd_mark_variable(variable, request, &gradient->tensor);
    if (status != MPG_OK) {
      mpg_py_raise(status);
      goto done;
    }
  }
  result = Py_NewRef(Py_None);
done:
  Py_XDECREF(requests);
  arrays_free(&variables);
  arrays_free(&gradients);
  return result;
}

/* --- autograd.Function ------------------------------------------------------------------------ */
typedef struct function_state {
  PyObject *function; /* owned; computes the input gradients from the output gradients */
  int num_outputs;
  struct {
    mpg_desc desc;
    mpg_device_id device;
    bool numpy;
  } outputs[]; /* used to create a zero gradient for an output that receives none */
} function_state;

static void function_release(void *pointer) {
  function_state *state = pointer;
  if (Py_IsInitialized()) Py_DECREF(state->function);
  PyMem_RawFree(state);
}

static PyObject *zeros_for(const function_state *state, int output) {
  mpg_tuple shape = mpg_shape_tuple(&state->outputs[output].desc.shape);
  int32_t dtype = state->outputs[output].desc.dtype;
  double value = 0;
  mpg_device_id device = state->outputs[output].device;
  const char *full = state->outputs[output].numpy ? "_npi__full" : "_full";
  return mpg_py_call_named(full, NULL, 0, NULL, "shape", &shape, "dtype", &dtype, "value", &value,
                           "ctx", &device, NULL);
}

static mpg_status function_backward(void *pointer, mpg_array *const *out_grads, int num_outputs,
                                    mpg_array *in_grads, int num_inputs) {
  const function_state *state = pointer;
  PyObject *args = PyTuple_New(num_outputs), *result = NULL, *items = NULL;
  mpg_status status = MPG_HOST_EXCEPTION;
  if (args == NULL) goto done;
  for (int i = 0; i < num_outputs; i++) {
    const mpg_array *given = out_grads[i];
    PyObject *item;
    if (given == NULL || (given->tensor.storage == NULL && !mpg_array_traced(given))) {
      item = zeros_for(state, i);
    } else {
      item = mpg_py_array_new(state->outputs[i].numpy);
      if (item != NULL) mpg_array_copy(mpg_py_array_of(item), given);
      if (item != NULL) mpg_py_array_of(item)->numpy = state->outputs[i].numpy;
    }
    if (item == NULL) goto done;
    PyTuple_SET_ITEM(args, i, item);
  }
  result = PyObject_CallObject(state->function, args);
  if (result == NULL) goto done;
  if (mpg_py_is_array(result) || result == Py_None)
    items = PyTuple_Pack(1, result);
  else if (PyList_Check(result) || PyTuple_Check(result))
    items = PySequence_Tuple(result);
  else
    PyErr_Format(mpg_py->errors[MPG_TYPE_ERROR],
                 "backward must return an NDArray or a list of them, got %s",
                 Py_TYPE(result)->tp_name);
  if (items == NULL) goto done;
  if (PyTuple_GET_SIZE(items) != num_inputs) {
    PyErr_Format(mpg_py->errors[MPG_VALUE_ERROR],
                 "backward must return one gradient per input of forward: %d, got %zd", num_inputs,
                 PyTuple_GET_SIZE(items));
    goto done;
  }
  for (int i = 0; i < num_inputs; i++) {
    PyObject *item = PyTuple_GET_ITEM(items, i);
    if (item == Py_None) continue;
    mpg_array *gradient = mpg_py_expect_array(item, "a gradient returned by backward");
    if (gradient == NULL) {
      for (int k = 0; k < i; k++) mpg_array_clear(&in_grads[k]);
      goto done;
    }
    mpg_array_copy(&in_grads[i], gradient);
    in_grads[i].numpy = false; /* backward passes compute with arrays of mx.nd */
  }
  status = MPG_OK;
done:
  if (status != MPG_OK) mpg_py_host_exception();
  Py_XDECREF(args);
  Py_XDECREF(result);
  Py_XDECREF(items);
  return status;
}

/* Records an autograd.Function and returns its outputs on the tape, as new arrays that share the
 * memory of the given outputs. The given outputs do not refer to the new node, which holds a
 * reference to the function. A function that keeps these outputs therefore does not form a
 * reference cycle with the node. */
static PyObject *record_function(PyObject *Py_UNUSED(module), PyObject *args) {
  static const mpg_callback callback = {"Function", function_backward, function_release};
  PyObject *function, *input_object, *output_object;
  if (!PyArg_ParseTuple(args, "OOO:record_function", &function, &input_object, &output_object))
    return NULL;
  arrays inputs, outputs;
  if (arrays_from(&inputs, input_object, false, "Function: inputs") < 0) return NULL;
  if (arrays_from(&outputs, output_object, false, "Function: outputs") < 0) {
    arrays_free(&inputs);
    return NULL;
  }
  function_state *state =
      PyMem_RawMalloc(sizeof *state + sizeof state->outputs[0] * (size_t)outputs.count);
  PyObject *results = PyList_New(outputs.count);
  mpg_status status = MPG_OK;
  for (int i = 0; results != NULL && i < outputs.count && status == MPG_OK; i++) {
    mpg_array array = {0};
    PyObject *item = NULL;
    status = mpg_array_detach(&array, outputs.items[i]);
    if (status == MPG_OK && (item = mpg_py_array_take(&array)) == NULL)
      status = mpg_py_host_exception();
    if (item != NULL) PyList_SET_ITEM(results, i, item);
  }
  if (status == MPG_OK && (state == NULL || results == NULL))
    status = mpg_fail(MPG_HOST_OUT_OF_MEMORY, "out of memory");
  if (status == MPG_OK) {
    state->function = Py_NewRef(function);
    state->num_outputs = outputs.count;
    for (int i = 0; i < outputs.count; i++) {
      state->outputs[i].desc = *mpg_array_desc(outputs.items[i]);
      state->outputs[i].device = mpg_array_device_id(outputs.items[i]);
      state->outputs[i].numpy = outputs.items[i]->numpy;
      outputs.items[i] = mpg_py_array_of(PyList_GET_ITEM(results, i));
    }
    status = mpg_autograd_record_callback(&callback, state, inputs.items, inputs.count,
                                          outputs.items, outputs.count);
    if (status != MPG_OK) Py_DECREF(function);
  }
  if (status != MPG_OK) {
    PyMem_RawFree(state);
    Py_CLEAR(results);
    mpg_py_raise(status);
  }
  arrays_free(&inputs);
  arrays_free(&outputs);
  return results;
}

/* --- Block paths ------------------------------------------------------------------------------ */
static PyObject *intern_scope(PyObject *Py_UNUSED(module), PyObject *path) {
  const char *text = PyUnicode_AsUTF8(path);
  return text ? PyLong_FromUnsignedLong(mpg_scope_intern(text)) : NULL;
}
static PyObject *set_scope(PyObject *Py_UNUSED(module), PyObject *number) {
  unsigned long scope = PyLong_AsUnsignedLong(number);
  if (scope == (unsigned long)-1 && PyErr_Occurred()) return NULL;
  return PyLong_FromUnsignedLong(mpg_autograd_set_scope((uint32_t)scope));
}
static PyObject *set_steps(PyObject *Py_UNUSED(module), PyObject *steps) {
  unsigned long long number = PyLong_AsUnsignedLongLong(steps);
  if (number == (unsigned long long)-1 && PyErr_Occurred()) return NULL;
  return PyLong_FromUnsignedLongLong(mpg_autograd_set_steps(number));
}
static PyObject *begin_step(PyObject *Py_UNUSED(module), PyObject *args) {
  unsigned long long outer;
  long long step;
  if (!PyArg_ParseTuple(args, "KL:begin_step", &outer, &step)) return NULL;
  mpg_autograd_begin_step(outer, step);
  Py_RETURN_NONE;
}

static PyObject *get_steps(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused)) {
  return PyLong_FromUnsignedLongLong(mpg_autograd_steps());
}
static PyObject *current_scope(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused)) {
  return PyUnicode_FromString(mpg_scope_text(mpg_autograd_scope()));
}

/* True if the "fresh" flags of all variables in a list are set (mpg_autograd_fresh). */
static PyObject *gradients_fresh(PyObject *Py_UNUSED(module), PyObject *arrays) {
  if (!PyList_Check(arrays))
    return PyErr_Format(PyExc_TypeError, "gradients_fresh: expected a list of arrays, not %s",
                        Py_TYPE(arrays)->tp_name);
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(arrays); i++) {
    const mpg_array *array = mpg_py_expect_array(PyList_GET_ITEM(arrays, i), "gradients_fresh");
    if (array == NULL) return NULL;
    if (!mpg_autograd_fresh(array)) Py_RETURN_FALSE;
  }
  Py_RETURN_TRUE;
}
static PyObject *gradients_used(PyObject *Py_UNUSED(module), PyObject *arrays) {
  if (!PyList_Check(arrays))
    return PyErr_Format(PyExc_TypeError, "gradients_used: expected a list of arrays, not %s",
                        Py_TYPE(arrays)->tp_name);
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(arrays); i++) {
    mpg_array *array = mpg_py_expect_array(PyList_GET_ITEM(arrays, i), "gradients_used");
    if (array == NULL) return NULL;
    mpg_autograd_set_fresh(array, false);
  }
  Py_RETURN_NONE;
}

#define KEYWORDS(function) (PyCFunction)(void (*)(void)) function
static PyObject *node_inputs(const mpg_graph *graph, const mpg_node *node) {
  PyObject *inputs = PyList_New(node->num_inputs);
  for (uint32_t i = 0; inputs != NULL && i < node->num_inputs; i++) {
    mpg_value value = graph->inputs[node->inputs + i];
    PyObject *pair = Py_BuildValue("(II)", value.node, value.output);
    if (pair == NULL)
      Py_CLEAR(inputs);
    else
      PyList_SET_ITEM(inputs, i, pair);
  }
  return inputs;
}

/* Sets *state to a tuple (list of nodes, (index of the head's node, output index of the head)). */
static mpg_status read_recorded(const mpg_graph *graph, mpg_value head, void *state) {
  PyObject *list = PyList_New(0);
  for (size_t i = 0; list != NULL && i < graph->num_nodes; i++) {
    const mpg_node *node = &graph->nodes[i];
    PyObject *item = node->op ? Py_BuildValue("sNN", node->op->name, mpg_py_node_params(node),
                                              node_inputs(graph, node))
                              : Py_NewRef(Py_None);
    if (item == NULL || PyList_Append(list, item) < 0) Py_CLEAR(list);
    Py_XDECREF(item);
  }
  *(PyObject **)state = list ? Py_BuildValue("N(II)", list, head.node, head.output) : NULL;
  return *(PyObject **)state ? MPG_OK : MPG_HOST_EXCEPTION;
}

static PyObject *recorded(PyObject *Py_UNUSED(module), PyObject *object) {
  PyObject *result = NULL;
  mpg_array *array = mpg_py_expect_array(object, "get_symbol");
  if (array == NULL) return NULL;
  MPG_PY_TRY(mpg_autograd_read(array, read_recorded, &result));
  return result;
}

PyMethodDef mpg_py_autograd_methods[] = {
    {"recorded", recorded, METH_O,
     "recorded(array)\n--\n\nThe recorded computation of the array: a list of nodes, and the node "
     "and output of the array. A node is (op, parameters, inputs), or None for a variable."},
    {"record", KEYWORDS(record), METH_FASTCALL | METH_KEYWORDS,
     "record(train_mode=True)\n--\n\nA scope for a with-statement in which ops are recorded for "
     "backward."},
    {"pause", KEYWORDS(pause_), METH_FASTCALL | METH_KEYWORDS,
     "pause(train_mode=False)\n--\n\nA scope in which ops are not recorded."},
    {"train_mode", train_mode, METH_NOARGS,
     "train_mode()\n--\n\nA scope in which ops behave as in training (dropout is active); "
     "recording does not change."},
    {"predict_mode", predict_mode, METH_NOARGS,
     "predict_mode()\n--\n\nA scope in which ops behave as in inference; recording does not "
     "change."},
    {"is_recording", is_recording, METH_NOARGS,
     "is_recording()\n--\n\nWhether ops are recorded in this thread."},
    {"is_training", is_training, METH_NOARGS,
     "is_training()\n--\n\nWhether ops behave as in training in this thread."},
    {"is_np_array", is_np_array, METH_NOARGS,
     "is_np_array()\n--\n\nTrue if Gluon creates arrays of ``mx.np`` in this thread.\n\n"
     "Examples\n--------\n>>> mx.util.is_np_array()\nFalse"},
    {"is_np_shape", is_np_shape, METH_NOARGS,
     "is_np_shape()\n--\n\nTrue if unknown sizes are written as -1 in this thread.\n\n"
     "Examples\n--------\n>>> mx.util.is_np_shape()\nFalse"},
    {"set_np_array", set_np_array, METH_O,
     "set_np_array(active)\n--\n\nSets the switch of this thread and returns its previous value."},
    {"set_np_shape", set_np_shape, METH_O,
     "set_np_shape(active)\n--\n\nSets the switch of this thread, or of all threads if 2, and "
     "returns its previous value."},
    {"set_recording", set_recording, METH_O,
     "set_recording(is_recording)\n--\n\nSets the flag; returns its previous value."},
    {"set_training", set_training, METH_O,
     "set_training(train_mode)\n--\n\nSets the flag; returns its previous value."},
    {"backward", KEYWORDS(backward), METH_VARARGS | METH_KEYWORDS,
     "backward(heads, head_grads=None, retain_graph=False, train_mode=True)\n--\n\nComputes the "
     "gradients of all variables the heads depend on, into their .grad.\n\nhead_grads: None, or "
     "per head an array of its shape or None (ones). Raises MXNetError if a head was not "
     "recorded."},
    {"grad", KEYWORDS(grad), METH_VARARGS | METH_KEYWORDS,
     "grad(heads, variables, head_grads=None, retain_graph=None, create_graph=False, "
     "train_mode=True)\n--\n\nThe gradients of the heads with respect to the variables, a list of "
     "new arrays; .grad does not change.\n\ncreate_graph: records them, so they can be "
     "differentiated again. retain_graph: None means as create_graph."},
    {"mark_variables", KEYWORDS(mark_variables), METH_VARARGS | METH_KEYWORDS,
     "mark_variables(variables, gradients, grad_reqs='write')\n--\n\nMakes arrays variables. "
     "backward writes their gradients into the given arrays."},
    {"record_function", record_function, METH_VARARGS,
     "record_function(backward, inputs, outputs)\n--\n\nArrays that share the memory of `outputs` "
     "and are recorded as computed from `inputs` by a function\nwhose gradient is `backward`."},
    {"gradients_fresh", gradients_fresh, METH_O,
     "gradients_fresh(arrays)\n--\n\nWhether backward has written the gradients of all arrays of "
     "a list since `gradients_used`."},
    {"gradients_used", gradients_used, METH_O,
     "gradients_used(arrays)\n--\n\nMarks the gradients of a list of arrays as used; see "
     "`gradients_fresh`."},
    {"intern_scope", intern_scope, METH_O,
     "intern_scope(path)\n--\n\nThe number of a block path, for set_scope."},
    {"set_scope", set_scope, METH_O,
     "set_scope(number)\n--\n\nSets the block path that errors and the profiler name for later "
     "calls of ops; returns the previous number."},
    {"set_steps", set_steps, METH_O,
     "set_steps(steps)\n--\n\nSets the loop steps that errors name for work that is queued later. "
     "The low 32 bits hold 1 + the\nstep of the innermost loop, and the high 32 bits hold the same "
     "for the loop around it; 0 means no\nloop. Returns the previous number."},
    {"begin_step", begin_step, METH_VARARGS,
     "begin_step(outer, step)\n--\n\nSets the loop steps to step `step` (counted from 0) of a loop "
     "inside the steps `outer`. See\nset_steps."},
    {"get_steps", get_steps, METH_NOARGS, "get_steps()\n--\n\nThe number set by set_steps."},
    {"current_scope", current_scope, METH_NOARGS, "current_scope()\n--\n\nThe current block path."},
    {0}};

int mpg_py_autograd_init(PyObject *module) {
  mpg_py->scope_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &scope_spec, NULL);
  return mpg_py->scope_type ? 0 : -1;
}
