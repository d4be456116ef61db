/* Runs programs, and frees them. */
#include "graph/program/program.h"

#include "base/clock.h"
#include "device/ranks/ranks.h"
#include "graph/program/capture.h"
#include "graph/program/issue.h"
#include "op/submit.h"

void mpg_program_set_retain(mpg_program_set *set) {
  atomic_fetch_add_explicit(&set->references, 1, memory_order_relaxed);
}

static void free_frames(mpg_call_frame *frame) {
  while (frame) {
    mpg_call_frame *next = frame->next;
    mpg_free(frame);
    frame = next;
  }
}

void mpg_program_set_release(mpg_program_set *set) {
  if (atomic_fetch_sub_explicit(&set->references, 1, memory_order_acq_rel) != 1) return;
  for (uint32_t i = 0; set->programs && i < set->num_programs; i++) {
    mpg_free(set->programs[i].instructions);
    mpg_free(set->programs[i].operands);
    mpg_free(set->programs[i].views);
    mpg_captures_free(&set->programs[i]);
  }
  for (uint32_t i = 0; i < set->num_segments; i++) mpg_free(set->segments[i].accesses);
  mpg_free(set->segments);
  mpg_free(set->programs);
  mpg_free(set->block_devices);
  mpg_free(set->block_sizes);
  mpg_free(set->block_lanes);
  free_frames(set->frames);
  free_frames(atomic_load_explicit(&set->returned, memory_order_acquire));
  mpg_arena_free(&set->arena);
  mpg_free(set);
}

/* --- Copies between ranks --------------------------------------------------------------------- */

static mpg_transfer_kind transfer_of(const mpg_call_frame *frame, const mpg_program *program,
                                     const mpg_instruction *instruction, mpg_transfer *transfer) {
  *transfer = (mpg_transfer){.from = program->device->id,
                             .to = frame->set->programs[instruction->peer].device->id,
                             .number = frame->transfers + instruction->transfer,
                             .call = {.graph = frame->set->graph,
                                      .copy = instruction->transfer,
                                      .line = frame->line,
                                      .step = frame->step},
                             .size = instruction->bytes};
  return mpg_transfer_of(transfer->from, transfer->to);
}

static void *operand_address(const mpg_call_frame *frame, const mpg_program *program,
                             uint32_t operand) {
  const mpg_location *location = &program->operands[operand];
  return (char *)frame->bases[location->base] + location->offset;
}

/* Runs this process's share of a remote device's program: receives the data that the device sends
 * to this process, and signals. Waits only for devices of this process that pace a copy. Failed
 * work of these devices has no effect on the data, so it is not checked. */
static mpg_status run_remote(mpg_run *run, mpg_program_payload *state) {
  const mpg_call_frame *frame = state->frame;
  const mpg_program_segment *segment = &frame->set->segments[state->segment];
  const mpg_program *program = &frame->set->programs[segment->slot];
  for (; state->next < segment->end; state->next++) {
    const mpg_instruction *instruction = &program->instructions[state->next];
    mpg_transfer transfer;
    bool done;
    if (instruction->kind == MPG_SIGNAL) mpg_run_signal(run, run->first_tick + instruction->tick);
    mpg_device *peer = frame->set->programs[instruction->peer].device;
    if (instruction->kind == MPG_WAIT && instruction->paces && !peer->remote) {
      mpg_tick tick = frame->first_ticks[instruction->segment] + instruction->tick;
      if (!mpg_run_wait(run, (mpg_point){peer, tick, true})) return MPG_OK;
    }
    if (instruction->kind != MPG_COPY ||
        transfer_of(frame, program, instruction, &transfer) != MPG_TRANSFER_RECEIVE)
      continue;
    void *target = operand_address(frame, program, instruction->operands + 1);
    MPG_TRY(mpg_transfer_receive(run, &transfer, peer, target, &done));
    if (!done) return MPG_OK;
  }
  return MPG_OK;
}

/* Sends the data of a copy if another rank needs it. Sets *here to true if this process must make
 * the copy itself, instead of or in addition to sending. */
