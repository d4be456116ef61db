/* Attention, block by block, for one computing type. Included by attention.c with
 *   T, BITS    computing type, and an integer of its size
 *   EXP        the exponential function of T
 *   NAME(x)    name of x in this instance, which is spelled x_T here
 *   V, LANES and their operations (lanes.h)
 * Operands are packed first: keys and values are transposed into panels of NR columns, and rows are
 * padded to whole vectors. Padding holds finite values, or is never read.
 */

/* Each x_T below is NAME(x), the name of x in this instance. */
#define NR_T NAME(NR)
#define at_T NAME(at)
#define attention_backward_T NAME(attention_backward)
#define attention_backward_bytes_T NAME(attention_backward_bytes)
#define attention_forward_T NAME(attention_forward)
#define attention_forward_bytes_T NAME(attention_forward_bytes)
#define backward_block_T NAME(backward_block)
#define bits_T NAME(bits)
#define divide_T NAME(divide)
#define drop_row_T NAME(drop_row)
#define group_T NAME(group)
#define largest_T NAME(largest)
#define mask_row_T NAME(mask_row)
#define pack_rows_T NAME(pack_rows)
#define pack_transposed_T NAME(pack_transposed)
#define prepare_T NAME(prepare)
#define scores_T NAME(scores)
#define sum_T NAME(sum)
#define tile_T NAME(tile)
#define tile_by_columns_T NAME(tile_by_columns)
#define tile_by_rows_T NAME(tile_by_rows)
#define tile_rows_T NAME(tile_rows)
#define unpack_rows_T NAME(unpack_rows)
#define weights_again_T NAME(weights_again)
#define work_T NAME(work)

enum { NR_T = 2 * LANES };

typedef T group_T __attribute__((vector_size(16 * sizeof(T)), aligned(sizeof(T))));
typedef BITS bits_T __attribute__((vector_size(16 * sizeof(T)), aligned(sizeof(T))));

static inline T *at_T(const place *p, int64_t batch, int64_t head) {
  return (T *)(void *)p->data + batch * p->by_batch + head * p->by_head;
}

/* Computes c[rows x NR] (+)= a x b. Element (r, p) of a is at r * by_row + p * by_step. */
static inline __attribute__((always_inline)) void tile_T(int rows, int64_t k, const T *a,
                                                         int64_t by_row, int64_t by_step,
                                                         const T *b, int64_t ldb, T *c, int64_t ldc,
                                                         bool add) {
  V sum[TILE][2];
  MPG_UNROLL(16)
  for (int r = 0; r < rows; r++) {
    sum[r][0] = add ? V_LOAD(c + r * ldc) : V_SET(0);
    sum[r][1] = add ? V_LOAD(c + r * ldc + LANES) : V_SET(0);
  }
  for (int64_t p = 0; p < k; p++) {
    V b0 = V_LOAD(b), b1 = V_LOAD(b + LANES);
    b += ldb;
    MPG_UNROLL(16)
    for (int r = 0; r < rows; r++) {
      V x = V_SET(a[r * by_row]);
      sum[r][0] = V_FMA(x, b0, sum[r][0]);
      sum[r][1] = V_FMA(x, b1, sum[r][1]);
    }
    a += by_step;
  }
  MPG_UNROLL(16)
  for (int r = 0; r < rows; r++) {
    V_STORE(c + r * ldc, sum[r][0]);
    V_STORE(c + r * ldc + LANES, sum[r][1]);
  }
}

/* Returns the height of the next tile if `left` rows remain. The tile may extend past the last
 * row. */
static inline int tile_rows_T(int64_t left) {
  return left > 8 || TILE < 8 ? (left > 4 ? TILE : 4) : left > 4 ? 8 : 4;
}

/* Compute a tile of any height that tile_rows returns. lda is the stride between the rows of a, or
 * in tile_by_columns, between its columns. */
