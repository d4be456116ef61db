/* _core.Absent: placeholder for an attribute that a class lacks but users expect. Reading it raises
 * an error that suggests an alternative.
 *
 * A class attribute, because a __getattr__ method would disable Python's attribute caches and slow
 * down all existing attributes. An instance attribute of the same name takes precedence.
 */
#include "python/core.h"

typedef struct absent {
  PyObject_HEAD PyObject *error, *name; /* error is NULL after the collector has cleared it */
} absent;

static PyObject *absent_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
  static char *names[] = {"error", "name", NULL};
  PyObject *error, *name;
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OU:Absent", names, &error, &name)) return NULL;
  absent *self = (absent *)type->tp_alloc(type, 0);
  if (self == NULL) return NULL;
  self->error = Py_NewRef(error);
  self->name = Py_NewRef(name);
  return (PyObject *)self;
}

static PyObject *absent_get(PyObject *object, PyObject *instance, PyObject *owner) {
  absent *self = (absent *)object;
  if (self->error == NULL) return PyErr_Format(PyExc_AttributeError, "%U", self->name);
  PyObject *error = PyObject_CallFunctionObjArgs(self->error, instance != NULL ? instance : owner,
                                                 self->name, NULL);
  if (error == NULL) return NULL;
  if (PyExceptionInstance_Check(error))
    PyErr_SetObject((PyObject *)Py_TYPE(error), error);
  else
    PyErr_Format(PyExc_TypeError, "Absent: the function has to return an error, not %R", error);
  Py_DECREF(error);
  return NULL;
}

int mpg_py_set_attribute(PyObject *object, PyObject *name, PyObject *value) {
  if (PyObject_GenericSetAttr(object, name, value) == 0) return 0;
  if (!PyErr_ExceptionMatches(PyExc_AttributeError)) return -1;
  PyObject *type, *error, *traceback;
  PyErr_Fetch(&type, &error, &traceback);
  PyObject *found = PyObject_GetAttr(object, name);
  if (found != NULL) { /* the attribute exists and is read-only */
    Py_DECREF(found);
    PyErr_Restore(type, error, traceback);
    return -1;
  }
  Py_XDECREF(type);
  Py_XDECREF(error);
  Py_XDECREF(traceback);
  return -1;
}

static int absent_traverse(PyObject *object, visitproc visit, void *arg) {
  Py_VISIT(Py_TYPE(object));
  Py_VISIT(((absent *)object)->error);
  return 0;
}
static int absent_clear(PyObject *object) {
  Py_CLEAR(((absent *)object)->error);
  return 0;
}
static void absent_dealloc(PyObject *object) {
  PyTypeObject *type = Py_TYPE(object);
  PyObject_GC_UnTrack(object);
  absent_clear(object);
  Py_DECREF(((absent *)object)->name);
  type->tp_free(object);
  Py_DECREF(type);
}

static PyType_Slot absent_slots[] = {
    {Py_tp_new, absent_new},
    {Py_tp_dealloc, absent_dealloc},
    {Py_tp_traverse, absent_traverse},
    {Py_tp_clear, absent_clear},
    {Py_tp_descr_get, absent_get},
    {Py_tp_doc,
     "Absent(error, name)\n--\n\nA class attribute that is not there: reading it raises "
     "``error(object, name)``, where `object` is the class for a class's own."},
    {0, NULL}};
static PyType_Spec absent_spec = {
    "mpgluon._core.Absent", sizeof(absent), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE, absent_slots};

int mpg_py_absent_init(PyObject *module) {
  PyObject *type = PyType_FromModuleAndSpec(module, &absent_spec, NULL);
  int result = type != NULL ? PyModule_AddObjectRef(module, "Absent", type) : -1;
  Py_XDECREF(type);
  return result;
}
