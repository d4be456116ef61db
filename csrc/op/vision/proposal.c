/* Region proposals (Ren et al., Faster R-CNN, 2015). Anchors are moved by the predicted deltas, and
 * non-maximum suppression selects the most probable boxes. Composed of other ops. The result has no
 * gradient. */
#include <math.h>
#include <string.h>

#include "op/formula/arithmetic.h"
#include "op/infer.h"

/* Coordinates of anchors or boxes. Boxes are (batch, height, width, anchors). */
typedef struct box {
  mpg_value x1, y1, x2, y2;
} box;

int mpg_arity_proposal_outputs(const mpg_op *op, const void *params, int given) {
  (void)op;
  (void)given;
  return 1 + ((const mpg_proposal_params *)params)->output_score;
}

/* Emits a coordinate of all anchors at the first position. `which` is 0 for xmin, 1 for ymin, 2 for
 * xmax and 3 for ymax. Before scaling, all anchors have the same area and the given aspect ratios.
 * Sizes are rounded as in MXNet. */
static mpg_value anchors(mpg_gradient *g, mpg_value like, mpg_dtype dtype, int which) {
  const mpg_proposal_params *params = g->params;
  double numbers[MPG_MAX_FLOATS], center = 0.5 * (double)(params->feature_stride - 1);
  int count = 0;
  float area = (float)(params->feature_stride * params->feature_stride);
  for (int i = 0; i < params->ratios.count; i++)
    for (int j = 0; j < params->scales.count; j++) {
      float ratio = (float)params->ratios.values[i], scale = (float)params->scales.values[j];
      float width = floorf(sqrtf(floorf(area / ratio)) + 0.5f) * scale,
            height = floorf(width / scale * ratio + 0.5f) * scale;
      double half = 0.5 * ((double)(which % 2 ? height : width) - 1);
      numbers[count++] = which < 2 ? center - half : center + half;
    }
  return mpg_emit_numbers(g, like, 3, dtype, numbers, count);
}

/* Emits 0, 1, ... along one axis of (batch, height, width, anchors). */
static mpg_value along(mpg_gradient *g, mpg_value like, int axis, mpg_dtype dtype) {
  if (g->status != MPG_OK) return MPG_NO_VALUE;
  int64_t count = mpg_value_desc(g, like)->shape.dims[axis];
  mpg_shape shape = {.ndim = 4, .dims = {1, 1, 1, 1}};
  shape.dims[axis] = count;
  return mpg_emit_count(g, like, count, dtype, &shape);
}

/* Emits a column of im_info, with one number per image. The columns are height, width and scale. */
static mpg_value info(mpg_gradient *g, mpg_value im_info, int column) {
  if (g->status != MPG_OK) return MPG_NO_VALUE;
  mpg_shape shape = {.ndim = 4, .dims = {mpg_value_desc(g, im_info)->shape.dims[0], 1, 1, 1}};
  return mpg_emit_reshape(g, mpg_emit_slice(g, im_info, 1, column, column + 1), &shape);
}

/* Computes the lower and upper ends of the boxes along x (axis 0) or y (axis 1), clipped to the
 * image. */
