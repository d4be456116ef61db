/* Helpers for gradient formulas. */
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "op/infer.h"

void mpg_gradient_none(mpg_gradient *g) { (void)g; }

void mpg_gradient_missing(mpg_gradient *g) {
  bool second = strncmp(g->op->name, "_backward_", strlen("_backward_")) == 0;
  mpg_gradient_fail(g, "has no gradient; compute it under autograd.pause(), or apply BlockGrad %s",
                    second ? "to the gradient it computes; second-order gradients are not supported"
                           : "to its inputs");
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

void mpg_emit_all(mpg_gradient *g, mpg_op_id id, const void *params, int num_inputs,
                  const mpg_value *inputs, int room, mpg_value *outputs) {
  const mpg_op *op = mpg_op_get(id);
  int num_outputs = mpg_op_num_outputs(op, params, num_inputs);
  for (int i = 0; i < num_outputs && i < room; i++) outputs[i] = MPG_NO_VALUE;
  if (g->status != MPG_OK) return;
  if (num_outputs > room) {
    mpg_gradient_fail(g, "internal: its formula has room for %d of the %d outputs of %s", room,
                      num_outputs, op->name);
    return;
  }
  for (int i = 0; i < num_inputs; i++) {
    if (mpg_has_value(inputs[i])) continue;
    mpg_gradient_fail(g, "internal: its gradient calls %s with a missing input %d", op->name, i);
    return;
  }
  mpg_value like = num_inputs ? inputs[0] : g->num_inputs ? g->inputs[0] : g->outputs[0];
  g->status = g->builder->emit(g->builder, op, params, inputs, num_inputs, like, outputs);
}

mpg_value mpg_emit(mpg_gradient *g, mpg_op_id op, const void *params, int num_inputs,
                   const mpg_value *inputs) {
  mpg_value outputs[MPG_MAX_OUTPUTS];
  mpg_emit_all(g, op, params, num_inputs, inputs, MPG_MAX_OUTPUTS, outputs);
  return outputs[0];
}

mpg_value mpg_emit1(mpg_gradient *g, mpg_op_id op, const void *params, mpg_value a) {
  return mpg_emit(g, op, params, 1, &a);
}

mpg_value mpg_emit2(mpg_gradient *g, mpg_op_id op, const void *params, mpg_value a, mpg_value b) {
  return mpg_emit(g, op, params, 2, (mpg_value[]){a, b});
}

mpg_value mpg_emit3(mpg_gradient *g, mpg_op_id op, const void *params, mpg_value a, mpg_value b,
                    mpg_value c) {
  return mpg_emit(g, op, params, 3, (mpg_value[]){a, b, c});
}

void mpg_gradient_written_out(mpg_gradient *g, const mpg_written_out *forward) {
  enum { FEW = 64 };
  mpg_value few[4 * FEW], *work = few;
  int num_inputs = forward->num_inputs, num_all = num_inputs + forward->num_outputs;
  if (g->status != MPG_OK) return;
  if (num_all > FEW && !(work = mpg_malloc((size_t)num_all * 4 * sizeof *work))) {
    g->status = mpg_out_of_host_memory((size_t)num_all * sizeof *work);
    return;
  }
  mpg_value *given = work, *heads = given + num_all, *head_grads = heads + num_all,
            *gradients = head_grads + num_all;
  mpg_builder *builder = g->builder;
  uint32_t first = builder->next(builder);
  int num_heads = 0;
  for (int i = 0; i < num_all; i++) { /* views, so that an array passed twice becomes two values */
    int input = i < num_inputs ? forward->inputs[i] : forward->out_grads[i - num_inputs];
    given[i] = input < 0 ? mpg_emit_full_like(g, g->inputs[-1 - input], 0)
                         : mpg_emit_view(g, g->inputs[input]);
  }
  forward->emit(g, given, heads);
  if (g->status == MPG_OK)
    g->status = builder->differentiate(builder, first, heads, given + num_inputs,
                                       forward->num_outputs, given, num_inputs, gradients);
  for (int i = 0; i < g->num_outputs && i < num_inputs && g->status == MPG_OK; i++) {
    if (!mpg_has_value(g->out_grads[i]) || !mpg_has_value(gradients[i])) continue;
    heads[num_heads] = gradients[i];
    head_grads[num_heads++] = g->out_grads[i];
  }
  if (g->status == MPG_OK)
    g->status = builder->differentiate(builder, first, heads, head_grads, num_heads, given, num_all,
                                       gradients);
  for (int i = 0; i < num_all && g->status == MPG_OK; i++) {
    int input = i < num_inputs ? forward->inputs[i] : forward->out_grads[i - num_inputs];
    if (input >= 0) g->in_grads[input] = gradients[i];
  }
  if (work != few) mpg_free(work);
}
