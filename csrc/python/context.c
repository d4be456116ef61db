/* Context: the name of a device, and each thread's stack of current contexts. */
#include "device/cpu/file_memory.h"
#include "device/ranks/ranks.h"
#include "python/core.h"

typedef struct context {
  PyObject_HEAD mpg_device_id id;
} context;

enum { CACHED = 32, MAX_DEPTH = 256 };
/* Context objects of cpu(i) and gpu(i); owned; created on first use. */
static PyObject *cached[2][CACHED];

/* Per thread: the contexts of the active with statements, innermost last. */
static _Thread_local struct {
  mpg_device_id stack[MAX_DEPTH];
  int depth;
} current;

mpg_device_id mpg_py_current_device(void) {
  return current.depth ? current.stack[current.depth - 1] : (mpg_device_id){.type = MPG_CPU};
}

PyObject *mpg_py_context(mpg_device_id id) {
  PyObject **place = NULL;
  if ((id.type == MPG_CPU || id.type == MPG_GPU) && id.rank == 0 && id.index >= 0 &&
      id.index < CACHED) {
    place = &cached[id.type - 1][id.index];
    if (*place != NULL) return Py_NewRef(*place);
  }
  context *self = PyObject_New(context, mpg_py->context_type);
  if (self == NULL) return NULL;
  self->id = id;
  if (place != NULL) *place = Py_NewRef((PyObject *)self);
  return (PyObject *)self;
}

/* Sets id->rank to a rank number and checks its range. Counting the ranks for this check
 * initializes MPI if a launcher started the program. */
static int resolve_rank(PyObject *object, mpg_device_id *id) {
  long rank = PyLong_AsLong(object);
  if (rank == -1 && PyErr_Occurred()) return -1;
  PyObject *module = PyImport_ImportModule("mpgluon._internal.ranks");
  PyObject *count = module ? PyObject_CallMethod(module, "count", NULL) : NULL;
  long ranks = count ? PyLong_AsLong(count) : -1;
  Py_XDECREF(module);
  Py_XDECREF(count);
  if (ranks < 0) return -1;
  if (rank < 0 || rank >= ranks) {
    PyErr_Format(mpg_py->errors[MPG_VALUE_ERROR],
                 ranks == 1 ? "rank %ld does not exist: this program is one process, rank 0; start "
                              "it with mpirun -n 2 or more"
                            : "rank %ld does not exist: this program's ranks are numbered 0 to %ld",
                 rank, ranks - 1);
    return -1;
  }
  id->rank = ranks == 1 ? 0 : (int32_t)rank + 1;
  return 0;
}

static int parse_text(const char *text, mpg_device_id *id) {
  const char *end = text;
  if (mpg_device_id_parse(&end, id) && *end == 0) {
    if (id->rank == 0) return 0;
    PyObject *rank = PyLong_FromLong(mpg_device_rank(*id));
    int result = rank ? resolve_rank(rank, id) : -1;
    Py_XDECREF(rank);
    return result;
  }
  PyErr_Format(mpg_py->errors[MPG_KEY_ERROR],
               "unknown context '%s'; expected a context such as cpu(0) or gpu(0)", text);
  return -1;
}

int mpg_py_device_id(PyObject *object, mpg_device_id *id) {
  if (object == NULL || object == Py_None) {
    *id = mpg_py_current_device();
    return 0;
  }
  if (PyObject_TypeCheck(object, mpg_py->context_type)) {
    *id = ((context *)object)->id;
    return 0;
  }
  if (PyUnicode_Check(object)) {
    const char *text = PyUnicode_AsUTF8(object);
    return text ? parse_text(text, id) : -1;
  }
  PyErr_Format(mpg_py->errors[MPG_TYPE_ERROR], "expected a Context such as mx.cpu(0), got %s",
               Py_TYPE(object)->tp_name);
  return -1;
}

