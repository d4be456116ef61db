/* Parameter updates for many weights on one device, prepared once and called at every step.
 * Preparation checks the arrays and creates their views, so a call only passes a few numbers,
 * collects the dependencies of each array, and records its new use.
 *
 * The op must be one that updates several weights at once, such as `multi_sgd_update`. Its kernel
 * runs several times if its lists of rates are too short for all weights.
 *
 * Ownership: the update holds references to its arrays until mpg_multi_update_release. Queued work
 * holds a reference to the views and numbers, but not to the arrays, whose memory remains valid
 * because memory is released in program order. Threads: callers hold the host lock.
 */
#ifndef MPG_OP_MULTI_UPDATE_H
#define MPG_OP_MULTI_UPDATE_H

#include "op/invoke.h"

typedef struct mpg_multi_update mpg_multi_update;

/* Creates an update. `arrays` holds `per_weight` arrays for each weight: the weight, its gradient
 * and its states. `factors` holds two numbers for each weight: the factors of the learning rate and
 * of the weight decay. Fails with MPG_VALUE_ERROR if the op does not update several weights or if
 * arrays share memory. */
mpg_status mpg_multi_update_make(const mpg_op *op, const mpg_tensor *arrays, uint32_t num_weights,
                                 uint32_t per_weight, const double *factors,
                                 mpg_multi_update **update);
void mpg_multi_update_release(mpg_multi_update *update); /* NULL is allowed */
/* Returns the arrays, in the order passed to mpg_multi_update_make. */
const mpg_tensor *mpg_multi_update_arrays(const mpg_multi_update *update, uint32_t *count);

/* Runs the update with the op's `params`. For each weight, the learning rate is
 * lr * factor * correction and the weight decay is wd * factor. */
mpg_status mpg_multi_update_call(mpg_multi_update *update, const void *params, double lr,
                                 double correction, double wd, uint32_t scope);

#endif
