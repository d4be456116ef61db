/* _core.ranks_*: communication between ranks (device/ranks/ranks.h, mpgluon/_internal/ranks). */
#include "device/ranks/ranks.h"

#include "device/gpu/gpu.h"
#include "device/ranks/deadlock.h"

#include "python/core.h"

/* Fills mpi->types from a dict that maps dtype numbers to MPI type handles. Returns -1 with an
 * exception set on failure. */
static int take_types(PyObject *types, mpg_mpi *mpi) {
  PyObject *key, *value;
  for (Py_ssize_t i = 0; PyDict_Next(types, &i, &key, &value);) {
    long number = PyLong_AsLong(key);
    unsigned long long handle = PyLong_AsUnsignedLongLong(value);
    if (PyErr_Occurred()) return -1;
    if (number < 0 || number >= (long)(sizeof mpi->types / sizeof *mpi->types)) {
      PyErr_Format(PyExc_ValueError, "ranks_begin: unknown dtype %ld", number);
      return -1;
    }
    mpi->types[number] = (mpg_mpi_handle)handle;
  }
  return 0;
}

static PyObject *ranks_begin(PyObject *Py_UNUSED(self), PyObject *args) {
  const char *path;
  int rank, size;
  mpg_mpi mpi = {0};
  unsigned long long communicator, byte, sum, in_place;
  double limit;
  int any_order;
  PyObject *types;
  if (!PyArg_ParseTuple(args, "siiKKiidKKpO!:ranks_begin", &path, &rank, &size, &communicator,
                        &byte, &mpi.largest_tag, &mpi.handle_size, &limit, &sum, &in_place,
                        &any_order, &PyDict_Type, &types) ||
      take_types(types, &mpi) < 0)
    return NULL;
  mpi.sum = (mpg_mpi_handle)sum;
  mpi.in_place = (void *)(uintptr_t)in_place;
  mpi.any_order = any_order;
  mpi.communicator = (mpg_mpi_handle)communicator;
  mpi.byte = (mpg_mpi_handle)byte;
  MPG_PY_TRY(mpg_mpi_find(&mpi, path));
  MPG_PY_TRY(mpg_ranks_begin(&mpi, rank, size, limit));
  Py_RETURN_NONE;
}

static PyObject *ranks_end(PyObject *Py_UNUSED(self), PyObject *Py_UNUSED(unused)) {
  Py_BEGIN_ALLOW_THREADS;
  mpg_ranks_end();
  Py_END_ALLOW_THREADS;
  Py_RETURN_NONE;
}

static PyObject *ranks_flushed(PyObject *Py_UNUSED(self), PyObject *Py_UNUSED(unused)) {
  return PyBool_FromLong(mpg_ranks_flushed());
}

static PyObject *ranks_statistics(PyObject *Py_UNUSED(self), PyObject *Py_UNUSED(unused)) {
  mpg_rank_statistics s = mpg_ranks_statistics();
  return Py_BuildValue("{s:K,s:K,s:K,s:K,s:K}", "transfers", (unsigned long long)s.numbers, "sent",
                       (unsigned long long)s.sent, "received", (unsigned long long)s.received,
                       "bytes_sent", (unsigned long long)s.bytes_sent, "bytes_received",
                       (unsigned long long)s.bytes_received);
}

static PyObject *ranks_lost(PyObject *Py_UNUSED(self), PyObject *args) {
  int rank;
  const char *text;
  if (!PyArg_ParseTuple(args, "is:ranks_lost", &rank, &text)) return NULL;
  mpg_ranks_lost(rank, text);
  Py_RETURN_NONE;
}

static PyObject *ranks_begin_within(PyObject *Py_UNUSED(self), PyObject *object) {
  double seconds = PyFloat_AsDouble(object);
  if (seconds == -1 && PyErr_Occurred()) return NULL;
  MPG_PY_TRY(mpg_ranks_begin_within(seconds));
  Py_RETURN_NONE;
}

static PyObject *ranks_begun(PyObject *Py_UNUSED(self), PyObject *Py_UNUSED(unused)) {
  mpg_ranks_begun();
  Py_RETURN_NONE;
}

