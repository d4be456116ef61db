/* Orders that need less memory, or in which devices wait less for each other (plan.h), by list
 * scheduling and depth first. */
#include "graph/schedule/plan.h"

#include <string.h>

#include "graph/ir/analysis.h"

#define NOBODY UINT32_MAX

/* Nodes are named by their position in the request's order. */
typedef struct schedule {
  const mpg_plan_request *request;
  const mpg_graph *graph;
  const mpg_order *order;
  uint32_t count;
  mpg_analysis facts;     /* of the order; owned */
  uint32_t *first, *next; /* who comes after whom: first edge [count + 1], then targets */
  uint32_t *waits;        /* how many come before */
  size_t *bytes;          /* per root: in a planned block; 0: elsewhere */
  bool *stays;            /* per root: never freed */
  mpg_device_id devices[MPG_MAX_GRAPH_DEVICES];
  uint32_t num_devices;
  double *seconds; /* orders for time only */
  uint32_t *left;  /* work space: copies of waits, uses */
  uint32_t *left_uses;
} schedule;

static const mpg_node *node_at(const schedule *s, uint32_t k) {
  return &s->graph->nodes[s->order->nodes[k]];
}

static uint32_t slot_of(schedule *s, mpg_device_id device) {
  for (uint32_t i = 0; i < s->num_devices; i++)
    if (mpg_device_id_equal(s->devices[i], device)) return i;
  if (s->num_devices == MPG_MAX_GRAPH_DEVICES) return 0;
  s->devices[s->num_devices] = device;
  return s->num_devices++;
}

static bool reads(const mpg_node *node) { return !mpg_node_flag(node, MPG_OP_SHAPE_ONLY); }

/* Edges (from, to), in any order; duplicates do no harm. */
typedef struct edge_list {
  uint32_t *ends;
  size_t count, capacity;
} edge_list;

static mpg_status add_edge(edge_list *list, uint32_t from, uint32_t to) {
  MPG_TRY(
      mpg_grow((void **)&list->ends, &list->capacity, 2 * (list->count + 1), sizeof *list->ends));
  list->ends[2 * list->count] = from;
  list->ends[2 * list->count + 1] = to;
  list->count++;
  return MPG_OK;
}

static mpg_status find_edges(schedule *s, edge_list *edges) {
  const mpg_graph *graph = s->graph;
  uint32_t *last_user =
      mpg_malloc((graph->num_values + 1) * sizeof *last_user); /* of what effects write */
  mpg_status status = MPG_OK;
  if (!last_user) return mpg_out_of_host_memory(graph->num_values * sizeof *last_user);
  for (size_t v = 0; v < graph->num_values; v++) last_user[v] = NOBODY;
  for (uint32_t k = 0; k < s->count; k++) {
    const mpg_node *node = node_at(s, k);
    for (uint32_t i = 0; i < node->num_inputs; i++) {
      mpg_value input = mpg_node_inputs(graph, node)[i];
      uint32_t root = s->facts.root[mpg_value_index(graph, input)];
      if (s->facts.position[input.node] != NOBODY)
        MPG_GOTO(add_edge(edges, s->facts.position[input.node], k));
      if (!s->facts.written[root] || last_user[root] == k) continue;
      if (last_user[root] != NOBODY) MPG_GOTO(add_edge(edges, last_user[root], k));
      last_user[root] = k;
    }
  }
fail:
  mpg_free(last_user);
  return status;
}

static mpg_status link_edges(schedule *s) {
  edge_list edges = {0};
  mpg_status status = MPG_OK;
  MPG_GOTO(find_edges(s, &edges));
  s->next = mpg_malloc((edges.count + 1) * sizeof *s->next);
  if (!s->next) MPG_GOTO(mpg_out_of_host_memory(edges.count * sizeof *s->next));
  for (size_t e = 0; e < edges.count; e++) {
    s->first[edges.ends[2 * e] + 1]++;
    s->waits[edges.ends[2 * e + 1]]++;
  }
  for (uint32_t k = 0; k < s->count; k++) s->first[k + 1] += s->first[k];
  for (size_t e = edges.count; e-- > 0;) /* fills each list from its end; `left` counts */
    s->next[s->first[edges.ends[2 * e]] + s->left[edges.ends[2 * e]]++] = edges.ends[2 * e + 1];
fail:
  mpg_free(edges.ends);
  return status;
}

