/* Random numbers. Each element is drawn from the same random words as in kernels/cpu/math/random.c.
 * For multinomial draws, a first kernel computes the cumulative sums of each row's
 * probabilities. */
#include "kernels/cuda/access.h"
#include "kernels/cuda/runtime/device_assert.h"
#define MPG_MATH_WITHOUT_FMA
#include "kernels/common/draw.h"

namespace {

struct plan {
  mpg_law law;
  mpg_cuda_key key;
  mpg_untyped out;
  mpg_untyped as, bs;      /* parameter arrays; as.data is NULL if the parameters are in `law` */
  int64_t each;            /* results per element of the parameter arrays */
  unsigned long long *bad; /* receives the index of the first invalid parameters */
};

__device__ __forceinline__ uint32_t word(const mpg_random_key &key, uint64_t w) {
  return mpg_philox(key.seed, key.call, w >> 2).value[w & 3];
}
/* Returns a uniform number in [0, 1) with 53 random bits, from words w and w + 1. */
__device__ __forceinline__ double unit53(const mpg_random_key &key, uint64_t w) {
  return mpg_philox_uniform_double(word(key, w), word(key, w + 1));
}

__device__ float draw_float(const plan &p, const mpg_random_key &key, uint64_t position, float a,
                            float b) {
  switch (p.law.kind) {
    case MPG_DRAW_UNIFORM: {
      float value = a + (b - a) * mpg_philox_uniform(word(key, position)),
            top = mpg_uniform_top(p.out.dtype, a, b);
      value = value < b ? value : a;
      return value < top ? value : top;
    }
    case MPG_DRAW_NORMAL: {
      uint64_t first = position & ~(uint64_t)1;
      float radius = sqrtf(-2.0f * mpg_logf(mpg_open_uniform(word(key, first))));
      return a + b * (radius * mpg_sine_of_turns(word(key, first + 1), position & 1 ? 0 : 1));
    }
    default: {
      float value = -mpg_logf(mpg_open_uniform(word(key, position))) / a;
      return value > 0 ? value : 0;
    }
  }
}

__device__ double draw_double(const plan &p, const mpg_random_key &key, uint64_t position, double a,
                              double b) {
  switch (p.law.kind) {
    case MPG_DRAW_UNIFORM: {
      double value = a + (b - a) * unit53(key, 2 * position);
      return value < b ? value : a;
    }
    case MPG_DRAW_NORMAL: {
      uint64_t first = 2 * (position & ~(uint64_t)1);
      double radius = sqrt(-2 * log(1 - unit53(key, first))),
             angle = 2 * M_PI * unit53(key, first + 2);
      return a + b * (radius * (position & 1 ? sin(angle) : cos(angle)));
    }
    default: return -log(1 - unit53(key, 2 * position)) / a;
  }
}

/* Returns the upper 64 bits of the 128-bit product x * y. */
__device__ __forceinline__ uint64_t upper(uint64_t x, uint64_t y) {
#ifdef __CUDA_ARCH__
  return __umul64hi(x, y);
#else
  return (uint64_t)((unsigned __int128)x * y >> 64);
#endif
}

__global__ void draw_kernel(plan p, int64_t count) {
  mpg_random_key key = p.key.read();
  for (int64_t i = MPG_CUDA_INDEX; i < count; i += MPG_CUDA_STRIDE) {
    uint64_t position = (uint64_t)i + key.position;
    double a = p.law.a, b = p.law.b;
    if (p.as.data) {
      a = p.as.load<double>(i / p.each);
      if (p.bs.data) b = p.bs.load<double>(i / p.each);
      if (mpg_law_violation(p.law.kind, a, b) >= 0)
        atomicMin(p.bad, (unsigned long long)(i / p.each));
    }
    if (p.law.kind == MPG_DRAW_INTEGERS) {
      uint64_t bits = (uint64_t)word(key, 2 * position) << 32 | word(key, 2 * position + 1);
      p.out.store(i, (int64_t)((uint64_t)p.law.low + upper(bits, p.law.span)));
    } else if (p.law.kind != MPG_DRAW_UNIFORM && p.law.kind != MPG_DRAW_NORMAL &&
               p.law.kind != MPG_DRAW_EXPONENTIAL) {
      mpg_tries tries = {key, position, 0};
      p.out.store(i, mpg_draw(p.law.kind, &tries, a, b));
    } else if (p.out.dtype == MPG_FLOAT64) {
      p.out.store(i, draw_double(p, key, position, a, b));
    } else {
      p.out.store(i, draw_float(p, key, position, (float)a, (float)b));
    }
  }
}

__global__ void refuse_kernel(plan p, mpg_cuda_assert of_a, mpg_cuda_assert of_b) {
  if (*p.bad == MPG_CUDA_NONE) return;
  int64_t k = (int64_t)*p.bad;
  double a = p.as.load<double>(k), b = p.bs.data ? p.bs.load<double>(k) : a;
  (mpg_law_violation(p.law.kind, a, b) ? of_b : of_a).raise(k);
}

mpg_status launch(const mpg_kernel_call *call, const plan &p) {
  int64_t count = count_of(&call->outputs[0]);
  return mpg_cuda_launch(call, draw_kernel, mpg_cuda_blocks(count, 4 * MPG_CUDA_THREADS),
                         MPG_CUDA_THREADS, 0, p, count);
}

plan plan_of(const mpg_kernel_call *call, const mpg_law &law) {
  plan p = {};
  p.law = law;
  p.key = mpg_cuda_key_of(call);
  p.out = mpg_untyped_view(&call->outputs[0]);
  p.each = 1;
  return p;
}

} // namespace

