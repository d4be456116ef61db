/* File access for the readers and writers in csrc/io.
 *
 * A source is a file or memory buffer that can be read at any offset. Every read is checked against
 * the source's size, and errors name the source and the offset. A sink is a growing buffer, or a
 * temporary file in the target's folder. The temporary file replaces the target only when all of
 * its data is on disk, so a program that is killed while saving leaves the old file intact.
 * Ownership: the caller owns sources and sinks and closes them; memory given to a source is
 * borrowed. Threads: callers hold the host lock, which is released while a file is opened, written
 * or synced, and during long reads. Therefore, two threads must not use the same source or sink.
 */
#ifndef MPG_IO_FILE_H
#define MPG_IO_FILE_H

#include "base/text.h"
#include "tensor/tensor.h"

typedef struct mpg_source {
  const char *name;  /* path or "buffer", for errors; borrowed */
  const char *bytes; /* contents of a memory buffer; NULL for a file */
  int descriptor;
  uint64_t size;
  char *window; /* buffered part of the file, for small reads; owned */
  uint64_t window_offset;
  size_t window_size;
} mpg_source;

mpg_status mpg_source_open(mpg_source *source, const char *path);
void mpg_source_open_memory(mpg_source *source, const char *name, const void *bytes, size_t size);
void mpg_source_close(mpg_source *source);
/* Copies `size` bytes at `offset` to `target`. Fails with MPG_IO_ERROR if the source is too short;
 * the error says that the file is truncated. `what` names the expected contents in errors, such as
 * "a name". */
mpg_status mpg_source_read(mpg_source *source, uint64_t offset, void *target, size_t size,
                           const char *what);
/* Reads a file at `offset` into the memory of a tensor, which the host must be able to access.
 * Waits for the queued work that uses the memory. Sets *done to the number of bytes read, which is
 * less than the tensor's bytes if the file ends. The caller holds a reference to the storage and
 * ensures that no other thread uses the tensor meanwhile: its work would see a mixture of old and
 * new values. */
mpg_status mpg_source_read_tensor(const mpg_source *source, uint64_t offset,
                                  const mpg_tensor *tensor, const char *what, size_t *done);
/* Sets the error text "file 'x.params', byte 24: <text>" and returns MPG_IO_ERROR. */
mpg_status mpg_source_fail(const mpg_source *source, uint64_t offset, const char *format, ...)
    __attribute__((format(printf, 3, 4), cold));

typedef struct mpg_sink {
  char *path; /* target with symbolic links resolved (owned); NULL for a buffer */
  /* Path of the temporary file; owned. NULL if the target is written directly because it is a pipe
   * or device. */
  char *temporary;
  int descriptor;
  char *buffer; /* the whole contents, or the part not yet written to the file; owned */
  size_t length, capacity;
} mpg_sink;

mpg_status mpg_sink_open(mpg_sink *sink, const char *path);
void mpg_sink_open_buffer(mpg_sink *sink);
mpg_status mpg_sink_write(mpg_sink *sink, const void *bytes, size_t size);
/* Appends `size` uninitialized bytes and sets *place to their address. The caller must fill them
 * before it uses the sink again. Used for arrays, because other threads could change an array's
 * memory if the sink wrote that memory to the file without the host lock. */
mpg_status mpg_sink_extend(mpg_sink *sink, size_t size, void **place);
/* Syncs the temporary file to disk and renames it to the target. After a failure, the target is
 * unchanged, and the sink must still be closed. */
mpg_status mpg_sink_commit(mpg_sink *sink);
/* Frees the sink's memory, and deletes the temporary file if it was not committed. */
void mpg_sink_close(mpg_sink *sink);

#endif
