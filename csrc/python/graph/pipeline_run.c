/* _core.StagedCall and _core.PipelineRun: functions compiled in stages, and their runs on the
 * micro-batches of a batch. See core.h. */
#include "compile/pipeline/pipeline_run.h"
#include "python/core.h"

typedef struct staged_call {
  PyObject_HEAD mpg_compiled *compiled;
} staged_call;

typedef struct pipeline_run {
  PyObject_HEAD mpg_pipeline_run *run;
  /* True if this object only reads timings and does not keep the run's memory alive. */
  bool watches;
} pipeline_run;

/* --- Descriptions ----------------------------------------------------------------------------- */

static PyObject *context_of(mpg_device_id id) { return mpg_py_context(id); }

static PyObject *describe_segment(const mpg_program_set *set, const mpg_program_segment *segment) {
  const mpg_program *program = &set->programs[segment->slot];
  PyObject *waits = PyList_New(0), *ops = PyList_New(0), *blocks = PyList_New(0),
           *arrays = PyList_New(0), *result = NULL;
  size_t sent = 0;
  unsigned int copies = 0;
  bool computes = false;
  if (waits == NULL || ops == NULL || blocks == NULL || arrays == NULL) goto done;
  for (uint32_t i = segment->begin; i < segment->end; i++) {
    const mpg_instruction *instruction = &program->instructions[i];
    if (instruction->kind == MPG_SIGNAL) continue;
    bool waiting = instruction->kind == MPG_WAIT;
    PyObject *item = waiting ? PyLong_FromUnsignedLong(instruction->segment)
                             : PyUnicode_FromFormat("%s/%s", mpg_scope_text(instruction->scope),
                                                    mpg_instruction_name(instruction));
    int added = item != NULL ? PyList_Append(waiting ? waits : ops, item) : -1;
    Py_XDECREF(item);
    if (added < 0) goto done;
    mpg_op_flags flags = instruction->op ? instruction->op->flags : 0;
    bool constant = flags & MPG_OP_SHAPE_ONLY && !(flags & MPG_OP_RANDOM);
    computes |= instruction->kind == MPG_RUN && !constant;
    if (instruction->kind != MPG_COPY) continue;
    sent += instruction->bytes;
    copies++;
  }
  for (uint32_t i = 0; i < segment->num_accesses; i++) {
    const mpg_access *access = &segment->accesses[i];
    bool outside = access->base < set->num_externals;
    PyObject *item = outside ? Py_BuildValue("IO", (unsigned int)access->base,
                                             access->writes ? Py_True : Py_False)
                             : PyLong_FromUnsignedLong(access->base - set->num_externals);
    int added = item != NULL ? PyList_Append(outside ? arrays : blocks, item) : -1;
    Py_XDECREF(item);
    if (added < 0) goto done;
  }
  result = Py_BuildValue("{s:N,s:I,s:O,s:O,s:O,s:O,s:O,s:n,s:I,s:O}", "device",
                         context_of(program->device->id), "depth", (unsigned int)segment->depth,
                         "deferred", segment->deferred ? Py_True : Py_False, "waits", waits, "ops",
                         ops, "blocks", blocks, "arrays", arrays, "bytes_sent", (Py_ssize_t)sent,
                         "copies", copies, "computes", computes ? Py_True : Py_False);
done:
  Py_XDECREF(waits);
  Py_XDECREF(ops);
  Py_XDECREF(blocks);
  Py_XDECREF(arrays);
  return result;
}

static PyObject *describe_blocks(const mpg_program_set *set) {
  PyObject *blocks = PyList_New(0);
  for (uint32_t i = 0; blocks != NULL && i < set->num_blocks; i++) {
    PyObject *item =
        Py_BuildValue("NnO", context_of(set->programs[set->block_devices[i]].device->id),
                      (Py_ssize_t)mpg_pool_block_size(set->block_sizes[i]),
                      set->block_lanes[i] ? Py_True : Py_False);
    if (item == NULL || PyList_Append(blocks, item) < 0) Py_CLEAR(blocks);
    Py_XDECREF(item);
  }
  return blocks;
}

static PyObject *describe_set(const mpg_program_set *set) {
  PyObject *segments = PyList_New(0), *blocks = describe_blocks(set);
  for (uint32_t i = 0; segments != NULL && i < set->num_segments; i++) {
    PyObject *item = describe_segment(set, &set->segments[i]);
    if (item == NULL || PyList_Append(segments, item) < 0) Py_CLEAR(segments);
    Py_XDECREF(item);
  }
  PyObject *result = segments != NULL && blocks != NULL
                         ? Py_BuildValue("{s:O,s:O}", "segments", segments, "blocks", blocks)
                         : NULL;
  Py_XDECREF(segments);
  Py_XDECREF(blocks);
  return result;
}

/* --- StagedCall ------------------------------------------------------------------------------- */

enum { MOST = 4096 };

