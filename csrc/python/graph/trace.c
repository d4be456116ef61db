/* _core.Trace, and _core.Function, which is a part of a trace. A block that reads values of arrays
 * while it is traced is traced as one Trace and cut into Functions at these reads. Bodies of loops
 * and branches are Functions of separate traces. See compile/function.h.
 */
#include "compile/function.h"
#include "autograd/tape.h"
#include "python/core.h"
#include "python/graph/describe.h"

typedef struct py_trace {
  PyObject_HEAD mpg_trace *trace; /* owned reference; NULL before the trace begins */
  bool begun;                     /* true while the trace has begun and not yet ended */
} py_trace;

typedef struct py_function {
  PyObject_HEAD mpg_function *function; /* owned */
} py_function;

/* --- Function --------------------------------------------------------------------------------- */
static PyObject *function_call(PyObject *object, PyObject *args, PyObject *kwargs) {
  const mpg_function *function = ((py_function *)object)->function;
  mpg_trace *trace = mpg_trace_active();
  if (kwargs != NULL && PyDict_GET_SIZE(kwargs)) {
    PyErr_SetString(PyExc_TypeError, "Function takes only positional arrays");
    return NULL;
  }
  if (trace == NULL) {
    PyErr_SetString(
        mpg_py->errors[MPG_ERROR],
        "a Function must be traced, by CachedOp or within a trace; it cannot run on its own");
    return NULL;
  }
  if (PyTuple_GET_SIZE(args) != (Py_ssize_t)function->num_inputs) {
    PyErr_Format(PyExc_TypeError, "Function: expected %u arrays, got %zd",
                 (unsigned)function->num_inputs, PyTuple_GET_SIZE(args));
    return NULL;
  }
  PyObject *list = NULL;
  mpg_array **inputs = PyMem_Calloc((size_t)function->num_inputs + 1, sizeof *inputs);
  mpg_array *outputs = PyMem_Calloc((size_t)function->num_outputs + 1, sizeof *outputs);
  if (inputs == NULL || outputs == NULL) {
    PyErr_NoMemory();
    goto done;
  }
  for (uint32_t i = 0; i < function->num_inputs; i++)
    if ((inputs[i] = mpg_py_expect_array(PyTuple_GET_ITEM(args, i), "Function")) == NULL) goto done;
  mpg_status status = mpg_function_call(function, trace, inputs, outputs);
  if (status != MPG_OK) {
    mpg_py_raise(status);
    goto done;
  }
  list = mpg_py_array_take_all(outputs, function->num_outputs);
done:
  PyMem_Free(inputs);
  PyMem_Free(outputs);
  return list;
}

static PyObject *ids_tuple(const uint32_t *ids, uint32_t count) {
  PyObject *tuple = PyTuple_New(count);
  for (uint32_t i = 0; tuple != NULL && i < count; i++) {
    PyObject *number = PyLong_FromUnsignedLong(ids[i]);
    if (number == NULL)
      Py_CLEAR(tuple);
    else
      PyTuple_SET_ITEM(tuple, i, number);
  }
  return tuple;
}

static PyObject *function_inputs(PyObject *object, void *Py_UNUSED(unused)) {
  const mpg_function *function = ((py_function *)object)->function;
  return ids_tuple(function->input_ids, function->num_inputs);
}
static PyObject *function_outputs(PyObject *object, void *Py_UNUSED(unused)) {
  const mpg_function *function = ((py_function *)object)->function;
  return ids_tuple(function->output_ids, function->num_outputs);
}
static PyObject *function_nodes(PyObject *object, void *Py_UNUSED(unused)) {
  const mpg_function *function = ((py_function *)object)->function;
  return PyLong_FromSize_t(function->graph.num_nodes - function->num_inputs);
}

static void function_dealloc(PyObject *object) {
  PyTypeObject *type = Py_TYPE(object);
  mpg_function_free(((py_function *)object)->function);
  type->tp_free(object);
  Py_DECREF(type);
}

