/* Stacked recurrent layers for one element type T (float or double); included by rnn.c with T,
 * DTYPE, SIGMOID, TANH and NAME(x) defined. Comments next to pointers give the shapes: L layers, D
 * directions, G gates, H hidden, N batch, S time steps ("time").
 *
 * The input products of all steps of a layer are computed as one matrix product, and so are the
 * weight gradients. Only the recurrent products and the cell run step by step. The recurrent
 * weights are packed once for all steps (packed_steps.h). Each thread computes the cell for the
 * columns that it has just produced, so that a step needs one parallel region.
 */

/* Each x_T below is NAME(x), the name of x in this instance. */
#define back_step_T NAME(back_step)
#define backward_direction_T NAME(backward_direction)
#define beyond_T NAME(beyond)
#define cell_fn_T NAME(cell_fn)
#define column_range_T NAME(column_range)
#define columns_T NAME(columns)
#define drop_T NAME(drop)
#define drop_range_T NAME(drop_range)
#define extra_T NAME(extra)
#define forward_cell_T NAME(forward_cell)
#define forward_direction_T NAME(forward_direction)
#define gates_T NAME(gates)
#define gemm_T NAME(gemm)
#define grain_T NAME(grain)
#define gru_back_cell_T NAME(gru_back_cell)
#define gru_back_row_T NAME(gru_back_row)
#define gru_cell_T NAME(gru_cell)
#define gru_row_T NAME(gru_row)
#define layer_input_T NAME(layer_input)
#define layer_output_T NAME(layer_output)
#define lstm_back_cell_T NAME(lstm_back_cell)
#define lstm_back_row_T NAME(lstm_back_row)
#define lstm_cell_T NAME(lstm_cell)
#define lstm_row_T NAME(lstm_row)
#define mask_T NAME(mask)
#define mask_range_T NAME(mask_range)
#define masking_T NAME(masking)
#define passes_T NAME(passes)
#define previous_T NAME(previous)
#define relu_cell_T NAME(relu_cell)
#define rnn_T NAME(rnn)
#define rnn_backward_T NAME(rnn_backward)
#define rnn_forward_T NAME(rnn_forward)
#define rnn_forward_bytes_T NAME(rnn_forward_bytes)
#define rnn_gradients_T NAME(rnn_gradients)
#define stays_T NAME(stays)
#define step_T NAME(step)
#define step_panels_T NAME(step_panels)
#define step_rows_T NAME(step_rows)
#define step_run_T NAME(step_run)
#define stepping_T NAME(stepping)
#define stepping_of_T NAME(stepping_of)
#define sum_columns_T NAME(sum_columns)
#define taken_T NAME(taken)
#define tanh_cell_T NAME(tanh_cell)
#define undrop_T NAME(undrop)
#define undrop_range_T NAME(undrop_range)
#define vanilla_back_cell_T NAME(vanilla_back_cell)

#include "kernels/cpu/products/packed_steps.h"

typedef struct rnn_T {
  const mpg_kernel_call *call;
  mpg_rnn_size s;
  bool dropped;
  double keep;      /* 1 - p */
  const T *data;    /* [S, N, I] */
  const T *h0, *c0; /* [L * D, N, H] */
  /* weights and biases per layer and direction: [G * H, in], [G * H, H], [G * H], [G * H] */
  const T **wi, **wh, **bi, **bh;
  /* wi and wh in bfloat16; NULL unless the call is in bfloat16. If they are given, elements of wi
   * and wh may be NULL. */
  const uint16_t **wi_half, **wh_half;
  T *output;  /* [S, N, D * H] */
  T *hn, *cn; /* [L * D, N, H], or NULL */
  T *reserve;
  bool clip, clip_nan;
  T clip_min, clip_max;
  const mpg_view *lengths; /* [N] lengths of sequences, or NULL */
} rnn_T;

/* True if step t is past the end of sequence n; the states then keep their values. */
static bool beyond_T(const rnn_T *r, int64_t t, int64_t n) {
  return r->lengths && t >= mpg_index_at(r->lengths, n);
}

/* --- The reserve ------------------------------------------------------------------------------ */
static T *gates_T(const rnn_T *r, int index) { /* [S, N, G * H] */
  int64_t block = r->s.time * r->s.batch * r->s.hidden;
  int inner = r->s.gates + (r->s.is_lstm || r->s.mode == MPG_RNN_GRU ? 1 : 0);
  return r->reserve + block * inner * index;
}
/* Returns the LSTM's cell states, or the hidden part of the GRU's n gate: [S, N, H]. */
static T *extra_T(const rnn_T *r, int index) {
  return gates_T(r, index) + r->s.time * r->s.batch * r->s.hidden * r->s.gates;
}
static T *layer_output_T(const rnn_T *r, int layer) { /* [S, N, D * H] */
  if (layer == r->s.layers - 1 && !r->lengths) return r->output;
  int64_t block = r->s.time * r->s.batch * r->s.hidden;
  return gates_T(r, r->s.layers * r->s.directions) +
         block * r->s.directions * layer * (r->dropped ? 2 : 1);
}
/* Returns a layer's input, after dropout. */
static const T *layer_input_T(const rnn_T *r, int layer) {
  if (layer == 0) return r->data;
  T *below = layer_output_T(r, layer - 1);
  return r->dropped ? below + r->s.time * r->s.batch * r->s.hidden * r->s.directions : below;
}

