/* Ops on an array and a number: gradients. */
#include <math.h>

#include "op/formula/arithmetic.h"
#include "op/infer.h"

#define G (g->out_grads[0])
#define X (g->inputs[0])
#define Y (g->outputs[0])
#define NUMBER (((const mpg_scalar_params *)g->params)->scalar)
#define GRADIENT(name) void mpg_gradient_##name(mpg_gradient *g)

GRADIENT(mul_scalar) { g->in_grads[0] = mpg_emit_scalar(g, MPG_OP__mul_scalar, G, NUMBER); }
GRADIENT(gradient_multiplier) {
  g->in_grads[0] = mpg_emit_scalar(g, MPG_OP__mul_scalar, G, NUMBER);
}
GRADIENT(div_scalar) { g->in_grads[0] = mpg_emit_scalar(g, MPG_OP__div_scalar, G, NUMBER); }
GRADIENT(rdiv_scalar) { /* -s / (x * x) = -y / x */
  g->in_grads[0] = mpg_emit1(g, MPG_OP_negative, NULL, mpg_divide(g, mpg_multiply(g, G, Y), X));
}
GRADIENT(mod_scalar) { /* integers have no gradient, as in MXNet */
  if (mpg_dtype_is_float(mpg_value_desc(g, G)->dtype)) g->in_grads[0] = G;
}
GRADIENT(rmod_scalar) { /* s - x * floor(s / x) */
  if (!mpg_dtype_is_float(mpg_value_desc(g, G)->dtype)) return;
  mpg_value whole =
      mpg_emit1(g, MPG_OP_floor, NULL, mpg_emit_scalar(g, MPG_OP__rdiv_scalar, X, NUMBER));
  g->in_grads[0] = mpg_emit1(g, MPG_OP_negative, NULL, mpg_multiply(g, G, whole));
}
GRADIENT(power_scalar) {
  double p = NUMBER;
  if (p == 0) return;
  mpg_value less = p == 2 ? X : mpg_emit_scalar(g, MPG_OP__power_scalar, X, p - 1);
  g->in_grads[0] = mpg_multiply(g, G, mpg_emit_scalar(g, MPG_OP__mul_scalar, less, p));
}
GRADIENT(rpower_scalar) {
  g->in_grads[0] = mpg_emit_scalar(g, MPG_OP__mul_scalar, mpg_multiply(g, G, Y), log(NUMBER));
}
GRADIENT(maximum_scalar) {
  g->in_grads[0] = mpg_multiply(g, G, mpg_emit_scalar(g, MPG_OP__greater_equal_scalar, X, NUMBER));
}
GRADIENT(minimum_scalar) {
  g->in_grads[0] = mpg_multiply(g, G, mpg_emit_scalar(g, MPG_OP__lesser_equal_scalar, X, NUMBER));
}
GRADIENT(hypot_scalar) { g->in_grads[0] = mpg_divide(g, mpg_multiply(g, G, X), Y); }
GRADIENT(smooth_l1) { /* s^2 x, clipped to [-1, 1] */
  mpg_clip_params bounds = {.a_min = -1, .a_max = 1};
  mpg_value slope = mpg_emit_scalar(g, MPG_OP__mul_scalar, X, NUMBER * NUMBER);
  g->in_grads[0] = mpg_multiply(g, G, mpg_emit1(g, MPG_OP_clip, &bounds, slope));
}
