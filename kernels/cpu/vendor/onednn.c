/* Opens oneDNN and caches its primitives per device. */
#include "kernels/cpu/vendor/onednn.h"

#ifdef MPG_WITH_ONEDNN
#include <omp.h>
#include <pthread.h>
#include <string.h>

#include "base/library.h"
#include "base/memory.h"

/* --- The library ------------------------------------------------------------------------------ */
static mpg_onednn onednn_functions;
static dnnl_primitive_attr_t onednn_attributes;
static bool onednn_available;
static pthread_once_t onednn_loaded = PTHREAD_ONCE_INIT;

static void load(void) {
  const mpg_library *library = mpg_library_get(MPG_LIBRARY_ONEDNN);
  if (!library->handle) return;
#define LOAD(name)                                                               \
  *(void **)&onednn_functions.name = mpg_library_symbol(library, "dnnl_" #name); \
  if (!onednn_functions.name) return;
  MPG_ONEDNN_FUNCTIONS(LOAD)
#undef LOAD
  if (onednn_functions.engine_create(&onednn_functions.engine, dnnl_cpu, 0) != dnnl_success) return;
  if (onednn_functions.primitive_attr_create(&onednn_attributes) != dnnl_success) return;
  onednn_available = onednn_functions.primitive_attr_set_scratchpad_mode(
                         onednn_attributes, dnnl_scratchpad_mode_user) == dnnl_success;
}

const mpg_onednn *mpg_cpu_onednn(void) {
  pthread_once(&onednn_loaded, load);
  return onednn_available ? &onednn_functions : NULL;
}

dnnl_data_type_t mpg_cpu_onednn_dtype(mpg_dtype dtype) {
  const mpg_onednn *dnnl = mpg_cpu_onednn();
  if (!dnnl) return dnnl_data_type_undef;
  if (dtype == MPG_FLOAT32) return dnnl_f32;
  bool multiplies = (dnnl->get_effective_cpu_isa() & dnnl_cpu_isa_avx512_core_bf16) ==
                    dnnl_cpu_isa_avx512_core_bf16;
  return dtype == MPG_BFLOAT16 && multiplies ? dnnl_bf16 : dnnl_data_type_undef;
}

const_dnnl_primitive_attr_t mpg_cpu_onednn_attributes(const mpg_onednn *dnnl) {
  (void)dnnl;
  return onednn_attributes;
}

static dnnl_primitive_attr_t attributes_with(const mpg_onednn *dnnl,
                                             const_dnnl_memory_desc_t added) {
  dnnl_primitive_attr_t attributes = NULL;
  dnnl_post_ops_t ops = NULL;
  bool good =
      dnnl->primitive_attr_create(&attributes) == dnnl_success &&
      dnnl->primitive_attr_set_scratchpad_mode(attributes, dnnl_scratchpad_mode_user) ==
          dnnl_success &&
      dnnl->post_ops_create(&ops) == dnnl_success &&
      (added ? dnnl->post_ops_append_binary(ops, dnnl_binary_add, added)
             : dnnl->post_ops_append_sum(ops, 1, 0, dnnl_data_type_undef)) == dnnl_success &&
      dnnl->primitive_attr_set_post_ops(attributes, ops) == dnnl_success;
  if (ops) dnnl->post_ops_destroy(ops);
  if (good) return attributes;
  if (attributes) dnnl->primitive_attr_destroy(attributes);
  return NULL;
}

dnnl_primitive_attr_t mpg_cpu_onednn_attributes_to_sum(const mpg_onednn *dnnl) {
  return attributes_with(dnnl, NULL);
}

dnnl_primitive_attr_t mpg_cpu_onednn_attributes_to_add(const mpg_onednn *dnnl,
                                                       const_dnnl_memory_desc_t added) {
  return attributes_with(dnnl, added);
}

/* --- Cache per device ------------------------------------------------------------------------- */
enum { CACHE_SIZE = 256, TABLE_SIZE = 512 };
typedef struct cache {
  dnnl_stream_t stream;
  int count;
  mpg_onednn_prepared *newest, *oldest;
  mpg_onednn_prepared *table[TABLE_SIZE];
} cache;

static uint64_t hash_key(const mpg_onednn_key *key) {
  uint64_t hash = (uint64_t)key->kind * 0x9E3779B97F4A7C15u + (uint64_t)key->num_threads;
  for (int i = 0; i < key->count; i++) {
    hash = (hash ^ (uint64_t)key->values[i]) * 0xff51afd7ed558ccdu;
    hash ^= hash >> 32;
  }
  return hash;
}

static bool same_key(const mpg_onednn_key *a, const mpg_onednn_key *b) {
  return a->kind == b->kind && a->num_threads == b->num_threads && a->count == b->count &&
         !memcmp(a->values, b->values, sizeof a->values[0] * (size_t)a->count);
}

static void destroy_prepared(mpg_onednn_prepared *prepared) {
  for (int i = 0; i < prepared->num_steps; i++)
    onednn_functions.primitive_destroy(prepared->steps[i].primitive);
  for (int i = 0; i < prepared->num_slots; i++)
    onednn_functions.memory_destroy(prepared->memory[i]);
  mpg_free(prepared);
}

static void free_cache(void *opaque) {
  cache *c = opaque;
  while (c->newest) {
    mpg_onednn_prepared *next = c->newest->older;
    destroy_prepared(c->newest);
    c->newest = next;
  }
  onednn_functions.stream_destroy(c->stream);
  mpg_free(c);
}

static void unlink_use(cache *c, mpg_onednn_prepared *p) {
  if (p->newer)
    p->newer->older = p->older;
  else
    c->newest = p->older;
  if (p->older)
    p->older->newer = p->newer;
  else
    c->oldest = p->newer;
}

static void make_newest(cache *c, mpg_onednn_prepared *p) {
  p->newer = NULL;
  p->older = c->newest;
  if (c->newest)
    c->newest->newer = p;
  else
    c->oldest = p;
  c->newest = p;
}

static void drop_oldest(cache *c) {
  mpg_onednn_prepared *p = c->oldest, **link = &c->table[hash_key(&p->key) % TABLE_SIZE];
  while (*link != p) link = &(*link)->next;
  *link = p->next;
  unlink_use(c, p);
  destroy_prepared(p);
  c->count--;
}

static cache *device_cache(const mpg_onednn *dnnl, mpg_device *device) {
  if (device->kernel_cache) return device->kernel_cache;
  cache *c = mpg_calloc(1, sizeof *c);
  if (!c) return NULL;
  if (dnnl->stream_create(&c->stream, dnnl->engine, dnnl_stream_default_flags) != dnnl_success) {
    mpg_free(c);
    return NULL;
  }
  device->kernel_cache = c;
  device->kernel_cache_free = free_cache;
  return c;
}

const mpg_onednn_prepared *mpg_cpu_onednn_find(const mpg_kernel_call *call, mpg_onednn_key *key,
                                               mpg_onednn_build build, void *context) {
  const mpg_onednn *dnnl = mpg_cpu_onednn();
  cache *c = dnnl ? device_cache(dnnl, call->device) : NULL;
  if (!c) return NULL;
  key->num_threads = call->num_threads;
  mpg_onednn_prepared **link = &c->table[hash_key(key) % TABLE_SIZE], *p;
  for (p = *link; p; p = p->next)
    if (same_key(&p->key, key)) break;
  if (p) {
    if (p != c->newest) {
      unlink_use(c, p);
      make_newest(c, p);
    }
    return p->num_steps ? p : NULL;
  }
  p = mpg_calloc(1, sizeof *p);
  if (!p) return NULL;
  p->key = *key;
  int before = mpg_onednn_threads_begin(call);
  bool built = build(dnnl, p, context);
  mpg_onednn_threads_end(call, before);
  if (!built) { /* cache the failure as an operation without steps */
    for (int i = 0; i < p->num_steps; i++) dnnl->primitive_destroy(p->steps[i].primitive);
    for (int i = 0; i < p->num_slots; i++) dnnl->memory_destroy(p->memory[i]);
    p->num_steps = p->num_slots = 0;
  }
  if (c->count == CACHE_SIZE) drop_oldest(c);
  link = &c->table[hash_key(key) % TABLE_SIZE];
  p->next = *link;
  *link = p;
  make_newest(c, p);
  c->count++;
  return built ? p : NULL;
}

mpg_status mpg_cpu_onednn_run(const mpg_kernel_call *call, const mpg_onednn_prepared *prepared,
                              void *const *outer, void *scratch) {
  const mpg_onednn *dnnl = mpg_cpu_onednn();
  cache *c = call->device->kernel_cache;
  dnnl_status_t status = dnnl_success;
  for (int i = 0; i < prepared->num_slots && status == dnnl_success; i++)
    status = dnnl->memory_set_data_handle(
        prepared->memory[i],
        i < prepared->num_outer ? outer[i] : (char *)scratch + prepared->offset[i]);
  int before = mpg_onednn_threads_begin(call);
  for (int i = 0; i < prepared->num_steps && status == dnnl_success; i++)
    status = dnnl->primitive_execute(prepared->steps[i].primitive, c->stream,
                                     prepared->steps[i].num_args, prepared->steps[i].args);
  mpg_onednn_threads_end(call, before);
  if (status == dnnl_success) return MPG_OK;
  if (status == dnnl_out_of_memory)
    return mpg_fail(MPG_HOST_OUT_OF_MEMORY, "%s: out of memory in oneDNN", call->op->name);
  return mpg_fail(MPG_ERROR, "%s: oneDNN failed with status %d", call->op->name, (int)status);
}

/* --- Building --------------------------------------------------------------------------------- */
static bool add_slot(const mpg_onednn *dnnl, mpg_onednn_prepared *prepared,
                     const_dnnl_memory_desc_t desc, int *slot) {
  MPG_ASSERT(prepared->num_slots < MPG_ONEDNN_SLOTS);
  if (dnnl->memory_create(&prepared->memory[prepared->num_slots], desc, dnnl->engine,
                          DNNL_MEMORY_NONE) != dnnl_success)
    return false;
  *slot = prepared->num_slots++;
  return true;
}

bool mpg_cpu_onednn_outer(const mpg_onednn *dnnl, mpg_onednn_prepared *prepared,
                          const_dnnl_memory_desc_t desc, int *slot) {
  MPG_ASSERT(prepared->num_outer == prepared->num_slots);
  if (!add_slot(dnnl, prepared, desc, slot)) return false;
  prepared->num_outer++;
  return true;
}

bool mpg_cpu_onednn_inner(const mpg_onednn *dnnl, mpg_onednn_prepared *prepared,
                          const_dnnl_memory_desc_t desc, int *slot) {
  if (!add_slot(dnnl, prepared, desc, slot)) return false;
  prepared->offset[*slot] = prepared->scratch;
  prepared->scratch += mpg_align_up(dnnl->memory_desc_get_size(desc), 64);
  return true;
}

bool mpg_cpu_onednn_step(const mpg_onednn *dnnl, mpg_onednn_prepared *prepared,
                         dnnl_primitive_desc_t desc, int num_args, const int (*args)[2]) {
  MPG_ASSERT(prepared->num_steps < MPG_ONEDNN_STEPS && num_args < MPG_ONEDNN_ARGS);
  mpg_onednn_step *step = &prepared->steps[prepared->num_steps];
  bool good = dnnl->primitive_create(&step->primitive, desc) == dnnl_success;
  if (good) prepared->num_steps++;
  for (int i = 0; i < num_args; i++)
    step->args[i] = (dnnl_exec_arg_t){args[i][0], prepared->memory[args[i][1]]};
  step->num_args = num_args;
  const_dnnl_memory_desc_t scratch =
      dnnl->primitive_desc_query_md(desc, dnnl_query_scratchpad_md, 0);
  if (good && scratch && dnnl->memory_desc_get_size(scratch)) {
    int slot;
    good = mpg_cpu_onednn_inner(dnnl, prepared, scratch, &slot);
    if (good)
      step->args[step->num_args++] = (dnnl_exec_arg_t){DNNL_ARG_SCRATCHPAD, prepared->memory[slot]};
  }
  dnnl->primitive_desc_destroy(desc);
  return good;
}

bool mpg_cpu_onednn_is_reference(const mpg_onednn *dnnl, const_dnnl_primitive_desc_t desc) {
  const char *name = NULL;
  return dnnl->primitive_desc_query(desc, dnnl_query_impl_info_str, 0, (void *)&name) ==
             dnnl_success &&
         name && !strncmp(name, "ref", 3);
}

bool mpg_cpu_onednn_reorder(const mpg_onednn *dnnl, mpg_onednn_prepared *prepared,
                            const_dnnl_memory_desc_t from, int from_slot,
                            const_dnnl_memory_desc_t to, int to_slot) {
  dnnl_primitive_desc_t desc;
  if (dnnl->reorder_primitive_desc_create(&desc, from, dnnl->engine, to, dnnl->engine,
                                          onednn_attributes) != dnnl_success)
    return false;
  return mpg_cpu_onednn_step(dnnl, prepared, desc, 2,
                             (const int[][2]){{DNNL_ARG_FROM, from_slot}, {DNNL_ARG_TO, to_slot}});
}

/* Changes OpenMP's thread count only for inline work, which runs on a host thread whose setting
 * must be restored afterward. A worker's setting is already correct. */
int mpg_onednn_threads_begin(const mpg_kernel_call *call) {
  int before = omp_get_max_threads();
  if (before != call->num_threads) omp_set_num_threads(call->num_threads);
  return before;
}

void mpg_onednn_threads_end(const mpg_kernel_call *call, int before) {
  if (before != call->num_threads) omp_set_num_threads(before);
}
#endif
