/* Compiles a trace into programs. */
#include <string.h>

#include "base/workspace.h"
#include "compile/compile.h"
#include "compile/invariants/invariants.h"
#include "compile/saved/offloaded_values.h"
#include "graph/gradient/gradient_store.h"
#include "graph/gradient/offload.h"
#include "graph/partition/partition.h"
#include "graph/rewrite/rewrite.h"

static mpg_status take_inputs(mpg_compiled *c, mpg_trace *trace, const mpg_array *inputs) {
  c->num_constants = (uint32_t)trace->num_constants;
  c->num_inputs = c->num_given + c->num_constants;
  c->inputs = mpg_malloc((c->num_inputs + 1) * sizeof *c->inputs);
  c->constants = mpg_calloc(c->num_constants + 1, sizeof *c->constants);
  c->wanted = mpg_calloc(c->num_inputs + 1, sizeof *c->wanted);
  if (!c->inputs || !c->constants || !c->wanted)
    return mpg_out_of_host_memory(c->num_inputs * sizeof *c->inputs);
  for (uint32_t i = 0; i < c->num_given; i++) c->inputs[i] = inputs[i].value;
  for (uint32_t i = 0; i < c->num_constants; i++) {
    c->inputs[c->num_given + i] = trace->constants[i].value;
    MPG_TRY(mpg_trace_get_constant(trace, i, &c->constants[i]));
    c->wanted[c->num_given + i] = c->recording && mpg_tape_wants(c->constants[i].node);
  }
  mpg_trace_clear_constants(trace);
  return MPG_OK;
}

/* True if a value is a view that users expect to have memory of its own. */
static bool is_separate(const mpg_graph *graph, mpg_value value) {
  for (; mpg_node_is_view(&graph->nodes[value.node]);
       value = mpg_node_inputs(graph, &graph->nodes[value.node])[0])
    if (graph->nodes[value.node].separate) return true;
  return false;
}

/* True if output i shares memory with an input or another output. False for the first of several
 * separate outputs that share memory, so that only the later ones are copied. */
static bool shares_memory(const mpg_graph *graph, const bool *separate, size_t i) {
  mpg_value root = mpg_view_root(graph, graph->outputs[i]);
  if (mpg_node_is_input(&graph->nodes[root.node])) return true;
  for (size_t k = 0; k < graph->num_outputs; k++) {
    if (mpg_value_equal(graph->outputs[k], graph->outputs[i]) ||
        !mpg_value_equal(mpg_view_root(graph, graph->outputs[k]), root))
      continue;
    if (k < i || !separate[k]) return true;
  }
  return false;
}

/* Copies outputs that users expect to be separate arrays but that share memory. Outputs that are
 * the same value share one copy. */
static mpg_status separate_outputs(mpg_graph *graph, const bool *separate) {
  for (size_t i = 0; i < graph->num_outputs; i++) {
    if (!separate[i] || !shares_memory(graph, separate, i)) continue;
    mpg_value value = graph->outputs[i], copy;
    MPG_TRY(mpg_graph_emit_copy(graph, value, &copy));
    for (size_t k = i; k < graph->num_outputs; k++)
      if (mpg_value_equal(graph->outputs[k], value)) graph->outputs[k] = copy;
  }
  return MPG_OK;
}

static mpg_status take_outputs(mpg_compiled *c, const mpg_value *values,
                               mpg_array *const *outputs) {
  c->outputs = mpg_calloc(c->num_outputs + 1, sizeof *c->outputs);
  c->results = mpg_malloc((c->num_outputs + 1) * sizeof *c->results);
  c->external = mpg_malloc((c->graph.num_values + 1) * sizeof *c->external);
  if (!c->outputs || !c->results || !c->external)
    return mpg_out_of_host_memory(c->graph.num_values * sizeof *c->external);
  for (size_t v = 0; v < c->graph.num_values; v++) c->external[v] = MPG_NO_BASE;
  for (uint32_t i = 0; i < c->num_inputs; i++)
    c->external[mpg_value_index(&c->graph, c->inputs[i])] = i;
  for (uint32_t i = 0; i < c->num_kept; i++)
    c->external[mpg_value_index(&c->graph, c->kept[i])] = mpg_compiled_kept(c, i);
  for (uint32_t i = 0; i < c->num_outputs; i++) {
    mpg_value root = mpg_view_root(&c->graph, values[i]);
    uint32_t *external = &c->external[mpg_value_index(&c->graph, root)];
    if (*external == MPG_NO_BASE) {
      *external = mpg_compiled_result(c, c->num_results);
      c->results[c->num_results++] = root;
    }
    const mpg_value *traced = c->traced + c->graph.num_inputs;
    mpg_compiled_output *output = &c->outputs[i];
    *output = (mpg_compiled_output){.external = *external,
                                    .input = MPG_NO_BASE,
                                    .desc = mpg_graph_at(&c->graph, values[i])->desc,
                                    .numpy = outputs[i]->numpy};
    while (!mpg_value_equal(traced[output->same], traced[i])) output->same++;
    for (uint32_t k = 0; k < c->num_inputs; k++)
      if (mpg_value_equal(c->inputs[k], traced[i])) output->input = k;
  }
  return MPG_OK;
}

