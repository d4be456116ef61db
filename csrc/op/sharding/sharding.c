/* Sharding rules: the interface, and the rule that derives factors from the batching rule. */
#include "op/sharding/sharding.h"

#include <string.h>

#include "base/workspace.h"
#include "op/batching/batching.h"
#include "op/infer.h"
#include "op/math/activation.h"

/* --- Interface -------------------------------------------------------------------------------- */

mpg_factor *mpg_sharding_add(mpg_sharding *s, mpg_factor_kind kind, int64_t size) {
  int count = s->num_inputs + s->num_outputs;
  if (s->num_factors == s->capacity) {
    int capacity = s->capacity ? 2 * s->capacity : 8;
    mpg_factor *larger = mpg_arena_alloc(s->arena, (size_t)capacity * sizeof *larger);
    if (!larger) return NULL;
    if (s->num_factors) memcpy(larger, s->factors, (size_t)s->num_factors * sizeof *larger);
    s->factors = larger;
    s->capacity = capacity;
  }
  mpg_digit *digits = mpg_arena_alloc(s->arena, (size_t)(count + 1) * sizeof *digits);
  if (!digits) return NULL;
  for (int i = 0; i < count; i++) digits[i] = (mpg_digit){-1, 1, 1};
  mpg_factor *factor = &s->factors[s->num_factors++];
  *factor = (mpg_factor){.kind = kind,
                         .instead = -1,
                         .drawn = {-1, 1, 1},
                         .once = -1,
                         .lookup = -1,
                         .size = size,
                         .digits = digits};
  return factor;
}

mpg_status mpg_sharding_places(mpg_sharding *s, mpg_factor_kind kind, int count,
                               const mpg_place *places) {
  int first = 0;
  while (first < count && places[first].digit.axis < 0) first++;
  if (first == count) return MPG_OK;
  const mpg_place *of = &places[first];
  const mpg_shape *shape = of->array < s->num_inputs ? &s->inputs[of->array].shape
                                                     : &s->outputs[of->array - s->num_inputs].shape;
  int64_t others = of->digit.outer * of->digit.inner,
          size = others ? shape->dims[of->digit.axis] / others : 0;
  if (size < 2) return MPG_OK;
  mpg_factor *factor = mpg_sharding_add(s, kind, size);
  if (!factor) return mpg_out_of_host_memory(sizeof *factor);
  for (int i = first; i < count; i++)
    if (places[i].digit.axis >= 0) factor->digits[places[i].array] = places[i].digit;
  return MPG_OK;
}

mpg_status mpg_sharding_lookup(mpg_sharding *s, int from, int axis, int indices) {
  int count = s->num_factors;
  MPG_TRY(MPG_FACTOR(s, SUM, mpg_in_axis(from, axis)));
  if (s->num_factors > count) s->factors[count].lookup = indices;
  return MPG_OK;
}

int64_t mpg_sharding_gcd(int64_t a, int64_t b) {
  while (b) {
    int64_t rest = a % b;
    a = b;
    b = rest;
  }
  return a;
}

bool mpg_sharding_draws(const mpg_sharding *s) {
  if (!(s->op->flags & MPG_OP_RANDOM)) return false;
  switch ((int)s->op->id) {
    case MPG_OP_RNN:
    case MPG_OP__rnn: return s->train && ((const mpg_rnn_params *)s->params)->p > 0;
    case MPG_OP_LeakyReLU:
      return s->train && ((const mpg_leaky_relu_params *)s->params)->act_type == MPG_LEAKY_RRELU;
    case MPG_OP_Dropout: {
      const mpg_dropout_params *p = s->params;
      enum { TRAINING };
      return p->p > 0 && (s->train || p->mode != TRAINING);
    }
    case MPG_OP__dropout_attention: return ((const mpg_attention_params *)s->params)->p > 0;
    case MPG_OP__dropout_head_attention:
      return ((const mpg_head_attention_params *)s->params)->p > 0;
  }
  return true;
}

void mpg_sharding_set_counts(mpg_sharding *s) {
  for (int f = 0; f < s->num_factors; f++) s->factors[f].counts = true;
}

static bool all_known(const mpg_desc *descs, int count) {
  for (int i = 0; i < count; i++)
    if (!mpg_shape_known(&descs[i].shape)) return false;
  return true;
}

/* True if an array can be divided along the digit. */
static bool has_digit(const mpg_desc *desc, int64_t size, const mpg_digit *digit) {
  return digit->axis < desc->shape.ndim &&
         desc->shape.dims[digit->axis] == digit->outer * size * digit->inner;
}

mpg_status mpg_op_sharding(mpg_sharding *s) {
  s->factors = NULL;
  s->num_factors = s->capacity = 0;
  s->localize = NULL;
  if (!all_known(s->inputs, s->num_inputs) || !all_known(s->outputs, s->num_outputs)) return MPG_OK;
  MPG_TRY(s->op->sharding(s));
  int kept = 0;
  for (int f = 0; f < s->num_factors; f++) {
    mpg_factor factor = s->factors[f];
    if (factor.size < 2) continue;
    /* Rules need not know the shapes of outputs that only the op's gradient reads. */
    for (int k = 0; k < s->num_outputs; k++) {
      mpg_digit *digit = &factor.digits[s->num_inputs + k];
      if (digit->axis >= 0 && !has_digit(&s->outputs[k], factor.size, digit)) digit->axis = -1;
    }
    s->factors[kept++] = factor;
  }
  s->num_factors = kept;
  return MPG_OK;
}

