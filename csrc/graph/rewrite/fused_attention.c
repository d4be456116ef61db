/* Recognizes scaled dot-product attention:
 *
 *   batch_dot(Dropout(softmax(batch_dot(query, key^T) [* scale] [+ mask]...)), value)
 *
 * The scale may come before or after the product, a mask may be added or applied by `where`, and
 * Dropout and mask are optional. Transposes, reshapes and splits of the inputs are not computed:
 * query, key and value are read in place as strided views (view.h). A transpose of the result is
 * not computed either: the result is written in transposed order. A mask that is known to hide the
 * keys after each row makes the attention causal. Masks must not need a gradient themselves. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "graph/rewrite/rewrite.h"
#include "graph/rewrite/view.h"

enum { QUERY, KEY, VALUE, MASK, PARTS };
enum { BATCH, HEADS, ROWS, KEYS, WIDTH, VALUE_WIDTH, SIZES };
enum { MOST_WIDTH = 1024 };
static const double hidden = -1e8; /* a score this low gets weight 0 */

typedef struct pattern {
  mpg_operand value, query, key, dropout;
  mpg_operand scores;     /* input of the softmax, before masks are added */
  mpg_operand masks[2];   /* added masks */
  const mpg_desc *masked; /* desc of the scores with masks */
  int num_masks;
  /* `causal` means that each row ignores later keys. `forever` means that the mask adds -inf, so
   * these keys have weight 0 whatever other masks do. */
  bool causal, forever;
  mpg_operand causal_mask; /* the added mask that makes the attention causal */
  bool drops;
  double scale, p;
} pattern;

/* --- Masks ------------------------------------------------------------------------------------ */

/* Skips copies and views that have a single user and keep the last two dimensions. */
static mpg_operand skip_views(const mpg_rewrite *r, mpg_operand from) {
  for (;;) {
    if (!mpg_has_value(from.value) || mpg_rewrite_users(r, from) != 1) return from;
    const mpg_node *node = mpg_rewrite_node(r, from);
    bool copy = mpg_node_flag(node, MPG_OP_COPY);
    if (!node->op || node->num_inputs != 1 || !(copy || mpg_node_is_reshape(node))) return from;
    mpg_operand input = mpg_rewrite_input(r, from, 0);
    const mpg_shape *a = &mpg_rewrite_desc(r, from)->shape, *b = &mpg_rewrite_desc(r, input)->shape;
    if (a->ndim < 2 || b->ndim < 2 || a->dims[a->ndim - 1] != b->dims[b->ndim - 1] ||
        a->dims[a->ndim - 2] != b->dims[b->ndim - 2])
      return from;
    from = input;
    from.moved |= copy;
  }
}

/* True if a mask is known to be causal: for each row it hides exactly the keys after this row. An
 * additive mask is added to the scores. With `condition`, the mask selects the scores to keep, or
 * the scores to drop if `inverted`. Sets *forever to true if an additive mask adds -inf. */
