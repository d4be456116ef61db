/* _core.Op: an op as a Python function. The arguments are the arrays, followed by the parameters in
 * declaration order, as in MXNet's generated functions. `out` is the array or arrays to write into.
 * `name` matters only for symbols.
 *
 * Names are interned, so a keyword is found by comparing pointers. Strings are compared only if no
 * pointer is equal.
 */
#include "op/batching/batching.h"
#include "python/core.h"

typedef struct op_object {
  PyObject_HEAD vectorcallfunc call;
  const mpg_op *op;
  PyObject *name;  /* the name or alias under which this object was created */
  PyObject *names; /* tuple of interned names: inputs, then parameters */
  int num_inputs;  /* number of input names; a variadic input counts as one */
  int min_inputs;  /* number of inputs that are always required */
  bool variadic;
  bool marks;        /* given arrays set parameters use_<name> */
  bool creates;      /* true if the op creates an array (on the current context if `ctx` is None) */
  int ctx;           /* index of the parameter "ctx", or -1 */
  int count_param;   /* index of the parameter "num_args" (number of arrays), or -1 */
  void *defaults;    /* the parameter struct with defaults; owned */
  uint64_t required; /* bit i is set if parameter i is required */
} op_object;

enum { MAX_PARAMS = 64 };

/* --- Calls ------------------------------------------------------------------------------------ */
typedef struct call {
  op_object *self;
  PyObject **arrays; /* inputs; owned references; NULL if omitted */
  int num_arrays;    /* one more than the index of the last used entry */
  int capacity;
  PyObject *small[MPG_PY_SMALL];
  PyObject *out;      /* borrowed */
  uint64_t given;     /* bit i is set if parameter i was given */
  uint32_t named;     /* bit i is set if input i was given by name */
  const void *values; /* points to `params`; NULL for ops without parameters */
  _Alignas(16) char params[MPG_PY_MAX_PARAMS];
} call;