/* True if any array of the call is a proper part. */
static bool differs(const mpg_part_call *call) {
  for (int i = 0; i < call->num_inputs; i++)
    if (!mpg_shape_equal(&call->inputs[i].shape, &call->whole_inputs[i].shape)) return true;
  for (int k = 0; k < call->num_outputs; k++)
    if (!mpg_shape_equal(&call->outputs[k].shape, &call->whole_outputs[k].shape)) return true;
  return false;
}

mpg_status mpg_sharding_localize(const mpg_sharding *s, const mpg_desc *inputs,
                                 const mpg_desc *outputs, const mpg_shape *begins, void *params) {
  size_t size = s->op->params->size;
  mpg_part_call call = {.op = s->op,
                        .num_inputs = s->num_inputs,
                        .num_outputs = s->num_outputs,
                        .whole_inputs = s->inputs,
                        .whole_outputs = s->outputs,
                        .inputs = inputs,
                        .outputs = outputs,
                        .begins = begins};
  if (size) memcpy(params, s->params, size);
  if (s->localize && differs(&call)) MPG_TRY(s->localize(&call, params));
  mpg_workspace space = {0};
  mpg_desc *in = mpg_workspace_take(&space, (size_t)s->num_inputs + 1, sizeof *in);
  mpg_desc *out = mpg_workspace_take(&space, (size_t)s->num_outputs + 1, sizeof *out);
  mpg_status status = MPG_OK;
  MPG_GOTO(mpg_workspace_check(&space));
  memcpy(in, inputs, (size_t)s->num_inputs * sizeof *in);
  MPG_GOTO(mpg_op_infer(s->op, params, s->train, in, s->num_inputs, out, s->num_outputs));
  int visible = mpg_op_visible_outputs(s->op, s->params, s->num_inputs);
  for (int k = 0; k < visible; k++) {
    if (mpg_shape_equal(&out[k].shape, &outputs[k].shape)) continue;
    char got[MPG_SHAPE_TEXT_SIZE], wanted[MPG_SHAPE_TEXT_SIZE];
    MPG_GOTO(mpg_fail(MPG_ERROR, "%s on a part of its arrays returns an array of shape %s, not %s",
                      s->op->name, mpg_shape_text(&out[k].shape, got, sizeof got),
                      mpg_shape_text(&outputs[k].shape, wanted, sizeof wanted)));
  }
fail:
  mpg_workspace_free(&space);
  return status;
}

mpg_status mpg_part_first(const mpg_part_call *call, int array, int axis, int64_t *begin) {
  *begin = call->begins ? call->begins[array].dims[axis] : 0;
  if (*begin >= 0) return MPG_OK;
  return mpg_fail(MPG_NOT_IMPLEMENTED, "%s counts along axis %d, which has no contiguous parts",
                  call->op->name, axis);
}

mpg_status mpg_sharding_whole(mpg_sharding *s) {
  (void)s;
  return MPG_OK;
}

/* --- Derived from the batching rule ----------------------------------------------------------- */

typedef struct probe {
  mpg_sharding *s;
  mpg_batching b;
} probe;

static void divide(probe *p, int input, int axis) {
  p->b.in[input] = (mpg_batch){.kind = MPG_BATCH_DIVIDED, .axis = axis, .outer = 1, .inner = 1};
}

static void clear(probe *p) {
  for (int i = 0; i < p->b.num_inputs; i++) p->b.in[i] = (mpg_batch){.kind = MPG_BATCH_SAME};
}

/* Ops that only gradients and the compiler use have no batching rule, but may be elementwise. */
static mpg_batching_fn rule_of(const mpg_op *op) {
  bool unknown = op->batching == mpg_batching_unknown;
  return unknown && op->flags & MPG_OP_MAP ? mpg_batching_pointwise : op->batching;
}

/* Runs the batching rule. Returns true if it accepts the divided inputs. */
static bool accepted(probe *p) {
  for (int k = 0; k < p->b.num_outputs; k++) p->b.out[k] = (mpg_batch){.kind = MPG_BATCH_SAME};
  if (rule_of(p->b.op)(&p->b) != MPG_OK) return false;
  for (int k = 0; k < p->b.num_outputs; k++)
    if (p->b.out[k].kind != MPG_BATCH_DIVIDED && p->b.out[k].kind != MPG_BATCH_SAME) return false;
  return true;
}

static int64_t size_of(const mpg_desc *desc, int axis) {
  return axis >= 0 && axis < desc->shape.ndim ? desc->shape.dims[axis] : 0;
}

