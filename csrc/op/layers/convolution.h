/* The geometry of convolutions and poolings, worked out once for inference and kernels of any
 * backend. Plain values; any thread.
 */
#ifndef MPG_OP_LAYERS_CONVOLUTION_H
#define MPG_OP_LAYERS_CONVOLUTION_H

#include "op/op.h"
#include "op/layers/packed.h"

enum { MPG_MAX_SPATIAL = 3, MPG_POOLING_INDEX_NONE = 255 };
enum { MPG_POOL_AVG, MPG_POOL_LP, MPG_POOL_MAX, MPG_POOL_SUM }; /* the words of `pool_type` */

/* A window that moves over `in` and is placed at `out` places, per spatial axis. */
typedef struct mpg_window {
  int64_t ndim; /* spatial axes, 1 to 3; of this type so that there is no padding and windows can be
                   compared as bytes */
  int64_t in[MPG_MAX_SPATIAL], out[MPG_MAX_SPATIAL], kernel[MPG_MAX_SPATIAL];
  int64_t stride[MPG_MAX_SPATIAL], dilate[MPG_MAX_SPATIAL], pad[MPG_MAX_SPATIAL];
} mpg_window;

/* The order of the axes of data and result, and of the weight. The words of the parameter `layout`
 * of the backward ops, in this order. */
typedef enum mpg_layout {
  MPG_CHANNELS_FIRST, /* (batch, channels, space...) and (filters, channels / groups, kernel...) */
  MPG_CHANNELS_LAST,  /* (batch, space..., channels) and (filters, kernel..., channels / groups) */
  MPG_CHANNELS_LAST_DATA, /* (batch, space..., channels), with the weight as channels-first has it
                           */
} mpg_layout;

/* A convolution of data (batch, channels, in...) with weight (filters, channels / groups,
 * kernel...), in one of the layouts. */
typedef struct mpg_convolution {
  int64_t batch, channels, filters, groups;
  mpg_layout layout;
  mpg_window window;
} mpg_convolution;

/* The layout that the parameter `layout` of Convolution, Deconvolution or Pooling names; -1 (None)
 * is channels-first. */
mpg_layout mpg_layout_of(int param);
/* The shape with its last axis moved behind the first, and the other way round. */
mpg_shape mpg_channels_first(const mpg_shape *shape);
mpg_shape mpg_channels_last(const mpg_shape *shape);
/* The channels-first shape of data, or of a weight. */
static inline mpg_shape mpg_data_first(const mpg_shape *shape, mpg_layout layout) {
  return layout == MPG_CHANNELS_FIRST ? *shape : mpg_channels_first(shape);
}
static inline mpg_shape mpg_weight_first(const mpg_shape *shape, mpg_layout layout) {
  return layout == MPG_CHANNELS_LAST ? mpg_channels_first(shape) : *shape;
}
static inline mpg_shape mpg_data_laid(const mpg_shape *first, mpg_layout layout) {
  return layout == MPG_CHANNELS_FIRST ? *first : mpg_channels_last(first);
}
static inline mpg_shape mpg_weight_laid(const mpg_shape *first, mpg_layout layout) {
  return layout == MPG_CHANNELS_LAST ? mpg_channels_last(first) : *first;
}

/* Element i of an optional tuple; `value` where the tuple is empty or None. */
static inline int64_t mpg_tuple_at(const mpg_tuple *tuple, int i, int64_t value) {
  return tuple->count > 0 ? tuple->values[i] : value;
}

/* The convolution whose data, weight and output have these shapes, in the layout (all known and
 * fitting: after inference). */
void mpg_convolution_set(mpg_convolution *c, mpg_layout layout, const mpg_shape *data,
                         const mpg_shape *weight, const mpg_shape *out, const mpg_tuple *stride,
                         const mpg_tuple *dilate, const mpg_tuple *pad, int64_t groups);
/* The layout of a Convolution, its channels-last form, a Deconvolution, or of their backward ops.
 */
mpg_layout mpg_convolution_layout(const mpg_op *op, const void *params);
/* A packed weight (op/layers/packed.h) has room for layouts in blocks of 16 and 64 channels. */
/* The packed form's parameters from a convolution's; those that it does not have are defaults. */
void mpg_packed_params_from(mpg_packed_convolution_params *to, const mpg_convolution_params *from);
void mpg_packed_params_to(const mpg_packed_convolution_params *from, mpg_convolution_params *to);
int64_t mpg_packed_elements(const mpg_packed_convolution_params *p, int64_t channels);
mpg_shape mpg_packed_weight_shape(const mpg_packed_convolution_params *p, int64_t channels);
void mpg_packed_convolution_set(mpg_convolution *c, const mpg_packed_convolution_params *p,
                                const mpg_shape *data);
/* Winograd's F(2x2, 3x3) (winograd.c): a convolution of 3x3 with data (batch, height, width,
 * channels), in tiles of 2x2 results. Channels and filters are multiples of MPG_WINOGRAD_GROUP. The
 * packed weight has 16 floats for each channel and filter, in an order of the backend's. */
enum { MPG_WINOGRAD_GROUP = 16 };
typedef struct mpg_winograd {
  int64_t batch, channels, filters, in_h, in_w, out_h, out_w, pad_h, pad_w;
  int64_t tiles_h, tiles_w, tiles; /* of a sample; all */
} mpg_winograd;
void mpg_winograd_set(mpg_winograd *w, const mpg_shape *data, int64_t filters,
                      const mpg_tuple *pad);
void mpg_winograd_params_from(mpg_winograd_params *to,
                              const mpg_convolution_params *from); /* those they have in common */
/* Whether a convolution is one that this way is faster for, forward and for its gradients. packed:
 * the weight is packed once, not for each call. */
bool mpg_winograd_pays(const mpg_convolution *c, bool packed);
/* Tiles so few that all transformed inputs stay in a cache of the third level, and weights too
 * large for one of the second: then threads share out the filters, not the tiles, and each weight
 * is read once. */
static inline bool mpg_winograd_shares(const mpg_winograd *w) {
  return w->tiles * w->channels <= 1 << 17 && w->channels * w->filters > 1 << 16;
}
/* The gradient of a bias: the sum of `grad` over all axes but the channels. */
mpg_value mpg_emit_channel_sum(mpg_gradient *g, mpg_value grad, mpg_layout layout);
/* The padding of a deconvolution: its parameter, or the one that target_shape needs. data, out:
 * channels-first. */
void mpg_deconvolution_pads(const mpg_deconvolution_params *p, const mpg_shape *data,
                            const mpg_shape *out, mpg_tuple *pads);
/* The window of a pooling from the data's to the output's shape. */
void mpg_pooling_window(const mpg_pooling_params *p, const mpg_shape *data, const mpg_shape *out,
                        mpg_window *window);
/* The same window with at least that many axes (at most MPG_MAX_SPATIAL): leading ones of size 1
 * are put in front. Axes beyond are 0. */
mpg_window mpg_window_with_axes(const mpg_window *window, int64_t ndim);

static inline int64_t mpg_window_product(const int64_t *sizes, int64_t ndim) {
  int64_t size = 1;
  for (int i = 0; i < ndim; i++) size *= sizes[i];
  return size;
}

#endif
