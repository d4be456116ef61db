/* Recurrent layers. cuBLASLt computes the products; the kernels here compute the cells. cuDNN's
 * recurrent layers are not used, because shape inference cannot know the size of cuDNN's reserve
 * space, its dropout masks differ from the CPU's, and its products on several streams are not
 * deterministic.
 *
 * The reserve array, dropout and the order of sums are as in kernels/cpu/layers/rnn_layers.h. All
 * input products of a layer are computed as one product over all steps, and so are the weight
 * gradients. Only the recurrent products and the cells run step by step. For 16-bit dtypes,
 * products and cells sum in float32 and round their results, but the LSTM's cell state stays in
 * float32 between steps. Shapes are noted next to the pointers: L layers, D directions, G gates, H
 * hidden, N batch, S time steps, I input size. */
#include "kernels/cuda/access.h"
extern "C" {
#include "kernels/cuda/array/move.h"
#include "op/layers/rnn.h"
}
#include "kernels/common/vector_math.h"
#include "kernels/cuda/math/product.h"

namespace {

enum { MAX_WEIGHTS = 64 * 2 };

template <class T>
struct weights {
  /* per layer and direction: [G * H, in], [G * H, H], [G * H], [G * H] */
  T *wi[MAX_WEIGHTS], *wh[MAX_WEIGHTS], *bi[MAX_WEIGHTS], *bh[MAX_WEIGHTS];
};

template <class T>
struct rnn {
  const mpg_kernel_call *call;
  const mpg_rnn_params *params;
  mpg_rnn_size s;
  bool dropped;
  const T *data, *h0, *c0; /* data: [S, N, I]; h0, c0: [L * D, N, H] */
  weights<T> w;
  T *output, *hn, *cn; /* output: [S, N, D * H]; hn, cn: [L * D, N, H] or NULL */
  T *reserve;
  mpg_untyped lengths; /* [N] lengths of sequences; used only if s.lengths */

  int64_t block() const { return s.time * s.batch * s.hidden; }
  int inner() const { return s.gates + (s.is_lstm || s.mode == MPG_RNN_GRU ? 1 : 0); }
  T *gates(int index) const { return reserve + block() * inner() * index; } /* [S, N, G * H] */
  /* Returns the LSTM's cell states, or the hidden part of the GRU's n gate: [S, N, H]. */
  T *extra(int index) const { return gates(index) + block() * s.gates; }
  T *layer_output(int layer) const { /* [S, N, D * H] */
    return layer == s.layers - 1 && !s.lengths
               ? output
               : gates(s.layers * s.directions) +
                     block() * s.directions * layer * (dropped ? 2 : 1);
  }
  const T *layer_input(int layer) const { /* after dropout */
    if (layer == 0) return data;
    return dropped ? layer_output(layer - 1) + block() * s.directions : layer_output(layer - 1);
  }
  /* Returns the hidden state before step t: [N, H] with row stride *ld. */
  const T *previous(int layer, int direction, int64_t t, int64_t *ld) const {
    bool first = direction == 0 ? t == 0 : t == s.time - 1;
    *ld = first ? s.hidden : s.hidden * s.directions;
    if (first) return h0 + ((int64_t)layer * s.directions + direction) * s.batch * s.hidden;
    return layer_output(layer) + (direction == 0 ? t - 1 : t + 1) * s.batch * *ld +
           direction * s.hidden;
  }
};

/* --- Cells: one thread per element of a step's hidden state ----------------------------------- */
MPG_HOST_DEVICE float sigmoid(float x) { return mpg_sigmoidf(x); }
MPG_HOST_DEVICE double sigmoid(double x) { return 1 / (1 + exp(-x)); }
MPG_HOST_DEVICE float squash(float x) { return mpg_tanhf(x); }
MPG_HOST_DEVICE double squash(double x) { return tanh(x); }

/* Returns i / n. Divides in 32 bits if possible, because a 64-bit division takes four times as many
 * instructions. */
__device__ __forceinline__ int64_t quotient(int64_t i, int64_t n) {
  return (i | n) >> 32 ? i / n : (int64_t)((uint32_t)i / (uint32_t)n);
}

/* Sequence lengths, to check whether step t is past the end of a sequence. Such a step leaves the
 * sequence's states unchanged. */
struct ends {
  bool given;
  mpg_untyped lengths; /* [N] */
  int64_t t;           /* index of the step */

