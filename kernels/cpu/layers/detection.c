/* Boxes: anchors, their targets, detections, and the suppression of those that overlap.
 *
 * Computed in the precision of float32, or of float64 for arrays of that dtype: what is compared
 * with thresholds is rounded after every operation, so that the same boxes stay as in MXNet. A
 * sample is computed by one thread; samples are dealt out to as many groups as there are threads.
 */
#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "kernels/cpu/real.h"

typedef struct job {
  const mpg_kernel_call *call;
  void (*sample)(const struct job *t, int64_t n, double *scratch);
  int64_t samples, groups;
  char *scratch;
  size_t scratch_each;
  bool wide;                    /* float64 */
  int64_t boxes, width, others; /* of a sample; `others`: classes, objects, or rows */
} job;

static inline double round_of(const job *t, double x) { return t->wide ? x : (double)(float)x; }
static inline double at(const job *t, int input, int64_t i) {
  return mpg_real_at(&t->call->inputs[input], i);
}
static inline void put(const job *t, int output, int64_t i, double value) {
  mpg_real_store(&t->call->outputs[output], i, value);
}

static void groups(void *context, int64_t begin, int64_t end) {
  const job *t = context;
  for (int64_t group = begin; group < end; group++)
    for (int64_t n = group; n < t->samples; n += t->groups)
      t->sample(t, n, (double *)(void *)(t->scratch + (size_t)group * t->scratch_each));
}

/* Runs the samples, each with space for `doubles` numbers per box and `more` besides. */
static mpg_status run(job *t, size_t doubles, size_t more) {
  const mpg_kernel_call *call = t->call;
  size_t size;
  if (t->samples == 0 || t->boxes == 0) return MPG_OK;
  t->wide = call->inputs[0].desc.dtype == MPG_FLOAT64;
  t->groups = t->samples < call->num_threads ? t->samples : call->num_threads;
  if (!mpg_size_mul((size_t)t->boxes, doubles, &size) || !mpg_size_add(size, more + 8, &size) ||
      !mpg_size_mul(size, sizeof(double), &t->scratch_each) ||
      !mpg_size_mul(t->scratch_each = mpg_align_up(t->scratch_each, 64), (size_t)t->groups, &size))
    return mpg_fail(MPG_VALUE_ERROR, "%s: the boxes are too many", call->op->name);
  t->scratch = mpg_device_scratch(call->device, size);
  if (!t->scratch) return MPG_DEVICE_OUT_OF_MEMORY;
  mpg_cpu_parallel_for(call, t->groups, 1, groups, t);
  return MPG_OK;
}

/* Brings `order` into falling order of the keys; equal ones stay as they are. */
static void sort_falling(const double *keys, int64_t *order, int64_t *spare, int64_t count) {
  for (int64_t run = 1; run < count; run *= 2) {
    for (int64_t begin = 0; begin < count; begin += 2 * run) {
      int64_t middle = begin + run < count ? begin + run : count,
              end = middle + run < count ? middle + run : count;
      int64_t left = begin, right = middle, to = begin;
      while (left < middle && right < end)
        spare[to++] = keys[order[right]] > keys[order[left]] ? order[right++] : order[left++];
      while (left < middle) spare[to++] = order[left++];
      while (right < end) spare[to++] = order[right++];
    }
    memcpy(order, spare, (size_t)count * sizeof *order);
  }
}

/* --- Overlaps --------------------------------------------------------------------------------- */

enum { CORNER, CENTER };

/* How long two intervals are together, along the axis of box[0]. */
static double common(const job *t, const double *a, const double *b, int format) {
  double low_a = a[0], high_a = a[2], low_b = b[0], high_b = b[2];
  if (format == CENTER) {
    low_a = round_of(t, a[0] - a[2] / 2), high_a = round_of(t, a[0] + a[2] / 2);
    low_b = round_of(t, b[0] - b[2] / 2), high_b = round_of(t, b[0] + b[2] / 2);
  }
  double length = round_of(t, fmin(high_a, high_b) - fmax(low_a, low_b));
  return length > 0 ? length : 0;
}

