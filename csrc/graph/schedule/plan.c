/* The memory plan: assigns locations to values by liveness. */
#include "graph/schedule/fuse.h"
#include "graph/schedule/planner.h"

#include <stdlib.h>
#include <string.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

typedef struct item { /* memory that has or needs a location */
  size_t offset, size;
  mpg_lifetime life;
  uint32_t value, block; /* block UINT32_MAX means a new block */
} item;

/* Placed items, sorted by offset. Lifetimes are in separate arrays, so that best_fit can compare
 * LANES of them at once. */
enum { LANES = 16, ALL_LANES = 0xFFFF };
typedef struct item_list {
  int32_t *begins, *ends; /* signed_position of the lifetimes */
  size_t *offsets, *tops; /* tops: offset + size */
  size_t count, capacity; /* the capacity is a multiple of LANES */
} item_list;

void mpg_plan_free(mpg_plan *plan) {
  mpg_free(plan->blocks);
  mpg_free(plan->locations);
  mpg_free(plan->roots);
  *plan = (mpg_plan){0};
}

uint32_t mpg_plan_slot(const mpg_plan *plan, mpg_device_id device) {
  for (uint32_t i = 0; i < plan->num_devices; i++)
    if (mpg_device_id_equal(plan->devices[i], device)) return i;
  return UINT32_MAX;
}

size_t mpg_plan_bytes(const mpg_plan *plan, mpg_device_id device) {
  size_t bytes = 0;
  for (uint32_t i = 0; i < plan->num_blocks; i++)
    if (mpg_device_id_equal(plan->devices[plan->blocks[i].device], device))
      bytes += plan->blocks[i].size;
  return bytes;
}

bool mpg_plan_aliased(const mpg_plan *plan, const mpg_graph *graph, const mpg_node *node) {
  return mpg_node_is_view(node) &&
         plan->roots[node->values] ==
             plan->roots[mpg_value_index(graph, mpg_node_inputs(graph, node)[0])];
}

static mpg_status add_device(mpg_plan *plan, mpg_device_id device) {
  if (mpg_plan_slot(plan, device) != UINT32_MAX) return MPG_OK;
  if (plan->num_devices == MPG_MAX_GRAPH_DEVICES)
    return mpg_fail(MPG_ERROR, "one hybridized block can span up to %d devices",
                    MPG_MAX_GRAPH_DEVICES);
  plan->devices[plan->num_devices++] = device;
  return MPG_OK;
}

static mpg_status add_block(mpg_plan *plan, mpg_block_kind kind, uint32_t device, uint32_t source,
                            uint32_t *number) {
  for (uint32_t i = plan->first_block; i < plan->num_blocks; i++) {
    const mpg_plan_block *block = &plan->blocks[i];
    if (block->kind == kind && block->device == device && block->source == source) {
      *number = i;
      return MPG_OK;
    }
  }
  MPG_TRY(mpg_grow((void **)&plan->blocks, &plan->blocks_capacity, plan->num_blocks + 1,
                   sizeof *plan->blocks));
  plan->blocks[plan->num_blocks] = (mpg_plan_block){kind, device, source, 0};
  *number = plan->num_blocks++;
  return MPG_OK;
}

static size_t value_bytes(const mpg_planner *p, uint32_t value) {
  size_t bytes = mpg_align_up(mpg_desc_bytes(&p->graph->values[value].desc), MPG_PLAN_ALIGNMENT);
  return bytes ? bytes : MPG_PLAN_ALIGNMENT;
}

static bool has_place(const mpg_planner *p, uint32_t value) {
  return p->plan->locations[value].base != MPG_NO_BASE;
}

/* Makes views share their input's memory, unless an effect writes it. If a view must be in an
 * external array, its input is computed there, unless the input already has another location. */
static void share_views(mpg_planner *p) {
  const mpg_graph *graph = p->graph;
  mpg_plan *plan = p->plan;
  for (size_t k = 0; k < p->request->order->count; k++) {
    const mpg_node *node = &graph->nodes[p->request->order->nodes[k]];
    if (!mpg_node_is_view(node)) continue;
    uint32_t input = mpg_value_index(graph, mpg_node_inputs(graph, node)[0]),
             root = mpg_plan_root(plan, input);
    if (p->written[root] || p->written[input]) continue;
    uint32_t own = p->request->external[node->values], its = p->taken[root];
    bool located = has_place(p, root) ||
                   p->graph->nodes[mpg_node_inputs(graph, node)[0].node].phase != node->phase;
    /* The view needs a copy, because its input has another location. */
    if (own != MPG_NO_BASE && own != its && (its != MPG_NO_BASE || located)) continue;
    plan->roots[node->values] = root;
    if (own != MPG_NO_BASE) p->taken[root] = own;
  }
}

