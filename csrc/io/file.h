/* Files as the readers and writers of csrc/io see them.
 *
 * A source is a file or a piece of memory that is read at any offset; every read is checked
 * against its size, and errors name the source and the offset. A sink gathers what is written in
 * order: into a growing buffer, or into a temporary file beside the target that takes the target's
 * place only once all of it is on disk. So a program that is killed while saving leaves the former
 * file whole. Ownership: the caller owns sources and sinks and closes them; memory given to a
 * source is borrowed. Threads: host lock, which is given up while a file is opened, written,
 * synced, or long parts of it are read; so nobody else may use the same source or sink.
 */
#ifndef MPG_IO_FILE_H
#define MPG_IO_FILE_H

#include "base/text.h"

typedef struct mpg_source {
  const char *name;  /* for errors; borrowed: a path, or "buffer" */
  const char *bytes; /* memory; NULL: a file */
  int descriptor;
  uint64_t size;
  char *window; /* owned: the piece of the file that small reads are served from */
  uint64_t window_offset;
  size_t window_size;
} mpg_source;

mpg_status mpg_source_open(mpg_source *source, const char *path);
void mpg_source_open_memory(mpg_source *source, const char *name, const void *bytes, size_t size);
void mpg_source_close(mpg_source *source);
/* Copies `size` bytes from `offset` on. Reading past the end fails with MPG_IO_ERROR and says that
 * the file was cut off; `what` names what was expected there ("the names"). */
mpg_status mpg_source_read(mpg_source *source, uint64_t offset, void *target, size_t size,
                           const char *what);
/* "file 'x.params', byte 24: <text>", with status MPG_IO_ERROR. */
mpg_status mpg_source_fail(const mpg_source *source, uint64_t offset, const char *format, ...)
    __attribute__((format(printf, 3, 4), cold));

typedef struct mpg_sink {
  char *path;      /* owned: the target with symbolic links resolved; NULL: a buffer */
  char *temporary; /* owned: what is being written; NULL when the target is no regular file and is
                      written directly */
  int descriptor;
  char *buffer; /* owned: the whole contents, or what has not been written to the file yet */
  size_t length, capacity;
} mpg_sink;

mpg_status mpg_sink_open(mpg_sink *sink, const char *path);
void mpg_sink_open_buffer(mpg_sink *sink);
mpg_status mpg_sink_write(mpg_sink *sink, const void *bytes, size_t size);
/* Room for `size` bytes of the file, which the caller fills before the sink is used again; for
 * arrays, whose contents must not change while they are written without the host lock. */
mpg_status mpg_sink_extend(mpg_sink *sink, size_t size, void **place);
/* Puts the file in its place, durably. After a failure the target is as it was; close the sink all
 * the same. */
mpg_status mpg_sink_commit(mpg_sink *sink);
/* Frees everything; a file that was not committed disappears. */
void mpg_sink_close(mpg_sink *sink);

#endif
