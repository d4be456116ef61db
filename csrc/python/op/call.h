/* Calls of ops from Python: the object of an op, and the state of a call while its arguments are
 * collected. _core.Op (op.c) and _core.NumPyFunction (function.c) share them. */
#ifndef MPG_PYTHON_OP_CALL_H
#define MPG_PYTHON_OP_CALL_H

#include "python/core.h"

/* An op as a Python function. */
typedef struct mpg_py_op {
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
} mpg_py_op;

enum { MPG_PY_OP_PARAMS = 64 }; /* maximum number of parameters */

/* A call whose arguments are being collected. */
typedef struct mpg_py_op_call {
  const mpg_py_op *self;
  PyObject **arrays; /* inputs; owned references; NULL if omitted */
  int num_arrays;    /* one more than the index of the last used entry */
  int capacity;
  PyObject *small[MPG_PY_SMALL];
  PyObject *out;      /* borrowed */
  PyObject *rounded;  /* an integer that a parameter holds as another double, or NULL; borrowed */
  uint64_t given;     /* bit i is set if parameter i was given */
  uint32_t named;     /* bit i is set if input i was given by name */
  const void *values; /* points to `params`; NULL for ops without parameters */
  _Alignas(16) char params[MPG_PY_MAX_PARAMS];
} mpg_py_op_call;

/* Begins a call without arguments. */
void mpg_py_op_call_begin(mpg_py_op_call *c, const mpg_py_op *self);
/* Store one argument: the input `place`, the items of a list as the next inputs, a parameter, the
 * array or arrays to write into. None is an omitted array. */
int mpg_py_op_call_array(mpg_py_op_call *c, int place, PyObject *object);
int mpg_py_op_call_arrays(mpg_py_op_call *c, PyObject *sequence);
int mpg_py_op_call_param(mpg_py_op_call *c, int index, PyObject *value);
int mpg_py_op_call_out(mpg_py_op_call *c, PyObject *value);
/* Sets the parameters use_<name> of the given arrays. */
void mpg_py_op_call_mark(mpg_py_op_call *c);
/* Completes the arguments, checks them and calls the op. Returns a new reference. */
PyObject *mpg_py_op_call_run(mpg_py_op_call *c);
/* Releases the arrays. Must follow every begin. */
void mpg_py_op_call_end(mpg_py_op_call *c);

/* Returns the index of a keyword among interned names, or -1. */
Py_ssize_t mpg_py_op_find_name(PyObject *names, PyObject *keyword);
/* Raises TypeError for an unknown keyword, suggests similar names, and returns -1. */
int mpg_py_op_unknown_keyword(const char *function, PyObject *names, const char *more,
                              PyObject *keyword);
/* Fills in an object of zeros for an op. Returns -1 with an exception set on failure. */
int mpg_py_op_setup(mpg_py_op *self, const mpg_op *op, const char *name);
void mpg_py_op_clear(mpg_py_op *self); /* releases the members */
/* Slots and properties of both types. */
PyObject *mpg_py_op_bind(PyObject *self, PyObject *object, PyObject *type); /* __get__ */
PyObject *mpg_py_op_name(PyObject *self, void *unused);
PyObject *mpg_py_op_vectorcall(PyObject *callable, PyObject *const *args, size_t flags,
                               PyObject *keywords);

/* Returns the default parameters of a call, NULL for an op without parameters. */
static inline const void *mpg_py_op_defaults(const mpg_py_op *self) {
  return self->op->params->size > 0 ? self->defaults : NULL;
}
/* True if a call passes only arrays, by position, and no parameters, and has one result. The call
 * then needs no conversions and uses the default parameters (mpg_py_op_run_plain). */
static inline bool mpg_py_op_is_plain(const mpg_py_op *self, PyObject *const *args,
                                      Py_ssize_t count, PyObject *keywords) {
  if (self->variadic || self->required || count == 0 || count < self->min_inputs ||
      count > (self->marks ? self->min_inputs : self->num_inputs) || count > MPG_PY_SMALL)
    return false;
  if (keywords != NULL && PyTuple_GET_SIZE(keywords) > 0) return false;
  for (Py_ssize_t i = 0; i < count; i++)
    if (!Py_IS_TYPE(args[i], mpg_py->array_type) && !Py_IS_TYPE(args[i], mpg_py->numpy_type))
      return false;
  return mpg_call_outputs(self->op, mpg_py_op_defaults(self), (int)count) == 1;
}
/* Runs a plain call. The arrays are borrowed from the caller. */
static inline PyObject *mpg_py_op_run_plain(const mpg_py_op *self, PyObject *const *args,
                                            Py_ssize_t count) {
  mpg_array *inputs[MPG_PY_SMALL];
  for (Py_ssize_t i = 0; i < count; i++) inputs[i] = mpg_py_array_of(args[i]);
  return mpg_py_call_op(self->op, mpg_py_op_defaults(self), inputs, (int)count);
}

#endif
