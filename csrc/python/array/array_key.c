/* Keys with arrays. */
#include "python/array/index.h"

/* Raises the error for an entry that is not an index: ValueError as in MXNet, or IndexError as in
 * NumPy. */
static PyObject *no_index(PyObject *entry, bool numpy) {
  PyObject *brief = mpg_py_brief(entry);
  if (brief != NULL)
    PyErr_Format(
        mpg_py->errors[numpy ? MPG_INDEX_ERROR : MPG_VALUE_ERROR],
        "%U cannot be an index; expected integers, slices, ..., None, or integer or boolean arrays",
        brief);
  Py_XDECREF(brief);
  return NULL;
}

/* Converts an entry to a plain int or slice, so that the user's `__index__` runs only once. NumPy
 * would call it for every index array. Returns a new reference. */
static PyObject *plain_object(PyObject *entry) {
  plain_entry plain;
  if (entry == Py_None || entry == Py_Ellipsis) return Py_NewRef(entry);
  if (mpg_key_unpack_entry(entry, &plain) < 0) return NULL;
  if (!plain.is_slice) return PyLong_FromSsize_t(plain.begin);
  /* Unpacking has replaced None with the limits of Py_ssize_t, which select the same elements. */
  PyObject *begin = PyLong_FromSsize_t(plain.begin), *end = PyLong_FromSsize_t(plain.end),
           *step = PyLong_FromSsize_t(plain.step), *result = NULL;
  if (begin != NULL && end != NULL && step != NULL) result = PySlice_New(begin, end, step);
  Py_XDECREF(begin);
  Py_XDECREF(end);
  Py_XDECREF(step);
  return result;
}

PyObject *mpg_key_numpy_entry(PyObject *entry, bool numpy) {
  if (PyBool_Check(entry)) return numpy ? Py_NewRef(entry) : PyLong_FromLong(entry == Py_True);
  if (mpg_key_entry_is_basic(entry, numpy)) return plain_object(entry);
  PyObject *values;
  if (PyFloat_Check(entry) || PyArray_IsScalar(entry, Floating)) return no_index(entry, numpy);
  if (mpg_py_is_array(entry)) {
    if (mpg_py_expect_readable(mpg_py_array_of(entry),
                               "indexing by this array together with others, or in an assignment") <
        0)
      return NULL;
    values = mpg_py_to_numpy(mpg_py_array_of(entry));
  } else {
    values = PyArray_FromAny(entry, NULL, 0, 0, 0, NULL);
  }
  if (values == NULL) return NULL;
  PyArrayObject *array = (PyArrayObject *)values;
  if (PyArray_ISBOOL(array) || PyArray_ISINTEGER(array)) return values;
  if (PyArray_SIZE(array) == 0 || PyArray_ISFLOAT(array)) {
    PyObject *integers = PyArray_CastToType(array, PyArray_DescrFromType(NPY_INT64), 0);
    Py_DECREF(values);
    return integers;
  }
  Py_DECREF(values);
  return no_index(entry, numpy);
}

/* Returns the number of array dimensions that an entry of the key indexes. */
static int dimensions_of(PyObject *entry) {
  if (entry == Py_None || entry == Py_Ellipsis || PyBool_Check(entry)) return 0;
  if (PyArray_Check(entry) && PyArray_ISBOOL((PyArrayObject *)entry))
    return PyArray_NDIM((PyArrayObject *)entry);
  return 1;
}

static PyObject *index_error(void) {
  /* Converts NumPy's IndexError to MXNetIndexError. */
  PyObject *type, *value, *traceback;
  if (!PyErr_ExceptionMatches(PyExc_IndexError)) return NULL;
  PyErr_Fetch(&type, &value, &traceback);
  PyErr_Format(mpg_py->errors[MPG_INDEX_ERROR], "%S", value ? value : Py_None);
  Py_XDECREF(type);
  Py_XDECREF(value);
  Py_XDECREF(traceback);
  return NULL;
}

/* Returns the index array of one dimension, with values i * stride, broadcast to the shape of all
 * leading dimensions. As a view, it needs memory only for the values of its own dimension. For a
 * key of masks without dimensions, returns the position 0 of the only row, the whole array. */
