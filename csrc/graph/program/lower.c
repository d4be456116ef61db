/* Lowers graph, order and plan to one flat program per device. */
#include <string.h>

#include "base/workspace.h"
#include "device/ranks/ranks.h"
#include "graph/program/lower_fused.h"
#include "graph/program/program.h"

typedef struct lowering {
  const mpg_graph *graph;
  const mpg_plan *plan;
  mpg_program_set *set;
  struct arrival {
    uint32_t source;        /* slot that pushes (copies) the value; UINT32_MAX if not pushed */
    uint32_t segment, tick; /* the signal after the push */
    uint32_t number;        /* index of this signal in its program */
  } *arrivals;              /* per root value */
  /* Number of signals of `source` that `slot` already waits for, at [slot * devices + source]. */
  uint32_t *waited;
  uint32_t *current; /* per slot: the segment under construction; UINT32_MAX means none yet */
  uint32_t *signals; /* per slot: number of signals of its program so far */
  struct external {
    /* Position of the array's last use in the order, and the next external array whose last use is
     * at the same position. */
    uint32_t last, next;
    uint32_t slot;          /* slot that uses it; UINT32_MAX means several */
    size_t written;         /* bytes written; 0 if it is only read */
    uint32_t segment, done; /* segment of the last use, and mpg_access.done */
  } *externals;
  uint32_t *final; /* per position: first external array whose last use is there, or NONE */
  struct pending { /* per slot: final arrays that no signal has announced yet */
    uint32_t first, segment;
    size_t bytes;
  } *pending;
} lowering;

enum { NONE = UINT32_MAX, SIGNAL_BYTES = 1 << 18 };

static mpg_status add(lowering *l, uint32_t slot, const mpg_instruction *instruction) {
  mpg_program *program = &l->set->programs[slot];
  MPG_TRY(mpg_grow((void **)&program->instructions, &program->capacity, program->count + 1,
                   sizeof *program->instructions));
  program->instructions[program->count++] = *instruction;
  l->set->segments[l->current[slot]].end = program->count;
  return MPG_OK;
}

/* Begins a new segment of the slot's program, unless the current one has the depth, part and
 * deferral of `kind`. NULL means the program's only segment. */
static mpg_status enter_segment(lowering *l, uint32_t slot, const mpg_segment *kind) {
  static const mpg_segment whole;
  if (!kind) kind = &whole;
  mpg_program_set *set = l->set;
  if (l->current[slot] != UINT32_MAX) {
    mpg_program_segment *now = &set->segments[l->current[slot]];
    if (now->depth == kind->depth && now->part == kind->part && now->deferred == kind->deferred)
      return MPG_OK;
  }
  MPG_TRY(mpg_grow((void **)&set->segments, &set->segments_capacity, set->num_segments + 1,
                   sizeof *set->segments));
  uint32_t begin = set->programs[slot].count;
  set->segments[set->num_segments] = (mpg_program_segment){.slot = slot,
                                                           .begin = begin,
                                                           .end = begin,
                                                           .depth = kind->depth,
                                                           .part = kind->part,
                                                           .deferred = kind->deferred};
  l->current[slot] = set->num_segments++;
  return MPG_OK;
}

static mpg_status note_access(lowering *l, uint32_t slot, uint32_t base, bool reads, bool writes,
                              bool pushes) {
  mpg_program_segment *segment = &l->set->segments[l->current[slot]];
  if (base == MPG_NO_BASE) return MPG_OK;
  for (uint32_t i = 0; i < segment->num_accesses; i++) {
    if (segment->accesses[i].base != base) continue;
    segment->accesses[i].reads |= reads;
    segment->accesses[i].writes |= writes;
    segment->accesses[i].pushes |= pushes;
    return MPG_OK;
  }
  MPG_TRY(mpg_grow((void **)&segment->accesses, &segment->accesses_capacity,
                   segment->num_accesses + 1, sizeof *segment->accesses));
  segment->accesses[segment->num_accesses++] =
      (mpg_access){.base = base, .reads = reads, .writes = writes, .pushes = pushes};
  return MPG_OK;
}

