/* Rows of loops: arrays cut into slices along their first axis, and rows put together again, by ops
 * that make or join a limited number of arrays each. For loops in the core and in Python, run and
 * traced. Threads: host lock.
 */
#ifndef MPG_COMPILE_LOOP_ROWS_H
#define MPG_COMPILE_LOOP_ROWS_H

#include "autograd/array.h"

typedef struct mpg_loop_output { /* of a step */
  mpg_desc desc;
  mpg_device_id device;
} mpg_loop_output;

typedef struct mpg_loop_joined { /* work space: rows joined so far; mpg_free */
  mpg_array *joined;
  size_t capacity;
} mpg_loop_joined;

/* The entries along the first axis, of shape (1,) where there is no other. Where gradients may be
 * taken they are results of one op, so that their gradient is one op, too. slices: count structs;
 * on failure the caller clears those that were made. */
mpg_status mpg_loop_slices(mpg_array *whole, int64_t count, mpg_array *slices);

/* Rows, `stride` structs apart, along a new first axis, with zeros behind them up to the limit;
 * output: what a row is, where zeros are needed. */
mpg_status mpg_loop_stack(mpg_array *rows, size_t stride, int64_t count,
                          const mpg_loop_output *output, int64_t limit, mpg_loop_joined *space,
                          mpg_array *joined);

#endif
