/* Collectives as plans of ordinary ops and copies. */
#include "comm/collective.h"

#include <string.h>

#include "op/array/collective.h"

typedef struct mpg_comm_slot {
  mpg_desc desc;
  mpg_device_id device;
} slot;

static const char *const collective_names[MPG_COLLECTIVE_COUNT] = {
    "all_reduce", "reduce",  "reduce_scatter", "all_gather",
    "gather",     "scatter", "broadcast",      "all_to_all"};
static const char *const algorithm_names[MPG_COMM_ALGORITHM_COUNT] = {"auto", "one_shot",
                                                                      "two_shot"};

const char *mpg_collective_name(mpg_collective kind) { return collective_names[kind]; }

mpg_collective mpg_collective_find(const char *name) {
  int i = 0;
  while (i < MPG_COLLECTIVE_COUNT && strcmp(name, collective_names[i]) != 0) i++;
  return (mpg_collective)i;
}

mpg_comm_algorithm mpg_comm_algorithm_find(const char *name) {
  int i = 0;
  while (i < MPG_COMM_ALGORITHM_COUNT && strcmp(name, algorithm_names[i]) != 0) i++;
  return (mpg_comm_algorithm)i;
}

/* --- Steps ------------------------------------------------------------------------------------ */

static mpg_status add_slot(mpg_comm_plan *plan, const mpg_desc *desc, mpg_device_id device) {
  MPG_TRY(mpg_grow((void **)&plan->slots, &plan->slots_capacity, plan->num_slots + 1,
                   sizeof *plan->slots));
  plan->slots[plan->num_slots++] = (slot){*desc, device};
  return MPG_OK;
}

/* Adds a step whose outputs are on `device` and have the shapes and dtypes in `descs`. Sets *first
 * to the first output slot. */
static mpg_status add_step(mpg_comm_plan *plan, mpg_op_id op, const void *params,
                           const uint32_t *inputs, int num_inputs, const mpg_desc *descs,
                           int num_outputs, mpg_device_id device, uint32_t *first) {
  mpg_comm_step step = {.op = mpg_op_get(op),
                        .num_inputs = (uint32_t)num_inputs,
                        .first_output = (uint32_t)plan->num_slots,
                        .num_outputs = (uint32_t)num_outputs};
  size_t size = step.op->params->size;
  step.inputs = mpg_arena_copy(&plan->arena, inputs, (size_t)num_inputs * sizeof *inputs);
  if (size) step.params = mpg_arena_copy(&plan->arena, params, size);
  if (step.inputs == NULL || (size && step.params == NULL)) return mpg_out_of_host_memory(size);
  for (int i = 0; i < num_outputs; i++) MPG_TRY(add_slot(plan, &descs[i], device));
  MPG_TRY(mpg_grow((void **)&plan->steps, &plan->steps_capacity, plan->num_steps + 1,
                   sizeof *plan->steps));
  plan->steps[plan->num_steps++] = step;
  *first = step.first_output;
  return MPG_OK;
}

/* Copies a slot to a device. If the slot is already on that device, adds no step and sets *to to
 * the slot itself. */
static mpg_status move(mpg_comm_plan *plan, uint32_t from, mpg_device_id device, uint32_t *to) {
  *to = from;
  mpg_desc desc = plan->slots[from].desc;
  if (mpg_device_id_equal(plan->slots[from].device, device)) return MPG_OK;
  mpg_copyto_params params;
  mpg_params_defaults(&mpg_copyto_table, &params);
  params.ctx = device;
  size_t bytes;
  MPG_TRY(mpg_shape_check(&desc.shape, desc.dtype, &bytes));
  plan->num_copies++;
  plan->bytes += bytes;
  return add_step(plan, MPG_OP__copyto, &params, &from, 1, &desc, 1, device, to);
}

static mpg_status sum(mpg_comm_plan *plan, const uint32_t *parts, int count, uint32_t *to) {
  slot first = plan->slots[parts[0]];
  mpg_num_args_params params = {.num_args = count};
  *to = parts[0];
  if (count == 1) return MPG_OK;
  return add_step(plan, MPG_OP_add_n, &params, parts, count, &first.desc, 1, first.device, to);
}

