/* Thread teams that sleep if other programs want their cores (device/cpu/oversubscription.h). */
#define _GNU_SOURCE
#include <dirent.h>
#include <sched.h>
#include <sys/wait.h>

#include "device/cpu/oversubscription.h"
#include "harness.h"

static mpg_device *cpu(int index) {
  mpg_device *device;
  CHECK_OK(mpg_device_get((mpg_device_id){.type = MPG_CPU, .index = index}, &device));
  return device;
}

static mpg_status nothing(mpg_run *run, void *payload) {
  (void)run, (void)payload;
  return MPG_OK;
}

static void submit_nothing(mpg_device *device) {
  mpg_tick tick;
  CHECK_OK(submit_one(device, &(mpg_submission){.name = "step", .work = nothing}, &tick));
}

enum { MS = 1000000 };

/* Advances by 60 ms, of which `share` thousandths were spent waiting for a core. */
static bool after_window(mpg_oversubscription_state *s, int share) {
  mpg_oversubscription_judge(s, s->looked_ns + 60 * MS,
                             s->ran_ns + (uint64_t)(60 * MS - 60000 * share),
                             s->waited_ns + (uint64_t)(60000 * share));
  return s->oversubscribed;
}

static int windows_until_tried(mpg_oversubscription_state *s) {
  int windows = 1;
  while (after_window(s, 900)) windows++;
  return windows;
}

static void test_oversubscription(void) {
  mpg_oversubscription_state s = {0};
  /* time before the first check is ignored */
  mpg_oversubscription_judge(&s, 5000 * (int64_t)MS, 70 * MS, 900 * MS);
  CHECK(!s.oversubscribed);
  for (int i = 0; i < 100; i++) CHECK(!after_window(&s, 300));
  CHECK(after_window(&s, 400));
  CHECK(windows_until_tried(&s) == 4);
  for (int i = 0; i < 100; i++) CHECK(!after_window(&s, 0));

  /* Too short a window: checks again with a longer one. */
  mpg_oversubscription_judge(&s, s.looked_ns + 40 * MS, s.ran_ns + 20 * MS, s.waited_ns + 12 * MS);
  CHECK(!s.oversubscribed);
  mpg_oversubscription_judge(&s, s.looked_ns + 80 * MS, s.ran_ns + 40 * MS, s.waited_ns + 24 * MS);
  CHECK(s.oversubscribed);

  /* Crowded again soon afterward: each time lasts twice as long, up to half a minute. A long quiet
   * period resets it. */
  CHECK(windows_until_tried(&s) == 4);
  CHECK(after_window(&s, 900));
  CHECK(windows_until_tried(&s) == 7);
  for (int i = 0; i < 12; i++) {
    CHECK(after_window(&s, 900));
    windows_until_tried(&s);
  }
  CHECK(after_window(&s, 900));
  CHECK(windows_until_tried(&s) == 500);
  for (int i = 0; i < 2000; i++) CHECK(!after_window(&s, 0));
  CHECK(after_window(&s, 900));
  CHECK(windows_until_tried(&s) == 4);
}

static int threads_of_process(void) {
  DIR *folder = opendir("/proc/self/task");
  if (!folder) return -1;
  int count = 0;
  for (struct dirent *entry; (entry = readdir(folder));) count += entry->d_name[0] != '.';
  closedir(folder);
  return count;
}

static bool threads_become(int low, int high) {
  for (int i = 0; i < 2000; i++, sleep_ms(5)) {
    int count = threads_of_process();
    if (count >= low && count <= high) return true;
  }
  return false;
}

/* The setting creates a team that sleeps after the first task, also in a forked child. The team
 * ends with its worker. */
static void test_short_spins(void) {
  if (!getenv("MPGLUON_TEAM_SPIN")) { /* settings are read at startup */
    setenv("MPGLUON_TEAM_SPIN", "short", 1);
    setenv("MPGLUON_CPU_THREADS", "2", 1);
    CHECK(sched_setaffinity(0, sizeof(cpu_set_t), &(cpu_set_t){.__bits = {1}}) == 0);
    execl("/proc/self/exe", "test_oversubscription", "short_spins", (char *)NULL);
    CHECK(!"executed");
  }
  int before = threads_of_process();
  submit_nothing(cpu(0));
  CHECK(threads_become(before + 3, before + 3)); /* the worker and a team of two */
  submit_nothing(cpu(0));
  CHECK_OK(mpg_wait_all());
  pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    int alone = threads_of_process();
    submit_nothing(cpu(0));
    CHECK(threads_become(alone + 3, alone + 3));
    exit(42);
  }
  int status;
  CHECK(waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 42);
  mpg_device_shutdown();
  CHECK(threads_become(before, before));
}

static const test tests[] = {
    {"oversubscription", test_oversubscription},
    {"short_spins", test_short_spins},
};

int main(int argc, char **argv) {
  return run_tests(tests, sizeof tests / sizeof *tests, argc, argv);
}
