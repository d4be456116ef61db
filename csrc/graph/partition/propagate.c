/* Propagates annotations through a graph: determines the layout of each value, and along which
 * factors each node is divided.
 *
 * Sweeps forward and backward over the nodes until nothing changes. A node that is not divided
 * along an axis of the mesh takes the first of its operands that is cut along this axis, and
 * divides the operand's factor. Its other operands then get the cut of this factor, unless they
 * have a cut along the axis already; where layouts differ, expand.c moves data. */
#include <stdlib.h>
#include <string.h>

#include "base/workspace.h"
#include "graph/partition/partition.h"

/* --- Annotations ------------------------------------------------------------------------------ */

static mpg_status annotation_fails(const mpg_partitioning *p, uint32_t n, const char *reason) {
  const mpg_node *node = &p->graph->nodes[n];
  const mpg_sharded_params *params = node->params;
  char shape[MPG_SHAPE_TEXT_SIZE];
  const char *path = mpg_scope_text(node->scope);
  return mpg_fail(MPG_ERROR, "sharded%s%s: axes '%s' of an array of shape %s: %s",
                  *path ? " in block " : "", path, params->axes,
                  mpg_shape_text(&p->graph->values[node->values].desc.shape, shape, sizeof shape),
                  reason);
}

/* Returns the smallest number of equal parts that can be dealt out to the devices along an axis of
 * the mesh by their shares. */
static int64_t even_parts(const mpg_mesh_axis *axis) {
  int64_t common = 0;
  for (int k = 0; axis->weights && k < axis->size; k++)
    common = mpg_sharding_gcd(axis->weights[k], common);
  return axis->weights ? axis->total / common : axis->size;
}

/* Parses "model", "model:3" (three equal blocks are divided) or "model:3:64" (in multiples of 64).
 * Divides `room`, the digit of the dimension that is not divided yet. A value
 * with too few indices for the devices is not divided along the axis, because sizes of batches
 * vary. */
static mpg_status read_axis(mpg_partitioning *p, uint32_t n, const mpg_mesh *mesh,
                            const char *begin, const char *end, mpg_digit *room) {
  char word[128], *more = NULL;
  int64_t blocks = 1, unit = 1;
  if (end - begin >= (int)sizeof word) return annotation_fails(p, n, "a name is too long");
  memcpy(word, begin, (size_t)(end - begin));
  word[end - begin] = 0;
  char *colon = strchr(word, ':');
  if (colon) {
    *colon = 0;
    blocks = strtoll(colon + 1, &more, 10);
    if (*more == ':') unit = strtoll(more + 1, &more, 10);
    if (*more || blocks < 1 || unit < 1)
      return annotation_fails(p, n, "expected 'name:blocks:unit' with positive integers");
  }
  int m = mpg_mesh_find(mesh, word, strlen(word));
  if (m < 0) return annotation_fails(p, n, "the mesh has no axis of this name");
  uint32_t value = p->graph->nodes[n].values;
  int64_t size = p->graph->values[value].desc.shape.dims[room->axis] / room->outer / room->inner;
  mpg_cut *cut = &p->values[value].layout.cuts[m];
  if (cut->on) return annotation_fails(p, n, "an axis of the mesh is named twice");
  if (size % blocks || size / blocks % unit)
    return annotation_fails(p, n, "the size is not a multiple of blocks * unit");
  int64_t count = size / blocks / unit, parts = even_parts(&mesh->axes[m]);
  if (!mpg_mesh_divides(mesh, m, count)) {
    if (blocks == 1 && unit == 1) return MPG_OK;
    return annotation_fails(p, n, "the size is too small for the devices along the axis");
  }
  mpg_digit digit = {room->axis, room->outer * blocks, room->inner * unit};
  bool even = count % parts == 0;
  if (even) {
    digit.inner *= count / parts;
    count = parts;
  }
  /* The next axis divides the indices of an even part. Uneven parts leave no common digit. */
  *room = even ? (mpg_digit){room->axis, digit.outer * count, room->inner * unit}
               : (mpg_digit){room->axis, room->outer * size, room->inner};
  *cut = (mpg_cut){true, digit, count};
  p->values[value].why[m] = n + 1;
  return MPG_OK;
}

