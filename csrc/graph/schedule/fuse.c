/* Fusion: finds runs of an order that become one pass over memory, in a single walk along the
 * order. A node joins the open groups of its inputs, or closes them. A group runs at the position
 * of its last member, and users of its results come after it. */
#include "graph/schedule/fuse.h"

#include <string.h>

#include "graph/schedule/fuse_groups.h"
#include "graph/schedule/plan.h"

typedef struct fuser {
  const mpg_graph *graph;
  const mpg_order *order;
  const uint32_t *external;
  const bool *saved, *unfused;
  const uint8_t *kinds;
  mpg_analysis facts;      /* of the order; owned */
  mpg_open_group **groups; /* NULL if dissolved, merged, or written to the result */
  uint32_t num_groups;
  size_t groups_capacity;
  uint32_t first_open; /* groups with smaller numbers are closed */
  uint32_t *group_of;  /* per node: its group's index in `groups`, or MPG_NO_GROUP */
  bool *kept;          /* per root: true if it or a view of it is saved or in an external array */
  mpg_open_group *trial, *spare;
} fuser;

/* --- Open groups ------------------------------------------------------------------------------ */

/* Keeps a group's memory for the next group, or frees it. */
static void reuse(fuser *f, mpg_open_group *g) {
  if (!f->spare)
    f->spare = g;
  else
    mpg_free(g);
}

static void dissolve(fuser *f, uint32_t number) {
  mpg_open_group *g = f->groups[number];
  for (uint32_t i = 0; i < g->num_members; i++)
    f->group_of[f->order->nodes[g->members[i]]] = MPG_NO_GROUP;
  reuse(f, g);
  f->groups[number] = NULL;
}

static void close_group(fuser *f, uint32_t number) {
  mpg_open_group *g = f->groups[number];
  g->open = false;
  if (g->num_kernels < 2) dissolve(f, number);
}

static bool is_open(const fuser *f, uint32_t number) {
  return number != MPG_NO_GROUP && f->groups[number] && f->groups[number]->open;
}

static void close_all(fuser *f) {
  for (uint32_t i = f->first_open; i < f->num_groups; i++)
    if (is_open(f, i)) close_group(f, i);
  f->first_open = f->num_groups;
}

enum { MAX_SOURCES = 8 }; /* maximum number of groups that one node joins */

/* Lists the open groups that compute the node's inputs on its device and in its segment, and
 * returns their number. Closes the open groups that compute its remaining inputs. */
static uint32_t find_sources(fuser *f, const mpg_fuse_candidate *c, uint32_t *found) {
  const mpg_node *node = c->node;
  uint32_t count = 0;
  if (mpg_node_flag(node, MPG_OP_SHAPE_ONLY)) return 0;
  for (uint32_t i = 0; i < node->num_inputs; i++) {
    mpg_value input = mpg_node_inputs(f->graph, node)[i];
    uint32_t number = mpg_has_value(input) ? f->group_of[input.node] : MPG_NO_GROUP;
    if (!is_open(f, number)) continue;
    const mpg_open_group *g = f->groups[number];
    bool known = false;
    for (uint32_t k = 0; k < count; k++) known |= found[k] == number;
    if (known) continue;
    if (count < MAX_SOURCES && g->segment == c->segment &&
        mpg_device_id_equal(g->device, mpg_node_runs_on(f->graph, node)))
      found[count++] = number;
    else
      close_group(f, number);
  }
  return count;
}

static uint32_t value_from(const fuser *f, const mpg_node *node, uint32_t group) {
  for (uint32_t i = 0; i < node->num_inputs; i++) {
    mpg_value input = mpg_node_inputs(f->graph, node)[i];
    if (f->group_of[input.node] == group) return mpg_value_index(f->graph, input);
  }
  return UINT32_MAX;
}

/* Replaces group `number` with the trial. */
static void take_over(fuser *f, uint32_t number) {
  mpg_open_group *g = f->groups[number];
  f->groups[number] = f->trial;
  f->trial = g;
  for (uint32_t i = 0; i < f->groups[number]->num_members; i++)
    f->group_of[f->order->nodes[f->groups[number]->members[i]]] = number;
}

/* True if the group's device runs other nodes between the group's last kernel and the position.
 * Views and members of the source groups are ignored, because they move with the group. */
