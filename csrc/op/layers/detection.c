/* Object detection: anchors, training targets, detections and non-maximum suppression. Inference
 * and gradients. */
#include "op/infer.h"

#define PARAMS(structure, name) const mpg_##structure##_params *name = infer->params

static mpg_status count_of(mpg_infer *infer, const mpg_floats *floats, int count,
                           const char *name) {
  if (floats->count == count) return MPG_OK;
  return mpg_infer_fail(infer, "%s must have %d numbers, not %d", name, count, floats->count);
}

mpg_status mpg_infer_multibox_prior(mpg_infer *infer) {
  PARAMS(multibox_prior, p);
  MPG_TRY(mpg_infer_same_dtype(infer));
  MPG_TRY(count_of(infer, &p->steps, 2, "steps"));
  MPG_TRY(count_of(infer, &p->offsets, 2, "offsets"));
  for (int i = 0; i < 2; i++)
    if (!(p->offsets.values[i] >= 0 && p->offsets.values[i] <= 1))
      return mpg_infer_fail(infer, "offsets must be from 0 to 1");
  if (p->sizes.count < 1 || p->ratios.count < 1)
    return mpg_infer_fail(infer, "sizes and ratios must have at least one value each");
  for (int i = 0; i < p->ratios.count; i++)
    if (!(p->ratios.values[i] > 0)) return mpg_infer_fail(infer, "ratios must be above 0");
  const mpg_shape *data = &infer->inputs[0].shape;
  if (data->ndim < 0) return MPG_OK;
  if (data->ndim != 4)
    return mpg_infer_fail(infer, "data must have 4 dimensions (batch, channels, height, width)");
  if (data->dims[2] < 0 || data->dims[3] < 0) return MPG_OK;
  mpg_shape out = {.ndim = 3, .dims = {1, 0, 4}};
  if (__builtin_mul_overflow(data->dims[2], data->dims[3], &out.dims[1]) ||
      __builtin_mul_overflow(out.dims[1], (int64_t)p->sizes.count + p->ratios.count - 1,
                             &out.dims[1]))
    return mpg_infer_fail(infer, "the shapes are too large");
  infer->outputs[0].shape = out;
  return MPG_OK;
}

/* Checks that the anchors have the shape (1, count, 4). Sets *count to -1 if it is unknown. */
static mpg_status anchors_of(mpg_infer *infer, int input, int64_t *count) {
  const mpg_shape *shape = &infer->inputs[input].shape;
  *count = -1;
  if (!mpg_shape_known(shape)) return MPG_OK;
  if (shape->ndim != 3 || shape->dims[0] != 1 || shape->dims[2] != 4)
    return mpg_infer_fail(infer, "anchor must have the shape (1, anchors, 4)");
  *count = shape->dims[1];
  return MPG_OK;
}

mpg_status mpg_infer_multibox_target(mpg_infer *infer) {
  PARAMS(multibox_target, p);
  int64_t anchors;
  MPG_TRY(mpg_infer_same_dtype(infer));
  MPG_TRY(count_of(infer, &p->variances, 4, "variances"));
  if (p->negative_mining_ratio > 0 && !(p->negative_mining_thresh > 0))
    return mpg_infer_fail(infer, "negative_mining_thresh must be above 0");
  MPG_TRY(anchors_of(infer, 0, &anchors));
  const mpg_shape *label = &infer->inputs[1].shape, *pred = &infer->inputs[2].shape;
  if (anchors < 0 || !mpg_shape_known(label) || !mpg_shape_known(pred)) return MPG_OK;
  if (label->ndim != 3 || label->dims[2] < 5)
    return mpg_infer_fail(infer, "label must have the shape (batch, objects, 5 or more)");
  if (pred->ndim != 3 || pred->dims[0] != label->dims[0] || pred->dims[2] != anchors ||
      pred->dims[1] < 1)
    return mpg_infer_fail(
        infer,
        "cls_pred must have the shape (batch, classes, anchors): the batch of label, %lld anchors",
        (long long)anchors);
  mpg_shape classes = {.ndim = 2, .dims = {label->dims[0], anchors}},
            offsets = {.ndim = 2, .dims = {label->dims[0], 0}};
  if (__builtin_mul_overflow(anchors, (int64_t)4, &offsets.dims[1]))
    return mpg_infer_fail(infer, "the shapes are too large");
  infer->outputs[0].shape = infer->outputs[1].shape = offsets;
  infer->outputs[2].shape = classes;
  return MPG_OK;
}

mpg_status mpg_infer_multibox_detection(mpg_infer *infer) {
  PARAMS(multibox_detection, p);
  int64_t anchors;
  MPG_TRY(mpg_infer_same_dtype(infer));
  MPG_TRY(count_of(infer, &p->variances, 4, "variances"));
  MPG_TRY(anchors_of(infer, 2, &anchors));
  const mpg_shape *prob = &infer->inputs[0].shape, *loc = &infer->inputs[1].shape;
  if (anchors < 0 || !mpg_shape_known(prob) || !mpg_shape_known(loc)) return MPG_OK;
  if (prob->ndim != 3 || prob->dims[2] != anchors)
    return mpg_infer_fail(
        infer, "cls_prob must have the shape (batch, classes, anchors), with %lld anchors",
        (long long)anchors);
  if (loc->ndim != 2 || loc->dims[0] != prob->dims[0] || loc->dims[1] / 4 != anchors ||
      loc->dims[1] % 4)
    return mpg_infer_fail(infer,
                          "loc_pred must have the shape (batch, 4 * anchors), with %lld anchors",
                          (long long)anchors);
  infer->outputs[0].shape = (mpg_shape){.ndim = 3, .dims = {prob->dims[0], anchors, 6}};
  return MPG_OK;
}

