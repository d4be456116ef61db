/* Operators of NDArray. As in MXNet, each operator has one op for two arrays, one for an array and
 * a scalar, and one for a scalar and an array.
 *
 * This is the hot path of eager programs, so it creates no tuples or dictionaries and keeps
 * parameters on the stack.
 */
#include "op/precision/promotion.h"
#include "python/core.h"
#include "python/array/numpy.h"

#include <math.h>

static const struct {
  const char *array, *scalar, *reflected;
} names[MPG_PY_BINARY_COUNT] = {
    [MPG_PY_ADD] = {"broadcast_add", "_plus_scalar", "_plus_scalar"},
    [MPG_PY_SUB] = {"broadcast_sub", "_minus_scalar", "_rminus_scalar"},
    [MPG_PY_MUL] = {"broadcast_mul", "_mul_scalar", "_mul_scalar"},
    [MPG_PY_DIV] = {"broadcast_div", "_div_scalar", "_rdiv_scalar"},
    [MPG_PY_MOD] = {"broadcast_mod", "_mod_scalar", "_rmod_scalar"},
    [MPG_PY_POW] = {"broadcast_power", "_power_scalar", "_rpower_scalar"},
    [MPG_PY_EQ] = {"broadcast_equal", "_equal_scalar", "_equal_scalar"},
    [MPG_PY_NE] = {"broadcast_not_equal", "_not_equal_scalar", "_not_equal_scalar"},
    [MPG_PY_GT] = {"broadcast_greater", "_greater_scalar", "_lesser_scalar"},
    [MPG_PY_GE] = {"broadcast_greater_equal", "_greater_equal_scalar", "_lesser_equal_scalar"},
    [MPG_PY_LT] = {"broadcast_lesser", "_lesser_scalar", "_greater_scalar"},
    [MPG_PY_LE] = {"broadcast_lesser_equal", "_lesser_equal_scalar", "_greater_equal_scalar"},
    [MPG_PY_MAXIMUM] = {"broadcast_maximum", "_maximum_scalar", "_maximum_scalar"},
    [MPG_PY_MINIMUM] = {"broadcast_minimum", "_minimum_scalar", "_minimum_scalar"},
    [MPG_PY_AND] = {"broadcast_logical_and", "_logical_and_scalar", "_logical_and_scalar"},
    [MPG_PY_OR] = {"broadcast_logical_or", "_logical_or_scalar", "_logical_or_scalar"},
    [MPG_PY_XOR] = {"broadcast_logical_xor", "_logical_xor_scalar", "_logical_xor_scalar"},
    [MPG_PY_HYPOT] = {"broadcast_hypot", "_hypot_scalar", "_hypot_scalar"},
    [MPG_PY_ARCTAN2] = {"_arctan2", "_arctan2_scalar", "_rarctan2_scalar"},
    [MPG_PY_COPYSIGN] = {"_copysign", "_copysign_scalar", "_rcopysign_scalar"},
    [MPG_PY_LDEXP] = {"_ldexp", "_ldexp_scalar", "_rldexp_scalar"},
    [MPG_PY_LCM] = {"_lcm", "_lcm_scalar", "_lcm_scalar"},
    [MPG_PY_BIT_AND] = {"_bitwise_and", "_bitwise_and_scalar", "_bitwise_and_scalar"},
    [MPG_PY_BIT_OR] = {"_bitwise_or", "_bitwise_or_scalar", "_bitwise_or_scalar"},
    [MPG_PY_BIT_XOR] = {"_bitwise_xor", "_bitwise_xor_scalar", "_bitwise_xor_scalar"},
};

static const mpg_op *find(const char *name) { return mpg_op_find(name); }

enum { MAX_SCALAR_PARAMS = 64 };

/* Default parameters of scalar ops, and the offset of the parameter `scalar`. All scalar ops have
 * the same parameter struct. */
static struct {
  const mpg_param_table *table;
  size_t scalar;
  _Alignas(16) char defaults[MAX_SCALAR_PARAMS];
} scalar_params; /* constant after init */

