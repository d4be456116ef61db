/* Attention in bfloat16, for processors that multiply bfloat16 (pairs_panel.h). Included by
 * attention.c after the float instance, because it uses that instance's functions to apply the mask
 * and dropout to rows of scores.
 *
 * Scores and all sums are float32. Weights (the softmax of the scores) and the gradients of scores
 * are operands of further products, so they are rounded to bfloat16.
 *
 * Backward computes the gradients of keys and values in transposed form. The weights and the
 * gradients of scores are then right operands of the products, which are packed two rows at a time
 * and need no transpose. */
enum {
  PAIR_ROWS = 64,
  PAIR_KEYS = 128,
  SCORE_ROW = PAIR_KEYS + PAIRS_LANES,      /* floats per row, an odd number of cache lines */
  WEIGHT_ROW = PAIR_KEYS / 2 + PAIRS_LANES, /* words per row */
  PANEL_COLUMNS = PAIRS_PANEL * PAIRS_LANES
};

static uint16_t *half_at(const place *p, int64_t batch, int64_t head) {
  return (uint16_t *)(void *)p->data + batch * p->by_batch + head * p->by_head;
}

/* --- Operands, products and rows of scores ---------------------------------------------------- */

/* Copies n rows of `width` elements to a left operand, whose rows are padded with zeros. Rows [n,
 * rows) become zeros. */
static void copy_rows(const uint16_t *from, int64_t by_row, int64_t n, int64_t width, mpg_pair *to,
                      int64_t rows) {
  const int64_t words = pairs_row(width);
  for (int64_t i = 0; i < rows; i++, to += words) {
    size_t bytes = i < n ? (size_t)width * sizeof *from : 0;
    if (bytes) memcpy(to, from + i * by_row, bytes);
    memset((char *)to + bytes, 0, (size_t)words * sizeof *to - bytes);
  }
}

/* Transposes n rows of `width` elements into `width` rows of n elements. */
static void turn_rows(const uint16_t *from, int64_t by_row, int64_t n, int64_t width,
                      mpg_pair *to) {
  const int64_t words = pairs_row(n);
  for (int64_t e = 0; e < width; e += MPG_TURNED)
    for (int64_t i = 0; i < 2 * pairs_depth(n); i += MPG_TURNED) {
      int64_t rows = n - i < MPG_TURNED ? n - i : MPG_TURNED,
              columns = width - e < MPG_TURNED ? width - e : MPG_TURNED;
      const uint16_t *corner = from + i * by_row + e;
      uint16_t part[MPG_TURNED][MPG_TURNED], turned[MPG_TURNED][MPG_TURNED];
      if (rows == MPG_TURNED && columns == MPG_TURNED) {
        mpg_turn_item2((const char *)corner, (char *)(to + e * words) + i * (int64_t)sizeof *from,
                       by_row * (int64_t)sizeof *from, words * (int64_t)sizeof *to);
        continue;
      }
      memset(part, 0, sizeof part);
      for (int64_t r = 0; r < rows; r++)
        memcpy(part[r], corner + r * by_row, (size_t)columns * sizeof *from);
      mpg_turn_item2((const char *)part, (char *)turned, sizeof part[0], sizeof turned[0]);
      for (int64_t c = 0; c < columns; c++)
        memcpy((uint16_t *)(void *)(to + (e + c) * words) + i, turned[c], sizeof turned[c]);
    }
}

/* Returns the number of words in a packed right operand (k, n), stored panel by panel. */
static size_t panels_words(int64_t n, int64_t k) {
  return (size_t)(round_up(n, PAIRS_LANES) * pairs_depth(k));
}
static int panel_width(int64_t n, int64_t column) {
  int64_t vectors = (n - column + PAIRS_LANES - 1) / PAIRS_LANES;
  return vectors < PAIRS_PANEL ? (int)vectors : PAIRS_PANEL;
}
/* Packs a right operand from the rows of a matrix (k, n), or of its transpose (n, k) if
 * `transposed`. */
