/* Methods and properties of NDArray that are not ops. mpgluon/ndarray adds methods for ops. */
#include "compile/call_cache.h"
#include "python/core.h"
#include "python/array/numpy.h"

/* --- Properties ------------------------------------------------------------------------------- */
static PyObject *get_shape(PyObject *self, void *Py_UNUSED(unused)) {
  return mpg_py_shape_tuple(&mpg_py_array_of(self)->tensor.desc.shape);
}
static PyObject *get_ndim(PyObject *self, void *Py_UNUSED(unused)) {
  return PyLong_FromLong(mpg_py_array_of(self)->tensor.desc.shape.ndim);
}
static PyObject *get_size(PyObject *self, void *Py_UNUSED(unused)) {
  return PyLong_FromLongLong(mpg_shape_size(&mpg_py_array_of(self)->tensor.desc.shape));
}
static PyObject *get_dtype(PyObject *self, void *Py_UNUSED(unused)) {
  mpg_dtype dtype = mpg_py_array_of(self)->tensor.desc.dtype;
  return Py_NewRef(mpg_dtype_valid(dtype) ? mpg_py->dtypes[dtype] : Py_None);
}
/* mx.np has NumPy's dtype objects, and mx.nd has scalar types. */
static PyObject *get_numpy_dtype(PyObject *self, void *Py_UNUSED(unused)) {
  mpg_dtype dtype = mpg_py_array_of(self)->tensor.desc.dtype;
  if (!mpg_dtype_valid(dtype) || dtype == MPG_BFLOAT16) return get_dtype(self, NULL);
  return (PyObject *)PyArray_DescrFromTypeObject(mpg_py->dtypes[dtype]);
}
PyGetSetDef mpg_py_numpy_properties[] = {
    {"dtype", get_numpy_dtype, NULL, "The element type, a numpy.dtype.", NULL}, {0}};
