/* Calls of ops. The arguments are the arrays, followed by the parameters in declaration order, as
 * in MXNet's generated functions. `out` is the array or arrays to write into. `name` matters only
 * for symbols.
 *
 * Names are interned, so a keyword is found by comparing pointers. Strings are compared only if no
 * pointer is equal.
 */
#include "python/op/call.h"

static int grow(mpg_py_op_call *c, int needed) {
  if (needed <= c->capacity) return 0;
  if (needed > MPG_MAX_INPUTS) {
    PyErr_Format(mpg_py->errors[MPG_VALUE_ERROR], "%s: at most %d arrays are supported, got %d",
                 c->self->op->name, MPG_MAX_INPUTS, needed);
    return -1;
  }
  PyObject **arrays = PyMem_Calloc((size_t)needed, sizeof *arrays);
  if (arrays == NULL) {
    PyErr_NoMemory();
    return -1;
  }
  memcpy(arrays, c->arrays, sizeof *arrays * (size_t)c->num_arrays);
  if (c->arrays != c->small) PyMem_Free(c->arrays);
  c->arrays = arrays;
  c->capacity = needed;
  return 0;
}

int mpg_py_op_call_array(mpg_py_op_call *c, int place, PyObject *object) {
  if (grow(c, place + 1) < 0) return -1;
  if (c->arrays[place] != NULL) {
    char name[64];
    PyErr_Format(PyExc_TypeError, "%s: %s is given twice", c->self->op->name,
                 mpg_op_input_name(c->self->op, place, name, sizeof name));
    return -1;
  }
  while (c->num_arrays <= place) c->arrays[c->num_arrays++] = NULL;
  if (object == Py_None) return 0; /* an omitted optional input */
  c->arrays[place] = Py_NewRef(object);
  return 0;
}

/* Raises an error for a number after a list of arrays, probably a parameter (`concat([x], 0)`). */
static int check_array_after_list(const mpg_py_op_call *c, PyObject *object) {
  const mpg_param_table *table = c->self->op->params;
  int shown = c->self->count_param == 0; /* num_args is derived from the arrays */
  if ((!PyLong_Check(object) && !PyFloat_Check(object)) || table->size == 0 ||
      shown >= table->count)
    return 0;
  PyErr_Format(mpg_py->errors[MPG_TYPE_ERROR],
               "%s: expected an array after the list of arrays, got %R; give parameters by name, "
               "such as %s=%R",
               c->self->op->name, object, table->params[shown].name, object);
  return -1;
}

int mpg_py_op_call_arrays(mpg_py_op_call *c, PyObject *sequence) {
  PyObject *items = mpg_py_items(sequence, "expected a list of arrays");
  if (items == NULL) return -1;
  int result = 0;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(items) && result == 0; i++)
    result = mpg_py_op_call_array(c, c->num_arrays, PyTuple_GET_ITEM(items, i));
  Py_DECREF(items);
  return result;
}

int mpg_py_op_call_param(mpg_py_op_call *c, int index, PyObject *value) {
  if (c->given >> index & 1) {
    PyErr_Format(PyExc_TypeError, "%s: %s is given twice", c->self->op->name,
                 c->self->op->params->params[index].name);
    return -1;
  }
  c->given |= (uint64_t)1 << index;
  const mpg_param_table *table = c->self->op->params;
  if (mpg_py_param_set(table, c->self->op->name, c->params, index, value) < 0) return -1;
  const mpg_param *param = &table->params[index];
  double number = 0;
  if (param->kind == MPG_PARAM_FLOAT)
    memcpy(&number, c->params + param->offset, sizeof number);
  else if (param->kind == MPG_PARAM_OPT_FLOAT)
    number = ((const mpg_opt_float *)(c->params + param->offset))->value;
  if (mpg_py_is_rounded(value, number)) c->rounded = value;
  return 0;
}

