/* Loops of routines: slices of the data, steps, stacked outputs. */
#include <string.h>

#include "compile/routine.h"
#include "autograd/tape.h"
#include "base/host.h"
#include "op/invoke.h"

enum {
  PIECES = 512, /* arrays that one op makes or joins at most */
  BETWEEN_INTERRUPTS = 64,
  LARGEST_KEPT = 1 << 14 /* arrays that work space is kept for */
};

typedef struct mpg_loop_space {
  mpg_array *slices; /* per data array, per step; owned, as are all arrays */
  mpg_array *rows;   /* per step, per output */
  mpg_array *pieces; /* joined rows that are to be joined */
  mpg_array *states; /* the present ones, then what a step returns */
  mpg_array **arguments;
  size_t slices_capacity, rows_capacity, pieces_capacity, states_capacity, arguments_capacity;
  size_t num_rows;
} mpg_loop_space;

static void clear(mpg_array *arrays, size_t count) {
  for (size_t i = 0; arrays && i < count; i++) mpg_array_clear(&arrays[i]);
}

static void free_space(mpg_loop_space *space) {
  if (!space) return;
  mpg_free(space->slices);
  mpg_free(space->rows);
  mpg_free(space->pieces);
  mpg_free(space->states);
  mpg_free(space->arguments);
  mpg_free(space);
}

/* --- Slices and stacks ------------------------------------------------------------------------ */

/* Rows [begin, begin + count) as the results of one op, so that their gradient is one op, too. */
static mpg_status cut(mpg_array *whole, int64_t begin, int64_t count, mpg_array *slices) {
  mpg_array piece = {0}, *input = whole;
  mpg_slice_axis_params part;
  mpg_split_params split;
  mpg_params_defaults(mpg_op_get(MPG_OP_slice_axis)->params, &part);
  mpg_params_defaults(mpg_op_get(MPG_OP_SliceChannel)->params, &split);
  part.axis = 0;
  part.begin = begin;
  part.end = (mpg_opt_int){.value = begin + count, .present = 1};
  split.num_outputs = count;
  split.axis = 0;
  split.squeeze_axis = whole->tensor.desc.shape.ndim > 1;
  if (whole->tensor.desc.shape.dims[0] != count) {
    MPG_TRY(mpg_call(mpg_op_get(MPG_OP_slice_axis), &part, &input, 1, &piece, 1, NULL));
    input = &piece;
  }
  mpg_status status =
      mpg_call(mpg_op_get(MPG_OP_SliceChannel), &split, &input, 1, slices, (int)count, NULL);
  mpg_array_clear(&piece);
  return status;
}

static mpg_status take_slices(mpg_array *whole, int64_t count, mpg_array *slices) {
  if (mpg_autograd_recording() && whole->node && !whole->node->consumed) {
    for (int64_t begin = 0; begin < count; begin += PIECES) {
      int64_t size = count - begin < PIECES ? count - begin : PIECES;
      MPG_TRY(cut(whole, begin, size, slices + begin));
    }
    return MPG_OK;
  }
  mpg_desc row = whole->tensor.desc;
  if (row.shape.ndim > 1) { /* else rows are of one element */
    row.shape.ndim--;
    memmove(row.shape.dims, whole->tensor.desc.shape.dims + 1,
            (size_t)row.shape.ndim * sizeof *row.shape.dims);
  } else {
    row.shape.dims[0] = 1;
  }
  size_t bytes = mpg_desc_bytes(&row);
  for (int64_t i = 0; i < count; i++) {
    slices[i] = (mpg_array){
        .tensor = {whole->tensor.storage, whole->tensor.offset + (size_t)i * bytes, row}};
    mpg_tensor_retain(&slices[i].tensor);
  }
  return MPG_OK;
}

/* Joins at most PIECES arrays, `stride` apart, along a new first axis (`stacks`) or their own. */
static mpg_status join_few(mpg_array *arrays, size_t stride, size_t count, bool stacks,
                           mpg_array *joined) {
  mpg_array *pointers[PIECES];
  mpg_stack_params stack;
  mpg_concat_params concat;
  mpg_params_defaults(mpg_op_get(MPG_OP_stack)->params, &stack);
  mpg_params_defaults(mpg_op_get(MPG_OP_Concat)->params, &concat);
  concat.dim = 0;
  for (size_t i = 0; i < count; i++) pointers[i] = &arrays[i * stride];
  stack.num_args = concat.num_args = (int64_t)count;
  return mpg_call(mpg_op_get(stacks ? MPG_OP_stack : MPG_OP_Concat),
                  stacks ? (void *)&stack : &concat, pointers, (int)count, joined, 1, NULL);
}

/* Stacks arrays along a new first axis, by as many rounds as it takes. */
static mpg_status stack(mpg_loop_space *space, mpg_array *arrays, size_t stride, size_t count,
                        mpg_array *joined) {
  if (count <= PIECES) return join_few(arrays, stride, count, true, joined);
  size_t num_micro_batches = (count + PIECES - 1) / PIECES;
  MPG_TRY(mpg_grow((void **)&space->pieces, &space->pieces_capacity, num_micro_batches,
                   sizeof *space->pieces));
  mpg_array *pieces = space->pieces;
  mpg_status status = MPG_OK;
  size_t made = num_micro_batches;
  memset(pieces, 0, num_micro_batches * sizeof *pieces);
  for (size_t k = 0; k < num_micro_batches; k++) {
    size_t begin = k * PIECES, size = count - begin < PIECES ? count - begin : PIECES;
    MPG_GOTO(join_few(arrays + begin * stride, stride, size, true, &pieces[k]));
  }
  for (; num_micro_batches > PIECES; num_micro_batches = (num_micro_batches + PIECES - 1) / PIECES)
    for (size_t k = 0; k * PIECES < num_micro_batches;
         k++) { /* in place: a joined piece lies before those that it is made of, or is the first of
                   them */
      size_t begin = k * PIECES,
             size = num_micro_batches - begin < PIECES ? num_micro_batches - begin : PIECES;
      mpg_array whole = {0};
      MPG_GOTO(join_few(pieces + begin, 1, size, false, &whole));
      clear(pieces + begin, size);
      pieces[k] = whole;
    }
  status = join_few(pieces, 1, num_micro_batches, false, joined);
fail:
  clear(pieces, made);
  return status;
}

