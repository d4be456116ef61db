/* The NDArray type: creation, deallocation, and helpers that other files use. Operators are in
 * number.c, methods in method.c, and indexing in index.c.
 *
 * Objects of the exact type are recycled through a free list, so that an eager op needs no malloc
 * for its result. They hold no Python objects and therefore need no cyclic garbage collection.
 */
#include "base/host.h"
#include "device/ranks/ranks.h"
#include "python/core.h"

enum { FREE_LIMIT = 256 };
static struct {
  mpg_py_array *objects[FREE_LIMIT];
  int count;
} unused; /* runtime state, under the GIL */

static const mpg_array empty_array;

PyObject *mpg_py_array_new(bool numpy) {
  mpg_py_array *self;
  PyTypeObject *type = numpy ? mpg_py->numpy_type : mpg_py->array_type;
  if (unused.count > 0) {
    self = unused.objects[--unused.count];
    PyObject_Init((PyObject *)self, type);
  } else {
    self = PyObject_New(mpg_py_array, type);
    if (self == NULL) return NULL;
    self->weak_references = NULL;
    self->array = empty_array;
  }
  self->array.numpy = numpy;
  return (PyObject *)self;
}

static void array_dealloc(PyObject *object) {
  mpg_py_array *self = (mpg_py_array *)object;
  PyTypeObject *type = Py_TYPE(object);
  if (self->weak_references != NULL) PyObject_ClearWeakRefs(object);
  mpg_array_clear(&self->array);
  if ((type == mpg_py->array_type || type == mpg_py->numpy_type) && unused.count < FREE_LIMIT) {
    unused.objects[unused.count++] = self;
  } else {
    type->tp_free(object);
  }
  Py_DECREF(type);
}

PyObject *mpg_py_array_take(mpg_array *array) {
  PyObject *self = mpg_py_array_new(array->numpy);
  if (self == NULL)
    mpg_array_clear(array);
  else
    *mpg_py_array_of(self) = *array;
  *array = empty_array;
  return self;
}

PyObject *mpg_py_array_take_all(mpg_array *arrays, Py_ssize_t count) {
  PyObject *list = PyList_New(count);
  for (Py_ssize_t i = 0; i < count; i++) {
    PyObject *item = list != NULL ? mpg_py_array_take(&arrays[i]) : NULL;
    if (item == NULL) {
      mpg_array_clear(&arrays[i]);
      Py_CLEAR(list);
    } else {
      PyList_SET_ITEM(list, i, item);
    }
  }
  return list;
}

mpg_array *mpg_py_expect_array(PyObject *object, const char *what) {
  if (mpg_py_is_array(object)) return mpg_py_array_of(object);
  PyErr_Format(mpg_py->errors[MPG_TYPE_ERROR], "%s: expected an NDArray, got %s", what,
               Py_TYPE(object)->tp_name);
  return NULL;
}

/* Returns advice for code that reads a value while a block is traced. */
static const char *other_way(const char *what, bool numpy) {
  static const struct {
    const char *what, *way, *numpy_way;
  } ways[] = {
      {"bool()",
       "F.where(condition, a, b) chooses between elements, F.contrib.cond between computations; "
       "F.contrib.while_loop repeats while a condition holds; "
       "F.contrib.boolean_mask picks rows",
       "np.where(condition, a, b) chooses between elements, npx.cond between computations; "
       "npx.while_loop repeats while a condition holds; x[mask] picks rows"},
      {"float()",
       "Keep it as an array of one element and compute with F (F.broadcast_mul, F.where, ...)",
       "Keep it as an array and compute with it (a * b, np.where, ...)"},
      {"asscalar()",
       "Keep it as an array of one element and compute with F (F.broadcast_mul, F.where, F.take, "
       "...)",
       "Keep it as an array and compute with it (a * b, np.where, np.take, ...)"},
      {"item()",
       "Keep it as an array of one element and compute with F (F.broadcast_mul, F.where, F.take, "
       "...)",
       "Keep it as an array and compute with it (a * b, np.where, np.take, ...)"},
      {"int()",
       "Keep it as an array of one element and compute with F: F.take and F.pick choose by index, "
       "F.where by a condition, F.contrib.foreach and while_loop repeat; sizes must follow from "
       "shapes",
       "Keep it as an array: np.take and npx.pick choose by index, np.where by a condition, "
       "npx.foreach and npx.while_loop repeat; sizes must follow from shapes"},
      {"an index",
       "F.take and F.pick choose by index, F.contrib.foreach and while_loop repeat, and sizes must "
       "follow from shapes",
       "np.take and npx.pick choose by index, npx.foreach and npx.while_loop repeat, and sizes "
       "must follow from shapes"},
      {"x[...] = value",
       "Create a new array with F.where, F.concat, F.scatter_nd or F.contrib.index_copy",
       "Create a new array with np.where, np.concatenate or npx.index_update"},
      {"indexing by this array together with others, or in an assignment",
       "F.contrib.boolean_mask picks rows by a mask, F.take and F.gather_nd by indices, F.where "
       "chooses between elements",
       "x[mask] picks rows by a mask, np.take by indices, np.where chooses between elements"},
  };
  for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++)
    if (strcmp(what, ways[i].what) == 0) return numpy ? ways[i].numpy_way : ways[i].way;
  return numpy ? "Compute it with ops (np.where, np.sum, ...), or move this step out of the block"
               : "Compute it with the ops of F (F.where, F.sum, ...), or move this step out of the "
                 "block";
}

