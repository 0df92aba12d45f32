/* golden DIR [options]: runs the cases of every *.safetensors file in DIR and says what passed. */
#define _POSIX_C_SOURCE 200809L
#include "golden.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const char usage[] =
    "usage: golden DIR [FILE ...] [options], golden --fuzz SECONDS [options], or golden --info\n"
    "Runs the cases of every *.safetensors file in DIR (of each FILE there; of the one file DIR), compares with the\n"
    "stored results. Exits with 1 when a case failed, an operation is unknown or nothing ran.\n"
    "  --filter TEXT          cases whose name contains TEXT\n"
    "  --ops a,b              cases of these operations\n"
    "  --sample K/N           the K-th of N parts of the cases (K from 1), always the same ones\n"
    "  --but K/N              all cases but those\n"
    "  --no-contiguous-pass   do not run cases a second time with their viewed operands made contiguous\n"
    "  --scattered-pass       run cases once more with all operands transposed, with steps and holes, some reversed\n"
    "  --by-rows              products and attention once more for single rows, with the bits that these have among others\n"
    "                         (which MLX_VK_BATCH_INVARIANT=1 sees to)\n"
    "  --device NAME          a device by index or part of its name\n"
    "  --verbose              name each case before it runs\n"
    "  --info                 only say what the device is and has\n"
    "  --fuzz SECONDS         random calls instead; of --ops\n"
    "  --seed N               the first of them; with --fuzz 0 the only one\n"
    "  --scarce PERCENT       while so many of the library's allocations fail\n";

enum { MOST_FILES = 64 };

struct options {
    const char *path, *filter, *ops, *files[MOST_FILES];
    size_t file_count;
    unsigned long part, parts;
    bool but, verbose, info;
    struct run_options run;
    bool fuzz;
    struct fuzz_options random;
};

struct totals { int passed, failed, corrected; };

/* ---- options ---- */

static bool parse_sample(struct options *o, const char *text)
{
    char *end;
    o->part = strtoul(text, &end, 10);
    if (*end != '/') return false;
    o->parts = strtoul(end + 1, &end, 10);
    return !*end && o->part >= 1 && o->part <= o->parts;
}

/* The options that take a value. */
static bool parse_value(struct options *o, const char *option, const char *value)
{
    if (!value) return false;
    if (!strcmp(option, "--filter")) o->filter = value;
    else if (!strcmp(option, "--ops")) o->ops = value;
    else if (!strcmp(option, "--sample") || !strcmp(option, "--but")) {
        o->but = !strcmp(option, "--but");
        return parse_sample(o, value);
    }
    else if (!strcmp(option, "--scarce")) o->random.refused = atoi(value);
    else if (!strcmp(option, "--seed")) o->random.seed = strtoull(value, NULL, 10);
    else if (!strcmp(option, "--fuzz")) { o->fuzz = true; o->random.seconds = atof(value); }
    else if (!strcmp(option, "--device")) return !setenv("MLX_VK_DEVICE", value, 1);
    else return false;
    return true;
}

static bool parse_options(struct options *o, int argc, char **argv)
{
    *o = (struct options){ .parts = 1, .part = 1, .run.layouts[CONTIGUOUS] = true };
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--verbose")) o->verbose = true;
        else if (!strcmp(argv[i], "--info")) o->info = true;
        else if (!strcmp(argv[i], "--no-contiguous-pass")) o->run.layouts[CONTIGUOUS] = false;
        else if (!strcmp(argv[i], "--by-rows")) o->run.rows = true;
        else if (!strcmp(argv[i], "--scattered-pass")) o->run.layouts[SCATTERED] = true;
        else if (argv[i][0] != '-' && !o->path) o->path = argv[i];
        else if (argv[i][0] != '-' && o->file_count < MOST_FILES) o->files[o->file_count++] = argv[i];
        else if (!parse_value(o, argv[i], argv[i + 1])) return false;
        else i++;
    }
    return o->fuzz || o->info || o->path != NULL;
}

static bool listed(const char *list, const char *word)
{
    size_t length = strlen(word);
    for (const char *at = list; (at = strstr(at, word)) != NULL; at += length) {
        bool starts = at == list || at[-1] == ',';
        if (starts && (at[length] == ',' || !at[length])) return true;
    }
    return false;
}

/* FNV-1a: which part a case is in depends on its name alone. */
static uint32_t hash(const char *text)
{
    uint32_t value = 2166136261u;
    while (*text) value = (value ^ (unsigned char)*text++) * 16777619u;
    return value ^ value >> 16;
}

static bool wanted(const struct options *o, const char *name, const char *op)
{
    if (o->filter && !strstr(name, o->filter)) return false;
    if (o->ops && !listed(o->ops, op)) return false;
    return (hash(name) % o->parts == o->part - 1) != o->but;
}

/* ---- running ---- */

static void run_item(const struct options *o, const struct golden_file *file, const cJSON *item, mlxvk_stream stream,
                     struct totals *t)
{
    const char *name = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(item, "name"));
    const char *op = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(item, "op"));
    struct problem problem = { "" };
    if (!name || !op) {
        t->failed++;
        puts("FAIL a case without a name or an operation");
        return;
    }
    if (!wanted(o, name, op)) return;
    if (o->verbose) printf("     %s\n", name);
    enum outcome outcome = run_case(file, item, stream, &o->run, &problem);
    if (outcome == FAILED) t->failed++;
    else t->passed++;
    if (outcome == FAILED) printf("FAIL %s\n     %s\n", name, problem.text);
    if (outcome != CORRECTED) return;
    t->corrected++;
    printf("DATA %s\n     compared after correcting %s\n", name, problem.text);
}

