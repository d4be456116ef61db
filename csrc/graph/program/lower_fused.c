/* Lowers a fused group to a backend's fused kernel. */
#include "graph/program/lower_fused.h"

#include <string.h>

#include "op/math/reduce.h"

enum { MAX_OPERANDS = 4 * MPG_FUSED_MAX_VALUES };

typedef struct maker {
  const mpg_graph *graph;
  const mpg_order *order;
  const mpg_plan *plan;
  const mpg_fusion_group *group;
  const mpg_device *device;
  mpg_arena *arena;
  const mpg_fused_use *uses;
  /* Per use: the index of its value in the fused kernel. A view and its input have the same
   * value. */
  uint32_t value_of[MPG_FUSED_MAX_VALUES];
  /* Per value of the fused kernel: the graph value whose memory it uses; MPG_NO_VALUE if local. */
  mpg_value outside[MPG_FUSED_MAX_VALUES];
  bool written[MPG_FUSED_MAX_VALUES], placed[MPG_FUSED_MAX_VALUES];
  uint32_t last_read[MPG_FUSED_MAX_VALUES]; /* per value: the last member that reads it */
  mpg_fused_value values[MPG_FUSED_MAX_VALUES];
  mpg_fused_member members[MPG_FUSED_MAX_MEMBERS];
  uint32_t operands[MAX_OPERANDS];
  uint8_t slot_bytes[MPG_FUSED_MAX_VALUES];
  mpg_fused_draw draws[MPG_FUSED_MAX_MEMBERS];
  uint32_t num_draws, num_values, num_members, num_operands, num_slots, num_trailing;
  bool reduces;
  mpg_fused_producer producer;
} maker;

void mpg_fused_strides(int ndim, const int64_t *dims, uint32_t varying, int64_t *strides) {
  int64_t step = 1;
  for (int d = ndim - 1; d >= 0; d--) {
    strides[d] = varying >> d & 1 ? step : 0;
    if (varying >> d & 1) step *= dims[d];
  }
}

static uint32_t find_use(const maker *m, uint32_t value) {
  for (uint32_t i = 0; i < m->group->num_uses; i++)
    if (m->uses[i].value == value) return i;
  return UINT32_MAX;
}

static uint32_t value_at(maker *m, uint32_t use, mpg_value value) {
  if (m->value_of[use] != UINT32_MAX) return m->value_of[use];
  uint32_t number = m->num_values++, index = m->uses[use].value;
  m->values[number] = (mpg_fused_value){.dtype = m->graph->values[index].desc.dtype,
                                        .varying = m->uses[use].varying,
                                        .operand = MPG_FUSED_LOCAL};
  mpg_fused_strides(m->group->ndim, m->group->dims, m->uses[use].varying,
                    m->values[number].strides);
  m->outside[number] = m->order->fusion->internal[index] ? MPG_NO_VALUE : value;
  return m->value_of[use] = number;
}

/* Copies a reduction's params with its axes replaced by axes of the domain, counted from the
 * end. */
static mpg_status reduce_params(maker *m, const mpg_node *node, uint32_t from, uint32_t to,
                                const void **params) {
  mpg_tuple axis;
  memset(&axis, 0, sizeof axis);
  for (int d = 0; d < m->group->ndim; d++)
    if ((from & ~to) >> d & 1) axis.values[axis.count++] = d - m->group->ndim;
  void *copy = mpg_arena_copy(m->arena, node->params, node->op->params->size);
  if (!copy) return mpg_out_of_host_memory(node->op->params->size);
  mpg_reduce_over(node->op, copy, &axis);
  *params = copy;
  return MPG_OK;
}

