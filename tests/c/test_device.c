/* Devices: queues, timelines, failures, modes, fork, exit. Also run under ThreadSanitizer and
 * AddressSanitizer. */
#define _GNU_SOURCE
#include <sys/wait.h>

#include "harness.h"

static mpg_device *cpu(int index) {
  mpg_device *device;
  CHECK_OK(mpg_device_get((mpg_device_id){.type = MPG_CPU, .index = index}, &device));
  return device;
}

static _Atomic int discarded;
static void count_discard(void *payload) {
  (void)payload;
  atomic_fetch_add(&discarded, 1);
}

/* Work whose payload is a pointer and a number. */
typedef struct step {
  int64_t *counter;
  int64_t expected;
} step;

static mpg_status add_one(mpg_run *run, void *payload) {
  (void)run;
  step *s = payload;
  if (*s->counter != s->expected)
    return mpg_fail(MPG_ERROR, "expected %lld, found %lld", (long long)s->expected,
                    (long long)*s->counter);
  ++*s->counter;
  return MPG_OK;
}

static mpg_status nothing(mpg_run *run, void *payload) {
  (void)run, (void)payload;
  return MPG_OK;
}

static mpg_status break_down(mpg_run *run, void *payload) {
  (void)run, (void)payload;
  return mpg_fail(MPG_VALUE_ERROR, "the broken thing");
}

static _Atomic int holding; /* number of wait_for_flag calls that have begun */

static mpg_status wait_for_flag(mpg_run *run, void *payload) {
  (void)run;
  atomic_fetch_add(&holding, 1);
  _Atomic bool *flag = *(_Atomic bool **)payload;
  while (!atomic_load(flag)) sleep_ms(1);
  return MPG_OK;
}

static mpg_tick submit(mpg_device *device, mpg_work_fn work, const void *payload, size_t size,
                       const mpg_point *points, int num_points) {
  mpg_tick tick;
  CHECK_OK(submit_one(device,
                      &(mpg_submission){.name = "step",
                                        .work = work,
                                        .payload = payload,
                                        .payload_size = size,
                                        .points = points,
                                        .num_points = num_points,
                                        .discard = count_discard},
                      &tick));
  return tick;
}

static mpg_tick hold(mpg_device *device, _Atomic bool *flag) {
  return submit(device, wait_for_flag, &flag, sizeof flag, NULL, 0);
}

/* --- Queue ------------------------------------------------------------------------------------ */

static void test_order(void) {
  int64_t counter = 0;
  mpg_tick last = 0;
  for (int64_t i = 0; i < 20000; i++) {
    step s = {&counter, i};
    mpg_tick tick = submit(cpu(0), add_one, &s, sizeof s, NULL, 0);
    CHECK(tick == last + 1);
    last = tick;
  }
  CHECK_OK(mpg_wait_all());
  CHECK(counter == 20000 && discarded == 20000 && mpg_device_idle(cpu(0)));
}

static mpg_status check_bytes(mpg_run *run, void *payload) {
  (void)run;
  size_t size;
  memcpy(&size, payload, sizeof size);
  for (size_t i = sizeof size; i < size; i++)
    if (((unsigned char *)payload)[i] != (unsigned char)(size * 31 + i))
      return mpg_fail(MPG_ERROR, "byte %zu of %zu is damaged", i, size);
  return (uintptr_t)payload % 16 ? mpg_fail(MPG_ERROR, "payload is not aligned") : MPG_OK;
}

static void test_payload_sizes(void) {
  unsigned char *bytes = malloc(300000);
  mpg_point points[100];
  for (int i = 0; i < 100; i++) points[i] = (mpg_point){.device = cpu(1), .tick = 0};
  for (size_t i = 0, size = 8; i < 3000;
       i++, size = (size * 7919 + 13) % (i % 50 ? 9000 : 290000) + 8) {
    memcpy(bytes, &size, sizeof size);
    for (size_t j = sizeof size; j < size; j++) bytes[j] = (unsigned char)(size * 31 + j);
    submit(cpu(0), check_bytes, bytes, size, points, (int)(i % 100));
  }
  CHECK_OK(mpg_wait_all());
  CHECK(discarded == 3000);
  free(bytes);
}

static void *open_later(void *flag) {
  sleep_ms(30);
  atomic_store((_Atomic bool *)flag, true);
  return NULL;
}