/* Converts a sequence of `count` booleans to an array that the caller frees with PyMem_Free. */
static bool *flags_from(PyObject *object, Py_ssize_t count, const char *what) {
  bool *flags = PyMem_Calloc((size_t)count + 1, sizeof *flags);
  if (flags == NULL) return (bool *)PyErr_NoMemory();
  PyObject *items = mpg_py_items(object, what);
  if (items != NULL && PyTuple_GET_SIZE(items) != count)
    PyErr_Format(PyExc_ValueError, "%s: expected %zd flags, got %zd", what, count,
                 PyTuple_GET_SIZE(items));
  else
    for (Py_ssize_t i = 0; items != NULL && i < count; i++) {
      int flag = PyObject_IsTrue(PyTuple_GET_ITEM(items, i));
      if (flag < 0) break;
      flags[i] = flag;
    }
  Py_XDECREF(items);
  if (!PyErr_Occurred()) return flags;
  PyMem_Free(flags);
  return NULL;
}

static PyObject *staged_call_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
  static char *names[] = {"trace",     "inputs", "wanted", "carried",
                          "recording", "exact",  "defer",  NULL};
  PyObject *trace, *inputs_object, *wanted_object, *carried_object, *keep = NULL;
  int recording = 1, exact = 0, defer = 0;
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OOOO|ppp:StagedCall", names, &trace,
                                   &inputs_object, &wanted_object, &carried_object, &recording,
                                   &exact, &defer))
    return NULL;
  staged_call *self = NULL;
  bool *wanted = NULL, *carried = NULL;
  mpg_array **inputs = PyMem_Calloc(MOST, sizeof *inputs);
  if (inputs == NULL) return PyErr_NoMemory();
  int count = mpg_py_array_list(inputs_object, inputs, MOST, &keep, "StagedCall");
  if (count < 0) goto done;
  wanted = flags_from(wanted_object, count, "StagedCall: wanted");
  carried = wanted != NULL ? flags_from(carried_object, count, "StagedCall: carried") : NULL;
  if (carried == NULL) goto done;
  mpg_compile_options options = {.recording = recording,
                                 .exact = exact,
                                 .wanted = wanted,
                                 .carried = carried,
                                 .stages = defer ? MPG_STAGES_DEFERRED : MPG_STAGES_WHOLE};
  mpg_inputs given = {.given = inputs, .num_given = (uint32_t)count};
  mpg_compiled *compiled = mpg_py_trace_and_compile(trace, &given, &options);
  if (compiled == NULL) goto done;
  self = (staged_call *)type->tp_alloc(type, 0);
  if (self == NULL)
    mpg_compiled_release(compiled);
  else
    self->compiled = compiled;
done:
  Py_XDECREF(keep);
  PyMem_Free(inputs);
  PyMem_Free(wanted);
  PyMem_Free(carried);
  return (PyObject *)self;
}

static void staged_call_dealloc(PyObject *object) {
  PyTypeObject *type = Py_TYPE(object);
  mpg_compiled_release(((staged_call *)object)->compiled);
  type->tp_free(object);
  Py_DECREF(type);
}

static PyObject *staged_call_outputs(PyObject *object, void *Py_UNUSED(unused)) {
  const mpg_compiled *c = ((staged_call *)object)->compiled;
  PyObject *list = PyList_New(0);
  for (uint32_t i = 0; list != NULL && i < c->num_outputs; i++) {
    const mpg_compiled_output *output = &c->outputs[i];
    bool own = output->external >= c->num_inputs;
    for (uint32_t k = 0; k < i; k++) own = own && c->outputs[k].external != output->external;
    PyObject *item = Py_BuildValue(
        "NsNO", mpg_py_shape_tuple(&output->desc.shape), mpg_dtype_name(output->desc.dtype),
        mpg_py_context(mpg_compiled_output_value(c, i)->device), own ? Py_True : Py_False);
    if (item == NULL || PyList_Append(list, item) < 0) Py_CLEAR(list);
    Py_XDECREF(item);
  }
  return list;
}

static PyObject *staged_call_captures_variable(PyObject *object, void *Py_UNUSED(unused)) {
  return PyBool_FromLong(mpg_compiled_captures_variable(((staged_call *)object)->compiled));
}

static PyObject *staged_call_forward(PyObject *object, PyObject *Py_UNUSED(unused)) {
  const mpg_compiled *c = ((staged_call *)object)->compiled;
  return describe_set(c->programs);
}

/* Number of batch kinds that inputs and results may have, the first ones of mpg_batch_kind. */
enum { NUM_KINDS = MPG_BATCH_STATE + 1 };

static int numbers_from(PyObject *object, Py_ssize_t count, uint32_t limit, uint32_t *numbers,
                        const char *what) {
  PyObject *items = mpg_py_items(object, what);
  if (items == NULL) return -1;
  if (PyTuple_GET_SIZE(items) != count)
    PyErr_Format(PyExc_ValueError, "%s: expected %zd numbers, got %zd", what, count,
                 PyTuple_GET_SIZE(items));
  for (Py_ssize_t i = 0; i < count && !PyErr_Occurred(); i++) {
    unsigned long number = PyLong_AsUnsignedLong(PyTuple_GET_ITEM(items, i));
    if (!PyErr_Occurred() && number >= limit)
      PyErr_Format(PyExc_ValueError, "%s: %lu is out of range", what, number);
    numbers[i] = (uint32_t)number;
  }
  Py_DECREF(items);
  return PyErr_Occurred() ? -1 : 0;
}

