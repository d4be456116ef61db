/* The order in which fusion visits nodes. Trailing reductions, and maps that follow a producer,
 * come directly after their inputs, so that no other reader of the inputs closes the group
 * earlier. */
#include <string.h>

#include "base/workspace.h"
#include "graph/schedule/fuse_groups.h"

typedef struct mover {
  const mpg_graph *graph;
  const mpg_order *order;
  const uint8_t *kinds;
  const bool *unfused;
  const mpg_analysis *facts;
  /* The following arrays are per node and form a linked list of the nodes in the new order.
   * `place` is a node's position in the old order or, for a moved node, the `place` of the node it
   * follows. MPG_NO_POSITION means that the node is not in the list. */
  uint32_t *place;
  uint32_t *next; /* the next node in the list */
  /* The last node that was moved to follow this node; the node itself if none was. */
  uint32_t *last;
  bool *follows;  /* true for producers and for maps that were moved to follow one */
  uint32_t tail;  /* the last node of the list; MPG_NO_NODE means empty */
  uint32_t write; /* position of the latest node that writes an input */
  bool moved;
} mover;

static mpg_fuse_kind kind_of(const mover *m, uint32_t n) {
  return m->unfused[n] ? MPG_FUSE_NOT : (mpg_fuse_kind)m->kinds[n];
}

/* True if the node reduces the outer dims of a value that a group member may compute. */
static bool is_trailing_reduction(const mover *m, uint32_t n) {
  const mpg_graph *graph = m->graph;
  const mpg_node *node = &graph->nodes[n];
  mpg_fuse_action a;
  if (kind_of(m, n) != MPG_FUSE_REDUCE || !mpg_fuse_describe(graph, node, MPG_FUSE_REDUCE, &a))
    return false;
  uint32_t reduced = a.bits[0] & ~a.bits[1],
           maker = mpg_view_root(graph, mpg_node_inputs(graph, node)[0]).node;
  mpg_fuse_kind kind = kind_of(m, maker);
  return !(reduced & (reduced + 1)) && (kind == MPG_FUSE_MAP || kind == MPG_FUSE_PRODUCER) &&
         mpg_device_id_equal(graph->nodes[maker].device, node->device);
}

/* Returns the input that comes last in the list; MPG_NO_NODE if it is not unique or none is
 * listed. */
static uint32_t latest_input(const mover *m, const mpg_node *node) {
  const mpg_value *inputs = mpg_node_inputs(m->graph, node);
  uint32_t latest = MPG_NO_NODE;
  for (uint32_t i = 0; i < node->num_inputs; i++) {
    uint32_t place = m->place[inputs[i].node];
    if (place != MPG_NO_POSITION && (latest == MPG_NO_NODE || place > m->place[latest]))
      latest = inputs[i].node;
  }
  for (uint32_t i = 0; latest != MPG_NO_NODE && i < node->num_inputs; i++)
    if (inputs[i].node != latest && m->place[inputs[i].node] == m->place[latest])
      return MPG_NO_NODE;
  return latest;
}

/* Returns the node that a map may directly follow, or MPG_NO_NODE. The map must be that node's only
 * reader, and all other inputs must be available, so that no array lives longer. */
static uint32_t followed_by(const mover *m, uint32_t n) {
  const mpg_graph *graph = m->graph;
  const mpg_node *node = &graph->nodes[n];
  if (kind_of(m, n) != MPG_FUSE_MAP) return MPG_NO_NODE;
  uint32_t source = latest_input(m, node);
  if (source == MPG_NO_NODE || !m->follows[source]) return MPG_NO_NODE;
  const mpg_node *maker = &graph->nodes[source];
  bool fits = m->facts->uses[maker->values] == 1 && maker->num_outputs == 1 &&
              node->num_outputs == 1 && mpg_device_id_equal(maker->device, node->device) &&
              mpg_desc_bytes(&graph->values[node->values].desc) <=
                  mpg_desc_bytes(&graph->values[maker->values].desc);
  return fits ? source : MPG_NO_NODE;
}

/* True if the node at position k may move after `source`. It must not move past a write or to
 * another segment. */
static bool may_move(const mover *m, uint32_t k, uint32_t source) {
  if (source == MPG_NO_NODE || m->place[source] == MPG_NO_POSITION) return false;
  const uint32_t *segment_of = m->order->segment_of;
  uint32_t place = m->place[source];
  return place >= m->write && (!segment_of || segment_of[place] == segment_of[k]);
}

static void insert_after(mover *m, uint32_t n, uint32_t before) {
  m->moved |= before != m->tail;
  if (before == m->tail) {
    m->next[n] = MPG_NO_NODE;
    m->tail = n;
  } else {
    m->next[n] = m->next[before];
  }
  if (before != MPG_NO_NODE) m->next[before] = n;
}

static void visit(mover *m, uint32_t k) {
  uint32_t n = m->order->nodes[k];
  const mpg_node *node = &m->graph->nodes[n];
  if (mpg_node_mutates(node)) m->write = k;
  bool trailing = is_trailing_reduction(m, n);
  uint32_t source = trailing ? mpg_node_inputs(m->graph, node)[0].node : followed_by(m, n);
  bool moves = may_move(m, k, source);
  m->follows[n] = !trailing && (moves || m->kinds[n] == MPG_FUSE_PRODUCER);
  m->last[n] = n;
  m->place[n] = moves ? m->place[source] : k;
  insert_after(m, n, moves ? m->last[source] : m->tail);
  if (moves) m->last[source] = n;
}

static mpg_status write_order(const mover *m, mpg_order *moved) {
  const mpg_order *order = m->order;
  size_t size = (order->count + 1) * sizeof *moved->nodes;
  *moved = (mpg_order){.segments = order->segments,
                       .num_segments = order->num_segments,
                       .nodes = mpg_malloc(size),
                       .segment_of = order->segment_of ? mpg_malloc(size) : NULL};
  if (!moved->nodes || (order->segment_of && !moved->segment_of))
    return mpg_out_of_host_memory(size);
  for (uint32_t n = order->nodes[0]; n != MPG_NO_NODE; n = m->next[n]) {
    if (order->segment_of) moved->segment_of[moved->count] = order->segment_of[m->place[n]];
    moved->nodes[moved->count++] = n;
  }
  MPG_ASSERT(moved->count == order->count);
  return MPG_OK;
}

mpg_status mpg_fuse_order(const mpg_graph *graph, const mpg_order *order, const uint8_t *kinds,
                          const bool *unfused, const mpg_analysis *facts, mpg_order *moved) {
  size_t count = graph->num_nodes + 1;
  mpg_workspace space = {0};
  mover m = {.graph = graph,
             .order = order,
             .kinds = kinds,
             .unfused = unfused,
             .facts = facts,
             .place = mpg_workspace_take(&space, count, sizeof *m.place),
             .next = mpg_workspace_take(&space, count, sizeof *m.next),
             .last = mpg_workspace_take(&space, count, sizeof *m.last),
             .follows = mpg_workspace_take(&space, count, sizeof *m.follows),
             .tail = MPG_NO_NODE};
  mpg_status status = MPG_OK;
  MPG_GOTO(mpg_workspace_check(&space));
  memset(m.place, 0xff, count * sizeof *m.place);
  for (uint32_t k = 0; k < order->count; k++) visit(&m, k);
  if (m.moved) MPG_GOTO(write_order(&m, moved));
fail:
  mpg_workspace_free(&space);
  return status;
}
