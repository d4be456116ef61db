/* Host steps of pipeline runs. */
#include "base/host.h"
#include "compile/pipeline/pipeline_run.h"
#include "op/op.h"

/* Returns an operand of a queued segment as a tensor with its own reference. */
static mpg_tensor operand_of(const mpg_micro_batch *micro_batch, const mpg_program_set *set,
                             const mpg_program *program, uint32_t operand) {
  const mpg_location *location = &program->operands[operand];
  mpg_tensor tensor = {0};
  if (location->base < set->num_externals)
    tensor = micro_batch->externals[location->base];
  else
    tensor.storage = micro_batch->state.blocks[location->base - set->num_externals];
  tensor.offset += location->offset;
  tensor.desc = program->views[operand].desc;
  mpg_tensor_retain(&tensor);
  return tensor;
}

static mpg_status run_step(mpg_pipeline_run *run, const mpg_micro_batch_item *item,
                           const mpg_program_set *set, const mpg_program *program,
                           const mpg_instruction *instruction) {
  const mpg_host_step_params *params = instruction->params;
  const mpg_micro_batch *micro_batch = &run->micro_batches[item->micro_batch];
  uint32_t count = instruction->num_inputs + instruction->num_outputs;
  mpg_tensor *operands = mpg_calloc(count + 1, sizeof *operands);
  if (!operands) return mpg_out_of_host_memory(count * sizeof *operands);
  for (uint32_t i = 0; i < count; i++)
    operands[i] = operand_of(micro_batch, set, program, instruction->operands + i);
  mpg_host_yield();
  mpg_status status = run->host_code->run(
      run->host_state, &(mpg_host_call){.micro_batch = item->micro_batch,
                                        .number = (uint32_t)params->number,
                                        .backward = params->backward,
                                        .retain = run->retain,
                                        .num_inputs = instruction->num_inputs,
                                        .num_outputs = instruction->num_outputs,
                                        .inputs = operands,
                                        .outputs = operands + instruction->num_inputs});
  for (uint32_t i = 0; i < count; i++) mpg_tensor_release(&operands[i]);
  mpg_free(operands);
  return status;
}

mpg_status mpg_run_host_steps(mpg_pipeline_run *run, const mpg_micro_batch_item *item) {
  const mpg_program_set *set =
      mpg_micro_batch_programs(&run->micro_batches[item->micro_batch], item->phase);
  const mpg_program_segment *segment = &set->segments[item->segment];
  const mpg_program *program = &set->programs[segment->slot];
  for (uint32_t i = segment->begin; i < segment->end; i++) {
    const mpg_instruction *instruction = &program->instructions[i];
    if (instruction->op && mpg_op_runs_on_host(instruction->op))
      MPG_TRY(run_step(run, item, set, program, instruction));
  }
  return MPG_OK;
}