static bool hides_what_follows(mpg_rewrite *r, mpg_operand mask, const mpg_shape *scores,
                               bool condition, bool inverted, bool *forever) {
  mask = mpg_rewrite_skip_copies(r, mask);
  while (condition && mpg_has_value(mask.value)) { /* skips broadcasts to the scores' shape */
    mpg_operand found;
    if (!mpg_rewrite_match(r, mask, MPG_OP_broadcast_to, MPG_SHARED, &found) &&
        !mpg_rewrite_match(r, mask, MPG_OP_broadcast_like, MPG_SHARED, &found) &&
        !mpg_rewrite_match(r, mask, MPG_OP_broadcast_axis, MPG_SHARED, &found))
      break;
    const mpg_shape *from = &mpg_rewrite_desc(r, mpg_rewrite_input(r, found, 0))->shape,
                    *to = &mpg_rewrite_desc(r, found)->shape;
    if (from->ndim < 2 || from->dims[from->ndim - 1] != to->dims[to->ndim - 1] ||
        from->dims[from->ndim - 2] != to->dims[to->ndim - 2])
      break;
    mask = mpg_rewrite_skip_copies(r, mpg_rewrite_input(r, found, 0));
  }
  if (!mpg_has_value(mask.value)) return false;
  const mpg_shape *shape = &mpg_rewrite_desc(r, mask)->shape;
  int64_t n = shape->ndim < 2 ? 0 : shape->dims[shape->ndim - 1], size = mpg_shape_size(shape);
  if (n < 2 || shape->dims[shape->ndim - 2] != n || scores->dims[scores->ndim - 1] != n ||
      scores->dims[scores->ndim - 2] != n)
    return false;
  int how = condition + inverted;
  if (mpg_value_equal(mask.value, r->looked_at) && how == r->looked_how) {
    if (!condition) *forever = r->hides_forever;
    return r->hides;
  }
  double *values = mpg_rewrite_evaluate(r, mask);
  bool good = values, always = true;
  for (int64_t begin = 0; good && begin < size; begin += n) {
    const double *row = values + begin;
    int64_t seen = begin / n % n + 1; /* keys up to the row's own */
    for (int64_t k = 0; k < seen; k++) good &= condition ? (row[k] != 0) != inverted : row[k] == 0;
    for (int64_t k = seen; k < n; k++) {
      good &= condition ? (row[k] != 0) == inverted : row[k] <= hidden;
      always &= row[k] == -INFINITY;
    }
  }
  mpg_free(values);
  if (!condition) *forever = always;
  r->looked_at = mask.value;
  r->looked_how = how;
  r->hides = good;
  r->hides_forever = always;
  return good;
}

/* Matches scores + mask or mask + scores. */
static bool match_added(mpg_rewrite *r, pattern *p, mpg_operand from) {
  mpg_operand sum;
  if (!mpg_rewrite_match(r, from, MPG_OP_broadcast_add, MPG_PRIVATE, &sum) &&
      !mpg_rewrite_match(r, from, MPG_OP_elemwise_add, MPG_PRIVATE, &sum))
    return false;
  mpg_operand sides[2] = {mpg_rewrite_input(r, sum, 0), mpg_rewrite_input(r, sum, 1)};
  /* The scores are the operand that has the sum's shape and comes from a product. */
  for (int side = 0; side < 2; side++) {
    mpg_operand scores = sides[side], mask = sides[1 - side], product,
                scaled = skip_views(r, scores);
    double factor;
    if (!mpg_shape_equal(&mpg_rewrite_desc(r, scores)->shape, &mpg_rewrite_desc(r, sum)->shape))
      continue;
    while (mpg_rewrite_scaled(r, scaled, MPG_PRIVATE, &scaled, &factor))
      scaled = skip_views(r, scaled);
    bool more = mpg_rewrite_match(r, scaled, MPG_OP_broadcast_add, MPG_PRIVATE, &product) ||
                mpg_rewrite_match(r, scaled, MPG_OP_elemwise_add, MPG_PRIVATE, &product) ||
                mpg_rewrite_match(r, scaled, MPG_OP_where, MPG_PRIVATE, &product);
    if (!more && !mpg_rewrite_match(r, scaled, MPG_OP_batch_dot, MPG_PRIVATE, &product)) continue;
    bool forever;
    if (!p->masked) p->masked = mpg_rewrite_desc(r, sum);
    if (!p->causal &&
        hides_what_follows(r, mask, &mpg_rewrite_desc(r, sum)->shape, false, false, &forever)) {
      p->causal = true;
      p->forever = forever;
      p->causal_mask = mask;
    } else {
      if (p->num_masks == 2 || mpg_rewrite_wants(r, mask) ||
          !mpg_shape_equal(&p->masked->shape, &mpg_rewrite_desc(r, sum)->shape))
        return false;
      p->masks[p->num_masks++] = mask;
    }
    p->scores = scores;
    return true;
  }
  return false;
}

