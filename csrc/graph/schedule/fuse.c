/* Which neighbours in an order become one pass over memory. One walk along the order: a node joins
 * the open groups that its inputs come from, or closes them, because a group runs where its last
 * member is and whoever uses its results comes after it. */
#include "graph/schedule/fuse.h"

#include <string.h>

typedef struct open_group {
  mpg_device_id device;
  uint32_t segment;
  bool open;
  mpg_domain domain;
  uint32_t last;        /* position of its last kernel */
  uint32_t num_kernels; /* members that are no views */
  uint32_t num_members, num_uses, num_trailing;
  uint32_t producer; /* node; UINT32_MAX: none */
  int64_t panel,
      least; /* elements of the producer's panels, and of the smallest that many threads may want */
  uint32_t members[MPG_FUSED_MAX_MEMBERS]; /* positions, ascending */
  mpg_fused_use uses[MPG_FUSED_MAX_VALUES];
} open_group;

typedef struct fuser {
  const mpg_graph *graph;
  const mpg_order *order;
  const uint32_t *external;
  const bool *saved, *apart;
  open_group **groups; /* NULL: dissolved */
  uint32_t num_groups;
  size_t groups_capacity;
  uint32_t first_open; /* those before are closed */
  uint32_t *group_of;  /* per node; UINT32_MAX */
  uint32_t *root;      /* per value: what it is a view of */
  uint32_t *last_use;  /* per root: position; 0 when nobody reads it */
  bool *kept;          /* per root: it, or a view of it, lives on or lies in an external array */
  open_group *trial, *spare;
} fuser;

static mpg_fused_use *find_use(open_group *g, uint32_t value) {
  for (uint32_t i = 0; i < g->num_uses; i++)
    if (g->uses[i].value == value) return &g->uses[i];
  return NULL;
}

/* Notes how a value is seen: all members must see it in one way. */
static bool add_use(open_group *g, uint32_t value, uint32_t varying, bool made) {
  mpg_fused_use *use = find_use(g, value);
  if (use) {
    use->made |= made;
    return use->varying == varying && !use->trailing;
  }
  if (g->num_uses == MPG_FUSED_MAX_VALUES) return false;
  g->uses[g->num_uses++] = (mpg_fused_use){value, varying, made, false};
  return true;
}

static void map_uses(open_group *g, const mpg_domain_map *map) {
  for (uint32_t i = 0; i < g->num_uses; i++)
    g->uses[i].varying = mpg_domain_apply(map, g->uses[i].varying);
}

static int find_split(const mpg_domain *domain, const mpg_fused_use *uses, size_t count) {
  int split = domain->ndim - 1;
  for (size_t i = 0; i < count; i++) {
    if (!uses[i].made) continue;
    if (uses[i].trailing) {
      int last = domain->ndim - 1; /* that is reduced */
      while (uses[i].varying >> last & 1) last--;
      if (split > last) split = last;
      continue;
    }
    for (int d = 0; d <= split; d++)
      if (!(uses[i].varying >> d & 1)) split = d - 1;
  }
  return split;
}

static int64_t common_divisor(int64_t a, int64_t b) {
  while (b) {
    int64_t rest = a % b;
    a = b;
    b = rest;
  }
  return a;
}

/* Tiles small enough for a cache, and enough of them for the threads. */
static bool can_be_cut(const open_group *g) {
  int64_t all = mpg_domain_size(&g->domain, mpg_domain_all(&g->domain)), tile = 1;
  for (int d = find_split(&g->domain, g->uses, g->num_uses) + 1; d < g->domain.ndim; d++)
    tile *= g->domain.dims[d];
  if (tile > MPG_FUSED_MAX_TILE || (all > MPG_FUSED_MAX_TILE && all / tile < 8)) return false;
  if (g->producer != UINT32_MAX && g->least % tile) return false;
  if (all <= MPG_FUSED_MAX_FEW) return true;
  for (uint32_t i = 0; i < g->num_uses; i++) { /* threads share whole chunks */
    if (!g->uses[i].trailing) continue;
    int64_t inner = mpg_domain_size(&g->domain, g->uses[i].varying),
            chunk = mpg_reduction_chunk(all / inner, inner);
    if ((all / inner + chunk - 1) / chunk < 8 || chunk * inner % tile) return false;
    if (g->producer != UINT32_MAX &&
        all / 8 < g->panel / common_divisor(g->panel, chunk * inner) * chunk * inner)
      return false; /* and whole panels */
  }
  return true;
}

