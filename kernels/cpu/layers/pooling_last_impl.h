/* Channels-last pooling kernels for one dtype: data is (batch, space..., channels). A work unit is
 * a block of CHANNELS channels of one sample. Included by pooling_impl.h, whose loops it uses. Each
 * result is summed in window order, as with channels first.
 */

/* Each x_T below is NAME(x), the name of x in this instance. */
#define CHANNELS_T NAME(CHANNELS)
#define GROUPS_T NAME(GROUPS)
#define LANES_T NAME(LANES)
#define gather_lanes_T NAME(gather_lanes)
#define lanes_T NAME(lanes)
#define largest_lanes_T NAME(largest_lanes)
#define load_index_T NAME(load_index)
#define load_lanes_T NAME(load_lanes)
#define places_T NAME(places)
#define pooling_at_max_last_T NAME(pooling_at_max_last)
#define pooling_backward_index_T NAME(pooling_backward_index)
#define pooling_backward_last_T NAME(pooling_backward_last)
#define pooling_forward_index_T NAME(pooling_forward_index)
#define pooling_forward_last_T NAME(pooling_forward_last)
#define reach_T NAME(reach)
#define store_index_T NAME(store_index)
#define store_lanes_T NAME(store_lanes)

enum { CHANNELS_T = 64 };

/* Loops over (sample, block of channels). Sets `data` and `result` to the block's offsets in the
 * data and in the result, and `width` to its number of channels. */
#define EACH_BLOCK(...)                                                                        \
  const pooling *t = context;                                                                  \
  const mpg_window *w = &t->window;                                                            \
  int64_t plane = w->in[0] * w->in[1] * w->in[2], places = w->out[0] * w->out[1] * w->out[2];  \
  int64_t blocks = (t->channels + CHANNELS_T - 1) / CHANNELS_T;                                \
  for (int64_t r = begin; r < end; r++) {                                                      \
    int64_t n = r / blocks, first = r % blocks * CHANNELS_T;                                   \
    int count = (int)MIN(t->channels - first, CHANNELS_T);                                     \
    int64_t data = n * plane * t->channels + first, result = n * places * t->channels + first; \
    if (count == CHANNELS_T) { /* a constant, so that loops over the block unroll */           \
      enum { width = CHANNELS_T };                                                             \
      __VA_ARGS__                                                                              \
    } else {                                                                                   \
      const int width = count;                                                                 \
      __VA_ARGS__                                                                              \
    }                                                                                          \
  }
#define EACH_CHANNEL(...) \
  for (int c = 0; c < width; c++) __VA_ARGS__

