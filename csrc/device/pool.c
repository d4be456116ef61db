/* The memory pool of a device: size classes, a cache, a limit and statistics. */
#include "device/pool.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(memory, size) ((void)(memory), (void)(size))
#define ASAN_UNPOISON_MEMORY_REGION(memory, size) ((void)(memory), (void)(size))
#endif

#include "base/host.h"
#include "base/memory.h"
#include "device/internal.h"

/* Sizes: multiples of 64 up to 512, then eight steps per doubling. */
enum {
  SMALL_STEP = 64,
  SMALL_CLASSES = 8,
  SMALL_LIMIT = SMALL_STEP * SMALL_CLASSES,
  SMALL_BITS = 9,
  LARGEST_BITS = 46
};
enum {
  NUM_CLASSES = SMALL_CLASSES + (LARGEST_BITS - SMALL_BITS) * 8,
  LOOK_BACK = 8,
  MOST_AHEAD = 4, /* times the working set that may be cached, and still in use by queued work,
                     before no more is taken to spare a wait */
};

typedef struct size_class {
  mpg_block *cached; /* a stack, so that blocks in caches are reused first; where work is
                        captured a heap, the block at the lowest address first */
  size_t count;
  size_t capacity; /* at least as many as there are blocks of this class, so that giving one back
                      cannot fail */
  size_t blocks;   /* of this class: cached or handed out */
} size_class;

/* The atomics have one writer, the host (scratch: the thread that runs the device's work), so
 * adding is a load and a store. */
struct mpg_pool {
  mpg_device *device;
  bool poison;                          /* for tests: cached memory is filled with a pattern */
  _Atomic size_t in_use, held, scratch; /* in_use and held: without scratch */
  _Atomic size_t peak_in_use, peak_held;
  size_t working_set; /* the largest in_use there has been; host lock */
  _Atomic size_t limit;
  _Atomic uint64_t allocations, system_allocations;
  size_class classes[NUM_CLASSES];
};

#define GET(field) atomic_load_explicit(&pool->field, memory_order_relaxed)
#define SET(field, value) atomic_store_explicit(&pool->field, (value), memory_order_relaxed)

/* --- Uses ------------------------------------------------------------------------------------- */

static void drop_finished(mpg_uses *uses) {
  for (int i = 0; i < uses->num_foreign;) {
    if (mpg_tick_reached(uses->foreign[i].device, uses->foreign[i].tick))
      uses->foreign[i] = uses->foreign[--uses->num_foreign];
    else
      i++;
  }
}

mpg_status mpg_uses_reserve(mpg_uses *uses) {
  int wanted = mpg_device_count();
  if (__builtin_expect(uses->capacity >= wanted, 1)) return MPG_OK;
  wanted = (wanted + 3) & ~3;
  mpg_foreign_read *grown = mpg_realloc(uses->foreign, (size_t)wanted * sizeof *grown);
  if (!grown) return mpg_out_of_host_memory((size_t)wanted * sizeof *grown);
  uses->foreign = grown;
  uses->capacity = wanted;
  return MPG_OK;
}

void mpg_uses_add_read(mpg_uses *uses, mpg_device *owner, mpg_device *reader, mpg_tick tick) {
  if (reader == owner) {
    if (tick > uses->read) uses->read = tick;
    return;
  }
  for (int i = 0; i < uses->num_foreign; i++) {
    if (uses->foreign[i].device != reader) continue;
    if (tick > uses->foreign[i].tick) uses->foreign[i].tick = tick;
    return;
  }
  drop_finished(uses);
  MPG_ASSERT(uses->num_foreign < uses->capacity); /* reserved */
  uses->foreign[uses->num_foreign++] = (mpg_foreign_read){reader, tick};
}

bool mpg_uses_finished(const mpg_uses *uses, const mpg_device *owner) {
  if (!mpg_tick_reached(owner, uses->write > uses->read ? uses->write : uses->read)) return false;
  for (int i = 0; i < uses->num_foreign; i++)
    if (!mpg_tick_reached(uses->foreign[i].device, uses->foreign[i].tick)) return false;
  return true;
}

mpg_status mpg_uses_wait(const mpg_uses *uses, mpg_device *owner, bool keep_lock) {
  enum { MOST = 64 };
  mpg_foreign_read
      now[MOST]; /* others may add to them, and move them, while the lock is given up */
  int count = uses->num_foreign < MOST ? uses->num_foreign : MOST;
  for (int i = 0; i < count; i++) now[i] = uses->foreign[i];
  MPG_TRY(mpg_point_wait(
      (mpg_point){.device = owner, .tick = uses->write > uses->read ? uses->write : uses->read},
      keep_lock));
  for (int i = 0; i < count; i++)
    MPG_TRY(mpg_point_wait((mpg_point){.device = now[i].device, .tick = now[i].tick}, keep_lock));
  return MPG_OK;
}

