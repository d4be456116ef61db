/* Helpers that ops of regions of interest share: (regions, [picture, xmin, ymin, xmax, ymax]) in
 * units of the picture, of data (batch, channels, height, width). Any thread may call. */
#ifndef MPG_OP_VISION_REGIONS_H
#define MPG_OP_VISION_REGIONS_H

#include "op/op.h"

/* Whether data and rois (of so many numbers each) have such shapes and one dtype; else the
 * composition fails and says so. */
bool mpg_is_regions(mpg_gradient *g, const mpg_value *inputs, int numbers);
/* One number of each region, (regions, 1, ...) with `ndim` axes. */
mpg_value mpg_emit_roi_number(mpg_gradient *g, mpg_value rois, int column, int ndim);
/* The picture of each region as int32, and 1 where there is such a picture, in the dtype of rois.
 */
mpg_value mpg_emit_roi_picture(mpg_gradient *g, mpg_value rois, int ndim);
mpg_value mpg_emit_roi_there(mpg_gradient *g, mpg_value rois, int64_t pictures, int ndim);
/* 1 where low <= a <= high. */
mpg_value mpg_emit_within(mpg_gradient *g, mpg_value a, double low, double high);

#endif
