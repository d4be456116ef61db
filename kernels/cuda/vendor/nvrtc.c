/* Loads NVRTC, and compiles and loads C++ code. */
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/memory.h"
#include "kernels/cuda/runtime/runtime.h"
#include "kernels/cuda/vendor/library.h"
#include "kernels/cuda/vendor/nvrtc_cache.h"

static struct {
  pthread_mutex_t mutex;
  bool looked;
  mpg_status found;
  struct {
    MPG_NVRTC_FUNCTIONS(MPG_CUDA_FUNCTION)
  } functions;
} nvrtc = {.mutex = PTHREAD_MUTEX_INITIALIZER};

/* Opens NVRTC's file of built-in functions. NVRTC opens it without a path when it compiles, which
 * fails for NVIDIA's wheels unless the file is already open. */
static void open_builtins(void) {
  int major, minor;
  char file[64];
  if (nvrtc.functions.nvrtcVersion(&major, &minor) != 0) return;
  snprintf(file, sizeof file, "libnvrtc-builtins.so.%d.%d", major, minor);
  mpg_cuda_library_open_beside(MPG_CUDA_NVRTC, file);
}

mpg_status mpg_nvrtc_find(void) {
  static const char *const names[] = {MPG_NVRTC_FUNCTIONS(MPG_CUDA_FUNCTION_NAME)};
  _Static_assert(sizeof nvrtc.functions == sizeof names, "one name for each function");
  pthread_mutex_lock(&nvrtc.mutex);
  if (!nvrtc.looked || nvrtc.found != MPG_OK) /* after a failure, retries to report the error */
    nvrtc.found = mpg_cuda_library_functions(MPG_CUDA_NVRTC, names,
                                             (int)(sizeof names / sizeof *names), &nvrtc.functions);
  if (!nvrtc.looked && nvrtc.found == MPG_OK) open_builtins();
  nvrtc.looked = true;
  mpg_status status = nvrtc.found;
  pthread_mutex_unlock(&nvrtc.mutex);
  return status;
}

static mpg_status fail(mpg_nvrtc_program_handle program, const mpg_nvrtc_source *s,
                       mpg_nvrtc_result result) {
  size_t length = 0;
  char *log = NULL;
  if (program && nvrtc.functions.nvrtcGetProgramLogSize(program, &length) == 0)
    log = mpg_calloc(length + 1, 1);
  bool told = log && nvrtc.functions.nvrtcGetProgramLog(program, log) == 0 && *log;
  mpg_status status =
      mpg_fail(MPG_ERROR, "NVRTC at %s could not compile %s%s%s: %.700s",
               mpg_cuda_library_path(MPG_CUDA_NVRTC), s->name, s->hint ? "; " : "",
               s->hint ? s->hint : "", told ? log : nvrtc.functions.nvrtcGetErrorString(result));
  mpg_free(log);
  return status;
}

/* Compile options: the current GPU's architecture, unless the source sets one, then the source's
 * own options. */
typedef struct choices {
  int count;
  const char *options[MPG_NVRTC_MAX_OPTIONS + 1];
  char architecture[40];
} choices;

static void choose(const mpg_nvrtc_source *s, choices *c) {
  int card = 0, major = 9, minor = 0;
  cudaGetDevice(&card);
  cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, card);
  cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, card);
  snprintf(c->architecture, sizeof c->architecture, "--gpu-architecture=sm_%d%d", major, minor);
  c->options[0] = c->architecture;
  c->count = 1;
  for (int i = 0; i < s->num_options; i++)
    if (!strncmp(s->options[i], "--gpu-architecture", 18) || !strncmp(s->options[i], "-arch", 5))
      c->count = 0;
  for (int i = 0; i < s->num_options && i < MPG_NVRTC_MAX_OPTIONS; i++)
    c->options[c->count++] = s->options[i];
}

static mpg_status compile(const mpg_nvrtc_source *s, const choices *c, mpg_nvrtc_code *result) {
  mpg_nvrtc_program_handle program = NULL;
  mpg_status status = MPG_OK;
  *result = (mpg_nvrtc_code){0};
  mpg_nvrtc_result error = nvrtc.functions.nvrtcCreateProgram(
      &program, s->text, s->name, s->num_headers, s->header_texts, s->header_names);
  for (int i = 0; i < s->num_exports && error == 0; i++)
    error = nvrtc.functions.nvrtcAddNameExpression(program, s->exports[i]);
  if (error == 0) error = nvrtc.functions.nvrtcCompileProgram(program, c->count, c->options);
  if (error == 0) error = nvrtc.functions.nvrtcGetCUBINSize(program, &result->size);
  if (error == 0 && !(result->code = mpg_malloc(result->size)))
    MPG_GOTO(mpg_out_of_host_memory(result->size));
  if (error == 0) error = nvrtc.functions.nvrtcGetCUBIN(program, result->code);
  for (int i = 0; i < s->num_exports && error == 0; i++) {
    const char *name;
    error = nvrtc.functions.nvrtcGetLoweredName(program, s->exports[i], &name);
    if (error == 0 && !(result->names[i] = mpg_strdup(name)))
      MPG_GOTO(mpg_out_of_host_memory(strlen(name)));
  }
  if (error != 0) status = fail(program, s, error);
fail:
  if (program) nvrtc.functions.nvrtcDestroyProgram(&program);
  if (status != MPG_OK) mpg_nvrtc_free(result);
  return status;
}

