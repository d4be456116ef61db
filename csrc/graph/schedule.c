/* Which order a phase runs in: each change of the order is weighed by its plan. */
#include "graph/fuse.h"
#include "graph/plan.h"

/* Of both phases: a backward plan begins with the blocks of the forward plan. */
static size_t planned_bytes(const mpg_plan *plan, mpg_device_id device) {
  size_t bytes = 0;
  for (uint32_t i = 0; i < plan->num_blocks; i++)
    if (mpg_device_id_equal(plan->devices[plan->blocks[i].device], device)) bytes += plan->blocks[i].size;
  return bytes;
}

/* Takes the order `other` and its plan instead, unless that costs a device more than one `slack`-th of its memory. */
static mpg_status take_if_small(const mpg_plan_request *plain, mpg_order *other, size_t slack, mpg_order *order, mpg_plan *plan) {
  mpg_plan_request request = *plain;
  mpg_plan other_plan = {0};
  request.order = other;
  MPG_TRY(mpg_plan_make(&request, &other_plan));
  bool small = true;
  for (uint32_t i = 0; i < plan->num_devices; i++) {
    size_t before = planned_bytes(plan, plan->devices[i]), after = planned_bytes(&other_plan, plan->devices[i]);
    small = small && after <= before + (slack ? before / slack : 0);
  }
  if (small) {
    mpg_order order_before = *order;
    mpg_plan plan_before = *plan;
    *order = *other;
    *plan = other_plan;
    *other = order_before;
    other_plan = plan_before;
  }
  mpg_plan_free(&other_plan);
  return MPG_OK;
}

mpg_status mpg_schedule(const mpg_plan_request *request, mpg_order *order, bool hurry, mpg_plan *plan) {
  mpg_order other = {0};
  bool changed = false;
  mpg_status status = MPG_OK;
  MPG_GOTO(mpg_plan_make(request, plan));
  if (hurry) {
    MPG_GOTO(mpg_order_hurry(request->graph, order, &other, &changed));
    if (changed) MPG_GOTO(take_if_small(request, &other, 50, order, plan));
    mpg_order_free(&other);
  }
  MPG_GOTO(mpg_graph_fuse(request->graph, order, request->external, request->saved, &other, &changed));
  if (changed) MPG_GOTO(take_if_small(request, &other, 0, order, plan));
fail:
  mpg_order_free(&other);
  if (status != MPG_OK) mpg_plan_free(plan);
  return status;
}
