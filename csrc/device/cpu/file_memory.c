/* Memory in unlinked temporary files. */
#define _GNU_SOURCE
#include "device/cpu/file_memory.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/memory.h"

enum { PAGE = 4096 };

/* --- Files ------------------------------------------------------------------------------------ */

static mpg_status cannot_create(const char *directory, int error) {
  bool full = error == ENOSPC || error == EDQUOT;
  return mpg_fail(full ? MPG_DEVICE_OUT_OF_MEMORY : MPG_IO_ERROR,
                  "offload: cannot create a file in the directory '%s': %s", directory,
                  strerror(error));
}

/* Opens a new file that has no name. */
static mpg_status create(const char *directory, int *file) {
#ifdef O_TMPFILE
  *file = open(directory, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
  if (*file >= 0) return MPG_OK;
  /* these errors may mean that the file system does not support O_TMPFILE */
  if (errno != EOPNOTSUPP && errno != EISDIR && errno != EINVAL)
    return cannot_create(directory, errno);
#endif
  static const char name[] = "/mpgluon-XXXXXX";
  size_t length;
  if (!mpg_size_add(strlen(directory), sizeof name, &length)) return mpg_out_of_host_memory(0);
  char *path = mpg_malloc(length);
  if (!path) return mpg_out_of_host_memory(length);
  snprintf(path, length, "%s%s", directory, name);
  *file = mkstemp(path);
  int error = errno;
  if (*file >= 0) {
    unlink(path);
    fcntl(*file, F_SETFD, FD_CLOEXEC);
  }
  mpg_free(path);
  return *file >= 0 ? MPG_OK : cannot_create(directory, error);
}

mpg_status mpg_file_memory_check(const char *directory) {
  int file;
  MPG_TRY(create(directory, &file));
  close(file);
  return MPG_OK;
}

/* --- Memory ----------------------------------------------------------------------------------- */

/* Reserves the blocks of the file. */
static mpg_status reserve(int file, size_t size, const char *directory) {
  int error;
  do error = posix_fallocate(file, 0, (off_t)size);
  while (error == EINTR);
  if (!error) return MPG_OK;
  bool full = error == ENOSPC || error == EDQUOT || error == EFBIG;
  return mpg_fail(full ? MPG_DEVICE_OUT_OF_MEMORY : MPG_IO_ERROR,
                  "offload: cannot reserve %zu bytes for a file in the directory '%s': %s", size,
                  directory, strerror(error));
}

mpg_status mpg_file_memory_allocate(const char *directory, size_t size, void **memory) {
  size_t length;
  if (mpg_memory_refused() || !mpg_size_add(size, PAGE - 1, &length))
    return mpg_fail(MPG_DEVICE_OUT_OF_MEMORY, "offload: cannot map a file of %zu bytes", size);
  length &= ~(size_t)(PAGE - 1);
  int file;
  MPG_TRY(create(directory, &file));
  mpg_status status = MPG_OK;
  MPG_GOTO(reserve(file, length, directory));
  *memory = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (*memory == MAP_FAILED)
    MPG_GOTO(mpg_fail(MPG_DEVICE_OUT_OF_MEMORY, "offload: cannot map a file of %zu bytes: %s",
                      length, strerror(errno)));
  if (madvise(*memory, length, MADV_DONTFORK) != 0) {
    int error = errno;
    munmap(*memory, length);
    MPG_GOTO(mpg_fail(MPG_ERROR, "offload: cannot keep a file of %zu bytes from children: %s",
                      length, strerror(error)));
  }
fail:
  close(file); /* the mapping keeps the file */
  return status;
}

void mpg_file_memory_free(void *memory, size_t size) { munmap(memory, mpg_align_up(size, PAGE)); }

/* --- Forked children -------------------------------------------------------------------------- */

static mpg_status lost(const mpg_device *device) {
  return mpg_fail(MPG_ERROR,
                  "%s: its memory is in files (offload to a directory), which a forked process "
                  "cannot use; copy the values to another device before the fork",
                  mpg_device_text(device));
}

mpg_status mpg_device_check_not_lost(const mpg_device *device) {
  return device->backend == &mpg_lost_backend ? lost(device) : MPG_OK;
}

static mpg_status lost_open(mpg_device *device) { return lost(device); }
static void lost_nothing(mpg_device *device) { (void)device; }
static mpg_status lost_allocate(mpg_device *device, size_t size, void **memory) {
  (void)size, (void)memory;
  return lost(device);
}
/* The mapping does not exist here, and another one may have its addresses. */
static void lost_free(mpg_device *device, void *memory, size_t size) {
  (void)device, (void)memory, (void)size;
}
static mpg_status lost_enqueue(mpg_device *device, const mpg_submission *submission,
                               mpg_tick first_tick) {
  (void)submission, (void)first_tick;
  return lost(device);
}
static bool lost_wait(mpg_device *device, mpg_tick tick, int64_t timeout_ns) {
  (void)timeout_ns;
  return mpg_tick_reached(device, tick); /* all work had finished before the fork */
}
static void lost_fork_done(mpg_device *device, bool child) { (void)device, (void)child; }
static bool lost_run_wait(mpg_run *run, mpg_point point) {
  (void)run, (void)point;
  return false;
}
static void lost_run_signal(mpg_run *run, mpg_tick tick) { (void)run, (void)tick; }
static mpg_status lost_copy_to_host(mpg_device *device, void *host, const void *memory,
                                    size_t size) {
  (void)host, (void)memory, (void)size;
  return lost(device);
}
static mpg_status lost_copy_from_host(mpg_device *device, void *memory, const void *host,
                                      size_t size) {
  (void)memory, (void)host, (void)size;
  return lost(device);
}

const mpg_backend mpg_lost_backend = {
    .name = "cpu (not available after a fork)",
    .open = lost_open,
    .stop = lost_nothing,
    .close = lost_nothing,
    .allocate = lost_allocate,
    .free = lost_free,
    .enqueue = lost_enqueue,
    .publish = lost_nothing,
    .retract = lost_nothing,
    .wait = lost_wait,
    .fork_prepare = lost_nothing,
    .fork_done = lost_fork_done,
    .run_wait = lost_run_wait,
    .run_signal = lost_run_signal,
    .copy_to_host = lost_copy_to_host,
    .copy_from_host = lost_copy_from_host,
    .run_copy_to_host = lost_copy_to_host,
    .host_accessible = false, /* so that all access is by the functions above */
    .runs_inline = false,
};
