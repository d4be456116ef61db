/* _core.Scope: a context manager that changes state on entry and restores it on exit.
 *
 * Ctrl-C can interrupt Python code between any two instructions, so an `__exit__` or `finally` in
 * Python may fail to restore state. Here, one C call makes all changes, and another C call undoes
 * them. A scope is therefore entered completely or not at all, and every scope that was entered is
 * exited. `at_once` makes permanent changes in a single call. */
#include "python/core.h"

typedef struct scope {
  PyObject_HEAD PyObject *changes; /* owned: the constructor's arguments as a tuple */
  /* Owned: a stack (list) with one item per active `__enter__`. An item is the list of changes that
   * undo this `__enter__`, or None while it is running. */
  PyObject *entered;
} scope;

static PyObject *former_item(PyObject *change) {
  PyObject *dict = PyTuple_GET_ITEM(change, 0), *key = PyTuple_GET_ITEM(change, 1);
  PyObject *former = PyDict_GetItemWithError(dict, key); /* borrowed */
  if (former == NULL && PyErr_Occurred()) return NULL;
  return former != NULL ? PyTuple_Pack(3, dict, key, former) : PyTuple_Pack(2, dict, key);
}

static bool is_item(PyObject *change) {
  return PyTuple_CheckExact(change) && (PyTuple_GET_SIZE(change) | 1) == 3 &&
         PyDict_Check(PyTuple_GET_ITEM(change, 0));
}
static bool is_setting(PyObject *change) {
  return PyTuple_CheckExact(change) && PyTuple_GET_SIZE(change) == 2 &&
         PyCFunction_Check(PyTuple_GET_ITEM(change, 0));
}

/* Makes one change and sets *undo to the change that undoes it. All steps that can fail come before
 * the state changes. */
static int apply(PyObject *change, PyObject **undo) {
  *undo = NULL;
  if (is_item(change) && PyTuple_GET_SIZE(change) == 3) {
    if ((*undo = former_item(change)) == NULL) return -1;
    return PyDict_SetItem(PyTuple_GET_ITEM(change, 0), PyTuple_GET_ITEM(change, 1),
                          PyTuple_GET_ITEM(change, 2));
  }
  if (is_item(change)) { /* (dict, key) deletes the item on exit */
    *undo = Py_NewRef(change);
    return 0;
  }
  if (is_setting(change)) {
    if ((*undo = PyTuple_New(2)) == NULL) return -1;
    PyTuple_SET_ITEM(*undo, 0, Py_NewRef(PyTuple_GET_ITEM(change, 0)));
    PyObject *former =
        PyObject_CallOneArg(PyTuple_GET_ITEM(change, 0), PyTuple_GET_ITEM(change, 1));
    if (former == NULL) return -1;
    PyTuple_SET_ITEM(*undo, 1, former);
    return 0;
  }
  PyObject *result = PyObject_CallMethod(change, "__enter__", NULL);
  if (result == NULL) return -1;
  Py_DECREF(result);
  *undo = Py_NewRef(change);
  return 0;
}

static int revert(PyObject *undo) {
  if (is_item(undo)) {
    PyObject *dict = PyTuple_GET_ITEM(undo, 0), *key = PyTuple_GET_ITEM(undo, 1);
    if (PyTuple_GET_SIZE(undo) == 3) return PyDict_SetItem(dict, key, PyTuple_GET_ITEM(undo, 2));
    int found = PyDict_Contains(dict, key);
    return found > 0 ? PyDict_DelItem(dict, key) : found;
  }
  PyObject *result = is_setting(undo)
                         ? PyObject_CallOneArg(PyTuple_GET_ITEM(undo, 0), PyTuple_GET_ITEM(undo, 1))
                         : PyObject_CallMethod(undo, "__exit__", "OOO", Py_None, Py_None, Py_None);
  Py_XDECREF(result);
  return result != NULL ? 0 : -1;
}