int mpg_py_op_unknown_keyword(const char *function, PyObject *names, const char *more,
                              PyObject *keyword) {
  PyObject *comma = PyUnicode_FromString(", "), *list = comma ? PyUnicode_Join(comma, names) : NULL,
           *hints = list ? PyImport_ImportModule("mpgluon._internal.hints") : NULL,
           *near = hints ? PyObject_CallMethod(hints, "near_option", "OO", keyword, names) : NULL;
  if (near != NULL)
    PyErr_Format(mpg_py->errors[MPG_TYPE_ERROR], "%s has no parameter '%U'%U; it takes: %U%s%s",
                 function, keyword, near, list, PyTuple_GET_SIZE(names) && *more ? ", " : "", more);
  Py_XDECREF(near);
  Py_XDECREF(hints);
  Py_XDECREF(comma);
  Py_XDECREF(list);
  return -1;
}

/* Raises an error for an unknown keyword. If the op has no parameters at all, only warns, because
 * MXNet accepts any keyword for these ops, and programs rely on that. */
static int unknown_keyword(const mpg_py_op *self, PyObject *keyword) {
  if (self->op->params->size == 0)
    return PyErr_WarnFormat(PyExc_UserWarning, 1,
                            "%s has no parameters; '%U' is ignored, as in MXNet", self->op->name,
                            keyword);
  return mpg_py_op_unknown_keyword(self->op->name, self->names, "out, name", keyword);
}

Py_ssize_t mpg_py_op_find_name(PyObject *names, PyObject *keyword) {
  Py_ssize_t count = PyTuple_GET_SIZE(names);
  for (Py_ssize_t i = 0; i < count; i++)
    if (PyTuple_GET_ITEM(names, i) == keyword) return i;
  for (Py_ssize_t i = 0; i < count; i++)
    if (PyUnicode_Compare(PyTuple_GET_ITEM(names, i), keyword) == 0) return i;
  return -1;
}

/* Returns the input index for a keyword that passes an array to a variadic op, such as "arg3" or
 * "data3". Returns -1 for other keywords. */
static int variadic_place(const mpg_py_op *self, PyObject *keyword) {
  const char *text = PyUnicode_AsUTF8(keyword);
  if (text == NULL) return -1;
  const char *prefixes[] = {"arg",
                            PyUnicode_AsUTF8(PyTuple_GET_ITEM(self->names, self->num_inputs - 1))};
  for (int i = 0; i < 2; i++) {
    size_t length = prefixes[i] ? strlen(prefixes[i]) : 0;
    int place, end = 0;
    if (length && strncmp(text, prefixes[i], length) == 0 && text[length] >= '0' &&
        text[length] <= '9' && sscanf(text + length, "%6d%n", &place, &end) == 1 &&
        text[length + (size_t)end] == 0)
      return self->num_inputs - 1 + place;
  }
  return -1;
}

int mpg_py_op_call_out(mpg_py_op_call *c, PyObject *value) {
  if (c->out != NULL) {
    PyErr_Format(PyExc_TypeError, "%s: out is given twice", c->self->op->name);
    return -1;
  }
  c->out = value == Py_None ? NULL : value;
  return 0;
}

static int add_keyword(mpg_py_op_call *c, PyObject *keyword, PyObject *value) {
  const mpg_py_op *self = c->self;
  if (keyword == mpg_py->name_out) return mpg_py_op_call_out(c, value);
  Py_ssize_t place = mpg_py_op_find_name(self->names, keyword);
  if (place < 0) {
    if (keyword == mpg_py->name_name || PyUnicode_CompareWithASCIIString(keyword, "name") == 0)
      return 0;
    if (PyUnicode_CompareWithASCIIString(keyword, "out") == 0) return mpg_py_op_call_out(c, value);
    int numbered = self->variadic ? variadic_place(self, keyword) : -1;
    if (numbered >= 0) return mpg_py_op_call_array(c, numbered, value);
    return unknown_keyword(self, keyword);
  }
  if (place >= self->num_inputs)
    return mpg_py_op_call_param(c, (int)place - self->num_inputs, value);
  if (self->variadic && place == self->num_inputs - 1 &&
      (PyList_Check(value) || PyTuple_Check(value)))
    return mpg_py_op_call_arrays(c, value);
  if (value != Py_None && place < 32) c->named |= (uint32_t)1 << place;
  return mpg_py_op_call_array(c, (int)place, value);
}