int mpg_py_number_init(void) {
  const mpg_param_table *table = NULL;
  for (int i = 0; i < MPG_PY_BINARY_COUNT; i++) {
    mpg_py->binary[i] =
        (mpg_py_operator){find(names[i].array), find(names[i].scalar), find(names[i].reflected)};
    const mpg_py_operator *operator = &mpg_py->binary[i];
    if (table == NULL && operator->scalar != NULL) table = operator->scalar->params;
    if ((operator->scalar && operator->scalar->params != table) ||
        (operator->reflected && operator->reflected->params != table)) {
      PyErr_Format(PyExc_ImportError,
                   "op %s has different parameters than the preceding scalar ops", names[i].scalar);
      return -1;
    }
  }
  if (table == NULL) return 0;
  int index = mpg_params_find(table, "scalar");
  if (index < 0 || table->params[index].kind != MPG_PARAM_FLOAT ||
      table->size > MAX_SCALAR_PARAMS) {
    PyErr_SetString(PyExc_ImportError, "the scalar ops have no parameter 'scalar' of kind FLOAT");
    return -1;
  }
  scalar_params.table = table;
  scalar_params.scalar = table->params[index].offset;
  mpg_params_defaults(table, scalar_params.defaults);
  return 0;
}

static PyObject *missing(const char *name) {
  return PyErr_Format(mpg_py->errors[MPG_NOT_IMPLEMENTED], "this build has no op %s", name);
}

/* Calls an op, which writes into `out` unless it is NULL. Returns a new reference to the result. */
static inline PyObject *call_into(const mpg_op *op, const void *params, mpg_array *const *inputs,
                                  int num_inputs, mpg_array *out) {
  if (out == NULL) return mpg_py_call(op, params, inputs, num_inputs);
  if (mpg_py_call_out(op, params, inputs, num_inputs, out) < 0) return NULL;
  return Py_NewRef((PyObject *)((char *)out - offsetof(mpg_py_array, array)));
}

/* Applies a scalar op to a bool array of mx.nd, which is cast to int64 first, as in MXNet. */
static PyObject *bool_with_scalar(const mpg_op *op, PyObject *self, const void *params,
                                  mpg_array *out) {
  PyObject *numbers = mpg_py_cast(self, MPG_INT64), *result = NULL;
  if (numbers != NULL) {
    mpg_array *array = mpg_py_array_of(numbers);
    result = call_into(op, params, &array, 1, out);
  }
  Py_XDECREF(numbers);
  return result;
}

/* Applies a scalar op. `real` is true if the scalar is a float; it matters for bool arrays only. */
static inline PyObject *with_scalar(const mpg_op *op, PyObject *self, double scalar, bool real,
                                    mpg_array *out) {
  _Alignas(16) char params[MAX_SCALAR_PARAMS];
  memcpy(params, scalar_params.defaults, sizeof params);
  memcpy(params + scalar_params.scalar, &scalar, sizeof scalar);
  mpg_array *array = mpg_py_array_of(self);
  if (array->tensor.desc.dtype == MPG_BOOL) {
    if (!array->numpy) return bool_with_scalar(op, self, params, out);
    ((mpg_scalar_params *)params)->is_int = !real;
  }
  return call_into(op, params, &array, 1, out);
}

static bool is_comparison(mpg_py_binary kind) { return kind >= MPG_PY_EQ && kind <= MPG_PY_LE; }

/* Raises OverflowError for an integer that a double cannot represent exactly, if the array has an
 * integer dtype. Scalar ops take the number as a double, so the result would be wrong. Comparisons
 * accept any number. */
static int check_integer(mpg_py_binary kind, PyObject *self, PyObject *number, double scalar) {
  if (is_comparison(kind) || !mpg_py_is_rounded(number, scalar) ||
      !mpg_dtype_is_integer(mpg_py_array_of(self)->tensor.desc.dtype))
    return 0;
  PyErr_Format(PyExc_OverflowError,
               "%s: %S cannot be combined exactly with an array of dtype %s, because numbers are "
               "doubles in ops; use an array, %s.array([%S], dtype='int64')",
               names[kind].array, number, mpg_dtype_name(mpg_py_array_of(self)->tensor.desc.dtype),
               mpg_py_array_of(self)->numpy ? "np" : "nd", number);
  return -1;
}

