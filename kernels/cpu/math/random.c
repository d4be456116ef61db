/* Random numbers.
 *
 * Every backend implements this scheme. Philox (base/philox.h) with a call's key (seed, call) gives
 * a stream of 32-bit words: word w is value[w % 4] of block w / 4. The position of an element is P
 * = its index + key.position. Each distribution reads these words:
 *
 *   uniform, dropout
 *       float32 and halves: the upper 24 bits of word P. A half that would round up to the end of
 *       the range becomes the half below it.
 *       float64: the 53-bit number of words 2P and 2P + 1: their upper 53 bits (word 2P is the
 *       high word) as a fraction in [0, 1)
 *   normal
 *       Box-Muller on pairs q = P / 2; the cosine if P is even, the sine if it is odd
 *       float32 and halves: a = word 2q, b = word 2q + 1, radius sqrt(-2 ln((a + 0.5) / 2^32)),
 *       angle (b >> 8) / 2^24 turns
 *       float64: a and b are the 53-bit numbers of words 4q, 4q + 1 and 4q + 2, 4q + 3; radius
 *       sqrt(-2 ln(1 - a)), angle b turns
 *   exponential
 *       -ln(u) / lam, u = (word P + 0.5) / 2^32
 *       float64: u = 1 - the 53-bit number of words 2P, 2P + 1
 *   randint
 *       low + the upper 64 bits of (64-bit word 2P, 2P + 1) * (high - low)
 *   multinomial
 *       the 53-bit number of words 2P, 2P + 1, searched in the cumulative probabilities
 *   shuffle
 *       row r has the 64-bit key of words 2r, 2r + 1; rows are sorted by key, equal keys by row
 *   gamma, poisson, negative binomials
 *       rejection sampling: try k of element P reads the four words of block P + (k + 1) * 2^40, so
 *       that the tries of one element do not affect any other element
 *
 * Floats are computed by vector_math.h without fused multiply-adds, so that results are
 * bit-identical on all instruction sets. The rejection samplers make their decisions in double,
 * with the C library's functions.
 */
#include <math.h>

#include "base/memory.h"
#include "device/device.h"
#define MPG_MATH_WITHOUT_FMA
#include "kernels/common/draw.h"
#include "kernels/cpu/convert.h"
#include "kernels/cpu/philox_words.h"
#include "kernels/common/vector_math.h"

enum { WORDS = 2 * MPG_CPU_BLOCK + 8 };

enum { WORD_BUFFER = WORDS + 8 };

/* Fill out[0, n) with draws for one set of parameters. The first draw has position `position`. */
static void uniform_run(mpg_random_key key, uint64_t position, int64_t n, mpg_dtype dtype,
                        double low, double high, void *out) {
  uint32_t buffer[WORD_BUFFER];
  if (dtype == MPG_FLOAT64) {
    const uint32_t *w = mpg_philox_words(key, 2 * position, 2 * n, buffer);
    double *to = out;
    for (int64_t i = 0; i < n; i++) {
      double value = low + (high - low) * mpg_philox_uniform_double(w[2 * i], w[2 * i + 1]);
      to[i] = value < high ? value : low;
    }
    return;
  }
  const uint32_t *w = mpg_philox_words(key, position, n, buffer);
  float *to = out, a = (float)low, b = (float)high, top = mpg_uniform_top(dtype, a, b);
  for (int64_t i = 0; i < n; i++) {
    float value = a + (b - a) * mpg_philox_uniform(w[i]);
    value = value < b ? value : a;
    to[i] = value < top ? value : top;
  }
}

