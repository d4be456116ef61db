/* Batching rules: shared helpers, elementwise ops, creation and random numbers. */
#include "op/batching/batching.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "op/infer.h"
#include "op/math/activation.h"

#define PARAMS(structure) const mpg_##structure##_params *p = b->params

/* --- Errors ----------------------------------------------------------------------------------- */

mpg_status mpg_batching_fail(const mpg_batching *b, int input, const char *format, ...) {
  char reason[256], name[64], shape[MPG_SHAPE_TEXT_SIZE];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(reason, sizeof reason, format, arguments);
  va_end(arguments);
  const char *path = mpg_scope_text(b->scope),
             *own = mpg_op_runs_on_host(b->op) ? ((const mpg_host_step_params *)b->params)->code
                                               : b->op->name;
  return mpg_fail(MPG_ERROR,
                  "%s%s%s mixes data across the %s: %s, but the pipeline divides axis %d of its %s "
                  "%s. Do this outside of the pipelined block, on the whole result, or use one "
                  "micro-batch; with Pipeline(check=False) it runs on every %s separately",
                  own, *path ? " in block " : "", path, b->along_time ? "sequence" : "batch",
                  reason, b->in[input].axis, mpg_op_input_name(b->op, input, name, sizeof name),
                  mpg_shape_text(&b->inputs[input].shape, shape, sizeof shape),
                  b->along_time ? "piece" : "micro-batch");
}

mpg_status mpg_batching_fail_along(const mpg_batching *b, int input) {
  return mpg_batching_fail(b, input, "it operates along axis %d", b->in[input].axis);
}

/* Returns an error: input `other` is not divided, but the op would combine its rows with the rows
 * of `input`. */
static mpg_status fail_whole(const mpg_batching *b, int input, int other) {
  char name[64], shape[MPG_SHAPE_TEXT_SIZE];
  return mpg_batching_fail(b, input, "its %s %s is the same for every %s",
                           mpg_op_input_name(b->op, other, name, sizeof name),
                           mpg_shape_text(&b->inputs[other].shape, shape, sizeof shape),
                           b->along_time ? "piece" : "micro-batch");
}

/* --- Helpers of the rules --------------------------------------------------------------------- */

mpg_status mpg_batching_one(const mpg_batching *b, int *input) {
  int found = -1;
  for (int i = 0; i < b->num_inputs; i++) {
    if (b->in[i].kind != MPG_BATCH_DIVIDED) continue;
    if (found >= 0)
      return mpg_batching_fail(b, i, "it combines rows of one input with all rows of another");
    found = i;
  }
  *input = found;
  return MPG_OK;
}

mpg_status mpg_batching_all_along(const mpg_batching *b, int count, int axis) {
  int first = -1;
  for (int i = 0; i < count && first < 0; i++)
    if (b->in[i].kind == MPG_BATCH_DIVIDED) first = i;
  for (int i = 0; i < b->num_inputs; i++) {
    const mpg_batch *in = &b->in[i];
    if (i >= count && in->kind == MPG_BATCH_DIVIDED)
      return mpg_batching_fail(b, i, "all rows use this whole input");
    if (i >= count || first < 0) continue;
    if (in->kind == MPG_BATCH_SAME) return fail_whole(b, first, i);
    if (in->kind != MPG_BATCH_DIVIDED) continue;
    if (in->axis != axis) return mpg_batching_fail_along(b, i);
    if (in->outer != b->in[first].outer || in->inner != b->in[first].inner)
      return mpg_batching_fail(b, i, "its inputs have their rows in different orders");
  }
  return MPG_OK;
}

int mpg_batching_first(const mpg_batching *b) {
  int i = 0;
  while (b->in[i].kind != MPG_BATCH_DIVIDED) i++;
  return i;
}

/* True if the op repeats its input once per row of the micro-batch, along a new axis or an axis of
 * size 1 (as for a class token). Sets *axis to this axis of the output. */
static bool repeats(const mpg_batching *b, int *axis) {
  mpg_op_id id = b->op->id;
  if (id != MPG_OP_broadcast_to && id != MPG_OP__broadcast_exact && id != MPG_OP_broadcast_axis &&
      id != MPG_OP_tile && id != MPG_OP_repeat)
    return false;
  const mpg_shape *from = &b->inputs[0].shape, *to = &b->outputs[0].shape;
  for (int n = 0; n <= to->ndim; n++) {
    int found = n ? n - 1 : b->axis, own = found - to->ndim + from->ndim;
    if (found >= to->ndim || to->dims[found] != b->rows) continue;
    if (own >= 0 && from->dims[own] != 1) continue;
    *axis = found;
    return true;
  }
  return false;
}

