/* Sizes of recurrent ops. This file is also compiled into the libraries of other backends. */
#include "op/layers/rnn.h"

mpg_rnn_size mpg_rnn_size_of(const mpg_rnn_params *params, int64_t time, int64_t batch,
                             int64_t input) {
  static const int gates[] = {
      [MPG_RNN_RELU] = 1, [MPG_RNN_TANH] = 1, [MPG_RNN_LSTM] = 4, [MPG_RNN_GRU] = 3};
  mpg_rnn_size s = {.mode = (mpg_rnn_mode)params->mode,
                    .time = time,
                    .batch = batch,
                    .input = input,
                    .hidden = params->state_size,
                    .layers = (int)params->num_layers,
                    .directions = params->bidirectional ? 2 : 1};
  s.gates = gates[s.mode];
  s.is_lstm = s.mode == MPG_RNN_LSTM;
  s.states = s.is_lstm ? 2 : 1;
  s.lengths = params->use_sequence_length;
  return s;
}

bool mpg_rnn_reserve_elements(const mpg_rnn_size *s, bool dropout, int64_t *elements) {
  int64_t per_row = 0, rows, block;
  /* Blocks per layer and direction: the gates, and the cell states (LSTM) or the hidden part of n
   * (GRU). */
  int64_t inner = s->gates + (s->is_lstm ? 1 : 0) + (s->mode == MPG_RNN_GRU ? 1 : 0);
  per_row = inner * s->layers * s->directions +
            (int64_t)(s->layers - 1) * s->directions * (dropout ? 2 : 1) +
            (s->lengths ? s->directions : 0);
  return !__builtin_mul_overflow(s->time, s->batch, &rows) &&
         !__builtin_mul_overflow(rows, s->hidden, &block) &&
         !__builtin_mul_overflow(block, per_row, elements);
}

int64_t mpg_rnn_layer_input(const mpg_rnn_size *s, int layer) {
  return layer == 0 ? s->input : s->hidden * s->directions;
}

int mpg_rnn_num_inputs(const mpg_rnn_size *s, bool flat) {
  return 1 + s->states + (flat ? 1 : 4 * s->layers * s->directions) + (s->lengths ? 1 : 0);
}
