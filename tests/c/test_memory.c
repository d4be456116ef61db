/* Pools, storages and tensors. */
#include "harness.h"

static mpg_device *cpu(int index) {
  mpg_device *device;
  CHECK_OK(mpg_device_get((mpg_device_id){.type = MPG_CPU, .index = index}, &device));
  return device;
}

static mpg_memory_stats stats_of(const mpg_device *device) {
  mpg_memory_stats stats;
  mpg_pool_stats(device->pool, &stats);
  return stats;
}

static mpg_status wait_for_flag(mpg_run *run, void *payload) {
  (void)run;
  _Atomic bool *flag = *(_Atomic bool **)payload;
  while (!atomic_load(flag)) sleep_ms(1);
  return MPG_OK;
}

static mpg_status fail(mpg_run *run, void *payload) {
  (void)run, (void)payload;
  return mpg_fail(MPG_ERROR, "work failed");
}

static mpg_tick submit(mpg_device *device, mpg_work_fn work, const void *payload, size_t size) {
  mpg_tick tick;
  CHECK_OK(submit_one(
      device,
      &(mpg_submission){.name = "work", .work = work, .payload = payload, .payload_size = size},
      &tick));
  return tick;
}

static mpg_tick hold(mpg_device *device, _Atomic bool *flag) {
  return submit(device, wait_for_flag, &flag, sizeof flag);
}

static const mpg_desc floats = {{1, {1000}}, MPG_FLOAT32};

/* --- Pool ------------------------------------------------------------------------------------- */

static void test_sizes(void) {
  mpg_pool *pool = cpu(0)->pool;
  uint64_t random = 1;
  for (int i = 0; i < 2000; i++) {
    random = random * 6364136223846793005u + 1442695040888963407u;
    size_t size = (random >> 33) % ((size_t)1 << (1 + random % 22)) + 1;
    if (i < 1100) size = (size_t)i + 1;
    if (i >= 1100 && i < 1150)
      size = ((size_t)1 << (i - 1100) / 2) + (i % 2); /* boundaries of size classes */
    mpg_block block;
    CHECK_OK(mpg_pool_alloc(pool, size, false, &block));
    CHECK((uintptr_t)block.memory % 64 == 0 && block.size >= size);
    CHECK(block.size <= size + size / 4 + 64 && block.size % 64 == 0);
    memset(block.memory, i, size);
    mpg_pool_free(pool, &block);
    if (i % 100 == 99) CHECK_OK(mpg_pool_trim(pool, false));
  }
  mpg_block none;
  CHECK_OK(mpg_pool_alloc(pool, 0, false, &none));
  CHECK(none.memory == MPG_NO_BYTES);
  mpg_pool_free(pool, &none);
  CHECK(mpg_pool_alloc(pool, SIZE_MAX - 5, false, &none) == MPG_DEVICE_OUT_OF_MEMORY);
  CHECK(mpg_pool_alloc(pool, (size_t)1 << 46, false, &none) == MPG_DEVICE_OUT_OF_MEMORY);
  CHECK_TEXT("cpu(0) is out of memory: asked for 70368744177664 bytes (64.0 TiB)");
  CHECK(stats_of(cpu(0)).in_use == 0 && stats_of(cpu(0)).held == 0);
}