static PyObject *get_context(PyObject *self, void *Py_UNUSED(unused)) {
  mpg_array *array = mpg_py_array_of(self);
  if (!mpg_array_traced(array) && mpg_py_expect_value(array, "context") < 0) return NULL;
  return mpg_py_context(mpg_py_context_id(array));
}
static PyObject *get_stype(PyObject *Py_UNUSED(self), void *Py_UNUSED(unused)) {
  return PyUnicode_FromString("default");
}
static PyObject *get_t(PyObject *self, void *Py_UNUSED(unused)) {
  mpg_array *array = mpg_py_array_of(self);
  return mpg_py_call_named("transpose", &array, 1, NULL, NULL);
}
static PyObject *get_grad(PyObject *self, void *Py_UNUSED(unused)) {
  mpg_tensor gradient;
  mpg_grad_req request;
  if (mpg_autograd_request(mpg_py_array_of(self), &request) && request == MPG_GRAD_NULL)
    Py_RETURN_NONE;
  PyObject *sparse = mpg_py_sparse_gradient(self);
  if (sparse != NULL) return sparse;
  MPG_PY_TRY(mpg_autograd_gradient(mpg_py_array_of(self), &gradient));
  if (gradient.storage == NULL) Py_RETURN_NONE;
  PyObject *result = mpg_py_array_new(mpg_py_array_of(self)->numpy);
  if (result == NULL)
    mpg_tensor_release(&gradient);
  else
    mpg_py_array_of(result)->tensor = gradient;
  return result;
}
static PyObject *get_grad_req(PyObject *self, void *Py_UNUSED(unused)) {
  mpg_grad_req request;
  if (!mpg_autograd_request(mpg_py_array_of(self), &request)) Py_RETURN_NONE;
  return PyUnicode_FromString(request == MPG_GRAD_ADD     ? "add"
                              : request == MPG_GRAD_WRITE ? "write"
                                                          : "null");
}
static PyObject *get_has_gradient(PyObject *self, void *Py_UNUSED(unused)) {
  return PyBool_FromLong(mpg_autograd_has_gradient(mpg_py_array_of(self)));
}
static PyObject *get_is_zero(PyObject *self, void *Py_UNUSED(unused)) {
  const mpg_array *array = mpg_py_array_of(self);
  return PyBool_FromLong(array->tensor.storage != NULL &&
                         mpg_storage_is_zero(array->tensor.storage));
}
static PyObject *get_fresh(PyObject *self, void *Py_UNUSED(unused)) {
  return PyLong_FromLong(mpg_autograd_fresh(mpg_py_array_of(self)));
}
static int set_fresh(PyObject *self, PyObject *value, void *Py_UNUSED(unused)) {
  int fresh = value ? PyObject_IsTrue(value) : 0;
  if (fresh < 0) return -1;
  mpg_autograd_set_fresh(mpg_py_array_of(self), fresh);
  return 0;
}
static PyObject *get_writable(PyObject *self, void *Py_UNUSED(unused)) {
  return PyBool_FromLong(!mpg_array_traced(mpg_py_array_of(self)));
}
static PyObject *get_traced(PyObject *self, void *Py_UNUSED(unused)) {
  return PyBool_FromLong(mpg_array_traced(mpg_py_array_of(self)));
}
static PyObject *get_in_trace(PyObject *self, void *Py_UNUSED(unused)) {
  return PyBool_FromLong(mpg_trace_takes(mpg_py_array_of(self)));
}
static PyObject *get_version(PyObject *self, void *Py_UNUSED(unused)) {
  const mpg_storage *storage = mpg_py_array_of(self)->tensor.storage;
  return PyLong_FromUnsignedLong(storage != NULL ? storage->version : 0);
}
static PyObject *get_place(PyObject *self, void *Py_UNUSED(unused)) {
  const mpg_array *array = mpg_py_array_of(self);
  return Py_BuildValue("NNN", PyLong_FromVoidPtr(array->tensor.storage),
                       PyLong_FromSize_t(array->tensor.offset), PyLong_FromVoidPtr(array->node));
}
static PyObject *get_wants_gradient(PyObject *self, void *Py_UNUSED(unused)) {
  return PyBool_FromLong(mpg_cache_wants(mpg_py_array_of(self)));
}
static PyObject *get_on_tape(PyObject *self, void *Py_UNUSED(unused)) {
  const mpg_tape_node *node = mpg_py_array_of(self)->node;
  return PyBool_FromLong(node != NULL && node->references > 1);
}
static PyObject *get_backward_number(PyObject *self, void *Py_UNUSED(unused)) {
  const mpg_tape_node *node = mpg_py_array_of(self)->node;
  return PyLong_FromUnsignedLongLong(node != NULL ? node->visit : 0);
}
PyGetSetDef mpg_py_array_properties[] = {
    {"shape", get_shape, NULL, "The sizes of the dimensions, a tuple.", NULL},
    {"ndim", get_ndim, NULL, "The number of dimensions.", NULL},
    {"size", get_size, NULL, "The number of elements.", NULL},
    {"dtype", get_dtype, NULL,
     "The NumPy dtype: numpy.float32, ...; mpgluon.bfloat16 for bfloat16.", NULL},
    {"context", get_context, NULL, "The device the array is on, a Context.", NULL},
    {"ctx", get_context, NULL, "The device the array is on, a Context.", NULL},
    {"stype", get_stype, NULL, "The storage type: always 'default'.", NULL},
    {"T", get_t, NULL, "The array with its dimensions in reverse order.", NULL},
    {"grad", get_grad, NULL,
     "The gradient that attach_grad created and backward writes; None without attach_grad, and for "
     "grad_req='null'.",
     NULL},
    {"grad_req", get_grad_req, NULL,
     "'write', 'add' or 'null'; None for an array without attach_grad.", NULL},
    {"_has_gradient", get_has_gradient, NULL,
     "Whether the gradient has been allocated. Otherwise, it is zero or does not exist.", NULL},
    {"_is_zero", get_is_zero, NULL,
     "Whether the array is a gradient to which nothing has been written yet.", NULL},
    {"_fresh_grad", get_fresh, set_fresh,
     "Whether backward has written the gradient since this was set to False.", NULL},
    {"_on_tape", get_on_tape, NULL,
     "Whether a recorded computation that may be differentiated uses the variable.", NULL},
    {"_backward_number", get_backward_number, NULL,
     "The number of the latest backward pass that reached the variable. Later passes have larger "
     "numbers.",
     NULL},
    {"writable", get_writable, NULL, "Whether the array may be written to.", NULL},
    {"_traced", get_traced, NULL, "Whether the array is traced by hybridize() and so has no value.",
     NULL},
    {"_in_trace", get_in_trace, NULL,
     "Whether ops on the array belong to a trace: it is traced, or older than the active trace.",
     NULL},
    {"_version", get_version, NULL, "The number of writes to the array's memory.", NULL},
    {"_place", get_place, NULL,
     "Numbers that identify the array: its memory, its offset there and its position on the tape.",
     NULL},
    {"_wants_gradient", get_wants_gradient, NULL,
     "Whether a recorded use of the array leads to a gradient.", NULL},
    {0}};

