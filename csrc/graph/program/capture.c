/* Captures runs of instructions once and replays them. */
#include "graph/program/capture.h"

#include <string.h>

#include "graph/program/issue.h"

enum {
  KEPT = 4,          /* captures per segment */
  SHORTEST = 3,      /* minimum number of kernels in a captured segment */
  MISSES = 2 * KEPT, /* consecutive misses after which addresses are considered unstable */
  REST = 64,         /* number of calls without captures after MISSES misses */
};

typedef struct kept_capture {
  void *capture;    /* owned by the backend; NULL means none */
  uint64_t used;    /* value of `calls` when this capture was last used */
  void **addresses; /* address of each base of the segment */
  struct {
    const void *memory;
    size_t size; /* scratch size available to kernels during capture */
  } scratch[MPG_SCRATCH_SLOTS];
} kept_capture;

struct mpg_captured_segment {
  mpg_captured_segment *next;
  uint32_t begin, end;
  uint32_t last_signal; /* number of its last signal; UINT32_MAX means none */
  uint32_t num_draws;   /* <= MPG_CAPTURE_KEYS */
  uint32_t num_bases;
  uint32_t *bases;
  uint64_t calls;
  uint32_t misses, rest;
  uint32_t failed; /* the instruction that made the latest capture fail; UINT32_MAX means none */
  kept_capture kept[KEPT];
};

struct mpg_captures {
  mpg_arena arena;
  bool *alone;               /* per instruction: true if never captured */
  mpg_captured_segment **at; /* per instruction: the captured segment that begins with it */
  /* List of all captured segments. Includes those that were replaced in `at`, because captures are
   * freed with the program. */
  mpg_captured_segment *segments;
};

/* True if an instruction issues the same work whenever its addresses are the same. */
static bool can_repeat(const mpg_program_set *set, const mpg_program *program,
                       const mpg_instruction *instruction) {
  if (instruction->kind == MPG_COPY)
    return set->programs[instruction->peer].device->backend == program->device->backend;
  /* These ops use the streams of other devices or wait for them. */
  if (instruction->op && instruction->op->flags & (MPG_OP_SPANS | MPG_OP_RENDEZVOUS)) return false;
  return true;
}

/* Returns the number of random keys that an instruction uses: one per draw of a fused group,
 * otherwise one or none. */
static uint32_t draws_of(const mpg_instruction *instruction) {
  if (instruction->kind != MPG_RUN) return 0;
  return instruction->fused ? instruction->fused->num_draws : instruction->random != MPG_NO_RANDOM;
}

/* Marks instructions that cannot be captured: waits, signals that another program of the set waits
 * for, and work that cannot be replayed. */
static void mark_alone(const mpg_program_set *set, const mpg_program *program, bool *alone) {
  for (uint32_t i = 0; i < program->count; i++) {
    const mpg_instruction *instruction = &program->instructions[i];
    alone[i] = instruction->kind == MPG_WAIT ||
               (instruction->kind == MPG_COPY && set->num_transfers) ||
               (instruction->kind != MPG_SIGNAL && !can_repeat(set, program, instruction));
  }
  for (uint32_t s = 0; s < set->num_segments; s++) {
    const mpg_program_segment *segment = &set->segments[s];
    if (&set->programs[segment->slot] != program) continue;
    for (uint32_t p = 0; p < set->num_programs; p++)
      for (uint32_t i = 0; i < set->programs[p].count; i++) {
        const mpg_instruction *wait = &set->programs[p].instructions[i];
        if (wait->kind != MPG_WAIT || wait->segment != s) continue;
        for (uint32_t k = segment->begin; k < segment->end; k++)
          if (program->instructions[k].kind == MPG_SIGNAL &&
              program->instructions[k].tick == wait->tick)
            alone[k] = true;
      }
  }
}

