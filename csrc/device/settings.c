/* Settings from the environment, read once at startup. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "device/internal.h"

enum { DEFAULT_SPIN_US = 50 }; /* about the time that waking a sleeping thread takes */

/* Written once, before any device is open. */
static struct {
  int64_t idle_spin_ns;
  mpg_team_spin team_spin;
  bool poison_pools;
} settings;

mpg_team_spin mpg_team_spin_setting(void) { return settings.team_spin; }
bool mpg_pool_poison_setting(void) { return settings.poison_pools; }
int64_t mpg_idle_spin_ns(void) { return settings.idle_spin_ns; }

/* Reads an integer from the environment. Leaves *value unchanged if the variable is unset or
 * empty. */
static mpg_status setting(const char *name, long long low, long long high, long long *value) {
  const char *text = getenv(name);
  if (!text || !*text) return MPG_OK;
  char *end;
  errno = 0;
  long long parsed = strtoll(text, &end, 10);
  if (errno || *end || parsed < low || parsed > high)
    return mpg_fail(MPG_VALUE_ERROR,
                    "environment variable %s is '%.80s'; it must be an integer from %lld to %lld",
                    name, text, low, high);
  *value = parsed;
  return MPG_OK;
}

mpg_status mpg_settings_read(mpg_start_settings *start) {
  long long threads = 0, seed = 0, spin = DEFAULT_SPIN_US, poison = 0;
  MPG_TRY(setting("MPGLUON_SPIN", 0, 1000, &spin));
  settings.idle_spin_ns = mpg_machine_cores() > 1 ? spin * 1000 : 0;
  MPG_TRY(setting("MPGLUON_CPU_THREADS", 0, 4096, &threads));
  MPG_TRY(setting("MPGLUON_ENGINE_SEED", 0, INT64_MAX, &seed));
  MPG_TRY(setting("MPGLUON_POOL_POISON", 0, 1, &poison));
  settings.poison_pools = poison;
  mpg_engine_mode mode = MPG_ENGINE_ASYNC;
  const char *engine = getenv("MPGLUON_ENGINE"), *mxnet = getenv("MXNET_ENGINE_TYPE");
  if (engine && *engine) {
    if (strcmp(engine, "sync") == 0)
      mode = MPG_ENGINE_SYNC;
    else if (strcmp(engine, "shuffle") == 0)
      mode = MPG_ENGINE_SHUFFLE;
    else if (strcmp(engine, "async") != 0)
      return mpg_fail(
          MPG_VALUE_ERROR,
          "environment variable MPGLUON_ENGINE is '%.80s'; it must be async, sync or shuffle",
          engine);
  } else if (mxnet && strcmp(mxnet, "NaiveEngine") == 0) {
    mode = MPG_ENGINE_SYNC;
  }
  const char *team_spin = getenv("MPGLUON_TEAM_SPIN");
  if (team_spin && *team_spin) {
    if (strcmp(team_spin, "long") == 0)
      settings.team_spin = MPG_TEAM_SPIN_LONG;
    else if (strcmp(team_spin, "short") == 0)
      settings.team_spin = MPG_TEAM_SPIN_SHORT;
    else if (strcmp(team_spin, "auto") != 0)
      return mpg_fail(
          MPG_VALUE_ERROR,
          "environment variable MPGLUON_TEAM_SPIN is '%.80s'; it must be auto, short or long",
          team_spin);
  }
  *start =
      (mpg_start_settings){.fixed_threads = (int)threads, .mode = mode, .seed = (uint64_t)seed};
  return MPG_OK;
}
