/* x[key] of an array of mx.np with index arrays that a trace computes.
 *
 * Slices are applied first. The index arrays, which must then index consecutive dimensions, are
 * combined to positions in these dimensions, and `take` reads them. Unlike in an eager call,
 * indices out of range raise no error: they are taken modulo the size.
 */
#include "autograd/trace.h"
#include "python/array/index.h"

static bool is_traced(PyObject *entry) {
  return mpg_py_is_array(entry) && mpg_trace_takes(mpg_py_array_of(entry)) &&
         mpg_py_array_of(entry)->tensor.desc.dtype != MPG_BOOL;
}

bool mpg_key_has_traced(PyObject *key) {
  if (!PyTuple_Check(key)) return is_traced(key);
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(key); i++)
    if (is_traced(PyTuple_GET_ITEM(key, i))) return true;
  return false;
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
  PyObject *entries = PyTuple_Check(key) ? Py_NewRef(key) : PyTuple_Pack(1, key);
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
  Py_XDECREF(rest);
  Py_XDECREF(positions);
  Py_XDECREF(merged);
  return result;
}
