/* Collectives: inference and gradients. */
#include "op/array/collective.h"

#include <stdio.h>

#include "base/memory.h"
#include "op/infer.h"

const char *mpg_collective_text(const mpg_device_id *places, int count) {
  mpg_text text = {0};
  for (int i = 0; i < count; i++)
    mpg_text_append(&text, "%s%s", i ? "," : "", mpg_device_id_text(places[i]).text);
  const char *interned = text.failed ? NULL : mpg_intern(mpg_text_string(&text));
  mpg_text_free(&text);
  return interned;
}

int mpg_arity_collective(const mpg_op *op, const void *params, int given) {
  (void)op;
  const mpg_collective_params *p = params;
  mpg_device_id places[MPG_MAX_SPANNED];
  if (p->kind == MPG_SUM_TO_ONE) return 1;
  if (p->kind != MPG_ONE_TO_ALL || !p->output_devices) return given;
  int count = mpg_collective_places(p->output_devices, places, MPG_MAX_SPANNED);
  return count ? count : given;
}

/* Gives output i the desc of input i (of input 0 if there is only one input), with the size of the
 * first axis divided by `parts` and multiplied by `times`. */
static mpg_status set_outputs(mpg_infer *infer, int times, int parts) {
  for (int i = 0; i < infer->num_outputs; i++) {
    mpg_desc desc = infer->inputs[i < infer->num_inputs ? i : 0];
    if (times != 1 || parts != 1) {
      if (desc.shape.ndim < 1)
        return mpg_infer_fail(infer, "the arrays have no axis to split or join along");
      if (desc.shape.dims[0] % parts)
        return mpg_infer_fail(infer, "%lld rows cannot be split into %d equal parts",
                              (long long)desc.shape.dims[0], parts);
      desc.shape.dims[0] = desc.shape.dims[0] / parts * times;
    }
    mpg_infer_set(infer, i, &desc.shape, desc.dtype);
  }
  return MPG_OK;
}

mpg_status mpg_infer_collective(mpg_infer *infer) {
  const mpg_collective_params *params = infer->params;
  mpg_device_id places[MPG_MAX_SPANNED];
  int n = infer->num_inputs;
  if (n > MPG_MAX_SPANNED || infer->num_outputs > MPG_MAX_SPANNED)
    return mpg_infer_fail(infer, "a collective can span at most %d arrays", MPG_MAX_SPANNED);
  if (params->input_devices &&
      mpg_collective_places(params->input_devices, places, MPG_MAX_SPANNED) != n)
    return mpg_infer_fail(infer, "input_devices='%s' must name one device for each input",
                          params->input_devices);
  if (params->output_devices &&
      mpg_collective_places(params->output_devices, places, MPG_MAX_SPANNED) != infer->num_outputs)
    return mpg_infer_fail(infer, "output_devices='%s' must name one device for each output",
                          params->output_devices);
  if (params->kind == MPG_ONE_TO_ALL && n != 1)
    return mpg_infer_fail(infer, "a broadcast must have one input");
  for (int i = 0; i < n; i++) {
    if (!mpg_shape_known(&infer->inputs[i].shape))
      return mpg_infer_fail(infer, "the shape of input %d is unknown", i);
    bool alike = infer->inputs[i].dtype == infer->inputs[0].dtype &&
                 (params->kind == MPG_EXCHANGE ||
                  mpg_shape_equal(&infer->inputs[i].shape, &infer->inputs[0].shape));
    if (!alike) return mpg_infer_fail(infer, "the arrays must have the same shape and dtype");
  }
  bool sums = params->kind == MPG_SUM_TO_ALL || params->kind == MPG_SUM_TO_ONE ||
              params->kind == MPG_SUM_TO_PARTS;
  if (sums && infer->inputs[0].dtype == MPG_BOOL)
    return mpg_infer_fail(infer, "bool arrays cannot be summed");
  switch ((mpg_collective_kind)params->kind) {
    case MPG_SUM_TO_PARTS: return set_outputs(infer, 1, n);
    case MPG_JOIN_TO_ALL: return set_outputs(infer, n, 1);
    default: return set_outputs(infer, 1, 1);
  }
}

/* Emits the adjoint collective, such as reduce for broadcast. Missing output gradients become
 * zeros, because a collective needs an array from every device. */
void mpg_gradient_collective(mpg_gradient *g) {
  static const int32_t conjugate[] = {
      [MPG_SUM_TO_ALL] = MPG_SUM_TO_ALL,    [MPG_SUM_TO_ONE] = MPG_ONE_TO_ALL,
      [MPG_ONE_TO_ALL] = MPG_SUM_TO_ONE,    [MPG_SUM_TO_PARTS] = MPG_JOIN_TO_ALL,
      [MPG_JOIN_TO_ALL] = MPG_SUM_TO_PARTS, [MPG_EXCHANGE] = MPG_EXCHANGE};
  const mpg_collective_params *params = g->params;
  mpg_collective_params back = {.kind = conjugate[params->kind],
                                .input_devices = params->output_devices,
                                .output_devices = params->input_devices};
  mpg_value *grads = mpg_malloc((size_t)(g->num_outputs + 1) * sizeof *grads);
  if (!grads) {
    g->status = mpg_out_of_host_memory((size_t)g->num_outputs * sizeof *grads);
    return;
  }
  for (int i = 0; i < g->num_outputs; i++)
    grads[i] =
        mpg_has_value(g->out_grads[i]) ? g->out_grads[i] : mpg_emit_full_like(g, g->outputs[i], 0);
  if (g->status == MPG_OK)
    mpg_emit_all(g, MPG_OP__collective, &back, g->num_outputs, grads, g->num_inputs, g->in_grads);
  mpg_free(grads);
}