static mpg_status zeros(const mpg_loop_output *output, int64_t rows, mpg_array *array) {
  const mpg_shape *shape = &output->desc.shape;
  if (shape->ndim + 1 > MPG_MAX_NDIM)
    return mpg_fail(MPG_VALUE_ERROR,
                    "a loop's outputs have one axis more than its steps', which is more than %d",
                    MPG_MAX_NDIM);
  mpg_full_params params;
  memset(&params, 0, sizeof params);
  params.shape.count = shape->ndim + 1;
  params.shape.values[0] = rows;
  for (int i = 0; i < shape->ndim; i++) params.shape.values[i + 1] = shape->dims[i];
  params.dtype = output->desc.dtype;
  mpg_device *device;
  MPG_TRY(mpg_device_get(output->device, &device));
  mpg_invocation call = {.op = mpg_op_get(MPG_OP__full),
                         .params = &params,
                         .num_outputs = 1,
                         .outputs = &array->tensor,
                         .device = device};
  return mpg_invoke(&call);
}

/* All rows of an output, and zeros up to the limit. */
static mpg_status make_output(const mpg_loop *loop, mpg_loop_space *space, uint32_t number,
                              int64_t steps, mpg_array *output) {
  if (steps == loop->limit && steps)
    return stack(space, space->rows + number, loop->num_outputs, (size_t)steps, output);
  if (!steps) return zeros(&loop->outputs[number], loop->limit, output);
  mpg_array parts[2] = {{.node = NULL}, {.node = NULL}};
  mpg_status status =
      stack(space, space->rows + number, loop->num_outputs, (size_t)steps, &parts[0]);
  if (status == MPG_OK) status = zeros(&loop->outputs[number], loop->limit - steps, &parts[1]);
  if (status == MPG_OK) status = join_few(parts, 1, 2, false, output);
  clear(parts, 2);
  return status;
}

/* --- Steps ------------------------------------------------------------------------------------ */

static mpg_status ask(const mpg_loop *loop, mpg_loop_space *space, mpg_array *const *captures,
                      bool *goes_on) {
  mpg_array **argument = space->arguments, truth = {0};
  for (uint32_t i = 0; i < loop->num_states; i++) *argument++ = &space->states[i];
  for (uint32_t i = 0; i < loop->num_condition_captures; i++) *argument++ = captures[i];
  MPG_TRY(mpg_callee_call(&loop->condition, space->arguments,
                          loop->num_states + loop->num_condition_captures, &truth, 1));
  mpg_status status = mpg_routine_truth(&truth, loop->name, goes_on);
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
  clear(space->states, loop->num_states);
  if (loop->num_states)
    memcpy(space->states, results + loop->num_outputs, loop->num_states * sizeof *results);
  for (uint32_t i = 0; i < loop->num_data; i++)
    mpg_array_clear(&space->slices[(size_t)i * (size_t)loop->limit + (size_t)step]);
  return MPG_OK;
}

/* Releases the host lock for a moment and checks for Ctrl-C. */
static mpg_status let_others_in(void) {
  mpg_host_acquire_lock(mpg_host_release_lock());
  return mpg_host_check_interrupt();
}

static mpg_status run_steps(mpg_loop *loop, mpg_loop_space *space, mpg_array *const *captures,
                            uint64_t outer, int64_t *steps) {
  for (*steps = 0; *steps < loop->limit; ++*steps) {
    mpg_autograd_set_steps(outer << 32 | (uint32_t)(*steps + 1)); /* what fails later says so */
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
          "%s: the data need a row for each of %lld steps, but array %u has the shape %s",
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
    MPG_GOTO(take_slices(inputs[i], loop->limit, space->slices + (size_t)i * (size_t)loop->limit));
  status = run_steps(loop, space, captures, outer, &steps);
  mpg_autograd_set_steps(outer);
  MPG_GOTO(status);
  for (uint32_t i = 0; i < loop->num_outputs; i++)
    MPG_GOTO(make_output(loop, space, i, steps, &outputs[i]));
  if (loop->num_states) {
    memcpy(outputs + loop->num_outputs, space->states, loop->num_states * sizeof *outputs);
    memset(space->states, 0, loop->num_states * sizeof *outputs);
  }
fail:
  if (status != MPG_OK) clear(outputs, loop->num_outputs);
  clear(space->slices, num_slices);
  clear(space->rows, space->num_rows);
  clear(space->states, loop->num_states);
  return status;
}

mpg_status mpg_loop_call(mpg_loop *loop, mpg_array *const *inputs, mpg_array *outputs) {
  mpg_loop_space *space = loop->space ? loop->space : mpg_calloc(1, sizeof *space);
  loop->space = NULL;
  if (!space) return mpg_out_of_host_memory(sizeof *space);
  mpg_status status = run(loop, space, inputs, outputs);
  if (loop->space || space->slices_capacity + space->rows_capacity > LARGEST_KEPT)
    free_space(space); /* another call was under way, or it is large */
  else
    loop->space = space;
  return status;
}

void mpg_loop_clear(mpg_loop *loop) {
  free_space(loop->space);
  mpg_free(loop->name);
  mpg_free(loop->outputs);
}
