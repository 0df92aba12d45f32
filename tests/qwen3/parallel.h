/* parallel.h - tasks of mlxvk's by several threads: mlxvk_device_desc.parallel. */
#ifndef TESTS_QWEN3_PARALLEL_H
#define TESTS_QWEN3_PARALLEL_H

#include "mlxvk.h"

/* By as many threads as there are processors, at most 16; the caller is one of them, and does all where none starts. */
void parallel(mlxvk_task *task, void *with, uint32_t count, void *user);

#endif
