/* Correlation of two images at displacements (Dosovitskiy et al., FlowNet, 2015). Composed of other
 * ops. One op computes the products at all displacements, because separate arrays for hundreds of
 * displacements would take too much memory. */
#include <string.h>

#include "base/memory.h"
#include "op/batching/batching.h"
#include "op/formula/arithmetic.h"
#include "op/infer.h"

/* --- Products at displacements ---------------------------------------------------------------- */
/* _displaced_products multiplies element (i, j) of `first`, (batch, channels, rows, columns), by
 * element (most + i * step + down, most + j * step + right) of `second`, (batch, channels, height,
 * width), and sums over the channels. down and right are multiples of the stride from -most to
 * most. _displaced_first and _displaced_second are its gradients. All three ops are linear in each
 * input, so the gradients of each op are the other two ops. */
static int64_t displacements(const mpg_displaced_params *p) {
  int64_t across = 2 * (p->most / p->stride) + 1;
  return across * across;
}

/* Infers one of the three ops. `products`, `first` and `second` are the input indices of these
 * arrays, or RESULT for the array that the op outputs. */
enum { RESULT = -1 };
static mpg_status infer_displaced(mpg_infer *infer, int products, int first, int second) {
  const mpg_displaced_params *p = infer->params;
  const mpg_shape *a = &infer->inputs[0].shape, *b = &infer->inputs[1].shape;
  MPG_TRY(mpg_infer_expect_dtype(infer, 1, infer->inputs[0].dtype));
  if (!mpg_shape_known(a) || !mpg_shape_known(b)) return MPG_OK;
  if (a->ndim != 4 || b->ndim != 4 || a->dims[0] != b->dims[0])
    return mpg_infer_fail(infer, "both arrays must have 4 dimensions with the same batch size");
  const mpg_shape *inputs[] = {a, b};
  const int64_t *of_products = products == RESULT ? NULL : inputs[products]->dims,
                *of_first = first == RESULT ? NULL : inputs[first]->dims,
                *of_second = second == RESULT ? NULL : inputs[second]->dims,
                *sides = (of_first ? of_first : of_products) + 2,
                *around = of_second ? of_second + 2 : (int64_t[]){p->height, p->width};
  if (p->most >= INT32_MAX / 2) return mpg_infer_fail(infer, "the displacements are too large");
  int64_t moved = p->most + p->most / p->stride * p->stride + 1, reach;
  for (int i = 0; i < 2; i++)
    if (__builtin_mul_overflow(sides[i] - 1, p->step, &reach) ||
        __builtin_add_overflow(reach, moved, &reach) || reach > around[i])
      return mpg_infer_fail(infer, "the second array is too small for the displacements");
  int64_t channels = of_first ? of_first[1] : of_second[1];
  if (of_products && of_products[1] != displacements(p))
    return mpg_infer_fail(infer, "the products must have one plane for each displacement");
  if (of_first && of_second && of_second[1] != channels)
    return mpg_infer_fail(infer, "both arrays must have the same number of channels");
  if (of_products && of_first && memcmp(of_products + 2, of_first + 2, 2 * sizeof *of_first))
    return mpg_infer_fail(infer, "the products must have the height and width of the first array");
  const int64_t *plane = second == RESULT ? around : sides;
  mpg_shape shape = {.ndim = 4, .dims = {a->dims[0], channels, plane[0], plane[1]}};
  if (products == RESULT) shape.dims[1] = displacements(p);
  mpg_infer_set(infer, 0, &shape, infer->inputs[0].dtype);
  return MPG_OK;
}

mpg_status mpg_infer_displaced_products(mpg_infer *infer) {
  return infer_displaced(infer, RESULT, 0, 1);
}

mpg_status mpg_infer_displaced_first(mpg_infer *infer) {
  return infer_displaced(infer, 0, RESULT, 1);
}

mpg_status mpg_infer_displaced_second(mpg_infer *infer) {
  return infer_displaced(infer, 0, 1, RESULT);
}

/* Cost: one multiplication and one addition for each position of the first array, displacement and
 * channel. */
mpg_cost mpg_cost_displaced(const mpg_infer *call) {
  const mpg_shape *a = &call->inputs[0].shape, *b = &call->inputs[1].shape;
  bool products = call->op->id == MPG_OP__displaced_products;
  double others = (double)(products ? displacements(call->params) : b->dims[1]);
  return mpg_cost_of(call, 2 * others * (double)mpg_shape_size(a));
}

mpg_status mpg_batching_displaced(mpg_batching *b) {
  MPG_TRY(mpg_batching_all_along(b, b->num_inputs, 0));
  mpg_batching_set(b, 0, 0, mpg_batching_first(b));
  return MPG_OK;
}

void mpg_gradient_displaced_products(mpg_gradient *g) {
  const mpg_shape *second = &mpg_value_desc(g, g->inputs[1])->shape;
  mpg_displaced_params params = *(const mpg_displaced_params *)g->params;
  params.height = second->dims[2];
  params.width = second->dims[3];
  if (g->needed[0])
    g->in_grads[0] = mpg_emit2(g, MPG_OP__displaced_first, &params, g->out_grads[0], g->inputs[1]);
  if (g->needed[1])
    g->in_grads[1] = mpg_emit2(g, MPG_OP__displaced_second, &params, g->out_grads[0], g->inputs[0]);
}

