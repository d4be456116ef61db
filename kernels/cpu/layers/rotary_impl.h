/* Rotary position embedding for one dtype, an implementation for float_instances.h. */

#define rotary_table_T NAME(rotary_table)
#define rotary_rows_T NAME(rotary_rows)
#define rotate_T NAME(rotate)

/* Fills rows [begin, end) of the table. */
static void rotary_table_T(void *context, int64_t begin, int64_t end) {
  const rotation *t = context;
  int pairs = t->shape.pairs;
  for (int64_t row = begin; row < end; row++) {
    A *cosines = (A *)(void *)t->table + row * 2 * pairs, *sines = cosines + pairs;
    double position = position_of(t, row), sine = t->shape.scale * t->direction;
    if (fabs(position) * t->fastest < MPG_DOUBLE_TRIG_LIMIT) {
      MPG_INDEPENDENT for (int i = 0; i < pairs; i++) {
        double angle = position * (double)t->shape.frequencies[i];
        cosines[i] = (A)(mpg_cos_limited(angle) * t->shape.scale);
        sines[i] = (A)(mpg_sin_limited(angle) * sine);
      }
    } else {
      for (int i = 0; i < pairs; i++) {
        double angle = position * (double)t->shape.frequencies[i];
        cosines[i] = (A)(cos(angle) * t->shape.scale);
        sines[i] = (A)(sin(angle) * sine);
      }
    }
  }
}

static void rotate_T(const A *x, A *y, int pairs, bool adjacent, const A *cosines, const A *sines) {
  if (adjacent) {
    MPG_INDEPENDENT for (int i = 0; i < pairs; i++) {
      A first = x[2 * i], second = x[2 * i + 1];
      y[2 * i] = first * cosines[i] - second * sines[i];
      y[2 * i + 1] = second * cosines[i] + first * sines[i];
    }
  } else {
    MPG_INDEPENDENT for (int i = 0; i < pairs; i++) {
      A first = x[i], second = x[i + pairs];
      y[i] = first * cosines[i] - second * sines[i];
      y[i + pairs] = second * cosines[i] + first * sines[i];
    }
  }
}

/* Rotates all heads at positions [begin, end) of (batch, time). */
static void rotary_rows_T(void *context, int64_t begin, int64_t end) {
  const rotation *t = context;
  const mpg_rotary *s = &t->shape;
  int64_t dims = 2 * s->pairs, rest = s->size - dims;
  mpg_block_buffer loaded, stored;
  for (int64_t unit = begin; unit < end; unit++) {
    int64_t b = unit / s->time, time = unit % s->time, row = s->positions_by_batch ? unit : time;
    const A *cosines = (const A *)(const void *)t->table + row * dims;
    for (int64_t h = 0; h < s->heads; h++) {
      int64_t at = b * s->by_batch + time * s->by_time + h * s->by_head;
      const A *x = mpg_cpu_load(COMPUTE, DTYPE, t->x, at, dims, &loaded);
      A *y = mpg_cpu_place(COMPUTE, DTYPE, t->y, at, &stored);
      rotate_T(x, y, s->pairs, s->adjacent, cosines, cosines + s->pairs);
      mpg_cpu_store(COMPUTE, DTYPE, t->y, at, dims, y);
      if (rest)
        memcpy(t->y + (at + dims) * (int64_t)sizeof(S), t->x + (at + dims) * (int64_t)sizeof(S),
               (size_t)rest * sizeof(S));
    }
  }
}

#undef rotary_table_T
#undef rotary_rows_T
#undef rotate_T
