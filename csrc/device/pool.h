/* A device's memory pool: caching, in size classes (eight per doubling), with a limit and
 * statistics.
 *
 * Splitting and joining. A request of 1 MiB or more takes a part of a larger cached block, or
 * several adjacent parts joined, if the pool holds much more than its peak use, or has reached its
 * limit. So requests of changing sizes share memory. A segment is the memory of
 * one system allocation; it goes back to the system as a whole.
 *
 * Blocks are reused in program order: a block freed while queued work still uses it is handed out
 * again at once, together with its last uses (mpg_uses), which the new owner must wait for. So
 * freeing never waits. Ownership: a device owns its pool; a block belongs to the caller between
 * alloc and free. Threads: host lock, except for the statistics and mpg_pool_relieve, which any
 * thread may call. Therefore a mutex guards the cache of a pool that the host cannot access.
 */
#ifndef MPG_DEVICE_POOL_H
#define MPG_DEVICE_POOL_H

#include "device/device.h"

/* The work that still touches a block: ticks on its own device, and reads by other devices. */
typedef struct mpg_foreign_read {
  mpg_device *device;
  mpg_tick tick;
} mpg_foreign_read;
typedef struct mpg_uses {
  mpg_tick write;  /* last write, on the block's own device (no other writes) */
  mpg_tick read;   /* last read by its own device */
  int num_foreign; /* reads by other devices still out; finished ones are dropped when a new one is
                      added */
  int capacity;
  mpg_foreign_read
      *foreign; /* one per device; the block's, and kept with it; NULL: there was none */
} mpg_uses;

/* Memory of one system allocation that has been split into blocks, which own it together. */
typedef struct mpg_pool_segment {
  char *memory;
  size_t size;
} mpg_pool_segment;

typedef struct mpg_block {
  void *memory;
  size_t size;               /* bytes reserved, >= bytes asked for */
  mpg_pool_segment *segment; /* contains the block; NULL if the block was never split */
  mpg_uses uses;
  bool poisoned; /* cached and filled with the poison pattern (MPGLUON_POOL_POISON) */
} mpg_block;

/* Makes room for reads by all other devices there are; before the work is queued, as adding one can
 * neither fail nor wait. */
mpg_status mpg_uses_reserve(mpg_uses *uses);
/* Adds a read by `reader` at `tick`. */
void mpg_uses_add_read(mpg_uses *uses, mpg_device *owner, mpg_device *reader, mpg_tick tick);
/* True when nothing queued touches the block any more. */
bool mpg_uses_finished(const mpg_uses *uses, const mpg_device *owner);
/* Waits for the work that uses the block now, as mpg_point_wait does; failures of that work are not
 * reported. What others queue meanwhile is not waited for. The block must stay: its owner, or the
 * caller, holds it. */
mpg_status mpg_uses_wait(const mpg_uses *uses, mpg_device *owner, bool keep_lock);

mpg_status mpg_pool_create(mpg_device *device, mpg_pool **pool); /* new */
void mpg_pool_destroy(mpg_pool *pool);

/* A block of at least `size` bytes (size 0 gives MPG_NO_BYTES, which may be freed). `host_access`:
 * prefers blocks that no queued work touches, even at the price of asking the system, as long as
 * not much more is cached than was ever in use. Fails with MPG_DEVICE_OUT_OF_MEMORY, naming device,
 * bytes asked, held, in use and limit, after having given cached blocks back and tried again (it
 * waits then for queued work that uses cached blocks, holding the host lock), and after the host
 * has collected its garbage, which lets others in. */
mpg_status mpg_pool_alloc(mpg_pool *pool, size_t size, bool host_access, mpg_block *block);
void mpg_pool_free(mpg_pool *pool, const mpg_block *block);
/* The bytes that a block of `size` bytes takes. */
size_t mpg_pool_block_size(size_t size);

/* Gives cached blocks back to the system; waits for those still in use by queued work when `wait`.
 */
mpg_status mpg_pool_trim(mpg_pool *pool, bool wait);
mpg_status mpg_pool_set_limit(mpg_pool *pool,
                              size_t limit); /* bytes held; 0: none. Trims if more is held. */
void mpg_pool_stats(const mpg_pool *pool, mpg_memory_stats *stats);
void mpg_pool_reset_peak(mpg_pool *pool);

/* Returns at least `size` bytes of unused cached blocks to the system if possible, from this pool
 * first, then from pools on the same hardware. Returns the bytes released: 0 if no cached block is
 * unused, or if the host can access the pool's memory. Any thread. */
size_t mpg_pool_relieve(mpg_pool *pool, size_t size);

#endif
