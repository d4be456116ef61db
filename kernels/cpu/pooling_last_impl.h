/* Pooling kernels for one storage type with the channels last: data is (batch, space..., channels), and begin and end count (sample, block of
 * CHANNELS channels). Included by pooling.c with S, A, LOAD, STORE, NAME, LOWEST and the loops of pooling_impl.h. Each element of the
 * result is summed up in the order of the window, as with the channels second.
 */

enum { NAME(CHANNELS) = 64 };

/* For each place and the elements under its window: `in` and `out` point to the block's channels there. */
#define EACH_BLOCK(...)                                                                                                \
  const pooling *t = context;                                                                                          \
  const mpg_window *w = &t->window;                                                                                    \
  int64_t plane = w->in[0] * w->in[1] * w->in[2], places = w->out[0] * w->out[1] * w->out[2];                          \
  int64_t blocks = (t->channels + NAME(CHANNELS) - 1) / NAME(CHANNELS);                                                \
  for (int64_t r = begin; r < end; r++) {                                                                              \
    int64_t n = r / blocks, first = r % blocks * NAME(CHANNELS);                                                       \
    int width = (int)MIN(t->channels - first, NAME(CHANNELS));                                                         \
    int64_t data = n * plane * t->channels + first, result = n * places * t->channels + first;                         \
    __VA_ARGS__                                                                                                        \
  }
#define EACH_CHANNEL(...) for (int c = 0; c < width; c++) __VA_ARGS__

static void NAME(forward_last)(void *context, int64_t begin, int64_t end) {
  EACH_BLOCK(const S *in = (const S *)t->data + data; S *out = (S *)t->out + result; EACH_PLACE(
      A value[NAME(CHANNELS)]; EACH_CHANNEL(value[c] = t->type == POOL_MAX ? LOWEST : 0;) EACH_ELEMENT({
        const S *x = in + i * t->channels;
        if (t->type == POOL_MAX) EACH_CHANNEL({
            A a = (A)LOAD(x[c]);
            value[c] = a > value[c] ? a : value[c];
          })
        else if (t->type == POOL_LP && t->p == 2) EACH_CHANNEL(value[c] += (A)LOAD(x[c]) * (A)LOAD(x[c]);)
        else if (t->type == POOL_LP && t->p == 3) EACH_CHANNEL(value[c] += (A)LOAD(x[c]) * (A)LOAD(x[c]) * (A)LOAD(x[c]);)
        else EACH_CHANNEL(value[c] += (A)LOAD(x[c]);)
      }) S *y = out + place * t->channels;
      if (t->type == POOL_LP && t->p > 1) EACH_CHANNEL(y[c] = STORE(t->p == 2 ? (A)sqrt(value[c]) : (A)cbrt(value[c]));)
      else if (t->type == POOL_AVG && counted > 0) EACH_CHANNEL(y[c] = STORE(value[c] / (A)counted);)
      else EACH_CHANNEL(y[c] = STORE(value[c]);)))
}

/* Which element of the window is the largest; -1: none. */
#define FIND_LARGEST                                                                        \
  A best[NAME(CHANNELS)];                                                                   \
  int64_t at[NAME(CHANNELS)];                                                               \
  EACH_CHANNEL({ best[c] = LOWEST, at[c] = -1; })                                           \
  EACH_ELEMENT(EACH_CHANNEL({                                                               \
    A a = (A)LOAD(in[i * t->channels + c]);                                                 \
    if (a > best[c]) best[c] = a, at[c] = i;                                                \
  }))

static void NAME(backward_last)(void *context, int64_t begin, int64_t end) {
  EACH_BLOCK(const S *in = (const S *)t->data + data, *grad = (const S *)t->grad + result, *pooled = (const S *)t->result + result;
             S *out = (S *)t->out + data; for (int64_t i = 0; i < plane; i++) memset(out + i * t->channels, 0, (size_t)width * sizeof(S));
             EACH_PLACE(
                 const S *g = grad + place * t->channels, *y = pooled + place * t->channels; if (t->type == POOL_MAX) {
                   FIND_LARGEST
                   EACH_CHANNEL(if (at[c] >= 0) {
                     S *to = &out[at[c] * t->channels + c];
                     *to = STORE((A)LOAD(*to) + (A)LOAD(g[c]));
                   })
                 } else if (t->type == POOL_LP && t->p > 1) {
                   EACH_ELEMENT(EACH_CHANNEL({
                     A p = (A)LOAD(y[c]), value = (A)LOAD(in[i * t->channels + c]), slope = (A)LOAD(g[c]);
                     A scale = p == 0 ? 0 : t->p == 2 ? slope / p : slope / (p * p);
                     S *to = &out[i * t->channels + c];
                     *to = STORE((A)LOAD(*to) + scale * (t->p == 2 ? value : value * value));
                   }))
                 } else {
                   A divisor = t->type == POOL_AVG && counted > 0 ? (A)counted : 1;
                   EACH_ELEMENT(EACH_CHANNEL({
                     S *to = &out[i * t->channels + c];
                     *to = STORE((A)LOAD(*to) + (A)LOAD(g[c]) / divisor);
                   }))
                 }))
}

static void NAME(at_max_last)(void *context, int64_t begin, int64_t end) {
  EACH_BLOCK(const S *in = (const S *)t->data + data, *values = (const S *)t->grad + data; S *out = (S *)t->out + result; EACH_PLACE(
      FIND_LARGEST EACH_CHANNEL(out[place * t->channels + c] = at[c] >= 0 ? values[at[c] * t->channels + c] : STORE((A)0);)))
}

#undef EACH_BLOCK
#undef EACH_CHANNEL
#undef FIND_LARGEST
