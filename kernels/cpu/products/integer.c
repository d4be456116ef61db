/* Dense layers and convolutions of int8 or uint8 data with int8 weights. The int32 sums are exact
 * modulo 2^32. Uses oneDNN if the processor adds 8-bit products without saturation. Otherwise
 * computes dot products in C. Convolutions gather their windows into rows first (im2col). */
#include "kernels/cpu/vendor/onednn_convolution.h"
#include "kernels/cpu/vendor/onednn_matmul.h"
#include "op/layers/convolution.h"

#define DOT(T)                                                               \
  static int32_t dot_##T(const T *a, const int8_t *b, int64_t k) {           \
    uint32_t sum = 0;                                                        \
    for (int64_t i = 0; i < k; i++) sum += (uint32_t)((int32_t)a[i] * b[i]); \
    return (int32_t)sum;                                                     \
  }
DOT(int8_t)
DOT(uint8_t)

static int32_t dot(mpg_dtype dtype, const void *a, const int8_t *b, int64_t k) {
  return dtype == MPG_INT8 ? dot_int8_t(a, b, k) : dot_uint8_t(a, b, k);
}

#ifdef MPG_WITH_ONEDNN
/* True if oneDNN's sums are exact. Processors without VNNI saturate the sum of two products to 16
 * bits. */
static bool has_exact_sums(void) {
  const mpg_onednn *dnnl = mpg_cpu_onednn();
  if (!dnnl) return false;
  unsigned isa = (unsigned)dnnl->get_effective_cpu_isa();
  return (isa & dnnl_cpu_isa_avx512_core_vnni) == dnnl_cpu_isa_avx512_core_vnni ||
         (isa & dnnl_cpu_isa_avx2_vnni) == dnnl_cpu_isa_avx2_vnni;
}
static dnnl_data_type_t name_of(mpg_dtype dtype) { return dtype == MPG_INT8 ? dnnl_s8 : dnnl_u8; }

/* Runs a prepared operation and sets *status. Returns false if `prepared` is NULL. */
static bool run_prepared(const mpg_kernel_call *call, const mpg_onednn_prepared *prepared,
                         mpg_status *status) {
  void *scratch = NULL;
  if (!prepared) return false;
  if (prepared->scratch && !(scratch = mpg_device_scratch(call->device, prepared->scratch)))
    *status = MPG_DEVICE_OUT_OF_MEMORY;
  else
    *status = mpg_cpu_onednn_run(
        call, prepared,
        (void *const[]){call->inputs[0].data, call->inputs[1].data, call->outputs[0].data},
        scratch);
  return true;
}
#endif

/* --- Dense layers ----------------------------------------------------------------------------- */
typedef struct dense {
  mpg_dtype dtype;
  const int8_t *data, *weight; /* rows of k elements */
  int32_t *out;
  int64_t n, k;
} dense;

/* Computes result elements [begin, end). */
static void dense_range(void *context, int64_t begin, int64_t end) {
  const dense *t = context;
  for (int64_t r = begin; r < end; r++)
    t->out[r] = dot(t->dtype, t->data + r / t->n * t->k, t->weight + r % t->n * t->k, t->k);
}

mpg_status mpg_cpu_integer_fully_connected(const mpg_kernel_call *call) {
  const mpg_view *data = &call->inputs[0], *weight = &call->inputs[1], *out = &call->outputs[0];
  int64_t n = weight->desc.shape.dims[0], k = weight->desc.shape.dims[1],
          m = mpg_shape_size(&out->desc.shape) / n;
  if (m == 0) return MPG_OK;
#ifdef MPG_WITH_ONEDNN
  mpg_onednn_matmul s = {.dtype = name_of(data->desc.dtype),
                         .b_dtype = dnnl_s8,
                         .result = dnnl_s32,
                         .batch = 1,
                         .m = m,
                         .n = n,
                         .k = k,
                         .ldc = n,
                         .tb = true};
  mpg_status status;
  if (k > 0 && has_exact_sums() &&
      run_prepared(call, mpg_cpu_onednn_matmul_find(call, &s), &status))
    return status;
#endif
  dense t = {data->desc.dtype, data->data, weight->data, out->data, n, k};
  mpg_cpu_parallel_for(call, m * n, 1 + 16384 / (k + 1), dense_range, &t);
  return MPG_OK;
}

/* --- Convolutions ----------------------------------------------------------------------------- */
/* Convolution of one sample and group, as dot products of gathered rows with the weight. Rows have
 * the layout of the weight: (channels, window), or (window, channels) if `last`. */
typedef struct places {
  const mpg_convolution *c;
  mpg_window w; /* three axes */
  mpg_dtype dtype;
  bool last;
  int64_t channels, filters, k; /* per group; k is the number of elements per row */
  const int8_t *image, *weight;
  int32_t *out;
  int64_t first; /* output position of the first row */
  int8_t *rows;
} places;

