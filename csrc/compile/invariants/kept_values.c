/* The table of kept values, and the hashes of their recipes. */
#include "compile/invariants/kept_values.h"

#include <string.h>

#include "base/workspace.h"
#include "op/precision/precision.h"

/* --- The table -------------------------------------------------------------------------------- */

/* Hash table of all kept values. Runtime state, under the host lock. */
enum { NUM_CHAINS = 1024 };
static mpg_kept_value *chains[NUM_CHAINS];

mpg_status mpg_kept_value_get(mpg_key identity, const mpg_graph_value *value,
                              mpg_kept_value **result) {
  mpg_device *device;
  mpg_kept_value **chain = &chains[identity.a % NUM_CHAINS];
  for (mpg_kept_value *found = *chain; found; found = found->next)
    if (mpg_key_equal(found->identity, identity)) {
      found->references++;
      *result = found;
      return MPG_OK;
    }
  MPG_TRY(mpg_device_get(value->device, &device));
  mpg_kept_value *fresh = mpg_calloc(1, sizeof *fresh);
  if (!fresh) return mpg_out_of_host_memory(sizeof *fresh);
  mpg_status status = mpg_tensor_create(device, &value->desc, &fresh->tensor);
  if (status != MPG_OK) {
    mpg_free(fresh);
    return status;
  }
  /* If another thread has added the value while this thread waited for memory, the chain holds both
   * copies. They are equal, and later callers find the newer one. */
  fresh->references = 1;
  fresh->identity = identity;
  fresh->next = *chain;
  *result = *chain = fresh;
  return MPG_OK;
}

void mpg_kept_value_release(mpg_kept_value *value) {
  if (!value || --value->references) return;
  mpg_kept_value **link = &chains[value->identity.a % NUM_CHAINS];
  while (*link != value) link = &(*link)->next;
  *link = value->next;
  mpg_tensor_release(&value->tensor);
  mpg_free(value);
}

/* --- Hashing ---------------------------------------------------------------------------------- */

static uint64_t spread(uint64_t x) { /* the finalizer of SplitMix64 */
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
  x = (x ^ x >> 27) * 0x94d049bb133111ebu;
  return x ^ x >> 31;
}

static mpg_key mix(mpg_key key, uint64_t word) {
  return (mpg_key){spread(key.a + 0x9e3779b97f4a7c15u + word),
                   spread((key.b ^ word) * 0xd1342543de82ef95u + 0x2545f4914f6cdd1du)};
}

static mpg_key mix_bytes(mpg_key key, const void *bytes, size_t size) {
  for (size_t at = 0; at < size; at += sizeof(uint64_t)) {
    uint64_t word = 0;
    memcpy(&word, (const char *)bytes + at, size - at < sizeof word ? size - at : sizeof word);
    if (word) key = mix(mix(key, at), word);
  }
  return mix(key, size);
}

static mpg_key mix_desc(mpg_key key, const mpg_desc *desc) {
  key = mix(key, (uint64_t)desc->dtype << 32 | (uint32_t)desc->shape.ndim);
  for (int i = 0; i < desc->shape.ndim; i++) key = mix(key, (uint64_t)desc->shape.dims[i]);
  return key;
}

/* Hashes everything that determines a node's results except for the contents of its inputs. */
static mpg_key own_key(const mpg_graph *graph, const mpg_node *node, uint64_t salt) {
  mpg_key key =
      mix((mpg_key){salt, mpg_precision_changes()}, (uint64_t)node->op->id << 1 | node->train);
  key = mix(key, (uint64_t)node->device.type << 56 ^ (uint64_t)(uint32_t)node->device.rank << 32 ^
                     (uint32_t)node->device.index);
  if (node->op->params->size) key = mix_bytes(key, node->params, node->op->params->size);
  for (uint32_t i = 0; i < node->num_inputs; i++)
    key = mix_desc(key, &mpg_graph_at(graph, mpg_node_inputs(graph, node)[i])->desc);
  for (uint32_t i = 0; i < node->num_outputs; i++)
    key = mix_desc(key, &graph->values[node->values + i].desc);
  return key;
}

/* --- Recipes ---------------------------------------------------------------------------------- */

static mpg_status note_device(mpg_recipes *r, mpg_device *device) {
  for (uint32_t i = 0; i < r->num_devices; i++)
    if (r->devices[i] == device) return MPG_OK;
  mpg_device **devices = mpg_realloc(r->devices, (r->num_devices + 1) * sizeof *devices);
  if (!devices) return mpg_out_of_host_memory(r->num_devices * sizeof *devices);
  r->devices = devices;
  r->devices[r->num_devices++] = device;
  return MPG_OK;
}