/* --- Values ----------------------------------------------------------------------------------- */
static PyObject *asnumpy(PyObject *self, PyObject *Py_UNUSED(unused)) {
  mpg_array *array = mpg_py_array_of(self);
  return mpg_py_expect_readable(array, "asnumpy()") < 0 ? NULL : mpg_py_to_numpy(array);
}
static PyObject *one_element(PyObject *self, const char *what) {
  mpg_array *array = mpg_py_array_of(self);
  if (mpg_py_expect_readable(array, what) < 0) return NULL;
  if (mpg_shape_size(&array->tensor.desc.shape) != 1) {
    char text[MPG_SHAPE_TEXT_SIZE];
    return PyErr_Format(mpg_py->errors[MPG_VALUE_ERROR],
                        "%s: the array must have one element, but has shape %s", what,
                        mpg_shape_text(&array->tensor.desc.shape, text, sizeof text));
  }
  return mpg_py_to_numpy(array);
}
static PyObject *asscalar(PyObject *self, PyObject *Py_UNUSED(unused)) {
  PyObject *values = one_element(self, "asscalar()");
  if (values == NULL) return NULL;
  PyObject *result =
      PyArray_ToScalar(PyArray_DATA((PyArrayObject *)values), (PyArrayObject *)values);
  Py_DECREF(values);
  return result;
}
static PyObject *item(PyObject *self, PyObject *args) {
  PyObject *values;
  if (PyTuple_GET_SIZE(args) == 0) {
    values = one_element(self, "item()");
  } else {
    values = asnumpy(self, NULL);
  }
  if (values == NULL) return NULL;
  PyObject *method = PyObject_GetAttrString(values, "item");
  Py_DECREF(values);
  if (method == NULL) return NULL;
  PyObject *result = PyObject_CallObject(method, args);
  Py_DECREF(method);
  return result;
}
static PyObject *wait_with(PyObject *self, const char *what,
                           mpg_status (*wait)(const mpg_tensor *)) {
  mpg_array *array = mpg_py_array_of(self);
  if (mpg_py_expect_value(array, what) < 0) return NULL;
  /* Retained, because another thread may replace the array's tensor during the wait. */
  mpg_tensor tensor = array->tensor;
  mpg_tensor_retain(&tensor);
  mpg_status status = wait(&tensor);
  mpg_tensor_release(&tensor);
  MPG_PY_TRY(status);
  Py_RETURN_NONE;
}
static PyObject *wait_to_read(PyObject *self, PyObject *Py_UNUSED(unused)) {
  return wait_with(self, "wait_to_read()", mpg_tensor_wait_read);
}
static PyObject *wait_to_write(PyObject *self, PyObject *Py_UNUSED(unused)) {
  return wait_with(self, "wait_to_write()", mpg_tensor_wait_write);
}

