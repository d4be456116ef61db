/* Checks that a graph can be split along the batch, using the batching rules of its ops. */
#include "graph/schedule/micro_batching.h"

#include <string.h>

#include "base/workspace.h"
#include "graph/ir/analysis.h"
#include "op/batching/batching.h"

typedef struct walk {
  const mpg_graph *graph;
  const mpg_batching_request *request;
  const struct walk *whole; /* walk with more rows, from which results are copied; or NULL */
  mpg_batch *values;        /* per value of the graph */
  bool *live;               /* per node */
  mpg_batch *in;            /* workspace of run_rule, like `out` and `descs` */
  mpg_batch *out;
  mpg_desc *descs;
  mpg_workspace space; /* owns all these arrays */
} walk;

static void mark_live(walk *w) {
  const mpg_graph *graph = w->graph;
  for (size_t i = 0; i < graph->num_outputs; i++) w->live[graph->outputs[i].node] = true;
  for (size_t n = 0; n < graph->num_nodes; n++) w->live[n] |= mpg_node_mutates(&graph->nodes[n]);
  mpg_graph_mark_live(graph, w->live);
}

/* Runs the batching rule of one node, which fills `out` for the node's outputs. */
static mpg_status run_rule(walk *w, uint32_t number, mpg_batch *out) {
  const mpg_graph *graph = w->graph;
  const mpg_node *node = &graph->nodes[number];
  const mpg_value *inputs = mpg_node_inputs(graph, node);
  mpg_desc *outputs = w->descs + node->num_inputs;
  for (uint32_t i = 0; i < node->num_inputs; i++) {
    w->in[i] = w->values[mpg_value_index(graph, inputs[i])];
    w->descs[i] = mpg_graph_at(graph, inputs[i])->desc;
  }
  for (uint32_t k = 0; k < node->num_outputs; k++)
    outputs[k] = graph->values[node->values + k].desc;
  mpg_batching b = {.op = node->op,
                    .params = node->params,
                    .num_inputs = (int)node->num_inputs,
                    .num_outputs = (int)node->num_outputs,
                    .inputs = w->descs,
                    .outputs = outputs,
                    .in = w->in,
                    .out = out,
                    .rows = w->request->rows,
                    .axis = w->request->axis,
                    .train = node->train,
                    .along_time = w->request->along_time,
                    .node = number,
                    .scope = node->scope};
  return mpg_op_batching(&b);
}

static const char *plural(int64_t count) { return count == 1 ? "" : "s"; }

/* Returns the error of node `cause`, which computed a value from the steps of one chunk alone.
 * Called if this value is used for anything but state. */
static mpg_status fail_cause(walk *w, uint32_t cause) { return run_rule(w, cause, w->out); }

/* Applies the rules for chunks along time. A recurrence (MPG_OP_CARRIES) of state and per-step
 * values follows its own rule. Any other op with a STATE input yields STATE. A PART value
 * (computed from one chunk only) may feed other PART values and STATE. Combining it with per-step
 * values (DIVIDED) without STATE is rejected. Sets *done to false if no input is STATE or PART;
 * the op's batching rule then decides. */
static mpg_status along_time(walk *w, uint32_t number, mpg_batch *out, bool *done) {
  const mpg_node *node = &w->graph->nodes[number];
  const mpg_value *inputs = mpg_node_inputs(w->graph, node);
  const mpg_batch *part = NULL;
  bool divided = false, state = false;
  for (uint32_t i = 0; i < node->num_inputs; i++) {
    const mpg_batch *in = &w->values[mpg_value_index(w->graph, inputs[i])];
    if (in->kind == MPG_BATCH_PART) part = in;
    divided |= in->kind == MPG_BATCH_DIVIDED;
    state |= in->kind == MPG_BATCH_STATE;
  }
  *done = true;
  if (state && divided && !part && mpg_node_flag(node, MPG_OP_CARRIES))
    return run_rule(w, number, out);
  if (part && divided && !state) return fail_cause(w, part->cause);
  for (uint32_t k = 0; (state || part) && k < node->num_outputs; k++)
    out[k] = state ? (mpg_batch){.kind = MPG_BATCH_STATE} : *part;
  *done = state || part;
  return MPG_OK;
}

