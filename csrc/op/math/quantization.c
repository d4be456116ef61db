/* Numbers of 8 bits that stand for others by a range: rounded to the nearest, halves to even. */
#include <string.h>

#include "op/formula/arithmetic.h"
#include "op/infer.h"

enum { TYPE_INT8, TYPE_UINT8, TYPE_AUTO };
static const mpg_shape one_number = {.ndim = 1, .dims = {1}};
static const double largest_int32 = 2147483648.0; /* 2^31 - 1 as float32 */

static mpg_dtype dtype_of(int type, const mpg_opt_float *low, const mpg_opt_float *high) {
  if (type == TYPE_AUTO)
    type = low->present && high->present && low->value >= 0 ? TYPE_UINT8 : TYPE_INT8;
  return type == TYPE_INT8 ? MPG_INT8 : MPG_UINT8;
}
static double largest_of(mpg_dtype dtype) { return dtype == MPG_INT8 ? 127 : 255; }
/* What quantize_v2 and dequantize of MXNet count with: the largest number is half of a step wider.
 */
static double range_of(mpg_dtype dtype) { return largest_of(dtype) + 0.5; }

/* --- Inference -------------------------------------------------------------------------------- */
static mpg_status expect_ranges(mpg_infer *infer) {
  for (int i = 1; i < infer->num_inputs; i++) {
    MPG_TRY(mpg_infer_expect_dtype(infer, i, MPG_FLOAT32));
    MPG_TRY(mpg_infer_expect_shape(infer, i, &one_number));
  }
  return MPG_OK;
}

static mpg_status set_outputs(mpg_infer *infer, mpg_dtype dtype) {
  infer->outputs[0].dtype = dtype;
  if (mpg_shape_known(&infer->inputs[0].shape)) infer->outputs[0].shape = infer->inputs[0].shape;
  for (int i = 1; i < infer->num_outputs; i++) mpg_infer_set(infer, i, &one_number, MPG_FLOAT32);
  return MPG_OK;
}

/* The range of data is found, so there is some. */
static mpg_status expect_data(const mpg_infer *infer, bool known) {
  const mpg_shape *shape = &infer->inputs[0].shape;
  if (!known && mpg_shape_known(shape) && !mpg_shape_size(shape))
    return mpg_infer_fail(infer, "data without elements has no range");
  return MPG_OK;
}

mpg_status mpg_infer_quantize(mpg_infer *infer) {
  const mpg_quantize_params *p = infer->params;
  MPG_TRY(mpg_infer_expect_dtype(infer, 0, MPG_FLOAT32));
  MPG_TRY(expect_ranges(infer));
  return set_outputs(infer, p->out_type == TYPE_INT8 ? MPG_INT8 : MPG_UINT8);
}

static bool known_range(const mpg_quantize_auto_params *p) {
  return p->min_calib_range.present && p->max_calib_range.present;
}
static mpg_dtype auto_dtype(const mpg_quantize_auto_params *p) {
  return dtype_of(p->out_type, &p->min_calib_range, &p->max_calib_range);
}
static bool is_small(mpg_dtype dtype) { return dtype == MPG_INT8 || dtype == MPG_UINT8; }

mpg_status mpg_infer_quantize_v2(mpg_infer *infer) {
  mpg_dtype given = infer->inputs[0].dtype, dtype = auto_dtype(infer->params);
  if (is_small(given) && given != dtype)
    return mpg_infer_fail(infer, "the data is %s already, and out_type is %s",
                          mpg_dtype_name(given), mpg_dtype_name(dtype));
  if (!is_small(given)) {
    MPG_TRY(mpg_infer_expect_dtype(infer, 0, MPG_FLOAT32));
    MPG_TRY(expect_data(infer, known_range(infer->params)));
  }
  return set_outputs(infer, dtype);
}

mpg_status mpg_infer_quantize_asym(mpg_infer *infer) {
  const mpg_quantize_asym_params *p = infer->params;
  if (!is_small(infer->inputs[0].dtype)) {
    MPG_TRY(mpg_infer_expect_dtype(infer, 0, MPG_FLOAT32));
    MPG_TRY(expect_data(infer, p->min_calib_range.present && p->max_calib_range.present));
  }
  return set_outputs(infer, MPG_UINT8);
}

