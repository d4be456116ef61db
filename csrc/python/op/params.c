/* Converts op parameters from Python values to parameter structs directly, not through MXNet's text
 * form. */
#include "python/core.h"
#include "python/array/numpy.h"

static int wrong(const mpg_param *param, const char *op, PyObject *value, const char *expected) {
  if (PyErr_Occurred() && !PyErr_ExceptionMatches(PyExc_TypeError) &&
      !PyErr_ExceptionMatches(PyExc_OverflowError))
    return -1;
  PyErr_Clear();
  mpg_py_refuse(MPG_TYPE_ERROR, value, "%s: %s must be %s", op, param->name, expected);
  return -1;
}

static int as_int(PyObject *object, int64_t *value) {
  if (PyLong_CheckExact(object)) {
    *value = PyLong_AsLongLong(object);
  } else {
    PyObject *index = PyNumber_Index(object);
    if (index == NULL) {
      double number;
      /* Accepts 3.0 as 3, as MXNet does. */
      if (!PyErr_ExceptionMatches(PyExc_TypeError) || !PyFloat_Check(object)) return -1;
      number = PyFloat_AsDouble(object);
      if (!(number >= -9007199254740992.0 && number <= 9007199254740992.0) ||
          number != (double)(int64_t)number)
        return -1;
      PyErr_Clear();
      *value = (int64_t)number;
      return 0;
    }
    *value = PyLong_AsLongLong(index);
    Py_DECREF(index);
  }
  return *value == -1 && PyErr_Occurred() ? -1 : 0;
}

static int check_count(const mpg_param *param, const char *op, Py_ssize_t count, int most) {
  if (count <= most) return 0;
  PyErr_Format(mpg_py->errors[MPG_VALUE_ERROR], "%s: %s has %zd entries; at most %d can be given",
               op, param->name, count, most);
  return -1;
}

/* Returns the numbers of a list, tuple, ndarray or NDArray as a new tuple of at most `most` items.
 * Returns NULL without an exception if `value` is not a sequence, for example a single number. */
static PyObject *items_of(const mpg_param *param, const char *op, PyObject *value, int most) {
  if (PyFloat_Check(value) || PyLong_Check(value)) return NULL;
  if (!PyTuple_Check(value) && !PyList_Check(value)) {
    if (PyArray_Check(value) ? PyArray_NDIM((PyArrayObject *)value) == 0
                             : (!PySequence_Check(value) || PyUnicode_Check(value)))
      return NULL;
    /* Checks the length first, because iterating over an array creates an array for each row. */
    Py_ssize_t count = PySequence_Size(value);
    if (count < 0 && !PyErr_ExceptionMatches(PyExc_Exception)) return NULL;
    PyErr_Clear();
    if (check_count(param, op, count, most) < 0) return NULL;
  }
  PyObject *items = mpg_py_items(value, "");
  if (items != NULL && check_count(param, op, PyTuple_GET_SIZE(items), most) < 0) Py_CLEAR(items);
  return items;
}

static int tuple_from(const mpg_param *param, const char *op, mpg_tuple *tuple, PyObject *value) {
  static const char expected[] = "an integer or a tuple of integers";
  memset(tuple, 0, sizeof *tuple);
  if (value == Py_None) {
    tuple->count = -1;
    return 0;
  }
  PyObject *items = items_of(param, op, value, MPG_MAX_TUPLE);
  if (items == NULL) {
    if (PyErr_Occurred()) return wrong(param, op, value, expected);
    tuple->count = 1;
    return as_int(value, &tuple->values[0]) < 0 ? wrong(param, op, value, expected) : 0;
  }
  Py_ssize_t count = PyTuple_GET_SIZE(items);
  tuple->count = (int32_t)count;
  for (Py_ssize_t i = 0; i < count; i++) {
    PyObject *item = PyTuple_GET_ITEM(items, i);
    if (item == Py_None) {
      tuple->values[i] = MPG_TUPLE_NONE;
    } else if (as_int(item, &tuple->values[i]) < 0) {
      Py_DECREF(items);
      return wrong(param, op, value, expected);
    }
  }
  Py_DECREF(items);
  return 0;
}

/* --- Kinds ------------------------------------------------------------------------------------ */
/* Destination of a converted value: one parameter of a struct. */
typedef struct target {
  const mpg_param_table *table;
  const mpg_param *param;
  const char *op;
  void *params;
  int index;
} target;

static int refuse(const target *to, PyObject *value, const char *expected) {
  return wrong(to->param, to->op, value, expected);
}