static mpg_status join(mpg_comm_plan *plan, const uint32_t *parts, int count, int axis,
                       uint32_t *to) {
  slot first = plan->slots[parts[0]];
  mpg_concat_params params = {.num_args = count, .dim = axis};
  *to = parts[0];
  if (count == 1) return MPG_OK;
  for (int i = 1; i < count; i++)
    first.desc.shape.dims[axis] += plan->slots[parts[i]].desc.shape.dims[axis];
  return add_step(plan, MPG_OP_Concat, &params, parts, count, &first.desc, 1, first.device, to);
}

/* Splits a slot along an axis into `count` parts. */
static mpg_status cut(mpg_comm_plan *plan, uint32_t from, int count, int axis, uint32_t *parts) {
  slot whole = plan->slots[from];
  mpg_split_v2_params params = {.axis = axis};
  mpg_desc descs[MPG_COMM_MAX_RANKS] = {0};
  int64_t total = whole.desc.shape.dims[axis];
  parts[0] = from;
  if (count == 1) return MPG_OK;
  if (total % count == 0) {
    params.sections = count;
  } else if (count > MPG_MAX_TUPLE) {
    return mpg_fail(MPG_NOT_IMPLEMENTED,
                    "%lld elements along axis %d cannot be split into %d parts: with more than %d "
                    "devices the split must be even",
                    (long long)total, axis, count, MPG_MAX_TUPLE);
  }
  for (int i = 0; i < count; i++) {
    int64_t begin = mpg_part_begin(total, count, i);
    if (!params.sections) params.indices.values[params.indices.count++] = begin;
    descs[i] = whole.desc;
    descs[i].shape.dims[axis] = mpg_part_begin(total, count, i + 1) - begin;
  }
  uint32_t first;
  MPG_TRY(add_step(plan, MPG_OP__split_v2, &params, &from, 1, descs, count, whole.device, &first));
  for (int i = 0; i < count; i++) parts[i] = first + (uint32_t)i;
  return MPG_OK;
}

static mpg_status reshape(mpg_comm_plan *plan, uint32_t from, const mpg_shape *shape,
                          uint32_t *to) {
  slot old = plan->slots[from];
  mpg_exact_shape_params params = {.shape = mpg_shape_tuple(shape)};
  old.desc.shape = *shape;
  return add_step(plan, MPG_OP__reshape_exact, &params, &from, 1, &old.desc, 1, old.device, to);
}

/* If the result is an input, copies it. Without the copy, the two arrays would share memory, and a
 * later write to one would change both. */
static mpg_status own(mpg_comm_plan *plan, const mpg_comm_request *r, uint32_t *result) {
  if (*result >= (uint32_t)r->num_inputs) return MPG_OK;
  slot old = plan->slots[*result];
  return add_step(plan, MPG_OP__copy, NULL, result, 1, &old.desc, 1, old.device, result);
}

/* --- Plans of copies and ordinary ops --------------------------------------------------------- */

/* Copies the arrays in `from` (one per rank) to the device, and combines them in rank order:
 * concatenates along axis `joined`, or sums if `joined` is -1. */
static mpg_status collect(mpg_comm_plan *plan, const uint32_t *from, int count,
                          mpg_device_id device, int joined, uint32_t *to) {
  uint32_t here[MPG_COMM_MAX_RANKS] = {0};
  for (int i = 0; i < count; i++) MPG_TRY(move(plan, from[i], device, &here[i]));
  return joined < 0 ? sum(plan, here, count, to) : join(plan, here, count, joined, to);
}

/* Plans `collect` for the device of every rank. Rank i contributes the array from[i * step + rank *
 * step_of_rank] to the result of `rank`. Plans all copies before the ops that wait for them, so
 * that no device delays a send. Plans ranks from last to first, because autograd sums the gradients
 * of a value from its last use to its first. So the backward pass also sums in rank order. */
