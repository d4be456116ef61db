/* Tape nodes: variables, ops that ran while recording, callbacks, and compiled calls.
 *
 * A node holds the data that backward needs: the producers of its inputs (edges), the shape, dtype
 * and device of every input and output, and the contents that its gradient reads ("saved",
 * preserved by tensor/contents.h). A node is a single block of memory, and blocks are kept for
 * reuse. A backward that does not retain the graph consumes the node: the node releases its edges
 * and contents and cannot be differentiated again.
 *
 * Ownership: an edge and an mpg_array own a reference to a node; a node owns its edges, saved
 * storages and payload. Freeing is iterative because tapes are deep. Threads: host lock.
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
  mpg_tape_node *node; /* owned; NULL if not on the tape */
  uint32_t output;
} mpg_tape_edge;

/* The destination of a variable's gradient. */
typedef struct mpg_target {
  mpg_tensor tensor; /* borrowed; storage is NULL if there is no fixed destination */
  mpg_grad_req request;
  bool done;   /* the call has written (or added) the gradient */
  bool missed; /* the call does not reach the input, so a variable's gradient is unchanged */
} mpg_target;

/* A call that is opaque to the tape and computes its own gradient. */
typedef struct mpg_tape_call {
  const char *name;
  /* Computes the gradients of the inputs that are `needed` into in_grads (empty structs), or
   * directly into targets[i] and sets its `done`. An empty out_grad is zero, and so is a result
   * left empty. Host lock held. sums[i] is the sum of the gradients of input i so far (may be
   * empty); calls with `adds_sums` add to it. The inputs are the node's, followed by its
   * parameters. These are separate inputs or, if `together`, one additional input that is always
   * needed, whose gradients are written to their destinations. */
  mpg_status (*backward)(mpg_tape_node *node, mpg_array *const *out_grads, mpg_array *const *sums,
                         const bool *needed, mpg_target *targets, mpg_array *in_grads, bool retain,
                         bool train, bool together);
  bool adds_sums;
  /* Sets *all if a backward from these outputs reaches all parameters of the call. NULL means it
   * always does. */
  mpg_status (*reaches)(mpg_tape_node *node, const bool *arrives, bool *all);
  /* Replaces the call by ops on the tape, for gradients of gradients. The ops get the sequence
   * numbers after the call's own, which mpg_tape_reserve has reserved. NULL if `backward` records
   * its ops. */
  mpg_status (*expand)(mpg_tape_node *node, mpg_array *outputs);
  void (*release)(void *state);
} mpg_tape_call;

struct mpg_tape_node {
  int32_t references;
  uint8_t kind; /* mpg_tape_kind */
  uint8_t size_class;
  bool train, consumed;
  bool starts;     /* calls only: the gradient isn't zero even if the output gradients are */
  bool fresh;      /* variables only: backward has written since the flag was cleared */
  uint8_t request; /* variables only: mpg_grad_req */
  uint64_t parameter_set_number; /* variables only: the latest set that contains it; 0 if none */
  uint32_t scope, origin;
  uint32_t num_inputs, num_outputs;
  uint64_t sequence; /* creation order */
  /* `sequence` of the forward op whose gradient, of any order, this op computes. 0 if this op is a
   * forward op. */
  uint64_t family;
  uint64_t visit;      /* backward's mark: number of the last pass that reached the node */
  uint32_t graph_node; /* the graph node in that pass */
  mpg_tape_node *next; /* next node to be freed */
  const mpg_op *op;
  const void *params;
  mpg_tape_edge *edges; /* per input */
  mpg_desc *descs;      /* per input, then per output */
  mpg_device **devices; /* per input, then per output */
  mpg_saved *saved;     /* per input, then per output; ops only */
  const mpg_tape_call *call;
  void *state; /* calls only */
  /* Expanded calls only: the replacement of each output. Owned, including the nodes. */
  mpg_tape_edge *expansion;
  mpg_tensor gradient; /* variables only; owned */
  /* Calls only: the inputs that follow the edges (parameter_set.h). Owned reference, or NULL. */
  mpg_parameter_set *parameters;
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
uint64_t mpg_autograd_new_pass(void);       /* returns a new number for `visit`; host lock */
void mpg_tape_consume(mpg_tape_node *node); /* releases edges, saved contents and a call's state */
/* Runs a call as ops (its `expand`), which replace it in every later backward. Gradients that reach
 * it along several paths are then summed in the order in which the ops would sum them. Releases the
 * call's state. */
mpg_status mpg_tape_expand(mpg_tape_node *node);
/* Skips the next `count` sequence numbers and reserves them for the expansion of the call that was
 * recorded last. */
void mpg_tape_reserve(uint64_t count);

/* True if results computed from the node while recording need a gradient. NULL is allowed. */
static inline bool mpg_tape_wants(const mpg_tape_node *node) {
  return node && !node->consumed &&
         !(node->kind == MPG_TAPE_VARIABLE && node->request == MPG_GRAD_NULL);
}
/* Returns the name of the op or call for errors, or "variable". */
const char *mpg_tape_name(const mpg_tape_node *node);
/* Returns the saved contents of slot `slot` (inputs, then outputs) as a borrowed tensor. Returns
 * MPG_ERROR if they were overwritten and could not be preserved. */
mpg_status mpg_tape_saved(const mpg_tape_node *node, uint32_t slot, mpg_tensor *tensor);
static inline void mpg_tape_save(mpg_tape_node *node, uint32_t slot, const mpg_tensor *tensor) {
  node->saved[slot] = mpg_contents_save(tensor->storage, tensor->offset);
}

/* Sets the node's edge i to the producer of `input`. */
static inline void mpg_tape_set_edge(mpg_tape_node *node, uint32_t i, const mpg_array *input) {
  if (input->node && !input->node->consumed)
    node->edges[i] = (mpg_tape_edge){mpg_tape_retain(input->node), input->output};
}
/* Records the desc and device of the tensor in a slot. */
static inline void mpg_tape_describe(mpg_tape_node *node, uint32_t slot, const mpg_tensor *tensor) {
  node->descs[slot] = tensor->desc;
  node->devices[slot] = mpg_tensor_device(tensor);
}

/* Runs an op on arrays (record.c). Like mpg_call, but takes the random key (NULL draws one) and
 * also returns hidden outputs. */
mpg_status mpg_record_call(const mpg_op *op, const void *params, mpg_array *const *inputs,
                           int num_inputs, mpg_array *outputs, int num_outputs,
                           const mpg_random_key *random, bool train, mpg_device *device,
                           uint32_t scope);

#endif