static bool has_gap(const fuser *f, const mpg_open_group *g, uint32_t position,
                    const uint32_t *sources, uint32_t num_sources) {
  enum { LOOK_BACK = 256 };
  if (position - g->last > LOOK_BACK) return true;
  for (uint32_t k = g->last + 1; k < position; k++) {
    uint32_t n = f->order->nodes[k];
    const mpg_node *node = &f->graph->nodes[n];
    bool moves_too = mpg_node_is_view(node);
    for (uint32_t i = 0; i < num_sources; i++) moves_too |= f->group_of[n] == sources[i];
    if (!moves_too && mpg_device_id_equal(mpg_node_runs_on(f->graph, node), g->device)) return true;
  }
  return false;
}

/* Returns the bytes of the producer's inputs that live longer if the group moves to the
 * position. */
static size_t producer_inputs_longer(const fuser *f, const mpg_open_group *g, uint32_t position) {
  const mpg_graph *graph = f->graph;
  size_t longer = 0;
  if (g->producer == MPG_NO_NODE) return 0;
  const mpg_node *producer = &graph->nodes[g->producer];
  for (uint32_t i = 0; i < producer->num_inputs; i++) {
    uint32_t root = f->facts.root[mpg_value_index(graph, mpg_node_inputs(graph, producer)[i])];
    if (!f->kept[root] && f->facts.last_read[root] < position)
      longer += mpg_desc_bytes(&graph->values[root].desc);
  }
  return longer;
}

/* True if moving a group to a later position does not increase live bytes: its inputs live longer,
 * but its outputs begin later. */
static bool worth_moving(const fuser *f, const mpg_open_group *g, uint32_t position,
                         const uint32_t *sources, uint32_t num_sources) {
  if (!has_gap(f, g, position, sources, num_sources)) return true;
  size_t longer = producer_inputs_longer(f, g, position), shorter = 0;
  for (uint32_t i = 0; i < g->num_uses; i++) {
    uint32_t root = f->facts.root[g->uses[i].value];
    bool counted = f->kept[root];
    for (uint32_t j = 0; j < i && !counted; j++) counted = f->facts.root[g->uses[j].value] == root;
    if (counted) continue;
    bool later = f->facts.last_read[root] >= position;
    size_t bytes = mpg_desc_bytes(&f->graph->values[root].desc);
    if (g->uses[i].made && later) shorter += bytes;
    if (!g->uses[i].made && !later) longer += bytes;
  }
  return longer <= shorter;
}

/* --- The walk --------------------------------------------------------------------------------- */

/* Sets *taken to true if the device's fused kernels can compute the node, and *generated to true
 * if the device generates these kernels. */
static mpg_status is_taken(const fuser *f, const mpg_node *node, bool *taken, bool *generated) {
  mpg_device *device;
  mpg_dtype dtypes[MPG_MAX_NAMED];
  MPG_TRY(mpg_device_get(node->device, &device));
  mpg_fuses_fn fuses = mpg_kernel_get_fuses(device);
  *generated = fuses != NULL;
  uint32_t count = node->num_inputs + node->num_outputs;
  *taken = !fuses;
  if (!fuses || count > MPG_MAX_NAMED) return MPG_OK;
  for (uint32_t i = 0; i < node->num_inputs; i++)
    dtypes[i] = mpg_graph_at(f->graph, mpg_node_inputs(f->graph, node)[i])->desc.dtype;
  for (uint32_t i = 0; i < node->num_outputs; i++)
    dtypes[node->num_inputs + i] = f->graph->values[node->values + i].desc.dtype;
  *taken = fuses(node->op, node->params, dtypes, (int)count);
  return MPG_OK;
}

/* Determines how the node acts on a domain. If *fusible is false, the node may be in a group only
 * as a view. */
static mpg_status describe(const fuser *f, mpg_fuse_candidate *c, bool *fusible) {
  mpg_fuse_action *a = &c->action;
  *fusible = false;
  if (c->kind == MPG_FUSE_PRODUCER) {
    mpg_domain_of(&f->graph->values[c->node->values].desc.shape, &a->domain);
    a->num_inputs = 0;
    a->num_outputs = 1;
    a->row = a->trailing = 0;
    a->bits[0] = mpg_domain_all(&a->domain);
    if (!mpg_fuse_product(f->graph, c->node, &c->product)) return MPG_OK;
  } else if ((c->kind != MPG_FUSE_MAP && c->kind != MPG_FUSE_REDUCE && c->kind != MPG_FUSE_ROWS) ||
             !mpg_fuse_describe(f->graph, c->node, c->kind, a)) {
    return MPG_OK;
  }
  MPG_TRY(is_taken(f, c->node, fusible, &c->generated));
  if (c->kind == MPG_FUSE_ROWS && !c->generated) *fusible = false;
  return MPG_OK;
}