static PyObject *context_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
  static char *names[] = {"device_type", "device_id", "rank", NULL};
  PyObject *device_type, *rank = Py_None;
  int index = INT_MIN; /* not given */
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|iO:Context", names, &device_type, &index,
                                   &rank))
    return NULL;
  mpg_device_id id;
  if (PyLong_Check(device_type)) {
    long number = PyLong_AsLong(device_type);
    if (number == -1 && PyErr_Occurred()) return NULL;
    if (number != (int32_t)number || mpg_device_type_name((int32_t)number) == NULL) {
      PyErr_Format(
          mpg_py->errors[MPG_VALUE_ERROR],
          "unknown device type %ld; expected 1 (cpu), 2 (gpu), 3 (cpu_pinned) or 5 (cpu_shared)",
          number);
      return NULL;
    }
    id = (mpg_device_id){.type = (int32_t)number};
  } else {
    if (mpg_py_device_id(device_type, &id) < 0) return NULL;
    if (PyObject_TypeCheck(device_type, mpg_py->context_type)) index = INT_MIN;
  }
  if (index != INT_MIN) id.index = index;
  if (id.index < 0) {
    PyErr_Format(mpg_py->errors[MPG_VALUE_ERROR], "a device index must not be negative, got %d",
                 id.index);
    return NULL;
  }
  if (rank != Py_None && resolve_rank(rank, &id) < 0) return NULL;
  context *self = (context *)type->tp_alloc(type, 0);
  if (self != NULL) self->id = id;
  return (PyObject *)self;
}

static void context_dealloc(PyObject *self) {
  PyTypeObject *type = Py_TYPE(self);
  type->tp_free(self);
  Py_DECREF(type);
}

static PyObject *context_repr(PyObject *self) {
  return PyUnicode_FromString(mpg_device_id_text(((context *)self)->id).text);
}
static Py_hash_t context_hash(PyObject *self) {
  mpg_device_id id = ((context *)self)->id;
  return (Py_hash_t)id.type * 1000003 + (Py_hash_t)id.rank * 10007 + id.index + 7;
}
static PyObject *context_compare(PyObject *a, PyObject *b, int operation) {
  if ((operation != Py_EQ && operation != Py_NE) || !PyObject_TypeCheck(b, mpg_py->context_type))
    Py_RETURN_NOTIMPLEMENTED;
  mpg_device_id x = ((context *)a)->id, y = ((context *)b)->id;
  return PyBool_FromLong(mpg_device_id_equal(x, y) == (operation == Py_EQ));
}
static PyObject *context_enter(PyObject *self, PyObject *Py_UNUSED(unused)) {
  if (current.depth == MAX_DEPTH) {
    PyErr_SetString(PyExc_RecursionError, "at most 256 contexts can be entered at a time");
    return NULL;
  }
  current.stack[current.depth++] = ((context *)self)->id;
  return Py_NewRef(self);
}
static PyObject *context_exit(PyObject *Py_UNUSED(self), PyObject *Py_UNUSED(args)) {
  if (current.depth > 0) current.depth--;
  Py_RETURN_NONE;
}
static PyObject *context_reduce(PyObject *self, PyObject *Py_UNUSED(unused)) {
  mpg_device_id id = ((context *)self)->id;
  const char *type = mpg_device_type_name(id.type);
  return id.rank
             ? Py_BuildValue("O(sii)", mpg_py->context_type, type, id.index, mpg_device_rank(id))
             : Py_BuildValue("O(si)", mpg_py->context_type, type, id.index);
}

static mpg_device *context_device(PyObject *self) {
  mpg_device *device;
  mpg_status status = mpg_device_get(((context *)self)->id, &device);
  if (status == MPG_OK) return device;
  mpg_py_raise(status);
  return NULL;
}
static PyObject *context_empty_cache(PyObject *self, PyObject *Py_UNUSED(unused)) {
  mpg_device *device = context_device(self);
  if (device == NULL) return NULL;
  MPG_PY_TRY(mpg_device_trim(device));
  if (((context *)self)->id.type == MPG_CPU_PINNED) {
    mpg_storage_collect();
    mpg_pinned_trim();
  }
  Py_RETURN_NONE;
}
static PyObject *get_device_type(PyObject *self, void *Py_UNUSED(unused)) {
  int32_t type = ((context *)self)->id.type;
  return PyUnicode_FromString(mpg_device_type_name(type == MPG_CPU_SIDE ? MPG_CPU : type));
}
static PyObject *get_device_typeid(PyObject *self, void *Py_UNUSED(unused)) {
  return PyLong_FromLong(((context *)self)->id.type);
}
static PyObject *get_device_id(PyObject *self, void *Py_UNUSED(unused)) {
  return PyLong_FromLong(((context *)self)->id.index);
}

static PyObject *get_rank(PyObject *self, void *Py_UNUSED(unused)) {
  mpg_device_id id = ((context *)self)->id;
  if (id.rank == 0) Py_RETURN_NONE;
  return PyLong_FromLong(mpg_device_rank(id));
}
static PyObject *get_count_key(PyObject *self, void *Py_UNUSED(unused)) {
  mpg_device_id id = ((context *)self)->id;
  return PyLong_FromLongLong((long long)id.rank << 32 | id.index);
}
static PyObject *get_is_remote(PyObject *self, void *Py_UNUSED(unused)) {
  mpg_device_id id = ((context *)self)->id;
  return PyBool_FromLong(id.rank && mpg_device_rank(id) != mpg_ranks_own());
}