static void find_memory(schedule *s) {
  const mpg_graph *graph = s->graph;
  const mpg_plan_request *request = s->request;
  for (size_t n = 0; n < graph->num_nodes; n++) {
    const mpg_node *node = &graph->nodes[n];
    for (uint32_t i = 0; i < node->num_outputs; i++) {
      uint32_t value = node->values + i, root = s->facts.root[value];
      bool made = s->facts.position[n] != NOBODY; /* in this phase */
      bool saved = request->saved && request->saved[value];
      if (!mpg_node_is_input(node) && (made ? root == value : request->forward && saved))
        s->bytes[root] = mpg_align_up(mpg_desc_bytes(&graph->values[value].desc), 64);
      if (made ? saved && !request->forward : request->retain) s->stays[root] = true;
      if (request->external[value] != MPG_NO_BASE) s->bytes[root] = 0;
    }
  }
}

static void end(schedule *s) {
  mpg_analysis_free(&s->facts);
  mpg_free(s->first);
  mpg_free(s->next);
  mpg_free(s->waits);
  mpg_free(s->bytes);
  mpg_free(s->stays);
  mpg_free(s->seconds);
  mpg_free(s->left);
  mpg_free(s->left_uses);
}

static mpg_status begin(schedule *s, const mpg_plan_request *request) {
  *s = (schedule){.request = request,
                  .graph = request->graph,
                  .order = request->order,
                  .count = (uint32_t)request->order->count};
  size_t values = s->graph->num_values, count = s->count;
  s->first = mpg_calloc(count + 2, sizeof *s->first);
  s->waits = mpg_calloc(count + 1, sizeof *s->waits);
  s->left = mpg_calloc(count + 1, sizeof *s->left);
  s->left_uses = mpg_calloc(values + 1, sizeof *s->left_uses);
  s->bytes = mpg_calloc(values + 1, sizeof *s->bytes);
  s->stays = mpg_calloc(values + 1, sizeof *s->stays);
  if (!s->first || !s->waits || !s->left || !s->left_uses || !s->bytes || !s->stays)
    return mpg_out_of_host_memory(values * sizeof *s->bytes);
  MPG_TRY(mpg_analyse(s->graph, s->order, &s->facts));
  find_memory(s);
  MPG_TRY(link_edges(s));
  for (uint32_t k = 0; k < s->count; k++) slot_of(s, node_at(s, k)->device);
  return MPG_OK;
}

static mpg_status new_order(const schedule *s, mpg_order *order) {
  *order = (mpg_order){.nodes = mpg_malloc((s->count + 1) * sizeof *order->nodes)};
  return order->nodes ? MPG_OK : mpg_out_of_host_memory(s->count * sizeof *order->nodes);
}

/* --- Bytes alive ------------------------------------------------------------------------------ */

/* True when the node's output may lie over an input that dies there. */
static uint32_t dying_input(const schedule *s, const mpg_node *node) {
  const mpg_graph *graph = s->graph;
  if (!mpg_node_flag(node, MPG_OP_INPLACE) || !reads(node)) return NOBODY;
  for (uint32_t i = 0; i < node->num_inputs; i++) {
    uint32_t root = s->facts.root[mpg_value_index(graph, mpg_node_inputs(graph, node)[i])];
    if (s->left_uses[root] == 1 && !s->stays[root] && s->bytes[root] &&
        s->bytes[root] == s->bytes[node->values])
      return root;
  }
  return NOBODY;
}