/* Matches where(condition, scores, low) or where(condition, low, scores). */
static bool match_chosen(mpg_rewrite *r, pattern *p, mpg_operand from) {
  mpg_operand where;
  double low;
  if (p->causal || !mpg_rewrite_match(r, from, MPG_OP_where, MPG_PRIVATE, &where)) return false;
  mpg_operand condition = mpg_rewrite_input(r, where, 0);
  if (!mpg_shape_equal(&mpg_rewrite_desc(r, condition)->shape, &mpg_rewrite_desc(r, where)->shape))
    return false;
  for (uint32_t side = 1; side <= 2; side++) {
    if (!mpg_rewrite_constant(r, mpg_rewrite_input(r, where, 3 - side), &low) || !(low <= hidden))
      continue;
    if (!hides_what_follows(r, condition, &mpg_rewrite_desc(r, where)->shape, true, side == 2,
                            NULL))
      continue;
    p->scores = mpg_rewrite_input(r, where, side);
    p->forever = low == -INFINITY;
    p->causal_mask.value = MPG_NO_VALUE;
    return p->causal = true;
  }
  return false;
}

/* --- Operands --------------------------------------------------------------------------------- */

typedef struct part {
  mpg_operand base;
  mpg_view_layout layout;
  double factor;
  mpg_lead lead;
  int64_t rows, width, by_row;
} part;

/* Interprets a layout as (…, rows, width), or as (…, width, rows) if `exchanged`. */
static bool read_part(const mpg_view_layout *layout, bool exchanged, part *t) {
  int last = layout->ndim - 1;
  mpg_factor row, column;
  t->layout = *layout;
  return mpg_view_single(layout, exchanged ? last : last - 1, &row) &&
         mpg_view_single(layout, exchanged ? last - 1 : last, &column) &&
         mpg_view_lead(layout, layout->ndim - 2, &t->lead) &&
         (column.stride == 1 || column.size == 1) &&
         (t->rows = row.size, t->width = column.size, t->by_row = row.stride, true);
}

enum { MOST_BASES = 16 };

/* True for a view of the same shape, which replaces a copy to the device that the array is already
 * on. Gradients are summed at this view, as at a copy, so the search for bases must stop there. */
static bool is_copy(const mpg_rewrite *r, mpg_operand operand) {
  return mpg_node_is_view(mpg_rewrite_node(r, operand)) &&
         mpg_shape_equal(&mpg_rewrite_desc(r, operand)->shape,
                         &mpg_rewrite_desc(r, mpg_rewrite_input(r, operand, 0))->shape);
}

/* Lists the arrays from which the operand can be read as a strided view, nearest first. Returns
 * their number. If `scalable`, also looks through multiplications by a constant. */
static int find_bases(const mpg_rewrite *r, mpg_operand operand, bool exchanged, bool scalable,
                      part *parts) {
  mpg_operand chain[MOST_BASES];
  double factors[MOST_BASES];
  int length = 1, count = 0;
  chain[0] = operand;
  factors[0] = 1;
  while (length < MOST_BASES) {
    mpg_operand next;
    double factor = 1;
    const mpg_node *node = mpg_rewrite_node(r, chain[length - 1]);
    if (!node->op || node->num_inputs < 1 || is_copy(r, chain[length - 1])) break;
    if (!mpg_view_op(node)) {
      if (!scalable || !mpg_rewrite_scaled(r, chain[length - 1], MPG_PRIVATE, &next, &factor) ||
          next.moved != chain[length - 1].moved)
        break;
    } else {
      next = mpg_rewrite_input(r, chain[length - 1], 0);
    }
    if (!mpg_has_value(next.value)) break;
    chain[length] = next;
    factors[length] = factors[length - 1] * factor;
    length++;
  }
  for (int i = 0; i < length; i++) {
    mpg_view_layout layout;
    bool good = mpg_view_start(&mpg_rewrite_desc(r, chain[i])->shape, &layout);
    for (int k = i - 1; good && k >= 0; k--) {
      const mpg_node *node = mpg_rewrite_node(r, chain[k]);
      if (mpg_view_op(node)) good = mpg_view_apply(r->graph, node, chain[k].value.output, &layout);
    }
    if (good && read_part(&layout, exchanged, &parts[count])) {
      parts[count].base = chain[i];
      parts[count].factor = factors[i];
      count++;
    }
  }
  return count;
}