static void test_backpressure(void) {
  _Atomic bool go = false;
  pthread_t thread;
  hold(cpu(0), &go);
  CHECK(pthread_create(&thread, NULL, open_later, &go) == 0);
  uint64_t longest = 0;
  for (int i = 0; i < 10000; i++) {
    submit(cpu(0), nothing, NULL, 0, NULL, 0);
    uint64_t queued = cpu(0)->submitted - atomic_load(cpu(0)->completed);
    if (queued > longest) longest = queued;
  }
  CHECK(longest > 100 && longest < 4000);
  pthread_join(thread, NULL);
  CHECK_OK(mpg_wait_all());
}

/* A caller that holds the lock and finds the device idle owns it: no points, no atomics. */
static void test_inline_ownership(void) {
  int64_t counter = 0;
  for (int64_t i = 0; i < 3000; i++) {
    if (mpg_device_runs_inline(cpu(0))) {
      CHECK(counter == i);
      counter++;
    } else {
      submit(cpu(0), add_one, &(step){&counter, i}, sizeof(step), NULL, 0);
    }
    if (i % 3 == 0) submit(cpu(0), nothing, NULL, 0, NULL, 0);
    if (i % 7 == 0) CHECK_OK(mpg_wait_all());
  }
  CHECK_OK(mpg_wait_all());
  CHECK(counter == 3000);
}

/* Pauses around the length of a spin: no wake-up may get lost, in either direction. */
static void test_wake_ups(void) {
  for (int i = 0; i < 2000; i++) {
    mpg_tick tick = submit(cpu(0), nothing, NULL, 0, NULL, 0);
    mpg_tick other =
        submit(cpu(1), nothing, NULL, 0, &(mpg_point){.device = cpu(0), .tick = tick}, 1);
    for (int64_t end = mpg_clock_ns() + i % 50 * 1000; mpg_clock_ns() < end;) continue;
    int64_t begin = mpg_clock_ns();
    CHECK_OK(mpg_point_wait((mpg_point){cpu(1), other, true}, false));
    CHECK(mpg_clock_ns() - begin < 10000000000);
  }
}

static mpg_status sleep_5ms(mpg_run *run, void *payload) {
  (void)run, (void)payload;
  sleep_ms(5);
  return MPG_OK;
}

static void test_waiters_are_woken(void) { /* instead of polling */
  int64_t shortest = INT64_MAX;
  for (int i = 0; i < 20; i++) {
    int64_t begin = mpg_clock_ns();
    mpg_point first = {.device = cpu(0), .tick = submit(cpu(0), sleep_5ms, NULL, 0, NULL, 0)};
    CHECK_OK(mpg_point_wait(
        (mpg_point){cpu(1), submit(cpu(1), sleep_5ms, NULL, 0, &first, 1), true}, false));
    int64_t taken = mpg_clock_ns() - begin;
    if (taken < shortest) shortest = taken;
  }
  CHECK(shortest >= 10000000 && shortest < 19000000);
}

/* --- Several devices -------------------------------------------------------------------------- */

/* Every step is on a different device than the one before; only points order them. */
static void test_points(void) {
  int64_t counter = 0;
  mpg_point previous = {.device = cpu(0), .tick = 0, .data = true};
  for (int64_t i = 0; i < 3000; i++) {
    step s = {&counter, i};
    mpg_device *device = cpu((int)(i % 3));
    previous = (mpg_point){.device = device,
                           .tick = submit(device, add_one, &s, sizeof s, &previous, 1),
                           .data = true};
  }
  CHECK_OK(mpg_wait_all());
  CHECK(counter == 3000);
}

static mpg_status meet(mpg_run *run, void *payload) {
  (void)run;
  _Atomic int *arrived = *(_Atomic int **)payload;
  atomic_fetch_add(arrived, 1);
  for (int64_t begin = mpg_clock_ns(); atomic_load(arrived) < 3;)
    if (mpg_clock_ns() - begin > 20000000000) return mpg_fail(MPG_ERROR, "nobody else came");
  return MPG_OK;
}

static void test_same_time(void) {
  _Atomic int arrived = 0, *payload = &arrived;
  for (int i = 0; i < 3; i++) submit(cpu(i), meet, &payload, sizeof payload, NULL, 0);
  CHECK_OK(mpg_wait_all());
  CHECK(arrived == 3);
}

/* A program of `rounds` ticks that alternates a number with its partner: waits, adds, signals. */
typedef struct partner {
  int64_t *value;
  mpg_device *other;
  mpg_tick other_first;
  int64_t round, rounds;
  bool second;
  int resumed;
} partner;