static mpg_status collect_everywhere(mpg_comm_plan *plan, const mpg_comm_request *r,
                                     const uint32_t *from, int step, int step_of_rank, int joined,
                                     uint32_t *results) {
  int n = r->num_ranks;
  uint32_t *here = mpg_arena_alloc(&plan->arena, (size_t)n * (size_t)n * sizeof *here);
  if (!here) return mpg_out_of_host_memory((size_t)n * (size_t)n * sizeof *here);
  for (int rank = n - 1; rank >= 0; rank--)
    for (int i = 0; i < n; i++) {
      uint32_t *at = &here[rank * n + i], array = from[i * step + rank * step_of_rank];
      const mpg_shape shape = plan->slots[array].desc.shape;
      MPG_TRY(move(plan, array, r->devices[rank], at));
      /* The array is already on this rank's device, so no copy was planned. Adds a reshape to the
       * same shape, so that autograd sums the gradient of this use in its turn in rank order. */
      if (*at == array && !step_of_rank && n > 1) MPG_TRY(reshape(plan, array, &shape, at));
    }
  for (int rank = n - 1; rank >= 0; rank--)
    MPG_TRY(joined < 0 ? sum(plan, here + rank * n, n, &results[rank])
                       : join(plan, here + rank * n, n, joined, &results[rank]));
  return MPG_OK;
}

/* Splits each array into n parts. Sets (*parts)[rank * n + i] to part i of that rank's array. */
static mpg_status cut_all(mpg_comm_plan *plan, const uint32_t *from, int n, int axis,
                          uint32_t **parts) {
  *parts = mpg_arena_alloc(&plan->arena, (size_t)n * (size_t)n * sizeof **parts);
  if (*parts == NULL) return mpg_out_of_host_memory((size_t)n * (size_t)n * sizeof **parts);
  for (int rank = 0; rank < n; rank++) MPG_TRY(cut(plan, from[rank], n, axis, *parts + rank * n));
  return MPG_OK;
}

static mpg_status reduce_scatter(mpg_comm_plan *plan, const mpg_comm_request *r,
                                 const uint32_t *from, int axis, uint32_t *results) {
  uint32_t *parts;
  MPG_TRY(cut_all(plan, from, r->num_ranks, axis, &parts));
  return collect_everywhere(plan, r, parts, r->num_ranks, 1, -1, results);
}

/* Minimum number of ranks and bytes for two_shot. With two ranks, one_shot sends as many bytes in
 * fewer hops. For small arrays, the latency of the hops dominates. */
enum { TWO_SHOT_RANKS = 3, TWO_SHOT_BYTES = 1 << 18 };

static bool two_shot(const mpg_comm_request *r) {
  size_t bytes;
  if (r->algorithm != MPG_COMM_AUTO) return r->algorithm == MPG_COMM_TWO_SHOT && r->num_ranks > 1;
  return r->num_ranks >= TWO_SHOT_RANKS && r->num_ranks <= MPG_MAX_TUPLE &&
         mpg_shape_check(&r->inputs[0].shape, r->inputs[0].dtype, &bytes) == MPG_OK &&
         bytes >= TWO_SHOT_BYTES;
}

static mpg_status all_reduce(mpg_comm_plan *plan, const mpg_comm_request *r, const uint32_t *from,
                             uint32_t *results) {
  int n = r->num_ranks;
  if (!two_shot(r)) return collect_everywhere(plan, r, from, 1, 0, -1, results);
  uint32_t flat[MPG_COMM_MAX_RANKS] = {0}, sums[MPG_COMM_MAX_RANKS] = {0};
  mpg_shape line = {.ndim = 1, .dims = {mpg_shape_size(&r->inputs[0].shape)}};
  for (int rank = 0; rank < n; rank++) MPG_TRY(reshape(plan, from[rank], &line, &flat[rank]));
  MPG_TRY(reduce_scatter(plan, r, flat, 0, sums));
  MPG_TRY(collect_everywhere(plan, r, sums, 1, 0, 0, results));
  for (int rank = n - 1; rank >= 0; rank--)
    MPG_TRY(reshape(plan, results[rank], &r->inputs[0].shape, &results[rank]));
  return MPG_OK;
}

static mpg_status all_to_all(mpg_comm_plan *plan, const mpg_comm_request *r, const uint32_t *from,
                             uint32_t *results) {
  uint32_t *parts;
  MPG_TRY(cut_all(plan, from, r->num_ranks, r->axis, &parts));
  return collect_everywhere(plan, r, parts, r->num_ranks, 1, r->other_axis, results);
}

/* Plans a collective from copies and ordinary ops. Plans ranks from last to first for the reason
 * given at collect_everywhere. */
