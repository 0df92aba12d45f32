/* main.c - a Qwen3 language model on the GPU, in plain C against mlxvk.h.
 *
 * Everything that is opened lies in one struct, filled step by step and released at one place, whatever fails. Errors are
 * one line on stderr and exit code 1. */
#define _POSIX_C_SOURCE 200809L

#include "bench.h"
#include "chat.h"
#include "check.h"
#include "generate.h"
#include "options.h"
#include "profile.h"
#include "tokenizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { PROMPT_LIMIT = 64 << 20 }; /* bytes */

struct program {
    struct options     options;
    struct config      config;
    struct chat        chat;
    struct safetensors weights;
    struct gpu         gpu;
    struct model       model;
    struct sampler     sampler;
    struct tokenizer  *tokenizer;
    struct utf8_stream stream;      /* text of tokens that are no whole character yet */
    struct text        prompt, pending;
    struct ids         ids;
    size_t             written;     /* bytes of text, or ids */
    bool               failed;      /* a comparison did, which is no error */
    double             device_seconds, weights_seconds; /* that each took to open */
};

/* ==== >>open ============================================================================================== */

static void print_device(int index, const char *name, const char *type, void *user)
{
    (void)user;
    printf("%d: %s (%s)\n", index, name, type);
}

static bool list_devices(struct error *e)
{
    if (!mlxvk_is_available())
        return fail(e, "no Vulkan device; a driver is needed (Debian and Ubuntu: mesa-vulkan-drivers or the GPU maker's)");
    int code = mlxvk_device_list(print_device, NULL);
    return code == 0 || fail(e, "%s", mlxvk_result_text(code));
}

static void show_progress(void *user, size_t done, size_t total)
{
    enum { WIDTH = 40 };
    char bar[WIDTH + 1];
    int *shown = user, percent = total ? (int)((double)done * 100 / (double)total) : 100;
    if (percent == *shown)
        return;
    *shown = percent;
    for (int i = 0; i < WIDTH; i++)
        bar[i] = i < percent * WIDTH / 100 ? '#' : '.';
    bar[WIDTH] = 0;
    fprintf(stderr, "\rLoading weights [%s] %3d %%%s", bar, percent, done == total ? "\r\033[K" : "");
    fflush(stderr);
}

static bool open_gpu(struct program *p, struct error *e)
{
    double start = seconds_now();
    bool ok = gpu_open(&p->gpu, p->options.device, p->options.profile ? PROFILE_GATES : NULL, e);
    p->device_seconds = seconds_now() - start;
    return ok;
}

/* Weights from a checkpoint: everything about the files is checked before the device is asked for anything. */
static bool open_checkpoint(struct program *p, struct error *e)
{
    int shown = -1;
    bool tty = isatty(STDERR_FILENO);
    if (!safetensors_open(&p->weights, p->options.model, e) || !open_gpu(p, e))
        return false;
    double start = seconds_now();
    bool ok = model_load(&p->model, &p->gpu, &p->config, &p->weights, tty ? show_progress : NULL, &shown, e);
    p->weights_seconds = seconds_now() - start;
    if (tty && !ok && shown >= 0)
        fputs("\r\033[K", stderr);
    safetensors_close(&p->weights);
    return ok;
}

static bool open_random(struct program *p, struct error *e)
{
    if (!config_preset(&p->config, p->options.random, p->options.bits, e) || !open_gpu(p, e))
        return false;
    double start = seconds_now();
    bool ok = model_random(&p->model, &p->gpu, &p->config, p->options.seed, e);
    p->weights_seconds = seconds_now() - start;
    return ok;
}

static bool open_tokenizer(struct program *p, struct error *e)
{
    char *path = path_join(p->options.model, "tokenizer.json");
    p->tokenizer = tokenizer_open(path, e);
    free(path);
    if (!p->tokenizer)
        return false;
    /* The tokenizer's counts besides the model's: a chat model's <|im_end|>, where its config.json is the base's. */
    char *eos = chat_eos_token(p->options.model);
    int32_t id = eos ? tokenizer_id(p->tokenizer, eos) : -1;
    free(eos);
    if (id >= 0)
        config_add_eos(&p->config, id);
    return chat_read(&p->chat, p->options.model, e);
}

static void close_program(struct program *p)
{
    sampler_close(&p->sampler);
    model_free(&p->model);
    gpu_close(&p->gpu);
    safetensors_close(&p->weights);
    tokenizer_free(p->tokenizer);
    config_free(&p->config);
    chat_free(&p->chat);
    text_free(&p->prompt);
    text_free(&p->pending);
    ids_free(&p->ids);
}

/* ==== >>write ============================================================================================= */

static bool read_prompt(struct program *p, struct error *e)
{
    const struct options *o = &p->options;
    struct text user = { 0 };
    bool ok = true;
    if (o->prompt && strcmp(o->prompt, "-") != 0)
        text_add_string(&user, o->prompt);
    else
        ok = read_whole(&user, NULL, PROMPT_LIMIT, e);
    if (ok && (!p->chat.has_template || o->no_chat_template)) {
        if (o->system)
            ok = fail(e, "--system: %s", o->no_chat_template ? "needs the chat template" : "this is no chat model");
        text_add(&p->prompt, user.data, user.length);
    } else if (ok && !p->chat.is_chatml) {
        ok = fail(e, "%s: its chat template is not one of plain ChatML; use --no-chat-template", o->model);
    } else if (ok) {
        chat_render(&p->chat, o->system, user.data, user.length, &p->prompt);
    }
    /* A chat template writes what has to stand around the text; plain text gets what the tokenizer puts there. */
    bool plain = !p->chat.has_template || o->no_chat_template;
    ok = ok && tokenizer_encode(p->tokenizer, p->prompt.data, p->prompt.length, plain, &p->ids, e);
    text_free(&user);
    return ok;
}

