/* Functions for mpgluon.gluon: inference with partly known shapes, the block path (scope) under
 * which work is queued, dtype names. See core.h. */
#include "autograd/groups.h"
#include "op/sharding/sharding.h"
#include "python/core.h"

/* --- Inference -------------------------------------------------------------------------------- */
int mpg_py_desc_from(PyObject *pair, mpg_desc *desc, int64_t least) {
  PyObject *shape, *dtype;
  if (!PyTuple_Check(pair) ||
      !PyArg_ParseTuple(pair, "OO;infer_shape: an input must be a (shape, dtype) pair", &shape,
                        &dtype)) {
    if (!PyErr_Occurred())
      PyErr_SetString(PyExc_TypeError, "infer_shape: an input must be a (shape, dtype) pair");
    return -1;
  }
  desc->shape = MPG_SHAPE_UNKNOWN;
  desc->dtype = MPG_DTYPE_NONE;
  if (dtype != Py_None && (desc->dtype = mpg_py_dtype(dtype)) == MPG_DTYPE_NONE) return -1;
  if (shape == Py_None) return 0;
  PyObject *items = mpg_py_items(shape, "infer_shape: a shape must be a sequence of integers");
  if (items == NULL) return -1;
  Py_ssize_t count = PyTuple_GET_SIZE(items);
  int result = 0;
  if (count > MPG_MAX_NDIM) {
    PyErr_Format(mpg_py->errors[MPG_VALUE_ERROR],
                 "an array can have at most %d dimensions, not %zd", MPG_MAX_NDIM, count);
    result = -1;
  }
  memset(&desc->shape, 0, sizeof desc->shape);
  desc->shape.ndim = (int32_t)count;
  for (Py_ssize_t i = 0; result == 0 && i < count; i++) {
    int64_t size = PyLong_AsLongLong(PyTuple_GET_ITEM(items, i));
    if (size == -1 && PyErr_Occurred()) {
      if (PyErr_ExceptionMatches(PyExc_OverflowError))
        PyErr_SetString(mpg_py->errors[MPG_VALUE_ERROR], "a dimension must be less than 2^63");
      result = -1;
    }
    desc->shape.dims[i] = size >= least ? size : -1;
  }
  Py_DECREF(items);
  return result;
}

/* Converts a desc to a (shape, dtype name) tuple. An unknown size becomes `unknown`, and an unknown
 * shape or dtype becomes None. Returns a new reference. */
static PyObject *desc_to(const mpg_desc *desc, int64_t unknown) {
  PyObject *shape = NULL, *dtype = desc->dtype == MPG_DTYPE_NONE
                                       ? Py_NewRef(Py_None)
                                       : PyUnicode_FromString(mpg_dtype_name(desc->dtype));
  if (desc->shape.ndim < 0) {
    shape = Py_NewRef(Py_None);
  } else if ((shape = PyTuple_New(desc->shape.ndim)) != NULL) {
    for (int i = 0; i < desc->shape.ndim; i++) {
      PyObject *size = PyLong_FromLongLong(desc->shape.dims[i] < 0 ? unknown : desc->shape.dims[i]);
      if (size == NULL) {
        Py_CLEAR(shape);
        break;
      }
      PyTuple_SET_ITEM(shape, i, size);
    }
  }
  if (shape == NULL || dtype == NULL) {
    Py_XDECREF(shape);
    Py_XDECREF(dtype);
    return NULL;
  }
  return Py_BuildValue("NN", shape, dtype);
}

PyObject *mpg_py_descs_to(const mpg_desc *descs, int count, int64_t unknown) {
  PyObject *list = PyList_New(count);
  for (int i = 0; list != NULL && i < count; i++) {
    PyObject *item = desc_to(&descs[i], unknown);
    if (item == NULL)
      Py_CLEAR(list);
    else
      PyList_SET_ITEM(list, i, item);
  }
  return list;
}

