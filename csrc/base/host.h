/* The host: whoever drives the core (the Python binding; a C test), as the core sees it.
 *
 * The host lock. Everything that submits work, allocates device memory, or touches tensors,
 * storages, tapes and graphs is called with the host lock held (under Python: the GIL). So the
 * core needs no locks of its own on those paths. Worker threads never take the host lock. A
 * function that may block says so; it gives the lock up through these hooks while it blocks, so
 * the caller's own unshared state must be consistent before the call.
 *
 * Turns. Others may run, other threads or the host's finalizers, exactly where this file's
 * functions are called, and each of them counts: while mpg_host_turns() stays the same, the thread
 * that holds the lock has been alone with the core's state.
 */
#ifndef MPG_BASE_HOST_H
#define MPG_BASE_HOST_H

#include "base/status.h"

typedef struct mpg_host {
  void *(*release_lock)(void); /* gives the host lock up; returns a token for acquire_lock */
  void (*acquire_lock)(void *token);
  mpg_status (*check_interrupt)(void); /* lock held; MPG_INTERRUPTED when the user asked to stop */
  uint32_t (*origin)(
      void); /* lock held; number of the host's source line that is running, 0: not known */
  /* any thread, without the lock, even after the host has ended; "file.py:12 in f" */
  void (*origin_text)(uint32_t origin, char *buffer, size_t size);
  /* Optional; lock held. Returns a key of the line that is the same in all processes of the
   * program. Returns 0 if the line is unknown or if this is not the main thread, because calls of
   * other threads come in no fixed order. */
  uint32_t (*origin_key)(uint32_t origin);
  /* Optional; any thread. Returns 0 if this process has not run the line. */
  uint32_t (*origin_of_key)(uint32_t key);
  /* lock held; memory is short: drops what the host keeps without need, as garbage in cycles */
  void (*collect)(void);
  /* optional; lock held: whether the host has no other thread, which could submit work */
  bool (*alone)(void);
  /* optional; lock held, and given up meanwhile: fails unless all processes of the program say the
   * same; MPG_HOST_EXCEPTION */
  mpg_status (*agree)(const char *text);
} mpg_host;

/* Set once, before any other call, by the host; the default does nothing and knows nothing (a
 * single-threaded C program). */
void mpg_host_set(const mpg_host *host); /* borrowed, must outlive the process */

/* The functions of the host; each call is a turn of others, but that of origin_text. */
void *mpg_host_release_lock(void);
void mpg_host_acquire_lock(void *token);
mpg_status mpg_host_check_interrupt(void);
/* looking for the line makes objects, and the host may collect garbage then */
uint32_t mpg_host_origin(void);
uint32_t mpg_host_origin_key(uint32_t origin);
uint32_t mpg_host_origin_of_key(uint32_t key);
void mpg_host_origin_text(uint32_t origin, char *buffer, size_t size);
bool mpg_host_alone(void);
mpg_status mpg_host_agree(const char *text);
void mpg_host_collect(void); /* nothing while it is under way already */
/* Says that what follows may run the host's code: releasing what the host owns. */
void mpg_host_yield(void);
uint64_t mpg_host_turns(void);
/* In debug builds, and while there is an intruder: ends the process if there has been a turn
 * since. */
void mpg_host_check_turns(uint64_t before);

/* For tests: `intruder` runs at each turn, as another thread or a finalizer would, with the lock
 * held; not within itself. NULL: nothing. */
void mpg_host_set_intruder(void (*intruder)(void));

#endif
