/* Connectionist temporal classification (CTC), in log space and in double.
 *
 * The states of a sample with L labels are blank, label 0, blank, label 1, ..., blank: S = 2 L + 1.
 * alpha[s] is the log probability of all paths to state s over the frames so far. beta[s] is the
 * log probability of all paths from s to the end. One thread computes each sample, frame by frame,
 * so results do not depend on the number of threads. Samples are divided into one group per thread.
 */
#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "kernels/common/real.h"
#include "kernels/common/vector_math_double.h"
#include "kernels/cpu/convert.h"
#include "kernels/cpu/index.h"

typedef struct ctc {
  /* `frames` and `labels` are sequence lengths. Without `frames`, samples use all frames. Without
   * `labels`, labels end at the first padding. */
  const mpg_view *data, *label, *frames, *labels;
  const mpg_view *grad, *out; /* grad is NULL in the forward pass */
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

/* Returns the minimum number of frames for the labels: one per label, and one blank between equal
 * neighbors. */
static int64_t needed(const int64_t *labels, int64_t count) {
  int64_t frames = count;
  for (int64_t i = 1; i < count; i++) frames += labels[i] == labels[i - 1];
  return frames;
}

/* Returns the number of doubles in a row of states. STATES_PAD elements on each side hold -inf, so
 * that transitions need no bounds checks. */
enum { STATES_PAD = 2 };
static int64_t row_of(int64_t labels) { return 2 * labels + 1 + 2 * STATES_PAD; }

/* One sample. The arrays are parts of its group's scratch. */
typedef struct sample {
  const ctc *t;
  int64_t n, frames, states;
  int64_t *classes;        /* class of each state */
  double *skip;            /* 0 if a state may follow the state two before it, else -inf; padded */
  double *here;            /* log probability of each state in the current frame alone */
  double *scores, *powers; /* scores of the classes in the current frame, and their exponentials */
} sample;

/* Returns the first state of the row at *scratch, and moves *scratch past the row. */
static double *take_row(double **scratch, const ctc *t) {
  double *row = *scratch + STATES_PAD;
  *scratch += row_of(t->length);
  return row;
}
static double *take(double **scratch, int64_t count) {
  double *found = *scratch;
  *scratch += count;
  return found;
}

/* Sets *bytes to the size of the scratch for begin_sample plus `rows` more rows of states. Returns
 * false on overflow. */
static bool scratch_size(const ctc *t, size_t rows, size_t *bytes) {
  size_t row = (size_t)row_of(t->length), more;
  return mpg_size_mul(rows + 3, row, bytes) &&
         mpg_size_mul((size_t)t->classes, t->grad ? 3 : 2, &more) &&
         mpg_size_add(*bytes, more, bytes) &&
         mpg_size_add(*bytes, t->grad ? (size_t)t->time : 0, bytes) &&
         mpg_size_mul(*bytes, sizeof(double), bytes);
}

static void pad(double *row, int64_t states) {
  for (int i = 1; i <= STATES_PAD; i++) row[-i] = row[states + i - 1] = -INFINITY;
}

static void begin_sample(const ctc *t, int64_t n, double **scratch, sample *s) {
  int64_t count = labels_of(t, n);
  *s = (sample){.t = t, .n = n, .frames = frames_of(t, n), .states = 2 * count + 1};
  s->classes = (int64_t *)(void *)take_row(scratch, t);
  s->skip = take_row(scratch, t);
  s->here = take_row(scratch, t);
  s->scores = take(scratch, t->classes);
  s->powers = take(scratch, t->classes);
  /* Stores the labels at the end of `classes`. The loop below fills `classes` from the start, so it
   * overwrites only labels that it has already read. */
  int64_t *labels = s->classes + s->states - count;
  for (int64_t i = 0; i < count; i++) labels[i] = mpg_index_at(t->label, n * t->length + i);
  if (needed(labels, count) > s->frames) s->frames = 0;
  pad(s->skip, s->states);
  for (int64_t i = 0; i < count; i++) {
    int64_t label = labels[i];
    s->skip[2 * i] = -INFINITY;
    s->skip[2 * i + 1] = i && label != s->classes[2 * i - 1] ? 0 : -INFINITY;
    s->classes[2 * i] = t->blank;
    s->classes[2 * i + 1] = label;
  }
  s->classes[s->states - 1] = t->blank;
  s->skip[s->states - 1] = -INFINITY;
}

/* Loads the scores of frame f. Returns their log-sum-exp. */
static double load_scores(sample *s, int64_t f) {
  const ctc *t = s->t;
  double most = -INFINITY, sum = 0;
  mpg_cpu_load_all(MPG_COMPUTE_F64, t->data->desc.dtype, t->data->data,
                   (f * t->batch + s->n) * t->classes, t->classes, s->scores);
  for (int64_t k = 0; k < t->classes; k++)
    if (!(s->scores[k] <= most)) most = s->scores[k];
  if (most == -INFINITY) return most;
  MPG_INDEPENDENT
  for (int64_t k = 0; k < t->classes; k++) s->powers[k] = mpg_exp(s->scores[k] - most);
  for (int64_t k = 0; k < t->classes; k++) sum += s->powers[k];
  return most + log(sum);
}

static void load_states(sample *s, double total) {
  for (int64_t k = 0; k < s->states; k++) s->here[k] = s->scores[s->classes[k]] - total;
}

/* Returns the log-sum-exp of a, b and c: -inf if all three are -inf, NaN if one is NaN. */
MPG_INLINE double log_sum(double a, double b, double c) {
  double most = a > b ? a : b;
  most = most > c ? most : c;
  most = most == -INFINITY ? 0 : most;
  return most + mpg_log(mpg_exp(a - most) + mpg_exp(b - most) + mpg_exp(c - most));
}

/* Computes alpha of the loaded frame. `before` is the previous frame's alpha, or NULL for the first
 * frame. */
static void advance(const sample *s, const double *before, double *alpha) {
  const double *here = s->here, *skip = s->skip;
  pad(alpha, s->states);
  if (!before) {
    for (int64_t k = 0; k < s->states; k++) alpha[k] = k < 2 ? here[k] : -INFINITY;
    return;
  }
  MPG_INDEPENDENT
  for (int64_t k = 0; k < s->states; k++)
    alpha[k] = here[k] + log_sum(before[k], before[k - 1], before[k - 2] + skip[k]);
}

/* Computes beta of a frame. after[s] is beta[s] of the next frame plus the log probability of state
 * s in the next frame. */
static void retreat(const sample *s, const double *after, double *beta) {
  const double *skip = s->skip;
  MPG_INDEPENDENT
  for (int64_t k = 0; k < s->states; k++)
    beta[k] = log_sum(after[k], after[k + 1], after[k + 2] + skip[k + 2]);
}

static double ended(const double *alpha, int64_t states) {
  return log_sum(alpha[states - 1], alpha[states - 2], -INFINITY);
}

static void sample_loss(const ctc *t, int64_t n, double *scratch) {
  sample s;
  begin_sample(t, n, &scratch, &s);
  double *alpha = take_row(&scratch, t), *before = take_row(&scratch, t);
  if (s.frames == 0) {
    mpg_real_store(t->out, n, 0);
    return;
  }
  for (int64_t f = 0; f < s.frames; f++) {
    load_states(&s, load_scores(&s, f));
    advance(&s, f ? before : NULL, alpha);
    double *swap = alpha;
    alpha = before;
    before = swap;
  }
  mpg_real_store(t->out, n, -ended(before, s.states));
}

/* Computes the gradient of the scores: softmax minus the probability that the frame is in a state
 * of the class, given the labels. */
static void sample_back(const ctc *t, int64_t n, double *scratch) {
  sample s;
  begin_sample(t, n, &scratch, &s);
  double *beta = take_row(&scratch, t), *after = take_row(&scratch, t),
         *totals = take(&scratch, t->time), *shares = take(&scratch, t->classes);
  double *alphas = scratch + STATES_PAD, head = mpg_real_at(t->grad, n), likelihood = 0;
  int64_t row = row_of(t->length);
  for (int64_t f = 0; f < s.frames; f++) {
    load_states(&s, totals[f] = load_scores(&s, f));
    advance(&s, f ? alphas + (f - 1) * row : NULL, alphas + f * row);
  }
  if (s.frames) likelihood = ended(alphas + (s.frames - 1) * row, s.states);
  if (likelihood == -INFINITY) s.frames = 0; /* no path has a nonzero probability */
  pad(after, s.states);
  for (int64_t f = t->time - 1; f >= 0; f--) {
    int64_t at = (f * t->batch + n) * t->classes;
    if (f >= s.frames) {
      for (int64_t k = 0; k < t->classes; k++) mpg_real_store(t->out, at + k, 0);
      continue;
    }
    if (f == s.frames - 1)
      for (int64_t k = 0; k < s.states; k++) beta[k] = k >= s.states - 2 ? 0 : -INFINITY;
    else
      retreat(&s, after, beta);
    const double *alpha = alphas + f * row;
    double *posterior = after; /* `after` is not needed until it is filled below */
    MPG_INDEPENDENT
    for (int64_t k = 0; k < s.states; k++) posterior[k] = mpg_exp(alpha[k] + beta[k] - likelihood);
    memset(shares, 0, (size_t)t->classes * sizeof *shares);
    for (int64_t k = 0; k < s.states; k++) shares[s.classes[k]] += posterior[k];
    mpg_cpu_load_all(MPG_COMPUTE_F64, t->data->desc.dtype, t->data->data, at, t->classes, s.scores);
    load_states(&s, totals[f]);
    for (int64_t k = 0; k < s.states; k++) after[k] = beta[k] + s.here[k];
    MPG_INDEPENDENT
    for (int64_t k = 0; k < t->classes; k++) s.powers[k] = mpg_exp(s.scores[k] - totals[f]);
    for (int64_t k = 0; k < t->classes; k++)
      mpg_real_store(t->out, at + k, head * (s.powers[k] - shares[k]));
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
      return mpg_fail(MPG_VALUE_ERROR,
                      "%s: data_lengths[%lld] is %lld, but data has only %lld steps",
                      call->op->name, (long long)n, (long long)frames, (long long)t->time);
    if (count < 0 || count > t->length)
      return mpg_fail(MPG_VALUE_ERROR,
                      "%s: label_lengths[%lld] is %lld, but there are only %lld labels",
                      call->op->name, (long long)n, (long long)count, (long long)t->length);
    for (int64_t i = 0; i < count; i++) {
      int64_t label = mpg_index_at(t->label, n * t->length + i);
      if (label < 0 || label >= t->classes) /* accepts the blank's own class, as in MXNet */
        return mpg_fail(
            MPG_VALUE_ERROR,
            "%s: label[%lld, %lld] is %lld, but data has %lld classes, of which %lld is the blank",
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
  size_t size;
  if (!scratch_size(&t, first ? (size_t)t.time + 2 : 2, &t.scratch_each) ||
      !mpg_size_mul(t.scratch_each = mpg_align_up(t.scratch_each, 64), (size_t)t.groups, &size))
    return mpg_fail(MPG_VALUE_ERROR, "%s: there are too many labels and steps", call->op->name);
  t.scratch = mpg_device_scratch(call->device, size);
  if (!t.scratch) return MPG_DEVICE_OUT_OF_MEMORY;
  mpg_cpu_parallel_for(call, t.groups, 1, groups, &t);
  return MPG_OK;
}

mpg_status mpg_cpu_ctc_loss(const mpg_kernel_call *call) { return run(call, 0); }
mpg_status mpg_cpu_ctc_loss_back(const mpg_kernel_call *call) { return run(call, 1); }