/* The last member reduces the whole domain along its outer dims. */
static bool add_trailing_reduction(open_group *g, uint32_t in, uint32_t out) {
  enum { MAX_INNER = 4096 };
  uint32_t all = mpg_domain_all(&g->domain), reduced = all & ~find_use(g, out)->varying;
  if (find_use(g, in)->varying != all || (reduced & (reduced + 1)) ||
      g->num_trailing == MPG_FUSED_MAX_TRAILING)
    return false;
  if (mpg_domain_size(&g->domain, all & ~reduced) > MAX_INNER) return false;
  find_use(g, out)->trailing = true;
  g->num_trailing++;
  return can_be_cut(g);
}

static bool add_member(open_group *g, uint32_t position, bool kernel) {
  if (g->num_members == MPG_FUSED_MAX_MEMBERS) return false;
  uint32_t at = g->num_members++;
  for (; at && g->members[at - 1] > position; at--) g->members[at] = g->members[at - 1];
  g->members[at] = position;
  if (kernel && position > g->last) g->last = position;
  g->num_kernels += kernel;
  return true;
}

/* The node as a member of g. False leaves g in pieces: callers try on a copy. */
static bool join(fuser *f, open_group *g, uint32_t position, const mpg_node *node,
                 const mpg_fuse_action *a) {
  const mpg_value *inputs = mpg_node_inputs(f->graph, node);
  mpg_domain_map old, joined;
  const mpg_fused_use *anchor = NULL;
  uint32_t known = 0, all = mpg_domain_all(&a->domain);
  for (uint32_t i = 0; i < a->num_inputs && !anchor; i++) {
    const mpg_fused_use *use = find_use(g, mpg_value_index(f->graph, inputs[i]));
    if (use && a->bits[i] == all) anchor = use;
  }
  if (anchor) {
    if (!mpg_domain_join(&g->domain, anchor->varying, &a->domain, &old, &joined)) return false;
  } else { /* the group's whole domain is a part of the node's */
    bool found = false;
    for (uint32_t i = 0; i < a->num_inputs && !found; i++) {
      const mpg_fused_use *use = find_use(g, mpg_value_index(f->graph, inputs[i]));
      found = use && use->varying == mpg_domain_all(&g->domain);
      if (found) known = a->bits[i];
    }
    if (!found || g->num_trailing || g->producer != UINT32_MAX ||
        !mpg_domain_widen(&g->domain, &a->domain, known, &old, &joined))
      return false;
  }
  map_uses(g, &old);
  for (uint32_t i = 0; i < a->num_inputs; i++)
    if (!add_use(g, mpg_value_index(f->graph, inputs[i]), mpg_domain_apply(&joined, a->bits[i]),
                 false))
      return false;
  for (uint32_t i = 0; i < a->num_outputs; i++)
    if (!add_use(g, node->values + i, mpg_domain_apply(&joined, a->bits[a->num_inputs + i]), true))
      return false;
  if (!add_member(g, position, true)) return false;
  if (can_be_cut(g)) return true;
  return mpg_fuse_kind_of(f->graph, node) == MPG_FUSE_REDUCE &&
         add_trailing_reduction(g, mpg_value_index(f->graph, inputs[0]), node->values);
}

/* All of `other` into g, which reads `value` of it. */
static bool merge(open_group *g, const open_group *other, uint32_t value) {
  const mpg_fused_use *here = find_use(g, value), *there = find_use((open_group *)other, value);
  mpg_domain_map old, joined;
  if (!here || !there || there->varying != mpg_domain_all(&other->domain)) return false;
  if ((other->num_trailing || other->producer != UINT32_MAX) &&
      here->varying != mpg_domain_all(&g->domain))
    return false;
  if (g->producer != UINT32_MAX && other->producer != UINT32_MAX) return false;
  if (other->producer != UINT32_MAX)
    g->producer = other->producer, g->panel = other->panel, g->least = other->least;
  if (g->num_trailing + other->num_trailing > MPG_FUSED_MAX_TRAILING) return false;
  if (!mpg_domain_join(&g->domain, here->varying, &other->domain, &old, &joined)) return false;
  map_uses(g, &old);
  for (uint32_t i = 0; i < other->num_uses; i++) {
    if (!add_use(g, other->uses[i].value, mpg_domain_apply(&joined, other->uses[i].varying),
                 other->uses[i].made))
      return false;
    find_use(g, other->uses[i].value)->trailing = other->uses[i].trailing;
  }
  g->num_trailing += other->num_trailing;
  if (g->num_members + other->num_members > MPG_FUSED_MAX_MEMBERS) return false;
  uint32_t kernels = g->num_kernels + other->num_kernels;
  for (uint32_t i = 0; i < other->num_members; i++) add_member(g, other->members[i], false);
  g->num_kernels = kernels;
  return can_be_cut(g);
}

