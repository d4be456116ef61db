/* _core.OpCall: an op with its parameters but without its arrays, as held by a node of a symbol.
 * The parameters are parsed and checked once, when the node is created. Has methods for the number
 * of inputs and outputs, inference, placement and execution (or tracing). Immutable. See core.h.
 */
#include "op/infer.h"
#include "op/placement.h"
#include "op/precision/precision.h"
#include "python/core.h"

typedef struct op_call {
  PyObject_VAR_HEAD const mpg_op *op;
  int count_param; /* index of the parameter "num_args" (number of arrays), or -1 */
  int ctx_param;   /* index of the parameter "ctx" of ops that create arrays, or -1 */
  _Alignas(16) char params[];
} op_call;

/* Copies the parameters to `space`, with "num_args" set to `num_inputs` for variadic ops. Returns
 * NULL for ops without parameters. */
static const void *params_for(const op_call *self, int num_inputs, char *space) {
  if (self->op->params->size == 0) return NULL;
  memcpy(space, self->params, self->op->params->size);
  if (self->count_param >= 0)
    *(int64_t *)(space + self->op->params->params[self->count_param].offset) = num_inputs;
  return space;
}

/* Replaces unknown sizes with 0 in the shape parameter of an op that creates arrays. -1 is unknown,
 * and for ops of mx.nd 0 as well. Returns a bit for each unknown size. */
static uint64_t mark_open_sizes(const op_call *self, char *params) {
  int index = self->op->flags & MPG_OP_CREATES ? mpg_params_find(self->op->params, "shape") : -1;
  if (index < 0) return 0;
  mpg_tuple *shape = (mpg_tuple *)(params + self->op->params->params[index].offset);
  uint64_t open = 0;
  for (int i = 0; i < shape->count; i++) {
    if (shape->values[i] != -1 && (shape->values[i] != 0 || mpg_op_is_numpy(self->op))) continue;
    shape->values[i] = 0;
    open |= (uint64_t)1 << i;
  }
  return open;
}

/* Converts an input count from Python and checks its range. Returns -1 with an exception set on
 * failure. */
static int count_from(const op_call *self, PyObject *object) {
  long count = PyLong_AsLong(object);
  if (count == -1 && PyErr_Occurred()) return -1;
  if (count < 0 || count > MPG_MAX_INPUTS) {
    PyErr_Format(mpg_py->errors[MPG_VALUE_ERROR], "%s: expected 0 to %d arrays, not %ld",
                 self->op->name, MPG_MAX_INPUTS, count);
    return -1;
  }
  return (int)count;
}

/* --- Arity and names -------------------------------------------------------------------------- */
static PyObject *call_num_inputs(PyObject *object, PyObject *given) {
  const op_call *self = (op_call *)object;
  _Alignas(16) char space[MPG_PY_MAX_PARAMS];
  int count = count_from(self, given);
  if (count < 0) return NULL;
  if (self->count_param < 0)
    return PyLong_FromLong(mpg_op_num_inputs(self->op, params_for(self, count, space), count));
  int64_t told =
      *(const int64_t *)(self->params + self->op->params->params[self->count_param].offset);
  int64_t known = told > count && told <= MPG_MAX_INPUTS ? told : count;
  return PyLong_FromLong(
      mpg_op_num_inputs(self->op, params_for(self, (int)known, space), (int)known));
}

static PyObject *call_input_names(PyObject *object, PyObject *argument) {
  const op_call *self = (op_call *)object;
  int count = count_from(self, argument);
  PyObject *names = count < 0 ? NULL : PyTuple_New(count);
  for (int i = 0; names != NULL && i < count; i++) {
    char buffer[64];
    int place = mpg_op_input_place(self->op, self->params, i);
    PyObject *name =
        PyUnicode_InternFromString(mpg_op_input_name(self->op, place, buffer, sizeof buffer));
    if (name == NULL)
      Py_CLEAR(names);
    else
      PyTuple_SET_ITEM(names, i, name);
  }
  return names;
}

static PyObject *call_states(PyObject *object, PyObject *argument) {
  const op_call *self = (op_call *)object;
  int count = count_from(self, argument);
  PyObject *flags = count < 0 ? NULL : PyTuple_New(count);
  for (int i = 0; flags != NULL && i < count; i++)
    PyTuple_SET_ITEM(flags, i, PyBool_FromLong(mpg_op_input_mutable(self->op, i)));
  return flags;
}