static int call_grow(call *c, int needed) {
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

static int add_array(call *c, int place, PyObject *object) {
  if (call_grow(c, place + 1) < 0) return -1;
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
static int check_array_after_list(const call *c, PyObject *object) {
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

static int add_arrays_of(call *c, PyObject *sequence) {
  PyObject *items = mpg_py_items(sequence, "expected a list of arrays");
  if (items == NULL) return -1;
  int result = 0;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(items) && result == 0; i++)
    result = add_array(c, c->num_arrays, PyTuple_GET_ITEM(items, i));
  Py_DECREF(items);
  return result;
}

static int add_param(call *c, int index, PyObject *value) {
  if (c->given >> index & 1) {
    PyErr_Format(PyExc_TypeError, "%s: %s is given twice", c->self->op->name,
                 c->self->op->params->params[index].name);
    return -1;
  }
  c->given |= (uint64_t)1 << index;
  return mpg_py_param_set(c->self->op->params, c->self->op->name, c->params, index, value);
}

/* Raises an error that suggests similar names. If the op has no parameters at all, only warns,
 * because MXNet accepts any keyword for these ops, and programs rely on that. */
static int unknown_keyword(const op_object *self, PyObject *keyword) {
  if (self->op->params->size == 0)
    return PyErr_WarnFormat(PyExc_UserWarning, 1,
                            "%s has no parameters; '%U' is ignored, as in MXNet", self->op->name,
                            keyword);
  PyObject *comma = PyUnicode_FromString(", "),
           *list = comma ? PyUnicode_Join(comma, self->names) : NULL,
           *hints = list ? PyImport_ImportModule("mpgluon._internal.hints") : NULL,
           *near =
               hints ? PyObject_CallMethod(hints, "near_option", "OO", keyword, self->names) : NULL;
  if (near != NULL)
    PyErr_Format(mpg_py->errors[MPG_TYPE_ERROR],
                 "%s has no parameter '%U'%U; it takes: %U%sout, name", self->op->name, keyword,
                 near, list, PyTuple_GET_SIZE(self->names) ? ", " : "");
  Py_XDECREF(near);
  Py_XDECREF(hints);
  Py_XDECREF(comma);
  Py_XDECREF(list);
  return -1;
}

static Py_ssize_t find_name(PyObject *names, PyObject *keyword) {
  Py_ssize_t count = PyTuple_GET_SIZE(names);
  for (Py_ssize_t i = 0; i < count; i++)
    if (PyTuple_GET_ITEM(names, i) == keyword) return i;
  for (Py_ssize_t i = 0; i < count; i++)
    if (PyUnicode_Compare(PyTuple_GET_ITEM(names, i), keyword) == 0) return i;
  return -1;
}

/* Returns the input index for a keyword that passes an array to a variadic op, such as "arg3" or
 * "data3". Returns -1 for other keywords. */
static int variadic_place(const op_object *self, PyObject *keyword) {
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

static int set_out(call *c, PyObject *value) {
  if (c->out != NULL) {
    PyErr_Format(PyExc_TypeError, "%s: out is given twice", c->self->op->name);
    return -1;
  }
  c->out = value == Py_None ? NULL : value;
  return 0;
}

static int add_keyword(call *c, PyObject *keyword, PyObject *value) {
  op_object *self = c->self;
  if (keyword == mpg_py->name_out) return set_out(c, value);
  Py_ssize_t place = find_name(self->names, keyword);
  if (place < 0) {
    if (keyword == mpg_py->name_name || PyUnicode_CompareWithASCIIString(keyword, "name") == 0)
      return 0;
    if (PyUnicode_CompareWithASCIIString(keyword, "out") == 0) return set_out(c, value);
    int numbered = self->variadic ? variadic_place(self, keyword) : -1;
    if (numbered >= 0) return add_array(c, numbered, value);
    return unknown_keyword(self, keyword);
  }
  if (place >= self->num_inputs) return add_param(c, (int)place - self->num_inputs, value);
  if (self->variadic && place == self->num_inputs - 1 &&
      (PyList_Check(value) || PyTuple_Check(value)))
    return add_arrays_of(c, value);
  if (value != Py_None && place < 32) c->named |= (uint32_t)1 << place;
  return add_array(c, (int)place, value);
}

/* Raises an error if an array is given by name for an input that the parameters disable. */
static int check_named(const call *c) {
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
static void mark_arrays(call *c) {
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
static void close_gaps(call *c) {
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
static int convert_arrays(call *c) {
  const mpg_op *op = c->self->op;
  if (c->self->marks) mark_arrays(c);
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
    PyObject *converted = mpg_py_operand(c->arrays[i], like, false, what);
    if (converted == NULL) return -1;
    Py_SETREF(c->arrays[i], converted);
  }
  return 0;
}

/* Sets num_args to the number of arrays. If the caller gives a value, it must be equal or 0. */
static int set_count(call *c) {
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

static int check_required(const call *c) {
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

static PyObject *run_out(call *c, mpg_array *const *inputs, int visible) {
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

static PyObject *run_several(call *c, mpg_array *const *inputs, int visible) {
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

static PyObject *run(call *c) {
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

static __attribute__((noinline)) PyObject *call_any(op_object *self, PyObject *const *args,
                                                    Py_ssize_t count, PyObject *keywords) {
  const mpg_param_table *table = self->op->params;
  call c;
  c.self = self;
  c.arrays = c.small;
  c.num_arrays = 0;
  c.capacity = MPG_PY_SMALL;
  c.out = NULL;
  c.given = 0;
  c.named = 0;
  c.values = table->size > 0 ? c.params : NULL;
  memset(c.small, 0, sizeof c.small);
  memcpy(c.params, self->defaults, table->size);
  PyObject *result = NULL;
  Py_ssize_t positional = self->num_inputs + (table->size > 0 ? table->count : 0);
  Py_ssize_t num_keywords = keywords ? PyTuple_GET_SIZE(keywords) : 0;

  if (mpg_py_takes_sparse(args, count + num_keywords))
    return mpg_py_sparse_call((PyObject *)self, args, count, keywords);

  if (!self->variadic && count > positional + 2)
    return PyErr_Format(PyExc_TypeError, "%s takes at most %zd arguments, got %zd", self->op->name,
                        positional + 2, count);
  bool after_list = false;
  for (Py_ssize_t i = 0; i < count; i++) {
    if (self->variadic && i >= self->num_inputs - 1) {
      bool list = PyList_Check(args[i]) || PyTuple_Check(args[i]);
      if (after_list && check_array_after_list(&c, args[i]) < 0) goto done;
      after_list = list;
      if ((list ? add_arrays_of(&c, args[i]) : add_array(&c, c.num_arrays, args[i])) < 0) goto done;
    } else if (i < self->num_inputs) {
      if (add_array(&c, (int)i, args[i]) < 0) goto done;
    } else if (i < positional) {
      if (add_param(&c, (int)i - self->num_inputs, args[i]) < 0) goto done;
    } else if (i == positional) { /* `name` follows and has no effect */
      if (set_out(&c, args[i]) < 0) goto done;
    }
  }
  for (Py_ssize_t i = 0; i < num_keywords; i++)
    if (add_keyword(&c, PyTuple_GET_ITEM(keywords, i), args[count + i]) < 0) goto done;
  if (convert_arrays(&c) < 0 || check_required(&c) < 0) goto done;
  if (set_count(&c) < 0) goto done;
  result = run(&c);
done:
  for (int i = 0; i < c.num_arrays; i++) Py_XDECREF(c.arrays[i]);
  if (c.arrays != c.small) PyMem_Free(c.arrays);
  return result;
}

/* True if a call passes only NDArrays, by position, and no parameters. The call then needs no
 * conversions and uses the default parameters. The arrays are borrowed from the caller. */
static inline bool is_plain(const op_object *self, PyObject *const *args, Py_ssize_t count,
                            PyObject *keywords) {
  if (self->variadic || self->required || count == 0 || count < self->min_inputs ||
      count > (self->marks ? self->min_inputs : self->num_inputs) || count > MPG_PY_SMALL)
    return false;
  if (keywords != NULL && PyTuple_GET_SIZE(keywords) > 0) return false;
  for (Py_ssize_t i = 0; i < count; i++)
    if (!Py_IS_TYPE(args[i], mpg_py->array_type) && !Py_IS_TYPE(args[i], mpg_py->numpy_type))
      return false;
  return true;
}

static PyObject *op_call(PyObject *callable, PyObject *const *args, size_t flags,
                         PyObject *keywords) {
  op_object *self = (op_object *)callable;
  Py_ssize_t count = PyVectorcall_NARGS(flags);
  if (!is_plain(self, args, count, keywords)) return call_any(self, args, count, keywords);
  const void *values = self->op->params->size > 0 ? self->defaults : NULL;
  mpg_array *inputs[MPG_PY_SMALL];
  for (Py_ssize_t i = 0; i < count; i++) inputs[i] = mpg_py_array_of(args[i]);
  if (mpg_call_outputs(self->op, values, (int)count) != 1)
    return call_any(self, args, count, keywords);
  return mpg_py_call_op(self->op, values, inputs, (int)count);
}

/* --- The type --------------------------------------------------------------------------------- */
static PyObject *op_get(PyObject *self, PyObject *object, PyObject *Py_UNUSED(type)) {
  return object == NULL || object == Py_None ? Py_NewRef(self) : PyMethod_New(self, object);
}
static PyObject *op_repr(PyObject *self) {
  return PyUnicode_FromFormat("<mxnet operator %U>", ((op_object *)self)->name);
}
static void op_dealloc(PyObject *object) {
  op_object *self = (op_object *)object;
  PyTypeObject *type = Py_TYPE(object);
  Py_XDECREF(self->name);
  Py_XDECREF(self->names);
  PyMem_Free(self->defaults);
  type->tp_free(object);
  Py_DECREF(type);
}
static PyObject *op_reduce(PyObject *self, PyObject *Py_UNUSED(unused)) {
  PyObject *module = PyImport_ImportModule("mpgluon._core"),
           *get = module ? PyObject_GetAttrString(module, "get_op") : NULL;
  Py_XDECREF(module);
  return get ? Py_BuildValue("N(O)", get, ((op_object *)self)->name) : NULL;
}

static void append_default(mpg_text *text, const mpg_param *param) {
  if (mpg_param_required(param))
    mpg_text_append(text, "=...");
  else if (param->kind == MPG_PARAM_STRING || param->kind == MPG_PARAM_ENUM ||
           param->kind == MPG_PARAM_DTYPE)
    mpg_text_append(text, strcmp(param->default_text, "None") == 0 ? "=None" : "='%s'",
                    param->default_text);
  else if (param->kind == MPG_PARAM_BOOL)
    mpg_text_append(text, param->default_text[0] == 'T' || param->default_text[0] == '1' ||
                                  param->default_text[0] == 't'
                              ? "=True"
                              : "=False");
  else
    mpg_text_append(text, "=%s", param->default_text);
}

static void append_signature(mpg_text *text, const op_object *self) {
  const mpg_op *op = self->op;
  mpg_text_append(text, "(");
  for (int i = 0; i < self->num_inputs; i++) {
    const char *name = PyUnicode_AsUTF8(PyTuple_GET_ITEM(self->names, i));
    bool star = self->variadic && i == self->num_inputs - 1;
    mpg_text_append(text, "%s%s%s%s", i ? ", " : "", star ? "*" : "", name ? name : "?",
                    !star && mpg_op_input_optional(op, i) ? "=None" : "");
  }
  for (int i = 0; op->params->size > 0 && i < op->params->count; i++) {
    const mpg_param *param = &op->params->params[i];
    mpg_text_append(text, "%s%s", i || self->num_inputs ? ", " : "", param->name);
    append_default(text, param);
  }
  mpg_text_append(text, "%sout=None, name=None)",
                  self->num_inputs || op->params->size > 0 ? ", " : "");
}

static PyObject *get_signature(PyObject *self, void *Py_UNUSED(unused)) {
  mpg_text text = {0};
  append_signature(&text, (op_object *)self);
  return mpg_py_take_text(&text);
}

static PyObject *get_signature_object(PyObject *self, void *Py_UNUSED(unused)) {
  PyObject *module = PyImport_ImportModule("mpgluon.ndarray._signatures");
  PyObject *result = module ? PyObject_CallMethod(module, "signature", "O", self) : NULL;
  Py_XDECREF(module);
  return result;
}

static PyObject *get_doc(PyObject *object, void *Py_UNUSED(unused)) {
  const op_object *self = (op_object *)object;
  return mpg_py_op_doc(self->op, self->names, self->num_inputs);
}
static PyObject *get_name(PyObject *self, void *Py_UNUSED(unused)) {
  return Py_NewRef(((op_object *)self)->name);
}
static PyObject *get_module(PyObject *Py_UNUSED(self), void *Py_UNUSED(unused)) {
  return PyUnicode_FromString("mpgluon.ndarray.op");
}

static PyObject *describe_params(const op_object *self) {
  const mpg_param_table *table = self->op->params;
  int count = table->size > 0 ? table->count : 0;
  PyObject *list = PyList_New(count);
  for (int i = 0; list != NULL && i < count; i++) {
    const mpg_param *param = &table->params[i];
    PyObject *item = Py_BuildValue("{s:s,s:s,s:s,s:s,s:s,s:O}", "name", param->name, "kind",
                                   mpg_py_kind_name(param->kind), "default", param->default_text,
                                   "constraint", param->constraint, "doc", param->doc, "required",
                                   mpg_param_required(param) ? Py_True : Py_False);
    if (item == NULL)
      Py_CLEAR(list);
    else
      PyList_SET_ITEM(list, i, item);
  }
  return list;
}

static PyObject *op_describe(PyObject *object, PyObject *Py_UNUSED(unused)) {
  op_object *self = (op_object *)object;
  const mpg_op *op = self->op;
  static const struct {
    mpg_op_flags flag;
    const char *name;
  } flags[] = {{MPG_OP_INPLACE, "inplace"},
               {MPG_OP_HEAVY, "heavy"},
               {MPG_OP_RANDOM, "random"},
               {MPG_OP_COPY, "copy"},
               {MPG_OP_CREATES, "creates"},
               {MPG_OP_TRAIN, "train"},
               {MPG_OP_VIEW, "view"},
               {MPG_OP_HIDDEN, "hidden"},
               {MPG_OP_DYNAMIC, "dynamic"},
               {MPG_OP_SHAPE_ONLY, "shape_only"},
               {MPG_OP_GRADIENT_ONLY, "gradient_only"},
               {MPG_OP_DETACHES, "detaches"},
               {MPG_OP_COMPOSED, "composed"},
               {MPG_OP_STATISTICS, "statistics"}};
  PyObject *inputs = PyList_New(0), *dtypes = PyList_New(0), *set = PyList_New(0),
           *params = describe_params(self), *result = NULL;
  if (inputs == NULL || dtypes == NULL || set == NULL || params == NULL) goto done;
  for (int i = 0; i < self->num_inputs; i++) {
    bool star = self->variadic && i == self->num_inputs - 1;
    PyObject *item = Py_BuildValue("{s:O,s:O,s:O,s:O}", "name", PyTuple_GET_ITEM(self->names, i),
                                   "optional", mpg_op_input_optional(op, i) ? Py_True : Py_False,
                                   "mutable", mpg_op_input_mutable(op, i) ? Py_True : Py_False,
                                   "variadic", star ? Py_True : Py_False);
    if (item == NULL || PyList_Append(inputs, item) < 0) {
      Py_XDECREF(item);
      goto done;
    }
    Py_DECREF(item);
  }
  for (int i = 0; i < MPG_DTYPE_LIMIT; i++) {
    if (!(op->dtypes >> i & 1)) continue;
    PyObject *item = PyUnicode_FromString(mpg_dtype_name((mpg_dtype)i));
    if (item == NULL || PyList_Append(dtypes, item) < 0) {
      Py_XDECREF(item);
      goto done;
    }
    Py_DECREF(item);
  }
  for (size_t i = 0; i < sizeof flags / sizeof flags[0]; i++) {
    if (!(op->flags & flags[i].flag)) continue;
    PyObject *item = PyUnicode_FromString(flags[i].name);
    if (item == NULL || PyList_Append(set, item) < 0) {
      Py_XDECREF(item);
      goto done;
    }
    Py_DECREF(item);
  }
  mpg_py_row_doc doc = mpg_py_split_doc(op);
  bool batching = (op->flags & MPG_OP_COMPOSED) || op->batching != mpg_batching_unknown;
  result = Py_BuildValue("{s:s,s:s,s:s#,s:s,s:O,s:s,s:O,s:O,s:O,s:s,s:O,s:O}", "name", op->name,
                         "aliases", op->aliases, "doc", doc.text, (Py_ssize_t)doc.length, "example",
                         doc.example, "inputs", inputs, "outputs", op->outputs, "params", params,
                         "dtypes", dtypes, "flags", set, "params_struct", op->params->name,
                         "differentiable", mpg_op_differentiable(op) ? Py_True : Py_False,
                         "batching", batching ? Py_True : Py_False);
done:
  Py_XDECREF(inputs);
  Py_XDECREF(dtypes);
  Py_XDECREF(set);
  Py_XDECREF(params);
  return result;
}

static PyMemberDef op_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(op_object, call), READONLY, NULL}, {0}};
static PyMethodDef op_methods[] = {
    {"__reduce__", op_reduce, METH_NOARGS, NULL},
    {"describe", op_describe, METH_NOARGS,
     "describe()\n--\n\nThe description of the op, as a dict: text, example, inputs, parameters "
     "with defaults and constraints, outputs, dtypes, flags."},
    {0}};
static PyGetSetDef op_properties[] = {{"__doc__", get_doc, NULL, NULL, NULL},
                                      {"__text_signature__", get_signature, NULL, NULL, NULL},
                                      {"__signature__", get_signature_object, NULL, NULL, NULL},
                                      {"__name__", get_name, NULL, NULL, NULL},
                                      {"__qualname__", get_name, NULL, NULL, NULL},
                                      {"__module__", get_module, NULL, NULL, NULL},
                                      {0}};
static PyType_Slot op_slots[] = {{Py_tp_dealloc, op_dealloc},     {Py_tp_repr, op_repr},
                                 {Py_tp_call, PyVectorcall_Call}, {Py_tp_descr_get, op_get},
                                 {Py_tp_members, op_members},     {Py_tp_methods, op_methods},
                                 {Py_tp_getset, op_properties},   {0, NULL}};
static PyType_Spec op_spec = {"mpgluon._core.Op", sizeof(op_object), 0,
                              Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL |
                                  Py_TPFLAGS_METHOD_DESCRIPTOR | Py_TPFLAGS_DISALLOW_INSTANTIATION,
                              op_slots};

static PyObject *intern_name(const char *text) { return PyUnicode_InternFromString(text); }

static PyObject *op_new(const mpg_op *op, const char *name) {
  op_object *self = PyObject_New(op_object, mpg_py->op_type);
  if (self == NULL) return NULL;
  self->call = op_call;
  self->op = op;
  self->name = intern_name(name);
  self->num_inputs = mpg_op_num_input_names(op);
  self->variadic = mpg_op_variadic(op);
  self->marks = false;
  self->min_inputs = self->num_inputs;
  while (self->min_inputs > 0 && mpg_op_input_optional(op, self->min_inputs - 1))
    self->min_inputs--;
  for (int i = self->min_inputs; i < self->num_inputs; i++)
    self->marks |= mpg_op_input_mark(op, i) >= 0;
  self->creates = (op->flags & MPG_OP_CREATES) != 0;
  self->ctx = mpg_params_find(op->params, "ctx");
  self->count_param = self->variadic ? mpg_params_find(op->params, "num_args") : -1;
  self->required = 0;
  int num_params = op->params->size > 0 ? op->params->count : 0;
  self->names = PyTuple_New(self->num_inputs + num_params);
  self->defaults = PyMem_Calloc(1, op->params->size + 1);
  if (self->name == NULL || self->names == NULL || self->defaults == NULL) goto fail;
  if (op->params->size > MPG_PY_MAX_PARAMS || num_params > MAX_PARAMS) {
    PyErr_Format(PyExc_ImportError, "op %s: the binding supports fewer parameters", op->name);
    goto fail;
  }
  if (op->params->size > 0) mpg_params_defaults(op->params, self->defaults);
  for (int i = 0; i < self->num_inputs; i++) {
    char buffer[64];
    const char *text = mpg_op_input_name(op, i, buffer, sizeof buffer);
    char clean[64];
    snprintf(clean, sizeof clean, "%s", text);
    /* The registry names the variadic input "data0". Removes the number. */
    if (self->variadic && i == self->num_inputs - 1) {
      size_t length = strlen(clean);
      while (length > 1 && clean[length - 1] >= '0' && clean[length - 1] <= '9')
        clean[--length] = 0;
    }
    PyObject *word = intern_name(clean);
    if (word == NULL) goto fail;
    PyTuple_SET_ITEM(self->names, i, word);
  }
  for (int i = 0; i < num_params; i++) {
    PyObject *word = intern_name(op->params->params[i].name);
    if (word == NULL) goto fail;
    PyTuple_SET_ITEM(self->names, self->num_inputs + i, word);
    if (mpg_param_required(&op->params->params[i])) self->required |= (uint64_t)1 << i;
  }
  if (self->count_param >= 0) self->required &= ~((uint64_t)1 << self->count_param);
  return (PyObject *)self;
fail:
  Py_DECREF(self);
  return NULL;
}

static PyObject *list_ops(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused)) {
  PyObject *list = PyList_New(MPG_OP_COUNT);
  for (int i = 0; list != NULL && i < MPG_OP_COUNT; i++) {
    PyObject *name = PyUnicode_FromString(mpg_op_get((mpg_op_id)i)->name);
    if (name == NULL)
      Py_CLEAR(list);
    else
      PyList_SET_ITEM(list, i, name);
  }
  return list;
}
static PyObject *has_kernel(PyObject *module, PyObject *args) {
  const char *name;
  PyObject *ctx;
  mpg_device_id id;
  mpg_device *device;
  (void)module;
  if (!PyArg_ParseTuple(args, "sO:has_kernel", &name, &ctx) || mpg_py_device_id(ctx, &id) < 0)
    return NULL;
  const mpg_op *op = mpg_op_find(name);
  if (!op) return PyErr_Format(mpg_py->errors[MPG_VALUE_ERROR], "unknown op '%s'", name);
  MPG_PY_TRY(mpg_device_get(id, &device));
  return PyBool_FromLong(mpg_kernel_get(device, op) != NULL);
}

static PyObject *add_under(const mpg_op *op, const char *name) {
  PyObject *object = op_new(op, name);
  if (object != NULL && PyDict_SetItemString(mpg_py->ops_by_name, name, object) < 0)
    Py_CLEAR(object);
  return object;
}

static PyObject *get_op(PyObject *Py_UNUSED(module), PyObject *name) {
  PyObject *object = PyDict_GetItemWithError(mpg_py->ops_by_name, name);
  if (object != NULL) return Py_NewRef(object);
  if (PyErr_Occurred()) return NULL;
  /* Objects of NumPy names are made when they are first asked for. */
  const char *text = PyUnicode_Check(name) ? PyUnicode_AsUTF8(name) : "";
  const mpg_op *op = text ? mpg_op_find(text) : NULL;
  if (op != NULL && mpg_op_is_numpy(op)) return add_under(op, text);
  if (!PyErr_Occurred()) PyErr_Format(mpg_py->errors[MPG_VALUE_ERROR], "unknown op %R", name);
  return NULL;
}
static PyObject *ops(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused)) {
  return PyDict_Copy(mpg_py->ops_by_name);
}

PyMethodDef mpg_py_op_methods[] = {
    {"list_ops", list_ops, METH_NOARGS,
     "list_ops()\n--\n\nThe names of all ops, including hidden ones, in the registry's order."},
    {"get_op", get_op, METH_O,
     "get_op(name)\n--\n\nThe op of that name or alias; raises MXNetError (a ValueError) if it is "
     "unknown."},
    {"has_kernel", has_kernel, METH_VARARGS,
     "has_kernel(name, ctx)\n--\n\nWhether the op can run on that device."},
    {"ops", ops, METH_NOARGS, "ops()\n--\n\nA dict from all names and aliases to their ops."},
    {0}};

PyObject *mpg_py_op_add(const mpg_op *op) { return add_under(op, op->name); }

int mpg_py_op_init(PyObject *module) {
  mpg_py->name_out = intern_name("out");
  mpg_py->name_name = intern_name("name");
  mpg_py->op_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &op_spec, NULL);
  mpg_py->ops_by_name = PyDict_New();
  if (mpg_py->op_type == NULL || mpg_py->ops_by_name == NULL ||
      PyModule_AddType(module, mpg_py->op_type) < 0)
    return -1;
  for (int i = 0; i < MPG_OP_COUNT; i++) {
    const mpg_op *op = mpg_op_get((mpg_op_id)i);
    PyObject *object = mpg_py_op_add(op);
    if (object == NULL) return -1;
    Py_DECREF(object);
    for (const char *alias = op->aliases; *alias;) {
      size_t length = strcspn(alias, " ");
      char name[128];
      snprintf(name, sizeof name, "%.*s", (int)length, alias);
      if (length && mpg_op_find(name) == op) {
        if ((object = add_under(op, name)) == NULL) return -1;
        Py_DECREF(object);
      }
      alias += length + (alias[length] == ' ');
    }
  }
  return 0;
}