/* Moving a group to a later place keeps what it reads alive until there, and what it makes out of
 * memory until there. */
static bool worth_moving(const fuser *f, const open_group *g, uint32_t position,
                         const uint32_t *others, uint32_t num_others) {
  enum { LOOK_BACK = 256 };
  const mpg_graph *graph = f->graph;
  bool gap = position - g->last > LOOK_BACK;
  for (uint32_t k = g->last + 1; k < position && !gap; k++) {
    const mpg_node *node = &graph->nodes[f->order->nodes[k]];
    bool moves_too = mpg_node_is_view(node);
    for (uint32_t i = 0; i < num_others; i++)
      moves_too |= f->group_of[f->order->nodes[k]] == others[i];
    gap = !moves_too && mpg_device_id_equal(mpg_node_runs_on(graph, node), g->device);
  }
  if (!gap) return true;
  size_t longer = 0, shorter = 0;
  for (uint32_t i = 0; g->producer != UINT32_MAX && i < graph->nodes[g->producer].num_inputs; i++) {
    uint32_t root =
        f->root[mpg_value_index(graph, mpg_node_inputs(graph, &graph->nodes[g->producer])[i])];
    if (!f->kept[root] && f->last_use[root] < position)
      longer += mpg_desc_bytes(&graph->values[root].desc);
  }
  for (uint32_t i = 0; i < g->num_uses; i++) {
    uint32_t root = f->root[g->uses[i].value];
    bool counted = f->kept[root];
    for (uint32_t j = 0; j < i && !counted; j++) counted = f->root[g->uses[j].value] == root;
    if (counted) continue;
    size_t bytes = mpg_desc_bytes(&graph->values[root].desc);
    if (g->uses[i].made) {
      if (f->last_use[root] >= position) shorter += bytes;
    } else if (f->last_use[root] < position) {
      longer += bytes;
    }
  }
  return longer <= shorter;
}

static void dissolve(fuser *f, uint32_t number) {
  open_group *g = f->groups[number];
  for (uint32_t i = 0; i < g->num_members; i++)
    f->group_of[f->order->nodes[g->members[i]]] = UINT32_MAX;
  if (!f->spare)
    f->spare = g;
  else
    mpg_free(g);
  f->groups[number] = NULL;
}

static void close_group(fuser *f, uint32_t number) {
  open_group *g = f->groups[number];
  g->open = false;
  if (g->num_kernels < 2) dissolve(f, number);
}

static bool is_open(const fuser *f, uint32_t number) {
  return number != UINT32_MAX && f->groups[number] && f->groups[number]->open;
}

/* The open groups that a node's inputs come from, on its device and in its segment; those of others
 * are closed. */