static mpg_status annotate(mpg_partitioning *p, uint32_t n) {
  const mpg_node *node = &p->graph->nodes[n];
  const mpg_sharded_params *params = node->params;
  const mpg_mesh *mesh = p->mesh_of[node->values];
  int ndim = p->graph->values[node->values].desc.shape.ndim, dim = 0;
  if (!mesh || (params->mesh && *params->mesh && params->mesh != mesh->text))
    return annotation_fails(p, n,
                            "the array is not on the first device of its mesh, which computes all "
                            "that is not divided; move it with as_in_context");
  p->values[node->values].fixed = true;
  p->values[node->values].stored = params->stored;
  for (const char *at = params->axes; *at; dim++) {
    const char *end = strchr(at, ',');
    if (!end) end = at + strlen(at);
    if (dim >= ndim) return annotation_fails(p, n, "there are more names than dimensions");
    /* Several axes of the mesh may divide one dimension, the first one the slowest. */
    mpg_digit room = {dim, 1, 1};
    for (const char *name = at; name < end;) {
      const char *plus = memchr(name, '+', (size_t)(end - name));
      if (!plus) plus = end;
      MPG_TRY(read_axis(p, n, mesh, name, plus, &room));
      name = plus + (plus < end);
    }
    at = end + (*end == ',');
  }
  return MPG_OK;
}

/* --- Rules ------------------------------------------------------------------------------------ */

static mpg_value operand(const mpg_partitioning *p, uint32_t n, int index) {
  const mpg_node *node = &p->graph->nodes[n];
  if (index < (int)node->num_inputs) return mpg_node_inputs(p->graph, node)[index];
  return (mpg_value){n, (uint32_t)index - node->num_inputs};
}

static mpg_part_value *part_of(const mpg_partitioning *p, mpg_value value) {
  return &p->values[mpg_value_index(p->graph, value)];
}

/* Finds the digit of factor `f` that a cut of an operand divides. */
static bool matches(const mpg_factor *factor, int index, const mpg_cut *cut, mpg_node_cut *found) {
  const mpg_digit *own = &factor->digits[index];
  if (own->axis != cut->digit.axis || cut->digit.outer % own->outer) return false;
  /* Makes the indices of the cut coarser until each consists of whole indices of the factor. */
  int64_t times = own->inner / mpg_sharding_gcd(cut->digit.inner, own->inner);
  if (cut->size % times) return false;
  *found = (mpg_node_cut){.outer = cut->digit.outer / own->outer,
                          .size = cut->size / times,
                          .inner = cut->digit.inner * times / own->inner};
  return found->outer * found->size * found->inner == factor->size;
}

/* True if dividing a factor gives the parts that the other axes of the mesh leave room for. */
static bool is_apart(const mpg_part_node *part, const mpg_node_cut *cut) {
  for (int m = 0; m < MPG_MESH_AXES; m++) {
    const mpg_node_cut *other = &part->cuts[m];
    if (other->factor != cut->factor) continue;
    if (other->inner % (cut->size * cut->inner) && cut->inner % (other->size * other->inner))
      return false;
  }
  return true;
}

/* True if the op can be called on the parts at the first place: some ops have parameters that name
 * sizes of the whole arrays. */
