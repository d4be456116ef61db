/* Exchange of SyncBatchNorm's statistics and gradients between replicas (op _replicas), shared by
 * the kernels of all devices. */
#ifndef KERNELS_COMMON_REPLICAS_H
#define KERNELS_COMMON_REPLICAS_H

#include <stdio.h>
#include <string.h>

#include "device/rendezvous.h"
#include "op/kernel.h"

/* Sets output[i] to the sum over all replicas of element i of row `place` in their data. Adds in
 * the order of the replicas, so that the sums are deterministic. T is the element type. */
#define SUM_ROWS(T)                                                              \
  for (int64_t i = 0; i < count; i++) {                                          \
    double sum = 0;                                                              \
    for (int r = 0; r < p->ndev; r++)                                            \
      sum += ((const T *)mpg_rendezvous_data(rendezvous, r))[place * count + i]; \
    ((T *)output)[i] = (T)sum;                                                   \
  }

/* Runs a _replicas call on buffers in host memory. Blocks until all replicas have joined. */
static mpg_status mpg_replicas_exchange(const mpg_kernel_call *call, const void *data,
                                        void *output) {
  const mpg_replicas_params *p = call->params;
  const mpg_desc *in = &call->inputs[0].desc;
  int64_t count = mpg_shape_size(&call->outputs[0].desc.shape);
  size_t size = (size_t)mpg_shape_size(&in->shape) * mpg_dtype_size(in->dtype);
  char shape[MPG_SHAPE_TEXT_SIZE], form[MPG_SHAPE_TEXT_SIZE + 32];
  mpg_rendezvous *rendezvous;
  int place;
  if (p->ndev == 1) {
    memcpy(output, data, size);
    return MPG_OK;
  }
  snprintf(form, sizeof form, "%s %s", mpg_dtype_name(in->dtype),
           mpg_shape_text(&in->shape, shape, sizeof shape));
  MPG_TRY(mpg_rendezvous_join(&(mpg_participant){.device = call->device,
                                                 .key = p->key,
                                                 .who = p->sum ? "gradients of SyncBatchNorm"
                                                               : "statistics of SyncBatchNorm",
                                                 .count = (int)p->ndev,
                                                 .form = form,
                                                 .data = data,
                                                 .size = size},
                              &rendezvous, &place));
  if (!p->sum)
    for (int r = 0; r < p->ndev; r++)
      memcpy((char *)output + (size_t)r * size, mpg_rendezvous_data(rendezvous, r), size);
  else if (in->dtype == MPG_FLOAT32)
    SUM_ROWS(float)
  else
    SUM_ROWS(double)
  mpg_rendezvous_leave(rendezvous);
  return MPG_OK;
}

#endif
