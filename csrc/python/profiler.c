/* Python interface to the profiler; mpgluon/profiler.py builds tables and traces from the events.
 */
#include "device/profiler.h"
#include "python/core.h"

static PyObject *start(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused)) {
  mpg_profiler_start();
  Py_RETURN_NONE;
}

static PyObject *stop(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused)) {
  mpg_profiler_stop();
  Py_RETURN_NONE;
}

static PyObject *resume(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused)) {
  mpg_profiler_resume();
  Py_RETURN_NONE;
}

/* Returns number - 1, or None for 0. Events store stages and micro-batches as 1 + index. */
static PyObject *number_or_none(uint32_t number) {
  return number ? PyLong_FromUnsignedLong(number - 1) : Py_NewRef(Py_None);
}

/* Returns (device, name, kind, scope, backward, program, peer or None, bytes, stage or None,
 * micro_batch or None, begin_ns, end_ns). */
static PyObject *event_tuple(const mpg_device *device, const mpg_event *event) {
  static const char *const kinds[] = {[MPG_EVENT_OP] = "op",
                                      [MPG_EVENT_COPY] = "copy",
                                      [MPG_EVENT_WAIT] = "wait",
                                      [MPG_EVENT_PROGRAM] = "program"};
  const char *peer = event->peer >= 0 ? mpg_device_text(mpg_device_at(event->peer)) : NULL;
  return Py_BuildValue("(ssssNNzKNNLL)", mpg_device_text(device), event->name ? event->name : "",
                       kinds[event->kind], mpg_scope_text(event->scope),
                       PyBool_FromLong(event->backward), PyBool_FromLong(event->program), peer,
                       (unsigned long long)event->bytes, number_or_none(event->stage),
                       number_or_none(event->micro_batch), (long long)event->begin_ns,
                       (long long)event->end_ns);
}

static PyObject *events(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused)) {
  MPG_PY_TRY(mpg_wait_all());
  PyObject *list = PyList_New(0);
  if (!list) return NULL;
  for (int i = 0; i < mpg_device_count(); i++) {
    const mpg_device *device = mpg_device_at(i);
    size_t count = mpg_profiler_event_count(device);
    for (size_t k = 0; k < count; k++) {
      mpg_event event = mpg_profiler_event(device, k);
      PyObject *tuple = event_tuple(device, &event);
      if (!tuple || PyList_Append(list, tuple) < 0) {
        Py_XDECREF(tuple);
        Py_DECREF(list);
        return NULL;
      }
      Py_DECREF(tuple);
    }
  }
  return list;
}

PyMethodDef mpg_py_profiler_methods[] = {
    {"profiler_start", start, METH_NOARGS, "Clears the recorded events and starts recording."},
    {"profiler_stop", stop, METH_NOARGS, "Stops recording and keeps the recorded events."},
    {"profiler_resume", resume, METH_NOARGS, "Resumes recording after a stop, keeping the events."},
    {"profiler_events", events, METH_NOARGS,
     "Waits for all work; returns a list of (device, name, kind, scope, backward, program, peer, "
     "bytes, stage, micro_batch, begin_ns, end_ns)."},
    {NULL, NULL, 0, NULL}};
