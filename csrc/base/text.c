/* Growable string buffer. */
#include "base/text.h"

#include <stdio.h>
#include <string.h>

#include "base/memory.h"

void mpg_text_free(mpg_text *text) {
  mpg_free(text->data);
  *text = (mpg_text){0};
}

static bool reserve(mpg_text *text, size_t more) {
  size_t needed;
  if (text->failed || !mpg_size_add(text->length, more, &needed) ||
      !mpg_size_add(needed, 1, &needed) ||
      mpg_grow((void **)&text->data, &text->capacity, needed, 1) != MPG_OK)
    text->failed = true;
  return !text->failed;
}

void mpg_text_append_bytes(mpg_text *text, const char *bytes, size_t length) {
  if (!reserve(text, length)) return;
  memcpy(text->data + text->length, bytes, length);
  text->length += length;
  text->data[text->length] = 0;
}

void mpg_text_append(mpg_text *text, const char *format, ...) {
  va_list args;
  va_start(args, format);
  va_list again;
  va_copy(again, args);
  int length = vsnprintf(NULL, 0, format, args);
  va_end(args);
  if (length >= 0 && reserve(text, (size_t)length)) {
    vsnprintf(text->data + text->length, (size_t)length + 1, format, again);
    text->length += (size_t)length;
  }
  va_end(again);
}

mpg_status mpg_text_status(const mpg_text *text) {
  return text->failed ? mpg_out_of_host_memory(text->capacity) : MPG_OK;
}
