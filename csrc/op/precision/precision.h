/* Automatic mixed precision: the kind of an op determines the dtype in which a call computes.
 *
 * The kinds are in op/precision/precision.def. While mixed precision is on, each op that the user
 * calls casts its inputs to the dtype that mpg_precision_target returns. The rules are global to
 * the process and change only between calls. Threads: callers hold the host lock.
 */
#ifndef MPG_OP_PRECISION_H
#define MPG_OP_PRECISION_H

#include "op/op.h"

/* Kinds of ops, by the dtype in which they compute. */
typedef enum mpg_precision {
  MPG_PRECISION_ANY = 0, /* the dtype of the inputs */
  MPG_PRECISION_LOW,     /* the low-precision dtype that the user chose */
  MPG_PRECISION_HALF,    /* float16 if that is the low-precision dtype, otherwise float32 */
  MPG_PRECISION_FULL,    /* float32 */
  MPG_PRECISION_WIDEST,  /* the dtype of a state, which is not cast, or the widest of the inputs */
  MPG_PRECISION_LOSS,    /* float32; the gradient is multiplied by the loss scale */
  MPG_PRECISION_KINDS
} mpg_precision;

extern bool mpg_precision_on; /* read by every call; only mpg_precision_set writes it */

mpg_status mpg_precision_init(void); /* called after the registry is filled */
/* Returns an op's kind in precision.def, regardless of overrides. */
mpg_precision mpg_op_precision(const mpg_op *op);
/* Turns mixed precision on with the kinds in precision.def, or off if `low` is MPG_DTYPE_NONE. */
void mpg_precision_set(mpg_dtype low);
/* Overrides the kind of an op until the next mpg_precision_set. */
void mpg_precision_choose(const mpg_op *op, mpg_precision kind);
/* Makes an op compute in float32 for calls in which `param` has this value, given in MXNet's text
 * form. */
mpg_status mpg_precision_full_if(const mpg_op *op, const char *param, const char *value);
void mpg_precision_set_loss_scale(double scale);
double mpg_precision_loss_scale(void);
/* Returns how often the rules have changed. Compiled code is valid only while this count stays the
 * same. */
uint64_t mpg_precision_changes(void);

/* Returns the dtype to which floating-point inputs of a call are cast; MPG_DTYPE_NONE means no
 * cast. `out` is the dtype of the array that the result is written into, or MPG_DTYPE_NONE. */
mpg_dtype mpg_precision_target(const mpg_op *op, const void *params, const mpg_dtype *inputs,
                               int num_inputs, mpg_dtype out);
/* True if an input must not be cast: the sequence lengths of a recurrent layer, the labels of
 * linear_cross_entropy, or the scales of a packed weight. */
bool mpg_precision_counts(const mpg_op *op, const void *params, int input, int num_inputs);
/* True if the gradient of a call is multiplied by the loss scale. */
bool mpg_precision_scales(const mpg_op *op);
#endif
