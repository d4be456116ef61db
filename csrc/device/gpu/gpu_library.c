/* Locates and opens the library of GPU kernels. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/library.h"
#include "device/gpu/gpu.h"
#include "device/internal.h"

static struct { /* runtime state, guarded by the host lock */
  const mpg_gpu_library *library;
  void (*opened)(const mpg_gpu_library *library);
  uint64_t stamp;
  pid_t process;    /* the process that opened the library */
  char reason[512]; /* why the library is unavailable; "" if opening has not been tried */
} gpu_library;

void mpg_gpu_library_on_open(void (*opened)(const mpg_gpu_library *library), uint64_t stamp) {
  gpu_library.opened = opened;
  gpu_library.stamp = stamp;
}

static mpg_status service_fail(mpg_status code, const char *format, va_list arguments) {
  char text[1024];
  vsnprintf(text, sizeof text, format, arguments);
  return mpg_fail(code, "%s", text);
}

/* Sets `path` to the value of MPGLUON_CUDA_LIBRARY or, if it is unset, to the GPU library in the
 * folder of this library. Returns false and sets the reason if GPUs are turned off or the file does
 * not exist. */
static bool library_path(char *path, size_t size) {
  const char *setting = getenv("MPGLUON_CUDA_LIBRARY");
  if (setting && !strcmp(setting, "0")) {
    snprintf(gpu_library.reason, sizeof gpu_library.reason,
             "GPUs are turned off by MPGLUON_CUDA_LIBRARY=0");
    return false;
  }
  if (setting && *setting) {
    snprintf(path, size, "%s", setting);
    return true;
  }
  Dl_info info;
  if (!dladdr((void *)(uintptr_t)mpg_gpu_library_get, &info) || !info.dli_fname)
    info.dli_fname = "";
  const char *slash = strrchr(info.dli_fname, '/');
  int folder = slash ? (int)(slash - info.dli_fname) + 1 : 0;
  snprintf(path, size, "%.*s_cuda.so", folder, info.dli_fname);
  FILE *file = fopen(path, "rb");
  if (file) {
    fclose(file);
    return true;
  }
  snprintf(
      gpu_library.reason, sizeof gpu_library.reason,
      "this build of mpgluon has no GPU kernels: install it on a machine with nvcc (docs/cuda.md), "
      "or use CPU devices (python -m mpgluon.port --write --cpu changes mx.gpu to mx.cpu)");
  return false;
}

const mpg_gpu_library *mpg_gpu_library_get(const char **reason) {
  static const mpg_gpu_services services = {.fail = service_fail,
                                            .error_text = mpg_error_text,
                                            .scratch = mpg_device_scratch_slot,
                                            .folders = mpg_library_folders,
                                            .check = mpg_gpu_check,
                                            .rendezvous_join = mpg_rendezvous_join,
                                            .rendezvous_data = mpg_rendezvous_data,
                                            .rendezvous_leave = mpg_rendezvous_leave,
                                            .make_room = mpg_gpu_make_room};
  *reason = gpu_library.reason;
  if (gpu_library.library || gpu_library.reason[0]) return gpu_library.library;
  char path[480];
  if (!library_path(path, sizeof path)) return NULL;
  void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!handle) {
    snprintf(gpu_library.reason, sizeof gpu_library.reason,
             "the library of GPU kernels cannot be opened: %.400s", dlerror());
    return NULL;
  }
  mpg_gpu_library_open_fn open =
      (mpg_gpu_library_open_fn)(uintptr_t)dlsym(handle, MPG_GPU_LIBRARY_OPEN);
  const mpg_gpu_library *library = open ? open(&services) : NULL;
  if (!library || library->stamp != gpu_library.stamp) {
    snprintf(gpu_library.reason, sizeof gpu_library.reason,
             "%.400s was built from different sources than mpgluon; rebuild both", path);
    return NULL; /* the handle stays open, which is harmless */
  }
  gpu_library.library = library;
  gpu_library.process = getpid();
  if (gpu_library.opened) gpu_library.opened(library);
  return library;
}

bool mpg_gpu_library_forked(void) { return gpu_library.library && gpu_library.process != getpid(); }

int mpg_gpu_count(const char **reason) {
  const char *why;
  if (!reason) reason = &why;
  const mpg_gpu_library *library = mpg_gpu_library_get(reason);
  return library ? library->driver->count(reason) : 0;
}

const mpg_library *mpg_gpu_vendor_library(int number) {
  const char *reason;
  return mpg_gpu_count(&reason) ? mpg_gpu_library_get(&reason)->driver->library(number) : NULL;
}

mpg_status mpg_gpu_collectives(const mpg_device_id *ids, int count) {
  enum { MOST = 64 };
  const char *reason;
  int indices[MOST];
  for (int i = 0; i < count; i++) {
    if (i == MOST)
      return mpg_fail(MPG_NOT_IMPLEMENTED, "NCCL: at most %d GPUs can take part in a collective",
                      MOST);
    if (ids[i].rank)
      return mpg_fail(
          MPG_NOT_IMPLEMENTED,
          "NCCL works only between GPUs of one process; use transport='local' between ranks");
    if (ids[i].type != MPG_GPU)
      return mpg_fail(MPG_NOT_IMPLEMENTED,
                      "NCCL works only between GPUs, but %s is not a GPU; use transport='local' "
                      "between other devices",
                      mpg_device_id_text(ids[i]).text);
    indices[i] = ids[i].index;
  }
  const mpg_gpu_library *library = mpg_gpu_library_get(&reason);
  return library ? library->driver->collectives(indices, count) : mpg_fail(MPG_ERROR, "%s", reason);
}
