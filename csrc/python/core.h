/* The extension module mpgluon._core: what its files share.
 *
 * This layer converts: Python objects to arrays, parameters and contexts, results and errors back.
 * It decides nothing else. The core below is one per process (device table, registry), so the
 * module is too: it can't be loaded into a second interpreter, and its state (types, exceptions,
 * ops looked up) hangs on one pointer, `mpg_py`, because number slots get no module handed to them.
 * Threads: every function here is called with the GIL held, which is the core's host lock.
 *
 * References: "new" results are owned by the caller; arguments are borrowed. Functions that return
 * PyObject * return NULL, those that return int return -1, with a Python exception set.
 */
#ifndef MPG_PYTHON_CORE_H
#define MPG_PYTHON_CORE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>

#include "autograd/autograd.h"
#include "compile/compiled_call.h"
#include "op/invoke.h"

/* --- NDArray ---------------------------------------------------------------------------------- */
typedef struct mpg_py_array {
  PyObject_HEAD PyObject *weak_references;
  mpg_array array;
} mpg_py_array;

/* A binary operator: the op of two arrays, of array and scalar, and of scalar and array. */
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
  MPG_PY_BINARY_COUNT
} mpg_py_binary;

enum {
  MPG_PY_MAX_PARAMS = 4096,
  MPG_PY_SMALL = 16
}; /* bytes of the largest parameter struct; arrays kept on the stack */

typedef struct mpg_py_state {
  PyTypeObject *array_type, *context_type, *op_type, *scope_type;
  PyTypeObject *trace_type, *function_type; /* trace.c */
  PyTypeObject *routine_type;               /* routine.c */
  PyTypeObject *change_type;                /* scope.c */
  PyTypeObject *sparse_type, *weight_type;  /* sparse.c; NULL until the package has set them */
  PyObject *sparse_call;              /* called in place of ops that such an array goes into */
  PyObject *sparse_gradients;         /* dict: id of a dense array -> its sparse gradient */
  PyObject *errors[MPG_STATUS_COUNT]; /* exception classes by status */
  PyObject *assertion_error; /* a value that MXNet's assert statements refuse: a ValueError, too */
  PyObject *dtypes[MPG_DTYPE_LIMIT];              /* what NDArray.dtype gives: numpy.float32, ... */
  PyObject *ops_by_name;                          /* dict: name or alias -> _core.Op */
  PyObject *name_out, *name_name, *name_backward; /* interned */
  mpg_py_operator binary[MPG_PY_BINARY_COUNT];
  PyObject *no_value; /* numpy-like default marker accepted as "not given" */
  int exit_status;    /* exit status of the process; 0 leaves it to Python */
} mpg_py_state;

extern mpg_py_state *mpg_py; /* runtime state: set once when the module is made */

/* --- Errors (errors.c) ------------------------------------------------------------------------ */
int mpg_py_errors_init(PyObject *module);
/* Raises the thread's error text as the exception of `status`; returns NULL. A pending exception
 * stays for statuses that say that the host holds it. */
PyObject *mpg_py_raise(mpg_status status);
/* Returns from the enclosing function (NULL or -1) with the exception set when `call` fails. */
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
/* Stores the pending Python exception's text as the core's and returns MPG_HOST_EXCEPTION; the
 * exception stays pending. */
mpg_status mpg_py_host_exception(void);

/* --- Host hooks (host.c) ---------------------------------------------------------------------- */
int mpg_py_host_init(PyObject *module);
extern PyMethodDef mpg_py_host_methods[];

/* --- NDArray (array.c) ------------------------------------------------------------------------ */
int mpg_py_array_init(PyObject *module);
/* Whether it may be of a Python class under NDArray: numbers, tuples and arrays are told at once.
 */
