/* A small test harness: tests register by name, and each runs in its own process
 * (tests/device/test_c.py). The host lock is a mutex. */
#ifndef TESTS_C_HARNESS_H
#define TESTS_C_HARNESS_H

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/host.h"
#include "base/memory.h"
#include "device/device.h"
#include "device/internal.h"
#include "device/pool.h"
#include "device/profiler.h"
#include "tensor/tensor.h"

#define CHECK(condition)                                                                      \
  do {                                                                                        \
    if (!(condition)) {                                                                       \
      fprintf(stderr, "%s:%d: failed: %s (last error: %s)\n", __FILE__, __LINE__, #condition, \
              mpg_error_text());                                                              \
      _exit(1);                                                                               \
    }                                                                                         \
  } while (0)
#define CHECK_OK(call) CHECK((call) == MPG_OK)
#define CHECK_TEXT(part) CHECK(strstr(mpg_error_text(), part) != NULL)

typedef struct test {
  const char *name;
  void (*run)(void);
} test;

static pthread_mutex_t host_lock = PTHREAD_MUTEX_INITIALIZER;
static _Atomic bool interrupted;

static void *release_lock(void) {
  pthread_mutex_unlock(&host_lock);
  return NULL;
}
static void acquire_lock(void *token) {
  (void)token;
  pthread_mutex_lock(&host_lock);
}
static mpg_status check_interrupt(void) {
  return atomic_exchange(&interrupted, false) ? mpg_fail(MPG_INTERRUPTED, "interrupted") : MPG_OK;
}
static uint32_t origin(void) { return 7; }
static void origin_text(uint32_t number, char *buffer, size_t size) {
  snprintf(buffer, size, "script.py:%u in main", number);
}
static void collect(void) {}
static const mpg_host test_host = {.release_lock = release_lock,
                                   .acquire_lock = acquire_lock,
                                   .check_interrupt = check_interrupt,
                                   .origin = origin,
                                   .origin_text = origin_text,
                                   .collect = collect};

static inline void sleep_ms(int ms) {
  nanosleep(&(struct timespec){ms / 1000, ms % 1000 * 1000000L}, NULL);
}

/* Submissions that use no storage. */
typedef struct queued {
  const mpg_submission *submissions;
  int count;
  mpg_tick *ticks;
} queued;

static mpg_status prepare_queued(void *state, mpg_point_list *points, mpg_submission *submissions,
                                 bool *done) {
  const queued *q = state;
  (void)points, (void)done;
  memcpy(submissions, q->submissions, (size_t)q->count * sizeof *submissions);
  return MPG_OK;
}

static void note_queued(void *state, const mpg_tick *ticks) {
  const queued *q = state;
  memcpy(q->ticks, ticks, (size_t)q->count * sizeof *ticks);
}

static inline mpg_status submit_together(mpg_device *const *devices,
                                         const mpg_submission *submissions, int count,
                                         mpg_tick *ticks) {
  queued q = {submissions, count, ticks};
  return mpg_device_queue(&(mpg_queuing){.devices = devices,
                                         .count = count,
                                         .prepare = prepare_queued,
                                         .note = note_queued,
                                         .state = &q});
}

static inline mpg_status submit_one(mpg_device *device, const mpg_submission *submission,
                                    mpg_tick *tick) {
  return submit_together(&device, submission, 1, tick);
}

static inline int run_tests(const test *tests, size_t count, int argc, char **argv) {
  setvbuf(stdout, NULL, _IOLBF, 0);
  if (argc < 2) {
    for (size_t i = 0; i < count; i++) puts(tests[i].name);
    return 0;
  }
  mpg_host_set(&test_host);
  pthread_mutex_lock(&host_lock);
  if (mpg_device_init() != MPG_OK) {
    fprintf(stderr, "%s\n", mpg_error_text());
    return 3;
  }
  for (size_t i = 0; i < count; i++) {
    if (strcmp(tests[i].name, argv[1]) != 0) continue;
    tests[i].run();
    return 0;
  }
  fprintf(stderr, "no test %s\n", argv[1]);
  return 2;
}

#endif
