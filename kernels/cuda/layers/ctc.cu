/* Connectionist temporal classification (CTC); kernels/cpu/layers/ctc.c explains the algorithm. A
 * first kernel computes each frame's log-sum-exp, one warp per frame. Then each sample is processed
 * by a block, which iterates over the frames and whose threads share the states. All sums are in
 * double. An out-of-range length or label fails a device-side assertion and is treated as the
 * nearest valid one. */
#include "kernels/cuda/access.h"
#include "kernels/cuda/runtime/device_assert.h"

namespace {

struct ctc {
  /* `frames` and `labels` are the samples' lengths. If frames.data is NULL, all frames are used. If
   * labels.data is NULL, a sample's labels end before the first label that equals `padding`. */
  mpg_untyped data, label, frames, labels, grad, out;
  int64_t time, batch, classes, length, blank, padding;
  double *totals, *scratch; /* totals: log-sum-exp per frame; scratch: `each` doubles per sample */
  int64_t each;
};

__device__ int64_t frames_of(const ctc &t, int64_t n) {
  return t.frames.data ? mpg_cuda_index_at(t.frames, n) : t.time;
}
__device__ int64_t labels_of(const ctc &t, int64_t n) {
  if (t.labels.data) return mpg_cuda_index_at(t.labels, n);
  int64_t count = 0;
  while (count < t.length && mpg_cuda_index_at(t.label, n * t.length + count) != t.padding) count++;
  return count;
}
__device__ int64_t within(int64_t value, int64_t most) {
  return value < 0 ? 0 : value > most ? most : value;
}

/* Returns log(exp(a) + exp(b) + exp(c)), or NaN if any argument is NaN. */
__device__ double log_sum(double a, double b, double c) {
  double most = a > b ? a : b;
  most = most > c ? most : c;
  if (most == -INFINITY || most != most) return a + b + c;
  return most + log(exp(a - most) + exp(b - most) + exp(c - most));
}

/* Computes the log-sum-exp of each frame's scores. */
__global__ void totals_kernel(ctc t) {
  int64_t frame = MPG_CUDA_INDEX >> 5;
  int lane = threadIdx.x & 31;
  if (frame >= t.time * t.batch) return; /* uniform across the warp */
  double most = -INFINITY, sum = 0;
  for (int64_t k = lane; k < t.classes; k += 32)
    most = mpg_larger()(most, t.data.load<double>(frame * t.classes + k));
  most = mpg_warp_reduce(most, mpg_larger());
  for (int64_t k = lane; k < t.classes && most != -INFINITY; k += 32)
    sum += exp(t.data.load<double>(frame * t.classes + k) - most);
  sum = mpg_warp_reduce(sum, mpg_plus());
  if (lane == 0) t.totals[frame] = most == -INFINITY ? most : most + log(sum);
}

/* Records the first sample that has a length or label out of range. */
__global__ void check_kernel(ctc t, unsigned long long *bad) {
  int64_t n = MPG_CUDA_INDEX;
  if (n >= t.batch) return;
  int64_t frames = frames_of(t, n), count = labels_of(t, n);
  bool wrong = frames < 0 || frames > t.time || count < 0 || count > t.length;
  for (int64_t i = 0; i < count && !wrong; i++) {
    int64_t label = mpg_cuda_index_at(t.label, n * t.length + i);
    wrong = label < 0 || label >= t.classes;
  }
  if (wrong) atomicMin(bad, (unsigned long long)n);
}

__global__ void refuse_kernel(ctc t, const unsigned long long *bad, mpg_cuda_assert of_frames,
                              mpg_cuda_assert of_labels, mpg_cuda_assert of_label) {
  if (*bad == MPG_CUDA_NONE) return;
  int64_t n = (int64_t)*bad, frames = frames_of(t, n), count = labels_of(t, n);
  if (frames < 0 || frames > t.time) return of_frames.raise(n, frames, t.time);
  if (count < 0 || count > t.length) return of_labels.raise(n, count, t.length);
  for (int64_t i = 0; i < count; i++) {
    int64_t label = mpg_cuda_index_at(t.label, n * t.length + i);
    if (label < 0 || label >= t.classes) return of_label.raise(n, i, label, t.classes);
  }
}

/* The sample that a block processes. `alpha` holds the forward variables, in one buffer per frame
 * for backward, or in two alternating buffers for forward. */
struct sample {
  int64_t n, frames, count, states, row;
  double *alpha, *beta, *after, *shares;
  /* Arrays indexed by state. `next` links the states of each class: it holds the next state of the
   * same class, or -1. For states that are not the first of their class, -3 - next is stored
   * instead, which is less than -1. */
  int64_t *classes, *next;
};

__device__ sample sample_of(const ctc &t, bool back) {
  sample s = {};
  s.n = blockIdx.x;
  s.frames = within(frames_of(t, s.n), t.time), s.count = within(labels_of(t, s.n), t.length);
  s.states = 2 * s.count + 1, s.row = 2 * t.length + 1;
  s.alpha = t.scratch + s.n * t.each;
  s.beta = s.alpha + (back ? t.time : 2) * s.row;
  s.after = s.beta + s.row;
  s.shares = s.after + s.row;
  s.classes = (int64_t *)(s.shares + s.row);
  s.next = s.classes + s.row;
  for (int64_t i = threadIdx.x; i < s.states; i += blockDim.x)
    s.classes[i] =
        i & 1 ? within(mpg_cuda_index_at(t.label, s.n * t.length + i / 2), t.classes - 1) : t.blank;
  __syncthreads();
  int64_t needed = s.count; /* one frame per label, and one per blank between equal labels */
  for (int64_t i = 1; i < s.count; i++) needed += s.classes[2 * i + 1] == s.classes[2 * i - 1];
  if (needed > s.frames) s.frames = 0;
  return s;
}
/* True if state s may directly follow state s - 2, without the blank in between: both are labels,
 * and they differ. */
__device__ bool skips(const sample &x, int64_t s) {
  return (s & 1) && s >= 3 && x.classes[s] != x.classes[s - 2];
}

__device__ void advance(const ctc &t, const sample &x, int64_t f, const double *before,
                        double *alpha) {
  int64_t frame = f * t.batch + x.n;
  for (int64_t s = threadIdx.x; s < x.states; s += blockDim.x) {
    double here = t.data.load<double>(frame * t.classes + x.classes[s]) - t.totals[frame];
    if (f == 0)
      alpha[s] = s < 2 ? here : -INFINITY;
    else
      alpha[s] = here + log_sum(before[s], s > 0 ? before[s - 1] : -INFINITY,
                                skips(x, s) ? before[s - 2] : -INFINITY);
  }
  __syncthreads();
}
__device__ double ended(const double *alpha, int64_t states) {
  return log_sum(alpha[states - 1], states > 1 ? alpha[states - 2] : -INFINITY, -INFINITY);
}

__global__ void loss_kernel(ctc t) {
  sample x = sample_of(t, false);
  for (int64_t f = 0; f < x.frames; f++)
    advance(t, x, f, x.alpha + (f + 1) % 2 * x.row, x.alpha + f % 2 * x.row);
  if (threadIdx.x == 0)
    t.out.store(x.n, x.frames ? -ended(x.alpha + (x.frames - 1) % 2 * x.row, x.states) : 0.0);
}

/* Computes the gradient of the scores. For each class, it is the frame's softmax minus the
 * posterior probability, given the labels, that the frame is in a state of that class. */
__global__ void back_kernel(ctc t) {
  sample x = sample_of(t, true);
  double head = t.grad.load<double>(x.n), likelihood = 0;
  /* Links the states of each class, so that one thread can add their probabilities in order. */
  for (int64_t s = threadIdx.x; s < x.states; s += blockDim.x) {
    int64_t next = -1;
    for (int64_t k = x.states - 1; k > s; k--)
      if (x.classes[k] == x.classes[s]) next = k;
    for (int64_t k = 0; k < s; k++)
      if (x.classes[k] == x.classes[s]) {
        next = -3 - next;
        break;
      }
    x.next[s] = next;
  }
  for (int64_t f = 0; f < x.frames; f++)
    advance(t, x, f, x.alpha + (f - 1) * x.row, x.alpha + f * x.row);
  __syncthreads();
  if (x.frames) likelihood = ended(x.alpha + (x.frames - 1) * x.row, x.states);
  int64_t frames = likelihood == -INFINITY ? 0 : x.frames; /* no path: the gradient is 0 */
  for (int64_t f = t.time - 1; f >= 0; f--) {
    int64_t frame = f * t.batch + x.n, at = frame * t.classes;
    if (f >= frames) {
      for (int64_t k = threadIdx.x; k < t.classes; k += blockDim.x) t.out.store(at + k, 0.0);
      continue;
    }
    /* `after` holds the next frame's beta plus the log-probabilities of its states. */
    for (int64_t s = threadIdx.x; s < x.states; s += blockDim.x) {
      if (f == frames - 1)
        x.beta[s] = s >= x.states - 2 ? 0 : -INFINITY;
      else
        x.beta[s] = log_sum(x.after[s], s + 1 < x.states ? x.after[s + 1] : -INFINITY,
                            s + 2 < x.states && skips(x, s + 2) ? x.after[s + 2] : -INFINITY);
      x.shares[s] = exp(x.alpha[f * x.row + s] + x.beta[s] - likelihood);
    }
    __syncthreads();
    for (int64_t s = threadIdx.x; s < x.states; s += blockDim.x)
      x.after[s] = x.beta[s] + t.data.load<double>(at + x.classes[s]) - t.totals[frame];
    for (int64_t k = threadIdx.x; k < t.classes; k += blockDim.x)
      t.out.store(at + k, head * exp(t.data.load<double>(at + k) - t.totals[frame]));
    __syncthreads();
    for (int64_t s = threadIdx.x; s < x.states; s += blockDim.x) {
      if (x.next[s] < -1) continue;
      double share = 0;
      for (int64_t k = s; k >= 0; k = x.next[k] < -1 ? -3 - x.next[k] : x.next[k])
        share += x.shares[k];
      t.out.store(at + x.classes[s],
                  head * (exp(t.data.load<double>(at + x.classes[s]) - t.totals[frame]) - share));
    }
    __syncthreads();
  }
}

mpg_status run(const mpg_kernel_call *call, int first) {
  enum { FIRST, LAST };
  const mpg_ctc_loss_params *p = (const mpg_ctc_loss_params *)call->params;
  const mpg_view *inputs = call->inputs + first;
  const mpg_shape *shape = &inputs[0].desc.shape;
  ctc t = {};
  t.data = mpg_untyped_view(&inputs[0]), t.label = mpg_untyped_view(&inputs[1]),
  t.out = mpg_untyped_view(&call->outputs[0]);
  if (p->use_data_lengths) t.frames = mpg_untyped_view(&inputs[2]);
  if (p->use_label_lengths) t.labels = mpg_untyped_view(&inputs[2 + p->use_data_lengths]);
  if (first) t.grad = mpg_untyped_view(&call->inputs[0]);
  t.time = shape->dims[0], t.batch = shape->dims[1], t.classes = shape->dims[2],
  t.length = inputs[1].desc.shape.dims[1];
  t.blank = p->blank_label == FIRST ? 0 : t.classes - 1;
  t.padding = p->blank_label == FIRST ? 0 : -1;
  if (t.batch == 0) return MPG_OK;
  size_t row = 2 * (size_t)t.length + 1, each, bytes, frames = (size_t)t.time * (size_t)t.batch;
  if (!mpg_size_mul(row, (first ? (size_t)t.time : 2) + 5, &each) ||
      !mpg_size_mul(each, (size_t)t.batch * sizeof(double), &bytes) ||
      !mpg_size_add(bytes, frames * sizeof(double) + 64, &bytes))
    return mpg_fail(MPG_VALUE_ERROR, "%s: there are too many labels and steps", call->op->name);
  char *memory = (char *)mpg_device_scratch(call->device, bytes);
  if (!memory) return MPG_DEVICE_OUT_OF_MEMORY;
  unsigned long long *bad = (unsigned long long *)memory;
  t.totals = (double *)(memory + 64);
  t.scratch = t.totals + frames;
  t.each = (int64_t)each;
  mpg_cuda_assert of_frames, of_labels, of_label;
  MPG_TRY(mpg_cuda_assert_make(call, MPG_VALUE_ERROR,
                               "%s: data_lengths[%lld] is %lld, but data has only %lld steps",
                               &of_frames));
  MPG_TRY(mpg_cuda_assert_make(call, MPG_VALUE_ERROR,
                               "%s: label_lengths[%lld] is %lld, but there are only %lld labels",
                               &of_labels));
  MPG_TRY(mpg_cuda_assert_make(
      call, MPG_VALUE_ERROR,
      p->blank_label == FIRST
          ? "%s: label[%lld, %lld] is %lld, but data has %lld classes, of which 0 is the blank"
          : "%s: label[%lld, %lld] is %lld, but data has %lld classes, of which the last is the "
            "blank",
      &of_label));
  MPG_TRY(mpg_cuda_nothing_wrong(call, bad));
  MPG_TRY(
      mpg_cuda_launch(call, check_kernel, mpg_cuda_blocks(t.batch), MPG_CUDA_THREADS, 0, t, bad));
  MPG_TRY(mpg_cuda_launch(call, refuse_kernel, 1, 1, 0, t, (const unsigned long long *)bad,
                          of_frames, of_labels, of_label));
  MPG_TRY(mpg_cuda_launch(call, totals_kernel,
                          mpg_cuda_blocks((int64_t)frames, MPG_CUDA_THREADS / 32), MPG_CUDA_THREADS,
                          0, t));
  if (first) return mpg_cuda_launch(call, back_kernel, mpg_cuda_blocks(t.batch, 1), 128, 0, t);
  return mpg_cuda_launch(call, loss_kernel, mpg_cuda_blocks(t.batch, 1), 128, 0, t);
}

} // namespace

mpg_status mpg_cuda_ctc_loss(const mpg_kernel_call *call) { return run(call, 0); }
mpg_status mpg_cuda_ctc_loss_back(const mpg_kernel_call *call) { return run(call, 1); }