static int64_t size_of(const mpg_rewrite *r, mpg_operand operand) {
  return mpg_shape_size(&mpg_rewrite_desc(r, operand)->shape);
}
static int64_t elements(const part *t) { return mpg_lead_size(&t->lead) * t->rows * t->width; }

static int by_stride(const void *a, const void *b) {
  const mpg_factor *x = a, *y = b;
  return (x->stride > y->stride) - (x->stride < y->stride);
}

/* True if query, key and value have the same layout and together cover one array exactly (packed
 * projections). That array then has one more dimension, of size 3, which selects query, key or
 * value. */
static bool make_up(const mpg_rewrite *r, const part *q, const part *k, const part *v) {
  int64_t a = q->layout.offset, b = k->layout.offset, c = v->layout.offset;
  int64_t low = a < b ? (a < c ? a : c) : (b < c ? b : c),
          high = a > b ? (a > c ? a : c) : (b > c ? b : c), next = 1;
  int64_t middle = a + b + c - low - high;
  for (int i = 0; i < 2; i++)
    if (k->lead.size[i] != q->lead.size[i] || v->lead.size[i] != q->lead.size[i] ||
        k->lead.stride[i] != q->lead.stride[i] || v->lead.stride[i] != q->lead.stride[i])
      return false;
  if (k->rows != q->rows || v->rows != q->rows || k->width != q->width || v->width != q->width ||
      k->by_row != q->by_row || v->by_row != q->by_row)
    return false;
  mpg_factor factors[5] = {{q->width, 1},
                           {q->rows, q->by_row},
                           {q->lead.size[0], q->lead.stride[0]},
                           {q->lead.size[1], q->lead.stride[1]},
                           {3, middle - low}};
  if (low != 0 || high - middle != middle) return false;
  qsort(factors, 5, sizeof *factors, by_stride);
  for (int i = 0; i < 5; i++) {
    if (factors[i].size == 1) continue;
    if (factors[i].stride != next) return false;
    next *= factors[i].size;
  }
  return next == size_of(r, q->base);
}

/* Chooses the arrays from which query, key and value are read. If the three cover one array, they
 * are read from this array. Otherwise each is read from the farthest array that it covers
 * completely, so that the array's gradient is contiguous. */
static bool choose_bases(const mpg_rewrite *r, part (*parts)[MOST_BASES], const int *counts,
                         const part **chosen, bool *packed) {
  for (int i = counts[QUERY] - 1; i >= 0; i--)
    for (int j = counts[KEY] - 1; j >= 0; j--)
      for (int k = counts[VALUE] - 1; k >= 0; k--) {
        const part *q = &parts[QUERY][i], *y = &parts[KEY][j], *v = &parts[VALUE][k];
        if (q->base.value.node != y->base.value.node || q->base.value.node != v->base.value.node ||
            q->base.value.output != y->base.value.output ||
            q->base.value.output != v->base.value.output)
          continue;
        if (!make_up(r, q, y, v)) continue;
        chosen[QUERY] = q, chosen[KEY] = y, chosen[VALUE] = v;
        return *packed = true;
      }
  *packed = false;
  for (int which = QUERY; which <= VALUE; which++) {
    chosen[which] = NULL;
    for (int i = counts[which] - 1; i >= 0 && !chosen[which]; i--)
      if (elements(&parts[which][i]) == size_of(r, parts[which][i].base))
        chosen[which] = &parts[which][i];
    if (!chosen[which]) return false;
  }
  return true;
}

static mpg_tuple place_of(const part *t, const mpg_lead *lead) {
  return (mpg_tuple){.count = 4,
                     .values = {t->layout.offset, lead->stride[0], lead->stride[1], t->by_row}};
}

