/* Shared declarations of the extension module mpgluon._core.
 *
 * This layer only converts Python objects to arrays, parameters and contexts, and converts results
 * and errors back. The core exists once per process (device table, registry), so the module cannot
 * be loaded into a second interpreter. The module's state (types, exceptions) is reachable through
 * a global pointer, `mpg_py`, because Python does not pass the module to number slots. Threads:
 * every function here is called with the GIL held, which is the core's host lock.
 *
 * References: "new" results are owned by the caller; arguments are borrowed. On failure, functions
 * return NULL (PyObject *) or -1 (int) with a Python exception set.
 */
#ifndef MPG_PYTHON_CORE_H
#define MPG_PYTHON_CORE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>

#include "autograd/autograd.h"
#include "compile/compile.h"
#include "op/invoke.h"

/* --- NDArray ---------------------------------------------------------------------------------- */
typedef struct mpg_py_array {
  PyObject_HEAD PyObject *weak_references;
  mpg_array array;
} mpg_py_array;

/* The ops of a binary operator for (array, array), (array, scalar) and (scalar, array). */
typedef struct mpg_py_operator {
  const mpg_op *array, *scalar, *reflected;
} mpg_py_operator;

typedef enum mpg_py_binary {
  MPG_PY_ADD,
  MPG_PY_SUB,
  MPG_PY_MUL,
  MPG_PY_DIV,
  MPG_PY_MOD,
  MPG_PY_POW,
  MPG_PY_EQ,
  MPG_PY_NE,
  MPG_PY_GT,
  MPG_PY_GE,
  MPG_PY_LT,
  MPG_PY_LE,
  MPG_PY_MAXIMUM,
  MPG_PY_MINIMUM,
  MPG_PY_AND,
  MPG_PY_OR,
  MPG_PY_XOR,
  MPG_PY_HYPOT,
  MPG_PY_ARCTAN2,
  MPG_PY_COPYSIGN,
  MPG_PY_LDEXP,
  MPG_PY_LCM,
  MPG_PY_BIT_AND,
  MPG_PY_BIT_OR,
  MPG_PY_BIT_XOR,
  MPG_PY_BINARY_COUNT
} mpg_py_binary;

/* Maximum size of a parameter struct in bytes, and the maximum number of arrays that are kept on
 * the stack. */
enum { MPG_PY_MAX_PARAMS = 4096, MPG_PY_SMALL = 16 };

typedef struct mpg_py_state {
  PyTypeObject *array_type, *numpy_type; /* arrays of mx.nd and mx.np */
  PyTypeObject *context_type, *op_type, *scope_type;
  PyTypeObject *trace_type, *function_type; /* trace.c */
  PyTypeObject *routine_type;               /* routine.c */
  PyTypeObject *change_type;                /* scope.c */
  PyTypeObject *sparse_type, *weight_type;  /* sparse.c; NULL until the package sets them */
  PyObject *sparse_call;                    /* function that runs ops on sparse arrays */
  /* Dict that maps the id() of a dense array to its sparse gradient. */
  PyObject *sparse_gradients;
  PyObject *errors[MPG_STATUS_COUNT]; /* exception classes by status */
  /* Exception for values that MXNet rejects with an assert statement. Derives from AssertionError
   * and ValueError. */
  PyObject *assertion_error;
  PyObject *dtypes[MPG_DTYPE_LIMIT];              /* values of NDArray.dtype: numpy.float32, ... */
  PyObject *ops_by_name;                          /* dict that maps names and aliases to _core.Op */
  PyObject *name_out, *name_name, *name_backward; /* interned */
  mpg_py_operator binary[MPG_PY_BINARY_COUNT];
  /* Class of symbols, and the function that makes nodes of them; NULL until the package sets them.
   */
  PyObject *symbol_type, *symbol_node;
  PyTypeObject *numpy_function_type;
  PyObject *no_value; /* default value that means "not given", like numpy._NoValue */
  int exit_status;    /* exit status to set when the process ends; 0 keeps Python's own */
} mpg_py_state;

extern mpg_py_state *mpg_py; /* runtime state: set once when the module is created */

