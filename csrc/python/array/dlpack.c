/* DLPack: arrays shared with other libraries without copying. The structs are those of the DLPack
 * specification 1.0. */
#include "autograd/trace.h"
#include "python/core.h"

typedef struct dl_device {
  int32_t type, id;
} dl_device;
typedef struct dl_dtype {
  uint8_t code, bits;
  uint16_t lanes;
} dl_dtype;
typedef struct dl_tensor {
  void *data;
  dl_device device;
  int32_t ndim;
  dl_dtype dtype;
  int64_t *shape, *strides;
  uint64_t byte_offset;
} dl_tensor;
typedef struct dl_managed {
  dl_tensor tensor;
  void *context;
  void (*deleter)(struct dl_managed *self);
} dl_managed;
typedef struct dl_versioned {
  uint32_t major, minor;
  void *context;
  void (*deleter)(struct dl_versioned *self);
  uint64_t flags;
  dl_tensor tensor;
} dl_versioned;

enum {
  DL_CPU = 1,
  DL_CUDA = 2,
  DL_CUDA_HOST = 3,
  DL_INT = 0,
  DL_UINT = 1,
  DL_FLOAT = 2,
  DL_BFLOAT = 4,
  DL_BOOL = 6,
  DL_READ_ONLY = 1
};
static const char plain_name[] = "dltensor", versioned_name[] = "dltensor_versioned";

static const struct {
  mpg_dtype dtype;
  uint8_t code, bits;
} dtypes[] = {
    {MPG_FLOAT32, DL_FLOAT, 32},   {MPG_FLOAT64, DL_FLOAT, 64}, {MPG_FLOAT16, DL_FLOAT, 16},
    {MPG_BFLOAT16, DL_BFLOAT, 16}, {MPG_UINT8, DL_UINT, 8},     {MPG_INT8, DL_INT, 8},
    {MPG_INT32, DL_INT, 32},       {MPG_INT64, DL_INT, 64},     {MPG_BOOL, DL_BOOL, 8}};

/* --- Export ----------------------------------------------------------------------------------- */
typedef struct exported {
  union {
    dl_managed plain;
    dl_versioned versioned;
  };
  mpg_tensor tensor; /* owned reference */
  /* True if the consumer's work is on the default stream. Otherwise the stream is unknown, and a
   * release must wait for all work on the GPU. */
  bool on_default;
  int64_t shape[MPG_MAX_NDIM], strides[MPG_MAX_NDIM];
} exported;

#if PY_VERSION_HEX >= 0x030d0000
static bool finalizing(void) { return Py_IsFinalizing(); }
#else
static bool finalizing(void) { return _Py_IsFinalizing(); }
#endif

static void let_go(exported *self) {
  mpg_tensor_release(&self->tensor);
  PyMem_RawFree(self);
}

/* Reports that the memory is leaked, because it is unknown when the consumer's work is done. Passes
 * the error to sys.unraisablehook instead of raising it, because consumers call this from
 * destructors. */
static void report_kept(const exported *self, mpg_status status) {
  PyObject *type, *value, *traceback;
  PyErr_Fetch(&type, &value, &traceback);
  mpg_fail_prefix(
      status,
      "DLPack: %zu bytes on %s stay allocated, because the end of the work on them is unknown",
      mpg_tensor_bytes(&self->tensor), mpg_device_text(mpg_tensor_device(&self->tensor)));
  mpg_py_raise(status);
  PyErr_WriteUnraisable(NULL);
  PyErr_Restore(type, value, traceback);
}

static void release(exported *self) {
  if (!Py_IsInitialized()) return; /* the process is ending, which frees the memory */
  /* While Python is finalizing, it does not give the GIL to other threads, so this thread would be
   * terminated if it waited for the GIL. */
  if (finalizing() && !PyGILState_Check()) return;
  mpg_device *device = mpg_tensor_device(&self->tensor);
  const mpg_sharing *sharing = device->backend->sharing;
  /* The consumer's work may still use the memory, so its reuse must wait for that work. */
  mpg_status status =
      sharing ? (self->on_default ? sharing->follow_default : sharing->settle)(device) : MPG_OK;
  PyGILState_STATE state = PyGILState_Ensure(); /* consumers may release the tensor in any thread */
  if (status == MPG_OK)
    let_go(self);
  else
    report_kept(self, status);
  PyGILState_Release(state);
}
static void delete_plain(dl_managed *managed) { release(managed->context); }
static void delete_versioned(dl_versioned *managed) { release(managed->context); }
static void capsule_plain(PyObject *capsule) {
  if (!PyCapsule_IsValid(capsule, plain_name)) return; /* a consumer took the tensor */
  dl_managed *managed = PyCapsule_GetPointer(capsule, plain_name);
  if (managed != NULL && managed->deleter != NULL) managed->deleter(managed);
}
static void capsule_versioned(PyObject *capsule) {
  if (!PyCapsule_IsValid(capsule, versioned_name)) return;
  dl_versioned *managed = PyCapsule_GetPointer(capsule, versioned_name);
  if (managed != NULL && managed->deleter != NULL) managed->deleter(managed);
}

