/* Buffers of profiler events, one per device. */
#include "device/profiler.h"

#include "base/memory.h"
#include "device/internal.h"

/* Chunked array of events. Chunks never move. The first event after mpg_profiler_start discards all
 * earlier events. */
enum { CHUNK = 1024, MAX_CHUNKS = 1024 };
struct mpg_event_buffer {
  /* value of latest_start when the events were recorded; if it has changed, they are stale */
  uint64_t start;
  size_t count;
  mpg_event *chunks[MAX_CHUNKS];
};

_Atomic bool mpg_profiling;
static _Atomic uint64_t latest_start;

void mpg_profiler_record(mpg_device *device, const mpg_event *event) {
  struct mpg_event_buffer *buffer = device->events;
  if (!buffer) {
    buffer = device->events = mpg_calloc(1, sizeof *buffer);
    if (!buffer) return;
  }
  uint64_t start = atomic_load_explicit(&latest_start, memory_order_acquire);
  if (buffer->start != start) {
    buffer->start = start;
    buffer->count = 0;
  }
  size_t chunk = buffer->count / CHUNK;
  if (chunk < MAX_CHUNKS && !buffer->chunks[chunk])
    buffer->chunks[chunk] = mpg_malloc(CHUNK * sizeof *event);
  if (chunk >= MAX_CHUNKS || !buffer->chunks[chunk]) return;
  buffer->chunks[chunk][buffer->count++ % CHUNK] = *event;
}

void mpg_profiler_start(void) {
  atomic_fetch_add_explicit(&latest_start, 1, memory_order_release);
  atomic_store_explicit(&mpg_profiling, true, memory_order_relaxed);
}

void mpg_profiler_stop(void) { atomic_store_explicit(&mpg_profiling, false, memory_order_relaxed); }

void mpg_profiler_resume(void) {
  atomic_store_explicit(&mpg_profiling, true, memory_order_relaxed);
}

static const struct mpg_event_buffer *current(const mpg_device *device) {
  const struct mpg_event_buffer *buffer = device->events;
  return buffer && buffer->start == atomic_load_explicit(&latest_start, memory_order_acquire)
             ? buffer
             : NULL;
}

size_t mpg_profiler_event_count(const mpg_device *device) {
  const struct mpg_event_buffer *buffer = current(device);
  return buffer ? buffer->count : 0;
}

mpg_event mpg_profiler_event(const mpg_device *device, size_t index) {
  const struct mpg_event_buffer *buffer = current(device);
  MPG_ASSERT(buffer && index < buffer->count);
  return buffer->chunks[index / CHUNK][index % CHUNK];
}
