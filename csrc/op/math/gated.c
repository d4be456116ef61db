/* silu, gelu and gated activations: gradients and compositions. */
#include <math.h>

#include "op/formula/arithmetic.h"
#include "op/math/activation.h"

#define G (g->out_grads[0])
#define X (g->inputs[0])

void mpg_gradient_silu(mpg_gradient *g) {
  g->in_grads[0] = mpg_emit2(g, MPG_OP__backward_silu, NULL, G, X);
}
void mpg_gradient_gelu_tanh(mpg_gradient *g) {
  g->in_grads[0] = mpg_emit2(g, MPG_OP__backward_gelu_tanh, NULL, G, X);
}

/* For second-order gradients: x * sigmoid(x) and x * sigmoid(u(x)). */
static void emit_silu(mpg_gradient *g, const mpg_value *inputs, mpg_value *outputs) {
  outputs[0] = mpg_multiply(g, inputs[0], mpg_emit1(g, MPG_OP_sigmoid, NULL, inputs[0]));
}
static void emit_gelu_tanh(mpg_gradient *g, const mpg_value *inputs, mpg_value *outputs) {
  const double slope = 2 * sqrt(2 / M_PI);
  mpg_value x = inputs[0], square = mpg_emit1(g, MPG_OP_square, NULL, x),
            u = mpg_multiply(g, x, mpg_plus(g, mpg_times(g, square, 0.044715 * slope), slope));
  outputs[0] = mpg_multiply(g, x, mpg_emit1(g, MPG_OP_sigmoid, NULL, u));
}

static const int data[] = {1}, grad[] = {0};
void mpg_gradient_backward_silu(mpg_gradient *g) {
  mpg_gradient_written_out(g, &(mpg_written_out){1, 1, data, grad, emit_silu});
}
void mpg_gradient_backward_gelu_tanh(mpg_gradient *g) {
  mpg_gradient_written_out(g, &(mpg_written_out){1, 1, data, grad, emit_gelu_tanh});
}

static mpg_value emit_gelu(mpg_gradient *g, mpg_value x) {
  mpg_leaky_relu_params params;
  mpg_params_defaults(mpg_op_get(MPG_OP_LeakyReLU)->params, &params);
  params.act_type = MPG_LEAKY_GELU;
  return mpg_emit1(g, MPG_OP_LeakyReLU, &params, x);
}

static mpg_value emit_gelu_quick(mpg_gradient *g, mpg_value x) {
  return mpg_multiply(g, x, mpg_emit1(g, MPG_OP_sigmoid, NULL, mpg_times(g, x, 1.702)));
}

void mpg_compose_gelu(mpg_gradient *g, const mpg_value *inputs, mpg_value *outputs) {
  const mpg_gelu_params *p = g->params;
  outputs[0] = p->approximate == MPG_GELU_TANH ? mpg_emit1(g, MPG_OP__gelu_tanh, NULL, inputs[0])
                                               : emit_gelu(g, inputs[0]);
}

void mpg_compose_gated(mpg_gradient *g, const mpg_value *inputs, mpg_value *outputs) {
  static const mpg_op_id ops[] = {[MPG_GATED_SILU] = MPG_OP_silu,
                                  [MPG_GATED_GELU_TANH] = MPG_OP__gelu_tanh,
                                  [MPG_GATED_RELU] = MPG_OP_relu,
                                  [MPG_GATED_SIGMOID] = MPG_OP_sigmoid};
  const mpg_gated_params *p = g->params;
  mpg_value gate = p->act == MPG_GATED_GELU         ? emit_gelu(g, inputs[0])
                   : p->act == MPG_GATED_GELU_QUICK ? emit_gelu_quick(g, inputs[0])
                                                    : mpg_emit1(g, ops[p->act], NULL, inputs[0]);
  outputs[0] = mpg_emit2(g, MPG_OP_elemwise_mul, NULL, gate, inputs[1]);
}
