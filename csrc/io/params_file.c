/* Reader and writer of MXNet's array files. */
#include "io/params_file.h"

#include <string.h>

#include "base/memory.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
               "array files are little-endian, and read and written as they lie in memory");

enum { LIST_MAGIC = 0x112 };
static const uint32_t VERSION_1 = 0xF993FAC8u, VERSION_2 = 0xF993FAC9u, VERSION_3 = 0xF993FACAu;

/* Minimum sizes in bytes of an array (an ndim of 0 in the oldest version) and of a name (an empty
 * one). They bound the counts in a file, so that a damaged file cannot cause a huge allocation. */
enum { SMALLEST_ARRAY = 4, SMALLEST_NAME = 8 };

/* Maximum number of absent arrays (None). Each takes 4 bytes of a file but hundreds of bytes of
 * memory. Real files have few of them. */
enum { MOST_ABSENT = 1 << 16 };

void mpg_tensor_list_free(mpg_tensor_list *list) {
  for (size_t i = 0; i < list->count; i++) {
    mpg_free(list->items[i].name);
    mpg_tensor_release(&list->items[i].tensor);
    for (int k = 0; k < MPG_MAX_INDICES; k++) mpg_tensor_release(&list->items[i].indices[k]);
  }
  mpg_free(list->items);
  *list = (mpg_tensor_list){0};
}

static char *copy_name(const char *name, size_t length) {
  size_t size;
  char *copy = mpg_size_add(length, 1, &size) ? mpg_malloc(size) : NULL;
  if (copy) {
    memcpy(copy, name, length);
    copy[length] = 0;
  }
  return copy;
}

mpg_status mpg_tensor_list_add(mpg_tensor_list *list, const char *name, size_t name_length,
                               const mpg_tensor *tensor) {
  MPG_TRY(mpg_grow((void **)&list->items, &list->capacity, list->count + 1, sizeof *list->items));
  mpg_named_tensor item = {.name_length = name_length, .tensor = *tensor};
  if (name && !(item.name = copy_name(name, name_length)))
    return mpg_out_of_host_memory(name_length);
  mpg_tensor_retain(&item.tensor);
  list->items[list->count++] = item;
  list->named = name != NULL;
  return MPG_OK;
}

void mpg_tensor_list_make_sparse(mpg_tensor_list *list, mpg_storage_type type,
                                 const mpg_shape *shape, const mpg_tensor *indices) {
  mpg_named_tensor *item = &list->items[list->count - 1];
  item->type = type;
  item->shape = *shape;
  for (int k = 0; k < mpg_num_indices(type); k++) {
    item->indices[k] = indices[k];
    mpg_tensor_retain(&item->indices[k]);
  }
}

/* --- Reading ---------------------------------------------------------------------------------- */

typedef struct reader {
  mpg_source *source;
  uint64_t offset;
  size_t array; /* index of the array being read, for errors */
} reader;

/* Header of an array in the file, and the offset of its elements. */
typedef struct found_array {
  mpg_storage_type type;
  mpg_shape shape; /* shape of the whole array; sparse arrays only */
  mpg_desc desc;   /* shape and dtype of the array or, if sparse, of its values */
  mpg_desc indices[MPG_MAX_INDICES];
  mpg_device_id saved_on;
  uint64_t data; /* offset of the elements; the elements of the index arrays follow them */
  bool absent;
} found_array;

static mpg_status take(reader *r, void *target, size_t size, const char *what) {
  MPG_TRY(mpg_source_read(r->source, r->offset, target, size, what));
  r->offset += size;
  return MPG_OK;
}

static mpg_status take_dims(reader *r, mpg_shape *shape, bool wide) {
  for (int i = 0; i < shape->ndim; i++) {
    uint64_t at = r->offset;
    int64_t dim = 0;
    MPG_TRY(take(r, &dim, wide ? sizeof(int64_t) : sizeof(uint32_t), "a dimension"));
    if (dim < 0)
      return mpg_source_fail(r->source, at, "array %zu has a negative dimension, %lld", r->array,
                             (long long)dim);
    shape->dims[i] = dim;
  }
  return MPG_OK;
}

