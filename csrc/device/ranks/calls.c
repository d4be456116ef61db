/* Consistency checks between ranks: the receiver of a message compares the sender's call, array and
 * parameter update with its own. */
#include <stdio.h>
#include <string.h>

#include "base/host.h"
#include "base/memory.h"
#include "device/ranks/engine.h"

static mpg_engine *const engine = &mpg_the_engine;

/* Number of arrays that calls of one kind on one line have created since the last rendezvous of all
 * ranks. */
typedef struct made {
  uint64_t line_and_kind; /* 0 if the entry is free */
  uint32_t count;
} made;

/* Runtime state, guarded by the host lock. */
static struct {
  made *made; /* hash table with open addressing */
  size_t capacity, used;
  uint32_t collectives;
  uint64_t graphs;
  mpg_rank_step step;
} calls;

/* True if only this rank runs this thread's current code. The arrays that the thread creates then
 * get no names. */
static _Thread_local bool alone;

/* --- Names of arrays -------------------------------------------------------------------------- */

/* Bit fields of a name, from the highest bits: the line's key (32 bits), the number of rendezvous
 * (COLLECTIVE_BITS), the kind (KIND_BITS), and the count (COUNT_BITS). Numbers that do not fit are
 * truncated. */
enum { COUNT_BITS = 18, KIND_BITS = 8, COLLECTIVE_BITS = 6, FIRST_MADE = 256 };

static uint32_t low_bits(uint32_t number, int bits) { return number & ((1u << bits) - 1); }

void mpg_ranks_note_collective(void) {
  calls.collectives++;
  calls.used = 0;
  if (calls.made) memset(calls.made, 0, calls.capacity * sizeof *calls.made);
}

static made *find_made(made *table, size_t capacity, uint64_t key) {
  size_t at = (size_t)((key * UINT64_C(0x9E3779B97F4A7C15)) >> 32) & (capacity - 1);
  while (table[at].line_and_kind && table[at].line_and_kind != key) at = (at + 1) & (capacity - 1);
  return &table[at];
}

static bool make_room(void) {
  if (2 * (calls.used + 1) <= calls.capacity) return true;
  size_t capacity = calls.capacity ? 2 * calls.capacity : FIRST_MADE;
  made *table = mpg_calloc(capacity, sizeof *table);
  if (!table) return false;
  for (size_t i = 0; i < calls.capacity; i++)
    if (calls.made[i].line_and_kind)
      *find_made(table, capacity, calls.made[i].line_and_kind) = calls.made[i];
  mpg_free(calls.made);
  calls.made = table;
  calls.capacity = capacity;
  return true;
}

uint64_t mpg_ranks_name_array(uint32_t origin, uint32_t kind) {
  if (engine->size < 2 || !origin || alone) return 0;
  uint32_t key = mpg_host_origin_key(origin);
  if (!key || !make_room()) return 0; /* arrays without a name are not compared */
  uint64_t line_and_kind = (uint64_t)origin << 32 | kind;
  made *found = find_made(calls.made, calls.capacity, line_and_kind);
  calls.used += !found->line_and_kind;
  found->line_and_kind = line_and_kind;
  uint32_t count = low_bits(++found->count, COUNT_BITS);
  return (uint64_t)key << 32 |
         low_bits(calls.collectives, COLLECTIVE_BITS) << (COUNT_BITS + KIND_BITS) |
         low_bits(kind, KIND_BITS) << COUNT_BITS | count;
}

bool mpg_ranks_name_arrays(bool named) {
  bool former = !alone;
  alone = !named;
  return former;
}

uint64_t mpg_ranks_note_graph(void) { return ++calls.graphs; }

/* --- Steps ------------------------------------------------------------------------------------ */

void mpg_ranks_note_update(double scale, double learning_rate) {
  calls.step = (mpg_rank_step){calls.step.number + 1, scale, learning_rate};
}
mpg_rank_step mpg_ranks_step(void) { return calls.step; }

static bool same_step(const mpg_rank_step *a, const mpg_rank_step *b) {
  return a->number == b->number && a->scale == b->scale && a->learning_rate == b->learning_rate;
}

static void describe_step(const mpg_rank_step *step, char *text, size_t size) {
  snprintf(text, size, "update %llu with rescale_grad %.9g and learning rate %.9g",
           (unsigned long long)step->number, step->scale, step->learning_rate);
}

