/* Second-order gradients of normalizations. Each normalization is composed of other ops, and the
 * composition is differentiated twice. */
#include "op/formula/arithmetic.h"
#include "op/layers/convolution.h"
#include "op/infer.h"

/* --- (data - mean) / deviation * gamma + beta ------------------------------------------------- */
typedef struct standardised {
  /* Three-axis shapes: (batch or outer axes, channels or groups, remaining axes). */
  mpg_shape data, moments, gamma;
  double eps;
  /* If `given`, the statistics are inputs 3 and 4 (the mean and 1 / standard deviation) and do not
   * depend on data. */
  bool fix_gamma, given;
} standardised;

static void over_channels(standardised *s, const mpg_shape *data, int64_t axis_param) {
  int axis = (int)(axis_param < 0 ? axis_param + data->ndim : axis_param);
  s->data = (mpg_shape){.ndim = 3,
                        .dims = {mpg_shape_product(data, 0, axis), data->dims[axis],
                                 mpg_shape_product(data, axis + 1, data->ndim)}};
  s->gamma = (mpg_shape){.ndim = 3, .dims = {1, data->dims[axis], 1}};
}

static standardised standardised_of(mpg_gradient *g) {
  const mpg_shape *data = &mpg_value_desc(g, g->inputs[1])->shape;
  standardised s = {0};
  if (g->op->id == MPG_OP__backward_BatchNorm) {
    const mpg_batch_norm_backward_params *p = g->params;
    over_channels(&s, data, p->axis);
    s.moments = s.gamma;
    s.eps = p->eps;
    s.fix_gamma = p->fix_gamma;
    s.given = !p->batch_stats;
  } else if (g->op->id == MPG_OP__backward_LayerNorm) {
    const mpg_layer_norm_backward_params *p = g->params;
    over_channels(&s, data, p->axis);
    s.moments = s.data;
    s.moments.dims[1] = 1;
    s.eps = p->eps;
  } else {
    const mpg_group_norm_backward_params *p = g->params;
    s.data = (mpg_shape){.ndim = 3,
                         .dims = {data->dims[0], p->num_groups,
                                  mpg_shape_product(data, 1, data->ndim) / p->num_groups}};
    s.moments = s.data;
    s.moments.dims[2] = 1;
    s.gamma = (mpg_shape){.ndim = 3, .dims = {1, p->num_groups, 1}};
    s.eps = p->eps;
  }
  return s;
}

static void emit_standardised(mpg_gradient *g, const mpg_value *inputs, mpg_value *outputs) {
  standardised s = standardised_of(g);
  const mpg_desc data = *mpg_value_desc(g, inputs[0]);
  mpg_dtype dtype = data.dtype == MPG_FLOAT64 ? MPG_FLOAT64 : MPG_FLOAT32;
  mpg_value x = mpg_emit_cast(g, mpg_emit_reshape(g, inputs[0], &s.data), dtype), unit;
  if (s.given) {
    mpg_value mean = mpg_emit_reshape(g, g->inputs[3], &s.gamma),
              inverse = mpg_emit_reshape(g, g->inputs[4], &s.gamma);
    unit = mpg_emit2(g, MPG_OP_broadcast_mul, NULL,
                     mpg_emit2(g, MPG_OP_broadcast_sub, NULL, x, mean), inverse);
  } else {
    mpg_value centred =
        mpg_emit2(g, MPG_OP_broadcast_sub, NULL, x, mpg_emit_mean(g, x, &s.moments));
    mpg_value variance = mpg_emit_mean(g, mpg_emit1(g, MPG_OP_square, NULL, centred), &s.moments);
    mpg_value deviation =
        mpg_emit1(g, MPG_OP_sqrt, NULL, mpg_emit_scalar(g, MPG_OP__plus_scalar, variance, s.eps));
    unit = mpg_emit2(g, MPG_OP_broadcast_div, NULL, centred, deviation);
  }
  mpg_value gamma = mpg_emit_cast(g, mpg_emit_reshape(g, inputs[1], &s.gamma), dtype);
  mpg_value beta = mpg_emit_cast(g, mpg_emit_reshape(g, inputs[2], &s.gamma), dtype);
  if (!s.fix_gamma) unit = mpg_emit2(g, MPG_OP_broadcast_mul, NULL, unit, gamma);
  mpg_value output = mpg_emit2(g, MPG_OP_broadcast_add, NULL, unit, beta);
  outputs[0] = mpg_emit_reshape(g, mpg_emit_cast(g, output, data.dtype), &data.shape);
}

/* Gradient of the backward ops, which compute the gradients of data, gamma and beta from (out_grad,
 * data, gamma, mean, deviation). */
void mpg_gradient_standardised_back(mpg_gradient *g) {
  static const int inputs[] = {1, 2, MPG_ZEROS_LIKE(2)}, out_grads[] = {0};
  mpg_gradient_written_out(g, &(mpg_written_out){3, 1, inputs, out_grads, emit_standardised});
}

/* --- data / sqrt(sum of squares + eps) -------------------------------------------------------- */
static void emit_l2_normalization(mpg_gradient *g, const mpg_value *inputs, mpg_value *outputs) {
  const mpg_l2_normalization_params *p = g->params;
  mpg_shape norms = mpg_value_desc(g, g->inputs[2])->shape;
  mpg_dtype dtype = mpg_value_desc(g, inputs[0])->dtype;
  mpg_value x = mpg_widen(g, inputs[0]), squares = mpg_emit1(g, MPG_OP_square, NULL, x);
  mpg_value sum = mpg_plus(g, mpg_emit_sum_to(g, squares, &norms), p->eps);
  outputs[0] = mpg_emit_cast(g, mpg_multiply(g, x, mpg_emit1(g, MPG_OP_rsqrt, NULL, sum)), dtype);
}

/* Gradient of the backward op, which computes the gradient of data from (out_grad, data, norm). */
void mpg_gradient_l2_normalization_back(mpg_gradient *g) {
  static const int inputs[] = {1}, out_grads[] = {0};
  mpg_gradient_written_out(g, &(mpg_written_out){1, 1, inputs, out_grads, emit_l2_normalization});
}
