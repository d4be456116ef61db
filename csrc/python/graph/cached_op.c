/* _core.CachedOp: a Python function on arrays, compiled once per signature (compile/call_cache.h).
 * See core.h. */
#include "base/clock.h"
#include "compile/call_cache.h"
#include "compile/compiled_call.h"
#include "compile/recompilation.h"
#include "python/core.h"
#include "python/graph/describe.h"

typedef struct cached_op {
  PyObject_HEAD PyObject *trace; /* the function; NULL only while the object is being destroyed */
  mpg_compile_options options;   /* by the flags */
  mpg_memory_budget budget;      /* owned limits */
  mpg_cache *cache;
  mpg_recompilation recompilation;
  PyObject *bound;    /* tuple of arrays appended to the inputs of every call; NULL if none */
  PyObject *pointers; /* bytes: the mpg_array pointers of the bound arrays */
  /* Number of the current binding. While it stays the same, calls do not check the bound arrays. 0
   * means that every call must compare the arrays with the signature. */
  uint64_t binding;
  uint64_t bindings; /* number of bindings created so far */
  bool unbound;      /* after unbind(): calls return None until arrays are bound */
  uint64_t changes;  /* value of mpg_array_changes() when the bound arrays were last checked */
  bool bound_wanted; /* true if a bound array needs a gradient */
  /* The bound arrays as a parameter set, created by the first recorded call; owned, or NULL. */
  mpg_parameter_set *parameter_set;
} cached_op;

/* --- Tracing ---------------------------------------------------------------------------------- */

/* Converts the result of a traced function to a new tuple of arrays. Takes ownership of `result`,
 * which may be NULL. */
static PyObject *expect_arrays(PyObject *result) {
  if (result == NULL) return NULL;
  if (mpg_py_is_array(result)) {
    PyObject *one = PyTuple_Pack(1, result);
    Py_DECREF(result);
    return one;
  }
  PyObject *arrays = mpg_py_items(
      result, "CachedOp: the traced function must return an array or a list of arrays");
  Py_DECREF(result);
  if (arrays == NULL) return NULL;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(arrays); i++) {
    PyObject *item = PyTuple_GET_ITEM(arrays, i);
    if (mpg_py_is_array(item)) continue;
    PyErr_Format(
        PyExc_TypeError,
        "CachedOp: the traced function must return a list of arrays, but result %zd is of type %s",
        i, Py_TYPE(item)->tp_name);
    Py_DECREF(arrays);
    return NULL;
  }
  return arrays;
}

static PyObject *traced_inputs(mpg_trace *trace, const mpg_inputs *inputs) {
  uint32_t count = mpg_inputs_count(inputs);
  PyObject *args = PyTuple_New(count);
  for (uint32_t i = 0; args != NULL && i < count; i++) {
    const mpg_array *input = mpg_inputs_at(inputs, i);
    mpg_array array = {0};
    mpg_status status = mpg_trace_input(trace, &input->tensor.desc, mpg_array_device_id(input),
                                        input->numpy, &array);
    PyObject *item = status == MPG_OK ? mpg_py_array_take(&array) : mpg_py_raise(status);
    if (item == NULL)
      Py_CLEAR(args);
    else
      PyTuple_SET_ITEM(args, i, item);
  }
  return args;
}

mpg_compiled *mpg_py_compile_trace(mpg_trace *trace, PyObject *args, PyObject *results,
                                   const mpg_inputs *call, const mpg_compile_options *given) {
  Py_ssize_t num_inputs = PyTuple_GET_SIZE(args), num_outputs = PyTuple_GET_SIZE(results);
  mpg_compiled *compiled = NULL;
  mpg_array *inputs = PyMem_Calloc((size_t)num_inputs + 1, sizeof *inputs);
  mpg_array **outputs = PyMem_Calloc((size_t)num_outputs + 1, sizeof *outputs);
  bool *wanted = PyMem_Calloc((size_t)num_inputs + 1, sizeof *wanted);
  if (inputs == NULL || outputs == NULL || wanted == NULL) {
    PyErr_NoMemory();
  } else {
    for (uint32_t i = 0; call && i < num_inputs; i++)
      wanted[i] = given->recording && mpg_cache_wants(mpg_inputs_at(call, i));
    for (Py_ssize_t i = 0; i < num_inputs; i++)
      inputs[i] = *mpg_py_array_of(PyTuple_GET_ITEM(args, i)); /* borrowed */
    for (Py_ssize_t i = 0; i < num_outputs; i++)
      outputs[i] = mpg_py_array_of(PyTuple_GET_ITEM(results, i));
    mpg_compile_options options = *given;
    if (options.wanted == NULL) options.wanted = wanted;
    mpg_status status = mpg_compile(trace, inputs, (uint32_t)num_inputs, outputs,
                                    (uint32_t)num_outputs, &options, &compiled);
    if (status != MPG_OK) {
      mpg_py_raise(status);
      compiled = NULL;
    }
  }
  PyMem_Free(inputs);
  PyMem_Free(outputs);
  PyMem_Free(wanted);
  return compiled;
}

