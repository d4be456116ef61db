/* Packed weights: weights in the layout that a kernel reads. A packed weight is an array of floats.
 * Its first MPG_PACKED_HEADER floats describe the rest, which has room for the original weight and
 * for blocked layouts. The function may be called from any thread. */
#ifndef MPG_OP_LAYERS_PACKED_H
#define MPG_OP_LAYERS_PACKED_H

#include <stdint.h>

enum { MPG_PACKED_HEADER = 16, MPG_PACKED_BLOCK = 64 };

/* Returns the number of floats in a packed matrix, the weight of a dense layer (matmul.c). */
int64_t mpg_packed_matrix_elements(int64_t rows, int64_t columns);

#endif