static void test_stats(void) {
  mpg_pool *pool = cpu(0)->pool;
  mpg_block a, b;
  CHECK_OK(mpg_pool_alloc(pool, 640, false, &a));
  CHECK_OK(mpg_pool_alloc(pool, 64, false, &b));
  mpg_memory_stats stats = stats_of(cpu(0));
  CHECK(stats.in_use == 704 && stats.held == 704 && stats.peak_in_use == 704 &&
        stats.allocations == 2 && stats.system_allocations == 2);
  void *memory = a.memory;
  mpg_pool_free(pool, &a);
  stats = stats_of(cpu(0));
  CHECK(stats.in_use == 64 && stats.held == 704 && stats.peak_in_use == 704);
  CHECK_OK(mpg_pool_alloc(pool, 600, false, &a));
  CHECK(a.memory == memory && stats_of(cpu(0)).system_allocations == 2);
  mpg_pool_free(pool, &a);
  mpg_pool_reset_peak(pool);
  CHECK(stats_of(cpu(0)).peak_in_use == 64 && stats_of(cpu(0)).peak_held == 704);
  CHECK_OK(mpg_pool_trim(pool, false));
  CHECK(stats_of(cpu(0)).held == 64);
  CHECK(stats_of(cpu(1)).held == 0); /* separate per device */
  CHECK(mpg_device_scratch(cpu(0), 10000) != NULL);
  CHECK(stats_of(cpu(0)).in_use == 64 + 12288 && stats_of(cpu(0)).held == 64 + 12288);
  CHECK_OK(mpg_device_trim(cpu(0)));
  CHECK(stats_of(cpu(0)).held == 64);
  mpg_pool_free(pool, &b);
}

static void test_uses_travel(void) {
  mpg_device *device = cpu(0), *reader = cpu(1);
  _Atomic bool go = false;
  mpg_block first, second, idle;
  CHECK_OK(mpg_pool_alloc(device->pool, 1000, false, &idle));
  CHECK_OK(mpg_pool_alloc(device->pool, 1000, false, &first));
  mpg_tick tick = hold(reader, &go);
  CHECK_OK(mpg_uses_reserve(&first.uses));
  mpg_uses_add_read(&first.uses, device, reader, tick);
  CHECK(!mpg_uses_finished(&first.uses, device));
  mpg_pool_free(device->pool, &first);
  /* program order: handed out with its reader */
  CHECK_OK(mpg_pool_alloc(device->pool, 1000, false, &second));
  CHECK(second.memory == first.memory && second.uses.num_foreign == 1 &&
        second.uses.foreign[0].tick == tick);
  mpg_pool_free(device->pool, &second);
  CHECK_OK(mpg_pool_alloc(device->pool, 1000, true, &second)); /* the host gets a different block */
  CHECK(second.memory != first.memory && mpg_uses_finished(&second.uses, device));
  mpg_pool_free(device->pool, &second);
  mpg_pool_free(device->pool, &idle);
  CHECK_OK(mpg_pool_trim(device->pool, false));
  CHECK(stats_of(device).held == first.size); /* memory being read is not released */
  atomic_store(&go, true);
  CHECK_OK(mpg_pool_trim(device->pool, true));
  CHECK(stats_of(device).held == 0);
}

static void test_many_readers(void) {
  enum { READERS = 6 };
  mpg_device *device = cpu(0);
  _Atomic bool go[READERS] = {false};
  mpg_block block;
  mpg_tick ticks[READERS];
  CHECK_OK(mpg_pool_alloc(device->pool, 1000, false, &block));
  for (int i = 0; i < READERS; i++) ticks[i] = hold(cpu(i + 1), &go[i]);
  CHECK_OK(mpg_uses_reserve(&block.uses));
  uint64_t turns = mpg_host_turns();
  for (int i = 0; i < READERS; i++) mpg_uses_add_read(&block.uses, device, cpu(i + 1), ticks[i]);
  mpg_uses_add_read(&block.uses, device, cpu(1), ticks[0]); /* already known */
  CHECK(mpg_host_turns() == turns); /* adding reads never yields to other threads */
  CHECK(block.uses.num_foreign == READERS && !mpg_uses_finished(&block.uses, device));
  atomic_store(&go[1], true);
  CHECK_OK(mpg_point_wait((mpg_point){cpu(2), ticks[1], true}, false));
  CHECK_OK(mpg_uses_reserve(&block.uses));
  mpg_uses_add_read(&block.uses, device, cpu(READERS + 1), 0); /* finished reads are dropped */
  CHECK(block.uses.num_foreign == READERS);
  for (int i = 0; i < READERS; i++) atomic_store(&go[i], true);
  CHECK_OK(mpg_uses_wait(&block.uses, device, false));
  CHECK(mpg_uses_finished(&block.uses, device));
  mpg_pool_free(device->pool, &block);
}

