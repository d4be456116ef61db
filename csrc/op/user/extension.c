/* Ops from user libraries: checks a library's op table, creates registry rows for its ops, and
 * calls its functions. */
#include "op/user/extension.h"

#include <ctype.h>
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "mpgluon/include/mpgluon/op.h"
#include "op/batching/batching.h"
#include "op/sharding/sharding.h"
#include "op/formula/arithmetic.h"
#include "op/infer.h"

enum { ERROR_SIZE = 400, ALL_ARRAYS = 3 * MPGLUON_MAX_ARRAYS };
_Static_assert((int)MPGLUON_MAX_DIMENSIONS == MPG_MAX_NDIM &&
                   (int)MPGLUON_MAX_ARRAYS == MPG_MAX_NAMED,
               "limits of the public header");
_Static_assert((int)MPGLUON_BFLOAT16 == MPG_BFLOAT16 && (int)MPGLUON_UNKNOWN == MPG_DTYPE_NONE &&
                   (int)MPGLUON_INT64 == MPG_INT64 && (int)MPGLUON_BOOL == MPG_BOOL,
               "dtypes of the public header");

/* An op from a library. The op's registry row and its gradient's row both point to this struct. */
struct mpg_extension {
  mpgluon_op op; /* copy of the library's entry; fields that its header lacks are 0 */
  const char *path;
  int num_inputs, num_outputs;
  uint32_t states; /* bit i is set if input i is written */
  mpg_param params[MPGLUON_MAX_PARAMS + 1];
  mpg_param_table forward_table, backward_table;
  const mpg_op *backward; /* registry row of the gradient; NULL if not differentiable */
  char backward_name[80];
};

struct mpg_extension_library {
  void *handle;
  char *path;
  int count;
  mpg_extension **ops;
};

/* Libraries whose ops are in the registry. Guarded by the host lock. */
static mpg_extension_library **libraries;
static int num_libraries;

/* --- Calls to a library's functions ----------------------------------------------------------- */
static const char *error_of(const char *error, const char *function, int code, char *space,
                            size_t size) {
  if (*error) return error;
  snprintf(space, size, "function %s of its library returned %d without a message", function, code);
  return space;
}

static void desc_out(const mpg_desc *desc, mpgluon_desc *result) {
  *result = (mpgluon_desc){.dtype = desc->dtype, .ndim = desc->shape.ndim};
  for (int i = 0; i < desc->shape.ndim; i++) result->shape[i] = desc->shape.dims[i];
}

static bool desc_in(const mpgluon_desc *desc, mpg_desc *result) {
  *result = (mpg_desc){.shape = MPG_SHAPE_UNKNOWN, .dtype = (mpg_dtype)desc->dtype};
  if (desc->dtype != MPG_DTYPE_NONE && !mpg_dtype_valid(desc->dtype)) return false;
  if (desc->ndim < -1 || desc->ndim > MPG_MAX_NDIM) return false;
  result->shape.ndim = desc->ndim;
  for (int i = 0; i < desc->ndim; i++)
    if ((result->shape.dims[i] = desc->shape[i]) < -1) return false;
  return true;
}

static mpg_status bad_desc(const mpg_infer *infer, const char *what, int index) {
  return mpg_infer_fail(infer, "infer of its library returned an invalid shape or dtype for %s %d",
                        what, index);
}

