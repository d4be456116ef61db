/* Box coding relative to anchors: encodes boxes as training targets and decodes predicted boxes.
 * The results have no gradient. */
#include <string.h>

#include "op/formula/arithmetic.h"
#include "op/infer.h"

/* Boxes in center format. Each array is (..., 1). */
typedef struct box {
  mpg_value x, y, width, height;
} box;

static mpg_value coordinate(mpg_gradient *g, mpg_value boxes, int i) {
  if (g->status != MPG_OK) return MPG_NO_VALUE;
  return mpg_emit_slice(g, boxes, mpg_value_desc(g, boxes)->shape.ndim - 1, i, i + 1);
}

static box centered(mpg_gradient *g, mpg_value boxes, bool corners) {
  box b = {coordinate(g, boxes, 0), coordinate(g, boxes, 1), coordinate(g, boxes, 2),
           coordinate(g, boxes, 3)};
  if (!corners) return b;
  b.width = mpg_subtract(g, b.width, b.x);
  b.height = mpg_subtract(g, b.height, b.y);
  b.x = mpg_add(g, b.x, mpg_times(g, b.width, 0.5));
  b.y = mpg_add(g, b.y, mpg_times(g, b.height, 0.5));
  return b;
}

static bool check(mpg_gradient *g, mpg_value value, int ndim, const char *name) {
  if (g->status != MPG_OK) return false;
  const mpg_shape *shape = &mpg_value_desc(g, value)->shape;
  char text[MPG_SHAPE_TEXT_SIZE];
  if (shape->ndim == ndim && (ndim == 2 || shape->dims[ndim - 1] == 4)) return true;
  mpg_gradient_fail(g, "%s must be %s, not %s", name,
                    ndim == 1   ? "(4,)"
                    : ndim == 2 ? "(batch, anchors)"
                                : "(batch, boxes, 4)",
                    mpg_shape_text(shape, text, sizeof text));
  return false;
}

/* Gathers a box for each anchor: matches (batch, anchors) holds indices of boxes in refs (batch,
 * boxes, 4). */
static mpg_value matched(mpg_gradient *g, mpg_value refs, mpg_value matches) {
  mpg_shape shape = mpg_value_desc(g, refs)->shape, flat = shape;
  int64_t batch = shape.dims[0], boxes = shape.dims[1];
  if (g->status != MPG_OK) return MPG_NO_VALUE;
  flat = (mpg_shape){.ndim = 2, .dims = {batch * boxes, 4}};
  mpg_shape column = {.ndim = 2, .dims = {batch, 1}};
  mpg_value first = mpg_times(g, mpg_emit_count(g, refs, batch, MPG_INT32, &column), (double)boxes);
  mpg_value rows = mpg_add(g, mpg_emit_cast(g, matches, MPG_INT32), first);
  mpg_take_params take;
  memset(&take, 0, sizeof take);
  return mpg_emit2(g, MPG_OP_take, &take, mpg_emit_reshape(g, refs, &flat), rows);
}

static mpg_value blocked(mpg_gradient *g, mpg_value value) {
  return mpg_emit1(g, MPG_OP_BlockGrad, NULL, value);
}

void mpg_compose_box_encode(mpg_gradient *g, const mpg_value *inputs, mpg_value *outputs) {
  if (!check(g, inputs[0], 2, "samples") || !check(g, inputs[1], 2, "matches") ||
      !check(g, inputs[2], 3, "anchors") || !check(g, inputs[3], 3, "refs") ||
      !check(g, inputs[4], 1, "means") || !check(g, inputs[5], 1, "stds"))
    return;
  mpg_dtype dtype = mpg_value_desc(g, inputs[2])->dtype;
  mpg_shape shape = mpg_value_desc(g, inputs[2])->shape, row = shape;
  row.dims[2] = 1;
  box ref = centered(g, mpg_widen(g, matched(g, inputs[3], inputs[1])), true),
      anchor = centered(g, mpg_widen(g, inputs[2]), true);
  mpg_value targets[] = {mpg_divide(g, mpg_subtract(g, ref.x, anchor.x), anchor.width),
                         mpg_divide(g, mpg_subtract(g, ref.y, anchor.y), anchor.height),
                         mpg_emit1(g, MPG_OP_log, NULL, mpg_divide(g, ref.width, anchor.width)),
                         mpg_emit1(g, MPG_OP_log, NULL, mpg_divide(g, ref.height, anchor.height))};
  mpg_value target = mpg_subtract(g, mpg_emit_concat(g, targets, 4, 2), mpg_widen(g, inputs[4]));
  target = mpg_emit_cast(g, mpg_divide(g, target, mpg_widen(g, inputs[5])), dtype);
  mpg_value positive = mpg_emit_scalar(g, MPG_OP__greater_scalar, inputs[0], 0.5);
  mpg_value mask = mpg_emit_broadcast_to(g, mpg_emit_reshape(g, positive, &row), &shape);
  mpg_value zero = mpg_emit_full_like(g, target, 0);
  outputs[0] = blocked(g, mpg_emit_where(g, mask, target, zero));
  outputs[1] = blocked(g, mask);
}

void mpg_compose_box_decode(mpg_gradient *g, const mpg_value *inputs, mpg_value *outputs) {
  enum { CORNER };
  const mpg_box_decode_params *params = g->params;
  if (!check(g, inputs[0], 3, "data") || !check(g, inputs[1], 3, "anchors")) return;
  mpg_dtype dtype = mpg_value_desc(g, inputs[0])->dtype;
  mpg_value data = mpg_widen(g, inputs[0]);
  box anchor = centered(g, mpg_widen(g, inputs[1]), params->format == CORNER);
  box b = {mpg_times(g, coordinate(g, data, 0), params->std0),
           mpg_times(g, coordinate(g, data, 1), params->std1),
           mpg_times(g, coordinate(g, data, 2), params->std2),
           mpg_times(g, coordinate(g, data, 3), params->std3)};
  b.x = mpg_add(g, mpg_multiply(g, b.x, anchor.width), anchor.x);
  b.y = mpg_add(g, mpg_multiply(g, b.y, anchor.height), anchor.y);
  if (params->clip > 0) {
    b.width = mpg_emit_scalar(g, MPG_OP__minimum_scalar, b.width, params->clip);
    b.height = mpg_emit_scalar(g, MPG_OP__minimum_scalar, b.height, params->clip);
  }
  mpg_value half_width =
      mpg_times(g, mpg_multiply(g, mpg_emit1(g, MPG_OP_exp, NULL, b.width), anchor.width), 0.5);
  mpg_value half_height =
      mpg_times(g, mpg_multiply(g, mpg_emit1(g, MPG_OP_exp, NULL, b.height), anchor.height), 0.5);
  mpg_value corners[] = {mpg_subtract(g, b.x, half_width), mpg_subtract(g, b.y, half_height),
                         mpg_add(g, b.x, half_width), mpg_add(g, b.y, half_height)};
  outputs[0] = blocked(g, mpg_emit_cast(g, mpg_emit_concat(g, corners, 4, 2), dtype));
}