static PyObject *to_array(PyObject *self, PyObject *args, PyObject *kwargs) {
  static char *names[] = {"dtype", "copy", NULL};
  PyObject *dtype = Py_None, *copy = Py_None;
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|OO:__array__", names, &dtype, &copy))
    return NULL;
  mpg_array *array = mpg_py_array_of(self);
  if (mpg_py_expect_readable(array, "__array__()") < 0) return NULL;
  PyObject *values;
  if (copy == Py_False) {
    if (array->tensor.desc.dtype == MPG_BFLOAT16)
      return PyErr_Format(PyExc_ValueError,
                          "NumPy does not support bfloat16; the values must be copied");
    PyObject *view = PyMemoryView_FromObject(self);
    values = view ? PyArray_FromAny(view, NULL, 0, 0, 0, NULL) : NULL;
    Py_XDECREF(view);
  } else {
    values = mpg_py_to_numpy(array);
  }
  if (values == NULL || dtype == Py_None) return values;
  PyArray_Descr *descr = NULL;
  if (PyArray_DescrConverter(dtype, &descr) != NPY_SUCCEED) {
    Py_DECREF(values);
    return NULL;
  }
  if (copy == Py_False && descr->type_num != PyArray_TYPE((PyArrayObject *)values)) {
    Py_DECREF(descr);
    Py_DECREF(values);
    return PyErr_Format(PyExc_ValueError, "the array must be copied to change its dtype");
  }
  PyObject *result = PyArray_FromAny(values, descr, 0, 0, NPY_ARRAY_FORCECAST, NULL);
  Py_DECREF(values);
  return result;
}

/* --- Copies ----------------------------------------------------------------------------------- */
static PyObject *copy(PyObject *self, PyObject *Py_UNUSED(unused)) {
  return mpg_py_to_device(self, mpg_py_context_id(mpg_py_array_of(self)), true);
}
static PyObject *as_in_context(PyObject *self, PyObject *context) {
  mpg_device_id id;
  if (mpg_py_device_id(context, &id) < 0) return NULL;
  return mpg_py_to_device(self, id, false);
}
static PyObject *copyto(PyObject *self, PyObject *other) {
  if (mpg_py_is_sparse(other)) return PyObject_CallMethod(other, "copy_from", "O", self);
  if (!mpg_py_is_array(other)) {
    mpg_device_id id;
    if (other == Py_None ||
        (!PyObject_TypeCheck(other, mpg_py->context_type) && !PyUnicode_Check(other)))
      return PyErr_Format(mpg_py->errors[MPG_TYPE_ERROR],
                          "copyto: expected an NDArray or a Context, got %s",
                          Py_TYPE(other)->tp_name);
    if (mpg_py_device_id(other, &id) < 0) return NULL;
    return mpg_py_to_device(self, id, true);
  }
  if (other == self) {
    if (PyErr_WarnEx(PyExc_RuntimeWarning, "copyto: the array cannot be copied to itself", 1) < 0)
      return NULL;
    Py_RETURN_FALSE;
  }
  mpg_array *target = mpg_py_array_of(other);
  PyObject *source = mpg_py_cast(self, target->tensor.desc.dtype);
  if (source == NULL) return NULL;
  int status = mpg_py_copy_into(mpg_py_array_of(source), target);
  Py_DECREF(source);
  return status < 0 ? NULL : Py_NewRef(other);
}
static PyObject *astype(PyObject *self, PyObject *args, PyObject *kwargs) {
  static char *names[] = {"dtype", "copy", NULL};
  PyObject *wanted;
  int always = 1;
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|p:astype", names, &wanted, &always))
    return NULL;
  mpg_dtype dtype = mpg_py_dtype(wanted);
  if (dtype == MPG_DTYPE_NONE) return NULL;
  if (mpg_py_array_of(self)->tensor.desc.dtype != dtype) return mpg_py_cast(self, dtype);
  return always ? copy(self, NULL) : Py_NewRef(self);
}

