/* linear_cross_entropy and its gradient, without a matrix of all scores.
 *
 * As on a CPU (kernels/cpu/math/linear_cross_entropy.c), scores exist for a block of ROWS rows
 * and CLASSES classes at a time. cuBLASLt multiplies; 16-bit operands give float32 scores. One
 * kernel updates the statistics of a block's rows, another replaces scores by their gradient, in
 * the dtype of the operands. A block of threads holds a row's part in registers, so both read
 * scores once. Ignored rows are multiplied too, since the host does not know the labels; their
 * gradient is 0. */
#include "kernels/cuda/access.h"
#include "kernels/cuda/math/product.h"
#include "kernels/cuda/scalar.h"

namespace {

enum { ROWS = 4096, CLASSES = 4096, EACH = CLASSES / MPG_CUDA_THREADS };
enum { COLUMNS = 32, GROUPS = MPG_CUDA_THREADS / COLUMNS }; /* of bias_kernel */

MPG_HOST_DEVICE float tanh_of(float x) { return tanhf(x); }
MPG_HOST_DEVICE double tanh_of(double x) { return tanh(x); }
/* A block of scores of operands T, computed in C. `row` and `first` are the block's first row and
 * class; `classes` counts all classes and n those of the block. */
template <class T>
struct block_of {
  typedef mpg_compute_t<T> C;
  C *scores;
  const T *bias; /* of the block's classes; may be NULL */
  mpg_untyped label;
  int64_t row, first, classes, ignored;
  int n;
  C z_loss, softcap; /* a softcap of 0 is none */

