/* User-visible arrays: a tensor with its position on the tape, or a value of a graph that is being
 * traced.
 *
 * Ownership: an mpg_array owns a reference to its tensor's storage and to its tape node (or trace);
 * the binding embeds it in its array object and calls mpg_array_clear when the object is destroyed.
 * Threads: callers hold the host lock.
 */
#ifndef MPG_AUTOGRAD_ARRAY_H
#define MPG_AUTOGRAD_ARRAY_H

#include "op/op.h"
#include "tensor/tensor.h"

typedef struct mpg_tape_node mpg_tape_node;         /* autograd/tape.h */
typedef struct mpg_trace mpg_trace;                 /* autograd/trace.h */
typedef struct mpg_parameter_set mpg_parameter_set; /* autograd/parameter_set.h */

/* How backward stores a variable's gradient. The numeric values are MXNet's. */
typedef enum mpg_grad_req { MPG_GRAD_NULL = 0, MPG_GRAD_WRITE = 1, MPG_GRAD_ADD = 3 } mpg_grad_req;

typedef struct mpg_array {
  mpg_tensor tensor; /* when traced: storage is NULL, but desc is valid */
  /* Owned reference to the op or variable that produced the array; NULL if not on the tape. */
  mpg_tape_node *node;
  uint32_t output; /* index of the array among the node's outputs */
  /* True if compiled calls rely on the tensor and node, so mpg_array_changed must be called when
   * either is replaced. */
  bool bound;
  bool numpy;       /* an array of mx.np, whose ops follow NumPy (mpg_op_is_numpy) */
  mpg_trace *trace; /* owned reference while traced, else NULL */
  mpg_value value;  /* value of the array in the traced graph */
} mpg_array;

static inline const mpg_desc *mpg_array_desc(const mpg_array *array) { return &array->tensor.desc; }
static inline bool mpg_array_traced(const mpg_array *array) { return array->trace != NULL; }
mpg_device_id mpg_array_device_id(const mpg_array *array); /* also valid for a traced array */
/* Releases the array's references and zeroes the struct. */
void mpg_array_clear(mpg_array *array);
static inline void mpg_array_clear_all(mpg_array *arrays, size_t count) {
  for (size_t i = 0; arrays && i < count; i++) mpg_array_clear(&arrays[i]);
}
/* Sets *target to a new reference to the tensor, node and trace of `source`, of the same kind. */
void mpg_array_copy(mpg_array *target, const mpg_array *source);
/* Returns the number of times that the tensor or node of any bound array has been replaced. */
uint64_t mpg_array_changes(void);
void mpg_array_note_change(void);
static inline void mpg_array_changed(const mpg_array *array) {
  if (array->bound) mpg_array_note_change();
}
#endif
