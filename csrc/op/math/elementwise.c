/* Elementwise ops: inference and gradients. */
#include <math.h>

#include "op/formula/arithmetic.h"
#include "op/infer.h"
#include "op/math/activation.h"

mpg_status mpg_infer_broadcast(mpg_infer *infer) {
  mpg_dtype dtype =
      infer->inputs[0].dtype != MPG_DTYPE_NONE ? infer->inputs[0].dtype : infer->inputs[1].dtype;
  MPG_TRY(mpg_infer_expect_dtype(infer, 0, dtype));
  MPG_TRY(mpg_infer_expect_dtype(infer, 1, dtype));
  mpg_shape shape = MPG_SHAPE_UNKNOWN;
  if (infer->inputs[0].shape.ndim >= 0 && infer->inputs[1].shape.ndim >= 0 &&
      !mpg_shape_broadcast(&infer->inputs[0].shape, &infer->inputs[1].shape, &shape))
    return mpg_infer_fail(infer,
                          "the shapes do not broadcast: from the right, sizes must be equal or 1");
  mpg_infer_set(infer, 0, &shape, dtype);
  return MPG_OK;
}

/* --- Helpers for the formulas ----------------------------------------------------------------- */

static mpg_value scalar(mpg_gradient *g, mpg_op_id op, mpg_value a, double number) {
  return mpg_emit_scalar(g, op, a, number);
}
static mpg_value unary(mpg_gradient *g, mpg_op_id op, mpg_value a) {
  return mpg_emit1(g, op, NULL, a);
}
static mpg_value square(mpg_gradient *g, mpg_value a) { return unary(g, MPG_OP_square, a); }
static mpg_value negative(mpg_gradient *g, mpg_value a) { return unary(g, MPG_OP_negative, a); }

/* Sets the gradient of input `i` to `value`, summed over the axes along which the input is
 * broadcast. */
static void give(mpg_gradient *g, int i, mpg_value value) {
  if (g->status != MPG_OK) return;
  g->in_grads[i] = mpg_emit_sum_to(g, value, &mpg_value_desc(g, g->inputs[i])->shape);
}

#define G (g->out_grads[0])
#define X (g->inputs[0])
#define Y (g->outputs[0])
/* Defines the gradient function of an op with one input. `expression` is the gradient. */
#define UNARY_GRADIENT(function, expression) \
  void function(mpg_gradient *g) { g->in_grads[0] = (expression); }

/* --- Two arrays ------------------------------------------------------------------------------- */

void mpg_gradient_add(mpg_gradient *g) {
  for (int i = 0; i < 2; i++)
    if (g->needed[i]) give(g, i, G);
}
void mpg_gradient_sub(mpg_gradient *g) {
  if (g->needed[0]) give(g, 0, G);
  if (g->needed[1]) give(g, 1, negative(g, G));
}
void mpg_gradient_mul(mpg_gradient *g) {
  if (g->needed[0]) give(g, 0, mpg_multiply(g, G, g->inputs[1]));
  if (g->needed[1]) give(g, 1, mpg_multiply(g, G, g->inputs[0]));
}
void mpg_gradient_div(mpg_gradient *g) {
  mpg_value quotient = mpg_divide(g, G, g->inputs[1]);
  if (g->needed[0]) give(g, 0, quotient);
  if (g->needed[1]) give(g, 1, negative(g, mpg_multiply(g, quotient, Y)));
}
void mpg_gradient_mod(mpg_gradient *g) { /* integers have no gradient, as in MXNet */
  if (!mpg_dtype_is_float(mpg_value_desc(g, G)->dtype)) return;
  if (g->needed[0]) give(g, 0, G);
  if (g->needed[1])
    give(g, 1,
         negative(g, mpg_multiply(
                         g, G, unary(g, MPG_OP_floor, mpg_divide(g, g->inputs[0], g->inputs[1])))));
}
void mpg_gradient_power(mpg_gradient *g) {
  mpg_value base = g->inputs[0], exponent = g->inputs[1];
  if (g->needed[0]) {
    mpg_value less =
        mpg_binary(g, MPG_OP__power, MPG_OP_broadcast_power, base, mpg_plus(g, exponent, -1));
    give(g, 0, mpg_multiply(g, G, mpg_multiply(g, exponent, less)));
  }
  if (g->needed[1]) give(g, 1, mpg_multiply(g, G, mpg_multiply(g, Y, unary(g, MPG_OP_log, base))));
}
void mpg_gradient_maximum(mpg_gradient *g) {
  if (g->needed[0])
    give(g, 0,
         mpg_multiply(g, G,
                      mpg_binary(g, MPG_OP__greater_equal, MPG_OP_broadcast_greater_equal,
                                 g->inputs[0], g->inputs[1])));
  if (g->needed[1])
    give(g, 1,
         mpg_multiply(
             g, G,
             mpg_binary(g, MPG_OP__lesser, MPG_OP_broadcast_lesser, g->inputs[0], g->inputs[1])));
}
void mpg_gradient_minimum(mpg_gradient *g) {
  if (g->needed[0])
    give(g, 0,
         mpg_multiply(g, G,
                      mpg_binary(g, MPG_OP__lesser_equal, MPG_OP_broadcast_lesser_equal,
                                 g->inputs[0], g->inputs[1])));
  if (g->needed[1])
    give(g, 1,
         mpg_multiply(
             g, G,
             mpg_binary(g, MPG_OP__greater, MPG_OP_broadcast_greater, g->inputs[0], g->inputs[1])));
}
void mpg_gradient_hypot(mpg_gradient *g) {
  mpg_value quotient = mpg_divide(g, G, Y);
  for (int i = 0; i < 2; i++)
    if (g->needed[i]) give(g, i, mpg_multiply(g, quotient, g->inputs[i]));
}
void mpg_gradient_add_n(mpg_gradient *g) {
  for (int i = 0; i < g->num_inputs; i++) g->in_grads[i] = G;
}

