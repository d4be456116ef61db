/* Parameter updates for many weights, prepared once and run at every step. */
#include "op/multi_update.h"

#include <stdlib.h>
#include <string.h>

#include "base/host.h"
#include "base/memory.h"
#include "op/submit.h"

enum { CHUNK = MPG_MAX_FLOATS, MAX_PARAMS = 4096 };

typedef struct factors {
  double lr, wd;
} factors;

struct mpg_multi_update {     /* Allocated in one block with its arrays. */
  _Atomic int32_t references; /* one for the owner and one per queued call */
  const mpg_op *op;
  mpg_kernel_fn kernel;
  mpg_device *device;
  uint32_t num_weights, per_weight;
  int64_t elements;
  size_t lrs, wds, num; /* offsets of lrs, wds and num_weights in the parameter struct */
  mpg_tensor *arrays;   /* owned; storage NULL after mpg_multi_update_release */
  mpg_view *views;      /* for each kernel call: inputs, then outputs */
  factors *factors;
  mpg_array_use *uses; /* one per array */
};

/* Payload of queued work. A copy of the parameters follows it, into which update_work writes the
 * rates. */
typedef struct update_task {
  mpg_multi_update *update; /* owned reference */
  double lr, correction, wd;
  uint32_t scope;
} update_task;

static size_t params_offset(void) { return mpg_align_up(sizeof(update_task), 16); }
static uint32_t num_arrays(const mpg_multi_update *u) { return u->num_weights * u->per_weight; }
static uint32_t chunk_size(const mpg_multi_update *u, uint32_t first) {
  return u->num_weights - first < CHUNK ? u->num_weights - first : CHUNK;
}

/* --- Running ---------------------------------------------------------------------------------- */

static void set_rates(const mpg_multi_update *u, char *params, uint32_t first, uint32_t count,
                      double lr, double correction, double wd) {
  mpg_floats *lrs = (mpg_floats *)(params + u->lrs), *wds = (mpg_floats *)(params + u->wds);
  lrs->count = wds->count = (int32_t)count;
  *(int64_t *)(params + u->num) = count;
  for (uint32_t k = 0; k < count; k++) {
    lrs->values[k] = lr * u->factors[first + k].lr * correction;
    wds->values[k] = wd * u->factors[first + k].wd;
  }
}

static mpg_status update_work(mpg_run *run, void *payload) {
  const update_task *task = payload;
  const mpg_multi_update *u = task->update;
  char *params = (char *)payload + params_offset();
  const mpg_view *views = u->views;
  for (uint32_t first = 0; first < u->num_weights; first += CHUNK) {
    uint32_t count = chunk_size(u, first), inputs = count * u->per_weight;
    set_rates(u, params, first, count, task->lr, task->correction, task->wd);
    mpg_kernel_call call = mpg_kernel_call_in(run, u->op, params, views, (int)inputs, (int)count);
    MPG_TRY(mpg_kernel_run(u->kernel, &call, task->scope, false, NULL));
    views += inputs + count;
  }
  return MPG_OK;
}

static void drop(mpg_multi_update *u) {
  if (atomic_fetch_sub_explicit(&u->references, 1, memory_order_acq_rel) == 1) mpg_free(u);
}

static void update_discard(void *payload) { drop(((update_task *)payload)->update); }

/* --- Calling ---------------------------------------------------------------------------------- */

static bool runs_inline(const mpg_multi_update *u) {
  if (u->elements > MPG_INLINE_ELEMENTS) return false;
  for (uint32_t i = 0; i < num_arrays(u); i++)
    if (u->uses[i].writes) mpg_storage_before_write(u->arrays[i].storage);
  if (!mpg_device_runs_inline(u->device)) return false;
  for (uint32_t i = 0; i < num_arrays(u); i++)
    if (u->uses[i].writes && !mpg_storage_writable_now(u->arrays[i].storage)) return false;
  return true;
}

/* Runs the update on this thread. Requires that all arrays are ready and the device is idle. */
static mpg_status run_inline(mpg_multi_update *u, update_task *task) {
  for (uint32_t i = 0; i < num_arrays(u); i++) MPG_TRY(mpg_storage_failure(u->arrays[i].storage));
  MPG_TRY(update_work(&(mpg_run){.device = u->device, .num_threads = 1}, task));
  for (uint32_t i = 0; i < num_arrays(u); i++)
    if (u->uses[i].writes) mpg_storage_add_write(u->arrays[i].storage, 0);
  return MPG_OK;
}

