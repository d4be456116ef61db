/* x[key].
 *
 * A contiguous selection of a basic key is returned as a view; other selections use the op `slice`.
 * Under record() and hybridize(), both use ops. A key with arrays uses a single `take`, and a mask
 * on a device uses `boolean_mask`, so the mask is not copied to the host.
 */
#include "autograd/trace.h"
#include "python/array/index.h"

PyObject *mpg_key_view(const mpg_tensor *source, int64_t first, const mpg_shape *shape,
                       bool numpy) {
  PyObject *result = mpg_py_array_new(numpy);
  if (result == NULL) return NULL;
  mpg_tensor *tensor = &mpg_py_array_of(result)->tensor;
  *tensor = *source;
  mpg_tensor_retain(tensor);
  tensor->desc.shape = *shape;
  if (mpg_shape_size(shape) > 0)
    tensor->offset += (size_t)first * mpg_dtype_size(tensor->desc.dtype);
  return result;
}

static PyObject *empty_like(const mpg_array *array, const mpg_shape *shape) {
  mpg_device *device;
  MPG_PY_TRY(mpg_device_get(mpg_array_device_id(array), &device));
  PyObject *result = mpg_py_array_new(array->numpy);
  if (result == NULL) return NULL;
  mpg_desc desc = {.shape = *shape, .dtype = array->tensor.desc.dtype};
  mpg_status status = mpg_tensor_create(device, &desc, &mpg_py_array_of(result)->tensor);
  if (status == MPG_OK) return result;
  Py_DECREF(result);
  return mpg_py_raise(status);
}

/* Calls slice, and reshapes the result if the key drops or adds axes. */
static PyObject *get_slice(mpg_array *array, const basic_key *basic, const mpg_tuple *begin,
                           const mpg_tuple *end, const mpg_tuple *step) {
  PyObject *sliced =
      mpg_py_call_named("slice", &array, 1, NULL, "begin", begin, "end", end, "step", step, NULL);
  if (sliced == NULL || mpg_shape_equal(&basic->sliced, &basic->result)) return sliced;
  PyObject *result = mpg_py_reshape(sliced, &basic->result);
  Py_DECREF(sliced);
  return result;
}

/* Returns x[key]. `tensor` is the tensor that the array had when `basic` was resolved; the caller
 * retains it. The array may have a different tensor now, so the ops recheck the key. */
static PyObject *get_resolved(PyObject *self, const mpg_tensor *tensor, const basic_key *basic) {
  mpg_array *array = mpg_py_array_of(self);
  const mpg_shape *shape = &tensor->desc.shape;
  bool tracked = mpg_py_tracked(array);
  if (!tracked && mpg_py_expect_value(array, "indexing") < 0) return NULL;
  int64_t first;
  if (!tracked && mpg_key_contiguous(basic, shape, &first))
    return mpg_key_view(tensor, first, &basic->result, array->numpy);
  if (!tracked && mpg_shape_size(&basic->result) == 0) return empty_like(array, &basic->result);
  if (mpg_shape_equal(&basic->sliced, shape)) {
    bool plain = true;
    for (int i = 0; i < basic->count; i++)
      plain = plain && (basic->step[i] == 1 || basic->length[i] <= 1);
    if (plain)
      return mpg_shape_equal(&basic->result, shape) ? Py_NewRef(self)
                                                    : mpg_py_reshape(self, &basic->result);
  }
  mpg_tuple begin, end, step;
  mpg_key_slice_params(basic, &begin, &end, &step);
  return get_slice(array, basic, &begin, &end, &step);
}

/* Replaces the parameters of slices other than x[:] by the bounds in the key, even beyond the size.
 * Returns false if the key has only x[:], integers and new axes. */
