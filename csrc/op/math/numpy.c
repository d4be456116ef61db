/* Gradients and compositions of NumPy's elementwise ops (op/defs/numpy.def). */
#include <math.h>

#include "op/formula/arithmetic.h"
#include "op/infer.h"

#define G (g->out_grads[0])
#define X (g->inputs[0])
#define Y (g->outputs[0])
#define NUMBER (((const mpg_scalar_params *)g->params)->scalar)

/* Sets the gradient of input `i` to `value`, summed over the axes along which the input is
 * broadcast. */
static void give(mpg_gradient *g, int i, mpg_value value) {
  if (g->status != MPG_OK) return;
  g->in_grads[i] = mpg_emit_sum_to(g, value, &mpg_value_desc(g, g->inputs[i])->shape);
}
static mpg_value negative(mpg_gradient *g, mpg_value a) {
  return mpg_emit1(g, MPG_OP_negative, NULL, a);
}
/* Emits 1 or -1: the sign bit of each element. */
static mpg_value sign_bit(mpg_gradient *g, mpg_value a) {
  return mpg_emit_scalar(g, MPG_OP__rcopysign_scalar, a, 1);
}

/* The derivatives of arctan2(a, b) are b / h^2 and -a / h^2, where h is the hypotenuse. They are
 * computed without h^2, which could overflow or underflow. */
void mpg_gradient_arctan2(mpg_gradient *g) {
  mpg_value a = g->inputs[0], b = g->inputs[1];
  mpg_value h = mpg_binary(g, MPG_OP__hypot, MPG_OP_broadcast_hypot, a, b);
  mpg_value quotient = mpg_divide(g, G, h);
  if (g->needed[0]) give(g, 0, mpg_multiply(g, quotient, mpg_divide(g, b, h)));
  if (g->needed[1]) give(g, 1, negative(g, mpg_multiply(g, quotient, mpg_divide(g, a, h))));
}
/* Emits G * number / (x^2 + number^2). */
static mpg_value slope_of_arctan2(mpg_gradient *g, double number) {
  mpg_value h = mpg_emit_scalar(g, MPG_OP__hypot_scalar, X, number);
  return mpg_multiply(g, mpg_divide(g, G, h), mpg_over(g, number, h));
}
void mpg_gradient_arctan2_scalar(mpg_gradient *g) { g->in_grads[0] = slope_of_arctan2(g, NUMBER); }
void mpg_gradient_rarctan2_scalar(mpg_gradient *g) {
  g->in_grads[0] = negative(g, slope_of_arctan2(g, NUMBER));
}

/* The derivative is 1 if the signs of both operands agree, else -1. */
void mpg_gradient_copysign(mpg_gradient *g) {
  if (!g->needed[0]) return;
  mpg_value signs = mpg_multiply(g, sign_bit(g, X), sign_bit(g, g->inputs[1]));
  give(g, 0, mpg_multiply(g, G, signs));
}
void mpg_gradient_copysign_scalar(mpg_gradient *g) {
  g->in_grads[0] = mpg_multiply(g, mpg_times(g, G, copysign(1, NUMBER)), sign_bit(g, X));
}

void mpg_gradient_ldexp(mpg_gradient *g) {
  if (g->needed[0]) give(g, 0, mpg_emit2(g, MPG_OP__ldexp, NULL, G, g->inputs[1]));
  if (g->needed[1]) give(g, 1, mpg_times(g, mpg_multiply(g, G, Y), M_LN2));
}
void mpg_gradient_ldexp_scalar(mpg_gradient *g) {
  g->in_grads[0] = mpg_emit_scalar(g, MPG_OP__ldexp_scalar, G, NUMBER);
}
void mpg_gradient_rldexp_scalar(mpg_gradient *g) {
  g->in_grads[0] = mpg_times(g, mpg_multiply(g, G, Y), M_LN2);
}

void mpg_compose_bitwise_not(mpg_gradient *g, const mpg_value *inputs, mpg_value *outputs) {
  outputs[0] = mpg_value_desc(g, inputs[0])->dtype == MPG_BOOL
                   ? mpg_emit1(g, MPG_OP_logical_not, NULL, inputs[0])
                   : mpg_emit_scalar(g, MPG_OP__bitwise_xor_scalar, inputs[0], -1);
}
