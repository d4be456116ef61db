/* Building blocks for random draws, shared by all backends. kernels/cpu/math/random.c documents the
 * scheme. Define MPG_MATH_WITHOUT_FMA before including. These functions are stateless and may be
 * called from any thread. */
#ifndef KERNELS_COMMON_DRAW_H
#define KERNELS_COMMON_DRAW_H

#include <math.h>

#include "base/philox.h"
#include "kernels/common/vector_math.h"
#include "op/kernel.h"

/* Maps a random 32-bit word to a uniform float in (0, 1]. The result is 1 only if the word,
 * converted to float, rounds up to 2^32. */
MPG_HOST_DEVICE float mpg_open_uniform(uint32_t word) { return (float)word * 0x1p-32f + 0x1p-33f; }
/* Returns sin(2 pi (word / 2^32 + quarters / 4)). `word` is an angle, where 2^32 is a full turn,
 * and `quarters` is a number of quarter turns to add. */
MPG_HOST_DEVICE float mpg_sine_of_turns(uint32_t word, uint32_t quarters) {
  float turns = (float)(word >> 8) * 0x1p-22f; /* in quarter turns */
  float shifted = turns + MPG_ROUNDER;
  return mpg_sine_or_cosine((turns - (shifted - MPG_ROUNDER)) * 0x1.921fb6p+0f, 0.0f,
                            mpg_float_bits(shifted) + quarters);
}

/* Returns the upper limit for a uniform draw from [low, high) that is rounded from float to
 * `dtype`. For a 16-bit dtype, the limit is the largest value below `high`, because rounding could
 * otherwise yield `high` itself. */
MPG_HOST_DEVICE float mpg_uniform_top(mpg_dtype dtype, float low, float high) {
  if (dtype == MPG_FLOAT32 || !(low < high)) return high;
  bool brain = dtype == MPG_BFLOAT16;
  uint16_t end = brain ? mpg_float_to_bfloat16(high) : mpg_float_to_half(high);
  uint16_t below = (uint16_t)((end & 0x7fff) == 0 ? 0x8001 : end & 0x8000 ? end + 1 : end - 1);
  float top = brain ? mpg_bfloat16_to_float(below) : mpg_half_to_float(below);
  return top > low ? top : low;
}

typedef enum mpg_distribution {
  MPG_DRAW_UNIFORM,
  MPG_DRAW_NORMAL,
  MPG_DRAW_GAMMA,
  MPG_DRAW_EXPONENTIAL,
  MPG_DRAW_POISSON,
  MPG_DRAW_NEGATIVE_BINOMIAL,
  MPG_DRAW_GENERALIZED,
  MPG_DRAW_INTEGERS
} mpg_distribution;

/* Distribution of a draw, with its parameters a and b. MPG_DRAW_INTEGERS instead draws integers
 * from [low, low + span). */
typedef struct mpg_law {
  mpg_distribution kind;
  double a, b;
  int64_t low;
  uint64_t span;
} mpg_law;

/* Returns the distribution of a random_* op from its parameters. */
static inline mpg_law mpg_law_of(mpg_op_id id, const void *op_params) {
  mpg_law law = {MPG_DRAW_INTEGERS, 0, 0, 0, 0};
  switch (id) {
#define LAW(name, kind_, first, second)                                                       \
  case MPG_OP__random_##name: {                                                               \
    const mpg_random_##name##_params *params = (const mpg_random_##name##_params *)op_params; \
    law.kind = kind_, law.a = (double)params->first, law.b = (double)params->second;          \
    break;                                                                                    \
  }                                                                                           \
  case MPG_OP__random_##name##_like: {                                                        \
    const mpg_##name##_like_params *params = (const mpg_##name##_like_params *)op_params;     \
    law.kind = kind_, law.a = (double)params->first, law.b = (double)params->second;          \
    break;                                                                                    \
  }
    LAW(uniform, MPG_DRAW_UNIFORM, low, high)
    LAW(normal, MPG_DRAW_NORMAL, loc, scale)
    LAW(gamma, MPG_DRAW_GAMMA, alpha, beta)
    LAW(exponential, MPG_DRAW_EXPONENTIAL, lam, lam)
    LAW(poisson, MPG_DRAW_POISSON, lam, lam)
    LAW(negative_binomial, MPG_DRAW_NEGATIVE_BINOMIAL, k, p)
    LAW(generalized_negative_binomial, MPG_DRAW_GENERALIZED, mu, alpha)