static dl_device device_of(mpg_device *device) {
  const mpg_sharing *sharing = device->backend->sharing;
  return sharing ? (dl_device){DL_CUDA, sharing->card(device)} : (dl_device){DL_CPU, 0};
}

/* Returns a DLPack capsule that holds the array. All queued work on the array is complete on
 * return, so the consumer may use any stream. */
static PyObject *export(PyObject *self, bool write, bool versioned, bool on_default) {
  mpg_array *array = mpg_py_array_of(self);
  if (mpg_py_expect_readable(array, "DLPack") < 0) return NULL;
  exported *out = PyMem_RawCalloc(1, sizeof *out);
  if (out == NULL) return PyErr_NoMemory();
  /* Retained, because the array may get another tensor during the wait. */
  out->tensor = array->tensor;
  mpg_tensor_retain(&out->tensor);
  mpg_status status =
      write ? mpg_tensor_wait_write(&out->tensor) : mpg_tensor_wait_read(&out->tensor);
  mpg_device *device = mpg_tensor_device(&out->tensor);
  if (status == MPG_OK && device->backend->sharing)
    status = device->backend->sharing->arrived(device);
  if (status != MPG_OK) {
    mpg_tensor_release(&out->tensor);
    PyMem_RawFree(out);
    return mpg_py_raise(status);
  }
  const mpg_desc *desc = &out->tensor.desc;
  dl_tensor tensor = {.data = mpg_tensor_data(&out->tensor),
                      .device = device_of(device),
                      .ndim = desc->shape.ndim,
                      .shape = out->shape,
                      .strides = out->strides};
  for (size_t i = 0; i < sizeof dtypes / sizeof dtypes[0]; i++)
    if (dtypes[i].dtype == desc->dtype)
      tensor.dtype = (dl_dtype){dtypes[i].code, dtypes[i].bits, 1};
  out->on_default = on_default;
  int64_t stride = 1;
  for (int i = desc->shape.ndim - 1; i >= 0; i--) {
    out->shape[i] = desc->shape.dims[i];
    out->strides[i] = stride;
    stride *= desc->shape.dims[i] ? desc->shape.dims[i] : 1;
  }
  PyObject *capsule;
  if (versioned) {
    out->versioned = (dl_versioned){
        .major = 1, .minor = 0, .context = out, .deleter = delete_versioned, .tensor = tensor};
    capsule = PyCapsule_New(&out->versioned, versioned_name, capsule_versioned);
  } else {
    out->plain = (dl_managed){.tensor = tensor, .context = out, .deleter = delete_plain};
    capsule = PyCapsule_New(&out->plain, plain_name, capsule_plain);
  }
  if (capsule == NULL) {
    mpg_tensor_release(&out->tensor);
    PyMem_RawFree(out);
    return NULL;
  }
  mpg_storage_expose(out->tensor.storage);
  return capsule;
}

/* Returns the array's device, which is opened if necessary. Returns NULL with an exception set on
 * failure. */
static mpg_device *own_device(PyObject *self) {
  mpg_device *device;
  mpg_status status = mpg_device_get(mpg_array_device_id(mpg_py_array_of(self)), &device);
  if (status == MPG_OK) return device;
  mpg_py_raise(status);
  return NULL;
}

/* True if `stream` is 1, the number of the legacy default stream in CUDA and DLPack. */
static bool is_legacy(PyObject *stream) {
  const long legacy = 1;
  bool is = PyLong_Check(stream) && PyLong_AsLong(stream) == legacy;
  if (PyErr_Occurred()) PyErr_Clear(); /* a handle too large for a long is not the default stream */
  return is;
}