static mpg_status add_member(maker *m, uint32_t n) {
  const mpg_node *node = &m->graph->nodes[n];
  bool contents = !mpg_node_flag(node, MPG_OP_SHAPE_ONLY);
  if (m->num_operands + node->num_inputs + node->num_outputs > MAX_OPERANDS)
    return mpg_fail(MPG_ERROR, "internal: a fused group has too many operands");
  mpg_fused_member *member = &m->members[m->num_members];
  mpg_kernel_fn kernel;
  MPG_TRY(mpg_kernel_find(m->device, node->op, &kernel));
  *member = (mpg_fused_member){.op = node->op,
                               .kernel = kernel,
                               .operands = m->num_operands,
                               .num_inputs = node->num_inputs,
                               .num_outputs = node->num_outputs,
                               .draw = UINT32_MAX,
                               .train = node->train};
  for (uint32_t i = 0; i < node->num_inputs; i++) {
    mpg_value input = mpg_node_inputs(m->graph, node)[i];
    uint32_t *operand = &m->operands[m->num_operands++];
    *operand = MPG_FUSED_LOCAL;
    if (!contents) continue;
    uint32_t use = find_use(m, mpg_value_index(m->graph, input));
    if (use == UINT32_MAX)
      return mpg_fail(MPG_ERROR, "internal: %s reads a value that is not in its fused group",
                      node->op->name);
    *operand = value_at(m, use, input);
    m->last_read[*operand] = m->num_members;
  }
  for (uint32_t i = 0; i < node->num_outputs; i++) {
    uint32_t use = find_use(m, node->values + i);
    if (use == UINT32_MAX) { /* outputs without elements have no use */
      m->operands[m->num_operands++] = MPG_FUSED_LOCAL;
      continue;
    }
    uint32_t number = value_at(m, use, (mpg_value){n, i});
    m->written[number] = true;
    m->last_read[number] = m->num_members;
    m->operands[m->num_operands++] = number;
  }
  if (mpg_fuse_kind_of(m->graph, node) == MPG_FUSE_REDUCE) {
    const mpg_fused_value *in = &m->values[m->operands[member->operands]],
                          *out = &m->values[m->operands[member->operands + 1]];
    MPG_TRY(reduce_params(m, node, in->varying, out->varying, &member->params));
    member->trailing = m->uses[find_use(m, node->values)].trailing;
    m->num_trailing += member->trailing;
    m->reduces |= !member->trailing;
  } else if (node->op->params->size && node->params) {
    member->params = mpg_arena_copy(m->arena, node->params, node->op->params->size);
    if (!member->params) return mpg_out_of_host_memory(node->op->params->size);
  }
  if (node->random != MPG_NO_RANDOM) {
    member->draw = m->num_draws;
    m->draws[m->num_draws++] = (mpg_fused_draw){
        .call = node->random,
        .part = node->draw,
        .shape = m->graph->values[node->values + node->num_outputs - 1].desc.shape};
  }
  m->num_members++;
  return MPG_OK;
}

static mpg_status add_producer(maker *m, uint32_t n) {
  const mpg_node *node = &m->graph->nodes[n];
  m->producer =
      (mpg_fused_producer){.op = node->op,
                           .num_inputs = node->num_inputs,
                           .value = value_at(m, find_use(m, node->values), (mpg_value){n, 0})};
  mpg_fuse_product(m->graph, node, &m->producer.product);
  m->written[m->producer.value] = true;
  if (node->op->params->size && node->params &&
      !(m->producer.params = mpg_arena_copy(m->arena, node->params, node->op->params->size)))
    return mpg_out_of_host_memory(node->op->params->size);
  return MPG_OK;
}

/* Maps a view, which shares its input's memory, to the value of its input. */
static void add_view(maker *m, uint32_t n) {
  const mpg_node *node = &m->graph->nodes[n];
  mpg_value input = mpg_node_inputs(m->graph, node)[0];
  uint32_t from = find_use(m, mpg_value_index(m->graph, input)), to = find_use(m, node->values);
  m->value_of[to] = value_at(m, from, input);
  if (!m->order->fusion->internal[node->values]) m->outside[m->value_of[to]] = (mpg_value){n, 0};
}

/* Assigns slots to the local values. An op that works in place reuses the slot of a local input if
 * no later member reads this input. */