static inline bool mpg_py_may_derive(PyObject *object) {
  PyTypeObject *type = Py_TYPE(object);
  return type != mpg_py->array_type && PyType_HasFeature(type, Py_TPFLAGS_HEAPTYPE);
}
/* An array that is stored sparsely: a Python class over dense parts. Its own struct is empty. */
static inline bool mpg_py_is_sparse(PyObject *object) {
  return mpg_py_may_derive(object) && mpg_py->sparse_type != NULL &&
         PyType_IsSubtype(Py_TYPE(object), mpg_py->sparse_type);
}
static inline bool mpg_py_is_array(PyObject *object) {
  return Py_TYPE(object) == mpg_py->array_type ||
         (mpg_py_may_derive(object) && PyType_IsSubtype(Py_TYPE(object), mpg_py->array_type) &&
          !mpg_py_is_sparse(object));
}
static inline mpg_array *mpg_py_array_of(PyObject *object) {
  return &((mpg_py_array *)object)->array;
} /* of a checked one */
PyObject *mpg_py_array_new(void); /* new, empty: fill ->array at once */
PyObject *mpg_py_array_take(
    mpg_array *array); /* new; moves *array in, which becomes empty, also on failure */
PyObject *mpg_py_array_take_all(mpg_array *arrays,
                                Py_ssize_t count); /* new; a list, each array moved in like that */
/* The array of `object`; else TypeError "what: expected an NDArray, got ...". Borrowed. */
mpg_array *mpg_py_expect_array(PyObject *object, const char *what);
/* A wrong value as messages name it: its repr, shortened; arrays by shape and dtype. New. */
PyObject *mpg_py_brief(PyObject *value);
/* Raises "<format>, got <the value in brief>"; NULL. */
PyObject *mpg_py_refuse(mpg_status kind, PyObject *value, const char *format, ...);
/* Fails for arrays being traced: they have no value. `what` is the method's name. */
int mpg_py_expect_value(const mpg_array *array, const char *what);
/* And its value may steer what comes: while a block is traced, not that of an array from outside,
 * which may be another in the next call. */
int mpg_py_expect_readable(const mpg_array *array, const char *what);
/* A list or tuple of NDArrays (or one NDArray) as pointers, borrowed from *keep, a new reference
 * the caller drops after use. `arrays` has room for `capacity`; -1 with an exception when there are
 * more or others. Returns the count. */
int mpg_py_array_list(PyObject *object, mpg_array **arrays, int capacity, PyObject **keep,
                      const char *what);
/* The items of a sequence or iterable, as a tuple: nobody changes it while Python code runs for one
 * of them, nor while the lock is given up. New; TypeError(what) for other objects. */
PyObject *mpg_py_items(PyObject *object, const char *what);
/* Calls an op of one output; new NDArray. params may be NULL for ops without. */
PyObject *mpg_py_call(const mpg_op *op, const void *params, mpg_array *const *inputs,
                      int num_inputs);
/* The same, as users call ops: the result is an array of its own, as in MXNet; only x.reshape(),
 * x[begin:end] and x.detach() share memory. */
PyObject *mpg_py_call_op(const mpg_op *op, const void *params, mpg_array *const *inputs,
                         int num_inputs);
/* Writes the result into `out`. */
int mpg_py_call_out(const mpg_op *op, const void *params, mpg_array *const *inputs, int num_inputs,
                    mpg_array *out);
/* Calls an op by name with parameters given as (name, pointer to the value as the struct has it)
 * pairs, ended by NULL: mpg_tuple for SHAPE, int64_t for INT, ...; names the op does not have are
 * an error. Into `out`, or (NULL) a new NDArray. */
PyObject *mpg_py_call_named(const char *op, mpg_array *const *inputs, int num_inputs,
                            mpg_array *out, ...);
/* On the tape while recording, or traced: reads must go through ops. */
static inline bool mpg_py_tracked(const mpg_array *array) {
  return mpg_array_traced(array) || (array->node != NULL && mpg_autograd_recording());
}
PyObject *mpg_py_shape_tuple(const mpg_shape *shape); /* new */
PyObject *mpg_py_reshape(
    PyObject *self, const mpg_shape *shape); /* new; a view where that can be; sizes are equal */
PyObject *mpg_py_cast(PyObject *self,
                      mpg_dtype dtype); /* new reference; self when the dtype is right */
