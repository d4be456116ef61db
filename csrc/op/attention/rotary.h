/* Geometry and frequencies of rotary position embeddings, for inference and the kernels of all
 * backends, which include these functions. Any thread may call them. */
#ifndef MPG_OP_ATTENTION_ROTARY_H
#define MPG_OP_ATTENTION_ROTARY_H

#include <math.h>

#include "op/op.h"

/* Values of the parameters style, layout and scaling, in the order of op/defs/attention.def. */
enum { MPG_ROTARY_HALF, MPG_ROTARY_PAIRS };
enum { MPG_ROTARY_BTHD, MPG_ROTARY_BHTD };
enum {
  MPG_ROTARY_NONE,
  MPG_ROTARY_LINEAR,
  MPG_ROTARY_LLAMA3,
  MPG_ROTARY_YARN,
  MPG_ROTARY_LONGROPE
};
enum { MPG_ROTARY_MOST_PAIRS = 256 };

typedef struct mpg_rotary {
  int64_t batch, time, heads, size; /* size: features of a head */
  int64_t start;                    /* the first position, if positions are not given */
  int64_t by_batch, by_time, by_head;
  int64_t positions_by_batch; /* 0 if all entries of the batch share the positions */
  int pairs;
  bool adjacent;                            /* style 'pairs' */
  float frequencies[MPG_ROTARY_MOST_PAIRS]; /* angle per position */
  double scale;                             /* factor of the results */
} mpg_rotary;

/* Returns the angle per position of pair i. */
static inline double mpg_rotary_frequency(const mpg_rotary_params *p, int i, int pairs) {
  double plain = pow(p->base, -(double)i / pairs), length = p->original_length;
  if (p->scaling == MPG_ROTARY_LINEAR) return plain / p->factor;
  if (p->scaling == MPG_ROTARY_LONGROPE) return plain / p->factors.values[i];
  if (p->scaling == MPG_ROTARY_LLAMA3) {
    double waves = length * plain / (2 * M_PI); /* in original_length */
    if (waves < p->low_freq_factor) return plain / p->factor;
    if (waves > p->high_freq_factor) return plain;
    double share = (waves - p->low_freq_factor) / (p->high_freq_factor - p->low_freq_factor);
    return (1 - share) * plain / p->factor + share * plain;
  }
  if (p->scaling == MPG_ROTARY_YARN) {
    /* The (fractional) pairs that turn beta_fast and beta_slow times in original_length. */
    double per_turn = pairs / log(p->base),
           first = per_turn * log(length / (p->beta_fast * 2 * M_PI)),
           last = per_turn * log(length / (p->beta_slow * 2 * M_PI));
    if (p->truncate) first = floor(first), last = ceil(last);
    first = fmax(first, 0), last = fmin(last, 2 * pairs - 1);
    if (first == last) last += 0.001;
    double scaled = fmin(fmax((i - first) / (last - first), 0), 1);
    return plain * (1 - scaled) + plain / p->factor * scaled;
  }
  return plain;
}

static inline double mpg_rotary_factor(const mpg_rotary_params *p) {
  if (p->attention_factor.present) return p->attention_factor.value;
  if (p->factor <= 1) return 1;
  if (p->scaling == MPG_ROTARY_YARN) return 0.1 * log(p->factor) + 1;
  return p->scaling == MPG_ROTARY_LONGROPE ? sqrt(1 + log(p->factor) / log(p->original_length)) : 1;
}

/* Fills *rotary for data and positions (NULL if not given). The params must have passed
 * inference. */
static inline void mpg_rotary_make(const mpg_rotary_params *p, const mpg_shape *data,
                                   const mpg_shape *positions, mpg_rotary *rotary) {
  const int64_t *dims = data->dims;
  bool heads_first = p->layout == MPG_ROTARY_BHTD;
  rotary->batch = dims[0];
  rotary->time = dims[heads_first ? 2 : 1];
  rotary->heads = dims[heads_first ? 1 : 2];
  rotary->size = dims[3];
  rotary->start = p->start;
  rotary->by_batch = dims[1] * dims[2] * dims[3];
  rotary->by_time = heads_first ? dims[3] : dims[2] * dims[3];
  rotary->by_head = heads_first ? dims[2] * dims[3] : dims[3];
  rotary->positions_by_batch = positions && positions->ndim == 2 ? rotary->time : 0;
  rotary->pairs = (int)(p->dims ? p->dims : dims[3]) / 2;
  rotary->adjacent = p->style == MPG_ROTARY_PAIRS;
  rotary->scale = mpg_rotary_factor(p);
  for (int i = 0; i < rotary->pairs; i++)
    rotary->frequencies[i] = (float)mpg_rotary_frequency(p, i, rotary->pairs);
}

#endif