static mpg_status add_operand(lowering *l, uint32_t slot, mpg_value value, bool contents,
                              bool reads, bool writes) {
  mpg_program *program = &l->set->programs[slot];
  MPG_TRY(mpg_grow((void **)&program->operands, &program->operands_capacity,
                   program->num_operands + 1, sizeof *program->operands));
  MPG_TRY(mpg_grow((void **)&program->views, &program->views_capacity, program->num_operands + 1,
                   sizeof *program->views));
  mpg_location location = l->plan->locations[mpg_value_index(l->graph, value)];
  if (!contents) location = (mpg_location){MPG_NO_BASE, 0};
  if (contents && location.base == MPG_NO_BASE)
    return mpg_fail(MPG_ERROR, "internal: value %u.%u is read but was not saved", value.node,
                    value.output);
  program->operands[program->num_operands] = location;
  program->views[program->num_operands] = (mpg_view){NULL, mpg_graph_at(l->graph, value)->desc};
  program->num_operands++;
  bool pushes = mpg_plan_slot(l->plan, mpg_graph_at(l->graph, value)->device) != slot;
  return reads || writes ? note_access(l, slot, location.base, reads, writes, pushes) : MPG_OK;
}

static mpg_status wait_for(lowering *l, uint32_t slot, mpg_value value) {
  const struct arrival *arrival = &l->arrivals[l->plan->roots[mpg_value_index(l->graph, value)]];
  if (arrival->source == UINT32_MAX || arrival->source == slot) return MPG_OK;
  /* The push is treated as a write by this program, which waits for it. */
  MPG_TRY(note_access(l, slot, l->plan->locations[mpg_value_index(l->graph, value)].base, false,
                      true, false));
  uint32_t *waited = &l->waited[slot * l->plan->num_devices + arrival->source];
  if (*waited > arrival->number) return MPG_OK;
  *waited = arrival->number + 1;
  mpg_instruction wait = {.kind = MPG_WAIT,
                          .peer = arrival->source,
                          .segment = arrival->segment,
                          .tick = arrival->tick};
  return add(l, slot, &wait);
}

static mpg_status copy_params(lowering *l, const mpg_node *node, const void **params) {
  *params = NULL;
  if (!node->op->params->size || !node->params) return MPG_OK;
  *params = mpg_arena_copy(&l->set->arena, node->params, node->op->params->size);
  return *params ? MPG_OK : mpg_out_of_host_memory(node->op->params->size);
}

/* Adds an operand of an op that spans devices. The access belongs to the program of the operand's
 * device, which waits for the op. */
static mpg_status add_spanned(lowering *l, uint32_t slot, mpg_value value, bool writes) {
  uint32_t own = mpg_plan_slot(l->plan, mpg_graph_at(l->graph, value)->device),
           base = l->plan->locations[mpg_value_index(l->graph, value)].base;
  MPG_TRY(add_operand(l, slot, value, true, false, false));
  return note_access(l, own, base, !writes, writes, false);
}

static mpg_status signal_to(lowering *l, uint32_t slot, mpg_instruction *wait, uint32_t *number) {
  mpg_instruction signal = {.kind = MPG_SIGNAL,
                            .tick = l->set->segments[l->current[slot]].num_signals++};
  *wait = (mpg_instruction){
      .kind = MPG_WAIT, .peer = slot, .segment = l->current[slot], .tick = signal.tick};
  *number = ++l->signals[slot];
  return add(l, slot, &signal);
}

/* Makes `slot` wait for all instructions of `source` so far. */
static mpg_status join(lowering *l, uint32_t slot, uint32_t source) {
  mpg_instruction wait;
  uint32_t number;
  MPG_TRY(signal_to(l, source, &wait, &number));
  l->waited[slot * l->plan->num_devices + source] = number;
  return add(l, slot, &wait);
}

/* Lowers an op that spans devices to a rendezvous of their programs. The program of `slot` waits
 * for all other programs and runs the op. They then wait for the op. */
