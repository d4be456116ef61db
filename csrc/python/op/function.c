/* _core.NumPyFunction: an op as a function with a signature of NumPy. Each argument is an input or
 * a parameter of the op, perhaps under another name and with another default, or an argument that
 * must keep its default.
 *
 * numpy_function reads the signature once, when the package is imported, so that a call costs the
 * same as a call of the _core.Op. Numbers alone are passed to NumPy's ufunc of the same name,
 * and symbols to the function that _core.set_symbol_node has registered.
 */
#include "python/op/call.h"

enum { MAX_ARGUMENTS = 40, MAX_TEXT = 96 };

/* CAST is a dtype to which the first input is cast before the call. */
typedef enum role { INPUT, PARAM, OUT, NAME, CAST, FIXED } role;

typedef struct argument {
  role role;
  int index;       /* index of the op's input or parameter */
  bool special;    /* `other` is called if the argument is None, missing or an array */
  bool none;       /* None means the row's default, which is not None */
  bool axis;       /* `other` is called for an empty tuple, and for a first input without dimensions
                    * if the argument is not None */
  PyObject *fixed; /* the only value of a FIXED argument, or NULL if any will do; owned */
} argument;

/* Arguments of a call that the op does not take. */
typedef struct extras {
  PyObject *name;  /* borrowed */
  mpg_dtype dtype; /* dtype to which the first input is cast, or MPG_DTYPE_NONE */
  bool special;    /* true if `other` must run the call */
  bool axis;       /* true if `other` must run the call for a first input without dimensions */
} extras;

typedef struct function_object {
  mpg_py_op base;
  PyObject *module, *signature, *text; /* str: "mpgluon.numpy", "(x, out=None)", documentation */
  PyObject *keywords;                  /* tuple of the arguments' interned names */
  /* Function that runs the calls which the op cannot: arguments marked with `?` that are None, or
   * arrays without dimensions or with more than `most_dims` (0 means any number). May be NULL. */
  PyObject *other;
  int most_dims;
  uint64_t special;     /* bit i is set if `other` runs calls without parameter i */
  bool ufunc;           /* numbers alone are passed to NumPy's function */
  mpg_py_binary binary; /* the operator, or MPG_PY_BINARY_COUNT */
  int num_positional;   /* number of arguments that may be given by position */
  int num_leading;      /* number of inputs that come first, in the order of the op */
  int count;
  argument arguments[MAX_ARGUMENTS];
} function_object;

static const char *name_of(const function_object *self) {
  return PyUnicode_AsUTF8(self->base.name);
}

static PyObject *call_helper(const char *function, PyObject *argument) {
  PyObject *module = PyImport_ImportModule("mpgluon.numpy._table");
  PyObject *result = module ? PyObject_CallMethod(module, function, "O", argument) : NULL;
  Py_XDECREF(module);
  return result;
}

/* --- Signatures ------------------------------------------------------------------------------- */
/* Copies the text from `start` to `end` without spaces at both ends. */
static int copy_text(char *target, const char *start, const char *end) {
  while (start < end && *start == ' ') start++;
  while (start < end && end[-1] == ' ') end--;
  if (end - start >= MAX_TEXT) return -1;
  memcpy(target, start, (size_t)(end - start));
  target[end - start] = 0;
  return 0;
}

/* Returns the end of the item that starts at `text`: the next comma or closing parenthesis that is
 * not part of a tuple or a string, or the first `:` or `=` if `part` is set. */
static const char *end_of_item(const char *text, bool part) {
  int depth = 0;
  for (char quote = 0; *text; text++) {
    if (quote || *text == '\'') {
      quote = *text == '\'' ? (quote ? 0 : '\'') : quote;
    } else if (depth == 0 &&
               (*text == ',' || *text == ')' || (part && (*text == ':' || *text == '=')))) {
      break;
    } else {
      depth += (*text == '(') - (*text == ')');
    }
  }
  return text;
}

/* Returns the value of a literal: None, a bool, a string or an integer. */
static PyObject *literal(const char *text) {
  size_t length = strlen(text);
  if (strcmp(text, "None") == 0) return Py_NewRef(Py_None);
  if (strcmp(text, "True") == 0) return Py_NewRef(Py_True);
  if (strcmp(text, "False") == 0) return Py_NewRef(Py_False);
  if (*text == '\'') return PyUnicode_FromStringAndSize(text + 1, (Py_ssize_t)length - 2);
  return PyLong_FromString(text, NULL, 10);
}

