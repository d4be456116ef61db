/* Slicing of a loop's data along the first axis, and stacking of its output rows, with ops that
 * have a limited number of outputs or inputs. Used by loops in the core and in Python, eager and
 * traced. Threads: callers hold the host lock.
 */
#ifndef MPG_COMPILE_LOOP_ROWS_H
#define MPG_COMPILE_LOOP_ROWS_H

#include "autograd/array.h"

typedef struct mpg_loop_output { /* describes one output of a loop's step */
  mpg_desc desc;
  mpg_device_id device;
  bool numpy; /* an array of mx.np */
} mpg_loop_output;

typedef struct mpg_loop_joined { /* scratch memory of mpg_loop_stack; free `joined` with mpg_free */
  mpg_array *joined;
  size_t capacity;
} mpg_loop_joined;

/* Slices an array along the first axis. Slices of a vector have shape (1,). If gradients may be
 * needed, the slices are results of one op, so that their gradient is also one op. `slices` are
 * `count` structs; on failure the caller clears the ones that were filled. */
mpg_status mpg_loop_slices(mpg_array *whole, int64_t count, mpg_array *slices);

/* Stacks `count` rows along a new first axis, and pads the result with zeros to `limit` rows.
 * Consecutive rows are `stride` structs apart. `output` describes a row and is used for the
 * padding. */
mpg_status mpg_loop_stack(mpg_array *rows, size_t stride, int64_t count,
                          const mpg_loop_output *output, int64_t limit, mpg_loop_joined *space,
                          mpg_array *joined);

#endif
