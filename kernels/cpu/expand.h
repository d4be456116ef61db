/* Expands (materializes) a broadcast operand with short rows, so that one loop can process many
 * rows.
 *
 * The dimensions are collapsed as in binary.c and reduce.c and listed innermost first. Strides are
 * in elements and are 0 in broadcast dimensions. A row is the innermost dimension. Stores write
 * whole vectors, which may extend past the end of a row; the next row overwrites the excess. `out`
 * therefore needs MPG_EXPAND_SLACK extra bytes. These functions are stateless and may be called
 * from any thread.
 */
#ifndef KERNELS_CPU_EXPAND_H
#define KERNELS_CPU_EXPAND_H

#include <string.h>

#include "kernels/cpu/convert.h"

enum {
  MPG_EXPAND_ROW = 256, /* maximum length of a short row */
  MPG_EXPAND_SLACK = 64,
};

typedef char mpg_expand_buffer[MPG_CPU_BLOCK * 8 + MPG_EXPAND_SLACK] __attribute__((aligned(64)));

/* Writes `rows` rows of n elements. All elements of row r are copies of element r of `from`. */
static inline void mpg_expand_elements(size_t size, const char *from, int64_t n, int64_t rows,
                                       char *out) {
#define EXPAND(T)                                                                     \
  {                                                                                   \
    typedef T vector __attribute__((vector_size(64), aligned(sizeof(T)), may_alias)); \
    enum { LANES = 64 / sizeof(T) };                                                  \
    const T *source = (const T *)(const void *)from;                                  \
    T *target = (T *)(void *)out;                                                     \
    for (int64_t r = 0; r < rows; r++, target += n) {                                 \
      vector v = (vector){0} + source[r];                                             \
      for (int64_t i = 0; i < n; i += LANES) *(vector *)(void *)(target + i) = v;     \
    }                                                                                 \
    return;                                                                           \
  }
  switch (size) {
    case 1: EXPAND(uint8_t)
    case 2: EXPAND(uint16_t)
    case 4: EXPAND(uint32_t)
    default: EXPAND(uint64_t)
  }
#undef EXPAND
}

/* Writes one row of `bytes` bytes `rows` times. */
static inline void mpg_expand_row(const char *from, int64_t bytes, int64_t rows, char *out) {
  typedef uint8_t vector __attribute__((vector_size(64), aligned(1), may_alias));
  char row[MPG_EXPAND_ROW * 8 + MPG_EXPAND_SLACK];
  memcpy(row, from, (size_t)bytes);
  memset(row + bytes, 0, MPG_EXPAND_SLACK);
  for (int64_t r = 0; r < rows; r++, out += bytes)
    for (int64_t i = 0; i < bytes; i += 64)
      *(vector *)(void *)(out + i) = *(const vector *)(const void *)(row + i);
}

/* Expands rows [row, row + rows) of the operand into `out`. dims[0] must be at most
 * MPG_EXPAND_ROW. */
static inline void mpg_expand(const char *data, size_t size, int ndim, const int64_t *dims,
                              const int64_t *strides, int64_t row, int64_t rows, char *out) {
  int64_t n = dims[0], length = ndim > 1 ? dims[1] : 1, step = ndim > 1 ? strides[1] : 0;
  while (rows > 0) {
    int64_t first = row % length, rest = row / length, at = first * step;
    int64_t count = length - first < rows ? length - first : rows;
    for (int d = 2; d < ndim; d++) {
      at += rest % dims[d] * strides[d];
      rest /= dims[d];
    }
    const char *from = data + at * (int64_t)size;
    if (step && strides[0])
      memcpy(out, from, (size_t)(count * n) * size);
    else if (step)
      mpg_expand_elements(size, from, n, count, out);
    else if (strides[0])
      mpg_expand_row(from, n * (int64_t)size, count, out);
    else
      mpg_expand_elements(size, from, n * count, 1, out);
    out += count * n * (int64_t)size;
    row += count;
    rows -= count;
  }
}

#endif
