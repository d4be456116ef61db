/* Queuing kernels: what a queued op is made of, and the points that work waits for.
 *
 * An op's task is the payload of its submission: the kernel, the views of its arrays and its
 * parameters, all by value, so that queued work refers to nothing of its caller's. Tasks are made
 * by whoever submits, with the host lock, and run by the device's worker.
 */
#ifndef MPG_OP_SUBMIT_H
#define MPG_OP_SUBMIT_H

#include "op/invoke.h"

size_t mpg_op_task_size(const mpg_invocation *inv);
/* task: mpg_op_task_size bytes, aligned to 16. source: of a copy from another device, else NULL. */
void mpg_op_task_fill(void *task, const mpg_invocation *inv, mpg_kernel_fn kernel,
                      const mpg_view *views, mpg_random_key random, mpg_device *source);
mpg_status mpg_op_task_work(mpg_run *run, void *task);

/* Work that only waits for its points. */
mpg_status mpg_wait_work(mpg_run *run, void *payload);

/* One more point to wait for, unless it is reached and has not failed, or is known; room was made.
 * The number of points then. */
static inline int mpg_point_add(mpg_point *points, int count, mpg_point point) {
  if (mpg_tick_reached(point.device, point.tick) &&
      !(point.data && atomic_load_explicit(&point.device->failed, memory_order_relaxed)))
    return count;
  for (int i = count - 1, tries = 0; i >= 0 && tries < 32; i--, tries++) {
    mpg_point *known = &points[i];
    if (known->device != point.device || known->tick != point.tick) continue;
    known->data |= point.data;
    return count;
  }
  points[count] = point;
  return count + 1;
}

#endif
