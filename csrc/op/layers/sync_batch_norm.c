/* BatchNorm over the batches of several devices, composed of other ops. In SyncBatchNorm, the
 * devices exchange data in the op _replicas. In partitioned graphs, the ops of the composition are
 * divided. */
#include <string.h>

#include "op/formula/arithmetic.h"
#include "op/infer.h"
#include "op/layers/equivalents.h"

/* --- The exchange ----------------------------------------------------------------------------- */

mpg_status mpg_infer_replicas(mpg_infer *infer) {
  const mpg_replicas_params *p = infer->params;
  mpg_shape shape = infer->inputs[0].shape;
  if (!mpg_infer_begin(infer)) return MPG_OK;
  if (infer->inputs[0].dtype != MPG_FLOAT32 && infer->inputs[0].dtype != MPG_FLOAT64)
    return mpg_infer_fail(infer, "data must be float32 or float64");
  if (p->sum ? shape.ndim < 1 || shape.dims[0] != p->ndev : shape.ndim >= MPG_MAX_NDIM)
    return mpg_infer_fail(infer, p->sum ? "data must have one row for each of the ndev replicas"
                                        : "data has too many axes");
  if (p->sum) {
    shape.ndim--;
    memmove(shape.dims, shape.dims + 1, (size_t)shape.ndim * sizeof *shape.dims);
  } else {
    memmove(shape.dims + 1, shape.dims, (size_t)shape.ndim * sizeof *shape.dims);
    shape.dims[0] = p->ndev;
    shape.ndim++;
  }
  mpg_infer_set(infer, 0, &shape, infer->inputs[0].dtype);
  return MPG_OK;
}

/* _replicas either stacks the arrays of all replicas or, with `sum`, sums the rows that they hold
 * for this replica. Each of the two is the gradient of the other. */
void mpg_gradient_replicas(mpg_gradient *g) {
  mpg_replicas_params back = *(const mpg_replicas_params *)g->params;
  back.sum = !back.sum;
  g->in_grads[0] = mpg_emit1(g, MPG_OP__replicas, &back, g->out_grads[0]);
}

/* --- The layer -------------------------------------------------------------------------------- */

int mpg_arity_sync_batch_norm(const mpg_op *op, const void *params, int given) {
  (void)op, (void)given;
  return ((const mpg_sync_batch_norm_params *)params)->output_mean_var ? 3 : 1;
}

/* Composes BatchNorm without exchanging statistics: uses the statistics of this replica's batch, or
 * the moving averages. */
static void compose_alone(mpg_gradient *g, const mpg_value *inputs, mpg_value *outputs) {
  const mpg_sync_batch_norm_params *p = g->params;
  mpg_batch_norm_params params;
  mpg_params_defaults(&mpg_batch_norm_table, &params);
  params.eps = p->eps;
  params.momentum = p->momentum;
  params.fix_gamma = p->fix_gamma;
  params.use_global_stats = p->use_global_stats;
  params.output_mean_var = p->output_mean_var;
  mpg_value all[3];
  mpg_emit_all(g, MPG_OP_BatchNorm, &params, 5, inputs, 3, all);
  outputs[0] = all[0];
  if (!p->output_mean_var) return;
  outputs[1] = all[1];
  /* Converts all[2], which is 1 / sqrt(variance + eps), to the variance. */
  outputs[2] = mpg_plus(g, mpg_over(g, 1, mpg_emit1(g, MPG_OP_square, NULL, all[2])), -p->eps);
}

/* Emits average = momentum * average + (1 - momentum) * value, as an SGD step whose momentum state
 * is the average. */
static void update(mpg_gradient *g, mpg_value average, mpg_value value, double momentum) {
  mpg_sgd_mom_params params;
  mpg_params_defaults(&mpg_sgd_mom_table, &params);
  params.lr = momentum - 1;
  params.momentum = momentum;
  value = mpg_emit1(g, MPG_OP_BlockGrad, NULL, value);
  mpg_emit3(g, MPG_OP_sgd_mom_update, &params, value, value, average);
}

typedef struct statistics {
  mpg_value mean, variance; /* over all replicas; (1, 1, channels) */
} statistics;