/* Computes the layout of the sum of the masks, which is broadcast to the scores. */
static bool read_masks(const mpg_rewrite *r, const pattern *p, mpg_lead *lead, mpg_tuple *place) {
  const mpg_shape *scores = &p->masked->shape;
  mpg_shape mask = {0};
  int64_t strides[MPG_MAX_NDIM], step = 1;
  for (int i = 0; i < p->num_masks; i++) {
    const mpg_desc *desc = mpg_rewrite_desc(r, p->masks[i]);
    mpg_shape joined;
    if (desc->dtype != p->masked->dtype || !mpg_shape_broadcast(&mask, &desc->shape, &joined))
      return false;
    mask = joined;
  }
  if (mask.ndim > scores->ndim) return false;
  for (int i = scores->ndim - 1, k = mask.ndim - 1; i >= 0; i--, k--) {
    int64_t dim = k >= 0 ? mask.dims[k] : 1;
    strides[i] = dim == 1 ? 0 : step;
    step *= dim;
  }
  mpg_view_layout layout = {.ndim = scores->ndim};
  for (int i = 0; i < scores->ndim; i++)
    if (!mpg_view_push(&layout, i, scores->dims[i], strides[i])) return false;
  if (!mpg_view_lead(&layout, scores->ndim - 2, lead)) return false;
  *place = (mpg_tuple){.count = 4,
                       .values = {0, 0, strides[scores->ndim - 2], strides[scores->ndim - 1]}};
  return true;
}

static mpg_value take_masks(mpg_rewrite *r, const pattern *p) {
  mpg_value mask = mpg_rewrite_take(r, p->masks[0]);
  if (p->num_masks < 2) return mask;
  mpg_value both[2] = {mask, mpg_rewrite_take(r, p->masks[1])};
  return mpg_rewrite_emit(r, MPG_OP_broadcast_add, NULL, both, 2, &mask);
}

/* --- The pattern ------------------------------------------------------------------------------ */

static bool find_weights(mpg_rewrite *r, mpg_operand weights, pattern *p, mpg_operand *product) {
  enum { TRAINING, ALWAYS };
  mpg_operand softmax;
  weights = skip_views(r, weights);
  if (mpg_rewrite_match(r, weights, MPG_OP_Dropout, MPG_PRIVATE, &p->dropout)) {
    const mpg_dropout_params *d = mpg_rewrite_params(r, p->dropout);
    const mpg_node *node = mpg_rewrite_node(r, p->dropout);
    if (d->axes.count > 0 || p->dropout.value.output != 0 || r->users[node->values + 1])
      return false;
    p->drops = (node->train || d->mode == ALWAYS) && d->p > 0;
    p->p = p->drops ? d->p : 0;
    weights = skip_views(r, mpg_rewrite_input(r, p->dropout, 0));
  }
  if (!mpg_rewrite_match(r, weights, MPG_OP_softmax, MPG_PRIVATE, &softmax)) return false;
  const mpg_softmax_params *s = mpg_rewrite_params(r, softmax);
  const mpg_desc *in = mpg_rewrite_desc(r, mpg_rewrite_input(r, softmax, 0)),
                 *out = mpg_rewrite_desc(r, softmax);
  if ((s->axis != -1 && s->axis != in->shape.ndim - 1) || s->use_length || in->dtype != out->dtype)
    return false;
  if (!(MPG_DTYPES_FLOAT & MPG_DTYPE_BIT(in->dtype))) return false;
  p->scale = s->temperature.present ? 1 / s->temperature.value : 1;
  p->scores = mpg_rewrite_input(r, softmax, 0);
  if (!s->temperature.present)
    for (mpg_operand from = skip_views(r, p->scores);
         match_added(r, p, from) || match_chosen(r, p, from);)
      from = skip_views(r, p->scores);
  mpg_operand scores = skip_views(r, p->scores);
  for (double factor; mpg_rewrite_scaled(r, scores, MPG_PRIVATE, &scores, &factor);
       scores = skip_views(r, scores))
    p->scale *= factor;
  /* If another mask hides a whole row, a finite causal mask no longer gives later keys weight 0. A
   * finite causal mask is therefore kept as an additive mask if there are other masks. */
  if (p->causal && p->num_masks && !p->forever) {
    if (!mpg_has_value(p->causal_mask.value) || p->num_masks == 2 ||
        mpg_rewrite_wants(r, p->causal_mask))
      return false;
    p->masks[p->num_masks++] = p->causal_mask;
    p->causal = false;
  }
  return mpg_rewrite_match(r, scores, MPG_OP_batch_dot, MPG_PRIVATE, product) && isfinite(p->scale);
}

