/* options.h - the command line. */
#ifndef QWEN3_OPTIONS_H
#define QWEN3_OPTIONS_H

#include "util.h"

#include <stdio.h>

struct options {
    const char *model, *prompt, *system, *device, *check, *bench, *profile, *random;
    int         max_tokens, top_k, bits, depth, trials;
    double      temp, top_p;
    uint64_t    seed;
    bool        has_seed, no_chat_template, list_devices, ids, help;
};

/* Reads argv into o; the strings stay argv's. */
bool options_read(struct options *o, int argc, char **argv, struct error *e);
void options_print_help(FILE *out);

#endif