static int set_default(function_object *self, argument *argument, char *text) {
  const mpg_param *param = &self->base.op->params->params[argument->index];
  size_t length = strlen(text);
  if (strcmp(text, "...") == 0) return 0; /* required, after arguments that are not */
  self->base.required &= ~((uint64_t)1 << argument->index);
  if (strcmp(text, "None") == 0) {
    if (argument->special) self->special |= (uint64_t)1 << argument->index;
    argument->none = strcmp(param->default_text, "None") != 0;
    if (argument->special || argument->none) return 0;
  }
  if (*text == '\'') text[length - 1] = 0;
  MPG_PY_TRY_INT(mpg_params_set_text(self->base.op->params, self->base.op->name,
                                     self->base.defaults, argument->index, text + (*text == '\'')));
  return 0;
}

/* Removes the mark `?` and the number after it from the end of a name. Returns 0 without a mark, 1
 * if it has no number. */
static int take_mark(char *name) {
  char *mark = strchr(name, '?');
  if (mark == NULL) return 0;
  *mark = 0;
  return mark[1] ? mark[1] - '0' : 1;
}

/* Sets the role of the next argument. `target` is its name in the op's row, or "" if it is the
 * same. `value` is the default, or NULL. `mark` is the number after `?`. */
static int add_argument(function_object *self, const char *name, const char *target, int mark,
                        char *value) {
  const mpg_op *op = self->base.op;
  argument *added = &self->arguments[self->count];
  const char *key = *target ? target : name;
  int param = op->params->size > 0 ? mpg_params_find(op->params, key) : -1, input = 0;
  while (input < self->base.num_inputs &&
         PyUnicode_CompareWithASCIIString(PyTuple_GET_ITEM(self->base.names, input), key) != 0)
    input++;
  if (input == self->base.num_inputs && !*target && self->count < input) input = self->count;
  if (strcmp(name, "casting") == 0) self->ufunc = true;
  if (strcmp(key, "~") == 0) {
    *added = (argument){.role = FIXED};
  } else if (strcmp(key, "_") == 0) {
    *added = (argument){.role = FIXED, .fixed = literal(value ? value : "None")};
    if (added->fixed == NULL) return -1;
  } else if (param >= 0) {
    *added = (argument){.role = PARAM, .index = param, .special = mark == 1, .axis = mark > 1};
    self->base.required |= (uint64_t)1 << param;
    if (value && set_default(self, added, value) < 0) return -1;
  } else if (strcmp(key, "out") == 0) {
    *added = (argument){.role = OUT};
  } else if (strcmp(key, "name") == 0) {
    *added = (argument){.role = NAME};
  } else if (strcmp(key, "^") == 0) {
    *added = (argument){.role = CAST};
  } else if (input < self->base.num_inputs) {
    *added = (argument){.role = INPUT, .index = input, .special = mark == 1};
    if (mark > 1) self->most_dims = mark;
    if (self->num_leading == self->count && input == self->count) self->num_leading++;
  } else {
    PyErr_Format(PyExc_ImportError, "%s: %s has no input or parameter %s", name_of(self), op->name,
                 key);
    return -1;
  }
  self->count++;
  return 0;
}

/* Reads "(x, axis=None, dims:shape=None, order:_='C', *, out=None)". The name after a colon is the
 * argument's name in the op's row. `_` denotes an argument that must keep its default, `~` one
 * that has no effect, and `^` a dtype to cast the first input to. `?` after a name means that
 * `other` runs a call in which the argument is None, and `?2` that it runs calls with inputs of 0
 * or more than 2 dimensions. `?2` after a parameter's name, an axis, means that it runs calls
 * with an empty tuple, and those with an axis for a first input without dimensions. */