/* Raises an error if an array is given by name for an input that the parameters disable. */
static int check_named(const mpg_py_op_call *c) {
  for (int i = 0; i < c->self->num_inputs && i < 32; i++)
    if (c->named >> i & 1 && mpg_op_input_left_out(c->self->op, c->values, i)) {
      PyErr_Format(mpg_py->errors[MPG_TYPE_ERROR],
                   "%s: the array %U is not used with these parameters", c->self->op->name,
                   PyTuple_GET_ITEM(c->self->names, i));
      return -1;
    }
  return 0;
}

/* Sets the parameters use_<name> of the optional arrays that are given, for an op that derives them
 * (mpg_op_input_mark). If the caller gives one of these parameters, the arrays are those that
 * the parameters enable, without gaps. */
void mpg_py_op_call_mark(mpg_py_op_call *c) {
  for (int i = 0; i < c->self->num_inputs; i++) {
    int param = mpg_op_input_mark(c->self->op, i);
    if (param >= 0 && c->given >> param & 1) return;
  }
  for (int i = 0; i < c->num_arrays && i < c->self->num_inputs; i++) {
    int param = mpg_op_input_mark(c->self->op, i);
    if (param >= 0 && c->arrays[i] != NULL)
      *(bool *)(c->params + c->self->op->params->params[param].offset) = true;
  }
}

/* Removes omitted inputs that the parameters disable (no_bias), and shifts later arrays down. */
static void close_gaps(mpg_py_op_call *c) {
  int kept = 0;
  for (int i = 0; i < c->num_arrays; i++) {
    PyObject *array = c->arrays[i];
    if (array == NULL && i < c->self->num_inputs &&
        mpg_op_input_left_out(c->self->op, c->values, i))
      continue;
    c->arrays[i] = NULL;
    c->arrays[kept++] = array;
  }
  c->num_arrays = kept;
}

/* Removes omitted inputs, checks that no required input is missing, and converts numbers and NumPy
 * arrays to arrays on the device of the first NDArray. */
static int convert_arrays(mpg_py_op_call *c) {
  const mpg_op *op = c->self->op;
  if (c->self->marks) mpg_py_op_call_mark(c);
  if (c->named && check_named(c) < 0) return -1;
  while (c->num_arrays > 0 && c->arrays[c->num_arrays - 1] == NULL) c->num_arrays--;
  /* Detects missing trailing inputs. The loop below detects missing inputs before a given one. */
  if (c->num_arrays < c->self->min_inputs &&
      mpg_op_num_inputs(op, c->values, c->num_arrays) != c->num_arrays) {
    PyErr_Format(mpg_py->errors[MPG_TYPE_ERROR], "%s: the array %U is missing", op->name,
                 PyTuple_GET_ITEM(c->self->names, c->num_arrays));
    return -1;
  }
  const mpg_array *like = NULL;
  bool all = true;
  for (int i = 0; i < c->num_arrays; i++) {
    if (c->arrays[i] == NULL) close_gaps(c);
    if (c->arrays[i] == NULL) {
      char name[64];
      PyErr_Format(mpg_py->errors[MPG_TYPE_ERROR], "%s: the array %s is missing", op->name,
                   mpg_op_input_name(op, i, name, sizeof name));
      return -1;
    }
    if (!mpg_py_is_array(c->arrays[i]))
      all = false;
    else if (like == NULL)
      like = mpg_py_array_of(c->arrays[i]);
  }
  for (int i = 0; !all && i < c->num_arrays; i++) {
    if (mpg_py_is_array(c->arrays[i])) continue;
    char name[64], what[160];
    snprintf(what, sizeof what, "%s: %s", op->name, mpg_op_input_name(op, i, name, sizeof name));
    PyObject *converted = mpg_py_operand(c->arrays[i], like, MPG_PY_KEEPS, what);
    if (converted == NULL) return -1;
    Py_SETREF(c->arrays[i], converted);
  }
  return 0;
}

/* Sets num_args to the number of arrays. If the caller gives a value, it must be equal or 0. */
static int set_count(mpg_py_op_call *c) {
  if (c->self->count_param < 0) return 0;
  const mpg_param_table *table = c->self->op->params;
  int64_t *count = (int64_t *)(c->params + table->params[c->self->count_param].offset);
  if ((c->given >> c->self->count_param & 1) && *count && *count != c->num_arrays) {
    PyErr_Format(mpg_py->errors[MPG_VALUE_ERROR], "%s: num_args is %lld, but %d arrays are given",
                 c->self->op->name, (long long)*count, c->num_arrays);
    return -1;
  }
  *count = c->num_arrays;
  return 0;
}

