/* Runs one op: checks, inference and allocation, then execution on this thread or queuing. */
#include "op/invoke.h"

#include <string.h>

#include "base/host.h"
#include "base/memory.h"
#include "device/ranks/ranks.h"
#include "op/placement.h"
#include "op/submit.h"
#include "op/transfer.h"

enum { STACK_ARRAYS = 16 };

/* --- Random state ----------------------------------------------------------------------------- */
static mpg_random_key random_state; /* runtime state, guarded by the host lock */

void mpg_random_seed(uint64_t seed) { random_state = (mpg_random_key){.seed = seed}; }
mpg_random_key mpg_random_state(void) { return random_state; }
void mpg_random_restore(mpg_random_key state) { random_state = state; }
mpg_random_key mpg_random_next(uint64_t calls) {
  mpg_random_key key = random_state;
  random_state.call += calls;
  return key;
}

/* --- Invocation ------------------------------------------------------------------------------- */
static mpg_device_id input_device(const void *inputs, int index) {
  return mpg_tensor_device(&((const mpg_tensor *)inputs)[index])->id;
}

static mpg_status output_mismatch(const mpg_invocation *inv, int index, const mpg_desc *wanted) {
  char have[MPG_SHAPE_TEXT_SIZE], want[MPG_SHAPE_TEXT_SIZE];
  const mpg_desc *desc = &inv->outputs[index].desc;
  return mpg_fail(desc->dtype == wanted->dtype ? MPG_ERROR : MPG_TYPE_ERROR,
                  "%s: the result is %s %s, but out is %s %s", inv->op->name,
                  mpg_dtype_name(wanted->dtype), mpg_shape_text(&wanted->shape, want, sizeof want),
                  mpg_dtype_name(desc->dtype), mpg_shape_text(&desc->shape, have, sizeof have));
}

/* True if a kernel may write output `o`, which the caller passed, while it reads input `i`. */
static bool may_alias(const mpg_invocation *inv, int o, int i) {
  const mpg_tensor *output = &inv->outputs[o], *input = &inv->inputs[i];
  if (!mpg_tensor_overlaps(output, input)) return true;
  bool same =
      output->offset == input->offset && mpg_tensor_bytes(output) == mpg_tensor_bytes(input);
  if (mpg_op_input_mutable(inv->op, i)) return same && !inv->op->extension;
  return same && mpg_op_in_place(inv->op, o);
}

/* Hashes inputs by storage, so that many outputs need not be compared with every input. */
enum { ALIAS_BUCKETS = 256 };
static int alias_bucket(const mpg_tensor *tensor) {
  return (int)(((uintptr_t)tensor->storage * UINT64_C(0x9E3779B97F4A7C15)) >> 56);
}

/* True if a kernel may write all outputs that the caller passed while it reads the inputs. */
static bool may_alias_all(const mpg_invocation *inv) {
  if (inv->num_outputs < 4) {
    for (int o = 0; o < inv->num_outputs; o++)
      for (int i = 0; i < inv->num_inputs && inv->outputs[o].storage; i++)
        if (!may_alias(inv, o, i)) return false;
    return true;
  }
  /* Each bucket holds a linked list of inputs: first[] is the head, next[] the following input; -1
   * ends the list. */
  int16_t first[ALIAS_BUCKETS], next[MPG_MAX_INPUTS];
  memset(first, -1, sizeof first);
  for (int i = 0; i < inv->num_inputs; i++) {
    int16_t *bucket = &first[alias_bucket(&inv->inputs[i])];
    next[i] = *bucket;
    *bucket = (int16_t)i;
  }
  for (int o = 0; o < inv->num_outputs; o++)
    for (int i = inv->outputs[o].storage ? first[alias_bucket(&inv->outputs[o])] : -1; i >= 0;
         i = next[i])
      if (!may_alias(inv, o, i)) return false;
  return true;
}

/* Runs the op with new outputs and then copies the results to the given outputs. Used if outputs
 * overlap inputs in a way that kernels do not support. */
static mpg_status invoke_aside(mpg_invocation *inv) {
  mpg_tensor stack[STACK_ARRAYS], *given = inv->outputs;
  if (inv->num_outputs > STACK_ARRAYS)
    return mpg_fail(MPG_ERROR, "%s: out overlaps an input", inv->op->name);
  for (int o = 0; o < inv->num_outputs && inv->op->extension; o++)
    for (int i = 0; i < inv->num_inputs; i++)
      if (mpg_op_input_mutable(inv->op, i) && !may_alias(inv, o, i))
        return mpg_fail(MPG_ERROR, "%s: out overlaps a state, which the op also writes",
                        inv->op->name);
  memset(stack, 0, sizeof stack);
  inv->outputs = stack;
  mpg_status status = mpg_invoke(inv);
  inv->outputs = given;
  for (int i = 0; i < inv->num_outputs; i++) {
    if (status == MPG_OK && given[i].storage) {
      mpg_copyto_params params = {.ctx = {0}};
      mpg_invocation copy = {.op = mpg_op_get(MPG_OP__copyto),
                             .params = &params,
                             .num_inputs = 1,
                             .inputs = &stack[i],
                             .num_outputs = 1,
                             .outputs = &given[i],
                             .scope = inv->scope,
                             .device = mpg_tensor_device(&given[i])};
      status = mpg_invoke(&copy);
      mpg_tensor_release(&stack[i]);
    } else if (status == MPG_OK) {
      given[i] = stack[i];
    } else {
      mpg_tensor_release(&stack[i]);
    }
  }
  return status;
}