static void tile_by_rows_T(int rows, int64_t k, const T *a, int64_t lda, const T *b, int64_t ldb,
                           T *c, int64_t ldc, bool add) {
  if (rows == TILE)
    tile_T(TILE, k, a, lda, 1, b, ldb, c, ldc, add);
  else if (rows == 8)
    tile_T(TILE < 8 ? 4 : 8, k, a, lda, 1, b, ldb, c, ldc, add);
  else
    tile_T(4, k, a, lda, 1, b, ldb, c, ldc, add);
}
static void tile_by_columns_T(int rows, int64_t k, const T *a, int64_t lda, const T *b, int64_t ldb,
                              T *c, int64_t ldc, bool add) {
  if (rows == TILE)
    tile_T(TILE, k, a, 1, lda, b, ldb, c, ldc, add);
  else if (rows == 8)
    tile_T(TILE < 8 ? 4 : 8, k, a, 1, lda, b, ldb, c, ldc, add);
  else
    tile_T(4, k, a, 1, lda, b, ldb, c, ldc, add);
}

/* --- Packing ---------------------------------------------------------------------------------- */

/* Packs n rows of `width` elements into transposed panels of NR rows: element (row j, column e)
 * moves to (j / NR * width + e) * NR + j % NR. */
static void pack_transposed_T(const T *from, int64_t by_row, int64_t n, int64_t width, T *to) {
  for (int64_t j = 0; j < n; j += NR_T, to += width * NR_T) {
    int64_t count = n - j < NR_T ? n - j : NR_T;
    const T *rows = from + j * by_row;
    if (count < NR_T) memset(to, 0, (size_t)(width * NR_T) * sizeof(T));
    for (int64_t e = 0; e < width; e += LANES) {
      int64_t columns = width - e < LANES ? width - e : LANES;
      for (int64_t i = 0; i < count; i++)
        for (int64_t c = 0; c < columns; c++) to[(e + c) * NR_T + i] = rows[i * by_row + e + c];
    }
  }
}

/* Copies n rows of `width` elements, scaled by `factor`, into rows of `padded` elements. Fills the
 * padding and rows [n, rows) with zeros. */
static void pack_rows_T(const T *from, int64_t by_row, int64_t n, int64_t width, T factor, T *to,
                        int64_t padded, int64_t rows) {
  for (int64_t i = 0; i < n; i++) {
    for (int64_t e = 0; e < width; e++) to[i * padded + e] = from[i * by_row + e] * factor;
    for (int64_t e = width; e < padded; e++) to[i * padded + e] = 0;
  }
  if (rows > n) memset(to + n * padded, 0, (size_t)((rows - n) * padded) * sizeof(T));
}

static void unpack_rows_T(const T *from, int64_t padded, int64_t n, int64_t width, T factor, T *to,
                          int64_t by_row) {
  for (int64_t i = 0; i < n; i++)
    for (int64_t e = 0; e < width; e++) to[i * by_row + e] = from[i * padded + e] * factor;
}

/* --- Scores ----------------------------------------------------------------------------------- */

/* Computes out[BLOCK_ROWS x BLOCK_KEYS] = a[rows x width, row stride lda] x panels of keys (or
 * values), starting at `key`. A tile ends at the last key that its rows attend to. */
static void scores_T(const attention *p, const T *a, int64_t lda, int64_t width, const T *panels,
                     int64_t row, int64_t rows, int64_t key, T *out) {
  for (int64_t i = 0, height; i < rows; i += height) {
    height = tile_rows_T(rows - i);
    int64_t last = i + height < rows ? i + height : rows,
            n = seen(p, row + last - 1, key, BLOCK_KEYS);
    for (int64_t j = 0; j < n; j += NR_T)
      tile_by_rows_T((int)height, width, a + i * lda, lda, panels + (key + j) * width, NR_T,
                     out + i * BLOCK_KEYS + j, BLOCK_KEYS, false);
  }
}

/* Adds the mask to one row of n scores and fills the rest of the last group of 16 with -inf.
 * Returns the end of that group. */