static mpg_status add_segment(const mpg_program *program, struct mpg_captures *replays,
                              uint32_t begin, uint32_t end) {
  uint32_t kernels = 0, num_draws = 0, num_operands = 0, num_bases = 0, last_signal = UINT32_MAX;
  for (uint32_t i = begin; i < end; i++) {
    const mpg_instruction *instruction = &program->instructions[i];
    if (instruction->kind == MPG_SIGNAL) last_signal = instruction->tick;
    kernels += instruction->kind == MPG_RUN;
    num_draws += draws_of(instruction);
    num_operands +=
        instruction->kind == MPG_SIGNAL ? 0 : instruction->num_inputs + instruction->num_outputs;
  }
  if (kernels < SHORTEST) return MPG_OK;
  mpg_captured_segment *captured = mpg_arena_alloc(&replays->arena, sizeof *captured);
  uint32_t *bases =
      captured ? mpg_arena_alloc(&replays->arena, num_operands * sizeof *bases) : NULL;
  if (!bases) return mpg_out_of_host_memory(sizeof *captured);
  memset(captured, 0, sizeof *captured);
  for (uint32_t i = begin; i < end; i++) {
    const mpg_instruction *instruction = &program->instructions[i];
    if (instruction->kind == MPG_SIGNAL) continue;
    for (uint32_t k = 0; k < instruction->num_inputs + instruction->num_outputs; k++) {
      uint32_t base = program->operands[instruction->operands + k].base, known = 0;
      while (known < num_bases && bases[known] != base) known++;
      if (base != MPG_NO_BASE && known == num_bases) bases[num_bases++] = base;
    }
  }
  for (int k = 0; k < KEPT; k++) {
    captured->kept[k].addresses =
        mpg_arena_alloc(&replays->arena, (num_bases + 1) * sizeof(void *));
    if (!captured->kept[k].addresses) return mpg_out_of_host_memory(num_bases * sizeof(void *));
  }
  captured->begin = begin;
  captured->end = end;
  captured->last_signal = last_signal;
  captured->bases = bases;
  captured->num_draws = num_draws;
  captured->num_bases = num_bases;
  captured->failed = UINT32_MAX;
  captured->next = replays->segments;
  replays->segments = replays->at[begin] = captured;
  return MPG_OK;
}

/* Splits the instructions [begin, end) of one segment into captured segments. */
static mpg_status cut(const mpg_program *program, struct mpg_captures *replays, uint32_t begin,
                      uint32_t end) {
  uint32_t from = begin, num_draws = 0;
  for (uint32_t i = begin; i <= end; i++) {
    bool alone = i == end || replays->alone[i];
    uint32_t drawn = alone ? 0 : draws_of(&program->instructions[i]);
    if (alone || num_draws + drawn > MPG_CAPTURE_KEYS) {
      MPG_TRY(add_segment(program, replays, from, i));
      from = i + alone;
      num_draws = 0;
    }
    num_draws += drawn;
  }
  return MPG_OK;
}

static mpg_status make(const mpg_program_set *set, mpg_program *program) {
  struct mpg_captures *replays = mpg_calloc(1, sizeof *replays);
  if (!replays) return mpg_out_of_host_memory(sizeof *replays);
  program->replays = replays;
  replays->alone = mpg_arena_alloc(&replays->arena, program->count * sizeof *replays->alone);
  replays->at = mpg_arena_alloc(&replays->arena, program->count * sizeof *replays->at);
  if (!replays->alone || !replays->at) {
    replays->at = NULL;
    return mpg_out_of_host_memory(program->count * sizeof *replays->at);
  }
  memset(replays->at, 0, program->count * sizeof *replays->at);
  mark_alone(set, program, replays->alone);
  for (uint32_t s = 0; s < set->num_segments; s++)
    if (&set->programs[set->segments[s].slot] == program)
      MPG_TRY(cut(program, replays, set->segments[s].begin, set->segments[s].end));
  return MPG_OK;
}

mpg_captured_segment *mpg_capture_at(const mpg_call_frame *frame, mpg_program *program,
                                     uint32_t instruction) {
  if (!program->replays && make(frame->set, program) != MPG_OK && !program->replays) return NULL;
  /* `at` is NULL if memory ran out. Instructions are then issued one by one. */
  return program->replays->at ? program->replays->at[instruction] : NULL;
}

static bool fits(const kept_capture *kept, const mpg_captured_segment *captured,
                 const mpg_call_frame *frame, const mpg_device *device) {
  for (int i = 0; i < MPG_SCRATCH_SLOTS; i++)
    if (kept->scratch[i].memory != device->scratch[i].memory ||
        kept->scratch[i].size > device->scratch[i].size)
      return false;
  for (uint32_t i = 0; i < captured->num_bases; i++)
    if (kept->addresses[i] != frame->bases[captured->bases[i]]) return false;
  return true;
}

/* Returns the capture with the call's addresses and sets *found to true. If no capture matches,
 * sets *found to false and returns the capture to replace, which is unused or the least recently
 * used. */
static kept_capture *choose(mpg_captured_segment *captured, const mpg_call_frame *frame,
                            const mpg_device *device, bool *found) {
  kept_capture *oldest = &captured->kept[0];
  for (int i = 0; i < KEPT; i++) {
    kept_capture *kept = &captured->kept[i];
    *found = kept->capture && fits(kept, captured, frame, device);
    if (*found) return kept;
    if (!kept->capture ? oldest->capture != NULL : oldest->capture && kept->used < oldest->used)
      oldest = kept;
  }
  return oldest;
}

/* Captures the segment. Returns false on failure. captured->failed is then the instruction that
 * could not be captured, or UINT32_MAX if no instruction is the cause (for example, because
 * another thread has synchronized the device). */