static mpg_status check_failures(const mpg_invocation *inv) {
  if (!(inv->op->flags & MPG_OP_SHAPE_ONLY))
    for (int i = 0; i < inv->num_inputs; i++) MPG_TRY(mpg_storage_failure(inv->inputs[i].storage));
  /* Writing a part of an array keeps the rest, so the array's last write must not have failed. */
  for (int i = 0; i < inv->num_outputs; i++)
    if (mpg_tensor_bytes(&inv->outputs[i]) != inv->outputs[i].storage->size)
      MPG_TRY(mpg_storage_failure(inv->outputs[i].storage));
  return MPG_OK;
}

static bool runs_inline(const mpg_invocation *inv, const mpg_device *device,
                        const mpg_desc *outputs, bool written_inputs) {
  if (!mpg_device_runs_inline(device)) return false;
  mpg_op_flags flags = inv->op->flags;
  if ((flags & MPG_OP_HEAVY) && !(flags & MPG_OP_TINY_INLINE)) return false;
  int64_t elements = 0;
  for (int i = 0; i < inv->num_inputs; i++) elements += mpg_shape_size(&inv->inputs[i].desc.shape);
  for (int i = 0; i < inv->num_outputs; i++) elements += mpg_shape_size(&outputs[i].shape);
  if (elements > (flags & MPG_OP_HEAVY ? MPG_TINY_ELEMENTS : MPG_INLINE_ELEMENTS)) return false;
  if (flags & MPG_OP_COPY) {
    const mpg_storage *source = inv->inputs[0].storage;
    if (!source->device->backend->host_accessible ||
        !mpg_tick_reached(source->device, source->block.uses.write))
      return false;
  }
  for (int i = 0; i < inv->num_outputs; i++)
    if (!mpg_storage_writable_now(inv->outputs[i].storage)) return false;
  if (written_inputs)
    for (int i = 0; i < inv->num_inputs; i++)
      if (mpg_op_input_mutable(inv->op, i) && !mpg_storage_writable_now(inv->inputs[i].storage))
        return false;
  return true;
}

/* Records the writes as complete: this thread has done them, or another process does them on its
 * device. */
static void note_writes(const mpg_invocation *inv, bool written_inputs) {
  for (int o = 0; o < inv->num_outputs; o++) mpg_storage_add_write(inv->outputs[o].storage, 0);
  for (int i = 0; written_inputs && i < inv->num_inputs; i++)
    if (mpg_op_input_mutable(inv->op, i)) mpg_storage_add_write(inv->inputs[i].storage, 0);
}

/* Returns this process's share of the work; MPG_TRANSFER_NONE if remote devices do all of it. */
static mpg_transfer_kind transfer_kind(const mpg_invocation *inv, const mpg_device *device) {
  if (!(inv->op->flags & MPG_OP_COPY) || !inv->num_inputs)
    return device->remote ? MPG_TRANSFER_NONE : MPG_TRANSFER_HERE;
  const mpg_device *source = mpg_tensor_device(&inv->inputs[0]);
  return source == device && !device->remote ? MPG_TRANSFER_HERE
                                             : mpg_transfer_of(source->id, device->id);
}

/* Versions of the inputs when inference read their contents. */
typedef struct seen_inputs {
  const mpg_invocation *inv;
  uint32_t versions[MPG_MAX_NAMED];
  bool *again; /* set to true if a version has changed, in which case nothing is queued */
} seen_inputs;

static bool unchanged(const seen_inputs *seen) {
  const mpg_invocation *inv = seen->inv;
  for (int i = 0; i < inv->num_inputs && i < MPG_MAX_NAMED; i++)
    if (inv->inputs[i].storage->version != seen->versions[i]) return false;
  return true;
}

static mpg_status check_unchanged(void *state, bool *done) {
  const seen_inputs *seen = state;
  *done = *seen->again = !unchanged(seen);
  return MPG_OK;
}

/* Runs shape inference that reads the inputs' contents. Waits for the inputs and records their
 * versions. */