static PyGetSetDef function_properties[] = {
    {"inputs", function_inputs, NULL, "The ids of its input values.", NULL},
    {"outputs", function_outputs, NULL, "The ids of its computed values.", NULL},
    {"nodes", function_nodes, NULL, "The number of its ops.", NULL},
    {0}};
static PyType_Slot function_slots[] = {
    {Py_tp_call, function_call},
    {Py_tp_dealloc, function_dealloc},
    {Py_tp_getset, function_properties},
    {Py_tp_doc,
     "A section of a Trace as a function, created by `Trace.cut`. Calling it with arrays emits its "
     "ops\ninto the active trace; ``CachedOp(function, flags)`` compiles it."},
    {0, NULL}};
static PyType_Spec function_spec = {.name = "mpgluon._core.Function",
                                    .basicsize = sizeof(py_function),
                                    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
                                    .slots = function_slots};

/* --- Trace ------------------------------------------------------------------------------------ */
static mpg_trace *open_trace(PyObject *object) {
  mpg_trace *trace = ((py_trace *)object)->trace;
  if (trace != NULL && !trace->closed) return trace;
  PyErr_SetString(mpg_py->errors[MPG_ERROR], "the trace is not active");
  return NULL;
}

static PyObject *trace_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
  if (PyTuple_GET_SIZE(args) || (kwargs != NULL && PyDict_GET_SIZE(kwargs))) {
    PyErr_SetString(PyExc_TypeError, "Trace() expects no arguments");
    return NULL;
  }
  return type->tp_alloc(type, 0);
}

static PyObject *trace_enter(PyObject *object, PyObject *Py_UNUSED(unused)) {
  py_trace *self = (py_trace *)object;
  if (self->trace != NULL) {
    PyErr_SetString(mpg_py->errors[MPG_ERROR], "a trace can be entered only once");
    return NULL;
  }
  MPG_PY_TRY(mpg_trace_begin(&self->trace));
  self->begun = true;
  return Py_NewRef(object);
}

static void end(py_trace *self) {
  if (!self->begun) return;
  self->begun = false;
  mpg_trace *active = mpg_trace_active(), *outer = self->trace->outer;
  mpg_trace_end(self->trace);
  mpg_trace_swap(active == self->trace ? outer : active);
}

static PyObject *trace_exit(PyObject *object, PyObject *const *Py_UNUSED(args),
                            Py_ssize_t Py_UNUSED(count)) {
  end((py_trace *)object);
  Py_RETURN_NONE;
}

static PyObject *new_input(mpg_trace *trace, const mpg_desc *desc, mpg_device_id device,
                           bool numpy) {
  mpg_array array = {0};
  MPG_PY_TRY(mpg_trace_input(trace, desc, device, numpy, &array));
  return mpg_py_array_take(&array);
}

static PyObject *trace_input(PyObject *object, PyObject *like) {
  mpg_trace *trace = open_trace(object);
  const mpg_array *array = trace ? mpg_py_expect_array(like, "Trace.input") : NULL;
  if (array == NULL) return NULL;
  return new_input(trace, &array->tensor.desc, mpg_array_device_id(array), array->numpy);
}

static PyObject *trace_new_input(PyObject *object, PyObject *args) {
  mpg_trace *trace = open_trace(object);
  PyObject *shape, *dtype, *ctx;
  int numpy = 0;
  mpg_desc desc;
  mpg_device_id device;
  if (trace == NULL || !PyArg_ParseTuple(args, "OOO|p:new_input", &shape, &dtype, &ctx, &numpy))
    return NULL;
  if (mpg_py_shape_from(shape, &desc.shape, "new_input") < 0 || mpg_py_device_id(ctx, &device) < 0)
    return NULL;
  if ((desc.dtype = mpg_py_dtype(dtype)) == MPG_DTYPE_NONE) return NULL;
  return new_input(trace, &desc, device, numpy);
}

