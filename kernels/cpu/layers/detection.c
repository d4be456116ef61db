/* Object detection: anchors, training targets, box decoding, and non-maximum suppression.
 *
 * The arithmetic is in kernels/common/boxes.h. Each sample is computed by one thread. Samples are
 * divided into one group per thread.
 */
#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "kernels/common/boxes.h"
#include "kernels/cpu/cpu.h"

typedef struct job {
  const mpg_kernel_call *call;
  void (*sample)(const struct job *t, int64_t n, double *scratch);
  int64_t samples, groups;
  char *scratch;
  size_t scratch_each;
  bool wide;                    /* float64 */
  int64_t boxes, width, others; /* per sample; `others` counts classes, objects or rows */
} job;

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

/* Runs the samples, each with scratch for `doubles` numbers per box and `more` extra numbers. */
static mpg_status run(job *t, size_t doubles, size_t more) {
  const mpg_kernel_call *call = t->call;
  size_t size;
  if (t->samples == 0 || t->boxes == 0) return MPG_OK;
  t->wide = call->inputs[0].desc.dtype == MPG_FLOAT64;
  t->groups = t->samples < call->num_threads ? t->samples : call->num_threads;
  if (!mpg_size_mul((size_t)t->boxes, doubles, &size) || !mpg_size_add(size, more + 8, &size) ||
      !mpg_size_mul(size, sizeof(double), &t->scratch_each) ||
      !mpg_size_mul(t->scratch_each = mpg_align_up(t->scratch_each, 64), (size_t)t->groups, &size))
    return mpg_fail(MPG_VALUE_ERROR, "%s: there are too many boxes", call->op->name);
  t->scratch = mpg_device_scratch(call->device, size);
  if (!t->scratch) return MPG_DEVICE_OUT_OF_MEMORY;
  mpg_cpu_parallel_for(call, t->groups, 1, groups, t);
  return MPG_OK;
}

/* Sorts `order` by descending keys (stable merge sort). */
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

static void iou_rows(void *context, int64_t begin, int64_t end) {
  const job *t = context;
  const mpg_box_iou_params *p = t->call->params;
  for (int64_t i = begin; i < end; i++) {
    mpg_box a = mpg_box_at(&t->call->inputs[0], 4 * i, p->format, false, t->wide);
    for (int64_t j = 0; j < t->others; j++) {
      mpg_box b = mpg_box_at(&t->call->inputs[1], 4 * j, p->format, false, t->wide);
      put(t, 0, i * t->others + j, mpg_box_overlap(&a, &b, p->format, t->wide));
    }
  }
}

mpg_status mpg_cpu_box_iou(const mpg_kernel_call *call) {
  job t = {.call = call,
           .wide = call->inputs[0].desc.dtype == MPG_FLOAT64,
           .others = mpg_shape_size(&call->inputs[1].desc.shape) / 4};
  mpg_cpu_parallel_for(call, mpg_shape_size(&call->inputs[0].desc.shape) / 4, 16, iou_rows, &t);
  return MPG_OK;
}

/* --- Non-maximum suppression ------------------------------------------------------------------ */

static void suppress(const job *t, int64_t n, double *scratch) {
  const mpg_box_nms_params *p = t->call->params;
  int64_t boxes = t->boxes, width = t->width, first = n * boxes, count = 0, kept = 0,
          *record = (int64_t *)t->call->outputs[1].data + first;
  double *keys = scratch;
  int64_t *order = (int64_t *)(void *)(keys + boxes), *spare = order + boxes;
  mpg_box *candidates = (mpg_box *)(void *)(spare + boxes);
  for (int64_t i = 0; i < boxes; i++)
    if (mpg_nms_candidate(p, &t->call->inputs[0], (first + i) * width, t->wide, &candidates[i]))
      keys[i] = candidates[i].score, order[count++] = i;
  sort_falling(keys, order, spare, count);
  if (p->topk >= 0 && p->topk < count) count = p->topk;
  for (int64_t i = 0; i < count; i++) {
    int64_t one = order[i];
    if (one < 0) continue;
    for (int64_t j = i + 1; j < count; j++)
      if (order[j] >= 0 && mpg_nms_covers(p, &candidates[one], &candidates[order[j]], t->wide))
        order[j] = -1;
    int64_t row = (first + one) * width, to = (first + kept) * width;
    for (int64_t k = 0; k < width; k++) put(t, 0, to + k, at(t, 0, row + k));
    if (p->in_format != p->out_format) {
      mpg_box_convert(candidates[one].at, p->in_format);
      for (int k = 0; k < 4; k++) put(t, 0, to + p->coord_start + k, candidates[one].at[k]);
    }
    record[kept++] = one;
  }
  for (int64_t i = kept; i < boxes; i++) {
    for (int64_t k = 0; k < width; k++) put(t, 0, (first + i) * width + k, -1);
    record[i] = -1;
  }
}

