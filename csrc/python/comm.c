/* _core.collective, _core.collective_plan, _core.sum_replicas and _core.sum_over_ranks. See
 * comm/collective.h, comm/replicas.h and comm/rank_sums.h. */
#include "comm/collective.h"

#include <string.h>

#include "autograd/autograd.h"
#include "autograd/trace.h"
#include "comm/gpu_rank_sums.h"
#include "comm/rank_sums.h"
#include "comm/replicas.h"

#include "python/core.h"

/* Arguments of `collective`, converted from Python objects. */
typedef struct request {
  mpg_comm_request r;
  const char *transport;
  mpg_array **arrays; /* borrowed from `keep` */
  PyObject *keep;
  mpg_desc *descs;
  mpg_device_id *array_devices, *devices;
} request;

static void request_free(request *q) {
  PyMem_Free(q->arrays);
  PyMem_Free(q->descs);
  PyMem_Free(q->array_devices);
  PyMem_Free(q->devices);
  Py_XDECREF(q->keep);
}

static int take_devices(request *q, PyObject *object) {
  PyObject *items = mpg_py_items(object, "devices must be a list of contexts");
  if (items == NULL) return -1;
  Py_ssize_t count = PyTuple_GET_SIZE(items);
  int result = 0;
  if (count > MPG_COMM_MAX_RANKS) {
    PyErr_Format(mpg_py->errors[MPG_VALUE_ERROR], "%s: at most %d devices are supported, got %zd",
                 mpg_collective_name(q->r.kind), MPG_COMM_MAX_RANKS, count);
    result = -1;
  } else if ((q->devices = PyMem_Calloc((size_t)count + 1, sizeof *q->devices)) == NULL) {
    PyErr_NoMemory();
    result = -1;
  }
  for (Py_ssize_t i = 0; i < count && result == 0; i++)
    result = mpg_py_device_id(PyTuple_GET_ITEM(items, i), &q->devices[i]);
  Py_DECREF(items);
  q->r.devices = q->devices;
  q->r.num_ranks = (int)count;
  return result;
}

/* Like mpg_py_array_list, but fails for traced arrays, which have no value. */
static int take_values(PyObject *list, mpg_array **arrays, int capacity, PyObject **keep,
                       const char *what) {
  int count = mpg_py_array_list(list, arrays, capacity, keep, what);
  for (int i = 0; i < count; i++)
    if (mpg_py_expect_value(arrays[i], what) < 0) return -1;
  return count;
}

static int take_arrays(request *q, PyObject *object) {
  const char *name = mpg_collective_name(q->r.kind);
  q->arrays = PyMem_Calloc(MPG_COMM_MAX_RANKS, sizeof *q->arrays);
  q->descs = PyMem_Calloc(MPG_COMM_MAX_RANKS, sizeof *q->descs);
  q->array_devices = PyMem_Calloc(MPG_COMM_MAX_RANKS, sizeof *q->array_devices);
  if (q->arrays == NULL || q->descs == NULL || q->array_devices == NULL) {
    PyErr_NoMemory();
    return -1;
  }
  int count = mpg_py_array_list(object, q->arrays, MPG_COMM_MAX_RANKS, &q->keep, name);
  if (count < 0) return -1;
  for (int i = 0; i < count; i++) {
    q->descs[i] = *mpg_array_desc(q->arrays[i]);
    q->array_devices[i] = mpg_array_device_id(q->arrays[i]);
  }
  q->r.num_inputs = count;
  q->r.inputs = q->descs;
  q->r.input_devices = q->array_devices;
  return 0;
}

static int request_take(request *q, PyObject *args) {
  const char *kind, *algorithm;
  PyObject *arrays, *devices, *root;
  *q = (request){0};
  if (!PyArg_ParseTuple(args, "sOOiiOss", &kind, &arrays, &devices, &q->r.axis, &q->r.other_axis,
                        &root, &algorithm, &q->transport))
    return -1;
  q->r.kind = mpg_collective_find(kind);
  q->r.algorithm = mpg_comm_algorithm_find(algorithm);
  if (q->r.kind == MPG_COLLECTIVE_COUNT) {
    PyErr_Format(mpg_py->errors[MPG_VALUE_ERROR], "unknown collective '%s'", kind);
    return -1;
  }
  if (q->r.algorithm == MPG_COMM_ALGORITHM_COUNT) {
    PyErr_Format(mpg_py->errors[MPG_VALUE_ERROR],
                 "%s: unknown algorithm '%s'; expected auto, one_shot or two_shot", kind,
                 algorithm);
    return -1;
  }
  if (take_arrays(q, arrays) < 0 || take_devices(q, devices) < 0) return -1;
  return root == Py_None ? 0 : mpg_py_device_id(root, &q->r.root);
}