static mpg_status start_group(fuser *f, const mpg_fuse_candidate *c) {
  mpg_device *device;
  MPG_TRY(mpg_device_get(c->node->device, &device));
  if (!mpg_kernel_get_fused(device)) return MPG_OK;
  MPG_TRY(mpg_grow((void **)&f->groups, &f->groups_capacity, f->num_groups + 1, sizeof *f->groups));
  mpg_open_group *g = f->spare ? f->spare : mpg_malloc(sizeof *g);
  if (!g) return mpg_out_of_host_memory(sizeof *g);
  f->spare = NULL;
  if (!mpg_open_group_begin(g, f->graph, c)) {
    f->spare = g;
    return MPG_OK;
  }
  f->group_of[c->number] = f->num_groups;
  f->groups[f->num_groups++] = g;
  return MPG_OK;
}

static void join_view(fuser *f, const mpg_fuse_candidate *c, uint32_t group) {
  if (mpg_open_group_add_view(f->groups[group], f->graph, c))
    f->group_of[c->number] = group;
  else
    close_group(f, group);
}

/* Swaps the group with the largest domain in sources[first, count) to index `first`, and returns
 * its number. */
static uint32_t largest_to(const fuser *f, uint32_t *sources, uint32_t first, uint32_t count) {
  uint32_t best = first;
  int64_t best_size = -1;
  for (uint32_t i = first; i < count; i++) {
    const mpg_domain *domain = &f->groups[sources[i]]->domain;
    int64_t size = mpg_domain_size(domain, mpg_domain_all(domain));
    if (size > best_size) best = i, best_size = size;
  }
  uint32_t number = sources[best];
  sources[best] = sources[first];
  return sources[first] = number;
}

/* Joins the node to the largest group that accepts it. Returns that group, or MPG_NO_GROUP if no
 * group accepts the node. */
static uint32_t join_largest(fuser *f, const mpg_fuse_candidate *c, uint32_t *sources,
                             uint32_t count) {
  for (uint32_t i = 0; i < count; i++) {
    uint32_t number = largest_to(f, sources, i, count);
    *f->trial = *f->groups[number];
    if (!worth_moving(f, f->trial, c->position, sources, count) ||
        !mpg_open_group_join(f->trial, f->graph, c))
      continue;
    take_over(f, number);
    f->group_of[c->number] = number;
    return number;
  }
  return MPG_NO_GROUP;
}

static bool merge_into(fuser *f, const mpg_fuse_candidate *c, uint32_t base, uint32_t number,
                       const uint32_t *sources, uint32_t count) {
  mpg_open_group *other = f->groups[number];
  *f->trial = *f->groups[base];
  if (!worth_moving(f, other, c->position, sources, count) ||
      !mpg_open_group_merge(f->trial, other, value_from(f, c->node, number)))
    return false;
  take_over(f, base);
  reuse(f, other);
  f->groups[number] = NULL;
  return true;
}

static mpg_status visit(fuser *f, uint32_t position) {
  uint32_t n = f->order->nodes[position], sources[MAX_SOURCES], base = MPG_NO_GROUP;
  const mpg_node *node = &f->graph->nodes[n];
  mpg_fuse_candidate c = {.node = node,
                          .number = n,
                          .position = position,
                          .segment = f->order->segment_of ? f->order->segment_of[position] : 0,
                          .kind = f->unfused[n] ? MPG_FUSE_NOT : (mpg_fuse_kind)f->kinds[n]};
  if (mpg_node_mutates(node)) close_all(f); /* no node may move past a write */
  uint32_t count = find_sources(f, &c, sources);
  if (c.kind == MPG_FUSE_VIEW && count) {
    join_view(f, &c, sources[0]);
    return MPG_OK;
  }
  bool fusible;
  MPG_TRY(describe(f, &c, &fusible));
  if (fusible && c.kind != MPG_FUSE_PRODUCER) base = join_largest(f, &c, sources, count);
  for (uint32_t i = 0; i < count; i++) {
    if (sources[i] == base || !is_open(f, sources[i])) continue;
    if (base == MPG_NO_GROUP || !merge_into(f, &c, base, sources[i], sources, count))
      close_group(f, sources[i]);
  }
  return fusible && base == MPG_NO_GROUP ? start_group(f, &c) : MPG_OK;
}

