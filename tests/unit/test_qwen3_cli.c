/* test_qwen3_cli.c - the program as its user meets it: what it prints, and for each bad input one line and exit code 1. */
#define _POSIX_C_SOURCE 200809L

#include "support_files.h"
#include "../qwen3/util.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define MODEL "tests/models/tiny-qwen3"

static char program[4096]; /* qwen3, which lies one folder above this test */

static int find_program(void **state)
{
    ssize_t length = readlink("/proc/self/exe", program, sizeof program - 16);
    if (length < 0 || make_dir(state))
        return -1;
    program[length] = 0;
    for (int i = 0; i < 2; i++)
        *strrchr(program, '/') = 0;
    strcat(program, "/qwen3");
    return access(program, X_OK);
}

/* ==== >>helpers =========================================================================================== */

struct outcome {
    int         code;           /* exit code, or -1 where a signal ended it */
    struct text out, err;
};

static void take(struct text *text, const char *path)
{
    struct error e = { "" };
    assert_true(read_whole(text, path, 1 << 24, &e));
    unlink(path);
}

static void child(const char *out, const char *err, const char *input, char **argv, bool no_driver)
{
    int in = open(input ? input : "/dev/null", O_RDONLY);
    int o = open(out, O_WRONLY | O_CREAT | O_TRUNC, 0600), r = open(err, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (in < 0 || o < 0 || r < 0 || dup2(in, 0) < 0 || dup2(o, 1) < 0 || dup2(r, 2) < 0)
        _exit(99);
    if (no_driver) {
        setenv("VK_DRIVER_FILES", "/no/such/file", 1);
        setenv("VK_ICD_FILENAMES", "/no/such/file", 1); /* its name before loader 1.3.207 */
    }
    execv(program, argv);
    _exit(98);
}

/* Runs the program. arguments: separated by '|'. no_driver: the Vulkan loader finds none. */
static void run(struct outcome *o, const char *arguments, const char *input, bool no_driver)
{
    char *copy = copy_text(arguments, strlen(arguments)), *argv[32] = { program }, *next = copy;
    char *out = path_join(dir, "out"), *err = path_join(dir, "err");
    int count = 1, status = 0;
    for (char *bar = copy; next && *next && count < 31; next = bar ? bar + 1 : NULL) {
        bar = strchr(next, '|');
        if (bar)
            *bar = 0;
        argv[count++] = next;
    }
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0)
        child(out, err, input, argv, no_driver);
    assert_true(pid > 0);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    *o = (struct outcome){ .code = WIFEXITED(status) ? WEXITSTATUS(status) : -1 };
    take(&o->out, out);
    take(&o->err, err);
    free(out);
    free(err);
    free(copy);
}

static void free_outcome(struct outcome *o)
{
    text_free(&o->out);
    text_free(&o->err);
}

static void expect_line(struct outcome *o, const char *arguments, const char *why)
{
    const char *end = strchr(o->err.data, '\n');
    bool one_line = end && !end[1] && strncmp(o->err.data, "qwen3: ", 7) == 0;
    if (o->code != 1 || !one_line || !strstr(o->err.data, why))
        print_error("%s: exit code %d, expected a line with \"%s\", got:\n%s", arguments, o->code, why, o->err.data);
    assert_int_equal(o->code, 1);
    assert_true(one_line);
    assert_non_null(strstr(o->err.data, why));
}

static void refused(const char *arguments, const char *why)
{
    struct outcome o;
    run(&o, arguments, NULL, false);
    expect_line(&o, arguments, why);
    free_outcome(&o);
}

static bool starts_with(const char *text, const char *with)
{
    return strncmp(text, with, strlen(with)) == 0;
}

/* ==== >>models: copies of the tiny one with something wrong ================================================= */

static void copy_file(const char *name)
{
    struct text text = { 0 };
    struct error e = { "" };
    char *path = path_join(MODEL, name);
    assert_true(read_whole(&text, path, 1 << 24, &e));
    write_bytes(name, text.data, text.length);
    text_free(&text);
    free(path);
}

static const char *const parts[] = { "config.json", "tokenizer.json", "model.safetensors" };

static void make_copy(void)
{
    for (int i = 0; i < 3; i++)
        copy_file(parts[i]);
}