static mpg_status play(mpg_run *run, void *payload) {
  partner *p = payload;
  p->resumed++;
  for (; p->round < p->rounds; p->round++) {
    /* Round i of the first follows round i - 1 of the second, whose round i follows round i of the
     * first. */
    mpg_tick needed = p->other_first + (mpg_tick)p->round - (p->second ? 0 : 1);
    if (p->second || p->round)
      if (!mpg_run_wait(run, (mpg_point){.device = p->other, .tick = needed})) return MPG_OK;
    if (*p->value != p->round * 2 + p->second)
      return mpg_fail(MPG_ERROR, "round %lld found %lld", (long long)p->round,
                      (long long)*p->value);
    ++*p->value;
    mpg_tick tick = run->first_tick + (mpg_tick)p->round;
    if (tick < run->last_tick) mpg_run_signal(run, tick);
  }
  return MPG_OK;
}

typedef struct partners {
  mpg_device *devices[2];
  int64_t *value;
  int rounds;
  partner payloads[2];
  mpg_tick firsts[2];
} partners;

static mpg_status prepare_partners(void *state, mpg_point_list *points, mpg_submission *submissions,
                                   bool *done) {
  static const char *const names[] = {"first", "second"};
  partners *p = state;
  (void)points, (void)done;
  for (int i = 0; i < 2; i++) p->firsts[i] = mpg_device_next_tick(p->devices[i]);
  for (int i = 0; i < 2; i++) {
    p->payloads[i] =
        (partner){p->value, p->devices[1 - i], p->firsts[1 - i], 0, p->rounds, i == 1, 0};
    submissions[i] = (mpg_submission){.name = names[i],
                                      .work = play,
                                      .payload = &p->payloads[i],
                                      .payload_size = sizeof p->payloads[i],
                                      .ticks = (mpg_tick)p->rounds,
                                      .discard = count_discard};
  }
  return MPG_OK;
}

static void note_partners(void *state, const mpg_tick *ticks) {
  const partners *p = state;
  for (int i = 0; i < 2; i++) CHECK(ticks[i] == p->firsts[i] + (mpg_tick)p->rounds - 1);
}

static void submit_partners(mpg_device *a, mpg_device *b, int64_t *value, int rounds) {
  partners p = {.devices = {a, b}, .value = value, .rounds = rounds};
  CHECK_OK(mpg_device_queue(&(mpg_queuing){.devices = p.devices,
                                           .count = 2,
                                           .prepare = prepare_partners,
                                           .note = note_partners,
                                           .state = &p}));
}

static void test_resumable(void) {
  int64_t value = 0;
  submit_partners(cpu(0), cpu(1), &value, 500);
  CHECK_OK(mpg_wait_all());
  CHECK(value == 1000 && discarded == 2);
}

static void *submit_in_thread(void *number) {
  pthread_mutex_lock(&host_lock);
  static int64_t values[4][40];
  int n = (int)(intptr_t)number;
  for (int i = 0; i < 40; i++) {
    /* Opposite orders in different threads: unless the two submissions are atomic, programs would
     * wait in a cycle. */
    submit_partners(cpu(n % 2), cpu(1 - n % 2), &values[n][i], 5);
    release_lock();
    acquire_lock(NULL);
  }
  CHECK_OK(mpg_wait_all());
  for (int i = 0; i < 40; i++) CHECK(values[n][i] == 10);
  pthread_mutex_unlock(&host_lock);
  return NULL;
}

static void test_together_from_threads(void) {
  pthread_t threads[4];
  cpu(0), cpu(1);
  for (intptr_t i = 0; i < 4; i++)
    CHECK(pthread_create(&threads[i], NULL, submit_in_thread, (void *)i) == 0);
  release_lock();
  for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
  acquire_lock(NULL);
  CHECK(discarded == 320);
}

/* --- Failures --------------------------------------------------------------------------------- */

static mpg_tick fail_on(mpg_device *device) {
  mpg_tick tick;
  CHECK_OK(submit_one(device,
                      &(mpg_submission){.name = "breaker",
                                        .work = break_down,
                                        .origin = 12,
                                        .discard = count_discard,
                                        .scope = mpg_scope_intern("net0.dense1")},
                      &tick));
  return tick;
}

