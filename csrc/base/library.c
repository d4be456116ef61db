/* Loader of the optional libraries oneDNN and OpenBLAS. */
#include "base/library.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"

static void onednn_version(mpg_library *library);
static void openblas_version(mpg_library *library);

static const struct {
  const char *name, *setting, *file;
  void (*version)(mpg_library *library);
} known_library[MPG_LIBRARY_COUNT] = {
    [MPG_LIBRARY_ONEDNN] = {"oneDNN", "MPGLUON_ONEDNN", "libdnnl.so.3", onednn_version},
    [MPG_LIBRARY_OPENBLAS] = {"OpenBLAS", "MPGLUON_OPENBLAS", "libscipy_openblas.so",
                              openblas_version},
};

static mpg_library library_table[MPG_LIBRARY_COUNT];
static pthread_once_t library_opened[MPG_LIBRARY_COUNT] = {PTHREAD_ONCE_INIT, PTHREAD_ONCE_INIT};
static char **library_folders; /* owned */
static int num_library_folders;

mpg_status mpg_library_set_folders(const char *const *folders, int count) {
  char **copies = mpg_calloc((size_t)count + 1, sizeof *copies);
  if (!copies) return mpg_out_of_host_memory(((size_t)count + 1) * sizeof *copies);
  for (int i = 0; i < count; i++) {
    copies[i] = mpg_strdup(folders[i]);
    if (!copies[i]) {
      size_t size = strlen(folders[i]) + 1;
      while (i--) mpg_free(copies[i]);
      mpg_free(copies);
      return mpg_out_of_host_memory(size);
    }
  }
  for (int i = 0; i < num_library_folders; i++) mpg_free(library_folders[i]);
  mpg_free(library_folders);
  library_folders = copies;
  num_library_folders = count;
  return MPG_OK;
}

int mpg_library_folders(const char *const **folders) {
  *folders = (const char *const *)library_folders;
  return num_library_folders;
}

/* Declares the start of oneDNN's version struct, so that csrc/base does not include oneDNN's
 * headers. These fields are the same in oneDNN 1 to 3. */
static void onednn_version(mpg_library *library) {
  struct version {
    int major, minor, patch;
  };
  const struct version *(*query)(void) =
      (const struct version *(*)(void))mpg_library_symbol(library, "dnnl_version");
  const struct version *version = query ? query() : NULL;
  if (version)
    snprintf(library->version, sizeof library->version, "%d.%d.%d", version->major, version->minor,
             version->patch);
}

static void openblas_version(mpg_library *library) {
  const char *(*query)(void) =
      (const char *(*)(void))mpg_library_symbol(library, "scipy_openblas_get_config");
  /* The text is like "OpenBLAS 0.3.29 DYNAMIC_ARCH ... MAX_THREADS=64". */
  const char *text = query ? query() : NULL;
  if (!text) return;
  const char *name = strchr(text, ' ');
  if (!strncmp(text, "OpenBLAS ", 9)) text = name + 1;
  snprintf(library->version, sizeof library->version, "%.*s", (int)strcspn(text, " "), text);
}

/* Opens the library at the path `folder` + `between` + `file`, or at `file` if `folder` is NULL. */
static bool try_open(mpg_library *library, const char *folder, const char *between,
                     const char *file) {
  char path[sizeof library->path];
  int length = folder ? snprintf(path, sizeof path, "%s%s%s", folder, between, file)
                      : snprintf(path, sizeof path, "%s", file);
  if (length < 0 || (size_t)length >= sizeof path) return false;
  library->handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!library->handle) {
    const char *why = dlerror();
    snprintf(library->reason, sizeof library->reason, "%s", why ? why : "could not be opened");
    return false;
  }
  library->reason[0] = 0;
  snprintf(library->path, sizeof library->path, "%s", path);
  return true;
}

static void open_library(mpg_library_id id) {
  mpg_library *library = &library_table[id];
  const char *file = known_library[id].file;
  library->name = known_library[id].name;
  library->setting = known_library[id].setting;
  const char *setting = getenv(library->setting);
  if (setting && !strcmp(setting, "0")) {
    snprintf(library->reason, sizeof library->reason, "turned off by %s=0", library->setting);
    return;
  }
  bool found = false;
  if (setting && setting[0]) {
    found = try_open(library, setting, "/lib/", file) || try_open(library, setting, "/", file);
    if (!found) return; /* only the folder that the variable names is searched */
  }
  for (int i = 0; i < num_library_folders && !found; i++)
    found = try_open(library, library_folders[i], "/", file);
  if (!found) found = try_open(library, NULL, "", file);
  if (!found) return;
  known_library[id].version(library);
}

static void open_onednn(void) { open_library(MPG_LIBRARY_ONEDNN); }
static void open_openblas(void) { open_library(MPG_LIBRARY_OPENBLAS); }

const mpg_library *mpg_library_get(mpg_library_id id) {
  static void (*const library_openers[MPG_LIBRARY_COUNT])(void) = {open_onednn, open_openblas};
  pthread_once(&library_opened[id], library_openers[id]);
  return &library_table[id];
}

void *mpg_library_symbol(const mpg_library *library, const char *symbol) {
  return library->handle ? dlsym(library->handle, symbol) : NULL;
}