static void exchange(mpg_batching *b, mpg_batch_kind from, mpg_batch_kind to) {
  for (int i = 0; i < b->num_inputs; i++)
    if (b->in[i].kind == from) b->in[i].kind = to;
}

static void set_same(mpg_batching *b) {
  for (int k = 0; k < b->num_outputs; k++) b->out[k] = (mpg_batch){.kind = MPG_BATCH_SAME};
}

/* Runs the op's rule with REPEATED inputs treated as DIVIDED. If the rule fails, treats them as
 * SAME instead. `divided` is true if another input is DIVIDED; otherwise, outputs that the rule
 * marks as DIVIDED become REPEATED. */
static mpg_status with_repeated(mpg_batching *b, bool divided) {
  mpg_batch *kept = mpg_malloc((size_t)b->num_inputs * sizeof *kept);
  if (!kept) return mpg_out_of_host_memory((size_t)b->num_inputs * sizeof *kept);
  memcpy(kept, b->in, (size_t)b->num_inputs * sizeof *kept);
  exchange(b, MPG_BATCH_REPEATED, MPG_BATCH_DIVIDED);
  mpg_status status = b->op->batching(b);
  memcpy(b->in, kept, (size_t)b->num_inputs * sizeof *kept);
  if (status == MPG_OK && !divided && !(b->op->flags & MPG_OP_RANDOM))
    for (int k = 0; k < b->num_outputs; k++)
      if (b->out[k].kind == MPG_BATCH_DIVIDED) b->out[k].kind = MPG_BATCH_REPEATED;
  if (status != MPG_OK) {
    set_same(b);
    exchange(b, MPG_BATCH_REPEATED, MPG_BATCH_SAME);
    status = divided ? b->op->batching(b) : MPG_OK;
    memcpy(b->in, kept, (size_t)b->num_inputs * sizeof *kept);
  }
  mpg_free(kept);
  return status;
}

static bool has_rule_of(const mpg_op *op, mpg_op_id id) {
  return op->batching == mpg_op_get(id)->batching;
}

/* True if the op has a rule for LOCAL inputs. */
static bool takes_order(const mpg_op *op) {
  return has_rule_of(op, MPG_OP__contrib_dispatch) ||
         has_rule_of(op, MPG_OP__contrib_grouped_dot) || has_rule_of(op, MPG_OP__contrib_combine);
}

/* True if the op processes each row on its own, with other inputs that all rows share. */
static bool takes_rows(const mpg_op *op) {
  return op->batching == mpg_batching_pointwise || has_rule_of(op, MPG_OP_FullyConnected) ||
         has_rule_of(op, MPG_OP__contrib_rms_norm) ||
         has_rule_of(op, MPG_OP__contrib_quantized_dot);
}

/* Returns the first input that is an order or the sizes of its groups, the only LOCAL arrays with
 * one axis, if the op computes other numbers from them. Otherwise, returns -1. */
static int changed_order(const mpg_batching *b) {
  if (b->op->flags & (MPG_OP_SAME_VALUES | MPG_OP_VIEW)) return -1;
  for (int i = 0; i < b->num_inputs; i++)
    if (b->in[i].kind == MPG_BATCH_LOCAL && mpg_batching_ndim(b, i) == 1) return i;
  return -1;
}

/* Runs the op's rule with LOCAL inputs treated as DIVIDED along axis 0. `input` is the first one.
 * Only ops that process each row on its own accept rows in any order. */
static mpg_status with_local(mpg_batching *b, int input) {
  const mpg_batching_fn rule = b->op->batching;
  const mpg_batch order = b->in[input];
  bool divided = false;
  if (rule == mpg_batching_amp_multicast) return rule(b);
  for (int i = 0; i < b->num_inputs; i++) {
    if (b->in[i].kind == MPG_BATCH_LOCAL && b->in[i].cause != order.cause)
      return mpg_batching_fail(b, i, "its inputs have their rows in different orders");
    divided |= b->in[i].kind == MPG_BATCH_DIVIDED;
  }
  if (takes_order(b->op)) return rule(b);
  if (divided || !takes_rows(b->op))
    return mpg_batching_fail(b, input, "its rows are sorted by expert; use contrib.combine first");
  const int changed = changed_order(b);
  if (changed >= 0)
    return mpg_batching_fail(b, changed, "it describes the rows of only one micro-batch");
  exchange(b, MPG_BATCH_LOCAL, MPG_BATCH_DIVIDED);
  mpg_status status = rule(b);
  exchange(b, MPG_BATCH_DIVIDED, MPG_BATCH_LOCAL);
  for (int k = 0; k < b->num_outputs; k++) b->out[k] = order;
  return status;
}

