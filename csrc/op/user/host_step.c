/* Host steps: user code inside a pipeline's stage (autograd.Function, CustomOp, control flow).
 *
 * The op only describes the step. Its kernel does nothing; once the step's segment is queued, the
 * thread that submits the pipeline runs the code (compile/pipeline/host_steps.c). The gradient is
 * the same op with `backward`, so the code's own gradient runs in the same way. */
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "op/batching/batching.h"
#include "op/infer.h"

/* Reads one array of `text`, such as "float32(2, 3)". Returns the text after it, or NULL if it is
 * invalid. */
static const char *parse_desc(const char *text, mpg_desc *desc) {
  char name[16];
  size_t length = strcspn(text, "(");
  if (length >= sizeof name || !text[length]) return NULL;
  memcpy(name, text, length);
  name[length] = 0;
  *desc = (mpg_desc){.dtype = mpg_dtype_from_name(name)};
  if (desc->dtype == MPG_DTYPE_NONE) return NULL;
  for (text += length + 1; *text != ')'; text += strspn(text, ", ")) {
    char *end;
    long long size = strtoll(text, &end, 10);
    if (end == text || desc->shape.ndim == MPG_MAX_NDIM) return NULL;
    desc->shape.dims[desc->shape.ndim++] = size;
    text = end;
  }
  return text + 1;
}

int mpg_arity_host_step(const mpg_op *op, const void *params, int given) {
  (void)op, (void)given;
  int count = 0;
  const char *text = ((const mpg_host_step_params *)params)->outputs;
  for (; text && *text; text++) count += *text == ')'; /* outputs='None' is NULL */
  return count;
}

mpg_status mpg_infer_host_step(mpg_infer *infer) {
  const mpg_host_step_params *params = infer->params;
  const char *text = params->outputs;
  for (int i = 0; i < infer->num_outputs; i++) {
    mpg_desc desc;
    size_t bytes;
    text = parse_desc(text, &desc);
    if (!text) return mpg_infer_fail(infer, "outputs='%s' is invalid", params->outputs);
    MPG_TRY(mpg_shape_check(&desc.shape, desc.dtype, &bytes));
    mpg_infer_set(infer, i, &desc.shape, desc.dtype);
  }
  return MPG_OK;
}

void mpg_gradient_host_step(mpg_gradient *g) {
  const mpg_host_step_params *params = g->params;
  mpg_host_step_params back = {.code = params->code,
                               .number = params->number,
                               .backward = true,
                               .stacked_inputs = params->stacked_outputs,
                               .stacked_outputs = params->stacked_inputs};
  mpg_text text = {0};
  if (params->backward) {
    mpg_gradient_fail(g, "the gradient of %s is not differentiable", params->code);
    return;
  }
  mpg_value *work = mpg_calloc((size_t)(g->num_outputs + g->num_inputs) + 1, sizeof *work);
  if (!work) {
    g->status = mpg_out_of_host_memory((size_t)g->num_outputs * sizeof *work);
    return;
  }
  mpg_value *in_grads = work + g->num_outputs;
  for (int i = 0; i < g->num_outputs; i++) /* user code gets a gradient for every output */
    work[i] =
        mpg_has_value(g->out_grads[i]) ? g->out_grads[i] : mpg_emit_full_like(g, g->outputs[i], 0);
  for (int i = 0; i < g->num_inputs; i++) {
    const mpg_desc *desc = mpg_value_desc(g, g->inputs[i]);
    char shape[MPG_SHAPE_TEXT_SIZE];
    mpg_text_append(&text, "%s%s", mpg_dtype_name(desc->dtype),
                    mpg_shape_text(&desc->shape, shape, sizeof shape));
  }
  back.outputs = text.failed ? NULL : mpg_intern(mpg_text_string(&text));
  if (!back.outputs && g->status == MPG_OK) g->status = mpg_out_of_host_memory(text.length);
  if (g->status == MPG_OK)
    mpg_emit_all(g, MPG_OP__host_step, &back, g->num_outputs, work, g->num_inputs, in_grads);
  for (int i = 0; g->status == MPG_OK && i < g->num_inputs; i++)
    if (g->needed[i]) g->in_grads[i] = in_grads[i];
  mpg_text_free(&text);
  mpg_free(work);
}

/* True if an undivided input has the shape and dtype of the output. An example is a loop variable,
 * whose values before and after the loop are an input and an output. */
static bool is_kept(const mpg_batching *b, int output) {
  for (int i = 0; i < b->num_inputs; i++)
    if (!mpg_batching_divided(b, i) && b->inputs[i].dtype == b->outputs[output].dtype &&
        mpg_shape_equal(&b->inputs[i].shape, &b->outputs[output].shape))
      return true;
  return false;
}

/* User code is expected to compute each row on its own. An output must have the rows along the same
 * axis as the divided inputs, or be an undivided input with other contents. Stacked inputs and
 * outputs have the rows one axis later, because axis 0 has the steps of a loop. A loop over the
 * rows (axis -1) has no other divided inputs. */
mpg_status mpg_batching_host_step(mpg_batching *b) {
  const mpg_host_step_params *p = b->params;
  int first = mpg_batching_first(b), axis = b->in[first].axis - (first < p->stacked_inputs);
  int64_t rows = b->inputs[first].shape.dims[b->in[first].axis];
  for (int i = 0; i < b->num_inputs; i++) {
    if (!mpg_batching_divided(b, i)) continue;
    int own = b->in[i].axis - (i < p->stacked_inputs);
    if (own != axis || b->in[i].outer != b->in[first].outer || b->in[i].inner != b->in[first].inner)
      return mpg_batching_fail(b, i, "its inputs have their rows in different orders");
  }
  for (int k = 0; k < b->num_outputs; k++) {
    const mpg_shape *shape = &b->outputs[k].shape;
    int own = axis + (k < p->stacked_outputs);
    if (own >= 0 && own < shape->ndim && shape->dims[own] == rows)
      mpg_batching_set(b, k, own, first);
    else if (!is_kept(b, k))
      return mpg_batching_fail(b, first, "its result %d does not have the rows along axis %d", k,
                               own);
  }
  return MPG_OK;
}