/* Computes the statistics of all replicas. `data` has the dtype of the statistics. Each replica
 * contributes its mean, its sum of squared distances from the mean, and its number of elements, so
 * that the variance stays precise if the mean is large. */
static statistics gather(mpg_gradient *g, mpg_value data) {
  const mpg_sync_batch_norm_params *p = g->params;
  mpg_desc desc = *mpg_value_desc(g, data);
  int64_t channels = desc.shape.dims[1];
  mpg_shape line = {.ndim = 2, .dims = {1, channels}};
  mpg_reduce_params along;
  memset(&along, 0, sizeof along);
  along.keepdims = true;
  for (int i = 0; i < desc.shape.ndim; i++)
    if (i != 1) along.axis.values[along.axis.count++] = i;
  mpg_value mean = mpg_emit1(g, MPG_OP_mean, &along, data);
  mpg_value distances = mpg_emit1(g, MPG_OP_square, NULL, mpg_subtract(g, data, mean));
  double elements = channels ? (double)(mpg_shape_size(&desc.shape) / channels) : 0;
  mpg_value own[3] = {mpg_emit_reshape(g, mean, &line),
                      mpg_emit_reshape(g, mpg_emit1(g, MPG_OP_sum, &along, distances), &line),
                      mpg_emit_full(g, data, &line, desc.dtype, elements)};
  mpg_replicas_params params;
  memset(&params, 0, sizeof params);
  params.key = p->key;
  params.ndev = p->ndev;
  mpg_value all = mpg_emit1(g, MPG_OP__replicas, &params, mpg_emit_concat(g, own, 3, 0)), part[3];
  for (int i = 0; i < 3; i++) part[i] = mpg_emit_slice(g, all, 1, i, i + 1);
  mpg_value counts = mpg_emit1(g, MPG_OP_BlockGrad, NULL, part[2]);
  mpg_value total = mpg_emit_reduce(g, MPG_OP_sum, counts, 0);
  mpg_value weights = mpg_divide(g, counts, total);
  statistics s;
  s.mean = mpg_emit_reduce(g, MPG_OP_sum, mpg_multiply(g, weights, part[0]), 0);
  mpg_value apart = mpg_emit1(g, MPG_OP_square, NULL, mpg_subtract(g, part[0], s.mean));
  mpg_value squares = mpg_add(g, mpg_divide(g, part[1], total), mpg_multiply(g, weights, apart));
  s.variance = mpg_emit_reduce(g, MPG_OP_sum, squares, 0);
  return s;
}

/* The parameters of BatchNorm and its variants. */
typedef struct normalization {
  int axis; /* of the channels */
  double eps, momentum;
  bool fix_gamma;
} normalization;

/* Returns the shape of an array with one element for each channel that broadcasts to the data. */
static mpg_shape line_of(const mpg_shape *data, int axis) {
  mpg_shape line = *data;
  for (int i = 0; i < line.ndim; i++) line.dims[i] = i == axis ? line.dims[i] : 1;
  return line;
}

/* Emits (data - mean) / sqrt(variance + eps) * gamma + beta, in the dtype of `inputs[0]`, and
 * updates the moving averages. `inputs` has the inputs of BatchNorm. `centered` is data - mean.
 * Returns 1 / sqrt(variance + eps) in *scale. */
static mpg_value normalize(mpg_gradient *g, const normalization *n, const mpg_value *inputs,
                           mpg_value centered, mpg_value mean, mpg_value variance,
                           mpg_value *scale) {
  if (g->status != MPG_OK) return MPG_NO_VALUE;
  mpg_desc desc = *mpg_value_desc(g, inputs[0]);
  mpg_shape line = line_of(&desc.shape, n->axis),
            vector = {.ndim = 1, .dims = {line.dims[n->axis]}};
  *scale = mpg_emit1(g, MPG_OP_rsqrt, NULL, mpg_plus(g, variance, n->eps));
  mpg_value factor = mpg_emit_reshape(g, *scale, &line);
  if (!n->fix_gamma) factor = mpg_multiply(g, factor, mpg_emit_reshape(g, inputs[1], &line));
  mpg_value result =
      mpg_add(g, mpg_multiply(g, centered, factor), mpg_emit_reshape(g, inputs[2], &line));
  update(g, inputs[3], mpg_emit_reshape(g, mean, &vector), n->momentum);
  update(g, inputs[4], mpg_emit_reshape(g, variance, &vector), n->momentum);
  return mpg_emit_cast(g, result, desc.dtype);
}