static mpg_status plan_local(const mpg_comm_request *r, mpg_comm_plan *plan) {
  uint32_t from[MPG_COMM_MAX_RANKS], *results = plan->results;
  int n = r->num_ranks;
  for (int i = 0; i < r->num_inputs; i++) from[i] = (uint32_t)i;
  switch (r->kind) {
    case MPG_ALL_REDUCE: MPG_TRY(all_reduce(plan, r, from, results)); break;
    case MPG_REDUCE: MPG_TRY(collect(plan, from, n, r->root, -1, results)); break;
    case MPG_REDUCE_SCATTER: MPG_TRY(reduce_scatter(plan, r, from, r->axis, results)); break;
    case MPG_ALL_GATHER: MPG_TRY(collect_everywhere(plan, r, from, 1, 0, r->axis, results)); break;
    case MPG_GATHER: MPG_TRY(collect(plan, from, n, r->root, r->axis, results)); break;
    case MPG_SCATTER: {
      uint32_t parts[MPG_COMM_MAX_RANKS];
      MPG_TRY(cut(plan, 0, n, r->axis, parts));
      for (int rank = 0; rank < n; rank++)
        MPG_TRY(move(plan, parts[rank], r->devices[rank], &results[rank]));
      break;
    }
    case MPG_BROADCAST:
      for (int rank = n - 1; rank >= 0; rank--) {
        MPG_TRY(move(plan, 0, r->devices[rank], &results[rank]));
        MPG_TRY(own(plan, r, &results[rank]));
      }
      break;
    case MPG_ALL_TO_ALL: MPG_TRY(all_to_all(plan, r, from, results)); break;
    case MPG_COLLECTIVE_COUNT: MPG_ASSERT(false);
  }
  for (int i = 0; i < plan->num_results; i++) MPG_TRY(own(plan, r, &results[i]));
  return MPG_OK;
}

/* --- Plans of single ops (NCCL) --------------------------------------------------------------- */

/* Adds one op whose inputs and outputs are on several devices. Output i has the shape and dtype
 * descs[i] and is on devices[i]. Sets *first to the first output slot. */
static mpg_status span(mpg_comm_plan *plan, mpg_collective_kind kind, const uint32_t *inputs,
                       int num_inputs, const mpg_desc *descs, const mpg_device_id *devices,
                       int num_outputs, uint32_t *first) {
  mpg_device_id from[MPG_MAX_SPANNED];
  for (int i = 0; i < num_inputs; i++) from[i] = plan->slots[inputs[i]].device;
  mpg_collective_params params = {.kind = kind,
                                  .input_devices = mpg_collective_text(from, num_inputs),
                                  .output_devices = mpg_collective_text(devices, num_outputs)};
  if (!params.input_devices || !params.output_devices)
    return mpg_out_of_host_memory((size_t)num_inputs * sizeof *from);
  MPG_TRY(add_step(plan, MPG_OP__collective, &params, inputs, num_inputs, descs, num_outputs,
                   devices[0], first));
  for (int i = 0; i < num_outputs; i++) plan->slots[*first + (uint32_t)i].device = devices[i];
  return MPG_OK;
}

/* Moves slots[i] to devices[i] for all i. Each op moves up to MPG_MAX_SPANNED slots. Does not move
 * slots that are already on their device. */
static mpg_status exchange(mpg_comm_plan *plan, uint32_t *slots, const mpg_device_id *devices,
                           size_t count) {
  uint32_t inputs[MPG_MAX_SPANNED], first;
  mpg_desc *descs = mpg_malloc(MPG_MAX_SPANNED * sizeof *descs);
  mpg_device_id to[MPG_MAX_SPANNED];
  mpg_status status = MPG_OK;
  if (!descs) return mpg_out_of_host_memory(MPG_MAX_SPANNED * sizeof *descs);
  for (size_t begin = 0; begin < count;) {
    size_t end = begin;
    int moved = 0;
    for (; end < count && moved < MPG_MAX_SPANNED; end++) {
      const slot *s = &plan->slots[slots[end]];
      if (mpg_device_id_equal(s->device, devices[end])) continue;
      size_t bytes;
      MPG_GOTO(mpg_shape_check(&s->desc.shape, s->desc.dtype, &bytes));
      plan->num_copies++;
      plan->bytes += bytes;
      inputs[moved] = slots[end];
      descs[moved] = s->desc;
      to[moved++] = devices[end];
    }
    if (moved) MPG_GOTO(span(plan, MPG_EXCHANGE, inputs, moved, descs, to, moved, &first));
    for (size_t i = begin; moved && i < end; i++)
      if (!mpg_device_id_equal(plan->slots[slots[i]].device, devices[i])) slots[i] = first++;
    begin = end;
  }
fail:
  mpg_free(descs);
  return status;
}

