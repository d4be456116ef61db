/* Descriptions of compiled calls for Python: their programs, instructions, copies and memory. */
#include "python/graph/describe.h"

#include "compile/invariants/invariants.h"
#include "graph/program/lower_fused.h"
#include "python/core.h"

static PyObject *device_text(mpg_device_id id) {
  return PyUnicode_FromString(mpg_device_id_text(id).text);
}

/* Sets dict[key] to `value` and releases the caller's reference to it. Returns -1 if `value` is
 * NULL, so that callers can pass the result of a failed call. */
static int put(PyObject *dict, const char *key, PyObject *value) {
  if (value == NULL) return -1;
  int result = PyDict_SetItemString(dict, key, value);
  Py_DECREF(value);
  return result;
}

static PyObject *describe_members(const mpg_fused *fused) {
  uint32_t producer = fused->producer.op != NULL;
  PyObject *list = PyList_New(producer + fused->num_members);
  for (uint32_t i = 0; list != NULL && i < producer + fused->num_members; i++) {
    PyObject *name = PyUnicode_FromString(i < producer ? fused->producer.op->name
                                                       : fused->members[i - producer].op->name);
    if (name == NULL)
      Py_CLEAR(list);
    else
      PyList_SET_ITEM(list, i, name);
  }
  return list;
}

static PyObject *describe_instruction(const mpg_program_set *set, const mpg_program *program,
                                      const mpg_instruction *instruction) {
  static const char *const kinds[] = {
      [MPG_RUN] = "run", [MPG_COPY] = "copy", [MPG_SIGNAL] = "signal", [MPG_WAIT] = "wait"};
  PyObject *dict = PyDict_New();
  if (dict == NULL || put(dict, "kind", PyUnicode_FromString(kinds[instruction->kind])) < 0)
    goto fail;
  if (instruction->kind == MPG_WAIT || instruction->kind == MPG_SIGNAL) {
    if (put(dict, "signal", PyLong_FromUnsignedLong(instruction->tick)) < 0) goto fail;
    if (instruction->kind == MPG_WAIT &&
        put(dict, "from", device_text(set->programs[instruction->peer].device->id)) < 0)
      goto fail;
    return dict;
  }
  if (put(dict, "op", PyUnicode_FromString(mpg_instruction_name(instruction))) < 0 ||
      put(dict, "scope", PyUnicode_FromString(mpg_scope_text(instruction->scope))) < 0)
    goto fail;
  if (instruction->recomputes && put(dict, "recomputed", PyBool_FromLong(1)) < 0) goto fail;
  if (instruction->fused && put(dict, "fused", describe_members(instruction->fused)) < 0) goto fail;
  PyObject *shapes = PyList_New(0);
  for (uint32_t i = 0; shapes != NULL && i < instruction->num_outputs; i++) {
    PyObject *shape = mpg_py_shape_tuple(
        &program->views[instruction->operands + instruction->num_inputs + i].desc.shape);
    if (shape == NULL || PyList_Append(shapes, shape) < 0) Py_CLEAR(shapes);
    Py_XDECREF(shape);
  }
  if (put(dict, "shapes", shapes) < 0) goto fail;
  if (instruction->kind == MPG_COPY &&
      (put(dict, "to", device_text(set->programs[instruction->peer].device->id)) < 0 ||
       put(dict, "bytes", PyLong_FromSize_t(instruction->bytes)) < 0))
    goto fail;
  return dict;
fail:
  Py_XDECREF(dict);
  return NULL;
}

static PyObject *describe_program(const mpg_program_set *set, uint32_t slot) {
  const mpg_program *program = &set->programs[slot];
  PyObject *list = PyList_New(0);
  for (uint32_t i = 0; list != NULL && i < program->count; i++) {
    PyObject *item = describe_instruction(set, program, &program->instructions[i]);
    if (item == NULL || PyList_Append(list, item) < 0) Py_CLEAR(list);
    Py_XDECREF(item);
  }
  return list;
}