static void find_written(mpg_planner *p) {
  for (size_t k = 0; k < p->request->order->count; k++) {
    const mpg_node *node = &p->graph->nodes[p->request->order->nodes[k]];
    if (!mpg_node_mutates(node)) continue;
    for (uint32_t i = 0; i < node->num_inputs; i++)
      if (mpg_op_input_mutable(node->op, (int)i))
        p->written[mpg_value_index(p->graph, mpg_node_inputs(p->graph, node)[i])] = true;
  }
}

static void find_lifetimes(mpg_planner *p) {
  const mpg_graph *graph = p->graph;
  for (size_t k = 0; k < p->request->order->count; k++) {
    const mpg_node *node = &graph->nodes[p->request->order->nodes[k]];
    /* The values of a group are alive while the whole group runs. */
    uint32_t first = mpg_order_first(p->request->order, k),
             last = mpg_order_last(p->request->order, k);
    for (uint32_t i = 0; i < node->num_outputs; i++) {
      uint32_t value = node->values + i, root = mpg_plan_root(p->plan, value);
      if (root == value) p->lives[root] = (mpg_lifetime){first, last};
      if (p->request->saved && p->request->saved[value]) p->lives[root].end = MPG_FOREVER;
    }
    if (mpg_node_flag(node, MPG_OP_SHAPE_ONLY)) continue;
    const mpg_value *inputs = mpg_node_inputs(graph, node);
    for (uint32_t i = 0; i < node->num_inputs; i++) {
      mpg_lifetime *life = &p->lives[mpg_plan_root(p->plan, mpg_value_index(graph, inputs[i]))];
      if (life->begin == MPG_FOREVER) life->begin = 0; /* computed before this phase */
      if (life->end != MPG_FOREVER) life->end = last;
    }
  }
}

static bool has_no_memory(const mpg_planner *p, uint32_t value) {
  const mpg_fusion *fusion = p->request->order->fusion;
  return fusion && fusion->internal[value];
}

/* Assigns values to external arrays and lanes. Marks all remaining values of this phase as
 * planned, for a main block. */
static mpg_status give_places(mpg_planner *p) {
  const mpg_graph *graph = p->graph;
  mpg_plan *plan = p->plan;
  for (size_t i = 0; i < plan->num_values; i++)
    if (p->request->external[i] != MPG_NO_BASE && !has_place(p, mpg_plan_root(plan, (uint32_t)i)))
      plan->locations[mpg_plan_root(plan, (uint32_t)i)] =
          (mpg_location){p->request->external[i], 0};
  for (size_t k = 0; k < p->request->order->count; k++) {
    const mpg_node *node = &graph->nodes[p->request->order->nodes[k]];
    MPG_TRY(add_device(plan, node->device));
    uint32_t slot = mpg_plan_slot(plan, node->device), number;
    if (mpg_node_crosses(graph, node)) {
      mpg_device_id from = mpg_graph_at(graph, mpg_node_inputs(graph, node)[0])->device;
      MPG_TRY(add_device(plan, from));
      if (has_place(p, node->values)) continue;
      if (mpg_node_is_paced(graph, node) && !p->request->order->segments) {
        if (p->lives[node->values].end == k) p->lives[node->values].end = MPG_FOREVER;
        p->planned[node->values] = true;
        continue;
      }
      MPG_TRY(add_block(plan, MPG_BLOCK_LANE, slot, mpg_plan_slot(plan, from), &number));
      p->pushed[node->values] = true;
      /* The array may arrive at any time in the phase. If no work waits for it, it may arrive even
       * after this position. */
      p->lives[node->values].begin = 0;
      if (p->lives[node->values].end == k) p->lives[node->values].end = MPG_FOREVER;
      plan->locations[node->values] =
          (mpg_location){plan->num_externals + number, plan->blocks[number].size};
      plan->blocks[number].size += value_bytes(p, node->values);
      continue;
    }
    for (uint32_t i = 0; i < node->num_outputs && mpg_node_spans(node); i++)
      MPG_TRY(add_device(plan, graph->values[node->values + i].device));
    for (uint32_t i = 0; i < node->num_inputs && mpg_node_spans(node); i++)
      MPG_TRY(add_device(plan, mpg_graph_at(graph, mpg_node_inputs(graph, node)[i])->device));
    for (uint32_t i = 0; i < node->num_outputs; i++)
      if (mpg_plan_root(plan, node->values + i) == node->values + i &&
          !has_place(p, node->values + i) && !has_no_memory(p, node->values + i))
        p->planned[node->values + i] = true;
  }
  return MPG_OK;
}