/* True if compiled code may be cached, because it depends only on texts that are part of the key:
 * all includes are among the given headers, and no option names a file. */
static bool complete(const mpg_nvrtc_source *s) {
  static const char *const reads_files[] = {"-include", "--pre-include", "-optf", "--options-file"};
  if (!s->num_headers && strstr(s->text, "include")) return false;
  for (int i = 0; i < s->num_options; i++)
    for (size_t k = 0; k < sizeof reads_files / sizeof *reads_files; k++)
      if (!strncmp(s->options[i], reads_files[k], strlen(reads_files[k]))) return false;
  return true;
}

static mpg_nvrtc_key key_of(const mpg_nvrtc_source *s, const choices *c) {
  mpg_nvrtc_key key = {{0}};
  struct stat found = {0};
  int major = 0, minor = 0;
  char about[120];
  nvrtc.functions.nvrtcVersion(&major, &minor);
  stat(mpg_cuda_library_path(MPG_CUDA_NVRTC), &found); /* its size distinguishes patch releases */
  snprintf(about, sizeof about, "%d.%d %lld; %d %d %d", major, minor, (long long)found.st_size,
           c->count, s->num_exports, s->num_headers);
  mpg_nvrtc_key_add(&key, about);
  for (int i = 0; i < c->count; i++) mpg_nvrtc_key_add(&key, c->options[i]);
  for (int i = 0; i < s->num_exports; i++) mpg_nvrtc_key_add(&key, s->exports[i]);
  for (int i = 0; i < s->num_headers; i++) {
    mpg_nvrtc_key_add(&key, s->header_names[i]);
    mpg_nvrtc_key_add(&key, s->header_texts[i]);
  }
  mpg_nvrtc_key_add(&key, s->text);
  return key;
}

static mpg_status load(const mpg_nvrtc_code *code, void **library) {
#if CUDART_VERSION >= 12080
  cudaLibrary_t loaded;
  cudaError_t error = cudaLibraryLoadData(&loaded, code->code, NULL, NULL, 0, NULL, NULL, 0);
  int card;
  if (error == cudaErrorMemoryAllocation && cudaGetDevice(&card) == cudaSuccess) {
    cudaGetLastError();
    mpg_cuda_services->make_room(card);
    error = cudaLibraryLoadData(&loaded, code->code, NULL, NULL, 0, NULL, NULL, 0);
  }
  MPG_TRY(mpg_cuda_check(error, "cudaLibraryLoadData"));
  *library = loaded;
  return MPG_OK;
#else
  (void)code, (void)library;
  return mpg_fail(MPG_NOT_IMPLEMENTED, "the CUDA runtime is older than 12.8");
#endif
}

mpg_status mpg_nvrtc_build(const mpg_nvrtc_source *s, mpg_nvrtc_code *code, void **library) {
  choices c;
  bool kept;
  *code = (mpg_nvrtc_code){0};
  MPG_TRY(mpg_nvrtc_find());
  MPG_TRY(mpg_nvrtc_cache_open(&kept));
  kept = kept && complete(s);
  choose(s, &c);
  mpg_nvrtc_key key = key_of(s, &c);
  if (kept && mpg_nvrtc_cache_read(&key, s->num_exports, code)) {
    if (load(code, library) == MPG_OK) return MPG_OK;
    mpg_nvrtc_free(code); /* the cached code cannot be loaded, so compile the source */
  }
  MPG_TRY(compile(s, &c, code));
  mpg_status status = load(code, library);
  if (status == MPG_OK && kept) mpg_nvrtc_cache_write(&key, s->num_exports, code);
  if (status != MPG_OK) mpg_nvrtc_free(code);
  return status;
}

void mpg_nvrtc_free(mpg_nvrtc_code *code) {
  for (int i = 0; i < MPG_NVRTC_MAX_EXPORTS; i++) mpg_free(code->names[i]);
  mpg_free(code->code);
  *code = (mpg_nvrtc_code){0};
}

mpg_status mpg_nvrtc_kernel(void *library, const char *name, const void **kernel) {
#if CUDART_VERSION >= 12080
  cudaKernel_t found;
  MPG_CUDA_TRY(cudaLibraryGetKernel(&found, (cudaLibrary_t)library, name));
  *kernel = (const void *)found;
  return MPG_OK;
#else
  (void)library, (void)name, (void)kernel;
  return mpg_fail(MPG_NOT_IMPLEMENTED, "the CUDA runtime is older than 12.8");
#endif
}
