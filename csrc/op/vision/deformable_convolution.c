/* Deformable convolutions, which read data at positions shifted by an array of offsets (Dai et al.,
 * 2017), optionally with a weight per position (Zhu et al., 2019). Composed of other ops: the data
 * is sampled for every kernel element, then multiplied by the weight as a matrix. */
#include <string.h>

#include "op/formula/arithmetic.h"
#include "op/infer.h"
#include "op/vision/sampling.h"

typedef struct layer {
  int64_t kernel[2], stride[2], dilate[2], pad[2];
  int64_t filters, groups, deformable_groups;
  bool modulated, bias;
} layer;

static bool pair(const mpg_infer *infer, const mpg_tuple *tuple, int64_t otherwise, int64_t least,
                 const char *name, int64_t *values) {
  values[0] = values[1] = otherwise;
  if (tuple->count <= 0 && otherwise >= 0) return true;
  for (int i = 0; i < 2 && tuple->count == 2; i++) values[i] = tuple->values[i];
  if (tuple->count == 2 && values[0] >= least && values[1] >= least && values[0] < INT32_MAX &&
      values[1] < INT32_MAX)
    return true;
  mpg_infer_fail(infer, "%s must be two numbers of at least %lld", name, (long long)least);
  return false;
}

static bool read_layer(const mpg_infer *infer, layer *l) {
  const mpg_deformable_params *p = infer->params;
  l->modulated = infer->op->id == MPG_OP__contrib_ModulatedDeformableConvolution;
  l->filters = p->num_filter;
  l->groups = p->num_group;
  l->deformable_groups = p->num_deformable_group;
  l->bias = !p->no_bias;
  return pair(infer, &p->kernel, -1, 1, "kernel", l->kernel) &&
         pair(infer, &p->stride, 1, 1, "stride", l->stride) &&
         pair(infer, &p->dilate, 1, 1, "dilate", l->dilate) &&
         pair(infer, &p->pad, 0, 0, "pad", l->pad);
}

/* Returns the result's height (i = 0) or width (i = 1), or 0 if the kernel is larger than the
 * padded data. */
static int64_t result_size(const layer *l, const mpg_shape *data, int i) {
  int64_t size = data->dims[2 + i] + 2 * l->pad[i] - (l->dilate[i] * (l->kernel[i] - 1) + 1);
  return size < 0 ? 0 : size / l->stride[i] + 1;
}

mpg_status mpg_infer_deformable_convolution(mpg_infer *infer) {
  layer l;
  if (!read_layer(infer, &l)) return MPG_ERROR;
  const mpg_shape *data = &infer->inputs[0].shape;
  int weight = l.modulated ? 3 : 2;
  for (int i = 1; i < infer->num_inputs; i++)
    MPG_TRY(mpg_infer_expect_dtype(infer, i, infer->inputs[0].dtype));
  if (!mpg_shape_known(data)) return MPG_OK;
  if (data->ndim != 4)
    return mpg_infer_fail(infer, "data must be (batch, channels, height, width)");
  if (data->dims[1] % l.groups || data->dims[1] % l.deformable_groups || l.filters % l.groups)
    return mpg_infer_fail(infer,
                          "channels must be a multiple of num_group and num_deformable_group, and "
                          "num_filter of num_group");
  int64_t height = result_size(&l, data, 0), width = result_size(&l, data, 1);
  if (height < 1 || width < 1) return mpg_infer_fail(infer, "the kernel is larger than the data");
  int64_t places = l.kernel[0] * l.kernel[1] * l.deformable_groups;
  mpg_shape offset = {.ndim = 4, .dims = {data->dims[0], 2 * places, height, width}},
            mask = {.ndim = 4, .dims = {data->dims[0], places, height, width}},
            kernel = {.ndim = 4,
                      .dims = {l.filters, data->dims[1] / l.groups, l.kernel[0], l.kernel[1]}},
            bias = {.ndim = 1, .dims = {l.filters}};
  MPG_TRY(mpg_infer_expect_shape(infer, 1, &offset));
  if (l.modulated) MPG_TRY(mpg_infer_expect_shape(infer, 2, &mask));
  MPG_TRY(mpg_infer_expect_shape(infer, weight, &kernel));
  if (infer->num_inputs > weight + 1) MPG_TRY(mpg_infer_expect_shape(infer, weight + 1, &bias));
  mpg_shape result = {.ndim = 4, .dims = {data->dims[0], l.filters, height, width}};
  mpg_infer_set(infer, 0, &result, infer->inputs[0].dtype);
  return MPG_OK;
}

/* Emits the positions that each kernel element reads along height (i = 0) or width (i = 1) before
 * offsets are added: (1, 1, elements, rows, 1) or (1, 1, elements, 1, columns). */
