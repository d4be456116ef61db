/* Builds the groups of a fusion: joins nodes, merges groups, and checks that tiles can cut the
 * domain. */
#include "graph/schedule/fuse_groups.h"

#include <string.h>

mpg_fused_use *mpg_open_group_use(mpg_open_group *g, uint32_t value) {
  for (uint32_t i = 0; i < g->num_uses; i++)
    if (g->uses[i].value == value) return &g->uses[i];
  return NULL;
}

/* Adds the use of a value that varies along the dims `varying`. Returns false if another member
 * uses the value with different dims, or if the group has too many uses. */
static bool add_use(mpg_open_group *g, uint32_t value, uint32_t varying, bool made) {
  mpg_fused_use *use = mpg_open_group_use(g, value);
  if (use) {
    use->made |= made;
    return use->varying == varying && !use->trailing;
  }
  if (g->num_uses == MPG_FUSED_MAX_VALUES) return false;
  g->uses[g->num_uses++] = (mpg_fused_use){value, varying, made, false};
  return true;
}

static void map_uses(mpg_open_group *g, const mpg_domain_map *map) {
  for (uint32_t i = 0; i < g->num_uses; i++)
    g->uses[i].varying = mpg_domain_apply(map, g->uses[i].varying);
  g->row = mpg_domain_apply(map, g->row);
}

int mpg_open_group_split(const mpg_domain *domain, const mpg_fused_use *uses, size_t count) {
  int split = domain->ndim - 1;
  for (size_t i = 0; i < count; i++) {
    if (!uses[i].made) continue;
    if (uses[i].trailing) {
      int last = domain->ndim - 1; /* the last dim that is reduced */
      while (uses[i].varying >> last & 1) last--;
      if (split > last) split = last;
      continue;
    }
    for (int d = 0; d <= split; d++)
      if (!(uses[i].varying >> d & 1)) split = d - 1;
  }
  return split;
}

/* --- Tiles ------------------------------------------------------------------------------------ */

static int64_t common_divisor(int64_t a, int64_t b) {
  while (b) {
    int64_t rest = a % b;
    a = b;
    b = rest;
  }
  return a;
}

/* True if tiles are small enough for a cache and numerous enough for the threads. */
static bool can_be_cut(const mpg_open_group *g) {
  int64_t all = mpg_domain_size(&g->domain, mpg_domain_all(&g->domain)), tile = 1;
  for (int d = mpg_open_group_split(&g->domain, g->uses, g->num_uses) + 1; d < g->domain.ndim; d++)
    tile *= g->domain.dims[d];
  if (tile > MPG_FUSED_MAX_TILE) return false;
  /* Generated kernels have many threads, which compute few elements each. */
  if (g->generated) return true;
  if (all > MPG_FUSED_MAX_TILE && all / tile < 8) return false;
  if (g->producer != MPG_NO_NODE && g->least % tile) return false;
  if (all <= MPG_FUSED_MAX_FEW) return true;
  for (uint32_t i = 0; i < g->num_uses; i++) { /* threads get whole chunks of a reduction */
    if (!g->uses[i].trailing) continue;
    int64_t inner = mpg_domain_size(&g->domain, g->uses[i].varying),
            chunk = mpg_reduction_chunk(all / inner, inner);
    if ((all / inner + chunk - 1) / chunk < 8 || chunk * inner % tile) return false;
    /* Threads also get whole panels. */
    if (g->producer != MPG_NO_NODE &&
        all / 8 < g->panel / common_divisor(g->panel, chunk * inner) * chunk * inner)
      return false;
  }
  return true;
}

/* Marks the last member as a trailing reduction. Returns false unless it reduces the whole domain
 * along its outer dims and the group can still be cut into tiles. */
static bool add_trailing_reduction(mpg_open_group *g, uint32_t in, uint32_t out) {
  enum { MAX_INNER = 4096 };
  uint32_t all = mpg_domain_all(&g->domain), reduced = all & ~mpg_open_group_use(g, out)->varying;
  if (mpg_open_group_use(g, in)->varying != all || (reduced & (reduced + 1)) ||
      g->num_trailing == MPG_FUSED_MAX_TRAILING)
    return false;
  if (mpg_domain_size(&g->domain, all & ~reduced) > MAX_INNER) return false;
  mpg_open_group_use(g, out)->trailing = true;
  g->num_trailing++;
  return can_be_cut(g);
}

/* --- Rows of generated kernels ---------------------------------------------------------------- */

/* True if the reduced dims are the last dims and rows are not too long. */
static bool has_rows(const mpg_open_group *g) {
  uint32_t kept = mpg_domain_all(&g->domain) & ~g->row;
  return !g->row ||
         ((kept & (kept + 1)) == 0 && mpg_domain_size(&g->domain, g->row) <= MPG_FUSED_MAX_ROW);
}

