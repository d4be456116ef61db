/* Fused groups (op/fused.h): runs the members' kernels one after the other on tiles that stay in a
 * core's cache.
 *
 * A tile is a box of the domain that is contiguous in every value. Kernels see the tile's part of a
 * value as a small array. Values used only inside the group are in the thread's scratch, in reused
 * slots. Each thread runs a contiguous range of tiles. Ranges end at chunk boundaries of the
 * trailing reductions. If the group has a producer (a matrix product), a thread computes a panel of
 * the product, then the tiles of the panel's rows.
 */
#include <string.h>

#include "base/memory.h"
#include "device/device.h"
#include "kernels/common/formula.h"
#include "kernels/cpu/products/panels.h"
#include "kernels/cpu/math/reduce.h"
#include "op/fused.h"

/* Maximum elements of a tile, and the work (elements times members) that justifies a thread. */
enum { TILE = 4096, WORK = 65536 };

typedef struct run {
  const mpg_kernel_call *call;
  const mpg_fused *fused;
  /* A tile has one index of each dim before `split`, and `step` indices of `split`. */
  int split;
  int64_t inner, step, blocks; /* inner: elements per index of `split`; blocks: tiles along it */
  int64_t tiles, pieces;       /* number of tiles; number of ranges, one per thread */
  /* A row is `inner` elements of the domain; `rows` is the number of rows. Ranges are multiples of
   * `grain` rows, which hold whole panels and whole chunks of all trailing reductions. `grain` is 0
   * if the group has neither panels nor chunks. */
  int64_t rows, grain;
  int64_t panel, panel_elements; /* rows and elements per producer panel; 0 if no producer */
  /* The producer also performs the members before `first`. `made` is the value that it computes:
   * the result of the last of these members, or the product itself if `first` is 0. */
  uint32_t first, made;
  mpg_panel_tail tail;
  mpg_panels panels;
  mpg_kernel_call producer; /* the producer's call, except for its output */
  char *scratch;
  size_t stride;                                      /* scratch bytes per thread */
  size_t addresses, views, slots, product, reduction; /* offsets in a thread's scratch */
  size_t slot_at[MPG_FUSED_MAX_VALUES];
  mpg_trailing_reduction trailing[MPG_FUSED_MAX_TRAILING];
  size_t state_at[MPG_FUSED_MAX_TRAILING]; /* offset in a thread's scratch */
  char *partials[MPG_FUSED_MAX_TRAILING];
  mpg_status status;
} run;

static void *outside(const run *r, uint32_t operand) {
  uint32_t inputs = (uint32_t)r->call->num_inputs;
  return operand < inputs ? r->call->inputs[operand].data : r->call->outputs[operand - inputs].data;
}

/* Runs the members on rows [row, row + rows) of the domain. */
static mpg_status run_members(const run *r, mpg_view *views, const int64_t *offsets, int64_t row,
                              int64_t rows, char *scratch) {
  const mpg_fused *fused = r->fused;
  uint32_t num_trailing = 0;
  mpg_kernel_call call = {.device = r->call->device,
                          .num_threads = 1,
                          .scratch = scratch + r->reduction,
                          .scratch_size = r->stride - r->reduction};
  for (uint32_t k = r->first; k < fused->num_members; k++) {
    const mpg_fused_member *member = &fused->members[k];
    if (member->trailing && offsets) {
      const mpg_trailing_reduction *trailing = &r->trailing[num_trailing];
      mpg_cpu_trailing_feed(trailing, scratch + r->state_at[num_trailing],
                            r->partials[num_trailing], views[member->operands].data,
                            row * r->inner / trailing->inner, rows * r->inner / trailing->inner);
      num_trailing++;
      continue;
    }
    call.op = member->op;
    call.params = member->params;
    call.num_inputs = (int)member->num_inputs;
    call.num_outputs = (int)member->num_outputs;
    call.inputs = views + member->operands;
    call.outputs = call.inputs + member->num_inputs;
    call.train = member->train;
    if (member->draw != UINT32_MAX) {
      call.random = fused->keys[member->draw];
      if (offsets)
        call.random.first =
            (uint64_t)offsets[fused->operands[member->operands + member->num_inputs]];
    }
    MPG_TRY(member->kernel(&call));
  }
  return MPG_OK;
}

/* Runs the group as one tile, with the group's own views. */
static mpg_status run_whole(run *r) {
  const mpg_fused *fused = r->fused;
  void **addresses = (void **)(void *)(r->scratch + r->addresses);
  for (uint32_t v = 0; v < fused->num_values; v++) {
    const mpg_fused_value *value = &fused->values[v];
    addresses[v] = value->operand == MPG_FUSED_LOCAL ? r->scratch + r->slot_at[value->slot]
                                                     : outside(r, value->operand);
  }
  for (uint32_t i = 0; i < fused->num_operands; i++)
    fused->views[i].data =
        fused->operands[i] == MPG_FUSED_LOCAL ? NULL : addresses[fused->operands[i]];
  return run_members(r, fused->views, NULL, 0, 0, r->scratch);
}

