/* Host hooks: the GIL, signals, and origins (the user's source lines that queued work).
 *
 * Origins. A line is recorded each time work is queued, but shown only if that work fails. To be
 * cheap, recording only interns the pair (code object, instruction offset) in a hash table and
 * returns the pair's number. The line's text is built when a pair is first interned, because texts
 * are also read by threads without the GIL and after Python has ended. The table keeps its code
 * objects alive, because a new code object could reuse the address of a freed one. The table stops
 * growing at MAX_ORIGINS.
 */
#include <stdatomic.h>
#include <string.h>

#include "base/host.h"
#include "compile/invariants/invariants.h"
#include "python/core.h"

#include <frameobject.h>

typedef struct origin {
  PyCodeObject *code; /* owned */
  int offset;
  uint32_t key; /* hash of file name, line and function; not 0 */
  char *text;   /* "file.py:12 in f"; owned, never changed or freed; NULL if out of memory */
} origin;

enum { MAX_ORIGINS = 1 << 15, TABLE_SIZE = 1 << 16 };

static struct {
  origin *origins;        /* number n is origins[n - 1] */
  uint32_t *table;        /* hash table of origin numbers with open addressing; 0 if free */
  _Atomic uint32_t count; /* read by any thread */
  char package[1024];     /* folder of the mpgluon package with a trailing slash; "" if unknown */
  size_t package_length;
  unsigned long main_thread;
} lines; /* runtime state, under the GIL */

static void *release_lock(void) { return PyEval_SaveThread(); }
static void acquire_lock(void *token) { PyEval_RestoreThread(token); }
static mpg_status check_interrupt(void) {
  if (PyErr_CheckSignals() == 0) return MPG_OK;
  return mpg_fail(MPG_INTERRUPTED, "interrupted");
}

static int frame_offset(PyFrameObject *frame) {
#if PY_VERSION_HEX >= 0x030b0000
  return PyFrame_GetLasti(frame);
#else
  return frame->f_lasti * 2;
#endif
}

static bool in_package(PyCodeObject *code) {
  if (lines.package_length == 0) return false;
  Py_ssize_t length;
  const char *name = PyUnicode_AsUTF8AndSize(code->co_filename, &length);
  if (name == NULL) {
    PyErr_Clear();
    return false;
  }
  return (size_t)length > lines.package_length &&
         memcmp(name, lines.package, lines.package_length) == 0;
}

/* Returns "file:line in function" as a new string, which the caller frees. Returns NULL if memory
 * is exhausted. */
static char *describe_line(PyCodeObject *code, int offset) {
  char text[1024];
  /* Saves a pending exception, because the calls below may set and clear one. */
  PyObject *type, *value, *traceback;
  PyErr_Fetch(&type, &value, &traceback);
  const char *file = PyUnicode_AsUTF8(code->co_filename);
#if PY_VERSION_HEX >= 0x030b0000
  const char *function = PyUnicode_AsUTF8(code->co_qualname);
#else
  const char *function = PyUnicode_AsUTF8(code->co_name);
#endif
  int line = PyCode_Addr2Line(code, offset);
  if (function != NULL && strcmp(function, "<module>") != 0)
    snprintf(text, sizeof text, "%s:%d in %s", file ? file : "?", line, function);
  else
    snprintf(text, sizeof text, "%s:%d", file ? file : "?", line);
  PyErr_Clear();
  PyErr_Restore(type, value, traceback);
  size_t size = strlen(text) + 1;
  char *copy = PyMem_RawMalloc(size);
  return copy != NULL ? memcpy(copy, text, size) : NULL;
}

/* Returns the FNV-1a hash of an origin's text. Leaves out the file's folder, which may differ
 * between hosts. */
static uint32_t key_of(const char *text) {
  uint32_t key = 2166136261u;
  const char *end = text != NULL ? strstr(text, ".py:") : NULL, *from = text;
  for (const char *at = text; at != NULL && end != NULL && at < end; at++)
    if (*at == '/') from = at + 1;
  for (; from != NULL && *from; from++) key = (key ^ (unsigned char)*from) * 16777619u;
  return key ? key : 1;
}