PyObject *mpg_py_dlpack(PyObject *self, PyObject *args, PyObject *kwargs) {
  static char *names[] = {"stream", "max_version", "dl_device", "copy", NULL};
  PyObject *stream = Py_None, *version = Py_None, *device = Py_None, *copy = Py_None;
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|$OOOO:__dlpack__", names, &stream, &version,
                                   &device, &copy))
    return NULL;
  long major = 0;
  if (version != Py_None) {
    if (!PyTuple_Check(version) || PyTuple_GET_SIZE(version) != 2)
      return PyErr_Format(PyExc_TypeError, "max_version must be a tuple (major, minor)");
    major = PyLong_AsLong(PyTuple_GET_ITEM(version, 0));
    if (major == -1 && PyErr_Occurred()) return NULL;
  }
  if (device != Py_None) {
    mpg_device *its = own_device(self);
    if (its == NULL) return NULL;
    dl_device own = device_of(its);
    int type, id;
    if (!PyTuple_Check(device))
      return PyErr_Format(PyExc_TypeError, "dl_device must be a tuple (device type, device id)");
    if (!PyArg_ParseTuple(device, "ii;dl_device must be a tuple (device type, device id)", &type,
                          &id))
      return NULL;
    if (type != own.type || id != own.id) {
      PyErr_SetString(PyExc_BufferError,
                      "DLPack: the array is on another device; move it with as_in_context first");
      return NULL;
    }
  }
  bool on_default = stream == Py_None || is_legacy(stream);
  int copied = copy == Py_None ? 0 : PyObject_IsTrue(copy);
  if (copied < 0) return NULL;
  PyObject *source = copied
                         ? mpg_py_to_device(self, mpg_array_device_id(mpg_py_array_of(self)), true)
                         : Py_NewRef(self);
  if (source == NULL) return NULL;
  PyObject *capsule = export(source, false, major >= 1, on_default);
  Py_DECREF(source);
  return capsule;
}
PyObject *mpg_py_dlpack_device(PyObject *self, PyObject *Py_UNUSED(unused)) {
  mpg_device *own = own_device(self);
  if (own == NULL) return NULL;
  dl_device device = device_of(own);
  return Py_BuildValue("(ii)", device.type, device.id);
}
static PyObject *for_read(PyObject *Py_UNUSED(module), PyObject *object) {
  return mpg_py_expect_array(object, "to_dlpack_for_read") ? export(object, false, false, false)
                                                           : NULL;
}
static PyObject *for_write(PyObject *Py_UNUSED(module), PyObject *object) {
  return mpg_py_expect_array(object, "to_dlpack_for_write") ? export(object, true, false, false)
                                                            : NULL;
}
static PyObject *for_write_on(PyObject *Py_UNUSED(module), PyObject *args) {
  PyObject *object, *stream;
  if (!PyArg_ParseTuple(args, "OO:to_dlpack_for_write_on", &object, &stream)) return NULL;
  return mpg_py_expect_array(object, "to_dlpack_for_write_on")
             ? export(object, true, false, is_legacy(stream))
             : NULL;
}

/* --- Import ----------------------------------------------------------------------------------- */
static void release_plain(void *owner) {
  dl_managed *managed = owner;
  if (managed->deleter != NULL) managed->deleter(managed);
}
static void release_versioned(void *owner) {
  dl_versioned *managed = owner;
  if (managed->deleter != NULL) managed->deleter(managed);
}

static int refuse(const char *why) {
  PyErr_Format(mpg_py->errors[MPG_VALUE_ERROR], "from_dlpack: %s", why);
  return -1;
}

/* Copies the elements of a strided tensor on the host to new memory in row-major order. Returns
 * NULL if memory is exhausted. */
static void *gather(const dl_tensor *source, const mpg_desc *desc, size_t bytes) {
  char *target = PyMem_RawMalloc(bytes);
  if (target == NULL) return NULL;
  const char *first = (const char *)source->data + source->byte_offset;
  const size_t size = mpg_dtype_size(desc->dtype);
  int64_t index[MPG_MAX_NDIM] = {0};
  for (size_t done = 0; done < bytes; done += size) {
    int64_t offset = 0;
    for (int i = 0; i < source->ndim; i++) offset += index[i] * source->strides[i];
    memcpy(target + done, first + offset * (int64_t)size, size);
    for (int i = source->ndim - 1; i >= 0 && ++index[i] == source->shape[i]; i--) index[i] = 0;
  }
  return target;
}