static int set_params(const mpg_op *op, void *params, PyObject *given, int num_inputs) {
  const mpg_param_table *table = op->params;
  if (table->size == 0) return 0;
  if (mpg_py_params_set(op, params, given, NULL) < 0) return -1;
  int count = mpg_params_find(table, "num_args");
  if (count >= 0 && mpg_op_variadic(op))
    *(int64_t *)((char *)params + table->params[count].offset) = num_inputs;
  return 0;
}

/* Shape and dtype inference for an op call. end_call frees the members. */
typedef struct inferred_call {
  mpg_infer infer;
  PyObject *pairs;
  mpg_desc *descs; /* descs of the inputs, followed by the outputs */
  _Alignas(16) char params[MPG_PY_MAX_PARAMS];
} inferred_call;

static int infer_call(PyObject *args, inferred_call *call) {
  const char *name;
  PyObject *inputs, *given;
  call->pairs = NULL;
  call->descs = NULL;
  if (!PyArg_ParseTuple(args, "sO!O!", &name, &PyList_Type, &inputs, &PyDict_Type, &given))
    return -1;
  const mpg_op *op = mpg_op_find(name);
  if (op == NULL) {
    PyErr_Format(mpg_py->errors[MPG_VALUE_ERROR], "unknown op '%s'", name);
    return -1;
  }
  /* Copies the list, because conversions of its items may run Python code that changes it. */
  call->pairs = PyList_AsTuple(inputs);
  if (call->pairs == NULL) return -1;
  Py_ssize_t num_inputs = PyTuple_GET_SIZE(call->pairs);
  if (num_inputs > MPG_MAX_INPUTS) {
    PyErr_Format(mpg_py->errors[MPG_VALUE_ERROR], "%s: at most %d arrays are supported, got %zd",
                 name, MPG_MAX_INPUTS, num_inputs);
    return -1;
  }
  if (set_params(op, call->params, given, (int)num_inputs) < 0) return -1;
  const void *values = op->params->size ? call->params : NULL;
  int num_outputs = mpg_op_num_outputs(op, values, (int)num_inputs);
  call->descs = PyMem_Calloc((size_t)num_inputs + (size_t)num_outputs + 1, sizeof *call->descs);
  if (call->descs == NULL) {
    PyErr_NoMemory();
    return -1;
  }
  call->infer = (mpg_infer){.op = op,
                            .params = values,
                            .num_inputs = (int)num_inputs,
                            .num_outputs = num_outputs,
                            .inputs = call->descs,
                            .outputs = call->descs + num_inputs,
                            .train = mpg_autograd_training()};
  for (Py_ssize_t i = 0; i < num_inputs; i++)
    if (mpg_py_desc_from(PyTuple_GET_ITEM(call->pairs, i), &call->descs[i], 1) < 0) return -1;
  mpg_status status = mpg_op_infer(op, values, call->infer.train, call->infer.inputs,
                                   (int)num_inputs, call->infer.outputs, num_outputs);
  if (status != MPG_OK) mpg_py_raise(status);
  return status == MPG_OK ? 0 : -1;
}

static void end_call(inferred_call *call) {
  Py_XDECREF(call->pairs);
  PyMem_Free(call->descs);
}

static PyObject *infer_shape(PyObject *Py_UNUSED(module), PyObject *args) {
  inferred_call call;
  PyObject *result = NULL;
  if (infer_call(args, &call) == 0) {
    PyObject *completed = mpg_py_descs_to(call.infer.inputs, call.infer.num_inputs, 0);
    PyObject *outputs = mpg_py_descs_to(call.infer.outputs, call.infer.num_outputs, 0);
    if (completed != NULL && outputs != NULL) result = PyTuple_Pack(2, completed, outputs);
    Py_XDECREF(completed);
    Py_XDECREF(outputs);
  }
  end_call(&call);
  return result;
}