/* Starts a watchdog for MPI_Finalize, which runs next and hangs if another rank has stopped. */
static void watch_end(void) { (void)mpg_ranks_end_within_limit(); }

/* Registers watch_end with Py_AtExit. Py_AtExit functions run after the script's own atexit
 * handlers, which may be slow, and in reverse order of registration. mpi4py's MPI_Finalize is
 * already registered, so the watchdog starts right before it. */
static PyObject *ranks_end_within_limit(PyObject *Py_UNUSED(self), PyObject *Py_UNUSED(unused)) {
  if (Py_AtExit(watch_end) < 0) watch_end();
  Py_RETURN_NONE;
}

static PyObject *ranks_note_step(PyObject *Py_UNUSED(self), PyObject *Py_UNUSED(unused)) {
  mpg_ranks_note_step();
  Py_RETURN_NONE;
}

static PyObject *ranks_note_update(PyObject *Py_UNUSED(self), PyObject *args) {
  double scale, learning_rate;
  if (!PyArg_ParseTuple(args, "dd:ranks_note_update", &scale, &learning_rate)) return NULL;
  mpg_ranks_note_update(scale, learning_rate);
  Py_RETURN_NONE;
}

static PyObject *ranks_note_collective(PyObject *Py_UNUSED(self), PyObject *Py_UNUSED(unused)) {
  mpg_ranks_note_collective();
  Py_RETURN_NONE;
}

static PyObject *ranks_name_arrays(PyObject *Py_UNUSED(self), PyObject *object) {
  int named = PyObject_IsTrue(object);
  if (named < 0) return NULL;
  return PyBool_FromLong(mpg_ranks_name_arrays(named != 0));
}

static PyObject *ranks_poll(PyObject *Py_UNUSED(self), PyObject *args) {
  const char *what;
  unsigned long long progress;
  int said;
  if (!PyArg_ParseTuple(args, "sKp:ranks_poll", &what, &progress, &said)) return NULL;
  mpg_rank_wait wait = {.progress = progress, .said = said};
  mpg_ranks_poll(&wait, NULL, 0, what);
  return PyLong_FromUnsignedLongLong(wait.progress);
}

static PyObject *ranks_poll_end(PyObject *Py_UNUSED(self), PyObject *Py_UNUSED(unused)) {
  mpg_ranks_poll_end(&(mpg_rank_wait){.said = true});
  Py_RETURN_NONE;
}

static PyObject *ranks_gpu_card(PyObject *Py_UNUSED(self), PyObject *context) {
  char name[MPG_GPU_CARD_NAME] = "";
  mpg_device *device = mpg_py_device(context);
  if (!device) return NULL;
  MPG_PY_TRY(mpg_gpu_card_name(device, name, sizeof name));
  return PyUnicode_FromString(name);
}

static PyObject *ranks_gpu_id(PyObject *Py_UNUSED(self), PyObject *context) {
  char id[MPG_GPU_COMMUNICATOR_ID] = "";
  mpg_device *device = mpg_py_device(context);
  if (!device) return NULL;
  MPG_PY_TRY(mpg_gpu_communicator_id(device, id));
  return PyBytes_FromStringAndSize(id, sizeof id);
}

int32_t *mpg_py_gpu_indices(PyObject *object) {
  int count = mpg_ranks_count();
  int32_t *indices = PyMem_Calloc((size_t)count, sizeof *indices);
  bool good = PyTuple_Check(object) && PyTuple_GET_SIZE(object) == count;
  for (int i = 0; indices != NULL && good && i < count; i++) {
    long index = PyLong_AsLong(PyTuple_GET_ITEM(object, i));
    good = index >= 0 && index <= INT32_MAX;
    indices[i] = good ? (int32_t)index : 0;
  }
  if (indices != NULL && good) return indices;
  PyMem_Free(indices);
  if (good)
    PyErr_NoMemory();
  else if (!PyErr_Occurred())
    PyErr_Format(PyExc_ValueError, "expected a tuple of %d GPU indices, one for each rank", count);
  return NULL;
}