static PyObject *call_keeps(PyObject *object, PyObject *argument) {
  const op_call *self = (op_call *)object;
  int count = count_from(self, argument);
  PyObject *flags = count < 0 ? NULL : PyTuple_New(count);
  for (int i = 0; flags != NULL && i < count; i++)
    PyTuple_SET_ITEM(flags, i,
                     PyBool_FromLong(mpg_op_input_mutable(self->op, i) ||
                                     mpg_precision_counts(self->op, self->params, i, count)));
  return flags;
}

static PyObject *call_initial_values(PyObject *object, PyObject *argument) {
  const op_call *self = (op_call *)object;
  int count = count_from(self, argument);
  PyObject *values = count < 0 ? NULL : PyTuple_New(count);
  for (int i = 0; values != NULL && i < count; i++) {
    double value;
    int place = mpg_op_input_place(self->op, self->params, i);
    PyObject *item = mpg_op_input_initial(self->op, place, &value) ? PyFloat_FromDouble(value)
                                                                   : Py_NewRef(Py_None);
    if (item == NULL)
      Py_CLEAR(values);
    else
      PyTuple_SET_ITEM(values, i, item);
  }
  return values;
}

/* Writes the name of output `index` to `buffer`, without markers such as "~". Writes "" if the op's
 * row has fewer output names. */
static void output_name(const mpg_op *op, int index, char *buffer, size_t size) {
  const char *text = op->outputs;
  buffer[0] = 0;
  for (int i = 0; *(text += strspn(text, ", ~?*")); i++) {
    size_t length = strcspn(text, ", ");
    if (i == index) {
      snprintf(buffer, size, "%.*s", (int)length, text);
      return;
    }
    text += length;
  }
}

static PyObject *call_output_names(PyObject *object, PyObject *argument) {
  const op_call *self = (op_call *)object;
  _Alignas(16) char space[MPG_PY_MAX_PARAMS];
  int count = count_from(self, argument);
  if (count < 0) return NULL;
  int visible = mpg_op_visible_outputs(self->op, params_for(self, count, space), count);
  bool named = strpbrk(self->op->outputs, "~?") != NULL;
  PyObject *names = PyTuple_New(visible);
  for (int i = 0; names != NULL && i < visible; i++) {
    char buffer[64];
    output_name(self->op, i, buffer, sizeof buffer);
    bool numbered = visible > 1 && (!named || !buffer[0]);
    PyObject *name = numbered ? PyUnicode_FromFormat("output%d", i)
                              : PyUnicode_FromString(buffer[0] ? buffer : "output");
    if (name == NULL)
      Py_CLEAR(names);
    else
      PyTuple_SET_ITEM(names, i, name);
  }
  return names;
}

static PyObject *call_text(PyObject *object, PyObject *name) {
  const op_call *self = (op_call *)object;
  const char *text = PyUnicode_Check(name) ? PyUnicode_AsUTF8(name) : NULL;
  int index = text ? mpg_params_find(self->op->params, text) : -1;
  if (index < 0) {
    if (!PyErr_Occurred())
      PyErr_Format(mpg_py->errors[MPG_TYPE_ERROR], "%s has no parameter %R", self->op->name, name);
    return NULL;
  }
  mpg_text buffer = {0};
  mpg_params_get_text(self->op->params, self->params, index, &buffer);
  mpg_status status = mpg_text_status(&buffer);
  PyObject *result =
      status == MPG_OK ? PyUnicode_FromString(mpg_text_string(&buffer)) : mpg_py_raise(status);
  mpg_text_free(&buffer);
  return result;
}