static void test_failures(void) {
  int64_t counter = 0, other = 0;
  step s = {&counter, 0}, t = {&other, 0};
  mpg_point bad = {.device = cpu(0), .data = true}, order_only;
  bad.tick = fail_on(cpu(0));
  order_only = bad;
  order_only.data = false;
  mpg_point spread = {
      .device = cpu(1), .tick = submit(cpu(1), add_one, &s, sizeof s, &bad, 1), .data = true};
  mpg_tick further = submit(cpu(2), add_one, &s, sizeof s, &spread, 1);
  mpg_tick fine = submit(cpu(1), add_one, &t, sizeof t, &order_only, 1);
  CHECK(mpg_point_wait((mpg_point){cpu(2), further, true}, false) == MPG_VALUE_ERROR);
  CHECK_TEXT("the broken thing");
  CHECK_TEXT("breaker on cpu(0)");
  CHECK_TEXT("script.py:12 in main");
  CHECK_TEXT("net0.dense1");
  CHECK_OK(mpg_point_wait((mpg_point){cpu(2), further, false}, false));
  CHECK_OK(mpg_point_wait((mpg_point){cpu(1), fine, true}, false));
  CHECK(counter == 0 && other == 1 && discarded == 4);
  CHECK_OK(mpg_wait_all());                                          /* reported already */
  CHECK(mpg_device_failure(cpu(1), spread.tick) == MPG_VALUE_ERROR); /* but not forgotten */
  CHECK_OK(mpg_device_failure(cpu(1), fine));

  fail_on(cpu(1));
  fail_on(cpu(0));
  CHECK(mpg_wait_all() == MPG_VALUE_ERROR);
  CHECK_OK(mpg_wait_all());
}

static mpg_status signal_then_fail(mpg_run *run, void *payload) {
  (void)payload;
  mpg_run_signal(run, run->first_tick + 1);
  return mpg_fail(MPG_ERROR, "half way");
}

static void test_failure_after_signal(void) {
  mpg_tick last;
  CHECK_OK(submit_one(
      cpu(0), &(mpg_submission){.name = "half", .work = signal_then_fail, .ticks = 4}, &last));
  CHECK(mpg_point_wait((mpg_point){cpu(0), last, true}, false) == MPG_ERROR);
  CHECK_OK(mpg_device_failure(cpu(0), last - 3));
  CHECK_OK(mpg_device_failure(cpu(0), last - 2));
  CHECK(mpg_device_failure(cpu(0), last - 1) == MPG_ERROR);
}

static mpg_status pass_on(mpg_run *run, void *payload) {
  mpg_point point = *(mpg_point *)payload;
  if (!mpg_run_wait(run, point)) return MPG_OK;
  return mpg_device_failure(point.device, point.tick);
}

static void test_failure_passed_on_by_work(void) { /* keeps reporting its origin */
  mpg_point bad = {.device = cpu(0), .tick = fail_on(cpu(0)), .data = true};
  mpg_tick tick = submit(cpu(1), pass_on, &bad, sizeof bad, NULL, 0);
  CHECK(mpg_point_wait((mpg_point){cpu(1), tick, true}, false) == MPG_VALUE_ERROR);
  CHECK_TEXT("breaker on cpu(0)");
  CHECK_OK(mpg_wait_all());
}

static void test_many_failures(void) {
  mpg_tick ticks[2000];
  for (int i = 0; i < 2000; i++)
    ticks[i] = i % 3 ? submit(cpu(0), nothing, NULL, 0, NULL, 0) : fail_on(cpu(0));
  CHECK(mpg_wait_all() == MPG_VALUE_ERROR);
  for (int i = 0; i < 2000; i++)
    CHECK(mpg_device_failure(cpu(0), ticks[i]) == (i % 3 ? MPG_OK : MPG_VALUE_ERROR));
}

static mpg_status break_down_without_memory(mpg_run *run, void *payload) {
  mpg_memory_fail_after(2, 1); /* the first allocation is for the text */
  return break_down(run, payload);
}

static void test_failures_without_memory_for_them(void) { /* affect no other work */
  mpg_tick bad[100], fine[100];
  for (int i = 0; i < 100; i++) {
    fine[i] = submit(cpu(0), nothing, NULL, 0, NULL, 0);
    bad[i] = submit(cpu(0), i % 3 == 2 ? break_down : break_down_without_memory, NULL, 0, NULL, 0);
    CHECK(mpg_point_wait((mpg_point){cpu(0), bad[i], true}, false) == MPG_VALUE_ERROR);
    mpg_memory_fail_after(0, 0);
  }
  for (int i = 0; i < 100; i++) {
    CHECK_OK(mpg_device_failure(cpu(0), fine[i]));
    CHECK(mpg_device_failure(cpu(0), bad[i]) == MPG_VALUE_ERROR);
  }
}

