/* Functions of float and double that templates call for either type. Include in .cu files only. */
#ifndef KERNELS_CUDA_SCALAR_H
#define KERNELS_CUDA_SCALAR_H

#include "kernels/cuda/cuda.h"

MPG_HOST_DEVICE float mpg_exp_of(float x) { return expf(x); }
MPG_HOST_DEVICE double mpg_exp_of(double x) { return exp(x); }
MPG_HOST_DEVICE float mpg_log_of(float x) { return logf(x); }
MPG_HOST_DEVICE double mpg_log_of(double x) { return log(x); }
/* Returns x * y + sum, rounded once. */
MPG_HOST_DEVICE float mpg_fma_of(float x, float y, float sum) { return fmaf(x, y, sum); }
MPG_HOST_DEVICE double mpg_fma_of(double x, double y, double sum) { return fma(x, y, sum); }

/* Maximum that ignores NaN in its second argument, for the scores of a softmax. A NaN still reaches
 * the results, through the sum of exponentials. */
struct mpg_larger_score {
  template <class C>
  MPG_MEMBER C operator()(C a, C b) const {
    return b > a ? b : a;
  }
};

#endif