  __device__ bool beyond(int64_t n) const { return given && t >= mpg_cuda_index_at(lengths, n); }
};

template <class T>
struct step {
  int64_t hidden, count, ld, ld_before;
  ends sequences;
  T *gates;               /* [N, G * H] of this step; in: matrix products; out: activated gates */
  const T *hidden_gates;  /* GRU: products with the hidden state */
  const T *bias, *bias_h; /* [G * H] */
  T *extra;               /* [N, H]; see rnn::extra */
  const T *h_before;      /* row stride ld_before */
  const T *c0; /* LSTM: initial state at the first step; otherwise NULL, and `carried` is read */
  mpg_compute_t<T> *carried;
  T *h; /* row stride ld */
  bool clip, clip_nan;
  mpg_compute_t<T> clip_min, clip_max;
};

template <class T, mpg_rnn_mode MODE>
__global__ void cell_kernel(step<T> p) {
  typedef mpg_compute_t<T> C;
  int64_t i = MPG_CUDA_INDEX, H = p.hidden, n = quotient(i, H), j = i - n * H;
  if (i >= p.count) return;
  const int gates = MODE == MPG_RNN_LSTM ? 4 : MODE == MPG_RNN_GRU ? 3 : 1;
  T *g = p.gates + n * gates * H + j;
  C h;
  if (p.sequences.beyond(n)) {
    if (MODE == MPG_RNN_LSTM) {
      if (p.c0) p.carried[i] = mpg_to<C>(p.c0[i]);
      p.extra[i] = mpg_to<T>(p.carried[i]);
    }
    p.h[n * p.ld + j] = p.h_before[n * p.ld_before + j];
    return;
  }
  if (MODE == MPG_RNN_LSTM) {
    C in[4];
    for (int k = 0; k < 4; k++)
      in[k] = mpg_to<C>(g[k * H]) + (mpg_to<C>(p.bias[k * H + j]) + mpg_to<C>(p.bias_h[k * H + j]));
    C a = sigmoid(in[0]), f = sigmoid(in[1]), z = squash(in[2]), o = sigmoid(in[3]);
    C cell = f * (p.c0 ? mpg_to<C>(p.c0[i]) : p.carried[i]) + a * z;
    if (p.clip) {
      if (p.clip_nan && cell != cell) cell = 0;
      cell = cell < p.clip_min ? p.clip_min : cell > p.clip_max ? p.clip_max : cell;
    }
    g[0] = mpg_to<T>(a);
    g[H] = mpg_to<T>(f);
    g[2 * H] = mpg_to<T>(z);
    g[3 * H] = mpg_to<T>(o);
    p.extra[i] = mpg_to<T>(cell);
    p.carried[i] = cell;
    h = o * squash(cell);
  } else if (MODE == MPG_RNN_GRU) {
    const T *gh = p.hidden_gates + n * 3 * H + j;
    C in[3], hidden[3];
    for (int k = 0; k < 3; k++) {
      in[k] = mpg_to<C>(g[k * H]) + mpg_to<C>(p.bias[k * H + j]);
      hidden[k] = mpg_to<C>(gh[k * H]);
    }
    C r = sigmoid(in[0] + hidden[0] + mpg_to<C>(p.bias_h[j])),
      z = sigmoid(in[1] + hidden[1] + mpg_to<C>(p.bias_h[H + j]));
    C m = hidden[2] + mpg_to<C>(p.bias_h[2 * H + j]), fresh = squash(in[2] + r * m);
    g[0] = mpg_to<T>(r);
    g[H] = mpg_to<T>(z);
    g[2 * H] = mpg_to<T>(fresh);
    p.extra[i] = mpg_to<T>(m);
    h = (1 - z) * fresh + z * mpg_to<C>(p.h_before[n * p.ld_before + j]);
  } else {
    C a = mpg_to<C>(*g) + (mpg_to<C>(p.bias[j]) + mpg_to<C>(p.bias_h[j]));
    h = MODE == MPG_RNN_TANH ? squash(a) : a > 0 ? a : (C)0;
    *g = mpg_to<T>(h);
  }
  p.h[n * p.ld + j] = mpg_to<T>(h);
}

template <class T>
struct back_step {
  int64_t hidden, count, ld, ld_before;
  ends sequences;
  const T *gates, *extra; /* of this step; gates: activated, [N, G * H]; extra: [N, H] */
  const T *extra_before;  /* LSTM: previous cell states [N, H] */
  const T *h_before;      /* GRU only; row stride ld_before */
  const T *d_output;      /* row stride ld */
  /* In: gradient from the next step. Out, for GRU or with lengths: the term to which the caller
   * adds the matrix product (GRU: dh * z; other modes: 0; padding: unchanged). */
  T *d_h;
  const T *d_cn; /* LSTM: gradient of the final cell state; NULL for 0 */
  bool last;     /* last step: the cell state's gradient is d_cn, not `carried` */
  T *d_c0;       /* LSTM's first step: receives the initial cell state's gradient; else NULL */
  mpg_compute_t<T> *carried;
  T *d_gates, *d_hidden; /* [N, G * H]; d_hidden: gradient of the GRU's hidden products */
  bool clip;
  mpg_compute_t<T> clip_min, clip_max;
};

template <class T, mpg_rnn_mode MODE>
__global__ void back_cell_kernel(back_step<T> p) {
  typedef mpg_compute_t<T> C;
  int64_t i = MPG_CUDA_INDEX, H = p.hidden, n = quotient(i, H), j = i - n * H;
  if (i >= p.count) return;
  const int gates = MODE == MPG_RNN_LSTM ? 4 : MODE == MPG_RNN_GRU ? 3 : 1;
  const T *g = p.gates + n * gates * H + j;
  T *d = p.d_gates + n * gates * H + j;
  if (p.sequences.beyond(n)) { /* padding: passes the states' gradients to the previous step */
    for (int k = 0; k < gates; k++) {
      d[k * H] = mpg_to<T>((C)0);
      if (MODE == MPG_RNN_GRU) p.d_hidden[(n * gates + k) * H + j] = mpg_to<T>((C)0);
    }
    if (MODE == MPG_RNN_LSTM && p.last) p.carried[i] = p.d_cn ? mpg_to<C>(p.d_cn[i]) : (C)0;
    if (MODE == MPG_RNN_LSTM && p.d_c0) p.d_c0[i] = mpg_to<T>(p.carried[i]);
    return;
  }
  C dh = mpg_to<C>(p.d_output[n * p.ld + j]) + mpg_to<C>(p.d_h[i]);
  if (MODE == MPG_RNN_LSTM) {
    C a = mpg_to<C>(g[0]), f = mpg_to<C>(g[H]), z = mpg_to<C>(g[2 * H]), o = mpg_to<C>(g[3 * H]),
      c = mpg_to<C>(p.extra[i]), tanh_c = squash(c);
    C dc = (p.last ? p.d_cn ? mpg_to<C>(p.d_cn[i]) : (C)0 : p.carried[i]) +
           dh * o * (1 - tanh_c * tanh_c);
    if (p.clip && (c == p.clip_min || c == p.clip_max)) dc = 0;
    d[0] = mpg_to<T>(dc * z * a * (1 - a));
    d[H] = mpg_to<T>(dc * mpg_to<C>(p.extra_before[i]) * f * (1 - f));
    d[2 * H] = mpg_to<T>(dc * a * (1 - z * z));
    d[3 * H] = mpg_to<T>(dh * tanh_c * o * (1 - o));
    p.carried[i] = dc * f;
    if (p.d_c0) p.d_c0[i] = mpg_to<T>(dc * f);
  } else if (MODE == MPG_RNN_GRU) {
    T *dg = p.d_hidden + n * 3 * H + j;
    C r = mpg_to<C>(g[0]), z = mpg_to<C>(g[H]), fresh = mpg_to<C>(g[2 * H]);
    C d_fresh = dh * (1 - z) * (1 - fresh * fresh);
    C d_z = dh * (mpg_to<C>(p.h_before[n * p.ld_before + j]) - fresh) * z * (1 - z);
    C d_r = d_fresh * mpg_to<C>(p.extra[i]) * r * (1 - r);
    d[0] = dg[0] = mpg_to<T>(d_r);
    d[H] = dg[H] = mpg_to<T>(d_z);
    d[2 * H] = mpg_to<T>(d_fresh);
    dg[2 * H] = mpg_to<T>(d_fresh * r);
    p.d_h[i] = mpg_to<T>(dh * z);
  } else {
    C a = mpg_to<C>(*g);
    *d = mpg_to<T>(MODE == MPG_RNN_RELU ? (a > 0 ? dh : (C)0) : dh * (1 - a * a));
  }
  /* With lengths, the caller adds the matrix product to d_h instead of overwriting it. */
  if (MODE != MPG_RNN_GRU && p.sequences.given) p.d_h[i] = mpg_to<T>((C)0);
}

#define BY_MODE(mode, LAUNCH)                       \
  switch (mode) {                                   \
    case MPG_RNN_LSTM: return LAUNCH(MPG_RNN_LSTM); \
    case MPG_RNN_GRU: return LAUNCH(MPG_RNN_GRU);   \
    case MPG_RNN_TANH: return LAUNCH(MPG_RNN_TANH); \
    default: return LAUNCH(MPG_RNN_RELU);           \
  }

template <class T>
mpg_status run_cell(const mpg_kernel_call *call, mpg_rnn_mode mode, const step<T> &p) {
#define CELL(MODE) \
  mpg_cuda_launch(call, cell_kernel<T, MODE>, mpg_cuda_blocks(p.count), MPG_CUDA_THREADS, 0, p)
  BY_MODE(mode, CELL)
}
template <class T>
mpg_status run_back_cell(const mpg_kernel_call *call, mpg_rnn_mode mode, const back_step<T> &p) {
#define BACK_CELL(MODE) \
  mpg_cuda_launch(call, back_cell_kernel<T, MODE>, mpg_cuda_blocks(p.count), MPG_CUDA_THREADS, 0, p)
  BY_MODE(mode, BACK_CELL)
}

/* --- Products, dropout, padding and sums ------------------------------------------------------ */
template <class T>
struct dtype_of;
template <>
struct dtype_of<float> {
  static const mpg_dtype value = MPG_FLOAT32;
};
template <>
struct dtype_of<double> {
  static const mpg_dtype value = MPG_FLOAT64;
};
template <>
struct dtype_of<mpg_half> {
  static const mpg_dtype value = MPG_FLOAT16;
};
template <>
struct dtype_of<mpg_bfloat16> {
  static const mpg_dtype value = MPG_BFLOAT16;
};

/* Computes c (m, n) = op(a) op(b) + beta c. */
template <class T>
mpg_status multiply(const mpg_kernel_call *call, bool ta, bool tb, int64_t m, int64_t n, int64_t k,
                    const T *a, int64_t lda, const T *b, int64_t ldb, double beta, T *c) {
  mpg_cuda_product p = {};
  p.dtype = dtype_of<T>::value;
  p.transpose_a = ta, p.transpose_b = tb;
  p.m = m, p.n = n, p.k = k;
  p.lda = lda, p.ldb = ldb, p.ldc = n;
  p.count = 1;
  p.alpha = 1, p.beta = beta;
  p.a = a, p.b = b, p.c = c, p.c0 = beta != 0 ? c : NULL;
  return mpg_cuda_multiply(call, &p);
}

/* Applies dropout between layers. Random word first + e decides whether element e of a layer's
 * output is kept. `first` depends on the layer. A dropped element becomes -0 and a kept zero
 * becomes +0, so that backward can recover the mask from the values. */
template <class T>
__global__ void drop_kernel(const T *from, T *to, mpg_cuda_key given, uint64_t first, float keep,
                            mpg_compute_t<T> scale, int64_t count) {
  typedef mpg_compute_t<T> C;
  int64_t i = MPG_CUDA_INDEX;
  if (i >= count) return;
  mpg_random_key key = given.read();
  uint64_t position = first + mpg_random_position(&key, (uint64_t)i);
  bool kept =
      mpg_philox_uniform(mpg_philox(key.seed, key.call, position >> 2).value[position & 3]) < keep;
  T value = mpg_to<T>(kept ? mpg_to<C>(from[i]) * scale : -(C)0);
  to[i] = kept && mpg_to<C>(value) == 0 ? mpg_to<T>((C)0) : value;
}
template <class T>
__global__ void undrop_kernel(const T *after, T *gradient, mpg_compute_t<T> scale, int64_t count) {
  typedef mpg_compute_t<T> C;
  int64_t i = MPG_CUDA_INDEX;
  if (i >= count) return;
  C a = mpg_to<C>(after[i]);
  gradient[i] = mpg_to<T>(a == 0 && signbit(a) ? (C)0 : mpg_to<C>(gradient[i]) * scale);
}

/* Copies sequences [S, N, width], with zeros after the end of each sequence. */
template <class T>
__global__ void mask_kernel(const T *from, T *to, mpg_untyped lengths, int64_t batch, int64_t width,
                            int64_t count) {
  int64_t i = MPG_CUDA_INDEX;
  if (i >= count) return;
  int64_t row = i / width;
  ends sequences = {true, lengths, row / batch};
  to[i] = sequences.beyond(row % batch) ? mpg_to<T>((mpg_compute_t<T>)0) : from[i];
}

template <class T>
mpg_status mask(const rnn<T> &r, const T *from, T *to, int64_t width) {
  int64_t count = r.s.time * r.s.batch * width;
  return mpg_cuda_launch(r.call, mask_kernel<T>, mpg_cuda_blocks(count), MPG_CUDA_THREADS, 0, from,
                         to, r.lengths, r.s.batch, width, count);
}

/* Sums the columns of a matrix. A block sums 32 columns, and each of its eight warps adds every
 * eighth row. If `copy` is not NULL, the sums are also stored there. */
enum { SUM_COLUMNS = 32, SUM_WARPS = 8 };
template <class T>
__global__ void column_sums_kernel(const T *matrix, int64_t rows, int64_t columns, T *sums,
                                   T *copy) {
  typedef mpg_compute_t<T> C;
  __shared__ C parts[SUM_WARPS][SUM_COLUMNS];
  int lane = threadIdx.x % SUM_COLUMNS, warp = threadIdx.x / SUM_COLUMNS;
  int64_t column = (int64_t)blockIdx.x * SUM_COLUMNS + lane;
  C sum = 0;
  for (int64_t row = warp; row < rows && column < columns; row += SUM_WARPS)
    sum += mpg_to<C>(matrix[row * columns + column]);
  parts[warp][lane] = sum;
  __syncthreads();
  if (warp || column >= columns) return;
  for (int k = 1; k < SUM_WARPS; k++) sum += parts[k][lane];
  sums[column] = mpg_to<T>(sum);
  if (copy) copy[column] = mpg_to<T>(sum);
}
template <class T>
mpg_status sum_columns(const mpg_kernel_call *call, const T *matrix, int64_t rows, int64_t columns,
                       T *sums, T *copy) {
  return mpg_cuda_launch(call, column_sums_kernel<T>, mpg_cuda_blocks(columns, SUM_COLUMNS),
                         SUM_COLUMNS * SUM_WARPS, 0, matrix, rows, columns, sums, copy);
}

/* Copies rows of `width` elements with stride `ld` to contiguous rows. */
template <class T>
mpg_status gather_rows(const mpg_kernel_call *call, int64_t rows, int64_t width, const T *from,
                       int64_t ld, T *to) {
  mpg_move move = {};
  mpg_move_add(&move, rows, ld, width);
  mpg_move_add(&move, width, 1, 1);
  return rows && width ? mpg_cuda_move(call, &move, from, to, sizeof(T)) : MPG_OK;
}

template <class T>
struct bounds {
  bool clip, clip_nan;
  mpg_compute_t<T> min, max;
};
template <class T>
bounds<T> bounds_of(const mpg_rnn_params *p) {
  typedef mpg_compute_t<T> C;
  bounds<T> b = {p->lstm_state_clip_min.present || p->lstm_state_clip_max.present,
                 p->lstm_state_clip_nan != 0, -(C)INFINITY, (C)INFINITY};
  /* Bounds are rounded like the state, so that backward detects clipped states by equality. */
  if (p->lstm_state_clip_min.present) b.min = mpg_to<C>(mpg_to<T>(p->lstm_state_clip_min.value));
  if (p->lstm_state_clip_max.present) b.max = mpg_to<C>(mpg_to<T>(p->lstm_state_clip_max.value));
  return b;
}

/* --- Forward ---------------------------------------------------------------------------------- */
/* Runs one layer in one direction. `scratch` has room for the GRU's products with the hidden state,
 * [N, G * H], or for the LSTM's cell state in the compute type, [N, H]. */
template <class T>
mpg_status forward_direction(const rnn<T> &r, int layer, int direction, void *scratch) {
  const mpg_rnn_size *s = &r.s;
  const int64_t H = s->hidden, N = s->batch, GH = s->gates * H, in = mpg_rnn_layer_input(s, layer),
                index = layer * s->directions + direction;
  const bool gru = s->mode == MPG_RNN_GRU, keeps = s->is_lstm || gru;
  T *gates = r.gates((int)index), *extra = keeps ? r.extra((int)index) : NULL,
    *output = r.layer_output(layer) + direction * H;
  MPG_TRY(multiply(r.call, false, true, s->time * N, GH, in, r.layer_input(layer), in,
                   (const T *)r.w.wi[index], in, 0, gates));
  bounds<T> b = bounds_of<T>(r.params);
  step<T> p = {};
  p.hidden = H, p.count = N * H, p.ld = H * s->directions;
  p.bias = r.w.bi[index], p.bias_h = r.w.bh[index];
  p.hidden_gates = (const T *)scratch;
  p.carried = (mpg_compute_t<T> *)scratch;
  p.clip = b.clip, p.clip_nan = b.clip_nan, p.clip_min = b.min, p.clip_max = b.max;
  for (int64_t at = 0; at < s->time; at++) {
    int64_t t = direction == 0 ? at : s->time - 1 - at;
    p.gates = gates + t * N * GH;
    p.extra = extra ? extra + t * N * H : NULL;
    p.h = output + t * N * p.ld;
    p.h_before = r.previous(layer, direction, t, &p.ld_before);
    p.c0 = s->is_lstm && at == 0 ? r.c0 + index * N * H : NULL;
    p.sequences = {s->lengths, r.lengths, t};
    MPG_TRY(multiply(r.call, false, true, N, GH, H, p.h_before, p.ld_before,
                     (const T *)r.w.wh[index], H, gru ? 0 : 1, gru ? (T *)scratch : p.gates));
    MPG_TRY(run_cell(r.call, s->mode, p));
  }
  int64_t last = direction == 0 ? s->time - 1 : 0;
  if (r.hn) {
    const T *from = s->time ? output + last * N * p.ld : r.h0 + index * N * H;
    MPG_TRY(gather_rows(r.call, N, H, from, s->time ? p.ld : H, r.hn + index * N * H));
  }
  if (r.cn)
    MPG_TRY(mpg_cuda_copy(r.call, s->time ? extra + last * N * H : r.c0 + index * N * H,
                          r.cn + index * N * H, (size_t)(N * H) * sizeof(T)));
  return MPG_OK;
}

template <class T>
mpg_status forward(const rnn<T> &r) {
  typedef mpg_compute_t<T> C;
  const mpg_rnn_size *s = &r.s;
  int64_t rows = s->batch * s->hidden;
  size_t size = s->mode == MPG_RNN_GRU ? (size_t)(rows * s->gates) * sizeof(T)
                : s->is_lstm           ? (size_t)rows * sizeof(C)
                                       : 0;
  void *scratch = size ? mpg_device_scratch_slot(r.call->device, MPG_SCRATCH_KERNEL, size) : NULL;
  if (size && !scratch) return MPG_DEVICE_OUT_OF_MEMORY;
  double keep = 1 - r.params->p;
  for (int layer = 0; layer < s->layers; layer++) {
    for (int direction = 0; direction < s->directions; direction++)
      MPG_TRY(forward_direction(r, layer, direction, scratch));
    if (!r.dropped || layer == s->layers - 1) continue;
    int64_t count = r.block() * s->directions;
    MPG_TRY(mpg_cuda_launch(r.call, drop_kernel<T>, mpg_cuda_blocks(count), MPG_CUDA_THREADS, 0,
                            (const T *)r.layer_output(layer), r.layer_output(layer) + count,
                            mpg_cuda_key_of(r.call), (uint64_t)layer << 48, (float)keep,
                            (C)(1 / keep), count));
  }
  return s->lengths ? mask(r, (const T *)r.layer_output(s->layers - 1), r.output,
                           s->hidden * s->directions)
                    : MPG_OK;
}

/* --- Backward --------------------------------------------------------------------------------- */
template <class T>
struct rnn_gradients {
  const T *d_output, *d_hn, *d_cn; /* [S, N, D * H]; d_hn, d_cn: [L * D, N, H] or NULL */
  T *d_data, *d_h0, *d_c0;         /* shaped like data, h0 and c0 */
  weights<T> w;
};
template <class T>
struct work {
  T *d_gates, *d_hidden; /* [S, N, G * H]; d_hidden: for the GRU only */
  mpg_compute_t<T> *carried;
};

/* Runs the backward pass of one layer in one direction. d_output is the gradient of the layer's
 * output [S, N, D * H]. The gradient of its input is stored in d_input [S, N, in], or added to it
 * if `add`. */
template <class T>
mpg_status backward_direction(const rnn<T> &r, const rnn_gradients<T> &d, int layer, int direction,
                              const T *d_output, T *d_input, bool add, const work<T> &w) {
  const mpg_rnn_size *s = &r.s;
  const int64_t H = s->hidden, N = s->batch, S = s->time, GH = s->gates * H,
                in = mpg_rnn_layer_input(s, layer), NH = N * H,
                index = layer * s->directions + direction;
  const bool gru = s->mode == MPG_RNN_GRU, keeps = s->is_lstm || gru;
  const mpg_kernel_call *call = r.call;
  const T *gates = r.gates((int)index), *extra = keeps ? r.extra((int)index) : NULL,
          *wh = r.w.wh[index];
  T *d_h = d.d_h0 + index * NH, *d_c0 = s->is_lstm ? d.d_c0 + index * NH : NULL;
  size_t state = (size_t)NH * sizeof(T);
  if (d.d_hn)
    MPG_TRY(mpg_cuda_copy(call, d.d_hn + index * NH, d_h, state));
  else
    MPG_TRY(mpg_cuda_zero(call, d_h, state));
  if (S == 0 && d_c0 && d.d_cn) MPG_TRY(mpg_cuda_copy(call, d.d_cn + index * NH, d_c0, state));
  if (S == 0 && d_c0 && !d.d_cn) MPG_TRY(mpg_cuda_zero(call, d_c0, state));
  /* Gradients of the products with the hidden state. */
  const T *d_products = gru ? w.d_hidden : w.d_gates;
  bounds<T> b = bounds_of<T>(r.params);
  back_step<T> p = {};
  p.hidden = H, p.count = NH, p.ld = H * s->directions;
  p.d_h = d_h, p.carried = w.carried;
  p.clip = b.clip, p.clip_min = b.min, p.clip_max = b.max;
  for (int64_t at = S - 1; at >= 0; at--) {
    int64_t t = direction == 0 ? at : S - 1 - at, before = direction == 0 ? t - 1 : t + 1;
    p.last = at == S - 1;
    p.gates = gates + t * N * GH;
    p.extra = extra ? extra + t * NH : NULL;
    p.extra_before = !s->is_lstm ? NULL : at == 0 ? r.c0 + index * NH : extra + before * NH;
    p.h_before = r.previous(layer, direction, t, &p.ld_before);
    p.d_output = d_output + t * N * p.ld + direction * H;
    p.d_cn = d.d_cn ? d.d_cn + index * NH : NULL;
    p.d_c0 = at == 0 ? d_c0 : NULL;
    p.d_gates = w.d_gates + t * N * GH;
    p.d_hidden = gru ? w.d_hidden + t * N * GH : NULL;
    p.sequences = {s->lengths, r.lengths, t};
    MPG_TRY(run_back_cell(call, s->mode, p));
    MPG_TRY(multiply(call, false, false, N, H, GH, d_products + t * N * GH, GH, wh, H,
                     gru || s->lengths ? 1 : 0, d_h));
  }
  /* The weights' gradients are products over all steps at once. The first step is separate for wh,
   * because its previous hidden state is in the array h0. */
  int64_t first = direction == 0 ? 0 : S - 1, ld = H * s->directions;
  const T *outputs = r.layer_output(layer) + direction * H;
  /* The gradients of all steps except the direction's first one. */
  const T *later = direction == 0 ? d_products + N * GH : d_products;
  /* The hidden states before these steps. */
  const T *earlier = direction == 0 ? outputs : outputs + N * ld;
  if (S > 0) {
    MPG_TRY(multiply(call, true, false, GH, H, N, d_products + first * N * GH, GH,
                     r.h0 + index * NH, H, 0, d.w.wh[index]));
    if (S > 1)
      MPG_TRY(multiply(call, true, false, GH, H, (S - 1) * N, later, GH, earlier, ld, 1,
                       d.w.wh[index]));
  } else {
    MPG_TRY(mpg_cuda_zero(call, d.w.wh[index], (size_t)(GH * H) * sizeof(T)));
  }
  MPG_TRY(multiply(call, true, false, GH, in, S * N, (const T *)w.d_gates, GH, r.layer_input(layer),
                   in, 0, d.w.wi[index]));
  MPG_TRY(sum_columns(call, (const T *)w.d_gates, S * N, GH, d.w.bi[index],
                      gru ? (T *)NULL : d.w.bh[index]));
  if (gru) MPG_TRY(sum_columns(call, (const T *)w.d_hidden, S * N, GH, d.w.bh[index], (T *)NULL));
  return multiply(call, false, false, S * N, in, GH, (const T *)w.d_gates, GH,
                  (const T *)r.w.wi[index], in, add ? 1 : 0, d_input);
}

template <class T>
mpg_status backward(rnn<T> r, const rnn_gradients<T> &d) {
  typedef mpg_compute_t<T> C;
  const mpg_rnn_size *s = &r.s;
  int64_t rows = s->time * s->batch, wide = s->hidden * s->directions,
          gates = rows * s->gates * s->hidden, widest = wide > s->input ? wide : s->input;
  int64_t spare = s->layers > 1 || s->directions == 2 ? rows * widest : 0;
  size_t sizes[] = {(size_t)gates * sizeof(T),
                    s->mode == MPG_RNN_GRU ? (size_t)gates * sizeof(T) : 0,
                    s->is_lstm ? (size_t)(s->batch * s->hidden) * sizeof(C) : 0,
                    (size_t)spare * sizeof(T),
                    (size_t)spare * sizeof(T),
                    s->lengths ? (size_t)(rows * s->input) * sizeof(T) : 0};
  size_t total = 0, at[6];
  for (int i = 0; i < 6; i++) {
    at[i] = total;
    total += mpg_align_up(sizes[i], 256);
  }
  char *scratch =
      (char *)mpg_device_scratch_slot(r.call->device, MPG_SCRATCH_KERNEL, total ? total : 1);
  if (!scratch) return MPG_DEVICE_OUT_OF_MEMORY;
  work<T> w = {(T *)(scratch + at[0]), (T *)(scratch + at[1]), (C *)(scratch + at[2])};
  T *between[2] = {(T *)(scratch + at[3]), (T *)(scratch + at[4])};
  if (s->lengths) { /* clears the padding, so that it does not affect products even if it is NaN */
    T *data = (T *)(scratch + at[5]);
    MPG_TRY(mask(r, r.data, data, s->input));
    r.data = data;
  }
  const T *d_output = d.d_output;
  for (int layer = s->layers - 1; layer >= 0; layer--) {
    /* d_data may alias the data or the gradient of the output. With a single direction, both have
     * been read before d_data is written. With two directions, the second one still reads them
     * after the first one has written its part, so a temporary is needed. */
    T *d_input = layer == 0 && s->directions == 1 ? d.d_data : between[layer & 1];
    for (int direction = 0; direction < s->directions; direction++)
      MPG_TRY(backward_direction(r, d, layer, direction, d_output, d_input, direction > 0, w));
    if (layer > 0 && r.dropped)
      MPG_TRY(mpg_cuda_launch(r.call, undrop_kernel<T>, mpg_cuda_blocks(rows * wide),
                              MPG_CUDA_THREADS, 0, r.layer_input(layer), d_input,
                              (C)(1 / (1 - r.params->p)), rows * wide));
    d_output = d_input;
  }
  return s->directions == 2
             ? mpg_cuda_copy(r.call, between[0], d.d_data, (size_t)(rows * s->input) * sizeof(T))
             : MPG_OK;
}

/* --- Arguments -------------------------------------------------------------------------------- */
/* Sets the addresses of the weights. They are in a flat vector after the data (`flat`), or in
 * separate arrays after the data and states. */
template <class T>
void read_weights(const mpg_rnn_size *s, bool flat, const mpg_view *views, weights<T> *w) {
  int count = s->layers * s->directions;
  T *next = flat ? (T *)views[1].data : NULL;
  views += 1 + s->states;
  int64_t rows = s->gates * s->hidden;
  for (int i = 0; i < count; i++) {
    w->wi[i] = flat ? next : (T *)views[2 * i].data;
    if (flat) next += rows * mpg_rnn_layer_input(s, i / s->directions);
    w->wh[i] = flat ? next : (T *)views[2 * i + 1].data;
    if (flat) next += rows * s->hidden;
  }
  for (int i = 0; i < count; i++) {
    w->bi[i] = flat ? next : (T *)views[2 * (count + i)].data;
    if (flat) next += rows;
    w->bh[i] = flat ? next : (T *)views[2 * (count + i) + 1].data;
    if (flat) next += rows;
  }
}

template <class T>
rnn<T> rnn_of(const mpg_kernel_call *call, bool flat, bool dropped) {
  const int64_t *dims = call->inputs[0].desc.shape.dims;
  int states = flat ? 2 : 1;
  rnn<T> r = {};
  r.call = call;
  r.params = (const mpg_rnn_params *)call->params;
  r.s = mpg_rnn_size_of(r.params, dims[0], dims[1], dims[2]);
  r.dropped = dropped;
  r.data = (const T *)call->inputs[0].data;
  r.h0 = (const T *)call->inputs[states].data;
  r.c0 = r.s.is_lstm ? (const T *)call->inputs[states + 1].data : NULL;
  read_weights(&r.s, flat, call->inputs, &r.w);
  if (r.s.lengths) r.lengths = mpg_untyped_view(&call->inputs[mpg_rnn_num_inputs(&r.s, flat) - 1]);
  return r;
}

template <class T>
mpg_status forward_of(const mpg_kernel_call *call, bool flat) {
  rnn<T> r = rnn_of<T>(call, flat, call->train && ((const mpg_rnn_params *)call->params)->p > 0);
  r.output = (T *)call->outputs[0].data;
  r.hn = r.params->state_outputs ? (T *)call->outputs[1].data : NULL;
  r.cn = r.params->state_outputs && r.s.is_lstm ? (T *)call->outputs[2].data : NULL;
  r.reserve = (T *)call->outputs[call->num_outputs - 1].data;
  return forward(r);
}

template <class T>
mpg_status backward_of(const mpg_kernel_call *call) {
  const mpg_rnn_backward_params *params = (const mpg_rnn_backward_params *)call->params;
  bool flat = params->flat, with_states = params->state_outputs;
  int states = flat ? 2 : 1;
  rnn<T> r = rnn_of<T>(call, flat, params->dropped);
  int forward = mpg_rnn_num_inputs(&r.s, flat);
  r.output = (T *)call->inputs[forward].data;
  r.reserve = (T *)call->inputs[forward + 1].data;
  const mpg_view *d_out = call->inputs + forward + 2;
  rnn_gradients<T> d = {};
  d.d_output = (const T *)d_out[0].data;
  d.d_hn = with_states ? (const T *)d_out[1].data : NULL;
  d.d_cn = with_states && r.s.is_lstm ? (const T *)d_out[2].data : NULL;
  d.d_data = (T *)call->outputs[0].data;
  d.d_h0 = (T *)call->outputs[states].data;
  d.d_c0 = r.s.is_lstm ? (T *)call->outputs[states + 1].data : NULL;
  read_weights(&r.s, flat, call->outputs, &d.w);
  return backward(r, d);
}

} // namespace

mpg_status mpg_cuda_rnn(const mpg_kernel_call *call) {
  MPG_CUDA_FLOAT_DTYPE(call->inputs[0].desc.dtype, T, return forward_of<T>(call, true));
  return MPG_OK;
}

mpg_status mpg_cuda_rnn_separate(const mpg_kernel_call *call) {
  MPG_CUDA_FLOAT_DTYPE(call->inputs[0].desc.dtype, T, return forward_of<T>(call, false));
  return MPG_OK;
}

mpg_status mpg_cuda_rnn_backward(const mpg_kernel_call *call) {
  MPG_CUDA_FLOAT_DTYPE(call->inputs[0].desc.dtype, T, return backward_of<T>(call));
  return MPG_OK;
}