static bool restore_bounds(PyObject *key, const plain_key *plain, const mpg_shape *shape,
                           mpg_tuple *begin, mpg_tuple *end, mpg_tuple *step) {
  /* Entries after an ellipsis refer to the last axes. */
  Py_ssize_t before = 0, count = PyTuple_Check(key) ? PyTuple_GET_SIZE(key) : 0;
  for (Py_ssize_t i = 0; i < count && PyTuple_GET_ITEM(key, i) != Py_Ellipsis; i++)
    before += PyTuple_GET_ITEM(key, i) != Py_None;
  if (count == 0) before = key != Py_Ellipsis;
  bool restored = false;
  for (Py_ssize_t i = 0; i < plain->count; i++) {
    const plain_entry *entry = &plain->entries[i];
    Py_ssize_t axis = i < before ? i : shape->ndim - plain->count + i;
    Py_ssize_t begin_index = entry->begin, end_index = entry->end;
    bool has_end = end_index > -INT32_MAX && end_index < INT32_MAX;
    if (!entry->is_slice || (begin_index == 0 && !has_end && entry->step == 1)) continue;
    PySlice_AdjustIndices((Py_ssize_t)shape->dims[axis], &begin_index, &end_index, entry->step);
    bool has_begin = entry->begin > -INT32_MAX && entry->begin < INT32_MAX;
    begin->values[axis] = has_begin ? entry->begin : begin_index;
    end->values[axis] = has_end ? entry->end : end_index < 0 ? MPG_TUPLE_NONE : end_index;
    step->values[axis] = entry->step;
    restored = true;
  }
  return restored;
}

PyObject *mpg_key_get_basic(PyObject *self, PyObject *key) {
  plain_key plain;
  basic_key basic;
  if (mpg_key_unpack(key, &plain) < 0) return NULL;
  mpg_tensor tensor = mpg_py_array_of(self)->tensor;
  if (mpg_key_parse(key, &plain, &tensor.desc.shape, mpg_py_array_of(self)->numpy, &basic) < 0)
    return NULL;
  const mpg_trace *trace = mpg_py_array_of(self)->trace;
  if (trace != NULL && trace->keeps_bounds) {
    mpg_tuple begin, end, step;
    mpg_key_slice_params(&basic, &begin, &end, &step);
    if (restore_bounds(key, &plain, &tensor.desc.shape, &begin, &end, &step))
      return get_slice(mpg_py_array_of(self), &basic, &begin, &end, &step);
  }
  mpg_tensor_retain(&tensor);
  PyObject *result = get_resolved(self, &tensor, &basic);
  mpg_tensor_release(&tensor);
  return result;
}

static PyObject *take(mpg_array *source, mpg_array *positions, int64_t axis) {
  mpg_array *inputs[2] = {source, positions};
  mpg_take_params params;
  mpg_params_defaults(&mpg_take_table, &params);
  params.axis = axis;
  return mpg_py_call(mpg_op_get(MPG_OP_take), &params, inputs, 2);
}

/* Returns x[mask] for a mask of the leading dimensions. While a block is traced, the Python
 * function divides the block at this op, because the shape of its result depends on values. */
static PyObject *get_masked(PyObject *self, PyObject *mask) {
  int ndim = mpg_py_array_of(mask)->tensor.desc.shape.ndim;
  PyObject *rows = mpg_key_merge(self, 0, ndim), *result = NULL;
  PyObject *line = rows ? mpg_key_merge(mask, 0, ndim) : NULL;
  if (line != NULL &&
      (mpg_trace_takes(mpg_py_array_of(rows)) || mpg_trace_takes(mpg_py_array_of(line)))) {
    PyObject *module = PyImport_ImportModule("mpgluon.ndarray.contrib");
    result = module ? PyObject_CallMethod(module, "boolean_mask", "OO", rows, line) : NULL;
    Py_XDECREF(module);
  } else if (line != NULL) {
    mpg_array *inputs[2] = {mpg_py_array_of(rows), mpg_py_array_of(line)};
    result = mpg_py_call_named("_contrib_boolean_mask", inputs, 2, NULL, NULL);
  }
  Py_XDECREF(rows);
  Py_XDECREF(line);
  return result;
}