static void put(const struct text *text)
{
    if (text->length)
        fwrite(text->data, 1, text->length, stdout);
}

static void print_token(void *user, int32_t id)
{
    struct program *p = user;
    if (p->options.ids) {
        p->written += printf("%d ", id) > 0;
    } else {
        p->pending.length = 0;
        tokenizer_stream(p->tokenizer, id, &p->stream, &p->pending);
        p->written += p->pending.length;
        put(&p->pending);
    }
    fflush(stdout);
}

static void print_rest(struct program *p)
{
    p->pending.length = 0;
    utf8_flush(&p->stream, &p->pending);
    put(&p->pending);
    fputs("\n==========\n", stdout);
}

static double rate(size_t tokens, double seconds)
{
    return seconds > 0 ? (double)tokens / seconds : 0;
}

/* In mlx_lm's words. */
static void print_figures(struct program *p, const struct generation *run)
{
    size_t peak = 0;
    if (p->written == 0) {
        printf("No text generated for this prompt\n");
        return;
    }
    mlxvk_device_get_peak_memory(&peak, p->gpu.device);
    printf("Prompt: %zu tokens, %.3f tokens-per-sec\n", run->prompt_tokens, rate(run->prompt_tokens, run->prompt_seconds));
    printf("Generation: %zu tokens, %.3f tokens-per-sec\n", run->tokens, rate(run->tokens, run->seconds));
    printf("Peak memory: %.3f GB\n", (double)peak / 1e9);
}

static bool write_text(struct program *p, struct error *e)
{
    const struct options *o = &p->options;
    struct generation run = { .max_tokens = o->max_tokens, .check_logits = true, .on_token = print_token,
                              .user = p };
    if (!sampler_open(&p->sampler, &p->gpu, o->temp, o->top_p, o->top_k, o->seed, e))
        return false;
    if (o->ids) {
        printf("Prompt ids: ");
        for (size_t i = 0; i < p->ids.length; i++)
            printf("%d ", p->ids.data[i]);
        printf("\n");
    }
    puts("==========");
    fflush(stdout);
    bool ok = generate(&run, &p->model, &p->sampler, p->ids.data, p->ids.length, e);
    print_rest(p);
    if (ok)
        print_figures(p, &run);
    fflush(stdout);
    return ok && (!ferror(stdout) || fail(e, "standard output cannot be written"));
}

/* ==== >>run =============================================================================================== */

static bool run_bench(struct program *p, struct error *e)
{
    struct bench bench = { .prompt = 512, .depth = p->options.depth, .trials = p->options.trials,
                           .temp = p->options.temp, .top_p = p->options.top_p, .top_k = p->options.top_k,
                           .device = p->device_seconds, .weights = p->weights_seconds };
    char name[128], rest;
    if (p->options.bench && sscanf(p->options.bench, "%d,%d%c", &bench.prompt, &bench.generate, &rest) != 2)
        return fail(e, "--bench %s: not two numbers with a comma between", p->options.bench);
    if (p->options.random)
        snprintf(name, sizeof name, "Qwen3-%s %d-bit, random", p->options.random, p->options.bits);
    else
        snprintf(name, sizeof name, "%s", p->options.model);
    if (p->options.profile)
        return profile_run(p->options.profile, &p->model, name, bench.prompt, bench.depth, e);
    return bench_run(&bench, &p->model, name, stdout, e);
}

static bool run(struct program *p, struct error *e)
{
    struct options *o = &p->options;
    if (o->list_devices)
        return list_devices(e);
    if (!o->model == !o->random)
        return fail(e, "give either --model DIR or --random SIZE; --help lists the options");
    if (!sampler_check(o->temp, o->top_p, o->top_k, e))
        return false;
    bool measures = o->bench || o->profile, writes = !o->check && !measures;
    if (o->random && !measures)
        return fail(e, "--random is for --bench and --profile: random weights write nothing");
    if (!o->has_seed && !o->random)
        o->seed = (uint64_t)time(NULL);
    if (o->random)
        return open_random(p, e) && run_bench(p, e);
    if (!config_read(&p->config, o->model, e) || (writes && (!open_tokenizer(p, e) || !read_prompt(p, e))))
        return false;
    if (writes && !p->ids.length)
        return fail(e, "the prompt is empty");
    if (!model_takes(&p->config, p->ids.data, p->ids.length, 0, e))
        return false;
    if (!open_checkpoint(p, e))
        return false;
    if (measures)
        return run_bench(p, e);
    if (!o->check)
        return write_text(p, e);
    p->failed = !check_reference(&p->model, o->check, stdout, e);
    return !e->text[0];
}

int main(int argc, char **argv)
{
    struct program program = { 0 };
    struct error e = { "" };
    bool ok = options_read(&program.options, argc, argv, &e);
    if (ok && (program.options.help || argc == 1))
        options_print_help(stdout);
    else
        ok = ok && run(&program, &e);
    close_program(&program);
    if (!ok)
        fprintf(stderr, "qwen3: %s\n", e.text);
    return ok && !program.failed ? 0 : 1;
}