static bool find_attention(mpg_rewrite *r, uint32_t n) {
  const mpg_node *node = &r->graph->nodes[n];
  if (node->op->id != MPG_OP_batch_dot) return false;
  const mpg_batch_dot_params *outer = node->params;
  pattern p = {.scale = 1};
  mpg_operand last = mpg_rewrite_shown(r), product;
  if (outer->transpose_a || !find_weights(r, mpg_rewrite_input(r, last, 0), &p, &product))
    return false;
  const mpg_batch_dot_params *inner = mpg_rewrite_params(r, product);
  p.value = mpg_rewrite_input(r, last, 1);
  p.query = mpg_rewrite_input(r, product, 0);
  p.key = mpg_rewrite_input(r, product, 1);

  part parts[3][MOST_BASES];
  const part *chosen[3];
  int counts[3] = {find_bases(r, p.query, inner->transpose_a, true, parts[QUERY]),
                   find_bases(r, p.key, !inner->transpose_b, true, parts[KEY]),
                   find_bases(r, p.value, outer->transpose_b, false, parts[VALUE])};
  mpg_attention_params params;
  memset(&params, 0, sizeof params);
  if (!counts[QUERY] || !counts[KEY] || !counts[VALUE] ||
      !choose_bases(r, parts, counts, chosen, &params.packed))
    return false;
  const part *q = chosen[QUERY], *k = chosen[KEY], *v = chosen[VALUE];
  if (mpg_shape_size(&mpg_rewrite_desc(r, last)->shape) == 0 || k->rows < 1 || q->width < 1 ||
      q->width > MOST_WIDTH || v->width > MOST_WIDTH)
    return false;
  if (p.causal && q->rows != k->rows) return false;

  mpg_lead leads[PARTS] = {q->lead, k->lead, v->lead, q->lead};
  params.mask_at.count = -1;
  if (p.num_masks && !read_masks(r, &p, &leads[MASK], &params.mask_at)) return false;
  if (!mpg_lead_agree(leads, PARTS)) return false;
  if (p.num_masks) {
    params.mask_at.values[0] = leads[MASK].stride[0];
    params.mask_at.values[1] = leads[MASK].stride[1];
  }
  params.sizes = (mpg_tuple){
      .count = SIZES,
      .values = {leads[0].size[0], leads[0].size[1], q->rows, k->rows, q->width, v->width}};
  params.query_at = place_of(q, &leads[QUERY]);
  params.key_at = place_of(k, &leads[KEY]);
  params.value_at = place_of(v, &leads[VALUE]);
  params.result_at = (mpg_tuple){
      .count = 4,
      .values = {0, leads[0].size[1] * q->rows * v->width, q->rows * v->width, v->width}};
  const mpg_shape *shape = &mpg_rewrite_desc(r, last)->shape;
  params.shape.count = shape->ndim;
  memcpy(params.shape.values, shape->dims, (size_t)shape->ndim * sizeof *shape->dims);
  params.scale = p.scale * q->factor * k->factor;
  params.causal = p.causal;
  params.p = p.p;

  mpg_value inputs[PARTS], outputs[3];
  inputs[QUERY] = mpg_rewrite_take(r, q->base);
  inputs[KEY] = params.packed ? inputs[QUERY] : mpg_rewrite_take(r, k->base);
  inputs[VALUE] = params.packed ? inputs[QUERY] : mpg_rewrite_take(r, v->base);
  if (p.num_masks) inputs[MASK] = take_masks(r, &p);
  if (p.drops)
    mpg_rewrite_emit_random(r, p.dropout, MPG_OP__dropout_attention, &params, inputs,
                            3 + (p.num_masks > 0), outputs);
  else
    mpg_rewrite_emit(r, MPG_OP__attention, &params, inputs, 3 + (p.num_masks > 0), outputs);
  mpg_rewrite_replace(r, 0, outputs[0]);
  return true;
}

const mpg_rewrite_rule mpg_rule_attention = {
    .name = "attention", .apply = find_attention, .needs = 1 + MPG_OP__attention};

/* --- A transpose of the result ---------------------------------------------------------------- */