static int64_t mask_row_T(const attention *p, int64_t batch, int64_t head, int64_t row, int64_t key,
                          T *s, int64_t n) {
  if (p->mask) {
    const T *m = (const T *)(const void *)p->mask + batch * p->mask_batch + head * p->mask_head +
                 row * p->mask_row;
    if (p->mask_key)
      for (int64_t j = 0; j < n; j++) s[j] += m[key + j];
    else
      for (int64_t j = 0; j < n; j++) s[j] += m[0];
  }
  int64_t end = round_up(n, 16);
  for (int64_t j = n; j < end; j++) s[j] = -(T)INFINITY;
  return end;
}

/* Applies dropout to the weights of one row. */
static void drop_row_T(const attention *p, int64_t batch, int64_t head, int64_t row, int64_t key,
                       const T *from, T *to, int64_t n) {
  uint32_t buffer[MOST_KEYS + 8];
  /* The random words of a row are consecutive, since the runs of the random key (base/philox.h)
   * consist of whole rows. */
  uint64_t first = mpg_random_position(
      &p->draw, (uint64_t)(((batch * p->heads + head) * p->rows + row) * p->keys + key));
  const uint32_t *words = mpg_philox_words(p->draw, first, n, buffer);
  T scale = (T)p->kept_scale;
  for (int64_t j = 0; j < n; j++) to[j] = (words[j] >> 8) < p->threshold ? from[j] * scale : 0;
}

static T largest_T(const T *s, int64_t n, T max) {
  group_T m = *(const group_T *)s;
  for (int64_t j = 16; j < n; j += 16) {
    group_T x = *(const group_T *)(s + j);
    bits_T larger = x > m;
    m = (group_T)((larger & (bits_T)x) | (~larger & (bits_T)m));
  }
  for (int i = 0; i < 16; i++) max = m[i] > max ? m[i] : max;
  return max;
}

static T sum_T(const T *s, int64_t n) {
  group_T sum = *(const group_T *)s;
  for (int64_t j = 16; j < n; j += 16) sum += *(const group_T *)(s + j);
  T part[16];
  memcpy(part, &sum, sizeof part);
  for (int half = 8; half >= 1; half /= 2)
    for (int i = 0; i < half; i++) part[i] += part[i + half];
  return part[0];
}

/* --- Forward ---------------------------------------------------------------------------------- */

static size_t attention_forward_bytes_T(const attention *p) {
  int64_t keys = round_up(p->keys, BLOCK_KEYS), padded = round_up(p->value_width, NR_T);
  return (size_t)(keys * (p->width + padded) + BLOCK_ROWS * (p->width + BLOCK_KEYS + padded)) *
         sizeof(T);
}

/* Computes forward units. A unit is a block of query rows of one head; units are ordered by head,
 * so that a thread packs the keys and values of a head once. */