static void normal_run(mpg_random_key key, uint64_t position, int64_t n, bool wide, double mean,
                       double deviation, void *out) {
  uint32_t buffer[WORD_BUFFER];
  if (wide) {
    double *to = out;
    for (int64_t i = 0; i < n;) {
      int64_t m = n - i < MPG_CPU_BLOCK / 2 ? n - i : MPG_CPU_BLOCK / 2;
      uint64_t first = (position + (uint64_t)i) & ~(uint64_t)1;
      const uint32_t *w = mpg_philox_words(key, 2 * first, 2 * (m + 2), buffer);
      for (int64_t j = 0; j < m; j++) {
        uint64_t p = position + (uint64_t)(i + j);
        const uint32_t *pair = w + 2 * ((p & ~(uint64_t)1) - first);
        double radius = sqrt(-2 * log(1 - mpg_philox_uniform_double(pair[0], pair[1])));
        double angle = 2 * M_PI * mpg_philox_uniform_double(pair[2], pair[3]);
        to[i + j] = mean + deviation * (radius * (p & 1 ? sin(angle) : cos(angle)));
      }
      i += m;
    }
    return;
  }
  float *to = out, z[MPG_CPU_BLOCK + 2], m = (float)mean, d = (float)deviation;
  uint64_t first = position & ~(uint64_t)1;
  int64_t pairs = ((int64_t)(position - first) + n + 1) / 2;
  const uint32_t *w = mpg_philox_words(key, first, 2 * pairs, buffer);
  for (int64_t q = 0; q < pairs; q++) {
    float radius = sqrtf(-2.0f * mpg_logf(mpg_open_uniform(w[2 * q])));
    z[2 * q] = radius * mpg_sine_of_turns(w[2 * q + 1], 1);
    z[2 * q + 1] = radius * mpg_sine_of_turns(w[2 * q + 1], 0);
  }
  const float *from = z + (position - first);
  for (int64_t i = 0; i < n; i++) to[i] = m + d * from[i];
}

static void exponential_run(mpg_random_key key, uint64_t position, int64_t n, bool wide,
                            double rate, void *out) {
  uint32_t buffer[WORD_BUFFER];
  if (wide) {
    const uint32_t *w = mpg_philox_words(key, 2 * position, 2 * n, buffer);
    for (int64_t i = 0; i < n; i++)
      ((double *)out)[i] = -log(1 - mpg_philox_uniform_double(w[2 * i], w[2 * i + 1])) / rate;
    return;
  }
  const uint32_t *w = mpg_philox_words(key, position, n, buffer);
  float *to = out, r = (float)rate;
  for (int64_t i = 0; i < n; i++) {
    float value = -mpg_logf(mpg_open_uniform(w[i])) / r;
    to[i] = value > 0 ? value : 0;
  }
}

typedef struct draw_plan {
  mpg_law law;
  mpg_random_key key;
  mpg_dtype dtype;
  void *out;
  /* For sample_*: as[i] and bs[i] are the parameters of results [i * each, (i + 1) * each). */
  const void *as, *bs;
  mpg_dtype param_dtype;
  int64_t each;
} draw_plan;

static void draw_run(const draw_plan *p, int64_t begin, int64_t n, double a, double b) {
  mpg_block_buffer result;
  mpg_compute compute = p->dtype == MPG_FLOAT64 ? MPG_COMPUTE_F64 : MPG_COMPUTE_F32;
  bool wide = compute == MPG_COMPUTE_F64;
  uint64_t position = (uint64_t)begin + p->key.position;
  void *place = &result;
  switch (p->law.kind) {
    case MPG_DRAW_UNIFORM: uniform_run(p->key, position, n, p->dtype, a, b, place); break;
    case MPG_DRAW_NORMAL: normal_run(p->key, position, n, wide, a, b, place); break;
    case MPG_DRAW_EXPONENTIAL: exponential_run(p->key, position, n, wide, a, place); break;
    case MPG_DRAW_INTEGERS: {
      uint32_t buffer[WORD_BUFFER];
      const uint32_t *w = mpg_philox_words(p->key, 2 * position, 2 * n, buffer);
      for (int64_t i = 0; i < n; i++) {
        uint64_t word = (uint64_t)w[2 * i] << 32 | w[2 * i + 1];
        result.i64[i] = (int64_t)((uint64_t)p->law.low +
                                  (uint64_t)((unsigned __int128)word * p->law.span >> 64));
      }
      compute = MPG_COMPUTE_I64;
      break;
    }
    default:
      compute = MPG_COMPUTE_F64;
      for (int64_t i = 0; i < n; i++) {
        mpg_tries s = {p->key, position + (uint64_t)i, 0};
        result.f64[i] = mpg_draw(p->law.kind, &s, a, b);
      }
  }
  mpg_cpu_store(compute, p->dtype, p->out, begin, n, place);
}

