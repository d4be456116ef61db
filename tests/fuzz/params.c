/* libFuzzer's target for array files. For any bytes, reading gives an error or a list of arrays
 * that reads back equal after writing. It never takes more memory and time than the limits below.
 * Built and run by run.py. */
#include <sanitizer/allocator_interface.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "io/params_file.h"

enum { SLACK = 1 << 20 }; /* blocks of the pool are larger than their arrays */

/* Limits on reading a file, as SECURITY.md states them (cost.py), except for the memory: the core
 * needs far less than 64 MiB for a small file. ASan makes code slower by FACTOR at most. */
enum { TIMES = 64, PLUS = SLACK, SECONDS = 5, FACTOR = 6 };

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

/* Bytes allocated since the hooks were installed, and their peak since the last reset. */
static _Atomic int64_t allocated, peak;

static void count_malloc(const volatile void *memory, size_t size) {
  (void)memory;
  allocated += (int64_t)size;
  if (allocated > peak) peak = allocated;
}
static void count_free(const volatile void *memory) {
  if (memory) allocated -= (int64_t)__sanitizer_get_allocated_size((const void *)memory);
}

static double cpu_seconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

int LLVMFuzzerInitialize(int *argc, char ***argv) {
  (void)argc, (void)argv;
  if (mpg_device_init() != MPG_OK) return 1;
  in_use(); /* opens the device, so that no file is charged for its memory */
  return !__sanitizer_install_malloc_and_free_hooks(count_malloc, count_free);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
  mpg_source source;
  mpg_tensor_list list, again;
  mpg_sink sink;
  double begin = cpu_seconds();
  int64_t baseline = peak = allocated;
  mpg_source_open_memory(&source, "(fuzz)", bytes, size);
  mpg_status status = mpg_params_read(&source, &list);
  mpg_source_close(&source);
  expect(peak - baseline <= (int64_t)(TIMES * size) + PLUS,
         "reading takes too much memory for the file");
  expect(cpu_seconds() - begin <= SECONDS * FACTOR, "reading takes too much time");
  expect(status == MPG_OK || status == MPG_IO_ERROR, "an error of another kind");
  if (status != MPG_OK) return 0;
  expect(in_use() <= 16 * size + SLACK, "arrays have more memory than the file has bytes for");
  bool whole = true; /* a file may omit arrays, but a list to write may not */
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
