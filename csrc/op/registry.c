/* The op table, generated from ops.def, followed by the rows that user libraries add. Names and
 * signatures are parsed once per row. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "op/batching/batching.h"
#include "op/sharding/sharding.h"
#include "op/infer.h"
#include "op/precision/promotion.h"
#include "op/precision/precision.h"

/* The NumPy descriptors, indexed by op id, and the memory of their names. */
static mpg_op numpy_ops[MPG_OP_LIMIT];
static char numpy_names[MPG_OP_LIMIT][64];

#define MPG_OP_ROW(op_id, op_aliases, op_inputs, op_outputs, op_params, op_infer, op_infer_inputs, \
                   op_cost, op_gradient, op_num_inputs, op_num_outputs, op_saves, op_flags,        \
                   op_dtypes, op_batching, op_sharding, op_kernel, op_doc)                         \
  {.id = MPG_OP_##op_id,                                                                           \
   .name = #op_id,                                                                                 \
   .aliases = op_aliases,                                                                          \
   .inputs = op_inputs,                                                                            \
   .outputs = op_outputs,                                                                          \
   .params = &mpg_##op_params##_table,                                                             \
   .infer = mpg_infer_##op_infer,                                                                  \
   .infer_inputs = mpg_infer_inputs_##op_infer_inputs,                                             \
   .cost = mpg_cost_##op_cost,                                                                     \
   .gradient = mpg_gradient_##op_gradient,                                                         \
   .num_inputs = mpg_arity_##op_num_inputs,                                                        \
   .num_outputs = mpg_arity_##op_num_outputs,                                                      \
   .saves = op_saves,                                                                              \
   .flags = op_flags,                                                                              \
   .dtypes = op_dtypes,                                                                            \
   .batching = mpg_batching_##op_batching,                                                         \
   .sharding = mpg_sharding_##op_sharding,                                                         \
   .doc = op_doc,                                                                                  \
   .numpy = &numpy_ops[MPG_OP_##op_id]},
#define MPG_COMPOSED_ROW(op_id, op_aliases, op_inputs, op_outputs, op_params, op_infer,          \
                         op_compose, op_num_inputs, op_num_outputs, op_flags, op_dtypes, op_doc) \
  {.id = MPG_OP_##op_id,                                                                         \
   .name = #op_id,                                                                               \
   .aliases = op_aliases,                                                                        \
   .inputs = op_inputs,                                                                          \
   .outputs = op_outputs,                                                                        \
   .params = &mpg_##op_params##_table,                                                           \
   .infer = mpg_infer_##op_infer,                                                                \
   .infer_inputs = mpg_infer_inputs_none,                                                        \
   .cost = mpg_cost_passes,                                                                      \
   .gradient = mpg_gradient_missing,                                                             \
   .compose = mpg_compose_##op_compose,                                                          \
   .num_inputs = mpg_arity_##op_num_inputs,                                                      \
   .num_outputs = mpg_arity_##op_num_outputs,                                                    \
   .flags = MPG_OP_COMPOSED | (op_flags),                                                        \
   .dtypes = op_dtypes,                                                                          \
   .batching = mpg_batching_unknown,                                                             \
   .sharding = mpg_sharding_whole,                                                               \
   .doc = op_doc,                                                                                \
   .numpy = &numpy_ops[MPG_OP_##op_id]},
static const mpg_op ops[] = {
#include "op/ops.def"
};
#undef MPG_OP_ROW
#undef MPG_COMPOSED_ROW
_Static_assert(sizeof ops / sizeof *ops == MPG_OP_COUNT, "one row an op");

/* Parsed input and output names of a row. */
typedef struct signature {
  int num_inputs, num_outputs;
  int num_required; /* inputs that are not optional */
  bool variadic, variadic_outputs;
  /* True for an update op with num_weights weights and one output per weight. */
  bool of_many_weights;
  int num_hidden; /* trailing outputs that users do not see */
  /* Offset of the parameter output_mean_var, which shows hidden outputs; 0 if absent. */
  size_t show_hidden;
  uint32_t mutable_inputs, optional_inputs;
  struct {
    const char *text;
    int length;
    int use;  /* index of the BOOL or ENUM parameter that enables the input; -1 if none */
    int word; /* 1 + index of the ENUM value that enables the input; 0 for a BOOL */
    /* True if the input is present when the parameter is false, like "bias" with no_bias. */
    bool unless;
    bool has_initial;
    double initial; /* initial value of a variable created for the input */
  } inputs[MPG_MAX_NAMED];
} signature;

/* Parsed names of each row, indexed by op id. */
static signature signatures[MPG_OP_LIMIT];
static mpg_op added[MPG_OP_ADDED];
static int num_added;

enum { NAME_BUCKETS = 4096 };
static struct {
  const char *text;
  size_t length;
  const mpg_op *op;
} names[NAME_BUCKETS];

static uint32_t hash_name(const char *text, size_t length) {
  uint32_t hash = 2166136261u;
  for (size_t i = 0; i < length; i++) hash = (hash ^ (uint8_t)text[i]) * 16777619u;
  return hash;
}

static mpg_status add_name(const char *text, size_t length, const mpg_op *op) {
  for (uint32_t i = hash_name(text, length);; i++) {
    uint32_t bucket = i % NAME_BUCKETS;
    if (!names[bucket].op) {
      names[bucket].text = text;
      names[bucket].length = length;
      names[bucket].op = op;
      return MPG_OK;
    }
    if (names[bucket].length == length && memcmp(names[bucket].text, text, length) == 0)
      return mpg_fail(MPG_ERROR, "%.*s names two ops: %s and %s", (int)length, text,
                      names[bucket].op->name, op->name);
  }
}

static const mpg_op *find_name(const char *name) {
  size_t length = strlen(name);
  for (uint32_t i = hash_name(name, length);; i++) {
    uint32_t bucket = i % NAME_BUCKETS;
    if (!names[bucket].op) return NULL;
    if (names[bucket].length == length && memcmp(names[bucket].text, name, length) == 0)
      return names[bucket].op;
  }
}

/* The prefixes of NumPy names. */
static const char *const prefixes[] = {"_npi_", "_npx_", "_np_"};

/* Returns the length of the prefix of a NumPy name, or 0 for other names. */
static size_t numpy_prefix(const char *name) {
  for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes; i++)
    if (strncmp(name, prefixes[i], strlen(prefixes[i])) == 0) return strlen(prefixes[i]);
  return 0;
}

const mpg_op *mpg_op_find(const char *name) {
  const mpg_op *op = find_name(name);
  size_t prefix = op ? 0 : numpy_prefix(name);
  if (prefix) op = find_name(name + prefix);
  return op && prefix ? op->numpy : op;
}

const mpg_op *mpg_op_get(mpg_op_id id) {
  return id < MPG_OP_COUNT ? &ops[id] : &added[id - MPG_OP_COUNT];
}

/* Returns the next name in a list such as "a, ?b, *c", and sets its marker (0 if none) and length.
 * Returns NULL at the end. */
static const char *next_name(const char **text, char *marker, int *length) {
  const char *start = *text + strspn(*text, ", ");
  if (!*start) return NULL;
  *marker = strchr("?!*~", *start) ? *start++ : 0;
  *length = (int)strcspn(start, ", =@");
  *text = start + strcspn(start, ", ");
  return start;
}

static mpg_status read_signature(const mpg_op *op) {
  signature *s = &signatures[op->id];
  char marker;
  int length;
  const char *name, *text = op->inputs;
  while ((name = next_name(&text, &marker, &length))) {
    if (s->num_inputs == MPG_MAX_NAMED)
      return mpg_fail(MPG_ERROR, "%s: more than %d input names", op->name, MPG_MAX_NAMED);
    if (marker == '*' && *name == '!') { /* "*!": every array of the list is written */
      s->mutable_inputs |= 1u << s->num_inputs;
      name++;
      length--;
    }
    s->inputs[s->num_inputs].text = name;
    s->inputs[s->num_inputs].length = length;
    s->inputs[s->num_inputs].has_initial = name[length] == '=';
    if (name[length] == '=') s->inputs[s->num_inputs].initial = strtod(name + length + 1, NULL);
    char use[64];
    snprintf(use, sizeof use, "use_%.*s", length, name);
    s->inputs[s->num_inputs].use = marker == '?' ? mpg_params_find(op->params, use) : -1;
    /* Present only if the parameter has the given value: ?state_cell@mode=lstm. */
    if (name[length] == '@') {
      const char *param = name + length + 1, *word = strchr(param, '=') + 1;
      snprintf(use, sizeof use, "%.*s", (int)(word - 1 - param), param);
      int index = s->inputs[s->num_inputs].use = mpg_params_find(op->params, use);
      if (index < 0) return mpg_fail(MPG_ERROR, "%s has no parameter %s", op->name, use);
      s->inputs[s->num_inputs].word =
          1 + mpg_param_enum_find(op->params->params[index].constraint, word, strcspn(word, ", "));
    }
    bool derived = s->inputs[s->num_inputs].use >= 0; /* has a parameter use_<name> */
    if (marker == '?' && !derived && length >= 4 && strncmp(name + length - 4, "bias", 4) == 0) {
      s->inputs[s->num_inputs].use = mpg_params_find(op->params, "no_bias");
      s->inputs[s->num_inputs].unless = true;
    }
    if (marker == '?') s->optional_inputs |= 1u << s->num_inputs;
    if (marker == '!') s->mutable_inputs |= 1u << s->num_inputs;
    if (marker == '*') s->variadic = true;
    if (marker != '?') s->num_required++;
    s->num_inputs++;
  }
  text = op->outputs;
  while ((name = next_name(&text, &marker, &length))) {
    if (marker == '~') s->num_hidden++;
    if (marker == '*') s->variadic_outputs = true;
    s->num_outputs++;
  }
  s->of_many_weights = mpg_params_find(op->params, "num_weights") >= 0;
  int show = mpg_params_find(op->params, "output_mean_var");
  if (show >= 0) s->show_hidden = op->params->params[show].offset;
  return MPG_OK;
}

/* Fills in the NumPy descriptor of a row, and adds the aliases of both descriptors. The NumPy
 * descriptor is called by the first of its names. */
static mpg_status add_dialects(const mpg_op *op) {
  mpg_op *numpy = &numpy_ops[op->id];
  char *name = numpy_names[op->id];
  *numpy = *op;
  numpy->name = name;
  for (const char *alias = op->aliases + strspn(op->aliases, " "); *alias;
       alias += strspn(alias, " ")) {
    size_t length = strcspn(alias, " ");
    bool of_numpy = numpy_prefix(alias) > 0;
    if (of_numpy && !*name) snprintf(name, sizeof *numpy_names, "%.*s", (int)length, alias);
    MPG_TRY(add_name(alias, length, of_numpy ? numpy : op));
    alias += length;
  }
  if (!*name) snprintf(name, sizeof *numpy_names, "_npi_%s", op->name);
  return MPG_OK;
}

mpg_status mpg_registry_init(void) {
  if (names[0].op || mpg_op_find(ops[0].name)) return MPG_OK;
  for (int id = 0; id < MPG_OP_COUNT; id++) {
    const mpg_op *op = &ops[id];
    MPG_TRY(read_signature(op));
    MPG_TRY(add_name(op->name, strlen(op->name), op));
    MPG_TRY(add_dialects(op));
  }
  return mpg_precision_init();
}

int mpg_registry_room(void) { return MPG_OP_ADDED - num_added; }

const mpg_op *mpg_registry_add(const mpg_op *row, bool named) {
  mpg_op *op = &added[num_added];
  *op = *row;
  op->id = (mpg_op_id)(MPG_OP_COUNT + num_added++);
  op->numpy = &numpy_ops[op->id];
  op->aliases = "";
  bool good = read_signature(op) == MPG_OK && add_dialects(op) == MPG_OK &&
              (!named || add_name(op->name, strlen(op->name), op) == MPG_OK);
  MPG_ASSERT(good); /* the caller has checked the row */
  return op;
}

int mpg_op_num_input_names(const mpg_op *op) { return signatures[op->id].num_inputs; }
bool mpg_op_variadic(const mpg_op *op) { return signatures[op->id].variadic; }

static int signature_index(const signature *s, int index) {
  return s->variadic && index >= s->num_inputs - 1 ? s->num_inputs - 1 : index;
}

bool mpg_op_differentiable(const mpg_op *op) {
  return (op->flags & MPG_OP_COMPOSED) || (op->gradient && op->gradient != mpg_gradient_none &&
                                           op->gradient != mpg_gradient_missing);
}

bool mpg_op_in_place(const mpg_op *op, int output) {
  return (op->flags & MPG_OP_INPLACE) && (output == 0 || signatures[op->id].of_many_weights);
}

bool mpg_op_input_mutable(const mpg_op *op, int index) {
  const signature *s = &signatures[op->id];
  return s->mutable_inputs && s->mutable_inputs >> signature_index(s, index) & 1;
}

bool mpg_op_input_optional(const mpg_op *op, int index) {
  const signature *s = &signatures[op->id];
  return s->optional_inputs >> signature_index(s, index) & 1;
}

bool mpg_op_input_initial(const mpg_op *op, int index, double *value) {
  const signature *s = &signatures[op->id];
  if (index >= s->num_inputs) return false;
  *value = s->inputs[index].initial;
  return s->inputs[index].has_initial;
}

bool mpg_op_input_left_out(const mpg_op *op, const void *params, int index) {
  int use = signatures[op->id].inputs[index].use, word = signatures[op->id].inputs[index].word;
  if (use < 0) return false;
  const char *param = (const char *)params + op->params->params[use].offset;
  return word ? *(const int32_t *)param != word - 1
              : *(const bool *)param == signatures[op->id].inputs[index].unless;
}

int mpg_op_input_mark(const mpg_op *op, int index) {
  int use = signatures[op->id].inputs[index].use;
  return use >= 0 && strcmp(op->params->params[use].constraint, "given") == 0 ? use : -1;
}

int mpg_op_input_place(const mpg_op *op, const void *params, int index) {
  const signature *s = &signatures[op->id];
  if (s->variadic) return index;
  int place = -1;
  for (int i = 0; i <= index; i++) do
      place++;
    while (place < s->num_inputs && mpg_op_input_left_out(op, params, place));
  return place;
}

const char *mpg_op_input_name(const mpg_op *op, int index, char *buffer, size_t size) {
  const signature *s = &signatures[op->id];
  if (s->variadic && index >= s->num_inputs - 1)
    snprintf(buffer, size, "arg%d", index - (s->num_inputs - 1));
  else if (index < s->num_inputs)
    snprintf(buffer, size, "%.*s", s->inputs[index].length, s->inputs[index].text);
  else
    snprintf(buffer, size, "input%d", index);
  return buffer;
}

/* Marks the default arity in ops.def and is never called: mpg_op_num_inputs and mpg_op_num_outputs
 * then derive the count from the names. */
int mpg_arity_names(const mpg_op *op, const void *params, int given) {
  (void)op;
  (void)params;
  return given;
}

/* Counts the names of inputs that the parameters do not leave out. */
int mpg_arity_enabled(const mpg_op *op, const void *params, int given) {
  int count = signatures[op->id].num_inputs;
  (void)given;
  for (uint32_t left = signatures[op->id].optional_inputs; left; left &= left - 1)
    count -= mpg_op_input_left_out(op, params, __builtin_ctz(left));
  return count;
}

int mpg_op_num_inputs(const mpg_op *op, const void *params, int given) {
  const signature *s = &signatures[op->id];
  if (op->num_inputs != mpg_arity_names) return op->num_inputs(op, params, given);
  if (s->variadic) return given < s->num_inputs ? s->num_inputs : given;
  if (given < s->num_required) return s->num_required;
  return given > s->num_inputs ? s->num_inputs : given;
}

int mpg_op_num_outputs(const mpg_op *op, const void *params, int num_inputs) {
  return op->num_outputs != mpg_arity_names ? op->num_outputs(op, params, num_inputs)
                                            : signatures[op->id].num_outputs;
}

int mpg_op_visible_outputs(const mpg_op *op, const void *params, int num_inputs) {
  const signature *s = &signatures[op->id];
  int count = mpg_op_num_outputs(op, params, num_inputs);
  bool shown = s->show_hidden && *(const bool *)((const char *)params + s->show_hidden);
  /* Hidden outputs come last, even if parameters omit visible outputs (RNN). */
  return shown || count <= s->num_hidden ? count : count - s->num_hidden;
}

/* --- Inference, and the checks that all ops share --------------------------------------------- */
static const char *input_name(const mpg_infer *infer, int input, char *buffer, size_t size) {
  return mpg_op_input_name(infer->op, mpg_op_input_place(infer->op, infer->params, input), buffer,
                           size);
}

static void append_inputs(mpg_text *text, const mpg_infer *infer) {
  char name[64], shape[MPG_SHAPE_TEXT_SIZE];
  if (infer->num_inputs == 0) return;
  mpg_text_append(text, " (");
  for (int i = 0; i < infer->num_inputs; i++) {
    if (i == 8) {
      mpg_text_append(text, ", ... %d inputs", infer->num_inputs);
      break;
    }
    mpg_text_append(text, "%s%s: %s %s", i ? ", " : "", input_name(infer, i, name, sizeof name),
                    mpg_dtype_name(infer->inputs[i].dtype),
                    mpg_shape_text(&infer->inputs[i].shape, shape, sizeof shape));
  }
  mpg_text_append(text, ")");
}

mpg_status mpg_infer_fail(const mpg_infer *infer, const char *format, ...) {
  char message[512];
  va_list args;
  va_start(args, format);
  vsnprintf(message, sizeof message, format, args);
  va_end(args);
  mpg_text inputs = {0};
  append_inputs(&inputs, infer);
  mpg_fail(MPG_ERROR, "%s: %s%s", infer->op->name, message, mpg_text_string(&inputs));
  mpg_text_free(&inputs);
  return MPG_ERROR;
}

static mpg_status fail_dtype(const mpg_infer *infer, mpg_dtype dtype) {
  mpg_text allowed = {0};
  for (int i = 0; i < MPG_DTYPE_LIMIT; i++)
    if (infer->op->dtypes >> i & 1)
      mpg_text_append(&allowed, "%s%s", allowed.length ? ", " : "", mpg_dtype_name((mpg_dtype)i));
  mpg_infer_fail(infer, "dtype %s is not supported; supported: %s", mpg_dtype_name(dtype),
                 mpg_text_string(&allowed));
  mpg_text_free(&allowed);
  return MPG_ERROR;
}

mpg_status mpg_op_infer(const mpg_op *op, const void *params, bool train, mpg_desc *inputs,
                        int num_inputs, mpg_desc *outputs, int num_outputs) {
  return mpg_op_infer_values(op, params, train, inputs, num_inputs, NULL, outputs, num_outputs);
}

mpg_status mpg_op_infer_inputs(const mpg_op *op, const void *params, mpg_desc *inputs,
                               int num_inputs, mpg_desc *outputs, int num_outputs) {
  if (num_inputs < 1 || num_outputs < 1) return MPG_OK;
  mpg_infer infer = {.op = op,
                     .params = params,
                     .num_inputs = num_inputs,
                     .num_outputs = num_outputs,
                     .inputs = inputs,
                     .outputs = outputs};
  return op->infer_inputs(&infer);
}

mpg_status mpg_op_check_outputs(const mpg_op *op, const mpg_desc *outputs, int num_outputs) {
  for (int i = 0; i < num_outputs; i++) {
    if (!mpg_shape_known(&outputs[i].shape)) continue;
    mpg_status status = mpg_shape_check(&outputs[i].shape, MPG_FLOAT64, NULL);
    if (status != MPG_OK) return mpg_fail_prefix(status, "%s", op->name);
  }
  return MPG_OK;
}

static mpg_status fail_arity(const mpg_infer *infer, int expected) {
  char name[64];
  mpg_text names = {0};
  bool variadic = mpg_op_variadic(infer->op);
  for (int i = 0; i < (variadic ? mpg_op_num_input_names(infer->op) : expected); i++)
    mpg_text_append(&names, "%s%s", i ? ", " : "", input_name(infer, i, name, sizeof name));
  const mpg_param_table *table = infer->op->params;
  bool hint = infer->num_inputs > expected && !variadic && table->size > 0 && table->count > 0;
  mpg_fail(MPG_ERROR, "%s: expected %d input arrays (%s%s), got %d%s%s%s", infer->op->name,
           expected, mpg_text_string(&names), variadic ? ", ..." : "", infer->num_inputs,
           hint ? "; give parameters by name, such as " : "", hint ? table->params[0].name : "",
           hint ? "=..." : "");
  mpg_text_free(&names);
  return MPG_ERROR;
}

static mpg_status check(const mpg_infer *infer) {
  const mpg_op *op = infer->op;
  int expected = mpg_op_num_inputs(op, infer->params, infer->num_inputs);
  if (expected != infer->num_inputs) return fail_arity(infer, expected);
  int alike = op->inputs[0] == '*' ? infer->num_inputs : infer->num_inputs > 0;
  for (int i = 0; i < alike; i++) {
    mpg_dtype dtype = infer->inputs[i].dtype;
    if (dtype != MPG_DTYPE_NONE && !(op->dtypes >> dtype & 1)) return fail_dtype(infer, dtype);
  }
  return MPG_OK;
}

mpg_status mpg_op_check(const mpg_op *op, const void *params, mpg_desc *inputs, int num_inputs) {
  return check(
      &(mpg_infer){.op = op, .params = params, .num_inputs = num_inputs, .inputs = inputs});
}

/* Infers an op of NumPy's dialect. An op that casts its inputs is inferred as if they had the
 * common dtype already. */
static __attribute__((noinline)) mpg_status infer_numpy(mpg_infer *infer) {
  enum { MOST = 2 };
  const mpg_op *op = infer->op;
  mpg_desc *inputs = infer->inputs;
  mpg_dtype given[MOST], dtype = MPG_DTYPE_NONE;
  bool casts = mpg_op_promotes(op) && mpg_op_inputs_alike(op, infer->num_inputs);
  int count = casts ? infer->num_inputs : 0;
  MPG_ASSERT(count <= MOST);
  if (count > 0)
    dtype = mpg_promotion_target(op, infer->params, inputs[0].dtype, inputs[count - 1].dtype);
  if (dtype == MPG_DTYPE_NONE) count = 0;
  for (int i = 0; i < count; i++) {
    given[i] = inputs[i].dtype;
    inputs[i].dtype = dtype;
  }
  if (count > 0) infer->op = op = mpg_op_get(mpg_promoted_op(op, dtype))->numpy;
  mpg_status status = check(infer);
  if (status == MPG_OK) status = op->infer(infer);
  for (int i = 0; i < count; i++) inputs[i].dtype = given[i];
  if (op->flags & MPG_OP_TRUTH) infer->outputs[0].dtype = MPG_BOOL;
  return status;
}

/* Infers an elementwise op whose inputs have one known shape and dtype, which is the usual case in
 * eager programs. Returns false for other calls. */
static inline bool infer_alike(const mpg_op *op, const mpg_desc *inputs, int num_inputs,
                               mpg_desc *outputs, int num_outputs) {
  if ((op->infer != mpg_infer_same && op->infer != ops[MPG_OP_broadcast_add].infer) ||
      op->num_inputs != mpg_arity_names || num_outputs != 1 || num_inputs < 1 || num_inputs > 2)
    return false;
  const signature *s = &signatures[op->id];
  if (s->num_required != num_inputs || s->num_inputs != num_inputs || s->variadic) return false;
  const mpg_desc *first = &inputs[0], *last = &inputs[num_inputs - 1];
  if (first->dtype == MPG_DTYPE_NONE || !(op->dtypes >> first->dtype & 1) ||
      last->dtype != first->dtype || first->shape.ndim < 0 || last->shape.ndim != first->shape.ndim)
    return false;
  mpg_op_flags flags = mpg_op_is_numpy(op) ? op->flags : 0;
  if (flags & (MPG_OP_PROMOTES | MPG_OP_DIVIDES | MPG_OP_TOTALS) &&
      !mpg_dtype_is_float(first->dtype))
    return false;
  for (int i = 0; i < first->shape.ndim; i++)
    if (first->shape.dims[i] < 0 || last->shape.dims[i] != first->shape.dims[i]) return false;
  outputs[0] = *first;
  if (flags & MPG_OP_TRUTH) outputs[0].dtype = MPG_BOOL;
  return true;
}

mpg_status mpg_op_infer_values(const mpg_op *op, const void *params, bool train, mpg_desc *inputs,
                               int num_inputs, const void *const *values, mpg_desc *outputs,
                               int num_outputs) {
  if (infer_alike(op, inputs, num_inputs, outputs, num_outputs)) return MPG_OK;
  mpg_infer infer = {op, params, num_inputs, num_outputs, inputs, outputs, train, values};
  for (int i = 0; i < num_outputs; i++) {
    outputs[i].shape.ndim = -1;
    outputs[i].dtype = MPG_DTYPE_NONE;
  }
  if (__builtin_expect(mpg_op_is_numpy(op), 0)) {
    MPG_TRY(infer_numpy(&infer));
  } else {
    MPG_TRY(check(&infer));
    MPG_TRY(op->infer(&infer));
  }
  if (!num_inputs && num_outputs && outputs[0].dtype != MPG_DTYPE_NONE &&
      !(op->dtypes >> outputs[0].dtype & 1))
    return fail_dtype(&infer, outputs[0].dtype);
  return MPG_OK;
}

mpg_status mpg_infer_expect_dtype(mpg_infer *infer, int input, mpg_dtype dtype) {
  mpg_desc *desc = &infer->inputs[input];
  if (desc->dtype == MPG_DTYPE_NONE) desc->dtype = dtype;
  if (dtype == MPG_DTYPE_NONE || desc->dtype == dtype) return MPG_OK;
  char name[64];
  const char *own = mpg_dtype_name(desc->dtype), *other = mpg_dtype_name(dtype);
  input_name(infer, input, name, sizeof name);
  bool of_layer = strcmp(name, "weight") == 0 && strncmp(infer->op->inputs, "data,", 5) == 0;
  if (of_layer) /* the dtype of the data is usually the wrong one */
    return mpg_infer_fail(infer,
                          "weight is %s, the data %s; convert the data with x.astype('%s'), "
                          "or the network with net.cast('%s')",
                          own, other, own, other);
  if (input > 0 && infer->inputs[0].dtype != dtype && infer->inputs[0].dtype != MPG_DTYPE_NONE)
    return mpg_infer_fail(infer,
                          "%s must be %s if the first input is %s, not %s; convert it with "
                          "astype, or create it with dtype=x.dtype",
                          name, other, mpg_dtype_name(infer->inputs[0].dtype), own);
  return mpg_infer_fail(infer,
                        "%s must be %s, as the other inputs are, not %s; convert it with astype, "
                        "or create it with dtype=x.dtype",
                        name, other, own);
}

static mpg_status expect_shape(mpg_infer *infer, int input, const mpg_shape *shape,
                               const char *why) {
  mpg_shape wanted = *shape;
  if (mpg_shape_merge(&infer->inputs[input].shape, &wanted)) return MPG_OK;
  char name[64], text[MPG_SHAPE_TEXT_SIZE];
  return mpg_infer_fail(infer, "%s must have the shape %s%s",
                        input_name(infer, input, name, sizeof name),
                        mpg_shape_text(shape, text, sizeof text), why);
}

mpg_status mpg_infer_expect_shape(mpg_infer *infer, int input, const mpg_shape *shape) {
  return expect_shape(infer, input, shape, "");
}

mpg_status mpg_infer_input_shape(mpg_infer *infer, int input, const mpg_shape *shape) {
  return expect_shape(infer, input, shape, ", as the following ops require");
}

mpg_status mpg_infer_tuple_shape(mpg_infer *infer, const mpg_tuple *tuple, mpg_shape *shape) {
  if (tuple->count > MPG_MAX_NDIM || tuple->count < 0)
    return mpg_infer_fail(infer, "a shape must have 0 to %d dimensions, not %d", MPG_MAX_NDIM,
                          tuple->count);
  *shape = (mpg_shape){.ndim = tuple->count};
  for (int i = 0; i < tuple->count; i++) shape->dims[i] = tuple->values[i];
  mpg_status status = mpg_shape_check(shape, MPG_FLOAT64, NULL);
  return status == MPG_OK ? status : mpg_fail_prefix(status, "%s", infer->op->name);
}

mpg_status mpg_infer_same(mpg_infer *infer) {
  mpg_shape shape = MPG_SHAPE_UNKNOWN;
  mpg_dtype dtype = MPG_DTYPE_NONE;
  for (int i = 0; i < infer->num_inputs; i++) {
    if (dtype == MPG_DTYPE_NONE) dtype = infer->inputs[i].dtype;
    if (!mpg_shape_merge(&shape, &infer->inputs[i].shape))
      return mpg_infer_fail(infer, "the inputs must have the same shape");
  }
  for (int i = 0; i < infer->num_inputs; i++) {
    MPG_TRY(mpg_infer_expect_dtype(infer, i, dtype));
    if (!mpg_shape_merge(&infer->inputs[i].shape, &shape))
      return mpg_infer_fail(infer, "the inputs must have the same shape");
  }
  for (int i = 0; i < infer->num_outputs; i++) mpg_infer_set(infer, i, &shape, dtype);
  return MPG_OK;
}

mpg_status mpg_infer_same_dtype(mpg_infer *infer) {
  mpg_dtype dtype = MPG_DTYPE_NONE;
  for (int i = 0; i < infer->num_inputs && dtype == MPG_DTYPE_NONE; i++)
    dtype = infer->inputs[i].dtype;
  for (int i = 0; i < infer->num_inputs; i++) MPG_TRY(mpg_infer_expect_dtype(infer, i, dtype));
  for (int i = 0; i < infer->num_outputs; i++) infer->outputs[i].dtype = dtype;
  return MPG_OK;
}

mpg_status mpg_infer_inputs_none(mpg_infer *infer) {
  (void)infer;
  return MPG_OK;
}

mpg_status mpg_infer_inputs_first(mpg_infer *infer) {
  return mpg_infer_input_shape(infer, 0, &infer->outputs[0].shape);
}

mpg_status mpg_infer_inputs_same(mpg_infer *infer) {
  for (int i = 0; i < infer->num_inputs; i++)
    MPG_TRY(mpg_infer_input_shape(infer, i, &infer->outputs[0].shape));
  return MPG_OK;
}

mpg_status mpg_infer_inputs_each(mpg_infer *infer) {
  for (int i = 0; i < infer->num_inputs && i < infer->num_outputs; i++)
    MPG_TRY(mpg_infer_input_shape(infer, i, &infer->outputs[i].shape));
  return MPG_OK;
}