/* --- Inference -------------------------------------------------------------------------------- */
static PyObject *call_infer(PyObject *object, PyObject *args) {
  const op_call *self = (op_call *)object;
  PyObject *inputs_list, *known_list, *inputs = NULL, *known = NULL, *result = NULL;
  mpg_desc *descs = NULL;
  int train;
  if (!PyArg_ParseTuple(args, "O!O!p:infer", &PyList_Type, &inputs_list, &PyList_Type, &known_list,
                        &train))
    return NULL;
  /* Copies the lists, because conversions of their items may run Python code that changes them. */
  if ((inputs = PyList_AsTuple(inputs_list)) == NULL ||
      (known = PyList_AsTuple(known_list)) == NULL)
    goto done;
  if (PyTuple_GET_SIZE(inputs) > MPG_MAX_INPUTS || PyTuple_GET_SIZE(known) > MPG_MAX_OUTPUTS) {
    PyErr_Format(mpg_py->errors[MPG_VALUE_ERROR], "%s: at most %d arrays are supported",
                 self->op->name, MPG_MAX_INPUTS);
    goto done;
  }
  int num_inputs = (int)PyTuple_GET_SIZE(inputs);
  _Alignas(16) char space[MPG_PY_MAX_PARAMS];
  const void *params = params_for(self, num_inputs, space);
  uint64_t open = mark_open_sizes(self, space);
  int num_outputs = mpg_op_num_outputs(self->op, params, num_inputs);
  int visible = mpg_op_visible_outputs(self->op, params, num_inputs);
  descs = PyMem_Calloc((size_t)num_inputs + (size_t)num_outputs + 1, sizeof *descs);
  if (descs == NULL) {
    PyErr_NoMemory();
    goto done;
  }
  for (int i = 0; i < num_inputs; i++)
    if (mpg_py_desc_from(PyTuple_GET_ITEM(inputs, i), &descs[i], 0) < 0) goto done;
  int num_known = (int)PyTuple_GET_SIZE(known) < visible ? (int)PyTuple_GET_SIZE(known) : visible;
  for (int i = 0; i < num_known; i++)
    if (mpg_py_desc_from(PyTuple_GET_ITEM(known, i), &descs[num_inputs + i], 0) < 0) goto done;
  mpg_status status =
      mpg_op_infer_inputs(self->op, params, descs, num_inputs, descs + num_inputs, num_known);
  if (status == MPG_OK)
    status =
        mpg_op_infer(self->op, params, train, descs, num_inputs, descs + num_inputs, num_outputs);
  if (status != MPG_OK) {
    mpg_py_raise(status);
    goto done;
  }
  for (int i = 0; open && i < descs[num_inputs].shape.ndim; i++)
    if (open >> i & 1) descs[num_inputs].shape.dims[i] = -1;
  PyObject *completed = mpg_py_descs_to(descs, num_inputs, -1),
           *outputs = mpg_py_descs_to(descs + num_inputs, visible, -1);
  if (completed != NULL && outputs != NULL) result = PyTuple_Pack(2, completed, outputs);
  Py_XDECREF(completed);
  Py_XDECREF(outputs);
done:
  Py_XDECREF(inputs);
  Py_XDECREF(known);
  PyMem_Free(descs);
  return result;
}

/* --- Placement -------------------------------------------------------------------------------- */
/* Returns item `index` of an array of device ids. The ids were converted from Contexts; None became
 * type 0. */
static mpg_device_id listed_device(const void *list, int index) {
  return ((const mpg_device_id *)list)[index];
}

static PyObject *call_place(PyObject *object, PyObject *args) {
  const op_call *self = (op_call *)object;
  PyObject *list, *group, *contexts = NULL, *result = NULL;
  mpg_device_id *devices = NULL;
  if (!PyArg_ParseTuple(args, "O!O:place", &PyList_Type, &list, &group)) return NULL;
  if ((contexts = PyList_AsTuple(list)) == NULL) return NULL;
  const Py_ssize_t count = PyTuple_GET_SIZE(contexts);
  devices = PyMem_Calloc((size_t)count + 1, sizeof *devices);
  if (devices == NULL) {
    PyErr_NoMemory();
    goto done;
  }
  for (Py_ssize_t i = 0; i <= count; i++) {
    PyObject *context = i < count ? PyTuple_GET_ITEM(contexts, i) : group;
    if (context != Py_None && mpg_py_device_id(context, &devices[i]) < 0) goto done;
  }
  mpg_device_id device =
      mpg_op_place_in_group(self->op, self->op->params->size ? self->params : NULL, devices,
                            (int)count, listed_device, devices[count]);
  result = device.type ? mpg_py_context(device) : Py_NewRef(Py_None);
done:
  Py_DECREF(contexts);
  PyMem_Free(devices);
  return result;
}

/* --- Running ---------------------------------------------------------------------------------- */
/* Replaces inputs of the other kind by copies of their structs, so that the op runs in the node's
 * dialect even if the arrays bound to the symbol's variables are of the other kind. The copies are
 * appended to `copies`. */
