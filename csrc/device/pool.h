/* Memory pool of a device: caching allocator with size classes (eight per doubling), a limit and
 * statistics.
 *
 * Splitting and coalescing. If the pool holds much more than its peak use, or has reached its
 * limit, an allocation of 1 MiB or more splits a larger cached block or coalesces adjacent ones. So
 * allocations of changing sizes reuse the same memory. A segment is the memory of one system
 * allocation that has been split. It can be returned to the system only as a whole.
 *
 * Blocks are reused in program order. A block may be freed and handed out again while queued work
 * still uses it, so freeing never waits. The block carries its last uses (mpg_uses), which the new
 * owner must wait for.
 *
 * Ownership: a device owns its pool; a block belongs to the caller between alloc and free. Threads:
 * callers hold the host lock, except for the statistics and mpg_pool_relieve, which any thread may
 * call. Because of mpg_pool_relieve, a mutex guards the cache if the host cannot access the memory.
 */
#ifndef MPG_DEVICE_POOL_H
#define MPG_DEVICE_POOL_H

#include "device/device.h"

/* Latest read of a block by a device other than the block's own. */
typedef struct mpg_foreign_read {
  mpg_device *device;
  mpg_tick tick;
} mpg_foreign_read;
/* The queued work that uses a block. */
typedef struct mpg_uses {
  mpg_tick write; /* last write; only the block's own device writes to it */
  mpg_tick read;  /* last read by the block's own device */
  /* Number of entries in `foreign`. Finished reads are removed when a read is added. */
  int num_foreign;
  int capacity;
  /* One entry per device. Owned by the block and kept when it is reused; NULL until the first
   * foreign read. */
  mpg_foreign_read *foreign;
} mpg_uses;

/* Memory of one system allocation that has been split into blocks. The struct is freed when all its
 * blocks have been coalesced into one. */
typedef struct mpg_pool_segment {
  char *memory;
  size_t size;
} mpg_pool_segment;

typedef struct mpg_block {
  void *memory;
  size_t size;               /* bytes reserved, >= bytes requested */
  mpg_pool_segment *segment; /* contains the block; NULL if the block was never split */
  mpg_uses uses;
  bool poisoned; /* filled with a pattern since it was freed (MPGLUON_POOL_POISON) */
} mpg_block;

/* Reserves entries for reads by all other devices, so that mpg_uses_add_read cannot fail. Called
 * before the work is queued. */
mpg_status mpg_uses_reserve(mpg_uses *uses);
/* Adds a read by `reader` at `tick`. */
void mpg_uses_add_read(mpg_uses *uses, mpg_device *owner, mpg_device *reader, mpg_tick tick);
/* True if all work that uses the block has finished. */
bool mpg_uses_finished(const mpg_uses *uses, const mpg_device *owner);
/* Waits for the work that uses the block at the time of the call, as mpg_point_wait does, but does
 * not report failures of that work. Ignores work that is queued during the wait. The caller must
 * keep the block allocated. */
mpg_status mpg_uses_wait(const mpg_uses *uses, mpg_device *owner, bool keep_lock);

mpg_status mpg_pool_create(mpg_device *device, mpg_pool **pool); /* owned by the caller */
void mpg_pool_destroy(mpg_pool *pool);

/* Allocates a block of at least `size` bytes; size 0 gives MPG_NO_BYTES, which may be freed. If
 * `host_access`, the host will use the block at once, so blocks without queued uses are preferred.
 * If all cached blocks have queued uses, the pool allocates from the system, unless the cache is
 * much larger than the peak use.
 *
 * If memory is short, returns cached blocks to the system. If necessary, waits for queued work that
 * uses the blocks, with the host lock held. If that is not enough, lets the host collect garbage,
 * which releases the host lock. If memory is still short, fails with MPG_DEVICE_OUT_OF_MEMORY. The
 * error text names the device and the bytes requested, held, in use and allowed. */
mpg_status mpg_pool_alloc(mpg_pool *pool, size_t size, bool host_access, mpg_block *block);
void mpg_pool_free(mpg_pool *pool, const mpg_block *block);
/* Returns the size of the block that a request for `size` bytes gets: the block size of its size
 * class. */
size_t mpg_pool_block_size(size_t size);

/* Returns cached blocks to the system. If `wait`, this includes blocks that queued work still uses,
 * after waiting for that work. */
mpg_status mpg_pool_trim(mpg_pool *pool, bool wait);
/* Limits the bytes held; 0 means unlimited. Trims the cache if the pool holds more than the
 * limit. */
mpg_status mpg_pool_set_limit(mpg_pool *pool, size_t limit);
void mpg_pool_stats(const mpg_pool *pool, mpg_memory_stats *stats);
void mpg_pool_reset_peak(mpg_pool *pool);

/* Returns unused cached blocks of at least `size` bytes in total to the system, first from this
 * pool, then from other pools on the same hardware. Never waits. Returns the number of bytes
 * released, which may be smaller than `size`. Does nothing and returns 0 if the host can access the
 * pool's memory. May be called from any thread. */
size_t mpg_pool_relieve(mpg_pool *pool, size_t size);

#endif