mpg_compiled *mpg_py_trace_and_compile(PyObject *traced, const mpg_inputs *inputs,
                                       const mpg_compile_options *options) {
  mpg_trace *trace;
  mpg_compiled *compiled = NULL;
  mpg_status status = mpg_trace_begin(&trace);
  if (status != MPG_OK) {
    mpg_py_raise(status);
    return NULL;
  }
  bool recording = mpg_autograd_set_recording(options->recording);
  trace->recording = options->recording;
  PyObject *args = traced_inputs(trace, inputs), *results = NULL;
  if (args != NULL) {
    /* Retains the function, because the call may run code that releases it. */
    PyObject *function = Py_NewRef(traced);
    results = expect_arrays(PyObject_CallObject(function, args));
    Py_DECREF(function);
  }
  mpg_trace_end(trace);
  mpg_autograd_set_recording(recording);
  if (results != NULL) compiled = mpg_py_compile_trace(trace, args, results, inputs, options);
  Py_XDECREF(results);
  Py_XDECREF(args);
  mpg_trace_release(trace);
  return compiled;
}

static bool alive(const cached_op *self) {
  if (self->trace == NULL)
    PyErr_SetString(PyExc_RuntimeError, "CachedOp: it was garbage collected and cannot be called");
  return self->trace != NULL;
}

static mpg_compiled *trace_and_compile(cached_op *self, const mpg_inputs *inputs, bool recording,
                                       bool lean) {
  mpg_compile_options options = self->options;
  options.recording = recording;
  options.lean = lean;
  options.num_bound = inputs->num_bound;
  return alive(self) ? mpg_py_trace_and_compile(self->trace, inputs, &options) : NULL;
}

/* --- Calling ---------------------------------------------------------------------------------- */

static PyObject *call_compiled(mpg_compiled *compiled, const mpg_inputs *inputs) {
  enum { FEW_OUTPUTS = 8 };
  uint32_t num_outputs = compiled->num_outputs;
  mpg_array few[FEW_OUTPUTS], *outputs = few;
  if (num_outputs > FEW_OUTPUTS && (outputs = PyMem_Malloc(num_outputs * sizeof *outputs)) == NULL)
    return PyErr_NoMemory();
  memset(outputs, 0, num_outputs * sizeof *outputs);
  PyObject *result = NULL;
  mpg_status status = mpg_compiled_call(compiled, inputs, outputs);
  if (status != MPG_OK)
    mpg_py_raise(status);
  else
    result = mpg_py_array_take_all(outputs, num_outputs);
  if (outputs != few) PyMem_Free(outputs);
  return result;
}

/* Returns a new list with the names of the inputs, which the attribute `input_names` of the
 * function returns. Returns NULL without an exception if it has no names, and NULL with one if it
 * was interrupted. */
static PyObject *input_names(const cached_op *self) {
  PyObject *function = PyObject_GetAttrString(self->trace, "input_names"),
           *names = function != NULL ? PyObject_CallNoArgs(function) : NULL,
           *list = names != NULL ? PySequence_List(names) : NULL;
  Py_XDECREF(function);
  Py_XDECREF(names);
  if (list == NULL && PyErr_ExceptionMatches(PyExc_Exception)) PyErr_Clear();
  return list;
}

/* Appends which sizes of the inputs differ between the latest calls. Runs Python code. */
static int describe_changes(const cached_op *self, mpg_text *text) {
  enum { MOST_NAMES = 64 };
  const char *names[MOST_NAMES];
  uint32_t count = 0;
  PyObject *list = input_names(self);
  if (list == NULL && PyErr_Occurred()) return -1;
  for (; list != NULL && count < MOST_NAMES && count < PyList_GET_SIZE(list); count++) {
    PyObject *name = PyList_GET_ITEM(list, count);
    names[count] = PyUnicode_Check(name) ? PyUnicode_AsUTF8(name) : NULL;
  }
  PyErr_Clear();
  mpg_recompilation_describe(self->cache, names, count, text);
  Py_XDECREF(list);
  return 0;
}