static void test_interrupt(void) {
  _Atomic bool go = false;
  mpg_tick tick = hold(cpu(0), &go);
  atomic_store(&interrupted, true);
  CHECK(mpg_point_wait((mpg_point){cpu(0), tick, true}, false) == MPG_INTERRUPTED);
  CHECK(!mpg_device_idle(cpu(0)));
  atomic_store(&go, true);
  CHECK_OK(mpg_point_wait((mpg_point){cpu(0), tick, true}, false));
}

/* --- Fork, exit ------------------------------------------------------------------------------- */

static void test_fork(void) {
  int64_t counter = 0;
  for (int64_t i = 0; i < 100; i++)
    submit(cpu(i % 2), add_one, &(step){&counter, i}, sizeof(step),
           &(mpg_point){.device = cpu((i + 1) % 2), .tick = (mpg_tick)(i + 1) / 2}, 1);
  pid_t child = fork();
  CHECK(child >= 0);
  CHECK(counter == 100); /* in both processes */
  for (int64_t i = 100; i < 200; i++)
    submit(cpu(1), add_one, &(step){&counter, i}, sizeof(step), NULL, 0);
  submit(cpu(5), nothing, NULL, 0, NULL, 0);
  CHECK_OK(mpg_wait_all());
  CHECK(counter == 200);
  mpg_tensor tensor;
  CHECK_OK(mpg_tensor_create(cpu(0), &(mpg_desc){{1, {100}}, MPG_FLOAT32}, &tensor));
  mpg_tensor_release(&tensor);
  if (child == 0) exit(42);
  int status;
  CHECK(waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 42);
}

static void test_exit_with_work_queued(void) {
  mpg_point point = {.device = cpu(0)};
  for (int i = 0; i < 1000; i++) point.tick = submit(cpu(0), sleep_5ms, NULL, 0, NULL, 0);
  for (int i = 0; i < 10; i++) submit(cpu(1), nothing, NULL, 0, &point, 1); /* a waiting worker */
  exit(0);
}

static void test_shutdown(void) {
  _Atomic bool go = false;
  mpg_tick running = hold(cpu(0), &go);
  mpg_point never = {.device = cpu(0), .data = true};
  for (int i = 0; i < 100; i++) never.tick = submit(cpu(0), nothing, NULL, 0, NULL, 0);
  mpg_tick waiting = submit(cpu(1), nothing, NULL, 0, &never, 1);
  while (!atomic_load(&holding)) sleep_ms(1);
  atomic_store(&go, true);
  mpg_device_shutdown();
  mpg_device_shutdown();
  CHECK(discarded == 102);
  CHECK_OK(mpg_point_wait((mpg_point){cpu(0), running, true}, false));
  CHECK(mpg_device_idle(cpu(0)) && mpg_device_idle(cpu(1)));
  /* ran before the stop, or not at all */
  mpg_status status = mpg_point_wait((mpg_point){cpu(1), waiting, true}, false);
  CHECK(status == MPG_OK || status == MPG_ERROR);
  CHECK(submit_one(cpu(0),
                   &(mpg_submission){.name = "late", .work = nothing, .discard = count_discard},
                   NULL) == MPG_ERROR);
  CHECK_TEXT("shut down");
  CHECK(discarded == 103);
}

/* --- Modes ------------------------------------------------------------------------------------ */

static void test_sync(void) {
  CHECK_OK(mpg_engine_set_mode(MPG_ENGINE_SYNC, 0));
  int64_t counter = 0;
  submit(cpu(0), add_one, &(step){&counter, 0}, sizeof(step), NULL, 0);
  CHECK(counter == 1);
  mpg_tick tick;
  CHECK(
      submit_one(cpu(0),
                 &(mpg_submission){.name = "breaker", .work = break_down, .discard = count_discard},
                 &tick) == MPG_VALUE_ERROR);
  CHECK_TEXT("the broken thing");
  CHECK(discarded == 2);
  CHECK_OK(mpg_wait_all());
  int64_t value = 0;
  submit_partners(cpu(0), cpu(1), &value, 3);
  CHECK(value == 6);
}

typedef struct note {
  int *log, *length, entry;
} note;

static mpg_status write_note(mpg_run *run, void *payload) {
  (void)run;
  note *n = payload;
  n->log[(*n->length)++] = n->entry;
  return MPG_OK;
}