/* Where the array is, as users name it: memory that is pinned is cpu_pinned. */
mpg_device_id mpg_py_context_id(const mpg_array *array);
/* A new tensor on that device, in pinned memory if it is a cpu_pinned. */
mpg_status mpg_py_tensor_create(mpg_device_id id, const mpg_desc *desc, mpg_tensor *tensor);
PyObject *mpg_py_to_device(PyObject *self, mpg_device_id id,
                           bool copy); /* new reference; self when there already and !copy */
PyObject *mpg_py_broadcast(PyObject *self,
                           const mpg_shape *shape); /* new reference; self when equal */
extern PyMethodDef mpg_py_array_methods[];          /* method.c */
extern PyGetSetDef mpg_py_array_properties[];

/* --- Sparse arrays (sparse.c) ------------------------------------------------------------------
 */
int mpg_py_sparse_init(PyObject *module);
/* Whether it is a sparse array, or a weight whose gradient is sparse. */
static inline bool mpg_py_is_handled(PyObject *object) {
  return mpg_py_may_derive(object) && mpg_py->sparse_type != NULL &&
         (PyType_IsSubtype(Py_TYPE(object), mpg_py->sparse_type) ||
          PyType_IsSubtype(Py_TYPE(object), mpg_py->weight_type));
}
/* Whether an op's arguments have one among them: then mpg_py_sparse_call runs it. */
bool mpg_py_takes_sparse(PyObject *const *args, Py_ssize_t count);
PyObject *mpg_py_sparse_call(PyObject *op, PyObject *const *args, Py_ssize_t count,
                             PyObject *keywords);
/* The gradient of a dense array that is a sparse one; NULL where it is not. New reference. */
PyObject *mpg_py_sparse_gradient(PyObject *array);
int mpg_py_forget_sparse_gradient(PyObject *array); /* where it had one */
/* attach_grad of a dense array, with a gradient in the storage `stype`. */
PyObject *mpg_py_attach_sparse(PyObject *array, const char *request, PyObject *stype);
/* A sparse array as a dense one, and a weight with a sparse gradient as a variable of all its rows
 * while recording; other objects as they are. New reference. */
PyObject *mpg_py_dense(PyObject *object);

/* --- Operators (number.c) --------------------------------------------------------------------- */
int mpg_py_number_init(void);             /* looks the ops up */
extern PyType_Slot mpg_py_number_slots[]; /* ends with slot 0 */
extern PyMethodDef mpg_py_number_methods[];

/* --- Indexing (index.c) ----------------------------------------------------------------------- */
PyObject *mpg_py_subscript(PyObject *self, PyObject *key);
int mpg_py_assign_subscript(PyObject *self, PyObject *key, PyObject *value);
PyObject *mpg_py_item(PyObject *self, Py_ssize_t index);

/* --- NumPy, buffers, DLPack (exchange.c, dlpack.c) -------------------------------------------- */
int mpg_py_exchange_init(PyObject *module);
PyObject *mpg_py_to_numpy(
    const mpg_array *array); /* new ndarray with a copy; bfloat16 as float32 */
/* A new NDArray with the values of anything NumPy makes an array of. dtype NONE: the source's,
 * float64 as float32. */
PyObject *mpg_py_from_object(PyObject *object, mpg_dtype dtype, mpg_device_id device);
/* Writes what NumPy makes of `value`, broadcast, into the tensor (blocking). */
int mpg_py_write_object(mpg_array *array, PyObject *value);
/* An NDArray for an operand of an op: `object` itself, or a conversion of a scalar or NumPy array
 * to the device, and where both are floating or both are integer, to the dtype of `like` (may be
 * NULL). alike: whole numbers beside floating ones become those, too; else they may be indices. New
 * reference. */
PyObject *mpg_py_operand(PyObject *object, const mpg_array *like, bool alike, const char *what);
bool mpg_py_is_numpy(PyObject *object);  /* numpy.ndarray */
bool mpg_py_is_scalar(PyObject *object); /* Python or NumPy number (bool too) */
int mpg_py_scalar(PyObject *object, double *value);
mpg_dtype mpg_py_dtype(PyObject *object); /* MPG_DTYPE_NONE with an exception when it is none */
int mpg_py_getbuffer(PyObject *self, Py_buffer *view, int flags);
void mpg_py_releasebuffer(PyObject *self, Py_buffer *view);
extern PyMethodDef mpg_py_exchange_methods[];
extern PyMethodDef mpg_py_dlpack_methods[];
PyObject *mpg_py_dlpack(PyObject *self, PyObject *args, PyObject *kwargs);
PyObject *mpg_py_dlpack_device(PyObject *self, PyObject *unused);