static PyObject *trace_value(PyObject *object, PyObject *item) {
  mpg_trace *trace = open_trace(object);
  mpg_array *array = trace ? mpg_py_expect_array(item, "Trace.value") : NULL;
  mpg_value value;
  if (array == NULL) return NULL;
  MPG_PY_TRY(mpg_trace_value(trace, array, "the block's result", &value));
  return PyLong_FromUnsignedLong(mpg_value_index(&trace->graph, value));
}

static PyObject *constant_array(const mpg_trace *trace, size_t i) {
  mpg_array array = {0};
  MPG_PY_TRY(mpg_trace_get_constant(trace, i, &array));
  return mpg_py_array_take(&array);
}

static PyObject *trace_constants(PyObject *object, PyObject *from) {
  mpg_trace *trace = open_trace(object);
  Py_ssize_t begin = trace ? PyLong_AsSsize_t(from) : -1;
  if (begin < 0) {
    if (!PyErr_Occurred())
      PyErr_SetString(PyExc_ValueError, "Trace.constants: begin must not be negative");
    return NULL;
  }
  PyObject *list = PyList_New(0);
  for (size_t i = (size_t)begin; list != NULL && i < trace->num_constants; i++) {
    PyObject *item = Py_BuildValue(
        "kN", (unsigned long)mpg_value_index(&trace->graph, trace->constants[i].value),
        constant_array(trace, i));
    if (item == NULL || PyList_Append(list, item) < 0) Py_CLEAR(list);
    Py_XDECREF(item);
  }
  return list;
}

static PyObject *trace_live(PyObject *object, PyObject *Py_UNUSED(unused)) {
  mpg_trace *trace = open_trace(object);
  PyObject *list = trace ? PyList_New(0) : NULL;
  for (size_t i = 0; list != NULL && i < trace->graph.num_values && i < trace->live_capacity; i++) {
    if (!trace->live[i]) continue;
    PyObject *number = PyLong_FromSize_t(i);
    if (number == NULL || PyList_Append(list, number) < 0) Py_CLEAR(list);
    Py_XDECREF(number);
  }
  return list;
}

static PyObject *trace_keep(PyObject *object, PyObject *ids) {
  mpg_trace *trace = open_trace(object);
  PyObject *items = trace ? mpg_py_items(ids, "Trace.keep: the ids must be a list of ints") : NULL;
  if (items == NULL) return NULL;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(items); i++) {
    size_t id = PyLong_AsSize_t(PyTuple_GET_ITEM(items, i));
    if (PyErr_Occurred()) break;
    if (id < trace->graph.num_values && id < trace->live_capacity) trace->live[id]++;
  }
  Py_DECREF(items);
  if (PyErr_Occurred()) return NULL;
  Py_RETURN_NONE;
}

static PyObject *trace_cut(PyObject *object, PyObject *args) {
  mpg_trace *trace = open_trace(object);
  Py_ssize_t begin;
  PyObject *results = Py_None;
  if (trace == NULL || !PyArg_ParseTuple(args, "n|O:cut", &begin, &results)) return NULL;
  if (begin < 0) {
    PyErr_SetString(PyExc_ValueError, "Trace.cut: begin must not be negative");
    return NULL;
  }
  mpg_value *values = NULL;
  Py_ssize_t count = 0;
  if (results != Py_None) {
    PyObject *items = mpg_py_items(results, "Trace.cut: the results must be a list of arrays");
    if (items == NULL) return NULL;
    count = PyTuple_GET_SIZE(items);
    values = PyMem_Calloc((size_t)count + 1, sizeof *values);
    if (values == NULL) PyErr_NoMemory();
    for (Py_ssize_t i = 0; values != NULL && i < count; i++) {
      mpg_array *array = mpg_py_expect_array(PyTuple_GET_ITEM(items, i), "Trace.cut");
      mpg_status status =
          array ? mpg_trace_value(trace, array, "the block's result", &values[i]) : MPG_OK;
      if (status != MPG_OK) mpg_py_raise(status);
      if (array != NULL && status == MPG_OK) continue;
      PyMem_Free(values);
      values = NULL;
    }
    Py_DECREF(items);
    if (values == NULL) return NULL;
  }
  mpg_function *function;
  mpg_status status = mpg_function_cut(trace, (size_t)begin, values, (size_t)count, &function);
  PyMem_Free(values);
  if (status != MPG_OK) return mpg_py_raise(status);
  if (function == NULL) Py_RETURN_NONE;
  py_function *made = (py_function *)mpg_py->function_type->tp_alloc(mpg_py->function_type, 0);
  if (made == NULL) {
    mpg_function_free(function);
    return NULL;
  }
  made->function = function;
  return (PyObject *)made;
}

