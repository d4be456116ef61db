/* Convolution and Deconvolution, by oneDNN or by im2col and matrix products. */
#include "op/layers/convolution.h"

#include <string.h>

#include "base/memory.h"
#include "kernels/cpu/products/gemm.h"
#include "kernels/cpu/convert.h"
#include "kernels/cpu/array/move.h"
#include "kernels/cpu/vendor/onednn_convolution.h"

/* --- im2col ----------------------------------------------------------------------------------- */
/* Matrix of im2col columns. Row r is one element of the window (channel, then kernel position),
 * with one entry per output position. */
typedef struct columns {
  const mpg_convolution *c;
  mpg_dtype dtype;
  int64_t channels;     /* channels of one group */
  int64_t first, count; /* range of output positions */
  const void *image;    /* image of one sample and group */
  void *columns;        /* (channels * window, count) */
} columns;

/* Executes BODY for each element of the matrix's rows [begin, end). BODY may use *column, which is
 * the element. If `inside`, it may also use image[line + ix], the matching element of the image. */
#define VISIT(T, BODY)                                                                           \
  mpg_window w = mpg_window_with_axes(&t->c->window, 3);                                         \
  int64_t window = w.kernel[0] * w.kernel[1] * w.kernel[2], plane = w.in[0] * w.in[1] * w.in[2]; \
  for (int64_t r = begin; r < end; r++) {                                                        \
    int64_t k = r % window, kx = k % w.kernel[2], ky = k / w.kernel[2] % w.kernel[1],            \
            kz = k / w.kernel[2] / w.kernel[1];                                                  \
    T *image = (T *)t->image + r / window * plane, *column = (T *)t->columns + r * t->count;     \
    for (int64_t place = t->first; place < t->first + t->count;) {                               \
      int64_t x0 = place % w.out[2], y = place / w.out[2] % w.out[1],                            \
              z = place / w.out[2] / w.out[1];                                                   \
      int64_t iz = z * w.stride[0] - w.pad[0] + kz * w.dilate[0],                                \
              iy = y * w.stride[1] - w.pad[1] + ky * w.dilate[1];                                \
      bool row_inside = iz >= 0 && iz < w.in[0] && iy >= 0 && iy < w.in[1];                      \
      int64_t line = (iz * w.in[1] + iy) * w.in[2], left = t->first + t->count - place;          \
      int64_t x1 = w.out[2] - x0 < left ? w.out[2] : x0 + left,                                  \
              ix = x0 * w.stride[2] - w.pad[2] + kx * w.dilate[2];                               \
      for (int64_t x = x0; x < x1; x++, ix += w.stride[2], column++) {                           \
        bool inside = row_inside && ix >= 0 && ix < w.in[2];                                     \
        BODY;                                                                                    \
      }                                                                                          \
      place += x1 - x0;                                                                          \
    }                                                                                            \
  }

#define GATHER_ROWS(T)                                                \
  static void gather_##T(void *context, int64_t begin, int64_t end) { \
    const columns *t = context;                                       \
    VISIT(T, *column = inside ? image[line + ix] : 0)                 \
  }
GATHER_ROWS(uint16_t)
GATHER_ROWS(float)
GATHER_ROWS(double)

/* Adds the columns of channels [begin, end) into the image (col2im). Threads divide the channels,
 * so no two threads write the same element. */
#define SCATTER_ROWS(name, T, ADD)                                             \
  static void scatter_##name(void *context, int64_t begin, int64_t end) {      \
    const columns *t = context;                                                \
    int64_t size = mpg_window_product(t->c->window.kernel, t->c->window.ndim); \
    begin *= size;                                                             \
    end *= size;                                                               \
    VISIT(T, if (inside) image[line + ix] = ADD(image[line + ix], *column))    \
  }
#define PLUS(a, b) ((a) + (b))
#define PLUS_HALF(a, b) mpg_float_to_half(mpg_half_to_float(a) + mpg_half_to_float(b))
#define PLUS_BFLOAT16(a, b) \
  mpg_float_to_bfloat16(mpg_bfloat16_to_float(a) + mpg_bfloat16_to_float(b))
SCATTER_ROWS(float, float, PLUS)
SCATTER_ROWS(double, double, PLUS)
SCATTER_ROWS(half, uint16_t, PLUS_HALF)
SCATTER_ROWS(bfloat16, uint16_t, PLUS_BFLOAT16)