static void find_kept(fuser *f) {
  const mpg_graph *graph = f->graph;
  for (size_t v = 0; v < graph->num_values; v++)
    if (f->external[v] != MPG_NO_BASE) f->kept[f->facts.root[v]] = true;
  for (size_t k = 0; f->saved && k < f->order->count; k++) {
    const mpg_node *node = &graph->nodes[f->order->nodes[k]];
    for (uint32_t i = 0; i < node->num_outputs; i++)
      if (f->saved[node->values + i]) f->kept[f->facts.root[node->values + i]] = true;
  }
}

/* --- The result ------------------------------------------------------------------------------- */

static mpg_status put_group(fuser *f, mpg_open_group *g, uint32_t number, mpg_order *fused) {
  mpg_fusion *fusion = fused->fusion;
  mpg_open_group_collapse(g);
  MPG_TRY(mpg_grow((void **)&fusion->groups, &fusion->groups_capacity, fusion->num_groups + 1,
                   sizeof *fusion->groups));
  MPG_TRY(mpg_grow((void **)&fusion->uses, &fusion->uses_capacity, fusion->num_uses + g->num_uses,
                   sizeof *fusion->uses));
  mpg_fusion_group *group = &fusion->groups[fusion->num_groups];
  *group = (mpg_fusion_group){.first = (uint32_t)fused->count,
                              .ndim = g->domain.ndim,
                              .split = mpg_open_group_split(&g->domain, g->uses, g->num_uses),
                              .row = g->row,
                              .row_dtype = g->row_dtype,
                              .uses = (uint32_t)fusion->num_uses,
                              .num_uses = g->num_uses,
                              .producer = g->producer};
  memcpy(group->dims, g->domain.dims, sizeof group->dims);
  memcpy(fusion->uses + fusion->num_uses, g->uses, g->num_uses * sizeof *g->uses);
  fusion->num_uses += g->num_uses;
  for (uint32_t i = 0; i < g->num_members; i++) {
    uint32_t n = f->order->nodes[g->members[i]];
    if (g->members[i] > g->last) { /* views after the last kernel, which no member reads */
      f->group_of[n] = MPG_NO_GROUP;
      continue;
    }
    fusion->group_of[fused->count] = fusion->num_groups;
    if (fused->segment_of) fused->segment_of[fused->count] = f->order->segment_of[g->members[i]];
    fused->nodes[fused->count++] = n;
  }
  group->count = (uint32_t)fused->count - group->first;
  f->groups[number] = NULL;
  mpg_free(g);
  fusion->num_groups++;
  return MPG_OK;
}

/* Records the group that computes each value. Marks a group's values as internal, except external
 * arrays, saved values and outputs of the graph. */
static void find_made(const fuser *f, mpg_order *fused, uint32_t *made_by) {
  const mpg_graph *graph = f->graph;
  mpg_fusion *fusion = fused->fusion;
  for (size_t k = 0; k < fused->count; k++) {
    if (fusion->group_of[k] == MPG_NO_GROUP) continue;
    const mpg_node *node = &graph->nodes[fused->nodes[k]];
    for (uint32_t i = 0; i < node->num_outputs; i++) {
      uint32_t v = node->values + i;
      made_by[v] = fusion->group_of[k];
      fusion->internal[v] = f->external[v] == MPG_NO_BASE && !(f->saved && f->saved[v]);
    }
  }
  for (size_t i = 0; i < graph->num_outputs; i++)
    fusion->internal[mpg_value_index(graph, graph->outputs[i])] = false;
}

/* Marks a value of a member as internal if it is neither kept nor read outside its group. Walks
 * backward, so that the users of a view are visited before the view's input. */
static mpg_status find_internal(const fuser *f, mpg_order *fused) {
  const mpg_graph *graph = f->graph;
  mpg_fusion *fusion = fused->fusion;
  size_t size = (graph->num_values + 1) * sizeof(uint32_t);
  uint32_t *made_by = mpg_malloc(size); /* per value: the group that computes it */
  if (!made_by) return mpg_out_of_host_memory(size);
  memset(made_by, 0xff, size);
  find_made(f, fused, made_by);
  for (size_t k = fused->count; k-- > 0;) {
    const mpg_node *node = &graph->nodes[fused->nodes[k]];
    bool elsewhere = mpg_node_is_view(node) && !fusion->internal[node->values];
    if (mpg_node_flag(node, MPG_OP_SHAPE_ONLY)) continue;
    for (uint32_t i = 0; i < node->num_inputs; i++) {
      mpg_value input = mpg_node_inputs(graph, node)[i];
      if (!mpg_has_value(input)) continue;
      uint32_t v = mpg_value_index(graph, input);
      if (elsewhere || made_by[v] != fusion->group_of[k]) fusion->internal[v] = false;
    }
  }
  mpg_free(made_by);
  return MPG_OK;
}