void mpg_gradient_displaced_first(mpg_gradient *g) {
  if (g->needed[0])
    g->in_grads[0] =
        mpg_emit2(g, MPG_OP__displaced_products, g->params, g->out_grads[0], g->inputs[1]);
  if (g->needed[1]) {
    const mpg_shape *second = &mpg_value_desc(g, g->inputs[1])->shape;
    mpg_displaced_params params = *(const mpg_displaced_params *)g->params;
    params.height = second->dims[2];
    params.width = second->dims[3];
    g->in_grads[1] = mpg_emit2(g, MPG_OP__displaced_second, &params, g->inputs[0], g->out_grads[0]);
  }
}

void mpg_gradient_displaced_second(mpg_gradient *g) {
  if (g->needed[0])
    g->in_grads[0] =
        mpg_emit2(g, MPG_OP__displaced_products, g->params, g->inputs[1], g->out_grads[0]);
  if (g->needed[1])
    g->in_grads[1] =
        mpg_emit2(g, MPG_OP__displaced_first, g->params, g->inputs[0], g->out_grads[0]);
}

/* --- Correlation ------------------------------------------------------------------------------ */
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

/* Pads height and width with `pad` zeros on each side. */
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

/* Emits the sums over windows of kernel x kernel elements (sum pooling). */
static mpg_value summed(mpg_gradient *g, mpg_value data, int64_t kernel, int64_t stride) {
  enum { SUM = 3 };
  mpg_pooling_params params;
  memset(&params, 0, sizeof params);
  params.kernel = (mpg_tuple){.count = 2, .values = {kernel, kernel}};
  params.stride = (mpg_tuple){.count = 2, .values = {stride, stride}};
  params.pool_type = SUM;
  params.pooling_convention = 2; /* "valid" */
  params.count_include_pad = true;
  params.layout = -1;
  return mpg_emit1(g, MPG_OP_Pooling, &params, data);
}

/* Emits |x|, whose derivative at 0 is 1 here. */
static mpg_value size_of(mpg_gradient *g, mpg_value x) {
  mpg_value positive = mpg_emit_scalar(g, MPG_OP__greater_equal_scalar, x, 0);
  return mpg_multiply(g, x, mpg_plus(g, mpg_times(g, positive, 2), -1));
}

/* Emits the sum over channels of the absolute differences, one map per displacement. */
static mpg_value differences(mpg_gradient *g, mpg_value first, mpg_value second, const window *w,
                             int64_t radius, int64_t stride) {
  int64_t across = 2 * radius + 1;
  if (g->status != MPG_OK) return MPG_NO_VALUE;
  mpg_value *maps = mpg_malloc((size_t)(across * across) * sizeof *maps), result;
  if (!maps) {
    g->status = mpg_out_of_host_memory((size_t)(across * across) * sizeof *maps);
    return MPG_NO_VALUE;
  }
  for (int64_t i = 0; i < across * across; i++) {
    mpg_value moved =
        part(g, second, w, (i / across - radius) * stride, (i % across - radius) * stride);
    maps[i] = mpg_emit_reduce(g, MPG_OP_sum, size_of(g, mpg_subtract(g, first, moved)), 1);
  }
  result = mpg_emit_concat(g, maps, (int)(across * across), 1);
  mpg_free(maps);
  return result;
}

mpg_status mpg_infer_correlation(mpg_infer *infer) {
  MPG_TRY(mpg_infer_same_dtype(infer));
  for (int i = 0; i < 2; i++)
    if (mpg_shape_known(&infer->inputs[1 - i].shape))
      MPG_TRY(mpg_infer_expect_shape(infer, i, &infer->inputs[1 - i].shape));
  return mpg_infer_composed(infer);
}

void mpg_compose_correlation(mpg_gradient *g, const mpg_value *inputs, mpg_value *outputs) {
  const mpg_correlation_params *params = g->params;
  char text[MPG_SHAPE_TEXT_SIZE];
  mpg_shape shape = mpg_value_desc(g, inputs[0])->shape;
  mpg_dtype dtype = mpg_value_desc(g, inputs[0])->dtype;
  if (shape.ndim != 4) {
    mpg_gradient_fail(g, "data1 and data2 must be (batch, channels, height, width); data1 is %s",
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
      mpg_gradient_fail(
          g, "the data is smaller than the window and its displacements; increase pad_size");
      return;
    }
    w.begin[i] = most;
    w.end[i] = most + (size[i] - 1) * stride + kernel;
  }
  mpg_value first = part(g, padded(g, mpg_widen(g, inputs[0]), pad), &w, 0, 0),
            second = padded(g, mpg_widen(g, inputs[1]), pad);
  mpg_value result = MPG_NO_VALUE;
  if (params->is_multiply) {
    mpg_displaced_params products;
    memset(&products, 0, sizeof products);
    products.step = w.step;
    products.most = most;
    products.stride = params->stride2;
    result = mpg_emit2(g, MPG_OP__displaced_products, &products, first, second);
  } else {
    result = differences(g, first, second, &w, radius, params->stride2);
  }
  if (kernel > 1) result = summed(g, result, kernel, stride);
  result = mpg_times(g, result, 1 / (double)(kernel * kernel * shape.dims[1]));
  outputs[0] = mpg_emit_cast(g, result, dtype);
}
