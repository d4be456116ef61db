/* Rules of mixed precision. */
#include "op/precision/precision.h"

#include <string.h>

#include "base/memory.h"

enum { CONDITIONS = 64 };

typedef struct condition {
  const mpg_op *op;
  int param;
  const char *value; /* interned */
} condition;

bool mpg_precision_on;

static struct {
  mpg_dtype low;
  uint8_t table[MPG_OP_LIMIT], kinds[MPG_OP_LIMIT]; /* initial and current kind of each op */
  condition conditions[CONDITIONS];
  int num_conditions;
  double loss_scale;
  uint64_t changes;
} rules = {.loss_scale = 1};

mpg_status mpg_precision_init(void) {
  static const struct {
    mpg_precision kind;
    const char *names;
  } rows[] = {
#define MPG_PRECISION_ROW(kind, names) {MPG_PRECISION_##kind, names},
#include "op/precision/precision.def"
  };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    char name[64];
    for (const char *at = rows[i].names; *at; at += strspn(at, " ")) {
      size_t length = strcspn(at, " ");
      MPG_ASSERT(length < sizeof name);
      memcpy(name, at, length);
      name[length] = 0;
      const mpg_op *op = mpg_op_find(name);
      if (!op) return mpg_fail(MPG_ERROR, "op/precision/precision.def: unknown op %s", name);
      rules.table[op->id] = (uint8_t)rows[i].kind;
      at += length;
    }
  }
  return MPG_OK;
}

mpg_precision mpg_op_precision(const mpg_op *op) { return (mpg_precision)rules.table[op->id]; }

void mpg_precision_set(mpg_dtype low) {
  memcpy(rules.kinds, rules.table, sizeof rules.kinds);
  rules.low = low;
  rules.num_conditions = 0;
  rules.loss_scale = 1;
  rules.changes++;
  mpg_precision_on = low != MPG_DTYPE_NONE;
}

void mpg_precision_choose(const mpg_op *op, mpg_precision kind) {
  rules.kinds[op->id] = (uint8_t)kind;
  rules.changes++;
}

mpg_status mpg_precision_full_if(const mpg_op *op, const char *param, const char *value) {
  int index = op->params->size ? mpg_params_find(op->params, param) : -1;
  if (index < 0) return mpg_fail(MPG_VALUE_ERROR, "%s has no parameter %s", op->name, param);
  if (rules.num_conditions == CONDITIONS)
    return mpg_fail(MPG_VALUE_ERROR, "at most %d parameter values can determine the precision",
                    CONDITIONS);
  const char *text = mpg_intern(value);
  if (!text) return mpg_out_of_host_memory(strlen(value));
  rules.conditions[rules.num_conditions++] = (condition){op, index, text};
  rules.changes++;
  return MPG_OK;
}

void mpg_precision_set_loss_scale(double scale) { rules.loss_scale = scale; }
double mpg_precision_loss_scale(void) { return rules.loss_scale; }
uint64_t mpg_precision_changes(void) { return rules.changes; }

bool mpg_precision_scales(const mpg_op *op) {
  return rules.kinds[op->id] == MPG_PRECISION_LOSS && rules.loss_scale != 1;
}

bool mpg_precision_counts(const mpg_op *op, const void *params, int input, int num_inputs) {
  if (op->id == MPG_OP__contrib_linear_cross_entropy) return input == 2;
  if (op->id == MPG_OP__contrib_quantized_dot) { /* scales keep their precision */
    const mpg_quantized_dot_params *p = params;
    return input >= 2 && input < 2 + p->use_scales + p->use_zeros;
  }
  bool recurrent = op->id == MPG_OP_RNN || op->id == MPG_OP__rnn;
  return recurrent && ((const mpg_rnn_params *)params)->use_sequence_length &&
         input == num_inputs - 1;
}

static bool meets_condition(const mpg_op *op, const void *params) {
  for (int i = 0; i < rules.num_conditions; i++) {
    const condition *c = &rules.conditions[i];
    if (c->op != op || !params) continue;
    mpg_text text = {0};
    mpg_params_get_text(op->params, params, c->param, &text);
    bool same = text.data && strcmp(text.data, c->value) == 0;
    mpg_text_free(&text);
    if (same) return true;
  }
  return false;
}

mpg_dtype mpg_precision_target(const mpg_op *op, const void *params, const mpg_dtype *inputs,
                               int num_inputs, mpg_dtype out) {
  mpg_precision kind = (mpg_precision)rules.kinds[op->id];
  if (rules.num_conditions && meets_condition(op, params)) kind = MPG_PRECISION_FULL;
  if (kind == MPG_PRECISION_ANY && op->extension && !(op->dtypes >> rules.low & 1) &&
      op->dtypes >> MPG_FLOAT32 & 1) /* a user library's op without support for the low dtype */
    kind = MPG_PRECISION_FULL;
  if (kind == MPG_PRECISION_ANY) return MPG_DTYPE_NONE;
  mpg_dtype widest = MPG_DTYPE_NONE;
  for (int i = 0; i < num_inputs; i++) {
    if (!mpg_dtype_is_float(inputs[i])) continue;
    if (kind == MPG_PRECISION_WIDEST && mpg_op_input_mutable(op, i)) return inputs[i];
    if (inputs[i] == MPG_FLOAT64) return MPG_DTYPE_NONE; /* the user wants float64 */
    widest = widest == MPG_DTYPE_NONE || widest == inputs[i] ? inputs[i] : MPG_FLOAT32;
  }
  if (out != MPG_DTYPE_NONE)
    return kind == MPG_PRECISION_WIDEST && mpg_dtype_is_float(out) ? out : MPG_DTYPE_NONE;
  if (kind == MPG_PRECISION_WIDEST || widest == MPG_DTYPE_NONE) return widest;
  bool low = kind == MPG_PRECISION_LOW || (kind == MPG_PRECISION_HALF && rules.low == MPG_FLOAT16);
  return low ? rules.low : MPG_FLOAT32;
}