/* Rejects ops that update moving averages, which are updated outside the graph for the whole
 * batch. */
static mpg_status check_statistics(const mpg_node *node) {
  if (!mpg_op_changes_states(node->op, node->params, node->train)) return MPG_OK;
  const char *path = mpg_scope_text(node->scope);
  return mpg_fail(MPG_ERROR,
                  "%s%s%s updates its moving averages for every micro-batch: statistics='batch' "
                  "requires gluon.nn.%s instead of the operator itself",
                  node->op->name, *path ? " in block " : "", path, node->op->name);
}

/* Fails because the size per row of output k differs between the walks. */
static mpg_status fail_sizes(const walk *a, const walk *b, uint32_t n, uint32_t k) {
  const mpg_node *node = &a->graph->nodes[n], *other = &b->graph->nodes[n];
  const char *path = mpg_scope_text(node->scope), *in = *path ? " in block " : "",
             *part = a->request->along_time ? "chunk" : "micro-batch";
  char shapes[2][MPG_SHAPE_TEXT_SIZE];
  return mpg_fail(
      MPG_ERROR,
      "%s%s%s mixes data across the %s: a %s of %lld row%s gives %s, but one of %lld gives %s, "
      "which is not the same size per row. Sizes must follow from the inputs' shapes; "
      "Pipeline(check=False) skips this check",
      node->op->name, in, path, a->request->along_time ? "sequence" : "batch", part,
      (long long)a->request->rows, plural(a->request->rows),
      mpg_shape_text(&a->graph->values[node->values + k].desc.shape, shapes[0], sizeof shapes[0]),
      (long long)b->request->rows,
      mpg_shape_text(&b->graph->values[other->values + k].desc.shape, shapes[1], sizeof shapes[1]));
}

/* Copies the node's batch axes from the walk with more rows, which has passed the rules. This walk
 * cannot determine the batch axis, because with one row every axis of size 1 could be the batch
 * axis. */
static mpg_status adopt(walk *w, uint32_t number, mpg_batch *out) {
  const mpg_node *node = &w->graph->nodes[number];
  uint32_t first = w->whole->graph->nodes[number].values;
  for (uint32_t k = 0; k < node->num_outputs; k++) {
    const mpg_shape *shape = &w->graph->values[node->values + k].desc.shape,
                    *whole = &w->whole->graph->values[first + k].desc.shape;
    out[k] = w->whole->values[first + k];
    if (out[k].kind != MPG_BATCH_DIVIDED ||
        (shape->ndim == whole->ndim && shape->dims[out[k].axis] * w->whole->request->rows ==
                                           whole->dims[out[k].axis] * w->request->rows))
      continue;
    MPG_TRY(run_rule(w, number, w->out)); /* fails with a more specific error if possible */
    return fail_sizes(w, w->whole, number, k);
  }
  return MPG_OK;
}

static mpg_status visit(walk *w, uint32_t number) {
  const mpg_node *node = &w->graph->nodes[number];
  if (w->request->whole_statistics) MPG_TRY(check_statistics(node));
  mpg_batch *out = w->values + node->values;
  bool done = false;
  if (w->whole) return adopt(w, number, out);
  if (w->request->along_time) MPG_TRY(along_time(w, number, out, &done));
  if (done) return MPG_OK;
  mpg_status status = run_rule(w, number, out);
  if (status == MPG_OK || !w->request->along_time) return status;
  for (uint32_t k = 0; k < node->num_outputs; k++)
    out[k] = (mpg_batch){.kind = MPG_BATCH_PART, .cause = number};
  return MPG_OK;
}