/* The copy with one file replaced (NULL: without it), refused. */
static void refused_copy(const char *name, const char *bytes, size_t length, const char *why)
{
    char arguments[128];
    make_copy();
    remove_file(name);
    if (bytes)
        write_bytes(name, bytes, length);
    snprintf(arguments, sizeof arguments, "--model|%s|--prompt|The|--max-tokens|1", dir);
    refused(arguments, why);
    remove_file(name);
    for (int i = 0; i < 3; i++)
        remove_file(parts[i]);
}

/* A file of the tiny model in which `from` is replaced by `to`. */
static void refused_edit(const char *name, const char *from, const char *to, const char *why)
{
    struct text text = { 0 }, edited = { 0 };
    struct error e = { "" };
    char *path = path_join(MODEL, name);
    assert_true(read_whole(&text, path, 1 << 24, &e));
    size_t at = 0;
    while (at + strlen(from) <= text.length && memcmp(text.data + at, from, strlen(from)) != 0)
        at++;
    assert_true(at + strlen(from) <= text.length);
    text_add(&edited, text.data, at);
    text_add_string(&edited, to);
    text_add(&edited, text.data + at + strlen(from), text.length - at - strlen(from));
    refused_copy(name, edited.data, edited.length, why);
    text_free(&text);
    text_free(&edited);
    free(path);
}

/* ==== >>tests ============================================================================================= */

static void test_help(void **state)
{
    struct outcome o;
    (void)state;
    run(&o, "--help", NULL, false);
    assert_int_equal(o.code, 0);
    assert_non_null(strstr(o.out.data, "--no-chat-template"));
    free_outcome(&o);
    run(&o, "--list-devices", NULL, false);
    assert_int_equal(o.code, 0);
    assert_true(starts_with(o.out.data, "0: "));
    free_outcome(&o);
}

static void test_text(void **state)
{
    struct outcome o;
    (void)state;
    run(&o, "--model|" MODEL "|--prompt|The printf() function|--max-tokens|8", NULL, false);
    assert_string_equal(o.err.data, "");
    assert_int_equal(o.code, 0);
    assert_true(starts_with(o.out.data, "==========\n"));
    const char *figures = strstr(o.out.data + 10, "\n==========\nPrompt: 4 tokens, ");
    assert_non_null(figures);
    assert_non_null(strstr(figures, " tokens-per-sec\nGeneration: 8 tokens, "));
    assert_non_null(strstr(figures, " tokens-per-sec\nPeak memory: "));
    assert_non_null(strstr(figures, " GB\n"));
    free_outcome(&o);
}

/* The prompt from standard input gives the same ids as on the command line; a seed gives the same ids twice. */
static void test_ids(void **state)
{
    struct outcome a, b;
    (void)state;
    write_bytes("prompt", "The mutex is", 12);
    char *path = path_join(dir, "prompt");
    run(&a, "--model|" MODEL "|--ids|--max-tokens|6|--temp|0.9|--top-p|0.9|--top-k|40|--seed|5", path, false);
    run(&b, "--model|" MODEL "|--ids|--max-tokens|6|--temp|0.9|--top-p|0.9|--top-k|40|--seed|5|--prompt|The mutex is", NULL, false);
    assert_int_equal(a.code, 0);
    assert_int_equal(b.code, 0);
    assert_true(starts_with(a.out.data, "Prompt ids: "));
    size_t same = (size_t)(strstr(a.out.data, "Prompt: ") - a.out.data);
    assert_memory_equal(a.out.data, b.out.data, same);
    remove_file("prompt");
    free(path);
    free_outcome(&a);
    free_outcome(&b);
}

static void test_utf8(void **state)
{
    struct outcome o;
    (void)state;
    run(&o, "--model|" MODEL "|--prompt|\xe4\xbd\xa0\xe5\xa5\xbd\xe5\x95\x8a|--max-tokens|5|--temp|3|--seed|1", NULL, false);
    assert_int_equal(o.code, 0);
    assert_int_equal(utf8_check(o.out.data, o.out.length), o.out.length);
    free_outcome(&o);
}