static mpg_status lower_spanning(lowering *l, const mpg_node *node, mpg_instruction *instruction,
                                 uint32_t slot) {
  const mpg_value *inputs = mpg_node_inputs(l->graph, node);
  uint32_t number = (uint32_t)(node - l->graph->nodes), others[MPG_MAX_GRAPH_DEVICES],
           num_others = 0;
  for (uint32_t i = 0; i < node->num_inputs + node->num_outputs; i++) {
    mpg_value value = i < node->num_inputs ? inputs[i] : (mpg_value){number, i - node->num_inputs};
    uint32_t other = mpg_plan_slot(l->plan, mpg_graph_at(l->graph, value)->device), known = 0;
    while (known < num_others && others[known] != other) known++;
    if (other != slot && known == num_others) others[num_others++] = other;
    MPG_TRY(enter_segment(l, other, NULL));
    if (i < node->num_inputs) MPG_TRY(wait_for(l, other, value));
  }
  for (uint32_t k = 0; k < num_others; k++) MPG_TRY(join(l, slot, others[k]));
  instruction->operands = l->set->programs[slot].num_operands;
  for (uint32_t i = 0; i < node->num_inputs; i++) MPG_TRY(add_spanned(l, slot, inputs[i], false));
  for (uint32_t i = 0; i < node->num_outputs; i++)
    MPG_TRY(add_spanned(l, slot, (mpg_value){number, i}, true));
  MPG_TRY(add(l, slot, instruction));
  for (uint32_t k = 0; k < num_others; k++) MPG_TRY(join(l, others[k], slot));
  return MPG_OK;
}

static mpg_status lower_node(lowering *l, const mpg_node *node, const mpg_segment *segment) {
  const mpg_value *inputs = mpg_node_inputs(l->graph, node);
  uint32_t number = (uint32_t)(node - l->graph->nodes), slot = mpg_plan_slot(l->plan, node->device);
  if (mpg_plan_aliased(l->plan, l->graph, node)) return MPG_OK;
  bool crosses = mpg_node_crosses(l->graph, node);
  uint32_t runs_on =
      crosses ? mpg_plan_slot(l->plan, mpg_graph_at(l->graph, inputs[0])->device) : slot;
  mpg_program *program = &l->set->programs[runs_on];
  mpg_kernel_fn kernel;
  MPG_TRY(mpg_kernel_find(program->device, node->op, &kernel));
  MPG_TRY(enter_segment(l, runs_on, segment));
  bool contents = !mpg_node_flag(node, MPG_OP_SHAPE_ONLY);
  for (uint32_t i = 0; i < node->num_inputs && contents && !mpg_node_spans(node); i++)
    MPG_TRY(wait_for(l, runs_on, inputs[i]));
  /* The copy's memory may still be in use by earlier work of the receiving device. */
  if (mpg_node_is_paced(l->graph, node) && !segment) {
    MPG_TRY(enter_segment(l, slot, NULL));
    MPG_TRY(join(l, runs_on, slot));
    program->instructions[program->count - 1].paces = true;
  }
  mpg_instruction instruction = {
      .kind = crosses ? MPG_COPY : MPG_RUN,
      .train = node->train,
      .backward = node->phase == MPG_PHASE_BACKWARD,
      .recomputes = node->recomputes,
      .peer = slot,
      .op = node->op,
      .kernel = kernel,
      .operands = program->num_operands,
      .num_inputs = node->num_inputs,
      .num_outputs = node->num_outputs,
      .random = node->random,
      .draw = node->draw,
      .scope = node->scope,
      .origin = node->origin,
      .bytes = crosses ? mpg_desc_bytes(&l->graph->values[node->values].desc) : 0,
      .transfer = l->set->num_transfers};
  if (crosses)
    l->set->num_transfers +=
        (uint32_t)mpg_transfer_numbers(program->device->id, l->set->programs[slot].device->id);
  MPG_TRY(copy_params(l, node, &instruction.params));
  if (mpg_node_spans(node)) return lower_spanning(l, node, &instruction, runs_on);
  for (uint32_t i = 0; i < node->num_inputs; i++)
    MPG_TRY(add_operand(l, runs_on, inputs[i], contents, contents,
                        mpg_op_input_mutable(node->op, (int)i)));
  for (uint32_t i = 0; i < node->num_outputs; i++)
    MPG_TRY(add_operand(l, runs_on, (mpg_value){number, i}, true, false, true));
  if (node->random != MPG_NO_RANDOM && node->random >= l->set->num_random)
    l->set->num_random = node->random + 1;
  MPG_TRY(add(l, runs_on, &instruction));
  if (!crosses) return MPG_OK;
  mpg_instruction signal = {.kind = MPG_SIGNAL,
                            .tick = l->set->segments[l->current[runs_on]].num_signals++};
  l->arrivals[l->plan->roots[node->values]] =
      (struct arrival){runs_on, l->current[runs_on], signal.tick, l->signals[runs_on]++};
  return add(l, runs_on, &signal);
}

