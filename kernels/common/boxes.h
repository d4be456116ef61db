/* Boxes and anchors in MXNet's precision: float32, or float64 for float64 arrays (`wide`). Values
 * that are compared with thresholds are rounded after every operation, so that the same boxes are
 * kept as in MXNet. These functions are stateless and may be called from any thread. */
#ifndef KERNELS_COMMON_BOXES_H
#define KERNELS_COMMON_BOXES_H

#include <math.h>

#include "kernels/common/real.h"
#include "kernels/common/regions.h"

enum { MPG_CORNER, MPG_CENTER }; /* box formats */

typedef struct mpg_box {
  double at[4], area;
  double id, score; /* detections only; in MultiBoxDetection, id < 0 marks an empty row */
} mpg_box;

/* Returns the area of a box. If a side is negative, returns 0 unless `any` is set. */
MPG_HOST_DEVICE double mpg_box_area(const double *at, int format, bool any, int wide) {
  double width = format == MPG_CENTER ? at[2] : mpg_region_round(at[2] - at[0], wide),
         height = format == MPG_CENTER ? at[3] : mpg_region_round(at[3] - at[1], wide);
  return !any && (width < 0 || height < 0) ? 0 : mpg_region_round(width * height, wide);
}

/* Loads the box whose four coordinates start at element i. */
MPG_HOST_DEVICE mpg_box mpg_box_at(const mpg_view *view, int64_t i, int format, bool any_area,
                                   int wide) {
  mpg_box box;
  for (int k = 0; k < 4; k++) box.at[k] = mpg_real_at(view, i + k);
  box.area = mpg_box_area(box.at, format, any_area, wide);
  box.id = box.score = 0;
  return box;
}

/* Returns the length of the overlap of two boxes along one axis, or 0 if they do not overlap. a and
 * b point to the boxes' first coordinates for the x axis, and to their second coordinates for the y
 * axis. */
MPG_HOST_DEVICE double mpg_box_common(const double *a, const double *b, int format, int wide) {
  double low_a = a[0], high_a = a[2], low_b = b[0], high_b = b[2];
  if (format == MPG_CENTER) {
    low_a = mpg_region_round(a[0] - a[2] / 2, wide);
    high_a = mpg_region_round(a[0] + a[2] / 2, wide);
    low_b = mpg_region_round(b[0] - b[2] / 2, wide);
    high_b = mpg_region_round(b[0] + b[2] / 2, wide);
  }
  double length = mpg_region_round(fmin(high_a, high_b) - fmax(low_a, low_b), wide);
  return length > 0 ? length : 0;
}

/* Returns the intersection over union (IoU) of two boxes. */
MPG_HOST_DEVICE double mpg_box_overlap(const mpg_box *a, const mpg_box *b, int format, int wide) {
  double both = mpg_region_round(mpg_box_common(a->at, b->at, format, wide) *
                                     mpg_box_common(a->at + 1, b->at + 1, format, wide),
                                 wide);
  if (!(both > 0)) return 0;
  double all = mpg_region_round(mpg_region_round(a->area + b->area, wide) - both, wide);
  return mpg_region_round(both / all, wide);
}

/* Returns the IoU of corner boxes as MXNet's multibox ops compute it. Returns 0 if the area of the
 * union is 0. If `negative_is_none`, also returns 0 for a negative area. */
MPG_HOST_DEVICE double mpg_box_share(const mpg_box *a, const mpg_box *b, bool negative_is_none,
                                     int wide) {
  double both = mpg_region_round(mpg_box_common(a->at, b->at, MPG_CORNER, wide) *
                                     mpg_box_common(a->at + 1, b->at + 1, MPG_CORNER, wide),
                                 wide);
  double all = mpg_region_round(mpg_region_round(a->area + b->area, wide) - both, wide);
  return all == 0 || (negative_is_none && all < 0) ? 0 : mpg_region_round(both / all, wide);
}

/* --- Non-maximum suppression ------------------------------------------------------------------ */

/* Converts a box from format `from` to the other format. */
MPG_HOST_DEVICE void mpg_box_convert(double *box, int from) {
  double x = box[0], y = box[1], z = box[2], w = box[3];
  if (from == MPG_CENTER)
    box[0] = x - z / 2, box[1] = y - w / 2, box[2] = x + z / 2, box[3] = y + w / 2;
  else
    box[0] = (x + z) / 2, box[1] = (y + w) / 2, box[2] = z - x, box[3] = w - y;
}