static void gather(const mpg_kernel_call *call, columns *t) {
  mpg_range_fn body = t->dtype == MPG_FLOAT32   ? gather_float
                      : t->dtype == MPG_FLOAT64 ? gather_double
                                                : gather_uint16_t;
  int64_t rows = t->channels * mpg_window_product(t->c->window.kernel, t->c->window.ndim);
  mpg_cpu_parallel_for(call, rows, 1 + 8192 / (t->count + 1), body, t);
}

static void scatter(const mpg_kernel_call *call, columns *t) {
  mpg_range_fn body = t->dtype == MPG_FLOAT32   ? scatter_float
                      : t->dtype == MPG_FLOAT64 ? scatter_double
                      : t->dtype == MPG_FLOAT16 ? scatter_half
                                                : scatter_bfloat16;
  int64_t window = mpg_window_product(t->c->window.kernel, t->c->window.ndim);
  mpg_cpu_parallel_for(call, t->channels, 1 + 8192 / (window * t->count + 1), body, t);
}

/* --- Plain convolutions: im2col and matrix products ------------------------------------------- */
/* Plain convolution in one dtype, float32 or float64. `scratch` holds one block of columns. */
typedef struct plain {
  mpg_convolution c;
  mpg_dtype dtype;
  int64_t rows;   /* channels of a group times the window size */
  int64_t places; /* number of output positions */
  int64_t block;  /* output positions per block of columns */
} plain;

static plain plain_setup(const mpg_convolution *c, mpg_dtype dtype) {
  plain p = {.c = *c, .dtype = dtype};
  p.rows = c->channels / c->groups * mpg_window_product(c->window.kernel, c->window.ndim);
  p.places = mpg_window_product(c->window.out, c->window.ndim);
  p.block = (1 << 20) / (p.rows + 1);
  if (p.block < 256) p.block = 256;
  if (p.block > p.places) p.block = p.places;
  return p;
}
static size_t plain_scratch(const plain *p) {
  return (size_t)(p->rows * p->block) * mpg_dtype_size(p->dtype);
}

static char *at(const void *base, int64_t elements, mpg_dtype dtype) {
  return (char *)base + elements * (int64_t)mpg_dtype_size(dtype);
}

/* Runs a convolution as matrix products:
 *   MPG_FORWARD            out = w x columns(data)
 *   MPG_BACKWARD_DATA      data = scatter(w^T x out)
 *   MPG_BACKWARD_WEIGHT    w = sum of out x columns(data)^T */
static mpg_status plain_convolution(const mpg_kernel_call *call, const plain *p, int direction,
                                    void *data, void *weight, void *out, void *scratch) {
  const mpg_convolution *c = &p->c;
  int64_t channels = c->channels / c->groups, filters = c->filters / c->groups,
          plane = mpg_window_product(c->window.in, c->window.ndim);
  size_t size = mpg_dtype_size(p->dtype);
  if (direction == MPG_BACKWARD_DATA)
    memset(data, 0, (size_t)(c->batch * c->channels * plane) * size);
  if (direction == MPG_BACKWARD_WEIGHT) memset(weight, 0, (size_t)(c->filters * p->rows) * size);
  for (int64_t n = 0; n < c->batch; n++)
    for (int64_t group = 0; group < c->groups; group++) {
      char *image = at(data, (n * c->channels + group * channels) * plane, p->dtype);
      char *w = at(weight, group * filters * p->rows, p->dtype);
      for (int64_t first = 0; first < p->places; first += p->block) {
        int64_t count = p->places - first < p->block ? p->places - first : p->block;
        char *y = at(out, (n * c->filters + group * filters) * p->places + first, p->dtype);
        columns t = {c, p->dtype, channels, first, count, image, scratch};
        if (direction == MPG_BACKWARD_DATA) {
          MPG_TRY(mpg_cpu_gemm_any(call, p->dtype, true, false, p->rows, count, filters, 1, w,
                                   p->rows, y, p->places, 0, scratch, count));
          scatter(call, &t);
          continue;
        }
        gather(call, &t);
        if (direction == MPG_FORWARD)
          MPG_TRY(mpg_cpu_gemm_any(call, p->dtype, false, false, filters, count, p->rows, 1, w,
                                   p->rows, scratch, count, 0, y, p->places));
        else
          MPG_TRY(mpg_cpu_gemm_any(call, p->dtype, false, true, filters, p->rows, count, 1, y,
                                   p->places, scratch, count, 1, w, p->rows));
      }
    }
  return MPG_OK;
}

/* Returns the size in bytes of the transposed copies of channels-last arrays. The copies follow the
 * block of columns in `scratch`. The result is transposed back. */