mpg_status mpg_infer_dequantize(mpg_infer *infer) {
  mpg_dtype given = infer->inputs[0].dtype;
  if (given != MPG_DTYPE_NONE && !is_small(given))
    return mpg_infer_fail(infer, "data is int8 or uint8, not %s", mpg_dtype_name(given));
  MPG_TRY(expect_ranges(infer));
  return set_outputs(infer, MPG_FLOAT32);
}

mpg_status mpg_infer_requantize(mpg_infer *infer) {
  MPG_TRY(mpg_infer_expect_dtype(infer, 0, MPG_INT32));
  MPG_TRY(expect_ranges(infer));
  MPG_TRY(expect_data(infer, known_range(infer->params)));
  return set_outputs(infer, auto_dtype(infer->params));
}

/* --- Composition ------------------------------------------------------------------------------ */
static mpg_value number(mpg_gradient *g, mpg_value like, double value) {
  return mpg_emit_full(g, like, &one_number, MPG_FLOAT32, value);
}

/* The larger size of two numbers. */
static mpg_value reach(mpg_gradient *g, mpg_value low, mpg_value high) {
  return mpg_emit2(g, MPG_OP__maximum, NULL, mpg_emit1(g, MPG_OP_abs, NULL, low),
                   mpg_emit1(g, MPG_OP_abs, NULL, high));
}

/* Not 0, so that zeros stay zeros. */
static mpg_value divisor(mpg_gradient *g, mpg_value x) {
  return mpg_emit_scalar(g, MPG_OP__maximum_scalar, x, 1e-30);
}

/* Of all elements. */
static mpg_value extreme(mpg_gradient *g, mpg_op_id op, mpg_value data) {
  mpg_reduce_params params;
  memset(&params, 0, sizeof params);
  params.axis.count = -1;
  return mpg_emit_reshape(g, mpg_emit1(g, op, &params, data), &one_number);
}

static mpg_value rounded(mpg_gradient *g, mpg_value x, mpg_dtype dtype) {
  mpg_clip_params limits;
  memset(&limits, 0, sizeof limits);
  limits.a_min = dtype == MPG_INT8 ? -128 : 0;
  limits.a_max = largest_of(dtype);
  /* rint has halves go down; those from odd numbers go up again. */
  mpg_value whole = mpg_emit1(g, MPG_OP_rint, NULL, x),
            half = mpg_emit_scalar(g, MPG_OP__equal_scalar, mpg_subtract(g, x, whole), 0.5),
            odd = mpg_emit_scalar(g, MPG_OP__mod_scalar, whole, 2);
  x = mpg_emit1(g, MPG_OP_clip, &limits, mpg_add(g, whole, mpg_multiply(g, half, odd)));
  return mpg_emit_cast(g, x, dtype);
}

static void quantize(mpg_gradient *g, mpg_value data, mpg_value low, mpg_value high,
                     mpg_dtype dtype, double range, mpg_value *outputs) {
  mpg_value most = reach(g, low, high), scale = mpg_over(g, range, divisor(g, most));
  outputs[0] = rounded(g, mpg_emit2(g, MPG_OP_broadcast_mul, NULL, data, scale), dtype);
  outputs[1] = dtype == MPG_INT8 ? mpg_times(g, most, -1) : mpg_emit1(g, MPG_OP__copy, NULL, low);
  outputs[2] = mpg_emit1(g, MPG_OP__copy, NULL, dtype == MPG_INT8 ? most : high);
}

void mpg_compose_quantize(mpg_gradient *g, const mpg_value *inputs, mpg_value *outputs) {
  const mpg_quantize_params *p = g->params;
  mpg_dtype dtype = p->out_type == TYPE_INT8 ? MPG_INT8 : MPG_UINT8;
  quantize(g, inputs[0], inputs[1], inputs[2], dtype, largest_of(dtype), outputs);
}

