/* Quantized arrays: int8 or uint8 with a [min, max] range. Values are rounded to nearest, ties to
 * even. */
#include <string.h>

#include "base/memory.h"
#include "op/formula/arithmetic.h"
#include "op/infer.h"
#include "op/layers/convolution.h"

enum { TYPE_INT8, TYPE_UINT8, TYPE_AUTO };
static const mpg_shape one_number = {.ndim = 1, .dims = {1}};
static const double largest_int32 = 2147483648.0; /* 2^31 - 1 as float32 */

static mpg_dtype dtype_of(int type, const mpg_opt_float *low, const mpg_opt_float *high) {
  if (type == TYPE_AUTO)
    type = low->present && high->present && low->value >= 0 ? TYPE_UINT8 : TYPE_INT8;
  return type == TYPE_INT8 ? MPG_INT8 : MPG_UINT8;
}
static double largest_of(mpg_dtype dtype) { return dtype == MPG_INT8 ? 127 : 255; }
/* Returns the distance from 0 to the end of a range, in quantization steps. As in MXNet's
 * quantize_v2 and dequantize, the range ends half a step beyond the largest number. */
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

/* Fails if data is empty and its range is not known, because the range is computed from the
 * elements. */
static mpg_status expect_data(const mpg_infer *infer, bool known) {
  const mpg_shape *shape = &infer->inputs[0].shape;
  if (!known && mpg_shape_known(shape) && !mpg_shape_size(shape))
    return mpg_infer_fail(infer, "data is empty and has no range");
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
    return mpg_infer_fail(infer, "data must be int8 or uint8, not %s", mpg_dtype_name(given));
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

/* Emits the larger absolute value of the two ends of a range. */
static mpg_value reach(mpg_gradient *g, mpg_value low, mpg_value high) {
  return mpg_emit2(g, MPG_OP__maximum, NULL, mpg_emit1(g, MPG_OP_abs, NULL, low),
                   mpg_emit1(g, MPG_OP_abs, NULL, high));
}

/* Bounds a divisor away from 0, so that all-zero data gives zeros instead of NaN. */
static mpg_value divisor(mpg_gradient *g, mpg_value x) {
  return mpg_emit_scalar(g, MPG_OP__maximum_scalar, x, 1e-30);
}

/* Emits the minimum or maximum of all elements. */
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
  /* rint rounds ties down. A tie that was rounded to an odd number is increased to the even one. */
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

/* --- Layers: inference ------------------------------------------------------------------------ */
enum { ENDS = 2 }; /* inputs or outputs per range: minimum, maximum */

int mpg_arity_quantized_fully_connected(const mpg_op *op, const void *params, int given) {
  (void)op;
  (void)given;
  return (1 + ENDS) * (((const mpg_fully_connected_params *)params)->no_bias ? 2 : 3);
}
int mpg_arity_quantized_conv(const mpg_op *op, const void *params, int given) {
  (void)op;
  (void)given;
  return (1 + ENDS) * (((const mpg_convolution_params *)params)->no_bias ? 2 : 3);
}
int mpg_arity_quantized_mul_outputs(const mpg_op *op, const void *params, int given) {
  (void)op;
  (void)given;
  return ((const mpg_quantized_mul_params *)params)->enable_float_output ? 1 : 1 + ENDS;
}

static mpg_status expect_ends(mpg_infer *infer, int first, int count) {
  for (int i = first; i < first + count; i++) {
    MPG_TRY(mpg_infer_expect_dtype(infer, i, MPG_FLOAT32));
    MPG_TRY(mpg_infer_expect_shape(infer, i, &one_number));
  }
  return MPG_OK;
}

static mpg_status expect_small(const mpg_infer *infer, int input) {
  char name[64];
  mpg_dtype given = infer->inputs[input].dtype;
  return given == MPG_DTYPE_NONE || is_small(given)
             ? MPG_OK
             : mpg_infer_fail(infer, "%s must be int8 or uint8, not %s",
                              mpg_op_input_name(infer->op, input, name, sizeof name),
                              mpg_dtype_name(given));
}

/* Infers shapes with the rule of the float32 layer. The inputs of that layer correspond to the
 * first `count` inputs. */
static mpg_status infer_as_floats(mpg_infer *infer, mpg_infer_fn rule, int count) {
  mpg_desc inputs[5], outputs[3];
  mpg_infer layer = *infer;
  layer.inputs = inputs;
  layer.outputs = outputs;
  layer.num_inputs = count;
  layer.num_outputs = rule == mpg_infer_batch_norm ? 3 : 1;
  for (int i = 0; i < count; i++)
    inputs[i] = (mpg_desc){.shape = infer->inputs[i].shape, .dtype = MPG_FLOAT32};
  for (int i = 0; i < layer.num_outputs; i++)
    outputs[i] = (mpg_desc){.shape = MPG_SHAPE_UNKNOWN, .dtype = MPG_DTYPE_NONE};
  MPG_TRY(rule(&layer));
  for (int i = 0; i < count; i++) infer->inputs[i].shape = inputs[i].shape;
  infer->outputs[0].shape = outputs[0].shape;
  return MPG_OK;
}

/* Sets the dtype of the result and the descs of its range. */
static void set_result(mpg_infer *infer, mpg_dtype dtype) {
  infer->outputs[0].dtype = dtype;
  for (int i = 1; i < infer->num_outputs; i++) mpg_infer_set(infer, i, &one_number, MPG_FLOAT32);
}

static mpg_status infer_products(mpg_infer *infer, mpg_infer_fn rule, int arrays) {
  MPG_TRY(expect_small(infer, 0));
  for (int i = 1; i < arrays; i++) MPG_TRY(mpg_infer_expect_dtype(infer, i, MPG_INT8));
  MPG_TRY(infer_as_floats(infer, rule, arrays));
  set_result(infer, MPG_INT32);
  return MPG_OK;
}
mpg_status mpg_infer_integer_fully_connected(mpg_infer *infer) {
  return infer_products(infer, mpg_infer_fully_connected, 2);
}
mpg_status mpg_infer_integer_convolution(mpg_infer *infer) {
  return infer_products(infer, mpg_infer_convolution, 2);
}
mpg_status mpg_infer_quantized_fully_connected(mpg_infer *infer) {
  int arrays = infer->num_inputs / (1 + ENDS);
  MPG_TRY(expect_ends(infer, arrays, ENDS * arrays));
  return infer_products(infer, mpg_infer_fully_connected, arrays);
}
mpg_status mpg_infer_quantized_conv(mpg_infer *infer) {
  int arrays = infer->num_inputs / (1 + ENDS);
  MPG_TRY(expect_ends(infer, arrays, ENDS * arrays));
  return infer_products(infer, mpg_infer_convolution, arrays);
}

/* Infers an op whose result has the dtype and range of its only array. */
static mpg_status infer_kept(mpg_infer *infer, mpg_infer_fn rule) {
  MPG_TRY(expect_small(infer, 0));
  MPG_TRY(expect_ends(infer, 1, ENDS));
  MPG_TRY(infer_as_floats(infer, rule, 1));
  set_result(infer, infer->inputs[0].dtype);
  return MPG_OK;
}
mpg_status mpg_infer_quantized_pooling(mpg_infer *infer) {
  int type = ((const mpg_pooling_params *)infer->params)->pool_type;
  if (type != MPG_POOL_MAX && type != MPG_POOL_AVG)
    return mpg_infer_fail(infer, "pool_type must be max or avg for 8-bit data");
  return infer_kept(infer, mpg_infer_pooling);
}
mpg_status mpg_infer_quantized_act(mpg_infer *infer) {
  if (((const mpg_quantized_act_params *)infer->params)->act_type != 0)
    return mpg_infer_fail(infer, "act_type must be relu for 8-bit data");
  return infer_kept(infer, mpg_infer_same);
}
mpg_status mpg_infer_quantized_flatten(mpg_infer *infer) {
  return infer_kept(infer, mpg_infer_flatten);
}

mpg_status mpg_infer_quantized_embedding(mpg_infer *infer) {
  MPG_TRY(mpg_infer_expect_dtype(infer, 1, MPG_INT8));
  MPG_TRY(expect_ends(infer, 2, ENDS));
  MPG_TRY(infer_as_floats(infer, mpg_infer_embedding, 2));
  set_result(infer, MPG_INT8);
  return MPG_OK;
}

static mpg_status infer_pair(mpg_infer *infer) {
  MPG_TRY(expect_small(infer, 0));
  MPG_TRY(expect_small(infer, 1));
  MPG_TRY(expect_ends(infer, 2, 2 * ENDS));
  return infer_as_floats(infer, mpg_infer_same, 2);
}
static mpg_dtype sum_dtype(const mpg_quantized_add_params *p, mpg_dtype left, mpg_dtype right) {
  if (!p->min_calib_range.present || !p->max_calib_range.present) return MPG_INT32;
  return left == right ? left : MPG_INT8;
}
mpg_status mpg_infer_quantized_elemwise_add(mpg_infer *infer) {
  MPG_TRY(infer_pair(infer));
  set_result(infer, sum_dtype(infer->params, infer->inputs[0].dtype, infer->inputs[1].dtype));
  return MPG_OK;
}
static mpg_dtype product_dtype(const mpg_quantized_mul_params *p) {
  if (p->enable_float_output) return MPG_FLOAT32;
  return p->min_calib_range.present && p->max_calib_range.present ? MPG_INT8 : MPG_INT32;
}
mpg_status mpg_infer_quantized_elemwise_mul(mpg_infer *infer) {
  MPG_TRY(infer_pair(infer));
  set_result(infer, product_dtype(infer->params));
  return MPG_OK;
}

mpg_status mpg_infer_quantized_concat(mpg_infer *infer) {
  int arrays = infer->num_inputs / (1 + ENDS);
  if (infer->num_inputs % (1 + ENDS))
    return mpg_infer_fail(infer,
                          "expected three inputs for each array: the array, and after all arrays "
                          "its minimum and maximum");
  mpg_dtype dtype = MPG_UINT8;
  for (int i = 0; i < arrays; i++) {
    MPG_TRY(expect_small(infer, i));
    if (infer->inputs[i].dtype == MPG_INT8) dtype = MPG_INT8;
  }
  MPG_TRY(expect_ends(infer, arrays, ENDS * arrays));
  mpg_desc output = {.shape = MPG_SHAPE_UNKNOWN};
  mpg_infer layer = *infer;
  layer.num_inputs = arrays;
  layer.num_outputs = 1;
  layer.outputs = &output;
  mpg_desc *inputs = mpg_malloc((size_t)arrays * sizeof *inputs);
  if (!inputs) return mpg_out_of_host_memory((size_t)arrays * sizeof *inputs);
  for (int i = 0; i < arrays; i++)
    inputs[i] = (mpg_desc){.shape = infer->inputs[i].shape, .dtype = MPG_FLOAT32};
  layer.inputs = inputs;
  mpg_status status = mpg_infer_concat(&layer);
  for (int i = 0; i < arrays; i++) infer->inputs[i].shape = inputs[i].shape;
  mpg_free(inputs);
  MPG_TRY(status);
  infer->outputs[0].shape = output.shape;
  set_result(infer, dtype);
  return MPG_OK;
}

mpg_status mpg_infer_quantized_batch_norm(mpg_infer *infer) {
  const mpg_batch_norm_params *p = infer->params;
  if (!p->min_calib_range.present || !p->max_calib_range.present)
    return mpg_infer_fail(
        infer, "min_calib_range and max_calib_range, the range of the result, must be given");
  MPG_TRY(expect_small(infer, 0));
  for (int i = 1; i < 5; i++) MPG_TRY(mpg_infer_expect_dtype(infer, i, MPG_FLOAT32));
  MPG_TRY(expect_ends(infer, 5, ENDS));
  MPG_TRY(infer_as_floats(infer, mpg_infer_batch_norm, 5));
  set_result(infer, MPG_INT8);
  return MPG_OK;
}

/* --- Layers: composition ---------------------------------------------------------------------- */
static mpg_dtype dtype_at(mpg_gradient *g, mpg_value value) {
  return g->status == MPG_OK ? mpg_value_desc(g, value)->dtype : MPG_INT8;
}
static mpg_value copied(mpg_gradient *g, mpg_value x) {
  return mpg_emit1(g, MPG_OP__copy, NULL, x);
}
static mpg_value as_float(mpg_gradient *g, mpg_value x) { return mpg_emit_cast(g, x, MPG_FLOAT32); }
static mpg_value scaled(mpg_gradient *g, mpg_value x, mpg_value scale) {
  return mpg_emit2(g, MPG_OP_broadcast_mul, NULL, x, scale);
}

/* Emits the quantization step of a dtype for a range, as in quantize_v2. */
static mpg_value step_of(mpg_gradient *g, mpg_dtype dtype, mpg_value low, mpg_value high) {
  return mpg_times(g, reach(g, low, high), 1 / range_of(dtype));
}

/* Emits the range of an int32 product of two 8-bit arrays. The quantization step of the product is
 * the product of their steps. Unlike in step_of, an 8-bit range ends at the largest 8-bit number,
 * without the additional half step. */
static void product_range(mpg_gradient *g, mpg_dtype left, const mpg_value *left_ends,
                          mpg_dtype right, const mpg_value *right_ends, mpg_value *ends) {
  mpg_value most =
      mpg_multiply(g, reach(g, left_ends[0], left_ends[1]), reach(g, right_ends[0], right_ends[1]));
  ends[1] = mpg_times(g, most, largest_int32 / (largest_of(left) * largest_of(right)));
  ends[0] = mpg_times(g, ends[1], -1);
}

/* Rounds float32 values to integers of a dtype and clips them to its range. */
static mpg_value whole(mpg_gradient *g, mpg_value x, mpg_dtype dtype) {
  if (dtype != MPG_INT32) return rounded(g, x, dtype);
  mpg_clip_params limits;
  memset(&limits, 0, sizeof limits);
  limits.a_max = largest_int32 - 128; /* the largest float32 below 2^31 */
  limits.a_min = -limits.a_max;
  return mpg_emit_cast(g, mpg_emit1(g, MPG_OP_clip, &limits, mpg_emit1(g, MPG_OP_rint, NULL, x)),
                       MPG_INT32);
}

/* Emits an int32 product and its range. `inputs` holds data, weight and an optional bias, followed
 * by the ends of their ranges. The bias is rescaled to the product's quantization step. */
static void products(mpg_gradient *g, mpg_op_id op, const void *params, int bias_axis,
                     const mpg_value *inputs, mpg_value *outputs) {
  int arrays = g->num_inputs / (1 + ENDS);
  const mpg_value *ends = inputs + arrays;
  mpg_dtype dtype = dtype_at(g, inputs[0]);
  outputs[0] = mpg_emit2(g, op, params, inputs[0], inputs[1]);
  if (arrays == 3) {
    mpg_value unit = mpg_multiply(g, step_of(g, dtype, ends[0], ends[1]),
                                  step_of(g, MPG_INT8, ends[2], ends[3]));
    mpg_value steps = mpg_divide(g, step_of(g, MPG_INT8, ends[4], ends[5]), divisor(g, unit));
    mpg_value bias = whole(g, scaled(g, as_float(g, inputs[2]), steps), MPG_INT32);
    if (g->status != MPG_OK) return;
    mpg_shape shape = {.ndim = mpg_value_desc(g, outputs[0])->shape.ndim};
    for (int i = 0; i < shape.ndim; i++) shape.dims[i] = 1;
    int axis = bias_axis < 0 ? shape.ndim + bias_axis : bias_axis;
    shape.dims[axis] = mpg_value_desc(g, bias)->shape.dims[0];
    outputs[0] =
        mpg_emit2(g, MPG_OP_broadcast_add, NULL, outputs[0], mpg_emit_reshape(g, bias, &shape));
  }
  product_range(g, dtype, ends, MPG_INT8, ends + ENDS, outputs + 1);
}

void mpg_compose_quantized_fully_connected(mpg_gradient *g, const mpg_value *inputs,
                                           mpg_value *outputs) {
  mpg_fully_connected_params params = *(const mpg_fully_connected_params *)g->params;
  params.no_bias = true;
  products(g, MPG_OP__integer_fully_connected, &params, -1, inputs, outputs);
}

void mpg_compose_quantized_conv(mpg_gradient *g, const mpg_value *inputs, mpg_value *outputs) {
  mpg_convolution_params params = *(const mpg_convolution_params *)g->params;
  bool last = mpg_layout_of(params.layout) != MPG_CHANNELS_FIRST;
  params.no_bias = true;
  products(g, MPG_OP__integer_convolution, &params, last ? -1 : 1, inputs, outputs);
}

static void keep_range(mpg_gradient *g, const mpg_value *ends, mpg_value *outputs) {
  outputs[1] = copied(g, ends[0]);
  outputs[2] = copied(g, ends[1]);
}

void mpg_compose_quantized_pooling(mpg_gradient *g, const mpg_value *inputs, mpg_value *outputs) {
  mpg_value pooled = mpg_emit1(g, MPG_OP_Pooling, g->params, as_float(g, inputs[0]));
  outputs[0] = rounded(g, pooled, dtype_at(g, inputs[0]));
  keep_range(g, inputs + 1, outputs);
}

void mpg_compose_quantized_act(mpg_gradient *g, const mpg_value *inputs, mpg_value *outputs) {
  outputs[0] = mpg_emit_scalar(g, MPG_OP__maximum_scalar, inputs[0], 0);
  keep_range(g, inputs + 1, outputs);
}

void mpg_compose_quantized_flatten(mpg_gradient *g, const mpg_value *inputs, mpg_value *outputs) {
  outputs[0] = copied(g, mpg_emit1(g, MPG_OP_Flatten, NULL, inputs[0]));
  keep_range(g, inputs + 1, outputs);
}

void mpg_compose_quantized_embedding(mpg_gradient *g, const mpg_value *inputs, mpg_value *outputs) {
  mpg_take_params params;
  memset(&params, 0, sizeof params); /* along axis 0, with clipped indices */
  outputs[0] = mpg_emit2(g, MPG_OP_take, &params, inputs[1], inputs[0]);
  keep_range(g, inputs + 2, outputs);
}

void mpg_compose_quantized_elemwise_add(mpg_gradient *g, const mpg_value *inputs,
                                        mpg_value *outputs) {
  const mpg_quantized_add_params *p = g->params;
  mpg_dtype left = dtype_at(g, inputs[0]), right = dtype_at(g, inputs[1]),
            dtype = sum_dtype(p, left, right);
  const mpg_value *ends = inputs + 2;
  mpg_value most;
  if (dtype == MPG_INT32) {
    most = mpg_add(g, reach(g, ends[0], ends[1]), reach(g, ends[2], ends[3]));
    outputs[1] = mpg_times(g, most, -1);
    outputs[2] = copied(g, most);
  } else {
    outputs[1] = number(g, inputs[0], p->min_calib_range.value);
    outputs[2] = number(g, inputs[0], p->max_calib_range.value);
    most = reach(g, outputs[1], outputs[2]);
  }
  double range = dtype == MPG_INT32 ? largest_int32 : range_of(dtype);
  mpg_value unit = divisor(g, mpg_times(g, most, 1 / range));
  mpg_value lhs = scaled(g, as_float(g, inputs[0]),
                         mpg_divide(g, step_of(g, left, ends[0], ends[1]), unit)),
            rhs = scaled(g, as_float(g, inputs[1]),
                         mpg_divide(g, step_of(g, right, ends[2], ends[3]), unit));
  outputs[0] = whole(g, mpg_add(g, lhs, rhs), dtype);
}

void mpg_compose_quantized_elemwise_mul(mpg_gradient *g, const mpg_value *inputs,
                                        mpg_value *outputs) {
  const mpg_quantized_mul_params *p = g->params;
  mpg_dtype left = dtype_at(g, inputs[0]), right = dtype_at(g, inputs[1]), dtype = product_dtype(p);
  const mpg_value *ends = inputs + 2;
  mpg_value product = mpg_multiply(g, as_float(g, inputs[0]), as_float(g, inputs[1]));
  if (dtype == MPG_INT32) { /* products of 8-bit numbers are exact in float32 */
    outputs[0] = mpg_emit_cast(g, product, MPG_INT32);
    product_range(g, left, ends, right, ends + ENDS, outputs + 1);
    return;
  }
  mpg_value unit =
      mpg_multiply(g, step_of(g, left, ends[0], ends[1]), step_of(g, right, ends[2], ends[3]));
  if (dtype == MPG_FLOAT32) {
    outputs[0] = scaled(g, product, unit);
    return;
  }
  outputs[1] = number(g, inputs[0], p->min_calib_range.value);
  outputs[2] = number(g, inputs[0], p->max_calib_range.value);
  mpg_value step = divisor(g, step_of(g, MPG_INT8, outputs[1], outputs[2]));
  mpg_value steps = scaled(g, product, mpg_divide(g, unit, step));
  outputs[0] = rounded(g, mpg_emit1(g, MPG_OP_trunc, NULL, steps), MPG_INT8); /* MXNet truncates */
}

void mpg_compose_quantized_concat(mpg_gradient *g, const mpg_value *inputs, mpg_value *outputs) {
  int arrays = g->num_inputs / (1 + ENDS);
  const mpg_value *ends = inputs + arrays;
  mpg_dtype dtype = MPG_UINT8;
  mpg_value low = number(g, inputs[0], 0), high = low;
  for (int i = 0; i < arrays; i++) {
    if (dtype_at(g, inputs[i]) == MPG_INT8) dtype = MPG_INT8;
    low = mpg_emit2(g, MPG_OP__minimum, NULL, low, ends[ENDS * i]);
    high = mpg_emit2(g, MPG_OP__maximum, NULL, high, ends[ENDS * i + 1]);
  }
  outputs[1] = low;
  outputs[2] = high;
  mpg_value step = divisor(g, step_of(g, dtype, low, high));
  mpg_value *parts = mpg_malloc((size_t)arrays * sizeof *parts);
  if (!parts) {
    g->status = mpg_out_of_host_memory((size_t)arrays * sizeof *parts);
    return;
  }
  for (int i = 0; i < arrays; i++) {
    mpg_value own = step_of(g, dtype_at(g, inputs[i]), ends[ENDS * i], ends[ENDS * i + 1]);
    parts[i] = rounded(g, scaled(g, as_float(g, inputs[i]), mpg_divide(g, own, step)), dtype);
  }
  outputs[0] = mpg_emit_concat(g, parts, arrays, (int)((const mpg_concat_params *)g->params)->dim);
  mpg_free(parts);
}

/* Uses arithmetic ops instead of BatchNorm, which would update the moving averages. */
void mpg_compose_quantized_batch_norm(mpg_gradient *g, const mpg_value *inputs,
                                      mpg_value *outputs) {
  const mpg_batch_norm_params *p = g->params;
  mpg_dtype dtype = dtype_at(g, inputs[0]);
  mpg_value x = scaled(g, as_float(g, inputs[0]), step_of(g, dtype, inputs[5], inputs[6]));
  if (g->status != MPG_OK) return;
  const mpg_shape *data = &mpg_value_desc(g, x)->shape;
  mpg_shape channels = {.ndim = data->ndim};
  int axis;
  g->status = mpg_axis_normalize(p->axis, data->ndim, g->op->name, &axis);
  if (g->status != MPG_OK) return;
  for (int i = 0; i < channels.ndim; i++) channels.dims[i] = i == axis ? data->dims[i] : 1;
  mpg_value vectors[4];
  for (int i = 0; i < 4; i++) vectors[i] = mpg_emit_reshape(g, inputs[1 + i], &channels);
  mpg_value factor = mpg_emit1(g, MPG_OP_rsqrt, NULL, mpg_plus(g, vectors[3], p->eps));
  if (!p->fix_gamma) factor = mpg_multiply(g, factor, vectors[0]);
  mpg_value offset = mpg_subtract(g, vectors[1], mpg_multiply(g, vectors[2], factor));
  mpg_value y = mpg_emit2(g, MPG_OP_broadcast_add, NULL, scaled(g, x, factor), offset);
  outputs[1] = number(g, inputs[0], p->min_calib_range.value);
  outputs[2] = number(g, inputs[0], p->max_calib_range.value);
  mpg_value steps = mpg_over(g, 1, divisor(g, step_of(g, MPG_INT8, outputs[1], outputs[2])));
  outputs[0] = rounded(g, scaled(g, y, steps), MPG_INT8);
}