static mpg_status can_be_called(mpg_partitioning *p, const mpg_mesh *mesh, uint32_t n, bool *can) {
  const mpg_part_node *part = &p->nodes[n];
  const mpg_sharding *rule = &part->rule;
  size_t count = (size_t)rule->num_inputs + (size_t)rule->num_outputs;
  mpg_workspace space = {0};
  mpg_desc *descs = mpg_workspace_take(&space, count + 1, sizeof *descs);
  mpg_shape *begins = mpg_workspace_take(&space, count + 1, sizeof *begins);
  char *params = mpg_workspace_take(&space, rule->op->params->size + 1, 1);
  mpg_status status = mpg_workspace_check(&space);
  for (size_t i = 0; status == MPG_OK && i < count; i++) {
    mpg_layout layout = {{{0}}};
    for (int m = 0; m < mesh->num_axes; m++) layout.cuts[m] = mpg_part_cut(part, m, (int)i);
    const mpg_coordinates place = {{0}};
    descs[i] = rule->inputs[i]; /* the outputs follow the inputs */
    begins[i] = mpg_layout_begin(mesh, &layout, &place, descs[i].shape.ndim);
    descs[i].shape = mpg_layout_shape(mesh, &layout, &place, &descs[i].shape);
  }
  if (status == MPG_OK)
    *can = mpg_sharding_localize(rule, descs, descs + rule->num_inputs, begins, params) == MPG_OK;
  mpg_workspace_free(&space);
  return status;
}

mpg_digit mpg_part_drawn(const mpg_part_node *part, const mpg_factor *factor, mpg_shape *drawn) {
  const mpg_sharding *rule = &part->rule;
  const mpg_shape *last = &rule->outputs[rule->num_outputs - 1].shape;
  *drawn = mpg_op_drawn_shape(rule->op, rule->params,
                              rule->num_inputs ? &rule->inputs[0].shape : last, last);
  bool like_output = factor->drawn.axis < 0 && mpg_shape_equal(drawn, &rule->outputs[0].shape);
  return like_output ? factor->digits[rule->num_inputs] : factor->drawn;
}

/* A random op is divided along one axis of the mesh at most, because a random key describes a part
 * along one axis. */
static bool may_count(const mpg_partitioning *p, uint32_t n, const mpg_factor *factor) {
  const mpg_part_node *part = &p->nodes[n];
  bool counts = false;
  for (int m = 0; m < MPG_MESH_AXES; m++)
    if (part->cuts[m].factor >= 0) counts |= part->rule.factors[part->cuts[m].factor].counts;
  if (!factor->counts) return !counts;
  mpg_shape drawn;
  return !part->divided && !p->request->micro_batches &&
         (mpg_node_flag(&p->graph->nodes[n], MPG_OP_DRAWS_ROWS) || factor->drawn.axis >= 0) &&
         mpg_part_drawn(part, factor, &drawn).axis >= 0;
}

/* True if the parts of a factor of indices are runs: the op can look up indices in these parts. */
static bool may_look_up(const mpg_part_node *part, const mpg_node_cut *cut) {
  if (part->rule.factors[cut->factor].lookup < 0) return true;
  for (int m = 0; m < MPG_MESH_AXES; m++)
    if (part->cuts[m].factor == cut->factor) return false;
  return cut->outer == 1;
}

/* --- Sweeps ----------------------------------------------------------------------------------- */

/* Divides a node along axis m of the mesh as a cut of one of its operands requires, if the op's
 * rule allows it. */
static mpg_status adopt(mpg_partitioning *p, const mpg_mesh *mesh, uint32_t n, int m, int index,
                        const mpg_cut *cut, bool *adopted) {
  mpg_part_node *part = &p->nodes[n];
  for (int f = 0; f < part->rule.num_factors; f++) {
    mpg_node_cut found = {0};
    const mpg_factor *factor = &part->rule.factors[f];
    if (!matches(factor, index, cut, &found) || !may_count(p, n, factor)) continue;
    found.factor = f;
    if (!mpg_mesh_divides(mesh, m, found.size) || !is_apart(part, &found) ||
        !may_look_up(part, &found))
      continue;
    const mpg_part_node former = *part;
    part->cuts[m] = found;
    part->divided = true;
    MPG_TRY(can_be_called(p, mesh, n, adopted));
    if (*adopted) return MPG_OK;
    *part = former;
  }
  return MPG_OK;
}