mpg_status mpg_op_batching(mpg_batching *b) {
  int divided = -1, free = -1, same = -1, repeated = -1;
  set_same(b);
  for (int i = 0; i < b->num_inputs; i++)
    if (b->in[i].kind == MPG_BATCH_LOCAL) return with_local(b, i);
  for (int i = b->num_inputs; i-- > 0;) {
    if (b->in[i].kind == MPG_BATCH_DIVIDED)
      divided = i;
    else if (b->in[i].kind == MPG_BATCH_REPEATED)
      repeated = i;
    else if (b->in[i].kind == MPG_BATCH_FREE)
      free = i;
    else
      same = i;
  }
  if (repeated >= 0) return with_repeated(b, divided >= 0);
  if (divided >= 0) return b->op->batching(b);
  /* All inputs are FREE, or the op has no inputs. */
  if (same < 0 && b->op->flags & MPG_OP_UNIFORM) {
    for (int k = 0; k < b->num_outputs; k++) b->out[k] = (mpg_batch){.kind = MPG_BATCH_FREE};
    return MPG_OK;
  }
  /* If the op's rule accepts it, treats a FREE input that has an axis of b->rows elements as
   * DIVIDED. An example is the initial state of a recurrent network. */
  if (free >= 0) {
    const mpg_batch was = b->in[free];
    const mpg_shape *shape = &b->inputs[free].shape;
    for (int n = 0; n <= shape->ndim; n++) {
      int axis = n ? n - 1 : b->axis;
      if (axis >= shape->ndim || shape->dims[axis] != b->rows) continue;
      b->in[free] = (mpg_batch){.kind = MPG_BATCH_DIVIDED, .axis = axis, .outer = 1, .inner = 1};
      mpg_status status = b->op->batching(b);
      b->in[free] = was;
      if (status == MPG_OK) return MPG_OK;
    }
    set_same(b);
  }
  int axis;
  if (same >= 0 && repeats(b, &axis))
    b->out[0] = (mpg_batch){.kind = MPG_BATCH_REPEATED, .axis = axis, .outer = 1, .inner = 1};
  return MPG_OK;
}

mpg_status mpg_batching_unknown(mpg_batching *b) {
  return mpg_batching_fail(b, mpg_batching_first(b), "its batching rule is unknown");
}

/* --- Elementwise ------------------------------------------------------------------------------ */

/* Rule for elementwise ops. Aligns the inputs at the last axis, as broadcasting does. */
mpg_status mpg_batching_pointwise(mpg_batching *b) {
  int first = mpg_batching_first(b), ndim = b->outputs[0].shape.ndim,
      axis = b->in[first].axis + ndim - mpg_batching_ndim(b, first);
  for (int i = 0; i < b->num_inputs; i++) {
    const mpg_batch *in = &b->in[i];
    int own = axis - ndim + mpg_batching_ndim(b, i);
    if (in->kind == MPG_BATCH_SAME && own >= 0 && b->inputs[i].shape.dims[own] != 1)
      return fail_whole(b, first, i);
    if (in->kind != MPG_BATCH_DIVIDED) continue;
    if (in->axis != own)
      return mpg_batching_fail(b, i, "it combines rows of one input with all rows of another");
    if (in->outer != b->in[first].outer || in->inner != b->in[first].inner)
      return mpg_batching_fail(b, i, "its inputs have their rows in different orders");
  }
  mpg_batching_set(b, 0, axis, first);
  return MPG_OK;
}

/* The op divides by the square root of the size of the last axis, so this axis must not be the
 * batch. */
mpg_status mpg_batching_div_sqrt_dim(mpg_batching *b) {
  if (b->in[0].axis == mpg_batching_ndim(b, 0) - 1)
    return mpg_batching_fail(b, 0, "it divides by the number of rows");
  return mpg_batching_pointwise(b);
}

mpg_status mpg_batching_data(mpg_batching *b) {
  int input = 0;
  MPG_TRY(mpg_batching_one(b, &input));
  if (input) return mpg_batching_fail(b, input, "all rows use this whole input");
  mpg_batching_set(b, 0, b->in[0].axis, 0);
  return MPG_OK;
}