static uint32_t intern(PyCodeObject *code, int offset) {
  size_t slot =
      (((uintptr_t)code >> 4) * 0x9E3779B97F4A7C15u + (size_t)offset * 0xBF58476D1CE4E5B9u) >> 48;
  for (;; slot = (slot + 1) % TABLE_SIZE) {
    uint32_t number = lines.table[slot];
    if (number == 0) break;
    const origin *known = &lines.origins[number - 1];
    if (known->code == code && known->offset == offset) return number;
  }
  uint32_t count = atomic_load_explicit(&lines.count, memory_order_relaxed);
  if (count == MAX_ORIGINS) return 0;
  char *text = describe_line(code, offset);
  lines.origins[count] =
      (origin){(PyCodeObject *)Py_NewRef((PyObject *)code), offset, key_of(text), text};
  atomic_store_explicit(&lines.count, count + 1, memory_order_release);
  return lines.table[slot] = count + 1;
}

/* Returns the origin number of the current line in the innermost frame outside the package. If all
 * frames are inside the package, uses the innermost frame. */
static uint32_t current_origin(void) {
  PyFrameObject *frame = PyEval_GetFrame();
  if (frame == NULL || lines.table == NULL) return 0;
  uint32_t innermost = 0;
  Py_INCREF(frame);
  while (frame != NULL) {
    PyCodeObject *code = PyFrame_GetCode(frame);
    bool ours = in_package(code);
    uint32_t number = !ours || innermost == 0 ? intern(code, frame_offset(frame)) : 0;
    Py_DECREF(code);
    if (!ours) {
      Py_DECREF(frame);
      return number;
    }
    if (innermost == 0) innermost = number;
    PyFrameObject *back = PyFrame_GetBack(frame);
    /* Ignores a failure to create the outer frame object. */
    if (back == NULL && PyErr_Occurred()) PyErr_Clear();
    Py_DECREF(frame);
    frame = back;
  }
  return innermost;
}

/* Does not call Python, so any thread may call it at any time. */
static void origin_text(uint32_t number, char *buffer, size_t size) {
  if (size == 0) return;
  bool known = number != 0 && number <= atomic_load_explicit(&lines.count, memory_order_acquire);
  const char *text = known ? lines.origins[number - 1].text : NULL;
  snprintf(buffer, size, "%s", text != NULL ? text : "");
}

static uint32_t origin_key(uint32_t number) {
  if (PyThread_get_thread_ident() != lines.main_thread) return 0;
  return number != 0 && number <= lines.count ? lines.origins[number - 1].key : 0;
}

static uint32_t origin_of_key(uint32_t key) {
  uint32_t count = atomic_load_explicit(&lines.count, memory_order_acquire);
  for (uint32_t i = 0; i < count; i++)
    if (lines.origins[i].key == key) return i + 1;
  return 0;
}

static PyObject *set_package_folder(PyObject *Py_UNUSED(module), PyObject *folder) {
  Py_ssize_t length;
  const char *text = PyUnicode_AsUTF8AndSize(folder, &length);
  if (text == NULL) return NULL;
  /* If the path is too long, lines inside the package are reported like the user's own lines. */
  if ((size_t)length + 2 > sizeof lines.package) Py_RETURN_NONE;
  memcpy(lines.package, text, (size_t)length);
  lines.package[length] = '/';
  lines.package_length = (size_t)length + 1;
  Py_RETURN_NONE;
}

static PyObject *current_line(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused)) {
  char text[1024];
  origin_text(current_origin(), text, sizeof text);
  return PyUnicode_FromString(text);
}

static PyObject *origin_number(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused)) {
  return PyLong_FromUnsignedLong(current_origin());
}

