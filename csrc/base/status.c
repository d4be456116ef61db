/* Status codes and the error text of each thread. */
#include "base/status.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ERROR_TEXT_SIZE = 4096 };

static _Thread_local char error_text[ERROR_TEXT_SIZE];

mpg_status mpg_fail(mpg_status code, const char *format, ...) {
  /* The arguments may point into error_text, so the new text is formatted in a local buffer. */
  char text[ERROR_TEXT_SIZE];
  va_list args;
  va_start(args, format);
  vsnprintf(text, sizeof text, format, args);
  va_end(args);
  memcpy(error_text, text, sizeof text);
  return code;
}

mpg_status mpg_fail_prefix(mpg_status code, const char *format, ...) {
  char text[ERROR_TEXT_SIZE];
  va_list args;
  va_start(args, format);
  int length = vsnprintf(text, sizeof text, format, args);
  va_end(args);
  if (length < 0) length = 0;
  if ((size_t)length < sizeof text) { /* truncates the text if it exceeds the buffer */
    size_t left = sizeof text - (size_t)length, present = strlen(error_text);
    if (left > 3) {
      if (present > left - 3) present = left - 3;
      memcpy(text + length, ": ", 2);
      memcpy(text + length + 2, error_text, present);
      text[(size_t)length + 2 + present] = 0;
    }
  }
  memcpy(error_text, text, sizeof text);
  return code;
}

const char *mpg_error_text(void) { return error_text; }

void mpg_assert_failed(const char *condition, const char *file, int line) {
  fprintf(stderr, "mpgluon: internal invariant violated: %s (%s:%d)\n", condition, file, line);
  abort();
}