/* Sets the shapes of the views for a tile with `count` indices of the split dim. */
static void cut_views(const run *r, int64_t count, mpg_view *views) {
  const mpg_fused *fused = r->fused;
  for (uint32_t i = 0; i < fused->num_operands; i++) {
    const mpg_shape *whole = &fused->views[i].desc.shape;
    views[i].desc.dtype = fused->views[i].desc.dtype;
    mpg_shape *shape = &views[i].desc.shape;
    shape->ndim = fused->ndim - r->split;
    for (int d = 0; d < shape->ndim; d++) shape->dims[d] = whole->dims[r->split + d];
    if (shape->dims[0] != 1) shape->dims[0] = count;
  }
}

static mpg_status run_tiles(const run *r, int64_t begin, int64_t end, char *scratch) {
  const mpg_fused *fused = r->fused;
  int64_t *offsets = (int64_t *)(void *)(scratch + r->addresses);
  mpg_view *views = (mpg_view *)(void *)(scratch + r->views);
  int64_t shown = -1, count;
  for (int64_t row = begin; row < end; row += count) {
    int64_t rest = row / fused->dims[r->split], at = row % fused->dims[r->split];
    count = fused->dims[r->split] - at < r->step ? fused->dims[r->split] - at : r->step;
    if (count > end - row) count = end - row;
    if (count != shown) cut_views(r, shown = count, views);
    for (uint32_t v = 0; v < fused->num_values; v++)
      offsets[v] = at * fused->values[v].strides[r->split];
    for (int d = r->split - 1; d >= 0; d--) {
      int64_t index = rest % fused->dims[d];
      rest /= fused->dims[d];
      for (uint32_t v = 0; v < fused->num_values; v++)
        offsets[v] += index * fused->values[v].strides[d];
    }
    for (uint32_t i = 0; i < fused->num_operands; i++) {
      uint32_t v = fused->operands[i];
      if (v == MPG_FUSED_LOCAL) {
        views[i].data = NULL;
        continue;
      }
      const mpg_fused_value *value = &fused->values[v];
      int64_t size = (int64_t)mpg_dtype_size(value->dtype);
      if (value->operand >= MPG_FUSED_PANEL && r->panel && v == r->made)
        views[i].data = scratch + r->product + (offsets[v] - begin * r->inner) * size;
      else if (value->operand >= MPG_FUSED_PANEL)
        views[i].data = scratch + r->slot_at[value->slot];
      else
        views[i].data = (char *)outside(r, value->operand) + offsets[v] * size;
    }
    MPG_TRY(run_members(r, views, offsets, row, count, scratch));
  }
  return MPG_OK;
}

/* Computes the producer's panels, and after each panel runs the members on its rows. */
static mpg_status run_panels(const run *r, int64_t begin, int64_t end, int thread, char *scratch) {
  const mpg_fused_value *value = &r->fused->values[r->made];
  for (int64_t row = begin; row < end; row += r->panel) {
    float *out = value->operand >= MPG_FUSED_PANEL
                     ? (float *)(void *)(scratch + r->product)
                     : (float *)outside(r, value->operand) + row * r->inner;
    MPG_TRY(mpg_cpu_panel(&r->producer, &r->panels, thread, row / r->panel, out));
    if (r->first < r->fused->num_members)
      MPG_TRY(run_tiles(r, row, end - row < r->panel ? end : row + r->panel, scratch));
  }
  return MPG_OK;
}

/* Returns the first row of a thread's range. Ranges begin at multiples of `grain`, or at tiles if
 * `grain` is 0. */
static int64_t begin_of(const run *r, int64_t piece) {
  if (r->grain)
    return piece == r->pieces ? r->rows : r->rows / r->grain * piece / r->pieces * r->grain;
  int64_t tile = r->tiles * piece / r->pieces;
  return tile / r->blocks * r->fused->dims[r->split] + tile % r->blocks * r->step;
}

static void run_pieces(void *context, int64_t begin, int64_t end) {
  run *r = context;
  for (int64_t piece = begin; piece < end; piece++) {
    int64_t first = begin_of(r, piece), last = begin_of(r, piece + 1);
    char *scratch = r->scratch + (size_t)piece * r->stride;
    for (uint32_t i = 0; i < r->fused->num_trailing; i++)
      mpg_cpu_trailing_begin(scratch + r->state_at[i]);
    mpg_status status = r->panel ? run_panels(r, first, last, (int)piece, scratch)
                                 : run_tiles(r, first, last, scratch);
    if (status != MPG_OK) __atomic_store_n(&r->status, status, __ATOMIC_RELAXED);
  }
}

