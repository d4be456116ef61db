/* Runs the loops of routines, one step at a time, on slices of the data. */
#include <string.h>

#include "compile/routine.h"
#include "autograd/tape.h"
#include "base/host.h"

/* BETWEEN_INTERRUPTS: number of steps between two checks for Ctrl-C
 * LARGEST_KEPT: maximum number of arrays for which scratch memory is kept */
enum { BETWEEN_INTERRUPTS = 64, LARGEST_KEPT = 1 << 14 };

typedef struct mpg_loop_space {
  mpg_array *slices; /* per data array, per step; all arrays in this struct are owned */
  mpg_array *rows;   /* per step, per output */
  mpg_array *states; /* current states, then the results of a step */
  mpg_array **arguments;
  size_t slices_capacity, rows_capacity, states_capacity, arguments_capacity;
  size_t num_rows;
  mpg_loop_joined joined;
} mpg_loop_space;

static void free_space(mpg_loop_space *space) {
  if (!space) return;
  mpg_free(space->slices);
  mpg_free(space->rows);
  mpg_free(space->joined.joined);
  mpg_free(space->states);
  mpg_free(space->arguments);
  mpg_free(space);
}

/* --- Steps ------------------------------------------------------------------------------------ */

mpg_status mpg_condition_truth(const mpg_array *array, const char *what, bool *truth) {
  uint8_t item[16] = {0};
  const mpg_tensor *tensor = &array->tensor;
  if (mpg_shape_size(&tensor->desc.shape) != 1) {
    char text[MPG_SHAPE_TEXT_SIZE];
    return mpg_fail(MPG_VALUE_ERROR, "%s: a condition must be one number, not an array of shape %s",
                    what, mpg_shape_text(&tensor->desc.shape, text, sizeof text));
  }
  MPG_TRY(mpg_tensor_copy_to_host(tensor, item));
  *truth = mpg_dtype_nonzero(tensor->desc.dtype, item, 0);
  return MPG_OK;
}

static mpg_status ask(const mpg_loop *loop, mpg_loop_space *space, mpg_array *const *captures,
                      bool *goes_on) {
  mpg_array **argument = space->arguments, truth = {0};
  for (uint32_t i = 0; i < loop->num_states; i++) *argument++ = &space->states[i];
  for (uint32_t i = 0; i < loop->num_condition_captures; i++) *argument++ = captures[i];
  MPG_TRY(mpg_callee_call(&loop->condition, space->arguments,
                          loop->num_states + loop->num_condition_captures, &truth, 1));
  mpg_status status = mpg_condition_truth(&truth, loop->name, goes_on);
  mpg_array_clear(&truth);
  return status;
}

static mpg_status take_step(const mpg_loop *loop, mpg_loop_space *space, mpg_array *const *captures,
                            int64_t step) {
  mpg_array **argument = space->arguments, *results = space->states + loop->num_states;
  uint32_t num_results = loop->num_outputs + loop->num_states;
  MPG_TRY(mpg_grow((void **)&space->rows, &space->rows_capacity,
                   space->num_rows + loop->num_outputs, sizeof *space->rows));
  for (uint32_t i = 0; i < loop->num_data; i++)
    *argument++ = &space->slices[(size_t)i * (size_t)loop->limit + (size_t)step];
  for (uint32_t i = 0; i < loop->num_states; i++) *argument++ = &space->states[i];
  for (uint32_t i = 0; i < loop->num_step_captures; i++) *argument++ = captures[i];
  if (num_results) memset(results, 0, num_results * sizeof *results);
  MPG_TRY(mpg_callee_call(&loop->step, space->arguments,
                          loop->num_data + loop->num_states + loop->num_step_captures, results,
                          num_results));
  if (loop->num_outputs)
    memcpy(space->rows + space->num_rows, results, loop->num_outputs * sizeof *results);
  space->num_rows += loop->num_outputs;
  mpg_array_clear_all(space->states, loop->num_states);
  if (loop->num_states)
    memcpy(space->states, results + loop->num_outputs, loop->num_states * sizeof *results);
  for (uint32_t i = 0; i < loop->num_data; i++)
    mpg_array_clear(&space->slices[(size_t)i * (size_t)loop->limit + (size_t)step]);
  return MPG_OK;
}

/* Briefly releases the host lock, so that other threads can run, and checks for Ctrl-C. */
static mpg_status let_others_in(void) {
  mpg_host_acquire_lock(mpg_host_release_lock());
  return mpg_host_check_interrupt();
}