/* Warns once about a function that keeps recompiling: if compilation takes much of the time, or
 * else if the cache evicts a signature. */
static int warn_of_recompilation(cached_op *self, int64_t begin, int64_t end) {
  bool reported = self->recompilation.reported,
       slow = mpg_recompilation_note(&self->recompilation, self->cache, begin, end);
  if (!slow && (reported || self->cache->dropped != 1)) return 0;
  self->recompilation.reported = true;
  const char *path = mpg_scope_text(mpg_autograd_scope());
  mpg_text text = {0}, changes = {0};
  mpg_text_append(&text, "%s: ", *path ? path : "a hybridized block");
  if (slow)
    mpg_recompilation_summarize(&self->recompilation, self->cache, end, &text);
  else
    mpg_text_append(&text,
                    "more than %d signatures (shapes, dtypes, devices and modes of the inputs) "
                    "have been compiled; the least recently used one is dropped for each new one",
                    (int)MPG_CACHE_LIMIT);
  if (describe_changes(self, &changes) < 0) {
    mpg_text_free(&text);
    mpg_text_free(&changes);
    return -1;
  }
  if (*mpg_text_string(&changes))
    mpg_text_append(&text,
                    ", because sizes changed: %s. Pad them to a few sizes (for example, powers of "
                    "2) and mask the rest, use a cache of fixed size instead of one that grows, or "
                    "run this block without hybridize()",
                    mpg_text_string(&changes));
  else
    mpg_text_append(&text,
                    ", because dtypes, devices or modes of the inputs changed. Use the same "
                    "ones in all calls, or run this block without hybridize()");
  if (slow) mpg_text_append(&text, ". A warm-up of all sizes that will recur needs no change");
  mpg_status status = mpg_text_status(&text);
  int result = status == MPG_OK ? PyErr_WarnEx(PyExc_UserWarning, mpg_text_string(&text), 1)
                                : (mpg_py_raise(status), -1);
  mpg_text_free(&text);
  mpg_text_free(&changes);
  return result;
}

/* Returns a new reference to the compiled call for the inputs' signature. Compiles it if necessary.
 */
static mpg_compiled *find_compiled(cached_op *self, const mpg_inputs *inputs) {
  bool train = mpg_autograd_training();
  bool recording = mpg_autograd_recording();
  mpg_compiled *compiled = mpg_cache_find(self->cache, inputs, train, recording);
  if (compiled == NULL) {
    int64_t begin = mpg_clock_ns();
    compiled = trace_and_compile(self, inputs, recording, false);
    if (compiled == NULL) return NULL;
    compiled->references++; /* one reference for the cache, one for the caller */
    mpg_status status = mpg_cache_add(self->cache, inputs, train, recording, compiled);
    if (status != MPG_OK || warn_of_recompilation(self, begin, mpg_clock_ns()) < 0) {
      mpg_compiled_release(compiled);
      if (status != MPG_OK) mpg_py_raise(status);
      return NULL;
    }
  } else {
    compiled->references++;
  }
  return compiled;
}

static PyObject *call_with(cached_op *self, const mpg_inputs *inputs) {
  mpg_compiled *compiled = find_compiled(self, inputs);
  if (compiled == NULL) return NULL;
  PyObject *result = call_compiled(compiled, inputs);
  /* If a device has no memory for the values that the call keeps, such as packed weights, the call
   * is recompiled to compute them whenever it runs. If it doesn't fit then either, the cause is
   * something else, and later calls should keep the values. All ranks would have to recompile it.
   */
  if (result == NULL && compiled->num_kept && !compiled->agreed &&
      PyErr_ExceptionMatches(mpg_py->errors[MPG_DEVICE_OUT_OF_MEMORY])) {
    PyErr_Clear();
    mpg_compiled *lean = trace_and_compile(self, inputs, false, true);
    if (lean != NULL) {
      result = call_compiled(lean, inputs);
      if (result != NULL) mpg_cache_replace(self->cache, compiled, lean);
      mpg_compiled_release(lean);
    }
  }
  mpg_compiled_release(compiled);
  return result;
}

/* Assigns a new binding number after the bound arrays have changed, or 0 if one of them is the
 * result of a recorded computation. */