/* Discards the cached copies of values for other device groups before the trace is cut into
 * functions. A value is available after a cut only if an array refers to it, and no array refers to
 * these copies. */
static PyObject *trace_forget_moves(PyObject *object, PyObject *Py_UNUSED(unused)) {
  mpg_trace *trace = open_trace(object);
  if (trace == NULL) return NULL;
  trace->num_copies = 0;
  Py_RETURN_NONE;
}

static PyObject *trace_nodes(PyObject *object, void *Py_UNUSED(unused)) {
  mpg_trace *trace = open_trace(object);
  return trace ? PyLong_FromSize_t(trace->graph.num_nodes) : NULL;
}

static PyObject *trace_ops(PyObject *object, PyObject *Py_UNUSED(unused)) {
  mpg_trace *trace = open_trace(object);
  PyObject *list = trace ? PyList_New(0) : NULL;
  for (size_t i = 0; list != NULL && i < trace->graph.num_nodes; i++) {
    const mpg_node *node = &trace->graph.nodes[i];
    if (mpg_node_is_input(node)) continue;
    /* Opaque calls have no op and may lack inputs, so no inputs are listed for them. */
    uint32_t count = node->op ? node->num_inputs : 0;
    PyObject *inputs = PyTuple_New(count);
    for (uint32_t k = 0; inputs != NULL && k < count; k++) {
      mpg_value value = trace->graph.inputs[node->inputs + k];
      PyObject *number = PyLong_FromUnsignedLong(mpg_value_index(&trace->graph, value));
      if (number == NULL)
        Py_CLEAR(inputs);
      else
        PyTuple_SET_ITEM(inputs, k, number);
    }
    PyObject *params = inputs && node->op ? mpg_py_node_params(node) : PyDict_New();
    PyObject *item = inputs && params
                         ? Py_BuildValue("zOOII", node->op ? node->op->name : NULL, params, inputs,
                                         node->values, node->num_outputs)
                         : NULL;
    Py_XDECREF(inputs);
    Py_XDECREF(params);
    if (item == NULL || PyList_Append(list, item) < 0) Py_CLEAR(list);
    Py_XDECREF(item);
  }
  return list;
}

static PyObject *trace_shape(PyObject *object, PyObject *number) {
  mpg_trace *trace = open_trace(object);
  size_t id = PyLong_AsSize_t(number);
  if (trace == NULL || PyErr_Occurred()) return NULL;
  if (id >= trace->graph.num_values)
    return PyErr_Format(PyExc_IndexError, "Trace.shape: unknown value %zu", id);
  return mpg_py_shape_tuple(&trace->graph.values[id].desc.shape);
}

static PyObject *trace_paused(PyObject *object, void *Py_UNUSED(unused)) {
  mpg_trace *trace = open_trace(object);
  return trace ? PyBool_FromLong(mpg_trace_paused(trace)) : NULL;
}

