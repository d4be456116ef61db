/* Collectives as single ops: one op with arrays on several devices, which all devices' programs run
 * to and go on from together.
 *
 * It runs on the device of its first input (issues the transfers of all), when everything before it
 * on every device that takes part is done; what comes behind it on any of them waits for its end.
 * Each backend has a kernel `collective`, which finds the devices in the parameters.
 * Threads: any.
 */
#ifndef MPG_OP_ARRAY_COLLECTIVE_H
#define MPG_OP_ARRAY_COLLECTIVE_H

#include "op/op.h"

/* The kinds, in the order of the parameter's words. */
typedef enum mpg_collective_kind {
  MPG_SUM_TO_ALL,
  MPG_SUM_TO_ONE,
  MPG_ONE_TO_ALL,
  MPG_SUM_TO_PARTS,
  MPG_JOIN_TO_ALL,
  MPG_EXCHANGE
} mpg_collective_kind;

enum { MPG_MAX_SPANNED = 512 }; /* arrays on either side */

/* The devices that a parameter names, at most `max`; 0 where it names none, or other than devices.
 */
int mpg_collective_places(const char *text, mpg_device_id *places, int max);
/* The parameter's text for these devices, interned. NULL: out of memory. */
const char *mpg_collective_text(const mpg_device_id *places, int count);

#endif