static void moved(mpg_gradient *g, mpg_value like, const mpg_value *deltas, mpg_value im_info,
                  int axis, mpg_value *low, mpg_value *high) {
  const mpg_proposal_params *params = g->params;
  if (g->status != MPG_OK) return;
  mpg_dtype dtype = mpg_value_desc(g, like)->dtype;
  mpg_value begin = anchors(g, like, dtype, axis), end = anchors(g, like, dtype, 2 + axis),
            place = mpg_times(g, along(g, like, 2 - axis, dtype), (double)params->feature_stride);
  begin = mpg_add(g, begin, place);
  end = mpg_add(g, end, place);
  if (params->iou_loss) {
    *low = mpg_add(g, begin, deltas[axis]);
    *high = mpg_add(g, end, deltas[2 + axis]);
  } else {
    mpg_value size = mpg_plus(g, mpg_subtract(g, end, begin), 1);
    mpg_value center = mpg_add(g, begin, mpg_times(g, mpg_plus(g, size, -1), 0.5));
    center = mpg_add(g, mpg_multiply(g, deltas[axis], size), center);
    size = mpg_multiply(g, mpg_emit1(g, MPG_OP_exp, NULL, deltas[2 + axis]), size);
    mpg_value half = mpg_times(g, mpg_plus(g, size, -1), 0.5);
    *low = mpg_subtract(g, center, half);
    *high = mpg_add(g, center, half);
  }
  mpg_value edge = mpg_plus(g, info(g, im_info, 1 - axis), -1);
  for (int i = 0; i < 2; i++) {
    mpg_value *value = i ? high : low;
    *value = mpg_emit_scalar(g, MPG_OP__maximum_scalar,
                             mpg_emit2(g, MPG_OP_broadcast_minimum, NULL, *value, edge), 0);
  }
}

/* Emits 1 for boxes below the minimum size, otherwise 0. */
static mpg_value is_small(mpg_gradient *g, mpg_value low, mpg_value high, mpg_value least) {
  return mpg_emit2(g, MPG_OP_broadcast_lesser, NULL, mpg_plus(g, mpg_subtract(g, high, low), 1),
                   least);
}

/* Emits the indices of the boxes to keep, counted over all images: (batch, rpn_post_nms_top_n). If
 * non-maximum suppression keeps fewer boxes in an image, they are repeated. */
static mpg_value kept(mpg_gradient *g, const box *b, mpg_value score, int64_t batch,
                      int64_t count) {
  const mpg_proposal_params *params = g->params;
  mpg_shape column = {.ndim = 3, .dims = {batch, count, 1}},
            numbers = {.ndim = 3, .dims = {1, count, 1}},
            places = {.ndim = 2, .dims = {1, params->rpn_post_nms_top_n}};
  if (g->status != MPG_OK) return MPG_NO_VALUE;
  /* box_nms computes sizes as x2 - x1, but these boxes include the element at x2, so 1 is added to
   * the upper ends. The last column is the index of the box in its image. */
  mpg_value parts[] = {score,
                       b->x1,
                       b->y1,
                       mpg_plus(g, b->x2, 1),
                       mpg_plus(g, b->y2, 1),
                       mpg_emit_count(g, score, count, mpg_value_desc(g, score)->dtype, &numbers)};
  for (int i = 0; i < 5; i++) parts[i] = mpg_emit_reshape(g, parts[i], &column);
  parts[5] = mpg_emit_broadcast_to(g, parts[5], &column);
  mpg_box_nms_params nms;
  memset(&nms, 0, sizeof nms);
  nms.overlap_thresh = params->threshold;
  nms.valid_thresh = -INFINITY;
  nms.topk = params->rpn_pre_nms_top_n > 0 ? params->rpn_pre_nms_top_n : -1;
  nms.coord_start = 1;
  nms.id_index = nms.background_id = -1;
  mpg_value rows = mpg_emit1(g, MPG_OP__contrib_box_nms, &nms, mpg_emit_concat(g, parts, 6, 2));
  mpg_value positions = mpg_emit_cast(g, mpg_emit_slice(g, rows, 2, 5, 6), MPG_INT64);
  mpg_value there = mpg_emit_scalar(g, MPG_OP__greater_equal_scalar, positions, 0);
  mpg_shape per_image = {.ndim = 2, .dims = {batch, 1}};
  mpg_value number = mpg_emit_reshape(g, mpg_emit_reduce(g, MPG_OP_sum, there, 1), &per_image);
  mpg_clip_params range = {.a_min = 1, .a_max = (double)params->rpn_post_nms_top_n};
  number = mpg_emit1(g, MPG_OP_clip, &range, number);
  mpg_value place =
      mpg_emit2(g, MPG_OP_broadcast_mod, NULL,
                mpg_emit_count(g, score, params->rpn_post_nms_top_n, MPG_INT64, &places), number);
  mpg_shape flat = {.ndim = 1, .dims = {batch * count}}, first = {.ndim = 2, .dims = {batch, 1}};
  mpg_value begin = mpg_times(g, mpg_emit_count(g, score, batch, MPG_INT64, &first), (double)count);
  mpg_take_params take;
  memset(&take, 0, sizeof take);
  mpg_value record = mpg_emit2(g, MPG_OP_take, &take, mpg_emit_reshape(g, positions, &flat),
                               mpg_add(g, place, begin));
  return mpg_add(g, record, begin);
}