void mpg_compose_sync_batch_norm(mpg_gradient *g, const mpg_value *inputs, mpg_value *outputs) {
  const mpg_sync_batch_norm_params *p = g->params;
  if (p->ndev == 1 || p->use_global_stats || !g->train) {
    compose_alone(g, inputs, outputs);
    return;
  }
  const normalization n = {1, p->eps, p->momentum, p->fix_gamma};
  mpg_shape line = line_of(&mpg_value_desc(g, inputs[0])->shape, 1),
            vector = {.ndim = 1, .dims = {line.dims[1]}};
  mpg_value data = mpg_widen(g, inputs[0]), scale;
  statistics s = gather(g, data);
  mpg_value centered = mpg_subtract(g, data, mpg_emit_reshape(g, s.mean, &line));
  outputs[0] = normalize(g, &n, inputs, centered, s.mean, s.variance, &scale);
  if (!p->output_mean_var) return;
  outputs[1] = mpg_emit_reshape(g, s.mean, &vector);
  outputs[2] = mpg_emit_reshape(g, s.variance, &vector);
}

/* --- BatchNorm in partitioned graphs ---------------------------------------------------------- */

/* Emits the sum over all axes except the channels, divided by the number of elements. */
static mpg_value mean_of(mpg_gradient *g, const normalization *n, mpg_value data) {
  if (g->status != MPG_OK) return MPG_NO_VALUE;
  const mpg_shape shape = mpg_value_desc(g, data)->shape;
  int64_t channels = shape.dims[n->axis];
  mpg_reduce_params along;
  memset(&along, 0, sizeof along);
  along.keepdims = true;
  for (int i = 0; i < shape.ndim; i++)
    if (i != n->axis) along.axis.values[along.axis.count++] = i;
  double elements = channels ? (double)(mpg_shape_size(&shape) / channels) : 0;
  mpg_value sum = along.axis.count ? mpg_emit1(g, MPG_OP_sum, &along, data) : data;
  return mpg_emit_scalar(g, MPG_OP__div_scalar, sum, elements);
}

void mpg_compose_batch_norm(mpg_gradient *g, const mpg_value *inputs, mpg_value *outputs) {
  bool fused = g->op->id == MPG_OP__batch_norm_relu;
  const mpg_shape shape = mpg_value_desc(g, inputs[0])->shape;
  normalization n;
  if (fused) {
    const mpg_batch_norm_relu_params *p = g->params;
    n = (normalization){shape.ndim - 1, p->eps, p->momentum, p->fix_gamma};
  } else {
    const mpg_batch_norm_params *p = g->params;
    n = (normalization){(int)(p->axis < 0 ? p->axis + shape.ndim : p->axis), p->eps, p->momentum,
                        p->fix_gamma};
  }
  mpg_shape vector = {.ndim = 1, .dims = {shape.dims[n.axis]}};
  mpg_value data = mpg_widen(g, inputs[0]), scale;
  mpg_value mean = mean_of(g, &n, data), centered = mpg_subtract(g, data, mean);
  mpg_value variance = mean_of(g, &n, mpg_emit1(g, MPG_OP_square, NULL, centered));
  outputs[0] = normalize(g, &n, inputs, centered, mean, variance, &scale);
  if (fused && g->num_inputs > 5) outputs[0] = mpg_add(g, inputs[5], outputs[0]);
  if (fused) outputs[0] = mpg_emit1(g, MPG_OP_relu, NULL, outputs[0]);
  outputs[1] = mpg_emit1(g, MPG_OP_BlockGrad, NULL, mpg_emit_reshape(g, mean, &vector));
  outputs[2] = mpg_emit1(g, MPG_OP_BlockGrad, NULL, mpg_emit_reshape(g, scale, &vector));
}