/* True if an index array holds only 0 and 1 and has the shape of the array's leading dimensions. It
 * is then probably the result of a comparison that the user meant as a mask. */
static bool looks_like_mask(PyObject *key, const mpg_shape *shape, const gather *g) {
  if (!mpg_py_is_array(key)) return false;
  const mpg_desc *desc = &mpg_py_array_of(key)->tensor.desc;
  if (!mpg_dtype_is_float(desc->dtype) || desc->shape.ndim > shape->ndim ||
      mpg_shape_size(&desc->shape) < 3)
    return false;
  if (memcmp(desc->shape.dims, shape->dims, (size_t)desc->shape.ndim * sizeof *shape->dims))
    return false;
  const int64_t *rows = PyArray_DATA(g->flat);
  for (npy_intp i = 0, count = PyArray_SIZE(g->flat); i < count; i++)
    if (rows[i] != 0 && rows[i] != 1) return false;
  return true;
}

/* True for a list or array of indices. A mask is converted to indices only if it is in a list or in
 * an array of NumPy. */
static bool has_many(PyObject *entry) {
  if (PyList_Check(entry) || PyArray_Check(entry)) return true;
  return mpg_py_is_array(entry) && mpg_py_array_of(entry)->tensor.desc.dtype != MPG_BOOL;
}

/* Returns the axis of the only index in a key of the form (:, ..., index, :, ...), or -1. */
static int axis_of_only_index(PyObject *key) {
  if (!PyTuple_Check(key) || PyTuple_GET_SIZE(key) < 2) return -1;
  Py_ssize_t last = PyTuple_GET_SIZE(key) - 1;
  while (last > 0 && PySlice_Check(PyTuple_GET_ITEM(key, last)) &&
         mpg_key_is_everything(PyTuple_GET_ITEM(key, last)))
    last--;
  for (Py_ssize_t i = 0; i < last; i++)
    if (!PySlice_Check(PyTuple_GET_ITEM(key, i)) ||
        !mpg_key_is_everything(PyTuple_GET_ITEM(key, i)))
      return -1;
  return has_many(PyTuple_GET_ITEM(key, last)) && last < MPG_MAX_NDIM ? (int)last : -1;
}

/* Indexes one axis with an op that ignores the sizes of the other axes, so that a traced op fits
 * inputs of other sizes. Returns NULL without an exception if the key needs the general method. */
static PyObject *take_along(mpg_array *array, PyObject *key, int axis) {
  PyObject *entry = mpg_key_numpy_entry(PyTuple_GET_ITEM(key, axis), array->numpy),
           *positions = NULL, *result = NULL;
  if (entry == NULL) return NULL;
  const mpg_shape *shape = &array->tensor.desc.shape; /* read after user code has run */
  PyArrayObject *index = (PyArrayObject *)entry;
  if (PyTuple_GET_SIZE(key) <= shape->ndim && PyArray_ISINTEGER(index) && PyArray_NDIM(index) > 0 &&
      PyArray_SIZE(index) > 0 && mpg_shape_size(shape) > 0 &&
      PyArray_NDIM(index) + shape->ndim - 1 <= MPG_MAX_NDIM) {
    gather g = {.rows = {.ndim = 1, .dims = {shape->dims[axis]}}};
    g.flat = mpg_key_row_positions(entry, axis, shape->dims[axis]);
    if (g.flat != NULL) positions = mpg_key_positions(&g, array);
    if (positions != NULL) result = take(array, mpg_py_array_of(positions), axis);
    Py_XDECREF(g.flat);
    Py_XDECREF(positions);
  }
  Py_DECREF(entry);
  return result;
}

