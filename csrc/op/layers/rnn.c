/* Recurrent layers: inference and gradients. */
#include <string.h>

#include "op/infer.h"
#include "op/layers/rnn.h"

/* Computes the number of elements of the flat parameter vector. Returns false on overflow. */
static bool flat_elements(const mpg_rnn_size *s, int64_t *elements) {
  int64_t total = 0, rows = s->gates * s->hidden, weights;
  for (int layer = 0; layer < s->layers; layer++) {
    /* Columns of the input weight and of the state weight, plus one column for each of their
     * biases. */
    int64_t columns = mpg_rnn_layer_input(s, layer) + s->hidden + 2;
    if (__builtin_mul_overflow(rows, columns, &weights) ||
        __builtin_mul_overflow(weights, (int64_t)s->directions, &weights) ||
        __builtin_add_overflow(total, weights, &total))
      return false;
  }
  *elements = total;
  return true;
}

static mpg_status check_params(mpg_infer *infer, const mpg_rnn_params *params) {
  if (params->projection_size.present)
    return mpg_infer_fail(
        infer,
        "projection_size must be None; use gluon.rnn.LSTM(projection_size=...) for a projection");
  bool bounds = params->lstm_state_clip_min.present || params->lstm_state_clip_max.present;
  if (bounds && params->mode != MPG_RNN_LSTM)
    return mpg_infer_fail(infer, "lstm_state_clip_min and lstm_state_clip_max require mode='lstm'");
  if (params->lstm_state_clip_min.present && params->lstm_state_clip_max.present &&
      !(params->lstm_state_clip_min.value <= params->lstm_state_clip_max.value))
    return mpg_infer_fail(infer, "lstm_state_clip_min must be at most lstm_state_clip_max");
  if (params->state_size > INT32_MAX) return mpg_infer_fail(infer, "state_size is too large");
  return MPG_OK;
}

/* Infers everything except the weights. `states` is the index of the first state among the inputs.
 * If the data's shape is unknown, only dtypes are inferred and size->layers is 0. */
static mpg_status infer_common(mpg_infer *infer, int states, mpg_rnn_size *size) {
  const mpg_rnn_params *params = infer->params;
  MPG_TRY(check_params(infer, params));
  mpg_desc *data = &infer->inputs[0];
  int alike = infer->num_inputs - (params->use_sequence_length ? 1 : 0);
  for (int i = 1; i < alike; i++) MPG_TRY(mpg_infer_expect_dtype(infer, i, data->dtype));
  if (params->use_sequence_length && infer->inputs[alike].dtype == MPG_DTYPE_NONE)
    infer->inputs[alike].dtype = data->dtype;
  if (params->use_sequence_length && infer->inputs[alike].dtype == MPG_BOOL)
    return mpg_infer_fail(infer, "sequence_length must be numeric, not bool");
  if (!mpg_shape_known(&data->shape)) {
    *size = (mpg_rnn_size){0};
    for (int i = 0; i < infer->num_outputs; i++) infer->outputs[i].dtype = data->dtype;
    return MPG_OK;
  }
  if (data->shape.ndim != 3)
    return mpg_infer_fail(infer, "data must have 3 dimensions (time, batch, features)");
  *size = mpg_rnn_size_of(params, data->shape.dims[0], data->shape.dims[1], data->shape.dims[2]);
  mpg_shape state = {.ndim = 3,
                     .dims = {(int64_t)size->layers * size->directions, size->batch, size->hidden}};
  if (size->lengths)
    MPG_TRY(mpg_infer_expect_shape(infer, alike,
                                   &(mpg_shape){.ndim = 1, .dims = {data->shape.dims[1]}}));
  for (int i = 0; i < size->states; i++) MPG_TRY(mpg_infer_expect_shape(infer, states + i, &state));
  mpg_shape output = {.ndim = 3,
                      .dims = {size->time, size->batch, size->hidden * size->directions}};
  int count = 0;
  mpg_infer_set(infer, count++, &output, data->dtype);
  if (params->state_outputs)
    for (int i = 0; i < size->states; i++) mpg_infer_set(infer, count++, &state, data->dtype);
  mpg_shape reserve = {.ndim = 1};
  if (!mpg_rnn_reserve_elements(size, infer->train && params->p > 0, &reserve.dims[0]))
    return mpg_infer_fail(infer, "the shapes are too large");
  mpg_infer_set(infer, count, &reserve, data->dtype);
  return MPG_OK;
}

