/* Kernel lookup and queuing: collects the points that work must wait for, and packs an op's kernel,
 * views and parameters into queued work. */
#include "op/submit.h"

#include <string.h>

#include "base/clock.h"
#include "base/host.h"
#include "base/memory.h"
#include "op/fused.h"
#include "op/user/extension.h"

/* --- Tables of kernels ------------------------------------------------------------------------ */

/* Indexed by mpg_device_type; set once at startup. */
static struct {
  const mpg_kernel_fn *table;
  mpg_kernel_fn fused;
  mpg_fuses_fn fuses;
} kernel_tables[8];

void mpg_kernels_set(mpg_device_type type, const mpg_kernel_fn *table, mpg_kernel_fn fused) {
  kernel_tables[type].table = table;
  kernel_tables[type].fused = fused;
}
void mpg_kernels_set_fuses(mpg_device_type type, mpg_fuses_fn fuses) {
  kernel_tables[type].fuses = fuses;
}
mpg_fuses_fn mpg_kernel_get_fuses(const mpg_device *device) {
  return kernel_tables[device->id.type].fuses;
}
mpg_kernel_fn mpg_kernel_get_fused(const mpg_device *device) {
  return kernel_tables[device->id.type].fused;
}
mpg_kernel_fn mpg_kernel_get(const mpg_device *device, const mpg_op *op) {
  if (__builtin_expect(op->id >= MPG_OP_COUNT, 0)) return mpg_extension_kernel(device, op);
  return kernel_tables[device->id.type].table[op->id];
}

mpg_status mpg_kernel_find(const mpg_device *device, const mpg_op *op, mpg_kernel_fn *kernel) {
  *kernel = mpg_kernel_get(device, op);
  if (*kernel) return MPG_OK;
  if (op->extension) return mpg_extension_no_kernel(device, op);
  return mpg_fail(MPG_NOT_IMPLEMENTED,
                  "%s cannot run on %s: it has no kernel for that device type; move its inputs "
                  "with .as_in_context(mx.cpu())",
                  op->name, mpg_device_text(device));
}

/* --- Work on arrays --------------------------------------------------------------------------- */

typedef struct queued_kernel {
  const mpg_kernel_submission *submission;
  mpg_point end; /* end of the kernel; the submission's other devices wait for it */
} queued_kernel;

static mpg_status wait_work(mpg_run *run, void *payload) {
  (void)run, (void)payload;
  return MPG_OK;
}

static mpg_status prepare(void *state, mpg_point_list *points, mpg_submission *submissions,
                          bool *done) {
  queued_kernel *q = state;
  const mpg_kernel_submission *s = q->submission;
  mpg_device *device = s->devices[0];
  for (uint32_t i = 0; i < s->num_uses; i++) {
    const mpg_array_use *use = &s->uses[i];
    MPG_TRY(mpg_storage_points(use->storage, device, use->reads, use->writes, points));
  }
  if (s->ready) MPG_TRY(s->ready(s->state, done));
  submissions[0] = s->work;
  submissions[0].points = points->points;
  submissions[0].num_points = points->count;
  q->end = (mpg_point){device, mpg_device_next_tick(device), true};
  for (int i = 1; i < s->num_devices; i++)
    submissions[i] = (mpg_submission){.name = s->work.name,
                                      .work = wait_work,
                                      .points = &q->end,
                                      .num_points = 1,
                                      .origin = s->work.origin,
                                      .scope = s->work.scope,
                                      .steps = s->work.steps};
  return MPG_OK;
}

static void note(void *state, const mpg_tick *ticks) {
  const mpg_kernel_submission *s = ((const queued_kernel *)state)->submission;
  for (uint32_t i = 0; i < s->num_uses; i++) {
    mpg_storage *storage = s->uses[i].storage;
    int at = 0;
    if (!s->uses[i].writes) {
      mpg_storage_add_read(storage, s->devices[0], ticks[0]);
      continue;
    }
    while (s->devices[at] != storage->device) at++;
    mpg_storage_add_write(storage, ticks[at]);
  }
}

static mpg_status pass_over(const mpg_kernel_submission *s) {
  bool done = false;
  mpg_status status = s->ready ? s->ready(s->state, &done) : MPG_OK;
  if (status == MPG_OK && s->work.discard && !done) s->work.discard((void *)s->work.payload);
  for (uint32_t i = 0; status == MPG_OK && i < s->num_uses; i++)
    if (s->uses[i].writes) mpg_storage_add_write(s->uses[i].storage, 0);
  return status;
}

mpg_status mpg_kernel_submit(const mpg_kernel_submission *submission) {
  queued_kernel q = {.submission = submission};
  for (uint32_t i = 0; i < submission->num_uses; i++)
    if (submission->uses[i].writes) mpg_storage_before_write(submission->uses[i].storage);
  if (__builtin_expect(submission->devices[0]->remote && !submission->transfers, 0))
    return pass_over(submission);
  return mpg_device_queue(&(mpg_queuing){.devices = submission->devices,
                                         .count = submission->num_devices,
                                         .prepare = prepare,
                                         .note = note,
                                         .state = &q});
}

/* --- Ops -------------------------------------------------------------------------------------- */