static int from_text(const target *to, const char *text) {
  MPG_PY_TRY_INT(mpg_params_set_text(to->table, to->op, to->params, to->index, text));
  return 0;
}

static int from_default(const target *to) { return from_text(to, to->param->default_text); }

static int from_bool(const target *to, void *field, PyObject *value) {
  int64_t integer;
  if (value == Py_True || value == Py_False) {
    *(bool *)field = value == Py_True;
    return 0;
  }
  if (!PyArray_IsScalar(value, Bool) && as_int(value, &integer) < 0)
    return refuse(to, value, "True or False");
  int truth = PyObject_IsTrue(value);
  if (truth < 0) return -1;
  *(bool *)field = truth;
  return 0;
}

static int from_int(const target *to, void *field, PyObject *value) {
  return as_int(value, field) < 0 ? refuse(to, value, "an integer") : 0;
}

static int from_opt_int(const target *to, void *field, PyObject *value) {
  mpg_opt_int number = {0, value != Py_None};
  if (number.present && as_int(value, &number.value) < 0)
    return refuse(to, value, "an integer or None");
  *(mpg_opt_int *)field = number;
  return 0;
}

/* Reads a number. Refuses recorded arrays, because a parameter has no gradient. */
static int number_from(const target *to, double *number, PyObject *value, const char *expected) {
  if (mpg_py_is_array(value) && mpg_autograd_recording() &&
      mpg_tape_wants(mpg_py_array_of(value)->node)) {
    PyErr_Format(mpg_py->errors[MPG_TYPE_ERROR],
                 "%s: %s is a recorded array, whose gradient would be lost; compute with arrays "
                 "(np.full, np.where, np.maximum, *), or pass float(x) for a constant",
                 to->op, to->param->name);
    return -1;
  }
  return mpg_py_scalar(value, number) < 0 ? refuse(to, value, expected) : 0;
}

static int from_float(const target *to, void *field, PyObject *value) {
  return number_from(to, field, value, "a number");
}

static int from_opt_float(const target *to, void *field, PyObject *value) {
  mpg_opt_float number = {0, value != Py_None};
  if (number.present && number_from(to, &number.value, value, "a number or None") < 0) return -1;
  *(mpg_opt_float *)field = number;
  return 0;
}

static int from_shape(const target *to, void *field, PyObject *value) {
  mpg_tuple *tuple = field;
  if (tuple_from(to->param, to->op, tuple, value) < 0) return -1;
  if (tuple->count >= 0 || strcmp(to->param->default_text, "None") == 0) return 0;
  if (mpg_param_required(to->param)) return refuse(to, value, "an integer or a tuple of integers");
  tuple->count = 0; /* None means "not given" if the default is (), as in MXNet */
  return from_default(to);
}

static int from_floats(const target *to, void *field, PyObject *value) {
  static const char expected[] = "a number or a tuple of numbers";
  mpg_floats *floats = field;
  memset(floats, 0, sizeof *floats);
  PyObject *items = items_of(to->param, to->op, value, MPG_MAX_FLOATS);
  if (items == NULL) {
    if (PyErr_Occurred()) return refuse(to, value, expected);
    floats->count = 1;
    return number_from(to, &floats->values[0], value, expected);
  }
  Py_ssize_t count = PyTuple_GET_SIZE(items);
  floats->count = (int32_t)count;
  for (Py_ssize_t i = 0; i < count; i++)
    if (number_from(to, &floats->values[i], PyTuple_GET_ITEM(items, i), expected) < 0) {
      Py_DECREF(items);
      return -1;
    }
  Py_DECREF(items);
  return 0;
}

static int from_dtype(const target *to, void *field, PyObject *value) {
  int32_t *dtype = field;
  if (value == Py_None && !mpg_param_required(to->param)) return from_default(to);
  *dtype = mpg_py_dtype(value);
  return *dtype == MPG_DTYPE_NONE ? -1 : 0;
}

static int from_enum(const target *to, void *field, PyObject *value) {
  const mpg_param *param = to->param;
  int32_t *position = field;
  Py_ssize_t length = 4;
  const char *word = "None";
  PyObject *text = NULL;
  if (value != Py_None) {
    text = PyUnicode_Check(value) ? Py_NewRef(value) : PyObject_Str(value);
    word = text ? PyUnicode_AsUTF8AndSize(text, &length) : NULL;
    if (word == NULL) {
      Py_XDECREF(text);
      return -1;
    }
  }
  *position = mpg_param_enum_find(param->constraint, word, (size_t)length);
  if (*position < 0 && value == Py_None && strcmp(param->default_text, "None") == 0)
    return from_default(to); /* None is the default, although it is not an enum value */
  if (*position < 0)
    mpg_py_refuse(MPG_VALUE_ERROR, value, "%s: %s must be one of %s", to->op, param->name,
                  param->constraint);
  Py_XDECREF(text);
  return *position < 0 ? -1 : 0;
}

