/* test_qwen3_config.c - config.json, chat templates and the command line: what is read, and what is refused and how. */
#define _POSIX_C_SOURCE 200809L

#include "support_files.h"
#include "../qwen3/chat.h"
#include "../qwen3/config.h"
#include "../qwen3/options.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

/* ==== >>config ============================================================================================ */

#define SIZES "\"rope_theta\": 10000, \"hidden_size\": 64, \"intermediate_size\": 128, \"num_hidden_layers\": 2, \"num_attention_heads\": 4"
#define GOOD "\"model_type\": \"qwen3\", " SIZES ", \"num_key_value_heads\": 2, \"head_dim\": 32, \"vocab_size\": 100"

static void refused(const char *json, const char *why)
{
    struct config c;
    struct error e = { "" };
    write_text("config.json", json);
    bool ok = config_read(&c, dir, &e);
    if (ok || !strstr(e.text, why))
        print_error("%s: expected \"%s\", got \"%s\"\n", json, why, e.text);
    assert_false(ok);
    assert_non_null(strstr(e.text, why));
    assert_non_null(strstr(e.text, "config.json"));
    remove_file("config.json");
}

static void accepted(const char *json, struct config *c)
{
    struct error e = { "" };
    write_text("config.json", json);
    bool ok = config_read(c, dir, &e);
    if (!ok)
        print_error("%s\n", e.text);
    assert_true(ok);
    remove_file("config.json");
}

static void test_config(void **state)
{
    struct config c;
    (void)state;
    accepted("{" GOOD ", \"eos_token_id\": [7, 8, 7], \"tie_word_embeddings\": true}", &c);
    assert_int_equal(c.layers, 2);
    assert_int_equal(c.eos_count, 2);
    assert_true(config_is_eos(&c, 8));
    assert_false(config_is_eos(&c, 9));
    assert_true(c.tied);
    assert_true(c.rope.theta == 10000);
    assert_null(config_quantization(&c, "lm_head"));
    config_free(&c);
    accepted("{\"model_type\": \"qwen3\", " SIZES ", \"vocab_size\": 100, \"eos_token_id\": null}", &c);
    assert_int_equal(c.kv_heads, 4);
    assert_int_equal(c.head_dim, 128);
    assert_int_equal(c.eos_count, 0);
    config_free(&c);
}

static void test_generation_config(void **state)
{
    struct config c;
    (void)state;
    write_text("generation_config.json", "{\"eos_token_id\": [3, 5]}");
    accepted("{" GOOD ", \"eos_token_id\": 3}", &c);
    assert_int_equal(c.eos_count, 2);
    config_free(&c);
    accepted("{" GOOD ", \"eos_token_id\": 4}", &c); /* the other file's take its place */
    assert_int_equal(c.eos_count, 2);
    assert_false(config_is_eos(&c, 4));
    config_free(&c);
    for (int i = 0; i < 2; i++) {
        write_text("generation_config.json", i ? "{\"eos_token_id\": []}" : "{\"eos_token_id\": 0}");
        accepted("{" GOOD ", \"eos_token_id\": 4}", &c);
        assert_int_equal(c.eos_count, 1);
        assert_true(config_is_eos(&c, 4));
        config_free(&c);
    }
    struct error e = { "" };
    write_text("config.json", "{" GOOD "}");
    write_text("generation_config.json", "{\"eos_token_id\": \"x\"}");
    assert_false(config_read(&c, dir, &e));
    assert_non_null(strstr(e.text, "generation_config.json"));
    remove_file("generation_config.json");
    remove_file("config.json");
}

static void test_quantization(void **state)
{
    struct config c;
    (void)state;
    accepted("{" GOOD ", \"quantization\": {\"group_size\": 32, \"bits\": 4, \"model.layers.0.mlp.up_proj\": false,"
             "\"model.layers.0.mlp.down_proj\": {\"bits\": 8}, \"lm_head\": {\"bits\": 6, \"group_size\": 128},"
             "\"model.embed_tokens\": true}}", &c);
    assert_null(config_quantization(&c, "model.layers.0.mlp.up_proj"));
    assert_int_equal(config_quantization(&c, "model.layers.0.mlp.down_proj")->bits, 8);
    /* what an entry does not name is the mode's own, not the defaults' */
    assert_int_equal(config_quantization(&c, "model.layers.0.mlp.down_proj")->group_size, 64);
    assert_int_equal(config_quantization(&c, "lm_head")->bits, 6);
    assert_int_equal(config_quantization(&c, "lm_head")->group_size, 128);
    assert_int_equal(config_quantization(&c, "model.embed_tokens")->bits, 4);
    assert_int_equal(config_quantization(&c, "model.layers.1.mlp.up_proj")->bits, 4);
    config_free(&c);
    accepted("{" GOOD ", \"quantization\": {\"mode\": \"nvfp4\", \"lm_head\": {\"mode\": \"mxfp8\"}, \"a.b\": {}}}", &c);
    assert_int_equal(c.quantization.mode, QUANTIZED_NVFP4);
    assert_int_equal(c.quantization.bits, 4);
    assert_int_equal(c.quantization.group_size, 16);
    assert_int_equal(config_quantization(&c, "lm_head")->mode, QUANTIZED_MXFP8);
    assert_int_equal(config_quantization(&c, "lm_head")->bits, 8);
    assert_int_equal(config_quantization(&c, "a.b")->mode, QUANTIZED_AFFINE);
    config_free(&c);
}

