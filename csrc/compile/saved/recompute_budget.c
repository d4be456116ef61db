/* Selects values to recompute, so that a plan fits in a memory budget. */
#include <stdio.h>
#include <string.h>

#include "base/workspace.h"
#include "compile/saved/recompute_budget.h"
#include "graph/gradient/recompute.h"
#include "graph/ir/analysis.h"

/* A choice of the nodes to recompute:
 *   - CHOOSE_CHEAP: cheap nodes (in-place ops and views) among the first `amount` nodes.
 *   - CHOOSE_MEDIUM: all of the first `amount` nodes except copies and expensive nodes (is_dear).
 *   - CHOOSE_SEGMENTS: all nodes of the first `amount` segments. The graph is cut into `segments`
 *     runs of consecutive nodes with about equal bytes. Values used across segments are kept. */
typedef enum choice_kind { CHOOSE_CHEAP, CHOOSE_MEDIUM, CHOOSE_SEGMENTS } choice_kind;
typedef struct choice {
  choice_kind kind;
  size_t segments, amount;
} choice;

typedef struct chooser {
  mpg_compiled *c;
  const mpg_memory_budget *budget;
  mpg_measure measure;
  uint32_t *given;  /* per node: the region assigned by the user */
  uint8_t *classes; /* per node: the first choice_kind that recomputes it */
  size_t *weights;  /* per node: bytes of its outputs, which recomputing it saves */
  mpg_cost *costs;  /* per node */
  size_t *crossing; /* per node: bytes of forward values alive after it */
  size_t total;     /* sum of the weights */
  mpg_plan least;   /* the plan with the smallest excess so far */
  double excess;    /* maximum of planned / allowed bytes over the devices in `least` */
  mpg_workspace space;
} chooser;

static size_t allowed_on(const mpg_memory_budget *budget, mpg_device_id device) {
  size_t bytes = SIZE_MAX;
  for (uint32_t i = 0; i < budget->count; i++) {
    if (mpg_device_id_equal(budget->limits[i].device, device)) return budget->limits[i].bytes;
    if (budget->limits[i].device.type == 0) bytes = budget->limits[i].bytes;
  }
  return bytes;
}

static double excess_of(const mpg_plan *plan, const mpg_memory_budget *budget) {
  double worst = 0;
  for (uint32_t slot = 0; slot < plan->num_devices; slot++) {
    mpg_device_id device = plan->devices[slot];
    size_t planned = mpg_plan_bytes(plan, device), allowed = allowed_on(budget, device);
    double ratio = allowed ? (double)planned / (double)allowed : planned ? 1e300 : 0;
    if (ratio > worst) worst = ratio;
  }
  return worst;
}

/* True if recomputing the node is expensive relative to the memory saved, as for matrix products,
 * convolutions, pooling with large windows, and long sums. */
static bool is_dear(const mpg_graph *graph, const mpg_node *node, mpg_cost cost) {
  enum { FLOPS_PER_ELEMENT = 16 };
  double elements = 0;
  for (uint32_t i = 0; i < node->num_outputs; i++)
    elements += (double)mpg_shape_size(&graph->values[node->values + i].desc.shape);
  return cost.flops >= FLOPS_PER_ELEMENT * elements;
}

/* Returns the index of the last node that uses an output of node n; 0 if none does. */
static uint32_t last_use_of(const mpg_graph *graph, const mpg_analysis *facts, size_t n) {
  const mpg_node *node = &graph->nodes[n];
  uint32_t last = 0;
  for (uint32_t i = 0; i < node->num_outputs; i++)
    if (facts->last_use[node->values + i] > last) last = facts->last_use[node->values + i];
  return last;
}

/* Sets crossing[n] to the bytes computed by nodes up to n and used by later nodes. */
static mpg_status find_crossing(chooser *ch) {
  const mpg_graph *graph = &ch->c->graph;
  mpg_analysis facts = {0};
  size_t *end = mpg_workspace_take(&ch->space, graph->num_nodes, sizeof *end);
  MPG_TRY(mpg_workspace_check(&ch->space));
  MPG_TRY(mpg_analyse(graph, NULL, &facts));
  size_t *begin = ch->crossing, alive = 0;
  for (size_t n = 0; n < graph->num_nodes; n++) {
    uint32_t last = last_use_of(graph, &facts, n);
    if (!last) continue;
    begin[n] += ch->weights[n];
    end[last] += ch->weights[n];
  }
  for (size_t n = 0; n < graph->num_nodes; n++) ch->crossing[n] = alive += begin[n] - end[n];
  mpg_analysis_free(&facts);
  return MPG_OK;
}