static mpg_status retain(void *state, bool *done) {
  (void)done;
  atomic_fetch_add_explicit(&((mpg_multi_update *)state)->references, 1, memory_order_relaxed);
  return MPG_OK;
}

static mpg_status call(mpg_multi_update *u, const void *params, double lr, double correction,
                       double wd, uint32_t scope) {
  _Alignas(16) char payload[MAX_PARAMS + 64];
  update_task *task = (update_task *)payload;
  uint32_t origin = mpg_host_origin(); /* called first, because it may let other threads run */
  *task = (update_task){u, lr, correction, wd, scope};
  memcpy(payload + params_offset(), params, u->op->params->size);
  if (runs_inline(u)) return run_inline(u, task);
  return mpg_kernel_submit(
      &(mpg_kernel_submission){.devices = &u->device,
                               .num_devices = 1,
                               .work = {.name = u->op->name,
                                        .work = update_work,
                                        .payload = task,
                                        .payload_size = params_offset() + u->op->params->size,
                                        .origin = origin,
                                        .scope = scope,
                                        .discard = update_discard},
                               .uses = u->uses,
                               .num_uses = num_arrays(u),
                               .ready = retain,
                               .state = u});
}

mpg_status mpg_multi_update_call(mpg_multi_update *u, const void *params, double lr,
                                 double correction, double wd, uint32_t scope) {
  mpg_status status = call(u, params, lr, correction, wd, scope);
  if (status != MPG_OK && scope) mpg_fail_prefix(status, "in block %s", mpg_scope_text(scope));
  return status;
}

/* --- Creation --------------------------------------------------------------------------------- */

static int by_address(const void *a, const void *b) {
  const mpg_tensor *x = *(const mpg_tensor *const *)a, *y = *(const mpg_tensor *const *)b;
  if (x->storage != y->storage) return (uintptr_t)x->storage < (uintptr_t)y->storage ? -1 : 1;
  return x->offset < y->offset ? -1 : x->offset > y->offset;
}

/* Checks that the arrays do not overlap, because kernels rely on this. */
static mpg_status check_apart(const mpg_multi_update *u) {
  uint32_t count = num_arrays(u), n = 0;
  const mpg_tensor **sorted = mpg_malloc((size_t)count * sizeof *sorted);
  if (!sorted) return mpg_out_of_host_memory((size_t)count * sizeof *sorted);
  for (uint32_t i = 0; i < count; i++)
    if (mpg_tensor_bytes(&u->arrays[i])) sorted[n++] = &u->arrays[i];
  qsort(sorted, n, sizeof *sorted, by_address);
  bool apart = true;
  for (uint32_t i = 1; i < n && apart; i++)
    apart = sorted[i]->storage != sorted[i - 1]->storage ||
            sorted[i - 1]->offset + mpg_tensor_bytes(sorted[i - 1]) <= sorted[i]->offset;
  mpg_free(sorted);
  return apart ? MPG_OK
               : mpg_fail(MPG_VALUE_ERROR, "%s: two of the arrays share memory", u->op->name);
}

/* Runs inference for the kernel call that updates the chunk of weights starting at `first`, and
 * fills the call's views. `descs` is scratch space. */
static mpg_status infer_chunk(const mpg_multi_update *u, char *params, uint32_t first,
                              mpg_desc *descs, mpg_view *views) {
  uint32_t count = chunk_size(u, first), inputs = count * u->per_weight;
  const mpg_tensor *arrays = u->arrays + (size_t)first * u->per_weight;
  set_rates(u, params, first, count, 0, 0, 0);
  for (uint32_t i = 0; i < inputs; i++) descs[i] = arrays[i].desc;
  MPG_TRY(mpg_op_infer(u->op, params, false, descs, (int)inputs, descs + inputs, (int)count));
  for (uint32_t i = 0; i < inputs; i++)
    views[i] = (mpg_view){mpg_tensor_data(&arrays[i]), arrays[i].desc};
  for (uint32_t k = 0; k < count; k++) views[inputs + k] = views[k * u->per_weight];
  return MPG_OK;
}