static void note_binding(cached_op *self) {
  Py_ssize_t count = self->bound != NULL ? PyTuple_GET_SIZE(self->bound) : 0;
  self->changes = mpg_array_changes();
  self->binding = ++self->bindings;
  self->bound_wanted = false;
  mpg_parameter_set_release(self->parameter_set);
  self->parameter_set = NULL;
  for (Py_ssize_t i = 0; i < count; i++) {
    mpg_array *array = mpg_py_array_of(PyTuple_GET_ITEM(self->bound, i));
    array->bound = true;
    self->bound_wanted |= mpg_cache_wants(array);
    if (array->node && array->node->kind != MPG_TAPE_VARIABLE) self->binding = 0;
  }
}

mpg_status mpg_py_call_compiled(void *op, mpg_array *const *inputs, uint32_t num_inputs,
                                mpg_array *outputs, uint32_t num_outputs) {
  cached_op *self = op;
  if (!self->binding || self->changes != mpg_array_changes()) note_binding(self);
  mpg_inputs given = {.given = inputs, .num_given = num_inputs, .binding = self->binding};
  mpg_compiled *compiled = find_compiled(self, &given);
  if (compiled == NULL) return mpg_py_host_exception();
  mpg_status status = compiled->num_outputs == num_outputs
                          ? mpg_compiled_call(compiled, &given, outputs)
                          : mpg_fail(MPG_VALUE_ERROR, "the function returns %u arrays, not %u",
                                     compiled->num_outputs, num_outputs);
  mpg_compiled_release(compiled);
  return status;
}

/* Calls the Python function while another function is traced, so that its ops become part of that
 * trace. */
static PyObject *call_traced(cached_op *self, PyObject *args) {
  PyObject *all = self->bound != NULL ? PySequence_Concat(args, self->bound) : Py_NewRef(args),
           *result = NULL;
  if (all == NULL) return NULL;
  PyObject *function = Py_NewRef(self->trace);
  PyObject *arrays = expect_arrays(PyObject_CallObject(function, all));
  Py_DECREF(function);
  Py_DECREF(all);
  if (arrays != NULL) {
    result = PySequence_List(arrays);
    Py_DECREF(arrays);
  }
  return result;
}

/* Allocates the gradients of the bound arrays before the first recorded call. Other threads may run
 * and replace arrays meanwhile, so the last pass over the arrays must create nothing. */
static bool create_gradients(cached_op *self) {
  bool created;
  do {
    if (!self->binding || self->changes != mpg_array_changes()) note_binding(self);
    if (!self->binding || !self->bound_wanted || self->parameter_set != NULL) return true;
    created = false;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(self->bound); i++) {
      mpg_tape_node *node = mpg_py_array_of(PyTuple_GET_ITEM(self->bound, i))->node;
      if (!mpg_tape_lacks_gradient(node)) continue;
      created = true;
      mpg_status status = mpg_tape_create_gradient(node);
      if (status != MPG_OK) {
        mpg_py_raise(status);
        return false;
      }
      if (self->bound == NULL) break;
    }
  } while (created);
  return true;
}

enum { FEW = 32 };

static PyObject *cached_op_call(PyObject *object, PyObject *args, PyObject *kwargs) {
  cached_op *self = (cached_op *)object;
  Py_ssize_t count = PyTuple_GET_SIZE(args);
  if (kwargs != NULL && PyDict_GET_SIZE(kwargs)) {
    PyErr_SetString(PyExc_TypeError, "CachedOp takes only positional arrays");
    return NULL;
  }
  if (!alive(self)) return NULL;
  mpg_array *few[FEW], **given = few;
  bool traced = mpg_trace_active() != NULL;
  if (!traced && mpg_autograd_recording() && !create_gradients(self)) return NULL;
  PyObject *result = NULL, *bound = Py_XNewRef(self->bound), *pointers = Py_XNewRef(self->pointers);
  if (count > FEW && (given = PyMem_Malloc((size_t)count * sizeof *given)) == NULL) {
    PyErr_NoMemory();
    goto done;
  }
  for (Py_ssize_t i = 0; i < count; i++) {
    given[i] = mpg_py_expect_array(PyTuple_GET_ITEM(args, i), "CachedOp");
    if (given[i] == NULL) goto done;
    traced |= mpg_array_traced(given[i]);
  }
  if (self->unbound) {
    result = Py_NewRef(Py_None);
  } else if (traced) {
    result = call_traced(self, args);
  } else {
    if (!self->binding || self->changes != mpg_array_changes()) note_binding(self);
    mpg_parameter_set *parameters = NULL;
    if (self->binding && self->bound_wanted && mpg_autograd_recording()) {
      mpg_status status =
          self->parameter_set != NULL
              ? MPG_OK
              : mpg_parameter_set_make((mpg_array **)PyBytes_AS_STRING(pointers),
                                       (uint32_t)PyTuple_GET_SIZE(bound), &self->parameter_set);
      if (status != MPG_OK) {
        mpg_py_raise(status);
        goto done;
      }
      parameters = mpg_parameter_set_retain(self->parameter_set);
    }
    mpg_inputs inputs = {.given = given,
                         .num_given = (uint32_t)count,
                         .bound = bound != NULL ? (mpg_array **)PyBytes_AS_STRING(pointers) : NULL,
                         .num_bound = bound != NULL ? (uint32_t)PyTuple_GET_SIZE(bound) : 0,
                         .binding = self->binding,
                         .parameters = parameters};
    result = call_with(self, &inputs);
    mpg_parameter_set_release(parameters);
  }
done:
  if (given != few) PyMem_Free(given);
  Py_XDECREF(bound);
  Py_XDECREF(pointers);
  return result;
}