/* True if the node may write its first output to the memory of `input`, a root that has as many
 * bytes. */
static bool overwrites_input(const mpg_planner *p, const mpg_node *node, uint32_t input) {
  if (mpg_node_flag(node, MPG_OP_SHAPE_ONLY)) return false;
  if (!mpg_node_flag(node, MPG_OP_INPLACE_ALIKE)) return mpg_node_flag(node, MPG_OP_INPLACE);
  const mpg_shape *shape = &p->graph->values[node->values].desc.shape;
  const mpg_value *inputs = mpg_node_inputs(p->graph, node);
  for (uint32_t i = 0; i < node->num_inputs; i++)
    if (mpg_plan_root(p->plan, mpg_value_index(p->graph, inputs[i])) == input &&
        !mpg_shape_equal(&mpg_graph_at(p->graph, inputs[i])->desc.shape, shape))
      return false;
  return true;
}

/* True if `out`, computed by the node at position k, may overwrite `input`. */
static bool may_lie_over(const mpg_planner *p, size_t k, uint32_t out, uint32_t input) {
  const mpg_graph *graph = p->graph;
  const mpg_order *order = p->request->order;
  const mpg_fusion_group *group = mpg_order_group(order, k);
  if (!(p->planned[input] || p->pushed[input]) || p->sliced[input] ||
      p->lives[input].end != mpg_order_last(order, k))
    return false;
  if (mpg_desc_bytes(&graph->values[input].desc) != mpg_desc_bytes(&graph->values[out].desc))
    return false;
  const mpg_node *node = &graph->nodes[order->nodes[k]];
  bool overwrites = out == node->values && overwrites_input(p, node, input);
  if (!group) return overwrites;
  /* A group works tile by tile. Both values must therefore have as many elements as its domain,
   * and no member may read the input after it was overwritten. */
  int64_t all = 1;
  for (int d = 0; d < group->ndim; d++) all *= group->dims[d];
  const mpg_node *producer = group->producer != MPG_NO_NODE ? &graph->nodes[group->producer] : NULL;
  /* Every panel reads the producer's inputs, so they must not be overwritten. */
  for (uint32_t i = 0; producer && i < producer->num_inputs; i++)
    if (mpg_plan_root(p->plan, mpg_value_index(graph, mpg_node_inputs(graph, producer)[i])) ==
        input)
      return false;
  if (mpg_shape_size(&graph->values[input].desc.shape) != all ||
      mpg_shape_size(&graph->values[out].desc.shape) != all)
    return false;
  for (size_t later = overwrites ? k + 1 : k; later < group->first + group->count; later++) {
    const mpg_node *reader = &graph->nodes[order->nodes[later]];
    for (uint32_t i = 0; i < reader->num_inputs; i++)
      if (mpg_plan_root(p->plan, mpg_value_index(graph, mpg_node_inputs(graph, reader)[i])) ==
          input)
        return false;
  }
  return true;
}

static void share_in_place(mpg_planner *p) {
  const mpg_graph *graph = p->graph;
  const mpg_order *order = p->request->order;
  mpg_plan *plan = p->plan;
  for (size_t k = 0; k < order->count; k++) {
    const mpg_node *node = &graph->nodes[order->nodes[k]];
    const mpg_fusion_group *group = mpg_order_group(order, k);
    if (mpg_node_is_view(node)) continue;
    size_t first = group ? group->first : k, last = group ? group->first + group->count - 1 : k;
    uint32_t outputs = group || node->num_outputs == 0 ? node->num_outputs : 1;
    for (uint32_t o = 0; o < outputs; o++) {
      uint32_t out = node->values + o;
      /* Tries every array that the node or its group reads. */
      for (size_t at = first; at <= last && p->planned[out]; at++) {
        const mpg_node *reader = &graph->nodes[order->nodes[at]];
        for (uint32_t i = 0; i < reader->num_inputs; i++) {
          uint32_t input =
              mpg_plan_root(plan, mpg_value_index(graph, mpg_node_inputs(graph, reader)[i]));
          if (input == out || !may_lie_over(p, k, out, input)) continue;
          plan->roots[out] = input;
          p->lives[input].end = p->lives[out].end;
          p->planned[out] = false;
          p->sliced[input] = p->sliced[out];
          break;
        }
      }
    }
  }
}