static PyMethodDef context_methods[] = {
    {"__enter__", context_enter, METH_NOARGS, NULL},
    {"__exit__", context_exit, METH_VARARGS, NULL},
    {"__reduce__", context_reduce, METH_NOARGS, NULL},
    {"empty_cache", context_empty_cache, METH_NOARGS,
     "Returns the device's cached memory to the system; waits for work that uses it."},
    {0}};
static PyGetSetDef context_properties[] = {
    {"device_type", get_device_type, NULL, "'cpu', 'gpu', 'cpu_pinned' or 'cpu_shared'.", NULL},
    {"device_typeid", get_device_typeid, NULL,
     "The number of the device type: 1 for cpu, 2 for gpu.", NULL},
    {"device_id", get_device_id, NULL, "The index of the device among those of its type.", NULL},
    {"rank", get_rank, NULL,
     "The rank of the process that owns the device, in programs of several ranks;\nNone for "
     "devices of this process.",
     NULL},
    {"count_key", get_count_key, NULL,
     "The number under which optimizers count the updates of a device: device_id, or a larger "
     "number for\ndevices with a rank.",
     NULL},
    {"is_remote", get_is_remote, NULL, "Whether the device belongs to another process.", NULL},
    {0}};
static PyType_Slot context_slots[] = {
    {Py_tp_doc,
     "Context(device_type, device_id=0, rank=None)\n--\n\nA device, on which arrays live and ops "
     "run. A with-statement makes it the current context of the\nthread, on which arrays are "
     "created by default.\n\nExamples\n--------\n>>> with mx.cpu(1):\n...     x = nd.zeros(2)\n>>> "
     "x.context, x.as_in_context(mx.cpu(0)).context\n(cpu(1), cpu(0))"},
    {Py_tp_new, context_new},
    {Py_tp_dealloc, context_dealloc},
    {Py_tp_repr, context_repr},
    {Py_tp_hash, context_hash},
    {Py_tp_richcompare, context_compare},
    {Py_tp_methods, context_methods},
    {Py_tp_getset, context_properties},
    {0, NULL}};
static PyType_Spec context_spec = {"mpgluon.context.Context", sizeof(context), 0,
                                   Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE, context_slots};

static PyObject *make(int32_t type, PyObject *number, PyObject *rank, const char *name) {
  long index = 0;
  if (number != NULL) {
    index = PyLong_AsLong(number);
    if (index == -1 && PyErr_Occurred()) return NULL;
  }
  if (index < 0 || index > INT32_MAX)
    return PyErr_Format(mpg_py->errors[MPG_VALUE_ERROR],
                        "%s: a device index must not be negative, got %ld", name, index);
  mpg_device_id id = {.type = type, .index = (int32_t)index};
  if (rank != NULL && resolve_rank(rank, &id) < 0) return NULL;
  return mpg_py_context(id);
}
static PyObject *make_named(int32_t type, PyObject *const *args, Py_ssize_t count, PyObject *names,
                            const char *name) {
  PyObject *number = count > 0 ? args[0] : NULL, *rank = NULL;
  Py_ssize_t given = names == NULL ? 0 : PyTuple_GET_SIZE(names);
  if (count > 1)
    return PyErr_Format(PyExc_TypeError, "%s() takes at most one positional argument, device_id",
                        name);
  for (Py_ssize_t i = 0; i < given; i++) {
    PyObject *word = PyTuple_GET_ITEM(names, i);
    bool is_rank = PyUnicode_CompareWithASCIIString(word, "rank") == 0;
    PyObject **place = is_rank ? &rank : &number;
    if ((!is_rank && PyUnicode_CompareWithASCIIString(word, "device_id") != 0) || *place != NULL)
      return PyErr_Format(PyExc_TypeError, "%s() takes only device_id and rank, each at most once",
                          name);
    *place = args[count + i];
  }
  return make(type, number, rank == Py_None ? NULL : rank, name);
}
#define MAKER(function, type)                                                          \
  static PyObject *function(PyObject *module, PyObject *const *args, Py_ssize_t count, \
                            PyObject *names) {                                         \
    (void)module;                                                                      \
    return make_named(type, args, count, names, #function);                            \
  }
MAKER(cpu, MPG_CPU)
MAKER(gpu, MPG_GPU)
MAKER(cpu_pinned, MPG_CPU_PINNED)

static PyObject *current_context(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused)) {
  return mpg_py_context(mpg_py_current_device());
}
static PyObject *num_gpus(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused)) {
  return PyLong_FromLong(mpg_gpu_count(NULL));
}