/* Bytes alive before the first node. */
static void alive_before(schedule *s, size_t *alive) {
  const mpg_graph *graph = s->graph;
  memcpy(s->left_uses, s->facts.readers, graph->num_values * sizeof *s->left_uses);
  memset(alive, 0, MPG_MAX_GRAPH_DEVICES * sizeof *alive);
  for (size_t n = 0; n < graph->num_nodes; n++) {
    const mpg_node *node = &graph->nodes[n];
    if (s->facts.position[n] != NOBODY) continue;
    for (uint32_t i = 0; i < node->num_outputs; i++)
      if (s->facts.readers[node->values + i] || s->stays[node->values + i])
        alive[slot_of(s, graph->values[node->values + i].device)] += s->bytes[node->values + i];
  }
}

/* Bytes alive on the node's device while it runs. */
static size_t alive_with(schedule *s, const mpg_node *node, const size_t *alive) {
  uint32_t over = dying_input(s, node);
  size_t now = alive[slot_of(s, node->device)] - (over == NOBODY ? 0 : s->bytes[over]);
  for (uint32_t i = 0; i < node->num_outputs; i++)
    if (s->facts.root[node->values + i] == node->values + i) now += s->bytes[node->values + i];
  return now;
}

/* Brings `alive` behind the node. */
static void run_node(schedule *s, const mpg_node *node, size_t *alive) {
  const mpg_graph *graph = s->graph;
  uint32_t slot = slot_of(s, node->device);
  for (uint32_t i = 0; i < node->num_outputs; i++)
    if (s->facts.root[node->values + i] == node->values + i)
      alive[slot] += s->bytes[node->values + i];
  for (uint32_t i = 0; i < node->num_inputs && reads(node); i++) {
    mpg_value input = mpg_node_inputs(graph, node)[i];
    uint32_t root = s->facts.root[mpg_value_index(graph, input)];
    if (--s->left_uses[root] == 0 && !s->stays[root])
      alive[slot_of(s, graph->values[root].device)] -= s->bytes[root];
  }
  for (uint32_t i = 0; i < node->num_outputs; i++) { /* without readers */
    uint32_t value = node->values + i;
    if (s->facts.root[value] == value && !s->facts.readers[value] && !s->stays[value])
      alive[slot] -= s->bytes[value];
  }
}

/* The most bytes alive at once on each device; returns their sum. */
static size_t peaks_of(schedule *s, const mpg_order *order, size_t *peaks) {
  size_t alive[MPG_MAX_GRAPH_DEVICES], total = 0;
  alive_before(s, alive);
  memcpy(peaks, alive, sizeof alive);
  for (size_t k = 0; k < order->count; k++) {
    const mpg_node *node = &s->graph->nodes[order->nodes[k]];
    uint32_t slot = slot_of(s, node->device);
    size_t now = alive_with(s, node, alive);
    if (now > peaks[slot]) peaks[slot] = now;
    run_node(s, node, alive);
  }
  for (uint32_t i = 0; i < s->num_devices; i++) total += peaks[i];
  return total;
}

static size_t peak_of(schedule *s, const mpg_order *order) {
  size_t peaks[MPG_MAX_GRAPH_DEVICES];
  return peaks_of(s, order, peaks);
}

/* --- A heap of ready nodes -------------------------------------------------------------------- */

typedef struct entry {
  double rank; /* the greatest comes first, then the earliest position */
  uint32_t node;
} entry;
typedef struct heap {
  entry *entries;
  size_t count, capacity;
} heap;

static bool precedes(entry a, entry b) {
  return a.rank != b.rank ? a.rank > b.rank : a.node < b.node;
}

static mpg_status push(heap *heap, double rank, uint32_t node) {
  MPG_TRY(
      mpg_grow((void **)&heap->entries, &heap->capacity, heap->count + 1, sizeof *heap->entries));
  size_t at = heap->count++;
  entry new = {rank, node};
  for (; at > 0 && precedes(new, heap->entries[(at - 1) / 2]); at = (at - 1) / 2)
    heap->entries[at] = heap->entries[(at - 1) / 2];
  heap->entries[at] = new;
  return MPG_OK;
}