static void pack_panels(const uint16_t *from, int64_t by_row, int64_t n, int64_t k, bool transposed,
                        mpg_pair *to) {
  for (int64_t column = 0; column < n; column += PAIRS_LANES) {
    int64_t first = column / PANEL_COLUMNS * PANEL_COLUMNS, left = n - column,
            stride = panel_width(n, first) * PAIRS_LANES;
    int valid = left < PAIRS_LANES ? (int)left : PAIRS_LANES;
    mpg_pair *vector = to + first * pairs_depth(k) + column - first;
    if (transposed)
      pack_transposed_pairs(from + column * by_row, by_row, valid, k, vector, stride);
    else
      pack_pairs_of_rows(from + column, by_row, 1, valid, k, vector, stride);
  }
}

/* Computes c[m x n] (+)= a x b over `depth` pairs. Rows of a are `lda` words apart. b is part of a
 * packed matrix (k, all): the part starts at column `column` and pair `pair`. Rows of c have room
 * for whole vectors. */
static void product(pairs_work *work, int64_t m, int64_t n, int64_t depth, const mpg_pair *a,
                    int64_t lda, const mpg_pair *b, int64_t all, int64_t k, int64_t column,
                    int64_t pair, float *c, int64_t ldc, bool first) {
  static const int whole[PAIRS_PANEL] = {PAIRS_LANES, PAIRS_LANES, PAIRS_LANES, PAIRS_LANES};
  for (int64_t j = 0; j < n; j += PANEL_COLUMNS) {
    int width = panel_width(all, column + j);
    float *to[PAIRS_PANEL];
    for (int v = 0; v < PAIRS_PANEL; v++) to[v] = c + j + v * PAIRS_LANES;
    pairs_panel(work, m, width, depth, a, lda,
                b + (column + j) * pairs_depth(k) + pair * width * PAIRS_LANES, NULL, to, ldc,
                whole, first);
  }
}

/* Rounds a row of n floats to bfloat16; n is a multiple of 16. */
static void round_row(const float *from, int64_t n, mpg_pair *to) {
  for (int64_t j = 0; j < n; j += MPG_HALVES)
    mpg_store_computed_bf16(from + j, (uint16_t *)(void *)to + j);
}

/* Converts products of row i of a block to scores (finish_row). Returns the end of the last
 * vector. */
static inline int64_t finish_scores(const attention *p, const block *b, int64_t i, float *s,
                                    float *slopes) {
  const range r = b->now[i];
  const __m512 scale = _mm512_set1_ps((float)p->scale), none = _mm512_set1_ps(-INFINITY);
  if (!r.high) return 0;
  for (int64_t j = 0; j < r.high; j += PAIRS_LANES) {
    __mmask16 lanes =
        r.high - j < PAIRS_LANES ? (__mmask16)((1u << (r.high - j)) - 1) : (__mmask16)0xffff;
    if (j < r.low)
      lanes &= r.low - j < PAIRS_LANES ? (__mmask16)(0xffffu << (r.low - j)) : (__mmask16)0;
    _mm512_storeu_ps(s + j, _mm512_mask_mul_ps(none, lanes, _mm512_loadu_ps(s + j), scale));
  }
  if (p->changes) return finish_row_f32(p, b, i, s, slopes);
  return round_up(r.high, PAIRS_LANES);
}

/* Returns the largest of `max` and n scores; n is a multiple of 16. */
static float largest_score(const float *s, int64_t n, float max) {
  __m512 largest = _mm512_set1_ps(max);
  for (int64_t j = 0; j < n; j += PAIRS_LANES)
    largest = _mm512_max_ps(_mm512_loadu_ps(s + j), largest); /* ignores NaN scores */
  return _mm512_reduce_max_ps(largest);
}

static float sum_of_weights(const float *s, int64_t n) {
  __m512 sum = _mm512_setzero_ps();
  for (int64_t j = 0; j < n; j += PAIRS_LANES) sum = _mm512_add_ps(sum, _mm512_loadu_ps(s + j));
  return _mm512_reduce_add_ps(sum);
}

/* --- Forward ---------------------------------------------------------------------------------- */
typedef struct forward_work {
  mpg_pair *keys, *values, *query, *weights;
  float *scores, *sums;
} forward_work;