static void test_limit(void) {
  mpg_device *device = cpu(1);
  mpg_pool *pool = device->pool;
  mpg_block a, b, c;
  CHECK_OK(mpg_pool_set_limit(pool, 10240));
  CHECK_OK(mpg_pool_alloc(pool, 4096, false, &a));
  CHECK_OK(mpg_pool_alloc(pool, 4096, false, &b));
  CHECK(mpg_pool_alloc(pool, 4096, false, &c) == MPG_DEVICE_OUT_OF_MEMORY);
  CHECK_TEXT(
      "cpu(1) is out of memory: asked for 4096 bytes (4.0 KiB); held 8192 bytes (8.0 KiB), of "
      "which in use 8192 bytes (8.0 KiB); "
      "limit 10240 bytes (10.0 KiB)");
  mpg_pool_free(pool, &b);
  CHECK_OK(mpg_pool_alloc(pool, 6144, false, &c)); /* the cache is released to make room */
  CHECK(stats_of(device).held == 10240 && stats_of(device).peak_held <= 10240);
  mpg_pool_free(pool, &c);

  /* The same while queued work uses the memory: the pool waits. */
  _Atomic bool go = true;
  CHECK_OK(mpg_pool_alloc(pool, 6144, false, &c));
  c.uses.write = hold(device, &go);
  mpg_pool_free(pool, &c);
  CHECK_OK(mpg_pool_alloc(pool, 5120, false, &b));
  CHECK(mpg_device_scratch(device, 2048) == NULL); /* takes a page */
  CHECK_TEXT("cpu(1) is out of memory: asked for 4096 bytes");
  mpg_pool_free(pool, &b);
  CHECK(mpg_device_scratch(device, 2048) != NULL); /* the cached block is treated as room... */
  CHECK_OK(mpg_pool_alloc(pool, 64, false, &b));
  CHECK(stats_of(device).held <= 10240); /* ...and has been released by this point */
  mpg_pool_free(pool, &a);
  mpg_pool_free(pool, &b);
  CHECK_OK(mpg_pool_set_limit(pool, 5000));
  CHECK(stats_of(device).held <= 5000);
  CHECK_OK(mpg_pool_set_limit(pool, 0));
  CHECK_OK(mpg_pool_alloc(pool, 100000, false, &a));
  mpg_pool_free(pool, &a);
}

static void test_large_blocks(void) {
  mpg_block block;
  for (size_t size = (size_t)3 << 20; size < (size_t)20 << 20; size += 1234567) {
    CHECK_OK(mpg_pool_alloc(cpu(0)->pool, size, false, &block));
    memset(block.memory, 1, size);
    mpg_pool_free(cpu(0)->pool, &block);
    CHECK_OK(mpg_pool_trim(cpu(0)->pool, false));
  }
  CHECK(stats_of(cpu(0)).held == 0);
}

enum { MIB = 1 << 20 };

static mpg_block take(mpg_device *device, size_t mib) {
  mpg_block block;
  CHECK_OK(mpg_pool_alloc(device->pool, mib * MIB, false, &block));
  CHECK(block.size == mib * MIB);
  memset(block.memory, (int)mib, block.size);
  return block;
}