/* Sets the row of a group. Returns false if the group has a different row, or if has_rows rejects
 * this one. */
static bool set_row(mpg_open_group *g, uint32_t row, mpg_dtype dtype) {
  if (g->row && (g->row != row || g->row_dtype != dtype)) return false;
  g->row = row;
  g->row_dtype = dtype;
  return has_rows(g);
}

/* Adds the candidate's row, as dims of the group's domain, and its trailing outputs. Returns false
 * if they do not fit the group. */
static bool add_row(mpg_open_group *g, const mpg_graph *graph, const mpg_fuse_candidate *c,
                    uint32_t row) {
  mpg_value in = mpg_node_inputs(graph, c->node)[0];
  if (mpg_open_group_use(g, mpg_value_index(graph, in))->varying != mpg_domain_all(&g->domain))
    return false;
  for (uint32_t i = 0; i < c->action.num_outputs; i++) {
    if (!(c->action.trailing >> i & 1)) continue;
    if (g->num_trailing == MPG_FUSED_MAX_TRAILING) return false;
    mpg_open_group_use(g, c->node->values + i)->trailing = true;
    g->num_trailing++;
  }
  return set_row(g, row, mpg_graph_at(graph, in)->desc.dtype);
}

/* --- Members ---------------------------------------------------------------------------------- */

static bool add_member(mpg_open_group *g, uint32_t position, bool kernel) {
  if (g->num_members == MPG_FUSED_MAX_MEMBERS) return false;
  uint32_t at = g->num_members++;
  for (; at && g->members[at - 1] > position; at--) g->members[at] = g->members[at - 1];
  g->members[at] = position;
  if (kernel && position > g->last) g->last = position;
  g->num_kernels += kernel;
  return true;
}

bool mpg_open_group_begin(mpg_open_group *g, const mpg_graph *graph, const mpg_fuse_candidate *c) {
  const mpg_fuse_action *a = &c->action;
  *g = (mpg_open_group){.device = c->node->device,
                        .segment = c->segment,
                        .open = true,
                        .domain = a->domain,
                        .last = c->position,
                        .producer = MPG_NO_NODE,
                        .generated = c->generated};
  if (c->kind == MPG_FUSE_PRODUCER) {
    g->producer = c->number;
    g->panel = c->product.panel * c->product.n;
    g->least = c->product.least * c->product.n;
  }
  for (uint32_t i = 0; i < a->num_inputs; i++)
    if (!add_use(g, mpg_value_index(graph, mpg_node_inputs(graph, c->node)[i]), a->bits[i], false))
      return false;
  for (uint32_t i = 0; i < a->num_outputs; i++)
    if (!add_use(g, c->node->values + i, a->bits[a->num_inputs + i], true)) return false;
  if (c->generated && a->row && !add_row(g, graph, c, a->row)) return false;
  return add_member(g, c->position, true) && can_be_cut(g);
}

bool mpg_open_group_add_view(mpg_open_group *g, const mpg_graph *graph,
                             const mpg_fuse_candidate *c) {
  uint32_t input = mpg_value_index(graph, mpg_node_inputs(graph, c->node)[0]),
           output = c->node->values;
  const mpg_fused_use *use = mpg_open_group_use(g, input);
  if (!use) return false;
  bool trailing = use->trailing;
  if (!add_use(g, output, use->varying, true) || !add_member(g, c->position, false)) return false;
  mpg_open_group_use(g, output)->trailing = trailing;
  return true;
}

/* Unifies the domains of the group and the node, through an input that spans the node's whole
 * domain and that the group uses. Sets *seen to true if the node has one of these inputs, even if
 * the domains cannot be unified. */
static bool join_by_input(mpg_open_group *g, const mpg_value *inputs, const mpg_graph *graph,
                          const mpg_fuse_action *a, mpg_domain_map *old, mpg_domain_map *joined,
                          bool *seen) {
  uint32_t all = mpg_domain_all(&a->domain);
  for (uint32_t i = 0; i < a->num_inputs; i++) {
    const mpg_fused_use *use = mpg_open_group_use(g, mpg_value_index(graph, inputs[i]));
    if (!use || a->bits[i] != all) continue;
    *seen = true;
    return mpg_domain_join(&g->domain, use->varying, &a->domain, old, joined);
  }
  return *seen = false;
}

/* Like join_by_input, but through an input that spans the group's whole domain and only a part of
 * the node's domain. The group's domain then grows to that of the node. */