static double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static void run_file(const struct options *o, const char *path, mlxvk_stream stream, struct totals *t)
{
    struct golden_file file;
    struct problem problem = { "" };
    struct totals before = *t;
    double start = seconds();
    const cJSON *item;
    if (!golden_open(&file, path, &problem)) {
        printf("FAIL %s\n", problem.text);
        t->failed++;
        return;
    }
    cJSON_ArrayForEach(item, file.cases) {
        run_item(o, &file, item, stream, t);
        if (mlxvk_device_status(mlxvk_stream_device(stream))) break;
    }
    golden_close(&file);
    int passed = t->passed - before.passed, failed = t->failed - before.failed;
    const char *slash = strrchr(path, '/');
    if (passed + failed)
        printf("%-28s %5d passed %5d failed %8.2f s\n", slash ? slash + 1 : path, passed, failed, seconds() - start);
}

static int by_text(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

static bool is_data(const char *name)
{
    size_t length = strlen(name), suffix = strlen(".safetensors");
    return length > suffix && !strcmp(name + length - suffix, ".safetensors");
}

/* A FILE is named as it is, or without what all names end with. */
static bool selected(const struct options *o, const char *name)
{
    for (size_t i = 0; i < o->file_count; i++) {
        size_t length = strlen(o->files[i]);
        if (strncmp(name, o->files[i], length)) continue;
        if (!name[length] || !strcmp(name + length, ".safetensors")) return true;
    }
    return !o->file_count;
}

/* The data files of a folder, or the one file, sorted; the number of them. */
static size_t list_files(char ***paths, const struct options *o)
{
    const char *path = o->path;
    size_t count = 0;
    DIR *folder = opendir(path);
    *paths = need(malloc(sizeof **paths));
    if (!folder && is_data(path)) (*paths)[count++] = need(strdup(path));
    for (struct dirent *entry; folder && (entry = readdir(folder)) != NULL;) {
        if (!is_data(entry->d_name) || !selected(o, entry->d_name)) continue;
        size_t size = strlen(path) + strlen(entry->d_name) + 2;
        *paths = need(realloc(*paths, (count + 1) * sizeof **paths));
        (*paths)[count] = need(malloc(size));
        snprintf((*paths)[count++], size, "%s/%s", path, entry->d_name);
    }
    if (folder) closedir(folder);
    qsort(*paths, count, sizeof **paths, by_text);
    return count;
}

static int run_all(const struct options *o, mlxvk_stream stream)
{
    struct totals totals = { 0 };
    char **paths;
    size_t count = list_files(&paths, o);
    bool all_there = count && (!o->file_count || count == o->file_count);
    if (!all_there) fprintf(stderr, "golden: no *.safetensors in %s, or not each that was named\n", o->path);
    for (size_t i = 0; i < count; i++) {
        run_file(o, paths[i], stream, &totals);
        free(paths[i]);
    }
    free(paths);
    int lost = mlxvk_device_status(mlxvk_stream_device(stream));
    if (totals.corrected) printf("with corrected data: %d cases (DATA above)\n", totals.corrected);
    if (lost) printf("stopped: %s\n", mlxvk_result_text(lost));
    printf("%d passed, %d failed\n", totals.passed, totals.failed);
    return !all_there || lost || totals.failed || !totals.passed;
}

static bool wanted_operation(const void *user, const char *op)
{
    const struct options *o = user;
    return !o->ops || listed(o->ops, op);
}

static int print_info(mlxvk_device device)
{
    mlxvk_vector_string keys = mlxvk_vector_string_new();
    int code = mlxvk_device_info_get_keys(&keys, device);
    for (size_t i = 0; i < mlxvk_vector_string_size(keys); i++) {
        char *key;
        const char *text;
        size_t value;
        mlxvk_vector_string_get(&key, keys, i);
        if (!mlxvk_device_info_get_string(&text, device, key)) printf("%s %s\n", key, text);
        else if (!mlxvk_device_info_get_size(&value, device, key)) printf("%s %zu\n", key, value);
    }
    mlxvk_vector_string_free(keys);
    return code;
}

int main(int argc, char **argv)
{
    struct options options;
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (!parse_options(&options, argc, argv)) {
        fputs(usage, stderr);
        return 2;
    }
    mlxvk_stream stream = mlxvk_default_gpu_stream_new();
    if (!stream.ctx) {
        mlxvk_error error = { 0 };
        mlxvk_device_create(&(mlxvk_device){ NULL }, &(mlxvk_device_desc){ .error = &error });
        fprintf(stderr, "golden: %s\n", error.text);
        return 1;
    }
    options.random.verbose = options.verbose;
    options.random.wanted = wanted_operation;
    options.random.user = &options;
    int status = options.info ? print_info(mlxvk_stream_device(stream)) : options.fuzz ? fuzz(&options.random, stream) : run_all(&options, stream);
    mlxvk_stream_free(stream);
    return status;
}