static void test_blocks_are_split_and_joined(void) {
  mpg_device *device = cpu(0);
  mpg_pool *pool = device->pool;
  mpg_block a = take(device, 8), b, c, d, e, f;
  char *memory = a.memory;
  mpg_pool_free(pool, &a);
  b = take(device, 1); /* up to 1.5 times the peak use, each size has its own memory */
  c = take(device, 3);
  CHECK(stats_of(device).held == 12 * MIB);
  d = take(device, 2);
  e = take(device, 4);
  CHECK(d.memory == memory && (char *)e.memory == memory + 2 * MIB);
  CHECK(stats_of(device).held == 12 * MIB && stats_of(device).in_use == 10 * MIB);
  CHECK(((char *)d.memory)[2 * MIB - 1] == 2 && ((char *)e.memory)[0] == 4);
  CHECK_OK(mpg_pool_trim(pool, true)); /* the rest of the segment cannot be released alone */
  CHECK(stats_of(device).held == 12 * MIB);
  mpg_pool_free(pool, &d);
  mpg_pool_free(pool, &e);
  CHECK_OK(mpg_pool_set_limit(pool, 12 * MIB));
  d = take(device, 7);
  CHECK(d.memory == memory && stats_of(device).system_allocations == 3);
  CHECK(mpg_pool_alloc(pool, 2 * MIB, false, &f) == MPG_DEVICE_OUT_OF_MEMORY);
  CHECK_TEXT("held 12582912 bytes (12.0 MiB), of which in use 11534336 bytes (11.0 MiB)");
  e = take(device, 1);
  CHECK((char *)e.memory == memory + 7 * MIB && stats_of(device).in_use == 12 * MIB);
  mpg_pool_free(pool, &d);
  mpg_pool_free(pool, &e);
  mpg_pool_free(pool, &b);
  b = take(device, 9); /* more than the segment, which is released as a whole */
  CHECK(stats_of(device).held == 12 * MIB && stats_of(device).peak_held == 12 * MIB);
  mpg_pool_free(pool, &b);
  mpg_pool_free(pool, &c);
  CHECK_OK(mpg_pool_set_limit(pool, 0));
  CHECK_OK(mpg_pool_trim(pool, true));
  CHECK(stats_of(device).held == 0 && stats_of(device).in_use == 0);
}

/* A part that a different device reads is neither handed out nor merged before the read is done. */
static void test_parts_wait_for_their_readers(void) {
  mpg_device *device = cpu(0), *reader = cpu(1);
  mpg_pool *pool = device->pool;
  _Atomic bool go = false;
  CHECK_OK(mpg_pool_set_limit(pool, 8 * MIB));
  mpg_block whole = take(device, 8);
  char *memory = whole.memory;
  mpg_pool_free(pool, &whole);
  mpg_block a = take(device, 4), b, c;
  CHECK(a.memory == memory);
  mpg_tick tick = hold(reader, &go);
  CHECK_OK(mpg_uses_reserve(&a.uses));
  mpg_uses_add_read(&a.uses, device, reader, tick);
  mpg_pool_free(pool, &a);
  b = take(device, 3);
  CHECK((char *)b.memory == memory + 4 * MIB); /* not the part being read */
  mpg_pool_free(pool, &b);
  CHECK_OK(mpg_pool_trim(pool, false));
  CHECK(stats_of(device).held == 8 * MIB);
  atomic_store(&go, true);
  c = take(device, 8); /* blocks */
  CHECK(mpg_tick_reached(reader, tick) && stats_of(device).held == 8 * MIB);
  mpg_pool_free(pool, &c);
  CHECK_OK(mpg_pool_trim(pool, false));
  CHECK(stats_of(device).held == 0);
}