static mpg_status take_ndim(reader *r, int32_t *ndim) {
  uint64_t at = r->offset;
  MPG_TRY(take(r, ndim, sizeof *ndim, "the number of dimensions"));
  if (*ndim < -1 || *ndim > MPG_MAX_NDIM)
    return mpg_source_fail(r->source, at, "array %zu claims %d dimensions; arrays have at most %d",
                           r->array, *ndim, MPG_MAX_NDIM);
  return MPG_OK;
}

static mpg_status take_storage_type(reader *r, found_array *found) {
  uint64_t at = r->offset;
  int32_t type;
  MPG_TRY(take(r, &type, sizeof type, "the storage type"));
  if (type < MPG_DENSE || type > MPG_CSR)
    return mpg_source_fail(r->source, at, "array %zu has the unknown storage type %d", r->array,
                           type);
  found->type = (mpg_storage_type)type;
  return MPG_OK;
}

static mpg_status take_shape(reader *r, mpg_shape *shape) {
  MPG_TRY(take_ndim(r, &shape->ndim));
  return take_dims(r, shape, true);
}

static mpg_status take_dtype(reader *r, mpg_dtype *result) {
  uint64_t at = r->offset;
  int32_t dtype;
  MPG_TRY(take(r, &dtype, sizeof dtype, "the dtype"));
  if (!mpg_dtype_valid(dtype))
    return mpg_source_fail(r->source, at, "array %zu has the unknown dtype number %d", r->array,
                           dtype);
  *result = (mpg_dtype)dtype;
  return MPG_OK;
}

static mpg_status check_sparse(reader *r, const found_array *found, uint64_t at) {
  const mpg_shape *shape = &found->shape, *values = &found->desc.shape,
                  *last = &found->indices[mpg_num_indices(found->type) - 1].shape;
  bool csr = found->type == MPG_CSR;
  bool fits = shape->ndim >= 1 && last->ndim == 1 && values->ndim >= 1 &&
              last->dims[0] == values->dims[0] && (!csr || (shape->ndim == 2 && values->ndim == 1));
  for (int i = 1; !csr && i < shape->ndim && fits; i++)
    fits = values->ndim == shape->ndim && values->dims[i] == shape->dims[i];
  const mpg_shape *pointers = &found->indices[0].shape;
  if (csr) fits = fits && pointers->ndim == 1 && pointers->dims[0] == shape->dims[0] + 1;
  for (int k = 0; k < mpg_num_indices(found->type); k++)
    fits = fits && mpg_dtype_is_integer(found->indices[k].dtype);
  if (fits) return MPG_OK;
  return mpg_source_fail(r->source, at, "the parts of array %zu (%s) are inconsistent", r->array,
                         csr ? "csr" : "row_sparse");
}

/* Reads the header of an array and advances r->offset to its elements. */
static mpg_status take_header(reader *r, found_array *found) {
  uint64_t at = r->offset;
  uint32_t version;
  MPG_TRY(take(r, &version, sizeof version, "an array"));
  if (version == VERSION_2 || version == VERSION_3) MPG_TRY(take_storage_type(r, found));
  mpg_shape *shape = found->type == MPG_DENSE ? &found->desc.shape : &found->shape;
  if (found->type != MPG_DENSE) MPG_TRY(take_shape(r, &found->desc.shape));
  bool wide = version == VERSION_1 || version == VERSION_2 || version == VERSION_3;
  if (wide) {
    MPG_TRY(take_ndim(r, &shape->ndim));
  } else if (version <= MPG_MAX_NDIM) {
    shape->ndim = (int32_t)version;
  } else {
    return mpg_source_fail(r->source, at,
                           "array %zu starts with 0x%08x, which is not a version of the format",
                           r->array, version);
  }
  found->absent = shape->ndim < 0 || (shape->ndim == 0 && version != VERSION_3);
  if (found->absent) return MPG_OK;
  MPG_TRY(take_dims(r, shape, wide));
  MPG_TRY(take(r, &found->saved_on.type, sizeof found->saved_on.type, "the device"));
  MPG_TRY(take(r, &found->saved_on.index, sizeof found->saved_on.index, "the device"));
  MPG_TRY(take_dtype(r, &found->desc.dtype));
  for (int k = 0; k < mpg_num_indices(found->type); k++) {
    MPG_TRY(take_dtype(r, &found->indices[k].dtype));
    MPG_TRY(take_shape(r, &found->indices[k].shape));
  }
  if (found->type != MPG_DENSE) MPG_TRY(check_sparse(r, found, at));
  found->data = r->offset;
  return MPG_OK;
}