static void attention_forward_T(void *context, int64_t begin, int64_t end) {
  const attention *p = context;
  int64_t keys = round_up(p->keys, BLOCK_KEYS), padded = round_up(p->value_width, NR_T),
          packed = -1;
  T *key_panels = (T *)(void *)(p->scratch + (size_t)omp_get_thread_num() * p->scratch_bytes),
    *values = key_panels + keys * p->width;
  T *query = values + keys * padded, *s = query + BLOCK_ROWS * p->width,
    *sums = s + BLOCK_ROWS * BLOCK_KEYS;
  int64_t blocks = blocks_of(p->rows, BLOCK_ROWS);
  for (int64_t unit = begin; unit < end; unit++) {
    int64_t index = unit / blocks, batch = index / p->heads, head = index % p->heads,
            row = unit % blocks * BLOCK_ROWS;
    int64_t rows = p->rows - row < BLOCK_ROWS ? p->rows - row : BLOCK_ROWS;
    if (packed != index) {
      pack_transposed_T(at_T(&p->key, batch, head), p->key.by_row, p->keys, p->width, key_panels);
      pack_rows_T(at_T(&p->value, batch, head), p->value.by_row, p->keys, p->value_width, 1, values,
                  padded, p->keys);
      packed = index;
    }
    pack_rows_T(at_T(&p->query, batch, head) + row * p->query.by_row, p->query.by_row, rows,
                p->width, (T)p->scale, query, p->width, BLOCK_ROWS);
    T max[BLOCK_ROWS], total[BLOCK_ROWS];
    for (int64_t i = 0; i < rows; i++) max[i] = -(T)INFINITY, total[i] = 0;
    for (int64_t key = 0; seen(p, row + rows - 1, key, BLOCK_KEYS) > 0; key += BLOCK_KEYS) {
      scores_T(p, query, p->width, p->width, key_panels, row, rows, key, s);
      for (int64_t i = 0; i < rows; i++) {
        T *w = s + i * BLOCK_KEYS;
        int64_t n = seen(p, row + i, key, BLOCK_KEYS),
                groups = mask_row_T(p, batch, head, row + i, key, w, n);
        if (n > 0) {
          T new_max = largest_T(w, groups, max[i]), shift = new_max == -(T)INFINITY ? 0 : new_max;
          T shrink = EXP(max[i] - shift);
          for (int64_t j = 0; j < groups; j++) w[j] = EXP(w[j] - shift);
          total[i] = total[i] * shrink + sum_T(w, groups);
          if (key && new_max != max[i])
            for (int64_t e = 0; e < padded; e++) sums[i * padded + e] *= shrink;
          max[i] = new_max;
          if (p->drops) drop_row_T(p, batch, head, row + i, key, w, w, n);
        }
        for (int64_t j = groups; j < BLOCK_KEYS; j++) w[j] = 0;
      }
      for (int64_t i = 0, height; i < rows; i += height) {
        height = tile_rows_T(rows - i);
        int64_t last = i + height < rows ? i + height : rows,
                n = seen(p, row + last - 1, key, BLOCK_KEYS);
        for (int64_t e = 0; e < padded; e += NR_T)
          tile_by_rows_T((int)height, n, s + i * BLOCK_KEYS, BLOCK_KEYS, values + key * padded + e,
                         padded, sums + i * padded + e, padded, key > 0);
      }
    }
    T *result = at_T(&p->result, batch, head) + row * p->result.by_row,
      *kept = (T *)p->sums + 2 * index * p->rows + row;
    for (int64_t i = 0; i < rows; i++) {
      unpack_rows_T(sums + i * padded, padded, 1, p->value_width, 1 / total[i],
                    result + i * p->result.by_row, p->result.by_row);
      kept[i] = max[i];
      kept[p->rows + i] = total[i];
    }
  }
}

/* --- Backward --------------------------------------------------------------------------------- */

typedef struct work_T {
  int64_t padded, value_padded;      /* widths of packed rows */
  T *key_panels, *value_panels;      /* packed as transposed panels */
  T *keys, *key_grads, *value_grads; /* packed as rows */
  /* Query rows (scaled), their gradients, the result's gradient, and the dot product <grad, output>
   * of each row. */
  T *query, *query_grads, *grads, *inner;
  T *weights, *score_grads; /* for one block */
} work_T;

static size_t divide_T(const attention *p, char *scratch, work_T *w) {
  int64_t keys = round_up(p->keys, BLOCK_KEYS), rows = round_up(p->rows, BLOCK_ROWS);
  w->padded = round_up(p->width, NR_T), w->value_padded = round_up(p->value_width, NR_T);
  scratch_parts parts = {.data = scratch};
  TAKE(w, key_panels, keys * p->width);
  TAKE(w, value_panels, keys * p->value_width);
  TAKE(w, keys, keys * w->padded);
  TAKE(w, key_grads, keys * w->padded);
  TAKE(w, value_grads, keys * w->value_padded);
  TAKE(w, query, rows * w->padded);
  TAKE(w, query_grads, rows * w->padded);
  TAKE(w, grads, rows * w->value_padded);
  TAKE(w, inner, rows);
  TAKE(w, weights, BLOCK_ROWS * BLOCK_KEYS);
  TAKE(w, score_grads, BLOCK_ROWS * BLOCK_KEYS);
  return parts.taken;
}