static void give_slots(maker *m) {
  uint32_t free_slots[MPG_FUSED_MAX_VALUES], num_free = 0;
  bool freed[MPG_FUSED_MAX_VALUES] = {false};
  for (uint32_t k = 0; k < m->num_members; k++) {
    const mpg_fused_member *member = &m->members[k];
    const uint32_t *inputs = m->operands + member->operands, *outputs = inputs + member->num_inputs;
    for (uint32_t o = 0; o < member->num_outputs; o++) {
      if (outputs[o] == MPG_FUSED_LOCAL) continue;
      mpg_fused_value *value = &m->values[outputs[o]];
      uint8_t bytes = (uint8_t)mpg_dtype_size(value->dtype);
      if (value->operand != MPG_FUSED_LOCAL) continue;
      value->slot = UINT32_MAX;
      for (uint32_t i = 0; i < member->num_inputs && o == 0 &&
                           (member->op->flags & MPG_OP_INPLACE) && value->slot == UINT32_MAX;
           i++) {
        if (inputs[i] == MPG_FUSED_LOCAL) continue;
        const mpg_fused_value *input = &m->values[inputs[i]];
        if (input->operand != MPG_FUSED_LOCAL || m->last_read[inputs[i]] != k || freed[inputs[i]] ||
            input->varying != value->varying || mpg_dtype_size(input->dtype) != bytes)
          continue;
        value->slot = input->slot;
        freed[inputs[i]] = true;
      }
      if (value->slot == UINT32_MAX)
        value->slot = num_free ? free_slots[--num_free] : m->num_slots++;
      if (m->slot_bytes[value->slot] < bytes) m->slot_bytes[value->slot] = bytes;
    }
    for (uint32_t i = 0; i < member->num_inputs + member->num_outputs; i++) {
      if (inputs[i] == MPG_FUSED_LOCAL) continue;
      const mpg_fused_value *value = &m->values[inputs[i]];
      if (value->operand != MPG_FUSED_LOCAL || m->last_read[inputs[i]] != k || freed[inputs[i]])
        continue;
      freed[inputs[i]] = true;
      free_slots[num_free++] = value->slot;
    }
  }
}

/* Numbers the operands of the fused kernel: values in memory, inputs first. */
static mpg_status give_operands(maker *m, mpg_fused_call *call) {
  call->operands = mpg_arena_alloc(
      m->arena, (m->num_values + m->producer.num_inputs + 1) * sizeof *call->operands);
  if (!call->operands) return mpg_out_of_host_memory(m->num_values * sizeof *call->operands);
  uint32_t count = 0;
  for (int outputs = 0; outputs < 2; outputs++) {
    for (uint32_t v = 0; v < m->num_values; v++) {
      if (m->written[v] != (outputs != 0) || !mpg_has_value(m->outside[v])) continue;
      m->values[v].operand = count;
      call->operands[count++] = m->outside[v];
    }
    if (outputs) continue;
    m->producer.first_input = count;
    for (uint32_t i = 0; i < m->producer.num_inputs; i++)
      call->operands[count++] = mpg_node_inputs(m->graph, &m->graph->nodes[m->group->producer])[i];
    call->num_inputs = count;
  }
  call->num_outputs = count - call->num_inputs;
  if (m->producer.op && m->values[m->producer.value].operand == MPG_FUSED_LOCAL)
    m->values[m->producer.value].operand = MPG_FUSED_PANEL;
  return MPG_OK;
}

static mpg_desc domain_desc(const maker *m, uint32_t varying, mpg_dtype dtype) {
  mpg_desc desc;
  memset(&desc, 0, sizeof desc);
  desc.dtype = dtype;
  desc.shape.ndim = m->group->ndim;
  for (int d = 0; d < m->group->ndim; d++)
    desc.shape.dims[d] = varying >> d & 1 ? m->group->dims[d] : 1;
  return desc;
}

