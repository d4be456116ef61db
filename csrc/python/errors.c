/* Python exceptions of the core's statuses. All derive from MXNetError. Exceptions with a matching
 * built-in class also derive from that class. */
#include "python/core.h"

mpg_py_state *mpg_py; /* runtime state, used by all files of this layer */

static const struct {
  mpg_status status;
  const char *name, *doc;
  PyObject **builtin;
} classes[] = {
    {MPG_VALUE_ERROR, "MXNetValueError", "A value is out of range.", &PyExc_ValueError},
    {MPG_TYPE_ERROR, "MXNetTypeError", "An argument has the wrong type.", &PyExc_TypeError},
    {MPG_INDEX_ERROR, "MXNetIndexError", "An index is out of bounds.", &PyExc_IndexError},
    {MPG_NOT_IMPLEMENTED, "NotSupportedError", "A part of a feature is not implemented.",
     &PyExc_NotImplementedError},
    {MPG_DEVICE_OUT_OF_MEMORY, "DeviceMemoryError",
     "A device's memory limit is reached, or the machine has no more memory.", &PyExc_MemoryError},
    {MPG_HOST_OUT_OF_MEMORY, "HostMemoryError", "The machine has no more memory.",
     &PyExc_MemoryError},
    {MPG_IO_ERROR, "MXNetIOError", "A file cannot be read or written, or is damaged.",
     &PyExc_OSError},
};

static PyObject *new_class(PyObject *module, const char *name, const char *doc, PyObject *bases) {
  char full[64];
  snprintf(full, sizeof full, "mpgluon.base.%s", name);
  PyObject *error = PyErr_NewExceptionWithDoc(full, doc, bases, NULL);
  if (error == NULL || PyModule_AddObjectRef(module, name, error) < 0) {
    Py_XDECREF(error);
    return NULL;
  }
  return error;
}

static PyObject *new_value_error(PyObject *module, const char *name, const char *doc,
                                 PyObject *builtin) {
  PyObject *bases = PyTuple_Pack(2, mpg_py->errors[MPG_VALUE_ERROR], builtin);
  PyObject *error = bases ? new_class(module, name, doc, bases) : NULL;
  Py_XDECREF(bases);
  return error;
}

int mpg_py_errors_init(PyObject *module) {
  PyObject *base = new_class(module, "MXNetError", "The base class of all errors of mpgluon.",
                             PyExc_RuntimeError);
  if (base == NULL) return -1;
  for (int i = 0; i < MPG_STATUS_COUNT; i++) mpg_py->errors[i] = Py_NewRef(base);
  Py_DECREF(base);
  for (size_t i = 0; i < sizeof classes / sizeof classes[0]; i++) {
    PyObject *bases = PyTuple_Pack(2, base, *classes[i].builtin);
    if (bases == NULL) return -1;
    PyObject *error = new_class(module, classes[i].name, classes[i].doc, bases);
    Py_DECREF(bases);
    if (error == NULL) return -1;
    Py_SETREF(mpg_py->errors[classes[i].status], error);
  }
  /* Value errors that also derive from AssertionError or KeyError, which MXNet programs catch. */
  mpg_py->assertion_error = new_value_error(
      module, "MXNetAssertionError", "A value is invalid where MXNet has an assert statement.",
      PyExc_AssertionError);
  Py_SETREF(mpg_py->errors[MPG_KEY_ERROR],
            new_value_error(module, "MXNetKeyError", "A name is unknown.", PyExc_KeyError));
  if (mpg_py->assertion_error == NULL || mpg_py->errors[MPG_KEY_ERROR] == NULL) return -1;
  /* KeyError prints its message in quotes, so this class uses Exception.__str__ instead. */
  PyObject *text = PyObject_GetAttrString(PyExc_Exception, "__str__");
  int result = text ? PyObject_SetAttrString(mpg_py->errors[MPG_KEY_ERROR], "__str__", text) : -1;
  Py_XDECREF(text);
  return result;
}

PyObject *mpg_py_raise(mpg_status status) {
  MPG_ASSERT(status > MPG_OK && status < MPG_STATUS_COUNT);
  if (status == MPG_INTERRUPTED || status == MPG_HOST_EXCEPTION) {
    /* Keeps the pending Python exception, which stopped the core. If none is pending, Ctrl-C
     * interrupted the call. */
    if (!PyErr_Occurred()) {
      if (status == MPG_INTERRUPTED)
        PyErr_SetNone(PyExc_KeyboardInterrupt);
      else
        PyErr_SetString(mpg_py->errors[MPG_ERROR], mpg_error_text());
    }
    return NULL;
  }
  PyObject *text =
      PyUnicode_DecodeUTF8(mpg_error_text(), (Py_ssize_t)strlen(mpg_error_text()), "replace");
  if (text != NULL) {
    PyErr_SetObject(mpg_py->errors[status], text);
    Py_DECREF(text);
  }
  return NULL;
}

mpg_status mpg_py_host_exception(void) {
  PyObject *type, *value, *traceback;
  PyErr_Fetch(&type, &value, &traceback);
  PyErr_NormalizeException(&type, &value, &traceback);
  PyObject *text = value ? PyObject_Str(value) : NULL;
  if (text == NULL) PyErr_Clear();
  const char *words = text ? PyUnicode_AsUTF8(text) : NULL;
  if (words == NULL) PyErr_Clear();
  mpg_fail(MPG_HOST_EXCEPTION, "%s: %s", type ? ((PyTypeObject *)type)->tp_name : "exception",
           words ? words : "");
  Py_XDECREF(text);
  PyErr_Restore(type, value, traceback);
  return MPG_HOST_EXCEPTION;
}