/* Copies the trace's graph to `joint` and appends the gradient ops. If arrives[i], out_grads[i]
 * becomes a new input of the graph. Otherwise output i has no gradient or, with `fill`, a gradient
 * of zeros. With `fill`, ops that have no gradient are treated as constants instead of failing. */
static mpg_status differentiate(const mpg_compiled *c, const bool *arrives, bool fill,
                                const bool *wanted, const bool *summed, bool train,
                                mpg_graph *joint, mpg_value *out_grads, mpg_value *sums,
                                mpg_value *in_grads) {
  size_t num_heads = 0, num_wanted = 0;
  mpg_value *work = mpg_malloc((c->num_outputs * 2 + c->num_inputs * 4 + 1) * sizeof *work);
  if (!work) return mpg_out_of_host_memory(c->num_outputs * sizeof *work);
  mpg_value *heads = work, *head_grads = heads + c->num_outputs + c->num_inputs,
            *variables = head_grads + c->num_outputs + c->num_inputs,
            *results = variables + c->num_inputs;
  mpg_status status = MPG_OK;
  MPG_GOTO(mpg_graph_copy(joint, &c->graph));
  if (joint->num_inputs)
    memcpy(joint->inputs, c->traced, joint->num_inputs * sizeof *joint->inputs);
  const mpg_value *traced_outputs = c->traced + joint->num_inputs;
  joint->phase = MPG_PHASE_BACKWARD;
  /* Visits the outputs in reverse: if later ops use the outputs in order, eager backward produces
   * their gradients in this order. */
  for (uint32_t i = c->num_outputs; i-- > 0;) {
    out_grads[i] = MPG_NO_VALUE;
    const mpg_graph_value value = *mpg_graph_at(joint, traced_outputs[i]);
    if (arrives[i]) {
      MPG_GOTO(mpg_graph_input(joint, &value.desc, value.device, &out_grads[i]));
      head_grads[num_heads] = out_grads[i];
    } else if (fill) {
      MPG_GOTO(mpg_graph_emit_full_like(joint, traced_outputs[i], 0, &head_grads[num_heads]));
    } else {
      continue;
    }
    heads[num_heads++] = traced_outputs[i];
  }
  for (uint32_t i = 0; i < c->num_inputs; i++) {
    if (wanted[i]) variables[num_wanted++] = c->inputs[i];
    if (!summed || !summed[i]) continue;
    const mpg_graph_value value = *mpg_graph_at(joint, c->inputs[i]);
    MPG_GOTO(mpg_graph_input(joint, &value.desc, value.device, &sums[i]));
    heads[num_heads] = c->inputs[i];
    head_grads[num_heads++] = sums[i];
  }
  mpg_differentiation request = {.heads = heads,
                                 .head_grads = head_grads,
                                 .num_heads = num_heads,
                                 .wanted = variables,
                                 .num_wanted = num_wanted,
                                 .gradients = results,
                                 .train = train,
                                 .lenient = fill};
  MPG_GOTO(mpg_graph_gradient(joint, &request));
  num_wanted = 0;
  for (uint32_t i = 0; i < c->num_inputs; i++)
    in_grads[i] = wanted[i] ? results[num_wanted++] : MPG_NO_VALUE;
fail:
  mpg_free(work);
  return status;
}

/* Simplifies the joint graph. During simplification, the gradients are outputs of the graph, so
 * that simplification updates them and keeps their memory distinct. */
static mpg_status simplify_joint(mpg_graph *joint, mpg_value *in_grads, uint32_t count) {
  size_t num_outputs = 0;
  MPG_TRY(mpg_graph_set_outputs(joint, in_grads, count));
  for (uint32_t i = 0; i < count; i++)
    if (mpg_has_value(in_grads[i])) joint->outputs[num_outputs++] = in_grads[i];
  joint->num_outputs = num_outputs;
  MPG_TRY(mpg_graph_simplify(joint));
  num_outputs = 0;
  for (uint32_t i = 0; i < count; i++)
    if (mpg_has_value(in_grads[i])) in_grads[i] = joint->outputs[num_outputs++];
  return mpg_graph_set_outputs(joint, in_grads, 0);
}

/* Adds copies of the forward nodes to recompute to the joint graph. lists[0] has the gradients. */
static mpg_status repeat(const mpg_compiled *c, mpg_graph *joint, const mpg_value_list *lists,
                         int num_lists) {
  if (!mpg_recompute_wanted(joint, c->graph.num_nodes)) return MPG_OK;
  mpg_graph result;
  mpg_status status = MPG_OK;
  mpg_graph_init(&result);
  bool *kept = mpg_malloc(c->graph.num_values + 1);
  if (!kept) return mpg_out_of_host_memory(c->graph.num_values);
  mpg_compiled_list_kept(c, kept);
  MPG_GOTO(mpg_recompute_apply(joint, c->graph.num_nodes, kept, lists, num_lists, &result));
  mpg_graph former = *joint;
  *joint = result;
  result = former;
fail:
  mpg_graph_free(&result);
  mpg_free(kept);
  return status;
}

