/* Connectionist temporal classification, in the logarithm and in double.
 *
 * The states of a sample with L labels are blank, label 0, blank, label 1, ..., blank: S = 2 L + 1.
 * alpha[s] is the logarithm of the probability of all ways to be in state s after the frames so
 * far, beta[s] that of all ways to go on from s to the end. A sample is computed by one thread, in
 * order of time; samples are dealt out to as many groups as there are threads, so bits do not
 * depend on these.
 */
#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "kernels/common/real.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/index.h"

typedef struct ctc {
  const mpg_view *data, *label, *frames,
      *labels; /* frames, labels: lengths; NULL: all frames, labels up to the first padding */
  const mpg_view *grad, *out; /* grad NULL: the loss itself */
  int64_t time, batch, classes, length, blank, padding;
  int64_t groups;
  char *scratch;
  size_t scratch_each;
} ctc;

static int64_t frames_of(const ctc *t, int64_t n) {
  return t->frames ? mpg_index_at(t->frames, n) : t->time;
}

static int64_t labels_of(const ctc *t, int64_t n) {
  if (t->labels) return mpg_index_at(t->labels, n);
  int64_t count = 0;
  while (count < t->length && mpg_index_at(t->label, n * t->length + count) != t->padding) count++;
  return count;
}

/* log(exp(a) + exp(b) + exp(c)); NaN where one is. */
static inline double log_sum(double a, double b, double c) {
  double most = a > b ? a : b;
  most = most > c ? most : c;
  if (most == -INFINITY || most != most) return a + b + c;
  return most + log(exp(a - most) + exp(b - most) + exp(c - most));
}

/* The logarithm of the sum of exponentials of a frame's scores. */
static double log_total(const ctc *t, int64_t at) {
  double most = -INFINITY, sum = 0;
  for (int64_t k = 0; k < t->classes; k++) {
    double x = mpg_real_at(t->data, at + k);
    if (!(x <= most)) most = x;
  }
  if (most == -INFINITY) return most;
  for (int64_t k = 0; k < t->classes; k++) sum += exp(mpg_real_at(t->data, at + k) - most);
  return most + log(sum);
}

static inline int64_t class_of(const ctc *t, const int64_t *labels, int64_t s) {
  return s & 1 ? labels[s / 2] : t->blank;
}
/* Whether a label may follow the one before without a blank in between. */
static inline bool skips(const int64_t *labels, int64_t s) {
  return (s & 1) && s >= 3 && labels[s / 2] != labels[s / 2 - 1];
}

/* alpha of one more frame. `before` NULL: the first one. */
static void advance(const ctc *t, const int64_t *labels, int64_t states, int64_t at, double total,
                    const double *before, double *alpha) {
  for (int64_t s = 0; s < states; s++) {
    double here = mpg_real_at(t->data, at + class_of(t, labels, s)) - total;
    if (!before)
      alpha[s] = s < 2 ? here : -INFINITY;
    else
      alpha[s] = here + log_sum(before[s], s > 0 ? before[s - 1] : -INFINITY,
                                skips(labels, s) ? before[s - 2] : -INFINITY);
  }
}

/* How many frames the labels need at least: one each, and one between two that are equal. */
static int64_t needed(const int64_t *labels, int64_t count) {
  int64_t frames = count;
  for (int64_t i = 1; i < count; i++) frames += labels[i] == labels[i - 1];
  return frames;
}

static inline double ended(const double *alpha, int64_t states) {
  return log_sum(alpha[states - 1], states > 1 ? alpha[states - 2] : -INFINITY, -INFINITY);
}

static void sample_loss(const ctc *t, int64_t n, double *scratch) {
  int64_t frames = frames_of(t, n), count = labels_of(t, n), states = 2 * count + 1;
  double *alpha = scratch, *before = alpha + 2 * t->length + 1;
  int64_t *labels = (int64_t *)(void *)(before + 2 * t->length + 1);
  for (int64_t i = 0; i < count; i++) labels[i] = mpg_index_at(t->label, n * t->length + i);
  if (needed(labels, count) > frames || frames == 0) {
    mpg_real_store(t->out, n, 0);
    return;
  }
  for (int64_t f = 0; f < frames; f++) {
    int64_t at = (f * t->batch + n) * t->classes;
    advance(t, labels, states, at, log_total(t, at), f ? before : NULL, alpha);
    double *swap = alpha;
    alpha = before;
    before = swap;
  }
  mpg_real_store(t->out, n, -ended(before, states));
}

/* The gradient of the scores: softmax, less the probability that the frame is in a state of the
 * class, given the labels. */
