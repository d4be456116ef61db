/* rotary: inference, gradient, and the frequencies of all scalings. */
#include "op/attention/rotary.h"

#include <math.h>

#include "op/infer.h"

enum { HALF, PAIRS };
enum { BTHD, BHTD };
enum { NONE, LINEAR, LLAMA3, YARN, LONGROPE };

/* Checks the parameters for data with `size` features per head. */
static mpg_status check_params(mpg_infer *infer, int64_t size) {
  const mpg_rotary_params *p = infer->params;
  int64_t dims = p->dims ? p->dims : size;
  if (dims > size || dims % 2 || dims > 2 * MPG_ROTARY_MOST_PAIRS)
    return mpg_infer_fail(
        infer, "dims must be an even number up to the features of a head, %lld, and up to %d",
        (long long)size, 2 * MPG_ROTARY_MOST_PAIRS);
  if (p->base <= 0 || p->factor <= 0) return mpg_infer_fail(infer, "base and factor must be > 0");
  if (p->scaling > LINEAR && p->original_length <= 0)
    return mpg_infer_fail(infer, "this scaling needs original_length");
  if (p->scaling == LLAMA3 && p->high_freq_factor <= p->low_freq_factor)
    return mpg_infer_fail(infer, "high_freq_factor must be larger than low_freq_factor");
  if (p->scaling == YARN && (p->base == 1 || p->beta_fast <= 0 || p->beta_slow <= 0))
    return mpg_infer_fail(infer, "yarn needs a base other than 1, and beta_fast and beta_slow > 0");
  if (p->scaling == LONGROPE && p->factors.count != dims / 2)
    return mpg_infer_fail(infer, "longrope needs %lld factors, one for each pair, but got %d",
                          (long long)dims / 2, (int)p->factors.count);
  return MPG_OK;
}

mpg_status mpg_infer_rotary(mpg_infer *infer) {
  const mpg_rotary_params *p = infer->params;
  const mpg_desc *data = &infer->inputs[0];
  infer->outputs[0].dtype = data->dtype;
  if (infer->num_inputs > 1) {
    mpg_dtype dtype = infer->inputs[1].dtype;
    if (dtype != MPG_INT32 && dtype != MPG_INT64)
      return mpg_infer_fail(infer, "positions must be int32 or int64");
  }
  if (data->shape.ndim < 0) return MPG_OK;
  if (data->shape.ndim != 4)
    return mpg_infer_fail(infer, "data must have 4 axes, as layout says, but it has %d",
                          data->shape.ndim);
  int64_t batch = data->shape.dims[0], time = data->shape.dims[p->layout == BTHD ? 1 : 2];
  if (data->shape.dims[3] >= 0) MPG_TRY(check_params(infer, data->shape.dims[3]));
  if (infer->num_inputs > 1 && infer->inputs[1].shape.ndim >= 0) {
    mpg_shape each = {.ndim = 2, .dims = {batch, time}}, shared = {.ndim = 1, .dims = {time}};
    MPG_TRY(mpg_infer_expect_shape(infer, 1, infer->inputs[1].shape.ndim == 1 ? &shared : &each));
  }
  mpg_infer_set(infer, 0, &data->shape, data->dtype);
  return MPG_OK;
}

/* Returns the angle per position of pair i. */
static double frequency(const mpg_rotary_params *p, int i, int pairs) {
  double plain = pow(p->base, -(double)i / pairs), length = p->original_length;
  if (p->scaling == LINEAR) return plain / p->factor;
  if (p->scaling == LONGROPE) return plain / p->factors.values[i];
  if (p->scaling == LLAMA3) {
    double waves = length * plain / (2 * M_PI); /* in original_length */
    if (waves < p->low_freq_factor) return plain / p->factor;
    if (waves > p->high_freq_factor) return plain;
    double share = (waves - p->low_freq_factor) / (p->high_freq_factor - p->low_freq_factor);
    return (1 - share) * plain / p->factor + share * plain;
  }
  if (p->scaling == YARN) {
    /* The (fractional) pairs that turn beta_fast and beta_slow times in original_length. */
    double per_turn = pairs / log(p->base),
           first = floor(per_turn * log(length / (p->beta_fast * 2 * M_PI))),
           last = ceil(per_turn * log(length / (p->beta_slow * 2 * M_PI)));
    first = fmax(first, 0), last = fmin(last, 2 * pairs - 1);
    if (first == last) last += 0.001;
    double scaled = fmin(fmax((i - first) / (last - first), 0), 1);
    return plain * (1 - scaled) + plain / p->factor * scaled;
  }
  return plain;
}

static double result_factor(const mpg_rotary_params *p) {
  if (p->attention_factor.present) return p->attention_factor.value;
  if (p->factor <= 1) return 1;
  if (p->scaling == YARN) return 0.1 * log(p->factor) + 1;
  return p->scaling == LONGROPE ? sqrt(1 + log(p->factor) / log(p->original_length)) : 1;
}

void mpg_rotary_make(const mpg_rotary_params *p, const mpg_shape *data, const mpg_shape *positions,
                     mpg_rotary *rotary) {
  const int64_t *dims = data->dims;
  bool heads_first = p->layout == BHTD;
  *rotary = (mpg_rotary){.batch = dims[0],
                         .time = dims[heads_first ? 2 : 1],
                         .heads = dims[heads_first ? 1 : 2],
                         .size = dims[3],
                         .by_batch = dims[1] * dims[2] * dims[3],
                         .by_time = heads_first ? dims[3] : dims[2] * dims[3],
                         .by_head = heads_first ? dims[2] * dims[3] : dims[3],
                         .pairs = (int)(p->dims ? p->dims : dims[3]) / 2,
                         .adjacent = p->style == PAIRS,
                         .scale = result_factor(p)};
  if (positions && positions->ndim == 2) rotary->positions_by_batch = rotary->time;
  for (int i = 0; i < rotary->pairs; i++)
    rotary->frequencies[i] = (float)frequency(p, i, rotary->pairs);
}

/* The gradient is the rotation back, times the same factor; its gradient is the rotation. */
static void emit_rotation(mpg_gradient *g, mpg_op_id op) {
  mpg_value inputs[2] = {g->out_grads[0], g->num_inputs > 1 ? g->inputs[1] : MPG_NO_VALUE};
  if (mpg_has_value(inputs[0]) && g->needed[0])
    mpg_emit_all(g, op, g->params, g->num_inputs, inputs, 1, g->in_grads);
}
void mpg_gradient_rotary(mpg_gradient *g) { emit_rotation(g, MPG_OP__backward_rotary); }
void mpg_gradient_rotary_back(mpg_gradient *g) { emit_rotation(g, MPG_OP__contrib_rotary); }