static void match_kinds(const mpg_op *op, mpg_array **inputs, Py_ssize_t count, mpg_array *copies) {
  bool numpy = mpg_op_is_numpy(op);
  for (Py_ssize_t i = 0; i < count; i++) {
    if (inputs[i]->numpy == numpy) continue;
    mpg_array_copy(&copies[i], inputs[i]);
    copies[i].numpy = numpy;
    inputs[i] = &copies[i];
  }
}

static PyObject *call_run(PyObject *object, PyObject *args) {
  const op_call *self = (op_call *)object;
  PyObject *list, *device = Py_None;
  if (!PyArg_ParseTuple(args, "O!|O:run", &PyList_Type, &list, &device)) return NULL;
  mpg_array *small[MPG_PY_SMALL], **inputs = small, few[MPG_PY_SMALL] = {0}, *outputs = few,
                                  same[MPG_PY_SMALL] = {0}, *copies = same;
  _Alignas(16) char space[MPG_PY_MAX_PARAMS];
  /* Copies the list, because other threads may change it while the call waits. */
  PyObject *result = NULL, *arrays = PyList_AsTuple(list);
  if (arrays == NULL) return NULL;
  int visible = 0;
  Py_ssize_t num_inputs = PyTuple_GET_SIZE(arrays);
  if (num_inputs > MPG_MAX_INPUTS) {
    PyErr_Format(mpg_py->errors[MPG_VALUE_ERROR], "%s: at most %d arrays are supported",
                 self->op->name, MPG_MAX_INPUTS);
    goto done;
  }
  params_for(self, (int)num_inputs, space);
  const void *params = self->op->params->size ? space : NULL;
  visible = mpg_call_outputs(self->op, params, (int)num_inputs);
  if (self->ctx_param >= 0) {
    mpg_device_id *id = (mpg_device_id *)(space + self->op->params->params[self->ctx_param].offset);
    if ((device != Py_None || id->type == 0) && mpg_py_device_id(device, id) < 0) goto done;
  }
  if (num_inputs > MPG_PY_SMALL) {
    inputs = PyMem_Malloc((size_t)num_inputs * sizeof *inputs);
    copies = PyMem_Calloc((size_t)num_inputs, sizeof *copies);
  }
  if (visible > MPG_PY_SMALL) outputs = PyMem_Calloc((size_t)visible, sizeof *outputs);
  if (inputs == NULL || outputs == NULL || copies == NULL) {
    PyErr_NoMemory();
    goto done;
  }
  for (Py_ssize_t i = 0; i < num_inputs; i++)
    if ((inputs[i] = mpg_py_expect_array(PyTuple_GET_ITEM(arrays, i), self->op->name)) == NULL)
      goto done;
  match_kinds(self->op, inputs, num_inputs, copies);
  mpg_status status =
      mpg_call_as(self->op, params, inputs, (int)num_inputs, outputs, visible, NULL, true);
  mpg_array_clear_all(copies, (size_t)num_inputs);
  if (status != MPG_OK) {
    mpg_py_raise(status);
    goto done;
  }
  result = mpg_py_array_take_all(outputs, visible);
done:
  Py_DECREF(arrays);
  if (inputs != small) PyMem_Free(inputs);
  if (copies != same) PyMem_Free(copies);
  if (outputs != few) PyMem_Free(outputs);
  return result;
}

/* --- The type --------------------------------------------------------------------------------- */
static PyObject *call_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
  static char *names[] = {"name", "params", "numpy", NULL};
  const char *name;
  PyObject *given;
  int numpy = 0;
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "sO!|p:OpCall", names, &name, &PyDict_Type, &given,
                                   &numpy))
    return NULL;
  const mpg_op *op = mpg_op_find(name);
  if (op == NULL) {
    PyErr_Format(mpg_py->errors[MPG_VALUE_ERROR], "unknown op '%s'", name);
    return NULL;
  }
  if (numpy) op = op->numpy;
  op_call *self = PyObject_NewVar(op_call, type, (Py_ssize_t)op->params->size);
  if (self == NULL) return NULL;
  const mpg_param_table *table = op->params;
  self->op = op;
  self->count_param = mpg_op_variadic(op) && table->size ? mpg_params_find(table, "num_args") : -1;
  self->ctx_param = op->flags & MPG_OP_CREATES && table->size ? mpg_params_find(table, "ctx") : -1;
  uint64_t present = 0;
  if (mpg_py_params_set(op, self->params, given, &present) < 0) goto fail;
  for (int i = 0; table->size && i < table->count; i++)
    if (mpg_param_required(&table->params[i]) && !(present >> i & 1) && i != self->count_param) {
      PyErr_Format(mpg_py->errors[MPG_TYPE_ERROR], "%s: the parameter %s is missing", op->name,
                   table->params[i].name);
      goto fail;
    }
  return (PyObject *)self;
