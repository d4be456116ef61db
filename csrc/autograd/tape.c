/* Creation, reuse and release of tape nodes. */
#include "autograd/tape.h"

#include <string.h>

/* Freed nodes are kept for reuse in one free list per size class. Classes of small nodes are 128
 * bytes apart. Classes of larger nodes (compiled calls) are powers of two times SMALL_CLASSES *
 * CLASS_BYTES. */
enum {
  CLASS_BYTES = 128,
  SMALL_CLASSES = 24,
  NUM_CLASSES = SMALL_CLASSES + 12,
  MOST_KEPT = 4096,
  MOST_LARGE_KEPT = 16
};

/* Runtime state, guarded by the host lock. */
static struct {
  mpg_tape_node *kept[NUM_CLASSES]; /* free list of each size class, linked by next */
  uint32_t num_kept[NUM_CLASSES];
  mpg_tape_node *dying; /* list of unreferenced nodes that are not freed yet */
  bool freeing;
  uint64_t sequence;
} tape;

static size_t bytes_of(size_t class) {
  return class < SMALL_CLASSES ? class * CLASS_BYTES
                               : (size_t)2 * SMALL_CLASSES * CLASS_BYTES << (class - SMALL_CLASSES);
}

/* Returns the size class for nodes of `size` bytes and sets *bytes to the bytes to allocate.
 * Returns NUM_CLASSES if nodes of this size are too large to be kept for reuse. */
static size_t class_of(size_t size, size_t *bytes) {
  size_t class = (size + CLASS_BYTES - 1) / CLASS_BYTES;
  if (class >= SMALL_CLASSES) {
    class = SMALL_CLASSES;
    while (class < NUM_CLASSES && bytes_of(class) < size) class++;
  }
  *bytes = class < NUM_CLASSES ? bytes_of(class) : size;
  return class;
}

static size_t round_up(size_t size) { return mpg_align_up(size, 16); }

mpg_status mpg_tape_new(mpg_tape_kind kind, uint32_t num_inputs, uint32_t num_outputs,
                        size_t params_size, mpg_tape_node **result) {
  size_t slots = (size_t)num_inputs + num_outputs, saved = kind == MPG_TAPE_OP ? slots : 0;
  size_t edges_at = round_up(sizeof(mpg_tape_node)),
         descs_at = edges_at + num_inputs * sizeof(mpg_tape_edge);
  size_t devices_at = descs_at + slots * sizeof(mpg_desc),
         saved_at = devices_at + slots * sizeof(mpg_device *);
  size_t params_at = round_up(saved_at + saved * sizeof(mpg_saved)), size = params_at + params_size;
  size_t bytes, size_class = class_of(size, &bytes);
  mpg_tape_node *node;
  if (size_class < NUM_CLASSES && tape.kept[size_class]) {
    node = tape.kept[size_class];
    tape.kept[size_class] = node->next;
    tape.num_kept[size_class]--;
  } else {
    node = mpg_malloc(bytes);
    if (!node) return mpg_out_of_host_memory(bytes);
  }
  char *memory = (char *)node;
  *node = (mpg_tape_node){.references = 1,
                          .kind = (uint8_t)kind,
                          .size_class = (uint8_t)(size_class < NUM_CLASSES ? size_class : 0),
                          .num_inputs = num_inputs,
                          .num_outputs = num_outputs,
                          .sequence = ++tape.sequence,
                          .edges = (mpg_tape_edge *)(memory + edges_at),
                          .descs = (mpg_desc *)(memory + descs_at),
                          .devices = (mpg_device **)(memory + devices_at),
                          .saved = (mpg_saved *)(memory + saved_at),
                          .params = params_size ? memory + params_at : NULL};
  memset(node->edges, 0, num_inputs * sizeof *node->edges);
  if (saved) memset(node->saved, 0, saved * sizeof *node->saved);
  *result = node;
  return MPG_OK;
}

void mpg_tape_reserve(uint64_t count) { tape.sequence += count; }

static void drop_expansion(mpg_tape_node *node) {
  mpg_tape_edge *expansion = node->expansion;
  node->expansion = NULL;
  for (uint32_t i = 0; expansion && i < node->num_outputs; i++) mpg_tape_release(expansion[i].node);
  mpg_free(expansion);
}

/* Releases everything a node holds except its expansion. Nodes that lose their last reference are
 * added to tape.dying, so that freeing a deep tape does not recurse. */