#define UNTURNED "\"model_type\": \"qwen3\", \"hidden_size\": 64, \"intermediate_size\": 128, \"num_hidden_layers\": 2, " \
                 "\"num_attention_heads\": 4, \"vocab_size\": 100"

/* What lies at the top counts before the parameters, type before rope_type, as for mlx-lm. */
static void test_rope(void **state)
{
    struct config c;
    (void)state;
    accepted("{" UNTURNED ", \"rope_parameters\": {\"rope_type\": \"linear\", \"rope_theta\": 500, \"factor\": 2}}", &c);
    assert_true(c.rope.theta == 500 && c.rope.kind == ROPE_LINEAR && c.rope.factor == 2);
    config_free(&c);
    accepted("{" GOOD ", \"rope_parameters\": {\"rope_type\": \"linear\", \"rope_theta\": 500, \"factor\": 2}}", &c);
    assert_true(c.rope.theta == 10000 && c.rope.kind == ROPE_LINEAR);
    config_free(&c);
    accepted("{" UNTURNED ", \"rope_scaling\": {\"type\": \"yarn\", \"rope_type\": \"default\", \"factor\": 4},"
             "\"rope_parameters\": {\"rope_type\": \"linear\", \"rope_theta\": 500, \"factor\": 2}}", &c);
    assert_true(c.rope.theta == 500 && c.rope.kind == ROPE_YARN && c.rope.factor == 4);
    config_free(&c);
    accepted("{" GOOD ", \"max_position_embeddings\": 40960, \"rope_scaling\": {\"type\": \"yarn\", \"factor\": 4,"
             "\"original_max_position_embeddings\": 32768}}", &c);
    assert_int_equal(c.max_positions, 131072);          /* and not where the model was before */
    config_free(&c);
    accepted("{" GOOD ", \"max_position_embeddings\": 1000, \"rope_scaling\": {\"type\": \"linear\", \"factor\": 1e6}}", &c);
    assert_int_equal(c.max_positions, 1 << 24);
    config_free(&c);
    refused("{" UNTURNED "}", "rope_theta is missing");
    refused("{" GOOD ", \"rope_scaling\": \"yarn\"}", "rope_scaling is not an object");
    refused("{" GOOD ", \"rope_scaling\": {\"type\": \"linear\"}}", "without factor");
    refused("{" GOOD ", \"rope_scaling\": {\"type\": 3, \"factor\": 2}}", "not a string");
    refused("{" GOOD ", \"rope_scaling\": {\"type\": \"yarn\", \"factor\": 2, \"beta_slow\": 0}}", "beta_slow 0");
}