/* SSE2 compares only signed integers. Graphs have less than 2^31 nodes. */
static int32_t signed_position(uint32_t position) {
  return position == MPG_FOREVER ? INT32_MAX : (int32_t)position;
}

/* Returns a word whose bit i is set if item first + i is alive at the same time as positions
 * [begin, end]. */
static uint32_t find_meeting(const item_list *list, size_t first, int32_t begin, int32_t end) {
  const int32_t *begins = list->begins + first, *ends = list->ends + first;
#ifdef __SSE2__
  __m128i apart[4];
  for (int i = 0; i < 4; i++) {
    __m128i from = _mm_loadu_si128((const __m128i *)(begins + 4 * i)),
            to = _mm_loadu_si128((const __m128i *)(ends + 4 * i));
    apart[i] = _mm_or_si128(_mm_cmpgt_epi32(from, _mm_set1_epi32(end)),
                            _mm_cmpgt_epi32(_mm_set1_epi32(begin), to));
  }
  __m128i bytes =
      _mm_packs_epi16(_mm_packs_epi32(apart[0], apart[1]), _mm_packs_epi32(apart[2], apart[3]));
  uint32_t word = ~(uint32_t)_mm_movemask_epi8(bytes) & ALL_LANES;
#else
  uint32_t word = 0;
  for (int i = 0; i < LANES; i++) word |= (uint32_t)(begins[i] <= end && ends[i] >= begin) << i;
#endif
  size_t left = list->count - first;
  return left < LANES ? word & ((1u << left) - 1) : word;
}

/* The gaps between the items that were visited, in the order of their offsets. */
typedef struct gaps {
  size_t end;      /* end of the visited items */
  size_t size, at; /* the smallest gap that is large enough; size SIZE_MAX if none is */
} gaps;

static inline void visit(gaps *gaps, size_t offset, size_t top, size_t wanted) {
  if (offset >= gaps->end + wanted && offset - gaps->end < gaps->size) {
    gaps->size = offset - gaps->end;
    gaps->at = gaps->end;
  }
  if (top > gaps->end) gaps->end = top;
}

/* Finds the smallest gap for `wanted` between the items whose lifetimes overlap with its own, or
 * else the space after them. Returns false if the chosen space ends above `limit`. */
static bool best_fit(const item_list *list, const item *wanted, size_t limit, size_t *offset) {
  gaps gaps = {.size = SIZE_MAX};
  size_t size = wanted->size;
  int32_t from = signed_position(wanted->life.begin), to = signed_position(wanted->life.end);
  for (size_t first = 0; first < list->count; first += LANES) {
    const size_t *offsets = list->offsets + first, *tops = list->tops + first;
    uint32_t word = find_meeting(list, first, from, to);
    if (word == ALL_LANES) {
      for (int i = 0; i < LANES; i++) visit(&gaps, offsets[i], tops[i], size);
      continue;
    }
    for (; word; word &= word - 1) {
      int i = __builtin_ctz(word);
      visit(&gaps, offsets[i], tops[i], size);
    }
  }
  *offset = gaps.size != SIZE_MAX ? gaps.at : gaps.end;
  return gaps.size != SIZE_MAX || (gaps.end + size <= limit && gaps.end + size > gaps.end);
}

static void free_list(item_list *list) {
  mpg_free(list->offsets); /* all arrays are in one block, which starts here */
}

/* Makes room for `capacity` items in an empty list. */
static mpg_status reserve(item_list *list, size_t capacity) {
  capacity = (capacity / LANES + 1) * LANES;
  size_t size = capacity * (2 * sizeof(size_t) + 2 * sizeof(int32_t));
  size_t *memory = mpg_calloc(1, size);
  if (!memory) return mpg_out_of_host_memory(size);
  list->capacity = capacity;
  list->offsets = memory;
  list->tops = memory + capacity;
  list->begins = (int32_t *)(list->tops + capacity);
  list->ends = list->begins + capacity;
  return MPG_OK;
}

