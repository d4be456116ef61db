/* Ops on images (height, width, channels), as in MXNet's nd.image. Integer images are processed in
 * float32. uint8 results are clipped to [0, 255] and truncated. */
#include <string.h>

#include "op/formula/arithmetic.h"
#include "op/infer.h"

typedef struct image {
  mpg_value data; /* cast to `working` */
  mpg_dtype dtype, working;
  int height, width, channels; /* axis indices */
  int64_t num_channels;
} image;

static image fail_image(mpg_gradient *g, const mpg_shape *shape, const char *order) {
  char text[MPG_SHAPE_TEXT_SIZE];
  mpg_gradient_fail(g, "data must be (%s) or (batch, %s), not %s", order, order,
                    mpg_shape_text(shape, text, sizeof text));
  return (image){.data = MPG_NO_VALUE};
}

/* Checks that data is an image (height, width, channels) or a batch of images, and casts it to a
 * float dtype. If `colors`, the image must have 1 or 3 channels. */
static image begin(mpg_gradient *g, mpg_value data, bool colors) {
  const mpg_desc *desc = mpg_value_desc(g, data);
  int ndim = desc->shape.ndim;
  if (ndim != 3 && ndim != 4) return fail_image(g, &desc->shape, "height, width, channels");
  image result = {.dtype = desc->dtype,
                  .height = ndim - 3,
                  .width = ndim - 2,
                  .channels = ndim - 1,
                  .num_channels = desc->shape.dims[ndim - 1]};
  if (colors && result.num_channels != 1 && result.num_channels != 3)
    return fail_image(g, &desc->shape, "height, width, 1 or 3 channels");
  result.working = desc->dtype == MPG_FLOAT64 ? MPG_FLOAT64 : MPG_FLOAT32;
  result.data = mpg_emit_cast(g, data, result.working);
  return result;
}

static mpg_value finish(mpg_gradient *g, const image *im, mpg_value result) {
  mpg_clip_params bytes = {.a_min = 0, .a_max = 255};
  if (im->dtype == MPG_UINT8) result = mpg_emit1(g, MPG_OP_clip, &bytes, result);
  return mpg_emit_cast(g, result, im->dtype);
}

/* Emits a random number in [low, high), one for all images of a batch, which broadcasts to the
 * data. */
static mpg_value draw(mpg_gradient *g, const image *im, double low, double high) {
  if (g->status != MPG_OK) return MPG_NO_VALUE;
  mpg_uniform_like_params params = {.low = low, .high = high};
  mpg_shape one = {.ndim = im->channels + 1};
  for (int i = 0; i < one.ndim; i++) one.dims[i] = 1;
  return mpg_emit1(g, MPG_OP__random_uniform_like, &params,
                   mpg_emit_full(g, im->data, &one, im->working, 0));
}

/* --- Layout ----------------------------------------------------------------------------------- */
void mpg_compose_image_to_tensor(mpg_gradient *g, const mpg_value *inputs, mpg_value *outputs) {
  image im = begin(g, inputs[0], false);
  mpg_transpose_params order;
  memset(&order, 0, sizeof order);
  order.axes = im.channels == 2 ? (mpg_tuple){.count = 3, .values = {2, 0, 1}}
                                : (mpg_tuple){.count = 4, .values = {0, 3, 1, 2}};
  mpg_value data = mpg_emit_cast(g, im.data, MPG_FLOAT32);
  data = mpg_emit1(g, MPG_OP_transpose, &order, data);
  outputs[0] = mpg_emit_scalar(g, MPG_OP__div_scalar, data, 255);
}

/* Emits `numbers` along the channel axis. If all of them are equal, emits a single number, which
 * broadcasts to any number of channels. */
