#include "autograd/loop.h"

#include <string.h>

#include "autograd/tape.h"
#include "base/host.h"

enum { PIECES = 512, /* arrays that one op makes or joins at most */
       BETWEEN_INTERRUPTS = 64 };

typedef struct running {
  const mpg_loop *loop;
  uint32_t num_outputs;      /* per step */
  mpg_array *slices;         /* per data array, per step; owned */
  mpg_array *rows;           /* per step, per output; owned */
  size_t num_rows, rows_capacity;
  mpg_array *states, *made;  /* present states; what a body returns; owned */
  mpg_array **slots, **arguments;
  mpg_array *results;        /* of a body */
} running;

static void clear(mpg_array *arrays, size_t count) {
  for (size_t i = 0; arrays && i < count; i++) mpg_array_clear(&arrays[i]);
}

/* --- Slices and stacks --------------------------------------------------------------------------------------------- */

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
  split.squeeze_axis = true;
  if (whole->tensor.desc.shape.dims[0] != count) {
    MPG_TRY(mpg_call(mpg_op_get(MPG_OP_slice_axis), &part, &input, 1, &piece, 1, NULL));
    input = &piece;
  }
  mpg_status status = mpg_call(mpg_op_get(MPG_OP_SliceChannel), &split, &input, 1, slices, (int)count, NULL);
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
  row.shape.ndim--;
  memmove(row.shape.dims, whole->tensor.desc.shape.dims + 1, (size_t)row.shape.ndim * sizeof *row.shape.dims);
  size_t bytes = mpg_desc_bytes(&row);
  for (int64_t i = 0; i < count; i++) {
    slices[i] = (mpg_array){.tensor = {whole->tensor.storage, whole->tensor.offset + (size_t)i * bytes, row}};
    mpg_tensor_retain(&slices[i].tensor);
  }
  return MPG_OK;
}

/* Joins `count` arrays, `stride` apart, along a new first axis (`stacks`) or their own, at most PIECES at once. */
static mpg_status join(mpg_array *arrays, size_t stride, size_t count, bool stacks, mpg_array *joined) {
  mpg_array *pointers[PIECES];
  mpg_stack_params stack;
  mpg_concat_params concat;
  mpg_params_defaults(mpg_op_get(MPG_OP_stack)->params, &stack);
  mpg_params_defaults(mpg_op_get(MPG_OP_Concat)->params, &concat);
  concat.dim = 0;
  if (count <= PIECES) {
    for (size_t i = 0; i < count; i++) pointers[i] = &arrays[i * stride];
    stack.num_args = concat.num_args = (int64_t)count;
    return mpg_call(mpg_op_get(stacks ? MPG_OP_stack : MPG_OP_Concat), stacks ? (void *)&stack : &concat, pointers, (int)count, joined, 1, NULL);
  }
  size_t num_pieces = (count + PIECES - 1) / PIECES;
  mpg_array *pieces = mpg_calloc(num_pieces, sizeof *pieces);
  if (!pieces) return mpg_out_of_host_memory(num_pieces * sizeof *pieces);
  mpg_status status = MPG_OK;
  for (size_t k = 0; k < num_pieces; k++) {
    size_t begin = k * PIECES, size = count - begin < PIECES ? count - begin : PIECES;
    MPG_GOTO(join(arrays + begin * stride, stride, size, stacks, &pieces[k]));
  }
  status = join(pieces, 1, num_pieces, false, joined);
fail:
  clear(pieces, num_pieces);
  mpg_free(pieces);
  return status;
}

/* --- Steps --------------------------------------------------------------------------------------------------------- */

/* One call of a body: results are references of their own, in r->results. */
static mpg_status call_body(running *r, const mpg_loop_body *body, int64_t step) {
  const mpg_loop *loop = r->loop;
  mpg_array **slots = r->slots;
  for (uint32_t i = 0; i < loop->num_data; i++) *slots++ = &r->slices[(size_t)i * (size_t)loop->limit + (size_t)step];
  for (uint32_t i = 0; i < loop->num_states; i++) *slots++ = &r->states[i];
  for (uint32_t i = 0; i < body->num_captures; i++) *slots++ = body->captures[i];
  for (uint32_t i = 0; i < body->num_inputs; i++) r->arguments[i] = r->slots[body->inputs[i]];
  memset(r->made, 0, body->num_outputs * sizeof *r->made);
  MPG_TRY(body->call(body->function, r->arguments, body->num_inputs, r->made, body->num_outputs));
  for (uint32_t i = 0; i < body->num_results; i++)
    mpg_array_copy(&r->results[i], body->results[i] >= 0 ? &r->made[body->results[i]] : r->slots[~body->results[i]]);
  clear(r->made, body->num_outputs);
  return MPG_OK;
}

