/* Interning of block paths: maps paths to numbers and back, for errors and profiler events. */
#include <stdatomic.h>
#include <string.h>

#include "base/memory.h"
#include "device/device.h"

/* The text of number n is entry n - 1 of a chunked array, whose chunks never move, so any thread
 * may read them. A hash table, under the host lock, maps texts to numbers. Both only grow. Runtime
 * state. */
enum { CHUNK = 256, CHUNKS = 4096 };
static _Atomic(const char **) chunks[CHUNKS];
static uint32_t count;    /* the numbers in use are 1..count */
static uint32_t *table;   /* open addressing; 0 means empty */
static size_t table_size; /* a power of two */

static uint64_t hash_text(const char *text) { /* FNV-1a */
  uint64_t hash = 14695981039346656037u;
  for (; *text; text++) hash = (hash ^ (unsigned char)*text) * 1099511628211u;
  return hash ^ hash >> 32;
}

const char *mpg_scope_text(uint32_t scope) {
  if (scope == 0 || scope > (uint32_t)CHUNKS * CHUNK) return "";
  const char **chunk = atomic_load_explicit(&chunks[(scope - 1) / CHUNK], memory_order_acquire);
  const char *text = chunk ? chunk[(scope - 1) % CHUNK] : NULL;
  return text ? text : "";
}

static size_t find_slot(const uint32_t *slots, size_t size, const char *path) {
  size_t slot = hash_text(path) & (size - 1);
  while (slots[slot] && strcmp(mpg_scope_text(slots[slot]), path) != 0)
    slot = (slot + 1) & (size - 1);
  return slot;
}

static bool grow_table(void) {
  size_t size = table_size ? table_size * 2 : 256;
  uint32_t *slots = mpg_calloc(size, sizeof *slots);
  if (!slots) return false;
  for (uint32_t scope = 1; scope <= count; scope++)
    slots[find_slot(slots, size, mpg_scope_text(scope))] = scope;
  mpg_free(table);
  table = slots;
  table_size = size;
  return true;
}

uint32_t mpg_scope_intern(const char *path) {
  if (!path || !*path) return 0;
  if ((size_t)count * 2 >= table_size && !grow_table()) return 0;
  size_t slot = find_slot(table, table_size, path);
  if (table[slot]) return table[slot];
  if (count == (uint32_t)CHUNKS * CHUNK) return 0;
  const char **chunk = atomic_load_explicit(&chunks[count / CHUNK], memory_order_relaxed);
  if (!chunk) {
    chunk = mpg_calloc(CHUNK, sizeof *chunk);
    if (!chunk) return 0;
    atomic_store_explicit(&chunks[count / CHUNK], chunk, memory_order_release);
  }
  char *text = mpg_strdup(path);
  if (!text) return 0;
  chunk[count % CHUNK] = text;
  return table[slot] = ++count;
}