/* Returns the hidden state before step t: [N, H] with row stride *ld. */
static const T *previous_T(const rnn_T *r, int layer, int direction, int64_t t, int64_t *ld) {
  const mpg_rnn_size *s = &r->s;
  bool first = direction == 0 ? t == 0 : t == s->time - 1;
  if (first) {
    *ld = s->hidden;
    return r->h0 + ((int64_t)layer * s->directions + direction) * s->batch * s->hidden;
  }
  *ld = s->hidden * s->directions;
  int64_t before = direction == 0 ? t - 1 : t + 1;
  return layer_output_T(r, layer) + before * s->batch * *ld + direction * s->hidden;
}

/* --- Cells: rows [from, to) of a step, columns [begin, end) of the hidden state --------------- */
typedef struct step_T {
  const rnn_T *r;
  T *gates;               /* [N, G * H]; in: products of this step, out: activated gates */
  const T *hidden_gates;  /* GRU: products with the hidden state [N, G * H] */
  const T *bias, *bias_h; /* [G * H]; bias is the sum of both, except for GRU */
  int64_t t;
  T *extra;              /* [N, H] */
  const T *extra_before; /* LSTM: [N, H] */
  const T *h_before;     /* [N, H], stride ld_before */
  int64_t ld_before;
  T *h; /* [N, H], stride ld */
  int64_t ld;
} step_T;
typedef void (*cell_fn_T)(const void *step, int64_t from, int64_t to, int64_t begin, int64_t end);

/* If step t is past the end of sequence n, copies the previous states of columns [begin, end) and
 * returns true. */
static bool stays_T(const step_T *p, int64_t n, int64_t begin, int64_t end) {
  const int64_t H = p->r->s.hidden;
  const size_t size = (size_t)(end - begin) * sizeof(T);
  if (!beyond_T(p->r, p->t, n)) return false;
  memcpy(p->h + n * p->ld + begin, p->h_before + n * p->ld_before + begin, size);
  if (p->extra_before) memcpy(p->extra + n * H + begin, p->extra_before + n * H + begin, size);
  return true;
}

/* The four gates are separate arguments because compilers only vectorize loops over arrays that
 * cannot overlap. */
static __attribute__((noinline)) void lstm_row_T(int64_t count, T *restrict gi, T *restrict gf,
                                                 T *restrict gz, T *restrict go,
                                                 const T *restrict bi, const T *restrict bf,
                                                 const T *restrict bz, const T *restrict bo,
                                                 const T *restrict c_before, T *restrict c,
                                                 T *restrict h) {
  for (int64_t j = 0; j < count; j++) {
    T i = SIGMOID(gi[j] + bi[j]), f = SIGMOID(gf[j] + bf[j]), z = TANH(gz[j] + bz[j]),
      o = SIGMOID(go[j] + bo[j]);
    T cell = f * c_before[j] + i * z;
    gi[j] = i;
    gf[j] = f;
    gz[j] = z;
    go[j] = o;
    c[j] = cell;
    h[j] = o * TANH(cell);
  }
}

static void lstm_cell_T(const void *step, int64_t from, int64_t to, int64_t begin, int64_t end) {
  const step_T *p = step;
  const int64_t H = p->r->s.hidden;
  for (int64_t n = from; n < to; n++) {
    if (stays_T(p, n, begin, end)) continue;
    T *g = p->gates + n * 4 * H + begin, *c = p->extra + n * H, *h = p->h + n * p->ld;
    const T *b = p->bias + begin;
    lstm_row_T(end - begin, g, g + H, g + 2 * H, g + 3 * H, b, b + H, b + 2 * H, b + 3 * H,
               p->extra_before + n * H + begin, c + begin, h + begin);
    if (p->r->clip)
      for (int64_t j = begin; j < end; j++) {
        T cell = c[j];
        if (p->r->clip_nan && cell != cell) cell = 0;
        cell = cell < p->r->clip_min   ? p->r->clip_min
               : cell > p->r->clip_max ? p->r->clip_max
                                       : cell;
        c[j] = cell;
        h[j] = g[3 * H + j - begin] * TANH(cell);
      }
  }
}

static __attribute__((noinline)) void gru_row_T(int64_t count, T *restrict gr, T *restrict gz,
                                                T *restrict gn, const T *restrict hr,
                                                const T *restrict hz, const T *restrict hn,
                                                const T *restrict bias, const T *restrict bias_h,
                                                int64_t H, const T *restrict h_before,
                                                T *restrict m, T *restrict h) {
  for (int64_t j = 0; j < count; j++) {
    T r = SIGMOID(gr[j] + bias[j] + hr[j] + bias_h[j]),
      z = SIGMOID(gz[j] + bias[H + j] + hz[j] + bias_h[H + j]);
    T hidden = hn[j] + bias_h[2 * H + j];
    T fresh = TANH(gn[j] + bias[2 * H + j] + r * hidden);
    gr[j] = r;
    gz[j] = z;
    gn[j] = fresh;
    m[j] = hidden;
    h[j] = (1 - z) * fresh + z * h_before[j];
  }
}

