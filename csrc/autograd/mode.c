/* The mode of a thread's op calls. */
#include "autograd/mode.h"

_Thread_local mpg_call_mode mpg_mode;

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