/* Loads the box of the detection whose row starts at element `row`. Returns false if the score is
 * not above the threshold or the detection is background. */
MPG_HOST_DEVICE bool mpg_nms_candidate(const mpg_box_nms_params *p, const mpg_view *data,
                                       int64_t row, int wide, mpg_box *box) {
  double score = mpg_real_at(data, row + p->score_index),
         id = p->id_index >= 0 ? mpg_real_at(data, row + p->id_index) : 0;
  if (!(score > mpg_region_round(p->valid_thresh, wide))) return false;
  if (p->id_index >= 0 && id == (double)p->background_id) return false;
  *box = mpg_box_at(data, row + p->coord_start, p->in_format, false, wide);
  box->id = id, box->score = score;
  return true;
}

/* True if box `one` suppresses box `other`, which has a lower score. */
MPG_HOST_DEVICE bool mpg_nms_covers(const mpg_box_nms_params *p, const mpg_box *one,
                                    const mpg_box *other, int wide) {
  return (p->force_suppress || one->id == other->id) &&
         mpg_box_overlap(one, other, p->in_format, wide) >
             mpg_region_round(p->overlap_thresh, wide);
}

/* --- Anchors ---------------------------------------------------------------------------------- */

/* Computes the corners of anchor i of a feature map with `height` rows and `width` columns. */
MPG_HOST_DEVICE void mpg_prior_box(const mpg_multibox_prior_params *p, int64_t height,
                                   int64_t width, int64_t i, float *box) {
  int64_t kinds = p->sizes.count + p->ratios.count - 1, kind = i % kinds, place = i / kinds,
          by_ratio = kind - p->sizes.count + 1;
  float step_y = (float)p->steps.values[0], step_x = (float)p->steps.values[1];
  if (step_y <= 0 || step_x <= 0) step_y = 1.0f / (float)height, step_x = 1.0f / (float)width;
  float y = ((float)(place / width) + (float)p->offsets.values[0]) * step_y,
        x = ((float)(place % width) + (float)p->offsets.values[1]) * step_x;
  float size = (float)p->sizes.values[by_ratio > 0 ? 0 : kind],
        ratio = sqrtf((float)p->ratios.values[by_ratio > 0 ? by_ratio : 0]);
  float half_width = size * (float)height / (float)width * ratio / 2,
        half_height = size / ratio / 2;
  box[0] = x - half_width, box[1] = y - half_height;
  box[2] = x + half_width, box[3] = y + half_height;
  for (int k = 0; p->clip && k < 4; k++) box[k] = fminf(fmaxf(box[k], 0), 1);
}

/* --- Detections from class probabilities, offsets and anchors --------------------------------- */

/* Decodes anchor i of sample n. Returns its box with the id and score of its most probable class
 * other than background. The id is -1 if the score is below the threshold. */
MPG_HOST_DEVICE mpg_box mpg_detection(const mpg_multibox_detection_params *p,
                                      const mpg_view *inputs, int64_t n, int64_t i, int wide) {
  const double *v = p->variances.values;
  int64_t classes = inputs[0].desc.shape.dims[1], boxes = inputs[0].desc.shape.dims[2], id = 0;
  mpg_box box = {{-1, -1, -1, -1}, 0, -1, -1};
  double score = -1, a[4], l[4];
  for (int64_t k = 1; k < classes; k++) {
    double one = mpg_real_at(&inputs[0], (n * classes + k) * boxes + i);
    if (one > score) score = one, id = k;
  }
  if (id == 0 || score < mpg_region_round(p->threshold, wide)) return box;
  for (int k = 0; k < 4; k++) {
    a[k] = mpg_real_at(&inputs[2], 4 * i + k);
    l[k] = mpg_real_at(&inputs[1], (n * boxes + i) * 4 + k);
  }
  double width = a[2] - a[0], height = a[3] - a[1];
  double x = l[0] * v[0] * width + (a[0] + a[2]) / 2, y = l[1] * v[1] * height + (a[1] + a[3]) / 2;
  double half_width = exp(l[2] * v[2]) * width / 2, half_height = exp(l[3] * v[3]) * height / 2;
  box.at[0] = x - half_width, box.at[1] = y - half_height;
  box.at[2] = x + half_width, box.at[3] = y + half_height;
  for (int k = 0; k < 4; k++)
    box.at[k] = mpg_region_round(p->clip ? fmin(fmax(box.at[k], 0.0), 1.0) : box.at[k], wide);
  box.area = mpg_box_area(box.at, MPG_CORNER, true, wide);
  box.id = (double)(id - 1), box.score = score;
  return box;
}

