/* What gradient formulas are written with. */
#include <stdio.h>
#include <string.h>

#include "op/infer.h"

void mpg_gradient_none(mpg_gradient *g) { (void)g; }

void mpg_gradient_missing(mpg_gradient *g) {
  mpg_gradient_fail(g, "has no gradient; put what is computed with it under autograd.pause(), or use BlockGrad before it");
}

void mpg_gradient_fail(mpg_gradient *g, const char *format, ...) {
  if (g->status != MPG_OK) return;
  char message[512];
  va_list args;
  va_start(args, format);
  vsnprintf(message, sizeof message, format, args);
  va_end(args);
  g->status = mpg_fail(MPG_ERROR, "%s: %s", g->op->name, message);
}

mpg_status mpg_op_gradient(mpg_gradient *g) {
  g->op->gradient(g);
  return g->status;
}

void mpg_emit_all(mpg_gradient *g, mpg_op_id id, const void *params, int num_inputs, const mpg_value *inputs, mpg_value *outputs) {
  const mpg_op *op = mpg_op_get(id);
  int num_outputs = mpg_op_num_outputs(op, params, num_inputs);
  for (int i = 0; i < num_outputs; i++) outputs[i] = MPG_NO_VALUE;
  if (g->status != MPG_OK) return;
  for (int i = 0; i < num_inputs; i++) {
    if (mpg_has_value(inputs[i])) continue;
    mpg_gradient_fail(g, "internal: its gradient calls %s with a missing input %d", op->name, i);
    return;
  }
  mpg_value like = num_inputs ? inputs[0] : g->num_inputs ? g->inputs[0] : g->outputs[0];
  g->status = g->builder->emit(g->builder, op, params, inputs, num_inputs, like, outputs);
}

mpg_value mpg_emit(mpg_gradient *g, mpg_op_id op, const void *params, int num_inputs, const mpg_value *inputs) {
  mpg_value outputs[MPG_MAX_OUTPUTS];
  mpg_emit_all(g, op, params, num_inputs, inputs, outputs);
  return outputs[0];
}

mpg_value mpg_emit1(mpg_gradient *g, mpg_op_id op, const void *params, mpg_value a) { return mpg_emit(g, op, params, 1, &a); }

mpg_value mpg_emit2(mpg_gradient *g, mpg_op_id op, const void *params, mpg_value a, mpg_value b) {
  return mpg_emit(g, op, params, 2, (mpg_value[]){a, b});
}

mpg_value mpg_emit3(mpg_gradient *g, mpg_op_id op, const void *params, mpg_value a, mpg_value b, mpg_value c) {
  return mpg_emit(g, op, params, 3, (mpg_value[]){a, b, c});
}