static mpg_value channel_numbers(mpg_gradient *g, mpg_value data, const mpg_floats *numbers,
                                 const char *name) {
  if (g->status != MPG_OK) return MPG_NO_VALUE;
  const mpg_desc *desc = mpg_value_desc(g, data);
  int axis = desc->shape.ndim - 3;
  int64_t channels = desc->shape.dims[axis];
  bool alike = numbers->count == 1 || numbers->count == 4; /* the default is four equal numbers */
  for (int i = 1; i < numbers->count; i++) alike &= numbers->values[i] == numbers->values[0];
  if (numbers->count != channels && !alike) {
    mpg_gradient_fail(g, "%s has %d numbers, but the image has %lld channels", name,
                      (int)numbers->count, (long long)channels);
    return MPG_NO_VALUE;
  }
  return mpg_emit_numbers(g, data, axis, desc->dtype, numbers->values, alike ? 1 : (int)channels);
}

void mpg_compose_image_normalize(mpg_gradient *g, const mpg_value *inputs, mpg_value *outputs) {
  const mpg_image_normalize_params *params = g->params;
  const mpg_desc *desc = mpg_value_desc(g, inputs[0]);
  mpg_dtype dtype = desc->dtype;
  if (desc->shape.ndim != 3 && desc->shape.ndim != 4) {
    fail_image(g, &desc->shape, "channels, height, width");
    return;
  }
  mpg_value data = mpg_widen(g, inputs[0]);
  mpg_value centered = mpg_subtract(g, data, channel_numbers(g, data, &params->mean, "mean"));
  mpg_value scaled = mpg_divide(g, centered, channel_numbers(g, data, &params->std, "std"));
  outputs[0] = mpg_emit_cast(g, scaled, dtype);
}

void mpg_compose_image_crop(mpg_gradient *g, const mpg_value *inputs, mpg_value *outputs) {
  const mpg_image_crop_params *params = g->params;
  mpg_shape shape = mpg_value_desc(g, inputs[0])->shape;
  int ndim = shape.ndim;
  if (ndim != 3 && ndim != 4) {
    fail_image(g, &shape, "height, width, channels");
    return;
  }
  if (params->x > shape.dims[ndim - 2] - params->width ||
      params->y > shape.dims[ndim - 3] - params->height) {
    mpg_gradient_fail(
        g, "the region of %lld x %lld at (%lld, %lld) exceeds the image of %lld x %lld",
        (long long)params->width, (long long)params->height, (long long)params->x,
        (long long)params->y, (long long)shape.dims[ndim - 2], (long long)shape.dims[ndim - 3]);
    return;
  }
  mpg_slice_params part;
  memset(&part, 0, sizeof part);
  part.begin.count = part.end.count = ndim;
  for (int i = 0; i < ndim; i++) part.end.values[i] = shape.dims[i];
  part.begin.values[ndim - 3] = params->y;
  part.begin.values[ndim - 2] = params->x;
  part.end.values[ndim - 3] = params->y + params->height;
  part.end.values[ndim - 2] = params->x + params->width;
  outputs[0] = mpg_emit1(g, MPG_OP_slice, &part, inputs[0]);
}

static mpg_value flipped(mpg_gradient *g, mpg_value data, int from_end) {
  if (g->status != MPG_OK) return MPG_NO_VALUE;
  mpg_shape shape = mpg_value_desc(g, data)->shape;
  mpg_reverse_params params;
  memset(&params, 0, sizeof params);
  params.axis = (mpg_tuple){.count = 1, .values = {shape.ndim - from_end}};
  if (shape.ndim == 3 || shape.ndim == 4) return mpg_emit1(g, MPG_OP_reverse, &params, data);
  fail_image(g, &shape, "height, width, channels");
  return MPG_NO_VALUE;
}

void mpg_compose_image_flip_left_right(mpg_gradient *g, const mpg_value *inputs,
                                       mpg_value *outputs) {
  outputs[0] = flipped(g, inputs[0], 2);
}

void mpg_compose_image_flip_top_bottom(mpg_gradient *g, const mpg_value *inputs,
                                       mpg_value *outputs) {
  outputs[0] = flipped(g, inputs[0], 3);
}

