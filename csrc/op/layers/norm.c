/* Normalization: inference and gradients. */
#include <string.h>

#include "op/formula/arithmetic.h"
#include "op/infer.h"
#include "op/layers/convolution.h"
#include "op/layers/norm.h"

static mpg_status channels_axis(mpg_infer *infer, int64_t axis_param, int *axis) {
  const mpg_shape *data = &infer->inputs[0].shape;
  if (data->ndim == 0) return mpg_infer_fail(infer, "data must have at least one axis");
  return mpg_axis_normalize(axis_param, data->ndim, infer->op->name, axis);
}

/* Checks that inputs[first .. last] are vectors of `length` elements. */
static mpg_status expect_vectors(mpg_infer *infer, int first, int last, int64_t length) {
  mpg_shape shape = {.ndim = 1, .dims = {length}};
  for (int i = first; i <= last; i++) MPG_TRY(mpg_infer_expect_shape(infer, i, &shape));
  return MPG_OK;
}

/* --- BatchNorm -------------------------------------------------------------------------------- */
/* Infers BatchNorm and its variants. Output 0 has the desc of data, and the other outputs are
 * statistics with one value per channel. */
static mpg_status infer_channels(mpg_infer *infer, int64_t axis_param) {
  const mpg_desc *data = &infer->inputs[0];
  mpg_dtype statistics = mpg_dtype_of_sums(data->dtype);
  for (int i = 1; i < 5; i++) MPG_TRY(mpg_infer_expect_dtype(infer, i, statistics));
  infer->outputs[0].dtype = data->dtype;
  for (int i = 1; i < infer->num_outputs; i++) infer->outputs[i].dtype = statistics;
  if (data->shape.ndim < 0) return MPG_OK;
  int axis;
  MPG_TRY(channels_axis(infer, axis_param, &axis));
  mpg_shape channels = {.ndim = 1, .dims = {data->shape.dims[axis]}};
  MPG_TRY(expect_vectors(infer, 1, 4, channels.dims[0]));
  mpg_infer_set(infer, 0, &data->shape, data->dtype);
  for (int i = 1; i < infer->num_outputs; i++) mpg_infer_set(infer, i, &channels, statistics);
  return MPG_OK;
}

mpg_status mpg_infer_batch_norm(mpg_infer *infer) {
  return infer_channels(infer, ((const mpg_batch_norm_params *)infer->params)->axis);
}

mpg_status mpg_infer_sync_batch_norm(mpg_infer *infer) { return infer_channels(infer, 1); }

/* Common inference of all backward ops in this file, whose gamma has the dtype `gamma`. The outputs
 * are the gradients of data, gamma and beta, where beta has the desc of gamma. */
static mpg_status infer_backward(mpg_infer *infer, mpg_dtype gamma) {
  if (infer->inputs[1].shape.ndim < 0 || infer->inputs[2].shape.ndim < 0) return MPG_OK;
  MPG_TRY(mpg_infer_expect_dtype(infer, 0, infer->inputs[1].dtype));
  MPG_TRY(mpg_infer_expect_dtype(infer, 2, gamma));
  MPG_TRY(mpg_infer_expect_shape(infer, 0, &infer->inputs[1].shape));
  mpg_infer_set(infer, 0, &infer->inputs[1].shape, infer->inputs[1].dtype);
  mpg_infer_set(infer, 1, &infer->inputs[2].shape, infer->inputs[2].dtype);
  mpg_infer_set(infer, 2, &infer->inputs[2].shape, infer->inputs[2].dtype);
  return MPG_OK;
}

/* Infers the gradient of BatchNorm and its variants, whose parameters and statistics have the dtype
 * of sums. */
static mpg_status infer_channels_backward(mpg_infer *infer) {
  mpg_dtype statistics = mpg_dtype_of_sums(infer->inputs[1].dtype);
  for (int i = 3; i <= 4; i++) MPG_TRY(mpg_infer_expect_dtype(infer, i, statistics));
  return infer_backward(infer, statistics);
}

mpg_status mpg_infer_batch_norm_backward(mpg_infer *infer) {
  const mpg_batch_norm_backward_params *p = infer->params;
  const mpg_shape *data = &infer->inputs[1].shape;
  int axis;
  MPG_TRY(infer_channels_backward(infer));
  if (!mpg_shape_known(data)) return MPG_OK;
  MPG_TRY(mpg_axis_normalize(p->axis, data->ndim, infer->op->name, &axis));
  return expect_vectors(infer, 2, 4, data->dims[axis]);
}

