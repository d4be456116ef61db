/* _core.Op: an op as a Python function of arrays, followed by the parameters in declaration order.
 */
#include "op/batching/batching.h"
#include "python/op/call.h"

PyObject *mpg_py_op_bind(PyObject *self, PyObject *object, PyObject *Py_UNUSED(type)) {
  return object == NULL || object == Py_None ? Py_NewRef(self) : PyMethod_New(self, object);
}
static PyObject *op_repr(PyObject *self) {
  return PyUnicode_FromFormat("<mxnet operator %U>", ((mpg_py_op *)self)->name);
}
void mpg_py_op_clear(mpg_py_op *self) {
  Py_XDECREF(self->name);
  Py_XDECREF(self->names);
  PyMem_Free(self->defaults);
}
static void op_dealloc(PyObject *object) {
  mpg_py_op *self = (mpg_py_op *)object;
  PyTypeObject *type = Py_TYPE(object);
  mpg_py_op_clear(self);
  type->tp_free(object);
  Py_DECREF(type);
}
static PyObject *op_reduce(PyObject *self, PyObject *Py_UNUSED(unused)) {
  PyObject *module = PyImport_ImportModule("mpgluon._core"),
           *get = module ? PyObject_GetAttrString(module, "get_op") : NULL;
  Py_XDECREF(module);
  return get ? Py_BuildValue("N(O)", get, ((mpg_py_op *)self)->name) : NULL;
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

static void append_signature(mpg_text *text, const mpg_py_op *self) {
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
  append_signature(&text, (mpg_py_op *)self);
  return mpg_py_take_text(&text);
}

static PyObject *get_signature_object(PyObject *self, void *Py_UNUSED(unused)) {
  PyObject *module = PyImport_ImportModule("mpgluon.ndarray._signatures");
  PyObject *result = module ? PyObject_CallMethod(module, "signature", "O", self) : NULL;
  Py_XDECREF(module);
  return result;
}

static PyObject *get_doc(PyObject *object, void *Py_UNUSED(unused)) {
  const mpg_py_op *self = (mpg_py_op *)object;
  return mpg_py_op_doc(self->op, self->names, self->num_inputs);
}
PyObject *mpg_py_op_name(PyObject *self, void *Py_UNUSED(unused)) {
  return Py_NewRef(((mpg_py_op *)self)->name);
}
static PyObject *get_module(PyObject *Py_UNUSED(self), void *Py_UNUSED(unused)) {
  return PyUnicode_FromString("mpgluon.ndarray.op");
}

static PyObject *describe_params(const mpg_py_op *self) {
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
  mpg_py_op *self = (mpg_py_op *)object;
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
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(mpg_py_op, call), READONLY, NULL}, {0}};
static PyMethodDef op_methods[] = {
    {"__reduce__", op_reduce, METH_NOARGS, NULL},
    {"describe", op_describe, METH_NOARGS,
     "describe()\n--\n\nThe description of the op, as a dict: text, example, inputs, parameters "
     "with defaults and constraints, outputs, dtypes, flags."},
    {0}};
static PyGetSetDef op_properties[] = {{"__doc__", get_doc, NULL, NULL, NULL},
                                      {"__text_signature__", get_signature, NULL, NULL, NULL},
                                      {"__signature__", get_signature_object, NULL, NULL, NULL},
                                      {"__name__", mpg_py_op_name, NULL, NULL, NULL},
                                      {"__qualname__", mpg_py_op_name, NULL, NULL, NULL},
                                      {"__module__", get_module, NULL, NULL, NULL},
                                      {0}};
static PyType_Slot op_slots[] = {{Py_tp_dealloc, op_dealloc},     {Py_tp_repr, op_repr},
                                 {Py_tp_call, PyVectorcall_Call}, {Py_tp_descr_get, mpg_py_op_bind},
                                 {Py_tp_members, op_members},     {Py_tp_methods, op_methods},
                                 {Py_tp_getset, op_properties},   {0, NULL}};
static PyType_Spec op_spec = {"mpgluon._core.Op", sizeof(mpg_py_op), 0,
                              Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL |
                                  Py_TPFLAGS_METHOD_DESCRIPTOR | Py_TPFLAGS_DISALLOW_INSTANTIATION,
                              op_slots};

static PyObject *intern_name(const char *text) { return PyUnicode_InternFromString(text); }

int mpg_py_op_setup(mpg_py_op *self, const mpg_op *op, const char *name) {
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
  if (self->defaults == NULL) PyErr_NoMemory();
  if (self->name == NULL || self->names == NULL || self->defaults == NULL) return -1;
  if (op->params->size > MPG_PY_MAX_PARAMS || num_params > MPG_PY_OP_PARAMS) {
    PyErr_Format(PyExc_ImportError, "op %s: the binding supports fewer parameters", op->name);
    return -1;
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
    if (word == NULL) return -1;
    PyTuple_SET_ITEM(self->names, i, word);
  }
  for (int i = 0; i < num_params; i++) {
    PyObject *word = intern_name(op->params->params[i].name);
    if (word == NULL) return -1;
    PyTuple_SET_ITEM(self->names, self->num_inputs + i, word);
    if (mpg_param_required(&op->params->params[i])) self->required |= (uint64_t)1 << i;
  }
  if (self->count_param >= 0) self->required &= ~((uint64_t)1 << self->count_param);
  return 0;
}

static PyObject *op_new(const mpg_op *op, const char *name) {
  mpg_py_op *self = PyObject_New(mpg_py_op, mpg_py->op_type);
  if (self == NULL) return NULL;
  self->call = mpg_py_op_vectorcall;
  self->name = self->names = NULL;
  self->defaults = NULL;
  if (mpg_py_op_setup(self, op, name) == 0) return (PyObject *)self;
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
