/* run_loop: the steps of a loop over compiled bodies. See autograd/loop.h and core.h. */
#include "autograd/loop.h"
#include "python/core.h"

typedef struct body {
  PyObject *op, *keep; /* owned */
  mpg_array **captures;
  uint32_t *inputs;
  int32_t *results;
} body;

static void free_body(body *b) {
  Py_XDECREF(b->op);
  Py_XDECREF(b->keep);
  PyMem_Free(b->captures);
  PyMem_Free(b->inputs);
  PyMem_Free(b->results);
}

/* The arrays of a list or tuple, which `keep` holds; NULL with an exception. */
static mpg_array **arrays_of(PyObject *object, uint32_t *count, PyObject **keep) {
  *keep = PySequence_Tuple(object);
  if (*keep == NULL) return NULL;
  *count = (uint32_t)PyTuple_GET_SIZE(*keep);
  mpg_array **arrays = PyMem_Calloc((size_t)*count + 1, sizeof *arrays);
  if (arrays == NULL) PyErr_NoMemory();
  for (uint32_t i = 0; arrays != NULL && i < *count; i++) {
    mpg_array *array = mpg_py_expect_array(PyTuple_GET_ITEM(*keep, i), "run_loop");
    if (array == NULL || mpg_py_expect_value(array, "run_loop") < 0) {
      PyMem_Free(arrays);
      return NULL;
    }
    arrays[i] = array;
  }
  return arrays;
}

/* Whole numbers within [least, most]; NULL with an exception. */
static int32_t *numbers_of(PyObject *object, long least, long most, uint32_t *count) {
  PyObject *items = PySequence_Tuple(object);
  if (items == NULL) return NULL;
  *count = (uint32_t)PyTuple_GET_SIZE(items);
  int32_t *numbers = PyMem_Calloc((size_t)*count + 1, sizeof *numbers);
  if (numbers == NULL) PyErr_NoMemory();
  for (uint32_t i = 0; numbers != NULL && i < *count; i++) {
    long number = PyLong_AsLong(PyTuple_GET_ITEM(items, i));
    bool good = !(number == -1 && PyErr_Occurred()) && number >= least && number <= most;
    if (good) {
      numbers[i] = (int32_t)number;
      continue;
    }
    if (!PyErr_Occurred()) PyErr_Format(PyExc_ValueError, "run_loop: %ld is not within [%ld, %ld]", number, least, most);
    PyMem_Free(numbers);
    numbers = NULL;
  }
  Py_DECREF(items);
  return numbers;
}

/* From (op, captures, slots of its inputs, number of its outputs, results). */
static int body_from(PyObject *object, uint32_t num_own, body *b, mpg_loop_body *result) {
  PyObject *op, *captures, *inputs, *results;
  unsigned num_outputs;
  if (!PyTuple_Check(object) || !PyArg_ParseTuple(object, "OOOIO:run_loop", &op, &captures, &inputs, &num_outputs, &results)) {
    if (!PyErr_Occurred()) PyErr_SetString(PyExc_TypeError, "run_loop: a body is a tuple");
    return -1;
  }
  if (!mpg_py_is_cached_op(op)) {
    PyErr_Format(PyExc_TypeError, "run_loop: a body is a CachedOp that binds nothing, not %s", Py_TYPE(op)->tp_name);
    return -1;
  }
  b->op = Py_NewRef(op);
  b->captures = arrays_of(captures, &result->num_captures, &b->keep);
  if (b->captures == NULL) return -1;
  long slots = (long)num_own + (long)result->num_captures;
  b->inputs = (uint32_t *)numbers_of(inputs, 0, slots - 1, &result->num_inputs);
  if (b->inputs == NULL) return -1;
  b->results = numbers_of(results, -slots, (long)num_outputs - 1, &result->num_results);
  if (b->results == NULL) return -1;
  result->call = mpg_py_call_compiled;
  result->function = op;
  result->captures = b->captures;
  result->inputs = b->inputs;
  result->num_outputs = num_outputs;
  result->results = b->results;
  return 0;
}

