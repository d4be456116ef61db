/* Python interface to the rules of mixed precision. */
#include "autograd/autograd.h"
#include "op/precision/precision.h"

#include "python/core.h"

static const char *const kinds[] = {"any", "low", "half", "full", "widest", "loss"};
_Static_assert(sizeof kinds / sizeof *kinds == MPG_PRECISION_KINDS, "a name for each kind");

static const mpg_op *find_op(PyObject *name) {
  const char *text = PyUnicode_AsUTF8(name);
  const mpg_op *op = text ? mpg_op_find(text) : NULL;
  if (text && !op) PyErr_Format(mpg_py->errors[MPG_VALUE_ERROR], "unknown op '%s'", text);
  return op;
}

static int choose(PyObject *rules) {
  PyObject *name, *kind;
  for (Py_ssize_t at = 0; PyDict_Next(rules, &at, &name, &kind);) {
    const mpg_op *op = find_op(name);
    const char *word = op ? PyUnicode_AsUTF8(kind) : NULL;
    int found = 0;
    if (!word) return -1;
    while (found < MPG_PRECISION_KINDS && strcmp(kinds[found], word) != 0) found++;
    if (found == MPG_PRECISION_KINDS) {
      PyErr_Format(mpg_py->errors[MPG_VALUE_ERROR], "unknown kind of precision '%s'", word);
      return -1;
    }
    mpg_precision_choose(op, (mpg_precision)found);
  }
  return 0;
}

static int set_conditions(PyObject *conditions) {
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(conditions); i++) {
    PyObject *name;
    const char *param, *value;
    if (!PyArg_ParseTuple(PyList_GET_ITEM(conditions, i), "Uss", &name, &param, &value)) return -1;
    const mpg_op *op = find_op(name);
    if (!op) return -1;
    MPG_PY_TRY_INT(mpg_precision_full_if(op, param, value));
  }
  return 0;
}

static PyObject *set_precision(PyObject *Py_UNUSED(module), PyObject *args) {
  const char *low;
  PyObject *rules, *conditions;
  if (!PyArg_ParseTuple(args, "zO!O!:set_precision", &low, &PyDict_Type, &rules, &PyList_Type,
                        &conditions))
    return NULL;
  mpg_dtype dtype = low == NULL                    ? MPG_DTYPE_NONE
                    : strcmp(low, "float16") == 0  ? MPG_FLOAT16
                    : strcmp(low, "bfloat16") == 0 ? MPG_BFLOAT16
                                                   : MPG_FLOAT64;
  if (dtype == MPG_FLOAT64)
    return PyErr_Format(mpg_py->errors[MPG_VALUE_ERROR],
                        "the low precision must be float16 or bfloat16, not %s", low);
  mpg_precision_set(dtype);
  if (choose(rules) == 0 && set_conditions(conditions) == 0) Py_RETURN_NONE;
  mpg_precision_set(MPG_DTYPE_NONE);
  return NULL;
}

static PyObject *precision_of(PyObject *Py_UNUSED(module), PyObject *name) {
  const mpg_op *op = find_op(name);
  return op ? Py_BuildValue("ss", op->name, kinds[mpg_op_precision(op)]) : NULL;
}

static PyObject *precision_is_mixed(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused)) {
  return PyBool_FromLong(mpg_precision_on);
}

static PyObject *set_uncast(PyObject *Py_UNUSED(module), PyObject *value) {
  int on = PyObject_IsTrue(value);
  return on < 0 ? NULL : PyBool_FromLong(mpg_autograd_set_uncast(on));
}

static PyObject *precision_changes(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused)) {
  return PyLong_FromUnsignedLongLong(mpg_precision_changes());
}

static PyObject *set_loss_scale(PyObject *Py_UNUSED(module), PyObject *number) {
  double scale = PyFloat_AsDouble(number);
  if (scale == -1 && PyErr_Occurred()) return NULL;
  mpg_precision_set_loss_scale(scale);
  Py_RETURN_NONE;
}

PyMethodDef mpg_py_precision_methods[] = {
    {"set_precision", set_precision, METH_VARARGS,
     "set_precision(low, rules, conditions)\n--\n\nEnables mixed precision with the dtype `low`, "
     "or disables it if `low` is None. rules: a dict from\nops to kinds that override the table; "
     "conditions: a list of (op, parameter, value) whose calls are\ncomputed in float32."},
    {"precision_of", precision_of, METH_O,
     "precision_of(op)\n--\n\nThe canonical name of an op, and its kind in the table: 'any', "
     "'low', 'half', 'full', 'widest' or 'loss'."},
    {"precision_is_mixed", precision_is_mixed, METH_NOARGS, "Whether mixed precision is enabled."},
    {"set_uncast", set_uncast, METH_O,
     "set_uncast(on)\n--\n\nWhile on, calls of this thread ignore mixed precision. Returns the "
     "previous value."},
    {"precision_changes", precision_changes, METH_NOARGS,
     "precision_changes()\n--\n\nHow often the rules of mixed precision have changed."},
    {"set_loss_scale", set_loss_scale, METH_O,
     "set_loss_scale(scale)\n--\n\nSets the factor of gradients created by output layers."},
    {0}};