static double area(const job *t, const double *box, int format) {
  double width = format == CENTER ? box[2] : round_of(t, box[2] - box[0]),
         height = format == CENTER ? box[3] : round_of(t, box[3] - box[1]);
  return width < 0 || height < 0 ? 0 : round_of(t, width * height);
}

static double overlap(const job *t, const double *a, const double *b, double area_a, double area_b,
                      int format) {
  double both = round_of(t, common(t, a, b, format) * common(t, a + 1, b + 1, format));
  return both > 0 ? round_of(t, both / round_of(t, round_of(t, area_a + area_b) - both)) : 0;
}

static void iou_rows(void *context, int64_t begin, int64_t end) {
  const job *t = context;
  const mpg_box_iou_params *p = t->call->params;
  for (int64_t i = begin; i < end; i++) {
    double a[4], b[4];
    for (int k = 0; k < 4; k++) a[k] = at(t, 0, 4 * i + k);
    for (int64_t j = 0; j < t->others; j++) {
      for (int k = 0; k < 4; k++) b[k] = at(t, 1, 4 * j + k);
      put(t, 0, i * t->others + j,
          overlap(t, a, b, area(t, a, p->format), area(t, b, p->format), p->format));
    }
  }
}

MPG_CPU_KERNEL(box_iou) {
  job t = {.call = call,
           .wide = call->inputs[0].desc.dtype == MPG_FLOAT64,
           .others = mpg_shape_size(&call->inputs[1].desc.shape) / 4};
  mpg_cpu_parallel_for(call, mpg_shape_size(&call->inputs[0].desc.shape) / 4, 16, iou_rows, &t);
  return MPG_OK;
}

/* Intersection as part of the union, as MXNet's multibox ops compute it. */
static double share(const job *t, const double *a, const double *b, bool negative_is_none) {
  double both = round_of(t, common(t, a, b, CORNER) * common(t, a + 1, b + 1, CORNER));
  double area_a = round_of(t, round_of(t, a[2] - a[0]) * round_of(t, a[3] - a[1])),
         area_b = round_of(t, round_of(t, b[2] - b[0]) * round_of(t, b[3] - b[1]));
  double all = round_of(t, round_of(t, area_a + area_b) - both);
  return all == 0 || (negative_is_none && all < 0) ? 0 : round_of(t, both / all);
}

/* --- Suppression ------------------------------------------------------------------------------ */

static void convert_box(double *box, int from) {
  double x = box[0], y = box[1], z = box[2], w = box[3];
  if (from == CENTER)
    box[0] = x - z / 2, box[1] = y - w / 2, box[2] = x + z / 2, box[3] = y + w / 2;
  else
    box[0] = (x + z) / 2, box[1] = (y + w) / 2, box[2] = z - x, box[3] = w - y;
}

