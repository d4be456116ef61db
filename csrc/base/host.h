/* The host: whoever drives the core (the Python binding; a C test), as the core sees it.
 *
 * The host lock. Everything that submits work, allocates device memory, or touches tensors, storages, tapes and graphs is
 * called with the host lock held (under Python: the GIL). So the core needs no locks of its own on those paths. Worker
 * threads never take the host lock. A function that may block says so; it gives the lock up through these hooks while it
 * blocks, so the caller's own unshared state must be consistent before the call.
 */
#ifndef MPG_BASE_HOST_H
#define MPG_BASE_HOST_H

#include "base/status.h"

typedef struct mpg_host {
  void *(*release_lock)(void);            /* gives the host lock up; returns a token for acquire_lock */
  void (*acquire_lock)(void *token);
  mpg_status (*check_interrupt)(void);    /* lock held; MPG_INTERRUPTED when the user asked to stop */
  uint32_t (*origin)(void);               /* lock held; number of the host's source line that is running, 0: not known */
  void (*origin_text)(uint32_t origin, char *buffer, size_t size); /* lock held; "file.py:12 in f" */
} mpg_host;

/* Set once, before any other call, by the host; the default does nothing and knows nothing (a single-threaded C program). */
void mpg_host_set(const mpg_host *host); /* borrowed, must outlive the process */
const mpg_host *mpg_host_get(void);

#endif