/* Checks that the file contains all elements of the array, and skips them. */
static mpg_status skip_elements(reader *r, const mpg_desc *desc) {
  char text[MPG_SHAPE_TEXT_SIZE];
  size_t bytes;
  mpg_shape_text(&desc->shape, text, sizeof text);
  if (mpg_shape_check(&desc->shape, desc->dtype, &bytes) != MPG_OK)
    return mpg_source_fail(r->source, r->offset,
                           "array %zu claims the shape %s, which no memory can hold", r->array,
                           text);
  if (bytes > r->source->size - r->offset)
    return mpg_source_fail(r->source, r->offset,
                           "array %zu (%s, %s) should take up %zu bytes here, but the file ends at "
                           "byte %llu: it is damaged or was cut off",
                           r->array, mpg_dtype_name(desc->dtype), text, bytes,
                           (unsigned long long)r->source->size);
  r->offset += bytes;
  return MPG_OK;
}

static mpg_status take_count(reader *r, uint64_t *count, uint64_t smallest, const char *what) {
  uint64_t at = r->offset;
  MPG_TRY(take(r, count, sizeof *count, what));
  if (*count > (r->source->size - r->offset) / smallest)
    return mpg_source_fail(
        r->source, at,
        "%s claims to be %llu, more than fits in the file: it is damaged or was cut off", what,
        (unsigned long long)*count);
  return MPG_OK;
}

static mpg_status take_name(reader *r, mpg_named_tensor *item) {
  uint64_t length;
  MPG_TRY(take_count(r, &length, 1, "the length of a name"));
  item->name = mpg_malloc((size_t)length + 1);
  if (!item->name) return mpg_out_of_host_memory((size_t)length);
  item->name_length = (size_t)length;
  item->name[length] = 0;
  return take(r, item->name, (size_t)length, "a name");
}

/* Sets *device to the GPU on which the array was saved if this machine has it, else to cpu(0). */
static mpg_status choose_device(mpg_device_id saved_on, mpg_device **device) {
  mpg_device_id id = {.type = MPG_CPU};
  if (saved_on.type == MPG_GPU && saved_on.index >= 0 && saved_on.index < mpg_gpu_count(NULL))
    id = saved_on;
  return mpg_device_get(id, device);
}

/* Sets nonzero bools to 1. Kernels rely on 0 and 1, but a file may contain other bytes. */
static void normalize_bools(const mpg_desc *desc, uint8_t *elements, size_t count) {
  if (desc->dtype != MPG_BOOL) return;
  for (size_t i = 0; i < count; i++) elements[i] = elements[i] != 0;
}

static mpg_status load_elements(reader *r, mpg_device_id saved_on, const mpg_desc *desc,
                                mpg_tensor *tensor) {
  mpg_device *device;
  size_t bytes;
  mpg_storage *storage;
  uint64_t at = r->offset;
  MPG_TRY(choose_device(saved_on, &device));
  MPG_TRY(mpg_shape_check(&desc->shape, desc->dtype, &bytes));
  MPG_TRY(mpg_storage_create(device, bytes, true, &storage));
  *tensor = (mpg_tensor){.storage = storage, .desc = *desc};
  r->offset += bytes;
  if (bytes == 0) return MPG_OK;
  if (device->backend->host_accessible) {
    MPG_TRY(mpg_tensor_wait_write(tensor));
    MPG_TRY(mpg_source_read(r->source, at, mpg_tensor_data(tensor), bytes, "an array"));
    normalize_bools(desc, mpg_tensor_data(tensor), bytes);
    mpg_storage_add_write(storage, 0);
    return MPG_OK;
  }
  void *staging = mpg_malloc(bytes);
  if (!staging) return mpg_out_of_host_memory(bytes);
  mpg_status status = mpg_source_read(r->source, at, staging, bytes, "an array");
  if (status == MPG_OK) {
    normalize_bools(desc, staging, bytes);
    status = mpg_tensor_copy_from_host(tensor, staging);
  }
  mpg_free(staging);
  return status;
}

