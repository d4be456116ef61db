/* Tape nodes: variables, ops that ran while recording, callbacks, and compiled calls.
 *
 * A node holds the data that backward needs: the producers of its inputs (edges), the shape, dtype
 * and device of every input and output, and the contents that its gradient reads ("saved",
 * preserved by tensor/contents.h). A node is a single block of memory, and blocks are kept for
 * reuse. A backward pass that does not retain the graph consumes the node: the node releases its
 * edges and contents and cannot be differentiated again.
 *
 * Ownership: an edge and an mpg_array own a reference to a node; a node owns its edges, saved
 * storages and payload. Freeing is iterative because tapes are deep. Threads: callers hold the host
 * lock.
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
  mpg_tape_node *node; /* owned; NULL if the array is not on the tape */
  uint32_t output;
} mpg_tape_edge;

/* The destination of an input's gradient. */
typedef struct mpg_target {
  mpg_tensor tensor; /* borrowed; storage is NULL if there is no fixed destination */
  mpg_grad_req request;
  bool done;   /* the call has written (or added) the gradient itself */
  bool missed; /* no gradient reaches the input, so a variable's gradient array is unchanged */
} mpg_target;

/* A call that is opaque to the tape and computes its own gradient. */
typedef struct mpg_tape_call {
  const char *name;
  /* Computes the gradients of the `needed` inputs. Stores gradient i in in_grads[i] (an empty
   * struct), or writes it to targets[i].tensor and sets targets[i].done. An empty struct in
   * out_grads or in_grads is a zero gradient. sums[i] is the sum of the gradients that input i has
   * received so far (may be empty); a call with `adds_sums` adds sums[i] to its result. The index
   * i runs over the node's inputs, then its parameters. If `together`, all parameters are one
   * input that is always needed, and the call writes their gradients to their gradient arrays.
   * Runs with the host lock held. */
  mpg_status (*backward)(mpg_tape_node *node, mpg_array *const *out_grads, mpg_array *const *sums,
                         const bool *needed, mpg_target *targets, mpg_array *in_grads, bool retain,
                         bool train, bool together);
  bool adds_sums;
  /* Sets *all to true if a backward pass from the outputs marked in `arrives` reaches all
   * parameters of the call. A NULL function means that every backward pass does. */
  mpg_status (*reaches)(mpg_tape_node *node, const bool *arrives, bool *all);
  /* Runs the call as separate ops that are recorded on the tape, for gradients of gradients. The
   * ops get the sequence numbers after the call's own, which mpg_tape_reserve has reserved. NULL
   * if `backward` itself records its ops. */
  mpg_status (*expand)(mpg_tape_node *node, mpg_array *outputs);
  void (*release)(void *state);
} mpg_tape_call;

struct mpg_tape_node {
  int32_t references;
  uint8_t kind; /* mpg_tape_kind */
  uint8_t size_class;
  bool train, consumed;
  bool starts; /* calls only: input gradients may be nonzero even if all output gradients are 0 */
  bool fresh;  /* variables only: backward has written since the flag was cleared */
  uint8_t request;               /* variables only: mpg_grad_req */
  uint64_t parameter_set_number; /* variables only: number of its latest parameter set, or 0 */
  uint32_t scope, origin;
  uint32_t num_inputs, num_outputs;
  uint64_t sequence; /* creation order */
  union {
    /* For an op that computes a gradient (of any order), the `sequence` of the differentiated
     * forward op. 0 for a forward op. */
    uint64_t family;
    /* Variables only: serial number (mpg_storage.born) that is reserved for the gradient. A
     * gradient that is first needed during a trace is thus as old as its variable. */
    uint64_t gradient_born;
  };
  uint64_t visit;      /* number of the latest backward pass that reached the node */
  uint32_t graph_node; /* index of this node's graph node in the latest backward pass */
  mpg_tape_node *next; /* next node in the list of nodes to free or in a free list */
  const mpg_op *op;
  const void *params;
  mpg_tape_edge *edges; /* per input */
  mpg_desc *descs;      /* per input, then per output */
  mpg_device **devices; /* per input, then per output */
  mpg_saved *saved;     /* per input, then per output; ops only */
  const mpg_tape_call *call;
  union {
    void *state; /* calls only: data of the call */
    /* Variables only: name (mpg_storage.name) that is reserved for the gradient, so that a rank may
     * be the only one to read it. */
    uint64_t gradient_name;
  };
  /* Expanded calls only: the node and output that replace each output. The array and its
   * references to nodes are owned. */
  mpg_tape_edge *expansion;
  mpg_tensor gradient; /* variables only; owned. Empty until mpg_tape_create_gradient */
  /* Calls only: the parameters, which are inputs after those in `edges` (parameter_set.h). Owned
   * reference, or NULL. */
  mpg_parameter_set *parameters;
};
void mpg_parameter_set_release(mpg_parameter_set *parameters); /* NULL is allowed */

mpg_status mpg_tape_new(mpg_tape_kind kind, uint32_t num_inputs, uint32_t num_outputs,
                        size_t params_size, mpg_tape_node **node); /* new reference */
static inline mpg_tape_node *mpg_tape_retain(mpg_tape_node *node) {
  if (node) node->references++;
  return node;
}
/* True for a variable whose gradient is wanted but has not been allocated. NULL is allowed. */
static inline bool mpg_tape_lacks_gradient(const mpg_tape_node *node) {
  return node && node->kind == MPG_TAPE_VARIABLE && node->request != MPG_GRAD_NULL &&
         !node->gradient.storage;
}
/* Allocates a variable's gradient, which is zero, unless it exists. Other threads may run. */
mpg_status mpg_tape_create_gradient(mpg_tape_node *variable);
/* Creates a gradient of zeros. Other threads may run. */
mpg_status mpg_tape_zeros(const mpg_desc *desc, mpg_device *device, mpg_tensor *zeros);
void mpg_tape_destroy(mpg_tape_node *node);
static inline void mpg_tape_release(mpg_tape_node *node) {
  if (node && --node->references == 0) mpg_tape_destroy(node);
}
uint64_t mpg_autograd_new_pass(void); /* returns a new value for `visit`; needs the host lock */
/* Marks the node as consumed and releases its edges, saved contents and call state. */
void mpg_tape_consume(mpg_tape_node *node);
/* Expands a call to ops (mpg_tape_call.expand), which replace it in every later backward pass.
 * Gradients that reach the call along several paths are then summed in the same order as if the
 * ops had been recorded. Releases the call's state. */
mpg_status mpg_tape_expand(mpg_tape_node *node);
/* Reserves the next `count` sequence numbers for the expansion of the most recently recorded
 * call. */
void mpg_tape_reserve(uint64_t count);

/* True if ops on the node's outputs must be recorded, because a gradient may flow through the node.
 * NULL is allowed. */
static inline bool mpg_tape_wants(const mpg_tape_node *node) {
  return node && !node->consumed &&
         !(node->kind == MPG_TAPE_VARIABLE && node->request == MPG_GRAD_NULL);
}
/* Returns the name of the node's op or call for error messages, or "variable". */
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

/* Runs an op on arrays (record.c). Same as mpg_call, except that the caller passes the random key
 * (NULL draws a new one) and gets the hidden outputs in addition to the visible ones. */
mpg_status mpg_record_call(const mpg_op *op, const void *params, mpg_array *const *inputs,
                           int num_inputs, mpg_array *outputs, int num_outputs,
                           const mpg_random_key *random, bool train, mpg_device *device,
                           uint32_t scope);

#endif
