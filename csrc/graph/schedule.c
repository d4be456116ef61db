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

/* Takes the order `other` and its plan instead, unless that costs a device more than one `slack`-th of its memory (0: anything). */
static mpg_status take_if_small(const mpg_plan_request *plain, mpg_order *other, size_t slack, mpg_order *order, mpg_plan *plan, bool *taken) {
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
  *taken = small;
  return MPG_OK;
}

/* Takes the fastest of the orders in which devices wait less for each other that memory allows. */
static mpg_status wait_less(const mpg_plan_request *request, mpg_order *order, mpg_plan *plan) {
  mpg_order faster[2] = {{0}};
  double seconds[3] = {0};
  bool crosses = false, taken = false;
  mpg_status status = MPG_OK;
  for (size_t k = 0; k < order->count && !crosses; k++) crosses = mpg_node_crosses(request->graph, &request->graph->nodes[order->nodes[k]]);
  if (!crosses) return MPG_OK;
  MPG_GOTO(mpg_order_for_time(request, faster, seconds));
  int best = seconds[2] > 0 && seconds[2] < seconds[1] ? 2 : 1;
  for (int tries = 0; tries < 2 && !taken; tries++, best = 3 - best)
    if (seconds[best] > 0 && seconds[best] < seconds[0]) MPG_GOTO(take_if_small(request, &faster[best - 1], 50, order, plan, &taken));
fail:
  mpg_order_free(&faster[0]);
  mpg_order_free(&faster[1]);
  return status;
}

mpg_status mpg_schedule(const mpg_plan_request *request, mpg_order *order, bool free_order, mpg_plan *plan) {
  mpg_order other = {0};
  bool changed = false, taken;
  mpg_status status = MPG_OK;
  if (free_order) {
    MPG_GOTO(mpg_order_for_memory(request, &other, &changed));
    if (changed) {
      mpg_order_free(order);
      *order = other;
      other = (mpg_order){0};
    }
  }
  MPG_GOTO(mpg_plan_make(request, plan));
  if (free_order) MPG_GOTO(wait_less(request, order, plan));
  if (request->apart) goto fail;
  MPG_GOTO(mpg_graph_fuse(request->graph, order, request->external, request->saved, &other, &changed));
  if (changed) MPG_GOTO(take_if_small(request, &other, 0, order, plan, &taken));
fail:
  mpg_order_free(&other);
  if (status != MPG_OK) mpg_plan_free(plan);
  return status;
}