static void gru_cell_T(const void *step, int64_t from, int64_t to, int64_t begin, int64_t end) {
  const step_T *p = step;
  const int64_t H = p->r->s.hidden;
  for (int64_t n = from; n < to; n++) {
    if (stays_T(p, n, begin, end)) continue;
    T *g = p->gates + n * 3 * H + begin;
    const T *gh = p->hidden_gates + n * 3 * H + begin;
    gru_row_T(end - begin, g, g + H, g + 2 * H, gh, gh + H, gh + 2 * H, p->bias + begin,
              p->bias_h + begin, H, p->h_before + n * p->ld_before + begin,
              p->extra + n * H + begin, p->h + n * p->ld + begin);
  }
}

static void tanh_cell_T(const void *step, int64_t from, int64_t to, int64_t begin, int64_t end) {
  const step_T *p = step;
  const int64_t H = p->r->s.hidden;
  for (int64_t n = from; n < to; n++) {
    if (stays_T(p, n, begin, end)) continue;
    T *restrict g = p->gates + n * H, *restrict h = p->h + n * p->ld;
    const T *restrict bias = p->bias;
    for (int64_t j = begin; j < end; j++) h[j] = g[j] = TANH(g[j] + bias[j]);
  }
}

static void relu_cell_T(const void *step, int64_t from, int64_t to, int64_t begin, int64_t end) {
  const step_T *p = step;
  const int64_t H = p->r->s.hidden;
  for (int64_t n = from; n < to; n++) {
    if (stays_T(p, n, begin, end)) continue;
    T *restrict g = p->gates + n * H, *restrict h = p->h + n * p->ld;
    const T *restrict bias = p->bias;
    for (int64_t j = begin; j < end; j++) {
      T a = g[j] + bias[j];
      h[j] = g[j] = a > 0 ? a : 0;
    }
  }
}

static cell_fn_T forward_cell_T(mpg_rnn_mode mode) {
  return mode == MPG_RNN_LSTM   ? lstm_cell_T
         : mode == MPG_RNN_GRU  ? gru_cell_T
         : mode == MPG_RNN_TANH ? tanh_cell_T
                                : relu_cell_T;
}

/* --- One step: the recurrent product, then the cell ------------------------------------------- */
typedef struct stepping_T {
  const mpg_rnn_size *s;
  packed_T weights; /* weights of the recurrent product */
  bool packed;      /* if false, `weights` is not packed, and gemm reads `source` */
  bool transposed;  /* multiplies with the transpose of `source` */
  const T *source;  /* [G * H, H] */
  /* Set for each step. */
  cell_fn_T cell;   /* NULL to run only the product */
  const void *step; /* argument of the cell */
  const T *a;       /* [N, weights.k], row stride lda; NULL to skip the product */
  int64_t lda;
  T *c; /* [N, groups * width] */
  bool add;
} stepping_T;

static void step_panels_T(void *context, int64_t from, int64_t to) {
  const stepping_T *p = context;
  for (int64_t panel = from; panel < to; panel++) {
    int64_t begin, end;
    panel_columns_T(&p->weights, panel, &begin, &end);
    if (p->a)
      panel_product_T(&p->weights, panel, p->s->batch, p->a, p->lda, p->c,
                      p->weights.width * p->weights.groups, p->add);
    if (p->cell) p->cell(p->step, 0, p->s->batch, begin, end);
  }
}

static void step_rows_T(void *context, int64_t from, int64_t to) {
  const stepping_T *p = context;
  p->cell(p->step, from, to, 0, p->s->hidden);
}

/* Returns the minimum number of panels or rows that justifies waking a thread. `work` is the cost
 * of one panel or row. */
static int64_t grain_T(int64_t work) { return work < 2048 ? 2048 / (work > 0 ? work : 1) : 1; }

static stepping_T stepping_of_T(const rnn_T *r, const T *source, bool transposed) {
  const mpg_rnn_size *s = &r->s;
  stepping_T p = {.s = s, .source = source, .transposed = transposed, .packed = packing_pays(s)};
  bool rounded = r->call->inputs[0].desc.dtype == MPG_BFLOAT16;
  int threads = r->call->num_threads;
  p.weights = transposed ? packed_shape_T(s->hidden, s->hidden, s->gates, threads, rounded)
                         : packed_shape_T(s->gates * s->hidden, s->hidden, 1, threads, rounded);
  return p;
}