static PyObject *axis_positions(const mpg_shape *shape, int leading, int axis, int64_t stride) {
  if (leading == 0) return PyArray_ZEROS(0, NULL, NPY_INT64, 0);
  npy_intp length = (npy_intp)shape->dims[axis];
  PyObject *line = PyArray_Arange(0.0, (double)length, 1.0, NPY_INT64);
  if (line == NULL) return NULL;
  int64_t *values = PyArray_DATA((PyArrayObject *)line);
  for (npy_intp i = 0; i < length; i++) values[i] = i * stride;
  npy_intp dims[MPG_MAX_NDIM], strides[MPG_MAX_NDIM] = {0};
  for (int i = 0; i < leading; i++) dims[i] = (npy_intp)shape->dims[i];
  strides[axis] = sizeof(int64_t);
  PyObject *spread = PyArray_New(&PyArray_Type, leading, dims, NPY_INT64, strides, values, 0,
                                 NPY_ARRAY_ALIGNED, NULL);
  /* Takes ownership of `line`. */
  if (spread == NULL || PyArray_SetBaseObject((PyArrayObject *)spread, line) < 0) {
    if (spread == NULL) Py_DECREF(line);
    Py_XDECREF(spread);
    return NULL;
  }
  return spread;
}

/* Fast path for the most common key, a single NumPy array of integers. Returns the indices as row
 * numbers, with the axis size added to negative indices. */
PyArrayObject *mpg_key_row_positions(PyObject *entry, int axis, int64_t size) {
  /* An array with a single reference is a temporary, which is changed in place, not copied. */
  bool own = Py_REFCNT(entry) == 1 && PyArray_CHKFLAGS((PyArrayObject *)entry, NPY_ARRAY_OWNDATA);
  int copy = own ? 0 : NPY_ARRAY_ENSURECOPY;
  PyArrayObject *flat =
      (PyArrayObject *)PyArray_FromAny(entry, PyArray_DescrFromType(NPY_INT64), 0, 0,
                                       NPY_ARRAY_CARRAY | NPY_ARRAY_FORCECAST | copy, NULL);
  if (flat == NULL) return NULL;
  int64_t *values = PyArray_DATA(flat);
  for (npy_intp i = 0, count = PyArray_SIZE(flat); i < count; i++) {
    if (values[i] < -size || values[i] >= size) {
      PyErr_Format(mpg_py->errors[MPG_INDEX_ERROR],
                   "index %lld is out of bounds for axis %d with size %lld", (long long)values[i],
                   axis, (long long)size);
      Py_DECREF(flat);
      return NULL;
    }
    if (values[i] < 0) values[i] += size;
  }
  return flat;
}

int mpg_key_resolve(const mpg_array *array, PyObject *key, gather *result) {
  int status = -1;
  PyObject *sum = NULL, *entries = PyTuple_Check(key) ? Py_NewRef(key) : PyTuple_Pack(1, key),
           *clean = NULL;
  if (entries == NULL) return -1;
  Py_ssize_t count = PyTuple_GET_SIZE(entries);
  clean = PyTuple_New(count);
  if (clean == NULL) goto done;
  int consumed = 0;
  bool ellipsis = false;
  for (Py_ssize_t i = 0; i < count; i++) {
    PyObject *entry = mpg_key_numpy_entry(PyTuple_GET_ITEM(entries, i), array->numpy);
    if (entry == NULL) goto done;
    PyTuple_SET_ITEM(clean, i, entry);
    consumed += dimensions_of(entry);
    ellipsis = ellipsis || entry == Py_Ellipsis;
  }
  /* Reads the shape only now, because the conversions above may run user code that changes it. */
  result->shape = array->tensor.desc.shape;
  const mpg_shape *shape = &result->shape;
  if (consumed > shape->ndim) {
    mpg_key_too_many(key, shape);
    goto done;
  }
  /* Dimensions after the last one that the key touches form rows that are copied as a unit. */
  int leading = ellipsis ? shape->ndim : consumed;
  result->rows = (mpg_shape){.ndim = 1 + shape->ndim - leading};
  result->rows.dims[0] = mpg_shape_product(shape, 0, leading);
  for (int i = leading; i < shape->ndim; i++) result->rows.dims[1 + i - leading] = shape->dims[i];
  if (leading == 0 && !array->numpy) {
    PyErr_SetString(mpg_py->errors[MPG_INDEX_ERROR],
                    "True and False cannot be indices; use 1 and 0, None, or a boolean array");
    goto done;
  }
  if (count == 1 && leading == 1 && PyArray_Check(PyTuple_GET_ITEM(clean, 0)) &&
      PyArray_ISINTEGER((PyArrayObject *)PyTuple_GET_ITEM(clean, 0))) {
    result->flat = mpg_key_row_positions(PyTuple_GET_ITEM(clean, 0), 0, shape->dims[0]);
    status = result->flat ? 0 : -1;
    goto done;
  }
  int64_t stride = 1;
  for (int axis = leading > 0 ? leading - 1 : 0; axis >= 0; axis--) {
    PyObject *positions = axis_positions(shape, leading, axis, stride);
    PyObject *picked = positions ? PyObject_GetItem(positions, clean) : NULL;
    Py_XDECREF(positions);
    if (picked == NULL) {
      index_error();
      goto done;
    }
    if (leading > 0) stride *= shape->dims[axis];
    if (sum == NULL) {
      sum = picked;
      continue;
    }
    Py_SETREF(sum, PyNumber_Add(sum, picked));
    Py_DECREF(picked);
    if (sum == NULL) goto done;
  }
  result->flat = (PyArrayObject *)PyArray_FromAny(sum, PyArray_DescrFromType(NPY_INT64), 0, 0,
                                                  NPY_ARRAY_CARRAY_RO, NULL);
  status = result->flat ? 0 : -1;
done:
  Py_XDECREF(sum);
  Py_XDECREF(clean);
  Py_DECREF(entries);
  return status;
}

