/* Python functions for array files (csrc/io). */
#include "io/params_file.h"
#include "python/core.h"

/* Appends a sparse array to the list. mpgluon passes it as a tuple (storage type, shape, values,
 * indices...) with int64 indices. */
static int gather_sparse(PyObject *parts, const char *name, Py_ssize_t length,
                         mpg_tensor_list *list) {
  mpg_shape shape;
  mpg_tensor tensors[1 + MPG_MAX_INDICES];
  long type = PyTuple_GET_SIZE(parts) > 3 ? PyLong_AsLong(PyTuple_GET_ITEM(parts, 0)) : 0;
  if ((type != MPG_ROW_SPARSE && type != MPG_CSR) || PyTuple_GET_SIZE(parts) != 3 + type) {
    if (!PyErr_Occurred())
      PyErr_SetString(PyExc_ValueError, "save: a sparse array cannot be saved in parts");
    return -1;
  }
  if (mpg_py_shape_from(PyTuple_GET_ITEM(parts, 1), &shape, "save") < 0) return -1;
  for (int k = 0; k <= type; k++) {
    const mpg_array *array = mpg_py_expect_array(PyTuple_GET_ITEM(parts, 2 + k), "save");
    if (!array || mpg_py_expect_value(array, "save") < 0) return -1;
    tensors[k] = array->tensor;
  }
  MPG_PY_TRY_INT(mpg_tensor_list_add(list, name, (size_t)length, &tensors[0]));
  mpg_tensor_list_make_sparse(list, (mpg_storage_type)type, &shape, tensors + 1);
  return 0;
}

/* Fills `list` from a sequence of NDArrays and a sequence of names (None for no names). */
static int gather(PyObject *arrays, PyObject *names, mpg_tensor_list *list) {
  *list = (mpg_tensor_list){0};
  PyObject *array_items = mpg_py_items(arrays, "the arrays to save must be a list or tuple");
  if (!array_items) return -1;
  PyObject *name_items = NULL;
  Py_ssize_t count = PyTuple_GET_SIZE(array_items);
  if (names != Py_None) {
    name_items = mpg_py_items(names, "the names to save under must be a list or tuple");
    if (!name_items) goto fail;
    if (PyTuple_GET_SIZE(name_items) != count) {
      PyErr_Format(PyExc_ValueError, "got %zd names for %zd arrays; the numbers must be equal",
                   PyTuple_GET_SIZE(name_items), count);
      goto fail;
    }
  }
  for (Py_ssize_t i = 0; i < count; i++) {
    PyObject *object = PyTuple_GET_ITEM(array_items, i);
    bool sparse = PyTuple_Check(object);
    const mpg_array *array = sparse ? NULL : mpg_py_expect_array(object, "save");
    if (!sparse && (!array || mpg_py_expect_value(array, "save") < 0)) goto fail;
    const char *name = NULL;
    Py_ssize_t length = 0;
    if (name_items) {
      PyObject *item = PyTuple_GET_ITEM(name_items, i);
      if (!PyUnicode_Check(item)) {
        PyErr_Format(PyExc_TypeError, "save: names must be strings, got %.100s",
                     Py_TYPE(item)->tp_name);
        goto fail;
      }
      name = PyUnicode_AsUTF8AndSize(item, &length);
      if (!name) goto fail;
    }
    if (sparse) {
      if (gather_sparse(object, name, length, list) < 0) goto fail;
      continue;
    }
    list->numpy |= array->numpy;
    mpg_status status = mpg_tensor_list_add(list, name, (size_t)length, &array->tensor);
    if (status != MPG_OK) {
      mpg_py_raise(status);
      goto fail;
    }
  }
  Py_DECREF(array_items);
  Py_XDECREF(name_items);
  return 0;
fail:
  Py_DECREF(array_items);
  Py_XDECREF(name_items);
  mpg_tensor_list_free(list);
  return -1;
}

/* Moves a tensor into a new array of mx.np or mx.nd. */
static PyObject *array_of(mpg_tensor *tensor, bool numpy) {
  mpg_array array = {.tensor = *tensor, .numpy = numpy};
  tensor->storage = NULL;
  return mpg_py_array_take(&array);
}

