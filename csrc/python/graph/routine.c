/* _core.Routine: sequences, branches and loops of compiled functions. See compile/routine.h and
 * core.h. */
#include "compile/routine.h"
#include "base/memory.h"
#include "python/core.h"

typedef struct py_routine {
  PyObject_HEAD mpg_routine routine;
  PyObject *called; /* list of the objects that the routine calls; owned */
} py_routine;

/* --- Callees ---------------------------------------------------------------------------------- */

/* Calls an uncompiled Python function with a list of arrays. The function must return num_outputs
 * arrays. */
static mpg_status call_host(void *function, mpg_array *const *inputs, uint32_t num_inputs,
                            mpg_array *outputs, uint32_t num_outputs) {
  PyObject *list = PyList_New(num_inputs), *results = NULL, *items = NULL;
  for (uint32_t i = 0; list != NULL && i < num_inputs; i++) {
    mpg_array array = {0};
    mpg_array_copy(&array, inputs[i]);
    PyObject *item = mpg_py_array_take(&array);
    if (item == NULL)
      Py_CLEAR(list);
    else
      PyList_SET_ITEM(list, i, item);
  }
  if (list != NULL) results = PyObject_CallOneArg(function, list);
  if (results != NULL)
    items = mpg_py_items(results, "Routine: a function must return a list of arrays");
  bool good = items != NULL;
  if (good && PyTuple_GET_SIZE(items) != (Py_ssize_t)num_outputs) {
    PyErr_Format(PyExc_ValueError, "Routine: a function returned %zd arrays, not %u",
                 PyTuple_GET_SIZE(items), (unsigned)num_outputs);
    good = false;
  }
  for (uint32_t i = 0; good && i < num_outputs; i++) {
    mpg_array *array = mpg_py_expect_array(PyTuple_GET_ITEM(items, i), "Routine");
    good = array != NULL;
    if (good) mpg_array_copy(&outputs[i], array);
  }
  for (uint32_t i = 0; !good && i < num_outputs; i++) mpg_array_clear(&outputs[i]);
  Py_XDECREF(items);
  Py_XDECREF(results);
  Py_XDECREF(list);
  return good ? MPG_OK : mpg_py_host_exception();
}

static int is_routine(PyObject *object);

/* Converts a callable to a callee. `self` keeps a reference to the callable. */
static int callee_from(py_routine *self, PyObject *object, mpg_callee *callee) {
  if (!PyCallable_Check(object)) {
    PyErr_Format(PyExc_TypeError, "Routine: expected a CachedOp, a Routine or a function, got %s",
                 Py_TYPE(object)->tp_name);
    return -1;
  }
  if (is_routine(object))
    *callee = (mpg_callee){mpg_routine_call, &((py_routine *)object)->routine};
  else if (mpg_py_is_cached_op(object))
    *callee = (mpg_callee){mpg_py_call_compiled, object};
  else
    *callee = (mpg_callee){call_host, object};
  return PyList_Append(self->called, object);
}

/* --- Creation --------------------------------------------------------------------------------- */

static PyObject *allocate(mpg_routine_kind kind);

/* Converts a sequence of slot numbers, which must be below `limit`. Sets *slots to an array that
 * the caller frees. Returns -1 with an exception set on failure. */
static int slots_from(PyObject *object, uint32_t limit, uint32_t **slots, uint32_t *count) {
  PyObject *items = PySequence_Tuple(object);
  if (items == NULL) return -1;
  *count = (uint32_t)PyTuple_GET_SIZE(items);
  *slots = mpg_calloc((size_t)*count + 1, sizeof **slots);
  if (*slots == NULL) PyErr_NoMemory();
  for (uint32_t i = 0; *slots != NULL && i < *count; i++) {
    long slot = PyLong_AsLong(PyTuple_GET_ITEM(items, i));
    if (slot < 0 || slot >= (long)limit) {
      if (!PyErr_Occurred())
        PyErr_Format(PyExc_ValueError, "Routine: slot %ld is out of range [0, %u)", slot,
                     (unsigned)limit);
      break;
    }
    (*slots)[i] = (uint32_t)slot;
  }
  Py_DECREF(items);
  return PyErr_Occurred() ? -1 : 0;
}