static int read_signature(function_object *self, const char *text) {
  mpg_text clean = {0};
  PyObject *names = PyList_New(0);
  int result = names ? 0 : -1;
  self->num_positional = MAX_ARGUMENTS;
  mpg_text_append(&clean, "(");
  for (text++; result == 0 && *text && *text != ')'; text += *text == ',') {
    char name[MAX_TEXT], target[MAX_TEXT] = "", value[MAX_TEXT];
    const char *end = end_of_item(text, true), *stop = end_of_item(text, false);
    result = copy_text(name, text, end);
    if (result == 0 && *end == ':') {
      const char *start = end + 1;
      result = copy_text(target, start, end = end_of_item(start, true));
    }
    bool has_value = *end == '=';
    int mark = take_mark(*target ? target : name);
    if (result == 0 && has_value) result = copy_text(value, end + 1, stop);
    if (result < 0 || self->count == MAX_ARGUMENTS) {
      PyErr_Format(PyExc_ImportError, "%s: the signature is too long", name_of(self));
      result = -1;
      break;
    }
    mpg_text_append(&clean, "%s%s%s%s", clean.length > 1 ? ", " : "", name, has_value ? "=" : "",
                    has_value ? value : "");
    text = stop;
    if (strcmp(name, "*") == 0) {
      self->num_positional = self->count;
      continue;
    }
    PyObject *interned = PyUnicode_InternFromString(name);
    result = interned ? PyList_Append(names, interned) : -1;
    Py_XDECREF(interned);
    if (result == 0) result = add_argument(self, name, target, mark, has_value ? value : NULL);
  }
  mpg_text_append(&clean, ")");
  if (self->num_positional > self->count) self->num_positional = self->count;
  self->signature = mpg_py_take_text(&clean);
  self->keywords = result == 0 ? PyList_AsTuple(names) : NULL;
  Py_XDECREF(names);
  return self->signature == NULL || self->keywords == NULL ? -1 : 0;
}

/* --- Calls ------------------------------------------------------------------------------------ */
/* Raises an error for a value other than the default of an argument. */
static int check_fixed(const function_object *self, int index, PyObject *value) {
  PyObject *fixed = self->arguments[index].fixed;
  if (value == fixed || fixed == NULL) return 0;
  if (Py_TYPE(value) == Py_TYPE(fixed)) {
    int equal = PyObject_RichCompareBool(value, fixed, Py_EQ);
    if (equal != 0) return equal < 0 ? -1 : 0;
  }
  PyObject *module = PyImport_ImportModule("mpgluon.numpy._table");
  PyObject *result =
      module ? PyObject_CallMethod(module, "refuse", "OOOO", self->base.name,
                                   PyTuple_GET_ITEM(self->keywords, index), value, fixed)
             : NULL;
  Py_XDECREF(module);
  Py_XDECREF(result);
  return -1;
}

/* True for an array or a symbol in place of a number. */
static bool is_array_of_numbers(PyObject *value) {
  if (PyLong_Check(value) || PyFloat_Check(value)) return false;
  if (mpg_py_is_array(value) || (mpg_py_is_numpy(value) && !mpg_py_is_scalar(value))) return true;
  return mpg_py->symbol_type != NULL && PyObject_IsInstance(value, mpg_py->symbol_type) == 1;
}

static inline int set_argument(const function_object *self, mpg_py_op_call *c, int index,
                               PyObject *value, extras *more) {
  const argument *to = &self->arguments[index];
  if (to->special && (value == Py_None || (to->role == PARAM && is_array_of_numbers(value)))) {
    more->special = true;
    return 0;
  }
  switch (to->role) {
    case INPUT:
      if (self->base.variadic && to->index == self->base.num_inputs - 1)
        return mpg_py_op_call_arrays(c, value);
      return mpg_py_op_call_array(c, to->index, value);
    case PARAM:
      if (value == Py_None && to->none) return 0;
      if (to->axis && value != Py_None) more->axis = true;
      if (to->axis && PyTuple_CheckExact(value) && PyTuple_GET_SIZE(value) == 0) {
        more->special = true;
        return 0;
      }
      return mpg_py_op_call_param(c, to->index, value);
    case OUT: return mpg_py_op_call_out(c, value);
    case NAME: more->name = value; return 0;
    case CAST:
      if (value != Py_None) more->dtype = mpg_py_dtype(value);
      return value != Py_None && more->dtype == MPG_DTYPE_NONE ? -1 : 0;
    case FIXED: return check_fixed(self, index, value);
  }
  return -1;
}

