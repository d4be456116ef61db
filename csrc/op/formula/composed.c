/* Ops that are composed of other ops, and their inference. */
#include <string.h>

#include "base/memory.h"
#include "op/infer.h"
#include "op/placement.h"

static mpg_status compose(mpg_builder *builder, const mpg_op *op, const void *params, bool train,
                          const mpg_value *inputs, int num_inputs, mpg_value *outputs) {
  int num_outputs = mpg_op_num_outputs(op, params, num_inputs);
  mpg_gradient context = {.builder = builder,
                          .op = op,
                          .params = params,
                          .num_inputs = num_inputs,
                          .num_outputs = num_outputs,
                          .inputs = inputs,
                          .train = train};
  for (int i = 0; i < num_outputs; i++) outputs[i] = MPG_NO_VALUE;
  op->compose(&context, inputs, outputs);
  if (context.status != MPG_OK && strncmp(mpg_error_text(), op->name, strlen(op->name)) != 0)
    mpg_fail_prefix(context.status, "%s", op->name);
  return context.status;
}

/* --- Inference: runs the composition on descs ------------------------------------------------- */
typedef struct inferred {
  mpg_desc desc;
  uint32_t uses; /* number of reads by emitted ops */
} inferred;

typedef struct desc_builder {
  mpg_builder builder;
  bool train;
  mpg_arena arena; /* holds the values, whose addresses stay valid when `values` grows */
  inferred **values;
  size_t count, capacity;
} desc_builder;

static mpg_status add_desc(desc_builder *b, const mpg_desc *desc, mpg_value *value) {
  MPG_TRY(mpg_grow((void **)&b->values, &b->capacity, b->count + 1, sizeof *b->values));
  inferred new = {*desc, 0}, *copy = mpg_arena_copy(&b->arena, &new, sizeof new);
  if (!copy) return mpg_out_of_host_memory(sizeof new);
  *value = (mpg_value){(uint32_t)b->count, 0};
  b->values[b->count++] = copy;
  return MPG_OK;
}

static const mpg_desc *desc_of(mpg_builder *builder, mpg_value value) {
  return &((desc_builder *)builder)->values[value.node]->desc;
}

static mpg_device_id some_device(mpg_builder *builder, mpg_value value) {
  (void)builder;
  (void)value;
  return (mpg_device_id){.type = MPG_CPU};
}

static mpg_status infer_emitted(mpg_builder *builder, const mpg_op *op, const void *params,
                                const mpg_value *inputs, int num_inputs, mpg_value like,
                                mpg_value *outputs) {
  desc_builder *b = (desc_builder *)builder;
  int num_outputs = mpg_op_num_outputs(op, params, num_inputs);
  (void)like;
  mpg_desc *descs = mpg_arena_alloc(&b->arena, (size_t)(num_inputs + num_outputs) * sizeof *descs);
  if (!descs) return mpg_out_of_host_memory((size_t)(num_inputs + num_outputs) * sizeof *descs);
  for (int i = 0; i < num_inputs; i++) {
    descs[i] = b->values[inputs[i].node]->desc;
    b->values[inputs[i].node]->uses++;
  }
  MPG_TRY(mpg_op_infer(op, params, b->train, descs, num_inputs, descs + num_inputs, num_outputs));
  MPG_TRY(mpg_op_check_outputs(op, descs + num_inputs, num_outputs));
  int visible = mpg_op_visible_outputs(op, params, num_inputs);
  for (int i = 0; i < visible; i++) MPG_TRY(add_desc(b, &descs[num_inputs + i], &outputs[i]));
  return MPG_OK;
}

/* Infers the output shapes once all input shapes are known, and the output dtypes once all input
 * dtypes are known. Shapes do not depend on dtypes. */
