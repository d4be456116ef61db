/* Arrays whose element type is known at compile time (mpg_typed<T>) or only at run time
 * (mpg_untyped). Kernels are templates over both: common dtypes have fast instances, and all other
 * dtypes share one instance. Include in .cu files only.
 */
#ifndef KERNELS_CUDA_ACCESS_H
#define KERNELS_CUDA_ACCESS_H

#include "kernels/cuda/cuda.h"
#include "kernels/common/index.h"

template <class T>
struct mpg_typed {
  T *data;
  template <class C>
  MPG_MEMBER C load(int64_t i) const {
    return mpg_to<C>(data[i]);
  }
  template <class C>
  MPG_MEMBER void store(int64_t i, C value) const {
    data[i] = mpg_to<T>(value);
  }
};

struct mpg_untyped {
  void *data;
  mpg_dtype dtype;
  template <class C>
  MPG_MEMBER C load(int64_t i) const {
    return mpg_load_any<C>(dtype, data, i);
  }
  template <class C>
  MPG_MEMBER void store(int64_t i, C value) const {
    mpg_store_any(dtype, data, i, value);
  }
};

template <class T>
static inline mpg_typed<T> mpg_typed_view(const mpg_view *view) {
  return {(T *)view->data};
}
static inline mpg_untyped mpg_untyped_view(const mpg_view *view) {
  return {view->data, view->desc.dtype};
}

/* Reads an index of any numeric dtype, like kernels/cpu/index.h: truncates, saturates to int64_t,
 * and maps NaN to 0. */
MPG_HOST_DEVICE int64_t mpg_cuda_index_at(const mpg_untyped &indices, int64_t i) {
  switch (indices.dtype) {
    case MPG_FLOAT32:
    case MPG_FLOAT64:
    case MPG_FLOAT16:
    case MPG_BFLOAT16: return mpg_whole(indices.load<double>(i));
    default: return indices.load<int64_t>(i);
  }
}

#endif
