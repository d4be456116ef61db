/* Sources and sinks: checked reads, and atomic replacement of files. */
#include "io/file.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/host.h"
#include "base/memory.h"

enum {
  WINDOW_SIZE = 1 << 14, /* size of the read buffer, which serves reads smaller than this */
  LONG_READ = 1 << 16,   /* reads of at least this size release the host lock */
  SINK_BUFFER = 1 << 18, /* small writes are collected in a buffer of this size */
  /* Maximum bytes per system call. Interrupts are checked after each call. */
  LARGEST_TRANSFER = 1 << 26,
  TEMPORARY_TRIES = 100,
};

/* --- Blocking system calls, made without the host lock ---------------------------------------- */

/* Evaluates `call` with the host lock released. Preserves the errno of `call`. */
#define WITHOUT_LOCK(call)                  \
  do {                                      \
    void *token_ = mpg_host_release_lock(); \
    call;                                   \
    int error_ = errno;                     \
    mpg_host_acquire_lock(token_);          \
    errno = error_;                         \
  } while (0)

/* Opens a file. If the file cannot be opened, sets *descriptor to -1 and errno. Opening a pipe
 * waits for its other end; Ctrl-C ends the wait with an error status. */
static mpg_status open_file(const char *path, int flags, mode_t mode, int *descriptor) {
  do {
    WITHOUT_LOCK(*descriptor = open(path, flags | O_CLOEXEC, mode));
    int error = errno;
    MPG_TRY(mpg_host_check_interrupt());
    errno = error;
  } while (*descriptor < 0 && errno == EINTR);
  return MPG_OK;
}

/* --- Sources ---------------------------------------------------------------------------------- */

mpg_status mpg_source_open(mpg_source *source, const char *path) {
  *source = (mpg_source){.name = path, .descriptor = -1};
  /* With O_NONBLOCK, opening a pipe does not wait for its other end. Pipes are rejected below. */
  mpg_status opened = open_file(path, O_RDONLY | O_NONBLOCK, 0, &source->descriptor);
  if (opened != MPG_OK) { /* interrupted, possibly after the file was opened */
    mpg_source_close(source);
    return opened;
  }
  if (source->descriptor < 0)
    return mpg_fail(MPG_IO_ERROR, "file '%s' cannot be opened: %s", path, strerror(errno));
  struct stat status;
  if (fstat(source->descriptor, &status) != 0) {
    mpg_fail(MPG_IO_ERROR, "file '%s' cannot be read: %s", path, strerror(errno));
    mpg_source_close(source);
    return MPG_IO_ERROR;
  }
  if (!S_ISREG(status.st_mode)) {
    mpg_source_close(source);
    return mpg_fail(MPG_IO_ERROR, "'%s' is not a file that can be loaded: %s", path,
                    S_ISDIR(status.st_mode) ? "it is a folder" : "it is a device or pipe");
  }
  source->size = (uint64_t)status.st_size;
  return MPG_OK;
}

void mpg_source_open_memory(mpg_source *source, const char *name, const void *bytes, size_t size) {
  *source = (mpg_source){.name = name, .bytes = bytes ? bytes : "", .descriptor = -1, .size = size};
}

void mpg_source_close(mpg_source *source) {
  if (source->descriptor >= 0) close(source->descriptor);
  source->descriptor = -1;
  mpg_free(source->window);
  source->window = NULL;
}

mpg_status mpg_source_fail(const mpg_source *source, uint64_t offset, const char *format, ...) {
  char text[1024];
  va_list args;
  va_start(args, format);
  vsnprintf(text, sizeof text, format, args);
  va_end(args);
  return mpg_fail(MPG_IO_ERROR, "file '%s', byte %llu: %s", source->name,
                  (unsigned long long)offset, text);
}

static mpg_status cut_off(const mpg_source *source, uint64_t offset, size_t size,
                          const char *what) {
  return mpg_source_fail(source, offset,
                         "%s should take up %zu bytes here, but the file ends at byte %llu: it is "
                         "damaged or was cut off",
                         what, size, (unsigned long long)source->size);
}