static int check_required(const mpg_py_op_call *c) {
  const mpg_param_table *table = c->self->op->params;
  uint64_t missing = c->self->required & ~c->given;
  if (missing == 0) return 0;
  for (int i = 0; i < table->count; i++)
    if (missing >> i & 1) {
      PyErr_Format(mpg_py->errors[MPG_TYPE_ERROR], "%s: the parameter %s is missing",
                   c->self->op->name, table->params[i].name);
      break;
    }
  return -1;
}

/* Raises OverflowError for an integer that a parameter rounds, if the result has integers. */
static int check_rounded(const mpg_py_op_call *c) {
  const mpg_param_table *table = c->self->op->params;
  int index = mpg_params_find(table, "dtype");
  mpg_dtype dtype = MPG_DTYPE_NONE;
  if (index >= 0 && table->params[index].kind == MPG_PARAM_DTYPE)
    dtype = (mpg_dtype) * (const int32_t *)(c->params + table->params[index].offset);
  if (dtype == MPG_DTYPE_NONE && c->num_arrays > 0)
    dtype = mpg_py_array_of(c->arrays[0])->tensor.desc.dtype;
  if (!mpg_dtype_is_integer(dtype)) return 0;
  PyErr_Format(PyExc_OverflowError,
               "%s: %S cannot be represented exactly for dtype %s, because ops hold numbers as "
               "doubles; use an array with dtype='int64'",
               c->self->op->name, c->rounded, mpg_dtype_name(dtype));
  return -1;
}

static PyObject *run_out(mpg_py_op_call *c, mpg_array *const *inputs, int visible) {
  mpg_array *out[MPG_PY_SMALL], **outputs = out;
  PyObject *keep = NULL, *result = NULL;
  if (visible > MPG_PY_SMALL && (outputs = PyMem_Malloc(sizeof *outputs * (size_t)visible)) == NULL)
    return PyErr_NoMemory();
  int count = mpg_py_array_list(c->out, outputs, visible, &keep, "out");
  if (count < 0) goto done;
  if (count != visible) {
    PyErr_Format(mpg_py->errors[MPG_VALUE_ERROR], "%s has %d outputs, but out has %d arrays",
                 c->self->op->name, visible, count);
    goto done;
  }
  mpg_status status =
      mpg_call(c->self->op, c->values, inputs, c->num_arrays, NULL, visible, outputs);
  if (status == MPG_OK)
    result = Py_NewRef(c->out);
  else
    mpg_py_raise(status);
done:
  Py_XDECREF(keep);
  if (outputs != out) PyMem_Free(outputs);
  return result;
}

static PyObject *run_several(mpg_py_op_call *c, mpg_array *const *inputs, int visible) {
  mpg_array *outputs = PyMem_Calloc((size_t)visible + 1, sizeof *outputs);
  if (outputs == NULL) return PyErr_NoMemory();
  PyObject *list = NULL;
  mpg_status status =
      mpg_call(c->self->op, c->values, inputs, c->num_arrays, outputs, visible, NULL);
  if (status != MPG_OK)
    mpg_py_raise(status);
  else
    list = mpg_py_array_take_all(outputs, visible);
  PyMem_Free(outputs);
  return list;
}

static PyObject *run(mpg_py_op_call *c) {
  const mpg_op *op = c->self->op;
  if (c->self->creates && c->self->ctx >= 0) {
    mpg_device_id *id = (mpg_device_id *)(c->params + op->params->params[c->self->ctx].offset);
    if (id->type == 0) *id = mpg_py_current_device();
  }
  mpg_array *small[MPG_PY_SMALL], **inputs = small;
  if (c->num_arrays > MPG_PY_SMALL &&
      (inputs = PyMem_Malloc(sizeof *inputs * (size_t)c->num_arrays)) == NULL)
    return PyErr_NoMemory();
  for (int i = 0; i < c->num_arrays; i++) inputs[i] = mpg_py_array_of(c->arrays[i]);
  int visible = mpg_call_outputs(op, c->values, c->num_arrays);
  PyObject *result;
  if (c->out != NULL)
    result = run_out(c, inputs, visible);
  else if (visible == 1)
    result = mpg_py_call_op(op, c->values, inputs, c->num_arrays);
  else
    result = run_several(c, inputs, visible);
  if (inputs != small) PyMem_Free(inputs);
  return result;
}