/* --- Errors (errors.c) ------------------------------------------------------------------------ */
int mpg_py_errors_init(PyObject *module);
/* Raises the exception class of `status` with the thread's error text, and returns NULL. If
 * `status` is MPG_HOST_EXCEPTION or MPG_INTERRUPTED, a Python exception that is already pending is
 * kept. */
PyObject *mpg_py_raise(mpg_status status);
/* If `call` fails, sets the exception and returns NULL (or -1) from the enclosing function. */
#define MPG_PY_TRY(call)                                               \
  do {                                                                 \
    mpg_status mpg_py_status_ = (call);                                \
    if (mpg_py_status_ != MPG_OK) return mpg_py_raise(mpg_py_status_); \
  } while (0)
#define MPG_PY_TRY_INT(call)            \
  do {                                  \
    mpg_status mpg_py_status_ = (call); \
    if (mpg_py_status_ != MPG_OK) {     \
      mpg_py_raise(mpg_py_status_);     \
      return -1;                        \
    }                                   \
  } while (0)
/* Stores the pending Python exception's text as the core's error text and returns
 * MPG_HOST_EXCEPTION. The exception stays pending. */
mpg_status mpg_py_host_exception(void);

/* --- Host hooks (host.c) ---------------------------------------------------------------------- */
int mpg_py_host_init(PyObject *module);
extern PyMethodDef mpg_py_host_methods[];

/* --- NDArray (array.c) ------------------------------------------------------------------------ */
int mpg_py_array_init(PyObject *module);
/* Fast pre-check for instances of a Python subclass of NDArray. False rules that out. True only
 * means that the object's class is not a static type and is not NDArray itself. */
static inline bool mpg_py_may_derive(PyObject *object) {
  PyTypeObject *type = Py_TYPE(object);
  return type != mpg_py->array_type && PyType_HasFeature(type, Py_TPFLAGS_HEAPTYPE);
}
/* True for a sparse array. Its Python class derives from NDArray and stores its parts as dense
 * arrays; the object's own mpg_array is empty. */
static inline bool mpg_py_is_sparse(PyObject *object) {
  return mpg_py_may_derive(object) && mpg_py->sparse_type != NULL &&
         PyType_IsSubtype(Py_TYPE(object), mpg_py->sparse_type);
}
static inline bool mpg_py_is_array(PyObject *object) {
  return Py_TYPE(object) == mpg_py->array_type || Py_TYPE(object) == mpg_py->numpy_type ||
         (mpg_py_may_derive(object) && PyType_IsSubtype(Py_TYPE(object), mpg_py->array_type) &&
          !mpg_py_is_sparse(object));
}
static inline mpg_array *mpg_py_array_of(PyObject *object) {
  return &((mpg_py_array *)object)->array;
} /* requires mpg_py_is_array(object) */
/* Returns a new array of mx.np or mx.nd. The caller immediately fills ->array, but not
 * ->array.numpy. */
PyObject *mpg_py_array_new(bool numpy);
/* Moves *array into a new NDArray. *array becomes empty, even on failure. */
PyObject *mpg_py_array_take(mpg_array *array);
/* Moves all arrays into a new list of NDArrays. The arrays become empty, even on failure. */
PyObject *mpg_py_array_take_all(mpg_array *arrays, Py_ssize_t count);
/* Returns a borrowed pointer to the array in `object`. If the object is not an NDArray, raises
 * TypeError "what: expected an NDArray, got ..." and returns NULL. */
mpg_array *mpg_py_expect_array(PyObject *object, const char *what);
/* Returns a short description of a value for error messages: its shortened repr or, for an array,
 * its shape and dtype. Returns a new reference. */
PyObject *mpg_py_brief(PyObject *value);
/* Raises the exception of status `kind` with the message "<format>, got <mpg_py_brief(value)>" and
 * returns NULL. */
PyObject *mpg_py_refuse(mpg_status kind, PyObject *value, const char *format, ...);
/* Fails for arrays that are being traced, because they have no value. `what` is the method's
 * name. */
int mpg_py_expect_value(const mpg_array *array, const char *what);
/* Same as mpg_py_expect_value, for code that branches on the value. While a block is traced, also
 * fails for an array from outside the block: later calls would replay the trace without evaluating
 * the branch, although the array's value may have changed. */
