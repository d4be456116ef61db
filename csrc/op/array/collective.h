/* Collectives. Each collective is a single op whose arrays are on several devices; the programs of
 * all these devices wait for it.
 *
 * The op runs on the device of its first input, which issues the transfers for all devices. It
 * starts after all earlier work on every participating device, and later work on each of these
 * devices waits until it has finished. Each backend has a kernel `collective`, which reads the
 * devices from the op's parameters. Threads: any.
 */
#ifndef MPG_OP_ARRAY_COLLECTIVE_H
#define MPG_OP_ARRAY_COLLECTIVE_H

#include "op/op.h"

/* Values of the parameter `kind` (op/defs/internal.def), in order: all_reduce, reduce,
 * broadcast, reduce_scatter, all_gather, exchange. */
typedef enum mpg_collective_kind {
  MPG_SUM_TO_ALL,
  MPG_SUM_TO_ONE,
  MPG_ONE_TO_ALL,
  MPG_SUM_TO_PARTS,
  MPG_JOIN_TO_ALL,
  MPG_EXCHANGE
} mpg_collective_kind;

enum { MPG_MAX_SPANNED = 512 }; /* maximum number of inputs; the same limit applies to outputs */

/* Parses a device-list parameter with at most `max` devices. Returns the number of devices, or 0 if
 * the text is empty or invalid. */
int mpg_collective_places(const char *text, mpg_device_id *places, int max);
/* Formats devices as the text of a device-list parameter. Returns an interned string, or NULL if
 * out of memory. */
const char *mpg_collective_text(const mpg_device_id *places, int count);

/* Returns the start index of part `index` if `total` elements are split into `count` parts. Sizes
 * differ by at most one, and larger parts come first. */
static inline int64_t mpg_part_begin(int64_t total, int count, int index) {
  int64_t each = total / count, more = total % count;
  return each * index + (index < more ? index : more);
}

#endif