/* Sizes that never repeat share memory, in any order of allocation; statistics stay exact. */
static void test_ragged_sizes_share_memory(void) {
  enum { LIVE = 6 };
  mpg_device *device = cpu(0);
  mpg_block live[LIVE] = {{0}};
  uint64_t random = 7;
  size_t in_use = 0;
  for (int i = 0; i < 4000; i++) {
    random = random * 6364136223846793005u + 1442695040888963407u;
    mpg_block *one = &live[(random >> 60) % LIVE];
    if (one->size) mpg_pool_free(device->pool, one);
    in_use -= one->size;
    size_t size = MIB + (random >> 33) % (3 * MIB);
    CHECK_OK(mpg_pool_alloc(device->pool, size, false, one));
    in_use += one->size;
    memset(one->memory, i, one->size); /* ASan checks that it is inside its segment */
    for (int k = 0; k < LIVE; k++)
      CHECK(&live[k] == one || !live[k].size ||
            (char *)live[k].memory + live[k].size <= (char *)one->memory ||
            (char *)one->memory + one->size <= (char *)live[k].memory);
    CHECK(stats_of(device).in_use == in_use);
  }
  mpg_memory_stats stats = stats_of(device);
  CHECK(stats.peak_held <= stats.peak_in_use * 9 / 4 && stats.system_allocations < 40);
  for (int k = 0; k < LIVE; k++)
    if (live[k].size) mpg_pool_free(device->pool, &live[k]);
  CHECK_OK(mpg_pool_trim(device->pool, true));
  CHECK(stats_of(device).held == 0);
}

static void test_sizes_that_grow_leave_little_behind(void) {
  mpg_device *device = cpu(0);
  mpg_block block;
  for (size_t size = MIB; size <= 16 * (size_t)MIB; size += MIB / 8) {
    CHECK_OK(mpg_pool_alloc(device->pool, size, false, &block));
    mpg_pool_free(device->pool, &block);
  }
  CHECK(stats_of(device).peak_held <= 3 * stats_of(device).peak_in_use);
}

/* A full device releases only the missing memory, not its whole cache. */
static void test_limits_keep_the_rest_of_the_cache(void) {
  mpg_device *device = cpu(0);
  mpg_block blocks[8], more;
  for (int i = 0; i < 8; i++) CHECK_OK(mpg_pool_alloc(device->pool, 64 << 10, false, &blocks[i]));
  for (int i = 0; i < 8; i++) mpg_pool_free(device->pool, &blocks[i]);
  CHECK_OK(mpg_pool_set_limit(device->pool, 512 << 10));
  CHECK_OK(mpg_pool_alloc(device->pool, 80 << 10, false, &more));
  CHECK(stats_of(device).held == (6 * 64 + 80) << 10);
  mpg_pool_free(device->pool, &more);
}

/* --- Storages and tensors --------------------------------------------------------------------- */

static void test_recycled_memory_has_not_failed(void) {
  mpg_device *device = cpu(0);
  float values[1000] = {1};
  mpg_tensor tensor, fresh;
  CHECK_OK(mpg_tensor_create(device, &floats, &tensor));
  void *memory = mpg_tensor_data(&tensor);
  mpg_storage_add_write(tensor.storage, submit(device, fail, NULL, 0));
  CHECK(mpg_tensor_wait_read(&tensor) == MPG_ERROR);
  CHECK(mpg_storage_failure(tensor.storage) == MPG_ERROR);
  CHECK(mpg_tensor_copy_to_host(&tensor, values) == MPG_ERROR);
  mpg_tensor_release(&tensor);

  CHECK_OK(mpg_tensor_create(device, &floats, &fresh));
  CHECK(mpg_tensor_data(&fresh) == memory);
  CHECK_OK(mpg_tensor_wait_read(&fresh));
  CHECK_OK(mpg_storage_failure(fresh.storage));
  mpg_point_list list = {0};
  CHECK_OK(mpg_storage_points(fresh.storage, cpu(1), true, false, &list));
  CHECK(list.count == 0); /* reached, and the failed work did not write this tensor */
  CHECK_OK(mpg_tensor_copy_from_host(&fresh, values));
  CHECK_OK(mpg_tensor_copy_to_host(&fresh, values));
  CHECK(values[0] == 1 && fresh.storage->version == 1);

  mpg_storage_add_write(fresh.storage, submit(device, fail, NULL, 0));
  mpg_tensor part;
  CHECK_OK(mpg_tensor_slice(&fresh, 0, 10, &part));
  /* the rest would still hold the failed work's result */
  CHECK(mpg_tensor_copy_from_host(&part, values) == MPG_ERROR);
  CHECK(mpg_tensor_is_part(&part) && !mpg_tensor_is_part(&fresh));
  CHECK_OK(mpg_storage_points(fresh.storage, device, false, true, &list));
  CHECK(list.count == 0);
  CHECK_OK(mpg_storage_points(fresh.storage, device, true, true, &list));
  CHECK(list.count == 1 && list.points[0].data && list.points[0].device == device);
  mpg_free(list.points);
  CHECK_OK(mpg_tensor_copy_from_host(&fresh, values)); /* all of it: valid again */
  CHECK_OK(mpg_tensor_wait_read(&part));
  mpg_tensor_release(&part);
  mpg_tensor_release(&fresh);
}

