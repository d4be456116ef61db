/* Casts the inputs of op calls for automatic mixed precision. */
#include "autograd/mixed_precision.h"

#include <string.h>

#include "base/memory.h"
#include "op/precision/precision.h"

enum { FEW = 16 };

static mpg_dtype target_of(const mpg_op *op, const void *params, mpg_array *const *inputs,
                           int num_inputs, mpg_array *const *out) {
  mpg_dtype few[FEW] = {MPG_DTYPE_NONE}, *dtypes = few;
  if (num_inputs > FEW && !(dtypes = mpg_malloc((size_t)num_inputs * sizeof *dtypes)))
    return MPG_DTYPE_NONE; /* the call itself needs more memory and reports the failure */
  for (int i = 0; i < num_inputs; i++) dtypes[i] = mpg_array_desc(inputs[i])->dtype;
  mpg_dtype target = mpg_precision_target(op, params, dtypes, num_inputs,
                                          out ? mpg_array_desc(out[0])->dtype : MPG_DTYPE_NONE);
  if (dtypes != few) mpg_free(dtypes);
  return target;
}

static bool is_cast(const mpg_op *op, const void *params, mpg_array *const *inputs, int num_inputs,
                    int index, mpg_dtype target) {
  mpg_dtype dtype = mpg_array_desc(inputs[index])->dtype;
  return mpg_dtype_is_float(dtype) && dtype != target && !mpg_op_input_mutable(op, index) &&
         !mpg_precision_counts(op, params, index, num_inputs);
}

/* Sets *scaled to an allocated copy of a loss op's parameters, with its gradient scale multiplied
 * by the loss scale. */
static mpg_status scaled_loss(const mpg_op *op, const void *params, const mpg_trace *trace,
                              void **scaled) {
  int index = mpg_params_find(op->params, "grad_scale");
  MPG_ASSERT(index >= 0 && params);
  if (trace)
    return mpg_fail(MPG_NOT_IMPLEMENTED,
                    "%s: its gradient cannot follow the changing loss scale in a hybridized block; "
                    "use a loss such as gluon.loss.SoftmaxCrossEntropyLoss",
                    op->name);
  if (!(*scaled = mpg_malloc(op->params->size))) return mpg_out_of_host_memory(op->params->size);
  memcpy(*scaled, params, op->params->size);
  *(double *)((char *)*scaled + op->params->params[index].offset) *= mpg_precision_loss_scale();
  return MPG_OK;
}

mpg_status mpg_precision_call(mpg_trace *trace, const mpg_op *op, const void *params,
                              mpg_array *const *inputs, int num_inputs, mpg_array *outputs,
                              int num_visible, mpg_array *const *out, bool separate) {
  mpg_dtype target = target_of(op, params, inputs, num_inputs, out);
  int casts = 0;
  for (int i = 0; target != MPG_DTYPE_NONE && i < num_inputs; i++)
    casts += is_cast(op, params, inputs, num_inputs, i, target);
  void *scaled = NULL;
  if (mpg_precision_scales(op)) MPG_TRY(scaled_loss(op, params, trace, &scaled));
  if (scaled) params = scaled;
  mpg_array *made = NULL;
  mpg_array **all = NULL;
  mpg_status status = MPG_OK;
  if (casts) {
    made = mpg_calloc((size_t)num_inputs, sizeof *made);
    all = mpg_malloc((size_t)num_inputs * sizeof *all);
    if (!made || !all)
      MPG_GOTO(mpg_out_of_host_memory((size_t)num_inputs * (sizeof *made + sizeof *all)));
    const mpg_cast_params cast = {.dtype = target};
    for (int i = 0; i < num_inputs; i++) {
      all[i] = inputs[i];
      for (int k = 0; k < i && all[i] == inputs[i]; k++)
        if (inputs[k] == inputs[i] && all[k] != inputs[k]) all[i] = all[k];
      if (all[i] != inputs[i] || !is_cast(op, params, inputs, num_inputs, i, target)) continue;
      MPG_GOTO(mpg_call_in(trace, mpg_op_get(MPG_OP_amp_cast), &cast, &inputs[i], 1, &made[i], 1,
                           NULL, false));
      all[i] = &made[i];
    }
    inputs = all;
  }
  status = mpg_call_in(trace, op, params, inputs, num_inputs, outputs, num_visible, out, separate);
fail:
  if (made) mpg_array_clear_all(made, (size_t)num_inputs);
  mpg_free(made);
  mpg_free(all);
  mpg_free(scaled);
  return status;
}