/* Transposes the first two of three axes. */
static mpg_status transpose(mpg_comm_plan *plan, uint32_t from, uint32_t *to) {
  slot old = plan->slots[from];
  mpg_transpose_params params = {.axes = {.count = 3, .values = {1, 0, 2}}};
  int64_t rows = old.desc.shape.dims[0];
  old.desc.shape.dims[0] = old.desc.shape.dims[1];
  old.desc.shape.dims[1] = rows;
  return add_step(plan, MPG_OP_transpose, &params, &from, 1, &old.desc, 1, old.device, to);
}

/* Returns the 3-d shape of an array whose `axis` is split into parts of `within` elements: (product
 * of the dims before the axis, number of parts, `within` times the product of the dims after the
 * axis). If `in_front`, the first two dims are swapped. */
static mpg_shape fold(const mpg_shape *shape, int axis, int64_t within, bool in_front) {
  int64_t before = 1, behind = within;
  for (int d = 0; d < axis; d++) before *= shape->dims[d];
  for (int d = axis + 1; d < shape->ndim; d++) behind *= shape->dims[d];
  int64_t parts = within ? shape->dims[axis] / within : 0;
  return (mpg_shape){.ndim = 3,
                     .dims = {in_front ? parts : before, in_front ? before : parts, behind}};
}

static mpg_status bring_front(mpg_comm_plan *plan, uint32_t from, int axis, int64_t within,
                              uint32_t *to) {
  mpg_shape folded = fold(&plan->slots[from].desc.shape, axis, within, false);
  MPG_TRY(reshape(plan, from, &folded, to));
  return folded.dims[0] == 1
             ? reshape(plan, *to,
                       &(mpg_shape){.ndim = 3, .dims = {folded.dims[1], 1, folded.dims[2]}}, to)
             : transpose(plan, *to, to);
}

static mpg_status bring_back(mpg_comm_plan *plan, uint32_t from, const mpg_shape *shape,
                             uint32_t *to) {
  *to = from;
  if (plan->slots[from].desc.shape.dims[1] != 1) MPG_TRY(transpose(plan, from, to));
  return reshape(plan, *to, shape, to);
}

static mpg_status span_reduce_scatter(mpg_comm_plan *plan, const mpg_comm_request *r,
                                      const uint32_t *from, uint32_t *results) {
  int n = r->num_ranks;
  int64_t total = r->inputs[0].shape.dims[r->axis];
  uint32_t front[MPG_COMM_MAX_RANKS] = {0}, first, *parts;
  if (total % n == 0 && mpg_shape_size(&r->inputs[0].shape)) {
    mpg_desc descs[MPG_COMM_MAX_RANKS] = {0};
    mpg_shape part = r->inputs[0].shape;
    part.dims[r->axis] = total / n;
    for (int i = 0; i < n; i++) MPG_TRY(bring_front(plan, from[i], r->axis, total / n, &front[i]));
    for (int i = 0; i < n; i++) {
      descs[i] = plan->slots[front[0]].desc;
      descs[i].shape.dims[0] = 1;
    }
    MPG_TRY(span(plan, MPG_SUM_TO_PARTS, front, n, descs, r->devices, n, &first));
    for (int i = 0; i < n; i++) MPG_TRY(reshape(plan, first + (uint32_t)i, &part, &results[i]));
    return MPG_OK;
  }
  MPG_TRY(cut_all(plan, from, n, r->axis, &parts));
  for (int rank = 0; rank < n; rank++) {
    for (int i = 0; i < n; i++) front[i] = parts[i * n + rank];
    mpg_desc desc = plan->slots[front[0]].desc;
    MPG_TRY(span(plan, MPG_SUM_TO_ONE, front, n, &desc, &r->devices[rank], 1, &results[rank]));
  }
  return MPG_OK;
}

