/* Basic keys: integers, slices, Ellipsis and None. */
#include "python/array/index.h"

int mpg_key_too_many(PyObject *key, const mpg_shape *shape) {
  char text[MPG_SHAPE_TEXT_SIZE];
  PyObject *brief = mpg_py_brief(key);
  if (brief != NULL)
    PyErr_Format(mpg_py->errors[MPG_INDEX_ERROR], "too many indices in %U for an array of shape %s",
                 brief, mpg_shape_text(shape, text, sizeof text));
  Py_XDECREF(brief);
  return -1;
}

static bool is_integer(PyObject *object, bool numpy) {
  if (numpy && PyBool_Check(object)) return false;
  return PyLong_Check(object) || PyArray_IsScalar(object, Integer);
}

bool mpg_key_entry_is_basic(PyObject *object, bool numpy) {
  return object == Py_None || object == Py_Ellipsis || PySlice_Check(object) ||
         is_integer(object, numpy);
}

static const plain_entry EVERYTHING = {.is_slice = true, .end = PY_SSIZE_T_MAX, .step = 1};

static PyObject *const *entries_of(PyObject *const *key, Py_ssize_t *count) {
  *count = PyTuple_Check(*key) ? PyTuple_GET_SIZE(*key) : 1;
  return PyTuple_Check(*key) ? &PyTuple_GET_ITEM(*key, 0) : key;
}

int mpg_key_unpack_entry(PyObject *object, plain_entry *entry) {
  entry->is_slice = PySlice_Check(object);
  if (entry->is_slice) return PySlice_Unpack(object, &entry->begin, &entry->end, &entry->step);
  entry->begin = PyNumber_AsSsize_t(object, PyExc_IndexError);
  return entry->begin == -1 && PyErr_Occurred() ? -1 : 0;
}

int mpg_key_unpack(PyObject *key, plain_key *plain) {
  Py_ssize_t count;
  PyObject *const *entries = entries_of(&key, &count);
  plain->count = 0;
  for (Py_ssize_t i = 0; i < count; i++) {
    if (entries[i] == Py_Ellipsis || entries[i] == Py_None) continue;
    if (plain->count < MPG_MAX_NDIM &&
        mpg_key_unpack_entry(entries[i], &plain->entries[plain->count]) < 0)
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

int mpg_key_parse(PyObject *key, const plain_key *plain, const mpg_shape *shape, bool numpy,
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
  if (plain->count > shape->ndim) return mpg_key_too_many(key, shape);
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

bool mpg_key_contiguous(const basic_key *basic, const mpg_shape *shape, int64_t *first) {
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

/* Fills in begin, end and step for the op `slice`. */
void mpg_key_slice_params(const basic_key *basic, mpg_tuple *begin, mpg_tuple *end,
                          mpg_tuple *step) {
  memset(begin, 0, sizeof *begin);
  memset(end, 0, sizeof *end);
  memset(step, 0, sizeof *step);
  begin->count = end->count = step->count = basic->count;
  for (int i = 0; i < basic->count; i++) {
    step->values[i] = 1;
    /* The begin of an empty selection may be -1, which the op would read as the last index. */
    if (basic->length[i] == 0) continue;
    begin->values[i] = basic->begin[i];
    int64_t stop = basic->begin[i] + basic->length[i] * basic->step[i];
    end->values[i] = stop < 0 ? MPG_TUPLE_NONE : stop;
    step->values[i] = basic->step[i];
  }
}

bool mpg_key_is_everything(PyObject *key) {
  if (PyTuple_Check(key)) return PyTuple_GET_SIZE(key) == 0;
  if (!PySlice_Check(key)) return false;
  const PySliceObject *slice = (const PySliceObject *)key;
  return slice->start == Py_None && slice->stop == Py_None && slice->step == Py_None;
}

bool mpg_key_is_basic(PyObject *key, bool numpy) {
  if (!PyTuple_Check(key)) return mpg_key_entry_is_basic(key, numpy);
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(key); i++)
    if (!mpg_key_entry_is_basic(PyTuple_GET_ITEM(key, i), numpy)) return false;
  return true;
}