static mpg_status infer_values(mpg_invocation *inv, mpg_desc *input_descs, mpg_desc *output_descs,
                               seen_inputs *seen) {
  const void *values[MPG_MAX_NAMED] = {NULL};
  void *copies[MPG_MAX_NAMED] = {NULL};
  mpg_status status = MPG_OK;
  uint64_t turns;
  do {
    turns = mpg_host_turns();
    for (int i = 0; i < inv->num_inputs && i < MPG_MAX_NAMED; i++)
      MPG_GOTO(mpg_tensor_wait_read(&inv->inputs[i]));
  } while (turns != mpg_host_turns()); /* other threads may write an input during a wait */
  for (int i = 0; i < inv->num_inputs && i < MPG_MAX_NAMED; i++) {
    const mpg_tensor *input = &inv->inputs[i];
    seen->versions[i] = input->storage->version;
    if (mpg_tensor_device(input)->backend->host_accessible) {
      values[i] = mpg_tensor_data(input);
    } else {
      size_t bytes = mpg_tensor_bytes(input);
      if (!(copies[i] = mpg_malloc(bytes + 1))) MPG_GOTO(mpg_out_of_host_memory(bytes));
      MPG_GOTO(mpg_tensor_copy_to_host(input, copies[i]));
      values[i] = copies[i];
    }
  }
  MPG_GOTO(mpg_op_infer_values(inv->op, inv->params, inv->train, input_descs, inv->num_inputs,
                               values, output_descs, inv->num_outputs));
fail:
  for (int i = 0; i < MPG_MAX_NAMED; i++) mpg_free(copies[i]);
  return status;
}

/* Runs the op once. Sets *again if nothing was done because the contents that determine the
 * result's shape have changed in the meantime. */
static mpg_status try_invoke(mpg_invocation *inv, mpg_desc *descs, mpg_view *views, bool *again) {
  const mpg_op *op = inv->op;
  mpg_device *device = inv->device;
  mpg_desc *input_descs = descs, *output_descs = descs + inv->num_inputs;
  bool written_inputs = false;
  mpg_device_id place;
  if (inv->num_inputs) {
    if (!(op->flags & MPG_OP_COPY) || !device) device = mpg_tensor_device(&inv->inputs[0]);
    for (int i = 0; i < inv->num_inputs; i++) {
      input_descs[i] = inv->inputs[i].desc;
      if (mpg_tensor_device(&inv->inputs[i]) != device && !(op->flags & MPG_OP_COPY))
        return mpg_op_place(op, inv->params, inv->inputs, inv->num_inputs, input_device, device->id,
                            /* Always fails, with an error that lists the devices of the inputs. */
                            &place);
      written_inputs |= mpg_op_input_mutable(op, i);
    }
  } else if (!device) {
    return mpg_fail(MPG_ERROR, "%s: no device is given", op->name);
  }
  mpg_kernel_fn kernel;
  bool by_values = op->flags & MPG_OP_DYNAMIC;
  seen_inputs seen;
  seen.inv = inv;
  seen.again = again;
  MPG_TRY(mpg_kernel_find(device, op, &kernel));
  if (by_values)
    MPG_TRY(infer_values(inv, input_descs, output_descs, &seen));
  else
    MPG_TRY(mpg_op_infer(op, inv->params, inv->train, input_descs, inv->num_inputs, output_descs,
                         inv->num_outputs));
  for (int o = 0; o < inv->num_outputs; o++) {
    if (!inv->outputs[o].storage) continue;
    if (mpg_tensor_device(&inv->outputs[o]) != device)
      return mpg_fail(
          MPG_ERROR, "%s: out is on %s, but the op runs on %s; copy the result with copyto",
          op->name, mpg_device_text(mpg_tensor_device(&inv->outputs[o])), mpg_device_text(device));
    if (!mpg_shape_equal(&inv->outputs[o].desc.shape, &output_descs[o].shape) ||
        inv->outputs[o].desc.dtype != output_descs[o].dtype)
      return output_mismatch(inv, o, &output_descs[o]);
    mpg_storage_before_write(inv->outputs[o].storage);
  }
  if (!may_alias_all(inv)) return invoke_aside(inv);
  for (int i = 0; written_inputs && i < inv->num_inputs; i++)
    if (mpg_op_input_mutable(op, i)) mpg_storage_before_write(inv->inputs[i].storage);
  if ((op->flags & MPG_OP_VIEW) && !inv->separate && !inv->outputs[0].storage &&
      inv->num_outputs == 1) {
    inv->outputs[0] = (mpg_tensor){inv->inputs[0].storage, inv->inputs[0].offset, output_descs[0]};
    mpg_tensor_retain(&inv->outputs[0]);
    return MPG_OK;
  }
  uint32_t origin = 0; /* read before creating outputs; mpg_host_origin may release the GIL */
  if (__builtin_expect(device->id.rank != 0, 0))
    origin = inv->origin ? inv->origin : mpg_host_origin();
  /* Bit set of the outputs that this function creates and releases after a failure. */
  uint64_t created[(MPG_MAX_OUTPUTS + 63) / 64];
  memset(created, 0, (size_t)(inv->num_outputs + 63) / 64 * sizeof *created);
  mpg_status status = MPG_OK;
  int made = 0;
  for (; made < inv->num_outputs; made++) {
    if (inv->outputs[made].storage) continue;
    MPG_GOTO(mpg_tensor_create(device, &output_descs[made], &inv->outputs[made]));
    created[made / 64] |= 1ull << (made % 64);
    if (__builtin_expect(origin != 0, 0))
      inv->outputs[made].storage->name =
          mpg_ranks_name_array(origin, MPG_MADE_BY_OP + (uint32_t)op->id);
  }
  for (int i = 0; i < inv->num_inputs; i++)
    views[i] = (mpg_view){mpg_tensor_data(&inv->inputs[i]), input_descs[i]};
  for (int o = 0; o < inv->num_outputs; o++)
    views[inv->num_inputs + o] = (mpg_view){mpg_tensor_data(&inv->outputs[o]), output_descs[o]};
  mpg_random_key random = {0};
  if (op->flags & MPG_OP_RANDOM && mpg_op_draws(op, inv->params, inv->train))
    random = inv->random ? *inv->random : mpg_random_next(1);
  mpg_transfer_kind transfer = transfer_kind(inv, device);
  if (__builtin_expect(transfer != MPG_TRANSFER_HERE, 0)) {
    if (op->flags & MPG_OP_COPY)
      MPG_GOTO(mpg_invoke_transfer(inv, device, transfer));
    else
      note_writes(inv, written_inputs);
    return MPG_OK;
  }
  if (runs_inline(inv, device, output_descs, written_inputs) && (!by_values || unchanged(&seen))) {
    MPG_GOTO(check_failures(inv));
    const mpg_run run = {.device = device, .num_threads = 1};
    mpg_kernel_call call =
        mpg_kernel_call_in(&run, op, inv->params, views, inv->num_inputs, inv->num_outputs);
    call.random = random;
    call.train = inv->train;
    mpg_device *source = (op->flags & MPG_OP_COPY) && mpg_tensor_device(&inv->inputs[0]) != device
                             ? mpg_tensor_device(&inv->inputs[0])
                             : NULL;
    MPG_GOTO(mpg_kernel_run(kernel, &call, inv->scope, inv->backward, source));
    note_writes(inv, written_inputs);
    return MPG_OK;
  }
  MPG_GOTO(mpg_op_submit(inv, kernel, &device, 1, views, random, by_values ? check_unchanged : NULL,
                         &seen));
  if (!*again) return MPG_OK;
fail:
  for (int o = 0; o < made; o++)
    if (created[o / 64] >> (o % 64) & 1) mpg_tensor_release(&inv->outputs[o]);
  return status;
}