mpg_device *mpg_py_device(PyObject *object) {
  mpg_device_id id;
  mpg_device *device;
  if (mpg_py_device_id(object, &id) < 0) return NULL;
  mpg_status status = mpg_device_get(id, &device);
  if (status == MPG_OK) return device;
  mpg_py_raise(status);
  return NULL;
}
static PyObject *memory_stats(PyObject *Py_UNUSED(module), PyObject *object) {
  mpg_device *device = mpg_py_device(object);
  if (device == NULL) return NULL;
  mpg_memory_stats stats;
  mpg_pool_stats(device->pool, &stats);
  return Py_BuildValue("{s:n,s:n,s:n,s:n,s:n,s:K,s:K}", "in_use", (Py_ssize_t)stats.in_use,
                       "peak_in_use", (Py_ssize_t)stats.peak_in_use, "held", (Py_ssize_t)stats.held,
                       "peak_held", (Py_ssize_t)stats.peak_held, "limit", (Py_ssize_t)stats.limit,
                       "allocations", (unsigned long long)stats.allocations, "system_allocations",
                       (unsigned long long)stats.system_allocations);
}
static PyObject *open_in_directory(PyObject *Py_UNUSED(module), PyObject *path) {
  PyObject *encoded;
  if (!PyUnicode_FSConverter(path, &encoded)) return NULL;
  mpg_device *device;
  mpg_status status = mpg_device_open_in_directory(PyBytes_AS_STRING(encoded), &device);
  Py_DECREF(encoded);
  if (status != MPG_OK) return mpg_py_raise(status), NULL;
  return mpg_py_context(device->id);
}
static PyObject *pool_block_size(PyObject *Py_UNUSED(module), PyObject *object) {
  size_t size = PyLong_AsSize_t(object);
  if (PyErr_Occurred()) return NULL;
  return PyLong_FromSize_t(mpg_pool_block_size(size));
}
static PyObject *gpu_memory_info(PyObject *Py_UNUSED(module), PyObject *object) {
  mpg_device *device = mpg_py_device(object);
  if (device == NULL) return NULL;
  size_t free_bytes, total;
  mpg_status status = mpg_device_memory(device, &free_bytes, &total);
  if (status != MPG_OK) return mpg_py_raise(status), NULL;
  return Py_BuildValue("(nn)", (Py_ssize_t)free_bytes, (Py_ssize_t)total);
}
static PyObject *set_memory_limit(PyObject *Py_UNUSED(module), PyObject *args) {
  PyObject *object, *limit;
  if (!PyArg_ParseTuple(args, "OO:set_memory_limit", &object, &limit)) return NULL;
  mpg_device *device = mpg_py_device(object);
  if (device == NULL) return NULL;
  Py_ssize_t bytes = 0;
  if (limit != Py_None) {
    /* NULL makes PyNumber_AsSsize_t clip a value outside the range of Py_ssize_t instead of raising
     * OverflowError. */
    bytes = PyIndex_Check(limit) ? PyNumber_AsSsize_t(limit, NULL) : -1;
    if (bytes == -1 && PyErr_Occurred()) return NULL;
    if (bytes < 0)
      return mpg_py_refuse(
          PyIndex_Check(limit) ? MPG_VALUE_ERROR : MPG_TYPE_ERROR, limit,
          "set_memory_limit: the limit must be a number of bytes, or 0 or None for no limit");
  }
  MPG_PY_TRY(mpg_pool_set_limit(device->pool, (size_t)bytes));
  Py_RETURN_NONE;
}
static PyObject *reset_peak_memory(PyObject *Py_UNUSED(module), PyObject *object) {
  mpg_device *device = mpg_py_device(object);
  if (device == NULL) return NULL;
  mpg_pool_reset_peak(device->pool);
  Py_RETURN_NONE;
}
static PyObject *opened_devices(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused)) {
  PyObject *list = PyList_New(0);
  for (int i = 0; list != NULL && i < mpg_device_count(); i++) {
    mpg_device *device = mpg_device_at(i);
    if (device->id.type == MPG_CPU_SIDE) continue;
    PyObject *item =
        Py_BuildValue("(Ni)", mpg_py_context(device->id), atomic_load(&device->num_threads));
    if (item == NULL || PyList_Append(list, item) < 0) Py_CLEAR(list);
    Py_XDECREF(item);
  }
  return list;
}
static PyObject *set_threads(PyObject *Py_UNUSED(module), PyObject *object) {
  long threads = object == Py_None ? 0 : PyLong_AsLong(object);
  if (threads == -1 && PyErr_Occurred()) return NULL;
  if (threads < 0 || threads > 4096)
    return PyErr_Format(
        mpg_py->errors[MPG_VALUE_ERROR],
        "threads per device must be at least 1, or 0 to divide the cores evenly; got %ld", threads);
  MPG_PY_TRY(mpg_device_set_threads((int)threads));
  Py_RETURN_NONE;
}