static bool fits(mpg_gradient *g, const mpg_value *inputs) {
  enum { MOST = 1 << 24 }; /* float32 represents all integers up to this one exactly */
  const mpg_proposal_params *params = g->params;
  int64_t count = (int64_t)params->ratios.count * params->scales.count;
  if (!mpg_same_dtype(g, 0, 1) || !mpg_same_dtype(g, 0, 2)) return false;
  const mpg_shape *prob = &mpg_value_desc(g, inputs[0])->shape,
                  *deltas = &mpg_value_desc(g, inputs[1])->shape,
                  *size = &mpg_value_desc(g, inputs[2])->shape;
  if (count < 1 || count > MPG_MAX_FLOATS)
    mpg_gradient_fail(g, "scales times ratios must be 1 to %d anchors", MPG_MAX_FLOATS);
  else if (prob->ndim != 4 || prob->dims[1] != 2 * count || prob->dims[2] < 1 || prob->dims[3] < 1)
    mpg_gradient_fail(g, "cls_prob must be (batch, 2 * %lld anchors, height, width)",
                      (long long)count);
  else if (deltas->ndim != 4 || deltas->dims[0] != prob->dims[0] || deltas->dims[1] != 4 * count ||
           deltas->dims[2] != prob->dims[2] || deltas->dims[3] != prob->dims[3])
    mpg_gradient_fail(g, "bbox_pred must be (batch, 4 * %lld anchors, height, width), as cls_prob",
                      (long long)count);
  else if (size->ndim != 2 || size->dims[0] != prob->dims[0] || size->dims[1] != 3)
    mpg_gradient_fail(g, "im_info must be (batch, [height, width, scale])");
  else if (prob->dims[2] * prob->dims[3] > MOST / count)
    mpg_gradient_fail(g, "more than %d anchors", MOST);
  else if (g->op->id == MPG_OP__contrib_Proposal && prob->dims[0] != 1)
    mpg_gradient_fail(g, "expected one image; use MultiProposal for several");
  for (int i = 0; i < params->ratios.count; i++)
    if (g->status == MPG_OK && !(params->ratios.values[i] > 0))
      mpg_gradient_fail(g, "ratios must be above 0");
  return g->status == MPG_OK;
}

