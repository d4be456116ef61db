/* Pooling. cuDNN is not used, because it differs from MXNet in windows that extend beyond the
 * padding, in sum and Lp pooling, and in ties between maxima. Each thread gathers the inputs of its
 * result (forward, the elements of a window; backward, the windows that contain an element), so
 * that the order of sums is fixed. */
#include <float.h>

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/neighbours.h"
extern "C" {
#include "op/layers/convolution.h"
}

namespace {

enum { POOL_AVG, POOL_LP, POOL_MAX, POOL_SUM }; /* pool_type */
enum kind { MAX, SUM, SQUARES, CUBES };
enum { EIGHT = 8 }; /* channels per thread for channels-last data */
/* For channels-first data, in which a window's rows are contiguous, a whole warp processes each
 * window if windows have at least this many elements. */
enum { WARP_WINDOW = 64 };

/* Sizes, with three axes. There are `planes` planes of `plane` elements and `places` windows each.
 * If channels are last, an element is a position with all its channels. */
struct pooling : mpg_window {
  int64_t channels, planes, plane, places;
  bool last, count_pad, average;
};

/* One window, clipped to the data. */
struct place {
  int64_t from[3], to[3]; /* range [from, to) along each axis */
  int64_t counted;        /* number of elements that an average divides by */
  int64_t base, step;     /* element e of the plane is at base + e * step */
  int64_t at[3];          /* the window's index along each axis */
};

MPG_HOST_DEVICE int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

__device__ __forceinline__ void set_window(const pooling &t, place &p) {
  int64_t span = 1, inside = 1;
  for (int k = 0; k < 3; k++) {
    int64_t from = p.at[k] * t.stride[k] - t.pad[k],
            to = smaller(from + t.kernel[k], t.in[k] + t.pad[k]);
    span *= to - from;
    p.from[k] = from < 0 ? 0 : from;
    p.to[k] = smaller(to, t.in[k]);
    inside *= p.to[k] - p.from[k];
  }
  p.counted = t.count_pad ? span : inside;
}

/* Returns the window for result element i. */
__device__ __forceinline__ place place_of(const pooling &t, int64_t i) {
  place p;
  int64_t window, plane = 0, channel = 0;
  if (t.last) {
    channel = i % t.channels;
    window = i / t.channels % t.places;
    plane = i / t.channels / t.places;
    p.base = plane * t.plane * t.channels + channel;
    p.step = t.channels;
  } else {
    window = i % t.places;
    plane = i / t.places;
    p.base = plane * t.plane;
    p.step = 1;
  }
  p.at[2] = window % t.out[2];
  p.at[1] = window / t.out[2] % t.out[1];
  p.at[0] = window / t.out[2] / t.out[1];
  set_window(t, p);
  return p;
}

MPG_HOST_DEVICE float lowest(const float *) { return -FLT_MAX; }
MPG_HOST_DEVICE double lowest(const double *) { return -DBL_MAX; }
MPG_HOST_DEVICE float lowest(const mpg_half *) { return -65504.0f; }
MPG_HOST_DEVICE float lowest(const mpg_bfloat16 *) { return -0x1.fep127f; }

MPG_HOST_DEVICE float root(float x, kind k) { return k == SQUARES ? sqrtf(x) : cbrtf(x); }
MPG_HOST_DEVICE double root(double x, kind k) { return k == SQUARES ? sqrt(x) : cbrt(x); }

/* Result of a window: the maximum and its index, or the sum. If maxima are equal, the first one is
 * used. If there are NaNs, the last one is used. */
template <class C>
struct found {
  C value;
  int64_t at; /* index in the plane; -1 if the window is empty */
};
template <class C, kind K>
__device__ __forceinline__ void add(found<C> &f, C x, int64_t at) {
  if (K == MAX) {
    if (f.at < 0 || x > f.value || x != x) f.value = x, f.at = at;
  } else {
    f.value += K == SUM ? x : K == SQUARES ? x * x : x * x * x;
  }
}

template <class T, kind K>
__device__ __forceinline__ found<mpg_compute_t<T>> search(const pooling &t, const place &p,
                                                          const T *in) {
  typedef mpg_compute_t<T> C;
  found<C> f = {K == MAX ? lowest((const T *)NULL) : (C)0, -1};
  for (int64_t a = p.from[0]; a < p.to[0]; a++)
    for (int64_t b = p.from[1]; b < p.to[1]; b++) {
      int64_t line = (a * t.in[1] + b) * t.in[2];
      for (int64_t c = p.from[2]; c < p.to[2]; c++)
        add<C, K>(f, mpg_to<C>(in[p.base + (line + c) * p.step]), line + c);
    }
  return f;
}

/* True if `theirs` replaces `mine` when the maxima of two lanes are combined. The result is the
 * same as if `add` had processed all elements in window order. */
template <class C>
__device__ __forceinline__ bool better(const found<C> &theirs, const found<C> &mine) {
  if (theirs.at < 0 || mine.at < 0) return mine.at < 0;
  bool they = theirs.value != theirs.value, me = mine.value != mine.value;
  if (they || me) return they && (!me || theirs.at > mine.at);
  return theirs.value > mine.value || (theirs.value == mine.value && theirs.at < mine.at);
}

/* Computes the result of a window. All lanes of the warp must call it, and all get the result. */
template <class T, kind K>
__device__ __forceinline__ found<mpg_compute_t<T>> search_by_warp(const pooling &t, const place &p,
                                                                  const T *in) {
  typedef mpg_compute_t<T> C;
  found<C> f = {K == MAX ? lowest((const T *)NULL) : (C)0, -1};
  uint32_t width = (uint32_t)(p.to[2] - p.from[2]), height = (uint32_t)(p.to[1] - p.from[1]);
  uint32_t count = p.to[0] > p.from[0] && p.to[1] > p.from[1] && p.to[2] > p.from[2]
                       ? (uint32_t)(p.to[0] - p.from[0]) * height * width
                       : 0;
  for (uint32_t e = threadIdx.x & 31; e < count; e += 32) {
    int64_t at =
        ((p.from[0] + e / width / height) * t.in[1] + p.from[1] + e / width % height) * t.in[2] +
        p.from[2] + e % width;
    add<C, K>(f, mpg_to<C>(in[p.base + at * p.step]), at);
  }
  for (int lanes = 16; lanes; lanes >>= 1) {
    found<C> other = {__shfl_xor_sync(0xffffffffu, f.value, lanes),
                      __shfl_xor_sync(0xffffffffu, f.at, lanes)};
    if (K != MAX)
      f.value += other.value;
    else if (better(other, f))
      f = other;
  }
  return f;
}

/* Outputs, and the input `values`. Each pointer may be NULL. */
struct results {
  void *out;
  uint8_t *index;     /* index of the maximum in the window, counting padding */
  int64_t *at;        /* index of the maximum in the plane */
  const void *values; /* if not NULL, `out` receives its elements at the maxima of the data */
};

template <class T, kind K, bool WARP>
__global__ void pool_kernel(pooling t, const T *in, results r, int64_t count) {
  typedef mpg_compute_t<T> C;
  int64_t i = WARP ? MPG_CUDA_INDEX / 32 : MPG_CUDA_INDEX;
  if (i >= count) return; /* uniform across the warp if WARP */
  place p = place_of(t, i);
  found<C> f = WARP ? search_by_warp<T, K>(t, p, in) : search<T, K>(t, p, in);
  if (WARP && (threadIdx.x & 31)) return;
  if (K == SQUARES || K == CUBES) f.value = root(f.value, K);
  if (K == SUM && t.average && p.counted > 0) f.value = f.value / (C)p.counted;
  if (r.values)
    ((T *)r.out)[i] = f.at >= 0 ? ((const T *)r.values)[p.base + f.at * p.step] : mpg_to<T>((C)0);
  else if (r.out)
    ((T *)r.out)[i] = mpg_to<T>(f.value);
  if (r.at) r.at[i] = f.at;
  if (r.index) {
    int64_t a = f.at / t.in[2] / t.in[1], b = f.at / t.in[2] % t.in[1], c = f.at % t.in[2];
    int64_t inside = ((a - p.at[0] * t.stride[0] + t.pad[0]) * t.kernel[1] + b -
                      p.at[1] * t.stride[1] + t.pad[1]) *
                         t.kernel[2] +
                     c - p.at[2] * t.stride[2] + t.pad[2];
    r.index[i] = (uint8_t)(f.at >= 0 ? inside : (int64_t)MPG_POOLING_INDEX_NONE);
  }
}

struct gradients {
  const void *grad, *result;
  const int64_t *at; /* for MAX, exactly one of `at` and `index` is not NULL */
  const uint8_t *index;
};

/* Computes the data's gradient. Each element gathers from the windows that contain it. */
template <class T, kind K>
__global__ void back_kernel(pooling t, gradients g, const T *in, T *out, int64_t count) {
  typedef mpg_compute_t<T> C;
  int64_t i = MPG_CUDA_INDEX;
  if (i >= count) return;
  int64_t channel = t.last ? i % t.channels : 0, rest = t.last ? i / t.channels : i,
          e = rest % t.plane, plane = rest / t.plane;
  int64_t at[3] = {e / t.in[2] / t.in[1], e / t.in[2] % t.in[1], e % t.in[2]}, low[3], high[3];
  for (int k = 0; k < 3; k++) {
    int64_t first = at[k] + t.pad[k] - t.kernel[k] + 1;
    low[k] = first <= 0 ? 0 : (first + t.stride[k] - 1) / t.stride[k];
    high[k] = smaller((at[k] + t.pad[k]) / t.stride[k] + 1, t.out[k]);
  }
  C sum = 0, x = K == SQUARES || K == CUBES ? mpg_to<C>(in[i]) : (C)0;
  place p;
  for (p.at[0] = low[0]; p.at[0] < high[0]; p.at[0]++)
    for (p.at[1] = low[1]; p.at[1] < high[1]; p.at[1]++)
      for (p.at[2] = low[2]; p.at[2] < high[2]; p.at[2]++) {
        int64_t window = plane * t.places + (p.at[0] * t.out[1] + p.at[1]) * t.out[2] + p.at[2];
        if (t.last) window = window * t.channels + channel;
        C slope = mpg_to<C>(((const T *)g.grad)[window]);
        if (K == MAX && g.at) {
          if (g.at[window] == e) sum += slope;
        } else if (K == MAX) {
          int64_t inside = ((at[0] - p.at[0] * t.stride[0] + t.pad[0]) * t.kernel[1] + at[1] -
                            p.at[1] * t.stride[1] + t.pad[1]) *
                               t.kernel[2] +
                           at[2] - p.at[2] * t.stride[2] + t.pad[2];
          if (g.index[window] == inside) sum += slope;
        } else if (K == SUM) {
          set_window(t, p);
          sum += t.average && p.counted > 0 ? slope / (C)p.counted : slope;
        } else {
          C y = mpg_to<C>(((const T *)g.result)[window]);
          sum += y == 0 ? (C)0 : K == SQUARES ? slope / y * x : slope / (y * y) * (x * x);
        }
      }
  out[i] = mpg_to<T>(sum);
}

/* --- Channels last: one block per line of windows, eight channels per thread ------------------ */

/* A window's start along an axis, its intersection [from, to) with the data, and its length
 * including padding (`span`). */
struct clip {
  int start, from, to, span;
};
__device__ __forceinline__ clip clip_of(const pooling &t, int axis, int at) {
  clip c;
  c.start = at * (int)t.stride[axis] - (int)t.pad[axis];
  int size = (int)t.in[axis], end = c.start + (int)t.kernel[axis], pad = (int)t.pad[axis];
  if (end > size + pad) end = size + pad;
  c.span = end - c.start;
  c.from = c.start < 0 ? 0 : c.start;
  c.to = end < size ? end : size;
  return c;
}

/* A line of elements along the innermost axis: its plane, and its coordinates along the outer
 * axes. */
struct line {
  int64_t plane;
  int at[2];
};
__device__ __forceinline__ line line_of(int64_t row, int64_t first, int64_t second) {
  line l;
  l.plane = row / (first * second);
  unsigned rest = (unsigned)(row - l.plane * first * second);
  l.at[0] = (int)(rest / (unsigned)second);
  l.at[1] = (int)(rest - (unsigned)l.at[0] * (unsigned)second);
  return l;
}

__device__ __forceinline__ int live_of(const pooling &t, int64_t c) {
  return t.channels - c < 0 ? 0 : t.channels - c < EIGHT ? (int)(t.channels - c) : (int)EIGHT;
}

template <bool FULL>
__device__ __forceinline__ void write_bytes(uint8_t *to, int live, const uint8_t (&bytes)[EIGHT]) {
  if (FULL) {
    uint2 words;
    memcpy(&words, bytes, sizeof words);
    *(uint2 *)to = words;
  } else {
#pragma unroll
    for (int k = 0; k < EIGHT; k++)
      if (k < live) to[k] = bytes[k];
  }
}
template <bool FULL>
__device__ __forceinline__ void read_bytes(const uint8_t *from, int live, uint8_t (&bytes)[EIGHT]) {
  if (FULL) {
    uint2 words = *(const uint2 *)from;
    memcpy(bytes, &words, sizeof words);
  } else {
#pragma unroll
    for (int k = 0; k < EIGHT; k++) bytes[k] = k < live ? from[k] : 0;
  }
}

template <class T, kind K, bool FULL>
__global__ void pool_last_kernel(pooling t, const T *in, results r, int64_t lines) {
  typedef mpg_compute_t<T> C;
  int columns = blockDim.x * EIGHT;
  for (int64_t row = blockIdx.x; row < lines; row += gridDim.x) {
    line l = line_of(row, t.out[0], t.out[1]);
    clip za = clip_of(t, 0, l.at[0]), zb = clip_of(t, 1, l.at[1]);
    for (int64_t tile = blockIdx.y; tile * columns < t.channels; tile += gridDim.y) {
      int64_t c = tile * columns + threadIdx.x * EIGHT;
      int live = live_of(t, c);
      for (int w = threadIdx.y; live && w < (int)t.out[2]; w += blockDim.y) {
        clip zc = clip_of(t, 2, w);
        bool any = za.from < za.to && zb.from < zb.to && zc.from < zc.to;
        C values[EIGHT];
        int where[EIGHT], first = -1; /* indices in the window if r.index, else in the plane */
#pragma unroll
        for (int k = 0; k < EIGHT; k++) {
          values[k] = K == SUM ? (C)0 : any ? -(C)INFINITY : lowest((const T *)NULL);
          where[k] = -1;
        }
        for (int a = za.from; a < za.to; a++)
          for (int b = zb.from; b < zb.to; b++) {
            int64_t begin = ((l.plane * t.in[0] + a) * t.in[1] + b) * t.in[2] + zc.from;
            const T *at = in + begin * t.channels + c;
            int place =
                r.index ? ((a - za.start) * (int)t.kernel[1] + b - zb.start) * (int)t.kernel[2] -
                              zc.start
                        : (a * (int)t.in[1] + b) * (int)t.in[2];
            if (first < 0) first = place + zc.from;
            for (int e = zc.from; e < zc.to; e++, at += t.channels) {
              mpg_neighbours<T, EIGHT, FULL> data;
              data.load(at, live);
#pragma unroll
              for (int k = 0; k < EIGHT; k++) {
                C x = data.template get<C>(k);
                if (K == SUM) {
                  values[k] += x;
                } else if (x > values[k] || x != x) {
                  values[k] = x;
                  where[k] = place + e;
                }
              }
            }
          }
        int64_t window = (row * t.out[2] + w) * t.channels + c;
        if (K == SUM && t.average) {
          int counted = t.count_pad ? za.span * zb.span * zc.span
                                    : (za.to - za.from) * (zb.to - zb.from) * (zc.to - zc.from);
#pragma unroll
          for (int k = 0; k < EIGHT; k++)
            if (counted > 0) values[k] = values[k] / (C)counted;
        }
        /* where[k] is -1 if no element is larger than -infinity. The maximum is then the first
         * element of the window. An empty window keeps -1, since `first` is -1. */
        if (K == MAX) {
#pragma unroll
          for (int k = 0; k < EIGHT; k++)
            if (where[k] < 0) where[k] = first;
        }
        if (r.values) {
          const T *from = (const T *)r.values + l.plane * t.plane * t.channels + c;
#pragma unroll
          for (int k = 0; k < EIGHT; k++)
            if (k < live)
              values[k] = where[k] < 0 ? (C)0 : mpg_to<C>(from[where[k] * t.channels + k]);
        }
        if (r.out) mpg_store<FULL>((T *)r.out + window, live, values);
        if (r.at)
#pragma unroll
          for (int k = 0; k < EIGHT; k++)
            if (k < live) r.at[window + k] = where[k];
        if (r.index) {
          uint8_t bytes[EIGHT];
#pragma unroll
          for (int k = 0; k < EIGHT; k++)
            bytes[k] = (uint8_t)(where[k] < 0 ? (int)MPG_POOLING_INDEX_NONE : where[k]);
          write_bytes<FULL>(r.index + window, live, bytes);
        }
      }
    }
  }
}

/* Computes the range [low, high) of windows that contain element `at` along an axis. */
__device__ __forceinline__ void windows_at(const pooling &t, int axis, int at, int *low,
                                           int *high) {
  int stride = (int)t.stride[axis], place = at + (int)t.pad[axis],
      first = place - (int)t.kernel[axis] + 1, last = place / stride + 1;
  low[axis] = first <= 0 ? 0 : (first + stride - 1) / stride;
  high[axis] = last < (int)t.out[axis] ? last : (int)t.out[axis];
}

/* Computes the data's gradient. A thread gathers eight channels of an element from the windows that
 * contain the element. */
template <class T, kind K, bool FULL>
__global__ void back_last_kernel(pooling t, gradients g, T *out, int64_t lines) {
  typedef mpg_compute_t<T> C;
  int columns = blockDim.x * EIGHT;
  for (int64_t row = blockIdx.x; row < lines; row += gridDim.x) {
    line l = line_of(row, t.in[0], t.in[1]);
    int low[3], high[3];
    windows_at(t, 0, l.at[0], low, high);
    windows_at(t, 1, l.at[1], low, high);
    for (int64_t tile = blockIdx.y; tile * columns < t.channels; tile += gridDim.y) {
      int64_t c = tile * columns + threadIdx.x * EIGHT;
      int live = live_of(t, c);
      for (int w = threadIdx.y; live && w < (int)t.in[2]; w += blockDim.y) {
        windows_at(t, 2, w, low, high);
        C sums[EIGHT] = {};
        int place = (l.at[0] * (int)t.in[1] + l.at[1]) * (int)t.in[2] + w;
        for (int a = low[0]; a < high[0]; a++)
          for (int b = low[1]; b < high[1]; b++) {
            int64_t window =
                (((l.plane * t.out[0] + a) * t.out[1] + b) * t.out[2] + low[2]) * t.channels + c;
            clip za = clip_of(t, 0, a), zb = clip_of(t, 1, b);
            int inside =
                ((l.at[0] - za.start) * (int)t.kernel[1] + l.at[1] - zb.start) * (int)t.kernel[2];
            for (int e = low[2]; e < high[2]; e++, window += t.channels) {
              mpg_neighbours<T, EIGHT, FULL> slopes;
              slopes.load((const T *)g.grad + window, live);
              clip zc = clip_of(t, 2, e);
              if (K == SUM) {
                int counted = !t.average ? 1
                              : t.count_pad
                                  ? za.span * zb.span * zc.span
                                  : (za.to - za.from) * (zb.to - zb.from) * (zc.to - zc.from);
#pragma unroll
                for (int k = 0; k < EIGHT; k++) {
                  C slope = slopes.template get<C>(k);
                  sums[k] += counted > 1 ? slope / (C)counted : slope;
                }
              } else if (g.at) {
#pragma unroll
                for (int k = 0; k < EIGHT; k++)
                  if (k < live && g.at[window + k] == place) sums[k] += slopes.template get<C>(k);
              } else {
                uint8_t bytes[EIGHT];
                read_bytes<FULL>(g.index + window, live, bytes);
#pragma unroll
                for (int k = 0; k < EIGHT; k++)
                  if (bytes[k] == inside + w - zc.start) sums[k] += slopes.template get<C>(k);
              }
            }
          }
        mpg_store<FULL>(out + (row * t.in[2] + w) * t.channels + c, live, sums);
      }
    }
  }
}

/* True if the channels-last kernels support a call: indices in planes and windows must fit in 32
 * bits. */
bool lines_do(const pooling &t, kind k) {
  int64_t window = 1;
  bool small = t.last && k <= SUM && t.plane < (int64_t)1 << 30 && t.places < (int64_t)1 << 30;
  for (int axis = 0; axis < 3; axis++) {
    small &= t.kernel[axis] < 1 << 15 && t.pad[axis] < 1 << 15 && t.stride[axis] < 1 << 15;
    window *= small ? t.kernel[axis] : 1;
    small &= window < (int64_t)1 << 30;
    small &= (t.out[axis] + 1) * t.stride[axis] < (int64_t)1 << 30;
  }
  return small;
}
template <class... P, class... A>
mpg_status launch_lines(const mpg_kernel_call *call, const pooling &t, void (*kernel)(P...),
                        int64_t lines, A... arguments) {
  unsigned across = 1;
  while (across < 32 && across * EIGHT < t.channels) across *= 2;
  int64_t tiles = (t.channels + across * EIGHT - 1) / (across * EIGHT);
  dim3 grid(mpg_cuda_blocks(lines, 1), (unsigned)(tiles < 65535 ? tiles : 65535)),
      block(across, MPG_CUDA_THREADS / across);
  return mpg_cuda_launch(call, kernel, grid, block, 0, arguments..., lines);
}
bool aligned_channels(const pooling &t, std::initializer_list<const void *> arrays) {
  bool aligned = t.channels % EIGHT == 0;
  for (const void *array : arrays) aligned &= mpg_cuda_aligned(array);
  return aligned;
}

template <class T, kind K>
mpg_status pool_last(const mpg_kernel_call *call, const pooling &t, const void *in,
                     const results &r) {
  constexpr bool WIDE = sizeof(T) < 8;
  bool aligned = WIDE && aligned_channels(t, {in, r.out, r.index});
  int64_t lines = t.places ? t.planes * t.out[0] * t.out[1] : 0;
  return launch_lines(call, t,
                      aligned ? pool_last_kernel<T, K, WIDE> : pool_last_kernel<T, K, false>, lines,
                      t, (const T *)in, r);
}
template <class T, kind K>
mpg_status back_last(const mpg_kernel_call *call, const pooling &t, const gradients &g, void *out) {
  constexpr bool WIDE = sizeof(T) < 8;
  bool aligned = WIDE && aligned_channels(t, {out, g.grad, g.index});
  return launch_lines(call, t,
                      aligned ? back_last_kernel<T, K, WIDE> : back_last_kernel<T, K, false>,
                      t.plane ? t.planes * t.in[0] * t.in[1] : 0, t, g, (T *)out);
}

pooling pooling_of(const mpg_pooling_params *p, const mpg_shape *data, const mpg_shape *out) {
  mpg_window w;
  mpg_pooling_window(p, data, out, &w);
  pooling t = {};
  (mpg_window &)t = mpg_window_with_axes(&w, 3);
  t.last = mpg_layout_of(p->layout) != MPG_CHANNELS_FIRST;
  t.channels = data->dims[t.last ? data->ndim - 1 : 1];
  t.plane = t.in[0] * t.in[1] * t.in[2];
  t.places = t.out[0] * t.out[1] * t.out[2];
  t.planes = data->dims[0] * (t.last ? 1 : t.channels);
  t.count_pad = p->count_include_pad;
  t.average = p->pool_type == POOL_AVG;
  return t;
}

kind kind_of(const mpg_pooling_params *p) {
  if (p->pool_type == POOL_MAX) return MAX;
  return p->pool_type != POOL_LP || p->p_value.value == 1 ? SUM
         : p->p_value.value == 2                          ? SQUARES
                                                          : CUBES;
}

template <class T, kind K>
mpg_status pool(const mpg_kernel_call *call, const pooling &t, const void *in, const results &r,
                int64_t count) {
  if (K == MAX || K == SUM)
    if (lines_do(t, K)) return pool_last<T, K == SUM ? SUM : MAX>(call, t, in, r);
  int64_t window = 1; /* maximum number of elements in a window */
  for (int k = 0; k < 3; k++) window *= t.kernel[k] < t.in[k] ? t.kernel[k] : t.in[k];
  if (!t.last && window >= WARP_WINDOW && window < (int64_t)1 << 31)
    return mpg_cuda_launch(call, pool_kernel<T, K, true>,
                           mpg_cuda_blocks(count, MPG_CUDA_THREADS / 32), MPG_CUDA_THREADS, 0, t,
                           (const T *)in, r, count);
  return mpg_cuda_launch(call, pool_kernel<T, K, false>, mpg_cuda_blocks(count), MPG_CUDA_THREADS,
                         0, t, (const T *)in, r, count);
}

mpg_status pool_any(const mpg_kernel_call *call, const pooling &t, kind k, const mpg_view *data,
                    const results &r, const mpg_shape *out) {
  int64_t count = mpg_shape_size(out);
  MPG_CUDA_FLOAT_DTYPE(
      data->desc.dtype, T, switch (k) {
        case MAX: return pool<T, MAX>(call, t, data->data, r, count);
        case SUM: return pool<T, SUM>(call, t, data->data, r, count);
        case SQUARES: return pool<T, SQUARES>(call, t, data->data, r, count);
        default: return pool<T, CUBES>(call, t, data->data, r, count);
      });
  return MPG_OK;
}

mpg_status back_any(const mpg_kernel_call *call, const pooling &t, kind k, const gradients &g,
                    const void *in, const mpg_view *out) {
  int64_t count = count_of(out);
#define BACK(K)                                                                               \
  mpg_cuda_launch(call, back_kernel<T, K>, mpg_cuda_blocks(count), MPG_CUDA_THREADS, 0, t, g, \
                  (const T *)in, (T *)out->data, count)
  bool lines = lines_do(t, k);
  MPG_CUDA_FLOAT_DTYPE(
      out->desc.dtype, T, switch (k) {
        case MAX: return lines ? back_last<T, MAX>(call, t, g, out->data) : BACK(MAX);
        case SUM: return lines ? back_last<T, SUM>(call, t, g, out->data) : BACK(SUM);
        case SQUARES: return BACK(SQUARES);
        default: return BACK(CUBES);
      });
  return MPG_OK;
}

} // namespace