static int set_arguments(const function_object *self, mpg_py_op_call *c, PyObject *const *args,
                         Py_ssize_t count, PyObject *keywords, extras *more) {
  if (count > self->num_positional) {
    PyErr_Format(PyExc_TypeError, "%s takes at most %d positional arguments, got %zd",
                 name_of(self), self->num_positional, count);
    return -1;
  }
  for (Py_ssize_t i = 0; i < count; i++)
    if (set_argument(self, c, (int)i, args[i], more) < 0) return -1;
  Py_ssize_t num_keywords = keywords ? PyTuple_GET_SIZE(keywords) : 0;
  for (Py_ssize_t i = 0; i < num_keywords; i++) {
    PyObject *keyword = PyTuple_GET_ITEM(keywords, i), *value = args[count + i];
    Py_ssize_t index = mpg_py_op_find_name(self->keywords, keyword);
    if (index >= 0 && index < count) {
      PyErr_Format(PyExc_TypeError, "%s: %U is given twice", name_of(self), keyword);
      return -1;
    }
    if (index < 0 && PyUnicode_CompareWithASCIIString(keyword, "name") == 0)
      more->name = value;
    else if (index < 0)
      return mpg_py_op_unknown_keyword(name_of(self), self->keywords, "", keyword);
    else if (set_argument(self, c, (int)index, value, more) < 0)
      return -1;
  }
  return 0;
}

/* Adds the parameters that differ from the row's defaults to a dict of texts. */
static PyObject *texts_of_params(const function_object *self, const mpg_py_op_call *c) {
  const mpg_param_table *table = self->base.op->params;
  PyObject *texts = PyDict_New();
  if (table->size == 0) return texts;
  _Alignas(16) char defaults[MPG_PY_MAX_PARAMS];
  mpg_params_defaults(table, defaults);
  for (int i = 0; texts != NULL && i < table->count; i++) {
    if (i == self->base.count_param) continue;
    mpg_text own = {0}, usual = {0};
    mpg_params_get_text(table, c->params, i, &own);
    if (!mpg_param_required(&table->params[i])) mpg_params_get_text(table, defaults, i, &usual);
    bool differs =
        (c->given >> i & 1) || strcmp(mpg_text_string(&own), mpg_text_string(&usual)) != 0;
    mpg_text_free(&usual);
    PyObject *value = mpg_py_take_text(&own);
    if (value == NULL || (differs && PyDict_SetItemString(texts, table->params[i].name, value) < 0))
      Py_CLEAR(texts);
    Py_XDECREF(value);
  }
  return texts;
}

/* Replaces a symbol by the node that casts it. */
static int cast_symbol(PyObject **symbol, mpg_dtype dtype) {
  const mpg_op *cast = mpg_op_get(MPG_OP_Cast)->numpy;
  PyObject *node = PyObject_CallFunction(mpg_py->symbol_node, "s[O]{ss}O", cast->name, *symbol,
                                         "dtype", mpg_dtype_name(dtype), Py_None);
  if (node == NULL) return -1;
  Py_SETREF(*symbol, node);
  return 0;
}

/* Makes a node of symbols. An operator with a number becomes the op that takes a scalar. */
static PyObject *call_symbols(const function_object *self, mpg_py_op_call *c, const extras *more) {
  const mpg_op *op = self->base.op;
  if (more->dtype != MPG_DTYPE_NONE && cast_symbol(&c->arrays[0], more->dtype) < 0) return NULL;
  mpg_py_op_call_mark(c);
  PyObject *inputs = PyList_New(0), *params = texts_of_params(self, c), *result = NULL;
  for (int i = 0; inputs != NULL && i < c->num_arrays; i++) {
    PyObject *input = c->arrays[i] ? c->arrays[i] : Py_None;
    if (self->binary < MPG_PY_BINARY_COUNT && mpg_py_is_scalar(input)) {
      const mpg_py_operator *operator = &mpg_py->binary[self->binary];
      op = (i == 0 ? operator->reflected : operator->scalar)->numpy;
      if (params && PyDict_SetItemString(params, "scalar", input) < 0) Py_CLEAR(params);
    } else if (PyList_Append(inputs, input) < 0) {
      Py_CLEAR(inputs);
    }
  }
  if (inputs != NULL && params != NULL)
    result = PyObject_CallFunction(mpg_py->symbol_node, "sOOO", op->name, inputs, params,
                                   more->name ? more->name : Py_None);
  Py_XDECREF(inputs);
  Py_XDECREF(params);
  return result;
}

/* Calls NumPy's function of the same name. */
static PyObject *call_numpy(const function_object *self, PyObject *const *args, Py_ssize_t count,
                            PyObject *keywords) {
  PyObject *module = PyImport_ImportModule("numpy"),
           *function = module ? PyObject_GetAttr(module, self->base.name) : NULL,
           *result = function ? PyObject_Vectorcall(function, args, (size_t)count, keywords) : NULL;
  Py_XDECREF(module);
  Py_XDECREF(function);
  return result;
}