/* A non-contiguous tensor on a GPU, as a view of the memory from its lowest to its highest element.
 * `first` is the index of the tensor's first element in that memory. */
typedef struct strided {
  mpg_shape shape, strides; /* ndim is 0 if the tensor is contiguous or not on a GPU */
  int64_t first;
} strided;

/* Fills in `s` and sets *memory to the 1-d shape of the memory that the tensor spans. Returns -1
 * with an exception set on failure. */
static int note_strides(const dl_tensor *source, strided *s, mpg_shape *memory) {
  int64_t low = 0, high = 0;
  s->shape.ndim = s->strides.ndim = source->ndim;
  for (int i = 0; i < source->ndim; i++) {
    int64_t away, *end = source->strides[i] < 0 ? &low : &high;
    s->shape.dims[i] = source->shape[i], s->strides.dims[i] = source->strides[i];
    if (__builtin_mul_overflow(source->shape[i] - 1, source->strides[i], &away) ||
        __builtin_add_overflow(*end, away, end))
      return refuse("the tensor's strides are too large");
  }
  *memory = (mpg_shape){.ndim = 1};
  if (__builtin_sub_overflow(high, low, &memory->dims[0]) || memory->dims[0] == INT64_MAX)
    return refuse("the tensor's strides are too large");
  memory->dims[0]++;
  s->first = -low;
  return 0;
}

/* Returns a contiguous copy of the tensor on its device. The copy is complete on return, so the
 * producer may write to its tensor. Takes ownership of `memory`. */
static PyObject *copy_strided(PyObject *memory, const strided *s) {
  PyObject *shape = mpg_py_shape_tuple(&s->shape),
           *strides = shape ? mpg_py_shape_tuple(&s->strides) : NULL,
           *module = strides ? PyImport_ImportModule("mpgluon.ndarray._strided") : NULL,
           *copy = NULL;
  mpg_trace *former = mpg_trace_swap(NULL); /* keeps the copy out of a block that is being traced */
  if (module)
    copy =
        PyObject_CallMethod(module, "copied", "OOOL", memory, shape, strides, (long long)s->first);
  mpg_trace_swap(former);
  Py_DECREF(memory);
  Py_XDECREF(shape);
  Py_XDECREF(strides);
  Py_XDECREF(module);
  return copy;
}

/* Wraps the producer's memory in a tensor, whose storage calls release_owner(owner) when it is
 * freed. A non-contiguous tensor on a CPU is copied. For a non-contiguous tensor on a GPU, wraps
 * the whole memory that the tensor spans and sets *s to the tensor's view of that memory. On
 * failure, returns -1 and leaves `owner` to the caller. */
static int import(const dl_tensor *source, void (*release_owner)(void *), void *owner,
                  mpg_tensor *tensor, strided *s) {
  mpg_device_id id = {.type = MPG_CPU};
  if (source->device.type == DL_CUDA)
    id = (mpg_device_id){.type = MPG_GPU, .index = source->device.id};
  else if (source->device.type != DL_CPU && source->device.type != DL_CUDA_HOST)
    return refuse("the tensor is on a device of an unknown type");
  if (source->ndim < 0 || source->ndim > MPG_MAX_NDIM)
    return refuse("the tensor has too many dimensions");
  mpg_desc desc = {.shape.ndim = source->ndim, .dtype = MPG_DTYPE_NONE};
  for (size_t i = 0; i < sizeof dtypes / sizeof dtypes[0]; i++)
    if (dtypes[i].code == source->dtype.code && dtypes[i].bits == source->dtype.bits &&
        source->dtype.lanes == 1)
      desc.dtype = dtypes[i].dtype;
  if (desc.dtype == MPG_DTYPE_NONE)
    return refuse("the tensor's dtype is not supported by NDArrays");
  for (int i = 0; i < source->ndim; i++) desc.shape.dims[i] = source->shape[i];
  size_t bytes;
  MPG_PY_TRY_INT(mpg_shape_check(&desc.shape, desc.dtype, &bytes));
  bool contiguous = true;
  int64_t stride = 1;
  for (int i = source->ndim - 1; i >= 0 && source->strides != NULL && bytes > 0; i--) {
    if (source->shape[i] != 1 && source->strides[i] != stride) contiguous = false;
    stride *= source->shape[i];
  }
  char *data = bytes > 0 ? (char *)source->data + source->byte_offset : NULL;
  if (!contiguous && source->device.type == DL_CUDA) {
    if (note_strides(source, s, &desc.shape) < 0) return -1;
    MPG_PY_TRY_INT(mpg_shape_check(&desc.shape, desc.dtype, &bytes));
    data -= s->first * (int64_t)mpg_dtype_size(desc.dtype);
    contiguous = true;
  }
  if (bytes > 0 && (uintptr_t)data % mpg_dtype_size(desc.dtype) != 0)
    return refuse("the tensor's memory is not aligned to its elements");
  mpg_device *device;
  MPG_PY_TRY_INT(mpg_device_get(id, &device));
  if (contiguous) {
    MPG_PY_TRY_INT(mpg_tensor_wrap(device, data, &desc, release_owner, owner, tensor));
    return 0;
  }
  void *copy = gather(source, &desc, bytes);
  if (copy == NULL) {
    PyErr_NoMemory();
    return -1;
  }
  mpg_status status = mpg_tensor_wrap(device, copy, &desc, PyMem_RawFree, copy, tensor);
  if (status != MPG_OK) {
    PyMem_RawFree(copy);
    mpg_py_raise(status);
    return -1;
  }
  release_owner(owner);
  return 0;
}

