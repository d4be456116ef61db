/* Growable string buffer. The owner frees it with mpg_text_free. Not thread-safe. The append
 * functions do not report failures; call mpg_text_status after the last append. */
#ifndef MPG_BASE_TEXT_H
#define MPG_BASE_TEXT_H

#include "base/status.h"

typedef struct mpg_text {
  char *data; /* owned; NUL-terminated after the first append */
  size_t length, capacity;
  bool failed;
} mpg_text;

void mpg_text_free(mpg_text *text);
void mpg_text_append(mpg_text *text, const char *format, ...) __attribute__((format(printf, 2, 3)));
void mpg_text_append_bytes(mpg_text *text, const char *bytes, size_t length);
mpg_status mpg_text_status(const mpg_text *text);
static inline const char *mpg_text_string(const mpg_text *text) {
  return text->data ? text->data : "";
}

#endif