/* Determines the forward values that the gradients of all outputs read. An op without a gradient is
 * not an error here; it fails only when a backward pass reaches it. */
static mpg_status find_saved(mpg_compiled *c) {
  mpg_graph joint;
  mpg_order order = {0};
  mpg_status status = MPG_OK;
  mpg_graph_init(&joint);
  mpg_workspace space = {0};
  mpg_value *out_grads =
      mpg_workspace_take(&space, (size_t)c->num_outputs + c->num_inputs, sizeof *out_grads);
  bool *arrives = mpg_workspace_take(&space, c->num_outputs, sizeof *arrives);
  c->saved = mpg_calloc(c->graph.num_values + 1, sizeof *c->saved);
  MPG_GOTO(mpg_workspace_check(&space));
  if (!c->saved) MPG_GOTO(mpg_out_of_host_memory(c->graph.num_values));
  mpg_value *in_grads = out_grads + c->num_outputs;
  for (uint32_t i = 0; i < c->num_outputs; i++) arrives[i] = true;
  MPG_GOTO(
      differentiate(c, arrives, true, c->wanted, NULL, true, &joint, out_grads, NULL, in_grads));
  MPG_GOTO(simplify_joint(&joint, in_grads, c->num_inputs));
  if (mpg_recompute_wanted(&joint, c->graph.num_nodes)) {
    MPG_GOTO(mpg_recompute_find(&joint, c->graph.num_nodes, in_grads, c->num_inputs, c->saved));
    if (!mpg_offload_wanted(&joint, c->graph.num_nodes)) goto fail;
    MPG_GOTO(repeat(c, &joint, &(mpg_value_list){in_grads, c->num_inputs}, 1));
    MPG_GOTO(mpg_compiled_offload(c, &joint, in_grads));
    goto fail;
  }
  MPG_GOTO(mpg_graph_order(&joint, MPG_PHASE_BACKWARD, in_grads, c->num_inputs, &order));
  for (size_t k = 0; k < order.count; k++) {
    const mpg_node *node = &joint.nodes[order.nodes[k]];
    if (mpg_node_flag(node, MPG_OP_SHAPE_ONLY)) continue;
    const mpg_value *inputs = mpg_node_inputs(&joint, node);
    for (uint32_t i = 0; i < node->num_inputs; i++)
      if (mpg_value_index(&joint, inputs[i]) < c->graph.num_values)
        c->saved[mpg_value_index(&joint, inputs[i])] = true;
  }
  MPG_GOTO(mpg_compiled_offload(c, &joint, in_grads));
fail:
  mpg_order_free(&order);
  mpg_graph_free(&joint);
  mpg_workspace_free(&space);
  return status;
}

static mpg_status plan_forward(mpg_compiled *c, mpg_order *order) {
  mpg_status status = MPG_OK;
  size_t num_roots = 0;
  mpg_value *roots = mpg_malloc((c->num_outputs + c->graph.num_values + 1) * sizeof *roots);
  if (!roots) return mpg_out_of_host_memory(c->graph.num_values * sizeof *roots);
  for (uint32_t i = 0; i < c->num_outputs; i++) roots[num_roots++] = c->graph.outputs[i];
  for (size_t n = 0; c->saved && n < c->graph.num_nodes; n++)
    for (uint32_t i = 0; i < c->graph.nodes[n].num_outputs; i++)
      if (c->saved[c->graph.nodes[n].values + i]) roots[num_roots++] = (mpg_value){(uint32_t)n, i};
  MPG_GOTO(mpg_graph_order(&c->graph, MPG_PHASE_FORWARD, roots, num_roots, order));
  if (c->stages != MPG_STAGES_NONE) MPG_GOTO(mpg_graph_stages(&c->graph, order, NULL, 0, false));
  mpg_plan_request request = {.graph = &c->graph,
                              .order = order,
                              .num_externals = mpg_compiled_forward_externals(c),
                              .external = c->external,
                              .saved = c->saved,
                              .unfused = c->unfused};
  MPG_GOTO(mpg_schedule(&request, order, c->stages == MPG_STAGES_NONE, &c->plan));
fail:
  mpg_free(roots);
  return status;
}

static mpg_status make_forward(mpg_compiled *c) {
  mpg_order order = {0};
  mpg_status status = MPG_OK;
  MPG_GOTO(plan_forward(c, &order));
  mpg_dump_pass("forward plan", &c->graph, &order, &c->plan);
  MPG_GOTO(mpg_lower(&c->graph, &order, &c->plan, "compiled forward", &c->programs));
  c->programs->graph = 2 * c->agreed;
  if (c->stages == MPG_STAGES_NONE)
    mpg_program_set_arrange(
        c->programs, &(mpg_parts){.count = 3,
                                  .sizes = {mpg_compiled_first_fixed(c), mpg_compiled_num_fixed(c),
                                            c->num_results},
                                  .fixed = {false, true, false}});
  if (!c->recording) goto fail;
  c->saved_external = mpg_calloc(mpg_compiled_forward_externals(c) + 1, sizeof *c->saved_external);
  if (!c->saved_external) MPG_GOTO(mpg_out_of_host_memory(mpg_compiled_forward_externals(c)));
  for (size_t v = 0; v < c->graph.num_values; v++)
    if (c->saved[v] && c->plan.locations[v].base < mpg_compiled_forward_externals(c))
      c->saved_external[c->plan.locations[v].base] = true;
fail:
  mpg_order_free(&order);
  return status;
}