static size_t attention_backward_bytes_T(const attention *p) {
  work_T w;
  return divide_T(p, NULL, &w);
}

/* Recomputes the weights of a block, and computes the gradients of the block's scores. */
static void weights_again_T(const attention *p, const work_T *w, int64_t index, int64_t row,
                            int64_t rows, int64_t key) {
  int64_t batch = index / p->heads, head = index % p->heads;
  const T *max = (const T *)p->sums + 2 * index * p->rows + row, *total = max + p->rows,
          *inner = w->inner + row;
  scores_T(p, w->query + row * w->padded, w->padded, p->width, w->key_panels, row, rows, key,
           w->weights);
  scores_T(p, w->grads + row * w->value_padded, w->value_padded, p->value_width, w->value_panels,
           row, rows, key, w->score_grads);
  for (int64_t i = 0; i < rows; i++) {
    T *restrict s = w->weights + i * BLOCK_KEYS, *restrict d = w->score_grads + i * BLOCK_KEYS,
                kept[BLOCK_KEYS];
    int64_t n = seen(p, row + i, key, BLOCK_KEYS),
            groups = mask_row_T(p, batch, head, row + i, key, s, n);
    T shift = max[i], factor = 1 / total[i], less = inner[i];
    for (int64_t j = 0; j < groups; j++) s[j] = EXP(s[j] - shift) * factor;
    if (p->drops) {
      drop_row_T(p, batch, head, row + i, key, s, kept, n);
      drop_row_T(p, batch, head, row + i, key, d, d, n);
    }
    for (int64_t j = n; j < groups; j++) d[j] = 0;
    for (int64_t j = 0; j < groups; j++) d[j] = s[j] * (d[j] - less);
    if (p->drops) memcpy(s, kept, (size_t)n * sizeof(T));
    for (int64_t j = groups; j < BLOCK_KEYS; j++) s[j] = d[j] = 0;
  }
}

/* Packs the operands that all blocks of a head share. */
static void prepare_T(const attention *p, work_T *w, int64_t index) {
  int64_t batch = index / p->heads, head = index % p->heads;
  const T *key = at_T(&p->key, batch, head), *value = at_T(&p->value, batch, head),
          *grad = at_T(&p->grad, batch, head);
  const T *output = at_T(&p->output, batch, head);
  int64_t rows = round_up(p->rows, BLOCK_ROWS);
  pack_transposed_T(key, p->key.by_row, p->keys, p->width, w->key_panels);
  pack_transposed_T(value, p->value.by_row, p->keys, p->value_width, w->value_panels);
  pack_rows_T(key, p->key.by_row, p->keys, p->width, 1, w->keys, w->padded, p->keys);
  pack_rows_T(at_T(&p->query, batch, head), p->query.by_row, p->rows, p->width, (T)p->scale,
              w->query, w->padded, rows);
  pack_rows_T(grad, p->grad.by_row, p->rows, p->value_width, 1, w->grads, w->value_padded, rows);
  for (int64_t i = 0; i < p->rows; i++) {
    T sum = 0;
    for (int64_t e = 0; e < p->value_width; e++)
      sum += grad[i * p->grad.by_row + e] * output[i * p->output.by_row + e];
    w->inner[i] = sum;
  }
}

/* Adds the contribution of the block at (row, key) to the gradients of query rows (`for_rows`), and
 * of keys and values (`for_keys`). */