static void find_trailing(run *r) {
  const mpg_fused *fused = r->fused;
  uint32_t count = 0;
  for (uint32_t k = 0; k < fused->num_members && count < fused->num_trailing; k++) {
    const mpg_fused_member *member = &fused->members[k];
    if (!member->trailing) continue;
    const mpg_fused_value *in = &fused->values[fused->operands[member->operands]],
                          *out = &fused->values[fused->operands[member->operands + 1]];
    int64_t rows = 1, inner = 1;
    for (int d = 0; d < fused->ndim; d++)
      *(out->varying >> d & 1 ? &inner : &rows) *= fused->dims[d];
    r->trailing[count++] = mpg_cpu_trailing_of(member->op, member->params, in->dtype, rows, inner);
  }
}

/* True if each chunk of the trailing reductions and each panel of the producer holds a multiple of
 * `elements` elements. */
static bool chunks_of(const run *r, int64_t elements) {
  if (r->panel_elements && r->panel_elements % elements) return false;
  for (uint32_t i = 0; i < r->fused->num_trailing; i++)
    if (r->trailing[i].chunks > 1 && r->trailing[i].chunk * r->trailing[i].inner % elements)
      return false;
  return true;
}

/* Returns the number of rows per work unit: the least common multiple of the panel and the chunks
 * of all trailing reductions. */
static int64_t find_grain(const run *r) {
  int64_t grain = r->panel ? r->panel : r->fused->num_trailing != 0;
  for (uint32_t i = 0; i < r->fused->num_trailing; i++) {
    const mpg_trailing_reduction *trailing = &r->trailing[i];
    int64_t chunk = trailing->chunk * trailing->inner / r->inner, a = grain, b = chunk;
    if (trailing->chunks == 1 || trailing->chunk * trailing->inner % r->inner) return r->rows;
    while (b) {
      int64_t rest = a % b;
      a = b;
      b = rest;
    }
    grain = grain / a * chunk;
  }
  return grain < r->rows ? grain : r->rows;
}

/* Chooses the tiles and the number of threads. A tile spans as many inner dims as fit into TILE
 * elements, and an even share of the next dim. */
static void cut(run *r) {
  const mpg_fused *fused = r->fused;
  int64_t all = 1, outer = 1;
  for (int d = 0; d < fused->ndim; d++) all *= fused->dims[d];
  r->split = -1;
  r->inner = r->step = r->blocks = r->tiles = r->rows = 1;
  if (all > TILE && fused->split >= 0) {
    find_trailing(r);
    if (fused->producer.op)
      r->panel_elements = mpg_product_panel(&fused->producer.product, r->call->num_threads) *
                          fused->producer.product.n;
    r->split = fused->ndim - 1;
    while (r->split > 0 &&
           (r->split > fused->split || (r->inner * fused->dims[r->split] <= TILE &&
                                        chunks_of(r, r->inner * fused->dims[r->split]))))
      r->inner *= fused->dims[r->split--];
    int64_t dim = fused->dims[r->split], most = TILE / r->inner < 1 ? 1 : TILE / r->inner;
    r->blocks = (dim + most - 1) / most;
    r->step = (dim + r->blocks - 1) / r->blocks;
    r->blocks = (dim + r->step - 1) / r->step;
    for (int d = 0; d < r->split; d++) outer *= fused->dims[d];
    r->tiles = outer * r->blocks;
    r->rows = outer * dim;
    r->panel = r->panel_elements / r->inner;
    r->grain = find_grain(r);
  } else {
    r->inner = all;
  }
  int64_t threads = all * fused->num_members / WORK,
          most = r->grain ? r->rows / r->grain : r->tiles;
  r->pieces = threads < 1 ? 1 : threads < r->call->num_threads ? threads : r->call->num_threads;
  if (r->panel) r->pieces = mpg_panel_threads(r->call, &fused->producer.product);
  if (r->pieces > most) r->pieces = most;
}

static bool read_later(const mpg_fused *fused, uint32_t value, uint32_t from) {
  for (uint32_t k = from; k < fused->num_members; k++)
    for (uint32_t i = 0; i < fused->members[k].num_inputs; i++)
      if (fused->operands[fused->members[k].operands + i] == value) return true;
  return false;
}

/* If the producer supports it, moves the group's first members into its epilogue: the addition of
 * an array of the result's size, then relu or the gradient of relu. */