  __device__ __forceinline__ C bounded(C score, int i) const {
    if (bias) score += mpg_to<C>(bias[i]);
    return softcap == 0 ? score : softcap * tanh_of(score / softcap);
  }
  /* Returns the label's index in the block of classes, or -1 if it is in another block. */
  __device__ __forceinline__ int64_t place(int64_t index) const {
    int64_t at = mpg_index_clip(index, classes) - first;
    return at >= 0 && at < n ? at : -1;
  }
};

/* Updates the maxima and the sums of exponentials of the block's rows, and the scores of their
 * labels, which are stored in `loss` until the last block of classes replaces them. */
template <class T>
__global__ void __launch_bounds__(MPG_CUDA_THREADS)
    forward_kernel(block_of<T> b, mpg_compute_t<T> *loss, mpg_compute_t<T> *max,
                   mpg_compute_t<T> *log_sum) {
  typedef mpg_compute_t<T> C;
  const C *scores = b.scores + (int64_t)blockIdx.x * b.n;
  int64_t row = b.row + blockIdx.x;
  C values[EACH], largest = -(C)INFINITY, sum = 0;
#pragma unroll
  for (int k = 0; k < EACH; k++) {
    int i = k * MPG_CUDA_THREADS + (int)threadIdx.x;
    values[k] = i < b.n ? b.bounded(scores[i], i) : -(C)INFINITY;
    largest = mpg_larger_score()(largest, values[k]);
  }
  largest = mpg_block_reduce(largest, -(C)INFINITY, mpg_larger_score());
  C before = b.first > 0 ? max[row] : -(C)INFINITY;
  largest = mpg_larger_score()(before, largest);
  /* While all scores are -inf, their exponentials are 0 relative to any other maximum. */
  C base = largest == -(C)INFINITY ? (C)0 : largest;
#pragma unroll
  for (int k = 0; k < EACH; k++) sum += mpg_exp_of(values[k] - base);
  sum = mpg_block_reduce(sum, (C)0, mpg_plus()); /* also waits for reads of max[row] */
  if (threadIdx.x) return;
  int64_t index = mpg_cuda_index_at(b.label, row), at = b.place(index);
  if (b.first > 0) sum += log_sum[row] * mpg_exp_of(before - base);
  C chosen = at >= 0 ? b.bounded(scores[at], (int)at) : b.first > 0 ? loss[row] : (C)0;
  if (b.first + b.n == b.classes) {
    bool kept = index != b.ignored;
    sum = mpg_log_of(sum);
    C total = largest + sum;
    chosen = kept ? sum - (chosen - largest) : (C)0;
    if (kept && b.z_loss != 0) chosen += b.z_loss * total * total;
    if (!kept) largest = sum = 0;
  }
  loss[row] = chosen;
  max[row] = largest;
  log_sum[row] = sum;
}

/* Stores the gradient of the block's scores s in `out`, which may be the scores: g (p (1 + 2 z (max
 * + log_sum)) - [label]), with p = exp(s - max - log_sum), times the slope of the softcap. */
template <class T>
__global__ void __launch_bounds__(MPG_CUDA_THREADS)
    backward_kernel(block_of<T> b, const mpg_compute_t<T> *grad, const mpg_compute_t<T> *max,
                    const mpg_compute_t<T> *log_sum, T *out) {
  typedef mpg_compute_t<T> C;
  const C *scores = b.scores + (int64_t)blockIdx.x * b.n;
  T *to = out + (int64_t)blockIdx.x * b.n;
  int64_t row = b.row + blockIdx.x, index = mpg_cuda_index_at(b.label, row);
  if (index == b.ignored) {
    for (int i = threadIdx.x; i < b.n; i += MPG_CUDA_THREADS) to[i] = mpg_to<T>((C)0);
    return;
  }
  int64_t at = b.place(index);
  C g = grad[row], m = max[row], s = log_sum[row], factor = g * (1 + 2 * b.z_loss * (m + s));
  C values[EACH]; /* all are loaded before the first store, since `out` may be the scores */
#pragma unroll
  for (int k = 0; k < EACH; k++) {
    int i = k * MPG_CUDA_THREADS + (int)threadIdx.x;
    values[k] = i < b.n ? b.bounded(scores[i], i) : (C)0;
  }
#pragma unroll
  for (int k = 0; k < EACH; k++) {
    int i = k * MPG_CUDA_THREADS + (int)threadIdx.x;
    C slope = mpg_exp_of((values[k] - m) - s) * factor;
    if (i == at) slope -= g;
    if (b.softcap != 0) {
      C part = values[k] / b.softcap;
      slope *= 1 - part * part;
    }
    if (i < b.n) to[i] = mpg_to<T>(slope);
  }
}

/* Adds the columns of a block of gradients to the bias's gradient. Each block of threads has
 * COLUMNS columns, whose rows GROUPS threads add in turns. */
template <class T>
__global__ void bias_kernel(const T *slopes, mpg_compute_t<T> *sums, int rows, int n, bool first) {
  typedef mpg_compute_t<T> C;
  __shared__ C parts[GROUPS][COLUMNS];
  int lane = threadIdx.x % COLUMNS, group = threadIdx.x / COLUMNS,
      column = (int)blockIdx.x * COLUMNS + lane;
  C sum = 0;
  if (column < n)
    for (int row = group; row < rows; row += GROUPS)
      sum += mpg_to<C>(slopes[(int64_t)row * n + column]);
  parts[group][lane] = sum;
  __syncthreads();
  if (group || column >= n) return;
  for (int i = 1; i < GROUPS; i++) sum += parts[i][lane];
  sums[column] = first ? sum : sums[column] + sum;
}

template <class T>
__global__ void narrow_kernel(const mpg_compute_t<T> *from, T *to, int64_t count) {
  for (int64_t i = MPG_CUDA_INDEX; i < count; i += MPG_CUDA_STRIDE) to[i] = mpg_to<T>(from[i]);
}
template <class T>
mpg_status narrow(const mpg_kernel_call *call, const mpg_compute_t<T> *from, T *to, int64_t count) {
  if ((const void *)from == to) return MPG_OK;
  return mpg_cuda_launch(call, narrow_kernel<T>, mpg_cuda_blocks(count), MPG_CUDA_THREADS, 0, from,
                         to, count);
}

int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

/* Bump allocator for scratch memory. Only counts the bytes if `data` is NULL. */
struct memory {
  char *data;
  size_t taken;
  template <class E>
  E *take(int64_t count) {
    char *at = data ? data + taken : NULL;
    taken += mpg_align_up((size_t)count * sizeof(E), 256);
    return (E *)at;
  }
  mpg_status allocate(const mpg_kernel_call *call) {
    data = (char *)mpg_device_scratch_slot(call->device, MPG_SCRATCH_KERNEL, taken);
    taken = 0;
    return data ? MPG_OK : MPG_DEVICE_OUT_OF_MEMORY;
  }
};

template <class T>
struct job {
  typedef mpg_compute_t<T> C;
  enum { NARROW = sizeof(T) < sizeof(C) };
  const mpg_kernel_call *call;
  mpg_dtype dtype;
  int64_t rows, units, classes;
  const T *data, *weight, *bias;
  block_of<T> block;
  int64_t block_rows;