static mpg_status step_run_T(const mpg_kernel_call *call, stepping_T *p) {
  const mpg_rnn_size *s = p->s;
  const packed_T *w = &p->weights;
  if (p->packed) {
    if (p->a) packed_round_T(call, w, s->batch, p->a, p->lda);
    mpg_cpu_parallel_for(call, w->panels, grain_T(s->batch * (p->a ? w->k : LANES)), step_panels_T,
                         p);
    return MPG_OK;
  }
  int64_t n = w->width * w->groups;
  if (p->a)
    MPG_TRY(mpg_cpu_gemm_any(call, DTYPE, false, p->transposed, s->batch, n, w->k, 1, p->a, p->lda,
                             p->source, p->transposed ? w->k : n, p->add ? 1 : 0, p->c, n));
  if (p->cell) mpg_cpu_parallel_for(call, s->batch, grain_T(s->hidden), step_rows_T, p);
  return MPG_OK;
}

static mpg_status gemm_T(const mpg_kernel_call *call, bool ta, bool tb, int64_t m, int64_t n,
                         int64_t k, const T *a, int64_t lda, const T *b, int64_t ldb,
                         const uint16_t *b_half, double beta, T *c, int64_t ldc) {
  if (DTYPE == MPG_FLOAT32 && call->inputs[0].desc.dtype == MPG_BFLOAT16)
    return mpg_cpu_gemm_narrowed(call, ta, tb, m, n, k, (const void *)a, lda, (const void *)b, ldb,
                                 b_half, (float)beta, (void *)c, ldc);
  return mpg_cpu_gemm_any(call, DTYPE, ta, tb, m, n, k, 1, a, lda, b, ldb, beta, c, ldc);
}

/* Returns the size in bytes of the scratch for one direction's forward pass. Sets *packed_at to the
 * offset of the packed weights. */
static size_t rnn_forward_bytes_T(const rnn_T *r, size_t *packed_at) {
  int64_t GH = r->s.gates * r->s.hidden;
  stepping_T p = stepping_of_T(r, NULL, true);
  *packed_at = mpg_align_up((size_t)(GH + r->s.batch * GH) * sizeof(T), 64);
  return *packed_at + (p.packed ? packed_bytes_T(&p.weights, r->s.batch) : 0);
}

static mpg_status forward_direction_T(const rnn_T *r, int layer, int direction, T *scratch,
                                      T *packed) {
  const mpg_rnn_size *s = &r->s;
  const int64_t H = s->hidden, N = s->batch, GH = s->gates * H, in = mpg_rnn_layer_input(s, layer);
  const int index = layer * s->directions + direction;
  const bool gru = s->mode == MPG_RNN_GRU;
  T *gates = gates_T(r, index), *extra = s->is_lstm || gru ? extra_T(r, index) : NULL;
  T *output = layer_output_T(r, layer) + direction * H;
  T *bias = scratch, *hidden_gates = scratch + GH;
  for (int64_t j = 0; j < GH; j++)
    bias[j] = gru ? r->bi[index][j] : r->bi[index][j] + r->bh[index][j];
  MPG_TRY(gemm_T(r->call, false, true, s->time * N, GH, in, layer_input_T(r, layer), in,
                 r->wi[index], in, r->wi_half ? r->wi_half[index] : NULL, 0, gates, GH));
  step_T p = {.r = r,
              .bias = bias,
              .bias_h = r->bh[index],
              .hidden_gates = hidden_gates,
              .ld = H * s->directions};
  p.extra_before = s->is_lstm ? r->c0 + (int64_t)index * N * H : NULL;
  stepping_T stepping = stepping_of_T(r, r->wh[index], true);
  stepping.cell = forward_cell_T(s->mode);
  stepping.step = &p;
  stepping.add = !gru;
  packed_place_T(&stepping.weights, packed);
  if (stepping.packed)
    pack_T(r->call, &stepping.weights, stepping.source, r->wh_half ? r->wh_half[index] : NULL,
           true);
  for (int64_t step = 0; step < s->time; step++) {
    int64_t t = direction == 0 ? step : s->time - 1 - step;
    p.t = t;
    p.gates = gates + t * N * GH;
    p.extra = extra ? extra + t * N * H : NULL;
    p.h = output + t * N * p.ld;
    p.h_before = stepping.a = previous_T(r, layer, direction, t, &p.ld_before);
    stepping.lda = p.ld_before;
    stepping.c = gru ? hidden_gates : p.gates;
    MPG_TRY(step_run_T(r->call, &stepping));
    if (s->is_lstm) p.extra_before = p.extra;
  }
  int64_t last = direction == 0 ? s->time - 1 : 0;
  const T *source = s->time ? output + last * N * p.ld : r->h0 + (int64_t)index * N * H;
  if (r->hn)
    for (int64_t n = 0; n < N; n++)
      memcpy(r->hn + ((int64_t)index * N + n) * H, source + n * (s->time ? p.ld : H),
             (size_t)H * sizeof(T));
  if (r->cn)
    memcpy(r->cn + (int64_t)index * N * H,
           s->time ? extra + last * N * H : r->c0 + (int64_t)index * N * H,
           (size_t)(N * H) * sizeof(T));
  return MPG_OK;
}

/* Dropout between layers. Random word (l << 48) + e of the call's stream decides whether element e
 * of layer l's output is kept. */
