/* Finds and opens NVIDIA's libraries. */
#define _GNU_SOURCE
#include "kernels/cuda/vendor/library.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/runtime/runtime.h"

enum { MAJOR = CUDART_VERSION / 1000, FILES = 2 };

static const struct {
  /* folder: the folder in site-packages/nvidia that contains the CUDA 12 wheel's library */
  const char *name, *setting, *package, *folder;
  const char *files[FILES]; /* preferred version first */
} known[MPG_CUDA_LIBRARIES] = {
    [MPG_CUDA_CUBLASLT] = {"cuBLASLt",
                           "MPGLUON_CUBLAS",
                           "nvidia-cublas",
                           "cublas",
                           {MAJOR >= 13 ? "libcublasLt.so.13" : "libcublasLt.so.12",
                            MAJOR >= 13 ? "libcublasLt.so.12" : "libcublasLt.so.13"}},
    [MPG_CUDA_CUBLAS] = {"cuBLAS",
                         "MPGLUON_CUBLAS",
                         "nvidia-cublas",
                         "cublas",
                         {MAJOR >= 13 ? "libcublas.so.13" : "libcublas.so.12",
                          MAJOR >= 13 ? "libcublas.so.12" : "libcublas.so.13"}},
    [MPG_CUDA_CUSOLVER] = {"cuSOLVER",
                           "MPGLUON_CUSOLVER",
                           "nvidia-cusolver",
                           "cusolver",
                           {MAJOR >= 13 ? "libcusolver.so.12" : "libcusolver.so.11",
                            MAJOR >= 13 ? "libcusolver.so.11" : "libcusolver.so.12"}},
    [MPG_CUDA_CUDNN] =
        {"cuDNN", "MPGLUON_CUDNN", "nvidia-cudnn-cu13", "cudnn", {"libcudnn.so.9", NULL}},
    [MPG_CUDA_NCCL] = {"NCCL", "MPGLUON_NCCL", "nvidia-nccl-cu13", "nccl", {"libnccl.so.2", NULL}},
    [MPG_CUDA_NVRTC] = {"NVRTC",
                        "MPGLUON_NVRTC",
                        "nvidia-cuda-nvrtc",
                        "cuda_nvrtc",
                        {MAJOR >= 13 ? "libnvrtc.so.13" : "libnvrtc.so.12",
                         MAJOR >= 13 ? "libnvrtc.so.12" : "libnvrtc.so.13"}},
};

static mpg_library opened[MPG_CUDA_LIBRARIES];
static bool tried[MPG_CUDA_LIBRARIES];
static pthread_mutex_t opening = PTHREAD_MUTEX_INITIALIZER;

static bool try_open(mpg_cuda_library_id id, const char *folder, const char *between,
                     const char *file) {
  char path[sizeof opened[id].path];
  int length = snprintf(path, sizeof path, "%s%s%s%s", folder, between, *folder ? "/" : "", file);
  if (length < 0 || (size_t)length >= sizeof path) return false;
  opened[id].handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!opened[id].handle) {
    const char *why = dlerror();
    if (!strstr(why ? why : "", "No such file"))
      snprintf(opened[id].reason, sizeof opened[id].reason, "%s", why);
    return false;
  }
  snprintf(opened[id].path, sizeof opened[id].path, "%s", path);
  return true;
}

static bool look_for(mpg_cuda_library_id id, const char *file) {
  Dl_info own;
  char beside[400];
  if (dladdr((void *)(uintptr_t)mpg_cuda_library_path, &own) && own.dli_fname &&
      strrchr(own.dli_fname, '/')) {
    snprintf(beside, sizeof beside, "%.*s", (int)(strrchr(own.dli_fname, '/') - own.dli_fname),
             own.dli_fname);
    if (try_open(id, beside, "", file)) return true;
  }
  const char *setting = getenv(known[id].setting);
  if (setting && *setting)
    return try_open(id, setting, "", file) || try_open(id, setting, "/lib", file);
  const char *const *folders;
  int count = mpg_cuda_services->folders(&folders);
  for (int i = 0; i < count; i++) {
    char between[64];
    snprintf(between, sizeof between, "/nvidia/%s/lib", known[id].folder);
    if (try_open(id, folders[i], "/nvidia/cu13/lib", file) ||
        try_open(id, folders[i], between, file))
      return true;
  }
  return try_open(id, "", "", file);
}