static void suppress(const job *t, int64_t n, double *scratch) {
  const mpg_box_nms_params *p = t->call->params;
  int64_t boxes = t->boxes, width = t->width, first = n * boxes, count = 0, kept = 0,
          *record = (int64_t *)t->call->outputs[1].data + first;
  double *keys = scratch, *areas = keys + boxes, *corners = areas + boxes;
  int64_t *order = (int64_t *)(void *)(corners + 4 * boxes), *spare = order + boxes;
  for (int64_t i = 0; i < boxes; i++) {
    const int64_t row = (first + i) * width;
    keys[i] = at(t, 0, row + p->score_index);
    if (!(keys[i] > round_of(t, p->valid_thresh))) continue;
    if (p->id_index >= 0 && at(t, 0, row + p->id_index) == (double)p->background_id) continue;
    for (int k = 0; k < 4; k++) corners[4 * i + k] = at(t, 0, row + p->coord_start + k);
    areas[i] = area(t, corners + 4 * i, p->in_format);
    order[count++] = i;
  }
  sort_falling(keys, order, spare, count);
  if (p->topk >= 0 && p->topk < count) count = p->topk;
  for (int64_t i = 0; i < count; i++) {
    int64_t one = order[i], row = (first + one) * width;
    if (one < 0) continue;
    for (int64_t j = i + 1; j < count; j++) {
      int64_t other = order[j];
      if (other < 0) continue;
      if (!p->force_suppress && p->id_index >= 0 &&
          at(t, 0, row + p->id_index) != at(t, 0, (first + other) * width + p->id_index))
        continue;
      if (overlap(t, corners + 4 * one, corners + 4 * other, areas[one], areas[other],
                  p->in_format) > round_of(t, p->overlap_thresh))
        order[j] = -1;
    }
    int64_t to = (first + kept) * width;
    for (int64_t k = 0; k < width; k++) put(t, 0, to + k, at(t, 0, row + k));
    if (p->in_format != p->out_format) {
      convert_box(corners + 4 * one, p->in_format);
      for (int k = 0; k < 4; k++) put(t, 0, to + p->coord_start + k, corners[4 * one + k]);
    }
    record[kept++] = one;
  }
  for (int64_t i = kept; i < boxes; i++) {
    for (int64_t k = 0; k < width; k++) put(t, 0, (first + i) * width + k, -1);
    record[i] = -1;
  }
}

/* `view` as samples of rows. */
static job rows_of(const mpg_kernel_call *call, const mpg_view *view) {
  const mpg_shape *shape = &view->desc.shape;
  return (job){.call = call,
               .samples = mpg_shape_product(shape, 0, shape->ndim - 2),
               .boxes = shape->dims[shape->ndim - 2],
               .width = shape->dims[shape->ndim - 1]};
}

MPG_CPU_KERNEL(box_nms) {
  const mpg_box_nms_params *p = call->params;
  job t = rows_of(call, &call->inputs[0]);
  t.sample = suppress;
  if (p->topk != 0) return run(&t, 8, 0);
  /* as it is */
  memcpy(call->outputs[0].data, call->inputs[0].data, bytes_of(&call->inputs[0]));
  for (int64_t i = 0; i < t.samples * t.boxes; i++)
    ((int64_t *)call->outputs[1].data)[i] = i % t.boxes;
  return MPG_OK;
}

MPG_CPU_KERNEL(box_nms_back) {
  job t = rows_of(call, &call->inputs[0]);
  const int64_t *record = call->inputs[1].data;
  size_t row = (size_t)t.width * item_of(&call->inputs[0]);
  memset(call->outputs[0].data, 0, bytes_of(&call->outputs[0]));
  for (int64_t i = 0; i < t.samples * t.boxes; i++)
    if (record[i] >= 0 && record[i] < t.boxes)
      memcpy((char *)call->outputs[0].data + (size_t)(i / t.boxes * t.boxes + record[i]) * row,
             (const char *)call->inputs[0].data + (size_t)i * row, row);
  return MPG_OK;
}

/* --- Pairs ------------------------------------------------------------------------------------ */

static void match(const job *t, int64_t n, double *scratch) {
  const mpg_bipartite_params *p = t->call->params;
  const mpg_view *rows = &t->call->outputs[0], *columns = &t->call->outputs[1];
  int64_t count = 0, pairs = 0, first_row = n * t->others, first_column = n * t->width;
  double *keys = scratch, threshold = (double)(float)p->threshold;
  int64_t *order = (int64_t *)(void *)(keys + t->boxes), *spare = order + t->boxes;
  for (int64_t i = 0; i < t->boxes; i++) {
    double score = at(t, 0, n * t->boxes + i);
    if (p->is_ascend ? !(score < threshold) : !(score > threshold)) continue;
    keys[i] = p->is_ascend ? -score : score;
    order[count++] = i;
  }
  sort_falling(keys, order, spare, count);
  for (int64_t i = 0; i < count; i++) {
    int64_t row = order[i] / t->width, column = order[i] % t->width;
    if (mpg_real_at(rows, first_row + row) != -1 ||
        mpg_real_at(columns, first_column + column) != -1)
      continue;
    put(t, 0, first_row + row, (double)column);
    put(t, 1, first_column + column, (double)row);
    if (p->topk > 0 && ++pairs > p->topk) return;
  }
}