static void trace_dealloc(PyObject *object) {
  py_trace *self = (py_trace *)object;
  PyTypeObject *type = Py_TYPE(object);
  end(self);
  mpg_trace_release(self->trace);
  type->tp_free(object);
  Py_DECREF(type);
}

static PyObject *trace_spans_ranks(PyObject *object, void *Py_UNUSED(unused)) {
  const mpg_trace *trace = open_trace(object);
  return trace ? PyBool_FromLong(mpg_graph_spans_ranks(&trace->graph)) : NULL;
}

static PyObject *trace_keep_bounds(PyObject *object, PyObject *Py_UNUSED(unused)) {
  mpg_trace *trace = open_trace(object);
  if (trace == NULL) return NULL;
  trace->keeps_bounds = true;
  Py_RETURN_NONE;
}

static PyObject *trace_compile(PyObject *object, PyObject *args) {
  py_trace *self = (py_trace *)object;
  PyObject *inputs, *outputs, *wanted, *flags, *result = NULL;
  unsigned bound;
  if (!PyArg_ParseTuple(args, "O!O!O!IO!:compile", &PyTuple_Type, &inputs, &PyTuple_Type, &outputs,
                        &PyTuple_Type, &wanted, &bound, &PyDict_Type, &flags))
    return NULL;
  Py_ssize_t count = PyTuple_GET_SIZE(inputs);
  if (self->trace == NULL || self->begun) {
    PyErr_SetString(mpg_py->errors[MPG_ERROR], "Trace.compile: the trace has not ended");
    return NULL;
  }
  if (PyTuple_GET_SIZE(wanted) != count || bound > (size_t)count) {
    PyErr_SetString(PyExc_ValueError, "Trace.compile: 'wanted' or 'bound' does not fit the inputs");
    return NULL;
  }
  for (Py_ssize_t i = 0; i < count + PyTuple_GET_SIZE(outputs); i++) {
    PyObject *item = i < count ? PyTuple_GET_ITEM(inputs, i) : PyTuple_GET_ITEM(outputs, i - count);
    if (mpg_py_expect_array(item, "Trace.compile") == NULL) return NULL;
  }
  bool *needs = PyMem_Calloc((size_t)count + 1, sizeof *needs);
  if (needs == NULL) return PyErr_NoMemory();
  mpg_memory_budget budget = {0};
  mpg_compile_options options = {.num_bound = bound, .wanted = needs};
  for (Py_ssize_t i = 0; i < count; i++)
    options.recording |= needs[i] = PyTuple_GET_ITEM(wanted, i) == Py_True;
  mpg_compiled *compiled = NULL;
  if (mpg_py_compile_options(flags, &options, &budget) == 0)
    compiled = mpg_py_compile_trace(self->trace, inputs, outputs, NULL, &options);
  if (compiled != NULL) {
    mpg_status status = compiled->recording ? mpg_compiled_make_whole_backward(compiled) : MPG_OK;
    mpg_cache_entry entry = {
        .train = compiled->recording, .recording = compiled->recording, .compiled = compiled};
    result = status == MPG_OK ? mpg_py_describe_call(&entry) : mpg_py_raise(status);
  }
  mpg_compiled_release(compiled);
  PyMem_Free(budget.limits);
  PyMem_Free(needs);
  return result;
}