mpg_status mpg_infer_composed(mpg_infer *infer) {
  enum { FEW = 16 };
  bool typed = true;
  /* Used for inputs of unknown dtype. An op that rejects float32 computes with integers. */
  mpg_dtype some = infer->op->dtypes >> MPG_FLOAT32 & 1 ? MPG_FLOAT32 : MPG_INT32;
  for (int i = 0; i < infer->num_inputs; i++) {
    if (!mpg_shape_known(&infer->inputs[i].shape)) return MPG_OK;
    if (infer->inputs[i].dtype != MPG_DTYPE_NONE)
      some = infer->inputs[i].dtype;
    else
      typed = false;
  }
  desc_builder b = {.builder = {.emit = infer_emitted, .desc = desc_of, .device = some_device},
                    .train = infer->train};
  mpg_value few[FEW], *values = few;
  mpg_status status = MPG_OK;
  size_t total = (size_t)infer->num_inputs + (size_t)infer->num_outputs;
  mpg_arena_init(&b.arena);
  if (total > FEW && !(values = mpg_malloc(total * sizeof *values)))
    return mpg_out_of_host_memory(total * sizeof *values);
  mpg_value *outputs = values + infer->num_inputs;
  for (int i = 0; i < infer->num_inputs; i++) {
    mpg_desc input = infer->inputs[i];
    if (input.dtype == MPG_DTYPE_NONE) input.dtype = some;
    MPG_GOTO(add_desc(&b, &input, &values[i]));
  }
  MPG_GOTO(compose(&b.builder, infer->op, infer->params, infer->train, values, infer->num_inputs,
                   outputs));
  for (int i = 0; i < infer->num_outputs; i++) {
    infer->outputs[i] = b.values[outputs[i].node]->desc;
    if (!typed) infer->outputs[i].dtype = MPG_DTYPE_NONE;
  }
fail:
  if (values != few) mpg_free(values);
  mpg_free(b.values);
  mpg_arena_free(&b.arena);
  return status;
}

/* Checks a call. If the op's outputs are inferred from its composition, runs only the common
 * checks, because emitting the ops performs the remaining ones. */
static mpg_status check(const mpg_op *op, const void *params, bool train, mpg_desc *descs,
                        int num_inputs, int num_outputs) {
  return op->infer == mpg_infer_composed
             ? mpg_op_check(op, params, descs, num_inputs)
             : mpg_op_infer(op, params, train, descs, num_inputs, descs + num_inputs, num_outputs);
}

mpg_status mpg_op_count_uses(const mpg_op *op, const void *params, bool train, mpg_desc *descs,
                             int num_inputs, uint32_t **uses) {
  desc_builder b = {.builder = {.emit = infer_emitted, .desc = desc_of, .device = some_device},
                    .train = train};
  int num_outputs = mpg_op_num_outputs(op, params, num_inputs);
  size_t total = (size_t)num_inputs + (size_t)num_outputs;
  MPG_TRY(check(op, params, train, descs, num_inputs, num_outputs));
  mpg_value *values = mpg_malloc(total * sizeof *values);
  mpg_status status = MPG_OK;
  if (!values) return mpg_out_of_host_memory(total * sizeof *values);
  mpg_arena_init(&b.arena);
  for (int i = 0; i < num_inputs; i++) MPG_GOTO(add_desc(&b, &descs[i], &values[i]));
  MPG_GOTO(compose(&b.builder, op, params, train, values, num_inputs, values + num_inputs));
  *uses = mpg_malloc(b.count * sizeof **uses);
  if (!*uses) MPG_GOTO(mpg_out_of_host_memory(b.count * sizeof **uses));
  for (size_t i = 0; i < b.count; i++) (*uses)[i] = b.values[i]->uses;
  for (size_t i = (size_t)num_inputs; i < total; i++) (*uses)[values[i].node]++;
fail:
  mpg_free(values);
  mpg_free(b.values);
  mpg_arena_free(&b.arena);
  return status;
}

typedef struct placed_inputs {
  mpg_builder *builder;
  const mpg_value *values;
} placed_inputs;

static mpg_device_id input_device(const void *inputs, int index) {
  const placed_inputs *placed = inputs;
  return placed->builder->device(placed->builder, placed->values[index]);
}

mpg_status mpg_op_compose(mpg_builder *builder, const mpg_op *op, const void *params, bool train,
                          const mpg_value *inputs, int num_inputs, mpg_value *outputs) {
  enum { FEW = 16 };
  mpg_desc few[FEW], *descs = few;
  size_t total = (size_t)num_inputs + (size_t)mpg_op_num_outputs(op, params, num_inputs);
  mpg_device_id device = {.type = MPG_CPU};
  MPG_TRY(mpg_op_place(op, params, &(placed_inputs){builder, inputs}, num_inputs, input_device,
                       device, &device));
  if (total > FEW && !(descs = mpg_malloc(total * sizeof *descs)))
    return mpg_out_of_host_memory(total * sizeof *descs);
  for (int i = 0; i < num_inputs; i++) descs[i] = *builder->desc(builder, inputs[i]);
  mpg_status status = check(op, params, train, descs, num_inputs, (int)total - num_inputs);
  if (status == MPG_OK) status = compose(builder, op, params, train, inputs, num_inputs, outputs);
  if (descs != few) mpg_free(descs);
  return status;
}
