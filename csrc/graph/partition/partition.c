/* The partitioning pass. */
#include "graph/partition/partition.h"

#include <string.h>

#include "graph/ir/analysis.h"

/* Returns the mesh that a node names, or NULL. */
static const char *named_mesh(const mpg_node *node) {
  if (!mpg_node_annotates(node)) return NULL;
  const char *text = ((const mpg_sharded_params *)node->params)->mesh;
  return text && *text ? text : NULL;
}

/* Annotations have no effect unless one of them names a mesh. */
bool mpg_graph_names_mesh(const mpg_graph *graph) {
  for (size_t n = 0; n < graph->num_nodes; n++)
    if (named_mesh(&graph->nodes[n])) return true;
  return false;
}

static mpg_status add_mesh(mpg_partitioning *p, const mpg_mesh *mesh) {
  MPG_TRY(mpg_grow((void **)&p->meshes, &p->meshes_capacity, (size_t)p->num_meshes + 1,
                   sizeof *p->meshes));
  for (int i = 0; i < p->num_meshes; i++)
    if (mpg_device_id_equal(p->meshes[i].devices[0], mesh->devices[0]))
      return mpg_fail(MPG_ERROR,
                      "the meshes '%s' and '%s' of one network start on the same "
                      "device; use one mesh for both annotations",
                      p->meshes[i].text, mesh->text);
  p->meshes[p->num_meshes++] = *mesh;
  return MPG_OK;
}

/* Parses the meshes that annotations name. Each pipeline stage has a mesh. */
static mpg_status find_meshes(mpg_partitioning *p) {
  for (size_t n = 0; n < p->graph->num_nodes; n++) {
    const char *text = named_mesh(&p->graph->nodes[n]);
    int known = 0;
    while (known < p->num_meshes && p->meshes[known].text != text) known++;
    if (!text || known < p->num_meshes) continue;
    mpg_mesh mesh;
    MPG_TRY(mpg_mesh_parse(text, &p->arena, &mesh));
    for (int stages = mpg_mesh_take_stages(&mesh); stages > 0; stages--) {
      MPG_TRY(add_mesh(p, &mesh));
      mesh.devices += mesh.num_devices;
    }
  }
  return MPG_OK;
}

static void find_homes(mpg_partitioning *p) {
  for (size_t v = 0; v < p->graph->num_values; v++)
    for (int i = 0; i < p->num_meshes; i++)
      if (mpg_device_id_equal(p->graph->values[v].device, p->meshes[i].devices[0]))
        p->mesh_of[v] = &p->meshes[i];
}

/* Inputs and effects are kept even if nothing depends on them. */
static void find_live(mpg_partitioning *p) {
  const mpg_graph *graph = p->graph;
  for (size_t i = 0; i < graph->num_outputs; i++) p->live[graph->outputs[i].node] = true;
  for (size_t n = 0; n < graph->num_nodes; n++)
    p->live[n] |= mpg_node_is_input(&graph->nodes[n]) || mpg_node_mutates(&graph->nodes[n]) ||
                  mpg_node_starts(&graph->nodes[n]);
  mpg_graph_mark_live(graph, p->live);
}

static void find_wants(mpg_partitioning *p) {
  const mpg_partition_request *request = p->request;
  const mpg_graph *graph = p->graph;
  for (size_t i = 0; i < request->num_inputs; i++)
    p->wants[mpg_value_index(graph, request->inputs[i])] = request->wanted[i];
  for (size_t n = 0; n < graph->num_nodes; n++) {
    const mpg_node *node = &graph->nodes[n];
    bool wants = false;
    for (uint32_t i = 0; i < node->num_inputs; i++) {
      mpg_value input = mpg_node_inputs(graph, node)[i];
      wants |= mpg_has_value(input) && p->wants[mpg_value_index(graph, input)];
    }
    wants &= !mpg_node_flag(node, MPG_OP_DETACHES);
    for (uint32_t k = 0; wants && k < node->num_outputs; k++)
      p->wants[node->values + k] = mpg_dtype_is_float(graph->values[node->values + k].desc.dtype);
  }
}

/* Returns why a divided node does not have the bits of the undivided one, in the forward pass or in
 * the gradients, or NULL. */
static const char *inexact(const mpg_partitioning *p, uint32_t n, const mpg_factor *factor) {
  const mpg_node *node = &p->graph->nodes[n];
  if (factor->exchanged && mpg_part_mesh(p, node)->ring)
    return "merges sums over parts of the keys (context='ring') along";
  const mpg_value *inputs = mpg_node_inputs(p->graph, node);
  if (mpg_part_composes(p, node)) return "computes its statistics in another order for parts of";
  if (factor->kind == MPG_FACTOR_SUM) return "adds up";
  for (uint32_t i = 0; i < node->num_inputs; i++)
    if (factor->digits[i].axis < 0 && p->wants[mpg_value_index(p->graph, inputs[i])])
      return "has a gradient that adds up";
  if (!mpg_sharding_keeps_order(&p->nodes[n].rule, factor)) return "orders its sums by the size of";
  return NULL;
}

