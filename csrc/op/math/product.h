/* Products computed in panels of rows: dense products and channels-last convolutions with results
 * larger than the caches. Bit for bit, a panel depends only on the product's shapes, the number of
 * threads and the position of the panel. A fused group can therefore process each panel while it
 * is in the cache (op/fused.h), and the result is bit-identical to that of the separate op. Plain
 * values; any thread.
 */
#ifndef MPG_OP_MATH_PRODUCT_H
#define MPG_OP_MATH_PRODUCT_H

#include "op/op.h"

/* A product with the result (m, n). A dense product is (m, k) by (k, n), and the second factor may
 * be stored as (n, k). */
typedef struct mpg_product {
  int64_t m, n, k;
  bool transposed;
  int64_t panel; /* rows per panel */
  int64_t least; /* a panel may be halved while it remains a multiple of this number of rows */
} mpg_product;

/* Returns the rows per panel for a number of threads. With many threads panels are smaller, so
 * that each thread gets several. */
static inline int64_t mpg_product_panel(const mpg_product *p, int threads) {
  int64_t rows = p->panel;
  while (rows % (2 * p->least) == 0 && p->m / rows < 4 * (int64_t)threads) rows /= 2;
  return rows;
}

/* Describes a product that is computed in panels. Returns false for other ops and for products
 * that are computed as a whole. Only the first two `inputs` are read. */
bool mpg_product_in_panels(const mpg_op *op, const void *params, const mpg_desc *const *inputs,
                           mpg_product *p);
/* Sets the panels of a dense product from its sizes. Returns false if it is computed as a whole. */
bool mpg_product_cut(mpg_product *p);

#endif