static void run_draw(void *context, int64_t begin, int64_t end) {
  const draw_plan *p = context;
  while (begin < end) {
    int64_t n = end - begin < MPG_CPU_BLOCK ? end - begin : MPG_CPU_BLOCK;
    double a = p->law.a, b = p->law.b;
    if (p->as) {
      int64_t k = begin / p->each, left = (k + 1) * p->each - begin;
      mpg_block_buffer buffer;
      if (n > left) n = left;
      a = *(const double *)mpg_cpu_load(MPG_COMPUTE_F64, p->param_dtype, p->as, k, 1, &buffer);
      if (p->bs)
        b = *(const double *)mpg_cpu_load(MPG_COMPUTE_F64, p->param_dtype, p->bs, k, 1, &buffer);
    }
    draw_run(p, begin, n, a, b);
    begin += n;
  }
}

static int64_t grain_of(mpg_distribution kind) {
  return kind == MPG_DRAW_UNIFORM || kind == MPG_DRAW_INTEGERS     ? 16384
         : kind == MPG_DRAW_NORMAL || kind == MPG_DRAW_EXPONENTIAL ? 4096
                                                                   : 512;
}

mpg_status mpg_cpu_random(const mpg_kernel_call *call) {
  const mpg_view *out = &call->outputs[0];
  draw_plan p = {.law = mpg_law_of(call->op->id, call->params),
                 .key = call->random,
                 .dtype = out->desc.dtype,
                 .out = out->data};
  mpg_cpu_parallel_for(call, mpg_shape_size(&out->desc.shape), grain_of(p.law.kind), run_draw, &p);
  return MPG_OK;
}

static mpg_status check_law(const mpg_kernel_call *call, const draw_plan *p, int64_t params) {
  mpg_block_buffer first, second;
  for (int64_t done = 0; done < params; done += MPG_CPU_BLOCK) {
    int64_t n = params - done < MPG_CPU_BLOCK ? params - done : MPG_CPU_BLOCK;
    const double *a = mpg_cpu_load(MPG_COMPUTE_F64, p->param_dtype, p->as, done, n, &first);
    const double *b =
        p->bs ? mpg_cpu_load(MPG_COMPUTE_F64, p->param_dtype, p->bs, done, n, &second) : a;
    for (int64_t i = 0; i < n; i++) {
      int violation = mpg_law_violation(p->law.kind, a[i], b[i]);
      if (violation >= 0)
        return mpg_fail(MPG_VALUE_ERROR, mpg_law_refusal(p->law.kind, violation), call->op->name,
                        (long long)(done + i));
    }
  }
  return MPG_OK;
}

mpg_status mpg_cpu_sample(const mpg_kernel_call *call) {
  const mpg_view *out = &call->outputs[0], *first = &call->inputs[0];
  int64_t count = mpg_shape_size(&out->desc.shape), params = mpg_shape_size(&first->desc.shape);
  draw_plan p = {.law = mpg_law_of_sample(call->op->id),
                 .key = call->random,
                 .dtype = out->desc.dtype,
                 .out = out->data,
                 .as = first->data,
                 .param_dtype = first->desc.dtype,
                 .bs = call->num_inputs > 1 ? call->inputs[1].data : NULL,
                 .each = params ? count / params : 1};
  if (count) MPG_TRY(check_law(call, &p, params));
  mpg_cpu_parallel_for(call, count, grain_of(p.law.kind), run_draw, &p);
  return MPG_OK;
}

/* --- Multinomial ------------------------------------------------------------------------------ */

typedef struct choice_plan {
  const mpg_kernel_call *call;
  double *sums; /* (rows, outcomes): running sums of probabilities */
  int64_t outcomes, each;
} choice_plan;

static void run_sums(void *context, int64_t begin, int64_t end) {
  const choice_plan *p = context;
  const mpg_view *data = &p->call->inputs[0];
  mpg_block_buffer buffer;
  for (int64_t row = begin; row < end; row++) {
    double sum = 0, *sums = p->sums + row * p->outcomes;
    for (int64_t done = 0; done < p->outcomes; done += MPG_CPU_BLOCK) {
      int64_t n = p->outcomes - done < MPG_CPU_BLOCK ? p->outcomes - done : MPG_CPU_BLOCK;
      const double *values = mpg_cpu_load(MPG_COMPUTE_F64, data->desc.dtype, data->data,
                                          row * p->outcomes + done, n, &buffer);
      for (int64_t j = 0; j < n; j++) sums[done + j] = sum += mpg_probability_of(values[j]);
    }
  }
}