static PyObject *refuse_input(const function_object *self, const mpg_py_op_call *c, int index) {
  char name[64];
  const char *shown = mpg_op_input_name(self->base.op, index, name, sizeof name);
  for (int i = 0; i < self->count; i++)
    if (self->arguments[i].role == INPUT && self->arguments[i].index == index)
      shown = PyUnicode_AsUTF8(PyTuple_GET_ITEM(self->keywords, i));
  return PyErr_Format(mpg_py->errors[MPG_TYPE_ERROR],
                      "%s: %s must be an mx.np.ndarray, got %s; use mx.np.array(x)", name_of(self),
                      shown, Py_TYPE(c->arrays[index])->tp_name);
}

/* Replaces a number or a NumPy array by an array like the last one of the call, or of the default
 * dtype and device if `like` is NULL. A number gets the dtype of that array, but float32 instead of
 * bool unless it is a bool. */
static int convert_input(const function_object *self, mpg_py_op_call *c, int index,
                         const mpg_array *like) {
  PyObject *object = c->arrays[index], *made;
  if (mpg_py_is_scalar(object)) {
    mpg_dtype dtype = like ? like->tensor.desc.dtype : MPG_FLOAT32;
    mpg_device_id device = like ? mpg_array_device_id(like) : mpg_py_current_device();
    if (dtype == MPG_BOOL && !PyBool_Check(object)) dtype = MPG_FLOAT32;
    double value;
    if (mpg_py_scalar(object, &value) < 0) return -1;
    PyObject *number = mpg_dtype_is_integer(dtype) ? PyLong_FromDouble(value) : Py_NewRef(object);
    made = number ? mpg_py_array_from(number, dtype, device, true) : NULL;
    Py_XDECREF(number);
  } else {
    made = mpg_py_operand(object, like, MPG_PY_KEEPS, name_of(self));
  }
  PyObject *array = made ? mpg_py_as_kind(made, true) : NULL;
  Py_XDECREF(made);
  if (array == NULL) return -1;
  Py_SETREF(c->arrays[index], array);
  return 0;
}

/* Handles inputs that are not arrays: symbols, and numbers next to arrays or alone. Returns a
 * result, or NULL with or without an exception. Without one, all inputs are arrays. */
static PyObject *call_mixed(const function_object *self, mpg_py_op_call *c, PyObject *const *args,
                            Py_ssize_t count, PyObject *keywords, const extras *more) {
  const mpg_array *like = NULL;
  bool numbers = true;
  int odd = 0;
  for (int i = 0; i < c->num_arrays; i++) {
    PyObject *input = c->arrays[i];
    if (input == NULL) continue;
    if (mpg_py->symbol_type != NULL) {
      int symbol = PyObject_IsInstance(input, mpg_py->symbol_type);
      if (symbol != 0) return symbol < 0 ? NULL : call_symbols(self, c, more);
    }
    bool array = mpg_py_is_array(input), number = !array && mpg_py_is_scalar(input);
    if (array) like = mpg_py_array_of(input);
    if (!array && !number) odd = i;
    numbers &= number;
  }
  if (numbers && self->ufunc) return call_numpy(self, args, count, keywords);
  if (like == NULL && !numbers) return refuse_input(self, c, odd);
  bool operands = c->num_arrays == 2 && c->arrays[0] != NULL && c->arrays[1] != NULL;
  if (self->binary < MPG_PY_BINARY_COUNT && operands && like && like->numpy) {
    mpg_array *out = c->out ? mpg_py_expect_array(c->out, name_of(self)) : NULL;
    if (c->out != NULL && out == NULL) return NULL;
    PyObject *result = mpg_py_binary_call(self->binary, c->arrays[0], c->arrays[1], out);
    if (result != Py_NotImplemented) return result;
    Py_DECREF(result);
    return refuse_input(self, c, mpg_py_is_array(c->arrays[0]) ? 1 : 0);
  }
  for (int i = 0; i < c->num_arrays; i++)
    if (c->arrays[i] != NULL && !mpg_py_is_array(c->arrays[i]) &&
        convert_input(self, c, i, like) < 0)
      return NULL;
  return NULL;
}