static mpg_status check_output(walk *w, size_t i) {
  const mpg_graph *graph = w->graph;
  const mpg_batch *batch = &w->values[mpg_value_index(graph, graph->outputs[i])];
  const mpg_desc *desc = &mpg_graph_at(graph, graph->outputs[i])->desc;
  const char *part = w->request->along_time ? "chunk" : "micro-batch";
  char shape[MPG_SHAPE_TEXT_SIZE];
  if (w->request->output_kinds[i] == MPG_BATCH_STATE || batch->kind == MPG_BATCH_STATE ||
      batch->kind == MPG_BATCH_FREE)
    return MPG_OK;
  if (batch->kind == MPG_BATCH_PART) return fail_cause(w, batch->cause);
  mpg_shape_text(&desc->shape, shape, sizeof shape);
  if (batch->kind == MPG_BATCH_SAME)
    return mpg_fail(MPG_ERROR,
                    "result %zu of the pipelined block, of shape %s for one %s, does not depend on "
                    "the divided inputs, so it has no rows to concatenate. Return it from outside "
                    "of the block; Pipeline(check=False) concatenates the results of every %s",
                    i, shape, part, part);
  if (batch->kind == MPG_BATCH_LOCAL)
    return mpg_fail(MPG_ERROR,
                    "result %zu of the pipelined block, of shape %s for one %s, has rows that are "
                    "sorted by expert, so the results cannot be concatenated. Return the result "
                    "of contrib.combine; Pipeline(check=False) concatenates anyway",
                    i, shape, part);
  if (batch->axis || batch->outer != 1)
    return mpg_fail(
        MPG_ERROR,
        "result %zu of the pipelined block, of shape %s for one %s, has its rows%s along axis %d "
        "(the divided axis first), so the results cannot be concatenated along the divided axis. "
        "Return it with the rows along the axis that is divided in the inputs; "
        "Pipeline(check=False) concatenates along that axis anyway",
        i, shape, part, batch->outer != 1 || batch->inner != 1 ? " mixed with others" : "",
        batch->axis);
  return MPG_OK;
}

/* Returns the shape of the numbers that a random node draws. */
static mpg_shape drawn_shape(const mpg_graph *graph, const mpg_node *node) {
  const mpg_graph_value *outputs = &graph->values[node->values];
  /* The last output of an op that carries a state is the state, so output 0 is used. */
  uint32_t last = mpg_node_flag(node, MPG_OP_CARRIES) ? 0 : node->num_outputs - 1;
  const mpg_shape *output = &outputs[last].desc.shape,
                  *input = node->num_inputs
                               ? &mpg_graph_at(graph, *mpg_node_inputs(graph, node))->desc.shape
                               : output;
  return mpg_op_drawn_shape(node->op, node->params, input, output);
}

/* Records the position of the rows in the draws of a node, so that each micro-batch draws the
 * numbers of its own rows. */
static void note_drawn(const walk *w, const mpg_node *node) {
  if (!mpg_node_flag(node, MPG_OP_DRAWS_ROWS)) return;
  const mpg_value *inputs = mpg_node_inputs(w->graph, node);
  mpg_shape drawn = drawn_shape(w->graph, node);
  /* The rows of a SHAPE_ONLY op are those of its input. */
  mpg_batch batch =
      w->values[mpg_node_flag(node, MPG_OP_SHAPE_ONLY) ? mpg_value_index(w->graph, inputs[0])
                                                       : node->values];
  if (batch.kind != MPG_BATCH_DIVIDED) return;
  MPG_ASSERT(node->random < w->request->num_drawn);
  mpg_drawn *found = &w->request->drawn[node->random];
  *found = (mpg_drawn){.outer = batch.outer, .inner = batch.inner};
  for (int d = 0; d < drawn.ndim; d++)
    *(d < batch.axis ? &found->outer : &found->inner) *= d == batch.axis ? 1 : drawn.dims[d];
}