static bool widen_by_input(mpg_open_group *g, const mpg_value *inputs, const mpg_graph *graph,
                           const mpg_fuse_action *a, mpg_domain_map *old, mpg_domain_map *joined) {
  uint32_t all = mpg_domain_all(&g->domain);
  if (g->num_trailing || g->producer != MPG_NO_NODE) return false;
  for (uint32_t i = 0; i < a->num_inputs; i++) {
    const mpg_fused_use *use = mpg_open_group_use(g, mpg_value_index(graph, inputs[i]));
    if (use && use->varying == all)
      return mpg_domain_widen(&g->domain, &a->domain, a->bits[i], old, joined);
  }
  return false;
}

bool mpg_open_group_join(mpg_open_group *g, const mpg_graph *graph, const mpg_fuse_candidate *c) {
  const mpg_value *inputs = mpg_node_inputs(graph, c->node);
  const mpg_fuse_action *a = &c->action;
  uint32_t output = c->node->values;
  mpg_domain_map old, joined;
  bool seen;
  if (!join_by_input(g, inputs, graph, a, &old, &joined, &seen) &&
      (seen || !widen_by_input(g, inputs, graph, a, &old, &joined)))
    return false;
  map_uses(g, &old);
  for (uint32_t i = 0; i < a->num_inputs; i++)
    if (!add_use(g, mpg_value_index(graph, inputs[i]), mpg_domain_apply(&joined, a->bits[i]),
                 false))
      return false;
  for (uint32_t i = 0; i < a->num_outputs; i++)
    if (!add_use(g, output + i, mpg_domain_apply(&joined, a->bits[a->num_inputs + i]), true))
      return false;
  if (!add_member(g, c->position, true) || !has_rows(g)) return false;
  if (c->generated)
    return (!a->row || add_row(g, graph, c, mpg_domain_apply(&joined, a->row))) && can_be_cut(g);
  return can_be_cut(g) || (c->kind == MPG_FUSE_REDUCE &&
                           add_trailing_reduction(g, mpg_value_index(graph, inputs[0]), output));
}

bool mpg_open_group_merge(mpg_open_group *g, mpg_open_group *other, uint32_t value) {
  const mpg_fused_use *here = mpg_open_group_use(g, value),
                      *there = mpg_open_group_use(other, value);
  mpg_domain_map old, joined;
  if (!here || !there || there->varying != mpg_domain_all(&other->domain)) return false;
  if ((other->num_trailing || other->producer != MPG_NO_NODE) &&
      here->varying != mpg_domain_all(&g->domain))
    return false;
  if (g->producer != MPG_NO_NODE && other->producer != MPG_NO_NODE) return false;
  if (other->producer != MPG_NO_NODE) {
    g->producer = other->producer;
    g->panel = other->panel;
    g->least = other->least;
  }
  if (g->num_trailing + other->num_trailing > MPG_FUSED_MAX_TRAILING) return false;
  if (!mpg_domain_join(&g->domain, here->varying, &other->domain, &old, &joined)) return false;
  map_uses(g, &old);
  for (uint32_t i = 0; i < other->num_uses; i++) {
    if (!add_use(g, other->uses[i].value, mpg_domain_apply(&joined, other->uses[i].varying),
                 other->uses[i].made))
      return false;
    mpg_open_group_use(g, other->uses[i].value)->trailing = other->uses[i].trailing;
  }
  g->num_trailing += other->num_trailing;
  if (other->row && !set_row(g, mpg_domain_apply(&joined, other->row), other->row_dtype))
    return false;
  if (!has_rows(g)) return false;
  if (g->num_members + other->num_members > MPG_FUSED_MAX_MEMBERS) return false;
  uint32_t kernels = g->num_kernels + other->num_kernels;
  for (uint32_t i = 0; i < other->num_members; i++) add_member(g, other->members[i], false);
  g->num_kernels = kernels;
  return can_be_cut(g);
}

/* Removes bit d and shifts the higher bits down. */
static uint32_t without(uint32_t varying, int d) {
  return (varying & ((1u << d) - 1)) | (varying >> (d + 1)) << d;
}

void mpg_open_group_collapse(mpg_open_group *g) {
  for (int d = g->domain.ndim - 1; d > 0; d--) {
    bool alike = (g->row >> d & 1) == (g->row >> (d - 1) & 1);
    for (uint32_t i = 0; i < g->num_uses && alike; i++)
      alike = (g->uses[i].varying >> d & 1) == (g->uses[i].varying >> (d - 1) & 1);
    if (!alike) continue;
    g->domain.dims[d - 1] *= g->domain.dims[d];
    memmove(g->domain.dims + d, g->domain.dims + d + 1,
            (size_t)(g->domain.ndim - d - 1) * sizeof *g->domain.dims);
    g->domain.ndim--;
    for (uint32_t i = 0; i < g->num_uses; i++) g->uses[i].varying = without(g->uses[i].varying, d);
    g->row = without(g->row, d);
  }
}