static PyObject *staged_call_check(PyObject *object, PyObject *args, PyObject *kwargs) {
  static char *names[] = {"input_kinds", "output_kinds",     "rows", "axis", "along_time", "other",
                          "other_rows",  "whole_statistics", NULL};
  mpg_compiled *c = ((staged_call *)object)->compiled;
  PyObject *inputs, *outputs, *other = NULL;
  long long rows, other_rows = 1;
  int axis, along_time, whole_statistics = 0;
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OOLip|O!Lp:check", names, &inputs, &outputs,
                                   &rows, &axis, &along_time, Py_TYPE(object), &other, &other_rows,
                                   &whole_statistics))
    return NULL;
  if (rows < 1 || other_rows < 1 || axis < 0)
    return PyErr_Format(PyExc_ValueError,
                        "StagedCall.check: rows must be at least 1, axis at least 0");
  size_t count = (size_t)c->num_given + c->num_outputs;
  uint32_t *numbers = PyMem_Calloc(count + 1, sizeof *numbers);
  uint8_t *kinds = PyMem_Calloc(count + 1, 1);
  PyObject *result = NULL;
  if (numbers == NULL || kinds == NULL) {
    PyErr_NoMemory();
  } else if (numbers_from(inputs, c->num_given, NUM_KINDS, numbers,
                          "StagedCall.check: input_kinds") == 0 &&
             numbers_from(outputs, c->num_outputs, NUM_KINDS, numbers + c->num_given,
                          "StagedCall.check: output_kinds") == 0) {
    for (size_t i = 0; i < count; i++) kinds[i] = (uint8_t)numbers[i];
    mpg_micro_batch_check check = {.input_kinds = kinds,
                                   .output_kinds = kinds + c->num_given,
                                   .rows = rows,
                                   .axis = axis,
                                   .along_time = along_time,
                                   .other = other != NULL ? ((staged_call *)other)->compiled : NULL,
                                   .other_rows = other_rows,
                                   .whole_statistics = whole_statistics};
    mpg_status status = mpg_pipeline_run_check(c, &check);
    result = status == MPG_OK ? Py_NewRef(Py_None) : mpg_py_raise(status);
  }
  PyMem_Free(numbers);
  PyMem_Free(kinds);
  return result;
}

static PyObject *staged_call_compare_draws(PyObject *object, PyObject *other) {
  if (!Py_IS_TYPE(other, Py_TYPE(object)))
    return PyErr_Format(PyExc_TypeError, "StagedCall.compare_draws: expected a StagedCall, got %s",
                        Py_TYPE(other)->tp_name);
  mpg_status status = mpg_pipeline_run_compare_draws(((staged_call *)object)->compiled,
                                                     ((staged_call *)other)->compiled);
  return status == MPG_OK ? Py_NewRef(Py_None) : mpg_py_raise(status);
}

static PyObject *staged_call_draws(PyObject *object, void *Py_UNUSED(unused)) {
  return PyBool_FromLong(((staged_call *)object)->compiled->graph.num_random > 0);
}

static PyMethodDef staged_call_methods[] = {
    {"forward", staged_call_forward, METH_NOARGS,
     "forward()\n--\n\nThe forward programs, as a dict of two lists. 'blocks' has (device, bytes "
     "as rounded by the memory\npool, whether it is a lane) for each memory block. 'segments' has "
     "a dict for each segment:\n\ndevice, depth: the device, and the number of device changes on "
     "the longest path to the segment\ndeferred: whether no other device waits for the "
     "segment\nwaits: the indices of the segments for which it waits\nops: the names of its ops, "
     "as block path/op\nblocks: the indices of the memory blocks that it uses\narrays: (index of "
     "an external array, whether the segment writes it) for each external array that "
     "it\nuses\nbytes_sent, copies: the bytes sent to other devices, and the number of ops that "
     "send them\ncomputes: whether an op does more than copy an array or create constants"},
    {"check", (PyCFunction)(void (*)(void))staged_call_check, METH_VARARGS | METH_KEYWORDS,
     "check(input_kinds, output_kinds, rows, axis, along_time, other=None, other_rows=1, "
     "whole_statistics=False)\n--\n\nRaises MXNetError, naming the op and block, unless the "
     "function computes the same on a micro-batch\nof `rows` rows as on the whole "
     "batch.\n\ninput_kinds, output_kinds: as in PipelineRun\naxis: the batch axis of arrays that "
     "the function creates\nalong_time: whether the micro-batches are chunks of a sequence\nother: "
     "the same function compiled for other_rows rows\nwhole_statistics: also rejects a BatchNorm "
     "that updates its moving averages"},
    {"compare_draws", staged_call_compare_draws, METH_O,
     "compare_draws(other)\n--\n\nCompares the shapes of random draws with those in `other`, the "
     "same function compiled for another\nnumber of rows. If a draw has the same shape in both, it "
     "does not depend on the rows, and all\nmicro-batches draw the same numbers."},
    {0}};
static PyGetSetDef staged_call_properties[] = {
    {"outputs", staged_call_outputs, NULL,
     "A tuple (shape, dtype, ctx, whether it has its own memory) for each result.", NULL},
    {"captures_variable", staged_call_captures_variable, NULL,
     "Whether a captured array has a gradient. A PipelineRun rejects this.", NULL},
    {"draws", staged_call_draws, NULL, "Whether the function draws random numbers.", NULL},
    {0}};