static entry pop(heap *heap) {
  entry top = heap->entries[0], last = heap->entries[--heap->count];
  size_t at = 0;
  for (;;) {
    size_t child = 2 * at + 1;
    if (child >= heap->count) break;
    if (child + 1 < heap->count && precedes(heap->entries[child + 1], heap->entries[child]))
      child++;
    if (!precedes(heap->entries[child], last)) break;
    heap->entries[at] = heap->entries[child];
    at = child;
  }
  heap->entries[at] = last;
  return top;
}

/* --- Memory: what frees most comes first ------------------------------------------------------ */

static double gain_of(const schedule *s, uint32_t k) {
  const mpg_graph *graph = s->graph;
  const mpg_node *node = node_at(s, k);
  if (mpg_node_crosses(graph, node)) return 1e30; /* right behind what it copies */
  double gain = 0;
  for (uint32_t i = 0; i < node->num_outputs; i++)
    if (s->facts.root[node->values + i] == node->values + i)
      gain -= (double)s->bytes[node->values + i];
  for (uint32_t i = 0; i < node->num_inputs && reads(node); i++) {
    uint32_t root = s->facts.root[mpg_value_index(graph, mpg_node_inputs(graph, node)[i])];
    if (s->left_uses[root] == 1 && !s->stays[root]) gain += (double)s->bytes[root];
  }
  return gain;
}

/* Nodes whose gain has grown since they were pushed are pushed again: `readers` has, per root, the
 * sum of the positions of its readers to come, so the last one's is known. */
static mpg_status greedy(schedule *s, mpg_order *order) {
  const mpg_graph *graph = s->graph;
  heap ready = {0};
  mpg_status status = MPG_OK;
  bool *done = mpg_calloc(s->count + 1, sizeof *done);
  uint64_t *readers = mpg_calloc(graph->num_values + 1, sizeof *readers);
  if (!done || !readers) MPG_GOTO(mpg_out_of_host_memory(graph->num_values * sizeof *readers));
  memcpy(s->left, s->waits, s->count * sizeof *s->left);
  memcpy(s->left_uses, s->facts.readers, graph->num_values * sizeof *s->left_uses);
  for (uint32_t k = 0; k < s->count; k++) {
    const mpg_node *node = node_at(s, k);
    for (uint32_t i = 0; i < node->num_inputs && reads(node); i++)
      readers[s->facts.root[mpg_value_index(graph, mpg_node_inputs(graph, node)[i])]] += k;
  }
  for (uint32_t k = 0; k < s->count; k++)
    if (!s->left[k]) MPG_GOTO(push(&ready, gain_of(s, k), k));
  while (ready.count) {
    uint32_t k = pop(&ready).node;
    if (done[k]) continue;
    done[k] = true;
    const mpg_node *node = node_at(s, k);
    order->nodes[order->count++] = s->order->nodes[k];
    for (uint32_t i = 0; i < node->num_inputs && reads(node); i++) {
      uint32_t root = s->facts.root[mpg_value_index(graph, mpg_node_inputs(graph, node)[i])];
      readers[root] -= k;
      if (--s->left_uses[root] != 1) continue;
      uint32_t last = (uint32_t)readers[root];
      if (!done[last] && !s->left[last]) MPG_GOTO(push(&ready, gain_of(s, last), last));
    }
    for (uint32_t e = s->first[k]; e < s->first[k + 1]; e++)
      if (--s->left[s->next[e]] == 0) MPG_GOTO(push(&ready, gain_of(s, s->next[e]), s->next[e]));
  }
fail:
  mpg_free(done);
  mpg_free(readers);
  mpg_free(ready.entries);
  return status;
}

/* --- Memory: depth first ---------------------------------------------------------------------- */

/* needs: per position, the bytes that computing the node takes if its dependencies form a tree; the
 * largest need goes first. */
