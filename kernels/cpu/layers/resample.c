/* Resizing along an axis. The input is [outer, length, inner]. The source positions and weights are
 * computed for a few elements at a time, and used for all outer indices. */
#include "op/vision/resample.h"

#include <string.h>

#include "kernels/cpu/cpu.h"

enum { CHUNK = 64, GRAIN = 16384, BLOCK = 1024 };

typedef struct resample {
  const void *in;
  void *out;
  mpg_resample_axis axis;
  int64_t inner, blocks; /* backward: number of blocks that `inner` is divided into */
  bool wide;             /* float64 */
} resample;

typedef struct chunk {
  int64_t at[CHUNK][8];
  union {
    float f32[CHUNK][8];
    double f64[CHUNK][8];
  } weight;
} chunk;

static void chunk_fill(chunk *c, const resample *p, int64_t first, int64_t count) {
  for (int64_t i = 0; i < count; i++) {
    mpg_taps taps = mpg_resample_taps(&p->axis, first + i);
    for (int k = 0; k < p->axis.count; k++) {
      c->at[i][k] = taps.at[k] * p->inner;
      if (p->wide)
        c->weight.f64[i][k] = taps.weight[k];
      else
        c->weight.f32[i][k] = (float)taps.weight[k];
    }
  }
}

#define RESAMPLE(T, field)                                                                   \
  __attribute__((always_inline)) static inline void row_##field##_of(                        \
      const T *in, T *out, const int64_t *at, const T *weight, int64_t inner, int count) {   \
    if (count == 2) {                                                                        \
      const T *a = in + at[0], *b = in + at[1];                                              \
      for (int64_t i = 0; i < inner; i++) out[i] = a[i] * weight[0] + b[i] * weight[1];      \
      return;                                                                                \
    }                                                                                        \
    for (int64_t i = 0; i < inner; i++) out[i] = in[at[0] + i] * weight[0];                  \
    for (int k = 1; k < count; k++)                                                          \
      for (int64_t i = 0; i < inner; i++) out[i] += in[at[k] + i] * weight[k];               \
  }                                                                                          \
  /* Computes elements [first, last) of a chunk, for one outer index. */                     \
  static void chunk_##field(const resample *p, const chunk *c, int64_t outer, int64_t begin, \
                            int64_t first, int64_t last) {                                   \
    const T *in = (const T *)p->in + outer * p->axis.from * p->inner;                        \
    T *out = (T *)p->out + (outer * p->axis.size + begin) * p->inner;                        \
    int count = p->axis.count;                                                               \
    for (int64_t i = first; i < last; i++) {                                                 \
      T *row = out + i * p->inner;                                                           \
      const int64_t *at = c->at[i];                                                          \
      const T *weight = c->weight.field[i];                                                  \
      if (count == 2 && p->inner == 1)                                                       \
        row_##field##_of(in, row, at, weight, 1, 2);                                         \
      else if (count == 2 && p->inner == 3)                                                  \
        row_##field##_of(in, row, at, weight, 3, 2);                                         \
      else if (count == 2)                                                                   \
        row_##field##_of(in, row, at, weight, p->inner, 2);                                  \
      else                                                                                   \
        row_##field##_of(in, row, at, weight, p->inner, count);                              \
    }                                                                                        \
  }                                                                                          \
  static void back_##field(const resample *p, const chunk *c, int64_t outer, int64_t begin,  \
                           int64_t count, int64_t low, int64_t high) {                       \
    const T *in = (const T *)p->in + (outer * p->axis.size + begin) * p->inner;              \
    T *out = (T *)p->out + outer * p->axis.from * p->inner;                                  \
    for (int64_t i = 0; i < count; i++)                                                      \
      for (int k = 0; k < p->axis.count; k++) {                                              \
        T weight = c->weight.field[i][k], *to = out + c->at[i][k];                           \
        for (int64_t j = low; j < high; j++) to[j] += in[i * p->inner + j] * weight;         \
      }                                                                                      \
  }
RESAMPLE(float, f32)
RESAMPLE(double, f64)

/* Computes the forward pass. A unit is one element along the axis for one outer index. */
static void forward_range(void *context, int64_t begin, int64_t end) {
  const resample *p = context;
  int64_t size = p->axis.size, first_outer = begin / size, last_outer = (end - 1) / size;
  chunk c;
  for (int64_t at = 0; at < size; at += CHUNK) {
    int64_t count = size - at < CHUNK ? size - at : CHUNK;
    bool filled = false;
    for (int64_t outer = first_outer; outer <= last_outer; outer++) {
      int64_t first = begin - outer * size - at, last = end - outer * size - at;
      if (first < 0) first = 0;
      if (last > count) last = count;
      if (first >= last) continue;
      if (!filled) chunk_fill(&c, p, at, count);
      filled = true;
      if (p->wide)
        chunk_f64(p, &c, outer, at, first, last);
      else
        chunk_f32(p, &c, outer, at, first, last);
    }
  }
}

/* Computes the backward pass. A unit is one block of `inner` for one outer index. Contributions to
 * an element are added in the order of the forward results. */
static void backward_range(void *context, int64_t begin, int64_t end) {
  const resample *p = context;
  size_t item = p->wide ? sizeof(double) : sizeof(float);
  chunk c;
  for (int64_t at = 0; at < p->axis.size; at += CHUNK) {
    int64_t count = p->axis.size - at < CHUNK ? p->axis.size - at : CHUNK;
    chunk_fill(&c, p, at, count);
    for (int64_t unit = begin; unit < end; unit++) {
      int64_t outer = unit / p->blocks, low = unit % p->blocks * BLOCK;
      int64_t high = low + BLOCK < p->inner ? low + BLOCK : p->inner;
      if (at == 0)
        for (int64_t row = 0; row < p->axis.from; row++)
          memset((char *)p->out + (size_t)((outer * p->axis.from + row) * p->inner + low) * item, 0,
                 (size_t)(high - low) * item);
      if (p->wide)
        back_f64(p, &c, outer, at, count, low, high);
      else
        back_f32(p, &c, outer, at, count, low, high);
    }
  }
}

mpg_status mpg_cpu_resample(const mpg_kernel_call *call) {
  const mpg_resample_params *params = call->params;
  const mpg_desc *out = &call->outputs[0].desc;
  int axis = (int)params->axis.value;
  int64_t outer = mpg_shape_product(&out->shape, 0, axis);
  resample p = {.in = call->inputs[0].data,
                .out = call->outputs[0].data,
                .axis = mpg_resample_axis_of(params->length, params->size, (int)params->kind,
                                             params->align_corners),
                .inner = mpg_shape_product(&out->shape, axis + 1, out->shape.ndim),
                .wide = out->dtype == MPG_FLOAT64};
  if (!mpg_shape_size(&out->shape)) return MPG_OK;
  p.blocks = (p.inner + BLOCK - 1) / BLOCK;
  if (params->transposed)
    mpg_cpu_parallel_for(call, outer * p.blocks, 1 + GRAIN / (p.axis.from * p.inner),
                         backward_range, &p);
  else
    mpg_cpu_parallel_for(call, outer * p.axis.size, 1 + GRAIN / p.inner, forward_range, &p);
  return MPG_OK;
}