static int check_loop(const mpg_loop *loop) {
  bool good = loop->step.num_results >= loop->num_states && (!loop->condition.function || loop->condition.num_results == 1) && loop->limit >= 0;
  for (uint32_t i = 0; i < loop->num_data; i++) {
    const mpg_shape *shape = &loop->data[i]->tensor.desc.shape;
    good = good && shape->ndim && shape->dims[0] == loop->limit;
  }
  if (!good) PyErr_SetString(PyExc_ValueError, "run_loop: the results are outputs and states, a condition has one, and data have a row for each step");
  return good ? 0 : -1;
}

static PyObject *results_of(mpg_array *results, uint32_t count, int64_t steps) {
  PyObject *list = PyList_New(count);
  for (uint32_t i = 0; list != NULL && i < count; i++) {
    PyObject *item = results[i].tensor.storage ? mpg_py_array_take(&results[i]) : Py_NewRef(Py_None);
    if (item == NULL) Py_CLEAR(list);
    else PyList_SET_ITEM(list, i, item);
  }
  return list != NULL ? Py_BuildValue("LN", (long long)steps, list) : NULL;
}

static PyObject *run_loop(PyObject *module, PyObject *args) {
  (void)module;
  PyObject *data_object, *states_object, *step_object, *condition_object, *data = NULL, *states = NULL, *list = NULL;
  long long limit;
  mpg_loop loop = {0};
  body step = {0}, condition = {0};
  if (!PyArg_ParseTuple(args, "sLOOOO:run_loop", &loop.name, &limit, &data_object, &states_object, &step_object, &condition_object)) return NULL;
  loop.limit = limit;
  mpg_array **data_arrays = arrays_of(data_object, &loop.num_data, &data);
  mpg_array **state_arrays = data_arrays != NULL ? arrays_of(states_object, &loop.num_states, &states) : NULL;
  mpg_array *results = NULL;
  loop.data = data_arrays;
  loop.states = state_arrays;
  uint32_t num_own = loop.num_data + loop.num_states;
  if (state_arrays == NULL || body_from(step_object, num_own, &step, &loop.step) < 0) goto done;
  if (condition_object != Py_None && body_from(condition_object, num_own, &condition, &loop.condition) < 0) goto done;
  if (check_loop(&loop) < 0) goto done;
  results = PyMem_Calloc((size_t)loop.step.num_results + 1, sizeof *results);
  if (results == NULL) {
    PyErr_NoMemory();
    goto done;
  }
  int64_t steps = 0;
  mpg_status status = mpg_loop_run(&loop, results, &steps);
  list = status == MPG_OK ? results_of(results, loop.step.num_results, steps) : mpg_py_raise(status);
  for (uint32_t i = 0; i < loop.step.num_results; i++) mpg_array_clear(&results[i]);
done:
  PyMem_Free(results);
  PyMem_Free(data_arrays);
  PyMem_Free(state_arrays);
  free_body(&step);
  free_body(&condition);
  Py_XDECREF(data);
  Py_XDECREF(states);
  return list;
}

PyMethodDef mpg_py_loop_methods[] = {
    {"run_loop", run_loop, METH_VARARGS,
     "run_loop(name, limit, data, states, step, condition)\n--\n\nRuns `step` for each of `limit` rows of the arrays `data`, or while `condition` (None: always) says so, "
     "at most `limit` times. Bodies are tuples (op, captures,\ninputs, outputs, results): a CachedOp; arrays; which of a step's slots (rows, states, captures) its inputs are; how many arrays it "
     "returns; and which of these,\nor as ~slot, the results are: rows of the loop's outputs, then the next states. Returns the number of steps and a list: the outputs of all\n"
     "steps along a new first axis (None if there was no step), then the last states."},
    {0}};