#undef LAW
    default: { /* randint */
      const mpg_randint_params *params = (const mpg_randint_params *)op_params;
      law.low = params->low, law.span = (uint64_t)params->high - (uint64_t)params->low;
    }
  }
  return law;
}

/* Returns the distribution of a sample_* op, whose inputs hold a and b. */
static inline mpg_law mpg_law_of_sample(mpg_op_id id) {
  mpg_law law = {MPG_DRAW_GENERALIZED, 0, 0, 0, 0};
  switch (id) {
    case MPG_OP__sample_uniform: law.kind = MPG_DRAW_UNIFORM; break;
    case MPG_OP__sample_normal: law.kind = MPG_DRAW_NORMAL; break;
    case MPG_OP__sample_gamma: law.kind = MPG_DRAW_GAMMA; break;
    case MPG_OP__sample_exponential: law.kind = MPG_DRAW_EXPONENTIAL; break;
    case MPG_OP__sample_poisson: law.kind = MPG_DRAW_POISSON; break;
    case MPG_OP__sample_negative_binomial: law.kind = MPG_DRAW_NEGATIVE_BINOMIAL; break;
    default: break;
  }
  return law;
}

/* Checks the parameters of a sample_* op's distribution. Returns 0 if a is invalid, 1 if b is
 * invalid, and -1 if both are valid. */
MPG_HOST_DEVICE int mpg_law_violation(mpg_distribution kind, double a, double b) {
  switch (kind) {
    case MPG_DRAW_UNIFORM: return a <= b ? -1 : 0;
    case MPG_DRAW_NORMAL: return b >= 0 ? -1 : 1;
    case MPG_DRAW_EXPONENTIAL:
    case MPG_DRAW_POISSON: return a >= 0 ? -1 : 0;
    case MPG_DRAW_NEGATIVE_BINOMIAL: return !(a >= 0) ? 0 : b >= 0 && b <= 1 ? -1 : 1;
    default: return !(a >= 0) ? 0 : b >= 0 ? -1 : 1;
  }
}

/* Returns the printf format of the error message for a parameter that mpg_law_violation rejects.
 * The arguments of the format are the op's name and the element's index. */
static inline const char *mpg_law_refusal(mpg_distribution kind, int violation) {
  switch (kind) {
    case MPG_DRAW_UNIFORM: return "%s: low must not be above high, or NaN; element %lld is";
    case MPG_DRAW_NORMAL: return "%s: sigma must not be negative or NaN; element %lld is";
    case MPG_DRAW_EXPONENTIAL:
    case MPG_DRAW_POISSON: return "%s: lam must not be negative or NaN; element %lld is";
    case MPG_DRAW_NEGATIVE_BINOMIAL:
      return violation ? "%s: p must be from 0 to 1, but element %lld is not"
                       : "%s: k must not be negative or NaN; element %lld is";
    case MPG_DRAW_GAMMA:
      return violation ? "%s: beta must not be negative or NaN; element %lld is"
                       : "%s: alpha must not be negative or NaN; element %lld is";
    default:
      return violation ? "%s: alpha must not be negative or NaN; element %lld is"
                       : "%s: mu must not be negative or NaN; element %lld is";
  }
}

/* Maps a negative probability to NaN. The sum of an invalid row is then NaN, 0 or infinity, which
 * mpg_probabilities_fit rejects. */
MPG_HOST_DEVICE double mpg_probability_of(double value) { return value >= 0 ? value : (double)NAN; }
MPG_HOST_DEVICE bool mpg_probabilities_fit(double sum) { return sum > 0 && sum < INFINITY; }
#define MPG_PROBABILITIES_REFUSAL \
  "%s: the probabilities of row %lld must be finite and not negative, with at least one above 0"

