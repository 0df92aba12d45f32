/* check.h - comparing a model with a reference's tokens and logits. */
#ifndef QWEN3_CHECK_H
#define QWEN3_CHECK_H

#include "model.h"

#include <stdio.h>

/* Feeds the prefixes of a reference.json ("cases": each with prompt_ids, tokens, margins, logits_after_prompt) token by
 * token and as one prompt. Wherever the reference's margin is large enough the most likely token must be the
 * reference's, and the logits after the prompt must be as close as the model's dtype explains. Prints a line for each
 * case and a summary. Returns false for an error as well as for a difference; only for an error is e->text set. */
bool check_reference(struct model *m, const char *path, FILE *out, struct error *e);

#endif
