/* Packed weights, in a kernel's layout: an array of floats, the first MPG_PACKED_HEADER of which
 * describe the rest. It has room for the original weight and for blocked layouts. Plain values; any
 * thread. */
#ifndef MPG_OP_LAYERS_PACKED_H
#define MPG_OP_LAYERS_PACKED_H

#include <stdint.h>

enum { MPG_PACKED_HEADER = 16, MPG_PACKED_BLOCK = 64 };

/* Number of floats of a packed matrix, the weight of a dense layer (matmul.c). */
int64_t mpg_packed_matrix_elements(int64_t rows, int64_t columns);

#endif