/* --- Autograd --------------------------------------------------------------------------------- */
static PyObject *attach_grad(PyObject *self, PyObject *args, PyObject *kwargs) {
  static char *names[] = {"grad_req", "stype", NULL};
  const char *request = "write";
  PyObject *stype = Py_None;
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|sO:attach_grad", names, &request, &stype))
    return NULL;
  mpg_grad_req number;
  if (strcmp(request, "write") == 0)
    number = MPG_GRAD_WRITE;
  else if (strcmp(request, "add") == 0)
    number = MPG_GRAD_ADD;
  else if (strcmp(request, "null") == 0)
    number = MPG_GRAD_NULL;
  else
    return PyErr_Format(mpg_py->errors[MPG_KEY_ERROR],
                        "attach_grad: grad_req must be 'write', 'add' or 'null', got '%s'",
                        request);
  if (stype != Py_None &&
      !(PyUnicode_Check(stype) && PyUnicode_CompareWithASCIIString(stype, "default") == 0))
    return mpg_py_attach_sparse(self, request, stype);
  mpg_array *array = mpg_py_array_of(self);
  if (mpg_py_expect_value(array, "attach_grad()") < 0) return NULL;
  if (mpg_py_forget_sparse_gradient(self) < 0) return NULL;
  MPG_PY_TRY(mpg_autograd_mark_variable(array, number, NULL));
  Py_RETURN_NONE;
}
PyObject *mpg_py_as_kind(PyObject *self, bool numpy) {
  if (mpg_py_array_of(self)->numpy == numpy) return Py_NewRef(self);
  PyObject *result = mpg_py_array_new(numpy);
  if (result == NULL) return NULL;
  mpg_status status = mpg_array_as(mpg_py_array_of(result), mpg_py_array_of(self), numpy);
  if (status == MPG_OK) return result;
  Py_DECREF(result);
  return mpg_py_raise(status);
}
static PyObject *as_np_ndarray(PyObject *self, PyObject *Py_UNUSED(unused)) {
  return mpg_py_as_kind(self, true);
}
static PyObject *as_nd_ndarray(PyObject *self, PyObject *Py_UNUSED(unused)) {
  return mpg_py_as_kind(self, false);
}
static PyObject *detach(PyObject *self, PyObject *Py_UNUSED(unused)) {
  PyObject *result = mpg_py_array_new(mpg_py_array_of(self)->numpy);
  if (result == NULL) return NULL;
  mpg_status status = mpg_array_detach(mpg_py_array_of(result), mpg_py_array_of(self));
  if (status == MPG_OK) return result;
  Py_DECREF(result);
  return mpg_py_raise(status);
}
static PyObject *backward(PyObject *self, PyObject *args, PyObject *kwargs) {
  static char *names[] = {"out_grad", "retain_graph", "train_mode", NULL};
  PyObject *out_grad = Py_None;
  int retain = 0, train = 1;
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|Opp:backward", names, &out_grad, &retain,
                                   &train))
    return NULL;
  mpg_array *head = mpg_py_array_of(self), *gradient = NULL;
  PyObject *dense = mpg_py_dense(out_grad);
  if (dense == NULL) return NULL;
  if (out_grad != Py_None &&
      (gradient = mpg_py_expect_array(dense, "backward: out_grad")) == NULL) {
    Py_DECREF(dense);
    return NULL;
  }
  mpg_status status = mpg_autograd_backward(&head, gradient ? &gradient : NULL, 1, retain, train);
  Py_DECREF(dense);
  MPG_PY_TRY(status);
  Py_RETURN_NONE;
}