int mpg_py_expect_readable(const mpg_array *array, const char *what);
/* Converts a list or tuple of NDArrays (or one NDArray) to pointers borrowed from *keep, a new
 * reference that the caller releases after use. Returns the count. If there are more than
 * `capacity` items or an item is not an array, sets an exception and returns -1. */
int mpg_py_array_list(PyObject *object, mpg_array **arrays, int capacity, PyObject **keep,
                      const char *what);
/* Returns the items of an iterable as a new tuple. Unlike a list, a tuple cannot change while the
 * conversion of an item runs Python code or while the GIL is released. Raises TypeError(what) if
 * the object is not iterable. */
PyObject *mpg_py_items(PyObject *object, const char *what);
/* Calls an op with one output and returns a new NDArray. `params` may be NULL for ops without
 * parameters. */
PyObject *mpg_py_call(const mpg_op *op, const void *params, mpg_array *const *inputs,
                      int num_inputs);
/* Same as mpg_py_call, but the result never shares memory with an input. Used for ops that users
 * call, because in MXNet only x.reshape(), x[begin:end] and x.detach() return views. */
PyObject *mpg_py_call_op(const mpg_op *op, const void *params, mpg_array *const *inputs,
                         int num_inputs);
/* Same as mpg_py_call, but writes the result into `out`. */
int mpg_py_call_out(const mpg_op *op, const void *params, mpg_array *const *inputs, int num_inputs,
                    mpg_array *out);
/* Copies the values of an array into another one of the same shape and dtype, on any device.
 * Returns -1 with an exception set on failure. */
int mpg_py_copy_into(mpg_array *source, mpg_array *target);
/* Calls an op by name. The parameters are (name, pointer to the value) pairs, ended by NULL. Values
 * have the types of the parameter struct, such as mpg_tuple for SHAPE and int64_t for INT. Fails
 * for unknown names. Writes into `out`, or returns a new NDArray if `out` is NULL. */
PyObject *mpg_py_call_named(const char *op, mpg_array *const *inputs, int num_inputs,
                            mpg_array *out, ...);
/* True if the array is traced, or is on the tape while autograd is recording. Its elements must
 * then be read with ops, so that the read becomes part of the graph or tape. */
static inline bool mpg_py_tracked(const mpg_array *array) {
  return mpg_array_traced(array) || (array->node != NULL && mpg_autograd_recording());
}
PyObject *mpg_py_shape_tuple(const mpg_shape *shape); /* new */
/* Reshapes an array to a shape of the same size. Returns a new reference, to a view if possible. */
PyObject *mpg_py_reshape(PyObject *self, const mpg_shape *shape);
/* Casts an array. Returns a new reference, to `self` if it already has the dtype. */
PyObject *mpg_py_cast(PyObject *self, mpg_dtype dtype);
/* Returns the array's device as users name it: cpu_pinned for pinned memory. */
mpg_device_id mpg_py_context_id(const mpg_array *array);
/* Creates a tensor on the device `id`, in pinned memory for cpu_pinned. */
mpg_status mpg_py_tensor_create(mpg_device_id id, const mpg_desc *desc, mpg_tensor *tensor);
/* Copies an array to a device. Returns a new reference, to `self` if it is already on the device
 * and `copy` is false. */
PyObject *mpg_py_to_device(PyObject *self, mpg_device_id id, bool copy);
/* Broadcasts an array. Returns a new reference, to `self` if the shapes are equal. */
PyObject *mpg_py_broadcast(PyObject *self, const mpg_shape *shape);
/* Returns a new reference to the array as one of mx.np or mx.nd, which shares its memory and
 * gradient. */
PyObject *mpg_py_as_kind(PyObject *self, bool numpy);
extern PyMethodDef mpg_py_array_methods[]; /* method.c */
extern PyGetSetDef mpg_py_array_properties[], mpg_py_numpy_properties[];