MPG_CPU_KERNEL(bipartite_matching) {
  job t = rows_of(call, &call->inputs[0]);
  for (int i = 0; i < 2; i++)
    for (int64_t k = 0; k < mpg_shape_size(&call->outputs[i].desc.shape); k++)
      mpg_real_store(&call->outputs[i], k, -1);
  t.sample = match;
  t.others = t.boxes;
  t.boxes *= t.width;
  return run(&t, 3, 0);
}

/* --- Anchors ---------------------------------------------------------------------------------- */

MPG_CPU_KERNEL(multibox_prior) {
  const mpg_multibox_prior_params *p = call->params;
  const mpg_view *out = &call->outputs[0];
  int64_t height = call->inputs[0].desc.shape.dims[2], width = call->inputs[0].desc.shape.dims[3],
          to = 0;
  float step_y = (float)p->steps.values[0], step_x = (float)p->steps.values[1],
        offset_y = (float)p->offsets.values[0], offset_x = (float)p->offsets.values[1];
  if (step_y <= 0 || step_x <= 0) step_y = 1.0f / (float)height, step_x = 1.0f / (float)width;
  for (int64_t r = 0; r < height; r++)
    for (int64_t c = 0; c < width; c++) {
      float y = ((float)r + offset_y) * step_y, x = ((float)c + offset_x) * step_x;
      for (int i = 0; i < p->sizes.count + p->ratios.count - 1; i++) {
        int by_ratio = i - p->sizes.count + 1;
        float size = (float)p->sizes.values[by_ratio > 0 ? 0 : i],
              ratio = sqrtf((float)p->ratios.values[by_ratio > 0 ? by_ratio : 0]);
        float half_width = size * (float)height / (float)width * ratio / 2,
              half_height = size / ratio / 2;
        float box[4] = {x - half_width, y - half_height, x + half_width, y + half_height};
        for (int k = 0; k < 4; k++)
          mpg_real_store(out, to++, p->clip ? fminf(fmaxf(box[k], 0), 1) : box[k]);
      }
    }
  return MPG_OK;
}

/* --- Detections ------------------------------------------------------------------------------- */

static void detect(const job *t, int64_t n, double *scratch) {
  const mpg_multibox_detection_params *p = t->call->params;
  const double *v = p->variances.values;
  int64_t boxes = t->boxes, count = 0;
  double *rows = scratch, *keys = rows + 6 * boxes;
  int64_t *order = (int64_t *)(void *)(keys + boxes), *spare = order + boxes;
  for (int64_t i = 0; i < boxes; i++) {
    double score = -1, a[4], l[4], *row = rows + 6 * count;
    int64_t id = 0;
    for (int64_t k = 1; k < t->others; k++) {
      double one = at(t, 0, (n * t->others + k) * boxes + i);
      if (one > score) score = one, id = k;
    }
    if (id == 0 || score < round_of(t, p->threshold)) continue;
    for (int k = 0; k < 4; k++)
      a[k] = at(t, 2, 4 * i + k), l[k] = at(t, 1, (n * boxes + i) * 4 + k);
    double width = a[2] - a[0], height = a[3] - a[1];
    double x = l[0] * v[0] * width + (a[0] + a[2]) / 2,
           y = l[1] * v[1] * height + (a[1] + a[3]) / 2;
    double half_width = exp(l[2] * v[2]) * width / 2, half_height = exp(l[3] * v[3]) * height / 2;
    row[0] = (double)(id - 1);
    row[1] = score;
    row[2] = x - half_width, row[3] = y - half_height, row[4] = x + half_width,
    row[5] = y + half_height;
    for (int k = 2; k < 6; k++) row[k] = round_of(t, p->clip ? fmin(fmax(row[k], 0), 1) : row[k]);
    keys[count] = score;
    order[count] = count;
    count++;
  }
  int64_t looked = count, to = n * boxes * 6;
  if (p->nms_threshold > 0 && p->nms_threshold <= 1) {
    sort_falling(keys, order, spare, count);
    if (p->nms_topk > 0 && p->nms_topk < count) looked = p->nms_topk;
    for (int64_t i = looked; i < count; i++) order[i] = i; /* those beyond stay as they were */
  }
  for (int64_t i = 0; i < boxes; i++)
    for (int k = 0; k < 6; k++) put(t, 0, to + 6 * i + k, i < count ? rows[6 * order[i] + k] : -1);
  for (int64_t i = looked; i < count; i++) put(t, 0, to + 6 * i, -1);
  if (!(p->nms_threshold > 0 && p->nms_threshold <= 1)) return;
  for (int64_t i = 0; i < looked; i++) {
    const double *one = rows + 6 * order[i];
    if (keys[order[i]] < -1) continue;
    for (int64_t j = i + 1; j < looked; j++) {
      const double *other = rows + 6 * order[j];
      if (keys[order[j]] < -1 || (!p->force_suppress && one[0] != other[0])) continue;
      if (share(t, one + 2, other + 2, true) >= round_of(t, p->nms_threshold)) {
        keys[order[j]] = -2;
        put(t, 0, to + 6 * j, -1);
      }
    }
  }
}