/* Calls the ops of a plan in order. `slots` has num_slots arrays: the inputs, followed by empty
 * arrays for the results of the ops. */
static mpg_status run(const mpg_comm_plan *plan, mpg_array *slots) {
  mpg_array *inputs[MPG_COMM_MAX_RANKS];
  for (size_t i = 0; i < plan->num_steps; i++) {
    const mpg_comm_step *step = &plan->steps[i];
    for (uint32_t k = 0; k < step->num_inputs; k++) inputs[k] = &slots[step->inputs[k]];
    MPG_TRY(mpg_call(step->op, step->params, inputs, (int)step->num_inputs,
                     &slots[step->first_output], (int)step->num_outputs, NULL));
  }
  return MPG_OK;
}

/* True if an all-reduce can run directly instead of as a plan of ops: nothing is recorded or
 * traced, and each rank has one array. In that case, fills `tensors`; CPUs sum in chunks, and
 * joined GPUs use NCCL. The result is bit-identical to that of the plan. */
static bool sums_over_ranks(const request *q, const mpg_tensor **tensors) {
  const mpg_comm_request *r = &q->r;
  if (r->kind != MPG_ALL_REDUCE || r->algorithm != MPG_COMM_AUTO || mpg_autograd_recording() ||
      mpg_trace_active() || r->num_inputs != r->num_ranks)
    return false;
  bool by_nccl = strcmp(q->transport, "nccl") == 0;
  if (!by_nccl && strcmp(q->transport, "auto") != 0) return false;
  for (int i = 0; i < r->num_ranks; i++) {
    if (mpg_array_traced(q->arrays[i]) || !mpg_device_id_equal(r->devices[i], r->input_devices[i]))
      return false;
    tensors[i] = &q->arrays[i]->tensor;
  }
  return mpg_comm_one_of_each_rank(tensors, r->num_ranks) &&
         (!by_nccl || r->devices[0].type == MPG_GPU);
}

static PyObject *sum_of_ranks(const mpg_tensor **tensors, int count) {
  mpg_tensor *sums = PyMem_Calloc((size_t)count, sizeof *sums);
  mpg_array *arrays = PyMem_Calloc((size_t)count, sizeof *arrays);
  PyObject *list = NULL;
  mpg_status status = MPG_OK;
  if (sums == NULL || arrays == NULL)
    PyErr_NoMemory();
  else if ((status = mpg_comm_all_reduce_over_ranks(tensors, sums)) != MPG_OK)
    mpg_py_raise(status);
  else {
    for (int i = 0; i < count; i++) arrays[i].tensor = sums[i];
    list = mpg_py_array_take_all(arrays, count);
  }
  PyMem_Free(sums);
  PyMem_Free(arrays);
  return list;
}

static PyObject *collective(PyObject *Py_UNUSED(self), PyObject *args) {
  request q;
  mpg_comm_plan plan = {0};
  mpg_array *slots = NULL;
  PyObject *list = NULL;
  const mpg_tensor *tensors[MPG_COMM_MAX_RANKS];
  if (request_take(&q, args) < 0) goto done;
  if (sums_over_ranks(&q, tensors)) {
    list = sum_of_ranks(tensors, q.r.num_ranks);
    goto done;
  }
  mpg_status status = mpg_comm_plan_make(q.transport, &q.r, &plan);
  if (status == MPG_OK) {
    slots = PyMem_Calloc(plan.num_slots + 1, sizeof *slots);
    if (slots == NULL) {
      PyErr_NoMemory();
      goto done;
    }
    for (int i = 0; i < q.r.num_inputs; i++) mpg_array_copy(&slots[i], q.arrays[i]);
    status = run(&plan, slots);
  }
  if (status != MPG_OK) {
    mpg_py_raise(status);
    goto done;
  }
  list = PyList_New(plan.num_results);
  for (int i = 0; i < plan.num_results && list != NULL; i++) {
    PyObject *item = mpg_py_array_take(&slots[plan.results[i]]);
    if (item != NULL)
      PyList_SET_ITEM(list, i, item);
    else
      Py_CLEAR(list);
  }
done:
  for (size_t i = 0; slots != NULL && i < plan.num_slots; i++) mpg_array_clear(&slots[i]);
  PyMem_Free(slots);
  mpg_comm_plan_free(&plan);
  request_free(&q);
  return list;
}