/* Divides every input that has `rows` elements along `axis`, counted from the end if `from_end`. */
static void divide_alike(probe *p, int axis, int64_t rows, bool from_end) {
  clear(p);
  for (int i = 0; i < p->b.num_inputs; i++) {
    int own = from_end ? axis + p->b.inputs[i].shape.ndim : axis;
    if (size_of(&p->b.inputs[i], own) == rows) divide(p, i, own);
  }
}

/* Tries all ways to divide the inputs from `next` on, except input `first`. */
static bool search(probe *p, int first, int64_t rows, int next) {
  if (next == p->b.num_inputs) return accepted(p);
  if (next == first) return search(p, first, rows, next + 1);
  p->b.in[next] = (mpg_batch){.kind = MPG_BATCH_SAME};
  if (search(p, first, rows, next + 1)) return true;
  for (int axis = 0; axis < p->b.inputs[next].shape.ndim; axis++) {
    if (p->b.inputs[next].shape.dims[axis] != rows) continue;
    divide(p, next, axis);
    if (search(p, first, rows, next + 1)) return true;
  }
  p->b.in[next] = (mpg_batch){.kind = MPG_BATCH_SAME};
  return false;
}

enum { SEARCHED_INPUTS = 4 };

static bool find_division(probe *p, int input, int axis) {
  int64_t rows = p->b.rows = p->b.inputs[input].shape.dims[axis];
  clear(p);
  divide(p, input, axis);
  if (accepted(p)) return true;
  divide_alike(p, axis, rows, false);
  if (accepted(p)) return true;
  divide_alike(p, axis - p->b.inputs[input].shape.ndim, rows, true);
  if (accepted(p)) return true;
  if (p->b.num_inputs > SEARCHED_INPUTS) return false;
  clear(p);
  divide(p, input, axis);
  return search(p, input, rows, 0);
}

static bool is_taken(const mpg_sharding *s, int input, int axis) {
  for (int f = 0; f < s->num_factors; f++)
    if (s->factors[f].digits[input].axis == axis) return true;
  return false;
}

static mpg_digit digit_of(const mpg_batch *batch) {
  return batch->kind == MPG_BATCH_DIVIDED ? (mpg_digit){batch->axis, batch->outer, batch->inner}
                                          : (mpg_digit){-1, 1, 1};
}

static mpg_desc part_of(const mpg_desc *desc, int64_t size, const mpg_digit *digit) {
  mpg_desc part = *desc;
  if (digit->axis >= 0 && has_digit(desc, size, digit))
    part.shape.dims[digit->axis] = desc->shape.dims[digit->axis] / size * (size - 1);
  return part;
}

/* True if the op accepts the inputs without the last index of the factor, and returns the outputs
 * without it. Batching rules don't check the shapes that parameters name. `descs` has room for all
 * arrays, and `params` for the parameters. */
static bool fits(const mpg_sharding *s, const mpg_factor *factor, mpg_desc *descs, void *params) {
  for (int i = 0; i < s->num_inputs; i++)
    descs[i] = part_of(&s->inputs[i], factor->size, &factor->digits[i]);
  for (int k = 0; k < s->num_outputs; k++)
    descs[s->num_inputs + k] =
        part_of(&s->outputs[k], factor->size, &factor->digits[s->num_inputs + k]);
  return mpg_sharding_localize(s, descs, descs + s->num_inputs, NULL, params) == MPG_OK;
}

mpg_status mpg_sharding_from_batching(mpg_sharding *s) {
  mpg_workspace space = {0};
  mpg_status status = MPG_OK;
  probe p = {.s = s,
             .b = {.op = s->op,
                   .params = s->params,
                   .num_inputs = s->num_inputs,
                   .num_outputs = s->num_outputs,
                   .inputs = s->inputs,
                   .outputs = s->outputs,
                   .train = s->train}};
  p.b.in = mpg_workspace_take(&space, (size_t)s->num_inputs + 1, sizeof *p.b.in);
  p.b.out = mpg_workspace_take(&space, (size_t)s->num_outputs + 1, sizeof *p.b.out);
  mpg_desc *descs =
      mpg_workspace_take(&space, (size_t)(s->num_inputs + s->num_outputs) + 1, sizeof *descs);
  void *params = mpg_workspace_take(&space, s->op->params->size + 1, 1);
  MPG_GOTO(mpg_workspace_check(&space));
  for (int i = 0; i < s->num_inputs; i++)
    for (int axis = 0; axis < s->inputs[i].shape.ndim; axis++) {
      if (s->inputs[i].shape.dims[axis] < 2 || is_taken(s, i, axis) || !find_division(&p, i, axis))
        continue;
      mpg_factor *factor = mpg_sharding_add(s, MPG_FACTOR_PASS, p.b.rows);
      if (!factor) MPG_GOTO(mpg_out_of_host_memory(sizeof *factor));
      factor->counts = mpg_sharding_draws(s);
      for (int k = 0; k < s->num_inputs; k++) factor->digits[k] = digit_of(&p.b.in[k]);
      for (int k = 0; k < s->num_outputs; k++)
        factor->digits[s->num_inputs + k] = digit_of(&p.b.out[k]);
      if (!fits(s, factor, descs, params)) s->num_factors--;
    }
fail:
  mpg_workspace_free(&space);
  return status;
}