/* Allocates the arrays of a walk and marks the nodes that it visits. */
static mpg_status prepare_walk(walk *w) {
  const mpg_graph *graph = w->graph;
  w->values = mpg_workspace_take(&w->space, graph->num_values, sizeof *w->values);
  w->live = mpg_workspace_take(&w->space, graph->num_nodes, sizeof *w->live);
  size_t inputs = 0, outputs = 0;
  for (size_t n = 0; n < graph->num_nodes; n++) {
    if (graph->nodes[n].num_inputs > inputs) inputs = graph->nodes[n].num_inputs;
    if (graph->nodes[n].num_outputs > outputs) outputs = graph->nodes[n].num_outputs;
  }
  w->in = mpg_workspace_take(&w->space, inputs, sizeof *w->in);
  w->out = mpg_workspace_take(&w->space, outputs, sizeof *w->out);
  w->descs = mpg_workspace_take(&w->space, inputs + outputs, sizeof *w->descs);
  MPG_TRY(mpg_workspace_check(&w->space));
  mark_live(w);
  return MPG_OK;
}

/* Adds the nodes that another walk visits, so that both visit the same nodes. Simplification may
 * have left a node without users in only one of the two graphs. */
static void visit_also(walk *w, const walk *other) {
  for (size_t n = 0; n < w->graph->num_nodes; n++) w->live[n] |= other->live[n];
  mpg_graph_mark_live(w->graph, w->live);
}

static mpg_status run_walk(walk *w) {
  const mpg_graph *graph = w->graph;
  const mpg_batching_request *request = w->request;
  for (uint32_t i = 0; i < request->num_inputs; i++)
    w->values[mpg_value_index(graph, request->inputs[i])] =
        (mpg_batch){.kind = request->input_kinds[i], .outer = 1, .inner = 1};
  for (uint32_t n = 0; n < graph->num_nodes; n++)
    if (w->live[n] && graph->nodes[n].op) MPG_TRY(visit(w, n));
  for (size_t i = 0; i < graph->num_outputs; i++) MPG_TRY(check_output(w, i));
  for (uint32_t n = 0; request->drawn && n < graph->num_nodes; n++)
    if (w->live[n] && graph->nodes[n].op && graph->nodes[n].random != MPG_NO_RANDOM)
      note_drawn(w, &graph->nodes[n]);
  return MPG_OK;
}

mpg_status mpg_graph_check_batching(const mpg_graph *graph, const mpg_batching_request *request) {
  walk w = {.graph = graph, .request = request};
  mpg_status status = MPG_OK;
  MPG_GOTO(prepare_walk(&w));
  MPG_GOTO(run_walk(&w));
fail:
  mpg_workspace_free(&w.space);
  return status;
}

/* --- Two sizes -------------------------------------------------------------------------------- */

/* Returns the index of a float parameter that differs between the two traces, or -1 if none
 * differs. */
static int other_number(const mpg_node *a, const mpg_node *b, double *one, double *two) {
  const mpg_param_table *table = a->op->params;
  for (int i = 0; i < table->count && a->params && b->params; i++) {
    const mpg_param *param = &table->params[i];
    if (param->kind != MPG_PARAM_FLOAT && param->kind != MPG_PARAM_OPT_FLOAT) continue;
    /* The value is the first field of an optional parameter. */
    memcpy(one, (const char *)a->params + param->offset, sizeof *one);
    memcpy(two, (const char *)b->params + param->offset, sizeof *two);
    if (memcmp(one, two, sizeof *one)) return i;
  }
  return -1;
}