static PyObject *collective_plan(PyObject *Py_UNUSED(self), PyObject *args) {
  request q;
  mpg_comm_plan plan = {0};
  PyObject *ops = NULL, *result = NULL;
  if (request_take(&q, args) < 0) goto done;
  mpg_status status = mpg_comm_plan_make(q.transport, &q.r, &plan);
  if (status != MPG_OK) {
    mpg_py_raise(status);
    goto done;
  }
  if ((ops = PyList_New((Py_ssize_t)plan.num_steps)) == NULL) goto done;
  for (size_t i = 0; i < plan.num_steps; i++) {
    PyObject *name = PyUnicode_FromString(plan.steps[i].op->name);
    if (name == NULL) goto done;
    PyList_SET_ITEM(ops, (Py_ssize_t)i, name);
  }
  result = Py_BuildValue("{s:O,s:n,s:n}", "ops", ops, "copies", (Py_ssize_t)plan.num_copies,
                         "bytes", (Py_ssize_t)plan.bytes);
done:
  Py_XDECREF(ops);
  mpg_comm_plan_free(&plan);
  request_free(&q);
  return result;
}

static PyObject *sum_replicas(PyObject *Py_UNUSED(self), PyObject *args) {
  PyObject *given, *result = NULL, **kept = NULL;
  int home, everywhere, apart = 0, copy = 0;
  if (!PyArg_ParseTuple(args, "O!ip|pp", &PyList_Type, &given, &home, &everywhere, &apart, &copy))
    return NULL;
  PyObject *lists = PyList_AsTuple(given);
  if (lists == NULL) return NULL;
  Py_ssize_t count = PyTuple_GET_SIZE(lists), each = -1;
  mpg_array **arrays = NULL;
  const mpg_tensor **tensors = NULL;
  bool done = true;
  if (count < 1 + apart || home < 0 || home >= count || count > MPG_COMM_MAX_RANKS ||
      (apart && (home != count - 1 || everywhere || copy))) {
    PyErr_Format(PyExc_ValueError,
                 "sum_replicas: expected 1 to %d lists, and home must be the index of one",
                 MPG_COMM_MAX_RANKS);
    goto out;
  }
  kept = PyMem_Calloc((size_t)count, sizeof *kept);
  if (kept == NULL) {
    PyErr_NoMemory();
    goto out;
  }
  for (Py_ssize_t r = 0; r < count; r++) {
    PyObject *list =
        mpg_py_items(PyTuple_GET_ITEM(lists, r), "sum_replicas: expected lists of arrays");
    if (list == NULL) goto out;
    Py_ssize_t here = PyTuple_GET_SIZE(list);
    if (each >= 0 && here != each) {
      PyErr_SetString(PyExc_ValueError, "sum_replicas: the lists must have the same length");
      Py_DECREF(list);
      goto out;
    }
    each = here;
    if (arrays == NULL &&
        (arrays = PyMem_Calloc((size_t)(count * each) + 1, sizeof *arrays)) == NULL) {
      PyErr_NoMemory();
      Py_DECREF(list);
      goto out;
    }
    int taken = take_values(list, arrays + r * each, (int)each, &kept[r], "sum_replicas");
    Py_DECREF(list);
    if (taken < 0) goto out;
  }
  if ((tensors = PyMem_Calloc((size_t)(count * each) + 1, sizeof *tensors)) == NULL) {
    PyErr_NoMemory();
    goto out;
  }
  for (Py_ssize_t i = 0; i < count * each; i++) tensors[i] = &arrays[i]->tensor;
  mpg_replicas replicas = {.arrays = tensors,
                           .num_arrays = (uint32_t)each,
                           .num_replicas = (uint32_t)count,
                           .home = (uint32_t)home,
                           .everywhere = everywhere,
                           .apart = apart,
                           .copy = copy};
  mpg_status status = mpg_comm_sum_replicas(&replicas, &done);
  if (status != MPG_OK)
    mpg_py_raise(status);
  else
    result = PyBool_FromLong(done);
out:
  for (Py_ssize_t r = 0; kept != NULL && r < count; r++) Py_XDECREF(kept[r]);
  Py_DECREF(lists);
  PyMem_Free(kept);
  PyMem_Free(arrays);
  PyMem_Free(tensors);
  return result;
}

