/* Selects values to recompute, so that a plan fits in a memory budget.
 *
 * Ownership: the caller owns the budget. Threads: callers hold the host lock.
 */
#ifndef MPG_COMPILE_SAVED_RECOMPUTE_BUDGET_H
#define MPG_COMPILE_SAVED_RECOMPUTE_BUDGET_H

#include "compile/compiled.h"

/* Limit on the planned bytes of a device, for the forward and backward phases together. */
typedef struct mpg_memory_limit {
  mpg_device_id device; /* type 0 means all devices without their own limit */
  size_t bytes;
} mpg_memory_limit;
typedef struct mpg_memory_budget {
  mpg_memory_limit *limits;
  uint32_t count;
} mpg_memory_budget;

/* Plans both phases for the graph's current recompute regions. The caller zeroes *plan. */
typedef mpg_status (*mpg_measure)(mpg_compiled *compiled, mpg_plan *plan);
/* Assigns recompute regions to nodes until the plan fits the budget, with as little recomputation
 * as possible. If the plan cannot fit, fails with an error that lists the bytes needed on each
 * device over its limit. */
mpg_status mpg_compiled_fit(mpg_compiled *compiled, const mpg_memory_budget *budget,
                            mpg_measure measure);

#endif
