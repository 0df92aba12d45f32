/* json.c - see json.h. */
#include "json.h"

#include <math.h>
#include <string.h>

enum { JSON_FILE_LIMIT = 256 << 20 }; /* bytes; the largest tokenizer.json on the hub is a tenth of it */

/* The line and column of an offset, for the error line. */
static void position(const char *text, size_t offset, size_t *line, size_t *column)
{
    *line = *column = 1;
    for (size_t i = 0; i < offset; i++) {
        *column = text[i] == '\n' ? 1 : *column + 1;
        *line += text[i] == '\n';
    }
}

cJSON *json_parse(const char *text, size_t length, const char *where, struct error *e)
{
    const char *end = NULL;
    cJSON *root = cJSON_ParseWithLengthOpts(text, length, &end, false);
    size_t at = end && end >= text ? (size_t)(end - text) : 0;
    if (at > length)
        at = length;
    while (root && at < length && strchr(" \t\r\n", text[at])) /* strchr also finds the NULs of padding */
        at++;
    if (!root || at < length) {
        size_t line, column;
        position(text, at, &line, &column);
        fail(e, "%s: invalid JSON at line %zu, column %zu", where, line, column);
        cJSON_Delete(root);
        return NULL;
    }
    return root;
}

cJSON *json_read(const char *path, struct error *e)
{
    struct text text = { 0 };
    cJSON *root = read_whole(&text, path, JSON_FILE_LIMIT, e) ? json_parse(text.data, text.length, path, e) : NULL;
    text_free(&text);
    if (root && !cJSON_IsObject(root)) {
        fail(e, "%s: not a JSON object", path);
        cJSON_Delete(root);
        root = NULL;
    }
    return root;
}

bool json_integer(const cJSON *item, int64_t low, int64_t high, int64_t *value, const char *where, const char *name,
                  struct error *e)
{
    /* Up to 2^53 a double holds every integer; nothing in these files is larger. */
    double number = cJSON_IsNumber(item) ? item->valuedouble : NAN;
    if (!(fabs(number) <= 9007199254740992.0) || number != floor(number))
        return fail(e, "%s: %s is not an integer", where, name);
    if (number < (double)low || number > (double)high)
        return fail(e, "%s: %s is %.0f, outside [%lld, %lld]", where, name, number, (long long)low, (long long)high);
    *value = (int64_t)number;
    return true;
}

const cJSON *json_member(const cJSON *object, const char *name)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, name);
    return cJSON_IsNull(item) ? NULL : item;
}

const char *json_string(const cJSON *object, const char *name)
{
    return cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(object, name));
}

bool json_get_int(const cJSON *object, const char *name, int low, int high, int *value, const char *where,
                  struct error *e)
{
    const cJSON *item = json_member(object, name);
    int64_t wide = *value;
    if (item && !json_integer(item, low, high, &wide, where, name, e))
        return false;
    *value = (int)wide;
    return true;
}

bool json_get_double(const cJSON *object, const char *name, double *value, const char *where, struct error *e)
{
    const cJSON *item = json_member(object, name);
    if (item && (!cJSON_IsNumber(item) || !isfinite(item->valuedouble)))
        return fail(e, "%s: %s is not a number", where, name);
    if (item)
        *value = item->valuedouble;
    return true;
}

bool json_get_bool(const cJSON *object, const char *name, bool *value, const char *where, struct error *e)
{
    const cJSON *item = json_member(object, name);
    if (item && !cJSON_IsBool(item))
        return fail(e, "%s: %s is not true or false", where, name);
    if (item)
        *value = cJSON_IsTrue(item);
    return true;
}