static size_t transposed_bytes(const mpg_convolution *c, const int64_t *sizes, mpg_dtype dtype) {
  int64_t elements = (c->layout == MPG_CHANNELS_FIRST ? 0 : sizes[0] + sizes[2]) +
                     (c->layout == MPG_CHANNELS_LAST ? sizes[1] : 0);
  return (size_t)elements * mpg_dtype_size(dtype);
}

/* Transposes (outer, a, b) to (outer, b, a). */
static void exchange(const mpg_kernel_call *call, int64_t outer, int64_t a, int64_t b,
                     const void *in, void *out, mpg_dtype dtype) {
  mpg_move move = {0};
  mpg_move_add(&move, outer, a * b, a * b);
  mpg_move_add(&move, a, b, 1);
  mpg_move_add(&move, b, 1, a);
  mpg_cpu_move(call, &move, in, out, mpg_dtype_size(dtype));
}

static mpg_status plain_in_layout(const mpg_kernel_call *call, const plain *p, int direction,
                                  void *const *buffers, const int64_t *sizes, void *scratch) {
  const mpg_convolution *c = &p->c;
  int64_t outer[3] = {c->batch, c->filters, c->batch},
          channels[3] = {c->channels, c->channels / c->groups, c->filters};
  bool last[3] = {c->layout != MPG_CHANNELS_FIRST, c->layout == MPG_CHANNELS_LAST,
                  c->layout != MPG_CHANNELS_FIRST};
  int result = direction == MPG_FORWARD ? 2 : direction == MPG_BACKWARD_DATA ? 0 : 1;
  char *next = (char *)scratch + plain_scratch(p);
  void *work[3];
  for (int i = 0; i < 3; i++) {
    work[i] = buffers[i];
    if (!last[i]) continue;
    work[i] = next;
    next += (size_t)sizes[i] * mpg_dtype_size(p->dtype);
    if (i != result)
      exchange(call, outer[i], sizes[i] / outer[i] / channels[i], channels[i], buffers[i], work[i],
               p->dtype);
  }
  MPG_TRY(plain_convolution(call, p, direction, work[0], work[1], work[2], scratch));
  if (last[result])
    exchange(call, outer[result], channels[result],
             sizes[result] / outer[result] / channels[result], work[result], buffers[result],
             p->dtype);
  return MPG_OK;
}

/* --- Entry points ----------------------------------------------------------------------------- */
typedef struct bias_planes {
  int64_t channels, plane;
  mpg_dtype dtype;
  const void *bias;
  void *out;
} bias_planes;

/* Adds the bias to planes [begin, end). A plane is one channel of one sample. */
static void add_bias(void *context, int64_t begin, int64_t end) {
  const bias_planes *t = context;
  for (int64_t r = begin; r < end; r++)
    if (t->dtype == MPG_FLOAT64) {
      double *row = (double *)t->out + r * t->plane,
             value = ((const double *)t->bias)[r % t->channels];
      for (int64_t i = 0; i < t->plane; i++) row[i] += value;
    } else {
      float *row = (float *)t->out + r * t->plane,
            value = ((const float *)t->bias)[r % t->channels];
      for (int64_t i = 0; i < t->plane; i++) row[i] += value;
    }
}

#ifdef MPG_WITH_ONEDNN
/* True if im2col is faster than oneDNN, which pads a small number of channels to a full vector in
 * the data gradient of a strided convolution. */
static bool few_channels(const mpg_convolution *c, int direction) {
  return direction == MPG_BACKWARD_DATA && c->groups == 1 && c->channels <= 4 &&
         mpg_window_product(c->window.stride, c->window.ndim) > 1;
}

static const mpg_onednn_prepared *find_prepared(const mpg_kernel_call *call,
                                                mpg_onednn_convolution *how) {
  mpg_onednn_key key = mpg_onednn_convolution_key(how);
  key.kind = MPG_ONEDNN_CONVOLUTION + how->direction;
  return mpg_cpu_onednn_find(call, &key, mpg_cpu_onednn_convolution_build, how);
}
#endif

/* Runs a convolution. Half precision is converted to float32 and back, unless oneDNN has a fast
 * bfloat16 primitive. `buffers` has data, weight, out, and bias (or NULL). */
