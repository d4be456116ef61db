/* CPU implementation of moves (kernels/common/move.h). These functions are stateless and may be
 * called from any thread. */
#ifndef KERNELS_CPU_ARRAY_MOVE_H
#define KERNELS_CPU_ARRAY_MOVE_H

#include <string.h>

#include "kernels/common/move.h"
#include "kernels/cpu/cpu.h"

/* Executes a move. `item` is the element size in bytes. */
void mpg_cpu_move(const mpg_kernel_call *call, const mpg_move *move, const void *in, void *out,
                  size_t item) MPG_PER_ISA(mpg_cpu_move);
/* Writes `count` elements of `item` bytes (1, 2, 4 or 8), each a copy of *value. */
void mpg_cpu_fill(const mpg_kernel_call *call, void *out, int64_t count, size_t item,
                  const void *value) MPG_PER_ISA(mpg_cpu_fill);

/* Copies a run of contiguous bytes, like memcpy. From about 2 KB on, C libraries use `rep movsb`,
 * which takes twice as long as loads and stores at these sizes. */
static inline void mpg_copy_run(char *out, const char *in, size_t bytes) {
  enum { CHUNK = 64, LONG = 32768 };
  if (bytes < CHUNK || bytes >= LONG) {
    memcpy(out, in, bytes);
    return;
  }
  for (size_t i = 0; i + CHUNK <= bytes; i += CHUNK) memcpy(out + i, in + i, CHUNK);
  memcpy(out + bytes - CHUNK, in + bytes - CHUNK, CHUNK);
}

#endif
