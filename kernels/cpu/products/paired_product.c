/* Packs the right operand of bfloat16 products for oneDNN. */
#include "kernels/cpu/products/paired_product.h"

#ifdef MPG_WITH_ONEDNN
#include "kernels/cpu/products/pairs.h"
#ifdef MPG_WITH_PAIRS
#include "kernels/cpu/products/pairs_packing.h"

/* Below these sizes, packing costs more than it saves. A transposed B needs more rows, since
 * oneDNN's own copy of it is faster. */
enum { FEWEST_ROWS = 1024, FEWEST_ROWS_TRANSPOSED = 2048, FEWEST_COLUMNS = 256 };
/* Maximum size of packed B in bytes. Limited because the device keeps its scratch memory
 * allocated. */
enum { MOST_PACKED = 16 << 20 };

typedef struct packing {
  const uint16_t *b;
  int64_t n, k, width;
  bool transposed;
  mpg_pair *to;
} packing;

static void pack_panels(void *context, int64_t begin, int64_t end) {
  const packing *p = context;
  const int64_t stride = p->width * PAIRS_LANES;
  for (int64_t panel = begin; panel < end; panel++) {
    int64_t column = panel * stride, left = p->n - column;
    mpg_pair *to = p->to + column * pairs_depth(p->k);
    if (!p->transposed) {
      pack_pairs_of_rows(p->b + column, p->n, (int)p->width, left, p->k, to, stride);
      continue;
    }
    for (int64_t v = 0; v < p->width; v++, left -= PAIRS_LANES) {
      int valid = left < 0 ? 0 : left < PAIRS_LANES ? (int)left : PAIRS_LANES;
      const uint16_t *from = p->b + (valid ? column + v * PAIRS_LANES : 0) * p->k;
      pack_transposed_pairs(from, p->k, valid, p->k, to + v * PAIRS_LANES, stride);
    }
  }
}

static int64_t panels(const mpg_onednn_matmul *s, int64_t width) {
  return (s->n + width * PAIRS_LANES - 1) / (width * PAIRS_LANES);
}

static bool find_packed(const mpg_kernel_call *call, const mpg_onednn_matmul *s,
                        mpg_paired_product *product) {
  if (s->dtype != dnnl_bf16 || s->batch != 1 ||
      s->m < (s->tb ? FEWEST_ROWS_TRANSPOSED : FEWEST_ROWS) || s->n < FEWEST_COLUMNS ||
      s->ldc != s->n || mpg_cpu_pairs() != MPG_PAIRS_IN_TILES)
    return false;
  /* Panels of 64 columns are divided among threads, as in oneDNN. With fewer panels than threads,
   * some threads would be idle. */
  if (s->n / (PAIRS_PANEL * PAIRS_LANES) < call->num_threads ||
      s->k > MOST_PACKED / (int64_t)sizeof(uint16_t) / s->n)
    return false;
  mpg_onednn_matmul packed = *s;
  packed.packed = true, packed.tb = false;
  product->prepared = mpg_cpu_onednn_matmul_find(call, &packed);
  if (!product->prepared) return false;
  int64_t width = mpg_onednn_matmul_width(product->prepared);
  product->packed =
      (size_t)(panels(s, width) * width * PAIRS_LANES * pairs_depth(s->k)) * sizeof(mpg_pair);
  product->scratch = product->packed + product->prepared->scratch;
  return true;
}
#endif

bool mpg_cpu_paired_product_find(const mpg_kernel_call *call, const mpg_onednn_matmul *s,
                                 mpg_paired_product *product) {
  *product = (mpg_paired_product){0};
#ifdef MPG_WITH_PAIRS
  if (find_packed(call, s, product)) return true;
#endif
  product->prepared = mpg_cpu_onednn_matmul_find(call, s);
  if (product->prepared) product->scratch = product->prepared->scratch;
  return product->prepared != NULL;
}

mpg_status mpg_cpu_paired_product_run(const mpg_kernel_call *call, const mpg_onednn_matmul *s,
                                      const mpg_paired_product *product, const void *a,
                                      const void *b, const void *bias, void *c, void *scratch) {
#ifdef MPG_WITH_PAIRS
  if (product->packed) {
    packing p = {b, s->n, s->k, mpg_onednn_matmul_width(product->prepared), s->tb, scratch};
    mpg_cpu_parallel_for(call, panels(s, p.width), 1, pack_panels, &p);
    b = scratch, scratch = (char *)scratch + product->packed;
  }
#else
  (void)s;
#endif
  return mpg_cpu_onednn_run(call, product->prepared,
                            (void *const[]){(void *)a, (void *)b, c, (void *)bias}, scratch);
}
#endif
