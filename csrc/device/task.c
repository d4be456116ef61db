/* Tasks (submissions as stored by the backends): running, dropping and failing them, and lists. */
#include <string.h>

#include "base/memory.h"
#include "device/internal.h"

static void discard(const mpg_task *task) {
  if (task->submission.discard) task->submission.discard((void *)task->submission.payload);
}

/* Returns the first tick that a task has not signaled. If the task fails, the ticks that it has
 * signaled remain successful. */
static mpg_tick first_unsignalled(mpg_device *device, const mpg_task *task) {
  mpg_tick done = device->backend->issued
                      ? device->backend->issued(device)
                      : atomic_load_explicit(device->completed, memory_order_relaxed);
  return done >= task->first_tick ? done + 1 : task->first_tick;
}

bool mpg_task_advance(mpg_device *device, const mpg_task *task, mpg_point *blocked_on) {
  const mpg_submission *submission = &task->submission;
  mpg_tick last_tick = mpg_task_last_tick(task);
  if (!blocked_on->device) {
    for (int i = 0; i < submission->num_points; i++) {
      const mpg_point *point = &submission->points[i];
      if (!point->data) continue;
      const mpg_cause *cause = mpg_failures_find(point->device, point->tick);
      if (cause) {
        mpg_failures_add(device, task->first_tick, last_tick, cause);
        discard(task);
        return true;
      }
    }
  }
  mpg_run run = {.device = device,
                 .stream = device->stream,
                 .num_threads = atomic_load_explicit(&device->num_threads, memory_order_relaxed),
                 .first_tick = task->first_tick,
                 .last_tick = last_tick,
                 .stage = submission->stage,
                 .micro_batch = submission->micro_batch};
  mpg_failures_forget_passed_on();
  mpg_status status = submission->work(&run, (void *)submission->payload);
  if (status == MPG_OK && run.blocked_on.device) {
    *blocked_on = run.blocked_on;
    return false;
  }
  if (status != MPG_OK) {
    if (device->backend->work_failed) device->backend->work_failed(device, status);
    mpg_device_fail(device, first_unsignalled(device, task), last_tick, status, submission);
  }
  mpg_run_at(&run, NULL, 0);
  discard(task);
  return true;
}

void mpg_task_fail(mpg_device *device, const mpg_task *task, mpg_status status) {
  mpg_device_fail(device, first_unsignalled(device, task), mpg_task_last_tick(task), status,
                  &task->submission);
  discard(task);
}

void mpg_task_drop(mpg_device *device, const mpg_task *task) {
  mpg_device *outer = mpg_worker_device();
  /* Registers this thread as the worker, so that payloads are discarded as on a worker, without the
   * host lock. */
  mpg_worker_set_device(device);
  mpg_task_fail(device, task, mpg_fail(MPG_ERROR, "work was not run: mpgluon has been shut down"));
  mpg_worker_set_device(outer);
}

/* --- Lists ------------------------------------------------------------------------------------ */

void mpg_task_list_init(mpg_task_list *list) {
  *list = (mpg_task_list){.first = NULL, .last = &list->first};
}

static void append(mpg_task_list *list, mpg_kept_task *task) {
  task->next = NULL;
  *list->last = task;
  list->last = &task->next;
}

mpg_status mpg_task_list_add(mpg_task_list *list, const mpg_submission *submission,
                             mpg_tick first_tick) {
  size_t points_size = mpg_align_up((size_t)submission->num_points * sizeof(mpg_point), 16);
  size_t head = mpg_align_up(sizeof(mpg_kept_task), 16), size;
  if (!mpg_size_add(head + points_size, submission->payload_size, &size))
    return mpg_out_of_host_memory(SIZE_MAX);
  mpg_kept_task *kept = mpg_malloc(size);
  if (!kept) return mpg_out_of_host_memory(size);
  char *points = (char *)kept + head;
  *kept = (mpg_kept_task){.task = {.submission = *submission, .first_tick = first_tick}};
  kept->task.submission.points = (mpg_point *)points;
  kept->task.submission.payload = points + points_size;
  if (submission->num_points)
    memcpy(points, submission->points, (size_t)submission->num_points * sizeof(mpg_point));
  if (submission->payload_size)
    memcpy(points + points_size, submission->payload, submission->payload_size);
  append(list, kept);
  return MPG_OK;
}

mpg_kept_task *mpg_task_list_take(mpg_task_list *list) {
  mpg_kept_task *task = list->first;
  list->first = task->next;
  if (!list->first) list->last = &list->first;
  return task;
}

void mpg_task_list_move(mpg_task_list *from, mpg_task_list *to) {
  while (from->first) append(to, mpg_task_list_take(from));
}

void mpg_task_list_drop(mpg_task_list *list) {
  while (list->first) mpg_free(mpg_task_list_take(list));
}

bool mpg_task_list_ready(const mpg_task_list *list) {
  const mpg_kept_task *next = list->first;
  if (!next) return false;
  if (next->blocked_on.device)
    return mpg_tick_reached(next->blocked_on.device, next->blocked_on.tick);
  for (int i = 0; i < next->task.submission.num_points; i++)
    if (!mpg_tick_reached(next->task.submission.points[i].device,
                          next->task.submission.points[i].tick))
      return false;
  return true;
}
