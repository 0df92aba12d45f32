/* chat.c - see chat.h. Templates are programs in Jinja; of those of ChatML this renders what one system and one user
 * message come to, by looking for what ChatML leaves open: a default system message, and how the answer begins. */
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

/* ==== >>template: what of ChatML it leaves open ============================================================ */

/* The quote that the literal around this place has; 0: it is text of the template itself. */
static char quote_of(const char *text, const char *place)
{
    bool tag = false;
    char quote = 0;
    for (const char *at = text; at < place; at++) {
        if (quote && *at == '\\')
            at++;
        else if (quote)
            quote = *at == quote ? 0 : quote;
        else if (tag && (*at == '\'' || *at == '"'))
            quote = *at;
        else if (strncmp(at, tag ? "}}" : "{{", 2) == 0 || strncmp(at, tag ? "%}" : "{%", 2) == 0)
            tag = !tag, at++;
    }
    return quote;
}

/* Appends what a literal says from `at` on; returns where it ends: at its quote, or at the next tag. */
static const char *read_literal(const char *at, char quote, struct text *out)
{
    static const char codes[] = "nrt\\'\"", meant[] = "\n\r\t\\'\"";
    text_add(out, "", 0);
    for (; *at && (quote ? *at != quote : strncmp(at, "{{", 2) != 0 && strncmp(at, "{%", 2) != 0); at++) {
        const char *code = quote && *at == '\\' && at[1] ? strchr(codes, at[1]) : NULL;
        if (code)
            at++;
        text_add(out, code ? &meant[code - codes] : at, 1);
    }
    return at;
}

/* Whether a statement, "{% ... %}" from `at` on, has the word. */
static bool statement_has(const char *at, const char *word)
{
    const char *found = strstr(at, word), *end = strstr(at, "%}");
    return found && end && found < end;
}

/* Whether what is at this place is written in a chat without system message, tools, or anything else: by the last
 * statement before it, which may be a condition of that. */
static bool is_default(const char *text, const char *at)
{
    while (at > text && strncmp(at, "{%", 2) != 0)
        at--;
    if (statement_has(at, "tools"))
        return false;
    return !statement_has(at, "if ") || statement_has(at, "role") || statement_has(at, "first");
}

/* Where what the next "set name = ..." behind `at` gives begins; NULL: there is none. */
static const char *next_set(const char *at, const char *name, size_t length)
{
    while ((at = strstr(at, "set ")) != NULL && (strncmp(at + 4, name, length) != 0 || !strchr(" =", at[4 + length])))
        at++;
    return at ? at + 4 + length + strspn(at + 4 + length, " =") : NULL;
}

/* What "set name = '...'" gives the variable whose name begins at `name`, or, where no literal is set, the last of other
 * variables that it is set to, which is behind "else"; NULL where that is no literal either. */
static char *variable(const char *text, const char *name, bool others)
{
    const size_t length = strcspn(name, "+~}|%-' \"\n");
    char *last = NULL;
    for (const char *at = text; length && (at = next_set(at, name, length)) != NULL;) {
        struct text value = { 0 };
        if (*at != '\'' && *at != '"')
            continue;
        read_literal(at + 1, *at, &value);
        if (value.length)
            return value.data;
        text_free(&value);
    }
    for (const char *at = text; length && others && (at = next_set(at, name, length)) != NULL;) {
        char *found = variable(text, at, false);
        if (!found)
            continue;
        free(last);
        last = found;
    }
    return last;
}

/* The system message of a chat that has none: a literal around it, or behind its first line a variable with a value. */
static char *default_system(const char *text)
{
    static const char begin[] = "<|im_start|>system\n", end[] = "<|im_end|>";
    const size_t length = sizeof begin - 1;
    char *system = NULL;
    for (const char *at = strstr(text, "<|im_start|>system"); at && !system; at = strstr(at + 1, "<|im_start|>system")) {
        struct text literal = { 0 };
        const char *next = read_literal(at, quote_of(text, at), &literal), *stop = strstr(literal.data, end);
        if (strcmp(literal.data, begin) == 0)
            system = variable(text, next + strspn(next, "\"'{-+~ \n"), true);
        else if (stop && strncmp(literal.data, begin, length) == 0 && is_default(text, at))
            system = copy_text(literal.data + length, (size_t)(stop - literal.data) - length);
        text_free(&literal);
    }
    return system;
}