typedef struct drop_T {
  const T *from;
  T *to;
  mpg_random_key key;
  double keep;
} drop_T;

static void drop_range_T(void *context, int64_t begin, int64_t end) {
  const drop_T *d = context;
  const T scale = (T)(1 / d->keep);
  for (int64_t e = begin; e < end; e++) {
    uint64_t position = mpg_random_position(&d->key, (uint64_t)e);
    uint32_t word = mpg_philox(d->key.seed, d->key.call, position >> 2).value[position & 3];
    /* A dropped element becomes -0, and a kept zero becomes +0, so that backward can tell dropped
     * elements by their value. */
    d->to[e] = mpg_philox_uniform(word) < (float)d->keep ? d->from[e] * scale + (T)0 : -(T)0;
  }
}

/* Arguments of mask_range, which copies sequences [S, N, width] and writes zeros past their
 * ends. */
typedef struct masking_T {
  const rnn_T *r;
  const T *from;
  T *to;
  int64_t width;
} masking_T;

static void mask_range_T(void *context, int64_t begin, int64_t end) {
  const masking_T *p = context;
  const size_t size = (size_t)p->width * sizeof(T);
  for (int64_t row = begin; row < end; row++)
    if (beyond_T(p->r, row / p->r->s.batch, row % p->r->s.batch))
      memset(p->to + row * p->width, 0, size);
    else
      memcpy(p->to + row * p->width, p->from + row * p->width, size);
}

static void mask_T(const rnn_T *r, const T *from, T *to, int64_t width) {
  masking_T p = {r, from, to, width};
  mpg_cpu_parallel_for(r->call, r->s.time * r->s.batch, grain_T(width), mask_range_T, &p);
}

static mpg_status rnn_forward_T(rnn_T *r) {
  const mpg_rnn_size *s = &r->s;
  size_t packed_at, size = rnn_forward_bytes_T(r, &packed_at);
  T *scratch = mpg_device_scratch_slot(r->call->device, MPG_SCRATCH_KERNEL, size);
  if (!scratch) return MPG_DEVICE_OUT_OF_MEMORY;
  for (int layer = 0; layer < s->layers; layer++) {
    for (int direction = 0; direction < s->directions; direction++)
      MPG_TRY(forward_direction_T(r, layer, direction, scratch, scratch + packed_at / sizeof(T)));
    if (r->dropped && layer < s->layers - 1) {
      int64_t count = s->time * s->batch * s->hidden * s->directions;
      drop_T drop = {layer_output_T(r, layer), layer_output_T(r, layer) + count, r->call->random,
                     r->keep};
      drop.key.position += (uint64_t)layer << 48;
      mpg_cpu_parallel_for(r->call, count, 4096, drop_range_T, &drop);
    }
  }
  if (r->lengths) mask_T(r, layer_output_T(r, s->layers - 1), r->output, s->hidden * s->directions);
  return MPG_OK;
}

/* --- Backward --------------------------------------------------------------------------------- */
typedef struct rnn_gradients_T {
  const T *d_output;       /* [S, N, D * H] */
  const T *d_hn, *d_cn;    /* [L * D, N, H], or NULL */
  T *d_data, *d_h0, *d_c0; /* with the shapes of data, h0 and c0 */
  T **d_wi, **d_wh, **d_bi, **d_bh;
} rnn_gradients_T;

typedef struct back_step_T {
  const rnn_T *r;
  const T *gates, *extra; /* of this step: activated gates [N, G * H]; result of extra_T [N, H] */
  const T *extra_before;  /* LSTM: previous cell states [N, H] */
  const T *h_before;      /* GRU: [N, H], stride ld_before */
  int64_t ld_before;
  const T *h;        /* LSTM clipping and vanilla: outputs, stride ld */
  const T *d_output; /* [N, H], stride ld, or NULL */
  int64_t ld;
  /* [N, H]. In: gradients from the following step. Out: gradients for the previous step. The
   * recurrent product is then added to d_h (GRU, or with lengths) or replaces it. */
  T *d_h, *d_c;
  T *d_gates;  /* [N, G * H] */
  T *d_hidden; /* GRU: gradients of the hidden products [N, 3 * H] */
  int64_t t;
} back_step_T;

/* If step t is past the end of sequence n, clears the gradients of its products and returns true.
 * The gradients of its states pass to the previous step unchanged. */
static bool passes_T(const back_step_T *p, int64_t n, int64_t begin, int64_t end) {
  const int64_t H = p->r->s.hidden;
  if (!beyond_T(p->r, p->t, n)) return false;
  for (int gate = 0; gate < p->r->s.gates; gate++) {
    int64_t at = (n * p->r->s.gates + gate) * H + begin;
    memset(p->d_gates + at, 0, (size_t)(end - begin) * sizeof(T));
    if (p->r->s.mode == MPG_RNN_GRU) memset(p->d_hidden + at, 0, (size_t)(end - begin) * sizeof(T));
  }
  return true;
}