static PyObject *op_cost(PyObject *Py_UNUSED(module), PyObject *args) {
  inferred_call call;
  PyObject *result = NULL;
  if (infer_call(args, &call) == 0) {
    bool known = true;
    for (int i = 0; i < call.infer.num_inputs + call.infer.num_outputs; i++)
      known &= mpg_shape_known(&call.descs[i].shape) && call.descs[i].dtype != MPG_DTYPE_NONE;
    if (known) {
      mpg_cost cost = call.infer.op->cost(&call.infer);
      result = Py_BuildValue("dd", cost.bytes, cost.flops);
    } else {
      PyErr_SetString(mpg_py->errors[MPG_VALUE_ERROR],
                      "op_cost: the inputs' shapes and dtypes do not determine the outputs");
    }
  }
  end_call(&call);
  return result;
}

/* --- Sharding rules ----------------------------------------------------------------------------
 */
static PyObject *digit_to(const mpg_digit *digit) {
  if (digit->axis < 0) return Py_NewRef(Py_None);
  return Py_BuildValue("iLL", digit->axis, (long long)digit->outer, (long long)digit->inner);
}

static PyObject *factor_to(const mpg_sharding *s, const mpg_factor *factor) {
  static const char *const kinds[] = {"pass", "sum", "max", "min"};
  int count = s->num_inputs + s->num_outputs;
  PyObject *digits = PyList_New(count);
  for (int i = 0; digits != NULL && i < count; i++) {
    PyObject *digit = digit_to(&factor->digits[i]);
    if (digit == NULL)
      Py_CLEAR(digits);
    else
      PyList_SET_ITEM(digits, i, digit);
  }
  if (digits == NULL) return NULL;
  bool exact = factor->kind != MPG_FACTOR_SUM && mpg_sharding_keeps_order(s, factor);
  return Py_BuildValue("(sLONiOi)", kinds[factor->kind], (long long)factor->size,
                       factor->counts ? Py_True : Py_False, digits, factor->once,
                       exact ? Py_True : Py_False, factor->lookup);
}

static mpg_sharding sharding_of(const inferred_call *call, mpg_arena *arena) {
  return (mpg_sharding){.op = call->infer.op,
                        .params = call->infer.params,
                        .num_inputs = call->infer.num_inputs,
                        .num_outputs = call->infer.num_outputs,
                        .inputs = call->infer.inputs,
                        .outputs = call->infer.outputs,
                        .train = call->infer.train,
                        .arena = arena};
}

static PyObject *op_sharding(PyObject *Py_UNUSED(module), PyObject *args) {
  inferred_call call;
  PyObject *result = NULL;
  mpg_arena arena = {0};
  if (infer_call(args, &call) == 0) {
    mpg_sharding s = sharding_of(&call, &arena);
    mpg_status status = mpg_op_sharding(&s);
    if (status != MPG_OK) mpg_py_raise(status);
    if (status == MPG_OK) result = PyList_New(s.num_factors);
    for (int f = 0; result != NULL && f < s.num_factors; f++) {
      PyObject *factor = factor_to(&s, &s.factors[f]);
      if (factor == NULL)
        Py_CLEAR(result);
      else
        PyList_SET_ITEM(result, f, factor);
    }
  }
  mpg_arena_free(&arena);
  end_call(&call);
  return result;
}

/* Parses a list of (shape, dtype) pairs of the same length as `count`. Returns false with an
 * exception set if it is invalid. */
static bool parts_from(PyObject *pairs, mpg_desc *descs, int count) {
  if (!PyTuple_Check(pairs) || PyTuple_GET_SIZE(pairs) != count) {
    PyErr_Format(PyExc_TypeError, "op_localize: expected a tuple of %d (shape, dtype) pairs",
                 count);
    return false;
  }
  for (int i = 0; i < count; i++)
    if (mpg_py_desc_from(PyTuple_GET_ITEM(pairs, i), &descs[i], 0) < 0) return false;
  return true;
}

