/* The mode of a thread's op calls. */
#include "autograd/mode.h"

#include <stdatomic.h>

_Thread_local mpg_call_mode mpg_mode;
static atomic_bool np_shape_everywhere; /* True if NumPy's shapes are on in all threads */

mpg_trace *mpg_trace_active(void) { return mpg_mode.trace; }

mpg_trace *mpg_trace_swap(mpg_trace *trace) {
  mpg_trace *former = mpg_mode.trace;
  mpg_mode.trace = trace;
  return former;
}

mpg_group mpg_group_get(void) { return mpg_mode.group; }

mpg_group mpg_group_set(mpg_group group) {
  mpg_group former = mpg_mode.group;
  mpg_mode.group = group;
  return former;
}

bool mpg_autograd_recording(void) { return mpg_mode.recording; }
bool mpg_autograd_training(void) { return mpg_mode.training; }
uint32_t mpg_autograd_scope(void) { return mpg_mode.scope; }
uint64_t mpg_autograd_steps(void) { return mpg_mode.steps; }

bool mpg_autograd_set_recording(bool on) {
  bool former = mpg_mode.recording;
  mpg_mode.recording = on;
  return former;
}

bool mpg_autograd_set_training(bool on) {
  bool former = mpg_mode.training;
  mpg_mode.training = on;
  return former;
}

bool mpg_autograd_set_uncast(bool on) {
  bool former = mpg_mode.uncast;
  mpg_mode.uncast = on;
  return former;
}

uint32_t mpg_autograd_set_scope(uint32_t scope) {
  uint32_t former = mpg_mode.scope;
  mpg_mode.scope = scope;
  return former;
}

uint64_t mpg_autograd_set_steps(uint64_t steps) {
  uint64_t former = mpg_mode.steps;
  mpg_mode.steps = steps;
  return former;
}

bool mpg_np_array(void) { return mpg_mode.np_array; }

bool mpg_np_array_set(bool on) {
  bool former = mpg_mode.np_array;
  mpg_mode.np_array = on;
  return former;
}

mpg_np_shapes mpg_np_shape(void) {
  if (atomic_load_explicit(&np_shape_everywhere, memory_order_relaxed)) return MPG_NP_SHAPE_ALL;
  return mpg_mode.np_shape ? MPG_NP_SHAPE_ON : MPG_NP_SHAPE_OFF;
}

mpg_np_shapes mpg_np_shape_set(mpg_np_shapes value) {
  mpg_np_shapes former = mpg_np_shape();
  mpg_mode.np_shape = value != MPG_NP_SHAPE_OFF;
  if (value != MPG_NP_SHAPE_ON)
    atomic_store_explicit(&np_shape_everywhere, value == MPG_NP_SHAPE_ALL, memory_order_relaxed);
  return former;
}