/* True if box `one` suppresses box `other`, which has a lower score. */
MPG_HOST_DEVICE bool mpg_detection_covers(const mpg_multibox_detection_params *p,
                                          const mpg_box *one, const mpg_box *other, int wide) {
  return (p->force_suppress || one->id == other->id) &&
         mpg_box_share(one, other, true, wide) >= mpg_region_round(p->nms_threshold, wide);
}

/* True if non-maximum suppression is enabled. */
MPG_HOST_DEVICE bool mpg_detection_suppresses(const mpg_multibox_detection_params *p) {
  return p->nms_threshold > 0 && p->nms_threshold <= 1;
}

/* --- Training targets from anchors, labels and class predictions ------------------------------ */

/* Returns the softmax probability that anchor j of sample n is background, or infinity if it is
 * NaN. */
MPG_HOST_DEVICE double mpg_background(const mpg_view *predictions, int64_t n, int64_t j, int wide) {
  int64_t classes = predictions->desc.shape.dims[1], boxes = predictions->desc.shape.dims[2],
          from = n * classes * boxes + j;
  double most = -INFINITY, sum = 0, first = mpg_real_at(predictions, from);
  for (int64_t k = 0; k < classes; k++)
    most = fmax(most, mpg_real_at(predictions, from + k * boxes));
  for (int64_t k = 0; k < classes; k++)
    sum += exp(mpg_real_at(predictions, from + k * boxes) - most);
  double sure = mpg_region_round(exp(first - most) / sum, wide);
  return sure == sure ? sure : INFINITY;
}

/* Returns the number of anchors to train as background (hard negative mining) if `objects` anchors
 * are matched to objects. */
MPG_HOST_DEVICE int64_t mpg_background_wanted(const mpg_multibox_target_params *p, int64_t objects,
                                              int64_t anchors) {
  return (int64_t)fmin((double)objects * p->negative_mining_ratio, (double)anchors);
}

/* Stores the training target of anchor j in sample n. The target is the object in row `row` of the
 * labels, or no object and the class id `none` if row < 0. The outputs are box offsets, a mask of
 * the valid offsets, and class ids. */
MPG_HOST_DEVICE void mpg_put_target(const mpg_multibox_target_params *p, const mpg_view *inputs,
                                    const mpg_view *outputs, int64_t n, int64_t j, int64_t row,
                                    double none) {
  const double *v = p->variances.values;
  int64_t to = n * inputs[0].desc.shape.dims[1] + j, label = row * inputs[1].desc.shape.dims[2];
  double found[4] = {0, 0, 0, 0};
  if (row >= 0) {
    float a[4], l[4];
    for (int k = 0; k < 4; k++) {
      a[k] = (float)mpg_real_at(&inputs[0], 4 * j + k);
      l[k] = (float)mpg_real_at(&inputs[1], label + 1 + k);
    }
    float width = a[2] - a[0], height = a[3] - a[1], x = (a[0] + a[2]) * 0.5f,
          y = (a[1] + a[3]) * 0.5f;
    found[0] = ((l[0] + l[2]) * 0.5f - x) / width / (float)v[0];
    found[1] = ((l[1] + l[3]) * 0.5f - y) / height / (float)v[1];
    found[2] = log((double)((l[2] - l[0]) / width)) / v[2];
    found[3] = log((double)((l[3] - l[1]) / height)) / v[3];
  }
  for (int k = 0; k < 4; k++) {
    mpg_real_store(&outputs[0], 4 * to + k, found[k]);
    mpg_real_store(&outputs[1], 4 * to + k, row >= 0);
  }
  mpg_real_store(&outputs[2], to, row >= 0 ? mpg_real_at(&inputs[1], label) + 1 : none);
}

#endif