/* Clears a row of d_h after its use if the call has `lengths`. The recurrent product is then added
 * to d_h, because rows of ended sequences keep their gradients there. All other rows must be 0. */
static void taken_T(const back_step_T *p, int64_t n, int64_t begin, int64_t end) {
  if (p->r->lengths)
    memset(p->d_h + n * p->r->s.hidden + begin, 0, (size_t)(end - begin) * sizeof(T));
}

/* Computes the gradients of an LSTM cell at one step. */
static __attribute__((noinline)) void lstm_back_row_T(
    int64_t count, const T *restrict gi, const T *restrict gf, const T *restrict gz,
    const T *restrict go, const T *restrict c, const T *restrict c_before, const T *restrict dy,
    const T *restrict d_h, T *restrict d_c, T *restrict di, T *restrict df, T *restrict dz,
    T *restrict d_o, bool clip, T clip_min, T clip_max) {
  for (int64_t j = 0; j < count; j++) {
    T i = gi[j], f = gf[j], z = gz[j], o = go[j], tanh_c = TANH(c[j]);
    T dh = dy[j] + d_h[j];
    T dc = d_c[j] + dh * o * (1 - tanh_c * tanh_c);
    dc = clip && (c[j] == clip_min || c[j] == clip_max) ? 0 : dc;
    di[j] = dc * z * i * (1 - i);
    df[j] = dc * c_before[j] * f * (1 - f);
    dz[j] = dc * i * (1 - z * z);
    d_o[j] = dh * tanh_c * o * (1 - o);
    d_c[j] = dc * f;
  }
}

static void lstm_back_cell_T(const void *step, int64_t from, int64_t to, int64_t begin,
                             int64_t end) {
  const back_step_T *p = step;
  const int64_t H = p->r->s.hidden;
  for (int64_t n = from; n < to; n++) {
    if (passes_T(p, n, begin, end)) continue;
    const T *g = p->gates + n * 4 * H + begin;
    T *d = p->d_gates + n * 4 * H + begin;
    int64_t at = n * H + begin;
    lstm_back_row_T(end - begin, g, g + H, g + 2 * H, g + 3 * H, p->extra + at,
                    p->extra_before + at, p->d_output + n * p->ld + begin, p->d_h + at, p->d_c + at,
                    d, d + H, d + 2 * H, d + 3 * H, p->r->clip, p->r->clip_min, p->r->clip_max);
    taken_T(p, n, begin, end);
  }
}

static __attribute__((noinline)) void gru_back_row_T(
    int64_t count, const T *restrict gr, const T *restrict gz, const T *restrict gn,
    const T *restrict m, const T *restrict h_before, const T *restrict dy, T *restrict d_h,
    T *restrict dr, T *restrict dz, T *restrict dn, T *restrict hr, T *restrict hz,
    T *restrict hn) {
  for (int64_t j = 0; j < count; j++) {
    T r = gr[j], z = gz[j], fresh = gn[j];
    T dh = dy[j] + d_h[j];
    T d_fresh = dh * (1 - z) * (1 - fresh * fresh);
    T d_z = dh * (h_before[j] - fresh) * z * (1 - z);
    T d_r = d_fresh * m[j] * r * (1 - r);
    dr[j] = hr[j] = d_r;
    dz[j] = hz[j] = d_z;
    dn[j] = d_fresh;
    hn[j] = d_fresh * r;
    d_h[j] = dh * z;
  }
}

static void gru_back_cell_T(const void *step, int64_t from, int64_t to, int64_t begin,
                            int64_t end) {
  const back_step_T *p = step;
  const int64_t H = p->r->s.hidden;
  for (int64_t n = from; n < to; n++) {
    if (passes_T(p, n, begin, end)) continue;
    const T *g = p->gates + n * 3 * H + begin;
    T *d = p->d_gates + n * 3 * H + begin, *dg = p->d_hidden + n * 3 * H + begin;
    gru_back_row_T(end - begin, g, g + H, g + 2 * H, p->extra + n * H + begin,
                   p->h_before + n * p->ld_before + begin, p->d_output + n * p->ld + begin,
                   p->d_h + n * H + begin, d, d + H, d + 2 * H, dg, dg + H, dg + 2 * H);
  }
}

static void vanilla_back_cell_T(const void *step, int64_t from, int64_t to, int64_t begin,
                                int64_t end) {
  const back_step_T *p = step;
  const int64_t H = p->r->s.hidden;
  const bool relu = p->r->s.mode == MPG_RNN_RELU;
  for (int64_t n = from; n < to; n++) {
    if (passes_T(p, n, begin, end)) continue;
    const T *restrict g = p->gates + n * H, *restrict dy = p->d_output + n * p->ld;
    T *restrict d = p->d_gates + n * H, *restrict d_h = p->d_h + n * H;
    for (int64_t j = begin; j < end; j++) {
      T dh = dy[j] + d_h[j];
      d[j] = relu ? (g[j] > 0 ? dh : 0) : dh * (1 - g[j] * g[j]);
    }
    taken_T(p, n, begin, end);
  }
}