/* Concatenates all ranks' arrays on each of `count` devices. If all arrays have the same shape and
 * rank i's array is on devices[i], uses one all-gather. Otherwise copies the arrays to every device
 * and concatenates them there. */
static mpg_status span_gather(mpg_comm_plan *plan, const mpg_comm_request *r, const uint32_t *from,
                              const mpg_device_id *devices, int count, uint32_t *results) {
  int n = r->num_ranks;
  bool even = count == n && mpg_shape_size(&r->inputs[0].shape);
  for (int i = 1; i < n; i++)
    even = even && mpg_shape_equal(&r->inputs[i].shape, &r->inputs[0].shape);
  for (int i = 0; i < n; i++) even = even && mpg_device_id_equal(r->input_devices[i], devices[i]);
  if (even) {
    uint32_t lines[MPG_COMM_MAX_RANKS] = {0}, first;
    mpg_desc descs[MPG_COMM_MAX_RANKS] = {0};
    mpg_shape whole = r->inputs[0].shape, line = fold(&whole, r->axis, whole.dims[r->axis], true);
    whole.dims[r->axis] *= n;
    for (int i = 0; i < n; i++) MPG_TRY(reshape(plan, from[i], &line, &lines[i]));
    for (int i = 0; i < n; i++) {
      descs[i] = plan->slots[lines[0]].desc;
      descs[i].shape.dims[0] = n;
    }
    MPG_TRY(span(plan, MPG_JOIN_TO_ALL, lines, n, descs, devices, n, &first));
    for (int i = 0; i < n; i++) MPG_TRY(bring_back(plan, first + (uint32_t)i, &whole, &results[i]));
    return MPG_OK;
  }
  size_t cells = (size_t)count * (size_t)n;
  uint32_t *slots = mpg_arena_alloc(&plan->arena, cells * sizeof *slots);
  mpg_device_id *to = mpg_arena_alloc(&plan->arena, cells * sizeof *to);
  if (!slots || !to) return mpg_out_of_host_memory(cells * sizeof *to);
  for (size_t k = 0; k < cells; k++) {
    slots[k] = from[k % (size_t)n];
    to[k] = devices[k / (size_t)n];
  }
  MPG_TRY(exchange(plan, slots, to, cells));
  for (int i = 0; i < count; i++) MPG_TRY(join(plan, slots + i * n, n, r->axis, &results[i]));
  return MPG_OK;
}

static mpg_status span_all_to_all(mpg_comm_plan *plan, const mpg_comm_request *r,
                                  const uint32_t *from, uint32_t *results) {
  int n = r->num_ranks;
  uint32_t *parts,
      *own_parts = mpg_arena_alloc(&plan->arena, (size_t)n * (size_t)n * sizeof *own_parts);
  mpg_device_id *to = mpg_arena_alloc(&plan->arena, (size_t)n * (size_t)n * sizeof *to);
  if (!own_parts || !to) return mpg_out_of_host_memory((size_t)n * (size_t)n * sizeof *to);
  MPG_TRY(cut_all(plan, from, n, r->axis, &parts));
  for (int k = 0; k < n * n; k++) {
    own_parts[k] = parts[k % n * n + k / n];
    to[k] = r->devices[k / n];
  }
  MPG_TRY(exchange(plan, own_parts, to, (size_t)n * (size_t)n));
  for (int rank = 0; rank < n; rank++)
    MPG_TRY(join(plan, own_parts + rank * n, n, r->other_axis, &results[rank]));
  return MPG_OK;
}

