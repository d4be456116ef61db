/* Issues an instruction of a program: resolves the addresses of its operands, computes its random
 * keys, and runs its kernel. Ownership: all pointers are borrowed. Threads: the thread that runs
 * the program. */
#ifndef MPG_GRAPH_PROGRAM_ISSUE_H
#define MPG_GRAPH_PROGRAM_ISSUE_H

#include "graph/program/program.h"

/* Issues a RUN or COPY instruction. `random_at` is the device address of its random keys, or NULL
 * if the keys are passed in the kernel call. */
mpg_status mpg_program_issue(mpg_run *run, const mpg_call_frame *frame, const mpg_program *program,
                             const mpg_instruction *instruction, const mpg_random_key *random_at);
/* Computes the random keys of an instruction in this call: one, or one for each draw of a fused
 * group. */
void mpg_program_keys(const mpg_call_frame *frame, const mpg_program *program,
                      const mpg_instruction *instruction, mpg_random_key *keys);

#endif
