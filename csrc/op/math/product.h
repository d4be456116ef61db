/* Matrix products computed in panels (blocks of rows of the result): dense products and
 * channels-last convolutions with results larger than the caches. The bits of a panel depend only
 * on the product's shapes, the number of threads and the position of the panel. A fused group can
 * therefore process each panel while it is in the cache (op/fused.h) and still be bit-identical to
 * the separate ops. These are plain values, and the functions may be called from any thread.
 */
#ifndef MPG_OP_MATH_PRODUCT_H
#define MPG_OP_MATH_PRODUCT_H

#include "op/op.h"

/* A product with the result (m, n). A dense product is (m, k) by (k, n). If `transposed`, the
 * second factor is stored as (n, k). */
typedef struct mpg_product {
  int64_t m, n, k;
  bool transposed;
  int64_t panel; /* rows per panel */
  int64_t least; /* a panel may be halved while it remains a multiple of this number of rows */
} mpg_product;

/* Returns the number of rows per panel. With many threads, panels are smaller, so that each thread
 * gets several of them. */
static inline int64_t mpg_product_panel(const mpg_product *p, int threads) {
  int64_t rows = p->panel;
  while (rows % (2 * p->least) == 0 && p->m / rows < 4 * (int64_t)threads) rows /= 2;
  return rows;
}

/* Fills *p if a call is a product that is computed in panels; otherwise returns false. Reads only
 * the first two `inputs`. */
bool mpg_product_in_panels(const mpg_op *op, const void *params, const mpg_desc *const *inputs,
                           mpg_product *p);
/* Chooses the panels of a dense product from its sizes. Returns false if it is computed as a
 * whole. */
bool mpg_product_cut(mpg_product *p);

#endif