static mpg_status run(const mpg_kernel_call *call, const mpg_convolution *c, int direction,
                      mpg_dtype dtype, void *const *buffers) {
  int result = direction == MPG_FORWARD ? 2 : direction == MPG_BACKWARD_DATA ? 0 : 1;
  int64_t in = mpg_window_product(c->window.in, c->window.ndim),
          out = mpg_window_product(c->window.out, c->window.ndim);
  int64_t kernel = mpg_window_product(c->window.kernel, c->window.ndim);
  int64_t bias_size = !buffers[3] ? 0 : direction == MPG_FORWARD ? c->filters : c->channels;
  int64_t sizes[4] = {c->batch * c->channels * in, c->filters * (c->channels / c->groups) * kernel,
                      c->batch * c->filters * out, bias_size};
  if (sizes[result] == 0) return MPG_OK;
  bool empty = false; /* true if sums are empty, so that the result is zero */
  for (int i = 0; i < 3; i++) empty |= sizes[i] == 0;
  mpg_dtype computed = dtype == MPG_FLOAT64 ? dtype : MPG_FLOAT32;
#ifdef MPG_WITH_ONEDNN
  mpg_onednn_convolution how = {.c = c,
                                .dtype = mpg_cpu_onednn_dtype(dtype),
                                .direction = direction,
                                .bias = direction == MPG_FORWARD && buffers[3]};
  const mpg_onednn_prepared *prepared = NULL;
  if (!empty && dtype == MPG_BFLOAT16 && how.dtype && !(buffers[3] && !how.bias))
    prepared = find_prepared(call, &how);
  if (prepared) computed = dtype;
  how.dtype = dnnl_f32;
  if (!empty && computed == MPG_FLOAT32 && !few_channels(c, direction))
    prepared = find_prepared(call, &how);
#endif
  bool half = mpg_dtype_size(dtype) == 2 && computed != dtype;
  plain p = plain_setup(c, computed);
  size_t scratch_size = empty ? 0 : plain_scratch(&p) + transposed_bytes(c, sizes, computed),
         offsets[4] = {0}, total = 0;
#ifdef MPG_WITH_ONEDNN
  if (prepared) scratch_size = prepared->scratch;
#endif
  if (half)
    for (int i = 0; i < 4; i++) {
      offsets[i] = total;
      total += mpg_align_up((size_t)sizes[i] * sizeof(float), 64);
    }
  char *scratch = NULL;
  if (total + scratch_size && !(scratch = mpg_device_scratch(call->device, total + scratch_size)))
    return MPG_DEVICE_OUT_OF_MEMORY;
  void *work[4] = {buffers[0], buffers[1], buffers[2], buffers[3]};
  for (int i = 0; half && i < 4; i++) {
    if (!buffers[i]) continue;
    work[i] = scratch + offsets[i];
    if (i != result) mpg_cpu_widen(call, dtype, buffers[i], sizes[i], work[i]);
  }
  bool bias_done = false;
  mpg_status status;
#ifdef MPG_WITH_ONEDNN
  if (prepared) {
    status = mpg_cpu_onednn_run(call, prepared, work, scratch + total);
    bias_done = how.bias;
  } else
#endif
      if (empty) {
    memset(work[result], 0, (size_t)sizes[result] * mpg_dtype_size(computed));
    status = MPG_OK;
  } else {
    status = plain_in_layout(call, &p, direction, work, sizes, scratch + total);
  }
  MPG_TRY(status);
  if (buffers[3] && !bias_done) {
    int64_t plane = direction == MPG_FORWARD ? out : in, rows = c->batch * bias_size;
    if (c->layout != MPG_CHANNELS_FIRST) rows *= plane, plane = 1;
    bias_planes t = {bias_size, plane, computed, work[3], work[result]};
    mpg_cpu_parallel_for(call, rows, 1 + 16384 / (plane + 1), add_bias, &t);
  }
  if (half) mpg_cpu_narrow(call, dtype, work[result], sizes[result], buffers[result]);
  return MPG_OK;
}

mpg_status mpg_cpu_convolution(const mpg_kernel_call *call) {
  const mpg_convolution_params *p = call->params;
  const mpg_view *data = &call->inputs[0], *weight = &call->inputs[1], *out = &call->outputs[0];
  mpg_convolution c;
  mpg_convolution_set(&c, mpg_convolution_layout(call->op, p), &data->desc.shape,
                      &weight->desc.shape, &out->desc.shape, &p->stride, &p->dilate, &p->pad,
                      p->num_group);
  void *buffers[4] = {data->data, weight->data, out->data,
                      call->num_inputs == 3 ? call->inputs[2].data : NULL};
  return run(call, &c, MPG_FORWARD, data->desc.dtype, buffers);
}