static bool all_arrays(const mpg_py_op_call *c) {
  for (int i = 0; i < c->num_arrays; i++)
    if (c->arrays[i] != NULL && !mpg_py_is_array(c->arrays[i])) return false;
  return true;
}

/* Checks that `out` is an array of mx.np. The core checks shape and dtype. */
static int check_out(const function_object *self, const mpg_py_op_call *c) {
  if (c->out == NULL || !mpg_py_is_array(c->out) || mpg_py_array_of(c->out)->numpy) return 0;
  PyErr_Format(mpg_py->errors[MPG_TYPE_ERROR],
               "%s: out is an array of mx.nd, but the function is of mx.np; use as_np_ndarray()",
               name_of(self));
  return -1;
}

/* True for a number and for an array that has no dimensions or more than the op takes. */
static bool is_beyond(const function_object *self, PyObject *object) {
  if (!mpg_py_is_array(object)) return mpg_py_is_scalar(object);
  int ndim = mpg_py_array_of(object)->tensor.desc.shape.ndim;
  return ndim < 1 || ndim > self->most_dims;
}

/* True if `other` must run the call. */
static bool is_special(const function_object *self, const mpg_py_op_call *c, const extras *more) {
  if (more->special || self->special & ~c->given) return true;
  PyObject *first = more->axis && c->num_arrays > 0 ? c->arrays[0] : NULL;
  if (first != NULL && mpg_py_is_array(first) &&
      mpg_py_array_of(first)->tensor.desc.shape.ndim == 0)
    return true;
  for (int i = 0; i < self->count; i++) {
    const argument *a = &self->arguments[i];
    if (a->role == INPUT && a->special &&
        (a->index >= c->num_arrays || c->arrays[a->index] == NULL))
      return true;
  }
  for (int i = 0; self->most_dims && i < c->num_arrays; i++)
    if (c->arrays[i] != NULL && is_beyond(self, c->arrays[i])) return true;
  return false;
}

static int cast_first(mpg_py_op_call *c, mpg_dtype dtype) {
  if (dtype == MPG_DTYPE_NONE || c->num_arrays == 0 || c->arrays[0] == NULL) return 0;
  PyObject *cast = mpg_py_cast(c->arrays[0], dtype);
  if (cast == NULL) return -1;
  Py_SETREF(c->arrays[0], cast);
  return 0;
}

static __attribute__((noinline)) PyObject *call_any(const function_object *self,
                                                    PyObject *const *args, Py_ssize_t count,
                                                    PyObject *keywords) {
  PyObject *result = NULL;
  extras more = {.dtype = MPG_DTYPE_NONE};
  mpg_py_op_call c;
  mpg_py_op_call_begin(&c, &self->base);
  if (set_arguments(self, &c, args, count, keywords, &more) == 0 && check_out(self, &c) == 0) {
    if (self->other != NULL && is_special(self, &c, &more))
      result = PyObject_Vectorcall(self->other, args, (size_t)count, keywords);
    else if (!all_arrays(&c))
      result = call_mixed(self, &c, args, count, keywords, &more);
    if (result == NULL && !PyErr_Occurred() && cast_first(&c, more.dtype) == 0)
      result = mpg_py_op_call_run(&c);
  }
  mpg_py_op_call_end(&c);
  return result;
}

static PyObject *function_call(PyObject *callable, PyObject *const *args, size_t flags,
                               PyObject *keywords) {
  function_object *self = (function_object *)callable;
  Py_ssize_t count = PyVectorcall_NARGS(flags);
  if (count > self->num_leading || self->special ||
      !mpg_py_op_is_plain(&self->base, args, count, keywords))
    return call_any(self, args, count, keywords);
  for (Py_ssize_t i = 0; self->most_dims && i < count; i++)
    if (is_beyond(self, args[i])) return call_any(self, args, count, keywords);
  return mpg_py_op_run_plain(&self->base, args, count);
}

