/* Channels-last pooling kernels for one dtype: data is (batch, space..., channels); begin and end
 * count (sample, block of CHANNELS channels). Included by pooling_impl.h, whose loops it uses. Each
 * result is summed in window order, as with channels first.
 */

enum { NAME(CHANNELS) = 64 };

/* For each output position and its window: `in` and `out` point to the block's channels there. */
#define EACH_BLOCK(...)                                                                        \
  const pooling *t = context;                                                                  \
  const mpg_window *w = &t->window;                                                            \
  int64_t plane = w->in[0] * w->in[1] * w->in[2], places = w->out[0] * w->out[1] * w->out[2];  \
  int64_t blocks = (t->channels + NAME(CHANNELS) - 1) / NAME(CHANNELS);                        \
  for (int64_t r = begin; r < end; r++) {                                                      \
    int64_t n = r / blocks, first = r % blocks * NAME(CHANNELS);                               \
    int count = (int)MIN(t->channels - first, NAME(CHANNELS));                                 \
    int64_t data = n * plane * t->channels + first, result = n * places * t->channels + first; \
    if (count == NAME(CHANNELS)) { /* a constant, so that loops over the block unroll */       \
      enum { width = NAME(CHANNELS) };                                                         \
      __VA_ARGS__                                                                              \
    } else {                                                                                   \
      const int width = count;                                                                 \
      __VA_ARGS__                                                                              \
    }                                                                                          \
  }
#define EACH_CHANNEL(...) \
  for (int c = 0; c < width; c++) __VA_ARGS__

static void NAME(pooling_forward_last)(void *context, int64_t begin, int64_t end) {
  EACH_BLOCK(
      const S *in = (const S *)t->data + data; S *out = (S *)t->out + result; EACH_PLACE(
          A value[NAME(CHANNELS)];
          EACH_CHANNEL(value[c] = t->type == MPG_POOL_MAX ? LEAST : 0;) EACH_ELEMENT({
            const S *x = in + i * t->channels;
            if (t->type == MPG_POOL_MAX)
              EACH_CHANNEL({
                A a = (A)LOAD(x[c]);
                value[c] = LARGER(a, value[c]) ? a : value[c];
              })
            else if (t->type == MPG_POOL_LP && t->p == 2)
              EACH_CHANNEL(value[c] += (A)LOAD(x[c]) * (A)LOAD(x[c]);)
            else if (t->type == MPG_POOL_LP && t->p == 3)
              EACH_CHANNEL(value[c] += (A)LOAD(x[c]) * (A)LOAD(x[c]) * (A)LOAD(x[c]);)
            else
              EACH_CHANNEL(value[c] += (A)LOAD(x[c]);)
          }) S *y = out + place * t->channels;
          if (t->type == MPG_POOL_LP && t->p > 1) EACH_CHANNEL(
              y[c] = STORE(t->p == 2 ? (A)sqrt(value[c])
                                     : (A)cbrt(value[c]));) else if (t->type == MPG_POOL_AVG &&
                                                                     counted > 0)
              EACH_CHANNEL(y[c] = STORE(value[c] / (A)counted);) else EACH_CHANNEL(
                  y[c] = STORE(value[c]);)))
}

/* Finds the maximum of each channel's window and its position, or -1 if the window is empty. */
#define FIND_LARGEST                                \
  A best[NAME(CHANNELS)];                           \
  int64_t at[NAME(CHANNELS)];                       \
  EACH_CHANNEL({ best[c] = LEAST, at[c] = front; }) \
  EACH_ELEMENT(EACH_CHANNEL({                       \
    A a = (A)LOAD(in[i * t->channels + c]);         \
    if (LARGER(a, best[c])) best[c] = a, at[c] = i; \
  }))

static void NAME(pooling_backward_last)(void *context, int64_t begin, int64_t end) {
  EACH_BLOCK(const S *in = (const S *)t->data + data, *grad = (const S *)t->grad + result,
             *pooled = (const S *)t->result + result;
             S *out = (S *)t->out + data; for (int64_t i = 0; i < plane; i++)
                 memset(out + i * t->channels, 0, (size_t)width * sizeof(S));
             EACH_PLACE(
                 const S *g = grad + place * t->channels, *y = pooled + place * t->channels;
                 if (t->type == MPG_POOL_MAX) {
                   FIND_LARGEST
                   EACH_CHANNEL(if (at[c] >= 0) {
                     S *to = &out[at[c] * t->channels + c];
                     *to = STORE((A)LOAD(*to) + (A)LOAD(g[c]));
                   })
                 } else if (t->type == MPG_POOL_LP && t->p > 1) {
                   EACH_ELEMENT(EACH_CHANNEL({
                     A p = (A)LOAD(y[c]), value = (A)LOAD(in[i * t->channels + c]),
                       slope = (A)LOAD(g[c]);
                     A scale = p == 0 ? 0 : t->p == 2 ? slope / p : slope / (p * p);
                     S *to = &out[i * t->channels + c];
                     *to = STORE((A)LOAD(*to) + scale * (t->p == 2 ? value : value * value));
                   }))
                 } else {
                   A divisor = t->type == MPG_POOL_AVG && counted > 0 ? (A)counted : 1;
                   EACH_ELEMENT(EACH_CHANNEL({
                     S *to = &out[i * t->channels + c];
                     *to = STORE((A)LOAD(*to) + (A)LOAD(g[c]) / divisor);
                   }))
                 }))
}

