/* NumPy's C API. All files share the function table that exchange.c fills. */
#ifndef MPG_PYTHON_ARRAY_NUMPY_H
#define MPG_PYTHON_ARRAY_NUMPY_H

#define NPY_NO_DEPRECATED_API NPY_1_22_API_VERSION
#define PY_ARRAY_UNIQUE_SYMBOL mpg_numpy_api
#ifndef MPG_NUMPY_OWNER
#define NO_IMPORT_ARRAY
#endif
#include <numpy/arrayobject.h>

/* Returns the dtype for a NumPy type number, or MPG_DTYPE_NONE if there is no equivalent. */
mpg_dtype mpg_py_from_numpy_type(int type);
/* Converts any object to a C-contiguous ndarray of `dtype` (float32 for bfloat16). Returns a new
 * reference, or NULL with TypeError set on failure. */
PyArrayObject *mpg_py_as_ndarray(PyObject *object, mpg_dtype dtype);
/* Returns a new array of mx.np or mx.nd on `device` with the contents of a C-contiguous ndarray
 * from mpg_py_as_ndarray for `dtype`. */
PyObject *mpg_py_from_ndarray(PyArrayObject *source, mpg_dtype dtype, mpg_device_id device,
                              bool numpy);

#endif
