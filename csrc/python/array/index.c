/* x[key] and x[key] = value.
 *
 * A basic key (integers, slices, Ellipsis, None) is converted to a begin, end and step for each
 * dimension. A contiguous selection is returned as a view; other selections use the op `slice`.
 * Under record() and hybridize(), both use ops. An advanced key, which contains arrays, is resolved
 * on the host: NumPy applies it to one index array per dimension that the key touches. The sum of
 * the results holds the flat positions of the selected elements or rows. The index arrays are
 * broadcast views, so the cost depends only on the result's size. A single `take` (or scatter)
 * follows.
 */
#include "autograd/trace.h"
#include "python/core.h"
#include "python/array/numpy.h"

typedef struct basic_key {
  int count; /* number of dimensions of the array */
  int64_t begin[MPG_MAX_NDIM], step[MPG_MAX_NDIM], length[MPG_MAX_NDIM];
  bool dropped[MPG_MAX_NDIM]; /* true if the entry is an integer, which removes the dimension */
  mpg_shape sliced;           /* shape of the selection, including removed dimensions */
  /* Shape without removed dimensions and with new axes (None). In mx.nd, (1,) instead of (). */
  mpg_shape result;
} basic_key;

static int too_many(PyObject *key, const mpg_shape *shape) {
  char text[MPG_SHAPE_TEXT_SIZE];
  PyObject *brief = mpg_py_brief(key);
  if (brief != NULL)
    PyErr_Format(mpg_py->errors[MPG_INDEX_ERROR], "too many indices in %U for an array of shape %s",
                 brief, mpg_shape_text(shape, text, sizeof text));
  Py_XDECREF(brief);
  return -1;
}

/* Accepts True and False, which are the integers 1 and 0, as in MXNet. */
static bool is_integer(PyObject *object) {
  return PyLong_Check(object) || PyArray_IsScalar(object, Integer);
}
static bool is_basic(PyObject *object) {
  return object == Py_None || object == Py_Ellipsis || PySlice_Check(object) || is_integer(object);
}

/* One entry of an index key, an integer or a slice, converted to C integers. */
typedef struct plain_entry {
  bool is_slice;
  Py_ssize_t begin; /* the integer if this is not a slice */
  Py_ssize_t end, step;
} plain_entry;

/* The integers and slices of a basic key in order. Unpacking runs the user's `__index__`, which may
 * change the array's shape, so a key is unpacked before the array is read. */
typedef struct plain_key {
  Py_ssize_t count; /* may exceed MPG_MAX_NDIM, the number of entries stored */
  plain_entry entries[MPG_MAX_NDIM];
} plain_key;

static const plain_entry EVERYTHING = {.is_slice = true, .end = PY_SSIZE_T_MAX, .step = 1};

static PyObject *const *entries_of(PyObject *const *key, Py_ssize_t *count) {
  *count = PyTuple_Check(*key) ? PyTuple_GET_SIZE(*key) : 1;
  return PyTuple_Check(*key) ? &PyTuple_GET_ITEM(*key, 0) : key;
}

static int unpack_entry(PyObject *object, plain_entry *entry) {
  entry->is_slice = PySlice_Check(object);
  if (entry->is_slice) return PySlice_Unpack(object, &entry->begin, &entry->end, &entry->step);
  entry->begin = PyNumber_AsSsize_t(object, PyExc_IndexError);
  return entry->begin == -1 && PyErr_Occurred() ? -1 : 0;
}

static int unpack_basic(PyObject *key, plain_key *plain) {
  Py_ssize_t count;
  PyObject *const *entries = entries_of(&key, &count);
  plain->count = 0;
  for (Py_ssize_t i = 0; i < count; i++) {
    if (entries[i] == Py_Ellipsis || entries[i] == Py_None) continue;
    if (plain->count < MPG_MAX_NDIM && unpack_entry(entries[i], &plain->entries[plain->count]) < 0)
      return -1;
    plain->count++;
  }
  return 0;
}