static void drop_contents(mpg_tape_node *node) {
  for (uint32_t i = 0; i < node->num_inputs; i++) {
    mpg_tape_node *source = node->edges[i].node;
    node->edges[i].node = NULL;
    mpg_tape_release(source);
  }
  if (node->kind == MPG_TAPE_OP) {
    for (uint32_t i = 0; i < node->num_inputs + node->num_outputs; i++)
      mpg_contents_release(&node->saved[i]);
  }
  if (node->call && node->state) {
    void *state = node->state;
    node->state = NULL;
    node->call->release(state);
  }
  if (node->kind == MPG_TAPE_VARIABLE) mpg_tensor_release(&node->gradient);
  mpg_parameter_set *parameters = node->parameters;
  node->parameters = NULL;
  mpg_parameter_set_release(parameters);
}

/* Frees the nodes in tape.dying, unless an outer call is already doing so. */
static void free_dying(void) {
  if (tape.freeing) return;
  tape.freeing = true;
  while (tape.dying) {
    mpg_tape_node *node = tape.dying;
    tape.dying = node->next;
    drop_contents(node);
    drop_expansion(node);
    uint8_t class = node->size_class;
    if (class && tape.num_kept[class] < (class < SMALL_CLASSES ? MOST_KEPT : MOST_LARGE_KEPT)) {
      mpg_poison(node, bytes_of(class));
      node->next = tape.kept[class];
      tape.kept[class] = node;
      tape.num_kept[class]++;
    } else {
      mpg_free(node);
    }
  }
  tape.freeing = false;
}

void mpg_tape_destroy(mpg_tape_node *node) {
  node->next = tape.dying;
  tape.dying = node;
  free_dying();
}

void mpg_tape_consume(mpg_tape_node *node) {
  if (node->consumed || node->kind == MPG_TAPE_VARIABLE) return;
  node->consumed = true;
  node->references++; /* dropping the contents may release the last reference to the node */
  drop_contents(node);
  drop_expansion(node);
  mpg_tape_release(node);
}

mpg_status mpg_tape_expand(mpg_tape_node *node) {
  mpg_array *outputs = mpg_calloc(node->num_outputs + 1, sizeof *outputs);
  mpg_tape_edge *expansion = mpg_calloc(node->num_outputs + 1, sizeof *expansion);
  mpg_status status = MPG_OK;
  if (!outputs || !expansion) MPG_GOTO(mpg_out_of_host_memory(node->num_outputs * sizeof *outputs));
  MPG_GOTO(node->call->expand(node, outputs));
  if (node->expansion) goto fail; /* another thread expanded it first */
  for (uint32_t i = 0; i < node->num_outputs; i++)
    expansion[i] = (mpg_tape_edge){mpg_tape_retain(outputs[i].node), outputs[i].output};
  drop_contents(node);
  node->expansion = expansion;
  expansion = NULL;
fail:
  for (uint32_t i = 0; outputs && i < node->num_outputs; i++) mpg_array_clear(&outputs[i]);
  mpg_free(outputs);
  mpg_free(expansion);
  return status;
}

const char *mpg_tape_name(const mpg_tape_node *node) {
  return node->op ? node->op->name : node->call ? node->call->name : "variable";
}

static mpg_status saved_lost(const mpg_tape_node *node, uint32_t slot, bool no_memory) {
  char name[64], shape[MPG_SHAPE_TEXT_SIZE], origin[256] = "";
  const char *path = mpg_scope_text(node->scope);
  if (node->origin) mpg_host_origin_text(node->origin, origin, sizeof origin);
  if (slot < node->num_inputs)
    mpg_op_input_name(node->op, (int)slot, name, sizeof name);
  else
    memcpy(name, "result", sizeof "result");
  return mpg_fail(
      MPG_ERROR,
      "%s%s%s%s%s: its %s (%s %s on %s) was overwritten after the forward pass, but the gradient "
      "needs the old contents, and %s. Write into another array, or copy before writing",
      node->op->name, *path ? " in block " : "", path, *origin ? " at " : "", origin, name,
      mpg_dtype_name(node->descs[slot].dtype),
      mpg_shape_text(&node->descs[slot].shape, shape, sizeof shape),
      mpg_device_text(node->devices[slot]), mpg_contents_lost_text(no_memory));
}

mpg_status mpg_tape_saved(const mpg_tape_node *node, uint32_t slot, mpg_tensor *tensor) {
  const mpg_saved *saved = &node->saved[slot];
  MPG_ASSERT(saved->storage);
  bool no_memory;
  mpg_storage *storage = mpg_contents_find(saved->storage, saved->version, &no_memory);
  if (!storage) return saved_lost(node, slot, no_memory);
  *tensor = (mpg_tensor){storage, saved->offset, node->descs[slot]};
  return MPG_OK;
}