static void sort_before(const double *needs, const double *keeps, uint32_t *before, size_t count) {
  for (size_t i = 1; i < count; i++) {
    uint32_t moved = before[i];
    double surplus = needs[moved] - keeps[moved];
    size_t at = i;
    for (; at > 0 && needs[before[at - 1]] - keeps[before[at - 1]] < surplus; at--)
      before[at] = before[at - 1];
    before[at] = moved;
  }
}

static mpg_status depth_first(schedule *s, mpg_order *order) {
  uint32_t *first = mpg_calloc(
      s->count + 2, sizeof *first); /* who comes before whom: as `first` and `next`, turned round */
  uint32_t *before = mpg_malloc(((size_t)s->first[s->count] + 1) * sizeof *before);
  uint32_t *stack = mpg_malloc((s->count + 1) * sizeof *stack),
           *seen = mpg_calloc(s->count + 1, sizeof *seen);
  double *needs = mpg_calloc(s->count + 1, sizeof *needs),
         *keeps = mpg_calloc(s->count + 1, sizeof *keeps);
  mpg_status status = MPG_OK;
  if (!first || !before || !stack || !seen || !needs || !keeps)
    MPG_GOTO(mpg_out_of_host_memory(s->count * sizeof *needs));
  for (uint32_t k = 0; k < s->count; k++) first[k + 1] = first[k] + s->waits[k];
  memset(s->left, 0, s->count * sizeof *s->left);
  for (uint32_t k = 0; k < s->count; k++)
    for (uint32_t e = s->first[k]; e < s->first[k + 1]; e++)
      before[first[s->next[e]] + s->left[s->next[e]]++] = k;
  for (uint32_t k = 0; k < s->count; k++) {
    const mpg_node *node = node_at(s, k);
    for (uint32_t i = 0; i < node->num_outputs; i++) keeps[k] += (double)s->bytes[node->values + i];
    sort_before(needs, keeps, before + first[k], first[k + 1] - first[k]);
    double held = 0;
    for (uint32_t e = first[k]; e < first[k + 1]; e++) {
      if (held + needs[before[e]] > needs[k]) needs[k] = held + needs[before[e]];
      held += keeps[before[e]];
    }
    if (held + keeps[k] > needs[k]) needs[k] = held + keeps[k];
  }
  for (uint32_t k = 0; k < s->count;
       k++) { /* each node that nothing follows, and what it still needs */
    if (s->first[k] != s->first[k + 1]) continue;
    size_t depth = 0;
    stack[depth++] = k;
    while (depth) {
      uint32_t top = stack[depth - 1];
      bool down = false;
      while (seen[top] < first[top + 1] - first[top] && !down) {
        uint32_t other = before[first[top] + seen[top]++];
        if (seen[other] == NOBODY) continue;
        stack[depth++] = other;
        down = true;
      }
      if (down) continue;
      depth--;
      if (seen[top] == NOBODY) continue;
      seen[top] = NOBODY;
      order->nodes[order->count++] = s->order->nodes[top];
    }
  }
fail:
  mpg_free(first);
  mpg_free(before);
  mpg_free(stack);
  mpg_free(seen);
  mpg_free(needs);
  mpg_free(keeps);
  return status;
}

mpg_status mpg_order_for_memory(const mpg_plan_request *request, mpg_order *better, bool *changed) {
  schedule s;
  mpg_order tried = {0};
  mpg_status status = MPG_OK;
  *changed = false;
  MPG_GOTO(begin(&s, request));
  size_t least = peak_of(&s, request->order);
  least -= least / 20; /* the order of the program keeps neighbours together: it stays unless
                          another one saves something */
  for (int i = 0; i < 2; i++) {
    MPG_GOTO(new_order(&s, &tried));
    MPG_GOTO(i ? depth_first(&s, &tried) : greedy(&s, &tried));
    MPG_ASSERT(tried.count == s.count);
    size_t peak = peak_of(&s, &tried);
    if (peak < least) {
      mpg_order_free(better);
      *better = tried;
      tried = (mpg_order){0};
      least = peak;
      *changed = true;
    }
    mpg_order_free(&tried);
  }
fail:
  mpg_order_free(&tried);
  end(&s);
  if (status != MPG_OK) mpg_order_free(better);
  return status;
}