/* Imports a tensor that this package itself has exported. The new array shares the storage of the
 * original, so that work on the two arrays is ordered. */
static int take_back(exported *own, mpg_tensor *tensor) {
  *tensor = own->tensor;
  mpg_tensor_retain(tensor);
  let_go(own);
  return 0;
}

/* Makes later work on the array run after the producer's work. If `ordered`, the producer has
 * ordered its work on the stream that it was given; otherwise waits for all work on the GPU. */
static mpg_status receive(const mpg_array *array, bool ordered) {
  mpg_device *device = mpg_tensor_device(&array->tensor);
  const mpg_sharing *sharing = device->backend->sharing;
  return sharing ? (ordered ? sharing->received : sharing->settle)(device) : MPG_OK;
}

static PyObject *from_capsule(PyObject *capsule, bool ordered) {
  mpg_array array = {0};
  strided s = {0};
  bool versioned = PyCapsule_IsValid(capsule, versioned_name);
  if (!versioned && !PyCapsule_IsValid(capsule, plain_name)) {
    refuse("the capsule holds no tensor, or was already consumed");
    return NULL;
  }
  const char *name = versioned ? versioned_name : plain_name;
  void *managed = PyCapsule_GetPointer(capsule, name);
  dl_versioned *later = versioned ? managed : NULL;
  dl_managed *plain = versioned ? NULL : managed;
  if (versioned && later->major > 1) {
    refuse("the capsule has a newer, incompatible DLPack version");
    return NULL;
  }
  if (versioned && later->flags & DL_READ_ONLY) {
    refuse("the tensor is read-only, but an NDArray is writable; copy it with nd.array");
    return NULL;
  }
  /* Renames the capsule, so that its destructor no longer releases the tensor. */
  if (PyCapsule_SetName(capsule, versioned ? "used_dltensor_versioned" : "used_dltensor") < 0)
    return NULL;
  int failed;
  if (versioned)
    failed = later->deleter == delete_versioned
                 ? take_back(later->context, &array.tensor)
                 : import(&later->tensor, release_versioned, later, &array.tensor, &s);
  else
    failed = plain->deleter == delete_plain
                 ? take_back(plain->context, &array.tensor)
                 : import(&plain->tensor, release_plain, plain, &array.tensor, &s);
  if (failed) {
    PyCapsule_SetName(capsule, name);
    return NULL;
  }
  mpg_status status = receive(&array, ordered);
  if (status != MPG_OK) {
    mpg_tensor_release(&array.tensor);
    return mpg_py_raise(status);
  }
  PyObject *taken = mpg_py_array_take(&array);
  return taken && s.shape.ndim ? copy_strided(taken, &s) : taken;
}

/* Returns the stream that a producer on a GPU must synchronize with, as a Python integer. Returns
 * None if the producer is on the host or does not report a device. Returns NULL with an exception
 * set on failure. */