static mpg_status infer_forward(mpg_infer *infer) {
  const mpg_extension *e = infer->op->extension;
  if (!e->op.infer) return mpg_infer_same(infer);
  if (!mpg_shape_known(&infer->inputs[0].shape)) return MPG_OK;
  mpgluon_desc descs[2 * MPGLUON_MAX_ARRAYS];
  char error[ERROR_SIZE] = "", space[64];
  for (int i = 0; i < infer->num_inputs; i++) desc_out(&infer->inputs[i], &descs[i]);
  for (int i = 0; i < infer->num_outputs; i++)
    desc_out(&infer->outputs[i], &descs[infer->num_inputs + i]);
  mpgluon_infer call = {.op = &e->op,
                        .params = infer->params,
                        .num_inputs = infer->num_inputs,
                        .num_outputs = infer->num_outputs,
                        .inputs = descs,
                        .outputs = descs + infer->num_inputs,
                        .train = infer->train,
                        .error = error,
                        .error_size = sizeof error};
  int code = e->op.infer(&call);
  if (code) return mpg_infer_fail(infer, "%s", error_of(error, "infer", code, space, sizeof space));
  bool complete = true;
  for (int i = 0; i < infer->num_inputs; i++) {
    mpg_desc desc;
    if (!desc_in(&descs[i], &desc)) return bad_desc(infer, "input", i);
    MPG_TRY(mpg_infer_expect_shape(infer, i, &desc.shape));
    MPG_TRY(mpg_infer_expect_dtype(infer, i, desc.dtype));
    complete &= mpg_shape_known(&desc.shape) && desc.dtype != MPG_DTYPE_NONE;
  }
  for (int i = 0; i < infer->num_outputs; i++) {
    mpg_desc *desc = &infer->outputs[i];
    if (!desc_in(&descs[infer->num_inputs + i], desc)) return bad_desc(infer, "output", i);
    bool known = mpg_shape_known(&desc->shape) && desc->dtype != MPG_DTYPE_NONE;
    if (complete && !known)
      return mpg_infer_fail(infer,
                            "infer of its library does not set the shape or dtype of output %d", i);
    if (known && mpg_shape_check(&desc->shape, desc->dtype, NULL) != MPG_OK)
      return bad_desc(infer, "output", i);
  }
  return MPG_OK;
}

/* True if the gradient op reads the forward op's outputs. The gradient op's inputs are the
 * gradients of all outputs, the forward inputs except states, and the forward outputs if they are
 * read. */
static bool reads_outputs(const mpg_extension *e) {
  return e->op.flags & MPGLUON_BACKWARD_READS_OUTPUTS;
}

static mpg_status infer_backward(mpg_infer *infer) {
  const mpg_desc *given = infer->inputs + infer->op->extension->num_outputs;
  for (int i = 0; i < infer->num_outputs; i++) infer->outputs[i] = given[i];
  return MPG_OK;
}

static int count_gradients(const mpg_op *op, const void *params, int given) {
  (void)params, (void)given;
  return op->extension->num_inputs - __builtin_popcount(op->extension->states);
}

static void gradient(mpg_gradient *g) {
  const mpg_extension *e = g->op->extension;
  mpg_value inputs[ALL_ARRAYS], outputs[MPGLUON_MAX_ARRAYS];
  mpgluon_value params[MPGLUON_MAX_PARAMS + 1] = {{0}};
  int count = 0;
  memcpy(params, g->params ? g->params : params, e->forward_table.size);
  for (int i = 0; i < g->num_inputs; i++)
    if (g->needed[i]) params[e->op.num_params].integer |= INT64_C(1) << i;
  for (int i = 0; i < g->num_outputs; i++) {
    const mpg_desc *desc = mpg_value_desc(g, g->outputs[i]);
    inputs[count++] = mpg_has_value(g->out_grads[i])
                          ? g->out_grads[i]
                          : mpg_emit_full(g, g->inputs[0], &desc->shape, desc->dtype, 0);
  }
  for (int i = 0; i < g->num_inputs; i++)
    if (!(e->states >> i & 1)) inputs[count++] = g->inputs[i];
  for (int i = 0; i < g->num_outputs && reads_outputs(e); i++) inputs[count++] = g->outputs[i];
  if (g->status != MPG_OK) return;
  g->status = g->builder->emit(g->builder, e->backward, params, inputs, count, inputs[0], outputs);
  for (int i = 0, k = 0; i < g->num_inputs && g->status == MPG_OK; i++)
    if (!(e->states >> i & 1)) g->in_grads[i] = outputs[k++];
}