/* Arguments of column_range, which sums the columns of a [rows, columns] matrix. */
typedef struct columns_T {
  const T *matrix;
  T *sums, *copy;
  int64_t rows, columns;
} columns_T;

/* Adds ROWS rows at a time in T and accumulates the results in double. The matrix has one row per
 * step and sample, so a single chain of float additions would lose precision. */
static void column_range_T(void *context, int64_t begin, int64_t end) {
  enum { ROWS = 16, COLUMNS = 256 };
  const columns_T *p = context;
  for (int64_t at = begin; at < end; at += COLUMNS) {
    int64_t width = end - at < COLUMNS ? end - at : COLUMNS;
    double totals[COLUMNS] = {0};
    for (int64_t first = 0; first < p->rows; first += ROWS) {
      int64_t last = p->rows - first < ROWS ? p->rows : first + ROWS;
      T sums[COLUMNS] = {0};
      for (int64_t i = first; i < last; i++) {
        const T *row = p->matrix + i * p->columns + at;
        for (int64_t j = 0; j < width; j++) sums[j] += row[j];
      }
      for (int64_t j = 0; j < width; j++) totals[j] += (double)sums[j];
    }
    for (int64_t j = 0; j < width; j++) p->sums[at + j] = (T)totals[j];
  }
  if (p->copy) memcpy(p->copy + begin, p->sums + begin, (size_t)(end - begin) * sizeof(T));
}

static void sum_columns_T(const mpg_kernel_call *call, const T *matrix, int64_t rows,
                          int64_t columns, T *sums, T *copy) {
  columns_T p = {matrix, sums, copy, rows, columns};
  mpg_cpu_parallel_for(call, columns, 256, column_range_T, &p);
}

/* Runs the backward pass of one layer in one direction. d_output is the gradient of the layer's
 * output [S, N, D * H]. d_input [S, N, in] is overwritten, or accumulated if `add`. d_gates and
 * d_hidden are scratch of S * N * G * H (d_hidden for GRU). */
static mpg_status backward_direction_T(const rnn_T *r, const rnn_gradients_T *d, int layer,
                                       int direction, const T *d_output, T *d_input, bool add,
                                       T *d_gates, T *d_hidden, T *packed) {
  const mpg_rnn_size *s = &r->s;
  const int64_t H = s->hidden, N = s->batch, S = s->time, GH = s->gates * H,
                in = mpg_rnn_layer_input(s, layer), NH = N * H;
  const int index = layer * s->directions + direction;
  const bool gru = s->mode == MPG_RNN_GRU;
  const T *gates = gates_T(r, index), *extra = s->is_lstm || gru ? extra_T(r, index) : NULL;
  T *d_h = d->d_h0 + (int64_t)index * NH, *d_c = s->is_lstm ? d->d_c0 + (int64_t)index * NH : NULL;
  if (NH && d->d_hn) /* empty arrays have no address */
    memcpy(d_h, d->d_hn + (int64_t)index * NH, (size_t)NH * sizeof(T));
  else if (NH)
    memset(d_h, 0, (size_t)NH * sizeof(T));
  if (NH && d_c && d->d_cn)
    memcpy(d_c, d->d_cn + (int64_t)index * NH, (size_t)NH * sizeof(T));
  else if (NH && d_c)
    memset(d_c, 0, (size_t)NH * sizeof(T));
  back_step_T p = {.r = r, .d_h = d_h, .d_c = d_c, .ld = H * s->directions};
  /* gradients of the products with the hidden state */
  const T *d_products = gru ? d_hidden : d_gates;
  stepping_T stepping = stepping_of_T(r, r->wh[index], false);
  stepping.step = &p;
  stepping.lda = GH;
  stepping.c = d_h;
  stepping.add = gru || r->lengths;
  packed_place_T(&stepping.weights, packed);
  if (stepping.packed)
    pack_T(r->call, &stepping.weights, stepping.source, r->wh_half ? r->wh_half[index] : NULL,
           false);
  /* Iteration `step` runs the product of step + 1, then the cell of `step`. The first iteration has
   * only a cell, and the last one (-1) has only a product. */
  for (int64_t step = S - 1; step >= -1 && S > 0; step--) {
    int64_t t = direction == 0 ? step : S - 1 - step, before = direction == 0 ? t - 1 : t + 1,
            after = direction == 0 ? t + 1 : t - 1;
    stepping.a = step == S - 1 ? NULL : d_products + after * N * GH;
    stepping.cell = step < 0     ? NULL
                    : s->is_lstm ? lstm_back_cell_T
                    : gru        ? gru_back_cell_T
                                 : vanilla_back_cell_T;
    if (step >= 0) {
      p.t = t;
      p.gates = gates + t * N * GH;
      p.extra = extra ? extra + t * NH : NULL;
      p.extra_before = !s->is_lstm ? NULL
                       : step == 0 ? r->c0 + (int64_t)index * NH
                                   : extra + before * NH;
      p.h_before = previous_T(r, layer, direction, t, &p.ld_before);
      p.d_output = d_output + t * N * p.ld + direction * H;
      p.d_gates = d_gates + t * N * GH;
      p.d_hidden = d_hidden + t * N * GH;
    }
    MPG_TRY(step_run_T(r->call, &stepping));
  }
  /* The gradient of the recurrent weights is one product over all steps but the first, which needs
   * its own product with h0, a separate array. */
  int64_t first = direction == 0 ? 0 : S - 1, ld = H * s->directions;
  const T *outputs = layer_output_T(r, layer) + direction * H;
  /* gradients of the products of all steps but the first */
  const T *later = direction == 0 ? d_products + N * GH : d_products;
  /* hidden states before these steps */
  const T *earlier = direction == 0 ? outputs : outputs + N * ld;
  if (S > 0) {
    MPG_TRY(gemm_T(r->call, true, false, GH, H, N, d_products + first * N * GH, GH,
                   r->h0 + (int64_t)index * NH, H, NULL, 0, d->d_wh[index], H));
    if (S > 1)
      MPG_TRY(gemm_T(r->call, true, false, GH, H, (S - 1) * N, later, GH, earlier, ld, NULL, 1,
                     d->d_wh[index], H));
  } else {
    memset(d->d_wh[index], 0, (size_t)(GH * H) * sizeof(T));
  }
  MPG_TRY(gemm_T(r->call, true, false, GH, in, S * N, d_gates, GH, layer_input_T(r, layer), in,
                 NULL, 0, d->d_wi[index], in));
  sum_columns_T(r->call, d_gates, S * N, GH, d->d_bi[index], gru ? NULL : d->d_bh[index]);
  if (gru) sum_columns_T(r->call, d_hidden, S * N, GH, d->d_bh[index], NULL);
  return gemm_T(r->call, false, false, S * N, in, GH, d_gates, GH, r->wi[index], in,
                r->wi_half ? r->wi_half[index] : NULL, add ? 1 : 0, d_input, in);
}

