/* Monotonic time in nanoseconds. May be called from any thread. */
#ifndef MPG_BASE_CLOCK_H
#define MPG_BASE_CLOCK_H

#include <stdint.h>
#include <time.h>

static inline int64_t mpg_clock_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

#endif