/* True if a key head has one block of rows, which then packs its keys piece by piece. */
static bool one_block(const attention *p) { return p->all_rows <= PAIR_ROWS; }

static size_t divide_forward(const attention *p, char *scratch, forward_work *w) {
  scratch_parts parts = {.data = scratch};
  int64_t keys = one_block(p) && p->keys > PAIR_KEYS ? PAIR_KEYS : p->keys;
  TAKE(w, keys, panels_words(keys, p->width));
  TAKE(w, values, panels_words(p->value_width, keys));
  TAKE(w, query, PAIR_ROWS * pairs_row(p->width));
  TAKE(w, weights, PAIR_ROWS * WEIGHT_ROW);
  TAKE(w, scores, PAIR_ROWS * SCORE_ROW);
  TAKE(w, sums, PAIR_ROWS * round_up(p->value_width, PAIRS_LANES));
  return parts.taken;
}

static size_t attention_forward_bytes_pairs(const attention *p) {
  forward_work w;
  return divide_forward(p, NULL, &w);
}

/* Packs keys [from, from + n) of a key head, and their values. */
static void pack_keys(const attention *p, int64_t index, int64_t from, int64_t n,
                      const forward_work *w) {
  int64_t batch = index / p->key_heads, head = index % p->key_heads;
  pack_panels(half_at(&p->key, batch, head) + from * p->key.by_row, p->key.by_row, n, p->width,
              true, w->keys);
  pack_panels(half_at(&p->value, batch, head) + from * p->value.by_row, p->value.by_row,
              p->value_width, n, false, w->values);
}

/* Computes the weights of a block's rows from their scores, and updates their sums. Weights after
 * the last one of a row become zeros up to `used`. */
static inline void weigh_pairs(const attention *p, const block *b, bool first, int64_t used,
                               const forward_work *w, float *max, float *total) {
  const int64_t padded = round_up(p->value_width, PAIRS_LANES);
  float shift[PAIR_ROWS], shrink[PAIR_ROWS] = {0};
  for (int64_t i = 0; i < b->count; i++) {
    float *s = w->scores + i * SCORE_ROW, before = max[i];
    max[i] = largest_score(s, finish_scores(p, b, i, s, NULL), before);
    shift[i] = max[i] == -INFINITY ? 0 : max[i];
    shrink[i] = before - shift[i];
  }
  for (int64_t i = 0; i < PAIR_ROWS; i++) shrink[i] = mpg_exp_nonpositive(shrink[i]);
  for (int64_t i = 0; i < b->count; i++) {
    float *restrict s = w->scores + i * SCORE_ROW, *restrict sums = w->sums + i * padded,
                    less = shift[i], factor = shrink[i];
    int64_t n = b->now[i].high, groups = round_up(n, PAIRS_LANES);
    for (int64_t j = 0; j < groups; j++) s[j] = mpg_exp_nonpositive(s[j] - less);
    if (n) total[i] = total[i] * factor + sum_of_weights(s, groups);
    if (n && !first && factor != 1)
      for (int64_t e = 0; e < padded; e++) sums[e] *= factor;
    if (p->drops && n) drop_row_f32(p, b, i, s, s, n);
    for (int64_t j = groups; j < used; j++) s[j] = 0;
    round_row(s, used, w->weights + i * WEIGHT_ROW);
  }
}

/* Computes forward units. A unit is a block of rows of one key head; units are ordered by head, so
 * that a thread packs the keys and values of a head once. */