static mpg_status send(const mpg_call_frame *frame, const mpg_program *program,
                       const mpg_instruction *instruction, bool *here) {
  mpg_transfer transfer;
  mpg_transfer_kind kind = transfer_of(frame, program, instruction, &transfer);
  *here = kind == MPG_TRANSFER_HERE || kind == MPG_TRANSFER_SHARE;
  return kind == MPG_TRANSFER_SEND || kind == MPG_TRANSFER_SHARE
             ? mpg_transfer_send(&transfer, program->device,
                                 operand_address(frame, program, instruction->operands))
             : MPG_OK;
}

/* Notifies the ranks that wait for data which a failed segment did not send. */
static void send_failures(const mpg_program_payload *state) {
  const mpg_call_frame *frame = state->frame;
  const mpg_program_segment *segment = &frame->set->segments[state->segment];
  const mpg_program *program = &frame->set->programs[segment->slot];
  if (state->next == segment->end || program->device->remote) return;
  mpg_tick last = frame->first_ticks[state->segment] + segment->num_signals;
  (void)mpg_device_failure(program->device, last); /* sets the error text that is sent */
  for (uint32_t i = state->next; i < segment->end; i++) {
    mpg_transfer transfer;
    if (program->instructions[i].kind != MPG_COPY) continue;
    mpg_transfer_kind kind = transfer_of(frame, program, &program->instructions[i], &transfer);
    if (kind == MPG_TRANSFER_SEND || kind == MPG_TRANSFER_SHARE)
      mpg_transfer_send_failure(&transfer);
  }
}

/* --- Calls ------------------------------------------------------------------------------------ */

void mpg_program_discard(void *payload) {
  mpg_program_payload *state = payload;
  if (__builtin_expect(state->frame->set->num_transfers, 0)) send_failures(state);
  mpg_call_frame_release(state->frame);
}

void mpg_call_frame_release(mpg_call_frame *frame) {
  if (atomic_fetch_sub_explicit(&frame->references, 1, memory_order_acq_rel) != 1) return;
  mpg_program_set *set = frame->set;
  mpg_free(frame->times);
  frame->times = NULL;
  mpg_call_frame *top = atomic_load_explicit(&set->returned, memory_order_relaxed);
  /* Only whole lists are taken, so the head cannot change and come back (no ABA problem). */
  do frame->next = top;
  while (!atomic_compare_exchange_weak_explicit(&set->returned, &top, frame, memory_order_release,
                                                memory_order_relaxed));
  mpg_program_set_release(set);
}

static void find_part(const mpg_program_set *set, mpg_access *access) {
  access->index = access->base;
  for (access->part = 0; access->part < set->parts.count; access->part++) {
    if (access->index < set->parts.sizes[access->part]) return;
    access->index -= set->parts.sizes[access->part];
  }
  access->part = MPG_MAX_PARTS;
}

enum { CHECKED, WRITTEN, READ };

static int kind_of(const mpg_program_set *set, const mpg_access *access) {
  if (access->part == MPG_MAX_PARTS || !set->parts.fixed[access->part] || access->pushes)
    return CHECKED;
  return !access->writes ? READ : !access->reads ? WRITTEN : CHECKED;
}

/* Moves the accesses of one kind among accesses[begin, num_accesses) to the front of this range.
 * Returns the index after the last access of this kind. */
static uint32_t gather_kind(const mpg_program_set *set, mpg_program_segment *segment,
                            uint32_t begin, int kind) {
  for (uint32_t i = begin; i < segment->num_accesses; i++) {
    mpg_access access = segment->accesses[i];
    if (kind_of(set, &access) != kind) continue;
    segment->accesses[i] = segment->accesses[begin];
    segment->accesses[begin++] = access;
  }
  return begin;
}

