/* File access of the readers and writers in csrc/io.
 *
 * A source is a file or a memory buffer that is read at any offset. Every read is checked against
 * its size, and errors name the source and the offset. A sink appends to a growing buffer, or to a
 * temporary file in the target's folder that replaces the target only once all of it is on disk. A
 * program that is killed while saving therefore leaves the old file intact. Ownership: the caller
 * owns sources and sinks and closes them; memory given to a source is borrowed. Threads: host lock,
 * which is released while a file is opened, written or synced, and during long reads. No other
 * thread may therefore use the same source or sink.
 */
#ifndef MPG_IO_FILE_H
#define MPG_IO_FILE_H

#include "base/text.h"

typedef struct mpg_source {
  const char *name;  /* for errors; borrowed: a path, or "buffer" */
  const char *bytes; /* memory; NULL for a file */
  int descriptor;
  uint64_t size;
  char *window; /* buffered part of the file, for small reads; owned */
  uint64_t window_offset;
  size_t window_size;
} mpg_source;

mpg_status mpg_source_open(mpg_source *source, const char *path);
void mpg_source_open_memory(mpg_source *source, const char *name, const void *bytes, size_t size);
void mpg_source_close(mpg_source *source);
/* Copies `size` bytes, starting at `offset`. Reading past the end fails with MPG_IO_ERROR and
 * reports a truncated file; `what` names the expected contents ("the names"). */
mpg_status mpg_source_read(mpg_source *source, uint64_t offset, void *target, size_t size,
                           const char *what);
/* Sets the error text "file 'x.params', byte 24: <text>" and returns MPG_IO_ERROR. */
mpg_status mpg_source_fail(const mpg_source *source, uint64_t offset, const char *format, ...)
    __attribute__((format(printf, 3, 4), cold));

typedef struct mpg_sink {
  char *path; /* the target with symbolic links resolved, owned; NULL for a buffer */
  /* The file being written. NULL if the target is not a regular file and is written directly.
   * Owned. */
  char *temporary;
  int descriptor;
  char *buffer; /* the whole contents, or the part not yet written to the file; owned */
  size_t length, capacity;
} mpg_sink;

mpg_status mpg_sink_open(mpg_sink *sink, const char *path);
void mpg_sink_open_buffer(mpg_sink *sink);
mpg_status mpg_sink_write(mpg_sink *sink, const void *bytes, size_t size);
/* Appends space for `size` bytes, which the caller fills before the sink is used again. For arrays,
 * whose contents must not change while they are written without the host lock. */
mpg_status mpg_sink_extend(mpg_sink *sink, size_t size, void **place);
/* Replaces the target durably. After a failure the target is unchanged, and the sink must still be
 * closed. */
mpg_status mpg_sink_commit(mpg_sink *sink);
/* Frees everything, and deletes a file that was not committed. */
void mpg_sink_close(mpg_sink *sink);

#endif
