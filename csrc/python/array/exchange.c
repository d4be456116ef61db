/* Conversion of values: NumPy arrays and scalars, dtypes, the buffer protocol.
 *
 * NumPy has no bfloat16. A conversion to NumPy gives float32 (exact), and a conversion from NumPy
 * rounds to nearest even. The buffer protocol rejects bfloat16, and DLPack exports it unchanged.
 */
#define MPG_NUMPY_OWNER
#include "op/precision/promotion.h"
#include "python/core.h"
#include "python/array/numpy.h"

static const int numpy_types[MPG_DTYPE_LIMIT] = {
    [MPG_FLOAT32] = NPY_FLOAT32, [MPG_FLOAT64] = NPY_FLOAT64, [MPG_FLOAT16] = NPY_FLOAT16,
    [MPG_UINT8] = NPY_UINT8,     [MPG_INT32] = NPY_INT32,     [MPG_INT8] = NPY_INT8,
    [MPG_INT64] = NPY_INT64,     [MPG_BOOL] = NPY_BOOL};

mpg_dtype mpg_py_from_numpy_type(int type) {
  switch (type) {
    case NPY_FLOAT32: return MPG_FLOAT32;
    case NPY_FLOAT64: return MPG_FLOAT64;
    case NPY_FLOAT16: return MPG_FLOAT16;
    case NPY_UINT8: return MPG_UINT8;
    case NPY_INT8: return MPG_INT8;
    case NPY_BOOL: return MPG_BOOL;
    case NPY_INT: return MPG_INT32;
    case NPY_LONG: return sizeof(long) == 8 ? MPG_INT64 : MPG_INT32;
    case NPY_LONGLONG: return MPG_INT64;
    default: return MPG_DTYPE_NONE;
  }
}

bool mpg_py_is_numpy(PyObject *object) { return PyArray_Check(object); }

PyObject *mpg_py_brief(PyObject *value) {
  enum { LIMIT = 200 };
  if (mpg_py_is_array(value)) {
    const mpg_desc *desc = mpg_array_desc(mpg_py_array_of(value));
    char text[MPG_SHAPE_TEXT_SIZE];
    return PyUnicode_FromFormat(
        "an %s of shape %s and dtype %s", mpg_py_array_of(value)->numpy ? "array" : "NDArray",
        mpg_shape_text(&desc->shape, text, sizeof text), mpg_dtype_name(desc->dtype));
  }
  if (PyArray_Check(value)) {
    PyObject *shape = PyObject_GetAttrString(value, "shape"), *result = NULL;
    if (shape != NULL)
      result = PyUnicode_FromFormat("a NumPy array of shape %R and dtype %S", shape,
                                    (PyObject *)PyArray_DESCR((PyArrayObject *)value));
    Py_XDECREF(shape);
    return result;
  }
  PyObject *text = PyObject_Repr(value);
  if (text == NULL || PyUnicode_GET_LENGTH(text) <= LIMIT) return text;
  PyObject *start = PyUnicode_Substring(text, 0, LIMIT);
  PyObject *result = start ? PyUnicode_FromFormat("%U...", start) : NULL;
  Py_XDECREF(start);
  Py_DECREF(text);
  return result;
}

PyObject *mpg_py_refuse(mpg_status kind, PyObject *value, const char *format, ...) {
  va_list args;
  va_start(args, format);
  PyObject *expected = PyUnicode_FromFormatV(format, args), *brief = mpg_py_brief(value);
  va_end(args);
  if (expected != NULL && brief != NULL)
    PyErr_Format(mpg_py->errors[kind], "%U, got %U", expected, brief);
  Py_XDECREF(expected);
  Py_XDECREF(brief);
  return NULL;
}
/* True for a scalar of a numeric dtype that another package has added to NumPy, such as bfloat16
 * from ml_dtypes. */