static uint32_t sources(fuser *f, const mpg_node *node, uint32_t segment, uint32_t *found,
                        uint32_t limit) {
  uint32_t count = 0;
  if (mpg_node_flag(node, MPG_OP_SHAPE_ONLY)) return 0;
  for (uint32_t i = 0; i < node->num_inputs; i++) {
    mpg_value input = mpg_node_inputs(f->graph, node)[i];
    uint32_t number = mpg_has_value(input) ? f->group_of[input.node] : UINT32_MAX;
    if (!is_open(f, number)) continue;
    const open_group *g = f->groups[number];
    bool known = false;
    for (uint32_t k = 0; k < count; k++) known |= found[k] == number;
    if (known) continue;
    if (count < limit && g->segment == segment &&
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

static mpg_status start(fuser *f, uint32_t position, uint32_t segment, const mpg_node *node,
                        const mpg_fuse_action *a, const mpg_product *producer) {
  mpg_device *device;
  MPG_TRY(mpg_device_get(node->device, &device));
  if (!mpg_kernel_get_fused(device)) return MPG_OK;
  open_group *g = f->spare ? f->spare : mpg_malloc(sizeof *g);
  if (!g) return mpg_out_of_host_memory(sizeof *g);
  f->spare = NULL;
  *g = (open_group){.device = node->device,
                    .segment = segment,
                    .open = true,
                    .domain = a->domain,
                    .last = position,
                    .producer = UINT32_MAX};
  bool fits = true;
  if (producer)
    g->producer = f->order->nodes[position], g->panel = producer->panel * producer->n,
    g->least = producer->least * producer->n;
  for (uint32_t i = 0; i < a->num_inputs && fits && !producer; i++)
    fits = add_use(g, mpg_value_index(f->graph, mpg_node_inputs(f->graph, node)[i]), a->bits[i],
                   false);
  for (uint32_t i = 0; i < a->num_outputs && fits; i++)
    fits = add_use(g, node->values + i, a->bits[a->num_inputs + i], true);
  if (!fits || !add_member(g, position, true) || !can_be_cut(g)) {
    f->spare = g;
    return MPG_OK;
  }
  mpg_status status =
      mpg_grow((void **)&f->groups, &f->groups_capacity, f->num_groups + 1, sizeof *f->groups);
  if (status != MPG_OK) {
    f->spare = g;
    return status;
  }
  f->group_of[f->order->nodes[position]] = f->num_groups;
  f->groups[f->num_groups++] = g;
  return MPG_OK;
}

/* Whether the device's runner of groups takes the node. */
static mpg_status is_taken(const fuser *f, const mpg_node *node, bool *taken) {
  mpg_device *device;
  mpg_dtype dtypes[MPG_MAX_NAMED];
  MPG_TRY(mpg_device_get(node->device, &device));
  mpg_fuses_fn fuses = mpg_kernel_get_fuses(device);
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

static void take_over(fuser *f, uint32_t number) { /* the trial succeeded */
  open_group *g = f->groups[number];
  f->groups[number] = f->trial;
  f->trial = g;
  for (uint32_t i = 0; i < f->groups[number]->num_members; i++)
    f->group_of[f->order->nodes[f->groups[number]->members[i]]] = number;
}

static mpg_status visit(fuser *f, uint32_t position) {
  enum { MAX_SOURCES = 8 };
  uint32_t n = f->order->nodes[position], found[MAX_SOURCES],
           segment = f->order->segment_of ? f->order->segment_of[position] : 0;
  const mpg_node *node = &f->graph->nodes[n];
  mpg_fuse_kind kind = f->apart[n] ? MPG_FUSE_NOT : mpg_fuse_kind_of(f->graph, node);
  if (mpg_node_mutates(node)) { /* nothing may move past it */
    for (uint32_t i = f->first_open; i < f->num_groups; i++)
      if (is_open(f, i)) close_group(f, i);
    f->first_open = f->num_groups;
  }
  uint32_t count = sources(f, node, segment, found, MAX_SOURCES);
  if (kind == MPG_FUSE_VIEW && count) {
    open_group *g = f->groups[found[0]];
    mpg_fused_use *use = find_use(g, mpg_value_index(f->graph, mpg_node_inputs(f->graph, node)[0]));
    bool trailing = use && use->trailing;
    if (use && add_use(g, node->values, use->varying, true) && add_member(g, position, false)) {
      f->group_of[n] = found[0];
      find_use(g, node->values)->trailing = trailing;
    } else {
      close_group(f, found[0]);
    }
    return MPG_OK;
  }
  mpg_fuse_action a;
  mpg_product producer;
  bool fusible = (kind == MPG_FUSE_MAP || kind == MPG_FUSE_REDUCE) &&
                 mpg_fuse_describe(f->graph, node, kind, &a);
  if (fusible) MPG_TRY(is_taken(f, node, &fusible));
  uint32_t base = UINT32_MAX;
  for (uint32_t tries = 0; fusible && base == UINT32_MAX && tries < count;
       tries++) { /* the largest first */
    uint32_t best = UINT32_MAX;
    int64_t best_size = -1;
    for (uint32_t i = tries; i < count; i++) {
      const mpg_domain *domain = &f->groups[found[i]]->domain;
      int64_t size = mpg_domain_size(domain, mpg_domain_all(domain));
      if (size > best_size) best = i, best_size = size;
    }
    uint32_t number = found[best];
    found[best] = found[tries];
    found[tries] = number;
    *f->trial = *f->groups[number];
    if (!worth_moving(f, f->trial, position, found, count) ||
        !join(f, f->trial, position, node, &a))
      continue;
    take_over(f, base = number);
    f->group_of[n] = base;
  }
  for (uint32_t i = 0; i < count; i++) {
    if (found[i] == base || !is_open(f, found[i])) continue;
    if (base != UINT32_MAX) {
      open_group *other = f->groups[found[i]];
      *f->trial = *f->groups[base];
      if (worth_moving(f, other, position, found, count) &&
          merge(f->trial, other, value_from(f, node, found[i]))) {
        take_over(f, base);
        if (!f->spare)
          f->spare = other;
        else
          mpg_free(other);
        f->groups[found[i]] = NULL;
        continue;
      }
    }
    close_group(f, found[i]);
  }
  bool produces = kind == MPG_FUSE_PRODUCER && mpg_fuse_product(f->graph, node, &producer);
  if (produces) MPG_TRY(is_taken(f, node, &produces));
  if (produces) {
    mpg_domain_of(&f->graph->values[node->values].desc.shape, &a.domain);
    a.num_outputs = 1;
    a.num_inputs = 0;
    a.bits[0] = mpg_domain_all(&a.domain);
    return start(f, position, segment, node, &a, &producer);
  }
  return fusible && base == UINT32_MAX ? start(f, position, segment, node, &a, NULL) : MPG_OK;
}

static void look_ahead(fuser *f) {
  const mpg_graph *graph = f->graph;
  for (size_t v = 0; v < graph->num_values; v++) f->root[v] = (uint32_t)v;
  for (size_t n = 0; n < graph->num_nodes; n++) { /* creation order: inputs first */
    const mpg_node *node = &graph->nodes[n];
    f->group_of[n] = UINT32_MAX;
    if (mpg_node_is_view(node))
      f->root[node->values] = f->root[mpg_value_index(graph, mpg_node_inputs(graph, node)[0])];
  }
  for (size_t v = 0; v < graph->num_values; v++)
    if (f->external[v] != UINT32_MAX) f->kept[f->root[v]] = true;
  for (size_t k = 0; k < f->order->count; k++) {
    const mpg_node *node = &graph->nodes[f->order->nodes[k]];
    for (uint32_t i = 0; i < node->num_outputs; i++)
      if (f->saved && f->saved[node->values + i]) f->kept[f->root[node->values + i]] = true;
    if (mpg_node_flag(node, MPG_OP_SHAPE_ONLY)) continue;
    for (uint32_t i = 0; i < node->num_inputs; i++) {
      mpg_value input = mpg_node_inputs(graph, node)[i];
      if (mpg_has_value(input)) f->last_use[f->root[mpg_value_index(graph, input)]] = (uint32_t)k;
    }
  }
}

/* --- What goes earlier ------------------------------------------------------------------------ */

/* A reduction along the outer dims of what a member of a group may make. */
static bool is_trailing_reduction(const fuser *f, uint32_t n) {
  const mpg_graph *graph = f->graph;
  const mpg_node *node = &graph->nodes[n];
  mpg_fuse_action a;
  if (f->apart[n] || mpg_fuse_kind_of(graph, node) != MPG_FUSE_REDUCE ||
      !mpg_fuse_describe(graph, node, MPG_FUSE_REDUCE, &a))
    return false;
  uint32_t reduced = a.bits[0] & ~a.bits[1],
           maker = mpg_view_root(graph, mpg_node_inputs(graph, node)[0]).node;
  mpg_fuse_kind kind =
      f->apart[maker] ? MPG_FUSE_NOT : mpg_fuse_kind_of(graph, &graph->nodes[maker]);
  return !(reduced & (reduced + 1)) && (kind == MPG_FUSE_MAP || kind == MPG_FUSE_PRODUCER) &&
         mpg_device_id_equal(graph->nodes[maker].device, node->device);
}

typedef struct pulling {
  uint32_t *place; /* per node: its position, or that of the node it is pulled behind; UINT32_MAX:
                      not in the order */
  uint32_t *next;  /* per node: the one behind it */
  uint32_t *last;  /* per node: the last one pulled behind it, or itself */
  uint32_t *users; /* per node: inputs that read output 0 */
  bool *follows;   /* per node: it is a producer, or is pulled behind one */
} pulling;

/* What a product may be followed by at once, because the rest of what it reads is there: no array
 * lives longer for it. */
static bool may_follow(const fuser *f, const pulling *p, uint32_t n, uint32_t *source) {
  const mpg_graph *graph = f->graph;
  const mpg_node *node = &graph->nodes[n];
  const mpg_value *inputs = mpg_node_inputs(graph, node);
  if (f->apart[n] || mpg_fuse_kind_of(graph, node) != MPG_FUSE_MAP) return false;
  *source = inputs[0].node;
  for (uint32_t i = 1; i < node->num_inputs; i++)
    if (p->place[inputs[i].node] != UINT32_MAX &&
        (p->place[*source] == UINT32_MAX || p->place[inputs[i].node] > p->place[*source]))
      *source = inputs[i].node;
  for (uint32_t i = 0; i < node->num_inputs; i++)
    if (inputs[i].node != *source && p->place[inputs[i].node] != UINT32_MAX &&
        p->place[inputs[i].node] >= p->place[*source])
      return false;
  const mpg_node *maker = &graph->nodes[*source];
  return p->place[*source] != UINT32_MAX && p->follows[*source] && p->users[*source] == 1 &&
         maker->num_outputs == 1 && node->num_outputs == 1 &&
         mpg_device_id_equal(maker->device, node->device) &&
         mpg_desc_bytes(&graph->values[node->values].desc) <=
             mpg_desc_bytes(&graph->values[maker->values].desc);
}

/* The order with such nodes right behind what they read, in the same segment, but not past a write.
 * `pulled` is filled only where it differs; its segments are borrowed. */
static mpg_status pull(const fuser *f, mpg_order *pulled) {
  const mpg_order *order = f->order;
  const mpg_graph *graph = f->graph;
  mpg_status status = MPG_OK;
  size_t count = graph->num_nodes + 1;
  pulling p = {mpg_malloc(count * sizeof *p.place), mpg_malloc(count * sizeof *p.next),
               mpg_malloc(count * sizeof *p.last), mpg_calloc(count, sizeof *p.users),
               mpg_calloc(count, sizeof *p.follows)};
  uint32_t write = 0, tail = UINT32_MAX;
  bool any = false;
  if (!p.place || !p.next || !p.last || !p.users || !p.follows)
    MPG_GOTO(mpg_out_of_host_memory(count * sizeof *p.place));
  memset(p.place, 0xff, count * sizeof *p.place);
  for (uint32_t k = 0; k < order->count; k++) {
    const mpg_node *node = &graph->nodes[order->nodes[k]];
    for (uint32_t i = 0; i < node->num_inputs; i++)
      if (mpg_has_value(mpg_node_inputs(graph, node)[i]))
        p.users[mpg_node_inputs(graph, node)[i].node]++;
  }
  for (size_t i = 0; i < graph->num_outputs; i++) p.users[graph->outputs[i].node]++;
  for (uint32_t k = 0; k < order->count; k++) {
    uint32_t n = order->nodes[k], source = UINT32_MAX;
    if (mpg_node_mutates(&graph->nodes[n])) write = k;
    bool trails = is_trailing_reduction(f, n), moves = trails || may_follow(f, &p, n, &source);
    if (trails) source = mpg_node_inputs(graph, &graph->nodes[n])[0].node;
    moves = moves && p.place[source] != UINT32_MAX && p.place[source] >= write &&
            !(order->segment_of && order->segment_of[p.place[source]] != order->segment_of[k]);
    p.follows[n] =
        trails ? false : moves || mpg_fuse_kind_of(graph, &graph->nodes[n]) == MPG_FUSE_PRODUCER;
    p.last[n] = n;
    p.place[n] = moves ? p.place[source] : k;
    uint32_t behind = moves ? p.last[source] : tail;
    any |= behind != tail;
    p.next[n] = behind == tail ? UINT32_MAX : p.next[behind];
    if (behind == tail) tail = n;
    if (behind != UINT32_MAX) p.next[behind] = n;
    if (moves) p.last[source] = n;
  }
  if (!any) goto fail;
  pulled->segments = order->segments;
  pulled->num_segments = order->num_segments;
  pulled->nodes = mpg_malloc((order->count + 1) * sizeof *pulled->nodes);
  pulled->segment_of =
      order->segment_of ? mpg_malloc((order->count + 1) * sizeof *pulled->segment_of) : NULL;
  if (!pulled->nodes || (order->segment_of && !pulled->segment_of))
    MPG_GOTO(mpg_out_of_host_memory(order->count * sizeof *pulled->nodes));
  for (uint32_t n = order->nodes[0]; n != UINT32_MAX; n = p.next[n]) {
    if (order->segment_of) pulled->segment_of[pulled->count] = order->segment_of[p.place[n]];
    pulled->nodes[pulled->count++] = n;
  }
  MPG_ASSERT(pulled->count == order->count);
fail:
  mpg_free(p.place);
  mpg_free(p.next);
  mpg_free(p.last);
  mpg_free(p.users);
  mpg_free(p.follows);
  return status;
}

/* --- The result ------------------------------------------------------------------------------- */

/* Neighbouring dims along which every value moves or stands alike become one. */
static void collapse(open_group *g) {
  for (int d = g->domain.ndim - 1; d > 0; d--) {
    bool alike = true;
    for (uint32_t i = 0; i < g->num_uses && alike; i++)
      alike = (g->uses[i].varying >> d & 1) == (g->uses[i].varying >> (d - 1) & 1);
    if (!alike) continue;
    g->domain.dims[d - 1] *= g->domain.dims[d];
    memmove(g->domain.dims + d, g->domain.dims + d + 1,
            (size_t)(g->domain.ndim - d - 1) * sizeof *g->domain.dims);
    g->domain.ndim--;
    for (uint32_t i = 0; i < g->num_uses; i++) {
      uint32_t low = g->uses[i].varying & ((1u << d) - 1);
      g->uses[i].varying = low | (g->uses[i].varying >> (d + 1)) << d;
    }
  }
}

static mpg_status put_group(fuser *f, open_group *g, uint32_t number, mpg_order *fused) {
  mpg_fusion *fusion = fused->fusion;
  collapse(g);
  MPG_TRY(mpg_grow((void **)&fusion->groups, &fusion->groups_capacity, fusion->num_groups + 1,
                   sizeof *fusion->groups));
  MPG_TRY(mpg_grow((void **)&fusion->uses, &fusion->uses_capacity, fusion->num_uses + g->num_uses,
                   sizeof *fusion->uses));
  mpg_fusion_group *group = &fusion->groups[fusion->num_groups];
  *group = (mpg_fusion_group){.first = (uint32_t)fused->count,
                              .ndim = g->domain.ndim,
                              .split = find_split(&g->domain, g->uses, g->num_uses),
                              .uses = (uint32_t)fusion->num_uses,
                              .num_uses = g->num_uses,
                              .producer = g->producer};
  memcpy(group->dims, g->domain.dims, sizeof group->dims);
  memcpy(fusion->uses + fusion->num_uses, g->uses, g->num_uses * sizeof *g->uses);
  fusion->num_uses += g->num_uses;
  for (uint32_t i = 0; i < g->num_members; i++) {
    uint32_t n = f->order->nodes[g->members[i]];
    if (g->members[i] > g->last) { /* views that only others may use */
      f->group_of[n] = UINT32_MAX;
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

static void find_internal(const fuser *f, mpg_order *fused) {
  const mpg_graph *graph = f->graph;
  mpg_fusion *fusion = fused->fusion;
  bool *internal = fusion->internal;
  /* Made by a member, and neither kept nor read by others. From the end, so that a view's users are
   * seen before its source. */
  uint32_t *position = f->last_use;
  memset(position, 0xff,
         (graph->num_values + 1) * sizeof *position); /* now: per value, the group that makes it */
  for (size_t k = 0; k < fused->count; k++) {
    if (fusion->group_of[k] == UINT32_MAX) continue;
    const mpg_node *node = &graph->nodes[fused->nodes[k]];
    for (uint32_t i = 0; i < node->num_outputs; i++) {
      uint32_t v = node->values + i;
      position[v] = fusion->group_of[k];
      internal[v] = f->external[v] == UINT32_MAX && !(f->saved && f->saved[v]);
    }
  }
  for (size_t i = 0; i < graph->num_outputs; i++)
    internal[mpg_value_index(graph, graph->outputs[i])] = false;
  for (size_t k = fused->count; k-- > 0;) {
    const mpg_node *node = &graph->nodes[fused->nodes[k]];
    bool elsewhere = mpg_node_is_view(node) && !internal[node->values];
    if (mpg_node_flag(node, MPG_OP_SHAPE_ONLY)) continue;
    for (uint32_t i = 0; i < node->num_inputs; i++) {
      mpg_value input = mpg_node_inputs(graph, node)[i];
      if (!mpg_has_value(input)) continue;
      uint32_t v = mpg_value_index(graph, input);
      if (elsewhere || position[v] != fusion->group_of[k]) internal[v] = false;
    }
  }
}

static mpg_status put_together(fuser *f, mpg_order *fused) {
  const mpg_order *order = f->order;
  fused->nodes = mpg_malloc((order->count + 1) * sizeof *fused->nodes);
  fused->fusion = mpg_calloc(1, sizeof *fused->fusion);
  if (!fused->nodes || !fused->fusion)
    return mpg_out_of_host_memory(order->count * sizeof *fused->nodes);
  fused->fusion->group_of = mpg_malloc((order->count + 1) * sizeof *fused->fusion->group_of);
  fused->fusion->internal = mpg_calloc(f->graph->num_values + 1, sizeof *fused->fusion->internal);
  if (!fused->fusion->group_of || !fused->fusion->internal)
    return mpg_out_of_host_memory(order->count * sizeof *fused->nodes);
  if (order->segment_of) {
    fused->segment_of = mpg_malloc((order->count + 1) * sizeof *fused->segment_of);
    fused->segments = mpg_malloc((order->num_segments + 1) * sizeof *fused->segments);
    if (!fused->segment_of || !fused->segments)
      return mpg_out_of_host_memory(order->count * sizeof *fused->segment_of);
    memcpy(fused->segments, order->segments, order->num_segments * sizeof *fused->segments);
    fused->num_segments = order->num_segments;
  }
  for (uint32_t k = 0; k < order->count; k++) {
    uint32_t n = order->nodes[k], number = f->group_of[n];
    if (number != UINT32_MAX) {
      if (f->groups[number]->last == k) MPG_TRY(put_group(f, f->groups[number], number, fused));
      continue;
    }
    fused->fusion->group_of[fused->count] = UINT32_MAX;
    if (fused->segment_of) fused->segment_of[fused->count] = order->segment_of[k];
    fused->nodes[fused->count++] = n;
  }
  MPG_ASSERT(fused->count == order->count);
  find_internal(f, fused);
  return MPG_OK;
}

mpg_status mpg_graph_fuse(const mpg_graph *graph, const mpg_order *order, const uint32_t *external,
                          const bool *saved, const bool *apart, mpg_order *fused, bool *changed) {
  fuser f = {.graph = graph, .order = order, .external = external, .saved = saved, .apart = apart};
  mpg_status status = MPG_OK;
  uint32_t groups = 0;
  mpg_order pulled = {0};
  *changed = false;
  MPG_GOTO(pull(&f, &pulled));
  if (pulled.count) f.order = order = &pulled;
  f.group_of = mpg_malloc((graph->num_nodes + 1) * sizeof *f.group_of);
  f.root = mpg_malloc((graph->num_values + 1) * sizeof *f.root);
  f.last_use = mpg_calloc(graph->num_values + 1, sizeof *f.last_use);
  f.kept = mpg_calloc(graph->num_values + 1, sizeof *f.kept);
  f.trial = mpg_malloc(sizeof *f.trial);
  if (!f.group_of || !f.root || !f.last_use || !f.kept || !f.trial)
    MPG_GOTO(mpg_out_of_host_memory(graph->num_values * sizeof *f.root));
  look_ahead(&f);
  for (uint32_t k = 0; k < order->count; k++) MPG_GOTO(visit(&f, k));
  for (uint32_t i = 0; i < f.num_groups; i++) {
    if (is_open(&f, i)) close_group(&f, i);
    groups += f.groups[i] != NULL;
  }
  if (!groups) goto fail;
  MPG_GOTO(put_together(&f, fused));
  *changed = true;
fail:
  for (uint32_t i = 0; i < f.num_groups; i++) mpg_free(f.groups[i]);
  mpg_free(f.groups);
  mpg_free(f.trial);
  mpg_free(f.spare);
  mpg_free(f.group_of);
  mpg_free(f.root);
  mpg_free(f.last_use);
  mpg_free(f.kept);
  mpg_free(pulled.nodes);
  mpg_free(pulled.segment_of);
  if (status != MPG_OK) mpg_order_free(fused);
  return status;
}

void mpg_fusion_free(mpg_fusion *fusion) {
  if (!fusion) return;
  mpg_free(fusion->groups);
  mpg_free(fusion->group_of);
  mpg_free(fusion->internal);
  mpg_free(fusion->uses);
  mpg_free(fusion);
}
