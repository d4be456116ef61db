/* Reads, writes and evicts cache files of code compiled by NVRTC. */
#define _GNU_SOURCE
#include "kernels/cuda/vendor/nvrtc_cache.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/memory.h"

enum {
  DEFAULT_MIB = 256,
  MOST_MIB = 1 << 20,
  MOST_BYTES = 64 << 20, /* maximum size of a file */
  MOST_FOLDER = 3000,
  MOST_PATH = MOST_FOLDER + 64,
  LEFTOVER_SECONDS = 3600 /* age at which a temporary file is considered abandoned */
};
static const char ENDING[] = ".kernel", BEGUN[] = ".begun-";

/* A file consists of this header, the NUL-terminated names of the exports, and the code. */
typedef struct header {
  char format[8];
  mpg_nvrtc_key key;
  uint64_t names_size, size, sum; /* size: bytes of names and code; sum: their hash */
} header;
static const char FORMAT[8] = "mpgnvr1";

/* State of the cache, guarded by the mutex. */
static struct {
  pthread_mutex_t mutex;
  bool opened, used;
  char folder[MOST_FOLDER];
  uint64_t limit, total; /* bytes; total: approximate size of all files, valid if `counted` */
  bool counted;
} cache = {.mutex = PTHREAD_MUTEX_INITIALIZER};

/* --- Settings --------------------------------------------------------------------------------- */

/* True if only this user (and root) can write to a file or folder. Otherwise another user could
 * inject code, which would run on the GPU with this process's data. */
static bool is_own(const struct stat *found) {
  return found->st_uid == geteuid() && !(found->st_mode & (S_IWGRP | S_IWOTH));
}

/* Creates the folder if it is missing. Returns false on failure, or if other users can write to the
 * folder. */
static bool make_folders(char *path) {
  struct stat found;
  for (char *at = strchr(path + 1, '/'); at; at = strchr(at + 1, '/')) {
    *at = 0;
    mkdir(path, 0700);
    *at = '/';
  }
  if (mkdir(path, 0700) != 0 && errno != EEXIST) return false;
  return stat(path, &found) == 0 && S_ISDIR(found.st_mode) && is_own(&found);
}

static mpg_status read_settings(void) {
  const char *setting = getenv("MPGLUON_CUDA_CACHE"), *size = getenv("MPGLUON_CUDA_CACHE_SIZE");
  const char *common = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
  long long mib = DEFAULT_MIB;
  if (size && *size) {
    char *end;
    mib = strtoll(size, &end, 10);
    if (*end || mib < 1 || mib > MOST_MIB)
      return mpg_fail(MPG_VALUE_ERROR, "MPGLUON_CUDA_CACHE_SIZE is '%s'; it must be 1 to %d (MiB)",
                      size, MOST_MIB);
  }
  cache.limit = (uint64_t)mib << 20;
  int length = -1;
  if (setting && !strcmp(setting, "0"))
    cache.used = false;
  else if (setting && *setting)
    length = snprintf(cache.folder, sizeof cache.folder, "%s", setting);
  else if (common && *common == '/')
    length = snprintf(cache.folder, sizeof cache.folder, "%s/mpgluon", common);
  else if (home && *home == '/')
    length = snprintf(cache.folder, sizeof cache.folder, "%s/.cache/mpgluon", home);
  cache.used = length > 0 && (size_t)length < sizeof cache.folder && make_folders(cache.folder);
  return MPG_OK;
}

mpg_status mpg_nvrtc_cache_open(bool *used) {
  mpg_status status = MPG_OK;
  pthread_mutex_lock(&cache.mutex);
  if (!cache.opened) status = read_settings();
  cache.opened = status == MPG_OK;
  *used = cache.used;
  pthread_mutex_unlock(&cache.mutex);
  return status;
}

/* --- Keys and files --------------------------------------------------------------------------- */

static uint64_t sum_of(uint64_t sum, const char *bytes, size_t size) {
  for (size_t i = 0; i < size; i++) sum = (sum ^ (unsigned char)bytes[i]) * 0x100000001b3u;
  return sum;
}

void mpg_nvrtc_key_add(mpg_nvrtc_key *key, const char *text) {
  size_t size = strlen(text) + 1;
  key->words[0] = sum_of(key->words[0] ^ 0xcbf29ce484222325u, text, size);
  uint64_t other = key->words[1];
  for (size_t i = 0; i < size; i++) {
    other = (other + (unsigned char)text[i] + 1) * 0x9e3779b97f4a7c15u;
    other ^= other >> 29;
  }
  key->words[1] = other;
}

static void path_of(const mpg_nvrtc_key *key, char path[MOST_PATH]) {
  snprintf(path, MOST_PATH, "%s/%016llx%016llx%s", cache.folder, (unsigned long long)key->words[0],
           (unsigned long long)key->words[1], ENDING);
}

/* Reads the payload after the header. Returns NULL if the header is invalid. */
static char *read_rest(int file, const mpg_nvrtc_key *key, header *head) {
  if (read(file, head, sizeof *head) != sizeof *head || memcmp(head->format, FORMAT, 8) != 0 ||
      memcmp(&head->key, key, sizeof *key) != 0 || head->size > MOST_BYTES ||
      head->names_size > head->size)
    return NULL;
  char *rest = mpg_malloc(head->size + 1);
  size_t got = 0;
  for (ssize_t more = 1; rest && more > 0 && got <= head->size; got += (size_t)more)
    if ((more = read(file, rest + got, head->size + 1 - got)) < 0) break;
  if (rest && got == head->size && sum_of(0, rest, got) == head->sum) return rest;
  mpg_free(rest);
  return NULL;
}

/* Copies the names of the exports to *code. Returns false unless exactly `count` names are
 * present. */