/* --- Sparse arrays (sparse.c) ----------------------------------------------------------------- */
int mpg_py_sparse_init(PyObject *module);
/* True for a sparse array, or for a weight whose gradient is sparse. */
static inline bool mpg_py_is_handled(PyObject *object) {
  return mpg_py_may_derive(object) && mpg_py->sparse_type != NULL &&
         (PyType_IsSubtype(Py_TYPE(object), mpg_py->sparse_type) ||
          PyType_IsSubtype(Py_TYPE(object), mpg_py->weight_type));
}
/* True if an argument of an op, or an item of a list argument, is sparse or has a sparse gradient.
 * mpg_py_sparse_call must then run the op. */
bool mpg_py_takes_sparse(PyObject *const *args, Py_ssize_t count);
PyObject *mpg_py_sparse_call(PyObject *op, PyObject *const *args, Py_ssize_t count,
                             PyObject *keywords);
/* Returns a new reference to the sparse gradient of a dense array, or NULL if it has none. */
PyObject *mpg_py_sparse_gradient(PyObject *array);
int mpg_py_forget_sparse_gradient(PyObject *array); /* no-op if it has none */
/* Implements attach_grad for a dense array and a gradient of storage type `stype`. */
PyObject *mpg_py_attach_sparse(PyObject *array, const char *request, PyObject *stype);
/* Converts a sparse array to a dense one. While recording, converts a weight with a sparse gradient
 * to a dense variable. Returns other objects unchanged. The result is a new reference. */
PyObject *mpg_py_dense(PyObject *object);

/* --- Operators (number.c) --------------------------------------------------------------------- */
int mpg_py_number_init(void); /* looks up the ops that implement the operators */
/* Returns the operator whose op for two arrays is `op` or its NumPy descriptor, or
 * MPG_PY_BINARY_COUNT. */
mpg_py_binary mpg_py_binary_of(const mpg_op *op);
/* Applies an operator to two operands, one of them at least an array, and writes the result
 * into `out` unless it is NULL. Returns NotImplemented for unknown types of operands. */
PyObject *mpg_py_binary_call(mpg_py_binary kind, PyObject *a, PyObject *b, mpg_array *out);
/* Applies &, | or ^ to an array of mx.np and another operand, as its operators do. */
PyObject *mpg_py_bits(mpg_py_binary kind, PyObject *a, PyObject *b, mpg_array *out);
/* Applies an in-place operator. Returns a new reference to `self`, or NotImplemented. */
PyObject *mpg_py_in_place(mpg_py_binary kind, PyObject *self, PyObject *other);
extern PyType_Slot mpg_py_number_slots[]; /* ends with slot 0 */
extern PyMethodDef mpg_py_number_methods[];

/* Operators in which mx.np.ndarray differs (numpy_number.c); ends with slot 0. */
extern PyType_Slot mpg_py_numpy_number_slots[];

/* --- Indexing (index.c, assign.c) ------------------------------------------------------------- */
PyObject *mpg_py_subscript(PyObject *self, PyObject *key);
int mpg_py_assign_subscript(PyObject *self, PyObject *key, PyObject *value);
PyObject *mpg_py_item(PyObject *self, Py_ssize_t index);

/* --- NumPy, buffers, DLPack (exchange.c, dlpack.c) -------------------------------------------- */
int mpg_py_exchange_init(PyObject *module);
/* Returns a new ndarray with a copy of the contents. bfloat16 becomes float32. */
PyObject *mpg_py_to_numpy(const mpg_array *array);
/* Returns a new array of mx.np or mx.nd from any object that NumPy can convert. If `dtype` is
 * MPG_DTYPE_NONE, keeps the object's dtype, except that float64 becomes float32. */
PyObject *mpg_py_array_from(PyObject *object, mpg_dtype dtype, mpg_device_id device, bool numpy);
static inline PyObject *mpg_py_from_object(PyObject *object, mpg_dtype dtype,
                                           mpg_device_id device) {
  return mpg_py_array_from(object, dtype, device, false);
}
/* Converts `value` with NumPy, broadcasts it and writes it into the array's tensor. Blocks until
 * the write is done. */
int mpg_py_write_object(mpg_array *array, PyObject *value);
/* The dtype of a NumPy array of integers that becomes an operand. Next to floats, it keeps its
 * dtype, because it may hold indices, or takes the dtype of the floats. Next to integers of mx.np,
 * it takes their dtype if this holds the values, unless the op promotes its operands. */