static void test_bad_config(void **state)
{
    (void)state;
    refused("", "invalid JSON");
    refused("{" GOOD ", }", "invalid JSON at line 1");
    refused("[]", "not a JSON object");
    refused("{}", "model_type is missing");
    refused("{\"model_type\": \"llama\"}", "model_type is llama");
    refused("{\"model_type\": 3}", "model_type is missing");
    refused("{\"model_type\": \"qwen3\", " SIZES "}", "vocab_size is missing");
    refused("{\"model_type\": \"qwen3\", " SIZES ", \"vocab_size\": -1}", "vocab_size is -1");
    refused("{\"model_type\": \"qwen3\", " SIZES ", \"vocab_size\": 1e18}", "vocab_size is not");
    refused("{\"model_type\": \"qwen3\", " SIZES ", \"vocab_size\": 10.5}", "vocab_size is not an integer");
    refused("{\"model_type\": \"qwen3\", " SIZES ", \"vocab_size\": \"10\"}", "vocab_size is not an integer");
    refused("{\"model_type\": \"qwen3\", " SIZES ", \"vocab_size\": 9, \"num_key_value_heads\": 3}", "no multiple");
    refused("{\"model_type\": \"qwen3\", " SIZES ", \"vocab_size\": 9, \"head_dim\": 33}", "odd");
    refused("{" GOOD ", \"hidden_act\": \"gelu\"}", "hidden_act gelu");
    refused("{" GOOD ", \"rms_norm_eps\": \"x\"}", "rms_norm_eps is not a number");
    refused("{" GOOD ", \"rms_norm_eps\": -1}", "rms_norm_eps -1");
    refused("{" GOOD ", \"tie_word_embeddings\": 1}", "tie_word_embeddings is not true or false");
    refused("{" GOOD ", \"eos_token_id\": -4}", "eos_token_id");
    refused("{" GOOD ", \"rope_scaling\": {\"rope_type\": \"longrope\"}}", "longrope");
    refused("{" UNTURNED ", \"rope_theta\": 0}", "rope_theta");
    refused("{" UNTURNED ", \"rope_theta\": -3}", "rope_theta -3");
}

static void test_bad_quantization(void **state)
{
    (void)state;
    refused("{" GOOD ", \"quantization\": 4}", "not an object");
    refused("{" GOOD ", \"quantization\": {\"bits\": 9}}", "bits is 9");
    refused("{" GOOD ", \"quantization\": {\"bits\": 7}}", "7 bits");
    refused("{" GOOD ", \"quantization\": {\"group_size\": 48}}", "group_size 48");
    refused("{" GOOD ", \"quantization\": {\"mode\": \"mxfp4\", \"bits\": 8}}", "mode mxfp4 by 8 bits");
    refused("{" GOOD ", \"quantization\": {\"mode\": \"int9\"}}", "int9");
    refused("{" GOOD ", \"quantization\": {\"mode\": 3}}", "mode is not a string");
    refused("{" GOOD ", \"quantization\": {\"a.b\": 3}}", "a.b");
    refused("{" GOOD ", \"quantization\": {\"a.b\": {\"bits\": 1}}}", "bits is 1");
    refused("{" GOOD ", \"quantization_config\": {\"quant_method\": \"awq\"}}", "awq");
    struct config c;
    struct error e = { "" };
    assert_false(config_read(&c, "no/such/place", &e));
    assert_non_null(strstr(e.text, "no/such/place/config.json"));
}

static void test_presets(void **state)
{
    struct config c;
    struct error e = { "" };
    (void)state;
    assert_true(config_preset(&c, "8b", 4, &e));
    assert_int_equal(c.intermediate, 12288);
    assert_int_equal(config_quantization(&c, "lm_head")->group_size, 64);
    assert_true(config_preset(&c, "0.6b", 16, &e));
    assert_true(c.tied);
    assert_null(config_quantization(&c, "model.embed_tokens"));
    assert_false(config_preset(&c, "9b", 4, &e));
    assert_false(config_preset(&c, "8b", 7, &e));
}

/* ==== >>chat ============================================================================================== */

/* opening, system: NULL where there is none. */
static void expect_chat(const char *name, const char *text, bool has, bool chatml, const char *opening, const char *system)
{
    struct chat chat;
    struct error e = { "" };
    write_text(name, text);
    assert_true(chat_read(&chat, dir, &e));
    assert_int_equal(chat.has_template, has);
    assert_int_equal(chat.is_chatml, chatml);
    assert_string_equal(chat.opening ? chat.opening : "", opening ? opening : "");
    assert_string_equal(chat.system ? chat.system : "", system ? system : "");
    chat_free(&chat);
    remove_file(name);
}

#define IF_ASKED "{% if add_generation_prompt %}"