/* Second-order gradients. A backward op is linear in grad, so its gradient with respect to grad is
 * the backward op itself. */
void mpg_gradient_backward_relu(mpg_gradient *g) {
  if (g->needed[0]) g->in_grads[0] = mpg_emit2(g, MPG_OP__backward_relu, NULL, G, g->inputs[1]);
}
void mpg_gradient_backward_sigmoid(mpg_gradient *g) { /* grad * y * (1 - y) */
  mpg_value y = g->inputs[1];
  if (g->needed[0]) g->in_grads[0] = mpg_emit2(g, MPG_OP__backward_sigmoid, NULL, G, y);
  if (g->needed[1])
    g->in_grads[1] =
        mpg_multiply(g, mpg_multiply(g, G, X), mpg_minus_from(g, 1, mpg_times(g, y, 2)));
}
void mpg_gradient_backward_tanh(mpg_gradient *g) { /* grad * (1 - y * y) */
  mpg_value y = g->inputs[1];
  if (g->needed[0]) g->in_grads[0] = mpg_emit2(g, MPG_OP__backward_tanh, NULL, G, y);
  if (g->needed[1]) g->in_grads[1] = mpg_multiply(g, mpg_multiply(g, G, X), mpg_times(g, y, -2));
}

/* --- One array -------------------------------------------------------------------------------- */

/* Defines a gradient whose formula would lose precision in 16-bit dtypes. It is computed in
 * float32, so only the result is rounded to 16 bits. */
#define WIDE_GRADIENT(function, formula)                                     \
  void function(mpg_gradient *g) {                                           \
    mpg_value grad = mpg_widen(g, G), x = mpg_widen(g, X);                   \
    g->in_grads[0] = mpg_emit_cast(g, formula, mpg_value_desc(g, X)->dtype); \
  }

UNARY_GRADIENT(mpg_gradient_identity, G)
UNARY_GRADIENT(mpg_gradient_make_loss, mpg_emit_full_like(g, X, 1))
UNARY_GRADIENT(mpg_gradient_abs, mpg_multiply(g, G, unary(g, MPG_OP_sign, X)))
UNARY_GRADIENT(mpg_gradient_negative, negative(g, G))
UNARY_GRADIENT(mpg_gradient_square, mpg_multiply(g, G, mpg_times(g, X, 2)))
UNARY_GRADIENT(mpg_gradient_sqrt, mpg_times(g, mpg_divide(g, G, Y), 0.5))
/* In rsqrt and rcbrt, the order of operations avoids overflow unless the result itself
 * overflows. */