static mpg_value flipped_at_random(mpg_gradient *g, mpg_value data, int from_end) {
  mpg_value other = flipped(g, data, from_end);
  if (g->status != MPG_OK) return MPG_NO_VALUE;
  image im = {
      .data = data, .working = MPG_FLOAT32, .channels = mpg_value_desc(g, data)->shape.ndim - 1};
  mpg_value flip = mpg_emit_scalar(g, MPG_OP__lesser_scalar, draw(g, &im, 0, 1), 0.5);
  return mpg_emit_where(g, flip, other, data);
}

void mpg_compose_image_random_flip_left_right(mpg_gradient *g, const mpg_value *inputs,
                                              mpg_value *outputs) {
  outputs[0] = flipped_at_random(g, inputs[0], 2);
}

void mpg_compose_image_random_flip_top_bottom(mpg_gradient *g, const mpg_value *inputs,
                                              mpg_value *outputs) {
  outputs[0] = flipped_at_random(g, inputs[0], 3);
}

/* --- Colors ----------------------------------------------------------------------------------- */
/* Adjusts `data` by a factor that broadcasts to it. */
typedef mpg_value (*adjustment)(mpg_gradient *g, const image *im, mpg_value data, mpg_value factor);

/* Emits the luminance of each pixel; the channel axis has size 1. */
static mpg_value gray(mpg_gradient *g, const image *im, mpg_value data) {
  static const double weights[] = {0.299, 0.587, 0.114};
  if (im->num_channels == 1) return data;
  mpg_value weight = mpg_emit_numbers(g, im->data, im->channels, im->working, weights, 3);
  return mpg_emit_reduce(g, MPG_OP_sum, mpg_multiply(g, data, weight), im->channels);
}

static mpg_value adjust_brightness(mpg_gradient *g, const image *im, mpg_value data,
                                   mpg_value factor) {
  (void)im;
  return mpg_multiply(g, data, factor);
}

/* Emits factor * data + (1 - factor) * middle. */
static mpg_value away_from(mpg_gradient *g, mpg_value data, mpg_value middle, mpg_value factor) {
  return mpg_add(g, mpg_multiply(g, data, factor),
                 mpg_multiply(g, middle, mpg_minus_from(g, 1, factor)));
}

static mpg_value adjust_contrast(mpg_gradient *g, const image *im, mpg_value data,
                                 mpg_value factor) {
  mpg_value mean = mpg_emit_reduce(g, MPG_OP_mean, gray(g, im, data), im->height);
  return away_from(g, data, mpg_emit_reduce(g, MPG_OP_mean, mean, im->width), factor);
}

static mpg_value adjust_saturation(mpg_gradient *g, const image *im, mpg_value data,
                                   mpg_value factor) {
  return im->num_channels == 1 ? mpg_times(g, data, 1)
                               : away_from(g, data, gray(g, im, data), factor);
}

/* HSL to RGB conversion: emits one color channel, given the hue in sixths of the circle (0 to 6),
 * the lightness and the chroma. This is f(n) in Wikipedia's article "HSL and HSV", with n =
 * `peak`. */
static mpg_value channel_of(mpg_gradient *g, mpg_value hue, mpg_value lightness, mpg_value chroma,
                            double peak) {
  mpg_value k = mpg_emit_scalar(g, MPG_OP__mod_scalar, mpg_plus(g, mpg_times(g, hue, 2), peak), 12);
  mpg_clip_params unit = {.a_min = -1, .a_max = 1};
  mpg_value slope =
      mpg_emit2(g, MPG_OP__minimum, NULL, mpg_plus(g, k, -3), mpg_minus_from(g, 9, k));
  slope = mpg_emit1(g, MPG_OP_clip, &unit, slope);
  return mpg_subtract(g, lightness, mpg_multiply(g, chroma, slope));
}