/* --- Poison ----------------------------------------------------------------------------------- */

enum { POISON = 0xff }; /* NaN in every float dtype, -1 in integers */

/* Poisons memory that has been freed, unless queued work still uses it. */
static __attribute__((noinline)) void poison(const mpg_pool *pool, mpg_block *block) {
  if (!pool->poison || block->poisoned || !mpg_uses_finished(&block->uses, pool->device)) return;
  memset(block->memory, POISON, block->size);
  ASAN_POISON_MEMORY_REGION(block->memory, block->size);
  block->poisoned = true;
}

/* Checks a block before it is used or returned to the system. Without the pattern it was written
 * after it was freed. */
static void unpoison(const mpg_pool *pool, mpg_block *block) {
  if (!block->poisoned) return;
  ASAN_UNPOISON_MEMORY_REGION(block->memory, block->size);
  const unsigned char *bytes = block->memory;
  for (size_t i = 0; i < block->size; i++) {
    if (__builtin_expect(bytes[i] == POISON, 1)) continue;
    fprintf(stderr,
            "mpgluon: %s: byte %zu of a block of %zu bytes was written after the block had been "
            "freed\n",
            mpg_device_text(pool->device), i, block->size);
    abort();
  }
  block->poisoned = false;
}

/* --- Size classes ----------------------------------------------------------------------------- */

/* The class of `size` >= 1, and how large its blocks are. False: larger than any. */
static bool find_class(size_t size, int *index, size_t *rounded) {
  if (size <= SMALL_LIMIT) {
    *index = (int)((size + SMALL_STEP - 1) / SMALL_STEP) - 1;
    *rounded = (size_t)(*index + 1) * SMALL_STEP;
    return true;
  }
  if (size > (size_t)1 << LARGEST_BITS) return false;
  int bits = 63 - __builtin_clzll(size - 1); /* 2^bits < size <= 2^(bits + 1) */
  int step_bits = bits - 3;
  size_t steps = ((size - 1) >> step_bits) - 7; /* 1..8 beyond 2^bits */
  *index = SMALL_CLASSES + (bits - SMALL_BITS) * 8 + (int)steps - 1;
  *rounded = ((size_t)1 << bits) + (steps << step_bits);
  return true;
}

size_t mpg_pool_block_size(size_t size) {
  int index;
  size_t rounded = size;
  return size && find_class(size, &index, &rounded) ? rounded : size;
}

mpg_status mpg_pool_create(mpg_device *device, mpg_pool **pool) {
  *pool = mpg_calloc(1, sizeof **pool);
  if (!*pool) return mpg_out_of_host_memory(sizeof **pool);
  (*pool)->device = device;
  (*pool)->poison = device->backend->host_accessible && mpg_pool_poison_setting();
  return MPG_OK;
}

void mpg_pool_destroy(mpg_pool *pool) {
  if (!pool) return;
  for (int i = 0; i < NUM_CLASSES; i++) {
    size_class *class = &pool->classes[i];
    for (size_t j = 0; j < class->count; j++) {
      unpoison(pool, &class->cached[j]);
      pool->device->backend->free(pool->device, class->cached[j].memory, class->cached[j].size);
      mpg_free(class->cached[j].uses.foreign);
    }
    mpg_free(class->cached);
  }
  mpg_free(pool);
}

/* --- Cached blocks ---------------------------------------------------------------------------- */

static bool is_below(const mpg_block *a, const mpg_block *b) {
  return (uintptr_t)a->memory < (uintptr_t)b->memory;
}

static void swap(mpg_block *a, mpg_block *b) {
  mpg_block kept = *a;
  *a = *b;
  *b = kept;
}

static void rise(mpg_block *heap, size_t at) {
  for (; at && is_below(&heap[at], &heap[(at - 1) / 2]); at = (at - 1) / 2)
    swap(&heap[at], &heap[(at - 1) / 2]);
}

static void sink(mpg_block *heap, size_t count, size_t at) {
  for (size_t child; (child = 2 * at + 1) < count; at = child) {
    if (child + 1 < count && is_below(&heap[child + 1], &heap[child])) child++;
    if (!is_below(&heap[child], &heap[at])) return;
    swap(&heap[child], &heap[at]);
  }
}