/* --- Context (context.c) ---------------------------------------------------------------------- */
int mpg_py_context_init(PyObject *module);
PyObject *mpg_py_context(mpg_device_id id); /* new reference */
/* Sets id->rank from the number of a rank; begins with MPI where that has started the program. */
int mpg_py_resolve_rank(PyObject *rank, mpg_device_id *id);
int mpg_py_device_id(PyObject *object,
                     mpg_device_id *id); /* a Context or its text; None: the current one */
mpg_device_id mpg_py_current_device(void);
mpg_device *mpg_py_device(PyObject *object); /* of such; opened. NULL with an exception */
/* The numbers of GPUs, one of each rank, of a tuple. New, PyMem_Free; NULL with an exception. */
int32_t *mpg_py_gpu_indices(PyObject *object);
extern PyMethodDef mpg_py_context_methods[];

/* --- Ops (op.c, params.c, extension.c) -------------------------------------------------------- */
int mpg_py_op_init(PyObject *module);
/* Stores a Python value into one parameter of a struct, checked; `op` is for errors. */
int mpg_py_param_set(const mpg_param_table *table, const char *op, void *params, int index,
                     PyObject *value);
/* Fills the struct of an op with defaults and the values of a dict; bit i of *present (may be NULL)
 * says that parameter i was given. Ops without parameters take an empty dict. */
int mpg_py_params_set(const mpg_op *op, void *params, PyObject *given, uint64_t *present);
/* A text as the core knows it by, set like any op parameter: looks the parameter up by name. */
int mpg_py_shape_from(PyObject *object, mpg_shape *shape,
                      const char *what); /* an integer or a sequence of them */
extern PyMethodDef mpg_py_op_methods[];
/* The _core.Op of a row under its name, which `_core.ops` has then; new reference. */
PyObject *mpg_py_op_add(const mpg_op *op);
extern PyMethodDef mpg_py_extension_methods[];  /* extension.c */
extern PyMethodDef mpg_py_gpu_module_methods[]; /* gpu_module.c */
extern PyMethodDef mpg_py_precision_methods[];  /* precision.c */

/* --- Autograd (autograd.c), runtime settings (runtime.c) -------------------------------------- */
int mpg_py_autograd_init(PyObject *module);
extern PyMethodDef mpg_py_autograd_methods[];
extern PyMethodDef mpg_py_runtime_methods[];
extern PyMethodDef mpg_py_profiler_methods[]; /* profiler.c */

/* --- Others' files: CachedOp (cached_op.c), files (io.c), inference.c; each adds its types and
 * functions to the module -- */
int mpg_py_cached_op_init(PyObject *module);
/* Runs a Python function on traced arrays and compiles what it did. options->wanted may be NULL:
 * autograd's. New reference, or NULL with an exception. */
mpg_compiled *mpg_py_trace_and_compile(PyObject *function, const mpg_inputs *inputs,
                                       const mpg_compile_options *options);
bool mpg_py_is_cached_op(PyObject *object); /* one that binds nothing */
/* A call of such a CachedOp, compiled where it has to be: outputs are empty structs. */
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
int mpg_py_symbol_init(PyObject *module); /* symbol.c */
int mpg_py_trace_init(PyObject *module);  /* trace.c */
int mpg_py_scope_init(PyObject *module);  /* scope.c */
int mpg_py_absent_init(PyObject *module); /* absent.c */
/* A tp_setattro: a name that cannot be set raises the error of reading it, if that is one. */
int mpg_py_set_attribute(PyObject *object, PyObject *name, PyObject *value);
/* From and to (shape, dtype) pairs, 0 and -1 in a shape standing for sizes and None for shapes and
 * dtypes that are not known (inference.c). */
int mpg_py_desc_from(PyObject *pair, mpg_desc *desc);
PyObject *mpg_py_descs_to(const mpg_desc *descs, int count); /* new list */

#endif
