/* x[key] of an array of mx.np with index arrays and masks that a trace computes.
 *
 * Masks are replaced by the indices of their true elements, which splits the program, because the
 * number of indices depends on the values. Slices are applied first. The index arrays, which must
 * then index consecutive dimensions, are combined to positions in these dimensions, and `take`
 * reads them. Unlike in an eager call, indices out of range raise no error: they are taken modulo
 * the size.
 */
#include "autograd/trace.h"
#include "python/array/index.h"

static bool is_traced(PyObject *entry) {
  return mpg_py_is_array(entry) && mpg_trace_takes(mpg_py_array_of(entry)) &&
         mpg_py_array_of(entry)->tensor.desc.dtype != MPG_BOOL;
}

static bool is_traced_mask(PyObject *entry) {
  return mpg_py_is_array(entry) && mpg_trace_takes(mpg_py_array_of(entry)) &&
         mpg_py_array_of(entry)->tensor.desc.dtype == MPG_BOOL &&
         mpg_py_array_of(entry)->tensor.desc.shape.ndim > 0;
}

bool mpg_key_has_traced(PyObject *key) {
  if (!PyTuple_Check(key)) return is_traced(key);
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(key); i++)
    if (is_traced(PyTuple_GET_ITEM(key, i)) || is_traced_mask(PyTuple_GET_ITEM(key, i)))
      return true;
  return false;
}

static int append(PyObject *list, PyObject *sizes, PyObject *entry, int64_t size) {
  PyObject *number = PyLong_FromLongLong(size);
  int result = number == NULL ? -1 : PyList_Append(sizes, number);
  Py_XDECREF(number);
  return result < 0 ? -1 : PyList_Append(list, entry);
}

/* Replaces each traced mask in a key by one index array for each of its dimensions. `sizes` becomes
 * a list with the size that each entry of the result requires of its dimension, or -1. */
static PyObject *without_masks(PyObject *key, PyObject **sizes) {
  PyObject *numpy = PyImport_ImportModule("mpgluon.numpy"), *list = PyList_New(0), *result = NULL;
  *sizes = PyList_New(0);
  if (numpy == NULL || list == NULL || *sizes == NULL) goto done;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(key); i++) {
    PyObject *entry = PyTuple_GET_ITEM(key, i);
    if (!is_traced_mask(entry)) {
      if (append(list, *sizes, entry, -1) < 0) goto done;
      continue;
    }
    mpg_shape shape = mpg_py_array_of(entry)->tensor.desc.shape;
    PyObject *places = PyObject_CallMethod(numpy, "nonzero", "O", entry);
    int status = places == NULL ? -1 : 0;
    for (int axis = 0; status == 0 && axis < shape.ndim; axis++)
      status = append(list, *sizes, PyTuple_GET_ITEM(places, axis), shape.dims[axis]);
    Py_XDECREF(places);
    if (status < 0) goto done;
  }
  result = PyList_AsTuple(list);
done:
  if (result == NULL) Py_CLEAR(*sizes);
  Py_XDECREF(numpy);
  Py_XDECREF(list);
  return result;
}

/* Raises IndexError if a mask has another size than the dimension that it indexes. */
static int check_size(PyObject *sizes, Py_ssize_t entry, int64_t axis, int64_t size) {
  int64_t wanted = PyLong_AsLongLong(PyList_GET_ITEM(sizes, entry));
  if (wanted < 0 || wanted == size) return 0;
  PyErr_Format(mpg_py->errors[MPG_INDEX_ERROR],
               "a mask of size %lld cannot index axis %lld of size %lld", (long long)wanted,
               (long long)axis, (long long)size);
  return -1;
}

/* True for an entry that stays a dimension of the result. */
static bool is_dimension(PyObject *entry) {
  return entry == Py_None || entry == Py_Ellipsis || PySlice_Check(entry);
}

/* Applies the entries of the key that are not indices; x[1:, None, i] becomes x[1:, None, :]. */
static PyObject *apply_slices(PyObject *self, PyObject *key) {
  Py_ssize_t count = PyTuple_GET_SIZE(key);
  PyObject *whole = PySlice_New(NULL, NULL, NULL), *rest = PyTuple_New(count), *result = NULL;
  for (Py_ssize_t i = 0; rest != NULL && whole != NULL && i < count; i++) {
    PyObject *entry = PyTuple_GET_ITEM(key, i);
    PyTuple_SET_ITEM(rest, i, Py_NewRef(is_dimension(entry) ? entry : whole));
  }
  if (rest != NULL && whole != NULL) result = mpg_key_get_basic(self, rest);
  Py_XDECREF(rest);
  Py_XDECREF(whole);
  return result;
}