/* True if the node writes an array in this call. */
static bool writes(const mpg_node *node) {
  return mpg_node_mutates(node) &&
         (!mpg_node_flag(node, MPG_OP_STATISTICS) ||
          mpg_op_only_updates_states(node->op, node->params, node->train));
}

/* True if two meshes differ in their devices only, like the meshes of two pipeline stages. */
static bool alike(const mpg_mesh *a, const mpg_mesh *b) {
  if (a == b) return true;
  if (!a || !b || a->num_axes != b->num_axes) return false;
  return strcspn(a->text, ";") == strcspn(b->text, ";") &&
         !strncmp(a->text, b->text, strcspn(a->text, ";"));
}

/* A copy from a device without a mesh, or from another kind of mesh, is not divided: its input
 * cannot have the cut of its output. */
static bool may_divide(const mpg_partitioning *p, uint32_t n, const mpg_mesh *mesh) {
  const mpg_node *node = &p->graph->nodes[n];
  if (!node->op || mpg_node_spans(node) || (writes(node) && !mpg_part_composes(p, node)) ||
      mpg_node_flag(node, MPG_OP_RENDEZVOUS | MPG_OP_DYNAMIC) || mpg_node_annotates(node))
    return false;
  for (uint32_t i = 0; i < node->num_inputs; i++) {
    mpg_value input = operand(p, n, (int)i);
    if (!mpg_has_value(input) || !alike(p->mesh_of[mpg_value_index(p->graph, input)], mesh))
      return false;
  }
  return true;
}

/* Cuts a value along axis m of the mesh, unless it is annotated, has a cut along this axis, or the
 * cut overlaps another one. Inputs of the graph are not cut, because they are whole arrays. Returns
 * true if the layout changed. */
static bool cut_value(const mpg_partitioning *p, mpg_value value, int m, const mpg_cut *cut,
                      uint32_t why) {
  mpg_part_value *own = part_of(p, value);
  if (!cut->on || own->fixed || own->layout.cuts[m].on ||
      mpg_node_is_input(&p->graph->nodes[value.node]) || !mpg_layout_apart(&own->layout, cut))
    return false;
  own->layout.cuts[m] = *cut;
  own->why[m] = why;
  return true;
}

/* Gives the operands of a divided node its cut along axis m. */
static void spread(const mpg_partitioning *p, uint32_t n, int m, uint32_t why) {
  const mpg_part_node *part = &p->nodes[n];
  for (int i = 0; i < part->rule.num_inputs + part->rule.num_outputs; i++) {
    mpg_cut cut = mpg_part_cut(part, m, i);
    cut_value(p, operand(p, n, i), m, &cut, why);
  }
}

/* Gives the array that is annotated the cuts of the annotation. Returns true if its layout
 * changed. */
static bool spread_annotation(const mpg_partitioning *p, uint32_t n) {
  const mpg_part_value *from = part_of(p, operand(p, n, 1));
  bool changed = false;
  for (int m = 0; m < MPG_MESH_AXES && !from->stored; m++)
    changed |= cut_value(p, operand(p, n, 0), m, &from->layout.cuts[m], from->why[m]);
  return changed;
}

static mpg_status visit(mpg_partitioning *p, uint32_t n, bool forward, bool *changed) {
  const mpg_node *node = &p->graph->nodes[n];
  const mpg_mesh *mesh = mpg_part_mesh(p, node);
  if (!p->live[n] || !mesh) return MPG_OK;
  if (!forward && mpg_node_annotates(node)) *changed |= spread_annotation(p, n);
  if (!may_divide(p, n, mesh)) return MPG_OK;
  int first = forward ? 0 : (int)node->num_inputs,
      last = (int)(forward ? node->num_inputs : node->num_inputs + node->num_outputs);
  for (int m = 0; m < mesh->num_axes; m++) {
    if (p->nodes[n].known && p->nodes[n].cuts[m].factor >= 0) continue;
    for (int i = first; i < last; i++) {
      mpg_value value = operand(p, n, i);
      const mpg_part_value *own = part_of(p, value);
      if (!own->layout.cuts[m].on || own->stored) continue;
      MPG_TRY(mpg_part_find_rule(p, n));
      bool adopted = false;
      MPG_TRY(adopt(p, mesh, n, m, i, &own->layout.cuts[m], &adopted));
      if (!adopted) continue;
      spread(p, n, m, own->why[m]);
      *changed = true;
      break;
    }
  }
  return MPG_OK;
}