/* Fails if an exact mesh, or an exact program, divides a node whose bits would change. */
static mpg_status check_exact(const mpg_partitioning *p, uint32_t n) {
  const mpg_node *node = &p->graph->nodes[n];
  const mpg_mesh *mesh = mpg_part_mesh(p, node);
  const mpg_part_node *part = &p->nodes[n];
  if (!mesh || !part->divided || !(mesh->exact || p->request->exact)) return MPG_OK;
  for (int m = 0; m < mesh->num_axes; m++) {
    if (part->cuts[m].factor < 0) continue;
    const char *reason = inexact(p, n, &part->rule.factors[part->cuts[m].factor]);
    if (!reason) continue;
    const char *path = mpg_scope_text(node->scope);
    uint32_t why = 0;
    for (uint32_t k = 0; !why && k < node->num_outputs; k++)
      why = p->values[node->values + k].why[m];
    for (uint32_t i = 0; !why && i < node->num_inputs; i++)
      why = p->values[mpg_value_index(p->graph, mpg_node_inputs(p->graph, node)[i])].why[m];
    const mpg_sharded_params *annotation = why ? p->graph->nodes[why - 1].params : NULL;
    const char *cause = why ? mpg_scope_text(p->graph->nodes[why - 1].scope) : "";
    return mpg_fail(MPG_ERROR,
                    "%s: %s%s%s %s a dimension that the mesh axis '%s' divides, which changes "
                    "bits. The cause is the annotation '%s'%s%s of Mesh.partition; remove it, or "
                    "use %s",
                    mesh->exact ? "partition='exact'" : "exact=True", node->op->name,
                    *path ? " in block " : "", path, reason, mesh->axes[m].name,
                    annotation ? annotation->axes : "", *cause ? " in block " : "", cause,
                    mesh->exact ? "partition='fast'" : "exact=False (hybridize, TrainStep)");
  }
  return MPG_OK;
}

/* Divides the graph into `target`. If *again is set, `target` is not divided yet, but has ops that
 * can be divided. */
static mpg_status run(mpg_partitioning *p, mpg_graph *target, bool *again) {
  MPG_TRY(find_meshes(p));
  find_homes(p);
  find_live(p);
  find_wants(p);
  MPG_TRY(mpg_partition_propagate(p));
  for (uint32_t n = 0; n < p->graph->num_nodes; n++) MPG_TRY(check_exact(p, n));
  MPG_TRY(mpg_partition_compose(p, target, again));
  return *again ? MPG_OK : mpg_partition_expand(p, target);
}

static mpg_status partition_once(const mpg_partition_request *request, mpg_partition_result *result,
                                 bool *again) {
  mpg_graph *graph = request->graph, target;
  mpg_partitioning p = {.request = request, .graph = graph};
  mpg_status status = MPG_OK;
  mpg_graph_init(&target);
  mpg_arena_init(&p.arena);
  p.mesh_of = mpg_calloc(graph->num_values + 1, sizeof *p.mesh_of);
  p.nodes = mpg_calloc(graph->num_nodes + 1, sizeof *p.nodes);
  p.values = mpg_calloc(graph->num_values + 1, sizeof *p.values);
  p.live = mpg_calloc(graph->num_nodes + 1, sizeof *p.live);
  p.wants = mpg_calloc(graph->num_values + 1, sizeof *p.wants);
  if (!p.mesh_of || !p.nodes || !p.values || !p.live || !p.wants)
    MPG_GOTO(mpg_out_of_host_memory(graph->num_values * sizeof *p.values));
  MPG_GOTO(run(&p, &target, again));
  for (size_t i = 0; i < request->num_inputs; i++)
    request->inputs[i] = p.values[mpg_value_index(graph, request->inputs[i])].pieces[0];
  for (int i = 0; i < p.num_meshes; i++) result->trees |= p.meshes[i].tree;
  mpg_graph former = *graph;
  *graph = target;
  target = former;
fail:
  mpg_graph_free(&target);
  mpg_free(p.meshes);
  mpg_free(p.mesh_of);
  mpg_free(p.nodes);
  mpg_free(p.values);
  mpg_free(p.live);
  mpg_free(p.wants);
  mpg_arena_free(&p.arena);
  return status;
}

mpg_status mpg_graph_partition(const mpg_partition_request *request, mpg_partition_result *result) {
  *result = (mpg_partition_result){.changed = mpg_graph_names_mesh(request->graph)};
  for (bool again = result->changed; again;) MPG_TRY(partition_once(request, result, &again));
  return MPG_OK;
}