static int refuse_value(const mpg_array *array, const char *what) {
  const bool overwrites = strcmp(what, "x[...] = value") == 0, captured = !mpg_array_traced(array);
  PyObject *line = PyObject_CallMethod(PyImport_AddModule("mpgluon._core"), "_current_line", NULL);
  char shape[MPG_SHAPE_TEXT_SIZE];
  PyErr_Format(mpg_py->errors[strcmp(what, "an index") ? MPG_ERROR : MPG_TYPE_ERROR],
               "%s %s an array of shape %s %s: %s (%S).\n"
               "%s; or %s.",
               what, overwrites ? "overwrites" : "needs the value of",
               mpg_shape_text(&array->tensor.desc.shape, shape, sizeof shape),
               captured ? "from outside of the block that hybridize() is tracing"
                        : "that hybridize() is tracing",
               overwrites ? "values in a block are never overwritten"
               : captured ? "it would be read once, during tracing, and not in later calls"
                          : "it has a shape, a dtype and a device, but no value yet",
               line ? line : Py_None, other_way(what, array->numpy),
               captured ? "read it before the block is called, and pass the number as an argument"
                        : "call the block without hybridize()");
  Py_XDECREF(line);
  return -1;
}

int mpg_py_expect_value(const mpg_array *array, const char *what) {
  if (!mpg_array_traced(array)) {
    if (array->tensor.storage != NULL) return 0;
    PyErr_Format(mpg_py->errors[MPG_ERROR], "%s: the array is empty", what);
    return -1;
  }
  if (!array->trace->closed) return refuse_value(array, what);
  PyErr_Format(mpg_py->errors[MPG_ERROR], MPG_TRACE_OVER, what);
  return -1;
}

int mpg_py_expect_readable(const mpg_array *array, const char *what) {
  if (mpg_py_expect_value(array, what) < 0) return -1;
  return mpg_trace_takes(array) ? refuse_value(array, what) : 0;
}

PyObject *mpg_py_items(PyObject *object, const char *what) {
  if (PyTuple_CheckExact(object)) return Py_NewRef(object);
  if (PyList_CheckExact(object)) return PyList_AsTuple(object);
  PyObject *iterator = PyObject_GetIter(object);
  if (iterator == NULL) {
    if (PyErr_ExceptionMatches(PyExc_TypeError)) PyErr_SetString(PyExc_TypeError, what);
    return NULL;
  }
  PyObject *items = PySequence_Tuple(iterator);
  Py_DECREF(iterator);
  return items;
}

int mpg_py_array_list(PyObject *object, mpg_array **arrays, int capacity, PyObject **keep,
                      const char *what) {
  *keep = NULL;
  if (mpg_py_is_array(object)) {
    *keep = Py_NewRef(object);
    arrays[0] = mpg_py_array_of(object);
    return 1;
  }
  PyObject *items = PySequence_Tuple(object);
  if (items == NULL) {
    PyErr_Format(mpg_py->errors[MPG_TYPE_ERROR],
                 "%s: expected an NDArray or a list of them, got %s", what,
                 Py_TYPE(object)->tp_name);
    return -1;
  }
  Py_ssize_t count = PyTuple_GET_SIZE(items);
  if (count > capacity) {
    PyErr_Format(mpg_py->errors[MPG_VALUE_ERROR], "%s: at most %d arrays, got %zd", what, capacity,
                 count);
    Py_DECREF(items);
    return -1;
  }
  for (Py_ssize_t i = 0; i < count; i++) {
    arrays[i] = mpg_py_expect_array(PyTuple_GET_ITEM(items, i), what);
    if (arrays[i] == NULL) {
      Py_DECREF(items);
      return -1;
    }
  }
  *keep = items;
  return (int)count;
}