/* Appends a dict with from, to, bytes, phase and scope (the op's block path) for every copy between
 * devices in a set of programs. */
static int describe_copies(const mpg_program_set *set, const char *phase, PyObject *list) {
  for (uint32_t s = 0; s < set->num_programs; s++) {
    const mpg_program *program = &set->programs[s];
    for (uint32_t i = 0; i < program->count; i++) {
      const mpg_instruction *instruction = &program->instructions[i];
      if (instruction->kind != MPG_COPY) continue;
      PyObject *dict = PyDict_New();
      bool done =
          dict != NULL && put(dict, "from", device_text(program->device->id)) == 0 &&
          put(dict, "to", device_text(set->programs[instruction->peer].device->id)) == 0 &&
          put(dict, "bytes", PyLong_FromSize_t(instruction->bytes)) == 0 &&
          put(dict, "phase", PyUnicode_FromString(phase)) == 0 &&
          put(dict, "scope", PyUnicode_FromString(mpg_scope_text(instruction->scope))) == 0 &&
          PyList_Append(list, dict) == 0;
      Py_XDECREF(dict);
      if (!done) return -1;
    }
  }
  return 0;
}

/* Returns the total bytes of the memory blocks that a set allocates on one device. Counts only
 * lanes if `lanes`, otherwise all other blocks. */
static size_t planned(const mpg_program_set *set, uint32_t slot, bool lanes) {
  size_t bytes = 0;
  for (uint32_t i = set->first_block; i < set->num_blocks; i++)
    if (set->block_devices[i] == slot && set->block_lanes[i] == lanes) bytes += set->block_sizes[i];
  return bytes;
}

/* Returns the total bytes of the forward values on one device that backward reads, counting only
 * those stored in the device's main memory block. Values that share memory are counted once. */
static size_t saved_bytes(const mpg_compiled *c, uint32_t slot) {
  bool *counted = c->saved != NULL ? PyMem_Calloc(c->graph.num_values + 1, sizeof *counted) : NULL;
  size_t bytes = 0;
  for (size_t v = 0; counted != NULL && v < c->graph.num_values; v++) {
    mpg_location location = c->plan.locations[v];
    if (!c->saved[v] || counted[c->plan.roots[v]] || location.base == MPG_NO_BASE ||
        location.base < c->plan.num_externals)
      continue;
    const mpg_plan_block *block = &c->plan.blocks[location.base - c->plan.num_externals];
    if (block->kind != MPG_BLOCK_MAIN || block->device != slot) continue;
    counted[c->plan.roots[v]] = true;
    bytes += mpg_desc_bytes(&c->graph.values[v].desc);
  }
  PyMem_Free(counted);
  return bytes;
}

/* Returns the programs of the most recently compiled backward, or NULL. */
static const mpg_program_set *backward_set(const mpg_compiled *c) {
  return c->backwards ? c->backwards->programs : NULL;
}

/* Returns the total bytes of the values on a device that the invariants program computes and keeps
 * for all calls. */
static size_t kept_bytes(const mpg_compiled *c, mpg_device_id id) {
  size_t bytes = 0;
  for (uint32_t i = 0; i < c->num_kept; i++) {
    const mpg_graph_value *value = mpg_graph_at(&c->graph, c->kept[i]);
    if (mpg_device_id_equal(value->device, id)) bytes += mpg_desc_bytes(&value->desc);
  }
  return bytes;
}

static uint64_t replayed(const mpg_program_set *set, uint32_t slot) {
  return atomic_load_explicit(&set->programs[slot].replayed, memory_order_relaxed);
}

