/* Helpers for ops that pool regions of interest. The data is (batch, channels, height, width). rois
 * is (regions, 5): each row is a region [image, xmin, ymin, xmax, ymax], with the index of its
 * image in the batch and its corners in image coordinates. These functions may be called from any
 * thread. */
#ifndef MPG_OP_VISION_REGIONS_H
#define MPG_OP_VISION_REGIONS_H

#include "op/op.h"

/* Returns true if data and rois (with `numbers` columns) have the shapes described above and the
 * same dtype. Otherwise makes the composition fail. */
bool mpg_is_regions(mpg_gradient *g, const mpg_value *inputs, int numbers);
/* Emits a column of rois in the shape (regions, 1, ...) with `ndim` axes. */
mpg_value mpg_emit_roi_number(mpg_gradient *g, mpg_value rois, int column, int ndim);
/* Emits the image index of each region as int32. */
mpg_value mpg_emit_roi_image(mpg_gradient *g, mpg_value rois, int ndim);
/* Emits 1 for regions whose image index is inside the batch, otherwise 0, in the dtype of rois. */
mpg_value mpg_emit_roi_there(mpg_gradient *g, mpg_value rois, int64_t pictures, int ndim);
/* Emits 1 if low <= a <= high, otherwise 0. */
mpg_value mpg_emit_within(mpg_gradient *g, mpg_value a, double low, double high);

#endif