/* Returns NotImplemented for an operand of an unsupported type, with which == is then False and
 * other operators raise TypeError. Raises TypeError for == of a list or tuple too, because its
 * elements were probably meant to be compared. */
static PyObject *unsupported(mpg_py_binary kind, PyObject *self, PyObject *other) {
  if ((kind != MPG_PY_EQ && kind != MPG_PY_NE) || !(PyList_Check(other) || PyTuple_Check(other)))
    Py_RETURN_NOTIMPLEMENTED;
  bool numpy = mpg_py_is_array(self) && mpg_py_array_of(self)->numpy;
  return PyErr_Format(mpg_py->errors[MPG_TYPE_ERROR],
                      "an array cannot be compared with a %s; convert it with %s.array",
                      Py_TYPE(other)->tp_name, numpy ? "np" : "nd");
}

static bool is_real(PyObject *number) {
  if (PyArray_Check(number)) return PyArray_ISFLOAT((PyArrayObject *)number);
  return !mpg_py_is_integer(number) && !PyArray_IsScalar(number, Bool);
}

/* Compares an array of int64 with an integer that a double rounds. */
static PyObject *compare_exactly(mpg_py_binary kind, PyObject *self, PyObject *number,
                                 bool reflected, mpg_array *out) {
  PyObject *integer = PyNumber_Index(number);
  if (integer == NULL) return NULL;
  int overflow = 0;
  (void)PyLong_AsLongLongAndOverflow(integer, &overflow);
  if (overflow != 0) {
    const mpg_py_operator *operator = &mpg_py->binary[kind];
    Py_DECREF(integer);
    return with_scalar(reflected ? operator->reflected : operator->scalar, self,
                       overflow < 0 ? -0x1p64 : 0x1p64, false, out);
  }
  PyObject *operand =
      mpg_py_operand(integer, mpg_py_array_of(self), MPG_PY_PROMOTES, names[kind].array);
  Py_DECREF(integer);
  if (operand == NULL) return NULL;
  mpg_array *a = mpg_py_array_of(self), *b = mpg_py_array_of(operand);
  mpg_array *inputs[2] = {reflected ? b : a, reflected ? a : b};
  PyObject *result = call_into(mpg_py->binary[kind].array, NULL, inputs, 2, out);
  Py_DECREF(operand);
  return result;
}

static bool is_bitwise(mpg_py_binary kind) {
  return kind >= MPG_PY_BIT_AND && kind <= MPG_PY_BIT_XOR;
}

/* True for an integer of Python that the array's dtype and a double hold. */
static bool is_small_integer(PyObject *self, PyObject *number) {
  mpg_dtype dtype = mpg_py_array_of(self)->tensor.desc.dtype;
  if (!PyLong_CheckExact(number) || !mpg_dtype_is_integer(dtype)) return false;
  mpg_integer_range range = mpg_range_of_integers(dtype);
  int overflow = 0;
  long long value = PyLong_AsLongLongAndOverflow(number, &overflow);
  return !overflow && value > -(1LL << 53) && value < 1LL << 53 && (double)value >= range.low &&
         (double)value < range.end;
}

/* Casts an array of mx.np and a converted NumPy array of another dtype to one that holds the values
 * of both, for a comparison. Returns -1 with an exception set on failure. */
static int cast_to_common(PyObject **self, PyObject **other) {
  mpg_dtype a = mpg_py_array_of(*self)->tensor.desc.dtype,
            b = mpg_py_array_of(*other)->tensor.desc.dtype, common = mpg_promoted_dtype(a, b);
  if (a == b) return 0;
  if (mpg_dtype_is_float(a) != mpg_dtype_is_float(b) && a != MPG_BOOL && b != MPG_BOOL)
    common = MPG_FLOAT64;
  PyObject *first = mpg_py_cast(*self, common), *second = mpg_py_cast(*other, common);
  Py_SETREF(*self, first);
  Py_SETREF(*other, second);
  return first && second ? 0 : -1;
}

/* Applies an operator to an array and an operand that is not an NDArray: a Python or NumPy number,
 * or a NumPy array. `reflected` is true if `other` is the left operand. */