enum { NOTES = 60 };

static void shuffled(uint64_t seed, int *log) {
  int length = 0;
  CHECK_OK(mpg_engine_set_mode(MPG_ENGINE_SHUFFLE, seed));
  CHECK(!mpg_device_runs_inline(cpu(0)));
  mpg_point previous = {0};
  for (int i = 0; i < NOTES; i++) { /* every tenth waits for the previous one */
    mpg_device *device = cpu(i % 3);
    previous.tick =
        submit(device, write_note, &(note){log, &length, i}, sizeof(note), &previous, i % 10 == 9);
    previous.device = device;
  }
  CHECK(length == 0);
  CHECK_OK(mpg_point_wait(previous, false));
  CHECK_OK(mpg_wait_all());
  CHECK(length == NOTES);
  int position[NOTES];
  for (int i = 0; i < NOTES; i++) position[log[i]] = i;
  for (int i = 3; i < NOTES; i++) CHECK(position[i] > position[i - 3]);
  for (int i = 9; i < NOTES; i += 10) CHECK(position[i] > position[i - 1]);
}

static void test_shuffle(void) {
  int first[NOTES], again[NOTES], other[NOTES], sorted = 0;
  shuffled(1, first);
  shuffled(1, again);
  shuffled(2, other);
  CHECK(memcmp(first, again, sizeof first) == 0);
  CHECK(memcmp(first, other, sizeof first) != 0);
  for (int i = 1; i < NOTES; i++) sorted += first[i] > first[i - 1];
  CHECK(sorted < NOTES - 1);
  int64_t value = 0;
  submit_partners(cpu(0), cpu(1), &value, 50); /* suspended and resumed */
  CHECK_OK(mpg_wait_all());
  CHECK(value == 100);
  CHECK_OK(mpg_engine_set_mode(MPG_ENGINE_ASYNC, 0));
  int64_t counter = 0;
  submit(cpu(0), add_one, &(step){&counter, 0}, sizeof(step), NULL, 0);
  CHECK_OK(mpg_wait_all());
  CHECK(counter == 1);
}

static void test_shuffle_from_threads(void) {
  CHECK_OK(mpg_engine_set_mode(MPG_ENGINE_SHUFFLE, 3));
  test_together_from_threads();
}

static void test_shuffle_fork(void) {
  CHECK_OK(mpg_engine_set_mode(MPG_ENGINE_SHUFFLE, 3));
  test_fork();
}

static void test_shuffle_exit(void) {
  CHECK_OK(mpg_engine_set_mode(MPG_ENGINE_SHUFFLE, 3));
  test_exit_with_work_queued();
}

/* --- Other tests ------------------------------------------------------------------------------ */

static void test_table(void) {
  mpg_device *device;
  CHECK(mpg_device_get((mpg_device_id){.type = MPG_GPU, .index = 0}, &device) == MPG_ERROR);
  CHECK_TEXT("gpu(0)");
  CHECK(mpg_device_get((mpg_device_id){.type = MPG_CPU, .index = -1}, &device) == MPG_ERROR);
  CHECK(mpg_device_get((mpg_device_id){.type = 9, .index = 0}, &device) == MPG_ERROR);
  CHECK(mpg_device_count() == 0);
  CHECK(cpu(1000000)->ordinal == 0 && cpu(3)->ordinal == 1 && cpu(1000000) == mpg_device_at(0));
  CHECK(strcmp(mpg_device_text(cpu(3)), "cpu(3)") == 0);
  CHECK_OK(mpg_device_get((mpg_device_id){.type = MPG_CPU_PINNED, .index = 3}, &device));
  CHECK(device == cpu(3) && mpg_device_count() == 2 && mpg_gpu_count(NULL) == 0);
  int cores = mpg_machine_cores();
  CHECK(cores >= 1 && device->num_threads == (cores / 2 > 1 ? cores / 2 : 1));
  CHECK_OK(mpg_device_set_threads(5));
  CHECK(device->num_threads == 5 && cpu(8)->num_threads == 5);
  CHECK(mpg_device_set_threads(-1) == MPG_VALUE_ERROR);
  CHECK_OK(mpg_device_set_threads(0));
  CHECK(device->num_threads == (cores / 3 > 1 ? cores / 3 : 1));
}