static void NAME(pooling_at_max_last)(void *context, int64_t begin, int64_t end) {
  EACH_BLOCK(const S *in = (const S *)t->data + data, *values = (const S *)t->grad + data;
             S *out = (S *)t->out + result; EACH_PLACE(FIND_LARGEST EACH_CHANNEL(
                 out[place * t->channels + c] =
                     at[c] >= 0 ? values[at[c] * t->channels + c] : STORE((A)0);)))
}

/* Vectors of channels, GROUPS at a time; loops over them unroll, which keeps them in registers.
 * Positions have the width of values, so that one mask fits both. */
enum { NAME(LANES) = MPG_VECTOR_BYTES / sizeof(A), NAME(GROUPS) = 4 };
typedef A NAME(lanes) __attribute__((vector_size(NAME(LANES) * sizeof(A))));
typedef LANE_INT NAME(places) __attribute__((vector_size(NAME(LANES) * sizeof(LANE_INT))));

/* Returns by address, since the ABI for vector arguments depends on the instruction set. */
static inline __attribute__((always_inline)) void NAME(load_lanes)(const S *from, int count,
                                                                   NAME(lanes) * v) {
  A values[64 / sizeof(A)] = {0};
  if (sizeof *v == 64 && count == NAME(LANES))
    LOAD_LINE(values, from);
  else
    for (int j = 0; j < MIN(count, NAME(LANES)); j++) values[j] = (A)LOAD(from[j]);
  memcpy(v, values, sizeof *v);
}
static inline __attribute__((always_inline)) void NAME(store_lanes)(const NAME(lanes) * v, S *to,
                                                                    int count) {
  A values[64 / sizeof(A)];
  memcpy(values, v, sizeof *v);
  if (sizeof *v == 64 && count == NAME(LANES))
    STORE_LINE(to, values);
  else
    for (int j = 0; j < MIN(count, NAME(LANES)); j++) to[j] = STORE(values[j]);
}
static inline __attribute__((always_inline)) void NAME(load_index)(const uint8_t *from, int count,
                                                                   NAME(places) * v) {
  LANE_INT values[NAME(LANES)] = {0};
  for (int j = 0; j < MIN(count, NAME(LANES)); j++) values[j] = from[j];
  memcpy(v, values, sizeof *v);
}
static inline __attribute__((always_inline)) void NAME(store_index)(const NAME(places) * v,
                                                                    uint8_t *to, int count) {
  LANE_INT values[NAME(LANES)];
  memcpy(values, v, sizeof *v);
  for (int j = 0; j < MIN(count, NAME(LANES)); j++) to[j] = (uint8_t)values[j];
}

/* Windows that contain an element, as offsets and window indices; identical away from borders. */
typedef struct NAME(reach) {
  int count;
  int64_t offset[MPG_POOLING_INDEX_NONE];
  LANE_INT number[MPG_POOLING_INDEX_NONE]; /* element's index in the window, with padding */
} NAME(reach);

/* Finds the maximum of each of `groups` vectors of channels; the last vector has `count`
 * channels. */
static inline __attribute__((always_inline)) void NAME(largest_lanes)(const NAME(reach) * r,
                                                                      const S *in, S *out,
                                                                      uint8_t *index, int groups,
                                                                      int count) {
  NAME(lanes) best[NAME(GROUPS)];
  NAME(places) at[NAME(GROUPS)];
  MPG_UNROLL(4)
  for (int g = 0; g < groups; g++) {
    best[g] = (NAME(lanes)){0} + (r->count ? -(A)INFINITY : LOWEST);
    at[g] = (NAME(places)){0} + (r->count ? r->number[0] : MPG_POOLING_INDEX_NONE);
  }
  for (int e = 0; e < r->count; e++) MPG_UNROLL(4)
  for (int g = 0; g < groups; g++) {
    NAME(lanes) value;
    NAME(load_lanes)(in + r->offset[e] + g * NAME(LANES), count, &value);
    NAME(places) larger = (value > best[g]) | (value != value);
    best[g] = (NAME(lanes))((larger & (NAME(places))value) | (~larger & (NAME(places))best[g]));
    at[g] = (larger & r->number[e]) | (~larger & at[g]);
  }
  MPG_UNROLL(4)
  for (int g = 0; g < groups; g++) {
    NAME(store_lanes)(&best[g], out + g * NAME(LANES), count);
    NAME(store_index)(&at[g], index + g * NAME(LANES), count);
  }
}

