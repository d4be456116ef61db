/* Pooling kernels for one dtype, instantiated by float_instances.h. A work unit is a plane (one
 * channel of one sample). The maximum is the first of equal elements, or the last NaN if there is
 * one; a window without elements gives LOWEST.
 */

/* Each x_T below is NAME(x), the name of x in this instance. */
#define RUN_T NAME(RUN)
#define pooling_at_max_T NAME(pooling_at_max)
#define pooling_backward_T NAME(pooling_backward)
#define pooling_forward_T NAME(pooling_forward)
#define run_sum_T NAME(run_sum)
#define side_by_side_T NAME(side_by_side)
#define take_T NAME(take)

/* Loops over output positions. Sets these variables for the window at each position:
 *   z0 to x1    bounds, clipped to the data
 *   front       index of the first element, or -1 if the window is empty
 *   counted     divisor of an average
 *   place       output index */
#define EACH_PLACE(...)                                                                           \
  for (int64_t z = 0, place = 0; z < w->out[0]; z++) {                                            \
    int64_t z0 = z * w->stride[0] - w->pad[0], z1 = MIN(z0 + w->kernel[0], w->in[0] + w->pad[0]), \
            span_z = z1 - z0;                                                                     \
    z0 = MAX(z0, 0), z1 = MIN(z1, w->in[0]);                                                      \
    for (int64_t y = 0; y < w->out[1]; y++) {                                                     \
      int64_t y0 = y * w->stride[1] - w->pad[1],                                                  \
              y1 = MIN(y0 + w->kernel[1], w->in[1] + w->pad[1]), span_y = y1 - y0;                \
      y0 = MAX(y0, 0), y1 = MIN(y1, w->in[1]);                                                    \
      for (int64_t x = 0; x < w->out[2]; x++, place++) {                                          \
        int64_t x0 = x * w->stride[2] - w->pad[2],                                                \
                x1 = MIN(x0 + w->kernel[2], w->in[2] + w->pad[2]), span_x = x1 - x0;              \
        x0 = MAX(x0, 0), x1 = MIN(x1, w->in[2]);                                                  \
        int64_t counted __attribute__((unused)) =                                                 \
            t->count_pad ? span_z * span_y * span_x : (z1 - z0) * (y1 - y0) * (x1 - x0);          \
        int64_t front __attribute__((unused)) =                                                   \
            z0 < z1 && y0 < y1 && x0 < x1 ? (z0 * w->in[1] + y0) * w->in[2] + x0 : -1;            \
        __VA_ARGS__                                                                               \
      }                                                                                           \
    }                                                                                             \
  }
/* Loops over the elements of the window; `i` is an element's position in the plane. */
#define EACH_ELEMENT(...)                                                                     \
  for (int64_t a = z0; a < z1; a++)                                                           \
    for (int64_t b = y0; b < y1; b++)                                                         \
      for (int64_t i = (a * w->in[1] + b) * w->in[2] + x0, end_ = i + x1 - x0; i < end_; i++) \
  __VA_ARGS__

#define LEAST (front < 0 ? LOWEST : -(A)INFINITY)
#define LARGER(value, best) (((value) > (best)) | ((value) != (value))) /* branch-free */

/* Sums contiguous elements, in a fixed order of lanes. */
static A run_sum_T(const S *x, int64_t n) {
  enum { LANES = 16 };
  A lanes[LANES] = {0}, total = 0;
  int64_t i = 0;
  for (; i + LANES <= n; i += LANES)
    for (int l = 0; l < LANES; l++) lanes[l] += (A)LOAD(x[i + l]);
  for (int l = 0; l < LANES; l++) total += lanes[l];
  for (; i < n; i++) total += (A)LOAD(x[i]);
  return total;
}

enum { RUN_T = 256 }; /* maximum number of adjacent windows computed at once */

/* Combines value[x] with `width` elements of window x, for `count` adjacent windows. Windows are
 * `step` elements apart. */