static PyMethodDef trace_methods[] = {
    {"__enter__", trace_enter, METH_NOARGS, NULL},
    {"__exit__", (PyCFunction)(void (*)(void))trace_exit, METH_FASTCALL, NULL},
    {"input", trace_input, METH_O,
     "input(like)\n--\n\nA new traced array with the shape, dtype and device of an array."},
    {"new_input", trace_new_input, METH_VARARGS,
     "new_input(shape, dtype, ctx)\n--\n\nA new traced array."},
    {"value", trace_value, METH_O,
     "value(array)\n--\n\nThe id of the array's value; an array that does not belong to this trace "
     "becomes a constant."},
    {"constants", trace_constants, METH_O,
     "constants(begin)\n--\n\nThe constants from that index on, as (id, array)."},
    {"live", trace_live, METH_NOARGS, "live()\n--\n\nThe ids of the values of existing arrays."},
    {"ops", trace_ops, METH_NOARGS,
     "ops()\n--\n\nThe ops so far, each as (name, parameters, ids of its inputs, id of its first "
     "output, number of outputs). The name is None for a call that is not an op."},
    {"shape", trace_shape, METH_O, "shape(id)\n--\n\nThe shape of the value with this id."},
    {"keep", trace_keep, METH_O, "keep(ids)\n--\n\nKeeps these values live until the trace ends."},
    {"keep_bounds", trace_keep_bounds, METH_NOARGS,
     "keep_bounds()\n--\n\nMakes slices ops with the given bounds, even beyond the size, so that "
     "the ops fit other sizes."},
    {"forget_moves", trace_forget_moves, METH_NOARGS,
     "forget_moves()\n--\n\nDiscards the cached moves of arrays between groups, so that later uses "
     "move them with new copies."},
    {"compile", trace_compile, METH_VARARGS,
     "compile(inputs, outputs, wanted, bound, flags)\n--\n\nCompiles a trace that has ended, and "
     "the "
     "backward pass for all outputs. The last `bound` inputs are\nparameters, and those with True "
     "in "
     "`wanted` need gradients. `flags` are those of a CachedOp.\nReturns a dict such as those of "
     "`CachedOp.compiled`. Nothing runs, so the inputs need no memory."},
    {"cut", trace_cut, METH_VARARGS,
     "cut(begin, results=None)\n--\n\nThe ops from node number `begin` on as a Function, or None "
     "if there are none. Its outputs are the live values among\ntheir results, or those contained "
     "in `results`."},
    {0}};
static PyGetSetDef trace_properties[] = {
    {"spans_ranks", trace_spans_ranks, NULL,
     "Whether a value is on a device with a rank, so that all ranks trace it.", NULL},
    {"nodes", trace_nodes, NULL, "The number of nodes in the trace.", NULL},
    {"paused", trace_paused, NULL,
     "Whether autograd was recording when the trace began, but is not recording now.", NULL},
    {0}};
static PyType_Slot trace_slots[] = {{Py_tp_new, trace_new},
                                    {Py_tp_dealloc, trace_dealloc},
                                    {Py_tp_methods, trace_methods},
                                    {Py_tp_getset, trace_properties},
                                    {Py_tp_doc,
                                     "Trace()\n--\n\nA with-statement that is traced: in this "
                                     "thread, inside the active trace if there is one."},
                                    {0, NULL}};
static PyType_Spec trace_spec = {.name = "mpgluon._core.Trace",
                                 .basicsize = sizeof(py_trace),
                                 .flags = Py_TPFLAGS_DEFAULT,
                                 .slots = trace_slots};

static PyObject *swap_trace(PyObject *Py_UNUSED(module), PyObject *item) {
  mpg_trace *trace = NULL;
  if (item != Py_None) {
    if (!PyObject_TypeCheck(item, mpg_py->trace_type)) {
      PyErr_Format(PyExc_TypeError, "swap_trace: expected a Trace or None, got %s",
                   Py_TYPE(item)->tp_name);
      return NULL;
    }
    trace = ((py_trace *)item)->trace;
    if (trace != NULL && trace->closed) trace = NULL;
  }
  mpg_trace *former = mpg_trace_swap(trace);
  if (former == NULL) Py_RETURN_NONE;
  py_trace *result = (py_trace *)mpg_py->trace_type->tp_alloc(mpg_py->trace_type, 0);
  if (result == NULL) {
    mpg_trace_swap(former);
    return NULL;
  }
  result->trace = former;
  former->references++;
  return (PyObject *)result;
}