/* --- Time: the longest way first -------------------------------------------------------------- */

static mpg_status find_seconds(schedule *s) {
  mpg_cost *costs = mpg_malloc((s->graph->num_nodes + 1) * sizeof *costs);
  mpg_status status = MPG_OK;
  s->seconds = mpg_malloc((s->count + 1) * sizeof *s->seconds);
  if (!costs || !s->seconds) MPG_GOTO(mpg_out_of_host_memory(s->graph->num_nodes * sizeof *costs));
  MPG_GOTO(mpg_graph_costs(s->graph, costs));
  for (uint32_t k = 0; k < s->count; k++)
    s->seconds[k] = mpg_node_seconds(s->graph, node_at(s, k), costs[s->order->nodes[k]]);
fail:
  mpg_free(costs);
  return status;
}

static mpg_device_id runs_on(const schedule *s, uint32_t k) {
  return mpg_node_runs_on(s->graph, node_at(s, k));
}

static mpg_status run_in_order(schedule *s, const mpg_order *order, double *seconds) {
  double *done = mpg_calloc(s->count + 1, sizeof *done), free_at[MPG_MAX_GRAPH_DEVICES] = {0};
  if (!done) return mpg_out_of_host_memory(s->count * sizeof *done);
  *seconds = 0;
  for (size_t i = 0; i < order->count;
       i++) { /* `done` holds, before its time, when the node may start */
    uint32_t k = s->facts.position[order->nodes[i]], slot = slot_of(s, runs_on(s, k));
    double start = done[k] > free_at[slot] ? done[k] : free_at[slot];
    double end = start + s->seconds[k];
    free_at[slot] = end;
    if (end > *seconds) *seconds = end;
    for (uint32_t e = s->first[k]; e < s->first[k + 1]; e++)
      if (end > done[s->next[e]]) done[s->next[e]] = end;
  }
  mpg_free(done);
  return MPG_OK;
}

/* Takes the first of the ready nodes that leaves its device within `most`; where there is none, the
 * one that the program has first. */
static mpg_status pop_within(schedule *s, heap *ready, const size_t *alive, const size_t *most,
                             uint32_t *taken) {
  enum { TRIES = 32 };
  entry aside[TRIES];
  int count = 0, earliest = 0;
  *taken = NOBODY;
  while (ready->count && count < TRIES && *taken == NOBODY) {
    entry top = pop(ready);
    const mpg_node *node = node_at(s, top.node);
    if (alive_with(s, node, alive) <= most[slot_of(s, node->device)]) {
      *taken = top.node;
    } else {
      if (!count || top.node < aside[earliest].node) earliest = count;
      aside[count++] = top;
    }
  }
  if (*taken == NOBODY) {
    *taken = aside[earliest].node;
    aside[earliest] = aside[--count];
  }
  for (int i = 0; i < count; i++) MPG_TRY(push(ready, aside[i].rank, aside[i].node));
  return MPG_OK;
}

/* List scheduling: the device that can start a node first takes, of the nodes that are ready there,
 * the one with the longest path to the end. most: the bytes that should be alive on each device at
 * most; NULL: no limit. */