static PyObject *get_advanced(PyObject *self, PyObject *key) {
  mpg_array *array = mpg_py_array_of(self);
  const mpg_shape *shape = &array->tensor.desc.shape;
  PyObject *mask;
  if (mpg_key_mask(self, key, &mask) < 0) return NULL;
  if (mask != NULL) {
    PyObject *selected = get_masked(self, mask);
    Py_DECREF(mask);
    return selected;
  }
  /* The host does not know the value of a traced index array, so the array is passed to the op. */
  if (array->numpy && mpg_key_has_traced(key)) return mpg_key_get_traced(self, key);
  if (mpg_py_is_array(key) && mpg_trace_takes(mpg_py_array_of(key)) &&
      mpg_py_array_of(key)->tensor.desc.dtype != MPG_BOOL && shape->ndim > 0)
    return take(array, mpg_py_array_of(key), 0);
  if (!mpg_array_traced(array) && mpg_py_expect_value(array, "indexing") < 0) return NULL;
  int axis = axis_of_only_index(key);
  if (axis > 0) {
    PyObject *taken = take_along(array, key, axis);
    if (taken != NULL || PyErr_Occurred()) return taken;
  }
  gather g = {0};
  if (mpg_key_resolve(array, key, &g) < 0) return NULL;
  shape = &g.shape;
  mpg_shape wanted = mpg_key_gathered_shape(&g);
  PyObject *result = NULL, *rows = NULL, *positions = NULL;
  if (looks_like_mask(key, shape, &g) &&
      PyErr_WarnEx(PyExc_UserWarning,
                   array->numpy
                       ? "an index array of 0 and 1 selects rows 0 and 1, as in MXNet; to select "
                         "the rows where a mask is 1 use x[mask.astype('bool')]"
                       : "an index array of 0 and 1 selects rows 0 and 1, as in MXNet; to select "
                         "the rows where a mask is 1 use nd.contrib.boolean_mask(x, mask)",
                   1) < 0)
    goto done;
  if (mpg_key_check_ndim(&wanted) < 0) goto done;
  if (wanted.ndim == 0 && !array->numpy) wanted = (mpg_shape){.ndim = 1, .dims = {1}};
  if (mpg_shape_size(&wanted) == 0 && !mpg_py_tracked(array)) {
    result = empty_like(array, &wanted);
    goto done;
  }
  rows = mpg_shape_equal(&g.rows, shape) ? Py_NewRef(self) : mpg_py_reshape(self, &g.rows);
  positions = rows ? mpg_key_positions(&g, array) : NULL;
  if (positions == NULL) goto done;
  result = take(mpg_py_array_of(rows), mpg_py_array_of(positions), 0);
  if (result != NULL && !mpg_shape_equal(&mpg_py_array_of(result)->tensor.desc.shape, &wanted))
    Py_SETREF(result, mpg_py_reshape(result, &wanted));
done:
  Py_XDECREF(rows);
  Py_XDECREF(positions);
  Py_DECREF(g.flat);
  return result;
}

PyObject *mpg_py_item(PyObject *self, Py_ssize_t index) {
  mpg_array *array = mpg_py_array_of(self);
  const mpg_shape *shape = &array->tensor.desc.shape;
  if (shape->ndim == 0) {
    PyErr_SetString(mpg_py->errors[MPG_INDEX_ERROR],
                    "an array without dimensions cannot be iterated or indexed");
    return NULL;
  }
  if (index < 0 || index >= shape->dims[0])
    return PyErr_Format(mpg_py->errors[MPG_INDEX_ERROR],
                        "index %zd is out of bounds for axis 0 with size %lld", index,
                        (long long)shape->dims[0]);
  PyObject *key = PyLong_FromSsize_t(index);
  if (key == NULL) return NULL;
  PyObject *result = mpg_key_get_basic(self, key);
  Py_DECREF(key);
  return result;
}

PyObject *mpg_py_subscript(PyObject *self, PyObject *key) {
  mpg_array *array = mpg_py_array_of(self);
  if (!array->numpy &&
      (mpg_key_is_everything(key) || (array->tensor.desc.shape.ndim == 0 && PySlice_Check(key))))
    return Py_NewRef(self);
  return mpg_key_is_basic(key, array->numpy) ? mpg_key_get_basic(self, key)
                                             : get_advanced(self, key);
}