static void test_chat_templates(void **state)
{
    (void)state;
    expect_chat("other", "", false, false, NULL, NULL);
    expect_chat("chat_template.jinja", "{{ '<|im_start|>' }}{{ '<|im_end|>' }}", true, true, NULL, NULL);
    expect_chat("chat_template.jinja", "[INST]", true, false, NULL, NULL);
    expect_chat("tokenizer_config.json", "{\"chat_template\": \"<|im_start|><|im_end|>\"}", true, true, NULL, NULL);
    expect_chat("tokenizer_config.json", "{\"chat_template\": [{\"name\": \"tool_use\", \"template\": \"x\"},"
                "{\"name\": \"default\", \"template\": \"<|im_start|><|im_end|>\"}]}", true, true, NULL, NULL);
    expect_chat("tokenizer_config.json", "{\"chat_template\": null}", false, false, NULL, NULL);
    expect_chat("tokenizer_config.json", "{\"chat_template\": \"{{ bos_token }}<|im_start|><|im_end|>\", \"bos_token\": null}",
                true, true, NULL, NULL);
    expect_chat("tokenizer_config.json", "{\"chat_template\": \"{{ bos_token }}<|im_start|><|im_end|>\", \"bos_token\": \"b\"}",
                true, false, NULL, NULL);
    struct chat chat;
    struct error e = { "" };
    write_text("tokenizer_config.json", "{");
    assert_false(chat_read(&chat, dir, &e));
    assert_non_null(strstr(e.text, "tokenizer_config.json"));
    remove_file("tokenizer_config.json");
}

/* How the answer begins. */
static void test_chat_openings(void **state)
{
    static const struct { const char *text, *opening; } rows[] = {
        { "<|im_end|>" IF_ASKED "{{- '<|im_start|>assistant\\n<think>\\n' }}", "<think>\n" },
        { "<|im_end|>" IF_ASKED "{{- \"<|im_start|>assistant\\n<think>\\n\" }}", "<think>\n" },
        { "<|im_end|>" IF_ASKED "{{- '<|im_start|>assistant\n<think>\n' }}", "<think>\n" },
        { "<|im_end|>" IF_ASKED "<|im_start|>assistant\n<think>\n  {% endif %}", "<think>\n" },
        { "<|im_end|>" IF_ASKED "{{- '<|im_start|>assistant\\n<think>\\n\\n</think>\\n\\n' }}", "<think>\n\n</think>\n\n" },
        { "{{ '<|im_end|>\\n<|im_start|>assistant\\n' }}", NULL },
        { "{{ '<|im_start|>assistant\\nx<|im_end|>' }}" IF_ASKED "{{ '<|im_start|>assistant\\n' }}", NULL },
        /* the hybrid models: an empty thought, only where thinking is switched off */
        { "<|im_end|>" IF_ASKED "{{- '<|im_start|>assistant\\n' }}{%- if enable_thinking is defined and "
          "enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}", NULL },
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        expect_chat("chat_template.jinja", rows[i].text, true, true, rows[i].opening, NULL);
    static const char *const others[] = {      /* of which one line says too little */
        "{% if x %}{{ '<|im_start|>assistant\\n<think>' }}{% else %}{{ '<|im_start|>assistant\\n' }}{% endif %}",
        "{{- '<|im_start|>assistant\\n' + '<think>\\n' }}",
        "{{- '<|im_start|>assistant\\n' }}{{- '<think>\\n' }}",
        ("{{- '<|im_start|>assistant\\n' }}{%- if enable_thinking is defined and enable_thinking is false %}"
         "{{- '<think>\\n\\n</think>\\n\\n' }}{%- else %}{{- '<think>\\n' }}{%- endif %}"),
        "{{- '<|im_start|>assistant\\n' }}{%- if not enable_thinking %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}",
    };
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        struct chat chat;
        struct error e = { "" };
        struct text whole = { 0 };
        text_add_string(&whole, "<|im_end|>" IF_ASKED);
        text_add_string(&whole, others[i]);
        write_text("chat_template.jinja", whole.data);
        assert_true(chat_read(&chat, dir, &e));
        assert_false(chat.is_chatml);
        chat_free(&chat);
        text_free(&whole);
    }
    remove_file("chat_template.jinja");
}

