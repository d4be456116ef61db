/* Process-wide settings and queries: execution mode, random seed, waiting for all work, build
 * features.
 */
#include "base/host.h"
#include "base/library.h"
#include "base/memory.h"
#include "kernels/cpu/dispatch.h"
#include "python/core.h"

static PyObject *waitall(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused)) {
  MPG_PY_TRY(mpg_wait_all());
  Py_RETURN_NONE;
}

static PyObject *random_seed(PyObject *Py_UNUSED(module), PyObject *seed) {
  PyObject *index = PyNumber_Index(seed);
  if (index == NULL) return NULL;
  unsigned long long number = PyLong_AsUnsignedLongLongMask(index);
  Py_DECREF(index);
  if (number == (unsigned long long)-1 && PyErr_Occurred()) return NULL;
  mpg_random_seed(number);
  Py_RETURN_NONE;
}
static PyObject *random_state(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused)) {
  mpg_random_key key = mpg_random_state();
  return Py_BuildValue("(KK)", (unsigned long long)key.seed, (unsigned long long)key.call);
}
static PyObject *random_restore(PyObject *module, PyObject *state) {
  unsigned long long seed, call;
  PyObject *items = PySequence_Tuple(state);
  int parsed = items != NULL && PyArg_ParseTuple(items, "KK:random_restore", &seed, &call);
  Py_XDECREF(items);
  PyObject *former = parsed ? random_state(module, NULL) : NULL;
  if (former != NULL) mpg_random_restore((mpg_random_key){.seed = seed, .call = call});
  return former;
}

static const char *const modes[] = {
    [MPG_ENGINE_ASYNC] = "async", [MPG_ENGINE_SYNC] = "sync", [MPG_ENGINE_SHUFFLE] = "shuffle"};

static PyObject *set_engine_mode(PyObject *Py_UNUSED(module), PyObject *args, PyObject *kwargs) {
  static char *names[] = {"mode", "seed", NULL};
  const char *mode;
  unsigned long long seed = 0;
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "s|K:set_mode", names, &mode, &seed)) return NULL;
  for (int i = 0; i < 3; i++)
    if (strcmp(mode, modes[i]) == 0) {
      MPG_PY_TRY(mpg_engine_set_mode((mpg_engine_mode)i, seed));
      Py_RETURN_NONE;
    }
  return PyErr_Format(mpg_py->errors[MPG_VALUE_ERROR],
                      "the engine's mode must be 'async', 'sync' or 'shuffle', got '%s'", mode);
}
static PyObject *run_ready(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused)) {
  Py_BEGIN_ALLOW_THREADS;
  mpg_engine_run_ready();
  Py_END_ALLOW_THREADS;
  Py_RETURN_NONE;
}

static PyObject *engine_mode(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused)) {
  return PyUnicode_FromString(modes[mpg_engine_get_mode()]);
}

static PyObject *build_info(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused)) {
#ifdef MPG_WITH_ONEDNN
  int onednn = 1;
#else
  int onednn = 0;
#endif
#ifdef MPG_DEBUG
  int debug = 1;
#else
  int debug = 0;
#endif
  return Py_BuildValue("{s:O,s:O,s:s,s:i,s:i}", "onednn_headers", onednn ? Py_True : Py_False,
                       "debug", debug ? Py_True : Py_False, "isa", mpg_cpu_isa_name(), "cores",
                       mpg_machine_cores(), "ops", (int)MPG_OP_COUNT);
}

static PyObject *set_library_folders(PyObject *Py_UNUSED(module), PyObject *folders) {
  PyObject *items = mpg_py_items(folders, "expected a list of folders");
  if (items == NULL) return NULL;
  const char *texts[32];
  int count = 0;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(items) && count < 32; i++)
    if ((texts[count++] = PyUnicode_AsUTF8(PyTuple_GET_ITEM(items, i))) == NULL) {
      Py_DECREF(items);
      return NULL;
    }
  mpg_status status = mpg_library_set_folders(texts, count);
  Py_DECREF(items);
  if (status != MPG_OK) return mpg_py_raise(status);
  Py_RETURN_NONE;
}

static PyObject *library_dict(const mpg_library *library) {
  return Py_BuildValue("{s:s,s:O,s:s,s:s,s:s,s:s}", "name", library->name, "found",
                       library->handle ? Py_True : Py_False, "version", library->version, "path",
                       library->path, "reason", library->reason, "setting", library->setting);
}