static PyObject *bind_arrays(cached_op *self, PyObject *arrays, bool unbound) {
  PyObject *bound = PySequence_Tuple(arrays);
  if (bound == NULL) return NULL;
  Py_ssize_t count = PyTuple_GET_SIZE(bound);
  PyObject *pointers = PyBytes_FromStringAndSize(NULL, count * (Py_ssize_t)sizeof(mpg_array *));
  bool good = pointers != NULL;
  for (Py_ssize_t i = 0; good && i < count; i++) {
    mpg_array *array = mpg_py_expect_array(PyTuple_GET_ITEM(bound, i), "CachedOp.bind");
    good = array != NULL && mpg_py_expect_value(array, "CachedOp.bind") == 0;
    ((mpg_array **)PyBytes_AS_STRING(pointers))[i] = array;
  }
  if (!good) {
    Py_XDECREF(pointers);
    Py_DECREF(bound);
    return NULL;
  }
  for (uint32_t i = 0; i < self->cache->count; i++)
    mpg_compiled_unbind(self->cache->entries[i].compiled);
  PyObject *former = self->bound, *former_pointers = self->pointers;
  self->bound = bound;
  self->pointers = pointers;
  self->unbound = unbound;
  note_binding(self);
  Py_XDECREF(former);
  Py_XDECREF(former_pointers);
  Py_RETURN_NONE;
}

/* True if all compiled calls can use the given arrays instead of the captured ones. If `change`,
 * also replaces the captured arrays. */
static bool recapture(cached_op *self, const mpg_captured *captured, size_t count, bool change) {
  for (uint32_t i = 0; i < self->cache->count; i++) {
    const mpg_cache_entry *entry = &self->cache->entries[i];
    if (!mpg_compiled_recapture(entry->compiled, captured, count, entry->recording, change))
      return false;
  }
  return true;
}

static int captured_from(PyObject *pair, mpg_captured *captured) {
  PyObject *storage, *node, *item;
  Py_ssize_t offset;
  if (!PyTuple_Check(pair))
    return PyErr_SetString(PyExc_TypeError, "recapture: expected pairs of an index and an array"),
           -1;
  if (!PyArg_ParseTuple(pair, "(OnO)O:recapture", &storage, &offset, &node, &item)) return -1;
  *captured =
      (mpg_captured){PyLong_AsVoidPtr(storage), (size_t)offset, PyLong_AsVoidPtr(node), NULL};
  captured->array = PyErr_Occurred() ? NULL : mpg_py_expect_array(item, "recapture");
  return captured->array == NULL || mpg_py_expect_value(captured->array, "recapture") < 0 ? -1 : 0;
}

static PyObject *cached_op_recapture(PyObject *object, PyObject *args) {
  cached_op *self = (cached_op *)object;
  PyObject *pairs, *holder, *former, *following, *noted = NULL, *result = NULL;
  if (!PyArg_ParseTuple(args, "OOOO:recapture", &pairs, &holder, &former, &following)) return NULL;
  PyObject *items = PySequence_Tuple(pairs);
  size_t count = items != NULL ? (size_t)PyTuple_GET_SIZE(items) : 0;
  mpg_captured *captured = items != NULL ? PyMem_Malloc((count + 1) * sizeof *captured) : NULL;
  if (captured == NULL) {
    if (items != NULL) PyErr_NoMemory();
    goto done;
  }
  for (size_t i = 0; i < count; i++)
    if (captured_from(PyTuple_GET_ITEM(items, (Py_ssize_t)i), &captured[i]) < 0) goto done;
  /* From here on no other thread runs, so checking and replacing the captured arrays is atomic. */
  if ((noted = PyObject_GetAttrString(holder, "captured")) == NULL) goto done;
  bool possible = noted == former && recapture(self, captured, count, false);
  if (possible && PyObject_SetAttrString(holder, "captured", following) < 0) goto done;
  if (possible) recapture(self, captured, count, true);
  /* Assigns a new binding number, so that no call relies on the former binding. */
  if (possible) note_binding(self);
  result = noted == former ? PyBool_FromLong(possible) : Py_NewRef(Py_None);
done:
  Py_XDECREF(noted);
  PyMem_Free(captured);
  Py_XDECREF(items);
  return result;
}