static inline __attribute__((always_inline)) PyObject *call_as(const mpg_op *op, const void *params,
                                                               mpg_array *const *inputs,
                                                               int num_inputs, bool separate) {
  PyObject *result = mpg_py_array_new(num_inputs > 0 ? inputs[0]->numpy : mpg_op_is_numpy(op));
  if (result == NULL) return NULL;
  mpg_status status =
      mpg_call_as(op, params, inputs, num_inputs, mpg_py_array_of(result), 1, NULL, separate);
  if (status == MPG_OK) return result;
  Py_DECREF(result);
  return mpg_py_raise(status);
}

PyObject *mpg_py_call(const mpg_op *op, const void *params, mpg_array *const *inputs,
                      int num_inputs) {
  return call_as(op, params, inputs, num_inputs, false);
}

PyObject *mpg_py_call_op(const mpg_op *op, const void *params, mpg_array *const *inputs,
                         int num_inputs) {
  return call_as(op, params, inputs, num_inputs, true);
}

int mpg_py_call_out(const mpg_op *op, const void *params, mpg_array *const *inputs, int num_inputs,
                    mpg_array *out) {
  MPG_PY_TRY_INT(mpg_call(op, params, inputs, num_inputs, NULL, 1, &out));
  return 0;
}

PyObject *mpg_py_shape_tuple(const mpg_shape *shape) {
  PyObject *tuple = PyTuple_New(shape->ndim);
  for (int i = 0; tuple != NULL && i < shape->ndim; i++) {
    PyObject *dim = PyLong_FromLongLong(shape->dims[i]);
    if (dim == NULL)
      Py_CLEAR(tuple);
    else
      PyTuple_SET_ITEM(tuple, i, dim);
  }
  return tuple;
}

#define VALUE_SIZE(KIND, name, type, noun, expected) [MPG_PARAM_##KIND] = sizeof(type),
static const size_t value_sizes[] = {MPG_PARAM_KINDS(VALUE_SIZE)};
#undef VALUE_SIZE

PyObject *mpg_py_call_named(const char *name, mpg_array *const *inputs, int num_inputs,
                            mpg_array *out, ...) {
  const mpg_op *op = mpg_op_find(name);
  if (op == NULL)
    return PyErr_Format(mpg_py->errors[MPG_NOT_IMPLEMENTED], "this build has no op %s", name);
  _Alignas(16) char params[MPG_PY_MAX_PARAMS];
  MPG_ASSERT(op->params->size <= sizeof params);
  if (op->params->size > 0) mpg_params_defaults(op->params, params);
  va_list values;
  va_start(values, out);
  for (const char *key; (key = va_arg(values, const char *)) != NULL;) {
    const void *value = va_arg(values, const void *);
    int index = mpg_params_find(op->params, key);
    if (index < 0) {
      va_end(values);
      return PyErr_Format(mpg_py->errors[MPG_ERROR], "op %s has no parameter %s", name, key);
    }
    const mpg_param *param = &op->params->params[index];
    memcpy(params + param->offset, value, value_sizes[param->kind]);
  }
  va_end(values);
  const void *filled = op->params->size > 0 ? params : NULL;
  if (out == NULL) return mpg_py_call(op, filled, inputs, num_inputs);
  if (mpg_py_call_out(op, filled, inputs, num_inputs, out) < 0) return NULL;
  Py_RETURN_NONE;
}

int mpg_py_copy_into(mpg_array *source, mpg_array *target) {
  mpg_device_id device = mpg_array_device_id(target);
  PyObject *done = mpg_py_call_named("_copyto", &source, 1, target, "ctx", &device, NULL);
  Py_XDECREF(done);
  return done == NULL ? -1 : 0;
}

