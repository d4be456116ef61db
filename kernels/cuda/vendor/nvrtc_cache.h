/* Persistent cache of code compiled by NVRTC, in files that all processes of a user share.
 *
 * A file is named by a hash of everything that the code depends on. It is written under a temporary
 * name and renamed, so that readers never see a partial file. A damaged file is ignored and
 * rewritten. If no file can be written, code is compiled in each process. When all files together
 * exceed a limit, the least recently read ones are deleted. MPGLUON_CUDA_CACHE names the folder; 0
 * disables the cache. The default is mpgluon in the user's cache folder. MPGLUON_CUDA_CACHE_SIZE is
 * the limit in MiB.
 *
 * Threads: any.
 */
#ifndef KERNELS_CUDA_VENDOR_NVRTC_CACHE_H
#define KERNELS_CUDA_VENDOR_NVRTC_CACHE_H

#include "kernels/cuda/vendor/nvrtc.h"

typedef struct mpg_nvrtc_key {
  uint64_t words[2];
} mpg_nvrtc_key;

/* Reads the settings and creates the folder. Sets *used to false if the cache is disabled or its
 * folder cannot be used. */
mpg_status mpg_nvrtc_cache_open(bool *used);
/* Adds `text`, which the code depends on, to the key. A key starts as all zeros. The order of the
 * texts matters. */
void mpg_nvrtc_key_add(mpg_nvrtc_key *key, const char *text);
/* Reads the cached code of a key, with the names of `num_names` exports. Returns false if the code
 * is not cached. Free the code with mpg_nvrtc_free. */
bool mpg_nvrtc_cache_read(const mpg_nvrtc_key *key, int num_names, mpg_nvrtc_code *code);
void mpg_nvrtc_cache_write(const mpg_nvrtc_key *key, int num_names, const mpg_nvrtc_code *code);

#endif