/* Applies the rewrites whose results may differ from the original ops by rounding. */
static mpg_status rewrite(mpg_compiled *c, bool *changed) {
  if (c->exact) return MPG_OK;
  mpg_rewrite_request request = {
      .graph = &c->graph,
      .inputs = c->inputs,
      .num_inputs = c->num_inputs,
      .wanted = c->wanted,
      .recording = c->recording,
      .keeps = c->stages == MPG_STAGES_NONE && !mpg_graph_names_mesh(&c->graph),
      .num_parameters = c->num_bound + c->num_constants};
  return mpg_graph_rewrite(&request, changed);
}

/* Divides the graph over the meshes of its annotations. A trace that places all ops on one device
 * (trace_on) is not divided. */
static mpg_status partition(mpg_compiled *c, const mpg_trace *trace, mpg_partition_result *result) {
  if (trace->only.type) return MPG_OK;
  mpg_partition_request request = {.graph = &c->graph,
                                   .inputs = c->inputs,
                                   .num_inputs = c->num_inputs,
                                   .wanted = c->wanted,
                                   .exact = c->exact && (c->recording || !c->stages),
                                   .report = &c->shardings,
                                   .micro_batches = c->stages != MPG_STAGES_NONE};
  MPG_TRY(mpg_graph_partition(&request, result));
  if (result->changed) mpg_dump_pass("partitioned", &c->graph, NULL, NULL);
  return mpg_text_status(&c->shardings);
}

/* Applies the passes that replace ops. Keeps a copy of the graph as traced if gradients of
 * gradients, or the checks of a pipeline, need it. The tape adds up the gradients of gradients in
 * an order that depends on the devices, so graphs whose sums are trees are not divided for them. */
static mpg_status transform(mpg_compiled *c, const mpg_trace *trace) {
  bool rewritten = false;
  mpg_partition_result partitioned = {0};
  size_t inputs = c->num_inputs * sizeof *c->inputs, results = c->num_outputs * sizeof *c->inputs;
  mpg_status status = MPG_OK;
  mpg_value *outputs = mpg_malloc(results + 1);
  c->original_inputs = mpg_malloc(inputs + 1);
  if (!outputs || !c->original_inputs) MPG_GOTO(mpg_out_of_host_memory(inputs + results));
  if (inputs) memcpy(c->original_inputs, c->inputs, inputs);
  if (results) memcpy(outputs, c->graph.outputs, results);
  MPG_GOTO(rewrite(c, &rewritten));
  MPG_GOTO(partition(c, trace, &partitioned));
  if (rewritten || partitioned.trees || (partitioned.changed && c->stages != MPG_STAGES_NONE)) {
    MPG_GOTO(mpg_graph_copy(&c->original, &trace->graph));
    MPG_GOTO(mpg_graph_set_outputs(&c->original, outputs, c->num_outputs));
    /* The checks of a pipeline have no rules for some ops that simplification removes. */
    if (c->stages != MPG_STAGES_NONE) MPG_GOTO(mpg_graph_simplify(&c->original));
  }
fail:
  mpg_free(outputs);
  return status;
}

/* --- Backward --------------------------------------------------------------------------------- */

/* True if the nodes in `order` read only forward values that were saved. */
static bool reads_saved_only(const mpg_compiled *c, const mpg_graph *joint,
                             const mpg_order *order) {
  for (size_t k = 0; k < order->count; k++) {
    const mpg_node *node = &joint->nodes[order->nodes[k]];
    if (mpg_node_flag(node, MPG_OP_SHAPE_ONLY)) continue;
    for (uint32_t i = 0; i < node->num_inputs; i++) {
      uint32_t value = mpg_value_index(joint, mpg_node_inputs(joint, node)[i]);
      if (value < c->graph.num_values && !c->saved[value]) return false;
    }
  }
  return true;
}

/* Orders the backward nodes by stage. The gradients of carried inputs are urgent, because other
 * micro-batches wait for them. */
static mpg_status stage_backward(const mpg_compiled *c, const mpg_graph *joint,
                                 const mpg_value *stored, mpg_order *order) {
  size_t count = 0;
  mpg_value *urgent = mpg_malloc((c->num_given + 1) * sizeof *urgent);
  if (!urgent) return mpg_out_of_host_memory(c->num_given * sizeof *urgent);
  for (uint32_t i = 0; c->carried && i < c->num_given; i++)
    if (c->carried[i]) urgent[count++] = stored[i];
  mpg_status status =
      mpg_graph_stages(joint, order, urgent, count, c->stages == MPG_STAGES_DEFERRED);
  mpg_free(urgent);
  return status;
}