static void copy_list(item_list *to, const item_list *from) {
  memcpy(to->offsets, from->offsets, from->count * sizeof *to->offsets);
  memcpy(to->tops, from->tops, from->count * sizeof *to->tops);
  memcpy(to->begins, from->begins, from->count * sizeof *to->begins);
  memcpy(to->ends, from->ends, from->count * sizeof *to->ends);
  to->count = from->count;
}

static void put(item_list *list, const item *placed) {
  size_t at = list->count;
  while (at > 0 && list->offsets[at - 1] > placed->offset) at--;
  size_t rest = list->count - at;
  memmove(list->offsets + at + 1, list->offsets + at, rest * sizeof *list->offsets);
  memmove(list->tops + at + 1, list->tops + at, rest * sizeof *list->tops);
  memmove(list->begins + at + 1, list->begins + at, rest * sizeof *list->begins);
  memmove(list->ends + at + 1, list->ends + at, rest * sizeof *list->ends);
  list->offsets[at] = placed->offset;
  list->tops[at] = placed->offset + placed->size;
  list->begins[at] = signed_position(placed->life.begin);
  list->ends[at] = signed_position(placed->life.end);
  list->count++;
}

/* Compares two items in a packing order: larger key a or b first, then earlier begin, then lower
 * value number. */
static int compare(size_t a, size_t b, const item *x, const item *y) {
  if (a != b) return a > b ? -1 : 1;
  if (x->life.begin != y->life.begin) return x->life.begin < y->life.begin ? -1 : 1;
  return x->value < y->value ? -1 : x->value > y->value;
}
static size_t span(const item *x) { return (size_t)x->life.end - x->life.begin + 1; }
static int largest_first(const void *a, const void *b) {
  return compare(((const item *)a)->size, ((const item *)b)->size, a, b);
}
static int longest_first(const void *a, const void *b) { return compare(span(a), span(b), a, b); }
static int latest_first(const void *a, const void *b) {
  return compare(((const item *)a)->life.begin, ((const item *)b)->life.begin, a, b);
}
static int earliest_first(const void *a, const void *b) { return compare(0, 0, a, b); }
typedef int comparison(const void *, const void *);
/* No packing order is best for all graphs, so several are tried. */
static comparison *const ways[] = {largest_first, longest_first, earliest_first, latest_first};
enum { NUM_WAYS = sizeof ways / sizeof *ways };

/* A block that already contains values: saved values of the forward phase until their last use, or
 * values pushed into a lane. */
typedef struct space {
  uint32_t block;
  size_t num_occupied;
  item_list occupied, list; /* `list` has the occupied memory and the items placed so far */
} space;

/* The blocks of a device during packing. */
typedef struct packing {
  space *spaces, fresh; /* existing blocks; the new block */
  uint32_t num_spaces;
} packing;

/* Finds the memory in use by value `v` in an existing block of the device. Returns false if there
 * is none. */
static bool find_occupied(mpg_planner *p, uint32_t slot, uint32_t v, uint32_t *block, item *used) {
  mpg_plan *plan = p->plan;
  mpg_location location = plan->locations[v];
  if (location.base == MPG_NO_BASE || location.base < plan->num_externals) return false;
  *block = location.base - plan->num_externals;
  if (plan->blocks[*block].device != slot) return false;
  bool old = *block < plan->first_block;
  if (!(old ? p->request->saved[v] : p->pushed[v])) return false;
  const mpg_lifetime *life = &p->lives[mpg_plan_root(plan, v)];
  /* The value has no readers in this phase. */
  if (old && !p->request->retain && life->begin == MPG_FOREVER) return false;
  used->offset = location.offset;
  used->size = value_bytes(p, v);
  used->life = (mpg_lifetime){0, old && p->request->retain ? MPG_FOREVER : life->end};
  return true;
}

static void end_packing(packing *packing) {
  for (uint32_t i = 0; packing->spaces && i < packing->num_spaces; i++) {
    free_list(&packing->spaces[i].occupied);
    free_list(&packing->spaces[i].list);
  }
  free_list(&packing->fresh.list);
  mpg_free(packing->spaces);
}

/* Lists the device's blocks with the memory in use, and makes room for `count` items. The caller
 * calls end_packing even after an error. */
