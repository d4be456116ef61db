/* Queues copies between devices of different processes. */
#include "op/transfer.h"

#include <string.h>

#include "base/clock.h"
#include "base/host.h"
#include "device/profiler.h"
#include "op/submit.h"

typedef struct transfer_task {
  mpg_transfer transfer;
  mpg_transfer_kind kind;
  mpg_device *from, *to, *runs_on;
  const void *source;
  void *target;
  mpg_tick tick; /* tick of this work */
  uint32_t scope;
  bool done; /* true once the data was sent */
} transfer_task;

static mpg_status transfer_work(mpg_run *run, void *payload) {
  transfer_task *task = payload;
  bool done = true;
  if (task->kind == MPG_TRANSFER_RECEIVE)
    return mpg_transfer_receive(run, &task->transfer, task->to, task->target, &done);
  bool profiling = mpg_profiler_on(), shares = task->kind == MPG_TRANSFER_SHARE;
  int64_t begin = profiling ? mpg_clock_ns() : 0;
  if (shares)
    MPG_TRY(mpg_device_copy(run->device, task->to, task->target, task->from, task->source,
                            task->transfer.size));
  bool from_target = shares && !task->from->backend->host_accessible;
  MPG_TRY(from_target ? mpg_transfer_send(&task->transfer, task->to, task->target)
                      : mpg_transfer_send(&task->transfer, task->from, task->source));
  task->done = true;
  if (profiling)
    mpg_profiler_record(run->device, &(mpg_event){.name = shares ? "share" : "send",
                                                  .scope = task->scope,
                                                  .kind = MPG_EVENT_COPY,
                                                  .peer = (shares ? task->from : task->to)->ordinal,
                                                  .bytes = task->transfer.size,
                                                  .begin_ns = begin,
                                                  .end_ns = mpg_clock_ns()});
  return MPG_OK;
}

/* Notifies the receiving rank that the send was dropped. */
static void transfer_discard(void *payload) {
  const transfer_task *task = payload;
  if (task->done || task->kind == MPG_TRANSFER_RECEIVE) return;
  if (task->tick) (void)mpg_device_failure(task->runs_on, task->tick); /* sets the error text */
  mpg_transfer_send_failure(&task->transfer);
}

static mpg_status note_tick(void *state, bool *done) {
  transfer_task *task = state;
  (void)done;
  task->tick = mpg_device_next_tick(task->runs_on);
  return MPG_OK;
}

static mpg_rank_call call_of(const mpg_tensor *array, uint32_t origin) {
  const mpg_shape *shape = &array->desc.shape;
  mpg_rank_call call = {.line = mpg_host_origin_key(origin),
                        .ndim = (uint32_t)shape->ndim,
                        .array = array->storage->name,
                        .offset = array->offset,
                        .step = mpg_ranks_step()};
  const char *dtype = mpg_dtype_name(array->desc.dtype);
  memcpy(call.dtype, dtype, strnlen(dtype, sizeof call.dtype));
  for (int i = 0; i < shape->ndim && i < MPG_CALL_DIMS; i++) call.dims[i] = shape->dims[i];
  return call;
}

mpg_status mpg_invoke_transfer(const mpg_invocation *inv, mpg_device *device,
                               mpg_transfer_kind kind) {
  const mpg_tensor *input = &inv->inputs[0], *output = &inv->outputs[0];
  mpg_device *source = mpg_tensor_device(input);
  uint64_t number = mpg_transfers_take(mpg_transfer_numbers(source->id, device->id));
  if (kind == MPG_TRANSFER_NONE) {
    mpg_storage_add_write(output->storage, 0);
    return MPG_OK;
  }
  uint32_t origin = inv->origin ? inv->origin : mpg_host_origin();
  bool receives = kind == MPG_TRANSFER_RECEIVE, sends = kind == MPG_TRANSFER_SEND;
  transfer_task task = {
      .transfer = {source->id, device->id, number, mpg_tensor_bytes(input), call_of(input, origin)},
      .kind = kind,
      .from = source,
      .to = device,
      .scope = inv->scope,
      .runs_on = receives || sends ? source : device,
      .source = mpg_tensor_data(input),
      .target = mpg_tensor_data(output)};
  mpg_device *devices[2] = {task.runs_on, device};
  const mpg_array_use uses[2] = {mpg_use_array(input, true, false),
                                 mpg_use_array(output, false, true)};
  MPG_TRY(mpg_kernel_submit(&(mpg_kernel_submission){.devices = devices,
                                                     .num_devices = receives ? 2 : 1,
                                                     .transfers = true,
                                                     .work = {.name = sends      ? "send"
                                                                      : receives ? "receive"
                                                                                 : inv->op->name,
                                                              .work = transfer_work,
                                                              .payload = &task,
                                                              .payload_size = sizeof task,
                                                              .origin = origin,
                                                              .scope = inv->scope,
                                                              .steps = inv->steps,
                                                              .discard = transfer_discard},
                                                     .uses = uses,
                                                     .num_uses = sends ? 1 : 2,
                                                     .ready = note_tick,
                                                     .state = &task}));
  if (sends) mpg_storage_add_write(output->storage, 0);
  return MPG_OK;
}
