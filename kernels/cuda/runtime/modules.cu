/* Kernels that users write in CUDA C++ (mx.rtc). NVRTC compiles a source once per process. Loaded
 * modules are cached, with the source text, options and exports as the key. */
#include <pthread.h>
#include <string.h>

#include "kernels/cuda/cuda.h"
extern "C" {
#include "kernels/cuda/vendor/nvrtc.h"
}

namespace {

struct module {
  module *next;
  char *key; /* owned; built by make_key */
  size_t size;
  int num_exports;
  const char *exports[MPG_NVRTC_MAX_EXPORTS]; /* point into the key */
  mpg_nvrtc_code code;
  void *library;
};

/* Cache of loaded modules, guarded by the mutex. */
struct {
  pthread_mutex_t mutex;
  module *modules; /* live as long as the process */
} made = {PTHREAD_MUTEX_INITIALIZER, NULL};

void append(char **to, const char *text) {
  size_t size = strlen(text) + 1;
  memcpy(*to, text, size);
  *to += size;
}

/* Returns the exports, the options and the source as consecutive NUL-terminated strings, with an
 * empty string after each of the first two lists. Returns NULL if out of memory. */
char *make_key(const mpg_gpu_source *s, size_t *size) {
  *size = strlen(s->text) + 3;
  for (int i = 0; i < s->num_exports; i++) *size += strlen(s->exports[i]) + 1;
  for (int i = 0; i < s->num_options; i++) *size += strlen(s->options[i]) + 1;
  char *key = (char *)mpg_calloc(*size, 1), *end = key;
  if (!key) return NULL;
  for (int i = 0; i < s->num_exports; i++) append(&end, s->exports[i]);
  append(&end, "");
  for (int i = 0; i < s->num_options; i++) append(&end, s->options[i]);
  append(&end, "");
  append(&end, s->text);
  return key;
}

mpg_status make(const mpg_gpu_source *s, module *m) {
  mpg_nvrtc_source source = {};
  source.text = s->text;
  source.name = "a CudaModule";
  source.num_options = s->num_options;
  source.options = s->options;
  source.num_exports = s->num_exports;
  source.exports = s->exports;
  MPG_TRY(mpg_nvrtc_build(&source, &m->code, &m->library));
  const char *at = m->key;
  for (m->num_exports = 0; *at; at += strlen(at) + 1) m->exports[m->num_exports++] = at;
  return MPG_OK;
}

mpg_status compile(const mpg_gpu_source *s, void **result) {
  size_t size;
  if (s->num_options > MPG_NVRTC_MAX_OPTIONS || s->num_exports > MPG_NVRTC_MAX_EXPORTS)
    return mpg_fail(MPG_VALUE_ERROR, "CudaModule: at most %d options and %d exports are supported",
                    MPG_NVRTC_MAX_OPTIONS, MPG_NVRTC_MAX_EXPORTS);
  char *key = make_key(s, &size);
  if (!key) return mpg_out_of_host_memory(size);
  mpg_status status = MPG_OK;
  pthread_mutex_lock(&made.mutex);
  module *m = made.modules;
  while (m && (m->size != size || memcmp(m->key, key, size))) m = m->next;
  if (!m && (m = (module *)mpg_calloc(1, sizeof *m))) {
    m->key = key;
    m->size = size;
    status = make(s, m);
    if (status == MPG_OK) {
      key = NULL;
      m->next = made.modules;
      made.modules = m;
    } else {
      mpg_nvrtc_free(&m->code);
      mpg_free(m);
    }
  } else if (!m) {
    status = mpg_out_of_host_memory(sizeof *m);
  }
  pthread_mutex_unlock(&made.mutex);
  mpg_free(key);
  *result = m;
  return status;
}

mpg_status kernel(void *object, const char *name, const void **result) {
  const module *m = (const module *)object;
  const char *found = name;
  for (int i = 0; i < m->num_exports; i++)
    if (!strcmp(m->exports[i], name)) found = m->code.names[i];
  if (mpg_nvrtc_kernel(m->library, found, result) == MPG_OK) return MPG_OK;
  return mpg_fail(MPG_ERROR,
                  "CudaModule: kernel \"%s\" is not found; declare it extern \"C\", or add its "
                  "name to the exports",
                  name);
}

mpg_status launch(const void *function, void *stream, const uint32_t grid[3],
                  const uint32_t block[3], uint32_t shared, void **arguments) {
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(grid[0], grid[1], grid[2]);
  config.blockDim = dim3(block[0], block[1], block[2]);
  config.dynamicSmemBytes = shared;
  config.stream = (cudaStream_t)stream;
  return mpg_cuda_check(cudaLaunchKernelExC(&config, function, arguments), "a kernel launch");
}

} // namespace

extern "C" const mpg_gpu_modules mpg_cuda_modules;
const mpg_gpu_modules mpg_cuda_modules = {compile, kernel, launch};
