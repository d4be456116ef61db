/* Correlation of an image with a second image at a range of displacements, and its gradients.
 * csrc/op/vision/correlation.c defines the pairs of pixels. A work unit is a row of the first image
 * or a plane of the second. The order of sums does not depend on threads. */
#include <string.h>

#include "kernels/cpu/convert.h"

typedef struct job {
  const mpg_kernel_call *call;
  int64_t batch, channels, rows, columns, height, width, across, radius, stride, most, step;
  const void *a, *b; /* inputs in the computing type */
  void *out;
} job;

/* Returns the offset, in a plane of the second image, of the pixel that is paired with the first
 * pixel of row i of the first image at a displacement. */
static inline int64_t meets(const job *t, int64_t i, int64_t displacement) {
  int64_t down = (displacement / t->across - t->radius) * t->stride,
          right = (displacement % t->across - t->radius) * t->stride;
  return (t->most + i * t->step + down) * t->width + t->most + right;
}

#define KERNELS(T)                                                                               \
  static void products_##T(void *context, int64_t begin, int64_t end) {                          \
    const job *t = context;                                                                      \
    int64_t all = t->across * t->across;                                                         \
    for (int64_t at = begin; at < end; at++) {                                                   \
      int64_t n = at / t->rows, i = at % t->rows;                                                \
      for (int64_t d = 0; d < all; d++) {                                                        \
        T *restrict out = (T *)t->out + ((n * all + d) * t->rows + i) * t->columns;              \
        memset(out, 0, (size_t)t->columns * sizeof *out);                                        \
        for (int64_t c = 0; c < t->channels; c++) {                                              \
          const T *first = (const T *)t->a + ((n * t->channels + c) * t->rows + i) * t->columns, \
                  *second = (const T *)t->b + (n * t->channels + c) * t->height * t->width +     \
                            meets(t, i, d);                                                      \
          if (t->step == 1)                                                                      \
            for (int64_t j = 0; j < t->columns; j++) out[j] += first[j] * second[j];             \
          else                                                                                   \
            for (int64_t j = 0; j < t->columns; j++) out[j] += first[j] * second[j * t->step];   \
        }                                                                                        \
      }                                                                                          \
    }                                                                                            \
  }                                                                                              \
  static void first_##T(void *context, int64_t begin, int64_t end) {                             \
    const job *t = context;                                                                      \
    int64_t all = t->across * t->across;                                                         \
    for (int64_t at = begin; at < end; at++) {                                                   \
      int64_t n = at / t->rows, i = at % t->rows;                                                \
      for (int64_t c = 0; c < t->channels; c++) {                                                \
        T *restrict out = (T *)t->out + ((n * t->channels + c) * t->rows + i) * t->columns;      \
        const T *plane = (const T *)t->b + (n * t->channels + c) * t->height * t->width;         \
        memset(out, 0, (size_t)t->columns * sizeof *out);                                        \
        for (int64_t d = 0; d < all; d++) {                                                      \
          const T *products = (const T *)t->a + ((n * all + d) * t->rows + i) * t->columns,      \
                  *second = plane + meets(t, i, d);                                              \
          for (int64_t j = 0; j < t->columns; j++) out[j] += products[j] * second[j * t->step];  \
        }                                                                                        \
      }                                                                                          \
    }                                                                                            \
  }                                                                                              \
  static void second_##T(void *context, int64_t begin, int64_t end) {                            \
    const job *t = context;                                                                      \
    int64_t all = t->across * t->across;                                                         \
    for (int64_t at = begin; at < end; at++) {                                                   \
      int64_t n = at / t->channels;                                                              \
      T *plane = (T *)t->out + at * t->height * t->width;                                        \
      memset(plane, 0, (size_t)(t->height * t->width) * sizeof *plane);                          \
      for (int64_t d = 0; d < all; d++)                                                          \
        for (int64_t i = 0; i < t->rows; i++) {                                                  \
          const T *products = (const T *)t->a + ((n * all + d) * t->rows + i) * t->columns,      \
                  *first = (const T *)t->b + (at * t->rows + i) * t->columns;                    \
          T *restrict out = plane + meets(t, i, d);                                              \
          for (int64_t j = 0; j < t->columns; j++) out[j * t->step] += products[j] * first[j];   \
        }                                                                                        \
    }                                                                                            \
  }
KERNELS(float)
KERNELS(double)

typedef void loop(void *, int64_t, int64_t);

/* Runs a loop over planes of the second image if `by_plane`, else over rows of the first. `first`
 * has shape (batch, ., rows, columns), `second` (batch, ., height, width). Halves are computed in
 * float. */
static mpg_status run(const mpg_kernel_call *call, const mpg_shape *first, const mpg_shape *second,
                      bool by_plane, loop *of_float, loop *of_double) {
  const mpg_displaced_params *p = call->params;
  const mpg_view *views[] = {&call->inputs[0], &call->inputs[1], &call->outputs[0]};
  mpg_dtype dtype = views[0]->desc.dtype;
  mpg_compute compute = mpg_compute_of(dtype);
  void *places[3];
  job t = {.call = call,
           .batch = first->dims[0],
           .channels = second->dims[1],
           .rows = first->dims[2],
           .columns = first->dims[3],
           .height = second->dims[2],
           .width = second->dims[3],
           .radius = p->most / p->stride,
           .stride = p->stride,
           .most = p->most,
           .step = p->step};
  t.across = 2 * t.radius + 1;
  char *scratch = NULL;
  size_t sizes[3], all = 0;
  for (int i = 0; i < 3; i++) {
    sizes[i] = (size_t)mpg_shape_size(&views[i]->desc.shape);
    all += sizes[i] * sizeof(float);
    places[i] = views[i]->data;
  }
  if (!mpg_compute_direct(compute, dtype)) {
    if (!(scratch = mpg_device_scratch(call->device, all))) return MPG_DEVICE_OUT_OF_MEMORY;
    for (int i = 0; i < 3; i++) {
      places[i] = scratch;
      scratch += sizes[i] * sizeof(float);
      if (i < 2) mpg_cpu_load_all(compute, dtype, views[i]->data, 0, (int64_t)sizes[i], places[i]);
    }
  }
  t.a = places[0], t.b = places[1], t.out = places[2];
  mpg_cpu_parallel_for(call, t.batch * (by_plane ? t.channels : t.rows), 1,
                       compute == MPG_COMPUTE_F64 ? of_double : of_float, &t);
  if (scratch)
    for (int64_t i = 0; i < (int64_t)sizes[2]; i += MPG_CPU_BLOCK) {
      int64_t rest = (int64_t)sizes[2] - i;
      mpg_cpu_store(compute, dtype, views[2]->data, i, rest < MPG_CPU_BLOCK ? rest : MPG_CPU_BLOCK,
                    (const float *)places[2] + i);
    }
  return MPG_OK;
}

mpg_status mpg_cpu_displaced_products(const mpg_kernel_call *call) {
  return run(call, &call->inputs[0].desc.shape, &call->inputs[1].desc.shape, false, products_float,
             products_double);
}

mpg_status mpg_cpu_displaced_first(const mpg_kernel_call *call) {
  return run(call, &call->inputs[0].desc.shape, &call->inputs[1].desc.shape, false, first_float,
             first_double);
}

mpg_status mpg_cpu_displaced_second(const mpg_kernel_call *call) {
  return run(call, &call->inputs[1].desc.shape, &call->outputs[0].desc.shape, true, second_float,
             second_double);
}