static mpg_status ask(running *r, int64_t step, bool *goes_on) {
  uint8_t item[16] = {0};
  MPG_TRY(call_body(r, &r->loop->condition, step));
  mpg_dtype dtype = r->results[0].tensor.desc.dtype;
  mpg_status status = mpg_tensor_copy_to_host(&r->results[0].tensor, item);
  mpg_array_clear(&r->results[0]);
  *goes_on = status == MPG_OK && mpg_dtype_nonzero(dtype, item, 0);
  return status;
}

static mpg_status take_step(running *r, int64_t step) {
  const mpg_loop *loop = r->loop;
  MPG_TRY(mpg_grow((void **)&r->rows, &r->rows_capacity, r->num_rows + r->num_outputs, sizeof *r->rows));
  MPG_TRY(call_body(r, &loop->step, step));
  if (r->num_outputs) memcpy(r->rows + r->num_rows, r->results, r->num_outputs * sizeof *r->rows);
  r->num_rows += r->num_outputs;
  clear(r->states, loop->num_states);
  if (loop->num_states) memcpy(r->states, r->results + r->num_outputs, loop->num_states * sizeof *r->states);
  for (uint32_t i = 0; i < loop->num_data; i++) mpg_array_clear(&r->slices[(size_t)i * (size_t)loop->limit + (size_t)step]);
  return MPG_OK;
}

/* Other threads of the host have their turn, and so has the user who wants to stop. */
static mpg_status let_others_in(void) {
  const mpg_host *host = mpg_host_get();
  host->acquire_lock(host->release_lock());
  return host->check_interrupt();
}

static mpg_status run_steps(running *r, uint64_t outer, int64_t *steps) {
  const mpg_loop *loop = r->loop;
  for (*steps = 0; *steps < loop->limit; ++*steps) {
    mpg_autograd_set_steps(outer << 32 | (uint32_t)(*steps + 1)); /* what fails later says so */
    mpg_status status = *steps % BETWEEN_INTERRUPTS ? MPG_OK : let_others_in();
    bool goes_on = true;
    if (status == MPG_OK && loop->condition.function) status = ask(r, *steps, &goes_on);
    if (status == MPG_OK && !goes_on) return MPG_OK;
    if (status == MPG_OK) status = take_step(r, *steps);
    if (status == MPG_INTERRUPTED || status == MPG_HOST_EXCEPTION) return status;
    if (status != MPG_OK) return mpg_fail_prefix(status, "%s, step %lld", loop->name, (long long)*steps);
  }
  return MPG_OK;
}

mpg_status mpg_loop_run(const mpg_loop *loop, mpg_array *results, int64_t *steps) {
  const mpg_loop_body *step = &loop->step, *condition = &loop->condition;
  uint32_t captures = step->num_captures > condition->num_captures ? step->num_captures : condition->num_captures;
  uint32_t inputs = step->num_inputs > condition->num_inputs ? step->num_inputs : condition->num_inputs;
  uint32_t outputs = step->num_outputs > condition->num_outputs ? step->num_outputs : condition->num_outputs;
  uint32_t num_slots = loop->num_data + loop->num_states + captures, num_results = step->num_results + 1;
  size_t num_slices = (size_t)loop->num_data * (size_t)loop->limit;
  running r = {.loop = loop, .num_outputs = step->num_results - loop->num_states};
  mpg_status status = MPG_OK;
  r.slices = mpg_calloc(num_slices + 1, sizeof *r.slices);
  r.states = mpg_calloc(loop->num_states + outputs + num_results, sizeof *r.states);
  r.slots = mpg_calloc(num_slots + inputs + 1, sizeof *r.slots);
  if (!r.slices || !r.states || !r.slots) MPG_GOTO(mpg_out_of_host_memory(num_slices * sizeof *r.slices));
  r.made = r.states + loop->num_states;
  r.results = r.made + outputs;
  r.arguments = r.slots + num_slots;
  for (uint32_t i = 0; i < loop->num_states; i++) mpg_array_copy(&r.states[i], loop->states[i]);
  for (uint32_t i = 0; i < loop->num_data; i++) MPG_GOTO(take_slices(loop->data[i], loop->limit, r.slices + (size_t)i * (size_t)loop->limit));
  uint64_t outer = mpg_autograd_steps();
  status = run_steps(&r, outer, steps);
  mpg_autograd_set_steps(outer);
  MPG_GOTO(status);
  for (uint32_t i = 0; *steps && i < r.num_outputs; i++) MPG_GOTO(join(r.rows + i, r.num_outputs, (size_t)*steps, true, &results[i]));
  memcpy(results + r.num_outputs, r.states, loop->num_states * sizeof *results);
  memset(r.states, 0, loop->num_states * sizeof *r.states);
fail:
  if (status != MPG_OK) clear(results, r.num_outputs);
  clear(r.slices, num_slices);
  clear(r.rows, r.num_rows);
  clear(r.states, r.states ? loop->num_states : 0);
  mpg_free(r.slices);
  mpg_free(r.rows);
  mpg_free(r.states);
  mpg_free(r.slots);
  return status;
}
