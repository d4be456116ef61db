/* Host memory for bookkeeping: allocation with injected failures, scratch memory and arenas. */
#include "base/memory.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

/* State of mpg_memory_fail_after. If allocations_until_failure is 0, no failure is pending. */
static _Atomic int64_t allocations_until_failure, failures_left;
static _Atomic bool failure_happened;

enum { KEPT_SPACES = 8, LARGEST_KEPT = 1 << 20 };
typedef struct space {
  _Alignas(16) size_t size;
} space;
static space *kept_spaces[KEPT_SPACES]; /* runtime state, under the host lock */

bool mpg_memory_refused(void) {
  if (__builtin_expect(atomic_load_explicit(&allocations_until_failure, memory_order_relaxed) <= 0,
                       1))
    return false;
  if (atomic_fetch_sub(&allocations_until_failure, 1) != 1) return false;
  if (atomic_fetch_sub(&failures_left, 1) > 1) atomic_store(&allocations_until_failure, 1);
  atomic_store(&failure_happened, true);
  return true;
}

bool mpg_memory_fail_after(int64_t n, int64_t count) {
  bool happened = atomic_exchange(&failure_happened, false);
  atomic_store(&failures_left, count);
  atomic_store(&allocations_until_failure, n);
  return happened;
}

int64_t mpg_memory_until_failure(void) { return atomic_load(&allocations_until_failure); }

void *mpg_malloc(size_t size) { return mpg_memory_refused() ? NULL : malloc(size ? size : 1); }

void *mpg_calloc(size_t count, size_t size) {
  size_t total;
  if (mpg_memory_refused() || !mpg_size_mul(count, size, &total)) return NULL;
  return calloc(1, total ? total : 1);
}

void *mpg_realloc(void *memory, size_t size) {
  return mpg_memory_refused() ? NULL : realloc(memory, size ? size : 1);
}

void *mpg_aligned_malloc(size_t alignment, size_t size) {
  void *memory = NULL;
  if (mpg_memory_refused() || posix_memalign(&memory, alignment, size ? size : 1) != 0) return NULL;
  return memory;
}

void mpg_free(void *memory) { free(memory); }

char *mpg_strdup(const char *text) {
  size_t size = strlen(text) + 1;
  char *copy = mpg_malloc(size);
  if (copy) memcpy(copy, text, size);
  return copy;
}

mpg_status mpg_out_of_host_memory(size_t size) {
  return mpg_fail(MPG_HOST_OUT_OF_MEMORY,
                  "out of host memory: %zu bytes for bookkeeping could not be allocated", size);
}

enum { ARENA_BLOCK_SIZE = 1 << 13, ARENA_ALIGNMENT = 16 };

struct mpg_arena_block {
  mpg_arena_block *next;
  size_t size; /* size of the payload */
  _Alignas(ARENA_ALIGNMENT) char payload[];
};

void mpg_arena_init(mpg_arena *arena) { *arena = (mpg_arena){0}; }

void *mpg_space_take(size_t size) {
  for (int i = 0; i < KEPT_SPACES; i++) {
    space *kept = kept_spaces[i];
    if (!kept || kept->size < size) continue;
    kept_spaces[i] = NULL;
    return kept + 1;
  }
  space *made = size < SIZE_MAX / 2 ? mpg_malloc(sizeof *made + size) : NULL;
  if (!made) return NULL;
  made->size = size;
  return made + 1;
}

void mpg_space_give(void *given) {
  if (!given) return;
  space *least = (space *)given - 1;
  mpg_poison(given, least->size);
  /* Keeps the largest blocks: replaces smaller cached blocks, and frees the block that is left
   * over. */
  if (least->size <= LARGEST_KEPT)
    for (int i = 0; i < KEPT_SPACES && least; i++) {
      space *kept = kept_spaces[i];
      if (kept && kept->size >= least->size) continue;
      kept_spaces[i] = least;
      least = kept;
    }
  mpg_free(least);
}

void mpg_space_free_kept(void) {
  for (int i = 0; i < KEPT_SPACES; i++) {
    mpg_free(kept_spaces[i]);
    kept_spaces[i] = NULL;
  }
}

static void free_blocks(mpg_arena_block *block) {
  while (block) {
    mpg_arena_block *next = block->next;
    mpg_free(block);
    block = next;
  }
}

void mpg_arena_free(mpg_arena *arena) {
  free_blocks(arena->blocks);
  mpg_arena_init(arena);
}

void mpg_arena_reset(mpg_arena *arena) {
  mpg_arena_block *largest = arena->blocks;
  if (!largest) return;
  for (mpg_arena_block *block = arena->blocks; block; block = block->next)
    if (block->size > largest->size) largest = block;
  for (mpg_arena_block **link = &arena->blocks; *link;) {
    if (*link == largest) {
      *link = largest->next;
      break;
    }
    link = &(*link)->next;
  }
  free_blocks(arena->blocks);
  largest->next = NULL;
  *arena = (mpg_arena){
      .blocks = largest, .next = largest->payload, .left = largest->size, .total = largest->size};
}

void *mpg_arena_alloc(mpg_arena *arena, size_t size) {
  size_t padded;
  if (!mpg_size_add(size, ARENA_ALIGNMENT - 1, &padded)) return NULL;
  padded &= ~(size_t)(ARENA_ALIGNMENT - 1);
  if (padded > arena->left) {
    /* Doubles the total. After a few resets, a single block is large enough for everything. */
    size_t block_size = arena->total > ARENA_BLOCK_SIZE / 2 ? 2 * arena->total : ARENA_BLOCK_SIZE;
    if (block_size < padded) block_size = padded;
    mpg_arena_block *block = mpg_malloc(sizeof *block + block_size);
    if (!block) return NULL;
    block->next = arena->blocks;
    block->size = block_size;
    arena->blocks = block;
    arena->next = block->payload;
    arena->left = block_size;
    arena->total += block_size;
  }
  void *result = arena->next;
  arena->next += padded;
  arena->left -= padded;
  return result;
}

void *mpg_arena_copy(mpg_arena *arena, const void *source, size_t size) {
  void *copy = mpg_arena_alloc(arena, size);
  if (copy && size) memcpy(copy, source, size);
  return copy;
}

mpg_status mpg_grow(void **items, size_t *capacity, size_t needed, size_t item_size) {
  if (needed <= *capacity) return MPG_OK;
  size_t grown = *capacity ? *capacity : 8, bytes;
  while (grown < needed) {
    if (grown > SIZE_MAX / 2) return mpg_out_of_host_memory(SIZE_MAX);
    grown *= 2;
  }
  if (!mpg_size_mul(grown, item_size, &bytes)) return mpg_out_of_host_memory(SIZE_MAX);
  void *moved = mpg_realloc(*items, bytes);
  if (!moved) return mpg_out_of_host_memory(bytes);
  *items = moved;
  *capacity = grown;
  return MPG_OK;
}