/* Divides the external arrays into parts (mpg_parts):
 *   1. unbound inputs
 *   2. bound inputs
 *   3. constants, results, gradients of outputs, gradients of unbound inputs
 *   4. gradients of bound inputs
 *   5. gradients of constants, sums of unbound inputs
 *   6. sums of bound inputs
 *   7. sums of constants */
static void arrange_backward(const mpg_compiled *c, mpg_program_set *set) {
  uint32_t own = mpg_compiled_first_fixed(c);
  mpg_program_set_arrange(
      set,
      &(mpg_parts){
          .count = 7,
          .sizes = {own, c->num_bound, c->num_constants + c->num_results + c->num_outputs + own,
                    c->num_bound, c->num_constants + own, c->num_bound, c->num_constants},
          .fixed = {false, true, false, true}});
}

static mpg_status find_reached(const mpg_compiled *c, mpg_compiled_backward *b) {
  MPG_TRY(mpg_compiled_find_reached(c, b->arrives, &b->reached));
  b->reaches_bound = true;
  for (uint32_t i = 0; i < c->num_inputs; i++) {
    if (i >= c->num_given - c->num_bound && i < c->num_given) b->reaches_bound &= b->reached[i];
    b->reached[i] |= b->summed[i];
  }
  return MPG_OK;
}

/* Assigns external array `array` to the value or, for a view, to its root. */
static void set_external(const mpg_graph *joint, uint32_t *external, mpg_value value,
                         uint32_t array) {
  if (mpg_has_value(value)) external[mpg_value_index(joint, mpg_view_root(joint, value))] = array;
}

/* Joint graph of the forward and backward phases, with its gradients. */
typedef struct joint_graph {
  mpg_graph graph;
  mpg_value *out_grads;       /* per output */
  mpg_value *in_grads, *sums; /* per input: its gradient, and the earlier sum that is added to it */
  /* Per input: the gradient value stored in the variable's gradient array, and the array's old
   * contents. */
  mpg_value *stored, *old;
  bool *wanted;        /* per input */
  uint32_t *external;  /* per value */
  bool *saved;         /* per value */
  uint32_t num_nodes;  /* number of nodes before those that store gradients */
  mpg_workspace space; /* owns the arrays above */
} joint_graph;

static mpg_status begin_joint(const mpg_compiled *c, joint_graph *j) {
  size_t count = c->num_outputs + 4 * (size_t)c->num_inputs;
  mpg_graph_init(&j->graph);
  j->wanted = mpg_workspace_take(&j->space, c->num_inputs, sizeof *j->wanted);
  j->out_grads = mpg_workspace_take(&j->space, count, sizeof *j->out_grads);
  MPG_TRY(mpg_workspace_check(&j->space));
  j->in_grads = j->out_grads + c->num_outputs;
  j->stored = j->in_grads + c->num_inputs;
  j->sums = j->stored + c->num_inputs;
  j->old = j->sums + c->num_inputs;
  return MPG_OK;
}

static void end_joint(joint_graph *j) {
  mpg_graph_free(&j->graph);
  mpg_workspace_free(&j->space);
}

/* Appends the gradients, simplifies the graph, and adds copies of the forward nodes to recompute
 * and of offloaded values. */
static mpg_status take_gradients(const mpg_compiled *c, const mpg_compiled_backward *b, bool fill,
                                 joint_graph *j) {
  /* With stages, `places` alone determines the wanted inputs, because the pipeline run itself
   * checks which inputs are reached. */
  for (uint32_t i = 0; i < c->num_inputs; i++)
    j->wanted[i] =
        b->places[i] != MPG_PLACE_NONE && (b->reached[i] || c->stages != MPG_STAGES_NONE);
  MPG_TRY(differentiate(c, b->arrives, fill, j->wanted, b->summed, b->train, &j->graph,
                        j->out_grads, j->sums, j->in_grads));
  for (uint32_t i = 0; i < c->num_inputs; i++)
    if (!b->summed[i]) j->sums[i] = MPG_NO_VALUE;
  MPG_TRY(simplify_joint(&j->graph, j->in_grads, c->num_inputs));
  mpg_value_list lists[] = {
      {j->in_grads, c->num_inputs}, {j->out_grads, c->num_outputs}, {j->sums, c->num_inputs}};
  MPG_TRY(repeat(c, &j->graph, lists, 3));
  MPG_TRY(mpg_compiled_recall(c, &j->graph, lists, 3));
  j->graph.train = b->train;
  return MPG_OK;
}

static mpg_status store_gradients(const mpg_compiled *c, mpg_compiled_backward *b, joint_graph *j) {
  mpg_gradient_store store;
  j->num_nodes = (uint32_t)j->graph.num_nodes;
  MPG_TRY(mpg_gradient_store_begin(&j->graph, true, &store));
  for (uint32_t i = 0; i < c->num_inputs; i++) {
    j->stored[i] = j->old[i] = MPG_NO_VALUE;
    b->gives[i] =
        j->wanted[i] && (mpg_has_value(j->in_grads[i]) || b->places[i] == MPG_PLACE_WRITE);
    if (b->gives[i])
      MPG_TRY(mpg_gradient_store_put(&store, c->inputs[i], j->in_grads[i],
                                     b->places[i] == MPG_PLACE_ADD, &j->stored[i], &j->old[i]));
  }
  return MPG_OK;
}