static void test_points_of_uses(void) {
  mpg_device *device = cpu(0), *reader = cpu(1);
  _Atomic bool go = false;
  mpg_tensor tensor;
  CHECK_OK(mpg_tensor_create(device, &floats, &tensor));
  mpg_storage_add_write(tensor.storage,
                        submit(device, wait_for_flag, &(_Atomic bool *){&go}, sizeof(void *)));
  mpg_point_list list = {0};
  for (int i = 0; i < 2; i++) { /* listed once */
    CHECK_OK(mpg_storage_points(tensor.storage, reader, true, false, &list));
    CHECK(list.count == 1 && list.points[0].data && list.points[0].device == device);
  }
  mpg_storage_add_read(tensor.storage, reader, hold(reader, &go));
  CHECK(!mpg_storage_writable_now(tensor.storage));
  CHECK_OK(mpg_storage_points(tensor.storage, device, false, true, &list));
  CHECK(list.count == 2 && !list.points[1].data && list.points[1].device == reader);
  list.begin = list.count; /* the next submission's: a push waits for all uses there */
  CHECK_OK(mpg_storage_points(tensor.storage, cpu(2), false, true, &list));
  CHECK(list.count == 4 && list.points[2].device == device && list.points[3].device == reader);
  CHECK_OK(mpg_storage_points(tensor.storage, reader, false, true, &list));
  CHECK(list.count == 4); /* its own reads come first anyway */
  mpg_free(list.points);
  atomic_store(&go, true);
  CHECK_OK(mpg_tensor_wait_write(&tensor));
  CHECK(mpg_storage_writable_now(tensor.storage));
  mpg_tensor_release(&tensor);
}

static void test_views(void) {
  mpg_tensor tensor, view, part;
  CHECK_OK(mpg_tensor_create(cpu(0), &(mpg_desc){{2, {6, 4}}, MPG_INT64}, &tensor));
  CHECK(mpg_tensor_bytes(&tensor) == 192);
  CHECK_OK(mpg_tensor_reshape(&tensor, &(mpg_shape){3, {2, 3, 4}}, &view));
  CHECK(view.storage == tensor.storage && tensor.storage->references == 2);
  CHECK_OK(mpg_tensor_slice(&view, 1, 2, &part));
  CHECK(part.offset == 96 && part.desc.shape.dims[0] == 1 && tensor.storage->references == 3);
  CHECK(mpg_tensor_data(&part) == (char *)mpg_tensor_data(&tensor) + 96);
  CHECK(mpg_tensor_reshape(&tensor, &(mpg_shape){1, {5}}, &view) == MPG_VALUE_ERROR);
  CHECK_TEXT("(6, 4)");
  CHECK(mpg_tensor_slice(&tensor, 3, 7, &part) == MPG_INDEX_ERROR);
  CHECK(mpg_tensor_slice(&tensor, -1, 2, &part) == MPG_INDEX_ERROR);
  CHECK(mpg_tensor_create(cpu(0), &(mpg_desc){{2, {INT64_MAX, 8}}, MPG_FLOAT64},
                          &(mpg_tensor){0}) != MPG_OK);
  mpg_tensor_release(&part);
  mpg_tensor_release(&view);
  mpg_tensor_release(&tensor);
  CHECK_OK(mpg_tensor_create(cpu(0), &(mpg_desc){{2, {0, 4}}, MPG_FLOAT32}, &tensor));
  CHECK_OK(mpg_tensor_copy_from_host(&tensor, NULL));
  CHECK_OK(mpg_tensor_copy_to_host(&tensor, NULL));
  mpg_tensor_release(&tensor);
  CHECK(stats_of(cpu(0)).in_use == 0);
}