typedef enum mpg_py_operand_rule {
  MPG_PY_KEEPS,
  MPG_PY_ALIKE,
  MPG_PY_PROMOTES, /* as MPG_PY_ALIKE, for ops that promote */
} mpg_py_operand_rule;
/* Returns an NDArray for an operand of an op: `object` itself, or a scalar or NumPy array converted
 * to an array of the kind and on the device of `like` (may be NULL). A converted array gets the
 * dtype of `like` if both are floating, or, for arrays of mx.nd, integer. Returns a new reference.
 */
PyObject *mpg_py_operand(PyObject *object, const mpg_array *like, mpg_py_operand_rule rule,
                         const char *what);
bool mpg_py_is_numpy(PyObject *object);  /* true for a numpy.ndarray */
bool mpg_py_is_scalar(PyObject *object); /* true for a Python or NumPy number, including bool */
int mpg_py_scalar(PyObject *object, double *value);
/* True for an integer of Python or NumPy, not bool of NumPy, and for a NumPy array of integers. */
bool mpg_py_is_integer(PyObject *object);
/* True for an integer that `value`, the double nearest to it, does not equal. */
bool mpg_py_is_rounded(PyObject *object, double value);
/* If the object is not a dtype, sets an exception and returns MPG_DTYPE_NONE. */
mpg_dtype mpg_py_dtype(PyObject *object);
int mpg_py_getbuffer(PyObject *self, Py_buffer *view, int flags);
void mpg_py_releasebuffer(PyObject *self, Py_buffer *view);
extern PyMethodDef mpg_py_exchange_methods[];
extern PyMethodDef mpg_py_dlpack_methods[];
PyObject *mpg_py_dlpack(PyObject *self, PyObject *args, PyObject *kwargs);
PyObject *mpg_py_dlpack_device(PyObject *self, PyObject *unused);

/* --- Context (context.c) ---------------------------------------------------------------------- */
int mpg_py_context_init(PyObject *module);
PyObject *mpg_py_context(mpg_device_id id); /* new reference */
/* Sets *id from a Context or its text. None means the current context. */
int mpg_py_device_id(PyObject *object, mpg_device_id *id);
mpg_device_id mpg_py_current_device(void);
/* Returns the device of an object that mpg_py_device_id accepts, and opens the device if necessary.
 * Returns NULL with an exception set on failure. */
mpg_device *mpg_py_device(PyObject *object);
/* Converts a tuple of GPU indices, one per rank, to an array that the caller frees with PyMem_Free.
 * Returns NULL with an exception set on failure. */
int32_t *mpg_py_gpu_indices(PyObject *object);
extern PyMethodDef mpg_py_context_methods[];

/* --- Ops (call.c, op.c, function.c, docstring.c, params.c, extension.c) ----------------------- */
/* Converts a text to a str and frees it. */
PyObject *mpg_py_take_text(mpg_text *text);
/* Returns the docstring of an op. `names` holds the names of its inputs, then of its parameters. */
PyObject *mpg_py_op_doc(const mpg_op *op, PyObject *names, int num_inputs);
const char *mpg_py_kind_name(mpg_param_kind kind); /* in docs: "integer or None" */
/* The documentation of an op's row: a text and an example, which may be empty. */
typedef struct mpg_py_row_doc {
  const char *text;
  int length;
  const char *example;
} mpg_py_row_doc;
mpg_py_row_doc mpg_py_split_doc(const mpg_op *op);
int mpg_py_op_init(PyObject *module);
/* Converts a Python value, checks it, and stores it as parameter `index` in the struct `params`.
 * Error messages name `op`. */
int mpg_py_param_set(const mpg_param_table *table, const char *op, void *params, int index,
                     PyObject *value);
/* Fills an op's parameter struct with the defaults, then with the values of the dict `given`. Sets
 * bit i of *present (may be NULL) if parameter i was given. Ops without parameters accept an empty
 * dict. */