/* Converts a tuple (ctx, indices) to a device and GPU indices. Returns -1 with an exception set on
 * failure. */
static int take_gpus(PyObject *args, mpg_device **device, int32_t **indices) {
  PyObject *context, *numbers;
  if (!PyTuple_Check(args) || !PyArg_ParseTuple(args, "OO", &context, &numbers)) {
    PyErr_SetString(PyExc_TypeError, "expected a tuple (ctx, indices)");
    return -1;
  }
  *device = mpg_py_device(context);
  *indices = *device ? mpg_py_gpu_indices(numbers) : NULL;
  return *indices ? 0 : -1;
}

static PyObject *ranks_gpu_join(PyObject *Py_UNUSED(self), PyObject *args) {
  PyObject *gpus;
  const char *id;
  Py_ssize_t size;
  mpg_device *device;
  int32_t *indices;
  if (!PyArg_ParseTuple(args, "O!y#:ranks_gpu_join", &PyTuple_Type, &gpus, &id, &size)) return NULL;
  if (size != MPG_GPU_COMMUNICATOR_ID)
    return PyErr_Format(PyExc_ValueError, "ranks_gpu_join: an id must have %d bytes",
                        MPG_GPU_COMMUNICATOR_ID);
  if (take_gpus(gpus, &device, &indices) < 0) return NULL;
  mpg_status status = mpg_gpu_communicator_join(device, indices, id);
  PyMem_Free(indices);
  MPG_PY_TRY(status);
  Py_RETURN_NONE;
}

static PyObject *ranks_gpu_joined(PyObject *Py_UNUSED(self), PyObject *gpus) {
  const mpg_gpu_communicators *calls;
  bool done = false;
  mpg_device *device;
  int32_t *indices;
  if (take_gpus(gpus, &device, &indices) < 0) return NULL;
  mpg_gpu_communicator *communicator = mpg_gpu_communicator_of(device, indices, &calls);
  PyMem_Free(indices);
  if (communicator) MPG_PY_TRY(calls->issued(communicator, &done));
  return PyBool_FromLong(done);
}

static PyObject *ranks_gpu_leave(PyObject *Py_UNUSED(self), PyObject *gpus) {
  mpg_device *device;
  int32_t *indices;
  if (take_gpus(gpus, &device, &indices) < 0) return NULL;
  mpg_gpu_communicator_forget(device, indices);
  PyMem_Free(indices);
  Py_RETURN_NONE;
}

static PyObject *ranks_tell_end(PyObject *Py_UNUSED(self), PyObject *args) {
  const char *failure = NULL;
  if (!PyArg_ParseTuple(args, "|z:ranks_tell_end", &failure)) return NULL;
  mpg_ranks_tell_end(failure);
  Py_RETURN_NONE;
}

static PyObject *ranks_find_lost(PyObject *Py_UNUSED(self), PyObject *Py_UNUSED(unused)) {
  char text[512] = "";
  bool all_ended;
  int rank = mpg_ranks_find_lost(text, sizeof text, &all_ended);
  return Py_BuildValue("(isO)", rank, text, all_ended ? Py_True : Py_False);
}

static PyObject *ranks_differ(PyObject *Py_UNUSED(self), PyObject *Py_UNUSED(unused)) {
  char text[512];
  if (!mpg_ranks_differ(text, sizeof text)) Py_RETURN_NONE;
  return PyUnicode_FromString(text);
}