/* --- Introspection ---------------------------------------------------------------------------- */

static PyObject *cached_op_compiled(PyObject *object, PyObject *Py_UNUSED(unused)) {
  const cached_op *self = (cached_op *)object;
  PyObject *list = PyList_New(0);
  for (uint32_t i = 0; list != NULL && i < self->cache->count; i++) {
    PyObject *item = mpg_py_describe_call(&self->cache->entries[i]);
    if (item == NULL || PyList_Append(list, item) < 0) Py_CLEAR(list);
    Py_XDECREF(item);
  }
  return list;
}

static PyObject *cached_op_dump(PyObject *object, PyObject *Py_UNUSED(unused)) {
  const cached_op *self = (cached_op *)object;
  mpg_text text = {0};
  for (uint32_t i = 0; i < self->cache->count; i++) {
    if (i) mpg_text_append(&text, "\n");
    mpg_graph_dump(&self->cache->entries[i].compiled->graph, &text);
  }
  mpg_status status = mpg_text_status(&text);
  PyObject *result =
      status == MPG_OK ? PyUnicode_FromString(mpg_text_string(&text)) : mpg_py_raise(status);
  mpg_text_free(&text);
  return result;
}

static PyObject *cached_op_groups(PyObject *object, PyObject *Py_UNUSED(unused)) {
  const cached_op *self = (cached_op *)object;
  mpg_text text = {0};
  for (uint32_t i = 0; i < self->cache->count; i++) {
    if (i) mpg_text_append(&text, "\n");
    mpg_py_dump_groups(self->cache->entries[i].compiled, &text);
  }
  mpg_status status = mpg_text_status(&text);
  PyObject *result =
      status == MPG_OK ? PyUnicode_FromString(mpg_text_string(&text)) : mpg_py_raise(status);
  mpg_text_free(&text);
  return result;
}

static PyObject *cached_op_clear(PyObject *object, PyObject *Py_UNUSED(unused)) {
  mpg_cache_clear(((cached_op *)object)->cache);
  Py_RETURN_NONE;
}

/* --- The type --------------------------------------------------------------------------------- */

/* Fills a memory budget from a list of (Context or None, bytes). */
static int take_budget(PyObject *list, mpg_memory_budget *budget) {
  static const char form[] = "'budget' must be a list of (Context or None, bytes)";
  PyObject *items = mpg_py_items(list, form);
  if (items == NULL) return -1;
  int result = -1;
  Py_ssize_t count = PyTuple_GET_SIZE(items);
  budget->limits = PyMem_Calloc((size_t)count + 1, sizeof *budget->limits);
  if (budget->limits == NULL) {
    PyErr_NoMemory();
    goto done;
  }
  for (Py_ssize_t i = 0; i < count; i++) {
    PyObject *pair = PyTuple_GET_ITEM(items, i), *device;
    Py_ssize_t bytes;
    mpg_memory_limit *limit = &budget->limits[i];
    if (!PyTuple_Check(pair)) {
      PyErr_SetString(PyExc_TypeError, form);
      goto done;
    }
    if (!PyArg_ParseTuple(pair, "On;'budget' must be a list of (Context or None, bytes)", &device,
                          &bytes))
      goto done;
    if (device != Py_None && mpg_py_device_id(device, &limit->device) < 0) goto done;
    limit->bytes = bytes < 0 ? 0 : (size_t)bytes;
    budget->count++;
  }
  result = 0;
done:
  Py_DECREF(items);
  return result;
}

