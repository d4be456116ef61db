/* Memory pool of a device: caching allocator with size classes (eight per doubling), a limit and
 * statistics.
 *
 * Splitting and coalescing. If the pool holds much more than its peak use, or has reached its
 * limit, a request of 1 MiB or more takes a part of a larger cached block, or several adjacent
 * parts joined. So requests of changing sizes share memory. A segment is the memory of one system
 * allocation; it is returned to the system as a whole.
 *
 * Blocks are reused in program order. A block freed while queued work still uses it can be handed
 * out again at once, together with its last uses (mpg_uses), which the new owner must wait for. So
 * freeing never waits.
 *
 * Ownership: a device owns its pool; a block belongs to the caller between alloc and free. Threads:
 * host lock, except for the statistics and mpg_pool_relieve, which any thread may call. Therefore a
 * mutex guards the cache of a pool whose memory the host cannot access.
 */
#ifndef MPG_DEVICE_POOL_H
#define MPG_DEVICE_POOL_H

#include "device/device.h"

/* The queued work that uses a block: ticks on its own device, and reads by other devices. */
typedef struct mpg_foreign_read {
  mpg_device *device;
  mpg_tick tick;
} mpg_foreign_read;
typedef struct mpg_uses {
  mpg_tick write; /* last write, on the block's own device (no other writes) */
  mpg_tick read;  /* last read by its own device */
  /* Unfinished reads by other devices; finished ones are dropped when a read is added. */
  int num_foreign;
  int capacity;
  /* One entry per device. Owned by the block and kept when it is reused; NULL until the first
   * foreign read. */
  mpg_foreign_read *foreign;
} mpg_uses;

/* Memory of one system allocation that has been split into blocks. The blocks own it jointly. */
typedef struct mpg_pool_segment {
  char *memory;
  size_t size;
} mpg_pool_segment;

typedef struct mpg_block {
  void *memory;
  size_t size;               /* bytes reserved, >= bytes requested */
  mpg_pool_segment *segment; /* contains the block; NULL if the block was never split */
  mpg_uses uses;
  bool poisoned; /* cached and filled with the poison pattern (MPGLUON_POOL_POISON) */
} mpg_block;

/* Reserves entries for reads by all other devices. Called before the work is queued, because adding
 * a read must neither fail nor wait. */
mpg_status mpg_uses_reserve(mpg_uses *uses);
/* Adds a read by `reader` at `tick`. */
void mpg_uses_add_read(mpg_uses *uses, mpg_device *owner, mpg_device *reader, mpg_tick tick);
/* True if no queued work uses the block any more. */
bool mpg_uses_finished(const mpg_uses *uses, const mpg_device *owner);
/* Waits for the work that uses the block at the time of the call, as mpg_point_wait does, but does
 * not report failures of that work. Does not wait for work queued meanwhile. The block must stay
 * allocated: the caller or its owner holds it. */
mpg_status mpg_uses_wait(const mpg_uses *uses, mpg_device *owner, bool keep_lock);

mpg_status mpg_pool_create(mpg_device *device, mpg_pool **pool); /* owned by the caller */
void mpg_pool_destroy(mpg_pool *pool);

/* Allocates a block of at least `size` bytes; size 0 gives MPG_NO_BYTES, which may be freed.
 * `host_access` prefers blocks without queued uses, even if that means a system allocation, as long
 * as the cache is not much larger than the peak use. On shortage, first returns cached blocks to
 * the system (waiting for queued work that uses them, with the host lock held), then lets the host
 * collect garbage, which releases the host lock. Then fails with MPG_DEVICE_OUT_OF_MEMORY; the
 * error text names the device and the bytes requested, held, in use and allowed. */
mpg_status mpg_pool_alloc(mpg_pool *pool, size_t size, bool host_access, mpg_block *block);
void mpg_pool_free(mpg_pool *pool, const mpg_block *block);
/* Returns the size of the block that serves `size` bytes. */
size_t mpg_pool_block_size(size_t size);

/* Returns cached blocks to the system. If `wait`, waits for those that queued work still uses. */
mpg_status mpg_pool_trim(mpg_pool *pool, bool wait);
/* Limits the bytes held; 0 means unlimited. Trims the cache if more is held. */
mpg_status mpg_pool_set_limit(mpg_pool *pool, size_t limit);
void mpg_pool_stats(const mpg_pool *pool, mpg_memory_stats *stats);
void mpg_pool_reset_peak(mpg_pool *pool);

/* Returns at least `size` bytes of unused cached blocks to the system if possible, from this pool
 * first, then from pools on the same hardware. Returns the bytes released: 0 if no cached block is
 * unused, or if the host can access the pool's memory. Any thread. */
size_t mpg_pool_relieve(mpg_pool *pool, size_t size);

#endif
