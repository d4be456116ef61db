/* Chooses the execution order of a phase. A change to the order is accepted only if its memory
 * plan is small enough. */
#include <string.h>

#include "graph/schedule/fuse.h"
#include "graph/schedule/plan.h"

enum { MEMORY_FOR_TIME = 50 }; /* a faster order may take 1/50 more memory on a device */

/* Replaces the order and its plan with `other` and sets *taken to true, unless `other` needs over
 * 1/MEMORY_FOR_TIME more memory on a device. */
static mpg_status take_if_small(const mpg_plan_request *plain, mpg_order *other, mpg_order *order,
                                mpg_plan *plan, bool *taken) {
  mpg_plan_request request = *plain;
  mpg_plan other_plan = {0};
  request.order = other;
  MPG_TRY(mpg_plan_make(&request, &other_plan));
  bool small = true;
  for (uint32_t i = 0; i < plan->num_devices; i++) {
    size_t before = mpg_plan_bytes(plan, plan->devices[i]),
           after = mpg_plan_bytes(&other_plan, plan->devices[i]);
    small = small && after <= before + before / MEMORY_FOR_TIME;
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

/* Tries the orders in which devices wait less, and takes the fastest one that memory allows. */
static mpg_status wait_less(const mpg_plan_request *request, mpg_order *order, mpg_plan *plan) {
  mpg_order faster[MPG_FASTER_ORDERS] = {{0}};
  double seconds[1 + MPG_FASTER_ORDERS] = {0};
  bool crosses = false, taken = false;
  mpg_status status = MPG_OK;
  for (size_t k = 0; k < order->count && !crosses; k++)
    crosses = mpg_node_crosses(request->graph, &request->graph->nodes[order->nodes[k]]);
  if (!crosses) return MPG_OK;
  MPG_GOTO(mpg_order_for_time(request, faster, seconds));
  while (!taken) {
    int best = 0;
    for (int i = 1; i <= MPG_FASTER_ORDERS; i++)
      if (seconds[i] > 0 && seconds[i] < seconds[best]) best = i;
    if (!best) break;
    MPG_GOTO(take_if_small(request, &faster[best - 1], order, plan, &taken));
    seconds[best] = 0; /* not tried again */
  }
fail:
  for (int i = 0; i < MPG_FASTER_ORDERS; i++) mpg_order_free(&faster[i]);
  return status;
}

/* Lets devices gather at the same time, if memory allows. */
static mpg_status gather_together(const mpg_plan_request *request, mpg_order *order,
                                  mpg_plan *plan) {
  size_t size = (order->count + 1) * sizeof *order->nodes;
  mpg_order other = {.nodes = mpg_malloc(size), .count = order->count};
  mpg_status status = MPG_OK;
  bool taken = false;
  if (!other.nodes) return mpg_out_of_host_memory(size);
  memcpy(other.nodes, order->nodes, order->count * sizeof *order->nodes);
  MPG_GOTO(mpg_order_together(request->graph, plan, &other));
  if (memcmp(other.nodes, order->nodes, order->count * sizeof *order->nodes))
    MPG_GOTO(take_if_small(request, &other, order, plan, &taken));
fail:
  mpg_order_free(&other);
  return status;
}

/* A trial of a fusion in which some nodes are left unfused. */
typedef struct trial {
  const mpg_plan_request *plain;
  mpg_plan_limits limits;
  uint8_t *kinds;  /* per node: mpg_fuse_kind */
  bool *unfused;   /* per node */
  mpg_order order; /* order of the latest trial; `plan` is a plan of it, maybe not the smallest */
  mpg_plan plan;
  /* `changed` means that the order has groups, and `small` that its plan is also within all limits.
   * over[i] means that the plan exceeds limit i. */
  bool changed, small, over[MPG_MAX_GRAPH_DEVICES];
  bool first; /* the first trial, whose plan is usually taken, so it is the smallest one */
} trial;

static mpg_status try_groups(trial *t) {
  mpg_plan_request request = *t->plain;
  mpg_order_free(&t->order);
  mpg_plan_free(&t->plan);
  MPG_TRY(mpg_graph_fuse(request.graph, request.order, request.external, request.saved, t->kinds,
                         t->unfused, &t->order, &t->changed));
  t->small = t->changed;
  if (!t->changed) return MPG_OK;
  request.order = &t->order;
  request.limits = t->first ? NULL : &t->limits;
  MPG_TRY(mpg_plan_make(&request, &t->plan));
  for (uint32_t i = 0; i < t->limits.count; i++) {
    uint32_t slot = mpg_plan_slot(&t->plan, t->limits.devices[i]);
    t->over[i] = (slot != UINT32_MAX && t->plan.over[slot]) ||
                 mpg_plan_bytes(&t->plan, t->limits.devices[i]) > t->limits.bytes[i];
    t->small = t->small && !t->over[i];
  }
  return MPG_OK;
}

/* A group as a range in a copied list of nodes. The range stays valid when other groups change. */
typedef struct members {
  uint32_t first, count; /* range in grouping.nodes */
  uint32_t limit;        /* index of its device among the limits */
} members;

typedef struct grouping {
  members *groups;
  uint32_t *nodes;
  uint32_t num_groups;
} grouping;

static mpg_status note_groups(const trial *t, grouping *g) {
  const mpg_fusion *fusion = t->order.fusion;
  g->groups = mpg_malloc((fusion->num_groups + 1) * sizeof *g->groups);
  g->nodes = mpg_malloc((t->order.count + 1) * sizeof *g->nodes);
  if (!g->groups || !g->nodes) return mpg_out_of_host_memory(t->order.count * sizeof *g->nodes);
  for (size_t k = 0; k < t->order.count; k++) g->nodes[k] = t->order.nodes[k];
  for (uint32_t i = 0; i < fusion->num_groups; i++) {
    members *group = &g->groups[g->num_groups++];
    *group = (members){fusion->groups[i].first, fusion->groups[i].count, 0};
    mpg_device_id device = t->plain->graph->nodes[g->nodes[group->first]].device;
    while (group->limit < t->limits.count &&
           !mpg_device_id_equal(t->limits.devices[group->limit], device))
      group->limit++;
  }
  return MPG_OK;
}

/* Sets whether the nodes of groups [first, first + count) on the device of `limit` are left
 * unfused. */
static void set_unfused(trial *t, const grouping *g, uint32_t limit, uint32_t first, uint32_t count,
                        bool unfused) {
  for (uint32_t i = first; i < first + count; i++)
    for (uint32_t k = 0; k < g->groups[i].count && g->groups[i].limit == limit; k++)
      t->unfused[g->nodes[g->groups[i].first + k]] = unfused;
}

/* Takes the order of the latest trial, and its plan if it is the smallest one. */
static void take_trial(trial *t, mpg_order *order, mpg_plan *plan) {
  mpg_order_free(order);
  mpg_plan_free(plan);
  *order = t->order;
  t->order = (mpg_order){0};
  if (!t->first) return;
  *plan = t->plan;
  t->plan = (mpg_plan){0};
}

/* Fuses as many groups of one device as its limit allows, by bisection. A set of groups that does
 * not fit is halved, until only single groups are left out or the tries are used up. */
static mpg_status add_groups(trial *t, const grouping *g, uint32_t limit, mpg_order *fused,
                             mpg_plan *plan) {
  enum { TRIES = 12 };
  struct {
    uint32_t first, count;
  } open[64];
  int num_open = 0;
  open[num_open].first = 0;
  open[num_open++].count = g->num_groups;
  for (int tries = 0; num_open && tries < TRIES;) {
    uint32_t first = open[--num_open].first, count = open[num_open].count, own = 0;
    for (uint32_t i = first; i < first + count; i++) own += g->groups[i].limit == limit;
    if (!own) continue;
    if (tries) { /* the full set is known not to fit */
      set_unfused(t, g, limit, first, count, false);
      MPG_TRY(try_groups(t));
      if (t->small) {
        take_trial(t, fused, plan);
        tries++;
        continue;
      }
      set_unfused(t, g, limit, first, count, true);
    }
    tries++;
    if (count < 2) continue;
    open[num_open].first = first + count / 2;
    open[num_open++].count = count - count / 2;
    open[num_open].first = first;
    open[num_open++].count = count / 2;
  }
  return MPG_OK;
}

/* Fuses as many groups as possible without enlarging the plan of any device. */
static mpg_status fuse(const mpg_plan_request *request, mpg_order *order, mpg_plan *plan) {
  trial t = {.plain = request, .first = true};
  grouping groups = {0};
  mpg_order fused = {0};
  mpg_plan fused_plan = {0};
  mpg_status status = MPG_OK;
  t.limits.count = plan->num_devices;
  for (uint32_t i = 0; i < plan->num_devices; i++) {
    t.limits.devices[i] = plan->devices[i];
    t.limits.bytes[i] = mpg_plan_bytes(plan, plan->devices[i]);
  }
  t.unfused = mpg_calloc(request->graph->num_nodes + 1, sizeof *t.unfused);
  t.kinds = mpg_calloc(request->graph->num_nodes + 1, sizeof *t.kinds);
  if (!t.unfused || !t.kinds) MPG_GOTO(mpg_out_of_host_memory(request->graph->num_nodes));
  for (size_t k = 0; k < order->count; k++) {
    uint32_t n = order->nodes[k];
    t.kinds[n] = (uint8_t)mpg_fuse_kind_of(request->graph, &request->graph->nodes[n]);
  }
  MPG_GOTO(try_groups(&t));
  if (t.changed && !t.small) {
    t.first = false;
    bool over[MPG_MAX_GRAPH_DEVICES] = {false};
    MPG_GOTO(note_groups(&t, &groups));
    /* Starts without groups on the devices whose plans are too large. add_groups then adds groups
     * to these devices. */
    for (uint32_t i = 0; i < t.limits.count && !t.small; i++) {
      if (!t.changed || !t.over[i]) continue;
      over[i] = true;
      set_unfused(&t, &groups, i, 0, groups.num_groups, true);
      MPG_GOTO(try_groups(&t));
    }
    if (t.small) take_trial(&t, &fused, &fused_plan);
    for (uint32_t i = 0; i < t.limits.count; i++)
      if (over[i]) MPG_GOTO(add_groups(&t, &groups, i, &fused, &fused_plan));
  } else if (t.small) {
    take_trial(&t, &fused, &fused_plan);
  }
  if (fused.count) {
    mpg_plan_request of_fused = *request;
    of_fused.order = &fused;
    if (!fused_plan.locations) MPG_GOTO(mpg_plan_make(&of_fused, &fused_plan));
    mpg_order_free(order);
    mpg_plan_free(plan);
    *order = fused;
    *plan = fused_plan;
    fused = (mpg_order){0};
    fused_plan = (mpg_plan){0};
  }
fail:
  mpg_order_free(&t.order);
  mpg_plan_free(&t.plan);
  mpg_order_free(&fused);
  mpg_plan_free(&fused_plan);
  mpg_free(t.unfused);
  mpg_free(t.kinds);
  mpg_free(groups.groups);
  mpg_free(groups.nodes);
  return status;
}

/* Makes the memory plan of *order (the request's order). Then changes both so that devices wait
 * less and ops are fused. */
static mpg_status improve(const mpg_plan_request *request, bool free_order, mpg_order *order,
                          mpg_plan *plan) {
  if (!order->segments) MPG_TRY(mpg_order_prefetch(request->graph, order));
  MPG_TRY(mpg_plan_make(request, plan));
  if (!order->segments) MPG_TRY(gather_together(request, order, plan));
  if (free_order) MPG_TRY(wait_less(request, order, plan));
  return request->unfused ? MPG_OK : fuse(request, order, plan);
}

static size_t total_bytes(const mpg_plan *plan) {
  size_t total = 0;
  for (uint32_t i = 0; i < plan->num_devices; i++) total += mpg_plan_bytes(plan, plan->devices[i]);
  return total;
}

/* Compares the final plans, because an order with fewer live bytes allows other fused groups, and
 * may end up with a larger plan. */
mpg_status mpg_schedule(const mpg_plan_request *request, mpg_order *order, bool free_order,
                        mpg_plan *plan) {
  mpg_order other = {0};
  mpg_plan other_plan = {0};
  bool changed = false;
  mpg_status status = MPG_OK;
  if (free_order) MPG_GOTO(mpg_order_for_memory(request, &other, &changed));
  MPG_GOTO(improve(request, free_order, order, plan));
  if (changed) {
    mpg_plan_request request_of_other = *request;
    request_of_other.order = &other;
    MPG_GOTO(improve(&request_of_other, free_order, &other, &other_plan));
    if (total_bytes(&other_plan) < total_bytes(plan)) {
      mpg_order order_before = *order;
      mpg_plan plan_before = *plan;
      *order = other;
      *plan = other_plan;
      other = order_before;
      other_plan = plan_before;
    }
  }
fail:
  mpg_order_free(&other);
  mpg_plan_free(&other_plan);
  if (status != MPG_OK) mpg_plan_free(plan);
  return status;
}