PyObject *mpg_py_reshape(PyObject *self, const mpg_shape *shape) {
  mpg_array *array = mpg_py_array_of(self);
  if (mpg_py_tracked(array)) {
    mpg_tuple dims = mpg_shape_tuple(shape);
    return mpg_py_call_named("_reshape_exact", &array, 1, NULL, "shape", &dims, NULL);
  }
  if (mpg_py_expect_value(array, "reshape") < 0) return NULL;
  PyObject *result = mpg_py_array_new(array->numpy);
  if (result == NULL) return NULL;
  mpg_status status = mpg_tensor_reshape(&array->tensor, shape, &mpg_py_array_of(result)->tensor);
  if (status == MPG_OK) return result;
  Py_DECREF(result);
  return mpg_py_raise(status);
}

PyObject *mpg_py_cast(PyObject *self, mpg_dtype dtype) {
  mpg_array *array = mpg_py_array_of(self);
  if (array->tensor.desc.dtype == dtype) return Py_NewRef(self);
  mpg_cast_params params;
  mpg_params_defaults(&mpg_cast_table, &params);
  params.dtype = dtype;
  return mpg_py_call(mpg_op_get(MPG_OP_Cast), &params, &array, 1);
}

mpg_device_id mpg_py_context_id(const mpg_array *array) {
  mpg_device_id id = mpg_array_device_id(array);
  if (!array->trace && mpg_tensor_pinned(&array->tensor)) id.type = MPG_CPU_PINNED;
  return id;
}

mpg_status mpg_py_tensor_create(mpg_device_id id, const mpg_desc *desc, mpg_tensor *tensor) {
  mpg_device *device;
  MPG_TRY(mpg_device_get(id, &device));
  uint32_t origin = id.rank ? mpg_host_origin() : 0;
  MPG_TRY(id.type == MPG_CPU_PINNED && !device->remote
              ? mpg_tensor_create_pinned(device, desc, tensor)
              : mpg_tensor_create(device, desc, tensor));
  if (origin) tensor->storage->name = mpg_ranks_name_array(origin, MPG_MADE_BY_HOST);
  return MPG_OK;
}

static PyObject *copy_to_pinned(mpg_array *array, mpg_device_id id) {
  PyObject *result = mpg_py_array_new(array->numpy);
  if (result == NULL) return NULL;
  mpg_array *target = mpg_py_array_of(result);
  mpg_status status = mpg_py_tensor_create(id, &array->tensor.desc, &target->tensor);
  if (status != MPG_OK) {
    mpg_py_raise(status);
    Py_CLEAR(result);
    return NULL;
  }
  if (mpg_py_copy_into(array, target) < 0) Py_CLEAR(result);
  return result;
}

PyObject *mpg_py_to_device(PyObject *self, mpg_device_id id, bool copy) {
  mpg_array *array = mpg_py_array_of(self);
  mpg_device_id own = mpg_py_context_id(array);
  if (!copy && mpg_device_id_equal(own, id)) {
    if (!mpg_py_tracked(array)) return Py_NewRef(self);
    /* Returns a view, which is a separate node. Gradients of the view's uses are summed before the
     * sum is added to other gradients, as for a copy to another device. Results on one device and
     * on several are then bit-identical. */
    mpg_tuple same = mpg_shape_tuple(&array->tensor.desc.shape);
    return mpg_py_call_named("_reshape_exact", &array, 1, NULL, "shape", &same, NULL);
  }
  if (id.type == MPG_CPU_PINNED && !mpg_array_traced(array)) return copy_to_pinned(array, id);
  mpg_copyto_params params;
  mpg_params_defaults(&mpg_copyto_table, &params);
  params.ctx = id;
  return mpg_py_call(mpg_op_get(MPG_OP__copyto), &params, &array, 1);
}

