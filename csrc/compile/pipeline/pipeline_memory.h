/* Memory of micro-batches in flight: reuse of spare lanes, and the peak memory of a schedule.
 *
 * A block is taken when the first segment that uses it is queued, and released after the last one.
 * A released lane (an array that one device pushes to another) becomes a spare lane, which other
 * micro-batches may take. A pipeline run applies these rules to memory, and mpg_schedule_peaks
 * applies them to sizes alone. Threads: callers hold the host lock.
 */
#ifndef MPG_COMPILE_PIPELINE_MEMORY_H
#define MPG_COMPILE_PIPELINE_MEMORY_H

#include "graph/program/program.h"

typedef struct mpg_lane {
  const mpg_device *device;
  size_t size;
  mpg_storage *storage; /* NULL if only sizes are counted */
} mpg_lane;

typedef struct mpg_spare_lanes {
  mpg_lane *lanes; /* in the order in which they became spare */
  size_t count, capacity;
} mpg_spare_lanes;

mpg_status mpg_spare_lanes_add(mpg_spare_lanes *spares, const mpg_lane *lane);
/* Takes the oldest spare lane of this device and size. Returns false if no spare lane matches, or
 * if only the latest match is left, because a push into it might wait for its reader. */
bool mpg_spare_lanes_take(mpg_spare_lanes *spares, const mpg_device *device, size_t size,
                          mpg_lane *lane);

/* For each block of a micro-batch, the number of segments that will still use it. */
typedef struct mpg_block_uses {
  uint32_t *counts; /* owned */
  uint32_t num_blocks;
} mpg_block_uses;
/* Adds the segments of a program set to the counts of the blocks they use. Allocates counts for new
 * blocks. */
mpg_status mpg_block_uses_add(mpg_block_uses *uses, const mpg_program_set *set);

typedef struct mpg_micro_batch_item { /* one segment of one micro-batch, to be queued */
  uint32_t micro_batch, segment;
  uint32_t stage; /* for errors and the profiler */
  mpg_phase phase;
} mpg_micro_batch_item;

typedef struct mpg_schedule_memory {
  /* Two per micro-batch: the programs of its forward phase, then of its backward phase; NULL for a
   * phase that is not queued. */
  const mpg_program_set *const *sets;
  uint32_t num_micro_batches;
  const mpg_micro_batch_item *items; /* in queue order */
  size_t num_items;
  bool keep; /* keeps all blocks, because a backward follows */
} mpg_schedule_memory;
/* Peak bytes of the blocks on each device. */
typedef struct mpg_peaks {
  size_t *bytes; /* indexed by device ordinal; owned by the caller */
  int num_devices;
} mpg_peaks;
mpg_status mpg_schedule_peaks(const mpg_schedule_memory *schedule, mpg_peaks *peaks);

#endif