/* Returns the job for `view`, whose shape is (samples..., boxes, width). */
static job rows_of(const mpg_kernel_call *call, const mpg_view *view) {
  const mpg_shape *shape = &view->desc.shape;
  return (job){.call = call,
               .samples = mpg_shape_product(shape, 0, shape->ndim - 2),
               .boxes = shape->dims[shape->ndim - 2],
               .width = shape->dims[shape->ndim - 1]};
}

mpg_status mpg_cpu_box_nms(const mpg_kernel_call *call) {
  const mpg_box_nms_params *p = call->params;
  job t = rows_of(call, &call->inputs[0]);
  t.sample = suppress;
  if (p->topk != 0) return run(&t, 3 + sizeof(mpg_box) / sizeof(double), 0);
  /* copies the input unchanged */
  memcpy(call->outputs[0].data, call->inputs[0].data, bytes_of(&call->inputs[0]));
  for (int64_t i = 0; i < t.samples * t.boxes; i++)
    ((int64_t *)call->outputs[1].data)[i] = i % t.boxes;
  return MPG_OK;
}

mpg_status mpg_cpu_box_nms_back(const mpg_kernel_call *call) {
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

/* --- Bipartite matching ----------------------------------------------------------------------- */

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

mpg_status mpg_cpu_bipartite_matching(const mpg_kernel_call *call) {
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

mpg_status mpg_cpu_multibox_prior(const mpg_kernel_call *call) {
  const mpg_multibox_prior_params *p = call->params;
  const int64_t *picture = call->inputs[0].desc.shape.dims;
  float box[4];
  for (int64_t i = 0; i < call->outputs[0].desc.shape.dims[1]; i++) {
    mpg_prior_box(p, picture[2], picture[3], i, box);
    for (int k = 0; k < 4; k++) mpg_real_store(&call->outputs[0], 4 * i + k, box[k]);
  }
  return MPG_OK;
}

/* --- Detections ------------------------------------------------------------------------------- */

static void detect(const job *t, int64_t n, double *scratch) {
  const mpg_multibox_detection_params *p = t->call->params;
  int64_t boxes = t->boxes, count = 0;
  double *keys = scratch;
  int64_t *order = (int64_t *)(void *)(keys + boxes), *spare = order + boxes;
  mpg_box *found = (mpg_box *)(void *)(spare + boxes);
  for (int64_t i = 0; i < boxes; i++) {
    found[count] = mpg_detection(p, t->call->inputs, n, i, t->wide);
    if (found[count].id < 0) continue;
    keys[count] = found[count].score;
    order[count] = count;
    count++;
  }
  int64_t looked = count;
  if (mpg_detection_suppresses(p)) {
    sort_falling(keys, order, spare, count);
    if (p->nms_topk > 0 && p->nms_topk < count) looked = p->nms_topk;
    /* slot i past the top k shows box i of the unsorted list, with id -1 */
    for (int64_t i = looked; i < count; i++) order[i] = i;
  }
  for (int64_t i = 0; i < boxes; i++) {
    const mpg_box *one = i < count ? &found[order[i]] : NULL;
    int64_t to = (n * boxes + i) * 6;
    put(t, 0, to, one && i < looked ? one->id : -1);
    put(t, 0, to + 1, one ? one->score : -1);
    for (int k = 0; k < 4; k++) put(t, 0, to + 2 + k, one ? one->at[k] : -1);
  }
  if (!mpg_detection_suppresses(p)) return;
  for (int64_t i = 0; i < looked; i++)
    for (int64_t j = i + 1; order[i] >= 0 && j < looked; j++)
      if (order[j] >= 0 && mpg_detection_covers(p, &found[order[i]], &found[order[j]], t->wide)) {
        order[j] = -1;
        put(t, 0, (n * boxes + j) * 6, -1);
      }
}

mpg_status mpg_cpu_multibox_detection(const mpg_kernel_call *call) {
  const mpg_shape *shape = &call->inputs[0].desc.shape;
  job t = {.call = call,
           .sample = detect,
           .samples = shape->dims[0],
           .boxes = shape->dims[2],
           .others = shape->dims[1]};
  return run(&t, 3 + sizeof(mpg_box) / sizeof(double), 0);
}

/* --- Targets ---------------------------------------------------------------------------------- */

enum { IGNORED = -1, BACKGROUND, OBJECT };

/* Returns the object that overlaps an anchor most, and sets *most to the overlap. */
static int64_t best_object(const double *overlaps, int64_t objects, double *most) {
  int64_t best = 0;
  for (int64_t k = 1; k < objects; k++)
    if (overlaps[k] > overlaps[best]) best = k;
  *most = overlaps[best];
  return best;
}

/* Greedy matching: repeatedly assigns the free anchor and object with the largest overlap of all
 * pairs. Returns the number of matched objects. */
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

static void target(const job *t, int64_t n, double *scratch) {
  const mpg_multibox_target_params *p = t->call->params;
  int64_t boxes = t->boxes, objects = 0, positive, count = 0, row = n * t->others * t->width;
  double *most = scratch, *keys = most + boxes, *overlaps = keys + boxes;
  int64_t *kind = (int64_t *)(void *)(overlaps + boxes * t->others), *match = kind + boxes,
          *order = match + boxes, *spare = order + boxes, *taken = spare + boxes;
  while (objects < t->others && at(t, 1, row + objects * t->width) != -1) objects++;
  for (int64_t j = 0; j < boxes; j++) {
    mpg_box anchor = mpg_box_at(&t->call->inputs[0], 4 * j, MPG_CORNER, true, t->wide);
    for (int64_t i = 0; i < objects; i++) {
      mpg_box object =
          mpg_box_at(&t->call->inputs[1], row + i * t->width + 1, MPG_CORNER, true, t->wide);
      overlaps[j * t->others + i] = mpg_box_share(&anchor, &object, false, t->wide);
    }
    kind[j] = IGNORED;
    match[j] = -1;
    most[j] = -1;
  }
  positive = match_objects(t, overlaps, objects, kind, match, most, taken);
  for (int64_t j = 0; objects > 0 && j < boxes; j++) {
    if (kind[j] == OBJECT) continue;
    match[j] = best_object(overlaps + j * t->others, objects, &most[j]);
    if (p->overlap_threshold > 0 && most[j] > mpg_region_round(p->overlap_threshold, t->wide))
      kind[j] = OBJECT, positive++;
    else if (!(p->negative_mining_ratio > 0))
      kind[j] = BACKGROUND;
  }
  if (objects > 0 && p->negative_mining_ratio > 0) {
    int64_t wanted = mpg_background_wanted(p, positive, boxes);
    for (int64_t j = 0; wanted > 0 && j < boxes; j++)
      if (kind[j] != OBJECT && most[j] < mpg_region_round(p->negative_mining_thresh, t->wide))
        keys[j] = -mpg_background(&t->call->inputs[2], n, j, t->wide), order[count++] = j;
    sort_falling(keys, order, spare, count);
    for (int64_t i = 0; i < count && i < wanted; i++) kind[order[i]] = BACKGROUND;
  }
  for (int64_t j = 0; j < boxes; j++)
    mpg_put_target(p, t->call->inputs, t->call->outputs, n, j,
                   kind[j] == OBJECT ? n * t->others + match[j] : -1,
                   kind[j] == BACKGROUND ? 0 : p->ignore_label);
}

mpg_status mpg_cpu_multibox_target(const mpg_kernel_call *call) {
  const mpg_shape *label = &call->inputs[1].desc.shape;
  job t = {.call = call,
           .sample = target,
           .samples = label->dims[0],
           .boxes = call->inputs[0].desc.shape.dims[1],
           .others = label->dims[1],
           .width = label->dims[2]};
  return run(&t, 6 + (size_t)t.others, (size_t)t.others);
}