MPG_CPU_KERNEL(multibox_detection) {
  const mpg_shape *shape = &call->inputs[0].desc.shape;
  job t = {.call = call,
           .sample = detect,
           .samples = shape->dims[0],
           .boxes = shape->dims[2],
           .others = shape->dims[1]};
  return run(&t, 9, 0);
}

/* --- Targets ---------------------------------------------------------------------------------- */

enum { IGNORED = -1, BACKGROUND, OBJECT };

/* The object that overlaps an anchor most, and how much. */
static int64_t best_object(const double *overlaps, int64_t objects, double *most) {
  int64_t best = 0;
  for (int64_t k = 1; k < objects; k++)
    if (overlaps[k] > overlaps[best]) best = k;
  *most = overlaps[best];
  return best;
}

/* How sure a prediction is that an anchor is background. */
static double background(const job *t, int64_t n, int64_t j, int64_t classes) {
  double most = -INFINITY, sum = 0, first = at(t, 2, n * classes * t->boxes + j);
  for (int64_t k = 0; k < classes; k++)
    most = fmax(most, at(t, 2, (n * classes + k) * t->boxes + j));
  for (int64_t k = 0; k < classes; k++)
    sum += exp(at(t, 2, (n * classes + k) * t->boxes + j) - most);
  return round_of(t, exp(first - most) / sum);
}

/* Each object in turn takes the free anchor that overlaps most, over all pairs; returns how many
 * found one. */
static int64_t match_objects(const job *t, const double *overlaps, int64_t objects, int64_t *kind,
                             int64_t *match, double *most, int64_t *taken) {
  int64_t matched = 0;
  memset(taken, 0, (size_t)objects * sizeof *taken);
  for (; matched < objects; matched++) {
    int64_t anchor = -1, object = -1;
    double best = (double)1e-6f;
    for (int64_t j = 0; j < t->boxes; j++)
      for (int64_t k = 0; kind[j] != OBJECT && k < objects; k++)
        if (!taken[k] && overlaps[j * t->others + k] > best)
          best = overlaps[j * t->others + k], anchor = j, object = k;
    if (anchor < 0) break;
    taken[object] = 1;
    kind[anchor] = OBJECT, match[anchor] = object, most[anchor] = best;
  }
  return matched;
}