/* What stands for a system message that there is not. */
static void test_chat_systems(void **state)
{
    static const struct { const char *text, *system; } rows[] = {
        { "{% else %}{{ '<|im_start|>system\\nYou\\'re \"X\".<|im_end|>\\n' }}", "You're \"X\"." },
        { "{% else %}{{ '<|im_start|>system\nYou are X.<|im_end|>\n' }}", "You are X." },
        { "{% else %}<|im_start|>system\nYou're X.<|im_end|>\n{% endif %}", "You're X." },
        { "{% if tools %}<|im_start|>system\nCall.<|im_end|>\n{% endif %}", NULL },
        { "{% if a.role == 'system' %}{% elif documents %}{{ '<|im_start|>system\\nUse them.<|im_end|>' }}{% endif %}", NULL },
        { "{% if messages[0].role != 'system' %}{{ '<|im_start|>system\\nYou are X.<|im_end|>' }}{% endif %}", "You are X." },
        { "{{ '<|im_start|>system\\n' + messages[0]['content'] + '<|im_end|>' }}", NULL },
        { "{{ '<|im_start|>system\\n' }}{{ 'Tools<|im_end|>' }}", NULL },
        { "{% set s = 'Be X.' %}{% set s = m.content %}{{ '<|im_start|>system\\n' + s + '<|im_end|>' }}", "Be X." },
        { "{% set s = m.content %}{{ '<|im_start|>system\\n' + s + '<|im_end|>' }}", NULL },
        { "{% set a = 'Think.' %}{% set b = 'Be X.' %}{% if c %}{% set s = a %}{% else %}{% set s = b %}{% endif %}"
          "{{ '<|im_start|>system\\n' + s + '<|im_end|>' }}", "Be X." },
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        expect_chat("chat_template.jinja", rows[i].text, true, true, NULL, rows[i].system);
}

static void test_chat_text(void **state)
{
    struct text out = { 0 };
    char think[] = "<think>\n", kind[] = "Be kind.";
    (void)state;
    chat_render(&(struct chat){ .has_template = true }, NULL, "Hi", 2, &out);
    assert_string_equal(out.data, "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n");
    out.length = 0;
    chat_render(&(struct chat){ .opening = think, .system = kind }, "Be brief.", "Hi", 2, &out);
    assert_string_equal(out.data, "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
                                  "<|im_start|>assistant\n<think>\n");
    out.length = 0;
    chat_render(&(struct chat){ .system = kind }, NULL, "Hi", 2, &out);
    assert_string_equal(out.data, "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
                                  "<|im_start|>assistant\n");
    text_free(&out);
}

static void test_eos_token(void **state)
{
    static const char *const files[] = { "{\"eos_token\": \"<|im_end|>\"}", "{\"eos_token\": {\"content\": \"<|im_end|>\"}}" };
    (void)state;
    assert_null(chat_eos_token(dir));
    for (int i = 0; i < 2; i++) {
        write_text("tokenizer_config.json", files[i]);
        char *token = chat_eos_token(dir);
        assert_string_equal(token, "<|im_end|>");
        free(token);
        remove_file("tokenizer_config.json");
    }
}

/* ==== >>options =========================================================================================== */

static bool parse(struct options *o, struct error *e, const char *a, const char *b)
{
    char *argv[] = { "qwen3", (char *)(uintptr_t)a, (char *)(uintptr_t)b, NULL };
    return options_read(o, b ? 3 : 2, argv, e);
}

static void test_options(void **state)
{
    struct options o;
    struct error e = { "" };
    (void)state;
    assert_true(parse(&o, &e, "--max-tokens", "5"));
    assert_int_equal(o.max_tokens, 5);
    assert_true(parse(&o, &e, "--temp=0.5", NULL));
    assert_true(o.temp == 0.5 && o.top_p == 1);
    assert_true(parse(&o, &e, "--seed", "18446744073709551615"));
    assert_true(o.has_seed && o.seed == UINT64_MAX);
    assert_true(parse(&o, &e, "--prompt", "--ids"));
    assert_string_equal(o.prompt, "--ids");
    assert_false(o.ids);
    assert_true(parse(&o, &e, "--ids", NULL));
    assert_true(o.ids);
}

static void test_bad_options(void **state)
{
    static const char *const bad[][2] = {
        { "--what", NULL }, { "x", NULL }, { "--model", NULL }, { "--max-tokens", "x" }, { "--max-tokens", "" },
        { "--max-tokens", "-1" }, { "--max-tokens", "99999999999" }, { "--temp", "nan" }, { "--temp", "1x" },
        { "--seed", "-1" }, { "--seed", "18446744073709551616" }, { "--ids=1", NULL }, { "--mod", "x" },
    };
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct options o;
        struct error e = { "" };
        assert_false(parse(&o, &e, bad[i][0], bad[i][1]));
        assert_true(e.text[0]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_config),         cmocka_unit_test(test_generation_config),
        cmocka_unit_test(test_quantization),   cmocka_unit_test(test_bad_config),
        cmocka_unit_test(test_rope),
        cmocka_unit_test(test_bad_quantization), cmocka_unit_test(test_presets),
        cmocka_unit_test(test_chat_openings),  cmocka_unit_test(test_chat_systems),
        cmocka_unit_test(test_chat_templates), cmocka_unit_test(test_chat_text),
        cmocka_unit_test(test_eos_token),      cmocka_unit_test(test_options),
        cmocka_unit_test(test_bad_options),
    };
    return cmocka_run_group_tests_name("qwen3 configuration", tests, make_dir, remove_dir);
}