UNARY_GRADIENT(mpg_gradient_rsqrt, mpg_divide(g, mpg_multiply(g, mpg_times(g, G, -0.5), Y), X))
UNARY_GRADIENT(mpg_gradient_cbrt, mpg_divide(g, G, mpg_times(g, square(g, Y), 3)))
UNARY_GRADIENT(mpg_gradient_rcbrt, mpg_divide(g, mpg_multiply(g, mpg_times(g, G, -1.0 / 3), Y), X))
UNARY_GRADIENT(mpg_gradient_reciprocal, negative(g, mpg_multiply(g, G, square(g, Y))))
UNARY_GRADIENT(mpg_gradient_exp, mpg_multiply(g, G, Y))
UNARY_GRADIENT(mpg_gradient_expm1, mpg_multiply(g, G, unary(g, MPG_OP_exp, X)))
UNARY_GRADIENT(mpg_gradient_log, mpg_divide(g, G, X))
UNARY_GRADIENT(mpg_gradient_log2, mpg_times(g, mpg_divide(g, G, X), 1 / M_LN2))
UNARY_GRADIENT(mpg_gradient_log10, mpg_times(g, mpg_divide(g, G, X), 1 / M_LN10))
UNARY_GRADIENT(mpg_gradient_log1p, mpg_divide(g, G, mpg_plus(g, X, 1)))
UNARY_GRADIENT(mpg_gradient_sin, mpg_multiply(g, G, unary(g, MPG_OP_cos, X)))
UNARY_GRADIENT(mpg_gradient_cos, negative(g, mpg_multiply(g, G, unary(g, MPG_OP_sin, X))))
UNARY_GRADIENT(mpg_gradient_tan, mpg_multiply(g, G, mpg_plus(g, square(g, Y), 1)))
WIDE_GRADIENT(mpg_gradient_arcsin,
              mpg_multiply(g, grad, unary(g, MPG_OP_rsqrt, mpg_minus_from(g, 1, square(g, x)))))
WIDE_GRADIENT(mpg_gradient_arccos,
              negative(g, mpg_multiply(g, grad,
                                       unary(g, MPG_OP_rsqrt, mpg_minus_from(g, 1, square(g, x))))))
WIDE_GRADIENT(mpg_gradient_arctan, mpg_divide(g, grad, mpg_plus(g, square(g, x), 1)))
UNARY_GRADIENT(mpg_gradient_sinh, mpg_multiply(g, G, unary(g, MPG_OP_cosh, X)))
UNARY_GRADIENT(mpg_gradient_cosh, mpg_multiply(g, G, unary(g, MPG_OP_sinh, X)))
UNARY_GRADIENT(mpg_gradient_tanh, mpg_emit2(g, MPG_OP__backward_tanh, NULL, G, Y))
WIDE_GRADIENT(mpg_gradient_arcsinh,
              mpg_multiply(g, grad, unary(g, MPG_OP_rsqrt, mpg_plus(g, square(g, x), 1))))
WIDE_GRADIENT(mpg_gradient_arccosh,
              mpg_multiply(g, grad, unary(g, MPG_OP_rsqrt, mpg_plus(g, square(g, x), -1))))
WIDE_GRADIENT(mpg_gradient_arctanh, mpg_divide(g, grad, mpg_minus_from(g, 1, square(g, x))))
UNARY_GRADIENT(mpg_gradient_degrees, mpg_times(g, G, 180 / M_PI))
UNARY_GRADIENT(mpg_gradient_radians, mpg_times(g, G, M_PI / 180))
WIDE_GRADIENT(mpg_gradient_erf,
              mpg_times(g, mpg_multiply(g, grad, unary(g, MPG_OP_exp, negative(g, square(g, x)))),
                        M_2_SQRTPI))
UNARY_GRADIENT(mpg_gradient_erfinv,
               mpg_times(g, mpg_multiply(g, G, unary(g, MPG_OP_exp, square(g, Y))), 1 / M_2_SQRTPI))
UNARY_GRADIENT(mpg_gradient_gamma,
               mpg_multiply(g, G, mpg_multiply(g, Y, unary(g, MPG_OP__digamma, X))))
UNARY_GRADIENT(mpg_gradient_gammaln, mpg_multiply(g, G, unary(g, MPG_OP__digamma, X)))
UNARY_GRADIENT(mpg_gradient_digamma, mpg_multiply(g, G, unary(g, MPG_OP__trigamma, X)))
UNARY_GRADIENT(mpg_gradient_relu, mpg_emit2(g, MPG_OP__backward_relu, NULL, G, Y))
UNARY_GRADIENT(mpg_gradient_sigmoid, mpg_emit2(g, MPG_OP__backward_sigmoid, NULL, G, Y))
UNARY_GRADIENT(mpg_gradient_softrelu, mpg_multiply(g, G, unary(g, MPG_OP_sigmoid, X)))
/* -expm1(y) = 1 - sigmoid(x) */
UNARY_GRADIENT(mpg_gradient_log_sigmoid, negative(g, mpg_multiply(g, G, unary(g, MPG_OP_expm1, Y))))
WIDE_GRADIENT(mpg_gradient_softsign,
              mpg_divide(g, grad, square(g, mpg_plus(g, unary(g, MPG_OP_abs, x), 1))))