static PyObject *with_other(mpg_py_binary kind, PyObject *self, PyObject *other, bool reflected,
                            mpg_array *out) {
  const mpg_py_operator *operator = &mpg_py->binary[kind];
  if (is_bitwise(kind) && mpg_py_array_of(self)->numpy && !is_small_integer(self, other))
    return mpg_py_bits(kind, reflected ? other : self, reflected ? self : other, out);
  if (mpg_py_is_scalar(other)) {
    const mpg_op *op = reflected ? operator->reflected : operator->scalar;
    if (op == NULL) return missing(reflected ? names[kind].reflected : names[kind].scalar);
    double scalar;
    if (mpg_py_scalar(other, &scalar) < 0) return NULL;
    if (__builtin_expect(!(scalar > -0x1p53 && scalar < 0x1p53), 0)) {
      const mpg_array *array = mpg_py_array_of(self);
      if (is_comparison(kind) && array->numpy && array->tensor.desc.dtype == MPG_INT64 &&
          mpg_py_is_rounded(other, scalar))
        return compare_exactly(kind, self, other, reflected, out);
      if (check_integer(kind, self, other, scalar) < 0) return NULL;
    }
    bool real = mpg_py_array_of(self)->tensor.desc.dtype == MPG_BOOL && is_real(other);
    return with_scalar(op, self, scalar, real, out);
  }
  if (!mpg_py_is_numpy(other)) return unsupported(kind, self, other);
  if (operator->array == NULL) return missing(names[kind].array);
  bool promotes = out == NULL && mpg_op_promotes(mpg_op_in(operator->array, true));
  PyObject *converted = mpg_py_operand(
      other, mpg_py_array_of(self), promotes ? MPG_PY_PROMOTES : MPG_PY_ALIKE, names[kind].array);
  if (converted == NULL) return NULL;
  PyObject *result = NULL;
  Py_INCREF(self);
  if (!is_comparison(kind) || !mpg_py_array_of(self)->numpy ||
      cast_to_common(&self, &converted) == 0) {
    mpg_array *a = mpg_py_array_of(self), *b = mpg_py_array_of(converted);
    mpg_array *inputs[2] = {reflected ? b : a, reflected ? a : b};
    result = call_into(operator->array, NULL, inputs, 2, out);
  }
  Py_XDECREF(self);
  Py_XDECREF(converted);
  return result;
}

/* Applies an operator if at least one operand is sparse. Calls the _core.Op, which dispatches to
 * the implementation for sparse arrays. */
static __attribute__((noinline)) PyObject *with_sparse(mpg_py_binary kind, PyObject *a,
                                                       PyObject *b) {
  bool left = mpg_py_is_scalar(a), right = mpg_py_is_scalar(b);
  PyObject *other = mpg_py_is_sparse(a) ? b : a;
  if (!left && !right && !mpg_py_is_array(other) && !mpg_py_is_sparse(other) &&
      !mpg_py_is_numpy(other))
    return unsupported(kind, a, other);
  const char *name = left ? names[kind].reflected : right ? names[kind].scalar : names[kind].array;
  PyObject *op = PyDict_GetItemString(mpg_py->ops_by_name, name);
  if (op == NULL) return missing(name);
  return PyObject_CallFunctionObjArgs(op, left ? b : a, left ? a : b, NULL);
}

/* Applies a binary operator. Always inlined, so that the compiler specializes it for each kind. */
__attribute__((always_inline)) static inline PyObject *binary(mpg_py_binary kind, PyObject *a,
                                                              PyObject *b) {
  bool first = mpg_py_is_array(a);
  if (first && mpg_py_is_array(b)) {
    const mpg_op *op = mpg_py->binary[kind].array;
    if (op == NULL) return missing(names[kind].array);
    mpg_array *inputs[2] = {mpg_py_array_of(a), mpg_py_array_of(b)};
    return mpg_py_call(op, NULL, inputs, 2);
  }
  if (first && PyFloat_CheckExact(b) && mpg_py->binary[kind].scalar != NULL)
    return with_scalar(mpg_py->binary[kind].scalar, a, PyFloat_AS_DOUBLE(b), true, NULL);
  if (mpg_py_is_sparse(a) || mpg_py_is_sparse(b)) return with_sparse(kind, a, b);
  return first ? with_other(kind, a, b, false, NULL) : with_other(kind, b, a, true, NULL);
}

