/* Tasks of queued ops. */
#include "op/submit.h"

#include <string.h>

#include "base/memory.h"

typedef struct op_task { /* followed by the views, then the parameters */
  mpg_kernel_fn kernel;
  const mpg_op *op;
  int32_t num_inputs, num_outputs;
  mpg_device *source; /* of a copy from another device; NULL */
  uint32_t scope;
  bool train, backward;
  mpg_random_key random;
} op_task;

static size_t views_offset(void) { return mpg_align_up(sizeof(op_task), 16); }
static size_t params_offset(int num_views) {
  return views_offset() + mpg_align_up((size_t)num_views * sizeof(mpg_view), 16);
}

size_t mpg_op_task_size(const mpg_invocation *inv) {
  return params_offset(inv->num_inputs + inv->num_outputs) + inv->op->params->size;
}

void mpg_op_task_fill(void *task, const mpg_invocation *inv, mpg_kernel_fn kernel,
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

mpg_status mpg_op_task_work(mpg_run *run, void *payload) {
  const op_task *task = payload;
  const mpg_view *views = (const mpg_view *)((char *)payload + views_offset());
  mpg_kernel_call call = {
      .op = task->op,
      .params = (char *)payload + params_offset(task->num_inputs + task->num_outputs),
      .device = run->device,
      .stream = run->stream,
      .num_threads = run->num_threads,
      .num_inputs = task->num_inputs,
      .num_outputs = task->num_outputs,
      .inputs = views,
      .outputs = views + task->num_inputs,
      .random = task->random,
      .train = task->train};
  return mpg_kernel_run(task->kernel, &call, task->scope, task->backward, task->source);
}

mpg_status mpg_wait_work(mpg_run *run, void *payload) {
  (void)run, (void)payload;
  return MPG_OK;
}
