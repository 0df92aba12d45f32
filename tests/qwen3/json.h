/* json.h - cJSON with error lines that name the file and the member. */
#ifndef QWEN3_JSON_H
#define QWEN3_JSON_H

#include "util.h"

#include <cjson/cJSON.h>

/* Parses text that is JSON to its end (white space and the NULs of padding excepted).
 * where: what the error line calls it. NULL on error; cJSON_Delete frees the result. */
cJSON *json_parse(const char *text, size_t length, const char *where, struct error *e);

/* Reads and parses a file, which must hold an object. */
cJSON *json_read(const char *path, struct error *e);

/* A number that is an integer within [low, high]. name: what the error line calls it. */
bool json_integer(const cJSON *item, int64_t low, int64_t high, int64_t *value, const char *where, const char *name,
                  struct error *e);

/* Members of an object. An absent or null one leaves *value as it is and is no error. */
bool json_get_int(const cJSON *object, const char *name, int low, int high, int *value, const char *where,
                  struct error *e);
bool json_get_double(const cJSON *object, const char *name, double *value, const char *where, struct error *e);
bool json_get_bool(const cJSON *object, const char *name, bool *value, const char *where, struct error *e);

/* The member, or NULL where it is absent or null. */
const cJSON *json_member(const cJSON *object, const char *name);
/* The member's string, or NULL where it is absent or no string. */
const char *json_string(const cJSON *object, const char *name);

#endif
