/* profile.h - every dispatch of a prompt and of a decode step, for tests/tools/timeline. */
#ifndef QWEN3_PROFILE_H
#define QWEN3_PROFILE_H

#include "model.h"

#define PROFILE_GATES "MLX_VK_PROFILE=2" /* the model's device has to be opened with it */

/* Writes a CSV file: a line for each dispatch, with its times, bytes, multiplications and workgroups. Its first column says of what:
 *   copy, product  a pass over memory and large products, plain and quantized, some times each: what the device can do
 *   prompt         a prompt of `prompt` tokens behind `depth` others
 *   decode         one step of a generation behind them that is under way, submitted while the step before it ran
 *   next           the first dispatch of the step after that
 * All has run some times before. */
bool profile_run(const char *path, struct model *m, const char *name, int prompt, int depth, struct error *e);

#endif