static void test_scopes(void) {
  char text[32];
  uint32_t numbers[2000];
  for (int i = 0; i < 2000; i++) {
    snprintf(text, sizeof text, "net.block%d", i);
    CHECK((numbers[i] = mpg_scope_intern(text)) != 0);
  }
  for (int i = 0; i < 2000; i++) {
    snprintf(text, sizeof text, "net.block%d", i);
    CHECK(mpg_scope_intern(text) == numbers[i] && strcmp(mpg_scope_text(numbers[i]), text) == 0);
  }
  CHECK(mpg_scope_intern("") == 0 && *mpg_scope_text(0) == 0 && *mpg_scope_text(99999999) == 0);
}

static mpg_status record(mpg_run *run, void *payload) {
  (void)payload;
  mpg_profiler_record(run->device, &(mpg_event){.name = "op",
                                                .kind = MPG_EVENT_OP,
                                                .peer = -1,
                                                .begin_ns = mpg_clock_ns(),
                                                .end_ns = mpg_clock_ns()});
  return MPG_OK;
}

static void test_profiler(void) {
  _Atomic bool go = false;
  CHECK(!mpg_profiler_on());
  mpg_profiler_start();
  mpg_point held = {.device = cpu(1), .tick = hold(cpu(1), &go)};
  submit(cpu(0), record, NULL, 0, &held, 1);
  for (int i = 0; i < 1499; i++) submit(cpu(0), record, NULL, 0, NULL, 0);
  sleep_ms(100); /* until cpu(0) waits, even on a busy machine */
  atomic_store(&go, true);
  CHECK_OK(mpg_wait_all());
  mpg_profiler_stop();
  CHECK(mpg_profiler_event_count(cpu(0)) == 1501 && mpg_profiler_event_count(cpu(1)) == 0);
  mpg_event first = mpg_profiler_event(cpu(0), 0), last = mpg_profiler_event(cpu(0), 1500);
  CHECK(first.kind == MPG_EVENT_WAIT && first.peer == cpu(1)->ordinal &&
        first.end_ns > first.begin_ns);
  CHECK(last.kind == MPG_EVENT_OP && last.begin_ns >= first.end_ns);
  mpg_profiler_start();
  CHECK(mpg_profiler_event_count(cpu(0)) == 0);
  mpg_profiler_stop();
}

static void test_allocation_failures(void) {
  static char large[100000];
  int64_t n = 1;
  for (bool failed = true; failed && n < 1000; n++) {
    int before = discarded, queued = 0;
    mpg_device *devices[2] = {NULL, NULL};
    mpg_memory_fail_after(n, 1);
    mpg_status status =
        mpg_device_get((mpg_device_id){.type = MPG_CPU, .index = (int)n * 2}, &devices[0]);
    if (status == MPG_OK)
      status =
          mpg_device_get((mpg_device_id){.type = MPG_CPU, .index = (int)n * 2 + 1}, &devices[1]);
    mpg_submission one = {.name = "large",
                          .work = nothing,
                          .payload = large,
                          .payload_size = sizeof large,
                          .discard = count_discard};
    mpg_submission bad = {.name = "bad", .work = break_down, .discard = count_discard};
    mpg_submission both[2] = {one, one};
    mpg_tensor tensor = {0};
    mpg_tick ticks[2], bad_tick = 0;
    if (status == MPG_OK) queued++, status = submit_one(devices[0], &one, ticks);
    if (status == MPG_OK) queued += 2, status = submit_together(devices, both, 2, ticks);
    if (status == MPG_OK) queued++, status = submit_one(devices[1], &bad, &bad_tick);
    if (status == MPG_OK)
      status = mpg_tensor_create(devices[0], &(mpg_desc){{1, {1000}}, MPG_FLOAT32}, &tensor);
    if (status == MPG_OK) mpg_tensor_release(&tensor);
    mpg_status waited = mpg_wait_all();
    failed = mpg_memory_fail_after(0, 0);
    CHECK((status != MPG_OK) <= failed);
    if (status != MPG_OK)
      CHECK(status == MPG_HOST_OUT_OF_MEMORY || status == MPG_DEVICE_OUT_OF_MEMORY);
    CHECK((waited != MPG_OK) == (bad_tick != 0));
    if (bad_tick) CHECK(mpg_point_wait((mpg_point){devices[1], bad_tick, true}, false) != MPG_OK);
    CHECK(discarded == before + queued);
    int64_t counter = 0; /* everything works afterward */
    mpg_device *device = cpu((int)n * 2);
    submit(device, add_one, &(step){&counter, 0}, sizeof(step), NULL, 0);
    CHECK_OK(mpg_wait_all());
    CHECK(counter == 1);
    CHECK(discarded == before + queued + 1); /* nothing of the failed submission is left */
  }
  CHECK(n > 15 && n < 1000);
}

