/* CUDA modules of _core: user-written kernels (mx.rtc) as capsules. See op/user/gpu_module.h. */
#include "autograd/trace.h"
#include "op/user/gpu_module.h"
#include "python/core.h"

static const char *const MODULE = "mpgluon.cuda_module", *const KERNEL = "mpgluon.cuda_kernel";

/* Returns an array of C strings that point into the items of a tuple of strings. The caller frees
 * the array with PyMem_Free. Returns NULL with an exception set on failure. */
static const char **texts_of(PyObject *tuple) {
  Py_ssize_t count = PyTuple_GET_SIZE(tuple);
  const char **texts = PyMem_Calloc((size_t)count + 1, sizeof *texts);
  if (texts == NULL) PyErr_NoMemory();
  for (Py_ssize_t i = 0; texts != NULL && i < count; i++)
    if ((texts[i] = PyUnicode_AsUTF8(PyTuple_GET_ITEM(tuple, i))) == NULL) {
      PyMem_Free(texts);
      texts = NULL;
    }
  return texts;
}

static PyObject *compile_module(PyObject *Py_UNUSED(self), PyObject *args) {
  mpg_gpu_source source = {0};
  PyObject *options, *exports, *result = NULL;
  void *module;
  if (!PyArg_ParseTuple(args, "sO!O!:cuda_module", &source.text, &PyTuple_Type, &options,
                        &PyTuple_Type, &exports))
    return NULL;
  source.num_options = (int)PyTuple_GET_SIZE(options);
  source.num_exports = (int)PyTuple_GET_SIZE(exports);
  source.options = texts_of(options);
  source.exports = source.options ? texts_of(exports) : NULL;
  if (source.exports != NULL) {
    mpg_status status = mpg_gpu_module_compile(&source, &module);
    result = status == MPG_OK ? PyCapsule_New(module, MODULE, NULL) : mpg_py_raise(status);
  }
  PyMem_Free((void *)source.options);
  PyMem_Free((void *)source.exports);
  return result;
}

static PyObject *find_kernel(PyObject *Py_UNUSED(self), PyObject *args) {
  PyObject *capsule;
  const char *name;
  const void *kernel;
  if (!PyArg_ParseTuple(args, "Os:cuda_kernel", &capsule, &name)) return NULL;
  void *module = PyCapsule_GetPointer(capsule, MODULE);
  if (module == NULL) return NULL;
  MPG_PY_TRY(mpg_gpu_module_kernel(module, name, &kernel));
  return PyCapsule_New((void *)kernel, KERNEL, NULL);
}

/* Converts an argument of a kernel: a tuple (array, True if the kernel writes it), or the bytes of
 * a number. */
static int take_argument(PyObject *object, mpg_gpu_argument *argument) {
  memset(argument, 0, sizeof *argument);
  if (PyBytes_Check(object) && PyBytes_GET_SIZE(object) <= 8) {
    memcpy(argument->number, PyBytes_AS_STRING(object), (size_t)PyBytes_GET_SIZE(object));
    return 0;
  }
  PyObject *item;
  int writes;
  if (!PyTuple_Check(object) || !PyArg_ParseTuple(object, "Op:cuda_launch", &item, &writes)) {
    if (!PyErr_Occurred()) PyErr_SetString(PyExc_TypeError, "cuda_launch: an argument");
    return -1;
  }
  mpg_array *array = mpg_py_expect_array(item, "CudaKernel.launch");
  if (array == NULL || mpg_py_expect_value(array, "CudaKernel.launch") < 0) return -1;
  if (writes) MPG_PY_TRY_INT(mpg_trace_check_write(array, "CudaKernel.launch"));
  argument->tensor = &array->tensor;
  argument->writes = writes;
  return 0;
}

static PyObject *launch_kernel(PyObject *Py_UNUSED(self), PyObject *args) {
  mpg_gpu_argument arguments[MPG_GPU_MAX_ARGUMENTS];
  mpg_gpu_launch launch = {.arguments = arguments};
  PyObject *capsule, *ctx, *tuple;
  mpg_device_id id;
  if (!PyArg_ParseTuple(args, "OsO(III)(III)IO!:cuda_launch", &capsule, &launch.name, &ctx,
                        &launch.grid[0], &launch.grid[1], &launch.grid[2], &launch.block[0],
                        &launch.block[1], &launch.block[2], &launch.shared, &PyTuple_Type,
                        &tuple) ||
      mpg_py_device_id(ctx, &id) < 0)
    return NULL;
  launch.kernel = PyCapsule_GetPointer(capsule, KERNEL);
  if (launch.kernel == NULL) return NULL;
  if (PyTuple_GET_SIZE(tuple) > MPG_GPU_MAX_ARGUMENTS)
    return PyErr_Format(mpg_py->errors[MPG_VALUE_ERROR],
                        "CudaKernel(%s): at most %d arguments are supported", launch.name,
                        MPG_GPU_MAX_ARGUMENTS);
  launch.num_arguments = (int)PyTuple_GET_SIZE(tuple);
  for (int i = 0; i < launch.num_arguments; i++)
    if (take_argument(PyTuple_GET_ITEM(tuple, i), &arguments[i]) < 0) return NULL;
  MPG_PY_TRY(mpg_device_get(id, &launch.device));
  MPG_PY_TRY(mpg_gpu_module_launch(&launch));
  Py_RETURN_NONE;
}

PyMethodDef mpg_py_gpu_module_methods[] = {
    {"cuda_module", compile_module, METH_VARARGS,
     "cuda_module(source, options, exports)\n--\n\nCompiles CUDA C++ source and returns the module "
     "as a capsule."},
    {"cuda_kernel", find_kernel, METH_VARARGS,
     "cuda_kernel(module, name)\n--\n\nThe kernel `name` of a module, as a capsule."},
    {"cuda_launch", launch_kernel, METH_VARARGS,
     "cuda_launch(kernel, name, ctx, grid, block, shared, arguments)\n--\n\nQueues a kernel "
     "launch. Each argument is a tuple (array, whether the kernel writes it), or the bytes\nof a "
     "number."},
    {0}};