/* Lowers a whole group to one instruction. */
static mpg_status lower_group(lowering *l, const mpg_order *order, const mpg_fusion_group *group,
                              const mpg_segment *segment) {
  uint32_t slot = mpg_plan_slot(l->plan, l->graph->nodes[order->nodes[group->first]].device);
  mpg_program *program = &l->set->programs[slot];
  mpg_fused_call call;
  MPG_TRY(mpg_fused_make(l->graph, order, l->plan, group, program->device, &l->set->arena, &call));
  if (!call.fused) return MPG_OK;
  MPG_TRY(enter_segment(l, slot, segment));
  for (uint32_t i = 0; i < call.num_inputs; i++) MPG_TRY(wait_for(l, slot, call.operands[i]));
  const mpg_node *node = &l->graph->nodes[call.first];
  mpg_instruction instruction = {.kind = MPG_RUN,
                                 .backward = node->phase == MPG_PHASE_BACKWARD,
                                 .recomputes = node->recomputes,
                                 .peer = slot,
                                 .fused = call.fused,
                                 .params = call.fused,
                                 .kernel = mpg_kernel_get_fused(program->device),
                                 .operands = program->num_operands,
                                 .num_inputs = call.num_inputs,
                                 .num_outputs = call.num_outputs,
                                 .random = MPG_NO_RANDOM,
                                 .scope = node->scope,
                                 .origin = node->origin};
  for (uint32_t i = 0; i < call.num_inputs + call.num_outputs; i++)
    MPG_TRY(
        add_operand(l, slot, call.operands[i], true, i < call.num_inputs, i >= call.num_inputs));
  if (call.random > l->set->num_random) l->set->num_random = call.random;
  return add(l, slot, &instruction);
}

static void touch(lowering *l, mpg_value value, uint32_t position, uint32_t slot, bool writes) {
  size_t index = mpg_value_index(l->graph, value);
  uint32_t base = l->plan->locations[index].base;
  if (base >= l->plan->num_externals) return;
  struct external *e = &l->externals[base];
  e->slot = e->last == NONE || e->slot == slot ? slot : NONE;
  if (e->last == NONE || position > e->last) e->last = position;
  if (writes) e->written = mpg_desc_bytes(&l->graph->values[index].desc);
}

/* Computes the last use of each external array. A fused group is one instruction, at the position
 * of its first node. */
static void find_final(lowering *l, const mpg_order *order) {
  for (uint32_t i = 0; i < l->plan->num_externals; i++)
    l->externals[i] = (struct external){.last = NONE, .next = NONE, .slot = NONE};
  for (size_t k = 0; k < order->count; k++) {
    const mpg_node *node = &l->graph->nodes[order->nodes[k]];
    const mpg_value *inputs = mpg_node_inputs(l->graph, node);
    if (mpg_plan_aliased(l->plan, l->graph, node)) continue;
    const mpg_fusion_group *group = mpg_order_group(order, k);
    uint32_t at = (uint32_t)(group ? group->first : k), slot = mpg_plan_slot(l->plan, node->device);
    uint32_t runs_on = mpg_node_crosses(l->graph, node)
                           ? mpg_plan_slot(l->plan, mpg_graph_at(l->graph, inputs[0])->device)
                           : slot;
    bool spans = mpg_node_spans(node); /* each device then uses only its own arrays */
    for (uint32_t i = 0; i < node->num_inputs; i++)
      touch(l, inputs[i], at,
            spans ? mpg_plan_slot(l->plan, mpg_graph_at(l->graph, inputs[i])->device) : runs_on,
            mpg_op_input_mutable(node->op, (int)i));
    for (uint32_t i = 0; i < node->num_outputs; i++) {
      touch(l, (mpg_value){order->nodes[k], i}, at,
            spans ? mpg_plan_slot(l->plan, l->graph->values[node->values + i].device) : runs_on,
            true);
      /* The receiving device also uses the array, because it waits for the copy. */
      if (runs_on != slot) touch(l, (mpg_value){order->nodes[k], i}, at, slot, true);
    }
  }
  for (size_t k = 0; k < order->count; k++) l->final[k] = NONE;
  for (uint32_t i = 0; i < l->plan->num_externals; i++) {
    struct external *e = &l->externals[i];
    if (e->last == NONE || e->slot == NONE || !e->written) continue;
    e->next = l->final[e->last];
    l->final[e->last] = i;
  }
}