static void pooling_forward_last_T(void *context, int64_t begin, int64_t end) {
  EACH_BLOCK(
      const S *in = (const S *)t->data + data; S *out = (S *)t->out + result; EACH_PLACE(
          A value[CHANNELS_T];
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
  A best[CHANNELS_T];                               \
  int64_t at[CHANNELS_T];                           \
  EACH_CHANNEL({ best[c] = LEAST, at[c] = front; }) \
  EACH_ELEMENT(EACH_CHANNEL({                       \
    A a = (A)LOAD(in[i * t->channels + c]);         \
    if (LARGER(a, best[c])) best[c] = a, at[c] = i; \
  }))

static void pooling_backward_last_T(void *context, int64_t begin, int64_t end) {
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

static void pooling_at_max_last_T(void *context, int64_t begin, int64_t end) {
  EACH_BLOCK(const S *in = (const S *)t->data + data, *values = (const S *)t->grad + data;
             S *out = (S *)t->out + result; EACH_PLACE(FIND_LARGEST EACH_CHANNEL(
                 out[place * t->channels + c] =
                     at[c] >= 0 ? values[at[c] * t->channels + c] : STORE((A)0);)))
}

/* Channels are processed in vectors, GROUPS at a time. Loops over these vectors are unrolled to
 * keep them in registers. Positions are as wide as values, so that one mask selects from both. */
enum { LANES_T = MPG_VECTOR_BYTES / sizeof(A), GROUPS_T = 4 };
typedef A lanes_T __attribute__((vector_size(LANES_T * sizeof(A))));
typedef LANE_INT places_T __attribute__((vector_size(LANES_T * sizeof(LANE_INT))));

/* Loads min(count, LANES) elements into *v and sets its other lanes to 0. The vector is passed by
 * address, since the ABI for vectors depends on the instruction set. */
static inline __attribute__((always_inline)) void load_lanes_T(const S *from, int count,
                                                               lanes_T *v) {
  A values[64 / sizeof(A)] = {0};
  if (sizeof *v == 64 && count == LANES_T)
    LOAD_LINE(values, from);
  else
    for (int j = 0; j < MIN(count, LANES_T); j++) values[j] = (A)LOAD(from[j]);
  memcpy(v, values, sizeof *v);
}
static inline __attribute__((always_inline)) void store_lanes_T(const lanes_T *v, S *to,
                                                                int count) {
  A values[64 / sizeof(A)];
  memcpy(values, v, sizeof *v);
  if (sizeof *v == 64 && count == LANES_T)
    STORE_LINE(to, values);
  else
    for (int j = 0; j < MIN(count, LANES_T); j++) to[j] = STORE(values[j]);
}
static inline __attribute__((always_inline)) void load_index_T(const uint8_t *from, int count,
                                                               places_T *v) {
  LANE_INT values[LANES_T] = {0};
  for (int j = 0; j < MIN(count, LANES_T); j++) values[j] = from[j];
  memcpy(v, values, sizeof *v);
}
static inline __attribute__((always_inline)) void store_index_T(const places_T *v, uint8_t *to,
                                                                int count) {
  LANE_INT values[LANES_T];
  memcpy(values, v, sizeof *v);
  for (int j = 0; j < MIN(count, LANES_T); j++) to[j] = (uint8_t)values[j];
}

/* Elements of a window (forward), or windows that contain an element (backward), with their
 * offsets. */
typedef struct reach_T {
  int count;
  int64_t offset[MPG_POOLING_INDEX_NONE];
  LANE_INT number[MPG_POOLING_INDEX_NONE]; /* element's index in the window, counting padding */
} reach_T;

/* Stores the maximum and its index in the window, for `groups` vectors of `count` channels. */
static inline __attribute__((always_inline)) void largest_lanes_T(const reach_T *r, const S *in,
                                                                  S *out, uint8_t *index,
                                                                  int groups, int count) {
  lanes_T best[GROUPS_T];
  places_T at[GROUPS_T];
  MPG_UNROLL(4)
  for (int g = 0; g < groups; g++) {
    best[g] = (lanes_T){0} + (r->count ? -(A)INFINITY : LOWEST);
    at[g] = (places_T){0} + (r->count ? r->number[0] : MPG_POOLING_INDEX_NONE);
  }
  for (int e = 0; e < r->count; e++) MPG_UNROLL(4)
  for (int g = 0; g < groups; g++) {
    lanes_T value;
    load_lanes_T(in + r->offset[e] + g * LANES_T, count, &value);
    places_T larger = (value > best[g]) | (value != value);
    best[g] = (lanes_T)((larger & (places_T)value) | (~larger & (places_T)best[g]));
    at[g] = (larger & r->number[e]) | (~larger & at[g]);
  }
  MPG_UNROLL(4)
  for (int g = 0; g < groups; g++) {
    store_lanes_T(&best[g], out + g * LANES_T, count);
    store_index_T(&at[g], index + g * LANES_T, count);
  }
}

/* Stores the maximum of each window and its index in the window, counting padding. */
static void pooling_forward_index_T(void *context, int64_t begin, int64_t end) {
  reach_T reach;
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
          for (int c = 0, step; c < width; c += step) if ((step = GROUPS_T * LANES_T) <= width - c)
              largest_lanes_T(&reach, in + c, out + to + c, index + to + c, GROUPS_T, LANES_T);
          else if ((step = LANES_T) <= width - c)
              largest_lanes_T(&reach, in + c, out + to + c, index + to + c, 1, LANES_T);
          else largest_lanes_T(&reach, in + c, out + to + c, index + to + c, 1, width - c);))
}

/* Sums the gradients of one vector of channels. Processes only one vector at a time: with several,
 * compilers do not widen the bytes of `index` in registers. */
static inline __attribute__((always_inline)) void gather_lanes_T(const reach_T *r, const S *grad,
                                                                 const uint8_t *index, S *out,
                                                                 int count) {
  lanes_T sum = {0}, slope;
  for (int e = 0; e < r->count; e++) {
    places_T which;
    load_lanes_T(grad + r->offset[e], count, &slope);
    load_index_T(index + r->offset[e], count, &which);
    sum += (lanes_T)((which == r->number[e]) & (places_T)slope);
  }
  store_lanes_T(&sum, out, count);
}

/* Computes the gradient of each element: the sum of the gradients of the windows in which it is the
 * maximum, added in window order. */
static void pooling_backward_index_T(void *context, int64_t begin, int64_t end) {
  reach_T reach;
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
               for (; c + LANES_T <= width; c += LANES_T)
                 gather_lanes_T(&reach, grad + c, index + c, to + c, LANES_T);
               if (c < width) gather_lanes_T(&reach, grad + c, index + c, to + c, width - c);
             })
}

#undef EACH_BLOCK
#undef EACH_CHANNEL
#undef FIND_LARGEST