/* Computes the gradient of the data, or the forward pass of Deconvolution. */
mpg_status mpg_cpu_convolution_backward_data(const mpg_kernel_call *call) {
  const mpg_view *out_grad = &call->inputs[0], *weight = &call->inputs[1],
                 *data = &call->outputs[0];
  mpg_convolution c;
  void *buffers[4] = {data->data, weight->data, out_grad->data, NULL};
  if (call->op->id == MPG_OP_Deconvolution) {
    const mpg_deconvolution_params *p = call->params;
    mpg_tuple pads;
    mpg_shape in = mpg_data_first(&out_grad->desc.shape, mpg_layout_of(p->layout)),
              out = mpg_data_first(&data->desc.shape, mpg_layout_of(p->layout));
    mpg_deconvolution_pads(p, &in, &out, &pads);
    mpg_convolution_set(&c, mpg_convolution_layout(call->op, p), &data->desc.shape,
                        &weight->desc.shape, &out_grad->desc.shape, &p->stride, &p->dilate, &pads,
                        p->num_group);
    if (call->num_inputs == 3) buffers[3] = call->inputs[2].data;
  } else {
    const mpg_convolution_backward_params *p = call->params;
    mpg_convolution_set(&c, mpg_convolution_layout(call->op, p), &data->desc.shape,
                        &weight->desc.shape, &out_grad->desc.shape, &p->stride, &p->dilate, &p->pad,
                        p->num_group);
  }
  return run(call, &c, MPG_BACKWARD_DATA, data->desc.dtype, buffers);
}

mpg_status mpg_cpu_convolution_backward_weight(const mpg_kernel_call *call) {
  const mpg_convolution_backward_params *p = call->params;
  const mpg_view *out_grad = &call->inputs[0], *data = &call->inputs[1],
                 *weight = &call->outputs[0];
  mpg_convolution c;
  mpg_convolution_set(&c, mpg_convolution_layout(call->op, p), &data->desc.shape,
                      &weight->desc.shape, &out_grad->desc.shape, &p->stride, &p->dilate, &p->pad,
                      p->num_group);
  void *buffers[4] = {data->data, weight->data, out_grad->data, NULL};
  return run(call, &c, MPG_BACKWARD_WEIGHT, data->desc.dtype, buffers);
}

/* --- im2col, col2im --------------------------------------------------------------------------- */
static mpg_status each_sample(const mpg_kernel_call *call, const mpg_view *image,
                              const mpg_view *column, const mpg_tuple *kernel,
                              const mpg_tuple *stride, const mpg_tuple *dilate,
                              const mpg_tuple *pad, bool gathers) {
  const mpg_shape *shape = &image->desc.shape;
  mpg_convolution c = {.batch = shape->dims[0],
                       .channels = shape->dims[1],
                       .groups = 1,
                       .window = {.ndim = shape->ndim - 2}};
  mpg_window *w = &c.window;
  for (int i = 0; i < w->ndim; i++) {
    w->in[i] = shape->dims[i + 2];
    w->kernel[i] = kernel->values[i];
    w->stride[i] = mpg_tuple_at(stride, i, 1);
    w->dilate[i] = mpg_tuple_at(dilate, i, 1);
    w->pad[i] = mpg_tuple_at(pad, i, 0);
    w->out[i] =
        (w->in[i] + 2 * w->pad[i] - w->dilate[i] * (w->kernel[i] - 1) - 1) / w->stride[i] + 1;
  }
  int64_t plane = c.channels * mpg_window_product(w->in, w->ndim),
          places = mpg_window_product(w->out, w->ndim);
  int64_t rows = c.channels * mpg_window_product(w->kernel, w->ndim);
  mpg_dtype dtype = image->desc.dtype;
  if (!gathers && mpg_shape_size(shape))
    memset(image->data, 0, (size_t)mpg_shape_size(shape) * mpg_dtype_size(dtype));
  for (int64_t n = 0; n < c.batch; n++) {
    columns t = {&c,
                 dtype,
                 c.channels,
                 0,
                 places,
                 at(image->data, n * plane, dtype),
                 at(column->data, n * rows * places, dtype)};
    if (gathers)
      gather(call, &t);
    else
      scatter(call, &t);
  }
  return MPG_OK;
}

mpg_status mpg_cpu_im2col(const mpg_kernel_call *call) {
  const mpg_im2col_params *p = call->params;
  return each_sample(call, &call->inputs[0], &call->outputs[0], &p->kernel, &p->stride, &p->dilate,
                     &p->pad, true);
}

mpg_status mpg_cpu_col2im(const mpg_kernel_call *call) {
  const mpg_col2im_params *p = call->params;
  return each_sample(call, &call->outputs[0], &call->inputs[0], &p->kernel, &p->stride, &p->dilate,
                     &p->pad, false);
}
