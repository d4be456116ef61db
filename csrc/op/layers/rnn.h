/* Sizes of a recurrent op, shared by inference and the kernels of all backends. These functions may
 * be called from any thread. */
#ifndef MPG_OP_LAYERS_RNN_H
#define MPG_OP_LAYERS_RNN_H

#include "op/op.h"

/* Values of the parameter `mode` */
typedef enum mpg_rnn_mode { MPG_RNN_RELU, MPG_RNN_TANH, MPG_RNN_LSTM, MPG_RNN_GRU } mpg_rnn_mode;

typedef struct mpg_rnn_size {
  mpg_rnn_mode mode;
  int64_t time, batch, input, hidden;
  int layers, directions, gates;
  int states; /* 2 for LSTM (hidden, cell), else 1 */
  bool is_lstm;
  bool lengths; /* the last input of the forward ops is the sequence lengths */
} mpg_rnn_size;

enum { MPG_RNN_MAX_INPUTS = 4 + 4 * 64 * 2 };

mpg_rnn_size mpg_rnn_size_of(const mpg_rnn_params *params, int64_t time, int64_t batch,
                             int64_t input);
/* Returns the number of inputs of the forward ops, with all weights in one array (flat) or in
 * separate arrays. The sequence lengths, if present, are the last input. */
int mpg_rnn_num_inputs(const mpg_rnn_size *size, bool flat);
int64_t mpg_rnn_layer_input(const mpg_rnn_size *size, int layer); /* features of a layer's input */

/* Computes the number of elements of the reserve. Returns false on overflow. The reserve holds the
 * values that backward reads, and is the work space of the forward pass. It consists of blocks of
 * time * batch * hidden elements, in this order:
 * - per layer and direction: the gates [time, batch, gates * hidden] (gates blocks), then the
 *   cell states (LSTM) or the hidden part of n (GRU) (1 block)
 * - per layer except the last: its output (directions blocks), and with dropout its output after
 *   dropout (directions blocks)
 * - if sequences have lengths: the last layer's output before padded steps are masked (directions
 *   blocks) */
bool mpg_rnn_reserve_elements(const mpg_rnn_size *size, bool dropout, int64_t *elements);

#endif
