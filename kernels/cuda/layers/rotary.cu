/* Rotary position embedding and its gradient. A thread owns one pair of features at one position of
 * (batch, time). It computes the angle once and rotates the pair in every head, so adjacent threads
 * access adjacent elements. */
#include "kernels/cuda/access.h"
extern "C" {
#include "op/attention/rotary.h"
}

namespace {

/* Arguments of the kernel, passed by value; the frequencies take 1 KB. */
template <class T>
struct rotation {
  mpg_rotary shape;
  const T *x;
  T *y;
  const void *positions; /* NULL: shape.start, shape.start + 1, ... */
  bool wide;             /* positions are int64 */
  double direction;      /* 1, or -1 for the gradient */
};

template <class C>
struct turn {
  C cosine, sine;
};

/* Reduces the angle in double, because float has too few digits for large positions. */
__device__ __forceinline__ turn<float> turn_by(double angle, double scale, double direction,
                                               float) {
  double turns = angle * 0.15915494309189533577; /* 1 / (2 pi) */
  float sine, cosine, rest = (float)((turns - rint(turns)) * 6.283185307179586477);
  sincosf(rest, &sine, &cosine);
  return {cosine * (float)scale, sine * (float)(scale * direction)};
}
__device__ __forceinline__ turn<double> turn_by(double angle, double scale, double direction,
                                                double) {
  double sine, cosine;
  sincos(angle, &sine, &cosine);
  return {cosine * scale, sine * scale * direction};
}

template <class T, class C>
__global__ void rotary_kernel(const __grid_constant__ rotation<T> t) {
  const mpg_rotary &s = t.shape;
  /* Threads beyond the pairs copy the features that are not rotated. */
  int64_t each = s.pairs + (s.size - 2 * s.pairs), units = s.batch * s.time * each;
  for (int64_t unit = MPG_CUDA_INDEX; unit < units; unit += MPG_CUDA_STRIDE) {
    int64_t i = unit % each, row = unit / each, b = row / s.time, time = row % s.time;
    int64_t at = b * s.by_batch + time * s.by_time;
    if (i >= s.pairs) {
      for (int64_t h = 0; h < s.heads; h++) {
        int64_t k = at + h * s.by_head + i + s.pairs;
        t.y[k] = t.x[k];
      }
      continue;
    }
    int64_t place = s.positions_by_batch ? row : time;
    double position = !t.positions ? (double)(s.start + place)
                      : t.wide     ? (double)((const int64_t *)t.positions)[place]
                                   : (double)((const int32_t *)t.positions)[place];
    turn<C> by = turn_by(position * (double)s.frequencies[i], s.scale, t.direction, (C)0);
    int64_t first = s.adjacent ? 2 * i : i, second = s.adjacent ? 2 * i + 1 : i + s.pairs;
    for (int64_t h = 0; h < s.heads; h++, at += s.by_head) {
      C x = mpg_to<C>(t.x[at + first]), y = mpg_to<C>(t.x[at + second]);
      t.y[at + first] = mpg_to<T>(x * by.cosine - y * by.sine);
      t.y[at + second] = mpg_to<T>(y * by.cosine + x * by.sine);
    }
  }
}

template <class T, class C>
mpg_status run(const mpg_kernel_call *call) {
  const mpg_view *x = &call->inputs[0], *positions = call->num_inputs > 1 ? &call->inputs[1] : NULL;
  rotation<T> t = {};
  mpg_rotary_make((const mpg_rotary_params *)call->params, &x->desc.shape,
                  positions ? &positions->desc.shape : NULL, &t.shape);
  t.x = (const T *)x->data;
  t.y = (T *)call->outputs[0].data;
  t.positions = positions ? positions->data : NULL;
  t.wide = positions && positions->desc.dtype == MPG_INT64;
  t.direction = call->op->id == MPG_OP__backward_rotary ? -1 : 1;
  int64_t units = t.shape.batch * t.shape.time * (t.shape.size - t.shape.pairs);
  return mpg_cuda_launch(call, rotary_kernel<T, C>, mpg_cuda_blocks(units), MPG_CUDA_THREADS, 0, t);
}

} // namespace

mpg_status mpg_cuda_rotary(const mpg_kernel_call *call) {
  MPG_CUDA_RUN_FLOAT(call->inputs[0].desc.dtype, run, call);
}
