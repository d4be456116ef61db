/* Operators in which mx.np.ndarray differs from NDArray. The functions of mpgluon.numpy compute
 * floor division and matrix products.
 */
#include "python/core.h"

static PyObject *call_function(const char *name, PyObject *a, PyObject *b) {
  PyObject *module = PyImport_ImportModule("mpgluon.numpy"),
           *result = module ? PyObject_CallMethod(module, name, "OO", a, b) : NULL;
  Py_XDECREF(module);
  return result;
}
static bool is_operand(PyObject *object) {
  return mpg_py_is_array(object) || mpg_py_is_scalar(object) || mpg_py_is_numpy(object);
}
static PyObject *numpy_floor_divide(PyObject *a, PyObject *b) {
  if (!is_operand(a) || !is_operand(b)) Py_RETURN_NOTIMPLEMENTED;
  return call_function("floor_divide", a, b);
}
static PyObject *numpy_divmod(PyObject *a, PyObject *b) {
  PyObject *quotient = numpy_floor_divide(a, b);
  if (quotient == NULL || quotient == Py_NotImplemented) return quotient;
  PyObject *remainder = PyNumber_Remainder(a, b);
  PyObject *result = remainder ? PyTuple_Pack(2, quotient, remainder) : NULL;
  Py_DECREF(quotient);
  Py_XDECREF(remainder);
  return result;
}
static PyObject *numpy_positive(PyObject *self) {
  return mpg_py_to_device(self, mpg_py_context_id(mpg_py_array_of(self)), true);
}

/* The ops of a bitwise operator for arrays of bools and of integers. */
typedef struct bit_ops {
  const char *operator, *bools, *integers;
} bit_ops;

static PyObject *call_bits(const bit_ops *ops, mpg_array *const *inputs, int num_inputs,
                           mpg_array *out) {
  mpg_dtype dtype = inputs[0]->tensor.desc.dtype;
  if (mpg_dtype_is_float(dtype))
    return PyErr_Format(PyExc_TypeError, "%s expects integers or bools, not %s", ops->operator,
                        mpg_dtype_name(dtype));
  const char *name = dtype == MPG_BOOL ? ops->bools : ops->integers;
  const mpg_op *op = mpg_op_find(name);
  if (op == NULL)
    return PyErr_Format(mpg_py->errors[MPG_NOT_IMPLEMENTED], "this build has no op %s", name);
  if (out == NULL) return mpg_py_call(op, NULL, inputs, num_inputs);
  return mpg_py_call_out(op, NULL, inputs, num_inputs, out) < 0
             ? NULL
             : Py_NewRef((PyObject *)((char *)out - offsetof(mpg_py_array, array)));
}

/* Returns a number of NumPy, or an array without dimensions, as a number of Python. Returns a new
 * reference to any other object. */
static PyObject *python_number(PyObject *object) {
  if (!mpg_py_is_scalar(object) || PyLong_Check(object) || PyFloat_Check(object))
    return Py_NewRef(object);
  return PyObject_CallMethod(object, "item", NULL);
}
/* Converts an operand to an array of bools or integers. Casts `*array` if it cannot hold them: a
 * bool is combined with an integer as an integer. */
static PyObject *bits_operand(PyObject **array, PyObject *other, const char *what) {
  mpg_dtype dtype = mpg_py_array_of(*array)->tensor.desc.dtype;
  if (dtype == MPG_BOOL && mpg_py_is_integer(other) && !PyBool_Check(other)) {
    Py_SETREF(*array, mpg_py_cast(*array, MPG_INT64));
    if (*array == NULL) return NULL;
  }
  if (PyFloat_Check(other))
    return PyErr_Format(PyExc_TypeError, "%s expects integers or bools, not %S", what, other);
  PyObject *made = mpg_py_operand(other, mpg_py_array_of(*array), MPG_PY_ALIKE, what);
  if (made == NULL || mpg_py_is_array(other)) return made;
  mpg_dtype own = mpg_py_array_of(made)->tensor.desc.dtype;
  if (mpg_dtype_is_float(own)) {
    PyErr_Format(PyExc_TypeError, "%s expects integers or bools, not %S", what, other);
    Py_CLEAR(made);
  } else if (own != mpg_py_array_of(*array)->tensor.desc.dtype) {
    Py_SETREF(*array, mpg_py_cast(*array, own));
    if (*array == NULL) Py_CLEAR(made);
  }
  return made;
}