/* Queries a library's version. Each library has a different function for this. */
static void ask_version(mpg_cuda_library_id id) {
  static const char *const properties[MPG_CUDA_LIBRARIES] = {
      [MPG_CUDA_CUBLASLT] = "cublasLtGetProperty",
      [MPG_CUDA_CUBLAS] = "cublasGetProperty",
      [MPG_CUDA_CUSOLVER] = "cusolverGetProperty",
      [MPG_CUDA_CUDNN] = "cudnnGetProperty"};
  int v[3] = {0};
  void *handle = opened[id].handle, *function;
  if (properties[id] && (function = dlsym(handle, properties[id]))) {
    int (*property)(int which, int *value) = (int (*)(int, int *))(uintptr_t)function;
    for (int i = 0; i < 3; i++) property(i, &v[i]); /* libraryPropertyType: major, minor, patch */
  } else if (id == MPG_CUDA_NCCL && (function = dlsym(handle, "ncclGetVersion"))) {
    int whole = 0;
    ((int (*)(int *))(uintptr_t)function)(&whole);
    v[0] = whole / 10000, v[1] = whole / 100 % 100, v[2] = whole % 100;
  } else if (id == MPG_CUDA_NVRTC && (function = dlsym(handle, "nvrtcVersion"))) {
    ((int (*)(int *, int *))(uintptr_t)function)(&v[0], &v[1]);
  }
  snprintf(opened[id].version, sizeof opened[id].version, "%d.%d.%d", v[0], v[1], v[2]);
}

static void open_once(mpg_cuda_library_id id) {
  pthread_mutex_lock(&opening);
  opened[id].name = known[id].name;
  opened[id].setting = known[id].setting;
  for (int i = 0; !tried[id] && i < FILES && !opened[id].handle && known[id].files[i]; i++)
    look_for(id, known[id].files[i]);
  if (!tried[id] && opened[id].handle) ask_version(id);
  tried[id] = true;
  pthread_mutex_unlock(&opening);
}

const mpg_library *mpg_cuda_library_found(int number) {
  if (number < 0 || number >= MPG_CUDA_LIBRARIES) return NULL;
  static mpg_library shown[MPG_CUDA_LIBRARIES];
  mpg_cuda_library_id id = (mpg_cuda_library_id)number;
  open_once(id);
  pthread_mutex_lock(&opening);
  shown[id] = opened[id];
  if (!opened[id].handle)
    snprintf(shown[id].reason, sizeof shown[id].reason,
             "%.120s%sinstall it with pip install %s, or set its folder with %s", opened[id].reason,
             opened[id].reason[0] ? "; " : "", known[id].package, known[id].setting);
  pthread_mutex_unlock(&opening);
  return &shown[id];
}

mpg_status mpg_cuda_library_functions(mpg_cuda_library_id id, const char *const *names, int count,
                                      void *functions) {
  open_once(id);
  if (!opened[id].handle)
    return mpg_fail(MPG_ERROR,
                    "%s (%s) is needed for this on a GPU but was not found%s%s: install it with "
                    "pip install %s, or set its folder with %s",
                    known[id].name, known[id].files[0], opened[id].reason[0] ? "; " : "",
                    opened[id].reason, known[id].package, known[id].setting);
  for (int i = 0; i < count; i++) {
    void *address = dlsym(opened[id].handle, names[i]);
    if (!address)
      return mpg_fail(
          MPG_ERROR,
          "%s at %s is too old: function %s is missing; update it with pip install -U %s",
          known[id].name, opened[id].path, names[i], known[id].package);
    memcpy((char *)functions + (size_t)i * sizeof address, &address, sizeof address);
  }
  return MPG_OK;
}

void mpg_cuda_library_open_beside(mpg_cuda_library_id id, const char *file) {
  const char *own = opened[id].path, *end = strrchr(own, '/');
  char path[sizeof opened[id].path];
  if (!end) return; /* found in the system's search path, which also finds the other file */
  int length = snprintf(path, sizeof path, "%.*s/%s", (int)(end - own), own, file);
  if (length > 0 && (size_t)length < sizeof path) dlopen(path, RTLD_NOW | RTLD_LOCAL);
}

const char *mpg_cuda_library_path(mpg_cuda_library_id id) { return opened[id].path; }
