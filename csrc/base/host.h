/* The host: the program that drives the core (the Python binding or a C test).
 *
 * The host lock. Everything that submits work, allocates device memory, or touches tensors,
 * storages, tapes and graphs is called with the host lock held (under Python: the GIL), so the core
 * needs no locks of its own on those paths. Worker threads never take the host lock. The comment of
 * a function that may block says so. It releases the lock through these hooks while it blocks, so
 * the caller's own unshared state must be consistent before the call.
 *
 * Turns. Other threads or the host's finalizers can run only when one of this file's functions is
 * called, and each of these calls counts as a turn. While mpg_host_turns() is unchanged, no other
 * code has touched the core's state.
 */
#ifndef MPG_BASE_HOST_H
#define MPG_BASE_HOST_H

#include "base/status.h"

typedef struct mpg_host {
  void *(*release_lock)(void); /* Releases the host lock and returns a token for acquire_lock. */
  void (*acquire_lock)(void *token);
  /* Lock held. Returns MPG_INTERRUPTED if the user asked to stop. */
  mpg_status (*check_interrupt)(void);
  /* Lock held. Returns the number of the running source line of the host; 0 if unknown. */
  uint32_t (*origin)(void);
  /* Formats an origin as "file.py:12 in f". Any thread, without the lock, even after the host has
   * ended. */
  void (*origin_text)(uint32_t origin, char *buffer, size_t size);
  /* Optional; lock held. Returns a key of the line that is the same in all processes of the
   * program. Returns 0 if the line is unknown or if this is not the main thread, because the order
   * of calls from other threads is not fixed. */
  uint32_t (*origin_key)(uint32_t origin);
  /* Optional; any thread. The inverse of origin_key; 0 if this process has not run the line. */
  uint32_t (*origin_of_key)(uint32_t key);
  /* Lock held. Called when memory is low. Frees garbage that the host still holds, for example in
   * reference cycles. */
  void (*collect)(void);
  /* Optional; lock held. True if the host has no other thread that could submit work. */
  bool (*alone)(void);
  /* Optional; lock held on entry, released while waiting. Returns MPG_HOST_EXCEPTION unless all
   * processes of the program pass the same text. */
  mpg_status (*agree)(const char *text);
} mpg_host;

/* Set once by the host, before any other call. The default host is for single-threaded C programs:
 * its functions do nothing, and source lines are unknown. */
void mpg_host_set(const mpg_host *host); /* borrowed; must outlive the process */

/* Wrappers of the host's functions. Every call is a turn, except mpg_host_origin_text. */
void *mpg_host_release_lock(void);
void mpg_host_acquire_lock(void *token);
mpg_status mpg_host_check_interrupt(void);
/* Computing the line creates objects, so the host may collect garbage. */
uint32_t mpg_host_origin(void);
uint32_t mpg_host_origin_key(uint32_t origin);
uint32_t mpg_host_origin_of_key(uint32_t key);
void mpg_host_origin_text(uint32_t origin, char *buffer, size_t size);
bool mpg_host_alone(void);
mpg_status mpg_host_agree(const char *text);
void mpg_host_collect(void); /* does nothing if a collection is already running */
/* Declares that the following code may run the host's code because it releases objects that the
 * host owns. */
void mpg_host_yield(void);
uint64_t mpg_host_turns(void);
/* Aborts if a turn has happened since `before`. Active in debug builds and while an intruder is
 * set. */
void mpg_host_check_turns(uint64_t before);

/* For tests: runs `intruder` at each turn with the lock held, as another thread or a finalizer
 * would. Not recursive. NULL disables it. */
void mpg_host_set_intruder(void (*intruder)(void));

#endif