/* Gives the tokens and the results of a mixture of experts each other's cuts, unless they divide
 * units: along the axis of the experts, and along all axes if parts can be routed on their own. */
static void link_tokens(const mpg_partitioning *p, uint32_t n, bool *changed) {
  int axis = mpg_experts_axis(p, n);
  if (axis < 0 || !mpg_has_value(mpg_experts_tokens(p, n))) return;
  const mpg_value tokens = mpg_experts_tokens(p, n), result = {n, 0};
  int units = mpg_graph_at(p->graph, result)->desc.shape.ndim - 1;
  for (int i = 0; i < 2 * MPG_MESH_AXES; i++) {
    int m = i / 2;
    const mpg_part_value *own = part_of(p, i % 2 ? result : tokens);
    if ((m == axis || mpg_experts_group(p, n)) && own->layout.cuts[m].digit.axis < units &&
        !own->stored)
      *changed |= cut_value(p, i % 2 ? tokens : result, m, &own->layout.cuts[m], own->why[m]);
  }
}

/* True if a node writes the annotated array itself, such as a cache. Then the array is not divided,
 * because the parts are copies. */
static bool is_written(const mpg_partitioning *p, uint32_t n) {
  const mpg_graph *graph = p->graph;
  for (size_t k = n + 1; k < graph->num_nodes; k++) {
    const mpg_node *node = &graph->nodes[k];
    for (uint32_t i = 0; mpg_node_mutates(node) && i < node->num_inputs; i++)
      if (mpg_op_input_mutable(node->op, (int)i) && mpg_node_inputs(graph, node)[i].node == n)
        return true;
  }
  return false;
}

/* --- Ulysses ---------------------------------------------------------------------------------- */

static mpg_status exchange_fails(const mpg_partitioning *p, uint32_t n, const char *axis,
                                 int64_t heads) {
  const mpg_node *node = &p->graph->nodes[n];
  const char *path = mpg_scope_text(node->scope);
  return mpg_fail(MPG_ERROR,
                  "context='ulysses': %s%s%s cannot divide its %lld key heads over the devices "
                  "along the mesh axis '%s'; use Mesh.partition(..., context='gather')",
                  node->op->name, *path ? " in block " : "", path, (long long)heads, axis);
}

static bool is_cut_along_time(const mpg_part_node *part, int m) {
  int f = part->cuts[m].factor;
  return f >= 0 && part->rule.factors[f].exchanged;
}

/* Divides a node along axis m of the mesh by the factor `instead` of its factor, if possible. The
 * layouts of its operands stay, so that only this node needs them in another layout (an
 * all-to-all). */
static mpg_status exchange(mpg_partitioning *p, uint32_t n, const mpg_mesh *mesh, int m,
                           bool *can) {
  mpg_part_node *part = &p->nodes[n];
  int instead = part->rule.factors[part->cuts[m].factor].instead;
  *can = false;
  if (instead < 0) return MPG_OK;
  /* Cuts the digit that the other axes of the mesh leave. */
  int64_t size = part->rule.factors[instead].size;
  mpg_node_cut cut = {.factor = instead, .outer = 1, .size = size, .inner = 1};
  for (int k = 0; k < MPG_MESH_AXES; k++) {
    const mpg_node_cut *other = &part->cuts[k];
    if (other->factor != instead || other->inner > cut.size) continue;
    cut.outer = other->outer * other->size;
    cut.size = other->inner;
  }
  part->cuts[m] = cut;
  return mpg_mesh_divides(mesh, m, cut.size) ? can_be_called(p, mesh, n, can) : MPG_OK;
}