static mpg_status run_steps(mpg_loop *loop, mpg_loop_space *space, mpg_array *const *captures,
                            uint64_t outer, int64_t *steps) {
  for (*steps = 0; *steps < loop->limit; ++*steps) {
    mpg_autograd_begin_step(outer, *steps); /* attributes later failures to this step */
    mpg_status status = loop->turns++ % BETWEEN_INTERRUPTS ? MPG_OK : let_others_in();
    bool goes_on = true;
    if (status == MPG_OK && loop->condition.function)
      status = ask(loop, space, captures + loop->num_step_captures, &goes_on);
    if (status == MPG_OK && !goes_on) return MPG_OK;
    if (status == MPG_OK) status = take_step(loop, space, captures, *steps);
    if (status == MPG_INTERRUPTED || status == MPG_HOST_EXCEPTION) return status;
    if (status != MPG_OK)
      return mpg_fail_prefix(status, "%s, step %lld", loop->name, (long long)*steps);
  }
  return MPG_OK;
}

static mpg_status check_data(const mpg_loop *loop, mpg_array *const *data) {
  char text[MPG_SHAPE_TEXT_SIZE];
  for (uint32_t i = 0; i < loop->num_data; i++) {
    const mpg_shape *shape = &data[i]->tensor.desc.shape;
    if (!shape->ndim || shape->dims[0] != loop->limit)
      return mpg_fail(
          MPG_VALUE_ERROR,
          "%s: the data must have a row for each of %lld steps, but array %u has the shape %s",
          loop->name, (long long)loop->limit, i, mpg_shape_text(shape, text, sizeof text));
  }
  return MPG_OK;
}

static mpg_status reserve(const mpg_loop *loop, mpg_loop_space *space) {
  size_t num_slices, captures = loop->num_step_captures > loop->num_condition_captures
                                    ? loop->num_step_captures
                                    : loop->num_condition_captures;
  if (!mpg_size_mul(loop->num_data, (size_t)loop->limit, &num_slices))
    return mpg_out_of_host_memory(SIZE_MAX);
  MPG_TRY(mpg_grow((void **)&space->slices, &space->slices_capacity, num_slices,
                   sizeof *space->slices));
  MPG_TRY(mpg_grow((void **)&space->states, &space->states_capacity,
                   2 * (size_t)loop->num_states + loop->num_outputs, sizeof *space->states));
  return mpg_grow((void **)&space->arguments, &space->arguments_capacity,
                  loop->num_data + loop->num_states + captures, sizeof *space->arguments);
}

static mpg_status run(mpg_loop *loop, mpg_loop_space *space, mpg_array *const *inputs,
                      mpg_array *outputs) {
  mpg_array *const *states = inputs + loop->num_data, *const *captures = states + loop->num_states;
  size_t num_slices = (size_t)loop->num_data * (size_t)loop->limit;
  uint64_t outer = mpg_autograd_steps();
  int64_t steps = 0;
  MPG_TRY(check_data(loop, inputs));
  MPG_TRY(reserve(loop, space));
  space->num_rows = 0;
  if (num_slices) memset(space->slices, 0, num_slices * sizeof *space->slices);
  if (loop->num_states) memset(space->states, 0, loop->num_states * sizeof *space->states);
  mpg_status status = MPG_OK;
  for (uint32_t i = 0; i < loop->num_states; i++) mpg_array_copy(&space->states[i], states[i]);
  for (uint32_t i = 0; i < loop->num_data; i++)
    MPG_GOTO(
        mpg_loop_slices(inputs[i], loop->limit, space->slices + (size_t)i * (size_t)loop->limit));
  status = run_steps(loop, space, captures, outer, &steps);
  mpg_autograd_set_steps(outer);
  MPG_GOTO(status);
  for (uint32_t i = 0; i < loop->num_outputs; i++)
    MPG_GOTO(mpg_loop_stack(space->rows + i, loop->num_outputs, steps, &loop->outputs[i],
                            loop->limit, &space->joined, &outputs[i]));
  if (loop->num_states) {
    memcpy(outputs + loop->num_outputs, space->states, loop->num_states * sizeof *outputs);
    memset(space->states, 0, loop->num_states * sizeof *outputs);
  }
fail:
  if (status != MPG_OK) mpg_array_clear_all(outputs, loop->num_outputs);
  mpg_array_clear_all(space->slices, num_slices);
  mpg_array_clear_all(space->rows, space->num_rows);
  mpg_array_clear_all(space->states, loop->num_states);
  return status;
}

mpg_status mpg_loop_call(mpg_loop *loop, mpg_array *const *inputs, mpg_array *outputs) {
  mpg_loop_space *space = loop->space ? loop->space : mpg_calloc(1, sizeof *space);
  loop->space = NULL;
  if (!space) return mpg_out_of_host_memory(sizeof *space);
  mpg_status status = run(loop, space, inputs, outputs);
  if (loop->space || space->slices_capacity + space->rows_capacity > LARGEST_KEPT)
    /* An overlapping call has stored its space, or this one is too large to keep. */
    free_space(space);
  else
    loop->space = space;
  return status;
}

void mpg_loop_clear(mpg_loop *loop) {
  free_space(loop->space);
  mpg_free(loop->name);
  mpg_free(loop->outputs);
}