/* Fills in a call from a tuple (function, scope or None, input slots, number of outputs). */
static int sequence_call_from(py_routine *self, PyObject *item, mpg_sequence_call *call) {
  mpg_sequence *sequence = &self->routine.sequence;
  PyObject *function, *scope, *inputs;
  if (!PyTuple_Check(item) || !PyArg_ParseTuple(item, "OOOI:Routine.sequence", &function, &scope,
                                                &inputs, &call->num_outputs)) {
    if (!PyErr_Occurred())
      PyErr_SetString(PyExc_TypeError, "Routine.sequence: a call must be a tuple");
    return -1;
  }
  call->scope = MPG_SCOPE_INHERITED;
  if (scope != Py_None) {
    unsigned long number = PyLong_AsUnsignedLong(scope);
    if (PyErr_Occurred()) return -1;
    call->scope = (uint32_t)number;
  }
  if (slots_from(inputs, sequence->num_slots, &call->inputs, &call->num_inputs) < 0) return -1;
  sequence->num_slots += call->num_outputs;
  return callee_from(self, function, &call->callee);
}

static PyObject *make_sequence(PyObject *Py_UNUSED(type), PyObject *args) {
  unsigned num_inputs;
  PyObject *calls, *results, *items = NULL;
  if (!PyArg_ParseTuple(args, "IOO:Routine.sequence", &num_inputs, &calls, &results)) return NULL;
  py_routine *self = (py_routine *)allocate(MPG_SEQUENCE);
  if (self == NULL) return NULL;
  mpg_sequence *sequence = &self->routine.sequence;
  sequence->num_inputs = sequence->num_slots = num_inputs;
  if ((items = PySequence_Tuple(calls)) == NULL) goto fail;
  sequence->calls = mpg_calloc((size_t)PyTuple_GET_SIZE(items) + 1, sizeof *sequence->calls);
  if (sequence->calls == NULL) {
    PyErr_NoMemory();
    goto fail;
  }
  for (; sequence->num_calls < PyTuple_GET_SIZE(items); sequence->num_calls++)
    if (sequence_call_from(self, PyTuple_GET_ITEM(items, sequence->num_calls),
                           &sequence->calls[sequence->num_calls]) < 0) {
      sequence->num_calls++; /* so that cleanup frees the memory of the incomplete call */
      goto fail;
    }
  if (slots_from(results, sequence->num_slots, &sequence->results, &sequence->num_results) < 0)
    goto fail;
  mpg_status status = mpg_sequence_finish(sequence);
  if (status != MPG_OK) {
    mpg_py_raise(status);
    goto fail;
  }
  self->routine.num_inputs = num_inputs;
  self->routine.num_outputs = sequence->num_results;
  Py_DECREF(items);
  return (PyObject *)self;
fail:
  Py_XDECREF(items);
  Py_DECREF(self);
  return NULL;
}

static PyObject *make_branch(PyObject *Py_UNUSED(type), PyObject *args) {
  unsigned num_first, num_second, num_outputs;
  PyObject *first, *second;
  if (!PyArg_ParseTuple(args, "OIOII:Routine.branch", &first, &num_first, &second, &num_second,
                        &num_outputs))
    return NULL;
  py_routine *self = (py_routine *)allocate(MPG_BRANCH);
  if (self == NULL) return NULL;
  mpg_branch *branch = &self->routine.branch;
  branch->num_first = num_first;
  branch->num_second = num_second;
  self->routine.num_inputs = 1 + num_first + num_second;
  self->routine.num_outputs = num_outputs;
  if (callee_from(self, first, &branch->first) < 0 ||
      callee_from(self, second, &branch->second) < 0)
    Py_CLEAR(self);
  return (PyObject *)self;
}