mpg_status mpg_cuda_pooling(const mpg_kernel_call *call) {
  const mpg_pooling_params *p = (const mpg_pooling_params *)call->params;
  const mpg_view *data = &call->inputs[0], *out = &call->outputs[0];
  results r = {out->data, NULL, NULL, NULL};
  return pool_any(call, pooling_of(p, &data->desc.shape, &out->desc.shape), kind_of(p), data, r,
                  &out->desc.shape);
}

mpg_status mpg_cuda_pooling_backward(const mpg_kernel_call *call) {
  const mpg_pooling_params *p = (const mpg_pooling_params *)call->params;
  const mpg_view *grad = &call->inputs[0], *data = &call->inputs[1];
  pooling t = pooling_of(p, &data->desc.shape, &grad->desc.shape);
  gradients g = {grad->data, call->inputs[2].data, NULL, NULL};
  kind k = kind_of(p);
  size_t bytes = (size_t)count_of(grad) * sizeof(int64_t);
  if (k == MAX && bytes) {
    results r = {NULL, NULL, (int64_t *)mpg_device_scratch(call->device, bytes), NULL};
    if (!r.at) return MPG_DEVICE_OUT_OF_MEMORY;
    g.at = r.at;
    MPG_TRY(pool_any(call, t, k, data, r, &grad->desc.shape));
  }
  return back_any(call, t, k, g, data->data, &call->outputs[0]);
}