mpg_status mpg_ranks_compare_steps(const mpg_rank_step *own, const mpg_rank_step *theirs,
                                   int rank) {
  char here[120], there[120];
  if (same_step(own, theirs)) return MPG_OK;
  describe_step(own, here, sizeof here);
  describe_step(theirs, there, sizeof there);
  return mpg_fail(MPG_ERROR,
                  "the ranks run different programs: rank %d is at %s, but rank %d is at %s",
                  engine->rank, here, rank, there);
}

/* --- Calls ------------------------------------------------------------------------------------ */

static const char *line_of(uint32_t key, char *text, size_t size) {
  uint32_t origin = key ? mpg_host_origin_of_key(key) : 0;
  snprintf(text, size, "a line that has not run on rank %d", engine->rank);
  if (origin) mpg_host_origin_text(origin, text, size);
  return text;
}

static void describe(const mpg_transfer *t, char *text, size_t size) {
  const mpg_rank_call *call = &t->call;
  char line[160], made[240] = "", shape[100] = "";
  size_t used = 0;
  for (uint32_t i = 0; i < call->ndim && i < MPG_CALL_DIMS; i++)
    used += (size_t)snprintf(shape + used, sizeof shape - used, i ? ", %lld" : "%lld",
                             (long long)call->dims[i]);
  if (call->array) {
    uint32_t number = low_bits((uint32_t)call->array, COUNT_BITS);
    snprintf(made, sizeof made, ", number %u of the arrays created at %s,", number,
             line_of((uint32_t)(call->array >> 32), line, sizeof line));
  }
  if (call->graph)
    snprintf(text, size, "copy %u of compiled program %llu", call->copy,
             (unsigned long long)call->graph);
  else
    snprintf(text, size, "%.8s (%s)%s", call->dtype, shape, made);
  used = strlen(text);
  snprintf(text + used, size - used, " at %s", line_of(call->line, line, sizeof line));
}

/* Ranks may branch and create an array by different calls. So different names are a mismatch only
 * in two cases: if the same kind of call on the same line created both arrays, or if the arrays
 * were created on different lines and this rank has run the sender's line. */
static bool same_array(const mpg_rank_call *own, const mpg_rank_call *theirs) {
  if (!own->array || !theirs->array) return true;
  if (own->array == theirs->array) return own->offset == theirs->offset;
  uint32_t line = (uint32_t)(theirs->array >> 32);
  if (line != (uint32_t)(own->array >> 32)) return !mpg_host_origin_of_key(line);
  return low_bits((uint32_t)(own->array >> COUNT_BITS), KIND_BITS) !=
         low_bits((uint32_t)(theirs->array >> COUNT_BITS), KIND_BITS);
}

static bool same_call(const mpg_transfer *own, const mpg_transfer *theirs) {
  return own->number == theirs->number && own->size == theirs->size &&
         mpg_device_id_equal(own->from, theirs->from) && mpg_device_id_equal(own->to, theirs->to) &&
         own->call.graph == theirs->call.graph && own->call.copy == theirs->call.copy &&
         memcmp(own->call.dtype, theirs->call.dtype, sizeof own->call.dtype) == 0 &&
         own->call.ndim == theirs->call.ndim &&
         memcmp(own->call.dims, theirs->call.dims, sizeof own->call.dims) == 0 &&
         same_array(&own->call, &theirs->call);
}

mpg_status mpg_ranks_compare_calls(const mpg_transfer *own, const mpg_transfer *theirs, int rank) {
  char here[420], there[420];
  if (!same_call(own, theirs)) {
    describe(own, here, sizeof here);
    describe(theirs, there, sizeof there);
    return mpg_fail(
        MPG_ERROR,
        "the ranks run different programs: rank %d expects, as transfer %llu, %zu bytes from %s to "
        "%s: %s; but rank %d sent, as transfer %llu, %zu bytes from %s to %s: %s",
        engine->rank, (unsigned long long)own->number, own->size,
        mpg_device_id_text(own->from).text, mpg_device_id_text(own->to).text, here, rank,
        (unsigned long long)theirs->number, theirs->size, mpg_device_id_text(theirs->from).text,
        mpg_device_id_text(theirs->to).text, there);
  }
  return mpg_ranks_compare_steps(&own->call.step, &theirs->call.step, rank);
}