static inline __attribute__((always_inline)) void take_T(const pooling *t, const S *in,
                                                         int64_t step, int width, int64_t count,
                                                         A *value) {
#define EACH_WINDOW(...)                  \
  {                                       \
    for (int64_t x = 0; x < count; x++) { \
      A v = value[x];                     \
      for (int d = 0; d < width; d++) {   \
        A a = (A)LOAD(in[x * step + d]);  \
        __VA_ARGS__;                      \
      }                                   \
      value[x] = v;                       \
    }                                     \
  }
  if (t->type == MPG_POOL_MAX)
    EACH_WINDOW(v = LARGER(a, v) ? a : v)
  else if (t->type == MPG_POOL_LP && t->p == 2)
    EACH_WINDOW(v += a * a)
  else if (t->type == MPG_POOL_LP && t->p == 3)
    EACH_WINDOW(v += a * a * a)
  else
    EACH_WINDOW(v += a)
#undef EACH_WINDOW
}

/* Computes windows [first, first + count) of an output row, none of which crosses a border along
 * the last axis. The elements of a window are combined in order. */
static void side_by_side_T(const pooling *t, const S *in, const int64_t *low, const int64_t *high,
                           int64_t first, int64_t count, A divisor, S *out) {
  const mpg_window *w = &t->window;
  A apart[RUN_T], *value = sizeof(S) == sizeof(A) ? (A *)(void *)out : apart;
  for (int64_t x = 0; x < count; x++) value[x] = t->type == MPG_POOL_MAX ? -(A)INFINITY : 0;
#define TAKE(width)                               \
  {                                               \
    if (step == 1)                                \
      take_T(t, from, 1, width, count, value);    \
    else if (step == 2)                           \
      take_T(t, from, 2, width, count, value);    \
    else                                          \
      take_T(t, from, step, width, count, value); \
  }
  for (int64_t a = low[0]; a < high[0]; a++)
    for (int64_t b = low[1]; b < high[1]; b++) {
      const S *from = in + (a * w->in[1] + b) * w->in[2] + first * w->stride[2] - w->pad[2];
      int64_t left = w->kernel[2], step = w->stride[2];
      for (; left >= 3; left -= 3, from += 3) TAKE(3)
      if (left == 2)
        TAKE(2)
      else if (left == 1)
        TAKE(1)
    }
#undef TAKE
  if (t->type == MPG_POOL_MAX && value != apart) return;
  for (int64_t x = 0; x < count; x++) {
    A y = value[x];
    if (t->type == MPG_POOL_LP && t->p > 1)
      y = t->p == 2 ? (A)sqrt(y) : (A)cbrt(y);
    else if (t->type != MPG_POOL_MAX)
      y /= divisor;
    out[x] = STORE(y);
  }
}

static void pooling_forward_T(void *context, int64_t begin, int64_t end) {
  const pooling *t = context;
  const mpg_window *w = &t->window;
  int64_t plane = w->in[0] * w->in[1] * w->in[2], places = w->out[0] * w->out[1] * w->out[2];
  /* In each row, windows [inner, behind) do not cross a border. */
  int64_t inner = MIN((w->pad[2] + w->stride[2] - 1) / w->stride[2], w->out[2]),
          reach = w->in[2] + w->pad[2] - w->kernel[2];
  int64_t behind = reach < 0 ? inner : MAX(MIN(reach / w->stride[2] + 1, w->out[2]), inner);
  bool rows = behind - inner >= 4 && (t->type == MPG_POOL_MAX || w->kernel[2] < 16);
  for (int64_t r = begin; r < end; r++) {
    const S *in = (const S *)t->data + r * plane;
    S *out = (S *)t->out + r * places;
    EACH_PLACE(
        if (rows && x == inner && z0 < z1 && y0 < y1) {
          int64_t low[2] = {z0, y0}, high[2] = {z1, y1};
          A divisor = t->type == MPG_POOL_AVG && counted > 0 ? (A)counted : 1;
          for (int64_t done = inner; done < behind; done += RUN_T)
            side_by_side_T(t, in, low, high, done, MIN(behind - done, RUN_T), divisor,
                           out + place + done - inner);
          place += behind - inner - 1, x = behind - 1;
          continue;
        } if (t->type == MPG_POOL_MAX) {
          A best = LEAST, nan = 0;
          EACH_ELEMENT({
            A value = (A)LOAD(in[i]);
            best = value > best ? value : best;
            nan = value != value ? value : nan;
          })
          out[place] = STORE(nan != nan ? nan : best);
        } else if (t->type == MPG_POOL_LP && t->p > 1) {
          A sum = 0;
          EACH_ELEMENT({
            A value = (A)LOAD(in[i]);
            sum += t->p == 2 ? value * value : value * value * value;
          })
          out[place] = STORE(t->p == 2 ? (A)sqrt(sum) : (A)cbrt(sum));
        } else {
          A sum = 0;
          if (!rows && w->kernel[2] >= 16) {
            for (int64_t a = z0; a < z1; a++)
              if (x1 - x0 == w->in[2])
                sum += run_sum_T(in + (a * w->in[1] + y0) * w->in[2], (y1 - y0) * w->in[2]);
              else
                for (int64_t b = y0; b < y1; b++)
                  sum += run_sum_T(in + (a * w->in[1] + b) * w->in[2] + x0, x1 - x0);
          } else {
            EACH_ELEMENT(sum += (A)LOAD(in[i]);)
          }
          out[place] = STORE(t->type == MPG_POOL_AVG && counted > 0 ? sum / (A)counted : sum);
        })
  }
}