/* State of the rejection sampling for one element. The element's position in the output and the
 * number of tries so far determine the counter of the random number generator. */
typedef struct mpg_tries {
  mpg_random_key key;
  uint64_t position;
  uint64_t tries;
} mpg_tries;
MPG_HOST_DEVICE mpg_philox_block mpg_next_try(mpg_tries *s) {
  return mpg_philox(s->key.seed, s->key.call, s->position + (++s->tries << 40));
}
MPG_HOST_DEVICE double mpg_unit_of(uint32_t word) { return ((double)word + 0.5) * 0x1p-32; }

/* Draws from the gamma distribution by Marsaglia and Tsang's method. */
MPG_HOST_DEVICE double mpg_draw_gamma(mpg_tries *s, double alpha, double scale) {
  if (!(alpha > 0) || !(scale > 0)) return alpha == 0 || scale == 0 ? 0 : (double)NAN;
  double a = alpha < 1 ? alpha + 1 : alpha, d = a - 1.0 / 3, c = 1 / sqrt(9 * d);
  for (;;) {
    mpg_philox_block b = mpg_next_try(s);
    double x = sqrt(-2 * log(mpg_unit_of(b.value[0]))) * cos(2 * M_PI * mpg_unit_of(b.value[1]));
    double v = 1 + c * x;
    if (v <= 0) continue;
    v = v * v * v;
    if (log(mpg_unit_of(b.value[2])) >= 0.5 * x * x + d - d * v + d * log(v)) continue;
    double result = d * v * scale;
    return alpha < 1 ? result * pow(mpg_unit_of(b.value[3]), 1 / alpha) : result;
  }
}

MPG_HOST_DEVICE double mpg_log_factorial(double k) {
#ifdef __CUDA_ARCH__
  return lgamma(k + 1);
#else
  int sign;
  return lgamma_r(k + 1, &sign);
#endif
}

MPG_HOST_DEVICE double mpg_draw_poisson(mpg_tries *s, double mean) {
  if (!(mean > 0)) return mean == 0 ? 0 : (double)NAN;
  if (mean > 1e15) return mean;
  if (mean < 10) { /* Knuth's method: counts uniform factors until the product is <= exp(-mean) */
    double limit = exp(-mean), product = 1;
    for (double count = 0;;) {
      mpg_philox_block b = mpg_next_try(s);
      for (int i = 0; i < 4; i++, count++) {
        product *= mpg_unit_of(b.value[i]);
        if (product <= limit) return count;
      }
    }
  }
  /* Hörmann's transformed rejection (PTRS). */
  double b = 0.931 + 2.53 * sqrt(mean), a = -0.059 + 0.02483 * b,
         inverse_alpha = 1.1239 + 1.1328 / (b - 3.4), v_r = 0.9277 - 3.6224 / (b - 2);
  for (;;) {
    mpg_philox_block words = mpg_next_try(s);
    double u = mpg_unit_of(words.value[0]) - 0.5, v = mpg_unit_of(words.value[1]),
           us = 0.5 - fabs(u);
    double k = floor((2 * a / us + b) * u + mean + 0.43);
    if (us >= 0.07 && v <= v_r) return k;
    if (k < 0 || (us < 0.013 && v > us)) continue;
    if (log(v) + log(inverse_alpha) - log(a / (us * us) + b) <=
        -mean + k * log(mean) - mpg_log_factorial(k))
      return k;
  }
}

MPG_HOST_DEVICE double mpg_draw(mpg_distribution kind, mpg_tries *s, double a, double b) {
  switch (kind) {
    case MPG_DRAW_GAMMA: return mpg_draw_gamma(s, a, b);
    case MPG_DRAW_POISSON: return mpg_draw_poisson(s, a);
    case MPG_DRAW_NEGATIVE_BINOMIAL: return mpg_draw_poisson(s, mpg_draw_gamma(s, a, (1 - b) / b));
    default: return mpg_draw_poisson(s, b == 0 ? a : mpg_draw_gamma(s, 1 / b, a * b));
  }
}

#endif