static mpg_status batching(mpg_batching *b) {
  int rows = b->op->extension->op.num_row_inputs;
  if (!rows) return mpg_batching_unknown(b);
  MPG_TRY(mpg_batching_all_along(b, rows, 0));
  for (int i = 0; i < b->num_outputs; i++) mpg_batching_set(b, i, 0, mpg_batching_first(b));
  return MPG_OK;
}

/* --- Kernels ---------------------------------------------------------------------------------- */
static void *take_scratch(const mpgluon_call *call, size_t size) {
  return mpg_device_scratch(call->host, size);
}

static mpgluon_array array_of(const mpg_view *view) {
  return (mpgluon_array){view->data, view->desc.dtype, view->desc.shape.ndim,
                         view->desc.shape.dims};
}

static mpg_status run(const mpg_kernel_call *call, mpgluon_call *own, mpgluon_kernel function,
                      const char *name, const char *cuda_name) {
  const mpg_extension *e = call->op->extension;
  char error[ERROR_SIZE] = "", space[64];
  own->op = &e->op;
  own->params = call->params;
  own->num_inputs = e->num_inputs;
  own->num_outputs = e->num_outputs;
  own->train = call->train;
  own->num_threads = call->num_threads;
  own->stream = call->stream;
  own->scratch = take_scratch;
  own->host = call->device;
  own->error = error;
  own->error_size = sizeof error;
  int code = function(own);
  if (!code) return MPG_OK;
  return mpg_fail(MPG_ERROR, "%s: %s", e->op.name,
                  error_of(error, call->stream ? cuda_name : name, code, space, sizeof space));
}

static mpg_status run_forward(const mpg_kernel_call *call, mpgluon_kernel function) {
  mpgluon_array inputs[MPGLUON_MAX_ARRAYS], outputs[MPGLUON_MAX_ARRAYS];
  for (int i = 0; i < call->num_inputs; i++) inputs[i] = array_of(&call->inputs[i]);
  for (int i = 0; i < call->num_outputs; i++) outputs[i] = array_of(&call->outputs[i]);
  mpgluon_call own = {.inputs = inputs, .outputs = outputs};
  return run(call, &own, function, "forward", "cuda_forward");
}

static mpg_status run_backward(const mpg_kernel_call *call, mpgluon_kernel function) {
  static const int64_t no_shape[1];
  const mpg_extension *e = call->op->extension;
  mpgluon_array inputs[MPGLUON_MAX_ARRAYS], outputs[MPGLUON_MAX_ARRAYS],
      output_gradients[MPGLUON_MAX_ARRAYS], input_gradients[MPGLUON_MAX_ARRAYS];
  const mpg_view *given = call->inputs;
  for (int i = 0; i < e->num_outputs; i++) output_gradients[i] = array_of(given++);
  for (int i = 0, k = 0; i < e->num_inputs; i++) {
    inputs[i] = input_gradients[i] = (mpgluon_array){NULL, MPGLUON_UNKNOWN, 0, no_shape};
    if (e->states >> i & 1) continue;
    inputs[i] = array_of(given++);
    input_gradients[i] = array_of(&call->outputs[k++]);
  }
  for (int i = 0; i < e->num_outputs; i++) {
    outputs[i] = output_gradients[i]; /* copies the shape and dtype */
    outputs[i].data = reads_outputs(e) ? given++->data : NULL;
  }
  mpgluon_call own = {
      .inputs = inputs,
      .outputs = outputs,
      .output_gradients = output_gradients,
      .input_gradients = input_gradients,
      .wanted = (uint32_t)((const mpgluon_value *)call->params)[e->op.num_params].integer,
  };
  return run(call, &own, function, "backward", "cuda_backward");
}

