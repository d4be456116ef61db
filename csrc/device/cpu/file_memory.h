/* Memory of CPU devices that is a shared mapping of files. The kernel writes its pages to the files
 * and drops them from main memory if memory is short.
 *
 * Each allocation is a new temporary file in the device's directory. The file is unlinked at once,
 * so the file system frees it when the memory is freed or the process ends in any way. Its blocks
 * are reserved first, so a full disk fails the allocation instead of raising SIGBUS later.
 *
 * Fork. A child must not write to the parent's pages, so it does not inherit the mappings. Its
 * devices use mpg_lost_backend, which refuses all work and host access.
 *
 * Ownership: the memory belongs to the caller. Threads: any thread may call the functions, except
 * mpg_device_open_in_directory, whose caller holds the host lock.
 */
#ifndef MPG_DEVICE_FILE_MEMORY_H
#define MPG_DEVICE_FILE_MEMORY_H

#include "device/device.h"

/* Fails with MPG_IO_ERROR if files cannot be created in the directory. */
mpg_status mpg_file_memory_check(const char *directory);
/* Returns at least `size` zeroed bytes, aligned to a page. Fails with MPG_DEVICE_OUT_OF_MEMORY if
 * the file system is full, and with MPG_IO_ERROR if the file cannot be created. */
mpg_status mpg_file_memory_allocate(const char *directory, size_t size, void **memory);
void mpg_file_memory_free(void *memory, size_t size);

/* Opens a CPU device with an unused index, whose arrays of 64 KiB or more are in files in the
 * directory (runtime.c). Fails with MPG_IO_ERROR if files cannot be created there. */
mpg_status mpg_device_open_in_directory(const char *directory, mpg_device **device);

/* The backend of a device whose memory is in files, in a forked child. */
extern const mpg_backend mpg_lost_backend;
/* Fails with MPG_ERROR if the device's memory is not available in this forked child. */
mpg_status mpg_device_check_not_lost(const mpg_device *device);

#endif