static void gather_row(const places *t, int64_t place, int8_t *row) {
  const mpg_window *w = &t->w;
  int64_t window = mpg_window_product(w->kernel, 3), plane = mpg_window_product(w->in, 3);
  int64_t step = t->last ? t->c->channels : 1, channel = t->last ? 1 : plane,
          to_step = t->last ? t->channels : 1, to_channel = t->last ? 1 : window;
  int64_t x0 = place % w->out[2], y0 = place / w->out[2] % w->out[1],
          z0 = place / w->out[2] / w->out[1];
  for (int64_t i = 0; i < window; i++) {
    int64_t x = x0 * w->stride[2] - w->pad[2] + i % w->kernel[2] * w->dilate[2],
            y = y0 * w->stride[1] - w->pad[1] + i / w->kernel[2] % w->kernel[1] * w->dilate[1],
            z = z0 * w->stride[0] - w->pad[0] + i / w->kernel[2] / w->kernel[1] * w->dilate[0];
    bool inside = x >= 0 && x < w->in[2] && y >= 0 && y < w->in[1] && z >= 0 && z < w->in[0];
    const int8_t *from = t->image + (inside ? ((z * w->in[1] + y) * w->in[2] + x) * step : 0);
    int8_t *to = row + i * to_step;
    for (int64_t c = 0; c < t->channels; c++) to[c * to_channel] = inside ? from[c * channel] : 0;
  }
}

/* Gathers rows [begin, end) and computes their results. */
static void place_range(void *context, int64_t begin, int64_t end) {
  const places *t = context;
  int64_t all = mpg_window_product(t->w.out, 3);
  for (int64_t r = begin; r < end; r++) {
    int8_t *row = t->rows + r * t->k;
    int64_t place = t->first + r, step = t->last ? 1 : all,
            start = t->last ? place * t->c->filters : place;
    gather_row(t, place, row);
    for (int64_t f = 0; f < t->filters; f++)
      t->out[start + f * step] = dot(t->dtype, row, t->weight + f * t->k, t->k);
  }
}

static mpg_status plain_convolution(const mpg_kernel_call *call, const mpg_convolution *c) {
  enum { BLOCK_BYTES = 1 << 20 };
  places t = {.c = c,
              .w = mpg_window_with_axes(&c->window, 3),
              .dtype = call->inputs[0].desc.dtype,
              .last = c->layout != MPG_CHANNELS_FIRST,
              .channels = c->channels / c->groups,
              .filters = c->filters / c->groups};
  int64_t plane = mpg_window_product(t.w.in, 3), all = mpg_window_product(t.w.out, 3);
  t.k = t.channels * mpg_window_product(t.w.kernel, 3);
  int64_t block = BLOCK_BYTES / (t.k + 1) + 16;
  if (block > all) block = all;
  t.rows = mpg_device_scratch(call->device, (size_t)(block * t.k) + 1);
  if (!t.rows) return MPG_DEVICE_OUT_OF_MEMORY;
  for (int64_t n = 0; n < c->batch; n++)
    for (int64_t g = 0; g < c->groups; g++) {
      int64_t channel = g * t.channels, filter = g * t.filters;
      t.image = (const int8_t *)call->inputs[0].data + n * c->channels * plane +
                channel * (t.last ? 1 : plane);
      t.weight = (const int8_t *)call->inputs[1].data + filter * t.k;
      t.out = (int32_t *)call->outputs[0].data + n * c->filters * all + filter * (t.last ? 1 : all);
      for (t.first = 0; t.first < all; t.first += block) {
        int64_t count = all - t.first < block ? all - t.first : block;
        mpg_cpu_parallel_for(call, count, 1 + 16384 / (t.k * t.filters + 1), place_range, &t);
      }
    }
  return MPG_OK;
}

mpg_status mpg_cpu_integer_convolution(const mpg_kernel_call *call) {
  const mpg_convolution_params *p = call->params;
  mpg_convolution c;
  mpg_convolution_set(&c, mpg_convolution_layout(call->op, p), &call->inputs[0].desc.shape,
                      &call->inputs[1].desc.shape, &call->outputs[0].desc.shape, &p->stride,
                      &p->dilate, &p->pad, p->num_group);
  if (mpg_shape_size(&call->outputs[0].desc.shape) == 0) return MPG_OK;
#ifdef MPG_WITH_ONEDNN
  mpg_onednn_convolution how = {.c = &c,
                                .dtype = name_of(call->inputs[0].desc.dtype),
                                .weight_dtype = dnnl_s8,
                                .result = dnnl_s32,
                                .direction = MPG_FORWARD};
  mpg_status status;
  if (mpg_shape_size(&call->inputs[1].desc.shape) > 0 &&
      mpg_shape_size(&call->inputs[0].desc.shape) > 0 && has_exact_sums()) {
    mpg_onednn_key key = mpg_onednn_convolution_key(&how);
    key.kind = MPG_ONEDNN_CONVOLUTION;
    if (run_prepared(call, mpg_cpu_onednn_find(call, &key, mpg_cpu_onednn_convolution_build, &how),
                     &status))
      return status;
  }
#endif
  return plain_convolution(call, &c);
}
