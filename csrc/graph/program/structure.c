/* Hashes of program sets without sizes. */
#include "graph/program/program.h"

static uint64_t add_text(uint64_t hash, const char *text) {
  for (; *text; text++) hash = (hash ^ (unsigned char)*text) * 0x100000001b3u; /* FNV-1a */
  return mpg_hash_word(hash, 0);
}

static uint64_t add_segment(uint64_t hash, const mpg_program_set *set,
                            const mpg_program_segment *segment) {
  hash = mpg_hash_word(hash, (uint64_t)segment->slot << 32 | (segment->end - segment->begin));
  hash =
      mpg_hash_word(hash, (uint64_t)segment->depth << 32 | segment->part << 1 | segment->deferred);
  for (uint32_t i = segment->begin; i < segment->end; i++) {
    const mpg_instruction *instruction = &set->programs[segment->slot].instructions[i];
    hash = mpg_hash_word(hash, (uint64_t)instruction->kind << 32 | instruction->peer);
    hash = mpg_hash_word(hash, (uint64_t)instruction->segment << 32 | instruction->tick);
    hash = mpg_hash_word(hash, instruction->scope);
    if (instruction->op || instruction->fused)
      hash = add_text(hash, mpg_instruction_name(instruction));
  }
  for (uint32_t i = 0; i < segment->num_accesses; i++) {
    const mpg_access *access = &segment->accesses[i];
    hash = mpg_hash_word(hash, (uint64_t)access->base << 3 | (uint64_t)access->reads << 2 |
                                   (uint64_t)access->writes << 1 | access->pushes);
  }
  return hash;
}

uint64_t mpg_program_set_structure(const mpg_program_set *set) {
  uint64_t hash =
      mpg_hash_word(mpg_hash_word(set->num_externals, set->num_blocks), set->num_segments);
  for (uint32_t i = 0; i < set->num_programs; i++)
    hash = mpg_hash_word(hash, (uint64_t)set->programs[i].device->ordinal);
  for (uint32_t i = 0; i < set->num_blocks; i++)
    hash = mpg_hash_word(hash, (uint64_t)set->block_devices[i] << 1 | set->block_lanes[i]);
  for (uint32_t i = 0; i < set->num_segments; i++) hash = add_segment(hash, set, &set->segments[i]);
  return hash;
}