/* Determines the external array of each value in the joint graph, and marks the saved forward
 * values. */
static mpg_status find_places(const mpg_compiled *c, joint_graph *j) {
  const mpg_graph *graph = &j->graph;
  j->external = mpg_workspace_take(&j->space, graph->num_values, sizeof *j->external);
  j->saved = mpg_workspace_take(&j->space, graph->num_values, sizeof *j->saved);
  MPG_TRY(mpg_workspace_check(&j->space));
  memcpy(j->saved, c->saved, c->graph.num_values * sizeof *j->saved);
  for (size_t v = 0; v < graph->num_values; v++)
    j->external[v] = v < c->graph.num_values ? c->external[v] : MPG_NO_BASE;
  for (uint32_t i = 0; i < c->num_outputs; i++)
    set_external(graph, j->external, j->out_grads[i], mpg_compiled_out_grad(c, i));
  for (uint32_t i = 0; i < c->num_inputs; i++) {
    set_external(graph, j->external, j->sums[i], mpg_compiled_sum(c, i));
    set_external(graph, j->external, j->stored[i], mpg_compiled_in_grad(c, i));
    set_external(graph, j->external, j->old[i], mpg_compiled_in_grad(c, i));
  }
  return MPG_OK;
}

static mpg_status order_backward(const mpg_compiled *c, const joint_graph *j, mpg_order *order) {
  MPG_TRY(mpg_graph_order(&j->graph, MPG_PHASE_BACKWARD, j->stored, c->num_inputs, order));
  MPG_TRY(mpg_order_follow(&j->graph, j->num_nodes, order));
  return c->stages == MPG_STAGES_NONE ? MPG_OK : stage_backward(c, &j->graph, j->stored, order);
}

static mpg_status lower_backward(const mpg_compiled *c, const mpg_graph *joint,
                                 const mpg_order *order, mpg_compiled_backward *b) {
  mpg_dump_pass("gradient", joint, NULL, NULL);
  mpg_dump_pass("backward plan", joint, order, &b->plan);
  MPG_TRY(mpg_lower(joint, order, &b->plan, "compiled backward", &b->programs));
  b->programs->graph = 2 * c->agreed + 1;
  if (c->stages == MPG_STAGES_NONE) arrange_backward(c, b->programs);
  return MPG_OK;
}

/* Builds the backward programs. Sets *made to false if they would read a forward value that was not
 * saved. This cannot happen with `fill`: outputs without a gradient then get zeros, and the saved
 * values were chosen for the gradient of all outputs. */
static mpg_status try_backward(const mpg_compiled *c, mpg_compiled_backward *b, bool fill,
                               bool lower, bool *made) {
  joint_graph j = {0};
  mpg_order order = {0};
  mpg_status status = MPG_OK;
  MPG_GOTO(begin_joint(c, &j));
  MPG_GOTO(take_gradients(c, b, fill, &j));
  MPG_GOTO(store_gradients(c, b, &j));
  MPG_GOTO(find_places(c, &j));
  MPG_VERIFY(&j.graph);
  MPG_GOTO(order_backward(c, &j, &order));
  *made = fill || reads_saved_only(c, &j.graph, &order);
  if (!*made) goto fail;
  mpg_plan_request request = {.graph = &j.graph,
                              .order = &order,
                              .num_externals = mpg_compiled_all_externals(c),
                              .external = j.external,
                              .saved = j.saved,
                              .forward = &c->plan,
                              .retain = b->retain,
                              .unfused = c->unfused};
  MPG_GOTO(mpg_schedule(&request, &order, c->stages == MPG_STAGES_NONE, &b->plan));
  if (lower) MPG_GOTO(lower_backward(c, &j.graph, &order, b));
fail:
  mpg_order_free(&order);
  end_joint(&j);
  return status;
}

static mpg_status make_backward(const mpg_compiled *c, mpg_compiled_backward *b) {
  bool made = false;
  MPG_TRY(try_backward(c, b, false, true, &made));
  return made ? MPG_OK : try_backward(c, b, true, true, &made);
}

/* Allocates a backward with an empty signature and no programs. */
static mpg_status new_backward(const mpg_compiled *c, mpg_compiled_backward **result) {
  mpg_compiled_backward *b = mpg_calloc(1, sizeof *b);
  if (!b) return mpg_out_of_host_memory(sizeof *b);
  b->arrives = mpg_calloc(c->num_outputs + 1, sizeof *b->arrives);
  b->places = mpg_calloc(c->num_inputs + 1, sizeof *b->places);
  b->gives = mpg_calloc(c->num_inputs + 1, sizeof *b->gives);
  b->summed = mpg_calloc(c->num_inputs + 1, sizeof *b->summed);
  if (b->arrives && b->places && b->gives && b->summed) {
    *result = b;
    return MPG_OK;
  }
  mpg_compiled_backward_free(b);
  return mpg_out_of_host_memory(c->num_inputs);
}