static mpg_status cpu_forward(const mpg_kernel_call *call) {
  return run_forward(call, call->op->extension->op.forward);
}
static mpg_status cpu_backward(const mpg_kernel_call *call) {
  return run_backward(call, call->op->extension->op.backward);
}
static mpg_status gpu_forward(const mpg_kernel_call *call) {
  return run_forward(call, call->op->extension->op.cuda_forward);
}
static mpg_status gpu_backward(const mpg_kernel_call *call) {
  return run_backward(call, call->op->extension->op.cuda_backward);
}

mpg_kernel_fn mpg_extension_kernel(const mpg_device *device, const mpg_op *op) {
  const mpg_extension *e = op->extension;
  bool second = op == e->backward;
  if (device->id.type == MPG_GPU)
    return second               ? e->op.cuda_backward ? gpu_backward : NULL
           : e->op.cuda_forward ? gpu_forward
                                : NULL;
  return second ? e->op.backward ? cpu_backward : NULL : e->op.forward ? cpu_forward : NULL;
}

mpg_status mpg_extension_no_kernel(const mpg_device *device, const mpg_op *op) {
  const mpg_extension *e = op->extension;
  bool gpu = device->id.type == MPG_GPU, second = op == e->backward;
  return mpg_fail(MPG_NOT_IMPLEMENTED,
                  "%s cannot run on %s: its library %s has no %s%s; move its inputs with "
                  ".as_in_context(mx.%s())",
                  e->op.name, mpg_device_text(device), e->path, gpu ? "cuda_" : "",
                  second ? "backward" : "forward", gpu ? "cpu" : "gpu");
}

/* --- Registry rows ---------------------------------------------------------------------------- */
static bool identifier(const char *text, size_t length) {
  if (!length || length > 63 || isdigit((unsigned char)*text)) return false;
  for (size_t i = 0; i < length; i++)
    if (!isalnum((unsigned char)text[i]) && text[i] != '_') return false;
  return true;
}

/* Counts the names in a list such as "data, !state". Sets bit i of *marked if name i has a "!". */
static mpg_status parse_names(const mpg_extension *e, const char *what, const char *text,
                              int *count, uint32_t *marked) {
  const char *starts[MPGLUON_MAX_ARRAYS];
  size_t lengths[MPGLUON_MAX_ARRAYS];
  *count = 0;
  *marked = 0;
  for (const char *at = text ? text + strspn(text, ", ") : ""; *at; at += strspn(at, ", ")) {
    if (*count == MPGLUON_MAX_ARRAYS)
      return mpg_fail(MPG_ERROR, "%s has more than %d %s", e->op.name, MPGLUON_MAX_ARRAYS, what);
    if (*at == '!') *marked |= 1u << *count, at++;
    size_t length = strcspn(at, ", ");
    if (!identifier(at, length))
      return mpg_fail(MPG_ERROR, "%s: the %s must be names separated by commas, got \"%s\"",
                      e->op.name, what, text);
    for (int i = 0; i < *count; i++)
      if (lengths[i] == length && !memcmp(starts[i], at, length))
        return mpg_fail(MPG_ERROR, "%s: two of its %s have the name %.*s", e->op.name, what,
                        (int)length, at);
    starts[*count] = at;
    lengths[(*count)++] = length;
    at += length;
  }
  return *count ? MPG_OK : mpg_fail(MPG_ERROR, "%s has no %s", e->op.name, what);
}

static bool has_name(const char *names, const char *name) {
  size_t length = strlen(name);
  for (const char *at = names; (at = strstr(at, name)); at += length)
    if ((at == names || strchr(", !", at[-1])) && (!at[length] || strchr(", ", at[length])))
      return true;
  return false;
}

