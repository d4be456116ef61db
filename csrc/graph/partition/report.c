/* The report of a partition: how values are divided, and which transfers move them. */
#include "graph/partition/expand.h"

/* Appends the fields that identify a value of the source: op, block path and shape. */
static void report_value(mpg_text *text, const mpg_graph *graph, uint32_t node, uint32_t value) {
  const mpg_node *source = &graph->nodes[node];
  const mpg_shape *shape = &graph->values[value].desc.shape;
  char buffer[MPG_SHAPE_TEXT_SIZE];
  mpg_text_append(text, "\t%s\t%s\t%s", source->op ? source->op->name : "input",
                  mpg_scope_text(source->scope), mpg_shape_text(shape, buffer, sizeof buffer));
}

static uint32_t node_of(const mpg_graph *graph, uint32_t value) {
  uint32_t low = 0, high = (uint32_t)graph->num_nodes;
  while (high - low > 1) {
    uint32_t middle = low + (high - low) / 2;
    *(graph->nodes[middle].values <= value ? &low : &high) = middle;
  }
  return low;
}

void mpg_expand_report(mpg_expansion *e, const char *kind, uint32_t value, size_t bytes) {
  mpg_text *text = e->p->request->report;
  if (!text || !bytes) return;
  mpg_text_append(text, "move\t%s", kind);
  report_value(text, e->p->graph, node_of(e->p->graph, value), value);
  mpg_text_append(text, "\t%zu\n", bytes);
}

void mpg_expand_report_layout(mpg_expansion *e, uint32_t node, uint32_t value) {
  mpg_text *text = e->p->request->report;
  const mpg_part_value *own = &e->p->values[value];
  const mpg_mesh *mesh = e->p->mesh_of[value];
  if (!text || !mesh || !mpg_layout_divided(&own->layout)) return;
  mpg_text_append(text, "cut");
  report_value(text, e->p->graph, node, value);
  for (int m = 0; m < mesh->num_axes; m++) {
    const mpg_cut *cut = &own->layout.cuts[m];
    if (!cut->on) continue;
    const mpg_node *why = own->why[m] ? &e->p->graph->nodes[own->why[m] - 1] : NULL;
    mpg_text_append(text, "\t%d %s %s %s", cut->digit.axis, mesh->axes[m].name,
                    why ? ((const mpg_sharded_params *)why->params)->axes : "",
                    why ? mpg_scope_text(why->scope) : "");
  }
  mpg_text_append(text, "\n");
}
