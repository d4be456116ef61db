/* What NVRTC has compiled, kept in files for the processes to come.
 *
 * A file is named by a hash of all that the code depends on. It is written under another name and
 * then takes its place, so that nobody reads half of it; one that is damaged is passed over and
 * written anew, and where no file can be written code is compiled each time. The files that have
 * not been read for longest go when all are larger than a limit. MPGLUON_CUDA_CACHE names the
 * folder (0: none) instead of mpgluon in the user's cache folder, MPGLUON_CUDA_CACHE_SIZE the limit
 * in MiB.
 *
 * Threads: any.
 */
#ifndef KERNELS_CUDA_VENDOR_NVRTC_CACHE_H
#define KERNELS_CUDA_VENDOR_NVRTC_CACHE_H

#include "kernels/cuda/vendor/nvrtc.h"

typedef struct mpg_nvrtc_key {
  uint64_t words[2];
} mpg_nvrtc_key;

/* Reads the settings. *used: there is a folder. */
mpg_status mpg_nvrtc_cache_open(bool *used);
/* A key begins as zeros; the texts that the code depends on are added one after the other. */
void mpg_nvrtc_key_add(mpg_nvrtc_key *key, const char *text);
/* The code of a key, with as many names; for mpg_nvrtc_free. False: there is none. */
bool mpg_nvrtc_cache_read(const mpg_nvrtc_key *key, int num_names, mpg_nvrtc_code *code);
void mpg_nvrtc_cache_write(const mpg_nvrtc_key *key, int num_names, const mpg_nvrtc_code *code);

#endif