static void test_bench(void **state)
{
    struct outcome o;
    (void)state;
    run(&o, "--model|" MODEL "|--bench|16,4|--depth|8|--trials|1", NULL, false);
    assert_int_equal(o.code, 0);
    assert_non_null(strstr(o.out.data, "| prompt   |     16 |      8 |"));
    assert_non_null(strstr(o.out.data, "| generate |      4 |      8 |"));
    free_outcome(&o);
}

/* Lines of dispatches, of each part some. */
static void test_profile(void **state)
{
    static const char *const begins[] = { "\ncopy,", "\nproduct,", "\nprompt,", "\ndecode,", "\nnext," };
    struct outcome o;
    struct text text = { 0 };
    struct error e = { "" };
    char *path = path_join(dir, "profile"), arguments[256];
    (void)state;
    snprintf(arguments, sizeof arguments, "--model|" MODEL "|--bench|16,1|--depth|8|--profile|%s", path);
    run(&o, arguments, NULL, false);
    assert_int_equal(o.code, 0);
    assert_int_equal(o.out.length, 0);
    assert_true(read_whole(&text, path, 1 << 20, &e));
    assert_non_null(strstr(text.data, "# a prompt of 16 tokens behind 8\n"));
    for (size_t i = 0; i < sizeof begins / sizeof *begins; i++)
        assert_non_null(strstr(text.data, begins[i]));
    remove_file("profile");
    text_free(&text);
    free(path);
    free_outcome(&o);
}

static void test_bad_options(void **state)
{
    (void)state;
    refused("--nonsense", "--nonsense: no such option");
    refused("--prompt|x", "give either --model DIR or --random SIZE");
    refused("--model|" MODEL "|--random|8b", "give either");
    refused("--model|" MODEL "|--prompt=", "the prompt is empty");
    refused("--model|" MODEL "|--prompt|x|--temp|-1", "--temp -1");
    refused("--model|" MODEL "|--prompt|x|--top-p|2", "--top-p 2");
    refused("--model|" MODEL "|--prompt|x|--system|y", "no chat model");
    refused("--model|" MODEL "|--prompt|x\xff", "not UTF-8 at byte 1");
    refused("--model|" MODEL "|--prompt|x|--device|no such device", "no such device");
    refused("--model|" MODEL "|--bench|7", "not two numbers");
    refused("--model|" MODEL "|--bench|5000,1", "context of 4096 is too short");
    refused("--model|" MODEL "|--profile|x|--bench|0,1", "a prompt of 0 tokens");
    refused("--model|" MODEL "|--profile|/no/such/file", "/no/such/file");
    refused("--model|" MODEL "|--bench|4,4|--trials|0", "--trials 0: not a whole number in range");
    refused("--model|" MODEL "|--prompt|x|--trials=1", "--trials goes with --bench");
    refused("--model|" MODEL "|--prompt|x|--depth|8", "--depth goes with --bench or --profile");
    refused("--bits|8|--model|" MODEL "|--prompt|x", "--bits goes with --random");
    refused("--random|9b|--bench|1,1", "--random 9b");
    refused("--random|8b", "--random is for --bench");
    refused("--model|" MODEL "|--check|/no/such/file", "/no/such/file");
    refused("--model|/no/such/dir|--prompt|x", "/no/such/dir/config.json: No such file or directory");
}

static void test_no_device(void **state)
{
    struct outcome o;
    (void)state;
    const char *arguments = "--model|" MODEL "|--prompt|x";
    run(&o, arguments, NULL, true);
    expect_line(&o, arguments, "no device");
    free_outcome(&o);
}

static void test_long_prompt(void **state)
{
    struct outcome o;
    struct text text = { 0 };
    (void)state;
    for (int i = 0; i < 5000; i++)
        text_add_string(&text, "a, ");
    write_bytes("prompt", text.data, text.length);
    char *path = path_join(dir, "prompt");
    run(&o, "--model|" MODEL, path, false);
    expect_line(&o, "long prompt", "longer than the model's context of 4096");
    remove_file("prompt");
    free(path);
    text_free(&text);
    free_outcome(&o);
}