static choice_kind class_of(const mpg_graph *graph, const mpg_node *node, mpg_cost cost) {
  if (!node->op || mpg_node_flag(node, MPG_OP_COPY) || is_dear(graph, node, cost))
    return CHOOSE_SEGMENTS;
  return mpg_node_flag(node, MPG_OP_INPLACE | MPG_OP_VIEW) ? CHOOSE_CHEAP : CHOOSE_MEDIUM;
}

static mpg_status begin(chooser *ch) {
  const mpg_graph *graph = &ch->c->graph;
  size_t count = graph->num_nodes;
  ch->given = mpg_workspace_take(&ch->space, count, sizeof *ch->given);
  ch->classes = mpg_workspace_take(&ch->space, count, sizeof *ch->classes);
  ch->weights = mpg_workspace_take(&ch->space, count, sizeof *ch->weights);
  ch->costs = mpg_workspace_take(&ch->space, count, sizeof *ch->costs);
  ch->crossing = mpg_workspace_take(&ch->space, count, sizeof *ch->crossing);
  MPG_TRY(mpg_workspace_check(&ch->space));
  MPG_TRY(mpg_graph_costs(graph, ch->costs));
  for (size_t n = 0; n < count; n++) {
    const mpg_node *node = &graph->nodes[n];
    ch->given[n] = node->recompute_region;
    ch->classes[n] = (uint8_t)class_of(graph, node, ch->costs[n]);
    for (uint32_t i = 0; i < node->num_outputs && !mpg_node_is_input(node); i++)
      ch->weights[n] += mpg_desc_bytes(&graph->values[node->values + i].desc);
    ch->total += ch->weights[n];
  }
  return find_crossing(ch);
}

static void end(chooser *ch) {
  mpg_workspace_free(&ch->space);
  mpg_plan_free(&ch->least);
}

/* Returns the last node of segment `number` (counted from 1) of `count`. If segments had equal
 * sizes, this one would end at number / count of the total bytes. Among the nodes within half a
 * segment of that point, picks the one after which the fewest bytes are alive. */
static size_t segment_end(const chooser *ch, const size_t *sums, size_t number, size_t count) {
  size_t nodes = ch->c->graph.num_nodes, low = 0, high = nodes - 1;
  double share = (double)ch->total / (double)count, from = share * ((double)number - 0.5),
         to = share * ((double)number + 0.5);
  while (low < high) { /* binary search for the first node with sums >= from */
    size_t middle = (low + high) / 2;
    if ((double)sums[middle] < from)
      low = middle + 1;
    else
      high = middle;
  }
  size_t best = low;
  for (size_t n = low; n < nodes && (double)sums[n] <= to; n++)
    if (ch->crossing[n] < ch->crossing[best]) best = n;
  return best;
}

static mpg_status apply(chooser *ch, choice choice) {
  mpg_graph *graph = &ch->c->graph;
  for (size_t n = 0; n < graph->num_nodes; n++) graph->nodes[n].recompute_region = ch->given[n];
  if (choice.kind != CHOOSE_SEGMENTS) {
    for (size_t n = 0; n < choice.amount; n++)
      if (!ch->given[n] && ch->classes[n] <= choice.kind)
        graph->nodes[n].recompute_region = MPG_RECOMPUTE_ANYWHERE;
    return MPG_OK;
  }
  size_t *sums = mpg_malloc((graph->num_nodes + 1) * sizeof *sums), sum = 0, first = 0;
  if (!sums) return mpg_out_of_host_memory(graph->num_nodes * sizeof *sums);
  for (size_t n = 0; n < graph->num_nodes; n++) sums[n] = sum += ch->weights[n];
  /* The last segment is never recomputed, because the backward phase reads its values first. */
  for (size_t s = 1; s <= choice.amount; s++) {
    size_t last = segment_end(ch, sums, s, choice.segments);
    for (size_t n = first; n <= last; n++)
      if (!ch->given[n])
        graph->nodes[n].recompute_region = graph->num_recompute_regions + (uint32_t)s;
    first = last + 1 > first ? last + 1 : first;
  }
  mpg_free(sums);
  return MPG_OK;
}

