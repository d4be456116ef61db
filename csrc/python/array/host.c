/* The host hooks: the GIL, signals, and where in the user's program work was queued.
 *
 * Origins. A line is asked for each time work is queued, and shown only when that work fails. So
 * asking interns the pair (code object, offset of the instruction) in a hash table and gives its
 * number; text is made from the number when needed. The table keeps its code objects alive, else
 * another could take a dead one's address; it stops growing at MAX_ORIGINS.
 */
#include "base/host.h"
#include "python/core.h"

#include <frameobject.h>

typedef struct origin {
  PyCodeObject *code; /* owned */
  int offset;
} origin;

enum { MAX_ORIGINS = 1 << 15, TABLE_SIZE = 1 << 16 };

static struct {
  origin *origins; /* number n is origins[n - 1] */
  uint32_t *table; /* open addressing over numbers; 0: free */
  uint32_t count;
  char package[1024]; /* folder of the mpgluon package with a slash at its end; "": not known */
  size_t package_length;
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

static uint32_t intern(PyCodeObject *code, int offset) {
  size_t slot =
      (((uintptr_t)code >> 4) * 0x9E3779B97F4A7C15u + (size_t)offset * 0xBF58476D1CE4E5B9u) >> 48;
  for (;; slot = (slot + 1) % TABLE_SIZE) {
    uint32_t number = lines.table[slot];
    if (number == 0) break;
    const origin *known = &lines.origins[number - 1];
    if (known->code == code && known->offset == offset) return number;
  }
  if (lines.count == MAX_ORIGINS) return 0;
  lines.origins[lines.count] = (origin){(PyCodeObject *)Py_NewRef((PyObject *)code), offset};
  return lines.table[slot] = ++lines.count;
}

/* The innermost frame outside the package; the innermost of all when there is none outside. */
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
    /* no memory for it: an outer line is not worth an error */
    if (back == NULL && PyErr_Occurred()) PyErr_Clear();
    Py_DECREF(frame);
    frame = back;
  }
  return innermost;
}

static void origin_text(uint32_t number, char *buffer, size_t size) {
  if (size == 0) return;
  buffer[0] = 0;
  if (number == 0 || number > lines.count) return;
  /* May be asked for while an exception is on its way. */
  PyObject *type, *value, *traceback;
  PyErr_Fetch(&type, &value, &traceback);
  const origin *known = &lines.origins[number - 1];
  const char *file = PyUnicode_AsUTF8(known->code->co_filename);
#if PY_VERSION_HEX >= 0x030b0000
  const char *function = PyUnicode_AsUTF8(known->code->co_qualname);
#else
  const char *function = PyUnicode_AsUTF8(known->code->co_name);
#endif
  int line = PyCode_Addr2Line(known->code, known->offset);
  if (function != NULL && strcmp(function, "<module>") != 0)
    snprintf(buffer, size, "%s:%d in %s", file ? file : "?", line, function);
  else
    snprintf(buffer, size, "%s:%d", file ? file : "?", line);
  PyErr_Clear();
  PyErr_Restore(type, value, traceback);
}

static PyObject *set_package_folder(PyObject *Py_UNUSED(module), PyObject *folder) {
  Py_ssize_t length;
  const char *text = PyUnicode_AsUTF8AndSize(folder, &length);
  if (text == NULL) return NULL;
  if ((size_t)length + 2 > sizeof lines.package)
    Py_RETURN_NONE; /* then lines inside the package are named too */
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

/* Garbage in cycles. Whatever its finalizers do or raise is theirs. */
static void collect_garbage(void) {
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

/* All ranks compile the same graph, or get an error (the package's _ranks). */
static mpg_status agree(const char *text) {
  PyObject *module = PyImport_ImportModule("mpgluon._ranks");
  PyObject *done = module ? PyObject_CallMethod(module, "agree_on_trace", "s", text) : NULL;
  Py_XDECREF(module);
  Py_XDECREF(done);
  return done ? MPG_OK : mpg_py_host_exception();
}

static const mpg_host python_host = {release_lock, acquire_lock,    check_interrupt, current_origin,
                                     origin_text,  collect_garbage, alone,           agree};

/* Tests: what runs wherever others may. */
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
    {"_origin", origin_number, METH_NOARGS, "The number of the user's line that is running."},
    {"_origin_line", origin_line, METH_O, "The line of that number, as errors name it; '' for 0."},
    {"_set_package_folder", set_package_folder, METH_O,
     "Lines of files in this folder are not named in errors."},
    {"_current_line", current_line, METH_NOARGS,
     "The user's line that is running, as errors of queued work name it."},
    {"_set_intruder", set_intruder, METH_O,
     "For tests: calls this, without arguments, wherever the core lets others run; None: "
     "nothing."},
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
  mpg_host_set(&python_host);
  return 0;
}
