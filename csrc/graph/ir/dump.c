/* Prints graphs and plans, for MPGLUON_DUMP. */
#include <stdio.h>
#include <stdlib.h>

#include "graph/schedule/plan.h"
#include "graph/gradient/recompute.h"

static void dump_values(const mpg_graph *graph, const mpg_node *node, mpg_text *text) {
  char shape[MPG_SHAPE_TEXT_SIZE];
  for (uint32_t i = 0; i < node->num_outputs; i++) {
    const mpg_graph_value *value = &graph->values[node->values + i];
    mpg_text_append(text, "%s%s %s %s", i ? "; " : "", mpg_dtype_name(value->desc.dtype),
                    mpg_shape_text(&value->desc.shape, shape, sizeof shape),
                    mpg_device_id_text(value->device).text);
  }
}

static void dump_name(mpg_value value, mpg_text *text) {
  if (!mpg_has_value(value))
    mpg_text_append(text, "-");
  else if (value.output)
    mpg_text_append(text, "%%%u.%u", value.node, value.output);
  else
    mpg_text_append(text, "%%%u", value.node);
}

static void dump_params(const mpg_node *node, mpg_text *text) {
  bool first = true;
  for (int i = 0; node->params && i < node->op->params->count; i++) {
    mpg_text value = {0};
    mpg_params_get_text(node->op->params, node->params, i, &value);
    const char *default_text = node->op->params->params[i].default_text;
    text->failed |= value.failed;
    if (!(default_text && __builtin_strcmp(mpg_text_string(&value), default_text) == 0)) {
      mpg_text_append(text, "%s%s=%s", first ? " {" : ", ", node->op->params->params[i].name,
                      mpg_text_string(&value));
      first = false;
    }
    mpg_text_free(&value);
  }
  if (!first) mpg_text_append(text, "}");
}

void mpg_graph_dump(const mpg_graph *graph, mpg_text *text) {
  for (size_t n = 0; n < graph->num_nodes; n++) {
    const mpg_node *node = &graph->nodes[n];
    mpg_text_append(text, "%%%zu = ", n);
    if (mpg_node_is_input(node)) {
      mpg_text_append(text, "input");
    } else {
      mpg_text_append(text, "%s(", node->op ? node->op->name : "call");
      const mpg_value *inputs = mpg_node_inputs(graph, node);
      for (uint32_t i = 0; i < node->num_inputs; i++) {
        if (i) mpg_text_append(text, ", ");
        dump_name(inputs[i], text);
      }
      mpg_text_append(text, ")");
      if (node->op) dump_params(node, text);
    }
    mpg_text_append(text, " : ");
    dump_values(graph, node, text);
    if (node->phase == MPG_PHASE_BACKWARD)
      mpg_text_append(text, node->recomputes ? " recomputed" : " backward");
    else if (node->recompute_region)
      mpg_text_append(text,
                      node->recompute_region == MPG_RECOMPUTE_ANYWHERE ? " region=*" : " region=%u",
                      node->recompute_region);
    if (node->phase == MPG_PHASE_FORWARD && node->offload.type)
      mpg_text_append(text, " offload=%s", mpg_device_id_text(node->offload).text);
    if (node->phase == MPG_PHASE_INVARIANT) mpg_text_append(text, " invariants");
    if (node->random != MPG_NO_RANDOM) mpg_text_append(text, " random=%u", node->random);
    if (node->scope) mpg_text_append(text, " @%s", mpg_scope_text(node->scope));
    mpg_text_append(text, "\n");
  }
  mpg_text_append(text, "return");
  for (size_t i = 0; i < graph->num_outputs; i++) {
    mpg_text_append(text, i ? ", " : " ");
    dump_name(graph->outputs[i], text);
  }
  mpg_text_append(text, "\n");
}

static void dump_location(const mpg_plan *plan, uint32_t value, mpg_text *text) {
  mpg_location location = plan->locations[value];
  if (location.base == MPG_NO_BASE) {
    mpg_text_append(text, "nowhere");
  } else if (location.base < plan->num_externals) {
    mpg_text_append(text, "array %u", location.base);
  } else {
    uint32_t number = location.base - plan->num_externals;
    mpg_text_append(text, "%s %u+%zu",
                    plan->blocks[number].kind == MPG_BLOCK_LANE ? "lane" : "block", number,
                    location.offset);
  }
}

static void dump_plan(const mpg_graph *graph, const mpg_order *order, const mpg_plan *plan,
                      mpg_text *text) {
  for (size_t k = 0; k < order->count; k++) {
    const mpg_node *node = &graph->nodes[order->nodes[k]];
    mpg_device_id device = mpg_node_runs_on(graph, node);
    mpg_text_append(text, "%s %%%u %s:", mpg_device_id_text(device).text, order->nodes[k],
                    node->op ? node->op->name : "call");
    for (uint32_t i = 0; i < node->num_outputs; i++) {
      mpg_text_append(text, i ? ", " : " ");
      dump_location(plan, node->values + i, text);
    }
    mpg_text_append(text, "\n");
  }
  for (uint32_t i = 0; i < plan->num_blocks; i++) {
    mpg_device_id device = plan->devices[plan->blocks[i].device];
    mpg_text_append(text, "%s %u: %zu bytes on %s\n",
                    plan->blocks[i].kind == MPG_BLOCK_LANE ? "lane" : "block", i,
                    plan->blocks[i].size, mpg_device_id_text(device).text);
  }
}

void mpg_dump_pass(const char *pass, const mpg_graph *graph, const mpg_order *order,
                   const mpg_plan *plan) {
  const char *path = getenv("MPGLUON_DUMP");
  if (!path || !*path) return;
  mpg_text text = {0};
  mpg_text_append(&text, "== %s\n", pass);
  if (plan)
    dump_plan(graph, order, plan, &text);
  else
    mpg_graph_dump(graph, &text);
  FILE *file = text.failed ? NULL : fopen(path, "a");
  if (file) {
    fputs(mpg_text_string(&text), file);
    fclose(file);
  }
  mpg_text_free(&text);
}
