/* Interface to sparse arrays (mpgluon/ndarray/_sparse/arrays.py). A Python function of the package
 * runs the ops that receive a sparse array. Assignments use the array's dense values.
 */
#include "python/core.h"

bool mpg_py_takes_sparse(PyObject *const *args, Py_ssize_t count) {
  for (Py_ssize_t i = 0; i < count; i++) {
    if (mpg_py_is_handled(args[i])) return true;
    if (!PyList_CheckExact(args[i]) && !PyTuple_CheckExact(args[i])) continue;
    PyObject **items = PySequence_Fast_ITEMS(args[i]);
    for (Py_ssize_t k = 0; k < PySequence_Fast_GET_SIZE(args[i]); k++)
      if (mpg_py_is_handled(items[k])) return true;
  }
  return false;
}

PyObject *mpg_py_sparse_call(PyObject *op, PyObject *const *args, Py_ssize_t count,
                             PyObject *keywords) {
  Py_ssize_t named = keywords ? PyTuple_GET_SIZE(keywords) : 0;
  PyObject *positional = PyTuple_New(count), *by_name = PyDict_New(), *result = NULL;
  if (positional == NULL || by_name == NULL) goto done;
  for (Py_ssize_t i = 0; i < count; i++) PyTuple_SET_ITEM(positional, i, Py_NewRef(args[i]));
  for (Py_ssize_t i = 0; i < named; i++)
    if (PyDict_SetItem(by_name, PyTuple_GET_ITEM(keywords, i), args[count + i]) < 0) goto done;
  result = PyObject_CallFunctionObjArgs(mpg_py->sparse_call, op, positional, by_name, NULL);
done:
  Py_XDECREF(positional);
  Py_XDECREF(by_name);
  return result;
}

PyObject *mpg_py_dense(PyObject *object) {
  if (!mpg_py_is_handled(object)) return Py_NewRef(object);
  return PyObject_CallMethod(object, "tostype", "s", "default");
}

PyObject *mpg_py_sparse_gradient(PyObject *array) {
  if (mpg_py->sparse_gradients == NULL || !PyDict_GET_SIZE(mpg_py->sparse_gradients)) return NULL;
  PyObject *key = PyLong_FromVoidPtr(array);
  PyObject *found = key ? PyDict_GetItemWithError(mpg_py->sparse_gradients, key) : NULL;
  Py_XDECREF(key);
  return Py_XNewRef(found);
}

int mpg_py_forget_sparse_gradient(PyObject *array) {
  PyObject *found = mpg_py_sparse_gradient(array), *key = NULL;
  if (found == NULL) return PyErr_Occurred() ? -1 : 0;
  Py_DECREF(found);
  key = PyLong_FromVoidPtr(array);
  int result = key ? PyDict_DelItem(mpg_py->sparse_gradients, key) : -1;
  Py_XDECREF(key);
  return result;
}

PyObject *mpg_py_attach_sparse(PyObject *array, const char *request, PyObject *stype) {
  PyObject *module = PyImport_ImportModule("mpgluon.ndarray._sparse.variables"), *result = NULL;
  if (module != NULL)
    result = PyObject_CallMethod(module, "attach_to_dense", "OsO", array, request, stype);
  Py_XDECREF(module);
  return result;
}

static PyObject *share(PyObject *Py_UNUSED(module), PyObject *args) {
  PyObject *target, *source;
  if (!PyArg_ParseTuple(args, "O!O!:share", mpg_py->weight_type, &target, mpg_py->array_type,
                        &source))
    return NULL;
  mpg_array *array = mpg_py_array_of(target);
  mpg_array_clear(array);
  mpg_array_copy(array, mpg_py_array_of(source));
  Py_RETURN_NONE;
}

static PyObject *alias(PyObject *Py_UNUSED(module), PyObject *source) {
  const mpg_array *array = mpg_py_expect_array(source, "alias");
  PyObject *result = array ? mpg_py_array_new(array->numpy) : NULL;
  if (result != NULL) mpg_array_copy(mpg_py_array_of(result), array);
  return result;
}

static PyObject *set_sparse(PyObject *Py_UNUSED(module), PyObject *args) {
  PyObject *sparse, *weight, *call, *gradients;
  if (!PyArg_ParseTuple(args, "O!O!OO!:set_sparse", &PyType_Type, &sparse, &PyType_Type, &weight,
                        &call, &PyDict_Type, &gradients))
    return NULL;
  Py_XSETREF(mpg_py->sparse_gradients, Py_NewRef(gradients));
  Py_XSETREF(mpg_py->sparse_type, (PyTypeObject *)Py_NewRef(sparse));
  Py_XSETREF(mpg_py->weight_type, (PyTypeObject *)Py_NewRef(weight));
  Py_XSETREF(mpg_py->sparse_call, Py_NewRef(call));
  Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"alias", alias, METH_O,
     "alias(array)\n--\n\nAnother NDArray object for the same array, with the same position on the "
     "tape."},
    {"share", share, METH_VARARGS,
     "share(weight, array)\n--\n\nMakes `weight`, a new weight with a sparse gradient, share the "
     "memory of `array`."},
    {"set_sparse", set_sparse, METH_VARARGS,
     "set_sparse(sparse, weight, call, gradients)\n--\n\nSets the class of sparse arrays, the "
     "class of weights with sparse gradients, the function ``call(op, args, kwargs)`` that runs "
     "ops on them, and a dict from the ids of dense arrays to their sparse gradients."},
    {0}};

int mpg_py_sparse_init(PyObject *module) { return PyModule_AddFunctions(module, methods); }