static int from_string(const target *to, void *field, PyObject *value) {
  const char **string = field;
  *string = NULL;
  if (value == Py_None) return 0;
  const char *text = PyUnicode_Check(value) ? PyUnicode_AsUTF8(value) : NULL;
  if (text == NULL) return refuse(to, value, "a string");
  if ((*string = mpg_intern(text)) != NULL) return 0;
  PyErr_NoMemory();
  return -1;
}

static int from_device(const target *Py_UNUSED(to), void *field, PyObject *value) {
  mpg_device_id *id = field;
  *id = (mpg_device_id){0};
  return value == Py_None ? 0 : mpg_py_device_id(value, id);
}

#define FROM(KIND, name, type, noun, expected) [MPG_PARAM_##KIND] = from_##name,
static int (*const from_python[])(const target *to, void *field,
                                  PyObject *value) = {MPG_PARAM_KINDS(FROM)};
#undef FROM

/* True for kinds whose values are strings. Parameters of other kinds also accept the text form used
 * in -symbol.json files, because some programs read attributes from these files and pass them to
 * ops. */
static bool is_text(mpg_param_kind kind) {
  return kind == MPG_PARAM_STRING || kind == MPG_PARAM_ENUM || kind == MPG_PARAM_DTYPE ||
         kind == MPG_PARAM_DEVICE;
}

int mpg_py_param_set(const mpg_param_table *table, const char *op, void *params, int index,
                     PyObject *value) {
  const mpg_param *param = &table->params[index];
  const target to = {table, param, op, params, index};
  if (PyUnicode_Check(value) && !is_text(param->kind)) {
    const char *text = PyUnicode_AsUTF8(value);
    return text ? from_text(&to, text) : -1;
  }
  if (from_python[param->kind](&to, (char *)params + param->offset, value) < 0) return -1;
  if (param->constraint[0] != 0) MPG_PY_TRY_INT(mpg_params_check(table, op, params, index));
  return 0;
}

int mpg_py_params_set(const mpg_op *op, void *params, PyObject *given, uint64_t *present) {
  const mpg_param_table *table = op->params;
  if (table->size) mpg_params_defaults(table, params);
  /* Copies the dict, because converting a value may run Python code that changes it. */
  PyObject *own = PyDict_Copy(given);
  if (own == NULL) return -1;
  PyObject *name, *value;
  Py_ssize_t place = 0;
  int result = 0;
  while (result == 0 && PyDict_Next(own, &place, &name, &value)) {
    const char *text = PyUnicode_Check(name) ? PyUnicode_AsUTF8(name) : NULL;
    int index = text && table->size ? mpg_params_find(table, text) : -1;
    if (index >= 0) {
      result = mpg_py_param_set(table, op->name, params, index, value);
      if (present) *present |= (uint64_t)1 << index;
    } else {
      if (!PyErr_Occurred())
        PyErr_Format(mpg_py->errors[MPG_TYPE_ERROR], "%s has no parameter %R", op->name, name);
      result = -1;
    }
  }
  Py_DECREF(own);
  return result;
}

int mpg_py_shape_from(PyObject *object, mpg_shape *shape, const char *what) {
  static const mpg_param param = {.name = "shape",
                                  .default_text = "required",
                                  .constraint = "",
                                  .doc = "",
                                  .kind = MPG_PARAM_SHAPE};
  mpg_tuple tuple;
  if (object == Py_None) {
    wrong(&param, what, object, "an integer or a tuple of integers");
    return -1;
  }
  if (tuple_from(&param, what, &tuple, object) < 0) return -1;
  if (tuple.count > MPG_MAX_NDIM) {
    PyErr_Format(mpg_py->errors[MPG_VALUE_ERROR],
                 "%s: an array can have at most %d dimensions, got %d", what, MPG_MAX_NDIM,
                 tuple.count);
    return -1;
  }
  *shape = (mpg_shape){.ndim = tuple.count};
  for (int i = 0; i < tuple.count; i++) {
    if (tuple.values[i] == MPG_TUPLE_NONE)
      return wrong(&param, what, object, "a tuple of integers");
    shape->dims[i] = tuple.values[i];
  }
  return 0;
}
