/* Gradients of a pipelined backward pass whose queueing failed in the middle. Host lock. */
#ifndef MPG_COMPILE_PARTIAL_GRADIENTS_H
#define MPG_COMPILE_PARTIAL_GRADIENTS_H

#include "compile/pipeline_run.h"

/* Gradients to which some of the items' micro-batches are added, and others never will be: reading
 * them fails, with this thread's present error text, until they are written anew. */
void mpg_fail_partial_gradients(const mpg_pipeline_run *run, const mpg_micro_batch_item *items,
                                size_t count, mpg_status status);

#endif