/* Undoes all changes in reverse order, even if some fail. Keeps a pending exception. If none is
 * pending, raises the exception of the first failure. */
static int revert_all(PyObject *undos) {
  PyObject *type, *value, *traceback;
  PyErr_Fetch(&type, &value, &traceback);
  for (Py_ssize_t i = PyList_GET_SIZE(undos); i-- > 0;) {
    if (revert(PyList_GET_ITEM(undos, i)) == 0) continue;
    if (type == NULL)
      PyErr_Fetch(&type, &value, &traceback);
    else
      PyErr_Clear();
  }
  if (type == NULL) return 0;
  PyErr_Restore(type, value, traceback);
  return -1;
}

/* Makes the changes and returns a new list of changes that undo them. On failure, reverts the
 * changes made so far and returns NULL. */
static PyObject *apply_all(PyObject *changes) {
  Py_ssize_t count = PyTuple_GET_SIZE(changes);
  PyObject *undos = PyList_New(count);
  if (undos == NULL) return NULL;
  for (Py_ssize_t i = 0; i < count; i++) {
    PyObject *undo;
    if (apply(PyTuple_GET_ITEM(changes, i), &undo) == 0) {
      PyList_SET_ITEM(undos, i, undo);
      continue;
    }
    Py_XDECREF(undo);
    Py_SET_SIZE((PyVarObject *)undos, i);
    revert_all(undos);
    Py_DECREF(undos);
    return NULL;
  }
  return undos;
}

static PyObject *changes_of(PyObject *object) {
  scope *self = (scope *)object;
  if (Py_TYPE(object) == mpg_py->change_type) return Py_NewRef(self->changes);
  PyObject *found = PyObject_CallMethod(object, "_changes", NULL);
  PyObject *changes = found != NULL ? PySequence_Tuple(found) : NULL;
  Py_XDECREF(found);
  return changes;
}

static PyObject *scope_enter(PyObject *object, PyObject *Py_UNUSED(unused)) {
  scope *self = (scope *)object;
  PyObject *changes = changes_of(object);
  if (changes == NULL) return NULL;
  if (self->entered == NULL) self->entered = PyList_New(0);
  if (self->entered == NULL || PyList_Append(self->entered, Py_None) < 0) {
    Py_DECREF(changes);
    return NULL;
  }
  Py_ssize_t place = PyList_GET_SIZE(self->entered) - 1;
  PyObject *undos = apply_all(changes);
  Py_DECREF(changes);
  if (undos == NULL) {
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    PyList_SetSlice(self->entered, place, place + 1, NULL);
    PyErr_Restore(type, value, traceback);
    return NULL;
  }
  PyList_SetItem(self->entered, place, undos);
  return Py_NewRef(object);
}

static PyObject *scope_exit(PyObject *object, PyObject *const *Py_UNUSED(args),
                            Py_ssize_t Py_UNUSED(count)) {
  scope *self = (scope *)object;
  Py_ssize_t last = self->entered != NULL ? PyList_GET_SIZE(self->entered) - 1 : -1;
  if (last < 0) {
    PyErr_SetString(PyExc_RuntimeError, "a scope that was not entered cannot be left");
    return NULL;
  }
  PyObject *undos = Py_NewRef(PyList_GET_ITEM(self->entered, last));
  int status = revert_all(undos);
  if (status == 0) status = PyList_SetSlice(self->entered, last, last + 1, NULL);
  Py_DECREF(undos);
  if (status < 0) return NULL;
  Py_RETURN_NONE;
}

