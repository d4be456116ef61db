/* _core.MultiUpdate: an update op on many weights of one device, prepared once (op/multi_update.h).
 */
#include "op/multi_update.h"
#include "python/core.h"

typedef struct multi_update {
  PyObject_HEAD vectorcallfunc call;
  PyObject *arrays;         /* tuple of NDArrays; owned */
  mpg_multi_update *update; /* owned */
  const mpg_op *op;
  uint64_t changes; /* value of mpg_array_changes() when the arrays were last checked */
  _Alignas(16) char defaults[MPG_PY_MAX_PARAMS];
} multi_update;

/* True if the prepared update can run: the arrays still have the memory it was prepared for, and no
 * trace is active. */
static bool ready(multi_update *self) {
  if (mpg_trace_active() != NULL) return false;
  if (self->changes == mpg_array_changes()) return true;
  uint32_t count;
  const mpg_tensor *known = mpg_multi_update_arrays(self->update, &count);
  for (uint32_t i = 0; i < count; i++) {
    const mpg_tensor *now = &mpg_py_array_of(PyTuple_GET_ITEM(self->arrays, i))->tensor;
    if (now->storage != known[i].storage || now->offset != known[i].offset) return false;
  }
  self->changes = mpg_array_changes();
  return true;
}

static PyObject *update_call(PyObject *object, PyObject *const *args, size_t flags,
                             PyObject *keywords) {
  multi_update *self = (multi_update *)object;
  const mpg_param_table *table = self->op->params;
  _Alignas(16) char params[MPG_PY_MAX_PARAMS];
  double numbers[3];
  Py_ssize_t count = PyVectorcall_NARGS(flags);
  if (count < 3 || count > 4 || keywords != NULL || (count == 4 && !PyDict_Check(args[3])))
    return PyErr_Format(PyExc_TypeError,
                        "MultiUpdate takes lr, correction and wd, and a dict of options");
  for (int i = 0; i < 3; i++) {
    numbers[i] = PyFloat_AsDouble(args[i]);
    if (numbers[i] == -1 && PyErr_Occurred()) return NULL;
  }
  memcpy(params, self->defaults, table->size);
  PyObject *key, *value;
  for (Py_ssize_t position = 0; count == 4 && PyDict_Next(args[3], &position, &key, &value);) {
    const char *name = PyUnicode_AsUTF8(key);
    int index = name != NULL ? mpg_params_find(table, name) : -1;
    if (index < 0)
      return name == NULL ? NULL
                          : PyErr_Format(mpg_py->errors[MPG_TYPE_ERROR], "%s has no parameter '%s'",
                                         self->op->name, name);
    Py_INCREF(value); /* the conversion may run Python code that removes the value from the dict */
    int status = mpg_py_param_set(table, self->op->name, params, index, value);
    Py_DECREF(value);
    if (status < 0) return NULL;
  }
  if (!ready(self))
    return PyErr_Format(
        mpg_py->errors[MPG_ERROR],
        "%s: the memory of the prepared arrays has changed, or a block is being traced",
        self->op->name);
  MPG_PY_TRY(mpg_multi_update_call(self->update, params, numbers[0], numbers[1], numbers[2],
                                   mpg_autograd_scope()));
  Py_RETURN_NONE;
}

static PyObject *update_ready(PyObject *self, PyObject *Py_UNUSED(unused)) {
  return PyBool_FromLong(ready((multi_update *)self));
}

/* --- Creation --------------------------------------------------------------------------------- */

/* Returns the arrays' tensors without retaining them. The caller frees the result with
 * PyMem_Free. */
static mpg_tensor *tensors_of(PyObject *arrays) {
  Py_ssize_t count = PyTuple_GET_SIZE(arrays);
  mpg_tensor *tensors = PyMem_Malloc((size_t)(count + 1) * sizeof *tensors);
  if (tensors == NULL) return (mpg_tensor *)PyErr_NoMemory();
  for (Py_ssize_t i = 0; i < count; i++) {
    mpg_array *array = mpg_py_expect_array(PyTuple_GET_ITEM(arrays, i), "MultiUpdate");
    if (array == NULL || mpg_py_expect_value(array, "MultiUpdate") < 0) {
      PyMem_Free(tensors);
      return NULL;
    }
    tensors[i] = array->tensor;
  }
  return tensors;
}