/* Called after the instruction at `position`. Adds the external arrays whose last use is at this
 * position to the pending arrays of their device. Emits a signal once a device's pending arrays
 * reach SIGNAL_BYTES. */
static mpg_status signal_final(lowering *l, size_t position) {
  for (uint32_t i = l->final[position], next; i != NONE; i = next) {
    struct external *e = &l->externals[i];
    uint32_t slot = e->slot;
    next = e->next;
    struct pending *pending = &l->pending[slot];
    if (l->current[slot] == NONE) continue;
    if (pending->segment != l->current[slot])
      *pending = (struct pending){.first = NONE, .segment = l->current[slot]};
    e->next = pending->first;
    e->segment = pending->segment;
    pending->first = i;
    pending->bytes += e->written;
    if (pending->bytes < SIGNAL_BYTES) continue;
    mpg_instruction signal = {.kind = MPG_SIGNAL,
                              .tick = l->set->segments[pending->segment].num_signals++};
    for (uint32_t k = pending->first; k != NONE; k = l->externals[k].next)
      l->externals[k].done = signal.tick + 1;
    *pending = (struct pending){.first = NONE, .segment = l->current[slot]};
    MPG_TRY(add(l, slot, &signal));
  }
  return MPG_OK;
}

static void note_final(lowering *l) {
  for (uint32_t s = 0; s < l->set->num_segments; s++) {
    mpg_program_segment *segment = &l->set->segments[s];
    for (uint32_t i = 0; i < segment->num_accesses; i++) {
      uint32_t base = segment->accesses[i].base;
      if (base < l->plan->num_externals && l->externals[base].done &&
          l->externals[base].segment == s)
        segment->accesses[i].done = l->externals[base].done;
    }
  }
}

static mpg_status lower_all(lowering *l, const mpg_order *order) {
  static const mpg_segment last = {.depth = UINT32_MAX};
  for (size_t k = 0; k < order->count; k++) {
    const mpg_segment *segment = order->segment_of ? &order->segments[order->segment_of[k]] : NULL;
    const mpg_fusion_group *group = mpg_order_group(order, k);
    if (!group)
      MPG_TRY(lower_node(l, &l->graph->nodes[order->nodes[k]], segment));
    else if (group->first == k)
      MPG_TRY(lower_group(l, order, group, segment));
    MPG_TRY(signal_final(l, k));
  }
  /* Makes devices wait for copies that none of their nodes reads. These copies are outputs. */
  for (size_t k = 0; k < order->count; k++) {
    const mpg_node *node = &l->graph->nodes[order->nodes[k]];
    uint32_t slot = mpg_plan_slot(l->plan, node->device);
    if (!mpg_node_crosses(l->graph, node)) continue;
    const struct arrival *arrival = &l->arrivals[l->plan->roots[node->values]];
    /* The device already waits for this or a later signal of the source. */
    if (l->waited[slot * l->plan->num_devices + arrival->source] > arrival->number) {
      MPG_TRY(note_access(l, slot, l->plan->locations[node->values].base, false, true, false));
      continue;
    }
    MPG_TRY(enter_segment(l, slot, order->segment_of ? &last : NULL));
    MPG_TRY(wait_for(l, slot, (mpg_value){order->nodes[k], 0}));
  }
  return MPG_OK;
}

/* True if the set is a single program that is small enough to run in the calling thread, by the
 * same rule as single ops (op/invoke.c). */
static bool is_small(const mpg_program_set *set) {
  enum { INLINE_INSTRUCTIONS = 64, INLINE_ELEMENTS = 16384, ALL_ELEMENTS = 65536 };
  const mpg_program *only = NULL;
  int64_t all = 0;
  for (uint32_t s = 0; s < set->num_programs; s++) {
    if (!set->programs[s].count) continue;
    if (only) return false;
    only = &set->programs[s];
  }
  uint32_t kernels = 0;
  if (!only) return false;
  for (uint32_t i = 0; i < only->count; i++) {
    const mpg_instruction *instruction = &only->instructions[i];
    if (instruction->kind != MPG_RUN) return false;
    const mpg_fused *fused = instruction->fused;
    bool heavy = !fused && instruction->op->flags & MPG_OP_HEAVY;
    if (heavy && !(instruction->op->flags & MPG_OP_TINY_INLINE)) return false;
    int64_t elements = 0;
    kernels += fused ? fused->num_members : 1;
    /* Each member is checked as if it ran alone. */
    for (uint32_t k = 0; fused && k < fused->num_members; k++) {
      const mpg_fused_member *member = &fused->members[k];
      for (uint32_t o = elements = 0; o < member->num_inputs + member->num_outputs; o++)
        elements += mpg_shape_size(&fused->views[member->operands + o].desc.shape);
      if (elements > INLINE_ELEMENTS) return false;
      all += elements;
    }
    if (fused) continue;
    for (uint32_t k = 0; k < instruction->num_inputs + instruction->num_outputs; k++)
      elements += mpg_shape_size(&only->views[instruction->operands + k].desc.shape);
    if (elements > (heavy ? MPG_TINY_ELEMENTS : INLINE_ELEMENTS)) return false;
    all += elements;
  }
  return kernels <= INLINE_INSTRUCTIONS && all <= ALL_ELEMENTS;
}