static PyObject *side_context(PyObject *Py_UNUSED(module), PyObject *ctx) {
  mpg_device_id id;
  mpg_device *device, *side;
  if (mpg_py_device_id(ctx, &id) < 0) return NULL;
  if (id.type == MPG_GPU) id = (mpg_device_id){.type = MPG_CPU};
  MPG_PY_TRY(mpg_device_get(id, &device));
  MPG_PY_TRY(mpg_device_side(device, &side));
  return side != NULL ? mpg_py_context(side->id) : Py_NewRef(ctx);
}

PyMethodDef mpg_py_context_methods[] = {
    {"side_context", side_context, METH_O,
     "side_context(ctx)\n--\n\nA second queue of a CPU device (of CPU 0 if `ctx` is a GPU). It can "
     "run work while `ctx` waits for\nother devices."},
    {"cpu", (PyCFunction)(void (*)(void))cpu, METH_FASTCALL | METH_KEYWORDS,
     "cpu(device_id=0, *, rank=None)\n--\n\nThe CPU device of that index: a worker thread with its "
     "own memory pool. rank: the rank of the process that owns it, equal on all ranks; None for "
     "this process."},
    {"gpu", (PyCFunction)(void (*)(void))gpu, METH_FASTCALL | METH_KEYWORDS,
     "gpu(device_id=0, *, rank=None)\n--\n\nThe GPU of that index, of this process or of the "
     "process `rank`."},
    {"cpu_pinned", (PyCFunction)(void (*)(void))cpu_pinned, METH_FASTCALL | METH_KEYWORDS,
     "cpu_pinned(device_id=0, *, rank=None)\n--\n\nThe page-locked memory of cpu(device_id) if "
     "there is a GPU. Copies between this memory and GPUs run\nconcurrently with the "
     "program.\n\nExamples\n--------\n>>> x = nd.array([1, 2], ctx=mx.cpu_pinned())\n>>> "
     "x.context, (x + 1).context\n(cpu_pinned(0), cpu(0))"},
    {"current_context", current_context, METH_NOARGS,
     "current_context()\n--\n\nThe context on which arrays are created by default."},
    {"num_gpus", num_gpus, METH_NOARGS,
     "num_gpus()\n--\n\nThe number of usable GPUs; 0 without a driver."},
    {"memory_stats", memory_stats, METH_O,
     "memory_stats(ctx)\n--\n\nA dict with the bytes of the device's memory (in_use, peak_in_use, "
     "held, peak_held, and limit, which\nis 0 if unlimited) and the numbers of allocations."},
    {"open_in_directory", open_in_directory, METH_O,
     "open_in_directory(path)\n--\n\nA new CPU device whose memory is in files of a directory."},
    {"set_memory_limit", set_memory_limit, METH_VARARGS,
     "set_memory_limit(ctx, bytes)\n--\n\nSets the maximum memory that the device may hold; 0 or "
     "None removes the limit."},
    {"pool_block_size", pool_block_size, METH_O,
     "pool_block_size(size)\n--\n\nThe bytes of the block that a pool gives to an array of that "
     "size."},
    {"gpu_memory_info", gpu_memory_info, METH_O,
     "gpu_memory_info(ctx)\n--\n\nThe (free, total) bytes of a GPU."},
    {"reset_peak_memory", reset_peak_memory, METH_O,
     "reset_peak_memory(ctx)\n--\n\nResets the peaks of memory_stats."},
    {"set_threads", set_threads, METH_O,
     "set_threads(n)\n--\n\nSets the number of threads of each CPU device; 0 divides the machine's "
     "cores evenly."},
    {"opened_devices", opened_devices, METH_NOARGS,
     "opened_devices()\n--\n\nThe devices used so far, each as (Context, threads)."},
    {0}};

int mpg_py_context_init(PyObject *module) {
  mpg_py->context_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &context_spec, NULL);
  if (mpg_py->context_type == NULL) return -1;
  return PyModule_AddType(module, mpg_py->context_type);
}
