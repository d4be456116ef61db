/* Loads and stores indices of any numeric dtype. These functions are stateless and may be called
 * from any thread. */
#ifndef KERNELS_CPU_INDEX_H
#define KERNELS_CPU_INDEX_H

#include "kernels/common/index.h"
#include "kernels/cpu/cpu.h"
#include "kernels/common/half.h"

static inline int64_t mpg_index_at(const mpg_view *view, int64_t i) {
  switch (view->desc.dtype) {
    case MPG_FLOAT32: return mpg_whole(((const float *)view->data)[i]);
    case MPG_FLOAT64: return mpg_whole(((const double *)view->data)[i]);
    case MPG_FLOAT16: return mpg_whole(mpg_half_to_float(((const uint16_t *)view->data)[i]));
    case MPG_BFLOAT16: return mpg_whole(mpg_bfloat16_to_float(((const uint16_t *)view->data)[i]));
    case MPG_INT32: return ((const int32_t *)view->data)[i];
    case MPG_INT64: return ((const int64_t *)view->data)[i];
    case MPG_INT8: return ((const int8_t *)view->data)[i];
    default: return ((const uint8_t *)view->data)[i];
  }
}

/* Stores an integer as an element of the view's dtype. */
static inline void mpg_index_store(const mpg_view *view, int64_t i, int64_t value) {
  switch (view->desc.dtype) {
    case MPG_FLOAT32: ((float *)view->data)[i] = (float)value; return;
    case MPG_FLOAT64: ((double *)view->data)[i] = (double)value; return;
    case MPG_FLOAT16: ((uint16_t *)view->data)[i] = mpg_float_to_half((float)value); return;
    case MPG_BFLOAT16: ((uint16_t *)view->data)[i] = mpg_float_to_bfloat16((float)value); return;
    case MPG_INT32: ((int32_t *)view->data)[i] = (int32_t)value; return;
    case MPG_INT64: ((int64_t *)view->data)[i] = value; return;
    case MPG_INT8: ((int8_t *)view->data)[i] = (int8_t)value; return;
    default: ((uint8_t *)view->data)[i] = (uint8_t)value; return;
  }
}

#endif