static int add_dimension(basic_key *basic, const mpg_shape *shape, const plain_entry *entry) {
  int axis = basic->count;
  int64_t size = shape->dims[axis];
  Py_ssize_t begin = entry->begin, end = entry->end;
  if (entry->is_slice) {
    basic->length[axis] = PySlice_AdjustIndices((Py_ssize_t)size, &begin, &end, entry->step);
    basic->begin[axis] = begin;
    basic->step[axis] = entry->step;
    basic->dropped[axis] = false;
    basic->result.dims[basic->result.ndim++] = basic->length[axis];
  } else {
    if (begin < -size || begin >= size) {
      PyErr_Format(mpg_py->errors[MPG_INDEX_ERROR],
                   "index %zd is out of bounds for axis %d with size %lld", begin, axis,
                   (long long)size);
      return -1;
    }
    basic->begin[axis] = begin < 0 ? begin + size : begin;
    basic->step[axis] = 1;
    basic->length[axis] = 1;
    basic->dropped[axis] = true;
  }
  basic->sliced.dims[axis] = basic->length[axis];
  basic->count++;
  return 0;
}

/* Resolves the unpacked key `plain` against a shape. `key` only locates None and Ellipsis. */
static int parse_basic(PyObject *key, const plain_key *plain, const mpg_shape *shape, bool numpy,
                       basic_key *basic) {
  memset(basic, 0, sizeof *basic);
  Py_ssize_t count;
  PyObject *const *entries = entries_of(&key, &count);
  int ellipses = 0, added = 0;
  for (Py_ssize_t i = 0; i < count; i++) {
    if (entries[i] == Py_Ellipsis)
      ellipses++;
    else if (entries[i] == Py_None)
      added++;
  }
  if (ellipses > 1) {
    PyErr_SetString(mpg_py->errors[MPG_INDEX_ERROR],
                    "an index can have at most one ellipsis (...)");
    return -1;
  }
  if (plain->count > shape->ndim) return too_many(key, shape);
  if (shape->ndim + added > MPG_MAX_NDIM) {
    PyErr_Format(mpg_py->errors[MPG_INDEX_ERROR], "an array can have at most %d dimensions",
                 MPG_MAX_NDIM);
    return -1;
  }
  const plain_entry *next = plain->entries;
  /* Number of dimensions without an entry, which the ellipsis or the end of the key selects. */
  int whole = shape->ndim - (int)plain->count;
  for (Py_ssize_t i = 0; i <= count; i++) {
    if (i == count ? ellipses == 0 : entries[i] == Py_Ellipsis) {
      for (; whole > 0; whole--)
        if (add_dimension(basic, shape, &EVERYTHING) < 0) return -1;
    } else if (i < count && entries[i] == Py_None) {
      basic->result.dims[basic->result.ndim++] = 1;
    } else if (i < count && add_dimension(basic, shape, next++) < 0) {
      return -1;
    }
  }
  basic->sliced.ndim = basic->count;
  if (basic->result.ndim == 0 && shape->ndim > 0 && !numpy)
    basic->result = (mpg_shape){.ndim = 1, .dims = {1}};
  return 0;
}

/* True if the selected elements are contiguous. Sets *first to the index of the first element. */
static bool contiguous(const basic_key *basic, const mpg_shape *shape, int64_t *first) {
  int64_t stride = 1, offset = 0;
  /* True once a dimension to the right is selected only in part. All dimensions to the left must
   * then select a single index. */
  bool partial = false;
  for (int i = basic->count - 1; i >= 0; i--) {
    if (basic->length[i] > 1 && (basic->step[i] != 1 || partial)) return false;
    if (basic->length[i] != shape->dims[i]) partial = true;
    offset += basic->begin[i] * stride;
    stride *= shape->dims[i];
  }
  *first = offset;
  return true;
}