/* Derivative of mish(x) = x * t with t = tanh(softrelu(x)): t + x * (1 - t * t) * sigmoid(x) */
static mpg_value slope_of_mish(mpg_gradient *g, mpg_value x) {
  mpg_value t = unary(g, MPG_OP_tanh, unary(g, MPG_OP__softrelu, x));
  return mpg_add(
      g, t,
      mpg_multiply(
          g, x, mpg_multiply(g, unary(g, MPG_OP_sigmoid, x), mpg_minus_from(g, 1, square(g, t)))));
}
WIDE_GRADIENT(mpg_gradient_mish, mpg_multiply(g, grad, slope_of_mish(g, x)))
/* The slope is alpha if 0 < result < 1, otherwise 0. */
void mpg_gradient_hard_sigmoid(mpg_gradient *g) {
  const mpg_hard_sigmoid_params *params = g->params;
  mpg_value inside = mpg_multiply(g, scalar(g, MPG_OP__greater_scalar, Y, 0),
                                  scalar(g, MPG_OP__lesser_scalar, Y, 1));
  g->in_grads[0] = mpg_multiply(g, mpg_times(g, G, params->alpha), inside);
}
void mpg_gradient_clip(mpg_gradient *g) {
  const mpg_clip_params *params = g->params;
  mpg_value inside = mpg_multiply(g, scalar(g, MPG_OP__greater_equal_scalar, X, params->a_min),
                                  scalar(g, MPG_OP__lesser_equal_scalar, X, params->a_max));
  g->in_grads[0] = mpg_multiply(g, G, inside);
}
void mpg_gradient_quadratic(mpg_gradient *g) {
  const mpg_quadratic_params *params = g->params;
  g->in_grads[0] = mpg_multiply(g, G, mpg_plus(g, mpg_times(g, X, 2 * params->a), params->b));
}
UNARY_GRADIENT(mpg_gradient_div_sqrt_dim, unary(g, MPG_OP__contrib_div_sqrt_dim, G))

/* Computes the gradient from the result, so the input need not be saved. */
void mpg_gradient_activation(mpg_gradient *g) {
  const mpg_activation_params *params = g->params;
  switch (params->act_type) {
    case MPG_ACTIVATION_RELU:
      g->in_grads[0] = mpg_emit2(g, MPG_OP__backward_relu, NULL, G, Y);
      break;
    case MPG_ACTIVATION_SIGMOID:
      g->in_grads[0] = mpg_emit2(g, MPG_OP__backward_sigmoid, NULL, G, Y);
      break;
    case MPG_ACTIVATION_TANH:
      g->in_grads[0] = mpg_emit2(g, MPG_OP__backward_tanh, NULL, G, Y);
      break;
    case MPG_ACTIVATION_SOFTRELU: /* sigmoid(x) = 1 - exp(-y) */
      g->in_grads[0] = negative(g, mpg_multiply(g, G, unary(g, MPG_OP_expm1, negative(g, Y))));
      break;
    default: /* 1 / (1 + |x|) = 1 - |y| */
      g->in_grads[0] = mpg_multiply(g, G, square(g, mpg_minus_from(g, 1, unary(g, MPG_OP_abs, Y))));
      break;
  }
}

/* --- LeakyReLU -------------------------------------------------------------------------------- */

int mpg_arity_leaky_relu_inputs(const mpg_op *op, const void *params, int given) {
  (void)op, (void)given;
  return ((const mpg_leaky_relu_params *)params)->act_type == MPG_LEAKY_PRELU ? 2 : 1;
}

/* For rrelu, the random slopes are a second output, as in MXNet. */
int mpg_arity_leaky_relu_outputs(const mpg_op *op, const void *params, int given) {
  (void)op, (void)given;
  return ((const mpg_leaky_relu_params *)params)->act_type == MPG_LEAKY_RRELU ? 2 : 1;
}