static mpg_status try_choice(chooser *ch, choice choice, bool *fits) {
  mpg_plan plan = {0};
  MPG_TRY(apply(ch, choice));
  MPG_TRY(ch->measure(ch->c, &plan));
  double excess = excess_of(&plan, ch->budget);
  *fits = excess <= 1;
  if (excess < ch->excess) {
    mpg_plan_free(&ch->least);
    ch->least = plan;
    ch->excess = excess;
  } else {
    mpg_plan_free(&plan);
  }
  return MPG_OK;
}

/* Reduces choice->amount, which must fit the budget, to the smallest amount that fits, by binary
 * search. */
static mpg_status reduce(chooser *ch, choice *choice) {
  size_t low = 1, high = choice->amount;
  while (low < high) {
    struct choice middle = *choice;
    middle.amount = (low + high) / 2;
    bool fits;
    MPG_TRY(try_choice(ch, middle, &fits));
    if (fits)
      high = middle.amount;
    else
      low = middle.amount + 1;
  }
  choice->amount = high;
  return MPG_OK;
}

static mpg_status fail_with(const chooser *ch) {
  char text[768];
  size_t used = 0;
  for (uint32_t slot = 0; slot < ch->least.num_devices && used + 96 < sizeof text; slot++) {
    mpg_device_id id = ch->least.devices[slot];
    size_t planned = mpg_plan_bytes(&ch->least, id), allowed = allowed_on(ch->budget, id);
    if (planned <= allowed) continue;
    used += (size_t)snprintf(text + used, sizeof text - used,
                             "%s%zu bytes on %s, of which %zu are allowed", used ? "; " : "",
                             planned, mpg_device_id_text(id).text, allowed);
  }
  return mpg_fail(MPG_ERROR,
                  "hybridize(recompute=...): the block does not fit into its memory budget. Even "
                  "with maximal recomputation it needs %s. Increase the budget, use smaller "
                  "batches, or move layers to another device",
                  text);
}

/* Returns the estimated time in seconds to recompute the nodes of the applied choice. */
static double work_of(const chooser *ch) {
  const mpg_graph *graph = &ch->c->graph;
  double work = 0;
  for (size_t n = 0; n < graph->num_nodes; n++)
    if (graph->nodes[n].recompute_region && !ch->given[n])
      work += mpg_node_seconds(graph, &graph->nodes[n], ch->costs[n]);
  return work;
}

static mpg_status choose(chooser *ch) {
  bool fits;
  size_t nodes = ch->c->graph.num_nodes;
  choice nothing = {CHOOSE_CHEAP, 0, 0}, best = nothing;
  double least = 0;
  MPG_TRY(try_choice(ch, nothing, &fits));
  if (fits) return MPG_OK;
  for (choice_kind kind = CHOOSE_CHEAP; kind <= CHOOSE_MEDIUM; kind++) {
    choice all = {kind, 0, nodes};
    MPG_TRY(try_choice(ch, all, &fits));
    if (!fits) continue;
    MPG_TRY(reduce(ch, &all));
    return apply(ch, all);
  }
  for (size_t segments = 2; segments <= nodes / 2; segments += segments < 8 ? 1 : segments / 4) {
    choice all = {CHOOSE_SEGMENTS, segments, segments - 1};
    MPG_TRY(try_choice(ch, all, &fits));
    if (!fits) continue;
    MPG_TRY(reduce(ch, &all));
    MPG_TRY(apply(ch, all));
    if (best.amount == 0 || work_of(ch) < least) {
      best = all;
      least = work_of(ch);
    }
  }
  return best.amount ? apply(ch, best) : fail_with(ch);
}

mpg_status mpg_compiled_fit(mpg_compiled *c, const mpg_memory_budget *budget, mpg_measure measure) {
  chooser ch = {.c = c, .budget = budget, .measure = measure, .excess = 1e301};
  mpg_status status = MPG_OK;
  if (c->graph.num_nodes == 0) return MPG_OK;
  MPG_GOTO(begin(&ch));
  MPG_GOTO(choose(&ch));
fail:
  end(&ch);
  return status;
}