/* Parses a tuple with a tuple of indices for each array. None means zeros. */
static bool begins_from(PyObject *tuples, mpg_shape *begins, int count) {
  if (tuples == Py_None) return true;
  if (!PyTuple_Check(tuples) || PyTuple_GET_SIZE(tuples) != count) {
    PyErr_Format(PyExc_TypeError, "op_localize: begins must be a tuple of %d tuples", count);
    return false;
  }
  for (int i = 0; i < count; i++) {
    PyObject *indices = PyTuple_GET_ITEM(tuples, i);
    if (!PyTuple_Check(indices) || PyTuple_GET_SIZE(indices) > MPG_MAX_NDIM) {
      PyErr_SetString(PyExc_TypeError, "op_localize: each array's begins must be a tuple");
      return false;
    }
    begins[i].ndim = (int)PyTuple_GET_SIZE(indices);
    for (int k = 0; k < begins[i].ndim; k++) {
      begins[i].dims[k] = PyLong_AsLongLong(PyTuple_GET_ITEM(indices, k));
      if (begins[i].dims[k] == -1 && PyErr_Occurred()) return false;
    }
  }
  return true;
}

static PyObject *localized(const inferred_call *call, PyObject *inputs, PyObject *outputs,
                           PyObject *firsts) {
  const mpg_infer *infer = &call->infer;
  const mpg_param_table *table = infer->op->params;
  PyObject *result = NULL;
  mpg_arena arena = {0};
  mpg_desc *parts =
      PyMem_Calloc((size_t)infer->num_inputs + (size_t)infer->num_outputs + 1, sizeof *parts);
  _Alignas(16) char params[MPG_PY_MAX_PARAMS];
  mpg_sharding s = sharding_of(call, &arena);
  if (parts == NULL) return PyErr_NoMemory();
  int count = infer->num_inputs + infer->num_outputs;
  mpg_shape *begins = PyMem_Calloc((size_t)count + 1, sizeof *begins);
  if (begins == NULL) {
    PyMem_Free(parts);
    return PyErr_NoMemory();
  }
  if (parts_from(inputs, parts, infer->num_inputs) &&
      parts_from(outputs, parts + infer->num_inputs, infer->num_outputs) &&
      begins_from(firsts, begins, count)) {
    mpg_status status = mpg_op_sharding(&s);
    if (status == MPG_OK)
      status = mpg_sharding_localize(&s, parts, parts + infer->num_inputs, begins, params);
    if (status != MPG_OK)
      mpg_py_raise(status);
    else
      result = PyDict_New();
  }
  for (int i = 0; result != NULL && i < table->count; i++) {
    mpg_text text = {0};
    mpg_params_get_text(table, params, i, &text);
    PyObject *value = text.failed ? PyErr_NoMemory() : PyUnicode_FromString(mpg_text_string(&text));
    if (value == NULL || PyDict_SetItemString(result, table->params[i].name, value) < 0)
      Py_CLEAR(result);
    Py_XDECREF(value);
    mpg_text_free(&text);
  }
  mpg_arena_free(&arena);
  PyMem_Free(begins);
  PyMem_Free(parts);
  return result;
}

static PyObject *op_localize(PyObject *Py_UNUSED(module), PyObject *args) {
  inferred_call call = {0};
  PyObject *result = NULL, *inputs, *outputs, *whole, *begins = Py_None;
  if (!PyArg_ParseTuple(args, "O!O!O!|O:op_localize", &PyTuple_Type, &whole, &PyTuple_Type, &inputs,
                        &PyTuple_Type, &outputs, &begins))
    return NULL;
  if (infer_call(whole, &call) == 0) result = localized(&call, inputs, outputs, begins);
  end_call(&call);
  return result;
}

/* --- Scopes, dtypes --------------------------------------------------------------------------- */
static PyObject *intern_scope(PyObject *Py_UNUSED(module), PyObject *path) {
  const char *text = PyUnicode_Check(path) ? PyUnicode_AsUTF8(path) : NULL;
  if (text == NULL) {
    if (!PyErr_Occurred())
      PyErr_SetString(PyExc_TypeError, "intern_scope: the path must be a string");
    return NULL;
  }
  return PyLong_FromUnsignedLong(mpg_scope_intern(text));
}

