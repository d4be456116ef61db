/* NumPy's C API for the files that use it: one table, filled by exchange.c. */
#ifndef MPG_PYTHON_ARRAY_NUMPY_H
#define MPG_PYTHON_ARRAY_NUMPY_H

#define NPY_NO_DEPRECATED_API NPY_1_22_API_VERSION
#define PY_ARRAY_UNIQUE_SYMBOL mpg_numpy_api
#ifndef MPG_NUMPY_OWNER
#define NO_IMPORT_ARRAY
#endif
#include <numpy/arrayobject.h>

/* The dtype of a type number of NumPy; MPG_DTYPE_NONE for those we do not have. */
mpg_dtype mpg_py_from_numpy_type(int type);
/* A C-contiguous ndarray of that dtype from any object (float32 for bfloat16); new, or NULL with
 * TypeError. */
PyArrayObject *mpg_py_as_ndarray(PyObject *object, mpg_dtype dtype);
/* A new array on `device` with the contents of a C-contiguous ndarray made by mpg_py_as_ndarray for
 * `dtype`. */
PyObject *mpg_py_from_ndarray(PyArrayObject *source, mpg_dtype dtype, mpg_device_id device);

#endif