static mpg_status place(mpg_infer *infer, const char *name, int64_t index, int64_t width,
                        int64_t box) {
  if (index < 0 || index >= width)
    return mpg_infer_fail(infer, "%s is %lld, which is out of range for rows of %lld numbers", name,
                          (long long)index, (long long)width);
  if (index >= box && index < box + 4)
    return mpg_infer_fail(infer, "%s is %lld, which overlaps the box coordinates", name,
                          (long long)index);
  return MPG_OK;
}

mpg_status mpg_infer_box_nms(mpg_infer *infer) {
  PARAMS(box_nms, p);
  const mpg_desc *data = &infer->inputs[0];
  infer->outputs[0].dtype = data->dtype;
  infer->outputs[1].dtype = MPG_INT64;
  if (!mpg_shape_known(&data->shape)) return MPG_OK;
  if (data->shape.ndim < 2)
    return mpg_infer_fail(infer, "data must have at least 2 dimensions (boxes, numbers of each)");
  int64_t width = data->shape.dims[data->shape.ndim - 1];
  if (p->coord_start > width - 4)
    return mpg_infer_fail(infer,
                          "coord_start is %lld, which is out of range for rows of %lld numbers",
                          (long long)p->coord_start, (long long)width);
  MPG_TRY(place(infer, "score_index", p->score_index, width, p->coord_start));
  if (p->id_index >= 0) MPG_TRY(place(infer, "id_index", p->id_index, width, p->coord_start));
  if (p->id_index == p->score_index)
    return mpg_infer_fail(infer, "id_index and score_index must differ");
  infer->outputs[0].shape = infer->outputs[1].shape = data->shape;
  infer->outputs[1].shape.ndim--;
  infer->outputs[1].shape.dims[data->shape.ndim - 1] = 0;
  return MPG_OK;
}

void mpg_gradient_box_nms(mpg_gradient *g) {
  if (mpg_has_value(g->out_grads[0]))
    g->in_grads[0] =
        mpg_emit2(g, MPG_OP__backward_box_nms, g->params, g->out_grads[0], g->outputs[1]);
}

mpg_status mpg_infer_box_nms_back(mpg_infer *infer) {
  infer->outputs[0] = infer->inputs[0];
  mpg_shape rows = infer->inputs[0].shape;
  MPG_TRY(mpg_infer_expect_dtype(infer, 1, MPG_INT64));
  if (!mpg_shape_known(&rows)) return MPG_OK;
  if (rows.ndim < 2) return mpg_infer_fail(infer, "the gradient must have at least 2 dimensions");
  rows.dims[--rows.ndim] = 0;
  return mpg_infer_expect_shape(infer, 1, &rows);
}

mpg_status mpg_infer_box_iou(mpg_infer *infer) {
  const mpg_shape *a = &infer->inputs[0].shape, *b = &infer->inputs[1].shape;
  MPG_TRY(mpg_infer_same_dtype(infer));
  if (!mpg_shape_known(a) || !mpg_shape_known(b)) return MPG_OK;
  if (a->ndim < 1 || b->ndim < 1 || a->dims[a->ndim - 1] != 4 || b->dims[b->ndim - 1] != 4)
    return mpg_infer_fail(infer, "boxes must have 4 numbers along the last dimension");
  if (a->ndim + b->ndim - 2 > MPG_MAX_NDIM)
    return mpg_infer_fail(infer, "the result would have more than %d dimensions", MPG_MAX_NDIM);
  mpg_shape out = {0};
  for (int i = 0; i < a->ndim - 1; i++) out.dims[out.ndim++] = a->dims[i];
  for (int i = 0; i < b->ndim - 1; i++) out.dims[out.ndim++] = b->dims[i];
  infer->outputs[0].shape = out;
  return MPG_OK;
}

mpg_status mpg_infer_bipartite_matching(mpg_infer *infer) {
  const mpg_desc *data = &infer->inputs[0];
  infer->outputs[0].dtype = infer->outputs[1].dtype = data->dtype;
  if (!mpg_shape_known(&data->shape)) return MPG_OK;
  if (data->shape.ndim < 2)
    return mpg_infer_fail(infer, "data must have at least 2 dimensions (rows, columns)");
  mpg_shape rows = data->shape, columns = data->shape;
  columns.dims[columns.ndim - 2] = columns.dims[columns.ndim - 1];
  rows.dims[--rows.ndim] = columns.dims[--columns.ndim] = 0;
  infer->outputs[0].shape = rows;
  infer->outputs[1].shape = columns;
  return MPG_OK;
}

/* Cost of comparing each box with all boxes of its image, or with all boxes of the second input. */
mpg_cost mpg_cost_boxes(const mpg_infer *call) {
  enum { OVERLAP = 16 };
  const mpg_shape *a = &call->inputs[0].shape,
                  *b = &call->inputs[call->num_inputs > 1 ? 1 : 0].shape;
  double boxes = a->ndim ? (double)mpg_shape_size(a) /
                               (double)(a->dims[a->ndim - 1] ? a->dims[a->ndim - 1] : 1)
                         : 1;
  double others = b->ndim > 1 ? (double)b->dims[b->ndim - 2] : 1;
  return mpg_cost_of(call, OVERLAP * boxes * others);
}