/* --- Shape ------------------------------------------------------------------------------------ */
static PyObject *reshape(PyObject *self, PyObject *args, PyObject *kwargs) {
  PyObject *wanted = PyTuple_GET_SIZE(args) > 0 ? args : NULL;
  if (PyTuple_GET_SIZE(args) == 1 && !PyLong_Check(PyTuple_GET_ITEM(args, 0)))
    wanted = PyTuple_GET_ITEM(args, 0);
  bool reverse = false;
  if (kwargs != NULL) {
    Py_ssize_t position = 0;
    PyObject *key, *value;
    while (PyDict_Next(kwargs, &position, &key, &value)) {
      if (PyUnicode_CompareWithASCIIString(key, "shape") == 0) {
        if (wanted == NULL) wanted = value;
      } else if (PyUnicode_CompareWithASCIIString(key, "reverse") == 0) {
        int truth = PyObject_IsTrue(value);
        if (truth < 0) return NULL;
        reverse = truth;
      } else {
        return PyErr_Format(mpg_py->errors[MPG_TYPE_ERROR],
                            "reshape has no parameter '%U'; it takes: shape, reverse", key);
      }
    }
  }
  if (wanted == NULL)
    return PyErr_Format(mpg_py->errors[MPG_TYPE_ERROR], "reshape: the shape is missing");
  const mpg_op *op = mpg_op_find("Reshape");
  _Alignas(16) char params[MPG_PY_MAX_PARAMS];
  mpg_params_defaults(op->params, params);
  if (mpg_py_param_set(op->params, "reshape", params, mpg_params_find(op->params, "shape"),
                       wanted) < 0)
    return NULL;
  *(bool *)(params + op->params->params[mpg_params_find(op->params, "reverse")].offset) = reverse;
  mpg_array *array = mpg_py_array_of(self);
  const mpg_shape *own = &array->tensor.desc.shape;
  mpg_tuple *tuple =
      (mpg_tuple *)(params + op->params->params[mpg_params_find(op->params, "shape")].offset);
  mpg_shape shape;
  /* The user's empty tuple requests the shape (), but the op would treat it as "not given". */
  if (tuple->count == 0) {
    shape = (mpg_shape){0};
    if (mpg_shape_size(own) != 1) goto wrong_size;
    return mpg_py_reshape(self, &shape);
  }
  mpg_desc input = *mpg_array_desc(array),
           output = {.shape = MPG_SHAPE_UNKNOWN, .dtype = MPG_DTYPE_NONE};
  mpg_status status = mpg_op_infer(op, params, false, &input, 1, &output, 1);
  if (status != MPG_OK) return mpg_py_raise(status == MPG_ERROR ? MPG_VALUE_ERROR : status);
  if (mpg_py_tracked(array)) return mpg_py_call(op, params, &array, 1);
  shape = output.shape;
  if (mpg_shape_size(&shape) == mpg_shape_size(own)) return mpg_py_reshape(self, &shape);
wrong_size:;
  char text[MPG_SHAPE_TEXT_SIZE];
  return PyErr_Format(mpg_py->errors[MPG_VALUE_ERROR],
                      "reshape: an array of shape %s cannot be reshaped to %R",
                      mpg_shape_text(own, text, sizeof text), wanted);
}

static PyObject *reduce(PyObject *self, PyObject *Py_UNUSED(unused)) {
  PyObject *values = asnumpy(self, NULL);
  if (values == NULL) return NULL;
  PyObject *module = PyImport_ImportModule("mpgluon._core"),
           *rebuild = module ? PyObject_GetAttrString(module, "array") : NULL;
  Py_XDECREF(module);
  mpg_array *array = mpg_py_array_of(self);
  PyObject *context = mpg_py_context(mpg_py_context_id(array));
  if (rebuild == NULL || context == NULL) {
    Py_XDECREF(rebuild);
    Py_XDECREF(context);
    Py_DECREF(values);
    return NULL;
  }
  return Py_BuildValue("N(NNs)", rebuild, values, context,
                       mpg_dtype_name(array->tensor.desc.dtype));
}
static PyObject *deepcopy(PyObject *self, PyObject *Py_UNUSED(memo)) { return copy(self, NULL); }

