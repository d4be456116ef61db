/* Host memory for bookkeeping, and overflow-checked sizes.
 *
 * Array contents never come from here but from a device's pool (device/pool.h). Every allocation
 * can be made to fail for tests, those of device memory too: after mpg_memory_fail_after(n, count)
 * the n-th following allocation (1 is the next) returns NULL, and so do those behind it, `count`
 * in all. The caller owns what it gets. Any thread may call, where nothing else is said.
 */
#ifndef MPG_BASE_MEMORY_H
#define MPG_BASE_MEMORY_H

#include <string.h>

#include "base/status.h"

void *mpg_malloc(size_t size);               /* new, or NULL */
void *mpg_calloc(size_t count, size_t size); /* new and zeroed, or NULL; count * size is checked */
void *mpg_realloc(void *memory, size_t size);
void *mpg_aligned_malloc(size_t alignment,
                         size_t size); /* new, or NULL; alignment: a power of two; for mpg_free */
void mpg_free(void *memory);           /* NULL is allowed */
char *mpg_strdup(const char *text);

/* Work space of one call: like mpg_malloc and mpg_free, but some is kept for calls to come, which
 * then allocate nothing. Host lock. */
void *mpg_space_take(size_t size);
void mpg_space_give(void *space); /* NULL is allowed */
void mpg_space_free_kept(void);

/* The address of what has no bytes: aligned like any other, and not NULL, which memset and memcpy
 * may not be given even then. Never read. */
#define MPG_NO_BYTES ((void *)64)

/* A struct that is kept for reuse holds nothing any more. Builds with checks fill it with a
 * pattern, so that whoever takes it and leaves a field as it was is found out. */
static inline void mpg_poison(void *memory, size_t size) {
#if defined MPG_DEBUG || defined __SANITIZE_ADDRESS__
  memset(memory, 0xA5, size);
#else
  (void)memory, (void)size;
#endif
}

/* Sets MPG_HOST_OUT_OF_MEMORY's text and returns it. */
mpg_status mpg_out_of_host_memory(size_t size);

/* Arms (n >= 1) or disarms (0) the failure of the n-th allocation from now. True if one has been
 * made to fail since arming. */
bool mpg_memory_fail_after(int64_t n, int64_t count);
/* whether an allocation that is made elsewhere must fail: whoever makes one asks */
bool mpg_memory_refused(void);
int64_t mpg_memory_until_failure(
    void); /* how many are left: armed with a large n, it counts allocations */

/* True and *result = a * b (a + b), or false when that does not fit. */
static inline bool mpg_size_mul(size_t a, size_t b, size_t *result) {
  return !__builtin_mul_overflow(a, b, result);
}
static inline bool mpg_size_add(size_t a, size_t b, size_t *result) {
  return !__builtin_add_overflow(a, b, result);
}

/* Rounds up to a multiple of `alignment` (a power of two). The caller has checked that it does not
 * overflow. */
static inline size_t mpg_align_up(size_t size, size_t alignment) {
  return (size + alignment - 1) & ~(alignment - 1);
}

/* A bump allocator: everything is freed at once. Not shared between threads without a lock. */
typedef struct mpg_arena_block mpg_arena_block;
typedef struct mpg_arena {
  mpg_arena_block *blocks; /* owned */
  char *next;
  size_t left;
  size_t total;
} mpg_arena;

void mpg_arena_init(mpg_arena *arena);
void mpg_arena_free(mpg_arena *arena);
void mpg_arena_reset(mpg_arena *arena); /* keeps the largest block for reuse */
void *mpg_arena_alloc(mpg_arena *arena,
                      size_t size); /* 16-byte aligned, not zeroed; NULL when out of memory */
void *mpg_arena_copy(mpg_arena *arena, const void *source, size_t size);

/* Grows `*items` (elements of `item_size`) to hold at least `needed`; doubling. */
mpg_status mpg_grow(void **items, size_t *capacity, size_t needed, size_t item_size);

#endif
