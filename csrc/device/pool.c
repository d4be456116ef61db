/* The memory pool of a device: size classes, a cache, a limit and statistics. */
#include "device/pool.h"

#include <pthread.h>
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

/* Block sizes: multiples of 64 up to 512, then eight classes per doubling. */
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
  /* Once cached memory exceeds this multiple of the peak use, a request for host access reuses a
   * cached block and waits for its uses, instead of allocating. */
  MOST_AHEAD = 4,
  /* Before a large allocation, trims a pool that holds more than this multiple of the peak use. */
  MOST_CACHED = 3,
  LARGE = 1 << 20, /* smallest request that may split or coalesce blocks */
  /* Minimum size of each part of a split block. Equals the step between block sizes just above
   * LARGE. */
  LEAST_PART = LARGE / 8,
};

/* The blocks of one size class. A block that was split off a segment (the memory of one system
 * allocation) can have any size. It belongs to the class with the largest block size that fits in
 * it. */
typedef struct size_class {
  /* A stack, so that the block freed last, which may still be in the CPU's cache, is reused first.
   * On a device that captures work, a binary heap with the lowest address first. */
  mpg_block *cached;
  size_t count;
  size_t capacity; /* capacity of `cached`; >= blocks, so that freeing a block cannot fail */
  size_t blocks;   /* number of blocks of this class, cached or in use */
} size_class;

/* Each atomic has one writer at a time, so adding needs only a load and a store. The writer is the
 * host, except for `scratch` (the thread that runs the device's work) and `held` (the holder of the
 * mutex, if the pool is guarded). The peaks have two writers; see raise_peak. */
struct mpg_pool {
  mpg_device *device;
  bool guarded; /* the mutex guards the classes and `held`; otherwise the host lock does */
  pthread_mutex_t mutex;
  bool poison; /* fill cached memory with a pattern, to detect writes after free */
  _Atomic size_t in_use, held, scratch; /* in_use and held exclude scratch */
  _Atomic size_t peak_in_use, peak_held;
  size_t working_set; /* largest in_use so far, never reset; guarded by the host lock */
  _Atomic size_t limit;
  _Atomic uint64_t allocations, system_allocations;
  size_class classes[NUM_CLASSES];
};

#define GET(field) atomic_load_explicit(&pool->field, memory_order_relaxed)
#define SET(field, value) atomic_store_explicit(&pool->field, (value), memory_order_relaxed)

static inline void lock(mpg_pool *pool) {
  if (__builtin_expect(pool->guarded, 0)) pthread_mutex_lock(&pool->mutex);
}
static inline void unlock(mpg_pool *pool) {
  if (__builtin_expect(pool->guarded, 0)) pthread_mutex_unlock(&pool->mutex);
}

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
  MPG_ASSERT(uses->num_foreign < uses->capacity); /* mpg_uses_reserve was called */
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
  /* Copies the reads, because another thread may change or reallocate uses->foreign while the lock
   * is released. */
  mpg_foreign_read now[MOST];
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

/* Fills a freed block with the pattern, unless queued work still uses the block. */
static __attribute__((noinline)) void poison(const mpg_pool *pool, mpg_block *block) {
  /* the memory is inaccessible in a forked child if it is in files */
  if (!pool->device->backend->host_accessible) return;
  if (!pool->poison || block->poisoned || !mpg_uses_finished(&block->uses, pool->device)) return;
  memset(block->memory, POISON, block->size);
  ASAN_POISON_MEMORY_REGION(block->memory, block->size);
  block->poisoned = true;
}

/* Checks a poisoned block before it is used or returned to the system. Aborts if the pattern is
 * damaged, because this means a write after free. */
