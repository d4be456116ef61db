/* Geometry of convolutions and poolings, shared by inference and the kernels of all backends. These
 * are plain values, and the functions may be called from any thread.
 */
#ifndef MPG_OP_LAYERS_CONVOLUTION_H
#define MPG_OP_LAYERS_CONVOLUTION_H

#include "op/op.h"
#include "op/layers/packed.h"

enum { MPG_MAX_SPATIAL = 3, MPG_POOLING_INDEX_NONE = 255 };
enum { MPG_POOL_AVG, MPG_POOL_LP, MPG_POOL_MAX, MPG_POOL_SUM }; /* values of `pool_type` */

/* A sliding window. Along each spatial axis, it takes `out` positions over `in` elements. */
typedef struct mpg_window {
  /* Number of spatial axes, 1 to 3. An int64_t, so that the struct has no padding and windows can
   * be compared as bytes. */
  int64_t ndim;
  int64_t in[MPG_MAX_SPATIAL], out[MPG_MAX_SPATIAL], kernel[MPG_MAX_SPATIAL];
  int64_t stride[MPG_MAX_SPATIAL], dilate[MPG_MAX_SPATIAL], pad[MPG_MAX_SPATIAL];
} mpg_window;

/* Order of the axes of data, result and weight. These are the values of the parameter `layout` of
 * the backward ops. */
typedef enum mpg_layout {
  MPG_CHANNELS_FIRST, /* (batch, channels, space...) and (filters, channels / groups, kernel...) */
  MPG_CHANNELS_LAST,  /* (batch, space..., channels) and (filters, kernel..., channels / groups) */
  MPG_CHANNELS_LAST_DATA, /* (batch, space..., channels), with a channels-first weight */
} mpg_layout;

/* A convolution of data (batch, channels, in...) with weight (filters, channels / groups,
 * kernel...), in one of the layouts. */
typedef struct mpg_convolution {
  int64_t batch, channels, filters, groups;
  mpg_layout layout;
  mpg_window window;
} mpg_convolution;

/* Converts the parameter `layout` of Convolution, Deconvolution or Pooling. -1 (None) means
 * channels-first. */
mpg_layout mpg_layout_of(int param);
/* mpg_channels_first moves the last axis of a shape to index 1; mpg_channels_last moves it back. */
mpg_shape mpg_channels_first(const mpg_shape *shape);
mpg_shape mpg_channels_last(const mpg_shape *shape);
/* Convert the shape of data, or of a weight, from `layout` to channels-first. */
static inline mpg_shape mpg_data_first(const mpg_shape *shape, mpg_layout layout) {
  return layout == MPG_CHANNELS_FIRST ? *shape : mpg_channels_first(shape);
}
static inline mpg_shape mpg_weight_first(const mpg_shape *shape, mpg_layout layout) {
  return layout == MPG_CHANNELS_LAST ? mpg_channels_first(shape) : *shape;
}
/* Convert the shape of data, or of a weight, from channels-first to `layout`. */
static inline mpg_shape mpg_data_laid(const mpg_shape *first, mpg_layout layout) {
  return layout == MPG_CHANNELS_FIRST ? *first : mpg_channels_last(first);
}
static inline mpg_shape mpg_weight_laid(const mpg_shape *first, mpg_layout layout) {
  return layout == MPG_CHANNELS_LAST ? mpg_channels_last(first) : *first;
}

/* Returns element i of an optional tuple, or `value` if the tuple is empty or None. */
static inline int64_t mpg_tuple_at(const mpg_tuple *tuple, int i, int64_t value) {
  return tuple->count > 0 ? tuple->values[i] : value;
}

/* Fills *c from the shapes of data, weight and output in `layout`. The shapes must be known and
 * consistent, as they are after inference. */
void mpg_convolution_set(mpg_convolution *c, mpg_layout layout, const mpg_shape *data,
                         const mpg_shape *weight, const mpg_shape *out, const mpg_tuple *stride,
                         const mpg_tuple *dilate, const mpg_tuple *pad, int64_t groups);
/* Returns the layout of a Convolution (also in its channels-last form), a Deconvolution, or one of
 * their backward ops. */
mpg_layout mpg_convolution_layout(const mpg_op *op, const void *params);
/* Convert the parameters of a Convolution to those of a _packed_convolution, and back. Parameters
 * that the source lacks get their defaults. mpg_packed_elements returns the number of floats in a
 * packed weight (op/layers/packed.h), which has room for layouts in blocks of 16 and 64
 * channels. */
void mpg_packed_params_from(mpg_packed_convolution_params *to, const mpg_convolution_params *from);
void mpg_packed_params_to(const mpg_packed_convolution_params *from, mpg_convolution_params *to);
int64_t mpg_packed_elements(const mpg_packed_convolution_params *p, int64_t channels);
mpg_shape mpg_packed_weight_shape(const mpg_packed_convolution_params *p, int64_t channels);
void mpg_packed_convolution_set(mpg_convolution *c, const mpg_packed_convolution_params *p,
                                const mpg_shape *data);
/* Winograd convolution F(2x2, 3x3) (winograd.c): a 3x3 convolution of data (batch, height, width,
 * channels), in tiles of 2x2 results. Channels and filters are multiples of MPG_WINOGRAD_GROUP. The
 * packed weight has 16 floats per channel and filter, in an order that the backend defines. */
enum { MPG_WINOGRAD_GROUP = 16 };
typedef struct mpg_winograd {
  int64_t batch, channels, filters, in_h, in_w, out_h, out_w, pad_h, pad_w;
  int64_t tiles_h, tiles_w, tiles; /* tiles per sample along h and w; total number of tiles */
} mpg_winograd;
void mpg_winograd_set(mpg_winograd *w, const mpg_shape *data, int64_t filters,
                      const mpg_tuple *pad);
/* Copies the parameters that the two structs share. */
void mpg_winograd_params_from(mpg_winograd_params *to, const mpg_convolution_params *from);
/* True if Winograd is faster for this convolution and its gradients. `packed` means that the weight
 * is packed only once, not in every call. */
bool mpg_winograd_pays(const mpg_convolution *c, bool packed);
/* True if the transformed inputs of all tiles fit in the L3 cache but the weights do not fit in the
 * L2 cache. Threads then split the filters instead of the tiles, so that each weight is read
 * once. */
static inline bool mpg_winograd_shares(const mpg_winograd *w) {
  return w->tiles * w->channels <= 1 << 17 && w->channels * w->filters > 1 << 16;
}
/* Emits the gradient of a bias: the sum of `grad` over all axes except the channels. */
mpg_value mpg_emit_channel_sum(mpg_gradient *g, mpg_value grad, mpg_layout layout);
/* Computes the padding of a deconvolution: the parameter `pad`, or the padding that target_shape
 * requires. `data` and `out` are channels-first. */
void mpg_deconvolution_pads(const mpg_deconvolution_params *p, const mpg_shape *data,
                            const mpg_shape *out, mpg_tuple *pads);
/* Computes the window of a pooling from the shapes of data and output. */
void mpg_pooling_window(const mpg_pooling_params *p, const mpg_shape *data, const mpg_shape *out,
                        mpg_window *window);
/* Returns the window, extended with leading axes of size 1 to at least `ndim` axes (at most
 * MPG_MAX_SPATIAL). Unused array elements are 0. */
mpg_window mpg_window_with_axes(const mpg_window *window, int64_t ndim);

static inline int64_t mpg_window_product(const int64_t *sizes, int64_t ndim) {
  int64_t size = 1;
  for (int i = 0; i < ndim; i++) size *= sizes[i];
  return size;
}

#endif