static PyObject *set_scope(PyObject *Py_UNUSED(module), PyObject *scope) {
  unsigned long number = PyLong_AsUnsignedLong(scope);
  if (number == (unsigned long)-1 && PyErr_Occurred()) return NULL;
  return PyLong_FromUnsignedLong(mpg_autograd_set_scope((uint32_t)number));
}

static PyObject *get_scope(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused)) {
  return PyLong_FromUnsignedLong(mpg_autograd_scope());
}

static PyObject *begin_recompute(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused)) {
  return PyBool_FromLong(mpg_trace_begin_recompute());
}

static PyObject *end_recompute(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused)) {
  mpg_trace_end_recompute();
  Py_RETURN_NONE;
}

static PyObject *set_offload(PyObject *Py_UNUSED(module), PyObject *object) {
  mpg_device_id device = {0};
  if (object != Py_None && mpg_py_device_id(object, &device) < 0) return NULL;
  device = mpg_trace_set_offload(device);
  return device.type ? mpg_py_context(device) : Py_NewRef(Py_None);
}

/* Converts a group: None if inactive, True if it has no device, else its device as a Context. */
static PyObject *group_object(mpg_group group) {
  if (!group.active) Py_RETURN_NONE;
  return group.device.type ? mpg_py_context(group.device) : Py_NewRef(Py_True);
}

static PyObject *set_group(PyObject *Py_UNUSED(module), PyObject *object) {
  mpg_group group = {.active = object != Py_None};
  if (group.active && object != Py_True && mpg_py_device_id(object, &group.device) < 0) return NULL;
  return group_object(mpg_group_set(group));
}

static PyObject *get_group(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused)) {
  return group_object(mpg_group_get());
}

static PyObject *move_to(PyObject *Py_UNUSED(module), PyObject *args) {
  PyObject *array, *context;
  mpg_device_id device;
  if (!PyArg_ParseTuple(args, "O!O:move_to", mpg_py->array_type, &array, &context) ||
      mpg_py_device_id(context, &device) < 0)
    return NULL;
  if (!mpg_py_tracked(mpg_py_array_of(array)) &&
      mpg_device_id_equal(mpg_array_device_id(mpg_py_array_of(array)), device))
    return Py_NewRef(array);
  PyObject *result = mpg_py_array_new(mpg_py_array_of(array)->numpy);
  if (result == NULL) return NULL;
  mpg_status status = mpg_group_move(mpg_py_array_of(array), device, mpg_py_array_of(result));
  if (status == MPG_OK) return result;
  Py_DECREF(result);
  return mpg_py_raise(status);
}

static PyObject *dtype_name(PyObject *Py_UNUSED(module), PyObject *dtype) {
  mpg_dtype number = mpg_py_dtype(dtype);
  return number == MPG_DTYPE_NONE ? NULL : PyUnicode_FromString(mpg_dtype_name(number));
}

static PyObject *trace_on(PyObject *Py_UNUSED(module), PyObject *ctx) {
  mpg_trace *trace = mpg_trace_active();
  mpg_device_id id;
  if (mpg_py_device_id(ctx, &id) < 0) return NULL;
  if (trace == NULL) return PyErr_Format(mpg_py->errors[MPG_ERROR], "trace_on: no trace is active");
  trace->only = id;
  Py_RETURN_NONE;
}

static PyObject *traced_draws(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused)) {
  const mpg_trace *trace = mpg_trace_active();
  return trace == NULL ? Py_NewRef(Py_None) : PyLong_FromUnsignedLong(trace->graph.num_random);
}

static PyObject *set_traced_draws(PyObject *Py_UNUSED(module), PyObject *object) {
  mpg_trace *trace = mpg_trace_active();
  unsigned long number = PyLong_AsUnsignedLong(object);
  if (number == (unsigned long)-1 && PyErr_Occurred()) return NULL;
  if (trace == NULL)
    return PyErr_Format(mpg_py->errors[MPG_ERROR], "set_traced_draws: no trace is active");
  unsigned long former = trace->graph.num_random;
  trace->graph.num_random = (uint32_t)number;
  return PyLong_FromUnsignedLong(former);
}

