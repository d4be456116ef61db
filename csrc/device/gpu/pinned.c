/* Page-locked host memory. */
#include "device/gpu/pinned.h"

#include "base/memory.h"
#include "device/gpu/gpu.h"
#include "device/pool.h"

/* Blocks are multiples of a page, so that no page belongs to two blocks and is locked twice. */
enum { PAGE = 4096 };

struct mpg_pinned {
  void *memory;
  size_t size;
  bool locked;
  mpg_pinned *next; /* next cached block */
};

static struct { /* runtime state, guarded by the host lock */
  mpg_pinned *kept;
  size_t bytes_kept, in_use, most_in_use;
} pinned;

static void destroy(mpg_pinned *block) {
  const char *reason;
  if (block->locked && !mpg_gpu_library_forked())
    mpg_gpu_library_get(&reason)->driver->unlock(block->memory);
  mpg_free(block->memory);
  mpg_free(block);
}

void mpg_pinned_trim(void) {
  while (pinned.kept) {
    mpg_pinned *block = pinned.kept;
    pinned.kept = block->next;
    destroy(block);
  }
  pinned.bytes_kept = 0;
}

static mpg_pinned *take_kept(size_t size) {
  for (mpg_pinned **place = &pinned.kept; *place; place = &(*place)->next)
    if ((*place)->size == size) {
      mpg_pinned *block = *place;
      *place = block->next;
      pinned.bytes_kept -= size;
      return block;
    }
  return NULL;
}

static mpg_status make(size_t size, mpg_pinned **result) {
  mpg_pinned *block = mpg_calloc(1, sizeof *block);
  if (!block) return mpg_out_of_host_memory(sizeof *block);
  mpg_status status = MPG_OK;
  const char *reason;
  block->size = size;
  block->memory = mpg_aligned_malloc(PAGE, size);
  if (!block->memory) MPG_GOTO(mpg_out_of_host_memory(size));
  if (mpg_gpu_count(&reason) && !mpg_gpu_library_forked()) {
    MPG_GOTO(mpg_gpu_library_get(&reason)->driver->lock(block->memory, size));
    block->locked = true;
  }
  *result = block;
  return MPG_OK;
fail:
  mpg_free(block->memory);
  mpg_free(block);
  return status;
}

mpg_status mpg_pinned_allocate(size_t size, mpg_pinned **result) {
  if (size > SIZE_MAX / 2) return mpg_out_of_host_memory(size);
  size_t whole = mpg_align_up(mpg_pool_block_size(size ? size : 1), PAGE);
  mpg_pinned *block = take_kept(whole);
  if (!block && make(whole, &block) != MPG_OK) {
    mpg_pinned_trim();
    MPG_TRY(make(whole, &block));
  }
  pinned.in_use += whole;
  if (pinned.in_use > pinned.most_in_use) pinned.most_in_use = pinned.in_use;
  *result = block;
  return MPG_OK;
}

void *mpg_pinned_memory(const mpg_pinned *block) { return block->memory; }

void mpg_pinned_release(void *owner) {
  mpg_pinned *block = owner;
  pinned.in_use -= block->size;
  if (pinned.bytes_kept + block->size > pinned.most_in_use) {
    destroy(block);
    return;
  }
  block->next = pinned.kept;
  pinned.kept = block;
  pinned.bytes_kept += block->size;
}
