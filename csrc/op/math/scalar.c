/* Gradients of ops on an array and a number. */
#include <math.h>

#include "op/formula/arithmetic.h"
#include "op/infer.h"

#define G (g->out_grads[0])
#define X (g->inputs[0])
#define Y (g->outputs[0])
#define NUMBER (((const mpg_scalar_params *)g->params)->scalar)

void mpg_gradient_mul_scalar(mpg_gradient *g) {
  g->in_grads[0] = mpg_emit_scalar(g, MPG_OP__mul_scalar, G, NUMBER);
}
void mpg_gradient_gradient_multiplier(mpg_gradient *g) {
  g->in_grads[0] = mpg_emit_scalar(g, MPG_OP__mul_scalar, G, NUMBER);
}
void mpg_gradient_div_scalar(mpg_gradient *g) {
  g->in_grads[0] = mpg_emit_scalar(g, MPG_OP__div_scalar, G, NUMBER);
}
void mpg_gradient_rdiv_scalar(mpg_gradient *g) { /* -s / (x * x) = -y / x */
  g->in_grads[0] = mpg_emit1(g, MPG_OP_negative, NULL, mpg_divide(g, mpg_multiply(g, G, Y), X));
}
void mpg_gradient_mod_scalar(mpg_gradient *g) { /* integers have no gradient, as in MXNet */
  if (mpg_dtype_is_float(mpg_value_desc(g, G)->dtype)) g->in_grads[0] = G;
}
void mpg_gradient_rmod_scalar(mpg_gradient *g) { /* s - x * floor(s / x) */
  if (!mpg_dtype_is_float(mpg_value_desc(g, G)->dtype)) return;
  mpg_value whole =
      mpg_emit1(g, MPG_OP_floor, NULL, mpg_emit_scalar(g, MPG_OP__rdiv_scalar, X, NUMBER));
  g->in_grads[0] = mpg_emit1(g, MPG_OP_negative, NULL, mpg_multiply(g, G, whole));
}
void mpg_gradient_power_scalar(mpg_gradient *g) {
  double p = NUMBER;
  if (p == 0) return;
  mpg_value less = p == 2 ? X : mpg_emit_scalar(g, MPG_OP__power_scalar, X, p - 1);
  g->in_grads[0] = mpg_multiply(g, G, mpg_emit_scalar(g, MPG_OP__mul_scalar, less, p));
}
void mpg_gradient_rpower_scalar(mpg_gradient *g) {
  g->in_grads[0] = mpg_emit_scalar(g, MPG_OP__mul_scalar, mpg_multiply(g, G, Y), log(NUMBER));
}
void mpg_gradient_maximum_scalar(mpg_gradient *g) {
  g->in_grads[0] = mpg_multiply(g, G, mpg_emit_scalar(g, MPG_OP__greater_equal_scalar, X, NUMBER));
}
void mpg_gradient_minimum_scalar(mpg_gradient *g) {
  g->in_grads[0] = mpg_multiply(g, G, mpg_emit_scalar(g, MPG_OP__lesser_equal_scalar, X, NUMBER));
}
void mpg_gradient_hypot_scalar(mpg_gradient *g) {
  g->in_grads[0] = mpg_divide(g, mpg_multiply(g, G, X), Y);
}
void mpg_gradient_smooth_l1(mpg_gradient *g) { /* s^2 x, clipped to [-1, 1] */
  mpg_clip_params bounds = {.a_min = -1, .a_max = 1};
  mpg_value slope = mpg_emit_scalar(g, MPG_OP__mul_scalar, X, NUMBER * NUMBER);
  g->in_grads[0] = mpg_multiply(g, G, mpg_emit1(g, MPG_OP_clip, &bounds, slope));
}