static mpg_status plan_single(const mpg_comm_request *r, mpg_comm_plan *plan) {
  uint32_t from[MPG_COMM_MAX_RANKS], *results = plan->results, first;
  mpg_desc descs[MPG_COMM_MAX_RANKS] = {0};
  int n = r->num_ranks;
  for (int i = 0; i < r->num_inputs; i++) from[i] = (uint32_t)i;
  for (int i = 0; i < n; i++) descs[i] = r->inputs[0];
  switch (r->kind) {
    case MPG_ALL_REDUCE:
      MPG_TRY(span(plan, MPG_SUM_TO_ALL, from, n, descs, r->devices, n, &first));
      for (int i = 0; i < n; i++) results[i] = first + (uint32_t)i;
      break;
    case MPG_REDUCE:
      MPG_TRY(span(plan, MPG_SUM_TO_ONE, from, n, descs, &r->root, 1, results));
      break;
    case MPG_REDUCE_SCATTER: MPG_TRY(span_reduce_scatter(plan, r, from, results)); break;
    case MPG_ALL_GATHER: MPG_TRY(span_gather(plan, r, from, r->devices, n, results)); break;
    case MPG_GATHER: MPG_TRY(span_gather(plan, r, from, &r->root, 1, results)); break;
    case MPG_SCATTER:
      MPG_TRY(cut(plan, 0, n, r->axis, results));
      MPG_TRY(exchange(plan, results, r->devices, (size_t)n));
      break;
    case MPG_BROADCAST:
      MPG_TRY(span(plan, MPG_ONE_TO_ALL, from, 1, descs, r->devices, n, &first));
      for (int i = 0; i < n; i++) results[i] = first + (uint32_t)i;
      break;
    case MPG_ALL_TO_ALL: MPG_TRY(span_all_to_all(plan, r, from, results)); break;
    case MPG_COLLECTIVE_COUNT: MPG_ASSERT(false);
  }
  for (int i = 0; i < plan->num_results; i++) MPG_TRY(own(plan, r, &results[i]));
  return MPG_OK;
}

/* --- Transports ------------------------------------------------------------------------------- */

/* Returns MPG_OK if the devices of the inputs and results can form an NCCL communicator. Otherwise
 * the error says why not. */
static mpg_status check_nccl(const mpg_comm_request *r) {
  mpg_device_id all[3 * MPG_COMM_MAX_RANKS];
  int count = 0;
  bool twice = false;
  for (int i = 0; i < r->num_inputs + r->num_ranks + 1; i++) {
    mpg_device_id id = i < r->num_inputs                  ? r->input_devices[i]
                       : i < r->num_inputs + r->num_ranks ? r->devices[i - r->num_inputs]
                                                          : r->root;
    int known = 0;
    while (known < count && !mpg_device_id_equal(all[known], id)) known++;
    for (int k = i < r->num_inputs ? 0 : r->num_inputs; k < i && i < r->num_inputs + r->num_ranks;
         k++)
      twice |= mpg_device_id_equal(
          id, k < r->num_inputs ? r->input_devices[k] : r->devices[k - r->num_inputs]);
    if (twice)
      return mpg_fail(MPG_ERROR,
                      "two arrays are on %s, but NCCL takes one array from each GPU; use "
                      "transport='local' instead",
                      mpg_device_id_text(id).text);
    if (known == count) all[count++] = id;
  }
  return mpg_gpu_collectives(all, count);
}

static mpg_status plan_nccl(const mpg_comm_request *r, mpg_comm_plan *plan) {
  MPG_TRY(check_nccl(r));
  return plan_single(r, plan);
}

static mpg_status plan_auto(const mpg_comm_request *r, mpg_comm_plan *plan) {
  bool gpus = r->num_ranks > 1 && r->algorithm == MPG_COMM_AUTO;
  for (int i = 0; gpus && i < r->num_ranks; i++) gpus = r->devices[i].type == MPG_GPU;
  return gpus && check_nccl(r) == MPG_OK ? plan_single(r, plan) : plan_local(r, plan);
}

typedef struct transport {
  const char *name;
  mpg_status (*plan)(const mpg_comm_request *request, mpg_comm_plan *plan);
} transport;

static const transport transports[] = {
    {"local", plan_local},
    {"single", plan_single}, /* for tests: same plans as NCCL, for any devices */
    {"nccl", plan_nccl},
    {"auto", plan_auto},
};

/* --- Checks ----------------------------------------------------------------------------------- */

/* Checks that all arrays have the same dtype, number of dimensions and sizes, except along `axis`
 * (-1 means no exception). */
