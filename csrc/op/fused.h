/* Fused groups: the interface to the backends that run them. The ops of a group run tile by tile,
 * so intermediate results need only the memory of one tile.
 *
 * Tiles. The domain of a group is a row-major box of dims. Each value of the group varies along
 * some dims and is broadcast along the others (its size is 1 there). Tiles divide only dims
 * 0..split of the domain; each tile spans all later dims. The results of members vary along all of
 * 0..split, so each tile computes its own part of every result exactly once. If a tile has one
 * index in each dim before d, a range of indices in d, and all indices in later dims, its part of a
 * value is contiguous.
 *
 * Trailing reductions are the exception: they reduce a value of the whole domain over dims 0..k,
 * split <= k, and keep the later dims. Their results are complete after the last tile, and no
 * member reads them. The rounding of a reduction depends on the order of additions. An op's kernel
 * sums chunks of a fixed number of source rows, then sums the results of the chunks in the same
 * way. Tiles that add the rows in order therefore give a bit-identical result, and different
 * threads can process different chunks.
 *
 * Producer. A group may have a producer, a product that is computed in panels of rows
 * (op/math/product.h). Its result varies along the whole domain. The tiles of a panel's rows may
 * run as soon as the panel is ready. If nothing outside the group reads the result, only one panel
 * of it is stored.
 *
 * Backends either run the members' kernels on each tile (kernels/cpu/math/fused.c) or generate one
 * kernel (backends with a `fuses` function). Members are in execution order, and their results are
 * bit-identical to those of the members' own kernels.
 *
 * Groups for generated kernels have no producer and reduce only over rows. A row consists of the
 * last dims of the domain, the same dims for all reductions and row ops (op/math/rows.h) of the
 * group. It has at most MPG_FUSED_MAX_ROW elements of one dtype. The trailing reductions of these
 * groups are the outputs that row ops sum over all rows.
 *
 * Calls. call->params points to the group. The inputs and outputs of the call are the operands,
 * which are the values visible outside the group. The program owns the group. The caller of the
 * kernel owns `views` and `keys`; everything else is constant.
 */
#ifndef MPG_OP_FUSED_H
#define MPG_OP_FUSED_H

#include "op/kernel.h"
#include "op/math/product.h"

#define MPG_FUSED_LOCAL UINT32_MAX
#define MPG_FUSED_PANEL (UINT32_MAX - 1)
enum { MPG_FUSED_MAX_MEMBERS = 64, MPG_FUSED_MAX_VALUES = 128, MPG_FUSED_MAX_TRAILING = 8 };

enum { MPG_FUSED_MAX_ROW = 8192 }; /* maximum number of elements per row in a generated kernel */

enum { MPG_REDUCTION_CHUNK = 16384 }; /* approximate number of elements per chunk */

/* Returns the number of rows per chunk of a reduction of (count, inner) to (inner). */
static inline int64_t mpg_reduction_chunk(int64_t count, int64_t inner) {
  int64_t length = inner >= MPG_REDUCTION_CHUNK / 64 ? 64 : MPG_REDUCTION_CHUNK / inner;
  if (count <= length + length / 2) length = count;
  return length > 0 ? length : 1;
}

typedef struct mpg_fused_value {
  mpg_dtype dtype;
  uint32_t varying;              /* bit i is set if the value varies along dim i */
  int64_t strides[MPG_MAX_NDIM]; /* in elements; 0 along broadcast dims */
  /* Index among the call's operands, which are its inputs, then its outputs. MPG_FUSED_LOCAL means
   * that the value exists only in the memory of a tile. MPG_FUSED_PANEL means that it is the
   * producer's result and that only one panel of it is stored. */
  uint32_t operand;
  /* Memory slot of a LOCAL value; values that share a slot have disjoint lifetimes. */
  uint32_t slot;
} mpg_fused_value;

typedef struct mpg_fused_draw { /* random draws of a member */
  uint32_t call;                /* index of the random call within the graph */
  mpg_shape shape;              /* shape of the array that is drawn */
  mpg_random_part part;
} mpg_fused_draw;

typedef struct mpg_fused_member {
  const mpg_op *op;
  const void *params; /* axis parameters count from the end of the domain */
  mpg_kernel_fn kernel;
  /* `operands` is the start of the member's slice of mpg_fused.operands, which lists its inputs
   * first. */
  uint32_t operands, num_inputs, num_outputs;
  /* Index in mpg_fused.draws; UINT32_MAX if not random. */
  uint32_t draw;
  bool train;
  bool trailing;
} mpg_fused_member;

typedef struct mpg_fused_producer {
  const mpg_op *op; /* NULL if there is no producer */
  const void *params;
  mpg_product product;
  uint32_t first_input, num_inputs; /* range of the producer's inputs among the call's inputs */
  uint32_t value;                   /* index of the result in `values` */
} mpg_fused_producer;

typedef struct mpg_fused {
  int ndim, split; /* split: last dim that tiles divide; -1 for a single tile */
  int64_t dims[MPG_MAX_NDIM];
  uint32_t row; /* bit mask of the dims of a row in a generated kernel; 0 without row reductions */
  mpg_dtype row_dtype;
  uint32_t num_members, num_values, num_operands, num_slots, num_draws, num_trailing;
  mpg_fused_producer producer;
  const mpg_fused_member *members;
  const mpg_fused_value *values;
  /* Operands of all members, as indices in `values`; MPG_FUSED_LOCAL for an input whose contents
   * are not read. */
  const uint32_t *operands;
  const uint8_t *slot_bytes; /* size of the largest element in each slot */
  const mpg_fused_draw *draws;
  mpg_random_key *keys; /* one per draw; unused if call->random_at is set */
  mpg_view *views;      /* one per operand, with its desc on the whole domain */
  /* True if a member needs scratch memory: at most two doubles per element of a tile. */
  bool reduces;
  const char *name; /* such as "sum+mul+relu" */
} mpg_fused;

/* True if the fused kernels of a device type can compute an op. `dtypes` lists the dtypes of the
 * inputs, then of the outputs. A NULL function accepts all ops. Set once when the backend's
 * library is loaded. */
typedef bool (*mpg_fuses_fn)(const mpg_op *op, const void *params, const mpg_dtype *dtypes,
                             int count);
void mpg_kernels_set_fuses(mpg_device_type type, mpg_fuses_fn fuses);
mpg_fuses_fn mpg_kernel_get_fuses(const mpg_device *device);

#endif
