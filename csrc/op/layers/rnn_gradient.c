/* Second-order gradient of recurrent layers. Each layer is composed of other ops, step by step,
 * and the composition is differentiated twice. */
#include <string.h>

#include "base/memory.h"
#include "op/formula/arithmetic.h"
#include "op/infer.h"
#include "op/layers/rnn.h"

enum { PIECES = MPG_MAX_OUTPUTS }; /* largest number of arrays that one op splits into or joins */

static mpg_value part_of(mpg_gradient *g, mpg_value a, int64_t begin, int64_t count) {
  if (!mpg_has_value(a) || mpg_value_desc(g, a)->shape.dims[0] == count) return a;
  mpg_slice_axis_params params;
  memset(&params, 0, sizeof params);
  params.begin = begin;
  params.end = (mpg_opt_int){.value = begin + count, .present = 1};
  return mpg_emit1(g, MPG_OP_slice_axis, &params, a);
}

static void split(mpg_gradient *g, mpg_value a, int64_t count, int64_t axis, bool squeeze,
                  mpg_value *parts) {
  mpg_split_params params;
  memset(&params, 0, sizeof params);
  params.num_outputs = count;
  params.axis = axis;
  params.squeeze_axis = squeeze;
  mpg_emit_all(g, MPG_OP_SliceChannel, &params, 1, &a, (int)count, parts);
}

static void split_steps(mpg_gradient *g, mpg_value a, int64_t count, mpg_value *steps) {
  for (int64_t begin = 0; begin < count; begin += PIECES) {
    int64_t size = count - begin < PIECES ? count - begin : PIECES;
    split(g, part_of(g, a, begin, size), size, 0, true, steps + begin);
  }
}

static mpg_value concat(mpg_gradient *g, int count, const mpg_value *parts, int64_t axis) {
  mpg_concat_params params = {.num_args = count, .dim = axis};
  return count == 1 ? parts[0] : mpg_emit(g, MPG_OP_Concat, &params, count, parts);
}

/* Stacks the steps along a new first axis. Uses the first elements of `steps` as scratch space. */
static mpg_value stack_steps(mpg_gradient *g, int64_t count, mpg_value *steps) {
  int pieces = 0;
  for (int64_t begin = 0; begin < count; begin += PIECES) {
    int size = (int)(count - begin < PIECES ? count - begin : PIECES);
    mpg_stack_params params = {.axis = 0, .num_args = size};
    steps[pieces++] = mpg_emit(g, MPG_OP_stack, &params, size, steps + begin);
  }
  return concat(g, pieces, steps, 0);
}

static mpg_value apply(mpg_gradient *g, mpg_op_id op, mpg_value a) {
  return mpg_emit1(g, op, NULL, a);
}

static mpg_value dense(mpg_gradient *g, mpg_value data, mpg_value weight, mpg_value bias,
                       int64_t rows) {
  mpg_fully_connected_params params = {.num_hidden = rows, .flatten = true};
  return mpg_emit3(g, MPG_OP_FullyConnected, &params, data, weight, bias);
}

static mpg_value clip_cell(mpg_gradient *g, const mpg_rnn_params *p, mpg_value c) {
  if (!p->lstm_state_clip_min.present && !p->lstm_state_clip_max.present) return c;
  if (p->lstm_state_clip_nan) {
    mpg_value condition = apply(g, MPG_OP__contrib_isnan, c);
    c = mpg_emit3(g, MPG_OP_where, NULL, condition, mpg_emit_full_like(g, c, 0), c);
  }
  mpg_clip_params params = {
      .a_min = p->lstm_state_clip_min.present ? p->lstm_state_clip_min.value : -1e300,
      .a_max = p->lstm_state_clip_max.present ? p->lstm_state_clip_max.value : 1e300};
  return mpg_emit1(g, MPG_OP_clip, &params, c);
}

/* Emits one time step, which updates the states *h and *c. `x` and `y` are the products of the
 * input and of the state with their weights. */
static void cell(mpg_gradient *g, const mpg_rnn_size *s, mpg_value x, mpg_value y, mpg_value *h,
                 mpg_value *c) {
  mpg_value a[4], b[4];
  if (s->mode == MPG_RNN_LSTM) {
    split(g, mpg_add(g, x, y), 4, 1, false, a);
    mpg_value kept = mpg_multiply(g, apply(g, MPG_OP_sigmoid, a[1]), *c);
    mpg_value new = mpg_multiply(g, apply(g, MPG_OP_sigmoid, a[0]), apply(g, MPG_OP_tanh, a[2]));
    *c = clip_cell(g, (const mpg_rnn_params *)g->params, mpg_add(g, kept, new));
    *h = mpg_multiply(g, apply(g, MPG_OP_sigmoid, a[3]), apply(g, MPG_OP_tanh, *c));
  } else if (s->mode == MPG_RNN_GRU) {
    split(g, x, 3, 1, false, a);
    split(g, y, 3, 1, false, b);
    mpg_value r = apply(g, MPG_OP_sigmoid, mpg_add(g, a[0], b[0])),
              z = apply(g, MPG_OP_sigmoid, mpg_add(g, a[1], b[1]));
    mpg_value n = apply(g, MPG_OP_tanh, mpg_add(g, a[2], mpg_multiply(g, r, b[2])));
    *h = mpg_add(g, n, mpg_multiply(g, z, mpg_emit2(g, MPG_OP_elemwise_sub, NULL, *h, n)));
  } else {
    *h = apply(g, s->mode == MPG_RNN_TANH ? MPG_OP_tanh : MPG_OP_relu, mpg_add(g, x, y));
  }
}