static void run_choices(void *context, int64_t begin, int64_t end) {
  const choice_plan *p = context;
  const mpg_kernel_call *call = p->call;
  mpg_block_buffer buffer;
  for (int64_t i = begin; i < end; i++) {
    uint64_t position = (uint64_t)i + call->random.position;
    mpg_philox_block b = mpg_philox(call->random.seed, call->random.call, position >> 1);
    const double *sums = p->sums + i / p->each * p->outcomes;
    double target =
        mpg_philox_uniform_double(b.value[2 * (position & 1)], b.value[2 * (position & 1) + 1]) *
        sums[p->outcomes - 1];
    int64_t low = 0, high = p->outcomes - 1; /* binary search: first sum above the target */
    while (low < high) {
      int64_t middle = (low + high) / 2;
      if (sums[middle] > target)
        high = middle;
      else
        low = middle + 1;
    }
    mpg_cpu_store(MPG_COMPUTE_I64, call->outputs[0].desc.dtype, call->outputs[0].data, i, 1, &low);
    if (call->num_outputs < 2) continue;
    const mpg_view *data = &call->inputs[0];
    double chance = log(*(const double *)mpg_cpu_load(MPG_COMPUTE_F64, data->desc.dtype, data->data,
                                                      i / p->each * p->outcomes + low, 1, &buffer));
    mpg_cpu_store(MPG_COMPUTE_F64, call->outputs[1].desc.dtype, call->outputs[1].data, i, 1,
                  &chance);
  }
}

mpg_status mpg_cpu_sample_multinomial(const mpg_kernel_call *call) {
  const mpg_shape *shape = &call->inputs[0].desc.shape;
  int64_t rows = mpg_shape_product(shape, 0, shape->ndim - 1),
          count = mpg_shape_size(&call->outputs[0].desc.shape);
  if (count == 0) return MPG_OK;
  choice_plan p = {call, NULL, shape->dims[shape->ndim - 1], count / rows};
  p.sums = mpg_device_scratch(call->device, (size_t)(rows * p.outcomes) * sizeof(double));
  if (!p.sums) return MPG_DEVICE_OUT_OF_MEMORY;
  mpg_cpu_parallel_for(call, rows, 16384 / p.outcomes + 1, run_sums, &p);
  for (int64_t row = 0; row < rows; row++)
    if (!mpg_probabilities_fit(p.sums[(row + 1) * p.outcomes - 1]))
      return mpg_fail(MPG_VALUE_ERROR, MPG_PROBABILITIES_REFUSAL, call->op->name, (long long)row);
  mpg_cpu_parallel_for(call, count, 1024, run_choices, &p);
  return MPG_OK;
}

/* --- Shuffle ---------------------------------------------------------------------------------- */

typedef struct keyed_row {
  uint64_t key;
  int64_t row;
} keyed_row;

/* Sorts rows by key: LSD radix sort with one stable pass per byte. After eight passes, the result
 * is in `rows`. */
static void sort_rows(keyed_row *rows, keyed_row *other, int64_t count) {
  for (int shift = 0; shift < 64; shift += 8) {
    int64_t starts[256] = {0}, total = 0;
    for (int64_t i = 0; i < count; i++) starts[rows[i].key >> shift & 255]++;
    for (int k = 0; k < 256; k++) {
      int64_t n = starts[k];
      starts[k] = total;
      total += n;
    }
    for (int64_t i = 0; i < count; i++) other[starts[rows[i].key >> shift & 255]++] = rows[i];
    keyed_row *swap = rows;
    rows = other;
    other = swap;
  }
}

typedef struct gather_plan {
  const keyed_row *rows;
  const char *in;
  char *out;
  int64_t bytes;
} gather_plan;

static void run_gather(void *context, int64_t begin, int64_t end) {
  const gather_plan *p = context;
  for (int64_t i = begin; i < end; i++)
    memcpy(p->out + i * p->bytes, p->in + p->rows[i].row * p->bytes, (size_t)p->bytes);
}