static PyMethodDef methods[] = {
    {"op_cost", op_cost, METH_VARARGS,
     "op_cost(name, inputs, params)\n--\n\nThe cost of one call of an op: (bytes read and written, "
     "floating-point operations). inputs: a list\nof (shape, dtype) pairs; params: a dict. Raises "
     "MXNetError if the call is invalid."},
    {"op_sharding", op_sharding, METH_VARARGS,
     "op_sharding(name, inputs, params)\n--\n\nThe factors of an op's sharding rule "
     "(csrc/op/sharding/sharding.h): a list of (kind, size, counts,\ndigits, once, exact). digits "
     "has an (axis, outer, inner) or None for each input, then for each output;\nonce is the input "
     "that is added once, or -1; exact is True if dividing the factor keeps bits."},
    {"op_localize", op_localize, METH_VARARGS,
     "op_localize((name, inputs, params), inputs_of_part, outputs_of_part)\n--\n\nThe parameters, "
     "as text, of a call on parts of the arrays. Raises MXNetError if the op cannot be\nrestricted "
     "to these parts."},
    {"infer_shape", infer_shape, METH_VARARGS,
     "infer_shape(name, inputs, params)\n--\n\nRuns an op's inference. inputs: a list of (shape, "
     "dtype) pairs, with 0 for unknown sizes and None\nfor unknown shapes and dtypes; params: a "
     "dict. Returns the lists of completed inputs and of outputs in the same form."},
    {"intern_scope", intern_scope, METH_O, "intern_scope(path)\n--\n\nThe number of a block path."},
    {"set_scope", set_scope, METH_O,
     "set_scope(number)\n--\n\nSets the block path under which this thread queues work. Returns "
     "the previous number."},
    {"get_scope", get_scope, METH_NOARGS,
     "get_scope()\n--\n\nThe number of the block path under which this thread queues work."},
    {"begin_recompute", begin_recompute, METH_NOARGS,
     "begin_recompute()\n--\n\nMarks the ops that are traced until end_recompute for recomputation "
     "in the backward phase. Returns\nFalse and does nothing if no trace is active or if a section "
     "has already begun."},
    {"trace_on", trace_on, METH_O,
     "trace_on(ctx)\n--\n\nPlaces all later ops of the active trace on ctx, regardless of the "
     "devices they name."},
    {"traced_draws", traced_draws, METH_NOARGS,
     "traced_draws()\n--\n\nThe number of random calls in the active trace, or None without a "
     "trace."},
    {"set_traced_draws", set_traced_draws, METH_O,
     "set_traced_draws(number)\n--\n\nSets the number of the next random call in the active trace. "
     "Returns the previous one. Ops with the\nnumber of an earlier op draw the same numbers."},
    {"end_recompute", end_recompute, METH_NOARGS,
     "end_recompute()\n--\n\nEnds the section of begin_recompute."},
    {"set_offload", set_offload, METH_O,
     "set_offload(ctx)\n--\n\nSets the device that stores, until the backward phase, the values "
     "that the gradients of ops read\nwhich are traced from now on. None means that they stay. "
     "Returns the previous device."},
    {"set_group", set_group, METH_O,
     "set_group(group)\n--\n\nSets the device to which this thread moves the inputs of ops: a "
     "Context, the first input's device\n(True), or none (None). Returns the previous group."},
    {"get_group", get_group, METH_NOARGS, "get_group()\n--\n\nThe group set by `set_group`."},
    {"move_to", move_to, METH_VARARGS,
     "move_to(array, ctx)\n--\n\nThe array on that device. Within a trace, all uses share one "
     "copy. If the array is already there,\nreturns the array itself, or a view of it if it is on "
     "the tape."},
    {"dtype_name", dtype_name, METH_O,
     "dtype_name(dtype)\n--\n\nThe name of a dtype given in any form, such as 'float32'."},
    {0}};

int mpg_py_gluon_init(PyObject *module) { return PyModule_AddFunctions(module, methods); }