static PyObject *libraries(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused)) {
  PyObject *list = PyList_New(MPG_LIBRARY_COUNT);
  for (int i = 0; list != NULL && i < MPG_LIBRARY_COUNT; i++) {
    PyObject *item = library_dict(mpg_library_get((mpg_library_id)i));
    if (item == NULL)
      Py_CLEAR(list);
    else
      PyList_SET_ITEM(list, i, item);
  }
  return list;
}

static PyObject *gpu_libraries(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused)) {
  PyObject *list = PyList_New(0);
  const mpg_library *library;
  for (int i = 0; list != NULL && (library = mpg_gpu_vendor_library(i)) != NULL; i++) {
    PyObject *item = library_dict(library);
    if (item == NULL || PyList_Append(list, item) < 0) Py_CLEAR(list);
    Py_XDECREF(item);
  }
  return list;
}

static PyObject *gpu_reason(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused)) {
  const char *reason;
  if (mpg_gpu_count(&reason)) Py_RETURN_NONE;
  return PyUnicode_FromString(reason);
}

static PyObject *memory_fail_after(PyObject *Py_UNUSED(module), PyObject *args) {
  long long n, count = 1;
  if (!PyArg_ParseTuple(args, "L|L:_memory_fail_after", &n, &count)) return NULL;
  return PyBool_FromLong(mpg_memory_fail_after(n, count));
}

static PyObject *memory_free_kept(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused)) {
  mpg_space_free_kept();
  Py_RETURN_NONE;
}

static PyObject *memory_until_failure(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused)) {
  return PyLong_FromLongLong(mpg_memory_until_failure());
}

/* Returns a tuple (name, source line, block path, stage or None, micro-batch or None) that
 * describes queued work. Returns None if `work` is NULL. */
static PyObject *work_tuple(const mpg_submitted *work) {
  if (work == NULL) Py_RETURN_NONE;
  char line[512] = "";
  mpg_host_origin_text(work->origin, line, sizeof line);
  PyObject *stage = work->stage ? PyLong_FromUnsignedLong(work->stage - 1) : Py_NewRef(Py_None);
  PyObject *micro_batch =
      work->stage ? PyLong_FromUnsignedLong(work->micro_batch - 1) : Py_NewRef(Py_None);
  return Py_BuildValue("(sssNN)", work->name, line, mpg_scope_text(work->scope), stage,
                       micro_batch);
}

static PyObject *engine_queue_status(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused)) {
  PyObject *list = PyList_New(0);
  for (int i = 0; list != NULL && i < mpg_device_count(); i++) {
    const mpg_device *device = mpg_device_at(i);
    mpg_queue_status s = mpg_device_queue_status(device);
    PyObject *item =
        Py_BuildValue("(sKKNzszKN)", mpg_device_text(device), (unsigned long long)s.completed,
                      (unsigned long long)s.submitted, work_tuple(s.work), s.op,
                      mpg_scope_text(s.scope), s.peer ? mpg_device_text(s.peer) : NULL,
                      (unsigned long long)s.tick, work_tuple(s.peer_work));
    if (item == NULL || PyList_Append(list, item) < 0) Py_CLEAR(list);
    Py_XDECREF(item);
  }
  return list;
}

static PyObject *stall(PyObject *Py_UNUSED(module), PyObject *args) {
  PyObject *ctx;
  double seconds;
  mpg_device_id id;
  int until = -1;
  if (!PyArg_ParseTuple(args, "Od|i:_stall", &ctx, &seconds, &until) ||
      mpg_py_device_id(ctx, &id) < 0)
    return NULL;
  mpg_device *device;
  MPG_PY_TRY(mpg_device_get(id, &device));
  MPG_PY_TRY(mpg_device_stall(device, (int32_t)(seconds * 1e3), until));
  Py_RETURN_NONE;
}

static PyObject *handed_over(PyObject *Py_UNUSED(module), PyObject *ctx) {
  mpg_device_id id;
  mpg_device *device;
  if (mpg_py_device_id(ctx, &id) < 0) return NULL;
  MPG_PY_TRY(mpg_device_get(id, &device));
  const mpg_submitted *latest = mpg_device_latest(device);
  if (latest == NULL || !latest->queued_ns) Py_RETURN_NONE;
  return PyFloat_FromDouble((double)latest->queued_ns * 1e-9);
}