static PyObject *bits(const bit_ops *ops, PyObject *a, PyObject *b, mpg_array *out) {
  bool first = mpg_py_is_array(a);
  if (first && mpg_py_is_array(b)) {
    mpg_array *inputs[2] = {mpg_py_array_of(a), mpg_py_array_of(b)};
    return call_bits(ops, inputs, 2, out);
  }
  if (!is_operand(a) || !is_operand(b)) Py_RETURN_NOTIMPLEMENTED;
  PyObject *array = Py_NewRef(first ? a : b), *other = python_number(first ? b : a);
  PyObject *converted = other ? bits_operand(&array, other, ops->operator) : NULL, *result = NULL;
  if (converted != NULL) {
    mpg_array *inputs[2] = {mpg_py_array_of(array), mpg_py_array_of(converted)};
    result = call_bits(ops, inputs, 2, out);
  }
  Py_XDECREF(array);
  Py_XDECREF(other);
  Py_XDECREF(converted);
  return result;
}

static const bit_ops and_ops = {"&", "broadcast_logical_and", "_bitwise_and"},
                     or_ops = {"|", "broadcast_logical_or", "_bitwise_or"},
                     xor_ops = {"^", "broadcast_logical_xor", "_bitwise_xor"};

#define BIT_OPERATOR(function)                                           \
  static PyObject *numpy_##function(PyObject *a, PyObject *b) {          \
    return bits(&function##_ops, a, b, NULL);                            \
  }                                                                      \
  static PyObject *numpy_in_place_##function(PyObject *a, PyObject *b) { \
    return bits(&function##_ops, a, b, mpg_py_array_of(a));              \
  }
BIT_OPERATOR(and)
BIT_OPERATOR(or)
BIT_OPERATOR(xor)

PyObject *mpg_py_bits(mpg_py_binary kind, PyObject *a, PyObject *b, mpg_array *out) {
  const bit_ops *ops = kind == MPG_PY_BIT_AND  ? &and_ops
                       : kind == MPG_PY_BIT_OR ? &or_ops
                                               : &xor_ops;
  return bits(ops, a, b, out);
}

static PyObject *numpy_invert(PyObject *self) {
  static const bit_ops ops = {"~", "logical_not", "_bitwise_not"};
  mpg_array *input = mpg_py_array_of(self);
  return call_bits(&ops, &input, 1, NULL);
}

static PyObject *numpy_matmul(PyObject *a, PyObject *b) {
  if (!is_operand(a) || !is_operand(b)) Py_RETURN_NOTIMPLEMENTED;
  const mpg_array *like = mpg_py_array_of(mpg_py_is_array(a) ? a : b);
  PyObject *left = mpg_py_operand(a, like, MPG_PY_PROMOTES, "@"), *right = NULL, *result = NULL;
  if (left != NULL) right = mpg_py_operand(b, like, MPG_PY_PROMOTES, "@");
  if (right != NULL) result = call_function("matmul", left, right);
  Py_XDECREF(left);
  Py_XDECREF(right);
  return result;
}

/* Writes the result of an operator into its left operand, which keeps its shape and dtype. Steals
 * the reference to the result. */
static PyObject *write_result(PyObject *self, PyObject *result) {
  if (result == NULL || result == Py_NotImplemented) return result;
  int status = mpg_py_copy_into(mpg_py_array_of(result), mpg_py_array_of(self));
  Py_DECREF(result);
  return status < 0 ? NULL : Py_NewRef(self);
}
static PyObject *numpy_in_place_floor_divide(PyObject *a, PyObject *b) {
  return write_result(a, numpy_floor_divide(a, b));
}
static PyObject *numpy_in_place_matmul(PyObject *a, PyObject *b) {
  return write_result(a, numpy_matmul(a, b));
}
static PyObject *numpy_in_place_power(PyObject *a, PyObject *b, PyObject *modulus) {
  if (modulus != Py_None) Py_RETURN_NOTIMPLEMENTED;
  return mpg_py_in_place(MPG_PY_POW, a, b);
}

PyType_Slot mpg_py_numpy_number_slots[] = {
    {Py_nb_floor_divide, numpy_floor_divide},
    {Py_nb_divmod, numpy_divmod},
    {Py_nb_positive, numpy_positive},
    {Py_nb_and, numpy_and},
    {Py_nb_inplace_and, numpy_in_place_and},
    {Py_nb_or, numpy_or},
    {Py_nb_inplace_or, numpy_in_place_or},
    {Py_nb_xor, numpy_xor},
    {Py_nb_inplace_xor, numpy_in_place_xor},
    {Py_nb_invert, numpy_invert},
    {Py_nb_matrix_multiply, numpy_matmul},
    {Py_nb_inplace_floor_divide, numpy_in_place_floor_divide},
    {Py_nb_inplace_matrix_multiply, numpy_in_place_matmul},
    {Py_nb_inplace_power, numpy_in_place_power},
    {0, NULL}};
