/* Captured programs (CUDA graphs): on a device that supports captures (device/device.h), a run of
 * instructions is issued once into a capture. From then on the capture is replayed at the cost of
 * one call.
 *
 * A *captured segment* is a run of instructions of one segment that are always issued together. It
 * contains no waits, no signals that another program of the set waits for, and no work that needs
 * the host (copies to devices of other backends or between ranks, ops that wait for other devices).
 * Its own signals all complete at its end.
 *
 * A random op uses a new key in each call. During capture it gets the device address of its key.
 * Before each replay, the keys are written there, ordered with the device's work. A device
 * has one array of keys, because its work runs in order. The size of this array (MPG_CAPTURE_KEYS)
 * limits the draws of a captured segment.
 *
 * A capture contains addresses. A captured segment keeps a few captures, because pools alternate
 * between the same addresses. If none matches a call, the least recently used one is updated.
 * Instructions are issued one by one in the first call, in which kernels choose algorithms and grow
 * scratch memory, and for a while if addresses keep changing. A capture contains the same work as
 * these instructions, so results are bit-identical.
 *
 * Ownership: a program owns its captured segments. Threads: the thread that runs the program, and
 * the last release of the set.
 */
#ifndef MPG_GRAPH_PROGRAM_CAPTURE_H
#define MPG_GRAPH_PROGRAM_CAPTURE_H

#include "graph/program/program.h"

typedef struct mpg_captured_segment mpg_captured_segment;

/* Returns the captured segment that begins with the instruction, or NULL. */
mpg_captured_segment *mpg_capture_at(const mpg_call_frame *frame, mpg_program *program,
                                     uint32_t instruction);
/* Issues the captured segment as a unit, with its signals, and sets *next to the instruction after
 * it. If *next is unchanged, the caller must issue its instructions one by one. */
mpg_status mpg_capture_run(mpg_run *run, const mpg_call_frame *frame, mpg_program *program,
                           mpg_captured_segment *captured, uint32_t *next);
void mpg_captures_free(mpg_program *program);

#endif