/* Checks the dtype and shape of the mean and standard deviation inputs (3 and 4) of the LayerNorm
 * and GroupNorm gradients. */
static mpg_status expect_moments(mpg_infer *infer, const mpg_shape *shape) {
  for (int i = 3; i <= 4; i++) {
    MPG_TRY(mpg_infer_expect_dtype(infer, i, mpg_dtype_of_sums(infer->inputs[1].dtype)));
    MPG_TRY(mpg_infer_expect_shape(infer, i, shape));
  }
  return MPG_OK;
}

mpg_status mpg_infer_layer_norm_backward(mpg_infer *infer) {
  const mpg_layer_norm_backward_params *p = infer->params;
  mpg_shape moments = infer->inputs[1].shape;
  int axis;
  MPG_TRY(infer_backward(infer, infer->inputs[1].dtype));
  if (!mpg_shape_known(&moments)) return MPG_OK;
  MPG_TRY(mpg_axis_normalize(p->axis, moments.ndim, infer->op->name, &axis));
  MPG_TRY(expect_vectors(infer, 2, 2, moments.dims[axis]));
  moments.dims[axis] = 1;
  return expect_moments(infer, &moments);
}

mpg_status mpg_infer_group_norm_backward(mpg_infer *infer) {
  const mpg_shape *data = &infer->inputs[1].shape, *gamma = &infer->inputs[2].shape;
  MPG_TRY(infer_backward(infer, infer->inputs[1].dtype));
  if (!mpg_shape_known(data) || !mpg_shape_known(gamma)) return MPG_OK;
  if (data->ndim < 2 || gamma->ndim != 1 || gamma->dims[0] == 0 || data->dims[1] % gamma->dims[0])
    return mpg_infer_fail(infer,
                          "gamma must have one element for each group, and the number of groups "
                          "must divide axis 1 of data");
  mpg_shape moments = {.ndim = 2, .dims = {data->dims[0], gamma->dims[0]}};
  return expect_moments(infer, &moments);
}

/* Emits a backward op with the inputs (out_grad, data, gamma, mean, deviation). Gradients of the
 * statistics are ignored, as in MXNet. */
static void emit_backward_with(mpg_gradient *g, mpg_op_id op, const void *params,
                               const mpg_value *outputs) {
  if (!mpg_has_value(g->out_grads[0])) return;
  mpg_value inputs[5] = {g->out_grads[0], g->inputs[0], g->inputs[1], outputs[1], outputs[2]},
            grads[3];
  mpg_emit_all(g, op, params, 5, inputs, 3, grads);
  for (int i = 0; i < 3; i++)
    if (g->needed[i]) g->in_grads[i] = grads[i];
}
static void emit_backward(mpg_gradient *g, mpg_op_id op, const void *params) {
  emit_backward_with(g, op, params, g->outputs);
}

void mpg_gradient_batch_norm(mpg_gradient *g) {
  const mpg_batch_norm_params *p = g->params;
  mpg_batch_norm_backward_params params = {.axis = p->axis,
                                           .eps = p->eps,
                                           .fix_gamma = p->fix_gamma,
                                           .batch_stats = g->train && !p->use_global_stats};
  emit_backward(g, MPG_OP__backward_BatchNorm, &params);
}

bool mpg_op_only_updates_states(const mpg_op *op, const void *params, bool train) {
  if (!train || !(op->flags & MPG_OP_STATISTICS)) return false;
  return op->id == MPG_OP_BatchNorm
             ? !((const mpg_batch_norm_params *)params)->use_global_stats
             : !((const mpg_batch_norm_relu_params *)params)->use_global_stats;
}

bool mpg_op_changes_states(const mpg_op *op, const void *params, bool train) {
  if (!mpg_op_only_updates_states(op, params, train)) return false;
  return op->id == MPG_OP_BatchNorm ? ((const mpg_batch_norm_params *)params)->momentum != 1
                                    : ((const mpg_batch_norm_relu_params *)params)->momentum != 1;
}

/* --- BatchNorm, addition and relu ------------------------------------------------------------- */
int mpg_arity_batch_norm_relu(const mpg_op *op, const void *params, int given) {
  (void)op;
  (void)given;
  return ((const mpg_batch_norm_relu_params *)params)->add ? 6 : 5;
}
int mpg_arity_batch_norm_relu_backward(const mpg_op *op, const void *params, int given) {
  (void)op;
  (void)given;
  return ((const mpg_batch_norm_relu_backward_params *)params)->add ? 4 : 3;
}

