/* Matrix products that come in panels of rows: those whose results are larger than caches. A panel's bits depend on the product's shapes, the number of
 * threads and the panel alone, so that a fused group may go on with each while it is in a cache (op/fused.h), with the bits of the op by itself.
 * Plain values; any thread.
 */
#ifndef MPG_OP_PRODUCT_H
#define MPG_OP_PRODUCT_H

#include "op/op.h"

typedef struct mpg_product { /* (m, k) by (k, n), the second maybe stored as (n, k) */
  int64_t m, n, k;
  bool transposed;
  int64_t panel; /* rows; a power of two */
} mpg_product;

/* So many threads may want smaller panels. */
static inline int64_t mpg_product_panel(const mpg_product *p, int threads) {
  int64_t rows = p->panel;
  while (rows > 32 && p->m / rows < 4 * (int64_t)threads) rows /= 2;
  return rows;
}

/* False: another op, or a product that is made as a whole. */
static inline bool mpg_product_in_panels(const mpg_op *op, const void *params, const mpg_desc *a, const mpg_desc *b, mpg_product *p) {
  enum { ROWS = 2048, ELEMENTS = 1 << 21, LEAST = 16, MOST = 4096 };
  const mpg_shape *as = &a->shape, *bs = &b->shape;
  if ((op->id != MPG_OP_FullyConnected && op->id != MPG_OP_dot) || a->dtype != MPG_FLOAT32 || b->dtype != MPG_FLOAT32 || as->ndim < 2 || bs->ndim < 2) return false;
  if (op->id == MPG_OP_dot) {
    const mpg_dot_params *dot = (const mpg_dot_params *)params;
    if (dot->transpose_a) return false;
    p->transposed = dot->transpose_b;
    p->k = as->dims[as->ndim - 1];
    p->n = dot->transpose_b ? mpg_shape_product(bs, 0, bs->ndim - 1) : mpg_shape_product(bs, 1, bs->ndim);
  } else {
    p->transposed = true;
    p->n = bs->dims[0];
    p->k = bs->dims[1];
  }
  if (p->k < LEAST || p->n < LEAST || p->n > MOST) return false;
  p->m = mpg_shape_size(as) / p->k;
  p->panel = p->m < 4096 ? 128 : 256;
  return p->m >= ROWS && p->m * p->n >= ELEMENTS;
}

#endif
