/* Draws of tokens from logits, in float. A request is one unit of work.
 *
 * top_k and top_p keep a set of most probable tokens: all tokens above a limit, and the first ones
 * of those at the limit. The limit is found by partitioning the weights as quickselect does, so
 * nothing is sorted. */
#include <math.h>
#include <omp.h>
#include <string.h>

#include "base/memory.h"
#include "base/philox.h"
#include "kernels/common/vector_math.h"
#include "kernels/cpu/convert.h"

typedef struct sampling {
  const mpg_kernel_call *call;
  const mpg_sample_tokens_params *params;
  int64_t tokens, history; /* sizes */
  char *scratch;
  size_t scratch_bytes; /* per thread */
} sampling;

/* Tokens that remain: those with a weight above `weight`, and the first `ties` with this weight. */
typedef struct limit {
  float weight;
  int64_t ties;
} limit;

static double measure(const float *w, int64_t n, bool mass) {
  if (!mass) return (double)n;
  double sum = 0;
  for (int64_t i = 0; i < n; i++) sum += (double)w[i];
  return sum;
}

static float median(float a, float b, float c) {
  return a < b ? (b < c ? b : a < c ? c : a) : (a < c ? a : b < c ? c : b);
}

/* Moves the weights above the pivot to the front and those below it to the back. */
static void partition(float *w, int64_t n, float pivot, int64_t *above, int64_t *upto) {
  int64_t i = 0, low = 0, high = n;
  while (i < high) {
    float v = w[i];
    if (v > pivot) {
      w[i++] = w[low];
      w[low++] = v;
    } else if (v < pivot) {
      w[i] = w[--high];
      w[high] = v;
    } else {
      i++;
    }
  }
  *above = low;
  *upto = high;
}

/* Finds the smallest set of the largest weights whose number (or sum, for `mass`) is at least
 * `goal`. Reorders w. */
static limit find_limit(float *w, int64_t n, double goal, bool mass) {
  limit found = {0, n};
  while (n) {
    int64_t above, upto;
    float pivot = median(w[0], w[n / 2], w[n - 1]);
    partition(w, n, pivot, &above, &upto);
    double greater = measure(w, above, mass);
    if (above && greater >= goal) {
      n = above;
      continue;
    }
    double equal = mass ? (double)pivot * (double)(upto - above) : (double)(upto - above);
    double left = goal - greater, each = mass ? (double)pivot : 1;
    if (equal >= left || upto == n) {
      double ties = each > 0 ? ceil(left / each) : 0;
      found.weight = pivot;
      found.ties = ties<1 ? 1 : ties>(double)(upto - above) ? upto - above : (int64_t)ties;
      return found;
    }
    goal = left - equal;
    w += upto;
    n -= upto;
  }
  return found;
}

/* Sets the weights that the limit excludes to 0. */
static void apply_limit(float *w, int64_t n, limit at) {
  for (int64_t i = 0; i < n; i++) {
    if (w[i] > at.weight || (w[i] == at.weight && at.ties-- > 0)) continue;
    w[i] = 0;
  }
}

static void penalize(const sampling *s, int64_t request, float *logits, uint8_t *seen) {
  const int32_t *history = (const int32_t *)s->call->inputs[2].data + request * s->history;
  float penalty = (float)s->params->repetition_penalty;
  memset(seen, 0, (size_t)(s->tokens + 7) / 8);
  for (int64_t i = 0; i < s->history; i++) {
    int32_t token = history[i];
    if (token < 0 || token >= s->tokens || seen[token / 8] >> token % 8 & 1) continue;
    seen[token / 8] |= (uint8_t)(1 << token % 8);
    logits[token] = logits[token] > 0 ? logits[token] / penalty : logits[token] * penalty;
  }
}

