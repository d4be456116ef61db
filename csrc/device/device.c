/* The device table, and the engine's mode. */
#include "device/device.h"

#include "base/memory.h"
#include "device/internal.h"

/* Runtime state, guarded by the host lock. */
static struct {
  mpg_device **devices;
  size_t capacity;
  int count;
  _Atomic(mpg_device *) newest; /* read by any thread */
  mpg_engine_mode mode;
  bool refuses_work;
  bool exiting; /* the process exits, so other libraries may already have been torn down */
} table;

int mpg_device_count(void) { return table.count; }
mpg_device *mpg_device_at(int ordinal) { return table.devices[ordinal]; }
mpg_device *mpg_device_newest(void) {
  return atomic_load_explicit(&table.newest, memory_order_acquire);
}

mpg_device *mpg_device_find(mpg_device_id id) {
  for (int i = 0; i < table.count; i++)
    if (mpg_device_id_equal(table.devices[i]->id, id)) return table.devices[i];
  return NULL;
}

mpg_status mpg_device_table_reserve(void) {
  return mpg_grow((void **)&table.devices, &table.capacity, (size_t)table.count + 1,
                  sizeof(mpg_device *));
}

void mpg_device_table_add(mpg_device *device) {
  table.devices[table.count++] = device;
  device->older = mpg_device_newest();
  atomic_store_explicit(&table.newest, device, memory_order_release);
}

mpg_engine_mode mpg_engine_get_mode(void) { return table.mode; }
void mpg_engine_store_mode(mpg_engine_mode mode) { table.mode = mode; }

bool mpg_engine_refuses_work(void) { return table.refuses_work; }
void mpg_engine_refuse_work(void) { table.refuses_work = true; }
void mpg_engine_note_exit(void) { table.exiting = true; }

static _Thread_local mpg_device *worker_device;

mpg_device *mpg_worker_device(void) { return worker_device; }
void mpg_worker_set_device(mpg_device *device) { worker_device = device; }

void mpg_device_free_kernel_cache(mpg_device *device) {
  if (!device->kernel_cache || table.exiting) return;
  device->kernel_cache_free(device->kernel_cache);
  device->kernel_cache = NULL;
}
