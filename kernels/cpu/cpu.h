/* Declarations shared by CPU kernels. Each file in this folder is compiled once per instruction set
 * (MPG_ISA: base, v3, v4). MPG_PER_ISA appends the instruction set's name to a symbol, so the
 * linker and profilers see mpg_cpu_dot as mpg_cpu_dot_v3. Every non-static function needs
 * MPG_PER_ISA; otherwise two builds would define the same symbol. This header declares all kernels,
 * from ops.def.
 *
 * Threads: a kernel runs on its device's worker, or inline on the host with num_threads 1. Several
 * devices run at the same time, so kernels keep state only in call->device.
 */
#ifndef KERNELS_CPU_CPU_H
#define KERNELS_CPU_CPU_H

#include "base/memory.h"
#include "op/kernel.h"

#define MPG_TEXT_(x) #x
#define MPG_TEXT(x) MPG_TEXT_(x)
#define MPG_PER_ISA(name) __asm__(#name "_" MPG_TEXT(MPG_ISA))

#define MPG_OP_ROW(id, aliases, inputs, outputs, params, infer, infer_inputs, cost, gradient,      \
                   num_inputs, num_outputs, saves, flags, dtypes, batching, sharding, kernel, doc) \
  mpg_status mpg_cpu_##kernel(const mpg_kernel_call *) MPG_PER_ISA(mpg_cpu_##kernel);
#include "op/ops.def"
#undef MPG_OP_ROW
mpg_status mpg_cpu_fused(const mpg_kernel_call *) MPG_PER_ISA(mpg_cpu_fused);
extern const mpg_kernel_fn mpg_cpu_table[MPG_OP_COUNT] MPG_PER_ISA(mpg_cpu_table);

/* Hints for the loop that follows. MPG_UNROLL unrolls n iterations. MPG_INDEPENDENT promises that
 * no iteration reads an element that another iteration writes. */
#define MPG_PRAGMA(text) _Pragma(#text)
#ifdef __clang__
#define MPG_UNROLL(n) MPG_PRAGMA(clang loop unroll_count(n))
#define MPG_INDEPENDENT MPG_PRAGMA(clang loop vectorize(assume_safety))
#else
#define MPG_UNROLL(n) MPG_PRAGMA(GCC unroll n)
#define MPG_INDEPENDENT MPG_PRAGMA(GCC ivdep)
#endif

/* Size in bytes of the instruction set's widest vector. Vector types must not be wider: GCC
 * emulates wider ones slowly. It keeps them in memory and compares them element by element. */
#if defined(__AVX512F__)
#define MPG_VECTOR_BYTES 64
#elif defined(__AVX2__)
#define MPG_VECTOR_BYTES 32
#else
#define MPG_VECTOR_BYTES 16
#endif

/* Splits [0, count) into chunks and calls body(context, begin, end) for each chunk, on up to
 * call->num_threads threads. A single chunk runs on the calling thread. Chunk sizes are multiples
 * of `grain`, except the last. Chunk boundaries may depend on the number of threads, so the order
 * of additions in a sum must not depend on the boundaries. */
typedef void (*mpg_range_fn)(void *context, int64_t begin, int64_t end);
void mpg_cpu_parallel_for(const mpg_kernel_call *call, int64_t count, int64_t grain,
                          mpg_range_fn body, void *context) MPG_PER_ISA(mpg_cpu_parallel_for);

/* Returns the stride in bytes between per-thread buffers of `bytes` bytes each. An extra page
 * between the buffers prevents false sharing: hardware prefetchers stay within a page, so they
 * cannot take cache lines away from a thread that is writing them. */
static inline size_t mpg_cpu_buffer_step(size_t bytes) {
  return bytes ? mpg_align_up(bytes, 64) + 4096 : 0;
}

#endif
