/* Automatic mixed precision: in which dtype a call computes, by what kind of op it is.
 *
 * The kinds stand in op/precision/precision.def. While mixed precision is on, whoever calls an op
 * for a user asks mpg_precision_target, and casts the inputs. The rules are the process's; they
 * change between calls only. Threads: host lock.
 */
#ifndef MPG_OP_PRECISION_H
#define MPG_OP_PRECISION_H

#include "op/op.h"

typedef enum mpg_precision {
  MPG_PRECISION_ANY = 0, /* as its inputs are */
  MPG_PRECISION_LOW,     /* in the low precision */
  MPG_PRECISION_HALF,    /* in float16 where that is the low precision, else in float32 */
  MPG_PRECISION_FULL,    /* in float32 */
  MPG_PRECISION_WIDEST,  /* in the widest dtype of its inputs */
  MPG_PRECISION_LOSS,    /* in float32; its gradient is multiplied by the scale of losses */
  MPG_PRECISION_KINDS
} mpg_precision;

extern bool mpg_precision_on; /* read by every call; set by mpg_precision_set alone */

mpg_status mpg_precision_init(void); /* behind the registry */
/* By the table. */
mpg_precision mpg_op_precision(const mpg_op *op);
/* Turns it on with the rules of the table, or with MPG_DTYPE_NONE off. */
void mpg_precision_set(mpg_dtype low);
/* Other rules, until the next mpg_precision_set. */
void mpg_precision_choose(const mpg_op *op, mpg_precision kind);
/* An op in float32 where a parameter has that value, in MXNet's text form. */
mpg_status mpg_precision_full_if(const mpg_op *op, const char *param, const char *value);
void mpg_precision_set_loss_scale(double scale);
double mpg_precision_loss_scale(void);
uint64_t mpg_precision_changes(void); /* how often rules changed: what was compiled is for these */

/* The dtype that floating-point inputs of a call are cast to; MPG_DTYPE_NONE: none is cast. out:
 * its dtype where the result is written into an array, else MPG_DTYPE_NONE. */
mpg_dtype mpg_precision_target(const mpg_op *op, const void *params, const mpg_dtype *inputs,
                               int num_inputs, mpg_dtype out);
/* Whether an input counts, and is never cast: the lengths of sequences of a recurrent layer. */
bool mpg_precision_counts(const mpg_op *op, const void *params, int input, int num_inputs);
/* Whether a call's gradient is to be scaled. */
bool mpg_precision_scales(const mpg_op *op);
#endif
