/* Padding and its transpose. */
#include <string.h>

#include "kernels/common/view.h"
#include "kernels/cpu/convert.h"
#include "kernels/cpu/array/move.h"

/* The input goes into the middle. Then, from the last dimension to the first, both ends are filled
 * from the array itself: at dimension d all later ones are complete, and of the earlier ones only
 * the middle is filled yet. */
MPG_CPU_KERNEL(pad) {
  const mpg_pad_params *params = call->params;
  const mpg_view *in = &call->inputs[0], *out = &call->outputs[0];
  const mpg_shape *from = &in->desc.shape, *to = &out->desc.shape;
  int64_t in_strides[MPG_MAX_NDIM], strides[MPG_MAX_NDIM], base = 0, item = (int64_t)item_of(in);
  mpg_dense_strides(from, in_strides);
  mpg_dense_strides(to, strides);
  mpg_move move = {0};
  for (int i = 0; i < to->ndim; i++) {
    mpg_move_add(&move, from->dims[i], in_strides[i], strides[i]);
    base += params->pad_width.values[2 * i] * strides[i];
  }
  if (params->mode == 0) {
    double value = params->constant_value;
    uint64_t element = 0;
    mpg_cpu_store(MPG_COMPUTE_F64, out->desc.dtype, &element, 0, 1, &value);
    if (out->desc.dtype == MPG_FLOAT64) memcpy(&element, &value, sizeof value);
    mpg_cpu_fill(call, out->data, mpg_shape_size(to), item_of(out), &element);
  }
  if (mpg_shape_size(from) > 0)
    mpg_cpu_move(call, &move, in->data, (char *)out->data + base * item, item_of(in));
  if (params->mode == 0 || mpg_shape_size(from) == 0) return MPG_OK;
  for (int d = to->ndim - 1; d >= 0; d--) {
    int64_t before = params->pad_width.values[2 * d], after = params->pad_width.values[2 * d + 1],
            dim = from->dims[d];
    base -= before * strides[d];
    for (int side = 0; side < 2; side++) {
      int64_t count = side ? after : before, first = side ? before + dim : 0, source, step;
      if (count == 0) continue;
      if (params->mode == 1) { /* edge */
        source = side ? before + dim - 1 : before;
        step = 0;
      } else { /* reflect: position p shows its mirror image at the border element */
        source = side ? before + dim - 2 : 2 * before;
        step = -1;
      }
      mpg_move fill = {0};
      for (int i = 0; i < to->ndim; i++)
        mpg_move_add(&fill,
                     i < d   ? from->dims[i]
                     : i > d ? to->dims[i]
                             : count,
                     i == d ? step * strides[i] : strides[i], strides[i]);
      mpg_cpu_move(call, &fill, (char *)out->data + (base + source * strides[d]) * item,
                   (char *)out->data + (base + first * strides[d]) * item, item_of(out));
    }
  }
  return MPG_OK;
}

/* The same steps backwards: from the first dimension to the last, the gradients of both ends are
 * added to the elements they were copied from. Works on a float (or double) copy of the padded
 * gradient. */
typedef struct fold {
  void *data;
  bool wide; /* double */
  int mode;
  int64_t length, after_size, before, after, dim;
} fold;

#define FOLD(type)                                                        \
  static void fold_##type(const fold *f, int64_t line) {                  \
    type *rows = (type *)f->data + line * f->length * f->after_size;      \
    for (int side = 0; side < 2; side++) {                                \
      int64_t count = side ? f->after : f->before;                        \
      for (int64_t j = 0; j < count; j++) {                               \
        int64_t position = side ? f->before + f->dim + j : j, source;     \
        if (f->mode == 1)                                                 \
          source = side ? f->before + f->dim - 1 : f->before;             \
        else                                                              \
          source = side ? f->before + f->dim - 2 - j : 2 * f->before - j; \
        type *target = rows + source * f->after_size;                     \
        const type *from = rows + position * f->after_size;               \
        for (int64_t i = 0; i < f->after_size; i++) target[i] += from[i]; \
      }                                                                   \
    }                                                                     \
  }
FOLD(float)
FOLD(double)
#undef FOLD

static void fold_lines(void *context, int64_t begin, int64_t end) {
  const fold *f = context;
  for (int64_t line = begin; line < end; line++) {
    if (f->wide)
      fold_double(f, line);
    else
      fold_float(f, line);
  }
}

MPG_CPU_KERNEL(pad_back) {
  const mpg_pad_back_params *params = call->params;
  const mpg_view *in = &call->inputs[0], *out = &call->outputs[0];
  const mpg_shape *from = &in->desc.shape, *to = &out->desc.shape;
  int64_t total = mpg_shape_size(from), result = mpg_shape_size(to);
  bool wide = in->desc.dtype == MPG_FLOAT64;
  mpg_compute compute = wide ? MPG_COMPUTE_F64 : MPG_COMPUTE_F32;
  size_t width = wide ? sizeof(double) : sizeof(float);
  if (result == 0) return MPG_OK;
  size_t work_bytes = ((size_t)total * width + 63) & ~(size_t)63;
  char *work = mpg_device_scratch(call->device, work_bytes + (size_t)result * width);
  if (!work) return MPG_DEVICE_OUT_OF_MEMORY;
  void *middle = work + work_bytes;
  mpg_block_buffer buffer;
  for (int64_t i = 0; i < total; i += MPG_CPU_BLOCK) {
    int64_t count = total - i < MPG_CPU_BLOCK ? total - i : MPG_CPU_BLOCK;
    memcpy(work + (size_t)i * width,
           mpg_cpu_load(compute, in->desc.dtype, in->data, i, count, &buffer),
           (size_t)count * width);
  }
  for (int d = 0; d < to->ndim && params->mode != 0; d++) {
    fold f = {.data = work,
              .wide = wide,
              .mode = params->mode,
              .length = from->dims[d],
              .after_size = mpg_shape_product(from, d + 1, from->ndim),
              .before = params->pad_width.values[2 * d],
              .after = params->pad_width.values[2 * d + 1],
              .dim = to->dims[d]};
    if (f.before + f.after == 0) continue;
    mpg_cpu_parallel_for(call, mpg_shape_product(from, 0, d),
                         1 + 16384 / (f.after_size * f.length + 1), fold_lines, &f);
  }
  int64_t strides[MPG_MAX_NDIM], dense[MPG_MAX_NDIM], base = 0;
  mpg_dense_strides(from, strides);
  mpg_dense_strides(to, dense);
  mpg_move move = {0};
  for (int i = 0; i < to->ndim; i++) {
    mpg_move_add(&move, to->dims[i], strides[i], dense[i]);
    base += params->pad_width.values[2 * i] * strides[i];
  }
  bool direct = mpg_compute_direct(compute, out->desc.dtype);
  void *target = direct ? out->data : middle;
  mpg_cpu_move(call, &move, work + (size_t)base * width, target, width);
  if (!direct)
    for (int64_t i = 0; i < result; i += MPG_CPU_BLOCK)
      mpg_cpu_store(compute, out->desc.dtype, out->data, i,
                    result - i < MPG_CPU_BLOCK ? result - i : MPG_CPU_BLOCK,
                    (const char *)middle + (size_t)i * width);
  return MPG_OK;
}