void mpg_compose_proposal(mpg_gradient *g, const mpg_value *inputs, mpg_value *outputs) {
  static const int64_t anchors_last[] = {0, 2, 3, 1}, numbers_first[] = {2, 0, 3, 4, 1};
  const mpg_proposal_params *params = g->params;
  if (!fits(g, inputs)) return;
  mpg_value arrays[3];
  for (int i = 0; i < 3; i++)
    arrays[i] = mpg_emit1(g, MPG_OP_BlockGrad, NULL, mpg_widen(g, inputs[i]));
  if (g->status != MPG_OK) return;
  mpg_shape shape = mpg_value_desc(g, arrays[0])->shape;
  mpg_dtype dtype = mpg_value_desc(g, inputs[0])->dtype, wide = mpg_value_desc(g, arrays[0])->dtype;
  int64_t batch = shape.dims[0], each = shape.dims[1] / 2,
          count = each * shape.dims[2] * shape.dims[3], keep = params->rpn_post_nms_top_n;
  mpg_value score =
      mpg_emit_transpose(g, mpg_emit_slice(g, arrays[0], 1, each, 2 * each), 4, anchors_last);
  mpg_shape split = {.ndim = 5, .dims = {batch, each, 4, shape.dims[2], shape.dims[3]}},
            boxes = {.ndim = 4, .dims = {batch, shape.dims[2], shape.dims[3], each}};
  mpg_value all = mpg_emit_transpose(g, mpg_emit_reshape(g, arrays[1], &split), 5, numbers_first),
            deltas[4];
  for (int i = 0; i < 4; i++)
    deltas[i] = mpg_emit_reshape(g, mpg_emit_slice(g, all, 0, i, i + 1), &boxes);
  box b;
  moved(g, score, deltas, arrays[2], 0, &b.x1, &b.x2);
  moved(g, score, deltas, arrays[2], 1, &b.y1, &b.y2);
  /* Boxes whose anchor position is outside the image get the score -1, so they are chosen last.
   * Boxes that are too small also get the score -1, and they are enlarged. */
  mpg_value last = MPG_NO_VALUE;
  for (int i = 0; i < 2; i++) {
    mpg_value real = mpg_emit1(g, MPG_OP_floor, NULL,
                               mpg_emit_scalar(g, MPG_OP__div_scalar, info(g, arrays[2], i),
                                               (double)params->feature_stride));
    mpg_value beyond =
        mpg_emit2(g, MPG_OP_broadcast_greater_equal, NULL, along(g, score, 1 + i, wide), real);
    last = i ? mpg_emit2(g, MPG_OP_broadcast_maximum, NULL, last, beyond) : beyond;
  }
  mpg_value least = mpg_times(g, info(g, arrays[2], 2), (double)params->rpn_min_size);
  mpg_value small = mpg_emit2(g, MPG_OP_broadcast_maximum, NULL, is_small(g, b.x1, b.x2, least),
                              is_small(g, b.y1, b.y2, least));
  mpg_value more = mpg_multiply(g, small, mpg_times(g, least, 0.5));
  b = (box){mpg_subtract(g, b.x1, more), mpg_subtract(g, b.y1, more), mpg_add(g, b.x2, more),
            mpg_add(g, b.y2, more)};
  last = mpg_emit2(g, MPG_OP_broadcast_maximum, NULL, last, small);
  if (g->status != MPG_OK) return;
  score = mpg_emit_where(g, last, mpg_emit_full_like(g, score, -1), score);
  mpg_value chosen = kept(g, &b, score, batch, count);
  mpg_shape column = {.ndim = 2, .dims = {batch * count, 1}},
            result = {.ndim = 2, .dims = {batch * keep, 5}},
            scores = {.ndim = 2, .dims = {batch * keep, 1}},
            picture = {.ndim = 3, .dims = {batch, 1, 1}},
            pictures = {.ndim = 3, .dims = {batch, count, 1}};
  mpg_value parts[] = {MPG_NO_VALUE, b.x1, b.y1, b.x2, b.y2};
  for (int i = 1; i < 5; i++) parts[i] = mpg_emit_reshape(g, parts[i], &column);
  parts[0] = mpg_emit_reshape(
      g, mpg_emit_broadcast_to(g, mpg_emit_count(g, score, batch, wide, &picture), &pictures),
      &column);
  mpg_take_params take;
  memset(&take, 0, sizeof take);
  mpg_value rois = mpg_emit2(g, MPG_OP_take, &take, mpg_emit_concat(g, parts, 5, 1), chosen);
  outputs[0] = mpg_emit_cast(g, mpg_emit_reshape(g, rois, &result), dtype);
  if (!params->output_score) return;
  mpg_value of_kept = mpg_emit2(g, MPG_OP_take, &take, mpg_emit_reshape(g, score, &column), chosen);
  outputs[1] = mpg_emit_cast(g, mpg_emit_reshape(g, of_kept, &scores), dtype);
}