static mpg_value adjust_hue(mpg_gradient *g, const image *im, mpg_value data, mpg_value turn) {
  if (im->num_channels == 1) return mpg_times(g, data, 1);
  mpg_value x = mpg_times(g, data, 1 / 255.0);
  mpg_value r = mpg_emit_slice(g, x, im->channels, 0, 1),
            green = mpg_emit_slice(g, x, im->channels, 1, 2),
            b = mpg_emit_slice(g, x, im->channels, 2, 3);
  mpg_value most = mpg_emit_reduce(g, MPG_OP_max, x, im->channels),
            least = mpg_emit_reduce(g, MPG_OP_min, x, im->channels);
  mpg_value range = mpg_subtract(g, most, least), sum = mpg_add(g, most, least);
  mpg_value colored = mpg_emit_scalar(g, MPG_OP__greater_scalar, range, 1.1920929e-7);
  mpg_value one = mpg_emit_full_like(g, range, 1), zero = mpg_emit_full_like(g, range, 0);
  mpg_value over = mpg_over(g, 1, mpg_emit_where(g, colored, range, one));
  mpg_value from_red = mpg_multiply(g, mpg_subtract(g, green, b), over),
            from_green = mpg_plus(g, mpg_multiply(g, mpg_subtract(g, b, r), over), 2),
            from_blue = mpg_plus(g, mpg_multiply(g, mpg_subtract(g, r, green), over), 4);
  mpg_value is_red = mpg_emit2(g, MPG_OP__equal, NULL, most, r),
            is_green = mpg_emit2(g, MPG_OP__equal, NULL, most, green);
  mpg_value hue =
      mpg_emit_where(g, is_red, from_red, mpg_emit_where(g, is_green, from_green, from_blue));
  mpg_value lightness = mpg_times(g, sum, 0.5);
  mpg_value dark = mpg_emit_scalar(g, MPG_OP__lesser_scalar, lightness, 0.5);
  mpg_value widest = mpg_emit_where(g, dark, sum, mpg_minus_from(g, 2, sum));
  mpg_value saturation = mpg_divide(g, range, mpg_emit_where(g, colored, widest, one));
  saturation = mpg_emit_where(g, colored, saturation, zero);
  mpg_value chroma =
      mpg_multiply(g, saturation,
                   mpg_emit2(g, MPG_OP__minimum, NULL, lightness, mpg_minus_from(g, 1, lightness)));
  hue = mpg_add(g, hue, mpg_times(g, turn, 6));
  mpg_value channels[] = {channel_of(g, hue, lightness, chroma, 0),
                          channel_of(g, hue, lightness, chroma, 8),
                          channel_of(g, hue, lightness, chroma, 4)};
  return mpg_times(g, mpg_emit_concat(g, channels, 3, im->channels), 255);
}

static void enhance(mpg_gradient *g, const mpg_value *inputs, mpg_value *outputs,
                    adjustment adjust) {
  const mpg_image_enhance_params *params = g->params;
  image im = begin(g, inputs[0], true);
  if (g->status != MPG_OK) return;
  if (params->max_factor < params->min_factor) {
    mpg_gradient_fail(g, "max_factor %g is below min_factor %g", params->max_factor,
                      params->min_factor);
    return;
  }
  mpg_value factor = draw(g, &im, params->min_factor, params->max_factor);
  outputs[0] = finish(g, &im, adjust(g, &im, im.data, factor));
}

#define ENHANCE(name, adjust)                                                    \
  void mpg_compose_image_random_##name(mpg_gradient *g, const mpg_value *inputs, \
                                       mpg_value *outputs) {                     \
    enhance(g, inputs, outputs, adjust);                                         \
  }
ENHANCE(brightness, adjust_brightness)
ENHANCE(contrast, adjust_contrast)
ENHANCE(saturation, adjust_saturation)
ENHANCE(hue, adjust_hue)

/* Applies the adjustments in random order. Each adjustment draws a random key, and the keys
 * determine the order. */
