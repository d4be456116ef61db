/* Reduction over leading axes, with rows supplied incrementally. The result is bit-identical to
 * that of the op's own kernel, since the chunks and pieces of reduce.c depend on shapes only.
 *
 * The source is (count, inner), reduced to (inner). Whole chunks (op/fused.h) may be processed by
 * different threads, each with its own state. A thread supplies a chunk's rows in order. After all
 * chunks, one call combines their partial results. mpg_trailing_reduction is a plain value; the
 * caller owns all memory.
 */
#ifndef KERNELS_CPU_MATH_REDUCE_H
#define KERNELS_CPU_MATH_REDUCE_H

#include "kernels/common/reduce.h"
#include "kernels/cpu/cpu.h"

/* Divides `in` into `lines` contiguous parts of equal size, and reduces each part to an element of
 * `out`. For float dtypes only. */
mpg_status mpg_cpu_reduce_lines(const mpg_kernel_call *call, const mpg_view *in, int64_t lines,
                                const mpg_view *out, mpg_reduction f)
    MPG_PER_ISA(mpg_cpu_reduce_lines);

typedef struct mpg_trailing_reduction {
  const mpg_op *op;
  const void *params;
  mpg_dtype dtype; /* of the source */
  int64_t count, inner, chunk, chunks;
  int64_t wide;                      /* elements of a wide row (reduce.c) */
  size_t acc_at, levels_at;          /* offsets in a thread's state */
  size_t state_bytes, partial_bytes; /* bytes per thread; bytes for all chunks; multiples of 64 */
} mpg_trailing_reduction;

/* Returns the chunks and memory sizes of a trailing reduction. */
mpg_trailing_reduction mpg_cpu_trailing_of(const mpg_op *op, const void *params, mpg_dtype dtype,
                                           int64_t count, int64_t inner)
    MPG_PER_ISA(mpg_cpu_trailing_of);
/* Initializes a thread's state. Must be called before the thread's first row. */
void mpg_cpu_trailing_begin(void *state) MPG_PER_ISA(mpg_cpu_trailing_begin);
/* Adds rows [row, row + rows) of the source, whose contents are `values`. */
void mpg_cpu_trailing_feed(const mpg_trailing_reduction *trailing, void *state, void *partials,
                           const void *values, int64_t row, int64_t rows)
    MPG_PER_ISA(mpg_cpu_trailing_feed);
/* Combines the partial results of all chunks into `out`. */
mpg_status mpg_cpu_trailing_end(const mpg_kernel_call *call, const mpg_trailing_reduction *trailing,
                                void *partials, mpg_dtype dtype, void *out)
    MPG_PER_ISA(mpg_cpu_trailing_end);

#endif