/* Fills in the description of a loop's output from a tuple (shape, dtype, ctx, numpy). */
static int loop_output_from(PyObject *item, mpg_loop_output *output) {
  PyObject *shape, *dtype, *ctx;
  int numpy;
  if (!PyTuple_Check(item) ||
      !PyArg_ParseTuple(item, "OOOp:Routine.loop", &shape, &dtype, &ctx, &numpy)) {
    if (!PyErr_Occurred())
      PyErr_SetString(PyExc_TypeError, "Routine.loop: an output must be described by a tuple");
    return -1;
  }
  if (mpg_py_shape_from(shape, &output->desc.shape, "Routine.loop") < 0 ||
      mpg_py_device_id(ctx, &output->device) < 0)
    return -1;
  output->numpy = numpy;
  return (output->desc.dtype = mpg_py_dtype(dtype)) == MPG_DTYPE_NONE ? -1 : 0;
}

static PyObject *make_loop(PyObject *Py_UNUSED(type), PyObject *args) {
  const char *name;
  long long limit;
  unsigned num_data, num_states, step_captures, condition_captures;
  PyObject *step, *condition, *outputs, *items = NULL;
  if (!PyArg_ParseTuple(args, "sLIIOIOIO:Routine.loop", &name, &limit, &num_data, &num_states,
                        &step, &step_captures, &condition, &condition_captures, &outputs))
    return NULL;
  if (limit < 0 || (condition != Py_None && num_data)) {
    PyErr_SetString(PyExc_ValueError,
                    "Routine.loop: the number of steps must not be negative, and a loop with a "
                    "condition cannot have data");
    return NULL;
  }
  py_routine *self = (py_routine *)allocate(MPG_LOOP);
  if (self == NULL) return NULL;
  mpg_loop *loop = &self->routine.loop;
  loop->num_data = num_data;
  loop->num_states = num_states;
  loop->num_step_captures = step_captures;
  loop->num_condition_captures = condition_captures;
  loop->limit = limit;
  if (callee_from(self, step, &loop->step) < 0 ||
      (condition != Py_None && callee_from(self, condition, &loop->condition) < 0))
    goto fail;
  if ((items = PySequence_Tuple(outputs)) == NULL) goto fail;
  loop->num_outputs = (uint32_t)PyTuple_GET_SIZE(items);
  loop->outputs = mpg_calloc((size_t)loop->num_outputs + 1, sizeof *loop->outputs);
  loop->name = mpg_strdup(name);
  if (loop->outputs == NULL || loop->name == NULL) {
    PyErr_NoMemory();
    goto fail;
  }
  for (uint32_t i = 0; i < loop->num_outputs; i++)
    if (loop_output_from(PyTuple_GET_ITEM(items, i), &loop->outputs[i]) < 0) goto fail;
  self->routine.num_inputs = num_data + num_states + step_captures + condition_captures;
  self->routine.num_outputs = loop->num_outputs + num_states;
  Py_DECREF(items);
  return (PyObject *)self;
fail:
  Py_XDECREF(items);
  Py_DECREF(self);
  return NULL;
}

/* --- The type --------------------------------------------------------------------------------- */

static PyObject *routine_call(PyObject *object, PyObject *args, PyObject *kwargs) {
  mpg_routine *routine = &((py_routine *)object)->routine;
  PyObject *given, *items = NULL, *list = NULL;
  if (kwargs != NULL && PyDict_GET_SIZE(kwargs)) {
    PyErr_SetString(PyExc_TypeError, "Routine takes only a list of arrays");
    return NULL;
  }
  if (!PyArg_ParseTuple(args, "O:Routine", &given) || (items = PySequence_Tuple(given)) == NULL)
    return NULL;
  uint32_t num_inputs = (uint32_t)PyTuple_GET_SIZE(items), num_outputs = routine->num_outputs;
  mpg_array **inputs = PyMem_Calloc((size_t)num_inputs + 1, sizeof *inputs);
  mpg_array *outputs = PyMem_Calloc((size_t)num_outputs + 1, sizeof *outputs);
  if (inputs == NULL || outputs == NULL) {
    PyErr_NoMemory();
    goto done;
  }
  for (uint32_t i = 0; i < num_inputs; i++) {
    inputs[i] = mpg_py_expect_array(PyTuple_GET_ITEM(items, i), "Routine");
    if (inputs[i] == NULL || mpg_py_expect_value(inputs[i], "Routine") < 0) goto done;
  }
  mpg_status status = mpg_routine_call(routine, inputs, num_inputs, outputs, num_outputs);
  if (status != MPG_OK)
    mpg_py_raise(status);
  else
    list = mpg_py_array_take_all(outputs, num_outputs);
done:
  PyMem_Free(inputs);
  PyMem_Free(outputs);
  Py_DECREF(items);
  return list;
}