static mpg_status invoke_with(mpg_invocation *inv, mpg_desc *descs, mpg_view *views) {
  bool again;
  mpg_status status;
  do {
    again = false;
    status = try_invoke(inv, descs, views, &again);
  } while (__builtin_expect(again, 0));
  return status;
}

static mpg_status invoke(mpg_invocation *inv) {
  if (__builtin_expect(inv->op->flags & MPG_OP_SPANS, 0)) return mpg_invoke_spanning(inv);
  int count = inv->num_inputs + inv->num_outputs;
  if (__builtin_expect(count <= STACK_ARRAYS, 1)) {
    mpg_desc descs[STACK_ARRAYS];
    mpg_view views[STACK_ARRAYS];
    return invoke_with(inv, descs, views);
  }
  if (inv->num_inputs > MPG_MAX_INPUTS || inv->num_outputs > MPG_MAX_OUTPUTS)
    return mpg_fail(MPG_ERROR, "%s: got %d inputs and %d outputs; an op may have at most %d and %d",
                    inv->op->name, inv->num_inputs, inv->num_outputs, MPG_MAX_INPUTS,
                    MPG_MAX_OUTPUTS);
  size_t size = (size_t)count * (sizeof(mpg_desc) + sizeof(mpg_view));
  char *memory = mpg_space_take(size);
  if (!memory) return mpg_out_of_host_memory(size);
  mpg_status status =
      invoke_with(inv, (mpg_desc *)memory, (mpg_view *)(memory + (size_t)count * sizeof(mpg_desc)));
  mpg_space_give(memory);
  return status;
}

mpg_status mpg_invoke(mpg_invocation *inv) {
  mpg_status status = invoke(inv);
  if (__builtin_expect(status != MPG_OK && inv->scope, 0))
    mpg_fail_prefix(status, "in block %s", mpg_scope_text(inv->scope));
  return status;
}