static PyType_Slot staged_call_slots[] = {
    {Py_tp_new, staged_call_new},
    {Py_tp_dealloc, staged_call_dealloc},
    {Py_tp_methods, staged_call_methods},
    {Py_tp_getset, staged_call_properties},
    {Py_tp_doc,
     "StagedCall(trace, inputs, wanted, carried, recording=True, exact=False, "
     "defer=False)\n--\n\nThe function trace(*inputs), compiled into segments that a PipelineRun "
     "can run. A segment is the\nwork of one device between two changes of device."},
    {0, NULL}};
static PyType_Spec staged_call_spec = {"mpgluon._core.StagedCall", sizeof(staged_call), 0,
                                       Py_TPFLAGS_DEFAULT, staged_call_slots};

/* --- PipelineRun ------------------------------------------------------------------------------ */

static int rows_from(PyObject *object, mpg_rows *rows) {
  long long begin, count, total;
  int axis;
  if (!PyTuple_Check(object)) {
    PyErr_SetString(PyExc_TypeError,
                    "PipelineRun: rows must be tuples (axis, begin, count, total)");
    return -1;
  }
  if (!PyArg_ParseTuple(object, "iLLL:PipelineRun", &axis, &begin, &count, &total)) return -1;
  if (axis < 0 || begin < 0 || count < 0 || total < count || begin > total - count) {
    PyErr_SetString(PyExc_ValueError, "PipelineRun: rows must be (axis, begin, count, total)");
    return -1;
  }
  *rows = (mpg_rows){axis, begin, count, total};
  return 0;
}

/* Returns a list of arrays; `kinds` describes them, or is NULL for arrays of mx.nd. */
static PyObject *arrays_list(const mpg_tensor *tensors, uint32_t count,
                             const mpg_compiled_output *kinds) {
  PyObject *list = PyList_New(count);
  for (uint32_t i = 0; list != NULL && i < count; i++) {
    mpg_array array = {.tensor = tensors[i], .numpy = kinds != NULL && kinds[i].numpy};
    mpg_tensor_retain(&array.tensor);
    PyObject *item = mpg_py_array_take(&array);
    if (item == NULL)
      Py_CLEAR(list);
    else
      PyList_SET_ITEM(list, i, item);
  }
  return list;
}

static mpg_status run_host_code(void *state, const mpg_host_call *call) {
  PyObject *inputs = arrays_list(call->inputs, call->num_inputs, NULL),
           *outputs = arrays_list(call->outputs, call->num_outputs, NULL), *result = NULL;
  if (inputs != NULL && outputs != NULL)
    result = PyObject_CallFunction((PyObject *)state, "IIOOOO", (unsigned int)call->micro_batch,
                                   (unsigned int)call->number, call->backward ? Py_True : Py_False,
                                   call->retain ? Py_True : Py_False, inputs, outputs);
  Py_XDECREF(inputs);
  Py_XDECREF(outputs);
  if (result == NULL) return mpg_py_host_exception();
  Py_DECREF(result);
  return MPG_OK;
}
static void release_object(void *object) { Py_DECREF((PyObject *)object); }
static const mpg_host_code python_code = {run_host_code, release_object};

static PyObject *pipeline_run_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
  static char *names[] = {"calls",        "rows",   "input_kinds", "output_kinds",
                          "carried_from", "inputs", "host",        NULL};
  PyObject *calls_object, *rows_object, *input_kinds, *output_kinds, *carried_from, *inputs_object,
      *host = Py_None, *keep = NULL;
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!O!OOOO|O:PipelineRun", names, &PyTuple_Type,
                                   &calls_object, &PyTuple_Type, &rows_object, &input_kinds,
                                   &output_kinds, &carried_from, &inputs_object, &host))
    return NULL;
  Py_ssize_t count = PyTuple_GET_SIZE(calls_object);
  if (count != PyTuple_GET_SIZE(rows_object) || count == 0 || count > MOST) {
    PyErr_Format(PyExc_ValueError,
                 "PipelineRun: there must be 1 to %d micro-batches, each with rows", MOST);
    return NULL;
  }
  pipeline_run *self = NULL;
  uint32_t *numbers = PyMem_Calloc(3 * (size_t)MOST, sizeof *numbers), *kinds_in = numbers,
           *kinds_out = NULL, *from = NULL;
  uint8_t *kinds = PyMem_Calloc(2 * (size_t)MOST, 1);
  mpg_array **inputs = PyMem_Calloc(MOST, sizeof *inputs);
  mpg_compiled **compiled = PyMem_Calloc((size_t)count, sizeof *compiled);
  mpg_rows *rows = PyMem_Calloc((size_t)count, sizeof *rows);
  if (numbers == NULL || kinds == NULL || inputs == NULL || compiled == NULL || rows == NULL) {
    PyErr_NoMemory();
    goto done;
  }
  kinds_out = numbers + MOST;
  from = kinds_out + MOST;
  int num_inputs = mpg_py_array_list(inputs_object, inputs, MOST, &keep, "PipelineRun");
  if (num_inputs < 0) goto done;
  for (Py_ssize_t k = 0; k < count; k++) {
    PyObject *call = PyTuple_GET_ITEM(calls_object, k);
    /* StagedCall cannot be subclassed, so the deallocator identifies the type. */
    if (Py_TYPE(call)->tp_dealloc != staged_call_dealloc) {
      PyErr_Format(PyExc_TypeError, "PipelineRun: micro-batches must be StagedCalls, got %s",
                   Py_TYPE(call)->tp_name);
      goto done;
    }
    compiled[k] = ((staged_call *)call)->compiled;
    if (rows_from(PyTuple_GET_ITEM(rows_object, k), &rows[k]) < 0) goto done;
  }
  uint32_t num_outputs = compiled[0]->num_outputs;
  if (num_outputs > MOST ||
      numbers_from(input_kinds, num_inputs, NUM_KINDS, kinds_in, "PipelineRun: input_kinds") < 0 ||
      numbers_from(output_kinds, num_outputs, NUM_KINDS, kinds_out, "PipelineRun: output_kinds") <
          0 ||
      numbers_from(carried_from, num_inputs, MOST, from, "PipelineRun: carried_from") < 0)
    goto done;
  for (int i = 0; i < num_inputs; i++) kinds[i] = (uint8_t)kinds_in[i];
  for (uint32_t i = 0; i < num_outputs; i++) kinds[MOST + i] = (uint8_t)kinds_out[i];
  mpg_pipeline_run_request request = {.num_micro_batches = (uint32_t)count,
                                      .num_inputs = (uint32_t)num_inputs,
                                      .num_outputs = num_outputs,
                                      .compiled = compiled,
                                      .rows = rows,
                                      .input_kinds = kinds,
                                      .output_kinds = kinds + MOST,
                                      .carried_from = from,
                                      .inputs = inputs,
                                      .host_code = &python_code,
                                      .host_state = host != Py_None ? Py_NewRef(host) : NULL};
  mpg_pipeline_run *run;
  mpg_status status = mpg_pipeline_run_new(&request, &run);
  if (status != MPG_OK) {
    mpg_py_raise(status);
    goto done;
  }
  self = (pipeline_run *)type->tp_alloc(type, 0);
  if (self == NULL)
    mpg_pipeline_run_release(run);
  else
    self->run = run;
