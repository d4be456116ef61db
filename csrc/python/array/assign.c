/* x[key] = value. */
#include "autograd/trace.h"
#include "python/array/index.h"

/* Converts the value to an NDArray with the target's dtype and device, broadcast to `shape`.
 * Returns a new reference. Records the conversion while recording. */
static PyObject *prepare(const mpg_array *target, PyObject *value, const mpg_shape *shape) {
  mpg_device_id device = mpg_array_device_id(target);
  PyObject *step;
  if (mpg_py_is_array(value)) {
    step = mpg_py_to_device(value, device, false);
    if (step != NULL) Py_SETREF(step, mpg_py_cast(step, target->tensor.desc.dtype));
  } else {
    step = mpg_py_array_from(value, target->tensor.desc.dtype, device, target->numpy);
  }
  if (step != NULL) Py_SETREF(step, mpg_py_broadcast(step, shape));
  return step;
}

static int done_of(PyObject *result) {
  Py_XDECREF(result);
  return result ? 0 : -1;
}

/* Assigns to an empty selection: only checks that the value can be broadcast to its shape. */
static int assign_nothing(const mpg_array *array, PyObject *value, const mpg_shape *shape) {
  return mpg_py_is_scalar(value) ? 0 : done_of(prepare(array, value, shape));
}

/* Assigns the value to the whole array. */
static int assign_all(mpg_array *array, PyObject *value) {
  const mpg_desc *desc = mpg_array_desc(array);
  if (mpg_py_is_scalar(value) && !(desc->dtype == MPG_INT64 && !PyFloat_Check(value))) {
    double number;
    if (mpg_py_scalar(value, &number) < 0) return -1;
    mpg_array *input = array;
    return done_of(mpg_py_call_named("_full_like", &input, 1, array, "fill_value", &number, NULL));
  }
  if (!mpg_py_is_array(value)) return mpg_py_write_object(array, value);
  mpg_array *source = mpg_py_array_of(value);
  if (source->tensor.storage == array->tensor.storage &&
      source->tensor.offset == array->tensor.offset && !mpg_array_traced(source) &&
      source->tensor.storage != NULL && mpg_shape_equal(&source->tensor.desc.shape, &desc->shape))
    return 0; /* assignment to itself */
  PyObject *prepared = prepare(array, value, &desc->shape);
  if (prepared == NULL) return -1;
  source = mpg_py_array_of(prepared);
  int result = mpg_py_copy_into(source, array);
  Py_DECREF(prepared);
  return result;
}

/* The beginning of MXNet's message, which programs search for. */
#define RECORDING                                                                               \
  "Inplace operations (+=, -=, x[:]=, etc) are not supported when recording with autograd, as " \
  "here: "

/* Rejects the assignment of a recorded value to a part of an array, as in MXNet. An array has a
 * single node on the tape, so its elements cannot come from different nodes. Values in nested lists
 * would be read, without their gradients. */
static int refuse_recorded(PyObject *value) {
  bool list = PyList_CheckExact(value) || PyTuple_CheckExact(value);
  if (list && mpg_autograd_recording()) {
    if (Py_EnterRecursiveCall(" in assigned lists")) return -1;
    int result = 0;
    for (Py_ssize_t i = 0; result == 0 && i < PySequence_Fast_GET_SIZE(value); i++)
      result = refuse_recorded(PySequence_Fast_GET_ITEM(value, i));
    Py_LeaveRecursiveCall();
    return result;
  }
  if (!mpg_py_is_array(value) || !mpg_py_tracked(mpg_py_array_of(value))) return 0;
  PyErr_Format(mpg_py->errors[MPG_ERROR],
               RECORDING "a recorded value cannot be assigned to a part of an array; use %s",
               mpg_py_array_of(value)->numpy ? "np.concatenate, np.where or npx.index_update"
                                             : "nd.concat, nd.where or nd.scatter_nd");
  return -1;
}

/* Assigns to a resolved basic key. `tensor` is the tensor that the array had when `basic` was
 * resolved; the caller retains it. */