/* Infers the shape of gamma: one value, one per channel, or one per row and channel. */
static mpg_status infer_gamma(mpg_infer *infer) {
  const mpg_shape *data = &infer->inputs[0].shape;
  mpg_shape *gamma = &infer->inputs[1].shape;
  MPG_TRY(mpg_infer_expect_dtype(infer, 1, infer->inputs[0].dtype));
  if (data->ndim == 0)
    return mpg_infer_fail(infer, "prelu requires data with at least one dimension");
  if (data->ndim < 0) return MPG_OK;
  int channels = data->ndim > 1 ? 1 : 0;
  if (gamma->ndim < 0) *gamma = (mpg_shape){.ndim = 1, .dims = {-1}};
  bool fits = gamma->ndim >= 1 && gamma->ndim <= channels + 1;
  for (int i = 0; fits && i < gamma->ndim; i++) {
    int64_t size = data->dims[channels + 1 - gamma->ndim + i];
    if (gamma->dims[i] < 0) gamma->dims[i] = size;
    fits = gamma->dims[i] == size || gamma->dims[i] == 1 || size < 0;
  }
  if (fits) return MPG_OK;
  return mpg_infer_fail(infer,
                        "gamma must have one value, one for each of the %lld channels, or one for "
                        "each channel of each row",
                        (long long)data->dims[channels]);
}

mpg_status mpg_infer_leaky_relu(mpg_infer *infer) {
  const mpg_leaky_relu_params *params = infer->params;
  mpg_desc *data = &infer->inputs[0];
  if (params->act_type == MPG_LEAKY_PRELU) MPG_TRY(infer_gamma(infer));
  for (int i = 0; i < infer->num_outputs; i++) mpg_infer_set(infer, i, &data->shape, data->dtype);
  return MPG_OK;
}

void mpg_gradient_leaky_relu(mpg_gradient *g) {
  const mpg_leaky_relu_params *params = g->params;
  if (params->act_type == MPG_LEAKY_RRELU) {
    g->in_grads[0] = mpg_multiply(g, G, g->outputs[1]);
    return;
  }
  if (params->act_type != MPG_LEAKY_PRELU) {
    g->in_grads[0] = mpg_emit2(g, MPG_OP__backward_LeakyReLU, params, G, X);
    return;
  }
  mpg_value positive = scalar(g, MPG_OP__greater_scalar, X, 0);
  const mpg_shape *gamma = &mpg_value_desc(g, g->inputs[1])->shape;
  mpg_shape shape = mpg_prelu_shape(&mpg_value_desc(g, X)->shape, gamma), original = *gamma;
  if (g->needed[0]) {
    mpg_value slope = mpg_emit_reshape(g, g->inputs[1], &shape);
    g->in_grads[0] = mpg_emit3(g, MPG_OP_where, NULL, positive, G, mpg_multiply(g, G, slope));
  }
  if (g->needed[1]) { /* uses `where`, because 0 * inf is NaN */
    mpg_value below = mpg_emit3(g, MPG_OP_where, NULL, positive, mpg_emit_full_like(g, X, 0), X);
    g->in_grads[1] =
        mpg_emit_reshape(g, mpg_emit_sum_to(g, mpg_multiply(g, G, below), &shape), &original);
  }
}

/* The backward op computes grad * f'(x) for the activation f. f''(x) is:
 *   leaky      0
 *   elu, selu  a constant times exp(x) if x <= 0, otherwise 0
 *   gelu       (2 - x * x) times the normal density */
void mpg_gradient_backward_leaky_relu(mpg_gradient *g) {
  const mpg_leaky_relu_params *params = g->params;
  mpg_value x = g->inputs[1];
  if (g->needed[0]) g->in_grads[0] = mpg_emit2(g, MPG_OP__backward_LeakyReLU, params, G, x);
  if (!g->needed[1] || params->act_type == MPG_LEAKY_LEAKY) return;
  mpg_value both = mpg_multiply(g, G, X);
  if (params->act_type == MPG_LEAKY_GELU) {
    mpg_value density = mpg_times(g, unary(g, MPG_OP_exp, mpg_times(g, square(g, x), -0.5)),
                                  0.39894228040143267794);
    g->in_grads[1] =
        mpg_multiply(g, both, mpg_multiply(g, density, mpg_minus_from(g, 2, square(g, x))));
    return;
  }
  double scale = params->act_type == MPG_LEAKY_ELU
                     ? params->slope
                     : 1.0507009873554804934193349852946 * 1.6732632423543772848170429916717;
  mpg_value below = mpg_multiply(g, scalar(g, MPG_OP__lesser_equal_scalar, x, 0),
                                 unary(g, MPG_OP_exp, scalar(g, MPG_OP__minimum_scalar, x, 0)));
  g->in_grads[1] = mpg_times(g, mpg_multiply(g, both, below), scale);
}
