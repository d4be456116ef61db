/* Compiles user-written kernels and queues their launches, including which arrays each launch reads
 * and writes. */
#include "op/user/gpu_module.h"

#include <string.h>

#include "base/clock.h"
#include "base/host.h"
#include "base/memory.h"
#include "op/params.h"
#include "op/submit.h"

static mpg_status find(const mpg_gpu_modules **modules) {
  const char *reason;
  const mpg_gpu_library *library = mpg_gpu_library_get(&reason);
  if (library && library->driver->count(&reason) > 0) {
    *modules = library->modules;
    return MPG_OK;
  }
  return mpg_fail(MPG_NOT_IMPLEMENTED, "CudaModule: no GPU is available: %s", reason);
}

mpg_status mpg_gpu_module_compile(const mpg_gpu_source *source, void **module) {
  const mpg_gpu_modules *modules;
  MPG_TRY(find(&modules));
  return modules->compile(source, module);
}

mpg_status mpg_gpu_module_kernel(void *module, const char *name, const void **kernel) {
  const mpg_gpu_modules *modules;
  MPG_TRY(find(&modules));
  return modules->kernel(module, name, kernel);
}

typedef struct launch_task {
  const mpg_gpu_modules *modules;
  const void *kernel;
  const char *name;
  uint32_t grid[3], block[3], shared;
  int num_arguments;
  uint64_t arguments[]; /* each argument is stored in the leading bytes of an element */
} launch_task;

/* First calls work_waits, which publishes the progress of earlier work. That work then completes
 * separately from the launch, so a fault that the GPU reports is attributed to the right kernel. */
static mpg_status launch_work(mpg_run *run, void *payload) {
  launch_task *task = payload;
  if (run->device->backend->work_waits) MPG_TRY(run->device->backend->work_waits(run->device));
  void *pointers[MPG_GPU_MAX_ARGUMENTS];
  for (int i = 0; i < task->num_arguments; i++) pointers[i] = &task->arguments[i];
  mpg_event event = {.name = task->name, .kind = MPG_EVENT_OP, .peer = -1};
  if (mpg_profiler_on()) event.begin_ns = mpg_clock_ns();
  mpg_status status = task->modules->launch(task->kernel, run->stream, task->grid, task->block,
                                            task->shared, pointers);
  event.end_ns = mpg_clock_ns();
  if (event.begin_ns) mpg_profiler_record(run->device, &event);
  if (status != MPG_OK) return mpg_fail_prefix(status, "CudaKernel(%s)", task->name);
  return MPG_OK;
}

mpg_status mpg_gpu_module_launch(const mpg_gpu_launch *launch) {
  mpg_array_use uses[MPG_GPU_MAX_ARGUMENTS];
  _Alignas(launch_task) char space[sizeof(launch_task) + MPG_GPU_MAX_ARGUMENTS * sizeof(uint64_t)];
  launch_task *task = (launch_task *)space;
  uint32_t num_uses = 0;
  memset(space, 0, sizeof space);
  MPG_TRY(find(&task->modules));
  task->kernel = launch->kernel;
  task->name = mpg_intern(launch->name);
  if (!task->name) return mpg_out_of_host_memory(strlen(launch->name));
  memcpy(task->grid, launch->grid, sizeof task->grid);
  memcpy(task->block, launch->block, sizeof task->block);
  task->shared = launch->shared;
  task->num_arguments = launch->num_arguments;
  for (int i = 0; i < launch->num_arguments; i++) {
    const mpg_gpu_argument *argument = &launch->arguments[i];
    memcpy(&task->arguments[i], argument->number, sizeof argument->number);
    if (!argument->tensor) continue;
    if (mpg_tensor_device(argument->tensor) != launch->device)
      return mpg_fail(MPG_ERROR,
                      "CudaKernel(%s): argument %d is on %s, but the kernel is launched on %s; "
                      "move it with as_in_context",
                      launch->name, i, mpg_device_text(mpg_tensor_device(argument->tensor)),
                      mpg_device_text(launch->device));
    task->arguments[i] = (uint64_t)(uintptr_t)mpg_tensor_data(argument->tensor);
    uses[num_uses++] = mpg_use_array(argument->tensor, true, argument->writes);
  }
  return mpg_kernel_submit(&(mpg_kernel_submission){
      .devices = &launch->device,
      .num_devices = 1,
      .work = {.name = task->name,
               .work = launch_work,
               .payload = task,
               .payload_size =
                   sizeof *task + (size_t)launch->num_arguments * sizeof *task->arguments,
               .origin = mpg_host_origin()},
      .uses = uses,
      .num_uses = num_uses});
}