int mpg_py_compile_options(PyObject *flags, mpg_compile_options *options,
                           mpg_memory_budget *budget) {
  int exact = 0, fuse = 1;
  options->budget = budget;
  if (flags == NULL) return 0;
  PyObject *flag = PyDict_GetItemString(flags, "exact");
  if (flag != NULL && (exact = PyObject_IsTrue(flag)) < 0) return -1;
  flag = PyDict_GetItemString(flags, "fuse");
  if (flag != NULL && (fuse = PyObject_IsTrue(flag)) < 0) return -1;
  flag = PyDict_GetItemString(flags, "offload_elements");
  options->offload_elements = flag != NULL ? PyLong_AsLongLong(flag) : 0;
  if (options->offload_elements == -1 && PyErr_Occurred()) return -1;
  options->exact = exact;
  options->unfused = !fuse;
  flag = PyDict_GetItemString(flags, "budget");
  return flag != NULL ? take_budget(flag, budget) : 0;
}

static PyObject *cached_op_bind(PyObject *object, PyObject *arrays) {
  return bind_arrays((cached_op *)object, arrays, false);
}

static PyObject *cached_op_unbind(PyObject *object, PyObject *Py_UNUSED(unused)) {
  PyObject *nothing = PyTuple_New(0),
           *result = nothing != NULL ? bind_arrays((cached_op *)object, nothing, true) : NULL;
  Py_XDECREF(nothing);
  return result;
}

static PyObject *cached_op_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
  static char *names[] = {"trace", "flags", NULL};
  PyObject *trace, *flags = NULL;
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|O!:CachedOp", names, &trace, &PyDict_Type,
                                   &flags))
    return NULL;
  if (!PyCallable_Check(trace)) {
    PyErr_Format(PyExc_TypeError, "CachedOp: the function to trace must be callable, got %s",
                 Py_TYPE(trace)->tp_name);
    return NULL;
  }
  cached_op *self = (cached_op *)type->tp_alloc(type, 0);
  if (self == NULL) return NULL;
  self->trace = Py_NewRef(trace);
  self->cache = PyMem_Calloc(1, sizeof *self->cache);
  if (self->cache == NULL) {
    Py_DECREF(self);
    return PyErr_NoMemory();
  }
  if (mpg_py_compile_options(flags, &self->options, &self->budget) < 0) {
    Py_DECREF(self);
    return NULL;
  }
  return (PyObject *)self;
}

static int cached_op_traverse(PyObject *object, visitproc visit, void *arg) {
  Py_VISIT(Py_TYPE(object));
  Py_VISIT(((cached_op *)object)->trace);
  Py_VISIT(((cached_op *)object)->bound);
  return 0;
}

/* Releases everything the object holds: the function, arrays, and compiled calls with their memory.
 * Later calls raise an error. */
static int cached_op_break(PyObject *object) {
  cached_op *self = (cached_op *)object;
  PyObject *trace = self->trace, *bound = self->bound, *pointers = self->pointers;
  mpg_parameter_set *parameter_set = self->parameter_set;
  self->trace = self->bound = self->pointers = NULL;
  self->parameter_set = NULL;
  self->binding = 0;
  if (self->cache != NULL) mpg_cache_clear(self->cache);
  mpg_parameter_set_release(parameter_set);
  Py_XDECREF(trace);
  Py_XDECREF(bound);
  Py_XDECREF(pointers);
  return 0;
}

static void cached_op_dealloc(PyObject *object) {
  cached_op *self = (cached_op *)object;
  PyTypeObject *type = Py_TYPE(object);
  PyObject_GC_UnTrack(object);
  cached_op_break(object);
  PyMem_Free(self->cache);
  PyMem_Free(self->budget.limits);
  type->tp_free(object);
  Py_DECREF(type);
}

static PyObject *cached_op_dropped(PyObject *object, void *Py_UNUSED(unused)) {
  return PyLong_FromUnsignedLongLong(((cached_op *)object)->cache->dropped);
}

static PyGetSetDef cached_op_properties[] = {
    {"dropped", cached_op_dropped, NULL,
     "The number of discarded signatures. Beyond CachedOp.LIMIT signatures, the least recently "
     "used one is\ndiscarded.",
     NULL},
    {0}};