typedef struct op_task { /* Followed by the views, then the parameters. */
  mpg_kernel_fn kernel;
  const mpg_op *op;
  int32_t num_inputs, num_outputs;
  mpg_device *source; /* source device of a copy from another device, or NULL */
  uint32_t scope;
  bool train, backward;
  mpg_random_key random;
} op_task;

static size_t views_offset(void) { return mpg_align_up(sizeof(op_task), 16); }
static size_t params_offset(int num_views) {
  return views_offset() + mpg_align_up((size_t)num_views * sizeof(mpg_view), 16);
}

static mpg_status op_work(mpg_run *run, void *payload) {
  const op_task *task = payload;
  mpg_kernel_call call = mpg_kernel_call_in(
      run, task->op, (char *)payload + params_offset(task->num_inputs + task->num_outputs),
      (const mpg_view *)((char *)payload + views_offset()), task->num_inputs, task->num_outputs);
  call.random = task->random;
  call.train = task->train;
  return mpg_kernel_run(task->kernel, &call, task->scope, task->backward, task->source);
}

static void fill_task(void *task, const mpg_invocation *inv, mpg_kernel_fn kernel,
                      const mpg_view *views, mpg_random_key random, mpg_device *source) {
  int num_views = inv->num_inputs + inv->num_outputs;
  size_t params_size = inv->op->params->size;
  *(op_task *)task = (op_task){.kernel = kernel,
                               .op = inv->op,
                               .num_inputs = inv->num_inputs,
                               .num_outputs = inv->num_outputs,
                               .scope = inv->scope,
                               .train = inv->train,
                               .backward = inv->backward,
                               .random = random,
                               .source = source};
  memcpy((char *)task + views_offset(), views, (size_t)num_views * sizeof *views);
  if (params_size) memcpy((char *)task + params_offset(num_views), inv->params, params_size);
}

static uint32_t list_uses(const mpg_invocation *inv, mpg_array_use *uses) {
  bool reads = !(inv->op->flags & MPG_OP_SHAPE_ONLY);
  uint32_t count = 0;
  for (int i = 0; i < inv->num_inputs; i++) {
    bool writes = mpg_op_input_mutable(inv->op, i);
    if (reads || writes) uses[count++] = mpg_use_array(&inv->inputs[i], reads, writes);
  }
  for (int i = 0; i < inv->num_outputs; i++)
    uses[count++] = mpg_use_array(&inv->outputs[i], false, true);
  return count;
}

mpg_status mpg_op_submit(const mpg_invocation *inv, mpg_kernel_fn kernel,
                         mpg_device *const *devices, int num_devices, const mpg_view *views,
                         mpg_random_key random, mpg_status (*ready)(void *state, bool *done),
                         void *state) {
  enum { STACK_SIZE = 8192 };
  const mpg_op *op = inv->op;
  int num_arrays = inv->num_inputs + inv->num_outputs;
  size_t task_size = params_offset(num_arrays) + op->params->size;
  size_t size = mpg_align_up(task_size, 16) + (size_t)num_arrays * sizeof(mpg_array_use);
  _Alignas(16) char stack[STACK_SIZE];
  char *task = size > sizeof stack ? mpg_space_take(size) : stack;
  if (!task) return mpg_out_of_host_memory(size);
  mpg_array_use *uses = (mpg_array_use *)(task + mpg_align_up(task_size, 16));
  bool from_afar = (op->flags & MPG_OP_COPY) && mpg_tensor_device(&inv->inputs[0]) != devices[0];
  fill_task(task, inv, kernel, views, random,
            from_afar ? mpg_tensor_device(&inv->inputs[0]) : NULL);
  mpg_status status = mpg_kernel_submit(
      &(mpg_kernel_submission){.devices = devices,
                               .num_devices = num_devices,
                               .work = {.name = op->name,
                                        .work = op_work,
                                        .payload = task,
                                        .payload_size = task_size,
                                        .origin = inv->origin ? inv->origin : mpg_host_origin(),
                                        .scope = inv->scope,
                                        .steps = inv->steps},
                               .uses = uses,
                               .num_uses = list_uses(inv, uses),
                               .ready = ready,
                               .state = state});
  if (task != stack) mpg_space_give(task);
  return status;
}

/* --- Running ---------------------------------------------------------------------------------- */

mpg_status mpg_kernel_run_profiled(mpg_kernel_fn kernel, const mpg_kernel_call *call,
                                   uint32_t scope, bool backward, mpg_device *source) {
  const mpg_desc *result = &call->outputs[0].desc;
  mpg_event event = {.name = call->op->name,
                     .scope = scope,
                     .backward = backward,
                     .kind = source ? MPG_EVENT_COPY : MPG_EVENT_OP,
                     .peer = source ? source->ordinal : -1,
                     .begin_ns = mpg_clock_ns()};
  mpg_status status = mpg_kernel_issue(kernel, call, source ? source : call->device, call->device);
  if (source)
    event.bytes = (uint64_t)mpg_shape_size(&result->shape) * mpg_dtype_size(result->dtype);
  event.end_ns = mpg_clock_ns();
  mpg_profiler_record(call->device, &event);
  return status;
}
