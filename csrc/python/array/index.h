/* Keys of x[key] and x[key] = value, shared by the files that read and assign.
 *
 * A basic key (integers, slices, Ellipsis, None) is converted to a begin, end and step for each
 * dimension. A key with arrays is resolved on the host: NumPy applies it to one index array per
 * dimension that the key touches. The sum of the results holds the flat positions of the selected
 * elements or rows. The index arrays are broadcast views, so the cost depends only on the result's
 * size.
 */
#ifndef MPG_PYTHON_ARRAY_INDEX_H
#define MPG_PYTHON_ARRAY_INDEX_H

#include "python/core.h"
#include "python/array/numpy.h"

/* --- Basic keys (basic_key.c) ----------------------------------------------------------------- */
typedef struct basic_key {
  int count; /* number of dimensions of the array */
  int64_t begin[MPG_MAX_NDIM], step[MPG_MAX_NDIM], length[MPG_MAX_NDIM];
  bool dropped[MPG_MAX_NDIM]; /* true if the entry is an integer, which removes the dimension */
  mpg_shape sliced;           /* shape of the selection, including removed dimensions */
  /* Shape without removed dimensions and with new axes (None). In mx.nd, (1,) instead of (). */
  mpg_shape result;
} basic_key;

/* One entry of an index key, an integer or a slice, converted to C integers. */
typedef struct plain_entry {
  bool is_slice;
  Py_ssize_t begin; /* the integer if this is not a slice */
  Py_ssize_t end, step;
} plain_entry;

/* The integers and slices of a basic key in order. Unpacking runs the user's `__index__`, which may
 * change the array's shape, so a key is unpacked before the array is read. */
typedef struct plain_key {
  Py_ssize_t count; /* may exceed MPG_MAX_NDIM, the number of entries stored */
  plain_entry entries[MPG_MAX_NDIM];
} plain_key;

/* True for an entry of a basic key. mx.nd accepts True and False, which are the integers 1 and 0,
 * as in MXNet. In mx.np, they are masks without dimensions. */
bool mpg_key_entry_is_basic(PyObject *object, bool numpy);
bool mpg_key_is_basic(PyObject *key, bool numpy);
int mpg_key_unpack_entry(PyObject *object, plain_entry *entry);
int mpg_key_unpack(PyObject *key, plain_key *plain);
/* Resolves the unpacked key `plain` against a shape. `key` only locates None and Ellipsis. */
int mpg_key_parse(PyObject *key, const plain_key *plain, const mpg_shape *shape, bool numpy,
                  basic_key *basic);
/* True if the selected elements are contiguous. Sets *first to the index of the first element. */
bool mpg_key_contiguous(const basic_key *basic, const mpg_shape *shape, int64_t *first);
/* Fills in begin, end and step for the op `slice`. */
void mpg_key_slice_params(const basic_key *basic, mpg_tuple *begin, mpg_tuple *end,
                          mpg_tuple *step);
/* Sets the IndexError of a key with more entries than the shape has dimensions; returns -1. */
int mpg_key_too_many(PyObject *key, const mpg_shape *shape);
/* True for x[:], which is x itself in mx.nd, as in MXNet. */
bool mpg_key_is_everything(PyObject *key);

/* --- Keys with arrays (array_key.c) ----------------------------------------------------------- */
typedef struct gather {
  mpg_shape shape;     /* the array's shape, read after all entries of the key were converted */
  PyArrayObject *flat; /* owned: selected row numbers in `rows`, int64, C-contiguous */
  mpg_shape rows;      /* the array's shape with all leading dimensions merged into one */
} gather;

/* Converts an entry of a key with arrays for NumPy. NDArrays become ndarrays. Float arrays become
 * integer arrays, as in MXNet. Returns a new reference. */
PyObject *mpg_key_numpy_entry(PyObject *entry, bool numpy);
int mpg_key_resolve(const mpg_array *array, PyObject *key, gather *result);
mpg_shape mpg_key_gathered_shape(const gather *g);
int mpg_key_check_ndim(const mpg_shape *shape);
/* Converts an integer array to row numbers: adds the axis size to negative indices. */
PyArrayObject *mpg_key_row_positions(PyObject *entry, int axis, int64_t size);
/* Returns the selected row numbers as an array on the device of `array`, int32 if they fit, else
 * int64. */
PyObject *mpg_key_positions(const gather *g, const mpg_array *array);
/* Sets *mask to the mask on the array's device if the key is one array of bools with at least one
 * dimension for an array of mx.np, else to NULL. Raises IndexError if its sizes do not fit. */
int mpg_key_mask(PyObject *self, PyObject *key, PyObject **mask);
/* Returns the array with `count` dimensions from `axis` on merged into one. */
PyObject *mpg_key_merge(PyObject *self, int axis, int count);

/* --- Reading (index.c) ------------------------------------------------------------------------ */
PyObject *mpg_key_view(const mpg_tensor *source, int64_t first, const mpg_shape *shape, bool numpy);
PyObject *mpg_key_get_basic(PyObject *self, PyObject *key);

/* --- Traced index arrays (traced_key.c) ------------------------------------------------------- */
/* True if an entry of the key is a traced array of integers, or one of several entries is a traced
 * mask. The host does not know their values. */
bool mpg_key_has_traced(PyObject *key);
/* Returns x[key] for such a key and an array of mx.np. */
PyObject *mpg_key_get_traced(PyObject *self, PyObject *key);

#endif
