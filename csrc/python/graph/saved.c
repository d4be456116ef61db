/* _core.SavedContents: preserves the current contents of arrays, so that a backward function in
 * Python can read them later. See tensor/contents.h. */
#include "tensor/contents.h"

#include "python/core.h"

typedef struct saved_array {
  mpg_saved contents;
  mpg_desc desc;
  bool numpy;
} saved_array;
typedef struct saved_contents {
  PyObject_VAR_HEAD saved_array arrays[1];
} saved_contents;

static PyObject *new_saved(PyTypeObject *type, PyObject *args, PyObject *keywords) {
  PyObject *list, *keep = NULL;
  if (keywords != NULL && PyDict_GET_SIZE(keywords)) {
    PyErr_SetString(PyExc_TypeError, "SavedContents: expected a list of arrays");
    return NULL;
  }
  if (!PyArg_ParseTuple(args, "O!:SavedContents", &PyList_Type, &list)) return NULL;
  int room = (int)PyList_GET_SIZE(list);
  mpg_array **arrays = PyMem_Calloc((size_t)room + 1, sizeof *arrays);
  if (arrays == NULL) return PyErr_NoMemory();
  int count = mpg_py_array_list(list, arrays, room, &keep, "SavedContents");
  saved_contents *self = count < 0 ? NULL : (saved_contents *)type->tp_alloc(type, count);
  for (int i = 0; self != NULL && i < count; i++) {
    if (mpg_array_traced(arrays[i])) {
      PyErr_SetString(PyExc_TypeError, "SavedContents: a traced array has no contents");
      Py_CLEAR(self);
      break;
    }
    const mpg_tensor *tensor = &arrays[i]->tensor;
    self->arrays[i] = (saved_array){mpg_contents_save(tensor->storage, tensor->offset),
                                    tensor->desc, arrays[i]->numpy};
  }
  Py_XDECREF(keep);
  PyMem_Free(arrays);
  return (PyObject *)self;
}

static void dealloc(PyObject *object) {
  saved_contents *self = (saved_contents *)object;
  PyTypeObject *type = Py_TYPE(object);
  for (Py_ssize_t i = 0; i < Py_SIZE(object); i++) mpg_contents_release(&self->arrays[i].contents);
  type->tp_free(object);
  Py_DECREF(type);
}

static PyObject *arrays(PyObject *object, PyObject *Py_UNUSED(unused)) {
  const saved_contents *self = (const saved_contents *)object;
  Py_ssize_t count = Py_SIZE(object);
  PyObject *list = NULL;
  mpg_array *found = PyMem_Calloc((size_t)count + 1, sizeof *found);
  if (found == NULL) return PyErr_NoMemory();
  for (Py_ssize_t i = 0; i < count; i++) {
    const mpg_saved *saved = &self->arrays[i].contents;
    bool no_memory = false;
    mpg_storage *storage = mpg_contents_find(saved->storage, saved->version, &no_memory);
    if (storage == NULL) {
      PyErr_Format(mpg_py->errors[MPG_ERROR],
                   "array %zd of those saved for backward has been overwritten, and its contents "
                   "are lost: %s",
                   i, mpg_contents_lost_text(no_memory));
      for (Py_ssize_t k = 0; k < i; k++) mpg_array_clear(&found[k]);
      goto done;
    }
    mpg_storage_retain(storage);
    found[i].tensor = (mpg_tensor){storage, saved->offset, self->arrays[i].desc};
    found[i].numpy = self->arrays[i].numpy;
  }
  list = mpg_py_array_take_all(found, count);
done:
  PyMem_Free(found);
  return list;
}

static PyMethodDef methods[] = {
    {"arrays", arrays, METH_NOARGS,
     "arrays()\n--\n\nNew arrays with the saved contents. They share memory with the saved arrays "
     "unless those have been\noverwritten."},
    {0}};
static PyType_Slot slots[] = {
    {Py_tp_new, new_saved},
    {Py_tp_dealloc, dealloc},
    {Py_tp_methods, methods},
    {Py_tp_doc,
     "SavedContents(arrays)\n--\n\nThe current contents of a list of arrays, preserved when the "
     "arrays are overwritten: a write copies the contents that are still needed."},
    {0, NULL}};
static PyType_Spec spec = {"mpgluon._core.SavedContents", offsetof(saved_contents, arrays),
                           sizeof(saved_array), Py_TPFLAGS_DEFAULT, slots};

int mpg_py_saved_init(PyObject *module) {
  PyObject *type = PyType_FromModuleAndSpec(module, &spec, NULL);
  if (type == NULL) return -1;
  int result = PyModule_AddObjectRef(module, "SavedContents", type);
  Py_DECREF(type);
  return result;
}