static void attention_forward_pairs(void *context, int64_t begin, int64_t end) {
  const attention *p = context;
  const int64_t blocks = blocks_of(p->all_rows, PAIR_ROWS), words = pairs_row(p->width),
                padded = round_up(p->value_width, PAIRS_LANES);
  const bool one = one_block(p);
  forward_work w;
  pairs_work work = {.how = p->pairs};
  range span = {0, 0};
  divide_forward(p, p->scratch + (size_t)omp_get_thread_num() * p->scratch_bytes, &w);
  for (int64_t unit = begin, packed = -1; unit < end; unit++) {
    int64_t index = unit / blocks, batch = index / p->key_heads;
    block b;
    block_of(p, index, unit % blocks * PAIR_ROWS, PAIR_ROWS, &b);
    if (packed != index && !one) {
      span = span_of(p, batch, PAIR_KEYS);
      pack_keys(p, index, span.low, span.high - span.low, &w);
      packed = index;
    }
    for (int64_t i = 0; i < b.count; i++)
      copy_rows(half_at(&p->query, batch, b.heads[i]) + b.rows[i] * p->query.by_row, 0, 1, p->width,
                w.query + i * words, 1);
    float max[PAIR_ROWS], total[PAIR_ROWS] = {0};
    for (int64_t i = 0; i < PAIR_ROWS; i++) max[i] = -INFINITY;
    if (!b.all.high) memset(w.sums, 0, (size_t)(b.count * padded) * sizeof *w.sums);
    int64_t first = b.all.low / PAIR_KEYS * PAIR_KEYS;
    for (int64_t key = first; key < b.all.high; key += PAIR_KEYS) {
      int64_t most = look_at(&b, key, PAIR_KEYS).high, used = round_up(most, 2 * PAIRS_STEP);
      if (one) {
        int64_t n = b.all.high - key < PAIR_KEYS ? b.all.high - key : PAIR_KEYS;
        span = (range){key, key + n};
        pack_keys(p, index, key, n, &w);
      }
      product(&work, b.count, most, pairs_depth(p->width), w.query, words, w.keys,
              span.high - span.low, p->width, key - span.low, 0, w.scores, SCORE_ROW, true);
      weigh_pairs(p, &b, key == first, used, &w, max, total);
      product(&work, b.count, p->value_width, used / 2, w.weights, WEIGHT_ROW, w.values,
              p->value_width, span.high - span.low, 0, (key - span.low) / 2, w.sums, padded,
              key == first);
    }
    for (int64_t i = 0; i < b.count; i++) {
      float *sums = w.sums + i * padded,
            factor = total[i] == 0 && p->empty_is_zero ? 0 : 1 / total[i];
      for (int64_t e = 0; e < padded; e++) sums[e] = sums[e] * factor + 0; /* as in unpack_rows */
      mpg_cpu_store(MPG_COMPUTE_F32, MPG_BFLOAT16, half_at(&p->result, batch, b.heads[i]),
                    b.rows[i] * p->result.by_row, p->value_width, sums);
      if (!p->sums) continue;
      float *kept = (float *)p->sums + 2 * (batch * p->heads + b.heads[i]) * p->rows + b.rows[i];
      kept[0] = max[i];
      kept[p->rows] = total[i];
    }
  }
  pairs_end(&work);
}

/* --- Backward --------------------------------------------------------------------------------- */
typedef struct backward_work {
  mpg_pair *keys, *values;               /* right operands; products sum over the width */
  mpg_pair *key_rows;                    /* right operand; products sum over keys */
  mpg_pair *query, *grads;               /* left operands; products sum over the width */
  mpg_pair *query_turned, *grads_turned; /* left operands; products sum over rows */
  mpg_pair *weights, *score_grads;       /* right operands; products sum over a block's rows */
  mpg_pair *score_rows;                  /* left operand; products sum over a block's keys */
  float *scores, *slopes;                /* weights of a block, and the gradients of its scores */
  float *inner;                          /* dot product <grad, output> of each row */
  float *query_grads;                    /* for all rows */
  float *key_grads, *value_grads;        /* for one block of keys, transposed */
} backward_work;