PyObject *mpg_py_broadcast(PyObject *self, const mpg_shape *shape) {
  mpg_array *array = mpg_py_array_of(self);
  if (mpg_shape_equal(&array->tensor.desc.shape, shape)) return Py_NewRef(self);
  const mpg_shape *own = &array->tensor.desc.shape;
  /* broadcast_to requires the same number of dimensions, so dimensions of size 1 are added or
   * removed at the front. */
  mpg_shape same = {.ndim = shape->ndim};
  int extra = own->ndim - shape->ndim;
  bool fits = true;
  for (int i = 0; i < extra; i++) fits = fits && own->dims[i] == 1;
  for (int i = 0; i < shape->ndim; i++) {
    same.dims[i] = i + extra < 0 ? 1 : own->dims[i + extra];
    fits = fits && (same.dims[i] == 1 || same.dims[i] == shape->dims[i]);
  }
  if (!fits) {
    char a[MPG_SHAPE_TEXT_SIZE], b[MPG_SHAPE_TEXT_SIZE];
    return PyErr_Format(mpg_py->errors[MPG_VALUE_ERROR],
                        "cannot broadcast an array of shape %s to %s",
                        mpg_shape_text(own, a, sizeof a), mpg_shape_text(shape, b, sizeof b));
  }
  PyObject *source = Py_NewRef(self);
  if (extra != 0) {
    Py_SETREF(source, mpg_py_reshape(self, &same));
    if (source == NULL) return NULL;
    array = mpg_py_array_of(source);
    if (mpg_shape_equal(&array->tensor.desc.shape, shape)) return source;
  }
  mpg_tuple dims = mpg_shape_tuple(shape);
  PyObject *result = mpg_py_call_named("broadcast_to", &array, 1, NULL, "shape", &dims, NULL);
  Py_DECREF(source);
  return result;
}

static PyObject *without_elements(PyTypeObject *type) {
  mpg_device *device;
  mpg_tensor tensor;
  mpg_desc desc = {.shape = {.ndim = 1}, .dtype = MPG_FLOAT32};
  MPG_PY_TRY(mpg_device_get(mpg_py_current_device(), &device));
  MPG_PY_TRY(mpg_tensor_create(device, &desc, &tensor));
  PyObject *self = type->tp_alloc(type, 0);
  if (self == NULL)
    mpg_tensor_release(&tensor);
  else
    mpg_py_array_of(self)->tensor = tensor;
  if (self != NULL) mpg_py_array_of(self)->numpy = PyType_IsSubtype(type, mpg_py->numpy_type);
  return self;
}

/* Creates an array without elements for a Python subclass, and for NDArray(None), which MXNet's
 * pickles call before they set the array's state. */
static PyObject *array_new(PyTypeObject *type, PyObject *args, PyObject *Py_UNUSED(kwargs)) {
  bool unpickled = PyTuple_GET_SIZE(args) == 1 && PyTuple_GET_ITEM(args, 0) == Py_None,
       numpy = type == mpg_py->numpy_type;
  if ((type != mpg_py->array_type && !numpy) || unpickled) return without_elements(type);
  return PyErr_Format(mpg_py->errors[MPG_TYPE_ERROR],
                      "%s cannot be called; make arrays with %s.array, %s.zeros, %s.empty, ...",
                      numpy ? "ndarray" : "NDArray", numpy ? "np" : "nd", numpy ? "np" : "nd",
                      numpy ? "np" : "nd");
}

static Py_hash_t array_hash(PyObject *self) { return (Py_hash_t)((uintptr_t)self >> 4); }

static Py_ssize_t array_length(PyObject *self) {
  const mpg_shape *shape = &mpg_py_array_of(self)->tensor.desc.shape;
  if (shape->ndim > 0) return (Py_ssize_t)shape->dims[0];
  PyErr_SetString(PyExc_TypeError, "len() of an array without dimensions");
  return -1;
}

static PyObject *array_repr(PyObject *self) {
  mpg_array *array = mpg_py_array_of(self);
  const mpg_desc *desc = mpg_array_desc(array);
  char dims[MPG_MAX_NDIM * 21 + 1] = "";
  size_t used = 0;
  for (int i = 0; i < desc->shape.ndim; i++)
    used += (size_t)snprintf(dims + used, sizeof dims - used, "%s%lld", i ? "x" : "",
                             (long long)desc->shape.dims[i]);
  const char *kind = array->numpy ? "ndarray" : "NDArray";
  if (!mpg_array_traced(array) && array->tensor.storage == NULL)
    return PyUnicode_FromFormat("<%s empty>", kind);
  PyObject *context = mpg_py_context(mpg_py_context_id(array)), *result = NULL;
  if (context == NULL) return NULL;
  if (mpg_array_traced(array)) {
    result = PyUnicode_FromFormat("<%s %s %s @%R, traced by hybridize()>", kind, dims,
                                  mpg_dtype_name(desc->dtype), context);
  } else if (mpg_tensor_device(&array->tensor)->remote) {
    result = PyUnicode_FromFormat("<%s %s %s @%R, whose values are on rank %d>", kind, dims,
                                  mpg_dtype_name(desc->dtype), context,
                                  mpg_device_rank(mpg_tensor_device(&array->tensor)->id));
  } else {
    PyObject *values = mpg_py_to_numpy(array);
    if (values != NULL)
      result = PyUnicode_FromFormat("\n%S\n<NDArray %s @%R>", values, dims, context);
    Py_XDECREF(values);
  }
  Py_DECREF(context);
  return result;
}