static PyObject *refuse(void) {
  return PyErr_Format(mpg_py->errors[MPG_NOT_IMPLEMENTED],
                      "index arrays that hybridize() traces must be integers for consecutive "
                      "dimensions; use np.take, np.where, or a mask on its own");
}

/* Converts an index to an int64 array in [0, size). */
static PyObject *wrapped(PyObject *entry, const mpg_array *like, int64_t size) {
  PyObject *result;
  if (mpg_py_is_array(entry)) {
    result = mpg_py_to_device(entry, mpg_array_device_id(like), false);
  } else {
    PyObject *values = mpg_key_numpy_entry(entry, true);
    if (values == NULL) return NULL;
    bool mask = PyArray_Check(values) && PyArray_ISBOOL((PyArrayObject *)values);
    result =
        mask ? refuse() : mpg_py_array_from(values, MPG_INT64, mpg_array_device_id(like), true);
    Py_DECREF(values);
  }
  if (result != NULL) Py_SETREF(result, mpg_py_cast(result, MPG_INT64));
  if (result == NULL) return NULL;
  mpg_array *input = mpg_py_array_of(result);
  double modulus = (double)size;
  Py_SETREF(result, mpg_py_call_named("_mod_scalar", &input, 1, NULL, "scalar", &modulus, NULL));
  return result;
}

/* Returns positions * size + index. */
static PyObject *next_positions(PyObject *positions, PyObject *index, int64_t size) {
  double factor = (double)size;
  mpg_array *input = mpg_py_array_of(positions);
  PyObject *scaled = mpg_py_call_named("_mul_scalar", &input, 1, NULL, "scalar", &factor, NULL);
  if (scaled == NULL) return NULL;
  mpg_array *inputs[2] = {mpg_py_array_of(scaled), mpg_py_array_of(index)};
  PyObject *result = mpg_py_call_named("broadcast_add", inputs, 2, NULL, NULL);
  Py_DECREF(scaled);
  return result;
}

PyObject *mpg_key_get_traced(PyObject *self, PyObject *key) {
  PyObject *entries = PyTuple_Check(key) ? Py_NewRef(key) : PyTuple_Pack(1, key), *sizes = NULL;
  if (entries != NULL) Py_SETREF(entries, without_masks(entries, &sizes));
  if (entries == NULL) return NULL;
  Py_ssize_t count = PyTuple_GET_SIZE(entries), first = -1, last = -1;
  bool after_ellipsis = false;
  for (Py_ssize_t i = 0; i < count; i++) {
    PyObject *entry = PyTuple_GET_ITEM(entries, i);
    if (is_dimension(entry)) {
      after_ellipsis = after_ellipsis || (first < 0 && entry == Py_Ellipsis);
      continue;
    }
    bool bools = PyBool_Check(entry) || (mpg_py_is_array(entry) && !is_traced(entry) &&
                                         mpg_py_array_of(entry)->tensor.desc.dtype == MPG_BOOL);
    if (bools || (last >= 0 && last != i - 1)) {
      Py_DECREF(entries);
      Py_DECREF(sizes);
      return refuse();
    }
    if (first < 0) first = i;
    last = i;
  }
  PyObject *rest = apply_slices(self, entries), *positions = NULL, *merged = NULL, *result = NULL;
  if (rest == NULL) goto done;
  const mpg_array *array = mpg_py_array_of(rest);
  const mpg_shape *shape = &array->tensor.desc.shape;
  int64_t axis = after_ellipsis ? shape->ndim - (count - first) : first;
  for (Py_ssize_t i = first; i <= last; i++) {
    int64_t size = shape->dims[axis + i - first];
    if (check_size(sizes, i, axis + i - first, size) < 0) goto done;
    PyObject *index = wrapped(PyTuple_GET_ITEM(entries, i), array, size);
    if (index == NULL) goto done;
    if (positions == NULL) {
      positions = index;
      continue;
    }
    Py_SETREF(positions, next_positions(positions, index, size));
    Py_DECREF(index);
    if (positions == NULL) goto done;
  }
  merged = mpg_key_merge(rest, (int)axis, (int)(last - first + 1));
  if (merged == NULL) goto done;
  mpg_array *inputs[2] = {mpg_py_array_of(merged), mpg_py_array_of(positions)};
  result = mpg_py_call_named("take", inputs, 2, NULL, "axis", &axis, NULL);
done:
  Py_DECREF(entries);
  Py_DECREF(sizes);
  Py_XDECREF(rest);
  Py_XDECREF(positions);
  Py_XDECREF(merged);
  return result;
}
