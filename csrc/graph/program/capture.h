/* Programs replayed: on devices that can capture work (device.h), a run of instructions is issued
 * once into a capture, and from then on the capture is issued instead, at the cost of one call.
 *
 * A *piece* is a run of instructions of one segment that always go onto the device's stream
 * together: it is cut where the worker must look or wait, before waits, behind signals that another
 * program of the set waits for, and around what needs the host (copies to other kinds of devices,
 * kernels that turn out to wait). Other signals within it are given at its end. Random ops draw
 * with keys that are new in each call: while they are captured they are told where on the device to
 * read theirs, and each replay is preceded by a write of its keys, in the order of the device's
 * work. A device has one place for them, as its work runs in order; a piece has no more draws than
 * fit. A capture has addresses in it. A piece keeps a few, for the addresses of as many calls, as
 * pools hand out the same ones in turn; where none fits, the oldest is updated. Where addresses
 * keep changing, and on a piece's first call (kernels choose algorithms and grow scratch then),
 * instructions are issued one by one. What is captured is what would be issued: bits are the same.
 *
 * Ownership: a program owns its pieces. Threads: whoever runs the program; the last release of the
 * set.
 */
#ifndef MPG_GRAPH_PROGRAM_CAPTURE_H
#define MPG_GRAPH_PROGRAM_CAPTURE_H

#include "graph/program/program.h"

typedef struct mpg_captured_segment mpg_captured_segment;

/* The piece that begins with the instruction, or NULL. */
mpg_captured_segment *mpg_capture_at(const mpg_call_frame *frame, mpg_program *program,
                                     uint32_t instruction);
/* Issues it as one, with its signals; *next: behind it. Unchanged: its instructions are to be
 * issued one by one. */
mpg_status mpg_capture_run(mpg_run *run, const mpg_call_frame *frame, mpg_program *program,
                           mpg_captured_segment *piece, uint32_t *next);
void mpg_captures_free(mpg_program *program);

/* program.c: issues one RUN or COPY. random_at: where on the device a random one finds its key;
 * NULL: it gets it with the call. */
mpg_status mpg_program_issue(mpg_run *run, const mpg_call_frame *frame, const mpg_program *program,
                             const mpg_instruction *instruction, const mpg_random_key *random_at);
/* The random key of an instruction in this call. */
mpg_random_key mpg_program_key(const mpg_call_frame *frame, const mpg_program *program,
                               const mpg_instruction *instruction);

#endif
