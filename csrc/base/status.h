/* Status and error text.
 *
 * Every function that can fail returns mpg_status. The text of the latest failure is kept per
 * thread and stays valid until the next failure on that thread. The text is in a fixed buffer, so
 * nothing is allocated. These functions may be called from any thread. By convention, a function
 * that must clean up has one `fail:` label (see MPG_GOTO).
 */
#ifndef MPG_BASE_STATUS_H
#define MPG_BASE_STATUS_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum mpg_status {
  MPG_OK = 0,
  MPG_ERROR,                /* incorrect use or any other error; MXNetError in Python */
  MPG_VALUE_ERROR,          /* a value out of range */
  MPG_TYPE_ERROR,           /* an argument of the wrong type */
  MPG_INDEX_ERROR,          /* an index out of bounds */
  MPG_KEY_ERROR,            /* an unknown name */
  MPG_NOT_IMPLEMENTED,      /* an unsupported feature or option */
  MPG_DEVICE_OUT_OF_MEMORY, /* a device's pool is at its limit, or the system allocation failed */
  MPG_HOST_OUT_OF_MEMORY,   /* memory for bookkeeping could not be allocated */
  MPG_IO_ERROR,             /* a file could not be read or written, or is damaged */
  MPG_INTERRUPTED,          /* the user pressed Ctrl-C; the host holds the pending exception */
  /* A callback into the host has raised an exception, which the host holds. */
  MPG_HOST_EXCEPTION,
  MPG_STATUS_COUNT
} mpg_status;

/* Evaluates `call`; on failure returns its status from the enclosing function. */
#define MPG_TRY(call)                                      \
  do {                                                     \
    mpg_status mpg_try_status_ = (call);                   \
    if (mpg_try_status_ != MPG_OK) return mpg_try_status_; \
  } while (0)

/* Evaluates `call` into the local `status`; on failure jumps to `fail`. */
#define MPG_GOTO(call)               \
  do {                               \
    status = (call);                 \
    if (status != MPG_OK) goto fail; \
  } while (0)

/* Stores the formatted text as this thread's error and returns `code`. */
mpg_status mpg_fail(mpg_status code, const char *format, ...)
    __attribute__((format(printf, 2, 3), cold));

/* Prepends a formatted text to the current error text: "prefix: text". Returns `code` unchanged. */
mpg_status mpg_fail_prefix(mpg_status code, const char *format, ...)
    __attribute__((format(printf, 2, 3), cold));

/* Returns this thread's latest error text; never NULL. Borrowed until the next failure on this
 * thread. */
const char *mpg_error_text(void);

/* Checks an internal invariant: prints a message and aborts if it is broken. Not for user
 * errors. */
#define MPG_ASSERT(condition) \
  ((condition) ? (void)0 : mpg_assert_failed(#condition, __FILE__, __LINE__))
void mpg_assert_failed(const char *condition, const char *file, int line)
    __attribute__((cold, noreturn));

#endif