mpg_status mpg_cuda_random(const mpg_kernel_call *call) {
  return launch(call, plan_of(call, mpg_law_of(call->op->id, call->params)));
}

mpg_status mpg_cuda_sample(const mpg_kernel_call *call) {
  plan p = plan_of(call, mpg_law_of_sample(call->op->id));
  int64_t count = count_of(&call->outputs[0]), params = count_of(&call->inputs[0]);
  p.as = mpg_untyped_view(&call->inputs[0]);
  if (call->num_inputs > 1) p.bs = mpg_untyped_view(&call->inputs[1]);
  p.each = params ? count / params : 1;
  if (!count) return MPG_OK;
  p.bad = (unsigned long long *)mpg_device_scratch(call->device, sizeof *p.bad);
  if (!p.bad) return MPG_DEVICE_OUT_OF_MEMORY;
  MPG_TRY(mpg_cuda_nothing_wrong(call, p.bad));
  MPG_TRY(launch(call, p));
  mpg_cuda_assert of_a, of_b;
  MPG_TRY(mpg_cuda_assert_make(call, MPG_VALUE_ERROR, mpg_law_refusal(p.law.kind, 0), &of_a));
  MPG_TRY(mpg_cuda_assert_make(call, MPG_VALUE_ERROR, mpg_law_refusal(p.law.kind, 1), &of_b));
  return mpg_cuda_launch(call, refuse_kernel, 1, 1, 0, p, of_a, of_b);
}

/* --- Multinomial ------------------------------------------------------------------------------ */
namespace {

/* Computes each row's cumulative sums, and records the first row whose sum is invalid. One thread
 * per row. */
__global__ void sums_kernel(mpg_untyped data, double *sums, int64_t rows, int64_t outcomes,
                            unsigned long long *bad) {
  int64_t row = MPG_CUDA_INDEX;
  if (row >= rows) return;
  double sum = 0;
  for (int64_t k = 0; k < outcomes; k++)
    sums[row * outcomes + k] = sum += mpg_probability_of(data.load<double>(row * outcomes + k));
  if (!mpg_probabilities_fit(sum)) atomicMin(bad, (unsigned long long)row);
}

__global__ void refuse_rows_kernel(const unsigned long long *bad, mpg_cuda_assert assertion) {
  if (*bad != MPG_CUDA_NONE) assertion.raise((int64_t)*bad);
}

__global__ void choices_kernel(mpg_cuda_key given, mpg_untyped data, const double *sums,
                               int64_t outcomes, int64_t each, mpg_untyped choice,
                               mpg_untyped chance, int64_t count) {
  int64_t i = MPG_CUDA_INDEX;
  if (i >= count) return;
  const double *own = sums + i / each * outcomes;
  mpg_random_key key = given.read();
  double target = unit53(key, 2 * ((uint64_t)i + key.position)) * own[outcomes - 1];
  int64_t low = 0, high = outcomes - 1; /* binary search for the first sum above the target */
  while (low < high) {
    int64_t middle = (low + high) / 2;
    if (own[middle] > target)
      high = middle;
    else
      low = middle + 1;
  }
  choice.store(i, low);
  if (chance.data) chance.store(i, log(data.load<double>(i / each * outcomes + low)));
}

} // namespace

mpg_status mpg_cuda_sample_multinomial(const mpg_kernel_call *call) {
  const mpg_view *data = &call->inputs[0];
  const mpg_shape *shape = &data->desc.shape;
  int64_t rows = mpg_shape_product(shape, 0, shape->ndim - 1),
          outcomes = shape->dims[shape->ndim - 1], count = count_of(&call->outputs[0]);
  if (count == 0) return MPG_OK;
  double *sums =
      (double *)mpg_device_scratch(call->device, (size_t)(rows * outcomes + 1) * sizeof(double));
  if (!sums) return MPG_DEVICE_OUT_OF_MEMORY;
  unsigned long long *bad = (unsigned long long *)(sums + rows * outcomes);
  mpg_cuda_assert assertion;
  MPG_TRY(mpg_cuda_assert_make(call, MPG_VALUE_ERROR, MPG_PROBABILITIES_REFUSAL, &assertion));
  MPG_TRY(mpg_cuda_nothing_wrong(call, bad));
  mpg_untyped chance = {NULL, MPG_FLOAT32};
  if (call->num_outputs > 1) chance = mpg_untyped_view(&call->outputs[1]);
  MPG_TRY(mpg_cuda_launch(call, sums_kernel, mpg_cuda_blocks(rows), MPG_CUDA_THREADS, 0,
                          mpg_untyped_view(data), sums, rows, outcomes, bad));
  MPG_TRY(mpg_cuda_launch(call, refuse_rows_kernel, 1, 1, 0, (const unsigned long long *)bad,
                          assertion));
  return mpg_cuda_launch(call, choices_kernel, mpg_cuda_blocks(count), MPG_CUDA_THREADS, 0,
                         mpg_cuda_key_of(call), mpg_untyped_view(data), (const double *)sums,
                         outcomes, count / rows, mpg_untyped_view(&call->outputs[0]), chance,
                         count);
}