static PyObject *scope_run(PyObject *object, PyObject *const *args, Py_ssize_t count,
                           PyObject *keywords) {
  if (count < 1) {
    PyErr_SetString(PyExc_TypeError, "run() takes a function and its arguments");
    return NULL;
  }
  PyObject *entered = scope_enter(object, NULL);
  if (entered == NULL) return NULL;
  PyObject *result = PyObject_Vectorcall(args[0], args + 1, (size_t)(count - 1), keywords);
  PyObject *type, *value, *traceback;
  PyErr_Fetch(&type, &value, &traceback);
  PyObject *left = scope_exit(object, NULL, 0);
  Py_DECREF(entered);
  if (type != NULL) { /* the function's exception takes priority */
    if (left == NULL) PyErr_Clear();
    PyErr_Restore(type, value, traceback);
  } else if (left == NULL) {
    Py_CLEAR(result);
  }
  Py_XDECREF(left);
  return result;
}

static PyObject *scope_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
  if (type == mpg_py->change_type && kwargs != NULL && PyDict_GET_SIZE(kwargs) > 0) {
    PyErr_SetString(PyExc_TypeError, "Scope() takes only positional changes");
    return NULL;
  }
  scope *self = (scope *)type->tp_alloc(type, 0);
  if (self == NULL) return NULL;
  self->changes = Py_NewRef(args);
  self->entered = NULL;
  for (Py_ssize_t i = 0; type == mpg_py->change_type && i < PyTuple_GET_SIZE(args); i++) {
    PyObject *change = PyTuple_GET_ITEM(args, i);
    if (is_item(change) || is_setting(change) || !PyTuple_Check(change)) continue;
    PyErr_Format(PyExc_TypeError, "Scope(): %R is not a valid change", change);
    Py_DECREF(self);
    return NULL;
  }
  return (PyObject *)self;
}
static int scope_traverse(PyObject *object, visitproc visit, void *arg) {
  Py_VISIT(Py_TYPE(object));
  Py_VISIT(((scope *)object)->changes);
  Py_VISIT(((scope *)object)->entered);
  return 0;
}
static int scope_clear(PyObject *object) {
  Py_CLEAR(((scope *)object)->changes);
  Py_CLEAR(((scope *)object)->entered);
  return 0;
}
static void scope_dealloc(PyObject *object) {
  PyTypeObject *type = Py_TYPE(object);
  PyObject_GC_UnTrack(object);
  scope_clear(object);
  type->tp_free(object);
  Py_DECREF(type);
}

/* For pickling and copying an instance of a Python subclass: returns its attributes. The copy is a
 * scope that has not been entered. */
static PyObject *scope_getstate(PyObject *object, PyObject *Py_UNUSED(unused)) {
  if (Py_TYPE(object) == mpg_py->change_type)
    return PyErr_Format(PyExc_TypeError, "cannot pickle '%s' object", Py_TYPE(object)->tp_name);
  PyObject *attributes = PyObject_GetAttrString(object, "__dict__"),
           *copy = attributes != NULL ? PyDict_Copy(attributes) : NULL;
  Py_XDECREF(attributes);
  return copy;
}

/* --- Permanent changes ------------------------------------------------------------------------ */

/* True for a tuple (function, *args) that calls a function written in C. A Python function is not
 * allowed, because it could be interrupted halfway. */
static bool is_call(PyObject *change) {
  if (!PyTuple_CheckExact(change) || PyTuple_GET_SIZE(change) < 1) return false;
  PyObject *function = PyTuple_GET_ITEM(change, 0);
  return PyCallable_Check(function) && !PyFunction_Check(function) && !PyMethod_Check(function);
}