static void test_bad_files(void **state)
{
    (void)state;
    for (int i = 0; i < 3; i++) {
        refused_copy(parts[i], NULL, 0, i == 2 ? "no model" : parts[i]);
        refused_copy(parts[i], "", 0, parts[i]);
        refused_copy(parts[i], "{\"model", 7, parts[i]);
        refused_copy(parts[i], "\0\0\0\0\0\0\0\0\0\0\0\0", 12, parts[i]);
    }
    refused_edit("config.json", "\"qwen3\"", "\"llama\"", "model_type is llama");
    refused_edit("config.json", "\"hidden_size\": 256", "\"hidden_size\": 512", "but config.json makes it");
    refused_edit("config.json", "\"vocab_size\": 4096", "\"vocab_size\": 4097", "model.embed_tokens.weight is U32");
    refused_edit("config.json", "\"vocab_size\": 4096", "\"vocab_size\": 100", "outside the model's vocabulary of 100");
    refused_edit("config.json", "\"bits\": 4", "\"bits\": 9", "bits is 9");
    refused_edit("config.json", "\"num_hidden_layers\": 4", "\"num_hidden_layers\": 5", "layers.4.self_attn.q_proj.weight is missing");
    refused_edit("model.safetensors", "model.norm.weight", "model.norm.wei_ht", "model.norm.weight is missing");
    refused_edit("model.safetensors", "\"shape\":[4096,32]", "\"shape\":[4096,33]", "its dtype and shape take");
    refused_edit("model.safetensors", "\"shape\":[4096,32]", "\"shape\":[32,4096]", "U32 [32, 4096]");
    refused_edit("model.safetensors", "\"U32\",\"shape\":[4096,32]", "\"F32\",\"shape\":[4096,32]", "must be U32");
    refused_edit("tokenizer.json", "\"BPE\"", "\"XYZ\"", "model.type is XYZ");
}

/* The tokenizer's end of a text counts besides config.json's. */
static void test_tokenizer_eos(void **state)
{
    struct outcome o;
    char arguments[256];
    (void)state;
    make_copy();
    snprintf(arguments, sizeof arguments, "--model|%s|--max-tokens|40|--prompt|The mutex is", dir);
    for (int i = 0; i < 2; i++) {
        if (i)
            write_bytes("tokenizer_config.json", "{\"eos_token\": \".\"}", 18);
        run(&o, arguments, NULL, false);
        assert_int_equal(o.code, 0);
        const char *figures = strstr(o.out.data + 10, "\n==========\n"), *dot = strchr(o.out.data, '.');
        assert_non_null(figures);
        assert_true(dot && (dot < figures) == (i == 0));
        free_outcome(&o);
    }
    remove_file("tokenizer_config.json");
    for (int i = 0; i < 3; i++)
        remove_file(parts[i]);
}

/* A reference that the model does not agree with: exit code 1, and the report says where. */
static void test_check_fails(void **state)
{
    static const char wrong[] = "{\"cases\": [{\"prompt_ids\": [799, 201, 266, 415, 984], \"tokens\": [7], \"margins\": [2]}]}";
    struct outcome o;
    char arguments[128];
    (void)state;
    write_bytes("wrong.json", wrong, sizeof wrong - 1);
    snprintf(arguments, sizeof arguments, "--model|" MODEL "|--check|%s/wrong.json", dir);
    run(&o, arguments, NULL, false);
    assert_int_equal(o.code, 1);
    assert_string_equal(o.err.data, "");
    assert_non_null(strstr(o.out.data, "first other choice at step 0"));
    assert_non_null(strstr(o.out.data, "0 passed, 1 failed"));
    free_outcome(&o);
    static const char outside[] = "{\"cases\": [{\"prompt_ids\": [4096], \"tokens\": [7], \"margins\": [2]}]}";
    write_bytes("wrong.json", outside, sizeof outside - 1);
    refused(arguments, "prompt_ids is 4096, outside");
    remove_file("wrong.json");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_help),        cmocka_unit_test(test_text),     cmocka_unit_test(test_ids),
        cmocka_unit_test(test_utf8),        cmocka_unit_test(test_bench),    cmocka_unit_test(test_profile),
        cmocka_unit_test(test_bad_options), cmocka_unit_test(test_no_device), cmocka_unit_test(test_long_prompt),
        cmocka_unit_test(test_tokenizer_eos), cmocka_unit_test(test_bad_files),   cmocka_unit_test(test_check_fails),
    };
    return cmocka_run_group_tests_name("qwen3 command line", tests, find_program, remove_dir);
}