static void put(const mpg_pool *pool, size_class *class, const mpg_block *block) {
  class->cached[class->count++] = *block;
  if (pool->device->captures) rise(class->cached, class->count - 1);
}

static mpg_block take_out(const mpg_pool *pool, size_class *class, size_t index) {
  mpg_block block = class->cached[index];
  class->cached[index] = class->cached[--class->count];
  if (pool->device->captures && index < class->count) {
    rise(class->cached, index);
    sink(class->cached, class->count, index);
  }
  return block;
}

/* --- The system's memory ---------------------------------------------------------------------- */

/* Both peaks are also raised by the device's worker when scratch grows: keep the larger. */
static void raise_peak(_Atomic size_t *peak, size_t value) {
  size_t seen = atomic_load_explicit(peak, memory_order_relaxed);
  while (value > seen && !atomic_compare_exchange_weak_explicit(
                             peak, &seen, value, memory_order_relaxed, memory_order_relaxed)) {}
}

static void release_cached(mpg_pool *pool, size_class *class, size_t index) {
  mpg_block block = take_out(pool, class, index);
  class->blocks--;
  SET(held, GET(held) - block.size);
  unpoison(pool, &block);
  mpg_free(block.uses.foreign);
  pool->device->backend->free(pool->device, block.memory, block.size);
}

/* Gives cached blocks back, largest first, until `held` (with scratch) is at most `target`. */
static mpg_status shrink(mpg_pool *pool, size_t target, bool wait, bool give_up_lock) {
  for (int i = NUM_CLASSES - 1; i >= 0; i--) {
    size_class *class = &pool->classes[i];
    for (size_t j = class->count; j-- > 0;) {
      if (GET(held) + GET(scratch) <= target) return MPG_OK;
      if (j >= class->count) continue; /* another thread took some while the lock was released */
      if (!mpg_uses_finished(&class->cached[j].uses, pool->device)) {
        if (!wait) continue;
        const mpg_uses *uses = &class->cached[j].uses;
        if (give_up_lock) {
          MPG_TRY(mpg_uses_wait(uses, pool->device, false));
          if (j >= class->count || !mpg_uses_finished(&class->cached[j].uses, pool->device))
            continue;
        } else {
          mpg_tick_wait(pool->device, uses->write > uses->read ? uses->write : uses->read, false);
          for (int k = 0; k < uses->num_foreign; k++)
            mpg_tick_wait(uses->foreign[k].device, uses->foreign[k].tick, false);
        }
      }
      release_cached(pool, class, j);
      if (j < class->count) j++; /* another one is there now */
    }
  }
  return MPG_OK;
}

/* The same for all devices whose memory may come from where this one's does. */
static void shrink_all(mpg_pool *pool, bool wait) {
  for (int i = 0; i < mpg_device_count(); i++)
    if (mpg_device_at(i)->backend == pool->device->backend)
      shrink(mpg_device_at(i)->pool, 0, wait, false);
  shrink(pool, 0, wait, false); /* of a device that is only being opened */
}

static const char *bytes_text(size_t bytes, char *buffer, size_t size) {
  static const char *const units[] = {"KiB", "MiB", "GiB", "TiB"};
  double value = (double)bytes;
  int unit = -1;
  while (value >= 1024 && unit < 3) value /= 1024, unit++;
  if (unit < 0)
    snprintf(buffer, size, "%zu bytes", bytes);
  else
    snprintf(buffer, size, "%zu bytes (%.1f %s)", bytes, value, units[unit]);
  return buffer;
}

static mpg_status out_of_memory(const mpg_pool *pool, size_t size) {
  char asked[48], held[48], used[48], limit[48];
  size_t scratch = GET(scratch), bound = GET(limit);
  return mpg_fail(
      MPG_DEVICE_OUT_OF_MEMORY,
      "%s is out of memory: asked for %s; held %s, of which in use %s; limit %s. %s",
      mpg_device_text(pool->device), bytes_text(size, asked, sizeof asked),
      bytes_text(GET(held) + scratch, held, sizeof held),
      bytes_text(GET(in_use) + scratch, used, sizeof used),
      bound ? bytes_text(bound, limit, sizeof limit) : "none",
      bound
          ? "Use smaller batches, spread the model over more devices, or raise the limit."
          : "The machine has no more: use smaller batches, or spread the model over more devices.");
}

static bool fits(const mpg_pool *pool, size_t size) {
  size_t bound = GET(limit), total;
  return !bound || (mpg_size_add(GET(held) + GET(scratch), size, &total) && total <= bound);
}