int mpg_arity_rnn(const mpg_op *op, const void *params, int given) {
  (void)op;
  (void)given;
  const mpg_rnn_params *rnn = params;
  return (rnn->mode == MPG_RNN_LSTM ? 4 : 3) + (rnn->use_sequence_length ? 1 : 0);
}

int mpg_arity_rnn_separate(const mpg_op *op, const void *params, int given) {
  (void)op;
  (void)given;
  const mpg_rnn_params *rnn = params;
  return 1 + (rnn->mode == MPG_RNN_LSTM ? 2 : 1) +
         4 * (int)rnn->num_layers * (rnn->bidirectional ? 2 : 1) +
         (rnn->use_sequence_length ? 1 : 0);
}

int mpg_arity_rnn_outputs(const mpg_op *op, const void *params, int given) {
  (void)op;
  (void)given;
  const mpg_rnn_params *rnn = params;
  return 2 + (rnn->state_outputs ? (rnn->mode == MPG_RNN_LSTM ? 2 : 1) : 0);
}

mpg_status mpg_infer_rnn(mpg_infer *infer) {
  mpg_rnn_size size;
  MPG_TRY(infer_common(infer, 2, &size));
  if (!size.layers) return MPG_OK;
  mpg_shape flat = {.ndim = 1};
  if (!flat_elements(&size, &flat.dims[0]))
    return mpg_infer_fail(infer, "the shapes are too large");
  return mpg_infer_expect_shape(infer, 1, &flat);
}

mpg_status mpg_infer_rnn_separate(mpg_infer *infer) {
  mpg_rnn_size size;
  MPG_TRY(infer_common(infer, 1, &size));
  if (!size.layers) return MPG_OK;
  int64_t rows = size.gates * size.hidden;
  int weight = 1 + size.states, bias = weight + 2 * size.layers * size.directions;
  for (int layer = 0; layer < size.layers; layer++)
    for (int direction = 0; direction < size.directions; direction++, weight += 2, bias += 2) {
      mpg_shape i2h = {.ndim = 2, .dims = {rows, mpg_rnn_layer_input(&size, layer)}};
      mpg_shape h2h = {.ndim = 2, .dims = {rows, size.hidden}}, b = {.ndim = 1, .dims = {rows}};
      MPG_TRY(mpg_infer_expect_shape(infer, weight, &i2h));
      MPG_TRY(mpg_infer_expect_shape(infer, weight + 1, &h2h));
      MPG_TRY(mpg_infer_expect_shape(infer, bias, &b));
      MPG_TRY(mpg_infer_expect_shape(infer, bias + 1, &b));
    }
  return MPG_OK;
}

enum { MPG_RNN_RESULTS = 4 }; /* output, up to two states, reserve */

/* Returns the number of forward inputs among the inputs of _rnn_backward. These come first,
 * followed by the output, the reserve, and the gradients of the output and (if state_outputs) of
 * the states. */
static int backward_forward_inputs(const mpg_rnn_backward_params *params) {
  const mpg_rnn_params *rnn = (const mpg_rnn_params *)params;
  return params->flat ? mpg_arity_rnn(NULL, rnn, 0) : mpg_arity_rnn_separate(NULL, rnn, 0);
}

/* Returns the number of gradients: one per forward input except the sequence lengths. */
static int num_gradients(const mpg_rnn_backward_params *params) {
  return backward_forward_inputs(params) - (params->use_sequence_length ? 1 : 0);
}

int mpg_arity_rnn_backward_outputs(const mpg_op *op, const void *params, int given) {
  (void)op;
  (void)given;
  return num_gradients(params);
}