/* Whether nothing more is written behind a literal that ends at `at`, but where the caller of the template asks for it:
 * an empty <think> of those that turn thinking off. */
static bool ends_opening(const char *at, char quote)
{
    at += quote && *at;
    at += strspn(at, " -\t\n");
    if (*at == '+' || *at == '~')
        return false;
    at += strncmp(at, "}}", 2) == 0 ? 2 : 0;
    at += strspn(at, " \t\n");
    if (strncmp(at, "{{", 2) == 0)
        return false;
    if (strncmp(at, "{%", 2) != 0 || !statement_has(at, "enable_thinking"))
        return true;
    const char *end = strstr(at, "endif"), *other = strstr(at, "else");
    return statement_has(at, "enable_thinking is defined and") && !(other && (!end || other < end));
}

/* What the template writes behind the line that begins the answer; false where that depends on more. */
static bool read_opening(const char *text, struct text *opening)
{
    static const char begin[] = "<|im_start|>assistant";
    const char *from = text, *at;
    text_add(opening, "", 0);
    for (const char *next = text; (next = strstr(next, "add_generation_prompt")) != NULL; next++)
        if (strstr(next, begin))
            from = next;
    if ((at = strstr(from, begin)) == NULL)
        return true;
    if (from != text && strstr(at + 1, begin)) /* of several, a condition chooses */
        return false;
    while (from == text && strstr(at + 1, begin))
        at = strstr(at + 1, begin);
    const char quote = quote_of(text, at);
    struct text literal = { 0 };
    const char *end = read_literal(at, quote, &literal), *line = strchr(literal.data, '\n');
    while (!quote && literal.length && strchr(*end ? " \t" : " \t\n", literal.data[literal.length - 1]))
        literal.data[--literal.length] = 0; /* before a tag, or at the end, Jinja drops it */
    if (line && line < literal.data + literal.length)
        text_add_string(opening, line + 1);
    text_free(&literal);
    return ends_opening(end, quote);
}

/* Whether bos_token is in the template and there is one: it would stand before everything. */
static bool begins_with_bos(const char *dir, const char *text)
{
    struct error ignored;
    char *path = path_join(dir, "tokenizer_config.json");
    cJSON *root = strstr(text, "bos_token") && file_exists(path) ? json_read(path, &ignored) : NULL;
    bool found = json_member(root, "bos_token") != NULL;
    cJSON_Delete(root);
    free(path);
    return found;
}

bool chat_read(struct chat *chat, const char *dir, struct error *e)
{
    struct text text = { 0 }, opening = { 0 };
    *chat = (struct chat){ 0 };
    bool ok = find_template(dir, &text, e);
    if (ok && text.length) {
        chat->has_template = true;
        chat->is_chatml = strstr(text.data, "<|im_start|>") && strstr(text.data, "<|im_end|>") &&
                          read_opening(text.data, &opening) && !begins_with_bos(dir, text.data);
        chat->system = default_system(text.data);
        chat->opening = opening.data;
    }
    text_free(&text);
    return ok;
}

void chat_free(struct chat *chat)
{
    free(chat->system);
    free(chat->opening);
    *chat = (struct chat){ 0 };
}

void chat_render(const struct chat *chat, const char *system, const char *user, size_t user_length, struct text *out)
{
    if (!system)
        system = chat->system;
    if (system) {
        text_add_string(out, "<|im_start|>system\n");
        text_add_string(out, system);
        text_add_string(out, "<|im_end|>\n");
    }
    text_add_string(out, "<|im_start|>user\n");
    text_add(out, user, user_length);
    text_add_string(out, "<|im_end|>\n<|im_start|>assistant\n");
    if (chat->opening)
        text_add_string(out, chat->opening);
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