/* Returns the shape of the mask that backward reads. A row has one bit per channel that marks
 * values above 0, one bit per channel that marks NaN, and one byte that is set if any value is
 * NaN. */
static mpg_shape mask_shape(const mpg_shape *data) {
  int64_t channels = data->dims[data->ndim - 1];
  return (mpg_shape){
      .ndim = 2,
      .dims = {mpg_shape_product(data, 0, data->ndim - 1), 2 * ((channels + 7) / 8) + 1}};
}

mpg_status mpg_infer_batch_norm_relu(mpg_infer *infer) {
  const mpg_desc *data = &infer->inputs[0];
  mpg_dtype statistics = mpg_dtype_of_sums(data->dtype);
  for (int i = 1; i < 5; i++) MPG_TRY(mpg_infer_expect_dtype(infer, i, statistics));
  if (infer->num_inputs == 6) MPG_TRY(mpg_infer_expect_dtype(infer, 5, data->dtype));
  infer->outputs[0].dtype = data->dtype;
  infer->outputs[1].dtype = infer->outputs[2].dtype = statistics;
  infer->outputs[3].dtype = MPG_UINT8;
  if (!mpg_shape_known(&data->shape)) return MPG_OK;
  int axis;
  MPG_TRY(channels_axis(infer, -1, &axis));
  mpg_shape channels = {.ndim = 1, .dims = {data->shape.dims[axis]}},
            mask = mask_shape(&data->shape);
  MPG_TRY(expect_vectors(infer, 1, 4, channels.dims[0]));
  if (infer->num_inputs == 6) MPG_TRY(mpg_infer_expect_shape(infer, 5, &data->shape));
  mpg_infer_set(infer, 0, &data->shape, data->dtype);
  mpg_infer_set(infer, 1, &channels, statistics);
  mpg_infer_set(infer, 2, &channels, statistics);
  mpg_infer_set(infer, 3, &mask, MPG_UINT8);
  return MPG_OK;
}

mpg_status mpg_infer_batch_norm_relu_backward(mpg_infer *infer) {
  const mpg_desc *data = &infer->inputs[1];
  MPG_TRY(infer_channels_backward(infer));
  MPG_TRY(mpg_infer_expect_dtype(infer, 5, MPG_UINT8));
  if (infer->num_outputs == 4) infer->outputs[3].dtype = data->dtype;
  if (!mpg_shape_known(&data->shape)) return MPG_OK;
  if (data->shape.ndim == 0) return mpg_infer_fail(infer, "data must have at least one axis");
  MPG_TRY(expect_vectors(infer, 2, 4, data->shape.dims[data->shape.ndim - 1]));
  mpg_shape mask = mask_shape(&data->shape);
  MPG_TRY(mpg_infer_expect_shape(infer, 5, &mask));
  if (infer->num_outputs == 4) mpg_infer_set(infer, 3, &data->shape, data->dtype);
  return MPG_OK;
}

void mpg_gradient_batch_norm_relu(mpg_gradient *g) {
  const mpg_batch_norm_relu_params *p = g->params;
  if (!mpg_has_value(g->out_grads[0])) return;
  mpg_batch_norm_relu_backward_params params = {.fix_gamma = p->fix_gamma,
                                                .batch_stats = g->train && !p->use_global_stats,
                                                .add = p->add && g->needed[5]};
  mpg_value inputs[6] = {g->out_grads[0], g->inputs[0],  g->inputs[1],
                         g->outputs[1],   g->outputs[2], g->outputs[3]},
            grads[4];
  mpg_emit_all(g, MPG_OP__backward_batch_norm_relu, &params, 6, inputs, 4, grads);
  for (int i = 0; i < 3; i++)
    if (g->needed[i]) g->in_grads[i] = grads[i];
  if (params.add) g->in_grads[5] = grads[3];
}

/* --- LayerNorm, GroupNorm, InstanceNorm ------------------------------------------------------- */
/* Sets the descs of outputs 1 and 2, the mean and the standard deviation, which have the shape
 * `moments`. For 16-bit data they are float32, because gradients would lose precision otherwise. If
 * they are `shown` to the user, they have the dtype of the data, as in MXNet. */
static void set_moments(mpg_infer *infer, const mpg_shape *moments, bool shown) {
  mpg_dtype dtype = infer->inputs[0].dtype;
  for (int i = 1; i <= 2; i++)
    mpg_infer_set(infer, i, moments, shown ? dtype : mpg_dtype_of_sums(dtype));
}