static double *numbers_of(PyObject *list, Py_ssize_t expected) {
  PyObject *items = mpg_py_items(list, "MultiUpdate: the factors must be a list of numbers");
  if (items == NULL) return NULL;
  double *numbers = NULL;
  if (PyTuple_GET_SIZE(items) != expected)
    PyErr_Format(mpg_py->errors[MPG_VALUE_ERROR],
                 "MultiUpdate: got %zd factors, expected %zd, two for each weight",
                 PyTuple_GET_SIZE(items), expected);
  else if ((numbers = PyMem_Malloc((size_t)(expected + 1) * sizeof *numbers)) == NULL)
    PyErr_NoMemory();
  for (Py_ssize_t i = 0; numbers != NULL && i < expected; i++) {
    numbers[i] = PyFloat_AsDouble(PyTuple_GET_ITEM(items, i));
    if (numbers[i] == -1 && PyErr_Occurred()) {
      PyMem_Free(numbers);
      numbers = NULL;
    }
  }
  Py_DECREF(items);
  return numbers;
}

static int prepare(multi_update *self, Py_ssize_t per_weight, PyObject *list) {
  Py_ssize_t count = PyTuple_GET_SIZE(self->arrays);
  if (per_weight < 1 || count == 0 || count > INT32_MAX || count % per_weight) {
    PyErr_Format(mpg_py->errors[MPG_VALUE_ERROR],
                 "MultiUpdate: %zd arrays cannot be divided into %zd for each weight", count,
                 per_weight);
    return -1;
  }
  /* Converts the numbers before reading the arrays, because the conversion may run Python code that
   * changes the arrays. */
  double *factors = numbers_of(list, 2 * (count / per_weight));
  mpg_tensor *tensors = factors != NULL ? tensors_of(self->arrays) : NULL;
  int result = -1;
  if (tensors != NULL) {
    mpg_status status = mpg_multi_update_make(self->op, tensors, (uint32_t)(count / per_weight),
                                              (uint32_t)per_weight, factors, &self->update);
    if (status == MPG_OK)
      result = 0;
    else
      mpg_py_raise(status);
  }
  PyMem_Free(tensors);
  PyMem_Free(factors);
  if (result < 0) return -1;
  for (Py_ssize_t i = 0; i < count; i++)
    mpg_py_array_of(PyTuple_GET_ITEM(self->arrays, i))->bound = true;
  self->changes = mpg_array_changes();
  return 0;
}

static PyObject *update_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
  static char *names[] = {"op", "arrays", "per_weight", "factors", NULL};
  const char *name;
  PyObject *arrays, *factors;
  Py_ssize_t per_weight;
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "sOnO:MultiUpdate", names, &name, &arrays,
                                   &per_weight, &factors))
    return NULL;
  const mpg_op *op = mpg_op_find(name);
  if (op == NULL || op->params->size > MPG_PY_MAX_PARAMS)
    return PyErr_Format(mpg_py->errors[MPG_VALUE_ERROR], "MultiUpdate: unknown update op '%s'",
                        name);
  multi_update *self = (multi_update *)type->tp_alloc(type, 0);
  if (self == NULL) return NULL;
  self->call = update_call;
  self->op = op;
  if (op->params->size > 0) mpg_params_defaults(op->params, self->defaults);
  self->arrays = PySequence_Tuple(arrays);
  if (self->arrays == NULL || prepare(self, per_weight, factors) < 0) {
    Py_DECREF(self);
    return NULL;
  }
  return (PyObject *)self;
}

static int update_traverse(PyObject *object, visitproc visit, void *arg) {
  Py_VISIT(Py_TYPE(object));
  Py_VISIT(((multi_update *)object)->arrays);
  return 0;
}

static void update_dealloc(PyObject *object) {
  multi_update *self = (multi_update *)object;
  PyTypeObject *type = Py_TYPE(object);
  PyObject_GC_UnTrack(object);
  mpg_multi_update_release(self->update);
  Py_CLEAR(self->arrays);
  type->tp_free(object);
  Py_DECREF(type);
}

static PyMethodDef update_methods[] = {
    {"ready", update_ready, METH_NOARGS,
     "ready()\n--\n\nWhether the arrays still have the memory that they had when this update was "
     "prepared, and no trace\nis active."},
    {0}};
static PyMemberDef update_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(multi_update, call), READONLY, NULL}, {0}};
static PyType_Slot update_slots[] = {
    {Py_tp_new, update_new},
    {Py_tp_dealloc, update_dealloc},
    {Py_tp_traverse, update_traverse},
    {Py_tp_call, PyVectorcall_Call},
    {Py_tp_members, update_members},
    {Py_tp_methods, update_methods},
    {Py_tp_doc,
     "MultiUpdate(op, arrays, per_weight, factors)\n--\n\nAn update op for several weights, such "
     "as 'multi_sgd_update', prepared for any number of weights of one device.\n\narrays: for each "
     "weight the weight, its gradient and its states, `per_weight` in all; factors: for each "
     "weight the factors of learning rate and weight decay. Calling the\nobject as (lr, "
     "correction, wd, options={}) updates the weights with rates lr * factor * correction and "
     "decays wd * factor.\n\nRaises MXNetError if arrays do not match, are on several devices, or "
     "share memory, and if it is\ncalled though not `ready`."},
    {0, NULL}};
