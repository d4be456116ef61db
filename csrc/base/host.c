/* The host lock, turns, interrupts and other services of the host program. */
#include "base/host.h"

#include <stdio.h>

static void *no_release(void) { return NULL; }
static void no_acquire(void *token) { (void)token; }
static mpg_status no_interrupt(void) { return MPG_OK; }
static uint32_t no_origin(void) { return 0; }
static void no_origin_text(uint32_t origin, char *buffer, size_t size) {
  snprintf(buffer, size, "line %u", origin);
}
static void no_collect(void) {}

static const mpg_host no_host = {no_release, no_acquire, no_interrupt, no_origin, no_origin_text,
                                 NULL,       NULL,       no_collect,   NULL,      NULL};
static const mpg_host *current_host = &no_host; /* runtime state: set once at start */
/* Runtime state, guarded by the host lock. */
static uint64_t turns;
static void (*intruder)(void);
static bool intruding, collecting;

void mpg_host_set(const mpg_host *host) { current_host = host; }
void mpg_host_set_intruder(void (*function)(void)) { intruder = function; }
uint64_t mpg_host_turns(void) { return turns; }

void mpg_host_check_turns(uint64_t before) {
#ifndef MPG_DEBUG
  if (!intruder) return;
#endif
  /* If this fails, other code could run during mpg_device_queue, after `prepare` has collected the
   * points to wait for and before `note` records the uses. The points could then be stale. */
  MPG_ASSERT(before == turns);
}

void mpg_host_yield(void) {
  turns++;
  if (__builtin_expect(intruder == NULL, 1) || intruding) return;
  intruding = true;
  intruder();
  intruding = false;
}

void *mpg_host_release_lock(void) {
  mpg_host_yield();
  return current_host->release_lock();
}

void mpg_host_acquire_lock(void *token) { current_host->acquire_lock(token); }

mpg_status mpg_host_check_interrupt(void) {
  mpg_host_yield();
  return current_host->check_interrupt();
}

uint32_t mpg_host_origin(void) {
  mpg_host_yield();
  return current_host->origin();
}

void mpg_host_origin_text(uint32_t origin, char *buffer, size_t size) {
  current_host->origin_text(origin, buffer, size);
}

uint32_t mpg_host_origin_key(uint32_t origin) {
  return current_host->origin_key ? current_host->origin_key(origin) : 0;
}
uint32_t mpg_host_origin_of_key(uint32_t key) {
  return current_host->origin_of_key ? current_host->origin_of_key(key) : 0;
}

bool mpg_host_alone(void) { return !current_host->alone || current_host->alone(); }

mpg_status mpg_host_agree(const char *text) {
  mpg_host_yield();
  return current_host->agree ? current_host->agree(text) : MPG_OK;
}

void mpg_host_collect(void) {
  if (collecting) return;
  collecting = true;
  mpg_host_yield();
  current_host->collect();
  collecting = false;
}