mpg_status mpg_infer_rnn_backward(mpg_infer *infer) {
  int count = backward_forward_inputs(infer->params);
  const mpg_rnn_params *rnn = infer->params;
  int expected = count + 2 + 1 + (rnn->state_outputs ? (rnn->mode == MPG_RNN_LSTM ? 2 : 1) : 0);
  if (infer->num_inputs != expected) return mpg_infer_fail(infer, "expected %d arrays", expected);
  /* Infers all shapes with the rules of the forward op. */
  mpg_desc results[MPG_RNN_RESULTS];
  for (int i = 0; i < MPG_RNN_RESULTS; i++)
    results[i] = (mpg_desc){MPG_SHAPE_UNKNOWN, MPG_DTYPE_NONE};
  const mpg_rnn_backward_params *params = infer->params;
  mpg_infer forward = *infer;
  forward.num_inputs = count;
  forward.num_outputs = expected - count - 1;
  forward.outputs = results;
  forward.train = params->dropped;
  MPG_TRY(params->flat ? mpg_infer_rnn(&forward) : mpg_infer_rnn_separate(&forward));
  int visible = forward.num_outputs - 1;
  /* Checks output, reserve, and the gradients of the visible outputs. */
  for (int i = 0; i < forward.num_outputs + 1; i++) {
    const mpg_desc *desc = &results[i == 0 ? 0 : i == 1 ? visible : i - 2];
    MPG_TRY(mpg_infer_expect_dtype(infer, count + i, desc->dtype));
    if (mpg_shape_known(&desc->shape))
      MPG_TRY(mpg_infer_expect_shape(infer, count + i, &desc->shape));
  }
  for (int i = 0; i < num_gradients(params); i++) infer->outputs[i] = infer->inputs[i];
  return MPG_OK;
}

static void gradient(mpg_gradient *g, bool flat) {
  const mpg_rnn_params *rnn = g->params;
  mpg_rnn_backward_params params;
  memset(&params, 0, sizeof params);
  _Static_assert(sizeof(mpg_rnn_params) <= sizeof(mpg_rnn_backward_params),
                 "the shared parameters must come first");
  _Static_assert((int)MPG_RNN_MAX_INPUTS <= (int)MPG_MAX_OUTPUTS,
                 "each input must have a gradient");
  memcpy(&params, rnn,
         offsetof(mpg_rnn_params, use_sequence_length) + sizeof rnn->use_sequence_length);
  params.flat = flat;
  params.dropped = g->train && rnn->p > 0;
  mpg_value inputs[MPG_RNN_MAX_INPUTS + 5], outputs[MPG_MAX_OUTPUTS];
  int count = 0, last = g->num_outputs - 1;
  for (int i = 0; i < g->num_inputs; i++) inputs[count++] = g->inputs[i];
  inputs[count++] = g->outputs[0];
  inputs[count++] = g->outputs[last];
  for (int i = 0; i < last; i++)
    inputs[count++] =
        mpg_has_value(g->out_grads[i]) ? g->out_grads[i] : mpg_emit_full_like(g, g->outputs[i], 0);
  mpg_emit_all(g, MPG_OP__rnn_backward, &params, count, inputs, MPG_MAX_OUTPUTS, outputs);
  int gradients = g->num_inputs - (rnn->use_sequence_length ? 1 : 0);
  for (int i = 0; i < gradients && g->status == MPG_OK; i++) g->in_grads[i] = outputs[i];
}

void mpg_gradient_rnn(mpg_gradient *g) { gradient(g, true); }
void mpg_gradient_rnn_separate(mpg_gradient *g) { gradient(g, false); }

/* Cost of multiplying the input and the state by their weights at every step. Backward has two
 * products for each product of the forward pass. */
static mpg_cost cost(const mpg_infer *call, int products) {
  const mpg_shape *data = &call->inputs[0].shape;
  mpg_rnn_size s = mpg_rnn_size_of(call->params, data->dims[0], data->dims[1], data->dims[2]);
  double rows = (double)s.time * (double)s.batch * s.directions,
         gates = (double)s.gates * (double)s.hidden, flops = 0;
  for (int layer = 0; layer < s.layers; layer++)
    flops +=
        rows * gates *
        (2.0 * products * (double)(mpg_rnn_layer_input(&s, layer) + s.hidden) + MPG_COST_FUNCTION);
  return mpg_cost_of(call, flops);
}

mpg_cost mpg_cost_rnn(const mpg_infer *call) { return cost(call, 1); }
mpg_cost mpg_cost_rnn_backward(const mpg_infer *call) { return cost(call, 2); }