fail:
  Py_DECREF(self);
  return NULL;
}

static void call_dealloc(PyObject *self) {
  PyTypeObject *type = Py_TYPE(self);
  type->tp_free(self);
  Py_DECREF(type);
}

static PyObject *call_name(PyObject *self, void *Py_UNUSED(unused)) {
  return PyUnicode_InternFromString(((op_call *)self)->op->name);
}
static PyObject *call_flag(PyObject *self, void *flag) {
  return PyBool_FromLong((((op_call *)self)->op->flags & (uintptr_t)flag) != 0);
}
static PyObject *call_differentiable(PyObject *self, void *Py_UNUSED(unused)) {
  return PyBool_FromLong(mpg_op_differentiable(((op_call *)self)->op));
}
static PyObject *call_numpy(PyObject *self, void *Py_UNUSED(unused)) {
  return PyBool_FromLong(mpg_op_is_numpy(((op_call *)self)->op));
}
static PyObject *call_gradient_missing(PyObject *self, void *Py_UNUSED(unused)) {
  const mpg_op *op = ((op_call *)self)->op;
  return PyBool_FromLong(!(op->flags & MPG_OP_COMPOSED) && op->gradient == mpg_gradient_missing);
}
static PyObject *call_repr(PyObject *self) {
  return PyUnicode_FromFormat("<OpCall %s>", ((op_call *)self)->op->name);
}

static PyMethodDef call_methods[] = {
    {"num_inputs", call_num_inputs, METH_O,
     "num_inputs(given)\n--\n\nThe number of arrays that the op takes with these parameters if the "
     "caller gives `given` arrays."},
    {"input_names", call_input_names, METH_O,
     "input_names(count)\n--\n\nThe names of the first `count` inputs."},
    {"states", call_states, METH_O,
     "states(count)\n--\n\nFor each of the first `count` inputs: whether the op also writes it (an "
     "auxiliary state)."},
    {"keeps", call_keeps, METH_O,
     "keeps(count)\n--\n\nFor each of the first `count` inputs: whether mixed precision leaves it "
     "uncast, because it is a\nstate or holds step numbers."},
    {"initial_values", call_initial_values, METH_O,
     "initial_values(count)\n--\n\nFor each of the first `count` inputs: the initial value of a "
     "variable created for it, or None if the op does not define one."},
    {"output_names", call_output_names, METH_O,
     "output_names(count)\n--\n\nThe names of the visible outputs of a call with `count` arrays."},
    {"text", call_text, METH_O, "text(name)\n--\n\nThe text form of a parameter."},
    {"infer", call_infer, METH_VARARGS,
     "infer(inputs, outputs, train)\n--\n\nRuns the op's inference. inputs: a list of (shape, "
     "dtype) pairs, with -1 for unknown sizes and None for unknown shapes and dtypes;\noutputs: "
     "the known shapes and dtypes of the first outputs in the same form. Returns the lists of "
     "completed inputs and of visible outputs in the same form. Raises MXNetError if they do not "
     "match."},
    {"place", call_place, METH_VARARGS,
     "place(inputs, group)\n--\n\nThe device on which the op runs in a group, and to which its "
     "inputs are moved; None if unknown.\ninputs: a list of the inputs' devices, None for unknown "
     "ones; group: the group's device or None."},
    {"run", call_run, METH_VARARGS,
     "run(arrays, ctx=None)\n--\n\nCalls the op (traces it if the arrays are traced); returns a "
     "list of the visible outputs. ctx: the device of a created\narray. Raises MXNetError if "
     "shapes, dtypes or devices do not match."},
    {0}};
