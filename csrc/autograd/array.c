/* Assigns and releases user-visible arrays. */
#include "autograd/array.h"

#include <string.h>

#include "autograd/tape.h"
#include "autograd/trace.h"

static uint64_t changes; /* value of mpg_array_changes; runtime state, under the host lock */
uint64_t mpg_array_changes(void) { return changes; }
void mpg_array_note_change(void) { changes++; }

mpg_device_id mpg_array_device_id(const mpg_array *array) {
  return array->trace ? mpg_graph_at(&array->trace->graph, array->value)->device
                      : mpg_tensor_device(&array->tensor)->id;
}

void mpg_array_clear(mpg_array *array) {
  mpg_storage *storage = array->tensor.storage;
  mpg_tape_node *node = array->node;
  mpg_trace *trace = array->trace;
  mpg_value value = array->value;
  mpg_array_changed(array);
  /* Clears the struct before releasing the references, because a release may run a finalizer that
   * reads the array. All fields are cleared, because structs are reused. */
  *array = (mpg_array){0};
  if (storage) mpg_storage_release(storage);
  mpg_tape_release(node);
  if (trace) trace->live[mpg_value_index(&trace->graph, value)]--;
  mpg_trace_release(trace);
}

void mpg_array_copy(mpg_array *target, const mpg_array *source) {
  *target = *source;
  target->bound = false;
  mpg_tensor_retain(&target->tensor);
  mpg_tape_retain(target->node);
  if (target->trace) {
    target->trace->references++;
    target->trace->live[mpg_value_index(&target->trace->graph, target->value)]++;
  }
}