static int assign_resolved(mpg_array *array, const mpg_tensor *tensor, const basic_key *basic,
                           PyObject *value) {
  const mpg_shape *shape = &tensor->desc.shape;
  int64_t first;
  bool empty = mpg_shape_size(&basic->sliced) == 0,
       recorded = mpg_py_is_array(value) && mpg_py_tracked(mpg_py_array_of(value));
  if (mpg_shape_equal(&basic->result, shape) && (!empty || recorded) &&
      mpg_key_contiguous(basic, shape, &first))
    return assign_all(array, value);
  if (refuse_recorded(value) < 0) return -1;
  if (empty) return assign_nothing(array, value, &basic->result);
  if (mpg_key_contiguous(basic, shape, &first)) {
    /* The value is broadcast to the shape of x[key], from which integers remove dimensions. */
    mpg_shape target = basic->result;
    PyObject *part = mpg_key_view(tensor, first, &target, array->numpy);
    if (part == NULL) return -1;
    int result = assign_all(mpg_py_array_of(part), value);
    Py_DECREF(part);
    return result;
  }
  mpg_tuple begin, end, step;
  mpg_key_slice_params(basic, &begin, &end, &step);
  if (mpg_py_is_scalar(value) && !(tensor->desc.dtype == MPG_INT64 && !PyFloat_Check(value))) {
    double number;
    if (mpg_py_scalar(value, &number) < 0) return -1;
    mpg_array *input = array;
    return done_of(mpg_py_call_named("_slice_assign_scalar", &input, 1, array, "scalar", &number,
                                     "begin", &begin, "end", &end, "step", &step, NULL));
  }
  PyObject *prepared = prepare(array, value, &basic->result);
  if (prepared != NULL) Py_SETREF(prepared, mpg_py_reshape(prepared, &basic->sliced));
  if (prepared == NULL) return -1;
  mpg_array *inputs[2] = {array, mpg_py_array_of(prepared)};
  int result = done_of(mpg_py_call_named("_slice_assign", inputs, 2, array, "begin", &begin, "end",
                                         &end, "step", &step, NULL));
  Py_DECREF(prepared);
  return result;
}

static int assign_basic(PyObject *self, PyObject *key, const plain_key *plain, PyObject *value) {
  mpg_array *array = mpg_py_array_of(self);
  mpg_tensor tensor = array->tensor;
  basic_key basic;
  if (mpg_key_parse(key, plain, &tensor.desc.shape, array->numpy, &basic) < 0) return -1;
  mpg_tensor_retain(&tensor);
  int result = assign_resolved(array, &tensor, &basic, value);
  mpg_tensor_release(&tensor);
  return result;
}

/* True if a value assigned to x[mask] does not depend on the number of selected elements. */
static bool fits_every_count(PyObject *value, int rest) {
  return mpg_py_is_scalar(value) ||
         (mpg_py_is_array(value) && mpg_py_array_of(value)->tensor.desc.shape.ndim <= rest);
}

/* Assigns to x[mask] with the op `where`, so the mask is not copied to the host. */
static int assign_masked(PyObject *self, PyObject *mask, PyObject *value) {
  mpg_array *array = mpg_py_array_of(self);
  const mpg_shape whole = array->tensor.desc.shape;
  const mpg_shape *leading = &mpg_py_array_of(mask)->tensor.desc.shape;
  mpg_shape rest = {.ndim = whole.ndim - leading->ndim}, along = {.ndim = whole.ndim};
  for (int i = 0; i < whole.ndim; i++) along.dims[i] = i < leading->ndim ? leading->dims[i] : 1;
  for (int i = 0; i < rest.ndim; i++) rest.dims[i] = whole.dims[leading->ndim + i];
  PyObject *fill = prepare(array, value, &rest), *condition = NULL;
  int result = -1;
  if (fill != NULL) Py_SETREF(fill, mpg_py_broadcast(fill, &whole));
  /* A recorded mask would put the array on the tape. */
  if (fill != NULL) condition = PyObject_CallMethod(mask, "detach", NULL);
  if (condition != NULL) Py_SETREF(condition, mpg_py_reshape(condition, &along));
  if (condition != NULL) Py_SETREF(condition, mpg_py_broadcast(condition, &whole));
  if (condition != NULL && mpg_shape_size(&whole) > 0) {
    mpg_array *inputs[3] = {mpg_py_array_of(condition), mpg_py_array_of(fill), array};
    result = done_of(mpg_py_call_named("where", inputs, 3, array, NULL));
  } else if (condition != NULL) {
    result = 0;
  }
  Py_XDECREF(fill);
  Py_XDECREF(condition);
  return result;
}