static mpg_status make_param(mpg_extension *e, int index) {
  static const mpg_param_kind kinds[] = {
      0, MPG_PARAM_INT, MPG_PARAM_FLOAT, MPG_PARAM_BOOL, MPG_PARAM_ENUM, MPG_PARAM_STRING};
  const mpgluon_param *given = &e->op.params[index];
  mpg_param *param = &e->params[index];
  const char *name = given->name ? given->name : "";
  if (!identifier(name, strlen(name)) || !strcmp(name, "out") || !strcmp(name, "name") ||
      !strcmp(name, "attr"))
    return mpg_fail(MPG_ERROR, "%s: a parameter cannot have the name \"%s\"", e->op.name, name);
  for (int i = 0; i < index; i++)
    if (!strcmp(e->params[i].name, name))
      return mpg_fail(MPG_ERROR, "%s: two parameters have the name %s", e->op.name, name);
  if (has_name(e->op.inputs, name))
    return mpg_fail(MPG_ERROR, "%s: an input and a parameter have the same name %s", e->op.name,
                    name);
  if (given->kind < MPGLUON_INTEGER || given->kind > MPGLUON_TEXT)
    return mpg_fail(MPG_ERROR, "%s: parameter %s has the unknown kind %d", e->op.name, name,
                    (int)given->kind);
  bool numbers = given->kind == MPGLUON_INTEGER || given->kind == MPGLUON_NUMBER,
       words = given->kind == MPGLUON_CHOICE;
  const char *range = given->range ? given->range : "";
  if (*range ? !words && !(numbers && strstr(range, "..")) : words)
    return mpg_fail(MPG_ERROR, "%s: \"%s\" is not a valid range of parameter %s", e->op.name, range,
                    name);
  /* In parameter tables, the default "required" means that there is no default. */
  if (given->initial && !strcmp(given->initial, "required"))
    return mpg_fail(MPG_ERROR, "%s: the default of %s cannot be \"required\"", e->op.name, name);
  *param = (mpg_param){.name = name,
                       .default_text = given->initial ? given->initial : "required",
                       .constraint = range,
                       .doc = given->doc ? given->doc : "",
                       .kind = kinds[given->kind],
                       .offset = (size_t)index * sizeof(mpgluon_value)};
  if (!given->initial) return MPG_OK;
  mpgluon_value values[MPGLUON_MAX_PARAMS] = {{0}};
  const mpg_param_table table = {e->op.name, sizeof values, index + 1, e->params};
  if (words && mpg_param_enum_find(range, given->initial, strlen(given->initial)) < 0)
    return mpg_fail(MPG_ERROR, "%s: default \"%s\" is not one of the choices of parameter %s",
                    e->op.name, given->initial, name);
  return mpg_params_set_text(&table, e->op.name, values, index, given->initial);
}

static mpg_status check_functions(const mpg_extension *e) {
  const mpgluon_op *op = &e->op;
  if (!op->forward && !op->cuda_forward)
    return mpg_fail(MPG_ERROR, "%s has neither forward nor cuda_forward", op->name);
  if ((op->backward && !op->forward) || (op->cuda_backward && !op->cuda_forward))
    return mpg_fail(MPG_ERROR,
                    "%s has a backward function for a device type that has no forward function",
                    op->name);
  if (op->flags & ~(uint32_t)MPGLUON_BACKWARD_READS_OUTPUTS)
    return mpg_fail(MPG_ERROR, "%s has unknown flags: %#x", op->name, op->flags);
  if (!op->dtypes || op->dtypes & ~MPG_DTYPES_ALL)
    return mpg_fail(MPG_ERROR, "%s: dtypes %#x is not a valid set of dtypes", op->name, op->dtypes);
  if (op->num_row_inputs < 0 || op->num_row_inputs > e->num_inputs)
    return mpg_fail(MPG_ERROR, "%s has %d inputs, so num_row_inputs cannot be %d", op->name,
                    e->num_inputs, (int)op->num_row_inputs);
  if (op->num_params < 0 || op->num_params > MPGLUON_MAX_PARAMS || (op->num_params && !op->params))
    return mpg_fail(MPG_ERROR, "%s: num_params is %d; it must be from 0 to %d, with params set",
                    op->name, (int)op->num_params, MPGLUON_MAX_PARAMS);
  return MPG_OK;
}

/* Size of mpgluon_op in the first version of the public header. For a library built with an older
 * header, the fields that newer versions appended are zero. */