void mpg_program_set_arrange(mpg_program_set *set, const mpg_parts *parts) {
  set->parts = *parts;
  for (uint32_t s = 0; s < set->num_segments; s++) {
    mpg_program_segment *segment = &set->segments[s];
    for (uint32_t i = 0; i < segment->num_accesses; i++) find_part(set, &segment->accesses[i]);
    segment->num_checked = gather_kind(set, segment, 0, CHECKED);
    segment->num_written = gather_kind(set, segment, segment->num_checked, WRITTEN);
  }
}

mpg_status mpg_program_set_draw(mpg_program_set *set, const mpg_drawn *drawn, uint32_t count) {
  set->drawn = mpg_arena_copy(&set->arena, drawn, count * sizeof *drawn + 1);
  if (!set->drawn) return mpg_out_of_host_memory(count * sizeof *drawn);
  set->num_drawn = count;
  return MPG_OK;
}

static void note_event(const mpg_run *run, const mpg_program_set *set,
                       const mpg_instruction *instruction, int64_t begin) {
  static const uint8_t kinds[] = {
      [MPG_RUN] = MPG_EVENT_OP, [MPG_COPY] = MPG_EVENT_COPY, [MPG_WAIT] = MPG_EVENT_WAIT};
  bool peer = instruction->kind != MPG_RUN;
  mpg_event event = {.name = mpg_instruction_name(instruction),
                     .scope = instruction->scope,
                     .kind = kinds[instruction->kind],
                     .program = true,
                     .backward = instruction->backward,
                     .peer = peer ? set->programs[instruction->peer].device->ordinal : -1,
                     .bytes = instruction->bytes,
                     .stage = run->stage,
                     .micro_batch = run->micro_batch,
                     .begin_ns = begin,
                     .end_ns = mpg_clock_ns()};
  mpg_profiler_record(run->device, &event);
}

mpg_status mpg_program_work(mpg_run *run, void *payload) {
  mpg_program_payload *state = payload;
  if (__builtin_expect(run->device->remote, 0)) return run_remote(run, state);
  const mpg_call_frame *frame = state->frame;
  const mpg_program_segment *segment = &frame->set->segments[state->segment];
  mpg_program *program = &frame->set->programs[segment->slot];
  bool profiling = mpg_profiler_on(), replaying = run->device->captures && !profiling;
  for (; state->next < segment->end; state->next++) {
    const mpg_instruction *instruction = &program->instructions[state->next];
    mpg_captured_segment *captured = replaying ? mpg_capture_at(frame, program, state->next) : NULL;
    if (captured) {
      uint32_t next = state->next;
      mpg_run_at(run, mpg_instruction_name(instruction), instruction->scope);
      if (frame->times && !frame->times[state->segment].begin)
        frame->times[state->segment].begin = mpg_clock_ns();
      MPG_TRY(mpg_capture_run(run, frame, program, captured, &next));
      if (next != state->next) {
        state->next = next - 1;
        continue;
      }
    }
    if (instruction->kind == MPG_SIGNAL) {
      mpg_run_signal(run, run->first_tick + instruction->tick);
      continue;
    }
    int64_t begin = profiling ? mpg_clock_ns() : 0;
    mpg_run_at(run, mpg_instruction_name(instruction), instruction->scope);
    if (instruction->kind == MPG_WAIT) {
      mpg_device *source = frame->set->programs[instruction->peer].device;
      mpg_point point = {source, frame->first_ticks[instruction->segment] + instruction->tick,
                         true};
      if (!mpg_run_wait(run, point)) return MPG_OK;
      MPG_TRY(mpg_device_failure(source, point.tick));
      continue; /* the worker records waits that actually blocked */
    }
    if (frame->times && !frame->times[state->segment].begin)
      frame->times[state->segment].begin = mpg_clock_ns();
    bool here = true;
    if (instruction->kind == MPG_COPY) MPG_TRY(send(frame, program, instruction, &here));
    if (here) MPG_TRY(mpg_program_issue(run, frame, program, instruction, NULL));
    if (profiling) note_event(run, frame->set, instruction, begin);
  }
  if (frame->times) frame->times[state->segment].end = mpg_clock_ns();
  return MPG_OK;
}
