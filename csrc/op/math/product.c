/* Splits matrix products into panels (blocks of rows). */
#include "op/math/product.h"

#include "op/layers/convolution.h"

bool mpg_product_cut(mpg_product *p) {
  enum { ROWS = 2048, ELEMENTS = 1 << 21, LEAST = 16, MOST = 4096 };
  p->panel = p->m < 4096 ? 128 : 256;
  p->least = 32;
  return p->k >= LEAST && p->n >= LEAST && p->n <= MOST && p->m >= ROWS && p->m * p->n >= ELEMENTS;
}

static bool dense(const mpg_op *op, const void *params, const mpg_shape *a, const mpg_shape *b,
                  mpg_product *p) {
  if (a->ndim < 2 || b->ndim < 2) return false;
  if (op->id == MPG_OP_dot) {
    const mpg_dot_params *dot = params;
    if (dot->transpose_a) return false;
    p->transposed = dot->transpose_b;
    p->k = a->dims[a->ndim - 1];
    p->n =
        dot->transpose_b ? mpg_shape_product(b, 0, b->ndim - 1) : mpg_shape_product(b, 1, b->ndim);
  } else {
    p->transposed = true;
    p->n = b->dims[0];
    p->k = b->dims[1];
  }
  if (p->k == 0) return false;
  p->m = mpg_shape_size(a) / p->k;
  return mpg_product_cut(p);
}

/* Chooses panels that consist of whole images, or of image rows whose number is a multiple of
 * `step` and divides the height, with about `wanted` positions each. Returns false if a panel would
 * have less than half or more than twice `wanted` positions, or if there would be too few
 * panels. */
static bool cut_images(mpg_product *p, int64_t batch, int64_t height, int64_t width, int64_t step,
                       int64_t wanted) {
  enum { PANELS = 8 };
  int64_t image = height * width, images = image < wanted ? (wanted + image / 2) / image : 1;
  p->m = batch * image;
  p->panel = images * image;
  p->least = image;
  for (int64_t rows = step; rows < height; rows += step) {
    int64_t places = rows * width, other = p->panel;
    if (height % rows ||
        (places > wanted ? places : wanted) * (other < wanted ? other : wanted) >=
            (other > wanted ? other : wanted) * (places < wanted ? places : wanted))
      continue;
    p->panel = places;
    p->least = step * width;
  }
  return p->panel >= wanted / 2 && p->panel <= 2 * wanted && p->m / p->panel >= PANELS;
}

static bool winograd(const mpg_winograd_params *params, const mpg_shape *data, mpg_product *p) {
  enum { ELEMENTS = 1 << 18, PLACES = 4 * 56 };
  mpg_winograd w;
  if (data->ndim != 4) return false;
  mpg_winograd_set(&w, data, params->num_filter, &params->pad);
  p->n = w.filters;
  p->k = w.channels;
  if (mpg_winograd_shares(&w) || w.batch * w.out_h * w.out_w * w.filters < ELEMENTS) return false;
  return cut_images(p, w.batch, w.out_h, w.out_w, w.out_h % 2 ? w.out_h : 2, PLACES);
}

bool mpg_product_in_panels(const mpg_op *op, const void *params, const mpg_desc *const *inputs,
                           mpg_product *p) {
  *p = (mpg_product){0};
  switch (op->id) {
    case MPG_OP_FullyConnected:
    case MPG_OP_dot:
      return inputs[0]->dtype == MPG_FLOAT32 && inputs[1]->dtype == MPG_FLOAT32 &&
             dense(op, params, &inputs[0]->shape, &inputs[1]->shape, p);
    case MPG_OP__winograd_convolution: return winograd(params, &inputs[0]->shape, p);
    default: return false;
  }
}