static mpg_status give_views(maker *m, mpg_fused *fused) {
  fused->views = mpg_arena_alloc(m->arena, (m->num_operands + 1) * sizeof *fused->views);
  if (!fused->views) return mpg_out_of_host_memory(m->num_operands * sizeof *fused->views);
  for (uint32_t k = 0; k < m->num_members; k++) {
    const mpg_fused_member *member = &m->members[k];
    for (uint32_t i = 0; i < member->num_inputs + member->num_outputs; i++) {
      uint32_t at = member->operands + i, v = m->operands[at];
      /* An operand whose contents are not read gets the layout of the first output. */
      if (v == MPG_FUSED_LOCAL) v = m->operands[member->operands + member->num_inputs];
      fused->views[at] = (mpg_view){NULL, domain_desc(m, m->values[v].varying, m->values[v].dtype)};
    }
  }
  return MPG_OK;
}

static mpg_status give_name(maker *m, mpg_fused *fused) {
  mpg_text text = {0};
  if (m->producer.op) mpg_text_append(&text, "%s", m->producer.op->name);
  for (uint32_t k = 0; k < m->num_members; k++)
    mpg_text_append(&text, k || m->producer.op ? "+%s" : "%s", m->members[k].op->name);
  mpg_status status = mpg_text_status(&text);
  /* Interned, because the profiler may use the name after the program is freed. */
  uint32_t interned = status == MPG_OK ? mpg_scope_intern(mpg_text_string(&text)) : 0;
  fused->name = interned ? mpg_scope_text(interned) : "fused";
  mpg_text_free(&text);
  return status;
}

static mpg_status make(maker *m, mpg_fused_call *call) {
  const mpg_fusion_group *group = m->group;
  for (uint32_t i = 0; i < group->num_uses; i++) m->value_of[i] = UINT32_MAX;
  for (uint32_t k = group->first; k < group->first + group->count; k++) {
    uint32_t n = m->order->nodes[k];
    if (mpg_plan_aliased(m->plan, m->graph, &m->graph->nodes[n])) {
      add_view(m, n);
      continue;
    }
    if (!m->num_members && !m->producer.op) call->first = n;
    if (n == group->producer) {
      MPG_TRY(add_producer(m, n));
      continue;
    }
    MPG_TRY(add_member(m, n));
    if (m->graph->nodes[n].random != MPG_NO_RANDOM && m->graph->nodes[n].random >= call->random)
      call->random = m->graph->nodes[n].random + 1;
  }
  if (!m->num_members) return MPG_OK;
  MPG_TRY(give_operands(m, call));
  give_slots(m);
  mpg_fused *fused = mpg_arena_alloc(m->arena, sizeof *fused);
  if (!fused) return mpg_out_of_host_memory(sizeof *fused);
  *fused = (mpg_fused){.producer = m->producer,
                       .ndim = group->ndim,
                       .split = group->split,
                       .row = group->row,
                       .row_dtype = group->row_dtype,
                       .num_members = m->num_members,
                       .num_values = m->num_values,
                       .num_operands = m->num_operands,
                       .num_slots = m->num_slots,
                       .num_draws = m->num_draws,
                       .num_trailing = m->num_trailing,
                       .reduces = m->reduces};
  memcpy(fused->dims, group->dims, sizeof fused->dims);
  fused->members = mpg_arena_copy(m->arena, m->members, m->num_members * sizeof *m->members);
  fused->values = mpg_arena_copy(m->arena, m->values, m->num_values * sizeof *m->values);
  fused->operands = mpg_arena_copy(m->arena, m->operands, m->num_operands * sizeof *m->operands);
  fused->slot_bytes = mpg_arena_copy(m->arena, m->slot_bytes, m->num_slots + 1);
  fused->draws = mpg_arena_copy(m->arena, m->draws, m->num_draws * sizeof *m->draws + 1);
  fused->keys = mpg_arena_alloc(m->arena, m->num_draws * sizeof *fused->keys + 1);
  if (!fused->draws || !fused->keys || !fused->members || !fused->values || !fused->operands ||
      !fused->slot_bytes)
    return mpg_out_of_host_memory(sizeof *m);
  MPG_TRY(give_views(m, fused));
  MPG_TRY(give_name(m, fused));
  call->fused = fused;
  return MPG_OK;
}