/* Reads the header of the array at r->offset, checks that the file contains its elements, and skips
 * them. */
static mpg_status take_array(reader *r, found_array *found) {
  *found = (found_array){0};
  MPG_TRY(take_header(r, found));
  if (found->absent) return MPG_OK;
  MPG_TRY(skip_elements(r, &found->desc));
  for (int k = 0; k < mpg_num_indices(found->type); k++)
    MPG_TRY(skip_elements(r, &found->indices[k]));
  return MPG_OK;
}

/* Reads the array at `offset`, with its elements, into a new tensor. */
static mpg_status load_array(reader *r, uint64_t offset, mpg_named_tensor *item) {
  found_array found;
  r->offset = offset;
  MPG_TRY(take_array(r, &found));
  if (found.absent) return MPG_OK;
  r->offset = found.data;
  item->type = found.type;
  item->shape = found.shape;
  MPG_TRY(load_elements(r, found.saved_on, &found.desc, &item->tensor));
  for (int k = 0; k < mpg_num_indices(found.type); k++)
    MPG_TRY(load_elements(r, found.saved_on, &found.indices[k], &item->indices[k]));
  return MPG_OK;
}

/* Parses the whole file except the elements, so that errors are found before any array is created.
 * Reads the names. Keeps only the offset of each array, because the headers of many tiny arrays
 * would take far more memory than the file. */
static mpg_status walk(reader *r, mpg_tensor_list *list, uint64_t **offsets, size_t *capacity) {
  found_array found;
  uint64_t absent = 0;
  uint64_t magic, reserved, count, names;
  MPG_TRY(take(r, &magic, sizeof magic, "the header"));
  if (magic != LIST_MAGIC)
    return mpg_source_fail(
        r->source, 0, "this is not an array file of MXNet: it starts with 0x%llx instead of 0x112",
        (unsigned long long)magic);
  MPG_TRY(take(r, &reserved, sizeof reserved, "the header"));
  MPG_TRY(take_count(r, &count, SMALLEST_ARRAY, "the number of arrays"));
  for (uint64_t i = 0; i < count; i++) {
    MPG_TRY(mpg_grow((void **)offsets, capacity, (size_t)i + 1, sizeof **offsets));
    (*offsets)[i] = r->offset;
    r->array = (size_t)i;
    MPG_TRY(take_array(r, &found));
    absent += found.absent;
    if (absent > MOST_ABSENT)
      return mpg_source_fail(
          r->source, (*offsets)[i],
          "more than %d arrays are missing: it is damaged or was not written by MXNet",
          (int)MOST_ABSENT);
  }
  uint64_t at = r->offset;
  MPG_TRY(take_count(r, &names, SMALLEST_NAME, "the number of names"));
  if (names != 0 && names != count)
    return mpg_source_fail(r->source, at, "the file has %llu names for %llu arrays",
                           (unsigned long long)names, (unsigned long long)count);
  mpg_tensor none = {0};
  MPG_TRY(mpg_grow((void **)&list->items, &list->capacity, (size_t)count, sizeof *list->items));
  for (uint64_t i = 0; i < count; i++) {
    MPG_TRY(mpg_tensor_list_add(list, NULL, 0, &none));
    if (names) MPG_TRY(take_name(r, &list->items[i]));
  }
  list->named = names != 0;
  return MPG_OK;
}

mpg_status mpg_params_read(mpg_source *source, mpg_tensor_list *list) {
  mpg_status status = MPG_OK;
  reader r = {.source = source};
  uint64_t *offsets = NULL;
  size_t capacity = 0;
  *list = (mpg_tensor_list){0};
  MPG_GOTO(walk(&r, list, &offsets, &capacity));
  for (size_t i = 0; i < list->count; i++) {
    r.array = i;
    MPG_GOTO(load_array(&r, offsets[i], &list->items[i]));
  }
  mpg_free(offsets);
  return MPG_OK;
fail:
  mpg_free(offsets);
  mpg_tensor_list_free(list);
  return status;
}