static PyObject *describe_device(const mpg_compiled *c, mpg_device_id id) {
  PyObject *dict = PyDict_New();
  if (dict == NULL) return NULL;
  uint32_t slot = mpg_plan_slot(&c->plan, id);
  const mpg_program_set *backward = backward_set(c);
  uint32_t back_slot = backward ? mpg_plan_slot(&c->backwards->plan, id) : UINT32_MAX;
  uint32_t invariant_slot = mpg_plan_slot(&c->invariants.plan, id);
  bool here = slot != UINT32_MAX, there = back_slot != UINT32_MAX,
       before = invariant_slot != UINT32_MAX;
  size_t kept = kept_bytes(c, id);
  size_t forward_bytes = here ? planned(c->programs, slot, false) : 0,
         forward_lanes = here ? planned(c->programs, slot, true) : 0;
  size_t backward_bytes = there ? planned(backward, back_slot, false) : 0,
         backward_lanes = there ? planned(backward, back_slot, true) : 0;
  size_t alive = here ? c->plan.alive[slot] : 0; /* the larger of the forward and backward peaks */
  if (there && c->backwards->plan.alive[back_slot] > alive)
    alive = c->backwards->plan.alive[back_slot];
  uint64_t replays =
      (here ? replayed(c->programs, slot) : 0) + (there ? replayed(backward, back_slot) : 0);
  PyObject *planned_dict = PyDict_New();
  bool done = planned_dict != NULL &&
              put(planned_dict, "forward", PyLong_FromSize_t(forward_bytes)) == 0 &&
              put(planned_dict, "saved", PyLong_FromSize_t(here ? saved_bytes(c, slot) : 0)) == 0 &&
              put(planned_dict, "backward", PyLong_FromSize_t(backward_bytes)) == 0 &&
              put(planned_dict, "lanes", PyLong_FromSize_t(forward_lanes + backward_lanes)) == 0 &&
              put(planned_dict, "alive", PyLong_FromSize_t(alive)) == 0 &&
              put(planned_dict, "kept", PyLong_FromSize_t(kept)) == 0 &&
              put(planned_dict, "total",
                  PyLong_FromSize_t(forward_bytes + forward_lanes + backward_bytes +
                                    backward_lanes + kept)) == 0;
  if (!done) {
    Py_XDECREF(planned_dict);
    Py_DECREF(dict);
    return NULL;
  }
  if (put(dict, "planned", planned_dict) < 0 ||
      put(dict, "replays", PyLong_FromUnsignedLongLong(replays)) < 0 ||
      put(dict, "forward", here ? describe_program(c->programs, slot) : PyList_New(0)) < 0 ||
      put(dict, "backward", there ? describe_program(backward, back_slot) : PyList_New(0)) < 0 ||
      put(dict, "invariants",
          before ? describe_program(c->invariants.programs, invariant_slot) : PyList_New(0)) < 0)
    Py_CLEAR(dict);
  return dict;
}

static PyObject *describe_inputs(const mpg_cache_entry *entry) {
  PyObject *list = PyList_New(0);
  for (uint32_t i = 0; list != NULL && i < entry->num_inputs; i++) {
    const mpg_signature_input *input = &entry->inputs[i];
    PyObject *item = Py_BuildValue(
        "NsNO", mpg_py_shape_tuple(&input->desc.shape), mpg_dtype_name(input->desc.dtype),
        device_text(input->device->id), input->wanted ? Py_True : Py_False);
    if (item == NULL || PyList_Append(list, item) < 0) Py_CLEAR(list);
    Py_XDECREF(item);
  }
  return list;
}

/* Returns the number of nodes other than inputs. */
static size_t count_ops(const mpg_graph *graph) {
  size_t ops = 0;
  for (size_t n = 0; n < graph->num_nodes; n++) ops += !mpg_node_is_input(&graph->nodes[n]);
  return ops;
}