static PyType_Spec update_spec = {
    .name = "mpgluon._core.MultiUpdate",
    .basicsize = sizeof(multi_update),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .slots = update_slots,
};

/* --- Checks before a step --------------------------------------------------------------------- */

static PyObject *holds(PyObject *Py_UNUSED(module), PyObject *args) {
  PyObject *dict, *keys, *values;
  if (!PyArg_ParseTuple(args, "O!O!O!:holds", &PyDict_Type, &dict, &PyList_Type, &keys,
                        &PyList_Type, &values))
    return NULL;
  if (PyList_GET_SIZE(keys) != PyList_GET_SIZE(values))
    return PyErr_Format(PyExc_ValueError, "holds: got %zd keys but %zd values",
                        PyList_GET_SIZE(keys), PyList_GET_SIZE(values));
  /* Comparing keys may run any code, so the sizes are read in each iteration. */
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(keys) && i < PyList_GET_SIZE(values); i++) {
    PyObject *key = Py_NewRef(PyList_GET_ITEM(keys, i));
    PyObject *item = PyDict_GetItemWithError(dict, key);
    Py_DECREF(key);
    if (item == NULL && PyErr_Occurred()) return NULL;
    if (item == NULL || i >= PyList_GET_SIZE(values) || item != PyList_GET_ITEM(values, i))
      Py_RETURN_FALSE;
  }
  Py_RETURN_TRUE;
}

/* Returns a list with number(storage) for the storage of each array in a list. */
static PyObject *storage_numbers(PyObject *arrays, const char *name,
                                 unsigned long long (*number)(const mpg_storage *)) {
  if (!PyList_Check(arrays))
    return PyErr_Format(PyExc_TypeError, "%s: expected a list of arrays, not %s", name,
                        Py_TYPE(arrays)->tp_name);
  PyObject *numbers = PyList_New(0);
  for (Py_ssize_t i = 0; numbers != NULL && i < PyList_GET_SIZE(arrays); i++) {
    const mpg_array *array = mpg_py_expect_array(PyList_GET_ITEM(arrays, i), name);
    PyObject *one = array != NULL && mpg_py_expect_value(array, name) == 0
                        ? PyLong_FromUnsignedLongLong(number(array->tensor.storage))
                        : NULL;
    if (one == NULL || PyList_Append(numbers, one) < 0) Py_CLEAR(numbers);
    Py_XDECREF(one);
  }
  return numbers;
}

static unsigned long long version_of(const mpg_storage *storage) { return storage->version; }
static PyObject *versions(PyObject *Py_UNUSED(module), PyObject *arrays) {
  return storage_numbers(arrays, "versions", version_of);
}

static unsigned long long write_of(const mpg_storage *storage) { return storage->block.uses.write; }
static PyObject *write_ticks(PyObject *Py_UNUSED(module), PyObject *arrays) {
  return storage_numbers(arrays, "write_ticks", write_of);
}

static unsigned long long exposure_of(const mpg_storage *storage) { return storage->exposed; }
static PyObject *exposed(PyObject *Py_UNUSED(module), PyObject *arrays) {
  return storage_numbers(arrays, "exposed", exposure_of);
}

static PyMethodDef methods[] = {
    {"holds", holds, METH_VARARGS,
     "holds(dict, keys, values)\n--\n\nWhether the dict maps each key to the same object as in "
     "`values`. keys, values: lists."},
    {"versions", versions, METH_O,
     "versions(arrays)\n--\n\nThe number of writes to the memory of each array in a list. If a "
     "number has not changed, nothing was\nwritten."},
    {"write_ticks", write_ticks, METH_O,
     "write_ticks(arrays)\n--\n\nThe tick of the latest write to each array in a list. Among "
     "arrays of one device, it orders the writes."},
    {"exposed", exposed, METH_O,
     "exposed(arrays)\n--\n\nFor each array in a list, 1 if other libraries may write to its "
     "memory unnoticed (DLPack), or 0."},
    {0}};

int mpg_py_update_init(PyObject *module) {
  PyObject *type = PyType_FromModuleAndSpec(module, &update_spec, NULL);
  int result = type != NULL ? PyModule_AddObjectRef(module, "MultiUpdate", type) : -1;
  Py_XDECREF(type);
  return result < 0 ? -1 : PyModule_AddFunctions(module, methods);
}
