/* Attention, block by block, for one computing type. Included by attention.c with
 *   T, BITS    computing type, and an integer of its size
 *   EXP, TANH  functions of T
 *   NAME(x)    the name x of this instance, which is spelled x_T here
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
#define change_row_T NAME(change_row)
#define divide_T NAME(divide)
#define drop_row_T NAME(drop_row)
#define group_T NAME(group)
#define largest_T NAME(largest)
#define finish_row_T NAME(finish_row)
#define one_block_T NAME(one_block)
#define pack_rows_T NAME(pack_rows)
#define pack_query_T NAME(pack_query)
#define pack_transposed_T NAME(pack_transposed)
#define prepare_T NAME(prepare)
#define scores_T NAME(scores)
#define sum_T NAME(sum)
#define tile_T NAME(tile)
#define tile_by_columns_T NAME(tile_by_columns)
#define tile_by_rows_T NAME(tile_by_rows)
#define tile_rows_T NAME(tile_rows)
#define tiles_end_T NAME(tiles_end)
#define unpack_rows_T NAME(unpack_rows)
#define weights_again_T NAME(weights_again)
#define weigh_T NAME(weigh)
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

/* Returns the end of the last tile of `rows` rows. */
static inline int64_t tiles_end_T(int64_t rows) {
  int64_t end = 0;
  while (end < rows) end += tile_rows_T(rows - end);
  return end;
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
    int64_t e = 0;
    if (sizeof(T) == 4 && NR_T % MPG_TURNED == 0 && count == NR_T)
      for (; e + MPG_TURNED <= width; e += MPG_TURNED)
        for (int64_t i = 0; i < NR_T; i += MPG_TURNED)
          mpg_turn_item4((const char *)(rows + i * by_row + e), (char *)(to + e * NR_T + i),
                         by_row * (int64_t)sizeof(T), NR_T * (int64_t)sizeof(T));
    for (; e < width; e += LANES) {
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

/* Copies the query rows of a block, times the scale, to rows of `padded` elements. Rows after them
 * become zeros, up to row `rows`. */
static void pack_query_T(const attention *p, const block *b, T *to, int64_t padded, int64_t rows) {
  for (int64_t i = 0; i < b->count; i++)
    pack_rows_T(at_T(&p->query, b->batch, b->heads[i]) + b->rows[i] * p->query.by_row, 0, 1,
                p->width, (T)p->scale, to + i * padded, padded, 1);
  if (rows > b->count)
    memset(to + b->count * padded, 0, (size_t)((rows - b->count) * padded) * sizeof(T));
}

/* Adding 0 replaces -0, whose sign may depend on keys that a row doesn't see. */
static void unpack_rows_T(const T *from, int64_t padded, int64_t n, int64_t width, T factor, T *to,
                          int64_t by_row) {
  for (int64_t i = 0; i < n; i++)
    for (int64_t e = 0; e < width; e++) to[i * by_row + e] = from[i * padded + e] * factor + 0;
}

/* --- Scores ----------------------------------------------------------------------------------- */

/* Computes out[BLOCK_ROWS x BLOCK_KEYS] = a[rows x width, row stride lda] x panels of keys (or
 * values). A tile consists of the keys that its rows see. */
static void scores_T(const block *b, const T *a, int64_t lda, int64_t width, const T *panels,
                     T *out) {
  for (int64_t i = 0, height; i < b->count; i += height) {
    height = tile_rows_T(b->count - i);
    range r = seen_by(b, i, i + height);
    for (int64_t j = r.low / NR_T * NR_T; j < r.high; j += NR_T)
      tile_by_rows_T((int)height, width, a + i * lda, lda, panels + j * width, NR_T,
                     out + i * BLOCK_KEYS + j, BLOCK_KEYS, false);
  }
}

/* Limits the scores of row i of a block by the soft cap, adds the mask, and hides keys of other
 * segments by -inf. If `slopes`, stores the derivative of the soft cap. */
static __attribute__((noinline)) void change_row_T(const attention *p, const block *b, int64_t i,
                                                   T *s, T *slopes) {
  const range r = b->now[i];
  int64_t end = round_up(r.high, 16), low = r.low / 16 * 16;
  if (p->softcap > 0) {
    T cap = (T)p->softcap, factor = 1 / cap;
    for (int64_t j = low; j < end; j++) s[j] = TANH(s[j] * factor);
    if (slopes)
      for (int64_t j = low; j < end; j++) slopes[j] = 1 - s[j] * s[j];
    for (int64_t j = low; j < end; j++) s[j] *= cap;
  }
  if (p->mask) {
    int64_t at = b->batch * p->mask_batch + b->heads[i] * p->mask_head + b->rows[i] * p->mask_row +
                 b->key * p->mask_key;
    if (p->mask_is_bool) {
      const bool *m = (const bool *)(const void *)p->mask + at;
      for (int64_t j = r.low; j < r.high; j++) s[j] = m[j * p->mask_key] ? s[j] : -(T)INFINITY;
    } else {
      const T *m = (const T *)(const void *)p->mask + at;
      if (p->mask_key)
        for (int64_t j = r.low; j < r.high; j++) s[j] += m[j];
      else
        for (int64_t j = r.low; j < r.high; j++) s[j] += m[0];
    }
  }
  if (p->segments) {
    const int32_t *segments = segments_of(p, b->batch), own = segments[p->first + b->rows[i]];
    for (int64_t j = r.low; j < r.high; j++)
      s[j] = segments[b->key + j] == own ? s[j] : -(T)INFINITY;
  }
}

/* Completes the scores of row i (change_row). Keys that the row does not see get -inf, up to the
 * end of the last group of 16. Returns that end. */
static inline int64_t finish_row_T(const attention *p, const block *b, int64_t i, T *s, T *slopes) {
  const range r = b->now[i];
  int64_t end = round_up(r.high, 16);
  if (p->changes) change_row_T(p, b, i, s, slopes);
  for (int64_t j = 0; j < r.low; j++) s[j] = -(T)INFINITY;
  for (int64_t j = r.high; j < end; j++) s[j] = -(T)INFINITY;
  return end;
}

/* Applies dropout to the first n weights of row i of a block. */
static void drop_row_T(const attention *p, const block *b, int64_t i, const T *from, T *to,
                       int64_t n) {
  uint32_t buffer[MOST_KEYS + 8];
  /* The random words of a row are consecutive, since the runs of the random key (base/philox.h)
   * consist of whole rows. */
  uint64_t first = mpg_random_position(
      &p->draw,
      (uint64_t)(((b->batch * p->heads + b->heads[i]) * p->rows + b->rows[i]) * p->all_keys +
                 p->before + b->key));
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

/* True if a key head has one block of rows. The block then packs its keys piece by piece, in cache
 * memory, because no other block uses them. */
static bool one_block_T(const attention *p) { return p->all_rows <= BLOCK_ROWS; }

static size_t attention_forward_bytes_T(const attention *p) {
  int64_t keys = one_block_T(p) ? BLOCK_KEYS : round_up(p->keys, BLOCK_KEYS),
          padded = round_up(p->value_width, NR_T);
  return (size_t)(keys * (p->width + padded) + BLOCK_ROWS * (p->width + BLOCK_KEYS + padded)) *
         sizeof(T);
}

/* Updates the sums of row i with its scores w, which become weights. `first` is true for the first
 * block of keys. */
static inline void weigh_T(const attention *p, const block *b, int64_t i, bool first, T *w, T *max,
                           T *total, T *sums, int64_t padded) {
  range r = b->now[i];
  int64_t groups = 0;
  if (r.high) {
    groups = finish_row_T(p, b, i, w, NULL);
    T new_max = largest_T(w, groups, *max), shift = new_max == -(T)INFINITY ? 0 : new_max;
    T shrink = EXP(*max - shift);
    for (int64_t j = 0; j < groups; j++) w[j] = EXP(w[j] - shift);
    *total = *total * shrink + sum_T(w, groups);
    if (!first && new_max != *max)
      for (int64_t e = 0; e < padded; e++) sums[e] *= shrink;
    *max = new_max;
    if (p->drops) drop_row_T(p, b, i, w, w, r.high);
  }
  for (int64_t j = groups; j < BLOCK_KEYS; j++) w[j] = 0;
}

/* Computes forward units. A unit is a block of rows of one key head; units are ordered by head, so
 * that a thread packs the keys and values of a head once. */
static void attention_forward_T(void *context, int64_t begin, int64_t end) {
  const attention *p = context;
  const bool one = one_block_T(p), copied = p->value_width % NR_T != 0 || !one;
  int64_t room = one ? BLOCK_KEYS : round_up(p->keys, BLOCK_KEYS),
          padded = round_up(p->value_width, NR_T), packed = -1;
  T *key_panels = (T *)(void *)(p->scratch + (size_t)omp_get_thread_num() * p->scratch_bytes),
    *values = key_panels + room * p->width;
  T *query = values + room * padded, *s = query + BLOCK_ROWS * p->width,
    *sums = s + BLOCK_ROWS * BLOCK_KEYS;
  int64_t blocks = blocks_of(p->all_rows, BLOCK_ROWS);
  range span = {0, 0};
  for (int64_t unit = begin; unit < end; unit++) {
    int64_t index = unit / blocks, batch = index / p->key_heads, head = index % p->key_heads;
    const T *keys_from = at_T(&p->key, batch, head), *values_from = at_T(&p->value, batch, head);
    block b;
    block_of(p, index, unit % blocks * BLOCK_ROWS, BLOCK_ROWS, &b);
    if (packed != index && !one) {
      span = span_of(p, batch, BLOCK_KEYS);
      pack_transposed_T(keys_from + span.low * p->key.by_row, p->key.by_row, span.high - span.low,
                        p->width, key_panels);
      pack_rows_T(values_from + span.low * p->value.by_row, p->value.by_row, span.high - span.low,
                  p->value_width, 1, values, padded, span.high - span.low);
      packed = index;
    }
    pack_query_T(p, &b, query, p->width, tiles_end_T(b.count));
    T max[BLOCK_ROWS], total[BLOCK_ROWS];
    for (int64_t i = 0; i < b.count; i++) max[i] = -(T)INFINITY, total[i] = 0;
    if (!b.all.high) memset(sums, 0, (size_t)(b.count * padded) * sizeof(T));
    int64_t first = b.all.low / BLOCK_KEYS * BLOCK_KEYS;
    for (int64_t key = first; key < b.all.high; key += BLOCK_KEYS) {
      const T *panels = key_panels + (one ? 0 : key - span.low) * p->width,
              *block_values = values + (one ? 0 : key - span.low) * padded;
      int64_t by_value = padded;
      if (one) {
        int64_t n = b.all.high - key < BLOCK_KEYS ? b.all.high - key : BLOCK_KEYS;
        pack_transposed_T(keys_from + key * p->key.by_row, p->key.by_row, n, p->width, key_panels);
        if (copied)
          pack_rows_T(values_from + key * p->value.by_row, p->value.by_row, n, p->value_width, 1,
                      values, padded, n);
        else
          block_values = values_from + key * p->value.by_row, by_value = p->value.by_row;
        int64_t next = key + BLOCK_KEYS, size = (int64_t)sizeof(T),
                more = within(b.all.high - next, 0, BLOCK_KEYS);
        fetch_rows((const char *)(keys_from + next * p->key.by_row), p->key.by_row * size, more,
                   p->width * size);
        fetch_rows((const char *)(values_from + next * p->value.by_row), p->value.by_row * size,
                   more, p->value_width * size);
      }
      look_at(&b, key, BLOCK_KEYS);
      scores_T(&b, query, p->width, p->width, panels, s);
      for (int64_t i = 0; i < b.count; i++)
        weigh_T(p, &b, i, key == first, s + i * BLOCK_KEYS, &max[i], &total[i], sums + i * padded,
                padded);
      for (int64_t i = 0, height; i < b.count; i += height) {
        height = tile_rows_T(b.count - i);
        range r = seen_by(&b, i, i + height);
        for (int64_t e = 0; e < padded; e += NR_T)
          tile_by_rows_T((int)height, r.high - r.low, s + i * BLOCK_KEYS + r.low, BLOCK_KEYS,
                         block_values + r.low * by_value + e, by_value, sums + i * padded + e,
                         padded, key > first);
      }
    }
    for (int64_t i = 0; i < b.count; i++) {
      T factor = total[i] == 0 && p->empty_is_zero ? 0 : 1 / total[i];
      unpack_rows_T(sums + i * padded, padded, 1, p->value_width, factor,
                    at_T(&p->result, batch, b.heads[i]) + b.rows[i] * p->result.by_row, 0);
      if (!p->sums) continue;
      T *kept = (T *)p->sums + 2 * (batch * p->heads + b.heads[i]) * p->rows + b.rows[i];
      kept[0] = max[i];
      kept[p->rows] = total[i];
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
  int64_t keys = round_up(p->keys, BLOCK_KEYS), rows = round_up(p->all_rows, BLOCK_ROWS);
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
static void weights_again_T(const attention *p, const work_T *w, const block *b) {
  int64_t key = b->key;
  scores_T(b, w->query + b->first * w->padded, w->padded, p->width, w->key_panels + key * p->width,
           w->weights);
  scores_T(b, w->grads + b->first * w->value_padded, w->value_padded, p->value_width,
           w->value_panels + key * p->value_width, w->score_grads);
  for (int64_t i = 0; i < b->count; i++) {
    T *restrict s = w->weights + i * BLOCK_KEYS, *restrict d = w->score_grads + i * BLOCK_KEYS,
                kept[BLOCK_KEYS], slopes[BLOCK_KEYS];
    const T *sums =
        (const T *)p->sums + 2 * (b->batch * p->heads + b->heads[i]) * p->rows + b->rows[i];
    range r = b->now[i];
    int64_t n = r.high, groups = 0;
    if (n) groups = finish_row_T(p, b, i, s, slopes);
    T shift = sums[0], total = p->merged ? 1 : sums[p->rows], factor = 1 / total,
      less = p->merged ? sums[p->rows] : w->inner[b->first + i];
    if (total == 0 && p->empty_is_zero) shift = factor = 0;
    for (int64_t j = 0; j < groups; j++) s[j] = EXP(s[j] - shift) * factor;
    if (p->drops && n) {
      drop_row_T(p, b, i, s, kept, n);
      drop_row_T(p, b, i, d, d, n);
    }
    for (int64_t j = 0; j < r.low; j++) d[j] = 0;
    for (int64_t j = n; j < groups; j++) d[j] = 0;
    for (int64_t j = 0; j < groups; j++) d[j] = s[j] * (d[j] - less);
    if (p->softcap > 0)
      for (int64_t j = r.low; j < n; j++) d[j] *= slopes[j];
    if (p->drops) memcpy(s, kept, (size_t)n * sizeof(T));
    for (int64_t j = groups; j < BLOCK_KEYS; j++) s[j] = d[j] = 0;
  }
}

/* Packs the operands that all blocks of a key head share. */
static void prepare_T(const attention *p, work_T *w, int64_t index) {
  int64_t batch = index / p->key_heads, head = index % p->key_heads;
  const T *key = at_T(&p->key, batch, head), *value = at_T(&p->value, batch, head);
  int64_t rows = round_up(p->all_rows, BLOCK_ROWS) - p->all_rows;
  pack_transposed_T(key, p->key.by_row, p->keys, p->width, w->key_panels);
  pack_transposed_T(value, p->value.by_row, p->keys, p->value_width, w->value_panels);
  pack_rows_T(key, p->key.by_row, p->keys, p->width, 1, w->keys, w->padded, p->keys);
  for (int64_t h = 0; h < p->group; h++) {
    int64_t own = head * p->group + h, first = h * p->rows;
    const T *grad = at_T(&p->grad, batch, own), *output = at_T(&p->output, batch, own);
    pack_rows_T(at_T(&p->query, batch, own), p->query.by_row, p->rows, p->width, (T)p->scale,
                w->query + first * w->padded, w->padded, p->rows);
    pack_rows_T(grad, p->grad.by_row, p->rows, p->value_width, 1,
                w->grads + first * w->value_padded, w->value_padded, p->rows);
    for (int64_t i = 0; !p->merged && i < p->rows; i++) {
      T sum = 0;
      for (int64_t e = 0; e < p->value_width; e++)
        sum += grad[i * p->grad.by_row + e] * output[i * p->output.by_row + e];
      w->inner[first + i] = sum;
    }
  }
  memset(w->query + p->all_rows * w->padded, 0, (size_t)(rows * w->padded) * sizeof(T));
  memset(w->grads + p->all_rows * w->value_padded, 0, (size_t)(rows * w->value_padded) * sizeof(T));
}

/* Adds the contribution of the block at (row, key) to the gradients of query rows (`for_rows`), and
 * of keys and values (`for_keys`). */
static void backward_block_T(const attention *p, const work_T *w, block *b, int64_t key,
                             bool for_rows, bool for_keys) {
  int64_t n = look_at(b, key, BLOCK_KEYS).high, row = b->first;
  if (n == 0) return;
  weights_again_T(p, w, b);
  for (int64_t j = 0, height; for_keys && j < n; j += height) {
    height = tile_rows_T(n - j);
    /* The first and the last row of the block that see these keys. */
    int64_t first = 0, last = b->count - 1;
    while (first <= last && !overlaps(b->now[first], j, j + height)) first++;
    while (first <= last && !overlaps(b->now[last], j, j + height)) last--;
    if (first > last) continue;
    int64_t at = first * BLOCK_KEYS + j;
    for (int64_t e = 0; e < w->value_padded; e += NR_T)
      tile_by_columns_T((int)height, last + 1 - first, w->weights + at, BLOCK_KEYS,
                        w->grads + (row + first) * w->value_padded + e, w->value_padded,
                        w->value_grads + (key + j) * w->value_padded + e, w->value_padded, true);
    for (int64_t e = 0; e < w->padded; e += NR_T)
      tile_by_columns_T((int)height, last + 1 - first, w->score_grads + at, BLOCK_KEYS,
                        w->query + (row + first) * w->padded + e, w->padded,
                        w->key_grads + (key + j) * w->padded + e, w->padded, true);
  }
  for (int64_t i = 0, height; for_rows && i < b->count; i += height) {
    height = tile_rows_T(b->count - i);
    range r = seen_by(b, i, i + height);
    for (int64_t e = 0; e < w->padded; e += NR_T)
      tile_by_rows_T((int)height, r.high - r.low, w->score_grads + i * BLOCK_KEYS + r.low,
                     BLOCK_KEYS, w->keys + (key + r.low) * w->padded + e, w->padded,
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
    int64_t index = u.index, batch = index / p->key_heads, head = index % p->key_heads, row = u.row,
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
      for (int64_t i = row; i < row_end; i += BLOCK_ROWS) {
        block b;
        block_of(p, index, i, BLOCK_ROWS, &b);
        backward_block_T(p, &w, &b, j, for_rows, for_keys);
      }
    for (int64_t i = row; for_rows && i < row_end; i++)
      unpack_rows_T(w.query_grads + i * w.padded, w.padded, 1, p->width, (T)p->scale,
                    at_T(&p->query_grad, batch, head * p->group + i / p->rows) +
                        i % p->rows * p->query_grad.by_row,
                    0);
    if (!for_keys) continue;
    unpack_rows_T(w.key_grads + key * w.padded, w.padded, key_end - key, p->width, 1,
                  at_T(&p->key_grad, batch, head) + key * p->key_grad.by_row, p->key_grad.by_row);
    unpack_rows_T(w.value_grads + key * w.value_padded, w.value_padded, key_end - key,
                  p->value_width, 1, at_T(&p->value_grad, batch, head) + key * p->value_grad.by_row,
                  p->value_grad.by_row);
  }
}