/* Returns the backward of this signature, or NULL if it has not been built yet. */
static mpg_compiled_backward *find_backward(const mpg_compiled *c, const bool *arrives,
                                            const bool *summed, const uint8_t *places, bool retain,
                                            bool train) {
  mpg_compiled_backward *b = c->backwards;
  while (b && (b->retain != retain || b->train != train ||
               memcmp(b->arrives, arrives, c->num_outputs * sizeof *arrives) ||
               memcmp(b->places, places, c->num_inputs) ||
               memcmp(b->summed, summed, c->num_inputs * sizeof *summed)))
    b = b->next;
  return b;
}

mpg_status mpg_compiled_get_backward(mpg_compiled *c, const bool *arrives, const bool *summed,
                                     const uint8_t *places, bool retain, bool train,
                                     mpg_compiled_backward **result) {
  mpg_status status = MPG_OK;
  mpg_compiled_backward *b = find_backward(c, arrives, summed, places, retain, train);
  if ((*result = b) != NULL) return MPG_OK;
  MPG_TRY(new_backward(c, &b));
  b->retain = retain;
  b->train = train;
  memcpy(b->arrives, arrives, c->num_outputs * sizeof *arrives);
  memcpy(b->places, places, c->num_inputs);
  memcpy(b->summed, summed, c->num_inputs * sizeof *summed);
  MPG_GOTO(find_reached(c, b));
  MPG_GOTO(make_backward(c, b));
  b->next = c->backwards;
  *result = c->backwards = b;
  return MPG_OK;
fail:
  mpg_compiled_backward_free(b);
  return status;
}

/* --- Compilation ------------------------------------------------------------------------------ */

/* Allocates a backward for gradients of all outputs, which writes those of all inputs. */
static mpg_status new_whole_backward(const mpg_compiled *c, mpg_compiled_backward **b) {
  MPG_TRY(new_backward(c, b));
  (*b)->train = true;
  for (uint32_t i = 0; i < c->num_outputs; i++) (*b)->arrives[i] = true;
  for (uint32_t i = 0; i < c->num_inputs; i++)
    (*b)->places[i] = c->wanted[i] ? MPG_PLACE_WRITE : MPG_PLACE_NONE;
  mpg_status status = find_reached(c, *b);
  if (status != MPG_OK) mpg_compiled_backward_free(*b);
  return status;
}

mpg_status mpg_compiled_make_whole_backward(mpg_compiled *c) {
  mpg_compiled_backward *b;
  MPG_TRY(new_whole_backward(c, &b));
  mpg_status status = make_backward(c, b);
  if (status != MPG_OK) {
    mpg_compiled_backward_free(b);
    return status;
  }
  b->next = c->backwards;
  c->backwards = b;
  return MPG_OK;
}

/* Plans both phases without lowering them. Passed to mpg_compiled_fit. */
static mpg_status measure(mpg_compiled *c, mpg_plan *plan) {
  mpg_order order = {0};
  mpg_compiled_backward *b;
  bool made;
  mpg_status status = MPG_OK;
  MPG_TRY(new_whole_backward(c, &b));
  MPG_GOTO(find_saved(c));
  MPG_GOTO(plan_forward(c, &order));
  MPG_GOTO(try_backward(c, b, true, false, &made));
  *plan = b->plan;
  b->plan = (mpg_plan){0};
fail:
  mpg_order_free(&order);
  mpg_plan_free(&c->plan);
  mpg_free(c->saved);
  c->saved = NULL;
  mpg_compiled_backward_free(b);
  return status;
}

static mpg_status make_all(mpg_compiled *c, const mpg_memory_budget *budget) {
  MPG_TRY(mpg_compiled_check_offload(c, budget));
  if (c->recording && budget && budget->count) MPG_TRY(mpg_compiled_fit(c, budget, measure));
  if (c->recording) MPG_TRY(find_saved(c));
  return make_forward(c);
}

/* Allocates an empty compiled call. The caller releases *result even on failure. */
static mpg_status new_compiled(uint32_t num_inputs, uint32_t num_outputs,
                               const mpg_compile_options *options, mpg_compiled **result) {
  mpg_compiled *c = *result = mpg_calloc(1, sizeof *c);
  if (!c) return mpg_out_of_host_memory(sizeof *c);
  c->references = 1;
  c->num_given = num_inputs;
  c->num_bound = options->num_bound;
  c->num_outputs = num_outputs;
  c->recording = options->recording;
  c->exact = options->exact;
  c->unfused = options->unfused;
  c->stages = options->stages;
  c->offload_elements = options->offload_elements;
  mpg_graph_init(&c->graph);
  mpg_graph_init(&c->original);
  if (!options->carried || !num_inputs) return MPG_OK;
  c->carried = mpg_malloc(num_inputs * sizeof *c->carried);
  if (!c->carried) return mpg_out_of_host_memory(num_inputs);
  memcpy(c->carried, options->carried, num_inputs * sizeof *c->carried);
  return MPG_OK;
}

/* Copies the trace's graph, inputs and outputs to `c`. Sets separate[i] if output i is a view that
 * users expect to have memory of its own. */