/* Returns the first index of the largest logit. NaN counts as -infinity. */
static int64_t largest(const float *logits, int64_t n) {
  int64_t best = 0;
  for (int64_t i = 1; i < n; i++)
    if (logits[i] > logits[best] || (logits[best] != logits[best] && logits[i] == logits[i]))
      best = i;
  return best;
}

static void copy_kept(const float *w, int64_t n, float *copy, int64_t *count) {
  *count = 0;
  for (int64_t i = 0; i < n; i++)
    if (w[i] > 0) copy[(*count)++] = w[i];
}

static int64_t draw(const sampling *s, int64_t request, float *w, float *copy) {
  const mpg_sample_tokens_params *p = s->params;
  const int64_t *key = (const int64_t *)s->call->inputs[1].data + 2 * request;
  int64_t n = s->tokens, top = largest(w, n), kept, last = top;
  float best = w[top], scale = 1 / (float)p->temperature;
  if (p->temperature == 0 || !(best > -INFINITY) || best == INFINITY) return top;
  MPG_INDEPENDENT for (int64_t i = 0; i < n; i++) {
    float e = mpg_expf((w[i] - best) * scale);
    w[i] = e == e ? e : 0;
  }
  if (p->top_k && p->top_k < n) {
    copy_kept(w, n, copy, &kept);
    if (p->top_k < kept) apply_limit(w, n, find_limit(copy, kept, (double)p->top_k, false));
  }
  if (p->top_p < 1) {
    copy_kept(w, n, copy, &kept);
    double total = measure(copy, kept, true);
    apply_limit(w, n, find_limit(copy, kept, total * p->top_p, true));
  }
  if (p->min_p > 0)
    for (int64_t i = 0; i < n; i++)
      if (w[i] < (float)p->min_p) w[i] = 0;
  double total = measure(w, n, true), sum = 0;
  mpg_philox_block words = mpg_philox((uint64_t)key[0], (uint64_t)key[1], 0);
  double target = mpg_philox_uniform_double(words.value[0], words.value[1]) * total;
  for (int64_t i = 0; i < n; i++) {
    if (w[i] == 0) continue;
    sum += (double)w[i];
    last = i;
    if (sum > target) break;
  }
  return last;
}

static void sample_rows(void *context, int64_t begin, int64_t end) {
  const sampling *s = context;
  const mpg_view *logits = &s->call->inputs[0];
  size_t row = mpg_align_up((size_t)s->tokens * sizeof(float), 64);
  char *scratch = s->scratch + (size_t)omp_get_thread_num() * s->scratch_bytes;
  float *w = (float *)(void *)scratch, *copy = (float *)(void *)(scratch + row);
  for (int64_t r = begin; r < end; r++) {
    mpg_cpu_load_all(MPG_COMPUTE_F32, logits->desc.dtype, logits->data, r * s->tokens, s->tokens,
                     w);
    if (s->history) penalize(s, r, w, (uint8_t *)scratch + 2 * row);
    ((int32_t *)s->call->outputs[0].data)[r] = (int32_t)draw(s, r, w, copy);
  }
}

mpg_status mpg_cpu_sample_tokens(const mpg_kernel_call *call) {
  const mpg_shape *shape = &call->inputs[0].desc.shape;
  sampling s = {.call = call, .params = call->params, .tokens = shape->dims[1]};
  if (call->num_inputs > 2 && s.params->repetition_penalty != 1)
    s.history = call->inputs[2].desc.shape.dims[1];
  size_t row = mpg_align_up((size_t)s.tokens * sizeof(float), 64);
  s.scratch_bytes = mpg_cpu_buffer_step(2 * row + (size_t)s.tokens / 8 + 1);
  s.scratch = mpg_device_scratch(call->device, s.scratch_bytes * (size_t)call->num_threads);
  if (!s.scratch) return MPG_DEVICE_OUT_OF_MEMORY;
  mpg_cpu_parallel_for(call, shape->dims[0], 16384 / (s.tokens + 1) + 1, sample_rows, &s);
  return MPG_OK;
}