static mpg_status begin_result(const fuser *f, mpg_order *fused) {
  const mpg_order *order = f->order;
  size_t size = (order->count + 1) * sizeof *fused->nodes;
  fused->nodes = mpg_malloc(size);
  fused->fusion = mpg_calloc(1, sizeof *fused->fusion);
  if (!fused->nodes || !fused->fusion) return mpg_out_of_host_memory(size);
  fused->fusion->group_of = mpg_malloc(size);
  fused->fusion->internal = mpg_calloc(f->graph->num_values + 1, sizeof *fused->fusion->internal);
  if (!fused->fusion->group_of || !fused->fusion->internal) return mpg_out_of_host_memory(size);
  if (!order->segment_of) return MPG_OK;
  fused->segment_of = mpg_malloc(size);
  fused->segments = mpg_malloc((order->num_segments + 1) * sizeof *fused->segments);
  if (!fused->segment_of || !fused->segments) return mpg_out_of_host_memory(size);
  memcpy(fused->segments, order->segments, order->num_segments * sizeof *fused->segments);
  fused->num_segments = order->num_segments;
  return MPG_OK;
}

/* Writes the new order: groups at the positions of their last kernels, and all other nodes. */
static mpg_status make_result(fuser *f, mpg_order *fused) {
  const mpg_order *order = f->order;
  MPG_TRY(begin_result(f, fused));
  for (uint32_t k = 0; k < order->count; k++) {
    uint32_t n = order->nodes[k], number = f->group_of[n];
    if (number != MPG_NO_GROUP) {
      if (f->groups[number]->last == k) MPG_TRY(put_group(f, f->groups[number], number, fused));
      continue;
    }
    fused->fusion->group_of[fused->count] = MPG_NO_GROUP;
    if (fused->segment_of) fused->segment_of[fused->count] = order->segment_of[k];
    fused->nodes[fused->count++] = n;
  }
  MPG_ASSERT(fused->count == order->count);
  return find_internal(f, fused);
}

static mpg_status begin(fuser *f) {
  const mpg_graph *graph = f->graph;
  f->group_of = mpg_malloc((graph->num_nodes + 1) * sizeof *f->group_of);
  f->kept = mpg_calloc(graph->num_values + 1, sizeof *f->kept);
  f->trial = mpg_malloc(sizeof *f->trial);
  if (!f->group_of || !f->kept || !f->trial)
    return mpg_out_of_host_memory(graph->num_nodes * sizeof *f->group_of);
  memset(f->group_of, 0xff, (graph->num_nodes + 1) * sizeof *f->group_of);
  find_kept(f);
  return MPG_OK;
}

static void end(fuser *f) {
  for (uint32_t i = 0; i < f->num_groups; i++) mpg_free(f->groups[i]);
  mpg_free(f->groups);
  mpg_free(f->trial);
  mpg_free(f->spare);
  mpg_free(f->group_of);
  mpg_free(f->kept);
  mpg_analysis_free(&f->facts);
}

mpg_status mpg_graph_fuse(const mpg_graph *graph, const mpg_order *order, const uint32_t *external,
                          const bool *saved, const uint8_t *kinds, const bool *unfused,
                          mpg_order *fused, bool *changed) {
  fuser f = {.graph = graph,
             .order = order,
             .external = external,
             .saved = saved,
             .unfused = unfused,
             .kinds = kinds};
  mpg_status status = MPG_OK;
  uint32_t groups = 0;
  mpg_order moved = {0};
  *changed = false;
  MPG_GOTO(mpg_analyse(graph, order, &f.facts));
  MPG_GOTO(mpg_fuse_order(graph, order, kinds, unfused, &f.facts, &moved));
  if (moved.count) {
    f.order = &moved;
    mpg_analysis_free(&f.facts);
    MPG_GOTO(mpg_analyse(graph, &moved, &f.facts));
  }
  MPG_GOTO(begin(&f));
  for (uint32_t k = 0; k < f.order->count; k++) MPG_GOTO(visit(&f, k));
  close_all(&f);
  for (uint32_t i = 0; i < f.num_groups; i++) groups += f.groups[i] != NULL;
  if (!groups) goto fail;
  MPG_GOTO(make_result(&f, fused));
  *changed = true;
fail:
  end(&f);
  mpg_free(moved.nodes);
  mpg_free(moved.segment_of);
  if (status != MPG_OK) mpg_order_free(fused);
  return status;
}