static int released;
static void release_owner(void *owner) {
  CHECK(owner == &released);
  released++;
}

static void test_wrapped_memory(void) {
  static _Alignas(64) float memory[16];
  mpg_storage *storage, *other;
  CHECK_OK(mpg_storage_wrap(cpu(0), memory, sizeof memory, release_owner, &released, &storage));
  CHECK(storage->block.memory == memory && stats_of(cpu(0)).held == 0);
  mpg_storage_release(storage);
  CHECK(released == 1);
  _Atomic bool go = false;
  CHECK_OK(mpg_storage_wrap(cpu(0), memory, sizeof memory, release_owner, &released, &storage));
  mpg_storage_add_write(storage, hold(cpu(0), &go));
  mpg_storage_release(storage);
  CHECK_OK(mpg_storage_create(cpu(0), 64, false, &other));
  mpg_storage_release(other);
  CHECK(released == 1); /* still being written */
  atomic_store(&go, true);
  CHECK_OK(mpg_wait_all());
  mpg_storage_collect();
  CHECK(released == 2);
}

static void test_allocation_failures(void) {
  int64_t n = 1;
  cpu(0);
  for (bool failed = true; failed && n < 100; n++) {
    mpg_tensor tensors[40] = {{0}};
    mpg_status status = MPG_OK;
    mpg_memory_fail_after(n, 1);
    for (int i = 0; i < 40 && status == MPG_OK; i++)
      status = mpg_tensor_create(cpu(0), &(mpg_desc){{1, {100 + i / 4 * 100}}, MPG_FLOAT32},
                                 &tensors[i]);
    for (int i = 0; i < 40; i++) mpg_tensor_release(&tensors[i]);
    failed = mpg_memory_fail_after(0, 0);
    CHECK(status == MPG_OK || status == MPG_HOST_OUT_OF_MEMORY);
    CHECK(stats_of(cpu(0)).in_use == 0);
    CHECK_OK(mpg_pool_trim(cpu(0)->pool, true));
    CHECK(stats_of(cpu(0)).held == 0);
  }
  CHECK(n > 40 && n < 100);
}

static const test tests[] = {
    {"sizes", test_sizes},
    {"stats", test_stats},
    {"uses_travel", test_uses_travel},
    {"many_readers", test_many_readers},
    {"limit", test_limit},
    {"large_blocks", test_large_blocks},
    {"blocks_are_split_and_joined", test_blocks_are_split_and_joined},
    {"parts_wait_for_their_readers", test_parts_wait_for_their_readers},
    {"ragged_sizes_share_memory", test_ragged_sizes_share_memory},
    {"sizes_that_grow_leave_little_behind", test_sizes_that_grow_leave_little_behind},
    {"limits_keep_the_rest_of_the_cache", test_limits_keep_the_rest_of_the_cache},
    {"recycled_memory_has_not_failed", test_recycled_memory_has_not_failed},
    {"points_of_uses", test_points_of_uses},
    {"views", test_views},
    {"wrapped_memory", test_wrapped_memory},
    {"allocation_failures", test_allocation_failures},
};

int main(int argc, char **argv) {
  return run_tests(tests, sizeof tests / sizeof *tests, argc, argv);
}
