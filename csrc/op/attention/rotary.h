/* Geometry and frequencies of rotary position embeddings, for inference and the kernels of all
 * backends. Plain values; any thread. */
#ifndef MPG_OP_LAYERS_ROTARY_H
#define MPG_OP_LAYERS_ROTARY_H

#include "op/op.h"

enum { MPG_ROTARY_MOST_PAIRS = 256 };

typedef struct mpg_rotary {
  int64_t batch, time, heads, size; /* size: features of a head */
  int64_t by_batch, by_time, by_head;
  int64_t positions_by_batch; /* 0 if all entries of the batch share the positions */
  int pairs;
  bool adjacent;                            /* style 'pairs' */
  float frequencies[MPG_ROTARY_MOST_PAIRS]; /* angle per position */
  double scale;                             /* factor of the results */
} mpg_rotary;

/* Fills *rotary for data and positions (NULL if not given). The params must have passed
 * inference. */
void mpg_rotary_make(const mpg_rotary_params *p, const mpg_shape *data, const mpg_shape *positions,
                     mpg_rotary *rotary);

#endif