static mpg_status system_alloc(mpg_pool *pool, size_class *class, size_t size, size_t asked,
                               mpg_block *block) {
  mpg_device *device = pool->device;
  size_t bound = GET(limit);
  if (bound && size > bound) return out_of_memory(pool, asked);
  for (int attempt = 0; attempt < 2 && !fits(pool, size); attempt++)
    shrink(pool, bound - size, attempt == 1, false);
  if (!fits(pool, size)) return out_of_memory(pool, asked);
  MPG_TRY(mpg_grow((void **)&class->cached, &class->capacity, class->blocks + 1,
                   sizeof *class->cached));
  void *memory = NULL;
  mpg_status status;
  for (int attempt = 0; (status = device->backend->allocate(device, size, &memory)) != MPG_OK;
       attempt++) {
    if (status != MPG_DEVICE_OUT_OF_MEMORY) return status;
    if (attempt == 2) return out_of_memory(pool, asked);
    shrink_all(pool, attempt == 1);
  }
  class->blocks++;
  SET(held, GET(held) + size);
  SET(system_allocations, GET(system_allocations) + 1);
  raise_peak(&pool->peak_held, GET(held) + GET(scratch));
  *block = (mpg_block){.memory = memory, .size = size};
  return MPG_OK;
}

/* --- Blocks ----------------------------------------------------------------------------------- */

/* The block at the lowest address of those that need no waiting; class->count: none. The choice
 * depends on the blocks handed out, not on the order in which they came back. So a repeated step
 * gets the same addresses, which captures contain. */
static size_t choose_steady(const mpg_pool *pool, const size_class *class, bool host_access,
                            size_t at, size_t chosen) {
  if (at >= class->count) return chosen;
  const mpg_block *block = &class->cached[at];
  if (chosen < class->count && is_below(&class->cached[chosen], block)) return chosen;
  if (!(host_access || block->uses.num_foreign) || mpg_uses_finished(&block->uses, pool->device))
    return at; /* those below it in the heap are at higher addresses */
  chosen = choose_steady(pool, class, host_access, 2 * at + 1, chosen);
  return choose_steady(pool, class, host_access, 2 * at + 2, chosen);
}

/* Whether the block that came back last can be used without waiting: work on its own device is in
 * order, and no other device reads it. */
static inline bool top_is_good(const mpg_pool *pool, const size_class *class, bool host_access) {
  return !host_access && class->cached[class->count - 1].uses.num_foreign == 0 &&
         !pool->device->captures;
}

/* Chooses the cached block to hand out; class->count: none is suitable. */
static size_t choose(const mpg_pool *pool, const size_class *class, bool host_access) {
  size_t top = class->count - 1;
  const mpg_block *cached = class->cached;
  if (top_is_good(pool, class, host_access)) return top;
  if (pool->device->captures) {
    size_t steady = choose_steady(pool, class, host_access, 0, class->count);
    return steady < class->count || host_access ? steady : top;
  }
  for (size_t i = 0; i < LOOK_BACK && i <= top;
       i++) /* own work comes in order anyway; reads by other devices do not */
    if (mpg_uses_finished(&cached[top - i].uses, pool->device)) return top - i;
  if (host_access) { /* all of them, or else the pool would grow by a block every time work is far
                        behind; the oldest first */
    for (size_t i = 0; i < top; i++)
      if (mpg_uses_finished(&cached[i].uses, pool->device)) return i;
    return class->count;
  }
  for (size_t i = 1; i < LOOK_BACK && i <= top; i++)
    if (cached[top - i].uses.num_foreign == 0) return top - i;
  return top;
}

/* The same when the system may be asked for another one. What is cached grows with the number of
 * sizes; it must not grow with how far a queue is behind as well. */
static size_t choose_bounded(const mpg_pool *pool, const size_class *class, size_t size,
                             bool host_access) {
  size_t chosen = choose(pool, class, host_access);
  if (chosen < class->count || GET(held) - GET(in_use) + size <= MOST_AHEAD * pool->working_set)
    return chosen;
  return choose(pool, class, false);
}