/* Emits the backward op. If the forward op returned its moments to the user, they were rounded to
 * the dtype of the data. In that case, first recomputes them without rounding by emitting the
 * forward op with the parameters `hidden`. */
static void emit_row_backward(mpg_gradient *g, mpg_op_id op, const void *params,
                              const void *hidden) {
  mpg_dtype dtype = mpg_value_desc(g, g->inputs[0])->dtype;
  if (mpg_value_desc(g, g->outputs[1])->dtype == mpg_dtype_of_sums(dtype)) {
    emit_backward(g, op, params);
    return;
  }
  mpg_value inputs[3] = {g->inputs[0], g->inputs[1], g->inputs[1]}, outputs[3];
  mpg_emit_all(g, g->op->id, hidden, 3, inputs, 3, outputs);
  if (g->status == MPG_OK) emit_backward_with(g, op, params, outputs);
}

mpg_status mpg_infer_layer_norm(mpg_infer *infer) {
  const mpg_layer_norm_params *p = infer->params;
  MPG_TRY(mpg_infer_same_dtype(infer));
  const mpg_desc *data = &infer->inputs[0];
  mpg_shape moments = data->shape;
  set_moments(infer, &moments, p->output_mean_var);
  if (data->shape.ndim < 0) return MPG_OK;
  int axis;
  MPG_TRY(channels_axis(infer, p->axis, &axis));
  MPG_TRY(expect_vectors(infer, 1, 2, data->shape.dims[axis]));
  moments.dims[axis] = 1;
  mpg_infer_set(infer, 0, &data->shape, data->dtype);
  set_moments(infer, &moments, p->output_mean_var);
  return MPG_OK;
}

void mpg_gradient_layer_norm(mpg_gradient *g) {
  const mpg_layer_norm_params *p = g->params;
  mpg_layer_norm_backward_params params = {.axis = p->axis, .eps = p->eps};
  mpg_layer_norm_params hidden = *p;
  hidden.output_mean_var = false;
  emit_row_backward(g, MPG_OP__backward_LayerNorm, &params, &hidden);
}

/* Infers a normalization of groups of channels. num_groups = 0 means one group per channel. */
static mpg_status infer_groups(mpg_infer *infer, int64_t num_groups, bool shown) {
  MPG_TRY(mpg_infer_same_dtype(infer));
  const mpg_desc *data = &infer->inputs[0];
  set_moments(infer, &data->shape, shown);
  if (data->shape.ndim < 0) return MPG_OK;
  if (data->shape.ndim < 3)
    return mpg_infer_fail(infer, "data must have at least 3 axes: (batch, channels, ...)");
  int64_t channels = data->shape.dims[1];
  if (!num_groups) num_groups = channels;
  if (num_groups > 0 && channels >= 0 && channels % num_groups)
    return mpg_infer_fail(infer, "%lld channels cannot be split into %lld equal groups",
                          (long long)channels, (long long)num_groups);
  MPG_TRY(expect_vectors(infer, 1, 2, num_groups));
  mpg_shape moments = {.ndim = 2, .dims = {data->shape.dims[0], num_groups}};
  mpg_infer_set(infer, 0, &data->shape, data->dtype);
  set_moments(infer, &moments, shown);
  return MPG_OK;
}

mpg_status mpg_infer_group_norm(mpg_infer *infer) {
  const mpg_group_norm_params *p = infer->params;
  return infer_groups(infer, p->num_groups, p->output_mean_var);
}
mpg_status mpg_infer_instance_norm(mpg_infer *infer) { return infer_groups(infer, 0, false); }

void mpg_gradient_group_norm(mpg_gradient *g) {
  const mpg_group_norm_params *p = g->params;
  mpg_group_norm_backward_params params = {.num_groups = p->num_groups, .eps = p->eps};
  mpg_group_norm_params hidden = *p;
  hidden.output_mean_var = false;
  emit_row_backward(g, MPG_OP__backward_GroupNorm, &params, &hidden);
}

void mpg_gradient_instance_norm(mpg_gradient *g) {
  mpg_group_norm_backward_params params = {
      .num_groups = mpg_value_desc(g, g->inputs[0])->shape.dims[1],
      .eps = ((const mpg_instance_norm_params *)g->params)->eps};
  emit_backward(g, MPG_OP__backward_GroupNorm, &params);
}

/* --- L2Normalization, LRN --------------------------------------------------------------------- */
/* Computes the shape of the norms of an input: the input's shape with size 1 along the normalized
 * axes. */
