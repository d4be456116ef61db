/* Common subexpression elimination with a hash table of nodes. */
#include <string.h>

#include "graph/ir/analysis.h"
#include "graph/simplify/simplify.h"

mpg_status mpg_cse_table_init(mpg_cse_table *seen, size_t num_nodes) {
  size_t size = 16;
  while (size < 2 * num_nodes) size *= 2;
  seen->slots = mpg_calloc(size, sizeof *seen->slots);
  if (!seen->slots) return mpg_out_of_host_memory(size * sizeof *seen->slots);
  seen->mask = size - 1;
  return MPG_OK;
}

void mpg_cse_table_free(mpg_cse_table *seen) { mpg_free(seen->slots); }

static bool may_be_eliminated(const mpg_graph *graph, const mpg_node *node) {
  if (!node->op || (node->op->flags & (MPG_OP_RANDOM | MPG_OP_DYNAMIC | MPG_OP_RENDEZVOUS)) ||
      node->recomputes || mpg_node_mutates(node))
    return false;
  return (node->op->flags & MPG_OP_HEAVY) || mpg_node_worth_keeping(graph, node);
}

static uint64_t hash_of(const mpg_graph *graph, const mpg_node *node) {
  uint64_t hash = mpg_hash_word(node->op->id, (uint64_t)node->device.type << 56 ^
                                                  (uint64_t)(uint32_t)node->device.rank << 32 ^
                                                  (uint32_t)node->device.index);
  size_t size = node->op->params->size, at = 0;
  for (; at + sizeof hash <= size; at += sizeof hash) {
    uint64_t word;
    memcpy(&word, (const char *)node->params + at, sizeof word);
    if (word) hash = mpg_hash_word(hash, word ^ at << 32);
  }
  for (uint32_t i = 0; i < node->num_inputs && !mpg_node_flag(node, MPG_OP_SHAPE_ONLY); i++)
    hash = mpg_hash_word(hash, (uint64_t)graph->inputs[node->inputs + i].node << 32 |
                                   graph->inputs[node->inputs + i].output);
  return hash ^ hash >> 32;
}

static bool same_desc(const mpg_desc *a, const mpg_desc *b) {
  return a->dtype == b->dtype && mpg_shape_equal(&a->shape, &b->shape);
}

/* True if two nodes compute the same values. Nodes are merged only within one phase and recompute
 * region, because a value of another region would have to be kept for the second reader. Duplicates
 * that were found before regions were assigned (compile/saved/recompute_budget.c) are merged across
 * regions. */
static bool same_node(const mpg_graph *graph, uint32_t number_a, uint32_t number_b) {
  const mpg_node *a = &graph->nodes[number_a], *b = &graph->nodes[number_b];
  if (a->op != b->op || a->num_inputs != b->num_inputs || a->num_outputs != b->num_outputs ||
      a->train != b->train || a->phase != b->phase || !mpg_device_id_equal(a->device, b->device))
    return false;
  if (a->recompute_region != b->recompute_region && b->duplicate_of != number_a + 1) return false;
  if (a->op->params->size && memcmp(a->params, b->params, a->op->params->size)) return false;
  const mpg_value *x = mpg_node_inputs(graph, a), *y = mpg_node_inputs(graph, b);
  for (uint32_t i = 0; i < a->num_inputs; i++) {
    bool same = mpg_node_flag(a, MPG_OP_SHAPE_ONLY)
                    ? same_desc(&mpg_graph_at(graph, x[i])->desc, &mpg_graph_at(graph, y[i])->desc)
                    : x[i].node == y[i].node && x[i].output == y[i].output;
    if (!same) return false;
  }
  for (uint32_t i = 0; i < a->num_outputs; i++)
    if (!same_desc(&graph->values[a->values + i].desc, &graph->values[b->values + i].desc))
      return false;
  return true;
}

uint32_t mpg_cse_table_find(mpg_cse_table *seen, const mpg_graph *graph, uint32_t n) {
  const mpg_node *node = &graph->nodes[n];
  if (!may_be_eliminated(graph, node)) return n;
  size_t at = hash_of(graph, node) & seen->mask;
  for (; seen->slots[at]; at = (at + 1) & seen->mask)
    if (same_node(graph, seen->slots[at] - 1, n)) return seen->slots[at] - 1;
  seen->slots[at] = n + 1;
  return n;
}