static mpg_value places(mpg_gradient *g, mpg_value like, const layer *l, int i, int64_t size,
                        mpg_dtype dtype) {
  mpg_shape elements = {.ndim = 5, .dims = {1, 1, l->kernel[0] * l->kernel[1], 1, 1}},
            steps = {.ndim = 5, .dims = {1, 1, 1, i ? 1 : size, i ? size : 1}};
  mpg_value element = mpg_emit_count(g, like, elements.dims[2], dtype, &elements);
  element = i ? mpg_emit_scalar(g, MPG_OP__mod_scalar, element, (double)l->kernel[1])
              : mpg_emit1(g, MPG_OP_floor, NULL,
                          mpg_emit_scalar(g, MPG_OP__div_scalar, element, (double)l->kernel[1]));
  element = mpg_plus(g, mpg_times(g, element, (double)l->dilate[i]), (double)-l->pad[i]);
  mpg_value step = mpg_emit_count(g, like, size, dtype, &steps);
  return mpg_add(g, element, mpg_times(g, step, (double)l->stride[i]));
}

/* Emits 1 for 0 <= position < size, otherwise 0. */
static mpg_value inside(mpg_gradient *g, mpg_value position, int64_t size) {
  return mpg_multiply(g, mpg_emit_scalar(g, MPG_OP__greater_equal_scalar, position, 0),
                      mpg_emit_scalar(g, MPG_OP__lesser_scalar, position, (double)size));
}

/* Emits the sampled data: (batch, deformable groups, elements, rows, columns, channels of a
 * group). */
static mpg_value sampled(mpg_gradient *g, const layer *l, const mpg_value *inputs,
                         const mpg_shape *data, int64_t rows, int64_t columns) {
  mpg_value offset = mpg_widen(g, inputs[1]), picture = mpg_widen(g, inputs[0]);
  if (g->status != MPG_OK) return MPG_NO_VALUE;
  mpg_dtype dtype = mpg_value_desc(g, offset)->dtype;
  int64_t elements = l->kernel[0] * l->kernel[1];
  mpg_shape pairs = {.ndim = 6,
                     .dims = {data->dims[0], l->deformable_groups, elements, 2, rows, columns}},
            each = {.ndim = 5,
                    .dims = {data->dims[0], l->deformable_groups, elements, rows, columns}},
            factor = each;
  offset = mpg_emit_reshape(g, offset, &pairs);
  mpg_value y = mpg_emit_reshape(g, mpg_emit_slice(g, offset, 3, 0, 1), &each),
            x = mpg_emit_reshape(g, mpg_emit_slice(g, offset, 3, 1, 2), &each);
  y = mpg_add(g, y, places(g, offset, l, 0, rows, dtype));
  x = mpg_add(g, x, places(g, offset, l, 1, columns, dtype));
  mpg_pixels pixels = mpg_emit_pixels(g, picture, l->deformable_groups, 5);
  pixels.clamped = !l->modulated;
  mpg_value result = mpg_emit_sampled(g, &pixels, y, x), weight = MPG_NO_VALUE;
  if (l->modulated)
    weight = mpg_emit_reshape(g, mpg_widen(g, inputs[2]), &each);
  else
    weight = mpg_multiply(g, inside(g, y, data->dims[2]), inside(g, x, data->dims[3]));
  factor.dims[factor.ndim++] = 1;
  return mpg_multiply(g, result, mpg_emit_reshape(g, weight, &factor));
}

void mpg_compose_deformable_convolution(mpg_gradient *g, const mpg_value *inputs,
                                        mpg_value *outputs) {
  static const int64_t channels_first[] = {0, 1, 5, 2, 3, 4}, groups_first[] = {1, 2, 0, 3},
                       batch_first[] = {1, 0, 2, 3};
  mpg_infer about = {.op = g->op, .params = g->params, .num_inputs = g->num_inputs};
  layer l;
  if (!read_layer(&about, &l)) return;
  mpg_shape data = mpg_value_desc(g, inputs[0])->shape;
  mpg_dtype dtype = mpg_value_desc(g, inputs[0])->dtype;
  int64_t batch = data.dims[0], rows = result_size(&l, &data, 0),
          columns = result_size(&l, &data, 1), count = rows * columns,
          depth = data.dims[1] / l.groups * l.kernel[0] * l.kernel[1];
  mpg_shape split = {.ndim = 4, .dims = {batch, l.groups, depth, count}},
            matrix = {.ndim = 3, .dims = {l.groups, depth, batch * count}},
            kernel = {.ndim = 3, .dims = {l.groups, l.filters / l.groups, depth}},
            result = {.ndim = 4, .dims = {l.filters, batch, rows, columns}},
            channel = {.ndim = 4, .dims = {1, l.filters, 1, 1}};
  int weight = l.modulated ? 3 : 2;
  mpg_value values =
      mpg_emit_transpose(g, sampled(g, &l, inputs, &data, rows, columns), 6, channels_first);
  values = mpg_emit_transpose(g, mpg_emit_reshape(g, values, &split), 4, groups_first);
  mpg_batch_dot_params product;
  memset(&product, 0, sizeof product);
  product.forward_stype = -1;
  mpg_value products = mpg_emit2(g, MPG_OP_batch_dot, &product,
                                 mpg_emit_reshape(g, mpg_widen(g, inputs[weight]), &kernel),
                                 mpg_emit_reshape(g, values, &matrix));
  mpg_value out = mpg_emit_transpose(g, mpg_emit_reshape(g, products, &result), 4, batch_first);
  if (l.bias)
    out = mpg_add(g, out, mpg_emit_reshape(g, mpg_widen(g, inputs[weight + 1]), &channel));
  outputs[0] = mpg_emit_cast(g, out, dtype);
}