static PyMethodDef cached_op_methods[] = {
    {"compiled", cached_op_compiled, METH_NOARGS,
     "compiled()\n--\n\nA list with one dict for each compiled signature.\n\n'devices' maps the "
     "name of a device to its programs ('forward', 'backward', 'invariants'), 'planned'\nand "
     "'replays'.\nA program is a list of instructions, which are dicts. Their 'kind' is 'run' "
     "(with op, scope and\nshapes; fused: the ops of a fused group; recomputed: True for a "
     "recomputation), 'copy' (to, bytes),\n'signal' or 'wait' (from).\n'planned' has the planned "
     "bytes: forward; saved (the part of forward that backward reads); backward\n(in addition to "
     "forward); lanes (arrays that other devices push); kept (values computed from\nparameters "
     "alone by the 'invariants' program, which runs after a write to the parameters); total;\nand "
     "alive (a lower bound for all plans that run forward and backward in this order).\n'replays' "
     "is the number of times that the device replayed work as a captured graph.\n\n'copies' lists "
     "the transfers between devices, 'ops' is the number of ops in the graph, and 'inputs'\nhas "
     "(shape, dtype, device, whether it needs a gradient) for each input.\n'calls' is the number "
     "of calls, 'frames' the number of calls that wait for their backward pass, and\n'bytes_held' "
     "their memory."},
    {"bind", cached_op_bind, METH_O,
     "bind(arrays)\n--\n\nBinds `arrays`, a list, as the last inputs of all later calls. The "
     "caller then passes only the\nremaining inputs. Bound arrays are not checked again while they "
     "stay the same objects. [] binds\nnothing. `trace` still gets all inputs."},
    {"unbind", cached_op_unbind, METH_NOARGS,
     "unbind()\n--\n\nReleases the bound arrays. Until the next `bind`, calls do nothing and "
     "return None."},
    {"recapture", cached_op_recapture, METH_VARARGS,
     "recapture(pairs, holder, former, following)\n--\n\nReplaces captured arrays. For each pair "
     "`(place, array)`, later calls read `array` instead of the\ncaptured array whose `_place` was "
     "`place`, and instead of views of that array. Also changes\n`holder.captured` from `former` "
     "to `following`.\n\nReturns True if this was done. Returns None and changes nothing if "
     "`holder.captured` is no longer\n`former`. Returns False and changes nothing if the function "
     "must be traced again, because a shape,\ndtype or device differs, or because an array newly "
     "needs a gradient."},
    {"dump", cached_op_dump, METH_NOARGS,
     "dump()\n--\n\nThe graphs as text with one line per node, the most recently used signature "
     "first."},
    {"groups", cached_op_groups, METH_NOARGS,
     "groups()\n--\n\nThe fused groups of all programs as text: their domains, members, and the "
     "values that are stored in\nmemory."},
    {"clear", cached_op_clear, METH_NOARGS,
     "clear()\n--\n\nDiscards everything compiled; the next call traces the function."},
    {0}};

static PyType_Slot cached_op_slots[] = {
    {Py_tp_new, cached_op_new},
    {Py_tp_dealloc, cached_op_dealloc},
    {Py_tp_traverse, cached_op_traverse},
    {Py_tp_clear, cached_op_break},
    {Py_tp_call, cached_op_call},
    {Py_tp_methods, cached_op_methods},
    {Py_tp_getset, cached_op_properties},
    {Py_tp_doc,
     "CachedOp(trace, flags={})\n--\n\nA function on arrays, compiled for each signature it is "
     "called with (shapes, dtypes, devices, mode).\n\ntrace(*arrays) runs once per signature on "
     "arrays that have a shape, dtype and context but no values, on any mix of\ndevices, and "
     "returns a list of arrays. Calling the object with arrays runs the compiled programs, one per "
     "device, and\nreturns the list; while recording it is one call on the tape. Arrays with "
     "values that the function uses in addition to its\narguments become constants. flags: "
     "{'exact': True} omits rewrites that change bits, {'fuse': False} runs every op "
     "separately.\n\nRaises TypeError for arguments that are not arrays, MXNetError for anything "
     "that cannot be traced, and the errors of `trace`."},
    {0, NULL}};

static PyType_Spec cached_op_spec = {
    .name = "mpgluon._core.CachedOp",
    .basicsize = sizeof(cached_op),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .slots = cached_op_slots,
};

bool mpg_py_is_cached_op(PyObject *object) {
  return Py_TYPE(object)->tp_dealloc == cached_op_dealloc && ((cached_op *)object)->bound == NULL;
}

int mpg_py_cached_op_init(PyObject *module) {
  PyObject *type = PyType_FromModuleAndSpec(module, &cached_op_spec, NULL);
  if (type == NULL) return -1;
  PyObject *limit = PyLong_FromLong(MPG_CACHE_LIMIT);
  int result = limit != NULL ? PyObject_SetAttrString(type, "LIMIT", limit) : -1;
  Py_XDECREF(limit);
  if (result == 0) result = PyModule_AddObjectRef(module, "CachedOp", type);
  Py_DECREF(type);
  return result;
}
