/* The extension module mpgluon._core. See core.h. */
#include <stdio.h>
#include <unistd.h>

#include "device/gpu/gpu.h"
#include "kernels/cpu/dispatch.h"
#include "op/fused.h"
#include "python/core.h"

static mpg_py_state state; /* runtime state: one module per process */

/* Runs at exit, after MPI_Finalize, because Py_AtExit functions run in reverse order of
 * registration and MPI's function is registered after this one. */
static void end(void) {
  mpg_device_shutdown();
  if (state.exit_status == 0) return;
  fflush(NULL);
  _exit(state.exit_status);
}

static PyObject *set_exit_status(PyObject *Py_UNUSED(module), PyObject *status) {
  state.exit_status = (int)PyLong_AsLong(status);
  if (PyErr_Occurred()) return NULL;
  Py_RETURN_NONE;
}
static PyMethodDef methods[] = {
    {"set_exit_status", set_exit_status, METH_O,
     "set_exit_status(status)\n--\n\nSets the exit status of the process, unless 0."},
    {NULL, NULL, 0, NULL}};

static int add_functions(PyObject *module) {
  PyMethodDef *const tables[] = {mpg_py_host_methods,      mpg_py_context_methods,
                                 mpg_py_exchange_methods,  mpg_py_dlpack_methods,
                                 mpg_py_number_methods,    mpg_py_op_methods,
                                 mpg_py_function_methods,  mpg_py_autograd_methods,
                                 mpg_py_runtime_methods,   mpg_py_profiler_methods,
                                 mpg_py_extension_methods, mpg_py_gpu_module_methods,
                                 mpg_py_precision_methods, methods};
  for (size_t i = 0; i < sizeof tables / sizeof tables[0]; i++)
    if (PyModule_AddFunctions(module, tables[i]) < 0) return -1;
  return 0;
}

static void gpus_opened(const mpg_gpu_library *library) {
  mpg_kernels_set(MPG_GPU, library->kernels, (mpg_kernel_fn)library->fused);
  mpg_kernels_set_fuses(MPG_GPU, (mpg_fuses_fn)library->fuses);
}

static int fill_module(PyObject *module) {
  if (mpg_py_errors_init(module) < 0) return -1;
  if (mpg_py_host_init(module) < 0) return -1;
  mpg_kernels_set(MPG_CPU, mpg_cpu_kernel_table(), mpg_cpu_fused_kernel());
  mpg_kernels_set(MPG_CPU_SIDE, mpg_cpu_kernel_table(), mpg_cpu_fused_kernel());
  mpg_gpu_library_on_open(gpus_opened, mpg_kernel_stamp());
  mpg_status status = mpg_registry_init();
  if (status == MPG_OK) status = mpg_device_init();
  if (status != MPG_OK) {
    mpg_py_raise(status);
    return -1;
  }
  /* Workers must stop before libraries that were opened later (oneDNN) tear down their state. A C
   * atexit function or a destructor of this module would run too late. */
  if (Py_AtExit(end) < 0) {
    PyErr_SetString(PyExc_RuntimeError,
                    "no more functions can be registered to run when Python ends");
    return -1;
  }
  if (mpg_py_exchange_init(module) < 0 || mpg_py_context_init(module) < 0 ||
      mpg_py_array_init(module) < 0 || mpg_py_op_init(module) < 0 ||
      mpg_py_function_init(module) < 0 || mpg_py_number_init() < 0 ||
      mpg_py_autograd_init(module) < 0 || add_functions(module) < 0)
    return -1;
  if (mpg_py_cached_op_init(module) < 0 || mpg_py_io_init(module) < 0 ||
      mpg_py_gluon_init(module) < 0 || mpg_py_symbol_init(module) < 0 ||
      mpg_py_pipeline_run_init(module) < 0 || mpg_py_trace_init(module) < 0 ||
      mpg_py_comm_init(module) < 0 || mpg_py_ranks_init(module) < 0 ||
      mpg_py_update_init(module) < 0 || mpg_py_routine_init(module) < 0 ||
      mpg_py_scope_init(module) < 0 || mpg_py_missing_attribute_init(module) < 0 ||
      mpg_py_sparse_init(module) < 0 || mpg_py_saved_init(module) < 0)
    return -1;
  return 0;
}

/* Checks that the GIL is enabled. A free-threaded Python enables it with a warning when it imports
 * this module, unless the user has disabled it explicitly. */
static int expect_lock(void) {
  PyObject *asks = PySys_GetObject("_is_gil_enabled"); /* borrowed; since Python 3.13 */
  PyObject *answer = asks != NULL ? PyObject_CallNoArgs(asks) : Py_NewRef(Py_True);
  int enabled = answer != NULL ? PyObject_IsTrue(answer) : -1;
  Py_XDECREF(answer);
  if (enabled == 0)
    PyErr_SetString(PyExc_ImportError,
                    "mpgluon needs Python's global interpreter lock, which PYTHON_GIL=0 or -X "
                    "gil=0 has disabled; remove these settings");
  return enabled > 0 ? 0 : -1;
}

static int exec_module(PyObject *module) {
  if (expect_lock() < 0) return -1;
  if (mpg_py != NULL) {
    PyErr_SetString(PyExc_ImportError,
                    "mpgluon._core is already loaded; it can be loaded once per process and not in "
                    "subinterpreters");
    return -1;
  }
  mpg_py = &state;
  if (fill_module(module) == 0) return 0;
  /* Allows another import to retry, for example if NumPy was missing. State created so far
   * leaks. */
  state = (mpg_py_state){0};
  mpg_py = NULL;
  return -1;
}

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, exec_module},
#if PY_VERSION_HEX >= 0x030c0000
    {Py_mod_multiple_interpreters, Py_MOD_MULTIPLE_INTERPRETERS_NOT_SUPPORTED},
#endif
    {0, NULL}};
static PyModuleDef definition = {PyModuleDef_HEAD_INIT,
                                 "mpgluon._core",
                                 "The C core of mpgluon as a Python module.",
                                 0,
                                 NULL,
                                 slots,
                                 NULL,
                                 NULL,
                                 NULL};

PyMODINIT_FUNC PyInit__core(void) { return PyModuleDef_Init(&definition); }