  job(const mpg_kernel_call *call_, int first, int bias_at, int64_t ignored, double z_loss,
      double softcap)
      : call(call_) {
    const mpg_view *x = &call->inputs[first], *w = &call->inputs[first + 1];
    dtype = x->desc.dtype;
    rows = mpg_shape_product(&x->desc.shape, 0, x->desc.shape.ndim - 1);
    units = w->desc.shape.dims[1];
    classes = w->desc.shape.dims[0];
    data = (const T *)x->data;
    weight = (const T *)w->data;
    bias = call->num_inputs > bias_at ? (const T *)call->inputs[bias_at].data : NULL;
    block = {};
    block.label = mpg_untyped_view(&call->inputs[first + 2]);
    block.classes = classes;
    block.ignored = ignored;
    block.z_loss = (C)z_loss;
    block.softcap = (C)softcap;
  }
  int64_t most_rows() const { return least(ROWS, rows); }
  int64_t most_classes() const { return least(CLASSES, classes); }
  void start(int64_t row, int64_t first) {
    block.row = row;
    block.first = first;
    block.n = (int)least(CLASSES, classes - first);
    block.bias = bias ? bias + first : NULL;
    block_rows = least(ROWS, rows - row);
  }

  /* Multiplies dense matrices: c = op(a) op(b) + beta c, where c has the computing type. */
  mpg_status multiply(bool transpose_a, bool transpose_b, int64_t m, int64_t n, int64_t k,
                      const T *a, int64_t lda, const T *b, C *c, int64_t ldc, bool add) const {
    mpg_cuda_product p = {};
    p.dtype = dtype;
    p.wide = NARROW;
    p.transpose_a = transpose_a;
    p.transpose_b = transpose_b;
    p.m = m, p.n = n, p.k = k;
    p.lda = lda, p.ldb = units, p.ldc = ldc;
    p.count = 1;
    p.alpha = 1, p.beta = add;
    p.a = a, p.b = b, p.c = c;
    p.c0 = add ? c : NULL;
    return mpg_cuda_multiply(call, &p);
  }
  mpg_status scores() const {
    return multiply(false, true, block_rows, block.n, units, data + block.row * units, units,
                    weight + block.first * units, block.scores, block.n, false);
  }
};

template <class T>
mpg_status forward(const mpg_kernel_call *call) {
  typedef mpg_compute_t<T> C;
  const mpg_linear_cross_entropy_params *p = (const mpg_linear_cross_entropy_params *)call->params;
  job<T> t(call, 0, 3, p->ignore_index, p->z_loss, p->softcap);
  if (t.rows == 0) return MPG_OK;
  memory m = {};
  m.take<C>(t.most_rows() * t.most_classes());
  MPG_TRY(m.allocate(call));
  t.block.scores = m.take<C>(t.most_rows() * t.most_classes());
  for (int64_t row = 0; row < t.rows; row += ROWS)
    for (int64_t first = 0; first < t.classes; first += CLASSES) {
      t.start(row, first);
      MPG_TRY(t.scores());
      MPG_TRY(mpg_cuda_launch(call, forward_kernel<T>, (unsigned)t.block_rows, MPG_CUDA_THREADS, 0,
                              t.block, (C *)call->outputs[0].data, (C *)call->outputs[1].data,
                              (C *)call->outputs[2].data));
    }
  return MPG_OK;
}

template <class T>
mpg_status backward(const mpg_kernel_call *call) {
  typedef mpg_compute_t<T> C;
  const mpg_linear_cross_entropy_backward_params *p =
      (const mpg_linear_cross_entropy_backward_params *)call->params;
  job<T> t(call, 1, 6, p->ignore_index, p->z_loss, p->softcap);
  T *grads[3] = {};
  for (int i = 0, out = 0; i < 3; i++)
    if (p->gradients >> i & 1) {
      const mpg_view *view = &call->outputs[out++];
      grads[i] = (T *)view->data;
      if (t.rows == 0) MPG_TRY(mpg_cuda_zero(call, view));
    }
  if (t.rows == 0) return MPG_OK;
  memory m = {};
  T *slopes = NULL;
  C *data_grad = NULL, *weight_grad = NULL, *bias_grad = NULL;
  for (int pass = 0; pass < 2; pass++) { /* 0 adds up sizes, 1 sets addresses */
    if (pass) MPG_TRY(m.allocate(call));
    int64_t most = t.most_rows() * t.most_classes();
    t.block.scores = m.take<C>(most);
    slopes = job<T>::NARROW ? m.take<T>(most) : (T *)t.block.scores;
    if (grads[0]) data_grad = job<T>::NARROW ? m.take<C>(t.rows * t.units) : (C *)grads[0];
    if (grads[1] && job<T>::NARROW) weight_grad = m.take<C>(t.most_classes() * t.units);
    if (grads[2]) bias_grad = m.take<C>(t.most_classes());
  }
  for (int64_t first = 0; first < t.classes; first += CLASSES) {
    for (int64_t row = 0; row < t.rows; row += ROWS) {
      t.start(row, first);
      int n = t.block.n;
      if (grads[1] && !job<T>::NARROW) weight_grad = (C *)(grads[1] + first * t.units);
      MPG_TRY(t.scores());
      MPG_TRY(mpg_cuda_launch(call, backward_kernel<T>, (unsigned)t.block_rows, MPG_CUDA_THREADS, 0,
                              t.block, (const C *)call->inputs[0].data,
                              (const C *)call->inputs[4].data, (const C *)call->inputs[5].data,
                              slopes));
      if (grads[0])
        MPG_TRY(t.multiply(false, false, t.block_rows, t.units, n, slopes, n,
                           t.weight + first * t.units, data_grad + row * t.units, t.units,
                           first > 0));
      if (grads[1])
        MPG_TRY(t.multiply(true, false, n, t.units, t.block_rows, slopes, n, t.data + row * t.units,
                           weight_grad, t.units, row > 0));
      if (grads[2])
        MPG_TRY(mpg_cuda_launch(call, bias_kernel<T>, mpg_cuda_blocks(n, COLUMNS), MPG_CUDA_THREADS,
                                0, (const T *)slopes, bias_grad, (int)t.block_rows, n, row == 0));
    }
    if (grads[1] && job<T>::NARROW)
      MPG_TRY(narrow(call, weight_grad, grads[1] + first * t.units, t.block.n * t.units));
    if (grads[2])
      MPG_TRY(mpg_cuda_launch(call, narrow_kernel<T>, mpg_cuda_blocks(t.block.n), MPG_CUDA_THREADS,
                              0, (const C *)bias_grad, grads[2] + first, (int64_t)t.block.n));
  }
  return grads[0] ? narrow(call, data_grad, grads[0], t.rows * t.units) : MPG_OK;
}

} // namespace

mpg_status mpg_cuda_linear_cross_entropy(const mpg_kernel_call *call) {
  MPG_CUDA_FLOAT_DTYPE(call->inputs[0].desc.dtype, T, return forward<T>(call));
  return MPG_OK;
}
mpg_status mpg_cuda_linear_cross_entropy_backward(const mpg_kernel_call *call) {
  MPG_CUDA_FLOAT_DTYPE(call->inputs[1].desc.dtype, T, return backward<T>(call));
  return MPG_OK;
}