static void put_target(const job *t, int64_t n, int64_t j, int64_t row) {
  const mpg_multibox_target_params *p = t->call->params;
  const double *v = p->variances.values;
  float a[4], l[4];
  for (int k = 0; k < 4; k++)
    a[k] = (float)at(t, 0, 4 * j + k), l[k] = (float)at(t, 1, row + 1 + k);
  float width = a[2] - a[0], height = a[3] - a[1], x = (a[0] + a[2]) * 0.5f,
        y = (a[1] + a[3]) * 0.5f;
  double found[4] = {((l[0] + l[2]) * 0.5f - x) / width / (float)v[0],
                     ((l[1] + l[3]) * 0.5f - y) / height / (float)v[1],
                     log((double)((l[2] - l[0]) / width)) / v[2],
                     log((double)((l[3] - l[1]) / height)) / v[3]};
  put(t, 2, n * t->boxes + j, at(t, 1, row) + 1);
  for (int k = 0; k < 4; k++) {
    put(t, 0, (n * t->boxes + j) * 4 + k, found[k]);
    put(t, 1, (n * t->boxes + j) * 4 + k, 1);
  }
}

static void target(const job *t, int64_t n, double *scratch) {
  const mpg_multibox_target_params *p = t->call->params;
  int64_t boxes = t->boxes, objects = 0, positive, count = 0, row = n * t->others * t->width;
  double *most = scratch, *keys = most + boxes, *overlaps = keys + boxes;
  int64_t *kind = (int64_t *)(void *)(overlaps + boxes * t->others), *match = kind + boxes,
          *order = match + boxes, *spare = order + boxes, *taken = spare + boxes;
  while (objects < t->others && at(t, 1, row + objects * t->width) != -1) objects++;
  for (int64_t j = 0; j < boxes; j++) {
    double a[4], l[4];
    for (int k = 0; k < 4; k++) a[k] = at(t, 0, 4 * j + k);
    for (int64_t i = 0; i < objects; i++) {
      for (int k = 0; k < 4; k++) l[k] = at(t, 1, row + i * t->width + 1 + k);
      overlaps[j * t->others + i] = share(t, a, l, false);
    }
    kind[j] = IGNORED;
    most[j] = -1;
    put(t, 2, n * boxes + j, p->ignore_label);
    for (int k = 0; k < 4; k++)
      put(t, 0, (n * boxes + j) * 4 + k, 0), put(t, 1, (n * boxes + j) * 4 + k, 0);
  }
  if (objects == 0) return;
  positive = match_objects(t, overlaps, objects, kind, match, most, taken);
  for (int64_t j = 0; j < boxes; j++) {
    if (kind[j] == OBJECT) continue;
    match[j] = best_object(overlaps + j * t->others, objects, &most[j]);
    if (p->overlap_threshold > 0 && most[j] > round_of(t, p->overlap_threshold))
      kind[j] = OBJECT, positive++;
  }
  if (p->negative_mining_ratio > 0) {
    int64_t wanted = (int64_t)fmin((double)positive * p->negative_mining_ratio, (double)boxes);
    for (int64_t j = 0; wanted > 0 && j < boxes; j++)
      if (kind[j] != OBJECT && most[j] < round_of(t, p->negative_mining_thresh))
        keys[j] = -background(t, n, j, t->call->inputs[2].desc.shape.dims[1]), order[count++] = j;
    sort_falling(keys, order, spare, count);
    for (int64_t i = 0; i < count && i < wanted; i++) kind[order[i]] = BACKGROUND;
  }
  for (int64_t j = 0; j < boxes; j++) {
    if (kind[j] == OBJECT)
      put_target(t, n, j, row + match[j] * t->width);
    else if (kind[j] == BACKGROUND || !(p->negative_mining_ratio > 0))
      put(t, 2, n * boxes + j, 0);
  }
}

MPG_CPU_KERNEL(multibox_target) {
  const mpg_shape *label = &call->inputs[1].desc.shape;
  job t = {.call = call,
           .sample = target,
           .samples = label->dims[0],
           .boxes = call->inputs[0].desc.shape.dims[1],
           .others = label->dims[1],
           .width = label->dims[2]};
  return run(&t, 6 + (size_t)t.others, (size_t)t.others);
}