static size_t divide_backward(const attention *p, char *scratch, backward_work *w) {
  const int64_t block = PAIR_ROWS * PAIR_KEYS;
  scratch_parts parts = {.data = scratch};
  TAKE(w, keys, panels_words(p->keys, p->width));
  TAKE(w, values, panels_words(p->keys, p->value_width));
  TAKE(w, key_rows, panels_words(p->width, p->keys));
  TAKE(w, query, p->all_rows * pairs_row(p->width));
  TAKE(w, grads, p->all_rows * pairs_row(p->value_width));
  TAKE(w, query_turned, p->width * pairs_row(p->all_rows));
  TAKE(w, grads_turned, p->value_width * pairs_row(p->all_rows));
  TAKE(w, weights, block / 2);
  TAKE(w, score_grads, block / 2);
  TAKE(w, score_rows, PAIR_ROWS * WEIGHT_ROW);
  TAKE(w, scores, PAIR_ROWS * SCORE_ROW);
  TAKE(w, slopes, PAIR_ROWS * SCORE_ROW);
  TAKE(w, inner, p->all_rows);
  TAKE(w, query_grads, p->all_rows * round_up(p->width, PAIRS_LANES));
  TAKE(w, key_grads, round_up(p->width, PAIRS_LANES) * SCORE_ROW);
  TAKE(w, value_grads, round_up(p->value_width, PAIRS_LANES) * SCORE_ROW);
  return parts.taken;
}

static size_t attention_backward_bytes_pairs(const attention *p) {
  backward_work w;
  return divide_backward(p, NULL, &w);
}

/* Packs the operands that all blocks of a key head share. */
static void prepare_pairs(const attention *p, const backward_work *w, int64_t index) {
  int64_t batch = index / p->key_heads, head = index % p->key_heads, words = pairs_row(p->width),
          value_words = pairs_row(p->value_width);
  const uint16_t *key = half_at(&p->key, batch, head);
  pack_panels(key, p->key.by_row, p->keys, p->width, true, w->keys);
  pack_panels(half_at(&p->value, batch, head), p->value.by_row, p->keys, p->value_width, true,
              w->values);
  pack_panels(key, p->key.by_row, p->width, p->keys, false, w->key_rows);
  for (int64_t h = 0; h < p->group; h++) {
    int64_t own = head * p->group + h, first = h * p->rows;
    const uint16_t *grad = half_at(&p->grad, batch, own), *output = half_at(&p->output, batch, own);
    copy_rows(half_at(&p->query, batch, own), p->query.by_row, p->rows, p->width,
              w->query + first * words, p->rows);
    copy_rows(grad, p->grad.by_row, p->rows, p->value_width, w->grads + first * value_words,
              p->rows);
    for (int64_t i = 0; !p->merged && i < p->rows; i++) {
      const uint16_t *g = grad + i * p->grad.by_row, *o = output + i * p->output.by_row;
      float sum = 0;
      for (int64_t e = 0; e < p->value_width; e++)
        sum += mpg_bfloat16_to_float(g[e]) * mpg_bfloat16_to_float(o[e]);
      w->inner[first + i] = sum;
    }
  }
  turn_rows((const uint16_t *)(const void *)w->query, 2 * words, p->all_rows, p->width,
            w->query_turned);
  turn_rows((const uint16_t *)(const void *)w->grads, 2 * value_words, p->all_rows, p->value_width,
            w->grads_turned);
}

/* Rounds two adjacent rows of n floats (a multiple of 16) and packs them as row `pair` of a right
 * operand (PAIR_ROWS, PAIR_KEYS). */
static void pair_rows(const float *upper, const float *lower, int64_t n, int64_t pair,
                      mpg_pair *to) {
  const __m512i upper_halves = _mm512_set1_epi32((int)0xffff0000u);
  for (int64_t j = 0; j < n; j += PAIRS_LANES) {
    __m512i low = _mm512_srli_epi32(mpg_computed_lanes(upper + j), 16),
            high = _mm512_and_si512(mpg_computed_lanes(lower + j), upper_halves);
    _mm512_storeu_si512(to + j / PANEL_COLUMNS * PANEL_COLUMNS * pairs_depth(PAIR_ROWS) +
                            pair * PANEL_COLUMNS + j % PANEL_COLUMNS,
                        _mm512_or_si512(low, high));
  }
}

/* Recomputes the weights of row i of a block, and computes the gradients of its scores. Pads both
 * results with zeros up to column `filled`. */
