/* Element access to floating-point arrays through double. Loads are exact for every dtype. Stores
 * to 16-bit dtypes round to float first. These functions are stateless and may be called from any
 * thread. */
#ifndef KERNELS_COMMON_REAL_H
#define KERNELS_COMMON_REAL_H

#include "kernels/common/half.h"
#include "kernels/common/view.h"

MPG_HOST_DEVICE double mpg_real_at(const mpg_view *view, int64_t i) {
  switch (view->desc.dtype) {
    case MPG_FLOAT32: return ((const float *)view->data)[i];
    case MPG_FLOAT64: return ((const double *)view->data)[i];
    case MPG_FLOAT16: return mpg_half_to_float(((const uint16_t *)view->data)[i]);
    default: return mpg_bfloat16_to_float(((const uint16_t *)view->data)[i]);
  }
}

MPG_HOST_DEVICE void mpg_real_store(const mpg_view *view, int64_t i, double value) {
  switch (view->desc.dtype) {
    case MPG_FLOAT32: ((float *)view->data)[i] = (float)value; return;
    case MPG_FLOAT64: ((double *)view->data)[i] = value; return;
    case MPG_FLOAT16: ((uint16_t *)view->data)[i] = mpg_float_to_half((float)value); return;
    default: ((uint16_t *)view->data)[i] = mpg_float_to_bfloat16((float)value); return;
  }
}

#endif