static PyObject *stream_for(PyObject *producer) {
  int type, card;
  PyObject *where = PyObject_CallMethod(producer, "__dlpack_device__", NULL);
  if (where == NULL) {
    PyErr_Clear(); /* not a DLPack producer */
    Py_RETURN_NONE;
  }
  bool told = PyTuple_Check(where) && PyArg_ParseTuple(where, "ii", &type, &card);
  Py_DECREF(where);
  if (!told) {
    PyErr_Clear();
    Py_RETURN_NONE;
  }
  mpg_device *device;
  if (type != DL_CUDA) Py_RETURN_NONE;
  MPG_PY_TRY(mpg_device_get((mpg_device_id){.type = MPG_GPU, .index = card}, &device));
  return PyLong_FromVoidPtr(device->backend->sharing->stream(device));
}

static PyObject *from_dlpack(PyObject *Py_UNUSED(module), PyObject *object) {
  if (PyCapsule_CheckExact(object)) return from_capsule(object, false);
  PyObject *method = PyObject_GetAttrString(object, "__dlpack__");
  if (method == NULL) {
    PyErr_Format(mpg_py->errors[MPG_TYPE_ERROR], "from_dlpack: %s has no method __dlpack__",
                 Py_TYPE(object)->tp_name);
    return NULL;
  }
  PyObject *stream = stream_for(object), *none = PyTuple_New(0), *capsule = NULL;
  bool ordered = stream != NULL && stream != Py_None;
  PyObject *how = stream == NULL ? NULL
                  : ordered ? Py_BuildValue("{s:(ii)s:O}", "max_version", 1, 0, "stream", stream)
                            : Py_BuildValue("{s:(ii)}", "max_version", 1, 0);
  if (how && none) capsule = PyObject_Call(method, none, how);
  /* Producers for DLPack before 1.0 raise TypeError for max_version. */
  if (how && capsule == NULL && PyErr_ExceptionMatches(PyExc_TypeError)) {
    PyErr_Clear();
    if (PyDict_DelItemString(how, "max_version") == 0) capsule = PyObject_Call(method, none, how);
  }
  Py_XDECREF(how);
  Py_XDECREF(none);
  Py_XDECREF(stream);
  Py_DECREF(method);
  if (capsule == NULL) return NULL;
  PyObject *result = NULL;
  if (PyCapsule_CheckExact(capsule))
    result = from_capsule(capsule, ordered);
  else
    refuse("__dlpack__ must return a capsule");
  Py_DECREF(capsule);
  return result;
}

PyMethodDef mpg_py_dlpack_methods[] = {
    {"to_dlpack_for_read", for_read, METH_O,
     "to_dlpack_for_read(data)\n--\n\nA DLPack capsule sharing the array's memory, after its "
     "writes are done.\n\nExamples\n--------\n"
     ">>> x = nd.from_dlpack(nd.to_dlpack_for_read(nd.array([1, 2])))\n"
     ">>> x.asnumpy()\n"
     "array([1., 2.], dtype=float32)"},
    {"to_dlpack_for_write", for_write, METH_O,
     "to_dlpack_for_write(data)\n--\n\nA DLPack capsule sharing the array's memory, after its "
     "reads and writes are done.\n\nExamples\n--------\n"
     ">>> x = nd.array([1, 2])\n"
     ">>> y = nd.from_dlpack(nd.to_dlpack_for_write(x))\n"
     ">>> y[:] = 7\n"
     ">>> x.asnumpy()\n"
     "array([7., 7.], dtype=float32)"},
    {"to_dlpack_for_write_on", for_write_on, METH_VARARGS,
     "to_dlpack_for_write_on(data, stream)\n--\n\nLike to_dlpack_for_write, for a consumer that "
     "uses the CUDA stream `stream`; 1 is the default\nstream."},
    {"from_dlpack", from_dlpack, METH_O,
     "from_dlpack(dlpack)\n--\n\nAn NDArray sharing the memory of a DLPack capsule, or of an "
     "object with __dlpack__; for a tensor that is not contiguous (such as a transposed one) a "
     "copy on its device, which is complete when this returns.\nRaises ValueError if the tensor is "
     "read-only, has an unsupported dtype, or too large strides. An array of this package becomes "
     "one that shares its storage.\n\nExamples\n--------\n>>> values = np.array([1, 2])\n>>> x = "
     "nd.from_dlpack(values)\n>>> values[0] = 7\n>>> x.asnumpy()\narray([7, 2])"},
    {0}};