static mpg_status take(mpg_pool *pool, size_class *class, size_t rounded, size_t size,
                       bool host_access, mpg_block *block) {
  if (__builtin_expect(class->count && top_is_good(pool, class, host_access), 1)) {
    *block = class->cached[--class->count];
    return MPG_OK;
  }
  size_t chosen = class->count ? choose_bounded(pool, class, rounded, host_access) : 0;
  if (chosen == class->count) {
    mpg_status status = system_alloc(pool, class, rounded, size, block);
    if (status != MPG_OK) { /* a block that the host must wait for is better than none */
      if (status != MPG_DEVICE_OUT_OF_MEMORY || !class->count) return status;
      *block = class->cached[--class->count];
    }
  } else {
    *block = take_out(pool, class, chosen);
  }
  return MPG_OK;
}

static __attribute__((noinline)) void make_usable(const mpg_pool *pool, size_class *class,
                                                  mpg_block *block) {
  for (size_t i = 0; i < class->count; i++)
    poison(pool, &class->cached[i]); /* work may have finished meanwhile */
  poison(pool, block);
  unpoison(pool, block);
}

mpg_status mpg_pool_alloc(mpg_pool *pool, size_t size, bool host_access, mpg_block *block) {
  if (size == 0 || pool->device->remote) {
    *block = (mpg_block){.memory = MPG_NO_BYTES};
    return MPG_OK;
  }
  int index;
  size_t rounded;
  if (!find_class(size, &index, &rounded)) return out_of_memory(pool, size);
  size_class *class = &pool->classes[index];
  mpg_status status;
  for (bool collected = false;
       (status = take(pool, class, rounded, size, host_access, block)) != MPG_OK;
       collected = true) {
    if (collected || status != MPG_DEVICE_OUT_OF_MEMORY || (GET(limit) && rounded > GET(limit)))
      return status;
    mpg_host_collect(); /* garbage of the host may hold arrays */
  }
  if (__builtin_expect(pool->poison, 0)) make_usable(pool, class, block);
  size_t in_use = GET(in_use) + block->size;
  SET(in_use, in_use);
  if (in_use > pool->working_set) pool->working_set = in_use;
  in_use += GET(scratch);
  if (in_use > GET(peak_in_use)) raise_peak(&pool->peak_in_use, in_use);
  SET(allocations, GET(allocations) + 1);
  size_t bound = GET(limit);
  if (bound && GET(held) + GET(scratch) > bound)
    shrink(pool, bound, false, false); /* scratch has grown meanwhile */
  return MPG_OK;
}

void mpg_pool_free(mpg_pool *pool, const mpg_block *block) {
  if (!block->size) {
    mpg_free(block->uses.foreign);
    return;
  }
  int index;
  size_t rounded;
  bool found = find_class(block->size, &index, &rounded);
  MPG_ASSERT(found && rounded == block->size);
  size_class *class = &pool->classes[index];
  put(pool, class, block);
  if (__builtin_expect(pool->poison, 0)) /* devices that capture are not poisoned */
    poison(pool, &class->cached[class->count - 1]);
  SET(in_use, GET(in_use) - block->size);
}

mpg_status mpg_pool_trim(mpg_pool *pool, bool wait) {
  MPG_TRY(shrink(pool, 0, wait, true));
  if (mpg_device_idle(pool->device)) mpg_device_free_scratch(pool->device);
  return MPG_OK;
}

mpg_status mpg_pool_set_limit(mpg_pool *pool, size_t limit) {
  SET(limit, limit);
  return limit ? shrink(pool, limit, true, true) : MPG_OK;
}

/* Only the host can give cached blocks back, so scratch may go beyond the limit by as
 * much; the host trims at its next allocation. */
mpg_status mpg_pool_resize_scratch(mpg_pool *pool, size_t size) {
  size_t bound = GET(limit), old = GET(scratch), in_use;
  if (size > old && bound && (!mpg_size_add(GET(in_use), size, &in_use) || in_use > bound))
    return out_of_memory(pool, size);
  SET(scratch, size);
  raise_peak(&pool->peak_in_use, GET(in_use) + size);
  raise_peak(&pool->peak_held, GET(held) + size);
  return MPG_OK;
}

void mpg_pool_stats(const mpg_pool *pool, mpg_memory_stats *stats) {
  size_t scratch = GET(scratch);
  *stats = (mpg_memory_stats){.in_use = GET(in_use) + scratch,
                              .peak_in_use = GET(peak_in_use),
                              .held = GET(held) + scratch,
                              .peak_held = GET(peak_held),
                              .limit = GET(limit),
                              .allocations = GET(allocations),
                              .system_allocations = GET(system_allocations)};
}

void mpg_pool_reset_peak(mpg_pool *pool) {
  SET(peak_in_use, GET(in_use) + GET(scratch));
  SET(peak_held, GET(held) + GET(scratch));
}