done:
  Py_XDECREF(keep);
  PyMem_Free(numbers);
  PyMem_Free(kinds);
  PyMem_Free(inputs);
  PyMem_Free(compiled);
  PyMem_Free(rows);
  return (PyObject *)self;
}

static void pipeline_run_dealloc(PyObject *object) {
  PyTypeObject *type = Py_TYPE(object);
  pipeline_run *self = (pipeline_run *)object;
  if (self->watches)
    mpg_pipeline_run_unwatch(self->run);
  else
    mpg_pipeline_run_release(self->run);
  type->tp_free(object);
  Py_DECREF(type);
}

static PyObject *pipeline_run_outputs(PyObject *object, PyObject *Py_UNUSED(unused)) {
  const mpg_pipeline_run *run = ((pipeline_run *)object)->run;
  for (uint32_t i = 0; i < run->num_outputs; i++)
    if (run->outputs[i].storage == NULL)
      return PyErr_Format(PyExc_ValueError, "PipelineRun: the run is finished");
  return arrays_list(run->outputs, run->num_outputs, run->micro_batches[0].state.compiled->outputs);
}

/* Converts a buffer of 32-bit integers, four per item, to items that the caller frees with
 * PyMem_Free. */
static mpg_micro_batch_item *items_from(PyObject *object, size_t *count) {
  Py_buffer view;
  if (PyObject_GetBuffer(object, &view, PyBUF_CONTIG_RO) < 0) return NULL;
  const uint32_t *numbers = view.buf;
  *count = (size_t)view.len / (4 * sizeof *numbers);
  mpg_micro_batch_item *items = PyMem_Malloc((*count + 1) * sizeof *items);
  if (items == NULL) PyErr_NoMemory();
  if ((size_t)view.len != *count * 4 * sizeof *numbers)
    PyErr_SetString(PyExc_ValueError,
                    "PipelineRun: items must be an array of (phase, micro-batch, segment, stage) "
                    "as 32-bit integers");
  for (size_t i = 0; !PyErr_Occurred() && i < *count; i++) {
    const uint32_t *item = numbers + 4 * i;
    if (item[0] > 1)
      PyErr_Format(PyExc_ValueError, "PipelineRun: unknown phase %u", (unsigned int)item[0]);
    items[i] = (mpg_micro_batch_item){item[1], item[2], item[3],
                                      item[0] ? MPG_PHASE_BACKWARD : MPG_PHASE_FORWARD};
  }
  PyBuffer_Release(&view);
  if (!PyErr_Occurred()) return items;
  PyMem_Free(items);
  return NULL;
}

static PyObject *pipeline_run_submit(PyObject *object, PyObject *items) {
  size_t count;
  mpg_micro_batch_item *list = items_from(items, &count);
  if (list == NULL) return NULL;
  mpg_status status = mpg_pipeline_run_submit(((pipeline_run *)object)->run, list, count);
  PyMem_Free(list);
  return status == MPG_OK ? Py_NewRef(Py_None) : mpg_py_raise(status);
}

static PyObject *pipeline_run_peaks(PyObject *object, PyObject *args) {
  PyObject *items, *result;
  int keep = 0;
  size_t count;
  if (!PyArg_ParseTuple(args, "O|p:peaks", &items, &keep)) return NULL;
  mpg_micro_batch_item *list = items_from(items, &count);
  if (list == NULL) return NULL;
  mpg_peaks peaks = {0};
  mpg_status status =
      mpg_pipeline_run_peaks(((pipeline_run *)object)->run, list, count, keep, &peaks);
  result = status == MPG_OK ? PyDict_New() : mpg_py_raise(status);
  for (int i = 0; result != NULL && i < peaks.num_devices; i++) {
    if (peaks.bytes[i] == 0) continue;
    PyObject *context = mpg_py_context(mpg_device_at(i)->id);
    PyObject *bytes = context != NULL ? PyLong_FromSize_t(peaks.bytes[i]) : NULL;
    if (bytes == NULL || PyDict_SetItem(result, context, bytes) < 0) Py_CLEAR(result);
    Py_XDECREF(bytes);
    Py_XDECREF(context);
  }
  mpg_free(peaks.bytes);
  PyMem_Free(list);
  return result;
}