/* --- The type --------------------------------------------------------------------------------- */
static PyObject *function_repr(PyObject *self) {
  const function_object *function = (const function_object *)self;
  return PyUnicode_FromFormat("<function %U.%U>", function->module, function->base.name);
}
static void function_dealloc(PyObject *object) {
  function_object *self = (function_object *)object;
  PyTypeObject *type = Py_TYPE(object);
  mpg_py_op_clear(&self->base);
  Py_XDECREF(self->module);
  Py_XDECREF(self->signature);
  Py_XDECREF(self->text);
  Py_XDECREF(self->keywords);
  Py_XDECREF(self->other);
  for (int i = 0; i < self->count; i++) Py_XDECREF(self->arguments[i].fixed);
  type->tp_free(object);
  Py_DECREF(type);
}
/* Pickles by reference: the string names the object in its module. */
static PyObject *function_reduce(PyObject *self, PyObject *Py_UNUSED(unused)) {
  return Py_NewRef(((function_object *)self)->base.name);
}
static PyObject *get_module(PyObject *self, void *Py_UNUSED(unused)) {
  return Py_NewRef(((function_object *)self)->module);
}
static PyObject *get_text_signature(PyObject *self, void *Py_UNUSED(unused)) {
  return Py_NewRef(((function_object *)self)->signature);
}
static PyObject *get_text(PyObject *self, void *Py_UNUSED(unused)) {
  return Py_NewRef(((function_object *)self)->text);
}
static PyObject *get_signature(PyObject *self, void *Py_UNUSED(unused)) {
  return call_helper("signature", self);
}
static PyObject *get_doc(PyObject *self, void *Py_UNUSED(unused)) {
  return call_helper("docstring", self);
}
static PyObject *get_op_name(PyObject *self, void *Py_UNUSED(unused)) {
  return PyUnicode_FromString(((function_object *)self)->base.op->name);
}
/* Returns a dict from each argument to (role, name in the row or default). */
static PyObject *get_arguments(PyObject *object, void *Py_UNUSED(unused)) {
  static const char *const roles[] = {"input", "parameter", "out", "name", "cast", "fixed"};
  const function_object *self = (const function_object *)object;
  PyObject *result = PyDict_New();
  for (int i = 0; result != NULL && i < self->count; i++) {
    const argument *a = &self->arguments[i];
    PyObject *key = PyTuple_GET_ITEM(self->keywords, i),
             *to = a->role == FIXED   ? a->fixed ? a->fixed : Py_None
                   : a->role == INPUT ? PyTuple_GET_ITEM(self->base.names, a->index)
                   : a->role == PARAM
                       ? PyTuple_GET_ITEM(self->base.names, self->base.num_inputs + a->index)
                       : key,
             *entry = Py_BuildValue("sO", roles[a->role], to);
    if (entry == NULL || PyDict_SetItem(result, key, entry) < 0) Py_CLEAR(result);
    Py_XDECREF(entry);
  }
  return result;
}

static PyMemberDef function_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(function_object, base.call), READONLY, NULL},
    {0}};
static PyMethodDef function_methods[] = {{"__reduce__", function_reduce, METH_NOARGS, NULL}, {0}};
static PyGetSetDef function_properties[] = {
    {"__doc__", get_doc, NULL, NULL, NULL},
    {"__text_signature__", get_text_signature, NULL, NULL, NULL},
    {"__signature__", get_signature, NULL, NULL, NULL},
    {"__name__", mpg_py_op_name, NULL, NULL, NULL},
    {"__qualname__", mpg_py_op_name, NULL, NULL, NULL},
    {"__module__", get_module, NULL, NULL, NULL},
    {"op_name", get_op_name, NULL, "The name of the op, such as _npi_exp.", NULL},
    {"arguments", get_arguments, NULL,
     "A dict from each argument to its role (input, parameter, out, name, cast, fixed) and its "
     "name in the op's row, or its only value.",
     NULL},
    {"text", get_text, NULL, "The entry of the function in the table: description, examples.",
     NULL},
    {0}};
static PyType_Slot function_slots[] = {
    {Py_tp_dealloc, function_dealloc},   {Py_tp_repr, function_repr},
    {Py_tp_call, PyVectorcall_Call},     {Py_tp_descr_get, mpg_py_op_bind},
    {Py_tp_members, function_members},   {Py_tp_methods, function_methods},
    {Py_tp_getset, function_properties}, {0, NULL}};
static PyType_Spec function_spec = {"mpgluon._core.NumPyFunction", sizeof(function_object), 0,
                                    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL |
                                        Py_TPFLAGS_METHOD_DESCRIPTOR |
                                        Py_TPFLAGS_DISALLOW_INSTANTIATION,
                                    function_slots};