/* Emits a layer's output after dropout, which is the input of the next layer. Recovers the mask of
 * the forward pass from its dropout result in the reserve, in which dropped elements are negative
 * zeros. */
static mpg_value drop(mpg_gradient *g, const mpg_rnn_size *s, int layer, mpg_value output,
                      mpg_value reserve) {
  const mpg_rnn_backward_params *p = g->params;
  int64_t block = s->time * s->batch * s->hidden,
          inner = s->gates + (s->is_lstm || s->mode == MPG_RNN_GRU ? 1 : 0);
  int64_t begin = block * s->directions * (inner * s->layers + 2 * layer + 1);
  mpg_shape shape = mpg_value_desc(g, output)->shape;
  mpg_value seen = mpg_emit_reshape(g, part_of(g, reserve, begin, block * s->directions), &shape);
  mpg_value positive = mpg_emit_scalar(g, MPG_OP__greater_scalar,
                                       mpg_emit_scalar(g, MPG_OP__rdiv_scalar, seen, 1), 0);
  mpg_value kept = mpg_emit2(g, MPG_OP__maximum, NULL,
                             mpg_emit_scalar(g, MPG_OP__not_equal_scalar, seen, 0), positive);
  return mpg_multiply(g, output,
                      mpg_emit_scalar(g, MPG_OP__mul_scalar, kept, p->p < 1 ? 1 / (1 - p->p) : 0));
}

/* Emits a condition for `where` with one element per sequence: 1 if the sequence reaches step t.
 * Returns MPG_NO_VALUE without lengths, because then all sequences reach every step. */
static mpg_value reached(mpg_gradient *g, mpg_value lengths, int64_t t) {
  return mpg_has_value(lengths)
             ? mpg_emit_scalar(g, MPG_OP__greater_equal_scalar, lengths, (double)(t + 1))
             : MPG_NO_VALUE;
}

static mpg_value where_reached(mpg_gradient *g, mpg_value condition, mpg_value a, mpg_value b) {
  return mpg_has_value(condition) ? mpg_emit3(g, MPG_OP_where, NULL, condition, a, b) : a;
}

typedef struct arrays {
  /* Elements 2k and 2k + 1 are the input and state weights for k = layer * directions + direction.
   * The biases follow in the same order. */
  mpg_value weights[MPG_RNN_MAX_INPUTS];
  mpg_value h[MPG_RNN_MAX_INPUTS / 4], c[MPG_RNN_MAX_INPUTS / 4];
  mpg_value lengths; /* sequence lengths, or MPG_NO_VALUE */
} arrays;

/* Splits the flat parameter vector into weights and biases. */
static void cut_weights(mpg_gradient *g, const mpg_rnn_size *s, mpg_value flat,
                        mpg_value *weights) {
  int64_t rows = s->gates * s->hidden, begin = 0;
  int count = s->layers * s->directions;
  for (int i = 0; i < 4 * count; i++) {
    int layer = i / 2 / s->directions;
    int64_t columns = i % 2 ? s->hidden : layer < s->layers ? mpg_rnn_layer_input(s, layer) : 0;
    bool bias = i >= 2 * count;
    mpg_shape shape = {.ndim = bias ? 1 : 2, .dims = {rows, bias ? 0 : columns}};
    int64_t size = bias ? rows : rows * columns;
    weights[i] = mpg_emit_reshape(g, part_of(g, flat, begin, size), &shape);
    begin += size;
  }
}

static mpg_value direction(mpg_gradient *g, const mpg_rnn_size *s, mpg_value data,
                           const mpg_value *weights, const mpg_value *biases, bool back,
                           mpg_value lengths, bool masked, mpg_value *h, mpg_value *c,
                           mpg_value *steps) {
  int64_t rows = s->gates * s->hidden, input = mpg_value_desc(g, data)->shape.dims[2];
  mpg_value x =
      mpg_emit_reshape(g, data, &(mpg_shape){.ndim = 2, .dims = {s->time * s->batch, input}});
  x = mpg_emit_reshape(g, dense(g, x, weights[0], biases[0], rows),
                       &(mpg_shape){.ndim = 3, .dims = {s->time, s->batch, rows}});
  split_steps(g, x, s->time, steps);
  for (int64_t i = 0; i < s->time && g->status == MPG_OK; i++) {
    int64_t t = back ? s->time - 1 - i : i;
    mpg_value condition = reached(g, lengths, t), h_before = *h, c_before = *c;
    cell(g, s, steps[t], dense(g, *h, weights[1], biases[1], rows), h, c);
    *h = where_reached(g, condition, *h, h_before);
    if (s->is_lstm) *c = where_reached(g, condition, *c, c_before);
    steps[t] = masked && mpg_has_value(condition)
                   ? where_reached(g, condition, *h, mpg_emit_full_like(g, *h, 0))
                   : *h;
  }
  return stack_steps(g, s->time, steps);
}

