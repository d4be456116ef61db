/* Routines: compiled functions combined into sequences, branches and loops. */
#include "compile/routine.h"

#include <string.h>

#include "base/memory.h"

static void clear(mpg_array *arrays, size_t count) {
  for (size_t i = 0; i < count; i++) mpg_array_clear(&arrays[i]);
}

/* --- Sequences -------------------------------------------------------------------------------- */

mpg_status mpg_sequence_finish(mpg_sequence *s) {
  /* Per slot: index of the last call that uses it; num_calls if the sequence returns the slot. */
  uint32_t *last = mpg_malloc(((size_t)s->num_slots + 1) * sizeof *last);
  if (!last) return mpg_out_of_host_memory(s->num_slots * sizeof *last);
  mpg_status status = MPG_OK;
  uint32_t slot = s->num_inputs;
  for (uint32_t i = 0; i < s->num_calls; i++) {
    mpg_sequence_call *call = &s->calls[i];
    for (uint32_t k = 0; k < call->num_inputs; k++) last[call->inputs[k]] = i;
    for (uint32_t k = 0; k < call->num_outputs; k++) last[slot++] = i;
    if (call->num_inputs > s->most_inputs) s->most_inputs = call->num_inputs;
  }
  for (uint32_t i = 0; i < s->num_results; i++) last[s->results[i]] = s->num_calls;
  for (uint32_t i = 0; i < s->num_calls; i++) {
    mpg_sequence_call *call = &s->calls[i];
    for (uint32_t k = s->num_inputs; k < s->num_slots; k++) call->num_dead += last[k] == i;
    call->dead = mpg_malloc((call->num_dead + 1) * sizeof *call->dead);
    if (!call->dead) MPG_GOTO(mpg_out_of_host_memory(call->num_dead * sizeof *call->dead));
    for (uint32_t k = s->num_inputs, n = 0; k < s->num_slots; k++)
      if (last[k] == i) call->dead[n++] = k;
  }
fail:
  mpg_free(last);
  return status;
}

static mpg_status sequence_call(mpg_sequence *s, mpg_array *const *inputs, mpg_array *outputs) {
  uint32_t num_own = s->num_slots - s->num_inputs;
  size_t size =
      num_own * sizeof(mpg_array) + (s->num_slots + s->most_inputs + 1) * sizeof(mpg_array *);
  void *space = s->space ? s->space : mpg_malloc(size);
  s->space = NULL;
  if (!space) return mpg_out_of_host_memory(size);
  mpg_array *own = space, **slots = (mpg_array **)(own + num_own),
            **arguments = slots + s->num_slots, *made = own;
  mpg_status status = MPG_OK;
  memset(own, 0, num_own * sizeof *own);
  for (uint32_t i = 0; i < s->num_slots; i++)
    slots[i] = i < s->num_inputs ? inputs[i] : &own[i - s->num_inputs];
  for (uint32_t i = 0; i < s->num_calls; i++) {
    const mpg_sequence_call *call = &s->calls[i];
    bool scoped = call->scope != MPG_SCOPE_INHERITED;
    uint32_t outer = scoped ? mpg_autograd_set_scope(call->scope) : 0;
    for (uint32_t k = 0; k < call->num_inputs; k++) arguments[k] = slots[call->inputs[k]];
    status = mpg_callee_call(&call->callee, arguments, call->num_inputs, made, call->num_outputs);
    if (scoped) mpg_autograd_set_scope(outer);
    MPG_GOTO(status);
    made += call->num_outputs;
    for (uint32_t k = 0; k < call->num_dead; k++) mpg_array_clear(slots[call->dead[k]]);
  }
  for (uint32_t i = 0; i < s->num_results; i++) mpg_array_copy(&outputs[i], slots[s->results[i]]);
fail:
  clear(own, num_own);
  if (s->space)
    mpg_free(space); /* an overlapping call has already stored its space */
  else
    s->space = space;
  return status;
}

/* --- Branches --------------------------------------------------------------------------------- */

static mpg_status branch_call(const mpg_branch *branch, mpg_array *const *inputs,
                              mpg_array *outputs, uint32_t num_outputs) {
  bool truth = false;
  MPG_TRY(mpg_condition_truth(inputs[0], "cond", &truth));
  if (truth)
    return mpg_callee_call(&branch->first, inputs + 1, branch->num_first, outputs, num_outputs);
  return mpg_callee_call(&branch->second, inputs + 1 + branch->num_first, branch->num_second,
                         outputs, num_outputs);
}

/* --- Dispatch --------------------------------------------------------------------------------- */

mpg_status mpg_routine_call(void *object, mpg_array *const *inputs, uint32_t num_inputs,
                            mpg_array *outputs, uint32_t num_outputs) {
  mpg_routine *routine = object;
  if (num_inputs != routine->num_inputs || num_outputs != routine->num_outputs)
    return mpg_fail(MPG_VALUE_ERROR, "the routine expects %u arrays and returns %u, not %u and %u",
                    routine->num_inputs, routine->num_outputs, num_inputs, num_outputs);
  switch (routine->kind) {
    case MPG_SEQUENCE: return sequence_call(&routine->sequence, inputs, outputs);
    case MPG_BRANCH: return branch_call(&routine->branch, inputs, outputs, num_outputs);
    case MPG_LOOP: break;
  }
  return mpg_loop_call(&routine->loop, inputs, outputs);
}

void mpg_routine_clear(mpg_routine *routine) {
  if (routine->kind == MPG_LOOP) mpg_loop_clear(&routine->loop);
  if (routine->kind != MPG_SEQUENCE) return;
  mpg_sequence *s = &routine->sequence;
  for (uint32_t i = 0; s->calls && i < s->num_calls; i++) {
    mpg_free(s->calls[i].inputs);
    mpg_free(s->calls[i].dead);
  }
  mpg_free(s->calls);
  mpg_free(s->results);
  mpg_free(s->space);
}
