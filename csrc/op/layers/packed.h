/* Packed weights, in the layout that a kernel wants: an array of floats, of which the first
 * MPG_PACKED_HEADER say what the rest is. It has room for the weight as it is, and for layouts in
 * blocks. Plain values; any thread. */
#ifndef MPG_OP_LAYERS_PACKED_H
#define MPG_OP_LAYERS_PACKED_H

#include <stdint.h>

enum { MPG_PACKED_HEADER = 16, MPG_PACKED_BLOCK = 64 };

/* Floats of a packed matrix, the weight of a dense layer (matmul.c). */
int64_t mpg_packed_matrix_elements(int64_t rows, int64_t columns);

#endif