void mpg_py_op_call_begin(mpg_py_op_call *c, const mpg_py_op *self) {
  const mpg_param_table *table = self->op->params;
  c->self = self;
  c->arrays = c->small;
  c->num_arrays = 0;
  c->capacity = MPG_PY_SMALL;
  c->out = NULL;
  c->rounded = NULL;
  c->given = 0;
  c->named = 0;
  c->values = table->size > 0 ? c->params : NULL;
  memset(c->small, 0, sizeof c->small);
  memcpy(c->params, self->defaults, table->size);
}

PyObject *mpg_py_op_call_run(mpg_py_op_call *c) {
  if (convert_arrays(c) < 0 || check_required(c) < 0 || set_count(c) < 0) return NULL;
  return c->rounded != NULL && check_rounded(c) < 0 ? NULL : run(c);
}

void mpg_py_op_call_end(mpg_py_op_call *c) {
  for (int i = 0; i < c->num_arrays; i++) Py_XDECREF(c->arrays[i]);
  if (c->arrays != c->small) PyMem_Free(c->arrays);
}

static int add_arguments(mpg_py_op_call *c, PyObject *const *args, Py_ssize_t count,
                         PyObject *keywords) {
  const mpg_py_op *self = c->self;
  const mpg_param_table *table = self->op->params;
  Py_ssize_t positional = self->num_inputs + (table->size > 0 ? table->count : 0);
  Py_ssize_t num_keywords = keywords ? PyTuple_GET_SIZE(keywords) : 0;
  bool after_list = false;
  if (!self->variadic && count > positional + 2) {
    PyErr_Format(PyExc_TypeError, "%s takes at most %zd arguments, got %zd", self->op->name,
                 positional + 2, count);
    return -1;
  }
  for (Py_ssize_t i = 0; i < count; i++) {
    int result = 0;
    if (self->variadic && i >= self->num_inputs - 1) {
      bool list = PyList_Check(args[i]) || PyTuple_Check(args[i]);
      if (after_list && check_array_after_list(c, args[i]) < 0) return -1;
      after_list = list;
      result = list ? mpg_py_op_call_arrays(c, args[i])
                    : mpg_py_op_call_array(c, c->num_arrays, args[i]);
    } else if (i < self->num_inputs) {
      result = mpg_py_op_call_array(c, (int)i, args[i]);
    } else if (i < positional) {
      result = mpg_py_op_call_param(c, (int)i - self->num_inputs, args[i]);
    } else if (i == positional) { /* `name` follows and has no effect */
      result = mpg_py_op_call_out(c, args[i]);
    }
    if (result < 0) return -1;
  }
  for (Py_ssize_t i = 0; i < num_keywords; i++)
    if (add_keyword(c, PyTuple_GET_ITEM(keywords, i), args[count + i]) < 0) return -1;
  return 0;
}

static __attribute__((noinline)) PyObject *call_any(mpg_py_op *self, PyObject *const *args,
                                                    Py_ssize_t count, PyObject *keywords) {
  Py_ssize_t num_keywords = keywords ? PyTuple_GET_SIZE(keywords) : 0;
  if (mpg_py_takes_sparse(args, count + num_keywords))
    return mpg_py_sparse_call((PyObject *)self, args, count, keywords);
  mpg_py_op_call c;
  mpg_py_op_call_begin(&c, self);
  PyObject *result = add_arguments(&c, args, count, keywords) < 0 ? NULL : mpg_py_op_call_run(&c);
  mpg_py_op_call_end(&c);
  return result;
}

PyObject *mpg_py_op_vectorcall(PyObject *callable, PyObject *const *args, size_t flags,
                               PyObject *keywords) {
  mpg_py_op *self = (mpg_py_op *)callable;
  Py_ssize_t count = PyVectorcall_NARGS(flags);
  if (!mpg_py_op_is_plain(self, args, count, keywords))
    return call_any(self, args, count, keywords);
  return mpg_py_op_run_plain(self, args, count);
}