mpg_status mpg_cpu_shuffle(const mpg_kernel_call *call) {
  const mpg_desc *desc = &call->inputs[0].desc;
  int64_t size = mpg_shape_size(&desc->shape), rows = desc->shape.ndim ? desc->shape.dims[0] : 1;
  if (size == 0) return MPG_OK;
  keyed_row *keyed = mpg_device_scratch(call->device, 2 * (size_t)rows * sizeof *keyed);
  if (!keyed) return MPG_DEVICE_OUT_OF_MEMORY;
  for (int64_t r = 0; r < rows; r++) {
    uint64_t position = (uint64_t)r + call->random.position;
    mpg_philox_block b = mpg_philox(call->random.seed, call->random.call, position >> 1);
    keyed[r] = (keyed_row){
        (uint64_t)b.value[2 * (position & 1)] << 32 | b.value[2 * (position & 1) + 1], r};
  }
  sort_rows(keyed, keyed + rows, rows);
  gather_plan p = {keyed, call->inputs[0].data, call->outputs[0].data,
                   size / rows * (int64_t)mpg_dtype_size(desc->dtype)};
  mpg_cpu_parallel_for(call, rows, 65536 / p.bytes + 1, run_gather, &p);
  return MPG_OK;
}

/* --- Dropout ---------------------------------------------------------------------------------- */

typedef struct dropout_plan {
  mpg_random_key key;
  mpg_dtype dtype;
  const void *in;
  void *out;
  uint8_t *mask;
  double scale;
  uint32_t threshold; /* keeps elements whose random word >> 8 is below this */
  bool drawn;         /* true if run_dropout also draws the mask */
  int ndim;           /* 0 if the mask has the data's shape; else the data's ndim */
  int64_t dims[MPG_MAX_NDIM], strides[MPG_MAX_NDIM];
  /* If the data is a slice of a larger array: the slice has `part` contiguous elements of every
   * `whole`, starting at `begin`. It draws the same numbers as in the larger array. `part` is 0 if
   * the data is not a slice. */
  int64_t part, whole, begin;
} dropout_plan;

static void draw_mask(const dropout_plan *p, int64_t begin, int64_t n) {
  uint32_t buffer[WORD_BUFFER];
  while (n > 0) {
    int64_t together = n, at = begin;
    if (p->part) {
      at = begin / p->part * p->whole + p->begin + begin % p->part;
      if (together > p->part - begin % p->part) together = p->part - begin % p->part;
    }
    uint64_t run = p->key.run, left = run ? run - ((uint64_t)at + p->key.first) % run : (uint64_t)n;
    if ((uint64_t)together > left) together = (int64_t)left;
    const uint32_t *w =
        mpg_philox_words(p->key, mpg_random_position(&p->key, (uint64_t)at), together, buffer);
    uint8_t *mask = p->mask + begin;
    for (int64_t i = 0; i < together; i++) mask[i] = (w[i] >> 8) < p->threshold;
    begin += together;
    n -= together;
  }
}

static void run_mask(void *context, int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end; i += MPG_CPU_BLOCK)
    draw_mask(context, i, end - i < MPG_CPU_BLOCK ? end - i : MPG_CPU_BLOCK);
}

/* Returns the mask of data elements [begin, begin + n), expanded along the axes that share a mask
 * element. */
static const uint8_t *mask_of(const dropout_plan *p, int64_t begin, int64_t n, uint8_t *buffer) {
  if (!p->ndim) return p->mask + begin;
  for (int64_t i = 0; i < n; i++) {
    int64_t rest = begin + i, at = 0;
    for (int d = p->ndim - 1; d >= 0; d--) {
      at += rest % p->dims[d] * p->strides[d];
      rest /= p->dims[d];
    }
    buffer[i] = p->mask[at];
  }
  return buffer;
}

static void run_dropout(void *context, int64_t begin, int64_t end) {
  const dropout_plan *p = context;
  mpg_compute compute = mpg_compute_of(p->dtype);
  mpg_block_buffer in, result;
  uint8_t spread[MPG_CPU_BLOCK];
  for (int64_t i = begin; i < end; i += MPG_CPU_BLOCK) {
    int64_t n = end - i < MPG_CPU_BLOCK ? end - i : MPG_CPU_BLOCK;
    if (p->drawn) draw_mask(p, i, n);
    const uint8_t *mask = mask_of(p, i, n, spread);
    const void *values = mpg_cpu_load(compute, p->dtype, p->in, i, n, &in);
    if (compute == MPG_COMPUTE_F64) {
      for (int64_t j = 0; j < n; j++)
        result.f64[j] = mask[j] ? ((const double *)values)[j] * p->scale : 0;
    } else {
      float scale = (float)p->scale;
      for (int64_t j = 0; j < n; j++)
        result.f32[j] = mask[j] ? ((const float *)values)[j] * scale : 0;
    }
    mpg_cpu_store(compute, p->dtype, p->out, i, n, &result);
  }
}

