/* A reduction of leading axes that is given its rows bit by bit, with the bits of its op's own
 * kernel: the chunks and pieces in which reduce.c adds up depend on shapes alone.
 *
 * The source is (count, inner), reduced to (inner). Whole chunks (op/fused.h) may go to different
 * threads, each with a state of its own; a thread feeds a chunk's rows in order. When all are fed,
 * one call makes the result of the chunks' partial results. A plain value; memory is the caller's.
 */
#ifndef KERNELS_CPU_MATH_REDUCE_H
#define KERNELS_CPU_MATH_REDUCE_H

#include "kernels/common/reduce.h"
#include "kernels/cpu/cpu.h"

#define mpg_cpu_reduce_lines MPG_CPU_NAME(reduce_lines)
/* Each of the `lines` equal parts that `in` is cut into reduced to an element of `out`, as reduce.c
 * does with neighbours. Floats. */
mpg_status mpg_cpu_reduce_lines(const mpg_kernel_call *call, const mpg_view *in, int64_t lines,
                                const mpg_view *out, mpg_reduction f);

typedef struct mpg_trailing_reduction {
  const mpg_op *op;
  const void *params;
  mpg_dtype dtype; /* of the source */
  int64_t count, inner, chunk, chunks;
  int64_t wide;                      /* elements of a wide row (reduce.c) */
  size_t acc_at, levels_at;          /* in a thread's state */
  size_t state_bytes, partial_bytes; /* of a thread; of all chunks: multiples of 64 */
} mpg_trailing_reduction;

#define mpg_cpu_trailing_of MPG_CPU_NAME(trailing_of)
#define mpg_cpu_trailing_begin MPG_CPU_NAME(trailing_begin)
#define mpg_cpu_trailing_feed MPG_CPU_NAME(trailing_feed)
#define mpg_cpu_trailing_end MPG_CPU_NAME(trailing_end)
mpg_trailing_reduction mpg_cpu_trailing_of(const mpg_op *op, const void *params, mpg_dtype dtype,
                                           int64_t count, int64_t inner);
void mpg_cpu_trailing_begin(void *state); /* before the first row of a chunk */
/* values: the source's rows from `row` on. */
void mpg_cpu_trailing_feed(const mpg_trailing_reduction *trailing, void *state, void *partials,
                           const void *values, int64_t row, int64_t rows);
mpg_status mpg_cpu_trailing_end(const mpg_kernel_call *call, const mpg_trailing_reduction *trailing,
                                void *partials, mpg_dtype dtype, void *out);

#endif