static void bench(void) {
  mpg_device *device = cpu(0);
  mpg_submission empty = {.name = "empty", .work = nothing};
  mpg_tick tick;
  for (int i = 0; i < 5000; i++) submit_one(device, &empty, &tick);
  mpg_wait_all();
  _Atomic bool go = false;
  hold(device, &go);
  int64_t begin = mpg_clock_ns();
  for (int i = 0; i < 1500; i++) submit_one(device, &empty, &tick);
  printf("submit to a busy worker: %.0f ns\n", (double)(mpg_clock_ns() - begin) / 1500);
  atomic_store(&go, true);
  mpg_wait_all();
  begin = mpg_clock_ns();
  for (int i = 0; i < 100000; i++) submit_one(device, &empty, &tick);
  mpg_wait_all();
  printf("submit and run, empty tasks: %.0f ns\n", (double)(mpg_clock_ns() - begin) / 100000);
  begin = mpg_clock_ns();
  for (int i = 0; i < 20000; i++) {
    submit_one(device, &empty, &tick);
    mpg_point_wait((mpg_point){device, tick, true}, false);
  }
  printf("round trip, worker awake: %.0f ns\n", (double)(mpg_clock_ns() - begin) / 20000);
  int64_t total = 0;
  for (int i = 0; i < 200; i++) {
    sleep_ms(2);
    begin = mpg_clock_ns();
    submit_one(device, &empty, &tick);
    mpg_point_wait((mpg_point){device, tick, true}, false);
    total += mpg_clock_ns() - begin;
  }
  printf("round trip, worker asleep: %.0f ns\n", (double)total / 200);
  begin = mpg_clock_ns();
  mpg_point point = {.device = device, .tick = 0};
  for (int i = 0; i < 20000; i++) {
    point.tick = submit(cpu(i % 2), nothing, NULL, 0, &point, 1);
    point.device = cpu(i % 2);
  }
  mpg_wait_all();
  printf("hand-over between devices: %.0f ns\n", (double)(mpg_clock_ns() - begin) / 20000);
  mpg_block block;
  begin = mpg_clock_ns();
  for (int i = 0; i < 1000000; i++)
    mpg_pool_alloc(device->pool, 64, false, &block), mpg_pool_free(device->pool, &block);
  printf("pool alloc and free: %.1f ns\n", (double)(mpg_clock_ns() - begin) / 1e6);
  mpg_tensor tensor;
  begin = mpg_clock_ns();
  for (int i = 0; i < 1000000; i++)
    mpg_tensor_create(device, &(mpg_desc){{2, {4, 4}}, MPG_FLOAT32}, &tensor),
        mpg_tensor_release(&tensor);
  printf("tensor create and release: %.1f ns\n", (double)(mpg_clock_ns() - begin) / 1e6);
}

static const test tests[] = {
    {"order", test_order},
    {"payload_sizes", test_payload_sizes},
    {"backpressure", test_backpressure},
    {"inline_ownership", test_inline_ownership},
    {"wake_ups", test_wake_ups},
    {"waiters_are_woken", test_waiters_are_woken},
    {"points", test_points},
    {"same_time", test_same_time},
    {"resumable", test_resumable},
    {"together_from_threads", test_together_from_threads},
    {"failures", test_failures},
    {"failure_after_signal", test_failure_after_signal},
    {"failure_passed_on_by_work", test_failure_passed_on_by_work},
    {"many_failures", test_many_failures},
    {"failures_without_memory_for_them", test_failures_without_memory_for_them},
    {"interrupt", test_interrupt},
    {"fork", test_fork},
    {"exit_with_work_queued", test_exit_with_work_queued},
    {"shutdown", test_shutdown},
    {"sync", test_sync},
    {"shuffle", test_shuffle},
    {"shuffle_from_threads", test_shuffle_from_threads},
    {"shuffle_fork", test_shuffle_fork},
    {"shuffle_exit", test_shuffle_exit},
    {"table", test_table},
    {"scopes", test_scopes},
    {"profiler", test_profiler},
    {"allocation_failures", test_allocation_failures},
};

int main(int argc, char **argv) {
  if (argc == 2 && strcmp(argv[1], "bench") == 0)
    return run_tests(&(test){"bench", bench}, 1, argc, argv);
  return run_tests(tests, sizeof tests / sizeof *tests, argc, argv);
}