static int check_required(const function_object *self) {
  uint64_t given = 0;
  for (int i = 0; i < self->count; i++)
    if (self->arguments[i].role == PARAM) given |= (uint64_t)1 << self->arguments[i].index;
  if ((self->base.required & ~given) == 0) return 0;
  PyErr_Format(PyExc_ImportError, "%s: the signature lacks a required parameter of %s",
               name_of(self), self->base.op->name);
  return -1;
}

/* Sets parameters of the row to the values of a dict, as defaults. */
static int set_given(function_object *self, PyObject *given) {
  const mpg_op *op = self->base.op;
  PyObject *key, *value;
  for (Py_ssize_t place = 0; PyDict_Next(given, &place, &key, &value);) {
    const char *text = PyUnicode_AsUTF8(key);
    int index = text && op->params->size > 0 ? mpg_params_find(op->params, text) : -1;
    if (index < 0) {
      PyErr_Format(PyExc_ImportError, "%s has no parameter %S", op->name, key);
      return -1;
    }
    if (mpg_py_param_set(op->params, op->name, self->base.defaults, index, value) < 0) return -1;
    self->base.required &= ~((uint64_t)1 << index);
  }
  return 0;
}

static PyObject *numpy_function(PyObject *Py_UNUSED(module), PyObject *args) {
  PyObject *home, *text, *given, *other;
  const char *name, *signature, *row;
  if (!PyArg_ParseTuple(args, "UsssUO!O:numpy_function", &home, &name, &signature, &row, &text,
                        &PyDict_Type, &given, &other))
    return NULL;
  const mpg_op *op = mpg_op_find(row);
  if (op == NULL) return PyErr_Format(mpg_py->errors[MPG_VALUE_ERROR], "unknown op %s", row);
  function_object *self = PyObject_New(function_object, mpg_py->numpy_function_type);
  if (self == NULL) return NULL;
  memset((char *)self + sizeof(PyObject), 0, sizeof *self - sizeof(PyObject));
  self->base.call = function_call;
  self->module = Py_NewRef(home);
  self->text = Py_NewRef(text);
  self->other = other == Py_None ? NULL : Py_NewRef(other);
  self->binary = mpg_py_binary_of(op);
  if (mpg_py_op_setup(&self->base, op->numpy, name) == 0 && set_given(self, given) == 0 &&
      read_signature(self, signature) == 0 && check_required(self) == 0)
    return (PyObject *)self;
  Py_DECREF(self);
  return NULL;
}

static PyObject *set_symbol_node(PyObject *Py_UNUSED(module), PyObject *args) {
  PyObject *type, *function;
  if (!PyArg_ParseTuple(args, "OO:set_symbol_node", &type, &function)) return NULL;
  PyObject *old = Py_BuildValue("OO", mpg_py->symbol_type ? mpg_py->symbol_type : Py_None,
                                mpg_py->symbol_node ? mpg_py->symbol_node : Py_None);
  if (old == NULL) return NULL;
  Py_XSETREF(mpg_py->symbol_type, type == Py_None ? NULL : Py_NewRef(type));
  Py_XSETREF(mpg_py->symbol_node, function == Py_None ? NULL : Py_NewRef(function));
  return old;
}

PyMethodDef mpg_py_function_methods[] = {
    {"numpy_function", numpy_function, METH_VARARGS,
     "numpy_function(module, name, signature, row, text, given, other)\n--\n\nAn op of mx.np as a "
     "function with a signature of NumPy, such as "
     "'(a, axis=None, newshape:shape=None, order:_=\'C\')'.\n\nThe name after a colon is the "
     "argument's name in the op's row. `_` marks an argument that must keep its default. `given` "
     "is a dict of the row's parameters that have other defaults. `other` runs the calls that the "
     "op cannot, or is None."},
    {"set_symbol_node", set_symbol_node, METH_VARARGS,
     "set_symbol_node(type, function)\n--\n\nMakes functions of mx.np accept symbols of that "
     "type, or no symbols for None. Returns the arguments of the previous call.\n\nA call with a "
     "symbol returns function(op, inputs, params, name): the op's name, a list "
     "of symbols (None for omitted inputs), and a dict of texts with the parameters."},
    {0}};

int mpg_py_function_init(PyObject *module) {
  mpg_py->numpy_function_type =
      (PyTypeObject *)PyType_FromModuleAndSpec(module, &function_spec, NULL);
  return mpg_py->numpy_function_type == NULL ||
                 PyModule_AddType(module, mpg_py->numpy_function_type) < 0
             ? -1
             : 0;
}