/* Returns a sparse array's parts as the tuple that gather_sparse accepts. */
static PyObject *parts_of(mpg_named_tensor *item) {
  int count = mpg_num_indices(item->type);
  PyObject *parts = PyTuple_New(3 + count);
  if (!parts) return NULL;
  PyTuple_SET_ITEM(parts, 0, PyLong_FromLong(item->type));
  PyTuple_SET_ITEM(parts, 1, mpg_py_shape_tuple(&item->shape));
  PyTuple_SET_ITEM(parts, 2, array_of(&item->tensor, false));
  for (int k = 0; k < count; k++)
    PyTuple_SET_ITEM(parts, 3 + k, array_of(&item->indices[k], false));
  for (int k = 0; k < 3 + count; k++)
    if (!PyTuple_GET_ITEM(parts, k)) {
      Py_DECREF(parts);
      return NULL;
    }
  return parts;
}

/* Moves the contents of a list to a tuple (arrays, names or None). An array that has no data in the
 * file becomes None. */
static PyObject *scatter(mpg_source *source, mpg_tensor_list *list, bool numpy) {
  Py_ssize_t count = (Py_ssize_t)list->count;
  PyObject *arrays = PyList_New(count),
           *names = list->named ? PyList_New(count) : Py_NewRef(Py_None);
  if (!arrays || !names) goto fail;
  for (Py_ssize_t i = 0; i < count; i++) {
    mpg_named_tensor *item = &list->items[i];
    PyObject *value;
    if (item->tensor.storage) {
      value = item->type == MPG_DENSE ? array_of(&item->tensor, numpy) : parts_of(item);
    } else {
      value = Py_NewRef(Py_None);
    }
    if (!value) goto fail;
    PyList_SET_ITEM(arrays, i, value);
    if (!list->named) continue;
    PyObject *name = PyUnicode_DecodeUTF8(item->name, (Py_ssize_t)item->name_length, NULL);
    if (!name) {
      if (!PyErr_ExceptionMatches(PyExc_UnicodeDecodeError)) goto fail;
      PyErr_Clear();
      mpg_py_raise(mpg_source_fail(source, source->size,
                                   "the name of array %zd is not valid UTF-8: the file is damaged",
                                   i));
      goto fail;
    }
    PyList_SET_ITEM(names, i, name);
  }
  mpg_tensor_list_free(list);
  return Py_BuildValue("(NN)", arrays, names);
fail:
  Py_XDECREF(arrays);
  Py_XDECREF(names);
  mpg_tensor_list_free(list);
  return NULL;
}

static PyObject *load(mpg_source *source, bool numpy) {
  mpg_tensor_list list;
  mpg_status status = mpg_params_read(source, &list);
  PyObject *result = status == MPG_OK ? scatter(source, &list, numpy) : mpg_py_raise(status);
  mpg_source_close(source);
  return result;
}

static PyObject *load_arrays(PyObject *Py_UNUSED(module), PyObject *args) {
  PyObject *encoded;
  int numpy = 0;
  if (!PyArg_ParseTuple(args, "O&|p:load_arrays", PyUnicode_FSConverter, &encoded, &numpy))
    return NULL;
  mpg_source source;
  mpg_status status = mpg_source_open(&source, PyBytes_AS_STRING(encoded));
  PyObject *result = status == MPG_OK ? load(&source, numpy) : mpg_py_raise(status);
  Py_DECREF(encoded);
  return result;
}

static PyObject *load_arrays_from(PyObject *Py_UNUSED(module), PyObject *args) {
  Py_buffer view;
  int numpy = 0;
  if (!PyArg_ParseTuple(args, "y*|p:load_arrays_from_bytes", &view, &numpy)) return NULL;
  mpg_source source;
  mpg_source_open_memory(&source, "(buffer)", view.buf, (size_t)view.len);
  PyObject *result = load(&source, numpy);
  PyBuffer_Release(&view);
  return result;
}

static PyObject *read_rows(PyObject *Py_UNUSED(module), PyObject *args) {
  PyObject *path, *object, *encoded = NULL;
  int descriptor;
  unsigned long long offset;
  long long begin, end;
  if (!PyArg_ParseTuple(args, "OiKOLL:read_rows", &path, &descriptor, &offset, &object, &begin,
                        &end))
    return NULL;
  const mpg_array *array = mpg_py_expect_array(object, "load_parameters");
  if (array == NULL || mpg_py_expect_value(array, "load_parameters") < 0) return NULL;
  const mpg_device *device = mpg_tensor_device(&array->tensor);
  if (!device->backend->host_accessible && !device->remote) Py_RETURN_NONE;
  MPG_PY_TRY(mpg_trace_check_write(array, "load_parameters"));
  mpg_tensor rows = array->tensor;
  if (rows.desc.shape.ndim)
    MPG_PY_TRY(mpg_tensor_slice(&rows, begin, end, &rows));
  else
    mpg_tensor_retain(&rows);
  mpg_status status = PyUnicode_FSConverter(path, &encoded) ? MPG_OK : mpg_py_host_exception();
  size_t done = 0;
  if (status == MPG_OK) {
    mpg_source source = {.name = PyBytes_AS_STRING(encoded), .descriptor = descriptor};
    status = mpg_source_read_tensor(&source, offset, &rows, "an array", &done);
  }
  Py_XDECREF(encoded);
  mpg_tensor_release(&rows);
  return status == MPG_OK ? PyLong_FromSize_t(done) : mpg_py_raise(status);
}