static mpg_status check_alike(const mpg_comm_request *r, int axis) {
  const mpg_desc *first = &r->inputs[0];
  for (int i = 1; i < r->num_inputs; i++) {
    const mpg_desc *other = &r->inputs[i];
    bool alike = first->dtype == other->dtype && first->shape.ndim == other->shape.ndim;
    for (int d = 0; alike && d < first->shape.ndim; d++)
      alike = d == axis || first->shape.dims[d] == other->shape.dims[d];
    if (alike) continue;
    char a[MPG_SHAPE_TEXT_SIZE], b[MPG_SHAPE_TEXT_SIZE];
    return mpg_fail(MPG_ERROR,
                    "%s: the array of rank 0 on %s is %s %s, but that of rank %d on %s is %s %s%s",
                    mpg_collective_name(r->kind), mpg_device_id_text(r->input_devices[0]).text,
                    mpg_dtype_name(first->dtype), mpg_shape_text(&first->shape, a, sizeof a), i,
                    mpg_device_id_text(r->input_devices[i]).text, mpg_dtype_name(other->dtype),
                    mpg_shape_text(&other->shape, b, sizeof b),
                    axis < 0 ? "; they must be equal" : "; they may differ along the axis only");
  }
  return MPG_OK;
}

static mpg_status check(const mpg_comm_request *r, int *axis, int *other_axis) {
  const char *name = mpg_collective_name(r->kind);
  bool one = r->kind == MPG_SCATTER || r->kind == MPG_BROADCAST;
  bool axes = r->kind != MPG_ALL_REDUCE && r->kind != MPG_REDUCE && r->kind != MPG_BROADCAST;
  if (r->num_ranks < 1 || r->num_ranks > MPG_COMM_MAX_RANKS)
    return mpg_fail(MPG_VALUE_ERROR, "%s: the number of devices must be from 1 to %d, got %d", name,
                    MPG_COMM_MAX_RANKS, r->num_ranks);
  if (r->num_inputs != (one ? 1 : r->num_ranks))
    return mpg_fail(MPG_VALUE_ERROR, "%s: %d devices need %d arrays, got %d", name, r->num_ranks,
                    one ? 1 : r->num_ranks, r->num_inputs);
  *axis = *other_axis = -1;
  for (int i = 0; axes && i < r->num_inputs; i++) {
    MPG_TRY(mpg_axis_normalize(r->axis, r->inputs[i].shape.ndim, name, axis));
    if (r->kind == MPG_ALL_TO_ALL)
      MPG_TRY(mpg_axis_normalize(r->other_axis, r->inputs[i].shape.ndim, name, other_axis));
  }
  bool joins = r->kind == MPG_ALL_GATHER || r->kind == MPG_GATHER;
  MPG_TRY(check_alike(r, joins ? *axis : *other_axis));
  if (r->kind == MPG_ALL_TO_ALL && *axis == *other_axis) return check_alike(r, -1);
  return MPG_OK;
}

mpg_status mpg_comm_plan_make(const char *name, const mpg_comm_request *request,
                              mpg_comm_plan *plan) {
  *plan = (mpg_comm_plan){0};
  mpg_arena_init(&plan->arena);
  const transport *found = NULL;
  for (size_t i = 0; i < sizeof transports / sizeof *transports; i++)
    if (strcmp(transports[i].name, name) == 0) found = &transports[i];
  if (found == NULL)
    return mpg_fail(MPG_VALUE_ERROR, "unknown transport '%s'; expected 'auto', 'local' or 'nccl'",
                    name);
  mpg_comm_request checked = *request;
  MPG_TRY(check(request, &checked.axis, &checked.other_axis));
  if (checked.root.type == 0) checked.root = request->input_devices[0];
  bool one = request->kind == MPG_REDUCE || request->kind == MPG_GATHER;
  plan->num_results = one ? 1 : request->num_ranks;
  plan->results = mpg_arena_alloc(&plan->arena, (size_t)plan->num_results * sizeof *plan->results);
  if (plan->results == NULL)
    return mpg_out_of_host_memory((size_t)plan->num_results * sizeof *plan->results);
  for (int i = 0; i < request->num_inputs; i++)
    MPG_TRY(add_slot(plan, &request->inputs[i], request->input_devices[i]));
  mpg_status status = found->plan(&checked, plan);
  return status == MPG_OK ? MPG_OK
                          : mpg_fail_prefix(status, "%s", mpg_collective_name(request->kind));
}

void mpg_comm_plan_free(mpg_comm_plan *plan) {
  mpg_free(plan->steps);
  mpg_free(plan->slots);
  mpg_arena_free(&plan->arena);
  *plan = (mpg_comm_plan){0};
}