static PyObject *pipeline_run_train(PyObject *object, PyObject *args) {
  mpg_pipeline_run *run = ((pipeline_run *)object)->run;
  PyObject *heads_object, *earlier = Py_None;
  if (!PyArg_ParseTuple(args, "O!|O:train", &PyList_Type, &heads_object, &earlier)) return NULL;
  if (earlier != Py_None && !Py_IS_TYPE(earlier, Py_TYPE(object)))
    return PyErr_Format(PyExc_TypeError, "PipelineRun.train: earlier must be a PipelineRun");
  if (PyList_GET_SIZE(heads_object) != run->num_outputs)
    return PyErr_Format(PyExc_ValueError, "PipelineRun.train: expected %u heads", run->num_outputs);
  mpg_array **heads = PyMem_Calloc(run->num_outputs + 1, sizeof *heads);
  /* Copies the list, because other threads may change it while the call waits. */
  PyObject *kept = PyList_AsTuple(heads_object);
  if (heads == NULL || kept == NULL) {
    PyMem_Free(heads);
    Py_XDECREF(kept);
    return PyErr_NoMemory();
  }
  for (uint32_t i = 0; i < run->num_outputs; i++) {
    PyObject *head = PyTuple_GET_ITEM(kept, i);
    if (head != Py_None && (heads[i] = mpg_py_expect_array(head, "PipelineRun.train")) == NULL)
      break;
  }
  if (!PyErr_Occurred()) {
    mpg_status status = mpg_pipeline_run_train(
        run, heads, true, earlier != Py_None ? ((pipeline_run *)earlier)->run : NULL);
    if (status != MPG_OK) mpg_py_raise(status);
  }
  PyMem_Free(heads);
  Py_DECREF(kept);
  if (PyErr_Occurred()) return NULL;
  Py_RETURN_NONE;
}

/* Runs the backward of a recorded run by calling a Python function with the run. The function
 * submits the backward items. `driver` is the tuple (function, PipelineRun type). */
static mpg_status drive_backward(mpg_pipeline_run *run, void *driver) {
  PyTypeObject *type = (PyTypeObject *)PyTuple_GET_ITEM((PyObject *)driver, 1);
  pipeline_run *self = (pipeline_run *)type->tp_alloc(type, 0);
  if (self == NULL) return mpg_py_host_exception();
  self->run = run;
  run->references++;
  PyObject *result = PyObject_CallOneArg(PyTuple_GET_ITEM((PyObject *)driver, 0), (PyObject *)self);
  Py_DECREF(self);
  if (result == NULL) return mpg_py_host_exception();
  Py_DECREF(result);
  return MPG_OK;
}
static const mpg_pipeline_run_schedule python_schedule = {drive_backward, release_object};

static PyObject *pipeline_run_record(PyObject *object, PyObject *driver) {
  mpg_pipeline_run *run = ((pipeline_run *)object)->run;
  if (run->finished || run->driver != NULL)
    return PyErr_Format(PyExc_ValueError, "PipelineRun.record: the run is already recorded");
  PyObject *arrays = pipeline_run_outputs(object, NULL),
           *pair = arrays != NULL ? PyTuple_Pack(2, driver, (PyObject *)Py_TYPE(object)) : NULL;
  mpg_array *outputs = PyMem_Calloc(run->num_outputs + 1, sizeof *outputs);
  if (pair == NULL || outputs == NULL) {
    if (!PyErr_Occurred()) PyErr_NoMemory();
    Py_XDECREF(pair);
    Py_CLEAR(arrays);
  } else {
    mpg_status status = mpg_pipeline_run_record(run, &python_schedule, pair, outputs);
    for (uint32_t i = 0; i < run->num_outputs; i++) {
      mpg_array *array = mpg_py_array_of(PyList_GET_ITEM(arrays, i));
      array->node = outputs[i].node; /* moves the reference */
      array->output = outputs[i].output;
    }
    if (status != MPG_OK) {
      mpg_py_raise(status);
      Py_CLEAR(arrays);
    }
  }
  PyMem_Free(outputs);
  return arrays;
}

/* Parses the arguments (micro_batch, phase). Returns the micro-batch and sets *phase. Returns NULL
 * with an exception set on failure. */
static const mpg_micro_batch *micro_batch_at(PyObject *object, PyObject *args, int *phase) {
  const mpg_pipeline_run *run = ((pipeline_run *)object)->run;
  unsigned int micro_batch;
  if (!PyArg_ParseTuple(args, "Ii", &micro_batch, phase)) return NULL;
  if (micro_batch >= run->num_micro_batches || *phase < 0 || *phase > 1 ||
      (*phase == 1 && run->micro_batches[micro_batch].backward == NULL)) {
    PyErr_SetString(PyExc_ValueError, "PipelineRun: unknown micro-batch or phase");
    return NULL;
  }
  return &run->micro_batches[micro_batch];
}