static mpg_status l2_norms(mpg_infer *infer, int input, mpg_shape *norms) {
  static const char *const modes[] = {"instance", "channel", "spatial"};
  const mpg_l2_normalization_params *p = infer->params;
  *norms = infer->inputs[input].shape;
  if (norms->ndim <= p->mode)
    return mpg_infer_fail(infer, "data has too few axes for mode='%s'", modes[p->mode]);
  int end = p->mode == MPG_L2_CHANNEL ? 2 : norms->ndim;
  for (int axis = p->mode == MPG_L2_SPATIAL ? 2 : 1; axis < end; axis++) norms->dims[axis] = 1;
  return MPG_OK;
}

mpg_status mpg_infer_l2_normalization(mpg_infer *infer) {
  const mpg_desc *data = &infer->inputs[0];
  mpg_shape norms;
  infer->outputs[0].dtype = data->dtype;
  infer->outputs[1].dtype = mpg_dtype_of_sums(data->dtype);
  if (data->shape.ndim < 0) return MPG_OK;
  MPG_TRY(l2_norms(infer, 0, &norms));
  mpg_infer_set(infer, 0, &data->shape, data->dtype);
  mpg_infer_set(infer, 1, &norms, mpg_dtype_of_sums(data->dtype));
  return MPG_OK;
}

mpg_status mpg_infer_l2_normalization_backward(mpg_infer *infer) {
  const mpg_desc *data = &infer->inputs[1];
  mpg_shape norms;
  if (data->shape.ndim < 0) return MPG_OK;
  MPG_TRY(mpg_infer_expect_dtype(infer, 0, data->dtype));
  MPG_TRY(mpg_infer_expect_shape(infer, 0, &data->shape));
  MPG_TRY(mpg_infer_expect_dtype(infer, 2, mpg_dtype_of_sums(data->dtype)));
  MPG_TRY(l2_norms(infer, 1, &norms));
  MPG_TRY(mpg_infer_expect_shape(infer, 2, &norms));
  mpg_infer_set(infer, 0, &data->shape, data->dtype);
  return MPG_OK;
}

void mpg_gradient_l2_normalization(mpg_gradient *g) {
  if (!mpg_has_value(g->out_grads[0])) return;
  mpg_value inputs[3] = {g->out_grads[0], g->inputs[0], g->outputs[1]};
  mpg_emit_all(g, MPG_OP__backward_L2Normalization, g->params, 3, inputs, 1, g->in_grads);
}

/* Local response normalization: data * (knorm + alpha / nsize * sum of squares of neighboring
 * channels) ^ -beta. */
void mpg_compose_lrn(mpg_gradient *g, const mpg_value *inputs, mpg_value *outputs) {
  const mpg_lrn_params *p = g->params;
  const mpg_desc *data = mpg_value_desc(g, inputs[0]);
  mpg_dtype dtype = data->dtype;
  mpg_shape shape = data->shape;
  if (shape.ndim != 4) {
    mpg_gradient_fail(g, "data must have 4 axes: (batch, channels, height, width)");
    return;
  }
  if (p->nsize % 2 == 0) {
    mpg_gradient_fail(g, "nsize must be odd, not %lld", (long long)p->nsize);
    return;
  }
  mpg_shape plane = {.ndim = 4,
                     .dims = {shape.dims[0], 1, shape.dims[1], mpg_shape_product(&shape, 2, 4)}};
  mpg_pooling_params window;
  mpg_params_defaults(mpg_op_get(MPG_OP_Pooling)->params, &window);
  window.kernel = (mpg_tuple){.count = 2, .values = {p->nsize, 1}};
  window.pad = (mpg_tuple){.count = 2, .values = {p->nsize / 2, 0}};
  window.pool_type = MPG_POOL_SUM;
  mpg_value x = mpg_widen(g, mpg_emit_reshape(g, inputs[0], &plane));
  mpg_value squares = mpg_emit1(g, MPG_OP_Pooling, &window, mpg_emit1(g, MPG_OP_square, NULL, x));
  mpg_value norm = mpg_plus(g, mpg_times(g, squares, p->alpha / (double)p->nsize), p->knorm);
  mpg_value scaled = mpg_multiply(g, x, mpg_emit_scalar(g, MPG_OP__power_scalar, norm, -p->beta));
  outputs[0] = mpg_emit_reshape(g, mpg_emit_cast(g, scaled, dtype), &shape);
}
