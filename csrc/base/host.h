/* The host: the program that drives the core (the Python binding or a C test).
 *
 * The host lock. Everything that submits work, allocates device memory, or touches tensors,
 * storages, tapes and graphs must be called with the host lock held, which is the GIL in Python. So
 * these functions need no locks of their own. Worker threads never take the host lock. A function
 * that may block says so in its comment. It releases the lock while it blocks, so other threads may
 * change the core's state during the call.
 *
 * Turns. Other host threads and finalizers can run only during some of the functions of this file
 * (listed below). Each call to one of them counts as a turn. If mpg_host_turns() has not changed,
 * no other code has touched the core's state.
 */
#ifndef MPG_BASE_HOST_H
#define MPG_BASE_HOST_H

#include "base/status.h"

typedef struct mpg_host {
  void *(*release_lock)(void); /* returns a token for acquire_lock */
  void (*acquire_lock)(void *token);
  /* Called with the lock held. Returns MPG_INTERRUPTED if the user has interrupted the program
   * (Ctrl-C). */
  mpg_status (*check_interrupt)(void);
  /* Called with the lock held. Returns the origin: a number that identifies the source line that
   * the host is running. 0 means unknown. */
  uint32_t (*origin)(void);
  /* Formats an origin as "file.py:12 in f". May be called from any thread, without the lock, even
   * after the host has ended. */
  void (*origin_text)(uint32_t origin, char *buffer, size_t size);
  /* Optional. Called with the lock held. Returns a key for an origin's source line. The key is the
   * same in all processes of the program. Returns 0 if the line is unknown or if this is not the
   * main thread, because the order of calls from other threads is not fixed. */
  uint32_t (*origin_key)(uint32_t origin);
  /* Optional. May be called from any thread. Returns the origin for a key (the inverse of
   * origin_key); 0 if this process has not run the line. */
  uint32_t (*origin_of_key)(uint32_t key);
  /* Called with the lock held when memory is low. Collects the host's garbage, such as reference
   * cycles that hold arrays. */
  void (*collect)(void);
  /* Optional. Called with the lock held. True if no other thread of the host could submit work.
   * Deadlocks are then reported sooner. */
  bool (*alone)(void);
  /* Optional. Called with the lock held, which is released while waiting. Returns
   * MPG_HOST_EXCEPTION unless all processes of the program pass the same text. */
  mpg_status (*agree)(const char *text);
} mpg_host;

/* Sets the host's functions. Called once, before any other function. Without this call, the core
 * assumes a single-threaded C program: there is no lock, and source lines are unknown. */
void mpg_host_set(const mpg_host *host); /* borrowed; used until the process ends */

/* Wrappers for the host's functions. Calls to mpg_host_release_lock, _check_interrupt, _origin,
 * _agree, _collect and _yield count as turns. */
void *mpg_host_release_lock(void);
void mpg_host_acquire_lock(void *token);
mpg_status mpg_host_check_interrupt(void);
/* Counts as a turn, because looking up the line creates objects, which may start the host's garbage
 * collector. */
uint32_t mpg_host_origin(void);
uint32_t mpg_host_origin_key(uint32_t origin);
uint32_t mpg_host_origin_of_key(uint32_t key);
void mpg_host_origin_text(uint32_t origin, char *buffer, size_t size);
bool mpg_host_alone(void);
mpg_status mpg_host_agree(const char *text);
void mpg_host_collect(void); /* does nothing if a collection is already running */
/* Counts as a turn (see the top of this file). Called before the core releases host objects,
 * because their finalizers may run host code. */
void mpg_host_yield(void);
uint64_t mpg_host_turns(void);
/* Aborts if mpg_host_turns() differs from `before`. Active in debug builds and while an intruder is
 * set. */
void mpg_host_check_turns(uint64_t before);

/* For tests: calls `intruder` at each turn with the lock held, to simulate another thread or a
 * finalizer. Turns during that call do not call `intruder` recursively. NULL disables this. */
void mpg_host_set_intruder(void (*intruder)(void));

#endif