static mpg_status longest_way(schedule *s, const double *ways, const size_t *most,
                              mpg_order *order) {
  heap ready[MPG_MAX_GRAPH_DEVICES] = {{0}}, coming[MPG_MAX_GRAPH_DEVICES] = {{0}};
  double free_at[MPG_MAX_GRAPH_DEVICES] = {0};
  size_t alive[MPG_MAX_GRAPH_DEVICES];
  mpg_status status = MPG_OK;
  double *starts = mpg_calloc(s->count + 1, sizeof *starts);
  if (!starts) return mpg_out_of_host_memory(s->count * sizeof *starts);
  alive_before(s, alive);
  memcpy(s->left, s->waits, s->count * sizeof *s->left);
  for (uint32_t k = 0; k < s->count; k++)
    if (!s->left[k]) MPG_GOTO(push(&coming[slot_of(s, runs_on(s, k))], 0, k));
  for (uint32_t taken = 0; taken < s->count; taken++) {
    uint32_t slot = NOBODY, k;
    double when = 0;
    for (uint32_t i = 0; i < s->num_devices; i++) {
      while (coming[i].count && -coming[i].entries[0].rank <= free_at[i]) {
        k = pop(&coming[i]).node;
        MPG_GOTO(push(&ready[i], mpg_node_crosses(s->graph, node_at(s, k)) ? 1e30 : ways[k], k));
      }
      if (!ready[i].count && !coming[i].count) continue;
      double possible = ready[i].count ? free_at[i] : -coming[i].entries[0].rank;
      if (slot == NOBODY || possible < when) slot = i, when = possible;
    }
    if (slot == NOBODY) MPG_GOTO(mpg_fail(MPG_ERROR, "internal: the order of a graph has a cycle"));
    if (!ready[slot].count)
      k = pop(&coming[slot]).node;
    else if (most)
      MPG_GOTO(pop_within(s, &ready[slot], alive, most, &k));
    else
      k = pop(&ready[slot]).node;
    order->nodes[order->count++] = s->order->nodes[k];
    run_node(s, node_at(s, k), alive);
    free_at[slot] = when + s->seconds[k];
    for (uint32_t e = s->first[k]; e < s->first[k + 1]; e++) {
      uint32_t then = s->next[e];
      if (free_at[slot] > starts[then]) starts[then] = free_at[slot];
      if (--s->left[then] == 0)
        MPG_GOTO(push(&coming[slot_of(s, runs_on(s, then))], -starts[then], then));
    }
  }
fail:
  for (uint32_t i = 0; i < MPG_MAX_GRAPH_DEVICES; i++) {
    mpg_free(ready[i].entries);
    mpg_free(coming[i].entries);
  }
  mpg_free(starts);
  return status;
}

mpg_status mpg_order_for_time(const mpg_plan_request *request, mpg_order faster[MPG_FASTER_ORDERS],
                              double seconds[1 + MPG_FASTER_ORDERS]) {
  schedule s;
  double *ways = NULL;
  size_t most[MPG_MAX_GRAPH_DEVICES];
  bool changed = false;
  mpg_status status = MPG_OK;
  MPG_GOTO(begin(&s, request));
  MPG_GOTO(find_seconds(&s));
  ways = mpg_calloc(s.count + 1, sizeof *ways);
  if (!ways) MPG_GOTO(mpg_out_of_host_memory(s.count * sizeof *ways));
  for (uint32_t k = s.count; k-- > 0;) {
    double longest = 0;
    for (uint32_t e = s.first[k]; e < s.first[k + 1]; e++)
      if (ways[s.next[e]] > longest) longest = ways[s.next[e]];
    ways[k] = longest + s.seconds[k];
  }
  MPG_GOTO(run_in_order(&s, request->order, &seconds[0]));
  MPG_GOTO(new_order(&s, &faster[0]));
  MPG_GOTO(longest_way(&s, ways, NULL, &faster[0]));
  MPG_GOTO(run_in_order(&s, &faster[0], &seconds[1]));
  MPG_GOTO(mpg_order_critical_path_first(request->graph, request->order, &faster[1], &changed));
  if (changed) MPG_GOTO(run_in_order(&s, &faster[1], &seconds[2]));
  peaks_of(&s, request->order, most);
  MPG_GOTO(new_order(&s, &faster[2]));
  MPG_GOTO(longest_way(&s, ways, most, &faster[2]));
  MPG_GOTO(run_in_order(&s, &faster[2], &seconds[3]));
fail:
  mpg_free(ways);
  end(&s);
  return status;
}
