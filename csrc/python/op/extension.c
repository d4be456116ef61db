/* _core.load_library: ops of user-compiled libraries. */
#include "op/user/extension.h"

#include "python/core.h"

/* Checks that no op of the library has a name that mx.nd already uses. Returns -1 with an exception
 * set on failure. */
static int check_names(const mpg_extension_library *library, PyObject *taken, PyObject *path) {
  for (int i = 0; i < mpg_extension_count(library); i++) {
    PyObject *used = PyObject_CallFunction(taken, "s", mpg_extension_name(library, i));
    int truth = used ? PyObject_IsTrue(used) : -1;
    Py_XDECREF(used);
    if (truth > 0)
      PyErr_Format(mpg_py->errors[MPG_ERROR], "%U: mx.nd already has an attribute %s", path,
                   mpg_extension_name(library, i));
    if (truth) return -1;
  }
  return 0;
}

static PyObject *load_library(PyObject *Py_UNUSED(module), PyObject *args) {
  PyObject *path, *taken, *bytes;
  mpg_extension_library *library;
  if (!PyArg_ParseTuple(args, "UO:load_library", &path, &taken) ||
      !PyUnicode_FSConverter(path, &bytes))
    return NULL;
  mpg_status status = mpg_extension_open(PyBytes_AS_STRING(bytes), &library);
  Py_DECREF(bytes);
  MPG_PY_TRY(status);
  if (library == NULL) return PyList_New(0);
  if (check_names(library, taken, path) < 0) {
    mpg_extension_close(library);
    return NULL;
  }
  MPG_PY_TRY(mpg_extension_add(library));
  PyObject *list = PyList_New(0);
  for (int i = 0; list != NULL && i < mpg_extension_count(library); i++) {
    PyObject *op = mpg_py_op_add(mpg_op_find(mpg_extension_name(library, i)));
    if (op == NULL || PyList_Append(list, op) < 0) Py_CLEAR(list);
    Py_XDECREF(op);
  }
  return list;
}

PyMethodDef mpg_py_extension_methods[] = {
    {"load_library", load_library, METH_VARARGS,
     "load_library(path, taken)\n--\n\nLoads the ops of a library, registers them under their "
     "names, and returns them as a list. The list\nis empty if the library is already loaded. "
     "taken(name) returns whether a name is already used."},
    {0}};