static mpg_status infer(mpg_multi_update *u) {
  _Alignas(16) char params[MAX_PARAMS];
  mpg_desc *descs = mpg_malloc(CHUNK * ((size_t)u->per_weight + 1) * sizeof *descs);
  mpg_status status = MPG_OK;
  if (!descs) return mpg_out_of_host_memory(CHUNK * ((size_t)u->per_weight + 1) * sizeof *descs);
  mpg_params_defaults(u->op->params, params);
  mpg_view *views = u->views;
  for (uint32_t first = 0; first < u->num_weights; first += CHUNK) {
    MPG_GOTO(infer_chunk(u, params, first, descs, views));
    views += chunk_size(u, first) * (u->per_weight + 1);
  }
fail:
  mpg_free(descs);
  return status;
}

static mpg_status find_rates(mpg_multi_update *u) {
  const mpg_param_table *table = u->op->params;
  int lrs = mpg_params_find(table, "lrs"), wds = mpg_params_find(table, "wds"),
      num = mpg_params_find(table, "num_weights");
  if (lrs < 0 || wds < 0 || num < 0 || table->size > MAX_PARAMS)
    return mpg_fail(MPG_VALUE_ERROR,
                    "%s is not a multi-weight update op with a learning rate for each weight",
                    u->op->name);
  u->lrs = table->params[lrs].offset;
  u->wds = table->params[wds].offset;
  u->num = table->params[num].offset;
  return MPG_OK;
}

static mpg_status allocate(uint32_t num_weights, uint32_t per_weight, mpg_multi_update **result) {
  size_t count, bytes;
  if (!num_weights || per_weight < 2 || per_weight > 8)
    return mpg_fail(MPG_VALUE_ERROR,
                    "an update needs at least one weight, with 2 to 8 arrays each");
  if (!mpg_size_mul(num_weights, per_weight + 1, &count) || count > UINT32_MAX ||
      !mpg_size_mul(count,
                    sizeof(mpg_tensor) + sizeof(mpg_view) + sizeof(mpg_array_use) + sizeof(factors),
                    &bytes))
    return mpg_out_of_host_memory(SIZE_MAX);
  mpg_multi_update *u = mpg_calloc(1, sizeof *u + bytes);
  if (!u) return mpg_out_of_host_memory(bytes);
  atomic_store_explicit(&u->references, 1, memory_order_relaxed);
  u->num_weights = num_weights;
  u->per_weight = per_weight;
  u->arrays = (mpg_tensor *)(u + 1);
  u->views = (mpg_view *)(u->arrays + count);
  u->uses = (mpg_array_use *)(u->views + count);
  u->factors = (factors *)(u->uses + count);
  *result = u;
  return MPG_OK;
}

mpg_status mpg_multi_update_make(const mpg_op *op, const mpg_tensor *arrays, uint32_t num_weights,
                                 uint32_t per_weight, const double *given,
                                 mpg_multi_update **result) {
  mpg_multi_update *u = NULL;
  mpg_status status = MPG_OK;
  MPG_TRY(allocate(num_weights, per_weight, &u));
  u->op = op;
  u->device = mpg_tensor_device(&arrays[0]);
  memcpy(u->factors, given, num_weights * sizeof *u->factors);
  for (uint32_t i = 0; i < num_arrays(u); i++) {
    u->arrays[i] = arrays[i];
    mpg_tensor_retain(&u->arrays[i]);
    /* Index 1 is the gradient, which is only read. */
    u->uses[i] = mpg_use_array(&arrays[i], true, i % per_weight != 1);
    /* A weight is counted twice, because it is both an input and an output. */
    u->elements += mpg_shape_size(&arrays[i].desc.shape) * (i % per_weight ? 1 : 2);
    if (mpg_tensor_device(&arrays[i]) != u->device)
      status = mpg_fail(MPG_ERROR, "%s: the arrays are on different devices, %s and %s", op->name,
                        mpg_device_text(u->device), mpg_device_text(mpg_tensor_device(&arrays[i])));
  }
  MPG_GOTO(status);
  MPG_GOTO(find_rates(u));
  MPG_GOTO(mpg_kernel_find(u->device, op, &u->kernel));
  MPG_GOTO(check_apart(u));
  MPG_GOTO(infer(u));
  *result = u;
  return MPG_OK;
fail:
  mpg_multi_update_release(u);
  return status;
}

void mpg_multi_update_release(mpg_multi_update *u) {
  if (!u) return;
  for (uint32_t i = 0; i < num_arrays(u); i++) mpg_tensor_release(&u->arrays[i]);
  drop(u);
}

const mpg_tensor *mpg_multi_update_arrays(const mpg_multi_update *u, uint32_t *count) {
  *count = num_arrays(u);
  return u->arrays;
}