static PyObject *pipeline_run_describe(PyObject *object, PyObject *args) {
  int phase;
  const mpg_micro_batch *micro_batch = micro_batch_at(object, args, &phase);
  if (micro_batch == NULL) return NULL;
  const mpg_program_set *set =
      phase ? micro_batch->backward->programs : micro_batch->state.compiled->programs;
  const char *shardings = mpg_text_string(&micro_batch->state.compiled->shardings);
  PyObject *arrays = PyList_New(0), *result = describe_set(set);
  for (uint32_t i = 0; arrays != NULL && i < set->num_externals; i++) {
    const mpg_tensor *array = &micro_batch->externals[i];
    PyObject *item =
        array->storage != NULL
            ? Py_BuildValue("Nn", PyLong_FromVoidPtr(array->storage), (Py_ssize_t)array->offset)
            : Py_NewRef(Py_None);
    if (item == NULL || PyList_Append(arrays, item) < 0) Py_CLEAR(arrays);
    Py_XDECREF(item);
  }
  PyObject *text = PyUnicode_FromString(shardings);
  if (text == NULL || (result != NULL && PyDict_SetItemString(result, "shardings", text) < 0))
    Py_CLEAR(result);
  Py_XDECREF(text);
  if (arrays == NULL || (result != NULL && PyDict_SetItemString(result, "arrays", arrays) < 0))
    Py_CLEAR(result);
  Py_XDECREF(arrays);
  return result;
}

/* Parses the arguments (micro_batch, phase). Returns the programs, or NULL with an exception set.
 */
static mpg_program_set *set_at(PyObject *object, PyObject *args) {
  int phase;
  const mpg_micro_batch *micro_batch = micro_batch_at(object, args, &phase);
  if (micro_batch == NULL) return NULL;
  return phase ? micro_batch->backward->programs : micro_batch->state.compiled->programs;
}

static PyObject *pipeline_run_program(PyObject *object, PyObject *args) {
  mpg_program_set *set = set_at(object, args);
  return set != NULL ? PyLong_FromVoidPtr(set) : NULL;
}

static PyObject *pipeline_run_structure(PyObject *object, PyObject *args) {
  const mpg_program_set *set = set_at(object, args);
  return set != NULL ? PyLong_FromUnsignedLongLong(mpg_program_set_structure(set)) : NULL;
}

static PyObject *pipeline_run_sizes(PyObject *object, PyObject *args) {
  const mpg_program_set *set = set_at(object, args);
  PyObject *sent = set != NULL ? PyList_New(0) : NULL;
  for (uint32_t s = 0; sent != NULL && s < set->num_segments; s++) {
    const mpg_program_segment *segment = &set->segments[s];
    size_t bytes = 0;
    for (uint32_t i = segment->begin; i < segment->end; i++)
      bytes += set->programs[segment->slot].instructions[i].bytes; /* 0 except for copies */
    PyObject *item = PyLong_FromSize_t(bytes);
    if (item == NULL || PyList_Append(sent, item) < 0) Py_CLEAR(sent);
    Py_XDECREF(item);
  }
  return sent != NULL ? Py_BuildValue("NN", describe_blocks(set), sent) : NULL;
}

static PyObject *pipeline_run_times(PyObject *object, PyObject *args) {
  int phase;
  const mpg_micro_batch *micro_batch = micro_batch_at(object, args, &phase);
  if (micro_batch == NULL) return NULL;
  const mpg_call_frame *frame = micro_batch->staged_calls[phase].frame;
  PyObject *list = PyList_New(0);
  for (uint32_t s = 0;
       list != NULL && frame != NULL && frame->times != NULL && s < frame->set->num_segments; s++) {
    const mpg_device *device = frame->set->programs[frame->set->segments[s].slot].device;
    /* The worker thread writes the times of segment s, so they may be read only after the worker
     * has signaled the end of the segment. */
    mpg_tick last = frame->first_ticks[s] + frame->set->segments[s].num_signals;
    bool done = frame->first_ticks[s] && mpg_tick_reached(device, last);
    PyObject *item = Py_BuildValue("LL", done ? (long long)frame->times[s].begin : 0LL,
                                   done ? (long long)frame->times[s].end : 0LL);
    if (item == NULL || PyList_Append(list, item) < 0) Py_CLEAR(list);
    Py_XDECREF(item);
  }
  return list;
}

static PyObject *pipeline_run_watch(PyObject *object, PyObject *Py_UNUSED(unused)) {
  PyTypeObject *type = Py_TYPE(object);
  pipeline_run *watcher = (pipeline_run *)type->tp_alloc(type, 0);
  if (watcher == NULL) return NULL;
  watcher->run = ((pipeline_run *)object)->run;
  watcher->watches = true;
  watcher->run->watchers++;
  return (PyObject *)watcher;
}

static PyObject *pipeline_run_finish(PyObject *object, PyObject *Py_UNUSED(unused)) {
  mpg_pipeline_run_finish(((pipeline_run *)object)->run);
  Py_RETURN_NONE;
}

