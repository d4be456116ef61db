#include "base/host.h"

#include <stdio.h>

static void *no_release(void) { return NULL; }
static void no_acquire(void *token) { (void)token; }
static mpg_status no_interrupt(void) { return MPG_OK; }
static uint32_t no_origin(void) { return 0; }
static void no_origin_text(uint32_t origin, char *buffer, size_t size) { snprintf(buffer, size, "line %u", origin); }

static const mpg_host no_host = {no_release, no_acquire, no_interrupt, no_origin, no_origin_text};
static const mpg_host *current_host = &no_host; /* runtime state: set once at start */

void mpg_host_set(const mpg_host *host) { current_host = host; }
const mpg_host *mpg_host_get(void) { return current_host; }