PyMethodDef mpg_py_array_methods[] = {
    {"asnumpy", asnumpy, METH_NOARGS,
     "asnumpy()\n--\n\nA NumPy array with a copy of the values; float32 for bfloat16. Waits for "
     "them."},
    {"asscalar", asscalar, METH_NOARGS,
     "asscalar()\n--\n\nThe single element as a NumPy scalar. Raises ValueError if the array has "
     "more elements."},
    {"item", item, METH_VARARGS, "item(*index)\n--\n\nOne element as a Python number."},
    {"wait_to_read", wait_to_read, METH_NOARGS,
     "wait_to_read()\n--\n\nWaits for queued work that writes the array; raises its failure."},
    {"wait_to_write", wait_to_write, METH_NOARGS,
     "wait_to_write()\n--\n\nWaits for queued work that reads or writes the array."},
    {"__array__", (PyCFunction)(void (*)(void))to_array, METH_VARARGS | METH_KEYWORDS,
     "__array__(dtype=None, copy=None)\n--\n\nThe values as a NumPy array, for NumPy's protocol."},
    {"copy", copy, METH_NOARGS, "copy()\n--\n\nA copy on the same device."},
    {"__copy__", copy, METH_NOARGS, NULL},
    {"__deepcopy__", deepcopy, METH_O, NULL},
    {"__reduce__", reduce, METH_NOARGS, NULL},
    {"as_in_context", as_in_context, METH_O,
     "as_in_context(context)\n--\n\nThe array on that device: a copy, or the array itself if it is "
     "already there (a view of it if it is\non the tape). Differentiable, and traced as an op."},
    {"as_in_ctx", as_in_context, METH_O, "as_in_ctx(context)\n--\n\nAlias of as_in_context."},
    {"copyto", copyto, METH_O,
     "copyto(other)\n--\n\nCopies the array to an array of the same shape, cast to its dtype, or "
     "to a new one on a Context. Returns the target."},
    {"astype", (PyCFunction)(void (*)(void))astype, METH_VARARGS | METH_KEYWORDS,
     "astype(dtype, copy=True)\n--\n\nThe array cast to a dtype. copy=False returns the array "
     "itself if it already has the dtype."},
    {"attach_grad", (PyCFunction)(void (*)(void))attach_grad, METH_VARARGS | METH_KEYWORDS,
     "attach_grad(grad_req='write', stype=None)\n--\n\nMakes the array a variable with a gradient "
     "of zeros that backward writes, or adds to ('add')."},
    {"as_np_ndarray", as_np_ndarray, METH_NOARGS,
     "as_np_ndarray()\n--\n\nThe array as an mx.np.ndarray, which shares its memory and gradient."},
    {"as_nd_ndarray", as_nd_ndarray, METH_NOARGS,
     "as_nd_ndarray()\n--\n\nThe array as an mx.nd.NDArray, which shares its memory and gradient."},
    {"detach", detach, METH_NOARGS,
     "detach()\n--\n\nAn array with the same values that is not part of the recorded computation."},
    {"backward", (PyCFunction)(void (*)(void))backward, METH_VARARGS | METH_KEYWORDS,
     "backward(out_grad=None, retain_graph=False, train_mode=True)\n--\n\nComputes the gradients "
     "of the variables this array was computed from; out_grad None means ones."},
    {"reshape", (PyCFunction)(void (*)(void))reshape, METH_VARARGS | METH_KEYWORDS,
     "reshape(*shape, reverse=False)\n--\n\nThe array in another shape of the same size; shares "
     "memory outside of autograd.record().\n\nCodes: 0 keeps a dimension, -1 is inferred, -2 keeps "
     "all remaining dimensions, -3 merges two, -4 splits one into the two numbers after "
     "it.\nreverse=True applies them from the right. Raises ValueError if the sizes differ."},
    {"__dlpack__", (PyCFunction)(void (*)(void))mpg_py_dlpack, METH_VARARGS | METH_KEYWORDS,
     "__dlpack__(*, stream=None, max_version=None, dl_device=None, copy=None)\n--\n\nA DLPack "
     "capsule that shares the memory."},
    {"__dlpack_device__", mpg_py_dlpack_device, METH_NOARGS,
     "__dlpack_device__()\n--\n\nThe device as DLPack's (type, id)."},
    {0}};