static mpg_status begin_packing(mpg_planner *p, uint32_t slot, size_t count, packing *packing) {
  mpg_plan *plan = p->plan;
  uint32_t block, *number = mpg_workspace_take(&p->space, plan->num_blocks, sizeof *number);
  item used = {0};
  packing->fresh.block = UINT32_MAX;
  packing->spaces = mpg_calloc(plan->num_blocks + 1, sizeof *packing->spaces);
  MPG_TRY(mpg_workspace_check(&p->space));
  if (!packing->spaces) return mpg_out_of_host_memory(plan->num_blocks * sizeof *packing->spaces);
  MPG_TRY(reserve(&packing->fresh.list, count));
  for (uint32_t i = 0; i < plan->num_blocks; i++) {
    if (plan->blocks[i].device != slot) continue;
    number[i] = packing->num_spaces;
    packing->spaces[packing->num_spaces++].block = i;
  }
  for (size_t v = 0; packing->num_spaces && v < plan->num_values; v++)
    if (find_occupied(p, slot, (uint32_t)v, &block, &used))
      packing->spaces[number[block]].num_occupied++;
  for (uint32_t i = 0; i < packing->num_spaces; i++) {
    space *space = &packing->spaces[i];
    MPG_TRY(reserve(&space->occupied, space->num_occupied));
    MPG_TRY(reserve(&space->list, space->num_occupied + count));
  }
  for (size_t v = 0; packing->num_spaces && v < plan->num_values; v++)
    if (find_occupied(p, slot, (uint32_t)v, &block, &used))
      put(&packing->spaces[number[block]].occupied, &used);
  return MPG_OK;
}

/* Finds the first existing block with a gap for the item. Returns false if no block has one. */
static bool fit_into(const mpg_plan *plan, packing *packing, item *wanted, space **chosen) {
  for (uint32_t i = 0; i < packing->num_spaces; i++) {
    space *space = &packing->spaces[i];
    size_t size = plan->blocks[space->block].size;
    if (!best_fit(&space->list, wanted, size, &wanted->offset) ||
        wanted->offset + wanted->size > size)
      continue;
    *chosen = space;
    return true;
  }
  return false;
}

/* Assigns locations to the items, in the device's existing blocks and in a new one. *size is the
 * size of the new block. Gives up when it reaches `limit`, and sets *size to `limit`. */
static mpg_status pack(const mpg_plan *plan, packing *packing, item *items, size_t count,
                       comparison *way, size_t limit, size_t *size) {
  *size = 0;
  packing->fresh.list.count = 0;
  for (uint32_t i = 0; i < packing->num_spaces; i++) {
    space *space = &packing->spaces[i];
    copy_list(&space->list, &space->occupied);
  }
  qsort(items, count, sizeof *items, way);
  for (size_t i = 0; i < count; i++) {
    space *chosen = &packing->fresh;
    if (!fit_into(plan, packing, &items[i], &chosen)) {
      if (!best_fit(&chosen->list, &items[i], SIZE_MAX / 2, &items[i].offset))
        return mpg_fail(MPG_DEVICE_OUT_OF_MEMORY,
                        "the block's arrays do not fit into the address space");
      size_t end = items[i].offset + items[i].size;
      if (end > *size) *size = end;
      if (*size >= limit) {
        *size = limit;
        return MPG_OK;
      }
    }
    put(&chosen->list, &items[i]);
    items[i].block = chosen->block;
  }
  return MPG_OK;
}

/* Returns the limit of a device's bytes, or NULL if it has none. */
static const size_t *find_limit(const mpg_planner *p, uint32_t slot) {
  const mpg_plan_limits *limits = p->request->limits;
  for (uint32_t i = 0; limits && i < limits->count; i++)
    if (mpg_device_id_equal(limits->devices[i], p->plan->devices[slot])) return &limits->bytes[i];
  return NULL;
}

