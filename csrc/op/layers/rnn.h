/* The sizes of a recurrent op, shared by its inference and its kernels on every backend. Any
 * thread. */
#ifndef MPG_OP_LAYERS_RNN_H
#define MPG_OP_LAYERS_RNN_H

#include "op/op.h"

typedef enum mpg_rnn_mode {
  MPG_RNN_RELU,
  MPG_RNN_TANH,
  MPG_RNN_LSTM,
  MPG_RNN_GRU
} mpg_rnn_mode; /* as the parameter's words */

typedef struct mpg_rnn_size {
  mpg_rnn_mode mode;
  int64_t time, batch, input, hidden;
  int layers, directions, gates;
  int states; /* 2 for LSTM (hidden, cell), else 1 */
  bool is_lstm;
  bool lengths; /* sequences have lengths of their own, the last input of the forward ops */
} mpg_rnn_size;

enum { MPG_RNN_MAX_INPUTS = 4 + 4 * 64 * 2 };

mpg_rnn_size mpg_rnn_size_of(const mpg_rnn_params *params, int64_t time, int64_t batch,
                             int64_t input);
/* How many inputs the forward ops have, with all weights in one array (flat) or in arrays of their
 * own; the lengths of sequences, if there are such, are the last. */
int mpg_rnn_num_inputs(const mpg_rnn_size *size, bool flat);
int64_t mpg_rnn_layer_input(const mpg_rnn_size *size, int layer); /* features of a layer's input */

/* The reserve keeps what backward reads, and is the forward pass's work space. In this order, each
 * of time * batch * hidden elements times a factor: per layer and direction the gates (x gates)
 * [time, batch, gates * hidden], the cell states (LSTM) or the hidden part of n (GRU) (x 1); then
 * per layer but the last its output (x directions), and with dropout its output as the next layer
 * sees it (x directions); last, where sequences have lengths, the last layer's output as its own
 * steps see it (x directions). False when the count overflows. */
bool mpg_rnn_reserve_elements(const mpg_rnn_size *size, bool dropout, int64_t *elements);

#endif