static void backward_block_T(const attention *p, const work_T *w, int64_t index, int64_t row,
                             int64_t key, bool for_rows, bool for_keys) {
  int64_t rows = p->rows - row < BLOCK_ROWS ? p->rows - row : BLOCK_ROWS,
          n = seen(p, row + rows - 1, key, BLOCK_KEYS);
  if (n == 0) return;
  weights_again_T(p, w, index, row, rows, key);
  for (int64_t j = 0, height; for_keys && j < n; j += height) {
    height = tile_rows_T(n - j);
    /* `first` is the first row of the block that attends to these keys. */
    int64_t first = p->causal && key + j > row ? key + j - row : 0, at = first * BLOCK_KEYS + j;
    for (int64_t e = 0; e < w->value_padded; e += NR_T)
      tile_by_columns_T((int)height, rows - first, w->weights + at, BLOCK_KEYS,
                        w->grads + (row + first) * w->value_padded + e, w->value_padded,
                        w->value_grads + (key + j) * w->value_padded + e, w->value_padded, true);
    for (int64_t e = 0; e < w->padded; e += NR_T)
      tile_by_columns_T((int)height, rows - first, w->score_grads + at, BLOCK_KEYS,
                        w->query + (row + first) * w->padded + e, w->padded,
                        w->key_grads + (key + j) * w->padded + e, w->padded, true);
  }
  for (int64_t i = 0, height; for_rows && i < rows; i += height) {
    height = tile_rows_T(rows - i);
    int64_t last = i + height < rows ? i + height : rows,
            keys = seen(p, row + last - 1, key, BLOCK_KEYS);
    for (int64_t e = 0; e < w->padded; e += NR_T)
      tile_by_rows_T((int)height, keys, w->score_grads + i * BLOCK_KEYS, BLOCK_KEYS,
                     w->keys + key * w->padded + e, w->padded,
                     w->query_grads + (row + i) * w->padded + e, w->padded, true);
  }
}

static void attention_backward_T(void *context, int64_t begin, int64_t end) {
  const attention *p = context;
  work_T w;
  divide_T(p, p->scratch + (size_t)omp_get_thread_num() * p->scratch_bytes, &w);
  bool for_rows = p->all_at_once || !p->for_keys, for_keys = p->all_at_once || p->for_keys;
  for (int64_t unit = begin, prepared = -1; unit < end; unit++) {
    const backward_unit u = backward_unit_of(p, unit, BLOCK_ROWS, BLOCK_KEYS);
    int64_t index = u.index, batch = index / p->heads, head = index % p->heads, row = u.row,
            row_end = u.row_end, key = u.key, key_end = u.key_end;
    if (prepared != index) prepare_T(p, &w, index);
    prepared = index;
    if (for_rows)
      memset(w.query_grads + row * w.padded, 0,
             (size_t)(round_up(row_end - row, BLOCK_ROWS) * w.padded) * sizeof(T));
    if (for_keys) {
      memset(w.key_grads + key * w.padded, 0,
             (size_t)(round_up(key_end - key, BLOCK_KEYS) * w.padded) * sizeof(T));
      memset(w.value_grads + key * w.value_padded, 0,
             (size_t)(round_up(key_end - key, BLOCK_KEYS) * w.value_padded) * sizeof(T));
    }
    for (int64_t j = key; j < key_end; j += BLOCK_KEYS)
      for (int64_t i = row; i < row_end; i += BLOCK_ROWS)
        backward_block_T(p, &w, index, i, j, for_rows, for_keys);
    if (for_rows)
      unpack_rows_T(w.query_grads + row * w.padded, w.padded, row_end - row, p->width, (T)p->scale,
                    at_T(&p->query_grad, batch, head) + row * p->query_grad.by_row,
                    p->query_grad.by_row);
    if (!for_keys) continue;
    unpack_rows_T(w.key_grads + key * w.padded, w.padded, key_end - key, p->width, 1,
                  at_T(&p->key_grad, batch, head) + key * p->key_grad.by_row, p->key_grad.by_row);
    unpack_rows_T(w.value_grads + key * w.value_padded, w.value_padded, key_end - key,
                  p->value_width, 1, at_T(&p->value_grad, batch, head) + key * p->value_grad.by_row,
                  p->value_grad.by_row);
  }
}