int mpg_py_params_set(const mpg_op *op, void *params, PyObject *given, uint64_t *present);
/* Sets *shape from an integer or a sequence of integers. */
int mpg_py_shape_from(PyObject *object, mpg_shape *shape, const char *what);
extern PyMethodDef mpg_py_op_methods[];
/* Creates the _core.Op for a row of the op table and adds it to `_core.ops` under the op's name.
 * Returns a new reference. */
PyObject *mpg_py_op_add(const mpg_op *op);
int mpg_py_function_init(PyObject *module); /* function.c */
extern PyMethodDef mpg_py_function_methods[];
extern PyMethodDef mpg_py_extension_methods[];  /* extension.c */
extern PyMethodDef mpg_py_gpu_module_methods[]; /* gpu_module.c */
extern PyMethodDef mpg_py_precision_methods[];  /* precision.c */

/* --- Autograd (autograd.c), runtime settings (runtime.c) -------------------------------------- */
int mpg_py_autograd_init(PyObject *module);
extern PyMethodDef mpg_py_autograd_methods[];
extern PyMethodDef mpg_py_runtime_methods[];
extern PyMethodDef mpg_py_profiler_methods[]; /* profiler.c */

/* --- Other files, each of which adds its types and functions to the module -------------------- */
int mpg_py_cached_op_init(PyObject *module);
/* Runs a Python function on traced arrays and compiles the trace. If options->wanted is NULL,
 * autograd's state determines which inputs need gradients. Returns a new reference, or NULL with an
 * exception set on failure. */
mpg_compiled *mpg_py_trace_and_compile(PyObject *function, const mpg_inputs *inputs,
                                       const mpg_compile_options *options);
/* Sets the options and the budget, which are zero, by the flags of a CachedOp: a dict, or NULL. The
 * caller frees budget->limits with PyMem_Free, even on failure. Returns -1 with an exception set on
 * failure. */
int mpg_py_compile_options(PyObject *flags, mpg_compile_options *options,
                           mpg_memory_budget *budget);
/* Compiles a trace that has ended, from tuples of its traced inputs and results. If options->wanted
 * is NULL, the inputs of the call determine which need gradients; `call` is NULL otherwise. Returns
 * a new reference, or NULL with an exception set. */
mpg_compiled *mpg_py_compile_trace(mpg_trace *trace, PyObject *inputs, PyObject *results,
                                   const mpg_inputs *call, const mpg_compile_options *options);
bool mpg_py_is_cached_op(PyObject *object); /* true for a CachedOp without bound arrays */
/* Calls the CachedOp `op`, which must not have bound arrays, and compiles it first if necessary.
 * `outputs` are empty structs that receive the results. */
mpg_status mpg_py_call_compiled(void *op, mpg_array *const *inputs, uint32_t num_inputs,
                                mpg_array *outputs, uint32_t num_outputs);
int mpg_py_routine_init(PyObject *module);      /* routine.c */
int mpg_py_pipeline_run_init(PyObject *module); /* pipeline_run.c */
int mpg_py_ranks_init(PyObject *module);
int mpg_py_saved_init(PyObject *module);  /* graph/saved.c */
int mpg_py_comm_init(PyObject *module);   /* comm.c */
int mpg_py_update_init(PyObject *module); /* update.c */
int mpg_py_io_init(PyObject *module);
int mpg_py_gluon_init(PyObject *module);
int mpg_py_symbol_init(PyObject *module);            /* symbol.c */
int mpg_py_trace_init(PyObject *module);             /* trace.c */
int mpg_py_scope_init(PyObject *module);             /* scope.c */
int mpg_py_missing_attribute_init(PyObject *module); /* missing_attribute.c */
/* A tp_setattro slot. If the attribute does not exist, raises the error that reading it would
 * raise, because that error may suggest an alternative (missing_attribute.c). */
int mpg_py_set_attribute(PyObject *object, PyObject *name, PyObject *value);
/* Convert descs from and to (shape, dtype) pairs (inference.c). Sizes below `least` are unknown,
 * and are converted back to `unknown`. None denotes an unknown shape or dtype. */
int mpg_py_desc_from(PyObject *pair, mpg_desc *desc, int64_t least);
PyObject *mpg_py_descs_to(const mpg_desc *descs, int count, int64_t unknown); /* new list */

#endif