static bool take_names(const char *names, size_t size, int count, mpg_nvrtc_code *code) {
  size_t at = 0;
  for (int i = 0; i < count; i++) {
    size_t length = strnlen(names + at, size - at);
    if (at + length >= size || !(code->names[i] = mpg_strdup(names + at))) return false;
    at += length + 1;
  }
  return at == size;
}

/* Opens a file for reading. Returns -1 unless it is a regular file that only this user can write.
 * O_NONBLOCK prevents blocking on a pipe. */
static int open_own(const char *path) {
  struct stat found;
  int file = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  if (file < 0 || (fstat(file, &found) == 0 && S_ISREG(found.st_mode) && is_own(&found)))
    return file;
  close(file);
  return -1;
}

bool mpg_nvrtc_cache_read(const mpg_nvrtc_key *key, int num_names, mpg_nvrtc_code *code) {
  char path[MOST_PATH];
  header head;
  path_of(key, path);
  *code = (mpg_nvrtc_code){0};
  int file = open_own(path);
  if (file < 0) return false;
  char *rest = read_rest(file, key, &head);
  if (rest) futimens(file, NULL); /* marks the entry as recently read */
  close(file);
  if (!rest) return false;
  code->size = head.size - head.names_size;
  code->code = mpg_malloc(code->size + 1);
  bool whole = code->code && take_names(rest, head.names_size, num_names, code);
  if (whole)
    memcpy(code->code, rest + head.names_size, code->size);
  else
    mpg_nvrtc_free(code);
  mpg_free(rest);
  return whole;
}

/* --- Size limit ------------------------------------------------------------------------------- */

typedef struct kept {
  char name[48];
  time_t read;
  uint64_t size;
} kept;

static int by_age(const void *a, const void *b) {
  const kept *x = a, *y = b;
  return x->read != y->read ? (x->read < y->read ? -1 : 1) : strcmp(x->name, y->name);
}

static bool ends_so(const char *name) {
  size_t length = strlen(name), end = strlen(ENDING);
  return length > end && length < sizeof((kept *)0)->name && !strcmp(name + length - end, ENDING);
}

/* Lists the cache files. Deletes temporary files that other processes have abandoned. */
static size_t list(DIR *folder, kept **files) {
  size_t count = 0, capacity = 0;
  for (struct dirent *entry; (entry = readdir(folder));) {
    struct stat found;
    bool begun = !strncmp(entry->d_name, BEGUN, strlen(BEGUN));
    if ((!begun && !ends_so(entry->d_name)) ||
        fstatat(dirfd(folder), entry->d_name, &found, AT_SYMLINK_NOFOLLOW) != 0 ||
        !S_ISREG(found.st_mode))
      continue;
    if (begun) {
      if (time(NULL) - found.st_mtime > LEFTOVER_SECONDS) unlinkat(dirfd(folder), entry->d_name, 0);
      continue;
    }
    if (mpg_grow((void **)files, &capacity, count + 1, sizeof **files) != MPG_OK) break;
    kept *file = &(*files)[count++];
    memcpy(file->name, entry->d_name, strlen(entry->d_name) + 1); /* ends_so has checked the size */
    file->read = found.st_mtime;
    file->size = (uint64_t)found.st_size;
  }
  return count;
}

/* Adds up the sizes of all files. If they exceed the limit, deletes the least recently read files
 * until a quarter of the limit is free. */
static void trim(void) {
  DIR *folder = opendir(cache.folder);
  kept *files = NULL;
  if (!folder) return;
  size_t count = list(folder, &files);
  cache.total = 0;
  cache.counted = true;
  for (size_t i = 0; i < count; i++) cache.total += files[i].size;
  if (cache.total > cache.limit) {
    qsort(files, count, sizeof *files, by_age);
    for (size_t i = 0; i < count && cache.total > cache.limit / 4 * 3; i++)
      if (unlinkat(dirfd(folder), files[i].name, 0) == 0) cache.total -= files[i].size;
  }
  mpg_free(files);
  closedir(folder);
}

/* --- Writing ---------------------------------------------------------------------------------- */

static bool write_all(int file, const void *data, size_t size) {
  for (ssize_t done; size; data = (const char *)data + done, size -= (size_t)done)
    if ((done = write(file, data, size)) <= 0) return false;
  return true;
}

void mpg_nvrtc_cache_write(const mpg_nvrtc_key *key, int num_names, const mpg_nvrtc_code *code) {
  header head = {.key = *key, .size = code->size};
  memcpy(head.format, FORMAT, sizeof head.format);
  for (int i = 0; i < num_names; i++) {
    size_t size = strlen(code->names[i]) + 1;
    head.names_size += size;
    head.sum = sum_of(head.sum, code->names[i], size);
  }
  head.size += head.names_size;
  head.sum = sum_of(head.sum, code->code, code->size);
  if (head.size > MOST_BYTES || sizeof head + head.size > cache.limit) return;
  char own[MOST_PATH], path[MOST_PATH];
  snprintf(own, sizeof own, "%s/%sXXXXXX", cache.folder, BEGUN);
  path_of(key, path);
  int file = mkostemp(own, O_CLOEXEC);
  if (file < 0) return;
  bool whole = write_all(file, &head, sizeof head);
  for (int i = 0; i < num_names && whole; i++)
    whole = write_all(file, code->names[i], strlen(code->names[i]) + 1);
  whole = whole && write_all(file, code->code, code->size);
  if (close(file) != 0 || !whole || rename(own, path) != 0) {
    unlink(own);
    return;
  }
  pthread_mutex_lock(&cache.mutex);
  cache.total += sizeof head + head.size;
  if (!cache.counted || cache.total > cache.limit) trim();
  pthread_mutex_unlock(&cache.mutex);
}