static mpg_status take_trace(mpg_compiled *c, mpg_trace *trace, const mpg_array *inputs,
                             mpg_array *const *outputs, const mpg_compile_options *options,
                             bool *separate) {
  mpg_status status = MPG_OK;
  mpg_value *values = mpg_malloc((c->num_outputs + 1) * sizeof *values);
  if (!values) return mpg_out_of_host_memory(c->num_outputs * sizeof *values);
  for (uint32_t i = 0; i < c->num_outputs; i++) {
    MPG_GOTO(mpg_trace_value(trace, outputs[i], "the block's result", &values[i]));
    separate[i] = is_separate(&trace->graph, values[i]);
  }
  MPG_GOTO(mpg_graph_copy(&c->graph, &trace->graph));
  MPG_GOTO(mpg_graph_set_outputs(&c->graph, values, c->num_outputs));
  MPG_VERIFY(&c->graph);
  MPG_GOTO(take_inputs(c, trace, inputs));
  for (uint32_t i = 0; i < c->num_given; i++)
    c->wanted[i] = options->recording && options->wanted[i];
  for (size_t n = 0; n < c->graph.num_nodes; n++) c->starts |= mpg_node_starts(&c->graph.nodes[n]);
  if (c->stages == MPG_STAGES_NONE) c->recording = memchr(c->wanted, true, c->num_inputs) != NULL;
fail:
  mpg_free(values);
  return status;
}

/* Saves the node inputs and the outputs as traced, before simplification changes them. */
static mpg_status keep_traced(mpg_compiled *c) {
  size_t inputs = c->graph.num_inputs, count = inputs + c->num_outputs;
  c->traced = mpg_malloc((count + 1) * sizeof *c->traced);
  if (!c->traced) return mpg_out_of_host_memory(count * sizeof *c->traced);
  if (inputs) memcpy(c->traced, c->graph.inputs, inputs * sizeof *c->traced);
  if (c->num_outputs)
    memcpy(c->traced + inputs, c->graph.outputs, c->num_outputs * sizeof *c->traced);
  return MPG_OK;
}

/* Removes the tape edge of an input if outputs depend on it only through detached values, as in
 * eager calls. Parameter sets and pipeline runs track reachability themselves. */
static mpg_status cut_detached(mpg_compiled *c) {
  bool *arrives = mpg_malloc(c->num_outputs + 1), *reached = NULL;
  if (!arrives) return mpg_out_of_host_memory(c->num_outputs);
  memset(arrives, true, c->num_outputs);
  mpg_status status = mpg_compiled_find_reached(c, arrives, &reached);
  for (uint32_t i = 0; status == MPG_OK && i < mpg_compiled_first_fixed(c); i++)
    c->wanted[i] &= reached[i];
  c->recording = memchr(c->wanted, true, c->num_inputs) != NULL;
  mpg_free(reached);
  mpg_free(arrives);
  return status;
}

/* If the graph spans several ranks, checks that all processes have traced the same graph. */
static mpg_status agree(mpg_compiled *c) {
  const mpg_graph *graph = &c->graph;
  if (!mpg_graph_spans_ranks(graph)) return MPG_OK;
  mpg_text text = {0};
  mpg_graph_dump(graph, &text);
  mpg_status status =
      text.failed ? mpg_out_of_host_memory(0) : mpg_host_agree(mpg_text_string(&text));
  mpg_text_free(&text);
  c->agreed = mpg_ranks_note_graph();
  return status;
}

mpg_status mpg_compile(mpg_trace *trace, const mpg_array *inputs, uint32_t num_inputs,
                       mpg_array *const *outputs, uint32_t num_outputs,
                       const mpg_compile_options *options, mpg_compiled **compiled) {
  mpg_compiled *c = NULL;
  mpg_status status = MPG_OK;
  bool *separate = mpg_malloc((num_outputs + 1) * sizeof *separate);
  if (!separate) return mpg_out_of_host_memory(num_outputs * sizeof *separate);
  MPG_GOTO(new_compiled(num_inputs, num_outputs, options, &c));
  MPG_GOTO(take_trace(c, trace, inputs, outputs, options, separate));
  mpg_dump_pass("traced", &c->graph, NULL, NULL);
  MPG_GOTO(agree(c));
  MPG_GOTO(transform(c, trace));
  MPG_GOTO(separate_outputs(&c->graph, separate));
  mpg_dump_pass("rewritten", &c->graph, NULL, NULL);
  MPG_GOTO(keep_traced(c));
  if (c->recording && c->stages == MPG_STAGES_NONE) MPG_GOTO(cut_detached(c));
  MPG_GOTO(mpg_graph_simplify(&c->graph));
  mpg_dump_pass("simplified", &c->graph, NULL, NULL);
  if (!c->recording && c->stages == MPG_STAGES_NONE && !options->lean)
    MPG_GOTO(mpg_compiled_make_invariants(c));
  MPG_GOTO(take_outputs(c, c->graph.outputs, outputs));
  MPG_GOTO(make_all(c, options->budget));
  *compiled = c;
  c = NULL;
fail:
  mpg_free(separate);
  mpg_compiled_release(c);
  return status;
}