mpg_py_binary mpg_py_binary_of(const mpg_op *op) {
  int kind = 0;
  while (kind < MPG_PY_BINARY_COUNT &&
         (mpg_py->binary[kind].array == NULL || mpg_py->binary[kind].array->id != op->id))
    kind++;
  return (mpg_py_binary)kind;
}

PyObject *mpg_py_binary_call(mpg_py_binary kind, PyObject *a, PyObject *b, mpg_array *out) {
  bool first = mpg_py_is_array(a);
  if (!first || !mpg_py_is_array(b))
    return first ? with_other(kind, a, b, false, out) : with_other(kind, b, a, true, out);
  mpg_array *inputs[2] = {mpg_py_array_of(a), mpg_py_array_of(b)};
  return call_into(mpg_py->binary[kind].array, NULL, inputs, 2, out);
}

PyObject *mpg_py_in_place(mpg_py_binary kind, PyObject *self, PyObject *other) {
  mpg_array *out = mpg_py_array_of(self);
  if (mpg_py_is_sparse(self)) {
    PyObject *result = with_sparse(kind, self, other);
    return result == NULL || result == Py_NotImplemented
               ? result
               : PyObject_CallMethod(self, "copy_from", "N", result);
  }
  if (mpg_py_is_handled(other)) {
    PyObject *dense = mpg_py_dense(other),
             *result = dense ? mpg_py_in_place(kind, self, dense) : NULL;
    Py_XDECREF(dense);
    return result;
  }
  if (!mpg_py_is_array(other)) return with_other(kind, self, other, false, out);
  const mpg_op *op = mpg_py->binary[kind].array;
  if (op == NULL) return missing(names[kind].array);
  mpg_array *inputs[2] = {out, mpg_py_array_of(other)};
  return call_into(op, NULL, inputs, 2, out);
}

#define OPERATOR(function, kind)                                                              \
  static PyObject *number_##function(PyObject *a, PyObject *b) { return binary(kind, a, b); } \
  static PyObject *number_in_place_##function(PyObject *a, PyObject *b) {                     \
    return mpg_py_in_place(kind, a, b);                                                       \
  }
OPERATOR(add, MPG_PY_ADD)
OPERATOR(subtract, MPG_PY_SUB)
OPERATOR(multiply, MPG_PY_MUL)
OPERATOR(divide, MPG_PY_DIV)
OPERATOR(remainder, MPG_PY_MOD)

static PyObject *number_power(PyObject *a, PyObject *b, PyObject *modulus) {
  if (modulus != Py_None) Py_RETURN_NOTIMPLEMENTED;
  return binary(MPG_PY_POW, a, b);
}
static PyObject *number_negative(PyObject *self) {
  if (mpg_py_is_sparse(self)) return PyObject_CallMethod(self, "__mul__", "d", -1.0);
  const mpg_op *op = mpg_py->binary[MPG_PY_MUL].scalar;
  return op ? with_scalar(op, self, -1.0, false, NULL) : missing("_mul_scalar");
}
static PyObject *number_positive(PyObject *self) { return Py_NewRef(self); }
static PyObject *number_absolute(PyObject *self) {
  if (mpg_py_is_sparse(self)) return PyObject_CallMethod(self, "abs", NULL);
  const mpg_op *op = mpg_op_find("abs");
  mpg_array *array = mpg_py_array_of(self);
  return op ? mpg_py_call(op, NULL, &array, 1) : missing("abs");
}
/* Raises TypeError for a bitwise operator and suggests the logical op, because users of other
 * libraries combine masks with & and |. */