static PyMethodDef methods[] = {
    {"ranks_tell_end", ranks_tell_end, METH_VARARGS,
     "ranks_tell_end(failure=None)\n--\n\nReports to the other ranks that this one has ended or "
     "failed."},
    {"ranks_gpu_card", ranks_gpu_card, METH_O,
     "ranks_gpu_card(ctx) -> str: the name of the card to which a GPU belongs, which is the same "
     "in all\nprocesses. Raises an error without NCCL."},
    {"ranks_gpu_id", ranks_gpu_id, METH_O,
     "ranks_gpu_id(ctx) -> bytes: the id of a new communicator of GPUs, which all ranks need to "
     "join it."},
    {"ranks_gpu_join", ranks_gpu_join, METH_VARARGS,
     "ranks_gpu_join((ctx, indices), id): starts to join a communicator with the GPU `ctx` of "
     "this\nprocess. indices: the GPU index of each rank."},
    {"ranks_gpu_joined", ranks_gpu_joined, METH_O,
     "ranks_gpu_joined((ctx, indices)) -> bool: whether the GPU has joined the communicator."},
    {"ranks_gpu_leave", ranks_gpu_leave, METH_O,
     "ranks_gpu_leave((ctx, indices)): leaves the communicator, before it has been used for a "
     "sum."},
    {"ranks_begin_within", ranks_begin_within, METH_O,
     "ranks_begin_within(seconds)\n--\n\nEnds the process unless ranks_begun is called by then."},
    {"ranks_begun", ranks_begun, METH_NOARGS, "ranks_begun()\n--\n\nReports that MPI has begun."},
    {"ranks_end_within_limit", ranks_end_within_limit, METH_NOARGS,
     "ranks_end_within_limit()\n--\n\nEnds the process unless MPI ends within the time limit, at "
     "the end of the program."},
    {"ranks_note_step", ranks_note_step, METH_NOARGS,
     "ranks_note_step()\n--\n\nReports that another training step begins."},
    {"ranks_note_update", ranks_note_update, METH_VARARGS,
     "ranks_note_update(rescale_grad, learning_rate)\n--\n\nReports an update of parameters. All "
     "ranks must make the same updates, and compare them."},
    {"ranks_note_collective", ranks_note_collective, METH_NOARGS,
     "ranks_note_collective()\n--\n\nReports that all ranks have reached the same rendezvous."},
    {"ranks_name_arrays", ranks_name_arrays, METH_O,
     "ranks_name_arrays(named)\n--\n\nSets whether arrays that this thread creates get names. The "
     "ranks compare these names. Returns the\nprevious setting."},
    {"ranks_poll", ranks_poll, METH_VARARGS,
     "ranks_poll(what, progress, again)\n--\n\nReports that this rank is still waiting for all "
     "other ranks. what: a description of the wait;\nprogress: the result of the previous call; "
     "again: whether there was a previous call."},
    {"ranks_poll_end", ranks_poll_end, METH_NOARGS,
     "ranks_poll_end()\n--\n\nReports that this rank no longer waits."},
    {"ranks_find_lost", ranks_find_lost, METH_NOARGS,
     "ranks_find_lost()\n--\n\nA tuple (first lost rank or -1, the reason, whether the scripts of "
     "all other ranks have ended)."},
    {"ranks_differ", ranks_differ, METH_NOARGS,
     "ranks_differ()\n--\n\nA text that describes how this rank's transfers differ from those of "
     "another rank, once all ranks\nhave ended; None if they do not differ."},
    {"ranks_begin", ranks_begin, METH_VARARGS,
     "ranks_begin(path, rank, size, communicator, byte, largest_tag, handle_size, limit, sum, "
     "in_place, any_order, types)\n--\n\nMakes this process one of several ranks, which "
     "communicate through the MPI library at `path`. MPI\nhandles are given as numbers. limit: the "
     "seconds after which a rank without a response is lost;\nany_order: whether MPI may choose "
     "the order of sums, for the dtypes in `types`."},
    {"ranks_end", ranks_end, METH_NOARGS, "ranks_end()\n--\n\nEnds sending and receiving."},
    {"ranks_flushed", ranks_flushed, METH_NOARGS,
     "ranks_flushed()\n--\n\nWhether all messages have been sent."},
    {"ranks_statistics", ranks_statistics, METH_NOARGS,
     "ranks_statistics()\n--\n\nNumbers of transfers, messages and bytes so far."},
    {"ranks_lost", ranks_lost, METH_VARARGS,
     "ranks_lost(rank, text)\n--\n\nFails all work that waits for that rank, with this text."},
    {NULL, NULL, 0, NULL}};

int mpg_py_ranks_init(PyObject *module) { return PyModule_AddFunctions(module, methods); }