static void row_again(const attention *p, const backward_work *w, const block *b, int64_t i,
                      int64_t filled) {
  const float *sums =
      (const float *)p->sums + 2 * (b->batch * p->heads + b->heads[i]) * p->rows + b->rows[i];
  float *restrict s = w->scores + i * SCORE_ROW, *restrict d = w->slopes + i * SCORE_ROW,
                  kept[PAIR_KEYS], slopes[PAIR_KEYS];
  range r = b->now[i];
  int64_t n = r.high, groups = finish_scores(p, b, i, s, slopes);
  float shift = sums[0], total = p->merged ? 1 : sums[p->rows], factor = 1 / total,
        less = p->merged ? sums[p->rows] : w->inner[b->first + i];
  if (total == 0 && p->empty_is_zero) shift = factor = 0;
  for (int64_t j = 0; j < groups; j++) s[j] = mpg_exp_nonpositive(s[j] - shift) * factor;
  if (p->drops && n) {
    drop_row_f32(p, b, i, s, kept, n);
    drop_row_f32(p, b, i, d, d, n);
  }
  for (int64_t j = 0; j < r.low; j++) d[j] = 0;
  for (int64_t j = n; j < groups; j++) d[j] = 0;
  for (int64_t j = 0; j < groups; j++) d[j] = s[j] * (d[j] - less);
  if (p->softcap > 0)
    for (int64_t j = r.low; j < n; j++) d[j] *= slopes[j];
  if (p->drops) memcpy(s, kept, (size_t)n * sizeof *s);
  for (int64_t j = groups; j < filled; j++) s[j] = d[j] = 0;
}

/* Adds the contribution of the block at (row, key) to the gradients of query rows (`for_rows`), and
 * of keys and values (`for_keys`). */
static void backward_pairs(const attention *p, const backward_work *w, pairs_work *work, block *b,
                           int64_t key, bool for_rows, bool for_keys) {
  int64_t row = b->first, rows = b->count, n = look_at(b, key, PAIR_KEYS).high,
          used = round_up(n, 2 * PAIRS_STEP), depth = pairs_depth(rows),
          padded = round_up(p->width, PAIRS_LANES), words = pairs_row(p->width),
          value_words = pairs_row(p->value_width);
  /* Products read whole panels of a right operand, so its rows must be filled up to the end of a
   * panel. */
  int64_t filled = for_keys ? round_up(n, PANEL_COLUMNS) : used;
  if (n == 0) return;
  product(work, rows, n, pairs_depth(p->width), w->query + row * words, words, w->keys, p->keys,
          p->width, key, 0, w->scores, SCORE_ROW, true);
  product(work, rows, n, pairs_depth(p->value_width), w->grads + row * value_words, value_words,
          w->values, p->keys, p->value_width, key, 0, w->slopes, SCORE_ROW, true);
  for (int64_t i = 0; i < 2 * depth; i++) {
    float *s = w->scores + i * SCORE_ROW, *d = w->slopes + i * SCORE_ROW;
    if (i < rows) {
      row_again(p, w, b, i, filled);
      if (for_rows) round_row(d, used, w->score_rows + i * WEIGHT_ROW);
    } else {
      memset(s, 0, (size_t)filled * sizeof *s);
      memset(d, 0, (size_t)filled * sizeof *d);
    }
    if (i % 2 == 0 || !for_keys) continue;
    pair_rows(s - SCORE_ROW, s, filled, i / 2, w->weights);
    pair_rows(d - SCORE_ROW, d, filled, i / 2, w->score_grads);
  }
  if (for_keys) {
    int64_t all = pairs_row(p->all_rows);
    product(work, p->value_width, n, depth, w->grads_turned + row / 2, all, w->weights, PAIR_KEYS,
            PAIR_ROWS, 0, 0, w->value_grads, SCORE_ROW, false);
    product(work, p->width, n, depth, w->query_turned + row / 2, all, w->score_grads, PAIR_KEYS,
            PAIR_ROWS, 0, 0, w->key_grads, SCORE_ROW, false);
  }
  if (for_rows)
    product(work, rows, p->width, used / 2, w->score_rows, WEIGHT_ROW, w->key_rows, p->width,
            p->keys, 0, key / 2, w->query_grads + row * padded, padded, false);
}