static PyMemberDef members[] = {
    {"__weaklistoffset__", T_PYSSIZET, offsetof(mpg_py_array, weak_references), READONLY, NULL},
    {0}};

int mpg_py_array_init(PyObject *module) {
  PyType_Slot slots[64] = {
      {Py_tp_doc,
       "An array on a device, with Python's operators and the methods of MXNet's NDArray.\n\nOps "
       "on it are queued; reading its values (asnumpy, printing, float(), ...) waits for them. "
       "Arrays are contiguous:\nreshape and x[begin:end] share memory, other indexing "
       "copies.\n\nExamples\n--------\n>>> x = nd.array([[1, 2], [3, 4]])\n>>> x[0] = x[1] * "
       "10\n>>> x.asnumpy().tolist(), x.shape, x.context\n([[30.0, 40.0], [3.0, 4.0]], (2, 2), "
       "cpu(0))"},
      {Py_tp_new, array_new},
      {Py_tp_dealloc, array_dealloc},
      {Py_tp_setattro, mpg_py_set_attribute},
      {Py_tp_repr, array_repr},
      {Py_tp_hash, array_hash},
      {Py_tp_members, members},
      {Py_tp_methods, mpg_py_array_methods},
      {Py_tp_getset, mpg_py_array_properties},
      {Py_mp_length, array_length},
      {Py_mp_subscript, mpg_py_subscript},
      {Py_mp_ass_subscript, mpg_py_assign_subscript},
      {Py_sq_length, array_length},
      {Py_sq_item, mpg_py_item},
      {Py_bf_getbuffer, mpg_py_getbuffer},
      {Py_bf_releasebuffer, mpg_py_releasebuffer}};
  size_t count = 0, limit = sizeof slots / sizeof slots[0];
  while (slots[count].slot != 0) count++;
  for (const PyType_Slot *more = mpg_py_number_slots; more->slot != 0 && count + 1 < limit; more++)
    slots[count++] = *more;
  PyType_Spec spec = {"mpgluon.ndarray.NDArray", sizeof(mpg_py_array), 0,
                      Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE, slots};
  mpg_py->array_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &spec, NULL);
  if (mpg_py->array_type == NULL || PyModule_AddType(module, mpg_py->array_type) < 0) return -1;
  PyType_Slot own_slots[32] = {
      {Py_tp_doc,
       "An array on a device, with NumPy's operators, methods and shapes. mpgluon.numpy has the "
       "functions.\n\nExamples\n--------\n>>> x = mx.np.array([[1, 2], [3, 4]])\n>>> x.sum(), "
       "x[x > 2]\n(array(10.), array([3., 4.]))"},
      {Py_tp_new, array_new},
      {Py_tp_dealloc, array_dealloc}, /* otherwise a slower one for any subclass is set */
      {Py_tp_getset, mpg_py_numpy_properties},
      /* A type that defines one of these two doesn't inherit the other. */
      {Py_tp_hash, PyObject_HashNotImplemented},
      {Py_tp_richcompare, PyType_GetSlot(mpg_py->array_type, Py_tp_richcompare)}};
  count = 0, limit = sizeof own_slots / sizeof own_slots[0];
  while (own_slots[count].slot != 0) count++;
  for (const PyType_Slot *more = mpg_py_numpy_number_slots; more->slot != 0 && count + 1 < limit;
       more++)
    own_slots[count++] = *more;
  PyType_Spec own_spec = {"mpgluon.numpy.ndarray", sizeof(mpg_py_array), 0,
                          Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE, own_slots};
  mpg_py->numpy_type =
      (PyTypeObject *)PyType_FromModuleAndSpec(module, &own_spec, (PyObject *)mpg_py->array_type);
  return mpg_py->numpy_type == NULL ? -1 : PyModule_AddType(module, mpg_py->numpy_type);
}