mpg_status mpg_cuda_pooling_at_max(const mpg_kernel_call *call) {
  const mpg_view *data = &call->inputs[1], *out = &call->outputs[0];
  results r = {out->data, NULL, NULL, call->inputs[0].data};
  return pool_any(
      call,
      pooling_of((const mpg_pooling_params *)call->params, &data->desc.shape, &out->desc.shape),
      MAX, data, r, &out->desc.shape);
}

mpg_status mpg_cuda_max_pooling(const mpg_kernel_call *call) {
  const mpg_view *data = &call->inputs[0], *out = &call->outputs[0];
  results r = {out->data, (uint8_t *)call->outputs[1].data, NULL, NULL};
  return pool_any(
      call,
      pooling_of((const mpg_pooling_params *)call->params, &data->desc.shape, &out->desc.shape),
      MAX, data, r, &out->desc.shape);
}

mpg_status mpg_cuda_max_pooling_backward(const mpg_kernel_call *call) {
  const mpg_pooling_index_params *p = (const mpg_pooling_index_params *)call->params;
  const mpg_view *grad = &call->inputs[0], *data = &call->outputs[0];
  mpg_pooling_params params = {};
  params.kernel = p->kernel;
  params.pool_type = POOL_MAX;
  params.stride = p->stride;
  params.pad = p->pad;
  params.layout = 5; /* NWC, NHWC or NDHWC */
  gradients g = {grad->data, NULL, NULL, (const uint8_t *)call->inputs[1].data};
  return back_any(call, pooling_of(&params, &data->desc.shape, &grad->desc.shape), MAX, g, NULL,
                  data);
}
