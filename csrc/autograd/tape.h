/* Nodes of the tape: variables, ops that ran while recording, callbacks, and compiled calls.
 *
 * A node says what backward needs: where its inputs came from (edges), what shape, dtype and device
 * every input and output had, and the contents that its gradient reads ("saved", which stay as
 * they were: tensor/contents.h). All of it lies in one block of memory; blocks are kept
 * for reuse. After a backward that does not retain the graph a node is consumed: it has given up
 * edges and contents and cannot be differentiated again.
 *
 * Ownership: an edge and an mpg_array own a reference to a node; a node owns its edges, saved
 * storages and payload. Freeing is iterative: tapes are deep. Threads: host lock.
 */
#ifndef MPG_AUTOGRAD_TAPE_H
#define MPG_AUTOGRAD_TAPE_H

#include "autograd/autograd.h"
#include "base/host.h"
#include "graph/ir/graph.h"
#include "op/invoke.h"
#include "tensor/contents.h"

typedef enum mpg_tape_kind { MPG_TAPE_VARIABLE, MPG_TAPE_OP, MPG_TAPE_CALL } mpg_tape_kind;

typedef struct mpg_tape_edge {
  mpg_tape_node *node; /* owned; NULL: not on the tape */
  uint32_t output;
} mpg_tape_edge;

/* The destination of a variable's gradient. */
typedef struct mpg_target {
  mpg_tensor tensor; /* borrowed; storage NULL: nowhere in particular */
  mpg_grad_req request;
  bool done;   /* the call has written (added) it */
  bool missed; /* the call does not lead to it: it stays as it is */
} mpg_target;

/* A call that only its maker can differentiate. */
typedef struct mpg_tape_call {
  const char *name;
  /* Computes the gradients of the inputs that are `needed` into in_grads (empty structs), or
   * straight into targets[i], which it then says. An empty out_grad is zero; so is a result left
   * empty. Host lock held. sums[i] is what was summed up for input i so far (may be empty): calls
   * that say `adds_sums` begin with it. The inputs are the node's, then its parameters: one by one,
   * or, `together`, as one more that is always needed, whose gradients go where they belong. */
  mpg_status (*backward)(mpg_tape_node *node, mpg_array *const *out_grads, mpg_array *const *sums,
                         const bool *needed, mpg_target *targets, mpg_array *in_grads, bool retain,
                         bool train, bool together);
  bool adds_sums;
  /* Whether a backward from these outputs reaches all parameters of the call; NULL: it does. */
  mpg_status (*reaches)(mpg_tape_node *node, const bool *arrives, bool *all);
  /* Replaces the call by ops on the tape, for gradients of gradients; NULL: `backward` itself
   * records its ops. The ops have the numbers after the call's own, which mpg_tape_reserve has
   * reserved. */
  mpg_status (*expand)(mpg_tape_node *node, mpg_array *outputs);
  void (*release)(void *state);
} mpg_tape_call;

struct mpg_tape_node {
  int32_t references;
  uint8_t kind; /* mpg_tape_kind */
  uint8_t size_class;
  bool train, consumed;
  bool starts;     /* calls only: the gradient isn't zero even if a zero gradient arrives */
  bool fresh;      /* of a variable: backward has written since the flag was cleared */
  uint8_t request; /* of a variable: mpg_grad_req */
  uint64_t parameter_set_number; /* of a variable: the latest set it is in; 0: none */
  uint32_t scope, origin;
  uint32_t num_inputs, num_outputs;
  uint64_t sequence; /* creation order */
  /* Gradients of any order: `sequence` of the forward op that they belong to. 0 means that this op
   * is a forward op. */
  uint64_t family;
  uint64_t visit;      /* backward's mark: reached in that pass */
  uint32_t graph_node; /* and where it is in that graph */
  mpg_tape_node *next; /* in the list of those being freed */
  const mpg_op *op;
  const void *params;
  mpg_tape_edge *edges; /* per input */
  mpg_desc *descs;      /* per input, then per output */
  mpg_device **devices; /* likewise */
  mpg_saved *saved;     /* likewise; ops only */
  const mpg_tape_call *call;
  void *state;              /* of a call */
  mpg_tape_edge *expansion; /* of a call that was expanded: per output, what stands for it from then
                               on; owned, as are the nodes */
  mpg_tensor gradient;      /* of a variable: owned */
  mpg_parameter_set *parameters; /* of a call: inputs behind those above (parameter_set.h); owned
                         reference; NULL: none */
};
void mpg_parameter_set_release(mpg_parameter_set *parameters); /* NULL is allowed */

mpg_status mpg_tape_new(mpg_tape_kind kind, uint32_t num_inputs, uint32_t num_outputs,
                        size_t params_size, mpg_tape_node **node); /* new */
static inline mpg_tape_node *mpg_tape_retain(mpg_tape_node *node) {
  if (node) node->references++;
  return node;
}
void mpg_tape_destroy(mpg_tape_node *node);
static inline void mpg_tape_release(mpg_tape_node *node) {
  if (node && --node->references == 0) mpg_tape_destroy(node);
}
void mpg_tape_consume(mpg_tape_node *node); /* gives up edges, saved contents and a call's state */
/* Runs a call as ops (its `expand`), which stand for it in every backward from then on: so what
 * reaches it in several ways is summed up as the ops would sum it up. What the call kept is given
 * up. */
mpg_status mpg_tape_expand(mpg_tape_node *node);
/* Leaves out the next `count` sequence numbers: for ops that a call made just before may be
 * expanded to. */
void mpg_tape_reserve(uint64_t count);

/* Whether results computed from it while recording need a gradient; NULL is allowed. */
static inline bool mpg_tape_wants(const mpg_tape_node *node) {
  return node && !node->consumed &&
         !(node->kind == MPG_TAPE_VARIABLE && node->request == MPG_GRAD_NULL);
}
/* Name for errors: the op's, the call's, "variable". */
const char *mpg_tape_name(const mpg_tape_node *node);
/* The saved contents of slot `slot` (inputs, then outputs) as a tensor, borrowed; MPG_ERROR when
 * they were overwritten and could not be kept. */
mpg_status mpg_tape_saved(const mpg_tape_node *node, uint32_t slot, mpg_tensor *tensor);
static inline void mpg_tape_save(mpg_tape_node *node, uint32_t slot, const mpg_tensor *tensor) {
  node->saved[slot] = mpg_contents_save(tensor->storage, tensor->offset);
}

/* Says where the node's input i comes from on the tape. */
static inline void mpg_tape_set_edge(mpg_tape_node *node, uint32_t i, const mpg_array *input) {
  if (input->node && !input->node->consumed)
    node->edges[i] = (mpg_tape_edge){mpg_tape_retain(input->node), input->output};
}
/* Says what the tensor in a slot was. */
static inline void mpg_tape_describe(mpg_tape_node *node, uint32_t slot, const mpg_tensor *tensor) {
  node->descs[slot] = tensor->desc;
  node->devices[slot] = mpg_tensor_device(tensor);
}

/* Runs an op on arrays (record.c): like mpg_call, with the random key to use (NULL: draw) and with
 * hidden outputs too. */
mpg_status mpg_record_call(const mpg_op *op, const void *params, mpg_array *const *inputs,
                           int num_inputs, mpg_array *outputs, int num_outputs,
                           const mpg_random_key *random, bool train, mpg_device *device,
                           uint32_t scope);

#endif