/* Transposes n columns of sums [width x SCORE_ROW], multiplies them by a factor, and writes them as
 * rows of bfloat16. */
static void write_turned(const float *sums, int64_t n, int64_t width, float factor, uint16_t *to,
                         int64_t by_row) {
  for (int64_t e = 0; e < width; e += MPG_TURNED)
    for (int64_t j = 0; j < n; j += MPG_TURNED) {
      float part[MPG_TURNED][MPG_TURNED];
      int64_t rows = n - j < MPG_TURNED ? n - j : MPG_TURNED,
              columns = width - e < MPG_TURNED ? width - e : MPG_TURNED;
      mpg_turn_item4((const char *)(sums + e * SCORE_ROW + j), (char *)part,
                     SCORE_ROW * (int64_t)sizeof(float), sizeof part[0]);
      for (int64_t r = 0; r < rows; r++) {
        uint16_t *row = to + (j + r) * by_row + e;
        for (int64_t c = 0; c < MPG_TURNED; c++) part[r][c] *= factor;
        if (columns == MPG_TURNED)
          mpg_store_computed_bf16(part[r], row);
        else
          mpg_cpu_store(MPG_COMPUTE_F32, MPG_BFLOAT16, row, 0, columns, part[r]);
      }
    }
}

static void attention_backward_pairs(void *context, int64_t begin, int64_t end) {
  const attention *p = context;
  backward_work w;
  pairs_work work = {.how = p->pairs};
  divide_backward(p, p->scratch + (size_t)omp_get_thread_num() * p->scratch_bytes, &w);
  const bool for_rows = p->all_at_once || !p->for_keys, for_keys = p->all_at_once || p->for_keys;
  const int64_t padded = round_up(p->width, PAIRS_LANES);
  for (int64_t unit = begin, prepared = -1; unit < end; unit++) {
    const backward_unit u = backward_unit_of(p, unit, PAIR_ROWS, PAIR_KEYS);
    int64_t index = u.index, batch = index / p->key_heads, head = index % p->key_heads, row = u.row,
            row_end = u.row_end, key = u.key, key_end = u.key_end;
    if (prepared != index) prepare_pairs(p, &w, index);
    prepared = index;
    if (for_rows)
      memset(w.query_grads + row * padded, 0,
             (size_t)((row_end - row) * padded) * sizeof *w.query_grads);
    for (; key < key_end; key += PAIR_KEYS) {
      int64_t n = key_end - key < PAIR_KEYS ? key_end - key : PAIR_KEYS;
      if (for_keys) {
        memset(w.key_grads, 0, (size_t)(p->width * SCORE_ROW) * sizeof *w.key_grads);
        memset(w.value_grads, 0, (size_t)(p->value_width * SCORE_ROW) * sizeof *w.value_grads);
      }
      for (int64_t i = row; i < row_end; i += PAIR_ROWS) {
        block b;
        block_of(p, index, i, PAIR_ROWS, &b);
        backward_pairs(p, &w, &work, &b, key, for_rows, for_keys);
      }
      if (!for_keys) continue;
      write_turned(w.key_grads, n, p->width, (float)p->scale,
                   half_at(&p->key_grad, batch, head) + key * p->key_grad.by_row,
                   p->key_grad.by_row);
      write_turned(w.value_grads, n, p->value_width, 1,
                   half_at(&p->value_grad, batch, head) + key * p->value_grad.by_row,
                   p->value_grad.by_row);
    }
    for (int64_t i = row; i < row_end && for_rows; i++) {
      float *sums = w.query_grads + i * padded;
      for (int64_t e = 0; e < padded; e++) sums[e] *= (float)p->scale;
      mpg_cpu_store(MPG_COMPUTE_F32, MPG_BFLOAT16,
                    half_at(&p->query_grad, batch, head * p->group + i / p->rows),
                    i % p->rows * p->query_grad.by_row, p->width, sums);
    }
  }
  pairs_end(&work);
}