void mpg_compose_image_random_color_jitter(mpg_gradient *g, const mpg_value *inputs,
                                           mpg_value *outputs) {
  enum { MOST = 4 };
  const mpg_image_jitter_params *params = g->params;
  const double extents[MOST] = {params->brightness, params->contrast, params->saturation,
                                params->hue};
  static const adjustment all[MOST] = {adjust_brightness, adjust_contrast, adjust_saturation,
                                       adjust_hue};
  static const double middles[MOST] = {1, 1, 1, 0};
  image im = begin(g, inputs[0], true);
  if (g->status != MPG_OK) return;
  adjustment used[MOST];
  mpg_value factors[MOST], keys[MOST], turns[MOST], data = im.data;
  int count = 0;
  for (int i = 0; i < MOST; i++) {
    if (extents[i] <= 0) continue;
    used[count] = all[i];
    factors[count++] = draw(g, &im, middles[i] - extents[i], middles[i] + extents[i]);
  }
  for (int i = 0; count > 1 && i < count; i++) keys[i] = draw(g, &im, 0, 1);
  for (int i = 0; count > 1 && i < count; i++) {
    turns[i] = mpg_emit_full_like(g, keys[i], 0);
    for (int k = 0; k < count; k++)
      if (k != i)
        turns[i] = mpg_add(
            g, turns[i],
            mpg_emit2(g, k < i ? MPG_OP__lesser_equal : MPG_OP__lesser, NULL, keys[k], keys[i]));
  }
  for (int turn = 0; turn < count; turn++) {
    mpg_value next = used[0](g, &im, data, factors[0]);
    for (int i = 1; i < count; i++)
      next = mpg_emit_where(g, mpg_emit_scalar(g, MPG_OP__equal_scalar, turns[i], turn),
                            used[i](g, &im, data, factors[i]), next);
    data = next;
  }
  outputs[0] = finish(g, &im, count ? data : mpg_times(g, data, 1));
}

/* --- Lighting --------------------------------------------------------------------------------- */
/* Principal components of ImageNet's colors times their standard deviations, one component per
 * column. The rows are red, green and blue. */
static const double components[3][3] = {{55.46 * -0.5675, 4.794 * 0.7192, 1.148 * 0.4009},
                                        {55.46 * -0.5808, 4.794 * -0.0045, 1.148 * -0.8140},
                                        {55.46 * -0.5836, 4.794 * -0.6948, 1.148 * 0.4203}};

void mpg_compose_image_adjust_lighting(mpg_gradient *g, const mpg_value *inputs,
                                       mpg_value *outputs) {
  const mpg_image_lighting_params *params = g->params;
  image im = begin(g, inputs[0], true);
  double light[3] = {0};
  if (g->status != MPG_OK) return;
  if (params->alpha.count != 3) {
    mpg_gradient_fail(g, "alpha must have 3 numbers, not %d", (int)params->alpha.count);
    return;
  }
  for (int c = 0; c < 3; c++)
    for (int i = 0; i < 3; i++) light[c] += components[c][i] * params->alpha.values[i];
  mpg_value result =
      im.num_channels == 1
          ? mpg_times(g, im.data, 1)
          : mpg_add(g, im.data, mpg_emit_numbers(g, im.data, im.channels, im.working, light, 3));
  outputs[0] = finish(g, &im, result);
}

void mpg_compose_image_random_lighting(mpg_gradient *g, const mpg_value *inputs,
                                       mpg_value *outputs) {
  const mpg_image_random_lighting_params *params = g->params;
  mpg_normal_like_params normal = {.loc = 0, .scale = params->alpha_std};
  image im = begin(g, inputs[0], true);
  mpg_value light[3];
  if (g->status != MPG_OK) return;
  if (im.num_channels == 1) {
    outputs[0] = finish(g, &im, mpg_times(g, im.data, 1));
    return;
  }
  for (int i = 0; i < 3; i++) {
    double column[3] = {components[0][i], components[1][i], components[2][i]};
    mpg_value one = mpg_emit_numbers(g, im.data, im.channels, im.working, (double[]){0}, 1);
    mpg_value alpha = mpg_emit1(g, MPG_OP__random_normal_like, &normal, one);
    light[i] =
        mpg_multiply(g, mpg_emit_numbers(g, im.data, im.channels, im.working, column, 3), alpha);
  }
  mpg_value all = mpg_add(g, mpg_add(g, light[0], light[1]), light[2]);
  outputs[0] = finish(g, &im, mpg_add(g, im.data, all));
}