/* True for a transpose of (batch, heads, rows, width) to (batch, rows, heads, width). */
static bool exchanges_middle(const mpg_node *node) {
  if (node->op->id != MPG_OP_transpose) return false;
  const mpg_tuple *axes = &((const mpg_transpose_params *)node->params)->axes;
  if (axes->count != 4) return false;
  for (int i = 0; i < 4; i++)
    if ((axes->values[i] + 4) % 4 != (int64_t[]){0, 2, 1, 3}[i]) return false;
  return true;
}

static bool split_place(mpg_tuple *place, int first, int64_t heads) {
  place->values[first + 1] = place->values[first];
  return !__builtin_mul_overflow(place->values[first], heads, &place->values[first]);
}

static bool write_in_place(mpg_rewrite *r, uint32_t n) {
  const mpg_node *node = &r->graph->nodes[n];
  if (!exchanges_middle(node)) return false;
  mpg_operand last = mpg_rewrite_shown(r), from = skip_views(r, mpg_rewrite_input(r, last, 0)),
              found;
  const mpg_shape *shape = &mpg_rewrite_desc(r, mpg_rewrite_input(r, last, 0))->shape;
  bool drops = mpg_rewrite_match(r, from, MPG_OP__dropout_attention, MPG_PRIVATE, &found);
  if (shape->ndim != 4 ||
      (!drops && !mpg_rewrite_match(r, from, MPG_OP__attention, MPG_PRIVATE, &found)) ||
      found.value.output)
    return false;
  const mpg_node *attention = mpg_rewrite_node(r, found);
  mpg_attention_params params = *(const mpg_attention_params *)attention->params;
  int64_t *sizes = params.sizes.values;
  for (uint32_t i = 1; i < attention->num_outputs; i++)
    if (r->users[attention->values + i]) return false;
  if (shape->dims[2] != sizes[ROWS] || shape->dims[3] != sizes[VALUE_WIDTH]) return false;
  /* Checks that the result is a contiguous (batch, heads, rows, width) array. */
  if (params.result_at.values[3] != sizes[VALUE_WIDTH] ||
      params.result_at.values[1] != sizes[HEADS] * sizes[ROWS] * sizes[VALUE_WIDTH])
    return false;
  if (sizes[HEADS] == 1) { /* splits the batch into batch and heads */
    bool good = split_place(&params.query_at, 1, shape->dims[1]) &&
                split_place(&params.key_at, 1, shape->dims[1]) &&
                split_place(&params.value_at, 1, shape->dims[1]) &&
                (params.mask_at.count < 0 || split_place(&params.mask_at, 0, shape->dims[1]));
    if (!good) return false;
    sizes[BATCH] = shape->dims[0];
    sizes[HEADS] = shape->dims[1];
  }
  if (sizes[BATCH] != shape->dims[0] || sizes[HEADS] != shape->dims[1]) return false;
  params.result_at = (mpg_tuple){.count = 4,
                                 .values = {0, sizes[ROWS] * sizes[HEADS] * sizes[VALUE_WIDTH],
                                            sizes[VALUE_WIDTH], sizes[HEADS] * sizes[VALUE_WIDTH]}};
  params.shape = (mpg_tuple){
      .count = 4, .values = {sizes[BATCH], sizes[ROWS], sizes[HEADS], sizes[VALUE_WIDTH]}};
  mpg_value inputs[PARTS], outputs[3];
  for (uint32_t i = 0; i < attention->num_inputs; i++)
    inputs[i] = params.packed && (i == KEY || i == VALUE)
                    ? inputs[QUERY]
                    : mpg_rewrite_take(r, mpg_rewrite_input(r, found, i));
  if (drops)
    mpg_rewrite_emit_random(r, found, MPG_OP__dropout_attention, &params, inputs,
                            (int)attention->num_inputs, outputs);
  else
    mpg_rewrite_emit(r, MPG_OP__attention, &params, inputs, (int)attention->num_inputs, outputs);
  mpg_rewrite_replace(r, 0, outputs[0]);
  return true;
}

const mpg_rewrite_rule mpg_rule_attention_result = {.name = "attention's result",
                                                    .apply = write_in_place};
