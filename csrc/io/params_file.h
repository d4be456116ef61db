/* MXNet's array files (".params", as written by nd.save): a list of arrays, with or without names.
 *
 * Layout, all little-endian:
 *   - list: uint64 0x112, uint64 0, uint64 count, count arrays, uint64 names (0 or count), then for
 *     each name uint64 length and its bytes
 *   - array: uint32 version, [int32 storage type: 0 dense], int32 ndim, int64 dims[ndim], int32
 *     device type, int32 device index, int32 dtype, the elements
 *   - sparse array (storage type 1 row_sparse, 2 csr): the shape of its values precedes its own
 *     shape. Its dtype is followed by the dtype and shape of each index array (row_sparse: row
 *     indices; csr: row pointers, column indices), then the elements of the values, then those of
 *     the index arrays.
 *
 * Versions:
 *   - 0xF993FAC9: written by MXNet 1.x
 *   - 0xF993FACA: the same with NumPy's shapes, where ndim 0 is a scalar and -1 means "no array"
 *   - 0xF993FAC8: without a storage type
 *   - none, in the oldest files: the first word is ndim, and the dims are uint32
 *
 * Except in version 0xF993FACA, an ndim of 0 means "no array", and the array ends there.
 *
 * The reader first parses the whole file except the elements, so that errors are found before
 * memory is allocated. Ownership: the caller owns a list and frees it. Threads: callers hold the
 * host lock, which is released during long reads.
 */
#ifndef MPG_IO_PARAMS_FILE_H
#define MPG_IO_PARAMS_FILE_H

#include "io/file.h"
#include "tensor/tensor.h"

typedef enum mpg_storage_type { MPG_DENSE, MPG_ROW_SPARSE, MPG_CSR } mpg_storage_type;
enum { MPG_MAX_INDICES = 2 };
static inline int mpg_num_indices(mpg_storage_type type) { return (int)type; }

typedef struct mpg_named_tensor {
  /* NUL-terminated, but may also contain NULs; owned. NULL if the list has no names. */
  char *name;
  size_t name_length;
  mpg_tensor tensor; /* owned reference; storage is NULL for "no array" */
  mpg_storage_type type;
  /* Sparse arrays only: the shape of the whole array, and owned references to the index arrays.
   * `tensor` holds the values. */
  mpg_shape shape;
  mpg_tensor indices[MPG_MAX_INDICES];
} mpg_named_tensor;

typedef struct mpg_tensor_list {
  mpg_named_tensor *items; /* owned */
  size_t count, capacity;
  bool named;
  bool numpy; /* some arrays are of mx.np */
} mpg_tensor_list;

void mpg_tensor_list_free(mpg_tensor_list *list);
/* Appends a tensor, which is retained. The name is copied; NULL means no name. */
mpg_status mpg_tensor_list_add(mpg_tensor_list *list, const char *name, size_t name_length,
                               const mpg_tensor *tensor);

/* Makes the last item a sparse array. The item's tensor becomes the array's values. The indices are
 * retained. */
void mpg_tensor_list_make_sparse(mpg_tensor_list *list, mpg_storage_type type,
                                 const mpg_shape *shape, const mpg_tensor *indices);

/* Reads all arrays. An array that was saved on a GPU is loaded to the GPU with the same index if it
 * exists, and all other arrays to cpu(0). Overwrites *list, which is empty after a failure. */
mpg_status mpg_params_read(mpg_source *source, mpg_tensor_list *list);
/* Writes all arrays, after waiting for the work that computes each. */
mpg_status mpg_params_write(mpg_sink *sink, const mpg_tensor_list *list);

#endif
