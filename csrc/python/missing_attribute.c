/* _core.MissingAttribute: placeholder for an attribute that a class lacks but users expect. Reading
 * the attribute raises an error that suggests an alternative.
 *
 * The placeholder is a class attribute (a descriptor). A __getattr__ method would instead disable
 * Python's attribute caches and slow down all existing attributes. An instance attribute of the
 * same name takes precedence over the placeholder.
 */
#include "python/core.h"

typedef struct missing_attribute {
  PyObject_HEAD PyObject *error, *name; /* error is NULL after garbage collection has cleared it */
} missing_attribute;

static PyObject *missing_attribute_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
  static char *names[] = {"error", "name", NULL};
  PyObject *error, *name;
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OU:MissingAttribute", names, &error, &name))
    return NULL;
  missing_attribute *self = (missing_attribute *)type->tp_alloc(type, 0);
  if (self == NULL) return NULL;
  self->error = Py_NewRef(error);
  self->name = Py_NewRef(name);
  return (PyObject *)self;
}

static PyObject *missing_attribute_get(PyObject *object, PyObject *instance, PyObject *owner) {
  missing_attribute *self = (missing_attribute *)object;
  if (self->error == NULL) return PyErr_Format(PyExc_AttributeError, "%U", self->name);
  PyObject *error = PyObject_CallFunctionObjArgs(self->error, instance != NULL ? instance : owner,
                                                 self->name, NULL);
  if (error == NULL) return NULL;
  if (PyExceptionInstance_Check(error))
    PyErr_SetObject((PyObject *)Py_TYPE(error), error);
  else
    PyErr_Format(PyExc_TypeError, "MissingAttribute: the function must return an error, not %R",
                 error);
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

static int missing_attribute_traverse(PyObject *object, visitproc visit, void *arg) {
  Py_VISIT(Py_TYPE(object));
  Py_VISIT(((missing_attribute *)object)->error);
  return 0;
}
static int missing_attribute_clear(PyObject *object) {
  Py_CLEAR(((missing_attribute *)object)->error);
  return 0;
}
static void missing_attribute_dealloc(PyObject *object) {
  PyTypeObject *type = Py_TYPE(object);
  PyObject_GC_UnTrack(object);
  missing_attribute_clear(object);
  Py_DECREF(((missing_attribute *)object)->name);
  type->tp_free(object);
  Py_DECREF(type);
}

static PyType_Slot missing_attribute_slots[] = {
    {Py_tp_new, missing_attribute_new},
    {Py_tp_dealloc, missing_attribute_dealloc},
    {Py_tp_traverse, missing_attribute_traverse},
    {Py_tp_clear, missing_attribute_clear},
    {Py_tp_descr_get, missing_attribute_get},
    {Py_tp_doc,
     "MissingAttribute(error, name)\n--\n\nA missing class attribute: reading it raises "
     "``error(object, name)``, where `object` is the class if it is read from the class."},
    {0, NULL}};
static PyType_Spec missing_attribute_spec = {
    "mpgluon._core.MissingAttribute", sizeof(missing_attribute), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE, missing_attribute_slots};

int mpg_py_missing_attribute_init(PyObject *module) {
  PyObject *type = PyType_FromModuleAndSpec(module, &missing_attribute_spec, NULL);
  int result = type != NULL ? PyModule_AddObjectRef(module, "MissingAttribute", type) : -1;
  Py_XDECREF(type);
  return result;
}