PyObject *mpg_py_describe_call(const mpg_cache_entry *entry) {
  const mpg_compiled *c = entry->compiled;
  mpg_status status = mpg_compiled_get_invariants(entry->compiled);
  if (status != MPG_OK) return mpg_py_raise(status);
  /* The plan of the backward includes all devices. */
  const mpg_plan *plan = c->backwards ? &c->backwards->plan : &c->plan;
  PyObject *dict = PyDict_New(), *devices = PyDict_New(), *copies = PyList_New(0);
  if (dict == NULL || devices == NULL || copies == NULL) goto fail;
  for (uint32_t s = 0; s < plan->num_devices + c->invariants.plan.num_devices; s++) {
    bool of_invariants = s >= plan->num_devices;
    mpg_device_id id =
        of_invariants ? c->invariants.plan.devices[s - plan->num_devices] : plan->devices[s];
    if (of_invariants && mpg_plan_slot(plan, id) != UINT32_MAX) continue;
    PyObject *name = device_text(id), *device = describe_device(c, id);
    int result = name != NULL && device != NULL ? PyDict_SetItem(devices, name, device) : -1;
    Py_XDECREF(name);
    Py_XDECREF(device);
    if (result < 0) goto fail;
  }
  if (describe_copies(c->programs, "forward", copies) < 0 ||
      (backward_set(c) && describe_copies(backward_set(c), "backward", copies) < 0))
    goto fail;
  uint32_t backwards = 0;
  for (const mpg_compiled_backward *b = c->backwards; b; b = b->next) backwards++;
  if (put(dict, "inputs", describe_inputs(entry)) < 0 ||
      put(dict, "train", PyBool_FromLong(entry->train)) < 0 ||
      put(dict, "recording", PyBool_FromLong(c->recording)) < 0 ||
      put(dict, "exact", PyBool_FromLong(c->exact)) < 0 ||
      put(dict, "shardings", PyUnicode_FromString(mpg_text_string(&c->shardings))) < 0 ||
      put(dict, "ops", PyLong_FromSize_t(count_ops(&c->graph))) < 0 ||
      put(dict, "outputs", PyLong_FromUnsignedLong(c->num_outputs)) < 0 ||
      put(dict, "constants", PyLong_FromUnsignedLong(c->num_constants)) < 0 ||
      put(dict, "calls", PyLong_FromUnsignedLongLong(c->calls)) < 0 ||
      put(dict, "backwards", PyLong_FromUnsignedLong(backwards)) < 0 ||
      put(dict, "frames", PyLong_FromUnsignedLong(c->frames)) < 0 ||
      put(dict, "bytes_held", PyLong_FromSize_t(c->held)) < 0)
    goto fail;
  if (PyDict_SetItemString(dict, "devices", devices) < 0 ||
      PyDict_SetItemString(dict, "copies", copies) < 0)
    goto fail;
  Py_DECREF(devices);
  Py_DECREF(copies);
  return dict;
fail:
  Py_XDECREF(dict);
  Py_XDECREF(devices);
  Py_XDECREF(copies);
  return NULL;
}

static void dump_groups(const mpg_program_set *set, const char *phase, mpg_text *text) {
  for (uint32_t s = 0; set != NULL && s < set->num_programs; s++)
    for (uint32_t i = 0; i < set->programs[s].count; i++) {
      const mpg_fused *fused = set->programs[s].instructions[i].fused;
      if (fused == NULL) continue;
      mpg_text_append(text, "%s on %s ", phase, mpg_device_text(set->programs[s].device));
      mpg_fused_dump(fused, text);
    }
}

void mpg_py_dump_groups(const mpg_compiled *compiled, mpg_text *text) {
  dump_groups(compiled->programs, "forward", text);
  dump_groups(backward_set(compiled), "backward", text);
}

PyObject *mpg_py_node_params(const mpg_node *node) {
  PyObject *params = PyDict_New();
  for (int i = 0; params != NULL && node->params && i < node->op->params->count; i++) {
    const mpg_param *param = &node->op->params->params[i];
    mpg_text text = {0};
    mpg_params_get_text(node->op->params, node->params, i, &text);
    const char *value = mpg_text_string(&text);
    if (strcmp(value, param->default_text) != 0) {
      PyObject *item = PyUnicode_FromString(value);
      if (item == NULL || PyDict_SetItemString(params, param->name, item) < 0) Py_CLEAR(params);
      Py_XDECREF(item);
    }
    mpg_text_free(&text);
  }
  return params;
}
