/* Products that come in panels of rows: dense ones and convolutions with the channels last, whose
 * results are larger than caches. A panel's bits depend on the product's shapes, the number of
 * threads and the panel alone, so that a fused group may go on with each while it is in a cache
 * (op/fused.h), with the bits of the op by itself.
 * Plain values; any thread.
 */
#ifndef MPG_OP_MATH_PRODUCT_H
#define MPG_OP_MATH_PRODUCT_H

#include "op/op.h"

typedef struct mpg_product { /* the result is (m, n); of a dense one, (m, k) by (k, n), the second
                                maybe stored as (n, k) */
  int64_t m, n, k;
  bool transposed;
  int64_t panel; /* rows */
  int64_t least; /* panels may be halved while they stay whole multiples of so many rows */
} mpg_product;

/* With many threads, smaller panels may be better. */
static inline int64_t mpg_product_panel(const mpg_product *p, int threads) {
  int64_t rows = p->panel;
  while (rows % (2 * p->least) == 0 && p->m / rows < 4 * (int64_t)threads) rows /= 2;
  return rows;
}

/* False: another op, or a product that is made as a whole. inputs: their shapes and dtypes; the
 * first two are read. */
bool mpg_product_in_panels(const mpg_op *op, const void *params, const mpg_desc *const *inputs,
                           mpg_product *p);
/* For a dense product: the decision by sizes alone. */
bool mpg_product_cut(mpg_product *p);

#endif
