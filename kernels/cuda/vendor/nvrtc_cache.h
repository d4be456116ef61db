/* Code compiled by NVRTC, cached in files for later processes.
 *
 * A file is named by a hash of everything that the code depends on. It is written under a temporary
 * name and renamed, so that readers never see a partial file. A damaged file is ignored and
 * rewritten. If no file can be written, code is compiled each time. When all files together exceed
 * a limit, the least recently read are deleted. MPGLUON_CUDA_CACHE names the folder (0: no cache);
 * the default is mpgluon in the user's cache folder. MPGLUON_CUDA_CACHE_SIZE is the limit in MiB.
 *
 * Threads: any.
 */
#ifndef KERNELS_CUDA_VENDOR_NVRTC_CACHE_H
#define KERNELS_CUDA_VENDOR_NVRTC_CACHE_H

#include "kernels/cuda/vendor/nvrtc.h"

typedef struct mpg_nvrtc_key {
  uint64_t words[2];
} mpg_nvrtc_key;

/* Reads the settings. *used is set if there is a folder. */
mpg_status mpg_nvrtc_cache_open(bool *used);
/* Adds a text that the code depends on. A key starts as zeros; texts are added in order. */
void mpg_nvrtc_key_add(mpg_nvrtc_key *key, const char *text);
/* Reads the code of a key, with `num_names` names; free it with mpg_nvrtc_free. Returns false if it
 * is not cached. */
bool mpg_nvrtc_cache_read(const mpg_nvrtc_key *key, int num_names, mpg_nvrtc_code *code);
void mpg_nvrtc_cache_write(const mpg_nvrtc_key *key, int num_names, const mpg_nvrtc_code *code);

#endif