static PyObject *at_once(PyObject *Py_UNUSED(module), PyObject *const *changes, Py_ssize_t count) {
  for (Py_ssize_t i = 0; i < count; i++) /* checks all changes before making any of them */
    if (!is_call(changes[i]) && !(is_item(changes[i]) && PyTuple_GET_SIZE(changes[i]) == 3))
      return PyErr_Format(PyExc_TypeError, "at_once(): %R is not a valid change", changes[i]);
  for (Py_ssize_t i = 0; i < count; i++) {
    PyObject *change = changes[i];
    if (!is_call(change)) {
      if (PyDict_SetItem(PyTuple_GET_ITEM(change, 0), PyTuple_GET_ITEM(change, 1),
                         PyTuple_GET_ITEM(change, 2)) < 0)
        return NULL;
      continue;
    }
    PyObject *result =
        PyObject_Vectorcall(PyTuple_GET_ITEM(change, 0), &PyTuple_GET_ITEM(change, 1),
                            (size_t)(PyTuple_GET_SIZE(change) - 1), NULL);
    if (result == NULL) return NULL;
    Py_DECREF(result);
  }
  Py_RETURN_NONE;
}

static PyObject *set_attributes(PyObject *Py_UNUSED(module), PyObject *const *args,
                                Py_ssize_t count) {
  if (count % 2 == 0) {
    PyErr_SetString(PyExc_TypeError,
                    "set_attributes expects an object, and a name and a value for each attribute");
    return NULL;
  }
  for (Py_ssize_t i = 1; i < count; i += 2)
    if (PyObject_GenericSetAttr(args[0], args[i], args[i + 1]) < 0) return NULL;
  Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"set_attributes", (PyCFunction)(void (*)(void))set_attributes, METH_FASTCALL,
     "set_attributes(object, *names_and_values)\n--\n\nSets attributes, each given as a name and a "
     "value, in one call, as object.__setattr__ does: without the object's own __setattr__, and "
     "without requesting its\n__dict__, which would make later lookups of its methods slower."},
    {"at_once", (PyCFunction)(void (*)(void))at_once, METH_FASTCALL,
     "at_once(*changes)\n--\n\nMakes permanent changes atomically: an interrupt sees none of them, "
     "or all.\n\nA change is ``(dict, key, value)``, which sets an item (as of ``vars(object)``), "
     "or ``(function, *args)``, a call of a function written in C.\nA change that fails raises its "
     "error, and later ones are not made, so changes that may fail come first."},
    {0}};

static PyMethodDef scope_methods[] = {
    {"__getstate__", scope_getstate, METH_NOARGS, NULL},
    {"__enter__", scope_enter, METH_NOARGS, NULL},
    {"__exit__", (PyCFunction)(void (*)(void))scope_exit, METH_FASTCALL, NULL},
    {"run", (PyCFunction)(void (*)(void))scope_run, METH_FASTCALL | METH_KEYWORDS,
     "run(function, /, *args, **kwargs)\n--\n\n``function(*args, **kwargs)`` inside the scope."},
    {0}};
static PyType_Slot scope_slots[] = {
    {Py_tp_new, scope_new},
    {Py_tp_dealloc, scope_dealloc},
    {Py_tp_traverse, scope_traverse},
    {Py_tp_clear, scope_clear},
    {Py_tp_methods, scope_methods},
    {Py_tp_doc,
     "Scope(*changes)\n--\n\nA with-statement that changes state atomically: all of it or nothing, "
     "and an interrupt cannot leave it changed.\n\nA change is ``(dict, key, value)``, an item to "
     "set (as of ``vars(object)``, where ``object`` may be a threading.local);\n``(dict, key)``, "
     "an existing item that is removed at the end; ``(set, value)``, with a function of this "
     "module that sets a value and returns the previous one; or another scope.\nSubclasses define "
     "``_changes()``, which is called on each entry and returns a list of changes; it must not "
     "change anything itself."},
    {0, NULL}};
static PyType_Spec scope_spec = {"mpgluon._core.Scope", sizeof(scope), 0,
                                 Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
                                 scope_slots};

int mpg_py_scope_init(PyObject *module) {
  mpg_py->change_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &scope_spec, NULL);
  if (mpg_py->change_type == NULL ||
      PyModule_AddObjectRef(module, "Scope", (PyObject *)mpg_py->change_type) < 0)
    return -1;
  return PyModule_AddFunctions(module, methods);
}
