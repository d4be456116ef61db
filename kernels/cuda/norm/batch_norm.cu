/* BatchNorm, optionally followed by relu or by an addition and relu.
 *
 * Data is (outer, channels, inner). If channels are last (inner is 1), a thread processes eight
 * adjacent channels of some rows, which are 16 bytes of a 16-bit type and one byte of relu's mask.
 * Otherwise a block processes a chunk of one channel, whose planes are not adjacent in memory.
 * Every array is read once for the sums and once for normalization.
 *
 * Sums are deterministic: threads sum a channel in float (double for float64), in chunks that
 * depend only on shapes, and the chunks' sums are added in double.
 *
 * Variances must be accurate even if the mean is much larger than the spread. Hence a thread sums
 * the distances from its first element, the pilot. The pilot's squared distance from the thread's
 * mean is at most the number of elements (THREAD_ROWS) times their variance, so cancellation is
 * limited. The chunks' means are stored relative to the channel's first element. Normalization
 * subtracts the unrounded mean. Per-channel factors and shifts are in scratch memory, because
 * outputs may overwrite the parameters.
 */
#include "kernels/cuda/access.h"
#include "kernels/cuda/neighbours.h"

namespace {

enum { WARP = 32, SUMS = 3 };
enum {
  EIGHT = 8,         /* channels per thread, if channels are last */
  THREAD_ROWS = 256, /* maximum rows that a thread sums */
  BLOCKS = 1024,     /* approximate number of blocks for sums, if channels are last */
  LEAST_ROWS = 8,    /* minimum rows that a thread sums */
  APPLY_ROWS = 16,   /* rows that a thread normalizes */
  CHUNK = 8192,      /* channels first: elements of a channel that a block sums */
  GRID = 65535       /* maximum number of blocks along y */
};

struct extent {
  int64_t outer, channels, inner, chunks;
  bool last;             /* true if inner is 1, so channels are contiguous */
  int rows;              /* channels last: rows per chunk */
  int64_t planes, parts; /* channels first: planes per chunk, chunks per plane; at least one is 1 */
  /* A block is 2^across threads wide. Threads along x process channels of a row (channels last) or
   * elements of a plane (channels first). Threads along y process different rows or planes. */
  int across;
};

template <class T, class C>
struct batch_norm {
  const T *x, *dy, *residual; /* dy: NULL for forward; residual: NULL without an addition */
  T *y, *dresidual;
  const C *gamma, *beta; /* gamma may be NULL, which means 1 */
  /* mean, inverse (1 / standard deviation): outputs of forward, inputs of backward */
  C *moving_mean, *moving_var, *mean, *inverse;
  C *dgamma, *dbeta;
  /* Relu's mask; NULL without relu. Each row has mask_bytes bytes with bits for elements that pass,
   * mask_bytes bytes with bits for NaN elements, and one byte that is 0 if the row has no NaN. */
  uint8_t *mask;
  int64_t mask_bytes;
  double eps, momentum;
  bool batch_stats;
  extent e;
  /* Scratch memory. */
  C *partial;                        /* [chunk][SUMS][channels] */
  C *center, *scale, *shift, *slope; /* per channel */
};

/* Loads the per-channel values of eight channels. Only the first `live` exist; the others get 0. */
template <bool FULL, class C>
__device__ __forceinline__ void of_channels(const C *from, int live, C (&values)[EIGHT]) {
  mpg_neighbours<C, EIGHT, FULL> data = {};
  if (live) data.load(from, live);
#pragma unroll
  for (int k = 0; k < EIGHT; k++) values[k] = data.template get<C>(k);
}

MPG_HOST_DEVICE int smaller(int64_t a, int b) { return a < b ? (int)a : b; }

/* --- Channels last: a block is (threads across channels, threads down rows) ------------------- */

/* Returns how many of the eight channels starting at c exist. */
MPG_HOST_DEVICE int live_channels(const extent &e, int64_t c) {
  return e.channels <= c ? 0 : smaller(e.channels - c, EIGHT);
}
/* Returns how many of a block's `rows` rows a thread with threadIdx.y == y processes. */
MPG_HOST_DEVICE int rows_of(const extent &e, int rows, int y) {
  int down = MPG_CUDA_THREADS >> e.across;
  return rows <= y ? 0 : ((rows - y - 1) / down) + 1;
}

/* Computes, for each channel of a chunk, the mean relative to the channel's first element and the
 * sum of squared distances from the mean. */
template <class T, class C, bool FULL>
__global__ void statistics_last_kernel(batch_norm<T, C> t) {
  enum { AHEAD = sizeof(T) == 2 ? 4 : 2 };
  typedef mpg_neighbours<T, EIGHT, FULL> eight;
  __shared__ C means[MPG_CUDA_THREADS * EIGHT], squares[MPG_CUDA_THREADS * EIGHT];
  int64_t begin = (int64_t)blockIdx.x * t.e.rows, stride = blockDim.y * t.e.channels;
  int rows = smaller(t.e.outer - begin, t.e.rows), count = rows_of(t.e, rows, threadIdx.y),
      columns = blockDim.x * EIGHT, me = threadIdx.y * blockDim.x + threadIdx.x,
      mine = threadIdx.y * columns + threadIdx.x * EIGHT;
  for (int64_t tile = blockIdx.y; tile * columns < t.e.channels; tile += gridDim.y) {
    int64_t c = tile * columns + threadIdx.x * EIGHT;
    int live = live_channels(t.e, c), todo = live ? count : 0;
    const T *x = t.x + (begin + threadIdx.y) * t.e.channels + c;
    C pilot[EIGHT], sum[EIGHT] = {}, square[EIGHT] = {};
    eight first = {};
    if (todo) first.load(x, live);
#pragma unroll
    for (int k = 0; k < EIGHT; k++) pilot[k] = first.template get<C>(k);
    for (int row = 0; row < todo; row += AHEAD, x += AHEAD * stride) {
      eight data[AHEAD];
#pragma unroll
      for (int u = 0; u < AHEAD; u++)
        if (row + u < todo) data[u].load(x + u * stride, live);
#pragma unroll
      for (int u = 0; u < AHEAD; u++)
        if (row + u < todo)
#pragma unroll
          for (int k = 0; k < EIGHT; k++) {
            C away = data[u].template get<C>(k) - pilot[k];
            sum[k] += away;
            square[k] = fma(away, away, square[k]);
          }
    }
    if (todo) first.load(t.x + c, live);
#pragma unroll
    for (int k = 0; k < EIGHT; k++) {
      C mean = todo ? sum[k] / (C)todo : (C)0, rest = square[k] - sum[k] * mean;
      means[mine + k] = pilot[k] - first.template get<C>(k) + mean;
      squares[mine + k] = rest < 0 ? (C)0 : rest;
    }
    __syncthreads();
    int64_t channel = tile * columns + me;
    if (me < columns && channel < t.e.channels) {
      double mean = 0, rest = 0;
      for (int y = 0; y < (int)blockDim.y; y++)
        mean += (double)rows_of(t.e, rows, y) * (double)means[y * columns + me];
      mean /= (double)rows;
      for (int y = 0; y < (int)blockDim.y; y++) {
        double away = (double)means[y * columns + me] - mean;
        rest += (double)squares[y * columns + me] + (double)rows_of(t.e, rows, y) * away * away;
      }
      C *partial = t.partial + (int64_t)blockIdx.x * SUMS * t.e.channels + channel;
      partial[0] = (C)mean;
      partial[t.e.channels] = (C)rest;
    }
    __syncthreads();
  }
}

/* Relu's mask for eight adjacent elements. */
struct relu_mask {
  unsigned passes, nans;
  __device__ __forceinline__ void load(const uint8_t *at, int64_t bytes, int64_t byte) {
    passes = at[0];
    nans = at[2 * bytes - byte] ? at[bytes] : 0;
  }
  /* Applies relu's gradient: 0 for elements that relu clipped, NaN for elements that were NaN. */
  template <class C>
  __device__ __forceinline__ void apply(C (&gradients)[EIGHT]) const {
#pragma unroll
    for (int k = 0; k < EIGHT; k++)
      if (!(passes >> k & 1)) gradients[k] = 0;
    if (nans)
#pragma unroll
      for (int k = 0; k < EIGHT; k++)
        if (nans >> k & 1) gradients[k] = (C)NAN;
  }
};

/* Sums the threads' values for each of the block's channels. Thread i of the block returns the sum
 * for channel i. Threads without a channel return 0. */
template <class C>
__device__ __forceinline__ C down_rows(C *shared, const C (&values)[EIGHT]) {
  int columns = blockDim.x * EIGHT, me = threadIdx.y * blockDim.x + threadIdx.x;
#pragma unroll
  for (int k = 0; k < EIGHT; k++)
    shared[threadIdx.y * columns + threadIdx.x * EIGHT + k] = values[k];
  __syncthreads();
  double total = 0;
  for (int y = 0; me < columns && y < (int)blockDim.y; y++)
    total += (double)shared[y * columns + me];
  __syncthreads();
  return (C)total;
}

/* Computes three sums for each channel of a chunk: the sum of the gradients, the sum of the
 * gradients times the distances from the mean, and the sum of the distances. */
template <class T, class C, bool FULL, bool MASKED>
__global__ void gradient_sums_last_kernel(batch_norm<T, C> t) {
  enum { AHEAD = sizeof(T) == 2 ? 2 : 1 };
  typedef mpg_neighbours<T, EIGHT, FULL> eight;
  __shared__ C shared[MPG_CUDA_THREADS * EIGHT];
  int64_t begin = (int64_t)blockIdx.x * t.e.rows, stride = blockDim.y * t.e.channels,
          mask_row = 2 * t.mask_bytes + 1;
  int count = rows_of(t.e, smaller(t.e.outer - begin, t.e.rows), threadIdx.y),
      columns = blockDim.x * EIGHT, me = threadIdx.y * blockDim.x + threadIdx.x;
  for (int64_t tile = blockIdx.y; tile * columns < t.e.channels; tile += gridDim.y) {
    int64_t c = tile * columns + threadIdx.x * EIGHT, at = (begin + threadIdx.y) * t.e.channels + c;
    int live = live_channels(t.e, c), todo = live ? count : 0;
    C center[EIGHT], sums[EIGHT] = {}, products[EIGHT] = {}, distances[EIGHT] = {};
    of_channels<FULL>(t.mean + c, live, center);
    const T *x = t.x + at, *dy = t.dy + at;
    const uint8_t *masks = MASKED ? t.mask + (begin + threadIdx.y) * mask_row + c / EIGHT : NULL;
    for (int row = 0; row < todo; row += AHEAD, x += AHEAD * stride, dy += AHEAD * stride,
             masks += AHEAD * blockDim.y * mask_row) {
      eight data[AHEAD], gradients[AHEAD];
      relu_mask mask[AHEAD];
#pragma unroll
      for (int u = 0; u < AHEAD; u++)
        if (row + u < todo) {
          data[u].load(x + u * stride, live);
          gradients[u].load(dy + u * stride, live);
          if (MASKED) mask[u].load(masks + u * blockDim.y * mask_row, t.mask_bytes, c / EIGHT);
        }
#pragma unroll
      for (int u = 0; u < AHEAD; u++)
        if (row + u < todo) {
          C g[EIGHT];
          gradients[u].get(g);
          if (MASKED) mask[u].apply(g);
#pragma unroll
          for (int k = 0; k < EIGHT; k++) {
            C away = data[u].template get<C>(k) - center[k];
            sums[k] += g[k];
            products[k] = fma(g[k], away, products[k]);
            distances[k] += away;
          }
        }
    }
    int64_t channel = tile * columns + me;
    bool mine = me < columns && channel < t.e.channels;
    C *partial = t.partial + (int64_t)blockIdx.x * SUMS * t.e.channels + channel;
    C total = down_rows(shared, sums);
    if (mine) partial[0] = total;
    total = down_rows(shared, products);
    if (mine) partial[t.e.channels] = total;
    total = down_rows(shared, distances);
    if (mine) partial[2 * t.e.channels] = total;
  }
}

enum behind { NOTHING, RELU, ADD_AND_RELU };

/* Normalizes and, depending on WHAT, adds the residual and applies relu. All threads of a warp run
 * the same number of iterations, because they exchange NaN flags. */
template <class T, class C, bool FULL, behind WHAT>
__global__ void apply_last_kernel(batch_norm<T, C> t) {
  enum { AHEAD = 2 };
  typedef mpg_neighbours<T, EIGHT, FULL> eight;
  int64_t begin = (int64_t)blockIdx.x * blockDim.y * APPLY_ROWS, mask_row = 2 * t.mask_bytes + 1,
          stride = blockDim.y * t.e.channels;
  int rows = smaller(t.e.outer - begin, blockDim.y * APPLY_ROWS), columns = blockDim.x * EIGHT;
  unsigned lane = (threadIdx.y * blockDim.x + threadIdx.x) % WARP,
           lanes = (blockDim.x < WARP ? 1u << blockDim.x : 0u) - 1u; /* mask of a row's lanes */
  for (int64_t tile = blockIdx.y; tile * columns < t.e.channels; tile += gridDim.y) {
    int64_t c = tile * columns + threadIdx.x * EIGHT, at = (begin + threadIdx.y) * t.e.channels + c;
    int live = live_channels(t.e, c), todo = live ? rows : 0;
    C center[EIGHT], scale[EIGHT], shift[EIGHT];
    of_channels<FULL>(t.center + c, live, center);
    of_channels<FULL>(t.scale + c, live, scale);
    of_channels<FULL>(t.shift + c, live, shift);
    const T *x = t.x + at, *residuals = WHAT == ADD_AND_RELU ? t.residual + at : NULL;
    T *y = t.y + at;
    uint8_t *mask = WHAT == NOTHING ? NULL : t.mask + (begin + threadIdx.y) * mask_row + c / EIGHT;
    for (int first = 0; first < rows; first += AHEAD * blockDim.y) {
      eight data[AHEAD], residual[AHEAD];
#pragma unroll
      for (int u = 0; u < AHEAD; u++) {
        if (first + (int)threadIdx.y + u * (int)blockDim.y < todo) {
          data[u].load(x, live);
          if (WHAT == ADD_AND_RELU) residual[u].load(residuals, live);
        }
        x += stride;
        if (WHAT == ADD_AND_RELU) residuals += stride;
      }
#pragma unroll
      for (int u = 0; u < AHEAD; u++) {
        bool mine = first + (int)threadIdx.y + u * (int)blockDim.y < todo;
        unsigned passes = 0, nans = 0;
        if (mine) {
          C values[EIGHT];
          data[u].get(values);
#pragma unroll
          for (int k = 0; k < EIGHT; k++)
            values[k] = fma(values[k] - center[k], scale[k], shift[k]);
          if (WHAT != NOTHING) mpg_round_all<T>(values); /* rounds like a separate op */
          if (WHAT == ADD_AND_RELU) {
#pragma unroll
            for (int k = 0; k < EIGHT; k++) values[k] = residual[u].template get<C>(k) + values[k];
            mpg_round_all<T>(values);
          }
          if (WHAT != NOTHING) {
            C zeros = 0; /* stays 0, or becomes NaN if any value is NaN or infinite */
#pragma unroll
            for (int k = 0; k < EIGHT; k++) {
              zeros = fma(values[k], (C)0, zeros);
              passes |= values[k] <= 0 ? 0 : 1u << k;
              values[k] = values[k] <= 0 ? (C)0 : values[k];
            }
            if (zeros != zeros)
#pragma unroll
              for (int k = 0; k < EIGHT; k++) nans |= (unsigned)(values[k] != values[k]) << k;
          }
          mpg_store<FULL>(y, live, values);
        }
        if (WHAT != NOTHING) {
          unsigned found = __ballot_sync(0xffffffffu, nans != 0) >> lane & lanes;
          if (mine) {
            mask[0] = (uint8_t)(passes & ~nans);
            mask[t.mask_bytes] = (uint8_t)nans;
            /* If a row fits in one warp, its first lane writes the row's NaN flag. For longer rows,
             * no_nan_kernel has cleared the flag, and each lane that has a NaN sets it. */
            if (t.mask_bytes <= WARP ? c == 0 : nans != 0)
              mask[2 * t.mask_bytes - c / EIGHT] = t.mask_bytes > WARP || found;
          }
          mask += blockDim.y * mask_row;
        }
        y += stride;
      }
    }
  }
}

/* Clears the NaN flags of all rows. Needed if several warps share a row, because a warp then sets
 * the row's flag if it has a NaN, but never clears it. */
template <class T, class C>
__global__ void no_nan_kernel(batch_norm<T, C> t) {
  for (int64_t row = MPG_CUDA_INDEX; row < t.e.outer; row += MPG_CUDA_STRIDE)
    t.mask[row * (2 * t.mask_bytes + 1) + 2 * t.mask_bytes] = 0;
}

template <class T, class C, bool FULL, behind WHAT>
__global__ void back_last_kernel(batch_norm<T, C> t) {
  enum { AHEAD = sizeof(T) == 2 ? 2 : 1 };
  typedef mpg_neighbours<T, EIGHT, FULL> eight;
  int64_t begin = (int64_t)blockIdx.x * blockDim.y * APPLY_ROWS, mask_row = 2 * t.mask_bytes + 1,
          stride = blockDim.y * t.e.channels;
  int rows = smaller(t.e.outer - begin, blockDim.y * APPLY_ROWS), columns = blockDim.x * EIGHT;
  for (int64_t tile = blockIdx.y; tile * columns < t.e.channels; tile += gridDim.y) {
    int64_t c = tile * columns + threadIdx.x * EIGHT, at = (begin + threadIdx.y) * t.e.channels + c;
    int live = live_channels(t.e, c), todo = live ? rows : 0;
    C center[EIGHT], scale[EIGHT], shift[EIGHT], slope[EIGHT];
    of_channels<FULL>(t.center + c, live, center);
    of_channels<FULL>(t.scale + c, live, scale);
    of_channels<FULL>(t.shift + c, live, shift);
    of_channels<FULL>(t.slope + c, live, slope);
    const T *x = t.x + at, *dy = t.dy + at;
    T *dx = t.y + at, *dresidual = WHAT == ADD_AND_RELU ? t.dresidual + at : NULL;
    const uint8_t *masks =
        WHAT == NOTHING ? NULL : t.mask + (begin + threadIdx.y) * mask_row + c / EIGHT;
    for (int first = threadIdx.y; first < todo; first += AHEAD * blockDim.y) {
      eight data[AHEAD], gradients[AHEAD];
      relu_mask mask[AHEAD];
#pragma unroll
      for (int u = 0; u < AHEAD; u++) {
        if (first + u * (int)blockDim.y < todo) {
          data[u].load(x, live);
          gradients[u].load(dy, live);
          if (WHAT != NOTHING) mask[u].load(masks, t.mask_bytes, c / EIGHT);
        }
        x += stride;
        dy += stride;
        if (WHAT != NOTHING) masks += blockDim.y * mask_row;
      }
#pragma unroll
      for (int u = 0; u < AHEAD; u++) {
        if (first + u * (int)blockDim.y < todo) {
          C values[EIGHT], g[EIGHT];
          data[u].get(values);
          gradients[u].get(g);
          if (WHAT != NOTHING) mask[u].apply(g);
          if (WHAT == ADD_AND_RELU) mpg_store<FULL>(dresidual, live, g);
#pragma unroll
          for (int k = 0; k < EIGHT; k++)
            values[k] = fma(center[k] - values[k], slope[k], g[k] - shift[k]) * scale[k];
          mpg_store<FULL>(dx, live, values);
        }
        dx += stride;
        if (WHAT == ADD_AND_RELU) dresidual += stride;
      }
    }
  }
}

/* --- Channels first: a block processes one channel, chunk by chunk ---------------------------- */

/* Calls each(position) for every group of N adjacent elements that the thread processes in a
 * chunk. */
template <int N, class F>
__device__ __forceinline__ void in_chunk(const extent &e, int64_t chunk, F each) {
  int x = threadIdx.x & ((1 << e.across) - 1), y = threadIdx.x >> e.across;
  int64_t plane = chunk * e.planes, last = plane + e.planes < e.outer ? plane + e.planes : e.outer,
          from = 0, to = e.inner;
  if (e.parts > 1) {
    plane = chunk / e.parts;
    last = plane + 1;
    from = (chunk - plane * e.parts) * CHUNK;
    to = from + CHUNK < e.inner ? from + CHUNK : e.inner;
  }
  for (plane += y; plane < last; plane += MPG_CUDA_THREADS >> e.across) {
    int64_t begin = (plane * e.channels + blockIdx.x) * e.inner + from;
    for (int i = x * N, length = (int)(to - from); i < length; i += N << e.across) each(begin + i);
  }
}

template <class T, class C, int N, bool FULL>
__global__ void statistics_first_kernel(batch_norm<T, C> t) {
  C origin = mpg_to<C>(t.x[blockIdx.x * t.e.inner]);
  for (int64_t chunk = blockIdx.y; chunk < t.e.chunks; chunk += gridDim.y) {
    C pilot = 0, sum = 0, square = 0;
    int count = 0;
    in_chunk<N>(t.e, chunk, [&](int64_t at) {
      mpg_neighbours<T, N, FULL> data;
      data.load(t.x + at, N);
      if (!count) pilot = data.template get<C>(0);
      count += N;
#pragma unroll
      for (int k = 0; k < N; k++) {
        C away = data.template get<C>(k) - pilot;
        sum += away;
        square = fma(away, away, square);
      }
    });
    C mean = count ? sum / (C)count : (C)0, rest = square - sum * mean;
    double own = count ? (double)(pilot - origin + mean) : 0,
           total = mpg_block_reduce((double)count, 0.0, mpg_plus()),
           common = mpg_block_reduce((double)count * own, 0.0, mpg_plus()) / total;
    double squares = mpg_block_reduce(
        (double)(rest < 0 ? (C)0 : rest) + (double)count * (own - common) * (own - common), 0.0,
        mpg_plus());
    C *partial = t.partial + chunk * SUMS * t.e.channels + blockIdx.x;
    if (threadIdx.x == 0) {
      partial[0] = (C)common;
      partial[t.e.channels] = (C)squares;
    }
  }
}

template <class T, class C, int N, bool FULL>
__global__ void gradient_sums_first_kernel(batch_norm<T, C> t) {
  C center = t.mean[blockIdx.x];
  for (int64_t chunk = blockIdx.y; chunk < t.e.chunks; chunk += gridDim.y) {
    C sum = 0, product = 0, distance = 0;
    in_chunk<N>(t.e, chunk, [&](int64_t at) {
      mpg_neighbours<T, N, FULL> data, gradients;
      data.load(t.x + at, N);
      gradients.load(t.dy + at, N);
#pragma unroll
      for (int k = 0; k < N; k++) {
        C away = data.template get<C>(k) - center, g = gradients.template get<C>(k);
        sum += g;
        product = fma(g, away, product);
        distance += away;
      }
    });
    sum = mpg_block_reduce(sum, (C)0, mpg_plus());
    product = mpg_block_reduce(product, (C)0, mpg_plus());
    distance = mpg_block_reduce(distance, (C)0, mpg_plus());
    C *partial = t.partial + chunk * SUMS * t.e.channels + blockIdx.x;
    if (threadIdx.x == 0) {
      partial[0] = sum;
      partial[t.e.channels] = product;
      partial[2 * t.e.channels] = distance;
    }
  }
}

template <class T, class C, int N, bool FULL>
__global__ void apply_first_kernel(batch_norm<T, C> t) {
  C center = t.center[blockIdx.x], scale = t.scale[blockIdx.x], shift = t.shift[blockIdx.x];
  for (int64_t chunk = blockIdx.y; chunk < t.e.chunks; chunk += gridDim.y)
    in_chunk<N>(t.e, chunk, [&](int64_t at) {
      mpg_neighbours<T, N, FULL> data;
      C values[N];
      data.load(t.x + at, N);
#pragma unroll
      for (int k = 0; k < N; k++) values[k] = fma(data.template get<C>(k) - center, scale, shift);
      mpg_store<FULL>(t.y + at, N, values);
    });
}

template <class T, class C, int N, bool FULL>
__global__ void back_first_kernel(batch_norm<T, C> t) {
  C center = t.center[blockIdx.x], scale = t.scale[blockIdx.x], shift = t.shift[blockIdx.x],
    slope = t.slope[blockIdx.x];
  for (int64_t chunk = blockIdx.y; chunk < t.e.chunks; chunk += gridDim.y)
    in_chunk<N>(t.e, chunk, [&](int64_t at) {
      mpg_neighbours<T, N, FULL> data, gradients;
      C values[N];
      data.load(t.x + at, N);
      gradients.load(t.dy + at, N);
#pragma unroll
      for (int k = 0; k < N; k++)
        values[k] =
            fma(center - data.template get<C>(k), slope, gradients.template get<C>(k) - shift) *
            scale;
      mpg_store<FULL>(t.y + at, N, values);
    });
}

/* --- Combining chunks: a block is (WARP channels, WARP threads for the chunks) ---------------- */

MPG_HOST_DEVICE int64_t elements_of(const extent &e, int64_t chunk) {
  if (e.last) return smaller(e.outer - chunk * e.rows, e.rows);
  if (e.parts > 1) return smaller(e.inner - chunk % e.parts * CHUNK, CHUNK);
  int64_t left = e.outer - chunk * e.planes;
  return (left < e.planes ? left : e.planes) * e.inner;
}

/* Returns the sum of each(chunk) over all chunks of a channel, in a fixed order. */
template <class F>
__device__ __forceinline__ double over_chunks(const extent &e, bool live, F each) {
  __shared__ double parts[WARP][WARP];
  double total = 0;
  for (int64_t k = threadIdx.y; live && k < e.chunks; k += WARP) total += each(k);
  parts[threadIdx.y][threadIdx.x] = total;
  __syncthreads();
  total = 0;
  for (int y = 0; y < WARP; y++) total += parts[y][threadIdx.x];
  __syncthreads();
  return total;
}

/* Combines a channel's statistics over all chunks, updates the moving averages, and computes the
 * channel's factor and shift. */
template <class T, class C>
__global__ void statistics_kernel(batch_norm<T, C> t) {
  int64_t c = (int64_t)blockIdx.x * WARP + threadIdx.x, channels = t.e.channels;
  bool live = c < channels;
  double count = (double)t.e.outer * (double)t.e.inner, away = 0, squares = 0;
  if (t.batch_stats) {
    away = over_chunks(t.e, live,
                       [&](int64_t k) {
                         return (double)elements_of(t.e, k) *
                                (double)t.partial[k * SUMS * channels + c];
                       }) /
           count;
    squares = over_chunks(t.e, live, [&](int64_t k) {
      double distance = (double)t.partial[k * SUMS * channels + c] - away;
      return (double)t.partial[(k * SUMS + 1) * channels + c] +
             (double)elements_of(t.e, k) * distance * distance;
    });
  }
  if (!live || threadIdx.y) return;
  C gamma = t.gamma ? t.gamma[c] : (C)1, mean, variance;
  double rest = 0; /* rounding error of the mean */
  if (t.batch_stats) {
    C m = (C)t.momentum;
    double exact = mpg_to<double>(t.x[c * t.e.inner]) + away;
    mean = (C)exact;
    rest = exact - (double)mean;
    variance = (C)(squares / count);
    t.moving_mean[c] = t.moving_mean[c] * m + mean * (1 - m);
    t.moving_var[c] = t.moving_var[c] * m + variance * (1 - m);
  } else {
    mean = t.moving_mean[c];
    variance = t.moving_var[c];
  }
  C inverse = variance == 0 && t.eps == 0 ? (C)0 : (C)1 / (C)sqrt(variance + (C)t.eps);
  t.center[c] = mean;
  t.scale[c] = inverse * gamma;
  t.shift[c] = (C)((double)t.beta[c] - rest * (double)t.scale[c]);
  t.mean[c] = mean;
  t.inverse[c] = inverse;
}

/* Computes the gradients of gamma and beta, and the coefficients of
 * dx = (dy - mean(dy) - (x - mean) * inverse^2 * mean(dy * (x - mean))) * inverse * gamma.
 * Without batch statistics, the terms with mean() are 0. */
template <class T, class C>
__global__ void gradients_kernel(batch_norm<T, C> t) {
  int64_t c = (int64_t)blockIdx.x * WARP + threadIdx.x, channels = t.e.channels;
  double totals[SUMS], count = (double)t.e.outer * (double)t.e.inner;
  for (int which = 0; which < SUMS; which++)
    totals[which] = over_chunks(t.e, c < channels, [&](int64_t k) {
      return (double)t.partial[(k * SUMS + which) * channels + c];
    });
  if (c >= channels || threadIdx.y) return;
  double sum = totals[0], product = totals[1];
  /* Corrects for the rounding error of the mean. */
  if (t.batch_stats && count > 0) product -= totals[2] / count * sum;
  C inverse = t.inverse[c], gamma = t.gamma ? t.gamma[c] : (C)1;
  t.center[c] = t.mean[c];
  t.scale[c] = inverse * gamma;
  t.slope[c] = t.batch_stats ? (C)(product / count * inverse * inverse) : (C)0;
  t.shift[c] = t.batch_stats ? (C)(sum / count) : (C)0;
  t.dgamma[c] = t.gamma ? (C)(product * inverse) : (C)0;
  t.dbeta[c] = (C)sum;
}

/* --- Host ------------------------------------------------------------------------------------- */

template <class T, class C>
mpg_status prepare(const mpg_kernel_call *call, batch_norm<T, C> *t, int axis) {
  const mpg_shape *shape = &call->inputs[t->dy ? 1 : 0].desc.shape;
  extent *e = &t->e;
  e->outer = mpg_shape_product(shape, 0, axis);
  e->channels = shape->dims[axis];
  e->inner = mpg_shape_product(shape, axis + 1, shape->ndim);
  e->last = e->inner == 1;
  e->planes = e->parts = 1;
  if (e->last) {
    while (e->across < 5 && EIGHT << e->across < e->channels) e->across++;
    int64_t down = MPG_CUDA_THREADS >> e->across, wide = EIGHT << e->across,
            tiles = (e->channels + wide - 1) / wide,
            each = (e->outer * tiles / BLOCKS + down - 1) / down; /* rows per thread */
    if (each < LEAST_ROWS) each = LEAST_ROWS;
    if (each > THREAD_ROWS) each = THREAD_ROWS;
    e->rows = (int)(down * each);
    e->chunks = (e->outer + e->rows - 1) / e->rows;
  } else {
    int64_t each = e->inner % mpg_pack<T>::COUNT ? 1 : (int64_t)mpg_pack<T>::COUNT;
    while (e->across < 8 && each << e->across < e->inner) e->across++;
    e->planes = e->inner && e->inner < CHUNK ? CHUNK / e->inner : 1;
    e->parts = e->inner > CHUNK ? (e->inner + CHUNK - 1) / CHUNK : 1;
    e->chunks = e->inner ? (e->outer + e->planes - 1) / e->planes * e->parts : 0;
  }
  t->mask_bytes = (e->channels + 7) / 8;
  size_t vector = mpg_align_up((size_t)e->channels * sizeof(C), 64);
  char *scratch = (char *)mpg_device_scratch(
      call->device, vector * 4 + (size_t)(e->chunks * SUMS * e->channels) * sizeof(C));
  if (!scratch) return MPG_DEVICE_OUT_OF_MEMORY;
  t->center = (C *)scratch;
  t->scale = (C *)(scratch + vector);
  t->shift = (C *)(scratch + 2 * vector);
  t->slope = (C *)(scratch + 3 * vector);
  t->partial = (C *)(scratch + 4 * vector);
  return MPG_OK;
}

/* Launches a channels-last kernel with blocks along x for rows and along y for tiles of
 * channels. */
template <class T, class C>
mpg_status launch_last(const mpg_kernel_call *call, const batch_norm<T, C> &t,
                       void (*kernel)(batch_norm<T, C>), int64_t rows_per_block) {
  int64_t wide = EIGHT << t.e.across, tiles = (t.e.channels + wide - 1) / wide;
  dim3 grid(mpg_cuda_blocks(t.e.outer, rows_per_block),
            (unsigned)(tiles < GRID ? tiles : (int64_t)GRID)),
      block(1u << t.e.across, MPG_CUDA_THREADS >> t.e.across);
  return mpg_cuda_launch(call, kernel, grid, block, 0, t);
}
/* Launches a channels-first kernel with blocks along x for channels and along y for chunks. */
template <class T, class C>
mpg_status launch_first(const mpg_kernel_call *call, const batch_norm<T, C> &t,
                        void (*kernel)(batch_norm<T, C>)) {
  dim3 grid(mpg_cuda_blocks(t.e.channels, 1),
            (unsigned)(t.e.chunks < GRID ? t.e.chunks : (int64_t)GRID));
  return mpg_cuda_launch(call, kernel, grid, MPG_CUDA_THREADS, 0, t);
}
template <class T, class C>
mpg_status launch_channels(const mpg_kernel_call *call, const batch_norm<T, C> &t,
                           void (*kernel)(batch_norm<T, C>)) {
  return mpg_cuda_launch(call, kernel, mpg_cuda_blocks(t.e.channels, WARP), dim3(WARP, WARP), 0, t);
}

template <class T, class C, bool FULL>
mpg_status forward_last(const mpg_kernel_call *call, const batch_norm<T, C> &t) {
  if (t.batch_stats) MPG_TRY(launch_last(call, t, statistics_last_kernel<T, C, FULL>, t.e.rows));
  MPG_TRY(launch_channels(call, t, statistics_kernel<T, C>));
  if (!t.mask)
    return launch_last(call, t, apply_last_kernel<T, C, FULL, NOTHING>,
                       (MPG_CUDA_THREADS >> t.e.across) * APPLY_ROWS);
  if (t.mask_bytes > WARP)
    MPG_TRY(mpg_cuda_launch(call, no_nan_kernel<T, C>, mpg_cuda_blocks(t.e.outer), MPG_CUDA_THREADS,
                            0, t));
  return launch_last(call, t,
                     t.residual ? apply_last_kernel<T, C, FULL, ADD_AND_RELU>
                                : apply_last_kernel<T, C, FULL, RELU>,
                     (MPG_CUDA_THREADS >> t.e.across) * APPLY_ROWS);
}

template <class T, class C, bool FULL>
mpg_status backward_last(const mpg_kernel_call *call, const batch_norm<T, C> &t) {
  MPG_TRY(launch_last(call, t,
                      t.mask ? gradient_sums_last_kernel<T, C, FULL, true>
                             : gradient_sums_last_kernel<T, C, FULL, false>,
                      t.e.rows));
  MPG_TRY(launch_channels(call, t, gradients_kernel<T, C>));
  return launch_last(call, t,
                     t.dresidual ? back_last_kernel<T, C, FULL, ADD_AND_RELU>
                     : t.mask    ? back_last_kernel<T, C, FULL, RELU>
                                 : back_last_kernel<T, C, FULL, NOTHING>,
                     (MPG_CUDA_THREADS >> t.e.across) * APPLY_ROWS);
}

template <class T, class C, int N, bool FULL>
mpg_status forward_first(const mpg_kernel_call *call, const batch_norm<T, C> &t) {
  if (t.batch_stats) MPG_TRY(launch_first(call, t, statistics_first_kernel<T, C, N, FULL>));
  MPG_TRY(launch_channels(call, t, statistics_kernel<T, C>));
  return launch_first(call, t, apply_first_kernel<T, C, N, FULL>);
}

template <class T, class C, int N, bool FULL>
mpg_status backward_first(const mpg_kernel_call *call, const batch_norm<T, C> &t) {
  MPG_TRY(launch_first(call, t, gradient_sums_first_kernel<T, C, N, FULL>));
  MPG_TRY(launch_channels(call, t, gradients_kernel<T, C>));
  return launch_first(call, t, back_first_kernel<T, C, N, FULL>);
}

template <class T, class C>
mpg_status run(const mpg_kernel_call *call, const batch_norm<T, C> &t) {
  enum { N = mpg_pack<T>::COUNT };
  bool aligned = sizeof(T) < 8; /* float64 has no fast path */
  for (const void *array :
       {(const void *)t.x, (const void *)t.dy, (const void *)t.residual, (const void *)t.y,
        (const void *)t.dresidual, (const void *)(t.dy ? t.mean : NULL)})
    aligned &= mpg_cuda_aligned(array);
#define RUN_AS(layout, ...)                             \
  (t.dy ? backward_##layout<T, C, __VA_ARGS__>(call, t) \
        : forward_##layout<T, C, __VA_ARGS__>(call, t))
  if (t.e.last)
    return aligned && t.e.channels % EIGHT == 0 ? RUN_AS(last, (sizeof(T) < 8))
                                                : RUN_AS(last, false);
  if (t.e.inner % N) return RUN_AS(first, 1, false);
  return aligned ? RUN_AS(first, N, (sizeof(T) < 8)) : RUN_AS(first, N, false);
}

template <class T, class C>
mpg_status run_forward(const mpg_kernel_call *call, bool fix_gamma, bool use_global_stats,
                       double eps, double momentum, int axis, bool relu, bool add) {
  batch_norm<T, C> t = {};
  t.eps = eps;
  t.momentum = momentum;
  t.x = (const T *)call->inputs[0].data;
  t.gamma = fix_gamma ? NULL : (const C *)call->inputs[1].data;
  t.beta = (const C *)call->inputs[2].data;
  t.moving_mean = (C *)call->inputs[3].data;
  t.moving_var = (C *)call->inputs[4].data;
  t.residual = add ? (const T *)call->inputs[5].data : NULL;
  t.y = (T *)call->outputs[0].data;
  t.mean = (C *)call->outputs[1].data;
  t.inverse = (C *)call->outputs[2].data;
  t.mask = relu ? (uint8_t *)call->outputs[3].data : NULL;
  MPG_TRY(prepare(call, &t, axis));
  /* An empty batch has no statistics, so the moving averages are used. */
  t.batch_stats = call->train && !use_global_stats && t.e.outer * t.e.inner > 0;
  return run(call, t);
}

template <class T, class C>
mpg_status run_backward(const mpg_kernel_call *call, bool fix_gamma, bool batch_stats, int axis,
                        bool relu, bool add) {
  batch_norm<T, C> t = {};
  t.dy = (const T *)call->inputs[0].data;
  t.x = (const T *)call->inputs[1].data;
  t.gamma = fix_gamma ? NULL : (const C *)call->inputs[2].data;
  t.mean = (C *)call->inputs[3].data;
  t.inverse = (C *)call->inputs[4].data;
  t.mask = relu ? (uint8_t *)call->inputs[5].data : NULL;
  t.y = (T *)call->outputs[0].data;
  t.dgamma = (C *)call->outputs[1].data;
  t.dbeta = (C *)call->outputs[2].data;
  t.dresidual = add ? (T *)call->outputs[3].data : NULL;
  t.batch_stats = batch_stats;
  MPG_TRY(prepare(call, &t, axis));
  return run(call, t);
}

} // namespace

mpg_status mpg_cuda_batch_norm(const mpg_kernel_call *call) {
  const mpg_batch_norm_params *p = (const mpg_batch_norm_params *)call->params;
  const mpg_desc *x = &call->inputs[0].desc;
  int axis = axis_of(p->axis, x->shape.ndim);
  MPG_CUDA_RUN_FLOAT(x->dtype, run_forward, call, p->fix_gamma, p->use_global_stats, p->eps,
                     p->momentum, axis, false, false);
}

mpg_status mpg_cuda_batch_norm_backward(const mpg_kernel_call *call) {
  const mpg_batch_norm_backward_params *p = (const mpg_batch_norm_backward_params *)call->params;
  const mpg_desc *x = &call->inputs[1].desc;
  int axis = axis_of(p->axis, x->shape.ndim);
  MPG_CUDA_RUN_FLOAT(x->dtype, run_backward, call, p->fix_gamma, p->batch_stats, axis, false,
                     false);
}

mpg_status mpg_cuda_batch_norm_relu(const mpg_kernel_call *call) {
  const mpg_batch_norm_relu_params *p = (const mpg_batch_norm_relu_params *)call->params;
  const mpg_desc *x = &call->inputs[0].desc;
  int axis = x->shape.ndim - 1;
  MPG_CUDA_RUN_FLOAT(x->dtype, run_forward, call, p->fix_gamma, p->use_global_stats, p->eps,
                     p->momentum, axis, true, p->add);
}

mpg_status mpg_cuda_batch_norm_relu_backward(const mpg_kernel_call *call) {
  const mpg_batch_norm_relu_backward_params *p =
      (const mpg_batch_norm_relu_backward_params *)call->params;
  const mpg_desc *x = &call->inputs[1].desc;
  int axis = x->shape.ndim - 1;
  MPG_CUDA_RUN_FLOAT(x->dtype, run_backward, call, p->fix_gamma, p->batch_stats, axis, true,
                     p->add);
}