/* Tries packing orders until one is small enough, and keeps the best. */
static mpg_status pack_well(mpg_planner *p, uint32_t slot, item *items, size_t count) {
  mpg_plan *plan = p->plan;
  mpg_status status = MPG_OK;
  packing packing = {0};
  const size_t *limit = find_limit(p, slot);
  size_t there = mpg_plan_bytes(plan, plan->devices[slot]),
         enough = limit ? *limit : plan->alive[slot], least = SIZE_MAX;
  if (limit) least = enough < there ? 1 : enough - there + 1;
  if (limit && plan->alive[slot] > *limit) { /* no packing can be within the limit */
    plan->over[slot] = true;
    return MPG_OK;
  }
  item *best = mpg_malloc((count + 1) * sizeof *best);
  if (!best) return mpg_out_of_host_memory(count * sizeof *best);
  MPG_GOTO(begin_packing(p, slot, count, &packing));
  bool found = false;
  for (int way = 0; way < NUM_WAYS && !(found && (!least || there + least <= enough)); way++) {
    size_t size = 0;
    MPG_GOTO(pack(plan, &packing, items, count, ways[way], least, &size));
    if (size >= least) continue;
    least = size;
    found = true;
    memcpy(best, items, count * sizeof *best);
  }
  if (!found) {
    plan->over[slot] = true;
    goto fail;
  }
  uint32_t fresh = UINT32_MAX;
  if (least) {
    MPG_GOTO(add_block(plan, MPG_BLOCK_MAIN, slot, slot, &fresh));
    plan->blocks[fresh].size = least;
  }
  for (size_t i = 0; i < count; i++)
    plan->locations[best[i].value] =
        (mpg_location){plan->num_externals + (best[i].block == UINT32_MAX ? fresh : best[i].block),
                       best[i].offset};
fail:
  end_packing(&packing);
  mpg_free(best);
  return status;
}

static mpg_status pack_all(mpg_planner *p) {
  mpg_plan *plan = p->plan;
  item *items = mpg_malloc((plan->num_values + 1) * sizeof *items);
  mpg_status status = MPG_OK;
  if (!items) return mpg_out_of_host_memory(plan->num_values * sizeof *items);
  for (uint32_t slot = 0; slot < plan->num_devices; slot++) {
    size_t count = 0;
    for (size_t v = 0; v < plan->num_values; v++)
      if (p->planned[v] && mpg_device_id_equal(p->graph->values[v].device, plan->devices[slot]))
        items[count++] =
            (item){0, value_bytes(p, (uint32_t)v), p->lives[v], (uint32_t)v, UINT32_MAX};
    if (count) MPG_GOTO(pack_well(p, slot, items, count));
  }
fail:
  mpg_free(items);
  return status;
}

static void count_alive(ptrdiff_t *steps, mpg_lifetime life, uint32_t count, size_t bytes) {
  steps[life.begin] += (ptrdiff_t)bytes;
  steps[life.end < count ? life.end + 1 : count] -= (ptrdiff_t)bytes;
}

/* Computes the peak bytes alive per device. Values saved in the forward phase are alive until
 * their last use. */
static mpg_status find_alive(mpg_planner *p) {
  mpg_plan *plan = p->plan;
  const mpg_plan *forward = p->request->forward;
  uint32_t count = (uint32_t)p->request->order->count;
  size_t stride = (size_t)count + 2;
  ptrdiff_t *steps = mpg_workspace_take(&p->space, stride * (plan->num_devices + 1), sizeof *steps);
  /* Lifetimes of saved values in this phase, per root of the forward plan. */
  mpg_lifetime *saved = mpg_workspace_take(&p->space, plan->num_values, sizeof *saved);
  MPG_TRY(mpg_workspace_check(&p->space));
  for (size_t v = 0; v < plan->num_values; v++) saved[v] = (mpg_lifetime){MPG_FOREVER, 0};
  for (size_t v = 0; v < plan->num_values; v++) {
    uint32_t root = mpg_plan_root(plan, (uint32_t)v),
             slot = mpg_plan_slot(plan, p->graph->values[v].device);
    if (slot == UINT32_MAX) continue;
    if (root == v && (p->planned[v] || p->pushed[v]))
      count_alive(steps + slot * stride, p->lives[v], count, value_bytes(p, (uint32_t)v));
    if (!forward || v >= forward->num_values || !p->request->saved[v]) continue;
    uint32_t base = forward->locations[v].base;
    if (base == MPG_NO_BASE || base < forward->num_externals ||
        (p->lives[root].begin == MPG_FOREVER && !p->request->retain))
      continue;
    mpg_lifetime *life = &saved[forward->roots[v]];
    life->begin = 0;
    if (p->request->retain) life->end = MPG_FOREVER;
    if (p->lives[root].end > life->end) life->end = p->lives[root].end;
  }
  for (size_t v = 0; v < plan->num_values; v++)
    if (saved[v].begin == 0)
      count_alive(steps + mpg_plan_slot(plan, p->graph->values[v].device) * stride, saved[v], count,
                  value_bytes(p, (uint32_t)v));
  for (uint32_t slot = 0; slot < plan->num_devices; slot++) {
    ptrdiff_t alive = 0;
    for (uint32_t k = 0; k <= count; k++)
      if ((size_t)(alive += steps[slot * stride + k]) > plan->alive[slot])
        plan->alive[slot] = (size_t)alive;
  }
  return MPG_OK;
}