static int routine_traverse(PyObject *object, visitproc visit, void *arg) {
  Py_VISIT(Py_TYPE(object));
  Py_VISIT(((py_routine *)object)->called);
  return 0;
}

/* Breaks reference cycles by releasing the called functions. Sets the numbers of inputs and outputs
 * to impossible values, so that the routine rejects later calls. */
static int routine_break(PyObject *object) {
  py_routine *self = (py_routine *)object;
  mpg_routine_clear(&self->routine);
  memset(&self->routine, 0, sizeof self->routine);
  self->routine.num_inputs = self->routine.num_outputs = UINT32_MAX;
  Py_CLEAR(self->called);
  return 0;
}

static void routine_dealloc(PyObject *object) {
  PyTypeObject *type = Py_TYPE(object);
  PyObject_GC_UnTrack(object);
  (void)routine_break(object);
  type->tp_free(object);
  Py_DECREF(type);
}

static PyMethodDef routine_methods[] = {
    {"sequence", make_sequence, METH_VARARGS | METH_STATIC,
     "sequence(num_inputs, calls, results)\n--\n\nA Routine that makes calls one after another. A "
     "call is (function, scope, inputs, num_outputs),\nwhere scope is the number of a block path, "
     "or None for the caller's.\nThe inputs of calls and the results are slot numbers. The first "
     "num_inputs slots are the sequence's\ninputs, followed by the results of its calls in order."},
    {"branch", make_branch, METH_VARARGS | METH_STATIC,
     "branch(first, num_first, second, num_second, num_outputs)\n--\n\nA Routine that calls one of "
     "two functions. Its inputs are an array with one number, the num_first\ninputs of `first`, "
     "and the num_second inputs of `second`. It calls `first` if the number is not 0,\notherwise "
     "`second`."},
    {"loop", make_loop, METH_VARARGS | METH_STATIC,
     "loop(name, limit, num_data, num_states, step, step_captures, condition, condition_captures, "
     "outputs)\n--\n\nA Routine that runs a loop. Its inputs are data, states, and the captures of "
     "`step` and of\n`condition`.\n\nEach step calls step(*rows, *states, *captures), where rows "
     "are the next row of each data array. It\nreturns the outputs of the step, followed by the "
     "next states. The loop has `limit` steps. A loop\nwith a condition has no data, and ends "
     "earlier if condition(*states, *captures) is 0.\noutputs: (shape, dtype, ctx) of each output "
     "of a step.\n\nResults: the outputs of all steps, stacked along a new first axis and padded "
     "with zeros after the\nlast step, followed by the final states."},
    {0}};
static PyType_Slot routine_slots[] = {
    {Py_tp_dealloc, routine_dealloc},
    {Py_tp_traverse, routine_traverse},
    {Py_tp_clear, routine_break},
    {Py_tp_call, routine_call},
    {Py_tp_methods, routine_methods},
    {Py_tp_doc,
     "A composition of CachedOps, other Routines, and functions from a list of arrays to a list of "
     "arrays.\nIt is called with a list of arrays and returns a list of arrays. It runs in the "
     "core, and the tape\nrecords each of its calls separately. Created by `sequence`, `branch` "
     "and `loop`."},
    {0, NULL}};
