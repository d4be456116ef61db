/* Issues instructions: resolves addresses, computes random keys, and runs kernels. */
#include "graph/program/issue.h"

#include "op/submit.h"

static void shift_rows(mpg_random_key *key, const mpg_rows *rows, int64_t outer, int64_t own,
                       int64_t inner) {
  key->position += (uint64_t)(rows->begin * inner);
  if (outer == 1) return;
  key->run = (uint64_t)(own * inner);
  key->stride = (uint64_t)(rows->total * inner);
}

/* Shifts a key to the position of the call's rows in the op's random stream, so that the rows get
 * the same numbers as if the whole batch were drawn. `random` is the index of the random call in
 * the graph. */
static void shift_random(mpg_random_key *key, const mpg_call_frame *frame, uint32_t random,
                         bool by_rows, const mpg_shape *shape) {
  const mpg_rows *rows = &frame->rows;
  if (!rows->total) return;
  const mpg_drawn *drawn =
      random < frame->set->num_drawn ? &frame->set->drawn[random] : &(mpg_drawn){0};
  if (drawn->rowless) return;
  if (drawn->outer) {
    shift_rows(key, rows, drawn->outer, rows->count, drawn->inner);
    return;
  }
  int64_t inner = 1, outer = 1;
  bool batch = shape->ndim > rows->axis && shape->dims[rows->axis] == rows->count;
  int axis = batch ? rows->axis : 0;
  for (int d = 0; d < axis; d++) outer *= shape->dims[d];
  for (int d = axis + 1; d < shape->ndim; d++) inner *= shape->dims[d];
  int64_t own = shape->ndim ? shape->dims[axis] : 1;
  if (!batch) { /* reshaped rows: each row is an equal part of the first axis */
    inner = rows->count ? own * inner / rows->count : 0;
    own = rows->count;
  }
  /* An op that does not draw by rows gets a range of the stream that no other micro-batch uses. */
  shift_rows(key, rows, by_rows ? outer : 1, own, by_rows ? inner : inner * outer);
}

static mpg_random_key key_of(const mpg_call_frame *frame, const mpg_program *program,
                             const mpg_instruction *instruction) {
  mpg_random_key key = frame->random;
  key.call += instruction->random;
  mpg_random_take(&key, &instruction->draw);
  if (!frame->rows.total || !instruction->num_outputs) return key;
  const mpg_view *views = program->views + instruction->operands;
  const mpg_op *op = instruction->op;
  mpg_shape drawn =
      mpg_op_drawn_shape(op, instruction->params, &views[0].desc.shape,
                         &views[instruction->num_inputs + instruction->num_outputs - 1].desc.shape);
  shift_random(&key, frame, instruction->random, op->flags & MPG_OP_DRAWS_ROWS, &drawn);
  return key;
}

void mpg_program_keys(const mpg_call_frame *frame, const mpg_program *program,
                      const mpg_instruction *instruction, mpg_random_key *keys) {
  if (!instruction->fused) {
    *keys = key_of(frame, program, instruction);
    return;
  }
  for (uint32_t i = 0; i < instruction->fused->num_draws; i++) {
    const mpg_fused_draw *draw = &instruction->fused->draws[i];
    keys[i] = frame->random;
    keys[i].call += draw->call;
    mpg_random_take(&keys[i], &draw->part);
    shift_random(&keys[i], frame, draw->call, true, &draw->shape);
  }
}

mpg_status mpg_program_issue(mpg_run *run, const mpg_call_frame *frame, const mpg_program *program,
                             const mpg_instruction *instruction, const mpg_random_key *random_at) {
  uint32_t count = instruction->num_inputs + instruction->num_outputs;
  mpg_view *views = program->views + instruction->operands;
  const mpg_location *operands = program->operands + instruction->operands;
  for (uint32_t i = 0; i < count; i++)
    views[i].data = operands[i].base == MPG_NO_BASE
                        ? NULL
                        : (char *)frame->bases[operands[i].base] + operands[i].offset;
  mpg_kernel_call call =
      mpg_kernel_call_in(run, instruction->op, instruction->params, views,
                         (int)instruction->num_inputs, (int)instruction->num_outputs);
  call.random_at = random_at;
  call.train = instruction->train;
  if (instruction->fused && !random_at)
    mpg_program_keys(frame, program, instruction, instruction->fused->keys);
  else if (instruction->random != MPG_NO_RANDOM && !random_at)
    mpg_program_keys(frame, program, instruction, &call.random);
  mpg_device *to =
      instruction->kind == MPG_COPY ? frame->set->programs[instruction->peer].device : run->device;
  mpg_status status = mpg_kernel_issue(instruction->kernel, &call, run->device, to);
  if (status == MPG_OK) return status;
  return instruction->scope
             ? mpg_fail_prefix(status, "in block %s", mpg_scope_text(instruction->scope))
             : status;
}