static PyObject *refuse_bits(PyObject *a, PyObject *b, const char *operator, const char *name) {
  if ((!mpg_py_is_array(a) && !PyLong_Check(a)) || (!mpg_py_is_array(b) && !PyLong_Check(b)))
    Py_RETURN_NOTIMPLEMENTED;
  return PyErr_Format(PyExc_TypeError,
                      "unsupported operator for arrays: %s; use nd.%s(x, y) for masks", operator,
                      name);
}
static PyObject *number_and(PyObject *a, PyObject *b) {
  return refuse_bits(a, b, "&", "logical_and");
}
static PyObject *number_or(PyObject *a, PyObject *b) {
  return refuse_bits(a, b, "|", "logical_or");
}
static PyObject *number_xor(PyObject *a, PyObject *b) {
  return refuse_bits(a, b, "^", "logical_xor");
}
static PyObject *number_invert(PyObject *Py_UNUSED(self)) {
  return PyErr_Format(PyExc_TypeError,
                      "unsupported operator for arrays: ~; use nd.logical_not(x) for masks");
}
static PyObject *number_matmul(PyObject *a, PyObject *b) {
  if ((!mpg_py_is_array(a) && !mpg_py_is_sparse(a)) ||
      (!mpg_py_is_array(b) && !mpg_py_is_sparse(b)))
    Py_RETURN_NOTIMPLEMENTED;
  /* If b is a stack of matrices, computes a batched matrix product. */
  if (mpg_py_is_array(b) && mpg_py_array_of(b)->tensor.desc.shape.ndim > 2) {
    PyObject *module = PyImport_ImportModule("mpgluon.numpy._nd_rules"),
             *result = module ? PyObject_CallMethod(module, "matmul", "OO", a, b) : NULL;
    Py_XDECREF(module);
    if (result != Py_NotImplemented) return result;
    Py_DECREF(result); /* unsupported dtype: `dot` raises the error */
  }
  PyObject *dot = PyDict_GetItemString(mpg_py->ops_by_name, "dot");
  return dot ? PyObject_CallFunctionObjArgs(dot, a, b, NULL) : missing("dot");
}

/* Returns the only element of an array as a Python number. */
static PyObject *scalar_of(PyObject *self, const char *what) {
  mpg_array *array = mpg_py_array_of(self);
  if (mpg_py_expect_readable(array, what) < 0) return NULL;
  if (mpg_shape_size(&array->tensor.desc.shape) != 1) {
    char text[MPG_SHAPE_TEXT_SIZE];
    return PyErr_Format(mpg_py->errors[MPG_TYPE_ERROR],
                        "%s: the array has shape %s, not one element", what,
                        mpg_shape_text(&array->tensor.desc.shape, text, sizeof text));
  }
  PyObject *values = mpg_py_to_numpy(array);
  if (values == NULL) return NULL;
  PyObject *item = PyObject_CallMethod(values, "item", NULL);
  Py_DECREF(values);
  return item;
}
static int number_bool(PyObject *self) {
  const mpg_shape *shape = &mpg_py_array_of(self)->tensor.desc.shape;
  int64_t size = mpg_shape_size(shape);
  if (size == 0 && !mpg_array_traced(mpg_py_array_of(self))) return 0;
  if (size > 1 && !mpg_array_traced(mpg_py_array_of(self))) {
    PyErr_SetString(mpg_py->errors[MPG_VALUE_ERROR],
                    "the truth value of an array with several elements is ambiguous");
    return -1;
  }
  PyObject *item = scalar_of(self, "bool()");
  if (item == NULL) return -1;
  int truth = PyObject_IsTrue(item);
  Py_DECREF(item);
  return truth;
}
static PyObject *number_float(PyObject *self) {
  PyObject *item = scalar_of(self, "float()");
  if (item == NULL) return NULL;
  PyObject *result = PyNumber_Float(item);
  Py_DECREF(item);
  return result;
}
static PyObject *number_int(PyObject *self) {
  PyObject *item = scalar_of(self, "int()");
  if (item == NULL) return NULL;
  PyObject *result = PyNumber_Long(item);
  Py_DECREF(item);
  return result;
}
static PyObject *number_index(PyObject *self) {
  mpg_dtype dtype = mpg_py_array_of(self)->tensor.desc.dtype;
  if (mpg_array_traced(mpg_py_array_of(self))) {
    mpg_py_expect_value(mpg_py_array_of(self), "an index");
    return NULL;
  }
  /* Raises TypeError rather than another error, because callers such as bytes() then try the buffer
   * protocol. */
  if (!mpg_dtype_is_integer(dtype) ||
      mpg_shape_size(&mpg_py_array_of(self)->tensor.desc.shape) != 1)
    return PyErr_Format(
        PyExc_TypeError,
        "only an integer array of one element can be an index, not an array of dtype %s",
        mpg_dtype_name(dtype));
  return scalar_of(self, "an index");
}