/* Reads `size` bytes at `offset` of the file. Returns 0 or an errno. Sets *done to the number of
 * bytes read, which is less than `size` if the file ends. */
static int read_fully(int descriptor, uint64_t offset, char *target, size_t size, size_t *done) {
  *done = 0;
  while (*done < size) {
    ssize_t got = pread(descriptor, target + *done, size - *done, (off_t)(offset + *done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return errno;
    if (got == 0) break;
    *done += (size_t)got;
  }
  return 0;
}

/* Reads `size` bytes, with the host lock released during long reads. Sets *done to the number of
 * bytes read, which is less than `size` if the file ends. */
static mpg_status read_parts(const mpg_source *source, uint64_t offset, char *target, size_t size,
                             const char *what, size_t *done) {
  *done = 0;
  while (*done < size) {
    size_t left = size - *done, part = left < LARGEST_TRANSFER ? left : LARGEST_TRANSFER, now;
    bool release = part >= LONG_READ;
    void *token = release ? mpg_host_release_lock() : NULL;
    int error = read_fully(source->descriptor, offset + *done, target + *done, part, &now);
    if (release) {
      mpg_host_acquire_lock(token);
      MPG_TRY(mpg_host_check_interrupt());
    }
    if (error)
      return mpg_source_fail(source, offset + *done, "%s cannot be read: %s", what,
                             strerror(error));
    *done += now;
    if (now < part) break;
  }
  return MPG_OK;
}

static mpg_status read_file(mpg_source *source, uint64_t offset, char *target, size_t size,
                            const char *what) {
  size_t done;
  MPG_TRY(read_parts(source, offset, target, size, what, &done));
  if (done == size) return MPG_OK;
  source->size = offset + done; /* another program has truncated the file since it was opened */
  return cut_off(source, offset, size, what);
}

mpg_status mpg_source_read_tensor(const mpg_source *source, uint64_t offset,
                                  const mpg_tensor *tensor, const char *what, size_t *done) {
  mpg_storage *storage = tensor->storage;
  mpg_storage_before_write(storage);
  if (storage->device->remote) { /* the rank that owns the device reads the file */
    mpg_storage_add_write(storage, 0);
    *done = mpg_tensor_bytes(tensor);
    return MPG_OK;
  }
  MPG_TRY(mpg_tensor_wait_write(tensor));
  if (mpg_tensor_is_part(tensor)) MPG_TRY(mpg_storage_failure(storage));
  mpg_status status =
      read_parts(source, offset, mpg_tensor_data(tensor), mpg_tensor_bytes(tensor), what, done);
  mpg_storage_add_write(storage, 0); /* a failed read may have written a part */
  return status;
}

mpg_status mpg_source_read(mpg_source *source, uint64_t offset, void *target, size_t size,
                           const char *what) {
  if (offset > source->size || size > source->size - offset)
    return cut_off(source, offset, size, what);
  if (size == 0) return MPG_OK;
  if (source->bytes) {
    memcpy(target, source->bytes + offset, size);
    return MPG_OK;
  }
  if (size >= WINDOW_SIZE) return read_file(source, offset, target, size, what);
  if (!source->window) {
    source->window = mpg_malloc(WINDOW_SIZE);
    if (!source->window) return mpg_out_of_host_memory(WINDOW_SIZE);
    source->window_size = 0;
  }
  bool inside = offset >= source->window_offset &&
                offset - source->window_offset <= source->window_size &&
                size <= source->window_size - (size_t)(offset - source->window_offset);
  if (!inside) {
    uint64_t left = source->size - offset;
    size_t filled = left < WINDOW_SIZE ? (size_t)left : WINDOW_SIZE;
    source->window_size = 0;
    MPG_TRY(read_file(source, offset, source->window, filled, what));
    source->window_offset = offset;
    source->window_size = filled;
  }
  memcpy(target, source->window + (offset - source->window_offset), size);
  return MPG_OK;
}

/* --- Sinks ------------------------------------------------------------------------------------ */

void mpg_sink_open_buffer(mpg_sink *sink) { *sink = (mpg_sink){.descriptor = -1}; }

static mpg_status write_failed(const mpg_sink *sink, const char *doing, int error) {
  return mpg_fail(MPG_IO_ERROR, "file '%s' cannot be written (%s): %s", sink->path, doing,
                  strerror(error));
}

/* Returns the target of a symbolic link as a new string. Returns NULL if `path` is not a link or if
 * out of memory; *is_link tells which. */
static char *link_target(const char *path, bool *is_link) {
  char target[PATH_MAX];
  ssize_t length = readlink(path, target, sizeof target - 1);
  *is_link = length > 0;
  if (!*is_link) return NULL;
  target[length] = 0;
  const char *slash = strrchr(path, '/');
  size_t folder = target[0] == '/' || !slash ? 0 : (size_t)(slash - path) + 1;
  char *result = mpg_malloc(folder + (size_t)length + 1);
  if (!result) return NULL;
  memcpy(result, path, folder);
  memcpy(result + folder, target, (size_t)length + 1);
  return result;
}

/* Resolves symbolic links, so that saving replaces or creates a link's target and keeps the link.
 * Returns a new string, or NULL if out of memory. */
static char *resolve(const char *path) {
  enum { MOST_LINKS = 40 }; /* the limit of the Linux kernel */
  char *real;
  WITHOUT_LOCK(real = realpath(path, NULL));
  char *copy = mpg_strdup(real ? real : path);
  /* If realpath fails, `path` may be a link to a file that does not exist yet. */
  for (int i = 0; !real && copy && i < MOST_LINKS; i++) {
    bool is_link;
    char *next = link_target(copy, &is_link);
    if (!is_link) break;
    mpg_free(copy);
    copy = next;
  }
  free(real);
  return copy;
}

static mpg_status open_temporary(mpg_sink *sink) {
  /* Makes the names of temporary files unique within the process. */
  static _Atomic uint32_t counter;
  size_t size = strlen(sink->path) + 48;
  sink->temporary = mpg_malloc(size);
  if (!sink->temporary) return mpg_out_of_host_memory(size);
  for (int i = 0; i < TEMPORARY_TRIES; i++) {
    snprintf(sink->temporary, size, "%s.%ld-%u.tmp", sink->path, (long)getpid(),
             atomic_fetch_add(&counter, 1));
    MPG_TRY(open_file(sink->temporary, O_WRONLY | O_CREAT | O_EXCL, 0666, &sink->descriptor));
    if (sink->descriptor >= 0) return MPG_OK;
    if (errno != EEXIST) break;
  }
  int error = errno;
  mpg_free(sink->temporary);
  sink->temporary = NULL;
  return write_failed(sink, "creating a temporary file in the same folder", error);
}

mpg_status mpg_sink_open(mpg_sink *sink, const char *path) {
  mpg_status status = MPG_OK;
  mpg_sink_open_buffer(sink);
  sink->path = resolve(path);
  if (!sink->path) return mpg_out_of_host_memory(strlen(path) + 1);
  struct stat present;
  bool exists = stat(sink->path, &present) == 0;
  if (!exists && errno == ELOOP) {
    status = write_failed(sink, "following its links", ELOOP);
    goto fail;
  }
  if (exists && S_ISDIR(present.st_mode)) {
    status = write_failed(sink, "it is a folder", EISDIR);
    goto fail;
  }
  if (exists && access(sink->path, W_OK) != 0) {
    status = write_failed(sink, "it is read-only", errno);
    goto fail;
  }
  /* A pipe or device cannot be replaced, so it is written directly. */
  if (exists && !S_ISREG(present.st_mode)) {
    MPG_GOTO(open_file(sink->path, O_WRONLY, 0, &sink->descriptor));
    if (sink->descriptor < 0) {
      status = write_failed(sink, "opening it", errno);
      goto fail;
    }
    return MPG_OK;
  }
  MPG_GOTO(open_temporary(sink));
  if (exists && fchmod(sink->descriptor, present.st_mode & 07777) != 0) {
    status = write_failed(sink, "keeping its permissions", errno);
    goto fail;
  }
  return MPG_OK;
fail:
  mpg_sink_close(sink);
  return status;
}

static mpg_status write_file(mpg_sink *sink, const char *bytes, size_t size) {
  while (size) {
    size_t part = size < LARGEST_TRANSFER ? size : LARGEST_TRANSFER;
    ssize_t written;
    WITHOUT_LOCK(written = write(sink->descriptor, bytes, part));
    if (written < 0 && errno != EINTR) return write_failed(sink, "writing", errno);
    MPG_TRY(mpg_host_check_interrupt());
    if (written <= 0) continue;
    bytes += written;
    size -= (size_t)written;
  }
  return MPG_OK;
}

static mpg_status flush(mpg_sink *sink) {
  MPG_TRY(write_file(sink, sink->buffer, sink->length));
  sink->length = 0;
  return MPG_OK;
}

mpg_status mpg_sink_extend(mpg_sink *sink, size_t size, void **place) {
  size_t needed;
  if (!mpg_size_add(sink->length, size, &needed)) return mpg_out_of_host_memory(SIZE_MAX);
  if (sink->path && needed > SINK_BUFFER) {
    MPG_TRY(flush(sink));
    needed = size;
  }
  MPG_TRY(mpg_grow((void **)&sink->buffer, &sink->capacity, needed, 1));
  *place = sink->buffer + sink->length;
  sink->length = needed;
  return MPG_OK;
}

mpg_status mpg_sink_write(mpg_sink *sink, const void *bytes, size_t size) {
  void *place;
  if (size == 0) return MPG_OK;
  if (sink->path && size >= SINK_BUFFER) {
    MPG_TRY(flush(sink));
    return write_file(sink, bytes, size);
  }
  MPG_TRY(mpg_sink_extend(sink, size, &place));
  memcpy(place, bytes, size);
  return MPG_OK;
}

/* Syncs the folder of a file, because a rename is durable only once the folder is on disk. Ignores
 * errors, because some file systems cannot sync folders. */
static void sync_folder(const char *path) {
  char folder[PATH_MAX];
  const char *slash = strrchr(path, '/');
  size_t length = slash ? (size_t)(slash - path) : 0;
  if (length >= sizeof folder) return;
  memcpy(folder, path, length);
  folder[length] = 0;
  int descriptor = open(length ? folder : slash ? "/" : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) return;
  (void)fsync(descriptor);
  close(descriptor);
}

mpg_status mpg_sink_commit(mpg_sink *sink) {
  if (!sink->path) return MPG_OK;
  MPG_TRY(flush(sink));
  if (!sink->temporary) return MPG_OK;
  int synced, closed, renamed;
  WITHOUT_LOCK(synced = fsync(sink->descriptor));
  if (synced != 0) return write_failed(sink, "flushing it to disk", errno);
  WITHOUT_LOCK(closed = close(sink->descriptor));
  sink->descriptor = -1;
  if (closed != 0) return write_failed(sink, "closing", errno);
  WITHOUT_LOCK(renamed = rename(sink->temporary, sink->path));
  if (renamed != 0) return write_failed(sink, "renaming the temporary file", errno);
  mpg_free(sink->temporary);
  sink->temporary = NULL;
  WITHOUT_LOCK(sync_folder(sink->path));
  return MPG_OK;
}

void mpg_sink_close(mpg_sink *sink) {
  if (sink->descriptor >= 0) close(sink->descriptor);
  if (sink->temporary) unlink(sink->temporary);
  mpg_free(sink->temporary);
  mpg_free(sink->path);
  mpg_free(sink->buffer);
  mpg_sink_open_buffer(sink);
}