#define FIRST_OP_SIZE (offsetof(mpgluon_op, cuda_backward) + sizeof(mpgluon_kernel))

/* Checks an op in a library's table and prepares the contents of its registry rows. `given` points
 * to the library's mpgluon_op, of `size` bytes. */
static mpg_status make_op(mpg_extension *e, const void *given, size_t size) {
  uint32_t states;
  memcpy(&e->op, given, size);
  if (!e->op.name || !identifier(e->op.name, strlen(e->op.name)))
    return mpg_fail(MPG_ERROR, "an op cannot have the name \"%s\"", e->op.name ? e->op.name : "");
  if (mpg_op_find(e->op.name)) return mpg_fail(MPG_ERROR, "op %s exists already", e->op.name);
  MPG_TRY(parse_names(e, "inputs", e->op.inputs, &e->num_inputs, &e->states));
  MPG_TRY(parse_names(e, "outputs", e->op.outputs, &e->num_outputs, &states));
  if (states || e->states & 1)
    return mpg_fail(MPG_ERROR, "%s: the first input and the outputs cannot be states", e->op.name);
  MPG_TRY(check_functions(e));
  for (int i = 0; i < e->op.num_params; i++) MPG_TRY(make_param(e, i));
  int count = e->op.num_params;
  e->params[count] = (mpg_param){.name = "wanted",
                                 .default_text = "required",
                                 .constraint = "",
                                 .doc = "",
                                 .kind = MPG_PARAM_INT,
                                 .offset = (size_t)count * sizeof(mpgluon_value)};
  e->forward_table =
      (mpg_param_table){e->op.name, (size_t)count * sizeof(mpgluon_value), count, e->params};
  e->backward_table = (mpg_param_table){e->op.name, (size_t)(count + 1) * sizeof(mpgluon_value),
                                        count + 1, e->params};
  return MPG_OK;
}

/* --- Libraries -------------------------------------------------------------------------------- */
static mpg_status read_table(mpg_extension_library *library) {
  const mpgluon_table *table = dlsym(library->handle, "mpgluon_library");
  if (!table && dlsym(library->handle, "_opRegSize"))
    return mpg_fail(MPG_ERROR,
                    "it was built with MXNet's lib_api.h, whose libraries need MXNet itself; port "
                    "its ops to mpgluon/op.h (docs/custom-ops.md)");
  if (!table)
    return mpg_fail(
        MPG_ERROR,
        "it does not export a table of ops; define one with MPGLUON_LIBRARY of mpgluon/op.h");
  if (table->version < 1 || table->version > MPGLUON_OP_VERSION)
    return mpg_fail(MPG_ERROR,
                    "it was built with version %u of mpgluon/op.h, but this mpgluon has version "
                    "%d; recompile it",
                    (unsigned)table->version, MPGLUON_OP_VERSION);
  if (table->op_size < FIRST_OP_SIZE || table->op_size > sizeof(mpgluon_op) || table->num_ops < 1 ||
      !table->ops)
    return mpg_fail(MPG_ERROR, "its table of ops is invalid");
  library->ops = mpg_calloc((size_t)table->num_ops, sizeof *library->ops);
  if (!library->ops) return mpg_out_of_host_memory((size_t)table->num_ops * sizeof *library->ops);
  for (int i = 0; i < table->num_ops; i++) {
    mpg_extension *e = library->ops[library->count] = mpg_calloc(1, sizeof *e);
    if (!e) return mpg_out_of_host_memory(sizeof *e);
    library->count++;
    e->path = library->path;
    MPG_TRY(make_op(e, (const char *)table->ops + (size_t)i * table->op_size, table->op_size));
    for (int k = 0; k < i; k++)
      if (!strcmp(library->ops[k]->op.name, e->op.name))
        return mpg_fail(MPG_ERROR, "two of its ops have the name %s", e->op.name);
  }
  return MPG_OK;
}

