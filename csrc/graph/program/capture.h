/* Captured programs, as CUDA graphs are: on a device that can capture work (device/device.h) a run
 * of instructions is issued once into a capture. From then on the capture is replayed, at the cost
 * of one call.
 *
 * A *captured segment* is a run of instructions of one segment that the device's stream always gets
 * together. It ends where the worker must look or wait: before waits, behind signals that another
 * program of the set waits for, and around work that needs the host (copies to other kinds of
 * devices, kernels that turn out to wait). Its other signals are given at its end.
 *
 * A random op takes a new key in each call. While it is captured it is told the address on the
 * device where it finds its key, and before each replay the keys are written there, in the order of
 * the device's work. A device has one place for keys, as its work runs in order; a captured segment
 * has no more draws than fit there.
 *
 * A capture contains addresses. A captured segment keeps a few captures, because pools hand out the
 * same addresses in turn; if none fits a call, the oldest is updated. Where addresses keep
 * changing, and in the first call (kernels choose algorithms and grow scratch memory then),
 * instructions are issued one by one. Replayed work is the issued work, so bits are the same.
 *
 * Ownership: a program owns its captured segments. Threads: the one that runs the program; the last
 * release of the set.
 */
#ifndef MPG_GRAPH_PROGRAM_CAPTURE_H
#define MPG_GRAPH_PROGRAM_CAPTURE_H

#include "graph/program/program.h"

typedef struct mpg_captured_segment mpg_captured_segment;

/* The captured segment that begins with the instruction, or NULL. */
mpg_captured_segment *mpg_capture_at(const mpg_call_frame *frame, mpg_program *program,
                                     uint32_t instruction);
/* Issues it as one, with its signals; *next: behind it. Unchanged: its instructions are to be
 * issued one by one. */
mpg_status mpg_capture_run(mpg_run *run, const mpg_call_frame *frame, mpg_program *program,
                           mpg_captured_segment *captured, uint32_t *next);
void mpg_captures_free(mpg_program *program);

/* program.c: issues one RUN or COPY. random_at: where on the device a random one finds its keys;
 * NULL: it gets them with the call. */
mpg_status mpg_program_issue(mpg_run *run, const mpg_call_frame *frame, const mpg_program *program,
                             const mpg_instruction *instruction, const mpg_random_key *random_at);
/* The random keys of an instruction in this call: one, or one for each draw of a fused group. */
void mpg_program_keys(const mpg_call_frame *frame, const mpg_program *program,
                      const mpg_instruction *instruction, mpg_random_key *keys);

#endif
