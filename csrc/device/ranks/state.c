/* The state of the engine. */
#include "device/ranks/engine.h"

mpg_engine mpg_the_engine = {.size = 1,
                             .lock = PTHREAD_MUTEX_INITIALIZER,
                             .changed = PTHREAD_COND_INITIALIZER,
                             .begun = PTHREAD_COND_INITIALIZER};
