/* Rendezvous of devices (csrc/device/rendezvous.c): results per device, and aborted waits. */
#include "device/rendezvous.h"

#include "harness.h"

enum { DEVICES = 4, ROUNDS = 300 };

static mpg_device *cpu(int32_t index) {
  mpg_device *device;
  CHECK_OK(mpg_device_get((mpg_device_id){.type = MPG_CPU, .index = index}, &device));
  return device;
}

typedef struct visit {
  const char *key, *who, *form;
  int count, value;
  int *seen; /* [count] values of all and this one's place, or NULL */
} visit;

static mpg_status work(mpg_run *run, void *payload) {
  const visit *v = payload;
  mpg_rendezvous *rendezvous;
  int place;
  MPG_TRY(mpg_rendezvous_join(&(mpg_participant){.device = run->device,
                                                 .key = v->key,
                                                 .who = v->who,
                                                 .count = v->count,
                                                 .form = v->form,
                                                 .data = &v->value,
                                                 .size = sizeof v->value},
                              &rendezvous, &place));
  for (int i = 0; i < v->count; i++) v->seen[i] = *(const int *)mpg_rendezvous_data(rendezvous, i);
  v->seen[v->count] = place;
  mpg_rendezvous_leave(rendezvous);
  return MPG_OK;
}

static const char *const sums = "sums";

static mpg_tick send(int device, visit v) {
  mpg_tick tick;
  if (!v.who) v.who = sums;
  if (!v.form) v.form = "ints";
  CHECK_OK(submit_one(
      cpu(device),
      &(mpg_submission){.name = "visit", .work = work, .payload = &v, .payload_size = sizeof v},
      &tick));
  return tick;
}

static mpg_status wait_for(int device, mpg_tick tick) {
  return mpg_point_wait((mpg_point){cpu(device), tick, true}, false);
}

/* Each round joins in a different order; devices are opened in yet another one. */
static void test_places(void) {
  static int seen[ROUNDS][DEVICES][DEVICES + 1];
  static const char *const keys[] = {"a", "b"};
  for (int i = DEVICES; i-- > 0;) cpu(i);
  for (int round = 0; round < ROUNDS; round++)
    for (int i = 0; i < DEVICES; i++) {
      int device = (i + round) % DEVICES;
      send(device, (visit){.key = keys[round % 2],
                           .count = DEVICES,
                           .value = 10 * round + device,
                           .seen = seen[round][device]});
    }
  CHECK_OK(mpg_wait_all());
  for (int round = 0; round < ROUNDS; round++)
    for (int device = 0; device < DEVICES; device++) {
      for (int i = 0; i < DEVICES; i++) CHECK(seen[round][device][i] == 10 * round + i);
      CHECK(seen[round][device][DEVICES] == device);
    }
}

static void test_given_up(void) {
  int seen[DEVICES][DEVICES + 1];
  mpg_tick ticks[2];
  for (int i = 0; i < 2; i++) ticks[i] = send(i, (visit){.key = "k", .count = 3, .seen = seen[i]});
  CHECK(wait_for(0, ticks[0]) == MPG_ERROR);
  CHECK_TEXT("'k': sums need all 3 devices, but only 2 have joined (cpu(0), cpu(1))");
  CHECK(wait_for(1, ticks[1]) == MPG_ERROR);
  CHECK_TEXT("2 have joined");
  for (int i = 0; i < 3; i++)
    ticks[i % 2] = send(i, (visit){.key = "k", .count = 3, .value = i, .seen = seen[i]});
  CHECK_OK(mpg_wait_all());
  CHECK(seen[1][2] == 2);
}

/* Two devices that wait for each other at different rendezvous: a deadlock. */
static void test_other_places(void) {
  int seen[DEVICES][DEVICES + 1];
  mpg_tick first = send(0, (visit){.key = "k", .count = 2, .seen = seen[0]}),
           second = send(1, (visit){.key = "k", .who = "others", .count = 2, .seen = seen[1]});
  CHECK(wait_for(0, first) == MPG_ERROR);
  CHECK_TEXT("sums need all 2");
  CHECK(wait_for(1, second) == MPG_ERROR);
  CHECK_TEXT("others need all 2");
}

static void test_differ(void) {
  int seen[DEVICES][DEVICES + 1];
  mpg_tick first = send(0, (visit){.key = "k", .count = 3, .seen = seen[0]}),
           second = send(1, (visit){.key = "k", .form = "pairs", .count = 3, .seen = seen[1]});
  CHECK(wait_for(0, first) == MPG_ERROR);
  CHECK_TEXT("'k': replicas differ in sums");
  CHECK(wait_for(1, second) == MPG_ERROR);
  CHECK_TEXT("'k': replicas differ in sums");
}

static mpg_status sleep_long(mpg_run *run, void *payload) {
  (void)run, (void)payload;
  sleep_ms(800);
  return MPG_OK;
}

/* A device that is still working may join late. */
static void test_late(void) {
  int seen[DEVICES][DEVICES + 1];
  mpg_tick tick, first = send(0, (visit){.key = "k", .count = 2, .seen = seen[0]});
  CHECK_OK(submit_one(cpu(1), &(mpg_submission){.name = "sleep", .work = sleep_long}, &tick));
  send(1, (visit){.key = "k", .count = 2, .value = 5, .seen = seen[1]});
  CHECK_OK(wait_for(0, first));
  CHECK(seen[0][1] == 5);
  CHECK_OK(mpg_wait_all());
}

/* Many more submissions are queued on a waiting device than it normally has room for. */
static void test_room(void) {
  int seen[DEVICES][DEVICES + 1];
  static int after[5000][2];
  send(0, (visit){.key = "k", .count = 2, .seen = seen[0]});
  for (int i = 0; i < 5000; i++)
    send(0, (visit){.key = "alone", .count = 1, .value = i, .seen = after[i]});
  send(1, (visit){.key = "k", .count = 2, .seen = seen[1]});
  CHECK_OK(mpg_wait_all());
  CHECK(after[4999][0] == 4999);
}

static void test_modes(void) {
  int seen[DEVICES][DEVICES + 1];
  static const mpg_engine_mode modes[] = {MPG_ENGINE_SYNC, MPG_ENGINE_SHUFFLE};
  for (int i = 0; i < 2; i++) {
    CHECK_OK(mpg_engine_set_mode(modes[i], 1));
    mpg_tick tick;
    visit v = {.key = "k", .who = sums, .form = "ints", .count = 2, .seen = seen[0]};
    mpg_status status = submit_one(
        cpu(0),
        &(mpg_submission){.name = "visit", .work = work, .payload = &v, .payload_size = sizeof v},
        &tick);
    if (status == MPG_OK) status = wait_for(0, tick);
    CHECK(status == MPG_NOT_IMPLEMENTED);
    CHECK_TEXT(i ? "mode 'shuffle'" : "mode 'sync'");
  }
}

static void test_exit(void) {
  static int seen[DEVICES + 1];
  send(0, (visit){.key = "k", .count = 2, .seen = seen});
  sleep_ms(20);
  mpg_device_shutdown();
}

static const test tests[] = {
    {"places", test_places}, {"given_up", test_given_up}, {"other_places", test_other_places},
    {"differ", test_differ}, {"late", test_late},         {"room", test_room},
    {"modes", test_modes},   {"exit", test_exit},
};

int main(int argc, char **argv) {
  return run_tests(tests, sizeof tests / sizeof *tests, argc, argv);
}
