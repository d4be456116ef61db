/* Orders that need less memory, or in which devices wait less for each other (plan.h), by list
 * scheduling and depth-first search. */
#include "graph/schedule/plan.h"

#include <string.h>

#include "graph/ir/analysis.h"

enum {
  NO_ROOT = UINT32_MAX, /* sentinel: no root value */
  ORDERED = UINT32_MAX, /* sentinel in depth_search.seen: the node is in the order */
};

/* Nodes are identified by their position in the request's order. */
typedef struct schedule {
  const mpg_plan_request *request;
  const mpg_graph *graph;
  const mpg_order *order;
  uint32_t count;
  mpg_analysis facts; /* of the order; owned */
  /* Dependency graph: the successors of k are next[first[k]] to next[first[k + 1] - 1]. */
  uint32_t *first, *next;
  uint32_t *waits; /* per position: number of predecessors */
  size_t *bytes;   /* per root: bytes in a planned block; 0 if its memory is elsewhere */
  bool *stays;     /* per root: never freed */
  mpg_device_id devices[MPG_MAX_GRAPH_DEVICES];
  uint32_t num_devices;
  double *seconds;     /* per position; only for mpg_order_for_time */
  uint32_t *left;      /* workspace, per position: number of remaining predecessors */
  uint32_t *left_uses; /* workspace, per root: number of remaining readers */
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

/* Edges (from, to) as pairs, in any order. Duplicates are harmless. */
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
  /* Latest user of each value that effects write. The users of one value keep their order. */
  uint32_t *last_user = mpg_malloc((graph->num_values + 1) * sizeof *last_user);
  mpg_status status = MPG_OK;
  if (!last_user) return mpg_out_of_host_memory(graph->num_values * sizeof *last_user);
  for (size_t v = 0; v < graph->num_values; v++) last_user[v] = MPG_NO_NODE;
  uint32_t last_rendezvous = MPG_NO_NODE;
  for (uint32_t k = 0; k < s->count; k++) {
    const mpg_node *node = node_at(s, k);
    if (mpg_node_flag(node, MPG_OP_RENDEZVOUS)) {
      if (last_rendezvous != MPG_NO_NODE) MPG_GOTO(add_edge(edges, last_rendezvous, k));
      last_rendezvous = k;
    }
    for (uint32_t i = 0; i < node->num_inputs; i++) {
      mpg_value input = mpg_node_inputs(graph, node)[i];
      uint32_t root = s->facts.root[mpg_value_index(graph, input)];
      if (s->facts.position[input.node] != MPG_NO_POSITION)
        MPG_GOTO(add_edge(edges, s->facts.position[input.node], k));
      if (!s->facts.written[root] || last_user[root] == k) continue;
      if (last_user[root] != MPG_NO_NODE) MPG_GOTO(add_edge(edges, last_user[root], k));
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
  for (size_t e = edges.count; e-- > 0;) /* fills the lists of successors, counting in `left` */
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
      bool made = s->facts.position[n] != MPG_NO_POSITION; /* computed in this phase */
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

/* Returns the root of an input that dies at the node and whose memory the output may reuse, or
 * NO_ROOT. */
static uint32_t dying_input(const schedule *s, const mpg_node *node) {
  const mpg_graph *graph = s->graph;
  if (!mpg_node_flag(node, MPG_OP_INPLACE | MPG_OP_INPLACE_ALIKE) || !reads(node)) return NO_ROOT;
  const mpg_shape *shape = &graph->values[node->values].desc.shape;
  for (uint32_t i = 0; i < node->num_inputs; i++) {
    mpg_value input = mpg_node_inputs(graph, node)[i];
    uint32_t root = s->facts.root[mpg_value_index(graph, input)];
    if (mpg_node_flag(node, MPG_OP_INPLACE_ALIKE) &&
        !mpg_shape_equal(&mpg_graph_at(graph, input)->desc.shape, shape))
      continue;
    if (s->left_uses[root] == 1 && !s->stays[root] && s->bytes[root] &&
        s->bytes[root] == s->bytes[node->values])
      return root;
  }
  return NO_ROOT;
}

/* Computes the bytes alive on each device before the first node. */
static void alive_before(schedule *s, size_t *alive) {
  const mpg_graph *graph = s->graph;
  memcpy(s->left_uses, s->facts.readers, graph->num_values * sizeof *s->left_uses);
  memset(alive, 0, MPG_MAX_GRAPH_DEVICES * sizeof *alive);
  for (size_t n = 0; n < graph->num_nodes; n++) {
    const mpg_node *node = &graph->nodes[n];
    if (s->facts.position[n] != MPG_NO_POSITION) continue;
    for (uint32_t i = 0; i < node->num_outputs; i++)
      if (s->facts.readers[node->values + i] || s->stays[node->values + i])
        alive[slot_of(s, graph->values[node->values + i].device)] += s->bytes[node->values + i];
  }
}

/* Returns the bytes alive on the node's device while it runs. */
static size_t alive_with(schedule *s, const mpg_node *node, const size_t *alive) {
  uint32_t over = dying_input(s, node);
  size_t now = alive[slot_of(s, node->device)] - (over == NO_ROOT ? 0 : s->bytes[over]);
  for (uint32_t i = 0; i < node->num_outputs; i++)
    if (s->facts.root[node->values + i] == node->values + i) now += s->bytes[node->values + i];
  return now;
}

/* Updates `alive` to the state after the node. */
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
  for (uint32_t i = 0; i < node->num_outputs; i++) { /* frees outputs without readers */
    uint32_t value = node->values + i;
    if (s->facts.root[value] == value && !s->facts.readers[value] && !s->stays[value])
      alive[slot] -= s->bytes[value];
  }
}

/* Computes the peak bytes alive on each device, and returns their sum. */
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
  double rank;   /* higher ranks come first; ties go to the earlier node */
  uint32_t node; /* position in the original order */
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

/* --- Memory: greedy, the node that frees most comes first ------------------------------------- */

static double gain_of(const schedule *s, uint32_t k) {
  const mpg_graph *graph = s->graph;
  const mpg_node *node = node_at(s, k);
  /* Copies to other devices directly follow the node that computes the copied value. */
  if (mpg_node_crosses(graph, node)) return 1e30;
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

typedef struct greedy_search {
  heap ready;
  bool *done;
  /* Per root: the sum of the positions of its remaining readers. If one reader remains, the sum is
   * its position. */
  uint64_t *readers;
} greedy_search;

static mpg_status push_by_gain(schedule *s, greedy_search *g, uint32_t k) {
  return push(&g->ready, gain_of(s, k), k);
}

static mpg_status begin_greedy(schedule *s, greedy_search *g) {
  const mpg_graph *graph = s->graph;
  g->done = mpg_calloc(s->count + 1, sizeof *g->done);
  g->readers = mpg_calloc(graph->num_values + 1, sizeof *g->readers);
  if (!g->done || !g->readers)
    return mpg_out_of_host_memory(graph->num_values * sizeof *g->readers);
  memcpy(s->left, s->waits, s->count * sizeof *s->left);
  memcpy(s->left_uses, s->facts.readers, graph->num_values * sizeof *s->left_uses);
  for (uint32_t k = 0; k < s->count; k++) {
    const mpg_node *node = node_at(s, k);
    for (uint32_t i = 0; i < node->num_inputs && reads(node); i++)
      g->readers[s->facts.root[mpg_value_index(graph, mpg_node_inputs(graph, node)[i])]] += k;
  }
  for (uint32_t k = 0; k < s->count; k++)
    if (!s->left[k]) MPG_TRY(push_by_gain(s, g, k));
  return MPG_OK;
}

/* Updates the inputs of a node that was added to the order. If a ready node has become the last
 * reader of an input, it now frees that input, so it is pushed with its new gain. */
static mpg_status release_inputs(schedule *s, greedy_search *g, uint32_t k) {
  const mpg_node *node = node_at(s, k);
  for (uint32_t i = 0; i < node->num_inputs && reads(node); i++) {
    uint32_t root = s->facts.root[mpg_value_index(s->graph, mpg_node_inputs(s->graph, node)[i])];
    g->readers[root] -= k;
    if (--s->left_uses[root] != 1) continue;
    uint32_t last = (uint32_t)g->readers[root];
    if (!g->done[last] && !s->left[last]) MPG_TRY(push_by_gain(s, g, last));
  }
  return MPG_OK;
}

static mpg_status greedy(schedule *s, mpg_order *order) {
  greedy_search g = {{0}, NULL, NULL};
  mpg_status status = MPG_OK;
  MPG_GOTO(begin_greedy(s, &g));
  while (g.ready.count) {
    uint32_t k = pop(&g.ready).node;
    if (g.done[k]) continue;
    g.done[k] = true;
    order->nodes[order->count++] = s->order->nodes[k];
    MPG_GOTO(release_inputs(s, &g, k));
    for (uint32_t e = s->first[k]; e < s->first[k + 1]; e++)
      if (--s->left[s->next[e]] == 0) MPG_GOTO(push_by_gain(s, &g, s->next[e]));
  }
fail:
  mpg_free(g.done);
  mpg_free(g.readers);
  mpg_free(g.ready.entries);
  return status;
}

/* --- Memory: depth first ---------------------------------------------------------------------- */

typedef struct depth_search { /* all arrays are per position */
  /* The schedule's dependency graph with reversed edges: the predecessors of k are before[first[k]]
   * to before[first[k + 1] - 1]. */
  uint32_t *first, *before;
  double *needs; /* peak bytes to compute a node as if dependencies were a tree (Sethi-Ullman) */
  double *keeps; /* bytes of its outputs */
  uint32_t *stack;
  uint32_t *seen; /* number of visited dependencies; ORDERED means that the node is in the order */
} depth_search;

static mpg_status begin_depth_search(const schedule *s, depth_search *d) {
  d->first = mpg_calloc(s->count + 2, sizeof *d->first);
  d->before = mpg_malloc(((size_t)s->first[s->count] + 1) * sizeof *d->before);
  d->stack = mpg_malloc((s->count + 1) * sizeof *d->stack);
  d->seen = mpg_calloc(s->count + 1, sizeof *d->seen);
  d->needs = mpg_calloc(s->count + 1, sizeof *d->needs);
  d->keeps = mpg_calloc(s->count + 1, sizeof *d->keeps);
  return d->first && d->before && d->stack && d->seen && d->needs && d->keeps
             ? MPG_OK
             : mpg_out_of_host_memory(s->count * sizeof *d->needs);
}

static void end_depth_search(depth_search *d) {
  mpg_free(d->first);
  mpg_free(d->before);
  mpg_free(d->stack);
  mpg_free(d->seen);
  mpg_free(d->needs);
  mpg_free(d->keeps);
}

static void find_dependencies(schedule *s, depth_search *d) {
  for (uint32_t k = 0; k < s->count; k++) d->first[k + 1] = d->first[k] + s->waits[k];
  memset(s->left, 0, s->count * sizeof *s->left);
  for (uint32_t k = 0; k < s->count; k++)
    for (uint32_t e = s->first[k]; e < s->first[k + 1]; e++)
      d->before[d->first[s->next[e]] + s->left[s->next[e]]++] = k;
}

/* Sorts the dependencies of a node by the memory they need in addition to their outputs, largest
 * first. */
static void sort_dependencies(depth_search *d, uint32_t k) {
  uint32_t *before = d->before + d->first[k];
  size_t count = d->first[k + 1] - d->first[k];
  for (size_t i = 1; i < count; i++) {
    uint32_t moved = before[i];
    double surplus = d->needs[moved] - d->keeps[moved];
    size_t at = i;
    for (; at > 0 && d->needs[before[at - 1]] - d->keeps[before[at - 1]] < surplus; at--)
      before[at] = before[at - 1];
    before[at] = moved;
  }
}

static void find_needs(const schedule *s, depth_search *d) {
  for (uint32_t k = 0; k < s->count; k++) {
    const mpg_node *node = node_at(s, k);
    for (uint32_t i = 0; i < node->num_outputs; i++)
      d->keeps[k] += (double)s->bytes[node->values + i];
    sort_dependencies(d, k);
    double held = 0;
    for (uint32_t e = d->first[k]; e < d->first[k + 1]; e++) {
      uint32_t other = d->before[e];
      if (held + d->needs[other] > d->needs[k]) d->needs[k] = held + d->needs[other];
      held += d->keeps[other];
    }
    if (held + d->keeps[k] > d->needs[k]) d->needs[k] = held + d->keeps[k];
  }
}

/* Returns the next dependency of the node that is not in the order, or MPG_NO_NODE. */
static uint32_t next_dependency(depth_search *d, uint32_t k) {
  while (d->seen[k] < d->first[k + 1] - d->first[k]) {
    uint32_t other = d->before[d->first[k] + d->seen[k]++];
    if (d->seen[other] != ORDERED) return other;
  }
  return MPG_NO_NODE;
}

/* Appends the node after all its dependencies, without recursion. */
static void append_depth_first(const schedule *s, depth_search *d, uint32_t k, mpg_order *order) {
  size_t depth = 0;
  d->stack[depth++] = k;
  while (depth) {
    uint32_t top = d->stack[depth - 1];
    uint32_t other = d->seen[top] == ORDERED ? MPG_NO_NODE : next_dependency(d, top);
    if (other != MPG_NO_NODE) {
      d->stack[depth++] = other;
      continue;
    }
    depth--;
    if (d->seen[top] == ORDERED) continue;
    d->seen[top] = ORDERED;
    order->nodes[order->count++] = s->order->nodes[top];
  }
}

static mpg_status depth_first(schedule *s, mpg_order *order) {
  depth_search d = {0};
  mpg_status status = MPG_OK;
  MPG_GOTO(begin_depth_search(s, &d));
  find_dependencies(s, &d);
  find_needs(s, &d);
  /* The search starts at nodes without users. */
  for (uint32_t k = 0; k < s->count; k++)
    if (s->first[k] == s->first[k + 1]) append_depth_first(s, &d, k, order);
fail:
  end_depth_search(&d);
  return status;
}

/* The program's order keeps neighbors together, so it is replaced only if another order lowers the
 * peak memory by more than 1/20. */
enum { WORTH_A_CHANGE = 20 };

mpg_status mpg_order_for_memory(const mpg_plan_request *request, mpg_order *better, bool *changed) {
  schedule s;
  mpg_order tried = {0};
  mpg_status status = MPG_OK;
  *changed = false;
  MPG_GOTO(begin(&s, request));
  size_t least = peak_of(&s, request->order);
  least -= least / WORTH_A_CHANGE;
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

/* --- Order for time: critical path (longest path to the end) first ---------------------------- */

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
  /* The earliest start of node k, done[k], is the latest end of its dependencies so far. */
  for (size_t i = 0; i < order->count; i++) {
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

/* Takes the first ready node that keeps the bytes alive on its device within `most`. If none of the
 * tried nodes does, takes the earliest of these in program order. */
static mpg_status pop_within(schedule *s, heap *ready, const size_t *alive, const size_t *most,
                             uint32_t *taken) {
  enum { TRIES = 32 };
  entry aside[TRIES];
  int count = 0, earliest = 0;
  *taken = MPG_NO_NODE;
  while (ready->count && count < TRIES && *taken == MPG_NO_NODE) {
    entry top = pop(ready);
    const mpg_node *node = node_at(s, top.node);
    if (alive_with(s, node, alive) <= most[slot_of(s, node->device)]) {
      *taken = top.node;
    } else {
      if (!count || top.node < aside[earliest].node) earliest = count;
      aside[count++] = top;
    }
  }
  if (*taken == MPG_NO_NODE) {
    *taken = aside[earliest].node;
    aside[earliest] = aside[--count];
  }
  for (int i = 0; i < count; i++) MPG_TRY(push(ready, aside[i].rank, aside[i].node));
  return MPG_OK;
}

typedef struct list_scheduler {
  /* Ready nodes, sorted by longest path to the end. Copies to other devices come first. */
  heap ready[MPG_MAX_GRAPH_DEVICES];
  /* Nodes that are not ready yet, sorted by ready time (the rank is the negated time). */
  heap coming[MPG_MAX_GRAPH_DEVICES];
  double free_at[MPG_MAX_GRAPH_DEVICES];
  double *starts; /* per position: end time of its last dependency */
  size_t alive[MPG_MAX_GRAPH_DEVICES];
} list_scheduler;

static mpg_status push_coming(schedule *s, list_scheduler *l, uint32_t k) {
  return push(&l->coming[slot_of(s, runs_on(s, k))], -l->starts[k], k);
}

static mpg_status begin_list(schedule *s, list_scheduler *l) {
  l->starts = mpg_calloc(s->count + 1, sizeof *l->starts);
  if (!l->starts) return mpg_out_of_host_memory(s->count * sizeof *l->starts);
  alive_before(s, l->alive);
  memcpy(s->left, s->waits, s->count * sizeof *s->left);
  for (uint32_t k = 0; k < s->count; k++)
    if (!s->left[k]) MPG_TRY(push_coming(s, l, k));
  return MPG_OK;
}

static void end_list(list_scheduler *l) {
  for (uint32_t i = 0; i < MPG_MAX_GRAPH_DEVICES; i++) {
    mpg_free(l->ready[i].entries);
    mpg_free(l->coming[i].entries);
  }
  mpg_free(l->starts);
}

/* Moves nodes from `coming` to `ready` if they are ready by the time the device is free. */
static mpg_status note_ready(schedule *s, list_scheduler *l, uint32_t slot, const double *paths) {
  heap *coming = &l->coming[slot];
  while (coming->count && -coming->entries[0].rank <= l->free_at[slot]) {
    uint32_t k = pop(coming).node;
    bool crosses = mpg_node_crosses(s->graph, node_at(s, k));
    MPG_TRY(push(&l->ready[slot], crosses ? 1e30 : paths[k], k));
  }
  return MPG_OK;
}

/* Sets *slot to the device that can start a node first, and *when to the start time. */
static mpg_status choose_device(schedule *s, list_scheduler *l, const double *paths, uint32_t *slot,
                                double *when) {
  *slot = UINT32_MAX;
  for (uint32_t i = 0; i < s->num_devices; i++) {
    MPG_TRY(note_ready(s, l, i, paths));
    if (!l->ready[i].count && !l->coming[i].count) continue;
    double possible = l->ready[i].count ? l->free_at[i] : -l->coming[i].entries[0].rank;
    if (*slot == UINT32_MAX || possible < *when) *slot = i, *when = possible;
  }
  return *slot != UINT32_MAX ? MPG_OK
                             : mpg_fail(MPG_ERROR, "internal: the order of a graph has a cycle");
}

static mpg_status choose_node(schedule *s, list_scheduler *l, uint32_t slot, const size_t *most,
                              uint32_t *k) {
  heap *ready = &l->ready[slot];
  if (ready->count && most) return pop_within(s, ready, l->alive, most, k);
  *k = pop(ready->count ? ready : &l->coming[slot]).node;
  return MPG_OK;
}

/* Records that node k ends at time `end`. Users of the node that wait for no other node are added
 * to `coming`. */
static mpg_status release_users(schedule *s, list_scheduler *l, uint32_t k, double end) {
  for (uint32_t e = s->first[k]; e < s->first[k + 1]; e++) {
    uint32_t user = s->next[e];
    if (end > l->starts[user]) l->starts[user] = end;
    if (--s->left[user] == 0) MPG_TRY(push_coming(s, l, user));
  }
  return MPG_OK;
}

/* List scheduling. Repeatedly picks the device that can start a node earliest, and schedules that
 * device's ready node with the longest path to the end. `most` is a soft limit on the bytes alive
 * on each device; NULL means no limit. */
static mpg_status list_schedule(schedule *s, const double *paths, const size_t *most,
                                mpg_order *order) {
  list_scheduler l = {.starts = NULL};
  mpg_status status = MPG_OK;
  MPG_GOTO(begin_list(s, &l));
  while (order->count < s->count) {
    uint32_t slot, k;
    double when = 0;
    MPG_GOTO(choose_device(s, &l, paths, &slot, &when));
    MPG_GOTO(choose_node(s, &l, slot, most, &k));
    order->nodes[order->count++] = s->order->nodes[k];
    run_node(s, node_at(s, k), l.alive);
    l.free_at[slot] = when + s->seconds[k];
    MPG_GOTO(release_users(s, &l, k, l.free_at[slot]));
  }
fail:
  end_list(&l);
  return status;
}

/* Sets (*result)[k] to the length in seconds of the longest path from node k to the end, including
 * node k. The caller frees *result. */
static mpg_status find_paths(const schedule *s, double **result) {
  double *paths = mpg_calloc(s->count + 1, sizeof *paths);
  if (!paths) return mpg_out_of_host_memory(s->count * sizeof *paths);
  for (uint32_t k = s->count; k-- > 0;) {
    double longest = 0;
    for (uint32_t e = s->first[k]; e < s->first[k + 1]; e++)
      if (paths[s->next[e]] > longest) longest = paths[s->next[e]];
    paths[k] = longest + s->seconds[k];
  }
  *result = paths;
  return MPG_OK;
}

mpg_status mpg_order_for_time(const mpg_plan_request *request, mpg_order faster[MPG_FASTER_ORDERS],
                              double seconds[1 + MPG_FASTER_ORDERS]) {
  schedule s;
  double *paths = NULL;
  size_t most[MPG_MAX_GRAPH_DEVICES];
  mpg_status status = MPG_OK;
  MPG_GOTO(begin(&s, request));
  MPG_GOTO(find_seconds(&s));
  MPG_GOTO(find_paths(&s, &paths));
  MPG_GOTO(run_in_order(&s, request->order, &seconds[0]));
  MPG_GOTO(new_order(&s, &faster[0]));
  MPG_GOTO(list_schedule(&s, paths, NULL, &faster[0]));
  MPG_GOTO(run_in_order(&s, &faster[0], &seconds[1]));
  peaks_of(&s, request->order, most);
  MPG_GOTO(new_order(&s, &faster[1]));
  MPG_GOTO(list_schedule(&s, paths, most, &faster[1]));
  MPG_GOTO(run_in_order(&s, &faster[1], &seconds[2]));
fail:
  mpg_free(paths);
  end(&s);
  return status;
}