static bool is_foreign_number(PyObject *object) {
  const PyNumberMethods *number = Py_TYPE(object)->tp_as_number;
  return PyArray_IsScalar(object, Generic) && !PyArray_IsScalar(object, Flexible) &&
         !PyArray_IsScalar(object, Datetime) && !PyArray_IsScalar(object, Number) && number &&
         number->nb_float;
}
bool mpg_py_is_scalar(PyObject *object) {
  if (PyFloat_Check(object) || PyLong_Check(object)) return true;
  if (PyArray_IsScalar(object, Number)) return !PyArray_IsScalar(object, ComplexFloating);
  if (PyArray_IsScalar(object, Bool)) return true;
  if (PyArray_IsZeroDim(object)) {
    PyArrayObject *array = (PyArrayObject *)object;
    return PyArray_ISBOOL(array) || (PyArray_ISNUMBER(array) && !PyArray_ISCOMPLEX(array));
  }
  return is_foreign_number(object);
}
int mpg_py_scalar(PyObject *object, double *value) {
  *value = PyFloat_AsDouble(object);
  return *value == -1.0 && PyErr_Occurred() ? -1 : 0;
}

bool mpg_py_is_integer(PyObject *object) {
  return PyLong_Check(object) || PyArray_IsScalar(object, Integer) ||
         (PyArray_Check(object) && PyArray_ISINTEGER((PyArrayObject *)object));
}
bool mpg_py_is_rounded(PyObject *object, double value) {
  if ((value > -0x1p53 && value < 0x1p53) || !mpg_py_is_integer(object)) return false;
  int overflow = 0;
  PyObject *number = PyNumber_Index(object);
  long long integer = number ? PyLong_AsLongLongAndOverflow(number, &overflow) : 0;
  Py_XDECREF(number);
  PyErr_Clear();
  return number == NULL || overflow || value >= 0x1p63 || (long long)value != integer;
}

/* --- dtypes ----------------------------------------------------------------------------------- */
mpg_dtype mpg_py_dtype(PyObject *object) {
  for (int i = 0; i < MPG_DTYPE_LIMIT; i++)
    if (object == mpg_py->dtypes[i] && object != NULL) return (mpg_dtype)i;
  if (PyUnicode_Check(object)) {
    const char *text = PyUnicode_AsUTF8(object);
    if (text == NULL) return MPG_DTYPE_NONE;
    mpg_dtype dtype = mpg_dtype_from_name(text);
    if (dtype != MPG_DTYPE_NONE) return dtype;
  }
  PyArray_Descr *descr = NULL;
  mpg_dtype dtype = MPG_DTYPE_NONE;
  if (object != Py_None && PyArray_DescrConverter(object, &descr) == NPY_SUCCEED) {
    dtype = mpg_py_from_numpy_type(descr->type_num);
    /* ml_dtypes adds a bfloat16 dtype to NumPy */
    const char *point = strrchr(descr->typeobj->tp_name, '.');
    if (dtype == MPG_DTYPE_NONE && point != NULL && strcmp(point, ".bfloat16") == 0)
      dtype = MPG_BFLOAT16;
    Py_DECREF(descr);
  }
  PyErr_Clear();
  PyObject *brief = dtype == MPG_DTYPE_NONE ? mpg_py_brief(object) : NULL;
  if (brief != NULL)
    PyErr_Format(mpg_py->errors[MPG_TYPE_ERROR],
                 "unsupported dtype %U; expected float16, bfloat16, float32, float64, uint8, int8, "
                 "int32, int64 or bool",
                 brief);
  Py_XDECREF(brief);
  return dtype;
}