static void unpoison(const mpg_pool *pool, mpg_block *block) {
  if (!block->poisoned || !pool->device->backend->host_accessible) return;
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

/* Finds the class for requests of `size` >= 1 bytes. Sets *index to the class and *rounded to its
 * block size. Returns false if `size` exceeds the largest class. */
static bool find_class(size_t size, int *index, size_t *rounded) {
  if (size <= SMALL_LIMIT) {
    *index = (int)((size + SMALL_STEP - 1) / SMALL_STEP) - 1;
    *rounded = (size_t)(*index + 1) * SMALL_STEP;
    return true;
  }
  if (size > (size_t)1 << LARGEST_BITS) return false;
  int bits = 63 - __builtin_clzll(size - 1); /* 2^bits < size <= 2^(bits + 1) */
  int step_bits = bits - 3;
  size_t steps = ((size - 1) >> step_bits) - 7; /* 1..8: number of steps above 2^bits */
  *index = SMALL_CLASSES + (bits - SMALL_BITS) * 8 + (int)steps - 1;
  *rounded = ((size_t)1 << bits) + (steps << step_bits);
  return true;
}

/* Returns the largest class whose block size is at most `size`. */
static int class_of(size_t size) {
  if (size <= SMALL_LIMIT) return (int)(size / SMALL_STEP) - 1;
  int bits = 63 - __builtin_clzll(size); /* 2^bits <= size < 2^(bits + 1) */
  return SMALL_CLASSES + (bits - SMALL_BITS) * 8 + (int)(size >> (bits - 3)) - 9;
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
  (*pool)->guarded = !device->backend->host_accessible;
  pthread_mutex_init(&(*pool)->mutex, NULL);
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
  pthread_mutex_destroy(&pool->mutex);
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

/* --- Parts of segments ------------------------------------------------------------------------ */

/* True if the block can be used without waiting. Work on the pool's own device runs in order, so
 * only access by the host and reads by other devices can require a wait. */
static bool is_ready(const mpg_pool *pool, const mpg_block *block, bool host_access) {
  return !(host_access || block->uses.num_foreign) || mpg_uses_finished(&block->uses, pool->device);
}

static bool reserve_block(size_class *class) {
  return mpg_grow((void **)&class->cached, &class->capacity, class->blocks + 1,
                  sizeof *class->cached) == MPG_OK;
}

static int by_address(const void *a, const void *b) {
  const mpg_block *first = a, *second = b;
  return is_below(first, second) ? -1 : is_below(second, first);
}

/* Coalesces `a` with `b`, which directly follows it in the segment. Returns false if another device
 * still reads one of them, or if host memory is exhausted. */
static bool join_pair(mpg_pool *pool, mpg_block *a, mpg_block *b) {
  size_class *joined = &pool->classes[class_of(a->size + b->size)];
  drop_finished(&a->uses);
  drop_finished(&b->uses);
  if (a->uses.num_foreign || b->uses.num_foreign || !reserve_block(joined)) return false;
  joined->blocks++;
  pool->classes[class_of(a->size)].blocks--;
  pool->classes[class_of(b->size)].blocks--;
  unpoison(pool, a);
  unpoison(pool, b);
  mpg_free(b->uses.foreign);
  a->size += b->size;
  if (b->uses.write > a->uses.write) a->uses.write = b->uses.write;
  if (b->uses.read > a->uses.read) a->uses.read = b->uses.read;
  return true;
}

/* Coalesces adjacent cached blocks of the same segment. Returns false if no blocks were
 * coalesced. */
static bool join(mpg_pool *pool) {
  const int first = class_of(LEAST_PART);
  size_t count = 0, kept = 0;
  for (int i = first; i < NUM_CLASSES; i++)
    for (size_t j = 0; j < pool->classes[i].count; j++)
      count += pool->classes[i].cached[j].segment != NULL;
  mpg_block *parts = count > 1 ? mpg_malloc(count * sizeof *parts) : NULL;
  if (!parts) return false;
  count = 0;
  for (int i = first; i < NUM_CLASSES; i++)
    for (size_t j = pool->classes[i].count; j-- > 0;)
      if (pool->classes[i].cached[j].segment) parts[count++] = take_out(pool, &pool->classes[i], j);
  qsort(parts, count, sizeof *parts, by_address);
  for (size_t i = 1; i < count; i++) {
    mpg_block *last = &parts[kept];
    if (parts[i].segment != last->segment ||
        (char *)last->memory + last->size != (char *)parts[i].memory ||
        !join_pair(pool, last, &parts[i]))
      parts[++kept] = parts[i];
  }
  kept++;
  for (size_t i = 0; i < kept; i++) {
    if (parts[i].size == parts[i].segment->size) {
      mpg_free(parts[i].segment);
      parts[i].segment = NULL;
    }
    put(pool, &pool->classes[class_of(parts[i].size)], &parts[i]);
  }
  mpg_free(parts);
  return kept < count;
}

/* Removes cached[at] from a class and splits it. *block gets `size` bytes, and the remainder is
 * cached. A remainder smaller than LEAST_PART stays with *block. Returns false if host memory for
 * the bookkeeping is exhausted. */
static bool cut(mpg_pool *pool, size_class *class, size_t at, size_t size, mpg_block *block) {
  size_t rest_size = class->cached[at].size - size;
  if (rest_size < LEAST_PART) {
    *block = take_out(pool, class, at);
    return true;
  }
  size_class *rest_class = &pool->classes[class_of(rest_size)],
             *own_class = &pool->classes[class_of(size)];
  mpg_pool_segment *segment = class->cached[at].segment;
  if (!reserve_block(rest_class)) return false;
  rest_class->blocks++;
  bool reserved = reserve_block(own_class);
  if (!reserved || (!segment && !(segment = mpg_malloc(sizeof *segment)))) {
    rest_class->blocks--;
    return false;
  }
  own_class->blocks++;
  class->blocks--;
  *block = take_out(pool, class, at);
  unpoison(pool, block);
  if (!block->segment) *segment = (mpg_pool_segment){block->memory, block->size};
  block->segment = segment;
  block->size = size;
  /* other devices have finished reading, because is_ready returned true */
  block->uses.num_foreign = 0;
  mpg_block rest = {.memory = (char *)block->memory + size,
                    .size = rest_size,
                    .segment = segment,
                    .uses = {.write = block->uses.write, .read = block->uses.read}};
  put(pool, rest_class, &rest);
  return true;
}

/* --- System memory ---------------------------------------------------------------------------- */

/* Atomic maximum. It must be atomic because the device's worker raises the peaks when scratch
 * grows. */
static void raise_peak(_Atomic size_t *peak, size_t value) {
  size_t seen = atomic_load_explicit(peak, memory_order_relaxed);
  while (value > seen && !atomic_compare_exchange_weak_explicit(
                             peak, &seen, value, memory_order_relaxed, memory_order_relaxed)) {}
}

static size_t release_cached(mpg_pool *pool, size_class *class, size_t index) {
  mpg_block block = take_out(pool, class, index);
  class->blocks--;
  SET(held, GET(held) - block.size);
  unpoison(pool, &block);
  mpg_free(block.uses.foreign);
  pool->device->backend->free(pool->device, block.memory, block.size);
  return block.size;
}

/* Returns the index of a cached block of the class. If `used`, returns a block that queued work
 * still uses. Otherwise returns an unused block that is not part of a segment, because a part of a
 * segment cannot be returned to the system. Returns class->count if no block qualifies. */
static size_t find_in(const mpg_pool *pool, const size_class *class, bool used) {
  for (size_t j = class->count; j-- > 0;)
    if ((used || !class->cached[j].segment) &&
        mpg_uses_finished(&class->cached[j].uses, pool->device) != used)
      return j;
  return class->count;
}

/* Searches for a cached block as find_in does. Returns the class of the smallest block of at least
 * `size` bytes, or of the largest block if all are smaller. Returns NULL if no block qualifies. */
static size_class *find_cached(mpg_pool *pool, size_t size, bool used, size_t *index) {
  int first = size >= (size_t)1 << LARGEST_BITS ? NUM_CLASSES - 1
              : size < SMALL_STEP               ? 0
                                                : class_of(size);
  for (int i = first; i < NUM_CLASSES; i++)
    if ((*index = find_in(pool, &pool->classes[i], used)) < pool->classes[i].count)
      return &pool->classes[i];
  for (int i = first; i-- > 0;)
    if ((*index = find_in(pool, &pool->classes[i], used)) < pool->classes[i].count)
      return &pool->classes[i];
  return NULL;
}

/* Waits for the work that uses a cached block. Unlocks the pool during the wait. */
static mpg_status wait_for_uses(mpg_pool *pool, const mpg_uses *cached, bool give_up_lock) {
  enum { MOST = 64 };
  mpg_foreign_read foreign[MOST];
  mpg_uses uses = *cached;
  if (uses.num_foreign > MOST) uses.num_foreign = MOST;
  for (int i = 0; i < uses.num_foreign; i++) foreign[i] = uses.foreign[i];
  uses.foreign = foreign;
  unlock(pool);
  mpg_status status = MPG_OK;
  if (give_up_lock) {
    status = mpg_uses_wait(&uses, pool->device, false);
  } else {
    mpg_tick_wait(pool->device, uses.write > uses.read ? uses.write : uses.read, false);
    for (int i = 0; i < uses.num_foreign; i++)
      mpg_tick_wait(foreign[i].device, foreign[i].tick, false);
  }
  lock(pool);
  return status;
}

/* Returns cached blocks of at least `size` bytes in total to the system. Sets *given to the total.
 * If `wait`, waits for blocks that queued work still uses; otherwise skips these blocks. */
static mpg_status give_back(mpg_pool *pool, size_t size, bool wait, bool give_up_lock,
                            size_t *given) {
  mpg_status status = MPG_OK;
  /* Bounds the number of waits, because other threads may add blocks while the host lock is
   * released. */
  size_t most_waits = 0;
  size_t index;
  size_class *class;
  *given = 0;
  lock(pool);
  for (int i = 0; i < NUM_CLASSES && wait; i++) most_waits += pool->classes[i].count;
  while (*given < size && status == MPG_OK) {
    if ((class = find_cached(pool, size - *given, false, &index)))
      *given += release_cached(pool, class, index);
    else if (join(pool))
      continue;
    else if (most_waits && (class = find_cached(pool, size - *given, true, &index)))
      most_waits--, status = wait_for_uses(pool, &class->cached[index].uses, give_up_lock);
    else
      break;
  }
  unlock(pool);
  return status;
}

/* Returns cached blocks to the system until `held` plus scratch is at most `target`. */
static mpg_status shrink(mpg_pool *pool, size_t target, bool wait, bool give_up_lock) {
  size_t held = GET(held) + GET(scratch), given;
  return held > target ? give_back(pool, held - target, wait, give_up_lock, &given) : MPG_OK;
}

/* True if both devices allocate from the same physical memory. Directories may be on the same file
 * system. */
static bool shares_memory(mpg_device *a, mpg_device *b) {
  if (a->backend != b->backend || !mpg_device_directory(a) != !mpg_device_directory(b))
    return false;
  const mpg_sharing *sharing = a->backend->sharing;
  return !sharing || sharing->card(a) == sharing->card(b);
}

/* Calls give_back for this pool, then for other pools on the same hardware, until `size` bytes have
 * been released. Returns the number of bytes released. */
static size_t give_back_shared(mpg_pool *pool, size_t size, bool wait) {
  size_t total, given;
  give_back(pool, size, wait, false, &total);
  for (mpg_device *other = mpg_device_newest(); other && total < size; other = other->older) {
    if (other == pool->device || !shares_memory(other, pool->device)) continue;
    give_back(other->pool, size - total, wait, false, &given);
    total += given;
  }
  return total;
}

size_t mpg_pool_relieve(mpg_pool *pool, size_t size) {
  return pool->guarded ? give_back_shared(pool, size, false) : 0;
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
  char asked[48], held[48], used[48], limit[48], full[512];
  const char *directory = mpg_device_directory(pool->device);
  if (directory)
    snprintf(
        full, sizeof full,
        "No file of this size can be added to the directory '%s'; use one with more free space.",
        directory);
  size_t scratch = GET(scratch), bound = GET(limit);
  return mpg_fail(
      MPG_DEVICE_OUT_OF_MEMORY,
      "%s is out of memory: asked for %s; held %s, of which in use %s; limit %s. %s",
      mpg_device_text(pool->device), bytes_text(size, asked, sizeof asked),
      bytes_text(GET(held) + scratch, held, sizeof held),
      bytes_text(GET(in_use) + scratch, used, sizeof used),
      bound ? bytes_text(bound, limit, sizeof limit) : "none",
      bound ? "Use smaller batches, spread the model over more devices, or raise the limit."
      : directory
          ? full
          : "The machine has no more memory: use smaller batches, or spread the model over more "
            "devices.");
}

static bool fits(const mpg_pool *pool, size_t size) {
  size_t bound = GET(limit), total;
  return !bound || (mpg_size_add(GET(held) + GET(scratch), size, &total) && total <= bound);
}

/* Returns the peak use if `size` more bytes are allocated now. */
static size_t largest_use(const mpg_pool *pool, size_t size) {
  size_t used = GET(in_use) + size;
  return used > pool->working_set ? used : pool->working_set;
}

/* Trims the cache until the pool holds at most MOST_CACHED times the peak use. Without this,
 * requests of growing sizes would fill the cache with blocks that are too small to be reused. */
static void give_back_outgrown(mpg_pool *pool, size_t size) {
  size_t most = MOST_CACHED * largest_use(pool, size), held = GET(held) + size, given;
  if (held > most) give_back(pool, held - most, false, false, &given);
}

static mpg_status system_alloc(mpg_pool *pool, size_class *class, size_t size, size_t asked,
                               mpg_block *block) {
  mpg_device *device = pool->device;
  size_t bound = GET(limit);
  if (bound && size > bound) return out_of_memory(pool, asked);
  if (size >= LARGE) give_back_outgrown(pool, size);
  for (int attempt = 0; attempt < 2 && !fits(pool, size); attempt++)
    shrink(pool, bound - size, attempt == 1, false);
  if (!fits(pool, size)) return out_of_memory(pool, asked);
  lock(pool);
  bool reserved = reserve_block(class);
  unlock(pool);
  if (!reserved) return mpg_out_of_host_memory(sizeof *class->cached);
  void *memory = NULL;
  mpg_status status;
  while ((status = device->backend->allocate(device, size, &memory)) != MPG_OK) {
    if (status != MPG_DEVICE_OUT_OF_MEMORY) return status;
    if (!give_back_shared(pool, size, false) && !give_back_shared(pool, size, true))
      return out_of_memory(pool, asked);
  }
  lock(pool);
  class->blocks++;
  SET(held, GET(held) + size);
  unlock(pool);
  SET(system_allocations, GET(system_allocations) + 1);
  raise_peak(&pool->peak_held, GET(held) + GET(scratch));
  *block = (mpg_block){.memory = memory, .size = size};
  return MPG_OK;
}

/* --- Blocks ----------------------------------------------------------------------------------- */

/* Returns the index of the ready block with the lowest address, or class->count if none is ready.
 * The choice depends on which blocks are in use, but not on the order in which they were freed. So
 * a repeated step gets the same addresses, and its captures, which contain the addresses, stay
 * valid. */
static size_t choose_steady(const mpg_pool *pool, const size_class *class, bool host_access,
                            size_t at, size_t chosen) {
  if (at >= class->count) return chosen;
  const mpg_block *block = &class->cached[at];
  if (chosen < class->count && is_below(&class->cached[chosen], block)) return chosen;
  /* The children of this block in the heap have higher addresses, so the search ends here. */
  if (is_ready(pool, block, host_access)) return at;
  chosen = choose_steady(pool, class, host_access, 2 * at + 1, chosen);
  return choose_steady(pool, class, host_access, 2 * at + 2, chosen);
}

/* True if the block freed last can be used without waiting. Work on the pool's own device runs in
 * order, so only reads by other devices matter. */
static inline bool top_is_good(const mpg_pool *pool, const size_class *class, bool host_access) {
  return !host_access && class->cached[class->count - 1].uses.num_foreign == 0 &&
         !pool->device->captures;
}

/* Chooses the cached block to hand out. Returns class->count if none is suitable. */
static size_t choose(const mpg_pool *pool, const size_class *class, bool host_access) {
  size_t top = class->count - 1;
  const mpg_block *cached = class->cached;
  if (top_is_good(pool, class, host_access)) return top;
  if (pool->device->captures) {
    size_t steady = choose_steady(pool, class, host_access, 0, class->count);
    return steady < class->count || host_access ? steady : top;
  }
  /* Prefers a block that no work uses, among the LOOK_BACK blocks freed last. */
  for (size_t i = 0; i < LOOK_BACK && i <= top; i++)
    if (mpg_uses_finished(&cached[top - i].uses, pool->device)) return top - i;
  /* Searches all blocks from the bottom of the stack. Otherwise the pool would grow by a block
   * whenever the blocks freed last are still in use. */
  if (host_access) {
    for (size_t i = 0; i < top; i++)
      if (mpg_uses_finished(&cached[i].uses, pool->device)) return i;
    return class->count;
  }
  for (size_t i = 1; i < LOOK_BACK && i <= top; i++)
    if (cached[top - i].uses.num_foreign == 0) return top - i;
  return top;
}

/* Like choose, but may choose a block that the host must wait for if the cache is much larger than
 * the peak use. Without this bound, the cache would grow with the length of the queues. */
static size_t choose_bounded(const mpg_pool *pool, const size_class *class, size_t size,
                             bool host_access) {
  size_t chosen = choose(pool, class, host_access);
  if (chosen < class->count || GET(held) - GET(in_use) + size <= MOST_AHEAD * pool->working_set)
    return chosen;
  return choose(pool, class, false);
}

/* True if the pool should split cached blocks rather than allocate from the system. This is the
 * case at the limit, or if the pool would hold more than 1.5 times its peak use. Below that, blocks
 * are not split, so that repeated steps reuse the same blocks. */
static bool holds_much(const mpg_pool *pool, size_t size) {
  size_t used = largest_use(pool, size);
  return GET(held) + size > used + used / 2 || !fits(pool, size);
}

/* Takes a ready cached block of the smallest class that fits, and splits it (best fit). If no block
 * fits, coalesces adjacent blocks and tries again. */
static bool carve(mpg_pool *pool, size_t size, bool host_access, mpg_block *block) {
  do {
    for (int i = class_of(size); i < NUM_CLASSES; i++) {
      size_class *class = &pool->classes[i];
      size_t at = class->count;
      if (pool->device->captures)
        at = choose_steady(pool, class, host_access, 0, at);
      else
        while (at-- > 0 && !is_ready(pool, &class->cached[at], host_access)) {}
      if (at < class->count) return cut(pool, class, at, size, block);
    }
  } while (join(pool));
  return false;
}

static inline bool take_cached(mpg_pool *pool, size_class *class, size_t rounded, bool host_access,
                               mpg_block *block) {
  if (__builtin_expect(class->count && top_is_good(pool, class, host_access), 1)) {
    *block = class->cached[--class->count];
    return true;
  }
  size_t chosen = class->count ? choose_bounded(pool, class, rounded, host_access) : 0;
  if (chosen < class->count) {
    *block = take_out(pool, class, chosen);
    return true;
  }
  return rounded >= LARGE && holds_much(pool, rounded) && carve(pool, rounded, host_access, block);
}

/* Takes any cached block that fits, even if the caller must wait for its uses. Called when the
 * system is out of memory. */
static bool take_any(mpg_pool *pool, size_class *class, size_t rounded, mpg_block *block) {
  lock(pool);
  bool taken = rounded >= LARGE && carve(pool, rounded, false, block);
  if (!taken && class->count) {
    *block = class->cached[--class->count];
    taken = true;
  }
  unlock(pool);
  return taken;
}

static mpg_status take(mpg_pool *pool, size_class *class, size_t rounded, size_t size,
                       bool host_access, mpg_block *block) {
  lock(pool);
  bool cached = take_cached(pool, class, rounded, host_access, block);
  unlock(pool);
  if (__builtin_expect(cached, 1)) return MPG_OK;
  mpg_status status = system_alloc(pool, class, rounded, size, block);
  return status == MPG_DEVICE_OUT_OF_MEMORY && take_any(pool, class, rounded, block) ? MPG_OK
                                                                                     : status;
}

static __attribute__((noinline)) void make_usable(const mpg_pool *pool, size_class *class,
                                                  mpg_block *block) {
  /* Poisons cached blocks that could not be poisoned when they were freed, because queued work
   * still used them. */
  for (size_t i = 0; i < class->count; i++) poison(pool, &class->cached[i]);
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
    mpg_host_collect(); /* uncollected garbage may hold arrays */
  }
  if (__builtin_expect(pool->poison, 0)) make_usable(pool, class, block);
  size_t in_use = GET(in_use) + block->size;
  SET(in_use, in_use);
  if (in_use > pool->working_set) pool->working_set = in_use;
  in_use += GET(scratch);
  if (in_use > GET(peak_in_use)) raise_peak(&pool->peak_in_use, in_use);
  SET(allocations, GET(allocations) + 1);
  size_t bound = GET(limit);
  /* Scratch may have grown since the last check, so the pool may hold more than its limit. */
  if (bound && GET(held) + GET(scratch) > bound) shrink(pool, bound, false, false);
  return MPG_OK;
}

void mpg_pool_free(mpg_pool *pool, const mpg_block *block) {
  if (!block->size) {
    mpg_free(block->uses.foreign);
    return;
  }
  size_class *class = &pool->classes[class_of(block->size)];
  lock(pool);
  put(pool, class, block);
  unlock(pool);
  /* The block is on top of the stack. (Devices that capture use heaps, but their pools are never
   * poisoned.) */
  if (__builtin_expect(pool->poison, 0)) poison(pool, &class->cached[class->count - 1]);
  SET(in_use, GET(in_use) - block->size);
}

mpg_status mpg_pool_trim(mpg_pool *pool, bool wait) { return shrink(pool, 0, wait, true); }

mpg_status mpg_pool_set_limit(mpg_pool *pool, size_t limit) {
  SET(limit, limit);
  return limit ? shrink(pool, limit, true, true) : MPG_OK;
}

/* If the pool has no mutex, this thread cannot release cached blocks. Then the memory held may
 * exceed the limit until the host's next allocation trims the cache. */
mpg_status mpg_pool_resize_scratch(mpg_pool *pool, size_t size) {
  size_t bound = GET(limit), old = GET(scratch), in_use;
  if (size > old && bound && (!mpg_size_add(GET(in_use), size, &in_use) || in_use > bound))
    return out_of_memory(pool, size);
  SET(scratch, size);
  if (size > old && bound && GET(held) + size > bound && pool->guarded)
    shrink(pool, bound, false, false);
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