/* --- Writing ---------------------------------------------------------------------------------- */

/* Returns version 3 for arrays of mx.np and for scalars, which version 2 cannot represent, and
 * otherwise version 2. MXNet loads a list only if all arrays have the same version. In NumPy's
 * semantics it loads only version 3. */
static uint32_t choose_version(const mpg_tensor_list *list) {
  if (list->numpy) return VERSION_3;
  for (size_t i = 0; i < list->count; i++)
    if (list->items[i].tensor.desc.shape.ndim == 0) return VERSION_3;
  return VERSION_2;
}

static mpg_status write_shape(mpg_sink *sink, const mpg_shape *shape) {
  MPG_TRY(mpg_sink_write(sink, &shape->ndim, sizeof shape->ndim));
  return mpg_sink_write(sink, shape->dims, (size_t)shape->ndim * sizeof shape->dims[0]);
}

static mpg_status write_dtype(mpg_sink *sink, const mpg_tensor *tensor) {
  int32_t dtype = tensor->desc.dtype;
  return mpg_sink_write(sink, &dtype, sizeof dtype);
}

static mpg_status write_header(mpg_sink *sink, const mpg_named_tensor *item, uint32_t version) {
  const mpg_tensor *tensor = &item->tensor;
  int32_t storage_type = item->type;
  mpg_device_id id = mpg_tensor_device(tensor)->id;
  MPG_TRY(mpg_sink_write(sink, &version, sizeof version));
  MPG_TRY(mpg_sink_write(sink, &storage_type, sizeof storage_type));
  MPG_TRY(write_shape(sink, &tensor->desc.shape));
  if (item->type != MPG_DENSE) MPG_TRY(write_shape(sink, &item->shape));
  MPG_TRY(mpg_sink_write(sink, &id.type, sizeof id.type));
  MPG_TRY(mpg_sink_write(sink, &id.index, sizeof id.index));
  MPG_TRY(write_dtype(sink, tensor));
  for (int k = 0; k < mpg_num_indices(item->type); k++) {
    MPG_TRY(write_dtype(sink, &item->indices[k]));
    MPG_TRY(write_shape(sink, &item->indices[k].desc.shape));
  }
  return MPG_OK;
}

/* Copies the elements to the sink's buffer. They cannot be written directly, because other threads
 * may change the array while the file is written without the host lock. */
static mpg_status write_elements(mpg_sink *sink, const mpg_tensor *tensor) {
  size_t bytes = mpg_tensor_bytes(tensor);
  void *place;
  if (bytes == 0) return MPG_OK;
  MPG_TRY(mpg_sink_extend(sink, bytes, &place));
  return mpg_tensor_copy_to_host(tensor, place);
}

mpg_status mpg_params_write(mpg_sink *sink, const mpg_tensor_list *list) {
  uint64_t header[3] = {LIST_MAGIC, 0, list->count}, names = list->named ? list->count : 0;
  uint32_t version = choose_version(list);
  MPG_TRY(mpg_sink_write(sink, header, sizeof header));
  for (size_t i = 0; i < list->count; i++) {
    const mpg_named_tensor *item = &list->items[i];
    MPG_TRY(write_header(sink, item, version));
    MPG_TRY(write_elements(sink, &item->tensor));
    for (int k = 0; k < mpg_num_indices(item->type); k++)
      MPG_TRY(write_elements(sink, &item->indices[k]));
  }
  MPG_TRY(mpg_sink_write(sink, &names, sizeof names));
  for (size_t i = 0; i < names; i++) {
    uint64_t length = list->items[i].name_length;
    MPG_TRY(mpg_sink_write(sink, &length, sizeof length));
    MPG_TRY(mpg_sink_write(sink, list->items[i].name, list->items[i].name_length));
  }
  return MPG_OK;
}