static void sample_back(const ctc *t, int64_t n, double *scratch) {
  int64_t frames = frames_of(t, n), count = labels_of(t, n), states = 2 * count + 1,
          row = 2 * t->length + 1;
  double *alpha = scratch, *beta = alpha + t->time * row, *after = beta + row,
         *totals = after + row, *shares = totals + t->time;
  int64_t *labels = (int64_t *)(void *)(shares + t->classes);
  double head = mpg_real_at(t->grad, n), likelihood = 0;
  for (int64_t i = 0; i < count; i++) labels[i] = mpg_index_at(t->label, n * t->length + i);
  if (needed(labels, count) > frames) frames = 0;
  for (int64_t f = 0; f < frames; f++) {
    int64_t at = (f * t->batch + n) * t->classes;
    totals[f] = log_total(t, at);
    advance(t, labels, states, at, totals[f], f ? alpha + (f - 1) * row : NULL, alpha + f * row);
  }
  if (frames) likelihood = ended(alpha + (frames - 1) * row, states);
  if (likelihood == -INFINITY) frames = 0; /* no way at all: nothing changes that */
  for (int64_t f = t->time - 1; f >= 0; f--) {
    int64_t at = (f * t->batch + n) * t->classes;
    if (f >= frames) {
      for (int64_t k = 0; k < t->classes; k++) mpg_real_store(t->out, at + k, 0);
      continue;
    }
    memset(shares, 0, (size_t)t->classes * sizeof *shares);
    for (int64_t s = 0; s < states; s++) {
      if (f == frames - 1) {
        beta[s] = s >= states - 2 ? 0 : -INFINITY;
      } else { /* `after` holds the next frame's beta with its own scores */
        beta[s] = log_sum(after[s], s + 1 < states ? after[s + 1] : -INFINITY,
                          s + 2 < states && skips(labels, s + 2) ? after[s + 2] : -INFINITY);
      }
      shares[class_of(t, labels, s)] += exp(alpha[f * row + s] + beta[s] - likelihood);
    }
    for (int64_t s = 0; s < states; s++)
      after[s] = beta[s] + mpg_real_at(t->data, at + class_of(t, labels, s)) - totals[f];
    for (int64_t k = 0; k < t->classes; k++)
      mpg_real_store(t->out, at + k,
                     head * (exp(mpg_real_at(t->data, at + k) - totals[f]) - shares[k]));
  }
}

static void groups(void *context, int64_t begin, int64_t end) {
  const ctc *t = context;
  for (int64_t group = begin; group < end; group++)
    for (int64_t n = group; n < t->batch; n += t->groups) {
      double *scratch = (double *)(void *)(t->scratch + (size_t)group * t->scratch_each);
      if (t->grad)
        sample_back(t, n, scratch);
      else
        sample_loss(t, n, scratch);
    }
}

static mpg_status check(const mpg_kernel_call *call, const ctc *t) {
  for (int64_t n = 0; n < t->batch; n++) {
    int64_t frames = frames_of(t, n), count = labels_of(t, n);
    if (frames < 0 || frames > t->time)
      return mpg_fail(MPG_VALUE_ERROR, "%s: data_lengths[%lld] is %lld, and data has %lld steps",
                      call->op->name, (long long)n, (long long)frames, (long long)t->time);
    if (count < 0 || count > t->length)
      return mpg_fail(MPG_VALUE_ERROR, "%s: label_lengths[%lld] is %lld, and there are %lld labels",
                      call->op->name, (long long)n, (long long)count, (long long)t->length);
    for (int64_t i = 0; i < count; i++) {
      int64_t label = mpg_index_at(t->label, n * t->length + i);
      if (label < 0 || label >= t->classes) /* the blank's own class is taken, as in MXNet */
        return mpg_fail(
            MPG_VALUE_ERROR,
            "%s: label[%lld, %lld] is %lld, and data has %lld classes, of which %lld is the blank",
            call->op->name, (long long)n, (long long)i, (long long)label, (long long)t->classes,
            (long long)t->blank);
    }
  }
  return MPG_OK;
}

static mpg_status run(const mpg_kernel_call *call, int first) {
  enum { FIRST, LAST };
  const mpg_ctc_loss_params *p = call->params;
  const mpg_view *inputs = call->inputs + first;
  const mpg_shape *shape = &inputs[0].desc.shape;
  ctc t = {.data = &inputs[0],
           .label = &inputs[1],
           .frames = p->use_data_lengths ? &inputs[2] : NULL,
           .labels = p->use_label_lengths ? &inputs[2 + p->use_data_lengths] : NULL,
           .grad = first ? &call->inputs[0] : NULL,
           .out = &call->outputs[0],
           .time = shape->dims[0],
           .batch = shape->dims[1],
           .classes = shape->dims[2],
           .length = inputs[1].desc.shape.dims[1]};
  t.blank = p->blank_label == FIRST ? 0 : t.classes - 1;
  t.padding = p->blank_label == FIRST ? 0 : -1;
  if (t.batch == 0) return MPG_OK;
  MPG_TRY(check(call, &t));
  t.groups = t.batch < call->num_threads ? t.batch : call->num_threads;
  size_t row, size, rows = first ? (size_t)t.time + 2 : 2,
                    more = (size_t)t.length + (first ? (size_t)t.time + (size_t)t.classes : 0);
  if (!mpg_size_mul((size_t)t.length, 2, &row) || !mpg_size_mul(row + 1, rows, &size) ||
      !mpg_size_add(size, more + 8, &size) ||
      !mpg_size_mul(size, sizeof(double), &t.scratch_each) ||
      !mpg_size_mul(t.scratch_each = mpg_align_up(t.scratch_each, 64), (size_t)t.groups, &size))
    return mpg_fail(MPG_VALUE_ERROR, "%s: the labels and steps are too many", call->op->name);
  t.scratch = mpg_device_scratch(call->device, size);
  if (!t.scratch) return MPG_DEVICE_OUT_OF_MEMORY;
  mpg_cpu_parallel_for(call, t.groups, 1, groups, &t);
  return MPG_OK;
}

MPG_CPU_KERNEL(ctc_loss) { return run(call, 0); }
MPG_CPU_KERNEL(ctc_loss_back) { return run(call, 1); }
