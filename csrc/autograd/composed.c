/* Calls composed ops eagerly, by running their component ops one after another. */
#include "autograd/composed.h"

#include "autograd/autograd.h"
#include "autograd/mixed_precision.h"
#include "base/memory.h"

enum { BLOCK = 32, MOST_BLOCKS = 64 };
/* If the inputs have at least this many elements in total, intermediate arrays are released after
 * their last use. Finding the last uses requires composing the op once more just to count uses,
 * which does not pay off for smaller inputs. */
enum { COUNTED_ELEMENTS = 16384 };

/* The arrays created so far. They are stored in blocks that never move, because formulas hold
 * pointers to the arrays' descs. */
typedef struct array_builder {
  mpg_builder builder;
  uint32_t count;
  uint32_t *uses; /* per array: number of remaining uses; NULL if not counted */
  mpg_device_id device;
  mpg_array *blocks[MOST_BLOCKS];
  mpg_array first[BLOCK];
} array_builder;

static mpg_array *array_at(const array_builder *b, uint32_t number) {
  return &b->blocks[number / BLOCK][number % BLOCK];
}

/* Appends an empty array for the next value. */
static mpg_status add(array_builder *b, mpg_array **array, mpg_value *value) {
  uint32_t block = b->count / BLOCK;
  if (block == MOST_BLOCKS)
    return mpg_fail(MPG_ERROR, "internal: composed from more than %d arrays", BLOCK * MOST_BLOCKS);
  if (!b->blocks[block] && !(b->blocks[block] = mpg_calloc(BLOCK, sizeof(mpg_array))))
    return mpg_out_of_host_memory(BLOCK * sizeof(mpg_array));
  *value = (mpg_value){b->count, 0};
  *array = array_at(b, b->count++);
  return MPG_OK;
}

static const mpg_desc *desc_of(mpg_builder *builder, mpg_value value) {
  return &array_at((array_builder *)builder, value.node)->tensor.desc;
}

static mpg_device_id device_of(mpg_builder *builder, mpg_value value) {
  const mpg_array *array = array_at((array_builder *)builder, value.node);
  return array->tensor.storage ? mpg_array_device_id(array) : ((array_builder *)builder)->device;
}

/* Releases an array but keeps its desc, because formulas may still read its shape. */
static void give_up(mpg_array *array) {
  mpg_desc desc = array->tensor.desc;
  mpg_array_clear(array);
  array->tensor.desc = desc;
}

static mpg_status call_emitted(mpg_builder *builder, const mpg_op *op, const void *params,
                               const mpg_value *inputs, int num_inputs, mpg_value like,
                               mpg_value *outputs) {
  enum { FEW = 16 };
  array_builder *b = (array_builder *)builder;
  mpg_array *few_inputs[FEW], **arguments = few_inputs;
  mpg_array few_results[FEW], *results = few_results;
  int visible = mpg_call_outputs(op, params, num_inputs);
  mpg_status status = MPG_OK;
  (void)like;
  if (num_inputs > FEW && !(arguments = mpg_malloc((size_t)num_inputs * sizeof *arguments)))
    return mpg_out_of_host_memory((size_t)num_inputs * sizeof *arguments);
  if (visible > FEW) results = mpg_malloc((size_t)visible * sizeof *results);
  if (!results) MPG_GOTO(mpg_out_of_host_memory((size_t)visible * sizeof *results));
  for (int i = 0; i < num_inputs; i++) arguments[i] = array_at(b, inputs[i].node);
  for (int i = 0; i < visible; i++) results[i] = (mpg_array){0};
  MPG_GOTO(mpg_call_plain(op, params, arguments, num_inputs, results, visible));
  for (int i = 0; i < visible; i++) {
    mpg_array *array;
    if (status == MPG_OK) status = add(b, &array, &outputs[i]);
    if (status == MPG_OK)
      *array = results[i];
    else
      mpg_array_clear(&results[i]);
    if (status == MPG_OK && b->uses && !b->uses[outputs[i].node]) give_up(array);
  }
  for (int i = 0; i < num_inputs && status == MPG_OK && b->uses; i++)
    if (--b->uses[inputs[i].node] == 0) give_up(arguments[i]);
fail:
  if (arguments != few_inputs) mpg_free(arguments);
  if (results != few_results) mpg_free(results);
  return status;
}

static mpg_status count_uses(array_builder *b, const mpg_op *op, const void *params,
                             int num_inputs) {
  int64_t elements = 0;
  if (op->flags & MPG_OP_DYNAMIC) return MPG_OK; /* shapes follow only from the values */
  for (int i = 0; i < num_inputs; i++)
    elements += mpg_shape_size(&array_at(b, i)->tensor.desc.shape);
  if (elements < COUNTED_ELEMENTS) return MPG_OK;
  size_t total = (size_t)num_inputs + (size_t)mpg_op_num_outputs(op, params, num_inputs);
  mpg_desc *descs = mpg_malloc(total * sizeof *descs);
  if (!descs) return mpg_out_of_host_memory(total * sizeof *descs);
  for (int i = 0; i < num_inputs; i++) descs[i] = array_at(b, i)->tensor.desc;
  b->device = mpg_array_device_id(array_at(b, 0));
  mpg_status status =
      mpg_op_count_uses(op, params, mpg_autograd_training(), descs, num_inputs, &b->uses);
  mpg_free(descs);
  return status;
}

mpg_status mpg_composed_call(const mpg_op *op, const void *params, mpg_array *const *inputs,
                             int num_inputs, mpg_array *outputs, int num_visible,
                             mpg_array *const *out) {
  mpg_value few[MPG_MAX_NAMED * 2], *values = few;
  int total = num_inputs + mpg_op_num_outputs(op, params, num_inputs);
  mpg_status status = MPG_OK;
  array_builder b;
  b.builder = (mpg_builder){.emit = call_emitted, .desc = desc_of, .device = device_of};
  b.count = 0;
  b.uses = NULL;
  for (int i = 0; i < MOST_BLOCKS; i++) b.blocks[i] = NULL;
  b.blocks[0] = b.first;
  if (total > MPG_MAX_NAMED * 2 && !(values = mpg_malloc((size_t)total * sizeof *values)))
    return mpg_out_of_host_memory((size_t)total * sizeof *values);
  /* Takes new references, because another thread may replace an array's tensor while an op
   * waits. */
  for (int i = 0; i < num_inputs; i++) {
    mpg_array *array;
    MPG_GOTO(add(&b, &array, &values[i]));
    mpg_array_copy(array, inputs[i]);
  }
  MPG_GOTO(count_uses(&b, op, params, num_inputs));
  MPG_GOTO(mpg_op_compose(&b.builder, op, params, mpg_autograd_training(), values, num_inputs,
                          values + num_inputs));
  for (int i = 0; i < num_visible; i++) {
    mpg_array *result = array_at(&b, values[num_inputs + i].node);
    if (out)
      MPG_GOTO(mpg_call(mpg_op_get(MPG_OP__copy), NULL, &result, 1, NULL, 1, &out[i]));
    else
      mpg_array_copy(&outputs[i], result);
    if (!out) outputs[i].numpy = mpg_op_is_numpy(op); /* components are ops of mx.nd */
  }
fail:
  for (uint32_t i = 0; i < b.count; i++) mpg_array_clear(array_at(&b, i));
  for (int i = 1; i < MOST_BLOCKS && b.blocks[i]; i++) mpg_free(b.blocks[i]);
  mpg_free(b.uses);
  if (values != few) mpg_free(values);
  return status;
}