mpg_shape mpg_key_gathered_shape(const gather *g) {
  mpg_shape shape = {.ndim = PyArray_NDIM(g->flat) + g->rows.ndim - 1};
  for (int i = 0; i < PyArray_NDIM(g->flat) && i < MPG_MAX_NDIM; i++)
    shape.dims[i] = PyArray_DIM(g->flat, i);
  for (int i = 1; i < g->rows.ndim && PyArray_NDIM(g->flat) + i - 1 < MPG_MAX_NDIM; i++)
    shape.dims[PyArray_NDIM(g->flat) + i - 1] = g->rows.dims[i];
  return shape;
}

int mpg_key_check_ndim(const mpg_shape *shape) {
  if (shape->ndim <= MPG_MAX_NDIM) return 0;
  PyErr_Format(mpg_py->errors[MPG_INDEX_ERROR],
               "the result would have %d dimensions; an array can have at most %d", shape->ndim,
               MPG_MAX_NDIM);
  return -1;
}

PyObject *mpg_key_positions(const gather *g, const mpg_array *array) {
  mpg_dtype dtype = g->rows.dims[0] <= INT32_MAX ? MPG_INT32 : MPG_INT64;
  PyArrayObject *values = mpg_py_as_ndarray((PyObject *)g->flat, dtype);
  if (values == NULL) return NULL;
  PyObject *result = mpg_py_from_ndarray(values, dtype, mpg_array_device_id(array), array->numpy);
  Py_DECREF(values);
  return result;
}

/* --- Masks ------------------------------------------------------------------------------------ */
static int check_mask(const mpg_shape *mask, const mpg_shape *shape, PyObject *key) {
  if (mask->ndim > shape->ndim) return mpg_key_too_many(key, shape);
  for (int i = 0; i < mask->ndim; i++) {
    if (mask->dims[i] == shape->dims[i]) continue;
    PyErr_Format(mpg_py->errors[MPG_INDEX_ERROR],
                 "the mask has size %lld along axis %d, but the array has size %lld",
                 (long long)mask->dims[i], i, (long long)shape->dims[i]);
    return -1;
  }
  return 0;
}

int mpg_key_mask(PyObject *self, PyObject *key, PyObject **mask) {
  const mpg_array *array = mpg_py_array_of(self);
  *mask = NULL;
  if (PyTuple_Check(key) && PyTuple_GET_SIZE(key) == 1) key = PyTuple_GET_ITEM(key, 0);
  if (!array->numpy || !mpg_py_is_array(key)) return 0;
  const mpg_desc *desc = &mpg_py_array_of(key)->tensor.desc;
  if (desc->dtype != MPG_BOOL || desc->shape.ndim == 0) return 0;
  if (check_mask(&desc->shape, &array->tensor.desc.shape, key) < 0) return -1;
  *mask = mpg_py_to_device(key, mpg_array_device_id(array), false);
  if (*mask != NULL) Py_SETREF(*mask, mpg_py_as_kind(*mask, true));
  return *mask != NULL ? 0 : -1;
}

PyObject *mpg_key_merge(PyObject *self, int axis, int count) {
  const mpg_shape *shape = &mpg_py_array_of(self)->tensor.desc.shape;
  mpg_shape merged = {.ndim = shape->ndim - count + 1};
  for (int i = 0; i < axis; i++) merged.dims[i] = shape->dims[i];
  merged.dims[axis] = mpg_shape_product(shape, axis, axis + count);
  for (int i = axis + count; i < shape->ndim; i++) merged.dims[i - count + 1] = shape->dims[i];
  return mpg_shape_equal(&merged, shape) ? Py_NewRef(self) : mpg_py_reshape(self, &merged);
}
