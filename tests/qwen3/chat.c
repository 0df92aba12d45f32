/* chat.c - see chat.h. Templates are programs in Jinja; of Qwen's this renders what one system and one user message come
 * to, which is plain ChatML. */
#include "chat.h"

#include "json.h"

#include <stdlib.h>
#include <string.h>

/* Some files have a list of named templates; the one called default counts. */
static const char *default_template(const cJSON *item)
{
    const cJSON *each;
    if (!cJSON_IsArray(item))
        return cJSON_GetStringValue(item);
    cJSON_ArrayForEach(each, item) {
        const char *name = json_string(each, "name");
        if (name && strcmp(name, "default") == 0)
            return json_string(each, "template");
    }
    return NULL;
}

/* Appends the template's text, if there is one. */
static bool find_template(const char *dir, struct text *text, struct error *e)
{
    static const char *const files[] = { "tokenizer_config.json", "chat_template.json" };
    char *path = path_join(dir, "chat_template.jinja");
    bool ok = true;
    if (file_exists(path))
        ok = read_whole(text, path, 1 << 24, e);
    free(path);
    for (int i = 0; ok && !text->length && i < 2; i++) {
        path = path_join(dir, files[i]);
        if (file_exists(path)) {
            cJSON *root = json_read(path, e);
            const char *found = default_template(json_member(root, "chat_template"));
            ok = root != NULL;
            if (found)
                text_add_string(text, found);
            cJSON_Delete(root);
        }
        free(path);
    }
    return ok;
}

bool chat_read(struct chat *chat, const char *dir, struct error *e)
{
    struct text text = { 0 };
    *chat = (struct chat){ 0 };
    bool ok = find_template(dir, &text, e);
    if (ok && text.length) {
        chat->has_template = true;
        chat->is_chatml = strstr(text.data, "<|im_start|>") && strstr(text.data, "<|im_end|>");
        /* Jinja source: the line ends are written as backslash n. Qwen3's hybrid models have no such line: there the
         * model itself decides, by opening <think> or not. */
        chat->opens_thinking = strstr(text.data, "<|im_start|>assistant\\n<think>\\n'") != NULL;
    }
    text_free(&text);
    return ok;
}

void chat_render(const struct chat *chat, const char *system, const char *user, size_t user_length, struct text *out)
{
    if (system) {
        text_add_string(out, "<|im_start|>system\n");
        text_add_string(out, system);
        text_add_string(out, "<|im_end|>\n");
    }
    text_add_string(out, "<|im_start|>user\n");
    text_add(out, user, user_length);
    text_add_string(out, "<|im_end|>\n<|im_start|>assistant\n");
    if (chat->opens_thinking)
        text_add_string(out, "<think>\n");
}

char *chat_eos_token(const char *dir)
{
    struct error ignored;
    char *path = path_join(dir, "tokenizer_config.json"), *token = NULL;
    cJSON *root = file_exists(path) ? json_read(path, &ignored) : NULL;
    const cJSON *item = json_member(root, "eos_token");
    const char *text = cJSON_IsObject(item) ? json_string(item, "content") : cJSON_GetStringValue(item);
    if (text)
        token = copy_text(text, strlen(text));
    cJSON_Delete(root);
    free(path);
    return token;
}