static PyGetSetDef call_properties[] = {
    {"name", call_name, NULL, "The op's canonical name.", NULL},
    {"numpy", call_numpy, NULL, "Whether it is an op of mx.np.", NULL},
    {"creates", call_flag, NULL, "Whether it creates arrays without inputs.",
     (void *)(uintptr_t)MPG_OP_CREATES},
    {"copies", call_flag, NULL, "Whether it moves an array to a device.",
     (void *)(uintptr_t)MPG_OP_COPY},
    {"dynamic", call_flag, NULL, "Whether the shape of its result depends on values.",
     (void *)(uintptr_t)MPG_OP_DYNAMIC},
    {"loss", call_flag, NULL, "Whether backward can start at it without a head gradient.",
     (void *)(uintptr_t)MPG_OP_LOSS},
    {"amp_cast", call_flag, NULL, "Whether it is a cast inserted by mixed precision.",
     (void *)(uintptr_t)MPG_OP_AMP_CAST},
    {"differentiable", call_differentiable, NULL, "Whether gradients flow through it.", NULL},
    {"gradient_missing", call_gradient_missing, NULL, "Whether differentiating it raises an error.",
     NULL},
    {0}};
static PyType_Slot call_slots[] = {
    {Py_tp_new, call_new},
    {Py_tp_dealloc, call_dealloc},
    {Py_tp_repr, call_repr},
    {Py_tp_methods, call_methods},
    {Py_tp_getset, call_properties},
    {Py_tp_doc,
     "OpCall(name, params, numpy=False)\n--\n\nAn op with its parameters (a dict of values or of "
     "their texts), to be called or queried later. With\n`numpy`, the op of mx.np that is the "
     "counterpart of an op of mx.nd.\n\nRaises ValueError for an unknown op or a value out of "
     "range, TypeError for unknown, missing or mistyped parameters."},
    {0, NULL}};
static PyType_Spec call_spec = {.name = "mpgluon._core.OpCall",
                                .basicsize = offsetof(op_call, params),
                                .itemsize = 1,
                                .flags = Py_TPFLAGS_DEFAULT,
                                .slots = call_slots};

/* Makes the NDArray `target` refer to the memory of `source` and removes it from the tape.
 * Executors call this to return the same output objects from every forward call. */
static PyObject *replace_array(PyObject *Py_UNUSED(module), PyObject *args) {
  PyObject *to, *from;
  if (!PyArg_ParseTuple(args, "OO:replace_array", &to, &from)) return NULL;
  mpg_array *target = mpg_py_expect_array(to, "replace_array"),
            *source = target ? mpg_py_expect_array(from, "replace_array") : NULL;
  if (source == NULL) return NULL;
  mpg_array fresh = {0};
  mpg_status status = mpg_array_detach(&fresh, source);
  if (status != MPG_OK) return mpg_py_raise(status);
  mpg_array_clear(target);
  *target = fresh;
  Py_RETURN_NONE;
}

static PyObject *on_tape(PyObject *Py_UNUSED(module), PyObject *object) {
  const mpg_array *array = mpg_py_expect_array(object, "on_tape");
  return array == NULL ? NULL : PyBool_FromLong(array->node != NULL);
}

static PyObject *row_of(PyObject *Py_UNUSED(module), PyObject *name) {
  const char *text = PyUnicode_Check(name) ? PyUnicode_AsUTF8(name) : NULL;
  const mpg_op *op = text ? mpg_op_find(text) : NULL;
  if (op == NULL) {
    if (!PyErr_Occurred()) PyErr_Format(mpg_py->errors[MPG_VALUE_ERROR], "unknown op %R", name);
    return NULL;
  }
  return Py_BuildValue("sO", mpg_op_get(op->id)->name, mpg_op_is_numpy(op) ? Py_True : Py_False);
}

static PyMethodDef methods[] = {{"row_of", row_of, METH_O,
                                 "row_of(name)\n--\n\nThe name of the op of mx.nd with the same "
                                 "kernels, and whether `name` is an op of mx.np."},
                                {"on_tape", on_tape, METH_O,
                                 "on_tape(array)\n--\n\nWhether the array is a variable of "
                                 "autograd, or was computed from one while recording."},
                                {"replace_array", replace_array, METH_VARARGS,
                                 "replace_array(target, source)\n--\n\nMakes `target` use the "
                                 "memory of `source`, without recording it on the tape."},
                                {0}};

int mpg_py_symbol_init(PyObject *module) {
  PyObject *type = PyType_FromModuleAndSpec(module, &call_spec, NULL);
  if (type == NULL) return -1;
  int result = PyModule_AddObjectRef(module, "OpCall", type);
  Py_DECREF(type);
  return result < 0 ? -1 : PyModule_AddFunctions(module, methods);
}