/* Fails if gamma has a value for each row, because every micro-batch gets all of gamma. */
mpg_status mpg_batching_leaky_relu(mpg_batching *b) {
  MPG_TRY(mpg_batching_data(b));
  if (b->num_inputs == 1) return MPG_OK;
  mpg_shape gamma = mpg_prelu_shape(&b->inputs[0].shape, &b->inputs[1].shape);
  return gamma.dims[b->in[0].axis] == 1 ? MPG_OK : fail_whole(b, 0, 1);
}

enum { NORMALIZATION_NULL = 1 };

mpg_status mpg_batching_make_loss(mpg_batching *b) {
  PARAMS(make_loss_layer);
  if (p->normalization != NORMALIZATION_NULL)
    return mpg_batching_fail(b, 0, "its gradient is divided by the number of rows");
  return mpg_batching_pointwise(b);
}

mpg_status mpg_batching_amp_multicast(mpg_batching *b) {
  for (int i = 0; i < b->num_inputs; i++) b->out[i] = b->in[i];
  return MPG_OK;
}

/* `condition` has the shape of x and y, or one element for each index of their first axis. */
mpg_status mpg_batching_where(mpg_batching *b) {
  int first = mpg_batching_first(b);
  if (mpg_batching_ndim(b, 0) == mpg_batching_ndim(b, 1)) return mpg_batching_pointwise(b);
  if (b->in[first].axis == 0) MPG_TRY(mpg_batching_all_along(b, 3, 0));
  for (int i = 1; i < 3; i++) {
    if (b->in[i].kind == MPG_BATCH_SAME) return fail_whole(b, first, i);
    if (mpg_batching_divided(b, i) && b->in[i].axis != b->in[first].axis)
      return mpg_batching_fail_along(b, i);
  }
  mpg_batching_set(b, 0, b->in[first].axis, first);
  return MPG_OK;
}

/* --- Creation and random numbers -------------------------------------------------------------- */

/* Rule for ops without inputs (zeros, noise). mpg_op_batching sets the kind of their outputs. */
mpg_status mpg_batching_made(mpg_batching *b) {
  (void)b;
  return MPG_OK;
}

mpg_status mpg_batching_arange_like(mpg_batching *b) {
  PARAMS(arange_like);
  if (!p->axis.present ||
      mpg_batching_axis(p->axis.value, mpg_batching_ndim(b, 0)) == b->in[0].axis)
    return mpg_batching_fail(b, 0, "it would restart counting for every %s",
                             b->along_time ? "piece" : "micro-batch");
  return MPG_OK;
}

mpg_status mpg_batching_shape_array(mpg_batching *b) {
  return mpg_batching_fail(b, 0, "it would return the size of one %s",
                           b->along_time ? "piece" : "micro-batch");
}

mpg_status mpg_batching_sample(mpg_batching *b) {
  int first = mpg_batching_first(b);
  MPG_TRY(mpg_batching_all_along(b, b->num_inputs, b->in[first].axis));
  mpg_batching_set(b, 0, b->in[first].axis, first);
  return MPG_OK;
}

mpg_status mpg_batching_sample_multinomial(mpg_batching *b) {
  if (b->in[0].axis == mpg_batching_ndim(b, 0) - 1) return mpg_batching_fail_along(b, 0);
  for (int k = 0; k < b->num_outputs; k++) mpg_batching_set(b, k, b->in[0].axis, 0);
  return MPG_OK;
}

mpg_status mpg_batching_dropout(mpg_batching *b) {
  PARAMS(dropout);
  for (int k = 0; k < p->axes.count && b->train && p->p > 0; k++)
    if (mpg_batching_axis(p->axes.values[k], mpg_batching_ndim(b, 0)) == b->in[0].axis)
      return mpg_batching_fail(b, 0, "axes=%d shares one mask across all rows", b->in[0].axis);
  return mpg_batching_data(b);
}

/* The output, a random key, does not depend on the rows, so it remains SAME. */
mpg_status mpg_batching_dropout_draw(mpg_batching *b) {
  (void)b;
  return MPG_OK;
}

mpg_status mpg_batching_never(mpg_batching *b) {
  return mpg_batching_fail(b, mpg_batching_first(b), "its result depends on all rows");
}

mpg_status mpg_batching_first_axis(mpg_batching *b) {
  MPG_TRY(mpg_batching_data(b));
  return b->in[0].axis == 0 ? MPG_OK : mpg_batching_fail_along(b, 0);
}