/* Arguments of undrop_range, the gradient of dropout. Dropped elements (negative zeros, see
 * drop_range) get no gradient; the rest is scaled as in forward. */
typedef struct undrop_T {
  const T *after;
  T *gradient;
  T scale;
} undrop_T;

static void undrop_range_T(void *context, int64_t begin, int64_t end) {
  const undrop_T *p = context;
  for (int64_t e = begin; e < end; e++)
    p->gradient[e] = p->after[e] == 0 && signbit(p->after[e]) ? 0 : p->gradient[e] * p->scale;
}

static mpg_status rnn_backward_T(rnn_T *r, const rnn_gradients_T *d) {
  const mpg_rnn_size *s = &r->s;
  int64_t rows = s->time * s->batch, wide = s->hidden * s->directions,
          gates = rows * s->gates * s->hidden;
  int64_t widest = wide > s->input ? wide : s->input;
  bool gru = s->mode == MPG_RNN_GRU;
  int64_t spare = s->layers > 1 || s->directions == 2 ? rows * widest : 0;
  stepping_T stepping = stepping_of_T(r, NULL, false);
  /* Copy the data with zeros past the ends of sequences, so that padding does not enter
   * products. */
  int64_t data = r->lengths ? rows * s->input : 0;
  size_t packed_at =
      mpg_align_up((size_t)(gates * (gru ? 2 : 1) + 2 * spare + data) * sizeof(T), 64);
  size_t size = packed_at + (stepping.packed ? packed_bytes_T(&stepping.weights, s->batch) : 0);
  T *scratch = mpg_device_scratch_slot(r->call->device, MPG_SCRATCH_KERNEL, size);
  if (!scratch) return MPG_DEVICE_OUT_OF_MEMORY;
  T *d_gates = scratch, *d_hidden = scratch + gates, *between[2];
  between[0] = scratch + gates * (gru ? 2 : 1);
  between[1] = between[0] + spare;
  if (data) {
    mask_T(r, r->data, between[1] + spare, s->input);
    r->data = between[1] + spare;
  }
  const T *d_output = d->d_output;
  for (int layer = s->layers - 1; layer >= 0; layer--) {
    /* d_data may alias the data or the gradient of the output. With one direction, d_data is
     * written after both have been read. With two directions, the second direction reads them after
     * the first has written its result, so d_data is written from a buffer at the end. */
    T *d_input = layer == 0 && s->directions == 1 ? d->d_data : between[layer & 1];
    for (int direction = 0; direction < s->directions; direction++)
      MPG_TRY(backward_direction_T(r, d, layer, direction, d_output, d_input, direction > 0,
                                   d_gates, d_hidden, scratch + packed_at / sizeof(T)));
    if (layer > 0 && r->dropped) {
      undrop_T undrop = {layer_input_T(r, layer), d_input, (T)(1 / r->keep)};
      mpg_cpu_parallel_for(r->call, rows * wide, 4096, undrop_range_T, &undrop);
    }
    d_output = d_input;
  }
  if (s->directions == 2 && s->layers > 0)
    memcpy(d->d_data, between[0], (size_t)(rows * s->input) * sizeof(T));
  return MPG_OK;
}