/* Stores the maximum and its position in the window, including padding. */
static void NAME(pooling_forward_index)(void *context, int64_t begin, int64_t end) {
  NAME(reach) reach;
  EACH_BLOCK(
      const S *in = (const S *)t->data + data; S *out = (S *)t->out + result;
      uint8_t *index = t->index + result; EACH_PLACE(
          reach.count = 0;
          for (int64_t a = z0; a < z1; a++) for (int64_t b = y0; b < y1; b++) for (int64_t d = x0;
                                                                                   d < x1; d++) {
            reach.offset[reach.count] = ((a * w->in[1] + b) * w->in[2] + d) * t->channels;
            reach.number[reach.count++] =
                (LANE_INT)(((a - z * w->stride[0] + w->pad[0]) * w->kernel[1] + b -
                            y * w->stride[1] + w->pad[1]) *
                               w->kernel[2] +
                           d - x * w->stride[2] + w->pad[2]);
          } int64_t to = place * t->channels;
          for (int c = 0, step; c < width;
               c += step) if ((step = NAME(GROUPS) * NAME(LANES)) <= width - c)
              NAME(largest_lanes)(&reach, in + c, out + to + c, index + to + c, NAME(GROUPS),
                                  NAME(LANES));
          else if ((step = NAME(LANES)) <= width - c)
              NAME(largest_lanes)(&reach, in + c, out + to + c, index + to + c, 1, NAME(LANES));
          else NAME(largest_lanes)(&reach, in + c, out + to + c, index + to + c, 1, width - c);))
}

/* One vector at a time: with several, compilers do not widen the bytes of `index` in registers. */
static inline __attribute__((always_inline)) void NAME(gather_lanes)(const NAME(reach) * r,
                                                                     const S *grad,
                                                                     const uint8_t *index, S *out,
                                                                     int count) {
  NAME(lanes) sum = {0}, slope;
  for (int e = 0; e < r->count; e++) {
    NAME(places) which;
    NAME(load_lanes)(grad + r->offset[e], count, &slope);
    NAME(load_index)(index + r->offset[e], count, &which);
    sum += (NAME(lanes))((which == r->number[e]) & (NAME(places))slope);
  }
  NAME(store_lanes)(&sum, out, count);
}

/* Each element gathers gradients from the windows that contain it, in order. */
static void NAME(pooling_backward_index)(void *context, int64_t begin, int64_t end) {
  NAME(reach) reach;
  EACH_BLOCK(const S *grad = (const S *)t->grad + result; const uint8_t *index = t->index + result;
             S *out = (S *)t->out + data; for (int64_t i = 0; i < plane; i++) {
               int64_t at[3] = {i / w->in[2] / w->in[1], i / w->in[2] % w->in[1], i % w->in[2]},
                       low[3], high[3];
               for (int k = 0; k < 3; k++) {
                 int64_t from = at[k] + w->pad[k] - w->kernel[k] + 1;
                 low[k] = from <= 0 ? 0 : (from + w->stride[k] - 1) / w->stride[k];
                 high[k] = MIN((at[k] + w->pad[k]) / w->stride[k] + 1, w->out[k]);
               }
               reach.count = 0;
               for (int64_t z = low[0]; z < high[0]; z++)
                 for (int64_t y = low[1]; y < high[1]; y++)
                   for (int64_t x = low[2]; x < high[2]; x++) {
                     reach.offset[reach.count] =
                         ((z * w->out[1] + y) * w->out[2] + x) * t->channels;
                     reach.number[reach.count++] =
                         (LANE_INT)(((at[0] - z * w->stride[0] + w->pad[0]) * w->kernel[1] + at[1] -
                                     y * w->stride[1] + w->pad[1]) *
                                        w->kernel[2] +
                                    at[2] - x * w->stride[2] + w->pad[2]);
                   }
               S *to = out + i * t->channels;
               int c = 0;
               for (; c + NAME(LANES) <= width; c += NAME(LANES))
                 NAME(gather_lanes)(&reach, grad + c, index + c, to + c, NAME(LANES));
               if (c < width) NAME(gather_lanes)(&reach, grad + c, index + c, to + c, width - c);
             })
}

#undef EACH_BLOCK
#undef EACH_CHANNEL
#undef FIND_LARGEST