static void give_tail(run *r) {
  const mpg_fused *fused = r->fused;
  const mpg_fused_producer *producer = &fused->producer;
  r->made = producer->value;
  if (!r->panel || !mpg_panel_takes(producer->op, producer->params)) return;
  for (bool last = false; !last && r->first < fused->num_members; r->first++) {
    const mpg_fused_member *member = &fused->members[r->first];
    const uint32_t *inputs = fused->operands + member->operands;
    if (fused->values[r->made].operand < MPG_FUSED_PANEL ||
        read_later(fused, r->made, r->first + 1))
      return;
    uint32_t other = member->num_inputs == 2 ? inputs[inputs[0] == r->made] : MPG_FUSED_LOCAL;
    const mpg_fused_value *value =
        other == MPG_FUSED_LOCAL || other == r->made ? NULL : &fused->values[other];
    const float *array = value && value->operand < (uint32_t)r->call->num_inputs &&
                                 value->dtype == MPG_FLOAT32 &&
                                 value->varying == fused->values[r->made].varying
                             ? outside(r, value->operand)
                             : NULL;
    switch (mpg_formula_of(member->op, member->params).id) {
      case MPG_UNARY_relu: last = r->tail.relu = true; break;
      case MPG_BINARY_backward_relu:
        if (!array || inputs[0] != r->made) return;
        r->tail.gate = array;
        last = true;
        break;
      case MPG_BINARY_add:
        if (!array || r->tail.added) return;
        r->tail.added = array;
        break;
      default: return;
    }
    r->made = inputs[member->num_inputs];
  }
}

static void lay_out(run *r) {
  const mpg_fused *fused = r->fused;
  size_t elements = (size_t)(r->step * r->inner), at = 0;
  r->addresses = at;
  at += mpg_align_up(fused->num_values * sizeof(int64_t), 64);
  r->views = at;
  if (r->split >= 0) at += mpg_align_up(fused->num_operands * sizeof(mpg_view), 64);
  for (uint32_t s = 0; s < fused->num_slots; s++) {
    r->slot_at[s] = at;
    at += mpg_align_up(elements * fused->slot_bytes[s], 64);
  }
  for (uint32_t i = 0; i < fused->num_trailing && r->split >= 0; i++) {
    r->state_at[i] = at;
    at += r->trailing[i].state_bytes;
  }
  r->product = at;
  if (r->panel && fused->values[r->made].operand >= MPG_FUSED_PANEL)
    at += mpg_align_up((size_t)(r->panel * r->inner) * sizeof(float), 64);
  r->reduction = at;
  if (fused->reduces) at += 2 * mpg_align_up(elements * sizeof(double), 64);
  r->stride = mpg_align_up(at, 4096); /* page-aligned, so that threads write to separate pages */
}

mpg_status mpg_cpu_fused(const mpg_kernel_call *call) {
  run r = {.call = call, .fused = call->params};
  cut(&r);
  give_tail(&r);
  lay_out(&r);
  size_t threads = r.stride * (size_t)r.pieces, partials = 0;
  uint32_t num_trailing = r.split >= 0 ? r.fused->num_trailing : 0;
  for (uint32_t i = 0; i < num_trailing; i++) partials += r.trailing[i].partial_bytes;
  r.scratch = mpg_device_scratch_slot(call->device, MPG_SCRATCH_KERNEL, threads + partials);
  if (!r.scratch) return MPG_DEVICE_OUT_OF_MEMORY;
  if (r.split < 0) return run_whole(&r);
  for (uint32_t i = 0; i < num_trailing; i++)
    r.partials[i] = i ? r.partials[i - 1] + r.trailing[i - 1].partial_bytes : r.scratch + threads;
  if (r.panel) {
    r.producer = *call;
    r.producer.op = r.fused->producer.op;
    r.producer.params = r.fused->producer.params;
    r.producer.inputs = call->inputs + r.fused->producer.first_input;
    r.producer.num_inputs = (int)r.fused->producer.num_inputs;
    MPG_TRY(mpg_cpu_panels_begin(&r.producer, &r.fused->producer.product, &r.tail, (int)r.pieces,
                                 &r.panels));
  }
  mpg_cpu_parallel_for(call, r.pieces, 1, run_pieces, &r);
  if (r.status != MPG_OK)
    return mpg_fail(r.status, "%s: a member of the fused group failed", r.fused->name);
  for (uint32_t k = 0, i = 0; i < num_trailing; k++) {
    const mpg_fused_member *member = &r.fused->members[k];
    if (!member->trailing) continue;
    const mpg_fused_value *out = &r.fused->values[r.fused->operands[member->operands + 1]];
    MPG_TRY(mpg_cpu_trailing_end(call, &r.trailing[i], r.partials[i], out->dtype,
                                 outside(&r, out->operand)));
    i++;
  }
  return MPG_OK;
}