static void layers(mpg_gradient *g, const mpg_rnn_size *s, mpg_value data, mpg_value reserve,
                   arrays *a, mpg_value *steps, mpg_value *output) {
  const mpg_rnn_backward_params *p = g->params;
  int count = s->layers * s->directions;
  for (int layer = 0; layer < s->layers && g->status == MPG_OK; layer++) {
    mpg_value parts[2];
    for (int d = 0; d < s->directions && g->status == MPG_OK; d++) {
      int k = layer * s->directions + d;
      parts[d] = direction(g, s, data, a->weights + 2 * k, a->weights + 2 * (count + k), d == 1,
                           a->lengths, layer == s->layers - 1, &a->h[k], &a->c[k], steps);
    }
    data = concat(g, s->directions, parts, 2);
    if (p->dropped && layer < s->layers - 1 && g->status == MPG_OK)
      data = drop(g, s, layer, data, reserve);
  }
  *output = data;
}

static void emit_rnn(mpg_gradient *g, const mpg_value *inputs, mpg_value *outputs) {
  const mpg_rnn_backward_params *p = g->params;
  const mpg_desc data = *mpg_value_desc(g, inputs[0]);
  mpg_dtype dtype = data.dtype == MPG_FLOAT64 ? MPG_FLOAT64 : MPG_FLOAT32;
  mpg_rnn_size s = mpg_rnn_size_of((const mpg_rnn_params *)p, data.shape.dims[0],
                                   data.shape.dims[1], data.shape.dims[2]);
  int count = s.layers * s.directions, state = p->flat ? 2 : 1,
      num_inputs = mpg_rnn_num_inputs(&s, p->flat);
  mpg_value *steps = mpg_malloc((size_t)(s.time + 1) * sizeof *steps);
  arrays *a = mpg_calloc(1, sizeof *a);
  if (!steps || !a) {
    g->status = mpg_out_of_host_memory((size_t)s.time * sizeof *steps);
  } else if (s.time == 0) {
    mpg_gradient_fail(g, "has no second-order gradient for empty sequences");
  } else {
    split(g, mpg_emit_cast(g, inputs[state], dtype), count, 0, true, a->h);
    a->lengths = s.lengths ? g->inputs[num_inputs - 1] : MPG_NO_VALUE;
    if (s.is_lstm) split(g, mpg_emit_cast(g, inputs[state + 1], dtype), count, 0, true, a->c);
    if (p->flat)
      cut_weights(g, &s, mpg_emit_cast(g, inputs[1], dtype), a->weights);
    else
      for (int i = 0; i < 4 * count; i++)
        a->weights[i] = mpg_emit_cast(g, inputs[1 + s.states + i], dtype);
    mpg_value x = mpg_emit_cast(g, inputs[0], dtype);
    if (s.lengths) x = mpg_emit_sequence_mask(g, x, a->lengths, 0, 0);
    layers(g, &s, x, mpg_emit_cast(g, g->inputs[num_inputs + 1], dtype), a, steps, &outputs[0]);
    if (p->state_outputs) outputs[1] = stack_steps(g, count, a->h);
    if (p->state_outputs && s.is_lstm) outputs[2] = stack_steps(g, count, a->c);
    for (int i = 0; i < (p->state_outputs ? 1 + s.states : 1); i++)
      outputs[i] = mpg_emit_cast(g, outputs[i], data.dtype);
  }
  mpg_free(steps);
  mpg_free(a);
}

/* Gradient of _rnn_backward, which computes the gradients of the forward inputs from (forward
 * inputs, output, reserve, gradients of the visible outputs). */
void mpg_gradient_rnn_back(mpg_gradient *g) {
  const mpg_rnn_backward_params *p = g->params;
  int numbers[MPG_RNN_MAX_INPUTS + 8];
  int outputs = 1 + (p->state_outputs ? p->mode == MPG_RNN_LSTM ? 2 : 1 : 0),
      forward = g->num_inputs - 2 - outputs, inputs = forward - (p->use_sequence_length ? 1 : 0);
  for (int i = 0; i < inputs; i++) numbers[i] = i;
  for (int i = 0; i < outputs; i++) numbers[inputs + i] = forward + 2 + i;
  mpg_gradient_written_out(
      g, &(mpg_written_out){inputs, outputs, numbers, numbers + inputs, emit_rnn});
}