static void pooling_backward_T(void *context, int64_t begin, int64_t end) {
  const pooling *t = context;
  const mpg_window *w = &t->window;
  int64_t plane = w->in[0] * w->in[1] * w->in[2], places = w->out[0] * w->out[1] * w->out[2];
  for (int64_t r = begin; r < end; r++) {
    const S *in = (const S *)t->data + r * plane, *grad = (const S *)t->grad + r * places,
            *result = (const S *)t->result + r * places;
    S *out = (S *)t->out + r * plane;
    memset(out, 0, (size_t)plane * sizeof(S));
    if (t->type == MPG_POOL_MAX) {
      EACH_PLACE(A best = LEAST; int64_t at = front;
                 EACH_ELEMENT({
                   A value = (A)LOAD(in[i]);
                   if (LARGER(value, best)) best = value, at = i;
                 }) if (at >= 0) out[at] = STORE((A)LOAD(out[at]) + (A)LOAD(grad[place]));)
    } else if (t->type == MPG_POOL_LP && t->p > 1) {
      EACH_PLACE(A y = (A)LOAD(result[place]), g = (A)LOAD(grad[place]);
                 A scale = y == 0      ? 0
                           : t->p == 2 ? g / y
                                       : g / (y * y);
                 EACH_ELEMENT({
                   A value = (A)LOAD(in[i]);
                   out[i] = STORE((A)LOAD(out[i]) + scale * (t->p == 2 ? value : value * value));
                 }))
    } else {
      EACH_PLACE(A share = (A)LOAD(grad[place]);
                 if (t->type == MPG_POOL_AVG && counted > 0) share /= (A)counted;
                 EACH_ELEMENT(out[i] = STORE((A)LOAD(out[i]) + share);))
    }
  }
}

/* Sets out[place] to the element of grad at the position of the window's maximum. grad has the
 * data's shape. */
static void pooling_at_max_T(void *context, int64_t begin, int64_t end) {
  const pooling *t = context;
  const mpg_window *w = &t->window;
  int64_t plane = w->in[0] * w->in[1] * w->in[2], places = w->out[0] * w->out[1] * w->out[2];
  for (int64_t r = begin; r < end; r++) {
    const S *in = (const S *)t->data + r * plane, *values = (const S *)t->grad + r * plane;
    S *out = (S *)t->out + r * places;
    EACH_PLACE(A best = LEAST; int64_t at = front;
               EACH_ELEMENT({
                 A value = (A)LOAD(in[i]);
                 if (LARGER(value, best)) best = value, at = i;
               }) out[place] = at >= 0 ? values[at] : STORE((A)0);)
  }
}

#include "kernels/cpu/layers/pooling_last_impl.h"

#undef EACH_PLACE
#undef EACH_ELEMENT
#undef LEAST
#undef LARGER