static PyType_Spec routine_spec = {
    .name = "mpgluon._core.Routine",
    .basicsize = sizeof(py_routine),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = routine_slots};

static int is_routine(PyObject *object) { return Py_TYPE(object) == mpg_py->routine_type; }

static PyObject *allocate(mpg_routine_kind kind) {
  py_routine *self = (py_routine *)mpg_py->routine_type->tp_alloc(mpg_py->routine_type, 0);
  if (self == NULL) return NULL;
  self->routine.kind = kind;
  self->called = PyList_New(0);
  if (self->called == NULL) Py_CLEAR(self);
  return (PyObject *)self;
}

/* --- Rows of loops ---------------------------------------------------------------------------- */

static PyObject *loop_slices(PyObject *Py_UNUSED(module), PyObject *object) {
  mpg_array *whole = mpg_py_expect_array(object, "loop_slices");
  if (whole == NULL) return NULL;
  const mpg_shape *shape = &whole->tensor.desc.shape;
  Py_ssize_t count = shape->ndim > 0 ? (Py_ssize_t)shape->dims[0] : 0;
  mpg_array *slices = PyMem_Calloc((size_t)count + 1, sizeof *slices);
  if (slices == NULL) return PyErr_NoMemory();
  mpg_status status = mpg_loop_slices(whole, count, slices);
  PyObject *result = status == MPG_OK ? mpg_py_array_take_all(slices, count) : mpg_py_raise(status);
  mpg_array_clear_all(slices, (size_t)count);
  PyMem_Free(slices);
  return result;
}

static PyObject *loop_stack(PyObject *Py_UNUSED(module), PyObject *args) {
  PyObject *list, *result = NULL;
  long long limit;
  if (!PyArg_ParseTuple(args, "O!L:loop_stack", &PyTuple_Type, &list, &limit)) return NULL;
  Py_ssize_t count = PyTuple_GET_SIZE(list);
  if (count == 0 || count > limit)
    return PyErr_Format(PyExc_ValueError, "loop_stack: there must be 1 to %lld rows", limit);
  /* Takes new references, because another thread may replace the arrays' tensors while the GIL is
   * released. */
  mpg_array *rows = PyMem_Calloc((size_t)count, sizeof *rows), joined = {0};
  mpg_loop_joined space = {0};
  if (rows == NULL) return PyErr_NoMemory();
  for (Py_ssize_t i = 0; i < count; i++) {
    const mpg_array *row = mpg_py_expect_array(PyTuple_GET_ITEM(list, i), "loop_stack");
    if (row == NULL) goto done;
    mpg_array_copy(&rows[i], row);
  }
  mpg_loop_output output = {
      .desc = rows->tensor.desc, .device = mpg_array_device_id(rows), .numpy = rows->numpy};
  mpg_status status = mpg_loop_stack(rows, 1, count, &output, limit, &space, &joined);
  result = status == MPG_OK ? mpg_py_array_take(&joined) : mpg_py_raise(status);
done:
  mpg_array_clear_all(rows, (size_t)count);
  PyMem_Free(rows);
  mpg_free(space.joined);
  return result;
}

static PyMethodDef loop_methods[] = {
    {"loop_slices", loop_slices, METH_O,
     "loop_slices(array)\n--\n\nThe slices along the first axis, as a list. The slices of a 1-d "
     "array have shape (1,). While\nrecording, they are the results of one op, whose gradient is "
     "also one op."},
    {"loop_stack", loop_stack, METH_VARARGS,
     "loop_stack(rows, limit)\n--\n\nStacks a tuple of arrays along a new first axis, and pads it "
     "with zeros to `limit` rows."},
    {0}};

int mpg_py_routine_init(PyObject *module) {
  if (PyModule_AddFunctions(module, loop_methods) < 0) return -1;
  mpg_py->routine_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &routine_spec, NULL);
  if (mpg_py->routine_type == NULL) return -1;
  return PyModule_AddObjectRef(module, "Routine", (PyObject *)mpg_py->routine_type);
}