static mpg_status compare_node(const walk *a, const walk *b, uint32_t n) {
  const mpg_node *node = &a->graph->nodes[n], *other = &b->graph->nodes[n];
  double one, two;
  const char *path = mpg_scope_text(node->scope), *in = *path ? " in block " : "",
             *part = a->request->along_time ? "chunk" : "micro-batch";
  /* Ops with this flag compute positions (_arange). Their parameters may differ between the
   * traces, because the users of the positions are checked. */
  bool counts = mpg_node_flag(node, MPG_OP_COUNTS);
  for (uint32_t k = 0; k < node->num_outputs; k++) {
    const mpg_batch *x = &a->values[node->values + k], *y = &b->values[other->values + k];
    /* States are not compared, because the op that carries a state adapts its size. */
    if (x->kind == MPG_BATCH_STATE || x->kind == MPG_BATCH_PART) return MPG_OK;
    if (x->kind != MPG_BATCH_DIVIDED || y->kind != MPG_BATCH_DIVIDED ||
        (x->axis == y->axis && x->outer == y->outer && x->inner == y->inner))
      continue;
    return fail_sizes(a, b, n, k);
  }
  int number = counts ? -1 : other_number(node, other, &one, &two);
  if (number < 0) return MPG_OK;
  return mpg_fail(
      MPG_ERROR,
      "%s%s%s mixes data across the %s: its %s is %g for a %s of %lld row%s and %g for one of "
      "%lld, so it depends on the number of rows, which is larger in the whole batch. Do this "
      "outside of the pipelined block; Pipeline(check=False) uses the value of every %s",
      node->op->name, in, path, a->request->along_time ? "sequence" : "batch",
      node->op->params->params[number].name, one, part, (long long)a->request->rows,
      plural(a->request->rows), two, (long long)b->request->rows, part);
}

mpg_status mpg_graph_compare_batching(const mpg_graph *first, const mpg_batching_request *request,
                                      const mpg_graph *second, const mpg_batching_request *other) {
  walk a = {.graph = first, .request = request}, b = {.graph = second, .request = other};
  mpg_status status = MPG_OK;
  bool alike = first->num_nodes == second->num_nodes;
  for (size_t n = 0; n < first->num_nodes && alike; n++)
    alike = first->nodes[n].op == second->nodes[n].op &&
            first->nodes[n].num_outputs == second->nodes[n].num_outputs;
  MPG_GOTO(prepare_walk(&a));
  MPG_GOTO(prepare_walk(&b));
  if (request->rows == 1 && alike) {
    visit_also(&b, &a);
    MPG_GOTO(run_walk(&b));
    a.whole = &b;
    MPG_GOTO(run_walk(&a));
  } else {
    MPG_GOTO(run_walk(&a));
    MPG_GOTO(run_walk(&b));
  }
  for (uint32_t n = 0; n < first->num_nodes && alike; n++)
    if (a.live[n] && b.live[n] && first->nodes[n].op) MPG_GOTO(compare_node(&a, &b, n));
fail:
  mpg_workspace_free(&a.space);
  mpg_workspace_free(&b.space);
  return status;
}

mpg_status mpg_graph_compare_draws(const mpg_graph *graph, const mpg_graph *second,
                                   mpg_drawn *drawn, uint32_t num_drawn) {
  uint32_t count = graph->num_random;
  MPG_ASSERT(count <= num_drawn);
  if (count != second->num_random) return MPG_OK;
  const mpg_node **others = mpg_calloc((size_t)count + 1, sizeof *others);
  if (!others) return mpg_out_of_host_memory(count * sizeof *others);
  for (size_t n = 0; n < second->num_nodes; n++)
    if (second->nodes[n].op && second->nodes[n].random != MPG_NO_RANDOM)
      others[second->nodes[n].random] = &second->nodes[n];
  for (size_t n = 0; n < graph->num_nodes; n++) {
    const mpg_node *node = &graph->nodes[n];
    if (!node->op || node->random == MPG_NO_RANDOM) continue;
    const mpg_node *other = others[node->random];
    if (!other || other->op != node->op) continue;
    mpg_shape one = drawn_shape(graph, node), two = drawn_shape(second, other);
    if (mpg_shape_equal(&one, &two)) drawn[node->random] = (mpg_drawn){.rowless = true};
  }
  mpg_free(others);
  return MPG_OK;
}
