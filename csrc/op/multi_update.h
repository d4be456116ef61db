/* A parameter update of many weights of one device, prepared once and called at every step: its
 * arrays are checked and their views made when it is prepared, so a call passes a few numbers, and
 * costs a look at each array's uses before its work is queued and another behind it.
 *
 * The op is one for several weights, `multi_sgd_update` and its like: its kernel runs as often as
 * its lists of rates need. Ownership: the update holds references to its arrays until
 * mpg_multi_update_release; queued work holds one to its views and numbers, and none to arrays,
 * whose memory goes back in program order. Threads: host lock.
 */
#ifndef MPG_OP_MULTI_UPDATE_H
#define MPG_OP_MULTI_UPDATE_H

#include "op/invoke.h"

typedef struct mpg_multi_update mpg_multi_update;

/* arrays: for each weight itself, its gradient, its states; `per_weight` in all. factors: for each
 * weight that of the learning rate and that of the weight decay. New. MPG_VALUE_ERROR where the op
 * is none for several weights or arrays share memory. */
mpg_status mpg_multi_update_make(const mpg_op *op, const mpg_tensor *arrays, uint32_t num_weights,
                                 uint32_t per_weight, const double *factors,
                                 mpg_multi_update **update);
void mpg_multi_update_release(mpg_multi_update *update); /* NULL is allowed */
const mpg_tensor *mpg_multi_update_arrays(const mpg_multi_update *update,
                                          uint32_t *count); /* in the order given */

/* params: the op's. For each weight the rates are lr * factor * correction and wd * factor. */
mpg_status mpg_multi_update_call(mpg_multi_update *update, const void *params, double lr,
                                 double correction, double wd, uint32_t scope);

#endif
