/* How alike two pictures are at places that are moved against each other (Dosovitskiy et al.,
 * FlowNet, 2015). Composed of other ops: one product of shifted pictures for each displacement. */
#include <string.h>

#include "base/memory.h"
#include "op/formula/arithmetic.h"
#include "op/infer.h"

typedef struct window {
  int64_t begin[2], end[2], step;
} window;

static mpg_value part(mpg_gradient *g, mpg_value data, const window *w, int64_t down,
                      int64_t right) {
  if (g->status != MPG_OK) return MPG_NO_VALUE;
  const mpg_shape *shape = &mpg_value_desc(g, data)->shape;
  mpg_slice_params params;
  memset(&params, 0, sizeof params);
  params.begin.count = params.end.count = params.step.count = 4;
  for (int i = 0; i < 4; i++) {
    int64_t shift = i == 2 ? down : right;
    params.begin.values[i] = i < 2 ? 0 : w->begin[i - 2] + shift;
    params.end.values[i] = i < 2 ? shape->dims[i] : w->end[i - 2] + shift;
    params.step.values[i] = i < 2 ? 1 : w->step;
  }
  return mpg_emit1(g, MPG_OP_slice, &params, data);
}

/* With zeros around. */
static mpg_value padded(mpg_gradient *g, mpg_value data, int64_t pad) {
  for (int axis = 2; axis < 4 && pad > 0 && g->status == MPG_OK; axis++) {
    mpg_shape edge = mpg_value_desc(g, data)->shape;
    edge.dims[axis] = pad;
    mpg_value zeros = mpg_emit_full(g, data, &edge, mpg_value_desc(g, data)->dtype, 0);
    mpg_value parts[] = {zeros, data, zeros};
    data = mpg_emit_concat(g, parts, 3, axis);
  }
  return data;
}

/* Sums over windows of kernel x kernel elements, every `stride` elements. */
static mpg_value summed(mpg_gradient *g, mpg_value data, int64_t kernel, int64_t stride) {
  enum { SUM = 3 };
  mpg_pooling_params params;
  memset(&params, 0, sizeof params);
  params.kernel = (mpg_tuple){.count = 2, .values = {kernel, kernel}};
  params.stride = (mpg_tuple){.count = 2, .values = {stride, stride}};
  params.pool_type = SUM;
  params.pooling_convention = 2; /* valid */
  params.count_include_pad = true;
  params.layout = -1;
  return mpg_emit1(g, MPG_OP_Pooling, &params, data);
}

void mpg_compose_correlation(mpg_gradient *g, const mpg_value *inputs, mpg_value *outputs) {
  const mpg_correlation_params *params = g->params;
  char text[MPG_SHAPE_TEXT_SIZE];
  if (!mpg_same_dtype(g, 0, 1)) return;
  mpg_shape shape = mpg_value_desc(g, inputs[0])->shape;
  mpg_dtype dtype = mpg_value_desc(g, inputs[0])->dtype;
  if (shape.ndim != 4 || !mpg_shape_equal(&shape, &mpg_value_desc(g, inputs[1])->shape)) {
    mpg_gradient_fail(g,
                      "data1 and data2 must be (batch, channels, height, width), both alike; "
                      "data1 is %s",
                      mpg_shape_text(&shape, text, sizeof text));
    return;
  }
  int64_t kernel = params->kernel_size, most = params->max_displacement, stride = params->stride1,
          pad = params->pad_size, radius = most / params->stride2, across = 2 * radius + 1,
          border = most + (kernel - 1) / 2;
  if (kernel % 2 == 0) {
    mpg_gradient_fail(g, "kernel_size must be odd, not %lld", (long long)kernel);
    return;
  }
  if (across > MPG_MAX_INPUTS / across) {
    mpg_gradient_fail(g, "%lld x %lld displacements are too many", (long long)across,
                      (long long)across);
    return;
  }
  window w = {.step = kernel == 1 ? stride : 1};
  int64_t size[2];
  for (int i = 0; i < 2; i++) {
    int64_t inside = shape.dims[2 + i] + 2 * pad - 2 * border;
    size[i] = inside > 0 ? (inside + stride - 1) / stride : 0;
    if (size[i] < 1) {
      mpg_gradient_fail(g,
                        "the data is smaller than the window and its displacements; give more "
                        "pad_size");
      return;
    }
    w.begin[i] = most;
    w.end[i] = most + (size[i] - 1) * stride + kernel;
  }
  mpg_value first = part(g, padded(g, mpg_widen(g, inputs[0]), pad), &w, 0, 0),
            second = padded(g, mpg_widen(g, inputs[1]), pad);
  mpg_value *maps = mpg_malloc((size_t)(across * across) * sizeof *maps);
  if (!maps) {
    if (g->status == MPG_OK) g->status = mpg_out_of_host_memory(sizeof *maps);
    return;
  }
  for (int64_t i = 0; i < across * across; i++) {
    mpg_value moved = part(g, second, &w, (i / across - radius) * params->stride2,
                           (i % across - radius) * params->stride2);
    mpg_value alike = params->is_multiply
                          ? mpg_multiply(g, first, moved)
                          : mpg_emit1(g, MPG_OP_abs, NULL, mpg_subtract(g, first, moved));
    maps[i] = mpg_emit_reduce(g, MPG_OP_sum, alike, 1);
  }
  mpg_value result = mpg_emit_concat(g, maps, (int)(across * across), 1);
  mpg_free(maps);
  if (kernel > 1) result = summed(g, result, kernel, stride);
  result = mpg_times(g, result, 1 / (double)(kernel * kernel * shape.dims[1]));
  outputs[0] = mpg_emit_cast(g, result, dtype);
}