static mpg_status describe_blocks(mpg_program_set *set, const mpg_plan *plan) {
  set->num_externals = plan->num_externals;
  set->num_blocks = plan->num_blocks;
  set->first_block = plan->first_block;
  set->block_devices = mpg_calloc(plan->num_blocks + 1, sizeof *set->block_devices);
  set->block_sizes = mpg_calloc(plan->num_blocks + 1, sizeof *set->block_sizes);
  set->block_lanes = mpg_calloc(plan->num_blocks + 1, sizeof *set->block_lanes);
  if (!set->block_devices || !set->block_sizes || !set->block_lanes)
    return mpg_out_of_host_memory(plan->num_blocks);
  for (uint32_t i = 0; i < plan->num_blocks; i++) {
    set->block_devices[i] = plan->blocks[i].device;
    set->block_sizes[i] = plan->blocks[i].size;
    set->block_lanes[i] = plan->blocks[i].kind == MPG_BLOCK_LANE;
  }
  return MPG_OK;
}

mpg_status mpg_lower(const mpg_graph *graph, const mpg_order *order, const mpg_plan *plan,
                     const char *name, mpg_program_set **result) {
  lowering l = {.graph = graph, .plan = plan};
  mpg_workspace space = {0};
  mpg_status status = MPG_OK;
  l.set = mpg_calloc(1, sizeof *l.set);
  if (!l.set) return mpg_out_of_host_memory(sizeof *l.set);
  l.set->references = 1;
  l.set->name = name;
  mpg_arena_init(&l.set->arena);
  l.set->programs = mpg_calloc(plan->num_devices + 1, sizeof *l.set->programs);
  l.arrivals = mpg_workspace_take(&space, graph->num_values, sizeof *l.arrivals);
  l.waited =
      mpg_workspace_take(&space, (size_t)plan->num_devices * plan->num_devices, sizeof *l.waited);
  l.current = mpg_workspace_take(&space, plan->num_devices, sizeof *l.current);
  l.signals = mpg_workspace_take(&space, plan->num_devices, sizeof *l.signals);
  l.externals = mpg_workspace_take(&space, plan->num_externals, sizeof *l.externals);
  l.final = mpg_workspace_take(&space, order->count, sizeof *l.final);
  l.pending = mpg_workspace_take(&space, plan->num_devices, sizeof *l.pending);
  MPG_GOTO(mpg_workspace_check(&space));
  if (!l.set->programs) MPG_GOTO(mpg_out_of_host_memory(sizeof *l.set->programs));
  for (size_t v = 0; v < graph->num_values; v++)
    l.arrivals[v] = (struct arrival){.source = UINT32_MAX};
  for (uint32_t i = 0; i < plan->num_devices; i++) {
    l.current[i] = UINT32_MAX;
    l.pending[i] = (struct pending){.first = NONE, .segment = NONE};
  }
  find_final(&l, order);
  l.set->num_programs = plan->num_devices;
  for (uint32_t i = 0; i < plan->num_devices; i++)
    MPG_GOTO(mpg_device_get(plan->devices[i], &l.set->programs[i].device));
  MPG_GOTO(describe_blocks(l.set, plan));
  MPG_GOTO(lower_all(&l, order));
  note_final(&l);
  l.set->small = is_small(l.set);
  mpg_program_set_arrange(l.set, &(mpg_parts){.count = 1, .sizes = {l.set->num_externals}});
  *result = l.set;
  l.set = NULL;
fail:
  mpg_workspace_free(&space);
  if (l.set) mpg_program_set_release(l.set);
  return status;
}