static PyObject *view(const mpg_tensor *source, int64_t first, const mpg_shape *shape, bool numpy) {
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

/* Fills in begin, end and step for the op `slice`. */
static void slice_params(const basic_key *basic, mpg_tuple *begin, mpg_tuple *end,
                         mpg_tuple *step) {
  memset(begin, 0, sizeof *begin);
  memset(end, 0, sizeof *end);
  memset(step, 0, sizeof *step);
  begin->count = end->count = step->count = basic->count;
  for (int i = 0; i < basic->count; i++) {
    begin->values[i] = basic->begin[i];
    int64_t stop = basic->begin[i] + basic->length[i] * basic->step[i];
    end->values[i] = stop < 0 ? MPG_TUPLE_NONE : stop;
    step->values[i] = basic->step[i];
  }
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

/* Returns x[key]. `tensor` is the tensor that the array had when `basic` was resolved; the caller
 * retains it. The array may have a different tensor now, so the ops recheck the key. */
static PyObject *get_resolved(PyObject *self, const mpg_tensor *tensor, const basic_key *basic) {
  mpg_array *array = mpg_py_array_of(self);
  const mpg_shape *shape = &tensor->desc.shape;
  bool tracked = mpg_py_tracked(array);
  if (!tracked && mpg_py_expect_value(array, "indexing") < 0) return NULL;
  int64_t first;
  if (!tracked && contiguous(basic, shape, &first))
    return view(tensor, first, &basic->result, array->numpy);
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
  slice_params(basic, &begin, &end, &step);
  PyObject *sliced = mpg_py_call_named("slice", &array, 1, NULL, "begin", &begin, "end", &end,
                                       "step", &step, NULL);
  if (sliced == NULL || mpg_shape_equal(&basic->sliced, &basic->result)) return sliced;
  PyObject *result = mpg_py_reshape(sliced, &basic->result);
  Py_DECREF(sliced);
  return result;
}

static PyObject *get_basic(PyObject *self, PyObject *key) {
  plain_key plain;
  basic_key basic;
  if (unpack_basic(key, &plain) < 0) return NULL;
  mpg_tensor tensor = mpg_py_array_of(self)->tensor;
  if (parse_basic(key, &plain, &tensor.desc.shape, mpg_py_array_of(self)->numpy, &basic) < 0)
    return NULL;
  mpg_tensor_retain(&tensor);
  PyObject *result = get_resolved(self, &tensor, &basic);
  mpg_tensor_release(&tensor);
  return result;
}

/* --- Keys with arrays ------------------------------------------------------------------------- */
static PyObject *no_index(PyObject *entry) {
  PyObject *brief = mpg_py_brief(entry);
  if (brief != NULL)
    PyErr_Format(
        mpg_py->errors[MPG_VALUE_ERROR],
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
  if (unpack_entry(entry, &plain) < 0) return NULL;
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

/* Converts an entry of an advanced key for NumPy. NDArrays become ndarrays. Float arrays become
 * integer arrays, as in MXNet. Returns a new reference. */
static PyObject *numpy_entry(PyObject *entry) {
  if (PyBool_Check(entry)) return PyLong_FromLong(entry == Py_True);
  if (is_basic(entry)) return plain_object(entry);
  PyObject *values;
  if (PyFloat_Check(entry) || PyArray_IsScalar(entry, Floating)) return no_index(entry);
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
  return no_index(entry);
}

typedef struct gather {
  mpg_shape shape;     /* the array's shape, read after all entries of the key were converted */
  PyArrayObject *flat; /* owned: selected row numbers in `rows`, int64, C-contiguous */
  mpg_shape rows;      /* the array's shape with all leading dimensions merged into one */
} gather;

/* Returns the number of array dimensions that an entry of the key indexes. */
static int dimensions_of(PyObject *entry) {
  if (entry == Py_None || entry == Py_Ellipsis) return 0;
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
 * leading dimensions. As a view, it needs memory only for the values of its own dimension. */
static PyObject *axis_positions(const mpg_shape *shape, int leading, int axis, int64_t stride) {
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

/* Fast path for the most common key, a single array of integers. Returns the indices as row
 * numbers, with the axis size added to negative indices. */
static PyArrayObject *row_positions(PyObject *entry, int axis, int64_t size) {
  PyArrayObject *flat = (PyArrayObject *)PyArray_FromAny(
      entry, PyArray_DescrFromType(NPY_INT64), 0, 0,
      NPY_ARRAY_CARRAY | NPY_ARRAY_ENSURECOPY | NPY_ARRAY_FORCECAST, NULL);
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

static int resolve(const mpg_array *array, PyObject *key, gather *result) {
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
    PyObject *entry = numpy_entry(PyTuple_GET_ITEM(entries, i));
    if (entry == NULL) goto done;
    PyTuple_SET_ITEM(clean, i, entry);
    consumed += dimensions_of(entry);
    ellipsis = ellipsis || entry == Py_Ellipsis;
  }
  /* Reads the shape only now, because the conversions above may run user code that changes it. */
  result->shape = array->tensor.desc.shape;
  const mpg_shape *shape = &result->shape;
  if (consumed > shape->ndim) {
    too_many(key, shape);
    goto done;
  }
  /* Dimensions after the last one that the key touches form rows that are copied as a unit. */
  int leading = ellipsis ? shape->ndim : consumed;
  result->rows = (mpg_shape){.ndim = 1 + shape->ndim - leading};
  result->rows.dims[0] = mpg_shape_product(shape, 0, leading);
  for (int i = leading; i < shape->ndim; i++) result->rows.dims[1 + i - leading] = shape->dims[i];
  if (leading == 0) {
    PyErr_SetString(mpg_py->errors[MPG_INDEX_ERROR],
                    "True and False cannot be indices; use 1 and 0, None, or a boolean array");
    goto done;
  }
  if (count == 1 && leading == 1 && PyArray_Check(PyTuple_GET_ITEM(clean, 0)) &&
      PyArray_ISINTEGER((PyArrayObject *)PyTuple_GET_ITEM(clean, 0))) {
    result->flat = row_positions(PyTuple_GET_ITEM(clean, 0), 0, shape->dims[0]);
    status = result->flat ? 0 : -1;
    goto done;
  }
  int64_t stride = 1;
  for (int axis = leading - 1; axis >= 0; axis--) {
    PyObject *positions = axis_positions(shape, leading, axis, stride);
    PyObject *picked = positions ? PyObject_GetItem(positions, clean) : NULL;
    Py_XDECREF(positions);
    if (picked == NULL) {
      index_error();
      goto done;
    }
    stride *= shape->dims[axis];
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

static mpg_shape gathered_shape(const gather *g) {
  mpg_shape shape = {.ndim = PyArray_NDIM(g->flat) + g->rows.ndim - 1};
  for (int i = 0; i < PyArray_NDIM(g->flat) && i < MPG_MAX_NDIM; i++)
    shape.dims[i] = PyArray_DIM(g->flat, i);
  for (int i = 1; i < g->rows.ndim && PyArray_NDIM(g->flat) + i - 1 < MPG_MAX_NDIM; i++)
    shape.dims[PyArray_NDIM(g->flat) + i - 1] = g->rows.dims[i];
  return shape;
}

static int check_ndim(const mpg_shape *shape) {
  if (shape->ndim <= MPG_MAX_NDIM) return 0;
  PyErr_Format(mpg_py->errors[MPG_INDEX_ERROR],
               "the result would have %d dimensions; an array can have at most %d", shape->ndim,
               MPG_MAX_NDIM);
  return -1;
}

/* Returns the selected row numbers as an NDArray on the device, int32 if they fit, else int64. */
static PyObject *positions_array(const gather *g, mpg_device_id device) {
  mpg_dtype dtype = g->rows.dims[0] <= INT32_MAX ? MPG_INT32 : MPG_INT64;
  PyArrayObject *values = mpg_py_as_ndarray((PyObject *)g->flat, dtype);
  if (values == NULL) return NULL;
  PyObject *result = mpg_py_from_ndarray(values, dtype, device);
  Py_DECREF(values);
  return result;
}

static PyObject *take(mpg_array *source, mpg_array *positions, int64_t axis) {
  mpg_array *inputs[2] = {source, positions};
  return mpg_py_call_named("take", inputs, 2, NULL, "axis", &axis, NULL);
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

/* True for x[:], which is x itself, as in MXNet. */
static bool is_everything(PyObject *key) {
  if (PyTuple_Check(key)) return PyTuple_GET_SIZE(key) == 0;
  if (!PySlice_Check(key)) return false;
  const PySliceObject *slice = (const PySliceObject *)key;
  return slice->start == Py_None && slice->stop == Py_None && slice->step == Py_None;
}

/* Returns the axis of the only index in a key of the form (:, ..., index), or -1. */
static int axis_of_only_index(PyObject *key) {
  if (!PyTuple_Check(key) || PyTuple_GET_SIZE(key) < 2) return -1;
  Py_ssize_t last = PyTuple_GET_SIZE(key) - 1;
  for (Py_ssize_t i = 0; i < last; i++)
    if (!PySlice_Check(PyTuple_GET_ITEM(key, i)) || !is_everything(PyTuple_GET_ITEM(key, i)))
      return -1;
  PyObject *index = PyTuple_GET_ITEM(key, last);
  bool many = PyList_Check(index) || PyArray_Check(index);
  return many && last < MPG_MAX_NDIM ? (int)last : -1;
}

/* Indexes one axis with an op that ignores the sizes of the other axes, so that a traced op fits
 * inputs of other sizes. Returns NULL without an exception if the key needs the general method. */
static PyObject *take_along(mpg_array *array, PyObject *key, int axis) {
  PyObject *entry = numpy_entry(PyTuple_GET_ITEM(key, axis)), *positions = NULL, *result = NULL;
  if (entry == NULL) return NULL;
  const mpg_shape *shape = &array->tensor.desc.shape; /* read after user code has run */
  PyArrayObject *index = (PyArrayObject *)entry;
  if (axis < shape->ndim && PyArray_ISINTEGER(index) && PyArray_NDIM(index) > 0 &&
      PyArray_SIZE(index) > 0 && mpg_shape_size(shape) > 0 &&
      PyArray_NDIM(index) + shape->ndim - 1 <= MPG_MAX_NDIM) {
    gather g = {.rows = {.ndim = 1, .dims = {shape->dims[axis]}}};
    g.flat = row_positions(entry, axis, shape->dims[axis]);
    if (g.flat != NULL) positions = positions_array(&g, mpg_array_device_id(array));
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
  /* The host does not know the value of a traced index array, so the array is passed to the op. */
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
  if (resolve(array, key, &g) < 0) return NULL;
  shape = &g.shape;
  mpg_shape wanted = gathered_shape(&g);
  PyObject *result = NULL, *rows = NULL, *positions = NULL;
  if (looks_like_mask(key, shape, &g) &&
      PyErr_WarnEx(PyExc_UserWarning,
                   "an index array of 0 and 1 selects rows 0 and 1, as in MXNet; to select the "
                   "rows where a mask is 1 use nd.contrib.boolean_mask(x, mask)",
                   1) < 0)
    goto done;
  if (check_ndim(&wanted) < 0) goto done;
  if (wanted.ndim == 0) wanted = (mpg_shape){.ndim = 1, .dims = {1}};
  if (mpg_shape_size(&wanted) == 0 && !mpg_py_tracked(array)) {
    result = empty_like(array, &wanted);
    goto done;
  }
  rows = mpg_shape_equal(&g.rows, shape) ? Py_NewRef(self) : mpg_py_reshape(self, &g.rows);
  positions = rows ? positions_array(&g, mpg_array_device_id(array)) : NULL;
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

static bool basic_only(PyObject *key) {
  if (!PyTuple_Check(key)) return is_basic(key);
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(key); i++)
    if (!is_basic(PyTuple_GET_ITEM(key, i))) return false;
  return true;
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
  PyObject *result = get_basic(self, key);
  Py_DECREF(key);
  return result;
}

PyObject *mpg_py_subscript(PyObject *self, PyObject *key) {
  mpg_array *array = mpg_py_array_of(self);
  if (is_everything(key) || (array->tensor.desc.shape.ndim == 0 && PySlice_Check(key)))
    return Py_NewRef(self);
  return basic_only(key) ? get_basic(self, key) : get_advanced(self, key);
}

/* --- Assignment ------------------------------------------------------------------------------- */
/* Converts the value to an NDArray with the target's dtype and device, broadcast to `shape`.
 * Returns a new reference. Records the conversion while recording. */
static PyObject *prepare(const mpg_array *target, PyObject *value, const mpg_shape *shape) {
  mpg_device_id device = mpg_array_device_id(target);
  PyObject *step;
  if (mpg_py_is_array(value)) {
    step = mpg_py_to_device(value, device, false);
    if (step != NULL) Py_SETREF(step, mpg_py_cast(step, target->tensor.desc.dtype));
  } else {
    step = mpg_py_from_object(value, target->tensor.desc.dtype, device);
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
  mpg_device_id device = mpg_array_device_id(array);
  int result = done_of(mpg_py_call_named("_copyto", &source, 1, array, "ctx", &device, NULL));
  Py_DECREF(prepared);
  return result;
}

/* The beginning of MXNet's message, which programs search for. */
#define RECORDING                                                                               \
  "Inplace operations (+=, -=, x[:]=, etc) are not supported when recording with autograd, as " \
  "here: "

/* Rejects the assignment of a recorded value to a part of an array, as in MXNet. An array has a
 * single node on the tape, so its elements cannot come from different nodes. */
static int refuse_recorded(PyObject *value) {
  if (!mpg_py_is_array(value) || !mpg_py_tracked(mpg_py_array_of(value))) return 0;
  PyErr_SetString(mpg_py->errors[MPG_ERROR], RECORDING
                  "a recorded value cannot be assigned to a part of an array; use nd.concat, "
                  "nd.where or nd.scatter_nd");
  return -1;
}

/* Assigns to a resolved basic key. `tensor` is the tensor that the array had when `basic` was
 * resolved; the caller retains it. */
static int assign_resolved(mpg_array *array, const mpg_tensor *tensor, const basic_key *basic,
                           PyObject *value) {
  const mpg_shape *shape = &tensor->desc.shape;
  if (mpg_shape_size(&basic->sliced) == 0) return assign_nothing(array, value, &basic->result);
  int64_t first;
  if (mpg_shape_equal(&basic->result, shape) && contiguous(basic, shape, &first))
    return assign_all(array, value);
  if (refuse_recorded(value) < 0) return -1;
  if (contiguous(basic, shape, &first)) {
    /* The value is broadcast to the shape of x[key], from which integers remove dimensions. */
    mpg_shape target = basic->result;
    PyObject *part = view(tensor, first, &target, array->numpy);
    if (part == NULL) return -1;
    int result = assign_all(mpg_py_array_of(part), value);
    Py_DECREF(part);
    return result;
  }
  mpg_tuple begin, end, step;
  slice_params(basic, &begin, &end, &step);
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
  if (parse_basic(key, plain, &tensor.desc.shape, array->numpy, &basic) < 0) return -1;
  mpg_tensor_retain(&tensor);
  int result = assign_resolved(array, &tensor, &basic, value);
  mpg_tensor_release(&tensor);
  return result;
}

static int assign_advanced(PyObject *self, PyObject *key, PyObject *value) {
  mpg_array *array = mpg_py_array_of(self);
  if (refuse_recorded(value) < 0) return -1;
  gather g = {0};
  if (resolve(array, key, &g) < 0) return -1;
  mpg_shape wanted = gathered_shape(&g);
  PyObject *rows = NULL, *positions = NULL, *prepared = NULL;
  int result = -1;
  if (check_ndim(&wanted) < 0) goto done;
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
  positions = rows ? positions_array(&g, mpg_array_device_id(array)) : NULL;
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
  bool basic = basic_only(key);
  if (basic && unpack_basic(key, &plain) < 0) return -1;
  if (mpg_py_expect_value(array, "x[...] = value") < 0) return -1;
  MPG_PY_TRY_INT(mpg_trace_check_write(array, "x[...] = value"));
  if (array->node != NULL && mpg_autograd_recording()) {
    PyErr_SetString(mpg_py->errors[MPG_ERROR], RECORDING
                    "the array is part of the recorded computation, and backward needs its values; "
                    "compute a new array (nd.where, x * mask, ...), or assign under "
                    "autograd.pause() or before recording");
    return -1;
  }
  if ((PyTuple_Check(key) && PyTuple_GET_SIZE(key) == 0) ||
      (array->tensor.desc.shape.ndim == 0 && (PySlice_Check(key) || key == Py_Ellipsis)))
    return assign_all(array, value);
  return basic ? assign_basic(self, key, &plain, value) : assign_advanced(self, key, value);
}