/* Divides the node by heads along all axes of the mesh along which it is cut along time, if
 * possible. */
static mpg_status exchange_along(mpg_partitioning *p, uint32_t n, const mpg_mesh *mesh) {
  mpg_part_node *part = &p->nodes[n];
  mpg_node_cut before[MPG_MESH_AXES];
  memcpy(before, part->cuts, sizeof before);
  for (int m = 0; m < mesh->num_axes; m++) {
    if (!is_cut_along_time(part, m)) continue;
    int heads = part->rule.factors[part->cuts[m].factor].instead;
    bool can;
    MPG_TRY(exchange(p, n, mesh, m, &can));
    if (can) continue;
    if (mesh->ulysses)
      return exchange_fails(p, n, mesh->axes[m].name,
                            heads < 0 ? 1 : part->rule.factors[heads].size);
    memcpy(part->cuts, before, sizeof before);
    return MPG_OK;
  }
  return MPG_OK;
}

/* True if queries, keys, values and results are no more bytes than keys and values for each device.
 * All-to-alls of the former then copy no more than gathers of the latter. */
static bool prefers_heads(const mpg_partitioning *p, uint32_t n, const mpg_mesh *mesh) {
  enum { QUERY, KEY, VALUE };
  const mpg_part_node *part = &p->nodes[n];
  double devices = 1, sizes[3];
  for (int m = 0; m < mesh->num_axes; m++)
    if (is_cut_along_time(part, m)) devices *= mesh->axes[m].size;
  for (int i = QUERY; i <= VALUE; i++)
    sizes[i] = (double)mpg_shape_size(&part->rule.inputs[i].shape);
  double result = (double)mpg_shape_size(&part->rule.outputs[0].shape);
  return result + sizes[QUERY] <= (devices - 1) * (sizes[KEY] + sizes[VALUE]);
}

/* Divides heads instead of time. */
static mpg_status exchange_all(mpg_partitioning *p) {
  for (uint32_t n = 0; n < p->graph->num_nodes; n++) {
    const mpg_part_node *part = &p->nodes[n];
    const mpg_mesh *mesh = mpg_part_mesh(p, &p->graph->nodes[n]);
    bool cut = false;
    if (!part->divided || !mesh) continue;
    for (int m = 0; m < mesh->num_axes; m++) cut |= is_cut_along_time(part, m);
    if (cut && (mesh->ulysses || (!mesh->gathers && !mesh->ring && prefers_heads(p, n, mesh))))
      MPG_TRY(exchange_along(p, n, mesh));
  }
  return MPG_OK;
}

mpg_status mpg_partition_propagate(mpg_partitioning *p) {
  size_t count = p->graph->num_nodes;
  for (uint32_t n = 0; n < count; n++) {
    const mpg_node *node = &p->graph->nodes[n];
    if (!p->live[n] || !mpg_node_annotates(node)) continue;
    mpg_value root = mpg_view_root(p->graph, operand(p, n, 0));
    if (mpg_node_is_input(&p->graph->nodes[root.node]) && is_written(p, n))
      p->values[node->values].fixed = true;
    else
      MPG_TRY(annotate(p, n));
  }
  MPG_TRY(mpg_experts_find(p));
  for (bool changed = true; changed;) {
    changed = false;
    for (uint32_t n = 0; n < count; n++) MPG_TRY(visit(p, n, true, &changed));
    for (uint32_t n = (uint32_t)count; n-- > 0;) MPG_TRY(visit(p, n, false, &changed));
    for (uint32_t n = 0; n < count; n++) link_tokens(p, n, &changed);
  }
  return exchange_all(p);
}