static PyObject *collect_memory(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused)) {
  mpg_host_collect();
  Py_RETURN_NONE;
}

PyMethodDef mpg_py_runtime_methods[] = {
    {"engine_queue_status", engine_queue_status, METH_NOARGS,
     "engine_queue_status()\n--\n\nFor each device a tuple (name, ticks completed, ticks "
     "submitted, current work, current op, the op's\nblock path, the device it waits for or None, "
     "the tick it waits for, the work of that tick). Work is\n(name, line, block path, stage, "
     "micro-batch) or None."},
    {"handed_over", handed_over, METH_O,
     "handed_over(ctx)\n--\n\nThe time (as time.perf_counter) at which the latest queued work "
     "became visible to the worker of a\ndevice; None if the profiler was off."},
    {"_stall", stall, METH_VARARGS,
     "_stall(ctx, seconds, until=-1)\n--\n\nQueues work that blocks the device for that time, or "
     "until a file descriptor can be read; for tests."},
    {"waitall", waitall, METH_NOARGS,
     "waitall()\n--\n\nWaits for all queued work on all devices. Raises the first failure that was "
     "not raised before.\n\nExamples\n--------\n>>> x = nd.ones((2, 3)) * 2  # queued\n>>> "
     "nd.waitall()              # done"},
    {"random_seed", random_seed, METH_O,
     "random_seed(seed)\n--\n\nSets the seed of all random ops and resets their count."},
    {"random_state", random_state, METH_NOARGS,
     "random_state()\n--\n\nThe (seed, number of random calls so far)."},
    {"random_restore", random_restore, METH_O,
     "random_restore(state)\n--\n\nRestores a state from random_state. Returns the previous one."},
    {"set_engine_mode", (PyCFunction)(void (*)(void))set_engine_mode, METH_VARARGS | METH_KEYWORDS,
     "set_engine_mode(mode, seed=0)\n--\n\nSets how work runs. 'async': ops are queued; 'sync': "
     "each op has run, or failed, when its call\nreturns; 'shuffle' (for tests): work runs late "
     "and in a random order that respects dependencies."},
    {"run_ready", run_ready, METH_NOARGS,
     "run_ready()\n--\n\nRuns the tasks that the engine mode 'shuffle' holds back until a thread "
     "waits."},
    {"engine_mode", engine_mode, METH_NOARGS, "engine_mode()\n--\n\nThe current mode."},
    {"build_info", build_info, METH_NOARGS, "build_info()\n--\n\nThe build settings, as a dict."},
    {"set_library_folders", set_library_folders, METH_O,
     "set_library_folders(folders)\n--\n\nSets the folders in which oneDNN and OpenBLAS are "
     "searched. Must be called before the first op that\nuses them."},
    {"libraries", libraries, METH_NOARGS,
     "libraries()\n--\n\nThe optional libraries, each as a dict with name, found, version, path "
     "and reason."},
    {"gpu_libraries", gpu_libraries, METH_NOARGS,
     "gpu_libraries()\n--\n\nNVIDIA's libraries, as dicts like those of `libraries`; empty without "
     "a GPU. Loads the libraries."},
    {"gpu_reason", gpu_reason, METH_NOARGS,
     "gpu_reason()\n--\n\nThe reason why no GPU is available; None if one is."},
    {"collect_memory", collect_memory, METH_NOARGS,
     "collect_memory()\n--\n\nFrees the values that compiled calls keep between calls, and "
     "collects "
     "garbage, as before an\nout-of-memory error."},
    {"_memory_free_kept", memory_free_kept, METH_NOARGS, "Frees cached work space; for tests."},
    {"_memory_until_failure", memory_until_failure, METH_NOARGS,
     "The number of allocations left until the one that `_memory_fail_after` makes fail."},
    {"_memory_fail_after", memory_fail_after, METH_VARARGS,
     "_memory_fail_after(n, count=1), for tests: makes `count` allocations of bookkeeping or "
     "device memory\nfail, starting with the n-th from now. n = 0 disables this. Returns whether "
     "an allocation has failed\nsince the previous call."},
    {0}};
