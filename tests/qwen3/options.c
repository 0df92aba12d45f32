/* options.c - see options.h. One table row for each option: reading and help come from it. */
#include "options.h"

#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

enum kind { FLAG, TEXT, INTEGER, COUNT, NUMBER, SEED };          /* COUNT: from 1 on */

static const struct option {
    const char *name, *value, *help;
    enum kind   kind;
    size_t      field;
} table[] = {
#define ROW(name, kind, field, value, help) { name, value, help, kind, offsetof(struct options, field) }
    ROW("--model", TEXT, model, "DIR", "checkpoint in MLX's format: config.json, tokenizer.json, model*.safetensors"),
    ROW("--prompt", TEXT, prompt, "TEXT", "what to continue or answer; - or nothing: standard input"),
    ROW("--max-tokens", INTEGER, max_tokens, "N", "generate at most N tokens (100)"),
    ROW("--temp", NUMBER, temp, "X", "sampling temperature; 0: always the most likely token (0)"),
    ROW("--top-p", NUMBER, top_p, "X", "sample among the most likely tokens of probability X (1: all)"),
    ROW("--top-k", INTEGER, top_k, "N", "sample among the N most likely tokens (0: all)"),
    ROW("--seed", SEED, seed, "N", "seed of the sampling (the clock)"),
    ROW("--system", TEXT, system, "TEXT", "system message of a chat model"),
    ROW("--no-chat-template", FLAG, no_chat_template, NULL, "continue the prompt as plain text"),
    ROW("--device", TEXT, device, "NAME", "device by index or part of its name"),
    ROW("--list-devices", FLAG, list_devices, NULL, "list the devices and stop"),
    ROW("--ids", FLAG, ids, NULL, "print token ids instead of text"),
    ROW("--check", TEXT, check, "FILE", "compare with a reference's tokens and logits; exit code 1 if they differ"),
    ROW("--bench", TEXT, bench, "P,G", "time a prompt of P tokens and the generation of G"),
    ROW("--profile", TEXT, profile, "FILE", "write each dispatch of a prompt of P tokens (512) and of a step behind it"),
    ROW("--depth", INTEGER, depth, "N", "with --bench, --profile: begin with N tokens in the context (0)"),
    ROW("--trials", COUNT, trials, "N", "with --bench: mean of N runs after one to warm up (3)"),
    ROW("--random", TEXT, random, "SIZE", "instead of --model: random weights of 0.6b, 1.7b, 4b, 8b, 14b or 32b"),
    ROW("--bits", INTEGER, bits, "N", "with --random: 2, 3, 4, 5, 6, 8, or 16 for bfloat16 (4)"),
    ROW("--help", FLAG, help, NULL, "print this"),
#undef ROW
};

/* What an option goes with: one of these is there, or it would say nothing. */
static const struct { const char *name, *with[2]; } companions[] = {
    { "--depth", { "--bench", "--profile" } }, { "--trials", { "--bench" } }, { "--bits", { "--random" } },
};

static bool parse_value(const struct option *option, void *field, const char *text, struct error *e)
{
    char *end = NULL;
    errno = 0;
    if (option->kind == TEXT) {
        *(const char **)field = text;
        return true;
    }
    if (option->kind == INTEGER || option->kind == COUNT) {
        long value = strtol(text, &end, 10);
        if (value < (option->kind == COUNT) || value > INT_MAX)
            errno = ERANGE;
        *(int *)field = (int)value;
    } else if (option->kind == SEED) {
        *(uint64_t *)field = strtoull(text, &end, 10);
        if (*text == '-')
            errno = ERANGE;
    } else {
        *(double *)field = strtod(text, &end);
        if (!isfinite(*(double *)field))
            errno = ERANGE;
    }
    if (end == text || *end || errno)
        return fail(e, "%s %s: not a %s", option->name, text,
                    option->kind == NUMBER ? "number" : "whole number in range");
    return true;
}

static const struct option *find_option(const char *name, size_t length)
{
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (strncmp(table[i].name, name, length) == 0 && !table[i].name[length])
            return &table[i];
    return NULL;
}

static bool is_given(const bool *given, const char *name)
{
    const struct option *option = name ? find_option(name, strlen(name)) : NULL;
    return option && given[option - table];
}

static bool check_companions(const bool *given, struct error *e)
{
    for (size_t i = 0; i < sizeof companions / sizeof *companions; i++) {
        const char *name = companions[i].name, *const *with = companions[i].with;
        if (is_given(given, name) && !is_given(given, with[0]) && !is_given(given, with[1]))
            return fail(e, "%s goes with %s%s%s", name, with[0], with[1] ? " or " : "", with[1] ? with[1] : "");
    }
    return true;
}

/* --name value, or --name=value. */
bool options_read(struct options *o, int argc, char **argv, struct error *e)
{
    bool given[sizeof table / sizeof *table] = { false };
    *o = (struct options){ .max_tokens = 100, .top_p = 1, .bits = 4, .trials = 3 };
    for (int i = 1; i < argc; i++) {
        const char *equals = strchr(argv[i], '='), *value = equals ? equals + 1 : NULL;
        const struct option *option = find_option(argv[i], equals ? (size_t)(equals - argv[i]) : strlen(argv[i]));
        if (!option)
            return fail(e, "%s: no such option; --help lists them", argv[i]);
        given[option - table] = true;
        void *field = (char *)o + option->field;
        if (option->kind == FLAG) {
            if (value)
                return fail(e, "%s takes no value", option->name);
            *(bool *)field = true;
            continue;
        }
        if (!value && i + 1 == argc)
            return fail(e, "%s needs a value", option->name);
        if (!parse_value(option, field, value ? value : argv[++i], e))
            return false;
        o->has_seed |= option->kind == SEED;
    }
    return check_companions(given, e);
}

void options_print_help(FILE *out)
{
    fputs("qwen3 - a Qwen3 language model on the GPU, through mlxvk\n\n"
          "  qwen3 --model DIR --prompt TEXT        write text\n"
          "  qwen3 --model DIR --check FILE         compare with a reference\n"
          "  qwen3 --random 8b --bench 512,128      measure\n"
          "  qwen3 --random 8b --profile FILE       what make profile draws\n\n", out);
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        char left[40];
        snprintf(left, sizeof left, "%s %s", table[i].name, table[i].value ? table[i].value : "");
        fprintf(out, "  %-20s %s\n", left, table[i].help);
    }
}
