/* Convolution and Deconvolution, by oneDNN or by columns. */
#include "op/layers/convolution.h"

#include <string.h>

#include "base/memory.h"
#include "kernels/cpu/products/gemm.h"
#include "kernels/common/half.h"
#include "kernels/cpu/array/move.h"
#include "kernels/cpu/vendor/onednn.h"

/* --- Windows as columns ----------------------------------------------------------------------- */
/* Row r of the columns is one element of the window (channel, then kernel position), with one
 * element per place. */
typedef struct columns {
  const mpg_convolution *c;
  mpg_dtype dtype;
  int64_t channels;     /* those of one group */
  int64_t first, count; /* places */
  const void *image;    /* of one sample and group */
  void *columns;        /* (channels * window, count) */
} columns;

/* Visits the elements of rows [begin, end): BODY gets `at` (in the image's channel) where it is
 * inside, `inside`, and `column`. */
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

/* Adds columns up into the image; begin and end count channels, so that no two threads write one
 * element. */
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

/* --- Plain convolutions: columns and matrix products ------------------------------------------ */
/* Everything in one dtype, float32 or float64. `scratch` holds one block of columns. */
typedef struct plain {
  mpg_convolution c;
  mpg_dtype dtype;
  int64_t rows;   /* channels of a group times window */
  int64_t places; /* all of them */
  int64_t block;  /* places that are done together */
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

enum { FORWARD, BACKWARD_DATA, BACKWARD_WEIGHT };

/* FORWARD: out = w x columns(data). BACKWARD_DATA: data = scatter(w^T x out). BACKWARD_WEIGHT: w =
 * sum of out x columns(data)^T. */
static mpg_status plain_convolution(const mpg_kernel_call *call, const plain *p, int direction,
                                    void *data, void *weight, void *out, void *scratch) {
  const mpg_convolution *c = &p->c;
  int64_t channels = c->channels / c->groups, filters = c->filters / c->groups,
          plane = mpg_window_product(c->window.in, c->window.ndim);
  size_t size = mpg_dtype_size(p->dtype);
  if (direction == BACKWARD_DATA) memset(data, 0, (size_t)(c->batch * c->channels * plane) * size);
  if (direction == BACKWARD_WEIGHT) memset(weight, 0, (size_t)(c->filters * p->rows) * size);
  for (int64_t n = 0; n < c->batch; n++)
    for (int64_t group = 0; group < c->groups; group++) {
      char *image = at(data, (n * c->channels + group * channels) * plane, p->dtype);
      char *w = at(weight, group * filters * p->rows, p->dtype);
      for (int64_t first = 0; first < p->places; first += p->block) {
        int64_t count = p->places - first < p->block ? p->places - first : p->block;
        char *y = at(out, (n * c->filters + group * filters) * p->places + first, p->dtype);
        columns t = {c, p->dtype, channels, first, count, image, scratch};
        if (direction == BACKWARD_DATA) {
          MPG_TRY(mpg_cpu_gemm_any(call, p->dtype, true, false, p->rows, count, filters, 1, w,
                                   p->rows, y, p->places, 0, scratch, count));
          scatter(call, &t);
          continue;
        }
        gather(call, &t);
        if (direction == FORWARD)
          MPG_TRY(mpg_cpu_gemm_any(call, p->dtype, false, false, filters, count, p->rows, 1, w,
                                   p->rows, scratch, count, 0, y, p->places));
        else
          MPG_TRY(mpg_cpu_gemm_any(call, p->dtype, false, true, filters, p->rows, count, 1, y,
                                   p->places, scratch, count, 1, w, p->rows));
      }
    }
  return MPG_OK;
}

/* The same in any layout: channels-last arrays are transposed behind the block of columns in
 * `scratch`, and the result back. */
static size_t transposed_bytes(const mpg_convolution *c, const int64_t *sizes, mpg_dtype dtype) {
  int64_t elements = (c->layout == MPG_CHANNELS_FIRST ? 0 : sizes[0] + sizes[2]) +
                     (c->layout == MPG_CHANNELS_LAST ? sizes[1] : 0);
  return (size_t)elements * mpg_dtype_size(dtype);
}

/* (outer, a, b) to (outer, b, a) */
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
  int result = direction == FORWARD ? 2 : direction == BACKWARD_DATA ? 0 : 1;
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

/* --- oneDNN ----------------------------------------------------------------------------------- */
#ifdef MPG_WITH_ONEDNN
typedef struct dnnl_build {
  const mpg_convolution *c;
  int direction;
  bool bias; /* FORWARD */
} dnnl_build;

enum { DATA, WEIGHT, OUT, BIAS, ARRAYS };

/* The arrays of a convolution as oneDNN gets them. Memory of `ours` is as the caller has
 * it; `any` (not of the bias) leaves the layout to the primitive. */
typedef struct dnnl_arrays {
  int ndim[ARRAYS], channel[ARRAYS]; /* channel: which of dims is the channels */
  bool last[ARRAYS];                 /* the channels are behind the space axes */
  dnnl_dims_t dims[ARRAYS], stride, dilate, pad;
  dnnl_memory_desc_t ours[ARRAYS], any[BIAS];
  int slots[ARRAYS];
} dnnl_arrays;

/* `last`: dims has the channels (at `channel`) before the space axes, memory has them behind. */
static bool our_desc(const mpg_onednn *dnnl, dnnl_memory_desc_t *desc, int ndim,
                     const dnnl_dims_t dims, bool last, int channel) {
  dnnl_dims_t strides;
  int64_t stride = 1;
  if (last) strides[channel] = stride, stride = dims[channel];
  for (int i = ndim - 1; i >= 0; i--) {
    if (last && i == channel) continue;
    strides[i] = stride;
    stride *= dims[i];
  }
  return dnnl->memory_desc_create_with_strides(desc, ndim, dims, dnnl_f32, strides) == dnnl_success;
}
static bool any_desc(const mpg_onednn *dnnl, dnnl_memory_desc_t *desc, int ndim,
                     const dnnl_dims_t dims) {
  return dnnl->memory_desc_create_with_tag(desc, ndim, dims, dnnl_f32, dnnl_format_tag_any) ==
         dnnl_success;
}

static dnnl_arrays arrays_of(const mpg_convolution *c) {
  const mpg_window *w = &c->window;
  int ndim = w->ndim + 2, grouped = c->groups > 1;
  bool data_last = c->layout != MPG_CHANNELS_FIRST;
  dnnl_arrays a = {
      .ndim = {ndim, ndim + grouped, ndim, 1},
      .channel = {1, grouped + 1, 1, 0},
      .last = {data_last, c->layout == MPG_CHANNELS_LAST, data_last, false},
      .dims = {{c->batch, c->channels}, {c->groups}, {c->batch, c->filters}, {c->filters}}};
  int64_t *weight = a.dims[WEIGHT] + grouped; /* behind the groups, if there are any */
  weight[0] = c->filters / c->groups;
  weight[1] = c->channels / c->groups;
  for (int i = 0; i < w->ndim; i++) {
    a.dims[DATA][i + 2] = w->in[i];
    weight[i + 2] = w->kernel[i];
    a.dims[OUT][i + 2] = w->out[i];
    a.stride[i] = w->stride[i];
    a.dilate[i] = w->dilate[i] - 1;
    a.pad[i] = w->pad[i];
  }
  return a;
}

static void release(const mpg_onednn *dnnl, const dnnl_arrays *a) {
  for (int i = 0; i < ARRAYS; i++)
    if (a->ours[i]) dnnl->memory_desc_destroy(a->ours[i]);
  for (int i = 0; i < BIAS; i++)
    if (a->any[i]) dnnl->memory_desc_destroy(a->any[i]);
}

/* Of arrays in these layouts; NULL: there is none. */
static dnnl_primitive_desc_t describe(const mpg_onednn *dnnl, const dnnl_build *b,
                                      const dnnl_arrays *a, dnnl_memory_desc_t *descs) {
  const int64_t *stride = a->stride, *dilate = a->dilate, *pad = a->pad;
  const_dnnl_primitive_attr_t attributes = mpg_cpu_onednn_attributes(dnnl);
  dnnl_primitive_desc_t desc = NULL;
  dnnl_status_t status;
  if (b->direction == FORWARD)
    status = dnnl->convolution_forward_primitive_desc_create(
        &desc, dnnl->engine, dnnl_forward_training, dnnl_convolution_direct, descs[0], descs[1],
        a->ours[BIAS], descs[2], stride, dilate, pad, pad, attributes);
  else if (b->direction == BACKWARD_DATA)
    status = dnnl->convolution_backward_data_primitive_desc_create(
        &desc, dnnl->engine, dnnl_convolution_direct, descs[0], descs[1], descs[2], stride, dilate,
        pad, pad, NULL, attributes);
  else
    status = dnnl->convolution_backward_weights_primitive_desc_create(
        &desc, dnnl->engine, dnnl_convolution_direct, descs[0], descs[1], NULL, descs[2], stride,
        dilate, pad, pad, NULL, attributes);
  return status == dnnl_success ? desc : NULL;
}

/* Its reference implementation takes every layout, at a hundredth of the speed. */
static bool is_reference(const mpg_onednn *dnnl, dnnl_primitive_desc_t desc) {
  const char *name = NULL;
  return dnnl->primitive_desc_query(desc, dnnl_query_impl_info_str, 0, (void *)&name) ==
             dnnl_success &&
         name && !strncmp(name, "ref", 3);
}

/* Channels-last data is taken as it lies where there is a fast primitive for that. All other
 * layouts are the primitive's choice. */
static dnnl_primitive_desc_t choose(const mpg_onednn *dnnl, const dnnl_build *b,
                                    const dnnl_arrays *a) {
  dnnl_memory_desc_t any[] = {a->any[DATA], a->any[WEIGHT], a->any[OUT]},
                     as_it_lies[] = {a->ours[DATA], a->any[WEIGHT], a->ours[OUT]};
  if (a->last[DATA]) {
    dnnl_primitive_desc_t desc = describe(dnnl, b, a, as_it_lies);
    if (desc && !is_reference(dnnl, desc)) return desc;
    if (desc) dnnl->primitive_desc_destroy(desc);
  }
  return describe(dnnl, b, a, any);
}

/* The step that runs the primitive, which takes `desc` over; where its layouts are not ours, steps
 * before and after reorder. */
static bool add_steps(const mpg_onednn *dnnl, mpg_onednn_prepared *prepared, const dnnl_build *b,
                      const dnnl_arrays *a, dnnl_primitive_desc_t desc) {
  static const dnnl_query_t queries[3][3] = {
      {dnnl_query_src_md, dnnl_query_weights_md, dnnl_query_dst_md},
      {dnnl_query_diff_src_md, dnnl_query_weights_md, dnnl_query_diff_dst_md},
      {dnnl_query_src_md, dnnl_query_diff_weights_md, dnnl_query_diff_dst_md}};
  static const int names[3][3] = {{DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST},
                                  {DNNL_ARG_DIFF_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DIFF_DST},
                                  {DNNL_ARG_SRC, DNNL_ARG_DIFF_WEIGHTS, DNNL_ARG_DIFF_DST}};
  int result = b->direction == FORWARD ? OUT : b->direction == BACKWARD_DATA ? DATA : WEIGHT;
  int args[ARRAYS][2] = {[BIAS] = {DNNL_ARG_BIAS, a->slots[BIAS]}};
  const_dnnl_memory_desc_t theirs[BIAS];
  bool good = true;
  for (int i = 0; i < BIAS && good; i++) {
    theirs[i] = dnnl->primitive_desc_query_md(desc, queries[b->direction][i], 0);
    args[i][0] = names[b->direction][i];
    args[i][1] = a->slots[i];
    if (dnnl->memory_desc_equal(theirs[i], a->ours[i])) continue;
    good = mpg_cpu_onednn_inner(dnnl, prepared, theirs[i], &args[i][1]);
    if (good && i != result)
      good = mpg_cpu_onednn_reorder(dnnl, prepared, a->ours[i], a->slots[i], theirs[i], args[i][1]);
  }
  /* The descs that were asked for live as long as the primitive desc: reordering back needs a copy
   * of one. */
  dnnl_memory_desc_t result_desc = NULL;
  bool reorder_back = good && args[result][1] != a->slots[result];
  if (reorder_back) good = dnnl->memory_desc_clone(&result_desc, theirs[result]) == dnnl_success;
  if (good)
    good =
        mpg_cpu_onednn_step(dnnl, prepared, desc, b->bias ? ARRAYS : BIAS, (const int (*)[2])args);
  else
    dnnl->primitive_desc_destroy(desc);
  if (good && reorder_back)
    good = mpg_cpu_onednn_reorder(dnnl, prepared, result_desc, args[result][1], a->ours[result],
                                  a->slots[result]);
  if (result_desc) dnnl->memory_desc_destroy(result_desc);
  return good;
}

/* Slots: data, weight, out, and the bias. */
static bool build_convolution(const mpg_onednn *dnnl, mpg_onednn_prepared *prepared,
                              void *context) {
  const dnnl_build *b = context;
  dnnl_arrays a = arrays_of(b->c);
  bool good = true;
  for (int i = 0; i < (b->bias ? ARRAYS : BIAS) && good; i++)
    good = our_desc(dnnl, &a.ours[i], a.ndim[i], a.dims[i], a.last[i], a.channel[i]) &&
           mpg_cpu_onednn_outer(dnnl, prepared, a.ours[i], &a.slots[i]) &&
           (i == BIAS || any_desc(dnnl, &a.any[i], a.ndim[i], a.dims[i]));
  dnnl_primitive_desc_t desc = good ? choose(dnnl, b, &a) : NULL;
  good = desc && add_steps(dnnl, prepared, b, &a, desc);
  release(dnnl, &a);
  return good;
}

static const mpg_onednn_prepared *find_convolution(const mpg_kernel_call *call,
                                                   const mpg_convolution *c, int direction,
                                                   bool bias) {
  mpg_onednn_key key = {.kind = MPG_ONEDNN_CONVOLUTION + direction,
                        .values = {c->batch, c->channels, c->filters, c->groups, c->window.ndim,
                                   bias, (int64_t)c->layout}};
  const mpg_window *w = &c->window;
  const int64_t *const parts[6] = {w->in, w->out, w->kernel, w->stride, w->dilate, w->pad};
  key.count = 7;
  for (int part = 0; part < 6; part++)
    for (int i = 0; i < w->ndim; i++) key.values[key.count++] = parts[part][i];
  dnnl_build b = {c, direction, bias};
  return mpg_cpu_onednn_find(call, &key, build_convolution, &b);
}
#endif

/* --- All of it -------------------------------------------------------------------------------- */
typedef struct conversion {
  bool bfloat16, to_half;
  const void *from;
  void *to;
} conversion;

static void convert_range(void *context, int64_t begin, int64_t end) {
  const conversion *t = context;
  for (int64_t i = begin; i < end; i++)
    if (t->to_half)
      ((uint16_t *)t->to)[i] = t->bfloat16 ? mpg_float_to_bfloat16(((const float *)t->from)[i])
                                           : mpg_float_to_half(((const float *)t->from)[i]);
    else
      ((float *)t->to)[i] = t->bfloat16 ? mpg_bfloat16_to_float(((const uint16_t *)t->from)[i])
                                        : mpg_half_to_float(((const uint16_t *)t->from)[i]);
}

typedef struct bias_planes {
  int64_t channels, plane;
  mpg_dtype dtype;
  const void *bias;
  void *out;
} bias_planes;

static void add_bias(void *context, int64_t begin, int64_t end) { /* counts (sample, channel) */
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

/* Half precision is converted to float32 around the whole. buffers: data, weight, out, bias (or
 * NULL). */
static mpg_status run(const mpg_kernel_call *call, const mpg_convolution *c, int direction,
                      mpg_dtype dtype, void *const *buffers) {
  int result = direction == FORWARD ? 2 : direction == BACKWARD_DATA ? 0 : 1;
  int64_t in = mpg_window_product(c->window.in, c->window.ndim),
          out = mpg_window_product(c->window.out, c->window.ndim);
  int64_t kernel = mpg_window_product(c->window.kernel, c->window.ndim);
  int64_t bias_size = !buffers[3] ? 0 : direction == FORWARD ? c->filters : c->channels;
  int64_t sizes[4] = {c->batch * c->channels * in, c->filters * (c->channels / c->groups) * kernel,
                      c->batch * c->filters * out, bias_size};
  if (sizes[result] == 0) return MPG_OK;
  bool half = dtype == MPG_FLOAT16 || dtype == MPG_BFLOAT16;
  mpg_dtype computed = half ? MPG_FLOAT32 : dtype;
  bool empty = false; /* a sum over nothing: the plain path makes zeros */
  for (int i = 0; i < 3; i++) empty |= sizes[i] == 0;
  plain p = plain_setup(c, computed);
  size_t scratch_size = empty ? 0 : plain_scratch(&p) + transposed_bytes(c, sizes, computed),
         offsets[4] = {0}, total = 0;
#ifdef MPG_WITH_ONEDNN
  bool fused_bias = direction == FORWARD && buffers[3];
  const mpg_onednn_prepared *prepared =
      computed == MPG_FLOAT32 && !empty ? find_convolution(call, c, direction, fused_bias) : NULL;
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
    conversion t = {dtype == MPG_BFLOAT16, false, buffers[i], work[i]};
    if (i != result) mpg_cpu_parallel_for(call, sizes[i], 16384, convert_range, &t);
  }
  bool bias_done = false;
  mpg_status status;
#ifdef MPG_WITH_ONEDNN
  if (prepared) {
    status = mpg_cpu_onednn_run(call, prepared, work, scratch + total);
    bias_done = fused_bias;
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
    int64_t plane = direction == FORWARD ? out : in, rows = c->batch * bias_size;
    if (c->layout != MPG_CHANNELS_FIRST) rows *= plane, plane = 1;
    bias_planes t = {bias_size, plane, computed, work[3], work[result]};
    mpg_cpu_parallel_for(call, rows, 1 + 16384 / (plane + 1), add_bias, &t);
  }
  if (half) {
    conversion t = {dtype == MPG_BFLOAT16, true, work[result], buffers[result]};
    mpg_cpu_parallel_for(call, sizes[result], 16384, convert_range, &t);
  }
  return MPG_OK;
}

MPG_CPU_KERNEL(convolution) {
  const mpg_convolution_params *p = call->params;
  const mpg_view *data = &call->inputs[0], *weight = &call->inputs[1], *out = &call->outputs[0];
  mpg_convolution c;
  mpg_convolution_set(&c, mpg_convolution_layout(call->op, p), &data->desc.shape,
                      &weight->desc.shape, &out->desc.shape, &p->stride, &p->dilate, &p->pad,
                      p->num_group);
  void *buffers[4] = {data->data, weight->data, out->data,
                      call->num_inputs == 3 ? call->inputs[2].data : NULL};
  return run(call, &c, FORWARD, data->desc.dtype, buffers);
}

/* Also Deconvolution, whose data is what a convolution puts out. */
MPG_CPU_KERNEL(convolution_backward_data) {
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
  return run(call, &c, BACKWARD_DATA, data->desc.dtype, buffers);
}

MPG_CPU_KERNEL(convolution_backward_weight) {
  const mpg_convolution_backward_params *p = call->params;
  const mpg_view *out_grad = &call->inputs[0], *data = &call->inputs[1],
                 *weight = &call->outputs[0];
  mpg_convolution c;
  mpg_convolution_set(&c, mpg_convolution_layout(call->op, p), &data->desc.shape,
                      &weight->desc.shape, &out_grad->desc.shape, &p->stride, &p->dilate, &p->pad,
                      p->num_group);
  void *buffers[4] = {data->data, weight->data, out_grad->data, NULL};
  return run(call, &c, BACKWARD_WEIGHT, data->desc.dtype, buffers);
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

MPG_CPU_KERNEL(im2col) {
  const mpg_im2col_params *p = call->params;
  return each_sample(call, &call->inputs[0], &call->outputs[0], &p->kernel, &p->stride, &p->dilate,
                     &p->pad, true);
}

MPG_CPU_KERNEL(col2im) {
  const mpg_col2im_params *p = call->params;
  return each_sample(call, &call->outputs[0], &call->inputs[0], &p->kernel, &p->stride, &p->dilate,
                     &p->pad, false);
}