static PyMethodDef pipeline_run_methods[] = {
    {"outputs", pipeline_run_outputs, METH_NOARGS,
     "outputs()\n--\n\nThe results of the whole batch, as arrays that are not on the tape."},
    {"submit", pipeline_run_submit, METH_O,
     "submit(items)\n--\n\nQueues segments in the given order. items: an array('I') with four "
     "numbers for each segment: phase\n(0 forward, 1 backward), micro-batch, segment and "
     "stage.\nRaises MXNetError if a segment comes before a segment for which it waits."},
    {"peaks", pipeline_run_peaks, METH_VARARGS,
     "peaks(items, keep=False)\n--\n\nThe planned peak memory of all micro-batches if items are "
     "queued in this order: a dict from Context\nto bytes, without devices that need no memory. "
     "keep=True assumes that no memory is released, because\na backward pass follows."},
    {"record", pipeline_run_record, METH_O,
     "record(driver)\n--\n\nRecords the run on the tape as one call, and returns its results. The "
     "backward pass calls\ndriver(run), which must submit all backward items."},
    {"train", pipeline_run_train, METH_VARARGS,
     "train(heads, earlier=None)\n--\n\nPrepares the backward pass of all micro-batches, so that "
     "backward items can be submitted.\n\nheads: the gradients of the results; None for a result "
     "without a gradient. The gradients of the\ninputs are written to the same arrays as by "
     "autograd.\nearlier: another run of the same training step, such as that of another replica. "
     "This run adds to\nthe gradients of that run."},
    {"describe", pipeline_run_describe, METH_VARARGS,
     "describe(micro_batch, phase)\n--\n\nThe programs of a micro-batch in a phase, in the form of "
     "StagedCall.forward. An additional list\n'arrays' has (address of the memory, offset) for "
     "each external array, or None."},
    {"program", pipeline_run_program, METH_VARARGS,
     "program(micro_batch, phase)\n--\n\nA number that is equal for two micro-batches if they run "
     "the same programs."},
    {"structure", pipeline_run_structure, METH_VARARGS,
     "structure(micro_batch, phase)\n--\n\nA number that is equal for programs that differ only in "
     "sizes."},
    {"sizes", pipeline_run_sizes, METH_VARARGS,
     "sizes(micro_batch, phase)\n--\n\nThe 'blocks' of `describe`, and a list with the "
     "'bytes_sent' of each segment."},
    {"times", pipeline_run_times, METH_VARARGS,
     "times(micro_batch, phase)\n--\n\nThe (begin, end) of each segment in nanoseconds; zeros if "
     "the segment has not run yet."},
    {"watch", pipeline_run_watch, METH_NOARGS,
     "watch()\n--\n\nAnother object for the same run, which can read its times but does not keep "
     "its memory alive."},
    {"finish", pipeline_run_finish, METH_NOARGS,
     "finish()\n--\n\nReleases the run's memory. Call it only after all work has been submitted."},
    {0}};
static PyObject *pipeline_run_micro_batches(PyObject *object, void *Py_UNUSED(unused)) {
  return PyLong_FromUnsignedLong(((pipeline_run *)object)->run->num_micro_batches);
}
static PyGetSetDef pipeline_run_properties[] = {
    {"micro_batches", pipeline_run_micro_batches, NULL, "The number of micro-batches.", NULL}, {0}};
static PyType_Slot pipeline_run_slots[] = {
    {Py_tp_new, pipeline_run_new},
    {Py_tp_dealloc, pipeline_run_dealloc},
    {Py_tp_methods, pipeline_run_methods},
    {Py_tp_getset, pipeline_run_properties},
    {Py_tp_doc,
     "PipelineRun(calls, rows, input_kinds, output_kinds, carried_from, inputs, "
     "host=None)\n--\n\nOne "
     "StagedCall for each micro-batch of a batch. Kinds: MICRO_BATCH_SHARED by all micro-batches, "
     "MICRO_BATCH_SPLIT along the first axis, MICRO_BATCH_CARRIED from result\ncarried_from[i] of "
     "the previous micro-batch. rows: (axis, begin, count, total) of each micro-batch, for random "
     "draws.\nhost(micro_batch, number, backward, retain, inputs, outputs) runs a host step: it "
     "reads "
     "the inputs and\nwrites the outputs, whose memory is valid only during the call."},
    {0, NULL}};
static PyType_Spec pipeline_run_spec = {"mpgluon._core.PipelineRun", sizeof(pipeline_run), 0,
                                        Py_TPFLAGS_DEFAULT, pipeline_run_slots};

int mpg_py_pipeline_run_init(PyObject *module) {
  PyType_Spec *specs[] = {&staged_call_spec, &pipeline_run_spec};
  const char *names[] = {"StagedCall", "PipelineRun"};
  for (int i = 0; i < 2; i++) {
    PyObject *type = PyType_FromModuleAndSpec(module, specs[i], NULL);
    if (type == NULL) return -1;
    int result = PyModule_AddObjectRef(module, names[i], type);
    Py_DECREF(type);
    if (result < 0) return -1;
  }
  const struct {
    const char *name;
    long value;
  } kinds[] = {{"MICRO_BATCH_SHARED", MPG_BATCH_SAME},
               {"MICRO_BATCH_SPLIT", MPG_BATCH_DIVIDED},
               {"MICRO_BATCH_CARRIED", MPG_BATCH_STATE}};
  for (int i = 0; i < 3; i++)
    if (PyModule_AddIntConstant(module, kinds[i].name, kinds[i].value) < 0) return -1;
  return 0;
}