static PyObject *sum_over_ranks(PyObject *Py_UNUSED(self), PyObject *args) {
  PyObject *given[2], *kept[2] = {NULL, NULL}, *gpus = Py_None, *result = NULL;
  const char *what = "sum_over_ranks: expected lists of arrays";
  unsigned long long names = 0;
  if (!PyArg_ParseTuple(args, "O!O!|OK", &PyList_Type, &given[0], &PyList_Type, &given[1], &gpus,
                        &names))
    return NULL;
  Py_ssize_t count = PyList_GET_SIZE(given[0]);
  if (count != PyList_GET_SIZE(given[1])) {
    PyErr_SetString(PyExc_ValueError, "sum_over_ranks: the lists must have the same length");
    return NULL;
  }
  int32_t *indices = NULL;
  mpg_array **arrays = PyMem_Calloc(2 * (size_t)count + 1, sizeof *arrays);
  const mpg_tensor **tensors = PyMem_Calloc(2 * (size_t)count + 1, sizeof *tensors);
  if (arrays == NULL || tensors == NULL) {
    PyErr_NoMemory();
    goto out;
  }
  if (gpus != Py_None && (indices = mpg_py_gpu_indices(gpus)) == NULL) goto out;
  for (int i = 0; i < 2; i++)
    if (take_values(given[i], arrays + i * count, (int)count, &kept[i], what) != count) {
      if (!PyErr_Occurred()) PyErr_SetString(PyExc_ValueError, what);
      goto out;
    }
  for (Py_ssize_t i = 0; i < 2 * count; i++) tensors[i] = &arrays[i]->tensor;
  const mpg_rank_sums sums = {.arrays = tensors,
                              .sums = tensors + count,
                              .num_arrays = (uint32_t)count,
                              .indices = indices,
                              .names = names};
  mpg_status status = mpg_comm_sum_over_ranks(&sums);
  if (status != MPG_OK)
    mpg_py_raise(status);
  else
    result = Py_NewRef(Py_None);
out:
  Py_XDECREF(kept[0]);
  Py_XDECREF(kept[1]);
  PyMem_Free(indices);
  PyMem_Free(arrays);
  PyMem_Free(tensors);
  return result;
}

/* For tests: returns the tick of an array's latest write, and the last tick submitted to its
 * device. */
static PyObject *written_at(PyObject *Py_UNUSED(self), PyObject *object) {
  mpg_array *array;
  PyObject *keep = NULL, *list = PyList_New(1), *result = NULL;
  if (list == NULL) return NULL;
  PyList_SET_ITEM(list, 0, Py_NewRef(object));
  if (take_values(list, &array, 1, &keep, "written_at") == 1) {
    const mpg_storage *storage = array->tensor.storage;
    result = Py_BuildValue("(KK)", (unsigned long long)storage->block.uses.write,
                           (unsigned long long)storage->device->submitted);
  }
  Py_XDECREF(keep);
  Py_DECREF(list);
  return result;
}

static PyMethodDef methods[] = {
    {"collective", collective, METH_VARARGS,
     "collective(kind, arrays, devices, axis, other_axis, root, algorithm, transport) -> list of "
     "arrays; see mpgluon.parallel.collectives."},
    {"sum_replicas", sum_replicas, METH_VARARGS,
     "sum_replicas(lists, home, everywhere, apart=False, copy=False) -> bool: sums arrays over "
     "replicas\ninto the arrays of the replica `home`, concurrently with other work of the "
     "devices. lists: the\narrays of each replica. everywhere: also writes the sums to all other "
     "replicas. apart: `home` is the\nlast list, which is only written, not summed. copy: copies "
     "the arrays of `home` to the other\nreplicas instead of summing. Returns False and changes "
     "nothing if a device does not support it."},
    {"sum_over_ranks", sum_over_ranks, METH_VARARGS,
     "sum_over_ranks(arrays, sums, gpus=None): writes the sums over ranks of `arrays` into "
     "`sums`,\nconcurrently with other work of the device. Each rank passes its own arrays. sums "
     "may be the same\narrays. gpus: the GPU index of each rank, for joined GPUs."},
    {"written_at", written_at, METH_O,
     "written_at(array) -> (tick of its latest write, latest tick of its device)."},
    {"collective_plan", collective_plan, METH_VARARGS,
     "Returns what `collective` would run with these arguments, without running it: {'ops': "
     "names,\n'copies': number of copies between devices, 'bytes': bytes copied}."},
    {NULL, NULL, 0, NULL}};

int mpg_py_comm_init(PyObject *module) {
  if (PyModule_AddIntConstant(module, "GPU_RANKS_IN_ORDER", MPG_GPU_RANKS_IN_ORDER) < 0) return -1;
  return PyModule_AddFunctions(module, methods);
}