/* True if only the trace refers to the memory of constant `i`, which code created during the trace
 * and did not keep (a mask that was built from sizes). */
static bool is_temporary(const mpg_trace *trace, size_t i) {
  enum { MOST_VIEWS = 8 };
  const mpg_storage *storage = trace->constants[i].array.tensor.storage;
  int32_t own = 0;
  if (storage->exposed || storage->born <= trace->born || storage->references > MOST_VIEWS)
    return false;
  for (size_t k = 0; k < trace->num_constants; k++) {
    own += trace->constants[k].array.tensor.storage == storage;
    own += trace->constants[k].saved.storage == storage;
  }
  return own == storage->references;
}

static PyObject *captured_arrays(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused)) {
  const mpg_trace *trace = mpg_trace_active();
  PyObject *list = PyList_New(0);
  for (size_t i = 0; list != NULL && trace != NULL && i < trace->num_constants; i++) {
    if (trace->constants[i].array.trace || is_temporary(trace, i)) continue;
    mpg_array array = {0}; /* a reference to the captured array with its current contents */
    mpg_array_copy(&array, &trace->constants[i].array);
    PyObject *item = mpg_py_array_take(&array);
    if (item == NULL || PyList_Append(list, item) < 0) Py_CLEAR(list);
    Py_XDECREF(item);
  }
  return list;
}

/* The trace that was active when the garbage collector started. It is inactive while the collector
 * runs, so that ops in finalizers are not traced. Owned reference, or NULL. */
static _Thread_local mpg_trace *aside;

static PyObject *collecting(PyObject *Py_UNUSED(module), PyObject *args) {
  const char *phase;
  PyObject *info;
  if (!PyArg_ParseTuple(args, "sO:_collecting", &phase, &info)) return NULL;
  mpg_trace *trace = aside;
  aside = NULL;
  if (strcmp(phase, "start") == 0) {
    if ((aside = mpg_trace_swap(NULL)) != NULL) aside->references++;
  } else if (trace != NULL && !trace->closed) { /* closed if the collector freed its Trace object */
    mpg_trace_swap(trace);
  }
  mpg_trace_release(trace);
  Py_RETURN_NONE;
}

static int watch_collector(PyObject *module) {
  PyObject *gc = PyImport_ImportModule("gc"),
           *callbacks = gc != NULL ? PyObject_GetAttrString(gc, "callbacks") : NULL;
  PyObject *function = callbacks != NULL ? PyObject_GetAttrString(module, "_collecting") : NULL;
  int result = function != NULL ? PyList_Append(callbacks, function) : -1;
  Py_XDECREF(function);
  Py_XDECREF(callbacks);
  Py_XDECREF(gc);
  return result;
}

static PyMethodDef methods[] = {
    {"_collecting", collecting, METH_VARARGS,
     "_collecting(phase, info)\n--\n\nSuspends the active trace while the garbage collector runs; "
     "one of gc.callbacks."},
    {"captured_arrays", captured_arrays, METH_NOARGS,
     "captured_arrays()\n--\n\nThe arrays with contents that the active trace has used so far, and "
     "that "
     "other code still holds."},
    {"swap_trace", swap_trace, METH_O,
     "swap_trace(trace)\n--\n\nSets the active trace of this thread (None for no trace); returns "
     "the previous one."},
    {0}};

int mpg_py_trace_init(PyObject *module) {
  mpg_py->trace_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &trace_spec, NULL);
  mpg_py->function_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &function_spec, NULL);
  if (mpg_py->trace_type == NULL || mpg_py->function_type == NULL ||
      PyModule_AddObjectRef(module, "Trace", (PyObject *)mpg_py->trace_type) < 0 ||
      PyModule_AddObjectRef(module, "Function", (PyObject *)mpg_py->function_type) < 0)
    return -1;
  return PyModule_AddFunctions(module, methods) < 0 ? -1 : watch_collector(module);
}