/* Requires that the first axis of every input is the batch axis. */
mpg_status mpg_batching_all_first(mpg_batching *b) {
  MPG_TRY(mpg_batching_all_along(b, b->num_inputs, 0));
  mpg_batching_set(b, 0, 0, mpg_batching_first(b));
  return MPG_OK;
}

/* --- Reductions and ordering ------------------------------------------------------------------ */

/* True if a reduction reduces `axis`, which must be one of `axes` or, with `exclude`, none of them.
 * () means all axes. None (count -1) reduces all axes even with `exclude`. */
static bool reduced(const mpg_tuple *axes, bool exclude, int ndim, int axis) {
  if (axes->count <= 0) return !exclude || axes->count < 0;
  for (int i = 0; i < axes->count; i++)
    if (mpg_batching_axis(axes->values[i], ndim) == axis) return !exclude;
  return exclude;
}

static mpg_status reduce(mpg_batching *b, const mpg_tuple *axes, bool exclude, bool keepdims) {
  int ndim = mpg_batching_ndim(b, 0), axis = b->in[0].axis, before = 0;
  if (reduced(axes, exclude, ndim, axis)) return mpg_batching_fail_along(b, 0);
  for (int i = 0; i < axis; i++) before += reduced(axes, exclude, ndim, i);
  mpg_batching_set(b, 0, keepdims ? axis : axis - before, 0);
  return MPG_OK;
}

mpg_status mpg_batching_reduce(mpg_batching *b) {
  PARAMS(reduce);
  return reduce(b, &p->axis, p->exclude, p->keepdims);
}

mpg_status mpg_batching_reduce_norm(mpg_batching *b) {
  PARAMS(reduce_norm);
  return reduce(b, &p->axis, false, p->keepdims);
}

mpg_status mpg_batching_broadcast_to(mpg_batching *b) {
  int axis = b->in[0].axis, added = b->outputs[0].shape.ndim - mpg_batching_ndim(b, 0);
  MPG_TRY(mpg_batching_data(b));
  if (b->outputs[0].shape.dims[axis + added] != b->inputs[0].shape.dims[axis])
    return mpg_batching_fail_along(b, 0);
  mpg_batching_set(b, 0, axis + added, 0);
  return MPG_OK;
}

mpg_status mpg_batching_broadcast_like(mpg_batching *b) {
  PARAMS(broadcast_like);
  const mpg_shape *lhs = &b->inputs[0].shape;
  if (mpg_batching_divided(b, 0)) {
    if (b->outputs[0].shape.dims[b->in[0].axis] != lhs->dims[b->in[0].axis])
      return mpg_batching_fail_along(b, 0);
    mpg_batching_set(b, 0, b->in[0].axis, 0);
    return MPG_OK;
  }
  int axis = p->lhs_axes.count < 0 ? b->in[1].axis : -1;
  for (int i = 0; i < p->rhs_axes.count && i < p->lhs_axes.count; i++)
    if (mpg_batching_axis(p->rhs_axes.values[i], mpg_batching_ndim(b, 1)) == b->in[1].axis)
      axis = mpg_batching_axis(p->lhs_axes.values[i], lhs->ndim);
  if (axis >= 0 && lhs->dims[axis] == 1) mpg_batching_set(b, 0, axis, 1);
  return MPG_OK;
}

/* Rule for ops that work along one axis, or on the flattened array if `axis` is None. `removed` is
 * true if the outputs lack that axis. */
static mpg_status along(mpg_batching *b, const mpg_opt_int *axis, bool removed) {
  int own = b->in[0].axis,
      at = axis->present ? mpg_batching_axis(axis->value, mpg_batching_ndim(b, 0)) : own;
  if (at == own) return mpg_batching_fail_along(b, 0);
  for (int k = 0; k < b->num_outputs; k++) mpg_batching_set(b, k, own - (removed && at < own), 0);
  return MPG_OK;
}

/* Rule for ops with a parameter `axis`. A parameter `keepdims`, if the op has one, determines
 * whether the outputs keep the axis. */
mpg_status mpg_batching_along_axis(mpg_batching *b) {
  const mpg_param_table *table = b->op->params;
  int axis = mpg_params_find(table, "axis"), keepdims = mpg_params_find(table, "keepdims");
  MPG_ASSERT(axis >= 0 && table->params[axis].kind == MPG_PARAM_OPT_INT);
  const char *params = b->params;
  bool removed = keepdims >= 0 && !*(const bool *)(params + table->params[keepdims].offset);
  return along(b, (const mpg_opt_int *)(params + table->params[axis].offset), removed);
}