mpg_status mpg_fused_make(const mpg_graph *graph, const mpg_order *order, const mpg_plan *plan,
                          const mpg_fusion_group *group, const mpg_device *device, mpg_arena *arena,
                          mpg_fused_call *call) {
  *call = (mpg_fused_call){0};
  maker *m = mpg_calloc(1, sizeof *m);
  if (!m) return mpg_out_of_host_memory(sizeof *m);
  m->graph = graph;
  m->order = order;
  m->plan = plan;
  m->group = group;
  m->device = device;
  m->arena = arena;
  m->uses = order->fusion->uses + group->uses;
  mpg_status status = make(m, call);
  mpg_free(m);
  return status;
}

static void dump_value(const mpg_fused *fused, uint32_t v, uint32_t num_inputs, mpg_text *text) {
  if (v == MPG_FUSED_LOCAL) {
    mpg_text_append(text, "-");
    return;
  }
  const mpg_fused_value *value = &fused->values[v];
  if (value->operand == MPG_FUSED_LOCAL)
    mpg_text_append(text, "slot%u", value->slot);
  else if (value->operand == MPG_FUSED_PANEL)
    mpg_text_append(text, "panel");
  else if (value->operand < num_inputs)
    mpg_text_append(text, "in%u", value->operand);
  else
    mpg_text_append(text, "out%u", value->operand - num_inputs);
}

void mpg_fused_dump(const mpg_fused *fused, mpg_text *text) {
  /* The group's inputs are the operands that no member computes. */
  uint32_t inputs = fused->producer.num_inputs;
  for (uint32_t v = 0; v < fused->num_values; v++)
    inputs += fused->values[v].operand < MPG_FUSED_PANEL &&
              !(fused->producer.op && fused->producer.value == v);
  for (uint32_t k = 0; k < fused->num_members; k++) {
    const mpg_fused_member *member = &fused->members[k];
    for (uint32_t i = 0; i < member->num_outputs; i++) {
      uint32_t v = fused->operands[member->operands + member->num_inputs + i];
      if (v != MPG_FUSED_LOCAL) inputs -= fused->values[v].operand < MPG_FUSED_PANEL;
    }
  }
  mpg_text_append(text, "(");
  for (int d = 0; d < fused->ndim; d++)
    mpg_text_append(text, "%s%lld",
                    d == fused->split + 1 ? d ? " | " : "| "
                    : d                   ? ", "
                                          : "",
                    (long long)fused->dims[d]);
  mpg_text_append(text, ")\n");
  if (fused->producer.op) {
    mpg_text_append(text, "  ");
    dump_value(fused, fused->producer.value, inputs, text);
    mpg_text_append(text, " = %s(", fused->producer.op->name);
    for (uint32_t i = 0; i < fused->producer.num_inputs; i++)
      mpg_text_append(text, i ? ", in%u" : "in%u", fused->producer.first_input + i);
    mpg_text_append(text, ") in panels of %lld rows\n", (long long)fused->producer.product.panel);
  }
  for (uint32_t k = 0; k < fused->num_members; k++) {
    const mpg_fused_member *member = &fused->members[k];
    const uint32_t *operands = fused->operands + member->operands;
    char shape[MPG_SHAPE_TEXT_SIZE];
    mpg_text_append(text, "  ");
    for (uint32_t i = 0; i < member->num_outputs; i++) {
      if (i) mpg_text_append(text, ", ");
      dump_value(fused, operands[member->num_inputs + i], inputs, text);
    }
    mpg_text_append(text, " = %s(", member->op->name);
    for (uint32_t i = 0; i < member->num_inputs; i++) {
      if (i) mpg_text_append(text, ", ");
      dump_value(fused, operands[i], inputs, text);
    }
    const mpg_desc *desc = &fused->views[member->operands + member->num_inputs].desc;
    mpg_text_append(text, ") : %s %s\n", mpg_dtype_name(desc->dtype),
                    mpg_shape_text(&desc->shape, shape, sizeof shape));
  }
}
