/* The products of packed_steps.h with operands rounded to bfloat16, for processors that multiply
 * bfloat16 (pairs.h). Included by packed_steps.h for float with AVX-512. */

#include "kernels/cpu/products/pairs_panel.h"

/* Depth of a block of B along k, in pairs. The block stays in the L2 cache while the rows of A
 * stream past it. With smaller blocks, C would be reloaded more often. */
enum { PAIRS_DEPTH = 256 };

static void pack_pairs(void *context, int64_t begin, int64_t end) {
  const packing_f32 *p = context;
  const packed_f32 *b = p->b;
  const int64_t k = b->k, n = b->width * b->groups, depth = pairs_depth(k);
  for (int64_t panel = begin; panel < end; panel++) {
    int64_t from = first_vector_f32(b, panel), to = first_vector_f32(b, panel + 1),
            stride = (to - from) * LANES;
    mpg_pair *data = b->pairs + from * LANES * depth;
    for (int64_t v = from; v < to; v++, data += LANES) {
      int valid;
      int64_t column = vector_column_f32(b, v, &valid);
      if (p->transposed)
        pack_transposed_pairs(p->half + column * k, k, valid, k, data, stride);
      else
        pack_pairs_of_rows(p->half + column, n, 1, valid, k, data, stride);
    }
  }
}

/* Arguments of round_rows, which rounds rows of A to bfloat16. */
typedef struct rounding {
  const packed_f32 *b;
  const float *a;
  int64_t lda;
} rounding;

static void round_rows(void *context, int64_t begin, int64_t end) {
  const rounding *p = context;
  const int64_t k = p->b->k, words = pairs_row(k), whole = k / 2;
  for (int64_t r = begin; r < end; r++) {
    mpg_pair *to = p->b->rows + r * words;
    memset(to + whole, 0, (size_t)(words - whole) * sizeof *to);
    mpg_cpu_store(MPG_COMPUTE_F32, MPG_BFLOAT16, to, 0, k, p->a + r * p->lda);
  }
}

/* Computes the columns of C that belong to one panel, from m rounded rows of A. */
static void product_of_pairs(const packed_f32 *b, int64_t panel, int64_t m, float *c, int64_t ldc,
                             bool add) {
  int64_t from = first_vector_f32(b, panel), to = first_vector_f32(b, panel + 1);
  int width = (int)(to - from), valid[PAIRS_PANEL];
  float *columns[PAIRS_PANEL];
  for (int v = 0; v < width; v++) columns[v] = c + vector_column_f32(b, from + v, &valid[v]);
  const int64_t depth = pairs_depth(b->k), line = width * LANES;
  const mpg_pair *data = b->pairs + from * LANES * depth;
  pairs_work work = {.how = b->how};
  for (int64_t p = 0; p < depth; p += PAIRS_DEPTH) {
    int64_t count = depth - p < PAIRS_DEPTH ? depth - p : PAIRS_DEPTH;
    pairs_panel(&work, m, width, count, b->rows + p, pairs_row(b->k), data + p * line,
                data + (p + count) * line, columns, ldc, valid, p == 0 && !add);
  }
  pairs_end(&work);
}
