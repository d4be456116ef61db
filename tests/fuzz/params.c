/* libFuzzer's target for array files: whatever the bytes are, there is an error or a list of
 * arrays, whose memory the bytes account for and which reads back as it is when it is written.
 * Built and run by run.py. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "io/params_file.h"

enum { SLACK = 1 << 20 }; /* blocks of the pool are larger than their arrays */

static void expect(bool holds, const char *what) {
  if (holds) return;
  fprintf(stderr, "%s (%s)\n", what, mpg_error_text());
  abort();
}

static size_t in_use(void) {
  mpg_device *device;
  mpg_memory_stats stats;
  expect(mpg_device_get((mpg_device_id){.type = MPG_CPU, .index = 0}, &device) == MPG_OK,
         "there is no cpu(0)");
  mpg_pool_stats(device->pool, &stats);
  return stats.in_use;
}

int LLVMFuzzerInitialize(int *argc, char ***argv) {
  (void)argc, (void)argv;
  return mpg_device_init() != MPG_OK;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
  mpg_source source;
  mpg_tensor_list list, again;
  mpg_sink sink;
  mpg_source_open_memory(&source, "(fuzz)", bytes, size);
  mpg_status status = mpg_params_read(&source, &list);
  mpg_source_close(&source);
  expect(status == MPG_OK || status == MPG_IO_ERROR, "an error of another kind");
  if (status != MPG_OK) return 0;
  expect(in_use() <= 16 * size + SLACK, "arrays have more memory than the file has bytes for");
  bool whole = true; /* a file may leave arrays out; one that is written may not */
  for (size_t i = 0; i < list.count; i++) whole = whole && list.items[i].tensor.storage;
  if (whole) {
    mpg_sink_open_buffer(&sink);
    expect(mpg_params_write(&sink, &list) == MPG_OK, "what was read can't be written");
    mpg_source_open_memory(&source, "(fuzz)", sink.buffer, sink.length);
    expect(mpg_params_read(&source, &again) == MPG_OK, "what was written can't be read");
    expect(again.count == list.count, "arrays are missing");
    mpg_source_close(&source);
    mpg_tensor_list_free(&again);
    mpg_sink_close(&sink);
  }
  mpg_tensor_list_free(&list);
  return 0;
}
