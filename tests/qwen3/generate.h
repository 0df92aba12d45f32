/* generate.h - the loop from a prompt to its continuation. */
#ifndef QWEN3_GENERATE_H
#define QWEN3_GENERATE_H

#include "model.h"
#include "sampler.h"

struct generation {
    int  max_tokens;
    bool ignore_eos;
    bool check_logits;  /* fail where the prompt's logits are no finite numbers, instead of choosing among them */
    /* Called for each token but an eos token that ends the text; may be NULL. */
    void (*on_token)(void *user, int32_t id);
    void *user;
    /* Results, counted as mlx-lm counts: the prompt's time ends when the first token is there, which is when the
     * generation's begins; the generation's tokens include the first, and an eos token at the end. */
    size_t prompt_tokens, tokens;
    double prompt_seconds, seconds;
};

bool generate(struct generation *run, struct model *m, struct sampler *s, const int32_t *prompt, size_t count,
              struct error *e);

double seconds_now(void); /* of a clock that only goes forward */

#endif