static PyObject *save_arrays(PyObject *Py_UNUSED(module), PyObject *args) {
  PyObject *encoded, *arrays, *names;
  if (!PyArg_ParseTuple(args, "O&OO:save_arrays", PyUnicode_FSConverter, &encoded, &arrays, &names))
    return NULL;
  mpg_tensor_list list;
  mpg_sink sink;
  mpg_status status;
  if (gather(arrays, names, &list) < 0) {
    Py_DECREF(encoded);
    return NULL;
  }
  MPG_GOTO(mpg_sink_open(&sink, PyBytes_AS_STRING(encoded)));
  status = mpg_params_write(&sink, &list);
  if (status == MPG_OK) status = mpg_sink_commit(&sink);
  mpg_sink_close(&sink);
fail:
  mpg_tensor_list_free(&list);
  Py_DECREF(encoded);
  if (status != MPG_OK) return mpg_py_raise(status);
  Py_RETURN_NONE;
}

static PyObject *save_arrays_to(PyObject *Py_UNUSED(module), PyObject *args) {
  PyObject *arrays, *names, *result = NULL;
  if (!PyArg_ParseTuple(args, "OO:save_arrays_to_bytes", &arrays, &names)) return NULL;
  mpg_tensor_list list;
  mpg_sink sink;
  if (gather(arrays, names, &list) < 0) return NULL;
  mpg_sink_open_buffer(&sink);
  mpg_status status = mpg_params_write(&sink, &list);
  if (status == MPG_OK)
    result = PyBytes_FromStringAndSize(sink.buffer, (Py_ssize_t)sink.length);
  else
    mpg_py_raise(status);
  mpg_sink_close(&sink);
  mpg_tensor_list_free(&list);
  return result;
}

static PyObject *write_file(PyObject *Py_UNUSED(module), PyObject *args) {
  PyObject *encoded;
  Py_buffer view;
  if (!PyArg_ParseTuple(args, "O&y*:write_file", PyUnicode_FSConverter, &encoded, &view))
    return NULL;
  mpg_sink sink;
  mpg_status status = mpg_sink_open(&sink, PyBytes_AS_STRING(encoded));
  if (status == MPG_OK) {
    status = mpg_sink_write(&sink, view.buf, (size_t)view.len);
    if (status == MPG_OK) status = mpg_sink_commit(&sink);
    mpg_sink_close(&sink);
  }
  PyBuffer_Release(&view);
  Py_DECREF(encoded);
  if (status != MPG_OK) return mpg_py_raise(status);
  Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"load_arrays", load_arrays, METH_VARARGS,
     "load_arrays(path, numpy=False): the arrays and names (None if it has none) of an array file. "
     "Dense arrays are of mx.np if `numpy` is true, else of mx.nd."},
    {"load_arrays_from_bytes", load_arrays_from, METH_VARARGS,
     "load_arrays_from_bytes(bytes, numpy=False): load_arrays of a file's contents."},
    {"read_rows", read_rows, METH_VARARGS,
     "read_rows(path, descriptor, offset, array, begin, end): reads rows of an array from a file "
     "into the array's memory. Returns the number of bytes, which is smaller if the file ends, or "
     "None if the host cannot access the memory. `path` is for errors."},
    {"save_arrays", save_arrays, METH_VARARGS,
     "save_arrays(path, arrays, names): writes an array file; names may be None. The file is "
     "replaced atomically."},
    {"save_arrays_to_bytes", save_arrays_to, METH_VARARGS,
     "save_arrays_to_bytes(arrays, names): the contents of such a file."},
    {"write_file", write_file, METH_VARARGS,
     "write_file(path, bytes): writes a file, replacing it atomically."},
    {NULL, NULL, 0, NULL},
};

int mpg_py_io_init(PyObject *module) { return PyModule_AddFunctions(module, methods); }