static void align_mask(dropout_plan *p, const mpg_shape *data, const mpg_shape *mask) {
  if (mpg_shape_equal(data, mask)) return;
  int64_t step = 1;
  p->ndim = data->ndim;
  for (int d = data->ndim - 1; d >= 0; d--) {
    p->dims[d] = data->dims[d];
    p->strides[d] = mask->dims[d] == 1 ? 0 : step;
    step *= mask->dims[d];
  }
}

mpg_status mpg_cpu_dropout(const mpg_kernel_call *call) {
  enum { TRAINING, ALWAYS };
  const mpg_dropout_params *params = call->params;
  const mpg_view *data = &call->inputs[0], *out = &call->outputs[0], *mask = &call->outputs[1];
  int64_t count = mpg_shape_size(&data->desc.shape);
  if (!(call->train || params->mode == ALWAYS) || !(params->p > 0)) {
    if (count && out->data != data->data)
      memcpy(out->data, data->data, (size_t)count * mpg_dtype_size(data->desc.dtype));
    return MPG_OK;
  }
  double keep = 1 - params->p;
  dropout_plan p = {.key = call->random,
                    .dtype = data->desc.dtype,
                    .in = data->data,
                    .out = out->data,
                    .mask = mask->data,
                    .scale = keep > 0 ? 1 / keep : 0,
                    .threshold = (uint32_t)(keep * 0x1p24 + 0.5)};
  align_mask(&p, &data->desc.shape, &mask->desc.shape);
  p.drawn = p.ndim == 0;
  if (!p.drawn) mpg_cpu_parallel_for(call, mpg_shape_size(&mask->desc.shape), 16384, run_mask, &p);
  mpg_cpu_parallel_for(call, count, 16384, run_dropout, &p);
  return MPG_OK;
}

mpg_status mpg_cpu_dropout_draw(const mpg_kernel_call *call) {
  uint64_t *draw = call->outputs[0].data;
  const mpg_random_key *key = &call->random;
  draw[0] = key->seed, draw[1] = key->call, draw[2] = key->position, draw[3] = key->run,
  draw[4] = key->stride;
  return MPG_OK;
}

mpg_status mpg_cpu_dropout_part(const mpg_kernel_call *call) {
  const mpg_dropout_part_params *params = call->params;
  const mpg_view *data = &call->inputs[0], *out = &call->outputs[0];
  const uint64_t *draw = call->inputs[1].data;
  int64_t count = mpg_shape_size(&data->desc.shape);
  if (!call->train || !(params->p > 0)) {
    if (out->data != data->data)
      memcpy(out->data, data->data, (size_t)count * mpg_dtype_size(data->desc.dtype));
    return MPG_OK;
  }
  const mpg_shape *shape = &data->desc.shape;
  int axis = (int)(params->axis < 0 ? params->axis + shape->ndim : params->axis);
  int64_t inner = mpg_shape_product(shape, axis + 1, shape->ndim);
  double keep = 1 - params->p;
  dropout_plan p = {.key = {.seed = draw[0],
                            .call = draw[1],
                            .position = draw[2],
                            .run = draw[3],
                            .stride = draw[4]},
                    .dtype = data->desc.dtype,
                    .in = data->data,
                    .out = out->data,
                    .mask = call->outputs[1].data,
                    .scale = keep > 0 ? 1 / keep : 0,
                    .threshold = (uint32_t)(keep * 0x1p24 + 0.5),
                    .drawn = true,
                    .part = shape->dims[axis] * inner,
                    .whole = params->total * inner,
                    .begin = params->begin * inner};
  mpg_cpu_parallel_for(call, count, 16384, run_dropout, &p);
  return MPG_OK;
}

mpg_status mpg_cpu_dropout_apply(const mpg_kernel_call *call) {
  const mpg_dropout_params *params = call->params;
  const mpg_view *data = &call->inputs[0], *mask = &call->inputs[1];
  double keep = 1 - params->p;
  dropout_plan p = {.dtype = data->desc.dtype,
                    .in = data->data,
                    .out = call->outputs[0].data,
                    .mask = mask->data,
                    .scale = keep > 0 ? 1 / keep : 0};
  align_mask(&p, &data->desc.shape, &mask->desc.shape);
  mpg_cpu_parallel_for(call, mpg_shape_size(&data->desc.shape), 16384, run_dropout, &p);
  return MPG_OK;
}