void mpg_compose_quantize_v2(mpg_gradient *g, const mpg_value *inputs, mpg_value *outputs) {
  const mpg_quantize_auto_params *p = g->params;
  mpg_dtype given = mpg_value_desc(g, inputs[0])->dtype;
  bool known = known_range(p);
  double low = known               ? p->min_calib_range.value
               : given == MPG_INT8 ? -range_of(given)
                                   : 0,
         high = known ? p->max_calib_range.value : range_of(given);
  if (is_small(given)) {
    outputs[0] = mpg_emit1(g, MPG_OP__copy, NULL, inputs[0]);
    outputs[1] = number(g, inputs[0], low);
    outputs[2] = number(g, inputs[0], high);
    return;
  }
  mpg_dtype dtype = auto_dtype(p);
  quantize(g, inputs[0], known ? number(g, inputs[0], low) : extreme(g, MPG_OP_min, inputs[0]),
           known ? number(g, inputs[0], high) : extreme(g, MPG_OP_max, inputs[0]), dtype,
           range_of(dtype), outputs);
}

void mpg_compose_quantize_asym(mpg_gradient *g, const mpg_value *inputs, mpg_value *outputs) {
  const mpg_quantize_asym_params *p = g->params;
  mpg_dtype given = mpg_value_desc(g, inputs[0])->dtype;
  if (is_small(given)) {
    mpg_value wide = mpg_emit_cast(g, inputs[0], MPG_FLOAT32);
    double shift = given == MPG_INT8 ? 128 : 0;
    outputs[0] = mpg_emit_cast(g, mpg_plus(g, wide, shift), MPG_UINT8);
    outputs[1] = number(g, inputs[0], 1);
    outputs[2] = number(g, inputs[0], shift);
    return;
  }
  bool known = p->min_calib_range.present && p->max_calib_range.present;
  mpg_value low = known ? number(g, inputs[0], p->min_calib_range.value)
                        : extreme(g, MPG_OP_min, inputs[0]),
            high = known ? number(g, inputs[0], p->max_calib_range.value)
                         : extreme(g, MPG_OP_max, inputs[0]);
  mpg_value scale = mpg_over(g, 255, divisor(g, mpg_subtract(g, high, low))),
            shift = mpg_minus_from(g, 255, mpg_multiply(g, high, scale));
  mpg_value moved = mpg_emit2(g, MPG_OP_broadcast_add, NULL,
                              mpg_emit2(g, MPG_OP_broadcast_mul, NULL, inputs[0], scale), shift);
  outputs[0] = rounded(g, moved, MPG_UINT8);
  outputs[1] = scale;
  outputs[2] = shift;
}

void mpg_compose_dequantize(mpg_gradient *g, const mpg_value *inputs, mpg_value *outputs) {
  mpg_dtype given = mpg_value_desc(g, inputs[0])->dtype;
  mpg_value scale = mpg_times(g, reach(g, inputs[1], inputs[2]), 1 / range_of(given));
  outputs[0] =
      mpg_emit2(g, MPG_OP_broadcast_mul, NULL, mpg_emit_cast(g, inputs[0], MPG_FLOAT32), scale);
}

void mpg_compose_requantize(mpg_gradient *g, const mpg_value *inputs, mpg_value *outputs) {
  const mpg_quantize_auto_params *p = g->params;
  mpg_dtype dtype = auto_dtype(p);
  mpg_value unit = mpg_times(g, reach(g, inputs[1], inputs[2]), 1 / largest_int32);
  mpg_value data = mpg_emit_cast(g, inputs[0], MPG_FLOAT32), most;
  if (known_range(p)) {
    most = reach(g, number(g, inputs[0], p->min_calib_range.value),
                 number(g, inputs[0], p->max_calib_range.value));
  } else {
    mpg_value largest = reach(g, extreme(g, MPG_OP_min, data), extreme(g, MPG_OP_max, data));
    most = mpg_multiply(g, largest, unit);
  }
  mpg_value scale = mpg_multiply(g, unit, mpg_over(g, largest_of(dtype), divisor(g, most)));
  outputs[0] = rounded(g, mpg_emit2(g, MPG_OP_broadcast_mul, NULL, data, scale), dtype);
  outputs[1] = mpg_times(g, most, dtype == MPG_INT8 ? -1 : 0);
  outputs[2] = most;
}