static int dtypes_init(PyObject *module) {
  for (int i = 0; i < MPG_DTYPE_LIMIT; i++) {
    if (!mpg_dtype_valid(i)) continue;
    if (i == MPG_BFLOAT16) {
      /* NumPy has no bfloat16, so this class mimics NumPy's scalar types. */
      PyObject *space = Py_BuildValue("{s:s,s:i,s:s,s:s}", "__module__", "mpgluon", "itemsize", 2,
                                      "name", "bfloat16", "__doc__",
                                      "The dtype bfloat16: float32 with a significand of 8 bits. "
                                      "NumPy does not have it: asnumpy() returns float32.");
      if (space == NULL) return -1;
      mpg_py->dtypes[i] =
          PyObject_CallFunction((PyObject *)&PyType_Type, "s()N", "bfloat16", space);
      if (mpg_py->dtypes[i] == NULL ||
          PyModule_AddObjectRef(module, "bfloat16", mpg_py->dtypes[i]) < 0)
        return -1;
      continue;
    }
    PyObject *type = PyArray_TypeObjectFromType(numpy_types[i]);
    if (type == NULL) return -1;
    mpg_py->dtypes[i] = type;
  }
  return 0;
}

/* --- bfloat16 --------------------------------------------------------------------------------- */
static void widen(const uint16_t *source, float *target, size_t count) {
  for (size_t i = 0; i < count; i++) {
    uint32_t bits = (uint32_t)source[i] << 16;
    memcpy(&target[i], &bits, sizeof bits);
  }
}
static void narrow(const float *source, uint16_t *target, size_t count) {
  for (size_t i = 0; i < count; i++) {
    uint32_t bits;
    memcpy(&bits, &source[i], sizeof bits);
    bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
    target[i] = nan ? (uint16_t)(bits >> 16 | 0x40u)
                    : (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
  }
}

/* --- Output ----------------------------------------------------------------------------------- */
PyObject *mpg_py_to_numpy(const mpg_array *array) {
  /* Retained, because another thread may replace the array's tensor during the copy. */
  mpg_tensor tensor = array->tensor;
  const mpg_shape *shape = &tensor.desc.shape;
  npy_intp dims[MPG_MAX_NDIM];
  for (int i = 0; i < shape->ndim; i++) dims[i] = (npy_intp)shape->dims[i];
  bool wide = tensor.desc.dtype == MPG_BFLOAT16;
  mpg_tensor_retain(&tensor);
  PyObject *result =
      PyArray_SimpleNew(shape->ndim, dims, wide ? NPY_FLOAT32 : numpy_types[tensor.desc.dtype]);
  if (result != NULL) {
    void *data = PyArray_DATA((PyArrayObject *)result);
    /* Copies bfloat16 elements to the upper half of the float32 array, then widens them in place,
     * in ascending order. */
    size_t count = (size_t)mpg_shape_size(shape);
    void *target = wide ? (void *)((uint16_t *)data + count) : data;
    mpg_status status = mpg_tensor_copy_to_host(&tensor, target);
    if (status != MPG_OK) {
      Py_CLEAR(result);
      mpg_py_raise(status);
    } else if (wide) {
      widen(target, data, count);
    }
  }
  mpg_tensor_release(&tensor);
  return result;
}

/* --- Input ------------------------------------------------------------------------------------ */
PyArrayObject *mpg_py_as_ndarray(PyObject *object, mpg_dtype dtype) {
  int type = dtype == MPG_BFLOAT16 ? NPY_FLOAT32 : numpy_types[dtype];
  PyArray_Descr *descr = PyArray_DescrFromType(type);
  if (descr == NULL) return NULL;
  PyObject *result = PyArray_FromAny(
      object, descr, 0, 0, NPY_ARRAY_CARRAY_RO | NPY_ARRAY_FORCECAST | NPY_ARRAY_NOTSWAPPED, NULL);
  return (PyArrayObject *)result;
}

PyObject *mpg_py_from_ndarray(PyArrayObject *source, mpg_dtype dtype, mpg_device_id id,
                              bool numpy) {
  if (PyArray_NDIM(source) > MPG_MAX_NDIM)
    return PyErr_Format(mpg_py->errors[MPG_VALUE_ERROR],
                        "an array can have at most %d dimensions, but the source has %d",
                        MPG_MAX_NDIM, PyArray_NDIM(source));
  mpg_desc desc = {.shape.ndim = PyArray_NDIM(source), .dtype = dtype};
  for (int i = 0; i < desc.shape.ndim; i++) desc.shape.dims[i] = PyArray_DIM(source, i);
  mpg_py_array *result = (mpg_py_array *)mpg_py_array_new(numpy);
  if (result == NULL) return NULL;
  mpg_tensor *tensor = &result->array.tensor;
  mpg_status status = mpg_py_tensor_create(id, &desc, tensor);
  size_t count = (size_t)PyArray_SIZE(source);
  if (status == MPG_OK && count > 0) {
    if (dtype == MPG_BFLOAT16) {
      uint16_t *bits = PyMem_Malloc(count * sizeof *bits);
      if (bits == NULL) {
        Py_DECREF(result);
        return PyErr_NoMemory();
      }
      narrow(PyArray_DATA(source), bits, count);
      status = mpg_tensor_copy_from_host(tensor, bits);
      PyMem_Free(bits);
    } else {
      status = mpg_tensor_copy_from_host(tensor, PyArray_DATA(source));
    }
  }
  if (status == MPG_OK) return (PyObject *)result;
  Py_DECREF(result);
  return mpg_py_raise(status);
}

static PyObject *not_array_like(PyObject *object) {
  PyObject *type, *value, *traceback;
  PyErr_Fetch(&type, &value, &traceback);
  if (type != NULL && (PyErr_GivenExceptionMatches(type, PyExc_MemoryError) ||
                       !PyErr_GivenExceptionMatches(type, PyExc_Exception) ||
                       PyErr_GivenExceptionMatches(type, mpg_py->errors[MPG_ERROR]))) {
    PyErr_Restore(type, value, traceback);
    return NULL;
  }
  PyErr_Format(mpg_py->errors[MPG_TYPE_ERROR], "source_array must be array like, got %s: %S",
               Py_TYPE(object)->tp_name, value ? value : Py_None);
  Py_XDECREF(type);
  Py_XDECREF(value);
  Py_XDECREF(traceback);
  return NULL;
}

PyObject *mpg_py_array_from(PyObject *object, mpg_dtype dtype, mpg_device_id device, bool numpy) {
  if (dtype == MPG_DTYPE_NONE) {
    int type = NPY_FLOAT32;
    if (PyArray_Check(object)) type = PyArray_TYPE((PyArrayObject *)object);
    dtype = mpg_py_from_numpy_type(type);
    if (dtype == MPG_FLOAT64 || dtype == MPG_DTYPE_NONE) dtype = MPG_FLOAT32;
  }
  PyArrayObject *source = mpg_py_as_ndarray(object, dtype);
  if (source == NULL) return not_array_like(object);
  PyObject *result = mpg_py_from_ndarray(source, dtype, device, numpy);
  Py_DECREF(source);
  return result;
}

int mpg_py_write_object(mpg_array *array, PyObject *value) {
  PyArrayObject *source = mpg_py_as_ndarray(value, mpg_array_desc(array)->dtype);
  if (source == NULL) {
    not_array_like(value);
    return -1;
  }
  /* Retained, because another thread may replace the array's tensor during the copy. */
  mpg_tensor tensor = array->tensor;
  const mpg_desc *desc = &tensor.desc;
  mpg_dtype taken = mpg_py_from_numpy_type(PyArray_TYPE(source));
  if (taken != (desc->dtype == MPG_BFLOAT16 ? MPG_FLOAT32 : desc->dtype)) {
    /* The conversion of `value` has run code that replaced the array's tensor. */
    PyErr_SetString(mpg_py->errors[MPG_ERROR],
                    "the dtype of the array changed while a value was assigned to it");
    Py_DECREF(source);
    return -1;
  }
  mpg_tensor_retain(&tensor);
  /* Drops extra leading dimensions of size 1, as in MXNet. */
  int extra = PyArray_NDIM(source) - desc->shape.ndim, ones = 0;
  while (ones < extra && PyArray_DIM(source, ones) == 1) ones++;
  npy_intp dims[MPG_MAX_NDIM];
  for (int i = 0; i < desc->shape.ndim; i++) dims[i] = (npy_intp)desc->shape.dims[i];
  PyObject *whole = PyArray_SimpleNew(desc->shape.ndim, dims, PyArray_TYPE(source));
  int result = -1;
  PyObject *trimmed = NULL;
  if (whole == NULL) goto done;
  if (ones > 0) {
    PyArray_Dims shape = {PyArray_DIMS(source) + ones, PyArray_NDIM(source) - ones};
    trimmed = PyArray_Newshape(source, &shape, NPY_CORDER);
    if (trimmed == NULL) goto done;
  }
  if (PyArray_CopyInto((PyArrayObject *)whole, trimmed ? (PyArrayObject *)trimmed : source) < 0) {
    char text[MPG_SHAPE_TEXT_SIZE];
    PyErr_Clear();
    PyObject *shape = PyObject_GetAttrString((PyObject *)source, "shape");
    PyErr_Format(mpg_py->errors[MPG_VALUE_ERROR],
                 "cannot assign a value of shape %S to an array of shape %s",
                 shape ? shape : Py_None, mpg_shape_text(&desc->shape, text, sizeof text));
    Py_XDECREF(shape);
    goto done;
  }
  void *data = PyArray_DATA((PyArrayObject *)whole);
  size_t count = (size_t)PyArray_SIZE((PyArrayObject *)whole);
  if (count > 0) {
    if (desc->dtype == MPG_BFLOAT16) narrow(data, data, count);
    mpg_status status = mpg_tensor_copy_from_host(&tensor, data);
    if (status != MPG_OK) {
      mpg_py_raise(status);
      goto done;
    }
  }
  result = 0;
done:
  mpg_tensor_release(&tensor);
  Py_XDECREF(trimmed);
  Py_XDECREF(whole);
  Py_DECREF(source);
  return result;
}

/* True if a NumPy array holds real numbers without a mask. Otherwise sets an exception, because a
 * conversion to an NDArray would lose the mask, the imaginary parts or other information. */
static bool is_plain(PyArrayObject *array, const char *what) {
  int type = PyArray_TYPE(array);
  bool masked = !PyArray_CheckExact(array) && PyObject_HasAttrString((PyObject *)array, "filled");
  if (!masked && !PyTypeNum_ISCOMPLEX(type) && !PyTypeNum_ISDATETIME(type) && type != NPY_VOID)
    return true;
  if (masked)
    PyErr_Format(mpg_py->errors[MPG_TYPE_ERROR],
                 "%s: a masked array cannot be an operand, because an NDArray has no mask; use "
                 "array.filled(value), or x.asnumpy()",
                 what);
  else
    PyErr_Format(mpg_py->errors[MPG_TYPE_ERROR],
                 "%s: a NumPy array of %S cannot be an operand; NDArrays hold real numbers", what,
                 PyArray_DESCR(array));
  return false;
}

/* Returns the narrowest dtype of arrays for a NumPy integer type. */
static mpg_dtype integer_dtype(int type) {
  mpg_dtype dtype = mpg_py_from_numpy_type(type);
  if (dtype != MPG_DTYPE_NONE) return dtype;
  return type == NPY_SHORT || type == NPY_USHORT ? MPG_INT32 : MPG_INT64;
}

/* Returns the least or greatest element of an array of integers. Sets *overflow if a long long
 * cannot hold it. Returns -1 with an exception set on failure. */
static long long extreme(PyArrayObject *array,
                         PyObject *(*find)(PyArrayObject *, int, PyArrayObject *), int *overflow) {
  PyObject *found = find(array, NPY_RAVEL_AXIS, NULL);
  PyObject *number = found ? PyNumber_Index(found) : NULL;
  long long value = number ? PyLong_AsLongLongAndOverflow(number, overflow) : -1;
  Py_XDECREF(found);
  Py_XDECREF(number);
  return value;
}

/* Finds the dtype of mx.np for a NumPy array of integers next to an array of integers or bools:
 * `wanted` if it holds all values and the op does not promote, else the dtype of the NumPy array.
 * Returns MPG_DTYPE_NONE with an exception set if no dtype holds the values. */
static mpg_dtype dtype_of_integers(PyArrayObject *array, mpg_dtype wanted, bool promotes,
                                   const char *what) {
  mpg_dtype own = integer_dtype(PyArray_TYPE(array));
  bool wide = mpg_py_from_numpy_type(PyArray_TYPE(array)) == MPG_DTYPE_NONE &&
              PyArray_ISUNSIGNED(array) && PyArray_ITEMSIZE(array) == sizeof(uint64_t);
  if ((promotes && !wide) || own == wanted) return own;
  if (PyArray_SIZE(array) == 0) return promotes ? own : wanted;
  int below = 0, above = 0;
  long long low = extreme(array, PyArray_Min, &below);
  if (low == -1 && PyErr_Occurred()) return MPG_DTYPE_NONE;
  long long high = extreme(array, PyArray_Max, &above);
  if (high == -1 && PyErr_Occurred()) return MPG_DTYPE_NONE;
  if (below || above) {
    PyErr_Format(PyExc_OverflowError, "%s: the NumPy array of uint64 has values beyond int64",
                 what);
    return MPG_DTYPE_NONE;
  }
  if (promotes) return own;
  const mpg_integer_range range = mpg_range_of_integers(wanted);
  bool fits = wanted == MPG_INT64 || ((double)low >= range.low && (double)high < range.end);
  return fits ? wanted : own;
}

PyObject *mpg_py_operand(PyObject *object, const mpg_array *like, mpg_py_operand_rule rule,
                         const char *what) {
  if (mpg_py_is_array(object)) return Py_NewRef(object);
  mpg_device_id device = like ? mpg_array_device_id(like) : mpg_py_current_device();
  mpg_dtype wanted = like ? like->tensor.desc.dtype : MPG_FLOAT32;
  bool numpy = like && like->numpy;
  if (mpg_py_is_scalar(object)) {
    if (like && mpg_dtype_is_integer(wanted) && !mpg_py_is_integer(object)) wanted = MPG_FLOAT32;
    PyArrayObject *scalar = mpg_py_as_ndarray(object, wanted);
    if (scalar == NULL) return NULL;
    npy_intp one = 1;
    PyArray_Dims shape = {&one, numpy ? 0 : 1};
    PyObject *line = PyArray_Newshape(scalar, &shape, NPY_CORDER);
    Py_DECREF(scalar);
    if (line == NULL) return NULL;
    PyObject *result = mpg_py_from_ndarray((PyArrayObject *)line, wanted, device, numpy);
    Py_DECREF(line);
    return result;
  }
  if (!PyArray_Check(object)) {
    PyErr_Format(mpg_py->errors[MPG_TYPE_ERROR],
                 "%s: expected an NDArray, a NumPy array or a number, got %s", what,
                 Py_TYPE(object)->tp_name);
    return NULL;
  }
  if (!is_plain((PyArrayObject *)object, what)) return NULL;
  mpg_dtype own = mpg_py_from_numpy_type(PyArray_TYPE((PyArrayObject *)object));
  if (own == MPG_DTYPE_NONE || own == MPG_FLOAT64) own = MPG_FLOAT32;
  bool integers = PyArray_ISINTEGER((PyArrayObject *)object);
  if (numpy && integers && !mpg_dtype_is_float(wanted)) {
    own = dtype_of_integers((PyArrayObject *)object, wanted, rule == MPG_PY_PROMOTES, what);
    if (own == MPG_DTYPE_NONE) return NULL;
  } else if (like && ((mpg_dtype_is_float(own) && mpg_dtype_is_float(wanted)) ||
                      (mpg_dtype_is_integer(own) &&
                       (rule != MPG_PY_KEEPS || mpg_dtype_is_integer(wanted))) ||
                      own == MPG_BOOL)) {
    own = wanted;
  }
  return mpg_py_array_from(object, own, device, numpy);
}

/* True for sparse arrays, including SciPy's. nd.array keeps them sparse. */
static bool stays_sparse(PyObject *source) {
  return mpg_py_is_sparse(source) ||
         (!mpg_py_is_array(source) && !PyArray_Check(source) && !PyList_CheckExact(source) &&
          PyObject_HasAttrString(source, "tocsr"));
}
static PyObject *sparse_copy(PyObject *args, PyObject *kwargs) {
  PyObject *module = PyImport_ImportModule("mpgluon.ndarray.sparse");
  PyObject *function = module ? PyObject_GetAttrString(module, "array") : NULL;
  PyObject *result = function ? PyObject_Call(function, args, kwargs) : NULL;
  Py_XDECREF(function);
  Py_XDECREF(module);
  return result;
}

static PyObject *py_array(PyObject *Py_UNUSED(module), PyObject *args, PyObject *kwargs) {
  static char *names[] = {"source_array", "ctx", "dtype", NULL};
  PyObject *source, *ctx = NULL, *dtype_object = Py_None;
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|OO:array", names, &source, &ctx, &dtype_object))
    return NULL;
  if (stays_sparse(source)) return sparse_copy(args, kwargs);
  mpg_device_id id;
  if (mpg_py_device_id(ctx, &id) < 0) return NULL;
  mpg_dtype dtype = MPG_DTYPE_NONE;
  if (dtype_object != Py_None && (dtype = mpg_py_dtype(dtype_object)) == MPG_DTYPE_NONE)
    return NULL;
  if (mpg_py_is_array(source)) {
    PyObject *cast = dtype == MPG_DTYPE_NONE ? Py_NewRef(source) : mpg_py_cast(source, dtype);
    if (cast == NULL) return NULL;
    PyObject *result = mpg_py_to_device(cast, id, cast == source);
    Py_DECREF(cast);
    /* An array of mx.np becomes one of mx.nd. */
    if (result != NULL) Py_SETREF(result, mpg_py_as_kind(result, false));
    return result;
  }
  return mpg_py_from_object(source, dtype == MPG_DTYPE_NONE ? MPG_FLOAT32 : dtype, id);
}

static PyObject *py_empty(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count) {
  if (count != 3)
    return PyErr_Format(PyExc_TypeError, "empty takes a shape, a context and a dtype");
  mpg_desc desc = {0};
  mpg_device_id id;
  if (mpg_py_shape_from(args[0], &desc.shape, "empty") < 0 || mpg_py_device_id(args[1], &id) < 0)
    return NULL;
  if ((desc.dtype = mpg_py_dtype(args[2])) == MPG_DTYPE_NONE) return NULL;
  PyObject *result = mpg_py_array_new(false);
  if (result == NULL) return NULL;
  mpg_status status = mpg_py_tensor_create(id, &desc, &mpg_py_array_of(result)->tensor);
  if (status == MPG_OK) return result;
  Py_DECREF(result);
  return mpg_py_raise(status);
}

/* --- Buffer protocol -------------------------------------------------------------------------- */
static const char *const formats[MPG_DTYPE_LIMIT] = {
    [MPG_FLOAT32] = "f", [MPG_FLOAT64] = "d", [MPG_FLOAT16] = "e",
    [MPG_UINT8] = "B",   [MPG_INT32] = "i",   [MPG_INT8] = "b",
    [MPG_INT64] = "q",   [MPG_BOOL] = "?",    [MPG_BFLOAT16] = "H"};

typedef struct buffer {
  /* Owned reference, because the array may get another tensor while the buffer is in use. */
  mpg_tensor tensor;
  Py_ssize_t shape[MPG_MAX_NDIM], strides[MPG_MAX_NDIM];
} buffer;

int mpg_py_getbuffer(PyObject *self, Py_buffer *view, int flags) {
  mpg_array *array = mpg_py_array_of(self);
  view->obj = NULL;
  if (mpg_py_is_sparse(self)) {
    PyErr_SetString(PyExc_BufferError, "a sparse array has no buffer; use x.asnumpy()");
    return -1;
  }
  if (mpg_py_expect_readable(array, "the buffer protocol") < 0) return -1;
  if (flags & PyBUF_WRITABLE) {
    PyErr_SetString(PyExc_BufferError,
                    "the buffer of an NDArray is read-only; assign with x[:] = ...");
    return -1;
  }
  if (!mpg_tensor_device(&array->tensor)->backend->host_accessible) {
    PyErr_Format(PyExc_BufferError,
                 "the array is on %s; use x.as_in_context(mx.cpu()) or x.asnumpy()",
                 mpg_device_text(mpg_tensor_device(&array->tensor)));
    return -1;
  }
  if (array->tensor.desc.dtype == MPG_BFLOAT16) {
    PyErr_SetString(PyExc_BufferError,
                    "bfloat16 has no buffer format; use x.asnumpy(), which returns float32");
    return -1;
  }
  buffer *kept = PyMem_Malloc(sizeof *kept);
  if (kept == NULL) {
    PyErr_NoMemory();
    return -1;
  }
  kept->tensor = array->tensor;
  mpg_tensor_retain(&kept->tensor);
  mpg_status status = mpg_tensor_wait_read(&kept->tensor);
  if (status != MPG_OK) {
    mpg_tensor_release(&kept->tensor);
    PyMem_Free(kept);
    mpg_py_raise(status);
    return -1;
  }
  const mpg_desc *desc = &kept->tensor.desc;
  Py_ssize_t size = (Py_ssize_t)mpg_dtype_size(desc->dtype);
  for (int i = desc->shape.ndim - 1; i >= 0; i--) {
    kept->shape[i] = (Py_ssize_t)desc->shape.dims[i];
    kept->strides[i] = size;
    size *= kept->shape[i] ? kept->shape[i] : 1;
  }
  *view = (Py_buffer){.buf = mpg_tensor_data(&kept->tensor),
                      .obj = Py_NewRef(self),
                      .len = (Py_ssize_t)mpg_tensor_bytes(&kept->tensor),
                      .itemsize = (Py_ssize_t)mpg_dtype_size(desc->dtype),
                      .readonly = 1,
                      .ndim = desc->shape.ndim,
                      .format = flags & PyBUF_FORMAT ? (char *)formats[desc->dtype] : NULL,
                      .shape = flags & PyBUF_ND ? kept->shape : NULL,
                      .strides = (flags & PyBUF_STRIDES) == PyBUF_STRIDES ? kept->strides : NULL,
                      .internal = kept};
  return 0;
}

void mpg_py_releasebuffer(PyObject *Py_UNUSED(self), Py_buffer *view) {
  buffer *kept = view->internal;
  mpg_tensor_release(&kept->tensor);
  PyMem_Free(kept);
}

PyMethodDef mpg_py_exchange_methods[] = {
    {"array", (PyCFunction)(void (*)(void))py_array, METH_VARARGS | METH_KEYWORDS,
     "array(source_array, ctx=None, dtype=None)\n--\n\nA new NDArray with the values of an "
     "NDArray, a NumPy array, a number or nested sequences.\n\ndtype: None means the source's "
     "dtype for an NDArray and float32 otherwise. ctx: None means the current context.\nRaises "
     "TypeError if the source is not array-like.\n\nExamples\n--------\n>>> nd.array([[1, 2], [3, "
     "4]], dtype='int32').asnumpy().tolist()\n[[1, 2], [3, 4]]"},
    {"empty", (PyCFunction)(void (*)(void))py_empty, METH_FASTCALL,
     "empty(shape, ctx, dtype)\n--\n\nA new NDArray with undefined contents."},
    {0}};

static int import_numpy(void) {
  import_array1(-1);
  return 0;
}

int mpg_py_exchange_init(PyObject *module) {
  if (import_numpy() < 0) return -1;
  return dtypes_init(module);
}