static int assign_advanced(PyObject *self, PyObject *key, PyObject *value) {
  mpg_array *array = mpg_py_array_of(self);
  PyObject *mask;
  if (refuse_recorded(value) < 0 || mpg_key_mask(self, key, &mask) < 0) return -1;
  if (mask != NULL) {
    int rest = array->tensor.desc.shape.ndim - mpg_py_array_of(mask)->tensor.desc.shape.ndim;
    bool whole = fits_every_count(value, rest);
    int status = whole ? assign_masked(self, mask, value) : 0;
    Py_DECREF(mask);
    if (whole) return status;
  }
  gather g = {0};
  if (mpg_key_resolve(array, key, &g) < 0) return -1;
  mpg_shape wanted = mpg_key_gathered_shape(&g);
  PyObject *rows = NULL, *positions = NULL, *prepared = NULL;
  int result = -1;
  if (mpg_key_check_ndim(&wanted) < 0) goto done;
  if (mpg_shape_size(&wanted) == 0) {
    result = assign_nothing(array, value, &wanted);
    goto done;
  }
  prepared = prepare(array, value, &wanted);
  if (prepared == NULL) goto done;
  /* Reshapes the value to one row per selected row. */
  mpg_shape lines = g.rows;
  lines.dims[0] = (int64_t)PyArray_SIZE(g.flat);
  Py_SETREF(prepared, mpg_py_reshape(prepared, &lines));
  rows = prepared ? mpg_py_reshape(self, &g.rows) : NULL;
  positions = rows ? mpg_key_positions(&g, array) : NULL;
  mpg_shape line = {.ndim = 2, .dims = {1, lines.dims[0]}};
  if (positions != NULL) Py_SETREF(positions, mpg_py_reshape(positions, &line));
  if (positions == NULL) goto done;
  mpg_tuple shape = mpg_shape_tuple(&g.rows);
  mpg_array *inputs[3] = {mpg_py_array_of(rows), mpg_py_array_of(prepared),
                          mpg_py_array_of(positions)};
  result = done_of(
      mpg_py_call_named("_set_rows", inputs, 3, mpg_py_array_of(rows), "shape", &shape, NULL));
done:
  Py_XDECREF(rows);
  Py_XDECREF(positions);
  Py_XDECREF(prepared);
  Py_DECREF(g.flat);
  return result;
}

/* Rejects a value of the other kind of arrays, as in MXNet. */
static int check_kind(const mpg_array *array, PyObject *value) {
  if (!mpg_py_is_array(value) || mpg_py_array_of(value)->numpy == array->numpy) return 0;
  PyErr_Format(mpg_py->errors[MPG_TYPE_ERROR],
               "an array of %s cannot be assigned to an array of %s; convert it with %s()",
               array->numpy ? "mx.nd" : "mx.np", array->numpy ? "mx.np" : "mx.nd",
               array->numpy ? "as_np_ndarray" : "as_nd_ndarray");
  return -1;
}

int mpg_py_assign_subscript(PyObject *self, PyObject *key, PyObject *value) {
  mpg_array *array = mpg_py_array_of(self);
  if (value != NULL && mpg_py_is_handled(value)) {
    PyObject *dense = mpg_py_dense(value);
    int result = dense ? mpg_py_assign_subscript(self, key, dense) : -1;
    Py_XDECREF(dense);
    return result;
  }
  if (value == NULL) {
    PyErr_SetString(PyExc_TypeError, "elements of an array cannot be deleted");
    return -1;
  }
  if (value == Py_None) { /* assigns NaN, as in MXNet */
    if (!mpg_dtype_is_float(array->tensor.desc.dtype)) {
      PyErr_Format(mpg_py->errors[MPG_TYPE_ERROR],
                   "None is assigned as NaN, which dtype %s does not have",
                   mpg_dtype_name(array->tensor.desc.dtype));
      return -1;
    }
    PyObject *nan = PyFloat_FromDouble(Py_NAN);
    int result = nan ? mpg_py_assign_subscript(self, key, nan) : -1;
    Py_XDECREF(nan);
    return result;
  }
  plain_key plain;
  if (check_kind(array, value) < 0) return -1;
  if (!mpg_py_is_array(value) && refuse_recorded(value) < 0) return -1;
  bool basic = mpg_key_is_basic(key, array->numpy);
  if (basic && mpg_key_unpack(key, &plain) < 0) return -1;
  if (mpg_py_expect_value(array, "x[...] = value") < 0) return -1;
  MPG_PY_TRY_INT(mpg_trace_check_write(array, "x[...] = value"));
  if (array->node != NULL && mpg_autograd_recording()) {
    PyErr_Format(mpg_py->errors[MPG_ERROR],
                 RECORDING
                 "the array is part of the recorded computation, and backward needs its values; "
                 "compute a new array (%s.where, x * mask, ...), or assign under autograd.pause() "
                 "or before recording",
                 array->numpy ? "np" : "nd");
    return -1;
  }
  if ((PyTuple_Check(key) && PyTuple_GET_SIZE(key) == 0) ||
      (!array->numpy && array->tensor.desc.shape.ndim == 0 &&
       (PySlice_Check(key) || key == Py_Ellipsis)))
    return assign_all(array, value);
  return basic ? assign_basic(self, key, &plain, value) : assign_advanced(self, key, value);
}
