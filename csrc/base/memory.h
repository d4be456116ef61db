/* Host memory for bookkeeping, and overflow-checked sizes.
 *
 * Array contents are not allocated here, but from a device's pool (device/pool.h). Tests can make
 * any allocation fail, even of device memory. mpg_memory_fail_after(n, count) lets n - 1 more
 * allocations succeed; the next `count` allocations then fail. The caller owns the returned memory.
 * Functions may be called from any thread unless noted.
 */
#ifndef MPG_BASE_MEMORY_H
#define MPG_BASE_MEMORY_H

#include <string.h>

#include "base/status.h"

void *mpg_malloc(size_t size);               /* returns new memory, or NULL */
void *mpg_calloc(size_t count, size_t size); /* returns zeroed memory, or NULL */
void *mpg_realloc(void *memory, size_t size);
/* Returns new memory, or NULL. `alignment` is a power of two. Freed with mpg_free. */
void *mpg_aligned_malloc(size_t alignment, size_t size);
void mpg_free(void *memory); /* NULL is allowed */
char *mpg_strdup(const char *text);

/* Temporary memory for one call. Like mpg_malloc and mpg_free, but freed blocks are cached, so that
 * later calls need not allocate. Call with the host lock held. */
void *mpg_space_take(size_t size);
void mpg_space_give(void *space); /* NULL is allowed */
void mpg_space_free_kept(void);

/* The address of a zero-size buffer, which is never read. It is aligned like other buffers. It is
 * not NULL, because memset and memcpy must not receive NULL even for zero bytes. */
#define MPG_NO_BYTES ((void *)64)

/* In debug and sanitizer builds, fills memory that is kept for reuse with a pattern. This exposes
 * code that reuses the memory without initializing every field. */
static inline void mpg_poison(void *memory, size_t size) {
#if defined MPG_DEBUG || defined __SANITIZE_ADDRESS__
  memset(memory, 0xA5, size);
#else
  (void)memory, (void)size;
#endif
}

/* Sets the error text for a failed allocation of `size` bytes. Returns MPG_HOST_OUT_OF_MEMORY. */
mpg_status mpg_out_of_host_memory(size_t size);

/* Makes `count` consecutive allocations fail, starting with the n-th from now. n = 1 means the next
 * allocation, and n = 0 cancels pending failures. Returns true if an allocation was made to fail
 * since the previous call. */
bool mpg_memory_fail_after(int64_t n, int64_t count);
/* Counts an allocation, and returns true if it must fail. Called by all allocators, including those
 * in other files. */
bool mpg_memory_refused(void);
/* Returns the number of allocations until the first pending failure. Tests call
 * mpg_memory_fail_after with a large n to count allocations. */
int64_t mpg_memory_until_failure(void);

/* Sets *result to a * b (or a + b) and returns true; returns false on overflow. */
static inline bool mpg_size_mul(size_t a, size_t b, size_t *result) {
  return !__builtin_mul_overflow(a, b, result);
}
static inline bool mpg_size_add(size_t a, size_t b, size_t *result) {
  return !__builtin_add_overflow(a, b, result);
}

/* Rounds up to a multiple of `alignment` (a power of two). The caller ensures that the result does
 * not overflow. */
static inline size_t mpg_align_up(size_t size, size_t alignment) {
  return (size + alignment - 1) & ~(alignment - 1);
}

/* Arena (bump allocator), whose allocations are freed together. Not thread-safe. */
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
/* Returns memory that is 16-byte aligned and not zeroed; NULL if out of memory. */
void *mpg_arena_alloc(mpg_arena *arena, size_t size);
void *mpg_arena_copy(mpg_arena *arena, const void *source, size_t size);

/* Grows the array *items to a capacity of at least `needed` elements of `item_size` bytes, by
 * doubling. */
mpg_status mpg_grow(void **items, size_t *capacity, size_t needed, size_t item_size);

#endif