static PyObject *origin_line(PyObject *Py_UNUSED(module), PyObject *number) {
  unsigned long origin = PyLong_AsUnsignedLong(number);
  if (origin == (unsigned long)-1 && PyErr_Occurred()) return NULL;
  char text[1024];
  origin_text(origin <= UINT32_MAX ? (uint32_t)origin : 0, text, sizeof text);
  return PyUnicode_FromString(text);
}

/* Frees the values that compiled calls keep between calls, and runs Python's garbage collector.
 * Ignores exceptions from finalizers. */
static void collect_garbage(void) {
  mpg_compiled_release_kept();
  PyObject *type, *value, *traceback;
  PyErr_Fetch(&type, &value, &traceback);
  PyObject *gc = PyImport_ImportModule("gc");
  Py_XDECREF(gc != NULL ? PyObject_CallMethod(gc, "collect", NULL) : NULL);
  Py_XDECREF(gc);
  PyErr_Clear();
  PyErr_Restore(type, value, traceback);
}

static bool alone(void) {
  return PyThreadState_Next(PyInterpreterState_ThreadHead(PyInterpreterState_Main())) == NULL;
}

/* Checks that all ranks pass the same text, which describes a graph to compile
 * (mpgluon._internal.ranks). */
static mpg_status agree(const char *text) {
  PyObject *module = PyImport_ImportModule("mpgluon._internal.ranks");
  PyObject *done = module ? PyObject_CallMethod(module, "agree_on_trace", "s", text) : NULL;
  Py_XDECREF(module);
  Py_XDECREF(done);
  return done ? MPG_OK : mpg_py_host_exception();
}

static const mpg_host python_host = {release_lock, acquire_lock, check_interrupt, current_origin,
                                     origin_text,  origin_key,   origin_of_key,   collect_garbage,
                                     alone,        agree};

/* For tests: a callable that is called whenever other threads could run (a turn, see
 * base/host.h). */
static PyObject *intruder; /* owned */

static void intrude(void) {
  PyObject *type, *value, *traceback, *running = Py_NewRef(intruder);
  PyErr_Fetch(&type, &value, &traceback);
  PyObject *result = PyObject_CallNoArgs(running);
  if (result == NULL) PyErr_WriteUnraisable(running);
  Py_XDECREF(result);
  Py_DECREF(running);
  PyErr_Restore(type, value, traceback);
}

static PyObject *set_intruder(PyObject *Py_UNUSED(module), PyObject *callable) {
  PyObject *former = intruder;
  intruder = callable == Py_None ? NULL : Py_NewRef(callable);
  mpg_host_set_intruder(intruder != NULL ? intrude : NULL);
  Py_XDECREF(former);
  Py_RETURN_NONE;
}

PyMethodDef mpg_py_host_methods[] = {
    {"_origin", origin_number, METH_NOARGS,
     "The key of the user's current source line, for _origin_line."},
    {"_origin_line", origin_line, METH_O,
     "The text of the source line with the key, as shown in errors; '' for key 0."},
    {"_set_package_folder", set_package_folder, METH_O,
     "Excludes the lines of files in this folder from errors."},
    {"_current_line", current_line, METH_NOARGS,
     "The text of the user's current source line, as shown in errors of queued work."},
    {"_set_intruder", set_intruder, METH_O,
     "For tests: calls this function without arguments whenever the core releases the lock; None "
     "removes\nthe function."},
    {0}};

int mpg_py_host_init(PyObject *Py_UNUSED(module)) {
  if (lines.table == NULL) {
    lines.table = PyMem_RawCalloc(TABLE_SIZE, sizeof *lines.table);
    lines.origins = PyMem_RawMalloc(MAX_ORIGINS * sizeof *lines.origins);
    if (lines.table == NULL || lines.origins == NULL) {
      PyErr_NoMemory();
      return -1;
    }
  }
  lines.main_thread = PyThread_get_thread_ident();
  mpg_host_set(&python_host);
  return 0;
}
