/* Declarations that CPU kernels share. Each file here is compiled once per instruction set
 * (MPG_ISA: base, v3, v4), so every symbol that is not static carries the set's name: define
 * kernels with MPG_CPU_KERNEL(name), other shared functions with MPG_CPU_NAME(name).
 *
 * Threads: a kernel runs on the worker of its device, or inline on the host with num_threads 1. Two
 * devices run at the same time, so kernels keep no state but in call->device.
 */
#ifndef KERNELS_CPU_CPU_H
#define KERNELS_CPU_CPU_H

#include "base/memory.h"
#include "op/kernel.h"

#define MPG_CONCAT_(a, b, c) a##_##b##_##c
#define MPG_CONCAT(a, b, c) MPG_CONCAT_(a, b, c)
#define MPG_CPU_NAME(name) MPG_CONCAT(mpg_cpu, name, MPG_ISA)
#define MPG_CPU_KERNEL(name) mpg_status MPG_CPU_NAME(name)(const mpg_kernel_call *call)

#define MPG_OP_ROW(id, aliases, inputs, outputs, params, infer, cost, gradient, num_inputs, \
                   num_outputs, saves, flags, dtypes, batching, kernel, doc)                \
  mpg_status MPG_CPU_NAME(kernel)(const mpg_kernel_call *);
#include "op/ops.def"
#undef MPG_OP_ROW

/* Hints to the compiler for the loop that follows: to write out n steps at a time; that no step
 * reads what another one writes. */
#define MPG_PRAGMA(text) _Pragma(#text)
#ifdef __clang__
#define MPG_UNROLL(n) MPG_PRAGMA(clang loop unroll_count(n))
#define MPG_INDEPENDENT MPG_PRAGMA(clang loop vectorize(assume_safety))
#else
#define MPG_UNROLL(n) MPG_PRAGMA(GCC unroll n)
#define MPG_INDEPENDENT MPG_PRAGMA(GCC ivdep)
#endif

/* Vectors that the instruction set has. Wider ones GCC takes apart: it keeps them in memory, and
 * compares them element by element. */
#if defined(__AVX512F__)
#define MPG_VECTOR_BYTES 64
#elif defined(__AVX2__)
#define MPG_VECTOR_BYTES 32
#else
#define MPG_VECTOR_BYTES 16
#endif

/* Calls body(context, begin, end) on pieces of [0, count), each a multiple of `grain` long but the
 * last, on up to call->num_threads threads; in this thread alone when there is only one piece. The
 * pieces' borders may depend on the number of threads: what is summed over must not. */
typedef void (*mpg_range_fn)(void *context, int64_t begin, int64_t end);
#define mpg_cpu_parallel_for MPG_CPU_NAME(parallel_for)
void mpg_cpu_parallel_for(const mpg_kernel_call *call, int64_t count, int64_t grain,
                          mpg_range_fn body, void *context);

/* Bytes from one thread's buffer of `bytes` to the next one's: with a page in between, as
 * processors fetch ahead within one, which would take lines away from the other thread whenever it
 * has written them. */
static inline size_t mpg_cpu_buffer_step(size_t bytes) {
  return bytes ? mpg_align_up(bytes, 64) + 4096 : 0;
}

#endif