mpg_status mpg_extension_open(const char *path, mpg_extension_library **result) {
  *result = NULL;
  void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!handle) return mpg_fail(MPG_ERROR, "%s cannot be opened: %s", path, dlerror());
  for (int i = 0; i < num_libraries; i++)
    if (libraries[i]->handle == handle) {
      dlclose(handle);
      return MPG_OK;
    }
  mpg_extension_library *library = mpg_calloc(1, sizeof *library);
  if (!library) {
    dlclose(handle);
    return mpg_out_of_host_memory(sizeof *library);
  }
  library->handle = handle;
  library->path = mpg_strdup(path);
  mpg_status status =
      library->path ? read_table(library) : mpg_out_of_host_memory(strlen(path) + 1);
  if (status == MPG_OK) {
    *result = library;
    return MPG_OK;
  }
  mpg_extension_close(library);
  return mpg_fail_prefix(status, "%s", path);
}

int mpg_extension_count(const mpg_extension_library *library) { return library->count; }
const char *mpg_extension_name(const mpg_extension_library *library, int index) {
  return library->ops[index]->op.name;
}

void mpg_extension_close(mpg_extension_library *library) {
  if (!library) return;
  for (int i = 0; i < library->count; i++) mpg_free(library->ops[i]);
  mpg_free(library->ops);
  mpg_free(library->path);
  dlclose(library->handle);
  mpg_free(library);
}

static void add_op(mpg_extension *e) {
  bool gradients = e->op.backward || e->op.cuda_backward;
  uint32_t inputs = ((1u << e->num_inputs) - 1) & ~e->states;
  mpg_op row = {.name = e->op.name,
                .aliases = "",
                .inputs = e->op.inputs,
                .outputs = e->op.outputs,
                .params = &e->forward_table,
                .infer = infer_forward,
                .infer_inputs = mpg_infer_inputs_none,
                .cost = mpg_cost_math,
                .gradient = gradients ? gradient : mpg_gradient_missing,
                .num_inputs = mpg_arity_names,
                .num_outputs = mpg_arity_names,
                .saves = inputs | (reads_outputs(e) ? MPG_SAVE_OUTPUTS : 0),
                /* never inline, because the library's functions may be slow or block */
                .flags = MPG_OP_HEAVY | MPG_OP_TRAIN,
                .dtypes = e->op.dtypes,
                .batching = batching,
                .sharding = mpg_sharding_from_batching,
                .doc = e->op.doc ? e->op.doc : "",
                .extension = e};
  mpg_registry_add(&row, true);
  if (!gradients) return;
  snprintf(e->backward_name, sizeof e->backward_name, "_backward_%s", e->op.name);
  row.name = e->backward_name;
  row.inputs = "*data";
  row.outputs = "*output";
  row.params = &e->backward_table;
  row.infer = infer_backward;
  row.gradient = mpg_gradient_missing;
  row.num_outputs = count_gradients;
  row.saves = MPG_SAVE_NONE;
  row.flags |= MPG_OP_HIDDEN;
  row.dtypes = MPG_DTYPES_ALL;
  row.batching = mpg_batching_unknown;
  row.sharding = mpg_sharding_whole;
  e->backward = mpg_registry_add(&row, false);
}

mpg_status mpg_extension_add(mpg_extension_library *library) {
  size_t size = sizeof *libraries * ((size_t)num_libraries + 1);
  mpg_extension_library **list = mpg_realloc(libraries, size);
  mpg_status status = MPG_OK;
  if (!list) MPG_GOTO(mpg_out_of_host_memory(size));
  libraries = list;
  if (mpg_registry_room() < 2 * library->count)
    MPG_GOTO(mpg_fail(MPG_ERROR, "%s: libraries cannot define more than %d ops in total",
                      library->path, MPG_OP_ADDED / 2));
  libraries[num_libraries++] = library;
  for (int i = 0; i < library->count; i++) add_op(library->ops[i]);
  return MPG_OK;
fail:
  mpg_extension_close(library);
  return status;
}