static bool capture(mpg_run *run, const mpg_call_frame *frame, const mpg_program *program,
                    mpg_captured_segment *captured, kept_capture *kept) {
  mpg_device *device = run->device;
  mpg_run into = *run;
  const mpg_backend *backend = device->backend;
  captured->failed = UINT32_MAX;
  if (captured->num_draws && !device->keys && backend->capture_keys(device, NULL, 0) != MPG_OK)
    return false;
  if (backend->capture_begin(device, &into.stream) != MPG_OK || !into.stream) return false;
  device->scratch_stays = true;
  bool good = true;
  uint32_t draw = 0;
  for (uint32_t i = captured->begin; i < captured->end && good; i++) {
    const mpg_instruction *instruction = &program->instructions[i];
    uint32_t drawn = draws_of(instruction);
    if (backend->capture_void(device)) {
      good = false; /* another thread voided the capture, since all instructions so far succeeded */
    } else if (instruction->kind != MPG_SIGNAL &&
               mpg_program_issue(&into, frame, program, instruction,
                                 drawn ? &device->keys[draw] : NULL) != MPG_OK) {
      if (!backend->capture_void(device)) captured->failed = i;
      good = false;
    }
    draw += drawn;
  }
  device->scratch_stays = false;
  if (backend->capture_end(device, good, &kept->capture) != MPG_OK || !good) {
    if (kept->capture) backend->capture_free(device, kept->capture);
    kept->capture = NULL;
    return false;
  }
  for (uint32_t k = 0; k < captured->num_bases; k++)
    kept->addresses[k] = frame->bases[captured->bases[k]];
  for (int k = 0; k < MPG_SCRATCH_SLOTS; k++) {
    kept->scratch[k].memory = device->scratch[k].memory;
    kept->scratch[k].size = device->scratch[k].size;
  }
  return true;
}

/* Records a failed capture. If the same instruction has failed twice in a row, it is permanently
 * excluded, and the captured segment is split around it. Any other failure is retried at the next
 * call. */
static void learn(const mpg_program *program, mpg_captured_segment *captured,
                  uint32_t failed_before) {
  struct mpg_captures *replays = program->replays;
  bool again = captured->failed != UINT32_MAX && captured->failed == failed_before;
  if (!again) {
    captured->misses++;
    return;
  }
  replays->alone[captured->failed] = true;
  replays->at[captured->begin] = NULL;
  /* A failure can be ignored: instructions without captured segments are issued one by one. */
  cut(program, replays, captured->begin, captured->end);
}

/* Writes this call's random keys to the device, for the capture that is replayed next. */
static mpg_status write_keys(mpg_device *device, const mpg_call_frame *frame,
                             const mpg_program *program, const mpg_captured_segment *captured) {
  mpg_random_key keys[MPG_CAPTURE_KEYS];
  uint32_t count = 0;
  for (uint32_t i = captured->begin; i < captured->end; i++) {
    uint32_t drawn = draws_of(&program->instructions[i]);
    if (drawn) mpg_program_keys(frame, program, &program->instructions[i], keys + count);
    count += drawn;
  }
  return device->backend->capture_keys(device, keys, (int)count);
}

mpg_status mpg_capture_run(mpg_run *run, const mpg_call_frame *frame, mpg_program *program,
                           mpg_captured_segment *captured, uint32_t *next) {
  if (!captured->calls++) return MPG_OK;
  if (captured->rest) {
    captured->rest--;
    return MPG_OK;
  }
  bool found;
  kept_capture *kept = choose(captured, frame, run->device, &found);
  if (!found) {
    if (captured->misses >= MISSES) {
      captured->misses = 0;
      captured->rest = REST;
      return MPG_OK;
    }
    uint32_t failed_before = captured->failed;
    if (!capture(run, frame, program, captured, kept)) {
      learn(program, captured, failed_before);
      return MPG_OK; /* the caller issues the instructions, which reports the error */
    }
    captured->misses++;
  } else {
    captured->misses = 0;
  }
  kept->used = captured->calls;
  if (captured->num_draws) MPG_TRY(write_keys(run->device, frame, program, captured));
  MPG_TRY(run->device->backend->capture_run(run->device, kept->capture));
  atomic_fetch_add_explicit(&program->replayed, 1, memory_order_relaxed);
  if (captured->last_signal != UINT32_MAX)
    mpg_run_signal(run, run->first_tick + captured->last_signal);
  *next = captured->end;
  return MPG_OK;
}

void mpg_captures_free(mpg_program *program) {
  if (!program->replays) return;
  for (mpg_captured_segment *captured = program->replays->segments; captured;
       captured = captured->next)
    for (int i = 0; i < KEPT; i++)
      if (captured->kept[i].capture)
        program->device->backend->capture_free(program->device, captured->kept[i].capture);
  mpg_arena_free(&program->replays->arena);
  mpg_free(program->replays);
}