mpg_status mpg_recipes_make(const mpg_graph *graph, const mpg_value *fixed, uint32_t num_fixed,
                            const mpg_value *kept, uint32_t num_kept, bool shared, mpg_recipes *r) {
  static uint64_t salts;
  mpg_workspace space = {0};
  mpg_status status = MPG_OK;
  size_t num_steps = 0, num_operands = 0;
  bool *live = mpg_workspace_take(&space, graph->num_nodes, sizeof *live);
  bool *read = mpg_workspace_take(&space, num_fixed, sizeof *read);
  uint32_t *number = mpg_workspace_take(&space, graph->num_nodes, sizeof *number);
  MPG_GOTO(mpg_workspace_check(&space));
  for (uint32_t i = 0; i < num_kept; i++) live[kept[i].node] = true;
  for (size_t n = graph->num_nodes; n-- > 0;) {
    const mpg_node *node = &graph->nodes[n];
    if (!live[n] || mpg_node_is_input(node)) continue;
    num_steps++;
    if (mpg_node_flag(node, MPG_OP_SHAPE_ONLY)) continue;
    num_operands += node->num_inputs;
    for (uint32_t i = 0; i < node->num_inputs; i++)
      live[mpg_node_inputs(graph, node)[i].node] = true;
  }
  for (uint32_t i = 0; i < num_fixed; i++) number[fixed[i].node] = i;
  r->steps = mpg_calloc(num_steps + 1, sizeof *r->steps);
  r->operands = mpg_calloc(num_operands + 1, sizeof *r->operands);
  r->kept = mpg_calloc(num_kept + 1, sizeof *r->kept);
  r->sources = mpg_calloc(num_fixed + 1, sizeof *r->sources);
  if (!r->steps || !r->operands || !r->kept || !r->sources)
    MPG_GOTO(mpg_out_of_host_memory(num_operands * sizeof *r->operands));
  r->num_fixed = num_fixed;
  r->num_kept = num_kept;
  r->salt = shared ? 0 : ++salts;
  for (size_t n = 0; n < graph->num_nodes; n++) {
    const mpg_node *node = &graph->nodes[n];
    if (!live[n] || mpg_node_is_input(node)) continue;
    const mpg_value *inputs = mpg_node_inputs(graph, node);
    mpg_recipe_step *step = &r->steps[r->num_steps];
    *step = (mpg_recipe_step){.own = own_key(graph, node, r->salt), .operands = r->num_operands};
    MPG_GOTO(mpg_device_get(node->device, &step->device));
    MPG_GOTO(note_device(r, step->device));
    number[n] = num_fixed + r->num_steps++;
    if (mpg_node_flag(node, MPG_OP_SHAPE_ONLY)) continue;
    step->num_operands = node->num_inputs;
    for (uint32_t i = 0; i < node->num_inputs; i++) {
      mpg_recipe_operand *operand = &r->operands[r->num_operands++];
      *operand = (mpg_recipe_operand){number[inputs[i].node], inputs[i].output};
      if (operand->from < num_fixed) read[operand->from] = true;
    }
  }
  for (uint32_t i = 0; i < num_kept; i++)
    r->kept[i] = (mpg_recipe_operand){number[kept[i].node], kept[i].output};
  for (uint32_t i = 0; i < num_fixed; i++)
    if (read[i]) r->sources[r->num_sources++] = i;
fail:
  mpg_workspace_free(&space);
  return status;
}

void mpg_recipes_free(mpg_recipes *r) {
  mpg_free(r->steps);
  mpg_free(r->operands);
  mpg_free(r->kept);
  mpg_free(r->sources);
  mpg_free(r->devices);
  *r = (mpg_recipes){0};
}

/* Follows the steps. all[i] is the key of fixed array i, then of the steps. */
static void follow(const mpg_recipes *r, bool contents, mpg_key *all, mpg_key *keys) {
  for (uint32_t s = 0; s < r->num_steps; s++) {
    const mpg_recipe_step *step = &r->steps[s];
    mpg_key key = step->own;
    for (uint32_t i = 0; i < step->num_operands; i++) {
      const mpg_recipe_operand *operand = &r->operands[step->operands + i];
      const mpg_key *input = &all[operand->from];
      key = mix(mix(key, input->a ^ operand->output), input->b);
    }
    if (contents)
      key = mix(key,
                (uint64_t)atomic_load_explicit(&step->device->num_threads, memory_order_relaxed));
    all[r->num_fixed + s] = key;
  }
  for (uint32_t i = 0; i < r->num_kept; i++) keys[i] = mix(all[r->kept[i].from], r->kept[i].output);
}

static mpg_status find_keys(const mpg_recipes *r, const mpg_tensor *fixed, bool contents,
                            mpg_key *keys, bool *exposed) {
  static uint64_t unknown; /* differs each time, because the contents may have changed */
  size_t size = ((size_t)r->num_fixed + r->num_steps + 1) * sizeof(mpg_key);
  mpg_key *all = mpg_space_take(size);
  if (!all) return mpg_out_of_host_memory(size);
  for (uint32_t i = 0; i < r->num_sources; i++) {
    const mpg_tensor *tensor = &fixed[r->sources[i]];
    const mpg_storage *storage = tensor->storage;
    mpg_key key = mix_desc(mix(mix((mpg_key){0}, storage->born), tensor->offset), &tensor->desc);
    if (contents) key = mix(key, storage->version);
    if (contents && storage->exposed) {
      key = mix(key, ++unknown);
      *exposed = true;
    }
    all[r->sources[i]] = key;
  }
  follow(r, contents, all, keys);
  mpg_space_give(all);
  return MPG_OK;
}

mpg_status mpg_recipes_identify(const mpg_recipes *r, const mpg_tensor *fixed, mpg_key *keys) {
  return find_keys(r, fixed, false, keys, NULL);
}

mpg_status mpg_recipes_describe(const mpg_recipes *r, const mpg_tensor *fixed, mpg_key *keys,
                                bool *exposed) {
  *exposed = false;
  return find_keys(r, fixed, true, keys, exposed);
}