static PyObject *compare(PyObject *a, PyObject *b, int operation) {
  static const mpg_py_binary kinds[] = {[Py_LT] = MPG_PY_LT, [Py_LE] = MPG_PY_LE,
                                        [Py_EQ] = MPG_PY_EQ, [Py_NE] = MPG_PY_NE,
                                        [Py_GT] = MPG_PY_GT, [Py_GE] = MPG_PY_GE};
  return binary(kinds[operation], a, b);
}

PyType_Slot mpg_py_number_slots[] = {
    {Py_nb_add, number_add},
    {Py_nb_inplace_add, number_in_place_add},
    {Py_nb_subtract, number_subtract},
    {Py_nb_inplace_subtract, number_in_place_subtract},
    {Py_nb_multiply, number_multiply},
    {Py_nb_inplace_multiply, number_in_place_multiply},
    {Py_nb_true_divide, number_divide},
    {Py_nb_inplace_true_divide, number_in_place_divide},
    {Py_nb_remainder, number_remainder},
    {Py_nb_inplace_remainder, number_in_place_remainder},
    {Py_nb_power, number_power}, /* **= creates a new mx.nd array, as in MXNet */
    {Py_nb_matrix_multiply, number_matmul},
    {Py_nb_and, number_and},
    {Py_nb_or, number_or},
    {Py_nb_xor, number_xor},
    {Py_nb_invert, number_invert},
    {Py_nb_negative, number_negative},
    {Py_nb_positive, number_positive},
    {Py_nb_absolute, number_absolute},
    {Py_nb_bool, number_bool},
    {Py_nb_float, number_float},
    {Py_nb_int, number_int},
    {Py_nb_index, number_index},
    {Py_tp_richcompare, compare},
    {0, NULL}};

/* _binary(kind, a, b): implements nd.add, nd.maximum and other functions. Either operand may be a
 * number.
 */
static PyObject *py_binary(PyObject *module, PyObject *const *args, Py_ssize_t count) {
  if (count != 3) return PyErr_Format(PyExc_TypeError, "expected two operands");
  long kind = PyLong_AsLong(args[0]);
  if (kind == -1 && PyErr_Occurred()) return NULL;
  if (kind < 0 || kind >= MPG_PY_BINARY_COUNT)
    return PyErr_Format(PyExc_ValueError, "no such operator");
  if (!mpg_py_is_array(args[1]) && !mpg_py_is_array(args[2]) && !mpg_py_is_sparse(args[1]) &&
      !mpg_py_is_sparse(args[2]))
    return PyErr_Format(mpg_py->errors[MPG_TYPE_ERROR],
                        "%s: one operand must be an NDArray, got %s and %s", names[kind].array,
                        Py_TYPE(args[1])->tp_name, Py_TYPE(args[2])->tp_name);
  for (int i = 1; i < 3; i++) {
    if (!mpg_py_is_handled(args[i]) || mpg_py_is_sparse(args[i])) continue;
    PyObject *whole = mpg_py_dense(args[i]);
    PyObject *others[3] = {args[0], i == 1 ? whole : args[1], i == 1 ? args[2] : whole};
    PyObject *result = whole ? py_binary(module, others, 3) : NULL;
    Py_XDECREF(whole);
    return result;
  }
  PyObject *result = binary((mpg_py_binary)kind, args[1], args[2]);
  if (result != Py_NotImplemented) return result;
  Py_DECREF(result);
  PyObject *odd = mpg_py_is_array(args[1]) ? args[2] : args[1];
  return PyErr_Format(
      mpg_py->errors[MPG_TYPE_ERROR],
      "%s: an operand of type %s is not supported; expected an NDArray, a NumPy array or a number",
      names[kind].array, Py_TYPE(odd)->tp_name);
}

PyMethodDef mpg_py_number_methods[] = {
    {"_binary", (PyCFunction)(void (*)(void))py_binary, METH_FASTCALL,
     "_binary(kind, a, b)\n--\n\nThe result of the operator with that number."},
    {0}};