static mpg_status prepare(mpg_planner *p) {
  mpg_plan *plan = p->plan;
  const mpg_plan *forward = p->request->forward;
  plan->num_values = p->graph->num_values;
  plan->num_externals = p->request->num_externals;
  plan->locations = mpg_malloc((plan->num_values + 1) * sizeof *plan->locations);
  plan->roots = mpg_malloc((plan->num_values + 1) * sizeof *plan->roots);
  p->lives = mpg_workspace_take(&p->space, plan->num_values, sizeof *p->lives);
  p->planned = mpg_workspace_take(&p->space, plan->num_values, sizeof *p->planned);
  p->pushed = mpg_workspace_take(&p->space, plan->num_values, sizeof *p->pushed);
  p->written = mpg_workspace_take(&p->space, plan->num_values, sizeof *p->written);
  p->taken = mpg_workspace_take(&p->space, plan->num_values, sizeof *p->taken);
  p->sliced = mpg_workspace_take(&p->space, plan->num_values, sizeof *p->sliced);
  p->slices = mpg_workspace_take(&p->space, plan->num_values, sizeof *p->slices);
  MPG_TRY(mpg_workspace_check(&p->space));
  if (!plan->locations || !plan->roots)
    return mpg_out_of_host_memory(plan->num_values * sizeof *plan->locations);
  for (size_t v = 0; v < plan->num_values; v++) {
    plan->locations[v] = (mpg_location){MPG_NO_BASE, 0};
    plan->roots[v] = (uint32_t)v;
    p->lives[v] = (mpg_lifetime){MPG_FOREVER, 0};
    p->taken[v] = p->request->external[v];
    p->slices[v] = (struct mpg_slice){MPG_NO_SLICE, 0};
  }
  if (!forward) return MPG_OK;
  memcpy(plan->devices, forward->devices, sizeof plan->devices);
  plan->num_devices = forward->num_devices;
  MPG_TRY(mpg_grow((void **)&plan->blocks, &plan->blocks_capacity, forward->num_blocks,
                   sizeof *plan->blocks));
  if (forward->num_blocks)
    memcpy(plan->blocks, forward->blocks, forward->num_blocks * sizeof *plan->blocks);
  plan->num_blocks = plan->first_block = forward->num_blocks;
  for (size_t v = 0; v < forward->num_values; v++) {
    mpg_location location = forward->locations[v];
    if (location.base == MPG_NO_BASE) continue;
    if (location.base >= forward->num_externals)
      location.base += plan->num_externals - forward->num_externals;
    plan->locations[v] = location;
  }
  return MPG_OK;
}

/* Locates a value in the memory of another value, which may be a slice itself. */
static void place_slice(mpg_planner *p, uint32_t value) {
  size_t offset = 0;
  uint32_t whole = value;
  for (; p->slices[whole].of != MPG_NO_SLICE; whole = mpg_plan_root(p->plan, p->slices[whole].of))
    offset += p->slices[whole].offset;
  mpg_location location = p->plan->locations[whole];
  if (location.base != MPG_NO_BASE) location.offset += offset;
  p->plan->locations[value] = location;
}

mpg_status mpg_plan_make(const mpg_plan_request *request, mpg_plan *plan) {
  mpg_planner p = {.request = request, .graph = request->graph, .plan = plan};
  mpg_status status = MPG_OK;
  MPG_GOTO(prepare(&p));
  find_written(&p);
  share_views(&p);
  find_lifetimes(&p);
  MPG_GOTO(give_places(&p));
  mpg_plan_share_splits(&p);
  share_in_place(&p);
  mpg_plan_share_joins(&p);
  MPG_GOTO(find_alive(&p));
  MPG_GOTO(pack_all(&p));
  for (size_t v = 0; v < plan->num_values; v++) plan->roots[v] = mpg_plan_root(plan, (uint32_t)v);
  for (size_t v = 0; v < plan->num_values; v++)
    if (p.slices[v].of != MPG_NO_SLICE) place_slice(&p, (uint32_t)v);
  for (size_t v = 0; v < plan->num_values; v++)
    if (plan->roots[v] != v) plan->locations[v] = plan->locations[plan->roots[v]];
fail:
  mpg_workspace_free(&p.space);
  if (status != MPG_OK) mpg_plan_free(plan);
  return status;
}
